package collaset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/wake"
)

// podsName is the controller that makes the steps of single Pods.
const podsName = Name + "-steps"

// queue is a work queue of CollaSets, or of Pods.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// lookAtWindow is a request of the controller of Pods that names none: time has passed for the window.
var lookAtWindow = reconcile.Request{}

// window is the process's setplan.Window with its lock, and carries out what that answers. It makes each step of a Pod
// once, and has CollaSets decided on after steps.
type window struct {
	clock  clock.PassiveClock
	limits setplan.Limits
	// decisions is the queue of CollaSets to be decided on, and pods that of Pods.
	decisions, pods wake.Queue

	mu   sync.Mutex
	core *setplan.Window
}

func newWindow(limits setplan.Limits, c clock.PassiveClock) *window {
	return &window{clock: c, limits: limits, core: setplan.NewWindow(limits)}
}

// tell tells the window of an event, and has Pods begun that it chooses.
func (w *window) tell(of func(*setplan.Window, time.Time) setplan.Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := of(w.core, w.clock.Now())
	for _, c := range a.Begin {
		w.pods.Add(types.NamespacedName{Namespace: c.Set.Namespace, Name: c.Pod.Name})
	}
	if a.Look > 0 {
		w.pods.AddAfter(lookAtWindow.NamespacedName, a.Look)
	}
}

// planned tells the window of a decision. Those of its Pods that begin now are returned: the decision begins them.
func (w *window) planned(set types.NamespacedName, plan setplan.WindowPlan) (chosen map[types.UID]bool) {
	chosen = map[types.UID]bool{}
	w.tell(func(window *setplan.Window, now time.Time) setplan.Answer {
		a := window.Planned(set, plan, now)
		others := setplan.Answer{Look: a.Look}
		for _, c := range a.Begin {
			if c.Set == set {
				chosen[c.Pod.UID] = true
			} else {
				others.Begin = append(others.Begin, c)
			}
		}
		return others
	})
	return chosen
}

// ask asks the window something that changes nothing but what is known of steps that are sent.
func ask[T any](w *window, what func(*setplan.Window) T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	return what(w.core)
}

// Describe is part of prometheus.Collector.
func (w *window) Describe(out chan<- *prometheus.Desc) {
	out <- inFlightDesc
	out <- waitingDesc
}

// Collect is part of prometheus.Collector.
func (w *window) Collect(out chan<- prometheus.Metric) {
	w.mu.Lock()
	inFlight, waiting := w.core.Counts(w.clock.Now())
	w.mu.Unlock()
	metric.Send(out, inFlightDesc, inFlight)
	metric.Send(out, waitingDesc, waiting)
}

// rollout is what the last decision about a CollaSet says of single Pods, with what carrying it out takes. It is
// never changed.
type rollout struct {
	*setplan.Rollout // nil if only Pods that are as the decision saw them may begin
	generation       int64
	halted           *appsv1alpha1.HaltedRollout
	selector         labels.Selector
	history          *history
}

// holds reports whether the CollaSet is as it was when it was decided on, as far as steps of single Pods depend on it.
func (s *rollout) holds(set *appsv1alpha1.CollaSet) bool {
	return s != nil && set.Generation == s.generation && set.DeletionTimestamp == nil &&
		equality.Semantic.DeepEqual(set.Status.Halted, s.halted)
}

// follow puts what a decision says of single Pods in the place of what the one before did.
func (m *setState) follow(o *observation, plan *setplan.Plan) {
	m.rollout.Store(&rollout{plan.Rollout, o.set.Generation, o.set.Status.Halted, o.selector, o.history})
}

// errAttempted means that the same step was made, or is being made, on the same version of the Pod.
var errAttempted = errors.New("the step is under way on this version of the Pod")

// once makes a step of a Pod, unless one was made on this version of it already or is being made: the second would
// only conflict. begun is the Pod as a begin leaves it, nil for another step.
func (w *window) once(o *observation, pod *setplan.Pod, begun *podops.View, do func() error) error {
	key := client.ObjectKeyFromObject(o.set)
	if !ask(w, func(core *setplan.Window) bool { return core.Send(key, pod, begun) }) {
		return fmt.Errorf("%w: %s", errAttempted, pod.Name())
	}
	err := do()
	if err != nil && ask(w, func(core *setplan.Window) bool { return core.Failed(key, pod) }) {
		w.decisions.AddAfter(key, w.limits.Interval)
	}
	return err
}

