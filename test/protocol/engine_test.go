package protocol_test

import (
	"fmt"
	"slices"
	"strings"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

// engine is what podtransitionrule-controller may do.
func (w *walk) engine() {
	if w.enginePods != w.pods {
		n := w.state
		n.enginePods = w.pods
		w.add("engine sees the Pods", n)
	}
	if w.engineRules != w.rules || w.unseen != 0 {
		n := w.state
		n.engineRules, n.unseen = w.rules, 0
		if w.foreign && !w.trusting {
			n.enginePods = w.pods
		}
		n.foreign = false
		w.add("engine sees the rules", n)
	}
	if w.staleLeader && w.standbyPods != w.pods {
		n := w.state
		n.standbyPods = w.pods
		w.add("standby sees the Pods", n)
	}
	switch {
	case w.pending[0].set:
		n := w.state
		if name, changed := w.writeNext("engine writes", &n, &n.pending); changed {
			n.wrote(w.rules)
			w.add(name, n)
		}
	case w.unseen == 0 || w.blindWrites:
		d := w.decide(ledgerKey{w.enginePods, w.engineRules, w.answers, w.frozen.engine})
		w.webhook(d.questions)
		if len(d.writes) == 0 {
			break
		}
		n := w.state
		copy(n.pending[:], d.writes)
		if name, changed := w.writeNext("engine decides and writes", &n, &n.pending); changed {
			n.wrote(w.rules)
			w.try(name, n, w.mayGrant(d.writes))
		}
	}
	if w.left.failovers > 0 {
		w.failover()
	}
}

// failover is a crash of the leader, or the loss of its Lease: the next one reads afresh, once.
func (w *walk) failover() {
	n := w.state
	n.left.failovers--
	n.ghost = w.pending
	n.answers = [maxPods]int32{}
	n.pending = [maxWrites]ruleWrite{}
	if n.left.oldLeader > 0 {
		n.old = oldLeader{pods: w.enginePods, rules: w.engineRules, left: n.left.oldLeader, waits: w.engineRules != w.rules}
		n.left.oldLeader = 0
	}
	n.engineRules, n.enginePods, n.unseen, n.foreign = w.rules, w.pods, 0, false
	if w.staleLeader {
		n.enginePods = w.standbyPods
	}
	w.add("failover of the engine", n)
}

// wrote takes down what the engine has changed of the rules.
func (s *state) wrote(before [maxRules]int32) {
	s.unseen |= differ(before, s.rules)
	s.old.foreign = s.old.left > 0 && (s.old.foreign || s.rules != before)
}

// oldEngine is a leader that has lost its Lease: it ends its plan, and it may decide again before it knows.
func (w *walk) oldEngine() {
	if w.ghost[0].set {
		n := w.state
		name, _ := w.writeNext("the old leader writes", &n, &n.ghost)
		n.old.waits = n.old.left > 0
		n.foreign = n.foreign || n.rules != w.rules
		w.add(name, n)
		return
	}
	if w.old.left == 0 {
		return
	}
	if w.old.rules != w.rules || w.old.waits {
		n := w.state
		n.old.rules, n.old.waits = w.rules, false
		if w.old.foreign && !w.trusting {
			n.old.pods = w.pods
		}
		n.old.foreign = false
		w.add("the old leader sees the rules", n)
	}
	if w.old.pods != w.pods {
		n := w.state
		n.old.pods = w.pods
		w.add("the old leader sees the Pods", n)
	}
	if d := w.decide(ledgerKey{w.old.pods, w.old.rules, w.answers, w.frozen.engine}); len(d.writes) > 0 && !w.old.waits {
		n := w.state
		n.old.left--
		copy(n.ghost[:], d.writes)
		name, _ := w.writeNext("the old leader decides and writes", &n, &n.ghost)
		if n.old.left == 0 {
			n.old = oldLeader{}
		} else {
			n.old.waits = true
		}
		n.foreign = n.foreign || n.rules != w.rules
		w.add(name, n)
	}
}

// writeNext makes the first write of a plan, and says so, and whether that changed anything.
func (w *walk) writeNext(who string, n *state, plan *[maxWrites]ruleWrite) (name string, changed bool) {
	write := plan[0]
	copy(plan[:], plan[1:])
	plan[maxWrites-1] = ruleWrite{}
	if !w.write(n, write) {
		*plan = [maxWrites]ruleWrite{} // a conflict ends the plan
	}
	return who + " " + w.describe(write), *n != w.state
}

// differ are the rules, as bits, whose versions differ.
func differ(a, b [maxRules]int32) (bits uint8) {
	for k := range a {
		if a[k] != b[k] {
			bits |= 1 << k
		}
	}
	return bits
}

// write applies a status write if the rule is still the version it was decided on.
func (m *model) write(s *state, w ruleWrite) bool {
	if s.rules[w.rule] == 0 || (s.rules[w.rule] != w.expected && !m.blindWrites) {
		return false
	}
	s.rules[w.rule] = w.new
	return true
}

// ledgerKey is what a decision of the engine depends on.
type ledgerKey struct {
	pods  [maxPods]int32
	rules [maxRules]int32
	// answers are the webhook's, as numbers.
	answers [maxPods]int32
	frozen  bool
}

// decision is a plan of the engine.
type decision struct {
	writes    []ruleWrite
	questions []grants.Question
}

// webhook is what the webhook may answer: it is asked about whatever waits for it, again and again.
func (w *walk) webhook(questions []grants.Question) {
	for _, q := range questions {
		i := w.podIndexOf(q.PodName)
		last := w.answered[w.answers[i]]
		if last.subject == q.Subject && last.passed {
			continue
		}
		n := w.state
		n.answers[i] = w.answer(answer{q.Subject, true})
		w.add("webhook says yes to "+q.PodName, n)
		if w.left.refusals > 0 && last.subject != q.Subject {
			n.answers[i] = w.answer(answer{q.Subject, false})
			n.left.refusals--
			w.add("chance: webhook says no to "+q.PodName, n)
		}
	}
}

func (m *model) answer(a answer) int32 {
	id, ok := m.answerIndex[a]
	if !ok {
		id = int32(len(m.answered))
		m.answerIndex[a] = id
		m.answered = append(m.answered, a)
	}
	return id
}

// podIndexOf is the number of the Pod of a name.
func (m *model) podIndexOf(name string) int {
	var i int
	if _, err := fmt.Sscanf(name, "p%d", &i); err != nil {
		panic(err)
	}
	return i
}

// decide runs the engine's core on what an engine has cached.
func (m *model) decide(key ledgerKey) decision {
	if plan, ok := m.decided[key]; ok {
		return plan
	}
	const owner = "set"
	snapshot := grants.Snapshot{Now: now, Answers: map[grants.Subject]grants.Answer{},
		Owners: []grants.Owner{{UID: owner, Replicas: int32(m.replicas)}}}
	if key.frozen {
		snapshot.Frozen = "by the user"
	}
	for _, said := range key.answers {
		if a := m.answered[said]; said != 0 {
			snapshot.Answers[a.subject] = grants.Answer{Passed: a.passed, Reason: "no"}
		}
	}
	for i := range m.scenario.pods {
		if p := m.podVersions[key.pods[i]]; !p.gone {
			snapshot.Pods = append(snapshot.Pods, grants.Pod{View: p.view, Owner: owner})
		}
	}
	for _, r := range key.rules {
		if r != 0 {
			snapshot.Rules = append(snapshot.Rules, m.ruleVersions[r])
		}
	}
	decided := grants.Decide(snapshot)
	if m.ruleByRule {
		decided.Statuses = decideApart(snapshot)
	}
	plan := decision{questions: decided.Questions}
	for _, status := range decided.Statuses {
		k := slices.IndexFunc(key.rules[:], func(r int32) bool { return r != 0 && m.ruleVersions[r].UID == status.UID })
		next := m.ruleVersions[key.rules[k]].DeepCopy()
		next.Status = status.Status
		plan.writes = append(plan.writes, ruleWrite{set: true, rule: int8(k), expected: key.rules[k],
			new: m.ruleVersion(next)})
	}
	m.decided[key] = plan
	return plan
}

// decideApart is a defect: each rule decides alone and prefers other Pods, as the rules are not coordinated.
func decideApart(s grants.Snapshot) []grants.RuleStatus {
	var statuses []grants.RuleStatus
	for _, r := range s.Rules {
		one := s
		one.Rules = []*appsv1alpha1.PodTransitionRule{r}
		names := map[string]string{}
		if r.Name == "r1" {
			one.Pods = slices.Clone(one.Pods)
			for i := range one.Pods {
				other := fmt.Sprintf("q%d", len(one.Pods)-i)
				names[other] = one.Pods[i].Name
				one.Pods[i].Name = other
			}
		}
		for _, status := range grants.Decide(one).Statuses {
			for g := range status.Status.Grants {
				if name, ok := names[status.Status.Grants[g].PodName]; ok {
					status.Status.Grants[g].PodName = name
				}
			}
			statuses = append(statuses, status)
		}
	}
	return statuses
}

func (m *model) describe(w ruleWrite) string {
	r := m.ruleVersions[w.new]
	names := make([]string, 0, len(r.Status.Grants))
	for _, g := range r.Status.Grants {
		names = append(names, g.PodName)
	}
	return r.Name + " granting [" + strings.Join(names, " ") + "]"
}
