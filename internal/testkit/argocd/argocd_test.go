package argocd

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

const shipped = "../../../deploy/gitops/argo-cd/argocd-cm.yaml"

// state is what conditions and spec come to, for all kinds.
type state struct {
	observed   int64 // of generation 3
	paused     bool
	revision   string
	conditions []metav1.Condition
}

func condition(conditionType string, holds bool, reason appsv1alpha1.ConditionReason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: conditionType, Status: status, Reason: string(reason), Message: message,
		ObservedGeneration: 3}
}

func outdated(c metav1.Condition) metav1.Condition {
	c.ObservedGeneration--
	return c
}

func unstructuredOf(t *testing.T, object any, kind string) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	require.NoError(t, err)
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(appsv1alpha1.SchemeGroupVersion.WithKind(kind))
	return u
}

func TestHealthOfCollaSets(t *testing.T) {
	ready := condition(appsv1alpha1.CollaSetReady, true, appsv1alpha1.ReasonAvailable, "")
	busy := condition(appsv1alpha1.CollaSetReady, false, appsv1alpha1.ReasonUpdating, "not every Pod is updated")
	down := condition(appsv1alpha1.CollaSetReady, false, appsv1alpha1.ReasonUnavailable, "some Pods have no node yet")
	complete := condition(appsv1alpha1.CollaSetProgressing, true, appsv1alpha1.ReasonRolloutComplete, "")
	moves := condition(appsv1alpha1.CollaSetProgressing, true, appsv1alpha1.ReasonUpdating,
		"Pods are being updated to web-2")
	for name, tc := range map[string]struct {
		state
		want, says string
	}{
		"nobody has looked at it": {state{}, "Progressing", "waiting for collaset-controller"},
		"nobody has looked at this spec": {state{observed: 2, conditions: []metav1.Condition{outdated(ready)}},
			"Progressing", "waiting for collaset-controller"},
		"ready": {state{observed: 3, conditions: []metav1.Condition{ready}}, "Healthy",
			"every Pod is as wanted"},
		"ready, with a partition": {state{observed: 3, revision: "web-1", conditions: []metav1.Condition{ready}},
			"Healthy", "some stay at revision web-1"},
		"ready for an older spec": {state{observed: 3, conditions: []metav1.Condition{outdated(ready), moves}},
			"Progressing", "waiting for collaset-controller"},
		"rolling out": {state{observed: 3, conditions: []metav1.Condition{busy, moves}}, "Progressing",
			"updated to web-2"},
		"unavailable after the rollout": {state{observed: 3, conditions: []metav1.Condition{down, complete}},
			"Progressing", "no node"},
		"creations fail": {state{observed: 3,
			conditions: []metav1.Condition{busy, moves,
				condition(appsv1alpha1.CollaSetScale, false, appsv1alpha1.ReasonScaleOutFailed, "exceeded quota")}}, "Progressing",
			"exceeded quota"},
		"paused with nothing left to do": {state{observed: 3, paused: true, conditions: []metav1.Condition{ready}},
			"Healthy", "every Pod is as wanted"},
		"paused midway": {state{observed: 3, paused: true,
			conditions: []metav1.Condition{busy, condition(appsv1alpha1.CollaSetProgressing, false, appsv1alpha1.ReasonPaused,
				"held")}}, "Suspended", "held"},
		"no progress within its deadline": {state{observed: 3,
			conditions: []metav1.Condition{busy, condition(appsv1alpha1.CollaSetProgressing, false,
				appsv1alpha1.ReasonProgressDeadlineExceeded, "too late")}}, "Degraded", "too late"},
		"somebody has to change something": {state{observed: 3,
			conditions: []metav1.Condition{busy, condition(appsv1alpha1.CollaSetStalled, true, appsv1alpha1.ReasonInvalidSpec,
				"spec.x: fix it"), condition(appsv1alpha1.CollaSetProgressing, false, appsv1alpha1.ReasonInvalidSpec,
				"spec.x: fix it")}}, "Degraded", "spec.x: fix it"},
	} {
		t.Run(name, func(t *testing.T) {
			set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 3}}
			set.Spec.Paused = tc.paused
			set.Status = appsv1alpha1.CollaSetStatus{ObservedGeneration: tc.observed, UpdatedRevision: "web-2",
				CurrentRevision: "web-2", Conditions: tc.conditions}
			if tc.revision != "" {
				set.Status.CurrentRevision = tc.revision
			}
			checkHealth(t, unstructuredOf(t, set, "CollaSet"), tc.want, tc.says)
		})
	}
}

