package protocol_test

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

// everybody is the credit of all Pods.
const everybody = 1<<maxPods - 1

// mayBeTouched says what is wrong with operating on the Pod now.
func mayBeTouched(p podObject) error {
	switch {
	case p.view.Ready:
		return errors.New("an operator acted on a Pod that is still Ready")
	case p.listed:
		return errors.New("an operator acted on a Pod that its EndpointSlice lists as ready")
	case p.view.Protected():
		return errors.New("an operator acted on a Pod that a cooperator still has")
	}
	return nil
}

// podProblem says what is wrong with a Pod, whatever the rest.
func (m *model) podProblem(p podObject) error {
	if p.gone || p.view.Terminating {
		return nil
	}
	ops := podops.Operations(p.view)
	for _, o := range ops {
		if o.Phase == podops.PhaseOperate && p.view.ServiceReady == corev1.ConditionTrue {
			return fmt.Errorf("%s: service-ready is True while %s is in Operate", p.view.Name, o.ID)
		}
		if o.Offline() && p.view.ServiceAvailable() {
			return fmt.Errorf("%s: service-available while %s needs the Pod offline", p.view.Name, o.ID)
		}
	}
	if len(ops) > 0 || !p.view.ServiceAvailable() || p.view.ServiceReady != corev1.ConditionTrue || !p.view.Ready {
		return nil
	}
	for key := range p.view.Labels {
		prefix, id, _ := strings.Cut(key, "/")
		if strings.HasSuffix(prefix, ".podopslifecycle.kusionstack.io") && prefix != podops.OperationTypePrefix {
			return fmt.Errorf("%s is at rest and keeps %s of %s", p.view.Name, prefix, id)
		}
		if key == podops.PreparingToDeleteLabel || key == podops.CreatingLabel {
			return fmt.Errorf("%s is at rest and keeps %s", p.view.Name, key)
		}
	}
	return nil
}

// selects reports whether a rule of the model selects a Pod, by the scenario and not by the code under test.
func (r ruleSpec) selects(i int) bool { return r.pods == nil || slices.Contains(r.pods, i) }

// allows is how many Pods of those it selects may be out, as of a version of the rule.
func (m *model) allows(k int, version int32) int {
	spec := m.scenario.rules[k]
	if spec.min == 0 {
		return m.ruleVersions[version].Spec.Rules[0].AvailablePolicy.MaxUnavailableValue.IntValue()
	}
	selected := len(spec.pods)
	if spec.pods == nil {
		selected = m.scenario.pods
	}
	return selected - spec.min
}

// check is what must hold in every state. The bound: of the Pods that a rule
// selects, no more are out of service by our doing than it allows. Pods that had
// permission, or were out, before the rule was what it is now are allowed in
// addition, until they are back.
func (m *model) check(s state) error {
	for i := range m.scenario.pods {
		if err := m.podProblems[s.pods[i]]; err != nil {
			return err
		}
	}
	if m.surge {
		return m.checkSurge(s)
	}
	for k, spec := range m.scenario.rules {
		if s.rules[k] == 0 {
			continue
		}
		if err := m.bound(s, k, spec); err != nil {
			return err
		}
	}
	return nil
}

// bound is that of one rule.
func (m *model) bound(s state, k int, spec ruleSpec) error {
	var out []string
	down := 0
	for i := range m.scenario.pods {
		p := m.podVersions[s.pods[i]]
		switch {
		case !spec.selects(i):
		case p.out() && s.credit[k]&(1<<i) == 0:
			out = append(out, p.view.Name)
		case !p.out() && (p.gone || !p.view.Ready || p.view.Terminating):
			down++
		}
	}
	allowed := m.allows(k, s.rules[k])
	if len(out) > allowed {
		return fmt.Errorf("%d Pods are out of service by our doing, %s allows %d: %v", len(out), ruleName(k), allowed, out)
	}
	if m.strict && len(out) > 0 && len(out)+down > allowed {
		return fmt.Errorf("%d Pods are out of service by our doing and %d by themselves, %s allows %d", len(out), down,
			ruleName(k), allowed)
	}
	return nil
}

