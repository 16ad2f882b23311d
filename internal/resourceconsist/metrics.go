package resourceconsist

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/resourceconsist/traffic"
)

var (
	kindLabel     = metric.Label{Name: "kind", Values: "kinds of employers, such as Service"}
	actionsMetric = metric.Metric{
		Name: "kuperator_resourceconsist_actions_total", Kind: metric.Counter, Unit: "actions",
		Help:   "Actions on Pods and their backends. Actions on one Pod share a write.",
		Labels: []metric.Label{kindLabel, {Name: "action", Values: "expect, join, leave, forget, register, deregister"}},
	}
	lostMetric = metric.Metric{
		Name: "kuperator_resourceconsist_employer_events_lost_total", Kind: metric.Counter, Unit: "events",
		Help: "Events of employers whose Pods could not be listed from the cache.", Labels: []metric.Label{kindLabel},
	}
	waitingMetric = metric.Metric{
		Name: "kuperator_resourceconsist_waiting_pods", Kind: metric.Gauge, Unit: "Pods",
		Help:   "Pods that an employer waits for, by reason.",
		Labels: []metric.Label{kindLabel, {Name: "reason", Values: "reasons of the waits, a fixed list"}},
	}
	failingMetric = metric.Metric{
		Name: "kuperator_resourceconsist_failing_employers", Kind: metric.Gauge, Unit: "employers",
		Help:   "Employers with a failing backend or a shared finalizer. Their conditions or events have the reason.",
		Labels: []metric.Label{kindLabel},
	}
)

// Metrics are what the controllers of employers publish.
func Metrics() []metric.Metric {
	return []metric.Metric{actionsMetric, lostMetric, waitingMetric, failingMetric}
}

// The labels of metrics have few values: kinds, verbs and reasons.
var (
	actions = actionsMetric.CounterVec()
	lost    = lostMetric.CounterVec()
)

// registerMetrics registers those of the process in the first registry, and those that tell of a manager's objects in
// the second.
func registerMetrics(
	registry, own prometheus.Registerer, kind string, records *records, backendConditions *backendConditions,
) error {
	for _, verb := range []traffic.Verb{traffic.Expect, traffic.Join, traffic.Leave, traffic.Forget, traffic.Register,
		traffic.Deregister} {
		actions.WithLabelValues(kind, string(verb))
	}
	lost.WithLabelValues(kind)
	failing := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        failingMetric.Name,
		Help:        failingMetric.Help,
		ConstLabels: prometheus.Labels{"kind": kind},
	}, func() float64 { return float64(backendConditions.failures()) })
	return errors.Join(metric.Register(registry, actions, lost),
		metric.Register(own, waitingPods{kind: kind, records: records}, failing))
}

// waitingPods publishes how many waits there are, when it is scraped.
type waitingPods struct {
	kind    string
	records *records
}

func (w waitingPods) desc() *prometheus.Desc {
	return prometheus.NewDesc(waitingMetric.Name, waitingMetric.Help, []string{"reason"},
		prometheus.Labels{"kind": w.kind})
}

// Describe is part of prometheus.Collector.
func (w waitingPods) Describe(ch chan<- *prometheus.Desc) { ch <- w.desc() }

// Collect is part of prometheus.Collector.
func (w waitingPods) Collect(ch chan<- prometheus.Metric) {
	waiting := w.records.waiting()
	for _, reason := range traffic.Reasons() {
		metric.Send(ch, w.desc(), waiting[reason], string(reason))
	}
}
