package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/insight"
)

func (p *plugin) replaceCommand() *cobra.Command {
	var dry dryRun
	f, cancel := jobFlags{}, false
	cmd := &cobra.Command{
		Use: "replace pod/NAME... | collaset/NAME", GroupID: groupChange, Short: "Replace Pods of a CollaSet with new ones",
		Long: `Replace Pods of a CollaSet with new ones. Each new Pod is created first, with another instance ID, and the old
one is deleted when the new one is available. A new Pod has PVC claims of its own.

An OperationJob does it, and the command follows the job to its end; Ctrl-C stops the command, and not the job. Where
the kind OperationJob is not installed, Pods that are named get the label ` + appsv1alpha1.ToReplaceLabel + `,
and the command does not wait.

--cancel cancels what was asked for by that label, while the old Pod is in service. A job is stopped by deleting it.

The exit code is 0 if the job succeeds, 1 if it fails, and 130 if the command ends before the job.`,
		Example: `  kubectl kuperator replace pod/web-7k2xd
  kubectl kuperator replace collaset/web --parallelism 10% --detach
  kubectl kuperator replace pod/web-7k2xd --cancel`,
		Args: between(1, unlimited), ValidArgsFunction: p.completeSeveral("Pod", appsv1alpha1.CollaSetKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, err := targets(args, "Pod", "Pod", appsv1alpha1.CollaSetKind)
			switch {
			case err != nil:
				return err
			case !cancel:
				return p.replace(cmd.Context(), refs, f, dry)
			case refs[0].Kind != "Pod":
				return errors.New("--cancel is for pod/NAME: to stop a job, delete it; kubectl kuperator status lists jobs")
			}
			return p.cancelReplacements(cmd.Context(), refs, dry)
		},
	}
	dry.flag(cmd)
	f.add(cmd)
	cmd.Flags().BoolVar(&cancel, "cancel", false, "Cancel the request.")
	return cmd
}

// replace has a job replace Pods, or all Pods of a CollaSet.
func (p *plugin) replace(ctx context.Context, refs []insight.Ref, f jobFlags, dry dryRun) error {
	s, err := p.sessionFor(dry)
	if err != nil {
		return err
	}
	isPods := refs[0].Kind == "Pod"
	var pods []*corev1.Pod
	if isPods {
		pods, err = s.podsToReplace(ctx, refs)
	} else {
		err = s.exist(ctx, refs)
	}
	if err != nil {
		return err
	}
	job, err := newJob(appsv1alpha1.OpsActionReplace, s.namespace, refs, nil, f)
	if err != nil {
		return err
	}
	err = p.runJob(ctx, s, job, f.detach, dry)
	switch {
	case !errors.Is(err, errNoJobs):
		return err
	case !isPods:
		return fmt.Errorf("%w: name the Pods instead, or install it: kubectl apply --server-side -k deploy/crd, and then "+
			"-k deploy/overlays/operationjob-only", err)
	}
	for _, pod := range pods {
		if err := p.markToReplace(ctx, s, pod, dry); err != nil {
			return err
		}
	}
	return nil
}

// podsToReplace reads Pods. It is an error if no controller would replace one.
func (s *session) podsToReplace(ctx context.Context, refs []insight.Ref) ([]*corev1.Pod, error) {
	var pods []*corev1.Pod
	for _, ref := range refs {
		pod, err := s.pod(ctx, ref.Name)
		if err != nil {
			return nil, err
		}
		owner := metav1.GetControllerOf(pod)
		switch {
		case owner == nil || owner.Kind != appsv1alpha1.CollaSetKind:
			return nil, fmt.Errorf(
				"pod/%s belongs to no CollaSet, and no controller would replace it: delete it, and its workload makes another",
				pod.Name)
		case pod.DeletionTimestamp != nil:
			return nil, fmt.Errorf("pod/%s is being deleted already", pod.Name)
		}
		pods = append(pods, pod)
	}
	return pods, nil
}

