package webhook

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"kusionstack.io/kuperator/internal/metric"
)

// What became of a request to remove a Pod, as the metric has it.
const (
	resultAdmitted = "admitted"
	resultMarked   = "marked"
	resultRefused  = "refused"
	resultFailed   = "failed"
)

// What became of any request.
const (
	decisionAllowed = "allowed"
	decisionPatched = "patched"
	decisionDenied  = "denied"
	decisionError   = "error"
)

var (
	removalsMetric = metric.Metric{
		Name: "kuperator_webhook_removals_total", Kind: metric.Counter, Unit: "requests",
		Help: `Requests to remove a Pod, by verb ("delete" or "eviction") and result: "admitted"; ` +
			`"marked" for graceful deletion and refused; ` +
			`"refused" because the graceful deletion is not finished or by a PodDisruptionBudget; ` +
			`"failed" because a request to the API server failed.`,
		Labels: []metric.Label{{Name: "verb", Values: "delete, eviction"},
			{Name: "result", Values: "admitted, marked, refused, failed"}},
	}
	decisionsMetric = metric.Metric{
		Name: "kuperator_webhook_decisions_total", Kind: metric.Counter, Unit: "requests",
		Help: "Admission requests by webhook and decision: allowed unchanged, patched, denied with a reason for the user, " +
			"error (no decision could be made).",
		Labels: []metric.Label{
			{Name: "webhook", Values: "the paths of the webhooks, such as /mutate-pods"},
			{Name: "decision", Values: "allowed, patched, denied, error"},
		},
	}
	certificateMetric = metric.Metric{
		Name: "kuperator_webhook_certificate_expiry_timestamp_seconds", Kind: metric.Gauge, Unit: "seconds",
		Help: "Expiry of the certificate that is served to the API server, in seconds since 1970. 0 without a certificate.",
	}

	turnedAwayMetric = metric.Metric{
		Name: "kuperator_webhook_turned_away_total", Kind: metric.Counter, Unit: "requests",
		Help: `Requests that were refused before their body was read, by reason: "path" without a webhook; ` +
			`"method" other than POST; "token" missing or wrong; content "type" other than JSON; ` +
			`"size" above that of any review; ` +
			`server "busy" with too many requests, so that the API server continued without an answer.`,
		Labels: []metric.Label{{Name: "reason", Values: "path, method, token, type, size, busy"}},
	}

	removals   = removalsMetric.CounterVec()
	decisions  = decisionsMetric.CounterVec()
	turnedAway = turnedAwayMetric.CounterVec()
)

// Metrics are what webhook-server publishes beside what every component does.
func Metrics() []metric.Metric {
	return []metric.Metric{removalsMetric, decisionsMetric, certificateMetric, turnedAwayMetric}
}

// registerMetrics adds the metrics to the manager's registry; a second time changes nothing. notAfter is when the
// serving certificate expires, zero without one. Queries find every series from the start.
func registerMetrics(notAfter func() time.Time) error {
	for _, path := range guarded {
		for _, decision := range []string{decisionAllowed, decisionPatched, decisionDenied, decisionError} {
			decisions.WithLabelValues(path, decision)
		}
	}
	for _, verb := range []removalVerb{removeByDelete, removeByEviction} {
		for _, result := range []string{resultAdmitted, resultMarked, resultRefused, resultFailed} {
			removals.WithLabelValues(string(verb), result)
		}
	}
	for _, reason := range []string{awayPath, awayMethod, awayToken, awayType, awaySize, awayBusy} {
		turnedAway.WithLabelValues(reason)
	}
	expiry := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: certificateMetric.Name, Help: certificateMetric.Help},
		func() float64 {
			if at := notAfter(); !at.IsZero() {
				return float64(at.Unix())
			}
			return 0
		})
	return metric.Register(metrics.Registry, removals, decisions, turnedAway, expiry)
}

// counted counts what a webhook decides.
func counted(path string, handle admission.HandlerFunc) admission.HandlerFunc {
	return func(ctx context.Context, request admission.Request) admission.Response {
		response := handle(ctx, request)
		decisions.WithLabelValues(path, decisionOf(response)).Inc()
		return response
	}
}

func decisionOf(response admission.Response) string {
	switch {
	case response.Allowed && len(response.Patches)+len(response.Patch) > 0:
		return decisionPatched
	case response.Allowed:
		return decisionAllowed
	case response.Result != nil &&
		(response.Result.Code >= http.StatusInternalServerError || response.Result.Code == http.StatusBadRequest):
		return decisionError
	}
	return decisionDenied
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
