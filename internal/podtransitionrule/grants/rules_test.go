package grants

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

type rules = []*appsv1alpha1.PodTransitionRule

func TestExpFunc(t *testing.T) {
	tests := map[string]struct {
		coeff, pow string
		n          int
		up, down   int
	}{
		"nothing given is all":                       {"", "", 7, 7, 7},
		"what is whole in decimal is whole":          {"0.1", "1", 10, 1, 1},
		"and for a square root":                      {"1", "0.5", 49, 7, 7},
		"a maximum is rounded up, a minimum down":    {"0.5", "1", 5, 3, 2},
		"growing more slowly than the Pods":          {"1", "0.7", 1000, 126, 125},
		"never more than all":                        {"3", "1", 5, 5, 5},
		"nor when it is more than any number":        {"999999999", "999", 5, 5, 5},
		"coefficient 0 is 0, whatever the power":     {"0", "999", 100000, 0, 0},
		"power 0 is the coefficient":                 {"2", "0", 5, 2, 2},
		"of no Pods it is 0":                         {"2", "0", 0, 0, 0},
		"a very small part is rounded like any part": {"0.000000001", "1", 1, 0, 0},
		"a small part of many":                       {"0.001", "1", 4999, 5, 4},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f, err := newExpFunc("p", &appsv1alpha1.AvailableAdaptivePolicy{ExpFunc: &appsv1alpha1.ExpFunc{Coeff: tc.coeff,
				Pow: tc.pow}})
			require.NoError(t, err)
			assert.Equal(t, []int{tc.up, tc.down}, []int{f.of(tc.n, true), f.of(tc.n, false)})
		})
	}
	for _, text := range []string{"-1", "1e3", "Inf", "NaN", "0x1", "1.2.3", ".", "half", "1_0"} {
		_, err := newExpFunc("maxUnavailablePolicy",
			&appsv1alpha1.AvailableAdaptivePolicy{ExpFunc: &appsv1alpha1.ExpFunc{Pow: text}})
		require.ErrorContains(t, err, fmt.Sprintf("maxUnavailablePolicy.expFunc.pow is %q: give a decimal number", text))
	}
}

func TestAllBoundsHoldTogether(t *testing.T) {
	check := func(change func(*appsv1alpha1.AvailableRule)) rules {
		r := available("", "")
		change(r.AvailablePolicy)
		return rules{aRule("r", r)}
	}
	adaptive := func(coeff, pow string) *appsv1alpha1.AvailableAdaptivePolicy {
		return &appsv1alpha1.AvailableAdaptivePolicy{ExpFunc: &appsv1alpha1.ExpFunc{Coeff: coeff, Pow: pow}}
	}
	tests := map[string]struct {
		rules   rules
		granted int // of 10
	}{
		"maxUnavailablePolicy": {check(func(a *appsv1alpha1.AvailableRule) { a.MaxUnavailablePolicy = adaptive("1", "0.5") }),
			4},
		"minAvailablePolicy": {check(func(a *appsv1alpha1.AvailableRule) { a.MinAvailablePolicy = adaptive("0.75", "") }),
			3},
		"a value tighter than the policy": {check(func(a *appsv1alpha1.AvailableRule) {
			a.MaxUnavailableValue, a.MaxUnavailablePolicy = value("2"), adaptive("1", "0.5")
		}), 2},
		"a policy tighter than the value": {check(func(a *appsv1alpha1.AvailableRule) {
			a.MinAvailableValue, a.MinAvailablePolicy = value("20%"), adaptive("0.9", "")
		}), 1},
		"a minimum tighter than a maximum": {check(func(a *appsv1alpha1.AvailableRule) {
			a.MaxUnavailableValue, a.MinAvailablePolicy = value("5"), adaptive("0.9", "")
		}), 1},
		"a policy without a function is no bound": {check(func(a *appsv1alpha1.AvailableRule) {
			a.MaxUnavailableValue, a.MinAvailablePolicy = value("2"), &appsv1alpha1.AvailableAdaptivePolicy{}
		}), 2},
		"a policy without a function alone": {check(
			func(a *appsv1alpha1.AvailableRule) { a.MinAvailablePolicy = &appsv1alpha1.AvailableAdaptivePolicy{} }), 0},
		"a policy with no number": {check(func(a *appsv1alpha1.AvailableRule) {
			a.MaxUnavailableValue, a.MinAvailablePolicy = value("2"), adaptive("half", "")
		}), 0},
		"topology alone bounds no number": {check(
			func(a *appsv1alpha1.AvailableRule) { a.Topology = &appsv1alpha1.TopologyBudget{TopologyKey: zone} }), 10},
		"groups alone bound no number: each of these Pods is a group": {check(
			func(a *appsv1alpha1.AvailableRule) { a.Groups = &appsv1alpha1.GroupBudget{GroupKey: groupLabel} }), 1},
		"groups without a key": {check(
			func(a *appsv1alpha1.AvailableRule) { a.Groups = &appsv1alpha1.GroupBudget{} }), 0},
		"less than one group": {rules{aRule("r", groupsOf(0, ""))}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := settled(Snapshot{Rules: tc.rules, Pods: pods(owned("set", 10, 10)...),
				Owners: []Owner{{UID: "set", Replicas: 10}}, Now: testNow})
			assert.Len(t, mayGo(s), tc.granted)
			assert.Equal(t, tc.granted == 0, meta.IsStatusConditionTrue(s.Rules[0].Status.Conditions, appsv1alpha1.RuleStalled))
		})
	}
}

