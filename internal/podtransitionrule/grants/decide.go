package grants

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// stages in which rules are asked.
var stages = [...]appsv1alpha1.TransitionRuleStage{appsv1alpha1.StagePreCheck, appsv1alpha1.StagePostCheck}

// Decide returns what the ledger of the namespace must become, and the questions to webhooks. It is deterministic, does
// not depend on the order of its inputs, and gives nothing to write for a ledger that is as it should be.
func Decide(s Snapshot) Plan {
	d := observe(s)
	for _, c := range d.inOrder() {
		d.decidePod(c)
	}
	return d.plan()
}

// decision is one run of Decide.
type decision struct {
	Snapshot
	rules    []*rule // by name
	byUID    map[types.UID]*rule
	policies []*policy
	pods     []*pod // by name
	owners   []owner
	selects  [][]bool // by rule, by Pod
	cases    []*pending
	// grants and verdicts are the outcome, by rule.
	grants   [][]appsv1alpha1.PodGrant
	verdicts [][]verdict
	// former counts the entries among them that let nothing go on before the rule has granted again, by rule.
	former []int
	served int
	// questions are the questions to webhooks.
	questions []Question
}

type owner struct {
	Owner
	live int // Pods that have not run to their end, in any rule or none
}

// pod is a Pod with what the decision derives from it.
type pod struct {
	*Pod
	index        int
	owner        int // in decision.owners, -1 if unknown
	labels       labels.Set
	ops          []podops.Operation
	managed      bool
	inService    bool
	down         bool // counts as unavailable, granted or not
	held         bool // has a PreCheck grant that may have been acted on
	awaitingRule bool // is held, but nothing goes on before another rule has joined
	relief       *pod // serves in the Pod's place, which is therefore one too many; nil for none
}

// pending is a Pod at one stage, with the entries it has and the operations that wait.
type pending struct {
	*pod
	stage   appsv1alpha1.TransitionRuleStage
	entries entries // by rule
	waiting []podops.Operation
	held    bool
	partial bool
	since   moment // of the oldest request that waits
}

// verdict is what one rule has to say about a Pod in a stage.
type verdict struct {
	*pending
	passed  []string
	rejects []appsv1alpha1.RejectInfo
	granted bool
	listed  bool // in status
	order   int
}

func observe(s Snapshot) *decision {
	d := &decision{Snapshot: s, byUID: make(map[types.UID]*rule, len(s.Rules))}
	for _, r := range s.Rules {
		d.rules = append(d.rules, compile(r, s.Invalid[r.UID]))
	}
	slices.SortFunc(d.rules, func(a, b *rule) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(a.UID), string(b.UID)))
	})
	for _, r := range d.rules {
		d.byUID[r.UID] = r
	}
	d.grants = make([][]appsv1alpha1.PodGrant, len(d.rules))
	d.verdicts = make([][]verdict, len(d.rules))
	d.former = make([]int, len(d.rules))
	d.observePods()
	d.observeGrants()
	d.observeRelief()
	for i := range d.verdicts {
		d.verdicts[i] = make([]verdict, 0, len(d.cases))
	}
	d.observePolicies()
	return d
}

func (d *decision) observePods() {
	owners := make(map[types.UID]int, len(d.Owners))
	for _, o := range d.Owners {
		owners[o.UID] = len(d.owners)
		d.owners = append(d.owners, owner{Owner: o})
	}
	d.pods = make([]*pod, len(d.Pods))
	records := make([]pod, len(d.Pods))
	for i := range d.Pods {
		p := &records[i]
		p.Pod, p.labels, p.owner = &d.Pods[i], d.Pods[i].Labels, -1
		p.managed = p.labels[appsv1alpha1.ControlLabel] == appsv1alpha1.ControlValue
		p.ops = podops.Operations(p.View)
		p.inService = p.Ready && !p.Terminating && !p.Terminal &&
			(!p.managed || p.ServiceAvailable() && !slices.ContainsFunc(p.ops, podops.Operation.Offline))
		p.down = !p.inService
		if at, known := owners[p.Owner]; known && p.Owner != "" {
			p.owner = at
			if !p.Terminal {
				d.owners[at].live++
			}
		}
		d.pods[i] = p
	}
	slices.SortFunc(d.pods, func(a, b *pod) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(a.UID), string(b.UID)))
	})
	for i, p := range d.pods {
		p.index = i
	}
}

