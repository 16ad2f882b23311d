package insight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

func refOf(r *appsv1alpha1.PodTransitionRule) *Ref {
	return &Ref{Kind: appsv1alpha1.PodTransitionRuleKind, Namespace: r.Namespace, Name: r.Name}
}

// behindRules is what keeps an operation at a stage in the statuses of the rules that have not granted it.
func (x *index) behindRules(pod *corev1.Pod, v podops.View, o podops.Operation) []Reason {
	stage, _ := podops.StageOfPhase(o.Phase)
	var first, rest []Reason
	for i, compiled := range x.rules[pod.Namespace] {
		r := x.sources[pod.Namespace][i]
		if !compiled.BearsOn(v, stage) || grants(r, v.UID, stage, o) {
			continue
		}
		found := x.behindRule(r, v, stage)
		// Another rule, or one that has yet to speak, is no blocker while one says what it has against the Pod.
		for _, reason := range found {
			if reason.Code == CodeOtherRule || reason.Code == CodeRuleNotEvaluated {
				rest = append(rest, reason)
			} else {
				first = append(first, reason)
			}
		}
	}
	if away := x.missing(PodTransitionController); away != nil && len(first)+len(rest) > 0 {
		away.Message += "; what rules say is from before"
		return slices.Concat([]Reason{*away}, first, rest)
	}
	return append(first, rest...)
}

func grants(
	r *appsv1alpha1.PodTransitionRule, pod types.UID, stage appsv1alpha1.TransitionRuleStage, o podops.Operation,
) bool {
	return slices.ContainsFunc(r.Status.Grants, func(g appsv1alpha1.PodGrant) bool {
		return g.PodUID == pod && g.Stage == stage && podops.Covers(g, o) && podops.GrantedUnder(r, g) == r.Generation
	})
}

// behindRule is what one rule has against the Pod.
func (x *index) behindRule(
	r *appsv1alpha1.PodTransitionRule, v podops.View, stage appsv1alpha1.TransitionRuleStage,
) []Reason {
	if invalid := invalidRule(r); invalid != nil {
		return []Reason{*invalid}
	}
	var reasons []Reason
	for _, d := range r.Status.Details {
		if d.Name != v.Name || d.Passed || (d.Stage != "" && d.Stage != stage) {
			continue
		}
		for _, reject := range d.RejectInfo {
			reasons = append(reasons, x.rejected(r, v, reject))
		}
	}
	if len(reasons) > 0 {
		return reasons
	}
	if reject, ok := spokesman(r); ok {
		reason := x.rejected(r, v, reject)
		reason.Message += fmt.Sprintf("; status lists some of the %d Pods that it blocks, of which this is not one",
			r.Status.Blocked)
		return []Reason{reason}
	}
	return []Reason{{
		Code: CodeRuleNotEvaluated, On: refOf(r), Message: "rule " + r.Name + " has said nothing about this request yet",
		Next: "wait some seconds; then see whether " + PodTransitionController + " runs: kubectl kuperator doctor",
	}}
}

// spokesman is the reason of another Pod where the status has no room for all that are blocked for want of budget.
func spokesman(r *appsv1alpha1.PodTransitionRule) (appsv1alpha1.RejectInfo, bool) {
	listed := 0
	var found *appsv1alpha1.RejectInfo
	for i := range r.Status.Details {
		d := &r.Status.Details[i]
		if d.Passed {
			continue
		}
		listed++
		for j := range d.RejectInfo {
			if item := itemOf(r, d.RejectInfo[j].RuleName); item != nil && item.AvailablePolicy != nil {
				found = &d.RejectInfo[j]
			}
		}
	}
	if found == nil || int(r.Status.Blocked) <= listed {
		return appsv1alpha1.RejectInfo{}, false
	}
	return *found, true
}

func invalidRule(r *appsv1alpha1.PodTransitionRule) *Reason {
	c := meta.FindStatusCondition(r.Status.Conditions, appsv1alpha1.RuleStalled)
	if c == nil || c.Status != metav1.ConditionTrue {
		return nil
	}
	return &Reason{
		Code: CodeInvalidRule, On: refOf(r), Since: timeOf(c.LastTransitionTime.Time),
		Message: "rule " + r.Name + " cannot be evaluated: " + c.Message,
		Next:    "correct the rule: kubectl -n " + r.Namespace + " edit podtransitionrule " + r.Name,
	}
}

func itemOf(r *appsv1alpha1.PodTransitionRule, name string) *appsv1alpha1.TransitionRule {
	for i := range r.Spec.Rules {
		if r.Spec.Rules[i].Name == name {
			return &r.Spec.Rules[i]
		}
	}
	return nil
}

