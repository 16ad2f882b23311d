package setplan

import (
	"cmp"
	"maps"
	"slices"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
)

// entryState is an entry of this set while it is decided upon.
type entryState struct {
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
func (e *entryState) set(key, value string) {
	if e.stored != nil && maps.Equal(e.data, e.stored) { // it may be the very map that is stored
		e.data = maps.Clone(e.data)
	}
	if value == "" {
		delete(e.data, key)
		return
	}
	e.data[key] = value
}

func has(m map[string]string, key string) bool { _, ok := m[key]; return ok }

func (e *entryState) revision() string { return e.data[appsv1alpha1.ContextRevision] }

// decorations is the key of the decorations of the entry's Pod, "" for none and if that is not known.
func (e *entryState) decorations() string {
	return decoration.Key(decoration.MarksIn(e.data[appsv1alpha1.ContextPodDecorationRevisions]))
}

func (e *entryState) marked(key string) bool { return e.data[key] == appsv1alpha1.ContextTrue }

// ledger is the ResourceContext while it is decided upon: who has which instance ID.
type ledger struct {
	*Identity
	*History
	isProtocol bool
	pods       *members
	claims     *claimIndex
	notes      *notes

	entries map[int]*entryState
	foreign map[int]string // the other CollaSet that has an ID
	held    map[int]bool   // IDs of Pods that are no members and may not be doubled
	// taken are the IDs in use, once they are asked for; none below nextID is free.
	taken  map[int]bool
	nextID int

	mustStore, mayStore, release int
}

// readLedger brings the entries in line with the Pods, which are the truth, and finds out which Pods replace which.
func readLedger(s *Snapshot, pods *members, claims *claimIndex, notes *notes) *ledger {
	l := &ledger{
		Identity: &s.Identity, History: &s.History, isProtocol: s.Protocol, pods: pods, claims: claims, notes: notes,
		entries: make(map[int]*entryState, len(s.Entries)), foreign: map[int]string{}, held: map[int]bool{},
	}
	l.readForeign()
	l.readEntries()
	l.readPairs()
	l.readVacant()
	return l
}

// add makes an entry of the set.
func (l *ledger) add(id int, revision string) *entryState {
	e := &entryState{id: id,
		data: map[string]string{appsv1alpha1.ContextOwner: l.Name, appsv1alpha1.ContextRevision: revision}}
	l.entries[id] = e
	l.mustStore++
	return e
}

// drop frees the ID of an entry.
func (l *ledger) drop(e *entryState) {
	e.dropped = true
	l.release++
}

// must changes an entry, if there is one, in a way on which an action of this plan depends.
func (l *ledger) must(e *entryState, key, value string) {
	if e != nil && e.data[key] != value {
		e.set(key, value)
		l.mustStore++
	}
}

// may changes an entry, if there is one, in a way that can wait for company.
func (l *ledger) may(e *entryState, key, value string) {
	if e != nil && e.data[key] != value {
		e.set(key, value)
		l.mayStore++
	}
}

// decorate has an entry remember the key of decorations, with must or may. There are more texts than ours that mean the
// same.
func (l *ledger) decorate(e *entryState, key string, change func(e *entryState, key, value string)) {
	if e != nil && e.data[appsv1alpha1.ContextPodDecorationRevisions] != key && e.decorations() != key {
		change(e, appsv1alpha1.ContextPodDecorationRevisions, key)
	}
}

// readForeign finds the IDs of the pool that others have. An ID without an owner is not to be taken, either.
func (l *ledger) readForeign() {
	for _, e := range l.Entries {
		owner, said := e.Data[appsv1alpha1.ContextOwner]
		switch {
		case owner == l.Name:
		case l.StaleOwners[owner]:
			l.release++
		case !said || owner == "":
			l.foreign[e.ID] = "another owner"
		default:
			l.foreign[e.ID] = "CollaSet " + owner
		}
	}
	for _, it := range l.pods.live {
		if owner := l.foreign[it.ID]; owner != "" {
			l.notes.block(it, "InstanceIDTaken", "its instance ID belongs to "+owner+
				" in the ResourceContext that both use: delete the Pod, and it comes back under another one")
		}
	}
}

// readEntries finds the entries of the set, and makes those that its Pods lack.
func (l *ledger) readEntries() {
	slots := make([]entryState, len(l.Entries))
	for i, e := range l.Entries {
		switch {
		case e.Data[appsv1alpha1.ContextOwner] != l.Name:
		case l.foreign[e.ID] != "":
			l.release++ // it is there twice, and the other one stays
		default:
			slots[i] = entryState{id: e.ID, data: e.Data, stored: e.Data}
			l.entries[e.ID] = &slots[i]
		}
	}
	for id, it := range l.pods.holder {
		if l.entries[id] == nil && l.foreign[id] == "" {
			l.add(id, it.Revision)
		}
	}
}

// readVacant finds out what becomes of entries without a Pod.
func (l *ledger) readVacant() {
	for id, e := range l.entries {
		if l.pods.holder[id] != nil {
			continue
		}
		gone := l.pods.leaving[id]
		switch {
		case e.marked(appsv1alpha1.ContextScaleIn):
			e.vacated = true
			if gone == nil && !l.claims.holdsClaims(e) {
				l.drop(e)
			}
		case gone == nil, e.marked(appsv1alpha1.ContextPodRecreateUpdate):
		default: // deleted by others, the Pod comes back as it was, although the entry lags behind
			l.decorate(e, gone.Desired, l.must)
			if l.known(gone.Revision) && e.revision() != l.UpdatedRevision && !l.avoided(gone.Revision) {
				l.must(e, appsv1alpha1.ContextRevision, gone.Revision)
			}
		}
	}
}

// active reports whether the entry is a slot of the set. The new Pod of a pair fills that of its origin.
func (e *entryState) active() bool { return !e.dropped && !e.vacated && e.asNew == nil }

// slots are the active entries, by ID.
func (l *ledger) slots() []*entryState { return l.sorted((*entryState).active) }

// vacant are the active entries without a live Pod, by ID.
func (l *ledger) vacant() []*entryState {
	return l.sorted(func(e *entryState) bool { return e.active() && l.pods.holder[e.id] == nil })
}

func (l *ledger) sorted(isWanted func(*entryState) bool) (out []*entryState) {
	for _, e := range l.entries {
		if isWanted(e) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *entryState) int { return cmp.Compare(a.id, b.id) })
	return out
}

