package podphase_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/lifecycle/podphase"
)

// server is an API server that may refuse to delete the Pod, and what lifecycle-controller knows of it.
type server struct {
	refuses bool
	// lies has it agree to dry runs all the same.
	lies  bool
	known podphase.Verdict

	tries, deletions int
}

func (s *server) answer(refuses bool, now time.Time) bool {
	s.known = podphase.Verdict{At: now}
	if refuses {
		s.known.Refused, s.known.Retry = "policy \"no\" denied the request", now.Add(5*time.Second)
	}
	return !refuses
}

// look is what lifecycle-controller does at one look at the Pod. It reports whether the Pod is deleted.
func (s *server) look(
	v podops.View, now time.Time, rules ...podops.Rule,
) (after podops.View, plan podphase.Plan, deleted bool) {
	decide := func() podphase.Plan {
		return podphase.Decide(podphase.Snapshot{Pod: v, Rules: rules, Deletion: s.known, Now: now})
	}
	plan = decide()
	if plan.Try {
		s.tries++
		s.answer(s.refuses && !s.lies, now)
		plan = decide()
	}
	if plan.Delete {
		s.deletions++
		return v, plan, s.answer(s.refuses, now)
	}
	after = plan.Step.Apply(v)
	after.Ready = after.ServiceReady == corev1.ConditionTrue // a kubelet that is at hand
	return after, plan, false
}

func TestNothingBeginsBeforeTheAPIServerAgrees(t *testing.T) {
	refused := podphase.Verdict{At: now, Refused: "no", Retry: now.Add(time.Second)}
	for name, tc := range map[string]struct {
		known podphase.Verdict
		at    time.Time
		tries bool
		begin bool
	}{
		"nothing is known":           {podphase.Verdict{}, now, true, false},
		"it agrees":                  {podphase.Verdict{At: now}, now.Add(time.Second), false, true},
		"it agreed long ago":         {podphase.Verdict{At: now}, now.Add(time.Minute), true, false},
		"it refuses":                 {refused, now, false, false},
		"it refused, some while ago": {refused, now.Add(time.Second), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := serving(appsv1alpha1.ToDeleteLabel)
			plan := podphase.Decide(podphase.Snapshot{Pod: v, Deletion: tc.known, Now: tc.at})
			after := plan.Step.Apply(v)
			assert.Equal(t, tc.tries, plan.Try)
			assert.Equal(t, tc.begin, len(podops.Operations(after)) > 0)
			assert.Equal(t, !tc.begin, after.ServiceAvailable())
			if tc.known.Refused != "" && !tc.tries {
				assert.Equal(t, time.Second, plan.NextLook)
			}
		})
	}
}

func TestPodWithoutAMarkIsNotTried(t *testing.T) {
	plan := podphase.Decide(podphase.Snapshot{Pod: serving(), Now: now})
	assert.False(t, plan.Try)
	assert.True(t, plan.IsZero())
}

// TestTheAPIServerIsAskedAgainAfterALongPreCheck: what it said before the rules agreed is old by then.
func TestTheAPIServerIsAskedAgainAfterALongPreCheck(t *testing.T) {
	v := decide(serving(appsv1alpha1.ToDeleteLabel), holding()).Step.Apply(serving(appsv1alpha1.ToDeleteLabel))
	require.Equal(t, podops.PhasePreCheck, podops.PhaseOf(v, podops.DeletionID))
	later := podphase.Snapshot{Pod: v, Rules: []podops.Rule{holding()}, Deletion: agreed, Now: now.Add(time.Hour)}
	assert.False(t, podphase.Decide(later).Try, "not while a rule holds it")
	later.Rules = nil
	plan := podphase.Decide(later)
	assert.True(t, plan.Try)
	assert.True(t, plan.Step.Apply(v).ServiceAvailable(), "nothing happens without an answer")

	refused := later
	refused.Deletion = podphase.Verdict{At: later.Now, Refused: "no", Retry: later.Now.Add(time.Second)}
	after := podphase.Decide(refused).Step.Apply(v)
	assert.Empty(t, podops.Operations(after), "the rule's budget is free for others")
	assert.True(t, after.ServiceAvailable())

	later.Deletion = podphase.Verdict{At: later.Now}
	after = podphase.Decide(later).Step.Apply(v)
	assert.Equal(t, podops.PhaseOperate, podops.PhaseOf(after, podops.DeletionID))
}

