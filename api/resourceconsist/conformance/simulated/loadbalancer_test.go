package simulated_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/api/resourceconsist/conformance/simulated"
)

func TestLoadBalancer(t *testing.T) {
	lb := simulated.NewLoadBalancer()
	a, b := simulated.Member{ID: "a", Address: "10.0.0.1", Weight: 1}, simulated.Member{ID: "b", Address: "10.0.0.2"}
	put := func(members ...simulated.Member) map[string]error {
		refused, err := lb.Put(t.Context(), "web", members...)
		require.NoError(t, err)
		return refused
	}
	list := func(ids ...string) []simulated.Member {
		members, err := lb.List(t.Context(), "web", ids...)
		require.NoError(t, err)
		return members
	}

	require.Empty(t, put(b, a))
	require.Equal(t, []simulated.Member{a, b}, list())
	require.Equal(t, []simulated.Member{b}, list("b", "c"))
	require.True(t, lb.Serves("web", a.Address))
	require.False(t, lb.Serves("web", b.Address), "a member of weight 0 gets no requests")
	require.False(t, lb.Serves("other", a.Address))
	require.True(t, lb.Has("web", b))

	lb.FailFor(a.Address)
	refused, err := lb.Remove(t.Context(), "web", "a", "b", "c")
	require.NoError(t, err)
	require.ErrorIs(t, refused["a"], simulated.ErrUnavailable)
	require.Len(t, refused, 1)
	require.Equal(t, []simulated.Member{a}, list())
	require.Contains(t, put(a, b), "a")
	require.True(t, lb.Has("web", b))
	lb.FailFor()

	lb.Hold(true)
	refused, err = lb.Remove(t.Context(), "web", "a")
	require.NoError(t, err)
	require.Empty(t, refused)
	require.True(t, lb.Serves("web", a.Address), "what is held has no effect yet")
	require.Contains(t, list(), a)
	lb.Hold(false)
	require.False(t, lb.Serves("web", a.Address))

	before := lb.Calls()
	lb.Fail(true)
	_, err = lb.List(t.Context(), "web")
	require.ErrorIs(t, err, simulated.ErrUnavailable)
	_, err = lb.Put(t.Context(), "web", a)
	require.ErrorIs(t, err, simulated.ErrUnavailable)
	lb.Fail(false)
	require.False(t, lb.Serves("web", a.Address), "a call that failed has no effect")
	require.Equal(t, before+2, lb.Calls(), "calls that fail count")

	lb.Throttle(true)
	throttled := 0
	for range 100 {
		if _, err := lb.List(t.Context(), "web"); err != nil {
			require.ErrorIs(t, err, simulated.ErrThrottled)
			throttled++
		}
	}
	lb.Throttle(false)
	require.NotZero(t, throttled)
	require.Less(t, throttled, 100)
}

func TestDelayEndsWithTheContextAndWithAShorterDelay(t *testing.T) {
	lb := simulated.NewLoadBalancer()
	lb.Delay(24 * time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := lb.List(ctx, "web")
	require.ErrorIs(t, err, context.DeadlineExceeded)

	done := make(chan error, 1)
	started := lb.Calls()
	go func() {
		_, err := lb.List(t.Context(), "web")
		done <- err
	}()
	require.Eventually(t, func() bool { return lb.Calls() > started }, 30*time.Second, time.Millisecond)
	lb.Delay(0)
	require.NoError(t, <-done)
}