// giveUpID frees an ID without a Pod: at once, or marked as scaled in until its claims are gone, and the Pod that had
// it.
func (l *ledger) giveUpID(e *entryState) {
	if l.claims.holdsClaims(e) || l.pods.leaving[e.id] != nil {
		l.must(e, appsv1alpha1.ContextScaleIn, appsv1alpha1.ContextTrue)
		e.vacated = true
		return
	}
	l.drop(e)
}

// takenIDs are those of entries and of Pods, even of such on their way out.
func (l *ledger) takenIDs() map[int]bool {
	taken := make(map[int]bool, len(l.Entries)+len(l.pods.items))
	for id := range l.foreign {
		taken[id] = true
	}
	for id, e := range l.entries {
		// What was given up just now is free again in the same write.
		taken[id] = taken[id] || !e.dropped
	}
	for i := range l.pods.items {
		taken[l.pods.items[i].ID] = true
	}
	for id := range l.held {
		taken[id] = true
	}
	return taken
}

// freeID takes the lowest free ID.
func (l *ledger) freeID() int {
	if l.taken == nil {
		l.taken = l.takenIDs()
	}
	for l.taken[l.nextID] {
		l.nextID++
	}
	l.taken[l.nextID] = true
	return l.nextID
}

// avoidHalted takes vacant slots off a halted revision.
func (l *ledger) avoidHalted() {
	if l.Halted == nil {
		return
	}
	for _, e := range l.vacant() {
		if l.avoided(e.revision()) {
			l.must(e, appsv1alpha1.ContextRevision, l.fallback())
		}
	}
}

const (
	// minLazy is the number of entries that may lag behind their Pods before the ResourceContext is written for them
	// alone, and lazyShare the share of them, if that is more: a write is as large as there are entries, and in an
	// operation on all Pods there are no more than lazyShare of them.
	minLazy   = 64
	lazyShare = 4
)