func TestPodsAboveTheDesiredNumberMayGoUnderMinAvailable(t *testing.T) {
	tests := map[string]struct {
		check    appsv1alpha1.TransitionRule
		pods     int
		replicas int32
		granted  int
	}{
		"scaling 10 to 5 under minAvailable 5 goes on":          {available("", "5"), 10, 5, 5},
		"scaling 10 to 5 under minAvailable 100% goes on":       {available("", "100%"), 10, 5, 5},
		"maxUnavailable gives no credit":                        {available("2", "5"), 10, 5, 2},
		"without surplus there is none":                         {available("", "5"), 5, 5, 0},
		"missing Pods are no credit":                            {available("", "4"), 5, 6, 1},
		"more demanded than desired keeps that many":            {available("", "7"), 10, 5, 3},
		"a Pod of the surplus that is down leaves less to give": {available("", "5"), 6, 5, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := settled(Snapshot{
				Rules: rules{aRule("r", tc.check)}, Pods: pods(owned("set", tc.pods, tc.pods)...),
				Owners: []Owner{{UID: "set", Replicas: tc.replicas}}, Now: testNow,
			})
			assert.Len(t, mayGo(s), tc.granted)
		})
	}
}

func TestTopologyBudget(t *testing.T) {
	tests := map[string]struct {
		check appsv1alpha1.TransitionRule
		pods  []*podBuilder
		want  []string
	}{
		"one zone at a time, all Pods of it": {
			zones(1, ""), []*podBuilder{aPod("p1").on("a1").asks(1), aPod("p2").on("b1").asks(2), aPod("p3").on("a2").asks(3)},
			[]string{"p1", "p3"},
		},
		"as many zones as allowed": {
			zones(2, ""), []*podBuilder{aPod("p1").on("a1").asks(1), aPod("p2").on("b1").asks(2), aPod("p3").on("c1").asks(3)},
			[]string{"p1", "p2"},
		},
		"a zone with a Pod down is disrupted already": {
			zones(1, ""), []*podBuilder{aPod("p1").on("a1").asks(1), aPod("p2").on("b1").asks(2), aPod("p3").on("b2").down()},
			[]string{"p2"},
		},
		"a Pod that is down adds no zone": {
			zones(1, ""), []*podBuilder{aPod("p1").on("a1").down().asks(1), aPod("p2").on("b1").down()}, []string{"p1"},
		},
		"no more zones than allowed hold granted Pods, were they down before": {
			zones(1, ""), []*podBuilder{aPod("p1").on("a1").down().asks(1), aPod("p2").on("b1").down().asks(2)}, []string{"p1"},
		},
		"a Pod in service waits although its zone is disrupted, while another zone holds the grant": {
			zones(1, ""), []*podBuilder{aPod("p1").on("a1").down().asks(1), aPod("p2").on("b1").down(),
				aPod("p3").on("b2").asks(3)}, []string{"p1"},
		},
		"nodes without the label are one domain": {
			zones(1, ""), []*podBuilder{aPod("p1").on("plain").asks(1), aPod("p2").on("plain").asks(2),
				aPod("p3").on("a1").asks(3)}, []string{"p1", "p2"},
		},
		"a node that is not known is a domain by itself": {
			zones(1, ""), []*podBuilder{aPod("p1").on("new1").asks(1), aPod("p2").on("new2").asks(2),
				aPod("p3").on("new1").asks(3)}, []string{"p1", "p3"},
		},
		"a Pod without a node is in no domain": {
			zones(1, ""), []*podBuilder{aPod("p1").down(), aPod("p2").on("a1").asks(2)}, []string{"p2"},
		},
		"0 domains let nothing pass": {zones(0, ""), []*podBuilder{aPod("p1").on("a1").asks(1)}, nil},
		"numbers hold as well": {
			zones(1, "1"), []*podBuilder{aPod("p1").on("a1").asks(1), aPod("p2").on("a2").asks(2)}, []string{"p1"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := settled(Snapshot{Rules: rules{aRule("r", tc.check)}, Pods: pods(tc.pods...), Nodes: someNodes(), Now: testNow})
			assert.Equal(t, tc.want, mayGo(s))
		})
	}
	t.Run("Pods that a late budget finds held in two zones go on one zone at a time", func(t *testing.T) {
		s := settled(Snapshot{Rules: rules{aRule("first", maxUnavailable("2"))},
			Pods: pods(aPod("p1").on("a1").asks(1), aPod("p2").on("b1").asks(2)), Nodes: someNodes(), Now: testNow})
		require.Equal(t, []string{"p1", "p2"}, mayGo(s))
		s.Rules = append(s.Rules, aRule("late", zones(1, "")))
		s = settled(s)
		assert.Equal(t, []string{"p1"}, mayGo(s))
		s.Pods = pods(aPod("p1").on("a1"), aPod("p2").on("b1").asks(2))
		assert.Equal(t, []string{"p2"}, mayGo(settled(s)))
	})
	assert.True(t, UsesTopology(rules{aRule("a", maxUnavailable("1")), aRule("b", zones(1, ""))}))
	assert.False(t, UsesTopology(rules{aRule("a", maxUnavailable("1"))}))
}

