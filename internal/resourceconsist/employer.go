package resourceconsist

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/livelist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/soonest"
)

// employerController looks after the employers themselves: it holds those that have a Mover or Provisioner by the
// clean-up finalizer, makes their own resources, lets them go when their last Pod is released, and records how their
// backends stand. Employers that are only observed need no finalizer: their Pods name them, and are released when they
// are gone.
type employerController struct {
	client   client.Client
	live     client.Reader
	recorder events.EventRecorder
	clock    clock.PassiveClock
	kind     string
	adapters []backend.Backend
	writes   *freshness.Tracker
	// pods is the controller that shares the index of employers.
	pods              *podController
	backendConditions *backendConditions
	// recordedConditions are of recordedCondition, by the employer's UID, so that each change is recorded once. What was
	// written can be read again.
	recordedConditions *lru.Cache
	// told holds the annotation of drain seconds that was reported as invalid, by the employer's UID.
	told *lru.Cache
}

const (
	// uncachedRecheck is how soon to look again at an employer that is on its way out of the cache or back into it.
	uncachedRecheck = time.Second
	// cleanPoll is how soon to ask again whether a backend holds members of an employer that has no Pod left.
	cleanPoll = 250 * time.Millisecond
	// mostRecorded and mostTold bound the memory of employers.
	mostRecorded = 10_000
	mostTold     = 1000
	// pageSize is how many objects a live list asks for at a time.
	pageSize = 500
)

// newEmployerController takes what shows it its own writes.
func newEmployerController(pods *podController, cached client.Reader) *employerController {
	return &employerController{
		writes: freshness.New(cached, pods.clock),
		client: pods.client, live: pods.live, recorder: pods.recorder, clock: pods.clock, kind: pods.kind,
		adapters: pods.adapters,
		pods:     pods, backendConditions: pods.backendConditions,
		recordedConditions: lru.New(mostRecorded), told: lru.New(mostTold),
	}
}

func addEmployerController(mgr manager.Manager, pods *podController) error {
	r := newEmployerController(pods, mgr.GetCache())
	name := "resourceconsist-" + strings.ToLower(pods.kind) + "-employers"
	err := backend.AddController(mgr, name, controller.Options{
		Reconciler: r, MaxConcurrentReconciles: pods.options.Concurrency, RateLimiter: rateLimiter(pods.options),
	},
		source.Kind(mgr.GetCache(), backend.New(pods.example), handler.EventHandler(&handler.EnqueueRequestForObject{}),
			predicate.NewPredicateFuncs(r.due)),
		source.Kind(mgr.GetCache(), client.Object(&corev1.Pod{}), r.podEvents()),
		pods.employerQueue,
	)
	if err != nil {
		return err
	}
	if !pods.holdsEmployers() {
		return nil
	}
	return mgr.Add(manager.RunnableFunc(r.findLeftBehind))
}

// due reports whether there may be something to do for an employer in the cache.
func (r *employerController) due(o client.Object) bool {
	_, drainErr := api.DrainTime(o, 0)
	existing := conditionOn(o)
	return drainErr != nil || r.pods.holdsEmployers() || len(cleanFinalizers(o)) > 0 ||
		existing != nil && existing.Status != metav1.ConditionTrue
}

// podEvents enqueues employers that take no part any more when a Pod stops naming them.
func (r *employerController) podEvents() handler.EventHandler {
	released := func(before []string, after []string, q queue) {
		for _, key := range before {
			name, ok := keyOf(r.kind, key)
			if !ok || slices.Contains(after, key) {
				continue
			}
			if e := r.pods.employers.get(name); e != nil && !e.takesPart() {
				q.Add(reconcile.Request{NamespacedName: name})
			}
		}
	}
	return handler.Funcs{
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			released(expectedKeys(r.kind, e.ObjectOld), expectedKeys(r.kind, e.ObjectNew), q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			released(expectedKeys(r.kind, e.Object), nil, q)
		},
	}
}

