package podtransitionrule

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/podtransitionrule/asking"
)

func ruleGauge(name, help string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kuperator_podtransitionrule_" + name, Help: help}, []string{"namespace", "rule"})
}

var (
	desiredPods   = ruleGauge("desired_pods", "Pods that should be there, of those that the rule selects.")
	availablePods = ruleGauge("available_pods", "Pods that the rule selects and that are in service and not granted.")
	grantedPods   = ruleGauge("granted_pods", "Pods with a grant of the rule.")
	blockedPods   = ruleGauge("blocked_pods", "Pods in a stage of the rule without a grant.")

	decideSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kuperator_podtransitionrule_decide_seconds",
		Help:    "Time to decide on one namespace, without reading and writing.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
	})
	frozenNamespaces = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kuperator_podtransitionrule_frozen",
		Help: "1 for a namespace with rules in which nothing new is granted, because it or the cluster is frozen.",
	}, []string{"namespace"})
	noted = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kuperator_podtransitionrule_notes_total",
		Help: "Writes of what a Pod waits for to its annotations: written, gone (the Pod is), failed.",
	}, []string{"result"})
	conflicts = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kuperator_podtransitionrule_conflicts_total",
		Help: "Writes that the API server refused because the rule had changed meanwhile. The namespace is decided anew.",
	})
)

// registerMetrics adds the metrics to the manager's registry; a second time changes nothing.
func registerMetrics() error {
	own := []prometheus.Collector{desiredPods, availablePods, grantedPods, blockedPods, decideSeconds, conflicts, frozenNamespaces, noted}
	for _, c := range append(own, asking.Metrics()...) {
		err := metrics.Registry.Register(c)
		if already := (prometheus.AlreadyRegisteredError{}); err != nil && !errors.As(err, &already) {
			return fmt.Errorf("registering a metric: %w", err)
		}
	}
	return nil
}

// export publishes the counters of a rule.
func export(namespace, rule string, status *appsv1alpha1.PodTransitionRuleStatus) {
	for gauge, n := range map[*prometheus.GaugeVec]int32{
		desiredPods: status.Desired, availablePods: status.Available, grantedPods: status.Granted, blockedPods: status.Blocked,
	} {
		gauge.WithLabelValues(namespace, rule).Set(float64(n))
	}
}

// unexport forgets a rule that is gone.
func unexport(namespace, rule string) {
	for _, gauge := range []*prometheus.GaugeVec{desiredPods, availablePods, grantedPods, blockedPods} {
		gauge.DeleteLabelValues(namespace, rule)
	}
}

// frozenNamespace publishes whether a namespace is frozen.
func frozenNamespace(namespace string, frozen bool) {
	if frozen {
		frozenNamespaces.WithLabelValues(namespace).Set(1)
		return
	}
	frozenNamespaces.DeleteLabelValues(namespace)
}
