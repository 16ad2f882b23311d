package asking

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"kusionstack.io/kuperator/internal/metric"
)

// outcome of a request.
type outcome string

const (
	answered outcome = "answered" // the server answered, whatever it said
	failed   outcome = "failed"   // the server could not be asked
	refused  outcome = "refused"  // the server was not asked: the rule, a Secret or a flag must change
)

var (
	ruleLabels = []metric.Label{
		{Name: "namespace", Values: "the rule's namespace, or other"},
		{Name: "rule", Values: "its name, of at most 1000 rules that were asked about; " +
			"the requests of further ones are other"},
	}
	requestsMetric = metric.Metric{
		Name: "kuperator_rule_webhook_requests_total", Kind: metric.Counter, Unit: "requests", PerObject: true,
		Help: "Requests to the servers of webhook rules, including polls, by result: " +
			"answered, failed (an error of the server or the network), refused (no request was sent).",
		Labels: append(ruleLabels[:2:2], metric.Label{Name: "result", Values: "answered, failed, refused"}),
	}
	ignoredMetric = metric.Metric{
		Name: "kuperator_rule_webhook_ignored_failures_total", Kind: metric.Counter, Unit: "Pods", PerObject: true,
		Help:   "Pods that passed a webhook rule although the request to its server failed, because failurePolicy is Ignore.",
		Labels: ruleLabels,
	}
	secondsMetric = metric.Metric{
		Name: "kuperator_rule_webhook_request_seconds", Kind: metric.Histogram, Unit: "seconds",
		Help:    "Time of requests to the servers of webhook rules.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
	}
	inFlightMetric = metric.Metric{
		Name: "kuperator_rule_webhook_requests_in_flight", Kind: metric.Gauge, Unit: "requests",
		Help: "Requests to the servers of webhook rules in flight.",
	}

	requests       = requestsMetric.CounterVec()
	ignored        = ignoredMetric.CounterVec()
	requestSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{Name: secondsMetric.Name, Help: secondsMetric.Help,
		Buckets: secondsMetric.Buckets})
	inFlight = prometheus.NewGauge(prometheus.GaugeOpts{Name: inFlightMetric.Name, Help: inFlightMetric.Help})
)

// Metrics are what Collectors publish.
func Metrics() []metric.Metric {
	return []metric.Metric{requestsMetric, ignoredMetric, secondsMetric, inFlightMetric}
}

// Collectors are to be registered once a process.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{requests, ignored, requestSeconds, inFlight}
}

// countRequest counts a request about a rule.
func countRequest(namespace, rule string, result outcome) {
	exported.publish(namespace, rule)
	namespace, rule = exported.labels(namespace, rule)
	requests.WithLabelValues(namespace, rule, string(result)).Inc()
}

// countIgnored counts Pods that passed although the webhook could not be asked.
func countIgnored(namespace, rule string, pods int) {
	exported.publish(namespace, rule)
	namespace, rule = exported.labels(namespace, rule)
	ignored.WithLabelValues(namespace, rule).Add(float64(pods))
}

// otherRules stands for rules beyond metric.Limit.
const otherRules = "other"

// exported are the rules with series of their own.
var exported = exportedRules{rules: map[[2]string]bool{}}

type exportedRules struct {
	mu    sync.Mutex
	rules map[[2]string]bool
}

// publish gives a rule its series, with every result at 0 so that queries see the first failure as an increase.
func (e *exportedRules) publish(namespace, rule string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := [2]string{namespace, rule}
	if e.rules[key] || len(e.rules) >= metric.Limit {
		return
	}
	e.rules[key] = true
	for _, result := range []outcome{answered, failed, refused} {
		requests.WithLabelValues(namespace, rule, string(result))
	}
	ignored.WithLabelValues(namespace, rule)
}

func (e *exportedRules) labels(namespace, rule string) (namespaceLabel, ruleLabel string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rules[[2]string{namespace, rule}] {
		return namespace, rule
	}
	return otherRules, otherRules
}

// unexport forgets a rule that is gone.
func unexport(namespace, rule string) {
	exported.mu.Lock()
	delete(exported.rules, [2]string{namespace, rule})
	exported.mu.Unlock()
	of := prometheus.Labels{"namespace": namespace, "rule": rule}
	requests.DeletePartialMatch(of)
	ignored.DeletePartialMatch(of)
}
