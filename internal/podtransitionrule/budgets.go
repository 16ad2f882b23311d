package podtransitionrule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

// managedBy is a label of objects that people find and wonder about.
const managedBy = "app.kubernetes.io/managed-by"

// budgets are the PodDisruptionBudgets of the namespace, of rules and of others.
func (r *reconciler) budgets(ctx context.Context, namespace string) ([]*policyv1.PodDisruptionBudget, error) {
	var list policyv1.PodDisruptionBudgetList
	if err := r.client.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing poddisruptionbudgets: %w", err)
	}
	budgets := make([]*policyv1.PodDisruptionBudget, len(list.Items))
	for i := range list.Items {
		budgets[i] = &list.Items[i]
	}
	return budgets, nil
}

// mirror makes the PodDisruptionBudgets as the plan has them. What changed meanwhile is seen again by its watch, except
// that a deletion which met a change is an error, so that it is tried again: changes of status, of which there are
// many, enqueue nothing.
func (r *reconciler) mirror(ctx context.Context, namespace string, changes []grants.BudgetChange) error {
	var errs []error
	failed := false
	for _, c := range changes {
		if c.Loosens && failed {
			break // what it leaves to another budget may not be kept there yet
		}
		err := r.writeBudget(ctx, namespace, c)
		failed = failed || err != nil
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) &&
			(c.Spec == nil || !apierrors.IsConflict(err)) {
			errs = append(errs, fmt.Errorf("mirroring podtransitionrule %s/%s: %w", namespace, c.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (r *reconciler) writeBudget(ctx context.Context, namespace string, c grants.BudgetChange) error {
	target := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: c.Name}}
	switch {
	case c.Spec == nil:
		return r.client.Delete(ctx, target, client.Preconditions{UID: &c.UID, ResourceVersion: &c.ResourceVersion})
	case c.UID == "":
		rule := &appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Name: c.Name, UID: c.Rule}}
		kind := appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodTransitionRuleKind)
		owner := metav1.NewControllerRef(rule, kind)
		owner.BlockOwnerDeletion = nil // no deletion need wait for it, and setting it takes a separate permission
		target.OwnerReferences = []metav1.OwnerReference{*owner}
		target.Labels = map[string]string{managedBy: Name}
		target.Spec = *c.Spec
		return r.client.Create(ctx, target)
	default:
		patch, err := json.Marshal([]map[string]any{
			{"op": "test", "path": "/metadata/uid", "value": c.UID},
			{"op": "replace", "path": "/spec", "value": c.Spec},
		})
		if err != nil {
			return err
		}
		return r.client.Patch(ctx, target, client.RawPatch(types.JSONPatchType, patch))
	}
}

// budgetSource tells of budgets whose spec or owner changed, or whose deletion began. Their status changes with every
// Pod and means nothing here.
func budgetSource(mgr ctrl.Manager) source.Source {
	return sourceOf(mgr, &policyv1.PodDisruptionBudget{}, byNamespace, func(before, after client.Object) bool {
		return specChanged(before, after) || ownerUID(before) != ownerUID(after)
	})
}

// ownerUID is the UID of the controller of an object, "" for none.
func ownerUID(o client.Object) types.UID {
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		return owner.UID
	}
	return ""
}