// inGroups are Pods that ask, the first before the second, in these groups.
func inGroups(groups ...string) []*podBuilder {
	var all []*podBuilder
	for i, group := range groups {
		all = append(all, aPod(fmt.Sprintf("p%d", i+1)).grouped(group).asks(i+1))
	}
	return all
}

func TestGroupBudget(t *testing.T) {
	byIndexAlone := groupsOf(1, "")
	byIndexAlone.AvailablePolicy.Groups.SetKey, byIndexAlone.AvailablePolicy.Groups.MaxDisruptedGroups = "", nil
	tests := map[string]struct {
		check appsv1alpha1.TransitionRule
		pods  []*podBuilder
		want  []string
	}{
		"one group at a time, all Pods of it": {
			groupsOf(1, ""), inGroups("shop/0", "shop/1", "shop/0"), []string{"p1", "p3"},
		},
		"as many groups as allowed": {
			groupsOf(2, ""), inGroups("shop/0", "shop/1", "shop/2", "shop/1"), []string{"p1", "p2", "p4"},
		},
		"groups of one index in two sets are two, and the bound is for both sets": {
			groupsOf(1, ""), inGroups("shop/0", "mail/0", "shop/0"), []string{"p1", "p3"},
		},
		"without a setKey they are one, and one group is the default": {
			byIndexAlone, inGroups("shop/0", "mail/0", "shop/1"), []string{"p1", "p2"},
		},
		"Pods without the set's label are of the same set": {
			groupsOf(1, ""), []*podBuilder{aPod("p1").label(groupLabel, "0").asks(1), aPod("p2").label(groupLabel, "0").asks(2),
				aPod("p3").grouped("shop/0").asks(3)}, []string{"p1", "p2"},
		},
		"an empty value of the label is one as any other": {
			groupsOf(1, ""), []*podBuilder{aPod("p1").label(groupLabel, "").asks(1), aPod("p2").label(groupLabel, "").asks(2),
				aPod("p3").asks(3)}, []string{"p1", "p2"},
		},
		"a Pod without the label is a group of its own": {
			groupsOf(1, ""), inGroups("", "", "shop/0"), []string{"p1"},
		},
		"though it has the set's": {
			groupsOf(2, ""), []*podBuilder{aPod("p1").label(setLabel, "shop").asks(1),
				aPod("p2").label(setLabel, "shop").asks(2), aPod("p3").label(setLabel, "shop").asks(3)}, []string{"p1", "p2"},
		},
		"a group with a Pod down is disrupted already": {
			groupsOf(1, ""), append(inGroups("shop/0", "shop/1"), aPod("p3").grouped("shop/1").down()), []string{"p2"},
		},
		"a Pod that is down adds no group": {
			groupsOf(1, ""), []*podBuilder{aPod("p1").grouped("shop/0").down().asks(1), aPod("p2").grouped("shop/1").down()},
			[]string{"p1"},
		},
		"no more groups than allowed hold granted Pods, were they down before": {
			groupsOf(1, ""), []*podBuilder{aPod("p1").grouped("shop/0").down().asks(1),
				aPod("p2").grouped("shop/1").down().asks(2)}, []string{"p1"},
		},
		"Pods that have run to their end disrupt no group": {
			groupsOf(1, ""), append(inGroups("shop/0"), aPod("p2").grouped("shop/1").terminal()), []string{"p1"},
		},
		"Pods of other rules disrupt none": {
			groupsOf(1, ""), append(inGroups("shop/0"), aPod("p2").grouped("shop/1").down().label("app", "other")),
			[]string{"p1"},
		},
		"numbers hold as well": {
			groupsOf(1, "2"), inGroups("shop/0", "shop/0", "shop/0"), []string{"p1", "p2"},
		},
		"zones hold as well: a Pod may go if both its zone and its group may": {
			zonesAndGroups(1, 2), []*podBuilder{aPod("p1").on("a1").grouped("shop/0").asks(1),
				aPod("p2").on("b1").grouped("shop/0").asks(2), aPod("p3").on("a2").grouped("shop/1").asks(3),
				aPod("p4").on("a2").grouped("shop/2").asks(4)}, []string{"p1", "p3"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := settled(Snapshot{Rules: rules{aRule("r", tc.check)}, Pods: pods(tc.pods...), Nodes: someNodes(), Now: testNow})
			assert.Equal(t, tc.want, mayGo(s))
		})
	}
	assert.False(t, UsesTopology(rules{aRule("a", groupsOf(1, ""))}), "nodes are not watched for groups")
}

