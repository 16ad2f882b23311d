package grants

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// changed gives a rule another spec, as a user does: its status stays.
func changed(
	r *appsv1alpha1.PodTransitionRule, change func(*appsv1alpha1.PodTransitionRuleSpec),
) *appsv1alpha1.PodTransitionRule {
	r = r.DeepCopy()
	r.Generation++
	change(&r.Spec)
	return r
}

func checks(checks ...appsv1alpha1.TransitionRule) func(*appsv1alpha1.PodTransitionRuleSpec) {
	return func(s *appsv1alpha1.PodTransitionRuleSpec) { s.Rules = checks }
}

func TestAGrantThatWasNotUsedCountsOnlyUnderItsSpec(t *testing.T) {
	rules := func() []*appsv1alpha1.PodTransitionRule {
		return []*appsv1alpha1.PodTransitionRule{aRule("r", maxUnavailable("13"))}
	}
	thirteen := settled(Snapshot{Rules: rules(), Pods: pods(owned("set", 20, 13)...), Now: testNow})
	require.Len(t, mayGo(thirteen), 13)

	tests := map[string]struct {
		change  func(*appsv1alpha1.PodTransitionRuleSpec)
		answers map[Subject]Answer
		want    []string
	}{
		"fewer Pods may be out": {change: checks(maxUnavailable("1")), want: []string{"set-00"}},
		"none may be":           {change: checks(maxUnavailable("0"))},
		"more must stay": {change: checks(available("13", "18")),
			want: []string{"set-00", "set-01"}},
		"a label is asked for":   {change: checks(maxUnavailable("13"), requires("ok", "yes"))},
		"a webhook is asked":     {change: checks(maxUnavailable("13"), webhook())},
		"it cannot be evaluated": {change: checks(available("", ""))},
		"another check of the same budget is added": {change: checks(maxUnavailable("13"),
			filtered(maxUnavailable("2"), "app", "web")), want: []string{"set-00", "set-01"}},
		"more Pods share the budget, some of them down": {
			change: func(s *appsv1alpha1.PodTransitionRuleSpec) {
				s.Selector.MatchLabels, s.Rules = nil, []appsv1alpha1.TransitionRule{maxUnavailable("4")}
			},
			want: []string{"set-00", "set-01"},
		},
		"nothing is asked for any more": {change: checks(), want: thirteenNames()},
		"more Pods may be out":          {change: checks(maxUnavailable("15")), want: thirteenNames()},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := thirteen
			s.Pods = append(pods(owned("set", 20, 13)...),
				pods(aPod("other-1").label("app", "x").down(), aPod("other-2").label("app", "x").down())...)
			s.Rules = []*appsv1alpha1.PodTransitionRule{changed(s.Rules[0], tc.change)}
			if len(s.Rules[0].Spec.Rules) > 0 {
				require.Empty(t, mayGo(s), "nothing goes on before the rule has been looked at")
			}
			s = settled(s)
			require.Equal(t, tc.want, mayGo(s))
			require.EqualValues(t, len(tc.want), s.Rules[0].Status.Granted, "what counts no more is not called granted")
		})
	}

	t.Run("Pods that are out already count, and stay as they are", func(t *testing.T) {
		s := thirteen
		builders := owned("set", 20, 13)
		builders[4].operates(5)
		s.Pods = pods(builders...)
		s.Rules = []*appsv1alpha1.PodTransitionRule{changed(s.Rules[0], checks(maxUnavailable("1")))}
		s = settled(s)
		assert.Empty(t, mayGo(s))
		assert.Contains(t, holders(s.Rules[0]), "set-04")
		builders[4] = aPod("set-04").ownedBy("set") // is back
		s.Pods = pods(builders...)
		assert.Equal(t, []string{"set-00"}, mayGo(settled(s)))
	})
	t.Run("a rule that is made for Pods with grants binds at once", func(t *testing.T) {
		s := thirteen
		s.Rules = append(s.Rules[:1:1], aRule("late", maxUnavailable("1")))
		require.Empty(t, mayGo(s))
		assert.Equal(t, []string{"set-00"}, mayGo(settled(s)))
	})
	t.Run("an entry that does not say its generation is of the status's", func(t *testing.T) {
		s := thirteen
		s.Rules = after(s.Rules, Plan{}, 0)
		for n := range s.Rules[0].Status.Grants {
			s.Rules[0].Status.Grants[n].Generation = 0
		}
		require.Len(t, mayGo(s), 13)
		require.Empty(t, Decide(s).Statuses, "nothing is written for that")
		s.Rules[0] = changed(s.Rules[0], checks(maxUnavailable("1")))
		require.Empty(t, mayGo(s))
		assert.Equal(t, []string{"set-00"}, mayGo(settled(s)))
	})
}

func thirteenNames() (names []string) {
	for n := range 13 {
		names = append(names, fmt.Sprintf("set-%02d", n))
	}
	return names
}

// TestTighteningHoldsAfterEveryWrite: whatever rules change to, and although leaders die after every write, no more
// Pods may go on than all rules allow by their present specs, and in the end as many do.
func TestTighteningHoldsAfterEveryWrite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		asking := rapid.IntRange(1, 6).Draw(t, "asking")
		s := Snapshot{Pods: pods(owned("set", 8, asking)...), Now: testNow}
		most := []int{}
		for n := range rapid.IntRange(1, 3).Draw(t, "rules") {
			most = append(most, rapid.IntRange(0, 6).Draw(t, "max"))
			s.Rules = append(s.Rules, aRule(fmt.Sprintf("r%d", n), maxUnavailable(fmt.Sprint(most[n]))))
		}
		for range rapid.IntRange(0, 6).Draw(t, "writes before") {
			s.Rules = after(s.Rules, Decide(s), 1)
		}
		for n := range s.Rules {
			if rapid.Bool().Draw(t, "changes") {
				most[n] = rapid.IntRange(0, 6).Draw(t, "max")
				s.Rules[n] = changed(s.Rules[n], checks(maxUnavailable(fmt.Sprint(most[n]))))
			}
		}
		allowed := asking
		for _, m := range most {
			allowed = min(allowed, m)
		}
		for range 60 {
			require.LessOrEqual(t, len(mayGo(s)), allowed)
			s.Rules = after(s.Rules, Decide(s), 1)
		}
		require.Empty(t, Decide(s).Statuses)
		require.Len(t, mayGo(s), allowed)
	})
}
