package podphase_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/lifecycle/podphase"
)

const protection = "prot.podopslifecycle.kusionstack.io/x"

// in is a Pod with operation "a" of type "update" in a phase.
func in(t require.TestingT, phase podops.Phase) podops.View {
	v := serving()
	begun, err := podops.Begin(v, podops.Request{ID: "a", Type: "update"}, now)
	require.NoError(t, err)
	v = begun.Apply(v)
	if phase == podops.PhasePreCheck {
		return v
	}
	if phase == podops.PhasePreparing {
		v.Finalizers = []string{protection}
	}
	v = decide(v).Step.Apply(v)
	if phase == podops.PhasePreparing || phase == podops.PhaseOperate {
		require.Equal(t, phase, podops.PhaseOf(v, "a"))
		return v
	}
	v = podops.Finish(v, "a", "update", now).Apply(v)
	if phase == podops.PhasePostCheck {
		require.Equal(t, phase, podops.PhaseOf(v, "a"))
		return v
	}
	v = decide(v).Step.Apply(v)
	v.Ready = true
	v.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"Service/default/s":"` + protection + `"}}`}
	require.Equal(t, podops.PhaseCompleting, podops.PhaseOf(v, "a"))
	return v
}

func deadlines(phase podops.Phase, policy podops.DeadlinePolicy) podops.Deadlines {
	return podops.Deadlines{{Phase: phase}: {After: 10 * time.Minute, Policy: policy}}
}

// postCheckHolding is holding for stage PostCheck.
func postCheckHolding() podops.Rule {
	r := &appsv1alpha1.PodTransitionRule{}
	r.Namespace, r.Name, r.UID = "default", "after", "after"
	r.Spec.Selector = &metav1.LabelSelector{}
	stage := appsv1alpha1.StagePostCheck
	r.Spec.Rules = []appsv1alpha1.TransitionRule{{Name: "look", Stage: &stage}}
	return podops.CompileRule(r)
}

func TestDeadlineExpires(t *testing.T) {
	for name, tc := range map[string]struct {
		phase  podops.Phase
		policy podops.DeadlinePolicy
		want   podops.Phase // of "a" afterwards
		reason podops.WaitReason
	}{
		"PreCheck waits and reports": {podops.PhasePreCheck, podops.DeadlineWait,
			podops.PhasePreCheck, podops.WaitRule},
		"PreCheck is cancelled": {podops.PhasePreCheck, podops.DeadlineCancel, podops.PhaseNone,
			podops.WaitRule},
		"Preparing waits and reports": {podops.PhasePreparing, podops.DeadlineWait,
			podops.PhasePreparing, podops.WaitFinalizer},
		"Preparing is cancelled": {podops.PhasePreparing, podops.DeadlineCancel,
			podops.PhaseNone, podops.WaitFinalizer},
		"Preparing proceeds without the cooperators": {podops.PhasePreparing, podops.DeadlineProceed,
			podops.PhaseOperate, podops.WaitFinalizer},
		"Operate waits and reports": {podops.PhaseOperate, podops.DeadlineWait, podops.PhaseOperate,
			podops.WaitOperator},
		"Operate proceeds as if the operator had finished": {podops.PhaseOperate, podops.DeadlineProceed,
			podops.PhasePostCheck, podops.WaitOperator},
		"PostCheck waits and reports": {podops.PhasePostCheck, podops.DeadlineWait,
			podops.PhasePostCheck, podops.WaitRule},
		"PostCheck proceeds without its rules": {podops.PhasePostCheck, podops.DeadlineProceed,
			podops.PhaseCompleting, podops.WaitRule},
		"Completing waits and reports": {podops.PhaseCompleting, podops.DeadlineWait,
			podops.PhaseCompleting, podops.WaitExpected},
		"Completing proceeds without the missing cooperators": {podops.PhaseCompleting, podops.DeadlineProceed,
			podops.PhaseNone, podops.WaitExpected},
	} {
		t.Run(name, func(t *testing.T) {
			s := podphase.Snapshot{
				Pod: in(t, tc.phase), Rules: []podops.Rule{holding(), postCheckHolding()},
				Deadlines: deadlines(tc.phase, tc.policy),
				Since:     map[string]time.Time{"a": now}, Now: now.Add(10*time.Minute - time.Second),
			}
			early := podphase.Decide(s)
			assert.Empty(t, early.Overdue)
			assert.True(t, early.IsZero(), "%+v", early)
			assert.Equal(t, time.Second, early.NextLook)

			s.Now = now.Add(10 * time.Minute)
			plan := podphase.Decide(s)
			require.Len(t, plan.Overdue, 1)
			assert.Equal(t, tc.reason, plan.Overdue[0].Reason)
			assert.Equal(t, tc.policy, plan.Overdue[0].Policy)
			assert.Contains(t, plan.Overdue[0].Text,
				`operation "a" of type "update" has been in `+string(tc.phase)+` for more than 10m0s`)
			after := plan.Step.Apply(s.Pod)
			assert.Equal(t, tc.want, podops.PhaseOf(after, "a"))
			if tc.want != tc.phase {
				assert.Nil(t, plan.Report, "nothing is late any more")
				return
			}
			require.NotNil(t, plan.Report)
			assert.Equal(t, podphase.Report{Status: corev1.ConditionTrue, Reason: string(tc.reason),
				Message: plan.Overdue[0].Text}, *plan.Report)
			s.Reported, s.Now = *plan.Report, now.Add(time.Hour)
			assert.True(t, podphase.Decide(s).IsZero(), "it is reported once")
		})
	}
}

func TestReportEndsWithTheStep(t *testing.T) {
	s := podphase.Snapshot{Pod: in(t, podops.PhasePreparing),
		Deadlines: deadlines(podops.PhasePreparing, podops.DeadlineWait),
		Since:     map[string]time.Time{"a": now}, Now: now.Add(time.Hour),
		Reported: podphase.Report{Status: corev1.ConditionTrue, Reason: "x"}}
	s.Pod.Finalizers = nil
	plan := podphase.Decide(s)
	assert.Equal(t, podops.PhaseOperate, podops.PhaseOf(plan.Step.Apply(s.Pod), "a"))
	require.NotNil(t, plan.Report)
	assert.Equal(t, corev1.ConditionFalse, plan.Report.Status, "in the same write")
	s.Pod, s.Reported = plan.Step.Apply(s.Pod), *plan.Report
	s.Since = nil
	assert.True(t, podphase.Decide(s).IsZero())
}

func TestProceedInPreparingWaitsForReadyToBeFalse(t *testing.T) {
	s := podphase.Snapshot{Pod: in(t, podops.PhasePreparing),
		Deadlines: deadlines(podops.PhasePreparing, podops.DeadlineProceed),
		Since:     map[string]time.Time{"a": now}, Now: now.Add(time.Hour)}
	s.Pod.Ready = true // a kubelet that lags
	plan := podphase.Decide(s)
	assert.True(t, plan.Step.IsZero())
	require.NotNil(t, plan.Report)
	s.Pod.Ready = false
	assert.True(t, podops.Allowed(podphase.Decide(s).Step.Apply(s.Pod), "a", "update"))
}

func TestProceedInCompletingWaitsForReady(t *testing.T) {
	s := podphase.Snapshot{Pod: in(t, podops.PhaseCompleting),
		Deadlines: deadlines(podops.PhaseCompleting, podops.DeadlineProceed),
		Since:     map[string]time.Time{"a": now}, Now: now.Add(time.Hour)}
	s.Pod.Ready = false
	assert.True(t, podphase.Decide(s).Step.IsZero())
	s.Pod.Ready = true
	assert.True(t, podphase.Decide(s).Step.Apply(s.Pod).ServiceAvailable())
}

func TestCancelOfADeletionTakesItsMarkAway(t *testing.T) {
	v := serving(appsv1alpha1.ToDeleteLabel)
	v.Finalizers = []string{protection}
	v = decide(v).Step.Apply(v)
	require.Equal(t, podops.PhasePreparing, podops.PhaseOf(v, podops.DeletionID))
	s := podphase.Snapshot{Pod: v, Deadlines: deadlines(podops.PhasePreparing, podops.DeadlineCancel),
		Since: map[string]time.Time{podops.DeletionID: now}, Now: now.Add(time.Hour)}
	plan := podphase.Decide(s)
	require.False(t, plan.Delete)
	s.Pod = plan.Step.Apply(v)
	assert.NotContains(t, s.Pod.Labels, appsv1alpha1.ToDeleteLabel)
	assert.Empty(t, podops.Operations(s.Pod))
	assert.Equal(t, corev1.ConditionTrue, s.Pod.ServiceReady)
}

func TestDeletionThatMayNotActIsNotTakenForFinished(t *testing.T) {
	v := serving(appsv1alpha1.ToDeleteLabel)
	v = decide(v).Step.Apply(v)
	v.Ready = true // a kubelet that lags
	s := podphase.Snapshot{Pod: v, Deadlines: deadlines(podops.PhaseOperate, podops.DeadlineProceed),
		Since: map[string]time.Time{podops.DeletionID: now}, Now: now.Add(time.Hour)}
	plan := podphase.Decide(s)
	require.Len(t, plan.Overdue, 1)
	assert.Equal(t, podops.DeadlineWait, plan.Overdue[0].Policy)
	assert.Equal(t, podops.PhaseOperate, podops.PhaseOf(plan.Step.Apply(v), podops.DeletionID))
}

func TestMessageDoesNotChangeWhileTheWaitIsTheSame(t *testing.T) {
	rule := func(holders ...string) podops.Rule {
		r := &appsv1alpha1.PodTransitionRule{}
		r.Namespace, r.Name, r.UID = "default", "hold", "hold"
		r.Spec.Selector = &metav1.LabelSelector{}
		r.Spec.Rules = []appsv1alpha1.TransitionRule{{Name: "max"}}
		for _, h := range holders {
			r.Status.Grants = append(r.Status.Grants,
				appsv1alpha1.PodGrant{PodName: h, PodUID: "uid", Stage: appsv1alpha1.StagePreCheck})
		}
		return podops.CompileRule(r)
	}
	s := podphase.Snapshot{Pod: in(t, podops.PhasePreCheck), Rules: []podops.Rule{rule("web-1")},
		Deadlines: deadlines(podops.PhasePreCheck, podops.DeadlineWait),
		Since:     map[string]time.Time{"a": now}, Now: now.Add(time.Hour)}
	plan := podphase.Decide(s)
	require.NotNil(t, plan.Report)
	s.Reported, s.Rules = *plan.Report, []podops.Rule{rule("web-2")}
	assert.True(t, podphase.Decide(s).IsZero(), "another holder of the budget is no reason for a write")
}

func TestFreeze(t *testing.T) {
	for name, tc := range map[string]struct {
		phase, want podops.Phase
	}{
		"nothing leaves PreCheck, rules or not": {podops.PhasePreCheck, podops.PhasePreCheck},
		"what is on its way out goes on":        {podops.PhasePreparing, podops.PhaseOperate},
		"what is on its way back goes on":       {podops.PhasePostCheck, podops.PhaseCompleting},
	} {
		t.Run(name, func(t *testing.T) {
			v := in(t, tc.phase)
			v.Finalizers = nil
			plan := podphase.Decide(podphase.Snapshot{Pod: v, Frozen: "audit", Now: now})
			assert.Equal(t, tc.want, podops.PhaseOf(plan.Step.Apply(v), "a"))
		})
	}
	v := serving(appsv1alpha1.ToDeleteLabel)
	plan := podphase.Decide(podphase.Snapshot{Pod: v, Frozen: "audit", Deletion: agreed, Now: now})
	assert.Equal(t, podops.PhasePreCheck, podops.PhaseOf(plan.Step.Apply(v), podops.DeletionID), "nor is anything deleted")
}

func TestUnmarkingCancelsInEveryPhase(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*podops.View)
		rules  []podops.Rule
		phase  podops.Phase
	}{
		"PreCheck":  {func(*podops.View) {}, []podops.Rule{holding()}, podops.PhasePreCheck},
		"Preparing": {func(v *podops.View) { v.Finalizers = []string{protection} }, nil, podops.PhasePreparing},
		"Operate":   {func(*podops.View) {}, nil, podops.PhaseOperate},
	} {
		t.Run(name, func(t *testing.T) {
			v := serving(appsv1alpha1.ToDeleteLabel)
			tc.change(&v)
			v = decide(v, tc.rules...).Step.Apply(v)
			require.Equal(t, tc.phase, podops.PhaseOf(v, podops.DeletionID))
			delete(v.Labels, appsv1alpha1.ToDeleteLabel)
			plan := decide(v, tc.rules...)
			require.False(t, plan.Delete)
			v = plan.Step.Apply(v)
			assert.Empty(t, podops.Operations(v))
			assert.NotContains(t, v.Labels, podops.PreparingToDeleteLabel)
			assert.Equal(t, corev1.ConditionTrue, v.ServiceReady)
		})
	}
}

func TestDeletionOfPodsThatDoNotServe(t *testing.T) {
	for name, v := range map[string]podops.View{
		"a Pod that has run to its end":       {Namespace: "default", Name: "p", Gate: true, Terminal: true},
		"a Pod that no node has":              {Namespace: "default", Name: "p", Gate: true},
		"a Pod without the gate, still Ready": {Namespace: "default", Name: "p", Ready: true},
	} {
		t.Run(name, func(t *testing.T) {
			v.Labels = map[string]string{appsv1alpha1.ToDeleteLabel: "1"}
			for range 3 {
				plan := decide(v)
				if plan.Delete {
					return
				}
				v = plan.Step.Apply(v)
			}
			t.Fatalf("it is never deleted: %+v", podops.Explain(v, nil))
		})
	}
}

func TestPodThatIsMarkedDuringAnotherOperation(t *testing.T) {
	v := in(t, podops.PhaseOperate)
	v.Labels[appsv1alpha1.ToDeleteLabel] = "1"
	blocked := decide(v, holding()).Step.Apply(v)
	assert.Equal(t, podops.PhasePreCheck, podops.PhaseOf(blocked, podops.DeletionID), "the rules are asked for it too")
	assert.Equal(t, podops.PhaseOperate, podops.PhaseOf(blocked, "a"))
	assert.False(t, decide(blocked, holding()).Delete)
	v = decide(blocked).Step.Apply(blocked)
	assert.True(t, decide(v).Delete, "the Pod is out of service, and nobody objects")
}

// Whatever expires under whatever policy, with whatever readiness: the Pod is offline while any operator may act, and
// no operator may act on a Pod that is seen Ready.
func TestDeadlinesNeverOperateOnAServingPod(t *testing.T) {
	phases := []podops.Phase{podops.PhasePreCheck, podops.PhasePreparing, podops.PhaseOperate, podops.PhasePostCheck,
		podops.PhaseCompleting}
	policies := []podops.DeadlinePolicy{podops.DeadlineWait, podops.DeadlineCancel, podops.DeadlineProceed}
	rapid.Check(t, func(t *rapid.T) {
		d := podops.Deadlines{}
		for _, phase := range phases {
			if rapid.Bool().Draw(t, "has deadline") {
				d[podops.DeadlineKey{Phase: phase}] = podops.Deadline{After: time.Minute,
					Policy: rapid.SampledFrom(policies).Draw(t, "policy")}
			}
		}
		v := serving()
		clock := now
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			clock = clock.Add(time.Second)
			id := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "id")
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0:
				c, err := podops.Begin(v, podops.Request{ID: id, Type: "update"}, clock)
				require.NoError(t, err)
				v = c.Apply(v)
			case 1:
				if podops.Allowed(v, id, "update") {
					require.False(t, v.Ready)
					require.Equal(t, corev1.ConditionFalse, v.ServiceReady)
					v = podops.Finish(v, id, "update", clock).Apply(v)
				}
			case 2:
				v.Ready = !v.Ready // a kubelet that lags, or an application that fails
			case 3:
				v.Finalizers = rapid.SampledFrom([][]string{nil, {protection}}).Draw(t, "finalizers")
			case 4:
				if _, marked := v.Labels[appsv1alpha1.ToDeleteLabel]; !marked {
					v = podops.Change{Labels: map[string]*string{appsv1alpha1.ToDeleteLabel: new("1")}}.Apply(v)
				}
			default:
				since := map[string]time.Time{}
				for _, o := range podops.Operations(v) {
					since[o.ID] = clock.Add(-rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "age"))
				}
				said := []podphase.Verdict{{}, {At: clock}, {At: clock, Refused: "no", Retry: clock}}
				plan := podphase.Decide(podphase.Snapshot{
					Pod: v, Deadlines: d, Since: since, Now: clock,
					Frozen:   rapid.SampledFrom([]string{"", "audit"}).Draw(t, "frozen"),
					Deletion: rapid.SampledFrom(said).Draw(t, "said of the deletion"),
				})
				if plan.Delete {
					require.False(t, v.Ready)
					return
				}
				v = plan.Step.Apply(v)
			}
			for _, o := range podops.Operations(v) {
				if o.Phase == podops.PhaseOperate {
					require.NotEqual(t, corev1.ConditionTrue, v.ServiceReady, "%+v", o)
				}
			}
		}
	})
}
