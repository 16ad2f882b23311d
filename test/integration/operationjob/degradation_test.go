package operationjob_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// standstill is how long a thing must not happen to count as not happening.
const standstill = 2 * time.Second

// TestWithoutAComponent has a story for each row of the table "Without other components" of docs/operationjob.md.
func TestWithoutAComponent(t *testing.T) {
	t.Run("operationjob-controller", func(t *testing.T) {
		s := beginAlone(t, 1, "0")
		job := s.job(appsv1alpha1.OpsActionRestart, s.pods(), nil)
		s.asked(job)
		s.down(suite.OperationJob)
		require.NoError(t, s.Delete(t.Context(), job))
		await.Always(t, standstill, "the Pod keeps what was asked for", func() error {
			return s.inPhase(podops.PhasePreCheck, job, s.pods())
		})
		s.up(suite.OperationJob)
		s.gone(job)
		s.serve("web", 1)
		s.requireNoTraces()
	})

	t.Run("collaset-controller", func(t *testing.T) {
		s := beginAlone(t, 3, "3")
		pods := s.pods()
		s.down(suite.CollaSet)
		replace := s.job(appsv1alpha1.OpsActionReplace, pods[:1], nil)
		recreate := s.job(appsv1alpha1.OpsActionRecreate, pods[1:2], nil)
		late := s.job(appsv1alpha1.OpsActionRecreate, pods[2:], nil)
		s.asked(replace)
		s.await("the Pods of two jobs to be deleted", func() error {
			if now := s.pods(); len(now) != 1 {
				return fmt.Errorf("%d Pods are there", len(now))
			}
			return nil
		})
		s.waitsFor(late, "collaset-controller has to create the Pod of instance ID "+
			pods[2].Labels[appsv1alpha1.InstanceIDLabel])
		s.waitsFor(s.job(appsv1alpha1.OpsActionReplace, pods[:1], nil), "collaset-controller has to begin the replacement")
		s.underWay(replace, recreate)
		s.up(suite.CollaSet)
		s.serve("web", 3)
		s.succeed(replace, recreate)
	})

	t.Run("lifecycle-controller", func(t *testing.T) {
		s := beginAlone(t, 4, "4")
		before := s.pods()
		s.down(suite.Lifecycle)
		jobs := []*appsv1alpha1.OperationJob{
			s.job(appsv1alpha1.OpsActionRestart, before[:1], nil),
			s.job(appsv1alpha1.OpsActionRecreate, before[1:2], nil),
			s.job(appsv1alpha1.OpsActionEvict, before[2:3], nil),
		}
		other := s.job("example.com/warm-cache", before[3:], nil)
		s.asked(append(jobs, other)...)
		await.Always(t, standstill, "all Pods stay, and serve", func() error { return s.unchanged(before) })
		s.waitsFor(other, "lifecycle-controller")
		s.waitsFor(s.job(appsv1alpha1.OpsActionRestart, before[:1], nil), "lifecycle-controller")
		s.waitsFor(s.job(appsv1alpha1.OpsActionRecreate, before[1:2], nil), "lifecycle-controller has not begun")
		s.underWay(jobs...)
		s.up(suite.Lifecycle)
		s.succeed(jobs...)
	})

	t.Run("podtransitionrule-controller", func(t *testing.T) {
		s := beginAlone(t, 3, "1")
		free := s.free()
		before := s.pods()
		s.down(suite.PodTransitionRule)
		ruled := s.job(appsv1alpha1.OpsActionRestart, before[:2], nil)
		late := s.job(appsv1alpha1.OpsActionRestart, before[2:], nil)
		s.asked(ruled, late)
		s.succeed(s.job(appsv1alpha1.OpsActionRestart, free, nil))
		await.Always(t, standstill, "the Pods that a rule selects serve", func() error { return s.unchanged(before) })
		require.NoError(t, s.inPhase(podops.PhasePreCheck, ruled, s.pods()[:2]))
		s.waitsFor(late, "PreCheck: the PodTransitionRules that select the Pod have to let it pass")
		s.underWay(ruled)
		s.up(suite.PodTransitionRule)
		s.succeed(ruled)
	})

	t.Run("resourceconsist-controller", func(t *testing.T) {
		s := beginAlone(t, 3, "3")
		free := s.free()
		before := s.pods()
		s.down(suite.ResourceConsist)
		held := s.job(appsv1alpha1.OpsActionRestart, before[:2], nil)
		late := s.job(appsv1alpha1.OpsActionRestart, before[2:], nil)
		s.succeed(s.job(appsv1alpha1.OpsActionRestart, free, nil))
		s.await("the operations to wait for traffic", func() error {
			if err := s.inPhase(podops.PhasePreparing, held, s.pods()[:2]); err != nil {
				return err
			}
			return s.inPhase(podops.PhasePreparing, late, s.pods()[2:])
		})
		s.waitsFor(late, "waiting for cooperators to leave: Service/"+s.namespace+"/web")
		s.underWay(held)
		s.up(suite.ResourceConsist)
		s.succeed(held)
	})

	t.Run("webhook-server", func(t *testing.T) {
		s := beginAlone(t, 2, "0")
		s.breaks = []observer.Invariant{observer.Budget, observer.Traffic}
		before := s.pods()
		s.down(suite.Webhook)
		s.succeed(s.job(appsv1alpha1.OpsActionEvict, before[:1], nil))
		s.serve("web", 2)
		require.NotContains(t, uids(s.pods()), before[0].Name, "no rule was asked")
		s.up(suite.Webhook)
		graceful := s.job(appsv1alpha1.OpsActionEvict, before[1:], nil)
		s.asked(graceful)
		require.Contains(t, uids(s.pods()), before[1].Name)
	})
}

