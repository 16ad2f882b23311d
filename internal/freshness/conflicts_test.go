package freshness_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/internal/freshness"
)

// TestConflictsInARow: a watch that lags for ten seconds costs some fifteen refused writes an object, not hundreds.
func TestConflictsInARow(t *testing.T) {
	var c freshness.Conflicts
	one, other := types.NamespacedName{Name: "one"}, types.NamespacedName{Name: "other"}
	shortest := 20 * time.Millisecond
	for i := range 30 {
		wait := c.Met(one)
		require.GreaterOrEqual(t, wait, shortest, "conflict %d", i)
		require.LessOrEqual(t, wait, shortest*5/2, "conflict %d", i)
		shortest = min(2*shortest, time.Second)
	}
	require.LessOrEqual(t, c.Met(other), 50*time.Millisecond, "each owner by itself")
	c.None(one)
	require.LessOrEqual(t, c.Met(one), 50*time.Millisecond, "a look without a conflict begins anew")
}

// TestRefusal: what was refused on one version of an object waits for the next, or its turn.
func TestRefusal(t *testing.T) {
	var r freshness.Refusal
	now := time.Unix(1, 0)
	require.Zero(t, r.Wait("1", now), "nothing was refused")
	shortest := 20 * time.Millisecond
	for i := range 8 {
		r.Met("1", now)
		wait := r.Wait("1", now)
		require.GreaterOrEqual(t, wait, shortest, "conflict %d", i)
		require.LessOrEqual(t, wait, shortest*5/2, "conflict %d", i)
		require.Equal(t, wait-time.Millisecond, r.Wait("1", now.Add(time.Millisecond)))
		require.Zero(t, r.Wait("2", now), "another version of the object may be written on")
		now = now.Add(wait)
		require.Zero(t, r.Wait("1", now), "its turn has come")
		shortest = min(2*shortest, time.Second)
	}
	r.None()
	r.Met("1", now)
	require.LessOrEqual(t, r.Wait("1", now), 50*time.Millisecond, "after a write it begins anew")
}
