package podtransitionrule

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

var nodeKind = corev1.SchemeGroupVersion.WithKind("Node")

// nodesPatience bounds the wait for the cache of nodes, which is filled when the first rule needs it.
const nodesPatience = 5 * time.Second

// nodes reads the labels of nodes from a cache of their metadata. The cache is filled as soon as a rule has a topology
// budget: most clusters have none.
type nodes struct {
	client client.Reader
	watch  func() error // starts the watch

	mu      sync.Mutex
	watched bool
}

// labels are those of all nodes by name, nil if no rule needs them.
func (n *nodes) labels(
	ctx context.Context, rules []*appsv1alpha1.PodTransitionRule,
) (map[string]map[string]string, error) {
	if !grants.UsesTopology(rules) {
		return nil, nil
	}
	if err := n.start(); err != nil {
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, nodesPatience)
	defer cancel()
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(nodeKind)
	if err := n.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	all := make(map[string]map[string]string, len(list.Items))
	for i := range list.Items {
		all[list.Items[i].Name] = list.Items[i].Labels
	}
	return all, nil
}

func (n *nodes) start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.watched {
		return nil
	}
	if err := n.watch(); err != nil {
		return err
	}
	n.watched = true
	return nil
}

// source enqueues the namespaces with a topology budget when a node comes, goes or has its labels changed.
func (n *nodes) source(mgr ctrl.Manager) source.Source {
	enqueue := func(ctx context.Context, _ client.Object) []reconcile.Request {
		return namespacesWithRules(ctx, n.client, func(r *appsv1alpha1.PodTransitionRule) bool {
			return grants.UsesTopology([]*appsv1alpha1.PodTransitionRule{r})
		})
	}
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(nodeKind)
	return sourceOf(mgr, node, enqueue, func(before, after client.Object) bool {
		return !maps.Equal(before.GetLabels(), after.GetLabels())
	})
}
