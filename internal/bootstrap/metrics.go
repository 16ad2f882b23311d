package bootstrap

import (
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/shard"
)

var (
	buildInfoMetric = metric.Metric{
		Name: "kuperator_build_info", Kind: metric.Gauge, Unit: "1",
		Help: "Always 1. The labels are the component, its version, and the Go version of the build.",
		Labels: []metric.Label{
			{Name: "component", Values: "the component's name"},
			{Name: "version", Values: "the component's version"},
			{Name: "go_version", Values: "the Go version"},
		},
	}
	apiWritesMetric = metric.Metric{
		Name: "kuperator_api_writes_total", Kind: metric.Counter, Unit: "requests",
		Help: "Writes to the API server, by resource, verb and result. Dry runs are not included.",
		Labels: []metric.Label{
			{Name: "resource", Values: "resources that the component writes, such as pods or pods/status"},
			{Name: "verb", Values: "create, update, patch, delete, deletecollection"},
			{Name: "result", Values: "done, conflict (the object had changed, or existed), gone, refused, throttled, " +
				"failed (an error of the API server or the network)"},
		},
	}
)

// Metrics are what every component publishes.
func Metrics() []metric.Metric {
	return slices.Concat([]metric.Metric{buildInfoMetric, apiWritesMetric, metric.LeftOut},
		freshness.Metrics(), shard.Metrics())
}

// registerMetrics adds the collectors of Metrics to a registry; a second time changes nothing.
func registerMetrics(registry prometheus.Registerer, component, componentVersion string) error {
	if err := registerBuildInfo(registry, component, componentVersion); err != nil {
		return err
	}
	return metric.Register(registry, append(freshness.Collectors(), apiWrites)...)
}

var apiWrites = apiWritesMetric.CounterVec()

// Results of a write. A query for one that has not happened finds 0 as soon as the resource was written at all.
const (
	writeDone      = "done"
	writeConflict  = "conflict"
	writeGone      = "gone"
	writeRefused   = "refused"
	writeThrottled = "throttled"
	writeFailed    = "failed"
)

var writeResults = []string{writeDone, writeConflict, writeGone, writeRefused, writeThrottled, writeFailed}

// countWrites makes every client of the configuration count what it writes, events and Leases too.
func countWrites(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &writeCounter{next: next} })
}

var requests = &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"),
	GrouplessAPIPrefixes: sets.NewString("api")}

type writeCounter struct {
	next  http.RoundTripper
	known sync.Map // resource and verb of which all results are published
}

// RoundTrip implements http.RoundTripper.
func (w *writeCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := w.next.RoundTrip(r)
	if r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions || isDryRun(r) {
		return response, err
	}
	info, infoErr := requests.NewRequestInfo(r)
	if infoErr != nil || !info.IsResourceRequest {
		return response, err
	}
	resource := info.Resource
	if info.Subresource != "" {
		resource += "/" + info.Subresource
	}
	key := [2]string{resource, info.Verb}
	if _, known := w.known.LoadOrStore(key, true); !known {
		for _, result := range writeResults {
			apiWrites.WithLabelValues(resource, info.Verb, result)
		}
	}
	apiWrites.WithLabelValues(resource, info.Verb, resultOf(response, err)).Inc()
	return response, err
}

// isDryRun reports whether a request changes nothing. Those that delete tell it in their bodies, in JSON or in
// protobuf.
func isDryRun(r *http.Request) bool {
	if r.URL.Query().Has("dryRun") {
		return true
	}
	if r.Method != http.MethodDelete || r.GetBody == nil {
		return false
	}
	body, err := r.GetBody()
	if err != nil {
		return false
	}
	defer func() { _ = body.Close() }()
	raw, err := io.ReadAll(body)
	if err != nil {
		return false
	}
	options, _, err := clientgoscheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		return false
	}
	deletion, isDeletion := options.(*metav1.DeleteOptions)
	return isDeletion && len(deletion.DryRun) > 0
}

// CloseIdleConnections passes on what http.Client asks for.
func (w *writeCounter) CloseIdleConnections() {
	if closer, ok := w.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

// WrappedRoundTripper lets client-go find the transport below.
func (w *writeCounter) WrappedRoundTripper() http.RoundTripper { return w.next }

func resultOf(response *http.Response, err error) string {
	switch {
	case err != nil || response.StatusCode >= http.StatusInternalServerError:
		return writeFailed
	case response.StatusCode == http.StatusConflict:
		return writeConflict
	case response.StatusCode == http.StatusNotFound, response.StatusCode == http.StatusGone:
		return writeGone
	case response.StatusCode == http.StatusTooManyRequests:
		return writeThrottled
	case response.StatusCode >= http.StatusBadRequest:
		return writeRefused
	}
	return writeDone
}
