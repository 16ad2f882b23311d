package setplan

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/shorten"
)

// maxMessage bounds a message in status, in bytes.
const maxMessage = 1024

// Outcome is what became of a plan: the errors of applying it, nil for none.
type Outcome struct {
	// ScaleOut, ScaleIn, Update and Reclaim are the failures of each kind of action. Conflicts are none.
	ScaleOut, ScaleIn, Update, Reclaim error
	// Refused is what the API server refuses of creations that were tried more than once, and why; "" for nothing.
	Refused string
	// Collisions is the number of revision names that were taken by other content, so far.
	Collisions int32
}

// StatusOf gives the status that the snapshot, the plan made of it and its outcome amount to. Counters come from what
// was observed, never from what was just attempted. before is the status as it is: conditions keep their times.
func StatusOf(s *Snapshot, p *Plan, o Outcome, before appsv1alpha1.CollaSetStatus) appsv1alpha1.CollaSetStatus {
	st := appsv1alpha1.CollaSetStatus{
		ObservedGeneration: s.Generation,
		CurrentRevision:    s.CurrentRevision,
		UpdatedRevision:    s.spec(),
		CollisionCount:     &o.Collisions,
		Selector:           s.Selector,
		Configuration:      before.Configuration,
	}
	for i := range s.Pods {
		count(s, &s.Pods[i], &st)
	}
	st.Readiness = readiness(st.ReadyReplicas, s.Replicas)
	if rolloutComplete(s, &st) {
		st.CurrentRevision = s.spec()
	}
	r := follow(s, p, &before, &st)
	if st.NextUpdate = forecast(s, &st); s.spec() != s.UpdatedRevision {
		st.NextUpdate = before.NextUpdate // differences lead to where Pods go back now
	}
	for _, b := range p.Blockers {
		st.Blockers = append(st.Blockers, appsv1alpha1.Blocker{Reason: b.Reason, Message: Cut(b.Message),
			Count: int32(b.Count)})
	}
	for _, c := range before.Conditions {
		if c.Type != appsv1alpha1.CollaSetTerminating || s.Deleting {
			st.Conditions = append(st.Conditions, c)
		}
	}
	w := conditionWriter{&st, s}
	if s.Deleting {
		w.terminating(p, o)
	}
	w.attempts(p.Goal, o, r)
	w.progress(p, o, r)
	return st
}

// readiness is how many Pods are Ready of those that are wanted.
func readiness(ready int32, wanted int) string { return fmt.Sprintf("%d/%d", ready, wanted) }

// FailedStatus is the status before, of a generation that wants this many replicas and for which nothing could be
// decided because of a failure. before is changed.
func FailedStatus(
	before appsv1alpha1.CollaSetStatus, generation int64, replicas int, now time.Time, failure error,
) appsv1alpha1.CollaSetStatus {
	before.ObservedGeneration, before.Readiness = generation, readiness(before.ReadyReplicas, replicas)
	w := conditionWriter{&before, &Snapshot{Generation: generation, Mode: Mode{Now: now}}}
	w.set(appsv1alpha1.CollaSetReady, false, appsv1alpha1.ReasonFailed, failure.Error())
	w.set(appsv1alpha1.CollaSetReconciling, true, appsv1alpha1.ReasonFailed, trying(appsv1alpha1.CollaSetReady))
	return before
}

// rolloutComplete reports whether every Pod is at the revision of the template, and every wanted one Ready and
// available with it. A revision that was halted never becomes the one that Pods come from.
func rolloutComplete(s *Snapshot, st *appsv1alpha1.CollaSetStatus) bool {
	return s.spec() != "" && s.Halted == nil && int(st.UpdatedReadyReplicas) >= s.Replicas &&
		st.UpdatedReplicas == st.Replicas &&
		int(st.UpdatedAvailableReplicas) >= s.Replicas
}

// count counts a Pod in status: one that is being deleted only as such, unless its name is in use until it is gone.
func count(s *Snapshot, pod *Pod, st *appsv1alpha1.CollaSetStatus) {
	if pod.View.Terminating {
		st.TerminatingReplicas++
	}
	if !s.Sequential && !pod.Live() {
		return
	}
	st.Replicas++
	updated := pod.Revision == s.spec() && s.spec() != ""
	if updated {
		st.UpdatedReplicas++
	}
	// What a Pod is before its kubelet has carried the change out, it is as it was before.
	updated = updated && !pod.isPending()
	if pod.View.Ready {
		st.ReadyReplicas++
		if updated {
			st.UpdatedReadyReplicas++
		}
	}
	if pod.Available {
		st.AvailableReplicas++
		if updated {
			st.UpdatedAvailableReplicas++
		}
	}
	if pod.Scheduled {
		st.ScheduledReplicas++
	}
	if during := pod.facts().During; during == podops.TypeUpdate || during == podops.TypeScaleIn {
		st.OperatingReplicas++
	}
}

// conditionWriter sets conditions, with the generation they are about and a time that changes with the status alone.
type conditionWriter struct {
	status *appsv1alpha1.CollaSetStatus
	s      *Snapshot
}

