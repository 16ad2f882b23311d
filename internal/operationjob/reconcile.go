package operationjob

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/operationjob/jobplan"
	"kusionstack.io/kuperator/internal/remembered"
	"kusionstack.io/kuperator/internal/soonest"
)

const (
	// interval is the least time between two decisions about a job, or perTarget for each of its targets if that is more:
	// one decision serves many events of its Pods, and may write the status of all targets. The first event after that is
	// served at once.
	interval  = 200 * time.Millisecond
	perTarget = time.Millisecond
	// pollInterval is how often Pods are looked at that are not managed: no event tells of them.
	pollInterval = 5 * time.Second
)

type reconciler struct {
	client client.Client
	live   client.Reader // past the cache
	// evict evicts a Pod. It does not repeat by itself what is refused.
	evict  func(context.Context, *policyv1.Eviction) error
	writes *freshness.Tracker
	events events.EventRecorder
	clock  clock.PassiveClock
	jobs   remembered.Map[jobState]
}

// jobState is what is remembered of a job between two decisions. Losing it costs a write that is refused again.
type jobState struct {
	next time.Time // when the next decision may be made
	// fresh is whether the cache was seen to show the job as it is, and no write of it since has an unknown outcome.
	fresh bool
	// refused are writes to Pods that the API server does not take, by the Pod's UID.
	refused map[types.UID]refusal
}

// Reconcile decides on one job.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if known := r.jobs.Find(req.NamespacedName, ""); known != nil && known.next.After(r.clock.Now()) {
		return ctrl.Result{RequeueAfter: known.next.Sub(r.clock.Now())}, nil
	}
	if wait, err := r.writes.Unobserved(ctx, req.NamespacedName); err != nil || wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, err
	}
	job := &appsv1alpha1.OperationJob{}
	if err := r.client.Get(ctx, req.NamespacedName, job); err != nil {
		if apierrors.IsNotFound(err) {
			r.writes.Forget(req.NamespacedName)
			r.jobs.Forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	known := r.jobs.Of(req.NamespacedName, job.UID)
	if isFresh, err := r.isFresh(ctx, job, known); err != nil || !isFresh {
		return ctrl.Result{RequeueAfter: freshness.LookAgain}, err
	}
	snapshot, err := r.observe(ctx, job, known)
	if err != nil {
		return ctrl.Result{}, err
	}
	plan := jobplan.Decide(&snapshot)
	allWatched := true
	for len(plan.Confirm) > 0 {
		isWatched, err := r.confirm(ctx, &snapshot, plan.Confirm)
		if err != nil {
			return ctrl.Result{}, err
		}
		allWatched = allWatched && isWatched
		plan = jobplan.Decide(&snapshot)
	}
	conflict, err := r.apply(ctx, job, known, &plan)
	if err != nil { // backs off by itself
		known.fresh = false
		return ctrl.Result{}, err
	}
	if !plan.More {
		known.next = r.clock.Now().Add(max(interval, time.Duration(len(job.Status.TargetDetails))*perTarget))
	}
	if conflict {
		conflicts.Inc()
		return ctrl.Result{RequeueAfter: max(interval, r.writes.Conflicts.Met(req.NamespacedName))}, nil
	}
	r.writes.Conflicts.None(req.NamespacedName)
	next := plan.NextLook
	if !allWatched {
		next = soonest.Of(next, pollInterval)
	}
	return ctrl.Result{RequeueAfter: next}, nil
}

// isFresh reports whether the cache shows the job as it is. No precondition of a write to a Pod protects a decision on
// an older one: the leader before may have released the Pod since, and let the job go. One look for each job is enough,
// for this process makes all writes of its status after that.
func (r *reconciler) isFresh(ctx context.Context, job *appsv1alpha1.OperationJob, known *jobState) (bool, error) {
	if known.fresh {
		return true, nil
	}
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.OperationJobKind))
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(job), now); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	known.fresh = now.UID == job.UID && now.ResourceVersion == job.ResourceVersion
	return known.fresh, nil
}

