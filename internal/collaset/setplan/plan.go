package setplan

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/api/podops"
)

// Plan is what is due now. One that is zero (IsZero) means at rest, or waiting for something that Blockers name.
type Plan struct {
	// Entries is the whole new content of the ResourceContext, sorted by ID, if EntriesChanged. Empty means that the
	// ResourceContext goes.
	Entries        []Entry
	EntriesChanged bool
	// EntriesFirst is true if Creations and Deletions may only follow when Entries are stored.
	EntriesFirst bool

	// Exclusions are Pods to let go; Entries are stored when they are gone. There are no Creations and Deletions then.
	Exclusions []*Pod
	// Inclusions are Pods to take in, once Entries are stored. There are no Creations and Deletions then.
	Inclusions []Inclusion

	// Repairs are Pods that get back by what they are found, once Entries are stored.
	Repairs []Repair

	PodActions
	ClaimActions

	// Names are to be removed from spec.scaleStrategy. Pods with names in sequence are created when that is done.
	Names Names

	// Trials are writes that the API server is to be asked about before this plan goes on. They change nothing.
	Trials []PodTrial

	// Rollout is what may be done to single Pods until the next decision, nil for nothing.
	Rollout *Rollout

	// Release is true if nothing is left of a deleted CollaSet but its ResourceContext and its finalizer.
	Release bool

	// NextLook is how long to wait before deciding again if no event comes first; 0 means that only events matter.
	NextLook time.Duration
	// More is true if a bound cut the plan short: decide again as soon as it is applied.
	More bool

	// Problem is what keeps the set from adding and removing Pods until a user changes something; "" for nothing.
	Problem string
	// Blockers are what single Pods wait for, by reason, most Pods first.
	Blockers []Blocker
	// Goal is where the set stands.
	Goal Goal
}

// PodActions are what is done to single Pods.
type PodActions struct {
	// Creations are Pods to create, lowest ID first, and after those the new Pods of pairs.
	Creations []Creation
	// Finishes are Pods whose operation, or in-place change without the protocol, has been carried out.
	Finishes []*Pod
	// Changes are Pods to bring to their goal in place.
	Changes []PodChange
	// Resizes are Pods whose change in place still lacks its write to pods/resize.
	Resizes []*Pod
	// Deletions are Pods to delete now.
	Deletions []Deletion
	// Cancels are Pods whose operation is no longer wanted.
	Cancels []*Pod
	// Begins are operations to ask for.
	Begins []Begin
	// Marks are Pods to be handed to lifecycle-controller for deletion.
	Marks []*Pod
	// Labels are Pods whose labels do not say what the entries say of their replacement. No other write of this plan is
	// about one of them.
	Labels []Relabel
}

// begin asks for an operation.
func (a *PodActions) begin(it *item, opType string, deletes bool) {
	a.Begins = append(a.Begins, Begin{it.Pod, podops.Request{ID: OperatorID, Type: opType, Deletes: deletes}})
}

// ClaimActions are what is done to claims.
type ClaimActions struct {
	// ClaimCreations are claims to make for Pods that exist and wait for them.
	ClaimCreations []ClaimCreation
	// ClaimUpdates are claims to be brought in line with a template. Updates of Pods that need them come when they show
	// it.
	ClaimUpdates []ClaimUpdate
	// ClaimAdoptions are claims to get an owner reference to the set, ClaimReleases those to lose it.
	ClaimAdoptions, ClaimReleases []*Claim
	// ClaimRepairs are claims to get their labels back.
	ClaimRepairs []*Claim
	// ClaimDeletions are claims to delete now.
	ClaimDeletions []*Claim
}

// Admit leaves of the updates to begin those that a window has chosen; the others wait, and the plan says so.
func (p *Plan) Admit(chosen func(types.UID) bool) {
	var held []Begin
	p.Begins = slices.DeleteFunc(p.Begins, func(b Begin) bool {
		waits := b.Request.Type == podops.TypeUpdate && !chosen(b.Pod.UID())
		if waits {
			held = append(held, b)
		}
		return waits
	})
	if len(held) == 0 {
		return
	}
	p.Goal.Waits = p.Goal.UpdatesOnly && len(p.Begins) == 0
	p.Blockers = append(p.Blockers, Blocker{Reason: BlockInFlight, Count: len(held), Message: "Pod " + held[0].Pod.Name() +
		": enough Pods of this CollaSet or of others are being updated; the next begins when one has been moved on or takes long"})
	p.sortBlockers()
}

// BlockInFlight is the reason of Pods that may begin and wait for the window.
const BlockInFlight = "InFlightLimit"

// sortBlockers puts those of most Pods first, and leaves out what is too much for status.
func (p *Plan) sortBlockers() {
	slices.SortFunc(p.Blockers, func(a, b Blocker) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count),
			cmp.Compare(a.Reason, b.Reason))
	})
	p.Blockers = p.Blockers[:min(len(p.Blockers), maxBlockers)]
}

