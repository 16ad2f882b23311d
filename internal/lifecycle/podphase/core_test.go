package podphase_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/lifecycle/podphase"
)

var now = time.Unix(1_700_000_000, 0)

func serving(labels ...string) podops.View {
	v := podops.View{
		Namespace: "default", Name: "p", UID: "u", Gate: true, Ready: true, ServiceReady: corev1.ConditionTrue,
		Labels: map[string]string{podops.ServiceAvailableLabel: "1"},
	}
	for _, l := range labels {
		v.Labels[l] = "1"
	}
	return v
}

// agreed is the answer of an API server that deletes Pods.
var agreed = podphase.Verdict{At: now}

func decide(v podops.View, rules ...podops.Rule) podphase.Plan {
	return podphase.Decide(podphase.Snapshot{Pod: v, Rules: rules, Deletion: agreed, Now: now})
}

// holding is a rule that selects every Pod and has granted nothing.
func holding() podops.Rule {
	r := &appsv1alpha1.PodTransitionRule{}
	r.Namespace, r.Name, r.UID = "default", "hold", "hold"
	r.Spec.Selector = &metav1.LabelSelector{}
	r.Spec.Rules = []appsv1alpha1.TransitionRule{{Name: "max"}}
	return podops.CompileRule(r)
}

func TestMarkedPodIsDeletedThroughTheLifecycle(t *testing.T) {
	v := serving(appsv1alpha1.ToDeleteLabel)
	plan := decide(v)
	require.False(t, plan.Delete, "it is still in service")
	assert.Equal(t, corev1.ConditionFalse, plan.Step.ServiceReady)
	v = plan.Step.Apply(v)
	assert.Equal(t, podops.PhaseOperate, podops.PhaseOf(v, podops.DeletionID),
		"request, permission and traffic off are one write")
	assert.Contains(t, v.Labels, podops.PreparingToDeleteLabel)
	assert.True(t, decide(v).Delete)
}

func TestMarkedPodWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*podops.View)
		rules  []podops.Rule
		phase  podops.Phase
	}{
		"for a rule": {func(*podops.View) {}, []podops.Rule{holding()}, podops.PhasePreCheck},
		"for a cooperator to leave": {func(
			v *podops.View) {
			v.Finalizers = []string{"prot.podopslifecycle.kusionstack.io/x"}
		}, nil, podops.PhasePreparing},
	} {
		t.Run(name, func(t *testing.T) {
			v := serving(appsv1alpha1.ToDeleteLabel)
			tc.change(&v)
			v = decide(v, tc.rules...).Step.Apply(v)
			assert.Equal(t, tc.phase, podops.PhaseOf(v, podops.DeletionID))
			assert.True(t, decide(v, tc.rules...).IsZero(), "it rests until something changes")
		})
	}
}

func TestUnmarkingCancelsTheDeletion(t *testing.T) {
	v := serving(appsv1alpha1.ToDeleteLabel)
	v = decide(v).Step.Apply(v)
	delete(v.Labels, appsv1alpha1.ToDeleteLabel)
	plan := decide(v)
	assert.False(t, plan.Delete)
	v = plan.Step.Apply(v)
	assert.Empty(t, podops.Operations(v))
	assert.Equal(t, corev1.ConditionTrue, v.ServiceReady)
	assert.NotContains(t, v.Labels, podops.PreparingToDeleteLabel)
}

func TestPodThatCannotBeTakenOutOfServiceIsNotDeletedWhileReady(t *testing.T) {
	v := serving(appsv1alpha1.ToDeleteLabel)
	v = decide(v).Step.Apply(v)
	v.Ready = true // a kubelet that lags
	assert.False(t, decide(v).Delete)
}

func TestTerminatingPodIsLeftAlone(t *testing.T) {
	v := serving(appsv1alpha1.ToDeleteLabel)
	v.Terminating = true
	assert.True(t, decide(v).IsZero())
}

