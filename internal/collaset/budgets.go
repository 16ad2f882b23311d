package collaset

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/drain"
)

// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list

// observeBudgets finds out which Pods that are replaced for an eviction a PodDisruptionBudget lets not go now: the
// deletion of such a Pod keeps to it as the eviction would. It reads past the cache, while there are such Pods.
// What cannot be read keeps such Pods, and nothing else.
func observeBudgets(ctx context.Context, live client.Reader, o *observation) {
	var budgets policyv1.PodDisruptionBudgetList
	var err error
	isRead := false
	for i := range o.snapshot.Pods {
		p := &o.snapshot.Pods[i]
		p.Budget = ""
		if !p.IsEvicted() || p.ToDelete {
			continue
		}
		if !isRead {
			err, isRead = live.List(ctx, &budgets, client.InNamespace(o.set.Namespace)), true
		}
		if err != nil {
			p.Budget = "PodDisruptionBudgets cannot be read: " + err.Error()
		} else if name := drain.Exhausted(budgets.Items, p.View.Labels); name != "" {
			p.Budget = "PodDisruptionBudget " + name + " allows no disruption now, more of its Pods have to be healthy"
		}
	}
}
