package setplan

import (
	"cmp"
	"slices"
	"strconv"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// link is a claim that one ID is the replacement of another.
type link struct {
	origin, replacement int
	// stored is true if the entry of the origin says so.
	stored bool
}

// readPairs finds out which Pods replace which. Both sides have to say so, in their entries or by their labels; where
// entries and labels differ, entries decide, because they are written before a new Pod is made. A claim of one side
// alone is stale: no Pod becomes half of a pair, and so none too many, because of one wrong label.
func (l *ledger) readPairs() {
	var links []link
	var linked []*entryState
	for id, e := range l.entries {
		if n := parseID(e.data[appsv1alpha1.ContextReplaceNewPodID]); n != NoID {
			links = append(links, link{id, n, true})
		}
		if e.linked() {
			linked = append(linked, e)
		}
	}
	for _, it := range l.pods.items {
		if n := it.pairing.newID; n != NoID && it.ID != NoID && !it.twin {
			links = append(links, link{it.ID, n, false})
		}
	}
	slices.SortFunc(links, func(a, b link) int {
		return cmp.Or(first(a.stored, b.stored), cmp.Compare(a.origin, b.origin), cmp.Compare(a.replacement, b.replacement))
	})
	for _, ln := range links {
		l.join(ln)
	}
	for _, e := range linked {
		if l.claims.Retention.Replaced && e.marked(appsv1alpha1.ContextScaleIn) && l.claims.holdsClaims(e) {
			continue // its claims go because of this
		}
		if e.asOrigin == nil {
			l.may(e, appsv1alpha1.ContextReplaceNewPodID, "")
		}
		if e.asNew == nil {
			l.may(e, appsv1alpha1.ContextReplaceOriginPodID, "")
		}
	}
	slices.SortFunc(l.pods.pairs, func(a, b *pair) int { return cmp.Compare(a.origin.ID, b.origin.ID) })
}

// join makes a pair of two IDs if both entries name each other, and lets the new one take over if the origin is gone.
func (l *ledger) join(ln link) {
	o, n := l.entries[ln.origin], l.entries[ln.replacement]
	if o == nil || n == nil || o == n || o.inPair() || n.inPair() || o.dropped || n.dropped || !l.agreed(ln) {
		return
	}
	if l.pods.freed[ln.origin] || l.pods.freed[ln.replacement] {
		return // one half is excluded, and the other stands for itself
	}
	origin, replacement := l.pods.holder[ln.origin], l.pods.holder[ln.replacement]
	switch {
	case replacement == nil && n.marked(appsv1alpha1.ContextScaleIn):
		// The new Pod was taken back.
	case origin != nil:
		p := &pair{origin: origin, replacement: replacement, entry: n}
		p.committed = l.isProtocol && origin.ToDelete && replacement != nil && replacement.Available
		origin.pair, o.asOrigin, n.asNew = p, p, p
		if replacement != nil {
			replacement.newOf = p
		}
		l.pods.pairs = append(l.pods.pairs, p)
		l.must(o, appsv1alpha1.ContextReplaceNewPodID, strconv.Itoa(ln.replacement))
		l.must(n, appsv1alpha1.ContextReplaceOriginPodID, strconv.Itoa(ln.origin))
	case replacement == nil && l.pods.leaving[ln.replacement] == nil && n.marked(appsv1alpha1.ContextPodJustCreate):
		// There never was a new Pod: the origin comes back as it was.
		l.giveUpID(n)
	default:
		// The new Pod stands for itself, and the ID of the origin is free once that is gone, and its claims where they go.
		if !l.tookOver(o, replacement) {
			// it was lost, not replaced: that is no reason to delete its claims
			l.may(o, appsv1alpha1.ContextReplaceNewPodID, "")
		}
		if l.claims.holdsClaims(o) {
			l.must(o, appsv1alpha1.ContextScaleIn, appsv1alpha1.ContextTrue)
		}
		l.may(o, appsv1alpha1.ContextScaleIn, appsv1alpha1.ContextTrue)
	}
}

// tookOver reports whether the Pod of an ID that is gone left because its replacement serves.
func (l *ledger) tookOver(o *entryState, replacement *item) bool {
	return o.marked(appsv1alpha1.ContextScaleIn) || replacement != nil && replacement.Available ||
		l.pods.leaving[o.id] != nil && l.pods.leaving[o.id].ToDelete
}

// agreed reports whether the new side says the same, in its entry or by its Pod's label.
func (l *ledger) agreed(ln link) bool {
	if parseID(l.entries[ln.replacement].data[appsv1alpha1.ContextReplaceOriginPodID]) == ln.origin {
		return true
	}
	replacement, origin := l.pods.holder[ln.replacement], l.pods.holder[ln.origin]
	if origin == nil {
		origin = l.pods.leaving[ln.origin]
	}
	return replacement != nil && origin != nil && replacement.pairing.isNew && replacement.pairing.origin == origin.Name()
}

// linked reports whether the ID is one half of a replacement by its entry, or was until it was given up.
func (e *entryState) linked() bool {
	return has(e.data, appsv1alpha1.ContextReplaceNewPodID) || has(e.data, appsv1alpha1.ContextReplaceOriginPodID)
}

// inPair reports whether the entry is a side of a pair.
func (e *entryState) inPair() bool { return e.asOrigin != nil || e.asNew != nil }
