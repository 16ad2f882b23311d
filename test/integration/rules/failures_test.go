package rules_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// In v0.7 each of two rules approves a Pod of its own choice and keeps to it: most rollouts under two budgets never
// end.
func TestF7TwoRulesOverTheSamePodsNeverWaitForEachOther(t *testing.T) {
	s := together(t)
	pods := s.serve(8)
	first, second := s.rule("first", atMost("1")), s.rule("second", atMost("1"))
	s.ask(pods...)
	s.until("all eight are done", func() bool { return s.done(pods...) == 8 })
	s.requireOut(first, 1)
	s.requireOut(second, 1)
}

// In v0.7 budget is taken before labels are looked at: the Pod that must wait for its label keeps the only slot.
func TestF8APodThatFailsACheckHoldsNoBudget(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]map[string][]appsv1alpha1.TransitionRule{
		"both checks in one rule": {"both": {atMost("1"), requires("approved")}},
		"each check in its own":   {"a-budget": {atMost("1")}, "labels": {requires("approved")}},
	} {
		t.Run(name, func(t *testing.T) {
			s := together(t)
			pods := s.serve(4)
			var all []*appsv1alpha1.PodTransitionRule
			for name, checks := range rules {
				all = append(all, s.rule(name, checks...))
			}
			for _, pod := range pods[1:] {
				s.label(pod, map[string]any{"approved": "yes"})
			}
			s.ask(pods[0]) // the oldest request
			s.untilCounted(all[0], 0, 1)
			s.ask(pods[1:]...)
			s.until("the approved ones are done", func() bool { return s.done(pods...) == 3 })
			assert.Equal(t, 1, s.waiting(pods[0]))
			for _, rule := range all {
				s.untilCounted(rule, 0, 1)
				s.requireOut(rule, 1)
			}
			s.label(pods[0], map[string]any{"approved": "yes"})
			s.until("all are done", func() bool { return s.done(pods...) == 4 })
		})
	}
}

// In v0.7 a rule over 3 of 10 replicas takes the other 7 for missing: nothing ever passes, whatever the bound.
func TestF9ARuleOverSomePodsOfAWorkloadCountsThese(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"ReplicaSet", "StatefulSet", "CollaSet"} {
		t.Run(kind, func(t *testing.T) {
			s := together(t)
			s.workload(kind, 10)
			s.until("ten Pods serve", func() bool { return s.serving(names(s.pods())...) == 10 })
			shard := names(s.pods())[:3]
			for _, pod := range shard {
				s.label(pod, map[string]any{"shard": "a"})
			}
			for i, tc := range []struct {
				check   appsv1alpha1.TransitionRule
				granted int
			}{{atMost("1"), 1}, {atMost("50%"), 2}, {atLeast("2"), 1}, {atMost("100%"), 3}} {
				rule := s.ruleFor(fmt.Sprintf("shard-%d", i), map[string]string{"shard": "a"}, tc.check)
				s.until("three Pods are desired", func() bool { return s.status(rule).Desired == 3 })
				s.work(shard...)
				s.ask(shard...)
				s.untilCounted(rule, tc.granted, 3-tc.granted)
				s.until("those that are granted are out together", func() bool { return s.notReady(shard...) == tc.granted })
				s.finish()
				s.untilServing(shard...)
				s.requireOut(rule, tc.granted)
				require.NoError(t, s.Delete(t.Context(), rule))
			}
		})
	}
}

// workload makes a workload with that many Pods.
func (s *story) workload(kind string, replicas int32) {
	s.Helper()
	at, selector := metav1.ObjectMeta{Namespace: s.namespace, Name: "web"}, &metav1.LabelSelector{MatchLabels: web}
	switch kind {
	case "ReplicaSet":
		require.NoError(s, s.Create(s.Context(), &appsv1.ReplicaSet{
			ObjectMeta: at, Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: selector, Template: template()},
		}))
	case "StatefulSet":
		require.NoError(s, s.Create(s.Context(), &appsv1.StatefulSet{
			ObjectMeta: at, Spec: appsv1.StatefulSetSpec{
				Replicas: &replicas, Selector: selector, Template: template(), ServiceName: "web",
				PodManagementPolicy: appsv1.ParallelPodManagement,
			},
		}))
	default:
		set := s.collaSet("web", replicas, web)
		for i := range replicas {
			s.pod(fmt.Sprintf("web-%02d", i), ownedBy(set))
		}
	}
}

