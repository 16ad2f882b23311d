package grants

import (
	"iter"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/shorten"
)

// entries is a grant: what each rule has, or is to have, in its status for one Pod at one stage. Only Operations and
// Rules mean something while the decision goes on.
type entries map[types.UID]appsv1alpha1.PodGrant

// decidePod decides on one Pod at one stage: what becomes of its grant, and what each rule says.
func (d *decision) decidePod(c *pending) {
	answers := d.asked(c)
	if len(c.waiting) > 0 {
		d.evaluate(c, answers)
	}
	var grant entries // stays empty if nothing waits any more, or if what was half written does not fit
	switch {
	case c.held && len(c.waiting) == 0:
		grant = c.entries
	case c.held:
		grant = d.keep(c, answers)
	case c.revoking():
		grant = d.finishRevoke(c)
	case len(c.waiting) > 0 && allPassed(answers):
		grant = d.grant(c, answers)
	case c.partial:
		grant = d.startRevoke(c)
	}
	d.record(c, answers, grant)
}

// answer is what one rule that bears on a Pod says about it.
type answer struct {
	*rule
	passed     []string
	rejects    []appsv1alpha1.RejectInfo
	overBudget bool // an availablePolicy is among them
}

func allPassed(answers []*answer) bool {
	return !slices.ContainsFunc(answers, func(a *answer) bool { return len(a.rejects) > 0 })
}

// asked are the rules that bear on the Pod at the stage, by name.
func (d *decision) asked(c *pending) []*answer {
	var answers []*answer
	for i, r := range d.rules {
		if !d.selects[i][c.index] ||
			!slices.ContainsFunc(r.checks, func(k *check) bool { return k.appliesTo(c.pod, c.stage) }) {
			continue
		}
		answers = append(answers, &answer{rule: r})
	}
	return answers
}

// evaluate puts the Pod before the checks of every rule: those that look at the Pod alone first, then webhooks, so that
// no webhook is asked about a Pod that cannot pass anyway, and availability last, so that no such Pod takes budget.
// While the namespace is frozen there is no need to ask.
func (d *decision) evaluate(c *pending, answers []*answer) {
	if d.frozenFor(c) {
		for _, a := range answers {
			a.addResult("", "frozen: "+d.Frozen)
		}
		return
	}
	if broken := c.unreadable(); broken != "" {
		for _, a := range answers {
			a.addResult("", broken)
		}
		return
	}
	for a, k := range c.checksOf(answers) {
		if k.policy == nil && !k.webhook {
			a.addResult(k.name, k.refuses(c.pod))
		}
	}
	sound := allPassed(answers)
	for a, k := range c.checksOf(answers) {
		switch {
		case !k.webhook:
		case sound:
			a.addResult(k.name, d.question(c, a.rule, k))
		case c.held: // must not join meanwhile
			a.addResult(k.name, "its webhook is not asked while another check refuses the Pod")
		}
	}
	if !c.held && !allPassed(answers) {
		return // a held Pod has its budget already
	}
	for a, k := range c.checksOf(answers) {
		if k.policy != nil {
			refusal := k.policy.refuses(c.pod)
			a.addResult(k.name, refusal)
			a.overBudget = a.overBudget || refusal != ""
		}
	}
}

// frozenFor reports whether nothing new is granted at the stage.
func (d *decision) frozenFor(c *pending) bool {
	return d.Frozen != "" && c.stage == appsv1alpha1.StagePreCheck
}

// unreadable says why a Pod could not go on if it were granted: while its employers cannot be read,
// lifecycle-controller does not take it out of service, and it would hold its budget. What is granted already goes on.
func (c *pending) unreadable() string {
	if c.stage != appsv1alpha1.StagePreCheck || c.held {
		return ""
	}
	if _, err := podops.ExpectedFinalizers(c.Annotations); err != nil {
		return err.Error()
	}
	return ""
}

