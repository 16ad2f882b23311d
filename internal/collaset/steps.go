package collaset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/core"
	"kusionstack.io/kuperator/internal/revision"
)

// stepsName is the controller that makes the steps of single Pods.
const stepsName = Name + "-steps"

// Pace of decisions about a set for changes of its Pods: after one that took much CPU, restFactor times as long passes before
// the next, so that however many Pods change, decisions take a fortieth of a core, up to sets of ten thousand. Pods with a
// step of their own do not wait for that. What is left to decide while such steps are made is which Pods begin, so it can wait for
// stepsFactor times as long, and for a Pod with such a step at least for stepPause: then it is decided for several Pods. While
// the last decision has said who begins next (flow), only the counts in status wait, and flowFactor is enough. Many small CollaSets that wait
// for each other (crowded) rest alike, whatever is decided about one of them takes.
const (
	restFactor  = 40
	stepsFactor = 150
	flowFactor  = 250
	restLeast   = time.Millisecond // what is shorter than that needs no rest
	restMost    = 2 * time.Second
	stepsMost   = 3 * time.Second
	flowMost    = 5 * time.Second
	stepPause   = 15 * time.Millisecond
)

// standing is a standing order with what carrying it out takes. It is never changed.
type standing struct {
	order      *core.Standing
	generation int64
	selector   labels.Selector
	history    *history
}

// holds says whether the CollaSet is as it was when the order was given, as far as steps of single Pods depend on it.
func (s *standing) holds(set *appsv1alpha1.CollaSet) bool {
	return s != nil && set.Generation == s.generation && set.DeletionTimestamp == nil && set.Status.Halted == nil
}

// due is what the order says is due on the Pod as it is.
func (s *standing) due(pod *corev1.Pod) (core.Step, core.Pod) {
	if _, named := s.order.From[pod.UID]; !named {
		return core.StepNone, core.Pod{}
	}
	p := podOf(pod, s.selector)
	return s.order.Step(&p), p
}

// errAttempted says that the same step was made, or is being made, on the same version of the Pod.
var errAttempted = errors.New("the step is under way on this version of the Pod")

// errUndecided is errAttempted of a step whose answer is not known yet.
var errUndecided = fmt.Errorf("%w, and may yet fail", errAttempted)

// attempts keeps a step from being made twice on one version of a Pod, by a decision about the set and by itself: the second
// would only conflict.
type attempts struct {
	mu   sync.Mutex
	made map[types.UID]attempt
}

type attempt struct {
	version string // the resourceVersion that the step was made on
	done    bool
}

// once makes a step, unless it was made already or is being made. One that failed may be made again.
func (a *attempts) once(pod *core.Pod, do func() error) error {
	uid, version := pod.UID(), pod.View.ResourceVersion
	a.mu.Lock()
	if last := a.made[uid]; last.version == version {
		a.mu.Unlock()
		if last.done {
			return fmt.Errorf("%w: %s", errAttempted, pod.Name())
		}
		return fmt.Errorf("%w: %s", errUndecided, pod.Name())
	}
	if a.made == nil {
		a.made = map[types.UID]attempt{}
	}
	a.made[uid] = attempt{version: version}
	a.mu.Unlock()

	err := do()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.made[uid].version != version {
		return err
	}
	if err != nil {
		delete(a.made, uid)
	} else {
		a.made[uid] = attempt{version: version, done: true}
	}
	return err
}

// keep forgets the steps made on Pods that the order does not name.
func (a *attempts) keep(order *core.Standing) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range a.made {
		if order == nil || order.From[uid] == "" {
			delete(a.made, uid)
		}
	}
}

// stand puts a decision's standing order in the place of the one before. took is the CPU of observing and deciding.
func (m *setMemory) stand(o *observation, plan *core.Plan, took time.Duration) {
	m.took.Store(int64(took))
	m.attempts.keep(plan.Standing)
	if plan.Standing == nil || len(plan.Standing.From) == 0 {
		m.standing.Store(nil)
		m.flow.give(nil)
		return
	}
	m.standing.Store(&standing{order: plan.Standing, generation: o.set.Generation, selector: o.selector, history: o.history})
	m.flow.give(plan.Standing)
}

// setOf names the CollaSet that controls an object.
func setOf(object metav1.Object) (key types.NamespacedName, uid types.UID, ok bool) {
	ref := metav1.GetControllerOfNoCopy(object)
	if ref == nil || ref.Kind != appsv1alpha1.CollaSetKind {
		return key, "", false
	}
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: ref.Name}, ref.UID, true
}

