package rules_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1 "k8s.io/api/apps/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// The ways in which v0.7 lets more Pods be out of service than a rule allows, in the order of the reference.

// 1: in v0.7 a Pod counts as available until it is gone, however long that takes.
func TestBound1TerminatingPodsAreUnavailable(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(*story, *corev1.Pod) error{
		"deleted": func(s *story, pod *corev1.Pod) error { return s.Delete(s.Context(), pod) },
		"evicted": func(s *story, pod *corev1.Pod) error {
			return s.SubResource("eviction").Create(s.Context(), pod, &policyv1.Eviction{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := together(t)
			set := s.collaSet("web", 4, web)
			slow := func(pod *corev1.Pod) { pod.Finalizers = []string{holding} } // stands for a long grace period
			pods := s.serve(4, ownedBy(set), slow)
			rule := s.rule("one", atMost("1"))
			require.NoError(t, remove(s, s.named(pods[0])))
			require.NotNil(t, s.get(pods[0]).DeletionTimestamp)
			s.ask(pods[1:]...)
			s.untilCounted(rule, 0, 3)
			require.True(t, s.hasLabel(pods[0], podops.ServiceAvailableLabel), "which is all that v0.7 looks at")
			s.stays("all wait for it", func() bool { return s.waiting(pods[1:]...) == 3 })

			s.edit(s.named(pods[0]), `{"metadata":{"finalizers":null}}`)
			s.until("it is gone", func() bool { return len(s.pods()) == 3 })
			s.stays("all wait for the one that takes its place", func() bool { return s.waiting(pods[1:]...) == 3 })
			s.pod("web-new", ownedBy(set))
			s.until("all are done", func() bool { return s.done(pods[1:]...) == 3 })
			s.requireOut(rule, 1)
		})
	}
}

func (s *story) hasLabel(pod, key string) bool {
	s.Helper()
	_, has := s.get(pod).Labels[key]
	return has
}

// 2: in v0.7 a Pod that is gone and not yet replaced is not missed by any rule, except some of CollaSets'.
func TestBound2MissingPodsAreUnavailable(t *testing.T) {
	t.Parallel()
	t.Run("of a ReplicaSet that may not make new ones", func(t *testing.T) {
		s := together(t)
		s.workload("ReplicaSet", 4)
		s.until("four Pods serve", func() bool { return s.serving(names(s.pods())...) == 4 })
		pods := names(s.pods())
		rule := s.rule("quarter", atMost("25%"))
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "none"}}
		quota.Spec.Hard = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
		require.NoError(t, s.Create(t.Context(), quota))
		s.until("no Pod can be made", func() bool {
			like := template()
			probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "probe"}, Spec: like.Spec}
			return apierrors.IsForbidden(s.Create(t.Context(), probe, client.DryRunAll))
		})
		require.NoError(t, s.Delete(t.Context(), s.named(pods[0])))
		s.until("it is gone", func() bool { return len(s.pods()) == 3 })
		s.ask(pods[1:]...)
		s.untilCounted(rule, 0, 3)
		assert.EqualValues(t, 4, s.status(rule).Desired)
		s.stays("all wait for a Pod that is not there", func() bool { return s.waiting(pods[1:]...) == 3 })
		require.NoError(t, s.Delete(t.Context(), quota))
		s.edit(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "web"}},
			`{"metadata":{"annotations":{"try":"again"}}}`)
		s.until("all are done", func() bool { return s.done(pods[1:]...) == 3 })
		s.requireOut(rule, 1)
	})
	t.Run("of a workload that has none left", func(t *testing.T) {
		s := together(t)
		empty, full := s.collaSet("empty", 2, map[string]string{"set": "empty"}),
			s.collaSet("full", 2, map[string]string{"set": "full"})
		require.NotNil(t, empty)
		pods := s.serve(2, ownedBy(full))
		rule := s.rule("two", atMost("2"))
		s.until("four Pods are desired", func() bool { return s.status(rule).Desired == 4 })
		s.ask(pods...)
		s.untilCounted(rule, 0, 2)
		s.stays("both wait", func() bool { return s.waiting(pods...) == 2 })
		s.work(pods...)
		for _, name := range []string{"new-1", "new-2"} {
			s.pod(name, ownedBy(empty))
		}
		s.until("both are out of service", func() bool { return s.out(pods...) == 2 })
		s.finish()
		s.until("both are done", func() bool { return s.done(pods...) == 2 })
		s.requireOut(rule, 2)
	})
}

