package asking

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"

	"kusionstack.io/kuperator/internal/metric"
)

// TestSeriesOfRulesAreBounded asks about more rules than there may be series of: the requests of further ones are
// counted together, and the place of a rule that is gone is free.
func TestSeriesOfRulesAreBounded(t *testing.T) {
	name := func(i int) string { return fmt.Sprintf("bounded-%04d", i) }
	taken := len(exported.rules)
	for i := range metric.Limit + 3 - taken {
		countRequest("ns", name(i), failed)
		countIgnored("ns", name(i), 2)
	}
	assert.Len(t, exported.rules, metric.Limit)
	other := requests.WithLabelValues(otherRules, otherRules, string(failed))
	assert.InDelta(t, 3, testutil.ToFloat64(other), 0)
	unexport("ns", name(0))
	countRequest("ns", "next", answered)
	assert.InDelta(t, 1, testutil.ToFloat64(requests.WithLabelValues("ns", "next", string(answered))), 0)
	assert.InDelta(t, 0, testutil.ToFloat64(requests.WithLabelValues("ns", "next", string(failed))), 0, "it starts at 0")
	for i := range metric.Limit + 3 {
		unexport("ns", name(i))
	}
	unexport("ns", "next")
	requests.DeleteLabelValues(otherRules, otherRules, string(failed))
	ignored.DeleteLabelValues(otherRules, otherRules)
	assert.Len(t, exported.rules, taken)
}
