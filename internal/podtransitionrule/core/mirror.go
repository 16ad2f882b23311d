package core

import (
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// BudgetChange is one write of a PodDisruptionBudget that mirrors a rule.
type BudgetChange struct {
	// Name is the name of the object, and of the rule.
	Name string
	// Rule is the UID of the rule, its owner.
	Rule types.UID
	// UID is that of the object that is there, "" to create one.
	UID types.UID
	// ResourceVersion is that object's as it was seen. Only a deletion depends on it.
	ResourceVersion string
	// Spec is what it must be. Nil deletes it.
	Spec *policyv1.PodDisruptionBudgetSpec
}

// mirror says what must be written so that the rule's PodDisruptionBudget is as the rule wants it.
func (d *decision) mirror(r *rule, budgets map[string]*policyv1.PodDisruptionBudget) *BudgetChange {
	old := budgets[r.Name]
	if r.DeletionTimestamp != nil || r.stalled != "" || old != nil && old.DeletionTimestamp != nil {
		return nil // it goes with the rule; a rule that cannot be evaluated leaves it as it is
	}
	owned, foreign := false, false
	if old != nil {
		owned, foreign = ownership(old, r.UID)
	}
	wanted := r.budget()
	r.foreignBudget = wanted != nil && foreign
	switch {
	case old == nil && wanted != nil:
		return &BudgetChange{Name: r.Name, Rule: r.UID, Spec: wanted}
	case old != nil && owned && (wanted == nil || !equality.Semantic.DeepEqual(old.Spec, *wanted)):
		return &BudgetChange{Name: r.Name, Rule: r.UID, UID: old.UID, ResourceVersion: old.ResourceVersion, Spec: wanted}
	}
	return nil
}

// ownership says whether the object is the rule's, or somebody else's. That of an earlier rule of the same name is
// neither: the garbage collector is about to remove it.
func ownership(o *policyv1.PodDisruptionBudget, rule types.UID) (owned, foreign bool) {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil || owner.Kind != appsv1alpha1.PodTransitionRuleKind {
		return false, true
	}
	return owner.UID == rule, false
}

// budget is the PodDisruptionBudget that the rule wants, nil for none.
func (r *rule) budget() *policyv1.PodDisruptionBudgetSpec {
	if !r.Spec.MirrorPodDisruptionBudget || !slices.ContainsFunc(r.checks, func(k *check) bool { return k.policy != nil }) {
		return nil
	}
	keep := 0
	for _, k := range r.checks {
		if k.policy != nil {
			keep = max(keep, k.policy.keep)
		}
	}
	return &policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr.To(intstr.FromInt32(int32(min(keep, unbounded)))), Selector: r.Spec.Selector.DeepCopy(),
		UnhealthyPodEvictionPolicy: ptr.To(policyv1.AlwaysAllow),
	}
}
