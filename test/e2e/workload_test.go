package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const (
	image1 = "web:1"
	image2 = "web:2"
	image3 = "web:3"
)

// pods returns the Pods labelled app=name.
func (w *world) pods(t *testing.T, namespace, name string) []corev1.Pod {
	t.Helper()
	pods, err := workload.Pods(t.Context(), w.client, namespace, name)
	require.NoError(t, err)
	return pods
}

// rules returns the namespace's rules in the form that podops.Explain takes.
func (w *world) rules(t *testing.T, namespace string) []podops.Rule {
	t.Helper()
	rules, err := workload.Rules(t.Context(), w.client, namespace)
	require.NoError(t, err)
	return rules
}

// patch changes a CollaSet with a JSON merge patch.
func (w *world) patch(t *testing.T, namespace, name, patch string) {
	t.Helper()
	require.NoError(t, workload.Patch(t.Context(), w.client, namespace, name, patch))
}

func (w *world) setImage(t *testing.T, namespace, name, image string) {
	t.Helper()
	w.patch(t, namespace, name, workload.Image(image))
}

func (w *world) scale(t *testing.T, namespace, name string, n int) {
	t.Helper()
	w.patch(t, namespace, name, workload.Replicas(n))
}

// waitServing waits until exactly n Pods exist, all of them in service with the
// image and with no operation left on them.
func (w *world) waitServing(t *testing.T, namespace, name string, n int, image string) {
	t.Helper()
	await.Nil(t, fmt.Sprintf("%d Pods of %s serving %s", n, name, image), func() error {
		return workload.AtRest(t.Context(), w.client, namespace, name, n, image)
	})
}

// waiting returns the Pods of which an operation waits for the reason.
func (w *world) waiting(t *testing.T, namespace, name string, reason podops.WaitReason) []string {
	t.Helper()
	rules := w.rules(t, namespace)
	var names []string
	pods := w.pods(t, namespace, name)
	for i := range pods {
		if slices.ContainsFunc(podops.Explain(podops.Read(&pods[i]), rules),
			func(wait podops.Wait) bool { return wait.Reason == reason }) {
			names = append(names, pods[i].Name)
		}
	}
	return names
}

// label writes labels on a Pod as a program without our SDK would: no
// preconditions, nil removes.
func (w *world) label(t *testing.T, pod *corev1.Pod, labels map[string]any) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	require.NoError(t, err)
	require.NoError(t, w.client.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))
}

// operateByLabels is an operator that knows nothing but the published labels: it asks, waits for its permission,
// changes the image and marks the operation as finished.
func (w *world) operateByLabels(t *testing.T, pod *corev1.Pod, id, image string) {
	t.Helper()
	w.label(t, pod, map[string]any{
		"operating.podopslifecycle.kusionstack.io/" + id:      fmt.Sprint(time.Now().UnixNano()),
		"operation-type.podopslifecycle.kusionstack.io/" + id: "restart",
	})
	now := &corev1.Pod{}
	await.Nil(t, "permission to operate "+pod.Name, func() error {
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(pod), now); err != nil {
			return err
		}
		v := podops.Read(now)
		if _, permitted := now.Labels["operate.podopslifecycle.kusionstack.io/"+id]; !permitted || v.Ready || v.Protected() {
			return fmt.Errorf("%v", podops.Explain(v, w.rules(t, pod.Namespace)))
		}
		return nil
	})
	patch := fmt.Sprintf(`{"spec":{"containers":[{"name":"main","image":%q}]}}`, image)
	require.NoError(t, w.client.Patch(t.Context(), now, client.RawPatch(types.StrategicMergePatchType, []byte(patch))))
	w.label(t, pod, map[string]any{"operating.podopslifecycle.kusionstack.io/" + id: nil})
	await.Nil(t, pod.Name+" back in service", func() error {
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(pod), now); err != nil {
			return err
		}
		if v := podops.Read(now); !v.Ready || !v.ServiceAvailable() || len(podops.Operations(v)) > 0 {
			return fmt.Errorf("%v", podops.Explain(v, w.rules(t, pod.Namespace)))
		}
		return nil
	})
	require.Equal(t, pod.UID, now.UID)
}

// inService checks whether n Pods are in service with the image, whatever waits on them.
func (w *world) inService(t *testing.T, namespace, name string, n int, image string) error {
	t.Helper()
	pods := w.pods(t, namespace, name)
	for i := range pods {
		if v := podops.Read(&pods[i]); pods[i].Spec.Containers[0].Image != image || !v.Ready || !v.ServiceAvailable() {
			return fmt.Errorf("%s has image %s, Ready %t, available %t", v.Name, pods[i].Spec.Containers[0].Image, v.Ready,
				v.ServiceAvailable())
		}
	}
	if len(pods) != n {
		return fmt.Errorf("%d Pods exist", len(pods))
	}
	return nil
}

// waitServingWithoutRules is waitServing on a cluster that has no rules.
func (w *world) waitServingWithoutRules(t *testing.T, namespace, name string, n int, image string) {
	t.Helper()
	await.Nil(t, fmt.Sprintf("%d Pods of %s serving %s", n, name, image), func() error {
		pods := w.pods(t, namespace, name)
		for i := range pods {
			if len(podops.Operations(podops.Read(&pods[i]))) > 0 {
				return fmt.Errorf("%s: %v", pods[i].Name, podops.Explain(podops.Read(&pods[i]), nil))
			}
		}
		return w.inService(t, namespace, name, n, image)
	})
}

func keyOf(obj client.Object) client.ObjectKey { return client.ObjectKeyFromObject(obj) }