// untilDecision is how long the next decision about a CollaSet can wait after one of its Pods changed.
func (w *window) untilDecision(set types.NamespacedName, m *setState) time.Duration {
	if m == nil {
		return 0
	}
	interval := w.limits.Interval
	if ask(w, func(core *setplan.Window) bool { return core.Follows(set) }) {
		interval = w.limits.RolloutInterval
	}
	return max(0, interval-time.Duration(w.clock.Now().UnixNano()-m.decidedAt.Load()))
}

// setOf names the CollaSet that controls an object.
func setOf(object metav1.Object) (key types.NamespacedName, uid types.UID, ok bool) {
	ref := metav1.GetControllerOfNoCopy(object)
	if ref == nil || ref.Kind != appsv1alpha1.CollaSetKind {
		return key, "", false
	}
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: ref.Name}, ref.UID, true
}

// listener has CollaSets decided on, and steps of Pods made, for what happens to objects.
type listener struct {
	cached client.Reader
	memory *stateCache
	window *window
}

// stepEvents enqueue Pods on which a separate step is due, and tell the window of what happens to Pods. It costs the
// same however many Pods the set has.
func (l listener) stepEvents() handler.EventHandler {
	return handler.Funcs{UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
		before, ok := e.ObjectOld.(*corev1.Pod)
		pod, is := e.ObjectNew.(*corev1.Pod)
		if !ok || !is || before.UID != pod.UID {
			return
		}
		set, uid, owned := setOf(pod)
		if !owned {
			return
		}
		m := l.memory.Find(set, uid)
		if m == nil {
			return
		}
		s := m.rollout.Load()
		if s == nil {
			return
		}
		wasServing := metav1.HasLabel(before.ObjectMeta, podops.ServiceAvailableLabel)
		serves := metav1.HasLabel(pod.ObjectMeta, podops.ServiceAvailableLabel)
		switch {
		case !wasServing && serves && setplan.Back(podops.Read(before), podops.Read(pod)):
			l.window.tell(func(w *setplan.Window, now time.Time) setplan.Answer {
				return w.Back(set, pod.UID, pod.ResourceVersion, now)
			})
		case wasServing && !serves && setplan.Lost(podops.Read(before), podops.Read(pod)):
			l.window.tell(func(w *setplan.Window, _ time.Time) setplan.Answer { w.Lost(set); return setplan.Answer{} })
		}
		if !setplan.Operated(pod.Labels) {
			return
		}
		p := podOf(pod, s.selector)
		if step := s.NextStep(&p); step == setplan.StepChange || step == setplan.StepFinish {
			q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)})
		}
		l.window.tell(func(w *setplan.Window, now time.Time) setplan.Answer {
			return w.Moved(set, pod.UID, setplan.NextIsOurs(&p), now)
		})
	}}
}

