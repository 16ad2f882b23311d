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
	updated = updated && (!pod.Recorded || pod.Carried)
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
	stalled, why := w.stalled(p, o)
	g := p.Goal
	because := stalledReason(stalled, g, o)
	if h := w.status.Halted; h != nil && len(stalled) == 0 {
		because, why = haltedMessage(w.s, h)
		stalled = []string{string(because)}
	}
	paused := w.s.Paused && (!g.ScaleReached || !g.UpdateReached || g.Replacing)
	message, reason := w.doing(p, o)
	if r.exceeded && len(stalled) == 0 { // a user has to look, as after the deadline of a Deployment
		because = appsv1alpha1.ReasonProgressDeadlineExceeded
		why = fmt.Sprintf("nothing got better within spec.progressDeadlineSeconds (%d): %s; status.blockers says what "+
			"Pods wait for", int(w.s.Failure.Deadline.Seconds()), message)
		stalled = []string{string(because)}
	}
	ready := g.Reached() && len(stalled) == 0 && !w.s.Deleting

	w.set(appsv1alpha1.CollaSetStalled, len(stalled) > 0, because, why)
	switch {
	case ready:
		w.set(appsv1alpha1.CollaSetReady, true, appsv1alpha1.ReasonAvailable, "")
		w.set(appsv1alpha1.CollaSetReconciling, false, appsv1alpha1.ReasonReconciled, "")
	case len(stalled) > 0:
		w.set(appsv1alpha1.CollaSetReady, false, because, "the spec is not reached, as the condition Stalled explains")
		w.set(appsv1alpha1.CollaSetReconciling, false, because, "")
	case paused:
		w.set(appsv1alpha1.CollaSetReady, false, appsv1alpha1.ReasonPaused, "spec.paused is set before the spec is reached")
		w.set(appsv1alpha1.CollaSetReconciling, false, appsv1alpha1.ReasonPaused, "")
	case r.complete:
		w.set(appsv1alpha1.CollaSetReady, false, reason, message)
		w.set(appsv1alpha1.CollaSetReconciling, true, reason, onTheWay(reason))
	default:
		w.set(appsv1alpha1.CollaSetReady, false, reason, notReady(reason))
		w.set(appsv1alpha1.CollaSetReconciling, true, reason, onTheWay(reason))
	}
	switch {
	case len(stalled) > 0:
		w.set(appsv1alpha1.CollaSetProgressing, false, because, stands(because))
	case paused:
		w.set(appsv1alpha1.CollaSetProgressing, false, appsv1alpha1.ReasonPaused, message)
	case r.complete:
		w.set(appsv1alpha1.CollaSetProgressing, true, appsv1alpha1.ReasonRolloutComplete, "")
	default:
		w.set(appsv1alpha1.CollaSetProgressing, true, reason, message)
	}
}

// stalled returns what a user has to change, and nothing and "" if there is nothing to change.
func (w conditionWriter) stalled(p *Plan, o Outcome) (reasons []string, message string) {
	if p.Problem != "" {
		return []string{string(appsv1alpha1.ReasonInvalidSpec)}, p.Problem
	}
	if refusal := cmp.Or(p.Goal.Refusal, o.Refused); refusal != "" {
		return []string{BlockChangeRefused}, refusal
	}
	if p.Goal.Held {
		for _, b := range p.Blockers {
			switch b.Reason {
			case inPlaceImpossible, resizeInfeasible, restartInfeasible, recordUnreadable, BlockExpansionRefused:
				return []string{b.Reason}, fmt.Sprintf("%d Pods: %s", b.Count, b.Message)
			}
		}
	}
	return nil, ""
}

func stalledReason(stalled []string, g Goal, o Outcome) appsv1alpha1.ConditionReason {
	switch {
	case len(stalled) == 0:
		return appsv1alpha1.ReasonReconciled
	case g.Held, o.Refused != "":
		return appsv1alpha1.ReasonBlocked
	default:
		return appsv1alpha1.ReasonInvalidSpec
	}
}

// doing says what is going on, without numbers that change with every Pod: the counters tell them.
func (w conditionWriter) doing(p *Plan, o Outcome) (string, appsv1alpha1.ConditionReason) {
	switch {
	case o.ScaleOut != nil, o.ScaleIn != nil:
		return trying(appsv1alpha1.CollaSetScale), appsv1alpha1.ReasonFailed
	case o.Update != nil:
		return trying(appsv1alpha1.CollaSetUpdate), appsv1alpha1.ReasonFailed
	case o.Reclaim != nil:
		return trying(appsv1alpha1.CollaSetTerminating), appsv1alpha1.ReasonFailed
	case w.s.Deleting:
		return "the CollaSet is being deleted", appsv1alpha1.ReasonTerminating
	case !p.Goal.ScaleReached:
		return fmt.Sprintf("%d Pods are wanted", w.s.Replicas), appsv1alpha1.ReasonScaling
	case !p.Goal.UpdateReached:
		return "Pods are being updated to " + w.s.UpdatedRevision, appsv1alpha1.ReasonUpdating
	case p.Goal.Replacing:
		return "Pods are being replaced", appsv1alpha1.ReasonUpdating
	case !p.Goal.Available():
		return w.unavailable(p.Goal), appsv1alpha1.ReasonUnavailable
	}
	return "", appsv1alpha1.ReasonReconciled
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

// notReady is a short word of the condition Ready for what Progressing tells in full.
func notReady(reason appsv1alpha1.ConditionReason) string {
	switch reason {
	case appsv1alpha1.ReasonScaling:
		return "there are more or fewer Pods than are wanted"
	case appsv1alpha1.ReasonTerminating:
		return "its Pods are leaving"
	case appsv1alpha1.ReasonUpdating:
		return "not every Pod is updated"
	case appsv1alpha1.ReasonUnavailable:
		return "not every Pod is available"
	default:
		return "the spec is not reached"
	}
}

// onTheWay is a short word of the condition Reconciling for what another condition tells in full.
func onTheWay(reason appsv1alpha1.ConditionReason) string {
	switch reason {
	case appsv1alpha1.ReasonScaling:
		return "adding or removing Pods"
	case appsv1alpha1.ReasonUpdating:
		return "updating Pods"
	case appsv1alpha1.ReasonUnavailable:
		return "waiting for Pods to be available"
	default:
		return "trying again"
	}
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
