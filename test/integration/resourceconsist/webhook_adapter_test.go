package resourceconsist_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/resourceconsist/bulk"
	"kusionstack.io/kuperator/internal/resourceconsist/endpointslice"
	"kusionstack.io/kuperator/internal/resourceconsist/webhook"
	"kusionstack.io/kuperator/internal/testkit/testca"
)

func TestWebhookAdapter(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	p := newPools(t)
	startManager(t, w.config, endpointslice.New(nil), p.adapter(t))
	// One after the other: they share the server.
	for _, story := range []struct {
		name string
		run  func(*testing.T, shop, *pools)
	}{
		{"a Pod is operated when the server has let go of it", sessionsEnd},
		{"a server that is down only delays", serverDown},
		{"certificates are renewed on both sides", certificatesRotate},
		{"other parameters reach the server", parametersChange},
		{"a deleted Service leaves nothing at the server", webhookServiceDeleted},
		{"a Service that names no endpoint waits for no server", noEndpoint},
	} {
		t.Run(story.name, func(t *testing.T) { story.run(t, w.shop(t), p) })
	}
}

// pools is a server of members at https that demands a client certificate.
type pools struct {
	*httptest.Server
	dir string

	mu      sync.Mutex
	trusted *x509.CertPool
	down    bool
	sticky  bool // members go on serving when they are to stop
	held    map[string]poolMember
}

type poolMember struct {
	ID        string   `json:"id"`
	Serve     bool     `json:"serve"`
	Addresses []string `json:"addresses"`
	Revision  string   `json:"revision"`
	Serving   bool     `json:"serving"`
	employer  string
	pool      string
}

func newPools(t *testing.T) *pools {
	t.Helper()
	p := &pools{dir: t.TempDir(), held: map[string]poolMember{}}
	ca := testca.New(t)
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "ca.crt"), ca.PEM(), 0o600))
	p.trust(ca)
	p.renew(t, ca)
	config := ca.Config(t, true)
	p.Server = httptest.NewUnstartedServer(p)
	p.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.TLS = config
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		c := config.Clone()
		c.ClientCAs, c.GetConfigForClient = p.trusted, nil
		return c, nil
	}
	p.StartTLS()
	t.Cleanup(p.Close)
	return p
}

// trust has clients show a certificate of this authority from now on.
func (p *pools) trust(ca testca.Authority) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trusted = x509.NewCertPool()
	p.trusted.AppendCertsFromPEM(ca.PEM())
}

// renew replaces the client certificate.
func (p *pools) renew(t *testing.T, ca testca.Authority) {
	t.Helper()
	certificate, key := ca.Issue(t)
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "tls.crt"), certificate, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "tls.key"), key, 0o600))
}

