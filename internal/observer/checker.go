package observer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// The published keys that the observer reads, spelled out once more on purpose.
const (
	controlLabel       = "kusionstack.io/control"
	instanceIDLabel    = "collaset.kusionstack.io/instance-id"
	serviceReady       = "pod.kusionstack.io/service-ready"
	skipRules          = "podtransitionrule.kusionstack.io/skip-rule-conditions"
	protocolSuffix     = ".podopslifecycle.kusionstack.io/"
	preparingPrefix    = "preparing" + protocolSuffix
	operatePrefix      = "operate" + protocolSuffix
	preCheckKeysPrefix = "pre-check"
)

// Invariant names a promise.
type Invariant string

// The promises that are checked. See the package's comment.
const (
	Budget     Invariant = "Budget"
	InstanceID Invariant = "InstanceID"
	Traffic    Invariant = "Traffic"
	Stuck      Invariant = "Stuck"
)

// Violation is one broken promise.
type Violation struct {
	// Invariant is the promise.
	Invariant Invariant
	// Time is when the observer received the event, by its own clock.
	Time time.Time
	// ResourceVersion is that of the event; 0 for Stuck, which no event shows.
	ResourceVersion uint64
	// Object is "<kind> <namespace>/<name>".
	Object string
	// Message says what happened and what was promised.
	Message string
}

func (v Violation) String() string {
	return fmt.Sprintf("%s at %s (resourceVersion %d): %s: %s", v.Invariant, v.Time.Format("15:04:05.000"), v.ResourceVersion, v.Object, v.Message)
}

// Options adjust the checks. The zero value checks everything with its defaults.
type Options struct {
	// Direct says that Pods are operated without the Pod protocol, so that they
	// may be changed while they serve: Traffic is not checked.
	Direct bool
	// StuckAfter is how long a Pod may stay out of service without any change of
	// its protocol state. 0 means a minute; negative means for ever.
	StuckAfter time.Duration
	// Settle is how long a new rule, or a smaller allowance of a rule, need not
	// be known to everybody: what is in flight meanwhile is judged by what held
	// before. 0 means 2 s.
	Settle time.Duration
	// Hold is how long an event waits for events of other kinds with a lower
	// resourceVersion before it is judged. Watches of one API server lag each
	// other by milliseconds, on a machine that is out of breath by seconds. 0
	// means 5 s. Only Observer heeds it.
	Hold time.Duration
}

const defaultHold = 5 * time.Second

// Event is one change of one object.
type Event struct {
	// ResourceVersion orders events of all kinds.
	ResourceVersion uint64
	// Time is when it was received.
	Time time.Time
	// Deleted says that Object is gone and Object its last state.
	Deleted bool
	// Object is a *Pod, *Service, *EndpointSlice, *ReplicaSet, *CollaSet or
	// *PodTransitionRule. Others are ignored.
	Object metav1.Object
}

type key = types.NamespacedName

// Checker judges a sequence of events. It is not safe for concurrent use.
type Checker struct {
	options Options

	pods     map[key]*pod
	rules    map[key]*rule
	replicas map[types.UID]int // wanted Pods by owner
	services map[key]bool      // under control?
	slices   map[key]slice

	violations []Violation
	uids       map[string]map[types.UID]bool
	outTotal   map[string]time.Duration
	versions   map[types.UID]int
}

type pod struct {
	obj    *corev1.Pod
	served bool // was Ready once
	out    bool
	// since is when it went out, or last changed its protocol state while out.
	outSince, stateSince time.Time
	stuck                bool // reported
}

type slice struct {
	service string
	ready   map[types.UID]bool
	byName  map[string]bool
}

type rule struct {
	obj      *appsv1alpha1.PodTransitionRule
	selector labels.Selector
	created  time.Time
	// peak is the number of Pods that once served at a time, at most what was wanted since.
	peak, desired int
	allowed       int
	// formerly is a larger allowance that still holds until formerlyUntil.
	formerly      int
	formerlyUntil time.Time
	maxOut        int
	maxOutAllowed int
	maxOutAt      time.Time
}