// checksOf are the checks that are asked about the Pod, with whose they are.
func (c *pending) checksOf(answers []*answer) iter.Seq2[*answer, *check] {
	return func(yield func(*answer, *check) bool) {
		for _, a := range answers {
			for _, k := range a.checks {
				if k.appliesTo(c.pod, c.stage) && !yield(a, k) {
					return
				}
			}
		}
	}
}

// longestReason is how many bytes of a webhook's reason go to the status, once for every Pod that is listed.
const longestReason = 512

// question puts what the rule has not granted yet before its webhook. It says why the Pod does not pass, "" if it does.
func (d *decision) question(c *pending, r *rule, k *check) string {
	entry := c.entries[r.UID]
	var requests []appsv1alpha1.GrantedOperation
	for _, o := range c.waiting {
		if !c.held || !c.joined(r) || !podops.Covers(entry, o) {
			requests = append(requests, operation(o))
		}
	}
	if len(requests) == 0 {
		return ""
	}
	q := Question{PodName: c.Name, Requests: requests, Subject: Subject{
		Rule: r.UID, Check: k.name, Pod: c.UID, Stage: c.stage, Operations: OperationsKey(requests),
	}}
	d.questions = append(d.questions, q)
	said, answered := d.Answers[q.Subject]
	r.asking = r.asking || !said.Passed
	switch {
	case said.Passed:
		return ""
	case !answered:
		return "waits for its webhook's answer"
	case said.Reason == "":
		return "its webhook said no, without a reason"
	}
	return shorten.Bytes(said.Reason, longestReason)
}

func (a *answer) addResult(name, refusal string) {
	if refusal == "" {
		a.passed = append(a.passed, name)
		return
	}
	a.rejects = append(a.rejects, appsv1alpha1.RejectInfo{RuleName: name, Reason: refusal})
}

// grant lets every operation that waits go on, in the name of every rule that bears on the Pod.
func (d *decision) grant(c *pending, answers []*answer) entries {
	ops := make([]appsv1alpha1.GrantedOperation, 0, len(c.waiting))
	for _, o := range c.waiting {
		ops = append(ops, operation(o))
	}
	grant := make(entries, len(answers))
	for _, a := range answers {
		grant[a.UID] = appsv1alpha1.PodGrant{Operations: ops, Generation: a.Generation}
	}
	names := d.references(grant)
	for uid, g := range grant {
		g.Rules = names
		grant[uid] = g
	}
	if c.stage == appsv1alpha1.StagePreCheck && len(answers) > 0 {
		for _, p := range d.policies {
			p.count(c.pod)
		}
	}
	return grant
}

// keep continues a held grant beside which something waits: names of rules that are gone disappear; then rules that
// came to bear on the Pod join, and those that have another spec by now grant again; then all entries name them; then
// operations that are not covered yet are added. Each is one decision, because each must be written everywhere before
// the next is safe (see the package comment).
func (d *decision) keep(c *pending, answers []*answer) entries {
	grant := make(entries, len(c.entries)+1)
	for uid, g := range c.entries {
		g.Rules = d.stillNamed(c, g.Rules)
		grant[uid] = g
	}
	noRoom := slices.ContainsFunc(answers, func(a *answer) bool { return a.overBudget })
	joining, blocked := false, noRoom
	for _, a := range answers {
		if c.joined(a.rule) {
			continue
		}
		joining = true
		blocked = blocked || len(a.rejects) > 0
		if len(a.rejects) > 0 || noRoom {
			continue
		}
		entry, has := grant[a.UID]
		if !has {
			entry = appsv1alpha1.PodGrant{Operations: c.coveredByAll(), Rules: d.references(c.entries, a.UID)}
		}
		entry.Generation = a.Generation
		grant[a.UID] = entry
	}
	if joining {
		if c.awaitingRule && !blocked {
			for _, p := range d.policies {
				p.count(c.pod)
			}
		}
		return grant
	}
	if names := d.references(c.entries); d.mayName(c, names) && !named(grant, names) {
		for uid, g := range grant {
			g.Rules = names
			grant[uid] = g
		}
		return grant
	}
	d.add(c, grant, allPassed(answers) && !d.frozenFor(c))
	return grant
}

