package grants

import (
	"fmt"
	"reflect"
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

func owned(uid string, n, asking int) []*podBuilder {
	var out []*podBuilder
	for i := range n {
		p := aPod(fmt.Sprintf("%s-%02d", uid, i)).ownedBy(uid)
		if i < asking {
			p.asks(i + 1)
		}
		out = append(out, p)
	}
	return out
}

func TestWhichPodsAreGranted(t *testing.T) {
	type rules = []*appsv1alpha1.PodTransitionRule
	tests := map[string]struct {
		rules  rules
		pods   []*podBuilder
		owners []Owner
		want   []string
	}{
		"a Pod that no rule selects needs no grant": {
			rules: rules{aRule("r", maxUnavailable("1"))}, pods: []*podBuilder{aPod("a").label("app", "other").asks(1)},
			want: []string{"a"},
		},
		"the oldest request is served first, then names decide": {
			rules: rules{aRule("r", maxUnavailable("2"))},
			pods:  []*podBuilder{aPod("a").asks(3), aPod("b").asks(1), aPod("d").asks(2), aPod("c").asks(2)},
			want:  []string{"b", "c"},
		},
		"times are compared as times, not as text": {
			rules: rules{aRule("r", maxUnavailable("1"))},
			pods: []*podBuilder{
				aPod("a").asks(1).label(podops.OperatingPrefix+"/op", "1000"),
				aPod("b").asks(1).label(podops.OperatingPrefix+"/op", "999"),
				aPod("c").asks(1).label(podops.OperatingPrefix+"/op", "soon"),
			},
			want: []string{"b"},
		},
		"maxUnavailable as a percentage is rounded up": {
			rules: rules{aRule("r", maxUnavailable("25%"))}, pods: owned("set", 5, 5),
			owners: []Owner{{UID: "set", Replicas: 5}}, want: []string{"set-00", "set-01"},
		},
		"minAvailable as a percentage is rounded down": {
			rules: rules{aRule("r", available("", "50%"))}, pods: owned("set", 5, 5), owners: []Owner{{UID: "set", Replicas: 5}},
			want: []string{"set-00", "set-01", "set-02"},
		},
		"with maxUnavailable and minAvailable the tighter one holds": {
			rules: rules{aRule("r", available("3", "4"))}, pods: owned("set", 5, 5), owners: []Owner{{UID: "set", Replicas: 5}},
			want: []string{"set-00"},
		},
		"a Pod whose replacement serves passes, and no other": {
			rules: rules{aRule("r", maxUnavailable("0"))},
			pods: append(owned("set", 2, 2), aPod("new").ownedBy("set").
				label(appsv1alpha1.ReplacePairOriginNameLabel, "set-01")),
			owners: []Owner{{UID: "set", Replicas: 2}}, want: []string{"set-01"},
		},
		"and whatever minAvailable says": {
			rules: rules{aRule("r", available("", "100%"))},
			pods: append(owned("set", 1, 1), aPod("new").ownedBy("set").
				label(appsv1alpha1.ReplacePairOriginNameLabel, "set-00")),
			owners: []Owner{{UID: "set", Replicas: 1}}, want: []string{"set-00"},
		},
		"a replaced Pod takes no place of others": {
			rules: rules{aRule("r", maxUnavailable("1"))},
			pods: append(owned("set", 2, 2), aPod("new").ownedBy("set").
				label(appsv1alpha1.ReplacePairOriginNameLabel, "set-01")),
			owners: []Owner{{UID: "set", Replicas: 2}}, want: []string{"set-00", "set-01"},
		},
		"a replacement that does not serve relieves no Pod": {
			rules: rules{aRule("r", maxUnavailable("0"))},
			pods: append(owned("set", 1, 1), aPod("new").ownedBy("set").down().
				label(appsv1alpha1.ReplacePairOriginNameLabel, "set-00")),
			owners: []Owner{{UID: "set", Replicas: 1}},
		},
		"a replacement that does not serve may leave, and its Pod not": {
			rules: rules{aRule("r", maxUnavailable("0"))},
			pods: append(owned("set", 1, 1), aPod("new").ownedBy("set").down().asks(2).
				label(appsv1alpha1.ReplacePairOriginNameLabel, "set-00")),
			owners: []Owner{{UID: "set", Replicas: 1}}, want: []string{"new"},
		},
		"a replacement that serves may leave as well, if its Pod stays": {
			rules: rules{aRule("r", maxUnavailable("0"))},
			pods: append(owned("set", 1, 0), aPod("new").ownedBy("set").asks(2).
				label(appsv1alpha1.ReplacePairOriginNameLabel, "set-00")),
			owners: []Owner{{UID: "set", Replicas: 1}}, want: []string{"new"},
		},
		"of two that want to leave, the older one does": {
			rules: rules{aRule("r", maxUnavailable("0"))},
			pods: append(owned("set", 1, 1), aPod("new").ownedBy("set").asks(0).
				label(appsv1alpha1.ReplacePairOriginNameLabel, "set-00")),
			owners: []Owner{{UID: "set", Replicas: 1}}, want: []string{"set-00"},
		},
		"a replacement that starts takes no place of others": {
			rules: rules{aRule("r", maxUnavailable("1"))},
			pods: append(append(owned("set", 2, 0)[1:], aPod("a").ownedBy("set").asks(1)), aPod("new").ownedBy("set").down().
				label(appsv1alpha1.ReplacePairOriginNameLabel, "set-01")),
			owners: []Owner{{UID: "set", Replicas: 2}}, want: []string{"a"},
		},
		"a replacement that is replaced itself passes while the first Pod still ends": {
			rules: rules{aRule("r", maxUnavailable("0"))},
			pods: []*podBuilder{aPod("first").ownedBy("set").terminating(),
				aPod("second").ownedBy("set").asks(1).label(appsv1alpha1.ReplacePairOriginNameLabel, "first"),
				aPod("a-third").ownedBy("set").label(appsv1alpha1.ReplacePairOriginNameLabel, "second")},
			owners: []Owner{{UID: "set", Replicas: 1}}, want: []string{"second"},
		},
		"nor does a Pod of another owner": {
			rules: rules{aRule("r", maxUnavailable("0"))},
			pods: append(owned("set", 1, 1), aPod("new").ownedBy("other").
				label(appsv1alpha1.ReplacePairOriginNameLabel, "set-00")),
			owners: []Owner{{UID: "set", Replicas: 1}},
		},
		"nor one that the check is not about": {
			rules: rules{aRule("r", maxUnavailable("0"))},
			pods: append(owned("set", 1, 1), aPod("new").ownedBy("set").label("app", "other").
				label(appsv1alpha1.ReplacePairOriginNameLabel, "set-00")),
			owners: []Owner{{UID: "set", Replicas: 1}},
		},
		"nor one that itself is in another Pod's place": {
			rules: rules{aRule("r", maxUnavailable("0"))},
			pods: append(owned("set", 1, 1), aPod("new").ownedBy("set").
				label(appsv1alpha1.ReplacePairOriginNameLabel, "set-00"),
				aPod("newer").ownedBy("set").label(appsv1alpha1.ReplacePairOriginNameLabel, "new")),
			owners: []Owner{{UID: "set", Replicas: 1}}, want: []string{"set-00"},
		},
		"allowance 0 lets nothing pass": {
			rules: rules{aRule("r", maxUnavailable("0"))}, pods: []*podBuilder{aPod("a").asks(1), aPod("b").down().asks(1)},
		},
		"minAvailable of all Pods lets nothing pass": {
			rules: rules{aRule("r", available("", "100%"))}, pods: owned("set", 3, 3),
			owners: []Owner{{UID: "set", Replicas: 3}},
		},
		"a terminating Pod is unavailable": {
			rules: rules{aRule("r", maxUnavailable("1"))}, pods: []*podBuilder{aPod("a").asks(1), aPod("b").terminating()},
		},
		"a Pod that is not Ready is unavailable although labelled service-available": {
			rules: rules{aRule("r", maxUnavailable("1"))},
			pods:  []*podBuilder{aPod("a").asks(1), aPod("b").down().label(podops.ServiceAvailableLabel, "1")},
		},
		"a managed Pod that is Ready but not service-available is unavailable": {
			rules: rules{aRule("r", maxUnavailable("1"))},
			pods:  []*podBuilder{aPod("a").asks(1), aPod("b").without(podops.ServiceAvailableLabel)},
		},
		"an unmanaged Pod is available when Ready": {
			rules: rules{aRule("r", maxUnavailable("1"))}, pods: []*podBuilder{aPod("a").asks(1), aPod("b").unmanaged()},
			want: []string{"a"},
		},
		"an unmanaged Pod takes no part and gets no grant": {
			rules: rules{aRule("r", maxUnavailable("1"))}, pods: []*podBuilder{aPod("a").unmanaged().asks(1)},
		},
		"a terminating Pod gets no grant": {
			rules: rules{aRule("r", maxUnavailable("5"))}, pods: []*podBuilder{aPod("a").asks(1).terminating()},
		},
		"a request without a type waits for its operator and takes no budget": {
			rules: rules{aRule("r", maxUnavailable("1"))},
			pods:  []*podBuilder{aPod("a").asks(1).without(podops.OperationTypePrefix + "/op"), aPod("b").asks(2)},
			want:  []string{"b"},
		},
		"a Pod missing against desired replicas is unavailable": {
			rules: rules{aRule("r", maxUnavailable("1"))}, pods: owned("set", 3, 3), owners: []Owner{{UID: "set", Replicas: 4}},
		},
		"a Pod missing leaves what else the budget has": {
			rules: rules{aRule("r", maxUnavailable("50%"))}, pods: owned("set", 3, 3),
			owners: []Owner{{UID: "set", Replicas: 4}}, want: []string{"set-00"},
		},
		"an owner that lost all its Pods is known by its template": {
			rules: rules{aRule("r", maxUnavailable("1"))}, pods: owned("a", 1, 1),
			owners: []Owner{{UID: "a", Replicas: 1}, {UID: "b", Replicas: 1, PodLabels: map[string]string{"app": "web"}}},
		},
		"an owner without Pods that the rule would not select is left alone": {
			rules: rules{aRule("r", maxUnavailable("1"))}, pods: owned("a", 1, 1),
			owners: []Owner{{UID: "a", Replicas: 1}, {UID: "b", Replicas: 1, PodLabels: map[string]string{"app": "db"}}},
			want:   []string{"a-00"},
		},
		"a surge does not raise the percentage": {
			rules: rules{aRule("r", maxUnavailable("25%"))}, pods: owned("set", 8, 8),
			owners: []Owner{{UID: "set", Replicas: 4}}, want: []string{"set-00"},
		},
		"Pods of an owner scaled to zero count themselves": {
			rules: rules{aRule("r", maxUnavailable("50%"))}, pods: owned("set", 4, 4),
			owners: []Owner{{UID: "set", Replicas: 0}}, want: []string{"set-00", "set-01"},
		},
		"Pods of an unknown owner count themselves": {
			rules: rules{aRule("r", maxUnavailable("50%"))}, pods: owned("gone", 4, 4), want: []string{"gone-00", "gone-01"},
		},
		"a Pod is granted by all of its rules or by none": {
			rules: rules{aRule("a", maxUnavailable("2")), aRule("b", maxUnavailable("1"))},
			pods:  []*podBuilder{aPod("x").asks(1), aPod("y").asks(2)}, want: []string{"x"},
		},
		"label check lets matching Pods pass": {
			rules: rules{aRule("r", requires("ok", "yes"))},
			pods:  []*podBuilder{aPod("a").asks(1).label("ok", "yes"), aPod("b").asks(1).label("ok", "no")}, want: []string{"a"},
		},
		"a check with a filter is asked about matching Pods only, and counts only them": {
			rules: rules{aRule("r", filtered(maxUnavailable("1"), "tier", "gold"))},
			pods: []*podBuilder{aPod("a").asks(1), aPod("b").asks(2), aPod("c").label("tier", "gold").asks(3),
				aPod("d").label("tier", "gold").asks(4)}, want: []string{"a", "b", "c"},
		},
		"a Pod skips checks that its annotation names, and still counts when down": {
			rules: rules{aRule("r", maxUnavailable("1"))}, pods: []*podBuilder{aPod("a").skips("available").asks(1).operates(1),
				aPod("b").asks(2)},
		},
		"a disabled check is not asked": {
			rules: rules{aRule("r",
				func() appsv1alpha1.TransitionRule {
					r := maxUnavailable(
						"0",
					)
					r.Disabled = true
					return r
				}())}, pods: []*podBuilder{aPod("a").asks(1)}, want: []string{"a"},
		},
		"a check with conditions applies to no Pod": {
			rules: rules{aRule("r", func() appsv1alpha1.TransitionRule {
				r := maxUnavailable("0")
				r.Conditions = []string{"x"}
				return r
			}())}, pods: []*podBuilder{aPod("a").asks(1)}, want: []string{"a"},
		},
		"a check of no kind demands nothing, and still grants": {
			rules: rules{aRule("r", appsv1alpha1.TransitionRule{Name: "nothing"})}, pods: []*podBuilder{aPod("a").asks(1)},
			want: []string{"a"},
		},
		"webhook rules never pass silently": {
			rules: rules{aRule("r", webhook())}, pods: []*podBuilder{aPod("a").asks(1)},
		},
		"an available policy with nothing but expFunc never passes": {
			rules: rules{aRule("r", available("", ""))}, pods: []*podBuilder{aPod("a").asks(1)},
		},
		"an available policy that is no number never passes": {
			rules: rules{aRule("r", maxUnavailable("many"))}, pods: []*podBuilder{aPod("a").asks(1)},
		},
		"availability at PostCheck lets Pods return": {
			rules: rules{aRule("r", atPostCheck(maxUnavailable("0")))}, pods: []*podBuilder{aPod("a").finished(1)},
			want: []string{"a"},
		},
		"label check holds a Pod in PostCheck": {
			rules: rules{aRule("r", atPostCheck(requires("ok", "yes")))},
			pods:  []*podBuilder{aPod("a").finished(1), aPod("b").finished(1).label("ok", "yes")}, want: []string{"b"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := settled(Snapshot{Rules: tc.rules, Pods: pods(tc.pods...), Owners: tc.owners, Now: testNow})
			if diff := cmp.Diff(tc.want, mayGo(s)); diff != "" {
				t.Errorf("Pods that may go on (-want +got):\n%s", diff)
			}
		})
	}
}

// The failure modes of Kuperator that the reference numbers F7 to F12.

func TestF7TwoRulesDoNotDeadlock(t *testing.T) {
	rules := []*appsv1alpha1.PodTransitionRule{aRule("a", maxUnavailable("1")), aRule("b", maxUnavailable("1"))}
	s := settled(Snapshot{Rules: rules, Pods: pods(aPod("p1").asks(1), aPod("p2").asks(1), aPod("p3").asks(1),
		aPod("p4").asks(1)), Now: testNow})
	assert.Equal(t, []string{"p1"}, mayGo(s))
	assert.Equal(t, holders(s.Rules[0]), holders(s.Rules[1]))
}

func TestF8APodThatFailsItsLabelCheckTakesNoBudget(t *testing.T) {
	s := settled(Snapshot{
		Rules: []*appsv1alpha1.PodTransitionRule{aRule("r", maxUnavailable("1"), requires("ok", "yes")),
			aRule("s", maxUnavailable("1"))},
		Pods: pods(aPod("a").asks(1), aPod("b").asks(2).label("ok", "yes")), Now: testNow,
	})
	assert.Equal(t, []string{"b"}, mayGo(s))
	assert.Empty(t,
		cmp.Diff([]appsv1alpha1.RejectInfo{{RuleName: "labels",
			Reason: `blocked by label check policy: labels do not match "ok=yes"`}}, s.Rules[0].Status.Details[0].RejectInfo))
	assert.Contains(t, s.Rules[1].Status.Details[0].RejectInfo[0].Reason, "waits for PodTransitionRule r")
}

func TestF9ASubsetOfAnOwnersPodsIsNotShortOfTheOthers(t *testing.T) {
	builders := owned("set", 10, 0)
	for _, p := range builders[:3] {
		p.label("shard", "a").asks(1)
	}
	rule := aRule("r", maxUnavailable("1"))
	rule.Spec.Selector.MatchLabels["shard"] = "a"
	s := settled(Snapshot{Rules: []*appsv1alpha1.PodTransitionRule{rule}, Pods: pods(builders...),
		Owners: []Owner{{UID: "set", Replicas: 10}}, Now: testNow})
	assert.Equal(t, []string{"set-00"}, mayGo(Snapshot{Rules: s.Rules, Pods: s.Pods[:3]}))
	assert.EqualValues(t, 3, s.Rules[0].Status.Desired)
}

func TestF10DeadPodsTakeNoBudget(t *testing.T) {
	s := settled(Snapshot{
		Rules: []*appsv1alpha1.PodTransitionRule{aRule("r", maxUnavailable("1"))},
		Pods:  pods(aPod("a").asks(1), aPod("failed").terminal(), aPod("foreign").unmanaged()), Now: testNow,
	})
	assert.Equal(t, []string{"a"}, mayGo(s))
	assert.EqualValues(t, 2, s.Rules[0].Status.Desired)
}

func TestF11AnOutageOfAllPodsReleasesNoMoreThanAllowed(t *testing.T) {
	s := settled(Snapshot{
		Rules: []*appsv1alpha1.PodTransitionRule{aRule("r", maxUnavailable("1"))},
		Pods:  pods(aPod("a").down().asks(1), aPod("b").down().asks(2), aPod("c").down().asks(3), aPod("d").down().asks(4)),
		Now:   testNow,
	})
	assert.Equal(t, []string{"a"}, mayGo(s))
}

func TestF12ALateRuleIsInForceAtOnce(t *testing.T) {
	held := settled(Snapshot{Rules: []*appsv1alpha1.PodTransitionRule{aRule("a", maxUnavailable("1"))},
		Pods: pods(aPod("p").asks(1), aPod("q")), Now: testNow})
	require.Equal(t, []string{"p"}, mayGo(held))

	t.Run("what was granted waits for the late rule, and is never taken back", func(t *testing.T) {
		s := held
		s.Rules = append(s.Rules, aRule("late", requires("ok", "yes")))
		require.Empty(t, mayGo(s))
		s = settled(s)
		assert.Empty(t, mayGo(s))
		assert.Equal(t, []string{"p"}, holders(s.Rules[0]))
		assert.False(t, s.Rules[1].Status.Details[0].Passed)
	})
	t.Run("the late rule joins the grant when it agrees", func(t *testing.T) {
		s := held
		s.Rules = append(s.Rules, aRule("late", maxUnavailable("1")))
		s = settled(s)
		assert.Equal(t, []string{"p"}, mayGo(s))
		assert.Len(t, s.Rules[0].Status.Grants[0].Rules, 2)
	})
	t.Run("a Pod that is down already keeps its slot in the late rule's count", func(t *testing.T) {
		s := held
		s.Pods = pods(aPod("p").operates(1), aPod("q").asks(2))
		s.Rules = append(s.Rules, aRule("late", maxUnavailable("1")))
		s = settled(s)
		assert.Empty(t, mayGo(s))
		assert.Equal(t, []string{"p"}, holders(s.Rules[0]))
	})
}

func TestHowLongAGrantIsHeld(t *testing.T) {
	tests := map[string]struct {
		now  *podBuilder
		held bool
	}{
		"while it was not acted on":                        {aPod("p").asks(1), true},
		"while the Pod is operated on":                     {aPod("p").operates(1), true},
		"while it is checked afterwards":                   {aPod("p").finished(1), true},
		"while it is not Ready, although nothing is asked": {aPod("p").down(), true},
		"while it is terminating":                          {aPod("p").terminating(), true},
		"while it is asked anew, out of service": {aPod("p").operates(1).asks(2).without(podops.PreCheckedPrefix +
			"/op"), true},
		"until it is back in service": {aPod("p"), false},
		// the other one is granted again
		"until the request is replaced by another": {aPod("p").asksAs("other", 5), true},
		"until it is gone and another has its name": {&podBuilder{Pod{View: podops.View{Namespace: "ns", Name: "p",
			UID: "second", Ready: true, Labels: aPod("p").Labels}}}, false},
		"until the request is cancelled in service":          {aPod("p").label("x", "y"), false},
		"until it has run to its end with nothing under way": {aPod("p").terminal(), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := settled(Snapshot{Rules: []*appsv1alpha1.PodTransitionRule{aRule("r", maxUnavailable("1"))},
				Pods: pods(aPod("p").asks(1), aPod("q")), Now: testNow})
			require.Equal(t, []string{"p"}, holders(s.Rules[0]))
			s.Pods = pods(tc.now, aPod("q").asks(9))
			s = settled(s)
			assert.Equal(t, tc.held, len(holders(s.Rules[0])) == 1 && holders(s.Rules[0])[0] == "p", "holders %v",
				holders(s.Rules[0]))
			assert.Len(t, holders(s.Rules[0]), 1)
		})
	}
}

