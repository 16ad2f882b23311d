package collaset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/failures"
	"kusionstack.io/kuperator/internal/shorten"
)

// statusPause is the shortest time between two writes of status that differ in numbers and texts only. Of a large set
// they differ all the time, and a write costs the API server as much as several of Pods: its schema is that of whole
// Pods.
const (
	statusPause       = 200 * time.Millisecond
	statusPausePerPod = time.Millisecond
	statusPauseMost   = time.Second
)

// statusPauseOf is that time for a CollaSet.
func statusPauseOf(replicas int) time.Duration {
	return min(max(statusPause, time.Duration(replicas)*statusPausePerPod), statusPauseMost)
}

// maxNamed bounds the single Pods that the events of a round are about.
const maxNamed = 10

// statusWrites is what became of writes of status.
type statusWrites struct {
	// at is when status was last written, or refused because the CollaSet is newer than the cache shows.
	at time.Time
	// refused is the resourceVersion of the CollaSet on which it was refused, "" if it was written.
	refused string
}

// pause is how long not to write a status. One that was refused waits longest until the cache shows another version:
// looks that come by themselves, or by events of Pods, would have it refused again.
func (w *statusWrites) pause(
	set *appsv1alpha1.CollaSet, after appsv1alpha1.CollaSetStatus, now time.Time,
) time.Duration {
	switch {
	case w.refused == set.ResourceVersion:
		return statusPauseMost - now.Sub(w.at)
	case materialChange(set.Status, after):
		return 0
	}
	return statusPauseOf(int(ptr.Deref(set.Spec.Replicas, 0))) - now.Sub(w.at)
}

// reporter tells users what became of a decision: in status, and in events.
type reporter struct{ *server }

// report writes status if it changed, and the events of this round. later is how long a write of status was put off.
func (r reporter) report(
	ctx context.Context, o *observation, plan *setplan.Plan, applied *outcome,
) (later time.Duration, err error) {
	became := told(applied)
	r.recordEvents(o, applied, became)
	if became.ScaleOut == nil {
		became.ScaleOut = failures.Told(applied.creationsHeld)
	}
	if why, refused := o.refusal(became.ScaleOut); refused && o.memory.creations.failures > 1 {
		to := setplan.Form{Revision: o.snapshot.UpdatedRevision}
		became.Refused = setplan.Trial{Write: setplan.TrialCreate, To: to}.Refusal(why.Why)
	}
	status := setplan.StatusOf(&o.snapshot, plan, became, *o.set.Status.DeepCopy())
	return r.updateStatus(ctx, o, status, setplan.DeadlineIn(&o.snapshot, plan.Goal, &status), plan.IsZero())
}

// told is the outcome as status and events tell of it.
func told(applied *outcome) setplan.Outcome {
	o := applied.Outcome
	o.ScaleOut, o.ScaleIn, o.Update, o.Reclaim = failures.Told(o.ScaleOut), failures.Told(o.ScaleIn),
		failures.Told(o.Update), failures.Told(o.Reclaim)
	return o
}

// updateStatus writes status if it changed. deadline is how long it is to the progress deadline, or 0; unsure is true
// if the view that status comes from has not been confirmed.
func (r reporter) updateStatus(
	ctx context.Context, o *observation, status appsv1alpha1.CollaSetStatus, deadline time.Duration, unsure bool,
) (later time.Duration, err error) {
	if equality.Semantic.DeepEqual(status, o.set.Status) {
		return deadline, nil
	}
	now := r.clock.Now()
	if pause := o.memory.status.pause(o.set, status, now); pause > 0 {
		return pause, nil
	}
	if unsure {
		if err := r.ensureFresh(ctx, o); err != nil {
			return 0, err
		}
	}
	if err := r.storeStatus(ctx, o.memory, o.set, status, now); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	r.recordClaimTurns(o.set, &status)
	r.recordTurns(o, &status)
	if !equality.Semantic.DeepEqual(o.set.Status.Halted, status.Halted) {
		// What it means for Pods is decided on the status that is stored, and storing it causes no reconcile.
		return time.Millisecond, nil
	}
	return deadline, nil
}

// reportFailure says in status that nothing can be decided for this generation, and why. The failure is given back.
func (r reporter) reportFailure(ctx context.Context, m *setState, set *appsv1alpha1.CollaSet, failure error) error {
	if ctx.Err() != nil || set.DeletionTimestamp != nil || errors.Is(failure, errStale) || apierrors.IsConflict(failure) {
		return failure
	}
	now := r.clock.Now()
	status := setplan.FailedStatus(*set.Status.DeepCopy(), set.Generation, int(ptr.Deref(set.Spec.Replicas, 0)), now,
		failures.Told(failure))
	if equality.Semantic.DeepEqual(status, set.Status) || m.status.pause(set, status, now) > 0 {
		return failure
	}
	return errors.Join(failure, client.IgnoreNotFound(r.storeStatus(ctx, m, set, status, now)))
}

