package setplan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/drain"
)

// OperatorID is the slot of collaset-controller in the Pod protocol, for updates and scale-ins alike.
const OperatorID = "collaset"

// NoID is the instance ID of a Pod that carries none, or one that cannot be read.
const NoID = -1

// Snapshot is all that a decision reads, by the question that asks for it. Defaults are filled in, lists may be in any
// order, and nothing in it is changed by this package.
type Snapshot struct {
	Generation int64
	// Selector is spec.selector as a string, for the scale subresource.
	Selector string
	Pods     []Pod
	// Verdicts are the API server's answers to trials. Nil: it takes everything, and is not asked.
	Verdicts map[Trial]Verdict
	// Failure says what becomes of a rollout that does not progress.
	Failure FailureHandling

	Mode
	Identity
	Scale
	Strategy
	History
	Volumes
}

// Mode is what every question is asked under.
type Mode struct {
	// Now is the shell's clock.
	Now    time.Time
	Paused bool
	// Deleting is true if the CollaSet is being deleted.
	Deleting bool
	// Orphaning is true if it is deleted without its Pods: the garbage collector takes the owner references off.
	Orphaning bool
	// Protocol is true if Pods are operated under the Pod protocol; without it, directly.
	Protocol bool
	// Conventions are those by which the spec was read.
	Conventions Conventions
	// Limits bound what one decision does.
	Limits Limits
}

// Identity is whose the instance IDs are.
type Identity struct {
	// Name is that of the CollaSet.
	Name string
	// Sequential is true if a Pod's name follows from its instance ID.
	Sequential bool
	// Entries is the whole ResourceContext.
	Entries []Entry
	// StaleOwners are those owners of entries that do not exist or use another ResourceContext.
	StaleOwners map[string]bool
	// Strays are Pods that are the set's by what they carry, and none of Snapshot.Pods.
	Strays []Stray
}

// Scale is how many Pods are wanted, and which of them not.
type Scale struct {
	Replicas int
	// ScaleInDelay is the wait between a permission, as seen here first, and acting on it.
	ScaleInDelay time.Duration
	// ToDelete, ToExclude and ToInclude are the names in scaleStrategy.
	ToDelete, ToExclude, ToInclude []string
	// Candidates are the Pods that scaleStrategy.podToInclude names and that the CollaSet does not own, each once.
	Candidates []Candidate
}

// Strategy is how Pods get to the updated revision, and how many at a time.
type Strategy struct {
	Policy appsv1alpha1.PodUpdatePolicy
	// ByLabel is true if Pods are chosen for update by label and not by Partition.
	ByLabel bool
	// Partition is the number of slots kept at old revisions.
	Partition int
	// MaxUnavailable is how many Pods may be unavailable, for whatever reason, when an update takes another one out of
	// service. 0 is no bound under the protocol, and one Pod without it.
	MaxUnavailable int
	// MaxSurge is how many Pods updates may replace at a time, each with an old and a new Pod. Less than 1 is 1.
	MaxSurge int
	// Surge is how many Pods may be replaced at a time for any reason, updates included; 0 is no bound.
	Surge int
	// DeletesWhenFull is true if a Pod that is evicted goes without a replacement where the API server refuses to create
	// one more Pod.
	DeletesWhenFull bool
	// Drain is what becomes of Pods whose node is about to be drained.
	Drain drain.Policy
	// UpdateDelay is the wait between a permission, as seen here first, and acting on it.
	UpdateDelay time.Duration
	// MinReady is how long a Pod must have been Ready to be available, which Pod.Available says.
	MinReady time.Duration
}

// History is which revisions there are.
type History struct {
	// UpdatedRevision is the revision of the present template; CurrentRevision the one Pods come from.
	UpdatedRevision, CurrentRevision string
	// Revisions has every revision of the set that still exists, by name, and what lies between it and UpdatedRevision.
	Revisions map[string]Difference
	// Decorated has what lies between two forms of which one has decorations: for each Pod that has or is to have some,
	// from what it is to Pod.Desired and Pod.Decorations, at its own revision and at UpdatedRevision. What is not there
	// cannot be known.
	Decorated map[FormChange]Difference
	// Halted is the rollout that Failure stopped, nil for none. UpdatedRevision is then its RollbackTo, if it has one, and
	// SpecRevision the revision of the present template. Elsewhere SpecRevision may be empty: it is UpdatedRevision.
	Halted       *appsv1alpha1.HaltedRollout
	SpecRevision string
	// Returned is true if status names UpdatedRevision as the one that Pods come from: what is at another revision of this
	// set got there by a rollout that was taken back. Kuperator v0.7 keeps as many there as the partition says.
	Returned bool
}

