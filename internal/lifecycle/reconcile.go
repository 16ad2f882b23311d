package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/freeze"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/lifecycle/podphase"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/soonest"
)

// untriedLook is how soon to ask again about a deletion after an answer that says neither yes nor no.
const untriedLook = 5 * time.Second

// refusedLook is how soon to look again at a Pod whose deletion was refused: it is to come back.
const refusedLook = time.Millisecond

// cacheLag is how soon to look again at a Pod whose rules the cache does not show yet.
const cacheLag = 20 * time.Millisecond

type reconciler struct {
	client client.Client
	// live reads past the cache.
	live      client.Reader
	rules     *rules
	freeze    *freeze.Namespaces
	employers *employers
	deadlines podops.Deadlines
	// patience is how long operations wait for a cooperator that does not hold a Ready Pod; zero for ever.
	patience time.Duration
	// notAwaited is true if they do not wait for one at all.
	notAwaited bool
	timers     *phaseTimers
	writes     *freshness.Tracker
	deletions  deletions
	events     events.EventRecorder
	clock      clock.PassiveClock
}

// Reconcile takes the one step that is due on a Pod.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	wait, err := r.writes.Unobserved(ctx, req.NamespacedName) // before the Pod is read: the cache may catch up in between
	if err != nil {
		return ctrl.Result{}, err
	}
	pod := &corev1.Pod{}
	if err := r.client.Get(ctx, req.NamespacedName, pod); err != nil {
		if apierrors.IsNotFound(err) {
			r.gone(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if wait > 0 { // a decision on a Pod that lacks our last step would only conflict
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	snapshot, err := r.observe(ctx, pod)
	if err != nil {
		return ctrl.Result{}, err
	}
	plan := podphase.Decide(snapshot)
	var untried error
	if plan.Try {
		if _, untried = r.deletePod(ctx, pod, true); apierrors.IsConflict(untried) {
			return r.conflict(ctx, req), nil
		}
		snapshot.Deletion = r.deletions.of(pod)
		plan = podphase.Decide(snapshot)
	}
	if permits(snapshot.Pod, plan.Step) {
		if upToDate, err := r.rules.upToDate(ctx, req.Namespace); err != nil || !upToDate {
			return ctrl.Result{RequeueAfter: cacheLag}, err
		}
		if snapshot, err = r.observe(ctx, pod); err != nil { // on a cache that is known to be new enough
			return ctrl.Result{}, err
		}
		if plan = podphase.Decide(snapshot); plan.Try && untried == nil { // the answer has become old meanwhile
			return ctrl.Result{RequeueAfter: cacheLag}, nil
		}
	}
	r.timers.explained(req.NamespacedName,
		podops.ExplainWith(snapshot.Pod, podops.Surroundings{Rules: snapshot.Rules, Frozen: snapshot.Frozen, Brief: true}))
	nextLook, err := r.apply(ctx, pod, snapshot, plan)
	if apierrors.IsConflict(err) {
		return r.conflict(ctx, req), nil
	}
	r.writes.Conflicts.None(req.NamespacedName)
	if err == nil && client.IgnoreNotFound(untried) != nil { // other operations on the Pod keep their times
		ctrl.LoggerFrom(ctx).Error(untried, "the API server could not be asked about the Pod's deletion")
		nextLook = soonest.Of(nextLook, untriedLook)
	}
	return ctrl.Result{RequeueAfter: nextLook}, client.IgnoreNotFound(err)
}

// conflict is when to look again at a Pod that is newer than the cache shows.
func (r *reconciler) conflict(ctx context.Context, req ctrl.Request) ctrl.Result {
	ctrl.LoggerFrom(ctx).V(1).Info("the Pod changed meanwhile; the next look decides anew")
	conflicts.Inc()
	return ctrl.Result{RequeueAfter: r.writes.Refused(ctx, r.live, req.NamespacedName)}
}

// gone drops what is remembered of a Pod.
func (r *reconciler) gone(pod types.NamespacedName) {
	r.writes.Forget(pod)
	r.timers.gone(pod)
	r.deletions.forget(pod)
}

// observe reads all that the decision depends on.
func (r *reconciler) observe(ctx context.Context, pod *corev1.Pod) (podphase.Snapshot, error) {
	s := podphase.Snapshot{Pod: podops.Read(pod), Now: r.clock.Now(), Reported: reportedOn(pod)}
	key := client.ObjectKeyFromObject(pod)
	if s.Pod.Terminating {
		r.timers.gone(key)
		r.deletions.forget(key)
		return s, nil
	}
	s.Deletion = r.deletions.of(pod)
	if done := revision.Carried(pod).Finish; done != nil {
		s.Finish = podphase.Finish(*done)
	}
	var err error
	if s.Rules, err = r.rules.in(ctx, pod.Namespace); err != nil {
		return s, err
	}
	if mayAskToGoOut(s.Pod) {
		state, err := r.freeze.Of(ctx, pod.Namespace)
		if err != nil {
			return s, err
		}
		s.Frozen = frozen(r.freeze.Suite, pod.Namespace, state)
	}
	s.Since = r.timers.observe(pod, s.Pod)
	s.MissingSince, s.Employers = r.timers.missing(key)
	s.Patience, s.NotAwaited = r.patience, r.notAwaited
	s.Deadlines = r.deadlines
	if len(s.Since) > 0 {
		own, err := podops.ParseDeadlines(pod.Annotations)
		if err != nil && r.timers.firstComplaint(key, pod.Annotations[podops.DeadlinesAnnotation]) {
			r.events.Eventf(pod, nil, corev1.EventTypeWarning, "InvalidDeadlines", "ReadDeadlines", "%s", err.Error())
		}
		s.Deadlines = own.Over(r.deadlines)
	}
	return s, nil
}

// mayAskToGoOut reports whether this look may find an operation in PreCheck.
func mayAskToGoOut(v podops.View) bool {
	if _, marked := v.Labels[appsv1alpha1.ToDeleteLabel]; marked {
		return true
	}
	return slices.ContainsFunc(podops.Operations(v), func(o podops.Operation) bool {
		return podops.DeadlinePhase(o.Phase) == podops.PhasePreCheck
	})
}

// reportedOn reads the condition that reports operations that take too long.
func reportedOn(pod *corev1.Pod) podphase.Report {
	for _, c := range pod.Status.Conditions {
		if c.Type == podops.OverdueCondition {
			return podphase.Report{Status: c.Status, Reason: c.Reason, Message: c.Message}
		}
	}
	return podphase.Report{}
}

// apply writes the plan: one patch, or one deletion. It returns when to look
// again if nothing happens before; zero for never.
func (r *reconciler) apply(
	ctx context.Context, pod *corev1.Pod, s podphase.Snapshot, plan podphase.Plan,
) (time.Duration, error) {
	r.reportOverdue(pod, s, plan)
	if plan.Delete {
		deleted, err := r.deletePod(ctx, pod, false)
		switch {
		case apierrors.IsNotFound(err): // it is gone, which the cache has yet to show
			r.writes.Deleted(client.ObjectKeyFromObject(pod), pod)
			return 0, nil
		case err != nil:
			return 0, err
		case !deleted:
			return refusedLook, nil
		}
		r.writes.Deleted(client.ObjectKeyFromObject(pod), pod)
		steps.WithLabelValues("Deleted").Inc()
		r.events.Eventf(pod, nil, corev1.EventTypeNormal, "PodDeletion", "Delete",
			"Deleted: out of service, and every rule and cooperator agreed")
		return 0, nil
	}
	if plan.IsZero() {
		again, err := r.repair(ctx, pod, s)
		return soonest.Of(plan.NextLook, again), err
	}
	return plan.NextLook, r.write(ctx, pod, s, plan)
}

// write patches the Pod's status and what metadata goes with it.
func (r *reconciler) write(ctx context.Context, pod *corev1.Pod, s podphase.Snapshot, plan podphase.Plan) error {
	now := metav1.NewTime(r.clock.Now())
	var conditions []corev1.PodCondition
	if report := plan.Report; report != nil {
		c := corev1.PodCondition{Type: podops.OverdueCondition, Status: report.Status, Reason: report.Reason,
			Message: report.Message}
		if report.Status != s.Reported.Status {
			c.LastTransitionTime = now
		}
		conditions = append(conditions, c)
	}
	patched := freshness.PodTarget(pod.Namespace, pod.Name)
	body := plan.Step.StatusPatch(s.Pod, now, conditions...)
	if err := r.client.Status().Patch(ctx, patched, client.RawPatch(types.StrategicMergePatchType, body)); err != nil {
		return fmt.Errorf("advancing pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	r.writes.Wrote(client.ObjectKeyFromObject(pod), patched)
	if !plan.Step.IsZero() {
		steps.WithLabelValues(string(plan.Step.ServiceReady)).Inc()
	}
	if why := plan.Step.Annotations[podops.DeletionRefusedAnnotation]; why != nil {
		refused := string(podops.WaitRefused)
		r.events.Eventf(pod, nil, corev1.EventTypeWarning, refused, "Delete", "%s", podops.ExplainRefusal(*why))
	}
	if plan.Step.ServiceReady == corev1.ConditionFalse {
		r.announce(pod, plan.Step.Apply(s.Pod))
	}
	return nil
}

// repair takes expected finalizers off a Pod whose employers have let it go.
func (r *reconciler) repair(ctx context.Context, pod *corev1.Pod, s podphase.Snapshot) (time.Duration, error) {
	key := client.ObjectKeyFromObject(pod)
	forget, notes, again, err := r.employers.repair(ctx, s.Pod, s.MissingSince, s.Now)
	if err != nil {
		return 0, fmt.Errorf("reading what pod %s expects: %w", key, err)
	}
	if r.timers.note(key, notes) && len(podops.Operations(s.Pod)) > 0 {
		again = time.Millisecond // what is reported may name it
	}
	if forget.IsZero() {
		return again, nil
	}
	patched := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	if err := r.client.Patch(ctx, patched, client.RawPatch(types.MergePatchType, forget.MergePatch(s.Pod))); err != nil {
		return 0, fmt.Errorf("taking expected finalizers off pod %s: %w", key, err)
	}
	r.writes.Wrote(key, patched)
	before, after := podops.MissingEmployers(s.Pod), podops.MissingEmployers(forget.Apply(s.Pod))
	gone := slices.DeleteFunc(before, func(e string) bool { return slices.Contains(after, e) })
	forgotten.Add(float64(len(gone)))
	r.events.Eventf(pod, nil, corev1.EventTypeNormal, "EmployerGone", "Forget",
		"Not waiting any longer for %s: gone, or it does not select the Pod any more", strings.Join(gone, ", "))
	return again, nil
}

// reportOverdue sends one event for each operation that has become late in its phase.
func (r *reconciler) reportOverdue(pod *corev1.Pod, s podphase.Snapshot, plan podphase.Plan) {
	for _, late := range r.timers.overdue(client.ObjectKeyFromObject(pod), plan.Overdue) {
		if s.Reported.Status == corev1.ConditionTrue && strings.Contains(s.Reported.Message, late.Text) {
			continue // by this program before it was restarted
		}
		r.events.Eventf(pod, nil, corev1.EventTypeWarning, "OperationOverdue", string(late.Policy), "%s", late.Text)
	}
}

// announce reports in an event that Pods go out of service, and why: at the workload that has them, where the API
// server counts equal events instead of keeping one for each Pod. The condition ServiceReady of each Pod says the same.
func (r *reconciler) announce(pod *corev1.Pod, v podops.View) {
	o, needed := podops.OfflineFor(v)
	if !needed {
		return
	}
	var about runtime.Object = pod
	if owner := metav1.GetControllerOf(pod); owner != nil {
		about = &corev1.ObjectReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: pod.Namespace,
			Name: owner.Name, UID: owner.UID}
	}
	r.events.Eventf(about, nil, corev1.EventTypeNormal, "OutOfService", "TakeOffline",
		"Pods are taken out of service for operation %q of %q", o.Type, o.ID)
}