// storeStatus writes status on the CollaSet as it was read, and remembers it if that version turns out to be old.
func (r reporter) storeStatus(
	ctx context.Context, m *setState, set *appsv1alpha1.CollaSet, status appsv1alpha1.CollaSetStatus, now time.Time,
) error {
	changed := set.DeepCopy()
	changed.Status = status
	if err := r.client.Status().Patch(ctx, changed, optimisticPatch(set)); err != nil {
		if apierrors.IsConflict(err) {
			m.status = statusWrites{now, set.ResourceVersion}
		}
		return fmt.Errorf("writing status: %w", err)
	}
	m.status = statusWrites{at: now}
	r.writes.Wrote(client.ObjectKeyFromObject(set), changed)
	return nil
}

// optimisticPatch makes a patch of status that holds for the CollaSet as it was read, and no later one. A patch has
// only what differs from what was read: laid over another status, for example one that a write whose answer was lost
// had stored, it would leave a status that contradicts itself.
func optimisticPatch(set *appsv1alpha1.CollaSet) client.Patch {
	return client.MergeFromWithOptions(set, client.MergeFromWithOptimisticLock{})
}

// recordTurns tells once of what the written status says for the first time.
func (r reporter) recordTurns(o *observation, status *appsv1alpha1.CollaSetStatus) {
	before := &o.set.Status
	was, is := meta.FindStatusCondition(before.Conditions, appsv1alpha1.CollaSetProgressing),
		meta.FindStatusCondition(status.Conditions, appsv1alpha1.CollaSetProgressing)
	failed := is != nil && is.Status == metav1.ConditionFalse &&
		(status.Halted != nil || is.Reason == string(appsv1alpha1.ReasonProgressDeadlineExceeded))
	if failed && (was == nil || was.Reason != is.Reason) {
		if stalled := meta.FindStatusCondition(status.Conditions, appsv1alpha1.CollaSetStalled); stalled != nil &&
			stalled.Status == metav1.ConditionTrue {
			is = stalled // it has the whole text
		}
		r.events.Eventf(o.set, nil, corev1.EventTypeWarning, is.Reason, "Update", "%s", shorten.Note(is.Message))
	}
	if b := blockerOf(status, setplan.BlockContainersFail); b != nil &&
		(blockerOf(before, b.Reason) == nil || before.UpdatedRevision != status.UpdatedRevision) {
		r.events.Eventf(o.set, nil, corev1.EventTypeWarning, b.Reason, "Update", "%s", shorten.Note(b.Message))
	}
	if before.UpdatedRevision != "" && before.UpdatedRevision != status.UpdatedRevision {
		r.events.Eventf(o.set, nil, corev1.EventTypeNormal, "RolloutBegun", "Update", "%s", begun(before, status))
	}
	if before.CurrentRevision != "" && before.CurrentRevision != status.CurrentRevision {
		r.events.Eventf(o.set, nil, corev1.EventTypeNormal, string(appsv1alpha1.ReasonRolloutComplete), "Update",
			"every Pod is at revision %s", status.CurrentRevision)
	}
}

// begun tells where a rollout comes from.
func begun(before, status *appsv1alpha1.CollaSetStatus) string {
	if before.CurrentRevision == status.UpdatedRevision {
		return fmt.Sprintf("the template is revision %s again, before every Pod was at %s", status.UpdatedRevision,
			before.UpdatedRevision)
	}
	return fmt.Sprintf("the template is revision %s now; Pods were last all at %s", status.UpdatedRevision,
		before.CurrentRevision)
}

// blockerOf is the blocker with this reason, nil if there is none.
func blockerOf(status *appsv1alpha1.CollaSetStatus, reason string) *appsv1alpha1.Blocker {
	i := slices.IndexFunc(status.Blockers, func(b appsv1alpha1.Blocker) bool { return b.Reason == reason })
	if i < 0 {
		return nil
	}
	return &status.Blockers[i]
}

// materialChange reports whether the new status has something that users wait for: another generation, another
// revision, or a condition that turned.
func materialChange(before, after appsv1alpha1.CollaSetStatus) bool {
	if !equality.Semantic.DeepEqual(before.Halted, after.Halted) ||
		before.ObservedGeneration != after.ObservedGeneration || before.UpdatedRevision != after.UpdatedRevision ||
		before.CurrentRevision != after.CurrentRevision {
		return true
	}
	for _, c := range after.Conditions {
		old := meta.FindStatusCondition(before.Conditions, c.Type)
		if old == nil || old.Status != c.Status || old.ObservedGeneration != c.ObservedGeneration {
			return true
		}
	}
	return false
}

