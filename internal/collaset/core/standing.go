package core

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/api/podops"
)

// Standing is a standing order: what a decision says of the next steps of those Pods on which an update in place is under
// way, so that a Pod that gets its permission, or has carried its change out, can be moved on without a decision about the
// whole set. It holds for the generation that it was given for, until the next decision; steps are made on the Pod as it is
// and under its resourceVersion, so they are among those that a decision on the same Pod would plan.
type Standing struct {
	// Updated is the revision that Pods go to.
	Updated string
	// From is the revision that each of these Pods had, by UID. Only Pods at that revision are changed.
	From map[types.UID]string
	// Next are Pods to begin, which From has too: the first when one of those under way is Back, and so on. Nil for none.
	Next []NextPod
	// Room is how many of Next only Snapshot.Room kept from being begun: they may begin as soon as others make room. It is
	// less than none if more Pods are unavailable than may be: one that comes back then lets no other begin.
	Room int
}

// maxNext bounds Standing.Next: more than are back before the next decision, at any pace that an API server has.
const maxNext = 1024

// NextPod is a Pod whose update is to be begun.
type NextPod struct {
	Name string
	UID  types.UID
}

// Step is what is due on one Pod.
type Step int

// The steps of an update in place that are made Pod by Pod.
const (
	// StepNone: nothing, or something that takes a decision about the set.
	StepNone Step = iota
	// StepChange: the Pod is to be brought to the updated revision in place, and that is allowed.
	StepChange
	// StepFinish: the change has been carried out, and it is not lifecycle-controller that says so.
	StepFinish
)

// Step says what is due on a Pod. Its cost does not depend on the number of Pods. A nil order asks for nothing.
func (o *Standing) Step(pod *Pod) Step {
	if o == nil {
		return StepNone
	}
	from, named := o.From[pod.UID()]
	if !named || !pod.updatable() || pod.facts().During != podops.TypeUpdate {
		return StepNone
	}
	switch {
	case pod.Revision == o.Updated && pod.Recorded && pod.Carried && !pod.Delegated:
		return StepFinish
	case pod.Revision == from && from != o.Updated && !pod.Recorded && podops.Allowed(pod.View, OperatorID, podops.TypeUpdate):
		return StepChange
	}
	return StepNone
}

// MayBegin says whether a Pod of Next may be begun as it is, if there is room. Its cost does not depend on the number of Pods.
func (o *Standing) MayBegin(pod *Pod) bool {
	from, named := o.From[pod.UID()]
	facts := pod.facts()
	return named && pod.updatable() && pod.Revision == from && from != o.Updated && !pod.Recorded && facts.InService && facts.During == ""
}

// updatable says that nothing but the update strategy has a say about the Pod.
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

// stand begins a standing order, where steps of single Pods depend on nothing but their own permission: not on a delay that
// is measured from when that was first seen, on claims that have to be changed first, on labels that choose Pods, or on the
// choice of those that scale-in removes, which may change with every Pod.
func (d *decision) stand(blocked bool) {
	s := d.s
	if slices.ContainsFunc(d.items, func(it *item) bool { return it.victim }) {
		return
	}
	if s.Protocol && !blocked && !d.moving && s.UpdateDelay == 0 && s.Halted == nil && !s.ByLabel && len(s.Templates) == 0 {
		d.plan.Standing = &Standing{Updated: s.UpdatedRevision, From: map[types.UID]string{}}
	}
}

// order names a Pod in the standing order: one on which an update in place is under way, or that is on its way back. need says
// that it has yet to be changed.
func (d *decision) order(it *item, need bool) {
	switch {
	case d.plan.Standing == nil:
		return
	case it.during != podops.TypeUpdate:
		if !offline(it.op) {
			return
		}
	case need:
		if w, _, _ := d.wayOf(it); w != inPlace || it.Recorded {
			return
		}
	case !it.Recorded || it.Revision != d.s.UpdatedRevision:
		return
	}
	d.plan.Standing.From[it.UID()] = it.Revision
}

// flows says that the standing order says who begins next. Where Pods bake, those in flight are too few for that to matter.
func (d *decision) flows() bool { return d.plan.Standing != nil && d.s.MinReady == 0 }

// queues says that a standing order can have the Pod begin.
func (d *decision) queues(it *item) bool {
	if !d.flows() || it.Recorded {
		return false
	}
	w, _, _ := d.wayOf(it)
	return w == inPlace
}

// queue has a Pod that the order can begin do so when there is room.
func (d *decision) queue(it *item) {
	order := d.plan.Standing
	if len(order.Next) == maxNext {
		return
	}
	order.From[it.UID()] = it.Revision
	order.Next = append(order.Next, NextPod{it.Name(), it.UID()})
}
