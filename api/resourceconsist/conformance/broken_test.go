package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/conformance/simulated"
)

// recorder takes a check's failures instead of the test.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	skipped  bool
	cleanups []func()
}

func (r *recorder) fail(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, text)
}

func (r *recorder) Helper()                           {}
func (r *recorder) Log(...any)                        {}
func (r *recorder) Logf(string, ...any)               {}
func (r *recorder) Error(arguments ...any)            { r.fail(fmt.Sprint(arguments...)) }
func (r *recorder) Errorf(f string, arguments ...any) { r.fail(fmt.Sprintf(f, arguments...)) }
func (r *recorder) Fatal(arguments ...any)            { r.fail(fmt.Sprint(arguments...)); runtime.Goexit() }
func (r *recorder) Fatalf(f string, arguments ...any) {
	r.fail(fmt.Sprintf(f, arguments...))
	runtime.Goexit()
}
func (r *recorder) Skip(...any)          { r.skipped = true; runtime.Goexit() }
func (r *recorder) Skipf(string, ...any) { r.skipped = true; runtime.Goexit() }
func (r *recorder) Cleanup(f func())     { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0
}

// failuresOf runs the check of this name and returns what it says.
func failuresOf(t *testing.T, all []named, name string) []string {
	t.Helper()
	i := slices.IndexFunc(all, func(c named) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no check %q", name)
	}
	r := &recorder{TB: t}
	var group sync.WaitGroup
	group.Go(func() {
		defer func() {
			for _, f := range r.cleanups {
				f()
			}
		}()
		all[i].run(r)
	})
	group.Wait()
	if r.skipped {
		t.Fatalf("check %q was skipped", name)
	}
	return r.failures
}

// provisioned fails when it is asked to make what is there.
type provisioned struct {
	*bentBackend
	mu   sync.Mutex
	made map[string]bool
}

func (b *provisioned) Provision(_ context.Context, s service) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.made[group(s)] {
		return errors.New("it exists already")
	}
	b.made[group(s)] = true
	return nil
}

func (b *provisioned) Deprovision(_ context.Context, s service) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.made, group(s))
	return nil
}

var errExists = errors.New("the member exists already")

// impatient is for checks that are to fail. What does not fail takes no time, so this is plenty on a busy machine too.
func impatient(lb *simulated.LoadBalancer) Provider[service] {
	p := moved(lb)
	p.Patience = 5 * time.Second
	p.Sizes = []int{10, 100}
	return p
}

func failsWith(t *testing.T, all []named, check, says string) {
	t.Helper()
	failures := failuresOf(t, all, check)
	if !slices.ContainsFunc(failures, func(f string) bool { return strings.Contains(f, says) }) {
		t.Fatalf("check %q says %q; it has to say %q", check, failures, says)
	}
}

// bentBackend is the reference with some methods replaced.
type bentBackend struct {
	*wholeBackend
	name     func() string
	selector func(service) labels.Selector
	members  func(service, pod, bool) (map[string]state, error)
	read     func(context.Context, service, []string) ([]api.Held[state], error)
	apply    func(context.Context, service, []api.Change[state]) error
}

func (b *bentBackend) Name() string {
	if b.name != nil {
		return b.name()
	}
	return b.wholeBackend.Name()
}

func (b *bentBackend) Selector(s service) labels.Selector {
	if b.selector != nil {
		return b.selector(s)
	}
	return b.wholeBackend.Selector(s)
}

// forgive makes an empty answer of an error.
func (b *bentBackend) forgive(which error) {
	b.read = func(ctx context.Context, s service, ids []string) ([]api.Held[state], error) {
		held, err := b.wholeBackend.Read(ctx, s, ids)
		if errors.Is(err, which) {
			err = nil
		}
		return held, err
	}
}

// without is Read without some members.
func (b *bentBackend) without(
	which func(id string) bool,
) func(context.Context, service, []string) ([]api.Held[state], error) {
	return func(ctx context.Context, s service, ids []string) ([]api.Held[state], error) {
		held, err := b.wholeBackend.Read(ctx, s, ids)
		return slices.DeleteFunc(held, func(h api.Held[state]) bool { return which(h.ID) }), err
	}
}

func (b *bentBackend) Members(s service, p pod, serve bool) (map[string]state, error) {
	if b.members != nil {
		return b.members(s, p, serve)
	}
	return b.wholeBackend.Members(s, p, serve)
}

func (b *bentBackend) Read(ctx context.Context, s service, ids []string) ([]api.Held[state], error) {
	if b.read != nil {
		return b.read(ctx, s, ids)
	}
	return b.wholeBackend.Read(ctx, s, ids)
}

