package setplan

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// A rollout and its deadline.
//
// The clock is status.lastProgressTime: it begins when there is something left to do, and moves when something got
// better, and with every change of the spec. It runs while the spec is not reached, but not while paused or waiting
// for other CollaSets, and no more once the spec was reached: that a node dies a month later is no rollout. A
// CollaSet at rest costs no write for it. Past the deadline, FailurePolicy says what happens; what it stopped is in
// status.halted, which is bound to the revision, so that it survives restarts and ends with the next template.

// DeadlineOf is the progress deadline of a spec, which has a default as that of a Deployment; 0 for none. The default
// is not the schema's: what people and their tools wrote stays as it is.
func DeadlineOf(progressDeadlineSeconds *int32) time.Duration {
	switch seconds := ptr.Deref(progressDeadlineSeconds, appsv1alpha1.DefaultProgressDeadlineSeconds); seconds {
	case appsv1alpha1.NoProgressDeadlineSeconds:
		return 0
	default:
		return time.Duration(seconds) * time.Second
	}
}

// FailureHandling is what the spec says about rollouts that do not progress.
type FailureHandling struct {
	// Deadline is that of DeadlineOf.
	Deadline time.Duration
	// Policy is failurePolicy.
	Policy appsv1alpha1.RolloutFailurePolicy
}

// Halt returns what is still halted of what was halted by status: nil when the template is another one, or when the
// policy or the deadline was taken away. spec is the revision of the present template, known reports whether a revision
// still exists.
func (f FailureHandling) Halt(
	status *appsv1alpha1.CollaSetStatus, spec string, known func(revision string) bool,
) *appsv1alpha1.HaltedRollout {
	h := status.Halted
	if h == nil || h.Revision != spec || !f.stops() {
		return nil
	}
	now := *h
	now.RollbackTo = f.rollbackTo(spec, firstKnown(known, h.RollbackTo, status.CurrentRevision))
	return &now
}

// stops reports whether the policy stops a rollout at all.
func (f FailureHandling) stops() bool {
	return f.Deadline > 0 && (f.Policy == appsv1alpha1.RolloutFailurePause ||
		f.Policy == appsv1alpha1.RolloutFailureRollback)
}

// rollbackTo is where Pods of a halted revision go; "" if they stay.
func (f FailureHandling) rollbackTo(halted, before string) string {
	if f.Policy != appsv1alpha1.RolloutFailureRollback || before == halted {
		return ""
	}
	return before
}

func firstKnown(known func(string) bool, revisions ...string) string {
	for _, r := range revisions {
		if r != "" && known(r) {
			return r
		}
	}
	return ""
}

// Target is the revision that Pods go to: that of the template, or the one to which a halted rollout goes back.
func Target(spec string, halted *appsv1alpha1.HaltedRollout) string {
	if halted != nil && halted.RollbackTo != "" {
		return halted.RollbackTo
	}
	return spec
}

// spec is the revision of the present template.
func (h *History) spec() string {
	if h.SpecRevision != "" {
		return h.SpecRevision
	}
	return h.UpdatedRevision
}

// halted is the revision to which no Pod goes any more; "" for none.
func (h *History) halted() string {
	if h.Halted == nil {
		return ""
	}
	return h.Halted.Revision
}

// avoided reports whether no Pod is to be made at this revision: it is halted, and there is another.
func (h *History) avoided(revision string) bool {
	return revision != "" && revision == h.halted() && h.fallback() != revision
}

// known reports whether a revision of the set still exists.
func (h *History) known(revision string) bool {
	_, ok := h.Revisions[revision]
	return ok
}

// fallback is the revision of Pods whose own is halted or not known any more.
func (h *History) fallback() string {
	if h.Halted != nil && h.UpdatedRevision == h.Halted.Revision && h.CurrentRevision != "" {
		return h.CurrentRevision
	}
	return h.UpdatedRevision
}

// waitingShare of the limit is how much of it may seem to have passed while the clock does not run: it is moved,
// which is a write, only so often.
const waitingShare = 4

// limit is the longest time without progress. A Pod needs MinReady to show that it is better, so that comes on top.
func (s *Snapshot) limit() time.Duration { return s.Failure.Deadline + s.MinReady }

// hasProgressed reports whether something is better than in the status before. Where Pods must have been Ready for some
// time, being Ready is nothing yet: a container that crashes again and again is Ready again and again.
func hasProgressed(s *Snapshot, before, now *appsv1alpha1.CollaSetStatus) bool {
	far := func(st *appsv1alpha1.CollaSetStatus) int {
		return max(int(st.Replicas)-s.Replicas, s.Replicas-int(st.Replicas))
	}
	return before.ObservedGeneration != now.ObservedGeneration || before.UpdatedRevision != now.UpdatedRevision ||
		now.UpdatedReplicas > before.UpdatedReplicas || now.UpdatedAvailableReplicas > before.UpdatedAvailableReplicas ||
		now.AvailableReplicas > before.AvailableReplicas || far(now) < far(before) ||
		(s.MinReady == 0 && (now.ReadyReplicas > before.ReadyReplicas ||
			now.UpdatedReadyReplicas > before.UpdatedReadyReplicas))
}

