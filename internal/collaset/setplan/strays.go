package setplan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Members are found by an owner reference, a label and an instance ID, and anybody who may edit a Pod can take one of
// these off it. The Pod runs on, with its volumes, so its ID is not vacant: no other Pod is made for it, and the Pod
// gets back what it lacks. To let a Pod go there is exclusion, which leaves a mark on it.

// Reasons of blockers that are about Pods which lack something by which members are found.
const (
	// BlockNotAdopted: a Pod without an owner is this set's by what it carries, and cannot be adopted.
	BlockNotAdopted = "PodNotAdopted"
	// BlockIDLost: a Pod has no instance ID any more, and it cannot be told which one it had.
	BlockIDLost = "InstanceIDLost"
)

// Stray is a Pod that is the set's by what it carries, and is none of Snapshot.Pods.
type Stray struct {
	Pod Pod
	// Unmanaged is true if the set owns the Pod, which lacks the label that says it is managed. Of others the owner
	// reference is gone, or names a CollaSet of this name that is no more.
	Unmanaged bool
}

// Known is what a Pod said of itself when it was seen last, before somebody changed it.
type Known struct {
	// ID is the instance ID, or NoID, and Revision the name of the revision, "" if it had none.
	ID       int
	Revision string
}

// Repair gives a Pod back by what it is found.
type Repair struct {
	Pod *Pod
	// Adopt is true if the set becomes the Pod's owner.
	Adopt bool
	// Unmanaged is Stray.Unmanaged.
	Unmanaged bool
	// Labels are to be set.
	Labels map[string]string
}

// identify finds out which instance ID and revision a member really has. For the decision it has those; the labels
// follow.
func (d *decision) identify(it *item) {
	id, revision := d.trueID(it.Pod), it.Revision
	if k := it.Known; revision == "" && k != nil && d.known(k.Revision) {
		revision = k.Revision
	}
	d.assume(it, id, revision)
}

// assume has a member be of an instance ID and a revision, whatever its labels say.
func (d *decision) assume(it *item, id int, revision string) {
	if id == it.ID && revision == it.Revision {
		return
	}
	labels := map[string]string{}
	if id != it.ID {
		labels[appsv1alpha1.InstanceIDLabel] = strconv.Itoa(id)
	}
	if revision != it.Revision {
		labels[appsv1.ControllerRevisionHashLabelKey] = revision
	}
	d.repairs = append(d.repairs, Repair{Pod: it.Pod, Labels: labels})
	pod := *it.Pod // the snapshot's is not changed
	pod.ID, pod.Revision = id, revision
	it.Pod = &pod
}

// repair gives members back what they lack, and adopts strays. It notes in held whose IDs are not vacant although no
// member has them.
func (d *decision) repair() {
	d.held = map[int]bool{}
	d.repairStrays()
	d.repairLost()
	slices.SortFunc(d.repairs, func(a, b Repair) int { return cmp.Compare(a.Pod.Name(), b.Pod.Name()) })
	d.plan.Repairs = d.repairs
}

// trueID is the instance ID that a member has by its claims, which nobody gives another one, by what it said before, or
// else by its label.
func (d *decision) trueID(pod *Pod) int {
	if id := d.claimedID(pod); id != NoID {
		return id
	}
	if pod.Known != nil && pod.Known.ID != NoID {
		return pod.Known.ID
	}
	if pod.ID == NoID && d.s.Sequential {
		if suffix, ok := strings.CutPrefix(pod.Name(), d.s.Name+"-"); ok {
			return parseID(suffix)
		}
	}
	return pod.ID
}

// claimedID is the instance ID of the claims that a Pod mounts, NoID if it mounts none of the set's, or such of several
// IDs.
func (d *decision) claimedID(pod *Pod) int {
	id := NoID
	for _, m := range pod.Mounts {
		c := d.claims.byName[m.Claim]
		switch {
		case c == nil || c.ID == NoID:
		case id != NoID && id != c.ID:
			return NoID
		default:
			id = c.ID
		}
	}
	return id
}

// repairLost gives a Pod of which nothing tells its instance ID the one that is vacant. If several are, each of them
// may be the Pod's, so none is given to another one.
func (d *decision) repairLost() {
	var lost []*item
	for _, it := range d.live {
		if it.ID == NoID {
			lost = append(lost, it)
		}
	}
	if len(lost) == 0 {
		return
	}
	var vacant []int
	for _, e := range d.slots() {
		if d.holder[e.id] == nil && d.leaving[e.id] == nil && !d.held[e.id] {
			vacant = append(vacant, e.id)
		}
	}
	if len(lost) == 1 && len(vacant) == 1 {
		d.assume(lost[0], vacant[0], lost[0].Revision)
		d.holder[vacant[0]] = lost[0]
		return
	}
	for _, id := range vacant {
		d.held[id] = true
	}
	for _, it := range lost {
		if len(vacant) > 0 {
			d.block(it, BlockIDLost, fmt.Sprintf("its label %s is gone, and it cannot be told what it said; no Pod is created for those IDs that are vacant (%s): "+
				"set the label, or delete the Pod", appsv1alpha1.InstanceIDLabel, listed(vacant)))
		}
	}
}

