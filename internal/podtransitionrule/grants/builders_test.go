package grants

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

var testNow = time.Unix(1_700_000_000, 0)

// stamp is a request made so many seconds after testNow.
func stamp(seconds int) string {
	return strconv.FormatInt(testNow.Add(time.Duration(seconds)*time.Second).UnixNano(), 10)
}

type podBuilder struct{ Pod }

// aPod is a managed Pod in service, labelled app=web.
func aPod(name string) *podBuilder {
	return &podBuilder{Pod{View: podops.View{
		Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), Gate: true, Ready: true,
		ServiceReady: corev1.ConditionTrue,
		Labels: map[string]string{"app": "web", appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue,
			podops.ServiceAvailableLabel: "1"},
	}}}
}

func (b *podBuilder) label(key, value string) *podBuilder { b.Labels[key] = value; return b }

func (b *podBuilder) without(key string) *podBuilder { delete(b.Labels, key); return b }

func (b *podBuilder) on(node string) *podBuilder { b.NodeName = node; return b }

// grouped puts the Pod into a group of a set, such as shop/1, or with "" into none.
func (b *podBuilder) grouped(group string) *podBuilder {
	if set, index, found := strings.Cut(group, "/"); found {
		b.label(setLabel, set).label(groupLabel, index)
	}
	return b
}

func (b *podBuilder) ownedBy(uid string) *podBuilder { b.Owner = types.UID(uid); return b }

// asks puts the Pod in PreCheck under ID "op" with a request made so many seconds after testNow.
func (b *podBuilder) asks(seconds int) *podBuilder { return b.asksAs("op", seconds) }

func (b *podBuilder) asksAs(id string, seconds int) *podBuilder {
	b.Labels[podops.OperatingPrefix+"/"+id] = stamp(seconds)
	b.Labels[podops.OperationTypePrefix+"/"+id] = "update"
	b.Labels[podops.PreCheckPrefix+"/"+id] = stamp(seconds)
	return b
}

// operates is what lifecycle-controller makes of a Pod whose request it let pass.
func (b *podBuilder) operates(seconds int) *podBuilder {
	b.asks(seconds).without(podops.PreCheckPrefix + "/op").without(podops.ServiceAvailableLabel)
	b.Labels[podops.PreCheckedPrefix+"/op"] = stamp(seconds)
	b.Labels[podops.PermissionPrefix+"/update"] = stamp(seconds)
	b.Labels[podops.OperatePrefix+"/op"] = stamp(seconds)
	b.Ready, b.ServiceReady = false, corev1.ConditionFalse
	return b
}

// finished is a Pod that waits in PostCheck.
func (b *podBuilder) finished(seconds int) *podBuilder {
	b.without(podops.ServiceAvailableLabel)
	b.Labels[podops.OperatedPrefix+"/op"] = stamp(seconds)
	b.Labels[podops.DoneOperationTypePrefix+"/op"] = "update"
	b.Labels[podops.PostCheckPrefix+"/op"] = stamp(seconds)
	b.Ready, b.ServiceReady = false, corev1.ConditionFalse
	return b
}

// down is a Pod that is not Ready, with nothing under way.
func (b *podBuilder) down() *podBuilder {
	b.Ready = false
	return b.without(podops.ServiceAvailableLabel)
}

// annotated gives the annotation that says who gives the Pod its traffic.
func (b *podBuilder) annotated(conditions string) *podBuilder {
	b.Annotations = map[string]string{podops.AvailableConditionsAnnotation: conditions}
	return b
}

func (b *podBuilder) terminating() *podBuilder { b.Terminating = true; return b }

func (b *podBuilder) terminal() *podBuilder { b.down(); b.Terminal = true; return b }

func (b *podBuilder) unmanaged() *podBuilder {
	return b.without(appsv1alpha1.ControlLabel).without(podops.ServiceAvailableLabel)
}

func (b *podBuilder) skips(check string) *podBuilder {
	b.Annotations = map[string]string{podops.SkipRulesAnnotation: fmt.Sprintf(`{"skipRules":[%q]}`, check)}
	return b
}

func pods(builders ...*podBuilder) []Pod {
	var out []Pod
	for _, b := range builders {
		out = append(out, b.Pod)
	}
	return out
}

// aRule selects app=web.
func aRule(name string, checks ...appsv1alpha1.TransitionRule) *appsv1alpha1.PodTransitionRule {
	return &appsv1alpha1.PodTransitionRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), Generation: 1,
			ResourceVersion: "1"},
		Spec: appsv1alpha1.PodTransitionRuleSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Rules: checks,
		},
	}
}

func value(v string) *intstr.IntOrString {
	if v == "" {
		return nil
	}
	parsed := intstr.Parse(v)
	return &parsed
}

func available(maxUnavailable, minAvailable string) appsv1alpha1.TransitionRule {
	return appsv1alpha1.TransitionRule{Name: "available", TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
		AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: value(maxUnavailable),
			MinAvailableValue: value(minAvailable)},
	}}
}

func maxUnavailable(v string) appsv1alpha1.TransitionRule { return available(v, "") }