// NewChecker returns a Checker that has seen nothing.
func NewChecker(o Options) *Checker {
	o.StuckAfter = cmp.Or(o.StuckAfter, time.Minute)
	o.Settle = cmp.Or(o.Settle, 2*time.Second)
	return &Checker{
		options: o,
		pods:    map[key]*pod{}, rules: map[key]*rule{}, replicas: map[types.UID]int{},
		services: map[key]bool{}, slices: map[key]slice{},
		uids: map[string]map[types.UID]bool{}, outTotal: map[string]time.Duration{}, versions: map[types.UID]int{},
	}
}

// Apply takes the next event. Events must come in the order of their
// resourceVersions.
func (c *Checker) Apply(e Event) {
	at := key{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()}
	switch obj := e.Object.(type) {
	case *corev1.Pod:
		c.applyPod(at, obj, e)
	case *appsv1alpha1.PodTransitionRule:
		c.applyRule(at, obj, e)
	case *appsv1alpha1.CollaSet:
		c.setReplicas(obj.UID, obj.Spec.Replicas, e.Deleted)
	case *appsv1.ReplicaSet:
		c.setReplicas(obj.UID, obj.Spec.Replicas, e.Deleted)
	case *corev1.Service:
		c.services[at] = !e.Deleted && obj.Labels[controlLabel] == "true"
	case *discoveryv1.EndpointSlice:
		c.applySlice(at, obj, e)
	}
	for _, r := range c.rules {
		c.recount(r, e.Time)
	}
}

func (c *Checker) setReplicas(owner types.UID, replicas *int32, gone bool) {
	switch {
	case gone:
		delete(c.replicas, owner)
	case replicas == nil:
		c.replicas[owner] = 1
	default:
		c.replicas[owner] = int(*replicas)
	}
}

func (c *Checker) applySlice(at key, obj *discoveryv1.EndpointSlice, e Event) {
	if e.Deleted {
		delete(c.slices, at)
		return
	}
	s := slice{service: obj.Labels[discoveryv1.LabelServiceName], ready: map[types.UID]bool{}, byName: map[string]bool{}}
	for _, endpoint := range obj.Endpoints {
		ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
		if ready && endpoint.TargetRef != nil && endpoint.TargetRef.Kind == "Pod" {
			if endpoint.TargetRef.UID != "" {
				s.ready[endpoint.TargetRef.UID] = true
			} else {
				s.byName[endpoint.TargetRef.Name] = true
			}
		}
	}
	c.slices[at] = s
}

func (c *Checker) applyRule(at key, obj *appsv1alpha1.PodTransitionRule, e Event) {
	if e.Deleted {
		delete(c.rules, at)
		return
	}
	r := c.rules[at]
	if r == nil || r.obj.UID != obj.UID {
		r = &rule{created: e.Time, allowed: -1}
		c.rules[at] = r
	}
	selector, err := metav1.LabelSelectorAsSelector(obj.Spec.Selector)
	if err != nil {
		selector = labels.Nothing()
	}
	r.obj, r.selector = obj, selector
}

func (c *Checker) applyPod(at key, obj *corev1.Pod, e Event) {
	c.versions[obj.UID]++
	before := c.pods[at]
	if before != nil && before.obj.UID != obj.UID {
		c.forget(at, before, e.Time) // its deletion was missed
		before = nil
	}
	if e.Deleted {
		if before != nil {
			c.checkTraffic(before, obj, e)
			c.forget(at, before, e.Time)
		}
		return
	}
	now := &pod{obj: obj}
	if before != nil {
		*now = *before
		now.obj = obj
		c.checkTraffic(before, obj, e)
	}
	ready := isReady(obj)
	now.served = now.served || ready
	away := isAway(obj)
	switch {
	case now.served && away && !now.out:
		now.out, now.outSince, now.stateSince, now.stuck = true, e.Time, e.Time, false
	case now.out && ready && !away, now.out && isTerminal(obj) && obj.DeletionTimestamp == nil:
		c.back(now, e.Time)
	case now.out && before != nil && protocolState(before.obj) != protocolState(obj):
		now.stateSince, now.stuck = e.Time, false
	}
	c.pods[at] = now
	c.rememberUID(obj)
	c.checkInstanceID(at, obj, e)
	if now.out && (before == nil || !before.out) && before != nil {
		c.checkBudget(now, e)
	}
}

