package grants

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

func mirrored(r *appsv1alpha1.PodTransitionRule) *appsv1alpha1.PodTransitionRule {
	r.Spec.MirrorPodDisruptionBudget = true
	return r
}

// budgetOf is the object that a change makes.
func budgetOf(c BudgetChange) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name, UID: "pdb-uid", ResourceVersion: "7",
			OwnerReferences: []metav1.OwnerReference{
				{Kind: appsv1alpha1.PodTransitionRuleKind, UID: c.Rule, Controller: ptr.To(true)},
			}},
		Spec: *c.Spec,
	}
}

func TestWhatAMirroredBudgetDemands(t *testing.T) {
	stricter := func() appsv1alpha1.TransitionRule { r := available("", "4"); r.Name = "stricter"; return r }
	tests := map[string]struct {
		rule   *appsv1alpha1.PodTransitionRule
		want   int // -1 for no budget
		surges bool
	}{
		"maxUnavailable of 10 desired":                      {aRule("r", maxUnavailable("25%")), 7, false},
		"minAvailable, rounded down":                        {aRule("r", available("", "75%")), 7, false},
		"the largest demand of all checks":                  {aRule("r", maxUnavailable("7"), stricter()), 4, false},
		"more than there should be":                         {aRule("r", available("", "12")), 12, false},
		"a surplus is no part of it":                        {aRule("r", available("8", "1")), 2, false},
		"topology alone demands no number":                  {aRule("r", zones(1, "")), 0, false},
		"nor do groups":                                     {aRule("r", groupsOf(1, "")), 0, false},
		"groups are no part of a number":                    {aRule("r", groupsOf(1, "7")), 3, false},
		"without an available policy there is none":         {aRule("r", requires("ok", "yes")), -1, false},
		"nor for a rule that cannot be evaluated":           {aRule("r", maxUnavailable("many")), -1, false},
		"one less than all of Pods that are replaced first": {aRule("r", maxUnavailable("0")), 9, true},
		"no less where some may go anyway":                  {aRule("r", maxUnavailable("2")), 8, true},
		"all of Pods that are not, if the rule says so":     {aRule("r", maxUnavailable("0")), 10, false},
		"at PostCheck availability demands nothing":         {aRule("r", atPostCheck(maxUnavailable("1"))), -1, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := Snapshot{Rules: rules{mirrored(tc.rule)}, Pods: pods(owned("set", 12, 0)...),
				Owners: []Owner{{UID: "set", Replicas: 10, Surges: tc.surges}}, Now: testNow}
			changes := Decide(s).Budgets
			if tc.want < 0 {
				assert.Empty(t, changes)
				return
			}
			require.Len(t, changes, 1)
			assert.Equal(t, tc.want, changes[0].Spec.MinAvailable.IntValue())
			assert.Equal(t, policyv1.AlwaysAllow, *changes[0].Spec.UnhealthyPodEvictionPolicy)
			assert.Equal(t, tc.rule.Spec.Selector, changes[0].Spec.Selector)
			s.Budgets = []*policyv1.PodDisruptionBudget{budgetOf(changes[0])}
			assert.Empty(t, Decide(s).Budgets, "it is written once")
		})
	}
}

// TestAMirroredBudgetWhereDeletionsAreNotGraceful: an eviction takes a Pod away at once there, whatever its CollaSet
// wants.
func TestAMirroredBudgetWhereDeletionsAreNotGraceful(t *testing.T) {
	for name, tc := range map[string]struct {
		namespace, pod string
		want           int
	}{
		"nothing is said":                           {"", "", 9},
		"the namespace disables it":                 {"disabled", "", 10},
		"a Pod disables it":                         {"", "disabled", 10},
		"each Pod enables it in such a namespace":   {"disabled", "enabled", 9},
		"what is no switch counts for nothing":      {"disabled", "no", 10},
		"nor does it where nothing is disabled":     {"", "no", 9},
		"a Pod disables it, the namespace does not": {"enabled", "disabled", 10},
	} {
		t.Run(name, func(t *testing.T) {
			s := Snapshot{Rules: rules{mirrored(aRule("r", maxUnavailable("0")))}, Pods: pods(owned("set", 10, 0)...),
				Owners: []Owner{{UID: "set", Replicas: 10, Surges: true}}, Now: testNow, GracefulDeletion: tc.namespace}
			for i := range s.Pods {
				if tc.pod != "" {
					s.Pods[i].Labels[podops.GracefulDeletionLabel] = tc.pod
				}
			}
			changes := Decide(s).Budgets
			require.Len(t, changes, 1)
			assert.Equal(t, tc.want, changes[0].Spec.MinAvailable.IntValue())
		})
	}
}

