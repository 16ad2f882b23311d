package bootstrap

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/metric"
)

func TestMetricsAreSound(t *testing.T) {
	for _, m := range Metrics() {
		assert.NoError(t, m.Check())
	}
}

type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestWritesAreCounted(t *testing.T) {
	apiWrites.Reset()
	var code int
	w := &writeCounter{next: answers(func(*http.Request) (*http.Response, error) {
		if code == 0 {
			return nil, errors.New("connection refused")
		}
		return &http.Response{StatusCode: code}, nil
	})}
	send := func(method, url string, answer int) {
		code = answer
		r := httptest.NewRequestWithContext(t.Context(), method, "https://api"+url, nil)
		_, _ = w.RoundTrip(r) //nolint:bodyclose // there is none
	}
	const pod = "/api/v1/namespaces/default/pods/a"
	send(http.MethodGet, pod, 200)
	send(http.MethodPatch, pod+"?dryRun=All", 200)
	send(http.MethodPatch, pod+"/status", 200)
	send(http.MethodPatch, pod+"/status", 409)
	send(http.MethodDelete, pod, 404)
	send(http.MethodDelete, pod, 422)
	send(http.MethodDelete, pod, 429)
	send(http.MethodPut, "/apis/apps.kusionstack.io/v1alpha1/namespaces/default/podtransitionrules/a/status", 500)
	send(http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/default/leases", 0)
	count := func(resource, verb, result string) float64 {
		return testutil.ToFloat64(apiWrites.WithLabelValues(resource, verb, result))
	}
	for _, want := range [][3]string{
		{"pods/status", "patch", "done"}, {"pods/status", "patch", "conflict"},
		{"pods", "delete", "gone"}, {"pods", "delete", "refused"}, {"pods", "delete", "throttled"},
		{"podtransitionrules/status", "update", "failed"}, {"leases", "create", "failed"},
	} {
		assert.InDelta(t, 1, count(want[0], want[1], want[2]), 0, strings.Join(want[:], " "))
	}
	assert.Equal(t, 4*len(writeResults), testutil.CollectAndCount(apiWrites),
		"four pairs of resource and verb, with every result; reads and dry runs are none")
	assert.InDelta(t, 0, count("pods", "delete", "done"), 0)
	require.Equal(t, metric.Counter, apiWritesMetric.Kind)
}

// TestDryRunsOfDeletionsAreNoWrites: they tell in their bodies what others tell in the URL.
func TestDryRunsOfDeletionsAreNoWrites(t *testing.T) {
	for _, contentType := range []string{"", runtime.ContentTypeJSON} { // the first is protobuf, for Pods
		apiWrites.Reset()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", runtime.ContentTypeJSON)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
		}))
		t.Cleanup(server.Close)
		cfg := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: contentType}}
		countWrites(cfg)
		mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
		mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
		c, err := client.New(cfg, client.Options{Mapper: mapper})
		require.NoError(t, err)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}
		for _, options := range [][]client.DeleteOption{{client.DryRunAll}, {}, {client.GracePeriodSeconds(0)}} {
			require.NoError(t, c.Delete(t.Context(), pod, options...))
		}
		assert.InDelta(t, 2, testutil.ToFloat64(apiWrites.WithLabelValues("pods", "delete", "done")), 0, contentType)
	}
}
