package lifecycle

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/metric"
)

var (
	phaseLabel     = metric.Label{Name: "phase", Values: "PreCheck, Preparing, Operate, PostCheck, Completing"}
	typeLabel      = metric.Label{Name: "type", Values: "types of operations; the 21st and further are other"}
	namespaceLabel = metric.Label{Name: "namespace", Values: "namespaces with operations under way, at most 1000"}

	stepsMetric = metric.Metric{
		Name: "kuperator_lifecycle_steps_total", Kind: metric.Counter, Unit: "writes",
		Help:   `Writes by lifecycle-controller, by what they did to the Pod's readiness: service_ready "False" took it out of service, "True" brought it back, "" changed labels only, "Deleted" deleted it.`,
		Labels: []metric.Label{{Name: "service_ready", Values: "False, True, Deleted, and the empty one"}},
	}
	conflictsMetric = metric.Metric{
		Name: "kuperator_lifecycle_conflicts_total", Kind: metric.Counter, Unit: "writes",
		Help: "Writes that the API server refused because the Pod had changed meanwhile. They are decided anew; many of them mean that somebody else writes the same Pods.",
	}
	forgottenMetric = metric.Metric{
		Name: "kuperator_lifecycle_forgotten_employers_total", Kind: metric.Counter, Unit: "finalizers",
		Help: "Expected finalizers taken off Pods because their employer is gone or does not select the Pod any more.",
	}
	phaseAgesMetric = metric.Metric{
		Name: "kuperator_lifecycle_phase_age_seconds", Kind: metric.Histogram, Unit: "seconds",
		Help:    "How long operations were in a phase, observed when they leave it.",
		Labels:  []metric.Label{phaseLabel, typeLabel},
		Buckets: []float64{0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 14400},
	}
	operationsMetric = metric.Metric{
		Name: "kuperator_lifecycle_operations", Kind: metric.Gauge, Unit: "operations",
		Help: "Operations under way, by phase.", Labels: []metric.Label{phaseLabel},
	}
	oldestMetric = metric.Metric{
		Name: "kuperator_lifecycle_oldest_phase_seconds", Kind: metric.Gauge, Unit: "seconds",
		Help: "How long the operation that has been in a phase for longest has been in it. 0 if there is none.", Labels: []metric.Label{phaseLabel},
	}
	waitingMetric = metric.Metric{
		Name: "kuperator_lifecycle_waiting_operations", Kind: metric.Gauge, Unit: "operations",
		Help:   "Operations under way, by what they wait for, as last looked at.",
		Labels: []metric.Label{{Name: "reason", Values: "the reasons of kubectl kuperator why, such as BlockedByRule, Frozen, WaitingForCooperatorToLeave, OperatorAtWork"}},
	}
	overdueMetric = metric.Metric{
		Name: "kuperator_lifecycle_overdue_operations", Kind: metric.Gauge, Unit: "operations",
		Help:   "Operations whose phase has taken longer than its deadline, with what is done about it. There is no series while there is none.",
		Labels: []metric.Label{phaseLabel, typeLabel, {Name: "policy", Values: "Wait, Cancel, Proceed"}},
	}
	namespaceOperationsMetric = metric.Metric{
		Name: "kuperator_lifecycle_namespace_operations", Kind: metric.Gauge, Unit: "operations", PerObject: true,
		Help:   "Operations under way in a namespace, by phase. There is no series for a namespace without operations.",
		Labels: []metric.Label{namespaceLabel, phaseLabel},
	}
	namespaceOldestMetric = metric.Metric{
		Name: "kuperator_lifecycle_namespace_oldest_phase_seconds", Kind: metric.Gauge, Unit: "seconds", PerObject: true,
		Help:   "How long the operation of a namespace that has been in a phase for longest has been in it. The namespaces with the oldest come first when there are too many.",
		Labels: []metric.Label{namespaceLabel, phaseLabel},
	}
	frozenMetric = metric.Metric{
		Name: "kuperator_lifecycle_frozen_namespaces", Kind: metric.Gauge, Unit: "namespaces",
		Help: "Namespaces that are frozen by their own annotation.",
	}
	clusterFrozenMetric = metric.Metric{
		Name: "kuperator_lifecycle_cluster_frozen", Kind: metric.Gauge, Unit: "1 or 0",
		Help: "1 while the cluster is frozen, by the annotation of the suite's own namespace.",
	}

	steps     = stepsMetric.CounterVec()
	conflicts = prometheus.NewCounter(prometheus.CounterOpts{Name: conflictsMetric.Name, Help: conflictsMetric.Help})
	forgotten = prometheus.NewCounter(prometheus.CounterOpts{Name: forgottenMetric.Name, Help: forgottenMetric.Help})
	phaseAges = phaseAgesMetric.HistogramVec()

	operationsDesc, oldestDesc, waitingDesc, overdueDesc = operationsMetric.Desc(), oldestMetric.Desc(), waitingMetric.Desc(), overdueMetric.Desc()
	namespaceOperationsDesc, namespaceOldestDesc         = namespaceOperationsMetric.Desc(), namespaceOldestMetric.Desc()
	frozenDesc, clusterFrozenDesc                        = frozenMetric.Desc(), clusterFrozenMetric.Desc()
)

