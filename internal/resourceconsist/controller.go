// Package resourceconsist runs the adapters of api/resourceconsist: it watches Pods, their employers and their
// backends, asks package traffic what is due on each Pod, and writes it.
//
// Work is keyed by Pod, so an event costs the work of one Pod: an index tells a Pod's employers, and an adapter's own
// events name the Pods whose state in the backend changed. Pods on their way out of service come first. Employers are
// looked after by a second controller: it makes their own resources and removes them, keeps the clean-up finalizer and
// the names of adapters that may hold something, and records in their condition InSync how their backends stand.
package resourceconsist

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/wake"
)

type queue = backend.Queue

// podController looks after the employees of all employers of one kind.
type podController struct {
	client   client.Client
	live     client.Reader
	recorder events.EventRecorder
	clock    clock.PassiveClock
	writes   *freshness.Tracker

	kind string
	gvk  schema.GroupVersionKind
	// example is an empty employer.
	example   client.Object
	adapters  []backend.Backend
	options   api.Options
	employers *employers
	// absent are employers that a live read did not find, so that the events of many Pods cost one read.
	absent            *cache.LRUExpireCache
	provisions        provisions
	backendConditions *backendConditions
	records           *records
	unmanagedPods     unmanagedPods
	// started is true if workers run, so that all employers there are have been seen.
	started atomic.Bool
	// statusless is true if the kind has conditions and no status subresource, so that nothing can be recorded there.
	statusless atomic.Bool
	// podQueue and employerQueue enqueue into this controller and that of employers.
	podQueue, employerQueue *wake.Queue
}

const (
	defaultWorkers    = 5
	defaultMaxBackoff = 30 * time.Second
	// firstBackoff is the delay after the first failure of a reconcile.
	firstBackoff = 50 * time.Millisecond
)

// newPodController makes the controller with what can be had without a manager.
func newPodController(
	gvk schema.GroupVersionKind, example client.Object, options api.Options, adapters []backend.Backend,
) *podController {
	if options.MaxBackoff <= 0 {
		options.MaxBackoff = defaultMaxBackoff
	}
	c := &podController{
		clock: clock.RealClock{}, kind: gvk.Kind, gvk: gvk, example: example, adapters: adapters, options: options,
		absent:    cache.NewLRUExpireCacheWithClock(mostAbsent, clock.RealClock{}),
		employers: newEmployers(), records: newRecords(), podQueue: &wake.Queue{}, employerQueue: &wake.Queue{},
	}
	c.backendConditions = newBackendConditions(c.employerQueue.Add)
	return c
}

func rateLimiter(options api.Options) workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstBackoff, options.MaxBackoff)
}

// AddToManager adds the controllers for employers of the example's kind; see api/resourceconsist/setup.
func AddToManager(mgr manager.Manager, example client.Object, options api.Options, adapters ...backend.Backend) error {
	gvk, err := kindOf(mgr, example, adapters)
	if err != nil {
		return err
	}
	if options.Concurrency <= 0 && mgr.GetControllerOptions().MaxConcurrentReconciles <= 0 {
		options.Concurrency = defaultWorkers
	}
	kind := gvk.Kind
	c := newPodController(gvk, example, options, adapters)
	c.client, c.live, c.recorder = mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder("resourceconsist-controller")
	c.writes = freshness.New(mgr.GetCache(), c.clock)
	if err := registerMetrics(metrics.Registry, metric.RegistryOf(mgr), kind, c.records, c.backendConditions); err != nil {
		return err
	}
	indexer := func(o client.Object) []string { return expectedKeys(kind, o) }
	ctx := context.Background() //nolint:forbidigo // nothing is read or awaited here
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, indexName(kind), indexer); err != nil {
		return fmt.Errorf("indexing Pods by the %s that they name: %w", kind, err)
	}
	return errors.Join(c.watch(mgr), addEmployerController(mgr, c))
}

func kindOf(mgr manager.Manager, example client.Object, adapters []backend.Backend) (schema.GroupVersionKind, error) {
	if len(adapters) == 0 {
		return schema.GroupVersionKind{}, errors.New("adding resourceconsist adapters: give at least one")
	}
	names := map[string]bool{}
	for _, a := range adapters {
		if names[a.Name()] {
			return schema.GroupVersionKind{}, fmt.Errorf(
				"adding resourceconsist adapters: two are named %q, give each its own name", a.Name())
		}
		names[a.Name()] = true
	}
	gvk, err := apiutil.GVKForObject(example, mgr.GetScheme())
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("adding resourceconsist adapters: %w", err)
	}
	return gvk, nil
}

func (c *podController) watch(mgr manager.Manager) error {
	name := "resourceconsist-" + strings.ToLower(c.kind) + "-employees"
	sources := []source.Source{
		c.podQueue,
		source.Kind(mgr.GetCache(), backend.New(c.example), c.employerEvents()),
		source.Kind(mgr.GetCache(), client.Object(&corev1.Pod{}), c.podEvents()),
	}
	for _, a := range c.adapters {
		own, err := a.Sources(mgr, func(employer client.ObjectKey, reason, message string) {
			condition := success()
			if reason != api.ConditionReasonInSync {
				condition = failure(reason, message)
			}
			c.backendConditions.report(subject{employer, a.Name(), "backend"}, condition)
		})
		if err != nil {
			return fmt.Errorf("watching the backend of adapter %s: %w", a.Name(), err)
		}
		sources = append(sources, own...)
	}
	return backend.AddController(mgr, name, controller.Options{
		Reconciler: c, MaxConcurrentReconciles: c.options.Concurrency, RateLimiter: rateLimiter(c.options),
	}, sources...)
}