func (w conditionWriter) set(conditionType string, holds bool, reason appsv1alpha1.ConditionReason, message string) {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&w.status.Conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: string(reason), Message: Cut(message),
		ObservedGeneration: w.s.Generation, LastTransitionTime: metav1.NewTime(w.s.Now),
	})
}

// attempts tells how the last attempt to scale and to update went: in full, if it failed.
func (w conditionWriter) attempts(g Goal, o Outcome, r rollout) {
	switch {
	case o.ScaleOut != nil:
		w.set(appsv1alpha1.CollaSetScale, false, appsv1alpha1.ReasonScaleOutFailed, o.ScaleOut.Error())
	case o.ScaleIn != nil:
		w.set(appsv1alpha1.CollaSetScale, false, appsv1alpha1.ReasonScaleInFailed, o.ScaleIn.Error())
	case g.ScaleReached:
		w.set(appsv1alpha1.CollaSetScale, true, appsv1alpha1.ReasonScaled, "")
	default:
		w.set(appsv1alpha1.CollaSetScale, true, appsv1alpha1.ReasonScaling, "")
	}
	switch {
	case o.Update != nil:
		w.set(appsv1alpha1.CollaSetUpdate, false, appsv1alpha1.ReasonUpdateFailed, o.Update.Error())
	case g.Refusal != "" && !g.UpdateReached:
		w.set(appsv1alpha1.CollaSetUpdate, false, appsv1alpha1.ReasonUpdateFailed,
			"the API server refuses it, as the condition Stalled explains")
	case r.complete, g.UpdateReached && !g.Replacing && w.status.UpdatedAvailableReplicas == w.status.UpdatedReplicas &&
		w.s.Halted == nil:
		w.set(appsv1alpha1.CollaSetUpdate, true, appsv1alpha1.ReasonUpdated, "")
	default:
		w.set(appsv1alpha1.CollaSetUpdate, true, appsv1alpha1.ReasonUpdating, "")
	}
}

func (w conditionWriter) terminating(p *Plan, o Outcome) {
	switch {
	case o.Reclaim != nil:
		w.set(appsv1alpha1.CollaSetTerminating, false, appsv1alpha1.ReasonReclaimTargetsDeletionFailed, o.Reclaim.Error())
	case p.Release:
		w.set(appsv1alpha1.CollaSetTerminating, true, appsv1alpha1.ReasonDeleted, "")
	default:
		w.set(appsv1alpha1.CollaSetTerminating, false, appsv1alpha1.ReasonReclaimingTargetsDeletion,
			"waiting for all Pods to be gone")
	}
}

// progress sets the four conditions that tools judge health by. What is the matter is told in full in one of them: in
// Stalled if something has to be changed, else in Progressing, or in Ready once the rollout is complete.
func (w conditionWriter) progress(p *Plan, o Outcome, r rollout) {
	g, now := p.Goal, w.doing(p, o)
	because, why := w.stalled(p, o)
	switch h := w.status.Halted; {
	case because != "":
	case h != nil:
		because, why = haltedMessage(w.s, h)
	case r.exceeded: // a user has to look, as after the deadline of a Deployment
		because = appsv1alpha1.ReasonProgressDeadlineExceeded
		why = fmt.Sprintf("nothing got better within spec.progressDeadlineSeconds (%d): %s; status.blockers says what "+
			"Pods wait for", int(w.s.Failure.Deadline.Seconds()), now.message)
	}
	isStalled := because != ""

	w.set(appsv1alpha1.CollaSetStalled, isStalled, cmp.Or(because, appsv1alpha1.ReasonReconciled), why)
	switch {
	case isStalled:
		w.set(appsv1alpha1.CollaSetReady, false, because, "the spec is not reached, as the condition Stalled explains")
		w.set(appsv1alpha1.CollaSetReconciling, false, because, "")
		w.set(appsv1alpha1.CollaSetProgressing, false, because, stands(because))
	case g.Reached() && !w.s.Deleting: // the rollout is complete then
		w.set(appsv1alpha1.CollaSetReady, true, appsv1alpha1.ReasonAvailable, "")
		w.set(appsv1alpha1.CollaSetReconciling, false, appsv1alpha1.ReasonReconciled, "")
		w.set(appsv1alpha1.CollaSetProgressing, true, appsv1alpha1.ReasonRolloutComplete, "")
	case w.s.Paused && (!g.ScaleReached || !g.UpdateReached || g.Replacing):
		w.set(appsv1alpha1.CollaSetReady, false, appsv1alpha1.ReasonPaused, "spec.paused is set before the spec is reached")
		w.set(appsv1alpha1.CollaSetReconciling, false, appsv1alpha1.ReasonPaused, "")
		w.set(appsv1alpha1.CollaSetProgressing, false, appsv1alpha1.ReasonPaused, now.message)
	case r.complete:
		w.set(appsv1alpha1.CollaSetReady, false, now.reason, now.message)
		w.set(appsv1alpha1.CollaSetReconciling, true, now.reason, now.onTheWay)
		w.set(appsv1alpha1.CollaSetProgressing, true, appsv1alpha1.ReasonRolloutComplete, "")
	default:
		w.set(appsv1alpha1.CollaSetReady, false, now.reason, now.notReady)
		w.set(appsv1alpha1.CollaSetReconciling, true, now.reason, now.onTheWay)
		w.set(appsv1alpha1.CollaSetProgressing, true, now.reason, now.message)
	}
}

