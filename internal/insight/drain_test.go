package insight_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

// TestDrain: what is in the way of an eviction, Pod by Pod.
func TestDrain(t *testing.T) {
	never := policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "never"},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}}
	mirrored := never
	mirrored.OwnerReferences = []metav1.OwnerReference{{Kind: "PodTransitionRule", Name: "web", Controller: new(bool)}}
	*mirrored.OwnerReferences[0].Controller = true
	for name, tc := range map[string]struct {
		situation string
		change    func(*insight.Facts)
		budgets   []policyv1.PodDisruptionBudget
		want      insight.DrainVerdict
		code      insight.Code
	}{
		"a rule without room": {situation: "rule", want: insight.DrainWaits,
			code: insight.CodeBudgetSpent},
		"a rule that bounds groups": {situation: "group", want: insight.DrainWaits, code: insight.CodeBudgetSpent},
		"and has room for numbers of Pods": {situation: "group", want: insight.DrainWaits, code: insight.CodeBudgetSpent,
			change: func(f *insight.Facts) {
				f.Rules[0].Spec.Rules[0].AvailablePolicy.MaxUnavailableValue = ptr.To(intstr.FromInt32(3))
			}},
		"a freeze": {situation: "freeze", want: insight.DrainHeld, code: "Frozen"},
		"no lifecycle-controller": {situation: "missing-controller", want: insight.DrainHeld,
			code: insight.CodeControllerMissing},
		"nothing": {situation: "paused", want: insight.DrainGoes},
		"a PodDisruptionBudget": {situation: "paused", budgets: []policyv1.PodDisruptionBudget{never},
			want: insight.DrainHeld, code: insight.CodeDisruptionBudget},
		"the same, of a Pod that is replaced first": {situation: "paused", budgets: []policyv1.PodDisruptionBudget{never},
			change: evicts("Replace"), want: insight.DrainReplaced, code: insight.CodeReplaced},
		"a rule without room, and a Pod that is replaced then": {situation: "rule", change: evicts("ReplaceWhenBlocked"),
			want: insight.DrainReplaced, code: insight.CodeReplaced},
		"room, and a Pod that would be replaced": {situation: "paused", change: evicts("ReplaceWhenBlocked"),
			want: insight.DrainGoes},
		"a freeze, whatever comes first": {situation: "freeze", change: evicts("Replace"), want: insight.DrainHeld,
			code: "Frozen"},
		"one that mirrors a rule does not count": {situation: "paused", budgets: []policyv1.PodDisruptionBudget{mirrored},
			want: insight.DrainGoes},
		"a Pod of a DaemonSet": {situation: "paused",
			change: func(f *insight.Facts) { f.Pods[0].OwnerReferences[0].Kind = "DaemonSet" }, want: insight.DrainIgnored,
			code: insight.CodeDaemonSet},
		"a Pod that is not managed": {situation: "freeze",
			change: func(f *insight.Facts) { delete(f.Pods[0].Labels, "kusionstack.io/control") }, want: insight.DrainGoes,
			code: insight.CodeUnmanaged},
		"a Pod that nobody makes again": {situation: "paused",
			change: func(f *insight.Facts) { f.Pods[0].OwnerReferences = nil }, want: insight.DrainHeld,
			code: insight.CodeNoController},
		"another one's finalizer": {situation: "paused",
			change: func(f *insight.Facts) { f.Pods[0].Finalizers = []string{"example.com/x"} }, want: insight.DrainWaits,
			code: insight.CodeFinalizer},
	} {
		t.Run(name, func(t *testing.T) {
			facts := load(t, tc.situation)
			facts.Pods = append([]corev1.Pod{}, facts.Pods[0])
			if tc.change != nil {
				tc.change(&facts)
			}
			drain := insight.CheckDrain(facts, "n1", tc.budgets)
			require.Len(t, drain.Pods, 1)
			require.Equal(t, tc.want, drain.Pods[0].Verdict, "%+v", drain.Pods[0].Reasons)
			if tc.code != "" {
				require.Equal(t, tc.code, drain.Pods[0].Reasons[0].Code)
			}
			require.Equal(t, 1, drain.Held+drain.Replaced+drain.Waiting+drain.Going+drain.Ignored)
		})
	}
}

// evicts has the CollaSets say what an eviction does.
func evicts(policy appsv1alpha1.EvictionPolicy) func(*insight.Facts) {
	return func(f *insight.Facts) {
		for i := range f.CollaSets {
			f.CollaSets[i].Spec.Disruption = &appsv1alpha1.Disruption{OnEviction: policy}
		}
	}
}

// TestDiagnose: what doctor says of a situation that is not sane, and of one that is.
func TestDiagnose(t *testing.T) {
	levels := func(situation string, change func(*insight.Facts)) map[string]insight.Level {
		facts := load(t, situation)
		if change != nil {
			change(&facts)
		}
		var d insight.Diagnosis
		insight.Diagnose(facts, "of namespace shop", &d)
		worst := map[string]insight.Level{}
		for _, f := range d.Findings {
			if f.Level != insight.LevelOK {
				worst[f.Check] = f.Level
			}
		}
		return worst
	}
	require.Empty(t, levels("nothing", nil))
	require.Equal(t, map[string]insight.Level{"components": insight.LevelProblem}, levels("missing-controller", nil))
	require.Equal(t, map[string]insight.Level{"freezes": insight.LevelWarning}, levels("freeze", nil))
	require.Empty(t, levels("finalizer", nil), "a finalizer whose employer is named is in order")
	require.Equal(t, map[string]insight.Level{"leftovers": insight.LevelWarning},
		levels("finalizer", func(f *insight.Facts) { f.Pods[0].Annotations = nil }))
	require.Equal(t, map[string]insight.Level{"leftovers": insight.LevelWarning},
		levels("nothing", func(f *insight.Facts) { f.Pods[0].Spec.ReadinessGates = nil }))
}