// Volumes are the claims of the set, and what becomes of them.
type Volumes struct {
	// Templates are the volume claim templates of revisions that have any, by the revision's name, in their order.
	Templates map[string][]ClaimTemplate
	// Claims are the set's claims that are not excluded.
	Claims []Claim
	// Retention says which of them are deleted.
	Retention Retention
}

// Candidate is a Pod that is to be included.
type Candidate struct {
	Name string
	// Pod is nil if there is no managed Pod of that name.
	Pod *Pod
	// Owner is the controller that has the Pod, for people; "" if none has.
	Owner string
	// Refusal says what else keeps the Pod from being included, such as its volumes; "" if nothing does.
	Refusal string
}

// Form is what a Pod is made of.
type Form struct {
	// Revision is of the CollaSet's template.
	Revision string
	// Decorations is the key (decoration.Key) of revisions of PodDecorations, "" for none.
	Decorations string
}

// String names the revisions.
func (f Form) String() string {
	text := f.Revision
	for i, m := range decoration.MarksIn(f.Decorations) {
		separator := ", "
		if i == 0 {
			separator = " decorated by "
		}
		text += separator + m.Revision
	}
	return text
}

// FormChange is a change of a Pod from one form to another.
type FormChange struct{ From, To Form }

// Difference is what lies between a revision and the updated one, or between two forms.
type Difference struct {
	// Forcing names fields that a running Pod cannot take over. Empty: the change can be made in place.
	Forcing []string
	// Quiet reports whether a running Pod takes the change over without a restart of any container, so that it need not
	// leave service. It says nothing where Forcing is not empty.
	Quiet bool
	// Resizes reports whether the change has resources to set in place.
	Resizes bool
	// Missing is why no Pod can be made of the new form, "" if one can.
	Missing string
}

// Pod is what a decision reads of one Pod that the CollaSet owns.
type Pod struct {
	// View is the Pod as the protocol sees it; it also gives name, UID and resourceVersion.
	View podops.View
	// Facts are those of View, so that not every decision works them out. Nil: it does.
	Facts *Facts
	// ID is the instance ID, or NoID.
	ID int
	// Revision is the name of the Pod's revision, "" if it has none.
	Revision string
	// Decorations and Desired are the keys (decoration.Key) of the decorations that it was made with, and of those that
	// it is to have.
	Decorations, Desired string
	// Known is what the Pod's labels held before another client changed them; nil if they still hold it.
	Known *Known
	// Created is the creation time.
	Created time.Time
	// DeletionCost is what the user says it costs to delete the Pod (annotation
	// controller.kubernetes.io/pod-deletion-cost), compared with other Pods of the set. 0 if the Pod does not say, or
	// not legibly.
	DeletionCost int
	// Again is how long a terminal Pod is kept before its successor comes, because Pods of its instance ID have run to
	// their ends again and again; 0 if it need not wait.
	Again time.Duration
	// Ended says for people how a terminal Pod ended, "" for others.
	Ended string
	// Fails says for people which container cannot run, and why; "" if none is known to.
	Fails string
	// Domains are the topology domains over which the template spreads its Pods, in the order of its constraints; "" is a
	// domain that is not known. Nil if nothing is to be removed. All Pods of a Snapshot have the same number.
	Domains []string
	// Mounts are the Pod's volumes that are claims.
	Mounts []Mount
	// Budget is why PodDisruptionBudgets of users let the Pod not go now, for people; "" if they do. They are looked at
	// only where an eviction has the Pod replaced.
	Budget string
	// Applied reports whether a client has applied to the Pod on the server side.
	Applied bool
	// AllowedSince is when the operator here first saw the permission to act; zero if there is none.
	AllowedSince time.Time

	Service
	Marks
	Change
}