// Reconcile does what is due for one employer, and says once what its owner has to mend.
func (r *employerController) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	// before the employer is read: the cache may catch up in between
	wait, err := r.writes.Unobserved(ctx, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	object, e, err := r.read(ctx, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if e == nil {
		r.writes.Forget(req.NamespacedName)
		return reconcile.Result{}, nil
	}
	// an old view only asks for what was already written; one that is not in the cache was read live
	if wait > 0 && !e.uncached {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	r.report(object)
	wait, reconcileErr := r.reconcileEmployer(ctx, object, e)
	later, recordErr := r.record(ctx, object)
	err = errors.Join(reconcileErr, recordErr)
	if apierrors.IsConflict(reconcileErr) && recordErr == nil || apierrors.IsConflict(recordErr) && reconcileErr == nil {
		return reconcile.Result{RequeueAfter: r.writes.Conflicts.Met(req.NamespacedName)}, nil
	}
	r.writes.Conflicts.None(req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: soonest.Of(wait, later)}, nil
}

// read returns the employer from the cache, or live if it has left the cache and may still be needed. Nil means
// that there is nothing to do.
func (r *employerController) read(ctx context.Context, key client.ObjectKey) (client.Object, *employer, error) {
	object := backend.New(r.pods.example)
	err := r.client.Get(ctx, key, object)
	if err == nil {
		return object, r.pods.employer(object), nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("reading %s %s from the cache: %w", r.kind, key, err)
	}
	known := r.pods.employers.get(key)
	if known == nil || !known.uncached { // gone, or its delete event is on the way
		r.backendConditions.forget(key)
		return nil, nil, nil
	}
	err = r.live.Get(ctx, key, object)
	if apierrors.IsNotFound(err) {
		r.forget(ctx, key, known)
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s %s, which is not in the cache: %w", r.kind, key, err)
	}
	next := r.pods.employer(object)
	next.uncached = true
	if r.pods.employers.replace(key, known, next) && !r.pods.same(known, next) {
		r.pods.wakeEmployees(ctx, key, known, next)
	}
	return object, next, nil
}

// forget drops an employer that is gone or has nothing to do with the suite any more.
func (r *employerController) forget(ctx context.Context, key client.ObjectKey, e *employer) {
	if r.pods.employers.replace(key, e, nil) {
		r.pods.wakeEmployees(ctx, key, e)
	}
	r.backendConditions.forget(key)
	r.pods.provisions.forget(e.object.GetUID())
	r.recordedConditions.Remove(e.object.GetUID())
}

// reconcileEmployer holds the employer, makes its resources or lets it go, and returns when to look again, zero if an
// event will tell.
func (r *employerController) reconcileEmployer(
	ctx context.Context, object client.Object, e *employer,
) (time.Duration, error) {
	cleanFinalizersOn := cleanFinalizers(object)
	alive := object.GetDeletionTimestamp() == nil
	named := slices.Contains(e.holders, true)
	settled := slices.Equal(cleanFinalizersOn, []string{api.CleanFinalizer}) && r.pods.recorded(e)
	switch {
	case e.uncached && e.takesPart(): // it is on its way back into the cache
		return uncachedRecheck, nil
	case alive && r.pods.holdsEmployers() && (named || r.needsHold(e)) && !settled:
		return 0, r.addCleanFinalizer(ctx, object, e, cleanFinalizersOn)
	case !r.pods.holdsEmployers():
		if alive || len(cleanFinalizersOn) == 0 {
			return 0, nil
		}
		return 0, r.writeHolders(ctx, object, without(object.GetFinalizers(), cleanFinalizersOn), nil)
	case e.takesPart():
		return r.ensureResources(ctx, object, e)
	case e.uncached || named || len(cleanFinalizersOn) > 0:
		return r.releaseEmployer(ctx, object, e, cleanFinalizersOn)
	}
	return 0, nil
}

func without(finalizers, gone []string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return slices.Contains(gone, f) })
}

