package metric_test

import (
	"cmp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/metric"
)

func TestCheck(t *testing.T) {
	sound := metric.Metric{Name: "kuperator_x_things_total", Kind: metric.Counter, Unit: "things", Help: "Things."}
	require.NoError(t, sound.Check())
	for what, spoil := range map[string]func(*metric.Metric){
		"another prefix":              func(m *metric.Metric) { m.Name = "x_things_total" },
		"capitals":                    func(m *metric.Metric) { m.Name = "kuperator_X_total" },
		"a counter without _total":    func(m *metric.Metric) { m.Name = "kuperator_x_things" },
		"a gauge with _total":         func(m *metric.Metric) { m.Kind = metric.Gauge },
		"milliseconds":                func(m *metric.Metric) { m.Name = "kuperator_x_milliseconds_total" },
		"seconds that are not":        func(m *metric.Metric) { m.Name = "kuperator_x_seconds_total" },
		"seconds that go unsaid":      func(m *metric.Metric) { m.Unit = "seconds" },
		"no help":                     func(m *metric.Metric) { m.Help = "" },
		"a histogram without buckets": func(m *metric.Metric) { m.Name, m.Kind = "kuperator_x_things", metric.Histogram },
		"names of Pods":               func(m *metric.Metric) { m.Labels = []metric.Label{{Name: "pod", Values: "Pods"}} },
		"a label without a bound":     func(m *metric.Metric) { m.Labels = []metric.Label{{Name: "reason"}} },
		"a namespace, unbounded": func(m *metric.Metric) {
			m.Labels = []metric.Label{{Name: "namespace",
				Values: "all"}}
		},
	} {
		m := sound
		spoil(&m)
		assert.Error(t, m.Check(), what)
	}
}

func TestBounded(t *testing.T) {
	objects := make([]int, metric.Limit+7)
	for i := range objects {
		objects[i] = len(objects) - i
	}
	var kept []int
	leftOut := func(objects []int) float64 {
		return testutil.ToFloat64(prometheus.CollectorFunc(func(out chan<- prometheus.Metric) {
			kept = metric.Bounded(out, "Test", objects, cmp.Compare[int])
		}))
	}
	assert.InDelta(t, 7, leftOut(objects), 0)
	require.Len(t, kept, metric.Limit)
	assert.Equal(t, []int{1, metric.Limit}, []int{kept[0], kept[len(kept)-1]})
	assert.InDelta(t, 0, leftOut(objects[:3]), 0)
}

func TestRegisterTwice(t *testing.T) {
	counter := metric.Metric{Name: "kuperator_test_things_total", Help: "Things."}.CounterVec()
	require.NoError(t, metric.Register(prometheus.NewRegistry(), counter, counter))
	assert.Equal(t, 0, testutil.CollectAndCount(counter))
}
