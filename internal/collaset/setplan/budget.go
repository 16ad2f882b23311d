package setplan

import "kusionstack.io/kuperator/api/podops"

// budget is what MaxUnavailable leaves: how many available Pods updates may take out of service now, and how many of
// those that serve, but have to do so for longer to be available. Against the first counts every Pod that is missing,
// not available, or under an update, also one that a rule holds back: the rule may let all of them go at once.
// Against the second only those under an update count: else a revision that never becomes available could not be
// repaired.
type budget struct{ available, serving int }

// newBudget is the one budget of a decision, from which all of it takes.
func newBudget(maxUnavailable, replicas int, isProtocol bool, pods *members) budget {
	most := maxUnavailable
	switch {
	case most == 0 && isProtocol:
		most = 2 * (len(pods.live) + replicas)
	case most == 0:
		most = 1
	}
	b := budget{available: most - replicas, serving: most}
	for _, it := range pods.live {
		isUpdating := it.during == podops.TypeUpdate || offline(it.op) || it.Recorded && !it.Carried
		if isUpdating {
			b.serving--
		}
		if it.Available && !isUpdating && !it.condemned && it.newOf == nil {
			b.available++
		}
	}
	b.available = min(b.available, most)
	return b
}

// allows reports whether the Pod may be taken out of service. One that does not serve, or that counts already, may
// always.
func (b *budget) allows(it *item) bool {
	switch {
	case it.Recorded && !it.Carried:
		return true
	case it.Available:
		return b.available > 0
	case it.inService && it.View.Ready:
		return b.serving > 0
	}
	return true
}

// take counts a Pod that is taken out.
func (b *budget) take(it *item) {
	if it.Recorded && !it.Carried {
		return
	}
	if it.Available {
		b.available--
	}
	if it.inService {
		b.serving--
	}
}
