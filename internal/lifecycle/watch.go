package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
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
	"kusionstack.io/kuperator/internal/bootstrap"
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

var ruleKind = appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodTransitionRuleKind)

// rules reads the PodTransitionRules of a namespace from the cache, compiled.
type rules struct {
	client client.Client
	kind   *bootstrap.Kind
	newest *ruleFreshness

	mu       sync.Mutex
	compiled map[types.UID]compiledRule
}

type compiledRule struct {
	resourceVersion string
	rule            podops.Rule
}

func newRules(mgr ctrl.Manager) *rules {
	return &rules{client: mgr.GetClient(), kind: bootstrap.NewKind(mgr.GetRESTMapper(), ruleKind, clock.RealClock{}),
		newest: newRuleFreshness(mgr.GetAPIReader()), compiled: map[types.UID]compiledRule{}}
}

// in returns the rules of a namespace. Where the API server does not serve
// PodTransitionRules there are none. Any other doubt is an error: a Pod must not
// pass because we could not look.
func (r *rules) in(ctx context.Context, namespace string) ([]podops.Rule, error) {
	served, _, err := r.kind.Served()
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
