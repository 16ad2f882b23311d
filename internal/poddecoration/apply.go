package poddecoration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/failures"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/poddecoration/decoplan"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/shorten"
	"kusionstack.io/kuperator/internal/soonest"
)

// parallel is how many writes to Pods of one namespace are under way at the same time.
const parallel = 16

// refusal is a write to a Pod that the API server does not take.
type refusal struct {
	why   string
	count int
	again time.Time // when it is tried again
}

// step is a write to a Pod, and what it does, for messages.
type step struct {
	pod  *decoplan.Pod
	does string
	do   func() error
}

// isOld reports whether an error only means that the object has changed or is gone.
func isOld(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || errors.Is(err, errStale)
}

// observeRefusals has the decision leave Pods alone whose writes are refused, until it is time to try again. It returns
// when that is for the first of them, 0 for none.
func (r *reconciler) observeRefusals(v *view, ns *namespace) (again time.Duration) {
	if len(ns.refused) == 0 {
		return 0
	}
	there := map[types.UID]bool{}
	for i := range v.snapshot.Pods {
		p := &v.snapshot.Pods[i]
		there[p.View.UID] = true
		if refused := ns.refused[p.View.UID]; v.snapshot.Now.Before(refused.again) {
			p.Refusal = refused.why
			again = soonest.Of(again, refused.again.Sub(v.snapshot.Now))
		}
	}
	maps.DeleteFunc(ns.refused, func(uid types.UID, _ refusal) bool { return !there[uid] })
	return again
}

// apply carries a plan out: first what is written to Pods, then to decorations. It reports whether a write met an
// object that had changed or was gone.
func (r *reconciler) apply(
	ctx context.Context, v *view, ns *namespace, plan *decoplan.Plan,
) (conflict bool, err error) {
	var steps []step
	for _, p := range plan.Resizes {
		steps = append(steps, step{p, "resizing", func() error { return r.resize(ctx, v, p) }})
	}
	for _, p := range plan.Changes {
		steps = append(steps, step{p, "changing", func() error { return r.change(ctx, v, ns, p) }})
	}
	for i := range plan.Writes {
		w := &plan.Writes[i]
		steps = append(steps, step{w.Pod, w.Does, func() error { return r.write(ctx, v, ns, w) }})
	}
	conflict, err = r.run(ctx, ns, steps)
	for _, d := range v.decorations {
		switch other := r.writeDecoration(ctx, d, plan); {
		case isOld(other):
			ctrl.LoggerFrom(ctx).V(1).Info("a PodDecoration has changed; deciding again", "name", d.Name,
				"answer", other.Error())
			conflict = true
		default:
			err = errors.Join(err, other)
		}
	}
	return conflict, err
}

// run writes to Pods, several at a time.
func (r *reconciler) run(ctx context.Context, ns *namespace, steps []step) (conflict bool, err error) {
	var mu sync.Mutex // of what follows, and of ns.refused
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for _, s := range steps {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			failed := s.do()
			rejection, isRejected := failures.RejectionIn(failed)
			uid := s.pod.View.UID
			mu.Lock()
			defer mu.Unlock()
			switch {
			case failed == nil:
				delete(ns.refused, uid)
			case isRejected:
				count := ns.refused[uid].count + 1
				ns.refused[uid] = refusal{rejection.Why, count, r.clock.Now().Add(failures.AskAgainIn(count))}
			case isOld(failed):
				ctrl.LoggerFrom(ctx).V(1).Info("the Pod changed meanwhile", "pod", s.pod.View.Name, "answer", failed.Error())
				conflict = true
			default:
				err = errors.Join(err, fmt.Errorf("%s Pod %s: %w", s.does, s.pod.View.Name, failed))
			}
		})
	}
	wg.Wait()
	return conflict, err
}

