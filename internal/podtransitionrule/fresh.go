package podtransitionrule

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/freshness"
)

// lookAgain is how long to wait for a cache that is behind.
const lookAgain = 25 * time.Millisecond

// baseline is a namespace as the API server had it after this process won its Lease. Caches were started before and may
// lag behind what the leader before us has done; they may be decided on when they show all of it.
type baseline struct{ pods, rules freshness.Baseline }

// readBaseline reads past the cache.
func readBaseline(ctx context.Context, direct client.Reader, namespace string) (*baseline, error) {
	version := (*metav1.PartialObjectMetadata).GetResourceVersion
	pod, rule := corev1.SchemeGroupVersion.WithKind("Pod"),
		appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodTransitionRuleKind)
	pods, err := freshness.ReadBaseline(ctx, direct, pod, version, client.InNamespace(namespace))
	if err != nil {
		return nil, err
	}
	rules, err := freshness.ReadBaseline(ctx, direct, rule, version, client.InNamespace(namespace))
	return &baseline{pods, rules}, err
}

// shows reports whether the cache has come at least as far.
func (o observed) shows(b *baseline) bool {
	pods, rules := make(map[types.UID]string, len(o.pods)), make(map[types.UID]string, len(o.rules))
	for i := range o.pods {
		pods[o.pods[i].UID] = o.pods[i].ResourceVersion
	}
	for _, rule := range o.rules {
		rules[rule.UID] = rule.ResourceVersion
	}
	return b.pods.ShownBy(pods) && b.rules.ShownBy(rules)
}

// ensureFresh answers zero if the cache may be decided on, else when to look again.
func (r *reconciler) ensureFresh(ctx context.Context, name string, ns *namespace, o observed) (time.Duration, error) {
	if !ns.known.match(o.rules) { // another leader has granted, or taken back, for reasons that our Pods may not show yet
		ns.check.Repeat()
	}
	read := func() (*baseline, error) { return readBaseline(ctx, r.direct, name) }
	fresh, err := ns.check.Pass(r.clock.Now(), read, o.shows)
	switch {
	case err != nil:
		return 0, err
	case !fresh:
		return lookAgain, nil
	}
	ns.known = knownFrom(o.rules)
	return 0, nil
}