// Service is how far a Pod is from serving.
type Service struct {
	// Phase is the Pod's phase.
	Phase corev1.PodPhase
	// Scheduled is true if the Pod has a node, and Node which; "" if it has none.
	Scheduled bool
	Node      string
	// NodeState is how that node stands, nil if it is not known.
	NodeState *drain.Node
	// ReadySince is when Ready last became True, zero if it is not. A container that started later than that counts: an
	// image may be changed so quickly that Ready is True all the while.
	ReadySince time.Time
	// Available is true if the Pod serves: under the protocol, service-available; without it, Ready for long enough.
	Available bool
	// AvailableIn is how long a Ready Pod still has to stay so to be available; 0 if time does not decide it.
	AvailableIn time.Duration
	// Awaited is what others have to set before the Pod is available: a readiness gate while its containers are ready,
	// or the finalizer of a cooperator while it is Ready. "" if nothing is.
	Awaited string
}

// Marks are what a Pod's labels ask for.
type Marks struct {
	// Included, Excluded, ToDelete and Replacing report whether the Pod has the labels for update by label, exclusion,
	// deletion, and replacement (as origin or as new Pod).
	Included, Excluded, ToDelete, Replacing bool
	// Selected is true if the CollaSet's selector matches.
	Selected bool
}

// Change is how far a change in place has come.
type Change struct {
	// Recorded is true if an in-place change was made that is not yet called finished; Carried that the kubelet has
	// carried it out; Wait, a CamelCase word, and Missing what is missing if it has not.
	Recorded, Carried bool
	Wait, Missing     string
	// Delegated is true if lifecycle-controller is to finish this request when it is Carried, and CarriedSince when the
	// operator here first saw that it is; zero if it does not see it.
	Delegated    bool
	CarriedSince time.Time
	// ResizeDue is true if the recorded change still lacks its write to pods/resize; Infeasible that the Pod cannot get
	// the recorded resources where it is, for the reason in Missing. Neither is Carried.
	ResizeDue, Infeasible bool
	// ResizeRestarts reports whether that write restarts a container, and Restarting whether a container has yet to
	// restart for what was changed already.
	ResizeRestarts, Restarting bool
}

// isPending reports whether a change in place was made that the kubelet has not carried out.
func (c *Change) isPending() bool { return c.Recorded && !c.Carried }

// Facts are what decisions work out from a Pod's labels. They are never changed.
type Facts struct {
	// Op is our operation on the Pod, and During its type while it is asked for or carried out, "" otherwise.
	Op     podops.Operation
	During string
	// InService is true if the Pod has the label service-available.
	InService bool
}

// isUpdating reports whether an update has begun that has not come to its end, which is when the Pod serves again.
func (f *Facts) isUpdating() bool { return f.During == podops.TypeUpdate || offline(f.Op) }

// atRest are the facts of Pods without an operation of ours, which most are.
var atRest, atRestInService = &Facts{Op: podops.Operation{ID: OperatorID}},
	&Facts{Op: podops.Operation{ID: OperatorID}, InService: true}

// FactsOf works out the facts of a Pod. Most have no operation of ours, which one look at their labels shows.
func FactsOf(v podops.View) *Facts {
	isServing := v.ServiceAvailable()
	switch {
	case Operated(v.Labels):
		f := &Facts{Op: podops.OperationOf(v, OperatorID), InService: isServing}
		if f.Op.UnderWay() {
			f.During = f.Op.Type
		}
		return f
	case isServing:
		return atRestInService
	}
	return atRest
}

// facts are the Pod's.
func (p *Pod) facts() *Facts {
	if p.Facts == nil {
		return FactsOf(p.View)
	}
	return p.Facts
}

// Name is the Pod's name.
func (p *Pod) Name() string { return p.View.Name }

// UID is the Pod's UID.
func (p *Pod) UID() types.UID { return p.View.UID }

// Form is what the Pod is made of.
func (p *Pod) Form() Form { return Form{p.Revision, p.Decorations} }

// isDecorated reports whether the Pod has decorations, or is to have some.
func (p *Pod) isDecorated() bool { return p.Decorations != "" || p.Desired != "" }

// Live reports whether the Pod counts as a replica: not being deleted and not run to its end.
func (p *Pod) Live() bool { return !p.View.Terminating && !p.View.Terminal }

// IsEvicted reports whether an eviction, or the drain of its node, has the Pod replaced.
func (p *Pod) IsEvicted() bool {
	return p.Replacing && (drain.IsEvicted(p.View, appsv1alpha1.ToReplaceLabel) ||
		podops.MarkedBy(p.View, appsv1alpha1.ToReplaceLabel, podops.AskerDrain))
}

// Entry is what the ResourceContext remembers of one instance ID.
type Entry struct {
	ID int
	// Data is shared with the Snapshot that it came from and never changed.
	Data map[string]string
}