// settleCredit takes credit from Pods that are not out. A rule, or a spec of it,
// that lifecycle-controller has not seen does not bind.
func (m *model) settleCredit(s *state) {
	for k := range m.scenario.rules {
		switch {
		case s.rules[k] == 0:
			s.credit[k] = 0
			continue
		case m.older(s.lifecycleRules[k], s.rules[k]) || m.secondLifecycle && m.older(s.secondRules[k], s.rules[k]):
			s.credit[k] = everybody
			continue
		case s.credit[k] == 0:
			continue
		}
		var keep uint8
		for i := range m.scenario.pods {
			if m.podVersions[s.pods[i]].out() {
				keep |= 1 << i
			}
		}
		s.credit[k] &= keep
	}
}

// older reports whether a version of a rule has another spec than the present one, or is none.
func (m *model) older(version, present int32) bool {
	return version == 0 || m.ruleVersions[version].Generation != m.ruleVersions[present].Generation
}

// mayPass says what is wrong with a step of lifecycle-controller: what leaves a
// stage needs the grant of every rule that bears on the Pod, for this Pod and
// this request. It is told from the rules as they are written, not by podops.
func (m *model) mayPass(before, after podObject, known advanceKey) error {
	if m.lax {
		return nil
	}
	i := m.podIndexOf(before.view.Name)
	for _, o := range podops.Operations(before.view) {
		stage, waits := podops.StageOfPhase(o.Phase)
		if !waits {
			continue
		}
		then := podops.OperationOf(after.view, o.ID)
		if at, still := podops.StageOfPhase(then.Phase); still && at == stage || then.Phase == podops.PhaseNone &&
			stage == appsv1alpha1.StagePreCheck {
			continue
		}
		if known.frozen && stage == appsv1alpha1.StagePreCheck {
			return fmt.Errorf("%s left PreCheck for %s while everything is frozen", before.view.Name, o.ID)
		}
		for k, spec := range m.scenario.rules {
			if known.rules[k] == 0 || !spec.selects(i) || stage == appsv1alpha1.StagePostCheck && !spec.tested {
				continue
			}
			granted := slices.ContainsFunc(m.ruleVersions[known.rules[k]].Status.Grants, func(g appsv1alpha1.PodGrant) bool {
				return g.Stage == stage && g.PodUID == before.view.UID &&
					slices.Contains(g.Operations, appsv1alpha1.GrantedOperation{ID: o.ID, Type: o.Type, Request: o.Request})
			})
			if !granted {
				return fmt.Errorf("%s passed %s for %s without a grant of %s", before.view.Name, stage, o.ID, ruleName(k))
			}
		}
	}
	return nil
}

// mayGrant says what is wrong with a plan of an engine that knows everything: a Pod in service that can go on by it
// must leave enough others, counted here independently.
func (w *walk) mayGrant(plan []ruleWrite) error {
	if w.enginePods != w.pods || w.engineRules != w.rules || w.lax {
		return nil
	}
	after := w.rules
	for _, write := range plan {
		after[write.rule] = write.new
		if err := w.mayAnswer(write); err != nil {
			return err
		}
	}
	for i := range w.scenario.pods {
		p := w.pod(i)
		if !serves(p) || w.passes(i, w.rules) || !w.passes(i, after) || w.relieved(i, after) {
			continue
		}
		if w.frozen.engine {
			return fmt.Errorf("%s is granted while everything is frozen", p.view.Name)
		}
		for k, spec := range w.scenario.rules {
			if after[k] == 0 || !spec.selects(i) {
				continue
			}
			var busy uint
			for j := range w.scenario.pods {
				missed := spec.pods == nil || !w.pod(j).gone // a part of a controller's Pods misses none
				if spec.selects(j) && missed && !w.relieved(j, after) && (!serves(w.pod(j)) || w.passes(j, after)) {
					busy |= 1 << j
				}
			}
			if n, allowed := bits.OnesCount(busy), w.allows(k, after[k]); n > allowed {
				return fmt.Errorf("%s is granted: with it %d Pods are not in service or may go, %s allows %d", p.view.Name, n,
					ruleName(k), allowed)
			}
		}
	}
	return nil
}

