// Package evicted reads what the decisions of package drain on one Pod depend on.
package evicted

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/drain"
)

// Read reads past any cache, for evictions are rare. It returns an error if that fails; what does not exist is none.
func Read(ctx context.Context, live client.Reader, pod *corev1.Pod) (drain.Facts, error) {
	var f drain.Facts
	if owner := CollaSetOf(pod); owner != nil {
		set := &appsv1alpha1.CollaSet{}
		err := live.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}, set)
		switch {
		case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		case err != nil:
			return drain.Facts{}, fmt.Errorf("reading CollaSet %s/%s: %w", pod.Namespace, owner.Name, err)
		case set.UID == owner.UID:
			f.Policy, f.Awaits = drain.PolicyOf(set), awaits(set, pod.Name)
		}
	}
	if _, isDeleted := pod.Labels[appsv1alpha1.ToDeleteLabel]; isDeleted {
		return f, nil
	}
	var budgets policyv1.PodDisruptionBudgetList
	if err := live.List(ctx, &budgets, client.InNamespace(pod.Namespace)); err != nil {
		return drain.Facts{}, fmt.Errorf("listing the PodDisruptionBudgets of namespace %s: %w", pod.Namespace, err)
	}
	f.Budget = drain.Exhausted(budgets.Items, pod.Labels)
	return f, nil
}

// awaits is what the Pod waits for by the CollaSet's status, which names one Pod for each reason; "" if it does not
// name this one.
func awaits(set *appsv1alpha1.CollaSet, pod string) string {
	for i := range set.Status.Blockers {
		if message, ok := strings.CutPrefix(set.Status.Blockers[i].Message, "Pod "+pod+": "); ok {
			return message
		}
	}
	return ""
}

// CollaSetOf is the CollaSet that controls the Pod, nil if none does.
func CollaSetOf(pod *corev1.Pod) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != appsv1alpha1.CollaSetKind ||
		schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).Group != appsv1alpha1.GroupName {
		return nil
	}
	return owner
}
