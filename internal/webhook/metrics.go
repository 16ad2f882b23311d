package webhook

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// What became of a request to remove a Pod, as the metric has it.
const (
	resultAdmitted = "admitted"
	resultMarked   = "marked"
	resultRefused  = "refused"
	resultFailed   = "failed"
)

var removals = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "kuperator_webhook_removals_total",
	Help: `Requests to remove a Pod, by verb ("delete" or "eviction") and result: "admitted", "marked" for graceful deletion and refused, "refused" because it is not finished or a PodDisruptionBudget objects, "failed" because the API server could not be asked.`,
}, []string{"verb", "result"})

// registerMetrics adds the metrics to the manager's registry; a second time changes nothing.
func registerMetrics() error {
	err := metrics.Registry.Register(removals)
	if already := (prometheus.AlreadyRegisteredError{}); err != nil && !errors.As(err, &already) {
		return fmt.Errorf("registering a metric: %w", err)
	}
	return nil
}

// count counts the response and returns it.
func count(verb removalVerb, response admission.Response, marked bool) admission.Response {
	result := resultRefused
	switch {
	case response.Allowed:
		result = resultAdmitted
	case marked:
		result = resultMarked
	}
	removals.WithLabelValues(string(verb), result).Inc()
	return response
}
