package podtransitionrule_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

func maxUnavailable(n int32) appsv1alpha1.TransitionRule {
	return appsv1alpha1.TransitionRule{TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
		AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: ptr.To(intstr.FromInt32(n))},
	}}
}

func requires(label string) appsv1alpha1.TransitionRule {
	return appsv1alpha1.TransitionRule{TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
		LabelCheck: &appsv1alpha1.LabelCheckRule{Requires: &metav1.LabelSelector{MatchLabels: map[string]string{label: "yes"}}},
	}}
}

func TestPodTransitionRuleController(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	w.run(t, "replica") // before any CRD is there
	w.install(t, "podtransitionrules")

	t.Run("rules work without the CRD of CollaSets, and after it came", func(t *testing.T) {
		l := w.workload(t, 2)
		rule := l.rule(t, "one", maxUnavailable(1))
		l.begin(t)
		eventually(t, "one of two is granted", func() bool { return l.get(t, rule).Status.Granted == 1 })
		w.install(t, "collasets")
		eventually(t, "both are done", func() bool { _, done := l.play(t); return done == 2 })
	})
	for name, story := range map[string]func(*testing.T, *world){
		"twenty Pods begun at once stay in the bounds of two rules": twentyAtOnce,
		"a rule that goes lets Pods go on":                          ruleDeleted,
		"a late rule is in force at once":                           lateRule,
		"a rule taken over from Kuperator can be deleted":           takenOver,
		"a rule that cannot be evaluated says so once":              stalled,
		"nothing is written while nothing changes":                  quiet,
		"missing replicas of a CollaSet count":                      missingReplicas,
		"zones are disrupted one at a time":                         topology,
		"groups are disrupted one at a time":                        groups,
		"a frozen namespace, or cluster, keeps its Pods":            frozen,
		"a mirrored PodDisruptionBudget is kept as it should be":    mirror,
		"a Pod tells what it waits for, as long as it does":         notes,
		"scaling in under minAvailable goes on":                     surplus,
	} {
		t.Run(name, func(t *testing.T) { story(t, w) })
	}
}

// TestALeaderThatDiesMidwayLeavesTheBoundIntact: the standby's caches were filled before; it reads once afresh.
func TestALeaderThatDiesMidwayLeavesTheBoundIntact(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	w.install(t, "podtransitionrules", "collasets")
	kill := w.run(t, "first")
	l := w.workload(t, 12)
	rule := l.rule(t, "one", maxUnavailable(2)) // it is in force, so the first replica leads
	second := l.rule(t, "two", maxUnavailable(3))
	w.run(t, "second")
	l.begin(t)
	eventually(t, "some are done", func() bool {
		out, done := l.play(t)
		require.LessOrEqual(t, out, 2)
		return done >= 3
	})
	kill()
	eventually(t, "the others are done under the second replica", func() bool {
		out, done := l.play(t)
		require.LessOrEqual(t, out, 2)
		return done == 12
	})
	eventually(t, "no grant is left", func() bool {
		return len(l.get(t, rule).Status.Grants) == 0 && len(l.get(t, second).Status.Grants) == 0
	})
}

func twentyAtOnce(t *testing.T, w *world) {
	l := w.workload(t, 20)
	first, second := l.rule(t, "first", maxUnavailable(3)), l.rule(t, "second", maxUnavailable(2))
	l.begin(t)
	eventually(t, "as many as allowed are granted, and the others blocked", func() bool {
		one, two := l.get(t, first).Status, l.get(t, second).Status
		return one.Granted == 2 && two.Granted == 2 && two.Blocked == 18
	})
	require.EqualValues(t, 20, l.get(t, second).Status.Desired)
	eventually(t, "all are done", func() bool {
		out, done := l.play(t)
		require.LessOrEqual(t, out, 2)
		require.LessOrEqual(t, len(l.get(t, second).Status.Grants), 2)
		return done == 20
	})
	eventually(t, "no grant is left", func() bool {
		return l.get(t, first).Status.Granted == 0 &&
			l.get(t, second).Status.Granted == 0
	})
	eventually(t, "all are available", func() bool { return l.get(t, first).Status.Available == 20 })
}

func ruleDeleted(t *testing.T, w *world) {
	l := w.workload(t, 2)
	free, strict := l.rule(t, "free", maxUnavailable(1)), l.rule(t, "strict", requires("ok"))
	l.begin(t)
	eventually(t, "both wait", func() bool {
		return l.get(t, strict).Status.Blocked == 2 &&
			l.get(t, free).Status.Blocked == 2
	})
	require.NoError(t, l.Delete(t.Context(), strict))
	eventually(t, "both are done", func() bool { _, done := l.play(t); return done == 2 })

	both := l.rule(t, "both", maxUnavailable(1))
	l.begin(t)
	eventually(t, "one is granted by both",
		func() bool { return l.get(t, both).Status.Granted == 1 && l.get(t, free).Status.Granted == 1 })
	require.NoError(t, l.Delete(t.Context(), both))
	eventually(t, "the rule that is gone is no longer named, and both are done",
		func() bool { _, done := l.play(t); return done == 2 })
}

