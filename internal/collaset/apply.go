package collaset

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/freshness"
)

// parallel is the number of writes of one CollaSet under way at a time.
const parallel = 16

// outcome is what became of a plan.
type outcome struct {
	setplan.Outcome
	created, deleted int
	// creationsHeld is why creations wait, nil if they do not, and creationsIn how long they do.
	creationsHeld error
	creationsIn   time.Duration
	// excluded and included are names of Pods.
	excluded, included []string
	// ended are Pods that were deleted because they had run to their ends.
	ended []*setplan.Pod
	// repaired are Pods that got back by what they are found.
	repaired []setplan.Repair
	conflict bool
	// replacements are the Pods whose replacement was begun, done or cancelled.
	replacements map[setplan.ReplacementEvent][]string
}

func (o *outcome) err() error { return errors.Join(o.ScaleOut, o.ScaleIn, o.Update, o.Reclaim) }

// applier carries out a plan.
type applier struct {
	claimWriter
	entries entryWriter
	window  *window
}

// apply walks the plan: Pods that are out of service first, then entries, deletions and creations, then what is newly
// begun. An action that fails stops none of the others, except that creations stop at the first failure.
func (a applier) apply(ctx context.Context, o *observation, plan *setplan.Plan) *outcome {
	out := &outcome{Outcome: setplan.Outcome{Collisions: o.history.collisions},
		replacements: map[setplan.ReplacementEvent][]string{}}
	steps, members := podStepper{trials{a.server}, a.window}, memberWriter{a.claimWriter}
	var depth, breadth []action
	for _, pod := range plan.Finishes {
		depth = append(depth, action{name: "finish", into: &out.Update,
			do: func() error { return steps.finish(ctx, o, pod) }})
	}
	for _, c := range plan.Changes {
		depth = append(depth, action{name: "change", into: &out.Update, do: func() error { return steps.change(ctx, o, c) }})
	}
	for _, pod := range plan.Resizes {
		depth = append(depth, action{name: "resize", into: &out.Update,
			do: func() error { return steps.resize(ctx, o, pod, pod.Form(), o.pod(pod.Name())) }})
	}
	for _, pod := range plan.Cancels {
		depth = append(depth, action{name: "cancel", into: &out.Update,
			do: func() error { return steps.cancel(ctx, o, pod) }})
	}
	out.conflict = run(ctx, depth) || out.conflict
	if members.exclude(ctx, o, plan, out) && a.entries.store(ctx, o, plan, out) {
		members.include(ctx, o, plan, out)
		a.deletePods(ctx, o, plan, out)
		a.createPods(ctx, o, plan, out)
		members.repair(ctx, o, plan, out) // what is refused is no reason not to create others
	}
	a.applyClaims(ctx, o, plan, out)
	for _, b := range plan.Begins {
		into := &out.Update
		if b.Request.Type == podops.TypeScaleIn {
			into = &out.ScaleIn
		}
		breadth = append(breadth, action{name: "begin", into: into, do: func() error { return steps.begin(ctx, o, b) }})
	}
	for _, pod := range plan.Marks {
		breadth = append(breadth, action{name: "mark", into: &out.ScaleIn,
			do: func() error { return steps.mark(ctx, o, pod) }})
	}
	for _, l := range plan.Labels {
		breadth = append(breadth, action{name: "relabel", into: &out.Update,
			do: func() error { return steps.relabel(ctx, o, l) },
			done: func(err error) {
				if err == nil && l.Event != "" {
					out.replacements[l.Event] = append(out.replacements[l.Event], l.Pod.Name())
				}
			}})
	}
	out.conflict = run(ctx, breadth) || out.conflict
	if !plan.Names.IsZero() {
		names := []action{{name: "names", into: &out.ScaleIn, do: func() error { return a.removeNames(ctx, o, plan.Names) }}}
		out.conflict = run(ctx, names) || out.conflict
	}
	return out
}

// The names of actions that make what is not there yet.
const (
	actionCreate      = "create"
	actionCreateClaim = "create-claim"
)

