package setplan

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/api/podops"
)

// sortCondemned puts first whom scale-in removes first.
//
// Where two Pods are equal up to their deletion cost, the one goes first that leaves the set more evenly spread: the
// one with more Pods of its domain behind it. Of several constraints the first counts most, so ranks are made from
// the last constraint to the first, each within the order that the later ones gave.
func sortCondemned(candidates []*item) {
	slices.SortFunc(candidates, condemnedOrder)
	constraints := 0
	for _, it := range candidates {
		it.ranks = make([]int, len(it.Domains))
		constraints = max(constraints, len(it.Domains))
	}
	for i := constraints - 1; i >= 0; i-- {
		behind := map[string]int{}
		for _, it := range slices.Backward(candidates) {
			if i < len(it.Domains) {
				it.ranks[i] = behind[it.Domains[i]]
				behind[it.Domains[i]]++
			}
		}
		slices.SortFunc(candidates, condemnedOrder)
	}
}

// condemnedOrder is what scale-in goes by. What was begun comes before what was not, so that the choice does not change
// under way; then those that serve least, those that the user gives up most readily, those of the fullest domains, and
// the youngest.
func condemnedOrder(a, b *item) int {
	return cmp.Or(
		first(a.isNamed(), b.isNamed()),
		first(a.During == podops.TypeScaleIn, b.During == podops.TypeScaleIn),
		-cmp.Compare(progress(a), progress(b)),
		first(a.ToDelete, b.ToDelete),
		first(!a.Scheduled, !b.Scheduled),
		cmp.Compare(phaseRank(a.Phase), phaseRank(b.Phase)),
		first(!a.Available, !b.Available),
		first(!a.View.Ready, !b.View.Ready),
		cmp.Compare(a.DeletionCost, b.DeletionCost),
		-slices.Compare(a.ranks, b.ranks),
		-a.ReadySince.Compare(b.ReadySince),
		-a.Created.Compare(b.Created),
		-cmp.Compare(a.ID, b.ID),
		cmp.Compare(a.Name(), b.Name()),
	)
}

// phaseRank is the order in which ReplicaSets give Pods up. A phase that is not said yet is Pending.
func phaseRank(phase corev1.PodPhase) int {
	switch phase {
	case corev1.PodRunning:
		return 2
	case corev1.PodUnknown:
		return 1
	default:
		return 0
	}
}

// progress is how far our scale-in of the Pod has come.
func progress(it *item) int {
	if it.During != podops.TypeScaleIn {
		return 0
	}
	switch it.Op.Phase {
	case podops.PhaseOperate:
		return 3
	case podops.PhasePreChecked, podops.PhasePreparing:
		return 2
	default:
		return 1
	}
}
