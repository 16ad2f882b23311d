package collaset

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// actions counts what was done to Pods, claims and ResourceContexts, by action and result. Both have few values.
var actions = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "kuperator_collaset_actions_total",
	Help: "Writes of Pods, claims and ResourceContexts by action (create, delete, begin, change, resize, finish, cancel, mark, relabel, exclude, include, store, create-claim, update-claim, adopt-claim, release-claim, delete-claim) and result (done, conflict, failed).",
}, []string{"action", "result"})

// registerMetrics is repeatable: two components in one process (a test) share the metrics.
func registerMetrics() error {
	if err := metrics.Registry.Register(actions); err != nil && !errors.As(err, &prometheus.AlreadyRegisteredError{}) {
		return fmt.Errorf("registering metrics: %w", err)
	}
	return nil
}

func countAction(action string, err error) {
	result := "done"
	switch {
	case err == nil:
	case oldView(action, err):
		result = "conflict"
	default:
		result = "failed"
	}
	actions.WithLabelValues(action, result).Inc()
}
