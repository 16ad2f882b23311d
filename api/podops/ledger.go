package podops

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Rule is a PodTransitionRule compiled for many Pods: selectors parsed, grants indexed. It is immutable.
type Rule struct {
	Namespace string
	Name      string
	UID       types.UID

	selector labels.Selector
	checks   []check
	// generation is that of its spec. Every grant has the generation that it was given under.
	generation int64
	grants     map[grantKey]appsv1alpha1.PodGrant
	details    map[string]appsv1alpha1.TransitionDetail
}

type check struct {
	name   string
	stage  appsv1alpha1.TransitionRuleStage
	filter labels.Selector
}

type grantKey struct {
	pod   types.UID
	stage appsv1alpha1.TransitionRuleStage
}

// CompileRule compiles a rule. A selector that is not valid selects nothing; the rule's own status reports it. A rule
// that is being deleted is in force until it is gone. The objects of r are shared and must not change afterwards.
func CompileRule(r *appsv1alpha1.PodTransitionRule) Rule {
	compiled := Rule{
		Namespace: r.Namespace, Name: r.Name, UID: r.UID, generation: r.Generation,
		selector: parsed(r.Spec.Selector),
		grants:   make(map[grantKey]appsv1alpha1.PodGrant, len(r.Status.Grants)),
		details:  make(map[string]appsv1alpha1.TransitionDetail, len(r.Status.Details)),
	}
	for i := range r.Spec.Rules {
		rule := &r.Spec.Rules[i]
		// Conditions name registered predicates of the rule engine; none are
		// registered upstream, so a rule with conditions bears on no Pod.
		if rule.Disabled || len(rule.Conditions) > 0 {
			continue
		}
		c := check{name: rule.Name, stage: StageOf(rule)}
		if rule.Filter != nil && rule.Filter.LabelSelector != nil {
			c.filter = parsed(rule.Filter.LabelSelector)
		}
		compiled.checks = append(compiled.checks, c)
	}
	for _, g := range r.Status.Grants {
		g.Generation = GrantedUnder(r, g)
		compiled.grants[grantKey{g.PodUID, g.Stage}] = g
	}
	for _, d := range r.Status.Details {
		compiled.details[d.Name] = d
	}
	return compiled
}

// StageOf is the stage at which a rule is evaluated; PreCheck if it names none.
func StageOf(r *appsv1alpha1.TransitionRule) appsv1alpha1.TransitionRuleStage {
	if r.Stage == nil || *r.Stage == "" {
		return appsv1alpha1.StagePreCheck
	}
	return *r.Stage
}

func parsed(s *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

// Selects reports whether the rule's selector matches the Pod, in its namespace.
func (r Rule) Selects(v View) bool {
	return r.Namespace == v.Namespace && r.selector.Matches(labels.Set(v.Labels))
}

// BearsOn reports whether the rule applies to the Pod at a stage: it selects the Pod, and one of its enabled checks is
// for that stage, has a filter that matches, and is not skipped by the Pod's annotation.
func (r Rule) BearsOn(v View, stage appsv1alpha1.TransitionRuleStage) bool {
	return r.Selects(v) && slices.ContainsFunc(r.checks, func(c check) bool {
		return c.stage == stage && !v.SkipsRule(c.name) && (c.filter == nil || c.filter.Matches(labels.Set(v.Labels)))
	})
}

// Covers reports whether a grant is for this request of this operation.
func Covers(g appsv1alpha1.PodGrant, o Operation) bool {
	return slices.Contains(g.Operations, appsv1alpha1.GrantedOperation{ID: o.ID, Type: o.Type, Request: o.Request})
}

// GrantedUnder is the generation of the rule's spec under which a grant was given. A grant of an earlier release has
// none; for it the generation is that of the whole status.
func GrantedUnder(r *appsv1alpha1.PodTransitionRule, g appsv1alpha1.PodGrant) int64 {
	if g.Generation == 0 {
		return r.Status.ObservedGeneration
	}
	return g.Generation
}

// lets reports whether the rule, as it is now, has granted this request.
func (r Rule) lets(v View, o Operation, stage appsv1alpha1.TransitionRuleStage) bool {
	g, has := r.grants[grantKey{v.UID, stage}]
	return has && Covers(g, o) && g.Generation == r.generation
}

// StageOfPhase is the stage at which an operation in this phase waits for rules; false if it waits for none. A request
// that has not been advanced yet waits in PreCheck.
func StageOfPhase(p Phase) (appsv1alpha1.TransitionRuleStage, bool) {
	switch p {
	case PhaseRequested, PhasePreCheck:
		return appsv1alpha1.StagePreCheck, true
	case PhaseFinished, PhasePostCheck:
		return appsv1alpha1.StagePostCheck, true
	case PhaseNone, PhasePreChecked, PhasePreparing, PhaseOperate, PhasePostChecked, PhaseCompleting,
		PhaseUndone, PhaseAbandoned:
		return "", false
	}
	return "", false
}

// VerdictsFor reads the ledger: which operations on the Pod may leave their stage. rules are all rules of the Pod's
// namespace.
//
// Every rule that applies to the Pod must have granted this very request under its current spec, so that a rule that
// was made stricter takes effect at once. So must every rule that a grant names as evaluated together with it: grants
// that are only partly written are no verdict, and may be withdrawn.
func VerdictsFor(v View, rules []Rule) Verdicts {
	var verdicts Verdicts
	for _, o := range Operations(v) {
		stage, waits := StageOfPhase(o.Phase)
		if !waits || !granted(v, rules, o, stage) {
			continue
		}
		if verdicts == nil {
			verdicts = Verdicts{}
		}
		verdicts[Ask{o.ID, stage}] = true
	}
	return verdicts
}

func granted(v View, rules []Rule, o Operation, stage appsv1alpha1.TransitionRuleStage) bool {
	var named []appsv1alpha1.RuleReference
	for _, r := range rules {
		if !r.BearsOn(v, stage) {
			continue
		}
		if !r.lets(v, o, stage) {
			return false
		}
		named = append(named, r.grants[grantKey{v.UID, stage}].Rules...)
	}
	for _, ref := range named {
		i := slices.IndexFunc(rules, func(r Rule) bool { return r.UID == ref.UID })
		if i < 0 {
			return false // gone since: the engine issues the grant again
		}
		if g, ok := rules[i].grants[grantKey{v.UID, stage}]; !ok || !Covers(g, o) {
			return false
		}
	}
	return true
}
