package grants

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// over makes the rule select Pods with the label, and mirror itself.
func over(label, v string, r *appsv1alpha1.PodTransitionRule) *appsv1alpha1.PodTransitionRule {
	r.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{label: v}}
	return mirrored(r)
}

// teams are n Pods of each team, all with app=web; each team's workload wants n.
func teams(n int, names ...string) ([]Pod, []Owner) {
	var all []Pod
	var owners []Owner
	for _, team := range names {
		for i := range n {
			all = append(all, aPod(fmt.Sprintf("%s-%d", team, i)).label("team", team).ownedBy(team).Pod)
		}
		owners = append(owners, Owner{UID: all[len(all)-1].Owner, Replicas: int32(n)})
	}
	return all, owners
}

// usersBudget is a PodDisruptionBudget that a user made over app=web.
func usersBudget(name string, spec policyv1.PodDisruptionBudgetSpec) *policyv1.PodDisruptionBudget {
	if spec.Selector == nil {
		spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	}
	return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "theirs"}, Spec: spec}
}

// kept writes the plan's budgets, in order, and returns what then is there by name.
func kept(t *testing.T, s *Snapshot) map[string]int {
	t.Helper()
	for range 5 {
		changes := Decide(*s).Budgets
		if len(changes) == 0 {
			break
		}
		for _, c := range changes {
			var left []*policyv1.PodDisruptionBudget
			for _, b := range s.Budgets {
				if b.Name != c.Name {
					left = append(left, b)
				}
			}
			s.Budgets = left
			if c.Spec != nil {
				s.Budgets = append(s.Budgets, budgetOf(c))
			}
		}
	}
	require.Empty(t, Decide(*s).Budgets, "it comes to rest")
	found := map[string]int{}
	for _, b := range s.Budgets {
		if len(b.OwnerReferences) > 0 {
			found[b.Name] = b.Spec.MinAvailable.IntValue()
		}
	}
	return found
}

func readiness(s Snapshot, rule string) string {
	for _, status := range Decide(s).Statuses {
		if status.Name == rule {
			return meta.FindStatusCondition(status.Status.Conditions, appsv1alpha1.RuleReady).Message
		}
	}
	return ""
}