// observeGrants brings the entries of all rules and the operations that wait together.
func (d *decision) observeGrants() {
	type podStage struct {
		uid   types.UID
		stage appsv1alpha1.TransitionRuleStage
	}
	byPodStage := map[podStage]entries{}
	for _, r := range d.rules {
		for _, g := range r.Status.Grants {
			at := podStage{g.PodUID, g.Stage}
			g.Generation = podops.GrantedUnder(r.PodTransitionRule, g)
			if byPodStage[at] == nil {
				byPodStage[at] = entries{}
			}
			byPodStage[at][r.UID] = g
		}
	}
	for _, p := range d.pods {
		if len(p.ops) == 0 && len(byPodStage) == 0 {
			continue
		}
		for _, stage := range stages {
			granted, waits := byPodStage[podStage{p.UID, stage}], waiting(p, stage)
			if len(granted) == 0 && len(waits) == 0 {
				continue
			}
			c := &pending{pod: p, stage: stage, entries: granted, waiting: waits}
			for _, o := range c.waiting {
				if asked := momentOf(o.Request); c.since.text == "" || asked.before(c.since) {
					c.since = asked
				}
			}
			c.held = d.isHeld(c)
			c.partial = !c.held && slices.ContainsFunc(c.waiting, func(o podops.Operation) bool { return c.covered(o) })
			if stage == appsv1alpha1.StagePreCheck {
				p.held, p.awaitingRule = c.held, c.held && d.isStuck(c)
			}
			d.cases = append(d.cases, c)
		}
	}
}

// waiting are the operations that rules may let go on from a stage. A request without a type waits for its operator,
// and a finished one without a mark for lifecycle-controller.
func waiting(p *pod, stage appsv1alpha1.TransitionRuleStage) []podops.Operation {
	if !p.managed || p.Terminating {
		return nil
	}
	var ops []podops.Operation
	for _, o := range p.ops {
		at, waits := podops.StageOfPhase(o.Phase)
		if !waits || at != stage || o.Type == "" || (stage == appsv1alpha1.StagePostCheck && o.Request == "") {
			continue
		}
		ops = append(ops, o)
	}
	return ops
}

// covered reports whether any entry covers the operation.
func (c *pending) covered(o podops.Operation) bool {
	for _, g := range c.entries {
		if podops.Covers(g, o) {
			return true
		}
	}
	return false
}

// isHeld reports whether the grant may have been acted on and must be kept.
func (d *decision) isHeld(c *pending) bool {
	for _, g := range c.entries {
		for _, o := range g.Operations {
			waits := slices.ContainsFunc(c.waiting, func(w podops.Operation) bool { return operation(w) == o })
			under := inFlight(c.pod, c.stage, o)
			out := c.stage == appsv1alpha1.StagePreCheck && !c.inService && !c.Terminal
			// What is half written and still waits was never acted on; what is half written and over was half released.
			if under && !waits || (under || out) && d.complete(c, o) {
				return true
			}
		}
	}
	return false
}

// isStuck reports whether a rule that came to bear on the held Pod, or has another spec than it granted under, keeps
// all that it asks for from going on. Such a Pod must not stand in the way of another that would go on if the rule
// joined: they might wait for each other for ever.
func (d *decision) isStuck(c *pending) bool {
	if len(c.waiting) == 0 || len(c.waiting) < len(c.ops) {
		return false
	}
	return slices.ContainsFunc(d.rules, func(r *rule) bool {
		return !c.joined(r) && bears(r, c.pod, c.stage)
	})
}

// joined reports whether the rule has an entry of its present spec.
func (c *pending) joined(r *rule) bool {
	entry, has := c.entries[r.UID]
	return has && entry.Generation == r.Generation
}

// complete reports whether every rule that is named beside the operation covers it, so that it may have been acted on.
func (d *decision) complete(c *pending, o appsv1alpha1.GrantedOperation) bool {
	for _, g := range c.entries {
		if !slices.Contains(g.Operations, o) {
			continue
		}
		for _, ref := range g.Rules {
			r, exists := d.byUID[ref.UID]
			if !exists {
				continue
			}
			entry, has := c.entries[ref.UID]
			if has && slices.Contains(entry.Operations, o) {
				continue
			}
			if has || bears(r, c.pod, c.stage) {
				return false
			}
		}
	}
	return true
}

