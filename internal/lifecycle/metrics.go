package lifecycle

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"kusionstack.io/kuperator/api/podops"
)

var (
	steps = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kuperator_lifecycle_steps_total",
		Help: `Writes by lifecycle-controller, by what they did to the Pod's readiness: service_ready "False" took it out of service, "True" brought it back, "" changed labels only, "Deleted" deleted it.`,
	}, []string{"service_ready"})
	conflicts = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kuperator_lifecycle_conflicts_total",
		Help: "Writes that the API server refused because the Pod had changed meanwhile. They are decided anew; many of them mean that somebody else writes the same Pods.",
	})
	forgotten = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kuperator_lifecycle_forgotten_employers_total",
		Help: "Expected finalizers taken off Pods because their employer is gone or does not select the Pod any more.",
	})
	phaseAges = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "kuperator_lifecycle_phase_age_seconds",
		Help:    "How long operations were in a phase, observed when they leave it.",
		Buckets: []float64{0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 14400},
	}, []string{"phase", "type"})

	operationsDesc = prometheus.NewDesc("kuperator_lifecycle_operations",
		"Operations under way, by phase.", []string{"phase"}, nil)
	overdueDesc = prometheus.NewDesc("kuperator_lifecycle_overdue_operations",
		"Operations whose phase has taken longer than its deadline, with what is done about it.", []string{"phase", "type", "policy"}, nil)
	oldestDesc = prometheus.NewDesc("kuperator_lifecycle_oldest_phase_seconds",
		"How long the operation that has been in a phase for longest has been in it.", []string{"phase"}, nil)
)

// registerMetrics adds the metrics to the manager's registry; a second time changes nothing.
func registerMetrics(a *ages) error {
	for _, c := range []prometheus.Collector{steps, conflicts, forgotten, phaseAges, a} {
		err := metrics.Registry.Register(c)
		if already := (prometheus.AlreadyRegisteredError{}); err != nil && !errors.As(err, &already) {
			return fmt.Errorf("registering a metric: %w", err)
		}
	}
	return nil
}

var _ prometheus.Collector = &ages{}

// Describe names the gauges that Collect counts.
func (a *ages) Describe(out chan<- *prometheus.Desc) {
	out <- operationsDesc
	out <- overdueDesc
	out <- oldestDesc
}

// Collect counts the operations under way at the time of the scrape.
func (a *ages) Collect(out chan<- prometheus.Metric) {
	type late struct{ phase, opType, policy string }
	operations, overdue, oldest := map[podops.Phase]int{}, map[late]int{}, map[podops.Phase]time.Duration{}
	a.mu.Lock()
	now := a.clock.Now()
	for _, p := range a.pods {
		for _, o := range p.operations {
			operations[o.phase]++
			oldest[o.phase] = max(oldest[o.phase], now.Sub(o.since))
			if o.overdue != "" {
				overdue[late{string(o.phase), o.opType, string(o.overdue)}]++
			}
		}
	}
	a.mu.Unlock()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for phase, count := range operations {
		gauge(operationsDesc, float64(count), string(phase))
		gauge(oldestDesc, oldest[phase].Seconds(), string(phase))
	}
	for which, count := range overdue {
		gauge(overdueDesc, float64(count), which.phase, which.opType, which.policy)
	}
}