func expFuncs(forMax, forMin *appsv1alpha1.ExpFunc) appsv1alpha1.TransitionRule {
	r := available("", "")
	if forMax != nil {
		r.AvailablePolicy.MaxUnavailablePolicy = &appsv1alpha1.AvailableAdaptivePolicy{ExpFunc: forMax}
	}
	if forMin != nil {
		r.AvailablePolicy.MinAvailablePolicy = &appsv1alpha1.AvailableAdaptivePolicy{ExpFunc: forMin}
	}
	return r
}

const zone = "topology.kubernetes.io/zone"

// zones bounds disrupted zones, and Pods by maxUnavailable unless that is empty.
func zones(most int32, maxUnavailable string) appsv1alpha1.TransitionRule {
	r := available(maxUnavailable, "")
	r.AvailablePolicy.Topology = &appsv1alpha1.TopologyBudget{TopologyKey: zone, MaxDisruptedDomains: &most}
	return r
}

// The labels of LeaderWorkerSets that tell groups apart.
const (
	groupLabel = "leaderworkerset.sigs.k8s.io/group-index"
	setLabel   = "leaderworkerset.sigs.k8s.io/name"
)

// groupsOf bounds disrupted groups within sets, and Pods by maxUnavailable unless that is empty.
func groupsOf(most int32, maxUnavailable string) appsv1alpha1.TransitionRule {
	r := available(maxUnavailable, "")
	r.AvailablePolicy.Groups = &appsv1alpha1.GroupBudget{GroupKey: groupLabel, SetKey: setLabel, MaxDisruptedGroups: &most}
	return r
}

// zonesAndGroups bounds both.
func zonesAndGroups(zoned, grouped int32) appsv1alpha1.TransitionRule {
	r := groupsOf(grouped, "")
	r.AvailablePolicy.Topology = zones(zoned, "").AvailablePolicy.Topology
	return r
}

// someNodes are two nodes in each of zones a, b and c, and one without a zone.
func someNodes() map[string]map[string]string {
	return map[string]map[string]string{
		"a1": {zone: "a"}, "a2": {zone: "a"}, "b1": {zone: "b"}, "b2": {zone: "b"}, "c1": {zone: "c"}, "c2": {zone: "c"},
		"plain": {"x": "y"},
	}
}

func requires(label, v string) appsv1alpha1.TransitionRule {
	return appsv1alpha1.TransitionRule{Name: "labels", TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
		LabelCheck: &appsv1alpha1.LabelCheckRule{Requires: &metav1.LabelSelector{MatchLabels: map[string]string{label: v}}},
	}}
}

func webhook() appsv1alpha1.TransitionRule {
	return appsv1alpha1.TransitionRule{Name: "hook", TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
		Webhook: &appsv1alpha1.TransitionRuleWebhook{ClientConfig: appsv1alpha1.WebhookClientConfig{URL: "http://127.0.0.1/"}},
	}}
}

func atPostCheck(r appsv1alpha1.TransitionRule) appsv1alpha1.TransitionRule {
	stage := appsv1alpha1.StagePostCheck
	r.Stage = &stage
	return r
}

func filtered(r appsv1alpha1.TransitionRule, label, v string) appsv1alpha1.TransitionRule {
	r.Filter = &appsv1alpha1.TransitionRuleFilter{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{label: v}}}
	return r
}

// after is the rules once the first n writes of the plan were made.
func after(rules []*appsv1alpha1.PodTransitionRule, plan Plan, n int) []*appsv1alpha1.PodTransitionRule {
	out := make([]*appsv1alpha1.PodTransitionRule, len(rules))
	for i, r := range rules {
		out[i] = r.DeepCopy()
		for _, s := range plan.Statuses[:min(n, len(plan.Statuses))] {
			if s.UID == r.UID {
				out[i].Status = *s.Status.DeepCopy()
			}
		}
	}
	return out
}

// settled applies whole plans until there is nothing to write.
func settled(s Snapshot) Snapshot {
	for range 20 {
		plan := Decide(s)
		if len(plan.Statuses) == 0 {
			return s
		}
		s.Rules = after(s.Rules, plan, len(plan.Statuses))
	}
	panic("the ledger does not come to rest")
}

// mayGo names the Pods that lifecycle-controller would let leave their stage, by the ledger.
func mayGo(s Snapshot) []string {
	compiled := make([]podops.Rule, len(s.Rules))
	for i, r := range s.Rules {
		compiled[i] = podops.CompileRule(r)
	}
	var names []string
	for _, p := range s.Pods {
		if len(podops.VerdictsFor(p.View, compiled)) > 0 {
			names = append(names, p.Name)
		}
	}
	return names
}

// holders names the Pods with a grant of the rule at PreCheck.
func holders(r *appsv1alpha1.PodTransitionRule) []string {
	var names []string
	for _, g := range r.Status.Grants {
		if g.Stage == appsv1alpha1.StagePreCheck && len(g.Operations) > 0 {
			names = append(names, g.PodName)
		}
	}
	return names
}