// write changes the metadata of a Pod.
func (r *reconciler) write(ctx context.Context, v *view, ns *namespace, w *decoplan.Write) error {
	if w.Tries {
		if err := r.try(ctx, v, ns, w.Pod); err != nil {
			return err
		}
	}
	target, of := freshness.PodTarget(v.name, w.Pod.View.Name), w.Pod.View
	if err := r.client.Patch(ctx, target, client.RawPatch(types.MergePatchType, w.Change.MergePatch(of))); err != nil {
		return err
	}
	r.writes.Wrote(request(v.name).NamespacedName, target)
	if w.Change.Labels[appsv1alpha1.ToDeleteLabel] != nil {
		updates.WithLabelValues(recreated).Inc()
	}
	return nil
}

// try asks the API server whether it takes a change in place, and its resources.
func (r *reconciler) try(ctx context.Context, v *view, ns *namespace, p *decoplan.Pod) error {
	live, change, err := r.changeOf(ctx, v, ns, p)
	if err != nil {
		return err
	}
	patch := client.RawPatch(types.StrategicMergePatchType, change.Patch(live, "", nil))
	if err := r.client.Patch(ctx, live.DeepCopy(), patch, client.DryRunAll); err != nil {
		return err
	}
	resize := change.ResizeTrial(live)
	if resize == nil {
		return nil
	}
	return r.client.SubResource("resize").Patch(ctx, live.DeepCopy(),
		client.RawPatch(types.StrategicMergePatchType, resize), client.DryRunAll)
}

// changeOf is the Pod as it is now, and the change to what it is to have.
func (r *reconciler) changeOf(
	ctx context.Context, v *view, ns *namespace, p *decoplan.Pod,
) (*corev1.Pod, revision.Change, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(podKind)
	err := r.live.Get(ctx, client.ObjectKey{Namespace: v.name, Name: p.View.Name}, object)
	if err != nil {
		return nil, revision.Change{}, err
	}
	live := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, live); err != nil {
		return nil, revision.Change{}, fmt.Errorf("reading Pod %s: %w", p.View.Name, err)
	}
	w, is := ns.changes[keyOf(live, p)]
	// what was decided on has to be what is changed
	if !is || live.UID != p.View.UID || live.ResourceVersion != p.View.ResourceVersion {
		return nil, revision.Change{}, errStale
	}
	change, err := w.on(object.Object, ns.changesFor)
	return live, change, err
}

// change brings a Pod in place to what it is to have: the Pod first, with the record of what has to follow, and then
// its resources. If the second write does not come about, the record asks for it again.
func (r *reconciler) change(ctx context.Context, v *view, ns *namespace, p *decoplan.Pod) error {
	live, change, err := r.changeOf(ctx, v, ns, p)
	if err != nil {
		return err
	}
	data := change.Patch(live, "", finishedBy(p))
	if err := r.client.Patch(ctx, live, client.RawPatch(types.StrategicMergePatchType, data)); err != nil {
		return err
	}
	r.writes.Wrote(request(v.name).NamespacedName, live)
	updates.WithLabelValues(inPlace).Inc()
	return r.resizeLive(ctx, v, live)
}

// finishedBy is the operation that lifecycle-controller is to finish, nil for a change outside an operation.
func finishedBy(p *decoplan.Pod) *revision.Finish {
	op := podops.OperationOf(p.View, decoplan.OperatorID)
	if op.Phase != podops.PhaseOperate {
		return nil
	}
	return &revision.Finish{ID: op.ID, Type: op.Type, Request: op.Request}
}

// resize gives a Pod the resources of its record.
func (r *reconciler) resize(ctx context.Context, v *view, p *decoplan.Pod) error {
	live := &corev1.Pod{}
	if err := r.live.Get(ctx, client.ObjectKey{Namespace: v.name, Name: p.View.Name}, live); err != nil {
		return err
	}
	if live.UID != p.View.UID {
		return errStale
	}
	return r.resizeLive(ctx, v, live)
}