// observe reads what a decision needs.
func (r *reconciler) observe(
	ctx context.Context, job *appsv1alpha1.OperationJob, known *jobState,
) (jobplan.Snapshot, error) {
	s := jobplan.Snapshot{Job: job, Now: r.clock.Now(), Targets: make([]jobplan.Target, len(job.Status.TargetDetails))}
	if job.Spec.TargetSelector != nil && job.Status.StartTime == nil && job.DeletionTimestamp == nil {
		var err error
		if s.Selected, s.Invalid, err = selectPods(ctx, r.live, job); err != nil {
			return s, err
		}
	}
	for _, i := range jobplan.TargetsToRead(job) {
		var target jobplan.Target
		var err error
		if target.Pod, err = readPod(ctx, r.client, job.Namespace, job.Status.TargetDetails[i].Name); err != nil {
			return s, err
		}
		if target.Successor, err = r.successor(ctx, job, i, false); err != nil {
			return s, err
		}
		if target.Pod != nil {
			refused := known.refused[target.Pod.View.UID]
			target.Refused, target.RefusedSince, target.PutOff = refused.why, refused.since, s.Now.Before(refused.again)
		}
		s.Targets[i] = target
	}
	return s, nil
}

// readPod reads a Pod, nil if there is none.
func readPod(ctx context.Context, from client.Reader, namespace, name string) (*jobplan.Pod, error) {
	pod := &corev1.Pod{}
	if len(validation.IsDNS1123Subdomain(name)) > 0 { // no Pod can have it, and no request either
		return nil, nil
	}
	switch err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading Pod %s: %w", name, err)
	}
	return jobplan.Read(pod), nil
}

// successor reads the Pod that takes the place of a target, nil if there is none.
func (r *reconciler) successor(
	ctx context.Context, job *appsv1alpha1.OperationJob, i int, live bool,
) (*jobplan.Pod, error) {
	op := job.Status.TargetDetails[i].Operation
	if op == nil || op.InstanceID == "" {
		return nil, nil
	}
	var from client.Reader = r.client
	var of client.ListOption = client.MatchingFields{instanceIndex: instanceKey(string(op.CollaSet), op.InstanceID)}
	if live {
		from, of = r.live, client.MatchingLabels{appsv1alpha1.InstanceIDLabel: op.InstanceID}
	}
	var list corev1.PodList
	if err := from.List(ctx, &list, client.InNamespace(job.Namespace), client.UnsafeDisableDeepCopy, of); err != nil {
		return nil, fmt.Errorf("looking for the Pod of instance ID %s: %w", op.InstanceID, err)
	}
	for i := range list.Items {
		pod := jobplan.Read(&list.Items[i])
		if pod.CollaSet == op.CollaSet && pod.View.UID != op.PodUID && !pod.View.Terminating {
			return pod, nil
		}
	}
	return nil, nil
}

// isReleasing reports whether nothing more is to become of a target than that its Pod is released.
func isReleasing(job *appsv1alpha1.OperationJob, i int) bool {
	op := job.Status.TargetDetails[i].Operation
	return job.DeletionTimestamp != nil || op != nil && op.Stage == appsv1alpha1.OpsStageReleasing
}

// confirm reads targets past the cache. It reports whether events tell of all of their Pods.
func (r *reconciler) confirm(ctx context.Context, s *jobplan.Snapshot, targets []int) (isWatched bool, err error) {
	isWatched = true
	for _, i := range targets {
		t := &s.Targets[i]
		if t.Pod, err = readPod(ctx, r.live, s.Job.Namespace, s.Job.Status.TargetDetails[i].Name); err != nil {
			return false, err
		}
		if !isReleasing(s.Job, i) {
			if t.Successor, err = r.successor(ctx, s.Job, i, true); err != nil {
				return false, err
			}
		}
		t.Live = true
		isWatched = isWatched && (t.Pod == nil || t.Pod.Managed)
	}
	return isWatched, nil
}