func (b *bentBackend) Apply(ctx context.Context, s service, changes []api.Change[state]) error {
	if b.apply != nil {
		return b.apply(ctx, s, changes)
	}
	return b.wholeBackend.Apply(ctx, s, changes)
}

func TestBrokenBackendsFailAtTheirCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		bend func(*bentBackend)
		// wrap replaces the whole adapter.
		wrap  func(*bentBackend) api.Adapter[service, state]
		check string
		says  string
	}{
		"it says so when it is throttled": {
			bend:  func(b *bentBackend) { b.forgive(simulated.ErrThrottled) },
			check: "a throttling provider delays and confuses nothing", says: "the framework would let it be operated now",
		},
		"it says so at random times": {
			bend:  func(b *bentBackend) { b.forgive(simulated.ErrThrottled) },
			check: "lives of Pods at random", says: "the framework would let it be operated now",
		},
		"it says so while a slow provider has not answered": {
			bend:  func(b *bentBackend) { b.forgive(context.DeadlineExceeded) },
			check: "a call that is given up returns", says: "the framework would let it be operated now",
		},
		"it waits for a slow provider for ever": {
			bend: func(b *bentBackend) {
				b.read = func(ctx context.Context, s service, ids []string) ([]api.Held[state], error) {
					return b.wholeBackend.Read(context.WithoutCancel(ctx), s, ids)
				}
			},
			check: "a call that is given up returns", says: "pass the context on",
		},
		"it removes members of others": {
			bend: func(b *bentBackend) {
				b.apply = func(ctx context.Context, s service, changes []api.Change[state]) error {
					if changes[0].Remove {
						members, err := b.lb.List(ctx, group(s))
						if err != nil {
							return err
						}
						for _, m := range members {
							if m.Owner != owner {
								_, _ = b.lb.Remove(ctx, group(s), m.ID)
							}
						}
					}
					return b.wholeBackend.Apply(ctx, s, changes)
				}
			},
			check: "members of others stay as they are",
			says:  "members that another system put into the backend were changed by Apply",
		},
		"it refuses what is there": {
			bend: func(b *bentBackend) {
				b.apply = func(ctx context.Context, s service, changes []api.Change[state]) error {
					if members, err := b.lb.List(ctx, group(s), changes[0].ID); err != nil || len(members) > 0 && !changes[0].Remove {
						return errors.Join(err, errExists)
					}
					return b.wholeBackend.Apply(ctx, s, changes)
				}
			},
			check: "registering and deregistering again change nothing",
			says:  "Apply fails for a Pod that is registered already",
		},
		"it adds a member each time": {
			bend: func(b *bentBackend) {
				var mu sync.Mutex
				made := 0
				b.apply = func(ctx context.Context, s service, changes []api.Change[state]) error {
					if changes[0].Remove {
						return b.wholeBackend.Apply(ctx, s, changes)
					}
					mu.Lock()
					defer mu.Unlock()
					var members []simulated.Member
					for _, c := range changes {
						made++
						id := c.ID
						if made > 2 {
							id = fmt.Sprintf("%s-%d", id, made)
						}
						members = append(members, simulated.Member{ID: id, Address: c.State.address, Weight: 1, Owner: owner})
					}
					_, err := b.lb.Put(ctx, group(s), members...)
					return err
				}
			},
			check: "registering and deregistering again change nothing", says: "must not add it again",
		},
		"it swallows errors": {
			bend: func(b *bentBackend) {
				b.apply = func(ctx context.Context, s service, changes []api.Change[state]) error {
					_ = b.wholeBackend.Apply(ctx, s, changes)
					return nil
				}
			},
			check: "a failing provider is an error and never no traffic", says: "Apply returned nil while every call",
		},
		"it changes Pods": {
			bend: func(b *bentBackend) {
				b.members = func(s service, p pod, serve bool) (map[string]state, error) {
					p.Labels["registered"] = "true"
					return b.wholeBackend.Members(s, p, serve)
				}
			},
			check: "arguments stay as they are", says: "Members changes what it is given",
		},
		"it believes that what it asked for is done": {
			bend: func(b *bentBackend) {
				var mu sync.Mutex
				gone := map[string]bool{}
				b.apply = func(ctx context.Context, s service, changes []api.Change[state]) error {
					err := b.wholeBackend.Apply(ctx, s, changes)
					mu.Lock()
					defer mu.Unlock()
					for _, c := range changes {
						gone[c.ID] = err == nil && c.Remove
					}
					return err
				}
				b.read = b.without(func(id string) bool {
					mu.Lock()
					defer mu.Unlock()
					return gone[id]
				})
			},
			check: "what is accepted counts when it is carried out", says: "the framework would let it be operated now",
		},
		"it knows only what it did itself": {
			bend: func(b *bentBackend) {
				var mu sync.Mutex
				on := map[string]bool{}
				b.apply = func(ctx context.Context, s service, changes []api.Change[state]) error {
					err := b.wholeBackend.Apply(ctx, s, changes)
					mu.Lock()
					defer mu.Unlock()
					for _, c := range changes {
						on[c.ID] = err == nil && !c.Remove
					}
					return err
				}
				b.read = b.without(func(id string) bool {
					mu.Lock()
					defer mu.Unlock()
					return !on[id]
				})
			},
			check: "a restarted adapter knows what its provider serves", says: "the framework would let it be operated now",
		},
		"its name is no label": {
			bend:  func(b *bentBackend) { b.name = func() string { return "My Adapter" } },
			check: "the name is a DNS label and stays the same", says: "has to be a DNS label",
		},
		"its name changes": {
			bend: func(b *bentBackend) {
				n := 0
				b.name = func() string { n++; return fmt.Sprintf("adapter-%d", n) }
			},
			check: "the name is a DNS label and stays the same", says: "return a constant",
		},
		"its selector changes": {
			bend: func(b *bentBackend) {
				n := 0
				b.selector = func(service) labels.Selector {
					n++
					return labels.SelectorFromSet(labels.Set{Label: LabelValue, "n": fmt.Sprint(n)})
				}
			},
			check: "the selector is a function of the employer", says: "has to select Pods labelled app=conformance",
		},
		"its selector asks the provider": {
			bend: func(b *bentBackend) {
				b.selector = func(s service) labels.Selector {
					_, _ = b.lb.List(context.Background(), group(s))
					return b.wholeBackend.Selector(s)
				}
			},
			check: "the selector is a function of the employer", says: "Selector calls the provider",
		},
		"every Service takes part": {
			bend: func(b *bentBackend) {
				b.selector = func(s service) labels.Selector { return labels.SelectorFromSet(s.Spec.Selector) }
			},
			check: "a Service that takes no part employs no Pod", says: "for a Service without the label",
		},
		"it mixes up namespaces": {
			bend: func(b *bentBackend) {
				b.read = func(ctx context.Context, s service, ids []string) ([]api.Held[state], error) {
					s = s.DeepCopy()
					s.Namespace = namespace
					return b.wholeBackend.Read(ctx, s, ids)
				}
			},
			check: "employers of the same Pods do not disturb each other", says: "until web serves web-0 after Apply",
		},
		"it mixes up employers": {
			bend: func(b *bentBackend) {
				b.apply = func(ctx context.Context, s service, changes []api.Change[state]) error {
					err := b.wholeBackend.Apply(ctx, s, changes)
					if changes[0].Remove {
						other := s.DeepCopy()
						other.Name = "admin"
						err = errors.Join(err, b.wholeBackend.Apply(ctx, other, changes))
					}
					return err
				}
			},
			check: "employers of the same Pods do not disturb each other",
			says:  "taking a Pod out of another employer stopped the traffic of Pod web-0 of shop/admin",
		},
		"it forgets the second address": {
			bend: func(b *bentBackend) {
				added := map[string]string{} // second addresses, by the first
				b.members = func(s service, p pod, serve bool) (map[string]state, error) {
					if p = p.DeepCopy(); len(p.Status.PodIPs) > 1 {
						added[p.Status.PodIPs[0].IP] = p.Status.PodIPs[1].IP
						p.Status.PodIPs = p.Status.PodIPs[:1]
					}
					return b.wholeBackend.Members(s, p, serve)
				}
				b.apply = func(ctx context.Context, s service, changes []api.Change[state]) error {
					for _, c := range changes {
						if second := added[c.ID]; second != "" && !c.Remove {
							_, _ = b.lb.Put(ctx, group(s), simulated.Member{ID: second, Address: second, Weight: 1, Owner: owner})
						}
					}
					return b.wholeBackend.Apply(ctx, s, changes)
				}
			},
			check: "a Pod of two addresses comes and goes as one", says: "the framework would let it be operated now",
		},
		"it never gives an address again": {
			bend: func(b *bentBackend) {
				had := map[string]string{} // Pods by address
				refused := map[string]bool{}
				b.members = func(s service, p pod, serve bool) (map[string]state, error) {
					for _, a := range addresses(p) {
						if had[a] == "" {
							had[a] = p.Name
						}
						refused[a] = had[a] != p.Name
					}
					return b.wholeBackend.Members(s, p, serve)
				}
				b.apply = func(ctx context.Context, s service, changes []api.Change[state]) error {
					if refused[changes[0].ID] {
						return nil
					}
					return b.wholeBackend.Apply(ctx, s, changes)
				}
			},
			check: "an address used again serves its new Pod", says: "until web serves web-1 after Apply",
		},
		"no address means a member of all": {
			bend: func(b *bentBackend) {
				b.members = func(s service, p pod, serve bool) (map[string]state, error) {
					if len(addresses(p)) == 0 {
						return map[string]state{address(0): {address(0), 1}}, nil
					}
					return b.wholeBackend.Members(s, p, serve)
				}
			},
			check: "a Pod without an address disturbs no other", says: "the Pod could never be deleted",
		},
		"it makes its resource twice": {
			wrap: func(b *bentBackend) api.Adapter[service, state] {
				return &provisioned{bentBackend: b, made: map[string]bool{}}
			},
			check: "the resource of an employer is made and removed, twice too", says: "a second Provision fails",
		},
		"it reads nothing when it cannot ask": {
			bend: func(b *bentBackend) {
				b.read = func(ctx context.Context, s service, ids []string) ([]api.Held[state], error) {
					held, _ := b.wholeBackend.Read(ctx, s, ids)
					return held, nil
				}
			},
			check: "a failing provider is an error and never no traffic", says: "Read says that Pod web-0 of web is not served",
		},
		"it swallows failures of members": {
			bend: func(b *bentBackend) {
				b.apply = func(ctx context.Context, s service, changes []api.Change[state]) error {
					err := b.wholeBackend.Apply(ctx, s, changes)
					if _, told := memberErrors(err); told {
						return nil
					}
					return err
				}
			},
			check: "failures of single Pods are told apart",
			says:  "Apply returned nil although the members of web-1, web-4 failed",
		},
		"it says that all failed": {
			bend: func(b *bentBackend) {
				b.apply = func(ctx context.Context, s service, changes []api.Change[state]) error {
					if err := b.wholeBackend.Apply(ctx, s, changes); err != nil {
						return errors.New(err.Error())
					}
					return nil
				}
			},
			check: "failures of single Pods are told apart", says: "which says that every change failed",
		},
		"it names members that did not fail": {
			bend: func(b *bentBackend) {
				b.apply = func(ctx context.Context, s service, changes []api.Change[state]) error {
					err := b.wholeBackend.Apply(ctx, s, changes)
					if _, told := memberErrors(err); !told {
						return err
					}
					all := api.MemberErrors{}
					for _, c := range changes {
						all[c.ID] = err
					}
					return all
				}
			},
			check: "failures of single Pods are told apart", says: "which did not fail",
		},
		"it stops at the first failure": {
			bend: func(b *bentBackend) {
				b.apply = func(ctx context.Context, s service, changes []api.Change[state]) error {
					for _, c := range changes {
						if err := b.wholeBackend.Apply(ctx, s, []api.Change[state]{c}); err != nil {
							return err
						}
					}
					return nil
				}
			},
			check: "failures of single Pods are told apart", says: "which failed: it would count as done",
		},
		"it returns members of others": {
			bend: func(b *bentBackend) {
				b.read = func(ctx context.Context, s service, ids []string) ([]api.Held[state], error) {
					members, err := b.lb.List(ctx, group(s), ids...)
					var held []api.Held[state]
					for _, m := range members {
						held = append(held, api.Held[state]{ID: m.ID, State: state{m.Address, m.Weight}, Serving: m.Weight > 0})
					}
					return held, err
				}
			},
			check: "members of others stay as they are", says: "the removal of what Read returned without ids",
		},
		"it returns the first page": {
			bend: func(b *bentBackend) {
				b.read = func(ctx context.Context, s service, ids []string) ([]api.Held[state], error) {
					held, err := b.wholeBackend.Read(ctx, s, ids)
					return held[:min(3, len(held))], err
				}
			},
			check: "members of a Pod that is gone are found and removed", says: "from all pages",
		},
		"it reads back something else": {
			bend: func(b *bentBackend) {
				b.read = func(ctx context.Context, s service, ids []string) ([]api.Held[state], error) {
					held, err := b.wholeBackend.Read(ctx, s, ids)
					for i := range held {
						held[i].State.weight *= 100
					}
					return held, err
				}
			},
			check: "a Pod is served once registered and not once deregistered",
			says:  "make State what the provider gives back unchanged",
		},
		"it returns a member twice": {
			bend: func(b *bentBackend) {
				b.read = func(ctx context.Context, s service, ids []string) ([]api.Held[state], error) {
					held, err := b.wholeBackend.Read(ctx, s, ids)
					return append(held, held...), err
				}
			},
			check: "a Pod is served once registered and not once deregistered", says: "must be unique in the backend",
		},
		"its members change": {
			bend: func(b *bentBackend) {
				n := int32(0)
				b.members = func(s service, p pod, serve bool) (map[string]state, error) {
					members, err := b.wholeBackend.Members(s, p, serve)
					for id, m := range members {
						n++
						m.weight = n
						members[id] = m
					}
					return members, err
				}
			},
			check: "members are a function of employer and Pod", says: "function of employer and Pod alone",
		},
		"its members are those of all Pods": {
			bend: func(b *bentBackend) {
				b.members = func(s service, p pod, serve bool) (map[string]state, error) {
					members, err := b.wholeBackend.Members(s, p, serve)
					for id, m := range members {
						delete(members, id)
						members[s.Name] = m
					}
					return members, err
				}
			},
			check: "members are a function of employer and Pod", says: "the same member ID",
		},
		"its members are the same without traffic": {
			bend: func(b *bentBackend) {
				b.members = func(s service, p pod, _ bool) (map[string]state, error) {
					return b.wholeBackend.Members(s, p, true)
				}
			},
			check: "members are a function of employer and Pod", says: "so it could never be taken out",
		},
		"it fails for a Pod without an address": {
			bend: func(b *bentBackend) {
				b.members = func(s service, p pod, serve bool) (map[string]state, error) {
					if len(addresses(p)) == 0 {
						return nil, errors.New("no address")
					}
					return b.wholeBackend.Members(s, p, serve)
				}
			},
			check: "a Pod without an address disturbs no other", says: "is no failure",
		},
		"it sorts the changes that it is given": {
			bend: func(b *bentBackend) {
				b.apply = func(ctx context.Context, s service, desired []api.Change[state]) error {
					slices.Reverse(desired)
					return b.wholeBackend.Apply(ctx, s, desired)
				}
			},
			check: "arguments stay as they are", says: "Apply changes the slice of changes",
		},
		"it asks for each member of the backend": {
			bend: func(b *bentBackend) {
				b.read = func(ctx context.Context, s service, ids []string) ([]api.Held[state], error) {
					members, err := b.lb.List(ctx, group(s))
					for _, m := range members {
						if _, failed := b.lb.List(ctx, group(s), m.ID); failed != nil {
							err = failed
						}
					}
					held, readErr := b.wholeBackend.Read(ctx, s, ids)
					return held, errors.Join(err, readErr)
				}
			},
			check: "calls for a Pod do not grow with the number of Pods", says: "ask only about the Pods that the call names",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := checksOf(func(testing.TB) Fixture[service, state] {
				lb := simulated.NewLoadBalancer()
				return Fixture[service, state]{Provider: impatient(lb), Connect: func() api.Adapter[service, state] {
					b := &bentBackend{wholeBackend: &wholeBackend{lb: lb}}
					if tc.wrap != nil {
						return tc.wrap(b)
					}
					tc.bend(b)
					return b
				}}
			})
			failsWith(t, all, tc.check, tc.says)
		})
	}
}

