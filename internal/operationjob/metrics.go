package operationjob

import (
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/metric"
)

// otherAction stands for the actions of other programs.
const otherAction = "other"

var (
	actionLabel = metric.Label{Name: "action", Values: "Replace, Restart, Recreate, Evict, other"}

	jobsMetric = metric.Metric{
		Name: "kuperator_operationjob_jobs", Kind: metric.Gauge, Unit: "OperationJobs",
		Help:   "OperationJobs by progress.",
		Labels: []metric.Label{{Name: "progress", Values: "Pending, Processing, Succeeded, Failed"}},
	}
	targetsMetric = metric.Metric{
		Name: "kuperator_operationjob_targets_total", Kind: metric.Counter, Unit: "targets",
		Help:   "Targets of OperationJobs that have ended, by how.",
		Labels: []metric.Label{actionLabel, {Name: "result", Values: "Succeeded, Failed"}},
	}
	secondsMetric = metric.Metric{
		Name: "kuperator_operationjob_target_seconds", Kind: metric.Histogram, Unit: "seconds",
		Help:    "Time from the start of a target to its end.",
		Labels:  []metric.Label{actionLabel},
		Buckets: []float64{1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 14400},
	}
	conflictsMetric = metric.Metric{
		Name: "kuperator_operationjob_conflicts_total", Kind: metric.Counter, Unit: "decisions",
		Help: "Decisions that were repeated because a write met an object that had changed.",
	}

	targets       = targetsMetric.CounterVec()
	targetSeconds = secondsMetric.HistogramVec()
	conflicts     = prometheus.NewCounter(prometheus.CounterOpts{Name: conflictsMetric.Name, Help: conflictsMetric.Help})
	jobsDesc      = jobsMetric.Desc()
)

// Metrics are what operationjob-controller publishes beside what every component does.
func Metrics() []metric.Metric {
	return []metric.Metric{jobsMetric, targetsMetric, secondsMetric, conflictsMetric}
}

// registerMetrics adds the metrics to the manager's registry; a second time changes nothing. Queries find the series of
// what happens rarely from the start.
func registerMetrics() error {
	for _, action := range strings.Split(actionLabel.Values, ", ") {
		for _, result := range []string{"Succeeded", "Failed"} {
			targets.WithLabelValues(action, result)
		}
	}
	return metric.Register(metrics.Registry, targets, targetSeconds, conflicts)
}

// metricAction is the action as metrics name it: there are few values.
func metricAction(a appsv1alpha1.OperationAction) string {
	switch a {
	case appsv1alpha1.OpsActionReplace, appsv1alpha1.OpsActionRestart, appsv1alpha1.OpsActionRecreate,
		appsv1alpha1.OpsActionEvict:
		return string(a)
	}
	return otherAction
}

// newGauges publishes how far the jobs are.
func newGauges(ctx context.Context, cached client.Reader, elected <-chan struct{}) prometheus.Collector {
	return &metric.Objects[*appsv1alpha1.OperationJobList]{
		Process: ctx, Cached: cached, Elected: elected, List: &appsv1alpha1.OperationJobList{}, Publish: publish,
		Descs: []*prometheus.Desc{jobsDesc},
	}
}

func publish(out chan<- prometheus.Metric, list *appsv1alpha1.OperationJobList) {
	jobs := map[appsv1alpha1.OperationProgress]int{
		appsv1alpha1.OperationProgressPending: 0, appsv1alpha1.OperationProgressProcessing: 0,
		appsv1alpha1.OperationProgressSucceeded: 0, appsv1alpha1.OperationProgressFailed: 0,
	}
	for i := range list.Items {
		progress := list.Items[i].Status.Progress
		if progress == "" {
			progress = appsv1alpha1.OperationProgressPending
		}
		jobs[progress]++
	}
	for progress, n := range jobs {
		metric.Send(out, jobsDesc, n, string(progress))
	}
}