func TestWhyAPodWaitsForItsGroup(t *testing.T) {
	byIndexAlone := groupsOf(1, "")
	byIndexAlone.AvailablePolicy.Groups.SetKey = ""
	const noFurther = ", no further group of " + groupLabel + " may be disrupted now"
	tests := map[string]struct {
		check appsv1alpha1.TransitionRule
		group string
		want  string
	}{
		"by set and index":        {groupsOf(1, ""), "shop/1", "group shop/1 waits" + noFurther},
		"by index alone":          {byIndexAlone, "shop/1", "group 1 waits" + noFurther},
		"a group of its own":      {groupsOf(1, ""), "", "the Pod is a group of its own" + noFurther},
		"the zone is named first": {zonesAndGroups(0, 1), "shop/1", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := settled(Snapshot{Rules: rules{aRule("r", tc.check)}, Pods: pods(inGroups("shop/0", tc.group)...),
				Nodes: someNodes(), Now: testNow})
			want := "blocked by group policy: " + tc.want
			if tc.want == "" {
				want = "blocked by topology policy: no further domain of " + zone + " may be disrupted now"
			}
			detail := s.Rules[0].Status.Details[1]
			assert.Equal(t, []appsv1alpha1.RejectInfo{{RuleName: "available", Reason: want}}, detail.RejectInfo)
		})
	}
}

