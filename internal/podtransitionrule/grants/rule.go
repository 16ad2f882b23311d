package grants

import (
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// rule is a PodTransitionRule prepared for one decision.
type rule struct {
	*appsv1alpha1.PodTransitionRule
	selector labels.Selector
	checks   []*check
	// stalled says why it cannot be evaluated; "" if it can.
	stalled string
	// asking is true if a webhook has been asked and has not answered finally, extending that a grant is on its way to all
	// rules of its Pod.
	asking, extending bool
	// wanted is the PodDisruptionBudget that the rule is to have, nil for none.
	wanted *policyv1.PodDisruptionBudgetSpec
	// foreignBudget is true if a PodDisruptionBudget that is not the rule's has the name of the rule's.
	foreignBudget bool
	// shares names the PodDisruptionBudget that counts for the rule's Pods instead of one of its own, rival one that
	// selects some of the same Pods besides the rule's; "" for none.
	shares, rival string
}

// check is one item of spec.rules that can bear on Pods.
type check struct {
	name     string
	stage    appsv1alpha1.TransitionRuleStage
	filter   labels.Selector // nil: all
	requires labels.Selector // labelCheck; nil: none
	policy   *policy         // availablePolicy at PreCheck; nil: none
	webhook  bool            // a webhook is asked
	refusal  string          // why it refuses every Pod; "" if it does not
}

// compile prepares a rule. invalid says what is wrong with its webhook checks, "" for nothing.
func compile(r *appsv1alpha1.PodTransitionRule, invalid string) *rule {
	c := &rule{PodTransitionRule: r}
	var err error
	if c.selector, err = metav1.LabelSelectorAsSelector(r.Spec.Selector); err != nil {
		c.selector = labels.Nothing()
		c.stall("spec.selector selects no Pod: %v; correct it", err)
	} else if r.Spec.Selector == nil {
		c.stall("spec.selector is missing: set matchLabels, or {} to select every Pod of the namespace")
	}
	for i := range r.Spec.Rules {
		if item := &r.Spec.Rules[i]; !item.Disabled && len(item.Conditions) == 0 {
			c.checks = append(c.checks, c.compileCheck(i, item, invalid))
		}
	}
	return c
}

// stall takes down what is wrong with the rule; the first thing counts.
func (r *rule) stall(format string, args ...any) {
	if r.stalled == "" {
		r.stalled = fmt.Sprintf(format, args...)
	}
}

func (r *rule) compileCheck(i int, item *appsv1alpha1.TransitionRule, invalid string) *check {
	k := &check{name: item.Name, stage: podops.StageOf(item)}
	var err error
	if k.stage != appsv1alpha1.StagePreCheck && k.stage != appsv1alpha1.StagePostCheck {
		r.stall("spec.rules[%d].stage is %q and is never asked: use PreCheck or PostCheck", i, k.stage)
	}
	if item.Filter != nil && item.Filter.LabelSelector != nil {
		if k.filter, err = metav1.LabelSelectorAsSelector(item.Filter.LabelSelector); err != nil {
			k.filter = labels.Nothing()
			r.stall("spec.rules[%d].filter.labelSelector matches no Pod: %v; correct it", i, err)
		}
	}
	switch {
	case item.AvailablePolicy != nil:
		p, err := newPolicy(item.AvailablePolicy)
		if err != nil {
			r.stall("spec.rules[%d].availablePolicy: %v", i, err)
			k.refusal = "the available policy cannot be evaluated, see the rule's conditions"
		} else if k.stage == appsv1alpha1.StagePreCheck {
			k.policy = p
		}
	case item.LabelCheck != nil:
		if k.requires, err = metav1.LabelSelectorAsSelector(item.LabelCheck.Requires); err != nil {
			k.requires = nil
			r.stall("spec.rules[%d].labelCheck.requires: %v; correct it", i, err)
			k.refusal = "the label check cannot be evaluated, see the rule's conditions"
		}
	case item.Webhook != nil && invalid != "":
		r.stall("%s", invalid)
		k.refusal = "the webhook cannot be asked, see the rule's conditions"
	case item.Webhook != nil:
		k.webhook = true
	}
	return k
}

// appliesTo reports whether the check is asked about a Pod that its rule selects.
func (k *check) appliesTo(p *pod, stage appsv1alpha1.TransitionRuleStage) bool {
	return k.stage == stage && (k.filter == nil || k.filter.Matches(p.labels)) && !p.SkipsRule(k.name)
}

// refuses says why the check does not let the Pod pass, "" if it does. Webhooks and availability are not part of it.
func (k *check) refuses(p *pod) string {
	switch {
	case k.refusal != "":
		return k.refusal
	case k.requires != nil && !k.requires.Matches(p.labels):
		return fmt.Sprintf("blocked by label check policy: labels do not match %q", k.requires)
	}
	return ""
}