// relieved reports whether another Pod serves in the place of this one, and cannot go on.
func (w *walk) relieved(i int, ledger [maxRules]int32) bool {
	isFor := func(p, other podObject) bool {
		return p.view.Labels[appsv1alpha1.ReplacePairOriginNameLabel] == other.view.Name
	}
	for j := range w.scenario.pods {
		p, other := w.pod(i), w.pod(j)
		if serves(other) && (isFor(other, p) || isFor(p, other)) && !w.passes(j, ledger) {
			return true
		}
	}
	return false
}

// mayAnswer says what is wrong with a write of a rule that asks a webhook: whatever it newly grants at PreCheck, the
// webhook has let pass, for this Pod and this request.
func (w *walk) mayAnswer(write ruleWrite) error {
	if !w.scenario.rules[write.rule].asks {
		return nil
	}
	granted := func(version int32) (all []string) {
		for _, g := range w.ruleVersions[version].Status.Grants {
			if g.Stage != appsv1alpha1.StagePreCheck {
				continue
			}
			for _, o := range g.Operations {
				all = append(all, string(g.PodUID)+" "+grants.OperationsKey([]appsv1alpha1.GrantedOperation{o}))
			}
		}
		return all
	}
	before := granted(write.expected)
	for _, one := range granted(write.new) {
		uid, request, _ := strings.Cut(one, " ")
		said := slices.ContainsFunc(w.answers[:], func(n int32) bool {
			a := w.answered[n]
			return a.passed && string(a.subject.Pod) == uid && slices.Contains(strings.Split(a.subject.Operations, " "), request)
		})
		if !said && !slices.Contains(before, one) {
			return fmt.Errorf("%s is granted and the webhook has not said yes", one)
		}
	}
	return nil
}

// serves reports whether the Pod is in service.
func serves(p podObject) bool {
	return !p.gone && !p.view.Terminating && p.view.Ready && p.view.ServiceAvailable() && !podops.Offline(p.view)
}

// passes reports whether some operation that waits at PreCheck could go on by the ledger.
func (w *walk) passes(i int, ledger [maxRules]int32) bool {
	p := w.pod(i)
	var known []podops.Rule
	for _, r := range ledger {
		if r != 0 {
			known = append(known, w.compiled[r])
		}
	}
	for ask := range podops.VerdictsFor(p.view, known) {
		if ask.Stage == appsv1alpha1.StagePreCheck {
			return true
		}
	}
	return false
}

// goal: everything is done, every Pod serves, nothing is left behind.
func (m *model) goal(s state) bool {
	live := 0
	for i := range m.scenario.pods {
		p := m.podVersions[s.pods[i]]
		if p.gone {
			continue
		}
		live++
		if p.done != m.allDone(p.view.Name) || p.lost || p.view.Terminating || p.revision != s.target || p.recorded ||
			p.listed != m.cooperator || !p.view.Ready || !p.view.ServiceAvailable() || len(podops.Operations(p.view)) > 0 {
			return false
		}
		if _, marked := p.view.Labels[appsv1alpha1.ToDeleteLabel]; marked {
			return false
		}
	}
	if live != m.replicas || m.surge && !m.surgeOver(s) {
		return false
	}
	for _, r := range s.rules {
		if r != 0 && len(m.ruleVersions[r].Status.Grants) > 0 {
			return false
		}
	}
	return true
}
