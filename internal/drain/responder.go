package drain

import (
	"slices"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/shorten"
)

// Responder is the name of the suite among the responders of a Pod (KEP-4563), and the key of a label of Evictions that
// name it.
const Responder = "kusionstack.io/lifecycle-controller"

const (
	// priority is the one that KEP-4563 asks the controller of a Pod to take.
	priority = 10000
	// maxResponders is how many a Pod may name (Kubernetes 1.37).
	maxResponders = 10
	// maxMessage bounds, in bytes, what a responder says. Kubernetes 1.37 takes as many characters.
	maxMessage = 4000
	// heartbeatEvery is how often a responder tells of its work. The turn is lost after 20 minutes without it.
	heartbeatEvery = 3 * time.Minute
	// heartbeatSoonest is how soon it says something new. KEP-4563 wants at least 20 s between two heartbeats.
	heartbeatSoonest = 30 * time.Second
)

// ResponderOf is the entry by which a Pod that is to be created names the suite among its responders. named are the
// names of those that it has. Nil if it must not: it does so already, it is one of a group, which cannot be a target,
// or it names as many as it may.
func ResponderOf(named []string, isOfGroup bool) map[string]any {
	if isOfGroup || len(named) >= maxResponders || slices.Contains(named, Responder) {
		return nil
	}
	return map[string]any{"name": Responder, "priority": int64(priority)}
}

// Turn returns the suite's entry of an Eviction's status; false if it is not its turn, or if it has completed that.
func Turn(eviction *lifecyclev1alpha1.Eviction) (lifecyclev1alpha1.ResponderStatus, bool) {
	isOurs := slices.ContainsFunc(eviction.Status.TargetResponders, func(r lifecyclev1alpha1.TargetResponder) bool {
		return r.Name == Responder && r.State == lifecyclev1alpha1.ResponderStateActive
	})
	i := slices.IndexFunc(eviction.Status.Responders,
		func(r lifecyclev1alpha1.ResponderStatus) bool { return r.Name == Responder })
	if !isOurs || i < 0 || eviction.Status.Responders[i].CompletionTime != nil {
		return lifecyclev1alpha1.ResponderStatus{}, false
	}
	return eviction.Status.Responders[i], true
}

// Facts are what an eviction of a Pod depends on beside the Pod.
type Facts struct {
	// Policy is what the Pod's workload has an eviction do.
	Policy Policy
	// Awaits is what a Pod that is being replaced waits for, as the CollaSet's status has it; "" if it says nothing.
	Awaits string
	// Budget is the name of a user's PodDisruptionBudget that allows no disruption of the Pod now, "" if there is none,
	// or if the Pod is marked for deletion: then none is in the way any more.
	Budget string
}

// Request is a Pod that an Eviction is about while it is the turn of the suite, and all that the answer depends on.
type Request struct {
	Facts
	Pod podops.View
	// Target is the UID of the Pod that the Eviction is about.
	Target types.UID
	// NamespaceLabel is the namespace's podops.GracefulDeletionLabel, "" without one.
	NamespaceLabel string
	Rules          []podops.Rule
	// Frozen is why no Pod of the namespace may be taken out of service, "" if Pods may be.
	Frozen string
	// Patience is how long rules may hold the Pod before the next responder gets the turn; zero for ever.
	Patience time.Duration
	Now      time.Time
}

// Answer is what the suite does in its turn.
type Answer struct {
	// Status is what it says, nil for nothing new.
	Status *lifecyclev1alpha1.ResponderStatus
	// Asks reports whether the Pod is to be asked to leave.
	Asks bool
}

// Answer says how far the Pod is, or completes the turn: at once if the suite cannot handle the Pod, or later if the
// request's patience is over.
func (r Request) Answer(was lifecyclev1alpha1.ResponderStatus) Answer {
	why := r.declines(was.HeartbeatTime != nil)
	if why == "" && r.Patience > 0 && was.StartTime != nil && r.Now.Sub(was.StartTime.Time) >= r.Patience &&
		r.isHeldByRules() {
		why = "given up after " + r.Patience.String() + ": " + r.doing()
	}
	if why != "" {
		return r.Complete(was, why)
	}
	doing := shorten.Bytes(r.doing(), maxMessage)
	if was.HeartbeatTime != nil {
		every := heartbeatEvery
		if was.Message == nil || *was.Message != doing {
			every = heartbeatSoonest
		}
		if r.Now.Sub(was.HeartbeatTime.Time) < every {
			return Answer{Asks: true}
		}
	}
	was.HeartbeatTime, was.Message = r.stamp(was), &doing
	return Answer{Status: &was, Asks: true}
}

// Complete ends the turn: the next responder gets it.
func (r Request) Complete(was lifecyclev1alpha1.ResponderStatus, why string) Answer {
	was.CompletionTime, was.Message = r.stamp(was), new(shorten.Bytes(why, maxMessage))
	return Answer{Status: &was}
}

// isHeldByRules reports whether nothing but the Pod's rules, or a freeze, keeps its deletion from beginning.
func (r Request) isHeldByRules() bool {
	_, isReplaced := r.Pod.Labels[appsv1alpha1.ToReplaceLabel]
	stage, waits := podops.StageOfPhase(podops.OperationOf(r.Pod, podops.DeletionID).Phase)
	return !r.isLeaving() && !isReplaced && waits && stage == appsv1alpha1.StagePreCheck
}