// ensureResources makes the resources of the adapters by which the employer employs Pods, and removes those of the
// others.
func (r *employerController) ensureResources(
	ctx context.Context, object client.Object, e *employer,
) (time.Duration, error) {
	if !slices.Contains(object.GetFinalizers(), api.CleanFinalizer) {
		return 0, nil // it never had any
	}
	state, err := wantedOf(object)
	if err != nil {
		return 0, err
	}
	var wait time.Duration
	var released []string
	changed := false
	for i, a := range r.adapters {
		switch {
		case e.selectors[i] != nil:
			now, later := r.provisionOne(ctx, object, a, state)
			changed, wait = changed || now, soonest.Of(wait, later)
		case e.holders[i]:
			gone, later := r.removeFrom(ctx, object, a)
			if gone {
				released = append(released, namesOf(object, a)...)
			}
			wait = soonest.Of(wait, later)
		}
		left, later := r.abandonedPlaces(object, a, e.selectors[i] != nil)
		released, wait = append(released, left...), soonest.Of(wait, later)
	}
	if changed {
		r.refresh(ctx, client.ObjectKeyFromObject(object))
	}
	if len(released) == 0 {
		return wait, nil
	}
	left := slices.DeleteFunc(r.pods.holderNames(e), func(name string) bool { return slices.Contains(released, name) })
	return wait, r.writeHolders(ctx, object, object.GetFinalizers(), left)
}

// namesOf are the names that the employer has for an adapter.
func namesOf(object client.Object, a backend.Backend) []string {
	return slices.DeleteFunc(api.HeldBy(object), func(name string) bool { return api.HolderOf(name) != a.Name() })
}

// abandonedPlaces are the names of an adapter that employs Pods for the employer, where nothing is left because the
// members belong elsewhere now, and how soon to look again at those where something is.
func (r *employerController) abandonedPlaces(
	object client.Object, a backend.Backend, employs bool,
) (empty []string, wait time.Duration) {
	mover, moves := a.(backend.Mover)
	if !moves || !employs {
		return nil, 0
	}
	now := api.HolderName(a.Name(), mover.Place(object))
	for _, name := range namesOf(object, a) {
		place := strings.TrimPrefix(strings.TrimPrefix(name, a.Name()), ".")
		switch {
		case name == now:
		case mover.CleanAt(object, place):
			empty = append(empty, name)
		default:
			wait = cleanPoll
		}
	}
	return empty, wait
}

// addCleanFinalizer makes the employer stay, and name all that may hold something for it.
func (r *employerController) addCleanFinalizer(
	ctx context.Context, object client.Object, e *employer, cleanFinalizersOn []string,
) error {
	return r.writeHolders(ctx, object, append(without(object.GetFinalizers(), cleanFinalizersOn), api.CleanFinalizer),
		r.pods.holderNames(e))
}

// writeHolders writes who may hold something for the employer, twice: to its status, which survives that a user
// replaces its metadata, and to its metadata, together with its finalizers. What only one of them names is held, so it
// does not matter where this is cut off.
func (r *employerController) writeHolders(ctx context.Context, object client.Object, finalizers, names []string) error {
	existing, has := api.ConditionsOf(object)
	subresource := true
	if has && !r.pods.statusless.Load() && !slices.Equal(names, api.ConditionedHolders(object)) {
		conditions := slices.DeleteFunc(slices.Clone(existing), func(c metav1.Condition) bool {
			name, ours := strings.CutPrefix(c.Type, api.HeldConditionPrefix)
			return ours && !slices.Contains(names, name)
		})
		for _, name := range names {
			meta.SetStatusCondition(&conditions, metav1.Condition{
				Type: api.HeldConditionPrefix + name, Status: metav1.ConditionTrue, Reason: "MayHold",
				ObservedGeneration: object.GetGeneration(),
				LastTransitionTime: metav1.NewTime(r.clock.Now()),
				Message:            "adapter " + name + " may hold something for this " + r.kind,
			})
		}
		var err error
		if subresource, err = r.patchConditions(ctx, object, conditions); err != nil {
			return fmt.Errorf("recording in the status of %s %s who may hold something for it: %w", r.kind,
				client.ObjectKeyFromObject(object), err)
		}
	}
	exists, err := r.write(ctx, object, finalizers, names)
	if exists && !subresource {
		r.pods.statusless.Store(true)
		r.refresh(ctx, client.ObjectKeyFromObject(object))
	}
	return err
}

