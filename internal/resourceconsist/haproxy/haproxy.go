// Package haproxy is the adapter for HAProxy: it makes Pods servers of an HAProxy backend by the Runtime API, and takes
// them out again without cutting a session.
//
// A Service says in an annotation which backend its Pods belong to. Each Pod is a dynamic server of it ("add server",
// HAProxy 2.6 and later), named <owner>:<namespace>:<service>:<pod>:<hash>, in every instance. Servers of other names
// are never touched.
//
// A Pod leaves in steps: drain (no new sessions, except those of clients that stick to it), then maintenance (no
// sessions at all) once the last session has ended or the Service's limit has passed, in which case the sessions that
// are left are cut. It counts as serving until every instance has it in maintenance without a session. It stays there
// as long as it lives, so that coming back costs one command, and is removed when it is gone.
//
// An instance that does not answer makes its members unknown: no Pod leaves or joins. One that was restarted has lost
// its dynamic servers; the adapter notices by asking each instance for its process, and fills it again at once.
//
// Sessions are our own (session.go), not those of HAProxy's client library, which cannot tell an answer that was cut
// off from a whole one.
package haproxy

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/metric"
)

// Name is the adapter's name.
const Name = "haproxy"

// Server is what is set of one HAProxy server.
type Server struct {
	// Endpoint is the Pod's address and port.
	Endpoint netip.AddrPort
	// Weight is the server's, 1 to 256.
	Weight int
	// Out is true if HAProxy chooses the server for no new sessions.
	Out bool
}

// CallOptions are those for setup.BackendOf: HAProxy is near and answers in less than a millisecond.
func CallOptions() api.CallOptions {
	return api.CallOptions{QPS: 100, Burst: 100, Poll: 100 * time.Millisecond, MaxPoll: time.Second,
		MaxBackoff: 10 * time.Second, Resync: time.Minute}
}

// Adapter speaks to one or several HAProxy instances. Make one with New.
type Adapter struct {
	options   Options
	instances []*instance
	up        *prometheus.GaugeVec
}

var _ api.Mover[*corev1.Service, Server] = &Adapter{}

var upMetric = metric.Metric{
	Name: "kuperator_resourceconsist_haproxy_up", Kind: metric.Gauge, Unit: "1 or 0",
	Help:   "1 if the HAProxy instance answers and has all its desired servers, 0 otherwise.",
	Labels: []metric.Label{{Name: "haproxy", Values: "the instances that the flags name"}},
}

// Metrics are what the adapter publishes beside what every adapter does.
func Metrics() []metric.Metric { return []metric.Metric{upMetric} }

// New makes an adapter for validated options. A nil clock means the real one. It has to be started, with Start.
func New(options Options, clk clock.PassiveClock) (*Adapter, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	if clk == nil {
		clk = clock.RealClock{}
	}
	if options.ProbeInterval == 0 {
		options.ProbeInterval = DefaultOptions().ProbeInterval
	}
	a := &Adapter{options: options, up: upMetric.GaugeVec()}
	for _, runtime := range options.Runtimes {
		i, err := newInstance(runtime, options, clk)
		if err != nil {
			return nil, err
		}
		a.instances = append(a.instances, i)
	}
	return a, nil
}

// Name is part of api.Adapter.
func (a *Adapter) Name() string { return Name }

// Collector are the adapter's metrics.
func (a *Adapter) Collector() prometheus.Collector { return a.up }

// Selector is part of api.Adapter: Services labelled kusionstack.io/control=true that name a backend employ the Pods
// that they select.
func (a *Adapter) Selector(service *corev1.Service) labels.Selector {
	if _, ok := service.Annotations[BackendAnnotation]; !ok {
		return nil
	}
	return api.ServiceSelector(service)
}

// memberID names a server in an instance: "<backend>/<server>@<instance>". No name in HAProxy has an @ or a slash.
func memberID(path string, i *instance) string { return path + "@" + i.name }

// Members is part of api.Adapter: in every instance, a server for each of the Pod's addresses that the Service wants.
func (a *Adapter) Members(service *corev1.Service, pod *corev1.Pod, serve bool) (map[string]Server, error) {
	if _, ok := service.Annotations[BackendAnnotation]; !ok {
		return nil, nil // it takes no part any more: its members are those that Read finds
	}
	s, err := a.settingsOf(service)
	if err != nil {
		return nil, err
	}
	ips := addresses(pod, s.families)
	if len(ips) == 0 {
		return nil, nil
	}
	port, err := targetPort(s.port, pod)
	if err != nil {
		return nil, err
	}
	members := make(map[string]Server, len(ips)*len(a.instances))
	for family, address := range ips {
		for _, i := range a.instances {
			id := memberID(s.backend+"/"+a.serverName(service, pod, family), i)
			members[id] = Server{Endpoint: netip.AddrPortFrom(address, port), Weight: s.weight, Out: !serve}
		}
	}
	return members, nil
}

