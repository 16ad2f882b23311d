package balancer_test

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"example.com/kuperator-adapter/balancer"
	"kusionstack.io/kuperator/api/resourceconsist/conformance"
	"kusionstack.io/kuperator/api/resourceconsist/conformance/simulated"
)

// simulatedAPI is the load balancer's API in front of one that lives in memory.
type simulatedAPI struct {
	*httptest.Server
	balancer *simulated.LoadBalancer
}

func startSimulated(t testing.TB) *simulatedAPI {
	s := &simulatedAPI{balancer: simulated.NewLoadBalancer()}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /groups/{group}", s.empty)
	mux.HandleFunc("DELETE /groups/{group}", s.empty)
	mux.HandleFunc("GET /groups/{group}/members", s.members)
	mux.HandleFunc("POST /groups/{group}/changes", s.changes)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// empty answers for groups, which the simulation has as soon as they are named.
func (s *simulatedAPI) empty(w http.ResponseWriter, r *http.Request) {
	_, err := s.balancer.List(r.Context(), r.PathValue("group"))
	reply(w, struct{}{}, err)
}

func (s *simulatedAPI) members(w http.ResponseWriter, r *http.Request) {
	found, err := s.balancer.List(r.Context(), r.PathValue("group"), r.URL.Query()["id"]...)
	members := []balancer.Member{}
	for _, m := range found {
		members = append(members, balancer.Member(m))
	}
	reply(w, members, err)
}

func (s *simulatedAPI) changes(w http.ResponseWriter, r *http.Request) {
	var changes balancer.Changes
	if err := json.NewDecoder(r.Body).Decode(&changes); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var puts []simulated.Member
	for _, m := range changes.Put {
		puts = append(puts, simulated.Member(m))
	}
	refused, err := s.balancer.Change(r.Context(), r.PathValue("group"), puts, changes.Remove)
	failed := map[string]string{}
	for id, why := range maps.All(refused) {
		failed[id] = why.Error()
	}
	reply(w, failed, err)
}

func reply(w http.ResponseWriter, answer any, err error) {
	switch {
	case errors.Is(err, simulated.ErrThrottled):
		http.Error(w, err.Error(), http.StatusTooManyRequests)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// provider tells the conformance kit what is true of the load balancer and how to disturb it.
func (s *simulatedAPI) provider() conformance.Provider[*corev1.Service] {
	group := func(service *corev1.Service) string { return service.Namespace + "." + service.Name }
	return conformance.Provider[*corev1.Service]{
		Serves: func(service *corev1.Service, pod *corev1.Pod) bool {
			for _, ip := range pod.Status.PodIPs {
				if s.balancer.Serves(group(service), ip.IP) {
					return true
				}
			}
			return false
		},
		FailFor: func(pods ...*corev1.Pod) {
			var bad []string
			for _, pod := range pods {
				for _, ip := range pod.Status.PodIPs {
					bad = append(bad, ip.IP)
				}
			}
			s.balancer.FailFor(bad...)
		},
		Foreign: func(service *corev1.Service) func() bool {
			member := simulated.Member{ID: "192.0.2.1", Address: "192.0.2.1", Port: 80, Weight: 1, Owner: "another owner"}
			s.balancer.Set(group(service), member)
			return func() bool { return s.balancer.Has(group(service), member) }
		},
		Fail:     s.balancer.Fail,
		Throttle: s.balancer.Throttle,
		Delay:    s.balancer.Delay,
		Hold:     s.balancer.Hold,
		Calls:    s.balancer.Calls,
	}
}