// refresh has its Pods looked at again, since more is known of an employer now.
func (r *employerController) refresh(ctx context.Context, key client.ObjectKey) {
	r.pods.wakeEmployees(ctx, key, r.pods.employers.get(key))
}

// removeFrom takes back what an adapter holds for an employer that does not use it any more, and reports whether
// nothing is left, or how long to wait.
func (r *employerController) removeFrom(
	ctx context.Context, object client.Object, adapter backend.Backend,
) (gone bool, wait time.Duration) {
	if serves, err := r.serves(ctx, object, adapter); err != nil || serves { // a list from the cache fails only at the end
		return false, uncachedRecheck
	}
	if mover, moves := adapter.(backend.Mover); moves && !mover.Clean(object) {
		return false, cleanPoll
	}
	_, wait = r.provisionOne(ctx, object, adapter, "")
	return wait == 0, wait
}

// serves reports whether a backend that does not employ Pods for the employer any more still has one of them.
func (r *employerController) serves(ctx context.Context, object client.Object, adapter backend.Backend) (bool, error) {
	if _, moves := adapter.(backend.Mover); !moves {
		return false, nil
	}
	pods, err := r.employees(ctx, client.ObjectKeyFromObject(object))
	if err != nil {
		return false, err
	}
	for i := range pods {
		if seen := adapter.Observe(object, &pods[i]); seen.Unknown || seen.Serving {
			return true, nil
		}
	}
	return false, nil
}

// releaseEmployer lets go of an employer that takes no part any more: when no Pod names it, its resources are removed,
// and then its clean-up finalizers.
func (r *employerController) releaseEmployer(
	ctx context.Context, object client.Object, e *employer, cleanFinalizersOn []string,
) (time.Duration, error) {
	key := client.ObjectKeyFromObject(object)
	employed, err := r.employs(ctx, key)
	if err != nil || employed { // the release of its last Pod is an event
		return 0, err
	}
	if employed, err = r.employsUnmanaged(ctx, key); err != nil || employed {
		return uncachedRecheck, err
	}
	if len(cleanFinalizersOn) > 0 || len(api.HeldBy(object)) > 0 {
		for i, a := range r.adapters {
			if !e.holders[i] {
				continue
			}
			if gone, wait := r.removeFrom(ctx, object, a); !gone {
				return wait, nil
			}
		}
		if err := r.writeHolders(ctx, object, without(object.GetFinalizers(), cleanFinalizersOn), nil); err != nil {
			return 0, err
		}
	}
	r.pods.provisions.forget(object.GetUID())
	if e.uncached {
		r.forget(ctx, key, e)
	}
	return 0, nil
}

func (r *employerController) report(object client.Object) {
	_, err := api.DrainTime(object, 0)
	raw := object.GetAnnotations()[api.DrainSecondsAnnotation]
	if told, _ := r.told.Get(object.GetUID()); err == nil || told == raw {
		return
	}
	r.told.Add(object.GetUID(), raw)
	r.recorder.Eventf(object, nil, corev1.EventTypeWarning, "DrainTimeInvalid", "Drain",
		"annotation %s is %q: give whole seconds, at least 0; the default counts until then", api.DrainSecondsAnnotation, raw)
}