func TestRequestsOnAHeldPod(t *testing.T) {
	rules := func() []*appsv1alpha1.PodTransitionRule {
		return []*appsv1alpha1.PodTransitionRule{aRule("a", maxUnavailable("1")), aRule("b", maxUnavailable("1"))}
	}
	start := settled(Snapshot{Rules: rules(), Pods: pods(aPod("p").asks(1), aPod("q")), Now: testNow})
	t.Run("a second operation is added without a new slot", func(t *testing.T) {
		s := start
		s.Pods = pods(aPod("p").operates(1).asksAs("second", 5), aPod("q").asks(2))
		s = settled(s)
		assert.Equal(t, []string{"p"}, mayGo(s))
		assert.Len(t, s.Rules[0].Status.Grants[0].Operations, 2)
	})
	t.Run("a new request under the same ID takes the place of the old one", func(t *testing.T) {
		s := start
		s.Pods = pods(aPod("p").operates(1).without(podops.OperatePrefix+"/op").asks(7).without(podops.PreCheckedPrefix+
			"/op"), aPod("q").asks(2))
		s = settled(s)
		assert.Equal(t, []string{"p"}, mayGo(s))
		assert.Equal(t, []appsv1alpha1.GrantedOperation{{ID: "op", Type: "update", Request: stamp(7)}},
			s.Rules[1].Status.Grants[0].Operations)
	})
	t.Run("a second operation waits for the label check like any other", func(t *testing.T) {
		s := start
		s.Rules = after(s.Rules, Plan{}, 0)
		s.Rules[0].Spec.Rules = append(s.Rules[0].Spec.Rules, requires("ok", "yes"))
		s.Pods = pods(aPod("p").operates(1).asksAs("second", 5), aPod("q").asks(2))
		s = settled(s)
		assert.Empty(t, mayGo(s))
		assert.Equal(t, []appsv1alpha1.GrantedOperation{{ID: "op", Type: "update", Request: stamp(1)}},
			s.Rules[0].Status.Grants[0].Operations)
	})
	t.Run("a rule that is gone is no longer named, and the slot stays", func(t *testing.T) {
		s := start
		s.Rules = s.Rules[:1]
		require.Empty(t, mayGo(s))
		s = settled(s)
		assert.Equal(t, []string{"p"}, mayGo(s))
		assert.Equal(t, []appsv1alpha1.RuleReference{{Name: "a", UID: "a-uid"}}, s.Rules[0].Status.Grants[0].Rules)
	})
	t.Run("a rule of the same name that came later must agree itself", func(t *testing.T) {
		s := start
		later := aRule("b", maxUnavailable("1"))
		later.UID = "b-later"
		s.Rules = []*appsv1alpha1.PodTransitionRule{s.Rules[0], later}
		require.Empty(t, mayGo(s))
		assert.Equal(t, []string{"p"}, mayGo(settled(s)))
	})
	t.Run("a rule that no longer selects the Pod does not hold it up", func(t *testing.T) {
		s := start
		s.Rules = after(s.Rules, Plan{}, 0)
		s.Rules[1].Spec.Selector.MatchLabels["app"] = "other"
		assert.Equal(t, []string{"p"}, mayGo(settled(s)))
	})
}