func subjectOf(q Question) Subject { return q.Subject }

// said answers every question.
func said(s Snapshot, a Answer) Snapshot {
	s.Answers = map[Subject]Answer{}
	for _, q := range Decide(s).Questions {
		s.Answers[subjectOf(q)] = a
	}
	return s
}

func TestWebhookChecks(t *testing.T) {
	start := func() Snapshot {
		return settled(Snapshot{Rules: rules{aRule("r", webhook(), maxUnavailable("1"))},
			Pods: pods(aPod("a").asks(2), aPod("b").asks(1)), Now: testNow})
	}
	rejects := func(s Snapshot, pod string) []appsv1alpha1.RejectInfo {
		for _, d := range s.Rules[0].Status.Details {
			if d.Name == pod {
				return d.RejectInfo
			}
		}
		return nil
	}
	reconciling := func(s Snapshot) string {
		c := meta.FindStatusCondition(s.Rules[0].Status.Conditions, appsv1alpha1.RuleReconciling)
		return string(c.Status) + " " + c.Reason
	}
	t.Run("every Pod that waits is asked about, in the order of serving", func(t *testing.T) {
		s := start()
		want := []Question{{
			Subject: Subject{Rule: "r-uid", Check: "hook", Pod: "b-uid", Stage: "PreCheck",
				Operations: "op/update=" + stamp(1)},
			PodName:  "b",
			Requests: []appsv1alpha1.GrantedOperation{{ID: "op", Type: "update", Request: stamp(1)}},
		}, {
			Subject: Subject{Rule: "r-uid", Check: "hook", Pod: "a-uid", Stage: "PreCheck",
				Operations: "op/update=" + stamp(2)},
			PodName:  "a",
			Requests: []appsv1alpha1.GrantedOperation{{ID: "op", Type: "update", Request: stamp(2)}},
		}}
		assert.Empty(t, cmp.Diff(want, Decide(s).Questions))
		assert.Empty(t, mayGo(s))
		assert.Equal(t, []appsv1alpha1.RejectInfo{{RuleName: "hook", Reason: "waits for its webhook's answer"}},
			rejects(s, "a"))
		assert.Equal(t, "True AskingWebhook", reconciling(s))
		assert.False(t, meta.IsStatusConditionTrue(s.Rules[0].Status.Conditions, appsv1alpha1.RuleStalled))
	})
	t.Run("what it lets pass comes before availability, and what is granted is not asked about again", func(t *testing.T) {
		s := settled(said(start(), Answer{Passed: true}))
		assert.Equal(t, []string{"b"}, mayGo(s))
		assert.Equal(t, []appsv1alpha1.RejectInfo{{RuleName: "available", Reason: "blocked by max unavailable policy"}},
			rejects(s, "a"))
		questions := Decide(s).Questions
		require.Len(t, questions, 1)
		assert.Equal(t, "a", questions[0].PodName)
		assert.Equal(t, "False InForce", reconciling(s))
	})
	t.Run("its reason is shown when it says no", func(t *testing.T) {
		s := settled(said(start(), Answer{Reason: "not today"}))
		assert.Equal(t, []appsv1alpha1.RejectInfo{{RuleName: "hook", Reason: "not today"}}, rejects(s, "a"))
		assert.Equal(t, "True AskingWebhook", reconciling(s))
	})
	t.Run("a reason of any length does not make the status grow beyond bounds", func(t *testing.T) {
		s := settled(said(start(), Answer{Reason: strings.Repeat("ä", 1<<20)}))
		assert.Equal(t, strings.Repeat("ä", (longestReason-3)/2)+"...", rejects(s, "a")[0].Reason)
	})
	t.Run("an answer is not inherited by another request or another Pod", func(t *testing.T) {
		s := said(start(), Answer{Passed: true})
		again, reborn := aPod("a").asks(3), aPod("b").asks(1)
		reborn.UID = "b-second"
		s.Pods = pods(again, reborn)
		s = settled(s)
		assert.Empty(t, mayGo(s))
		assert.Len(t, Decide(s).Questions, 2)
	})
	t.Run("a Pod that fails its labels in any rule is not asked about", func(t *testing.T) {
		s := Snapshot{Rules: rules{aRule("r", webhook()), aRule("s", requires("ok", "yes"))},
			Pods: pods(aPod("a").asks(1), aPod("b").asks(2).label("ok", "yes")), Now: testNow}
		questions := Decide(s).Questions
		require.Len(t, questions, 1)
		assert.Equal(t, "b", questions[0].PodName)
	})
	t.Run("a Pod that waits for its answer takes no budget", func(t *testing.T) {
		s := Snapshot{Rules: rules{aRule("r", filtered(webhook(), "slow", "yes"), maxUnavailable("1"))},
			Pods: pods(aPod("a").asks(1).label("slow", "yes"), aPod("b").asks(2)), Now: testNow}
		assert.Equal(t, []string{"b"}, mayGo(settled(s)))
	})
	t.Run("a late rule with a webhook joins a grant only when that agrees", func(t *testing.T) {
		s := settled(Snapshot{Rules: rules{aRule("first", maxUnavailable("1"))}, Pods: pods(aPod("a").asks(1)), Now: testNow})
		s.Rules = append(s.Rules, aRule("late", webhook()))
		s = settled(s)
		assert.Empty(t, mayGo(s))
		assert.Equal(t, []string{"a"}, mayGo(settled(said(s, Answer{Passed: true}))))
	})
	t.Run("nor while another rule refuses, so that it is not asked", func(t *testing.T) {
		s := settled(Snapshot{Rules: rules{aRule("first", maxUnavailable("1"))}, Pods: pods(aPod("a").asks(1)), Now: testNow})
		s.Rules = append(s.Rules, aRule("late", webhook()), aRule("strict", requires("ok", "yes")))
		s = settled(s)
		assert.Empty(t, s.Rules[1].Status.Grants)
		assert.Empty(t, Decide(s).Questions)
	})
	t.Run("at PostCheck it keeps the Pod from coming back", func(t *testing.T) {
		s := settled(Snapshot{Rules: rules{aRule("r", atPostCheck(webhook()))}, Pods: pods(aPod("a").finished(1)),
			Now: testNow})
		assert.Empty(t, mayGo(s))
		assert.Equal(t, []string{"a"}, mayGo(settled(said(s, Answer{Passed: true}))))
	})
	t.Run("a rule whose webhook cannot be asked refuses and asks nobody", func(t *testing.T) {
		s := start()
		s.Invalid = map[types.UID]string{"r-uid": "spec.rules[0].webhook.clientConfig.caBundle has no certificate"}
		s = settled(said(s, Answer{Passed: true}))
		assert.Empty(t, mayGo(s))
		assert.Empty(t, Decide(s).Questions)
	})
	t.Run("a webhook that does not answer makes the rule not Ready, and not stalled", func(t *testing.T) {
		s := start()
		s.Unreachable = map[types.UID]string{"r-uid": "https://hooks.example.test does not answer"}
		conditions := settled(s).Rules[0].Status.Conditions
		assert.Equal(t, "WebhookUnreachable", meta.FindStatusCondition(conditions, appsv1alpha1.RuleReady).Reason)
		assert.False(t, meta.IsStatusConditionTrue(conditions, appsv1alpha1.RuleStalled))
	})
}

