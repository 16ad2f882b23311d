package collaset

import (
	"context"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// nodesPatience bounds the one wait for the cache of nodes, which is filled when a scale-in first needs it.
const nodesPatience = 5 * time.Second

// nodes reads the labels of nodes from a cache of their metadata. It is filled when the first set with a topology
// spread constraint over more than hosts scales in: most sets have none. Nodes that cannot be read (no permission,
// for example where the program was given some namespaces only) are nodes without labels: nothing waits for them.
type nodes struct {
	cache cache.Cache

	mu sync.Mutex
	// tried is true if the one wait is over.
	tried bool
}

func nodeMeta() *metav1.PartialObjectMetadata {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	return node
}

// stripNode keeps of a node's metadata name and labels, and of a whole node what drain.NodeOf reads. There is one cache
// of each, and one transform for both.
func stripNode(object any) (any, error) {
	if whole, ok := object.(*corev1.Node); ok {
		return stripDrainedNode(whole), nil
	}
	node, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	return &metav1.PartialObjectMetadata{TypeMeta: node.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels,
	}}, nil
}

// synced starts the cache if need be and reports whether it can be read. The first caller waits for it.
func (n *nodes) synced(ctx context.Context) bool {
	if n == nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	informer, err := n.cache.GetInformer(ctx, nodeMeta(), cache.BlockUntilSynced(false))
	if err != nil {
		log.FromContext(ctx).V(1).Info("nodes cannot be watched: scale-in does not see their labels", "reason", err.Error())
		return false
	}
	return filled(ctx, n.cache, informer, nodeMeta(), &n.tried)
}

// filled reports whether the cache of nodes of this type is filled. The first caller waits for it, for a while.
func filled(ctx context.Context, nodes cache.Cache, informer cache.Informer, of client.Object, tried *bool) bool {
	if !informer.HasSynced() && !*tried {
		*tried = true
		waiting, cancel := context.WithTimeout(ctx, nodesPatience)
		defer cancel()
		_, _ = nodes.GetInformer(waiting, of)
	}
	return informer.HasSynced()
}

// label is a label of a node, "" if that cannot be told.
func (n *nodes) label(ctx context.Context, node, key string) string {
	found := nodeMeta()
	if err := n.cache.Get(ctx, client.ObjectKey{Name: node}, found, client.UnsafeDisableDeepCopy); err != nil {
		return ""
	}
	return found.Labels[key]
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
					domain = nodes.label(ctx, p.Node, key)
					onNode[where] = domain
				}
				p.Domains[k] = domain
			}
		}
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