// listed are the first of some IDs in words.
func listed(ids []int) string {
	const most = 10
	var words []string
	for _, id := range ids[:min(len(ids), most)] {
		words = append(words, strconv.Itoa(id))
	}
	if more := len(ids) - most; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}

// repairStrays makes members of strays again: of those that the set owns at once; of others as far as there are places,
// so that no Pod has to go because another one was adopted.
func (d *decision) repairStrays() {
	strays := make([]*Stray, len(d.s.Strays))
	for i := range d.s.Strays {
		strays[i] = &d.s.Strays[i]
	}
	room := d.s.Replicas - d.replicas()
	place := func(st *Stray) bool { e := d.entries[st.Pod.ID]; return e != nil && e.active() }
	slices.SortFunc(strays, func(a, b *Stray) int {
		return cmp.Or(first(a.Unmanaged, b.Unmanaged), first(place(a), place(b)), cmp.Compare(a.Pod.ID, b.Pod.ID), a.Pod.Created.Compare(b.Pod.Created), cmp.Compare(a.Pod.Name(), b.Pod.Name()))
	})
	had := map[int]string{}
	for _, st := range strays {
		p := &st.Pod
		if st.Unmanaged {
			if p.Live() {
				room--
				had[p.ID] = p.Name()
			}
			d.manage(p)
			if p.ID == NoID {
				d.holdVacant() // its ID is told once it is a member
			}
			continue
		}
		if p.Excluded || slices.Contains(d.s.ToExclude, p.Name()) {
			continue // it is to be let go, and was
		}
		other := had[p.ID]
		if it := d.holder[p.ID]; it != nil {
			other = it.Name()
		}
		refusal := ""
		switch {
		case p.ID == NoID:
			refusal = "its instance ID cannot be read: correct its label " + appsv1alpha1.InstanceIDLabel
		case d.foreign[p.ID] != "":
			refusal = fmt.Sprintf("its instance ID %d belongs to %s", p.ID, d.foreign[p.ID])
		case other != "":
			refusal = fmt.Sprintf("Pod %s has its instance ID %d: delete one of the two", other, p.ID)
		case !p.Selected:
			refusal = fmt.Sprintf("spec.selector does not match its labels: set those labels on it, or %s=%s if it is to be left alone", appsv1alpha1.OrphanedLabel, appsv1alpha1.OrphanedValue)
		case p.Live() && room <= 0:
			refusal = fmt.Sprintf("there are as many Pods as spec.replicas asks for: raise that, delete the Pod, or set %s=%s if it is to be left alone", appsv1alpha1.OrphanedLabel, appsv1alpha1.OrphanedValue)
		}
		if refusal != "" {
			d.hold(p)
			d.blockName(p.Name(), BlockNotAdopted, fmt.Sprintf("has no owner, was made for this CollaSet and is not adopted: %s; no other Pod is created for its instance ID", refusal))
			continue
		}
		if p.Live() {
			room--
			had[p.ID] = p.Name()
		}
		d.adopt(p)
	}
}

// hold notes that an ID is not vacant.
func (d *decision) hold(p *Pod) {
	if p.ID != NoID {
		d.held[p.ID] = true
	}
}

// holdVacant notes that no ID is vacant.
func (d *decision) holdVacant() {
	for id, e := range d.entries {
		if e.active() && d.holder[id] == nil {
			d.held[id] = true
		}
	}
}

// manage gives a Pod of the set back the label that it is managed.
func (d *decision) manage(p *Pod) {
	d.repairs = append(d.repairs, Repair{Pod: p, Unmanaged: true, Labels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}})
	if p.ID != NoID && d.held != nil {
		d.keepPlace(p)
	}
}

// adopt makes a Pod a member under its own ID.
func (d *decision) adopt(p *Pod) {
	d.repairs = append(d.repairs, Repair{Pod: p, Adopt: true})
	d.keepPlace(p)
}

// keepPlace has the ID of a Pod that is going to be a member be its own. The entry is stored first.
func (d *decision) keepPlace(p *Pod) {
	d.hold(p)
	if e := d.entries[p.ID]; !p.Live() || d.foreign[p.ID] != "" || (e != nil && !e.dropped) {
		return
	}
	revision := p.Revision
	if !d.known(revision) {
		revision = d.s.UpdatedRevision
	}
	d.entries[p.ID] = &slot{id: p.ID, data: map[string]string{appsv1alpha1.ContextOwner: d.s.Name, appsv1alpha1.ContextRevision: revision}}
	d.mustStore++
}

// repairLast has the Pods of a deleted set be found that it owns, so that they go as the others do. It reports whether
// there are any.
func (d *decision) repairLast() bool {
	for i := range d.s.Strays {
		if st := &d.s.Strays[i]; st.Unmanaged && !d.s.Orphaning {
			d.manage(&st.Pod)
		}
	}
	d.plan.Repairs = d.repairs
	return len(d.repairs) > 0
}