// operated is a Pod on which the operator of ID collaset acts under the request "7", as it records.
func operated() (podops.View, podphase.Finish) {
	v := serving()
	v.Ready, v.ServiceReady = false, corev1.ConditionFalse
	delete(v.Labels, podops.ServiceAvailableLabel)
	for key, value := range map[string]string{
		podops.OperatingPrefix: "7", podops.OperationTypePrefix: podops.TypeUpdate, podops.PreCheckedPrefix: "7",
		podops.OperatePrefix: "8",
	} {
		v.Labels[key+"/collaset"] = value
	}
	v.Labels[podops.PermissionPrefix+"/"+podops.TypeUpdate] = "7"
	v.Annotations = map[string]string{appsv1alpha1.LastPodStatusAnnotation: "{}"}
	return v, podphase.Finish{ID: "collaset", Type: podops.TypeUpdate, Request: "7"}
}

func TestAnOperationIsFinishedForItsOperator(t *testing.T) {
	v, carried := operated()
	require.Equal(t, podops.PhaseOperate, podops.PhaseOf(v, "collaset"))
	require.True(t, decide(v).IsZero(), "nothing says that it has been carried out")
	plan := podphase.Decide(podphase.Snapshot{Pod: v, Finish: carried, Now: now})
	assert.Equal(t, corev1.ConditionTrue, plan.Step.ServiceReady, "its end and traffic on are one write")
	after := plan.Step.Apply(v)
	assert.Equal(t, podops.PhaseCompleting, podops.PhaseOf(after, "collaset"))
	assert.NotContains(t, after.Annotations, appsv1alpha1.LastPodStatusAnnotation)
	assert.Equal(t, podops.TypeUpdate, after.Labels[podops.DoneOperationTypePrefix+"/collaset"])
}

func TestAnOperationIsFinishedBeforeItsRulesAreAsked(t *testing.T) {
	v, carried := operated()
	tested := &appsv1alpha1.PodTransitionRule{}
	tested.Namespace, tested.Name, tested.UID = "default", "tested", "tested"
	tested.Spec.Selector = &metav1.LabelSelector{}
	stage := appsv1alpha1.StagePostCheck
	tested.Spec.Rules = []appsv1alpha1.TransitionRule{{Name: "smoke", Stage: &stage}}
	plan := podphase.Decide(podphase.Snapshot{Pod: v, Finish: carried,
		Rules: []podops.Rule{podops.CompileRule(tested)}, Now: now})
	assert.Empty(t, plan.Step.ServiceReady)
	assert.Equal(t, podops.PhasePostCheck, podops.PhaseOf(plan.Step.Apply(v), "collaset"))
}

func TestOnlyTheOperationOfTheRecordIsFinished(t *testing.T) {
	for name, change := range map[string]func(*podops.View, *podphase.Finish){
		"another request":  func(_ *podops.View, c *podphase.Finish) { c.Request = "6" },
		"another type":     func(_ *podops.View, c *podphase.Finish) { c.Type = podops.TypeScaleIn },
		"another operator": func(_ *podops.View, c *podphase.Finish) { c.ID = "job" },
		"before it was let pass": func(v *podops.View, _ *podphase.Finish) {
			delete(v.Labels, podops.PreCheckedPrefix+"/collaset")
			delete(v.Labels, podops.OperatePrefix+"/collaset")
			v.Labels[podops.PreCheckPrefix+"/collaset"] = "7"
		},
		"on a Pod that is deleted": func(v *podops.View, _ *podphase.Finish) { v.Terminating = true },
		"on a Pod that was called so": func(v *podops.View,
			_ *podphase.Finish) {
			delete(v.Labels, podops.OperatingPrefix+"/collaset")
		},
	} {
		t.Run(name, func(t *testing.T) {
			v, carried := operated()
			change(&v, &carried)
			plan := podphase.Decide(podphase.Snapshot{Pod: v, Finish: carried, Rules: []podops.Rule{holding()}, Now: now})
			assert.Equal(t, decide(v, holding()), plan, "as if there were no record")
		})
	}
}
