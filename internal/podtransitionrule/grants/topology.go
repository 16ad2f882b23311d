package grants

// domains is the topology budget of an availablePolicy, and the state of its domains as the decision goes on.
type domains struct {
	key string
	max int
	of  []int // by Pod: its domain, -1 for none

	disrupted podCounts // Pods that are down or held
	moving    podCounts // those of them that are down, or held and not awaiting a rule
	granted   podCounts // Pods held that go on, or may
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

// resolve finds the domain of every Pod. A node that is not known is a domain by itself: whatever it turns out to be,
// it makes no more domains than were counted.
func (t *domains) resolve(d *decision) {
	numbers := map[string]int{}
	t.of = make([]int, len(d.pods))
	for j, pod := range d.pods {
		t.of[j] = -1
		if pod.NodeName == "" {
			continue
		}
		name := "node/" + pod.NodeName
		if labels, known := d.Nodes[pod.NodeName]; known {
			name = "value/" + labels[t.key]
		}
		number, seen := numbers[name]
		if !seen {
			number = len(numbers)
			numbers[name] = number
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

// fit reports whether the budget lets the Pod pass. It is to domains what policy.refuses is to Pods.
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