func TestRefusedDeletionComesBack(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*podops.View)
		phase  podops.Phase
	}{
		"in PreCheck":  {func(v *podops.View) { v.Labels["hold"] = "" }, podops.PhasePreCheck},
		"in Preparing": {func(v *podops.View) { v.Finalizers = []string{protection} }, podops.PhasePreparing},
		"in Operate":   {func(*podops.View) {}, podops.PhaseOperate},
	} {
		t.Run(name, func(t *testing.T) {
			v := serving(appsv1alpha1.ToDeleteLabel)
			tc.change(&v)
			var rules []podops.Rule
			if _, hold := v.Labels["hold"]; hold {
				rules = append(rules, holding())
			}
			v = decide(v, rules...).Step.Apply(v)
			require.Equal(t, tc.phase, podops.PhaseOf(v, podops.DeletionID))

			refused := podphase.Verdict{At: now, Refused: "no", Retry: now.Add(time.Second)}
			plan := podphase.Decide(podphase.Snapshot{Pod: v, Rules: rules, Deletion: refused, Now: now.Add(time.Hour)})
			require.False(t, plan.Delete)
			v = plan.Step.Apply(v)
			assert.Empty(t, podops.Operations(v))
			assert.Equal(t, corev1.ConditionTrue, v.ServiceReady)
			assert.Contains(t, v.Labels, appsv1alpha1.ToDeleteLabel, "it begins anew")
			assert.NotContains(t, v.Labels, podops.PreparingToDeleteLabel)
			assert.Equal(t, "no", v.Annotations[podops.DeletionRefusedAnnotation])
			v.Ready = true
			v = podphase.Decide(podphase.Snapshot{Pod: v, Rules: rules, Deletion: refused, Now: now}).Step.Apply(v)
			assert.True(t, v.ServiceAvailable())
			assert.True(t, podphase.Decide(podphase.Snapshot{Pod: v, Rules: rules, Deletion: refused, Now: now}).IsZero(),
				"and rests")
		})
	}
}

func TestWhyADeletionIsRefusedStaysOnThePod(t *testing.T) {
	refused := func(why string) podphase.Verdict {
		return podphase.Verdict{At: now, Refused: why, Retry: now.Add(time.Second)}
	}
	v := serving(appsv1alpha1.ToDeleteLabel)
	step := func(verdict podphase.Verdict) (written bool) {
		plan := podphase.Decide(podphase.Snapshot{Pod: v, Deletion: verdict, Now: now})
		v = plan.Step.Apply(v)
		return !plan.IsZero()
	}
	noted := func() string { return v.Annotations[podops.DeletionRefusedAnnotation] }
	assert.True(t, step(refused("no")))
	assert.Equal(t, "no", noted())
	assert.Equal(t, podops.WaitRefused, podops.Explain(v, nil)[0].Reason)
	assert.False(t, step(refused("no")), "it is said once")
	assert.True(t, step(refused("never")))
	assert.Equal(t, "never", noted())
	assert.False(t, step(podphase.Verdict{}), "after a restart it is known no better")
	assert.True(t, step(agreed))
	assert.NotContains(t, v.Annotations, podops.DeletionRefusedAnnotation)

	v = serving()
	v.Annotations = map[string]string{podops.DeletionRefusedAnnotation: "no"}
	assert.True(t, step(refused("no")))
	assert.NotContains(t, v.Annotations, podops.DeletionRefusedAnnotation, "it is not to be deleted any more")
}

// TestRefusedDeletionsCostNoService draws API servers that change their minds at any time, and restarts. The Pod goes
// out of service only after the API server has agreed; while it refuses the Pod comes back and stays; and once it
// agrees it is gone.
func TestRefusedDeletionsCostNoService(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, s, clock := serving(appsv1alpha1.ToDeleteLabel), &server{}, now
		look := func() (deleted bool) {
			clock = clock.Add(time.Second)
			before := v
			var plan podphase.Plan
			v, plan, deleted = s.look(v, clock)
			if before.ServiceAvailable() && !v.ServiceAvailable() {
				require.True(t, s.known.Refused == "" && clock.Sub(s.known.At) < time.Minute, "%+v", plan)
			}
			return deleted
		}
		for range rapid.IntRange(1, 40).Draw(t, "looks") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				s.refuses = !s.refuses
			case 1:
				s.known = podphase.Verdict{} // a restart
			case 2:
				v.Finalizers = rapid.SampledFrom([][]string{nil, {protection}}).Draw(t, "finalizers")
			}
			if look() {
				return
			}
		}
		v.Finalizers = nil
		s.refuses = true
		for range 10 {
			require.False(t, look())
		}
		s.tries, s.deletions = 0, 0
		for range 60 {
			require.False(t, look())
			require.True(t, v.ServiceAvailable(), "%v", v.Labels)
			require.Empty(t, podops.Operations(v))
			require.NotEmpty(t, v.Annotations[podops.DeletionRefusedAnnotation])
		}
		require.LessOrEqual(t, s.tries, 60/5+1, "with pauses")
		require.Zero(t, s.deletions)
		s.refuses = false
		for range 10 {
			if look() {
				return
			}
		}
		t.Fatalf("it is never deleted: %+v", podops.Explain(v, nil))
	})
}

// TestOneTryForADeletion: an API server that agrees is asked once.
func TestOneTryForADeletion(t *testing.T) {
	v, s := serving(appsv1alpha1.ToDeleteLabel), &server{}
	for i := range 5 {
		var deleted bool
		if v, _, deleted = s.look(v, now.Add(time.Duration(i)*time.Second)); deleted {
			assert.Equal(t, 1, s.tries)
			return
		}
	}
	t.Fatal("it is never deleted")
}

// TestDryRunsThatAreNotMeant: an API server that agrees to dry runs alone takes the Pod out no more often than it is
// asked.
func TestDryRunsThatAreNotMeant(t *testing.T) {
	v, s := serving(appsv1alpha1.ToDeleteLabel), &server{refuses: true, lies: true}
	for i := range 60 {
		var deleted bool
		v, _, deleted = s.look(v, now.Add(time.Duration(i)*time.Second))
		require.False(t, deleted)
	}
	assert.LessOrEqual(t, s.deletions, 60/5+1)
	assert.LessOrEqual(t, s.tries, 60/5+1)
}
