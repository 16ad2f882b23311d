package setplan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Members are found by an owner reference, a label and an instance ID, and every user who may edit a Pod can take one
// of these off it. The Pod runs on, with its volumes, so its ID is not vacant: no other Pod is made for it, and the Pod
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

// Known is what a Pod's labels held when it was seen last, before another client changed them.
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

// repairing has Pods be members that are, by what they carry.
type repairing struct {
	*Identity
	*Scale
	*History
	*findings
}

// repair gives members back what they lack, and adopts strays. It notes in held whose IDs are not vacant although no
// member has them.
func (r *repairing) repair() []Repair {
	r.repairStrays()
	r.repairLost()
	slices.SortFunc(r.pods.repairs, func(a, b Repair) int { return cmp.Compare(a.Pod.Name(), b.Pod.Name()) })
	return r.pods.repairs
}

// repairLost gives a Pod of which nothing tells its instance ID the one that is vacant. If several are, each of them
// may be the Pod's, so none is given to another one.
func (r *repairing) repairLost() {
	var lost []*item
	for _, it := range r.pods.live {
		if it.ID == NoID {
			lost = append(lost, it)
		}
	}
	if len(lost) == 0 {
		return
	}
	var vacant []int
	for _, e := range r.ledger.vacant() {
		if r.pods.leaving[e.id] == nil && !r.ledger.held[e.id] {
			vacant = append(vacant, e.id)
		}
	}
	if len(lost) == 1 && len(vacant) == 1 {
		r.pods.assume(lost[0], vacant[0], lost[0].Revision)
		r.pods.holder[vacant[0]] = lost[0]
		return
	}
	for _, id := range vacant {
		r.ledger.held[id] = true
	}
	for _, it := range lost {
		if len(vacant) > 0 {
			r.notes.block(it, BlockIDLost,
				fmt.Sprintf(
					"its label %s is gone, and it cannot be told what it said; no Pod is created for those IDs that are vacant (%s): "+
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
func (r *repairing) repairStrays() {
	strays := make([]*Stray, len(r.Strays))
	for i := range r.Strays {
		strays[i] = &r.Strays[i]
	}
	room := r.Replicas - r.pods.replicas()
	place := func(st *Stray) bool { e := r.ledger.entries[st.Pod.ID]; return e != nil && e.active() }
	slices.SortFunc(strays, func(a, b *Stray) int {
		return cmp.Or(first(a.Unmanaged, b.Unmanaged), first(place(a), place(b)), cmp.Compare(a.Pod.ID, b.Pod.ID),
			a.Pod.Created.Compare(b.Pod.Created), cmp.Compare(a.Pod.Name(), b.Pod.Name()))
	})
	had := map[int]string{}
	for _, st := range strays {
		p := &st.Pod
		if !st.Unmanaged && (p.Excluded || slices.Contains(r.ToExclude, p.Name())) {
			continue // it is to be let go, and was
		}
		other := had[p.ID]
		if it := r.pods.holder[p.ID]; it != nil {
			other = it.Name()
		}
		if why := r.refusal(st, other, room); why != "" {
			if p.ID != NoID {
				r.ledger.held[p.ID] = true
			}
			r.notes.blockName(p.Name(), BlockNotAdopted,
				fmt.Sprintf(
					"has no owner, was made for this CollaSet and is not adopted: %s; no other Pod is created for its instance ID",
					why))
			continue
		}
		if p.Live() {
			room--
			had[p.ID] = p.Name()
		}
		if st.Unmanaged {
			r.pods.manage(p)
		} else {
			r.pods.repairs = append(r.pods.repairs, Repair{Pod: p, Adopt: true})
		}
		r.keepPlace(p)
	}
}

// refusal is why a stray is not adopted, "" if it is, or if the set owns it. other is the Pod that has its ID, room how
// many more replicas there may be.
func (r *repairing) refusal(st *Stray, other string, room int) string {
	p := &st.Pod
	switch {
	case st.Unmanaged:
		return ""
	case p.ID == NoID:
		return "its instance ID cannot be read: correct its label " + appsv1alpha1.InstanceIDLabel
	case r.ledger.foreign[p.ID] != "":
		return fmt.Sprintf("its instance ID %d belongs to %s", p.ID, r.ledger.foreign[p.ID])
	case other != "":
		return fmt.Sprintf("Pod %s has its instance ID %d: delete one of the two", other, p.ID)
	case !p.Selected:
		return fmt.Sprintf(
			"spec.selector does not match its labels: set those labels on it, or %s=%s if it is to be left alone",
			appsv1alpha1.OrphanedLabel, appsv1alpha1.OrphanedValue)
	case p.Live() && room <= 0:
		return fmt.Sprintf(
			"there are as many Pods as spec.replicas asks for: raise that, delete the Pod, or set %s=%s if it is to be left alone",
			appsv1alpha1.OrphanedLabel, appsv1alpha1.OrphanedValue)
	}
	return ""
}

// keepPlace has the ID of a Pod that is going to be a member be its own. The entry is stored first.
func (r *repairing) keepPlace(p *Pod) {
	if p.ID == NoID { // it is told once the Pod is a member; until then no ID is vacant
		for _, e := range r.ledger.vacant() {
			r.ledger.held[e.id] = true
		}
		return
	}
	r.ledger.held[p.ID] = true
	if e := r.ledger.entries[p.ID]; !p.Live() || r.ledger.foreign[p.ID] != "" || (e != nil && !e.dropped) {
		return
	}
	revision := p.Revision
	if !r.known(revision) {
		revision = r.UpdatedRevision
	}
	r.ledger.add(p.ID, revision)
}
