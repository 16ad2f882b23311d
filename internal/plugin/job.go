package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

const (
	// setParallelism is the parallelism for all Pods of a CollaSet, as much as an update takes by itself. Pods that are
	// named were chosen by the user.
	setParallelism = "25%"
	// jobSuffix is how many random characters end the name of a job.
	jobSuffix = 5
)

// errNoJobs means that the API server does not know the kind OperationJob.
var errNoJobs = errors.New("the kind OperationJob is not installed on this cluster")

// jobFlags are those of commands that have a job do their work.
type jobFlags struct {
	parallelism string
	maxFailed   int32
	detach      bool
}

func (f *jobFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.parallelism, "parallelism", "",
		"Number or percentage of Pods that may be under way at the same time. Empty: "+setParallelism+
			" of a CollaSet, and all of Pods that are named.")
	cmd.Flags().Int32Var(&f.maxFailed, "max-failed", -1,
		"Number of Pods that may fail: after one more, no other Pod starts. -1: any number.")
	cmd.Flags().BoolVar(&f.detach, "detach", false, "Create the job and do not follow it.")
}

// exist returns an error if one of the objects, Pods or a CollaSet, does not exist.
func (s *session) exist(ctx context.Context, refs []insight.Ref) error {
	for _, ref := range refs {
		if ref.Kind == "Pod" {
			if _, err := s.pod(ctx, ref.Name); err != nil {
				return err
			}
			continue
		}
		set, err := s.suite.AppsV1alpha1().CollaSets(s.namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return fmt.Errorf("reading %s in namespace %s: %w", shown(ref), s.namespace, err)
		case set.Status.Replicas == 0 && ptr.Deref(set.Spec.Replicas, 0) == 0:
			return fmt.Errorf("%s has no Pods: there is nothing to do", shown(ref))
		}
	}
	return nil
}

// newJob is a job for Pods, or for all Pods of one CollaSet.
func newJob(
	action appsv1alpha1.OperationAction, namespace string, refs []insight.Ref, containers []string, f jobFlags,
) (*appsv1alpha1.OperationJob, error) {
	job := &appsv1alpha1.OperationJob{
		TypeMeta:   typeOfJob(),
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: jobName(action, refs)},
		Spec:       appsv1alpha1.OperationJobSpec{Action: action},
	}
	parallelism := f.parallelism
	if refs[0].Kind == "Pod" {
		for _, ref := range refs {
			job.Spec.Targets = append(job.Spec.Targets,
				appsv1alpha1.PodOpsTarget{Name: ref.Name, Containers: containers})
		}
	} else {
		if len(refs) > 1 {
			return nil, errors.New("one CollaSet at a time: a job for each")
		}
		job.Spec.TargetSelector = &appsv1alpha1.OperationTargetSelector{Containers: containers,
			Workload: &appsv1alpha1.WorkloadReference{Kind: refs[0].Kind, Name: refs[0].Name}}
		if parallelism == "" {
			parallelism = setParallelism
		}
	}
	if parallelism != "" {
		value := intstr.Parse(parallelism)
		job.Spec.Parallelism = &value
	}
	switch {
	case f.maxFailed < -1:
		return nil, fmt.Errorf("--max-failed is %d: give the number of Pods that may fail, or leave it out", f.maxFailed)
	case f.maxFailed >= 0:
		job.Spec.FailurePolicy = &appsv1alpha1.OperationFailurePolicy{MaxFailedTargets: &f.maxFailed}
	}
	return job, nil
}

func typeOfJob() metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: appsv1alpha1.SchemeGroupVersion.String(), Kind: appsv1alpha1.OperationJobKind}
}

// jobName is a name for a job that no other one has. It is short enough to be the ID of the job's operations.
func jobName(action appsv1alpha1.OperationAction, refs []insight.Ref) string {
	about := "pods"
	if len(refs) == 1 {
		about = refs[0].Name
	}
	base := strings.ToLower(string(action)) + "-" + about
	base = strings.TrimRight(base[:min(len(base), validation.LabelValueMaxLength-jobSuffix-1)], "-.")
	return base + "-" + utilrand.String(jobSuffix)
}

// runJob creates a job and follows it to its end, unless it is to be left alone or this is a dry run. It returns
// errNoJobs if the kind is not installed.
func (p *plugin) runJob(
	ctx context.Context, s *session, job *appsv1alpha1.OperationJob, detach bool, dry dryRun,
) error {
	if dry != dryRunClient {
		options := metav1.CreateOptions{FieldManager: fieldManager, DryRun: dry.options().DryRun}
		created, err := s.suite.AppsV1alpha1().OperationJobs(job.Namespace).Create(ctx, job, options)
		switch {
		case apierrors.IsNotFound(err): // the namespace is there: something was read in it
			return errNoJobs
		case err != nil:
			return err
		}
		created.TypeMeta = typeOfJob()
		job = created
	}
	created := refOfJob(job)
	switch {
	case dry != dryRunNone:
		return p.print(job, func(w io.Writer) { fmt.Fprintf(w, "%s created (%s dry run)\n", shown(created), dry) })
	case detach:
		return p.print(job, func(w io.Writer) {
			fmt.Fprintf(w, "%s created\n", shown(created))
			writeHowToGoOn(w, created)
			if away := s.jobControllerAway(ctx); away != nil {
				fmt.Fprintf(w, "  it waits: %s\n", away.Message)
			}
		})
	}
	return p.followJob(ctx, s, job)
}

func refOfJob(job *appsv1alpha1.OperationJob) insight.Ref {
	return insight.Ref{Kind: appsv1alpha1.OperationJobKind, Namespace: job.Namespace, Name: job.Name}
}

// writeHowToGoOn says how to watch a job and how to stop it.
func writeHowToGoOn(w io.Writer, job insight.Ref) {
	fmt.Fprintf(w, "  watch it: kubectl kuperator -n %s status %s --watch\n", job.Namespace, shown(job))
	fmt.Fprintf(w, "  stop it: kubectl -n %s delete %s\n", job.Namespace, shown(job))
}

// jobControllerAway is the reason that no job goes on; nil if operationjob-controller runs, or that is not known.
func (s *session) jobControllerAway(ctx context.Context) *insight.Reason {
	f := insight.Facts{System: s.system}
	if s.read(leasesResource)(ctx, "", &f) != nil {
		return nil
	}
	f.Now = s.now()
	return insight.MissingController(f, insight.OperationJobController)
}