// collaSet makes a CollaSet, whose Pods are up to the test: its controller does not run.
func (s *story) collaSet(name string, replicas int32, labels map[string]string) *appsv1alpha1.CollaSet {
	s.Helper()
	set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	set.Spec.Replicas, set.Spec.Selector, set.Spec.Template = ptr.To(replicas),
		&metav1.LabelSelector{MatchLabels: labels}, template()
	for key, value := range labels {
		set.Spec.Template.Labels[key] = value
	}
	require.NoError(s, s.Create(s.Context(), set))
	return set
}

func ownedBy(set *appsv1alpha1.CollaSet) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set,
			appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind))}
	}
}

// In v0.7 every selected Pod without the service-available label takes a slot for ever. Here Pods that have run to
// their end are not counted at all, and of Pods that are not managed only those that are not Ready are missed.
func TestF10PodsThatNeverServeTakeNoBudget(t *testing.T) {
	s := together(t)
	unmanaged := func(pod *corev1.Pod) { delete(pod.Labels, appsv1alpha1.ControlLabel); pod.Spec.ReadinessGates = nil }
	pods := s.serve(4)
	for name, phase := range map[string]corev1.PodPhase{"succeeded": corev1.PodSucceeded, "failed": corev1.PodFailed} {
		s.pod(name)
		pod := s.named(name)
		require.NoError(t, s.Status().Patch(t.Context(), pod,
			client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"status":{"phase":%q}}`, phase))))
	}
	s.pod("unmanaged", unmanaged)
	s.until("the unmanaged Pod is Ready", func() bool { return podops.Read(s.get("unmanaged")).Ready })
	rule := s.rule("one", atMost("1"))
	s.until("those count that serve, managed or not", func() bool {
		status := s.status(rule)
		return status.Desired == 5 && status.Available == 5
	})
	s.ask(pods...)
	s.until("all four are done", func() bool { return s.done(pods...) == 4 })
	s.requireOut(rule, 1)

	s.ask("succeeded", "unmanaged")
	s.until("one that has run to its end passes, for it is missed by nobody",
		func() bool { return s.out("succeeded") == 1 })
	assert.Equal(t, 1, s.waiting("unmanaged"), "nobody lets a Pod go that is not managed")
	require.Zero(t, s.status(rule).Blocked)

	s.crash("unmanaged")
	s.ask(pods[0])
	s.untilCounted(rule, 1, 1) // "succeeded" may go on; the one that serves waits for the unmanaged one
	s.recover("unmanaged")
	s.until("it is done", func() bool { return s.done(pods[0]) == 1 && s.out(pods[0]) == 0 })
}

// In v0.7 a Pod that is down passes whatever the bound: a short outage lets go of all Pods that have been asked for,
// and they are destroyed although they would have recovered.
func TestF11AnOutageLetsNoMorePodsGo(t *testing.T) {
	t.Parallel()
	for name, outageFirst := range map[string]bool{"asked for during the outage": true, "asked for before it": false} {
		t.Run(name, func(t *testing.T) {
			s := together(t)
			pods := s.serve(4)
			rule := s.rule("one", atMost("1"))
			s.work(pods...)
			if outageFirst {
				s.crash(pods...)
				s.ask(pods...)
			} else {
				s.ask(pods...)
				s.untilCounted(rule, 1, 3)
				s.crash(pods...)
			}
			s.untilCounted(rule, 1, 3)
			s.stays("one Pod at most is let go", func() bool { return s.out(pods...) <= 1 && s.status(rule).Granted == 1 })
			s.recover(pods...)
			s.until("those that were not let go serve again", func() bool {
				return s.count(pods, func(_ *corev1.Pod, v podops.View) bool { return v.Ready && v.ServiceAvailable() }) == 3
			})
			s.finish()
			s.until("all are done", func() bool { return s.done(pods...) == 4 })
			s.requireOut(rule, 1)
		})
	}
}

// In v0.7 a rule binds only the Pods that its status lists already: what begins right after it was created, and a Pod
// that is younger than it, pass unchecked.
func TestF12ARuleBindsFromItsCreation(t *testing.T) {
	t.Run("nobody has evaluated it yet", func(t *testing.T) {
		s := alone(t)
		pods := s.serve(10)
		for i, pod := range pods {
			s.label(pod, map[string]any{"app": fmt.Sprint("web-", i)})
		}
		require.NoError(t, s.Kill(suite.PodTransitionRule))
		var late []*appsv1alpha1.PodTransitionRule
		for i := range pods {
			late = append(late, s.aRule(fmt.Sprint("late-", i), map[string]string{"app": fmt.Sprint("web-", i)}, atMost("1")))
			require.NoError(t, s.Create(t.Context(), late[i]))
		}
		s.stays("no rule has a status", func() bool { return s.status(late[9]).ObservedGeneration < 1 })
		s.ask(pods...)
		s.stays("all wait", func() bool { return s.waiting(pods...) == 10 })
		s.restore()
		s.until("all are done once somebody evaluates rules", func() bool { return s.done(pods...) == 10 })
	})
	t.Run("its Pods are younger", func(t *testing.T) {
		s := alone(t)
		rule := s.rule("one", atMost("0"))
		require.NoError(t, s.Kill(suite.PodTransitionRule))
		pods := s.serve(2)
		s.ask(pods...)
		s.stays("they wait", func() bool { return s.waiting(pods...) == 2 })
		s.restore()
		s.untilCounted(rule, 0, 2)
		s.edit(rule, `{"spec":{"rules":[{"name":"available","availablePolicy":{"maxUnavailableValue":1}}]}}`)
		s.until("both are done", func() bool { return s.done(pods...) == 2 })
		s.requireOut(rule, 1)
	})
	t.Run("everybody is at work", func(t *testing.T) {
		s := together(t)
		pods := s.serve(10)
		for i, pod := range pods {
			s.label(pod, map[string]any{"app": fmt.Sprint("web-", i)})
		}
		for i, pod := range pods { // asked for as soon as the API server has the rule, and no controller has seen it
			require.NoError(t, s.Create(t.Context(),
				s.aRule(fmt.Sprint("never-", i), map[string]string{"app": fmt.Sprint("web-", i)}, atMost("0"))))
			s.ask(pod)
		}
		s.stays("all wait", func() bool { return s.waiting(pods...) == 10 })
	})
}

// In v0.7 the look-up of rules by Pod name has no namespace.
func TestF13RulesOfAnotherNamespaceDoNotMatter(t *testing.T) {
	there, here := together(t), begin(t)
	blocked, pods := there.serve(2), here.serve(2)
	elsewhere, rule := there.rule("one", atMost("0")), here.rule("one", atMost("1"))
	there.ask(blocked...)
	there.untilCounted(elsewhere, 0, 2)
	here.ask(pods...)
	here.until("both are done", func() bool { return here.done(pods...) == 2 })
	here.requireOut(rule, 1)
	assert.Equal(t, 2, there.waiting(blocked...), "Pods of the same names wait for their own rule")
	require.NoError(t, here.Delete(t.Context(), rule))
	here.ask(pods...)
	here.until("they pass without a rule of their own", func() bool { return here.serving(pods...) == 2 })
}

// In v0.7 nothing wakes the Pods that a rule held when it goes, or when it stops selecting them: they wait for an
// event of their own, or ten hours.
func TestF14PodsWakeWhenTheRuleThatHeldThemLetsGo(t *testing.T) {
	t.Parallel()
	hold := func(s *story, pods []string) *appsv1alpha1.PodTransitionRule {
		rule := s.rule("never", requires("never"))
		s.ask(pods...)
		s.untilCounted(rule, 0, len(pods))
		s.until("lifecycle-controller has seen it", func() bool {
			return s.count(pods, func(_ *corev1.Pod,
				v podops.View) bool {
				return podops.PhaseOf(v, id) == podops.PhasePreCheck
			}) == len(pods)
		})
		return rule
	}
	for name, release := range map[string]func(*story, *appsv1alpha1.PodTransitionRule){
		"the rule is deleted": func(s *story, rule *appsv1alpha1.PodTransitionRule) {
			require.NoError(s, s.Delete(s.Context(), rule))
		},
		"the rule selects others": func(s *story, rule *appsv1alpha1.PodTransitionRule) {
			s.edit(rule, `{"spec":{"selector":{"matchLabels":{"app":"others"}}}}`)
		},
		"the check filters them out": func(s *story, rule *appsv1alpha1.PodTransitionRule) {
			s.edit(rule,
				`{"spec":{"rules":[{"name":"needs-never","filter":{"labelSelector":{"matchLabels":{"app":"others"}}},"labelCheck":{"requires":{"matchLabels":{"never":"yes"}}}}]}}`)
		},
		"the check is disabled": func(s *story, rule *appsv1alpha1.PodTransitionRule) {
			s.edit(rule,
				`{"spec":{"rules":[{"name":"needs-never","disabled":true,"labelCheck":{"requires":{"matchLabels":{"never":"yes"}}}}]}}`)
		},
		"the check is removed": func(s *story, rule *appsv1alpha1.PodTransitionRule) {
			s.edit(rule, `{"spec":{"rules":[]}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := together(t)
			pods := s.serve(3)
			release(s, hold(s, pods))
			s.until("all are done", func() bool { return s.done(pods...) == 3 })
		})
	}
	t.Run("a Pod leaves the selector", func(t *testing.T) {
		s := together(t)
		pods := s.serve(2)
		rule := hold(s, pods)
		s.label(pods[0], map[string]any{"app": "others"})
		s.until("it is done", func() bool { return s.done(pods[0]) == 1 })
		assert.Equal(t, 1, s.waiting(pods[1]))
		s.untilCounted(rule, 0, 1)
	})
	t.Run("the Pod that holds the budget leaves the selector", func(t *testing.T) {
		s := together(t)
		pods := s.serve(3)
		rule := s.rule("one", atMost("1"))
		s.work(pods[0])
		s.ask(pods[0])
		s.until("it is out", func() bool { return s.out(pods[0]) == 1 })
		s.ask(pods[1:]...)
		s.untilCounted(rule, 1, 2)
		s.label(pods[0], map[string]any{"app": "others"})
		s.until("the others are done", func() bool { return s.done(pods[1:]...) == 2 })
		assert.Equal(t, 1, s.out(pods[0]))
		s.finish()
		s.until("it is done too", func() bool { return s.done(pods...) == 3 })
	})
}