func TestOneBudgetWhereRulesMeet(t *testing.T) {
	wide := func(m string) *appsv1alpha1.PodTransitionRule { return mirrored(aRule("wide", maxUnavailable(m))) }
	tests := map[string]struct {
		rules   rules
		budgets []*policyv1.PodDisruptionBudget
		want    map[string]int
		says    map[string]string // part of the message of Ready, by rule
	}{
		"rules over the same Pods share the stricter bound": {
			rules: rules{mirrored(aRule("b", maxUnavailable("1"))), mirrored(aRule("a", maxUnavailable("50%")))},
			want:  map[string]int{"a": 7},
			says: map[string]string{"b": "the PodDisruptionBudget of PodTransitionRule a selects its Pods",
				"a": "The rule is in force."},
		},
		"the wider one keeps what the narrower one demands": {
			rules: rules{wide("3"), over("team", "x", aRule("x", maxUnavailable("1")))},
			want:  map[string]int{"wide": 4 + 3},
		},
		"and its own, if that is more": {
			rules: rules{wide("1"), over("team", "x", aRule("x", maxUnavailable("3")))},
			want:  map[string]int{"wide": 7},
		},
		"one for all teams": {
			rules: rules{wide("4"), over("team", "x", aRule("x", maxUnavailable("2"))),
				over("team", "y", aRule("y", maxUnavailable("3")))},
			want: map[string]int{"wide": 6},
		},
		"what is never evicted does not keep others from being evicted": {
			rules: rules{wide("3"), over("team", "x", aRule("x", maxUnavailable("0")))},
			want:  map[string]int{"wide": 5, "x": 4},
		},
		"rules that do not meet have one each": {
			rules: rules{over("team", "x", aRule("x", maxUnavailable("1"))), over("team", "y", aRule("y", maxUnavailable("1")))},
			want:  map[string]int{"x": 3, "y": 3},
		},
		"a rule that does not mirror itself means nothing": {
			rules: rules{wide("3"), aRule("x", maxUnavailable("1"))},
			want:  map[string]int{"wide": 5},
		},
		"a budget of a user that is as strict is enough": {
			rules: rules{wide("3")}, want: map[string]int{},
			budgets: []*policyv1.PodDisruptionBudget{usersBudget("pdb",
				policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromString("25%"))})},
			says: map[string]string{"wide": "PodDisruptionBudget pdb selects its Pods"},
		},
		"one that is not keeps the rule's, and it is told": {
			rules: rules{wide("1")}, want: map[string]int{"wide": 7},
			budgets: []*policyv1.PodDisruptionBudget{usersBudget("pdb",
				policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(6))})},
			says: map[string]string{"wide": "PodDisruptionBudget pdb selects some of the same"},
		},
		"nor one over some of the Pods": {
			rules: rules{wide("1")}, want: map[string]int{"wide": 7},
			budgets: []*policyv1.PodDisruptionBudget{usersBudget("pdb", policyv1.PodDisruptionBudgetSpec{
				MinAvailable: ptr.To(intstr.FromString("100%")),
				Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}},
			})},
			says: map[string]string{"wide": "PodDisruptionBudget pdb selects some of the same"},
		},
		"one that has the rule's name and is as strict": {
			rules: rules{wide("3")}, want: map[string]int{},
			budgets: []*policyv1.PodDisruptionBudget{usersBudget("wide",
				policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(0))})},
			says: map[string]string{"wide": "PodDisruptionBudget wide selects its Pods"},
		},
		"a rule whose name is taken demands nothing for another": {
			rules: rules{wide("1"), over("team", "x", aRule("x", maxUnavailable("1")))}, want: map[string]int{"x": 3},
			budgets: []*policyv1.PodDisruptionBudget{usersBudget("wide", policyv1.PodDisruptionBudgetSpec{
				MinAvailable: ptr.To(intstr.FromInt32(1)),
				Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}},
			})},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			all, owners := teams(4, "x", "y")
			s := Snapshot{Rules: tc.rules, Pods: all, Owners: owners, Budgets: tc.budgets, Now: testNow}
			require.Equal(t, tc.want, kept(t, &s))
			for rule, says := range tc.says {
				assert.Contains(t, readiness(s, rule), says)
			}
		})
	}
	t.Run("what is neither in the other is told of both", func(t *testing.T) {
		all, owners := teams(4, "x", "y")
		all[0].Labels["zone"], all[1].Labels["zone"], all[4].Labels["zone"] = "a", "a", "a"
		s := Snapshot{Rules: rules{over("team", "x", aRule("x", maxUnavailable("1"))),
			over("zone", "a", aRule("z", maxUnavailable("1")))}, Pods: all, Owners: owners, Now: testNow}
		require.Equal(t, map[string]int{"x": 3, "z": 2}, kept(t, &s), "their bounds hold all the same")
		assert.Contains(t, readiness(s, "x"), "the PodDisruptionBudget of PodTransitionRule z selects some of the same")
		assert.Contains(t, readiness(s, "z"), "the PodDisruptionBudget of PodTransitionRule x selects some of the same")
	})
	t.Run("nothing is loosened before the rest is written", func(t *testing.T) {
		all, owners := teams(4, "x", "y")
		s := Snapshot{Rules: rules{over("team", "x", aRule("a", maxUnavailable("1")))}, Pods: all, Owners: owners,
			Now: testNow}
		kept(t, &s)
		s.Rules = append(s.Rules, wide("3"))
		changes := Decide(s).Budgets
		require.Len(t, changes, 2)
		assert.Equal(t, "wide", changes[0].Name)
		assert.False(t, changes[0].Loosens)
		assert.Equal(t, "a", changes[1].Name)
		assert.True(t, changes[1].Loosens)
		kept(t, &s)
		s.Rules = s.Rules[:1]
		s.Budgets = nil
		s.Rules = append(s.Rules, wide("3"))
		kept(t, &s)
		s.Rules[1].Spec.Selector.MatchLabels = map[string]string{"team": "y"}
		changes = Decide(s).Budgets
		require.Len(t, changes, 2)
		assert.Equal(t, "a", changes[0].Name, "it is there again before the other lets go")
		assert.True(t, changes[1].Loosens)
	})
}