func TestHowAMirroredBudgetIsKept(t *testing.T) {
	start := Snapshot{Rules: rules{mirrored(aRule("r", maxUnavailable("1")))}, Pods: pods(owned("set", 3, 0)...),
		Owners: []Owner{{UID: "set", Replicas: 3}}, Now: testNow}
	ours := func() *policyv1.PodDisruptionBudget { return budgetOf(Decide(start).Budgets[0]) }
	with := func(b *policyv1.PodDisruptionBudget) Snapshot {
		s := start
		s.Budgets = []*policyv1.PodDisruptionBudget{b}
		return s
	}
	t.Run("an edit of it is undone", func(t *testing.T) {
		edited := ours()
		edited.Spec.UnhealthyPodEvictionPolicy = nil
		changes := Decide(with(edited)).Budgets
		require.Len(t, changes, 1)
		assert.Equal(t, BudgetChange{Name: "r", Rule: "r-uid", UID: "pdb-uid", ResourceVersion: "7", Spec: &ours().Spec,
			Loosens: true}, changes[0])
	})
	t.Run("it goes when it is not wanted any more", func(t *testing.T) {
		s := with(ours())
		s.Rules = rules{aRule("r", maxUnavailable("1"))}
		assert.Equal(t, []BudgetChange{{Name: "r", Rule: "r-uid", UID: "pdb-uid", ResourceVersion: "7", Loosens: true}},
			Decide(s).Budgets)
	})
	t.Run("another's of that name is left alone and reported once", func(t *testing.T) {
		foreign := ours()
		foreign.OwnerReferences = nil
		foreign.Spec.MinAvailable = nil
		s := with(foreign)
		plan := Decide(s)
		assert.Empty(t, plan.Budgets)
		assert.Contains(t, plan.Statuses[0].NewlyForeignBudget, "rename or delete")
		assert.True(t, meta.IsStatusConditionTrue(plan.Statuses[0].Status.Conditions, appsv1alpha1.RuleReady))
		s.Rules = after(s.Rules, plan, 1)
		s.Pods, s.Now = pods(owned("set", 3, 1)...), testNow.Add(time.Minute)
		assert.Empty(t, Decide(s).Statuses[0].NewlyForeignBudget)
		s.Rules = rules{aRule("r", maxUnavailable("1"))}
		assert.Empty(t, Decide(s).Budgets, "nor deleted")
		assert.Empty(t, Decide(s).Statuses[0].NewlyForeignBudget, "nor reported when none is wanted")
	})
	t.Run("that of an earlier rule of the name is waited for", func(t *testing.T) {
		earlier := ours()
		earlier.OwnerReferences[0].UID = "earlier"
		plan := Decide(with(earlier))
		assert.Empty(t, plan.Budgets)
		assert.Empty(t, plan.Statuses[0].NewlyForeignBudget)
	})
	t.Run("nothing is written for a rule, or an object, on its way out", func(t *testing.T) {
		s := start
		s.Rules = after(s.Rules, Plan{}, 0)
		s.Rules[0].DeletionTimestamp = &metav1.Time{Time: testNow}
		assert.Empty(t, Decide(s).Budgets)
		going := ours()
		going.DeletionTimestamp, going.Spec.MinAvailable = &metav1.Time{Time: testNow}, nil
		assert.Empty(t, Decide(with(going)).Budgets)
	})
}