func TestTasksGoToTheStatusAsTheyAreAndAreWrittenOnce(t *testing.T) {
	began := metav1.NewTime(testNow.Add(time.Second))
	states := []appsv1alpha1.RuleState{
		{Name: "hook",
			WebhookStatus: &appsv1alpha1.WebhookStatus{TaskStates: []appsv1alpha1.TaskInfo{{TaskID: "a"},
				{TaskID: "b", BeginTime: &began}}}},
		{Name: "two"},
	}
	s := Snapshot{Rules: rules{aRule("r", webhook())}, Now: testNow,
		Tasks: map[types.UID][]appsv1alpha1.RuleState{"r-uid": states}}
	s = settled(s)
	assert.Equal(t, states, s.Rules[0].Status.RuleStates)
	assert.Empty(t, Decide(s).Statuses)
	s.Tasks = nil
	assert.Empty(t, settled(s).Rules[0].Status.RuleStates)
}

func TestFreeze(t *testing.T) {
	held := settled(Snapshot{Rules: rules{aRule("r", maxUnavailable("2"))}, Pods: pods(aPod("a").asks(1)), Now: testNow})
	s := held
	s.Frozen = "release week"
	s.Pods = pods(aPod("a").asks(1), aPod("b").asks(2), aPod("c").finished(1))
	s = settled(s)
	assert.Equal(t, []string{"a"}, holders(s.Rules[0]), "what is granted is kept")
	assert.Contains(t, mayGo(s), "c", "Pods come back")
	var shown []appsv1alpha1.RejectInfo
	for _, d := range s.Rules[0].Status.Details {
		shown = append(shown, d.RejectInfo...)
	}
	assert.Equal(t, []appsv1alpha1.RejectInfo{{Reason: "frozen: release week"}}, shown)
	c := meta.FindStatusCondition(s.Rules[0].Status.Conditions, appsv1alpha1.RuleReconciling)
	assert.Equal(t, []string{"False", "Frozen", "Nothing new is granted at PreCheck: release week"},
		[]string{string(c.Status), c.Reason, c.Message})
	s.Frozen = ""
	s.Pods = pods(aPod("a").asks(1), aPod("b").asks(2), aPod("c"))
	assert.Equal(t, []string{"a", "b"}, mayGo(settled(s)))
}

