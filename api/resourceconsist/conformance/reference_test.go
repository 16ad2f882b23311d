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

// wholeAdapter is the reference in the per-Pod form.
type wholeAdapter struct{ lb *simulated.LoadBalancer }

func (a *wholeAdapter) Name() string                       { return "reference" }
func (a *wholeAdapter) Selector(s service) labels.Selector { return api.ServiceSelector(s) }

func (a *wholeAdapter) Observe(ctx context.Context, s service, p pod) (api.Observation, error) {
	if len(addresses(p)) == 0 {
		return api.Observation{}, nil
	}
	members, err := a.lb.List(ctx, group(s), addresses(p)...)
	if err != nil {
		return api.Observation{}, err
	}
	serving := slices.ContainsFunc(members, func(m simulated.Member) bool { return m.Owner == owner && m.Weight > 0 })
	return api.Observation{Serving: serving}, nil
}

func (a *wholeAdapter) Register(ctx context.Context, s service, p pod) error {
	var members []simulated.Member
	for _, address := range addresses(p) {
		members = append(members, simulated.Member{ID: address, Address: address, Weight: 1, Owner: owner})
	}
	refused, err := a.lb.Put(ctx, group(s), members...)
	return outcomeOf(refused, err)
}

func (a *wholeAdapter) Deregister(ctx context.Context, s service, p pod) error {
	refused, err := a.lb.Remove(ctx, group(s), addresses(p)...)
	return outcomeOf(refused, err)
}

func outcomeOf(refused map[string]error, err error) error {
	if err != nil || len(refused) == 0 {
		return err
	}
	return api.MemberErrors(refused)
}

// wholeBackend is the reference in the bulk form. It parks members at weight 0 if keep is set, instead of removing them.
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

// observed is an adapter without what moves traffic; onlyReader is the same for the bulk form.
type observed struct{ api.Adapter[service] }

type looking struct{ *wholeAdapter }

func (l looking) Observe(ctx context.Context, s service, p pod) (api.Observation, error) {
	o, err := l.wholeAdapter.Observe(ctx, s, p)
	o.LookAgain = 1
	return o, err
}

type onlyReader struct {
	api.Reader[service, pod, state]
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
			member := simulated.Member{ID: "192.0.2.1", Address: "192.0.2.1", Weight: 3, Owner: "somebody else"}
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
	t.Run("per Pod", func(t *testing.T) {
		Run(t, func(testing.TB) Fixture[service] {
			lb := simulated.NewLoadBalancer()
			return Fixture[service]{Connect: func() api.Adapter[service] { return &wholeAdapter{lb} }, Provider: lbProvider(lb)}
		})
	})
	t.Run("per Pod, observing", func(t *testing.T) {
		Run(t, func(testing.TB) Fixture[service] {
			lb := simulated.NewLoadBalancer()
			return Fixture[service]{Connect: func() api.Adapter[service] { return observed{looking{&wholeAdapter{lb}}} }, Provider: moved(lb)}
		})
	})
	for name, keep := range map[string]bool{"in bulk": false, "in bulk, keeping members at weight 0": true} {
		t.Run(name, func(t *testing.T) {
			RunBulk(t, func(testing.TB) BulkFixture[service, pod, state] {
				lb := simulated.NewLoadBalancer()
				return BulkFixture[service, pod, state]{
					Connect:  func() api.Reader[service, pod, state] { return &wholeBackend{lb, keep} },
					Provider: lbProvider(lb),
				}
			})
		})
	}
	t.Run("in bulk, observing", func(t *testing.T) {
		RunBulk(t, func(testing.TB) BulkFixture[service, pod, state] {
			lb := simulated.NewLoadBalancer()
			return BulkFixture[service, pod, state]{
				Connect:  func() api.Reader[service, pod, state] { return onlyReader{&wholeBackend{lb, false}} },
				Provider: moved(lb),
			}
		})
	})
}

// pool is a backend whose employers are ConfigMaps and whose employees are Nodes.
type pool struct{ lb *simulated.LoadBalancer }

func (b pool) Name() string { return "reference-pool" }

func (b pool) Selector(*corev1.ConfigMap) labels.Selector {
	return labels.SelectorFromSet(labels.Set{Label: LabelValue})
}

func (b pool) Members(_ *corev1.ConfigMap, node *corev1.Node, serve bool) (map[string]state, error) {
	members := map[string]state{}
	for _, a := range node.Status.Addresses {
		if serve {
			members[a.Address] = state{a.Address, 1}
		}
	}
	return members, nil
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
	RunBulk(t, func(testing.TB) BulkFixture[*corev1.ConfigMap, *corev1.Node, state] {
		lb := simulated.NewLoadBalancer()
		return BulkFixture[*corev1.ConfigMap, *corev1.Node, state]{
			Connect: func() api.Reader[*corev1.ConfigMap, *corev1.Node, state] { return pool{lb} },
			Employee: func(p pod) *corev1.Node {
				node := &corev1.Node{ObjectMeta: *p.ObjectMeta.DeepCopy()}
				for _, a := range addresses(p) {
					node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
				}
				return node
			},
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