func TestAHalfWrittenGrant(t *testing.T) {
	rules := []*appsv1alpha1.PodTransitionRule{aRule("a", maxUnavailable("1")), aRule("b", maxUnavailable("1"))}
	s := Snapshot{Rules: rules, Pods: pods(aPod("p").asks(5), aPod("q").asks(9)), Now: testNow}
	s.Rules = after(rules, Decide(s), 1)
	require.Equal(t, []string{"p"}, holders(s.Rules[0]))
	require.Empty(t, mayGo(s), "half a grant must not be acted on")

	t.Run("is completed before older requests are served", func(t *testing.T) {
		s := s
		s.Pods = pods(aPod("p").asks(5), aPod("q").asks(1))
		assert.Equal(t, []string{"p"}, mayGo(settled(s)))
	})
	t.Run("is withdrawn when it does not fit any more", func(t *testing.T) {
		s := s
		s.Pods = pods(aPod("p").asks(5), aPod("q").down())
		s = settled(s)
		assert.Empty(t, mayGo(s))
		assert.Empty(t, holders(s.Rules[0]))
	})
}

func TestStatus(t *testing.T) {
	t.Run("counts, conditions and stable reasons", func(t *testing.T) {
		s := settled(Snapshot{Rules: []*appsv1alpha1.PodTransitionRule{aRule("r", maxUnavailable("1"))},
			Pods: pods(owned("set", 4, 3)...), Owners: []Owner{{UID: "set", Replicas: 4}}, Now: testNow})
		status := s.Rules[0].Status
		assert.EqualValues(t, []int32{4, 3, 1, 2}, []int32{status.Desired, status.Available, status.Granted, status.Blocked})
		assert.True(t, meta.IsStatusConditionTrue(status.Conditions, appsv1alpha1.RuleReady))
		want := []appsv1alpha1.TransitionDetail{
			{Name: "set-00", Stage: "PreCheck", Passed: true, PassedRules: []string{"available"}},
			{Name: "set-01", Stage: "PreCheck", RejectInfo: []appsv1alpha1.RejectInfo{{RuleName: "available",
				Reason: "blocked by max unavailable policy"}}},
			{Name: "set-02", Stage: "PreCheck", RejectInfo: []appsv1alpha1.RejectInfo{{RuleName: "available",
				Reason: "blocked by max unavailable policy"}}},
		}
		if diff := cmp.Diff(want, status.Details); diff != "" {
			t.Errorf("details (-want +got):\n%s", diff)
		}
	})
	t.Run("blocked Pods are counted all and listed in part", func(t *testing.T) {
		s := settled(Snapshot{Rules: []*appsv1alpha1.PodTransitionRule{aRule("r", maxUnavailable("1"))},
			Pods: pods(owned("set", 90, 90)...), Now: testNow})
		assert.EqualValues(t, 89, s.Rules[0].Status.Blocked)
		assert.Len(t, s.Rules[0].Status.Details, 1+maxBlockedDetails)
	})
	t.Run("verdicts on granted Pods are listed in part, and every grant is there", func(t *testing.T) {
		s := settled(Snapshot{Rules: []*appsv1alpha1.PodTransitionRule{aRule("r", maxUnavailable("80"))},
			Pods: pods(owned("set", 90, 90)...), Now: testNow})
		assert.EqualValues(t, 80, s.Rules[0].Status.Granted)
		assert.Len(t, s.Rules[0].Status.Grants, 80)
		assert.Len(t, s.Rules[0].Status.Details, maxGrantedDetails+10)
	})
	t.Run("a rule that cannot be evaluated is stalled and says so once", func(t *testing.T) {
		for message, check := range map[string]appsv1alpha1.TransitionRule{"no certificate": webhook(),
			"no bound is set": available("", "")} {
			s := Snapshot{Rules: []*appsv1alpha1.PodTransitionRule{aRule("r", check)},
				Invalid: map[types.UID]string{"r-uid": "no certificate"}, Now: testNow}
			plan := Decide(s)
			require.Len(t, plan.Statuses, 1)
			assert.NotEmpty(t, plan.Statuses[0].NewlyStalled)
			stalled := meta.FindStatusCondition(plan.Statuses[0].Status.Conditions, appsv1alpha1.RuleStalled)
			assert.Equal(t, metav1.ConditionTrue, stalled.Status)
			assert.Equal(t, "InvalidRule", stalled.Reason)
			assert.Contains(t, stalled.Message, message)
			s.Rules = after(s.Rules, plan, 1)
			s.Pods, s.Now = pods(aPod("p").asks(1)), testNow.Add(time.Minute)
			assert.Empty(t, Decide(s).Statuses[0].NewlyStalled)
		}
	})
	t.Run("counters alone are not written more often than every two seconds", func(t *testing.T) {
		s := settled(Snapshot{Rules: []*appsv1alpha1.PodTransitionRule{aRule("r", maxUnavailable("1"))},
			Pods: pods(aPod("a"), aPod("b")), Now: testNow})
		s.Pods = pods(aPod("a"), aPod("b").down())
		s.Now = testNow.Add(500 * time.Millisecond)
		assert.Empty(t, Decide(s).Statuses)
		assert.Equal(t, 1500*time.Millisecond, Decide(s).NextLook)
		s.Now = testNow.Add(2 * time.Second)
		assert.Len(t, Decide(s).Statuses, 1)
	})
	t.Run("targets are all Pods that are selected, by name, whatever their state", func(t *testing.T) {
		s := settled(Snapshot{Rules: []*appsv1alpha1.PodTransitionRule{aRule("r", maxUnavailable("1"))}, Now: testNow,
			Pods: pods(
				aPod("c"), aPod("a").asks(1), aPod("b").terminating(), aPod("other").label("app", "x"), aPod("d").terminal(),
				aPod("e").unmanaged(),
			)})
		assert.Equal(t, []string{"a", "b", "c", "d", "e"}, s.Rules[0].Status.Targets)
	})
	t.Run("targets alone are written with the counters, at most every two seconds", func(t *testing.T) {
		s := settled(Snapshot{Rules: []*appsv1alpha1.PodTransitionRule{aRule("r", maxUnavailable("1"))},
			Pods: pods(aPod("a"), aPod("b")), Now: testNow})
		s.Pods = pods(aPod("a"), aPod("c"))
		s.Now = testNow.Add(500 * time.Millisecond)
		assert.Empty(t, Decide(s).Statuses)
		assert.Equal(t, 1500*time.Millisecond, Decide(s).NextLook)
		s.Now = testNow.Add(2 * time.Second)
		assert.Equal(t, []string{"a", "c"}, settled(s).Rules[0].Status.Targets)
	})
	t.Run("targets are bounded", func(t *testing.T) {
		s := settled(Snapshot{Rules: []*appsv1alpha1.PodTransitionRule{aRule("r", maxUnavailable("1"))},
			Pods: pods(owned("set", maxTargets+1, 0)...), Now: testNow})
		require.Len(t, s.Rules[0].Status.Targets, maxTargets)
		assert.Equal(t, "set-00", s.Rules[0].Status.Targets[0])
	})
	t.Run("transition times are kept while conditions stay as they are", func(t *testing.T) {
		s := settled(Snapshot{Rules: []*appsv1alpha1.PodTransitionRule{aRule("r", maxUnavailable("1"))}, Now: testNow})
		s.Rules = after(s.Rules, Plan{}, 0)
		s.Rules[0].Generation, s.Now = 2, testNow.Add(time.Hour)
		status := Decide(s).Statuses[0].Status
		assert.EqualValues(t, 2, status.ObservedGeneration)
		assert.EqualValues(t, 2, status.Conditions[0].ObservedGeneration)
		assert.True(t, status.Conditions[0].LastTransitionTime.Equal(&metav1.Time{Time: testNow}))
	})
}

