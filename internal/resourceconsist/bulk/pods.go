package bulk

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
)

// mover is the engine of an adapter that moves traffic.
type mover struct{ *Engine }

var (
	_ backend.Caller = &Engine{}
	_ backend.Mover  = mover{}
)

// Name is part of backend.Backend.
func (e *Engine) Name() string { return e.adapter.Name() }

// Selector is part of backend.Backend.
func (e *Engine) Selector(employer client.Object) labels.Selector {
	return e.adapter.Selector(employer)
}

// Provisioner is part of backend.Backend.
func (e *Engine) Provisioner() backend.Provisioner { return e.adapter.provisioner }

// Observe is part of backend.Backend.
func (e *Engine) Observe(employer client.Object, pod *corev1.Pod) backend.Observation {
	read := podops.Read(pod)
	v, i := e.viewOf(employer, pod, read), e.intentOf(employer, pod, read)
	var a answer
	e.with(employer, pod, func(s *slot) { a = s.group.look(v, i, e.clock.Now()) })
	// The Pod is enqueued when there is news; this is for a Pod that waits for long, so that it goes on being waited
	// for.
	return backend.Observation{Unknown: a.unknown, Serving: a.serving, Since: a.since, LookAgain: e.options.MaxBackoff}
}

// Register is part of backend.Mover.
func (m mover) Register(employer client.Object, pod *corev1.Pod) { m.register(employer, pod, true) }

// Deregister is part of backend.Mover.
func (m mover) Deregister(employer client.Object, pod *corev1.Pod) { m.register(employer, pod, false) }

func (e *Engine) register(employer client.Object, pod *corev1.Pod, serve bool) {
	read := podops.Read(pod)
	v, i := e.viewOf(employer, pod, read), e.intentOf(employer, pod, read)
	e.with(employer, pod, func(s *slot) { s.group.register(v, i, serve, e.clock.Now()) })
}

// viewOf asks the adapter for the Pod's members.
func (e *Engine) viewOf(employer client.Object, pod *corev1.Pod, p podops.View) view {
	v := view{
		key:     employeeKey{client.ObjectKeyFromObject(pod), pod.UID},
		created: pod.CreationTimestamp.Time, terminating: p.Terminating || p.Terminal,
	}
	if v.serve, v.invalid = e.adapter.Members(employer, pod, true); v.invalid == nil {
		v.idle, v.invalid = e.adapter.Members(employer, pod, false)
	}
	return v
}

// intentOf is where a Pod is going, as package traffic decides it.
func (e *Engine) intentOf(employer client.Object, pod *corev1.Pod, v podops.View) intent {
	held := slices.Contains(pod.Finalizers, api.Finalizer(employer.GetName()))
	switch {
	case !api.Controlled(pod) || !e.employs(employer, pod):
		return intent{direction: leaving, arrived: !held, forGood: true}
	case podops.MustLeave(v):
		return intent{direction: leaving, arrived: !held}
	case podops.MayJoin(v):
		return intent{direction: joining, arrived: held}
	}
	return intent{direction: resting}
}

func (e *Engine) employs(employer client.Object, pod *corev1.Pod) bool {
	if employer.GetDeletionTimestamp() != nil {
		return false
	}
	s := e.adapter.Selector(employer)
	return s != nil && s.Matches(labels.Set(pod.Labels))
}

// Sources is part of backend.Backend: the Pods of which there is news, and what the engine has to know of employers. It
// returns what is wrong with the options.
func (e *Engine) Sources(mgr manager.Manager, report backend.Report) ([]source.Source, error) {
	if e.err != nil {
		return nil, e.err
	}
	gvk, err := apiutil.GVKForObject(e.adapter.example, mgr.GetScheme())
	if err != nil {
		return nil, err
	}
	e.pods, e.kind, e.report = mgr.GetClient(), gvk.Kind, report
	if err := mgr.Add(e); err != nil {
		return nil, err
	}
	return []source.Source{
		source.Func(func(_ context.Context, q backend.Queue) error {
			e.podQueue.Store(&q)
			return nil
		}),
		source.Kind(mgr.GetCache(), e.adapter.example, e.employerEvents()),
	}, nil
}

// employerEvents takes in employers. Their Pods come from the controller, once it will ask about them with what is new:
// a Pod that is looked at before that is looked at with the old employer.
func (e *Engine) employerEvents() handler.EventHandler {
	put := func(employer client.Object) {
		if e.adapter.Selector(employer) == nil && (!e.adapter.moves || !api.MayHold(employer, e.Name())) {
			e.employerGone(client.ObjectKeyFromObject(employer))
			return
		}
		e.employerIs(employer)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, ev event.CreateEvent, _ backend.Queue) { put(ev.Object) },
		UpdateFunc: func(_ context.Context, ev event.UpdateEvent, _ backend.Queue) { put(ev.ObjectNew) },
		DeleteFunc: func(_ context.Context, ev event.DeleteEvent, _ backend.Queue) {
			e.employerGone(client.ObjectKeyFromObject(ev.Object))
		},
	}
}

// everyPodLooked reports whether all Pods that the employer employs, or that name it, have been looked at.
func (e *Engine) everyPodLooked(
	ctx context.Context, employer client.Object, looked func(employeeKey) bool,
) (bool, error) {
	var pods corev1.PodList
	if err := e.pods.List(ctx, &pods, client.InNamespace(employer.GetNamespace()),
		client.UnsafeDisableDeepCopy); err != nil {
		return false, err
	}
	employerKey := api.EmployerKey(e.kind, client.ObjectKeyFromObject(employer))
	for i := range pods.Items {
		pod := &pods.Items[i]
		expected, _ := podops.ExpectedFinalizers(pod.Annotations) // the controller reports the error
		_, names := expected[employerKey]
		if (names || api.Controlled(pod) && e.employs(employer, pod)) &&
			!looked(employeeKey{client.ObjectKeyFromObject(pod), pod.UID}) {
			return false, nil
		}
	}
	return true, nil
}

// Forget is part of backend.Caller: the Pod's members are removed.
func (e *Engine) Forget(pod types.NamespacedName) {
	e.mu.Lock()
	slots := map[types.NamespacedName]*slot{}
	for key := range e.employersOf[pod] {
		slots[key] = e.slots[key]
	}
	delete(e.employersOf, pod)
	e.mu.Unlock()
	for key, s := range slots {
		if s != nil {
			e.locked(key, s, func() { s.group.forget(pod, e.clock.Now()) })
		}
	}
}

// Clean is part of backend.Mover. It has the backend read if that was not done yet, for an employer that is not in the
// cache.
func (m mover) Clean(employer client.Object) bool {
	return m.cleanOf(employer, func(string) bool { return true })
}

// CleanAt is part of backend.Mover.
func (m mover) CleanAt(employer client.Object, place string) bool {
	return m.cleanOf(employer, func(id string) bool { return m.adapter.PlaceOf(id) == place })
}

func (e *Engine) cleanOf(employer client.Object, which func(id string) bool) (clean bool) {
	s := e.slot(employer)
	e.locked(client.ObjectKeyFromObject(employer), s, func() {
		e.renew(s, employer)
		clean = s.group.cleanOf(which)
	})
	return clean
}

// Place is part of backend.Mover.
func (m mover) Place(employer client.Object) string { return m.adapter.Place(employer) }