// 3: in v0.7 a Pod that has crashed counts as available until another controller has taken its label away.
func TestBound3NotReadyPodsAreUnavailableWhateverTheirLabelSays(t *testing.T) {
	s := alone(t)
	pods := s.serve(4)
	rule := s.rule("one", atMost("1"))
	require.NoError(t, s.Kill(suite.Lifecycle)) // who would take the label away
	s.crash(pods[0])
	require.True(t, s.hasLabel(pods[0], podops.ServiceAvailableLabel))
	s.ask(pods[1:]...)
	s.untilCounted(rule, 0, 3)
	s.stays("nothing is granted", func() bool { return s.status(rule).Granted == 0 })
	s.restore()
	s.recover(pods[0])
	s.until("all are done", func() bool { return s.done(pods[1:]...) == 3 })
	s.requireOut(rule, 1)
}

// 4: in v0.7 a new leader grants on a cache that lags what its predecessor did.
func TestBound4ALeaderThatIsKilledAgainAndAgain(t *testing.T) {
	s := alone(t)
	pods := s.serve(12)
	two, third := s.rule("two", atMost("2")), s.rule("third", atMost("34%"))
	s.ask(pods...)
	for _, enough := range []int{1, 4, 7, 9} {
		s.until(fmt.Sprint(enough, " are done and others on their way"), func() bool {
			return s.done(pods...) >= enough && s.out(pods...) > 0
		})
		require.NoError(t, s.Kill(suite.PodTransitionRule))
		require.NoError(t, s.Restart(t.Context(), suite.PodTransitionRule))
	}
	s.until("all are done", func() bool { return s.done(pods...) == 12 })
	s.requireOut(two, 2)
	s.requireOut(third, 2)
	s.until("nothing is granted any more", func() bool {
		return s.status(two).Granted == 0 &&
			s.status(third).Granted == 0
	})
}

// 5: what in v0.7 passes without being asked about. That a rule binds before it lists a Pod is F12.
func TestBound5NothingPassesUnasked(t *testing.T) {
	t.Parallel()
	t.Run("a Pod that is down when it is asked about", func(t *testing.T) {
		s := together(t)
		pods := s.serve(3)
		rule := s.rule("none", atMost("0"))
		s.crash(pods[0])
		s.ask(pods[0])
		s.untilCounted(rule, 0, 1)
		s.stays("it waits although it serves nobody", func() bool { return s.waiting(pods[0]) == 1 })

		s.edit(rule, `{"spec":{"rules":[{"name":"available","availablePolicy":{"maxUnavailableValue":1}}]}}`)
		s.ask(pods[1:]...)
		s.work(pods...)
		s.until("it goes on within the budget, and nobody beside it", func() bool { return s.out(pods[0]) == 1 })
		s.stays("the others wait", func() bool { return s.waiting(pods[1:]...) == 2 })
		s.finish()
		s.recover(pods[0])
		s.until("all are done", func() bool { return s.done(pods...) == 3 })
		s.requireOut(rule, 1)
	})
	t.Run("another type of operation under an ID that has permission", anotherType)
	t.Run("a check that is disabled, and no other", func(t *testing.T) {
		s := together(t)
		pods := s.serve(1)
		disabled := requires("never")
		disabled.Disabled = true
		s.rule("one", disabled, requires("approved"))
		s.ask(pods...)
		s.stays("it waits for the other check", func() bool { return s.waiting(pods...) == 1 })
		s.label(pods[0], map[string]any{"approved": "yes"})
		s.until("it is done", func() bool { return s.done(pods...) == 1 })
	})
	t.Run("a stage that nobody knows is refused", func(t *testing.T) {
		s := together(t)
		for _, stage := range []appsv1alpha1.TransitionRuleStage{"PreTrafficOff", "precheck", ""} {
			check := requires("never")
			check.Stage = ptr.To(stage)
			err := s.Create(t.Context(), s.aRule("typo", web, check))
			require.True(t, apierrors.IsInvalid(err), "stage %q: %v", stage, err)
			require.ErrorContains(t, err, "PreCheck")
		}
	})
	t.Run("the skip annotation frees from the check it names, and no other", skipAnnotation)
}