// store follows the Pods, and decides whether the ResourceContext is worth a write now.
//
// Creations and deletions depend on what is stored. That an entry's revision follows a Pod that was updated in place,
// that a mark has served, and that an ID is free again can wait until the wave is over, so that a rollout costs a few
// writes of this object and not one for each Pod. Where not all Pods are to be at one revision, or not all are to have
// the same decorations, these are stored as they are seen: a Pod that is lost comes back as it was.
func (l *ledger) store(plan *Plan, isMixed, isMoving bool) {
	deleting := map[int]bool{}
	for _, del := range plan.Deletions {
		deleting[del.Pod.ID] = true
	}
	lagging, isMixedDecorations := false, l.isMixedDecorations()
	for id, e := range l.entries {
		it := l.pods.holder[id]
		if it == nil || e.dropped || deleting[id] {
			continue
		}
		lagging = lagging || isMixed && it.Revision != "" && it.Revision != e.revision() ||
			isMixedDecorations && it.Decorations != e.decorations()
		if !it.waitsToLeave() {
			l.must(e, appsv1alpha1.ContextScaleIn, "") // lost now, the Pod comes back as it was
		}
		l.may(e, appsv1alpha1.ContextPodJustCreate, "")
		l.may(e, appsv1alpha1.ContextPodRecreateUpdate, "")
		if it.Revision != "" {
			l.may(e, appsv1alpha1.ContextRevision, it.Revision)
		}
		l.decorate(e, it.Decorations, l.may)
	}
	plan.EntriesFirst = l.mustStore > 0
	if !l.worthStoring(plan, lagging, isMoving) {
		return
	}
	plan.EntriesChanged = true
	for _, e := range l.Entries {
		if owner := e.Data[appsv1alpha1.ContextOwner]; owner != l.Name && !l.StaleOwners[owner] {
			plan.Entries = append(plan.Entries, e)
		}
	}
	for id, e := range l.entries {
		if !e.dropped {
			plan.Entries = append(plan.Entries, Entry{ID: id, Data: e.data})
		}
	}
	slices.SortFunc(plan.Entries, func(a, b Entry) int { return cmp.Compare(a.ID, b.ID) })
}

// worthStoring reports whether the ResourceContext is written now; isLagging is whether an entry is behind its
// Pod where not all are to be alike.
func (l *ledger) worthStoring(plan *Plan, isLagging, isMoving bool) bool {
	lazy := max(minLazy, len(l.entries)/lazyShare)
	switch {
	case l.mustStore > 0, isLagging, l.mayStore >= lazy, l.release >= lazy:
		return true
	case l.mayStore > 0 && l.isQuiet(&plan.PodActions):
		return true
	default:
		return l.release > 0 && (isMoving || !l.leavingByScaleIn())
	}
}

// isMixedDecorations reports whether Pods are to have different decorations.
func (l *ledger) isMixedDecorations() bool {
	return slices.ContainsFunc(l.pods.items, func(it *item) bool { return it.Desired != l.pods.items[0].Desired })
}

// isMixed reports whether Pods of several revisions are wanted.
func (s *Snapshot) isMixed() bool {
	return s.ByLabel || s.Partition > 0 || s.Halted != nil
}

// isQuiet reports whether no wave is under way: none of our operations is, and no Pod is on its way back from one,
// which would let the next begin.
func (l *ledger) isQuiet(p *PodActions) bool {
	if len(p.Creations)+len(p.Finishes)+len(p.Changes)+len(p.Resizes)+len(p.Deletions)+len(p.Cancels)+len(p.Begins) > 0 {
		return false
	}
	return !slices.ContainsFunc(l.pods.items, func(it *item) bool {
		return (it.During != "" || offline(it.Op)) &&
			it.Live()
	})
}

// leavingByScaleIn reports whether Pods are still on their way out, or wait for their turn.
func (l *ledger) leavingByScaleIn() bool {
	if slices.ContainsFunc(l.pods.items, (*item).waitsToLeave) {
		return true
	}
	for id, e := range l.entries {
		if e.vacated && !e.dropped && l.pods.leaving[id] != nil {
			return true
		}
	}
	return false
}
