package setplan

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/api/podops"
)

// Rollout is what a decision says of the next steps of single Pods: of those on which an update in place is under
// way, so that a Pod that gets its permission, or has carried its change out, is moved on without a decision about
// the whole set, and of those that are to begin. It holds for the generation that it was made for, until the next
// decision; steps are made on the Pod as it is and under its resourceVersion, so they are among those that a decision
// on the same Pod would plan.
type Rollout struct {
	// Updated is the revision that Pods go to.
	Updated string
	// From is the revision that each of these Pods had, by UID. Only Pods at that revision are changed.
	From map[types.UID]string
	// Next are Pods that the budget does not allow yet, in the order in which they begin as others come back.
	Next []Queued
	// Spare is what the plan leaves of the budget: less than none if more Pods are unavailable than may be.
	Spare int
}

// NextPod is a Pod whose update is to be begun.
type NextPod struct {
	Name string
	UID  types.UID
}

// Step is what is due on one Pod.
type Step int

// The steps of an update that are made Pod by Pod.
const (
	// StepNone: nothing, or something that takes a decision about the set.
	StepNone Step = iota
	// StepBegin: the update is to be begun as soon as the window has chosen the Pod.
	StepBegin
	// StepChange: the Pod is to be brought to the updated revision in place, and that is allowed.
	StepChange
	// StepFinish: the change has been carried out, and it is not lifecycle-controller that says so.
	StepFinish
)

// NextStep is what is due on a Pod. Its cost does not depend on the number of Pods. A nil Rollout asks for nothing.
func (r *Rollout) NextStep(pod *Pod) Step {
	if r == nil {
		return StepNone
	}
	from, named := r.From[pod.UID()]
	if !named || !pod.updatable() || pod.isDecorated() {
		return StepNone
	}
	facts := pod.facts()
	isOld := pod.Revision == from && from != r.Updated && !pod.Recorded
	isUpdating := facts.During == podops.TypeUpdate
	switch {
	case isUpdating && pod.Revision == r.Updated && pod.Recorded && pod.Carried && !pod.Delegated:
		return StepFinish
	case isUpdating && isOld && podops.Allowed(pod.View, OperatorID, podops.TypeUpdate):
		return StepChange
	case isOld && facts.InService && facts.Op.Phase == podops.PhaseNone:
		return StepBegin
	}
	return StepNone
}

// updatable reports whether nothing but the update strategy has a say about the Pod.
func (p *Pod) updatable() bool {
	return p.Live() && p.Selected && !p.Excluded && !p.ToDelete && !p.Replacing
}

// Back reports whether a Pod came back into service from our operation between two looks, so that another may leave.
// One on which the next operation has begun by then is on its way out again.
func Back(before, after podops.View) bool {
	if before.ServiceAvailable() || !after.ServiceAvailable() {
		return false
	}
	then := FactsOf(after)
	return offline(FactsOf(before).Op) && !offline(then.Op) && then.During == ""
}

// Lost reports whether a Pod stopped serving between two looks, and not by our operation.
func Lost(before, after podops.View) bool {
	return before.ServiceAvailable() && !after.ServiceAvailable() &&
		FactsOf(before).Op.Phase == podops.PhaseNone && FactsOf(after).Op.Phase == podops.PhaseNone
}

// Operated reports whether labels tell of an operation of ours.
func Operated(labels map[string]string) bool {
	for key := range labels {
		if strings.HasSuffix(key, "/"+OperatorID) {
			return true
		}
	}
	return false
}

// startRollout has the plan say what follows on single Pods, where steps of single Pods depend on nothing but their
// own permission: not on a delay that is measured from when that was first seen, on claims that have to be changed
// first, on labels that choose Pods, or on the choice of those that scale-in removes, which may change with every
// Pod.
func (u *updating) startRollout() {
	if slices.ContainsFunc(u.pods.items, func(it *item) bool { return it.condemned }) {
		return
	}
	dependsOnMore := u.isMoving || u.UpdateDelay > 0 || u.Halted != nil || u.ByLabel || len(u.claims.Templates) > 0
	if u.Protocol && !dependsOnMore {
		u.rollout = &Rollout{Updated: u.UpdatedRevision, From: map[types.UID]string{}}
	}
}

// isStepwise reports whether nothing but steps of the single Pod is left of its update.
func (u *updating) isStepwise(it *item) bool {
	return u.rollout != nil && it.method == inPlace && !it.Recorded && !it.isDecorated()
}

// follow names a Pod in the Rollout: one on which an update in place is under way, or that is on its way back. need is
// true if it has yet to be changed.
func (u *updating) follow(it *item, need bool) {
	if u.rollout == nil || it.isDecorated() { // what it is made of is known to a decision about the set
		return
	}
	isNamed := it.Recorded && it.Revision == u.UpdatedRevision
	switch {
	case it.During != podops.TypeUpdate:
		isNamed = offline(it.Op)
	case need:
		isNamed = u.isStepwise(it)
	}
	if isNamed {
		u.rollout.From[it.UID()] = it.Revision
	}
}

// queue has a Pod begin in place when another comes back. With minReadySeconds, coming back is not enough for that.
func (u *updating) queue(it *item) {
	if !u.isStepwise(it) || u.MinReady > 0 || !it.InService || len(u.rollout.Next) >= u.Limits.Next {
		return
	}
	u.rollout.From[it.UID()] = it.Revision
	u.rollout.Next = append(u.rollout.Next, queuedAs(it.Pod, podops.Request{ID: OperatorID, Type: podops.TypeUpdate}))
}
