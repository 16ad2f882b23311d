package operationjob

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/failures"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/operationjob/jobplan"
	"kusionstack.io/kuperator/internal/shorten"
)

// parallel is how many writes to Pods of one job are under way at the same time.
const parallel = 16

// refusal is a write to a Pod that the API server does not take.
type refusal struct {
	why string
	// since is when the first of several was refused, again when it is tried again.
	since, again time.Time
}

// apply carries a plan out, and reports whether a write met an object that had changed or was gone.
func (r *reconciler) apply(
	ctx context.Context, job *appsv1alpha1.OperationJob, known *jobState, plan *jobplan.Plan,
) (conflict bool, err error) {
	conflict, err = r.writePods(ctx, job, known, plan.Writes)
	switch other := r.writeJob(ctx, job, plan); {
	case isOld(other):
		ctrl.LoggerFrom(ctx).V(1).Info("the job has changed; deciding again", "answer", other.Error())
		conflict = true
	default:
		err = errors.Join(err, other)
	}
	return conflict, err
}

// isOld reports whether an error only means that the object has changed or is gone.
func isOld(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }

// writePods writes to Pods, several at a time.
func (r *reconciler) writePods(
	ctx context.Context, job *appsv1alpha1.OperationJob, known *jobState, writes []jobplan.Write,
) (conflict bool, err error) {
	now := r.clock.Now()
	var mu sync.Mutex // of what follows, and of known
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for i := range writes {
		w := &writes[i]
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			failed := r.writePod(ctx, job, w)
			rejection, isRejected := failures.RejectionIn(failed)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case failed == nil:
				delete(known.refused, w.Pod.View.UID)
			case w.Evict && apierrors.IsTooManyRequests(failed), isRejected:
				why := rejection.Why
				if why == "" {
					why = failures.Text(failed)
				}
				since := known.refused[w.Pod.View.UID].since
				if since.IsZero() {
					since = now
				}
				if known.refused == nil {
					known.refused = map[types.UID]refusal{}
				}
				known.refused[w.Pod.View.UID] = refusal{why, since, now.Add(jobplan.RefusedAgain)}
			case isOld(failed):
				ctrl.LoggerFrom(ctx).V(1).Info("the Pod changed meanwhile", "pod", w.Pod.View.Name, "answer", failed.Error())
				conflict = true
			default:
				err = errors.Join(err, fmt.Errorf("%s Pod %s: %w", w.Does, w.Pod.View.Name, failed))
			}
		})
	}
	wg.Wait()
	return conflict, err
}

// writePod writes to one Pod.
func (r *reconciler) writePod(ctx context.Context, job *appsv1alpha1.OperationJob, w *jobplan.Write) error {
	v := w.Pod.View
	if w.Evict {
		return r.evict(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: v.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
				UID: &v.UID, ResourceVersion: &v.ResourceVersion,
			}},
		})
	}
	if len(w.Trial) > 0 {
		if err := r.try(ctx, w); err != nil {
			return err
		}
	}
	kind, body := types.MergePatchType, w.Change.MergePatch(v)
	if len(w.Images) > 0 {
		kind = types.StrategicMergePatchType
		var err error
		if body, err = withImages(body, w.Pod, w.Images); err != nil {
			return err
		}
	}
	patched := freshness.PodTarget(v.Namespace, v.Name)
	if err := r.client.Patch(ctx, patched, client.RawPatch(kind, body)); err != nil {
		return err
	}
	if w.Pod.Managed { // others are in no cache that could show it
		r.writes.Wrote(client.ObjectKeyFromObject(job), patched)
	}
	return nil
}

// try asks the API server by a dry run whether it takes images, and whether they are others then: admission may change
// them back.
func (r *reconciler) try(ctx context.Context, w *jobplan.Write) error {
	v := w.Pod.View
	body, err := withImages(podops.Change{}.MergePatch(v), w.Pod, w.Trial)
	if err != nil {
		return err
	}
	admitted := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: v.Name}}
	patch := client.RawPatch(types.StrategicMergePatchType, body)
	if err := r.client.Patch(ctx, admitted, patch, client.DryRunAll); err != nil {
		return err
	}
	for _, c := range jobplan.Read(admitted).Containers {
		before := w.Pod.Container(c.Name)
		if w.Trial[c.Name] != "" && before != nil && c.Image == before.Image {
			return apierrors.NewForbidden(corev1.Resource("pods"), v.Name, fmt.Errorf(
				"admission sets the image of container %s back to %s, so it would not restart", c.Name, c.Image))
		}
	}
	return nil
}