// resizeLive is resize of a Pod as it was read or written last. That the API server refuses it, for what the Pod or its
// node is, is recorded on the Pod: another Pod may help.
func (r *reconciler) resizeLive(ctx context.Context, v *view, live *corev1.Pod) error {
	data := revision.ResizePatch(live)
	if data == nil {
		return nil
	}
	answer := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: live.Namespace, Name: live.Name}}
	patch := client.RawPatch(types.StrategicMergePatchType, data)
	err := r.client.SubResource("resize").Patch(ctx, answer, patch)
	switch rejection, refused := failures.RejectionIn(err); {
	case refused && !rejection.Quota:
		data = revision.RefusedPatch(live, rejection.Why)
	case err != nil:
		return err
	default:
		r.writes.Wrote(request(v.name).NamespacedName, answer)
		if data = revision.AdmittedPatch(answer); data == nil {
			return nil
		}
	}
	target := freshness.PodTarget(v.name, live.Name)
	if err := r.client.Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, data)); err != nil {
		return err
	}
	r.writes.Wrote(request(v.name).NamespacedName, target)
	return nil
}

// writeDecoration writes to a decoration: its finalizer, or its status.
func (r *reconciler) writeDecoration(ctx context.Context, d *appsv1alpha1.PodDecoration, plan *decoplan.Plan) error {
	written := d.ObjectMeta.DeepCopy()
	switch {
	case slices.Contains(plan.Protect, d.Name):
		var err error
		if written, err = r.writeFinalizer(ctx, d, controllerutil.AddFinalizer); err != nil {
			return err
		}
	case slices.Contains(plan.Release, d.Name):
		_, err := r.writeFinalizer(ctx, d, controllerutil.RemoveFinalizer)
		return err
	}
	if status := plan.Statuses[d.Name]; status != nil {
		next := &appsv1alpha1.PodDecoration{ObjectMeta: *written, Spec: *d.Spec.DeepCopy(), Status: *status.DeepCopy()}
		if err := r.client.Status().Update(ctx, next); err != nil {
			return fmt.Errorf("writing the status of PodDecoration %s: %w", d.Name, err)
		}
		r.writes.Wrote(request(d.Namespace).NamespacedName, next)
		r.report(d, next)
	}
	return nil
}

// writeFinalizer adds our finalizer to a decoration or removes it, and returns its metadata after that.
func (r *reconciler) writeFinalizer(
	ctx context.Context, d *appsv1alpha1.PodDecoration, change func(o client.Object, finalizer string) bool,
) (*metav1.ObjectMeta, error) {
	next := d.DeepCopy()
	change(next, appsv1alpha1.ProtectionFinalizer)
	patch := client.MergeFromWithOptions(d, client.MergeFromWithOptimisticLock{})
	if err := r.client.Patch(ctx, next, patch); err != nil {
		return nil, fmt.Errorf("writing the finalizers of PodDecoration %s: %w", d.Name, err)
	}
	r.writes.Wrote(request(d.Namespace).NamespacedName, next)
	return &next.ObjectMeta, nil
}

// warnings are the reasons of the condition Progressing that a user should look at.
var warnings = map[appsv1alpha1.ConditionReason]bool{
	appsv1alpha1.ReasonInvalidSpec: true, appsv1alpha1.ReasonRolledBack: true, appsv1alpha1.ReasonRolloutHalted: true,
	appsv1alpha1.ReasonBlocked: true, appsv1alpha1.ReasonProgressDeadlineExceeded: true,
}

// report tells in an event of a rollout that begins, ends or stops.
func (r *reconciler) report(before, after *appsv1alpha1.PodDecoration) {
	was := meta.FindStatusCondition(before.Status.Conditions, appsv1alpha1.PodDecorationProgressing)
	is := meta.FindStatusCondition(after.Status.Conditions, appsv1alpha1.PodDecorationProgressing)
	if is == nil || was != nil && was.Reason == is.Reason {
		return
	}
	kind := corev1.EventTypeNormal
	if warnings[appsv1alpha1.ConditionReason(is.Reason)] {
		kind = corev1.EventTypeWarning
	}
	r.events.Eventf(after, nil, kind, is.Reason, "Update", "%s", shorten.Note(is.Message))
}