func (s *session) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	pod, err := s.kube.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading pod/%s in namespace %s: %w", name, s.namespace, err)
	}
	return pod, nil
}

// markToReplace asks for a replacement by the label, as users do.
func (p *plugin) markToReplace(ctx context.Context, s *session, pod *corev1.Pod, dry dryRun) error {
	_, asked := pod.Labels[appsv1alpha1.ToReplaceLabel]
	c := change{Object: refOfPod(pod), Action: "being replaced", Changed: !asked}
	if c.Changed {
		value := strconv.FormatInt(s.now().UnixNano(), 10)
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID,
			"labels": map[string]any{appsv1alpha1.ToReplaceLabel: value}}})
		if err != nil {
			return err
		}
		if err := s.patchPod(ctx, pod, body, dry); err != nil {
			return err
		}
		c.Details = []string{"the kind OperationJob is not installed, so the Pod has the label " +
			appsv1alpha1.ToReplaceLabel + ", and this command does not wait", "see it: kubectl kuperator -n " + pod.Namespace +
			" status collaset/" + metav1.GetControllerOf(pod).Name + " --watch"}
	}
	return p.report(c, dry)
}

func refOfPod(pod *corev1.Pod) insight.Ref {
	return insight.Ref{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}
}

func (s *session) patchPod(ctx context.Context, pod *corev1.Pod, body []byte, dry dryRun) error {
	if dry == dryRunClient {
		return nil
	}
	_, err := s.kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, body, dry.options())
	return err
}

// cancelReplacements withdraws what users have asked for. What a job asks for is the job's: it is named.
func (p *plugin) cancelReplacements(ctx context.Context, refs []insight.Ref, dry dryRun) error {
	s, err := p.sessionFor(dry)
	if err != nil {
		return err
	}
	pods, err := s.podsToReplace(ctx, refs)
	if err != nil {
		return err
	}
	var errs []error
	for _, pod := range pods {
		errs = append(errs, p.cancelReplacement(ctx, s, pod, dry))
	}
	return errors.Join(errs...)
}

func (p *plugin) cancelReplacement(ctx context.Context, s *session, pod *corev1.Pod, dry dryRun) error {
	v := podops.Read(pod)
	c := change{Object: refOfPod(pod), Action: "not being replaced any more",
		Changed: podops.MarkedBy(v, appsv1alpha1.ToReplaceLabel, podops.AskerOther)}
	stop := ""
	if jobs := s.jobsOf(ctx, insight.JobAskers(v, appsv1alpha1.ToReplaceLabel)); len(jobs) > 0 {
		stop = strings.Join(jobs, " and ") + " asked for its replacement; to stop that: kubectl -n " + pod.Namespace +
			" delete " + strings.Join(jobs, " ")
	}
	switch {
	case stop != "" && !c.Changed:
		return fmt.Errorf("pod/%s is still being replaced: %s", pod.Name, stop)
	case stop != "":
		c.Action, c.Details = "no longer being replaced for a user", []string{"it is still being replaced: " + stop}
	}
	if c.Changed {
		withdrawal := podops.Withdraw(v, appsv1alpha1.ToReplaceLabel, podops.AskerOther)
		if err := s.patchPod(ctx, pod, withdrawal.MergePatch(v), dry); err != nil {
			return err
		}
	}
	return p.report(c, dry)
}

// jobsOf names the jobs of these UIDs, as operationjob/NAME. One that cannot be read has its UID for a name.
func (s *session) jobsOf(ctx context.Context, uids []types.UID) []string {
	if len(uids) == 0 {
		return nil
	}
	names := map[types.UID]string{}
	f := insight.Facts{}
	_ = s.read(jobsResource)(ctx, s.namespace, &f) // the UID says which job it is, too
	for i := range f.Jobs {
		names[f.Jobs[i].UID] = f.Jobs[i].Name
	}
	var found []string
	for _, uid := range uids {
		found = append(found, "operationjob/"+cmp.Or(names[uid], string(uid)))
	}
	return found
}