// rejected says what kind of check refused the Pod. The kind comes from the spec, the text from the status.
func (x *index) rejected(r *appsv1alpha1.PodTransitionRule, v podops.View, reject appsv1alpha1.RejectInfo) Reason {
	reason := Reason{Code: CodeOtherRule, On: refOf(r), Message: fmt.Sprintf("rule %s: %s", r.Name, reject.Reason)}
	item := itemOf(r, reject.RuleName)
	if c := meta.FindStatusCondition(r.Status.Conditions, appsv1alpha1.RuleReconciling); item == nil && c != nil &&
		c.Reason == string(appsv1alpha1.ReasonFrozen) {
		// The Namespace could not be read, but the rule tells.
		reason.Code, reason.Since, reason.Next = codeFrozen, timeOf(c.LastTransitionTime.Time), "ask who froze it"
	}
	if item == nil {
		return reason
	}
	reason.Message = fmt.Sprintf("rule %s, check %s: %s", r.Name, item.Name, reject.Reason)
	switch {
	case item.AvailablePolicy != nil:
		reason.Code = spentBound(item.AvailablePolicy, reject.Reason)
		reason.Message += fmt.Sprintf(" (%s; %d desired, %d available, %d granted)",
			strings.Join(policyBounds(item.AvailablePolicy), ", "), r.Status.Desired, r.Status.Available, r.Status.Granted)
		reason.Next = "it goes on when one of those that are out of service is back: see why they are not"
		if r.Status.Granted == 0 && r.Status.Available >= r.Status.Desired {
			reason.Next = "no Pod is out of service, and the rule lets none go: change its bound, or ask its owner"
		}
	case item.LabelCheck != nil:
		reason.Code = CodeLabelCheck
		reason.Next = "give the Pod the labels " + metav1.FormatLabelSelector(item.LabelCheck.Requires) +
			", or ask the owner of the rule"
	case item.Webhook != nil:
		reason.Code = CodeWebhookRule
		reason.Message += " (" + item.Webhook.ClientConfig.URL + x.task(r, item.Name, v, &reason) + ")"
		reason.Next = "ask the owner of " + item.Webhook.ClientConfig.URL
	}
	return reason
}

// spentBound is which bound of the policy a reason of the status is about. The keys of both may be the same.
func spentBound(p *appsv1alpha1.AvailableRule, reason string) Code {
	switch {
	case p.Groups != nil && strings.HasPrefix(reason, "blocked by group policy"):
		return CodeGroupBudgetSpent
	case p.Topology != nil && strings.Contains(reason, p.Topology.TopologyKey):
		return CodeTopologyBudgetSpent
	}
	return CodeBudgetSpent
}

// task tells of the webhook's task that the Pod is part of, and sets since when.
func (x *index) task(r *appsv1alpha1.PodTransitionRule, check string, v podops.View, reason *Reason) string {
	text := ""
	if c := meta.FindStatusCondition(r.Status.Conditions, appsv1alpha1.RuleReady); c != nil &&
		c.Reason == string(appsv1alpha1.ReasonWebhookUnreachable) {
		text, reason.Since = "; "+c.Message, timeOf(c.LastTransitionTime.Time)
	}
	for _, state := range r.Status.RuleStates {
		if state.Name != check || state.WebhookStatus == nil {
			continue
		}
		for _, task := range state.WebhookStatus.TaskStates {
			if !slices.Contains(task.Processing, v.Name) {
				continue
			}
			text += "; task " + task.TaskID
			if task.BeginTime != nil {
				reason.Since = timeOf(task.BeginTime.Time)
			}
			if task.Message != "" {
				text += ": " + task.Message
			}
		}
	}
	return text
}

// bounds are a rule's checks in words.
func bounds(r *appsv1alpha1.PodTransitionRule) []string {
	texts := []string{}
	for i := range r.Spec.Rules {
		item := &r.Spec.Rules[i]
		var text []string
		switch {
		case item.AvailablePolicy != nil:
			text = policyBounds(item.AvailablePolicy)
		case item.LabelCheck != nil:
			text = []string{"labels " + metav1.FormatLabelSelector(item.LabelCheck.Requires)}
		case item.Webhook != nil:
			text = []string{"webhook " + item.Webhook.ClientConfig.URL}
		}
		if podops.StageOf(item) != appsv1alpha1.StagePreCheck {
			text = append(text, "at "+string(podops.StageOf(item)))
		}
		if item.Disabled {
			text = append(text, "disabled")
		}
		texts = append(texts, item.Name+": "+strings.Join(text, ", "))
	}
	return texts
}