// stalled returns what a user has to change, and "" twice if there is nothing to change.
func (w conditionWriter) stalled(p *Plan, o Outcome) (because appsv1alpha1.ConditionReason, why string) {
	refusal := cmp.Or(p.Goal.Refusal, o.Refused)
	switch {
	case p.Problem != "" && !p.Goal.Held && o.Refused == "":
		return appsv1alpha1.ReasonInvalidSpec, p.Problem
	case p.Problem != "":
		return appsv1alpha1.ReasonBlocked, p.Problem
	case refusal != "":
		return appsv1alpha1.ReasonBlocked, refusal
	case !p.Goal.Held:
		return "", ""
	}
	for _, b := range p.Blockers {
		switch b.Reason {
		case inPlaceImpossible, resizeInfeasible, restartInfeasible, recordUnreadable, BlockExpansionRefused:
			return appsv1alpha1.ReasonBlocked, fmt.Sprintf("%d Pods: %s", b.Count, b.Message)
		}
	}
	return "", ""
}

// activity is what is going on: its reason, what Progressing tells of it in full, and a short word each of Ready and
// Reconciling.
type activity struct {
	reason                      appsv1alpha1.ConditionReason
	message, notReady, onTheWay string
}

// doing is what is going on, without numbers that change with every Pod: the counters tell them.
func (w conditionWriter) doing(p *Plan, o Outcome) activity {
	const notReached, again = "the spec is not reached", "trying again"
	failed := func(condition string) activity {
		return activity{appsv1alpha1.ReasonFailed, trying(condition), notReached, again}
	}
	switch {
	case o.ScaleOut != nil, o.ScaleIn != nil:
		return failed(appsv1alpha1.CollaSetScale)
	case o.Update != nil:
		return failed(appsv1alpha1.CollaSetUpdate)
	case o.Reclaim != nil:
		return failed(appsv1alpha1.CollaSetTerminating)
	case w.s.Deleting:
		return activity{appsv1alpha1.ReasonTerminating, "the CollaSet is being deleted", "its Pods are leaving", again}
	case !p.Goal.ScaleReached:
		return activity{appsv1alpha1.ReasonScaling, fmt.Sprintf("%d Pods are wanted", w.s.Replicas),
			"there are more or fewer Pods than are wanted", "adding or removing Pods"}
	case !p.Goal.UpdateReached:
		return activity{appsv1alpha1.ReasonUpdating, "Pods are being updated to " + w.s.UpdatedRevision,
			"not every Pod is updated", "updating Pods"}
	case p.Goal.Replacing:
		return activity{appsv1alpha1.ReasonUpdating, "Pods are being replaced", "not every Pod is updated", "updating Pods"}
	case !p.Goal.Available():
		return activity{appsv1alpha1.ReasonUnavailable, w.unavailable(p.Goal), "not every Pod is available",
			"waiting for Pods to be available"}
	}
	return activity{appsv1alpha1.ReasonReconciled, "", notReached, again}
}

// trying is the word of a failure of which the condition named tells in full.
func trying(condition string) string {
	return "the last attempt failed, as the condition " + condition + " tells, and is repeated"
}

// stands is a short word of the condition Progressing for what Stalled tells in full.
func stands(because appsv1alpha1.ConditionReason) string {
	if because == appsv1alpha1.ReasonProgressDeadlineExceeded {
		return "there was no progress in time, as the condition Stalled explains; it goes on where it can"
	}
	return "nothing goes on until what the condition Stalled names is changed"
}

// unavailable says what Pods lack, not which: that would change with every Pod.
func (w conditionWriter) unavailable(goal Goal) string {
	switch goal.Lacking {
	case LacksNode:
		return "some Pods have no node yet"
	case LacksReady:
		if goal.Awaited != "" {
			return fmt.Sprintf(
				"some Pods are not Ready: the condition of their readiness gate %s is not set to True by the program that owns it",
				goal.Awaited)
		}
		return "some Pods are not Ready"
	case LacksTime:
		return fmt.Sprintf("some Pods have not been Ready for spec.minReadySeconds (%d) yet", int(w.s.MinReady.Seconds()))
	case LacksService, LacksNothing:
	}
	if goal.Awaited != "" {
		return fmt.Sprintf(
			"some Pods are Ready, but not in service yet: the cooperator that is to put the finalizer %s on has not done so",
			goal.Awaited)
	}
	return "some Pods are Ready, but not in service yet"
}

// Cut shortens a message to what status takes.
func Cut(message string) string { return shorten.Bytes(message, maxMessage) }
