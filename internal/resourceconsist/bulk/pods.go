package bulk

import (
	"context"
	"reflect"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/podqueue"
)

// Watching is an adapter for Pods that knows what its provider does from the engine's memory.
type Watching[E client.Object, S comparable] struct {
	*Engine[E, *corev1.Pod, S]
	queue atomic.Pointer[podqueue.Queue]
}

// Moving is a Watching that also changes the provider.
type Moving[E client.Object, S comparable] struct {
	*Watching[E, S]
}

// NewWatching makes an adapter of a Reader. Sources says what is wrong with the options. A nil clock means the real one.
func NewWatching[E client.Object, S comparable](reader api.Reader[E, *corev1.Pod, S], options api.BulkOptions, clk clock.WithTicker) *Watching[E, S] {
	return newWatching(reader, nil, options, clk)
}

// NewMoving makes a Mover of a Backend. Sources says what is wrong with the options. A nil clock means the real one.
func NewMoving[E client.Object, S comparable](backend api.Backend[E, *corev1.Pod, S], options api.BulkOptions, clk clock.WithTicker) *Moving[E, S] {
	return &Moving[E, S]{newWatching(backend, backend, options, clk)}
}

func newWatching[E client.Object, S comparable](reader api.Reader[E, *corev1.Pod, S], backend api.Backend[E, *corev1.Pod, S], options api.BulkOptions, clk clock.WithTicker) *Watching[E, S] {
	w := &Watching[E, S]{Engine: newEngine(reader, backend, options, clk)}
	w.changed = func(_, pod types.NamespacedName) {
		if q := w.queue.Load(); q != nil {
			podqueue.Enqueue(*q, pod, true)
		}
	}
	return w
}

// Name is part of api.Adapter.
func (w *Watching[E, S]) Name() string { return w.reader.Name() }

// Selector is part of api.Adapter.
func (w *Watching[E, S]) Selector(employer E) labels.Selector { return w.reader.Selector(employer) }

// Observe is part of api.Adapter. It asks nobody, and answers api.ErrPending where it does not know.
func (w *Watching[E, S]) Observe(_ context.Context, employer E, pod *corev1.Pod) (api.Observation, error) {
	dying, st := w.stanceOf(employer, pod)
	a := w.look(employer, pod, dying, st)
	if a.unknown {
		return api.Observation{}, api.ErrPending
	}
	// The Pod is enqueued when there is news; this is for a Pod that waits for long, so that it goes on being waited for.
	return api.Observation{Serving: a.serving, Since: a.since, LookAgain: w.options.MaxBackoff}, nil
}

// Register is part of api.Mover. It returns before the provider is called.
func (m *Moving[E, S]) Register(_ context.Context, employer E, pod *corev1.Pod) error {
	dying, st := m.stanceOf(employer, pod)
	m.register(employer, pod, dying, st, true)
	return nil
}

// Deregister is part of api.Mover. It returns before the provider is called.
func (m *Moving[E, S]) Deregister(_ context.Context, employer E, pod *corev1.Pod) error {
	dying, st := m.stanceOf(employer, pod)
	m.register(employer, pod, dying, st, false)
	return nil
}

// stanceOf says where a Pod is going, as core decides it.
func (w *Watching[E, S]) stanceOf(employer E, pod *corev1.Pod) (dying bool, s stance) {
	v := podops.Read(pod)
	held := slices.Contains(pod.Finalizers, api.Finalizer(employer.GetName()))
	switch {
	case !api.Controlled(pod) || !w.employs(employer, pod):
		s = stance{direction: leaving, arrived: !held, forGood: true}
	case podops.MustLeave(v):
		s = stance{direction: leaving, arrived: !held}
	case podops.MayJoin(v):
		s = stance{direction: joining, arrived: held}
	default:
		s = stance{direction: resting}
	}
	return v.Terminating || v.Terminal, s
}

func (w *Watching[E, S]) employs(employer E, pod *corev1.Pod) bool {
	if employer.GetDeletionTimestamp() != nil {
		return false
	}
	s := w.reader.Selector(employer)
	return s != nil && s.Matches(labels.Set(pod.Labels))
}

// Sources is part of api.Watcher: the Pods of whom there is news, and what the engine has to know of employers.
func (w *Watching[E, S]) Sources(mgr manager.Manager) ([]source.Source, error) {
	if w.err != nil {
		return nil, w.err
	}
	gvk, err := apiutil.GVKForObject(NewObject[E](), mgr.GetScheme())
	if err != nil {
		return nil, err
	}
	w.allLooked = func(ctx context.Context, employer E, looked func(types.NamespacedName, types.UID) bool) (bool, error) {
		return w.everyPodLooked(ctx, mgr.GetClient(), gvk.Kind, employer, looked)
	}
	if err := mgr.Add(w.Engine); err != nil {
		return nil, err
	}
	return []source.Source{
		source.Func(func(_ context.Context, q podqueue.Queue) error {
			w.queue.Store(&q)
			return nil
		}),
		source.Kind(mgr.GetCache(), client.Object(NewObject[E]()), w.employerEvents()),
	}, nil
}

// employerEvents takes in employers. Their Pods come from the controller, once it will ask about them with what is new: a Pod that
// is looked at before that is looked at with the old employer.
func (w *Watching[E, S]) employerEvents() handler.EventHandler {
	put := func(o client.Object) {
		employer, ok := o.(E)
		switch {
		case !ok:
			return
		case w.reader.Selector(employer) == nil && (w.backend == nil || !api.MayHold(o, w.Name())):
			w.employerGone(client.ObjectKeyFromObject(o))
		default:
			w.employerIs(employer)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ podqueue.Queue) { put(e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ podqueue.Queue) { put(e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ podqueue.Queue) {
			w.employerGone(client.ObjectKeyFromObject(e.Object))
		},
	}
}

// everyPodLooked says whether all Pods that the employer employs, or that name it, have been looked at.
func (w *Watching[E, S]) everyPodLooked(ctx context.Context, reader client.Reader, kind string, employer E, looked func(types.NamespacedName, types.UID) bool) (bool, error) {
	var pods corev1.PodList
	if err := reader.List(ctx, &pods, client.InNamespace(employer.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return false, err
	}
	employerKey := api.EmployerKey(kind, client.ObjectKeyFromObject(employer))
	for i := range pods.Items {
		pod := &pods.Items[i]
		expected, _ := podops.ExpectedFinalizers(pod.Annotations) // the controller reports the error
		_, names := expected[employerKey]
		if (names || api.Controlled(pod) && w.employs(employer, pod)) && !looked(client.ObjectKeyFromObject(pod), pod.UID) {
			return false, nil
		}
	}
	return true, nil
}

// Differ says whether two states of an object differ in anything but status and book-keeping.
func Differ(before, after client.Object) bool {
	return !equality.Semantic.DeepEqual(essence(before), essence(after))
}

func essence(o client.Object) client.Object {
	o, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return nil // cannot be: a copy has the same type
	}
	o.SetResourceVersion("")
	o.SetManagedFields(nil)
	o.SetFinalizers(nil)
	if v := reflect.ValueOf(o); v.Kind() == reflect.Pointer && v.Elem().Kind() == reflect.Struct {
		if status := v.Elem().FieldByName("Status"); status.IsValid() && status.CanSet() {
			status.SetZero()
		}
	}
	return o
}

// NewObject is an empty object of type E.
func NewObject[E client.Object]() E {
	return reflect.New(reflect.TypeFor[E]().Elem()).Interface().(E) //nolint:forcetypeassert // a pointer to E's own type is an E
}
