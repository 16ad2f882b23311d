package poddecoration

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/metric"
)

// States of decorations, of Pods, and ways of updates, as metrics name them.
const (
	complete, progressing, stalled        = "Complete", "Progressing", "Stalled"
	matched, injected, updated, available = "Matched", "Injected", "Updated", "Available"
	inPlace, recreated                    = "InPlace", "Recreate"
)

var (
	decorationsMetric = metric.Metric{
		Name: "kuperator_poddecoration_decorations", Kind: metric.Gauge, Unit: "PodDecorations",
		Help:   "PodDecorations by the state of their rollout. Stalled: a user has to act.",
		Labels: []metric.Label{{Name: "state", Values: "Complete, Progressing, Stalled"}},
	}
	podsMetric = metric.Metric{
		Name: "kuperator_poddecoration_pods", Kind: metric.Gauge, Unit: "Pods",
		Help: "Pods of PodDecorations, each counted once for each of them: that are selected, have some revision, have the " +
			"updated revision, and serve with it.",
		Labels: []metric.Label{{Name: "state", Values: "Matched, Injected, Updated, Available"}},
	}
	updatesMetric = metric.Metric{
		Name: "kuperator_poddecoration_updates_total", Kind: metric.Counter, Unit: "Pods",
		Help:   "Pods that no CollaSet owns, updated in place or marked for a deletion after which another Pod is created.",
		Labels: []metric.Label{{Name: "way", Values: "InPlace, Recreate"}},
	}
	conflictsMetric = metric.Metric{
		Name: "kuperator_poddecoration_conflicts_total", Kind: metric.Counter, Unit: "decisions",
		Help: "Decisions that were repeated because a write met an object that had changed.",
	}

	updates         = updatesMetric.CounterVec()
	conflicts       = prometheus.NewCounter(prometheus.CounterOpts{Name: conflictsMetric.Name, Help: conflictsMetric.Help})
	decorationsDesc = decorationsMetric.Desc()
	podsDesc        = podsMetric.Desc()
)

// Metrics are what poddecoration-controller publishes beside what every component does.
func Metrics() []metric.Metric {
	return []metric.Metric{decorationsMetric, podsMetric, updatesMetric, conflictsMetric}
}

// registerMetrics adds the metrics to the manager's registry; a second time changes nothing. Queries find the series of
// what happens rarely from the start.
func registerMetrics() error {
	for _, way := range []string{inPlace, recreated} {
		updates.WithLabelValues(way)
	}
	return metric.Register(metrics.Registry, updates, conflicts)
}

// newGauges publishes how far the decorations are.
func newGauges(ctx context.Context, cached client.Reader, elected <-chan struct{}) prometheus.Collector {
	return &metric.Objects[*appsv1alpha1.PodDecorationList]{
		Process: ctx, Cached: cached, Elected: elected, List: &appsv1alpha1.PodDecorationList{}, Publish: publish,
		Descs: []*prometheus.Desc{decorationsDesc, podsDesc},
	}
}

func publish(out chan<- prometheus.Metric, list *appsv1alpha1.PodDecorationList) {
	decorations := map[string]int{complete: 0, progressing: 0, stalled: 0}
	pods := map[string]int{matched: 0, injected: 0, updated: 0, available: 0}
	for i := range list.Items {
		s := &list.Items[i].Status
		switch {
		case meta.IsStatusConditionTrue(s.Conditions, appsv1alpha1.PodDecorationStalled):
			decorations[stalled]++
		case meta.IsStatusConditionTrue(s.Conditions, appsv1alpha1.PodDecorationReady):
			decorations[complete]++
		default:
			decorations[progressing]++
		}
		pods[matched] += int(s.MatchedPods)
		pods[injected] += int(s.InjectedPods)
		pods[updated] += int(s.UpdatedPods)
		pods[available] += int(s.UpdatedAvailablePods)
	}
	for state, n := range decorations {
		metric.Send(out, decorationsDesc, n, state)
	}
	for state, n := range pods {
		metric.Send(out, podsDesc, n, state)
	}
}