// orderOn is the memory of a Pod's set and the standing order that names the Pod; both are nil if there is none.
func (r *reconciler) orderOn(pod client.Object) (*setMemory, *standing) {
	key, uid, owned := setOf(pod)
	if !owned {
		return nil, nil
	}
	m := r.memory.find(key, uid)
	if m == nil {
		return nil, nil
	}
	s := m.standing.Load()
	if s == nil || s.order.From[pod.GetUID()] == "" {
		return nil, nil
	}
	return m, s
}

// stepEvents enqueue Pods on which a step of their own is due, and tell the pace of those whose place is free. It costs the same
// however many Pods the set has.
func (r *reconciler) stepEvents() handler.EventHandler {
	return handler.Funcs{UpdateFunc: func(_ context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		before, ok := e.ObjectOld.(*corev1.Pod)
		pod, is := e.ObjectNew.(*corev1.Pod)
		if !ok || !is {
			return
		}
		m, s := r.orderOn(pod)
		if s == nil {
			return
		}
		if step, _ := s.due(pod); step != core.StepNone {
			q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)})
			return
		}
		switch {
		case handedOver(before, pod):
			r.pace.handedOver(pod.UID)
		case cameBack(before, pod):
			r.pace.back(&m.flow, pod.UID)
		}
	}}
}

// begins has Pods begun by the pace: their steps, and a look at the pace itself, go through the queue of steps.
func (r *reconciler) begins(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.pace.start(func(pod types.NamespacedName) { q.Add(reconcile.Request{NamespacedName: pod}) },
		func(wait time.Duration) { addAfter(q, lookAtPace, wait) })
	return nil
}

// lookAtPace is a request that names no Pod.
var lookAtPace = reconcile.Request{}

// handedOver says that a Pod began to wait for others than this suite: for its kubelet or for cooperators.
func handedOver(before, after *corev1.Pod) bool {
	const preparing, operate = podops.PreparingPrefix + "/" + core.OperatorID, podops.OperatePrefix + "/" + core.OperatorID
	prepares := func(pod *corev1.Pod) bool {
		return metav1.HasLabel(pod.ObjectMeta, preparing) && !metav1.HasLabel(pod.ObjectMeta, operate)
	}
	return revision.Recorded(after) && !revision.Recorded(before) || prepares(after) && !prepares(before)
}

// cameBack is core.Back, which most events do not even ask.
func cameBack(before, after *corev1.Pod) bool {
	if before.UID != after.UID || metav1.HasLabel(before.ObjectMeta, podops.ServiceAvailableLabel) || !metav1.HasLabel(after.ObjectMeta, podops.ServiceAvailableLabel) {
		return false
	}
	return core.Back(podops.Read(before), podops.Read(after))
}

// podEvents enqueue the CollaSets that a Pod concerns: the one that controls it, and, for one that nobody controls, those that
// would take it in or whose claims it uses.
func (r *reconciler) podEvents(owner handler.EventHandler) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	others := func(ctx context.Context, pod client.Object, q queue) {
		for _, request := range slices.Concat(r.wouldInclude(ctx, pod), r.wouldAdopt(ctx, pod), r.volumeUsers(ctx, pod)) {
			q.Add(request)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			r.noteChange(e.Object, false)
			owner.Create(ctx, e, q)
			others(ctx, e.Object, q)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			r.noteEnd(e)
			r.noteChange(e.Object, false)
			owner.Delete(ctx, e, q)
			others(ctx, e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, of, was := setOf(e.ObjectOld)
			after, uid, is := setOf(e.ObjectNew)
			if was && is && before == after && of == uid { // a CollaSet of the same name is not the same
				r.noteChange(e.ObjectNew, true)
				m := r.memory.find(after, uid)
				if m != nil {
					m.identities.relabelled(e.ObjectNew.GetUID(), saysOf(e.ObjectOld), saysOf(e.ObjectNew))
				}
				if m != nil && revision.Recorded(e.ObjectOld) && !revision.Recorded(e.ObjectNew) {
					m.finished.Add(1)
				}
				_, order := r.orderOn(e.ObjectNew)
				addAfter(q, reconcile.Request{NamespacedName: after}, m.rest(order != nil, r.pace.crowded()))
				return
			}
			r.noteChange(e.ObjectOld, false)
			r.noteChange(e.ObjectNew, false)
			owner.Update(ctx, e, q)
			others(ctx, e.ObjectOld, q)
			others(ctx, e.ObjectNew, q)
		},
	}
}

// noteEnd notes that a Pod has left the cache because it has ended.
func (r *reconciler) noteEnd(e event.DeleteEvent) {
	if key, uid, owned := setOf(e.Object); owned && !e.DeleteStateUnknown && hasEnded(e.Object) {
		if m := r.memory.find(key, uid); m != nil {
			m.identities.left(e.Object.GetUID())
		}
	}
}