func (c *Checker) forget(at key, p *pod, when time.Time) {
	if p.out {
		c.back(p, when)
	}
	delete(c.pods, at)
}

func (c *Checker) back(p *pod, when time.Time) {
	c.outTotal[slot(p.obj)] += when.Sub(p.outSince)
	p.out = false
}

// rememberUID counts the Pods that have filled one place of a workload.
func (c *Checker) rememberUID(obj *corev1.Pod) {
	at := slot(obj)
	if c.uids[at] == nil {
		c.uids[at] = map[types.UID]bool{}
	}
	c.uids[at][obj.UID] = true
}

// slot names a Pod's place: its instance ID in its workload, else its name.
func slot(obj *corev1.Pod) string {
	if id, owner := obj.Labels[instanceIDLabel], metav1.GetControllerOf(obj); id != "" && owner != nil {
		return fmt.Sprintf("%s/%s[%s]", obj.Namespace, owner.Name, id)
	}
	return obj.Namespace + "/" + obj.Name
}

func (c *Checker) checkInstanceID(at key, obj *corev1.Pod, e Event) {
	id, owner := obj.Labels[instanceIDLabel], metav1.GetControllerOf(obj)
	if id == "" || owner == nil || !isLive(obj) {
		return
	}
	for otherAt, other := range c.pods {
		otherOwner := metav1.GetControllerOf(other.obj)
		if otherAt != at && otherOwner != nil && otherOwner.UID == owner.UID && other.obj.Labels[instanceIDLabel] == id && isLive(other.obj) {
			c.report(InstanceID, e, obj, fmt.Sprintf("instance ID %s of %s %s is also that of Pod %s", id, owner.Kind, owner.Name, other.obj.Name))
		}
	}
}

// checkTraffic judges what an operation did by what was known just before.
func (c *Checker) checkTraffic(before *pod, obj *corev1.Pod, e Event) {
	if c.options.Direct || obj.Labels[controlLabel] != "true" || before.obj.DeletionTimestamp != nil {
		return
	}
	what := ""
	switch {
	case (obj.DeletionTimestamp != nil || e.Deleted) && hasKey(before.obj, operatePrefix):
		what = "was deleted by an operation"
	case !slices.Equal(images(before.obj), images(obj)):
		what = fmt.Sprintf("had its images changed from %v to %v", images(before.obj), images(obj))
	default:
		return
	}
	if isReady(before.obj) && hasGate(before.obj) {
		c.report(Traffic, e, obj, what+" while it was Ready")
	}
	for at, s := range c.slices {
		listed := s.ready[obj.UID] || s.byName[obj.Name]
		if at.Namespace == obj.Namespace && c.services[key{Namespace: at.Namespace, Name: s.service}] && listed {
			c.report(Traffic, e, obj, fmt.Sprintf("%s while EndpointSlice %s of Service %s listed it as ready", what, at.Name, s.service))
		}
	}
}

func (c *Checker) checkBudget(p *pod, e Event) {
	for at, r := range c.rules {
		if !r.selects(p.obj) || excused(p.obj, r.obj) {
			continue
		}
		c.recount(r, e.Time)
		out, missing := c.outOf(r)
		allowed := r.allowed
		if e.Time.Before(r.formerlyUntil) {
			allowed = max(allowed, r.formerly)
		}
		if out+missing > r.maxOut {
			r.maxOut, r.maxOutAllowed, r.maxOutAt = out+missing, allowed, e.Time
		}
		if r.allowed < 0 || e.Time.Sub(r.created) < c.options.Settle {
			continue
		}
		if out+missing > allowed {
			c.report(Budget, e, p.obj, fmt.Sprintf("went out of service as number %d of rule %s, which allows %d of %d (%d of them missing); out: %s",
				out+missing, at.Name, allowed, r.desired, missing, strings.Join(c.outNames(r), ", ")))
		}
	}
}