// add puts the operations that wait into every entry, or takes those that were never acted on out of it again.
func (d *decision) add(c *pending, grant entries, fits bool) {
	everywhere := c.coveredByAll()
	for _, o := range c.waiting {
		op := operation(o)
		if slices.Contains(everywhere, op) {
			continue
		}
		for uid, g := range grant {
			g.Operations = slices.Clone(g.Operations)
			i := slices.IndexFunc(g.Operations, func(have appsv1alpha1.GrantedOperation) bool { return have.ID == op.ID })
			switch {
			case fits && i >= 0:
				g.Operations[i] = op
			case fits:
				g.Operations = append(g.Operations, op)
			case i >= 0 && g.Operations[i] == op && !d.complete(c, op):
				g.Operations = slices.Delete(g.Operations, i, i+1)
			}
			grant[uid] = g
		}
	}
}

// startRevoke is the first half of taking back what was half written: rules that lack the grant get an entry without
// operations. A leader that died, or does not know yet that it is none, may still mean to write their part, and its
// write must fail before the other part goes: lifecycle-controller might see the one beside the other. Until then the
// Pod counts as granted. It is nil if nothing is left to shut.
func (d *decision) startRevoke(c *pending) entries {
	grant := maps.Clone(c.entries)
	for _, uid := range slices.Sorted(maps.Keys(c.entries)) {
		half := c.entries[uid]
		for _, ref := range half.Rules {
			r, exists := d.byUID[ref.UID]
			entry, has := c.entries[ref.UID]
			if exists && (has || bears(r, c.pod, c.stage)) && lacksAny(entry, half.Operations) {
				grant[ref.UID] = appsv1alpha1.PodGrant{Rules: half.Rules, Generation: r.Generation}
			}
		}
	}
	if maps.EqualFunc(grant, c.entries,
		func(a, b appsv1alpha1.PodGrant) bool { return len(a.Operations) == len(b.Operations) }) {
		return nil
	}
	d.reserve(c)
	return grant
}

func lacksAny(g appsv1alpha1.PodGrant, ops []appsv1alpha1.GrantedOperation) bool {
	return slices.ContainsFunc(ops,
		func(o appsv1alpha1.GrantedOperation) bool { return !slices.Contains(g.Operations, o) })
}

// revoking reports whether what was half written is being taken back.
func (c *pending) revoking() bool {
	for _, g := range c.entries {
		if len(g.Operations) == 0 {
			return true
		}
	}
	return false
}

// finishRevoke is the second half, of which the entries without operations go last: a leader that dies in between would
// otherwise leave what there was before, and the next one would begin again. Until they go the Pod counts as granted.
func (d *decision) finishRevoke(c *pending) entries {
	grant := entries{}
	for uid, g := range c.entries {
		if len(g.Operations) == 0 {
			grant[uid] = g
		}
	}
	if len(grant) == len(c.entries) {
		return nil
	}
	d.reserve(c)
	return grant
}

// reserve counts a Pod as granted at PreCheck whose grant is being taken back.
func (d *decision) reserve(c *pending) {
	if c.stage != appsv1alpha1.StagePreCheck {
		return
	}
	for _, p := range d.policies {
		p.reserve(c.pod)
	}
}

// coveredByAll are the operations that every entry covers.
func (c *pending) coveredByAll() []appsv1alpha1.GrantedOperation {
	var ops []appsv1alpha1.GrantedOperation
	first := true
	for _, uid := range slices.Sorted(maps.Keys(c.entries)) {
		has := c.entries[uid].Operations
		if first {
			ops, first = slices.Clone(has), false
			continue
		}
		ops = slices.DeleteFunc(ops, func(o appsv1alpha1.GrantedOperation) bool { return !slices.Contains(has, o) })
	}
	return ops
}

