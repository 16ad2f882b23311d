package collaset

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/drain"
)

// drains tells how nodes stand, and has the CollaSets looked at again that follow them. Nodes are watched from the
// first CollaSet on that has its Pods replaced when they are evicted. Where nodes may not be read, nothing is known of
// them, and nothing is done for it.
type drains struct {
	cache cache.Cache
	sets  client.Reader

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // of the controller, for events of nodes
	queue   queue
	watched bool
	// tried is true if the one wait for the nodes is over.
	tried bool
}

// keepQueue keeps the queue of decisions.
func (d *drains) keepQueue(ctx context.Context, q queue) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ctx, d.queue = ctx, q
	return nil
}

// stripDrainedNode keeps of a node what drain.NodeOf reads.
func stripDrainedNode(node *corev1.Node) *corev1.Node {
	kept := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID,
		ResourceVersion: node.ResourceVersion}}
	kept.Spec.Unschedulable, kept.Spec.Taints = node.Spec.Unschedulable, node.Spec.Taints
	for _, c := range node.Status.Conditions {
		kept.Status.Conditions = append(kept.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
	}
	return kept
}

// synced starts the watch if need be, and reports whether nodes can be read. The first caller waits for it.
func (d *drains) synced(ctx context.Context) bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	informer, err := d.cache.GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false))
	if err != nil {
		log.FromContext(ctx).V(1).Info("nodes cannot be watched: CollaSets do not follow them", "reason", err.Error())
		return false
	}
	if !d.watched {
		_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) { d.changed(drain.Node{}, object) },
			UpdateFunc: func(before, after any) {
				if node, ok := before.(*corev1.Node); ok {
					d.changed(drain.NodeOf(node), after)
				}
			},
		})
		d.watched = err == nil
	}
	return filled(ctx, d.cache, informer, &corev1.Node{}, &d.tried)
}

// changed has the CollaSets looked at that follow nodes, if this one stands otherwise than before.
func (d *drains) changed(before drain.Node, object any) {
	node, ok := object.(*corev1.Node)
	if !ok || drain.NodeOf(node) == before {
		return
	}
	d.mu.Lock()
	ctx, q := d.ctx, d.queue
	d.mu.Unlock()
	if q == nil {
		return // nothing has been decided yet
	}
	sets := &appsv1alpha1.CollaSetList{}
	if err := d.sets.List(ctx, sets, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing the CollaSets that follow a node", "node", node.Name)
		return
	}
	for i := range sets.Items {
		if drain.PolicyOf(&sets.Items[i]).Surges() {
			q.Add(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&sets.Items[i])})
		}
	}
}

// observeNodes fills in how the nodes of Pods stand, if the CollaSet follows them, or did when a drain asked for a Pod.
func (o *observation) observeNodes(ctx context.Context, d *drains) {
	follows := o.snapshot.Drain.Surges()
	for i := range o.snapshot.Pods { // a Pod is large: none is copied
		p := &o.snapshot.Pods[i]
		follows = follows || p.Replacing && podops.MarkedBy(p.View, appsv1alpha1.ToReplaceLabel, podops.AskerDrain)
	}
	readable := follows && d.synced(ctx)
	states := map[string]*drain.Node{}
	for i := range o.snapshot.Pods {
		p := &o.snapshot.Pods[i]
		p.NodeState = nil
		if !readable || p.Node == "" {
			continue
		}
		state, known := states[p.Node]
		if !known {
			node := &corev1.Node{}
			if d.cache.Get(ctx, client.ObjectKey{Name: p.Node}, node, client.UnsafeDisableDeepCopy) == nil {
				state = new(drain.NodeOf(node))
			}
			states[p.Node] = state
		}
		p.NodeState = state
	}
}
