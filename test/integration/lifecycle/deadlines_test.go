package lifecycle_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/history"
)

// missingEmployer is of a kind that no API server serves, so that nothing but its finalizer helps.
const missingEmployer = `{"expectedFinalizers":{"Nothing/x/y":"` + finalizer + `"}}`

func deadline(key, policy string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{podops.DeadlinesAnnotation: `{` + strconv.Quote(key) +
			`:{"after":"500ms","policy":"` + policy + `"}}`}
	}
}

func both(changes ...func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, change := range changes {
			change(p)
		}
	}
}

func held(p *corev1.Pod) { p.Finalizers = []string{finalizer} }

func (e env) overdue(pod *corev1.Pod) corev1.PodCondition {
	e.Helper()
	require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(pod), pod))
	for _, c := range pod.Status.Conditions {
		if c.Type == podops.OverdueCondition {
			return c
		}
	}
	return corev1.PodCondition{}
}

// record keeps all states of the namespace's Pods from here on.
func (e env) record() *history.Of[*corev1.Pod] {
	e.Helper()
	return history.Record[*corev1.Pod](e.T, e.WithWatch, &corev1.PodList{}, client.InNamespace(e.namespace))
}

func outOfService(pod *corev1.Pod) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.Name == pod.Name && !podops.Read(p).ServiceAvailable() }
}

func deadlineReports(e env) {
	pod := e.servingPod("p", both(held, deadline("Preparing/restart", "Wait")))
	e.begin(pod, "job", "restart")
	require.Eventually(e, func() bool { return e.overdue(pod).Status == corev1.ConditionTrue }, patience, interval)
	condition := e.overdue(pod)
	assert.Equal(e, string(podops.WaitFinalizer), condition.Reason)
	assert.Contains(e, condition.Message, `operation "job" of type "restart" has been in Preparing for more than 500ms`)
	assert.Contains(e, condition.Message, finalizer)
	assert.Equal(e, podops.PhasePreparing, podops.PhaseOf(e.view(pod), "job"), "nothing else is done")
	version := pod.ResourceVersion

	e.label(pod, "touched", new("1")) // another look reports nothing new
	reported := func() (found []eventsv1.Event) {
		var list eventsv1.EventList
		require.NoError(e, e.List(e.Context(), &list, client.InNamespace(e.namespace)))
		for _, event := range list.Items {
			if event.Reason == "OperationOverdue" {
				found = append(found, event)
			}
		}
		return found
	}
	require.Eventually(e, func() bool { return len(reported()) > 0 }, patience, interval)
	e.finalizers(pod, `[]`)
	e.eventually(pod, "allowed", func(v podops.View) bool { return podops.Allowed(v, "job", "restart") })
	assert.NotEqual(e, version, pod.ResourceVersion)
	assert.Equal(e, corev1.ConditionFalse, e.overdue(pod).Status)
	e.label(pod, podops.OperatingPrefix+"/job", nil)
	e.serves(pod)
	events := reported()
	require.Len(e, events, 1)
	assert.Nil(e, events[0].Series, "it is said once")
	assert.Equal(e, corev1.EventTypeWarning, events[0].Type)
}

