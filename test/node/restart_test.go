package node

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// restart restarts containers in place, and updates the same Pods to another image and back: each container restarts
// once for each, and Pods keep their UIDs and addresses. The Pods are of version 1, before and after, and new.
func (w *world) restart(t *testing.T, l *load) {
	t.Helper()
	before := w.facts(t)
	// step checks that each Pod is the same, with so many restarts of its containers.
	step := func(main, side int32) {
		t.Helper()
		now := w.facts(t)
		require.Len(t, now, len(before))
		for name, was := range before {
			want := was
			want.main, want.side = main, side
			require.Equal(t, want, now[name])
		}
	}
	step(0, 0)
	l.phase("restart in place")
	w.job(t, "restart", nil)
	step(1, 0)
	l.phase("restart of sidecars")
	w.job(t, "restart-sidecars", []string{sidecar})
	step(1, 1)
	l.phase("update in place after a restart")
	w.update(t, appsv1alpha1.PodUpdateInPlaceOnly, "2", 0)
	w.waitServing(t, replicas, "2")
	step(2, 1)
	w.update(t, "", "1", 0)
	w.waitServing(t, replicas, "1")
	step(3, 1)
}

// podFacts are what an operation in place may change of a Pod, and what it may not.
type podFacts struct {
	uid, ip    string
	main, side int32 // restarts
}

// facts are those of all Pods, by name.
func (w *world) facts(t *testing.T) map[string]podFacts {
	t.Helper()
	pods, err := w.pods(t.Context())
	require.NoError(t, err)
	facts := map[string]podFacts{}
	for i := range pods {
		require.Len(t, pods[i].Status.ContainerStatuses, 1)
		require.Len(t, pods[i].Status.InitContainerStatuses, 1)
		facts[pods[i].Name] = factsOf(&pods[i])
	}
	return facts
}

// factsOf are those of a Pod with one container and one sidecar.
func factsOf(pod *corev1.Pod) podFacts {
	return podFacts{string(pod.UID), pod.Status.PodIP, pod.Status.ContainerStatuses[0].RestartCount,
		pod.Status.InitContainerStatuses[0].RestartCount}
}

// job restarts containers of all Pods, nil for all but sidecars, in place or not at all, and waits until it has
// succeeded.
func (w *world) job(t *testing.T, name string, containers []string) {
	t.Helper()
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	job.Spec.Action = appsv1alpha1.OpsActionRestart
	job.Spec.Restart = &appsv1alpha1.RestartAction{Fallback: appsv1alpha1.RestartFallbackFail}
	job.Spec.TargetSelector = &appsv1alpha1.OperationTargetSelector{Containers: containers,
		Workload: &appsv1alpha1.WorkloadReference{Kind: appsv1alpha1.CollaSetKind, Name: "web"}}
	require.NoError(t, w.client.Create(t.Context(), job))
	w.waitEnd(t, job)
	require.Equal(t, appsv1alpha1.OperationProgressSucceeded, job.Status.Progress, "%+v", job.Status)
}
