package e2e

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// replaced waits until none of the Pods of this name and UID is left.
func (w *world) replaced(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	await.Nil(t, pod.Name+" gone", func() error {
		now := &corev1.Pod{}
		if err := w.client.Get(t.Context(), keyOf(pod), now); err != nil || now.UID != pod.UID {
			return client.IgnoreNotFound(err)
		}
		return fmt.Errorf("it is there: %v", podops.Explain(podops.Read(now), w.rules(t, pod.Namespace)))
	})
}

// kubectlDelete deletes a Pod as a user does, without waiting for its end.
func (w *world) kubectlDelete(t *testing.T, pod *corev1.Pod, flags ...string) error {
	t.Helper()
	_, err := w.Kubectl(t.Context(), append([]string{"-n", pod.Namespace, "delete", "pod", pod.Name, "--wait=false"},
		flags...)...)
	return err
}

// TestGracefulDeletion is about Pods that are deleted, by whomever.
func TestGracefulDeletion(t *testing.T) {
	t.Parallel()
	t.Run("kubectl delete pod is refused, and the Pod goes when it is out of service", func(t *testing.T) {
		w := together(t)
		ns := w.namespace(t)
		o := w.observe(t, ns, observer.Options{Graceful: true})
		w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "1"), workload.CollaSet(ns, "web", image1, 3))
		w.waitServing(t, ns, "web", 3, image1)
		pods := w.pods(t, ns, "web")
		for i := range pods {
			require.ErrorContains(t, w.kubectlDelete(t, &pods[i]),
				"Pod "+pods[i].Name+" is being taken out of service and is then deleted by itself")
		}
		for i := range pods {
			w.replaced(t, &pods[i])
		}
		w.waitServing(t, ns, "web", 3, image1)
		requireWithin(t, o, ns, 1)
	})

	t.Run("without the mark the Pod stays", func(t *testing.T) {
		w := together(t)
		ns := w.namespace(t)
		w.observe(t, ns, observer.Options{Graceful: true})
		w.create(t, workload.Rule(ns, "web", "0"), workload.CollaSet(ns, "web", image1, 2))
		w.waitServing(t, ns, "web", 2, image1)
		before := workload.UIDs(w.pods(t, ns, "web"))
		pod := &w.pods(t, ns, "web")[0]
		require.NoError(t, w.kubectlDelete(t, pod, "--dry-run=server"))
		require.NoError(t, workload.AtRest(t.Context(), w.client, ns, "web", 2, image1), "a dry run has no effect")
		require.Error(t, w.kubectlDelete(t, pod))
		await.Nil(t, "the Pod to wait for the rule", func() error {
			if !slices.Contains(w.waiting(t, ns, "web", podops.WaitRule), pod.Name) {
				return errors.New("it does not")
			}
			return nil
		})
		require.ErrorContains(t, w.kubectlDelete(t, pod), "it waits for the PodTransitionRule")
		w.label(t, pod, map[string]any{appsv1alpha1.ToDeleteLabel: nil})
		w.waitServing(t, ns, "web", 2, image1)
		require.Equal(t, before, workload.UIDs(w.pods(t, ns, "web")))
	})

	t.Run("force deletes at once", func(t *testing.T) {
		w := together(t)
		ns := w.namespace(t)
		w.create(t, workload.Rule(ns, "web", "0"), workload.CollaSet(ns, "web", image1, 2))
		w.waitServing(t, ns, "web", 2, image1)
		pod := &w.pods(t, ns, "web")[0]
		require.Error(t, w.kubectlDelete(t, pod))
		require.NoError(t, w.kubectlDelete(t, pod, "--force", "--grace-period=0"))
		w.replaced(t, pod)
		w.waitServing(t, ns, "web", 2, image1)
	})

	t.Run("a namespace can be deleted whatever its rules say", func(t *testing.T) {
		w := together(t)
		ns := w.namespace(t)
		w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "0"), workload.Rule(ns, "guest", "0"),
			workload.CollaSet(ns, "web", image1, 3), deployment(ns, "guest", 2))
		w.waitServing(t, ns, "web", 3, image1)
		w.waitServing(t, ns, "guest", 2, image1)
		_, err := w.Kubectl(t.Context(), "delete", "namespace", ns, "--timeout="+await.Patience.String())
		require.NoError(t, err)
	})

	t.Run("a Deployment can be deleted whatever its rules say", func(t *testing.T) {
		w := together(t)
		ns := w.namespace(t)
		w.create(t, workload.Rule(ns, "web", "0"), deployment(ns, "web", 2))
		w.waitServing(t, ns, "web", 2, image1)
		require.NoError(t, w.client.Delete(t.Context(), deployment(ns, "web", 2)))
		await.Nil(t, "its Pods gone", func() error {
			if pods := w.pods(t, ns, "web"); len(pods) > 0 {
				return fmt.Errorf("%d are there", len(pods))
			}
			return nil
		})
	})

	t.Run("a Deployment is scaled in within the rule", func(t *testing.T) {
		w := together(t)
		ns := w.namespace(t)
		o := w.observe(t, ns, observer.Options{})
		w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "1"), deployment(ns, "web", 6))
		w.waitServing(t, ns, "web", 6, image1)
		before := workload.UIDs(w.pods(t, ns, "web"))
		require.NoError(t, w.client.Patch(t.Context(), deployment(ns, "web", 0),
			client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":3}}`))))
		w.waitServing(t, ns, "web", 3, image1)
		for _, uid := range workload.UIDs(w.pods(t, ns, "web")) {
			require.Contains(t, before, uid, "no more Pods were deleted than had to be")
		}
		requireWithin(t, o, ns, 1)
	})

	t.Run("workloads of Kubernetes are updated", func(t *testing.T) {
		w := together(t)
		ns := w.namespace(t)
		w.observe(t, ns, observer.Options{})
		daemons := &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "agent"},
			Spec: appsv1.DaemonSetSpec{Selector: deployment(ns, "agent", 0).Spec.Selector,
				Template: deployment(ns, "agent", 0).Spec.Template},
		}
		w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "1"), workload.Rule(ns, "db", "1"),
			workload.Rule(ns, "agent", "1"))
		w.create(t, deployment(ns, "web", 3), statefulSet(ns, "db", 3), daemons)
		all := map[string]client.Object{"web": deployment(ns, "web", 3), "db": statefulSet(ns, "db", 3), "agent": daemons}
		for name := range all {
			w.waitServing(t, ns, name, 3, image1) // a DaemonSet has a Pod on each of the three nodes
		}
		patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":%q}]}}}}`, image2)
		for _, workload := range all {
			require.NoError(t, w.client.Patch(t.Context(), workload,
				client.RawPatch(types.StrategicMergePatchType, []byte(patch))))
		}
		for name := range all {
			w.waitServing(t, ns, name, 3, image2)
		}
	})
}

