package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// outOfService is the priority of Pods that are out of service or on their way
// back: every one of them is served before a Pod that is still in service is
// taken out, so that Pods are out one after another for a moment, not all at
// once for the length of the queue.
const outOfService = 10

// podSource enqueues managed Pods, those out of service first, and says which are gone.
func podSource(
	mgr ctrl.Manager, gone func(types.NamespacedName), p ...predicate.TypedPredicate[client.Object],
) source.Source {
	enqueue := func(o client.Object, q queue, initial bool) {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return
		}
		priority := 0
		switch v := podops.Read(pod); {
		case podops.Offline(v) || !v.ServiceAvailable():
			priority = outOfService
		case initial:
			priority = handler.LowPriority
		}
		add(q, client.ObjectKeyFromObject(o), priority)
	}
	return source.Kind(mgr.GetCache(), client.Object(&corev1.Pod{}), handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { enqueue(e.Object, q, e.IsInInitialList) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { enqueue(e.ObjectNew, q, false) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) { gone(client.ObjectKeyFromObject(e.Object)) },
	}, p...)
}

func add(q queue, key types.NamespacedName, priority int) {
	request := reconcile.Request{NamespacedName: key}
	if pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		pq.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, request)
		return
	}
	q.Add(request)
}

// rules reads the PodTransitionRules of a namespace from the cache, compiled.
type rules struct {
	client client.Client
	mapper meta.RESTMapper
	newest *ruleFreshness

	clock clock.PassiveClock

	mu       sync.Mutex
	served   bool
	askedAt  time.Time // when discovery last said no
	compiled map[types.UID]compiledRule
}

type compiledRule struct {
	resourceVersion string
	rule            podops.Rule
}

func newRules(mgr ctrl.Manager) *rules {
	return &rules{client: mgr.GetClient(), mapper: mgr.GetRESTMapper(), newest: newRuleFreshness(mgr.GetAPIReader()),
		clock: clock.RealClock{}, compiled: map[types.UID]compiledRule{}}
}

// in returns the rules of a namespace. Where the API server does not serve
// PodTransitionRules there are none. Any other doubt is an error: a Pod must not
// pass because we could not look.
func (r *rules) in(ctx context.Context, namespace string) ([]podops.Rule, error) {
	served, err := r.isServed()
	if err != nil || !served {
		return nil, err
	}
	var list appsv1alpha1.PodTransitionRuleList
	if err := r.client.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the PodTransitionRules of namespace %s: %w", namespace, err)
	}
	out := make([]podops.Rule, len(list.Items))
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range list.Items {
		item := &list.Items[i]
		c, ok := r.compiled[item.UID]
		if !ok || c.resourceVersion != item.ResourceVersion {
			c = compiledRule{resourceVersion: item.ResourceVersion, rule: podops.CompileRule(item)}
			r.compiled[item.UID] = c
		}
		out[i] = c.rule
	}
	return out, nil
}

// notServedFor is how long a no of discovery holds: the API server is not asked
// for every Pod of a cluster that has no rules at all.
const notServedFor = 5 * time.Second

// isServed asks discovery until the answer is yes, and remembers that for good.
func (r *rules) isServed() (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.served {
		return true, nil
	}
	if now := r.clock.Now(); now.Sub(r.askedAt) < notServedFor {
		return false, nil
	}
	kind := appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodTransitionRuleKind)
	_, err := r.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		r.askedAt = r.clock.Now()
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("asking whether the API server serves PodTransitionRules: %w", err)
	}
	r.served = true
	return true, nil
}

// known records that PodTransitionRules are served, whatever discovery last returned.
func (r *rules) known() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.served = true
}

func (r *rules) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.compiled, uid)
}

// source enqueues the Pods that a change of a rule may let pass: those whose
// grant changed, and, when the rule itself changed or is gone, all that wait in
// its namespace.
func (r *rules) source(mgr ctrl.Manager) source.Source {
	return source.Kind(mgr.GetCache(), client.Object(&appsv1alpha1.PodTransitionRule{}), handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			// Those of the initial list too: this watch may begin long after the one of Pods, when the kind is served at last,
			// and a grant that came in between would enqueue no Pod.
			r.enqueueWaiting(ctx, e.Object.GetNamespace(), q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, okBefore := e.ObjectOld.(*appsv1alpha1.PodTransitionRule)
			after, okAfter := e.ObjectNew.(*appsv1alpha1.PodTransitionRule)
			if !okBefore || !okAfter {
				return
			}
			if before.Generation != after.Generation {
				r.enqueueWaiting(ctx, after.Namespace, q)
				return
			}
			for _, name := range newlyGranted(before, after) {
				add(q, types.NamespacedName{Namespace: after.Namespace, Name: name}, 0)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			r.forget(e.Object.GetUID())
			r.enqueueWaiting(ctx, e.Object.GetNamespace(), q)
		},
	})
}

// enqueueWaiting enqueues every Pod of the namespace that waits in a stage.
func (r *rules) enqueueWaiting(ctx context.Context, namespace string, q queue) {
	for _, pod := range r.waiting(ctx, namespace) {
		q.Add(pod)
	}
}

// waiting are the Pods of the namespace that wait in a stage; of all namespaces if it is "".
func (r *rules) waiting(ctx context.Context, namespace string) []reconcile.Request {
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "listing the Pods that may pass now", "namespace", namespace)
		return nil
	}
	var requests []reconcile.Request
	for i := range pods.Items {
		for _, o := range podops.Operations(podops.Read(&pods.Items[i])) {
			if _, waits := podops.StageOfPhase(o.Phase); waits {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pods.Items[i])})
				break
			}
		}
	}
	return requests
}

// newlyGranted names the Pods with a grant that is new, covers something else, or was given again.
func newlyGranted(before, after *appsv1alpha1.PodTransitionRule) []string {
	type key struct {
		uid   types.UID
		stage appsv1alpha1.TransitionRuleStage
	}
	old := make(map[key]*appsv1alpha1.PodGrant, len(before.Status.Grants))
	for i := range before.Status.Grants {
		g := &before.Status.Grants[i]
		old[key{g.PodUID, g.Stage}] = g
	}
	var names []string
	for i := range after.Status.Grants {
		g := &after.Status.Grants[i]
		if o, ok := old[key{g.PodUID, g.Stage}]; !ok || !sameGrant(o, g) {
			names = append(names, g.PodName)
		}
	}
	return names
}

func sameGrant(a, b *appsv1alpha1.PodGrant) bool {
	return slices.Equal(a.Operations, b.Operations) && slices.Equal(a.Rules, b.Rules) && a.Generation == b.Generation
}
