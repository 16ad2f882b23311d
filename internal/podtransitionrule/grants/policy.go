package grants

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// unbounded is more Pods than there can be.
const unbounded = math.MaxInt32

// policy is an availablePolicy check, and the state of its population as the decision goes on.
type policy struct {
	max, min         *intstr.IntOrString
	maxFunc, minFunc *expFunc
	domains          []*domains // topology and groups, as far as they are bounded

	in      []bool // by Pod: whether it belongs to the population
	desired int
	total   int // Pods there and missing ones
	allowed int
	keep    int  // Pods of the desired ones that must stay in service, by number
	byMin   bool // a minAvailable is what limits

	unavailable int
	granted     int // Pods held that go on, or may
	// Pods held and in service that cannot go on before a rule has joined: part of unavailable, not of granted
	awaitingRule int
}

// newPolicy prepares an availablePolicy. The error says what to correct.
func newPolicy(spec *appsv1alpha1.AvailableRule) (*policy, error) {
	p := &policy{max: spec.MaxUnavailableValue, min: spec.MinAvailableValue}
	var errs [4]error
	var byNode, byGroup *domains
	p.maxFunc, errs[0] = newExpFunc("maxUnavailablePolicy", spec.MaxUnavailablePolicy)
	p.minFunc, errs[1] = newExpFunc("minAvailablePolicy", spec.MinAvailablePolicy)
	byNode, errs[2] = newTopology(spec.Topology)
	byGroup, errs[3] = newGroups(spec.Groups)
	if err := errors.Join(valid("maxUnavailableValue", p.max), valid("minAvailableValue", p.min),
		errors.Join(errs[:]...)); err != nil {
		return nil, err
	}
	for _, bound := range []*domains{byNode, byGroup} {
		if bound != nil {
			p.domains = append(p.domains, bound)
		}
	}
	if p.max == nil && p.min == nil && p.maxFunc == nil && p.minFunc == nil && len(p.domains) == 0 {
		return nil, errors.New("no bound is set: set maxUnavailableValue or minAvailableValue, " +
			"or the expFunc of maxUnavailablePolicy or minAvailablePolicy, or topology or groups")
	}
	return p, nil
}

func valid(field string, v *intstr.IntOrString) error {
	if v == nil {
		return nil
	}
	if n, err := scaled(v, 100, false); err != nil || n < 0 {
		return fmt.Errorf("%s is %q: give a number of Pods from 0, or a percentage from \"0%%\" to \"100%%\"",
			field, v.String())
	}
	return nil
}

// limit sets allowed and keep from the desired Pods and the total. surges reports whether each of the Pods can be
// replaced before it goes: then the budget that mirrors the check lets one go, or tools that look there first would not
// even try.
func (p *policy) limit(surges bool) {
	p.allowed, p.keep = unbounded, 0
	if p.max != nil {
		p.allowed, _ = scaled(p.max, p.desired, true)
	}
	if p.maxFunc != nil {
		p.allowed = min(p.allowed, p.maxFunc.of(p.desired, true))
	}
	if p.min != nil {
		p.keep, _ = scaled(p.min, p.desired, false)
	}
	if p.minFunc != nil {
		p.keep = max(p.keep, p.minFunc.of(p.desired, false))
	}
	if left := p.total - p.keep; (p.min != nil || p.minFunc != nil) && left < p.allowed {
		p.allowed, p.byMin = max(left, 0), true
	}
	p.keep = max(p.keep, p.desired-max(p.allowed, 0), 0)
	if surges {
		p.keep = max(min(p.keep, p.desired-1), 0)
	}
}

// scaled is the value as a number of Pods of n.
func scaled(v *intstr.IntOrString, n int, up bool) (int, error) {
	if v.Type == intstr.Int {
		return int(v.IntVal), nil
	}
	digits, ok := strings.CutSuffix(v.StrVal, "%")
	percent, err := strconv.Atoi(digits)
	if !ok || err != nil || percent < 0 || percent > 100 {
		return 0, fmt.Errorf("%q is no percentage", v.StrVal)
	}
	if up {
		return (n*percent + 99) / 100, nil
	}
	return n * percent / 100, nil
}

// refuses says why availability does not let the Pod pass, "" if it does.
func (p *policy) refuses(pod *pod) string {
	var fits bool
	switch {
	case p.isRelieved(pod):
		return ""
	case p.allowed == 0:
	case !p.in[pod.index]: // has run to its end: not counted
		fits = true
	case pod.awaitingRule:
		fits = p.granted+1 <= p.allowed && (pod.down || p.unavailable-p.awaitingRule+1 <= p.allowed)
	case pod.held:
		fits = pod.down || p.unavailable-p.awaitingRule <= p.allowed
	case pod.down:
		fits = p.granted+1 <= p.allowed
	default:
		fits = p.unavailable+1 <= p.allowed
	}
	switch {
	case !fits && p.byMin:
		return "blocked by min available policy"
	case !fits:
		return "blocked by max unavailable policy"
	}
	for _, bound := range p.domains {
		if !bound.fit(pod) {
			return bound.refusal(pod)
		}
	}
	return ""
}

// count adds a Pod that may go on from now on.
func (p *policy) count(pod *pod) { p.take(pod, (*domains).count) }

// reserve adds a Pod whose grant is being taken back: until that is written it may go on.
func (p *policy) reserve(pod *pod) { p.take(pod, (*domains).reserve) }

func (p *policy) take(pod *pod, inDomains func(*domains, *pod)) {
	if !p.in[pod.index] {
		return
	}
	switch {
	case pod.down:
	case pod.awaitingRule:
		p.awaitingRule--
	default:
		p.unavailable++
	}
	p.granted++
	for _, bound := range p.domains {
		inDomains(bound, pod)
	}
}

// observe counts the Pods of the population as they are.
func (p *policy) observe(d *decision, selected []bool, filter labels.Selector) {
	p.in = make([]bool, len(d.pods))
	for _, bound := range p.domains {
		bound.resolve(d)
	}
	for j, pod := range d.pods {
		p.in[j] = !pod.Terminal && selected[j] && (filter == nil || filter.Matches(pod.labels))
	}
	for j, pod := range d.pods {
		if p.in[j] && p.isRelieved(pod) {
			p.in[j] = false // no Pod is relieved by one that is relieved
		}
		if !p.in[j] {
			continue
		}
		p.total++
		if pod.down || pod.held {
			p.unavailable++
		}
		switch {
		case pod.held && !pod.awaitingRule:
			p.granted++
		case pod.awaitingRule && !pod.down:
			p.awaitingRule++
		}
		for _, bound := range p.domains {
			bound.observe(pod)
		}
	}
}

// population is the desired and the missing Pods of the Pods for which in is true, with so many more of each owner that
// are left out (nil: none). applies reports whether an owner's Pod template would belong to them.
func population(
	d *decision, in []bool, surplus []int, applies func(labels.Labels) bool,
) (desired, missing int) {
	selected := make([]int, len(d.owners)) // by owner
	for i, p := range d.pods {
		if !in[i] {
			continue
		}
		if p.owner < 0 {
			desired++
			continue
		}
		selected[p.owner]++
	}
	for i := range d.owners {
		o := &d.owners[i]
		replicas, live := int(o.Replicas), o.live
		if surplus != nil {
			live -= surplus[i]
		}
		switch {
		case replicas == 0:
			desired += selected[i]
		case live == 0 && !applies(labels.Set(o.PodLabels)):
		case selected[i] == live:
			desired += replicas
			missing += max(0, replicas-live)
		default:
			desired += min(selected[i], replicas)
		}
	}
	return desired, missing
}
