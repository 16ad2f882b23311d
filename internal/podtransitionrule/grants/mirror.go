package grants

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
	// Loosens marks a write after which more Pods may be evicted. What does not loosen anything must have been
	// written before.
	Loosens bool
}

// mirrors says what must be written so that the rules' PodDisruptionBudgets are as the rules want them together. What
// only makes the budgets demand more comes first, and any prefix of it is safe.
//
// The API server evicts no Pod that two PodDisruptionBudgets select. So a rule all of whose Pods another rule selects
// as well has none of its own: the other's demands enough for both. Nor does it have one where a budget that is not a
// rule's is strict enough already.
func (d *decision) mirrors() []BudgetChange {
	budgets := make(map[string]*policyv1.PodDisruptionBudget, len(d.Budgets))
	for _, b := range d.Budgets {
		budgets[b.Name] = b
	}
	d.share(budgets)
	var changes []BudgetChange
	for _, r := range d.rules {
		if change := r.mirror(budgets[r.Name]); change != nil {
			changes = append(changes, *change)
		}
	}
	slices.SortStableFunc(changes, func(a, b BudgetChange) int {
		switch {
		case a.Loosens == b.Loosens:
			return 0
		case b.Loosens:
			return -1
		}
		return 1
	})
	return changes
}

// mirror says what must be written of the rule's PodDisruptionBudget, whose object there is if not nil.
func (r *rule) mirror(old *policyv1.PodDisruptionBudget) *BudgetChange {
	if r.leavesBudget() || old != nil && old.DeletionTimestamp != nil {
		return nil
	}
	owned, foreign := false, false
	if old != nil {
		owned, foreign = ownership(old, r.UID)
	}
	r.foreignBudget = r.wanted != nil && foreign
	switch {
	case old == nil && r.wanted != nil:
		return &BudgetChange{Name: r.Name, Rule: r.UID, Spec: r.wanted}
	case old != nil && owned && (r.wanted == nil || !equality.Semantic.DeepEqual(old.Spec, *r.wanted)):
		return &BudgetChange{
			Name: r.Name, Rule: r.UID, UID: old.UID, ResourceVersion: old.ResourceVersion, Spec: r.wanted,
			Loosens: r.wanted == nil || old.Spec.MinAvailable == nil ||
				r.wanted.MinAvailable.IntValue() <= old.Spec.MinAvailable.IntValue(),
		}
	}
	return nil
}

// leavesBudget reports whether the rule's PodDisruptionBudget stays as it is: it goes with a rule that is being
// deleted, and a rule that cannot be evaluated knows of no better one.
func (r *rule) leavesBudget() bool { return r.DeletionTimestamp != nil || r.stalled != "" }

// ownership reports whether the object is the rule's, or another owner's. That of an earlier rule of the same name is
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
	if !r.Spec.MirrorPodDisruptionBudget ||
		!slices.ContainsFunc(r.checks, func(k *check) bool { return k.policy != nil }) {
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
