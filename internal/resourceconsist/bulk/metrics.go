package bulk

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/metric"
)

var (
	adapterLabel = metric.Label{Name: "adapter", Values: "enabled adapters"}

	callsMetric = metric.Metric{
		Name: "kuperator_resourceconsist_backend_calls_total", Kind: metric.Counter, Unit: "calls",
		Help: "Calls to providers, by result: ok, partial (some members failed) or error.",
		Labels: []metric.Label{adapterLabel, {Name: "verb", Values: "read, apply"},
			{Name: "result", Values: "ok, partial, error"}},
	}
	secondsMetric = metric.Metric{
		Name: "kuperator_resourceconsist_backend_call_duration_seconds", Kind: metric.Histogram, Unit: "seconds",
		Help:    "Time of calls to providers.",
		Labels:  []metric.Label{adapterLabel, {Name: "verb", Values: "read, apply"}},
		Buckets: []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60},
	}
	failingMembersMetric = metric.Metric{
		Name: "kuperator_resourceconsist_backend_failing_members", Kind: metric.Gauge, Unit: "members",
		Help: "Members whose last change failed.", Labels: []metric.Label{adapterLabel},
	}
	failingEmployersMetric = metric.Metric{
		Name: "kuperator_resourceconsist_backend_failing_employers", Kind: metric.Gauge, Unit: "employers",
		Help: "Employers whose backend is not up to date.", Labels: []metric.Label{adapterLabel},
	}
)

// Metrics are what adapters that make calls publish.
func Metrics() []metric.Metric {
	return []metric.Metric{callsMetric, secondsMetric, failingMembersMetric, failingEmployersMetric}
}

// The labels of metrics have few values: adapters, verbs and results.
var (
	callCount        = callsMetric.CounterVec()
	callSeconds      = secondsMetric.HistogramVec()
	failingMembers   = failingMembersMetric.GaugeVec()
	failingEmployers = failingEmployersMetric.GaugeVec()
)

// registerMetrics registers them, with every series of the adapter that a query may ask for.
func registerMetrics(registry prometheus.Registerer, adapter string) error {
	failingMembers.WithLabelValues(adapter)
	failingEmployers.WithLabelValues(adapter)
	for _, v := range []verb{read, apply} {
		callSeconds.WithLabelValues(adapter, string(v))
		for _, result := range []string{"ok", "partial", "error"} {
			callCount.WithLabelValues(adapter, string(v), result)
		}
	}
	return metric.Register(registry, callCount, callSeconds, failingMembers, failingEmployers)
}

func observeCall(adapter string, v verb, err error, took time.Duration) {
	result := "ok"
	var partial api.MemberErrors
	switch {
	case err != nil && v == apply && errors.As(err, &partial):
		result = "partial"
	case err != nil:
		result = "error"
	}
	callCount.WithLabelValues(adapter, string(v), result).Inc()
	callSeconds.WithLabelValues(adapter, string(v)).Observe(took.Seconds())
}
