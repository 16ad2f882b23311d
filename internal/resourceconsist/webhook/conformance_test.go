package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/conformance"
	"kusionstack.io/kuperator/api/resourceconsist/conformance/simulated"
)

// pools is an endpoint in front of a simulated load balancer, as docs/adapters/webhook.md asks of one.
type pools struct{ *simulated.LoadBalancer }

func (p pools) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q request
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	said, err := p.answer(r, q)
	switch {
	case errors.Is(err, simulated.ErrThrottled):
		http.Error(w, err.Error(), http.StatusTooManyRequests)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		_ = json.NewEncoder(w).Encode(said)
	}
}

func (p pools) answer(r *http.Request, q request) (map[string]any, error) {
	group := q.Employer.Namespace + "/" + q.Employer.Name
	if q.Action == actionApply {
		return p.apply(r, group, q)
	}
	ids := []string{}
	for _, m := range q.Members {
		ids = append(ids, m.ID)
	}
	found, err := p.List(r.Context(), group, ids...)
	held := map[string]simulated.Member{}
	for _, m := range found {
		held[m.ID] = m
		if len(q.Members) == 0 {
			ids = append(ids, m.ID)
		}
	}
	members := []map[string]any{}
	for _, id := range ids {
		m, in := held[id]
		members = append(members, map[string]any{
			"id": id, "addresses": State{Addresses: m.Address}.addresses(), "revision": m.Owner, "serve": in,
			"serving": m.Weight > 0,
		})
	}
	return map[string]any{"apiVersion": Version, "members": members}, err
}

// apply keeps a member's revision where the load balancer has its owner.
func (p pools) apply(r *http.Request, group string, q request) (map[string]any, error) {
	var put []simulated.Member
	var remove []string
	for _, m := range q.Members {
		if *m.Serve {
			put = append(put, simulated.Member{ID: m.ID, Address: joined(m.Addresses), Weight: 1, Owner: m.Revision})
		} else {
			remove = append(remove, m.ID)
		}
	}
	refused, err := p.Change(r.Context(), group, put, remove)
	failed := []map[string]any{}
	for id, why := range refused {
		failed = append(failed, map[string]any{"id": id, "message": why.Error()})
	}
	return map[string]any{"apiVersion": Version, "members": []any{}, "errors": failed}, err
}

func addressesOf(p *corev1.Pod) string {
	var all []string
	for _, ip := range p.Status.PodIPs {
		all = append(all, ip.IP)
	}
	return joined(all)
}

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t testing.TB) conformance.Fixture[*corev1.Service, State] {
		p := pools{simulated.NewLoadBalancer()}
		server := httptest.NewServer(p)
		t.Cleanup(server.Close)
		dir := t.TempDir()
		file := fmt.Sprintf("endpoints:\n- {name: pools, url: %q, namespaces: [\"*\"]}\n", server.URL)
		path := dir + "/endpoints.yaml"
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		return conformance.Fixture[*corev1.Service, State]{
			Connect: func() api.Adapter[*corev1.Service, State] {
				b, err := New(Options{Endpoints: path, Allow: []string{"127.0.0.0/8"}, QPS: 1}, nil)
				require.NoError(t, err)
				return b
			},
			Provider: conformance.Provider[*corev1.Service]{
				Employer: func(namespace, name string) *corev1.Service {
					s := conformance.Service(namespace, name)
					s.Annotations = map[string]string{EndpointAnnotation: "pools", ParametersAnnotation: `{"pool":"a"}`}
					return s
				},
				Serves: func(s *corev1.Service, pod *corev1.Pod) bool {
					return len(pod.Status.PodIPs) > 0 && p.Serves(client.ObjectKeyFromObject(s).String(), addressesOf(pod))
				},
				FailFor: func(pods ...*corev1.Pod) {
					var bad []string
					for _, pod := range pods {
						bad = append(bad, addressesOf(pod))
					}
					p.FailFor(bad...)
				},
				Fail: p.Fail, Throttle: p.Throttle, Delay: p.Delay, Hold: p.Hold, Calls: p.Calls,
			},
		}
	})
}