// recount brings what is wanted and allowed up to date.
func (c *Checker) recount(r *rule, when time.Time) {
	type share struct{ selected, all int }
	shares := map[types.UID]share{}
	loose, served := 0, 0
	for _, p := range c.pods {
		if p.obj.Namespace != r.obj.Namespace || isTerminal(p.obj) && p.obj.DeletionTimestamp == nil {
			continue
		}
		selected := r.selects(p.obj)
		if selected && p.served {
			served++
		}
		owner := metav1.GetControllerOf(p.obj)
		if owner == nil {
			if selected {
				loose++
			}
			continue
		}
		s := shares[owner.UID]
		s.all++
		if selected {
			s.selected++
		}
		shares[owner.UID] = s
	}
	desired := loose
	for owner, s := range shares {
		wanted, known := c.replicas[owner]
		switch {
		case s.selected == 0:
		case known && s.selected == s.all:
			desired += wanted
		default:
			desired += s.selected
		}
	}
	r.desired = desired
	r.peak = min(max(r.peak, served), desired)
	allowed := allowance(r.obj, desired, max(served-desired, 0))
	if r.allowed >= 0 && allowed < r.allowed {
		r.formerly, r.formerlyUntil = max(r.allowed, r.stillFormerly(when)), when.Add(c.options.Settle)
	}
	r.allowed = allowed
}

func (r *rule) stillFormerly(when time.Time) int {
	if when.Before(r.formerlyUntil) {
		return r.formerly
	}
	return 0
}

// outOf counts the rule's Pods that are out of service, and those that are gone and still wanted.
func (c *Checker) outOf(r *rule) (out, missing int) {
	served := 0
	for _, p := range c.pods {
		if !r.selects(p.obj) || !p.served {
			continue
		}
		served++
		if p.out {
			out++
		}
	}
	return out, max(0, r.peak-served)
}