func policyBounds(p *appsv1alpha1.AvailableRule) []string {
	var texts []string
	if p.MaxUnavailableValue != nil {
		texts = append(texts, "at most "+p.MaxUnavailableValue.String()+" unavailable")
	}
	if p.MinAvailableValue != nil {
		texts = append(texts, "at least "+p.MinAvailableValue.String()+" available")
	}
	if p.MaxUnavailablePolicy != nil && p.MaxUnavailablePolicy.ExpFunc != nil {
		texts = append(texts, "at most "+expText(p.MaxUnavailablePolicy.ExpFunc)+" unavailable")
	}
	if p.MinAvailablePolicy != nil && p.MinAvailablePolicy.ExpFunc != nil {
		texts = append(texts, "at least "+expText(p.MinAvailablePolicy.ExpFunc)+" available")
	}
	if p.Topology != nil {
		texts = append(texts, disrupted(p.Topology.MaxDisruptedDomains, "domain", p.Topology.TopologyKey))
	}
	if p.Groups != nil {
		keys := p.Groups.GroupKey
		if p.Groups.SetKey != "" {
			keys += " within " + p.Groups.SetKey
		}
		texts = append(texts, disrupted(p.Groups.MaxDisruptedGroups, "group", keys))
	}
	return texts
}

// disrupted is a bound on domains of a kind in words. Nil is 1, as in the API.
func disrupted(most *int32, kind, keys string) string {
	return fmt.Sprintf("at most %s of %s disrupted", Plural(int(ptr.Deref(most, 1)), kind), keys)
}

func expText(f *appsv1alpha1.ExpFunc) string {
	return cmp.Or(f.Coeff, "1") + "×desired^" + cmp.Or(f.Pow, "1")
}

// budget is a rule with who holds it.
func (x *index) budget(i int, namespace string) Budget {
	r, compiled := x.sources[namespace][i], x.rules[namespace][i]
	b := Budget{
		Namespace: namespace, Name: r.Name, Bounds: bounds(r),
		Desired: r.Status.Desired, Available: r.Status.Available, Granted: r.Status.Granted, Blocked: r.Status.Blocked,
		Allowed: allowed(r), Holders: x.holders(r, compiled),
	}
	if invalid := invalidRule(r); invalid != nil {
		b.Reasons = append(b.Reasons, *invalid)
	}
	for _, c := range r.Status.Conditions {
		if c.Type == appsv1alpha1.RuleReady && c.Status == metav1.ConditionFalse &&
			c.Reason == string(appsv1alpha1.ReasonWebhookUnreachable) {
			b.Reasons = append(b.Reasons,
				Reason{Code: Code(c.Reason), Message: c.Message, On: refOf(r), Since: timeOf(c.LastTransitionTime.Time)})
		}
	}
	return b
}

// holders are the Pods that count as out of service: those granted, and then those that are down without a grant; by
// name.
func (x *index) holders(r *appsv1alpha1.PodTransitionRule, compiled podops.Rule) []Holder {
	var found []Holder
	granted := map[types.UID]bool{}
	for _, g := range r.Status.Grants {
		if g.Stage != appsv1alpha1.StagePreCheck {
			continue
		}
		granted[g.PodUID] = true
		h := Holder{Pod: g.PodName, Granted: true, Since: timeOf(g.GrantTime.Time), Operation: operationsText(g.Operations)}
		if pod := x.pods[types.NamespacedName{Namespace: r.Namespace, Name: g.PodName}]; pod != nil && pod.UID == g.PodUID {
			x.fill(&h, pod)
		}
		found = append(found, h)
	}
	for i := range x.Pods {
		pod := &x.Pods[i]
		if pod.Namespace != r.Namespace || granted[pod.UID] {
			continue
		}
		v := podops.Read(pod)
		if v.Terminal || (v.Ready && v.ServiceAvailable() && !v.Terminating) || !compiled.Selects(v) {
			continue
		}
		h := Holder{Pod: pod.Name, Since: changedAt(pod)}
		x.fill(&h, pod)
		found = append(found, h)
	}
	slices.SortFunc(found, func(a, b Holder) int {
		if a.Granted != b.Granted {
			return map[bool]int{true: -1, false: 1}[a.Granted]
		}
		return strings.Compare(a.Pod, b.Pod)
	})
	return found
}

func (x *index) fill(h *Holder, pod *corev1.Pod) {
	p := x.podWithout(pod)
	h.State = p.State
	if blocker := p.Blocker(); blocker != nil {
		h.WaitsFor = blocker
	}
}

func operationsText(operations []appsv1alpha1.GrantedOperation) string {
	texts := make([]string, len(operations))
	for i, o := range operations {
		texts[i] = fmt.Sprintf("%s (%s)", o.Type, o.ID)
	}
	return strings.Join(texts, ", ")
}

// ruleOf is the rule that a reason is about, by its place in x.rules; -1 if it is about none.
func (x *index) ruleOf(reason Reason) int {
	if reason.On == nil || reason.On.Kind != appsv1alpha1.PodTransitionRuleKind {
		return -1
	}
	return slices.IndexFunc(x.sources[reason.On.Namespace],
		func(r *appsv1alpha1.PodTransitionRule) bool { return r.Name == reason.On.Name })
}
