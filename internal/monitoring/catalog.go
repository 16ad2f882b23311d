// Package monitoring has the reference page of metrics, the Grafana dashboards and the Prometheus alerts of the suite,
// as data. make generate writes the files (Files). No component imports it.
package monitoring

import (
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/collaset"
	"kusionstack.io/kuperator/internal/lifecycle"
	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/operationjob"
	"kusionstack.io/kuperator/internal/poddecoration"
	"kusionstack.io/kuperator/internal/podtransitionrule"
	"kusionstack.io/kuperator/internal/resourceconsist/builtin"
	"kusionstack.io/kuperator/internal/webhook"
)

// Program is a binary of the suite, with the metrics that it publishes in addition to the common ones.
type Program struct {
	Name    string
	Metrics []metric.Metric
}

// Programs are all binaries, in the order of the pages.
func Programs() []Program {
	return []Program{
		{collaset.Name, collaset.Metrics()},
		{podtransitionrule.Name, podtransitionrule.Metrics()},
		{lifecycle.Name, lifecycle.Metrics()},
		{"resourceconsist-controller", builtin.Metrics()},
		{operationjob.Name, operationjob.Metrics()},
		{poddecoration.Name, poddecoration.Metrics()},
		{webhook.Name, webhook.Metrics()},
	}
}

// Common are the metrics of the suite that every binary publishes.
func Common() []metric.Metric { return bootstrap.Metrics() }

// Libraries are the metrics of libraries, and of Prometheus itself, that dashboards and alerts use. The libraries
// publish more, and define their names and meanings.
func Libraries() []metric.Metric {
	controller := metric.Label{Name: "controller", Values: "the controllers of the binary"}
	queue := []metric.Label{controller, {Name: "name", Values: "as controller"},
		{Name: "priority", Values: "a few priorities"}}
	hook := metric.Label{Name: "webhook", Values: "the paths of the webhooks"}
	return []metric.Metric{
		{
			Name: "up", Kind: metric.Gauge, Unit: "1 or 0",
			Help:   "From Prometheus: 1 if the last scrape succeeded.",
			Labels: []metric.Label{{Name: "job", Values: "the binary"}, {Name: "instance", Values: "its address"}},
		},
		{
			Name: "leader_election_master_status", Kind: metric.Gauge, Unit: "1 or 0",
			Help:   "1 for the replica that holds the Lease. webhook-server has no Lease.",
			Labels: []metric.Label{{Name: "name", Values: "the name of the Lease, which is that of the component"}},
		},
		{
			Name: "controller_runtime_reconcile_total", Kind: metric.Counter, Unit: "reconciles",
			Help:   "Reconciles by result.",
			Labels: []metric.Label{controller, {Name: "result", Values: "success, error, requeue, requeue_after"}},
		},
		{
			Name: "controller_runtime_reconcile_errors_total", Kind: metric.Counter, Unit: "reconciles",
			Help:   "Reconciles that failed. They are retried with back-off.",
			Labels: []metric.Label{controller},
		},
		{
			Name: "controller_runtime_reconcile_time_seconds", Kind: metric.Histogram, Unit: "seconds",
			Help:   "Time of a reconcile.",
			Labels: []metric.Label{controller},
		},
		{
			Name: "controller_runtime_webhook_latency_seconds", Kind: metric.Histogram, Unit: "seconds",
			Help:   "Time to answer an admission request.",
			Labels: []metric.Label{hook},
		},
		{
			Name: "controller_runtime_webhook_requests_total", Kind: metric.Counter, Unit: "requests",
			Help:   "Admission requests by HTTP status.",
			Labels: []metric.Label{hook, {Name: "code", Values: "HTTP status codes"}},
		},
		{
			Name: "workqueue_depth", Kind: metric.Gauge, Unit: "objects",
			Help:   "Objects that wait for a worker.",
			Labels: queue,
		},
		{
			Name: "workqueue_queue_duration_seconds", Kind: metric.Histogram, Unit: "seconds",
			Help:   "How long objects wait for a worker.",
			Labels: queue[:2],
		},
		{
			Name: "workqueue_retries_total", Kind: metric.Counter, Unit: "objects",
			Help:   "Objects that are retried.",
			Labels: queue[:2],
		},
		{
			Name: "rest_client_requests_total", Kind: metric.Counter, Unit: "requests",
			Help: "Requests to the API server, including reads.",
			Labels: []metric.Label{
				{Name: "code", Values: "HTTP status codes, or <error>"},
				{Name: "method", Values: "HTTP methods"},
				{Name: "host", Values: "the API server"},
			},
		},
		{Name: "process_resident_memory_bytes", Kind: metric.Gauge, Unit: "bytes", Help: "Memory of the process."},
		{Name: "process_cpu_seconds_total", Kind: metric.Counter, Unit: "seconds", Help: "CPU time of the process."},
		{Name: "go_goroutines", Kind: metric.Gauge, Unit: "goroutines", Help: "Goroutines of the process."},
	}
}

// Known are all metrics that a query may use, by name.
func Known() map[string]metric.Metric {
	known := map[string]metric.Metric{}
	for _, m := range append(Common(), Libraries()...) {
		known[m.Name] = m
	}
	for _, p := range Programs() {
		for _, m := range p.Metrics {
			known[m.Name] = m
		}
	}
	return known
}