// In v0.7 a rule with a selector that cannot be parsed selects every Pod of its namespace, and keeps every other rule
// of the namespace from hearing of Pods. Here the API server refuses it, without the help of webhook-server, which
// does not run.
func TestF16ABadSelectorDisturbsNobodyElse(t *testing.T) {
	s := together(t)
	pods := s.serve(3)
	bad := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Resembles",
		Values: []string{"web"}}}}
	selector := s.aRule("selector", nil, requires("never"))
	selector.Spec.Selector = bad
	filter := s.aRule("filter", web, requires("never"))
	filter.Spec.Rules[0].Filter = &appsv1alpha1.TransitionRuleFilter{LabelSelector: bad}
	labels := s.aRule("labels", map[string]string{"app": "others"}, requires("never"))
	labels.Spec.Rules[0].LabelCheck.Requires = bad
	for _, rule := range []*appsv1alpha1.PodTransitionRule{selector, filter, labels} {
		err := s.Create(t.Context(), rule)
		require.True(t, apierrors.IsInvalid(err), "%s: %v", rule.Name, err)
		require.ErrorContains(t, err, "Resembles")
	}
	good := s.rule("good", atMost("1"))
	err := s.Patch(t.Context(), good.DeepCopy(), client.RawPatch("application/merge-patch+json",
		[]byte(`{"spec":{"selector":{"matchExpressions":[{"key":"app","operator":"Resembles","values":["web"]}]}}}`)))
	require.True(t, apierrors.IsInvalid(err), "nor can a rule become one: %v", err)
	s.ask(pods...)
	s.until("all are done", func() bool { return s.done(pods...) == 3 })
	s.requireOut(good, 1)
	require.NoError(t, s.Died())
}
