// Package operationjob_test has the whole suite carry out OperationJobs on a real API server, under rules, with
// simulated nodes. An observer watches every namespace and fails its test for any promise that is broken.
package operationjob_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/race"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const image = "app:v1"

// shared is the suite that all tests use.
var shared = testsuite.Share(newWorld)

// world is the suite and an administrator's client.
type world struct {
	*suite.Suite
	client.Client
}

func TestMain(m *testing.M) { shared.Main(m) }

func newWorld(ctx context.Context) (*world, error) {
	s, err := suite.Start(ctx, suite.Config{Name: "operationjob", Nodes: 3, Race: race.Enabled, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	c, err := testsuite.Client(s.RESTConfig())
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return &world{Suite: s, Client: c}, nil
}

// story is one test in its own namespace, with a CollaSet "web" and a rule about its Pods.
type story struct {
	*testing.T
	*world
	namespace string
	observer  *observer.Observer
	// breaks are the promises that do not hold without the component that the test stops.
	breaks []observer.Invariant
}

// begin has the Pods of a CollaSet serve, of which a rule lets so many be out of service. It runs beside other tests.
func begin(t *testing.T, pods int32, maxUnavailable string) *story {
	t.Helper()
	t.Parallel()
	return newStory(t, pods, maxUnavailable)
}

// beginAlone is begin for a test that stops components, which run again when it is over. No other test runs meanwhile.
func beginAlone(t *testing.T, pods int32, maxUnavailable string) *story {
	t.Helper()
	w := shared.Get(t)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, name := range suite.Components() {
			if !slices.Contains(w.Running(), name) {
				require.NoError(t, w.Restart(ctx, name))
			}
		}
		require.NoError(t, w.WaitLeading(ctx, suite.Components()...))
	})
	return newStory(t, pods, maxUnavailable)
}

func newStory(t *testing.T, pods int32, maxUnavailable string) *story {
	t.Helper()
	s := &story{T: t, world: shared.Get(t)}
	s.namespace = testcluster.Namespace(t, s.Cluster, nil)
	var err error
	s.observer, err = observer.Start(context.WithoutCancel(t.Context()), s.RESTConfig(),
		observer.Options{Namespace: s.namespace})
	require.NoError(t, err)
	t.Cleanup(func() {
		report, err := s.observer.Stop()
		require.NoError(t, err)
		isMeant := func(v observer.Violation) bool { return slices.Contains(s.breaks, v.Invariant) }
		require.Empty(t, slices.DeleteFunc(report.Violations, isMeant))
	})
	for _, o := range []client.Object{workload.Service(s.namespace, "web"),
		workload.Rule(s.namespace, "web", maxUnavailable), workload.CollaSet(s.namespace, "web", image, pods)} {
		require.NoError(t, s.Create(t.Context(), o))
	}
	s.serve("web", int(pods))
	return s
}

// serve waits until so many Pods of a CollaSet serve, and no others are there.
func (s *story) serve(collaSet string, pods int) {
	s.Helper()
	s.await("the Pods to serve", func() error {
		return workload.AtRest(s.Context(), s.Client, s.namespace, collaSet, pods, image)
	})
}

func (s *story) await(what string, check func() error) {
	s.Helper()
	await.Nil(s.T, what, check)
}

// pods are those of the CollaSet.
func (s *story) pods() []corev1.Pod {
	s.Helper()
	pods, err := workload.Pods(s.Context(), s.Client, s.namespace, "web")
	require.NoError(s, err)
	return pods
}

// job creates a job about Pods.
func (s *story) job(action appsv1alpha1.OperationAction, pods []corev1.Pod, change func(*appsv1alpha1.OperationJobSpec),
) *appsv1alpha1.OperationJob {
	s.Helper()
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, GenerateName: "job-"}}
	job.Spec.Action = action
	for i := range pods {
		job.Spec.Targets = append(job.Spec.Targets, appsv1alpha1.PodOpsTarget{Name: pods[i].Name})
	}
	if change != nil {
		change(&job.Spec)
	}
	require.NoError(s, s.Create(s.Context(), job))
	return job
}

// ends waits until a job has ended so, and checks that nothing is left of it.
func (s *story) ends(
	job *appsv1alpha1.OperationJob, want appsv1alpha1.OperationProgress,
) appsv1alpha1.OperationJobStatus {
	s.Helper()
	s.over(job, want)
	s.requireNoTraces()
	return job.Status
}

// succeed waits until jobs have succeeded, and checks that nothing is left of them.
func (s *story) succeed(jobs ...*appsv1alpha1.OperationJob) {
	s.Helper()
	for _, job := range jobs {
		s.over(job, appsv1alpha1.OperationProgressSucceeded)
	}
	s.requireNoTraces()
}

// over waits until a job has ended so.
func (s *story) over(job *appsv1alpha1.OperationJob, want appsv1alpha1.OperationProgress) {
	s.Helper()
	s.await("job "+job.Name+" to end", func() error {
		if err := s.Get(s.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if job.Status.EndTime == nil {
			return fmt.Errorf("%d of %d targets have succeeded, %d failed: %+v", job.Status.SucceededPodCount,
				job.Status.TotalPodCount, job.Status.FailedPodCount, job.Status.TargetDetails)
		}
		return nil
	})
	require.Equal(s, want, job.Status.Progress, "%+v", job.Status)
}

// gone waits until a job that was deleted is gone.
func (s *story) gone(job *appsv1alpha1.OperationJob) {
	s.Helper()
	s.await("job "+job.Name+" to be gone", func() error {
		if err := s.Get(s.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return client.IgnoreNotFound(err)
		}
		return fmt.Errorf("it is there: %v, %+v", job.Finalizers, job.Status)
	})
}

// requireNoTraces checks that no Pod carries anything of a job that has ended.
func (s *story) requireNoTraces() {
	s.Helper()
	for _, pod := range s.pods() {
		for key := range pod.Annotations {
			require.False(s, strings.HasSuffix(key, podops.AskersSuffix) || key == podops.TasksAnnotation,
				"%s keeps %s", pod.Name, key)
		}
		require.NotContains(s, pod.Finalizers, appsv1alpha1.ReplaceProtectionFinalizer)
		require.NotContains(s, pod.Labels, appsv1alpha1.ToReplaceLabel)
	}
}