// inFlight reports whether a granted operation is still on the Pod, under the same request until it has been carried
// out.
func inFlight(p *pod, stage appsv1alpha1.TransitionRuleStage, g appsv1alpha1.GrantedOperation) bool {
	i := slices.IndexFunc(p.ops, func(o podops.Operation) bool { return o.ID == g.ID })
	if i < 0 {
		return false
	}
	switch p.ops[i].Phase {
	case podops.PhaseRequested, podops.PhasePreCheck, podops.PhasePreChecked, podops.PhasePreparing, podops.PhaseOperate:
		return stage == appsv1alpha1.StagePreCheck && operation(p.ops[i]) == g
	case podops.PhaseFinished, podops.PhasePostCheck, podops.PhasePostChecked, podops.PhaseCompleting:
		return stage == appsv1alpha1.StagePreCheck || operation(p.ops[i]) == g
	case podops.PhaseNone, podops.PhaseUndone, podops.PhaseAbandoned:
	}
	return false
}

func operation(o podops.Operation) appsv1alpha1.GrantedOperation {
	return appsv1alpha1.GrantedOperation{ID: o.ID, Type: o.Type, Request: o.Request}
}

// observePolicies counts the population of every availablePolicy.
func (d *decision) observePolicies() {
	d.selects = make([][]bool, len(d.rules))
	for i, r := range d.rules {
		d.selects[i] = make([]bool, len(d.pods))
		for j, p := range d.pods {
			d.selects[i][j] = r.selector.Matches(p.labels)
		}
		for _, k := range r.checks {
			if k.policy == nil {
				continue
			}
			policy := k.policy
			policy.observe(d, d.selects[i], k.filter)
			var missing int
			policy.desired, missing = population(d, policy.in, policy.surplus(d), func(l labels.Labels) bool {
				return r.selector.Matches(l) && (k.filter == nil || k.filter.Matches(l))
			})
			policy.unavailable += missing
			policy.total += missing
			policy.limit(d.surges(policy.in))
			d.policies = append(d.policies, policy)
		}
	}
}

// inOrder are the Pods in the order in which they are served: first what cannot be taken back, then what would only
// have to be completed, then Pods that are down anyway, then the oldest request.
func (d *decision) inOrder() []*pending {
	rank := func(c *pending) int {
		switch {
		case c.held:
			return 0
		case c.partial:
			return 1
		case c.down:
			return 2
		default:
			return 3
		}
	}
	ordered := slices.Clone(d.cases)
	slices.SortStableFunc(ordered, func(a, b *pending) int {
		if by := cmp.Compare(rank(a), rank(b)); by != 0 {
			return by
		}
		switch {
		case a.since.before(b.since):
			return -1
		case b.since.before(a.since):
			return 1
		}
		return cmp.Compare(a.index, b.index)
	})
	return ordered
}

// moment is the value of a request, read once: it is compared many times.
type moment struct {
	text string
	at   time.Time
	is   bool // a time
}

func momentOf(request string) moment {
	at, is := podops.TimeOf(request)
	return moment{text: request, at: at, is: is}
}

// before compares as times if both are, else as text.
func (m moment) before(other moment) bool {
	if m.is && other.is {
		return m.at.Before(other.at)
	}
	if m.is != other.is {
		return m.is
	}
	return m.text < other.text
}

// bears is podops.Rule.BearsOn for a compiled rule.
func bears(r *rule, p *pod, stage appsv1alpha1.TransitionRuleStage) bool {
	return r.selector.Matches(p.labels) &&
		slices.ContainsFunc(r.checks, func(k *check) bool { return k.appliesTo(p, stage) })
}

// grantTime is when the entry was first written.
func (d *decision) grantTime(old appsv1alpha1.PodGrant) metav1.Time {
	if !old.GrantTime.IsZero() {
		return old.GrantTime
	}
	return metav1.NewTime(d.Now.Truncate(1e9)) // as the API server keeps it
}