// podEvents enqueue the CollaSets that a Pod concerns: the one that controls it, and, for one without a controller,
// those that would take it in or whose claims it uses.
func (l listener) podEvents(owner handler.EventHandler) handler.EventHandler {
	others := func(ctx context.Context, pod client.Object, q queue) {
		for _, request := range slices.Concat(l.wouldInclude(ctx, pod), l.wouldAdopt(ctx, pod), l.volumeUsers(ctx, pod)) {
			q.Add(request)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			l.noteDangling(e.Object)
			owner.Create(ctx, e, q)
			others(ctx, e.Object, q)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			l.noteEnd(e)
			l.noteDangling(e.Object)
			owner.Delete(ctx, e, q)
			others(ctx, e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, of, was := setOf(e.ObjectOld)
			after, uid, is := setOf(e.ObjectNew)
			if was && is && before == after && of == uid { // a CollaSet of the same name is not the same
				m := l.memory.Find(after, uid)
				if m != nil {
					m.strays.identities.relabelled(e.ObjectNew.GetUID(), saysOf(e.ObjectOld), saysOf(e.ObjectNew))
				}
				q.AddAfter(reconcile.Request{NamespacedName: after}, l.window.untilDecision(after, m))
				return
			}
			l.noteDangling(e.ObjectOld)
			l.noteDangling(e.ObjectNew)
			owner.Update(ctx, e, q)
			others(ctx, e.ObjectOld, q)
			others(ctx, e.ObjectNew, q)
		},
	}
}

// noteDangling notes a Pod whose controller has the name of a CollaSet and another UID. Where nothing is known of that
// CollaSet yet, its Pods are read before anything is decided.
func (l listener) noteDangling(pod client.Object) {
	if key, uid, owned := setOf(pod); owned && l.memory.Find(key, uid) == nil {
		if m := l.memory.Find(key, ""); m != nil {
			m.strays.identities.dangles(pod.GetName())
		}
	}
}

// noteEnd notes that a Pod has left the cache because it has ended.
func (l listener) noteEnd(e event.DeleteEvent) {
	if key, uid, owned := setOf(e.Object); owned && !e.DeleteStateUnknown && hasEnded(e.Object) {
		if m := l.memory.Find(key, uid); m != nil {
			m.strays.identities.left(e.Object.GetUID())
		}
	}
}

// podReconciler makes the step that is due on one Pod, by what the last decision about its set says.
type podReconciler struct {
	podStepper
	memory   *stateCache
	protocol bool
	// conventions are those by which specs are read.
	conventions setplan.Conventions
	// conflicts are those that the step of a Pod met in a row.
	conflicts freshness.Conflicts
}

// Reconcile implements reconcile.Reconciler. What it does not do, the next decision about the set does.
func (r *podReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req == lookAtWindow {
		r.window.tell((*setplan.Window).Tick)
		return ctrl.Result{}, nil
	}
	conflict, err := r.step(ctx, req.NamespacedName)
	if conflict {
		// Its CollaSet may have no other Pod under way, so that no event would lead to a decision if this one has not
		// changed after all.
		return ctrl.Result{RequeueAfter: r.conflicts.Met(req.NamespacedName)}, nil
	}
	r.conflicts.None(req.NamespacedName)
	return ctrl.Result{}, err
}

// step makes the step that is due on a Pod, and reports whether that met a conflict.
func (r *podReconciler) step(ctx context.Context, name types.NamespacedName) (conflict bool, err error) {
	pod := &corev1.Pod{}
	if err := r.client.Get(ctx, name, pod, client.UnsafeDisableDeepCopy); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	key, uid, owned := setOf(pod)
	if !owned {
		return false, nil
	}
	m := r.memory.Find(key, uid)
	if m == nil {
		return false, nil
	}
	set := &appsv1alpha1.CollaSet{}
	if err := r.client.Get(ctx, key, set, client.UnsafeDisableDeepCopy); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	s := m.rollout.Load()
	if set.UID != uid || !s.holds(set) {
		return false, nil
	}
	began := r.clock.Now()
	p := podOf(pod, s.selector)
	step, queued := s.NextStep(&p), ask(r.window,
		func(w *setplan.Window) *setplan.Queued { return w.Chosen(key, pod.UID) })
	decideSeconds.WithLabelValues(ofPod).Observe(r.clock.Since(began).Seconds())
	o := &observation{
		set: readBy(r.conventions, set), memory: m, history: s.history, selector: s.selector,
		snapshot: setplan.Snapshot{Mode: setplan.Mode{Protocol: r.protocol}},
		pod:      func(string) *corev1.Pod { return pod }, single: true,
	}
	do := func(name string, write func() error) (bool, error) {
		var failed error
		conflict := run(ctx, []action{{name: name, into: &failed, do: write}})
		return conflict, failed
	}
	switch {
	case queued != nil && queued.MayBegin(s.Rollout, &p):
		return do("begin", func() error { return r.begin(ctx, o, setplan.Begin{Pod: &p, Request: queued.Request}) })
	case queued != nil:
		r.window.tell(func(w *setplan.Window, now time.Time) setplan.Answer { return w.Drop(key, pod.UID, now) })
		r.window.decisions.AddAfter(key, r.window.limits.Interval)
	case step == setplan.StepChange:
		return do("change", func() error {
			err := r.change(ctx, o, setplan.PodChange{Pod: &p, To: setplan.Form{Revision: s.history.updated}})
			if errors.Is(err, errNotTaken) {
				r.withdraw(key, m)
			}
			return err
		})
	case step == setplan.StepFinish:
		return do("finish", func() error { return r.finish(ctx, o, &p) })
	}
	return false, nil
}

// withdraw takes back what the last decision says of single Pods, because the API server refuses what it asks for,
// and has the CollaSet decided on: Pods that are out for it come back.
func (r *podReconciler) withdraw(key types.NamespacedName, m *setState) {
	m.rollout.Store(nil)
	r.window.tell(func(w *setplan.Window, now time.Time) setplan.Answer { return w.Hold(key, now) })
	r.window.decisions.AddAfter(key, 0)
}
