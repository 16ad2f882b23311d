package setplan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// filling fills vacant slots, after the Pods that have run to their ends were removed from them, and hands over those
// that are named for deletion.
type filling struct {
	*Mode
	*Identity
	*Scale
	*History
	*findings
}

// create fills vacant slots, lowest ID first, as far as replicas go.
func (f *filling) create() []Creation {
	var creations []Creation
	if room := f.Replicas - f.pods.replicas(); room > 0 {
		creations = f.fill(creations, f.ledger.slots(), room)
	}
	fresh := f.newSlots()
	return f.fill(creations, fresh, len(fresh))
}

// fill adds creations for as many of the vacant entries as there is room.
func (f *filling) fill(creations []Creation, slots []*entryState, room int) []Creation {
	for _, e := range slots {
		if room <= 0 {
			break
		}
		if len(creations) == f.Limits.Creations {
			f.notes.more = true
			break
		}
		// A pause begins nothing; a Pod that was lost is no new one, nor is one for a Pod that is evicted.
		isHeldBack := f.Paused && e.marked(appsv1alpha1.ContextPodJustCreate) &&
			(e.asNew == nil || !e.asNew.origin.IsEvicted())
		if f.pods.holder[e.id] != nil || isHeldBack {
			continue
		}
		room--
		if f.ledger.held[e.id] || f.waitsForPredecessor(e) || f.waitsForName(e) {
			continue
		}
		if c := f.creation(e); !f.waitsForStranger(&c) && !f.waitsForUnknown(&c) {
			creations = append(creations, c)
		}
	}
	return creations
}

// creation is that of the Pod of a vacant entry.
func (f *filling) creation(e *entryState) Creation {
	isFresh, isRecreated := e.marked(appsv1alpha1.ContextPodJustCreate), e.marked(appsv1alpha1.ContextPodRecreateUpdate)
	c := Creation{
		ID: e.id, Revision: e.revision(), Decorations: e.decorations(), FirstOfID: isFresh,
		Advance: (isFresh || isRecreated) && !f.avoided(f.UpdatedRevision),
	}
	if !f.known(c.Revision) {
		c.Revision = f.fallback()
	}
	if instead, refused := f.api.refusedRevision(c.Form()); refused && e.asNew == nil {
		// What cannot be had is not waited for: the slot serves at the revision that Pods come from.
		c.Revision = instead
		f.ledger.must(e, appsv1alpha1.ContextRevision, instead)
	}
	if e.asNew != nil {
		c.Origin, c.Advance = e.asNew.origin.Name(), false
		// What is updated with the replacement needs the label no more.
		if e.asNew.byUser() && c.Revision != f.UpdatedRevision {
			c.Included = includedLabel(e.asNew.origin)
		}
	}
	c.Claims = f.claims.creationClaims(c.ID, c.Revision)
	return c
}

// includedLabel is the value of a Pod's label for update by label, nil for none.
func includedLabel(it *item) *string {
	value, ok := it.View.Labels[appsv1alpha1.UpdateIncludedLabel]
	if !ok {
		return nil
	}
	return &value
}

// newSlots are the vacant entries of new Pods, lowest ID first.
func (f *filling) newSlots() []*entryState {
	var out []*entryState
	for _, p := range f.pods.pairs {
		if p.replacement == nil && !p.isOver() && p.origin.staying == "" {
			out = append(out, p.entry)
		}
	}
	slices.SortFunc(out, func(a, b *entryState) int { return cmp.Compare(a.id, b.id) })
	return out
}

// removeTerminal deletes Pods that have run to their end. One whose successor is still to come is kept until that
// may: its logs are all that tells why.
func (f *filling) removeTerminal() {
	for _, it := range f.pods.items {
		switch {
		case !it.View.Terminal || it.View.Terminating || it.excluding || it.putOff:
		case f.backsOff(it):
			f.notes.block(it, "BackOff", it.Ended+
				"; Pods of its instance ID end again and again, so the next attempt waits, 5 minutes at most: see its logs and what the template runs")
			f.notes.look(it.Again)
		default:
			f.do.Deletions = append(f.do.Deletions, Deletion{it.Pod, DeleteTerminal})
		}
	}
}

// backsOff reports whether a Pod that has ended is kept for a while before its successor comes: it is the one that its
// vacant entry waits for, to be filled by another one like it.
func (f *filling) backsOff(it *item) bool {
	e := f.ledger.entries[it.ID]
	return it.View.Terminal && !it.View.Terminating && it.Again > 0 && e != nil && !e.dropped && !e.vacated &&
		f.pods.holder[it.ID] == nil && f.pods.leaving[it.ID] == it && e.revision() == it.Revision
}

// waitsForPredecessor reports whether a vacant slot cannot be filled yet: its last Pod ended and the next attempt
// waits, or the name or the volumes are still in use. A Pod that cannot go is never deleted by force: its containers
// may still write.
func (f *filling) waitsForPredecessor(e *entryState) bool {
	gone := f.pods.leaving[e.id]
	switch {
	case gone == nil:
		return false
	case f.backsOff(gone):
		return true
	case !f.Sequential && !f.claims.waitsForVolumes(e, gone):
		return false
	case !gone.View.Terminating:
	case f.Sequential:
		f.notes.block(gone, "NameInUse",
			"is being deleted and holds the name of its successor; if its node is gone for good, taint that node out of service")
	default:
		f.notes.block(gone, BlockVolumesInUse,
			"is being deleted and holds the volumes of its successor; if its node is gone for good, taint that node out of service")
	}
	return true
}

// waitsForName reports whether the Pod of a vacant slot would have a name that is still to be removed from
// podToDelete: it would be deleted again.
func (f *filling) waitsForName(e *entryState) bool {
	if f.Conventions != KuperatorV07 || !f.Sequential || len(f.pods.named) == 0 {
		return false
	}
	name := f.Name + "-" + strconv.Itoa(e.id)
	if !f.pods.named[name] {
		return false
	}
	f.notes.blockName(name, "NameNotTaken",
		"is created when its name is removed from podToDelete, which was done for the Pod before it")
	return true
}

// waitsForStranger reports whether a claim of a Pod to be created is mounted by a Pod that is not the set's.
func (f *filling) waitsForStranger(c *Creation) bool {
	for _, claim := range c.Claims {
		if claim.Claim != nil && claim.Claim.UsedBy != "" {
			f.notes.blockName(claim.Claim.UsedBy, BlockVolumesInUse, fmt.Sprintf(
				"mounts claim %s of instance ID %d and is not this CollaSet's: delete the Pod, or take it in with spec.scaleStrategy.podToInclude", claim.Claim.Name, c.ID))
			return true
		}
	}
	return false
}

// waitsForUnknown reports whether a claim would be made for a Pod, and one is there of which nothing tells whose it is.
func (f *filling) waitsForUnknown(c *Creation) bool {
	for _, claim := range c.Claims {
		i := slices.IndexFunc(f.claims.Claims,
			func(other Claim) bool { return other.ID == NoID && other.Template == claim.Template })
		if claim.Claim != nil || i < 0 {
			continue
		}
		f.notes.count(BlockClaimUnknown,
			fmt.Sprintf("claim %s was made for this CollaSet, and no label, Pod or memory tells "+
				"for which instance ID; no claim is made for instance ID %d, which it may be: set its labels %s and %s, or label it "+
				"%s=%s if it is to be left alone", f.claims.Claims[i].Name, c.ID, appsv1alpha1.InstanceIDLabel,
				appsv1alpha1.ControlLabel, appsv1alpha1.OrphanedLabel, appsv1alpha1.OrphanedValue))
		return true
	}
	return false
}
