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