func anotherType(t *testing.T) {
	s := together(t)
	pods := s.serve(1)
	deletions := requires("may-go")
	deletions.Filter = &appsv1alpha1.TransitionRuleFilter{LabelSelector: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: podops.PreparingToDeleteLabel,
			Operator: metav1.LabelSelectorOpExists}},
	}}
	rule := s.rule("deletions", deletions)
	s.work(pods...)
	s.ask(pods...)
	s.until("the restart is allowed", func() bool { return podops.Allowed(podops.Read(s.get(pods[0])), id, opType) })
	s.label(pods[0], map[string]any{podops.OperationTypePrefix + "/" + id: podops.TypeScaleIn,
		podops.PreparingToDeleteLabel: "1"})
	allowed := func() bool { return podops.Allowed(podops.Read(s.get(pods[0])), id, podops.TypeScaleIn) }
	s.untilCounted(rule, 0, 1)
	s.until("the permission is gone", func() bool { return !s.hasLabel(pods[0], podops.OperatePrefix+"/"+id) })
	s.stays("the deletion is not allowed, and the Pod stays out of service", func() bool {
		v := podops.Read(s.get(pods[0]))
		return !allowed() && v.ServiceReady == corev1.ConditionFalse && !v.Ready
	})
	s.label(pods[0], map[string]any{"may-go": "yes"})
	s.until("the deletion is allowed by its own verdict", allowed)
}

func skipAnnotation(t *testing.T) {
	s := together(t)
	pods := s.serve(3)
	skips, err := json.Marshal(map[string]any{"skipRules": []string{"needs-approved"}})
	require.NoError(t, err)
	body, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"annotations": map[string]any{podops.SkipRulesAnnotation: string(skips)}}})
	require.NoError(t, err)
	for _, pod := range pods[:2] {
		s.edit(s.named(pod), string(body))
	}
	labels, budget := s.rule("labels", requires("approved")), s.rule("budget", atMost("1"))
	s.work(pods...)
	s.ask(pods...)
	s.untilCounted(budget, 1, 2)
	s.untilCounted(labels, 0, 1) // the one without the annotation
	s.stays("the budget is kept", func() bool { return s.out(pods...) <= 1 && s.waiting(pods[2]) == 1 })
	s.finish()
	s.until("those that skip are done", func() bool { return s.done(pods[:2]...) == 2 })
	s.stays("the other waits", func() bool { return s.waiting(pods[2]) == 1 })
	s.requireOut(budget, 1)
}

// 6: in v0.7 a percentage is of the Pods that are there: it doubles while each is being replaced by another.
func TestBound6PercentagesAreOfDesiredPods(t *testing.T) {
	s := together(t)
	set := s.collaSet("web", 4, web)
	pods := s.serve(8, ownedBy(set)) // each with the one that is to replace it
	quarter, half := s.rule("quarter", atMost("25%")), s.rule("keep", atLeast("50%"))
	s.until("four Pods are desired", func() bool { return s.status(quarter).Desired == 4 && s.status(half).Desired == 4 })
	s.work(pods...)
	s.ask(pods...)
	s.untilCounted(quarter, 1, 7)
	s.stays("one of four is out", func() bool { return s.out(pods...) <= 1 })
	s.finish()
	s.until("all are done", func() bool { return s.done(pods...) == 8 })
	s.requireOut(quarter, 1)
}

// 7: a grant is not taken back when Pods crash before it is used, for it cannot be known that it is not being used. It
// counts against the bound from the moment it is given, and no other is given until the sum is within the bound again.
func TestBound7NoGrantIsAddedToPodsThatCrashedMeanwhile(t *testing.T) {
	s := alone(t)
	pods := s.serve(6)
	rule := s.rule("two", atMost("2"))
	require.NoError(t, s.Kill(suite.Lifecycle)) // who would use the grant
	s.work(pods...)
	s.ask(pods[0])
	s.untilCounted(rule, 1, 0)
	s.crash(pods[1], pods[2])
	s.ask(pods[3:]...)
	s.untilCounted(rule, 1, 3)
	s.restore()
	s.until("the grant is used", func() bool { return s.out(pods[0]) == 1 })
	s.stays("nothing else is let go", func() bool { return s.waiting(pods[3:]...) == 3 && s.status(rule).Granted == 1 })
	s.recover(pods[1])
	s.stays("one of two that came back is not enough", func() bool { return s.waiting(pods[3:]...) == 3 })
	s.recover(pods[2])
	s.until("there is room for one beside it", func() bool { return s.out(pods[3:]...) == 1 })
	s.stays("and not for more", func() bool { return s.out(pods...) <= 2 })
	s.finish()
	s.until("all are done", func() bool { return s.done(pods[0]) == 1 && s.done(pods[3:]...) == 3 })
	s.requireOut(rule, 2)
}
