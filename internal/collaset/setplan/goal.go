package setplan

import (
	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

const (
	// BlockDecorationMissing is the reason of Pods that were told to have a revision of a PodDecoration that does not
	// exist.
	BlockDecorationMissing = "DecorationMissing"
	// inPlaceImpossible is the reason of Pods that would have to be created again, and may not be.
	inPlaceImpossible = "InPlaceImpossible"
)

// aim gives every Pod its goal, once it is known which of them are to be at the updated revision.
func (s *scope) aim() {
	for _, it := range s.pods.items {
		revision := it.Revision
		if s.outdated(it) {
			revision = s.UpdatedRevision
		}
		it.goal = Form{revision, it.Desired}
		if it.Desired == it.Decorations {
			continue
		}
		// Decorations that cannot be had hold up no template.
		otherwise := Form{revision, it.Decorations}
		if it.undecorated, it.why = s.obstacle(it, it.goal, otherwise); it.undecorated != "" {
			it.goal = otherwise
		}
	}
}

// obstacle is why a Pod cannot get the decorations that it was told to have, as a reason and for people, while it can
// be made as it is otherwise; "" if nothing is known to be in the way.
func (s *scope) obstacle(it *item, told, otherwise Form) (reason, why string) {
	difference, _ := s.difference(it.Form(), told)
	if difference.Missing != "" {
		return BlockDecorationMissing, difference.Missing
	}
	if s.Policy == appsv1alpha1.PodUpdateInPlaceOnly && len(difference.Forcing) > 0 {
		if other, known := s.difference(it.Form(), otherwise); otherwise == it.Form() || known && len(other.Forcing) == 0 {
			return inPlaceImpossible, cannotTakeOver(difference.Forcing)
		}
	}
	for _, t := range []Trial{{Write: TrialPatch, From: it.Form(), To: told}, {Write: TrialCreate, To: told}} {
		if v, known := s.api.verdict(t, verdictLasts); known && v.Refused != "" {
			s.notes.look(v.Retry.Sub(s.notes.now))
			return BlockChangeRefused, t.Refusal(v.Refused)
		}
	}
	return "", ""
}

// outdated reports whether the update strategy wants the Pod at the updated revision, and it is at another.
func (h *History) outdated(it *item) bool { return it.inScope && it.Revision != h.UpdatedRevision }

// isDue reports whether the Pod is not made of what it is to be made of.
func (it *item) isDue() bool { return it.goal != it.Form() }

// toUpdate reports whether the Pod itself is to get to its goal and is not there.
func (it *item) toUpdate() bool { return it.newOf == nil && it.isDue() }

// difference is what lies between two forms, and whether that is known.
func (h *History) difference(from, to Form) (d Difference, known bool) {
	if from.Decorations == "" && to.Decorations == "" {
		d, known = h.Revisions[from.Revision]
		return d, known
	}
	d, known = h.Decorated[FormChange{from, to}]
	return d, known
}