// Read is part of api.Adapter. All instances that are asked for have to answer.
func (a *Adapter) Read(ctx context.Context, service *corev1.Service, ids []string) ([]api.Held[Server], error) {
	wanted := make(map[string]map[string]bool, len(a.instances)) // by instance, the paths of its servers
	for _, id := range ids {
		path, name, _ := strings.Cut(id, "@")
		if wanted[name] == nil {
			wanted[name] = map[string]bool{}
		}
		wanted[name][path] = true
	}
	limit, _ := maxDrain(service, a.options.MaxDrain) // Members reports the error
	prefix := a.prefix(service)
	ours := func(path string) bool {
		_, name, _ := strings.Cut(path, "/")
		return strings.HasPrefix(name, prefix)
	}
	var mu sync.Mutex
	var held []api.Held[Server]
	errs := a.each(func(i *instance) error {
		pick, backends := ours, []string(nil)
		if len(ids) > 0 {
			asked := wanted[i.name]
			if len(asked) == 0 {
				return nil
			}
			pick, backends = func(path string) bool { return ours(path) && asked[path] }, backendsOf(maps.Keys(asked))
		}
		seen, err := i.read(ctx, backends, pick, limit)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for path, f := range seen {
			held = append(held, api.Held[Server]{ID: memberID(path, i), State: f.server(), Serving: !f.held() || f.sessions > 0})
		}
		return nil
	})
	if len(errs) > 0 {
		return nil, a.join(errs)
	}
	slices.SortFunc(held, func(x, y api.Held[Server]) int { return strings.Compare(x.ID, y.ID) })
	return held, nil
}

// Apply is part of api.Mover. The members in an instance that does not answer fail, those in others do not.
func (a *Adapter) Apply(ctx context.Context, service *corev1.Service, changes []api.Change[Server]) error {
	most, _ := maxDrain(service, a.options.MaxDrain) // Members reports the error
	prefix := a.prefix(service)
	desired := make(map[string]map[string]desiredServer, len(a.instances)) // by instance
	failed := api.MemberErrors{}
	for _, c := range changes {
		path, at, _ := strings.Cut(c.ID, "@")
		backend, name, _ := strings.Cut(path, "/")
		if !backendName.MatchString(backend) || !serverNames.MatchString(name) || !strings.HasPrefix(name, prefix) ||
			!c.Remove && !c.State.Endpoint.IsValid() {
			failed[c.ID] = fmt.Errorf("%s is no server of Service %s/%s", c.ID, service.Namespace, service.Name)
			continue
		}
		if desired[at] == nil {
			desired[at] = map[string]desiredServer{}
		}
		desired[at][path] = desiredServer{server: c.State, gone: c.Remove, maxDrain: most}
	}
	var mu sync.Mutex
	errs := a.each(func(i *instance) error {
		refused, err := i.apply(ctx, desired[i.name])
		mu.Lock()
		defer mu.Unlock()
		for path, err := range refused {
			failed[memberID(path, i)] = err
		}
		return err
	})
	if len(errs) > 0 && len(errs) == len(desired) && len(failed) == 0 {
		return a.join(errs)
	}
	for i, err := range errs {
		for path := range desired[i.name] {
			failed[memberID(path, i)] = err
		}
	}
	if len(failed) > 0 {
		return failed
	}
	return nil
}

// each calls f for all instances at the same time, and returns the errors of those that failed.
func (a *Adapter) each(f func(*instance) error) map[*instance]error {
	errs := map[*instance]error{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, i := range a.instances {
		wg.Go(func() {
			if err := f(i); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs[i] = fmt.Errorf("HAProxy %s: %w", i.name, err)
			}
		})
	}
	wg.Wait()
	return errs
}

// join puts the errors of instances in order: the same failure has the same text each time.
func (a *Adapter) join(errs map[*instance]error) error {
	ordered := make([]error, 0, len(errs))
	for _, i := range a.instances {
		ordered = append(ordered, errs[i])
	}
	return errors.Join(ordered...)
}

// backendsOf are the backends in the paths of servers, sorted; empty for none.
func backendsOf(paths iter.Seq[string]) []string {
	backends := []string{}
	for path := range paths {
		backend, _, _ := strings.Cut(path, "/")
		backends = append(backends, backend)
	}
	slices.Sort(backends)
	return slices.Compact(backends)
}