// rest is how long the next decision can wait after a Pod changed; named says that the standing order names the Pod, crowded that CollaSets
// wait for each other.
func (m *setMemory) rest(named, crowded bool) time.Duration {
	if m == nil {
		return 0
	}
	factor, least, most := time.Duration(restFactor), time.Duration(0), restMost
	switch {
	case m.flow.waiting():
		factor, most = flowFactor, flowMost
	case m.standing.Load() != nil:
		factor, most = stepsFactor, stepsMost
	}
	if named {
		least = stepPause
	}
	took := time.Duration(m.took.Load())
	if took < restLeast && !crowded {
		return least
	}
	return max(least, min(factor*took, most))
}

func addAfter(q workqueue.TypedRateLimitingInterface[reconcile.Request], request reconcile.Request, wait time.Duration) {
	if pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		pq.AddWithOpts(priorityqueue.AddOpts{After: wait}, request)
		return
	}
	q.AddAfter(request, wait)
}

// steps makes the step that is due on one Pod by the standing order of its set.
type steps struct{ *reconciler }

// Reconcile implements reconcile.Reconciler. What it does not do, the next decision about the set does.
func (r steps) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req == lookAtPace {
		r.pace.look()
		return ctrl.Result{}, nil
	}
	conflict, err := r.step(ctx, req.NamespacedName)
	if conflict {
		// Its CollaSet may have no other Pod under way, so that no event would lead to a decision if this one has not changed after all.
		return ctrl.Result{RequeueAfter: r.beginConflicts.Met(req.NamespacedName)}, nil
	}
	r.beginConflicts.None(req.NamespacedName)
	return ctrl.Result{}, err
}

// step makes the step that is due on a Pod, and says whether the Pod was to be begun and that met a conflict.
func (r steps) step(ctx context.Context, name types.NamespacedName) (conflict bool, err error) {
	pod := &corev1.Pod{}
	if err := r.client.Get(ctx, name, pod, client.UnsafeDisableDeepCopy); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	key, uid, owned := setOf(pod)
	if !owned {
		return false, nil
	}
	m := r.memory.find(key, uid)
	if m == nil {
		return false, nil
	}
	set := &appsv1alpha1.CollaSet{}
	if err := r.client.Get(ctx, key, set, client.UnsafeDisableDeepCopy); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	s := m.standing.Load()
	if set.UID != uid || !s.holds(set) {
		return false, nil
	}
	took := r.measure()
	step, p := s.due(pod)
	decideSeconds.WithLabelValues(ofPod).Observe(took().Seconds())
	o := &observation{
		set: r.read(set), memory: m, history: s.history, selector: s.selector, snapshot: core.Snapshot{Protocol: r.protocol},
		pod: func(string) *corev1.Pod { return pod }, single: true,
	}
	var failed error
	switch step {
	case core.StepNone:
		switch {
		case !m.flow.taken(p.UID()):
		case !s.order.MayBegin(&p):
			m.flow.drop(p.UID())
			r.pace.giveBack(p.UID())
		default:
			conflict = r.run(ctx, []action{{"begin", &failed, func() error { return r.beginNext(ctx, o, &p) }}})
		}
	case core.StepChange:
		r.run(ctx, []action{{"change", &failed, func() error {
			err := r.change(ctx, o, &p)
			if errors.Is(err, errNotTaken) {
				r.withdraw(key, m)
			}
			return err
		}}})
	case core.StepFinish:
		r.run(ctx, []action{{"finish", &failed, func() error { return r.finish(ctx, o, &p) }}})
	}
	return conflict, failed
}

// withdraw takes a standing order back, because the API server refuses what it asks for, and has the CollaSet decided on: Pods
// that are out for it come back.
func (r *reconciler) withdraw(key types.NamespacedName, m *setMemory) {
	m.standing.Store(nil)
	r.pace.giveBack(m.flow.hold()...)
	m.changed.addAll()
	if q := r.decisions.Load(); q != nil {
		(*q).Add(reconcile.Request{NamespacedName: key})
	}
}

// keepQueue keeps the queue of decisions.
func (r *reconciler) keepQueue(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.decisions.Store(&q)
	return nil
}

// beginNext begins the update of a Pod that was chosen.
func (r *reconciler) beginNext(ctx context.Context, o *observation, pod *core.Pod) error {
	b := core.Begin{Pod: pod, Request: podops.Request{ID: core.OperatorID, Type: podops.TypeUpdate}}
	change, err := podops.Begin(pod.View, b.Request, r.clock.Now())
	if err != nil || change.IsZero() {
		return err
	}
	return o.memory.flow.send(pod, change.Apply(pod.View), func() error { return r.ask(ctx, o, b, change) })
}
