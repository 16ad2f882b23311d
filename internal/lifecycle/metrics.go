package lifecycle

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/freeze"
	"kusionstack.io/kuperator/internal/metric"
)

var (
	phaseLabel     = metric.Label{Name: "phase", Values: "PreCheck, Preparing, Operate, PostCheck, Completing"}
	typeLabel      = metric.Label{Name: "type", Values: "types of operations; the 21st and further are other"}
	namespaceLabel = metric.Label{Name: "namespace", Values: "namespaces with operations under way, at most 1000"}

	stepsMetric = metric.Metric{
		Name: "kuperator_lifecycle_steps_total", Kind: metric.Counter, Unit: "writes",
		Help: `Writes by lifecycle-controller, by their effect on the Pod: service_ready "False" took it out of service, ` +
			`"True" brought it back, "" changed labels only, "Deleted" deleted it.`,
		Labels: []metric.Label{{Name: "service_ready", Values: "False, True, Deleted, and the empty one"}},
	}
	conflictsMetric = metric.Metric{
		Name: "kuperator_lifecycle_conflicts_total", Kind: metric.Counter, Unit: "writes",
		Help: "Writes that the API server refused because the Pod had changed. They are retried with a new decision. " +
			"Many of them mean that another program writes to the same Pods.",
	}
	forgottenMetric = metric.Metric{
		Name: "kuperator_lifecycle_forgotten_employers_total", Kind: metric.Counter, Unit: "finalizers",
		Help: "Expected finalizers removed from Pods because their employer is gone or no longer selects the Pod.",
	}
	phaseAgesMetric = metric.Metric{
		Name: "kuperator_lifecycle_phase_age_seconds", Kind: metric.Histogram, Unit: "seconds",
		Help:    "Time that operations were in a phase, observed when they leave it.",
		Labels:  []metric.Label{phaseLabel, typeLabel},
		Buckets: []float64{0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 14400},
	}
	operationsMetric = metric.Metric{
		Name: "kuperator_lifecycle_operations", Kind: metric.Gauge, Unit: "operations",
		Help: "Operations under way, by phase.", Labels: []metric.Label{phaseLabel},
	}
	oldestMetric = metric.Metric{
		Name: "kuperator_lifecycle_oldest_phase_seconds", Kind: metric.Gauge, Unit: "seconds",
		Help: "Longest time of an operation in the phase. 0 without operations.", Labels: []metric.Label{phaseLabel},
	}
	waitingMetric = metric.Metric{
		Name: "kuperator_lifecycle_waiting_operations", Kind: metric.Gauge, Unit: "operations",
		Help: "Operations under way, and graceful deletions that have not begun because the API server refuses them, " +
			"by what they wait for, as of the last reconcile.",
		Labels: []metric.Label{{Name: "reason",
			Values: "the reasons of kubectl kuperator why, such as BlockedByRule, Frozen, WaitingForCooperatorToLeave, " +
				"OperatorAtWork"}},
	}
	overdueMetric = metric.Metric{
		Name: "kuperator_lifecycle_overdue_operations", Kind: metric.Gauge, Unit: "operations",
		Help:   "Operations past the deadline of their phase, by policy. There is no series without such operations.",
		Labels: []metric.Label{phaseLabel, typeLabel, {Name: "policy", Values: "Wait, Cancel, Proceed"}},
	}
	namespaceOperationsMetric = metric.Metric{
		Name: "kuperator_lifecycle_namespace_operations", Kind: metric.Gauge, Unit: "operations", PerObject: true,
		Help:   "Operations under way in a namespace, by phase. Namespaces without operations have no series.",
		Labels: []metric.Label{namespaceLabel, phaseLabel},
	}
	namespaceOldestMetric = metric.Metric{
		Name: "kuperator_lifecycle_namespace_oldest_phase_seconds", Kind: metric.Gauge, Unit: "seconds", PerObject: true,
		Help: "Longest time of an operation of the namespace in the phase. " +
			"If there are too many namespaces, those with the oldest operations have series.",
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

	operationsDesc, oldestDesc, waitingDesc, overdueDesc = operationsMetric.Desc(), oldestMetric.Desc(),
		waitingMetric.Desc(), overdueMetric.Desc()
	namespaceOperationsDesc, namespaceOldestDesc = namespaceOperationsMetric.Desc(), namespaceOldestMetric.Desc()
	frozenDesc, clusterFrozenDesc                = frozenMetric.Desc(), clusterFrozenMetric.Desc()
)

// Metrics are what lifecycle-controller publishes beside what every component does.
func Metrics() []metric.Metric {
	return []metric.Metric{
		stepsMetric, conflictsMetric, forgottenMetric, phaseAgesMetric, operationsMetric, oldestMetric,
		waitingMetric, overdueMetric,
		namespaceOperationsMetric, namespaceOldestMetric, frozenMetric, clusterFrozenMetric,
	}
}

// phases are those that an operation can be found in.
var phases = []podops.Phase{podops.PhasePreCheck, podops.PhasePreparing, podops.PhaseOperate, podops.PhasePostCheck,
	podops.PhaseCompleting}

// registerMetrics adds the metrics of the process to its registry, where a second time changes nothing, and those of
// a manager's objects to that manager's. Queries find the series of what happens rarely from the start.
func registerMetrics(own prometheus.Registerer, a *phaseTimers, f prometheus.Collector) error {
	for _, serviceReady := range []string{"False", "True", "Deleted", ""} {
		steps.WithLabelValues(serviceReady)
	}
	if err := metric.Register(metrics.Registry, steps, conflicts, forgotten, phaseAges); err != nil {
		return err
	}
	return metric.Register(own, a, f)
}

var _ prometheus.Collector = &phaseTimers{}

// Describe names the gauges that Collect counts.
func (a *phaseTimers) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{operationsDesc, oldestDesc, waitingDesc, overdueDesc, namespaceOperationsDesc,
		namespaceOldestDesc, metric.LeftOutDesc} {
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

func (a *phaseTimers) count() census {
	c := census{
		operations: map[podops.Phase]int{}, oldest: map[podops.Phase]time.Duration{},
		waiting: map[podops.WaitReason]int{}, overdue: map[lateness]int{}, namespaces: map[string]*namespaceCensus{},
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	c.waiting[podops.WaitRefused] = len(a.refused)
	for key, p := range a.pods {
		for _, o := range p.operations {
			n := c.namespaces[key.Namespace]
			if n == nil {
				n = &namespaceCensus{name: key.Namespace, operations: map[podops.Phase]int{},
					oldest: map[podops.Phase]time.Duration{}}
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
func (a *phaseTimers) Collect(out chan<- prometheus.Metric) {
	c := a.count()
	for _, phase := range phases {
		metric.Send(out, operationsDesc, c.operations[phase], string(phase))
		metric.Send(out, oldestDesc, c.oldest[phase].Seconds(), string(phase))
	}
	for _, reason := range podops.WaitReasons() {
		metric.Send(out, waitingDesc, c.waiting[reason], string(reason))
	}
	for which, count := range c.overdue {
		metric.Send(out, overdueDesc, count, which.phase, which.opType, which.policy)
	}
	namespaces := make([]*namespaceCensus, 0, len(c.namespaces))
	for _, n := range c.namespaces {
		namespaces = append(namespaces, n)
	}
	worstFirst := func(a, b *namespaceCensus) int {
		return cmp.Or(cmp.Compare(b.worst, a.worst), cmp.Compare(a.name, b.name))
	}
	for _, n := range metric.Bounded(out, "Namespace", namespaces, worstFirst) {
		for phase, count := range n.operations {
			metric.Send(out, namespaceOperationsDesc, count, n.name, string(phase))
			metric.Send(out, namespaceOldestDesc, n.oldest[phase].Seconds(), n.name, string(phase))
		}
	}
}

// newFreezes publishes what is frozen, from the annotations of Namespaces.
func newFreezes(ctx context.Context, f *freeze.Namespaces, elected <-chan struct{}) prometheus.Collector {
	list := &metav1.PartialObjectMetadataList{}
	list.APIVersion, list.Kind = "v1", "NamespaceList"
	return &metric.Objects[*metav1.PartialObjectMetadataList]{
		Process: ctx, Cached: f.Cached, Elected: elected, List: list,
		Descs: []*prometheus.Desc{frozenDesc, clusterFrozenDesc},
		Publish: func(out chan<- prometheus.Metric, list *metav1.PartialObjectMetadataList) {
			cluster, namespaces := 0, 0
			for i := range list.Items {
				n := &list.Items[i]
				if _, frozen := n.Annotations[podops.FreezeClusterAnnotation]; frozen && n.Name == f.Suite {
					cluster = 1
				}
				if _, frozen := n.Annotations[podops.FreezeAnnotation]; frozen {
					namespaces++
				}
			}
			metric.Send(out, clusterFrozenDesc, cluster)
			metric.Send(out, frozenDesc, namespaces)
		},
	}
}