// Metrics are what lifecycle-controller publishes beside what every component does.
func Metrics() []metric.Metric {
	return []metric.Metric{
		stepsMetric, conflictsMetric, forgottenMetric, phaseAgesMetric, operationsMetric, oldestMetric, waitingMetric, overdueMetric,
		namespaceOperationsMetric, namespaceOldestMetric, frozenMetric, clusterFrozenMetric,
	}
}

// phases are those that an operation can be found in.
var phases = []podops.Phase{podops.PhasePreCheck, podops.PhasePreparing, podops.PhaseOperate, podops.PhasePostCheck, podops.PhaseCompleting}

// registerMetrics adds the metrics to the manager's registry; a second time changes nothing. Queries find the series of
// what happens rarely from the start.
func registerMetrics(a *ages, f *freezes) error {
	for _, serviceReady := range []string{"False", "True", "Deleted", ""} {
		steps.WithLabelValues(serviceReady)
	}
	return metric.Register(metrics.Registry, steps, conflicts, forgotten, phaseAges, a, f)
}

var _ prometheus.Collector = &ages{}

// Describe names the gauges that Collect counts.
func (a *ages) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{operationsDesc, oldestDesc, waitingDesc, overdueDesc, namespaceOperationsDesc, namespaceOldestDesc} {
		out <- desc
	}
}

// census is what is counted of the operations under way.
type census struct {
	operations map[podops.Phase]int
	oldest     map[podops.Phase]time.Duration
	waiting    map[podops.WaitReason]int
	overdue    map[lateness]int
	namespaces map[string]*namespaceCensus
}

type lateness struct{ phase, opType, policy string }

type namespaceCensus struct {
	name       string
	operations map[podops.Phase]int
	oldest     map[podops.Phase]time.Duration
	worst      time.Duration
}

func (a *ages) count() census {
	c := census{
		operations: map[podops.Phase]int{}, oldest: map[podops.Phase]time.Duration{},
		waiting: map[podops.WaitReason]int{}, overdue: map[lateness]int{}, namespaces: map[string]*namespaceCensus{},
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	for key, p := range a.pods {
		for _, o := range p.operations {
			n := c.namespaces[key.Namespace]
			if n == nil {
				n = &namespaceCensus{name: key.Namespace, operations: map[podops.Phase]int{}, oldest: map[podops.Phase]time.Duration{}}
				c.namespaces[key.Namespace] = n
			}
			age := now.Sub(o.since)
			c.operations[o.phase]++
			n.operations[o.phase]++
			c.oldest[o.phase] = max(c.oldest[o.phase], age)
			n.oldest[o.phase] = max(n.oldest[o.phase], age)
			n.worst = max(n.worst, age)
			c.waiting[o.waits]++
			if o.overdue != "" {
				c.overdue[lateness{string(o.phase), o.opType, string(o.overdue)}]++
			}
		}
	}
	return c
}

// Collect counts the operations under way at the time of the scrape.
func (a *ages) Collect(out chan<- prometheus.Metric) {
	c := a.count()
	for _, phase := range phases {
		gauge(out, operationsDesc, float64(c.operations[phase]), string(phase))
		gauge(out, oldestDesc, c.oldest[phase].Seconds(), string(phase))
	}
	for _, reason := range podops.WaitReasons() {
		gauge(out, waitingDesc, float64(c.waiting[reason]), string(reason))
	}
	for which, count := range c.overdue {
		gauge(out, overdueDesc, float64(count), which.phase, which.opType, which.policy)
	}
	namespaces := make([]*namespaceCensus, 0, len(c.namespaces))
	for _, n := range c.namespaces {
		namespaces = append(namespaces, n)
	}
	worstFirst := func(a, b *namespaceCensus) int {
		return cmp.Or(cmp.Compare(b.worst, a.worst), cmp.Compare(a.name, b.name))
	}
	for _, n := range metric.Bounded("Namespace", namespaces, worstFirst) {
		for phase, count := range n.operations {
			gauge(out, namespaceOperationsDesc, float64(count), n.name, string(phase))
			gauge(out, namespaceOldestDesc, n.oldest[phase].Seconds(), n.name, string(phase))
		}
	}
}

func gauge(out chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

// freezes publishes what is frozen, from the cache of Namespaces. A standby says nothing: it would be counted twice.
type freezes struct {
	*freeze
	ctx     context.Context // of the process
	elected <-chan struct{}
}

// Describe is part of prometheus.Collector.
func (f *freezes) Describe(out chan<- *prometheus.Desc) {
	out <- frozenDesc
	out <- clusterFrozenDesc
}

// Collect is part of prometheus.Collector.
func (f *freezes) Collect(out chan<- prometheus.Metric) {
	select {
	case <-f.elected:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(f.ctx, time.Second)
	defer cancel()
	var list metav1.PartialObjectMetadataList
	list.APIVersion, list.Kind = "v1", "NamespaceList"
	if err := f.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return // the cache is being filled
	}
	cluster := slices.ContainsFunc(list.Items, func(n metav1.PartialObjectMetadata) bool {
		_, frozen := n.Annotations[podops.FreezeClusterAnnotation]
		return frozen && n.Name == f.own
	})
	namespaces := 0
	for i := range list.Items {
		if _, frozen := list.Items[i].Annotations[podops.FreezeAnnotation]; frozen {
			namespaces++
		}
	}
	value := 0.0
	if cluster {
		value = 1
	}
	gauge(out, clusterFrozenDesc, value)
	gauge(out, frozenDesc, float64(namespaces))
}
