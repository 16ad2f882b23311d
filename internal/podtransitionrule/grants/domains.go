package grants

// domains is one bound of an availablePolicy on domains, and the state of the domains as the decision goes on. A domain
// is whatever Pods have in common, by the kind of the bound: the zone of their nodes (topology), or labels of their
// own (groups).
type domains struct {
	domainKind
	max int
	of  []int // by Pod: its domain, -1 for none

	disrupted podCounts // Pods that are down or held
	moving    podCounts // those of them that are down, or held and not awaiting a rule
	granted   podCounts // Pods held that go on, or may
}

// domainKind tells domains apart, and names them.
type domainKind interface {
	// domainOf is the domain that a Pod is in, false if it is in none.
	domainOf(d *decision, pod *pod) (domain, bool)
	// refusal says why a Pod that the bound does not let pass waits, without counters.
	refusal(pod *pod) string
}

// domain is what Pods have in common. Those with equal values are in one.
type domain struct {
	set, value string
	// single names the one node or Pod that is a domain by itself, "" for what has a value.
	single string
}

// podCounts counts Pods by domain.
type podCounts struct {
	pods []int
	some int // domains with any Pod
}

func (t *podCounts) add(domain int) {
	if t.pods[domain] == 0 {
		t.some++
	}
	t.pods[domain]++
}

// reserve keeps room for a Pod that may be in the domain, and is not to be counted on.
func (t *podCounts) reserve(domain int) {
	if t.pods[domain] == 0 {
		t.some++
	}
}

// fits reports whether one Pod more in the domain leaves no more than so many domains with any.
func (t *podCounts) fits(domain, limit int) bool {
	return t.pods[domain] > 0 || t.some < limit
}

// resolve finds the domain of every Pod.
func (t *domains) resolve(d *decision) {
	numbers := map[domain]int{}
	t.of = make([]int, len(d.pods))
	for j, pod := range d.pods {
		t.of[j] = -1
		of, found := t.domainOf(d, pod)
		if !found {
			continue
		}
		number, seen := numbers[of]
		if !seen {
			number = len(numbers)
			numbers[of] = number
		}
		t.of[j] = number
	}
	for _, each := range []*podCounts{&t.disrupted, &t.moving, &t.granted} {
		each.pods = make([]int, len(numbers))
	}
}

// observe counts a Pod of the population as it is.
func (t *domains) observe(pod *pod) {
	domain := t.of[pod.index]
	if domain < 0 {
		return
	}
	if pod.down || pod.held {
		t.disrupted.add(domain)
	}
	if pod.down || pod.held && !pod.awaitingRule {
		t.moving.add(domain)
	}
	if pod.held && !pod.awaitingRule {
		t.granted.add(domain)
	}
}

// fit reports whether the bound lets the Pod pass. It is to domains what policy.refuses is to Pods.
func (t *domains) fit(pod *pod) bool {
	domain := t.of[pod.index]
	switch {
	case t.max == 0:
		return false
	case domain < 0:
		return true
	case pod.awaitingRule:
		return t.granted.fits(domain, t.max) && (pod.down || t.moving.fits(domain, t.max))
	case pod.held:
		return pod.down || t.moving.some <= t.max
	case pod.down:
		return t.granted.fits(domain, t.max)
	default:
		return t.disrupted.fits(domain, t.max) && t.granted.fits(domain, t.max)
	}
}

// count adds a Pod that may go on from now on.
func (t *domains) count(pod *pod) { t.take(pod, (*podCounts).add) }

// reserve keeps room for a Pod that may go on, but not for others in its domain: it is meant not to, and what they
// would rely on ends with it.
func (t *domains) reserve(pod *pod) { t.take(pod, (*podCounts).reserve) }

func (t *domains) take(pod *pod, how func(*podCounts, int)) {
	domain := t.of[pod.index]
	if domain < 0 {
		return
	}
	if !pod.down && !pod.awaitingRule {
		how(&t.disrupted, domain)
	}
	if !pod.down {
		how(&t.moving, domain)
	}
	how(&t.granted, domain)
}
