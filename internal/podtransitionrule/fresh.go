package podtransitionrule

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/freshness"
)

// shows reports whether the cache has come at least as far as the API server had after this process won its Lease.
// Caches were started before and may lag behind what the leader before us has done.
func (o observed) shows(n *freshness.Namespace) bool {
	pods, rules := make(map[types.UID]string, len(o.pods)), make(map[types.UID]string, len(o.rules))
	for i := range o.pods {
		pods[o.pods[i].UID] = o.pods[i].ResourceVersion
	}
	for _, rule := range o.rules {
		rules[rule.UID] = rule.ResourceVersion
	}
	return n.ShownBy(pods, rules)
}

// ensureFresh answers zero if the cache may be decided on, else when to look again.
func (r *reconciler) ensureFresh(ctx context.Context, name string, ns *namespace, o observed) (time.Duration, error) {
	if !ns.known.match(o.rules) { // another leader has granted, or taken back, for reasons that our Pods may not show yet
		ns.check.Repeat()
	}
	read := func() (*freshness.Namespace, error) {
		return freshness.ReadNamespace(ctx, r.direct, name, corev1.SchemeGroupVersion.WithKind("Pod"),
			appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodTransitionRuleKind))
	}
	wait, err := ns.check.Pass(r.clock.Now(), read, o.shows)
	if err == nil && wait == 0 {
		ns.known = knownFrom(o.rules)
	}
	return wait, err
}
