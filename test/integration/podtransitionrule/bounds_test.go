package podtransitionrule_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

func (w *world) merge(t *testing.T, o client.Object, patch string) {
	t.Helper()
	require.NoError(t, w.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(patch))))
}

// topology: three zones with two Pods each, bound to their nodes as a scheduler would.
func topology(t *testing.T, w *world) {
	const zone = "topology.kubernetes.io/zone"
	for i := range 6 {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("zoned-%d", i),
			Labels: map[string]string{zone: string(rune('a' + i%3))}}}
		require.NoError(t, w.Create(t.Context(), node))
		t.Cleanup(func() { _ = w.Delete(context.WithoutCancel(t.Context()), node) })
	}
	l := w.workload(t, 6)
	zoneOf := map[string]string{}
	for i, pod := range l.pods(t) {
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: fmt.Sprintf("zoned-%d", i)}}
		require.NoError(t, l.SubResource("binding").Create(t.Context(), &pod, binding))
		zoneOf[pod.Name] = string(rune('a' + i%3))
	}
	rule := l.rule(t, "zones", appsv1alpha1.TransitionRule{TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
		AvailablePolicy: &appsv1alpha1.AvailableRule{Topology: &appsv1alpha1.TopologyBudget{TopologyKey: zone}},
	}})
	l.begin(t)
	both := false
	eventually(t, "all are done, one zone at a time", func() bool {
		disrupted := map[string]int{}
		for _, g := range l.get(t, rule).Status.Grants {
			disrupted[zoneOf[g.PodName]]++
		}
		require.LessOrEqual(t, len(disrupted), 1, "%v", disrupted)
		for _, n := range disrupted {
			both = both || n == 2
		}
		_, done := l.play(t)
		return done == 6
	})
	require.True(t, both, "both Pods of a zone are granted together")
}

// groups: two sets of two groups with eight Pods each, labelled as those of LeaderWorkerSets.
func groups(t *testing.T, w *world) {
	const (
		set, group = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"
		each       = 8
	)
	l := w.workload(t, 4*each)
	for i, pod := range l.pods(t) {
		l.merge(t, &pod, fmt.Sprintf(`{"metadata":{"labels":{%q:%q,%q:"%d"}}}`, set, []string{"shop", "mail"}[i%2], group,
			i/2%2))
	}
	groupOf := map[string]string{}
	out := func() map[string]int {
		disrupted := map[string]int{}
		for _, pod := range l.pods(t) {
			groupOf[pod.Name] = pod.Labels[set] + "/" + pod.Labels[group]
			if view := podops.Read(&pod); !view.Ready || !view.ServiceAvailable() {
				disrupted[groupOf[pod.Name]]++
			}
		}
		return disrupted
	}
	require.Empty(t, out())
	oneGroup := appsv1alpha1.TransitionRule{}
	oneGroup.AvailablePolicy = &appsv1alpha1.AvailableRule{
		Groups: &appsv1alpha1.GroupBudget{GroupKey: group, SetKey: set},
	}
	rule := l.rule(t, "groups", oneGroup)
	require.EqualValues(t, 1, *rule.Spec.Rules[0].AvailablePolicy.Groups.MaxDisruptedGroups, "the default")
	l.begin(t)
	seen, whole := map[string]bool{}, false
	eventually(t, "all are done, one group at a time", func() bool {
		disrupted, granted := out(), map[string]int{}
		require.LessOrEqual(t, len(disrupted), 1, "%v", disrupted)
		for _, g := range l.get(t, rule).Status.Grants {
			granted[groupOf[g.PodName]]++
		}
		require.LessOrEqual(t, len(granted), 1, "%v", granted)
		for name, n := range granted {
			seen[name], whole = true, whole || n == each
		}
		_, done := l.play(t)
		return done == 4*each
	})
	require.Len(t, seen, 4)
	require.True(t, whole, "all Pods of a group are granted together")
}

func frozen(t *testing.T, w *world) {
	l := w.workload(t, 2)
	rule := l.rule(t, "one", maxUnavailable(1))
	system, own := &corev1.Namespace{}, &corev1.Namespace{}
	require.NoError(t, w.Get(t.Context(), client.ObjectKey{Name: systemNamespace}, system))
	require.NoError(t, w.Get(t.Context(), client.ObjectKey{Name: l.namespace}, own))
	says := func(why string) func() bool {
		return func() bool {
			c := meta.FindStatusCondition(l.get(t, rule).Status.Conditions, appsv1alpha1.RuleReconciling)
			return c != nil && c.Reason == "Frozen" && c.Message == "Nothing new is granted at PreCheck: "+why
		}
	}
	w.merge(t, own, fmt.Sprintf(`{"metadata":{"annotations":{%q:"release week"}}}`, podops.FreezeAnnotation))
	eventually(t, "the namespace is frozen", says("release week"))
	w.merge(t, system, fmt.Sprintf(`{"metadata":{"annotations":{%q:"incident"}}}`, podops.FreezeClusterAnnotation))
	thaw := client.RawPatch("application/merge-patch+json",
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, podops.FreezeClusterAnnotation))
	t.Cleanup(func() { _ = w.Patch(context.WithoutCancel(t.Context()), system, thaw) })
	eventually(t, "the cluster is frozen", says("incident"))
	w.merge(t, own, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, podops.FreezeAnnotation))
	l.begin(t)
	var status appsv1alpha1.PodTransitionRuleStatus
	eventually(t, "both wait", func() bool { status = l.get(t, rule).Status; return status.Blocked == 2 })
	require.Equal(t, []appsv1alpha1.RejectInfo{{Reason: "frozen: incident"}}, status.Details[0].RejectInfo)
	require.Empty(t, status.Grants)
	require.NoError(t, w.Patch(t.Context(), system, thaw))
	eventually(t, "both are done", func() bool { _, done := l.play(t); return done == 2 })
}