// free creates a CollaSet whose Pods no rule and no Service selects, and returns them.
func (s *story) free() []corev1.Pod {
	s.Helper()
	require.NoError(s, s.Create(s.Context(), workload.CollaSet(s.namespace, "free", image, 1)))
	s.serve("free", 1)
	pods, err := workload.Pods(s.Context(), s.Client, s.namespace, "free")
	require.NoError(s, err)
	return pods
}

// down stops a component until it is started again or the test is over.
func (s *story) down(component string) {
	s.Helper()
	require.NoError(s, s.StopComponent(component)) // which gives its Lease back, so that its successor need not wait
}

func (s *story) up(component string) {
	s.Helper()
	require.NoError(s, s.Restart(s.Context(), component))
}

// asked waits until jobs have asked for what they need of all of their targets.
func (s *story) asked(jobs ...*appsv1alpha1.OperationJob) {
	s.Helper()
	for _, job := range jobs {
		s.await("job "+job.Name+" to ask", func() error {
			if err := s.Get(s.Context(), client.ObjectKeyFromObject(job), job); err != nil {
				return err
			}
			isBefore := func(d appsv1alpha1.OpsStatus) bool {
				return d.Operation == nil || d.Operation.Stage == appsv1alpha1.OpsStageStarted
			}
			if got := job.Status.TargetDetails; len(got) == 0 || slices.ContainsFunc(got, isBefore) {
				return fmt.Errorf("%+v", got)
			}
			return nil
		})
	}
}

// underWay checks that no target of jobs has ended.
func (s *story) underWay(jobs ...*appsv1alpha1.OperationJob) {
	s.Helper()
	for _, job := range jobs {
		require.NoError(s, s.Get(s.Context(), client.ObjectKeyFromObject(job), job))
		for _, d := range job.Status.TargetDetails {
			require.Equal(s, appsv1alpha1.OperationProgressProcessing, d.Progress, "%+v", d)
		}
	}
}

// waitsFor lets the deadline of a job pass, and checks that it tells what the job was waiting for.
func (s *story) waitsFor(job *appsv1alpha1.OperationJob, what string) {
	s.Helper()
	s.asked(job)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"activeDeadlineSeconds":1}}`))
	require.NoError(s, s.Patch(s.Context(), job, patch))
	s.over(job, appsv1alpha1.OperationProgressFailed)
	failed := job.Status.TargetDetails[0].Error
	require.Equal(s, appsv1alpha1.ReasonDeadlineExceeded, failed.Reason)
	require.Contains(s, failed.Message, what)
}

// inPhase is nil if the job's operations on Pods are in a phase.
func (s *story) inPhase(phase podops.Phase, job *appsv1alpha1.OperationJob, pods []corev1.Pod) error {
	for i := range pods {
		if now := podops.PhaseOf(podops.Read(&pods[i]), podops.JobOperationID(job.Name)); now != phase {
			return fmt.Errorf("%s is in phase %q", pods[i].Name, now)
		}
	}
	return nil
}

// unchanged is nil if the Pods are those of before, and all of them serve.
func (s *story) unchanged(before []corev1.Pod) error {
	now := s.pods()
	if !slices.Equal(workload.UIDs(before), workload.UIDs(now)) {
		return fmt.Errorf("the Pods were %v and are %v", uids(before), uids(now))
	}
	for i := range now {
		if v := podops.Read(&now[i]); !v.Ready || !v.ServiceAvailable() {
			return fmt.Errorf("%s does not serve", v.Name)
		}
	}
	return nil
}