func (c *Checker) outNames(r *rule) []string {
	var names []string
	for at, p := range c.pods {
		if p.out && r.selects(p.obj) {
			names = append(names, at.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Tick tells the Checker the time, for what no event shows.
func (c *Checker) Tick(now time.Time) {
	if c.options.StuckAfter < 0 {
		return
	}
	for _, p := range c.pods {
		if p.out && !p.stuck && now.Sub(p.stateSince) > c.options.StuckAfter {
			p.stuck = true
			c.report(Stuck, Event{Time: now}, p.obj, fmt.Sprintf("is out of service and has not moved for %s: %s",
				now.Sub(p.stateSince).Round(time.Second), protocolState(p.obj)))
		}
	}
}

func (c *Checker) report(i Invariant, e Event, obj *corev1.Pod, message string) {
	c.violations = append(c.violations, Violation{
		Invariant: i, Time: e.Time, ResourceVersion: e.ResourceVersion,
		Object: "Pod " + obj.Namespace + "/" + obj.Name, Message: message,
	})
}

func (r *rule) selects(obj *corev1.Pod) bool {
	return obj.Namespace == r.obj.Namespace && r.selector.Matches(labels.Set(obj.Labels))
}

// excused says whether the Pod's owner has freed it from the rule.
func excused(obj *corev1.Pod, r *appsv1alpha1.PodTransitionRule) bool {
	var skip struct {
		SkipRules []string `json:"skipRules"`
	}
	if json.Unmarshal([]byte(obj.Annotations[skipRules]), &skip) != nil {
		return false
	}
	return slices.ContainsFunc(r.Spec.Rules, func(t appsv1alpha1.TransitionRule) bool { return slices.Contains(skip.SkipRules, t.Name) })
}

// allowance is the least that the rule's checks allow of the wanted Pods; -1 if
// none bounds their number. What a minAvailable demands may be served by Pods
// beyond the wanted ones: surplus is how many there are. Filtered checks bound
// only a part of the Pods, and topology budgets no number: neither is judged.
func allowance(r *appsv1alpha1.PodTransitionRule, desired, surplus int) int {
	allowed := -1
	for i := range r.Spec.Rules {
		t := &r.Spec.Rules[i]
		if t.Disabled || t.Filter != nil || len(t.Conditions) > 0 || t.AvailablePolicy == nil || t.Stage != nil && *t.Stage == appsv1alpha1.StagePostCheck {
			continue
		}
		p := t.AvailablePolicy
		if v := p.MaxUnavailableValue; v != nil {
			allowed = tighter(allowed, scaled(v, desired, true))
		}
		if f := p.MaxUnavailablePolicy; f != nil && f.ExpFunc != nil {
			allowed = tighter(allowed, computed(f.ExpFunc, desired, math.Ceil))
		}
		if v := p.MinAvailableValue; v != nil {
			allowed = tighter(allowed, desired+surplus-scaled(v, desired, false))
		}
		if f := p.MinAvailablePolicy; f != nil && f.ExpFunc != nil {
			allowed = tighter(allowed, desired+surplus-computed(f.ExpFunc, desired, math.Floor))
		}
	}
	return allowed
}

// tighter is the smaller of two bounds, of which -1 is none.
func tighter(bound, other int) int {
	other = max(other, 0)
	if bound < 0 || other < bound {
		return other
	}
	return bound
}

// computed is coeff * total^pow, rounded, from 0 to total. What cannot be read
// counts as 0, as a value does that is no percentage.
func computed(f *appsv1alpha1.ExpFunc, total int, round func(float64) float64) int {
	coeff, errCoeff := strconv.ParseFloat(cmp.Or(f.Coeff, "1"), 64)
	pow, errPow := strconv.ParseFloat(cmp.Or(f.Pow, "1"), 64)
	if errCoeff != nil || errPow != nil || total <= 0 || coeff <= 0 {
		return 0
	}
	exact := min(coeff*math.Pow(float64(total), pow), float64(total))
	// a ten-millionth of a Pod is the error of calculating in binary
	return int(round(math.Round(exact*1e7) / 1e7))
}

func scaled(v *intstr.IntOrString, total int, up bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(v, total, up)
	if err != nil {
		return 0
	}
	return n
}

func conditionStatus(obj *corev1.Pod, t corev1.PodConditionType) corev1.ConditionStatus {
	for _, condition := range obj.Status.Conditions {
		if condition.Type == t {
			return condition.Status
		}
	}
	return ""
}

func isReady(obj *corev1.Pod) bool {
	return conditionStatus(obj, corev1.PodReady) == corev1.ConditionTrue
}

func isTerminal(obj *corev1.Pod) bool {
	return obj.Status.Phase == corev1.PodSucceeded || obj.Status.Phase == corev1.PodFailed
}

func isLive(obj *corev1.Pod) bool {
	return obj.DeletionTimestamp == nil && !isTerminal(obj)
}

func hasGate(obj *corev1.Pod) bool {
	return slices.ContainsFunc(obj.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return g.ConditionType == serviceReady })
}

func hasKey(obj *corev1.Pod, prefix string) bool {
	for k := range obj.Labels {
		if strings.HasPrefix(k, prefix) {
			return true
		}
	}
	return false
}

// isAway says whether an operation has the Pod out of service.
func isAway(obj *corev1.Pod) bool {
	return obj.DeletionTimestamp != nil || conditionStatus(obj, serviceReady) == corev1.ConditionFalse ||
		hasKey(obj, preparingPrefix) || hasKey(obj, operatePrefix)
}

func images(obj *corev1.Pod) []string {
	var all []string
	for _, container := range slices.Concat(obj.Spec.InitContainers, obj.Spec.Containers) {
		all = append(all, container.Name+"="+container.Image)
	}
	return all
}

// protocolState is what of a Pod moves when an operation makes progress.
func protocolState(obj *corev1.Pod) string {
	var state []string
	for _, k := range slices.Sorted(maps.Keys(obj.Labels)) {
		if prefix, id, ok := strings.Cut(k, protocolSuffix); ok && !strings.HasPrefix(prefix, preCheckKeysPrefix) {
			state = append(state, prefix+"/"+id)
		}
	}
	state = append(state, fmt.Sprintf("finalizers=%v", obj.Finalizers), "service-ready="+string(conditionStatus(obj, serviceReady)),
		"Ready="+string(conditionStatus(obj, corev1.PodReady)), fmt.Sprint(images(obj)))
	return strings.Join(state, " ")
}