// IsZero reports whether nothing is to be written but status.
func (p *Plan) IsZero() bool {
	return !p.EntriesChanged && len(p.Creations)+len(p.Finishes)+len(p.Changes)+len(p.Resizes)+len(p.Deletions)+
		len(p.Cancels)+
		len(p.Begins)+len(p.Marks)+len(p.Labels)+len(p.Repairs)+len(p.Exclusions)+len(p.Inclusions)+len(p.ClaimCreations)+
		len(p.ClaimUpdates)+len(p.ClaimAdoptions)+len(p.ClaimReleases)+len(p.ClaimRepairs)+len(p.ClaimDeletions) == 0 &&
		p.Names.IsZero() && !p.Release
}

// Creation is a Pod to create.
type Creation struct {
	ID       int
	Revision string
	// Decorations is the key (decoration.Key) of the decorations that the Pod gets; "" if others have to know.
	Decorations string
	// FirstOfID is true if this ID never had a Pod.
	FirstOfID bool
	// Advance is true if the entry may move to the updated revision if the API server refuses this one for good.
	Advance bool
	// Origin is the name of the Pod that this one is to replace, "" for none.
	Origin string
	// Included is the value of the label for update by label that the new Pod inherits from its origin, nil for none.
	Included *string
	// Claims are the Pod's claims, in the order of the revision's templates. Those that lack are made before the Pod.
	Claims []CreationClaim
}

// Form is what the Pod is made of.
func (c *Creation) Form() Form { return Form{c.Revision, c.Decorations} }

// PodChange is a change of a Pod in place.
type PodChange struct {
	Pod *Pod
	To  Form
}

// Relabel is a change of what a Pod's metadata says of its replacement.
type Relabel struct {
	Pod    *Pod
	Change podops.Change
	// Event is what users are told of it, "" for nothing.
	Event ReplacementEvent
}

// ReplacementEvent is the reason of an event about a replacement.
type ReplacementEvent string

const (
	// ReplacementBegun: the Pod is being replaced.
	ReplacementBegun ReplacementEvent = "ReplacementBegun"
	// ReplacementDone: the Pod has taken the place of another.
	ReplacementDone ReplacementEvent = "ReplacementDone"
	// ReplacementCancelled: the Pod is not replaced after all.
	ReplacementCancelled ReplacementEvent = "ReplacementCancelled"
)

// Inclusion is a Pod to take in under an instance ID.
type Inclusion struct {
	Pod *Pod
	ID  int
}

// DeletionReason says why a Pod is deleted.
type DeletionReason string

const (
	// DeleteScaleIn: fewer Pods are wanted.
	DeleteScaleIn DeletionReason = "ScaleIn"
	// DeleteRecreate: the Pod is re-created at the updated revision.
	DeleteRecreate DeletionReason = "Recreate"
	// DeleteTerminal: the Pod has run to its end.
	DeleteTerminal DeletionReason = "Terminal"
	// DeleteNamed: spec.scaleStrategy.podToDelete names it, and there is no protocol to hand it to.
	DeleteNamed DeletionReason = "Named"
	// DeleteReplaced: another Pod has taken its place, and there is no protocol to hand it to.
	DeleteReplaced DeletionReason = "Replaced"
	// DeleteReclaim: the CollaSet is being deleted, and there is no protocol to hand the Pod to.
	DeleteReclaim DeletionReason = "Reclaim"
)

// Deletion is a Pod to delete now.
type Deletion struct {
	Pod    *Pod
	Reason DeletionReason
}

// Begin is an operation to ask for.
type Begin struct {
	Pod     *Pod
	Request podops.Request
}

// Blocker is one reason that keeps Pods from getting where they should be.
type Blocker struct {
	Reason  string
	Message string
	Count   int
}

// Lack is what keeps a Pod from being available.
type Lack int

// What Pods lack, the least first. LacksTime: it has not been Ready for long enough. LacksService: it is Ready, and
// not in service.
const (
	LacksNothing Lack = iota
	LacksTime
	LacksService
	LacksReady
	LacksNode
)

// Goal is where the set stands relative to its spec.
type Goal struct {
	// ScaleReached is true if as many live Pods exist as wanted, and none more.
	ScaleReached bool
	// UpdateReached is true if every slot in scope is at the updated revision with nothing under way.
	UpdateReached bool
	// Replacing is true if Pods are being replaced, or are to be.
	Replacing bool
	// Lacking is what live Pods that are not available lack, of whichever is furthest from it.
	Lacking Lack
	// Awaited is what Pods that lack that wait for others to set: a readiness gate, or a finalizer. "" if it is not known.
	Awaited string
	// Held is true if something in scope is refused until a user changes something.
	Held bool
	// Refusal is what the API server refuses of it, and why; "" if it does not. The failure policy counts that time.
	Refusal string
	// Waits is true if the spec is reached but for updates that wait for nothing but the window, and that none is under
	// way.
	Waits bool
	// UpdatesOnly reports whether the spec is reached but for updates of which none is under way.
	UpdatesOnly bool
}

// Available reports whether every live Pod is available.
func (g Goal) Available() bool { return g.Lacking == LacksNothing }

// Reached reports whether the spec is reached in every respect.
func (g Goal) Reached() bool {
	return g.ScaleReached && g.UpdateReached && !g.Replacing && g.Available() && !g.Held
}
