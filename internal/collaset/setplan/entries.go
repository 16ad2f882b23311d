package setplan

import (
	"cmp"
	"maps"
	"slices"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// slot is an entry of this set while it is decided upon.
type slot struct {
	id   int
	data map[string]string
	// stored is the entry as it is, nil for a new one.
	stored map[string]string
	// vacated is true if the entry is of a Pod that was scaled in: its ID is free once the Pod is gone.
	vacated bool
	dropped bool
	// asOrigin and asNew are the pair that the entry is a side of.
	asOrigin, asNew *pair
}

// set changes the working copy.
func (e *slot) set(key, value string) {
	if e.data[key] == value && (value != "" || !has(e.data, key)) {
		return
	}
	if e.stored != nil && sameMap(e.data, e.stored) {
		e.data = maps.Clone(e.data)
	}
	if e.data == nil {
		e.data = map[string]string{}
	}
	if value == "" {
		delete(e.data, key)
		return
	}
	e.data[key] = value
}

func has(m map[string]string, key string) bool { _, ok := m[key]; return ok }

// sameMap reports whether b may still be the very map a; equal content is enough to copy before a change.
func sameMap(a, b map[string]string) bool { return maps.Equal(a, b) }

func (e *slot) revision() string { return e.data[appsv1alpha1.ContextRevision] }

func (e *slot) marked(key string) bool { return e.data[key] == appsv1alpha1.ContextTrue }

// must changes an entry in a way on which an action of this plan depends.
func (d *decision) must(e *slot, key, value string) {
	if e.data[key] != value {
		e.set(key, value)
		d.mustStore++
	}
}

// may changes an entry in a way that can wait for company.
func (d *decision) may(e *slot, key, value string) {
	if e.data[key] != value {
		e.set(key, value)
		d.mayStore++
	}
}

// readEntries brings the entries in line with the Pods, which are the truth.
func (d *decision) readEntries() {
	d.readForeign()
	slots := make([]slot, len(d.s.Entries))
	for i, e := range d.s.Entries {
		switch {
		case e.Data[appsv1alpha1.ContextOwner] != d.s.Name:
		case d.foreign[e.ID] != "":
			d.release++ // it is there twice, and the other one stays
		default:
			slots[i] = slot{id: e.ID, data: e.Data, stored: e.Data}
			d.entries[e.ID] = &slots[i]
		}
	}
	for id, it := range d.holder {
		e := d.entries[id]
		if e == nil && d.foreign[id] == "" {
			e = &slot{id: id, data: map[string]string{appsv1alpha1.ContextOwner: d.s.Name, appsv1alpha1.ContextRevision: it.Revision}}
			d.entries[id] = e
			d.mustStore++
		}
	}
	d.readPairs()
	for id, e := range d.entries {
		if e.marked(appsv1alpha1.ContextScaleIn) && d.holder[id] == nil {
			e.vacated = true
			if d.leaving[id] == nil && !d.holdsClaims(e) {
				e.dropped = true
				d.release++
			}
			continue
		}
		// A Pod on its way out that was deleted by somebody else comes back as it was, although the entry lags behind.
		gone := d.leaving[id]
		if gone != nil && d.holder[id] == nil && gone.Revision != "" && !e.marked(appsv1alpha1.ContextPodRecreateUpdate) &&
			d.known(gone.Revision) && e.revision() != d.s.UpdatedRevision && !d.s.avoided(gone.Revision) {
			d.must(e, appsv1alpha1.ContextRevision, gone.Revision)
		}
	}
}

func (d *decision) known(revision string) bool {
	_, ok := d.s.Revisions[revision]
	return ok
}

// active reports whether the entry is a slot of the set. The new Pod of a pair fills that of its origin.
func (e *slot) active() bool { return !e.dropped && !e.vacated && e.asNew == nil }

// slots are the active entries, by ID.
func (d *decision) slots() []*slot {
	out := make([]*slot, 0, len(d.entries))
	for _, e := range d.entries {
		if e.active() {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *slot) int { return cmp.Compare(a.id, b.id) })
	return out
}

// fillSlots gives up slots that are too many and takes IDs for those that lack, lowest first.
func (d *decision) fillSlots() {
	if d.s.Paused || d.moving {
		return
	}
	wanted := d.s.Replicas
	for _, it := range d.live {
		if d.entries[it.ID] == nil {
			wanted--
		}
	}
	active := 0
	for _, e := range d.entries {
		if e.active() {
			active++
		}
	}
	if active == max(wanted, 0) {
		return
	}
	slots := d.slots()
	for i := len(slots) - 1; i >= 0 && len(slots) > max(wanted, 0); i-- {
		if d.holder[slots[i].id] == nil && !d.held[slots[i].id] {
			d.giveUpID(slots[i])
			slots = slices.Delete(slots, i, i+1)
		}
	}
	if len(slots) >= wanted {
		return
	}
	d.allocate(slots, wanted)
}

// giveUpID frees an ID without a Pod: at once, or marked as scaled in until its claims are gone, and the Pod that had it.
func (d *decision) giveUpID(e *slot) {
	if d.holdsClaims(e) || d.leaving[e.id] != nil {
		d.must(e, appsv1alpha1.ContextScaleIn, appsv1alpha1.ContextTrue)
		e.vacated = true
		return
	}
	e.dropped = true
	d.release++
}

// storedScaleIn reports whether the ResourceContext has the entry as one of a Pod that was scaled in.
func storedScaleIn(e *slot) bool {
	return e.stored[appsv1alpha1.ContextScaleIn] == appsv1alpha1.ContextTrue
}

// takenIDs are those that somebody uses: an entry, a Pod, even one on its way out.
func (d *decision) takenIDs() map[int]bool {
	taken := make(map[int]bool, len(d.s.Entries)+len(d.items))
	for id := range d.foreign {
		taken[id] = true
	}
	for id, e := range d.entries {
		// What was given up just now is free again in the same write.
		taken[id] = taken[id] || !e.dropped
	}
	for i := range d.items {
		taken[d.items[i].ID] = true
	}
	for id := range d.held {
		taken[id] = true
	}
	return taken
}

// maxAllocated bounds the IDs that one decision takes. Whoever may write a CollaSet chooses the number of replicas,
// up to 2^31-1, and the memory of this process is everybody's. No ResourceContext holds many more entries than these.
const maxAllocated = 10_000

// allocate takes the lowest IDs that nobody uses, the first of them if they are very many.
func (d *decision) allocate(slots []*slot, wanted int) {
	taken := d.takenIDs()
	updated := 0
	for _, e := range slots {
		// Entries may lag behind their Pods.
		revision := e.revision()
		if it := d.holder[e.id]; it != nil {
			revision = it.Revision
			if it.pair != nil {
				revision = it.pair.revision()
			}
		}
		if revision == d.s.UpdatedRevision {
			updated++
		}
	}
	count := wanted - len(slots)
	last := max(count-maxAllocated, 0)
	d.plan.More = d.plan.More || last > 0
	for id := 0; count > last; id++ {
		if taken[id] {
			continue
		}
		// The highest of the new IDs make up what is missing at the updated revision.
		atUpdated := !d.s.ByLabel && count <= max(d.s.Replicas-d.s.Partition, 0)-updated
		revision := d.s.CurrentRevision
		if atUpdated || !d.known(revision) || (!d.s.ByLabel && d.s.Partition <= 0) {
			revision = d.s.UpdatedRevision
		}
		if d.s.Halted != nil {
			revision = d.s.fallback()
		}
		d.entries[id] = &slot{id: id, data: map[string]string{
			appsv1alpha1.ContextOwner:         d.s.Name,
			appsv1alpha1.ContextRevision:      revision,
			appsv1alpha1.ContextPodJustCreate: appsv1alpha1.ContextTrue,
		}}
		d.mustStore++
		count--
	}
}

// create fills vacant slots, lowest ID first, as far as replicas go.
func (d *decision) create() {
	if d.moving || d.holds(func(p Problem) bool { return p.Scale }) {
		return
	}
	if room := d.s.Replicas - d.replicas(); room > 0 {
		d.fill(d.slots(), room)
	}
	fresh := d.newSlots()
	d.fill(fresh, len(fresh))
}

// fill creates Pods for as many of the vacant entries as there is room.
func (d *decision) fill(slots []*slot, room int) {
	for _, e := range slots {
		if room <= 0 {
			return
		}
		if len(d.plan.Creations) == d.s.limits().Creations {
			d.plan.More = true
			return
		}
		// A pause begins nothing; a Pod that was lost is no new one.
		if d.holder[e.id] != nil || (d.s.Paused && e.marked(appsv1alpha1.ContextPodJustCreate)) {
			continue
		}
		if d.held[e.id] || d.waitsForPredecessor(e) || d.waitsForName(e) {
			room--
			continue
		}
		c := Creation{
			ID: e.id, Revision: e.revision(), Fresh: e.marked(appsv1alpha1.ContextPodJustCreate),
			Advance: e.marked(appsv1alpha1.ContextPodJustCreate) || e.marked(appsv1alpha1.ContextPodRecreateUpdate),
		}
		if !d.known(c.Revision) {
			c.Revision = d.s.fallback()
		}
		if instead, refused := d.refusedRevision(c.Revision); refused && e.asNew == nil {
			// What cannot be had is not waited for: the slot serves at the revision that Pods come from.
			c.Revision = instead
			d.must(e, appsv1alpha1.ContextRevision, instead)
		}
		c.Advance = c.Advance && !d.s.avoided(d.s.UpdatedRevision)
		if e.asNew != nil {
			c.Origin, c.Advance = e.asNew.origin.Name(), false
			// What is updated with the replacement needs the label no more.
			if value, ok := e.asNew.origin.View.Labels[appsv1alpha1.UpdateIncludedLabel]; ok && e.asNew.byUser() && c.Revision != d.s.UpdatedRevision {
				c.Included = &value
			}
		}
		c.Claims = d.creationClaims(c.ID, c.Revision)
		if !d.waitsForStranger(&c) && !d.waitsForUnknown(&c) {
			d.plan.Creations = append(d.plan.Creations, c)
		}
		room--
	}
}

// storeEntries follows the Pods, and decides whether the ResourceContext is worth a write now.
//
// Creations and deletions depend on what is stored. That an entry's revision follows a Pod that was updated in place,
// that a mark has served, and that an ID is free again can wait until the wave is over, so that a rollout costs a few
// writes of this object and not one for each Pod. Where not all Pods are to be at one revision, revisions are stored as
// they are seen: a Pod that is lost comes back as it was.
func (d *decision) storeEntries() {
	deleting := map[int]bool{}
	for _, del := range d.plan.Deletions {
		deleting[del.Pod.ID] = true
	}
	lagging := false
	for id, e := range d.entries {
		it := d.holder[id]
		if it == nil || e.dropped || deleting[id] {
			continue
		}
		lagging = lagging || (it.Revision != "" && it.Revision != e.revision())
		if !it.waitsToLeave() {
			d.must(e, appsv1alpha1.ContextScaleIn, "") // lost now, the Pod comes back as it was
		}
		d.may(e, appsv1alpha1.ContextPodJustCreate, "")
		d.may(e, appsv1alpha1.ContextPodRecreateUpdate, "")
		if it.Revision != "" {
			d.may(e, appsv1alpha1.ContextRevision, it.Revision)
		}
	}
	d.plan.EntriesFirst = d.mustStore > 0
	if !d.worthStoring(lagging) {
		return
	}
	d.plan.EntriesChanged = true
	for _, e := range d.s.Entries {
		if owner := e.Data[appsv1alpha1.ContextOwner]; owner != d.s.Name && !d.s.StaleOwners[owner] {
			d.plan.Entries = append(d.plan.Entries, e)
		}
	}
	for id, e := range d.entries {
		if !e.dropped {
			d.plan.Entries = append(d.plan.Entries, Entry{ID: id, Data: e.data})
		}
	}
	slices.SortFunc(d.plan.Entries, func(a, b Entry) int { return cmp.Compare(a.ID, b.ID) })
}

// worthStoring reports whether the ResourceContext is written now; lagging is whether an entry's revision is behind
// its Pod's.
func (d *decision) worthStoring(lagging bool) bool {
	lazy := max(minLazy, len(d.entries)/lazyShare)
	switch {
	case d.mustStore > 0, lagging && d.mixed(), d.mayStore >= lazy, d.release >= lazy:
		return true
	case d.mayStore > 0 && d.quiet():
		return true
	default:
		return d.release > 0 && (d.moving || !d.leavingByScaleIn())
	}
}

// mixed reports whether Pods of several revisions are wanted.
func (d *decision) mixed() bool {
	return d.s.ByLabel || d.s.Partition > 0 || d.s.Halted != nil
}

// quiet reports whether no wave is under way: none of our operations is, and no Pod is on its way back from one,
// which would let the next begin.
func (d *decision) quiet() bool {
	p := &d.plan
	if len(p.Creations)+len(p.Finishes)+len(p.Changes)+len(p.Resizes)+len(p.Deletions)+len(p.Cancels)+len(p.Begins) > 0 {
		return false
	}
	return !slices.ContainsFunc(d.items, func(it *item) bool { return (it.during != "" || offline(it.op)) && it.Live() })
}

// leavingByScaleIn reports whether Pods are still on their way out, or wait for their turn.
func (d *decision) leavingByScaleIn() bool {
	if slices.ContainsFunc(d.items, (*item).waitsToLeave) {
		return true
	}
	for id, e := range d.entries {
		if e.vacated && !e.dropped && d.leaving[id] != nil {
			return true
		}
	}
	return false
}
