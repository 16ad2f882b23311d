package collaset

import (
	"context"
	"strconv"
	"sync"
	"time"

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

// nodesPatience bounds the one wait for the cache of nodes, which is filled when a CollaSet first needs it.
const nodesPatience = 5 * time.Second

// nodes reads nodes from a cache, and has the CollaSets looked at again that follow them. Nodes are watched from the
// first CollaSet on that scales in with a topology spread constraint over more than hosts, or has its Pods replaced
// when they are evicted: most have neither. Where nodes may not be read (for example where the program was given some
// namespaces only), nothing is known of them, and nothing waits for them.
type nodes struct {
	cache cache.Cache
	sets  client.Reader

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // of the controller, for events of nodes
	queue   queue
	watched bool
	// tried is true if the one wait is over.
	tried bool
}

// keepQueue keeps the queue of decisions.
func (n *nodes) keepQueue(ctx context.Context, q queue) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ctx, n.queue = ctx, q
	return nil
}

// stripNode keeps of a node its labels and what drain.NodeOf reads.
func stripNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	kept := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID,
		ResourceVersion: node.ResourceVersion, Labels: node.Labels}}
	kept.Spec.Unschedulable, kept.Spec.Taints = node.Spec.Unschedulable, node.Spec.Taints
	for _, c := range node.Status.Conditions {
		kept.Status.Conditions = append(kept.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
	}
	return kept, nil
}

// synced starts the watch if need be, and reports whether nodes can be read. The first caller waits for it, for a
// while.
func (n *nodes) synced(ctx context.Context) bool {
	if n == nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	informer, err := n.cache.GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false))
	if err != nil {
		log.FromContext(ctx).V(1).Info("nodes cannot be watched: scale-in does not see their labels, and CollaSets do not "+
			"follow them", "reason", err.Error())
		return false
	}
	if !n.watched {
		_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) { n.changed(drain.Node{}, object) },
			UpdateFunc: func(before, after any) {
				if node, ok := before.(*corev1.Node); ok {
					n.changed(drain.NodeOf(node), after)
				}
			},
		})
		n.watched = err == nil
	}
	if !informer.HasSynced() && !n.tried {
		n.tried = true
		waiting, cancel := context.WithTimeout(ctx, nodesPatience)
		defer cancel()
		_, _ = n.cache.GetInformer(waiting, &corev1.Node{})
	}
	return informer.HasSynced()
}

// changed has the CollaSets looked at that follow nodes, if this one stands otherwise than before.
func (n *nodes) changed(before drain.Node, object any) {
	node, ok := object.(*corev1.Node)
	if !ok || drain.NodeOf(node) == before {
		return
	}
	n.mu.Lock()
	ctx, q := n.ctx, n.queue
	n.mu.Unlock()
	if q == nil {
		return // nothing has been decided yet
	}
	sets := &appsv1alpha1.CollaSetList{}
	if err := n.sets.List(ctx, sets, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing the CollaSets that follow a node", "node", node.Name)
		return
	}
	for i := range sets.Items {
		if drain.PolicyOf(&sets.Items[i]).Surges() {
			q.Add(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&sets.Items[i])})
		}
	}
}

// get is the node of this name, nil if it cannot be read. It belongs to the cache.
func (n *nodes) get(ctx context.Context, name string) *corev1.Node {
	node := &corev1.Node{}
	if err := n.cache.Get(ctx, client.ObjectKey{Name: name}, node, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	return node
}

// podTopology are the keys that the API server copies from the node to the Pod (Kubernetes 1.35), so that they can be
// read without nodes.
var podTopology = map[string]bool{corev1.LabelTopologyZone: true, corev1.LabelTopologyRegion: true}

// observeTopology fills in the domains of Pods if some are to be removed. A template that says nothing is spread over
// hosts, as the scheduler does by default.
func (o *observation) observeTopology(ctx context.Context, nodes *nodes) {
	if len(o.snapshot.Pods) <= o.snapshot.Replicas || o.snapshot.Deleting {
		return
	}
	var keys []string
	for _, c := range o.set.Spec.Template.Spec.TopologySpreadConstraints {
		keys = append(keys, c.TopologyKey)
	}
	if len(keys) == 0 {
		keys = []string{corev1.LabelHostname}
	}
	readable, asked := false, false
	onNode := map[[2]string]string{}
	domains := make([]string, len(o.snapshot.Pods)*len(keys))
	for i := range o.snapshot.Pods {
		p := &o.snapshot.Pods[i]
		p.Domains = domains[i*len(keys) : (i+1)*len(keys)]
		for k, key := range keys {
			switch {
			case p.Node == "":
			case key == corev1.LabelHostname:
				p.Domains[k] = p.Node
			case podTopology[key] && p.View.Labels[key] != "":
				p.Domains[k] = p.View.Labels[key]
			default:
				if !asked {
					readable, asked = nodes.synced(ctx), true
				}
				where := [2]string{p.Node, key}
				domain, known := onNode[where]
				if !known && readable {
					if node := nodes.get(ctx, p.Node); node != nil {
						domain = node.Labels[key]
					}
					onNode[where] = domain
				}
				p.Domains[k] = domain
			}
		}
	}
}

// observeNodes fills in how the nodes of Pods stand, if the CollaSet follows them, or did when a drain asked for a Pod.
func (o *observation) observeNodes(ctx context.Context, nodes *nodes) {
	follows := o.snapshot.Drain.Surges()
	for i := range o.snapshot.Pods { // a Pod is large: none is copied
		p := &o.snapshot.Pods[i]
		follows = follows || p.Replacing && podops.MarkedBy(p.View, appsv1alpha1.ToReplaceLabel, podops.AskerDrain)
	}
	readable := follows && nodes.synced(ctx)
	states := map[string]*drain.Node{}
	for i := range o.snapshot.Pods {
		p := &o.snapshot.Pods[i]
		p.NodeState = nil
		if !readable || p.Node == "" {
			continue
		}
		state, known := states[p.Node]
		if !known {
			if node := nodes.get(ctx, p.Node); node != nil {
				state = new(drain.NodeOf(node))
			}
			states[p.Node] = state
		}
		p.NodeState = state
	}
}

// deletionCost reads the annotation that ReplicaSets go by.
func deletionCost(pod *corev1.Pod) int {
	text, says := pod.Annotations[corev1.PodDeletionCost]
	if !says { // an error costs more than the look
		return 0
	}
	cost, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0
	}
	return int(cost)
}
