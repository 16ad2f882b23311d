package podtransitionrule

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/drain"
	"kusionstack.io/kuperator/internal/freeze"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
	"kusionstack.io/kuperator/internal/shorten"
)

// observed is a namespace as the cache shows it. Its objects are the cache's own and must not be changed.
type observed struct {
	rules []*appsv1alpha1.PodTransitionRule
	pods  []grants.Pod
}

func (r *reconciler) rules(ctx context.Context, namespace string) ([]*appsv1alpha1.PodTransitionRule, error) {
	var list appsv1alpha1.PodTransitionRuleList
	if err := r.client.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing podtransitionrules: %w", err)
	}
	rules := make([]*appsv1alpha1.PodTransitionRule, len(list.Items))
	for i := range list.Items {
		rules[i] = &list.Items[i]
	}
	return rules, nil
}

// podReader is a podcache.Store.
type podReader interface {
	ByIndex(index, value string) ([]*podcache.Pod, error)
}

// pods are what a decision is told of the Pods of a namespace.
func (r *reconciler) pods(name string, ns *namespace) ([]grants.Pod, error) {
	cached, err := r.cached.ByIndex(toolscache.NamespaceIndex, name)
	if err != nil {
		return nil, err
	}
	pods, _, _ := ns.pods.Read(cached, func(pod *corev1.Pod) grants.Pod {
		return grants.Pod{View: podops.Read(pod), Owner: ownerUID(pod), NodeName: pod.Spec.NodeName}
	})
	return pods, nil
}

// snapshot turns what was observed into plain values.
func (r *reconciler) snapshot(ctx context.Context, namespace string, o observed) (grants.Snapshot, error) {
	owners, err := r.owners.in(ctx, namespace)
	if err != nil {
		return grants.Snapshot{}, err
	}
	state, err := r.freeze.Of(ctx, namespace)
	if err != nil {
		return grants.Snapshot{}, err
	}
	if !state.Known {
		return grants.Snapshot{}, errNamespaceUnknown
	}
	s := grants.Snapshot{Rules: o.rules, Pods: o.pods, Owners: owners, Now: r.clock.Now(), Frozen: frozen(state),
		GracefulDeletion: state.GracefulDeletion}
	if s.Nodes, err = r.nodes.labels(ctx, o.rules); err != nil {
		return grants.Snapshot{}, err
	}
	if s.Budgets, err = r.budgets(ctx, namespace); err != nil {
		return grants.Snapshot{}, err
	}
	return s, nil
}

// errNamespaceUnknown means that the cache does not have the Namespace, which may be frozen.
var errNamespaceUnknown = errors.New("the cache does not have the namespace")

// longestReason is how many bytes of a freeze's reason are shown.
const longestReason = 256

// frozen says why nothing may be taken out of service, "" if it may.
func frozen(s freeze.State) string {
	switch {
	case !s.Frozen:
		return ""
	case strings.TrimSpace(s.Why) == "":
		return "no reason given"
	}
	return shorten.Bytes(s.Why, longestReason)
}

var collaSetKind = appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind)

// errCollaSetsUnknown means that CollaSets are served, but not in the cache yet.
var errCollaSetsUnknown = errors.New("the cache of CollaSets is being filled")

// askAgainAfter is how long a no of discovery holds.
const askAgainAfter = 5 * time.Second

// owners reads the desired replicas of the workloads of a namespace from the cache.
type owners struct {
	client client.Reader
	mapper meta.RESTMapper
	clock  clock.PassiveClock
	// watched is set when the cache of CollaSets was started. Before that they are not asked for: where their CRD is
	// missing, asking would wait for it.
	watched atomic.Bool

	mu       sync.Mutex
	notKnown time.Time // when discovery last showed that there are no CollaSets
}

func newOwners(c client.Reader, mapper meta.RESTMapper, clk clock.PassiveClock) *owners {
	return &owners{client: c, mapper: mapper, clock: clk}
}

// in returns the workloads of a namespace that want Pods. Those that want none, or are being deleted, are left out:
// their Pods count themselves.
func (w *owners) in(ctx context.Context, namespace string) ([]grants.Owner, error) {
	var all []grants.Owner
	add := func(o client.Object, replicas int32, surges bool, podLabels map[string]string) {
		if replicas > 0 && o.GetDeletionTimestamp() == nil {
			all = append(all, grants.Owner{UID: o.GetUID(), Replicas: replicas, Surges: surges,
				PodLabels: podLabels})
		}
	}
	var replicaSets appsv1.ReplicaSetList
	var statefulSets appsv1.StatefulSetList
	var collaSets appsv1alpha1.CollaSetList
	in := []client.ListOption{client.InNamespace(namespace), client.UnsafeDisableDeepCopy}
	if err := w.client.List(ctx, &replicaSets, in...); err != nil {
		return nil, fmt.Errorf("listing replicasets: %w", err)
	}
	if err := w.client.List(ctx, &statefulSets, in...); err != nil {
		return nil, fmt.Errorf("listing statefulsets: %w", err)
	}
	known, err := w.knowCollaSets()
	if err != nil {
		return nil, err
	}
	if known {
		if err := w.client.List(ctx, &collaSets, in...); err != nil {
			return nil, fmt.Errorf("listing collasets: %w", err)
		}
	}
	for i := range replicaSets.Items {
		o := &replicaSets.Items[i]
		add(o, ptr.Deref(o.Spec.Replicas, 1), false, o.Spec.Template.Labels)
	}
	for i := range statefulSets.Items {
		o := &statefulSets.Items[i]
		add(o, ptr.Deref(o.Spec.Replicas, 1), false, o.Spec.Template.Labels)
	}
	for i := range collaSets.Items {
		o := &collaSets.Items[i]
		add(o, ptr.Deref(o.Spec.Replicas, 0), drain.PolicyOf(o).Surges(), o.Spec.Template.Labels)
	}
	return all, nil
}

// knowCollaSets reports whether there are CollaSets to list. It is an error if there are, but the cache does not hold
// them yet: without their desired replicas missing Pods would not be counted.
func (w *owners) knowCollaSets() (bool, error) {
	if w.watched.Load() {
		return true, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock.Now()
	if !w.notKnown.IsZero() && now.Sub(w.notKnown) < askAgainAfter {
		return false, nil
	}
	_, err := w.mapper.RESTMapping(collaSetKind.GroupKind(), collaSetKind.Version)
	switch {
	case meta.IsNoMatchError(err):
		w.notKnown = now
		return false, nil
	case err != nil:
		return false, fmt.Errorf("asking whether the API server serves CollaSets: %w", err)
	}
	return false, errCollaSetsUnknown
}