func mirror(t *testing.T, w *world) {
	l := w.workload(t, 4)
	foreign := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "web"}}
	foreign.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
	require.NoError(t, l.Create(t.Context(), foreign))
	rule := l.rule(t, "web", maxUnavailable(1))
	w.merge(t, rule, `{"spec":{"mirrorPodDisruptionBudget":true}}`)
	eventually(t, "one event tells of the other budget", func() bool {
		var list eventsv1.EventList
		require.NoError(t, l.List(t.Context(), &list, client.InNamespace(l.namespace)))
		return len(list.Items) == 1 && list.Items[0].Reason == "PodDisruptionBudgetNotOurs" && list.Items[0].Series == nil
	})
	eventually(t, "the rule tells as well", func() bool {
		ready := meta.FindStatusCondition(l.get(t, rule).Status.Conditions, appsv1alpha1.RuleReady)
		return ready != nil && strings.Contains(ready.Message, "another object has the name web")
	})

	budget := &policyv1.PodDisruptionBudget{}
	minAvailable := func() int {
		if err := l.Get(t.Context(), client.ObjectKeyFromObject(foreign), budget); err != nil ||
			budget.Spec.MinAvailable == nil {
			return -1
		}
		return budget.Spec.MinAvailable.IntValue()
	}
	require.Equal(t, -1, minAvailable(), "it is left alone")
	require.NoError(t, l.Delete(t.Context(), foreign))
	eventually(t, "three of four must stay", func() bool { return minAvailable() == 3 })
	require.True(t, metav1.IsControlledBy(budget, l.get(t, rule)))
	require.Equal(t, policyv1.AlwaysAllow, *budget.Spec.UnhealthyPodEvictionPolicy)
	version := budget.ResourceVersion

	l.begin(t)
	eventually(t, "all are done", func() bool { _, done := l.play(t); return done == 4 })
	require.Equal(t, 3, minAvailable())
	require.Equal(t, version, budget.ResourceVersion, "a rollout writes nothing to it")
	w.merge(t, budget, `{"spec":{"minAvailable":1}}`)
	eventually(t, "an edit is undone", func() bool { return minAvailable() == 3 })
	w.merge(t, rule, `{"spec":{"mirrorPodDisruptionBudget":false}}`)
	eventually(t, "it is gone", func() bool {
		return apierrors.IsNotFound(l.Get(t.Context(), client.ObjectKeyFromObject(foreign), &policyv1.PodDisruptionBudget{}))
	})
}

func notes(t *testing.T, w *world) {
	l := w.workload(t, 2)
	one := l.rule(t, "one", maxUnavailable(1))
	strict := l.rule(t, "strict", requires("ok"))
	on := func(pod *corev1.Pod, rule string) string { return pod.Annotations[podops.RuleDetailPrefix+"/"+rule] }
	began := time.Now()
	l.begin(t)
	text := `{"stage":"PreCheck","passed":false,"rejectInfo":[{"ruleName":"check","reason":"blocked by label check policy: labels do not match \"ok=yes\""}]}`
	eventually(t, "both Pods tell", func() bool {
		pods := l.pods(t)
		return on(&pods[0], "strict") == text && on(&pods[1], "strict") == text && on(&pods[0], "one") != ""
	})
	require.GreaterOrEqual(t, time.Since(began), time.Second, "not before they have waited for a while")
	require.NoError(t, l.Delete(t.Context(), strict))
	eventually(t, "the note of the rule that is gone is removed",
		func() bool { pod := l.pods(t)[1]; return on(&pod, "strict") == "" })
	// the operator thinks again
	l.change(t, func(view podops.View) podops.Change { return podops.Cancel(view, "job", time.Now()) })
	quiet := func() bool {
		pods := l.pods(t)
		return on(&pods[0], "one") == "" && on(&pods[1], "one") == ""
	}
	eventually(t, "Pods in no stage tell nothing", quiet)
	l.begin(t)
	eventually(t, "one waits again and tells", func() bool { return !quiet() })
	require.NoError(t, l.Delete(t.Context(), one))
	eventually(t, "when the last rule is gone, its notes go too", quiet)
}

func surplus(t *testing.T, w *world) {
	l := w.workload(t, 4)
	set := l.own(t, 4)
	rule := l.rule(t, "keep", appsv1alpha1.TransitionRule{TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
		AvailablePolicy: &appsv1alpha1.AvailableRule{MinAvailableValue: ptr.To(intstr.FromString("100%"))},
	}})
	l.begin(t)
	eventually(t, "all wait", func() bool { return l.get(t, rule).Status.Blocked == 4 })
	w.merge(t, set, `{"spec":{"replicas":2}}`)
	eventually(t, "the two that are too many may go", func() bool {
		s := l.get(t, rule).Status
		return s.Granted == 2 &&
			s.Desired == 2
	})
}