// TestBudgetsKeepEveryRulesBound evicts at random what the budgets allow, as the API server does, and looks at every
// rule.
func TestBudgetsKeepEveryRulesBound(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 4))
		all, owners := teams(1+random.IntN(5), "x", "y", "z")
		for i := range all {
			all[i].Labels["zone"] = string(rune('a' + random.IntN(2)))
			all[i].Ready = random.IntN(6) > 0
		}
		var list rules
		for i := range 1 + random.IntN(4) {
			r := aRule(fmt.Sprintf("r%d", i), maxUnavailable(fmt.Sprint(random.IntN(4))))
			at := []metav1.LabelSelector{
				{}, {MatchLabels: map[string]string{"app": "web"}}, {MatchLabels: map[string]string{"team": "x"}},
				{MatchLabels: map[string]string{"team": "y"}},
				{MatchLabels: map[string]string{"zone": "a"}}, {MatchLabels: map[string]string{"team": "x", "zone": "a"}},
			}[random.IntN(6)]
			r.Spec.Selector = &at
			list = append(list, mirrored(r))
		}
		s := Snapshot{Rules: list, Pods: all, Owners: owners, Now: testNow}
		if random.IntN(2) == 0 {
			s.Budgets = []*policyv1.PodDisruptionBudget{usersBudget("users",
				policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(int32(random.IntN(4))))})}
		}
		kept(t, &s)
		bound := map[string]int{}
		for _, r := range list {
			alone := s
			alone.Rules, alone.Budgets = rules{r}, nil
			bound[r.Name] = Decide(alone).Budgets[0].Spec.MinAvailable.IntValue()
		}
		healthy := map[string]bool{}
		for _, p := range all {
			healthy[p.Name] = p.Ready
		}
		count := func(selector *metav1.LabelSelector) (n, of int) {
			selects, err := metav1.LabelSelectorAsSelector(selector)
			require.NoError(t, err)
			for _, p := range all {
				if selects.Matches(labels.Set(p.Labels)) {
					of++
					if healthy[p.Name] {
						n++
					}
				}
			}
			return n, of
		}
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, p := range all {
			if !healthy[p.Name] {
				continue
			}
			var of []*policyv1.PodDisruptionBudget
			for _, b := range s.Budgets {
				if selects, _ := metav1.LabelSelectorAsSelector(b.Spec.Selector); selects.Matches(labels.Set(p.Labels)) {
					of = append(of, b)
				}
			}
			if len(of) != 1 {
				continue // none bounds it, or it is refused
			}
			n, total := count(of[0].Spec.Selector)
			if n-1 < demanded(&of[0].Spec, total) {
				continue
			}
			healthy[p.Name] = false
			for _, r := range list {
				selects, _ := metav1.LabelSelectorAsSelector(r.Spec.Selector)
				if n, _ := count(r.Spec.Selector); selects.Matches(labels.Set(p.Labels)) {
					require.GreaterOrEqual(t, n, bound[r.Name], "seed %d: eviction of %s under rule %s by budget %s", seed, p.Name,
						r.Name, of[0].Name)
				}
			}
		}
		for _, p := range all {
			selected := 0
			for _, r := range list {
				if selects, _ := metav1.LabelSelectorAsSelector(r.Spec.Selector); selects.Matches(labels.Set(p.Labels)) {
					selected++
				}
			}
			covered := 0
			for _, b := range s.Budgets {
				if selects, _ := metav1.LabelSelectorAsSelector(b.Spec.Selector); selects.Matches(labels.Set(p.Labels)) {
					covered++
				}
			}
			require.True(t, selected == 0 || covered > 0, "seed %d: no budget has %s", seed, p.Name)
		}
	}
}