// stillNamed drops the names of rules that are gone, or that stopped bearing on the Pod before they had an entry.
func (d *decision) stillNamed(c *pending, names []appsv1alpha1.RuleReference) []appsv1alpha1.RuleReference {
	return slices.DeleteFunc(slices.Clone(names), func(ref appsv1alpha1.RuleReference) bool {
		r, exists := d.byUID[ref.UID]
		_, has := c.entries[ref.UID]
		return !exists || (!has && !bears(r, c.pod, c.stage))
	})
}

// mayName reports whether every entry may name all these rules: nothing that may be acted on now lacks one of them.
func (d *decision) mayName(c *pending, names []appsv1alpha1.RuleReference) bool {
	everywhere := c.coveredByAll()
	return len(names) == len(c.entries) && !slices.ContainsFunc(c.waiting, func(o podops.Operation) bool {
		op := operation(o)
		return c.covered(o) && d.complete(c, op) && !slices.Contains(everywhere, op)
	})
}

// named reports whether every entry names just these rules.
func named(grant entries, names []appsv1alpha1.RuleReference) bool {
	for _, g := range grant {
		if !slices.Equal(g.Rules, names) {
			return false
		}
	}
	return true
}

// references names the rules that have an entry, and more, by name.
func (d *decision) references(grant entries, more ...types.UID) []appsv1alpha1.RuleReference {
	names := make([]appsv1alpha1.RuleReference, 0, len(grant)+len(more))
	for _, r := range d.rules {
		if _, has := grant[r.UID]; has || slices.Contains(more, r.UID) {
			names = append(names, appsv1alpha1.RuleReference{Name: r.Name, UID: r.UID})
		}
	}
	return names
}

// record takes the outcome for one Pod at one stage down for each rule concerned.
func (d *decision) record(c *pending, answers []*answer, grant entries) {
	d.served++
	granted := true
	var blocker *rule
	for _, a := range answers {
		g, has := grant[a.UID]
		for _, o := range c.waiting {
			granted = granted && has && podops.Covers(g, o) && g.Generation == a.Generation
		}
		if blocker == nil && len(a.rejects) > 0 {
			blocker = a.rule
		}
	}
	for i, r := range d.rules {
		g, has := grant[r.UID]
		if has {
			old := c.entries[r.UID]
			g.PodName, g.PodUID, g.Stage, g.GrantTime = c.Name, c.UID, c.stage, d.grantTime(old)
			d.grants[i] = append(d.grants[i], g)
		}
		at := slices.IndexFunc(answers, func(a *answer) bool { return a.rule == r })
		if has && at >= 0 && len(c.waiting) > 0 && c.awaitingRule && g.Generation != r.Generation {
			d.former[i]++
		}
		if at < 0 && !has || at >= 0 && len(c.waiting) == 0 && !has {
			continue
		}
		v := verdict{pending: c, granted: granted, order: d.served}
		if at >= 0 {
			v.explain(answers[at], blocker)
		}
		d.verdicts[i] = append(d.verdicts[i], v)
	}
}

// explain takes down what a rule says: nothing against a Pod that all have granted.
func (v *verdict) explain(a *answer, blocker *rule) {
	v.passed = a.passed
	if v.granted {
		v.passed = nil
		for _, k := range a.checks {
			if k.appliesTo(v.pod, v.stage) {
				v.passed = append(v.passed, k.name)
			}
		}
		return
	}
	switch {
	case len(a.rejects) > 0:
		v.rejects = a.rejects
	case blocker != nil:
		v.rejects = []appsv1alpha1.RejectInfo{{Reason: "waits for PodTransitionRule " + blocker.Name +
			": all rules of a Pod grant it together"}}
	default:
		v.rejects = []appsv1alpha1.RejectInfo{{Reason: "its grant is being extended to all rules"}}
		a.extending = true
	}
}
