package fault

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/resourceconsist/webhook"
	"kusionstack.io/kuperator/internal/testkit/observer"
)

// endpointName is what Services choose that have their traffic at the provider.
const endpointName = "pools"

// provider is a system outside the cluster that sends traffic to Pods, as docs/adapters/webhook.md asks of one. It
// knows when it did, and the API server's resourceVersions do not protect it: what it is told it does.
type provider struct {
	server *httptest.Server
	client client.Client

	mu sync.Mutex
	// pools are the members of employers, by the UID of the Service and their ID.
	pools map[string]map[string]poolMember
	// turns are when Pods came into traffic and left it, by their UID.
	turns  map[string][]turn
	judged map[string]bool // by UID of the Pod and time of the operation
	checks map[string]int  // by plan
	broken map[string][]observer.Violation
}

type turn struct {
	at      time.Time
	serving bool
}

type poolMember struct {
	ID  string `json:"id"`
	Pod struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
		UID       string `json:"uid"`
	} `json:"pod"`
	Addresses []string `json:"addresses"`
	Serve     bool     `json:"serve"`
	Revision  string   `json:"revision"`
	Serving   bool     `json:"serving"`
}

// poolMessage is a request, and the answer to it.
type poolMessage struct {
	APIVersion string `json:"apiVersion"`
	Action     string `json:"action,omitempty"`
	Employer   struct {
		UID string `json:"uid"`
	} `json:"employer"`
	Members []poolMember `json:"members"`
}

func startProvider(c client.Client) *provider {
	p := &provider{
		client: c, pools: map[string]map[string]poolMember{}, turns: map[string][]turn{},
		judged: map[string]bool{}, checks: map[string]int{}, broken: map[string][]observer.Violation{},
	}
	p.server = httptest.NewServer(p)
	return p
}

// flags have a resourceconsist-controller use it.
func (p *provider) flags(dir string) ([]string, error) {
	path := filepath.Join(dir, "endpoints.yaml")
	content := fmt.Sprintf("endpoints:\n- {name: %s, url: %q, namespaces: [\"*\"]}\n", endpointName, p.server.URL)
	return []string{
		"--adapters=endpointslice,webhook", "--webhook-endpoints=" + path, "--webhook-allow=127.0.0.0/8", "--webhook-qps=200",
	}, os.WriteFile(path, []byte(content), 0o600)
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q poolMessage
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.APIVersion != webhook.Version {
		http.Error(w, "no request of "+webhook.Version, http.StatusBadRequest)
		return
	}
	for _, m := range q.Members {
		if q.Action == "apply" && m.Serve {
			p.joins(r.Context(), m)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	answer := poolMessage{APIVersion: webhook.Version, Members: []poolMember{}}
	for _, m := range q.Members {
		if q.Action == "apply" {
			p.apply(q.Employer.UID, m)
		}
		m.Serve, m.Serving = false, false
		if known, ok := p.pools[q.Employer.UID][m.ID]; ok {
			m = known
		}
		answer.Members = append(answer.Members, m)
	}
	if len(q.Members) == 0 {
		for _, m := range p.pools[q.Employer.UID] {
			answer.Members = append(answer.Members, m)
		}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// apply needs p.mu.
func (p *provider) apply(employer string, m poolMember) {
	if p.pools[employer] == nil {
		p.pools[employer] = map[string]poolMember{}
	}
	if was := p.pools[employer][m.ID].Serving; was != m.Serve {
		p.turns[m.Pod.UID] = append(p.turns[m.Pod.UID], turn{time.Now(), m.Serve})
	}
	if m.Serving = m.Serve; m.Serve {
		p.pools[employer][m.ID] = m
	} else {
		delete(p.pools[employer], m.ID)
	}
}

// joins judges that a Pod is put into traffic: none whose operation goes on is.
func (p *provider) joins(ctx context.Context, m poolMember) {
	pod := &corev1.Pod{}
	err := p.client.Get(ctx, client.ObjectKey{Namespace: m.Pod.Namespace, Name: m.Pod.Name}, pod)
	if err != nil || string(pod.UID) != m.Pod.UID {
		return // it has gone meanwhile
	}
	wrong := ""
	if since := operating(pod); len(since) > 0 {
		wrong = fmt.Sprintf("is put into the provider's traffic while it is operated, since %s", strings.Join(since, ", "))
	}
	p.found(pod, wrong)
}

// sees judges a Pod that is operated: it was in no traffic when that began.
func (p *provider) sees(pod *corev1.Pod) {
	for _, value := range operating(pod) {
		p.mu.Lock()
		at := string(pod.UID) + " " + value
		first := !p.judged[at]
		p.judged[at] = true
		serving := false
		begun, ok := podops.TimeOf(value)
		for _, t := range p.turns[string(pod.UID)] {
			if ok && t.at.Before(begun) {
				serving = t.serving
			}
		}
		p.mu.Unlock()
		switch {
		case first && serving:
			p.found(pod, fmt.Sprintf("is operated, since %s, and was in the provider's traffic then", value))
		case first:
			p.found(pod, "")
		}
	}
}

// operating are the times since when the operations on a Pod may be carried out.
func operating(pod *corev1.Pod) []string {
	var values []string
	for _, key := range sortedKeys(pod.Labels) {
		if strings.HasPrefix(key, podops.OperatePrefix+"/") {
			values = append(values, pod.Labels[key])
		}
	}
	return values
}

// found counts a check, and keeps what was wrong.
func (p *provider) found(pod *corev1.Pod, wrong string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	plan := prefixOf(pod.Name)
	p.checks[plan]++
	if wrong != "" {
		p.broken[plan] = append(p.broken[plan], observer.Violation{
			Invariant: observer.Traffic, Time: time.Now(), Object: "Pod " + client.ObjectKeyFromObject(pod).String(),
			Message: wrong,
		})
	}
}

// verdict is what was found about a plan.
func (p *provider) verdict(plan string) (checks int, violations []observer.Violation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checks[plan], slices.Clone(p.broken[plan])
}

// members are the Pods of a plan that are in traffic.
func (p *provider) members(plan string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, pool := range p.pools {
		for _, m := range pool {
			if prefixOf(m.Pod.Name) == plan {
				n++
			}
		}
	}
	return n
}

// pooledService gives the Pods traffic at the provider.
func pooledService(p *play) error {
	service := p.service("web")
	service.Annotations = map[string]string{webhook.EndpointAnnotation: endpointName}
	return p.create(service)
}

// pooled waits until n Pods are in the provider's traffic.
func pooled(n int) func(*play) error {
	return func(p *play) error {
		return p.await("the provider to have the Pods", func(*state) error {
			if have := p.plane.provider.members(p.prefix); have != n {
				return fmt.Errorf("it has %d, and not %d", have, n)
			}
			return nil
		})
	}
}
