package bench

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// histogram counts observations by upper bound, as Prometheus does: each bucket holds those below it as well.
type histogram map[float64]float64

// readHistogram adds up the series of one histogram whose labels hold all that is asked for.
func readHistogram(metrics, name string, labels ...string) (histogram, error) {
	h := histogram{}
	for line := range strings.Lines(metrics) {
		rest, ok := strings.CutPrefix(line, name+"_bucket{")
		if !ok || slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			continue
		}
		_, after, found := strings.Cut(rest, `le="`)
		bound, value, complete := strings.Cut(after, `"`)
		_, value, closed := strings.Cut(value, "} ")
		if !found || !complete || !closed {
			return nil, fmt.Errorf("no bucket in %q", line)
		}
		le, err := strconv.ParseFloat(bound, 64)
		if err != nil {
			return nil, fmt.Errorf("the bound of %q: %w", line, err)
		}
		count, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return nil, fmt.Errorf("the count of %q: %w", line, err)
		}
		h[le] += count
	}
	if len(h) == 0 {
		return nil, fmt.Errorf("there is no histogram %s with %v", name, labels)
	}
	return h, nil
}

// readSeries adds up the values of all series of a name whose labels hold what is asked for.
func readSeries(metrics, name, label string) (float64, error) {
	total, found := 0.0, false
	for line := range strings.Lines(metrics) {
		rest, ok := strings.CutPrefix(line, name+"{")
		if !ok || !strings.Contains(rest, label) {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
		if err != nil {
			return 0, fmt.Errorf("the value of %q: %w", line, err)
		}
		total, found = total+value, true
	}
	if !found {
		return 0, fmt.Errorf("there is no %s with %s", name, label)
	}
	return total, nil
}

// since is what was observed after an earlier reading.
func (h histogram) since(before histogram) histogram {
	d := histogram{}
	for le, n := range h {
		d[le] = n - before[le]
	}
	return d
}

// count is the number of observations.
func (h histogram) count() float64 { return h[math.Inf(1)] }

// quantile interpolates within a bucket, as Prometheus does; the last finite bound stands for everything above it.
func (h histogram) quantile(q float64) float64 {
	rank, lower, below := q*h.count(), 0.0, 0.0
	for _, le := range slices.Sorted(maps.Keys(h)) {
		if math.IsInf(le, 1) {
			break
		}
		if h[le] >= rank && h[le] > below {
			return lower + (le-lower)*(rank-below)/(h[le]-below)
		}
		lower, below = le, h[le]
	}
	return lower
}

func TestHistogram(t *testing.T) {
	const metrics = `# TYPE took_seconds histogram
took_seconds_bucket{controller="a",le="0.1"} 10
took_seconds_bucket{controller="a",le="0.2"} 20
took_seconds_bucket{controller="a",le="+Inf"} 20
took_seconds_bucket{controller="b",le="0.1"} 1000
took_seconds_bucket{controller="b",le="+Inf"} 1000
took_seconds_sum{controller="a"} 3
`
	h, err := readHistogram(metrics, "took_seconds", `controller="a"`)
	require.NoError(t, err)
	require.InDelta(t, 20, h.count(), 0)
	require.InDelta(t, 0.1, h.quantile(0.5), 1e-9)
	require.InDelta(t, 0.15, h.quantile(0.75), 1e-9)
	require.InDelta(t, 0.2, h.since(histogram{0.1: 10, 0.2: 10, math.Inf(1): 10}).quantile(1), 1e-9)
	_, err = readHistogram(metrics, "other_seconds")
	require.Error(t, err)

	sum, err := readSeries(metrics, "took_seconds_sum", `controller="a"`)
	require.NoError(t, err)
	require.InDelta(t, 3, sum, 1e-9)
	_, err = readSeries(metrics, "took_seconds_sum", `controller="b"`)
	require.Error(t, err)
}