func (p *pools) adapter(t *testing.T) backend.Backend {
	t.Helper()
	file := filepath.Join(p.dir, "endpoints.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `endpoints:
- name: pools
  url: %s
  caFile: %[2]s/ca.crt
  certificateFile: %[2]s/tls.crt
  keyFile: %[2]s/tls.key
  timeout: 30s
  namespaces: ["*"]
`, p.URL, p.dir), 0o600))
	o := webhook.DefaultOptions()
	o.Endpoints, o.Allow = file, []string{"127.0.0.0/8"}
	require.NoError(t, o.Validate())
	backend, err := webhook.New(o, nil)
	require.NoError(t, err)
	options := o.Calls()
	options.QPS, options.MaxPoll, options.MaxBackoff = -1, 500*time.Millisecond, time.Second
	return bulk.New(backend, options, nil)
}

func (p *pools) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		APIVersion string `json:"apiVersion"`
		Action     string `json:"action"`
		Employer   struct {
			Namespace, Name string
			Parameters      map[string]string
		}
		Members []poolMember `json:"members"`
	}
	err := json.NewDecoder(r.Body).Decode(&q)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || p.down {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	of := q.Employer.Namespace + "/" + q.Employer.Name
	members := []poolMember{}
	for _, m := range q.Members {
		known, has := p.held[m.ID]
		if q.Action == "apply" {
			m.Serving = m.Serve || has && known.Serving && p.sticky
			m.employer, m.pool = of, q.Employer.Parameters["pool"]
			p.held[m.ID] = m
		} else if has {
			m = known
		}
		members = append(members, m)
	}
	for _, m := range p.held {
		if len(q.Members) == 0 && m.employer == of {
			members = append(members, m)
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": q.APIVersion, "members": members})
}

func (p *pools) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// endSessions has members that were to stop do so.
func (p *pools) endSessions() {
	p.set(func() {
		p.sticky = false
		for id, m := range p.held {
			m.Serving = m.Serve
			p.held[id] = m
		}
	})
}

// member is what the server holds of a Pod; the zero value if nothing.
func (p *pools) member(pod *corev1.Pod) poolMember {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[pod.Name+"/"+string(pod.UID)]
}

func pooled(service *corev1.Service) {
	service.Annotations = map[string]string{webhook.EndpointAnnotation: "pools",
		webhook.ParametersAnnotation: `{"pool":"a"}`}
}

func (s shop) pooled(t *testing.T, p *pools, name string) {
	t.Helper()
	s.createPod(t, name)
	s.serving(t, name, "web")
	pod := s.pod(t, name)
	m := p.member(pod)
	require.True(t, m.Serving, "it counts as serving when it does")
	require.Equal(t, []string{pod.Status.PodIP}, m.Addresses)
	require.Equal(t, "a", m.pool)
}

// waits waits until the Pod is out of service and only its finalizer stands in the way.
func (s shop) waits(t *testing.T, name string) {
	t.Helper()
	s.eventually(t, "Pod "+name+" waits", func() bool {
		p := s.pod(t, name)
		waits := podops.Explain(podops.Read(p), nil)
		return !podops.Read(p).Ready && len(waits) == 1 && waits[0].Reason == podops.WaitFinalizer
	})
}

// released waits for the operation, which must not have been allowed before this version, and has it finished.
func (s shop) released(t *testing.T, p *pools, name string, seen *history, after int) {
	t.Helper()
	s.allowed(t, name)
	s.eventually(t, "the record is complete", func() bool { return seen.removedAt() > 0 })
	require.Greater(t, seen.removedAt(), after, "the finalizer went while the server still sent traffic, or did not say")
	require.Equal(t, []bool{false}, seen.removals())
	require.False(t, p.member(s.pod(t, name)).Serving)
	s.finish(t, name)
	s.serving(t, name, "web")
	require.True(t, p.member(s.pod(t, name)).Serving)
}

func sessionsEnd(t *testing.T, s shop, p *pools) {
	s.createService(t, "web", pooled)
	s.pooled(t, p, "web-0")
	before, _ := s.writes(t, "web-0")
	p.set(func() { p.sticky = true })
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.eventually(t, "the server has been asked to stop", func() bool { return !p.member(s.pod(t, "web-0")).Serve })
	s.waits(t, "web-0")
	still := s.now(t)
	p.endSessions()
	s.released(t, p, "web-0", seen, still)
	done, _ := s.writes(t, "web-0")
	require.Equal(t, 2, done-before, "an operation costs two writes, with two adapters too")
}

func serverDown(t *testing.T, s shop, p *pools) {
	s.createService(t, "web", pooled)
	s.pooled(t, p, "web-0")
	s.pooled(t, p, "web-1")
	before, _ := s.writes(t, "web-1")
	p.set(func() { p.down = true })
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.createPod(t, "web-2")
	s.waits(t, "web-0")
	s.eventually(t, "Pod web-2 is Ready", func() bool { return podops.Read(s.pod(t, "web-2")).Ready })
	require.Empty(t, podops.ProtectionFinalizers(s.pod(t, "web-2").Finalizers), "it is not known to serve")
	still := s.now(t)
	p.set(func() { p.down = false })
	s.released(t, p, "web-0", seen, still)
	s.serving(t, "web-2", "web")
	done, _ := s.writes(t, "web-1")
	require.Equal(t, before, done, "a Pod at rest was written")
	require.True(t, p.member(s.pod(t, "web-1")).Serving)
}

func certificatesRotate(t *testing.T, s shop, p *pools) {
	s.createService(t, "web", pooled)
	s.pooled(t, p, "web-0")
	renewed := testca.New(t)
	p.trust(renewed)
	p.CloseClientConnections()
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.waits(t, "web-0")
	require.True(t, p.member(s.pod(t, "web-0")).Serving, "the old certificate is refused")
	still := s.now(t)
	p.renew(t, renewed)
	s.released(t, p, "web-0", seen, still)
}

func parametersChange(t *testing.T, s shop, p *pools) {
	s.createService(t, "web", pooled)
	s.pooled(t, p, "web-0")
	s.patchService(t, "web", `{"metadata":{"annotations":{"`+webhook.ParametersAnnotation+`":"{\"pool\":\"b\"}"}}}`)
	pod := s.pod(t, "web-0")
	s.eventually(t, "the member has moved", func() bool { m := p.member(pod); return m.pool == "b" && m.Serving })
	s.patchService(t, "web", `{"metadata":{"annotations":{"`+webhook.ParametersAnnotation+`":"pool=c"}}}`)
	s.patchService(t, "web", `{"metadata":{"annotations":{"`+webhook.ParametersAnnotation+`":"{\"pool\":\"c\"}"}}}`)
	s.eventually(t, "the member has moved", func() bool { m := p.member(pod); return m.pool == "c" && m.Serving })
	require.True(t, s.bound(t, s.pod(t, "web-0"), "web"), "it stayed in service")
}

func webhookServiceDeleted(t *testing.T, s shop, p *pools) {
	service := s.createService(t, "web", pooled)
	s.pooled(t, p, "web-0")
	require.NoError(t, s.client.Delete(t.Context(), service))
	s.serving(t, "web-0")
	require.False(t, p.member(s.pod(t, "web-0")).Serving)
	s.eventually(t, "the Service is gone", func() bool {
		return apierrors.IsNotFound(s.client.Get(context.Background(), client.ObjectKeyFromObject(service),
			&corev1.Service{}))
	})
}

func noEndpoint(t *testing.T, s shop, p *pools) {
	s.createService(t, "web")
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.outAndIn(t, seen)
	require.Empty(t, p.member(s.pod(t, "web-0")))
}
