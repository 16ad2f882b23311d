package asking

import (
	"github.com/prometheus/client_golang/prometheus"
)

// outcome of a request.
type outcome string

const (
	answered outcome = "answered" // the server answered, whatever it said
	failed   outcome = "failed"   // the server could not be asked
	refused  outcome = "refused"  // the server was not asked: the rule, a Secret or a flag must change
)

var (
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kuperator_rule_webhook_requests_total",
		Help: "Requests to the servers of webhook rules, polls included, by result: answered, failed (by the server or the way to it), refused (nothing was sent).",
	}, []string{"namespace", "rule", "result"})
	ignored = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kuperator_rule_webhook_ignored_failures_total",
		Help: "Pods that passed a webhook rule although its server could not be asked, because failurePolicy is Ignore.",
	}, []string{"namespace", "rule"})
	requestSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kuperator_rule_webhook_request_seconds",
		Help:    "Time that requests to the servers of webhook rules take.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
	})
	inFlight = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kuperator_rule_webhook_requests_in_flight",
		Help: "Requests to the servers of webhook rules that are on their way.",
	})
)

// Metrics are to be registered once a process.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{requests, ignored, requestSeconds, inFlight}
}

// unexport forgets a rule that is gone.
func unexport(namespace, rule string) {
	of := prometheus.Labels{"namespace": namespace, "rule": rule}
	requests.DeletePartialMatch(of)
	ignored.DeletePartialMatch(of)
}
