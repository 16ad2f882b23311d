package e2e

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// deployment is a workload that knows nothing of the suite but the label.
func deployment(namespace, name string, n int32) *appsv1.Deployment {
	labels := map[string]string{"app": name, appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(n),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image1}}},
			},
		},
	}
}

// TestThirdParty has programs that know only the published labels and
// finalizers, on Pods of a workload that is none of ours.
func TestThirdParty(t *testing.T) {
	t.Parallel()
	t.Run("an operator by labels on a Deployment's Pods", func(t *testing.T) {
		w := together(t)
		ns := w.namespace(t)
		o := w.observe(t, ns, observer.Options{})
		w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "1"), deployment(ns, "web", 3))
		w.waitServing(t, ns, "web", 3, image1)
		pods := w.pods(t, ns, "web")
		for i := range pods {
			require.True(t, podops.Read(&pods[i]).Gate, "webhook-server gives managed Pods their gate")
			w.operateByLabels(t, &pods[i], "restarter", image2)
		}
		requireWithin(t, o, ns, 1)
	})

	t.Run("a cooperator that only knows the finalizer prefix", func(t *testing.T) {
		w := together(t)
		ns := w.namespace(t)
		w.observe(t, ns, observer.Options{})
		w.create(t, deployment(ns, "web", 1))
		w.waitServing(t, ns, "web", 1, image1)
		pod := &w.pods(t, ns, "web")[0]
		const finalizer = podops.ProtectionFinalizerPrefix + "/legacy-balancer"
		w.setFinalizers(t, pod, finalizer)
		w.label(t, pod, map[string]any{
			podops.OperatingPrefix + "/restarter":     fmt.Sprint(time.Now().UnixNano()),
			podops.OperationTypePrefix + "/restarter": "restart",
		})
		get := func() podops.View {
			now := &corev1.Pod{}
			require.NoError(t, w.client.Get(t.Context(), keyOf(pod), now))
			return podops.Read(now)
		}
		await.Nil(t, "the Pod out of service, waiting for the cooperator", func() error {
			if v := get(); podops.PhaseOf(v, "restarter") != podops.PhasePreparing || v.Ready {
				return fmt.Errorf("%v", podops.Explain(v, nil))
			}
			return nil
		})
		await.Always(t, standstill, "no operation before the finalizer is gone", func() error {
			if v := get(); podops.PhaseOf(v, "restarter") != podops.PhasePreparing {
				return fmt.Errorf("%v", podops.Explain(v, nil))
			}
			return nil
		})
		w.setFinalizers(t, pod)
		await.Nil(t, "permission", func() error {
			if v := get(); !podops.Allowed(v, "restarter", "restart") {
				return fmt.Errorf("%v", podops.Explain(v, nil))
			}
			return nil
		})
		w.label(t, pod, map[string]any{podops.OperatingPrefix + "/restarter": nil})
		w.waitServing(t, ns, "web", 1, image1)
	})

	t.Run("an operator that changes its mind", func(t *testing.T) {
		w := together(t)
		ns := w.namespace(t)
		w.observe(t, ns, observer.Options{})
		w.create(t, workload.Rule(ns, "web", "0"), deployment(ns, "web", 1))
		w.waitServing(t, ns, "web", 1, image1)
		pod := &w.pods(t, ns, "web")[0]
		w.label(t, pod, map[string]any{
			podops.OperatingPrefix + "/restarter":     fmt.Sprint(time.Now().UnixNano()),
			podops.OperationTypePrefix + "/restarter": "restart",
		})
		await.Nil(t, "the Pod to wait for the rule", func() error {
			if !slices.Contains(w.waiting(t, ns, "web", podops.WaitRule), pod.Name) {
				return errors.New("it does not")
			}
			return nil
		})
		w.label(t, pod, map[string]any{podops.UndoOperationTypePrefix + "/restarter": "restart"})
		w.waitServing(t, ns, "web", 1, image1)
	})
}

func (w *world) setFinalizers(t *testing.T, pod *corev1.Pod, finalizers ...string) {
	t.Helper()
	patch := `{"metadata":{"finalizers":null}}`
	if len(finalizers) > 0 {
		patch = fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, finalizers[0])
	}
	require.NoError(t, w.client.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch))))
}
