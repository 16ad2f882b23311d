package setplan

import (
	"cmp"
	"slices"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

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
// writes of this object and not one for each Pod. Where not all Pods are to be at one revision, revisions are stored as
// they are seen: a Pod that is lost comes back as it was.
func (l *ledger) store(plan *Plan, isMixed, isMoving bool) {
	deleting := map[int]bool{}
	for _, del := range plan.Deletions {
		deleting[del.Pod.ID] = true
	}
	lagging := false
	for id, e := range l.entries {
		it := l.pods.holder[id]
		if it == nil || e.dropped || deleting[id] {
			continue
		}
		lagging = lagging || (it.Revision != "" && it.Revision != e.revision())
		if !it.waitsToLeave() {
			l.must(e, appsv1alpha1.ContextScaleIn, "") // lost now, the Pod comes back as it was
		}
		l.may(e, appsv1alpha1.ContextPodJustCreate, "")
		l.may(e, appsv1alpha1.ContextPodRecreateUpdate, "")
		if it.Revision != "" {
			l.may(e, appsv1alpha1.ContextRevision, it.Revision)
		}
	}
	plan.EntriesFirst = l.mustStore > 0
	if !l.worthStoring(plan, lagging && isMixed, isMoving) {
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

// worthStoring reports whether the ResourceContext is written now; isLagging is whether the revision of an entry is
// behind its Pod's where several are wanted.
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
	return !slices.ContainsFunc(l.pods.items, func(it *item) bool { return (it.during != "" || offline(it.op)) && it.Live() })
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
