package bulk

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/conformance"
	"kusionstack.io/kuperator/api/resourceconsist/conformance/simulated"
	"kusionstack.io/kuperator/internal/resourceconsist/backend/backendtest"
)

// parking is a Backend on a simulated load balancer, with a member for each address. It keeps idle members at weight 0
// if parks is set.
type parking struct {
	lb    *simulated.LoadBalancer
	parks bool
}

const parkingOwner = "kuperator"

func parkingOf(s *corev1.Service) string { return client.ObjectKeyFromObject(s).String() }

func (p *parking) Name() string                               { return "parking" }
func (p *parking) Selector(s *corev1.Service) labels.Selector { return api.ServiceSelector(s) }

func (p *parking) Members(_ *corev1.Service, pod *corev1.Pod, serve bool) (map[string]int32, error) {
	members := map[string]int32{}
	for _, ip := range pod.Status.PodIPs {
		switch {
		case serve:
			members[ip.IP] = 1
		case p.parks:
			members[ip.IP] = 0
		}
	}
	return members, nil
}

func (p *parking) Read(ctx context.Context, s *corev1.Service, ids []string) ([]api.Held[int32], error) {
	members, err := p.lb.List(ctx, parkingOf(s), ids...)
	var held []api.Held[int32]
	for _, m := range members {
		if m.Owner == parkingOwner {
			held = append(held, api.Held[int32]{ID: m.ID, State: m.Weight, Serving: m.Weight > 0})
		}
	}
	return held, err
}

func (p *parking) Apply(ctx context.Context, s *corev1.Service, changes []api.Change[int32]) error {
	var puts []simulated.Member
	var removes []string
	for _, c := range changes {
		if c.Remove {
			removes = append(removes, c.ID)
		} else {
			puts = append(puts, simulated.Member{ID: c.ID, Address: c.ID, Weight: c.State, Owner: parkingOwner})
		}
	}
	refused, err := p.lb.Change(ctx, parkingOf(s), puts, removes)
	if err != nil || len(refused) == 0 {
		return err
	}
	return api.MemberErrors(refused)
}

// onlyReader moves nothing.
type onlyReader struct {
	api.Adapter[*corev1.Service, int32]
}

// TestTheEngineConforms has the conformance kit drive backends made of adapters, as the controller does.
func TestTheEngineConforms(t *testing.T) {
	options := api.CallOptions{BatchWindow: time.Millisecond, Poll: 2 * time.Millisecond, MaxPoll: 20 * time.Millisecond,
		MaxBackoff: 50 * time.Millisecond, QPS: -1}
	started := func(t testing.TB, lb *simulated.LoadBalancer, options api.CallOptions,
		adapter api.Adapter[*corev1.Service, int32]) conformance.Fixture[*corev1.Service, backendtest.Serving] {
		pods := &backendtest.Pods{}
		stop := func() {}
		t.Cleanup(func() { stop() })
		addresses := func(pods ...*corev1.Pod) (all []string) {
			for _, p := range pods {
				for _, ip := range p.Status.PodIPs {
					all = append(all, ip.IP)
				}
			}
			return all
		}
		return conformance.Fixture[*corev1.Service, backendtest.Serving]{
			Connect: func() api.Adapter[*corev1.Service, backendtest.Serving] {
				stop()
				b := New(adapter, options, nil)
				start := b.(manager.Runnable).Start
				ctx, cancel := context.WithCancel(context.Background())
				var running sync.WaitGroup
				running.Go(func() { _ = start(ctx) })
				stop = func() { cancel(); running.Wait() }
				return backendtest.Adapter(b, pods)
			},
			Provider: conformance.Provider[*corev1.Service]{
				Serves: func(s *corev1.Service, p *corev1.Pod) bool {
					return slices.ContainsFunc(addresses(p), func(a string) bool { return lb.Serves(parkingOf(s), a) })
				},
				Move: func(s *corev1.Service, p *corev1.Pod, on bool) {
					for _, a := range addresses(p) {
						m := simulated.Member{ID: a, Address: a, Owner: parkingOwner}
						if on {
							m.Weight = 1
						}
						lb.Set(parkingOf(s), m)
					}
				},
				// There is no FailFor: the failure of one member is told by the condition.
				Fail: lb.Fail, Throttle: lb.Throttle, Delay: lb.Delay, Hold: lb.Hold, Calls: lb.Calls,
				Foreign: func(s *corev1.Service) func() bool {
					m := simulated.Member{ID: "192.0.2.1", Address: "192.0.2.1", Weight: 3, Owner: "another owner"}
					lb.Set(parkingOf(s), m)
					return func() bool { return lb.Has(parkingOf(s), m) }
				},
			},
		}
	}
	for name, parks := range map[string]bool{"members are removed": false, "members are kept at weight 0": true} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, func(t testing.TB) conformance.Fixture[*corev1.Service, backendtest.Serving] {
				lb := simulated.NewLoadBalancer()
				return started(t, lb, options, &parking{lb, parks})
			})
		})
	}
	t.Run("another system moves", func(t *testing.T) {
		conformance.Run(t, func(t testing.TB) conformance.Fixture[*corev1.Service, backendtest.Serving] {
			lb := simulated.NewLoadBalancer()
			often := options
			often.Resync = 5 * time.Millisecond // the kit lets Pods at rest come and go
			return started(t, lb, often, onlyReader{&parking{lb: lb}})
		})
	})
}