// isLeaving reports whether the Pod is being deleted, or has ended: there is nothing left to ask of it.
func (r Request) isLeaving() bool { return r.Pod.Terminating || r.Pod.Terminal }

// declines is why the suite does not take the Pod out of service, for people; "" if it does. asked reports whether it
// has asked for that before.
func (r Request) declines(asked bool) string {
	v := r.Pod
	switch {
	case v.UID != r.Target:
		return "Pod " + v.Name + " is another one than the target: it has UID " + string(v.UID)
	case v.Labels[appsv1alpha1.ControlLabel] != appsv1alpha1.ControlValue:
		return "Pod " + v.Name + " is not managed: it has no label " + appsv1alpha1.ControlLabel + "=" +
			appsv1alpha1.ControlValue
	case !v.Gate:
		return "Pod " + v.Name + " has no readiness gate " + podops.ServiceReadyCondition +
			" and cannot be taken out of service first"
	case IsDisabled(v.Labels[podops.GracefulDeletionLabel], r.NamespaceLabel):
		return "graceful deletion of Pod " + v.Name + " is disabled by label " + podops.GracefulDeletionLabel
	case r.isLeaving():
		return ""
	case asked && !IsRequested(v), isCancelled(v):
		return "the mark of Pod " + v.Name + " was removed, which cancels its eviction"
	case r.isHeld():
		return "PodDisruptionBudget " + r.Budget + " allows no disruption now"
	default:
		return ""
	}
}

// marks are what an eviction sets.
var marks = []string{appsv1alpha1.ToReplaceLabel, appsv1alpha1.ToDeleteLabel}

// isCancelled reports whether a person has taken away a mark that was set for an EvictionRequest.
func isCancelled(v podops.View) bool {
	return slices.ContainsFunc(marks, func(mark string) bool {
		return podops.Recorded(v, mark, podops.AskerEvictionRequest) &&
			!podops.MarkedBy(v, mark, podops.AskerEvictionRequest)
	})
}

// IsRequested reports whether an EvictionRequest has asked for the Pod to leave and has not taken that back. It is also
// true if a person has taken the mark away: the record is still there.
func IsRequested(v podops.View) bool {
	return slices.ContainsFunc(marks, func(mark string) bool {
		return podops.Recorded(v, mark, podops.AskerEvictionRequest)
	})
}

// Unrequest is the change by which no EvictionRequest asks for the Pod to leave any more. A mark that others asked for
// stays.
func Unrequest(v podops.View) podops.Change {
	var c podops.Change
	if v.Terminating {
		return c // its marks say why it goes
	}
	for _, mark := range marks {
		c = c.Then(v, podops.ForgetAsker(c.Apply(v), mark, podops.AskerEvictionRequest))
	}
	return c
}

// Change is the change by which an EvictionRequest asks for the Pod to leave, as an eviction would: zero if the Pod is
// asked already, or is being deleted.
func (r Request) Change() podops.Change {
	if r.isLeaving() {
		return podops.Change{}
	}
	c, err := Ask(r.Pod, r.Policy.Replaces(r.Pod, r.Budget != ""), r.Now, podops.AskerEvictionRequest)
	if err != nil { // the name of this asker is valid
		return podops.Change{}
	}
	return c
}

// isHeld reports whether a PodDisruptionBudget keeps a first eviction from marking the Pod.
func (r Request) isHeld() bool {
	_, isDeleted := r.Pod.Labels[appsv1alpha1.ToDeleteLabel]
	return r.Budget != "" && r.Pod.Ready && !isDeleted && !r.Policy.Replaces(r.Pod, true)
}

// doing tells what the Pod waits for once it is asked to leave.
func (r Request) doing() string {
	v := r.Change().Apply(r.Pod)
	_, isReplaced := v.Labels[appsv1alpha1.ToReplaceLabel]
	_, isDeleted := v.Labels[appsv1alpha1.ToDeleteLabel]
	switch {
	case r.isLeaving():
		return "the Pod is being deleted, or has ended"
	case isReplaced && !isDeleted && r.Awaits != "":
		return "another Pod takes its place first: " + r.Awaits
	case isReplaced && !isDeleted:
		return "another Pod takes its place first"
	}
	doing := "the Pod is about to be taken out of service, then deleted"
	for _, wait := range podops.ExplainWith(v, podops.Surroundings{Rules: r.Rules, Frozen: r.Frozen, Brief: true}) {
		if wait.ID == podops.DeletionID {
			doing = "the Pod is being taken out of service, then deleted: " + wait.Message
		}
	}
	if r.Policy.Obstacle != "" {
		doing += ". It is not replaced by another Pod first: " + r.Policy.Obstacle
	}
	return doing
}

// stamp is now, and not before the times that it has to follow: another clock may have set those.
func (r Request) stamp(was lifecyclev1alpha1.ResponderStatus) *metav1.Time {
	now := r.Now
	for _, before := range []*metav1.Time{was.StartTime, was.HeartbeatTime} {
		if before != nil && before.After(now) {
			now = before.Time
		}
	}
	return &metav1.Time{Time: now}
}