// podEvents enqueues Pods for which something that is read of them has changed, and that may concern us. Most Pods of
// most clusters are behind no Service that takes part, and what happens to them costs no more than this look.
func (c *podController) podEvents() handler.EventHandler {
	saw := func(pod *corev1.Pod, q queue) {
		view := podops.Read(pod)
		c.records.saw(pod, view, c.clock.Now())
		backend.Enqueue(q, client.ObjectKeyFromObject(pod), podops.MustLeave(view) && view.Protected() ||
			len(podops.Operations(view)) > 0)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			if pod, ok := e.Object.(*corev1.Pod); ok && c.concerns(pod) {
				saw(pod, q)
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			before, okBefore := e.ObjectOld.(*corev1.Pod)
			after, okAfter := e.ObjectNew.(*corev1.Pod)
			if okBefore && okAfter && (c.concerns(after) || c.concerns(before)) && changed(before, after) {
				saw(after, q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			key := client.ObjectKeyFromObject(e.Object)
			// A Pod that lost its control label leaves the cache with a delete event, though it is not deleted.
			if e.Object.GetDeletionTimestamp() == nil && len(expectedKeys(c.kind, e.Object)) > 0 {
				c.unmanagedPods.add(key)
			}
			if pod, ok := e.Object.(*corev1.Pod); !ok || c.concerns(pod) || c.records.has(key) {
				backend.Enqueue(q, key, false) // to drop its record when no work on it is under way
			}
		},
	}
}

// concerns reports whether anything may be due on a Pod: an employer selects it, a finalizer holds it, or its
// annotation names one or is broken. An employer that comes to select it later wakes it, and so does one that goes.
// Before workers run, some employers may not have been seen, and any Pod may be theirs.
func (c *podController) concerns(pod *corev1.Pod) bool {
	return !c.started.Load() || mayNeedRelease(pod) || c.unmanagedPods.has(client.ObjectKeyFromObject(pod)) ||
		c.employers.selected(pod)
}

// changed reports whether two states of a Pod can lead to different decisions.
func changed(a, b *corev1.Pod) bool {
	v, w := podops.Read(a), podops.Read(b)
	return v.UID != w.UID || v.Gate != w.Gate || v.ServiceReady != w.ServiceReady || v.Ready != w.Ready ||
		v.Terminating != w.Terminating || v.Terminal != w.Terminal ||
		v.Annotations[podops.AvailableConditionsAnnotation] != w.Annotations[podops.AvailableConditionsAnnotation] ||
		!maps.Equal(v.Labels, w.Labels) || !slices.Equal(v.Finalizers, w.Finalizers) ||
		!slices.Equal(a.Status.PodIPs, b.Status.PodIPs)
}

// employerEvents keeps the index of employers and enqueues the Pods of employers that have changed for them.
func (c *podController) employerEvents() handler.EventHandler {
	put := func(ctx context.Context, object client.Object, initial bool) {
		e, key := c.employer(object), client.ObjectKeyFromObject(object)
		old := c.employers.put(e)
		if old != nil && c.same(old, e) {
			return
		}
		if !initial { // every Pod has a separate event then
			c.wakeEmployees(ctx, key, old, e)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, _ queue) { put(ctx, e.Object, e.IsInInitialList) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, _ queue) { put(ctx, e.ObjectNew, false) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, _ queue) {
			c.left(ctx, client.ObjectKeyFromObject(e.Object))
		},
	}
}

// left takes in that an employer has left the cache. It may be gone, or have lost its control label: where that makes a
// difference nothing is decided before employerController has read it live.
func (c *podController) left(ctx context.Context, key client.ObjectKey) {
	old := c.employers.get(key)
	if old == nil || !c.holdsEmployers() {
		c.wakeEmployees(ctx, key, c.employers.remove(key))
		c.backendConditions.forget(key)
		return
	}
	uncached := *old
	uncached.uncached = true
	if c.employers.replace(key, old, &uncached) {
		c.employerQueue.Add(key)
	}
}

// wakeEmployees enqueues the Pods that these states of an employer select and those that name it.
func (c *podController) wakeEmployees(ctx context.Context, key client.ObjectKey, states ...*employer) {
	lists := []client.ListOption{client.MatchingFields{indexName(c.kind): api.EmployerKey(c.kind, key)}}
	for _, e := range states {
		if e == nil {
			continue
		}
		for _, s := range e.selectors {
			if s != nil {
				lists = append(lists, client.MatchingLabelsSelector{Selector: s})
			}
		}
	}
	found := map[types.NamespacedName]bool{}
	for _, which := range lists {
		var pods corev1.PodList
		if err := c.client.List(ctx, &pods, client.InNamespace(key.Namespace), which,
			client.UnsafeDisableDeepCopy); err != nil {
			lost.WithLabelValues(c.kind).Inc() // only a cache that has stopped answers with an error
			return
		}
		for i := range pods.Items {
			found[client.ObjectKeyFromObject(&pods.Items[i])] = true
		}
	}
	for pod := range found {
		c.podQueue.Add(pod)
	}
}

func indexName(kind string) string { return "resourceconsist.employers." + kind }

// expectedKeys are the employers of a kind that a Pod names.
func expectedKeys(kind string, o client.Object) []string {
	expected, err := podops.ExpectedFinalizers(o.GetAnnotations())
	if err != nil {
		return nil
	}
	var keys []string
	for key := range expected {
		if strings.HasPrefix(key, kind+"/") {
			keys = append(keys, key)
		}
	}
	return keys
}
