package conformance

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/conformance/simulated"
)

const owner = "kuperator"

type (
	service = *corev1.Service
	pod     = *corev1.Pod
)

func group(s service) string { return client.ObjectKeyFromObject(s).String() }

func addresses(p pod) []string {
	var all []string
	for _, ip := range p.Status.PodIPs {
		all = append(all, ip.IP)
	}
	return all
}

func outcomeOf(refused map[string]error, err error) error {
	if err != nil || len(refused) == 0 {
		return err
	}
	return api.MemberErrors(refused)
}

// wholeBackend is the reference. It parks members at weight 0 if keep is set, instead of removing them.
type wholeBackend struct {
	lb   *simulated.LoadBalancer
	keep bool
}

type state struct {
	address string
	weight  int32
}

func (b *wholeBackend) Name() string                       { return "reference" }
func (b *wholeBackend) Selector(s service) labels.Selector { return api.ServiceSelector(s) }

func (b *wholeBackend) Members(_ service, p pod, serve bool) (map[string]state, error) {
	members := map[string]state{}
	for _, address := range addresses(p) {
		switch {
		case serve:
			members[address] = state{address, 1}
		case b.keep:
			members[address] = state{address, 0}
		}
	}
	return members, nil
}

func (b *wholeBackend) Read(ctx context.Context, s service, ids []string) ([]api.Held[state], error) {
	members, err := b.lb.List(ctx, group(s), ids...)
	var held []api.Held[state]
	for _, m := range members {
		if m.Owner == owner {
			held = append(held, api.Held[state]{ID: m.ID, State: state{m.Address, m.Weight}, Serving: m.Weight > 0})
		}
	}
	return held, err
}

func (b *wholeBackend) Apply(ctx context.Context, s service, changes []api.Change[state]) error {
	var puts []simulated.Member
	var removes []string
	for _, c := range changes {
		if c.Remove {
			removes = append(removes, c.ID)
			continue
		}
		puts = append(puts, simulated.Member{ID: c.ID, Address: c.State.address, Weight: c.State.weight, Owner: owner})
	}
	failed, err := b.lb.Change(ctx, group(s), puts, removes)
	return outcomeOf(failed, err)
}

// onlyReader is an adapter without what moves traffic.
type onlyReader struct {
	api.Adapter[service, state]
}

func lbProvider(lb *simulated.LoadBalancer) Provider[service] {
	return Provider[service]{
		Serves: func(s service, p pod) bool {
			return slices.ContainsFunc(addresses(p), func(a string) bool { return lb.Serves(group(s), a) })
		},
		Fail: lb.Fail, Throttle: lb.Throttle, Delay: lb.Delay, Hold: lb.Hold, Calls: lb.Calls,
		FailFor: func(pods ...pod) {
			var all []string
			for _, p := range pods {
				all = append(all, addresses(p)...)
			}
			lb.FailFor(all...)
		},
		Foreign: func(s service) func() bool {
			member := simulated.Member{ID: "192.0.2.1", Address: "192.0.2.1", Weight: 3, Owner: "another owner"}
			lb.Set(group(s), member)
			return func() bool { return lb.Has(group(s), member) }
		},
	}
}

// moved makes a Provider that moves traffic itself.
func moved(lb *simulated.LoadBalancer) Provider[service] {
	p := lbProvider(lb)
	p.Move = func(s service, which pod, on bool) {
		for _, a := range addresses(which) {
			m := simulated.Member{ID: a, Address: a, Owner: owner}
			if on {
				m.Weight = 1
			}
			lb.Set(group(s), m)
		}
	}
	return p
}

func TestTheReferenceConforms(t *testing.T) {
	for name, keep := range map[string]bool{"removing members": false, "keeping members at weight 0": true} {
		t.Run(name, func(t *testing.T) {
			Run(t, func(testing.TB) Fixture[service, state] {
				lb := simulated.NewLoadBalancer()
				return Fixture[service, state]{
					Connect:  func() api.Adapter[service, state] { return &wholeBackend{lb, keep} },
					Provider: lbProvider(lb),
				}
			})
		})
	}
	t.Run("observing", func(t *testing.T) {
		Run(t, func(testing.TB) Fixture[service, state] {
			lb := simulated.NewLoadBalancer()
			return Fixture[service, state]{
				Connect:  func() api.Adapter[service, state] { return onlyReader{&wholeBackend{lb, false}} },
				Provider: moved(lb),
			}
		})
	})
}

// pool is a backend whose employers are ConfigMaps.
type pool struct{ lb *simulated.LoadBalancer }

func (b pool) Name() string { return "reference-pool" }

func (b pool) Selector(*corev1.ConfigMap) labels.Selector {
	return labels.SelectorFromSet(labels.Set{Label: LabelValue})
}

func (b pool) Members(m *corev1.ConfigMap, p pod, serve bool) (map[string]state, error) {
	w, s := b.whole(m)
	return w.Members(s, p, serve)
}

// whole is the reference for an employer of the same name.
func (b pool) whole(m *corev1.ConfigMap) (*wholeBackend, service) {
	return &wholeBackend{lb: b.lb}, Service(m.Namespace, m.Name)
}

func (b pool) Read(ctx context.Context, m *corev1.ConfigMap, ids []string) ([]api.Held[state], error) {
	w, s := b.whole(m)
	return w.Read(ctx, s, ids)
}

func (b pool) Apply(ctx context.Context, m *corev1.ConfigMap, changes []api.Change[state]) error {
	w, s := b.whole(m)
	return w.Apply(ctx, s, changes)
}

func TestOtherKindsConform(t *testing.T) {
	Run(t, func(testing.TB) Fixture[*corev1.ConfigMap, state] {
		lb := simulated.NewLoadBalancer()
		return Fixture[*corev1.ConfigMap, state]{
			Connect: func() api.Adapter[*corev1.ConfigMap, state] { return pool{lb} },
			Provider: Provider[*corev1.ConfigMap]{
				Employer: func(namespace, name string) *corev1.ConfigMap {
					return &corev1.ConfigMap{ObjectMeta: Service(namespace, name).ObjectMeta}
				},
				Serves: func(m *corev1.ConfigMap, p pod) bool {
					return lbProvider(lb).Serves(Service(m.Namespace, m.Name), p)
				},
				Fail: lb.Fail, Throttle: lb.Throttle, Hold: lb.Hold,
			},
		}
	})
}
