// Package resourceconsist runs the adapters of api/resourceconsist: it watches Pods, their employers and their
// backends, asks package core what is due on each Pod, and writes it.
//
// Work is keyed by Pod, so an event costs the work of one Pod: an index tells a Pod's employers, and an adapter's own
// events name the Pods whose state in the backend changed. Pods on their way out of service come first. Employers are
// looked after by a second controller, which only keeps or removes their clean-up finalizer.
package resourceconsist

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/bulk"
	"kusionstack.io/kuperator/internal/resourceconsist/podqueue"
	"kusionstack.io/kuperator/internal/writes"
)

type queue = podqueue.Queue

// podController looks after the employees of all employers of one kind.
type podController[E client.Object] struct {
	client   client.Client
	live     client.Reader
	recorder events.EventRecorder
	clock    clock.PassiveClock
	writes   *writes.Tracker

	kind      string
	adapters  []api.Adapter[E]
	options   api.Options
	employers *employers[E]
	records   *records
	strays    strays
	metrics   *podMetrics
}

// AddToManager adds the controllers for employers of kind E; see api/resourceconsist/setup.
func AddToManager[E client.Object](mgr manager.Manager, options api.Options, adapters ...api.Adapter[E]) error {
	kind, err := kindOf[E](mgr, adapters)
	if err != nil {
		return err
	}
	c := &podController[E]{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), recorder: mgr.GetEventRecorder("resourceconsist-controller"),
		clock: clock.RealClock{}, writes: writes.New(mgr.GetCache(), nil),
		kind: kind, adapters: adapters, options: options, employers: newEmployers[E](), records: newRecords(),
	}
	if c.metrics, err = newPodMetrics(metrics.Registry, kind, c.records); err != nil {
		return err
	}
	indexer := func(o client.Object) []string { return expectedKeys(kind, o) }
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.Pod{}, indexName(kind), indexer); err != nil { //nolint:forbidigo // nothing is read or awaited here
		return fmt.Errorf("indexing Pods by the %s that they name: %w", kind, err)
	}
	return errors.Join(c.watch(mgr), addEmployerController(mgr, c))
}

func kindOf[E client.Object](mgr manager.Manager, adapters []api.Adapter[E]) (string, error) {
	if len(adapters) == 0 {
		return "", errors.New("adding resourceconsist adapters: give at least one")
	}
	names := map[string]bool{}
	for _, a := range adapters {
		if names[a.Name()] {
			return "", fmt.Errorf("adding resourceconsist adapters: two are named %q, give each its own name", a.Name())
		}
		names[a.Name()] = true
	}
	gvk, err := apiutil.GVKForObject(bulk.NewObject[E](), mgr.GetScheme())
	if err != nil {
		return "", fmt.Errorf("adding resourceconsist adapters: %w", err)
	}
	return gvk.Kind, nil
}

func (c *podController[E]) watch(mgr manager.Manager) error {
	name := "resourceconsist-" + strings.ToLower(c.kind) + "-employees"
	ctl, err := controller.New(name, mgr, controller.Options{Reconciler: c, MaxConcurrentReconciles: c.options.Concurrency})
	if err != nil {
		return fmt.Errorf("adding controller %s: %w", name, err)
	}
	sources := []source.Source{
		source.Kind(mgr.GetCache(), client.Object(bulk.NewObject[E]()), c.employerEvents()),
		source.Kind(mgr.GetCache(), client.Object(&corev1.Pod{}), c.podEvents()),
	}
	for _, a := range c.adapters {
		w, ok := a.(api.Watcher)
		if !ok {
			continue
		}
		own, err := w.Sources(mgr)
		if err != nil {
			return fmt.Errorf("watching the backend of adapter %s: %w", a.Name(), err)
		}
		sources = append(sources, own...)
	}
	for _, s := range sources {
		if err := ctl.Watch(s); err != nil {
			return fmt.Errorf("adding a watch to controller %s: %w", name, err)
		}
	}
	return nil
}

// podEvents enqueues Pods for which something that is read of them has changed.
func (c *podController[E]) podEvents() handler.EventHandler {
	saw := func(o client.Object, q queue) {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return
		}
		view := podops.Read(pod)
		c.records.saw(pod, view, c.clock.Now())
		podqueue.Enqueue(q, client.ObjectKeyFromObject(pod), podops.MustLeave(view) && view.Protected() || len(podops.Operations(view)) > 0)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { saw(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			if changed(e.ObjectOld, e.ObjectNew) {
				saw(e.ObjectNew, q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			key := client.ObjectKeyFromObject(e.Object)
			// A Pod that lost its control label leaves the cache with a delete event, though nobody deletes it.
			if e.Object.GetDeletionTimestamp() == nil && len(expectedKeys(c.kind, e.Object)) > 0 {
				c.strays.add(key)
			}
			podqueue.Enqueue(q, key, false) // to drop its record when no work on it is under way
		},
	}
}

// changed says whether two states of a Pod can lead to different decisions.
func changed(before, after client.Object) bool {
	a, aOK := before.(*corev1.Pod)
	b, bOK := after.(*corev1.Pod)
	if !aOK || !bOK {
		return true
	}
	v, w := podops.Read(a), podops.Read(b)
	return v.UID != w.UID || v.Gate != w.Gate || v.ServiceReady != w.ServiceReady || v.Ready != w.Ready ||
		v.Terminating != w.Terminating || v.Terminal != w.Terminal ||
		v.Annotations[podops.AvailableConditionsAnnotation] != w.Annotations[podops.AvailableConditionsAnnotation] ||
		!maps.Equal(v.Labels, w.Labels) || !slices.Equal(v.Finalizers, w.Finalizers) ||
		!slices.Equal(a.Status.PodIPs, b.Status.PodIPs)
}

// employerEvents keeps the index of employers and enqueues the Pods of employers that have changed for them.
func (c *podController[E]) employerEvents() handler.EventHandler {
	put := func(ctx context.Context, o client.Object, initial bool, q queue) {
		object, ok := o.(E)
		if !ok {
			return
		}
		e := newEmployer(object, c.adapters, c.options.DrainTime)
		old := c.employers.put(e)
		if old != nil && old.same(e) {
			return
		}
		if !initial { // every Pod has an event of its own then
			c.enqueueEmployees(ctx, q, client.ObjectKeyFromObject(object), old, e)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { put(ctx, e.Object, e.IsInInitialList, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { put(ctx, e.ObjectNew, false, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			key := client.ObjectKeyFromObject(e.Object)
			c.enqueueEmployees(ctx, q, key, c.employers.remove(key))
		},
	}
}

// enqueueEmployees enqueues the Pods that these states of an employer select and those that name it.
func (c *podController[E]) enqueueEmployees(ctx context.Context, q queue, key client.ObjectKey, states ...*employer[E]) {
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
		if err := c.client.List(ctx, &pods, client.InNamespace(key.Namespace), which, client.UnsafeDisableDeepCopy); err != nil {
			c.metrics.lost.Inc() // only a cache that has stopped answers with an error
			return
		}
		for i := range pods.Items {
			found[client.ObjectKeyFromObject(&pods.Items[i])] = true
		}
	}
	for pod := range found {
		podqueue.Enqueue(q, pod, false)
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
