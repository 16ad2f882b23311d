package rules_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// TestStatusSaysWhatIsHeldAndWhy reads what a person reads, without the project's types: counts, and details in the
// shape of v0.7, whose reasons stay the same while numbers change.
func TestStatusSaysWhatIsHeldAndWhy(t *testing.T) {
	s := together(t)
	pods := s.serve(5)
	budget, labels := s.rule("budget", atMost("1"), requires("approved")), s.rule("labels", requires("signed"))
	for _, pod := range pods[:3] {
		s.label(pod, map[string]any{"approved": "yes", "signed": "yes"})
	}
	s.label(pods[3], map[string]any{"approved": "yes"})
	s.work(pods...)
	s.ask(pods[0])
	s.until("it is out", func() bool { return s.out(pods[0]) == 1 })
	s.ask(pods[1:4]...)
	s.untilCounted(budget, 1, 3)
	s.untilCounted(labels, 1, 3)

	read := func() (status map[string]any) {
		t.Helper()
		out, err := s.Kubectl(t.Context(), "-n", s.namespace, "get", "ptr", "budget", "-o", "json")
		require.NoError(t, err)
		object := unstructured.Unstructured{}
		require.NoError(t, json.Unmarshal([]byte(out), &object.Object))
		status, found, err := unstructured.NestedMap(object.Object, "status")
		require.NoError(t, err)
		require.True(t, found)
		return status
	}
	var status map[string]any
	s.until("counters follow", func() bool {
		status = read()
		return status["available"] == int64(4) || status["available"] == float64(4)
	})
	for field, want := range map[string]int64{"desired": 5, "available": 4, "granted": 1, "blocked": 3,
		"observedGeneration": 1} {
		require.EqualValues(t, want, status[field], field)
	}
	targets := make([]any, len(pods))
	for n, pod := range pods {
		targets[n] = pod
	}
	require.Equal(t, targets, status["targets"], "as v0.7: whom the rule covers, in a stage or not")
	reject := func(rule, reason string) []any {
		info := map[string]any{"reason": reason}
		if rule != "" {
			info["ruleName"] = rule
		}
		return []any{info}
	}
	passed := []any{"available", "needs-approved"}
	want := []any{
		map[string]any{"name": pods[0], "stage": "PreCheck", "passed": true, "passedRules": passed},
		map[string]any{"name": pods[1], "stage": "PreCheck", "passed": false, "passedRules": []any{"needs-approved"},
			"rejectInfo": reject("available", "blocked by max unavailable policy")},
		map[string]any{"name": pods[2], "stage": "PreCheck", "passed": false, "passedRules": []any{"needs-approved"},
			"rejectInfo": reject("available", "blocked by max unavailable policy")},
		map[string]any{"name": pods[3], "stage": "PreCheck", "passed": false, "passedRules": []any{"needs-approved"},
			"rejectInfo": reject("", "waits for PodTransitionRule labels: all rules of a Pod grant it together")},
	}
	require.Equal(t, want, status["details"])

	s.crash(pods[4]) // numbers change, but no Pod may pass for that
	s.until("the crash is counted", func() bool {
		status = read()
		return status["available"] != int64(4) && status["available"] != float64(4)
	})
	require.EqualValues(t, 3, status["available"])
	require.Equal(t, want, status["details"])

	out, err := s.Kubectl(t.Context(), "-n", s.namespace, "get", "ptr", "budget")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Equal(t, []string{"NAME", "DESIRED", "AVAILABLE", "GRANTED", "BLOCKED", "READY", "AGE"},
		strings.Fields(lines[0]))
	require.Equal(t, []string{"budget", "5", "3", "1", "3", "True"}, strings.Fields(lines[1])[:6])
}

// TestARuleSeesPodsThatWereThereBeforeIt in a namespace that had no rule before: they are listed in pages.
func TestARuleSeesPodsThatWereThereBeforeIt(t *testing.T) {
	s := together(t)
	const many = 510 // more than a page
	for i := range many {
		s.pod(fmt.Sprintf("web-%03d", i), func(pod *corev1.Pod) { delete(pod.Labels, appsv1alpha1.ControlLabel) })
	}
	rule := s.rule("budget", atMost("1"))
	require.EqualValues(t, many, s.status(rule).Desired)
}