func TestHealthOfRules(t *testing.T) {
	inForce := condition(appsv1alpha1.RuleReady, true, appsv1alpha1.ReasonInForce, "The rule is in force.")
	for name, tc := range map[string]struct {
		state
		want, says string
	}{
		"nobody has looked at it": {state{}, "Progressing", "waiting for podtransitionrule-controller"},
		"nobody has looked at this spec": {state{observed: 2, conditions: []metav1.Condition{outdated(inForce)}},
			"Progressing", "waiting for podtransitionrule-controller"},
		"without conditions": {state{observed: 3}, "Progressing", "waiting for podtransitionrule-controller"},
		"in force": {state{observed: 3, conditions: []metav1.Condition{inForce}}, "Healthy",
			"in force"},
		"it cannot be evaluated": {state{observed: 3,
			conditions: []metav1.Condition{condition(appsv1alpha1.RuleReady, false, appsv1alpha1.ReasonInvalidRule,
				"spec.rules[0]: fix it")}}, "Degraded", "fix it"},
	} {
		t.Run(name, func(t *testing.T) {
			rule := &appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 3}}
			rule.Status = appsv1alpha1.PodTransitionRuleStatus{ObservedGeneration: tc.observed, Conditions: tc.conditions}
			checkHealth(t, unstructuredOf(t, rule, "PodTransitionRule"), tc.want, tc.says)
		})
	}
}

func TestHealthOfJobs(t *testing.T) {
	done := condition(appsv1alpha1.OperationJobReady, true, "Succeeded", "3 of 3 targets succeeded, 0 failed")
	busy := condition(appsv1alpha1.OperationJobReady, false, "Processing", "1 of 3 targets succeeded, 0 failed")
	for name, tc := range map[string]struct {
		state
		progress   appsv1alpha1.OperationProgress
		want, says string
	}{
		"not looked at yet": {state{}, "", "Progressing", "waiting for operationjob-controller"},
		"looked at with an older spec": {state{observed: 2, conditions: []metav1.Condition{outdated(busy)}},
			appsv1alpha1.OperationProgressProcessing, "Progressing", "waiting for operationjob-controller"},
		"without conditions": {state{observed: 3}, "", "Progressing", "waiting for operationjob-controller"},
		"under way": {state{observed: 3, conditions: []metav1.Condition{busy,
			condition(appsv1alpha1.OperationJobStalled, false, "Processing", "")}},
			appsv1alpha1.OperationProgressProcessing, "Progressing", "1 of 3"},
		"all targets succeeded": {state{observed: 3, conditions: []metav1.Condition{done}},
			appsv1alpha1.OperationProgressSucceeded, "Healthy", "3 of 3"},
		"its time to live is changed after its end": {state{observed: 2, conditions: []metav1.Condition{outdated(done)}},
			appsv1alpha1.OperationProgressSucceeded, "Healthy", "3 of 3"},
		"targets failed": {state{observed: 3, conditions: []metav1.Condition{
			condition(appsv1alpha1.OperationJobReady, false, "TargetsFailed", "2 of 3"),
			condition(appsv1alpha1.OperationJobStalled, true, "TargetsFailed", "2 of 3 targets succeeded, 1 failed")}},
			appsv1alpha1.OperationProgressFailed, "Degraded", "1 failed"},
		"its action is not known": {state{observed: 3, conditions: []metav1.Condition{
			condition(appsv1alpha1.OperationJobReady, false, "UnknownAction", "set another"),
			condition(appsv1alpha1.OperationJobStalled, true, "UnknownAction", "set another")}},
			appsv1alpha1.OperationProgressPending, "Degraded", "set another"},
	} {
		t.Run(name, func(t *testing.T) {
			job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 3}}
			job.Status = appsv1alpha1.OperationJobStatus{ObservedGeneration: tc.observed, Progress: tc.progress,
				Conditions: tc.conditions}
			checkHealth(t, unstructuredOf(t, job, "OperationJob"), tc.want, tc.says)
		})
	}
}