// write writes the employer's finalizers and the adapters that it names, if it is still as it was read. One that is
// gone needs none; exists reports whether it is there.
func (r *employerController) write(
	ctx context.Context, object client.Object, finalizers, holders []string,
) (exists bool, err error) {
	next := copyOf(object)
	next.SetFinalizers(finalizers)
	annotations := next.GetAnnotations() // of the copy
	delete(annotations, api.AdaptersAnnotation)
	if len(holders) > 0 {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[api.AdaptersAnnotation] = strings.Join(holders, ",")
	}
	next.SetAnnotations(annotations)
	err = r.client.Patch(ctx, next, client.MergeFromWithOptions(object, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("patching the finalizers of %s %s: %w", r.kind, client.ObjectKeyFromObject(object), err)
	}
	r.wrote(object, next)
	return true, nil
}

// wrote takes in what the API server answered: writes that follow rest on it, and decisions wait until the cache shows
// it.
func (r *employerController) wrote(object, answered client.Object) {
	newer := answered.GetResourceVersion()
	if newer == "" {
		return
	}
	object.SetResourceVersion(newer)
	r.writes.Wrote(client.ObjectKeyFromObject(object), answered)
}

// copyOf is a deep copy.
func copyOf(object client.Object) client.Object {
	return object.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy has the same type
}

// employees are the Pods in the cache that name the employer. They are not to be changed.
func (r *employerController) employees(ctx context.Context, key client.ObjectKey) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := r.client.List(ctx, &pods, client.InNamespace(key.Namespace), client.UnsafeDisableDeepCopy,
		client.MatchingFields{indexName(r.kind): api.EmployerKey(r.kind, key)})
	if err != nil {
		return nil, fmt.Errorf("listing the Pods of %s %s: %w", r.kind, key, err)
	}
	return pods.Items, nil
}

// employs reports whether some Pod in the cache still names the employer.
func (r *employerController) employs(ctx context.Context, key client.ObjectKey) (bool, error) {
	pods, err := r.employees(ctx, key)
	return len(pods) > 0, err
}

// employsUnmanaged reports whether some Pod that is not in the cache still names the employer, because it is not
// managed any more, and has it released. The list is live: it is the last look before the employer may go.
func (r *employerController) employsUnmanaged(ctx context.Context, key client.ObjectKey) (bool, error) {
	found := false
	pods := corev1.SchemeGroupVersion.WithKind("Pod")
	_, err := livelist.Each(ctx, r.live, pods, pageSize, func(pod *metav1.PartialObjectMetadata) (more bool) {
		if slices.Contains(expectedKeys(r.kind, pod), api.EmployerKey(r.kind, key)) {
			found = true
			r.pods.unmanagedPods.add(client.ObjectKeyFromObject(pod))
			r.pods.podQueue.Add(client.ObjectKeyFromObject(pod))
		}
		return true
	}, client.InNamespace(key.Namespace))
	if err != nil {
		return false, fmt.Errorf("listing the Pods of %s %s: %w", r.kind, key, err)
	}
	return found, nil
}

// needsHold reports whether an adapter that moves traffic or has a resource for it employs Pods for the employer.
func (r *employerController) needsHold(e *employer) bool {
	for i, a := range r.adapters {
		if e.selectors[i] != nil && holds(a) {
			return true
		}
	}
	return false
}

// holds reports whether the adapter needs its employers to stay until it has cleaned up.
func holds(a backend.Backend) bool {
	_, moves := a.(backend.Mover)
	return moves || a.Provisioner() != nil
}

// holdsEmployers reports whether employers of this kind may be held at all.
func (c *podController) holdsEmployers() bool { return slices.ContainsFunc(c.adapters, holds) }

// cleanFinalizers are the finalizers on the object that hold it until its backend is clean, in both forms.
func cleanFinalizers(object metav1.Object) []string {
	var found []string
	for _, f := range object.GetFinalizers() {
		if f == api.CleanFinalizer || f == api.LegacyCleanFinalizer(object.GetName()) {
			found = append(found, f)
		}
	}
	return found
}
