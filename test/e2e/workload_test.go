package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

const (
	image1 = "web:1"
	image2 = "web:2"
	image3 = "web:3"
)

// collaSet is a workload of n Pods labelled app=name.
func collaSet(namespace, name string, n int32) *appsv1alpha1.CollaSet {
	return &appsv1alpha1.CollaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1alpha1.CollaSetSpec{
			Replicas: ptr.To(n),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name, appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image1}}},
			},
			UpdateStrategy: appsv1alpha1.UpdateStrategy{PodUpdatePolicy: appsv1alpha1.PodUpdateInPlaceIfPossible},
		},
	}
}

// service gives the Pods labelled app=name traffic that the suite controls.
func service(namespace, name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

// rule allows so many of the Pods labelled app=name to be out of service.
func rule(namespace, name, maxUnavailable string) *appsv1alpha1.PodTransitionRule {
	value := intstr.Parse(maxUnavailable)
	return &appsv1alpha1.PodTransitionRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1alpha1.PodTransitionRuleSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Rules: []appsv1alpha1.TransitionRule{{Name: "available", TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
				AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: &value},
			}}},
		},
	}
}

// pods returns the Pods labelled app=name.
func (w *world) pods(t *testing.T, namespace, name string) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	require.NoError(t, w.client.List(t.Context(), list, client.InNamespace(namespace), client.MatchingLabels{"app": name}))
	return list.Items
}

// rules returns the namespace's rules in the form that podops.Explain takes.
func (w *world) rules(t *testing.T, namespace string) []podops.Rule {
	t.Helper()
	list := &appsv1alpha1.PodTransitionRuleList{}
	require.NoError(t, w.client.List(t.Context(), list, client.InNamespace(namespace)))
	var compiled []podops.Rule
	for i := range list.Items {
		compiled = append(compiled, podops.CompileRule(&list.Items[i]))
	}
	return compiled
}

// patch changes a CollaSet with a JSON merge patch.
func (w *world) patch(t *testing.T, namespace, name, patch string) {
	t.Helper()
	set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	require.NoError(t, w.client.Patch(t.Context(), set, client.RawPatch(types.MergePatchType, []byte(patch))))
}

func (w *world) setImage(t *testing.T, namespace, name, image string) {
	t.Helper()
	w.patch(t, namespace, name, fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":%q}]}}}}`, image))
}

func (w *world) scale(t *testing.T, namespace, name string, n int) {
	t.Helper()
	w.patch(t, namespace, name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))
}

// waitServing waits until exactly n Pods exist, all of them in service with the
// image and with no operation left on them.
func (w *world) waitServing(t *testing.T, namespace, name string, n int, image string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d Pods of %s serving %s", n, name, image), func() error {
		return w.atRest(t, namespace, name, n, image)
	})
}

func (w *world) atRest(t *testing.T, namespace, name string, n int, image string) error {
	t.Helper()
	pods := w.pods(t, namespace, name)
	rules := w.rules(t, namespace)
	var waits []string
	for i := range pods {
		pod := &pods[i]
		v := podops.Read(pod)
		switch {
		case pod.DeletionTimestamp != nil:
			waits = append(waits, pod.Name+" is terminating")
		case pod.Spec.Containers[0].Image != image:
			waits = append(waits, fmt.Sprintf("%s has image %s %v", pod.Name, pod.Spec.Containers[0].Image, podops.Explain(v, rules)))
		case !v.Ready || !v.ServiceAvailable() || len(podops.Operations(v)) > 0:
			waits = append(waits, fmt.Sprintf("%s: %v", pod.Name, podops.Explain(v, rules)))
		}
	}
	if len(pods) != n || len(waits) > 0 {
		return fmt.Errorf("%d Pods exist; %s", len(pods), strings.Join(waits, "; "))
	}
	return nil
}

// uids returns the Pods' UIDs.
func uids(pods []corev1.Pod) []types.UID {
	var all []types.UID
	for i := range pods {
		all = append(all, pods[i].UID)
	}
	slices.Sort(all)
	return all
}

// waiting returns the Pods of which an operation waits for the reason.
func (w *world) waiting(t *testing.T, namespace, name string, reason podops.WaitReason) []string {
	t.Helper()
	rules := w.rules(t, namespace)
	var names []string
	pods := w.pods(t, namespace, name)
	for i := range pods {
		if slices.ContainsFunc(podops.Explain(podops.Read(&pods[i]), rules), func(wait podops.Wait) bool { return wait.Reason == reason }) {
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

// operateByLabels is an operator that knows nothing but the published labels: it
// asks, waits for its permission, changes the image and says that it is done.
func (w *world) operateByLabels(t *testing.T, pod *corev1.Pod, id, image string) {
	t.Helper()
	w.label(t, pod, map[string]any{
		"operating.podopslifecycle.kusionstack.io/" + id:      fmt.Sprint(time.Now().UnixNano()),
		"operation-type.podopslifecycle.kusionstack.io/" + id: "restart",
	})
	now := &corev1.Pod{}
	eventually(t, "permission to operate "+pod.Name, func() error {
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
	eventually(t, pod.Name+" back in service", func() error {
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

// inService says whether n Pods are in service with the image, whatever waits on them.
func (w *world) inService(t *testing.T, namespace, name string, n int, image string) error {
	t.Helper()
	pods := w.pods(t, namespace, name)
	for i := range pods {
		if v := podops.Read(&pods[i]); pods[i].Spec.Containers[0].Image != image || !v.Ready || !v.ServiceAvailable() {
			return fmt.Errorf("%s has image %s, Ready %t, available %t", v.Name, pods[i].Spec.Containers[0].Image, v.Ready, v.ServiceAvailable())
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
	eventually(t, fmt.Sprintf("%d Pods of %s serving %s", n, name, image), func() error {
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