// recordEvents tells of Pods created and deleted, all of a round in one event, and of what was refused.
func (r reporter) recordEvents(o *observation, applied *outcome, became setplan.Outcome) {
	if applied.created+applied.deleted > 0 {
		r.events.Eventf(o.set, nil, corev1.EventTypeNormal, "Scaled", "Scale", "%s", summary(applied))
	}
	r.recordEndings(o, applied.ended)
	for reason, pods := range applied.replacements {
		slices.Sort(pods)
		r.events.Eventf(o.set, o.related(pods[0]), corev1.EventTypeNormal, string(reason), "Replace", "%s",
			shorten.Note(replacement(reason, pods)))
	}
	r.recordMembers(o, "Excluded", "Exclude", applied.excluded, o.pod)
	r.recordMembers(o, "Included", "Include", applied.included,
		func(name string) *corev1.Pod { return o.candidates[name] })
	r.recordRepairs(o, applied.repaired)
	for reason, err := range map[string]error{"ScaleOutFailed": became.ScaleOut, "ScaleInFailed": became.ScaleIn,
		"UpdateFailed": became.Update, "ReclaimFailed": became.Reclaim} {
		if err == nil || apierrors.IsServiceUnavailable(err) || o.alreadyReported(err) {
			continue
		}
		r.events.Eventf(o.set, nil, corev1.EventTypeWarning, reason, "Reconcile", "%s", shorten.Note(err.Error()))
	}
}

// related names a Pod in an event about the set, whether it is still there or not: the recorder counts events of one
// reason about the same objects as one, and keeps the first text only.
func (o *observation) related(pod string) *corev1.Pod {
	if known := o.pod(pod); known != nil {
		return known
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: o.set.Namespace, Name: pod}}
}

// recordEndings keeps of Pods that ran to their ends what they said of it. A node that goes can end many at once.
func (r reporter) recordEndings(o *observation, ended []*setplan.Pod) {
	each(ended, "; so are %d more", func(pod *setplan.Pod, more string) {
		note := fmt.Sprintf("Pod %s (instance ID %d) %s; it is deleted and replaced%s", pod.Name(), pod.ID,
			shorten.Bytes(pod.Ended, shorten.MaxNote/2), more)
		r.events.Eventf(o.set, o.pod(pod.Name()), corev1.EventTypeWarning, "PodEnded", "Replace", "%s", note)
	})
}

// each tells of the first maxNamed Pods. The last of them stands for those that are left out: more counts them, in the
// form given, and is "" for the others.
func each[P any](pods []P, form string, tell func(pod P, more string)) {
	for i, pod := range pods[:min(len(pods), maxNamed)] {
		more := ""
		if i == maxNamed-1 && len(pods) > maxNamed {
			more = fmt.Sprintf(form, len(pods)-maxNamed)
		}
		tell(pod, more)
	}
}

// alreadyReported reports whether status already has this failure: it is the same attempt again.
func (o *observation) alreadyReported(err error) bool {
	return slices.ContainsFunc(o.set.Status.Conditions, func(c metav1.Condition) bool {
		return c.Status == metav1.ConditionFalse && c.Message == setplan.Cut(err.Error())
	})
}

// replacement says in words what became of the replacement of Pods.
func replacement(reason setplan.ReplacementEvent, pods []string) string {
	names := strings.Join(pods, ", ")
	switch reason {
	case setplan.ReplacementBegun:
		return "replacing " + names
	case setplan.ReplacementDone:
		return "in the place of others, which are gone: " + names
	case setplan.ReplacementCancelled:
		return "not replaced any more: " + names
	}
	return names
}

// recordMembers names the Pods that left or joined, each in a separate event: the recorder counts events of one reason
// about the same objects as one, and keeps the first text only.
func (r reporter) recordMembers(
	o *observation, reason, verb string, names []string, find func(name string) *corev1.Pod,
) {
	slices.Sort(names)
	each(names, ", and so were %d more", func(name, more string) {
		r.events.Eventf(o.set, find(name), corev1.EventTypeNormal, reason, verb, "Pod %s was %s%s", name,
			strings.ToLower(reason), more)
	})
}

func summary(applied *outcome) string {
	switch {
	case applied.deleted == 0:
		return fmt.Sprintf("created %d Pods", applied.created)
	case applied.created == 0:
		return fmt.Sprintf("deleted %d Pods", applied.deleted)
	default:
		return fmt.Sprintf("created %d Pods, deleted %d", applied.created, applied.deleted)
	}
}