// withImages adds images of containers to a patch. In a strategic merge patch containers are known by their names.
func withImages(body []byte, pod *jobplan.Pod, images map[string]string) ([]byte, error) {
	patch := map[string]any{}
	if err := json.Unmarshal(body, &patch); err != nil {
		return nil, err
	}
	spec := map[string][]map[string]string{}
	for i := range pod.Containers {
		c, field := &pod.Containers[i], "containers"
		if c.Sidecar {
			field = "initContainers"
		}
		if image := images[c.Name]; image != "" {
			spec[field] = append(spec[field], map[string]string{"name": c.Name, "image": image})
		}
	}
	patch["spec"] = spec
	return json.Marshal(patch)
}

// writeJob writes to the job itself.
func (r *reconciler) writeJob(ctx context.Context, job *appsv1alpha1.OperationJob, plan *jobplan.Plan) error {
	key := client.ObjectKeyFromObject(job)
	switch {
	case plan.Protect:
		return r.writeFinalizer(ctx, job, controllerutil.AddFinalizer)
	case plan.Release:
		return r.writeFinalizer(ctx, job, controllerutil.RemoveFinalizer)
	case plan.Delete:
		err := r.client.Delete(ctx, job, client.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion},
			client.PropagationPolicy(metav1.DeletePropagationBackground))
		if err == nil {
			r.writes.Deleted(key, job)
		}
		return err
	case plan.Status != nil:
		next := &appsv1alpha1.OperationJob{ObjectMeta: *job.ObjectMeta.DeepCopy(), Spec: *job.Spec.DeepCopy(),
			Status: *plan.Status}
		if err := r.client.Status().Update(ctx, next); err != nil {
			return fmt.Errorf("writing the status of OperationJob %s: %w", key, err)
		}
		r.writes.Wrote(key, next)
		r.report(job, next, plan.Ended)
	}
	return nil
}

// writeFinalizer adds our finalizer to the job or removes it.
func (r *reconciler) writeFinalizer(
	ctx context.Context, job *appsv1alpha1.OperationJob, change func(o client.Object, finalizer string) bool,
) error {
	next := job.DeepCopy()
	change(next, appsv1alpha1.ProtectionFinalizer)
	patch := client.MergeFromWithOptions(job, client.MergeFromWithOptimisticLock{})
	if err := r.client.Patch(ctx, next, patch); err != nil {
		return fmt.Errorf("writing the finalizers of OperationJob %s: %w", job.Name, err)
	}
	r.writes.Wrote(client.ObjectKeyFromObject(job), next)
	return nil
}

// maxNamed is how many targets an event names.
const maxNamed = 5

// report counts the targets that have ended with a status, and reports in events: one about those that failed, one
// about the end of the job.
func (r *reconciler) report(before, after *appsv1alpha1.OperationJob, ended []int) {
	var failed []string
	action := metricAction(after.Spec.Action)
	for _, i := range ended {
		d := &after.Status.TargetDetails[i]
		targets.WithLabelValues(action, string(d.Progress)).Inc()
		if d.StartTime != nil {
			targetSeconds.WithLabelValues(action).Observe(d.EndTime.Sub(d.StartTime.Time).Seconds())
		}
		if d.Progress == appsv1alpha1.OperationProgressFailed {
			failed = append(failed, fmt.Sprintf("%s (%s: %s)", d.Name, d.Error.Reason, d.Error.Message))
		}
	}
	if len(failed) > 0 {
		named := strings.Join(failed[:min(len(failed), maxNamed)], "; ")
		if more := len(failed) - maxNamed; more > 0 {
			named += fmt.Sprintf("; and %d more", more)
		}
		r.events.Eventf(after, nil, corev1.EventTypeWarning, "TargetFailed", string(after.Spec.Action), "%s",
			shorten.Note(named))
	}
	if progress := after.Status.Progress; progress != before.Status.Progress && after.Status.EndTime != nil {
		kind := corev1.EventTypeNormal
		if progress == appsv1alpha1.OperationProgressFailed {
			kind = corev1.EventTypeWarning
		}
		r.events.Eventf(after, nil, kind, string(progress), string(after.Spec.Action),
			"%d of %d targets succeeded, %d failed", after.Status.SucceededPodCount, after.Status.TotalPodCount,
			after.Status.FailedPodCount)
	}
}
