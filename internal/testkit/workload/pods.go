package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// Pods are a workload's, by name.
func Pods(ctx context.Context, c client.Reader, namespace, name string) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	err := c.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{"app": name})
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, err
}

// UIDs are the Pods', sorted.
func UIDs(pods []corev1.Pod) []types.UID {
	var all []types.UID
	for i := range pods {
		all = append(all, pods[i].UID)
	}
	slices.Sort(all)
	return all
}

// Rules are the namespace's, in the form that podops.Explain takes.
func Rules(ctx context.Context, c client.Reader, namespace string) ([]podops.Rule, error) {
	list := &appsv1alpha1.PodTransitionRuleList{}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	var compiled []podops.Rule
	for i := range list.Items {
		compiled = append(compiled, podops.CompileRule(&list.Items[i]))
	}
	return compiled, nil
}

// AtRest is nil if exactly n Pods exist, all of them in service with the image and with no operation left on them.
// Otherwise it says what each of the others waits for.
func AtRest(ctx context.Context, c client.Reader, namespace, name string, n int, image string) error {
	pods, err := Pods(ctx, c, namespace, name)
	if err != nil {
		return err
	}
	rules, err := Rules(ctx, c, namespace)
	if err != nil {
		return err
	}
	var waits []string
	for i := range pods {
		pod := &pods[i]
		v := podops.Read(pod)
		switch {
		case pod.DeletionTimestamp != nil:
			waits = append(waits, pod.Name+" is terminating")
		case pod.Spec.Containers[0].Image != image:
			waits = append(waits, fmt.Sprintf("%s has image %s %v", pod.Name, pod.Spec.Containers[0].Image,
				podops.Explain(v, rules)))
		case !v.Ready || !v.ServiceAvailable() || len(podops.Operations(v)) > 0:
			waits = append(waits, fmt.Sprintf("%s: %v", pod.Name, podops.Explain(v, rules)))
		}
	}
	if len(pods) != n || len(waits) > 0 {
		return fmt.Errorf("%d Pods exist; %s", len(pods), strings.Join(waits, "; "))
	}
	return nil
}

// Patch changes a CollaSet with a JSON merge patch.
func Patch(ctx context.Context, c client.Writer, namespace, name, patch string) error {
	set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	return c.Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// Image is the patch that begins a rollout.
func Image(image string) string {
	return fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":%q}]}}}}`, image)
}

// Replicas is the patch that changes the number of Pods.
func Replicas(n int) string { return fmt.Sprintf(`{"spec":{"replicas":%d}}`, n) }

// Describe shows what is in a namespace, for the log of a test that failed. Kubectl runs that program.
func Describe(ctx context.Context, kubectl func(context.Context, ...string) (string, error), namespace string) string {
	var all strings.Builder
	for _, args := range [][]string{
		{"-n", namespace, "get", "pods", "-o", "wide", "--show-labels"},
		{"-n", namespace, "get", "collasets,podtransitionrules", "-o", "yaml"},
	} {
		out, err := kubectl(ctx, args...)
		if err != nil {
			out = err.Error()
		}
		fmt.Fprintf(&all, "kubectl %s\n%s\n", strings.Join(args, " "), out)
	}
	return all.String()
}