func TestSameStatusSeesEveryField(t *testing.T) {
	type status = appsv1alpha1.PodTransitionRuleStatus
	require.True(t, sameStatus(status{Grants: []appsv1alpha1.PodGrant{}}, status{}), "empty or missing is the same")
	for _, part := range []func(*status) any{
		func(s *status) any { return s },
		func(s *status) any { return &s.Details[0] },
		func(s *status) any { return &s.Details[0].RejectInfo[0] },
		func(s *status) any { return &s.Grants[0] },
		func(s *status) any { return &s.Grants[0].Operations[0] },
		func(s *status) any { return &s.Grants[0].Rules[0] },
	} {
		for i := range reflect.TypeOf(part(fullStatus())).Elem().NumField() {
			was, is := fullStatus(), fullStatus()
			require.True(t, sameStatus(*was, *is))
			of := reflect.ValueOf(part(is)).Elem()
			fill(of.Field(i), 2)
			require.False(t, sameStatus(*was, *is), "%s.%s has changed", of.Type(), of.Type().Field(i).Name)
		}
	}
}

func fullStatus() *appsv1alpha1.PodTransitionRuleStatus {
	s := &appsv1alpha1.PodTransitionRuleStatus{}
	fill(reflect.ValueOf(s).Elem(), 1)
	return s
}

// fill sets every field, and one element of every list, to something that depends on n.
func fill(v reflect.Value, n int64) {
	if at, is := v.Addr().Interface().(*metav1.Time); is {
		*at = metav1.Unix(n, 0)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), n)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
	case reflect.String:
		v.SetString(fmt.Sprint(n))
	case reflect.Bool:
		v.SetBool(n%2 == 1)
	default:
		v.SetInt(n)
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("%d Pods", n), func(b *testing.B) {
			s := Snapshot{Now: testNow, Owners: []Owner{{UID: "set", Replicas: int32(n)}}, Pods: pods(owned("set", n, n)...)}
			s.Rules = []*appsv1alpha1.PodTransitionRule{aRule("a", maxUnavailable("10%")), aRule("b", available("", "50%")),
				aRule("c", requires("app", "web"))}
			for i := range s.Pods {
				s.Pods[i].UID = types.UID(fmt.Sprintf("uid-%d", i))
			}
			s = settled(s)
			b.ReportAllocs()
			for b.Loop() {
				Decide(s)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/Pod")
		})
	}
}
