package core

import (
	"slices"
	"time"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// Idle is a CollaSet about which nothing is to be decided as long as nothing changes but the health of its Pods: Ready, available, scheduled, and
// the readiness gate that is missing. Only status follows from that, and the work for one Pod does not depend on how many there are.
type Idle struct {
	// snapshot and plan are without what there is for each Pod.
	snapshot Snapshot
	plan     Plan
	tally    tally
	short    shortfall
}

// IdleAfter is the Idle that a decision leaves; nil if something is to be done or waited for, or may be once the health of Pods changes.
func IdleAfter(s *Snapshot, p *Plan) *Idle {
	g := p.Goal
	switch {
	case !p.IsZero(), p.More, p.NextLook > 0, len(p.Problems)+len(p.Blockers) > 0,
		!g.ScaleReached, !g.UpdateReached, g.Replacing, g.Held, g.Waits,
		s.Deleting, s.Paused, s.Halted != nil,
		len(s.ToDelete)+len(s.ToExclude)+len(s.Candidates)+len(s.Templates)+len(s.Claims)+len(s.StaleOwners)+len(s.Strays) > 0:
		return nil
	}
	for _, e := range s.Entries {
		if e.Data[appsv1alpha1.ContextOwner] != s.Name {
			return nil
		}
	}
	i := &Idle{snapshot: *s, plan: Plan{Goal: g}}
	i.snapshot.Pods, i.snapshot.Entries = nil, nil
	for k := range s.Pods {
		if !s.Pods[k].idle() {
			return nil
		}
		i.add(&s.Pods[k], 1)
	}
	return i
}

// add counts a Pod so many times.
func (i *Idle) add(pod *Pod, n int) {
	i.tally.add(&i.snapshot, pod, int32(n))
	i.short.add(pod, n)
}

// idle says that the Pod has nothing about it that a decision carries on, ends, counts or waits for, whatever its health.
func (p *Pod) idle() bool {
	f := p.facts()
	return p.Live() && p.Selected && f.Op.Phase == podops.PhaseNone && f.During == "" && !p.Recorded && !p.Delegated &&
		!p.Excluded && !p.ToDelete && !p.Replacing && p.AvailableIn == 0
}

// sameButHealth says that a Pod differs in nothing that a decision about an idle CollaSet reads but in its health.
func sameButHealth(a, b *Pod) bool {
	return a.UID() == b.UID() && a.ID == b.ID && a.Revision == b.Revision && a.Known == nil && b.Known == nil && a.Created.Equal(b.Created) && a.Included == b.Included &&
		a.DeletionCost == b.DeletionCost && slices.Equal(a.Mounts, b.Mounts)
}

// Change takes a Pod into account that changed since the CollaSet is idle, or since its last Change. If it says no, more may follow from that than another
// status: the Idle is of no use any more, and the next decision is about the whole CollaSet. before.Available is as it was then.
func (i *Idle) Change(before, after *Pod) bool {
	if !before.idle() || !after.idle() || !sameButHealth(before, after) {
		return false
	}
	i.add(before, -1)
	i.add(after, 1)
	return true
}

// Status gives the status that follows now, as StatusOf would, and how long it is to the progress deadline by it, as DeadlineIn would.
func (i *Idle) Status(now time.Time, o Outcome, before appsv1alpha1.CollaSetStatus) (st appsv1alpha1.CollaSetStatus, deadline time.Duration) {
	i.snapshot.Now = now
	i.plan.Goal.Lacking, i.plan.Goal.Awaited = i.short.most()
	st = statusOf(&i.snapshot, &i.tally, &i.plan, o, before)
	return st, DeadlineIn(&i.snapshot, i.plan.Goal, &st)
}
