package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/conformance"
	"kusionstack.io/kuperator/internal/resourceconsist/webhook"
	"kusionstack.io/kuperator/internal/testkit/testca"
)

// TestConformance has the server pass the suite for adapters, through the webhook adapter, and with it the adapter.
func TestConformance(t *testing.T) {
	ca := testca.New(t)
	conformance.Run(t, func(t testing.TB) conformance.Fixture[*corev1.Service, webhook.State] {
		p := &provider{changed: make(chan struct{})}
		endpoints := filepath.Join(t.TempDir(), "endpoints.yaml")
		url := ca.Serve(t, false, p.ServeHTTP).URL
		require.NoError(t, os.WriteFile(endpoints,
			fmt.Appendf(nil, "endpoints: [{name: pools, url: '%s', namespaces: ['*'], caBundle: %q, timeout: 30s}]", url,
				ca.PEM()), 0o600))
		return conformance.Fixture[*corev1.Service, webhook.State]{
			Connect: func() api.Adapter[*corev1.Service, webhook.State] {
				backend, err := webhook.New(webhook.Options{Endpoints: endpoints, Allow: []string{"127.0.0.0/8"}}, nil)
				require.NoError(t, err)
				return backend
			},
			Provider: conformance.Provider[*corev1.Service]{
				Employer: func(namespace, name string) *corev1.Service {
					s := conformance.Service(namespace, name)
					s.UID = types.UID(namespace + "-" + name)
					s.Annotations = map[string]string{webhook.EndpointAnnotation: "pools",
						webhook.ParametersAnnotation: `{"pool":"a"}`}
					return s
				},
				Serves: p.serves, Fail: p.failing.Store, FailFor: p.failFor, Throttle: p.throttling.Store, Delay: p.delayBy,
				Hold:  p.hold,
				Calls: func() int { return int(p.calls.Load()) },
			},
		}
	})
}

// provider is the server, with what may go wrong around it.
type provider struct {
	server
	calls               atomic.Int64
	failing, throttling atomic.Bool

	mu      sync.Mutex
	bad     []string // members that fail
	holding bool
	kept    [][]byte // changes that were accepted and not carried out
	delay   time.Duration
	changed chan struct{} // closed when delay changes
}

func (p *provider) serves(employer *corev1.Service, pod *corev1.Pod) (found bool) {
	p.held.Range(func(key, value any) bool {
		m, _ := value.(member)
		for _, ip := range pod.Status.PodIPs {
			found = found || key.([2]string)[0] == string(employer.UID) && m.Serving && slices.Contains(m.Addresses, ip.IP)
		}
		return true
	})
	return found
}

func (p *provider) failFor(pods ...*corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bad = nil
	for _, pod := range pods {
		p.bad = append(p.bad, pod.Name+"/"+string(pod.UID))
	}
}

func (p *provider) delayBy(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *provider) hold(holding bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding = holding
	for _, body := range p.kept {
		p.server.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body)))
	}
	p.kept = nil
}

func (p *provider) wait(r *http.Request) {
	began := time.Now()
	for {
		p.mu.Lock()
		delay, changed := p.delay, p.changed
		p.mu.Unlock()
		left := delay - time.Since(began)
		if left <= 0 {
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-r.Context().Done():
			timer.Stop()
			return
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.calls.Add(1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	p.wait(r)
	switch {
	case r.Context().Err() != nil:
	case p.failing.Load():
		w.WriteHeader(http.StatusInternalServerError)
	case p.throttling.Load() && rand.IntN(2) == 0: // not every second call, which could always be the same one
		w.WriteHeader(http.StatusTooManyRequests)
	default:
		p.answer(w, body)
	}
}

// answer has the server answer, but for members that fail and changes that are held.
func (p *provider) answer(w http.ResponseWriter, body []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var q map[string]any
	if err := json.Unmarshal(body, &q); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if q["action"] != "apply" {
		p.server.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body)))
		return
	}
	errs, good := []any{}, []any{}
	members, _ := q["members"].([]any)
	for _, m := range members {
		if id := m.(map[string]any)["id"]; slices.Contains(p.bad, id.(string)) {
			errs = append(errs, map[string]any{"id": id, "message": "it is bad"})
		} else {
			good = append(good, m)
		}
	}
	q["members"] = good
	body, _ = json.Marshal(q)
	if p.holding {
		p.kept = append(p.kept, body)
	} else if len(good) > 0 {
		p.server.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body)))
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": version, "errors": errs})
}

func TestWhatIsNoRequestIsRefused(t *testing.T) {
	for _, body := range []string{"", "{}", `{"apiVersion":"v2"}`, "<html>"} {
		w := httptest.NewRecorder()
		new(server).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader([]byte(body))))
		require.Equal(t, http.StatusBadRequest, w.Code, body)
	}
}
