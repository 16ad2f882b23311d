package podphase_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/lifecycle/podphase"
)

// unheld is a Ready Pod that lacks the finalizer it expects, with operation "a" in PreCheck.
func unheld(t require.TestingT) podops.View {
	v := in(t, podops.PhasePreCheck)
	v.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"Service/default/s":"` + protection + `"}}`}
	delete(v.Labels, podops.ServiceAvailableLabel)
	return v
}

func TestAnAbsentCooperatorIsWaitedForOnlySoLong(t *testing.T) {
	const patience = 6 * time.Second
	v := unheld(t)
	at := func(v podops.View, after time.Duration, rules ...podops.Rule) podphase.Plan {
		return podphase.Decide(podphase.Snapshot{Pod: v, Rules: rules, MissingSince: now, Patience: patience,
			Now: now.Add(after)})
	}

	plan := at(v, 4*time.Second)
	assert.True(t, plan.IsZero(), "the cooperator may be about to bring it back")
	assert.Equal(t, 2*time.Second, plan.NextLook)
	forever := podphase.Decide(podphase.Snapshot{Pod: v, MissingSince: now, Now: now.Add(time.Hour)})
	assert.True(t, forever.IsZero(), "without patience it is waited for for ever")
	assert.True(t, at(v, time.Hour, holding()).IsZero(), "rules bind all the same")

	plan = at(v, patience)
	assert.Equal(t, corev1.ConditionFalse, plan.Step.ServiceReady)
	assert.Equal(t, 2*time.Second, plan.NextLook)
	v = plan.Step.Apply(v)
	require.Equal(t, podops.PhasePreparing, podops.PhaseOf(v, "a"), "nothing is done to it yet")
	require.Contains(t, v.Labels, podops.UnheldLabel)

	again := podops.Cancel(v, "a", now).Apply(v)
	begin, err := podops.Begin(again, podops.Request{ID: "b", Type: "update"}, now.Add(patience))
	require.NoError(t, err)
	again = begin.Apply(again)
	again = at(again, patience).Step.Apply(again)
	assert.Equal(t, podops.PhasePreparing, podops.PhaseOf(again, "b"), "another operation waits as well")

	joined := podops.Join(v, protection, now).Apply(v)
	plan = at(joined, patience+2*time.Second)
	joined = plan.Step.Apply(joined)
	assert.Equal(t, podops.PhasePreparing, podops.PhaseOf(joined, "a"), "it is back, and has to leave first")
	assert.NotContains(t, joined.Labels, podops.UnheldLabel)

	assert.True(t, at(v, patience+time.Second).IsZero())
	v = at(v, patience+2*time.Second).Step.Apply(v)
	assert.Equal(t, podops.PhaseOperate, podops.PhaseOf(v, "a"))
	assert.NotContains(t, v.Labels, podops.UnheldLabel)
}

func TestAHoldThatNoClockExplainsEnds(t *testing.T) {
	for name, label := range map[string]string{
		"no time":               "yes",
		"an hour in the future": podops.Stamp(now.Add(time.Hour)),
		"long ago":              podops.Stamp(now.Add(-time.Hour)),
	} {
		v := serving()
		v.Labels[podops.UnheldLabel] = label
		assert.NotContains(t, decide(v).Step.Apply(v).Labels, podops.UnheldLabel, name)
	}
}

func TestTheHoldGrowsWithThePatience(t *testing.T) {
	v := unheld(t)
	plan := podphase.Decide(podphase.Snapshot{Pod: v, MissingSince: now.Add(-time.Hour), Patience: time.Minute, Now: now})
	assert.Equal(t, 20*time.Second, plan.NextLook)
}

// TestNobodyWaitsForACooperatorThatIsMissing, in the second operation as little as in the first, while rules bind and
// the Pod is taken out of service first.
func TestNobodyWaitsForACooperatorThatIsMissing(t *testing.T) {
	v := unheld(t)
	decide := func(v podops.View, rules ...podops.Rule) podphase.Plan {
		return podphase.Decide(podphase.Snapshot{Pod: v, Rules: rules, MissingSince: now, Patience: 6 * time.Second,
			NotAwaited: true, Now: now})
	}
	assert.True(t, decide(v, holding()).IsZero())
	for range 2 {
		v = decide(v).Step.Apply(v)
		require.Equal(t, corev1.ConditionFalse, v.ServiceReady)
		require.Equal(t, podops.PhasePreparing, podops.PhaseOf(v, "a"))
		v = decide(v).Step.Apply(v) // no time has passed
		require.Equal(t, podops.PhaseOperate, podops.PhaseOf(v, "a"))
		assert.NotContains(t, v.Labels, podops.UnheldLabel)
		v = podops.Finish(v, "a", "update", now).Apply(v)
		v = decide(v).Step.Apply(v)
		v.Ready, v.ServiceReady = true, corev1.ConditionTrue
		v = decide(v).Step.Apply(v)
		require.Equal(t, podops.PhaseCompleting, podops.PhaseOf(v, "a"),
			"it is back without its cooperator, and not in service")
		begin, err := podops.Begin(v, podops.Request{ID: "a", Type: "update"}, now)
		require.NoError(t, err)
		v = begin.Apply(v)
	}
}
