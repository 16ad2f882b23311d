package resourceconsist_test

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"kusionstack.io/kuperator/api/podops"
)

// requests are the reads that a program has made of whole kinds.
type requests struct {
	mu   sync.Mutex
	seen []string
}

func (r *requests) saw(req *http.Request) {
	if req.Method != http.MethodGet {
		return
	}
	what := "list "
	if req.URL.Query().Get("watch") == "true" {
		what = "watch "
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, what+req.URL.Path[strings.LastIndexByte(req.URL.Path, '/')+1:])
}

func (r *requests) have(what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.seen, what)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestPodsAreWatchedFromTheFirstEmployerOn, and those of before are served.
func TestPodsAreWatchedFromTheFirstEmployerOn(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	s := w.shop(t)
	s.createPod(t, "web-0")
	s.createService(t, "foreign", func(service *corev1.Service) { service.Labels = nil })
	seen := &requests{}
	cfg := rest.CopyConfig(w.config)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			seen.saw(req)
			return next.RoundTrip(req)
		})
	})
	stop := startManager(t, cfg)
	s.eventually(t, "Services are watched, and Pods looked at",
		func() bool { return seen.have("watch services") && seen.have("list pods") })
	require.False(t, seen.have("watch pods") || seen.have("watch endpointslices"), "%v", seen.seen)

	s.createService(t, "web")
	s.serving(t, "web-0", "web")
	require.True(t, seen.have("watch pods") && seen.have("watch endpointslices"))
	s.begin(t, "web-0")
	s.allowed(t, "web-0")
	s.finish(t, "web-0")
	s.serving(t, "web-0", "web")

	stop()
	s.patchService(t, "web", `{"metadata":{"labels":{"kusionstack.io/control":null}}}`)
	startManager(t, cfg)
	s.eventually(t, "the Pod waits for the Service no more, though no Service takes part", func() bool {
		expected, err := podops.ExpectedFinalizers(s.pod(t, "web-0").Annotations)
		return err == nil && len(expected) == 0 && len(podops.ProtectionFinalizers(s.pod(t, "web-0").Finalizers)) == 0
	})
}
