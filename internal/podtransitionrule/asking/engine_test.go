package asking

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

// decide is one round of the reconciler with the real engine: its plan is written to the rules.
func (s *stage) decide(pods []grants.Pod) grants.Plan {
	heard := s.asker.Heard("ns", s.rules)
	plan := grants.Decide(grants.Snapshot{
		Rules: s.rules, Pods: pods, Now: s.clock.Now(),
		Answers: heard.Answers, Tasks: heard.Tasks, Invalid: heard.Invalid, Unreachable: heard.Unreachable,
	})
	for _, status := range plan.Statuses {
		for n, r := range s.rules {
			if r.UID == status.UID {
				written := r.DeepCopy()
				written.Status = status.Status
				s.rules[n] = written
			}
		}
	}
	s.asker.Ask("ns", plan.Questions)
	return plan
}

// TestTheEngineGrantsWhatTheServerApproves: a task over two processes, with the engine's own questions and status.
func TestTheEngineGrantsWhatTheServerApproves(t *testing.T) {
	ts := &taskServer{}
	server := served(t, func(w http.ResponseWriter, r *http.Request) { ts.ServeHTTP(w, r) })
	r := rule("one", server.URL, polls(server.URL))
	r.Spec.Selector = &metav1.LabelSelector{}
	var pods []grants.Pod
	for _, name := range []string{"a", "b"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name),
			Labels: map[string]string{
				appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue, podops.ServiceAvailableLabel: "1",
				"operating.podopslifecycle.kusionstack.io/job": "1", "operation-type.podopslifecycle.kusionstack.io/job": "update",
				"pre-check.podopslifecycle.kusionstack.io/job": "1",
			}}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		pods = append(pods, grants.Pod{View: podops.Read(pod)})
	}
	s := play(t, nobody(), options())
	s.rules = []*appsv1alpha1.PodTransitionRule{r}
	until := func(what string, holds func(appsv1alpha1.PodTransitionRuleStatus) bool) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); !holds(s.rules[0].Status); time.Sleep(time.Millisecond) {
			require.True(t, time.Now().Before(deadline), "not yet: %s: %+v", what, s.rules[0].Status)
			s.decide(pods)
		}
	}
	until("the task is in the status", func(status appsv1alpha1.PodTransitionRuleStatus) bool {
		return len(status.RuleStates) == 1 && status.Details[0].RejectInfo[0].Reason == "the webhook works on it, task task/1"
	})
	s.clock.SetTime(s.clock.Now().Add(5 * time.Second))
	until("it is polled", func(appsv1alpha1.PodTransitionRuleStatus) bool { return ts.polls.Load() == 1 })
	require.Zero(t, s.rules[0].Status.Granted)
	s.stop()

	next := play(t, nobody(), options())
	next.rules = s.rules
	s = next
	ts.finish.Store(true)
	until("both are granted", func(status appsv1alpha1.PodTransitionRuleStatus) bool { return status.Granted == 2 })
	require.EqualValues(t, 1, ts.posts.Load(), "one question about both, and none after the restart")
	require.Empty(t, s.rules[0].Status.RuleStates[0].WebhookStatus.TaskStates)
	require.Len(t, s.rules[0].Status.RuleStates[0].WebhookStatus.History, 1)
	require.Empty(t, s.decide(pods).Statuses, "nothing is written while nothing changes")
}
