package setplan

import (
	"fmt"
	"slices"
	"strconv"
)

// Names are names in spec.scaleStrategy that have taken effect, by list, in the order of the spec.
type Names struct{ ToDelete, ToExclude, ToInclude []string }

// IsZero reports whether there are none.
func (n Names) IsZero() bool { return len(n.ToDelete)+len(n.ToExclude)+len(n.ToInclude) == 0 }

// maxNames bounds the names of a list that one decision removes: the API server is asked about each.
const maxNames = 64

// takeNames finds the names that are to go from the spec because what they ask for is done: the Pod to delete is on
// its way out or gone, the one to exclude is not the set's any more, the one to include is. That follows from the
// Pods alone, so what is not removed now is removed by the next decision, whatever happens in between.
func (d *decision) takeNames() {
	if d.s.Conventions != KuperatorV07 {
		return
	}
	ours, live := map[string]bool{}, map[string]bool{}
	for _, it := range d.items {
		ours[it.Name()] = true
		live[it.Name()] = !it.View.Terminating
	}
	for i := range d.s.Strays {
		name := d.s.Strays[i].Pod.Name()
		ours[name], live[name] = true, true // it is to come back
	}
	for _, name := range d.s.ToDelete {
		if !live[name] && len(d.plan.Names.ToDelete) < maxNames {
			d.plan.Names.ToDelete = append(d.plan.Names.ToDelete, name)
		}
	}
	for _, name := range d.s.ToExclude {
		if !ours[name] && !slices.Contains(d.s.ToInclude, name) && len(d.plan.Names.ToExclude) < maxNames {
			d.plan.Names.ToExclude = append(d.plan.Names.ToExclude, name)
		}
	}
	for _, name := range d.s.ToInclude {
		if ours[name] && !slices.Contains(d.s.ToExclude, name) {
			d.plan.Names.ToInclude = append(d.plan.Names.ToInclude, name)
		}
	}
}

// waitsForName reports whether the Pod of a vacant slot would have a name that is still to be removed from
// podToDelete: it would be deleted again.
func (d *decision) waitsForName(e *slot) bool {
	if d.s.Conventions != KuperatorV07 || !d.s.Sequential || len(d.named) == 0 {
		return false
	}
	name := d.s.Name + "-" + strconv.Itoa(e.id)
	if !d.named[name] {
		return false
	}
	d.blockName(name, "NameNotTaken", "is created when its name is removed from podToDelete, which was done for the Pod before it")
	return true
}

// endsFirst reports whether a pair is not scaled in before its replacement has ended: podToDelete names the new Pod
// and not the one that it replaces.
func (d *decision) endsFirst(it *item) bool {
	p := it.pair
	if p == nil {
		p = it.newOf
	}
	if d.s.Conventions != KuperatorV07 || p == nil || p.fresh == nil || !d.named[p.fresh.Name()] || d.named[p.origin.Name()] || p.origin.staying != "" {
		return false
	}
	p.fresh.spared = true
	d.block(p.origin, "WaitingForReplacement", fmt.Sprintf(
		"podToDelete names its replacement %s and not itself, so neither is scaled in before the replacement has ended: name both, or take the label to-replace away", p.fresh.Name()))
	return true
}