func TestHealthOfDecorations(t *testing.T) {
	all := func(ready, stalled, progressing bool, reason appsv1alpha1.ConditionReason, message string) []metav1.Condition {
		return []metav1.Condition{condition(appsv1alpha1.PodDecorationReady, ready, reason, message),
			condition(appsv1alpha1.PodDecorationStalled, stalled, reason, message),
			condition(appsv1alpha1.PodDecorationProgressing, progressing, reason, message)}
	}
	old := all(true, false, true, appsv1alpha1.ReasonRolloutComplete, "2 of 2 Pods")
	for i := range old {
		old[i] = outdated(old[i])
	}
	for name, tc := range map[string]struct {
		state
		want, says string
	}{
		"not looked at yet": {state{}, "Progressing", "waiting for poddecoration-controller"},
		"looked at with an older spec": {state{observed: 2, conditions: old}, "Progressing",
			"waiting for poddecoration-controller"},
		"conditions of an older spec": {state{observed: 3, conditions: old}, "Progressing",
			"waiting for poddecoration-controller"},
		"under way": {state{observed: 3, conditions: all(false, false, true, appsv1alpha1.ReasonUpdating, "1 of 2 Pods")},
			"Progressing", "1 of 2 Pods"},
		"every Pod has it": {state{observed: 3,
			conditions: all(true, false, true, appsv1alpha1.ReasonRolloutComplete, "2 of 2 Pods")}, "Healthy", "2 of 2 Pods"},
		"paused midway": {state{observed: 3, conditions: all(false, false, false, appsv1alpha1.ReasonPaused, "1 of 2 Pods")},
			"Suspended", "1 of 2 Pods"},
		"no progress within its deadline": {state{observed: 3,
			conditions: all(false, false, false, appsv1alpha1.ReasonProgressDeadlineExceeded, "nothing got better")}, "Degraded",
			"nothing got better"},
		"Pods cannot have it": {state{observed: 3,
			conditions: all(false, true, false, appsv1alpha1.ReasonBlocked, "status.blockers has what keeps them")}, "Degraded",
			"status.blockers"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &appsv1alpha1.PodDecoration{ObjectMeta: metav1.ObjectMeta{Name: "sidecar", Generation: 3}}
			d.Status = appsv1alpha1.PodDecorationStatus{ObservedGeneration: tc.observed, Conditions: tc.conditions}
			checkHealth(t, unstructuredOf(t, d, "PodDecoration"), tc.want, tc.says)
		})
	}
}

func checkHealth(t *testing.T, object *unstructured.Unstructured, want, says string) {
	t.Helper()
	c, err := Load(shipped)
	require.NoError(t, err)
	status, message, err := c.Health(object)
	require.NoError(t, err)
	assert.Equal(t, want, status)
	assert.Contains(t, message, says)
}

func TestActionsOnCollaSets(t *testing.T) {
	c, err := Load(shipped)
	require.NoError(t, err)
	set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "web:1"}}
	object := unstructuredOf(t, set, "CollaSet")
	// What a script does not touch is as it was, empty maps and lists too.
	require.NoError(t, unstructured.SetNestedMap(object.Object, map[string]any{}, "spec", "namingStrategy"))
	require.NoError(t, unstructured.SetNestedSlice(object.Object, []any{}, "spec", "volumeClaimTemplates"))
	require.NoError(t, unstructured.SetNestedSlice(object.Object, []any{int64(1), 1.5, true, map[string]any{}},
		"spec", "list"))

	offered, err := c.Actions(object)
	require.NoError(t, err)
	assert.Equal(t, map[string]bool{"pause": true, "resume": false, "restart": true}, offered)

	paused, err := c.Run("pause", object)
	require.NoError(t, err)
	want := object.DeepCopy()
	require.NoError(t, unstructured.SetNestedField(want.Object, true, "spec", "paused"))
	assert.Equal(t, want, paused)
	offered, err = c.Actions(paused)
	require.NoError(t, err)
	assert.Equal(t, map[string]bool{"pause": false, "resume": true, "restart": false}, offered)

	resumed, err := c.Run("resume", paused)
	require.NoError(t, err)
	assert.Equal(t, object, resumed)

	restarted, err := c.Run("restart", object)
	require.NoError(t, err)
	at, found, err := unstructured.NestedString(restarted.Object, "spec", "template", "metadata", "annotations",
		"kubectl.kubernetes.io/restartedAt")
	require.NoError(t, err)
	require.True(t, found)
	assert.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`, at)

	_, err = c.Run("nothing", object)
	require.ErrorContains(t, err, "no action nothing")
}

func TestScriptsGetNoMoreThanArgoCDGivesThem(t *testing.T) {
	for _, script := range []string{`return os.getenv("HOME")`, `return io.open("x")`, `return string.upper("x")`,
		`return require("os").getenv("HOME")`} {
		_, err := run(script, &unstructured.Unstructured{Object: map[string]any{}})
		require.Error(t, err, script)
	}
}
