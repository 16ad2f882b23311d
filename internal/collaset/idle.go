package collaset

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/core"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/revision"
)

// Bounds of the Pods that can have changed for the status of an idle CollaSet to follow by them alone: beyond these numbers, or this share of all, a whole
// decision is cheaper.
const (
	mostChanged  = 256
	changedShare = 8
)

// changes are what changed of what a decision about a CollaSet reads, but for the CollaSet itself: which of its Pods, or anything. The zero value is that
// nothing did. It is safe for concurrent use.
type changes struct {
	mu   sync.Mutex
	pods []string
	all  bool
}

// add notes that a Pod changed.
func (c *changes) add(pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pods) == mostChanged {
		c.pods, c.all = nil, true
	}
	if !c.all {
		c.pods = append(c.pods, pod)
	}
}

// addAll notes that something changed, or that Pods came or went.
func (c *changes) addAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods, c.all = nil, true
}

// take returns what changed since the last call. The names mean nothing if it was more than the Pods that they name.
func (c *changes) take() (pods []string, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pods, all = c.pods, c.all
	c.pods, c.all = nil, false
	return pods, all
}

// idle is a CollaSet that has nothing to do, and what that was decided on (docs/design/0020-health-of-idle-sets.md).
type idle struct {
	*core.Idle
	outcome    core.Outcome
	generation int64
	current    string // status.currentRevision, and updatedRevision in updated
	updated    string
	can        revision.Capabilities
	selector   labels.Selector
	minReady   time.Duration
	pods       podcache.Pods
	places     map[string]int32 // in pods, by name
	available  []bool           // of each of them
}

// idleAfter is what a decision leaves that was carried out without a failure, nil if the CollaSet is not idle.
func idleAfter(o *observation, plan *core.Plan, applied *outcome) *idle {
	if o.memory.podsInDoubt.Load() { // before status is written, all Pods have to be made sure of
		return nil
	}
	still := core.IdleAfter(&o.snapshot, plan)
	if still == nil {
		return nil
	}
	i := &idle{
		Idle: still, outcome: applied.Outcome, generation: o.set.Generation, current: o.set.Status.CurrentRevision, updated: o.set.Status.UpdatedRevision, can: o.memory.changesFor,
		selector: o.selector, minReady: o.snapshot.MinReady, pods: o.pods, places: o.pods.Places(), available: make([]bool, len(o.snapshot.Pods)),
	}
	for k := range o.snapshot.Pods {
		i.available[k] = o.snapshot.Pods[k].Available
	}
	return i
}

// stayIdle brings the status of a CollaSet up to date of which nothing but the health of some Pods has changed since it is idle. If it says that it
// did not, a whole decision is due.
func (r *reconciler) stayIdle(ctx context.Context, set *appsv1alpha1.CollaSet) (result ctrl.Result, did bool, err error) {
	m := r.memory.find(client.ObjectKeyFromObject(set), set.UID)
	if m == nil || m.idle == nil {
		return ctrl.Result{}, false, nil
	}
	took := r.measure()
	if !r.stillIdle(ctx, set, m) {
		m.idle = nil
		took()
		return ctrl.Result{}, false, nil
	}
	status, deadline := m.idle.Status(r.clock.Now(), m.idle.outcome, *set.Status.DeepCopy())
	cpu := took()
	decideSeconds.WithLabelValues(ofIdle).Observe(cpu.Seconds())
	m.took.Store(int64(cpu))
	later, err := r.tell(ctx, &observation{set: set, memory: m}, status, deadline, true)
	if err != nil {
		return ctrl.Result{}, true, err
	}
	r.again(set, false)
	return ctrl.Result{RequeueAfter: later}, true, nil
}

// stillIdle takes the Pods that changed into account, and says whether nothing else has changed. What cannot be read may have.
func (r *reconciler) stillIdle(ctx context.Context, set *appsv1alpha1.CollaSet, m *setMemory) bool {
	i := m.idle
	if set.Generation != i.generation || set.DeletionTimestamp != nil || set.Status.Halted != nil ||
		set.Status.CurrentRevision != i.current || set.Status.UpdatedRevision != i.updated {
		return false
	}
	if can, err := r.capabilities(ctx); err != nil || can != i.can {
		return false
	}
	names, all := m.changed.take()
	if all || len(names) > max(1, i.pods.Len()/changedShare) {
		return false
	}
	for _, name := range names {
		if !r.follow(set, i, name) {
			return false
		}
	}
	return true
}

// follow takes a Pod into account as it is now.
func (r *reconciler) follow(set *appsv1alpha1.CollaSet, i *idle, name string) bool {
	at, known := i.places[name]
	now, err := r.cached.Get(types.NamespacedName{Namespace: set.Namespace, Name: name})
	if !known || err != nil || now.Len() == 0 {
		return false
	}
	pod := now.At(0)
	if _, uid, owned := setOf(pod); !owned || uid != set.UID {
		return false
	}
	before, after := podOf(i.pods.At(int(at)), i.selector), podOf(pod, i.selector)
	before.Available = i.available[at]
	available(&after, &core.Snapshot{Now: r.clock.Now(), Protocol: r.protocol, MinReady: i.minReady})
	if !i.Change(&before, &after) {
		return false
	}
	i.pods.Put(int(at), now)
	i.available[at] = after.Available
	return true
}

// waking enqueues the CollaSets that objects other than their Pods concern, and has the next decision about them be a whole one.
func (r *reconciler) waking(concerned handler.MapFunc) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
		requests := concerned(ctx, object)
		for _, request := range requests {
			r.memory.wake(request.NamespacedName)
		}
		return requests
	})
}

// controllerOf is the CollaSet that controls an object.
func controllerOf(_ context.Context, object client.Object) []reconcile.Request {
	set, _, owned := setOf(object)
	if !owned {
		return nil
	}
	return []reconcile.Request{{NamespacedName: set}}
}

// noteChange notes that Pods of the CollaSet that controls this one changed: it alone, or, if it came or went, all.
func (r *reconciler) noteChange(pod client.Object, alone bool) {
	key, uid, owned := setOf(pod)
	if !owned {
		return
	}
	switch m := r.memory.find(key, uid); {
	case m == nil: // whoever reads its Pods first reads this one, or it is one of an earlier CollaSet of that name
		r.memory.dangles(key, pod.GetName())
	case alone:
		m.changed.add(pod.GetName())
	default:
		m.changed.addAll()
	}
}
