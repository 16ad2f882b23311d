package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/await"
)

// operationJob is a job for Pods that are named.
func operationJob(
	namespace, name string, action appsv1alpha1.OperationAction, pods ...string,
) *appsv1alpha1.OperationJob {
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	job.Spec.Action = action
	for _, pod := range pods {
		job.Spec.Targets = append(job.Spec.Targets, appsv1alpha1.PodOpsTarget{Name: pod})
	}
	return job
}

// waitSucceeded waits until a job has succeeded.
func (w *world) waitSucceeded(t *testing.T, job *appsv1alpha1.OperationJob) {
	t.Helper()
	await.Nil(t, "OperationJob "+job.Name+" to succeed", func() error {
		now := &appsv1alpha1.OperationJob{}
		if err := w.client.Get(t.Context(), keyOf(job), now); err != nil {
			return err
		}
		if now.Status.Progress == appsv1alpha1.OperationProgressSucceeded {
			return nil
		}
		require.NotEqual(t, appsv1alpha1.OperationProgressFailed, now.Status.Progress, "%+v", now.Status)
		return fmt.Errorf("its status is %+v", now.Status)
	})
}

// useJobs has a Pod of a CollaSet replaced and the Pod of a Deployment evicted, and the jobs deleted when their time is
// over.
func (w *world) useJobs(t *testing.T, ns, set, deployment string) {
	t.Helper()
	t.Log("jobs")
	jobs := []*appsv1alpha1.OperationJob{
		operationJob(ns, "replace", appsv1alpha1.OpsActionReplace, w.pods(t, ns, set)[0].Name),
		operationJob(ns, "evict", appsv1alpha1.OpsActionEvict),
	}
	jobs[1].Spec.TargetSelector = &appsv1alpha1.OperationTargetSelector{
		Workload: &appsv1alpha1.WorkloadReference{Kind: "Deployment", Name: deployment}}
	for _, job := range jobs {
		w.create(t, job)
	}
	for _, job := range jobs {
		w.waitSucceeded(t, job)
		require.NoError(t, w.client.Patch(t.Context(), job,
			client.RawPatch(types.MergePatchType, []byte(`{"spec":{"TTLSecondsAfterFinished":1}}`))))
		await.Nil(t, "OperationJob "+job.Name+" gone",
			func() error { return gone(w.client.Get(t.Context(), keyOf(job), &appsv1alpha1.OperationJob{})) })
	}
}
