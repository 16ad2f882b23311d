package collaset

import (
	"context"
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/drain"
)

// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list

// observeBudgets finds out which Pods that are replaced for an eviction a PodDisruptionBudget lets not go now: the
// deletion of such a Pod keeps to it as the eviction would. It reads past the cache, while there are such Pods.
func observeBudgets(ctx context.Context, live client.Reader, o *observation) error {
	var budgets policyv1.PodDisruptionBudgetList
	isRead := false
	for i := range o.snapshot.Pods {
		p := &o.snapshot.Pods[i]
		p.Budget = ""
		if !p.IsEvicted() || p.ToDelete {
			continue
		}
		if !isRead {
			if err := live.List(ctx, &budgets, client.InNamespace(o.set.Namespace)); err != nil {
				return fmt.Errorf("listing PodDisruptionBudgets: %w", err)
			}
			isRead = true
		}
		p.Budget = drain.Exhausted(budgets.Items, p.View.Labels)
	}
	return nil
}