// action is one write, its name in metrics, and where its failure goes.
type action struct {
	name string
	into *error
	do   func() error
	// done, unless nil, is told what do returned. No two run at a time.
	done func(err error)
}

// oldView reports whether an answer means only that the object has changed or is gone. NotFound for a creation is a
// failure: it is about something that the object needs.
func oldView(action string, err error) bool {
	return apierrors.IsConflict(err) ||
		(apierrors.IsNotFound(err) && action != actionCreate && action != actionCreateClaim)
}

// run does writes in parallel and reports whether any met a conflict. A Pod that is gone is no failure.
func run(ctx context.Context, actions []action) (conflict bool) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for _, a := range actions {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			err := a.do()
			countAction(a.name, err)
			mu.Lock()
			defer mu.Unlock()
			if a.done != nil {
				a.done(err)
			}
			switch {
			case err == nil:
			case errors.Is(err, errAttempted): // its event leads to the next decision, or its failure does: see once
			case oldView(a.name, err), errors.Is(err, errNotTaken), errors.Is(err, errStale):
				conflict = true
				log.FromContext(ctx).V(1).Info("the view was old", "action", a.name, "answer", err.Error())
			default:
				*a.into = errors.Join(*a.into, err)
			}
		})
	}
	wg.Wait()
	return conflict
}

// patch writes to one Pod and remembers that it did. The answer is metadata only.
func (s *server) patch(ctx context.Context, o *observation, pod *setplan.Pod, kind types.PatchType, data []byte) error {
	_, err := s.patchMeta(ctx, o, pod, kind, data)
	return err
}

// patchMeta is patch, with the answer.
func (s *server) patchMeta(
	ctx context.Context, o *observation, pod *setplan.Pod, kind types.PatchType, data []byte,
) (*metav1.PartialObjectMetadata, error) {
	// a patch that was decided on before a client applied is refused for its resourceVersion
	if s.clearFields && !pod.Applied {
		var err error
		if data, err = clearFields(data); err != nil {
			return nil, err
		}
	}
	target := freshness.PodTarget(o.set.Namespace, pod.Name())
	if err := s.client.Patch(ctx, target, client.RawPatch(kind, data)); err != nil {
		return nil, err
	}
	s.wrote(o, target)
	return target, nil
}

// wrote remembers a write to a Pod.
func (s *server) wrote(o *observation, pod client.Object) {
	if !o.single {
		s.writes.Wrote(client.ObjectKeyFromObject(o.set), pod)
	}
}

// podStepper makes the steps of Pods: what begins an operation, carries it out and ends it.
type podStepper struct {
	trials
	window *window
}

// begin asks for an operation; for an update once the window has chosen the Pod.
func (s podStepper) begin(ctx context.Context, o *observation, b setplan.Begin) error {
	change, err := podops.Begin(b.Pod.View, b.Request, s.clock.Now())
	if err != nil || change.IsZero() {
		return err
	}
	if b.Request.Type != podops.TypeUpdate {
		return s.request(ctx, o, b, change)
	}
	begun := change.Apply(b.Pod.View)
	return s.window.once(o, b.Pod, &begun, func() error { return s.request(ctx, o, b, change) })
}

// request writes what begins an operation.
func (s podStepper) request(ctx context.Context, o *observation, b setplan.Begin, change podops.Change) error {
	if err := s.patch(ctx, o, b.Pod, types.MergePatchType, change.MergePatch(b.Pod.View)); err != nil {
		return fmt.Errorf("beginning %s of Pod %s: %w", b.Request.Type, b.Pod.Name(), err)
	}
	return nil
}

// finish marks a change as carried out, and drops what was kept for it, in one write.
func (s podStepper) finish(ctx context.Context, o *observation, pod *setplan.Pod) error {
	var change podops.Change
	if o.snapshot.Protocol {
		change = podops.Finish(pod.View, setplan.OperatorID, podops.TypeUpdate, s.clock.Now())
	}
	forget(&change, pod)
	err := s.window.once(o, pod, nil, func() error {
		return s.patch(ctx, o, pod, types.MergePatchType, change.MergePatch(pod.View))
	})
	if err != nil {
		return fmt.Errorf("finishing the update of Pod %s: %w", pod.Name(), err)
	}
	return nil
}