func lateRule(t *testing.T, w *world) {
	l := w.workload(t, 1)
	first := l.rule(t, "first", maxUnavailable(1))
	l.begin(t)
	eventually(t, "it is granted", func() bool { return l.get(t, first).Status.Granted == 1 })
	late := l.rule(t, "late", requires("ok"))
	eventually(t, "the late rule says no", func() bool { return l.get(t, late).Status.Blocked == 1 })
	require.Len(t, l.get(t, first).Status.Grants, 1, "what may have been acted on is never taken back")
	pods := l.pods(t)
	require.Empty(t, podops.VerdictsFor(podops.Read(&pods[0]), l.rules(t)))
	require.NoError(t, l.Patch(t.Context(), &pods[0],
		client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"ok":"yes"}}}`))))
	eventually(t, "it is done", func() bool { _, done := l.play(t); return done == 1 })
}

func takenOver(t *testing.T, w *world) {
	l := w.workload(t, 0)
	rule := l.rule(t, "old", maxUnavailable(1))
	finalizers := []byte(`{"metadata":{"finalizers":["example.com/other","` + appsv1alpha1.ProtectionFinalizer + `"]}}`)
	require.NoError(t, l.Patch(t.Context(), rule, client.RawPatch("application/merge-patch+json", finalizers)))
	require.NoError(t, l.Delete(t.Context(), rule))
	eventually(t, "only the other finalizer is left", func() bool {
		f := l.get(t, rule).Finalizers
		return len(f) == 1 &&
			f[0] == "example.com/other"
	})
	require.NoError(t, l.Patch(t.Context(), rule,
		client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))))
	eventually(t, "it is gone", func() bool { return l.gone(t, rule) })
}

func stalled(t *testing.T, w *world) {
	l := w.workload(t, 1)
	rule := l.rule(t, "boundless",
		appsv1alpha1.TransitionRule{TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
			AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailablePolicy: &appsv1alpha1.AvailableAdaptivePolicy{}},
		}})
	l.begin(t)
	eventually(t, "the Pod is blocked", func() bool { return l.get(t, rule).Status.Blocked == 1 })
	require.True(t, meta.IsStatusConditionTrue(l.get(t, rule).Status.Conditions, appsv1alpha1.RuleStalled))
	eventually(t, "one event says so", func() bool {
		var list eventsv1.EventList
		require.NoError(t, l.List(t.Context(), &list, client.InNamespace(l.namespace)))
		return len(list.Items) == 1 && list.Items[0].Reason == "InvalidRule" && list.Items[0].Series == nil
	})
}

func quiet(t *testing.T, w *world) {
	l := w.workload(t, 3)
	rule := l.rule(t, "one", maxUnavailable(1))
	eventually(t, "all are available", func() bool { return l.get(t, rule).Status.Available == 3 })
	version := l.get(t, rule).ResourceVersion
	for _, pod := range l.pods(t) { // changes that mean nothing to the rule
		require.NoError(t, l.Patch(t.Context(), &pod,
			client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"colour":"blue"}}}`))))
	}
	l.begin(t) // and one that does
	eventually(t, "one is granted", func() bool {
		return l.get(t, rule).Status.Granted == 1 &&
			l.get(t, rule).Status.Blocked == 2
	})
	require.NotEqual(t, version, l.get(t, rule).ResourceVersion)
	eventually(t, "all are done", func() bool { _, done := l.play(t); return done == 3 })
	eventually(t, "all are available", func() bool {
		s := l.get(t, rule).Status
		return s.Available == 3 &&
			s.Granted == 0
	})
}

// own makes a CollaSet that wants so many Pods the controller of those there are. collaset-controller does not run
// here.
func (l workload) own(t *testing.T, replicas int32) *appsv1alpha1.CollaSet {
	t.Helper()
	set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "web"}}
	set.Spec.Replicas = &replicas
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	set.Spec.Template.Labels = map[string]string{"app": "web"}
	set.Spec.Template.Spec.Containers = l.pods(t)[0].Spec.Containers
	require.NoError(t, l.Create(t.Context(), set))
	for _, pod := range l.pods(t) {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set,
			appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind))}
		require.NoError(t, l.Update(t.Context(), &pod))
	}
	return set
}

func missingReplicas(t *testing.T, w *world) {
	l := w.workload(t, 2)
	set := l.own(t, 3)
	rule := l.rule(t, "one", maxUnavailable(1))
	eventually(t, "three Pods are desired", func() bool { return l.get(t, rule).Status.Desired == 3 })
	l.begin(t)
	eventually(t, "both wait for the third", func() bool { return l.get(t, rule).Status.Blocked == 2 })
	require.NoError(t, l.Patch(t.Context(), set,
		client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":2}}`))))
	eventually(t, "one is granted when two are enough", func() bool { return l.get(t, rule).Status.Granted == 1 })
}