func TestAPodThatNobodyCanTakeOutOfTrafficTakesNoBudget(t *testing.T) {
	s := settled(Snapshot{Rules: rules{aRule("r", maxUnavailable("1"))},
		Pods: pods(aPod("a").asks(1).annotated("no JSON"), aPod("b").asks(2)), Now: testNow})
	assert.Equal(t, []string{"b"}, holders(s.Rules[0]))
	require.Len(t, s.Rules[0].Status.Details, 2)
	require.Len(t, s.Rules[0].Status.Details[0].RejectInfo, 1)
	assert.Contains(t, s.Rules[0].Status.Details[0].RejectInfo[0].Reason,
		podops.AvailableConditionsAnnotation+" is not valid JSON, correct or remove it")

	s.Pods = pods(aPod("a").asks(1).annotated("no JSON"), aPod("b").asks(2).annotated("no JSON"))
	assert.Equal(t, []string{"b"}, holders(settled(s).Rules[0]), "what is granted may be on its way")
	s.Pods = pods(aPod("a").asks(1), aPod("b"))
	assert.Equal(t, []string{"a"}, holders(settled(s).Rules[0]), "once it is corrected")
}

func TestReconcilingDoesNotFlapInAPlainRollout(t *testing.T) {
	s := Snapshot{Rules: rules{aRule("a", maxUnavailable("1")), aRule("b", maxUnavailable("1"))},
		Pods: pods(aPod("p").asks(1), aPod("q").asks(2)), Now: testNow}
	for range 3 {
		plan := Decide(s)
		for _, status := range plan.Statuses {
			assert.True(t, meta.IsStatusConditionFalse(status.Status.Conditions, appsv1alpha1.RuleReconciling))
		}
		s.Rules = after(s.Rules, plan, min(1, len(plan.Statuses)))
	}
	t.Run("it is True while a late rule joins a grant step by step", func(t *testing.T) {
		s := settled(Snapshot{Rules: rules{aRule("a", maxUnavailable("1"))}, Pods: pods(aPod("p").operates(1)), Now: testNow})
		s = settled(Snapshot{Rules: s.Rules, Pods: pods(aPod("p").asks(1)), Now: testNow})
		s.Rules = append(s.Rules, aRule("b", maxUnavailable("1")), aRule("c", maxUnavailable("1")))
		s.Pods = pods(aPod("p").asks(1).asksAs("second", 2))
		reasons := map[string]bool{}
		for range 10 {
			plan := Decide(s)
			s.Rules = after(s.Rules, plan, len(plan.Statuses))
			reasons[meta.FindStatusCondition(s.Rules[0].Status.Conditions, appsv1alpha1.RuleReconciling).Reason] = true
		}
		assert.Equal(t, map[string]bool{"ExtendingGrants": true, "InForce": true}, reasons)
	})
}