// forget removes what was kept on the Pod for its update.
func forget(change *podops.Change, pod *setplan.Pod) {
	if pod.Recorded {
		change.Annotations = map[string]*string{appsv1alpha1.LastPodStatusAnnotation: nil}
	}
	if pod.Included {
		if change.Labels == nil {
			change.Labels = map[string]*string{}
		}
		change.Labels[appsv1alpha1.UpdateIncludedLabel] = nil
	}
}

func (s podStepper) cancel(ctx context.Context, o *observation, pod *setplan.Pod) error {
	change := podops.Cancel(pod.View, setplan.OperatorID, s.clock.Now())
	if change.IsZero() {
		return nil
	}
	if err := s.patch(ctx, o, pod, types.MergePatchType, change.MergePatch(pod.View)); err != nil {
		return fmt.Errorf("cancelling the operation on Pod %s: %w", pod.Name(), err)
	}
	return nil
}

// mark hands a Pod to lifecycle-controller for deletion. The value never changes, so the write is not repeated.
func (s podStepper) mark(ctx context.Context, o *observation, pod *setplan.Pod) error {
	value := "true"
	change := podops.Change{Labels: map[string]*string{appsv1alpha1.ToDeleteLabel: &value}}
	if err := s.patch(ctx, o, pod, types.MergePatchType, change.MergePatch(pod.View)); err != nil {
		return fmt.Errorf("marking Pod %s for deletion: %w", pod.Name(), err)
	}
	return nil
}

// relabel has the labels of a Pod report its replacement.
func (s podStepper) relabel(ctx context.Context, o *observation, l setplan.Relabel) error {
	if err := s.patch(ctx, o, l.Pod, types.MergePatchType, l.Change.MergePatch(l.Pod.View)); err != nil {
		return fmt.Errorf("labelling Pod %s: %w", l.Pod.Name(), err)
	}
	return nil
}

func (a applier) deletePods(ctx context.Context, o *observation, plan *setplan.Plan, out *outcome) {
	actions := make([]action, 0, len(plan.Deletions))
	for _, d := range plan.Deletions {
		into := &out.ScaleIn
		switch d.Reason {
		case setplan.DeleteRecreate, setplan.DeleteReplaced:
			into = &out.Update
		case setplan.DeleteReclaim:
			into = &out.Reclaim
		case setplan.DeleteScaleIn, setplan.DeleteTerminal, setplan.DeleteNamed:
		}
		remove := func() error {
			pod := d.Pod.View
			object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: o.set.Namespace, Name: pod.Name, UID: pod.UID}}
			err := a.client.Delete(ctx, object, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
			if d.Reason == setplan.DeleteRecreate || d.Reason == setplan.DeleteScaleIn || d.Reason == setplan.DeleteReplaced {
				err = trials{a.server}.took(ctx, o, setplan.Trial{Write: setplan.TrialDelete}, err)
			}
			if err != nil {
				return fmt.Errorf("deleting Pod %s: %w", pod.Name, err)
			}
			a.writes.Deleted(client.ObjectKeyFromObject(o.set), object)
			return nil
		}
		actions = append(actions, action{name: "delete", into: into, do: remove, done: func(err error) {
			if err != nil {
				return
			}
			out.deleted++
			if d.Reason == setplan.DeleteTerminal {
				out.ended = append(out.ended, d.Pod)
			}
		}})
	}
	out.conflict = run(ctx, actions) || out.conflict
}

// entryWriter writes the ResourceContext.
type entryWriter struct {
	*server
	pools *pools
}

// store writes the ResourceContext if the plan has it written, and reports whether what depends on it may follow.
func (w entryWriter) store(ctx context.Context, o *observation, plan *setplan.Plan, out *outcome) bool {
	if !plan.EntriesChanged {
		return true
	}
	err := w.storeEntries(ctx, o, plan.Entries)
	countAction("store", err)
	switch {
	case err == nil:
		return true
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		out.conflict = true
	default:
		out.ScaleOut = errors.Join(out.ScaleOut, err)
	}
	return !plan.EntriesFirst
}

