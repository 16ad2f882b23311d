package collaset

import (
	"sync/atomic"

	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/remembered"
)

// stateCache is what is kept of all CollaSets.
type stateCache = remembered.Map[setState]

// setState is what is kept of a CollaSet between reconciles, each part for those that read it. All of it can be lost:
// it saves reads and writes, and measures delays from what this process observed.
type setState struct {
	revisions knownRevisions
	pods      knownPods
	strays    knownStrays
	claims    knownClaims
	// view is whether what the cache shows was compared with the API server: it may lack a Pod that was created.
	view freshness.Check[baseline]
	// creations is what became of the last creations.
	creations createBackoff
	// verdicts are answers of the API server to trials, and to the writes that they are about.
	verdicts verdicts
	// forms are those of Pods with decorations.
	forms  knownForms
	status statusWrites
	// rollout is what the last decision says of single Pods, nil for nothing.
	rollout atomic.Pointer[rollout]
	// decidedAt is when the last decision began, in nanoseconds since 1970.
	decidedAt atomic.Int64
}
