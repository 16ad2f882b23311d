package setplan

import (
	"slices"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// scaling removes the Pods that are too many, and has slots for those that lack.
type scaling struct {
	*Mode
	*Scale
	*Strategy
	*History
	*findings
}

// chooseCondemned marks the live Pods that are too many.
func (s *scaling) chooseCondemned() {
	// A Pod that is to be excluded counts as gone, now or later; the other half of its pair stands for itself.
	halved := func(p *pair) bool {
		return p.origin.staying != "" || p.replacement != nil && p.replacement.staying != ""
	}
	candidates := make([]*item, 0, len(s.pods.live))
	for _, it := range s.pods.live {
		switch {
		case it.staying != "":
		case it.pair != nil && !halved(it.pair):
			if it.pair.committed {
				it = it.pair.replacement // a replica is judged by the Pod that stays
			}
			candidates = append(candidates, it)
		case it.newOf == nil || halved(it.newOf):
			candidates = append(candidates, it)
		}
	}
	surplus := len(candidates) - s.Replicas
	if surplus <= 0 {
		return
	}
	sortCondemned(candidates)
	for _, it := range candidates[:surplus] {
		if s.endsFirst(it) {
			continue
		}
		it.condemned = true
		if it.newOf != nil && !halved(it.newOf) {
			it.newOf.origin.condemned = true
		}
	}
}

// first compares two facts: the one that holds comes first.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// scaleIn removes condemned Pods, and lets off those that are condemned no more.
func (s *scaling) scaleIn() {
	unmarked := s.ledger.mustStore
	for _, it := range s.pods.items {
		switch {
		case !it.Live():
		case !it.condemned || s.api.refusedBy(it, Trial{Write: TrialDelete}):
			if it.During == podops.TypeScaleIn {
				s.do.Cancels = append(s.do.Cancels, it.Pod)
			}
		case !s.Protocol:
			if !s.Paused {
				s.condemn(it)
			}
		case it.During == podops.TypeScaleIn:
			if s.notes.due(it, s.ScaleInDelay) {
				s.condemn(it)
			}
		case s.Paused:
			s.notes.block(it, "Paused", "is to be removed, but the CollaSet is paused")
		case len(s.do.Begins) >= s.Limits.Begins:
			s.notes.more = true
		case !s.api.tried(it, verdictLasts, Trial{Write: TrialDelete}):
		default:
			s.do.begin(it, podops.TypeScaleIn, true)
		}
	}
	if s.ledger.mustStore > unmarked {
		s.markAhead()
	}
}

// markAhead says in the same write of all who wait to be scaled in that they are, so that their deletions, which a
// rule lets go one after the other, need no write each. An entry with claims is marked with its deletion only: should
// the Pod be lost after the CollaSet has changed its mind, the mark would have its claims deleted.
func (s *scaling) markAhead() {
	for id, it := range s.pods.holder {
		if e := s.ledger.entries[id]; e != nil && it.waitsToLeave() && !e.inPair() && len(s.claims.byID[id]) == 0 {
			s.ledger.may(e, appsv1alpha1.ContextScaleIn, appsv1alpha1.ContextTrue)
		}
	}
}

// waitsToLeave reports whether the Pod is condemned and its removal has been asked for.
func (it *item) waitsToLeave() bool {
	return it.condemned && it.Live() && it.During == podops.TypeScaleIn
}

// condemn deletes a condemned Pod, and says so in its entry first, so that its ID does not come back.
func (s *scaling) condemn(it *item) {
	if e := s.ledger.entries[it.ID]; e != nil && !it.twin {
		s.ledger.must(e, appsv1alpha1.ContextScaleIn, appsv1alpha1.ContextTrue)
		e.vacated = true
	}
	s.do.Deletions = append(s.do.Deletions, Deletion{it.Pod, DeleteScaleIn})
}

// handOver hands the Pods of podToDelete over, as long as they are not removed by scale-in anyway, and not during a
// pause.
func (f *filling) handOver() {
	if f.Paused {
		return
	}
	for _, it := range f.pods.live {
		switch {
		case !it.named || it.condemned || it.handed || it.spared || it.staying != "":
		case f.Protocol && !it.ToDelete:
			f.do.Marks = append(f.do.Marks, it.Pod)
		case f.Protocol:
			if why, refused := podops.DeletionRefused(it.View); refused {
				f.notes.stall(it, Trial{Write: TrialDelete}, why)
			}
		case f.Sequential && f.Conventions != KuperatorV07:
			// Its successor has the same name and would be deleted again, for ever.
			f.notes.block(it, "PodToDeleteIgnored",
				"podToDelete with PersistentSequence names only chooses what scale-in removes when the lifecycle is off; delete the Pod instead")
		default:
			f.do.Deletions = append(f.do.Deletions, Deletion{it.Pod, DeleteNamed})
		}
	}
}

// fillSlots gives up slots that are too many and takes IDs for those that lack, lowest first.
func (s *scaling) fillSlots() {
	wanted := s.Replicas
	for _, it := range s.pods.live {
		if s.ledger.entries[it.ID] == nil {
			wanted--
		}
	}
	active := 0
	for _, e := range s.ledger.entries {
		if e.active() {
			active++
		}
	}
	if active == max(wanted, 0) {
		return
	}
	slots := s.ledger.slots()
	for i := len(slots) - 1; i >= 0 && len(slots) > max(wanted, 0); i-- {
		if s.pods.holder[slots[i].id] == nil && !s.ledger.held[slots[i].id] {
			s.ledger.giveUpID(slots[i])
			slots = slices.Delete(slots, i, i+1)
		}
	}
	if len(slots) >= wanted {
		return
	}
	s.allocate(slots, wanted)
}

// maxAllocated bounds the IDs that one decision takes. Every user who may write a CollaSet chooses the number of
// replicas, up to 2^31-1, and the memory of this process is shared by all CollaSets. No ResourceContext holds many more
// entries than these.
const maxAllocated = 10_000

// allocate takes the lowest IDs that are free, the first of them if they are very many.
func (s *scaling) allocate(slots []*entryState, wanted int) {
	taken := s.ledger.takenIDs()
	updated := 0
	for _, e := range slots {
		// Entries may lag behind their Pods.
		revision := e.revision()
		if it := s.pods.holder[e.id]; it != nil {
			revision = it.Revision
			if it.pair != nil {
				revision = it.pair.revision()
			}
		}
		if revision == s.UpdatedRevision {
			updated++
		}
	}
	count := wanted - len(slots)
	last := max(count-maxAllocated, 0)
	s.notes.more = s.notes.more || last > 0
	for id := 0; count > last; id++ {
		if taken[id] {
			continue
		}
		// The highest of the new IDs make up what is missing at the updated revision.
		atUpdated := !s.ByLabel && count <= max(s.Replicas-s.Partition, 0)-updated
		revision := s.CurrentRevision
		if atUpdated || !s.known(revision) || (!s.ByLabel && s.Partition <= 0) {
			revision = s.UpdatedRevision
		}
		if s.Halted != nil {
			revision = s.fallback()
		}
		s.ledger.add(id, revision).set(appsv1alpha1.ContextPodJustCreate, appsv1alpha1.ContextTrue)
		count--
	}
}
