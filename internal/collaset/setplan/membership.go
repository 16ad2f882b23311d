package setplan

import (
	"cmp"
	"fmt"
	"slices"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Reasons of blockers.
const (
	excludeNotAllowed = "ExcludeNotAllowed"
	includeNotAllowed = "IncludeNotAllowed"
)

// toExclude reports whether a Pod is to be excluded now, and if it should be and is not, why. A Pod that the selector
// does not match any more is excluded like one that is named.
func (d *decision) toExclude(it *item, named map[string]bool) (now bool, staying string) {
	switch {
	case it.Selected && !it.Excluded && !named[it.Name()], it.View.Terminating, d.s.Deleting:
		return false, ""
	case d.s.Sequential:
		return false, "a Pod cannot be excluded with names in persistent sequence, because its successor would need its name"
	case d.named[it.Name()] || it.ToDelete && !d.markedForNew(it):
		return false, "it is to be deleted as well: take back one of the two"
	case d.s.Paused:
		return false, "the CollaSet is paused"
	default:
		return true, ""
	}
}

// markedForNew reports whether a Pod has the mark for deletion because its replacement serves. Such a mark goes when
// the Pod is excluded: it is the replacement that wanted it, and that has its place then.
func (d *decision) markedForNew(it *item) bool {
	id := it.pairing.newID
	return id != NoID && slices.ContainsFunc(d.s.Pods, func(p Pod) bool { return p.ID == id && p.Live() && p.Available })
}

// putOff reports whether the Pod is to be excluded as soon as something else is over: until then it stays as it is.
// With names in sequence that never comes: such a Pod is updated, and comes again when it has ended, like any other.
func (d *decision) putOff(it *item) bool { return it.staying != "" && !d.s.Sequential }

// planMembership lets Pods go and takes Pods in. In such a plan nothing is created or removed: the next one counts what
// came of it.
func (d *decision) planMembership() {
	for _, it := range d.items {
		switch {
		case it.excluding:
			d.exclude(it)
		case it.staying != "" && !it.Selected:
			d.block(it, excludeNotAllowed, "spec.selector does not match it any more, so it should be released: "+it.staying)
		case it.staying != "":
			d.block(it, excludeNotAllowed, it.staying)
		}
	}
	if len(d.plan.Exclusions) > 0 {
		return // what they leave behind is free for others next time
	}
	candidates := slices.SortedFunc(slices.Values(d.s.Candidates), func(a, b Candidate) int { return cmp.Compare(a.Name, b.Name) })
	var taken map[int]bool
	for i := range candidates {
		c := &candidates[i]
		if refusal := d.refusal(c); refusal != "" {
			d.blockName(c.Name, includeNotAllowed, refusal)
			continue
		}
		if taken == nil {
			taken = d.takenIDs()
		}
		d.include(c.Pod, taken)
	}
}

// exclude lets a Pod go and gives its ID up.
func (d *decision) exclude(it *item) {
	d.moving, d.plan.More = true, true
	d.plan.Exclusions = append(d.plan.Exclusions, it.Pod)
	if e := d.entries[it.ID]; e != nil && !e.dropped && d.holder[it.ID] == nil && d.leaving[it.ID] == nil {
		e.dropped = true
		d.release++
	}
}

// refusal says why a Pod is not included, "" if it is.
func (d *decision) refusal(c *Candidate) string {
	switch p := c.Pod; {
	case d.s.Sequential:
		return "no Pod can be included with names in persistent sequence, because its name is none of them: empty podToInclude"
	case p == nil:
		return fmt.Sprintf("there is no Pod of this name with label %s=%s: set the label on it, or take the name off podToInclude",
			appsv1alpha1.ControlLabel, appsv1alpha1.ControlValue)
	case c.Owner != "":
		return "it belongs to " + c.Owner + ": exclude it there first"
	case p.Excluded || slices.Contains(d.s.ToExclude, c.Name):
		return fmt.Sprintf("it is to be excluded as well: remove its label %s and its name from podToExclude", appsv1alpha1.ToExcludeLabel)
	case !p.Selected:
		return "spec.selector does not match its labels: set those labels on it"
	case !p.Live():
		return "it is not alive: take its name off podToInclude"
	case p.ToDelete || d.named[c.Name]:
		return "it is to be deleted as well: take back one of the two"
	case p.Replacing:
		return "it has labels of a replacement: remove them"
	case c.Refusal != "":
		return c.Refusal
	case d.s.Paused:
		return "the CollaSet is paused"
	default:
		return ""
	}
}

// include takes a Pod in: under its own ID if that is free, else under the lowest one. The entry is stored first; if
// the Pod then does not follow, the next plan finds its own entry, vacant and never used, and takes that.
func (d *decision) include(pod *Pod, taken map[int]bool) {
	unused := func(id int) bool {
		e := d.entries[id]
		return e != nil && e.active() && e.marked(appsv1alpha1.ContextPodJustCreate) && d.holder[id] == nil && d.leaving[id] == nil
	}
	id := pod.ID
	used := func() bool { return (taken[id] && !unused(id)) || d.included[id] || d.hasOtherClaims(id, pod) }
	if id == NoID || used() {
		for id = 0; used(); id++ {
			continue
		}
	}
	if d.included == nil {
		d.included = map[int]bool{}
	}
	d.included[id] = true
	revision := pod.Revision
	if !d.known(revision) {
		revision = d.s.UpdatedRevision
	}
	e := d.entries[id]
	if e == nil || e.dropped {
		e = &slot{id: id, data: map[string]string{
			appsv1alpha1.ContextOwner:         d.s.Name,
			appsv1alpha1.ContextPodJustCreate: appsv1alpha1.ContextTrue,
		}}
		d.entries[id] = e
		d.mustStore++
	}
	d.must(e, appsv1alpha1.ContextRevision, revision)
	d.moving, d.plan.More = true, true
	d.plan.Inclusions = append(d.plan.Inclusions, Inclusion{Pod: pod, ID: id})
}

// readForeign finds the IDs of the pool that others have. What nobody owns is nobody's to take, either.
func (d *decision) readForeign() {
	for _, e := range d.s.Entries {
		owner, said := e.Data[appsv1alpha1.ContextOwner]
		switch {
		case owner == d.s.Name:
		case d.s.StaleOwners[owner]:
			d.release++
		case !said || owner == "":
			d.take(e.ID, "somebody")
		default:
			d.take(e.ID, "CollaSet "+owner)
		}
	}
	for _, it := range d.live {
		if owner := d.foreign[it.ID]; owner != "" {
			d.block(it, "InstanceIDTaken", "its instance ID belongs to "+owner+" in the ResourceContext that both use: delete the Pod, and it comes back under another one")
		}
	}
}

func (d *decision) take(id int, owner string) {
	if d.foreign == nil {
		d.foreign = map[int]string{}
	}
	d.foreign[id] = owner
}