// TestFixturesThatLackSomethingSaySo: an author's first run is with half a fixture.
func TestFixturesThatLackSomethingSaySo(t *testing.T) {
	lb := simulated.NewLoadBalancer()
	connect := func() api.Adapter[service, state] { return &wholeBackend{lb: lb} }
	truth := lbProvider(lb).Serves
	for name, tc := range map[string]struct {
		fixture Fixture[service, state]
		says    string
	}{
		"no adapter": {Fixture[service, state]{Provider: Provider[service]{Serves: truth}}, "Connect is nil"},
		"no truth":   {Fixture[service, state]{Connect: connect}, "Provider.Serves is nil"},
		"nothing moves the traffic": {Fixture[service,
			state]{Connect: func() api.Adapter[service, state] { return onlyReader{connect()} },
			Provider: Provider[service]{Serves: truth}}, "Provider.Move is nil"},
	} {
		t.Run(name, func(t *testing.T) {
			all := checksOf(func(testing.TB) Fixture[service, state] { return tc.fixture })
			failsWith(t, all, all[0].name, tc.says)
		})
	}
	t.Run("truth is enough for most checks", func(t *testing.T) {
		Run(t, func(testing.TB) Fixture[service, state] {
			lb := simulated.NewLoadBalancer()
			return Fixture[service, state]{
				Connect:  func() api.Adapter[service, state] { return &wholeBackend{lb: lb} },
				Provider: Provider[service]{Serves: lbProvider(lb).Serves},
			}
		})
	})
}