// wasComplete reports whether the status before tells of a rollout that reached the present spec, and no Pod has been
// updated since: where none was missing, more Pods at the updated revision are not what was lost and came back.
func wasComplete(s *Snapshot, before, now *appsv1alpha1.CollaSetStatus) bool {
	if before.UpdatedRevision != s.spec() ||
		(int(before.Replicas) >= s.Replicas && now.UpdatedReplicas > before.UpdatedReplicas) {
		return false
	}
	c := meta.FindStatusCondition(before.Conditions, appsv1alpha1.CollaSetProgressing)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == string(appsv1alpha1.ReasonRolloutComplete) &&
		c.ObservedGeneration == s.Generation
}

// isClockStalled reports whether the clock, which does not run while the CollaSet waits for others, has to be moved.
func isClockStalled(s *Snapshot, g Goal, clock *metav1.Time) bool {
	return g.Waits && s.Now.Sub(clock.Time) >= s.limit()/waitingShare
}

// rollout is how the present rollout fares.
type rollout struct {
	// complete is true if the spec was reached; it stays so until the spec or the chosen Pods change.
	complete bool
	// exceeded is true if nothing got better for longer than the deadline.
	exceeded bool
}

// follow moves the clock in st and halts what the failure policy halts.
func follow(s *Snapshot, p *Plan, before, st *appsv1alpha1.CollaSetStatus) rollout {
	g := p.Goal
	was := wasComplete(s, before, st)
	r := rollout{complete: g.UpdateReached && !g.Held && !g.Replacing && s.Halted == nil &&
		(g.ScaleReached && g.Available() || was)}
	st.Halted = s.Halted
	if s.Failure.Deadline == 0 {
		return r
	}
	now := metav1.NewTime(s.Now).Rfc3339Copy()
	st.LastProgressTime = before.LastProgressTime
	left := !r.complete && !s.Paused && !s.Deleting && s.Halted == nil
	begun := st.LastProgressTime != nil
	if (!begun && left) || (begun && (hasProgressed(s, before, st) || (was && !r.complete) ||
		isClockStalled(s, g, st.LastProgressTime))) {
		st.LastProgressTime = &now
	}
	r.exceeded = left && !g.Waits && s.Now.Sub(st.LastProgressTime.Time) >= s.limit()
	if r.exceeded && s.Failure.stops() && blamed(s, p, st) {
		st.Halted = &appsv1alpha1.HaltedRollout{
			Revision: s.spec(), RollbackTo: s.Failure.rollbackTo(s.spec(), s.CurrentRevision), Since: now,
		}
		st.CurrentRevision = s.CurrentRevision
	}
	return r
}

// blamed reports whether the revision is to blame that nothing gets better: Pods do not get to it, or do not serve
// with it. What its user has to change is no fault of the revision, but what the API server refuses is.
func blamed(s *Snapshot, p *Plan, st *appsv1alpha1.CollaSetStatus) bool {
	fails := !p.Goal.UpdateReached || st.UpdatedAvailableReplicas < st.UpdatedReplicas
	held := p.Problem != "" || p.Goal.Held && p.Goal.Refusal == ""
	return fails && !held && s.spec() != s.CurrentRevision
}

// DeadlineIn is how long it is to the progress deadline by this status, or to the next move of a clock that waits; 0
// if the clock does not run or has run out.
func DeadlineIn(s *Snapshot, g Goal, st *appsv1alpha1.CollaSetStatus) time.Duration {
	c := meta.FindStatusCondition(st.Conditions, appsv1alpha1.CollaSetProgressing)
	if st.LastProgressTime == nil || st.Halted != nil || s.Paused || s.Deleting || c == nil ||
		c.Reason == string(appsv1alpha1.ReasonRolloutComplete) {
		return 0
	}
	passed := s.Now.Sub(st.LastProgressTime.Time)
	if g.Waits {
		return max(time.Second, s.limit()/waitingShare-passed)
	}
	return max(0, s.limit()-passed)
}

// haltedMessage says what was stopped, and what to do.
func haltedMessage(s *Snapshot, h *appsv1alpha1.HaltedRollout) (appsv1alpha1.ConditionReason, string) {
	const remedy = "change spec.template, or take spec.updateStrategy.failurePolicy away to go on with it"
	text := fmt.Sprintf("revision %s made no progress within spec.progressDeadlineSeconds (%d): ", h.Revision,
		int(s.Failure.Deadline.Seconds()))
	if h.RollbackTo != "" {
		return appsv1alpha1.ReasonRolledBack, text + fmt.Sprintf("its Pods go back to %s; ", h.RollbackTo) + remedy
	}
	return appsv1alpha1.ReasonRolloutHalted, text + "no more Pods are updated to it; " + remedy
}
