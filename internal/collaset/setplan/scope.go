package setplan

import (
	"cmp"
	"slices"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// candidate is a slot that the update strategy may choose: a live Pod, or a vacant entry.
type candidate struct {
	it    *item
	entry *entryState
}

func (c candidate) revision() string {
	if c.it != nil {
		return c.it.Revision
	}
	return c.entry.revision()
}

// scope is which slots the update strategy wants at the updated revision, and what each Pod is to be made of.
type scope struct {
	*Mode
	*Scale
	*Strategy
	*History
	*findings
}

// choose says which slots the update strategy wants at the updated revision.
func (s *scope) choose() {
	if s.Halted != nil {
		s.chooseHalted()
		return
	}
	if s.ByLabel {
		for _, it := range s.pods.live {
			it.inScope = it.Included || it.Revision == s.UpdatedRevision
		}
		return
	}
	candidates := make([]candidate, 0, len(s.pods.live))
	for _, it := range s.pods.live {
		if !it.condemned && it.newOf == nil {
			candidates = append(candidates, candidate{it: it})
		}
	}
	for _, e := range s.ledger.vacant() {
		candidates = append(candidates, candidate{entry: e})
	}
	count := len(candidates)
	if s.Partition > 0 {
		count = min(count, max(s.Replicas-s.Partition, 0))
	}
	if count < len(candidates) {
		slices.SortFunc(candidates, s.updateOrder)
	}
	if s.Returned && s.Conventions != KuperatorV07 {
		// A partition keeps Pods at the revision they come from, which is this one.
		for _, it := range s.pods.live {
			it.inScope = !it.condemned && s.known(it.Revision)
		}
	}
	for _, c := range candidates[:count] {
		switch {
		case c.it != nil:
			c.it.inScope = true
		case s.Paused:
		default:
			// A vacant slot needs no Pod to be touched: it is filled at the updated revision, if that can be had.
			revision := s.UpdatedRevision
			if instead, refused := s.api.refusedRevision(Form{revision, c.entry.decorations()}); refused {
				revision = instead
			}
			s.ledger.must(c.entry, appsv1alpha1.ContextRevision, revision)
		}
	}
}

// updateOrder puts first whom an update takes first: what is done or begun, so that the choice stays, then whom it
// costs least, then the youngest.
func (s *scope) updateOrder(a, b candidate) int {
	arrives := func(c candidate) bool {
		return c.it != nil && c.it.pair != nil && c.it.pair.revision() == s.UpdatedRevision
	}
	updated := func(c candidate) bool {
		return c.revision() == s.UpdatedRevision || arrives(c) && c.it.pair.committed
	}
	begun := func(c candidate) bool {
		// An update to decorations alone says nothing about the revision.
		return arrives(c) || c.it != nil && c.it.During == podops.TypeUpdate && c.it.Desired == c.it.Decorations
	}
	if o := cmp.Or(first(updated(a), updated(b)), first(begun(a), begun(b)),
		first(a.it != nil, b.it != nil)); o != 0 {
		return o
	}
	if a.it == nil {
		return -cmp.Compare(a.entry.id, b.entry.id)
	}
	return costOrder(a.it, b.it)
}

// costOrder puts first the Pods whose update costs least service.
func costOrder(a, b *item) int {
	return cmp.Or(
		first(!a.Available, !b.Available),
		first(!a.Scheduled, !b.Scheduled),
		first(!a.View.Ready, !b.View.Ready),
		-a.ReadySince.Compare(b.ReadySince),
		-a.Created.Compare(b.Created),
		-cmp.Compare(a.ID, b.ID),
		cmp.Compare(a.Name(), b.Name()),
	)
}

// chooseHalted says which Pods a halted rollout still wants elsewhere: those at its revision, if they go back. No other
// Pod is touched, and what is vacant is not filled at that revision.
func (s *scope) chooseHalted() {
	for _, it := range s.pods.live {
		it.inScope = it.Revision == s.halted() && it.Revision != s.UpdatedRevision
	}
}