// storeEntries replaces the entries of the ResourceContext, creating or deleting it as needed.
func (w entryWriter) storeEntries(ctx context.Context, o *observation, entries []setplan.Entry) error {
	if o.context == nil && len(entries) == 0 {
		return nil
	}
	key := types.NamespacedName{Namespace: o.set.Namespace, Name: contextName(o.set)}
	err := w.pools.of(key).write(o.context,
		func() (string, error) { return w.newestEntries(ctx, key) },
		func() (*appsv1alpha1.ResourceContext, error) { return w.writeEntries(ctx, o, key, entries) })
	if len(entries) == 0 && client.IgnoreNotFound(err) == nil { // it is gone
		w.pools.forget(key)
	}
	return err
}

// writeEntries returns the ResourceContext as it is then, nil if it is deleted.
func (w entryWriter) writeEntries(
	ctx context.Context, o *observation, key types.NamespacedName, entries []setplan.Entry,
) (*appsv1alpha1.ResourceContext, error) {
	owner := client.ObjectKeyFromObject(o.set)
	details := make([]appsv1alpha1.ContextDetail, len(entries))
	for i, e := range entries {
		details[i] = appsv1alpha1.ContextDetail{ID: e.ID, Data: e.Data}
	}
	switch {
	case o.context == nil:
		rc := &appsv1alpha1.ResourceContext{
			ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
			Spec:       appsv1alpha1.ResourceContextSpec{Contexts: details},
		}
		if err := w.client.Create(ctx, rc); err != nil {
			return nil, fmt.Errorf("creating the ResourceContext: %w", err)
		}
		o.context = rc
		w.writes.Created(owner, rc)
	case len(entries) == 0:
		err := w.client.Delete(ctx, o.context.DeepCopy(),
			client.Preconditions{UID: &o.context.UID, ResourceVersion: &o.context.ResourceVersion})
		if err != nil {
			return nil, fmt.Errorf("deleting the empty ResourceContext: %w", err)
		}
		w.writes.Deleted(owner, o.context)
		return nil, nil
	default:
		rc := o.context.DeepCopy()
		rc.Spec.Contexts = details
		if err := w.client.Update(ctx, rc); err != nil {
			return nil, fmt.Errorf("writing the ResourceContext: %w", err)
		}
		o.context = rc
		w.writes.Wrote(owner, rc)
	}
	return o.context, nil
}

// release frees the ResourceContext of a deleted CollaSet whose Pods are gone, and lets it go. It makes sure of that at
// the API server: a cache that lags must not orphan a Pod.
func (a applier) release(ctx context.Context, o *observation) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(o.set, appsv1alpha1.CollaSetFinalizer) {
		return ctrl.Result{}, nil
	}
	left := &metav1.PartialObjectMetadataList{}
	left.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	err := a.live.List(ctx, left, client.InNamespace(o.set.Namespace),
		client.MatchingLabels{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue})
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("making sure that all Pods are gone: %w", err)
	}
	for i := range left.Items {
		if metav1.IsControlledBy(&left.Items[i], o.set) {
			return ctrl.Result{}, errStale
		}
	}
	if o.context != nil {
		var others []setplan.Entry
		for _, e := range o.snapshot.Entries {
			if owner := e.Data[appsv1alpha1.ContextOwner]; owner != o.set.Name && owner != "" {
				others = append(others, e)
			}
		}
		if len(others) < len(o.snapshot.Entries) || len(others) == 0 {
			if err := client.IgnoreNotFound(a.entries.storeEntries(ctx, o, others)); err != nil {
				return ctrl.Result{}, err
			}
		}
	}
	if err := a.releaseClaims(ctx, o); err != nil {
		return ctrl.Result{}, err
	}
	changed := o.set.DeepCopy()
	controllerutil.RemoveFinalizer(changed, appsv1alpha1.CollaSetFinalizer)
	if err := a.client.Patch(ctx, changed, optimisticPatch(o.set)); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("removing the finalizer: %w", err)
	}
	return ctrl.Result{}, nil
}
