package podtransitionrule

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// ownLedgers are what this process knows to be granted, by rule: what it has written, or has seen beside Pods at least
// as recent. Grants of another process (a leader before or after this one, whose last write came late) may be for
// operations that the cache of Pods does not show yet; deciding on such a cache would take them for leftovers and grant
// their budget again. test/protocol shows how two leaders break the bound without this, and that they cannot with it.
type ownLedgers map[types.UID]ledger

// ledger is the status of one rule as it is known.
type ledger struct {
	version string // spares comparing
	grants  []appsv1alpha1.PodGrant
}

// knownFrom are the grants of rules that may be decided on.
func knownFrom(rules []*appsv1alpha1.PodTransitionRule) ownLedgers {
	known := make(ownLedgers, len(rules))
	for _, r := range rules {
		known.record(r)
	}
	return known
}

// record remembers what a rule grants.
func (g ownLedgers) record(r *appsv1alpha1.PodTransitionRule) {
	g[r.UID] = ledger{r.ResourceVersion, r.Status.Grants}
}

// match reports whether all that the rules grant is known.
func (g ownLedgers) match(rules []*appsv1alpha1.PodTransitionRule) bool {
	for _, r := range rules {
		known, has := g[r.UID]
		if has && known.version == r.ResourceVersion {
			continue
		}
		if !equality.Semantic.DeepEqual(known.grants, r.Status.Grants) {
			return false
		}
	}
	return true
}
