package grants

import (
	"cmp"
	"slices"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// covering is a PodDisruptionBudget that there is or will be, with the Pods that it selects.
type covering struct {
	// name is for people.
	name     string
	selector labels.Selector
	in       []bool // by Pod
	size     int
	// keep is how many of its Pods are never evicted.
	keep int
	// rule is whose it is, nil if it is not for us to write.
	rule *rule
	// barred marks one that the rule wants and that cannot be written now, because of another object.
	barred bool
}

// share decides which rules have their own PodDisruptionBudget, and what it demands. The budgets are those of the
// snapshot, by name.
func (d *decision) share(budgets map[string]*policyv1.PodDisruptionBudget) {
	var wanting []*covering
	for i, r := range d.rules {
		if r.wanted = r.budget(); r.wanted != nil && !r.leavesBudget() {
			c := d.cover("the PodDisruptionBudget of PodTransitionRule "+r.Name, r.selector, d.selects[i])
			c.rule, c.keep = r, r.wanted.MinAvailable.IntValue()
			if b := budgets[r.Name]; b != nil {
				owned, _ := ownership(b, r.UID)
				c.barred = !owned || b.DeletionTimestamp != nil
			}
			wanting = append(wanting, c)
		}
	}
	if len(wanting) == 0 {
		return
	}
	// The widest first: it can demand enough for all whose Pods it has.
	slices.SortStableFunc(wanting, func(a, b *covering) int {
		return cmp.Or(cmp.Compare(b.size, a.size), strings.Compare(a.rule.Name, b.rule.Name))
	})
	standing := d.fixedBudgets()
	for _, c := range wanting {
		standing = d.place(c, standing)
	}
	for _, c := range standing {
		if c.rule == nil {
			continue
		}
		c.rule.wanted.MinAvailable = ptr.To(intstr.FromInt32(int32(min(c.keep, unbounded))))
		for _, other := range standing {
			if other != c && overlap(c, other) && (c.rule.rival == "" || other.name < c.rule.rival) {
				c.rule.rival = other.name
			}
		}
	}
}

// place gives the rule its own budget, or one of those that stand.
func (d *decision) place(c *covering, standing []*covering) []*covering {
	room := d.populationOf(c, nil) - c.keep
	for _, other := range standing {
		if c.size == 0 || !includes(other, c) {
			continue
		}
		enough := d.populationOf(other, c) + c.keep
		switch {
		case other.rule == nil && other.keep < enough:
			continue // it is not for us to change
		case other.rule != nil && room <= 0 && other.size > c.size:
			continue // none of its Pods is to be evicted, and the others' need not wait for that
		}
		if other.rule != nil {
			other.keep = max(other.keep, enough)
		}
		c.rule.wanted, c.rule.shares = nil, other.name
		return standing
	}
	if c.barred {
		return standing
	}
	return append(standing, c)
}

// fixedBudgets are the PodDisruptionBudgets that stay whatever is decided: of people, and of rules that cannot be
// evaluated.
func (d *decision) fixedBudgets() []*covering {
	var all []*covering
	for _, b := range d.Budgets {
		if b.DeletionTimestamp != nil {
			continue
		}
		if owner := metav1.GetControllerOfNoCopy(b); owner != nil && owner.Kind == appsv1alpha1.PodTransitionRuleKind &&
			!d.isStalled(owner.UID) {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			continue // it selects nothing, as in the API server
		}
		in := make([]bool, len(d.pods))
		for i, p := range d.pods {
			in[i] = selector.Matches(p.labels)
		}
		c := d.cover("PodDisruptionBudget "+b.Name, selector, in)
		c.keep = demanded(&b.Spec, d.populationOf(c, nil))
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *covering) int { return strings.Compare(a.name, b.name) })
	return all
}

func (d *decision) isStalled(uid types.UID) bool {
	r, known := d.byUID[uid]
	return known && r.DeletionTimestamp == nil && r.stalled != ""
}

// cover leaves out the Pods that have run to their end: they are evicted in any case.
func (d *decision) cover(name string, selector labels.Selector, selected []bool) *covering {
	c := &covering{name: name, selector: selector, in: slices.Clone(selected)}
	for i, p := range d.pods {
		c.in[i] = c.in[i] && !p.Terminal
		if c.in[i] {
			c.size++
		}
	}
	return c
}

// populationOf is the largest number of Pods that may be healthy among those that the budget selects, without those
// of another one.
func (d *decision) populationOf(c, without *covering) int {
	in, there := slices.Clone(c.in), 0
	for i, p := range d.pods {
		in[i] = in[i] && (without == nil || !without.in[i])
		if in[i] && !p.Terminating {
			there++
		}
	}
	desired, _ := population(d, in, nil, func(l labels.Labels) bool {
		return c.selector.Matches(l) && (without == nil || !without.selector.Matches(l))
	})
	return max(desired, there)
}

// demanded is how many of so many Pods a PodDisruptionBudget keeps; Kubernetes rounds up.
func demanded(spec *policyv1.PodDisruptionBudgetSpec, of int) int {
	if spec.MaxUnavailable != nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, of, true)
		if err != nil {
			return 0
		}
		return max(of-n, 0)
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(ptr.To(ptr.Deref(spec.MinAvailable, intstr.FromInt32(0))), of, true)
	if err != nil {
		return 0
	}
	return n
}

// includes reports whether all Pods of b are a's as well.
func includes(a, b *covering) bool {
	for i := range b.in {
		if b.in[i] && !a.in[i] {
			return false
		}
	}
	return true
}

// overlap reports whether a Pod is selected by both.
func overlap(a, b *covering) bool {
	for i := range a.in {
		if a.in[i] && b.in[i] {
			return true
		}
	}
	return false
}