func deadlinePolicies(e env) {
	run := func(name string, test func(env)) {
		e.Run(name, func(t *testing.T) {
			sub := e
			sub.T = t
			test(sub)
		})
	}
	run("Cancel in Preparing brings the Pod back", func(e env) {
		pod := e.servingPod("cancel", both(held, deadline("Preparing", "Cancel")))
		seen := e.record()
		e.begin(pod, "job", "restart")
		seen.Until("the Pod is out of service", outOfService(pod))
		e.serves(pod)
		e.finalizers(pod, `[]`)
	})
	run("Proceed in Preparing lets the operator act with the finalizer on", func(e env) {
		pod := e.servingPod("preparing", both(held, deadline("Preparing", "Proceed")))
		e.begin(pod, "job", "restart")
		e.eventually(pod, "allowed", func(v podops.View) bool { return podops.Allowed(v, "job", "restart") })
		assert.Equal(e, []string{finalizer}, pod.Finalizers)
		assert.False(e, podops.Read(pod).Ready)
		e.label(pod, podops.OperatingPrefix+"/job", nil)
		e.serves(pod)
		e.finalizers(pod, `[]`)
	})
	run("Proceed in Operate, by flag and for its type alone", func(e env) {
		patient := e.servingPod("patient", nil)
		e.begin(patient, "job", "restart")
		e.eventually(patient, "allowed", func(v podops.View) bool { return podops.Allowed(v, "job", "restart") })
		pod := e.servingPod("operate", nil)
		seen := e.record()
		e.begin(pod, "job", "slow")
		seen.Until("the Pod is out of service", outOfService(pod))
		e.serves(pod)
		assert.True(e, podops.Allowed(e.view(patient), "job", "restart"))
	})
	run("Proceed in PostCheck goes on without the rules", func(e env) {
		stage := appsv1alpha1.StagePostCheck
		rule := &appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "after"}}
		rule.Spec.Selector = &metav1.LabelSelector{}
		rule.Spec.Rules = []appsv1alpha1.TransitionRule{{Name: "labels", Stage: &stage,
			TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
				LabelCheck: &appsv1alpha1.LabelCheckRule{Requires: &metav1.LabelSelector{MatchLabels: map[string]string{"never": "there"}}},
			}}}
		require.NoError(e, e.Create(e.Context(), rule))
		operate := func(pod *corev1.Pod) {
			e.begin(pod, "job", "restart")
			e.eventually(pod, "allowed", func(v podops.View) bool { return podops.Allowed(v, "job", "restart") })
			e.label(pod, podops.OperatingPrefix+"/job", nil)
		}
		var held *corev1.Pod
		for i := 0; held == nil; i++ { // until the controller has seen the rule
			require.Less(e, i, 50, "the rule is never seen")
			probe := e.servingPod("probe-"+strconv.Itoa(i), nil)
			operate(probe)
			e.eventually(probe, "looked at", func(v podops.View) bool {
				return podops.PhaseOf(v,
					"job") != podops.PhaseFinished
			})
			if podops.PhaseOf(podops.Read(probe), "job") == podops.PhasePostCheck {
				held = probe
			}
		}
		pod := e.servingPod("postcheck", deadline("PostCheck", "Proceed"))
		operate(pod)
		e.serves(pod)
		assert.Equal(e, podops.PhasePostCheck, podops.PhaseOf(e.view(held), "job"), "without a deadline the rule holds")
		require.NoError(e, e.Delete(e.Context(), rule))
	})
	run("Proceed in Completing serves without the missing cooperator", func(e env) {
		pod := e.servingPod("completing", deadline("Completing", "Proceed"))
		e.begin(pod, "job", "restart")
		e.eventually(pod, "allowed", func(v podops.View) bool { return podops.Allowed(v, "job", "restart") })
		e.annotate(pod, podops.AvailableConditionsAnnotation, missingEmployer)
		e.label(pod, podops.OperatingPrefix+"/job", nil)
		e.serves(pod)
		assert.Equal(e, missingEmployer, pod.Annotations[podops.AvailableConditionsAnnotation])
	})
	run("a policy that does not exist only reports, and is complained about", func(e env) {
		pod := e.servingPod("odd", deadline("Operate", "Cancel"))
		e.begin(pod, "job", "restart")
		require.Eventually(e, func() bool { return e.overdue(pod).Status == corev1.ConditionTrue }, patience, interval)
		assert.True(e, podops.Allowed(e.view(pod), "job", "restart"))
		require.EventuallyWithT(e, func(c *assert.CollectT) {
			var list eventsv1.EventList
			require.NoError(c, e.List(e.Context(), &list, client.InNamespace(e.namespace)))
			found := false
			for _, event := range list.Items {
				found = found || (event.Reason == "InvalidDeadlines" && strings.Contains(event.Note, "PreCheck and Preparing only"))
			}
			require.True(c, found)
		}, patience, interval)
	})
}