// TestGracefulDeletionWithoutAComponent is about those that are deleted while a component does not run.
func TestGracefulDeletionWithoutAComponent(t *testing.T) {
	t.Run("a Pod without the gate goes at once", func(t *testing.T) {
		w := alone(t)
		ns := w.namespace(t)
		w.down(t, suite.Webhook)
		w.create(t, workload.Rule(ns, "web", "0"), deployment(ns, "web", 1))
		w.waitServing(t, ns, "web", 1, image1)
		require.NoError(t, w.Restart(t.Context(), suite.Webhook))
		pod := &w.pods(t, ns, "web")[0]
		require.False(t, podops.Read(pod).Gate)
		require.NoError(t, w.kubectlDelete(t, pod))
		w.replaced(t, pod)
	})

	t.Run("nobody prepares while lifecycle-controller is down", func(t *testing.T) {
		w := alone(t)
		ns := w.namespace(t)
		w.observe(t, ns, observer.Options{})
		w.create(t, workload.CollaSet(ns, "web", image1, 1))
		w.waitServing(t, ns, "web", 1, image1)
		w.down(t, suite.Lifecycle)
		pod := &w.pods(t, ns, "web")[0]
		for range 2 {
			require.ErrorContains(t, w.kubectlDelete(t, pod), "it waits for lifecycle-controller to begin")
		}
		require.NoError(t, w.Restart(t.Context(), suite.Lifecycle))
		w.replaced(t, pod)
		w.waitServing(t, ns, "web", 1, image1)
	})
}