func TestNotesOnPods(t *testing.T) {
	const key = "detail.podtransitionrule.kusionstack.io/r"
	blockedText := `{"stage":"PreCheck","passed":false,"rejectInfo":[{"ruleName":"available","reason":"blocked by max unavailable policy"}]}`
	noted := func(p *podBuilder, texts ...string) *podBuilder {
		p.Annotations = map[string]string{"other/key": "kept"}
		for i := 0; i < len(texts); i += 2 {
			p.Annotations[texts[i]] = texts[i+1]
		}
		return p
	}
	ripe := func(string, string) bool { return true }
	notes := func(rule *appsv1alpha1.PodTransitionRule, builders ...*podBuilder) map[string]Note {
		all := map[string]Note{}
		for _, n := range Decide(settled(Snapshot{Rules: rules{rule}, Pods: pods(builders...), Now: testNow})).Notes {
			all[n.PodName] = n
		}
		return all
	}
	t.Run("only Pods that are listed as blocked get one", func(t *testing.T) {
		got := notes(aRule("r", maxUnavailable("1")), aPod("a").asks(1), aPod("b").asks(2), aPod("c"))
		require.Len(t, got, 1)
		assert.Equal(t, map[string]string{key: blockedText}, got["b"].Differences(ripe))
		assert.Empty(t, got["b"].Differences(func(k, text string) bool { return k != key || text != blockedText }),
			"not before its time")
		assert.Len(t, notes(aRule("r", maxUnavailable("0")), owned("set", 90, 90)...), maxBlockedDetails)
	})
	t.Run("a note that is right is not written again, and one that is wrong is", func(t *testing.T) {
		got := notes(aRule("r", maxUnavailable("0")), noted(aPod("a").asks(1), key, blockedText),
			noted(aPod("b").asks(1), key, "old"))
		assert.Empty(t, got["a"].Differences(ripe))
		assert.Equal(t, map[string]string{key: blockedText}, got["b"].Differences(ripe))
	})
	t.Run("notes of Pods in no stage go, and those of rules that are gone", func(t *testing.T) {
		got := notes(aRule("r", maxUnavailable("0")), noted(aPod("a"), key, "old"),
			noted(aPod("b").asks(1), key, blockedText, "detail.podtransitionrule.kusionstack.io/gone", "old"))
		never := func(string, string) bool { return false }
		assert.Equal(t, map[string]string{key: ""}, got["a"].Differences(never))
		assert.Equal(t, map[string]string{"detail.podtransitionrule.kusionstack.io/gone": ""}, got["b"].Differences(never))
	})
	t.Run("what Kuperator wrote on Pods that have passed is no reason for a write, until the rule is gone",
		func(t *testing.T) {
			const passed = `{"stage":"Unknown","passed":true}`
			got := notes(aRule("r", maxUnavailable("0")), noted(aPod("a"), key, passed),
				noted(aPod("b"), "detail.podtransitionrule.kusionstack.io/gone", passed), noted(aPod("c").asks(1), key, passed))
			require.NotContains(t, got, "a")
			assert.Equal(t, []string{"detail.podtransitionrule.kusionstack.io/gone"}, got["b"].Stale)
			assert.Equal(t, map[string]string{key: blockedText}, got["c"].Differences(ripe), "it is wrong now")
		})
	t.Run("the note of a Pod that is granted goes with the write that moves it on", func(t *testing.T) {
		assert.Empty(t, notes(aRule("r", maxUnavailable("1")), noted(aPod("a").asks(1), key, "old")))
	})
	t.Run("a Pod that is on its way out is left alone", func(t *testing.T) {
		assert.Empty(t, notes(aRule("r", maxUnavailable("1")), noted(aPod("a").terminating(), key, "old")))
	})
	t.Run("a rule whose name is too long for a key writes none", func(t *testing.T) {
		assert.Empty(t, notes(aRule(strings.Repeat("r", 64), maxUnavailable("0")), aPod("a").asks(1)))
	})
	t.Run("all rules of a Pod are in one note", func(t *testing.T) {
		plan := Decide(settled(Snapshot{Rules: rules{aRule("r", maxUnavailable("0")), aRule("s", requires("ok", "yes"))},
			Pods: pods(aPod("a").asks(1)), Now: testNow}))
		require.Len(t, plan.Notes, 1)
		assert.Len(t, plan.Notes[0].Blocked, 2)
		assert.Equal(t, types.UID("a-uid"), plan.Notes[0].PodUID)
	})
}
