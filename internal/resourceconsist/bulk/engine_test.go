package bulk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
)

// balancer is a Backend in memory whose members are Pods' addresses.
type balancer struct {
	mu       sync.Mutex
	provider *provider
	// latency is how long a call takes for an employer.
	latency map[string]time.Duration
	// down fails all calls, refuse the changes of these members.
	down error
	// fails are the errors of all calls for an employer.
	fails   map[string]error
	refuse  map[string]error
	reads   int
	applies [][]api.Change[any]
}

func newBalancer() *balancer {
	return &balancer{provider: newProvider(), latency: map[string]time.Duration{}, fails: map[string]error{},
		refuse: map[string]error{}}
}

func (b *balancer) Name() string { return "balancer" }
func (b *balancer) Selector(service *corev1.Service) labels.Selector {
	return api.ServiceSelector(service)
}

func (b *balancer) Members(_ *corev1.Service, pod *corev1.Pod, serve bool) (map[string]any, error) {
	if !serve || pod.Status.PodIP == "" {
		return nil, nil
	}
	return map[string]any{pod.Status.PodIP: 1}, nil
}

func (b *balancer) wait(ctx context.Context, service *corev1.Service) error {
	b.mu.Lock()
	latency := b.latency[service.Name]
	b.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(latency):
		return nil
	}
}

// change changes how the provider behaves.
func (b *balancer) change(how func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	how()
}

func (b *balancer) Read(ctx context.Context, service *corev1.Service, ids []string) ([]api.Held[any], error) {
	err := b.wait(ctx, service)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads++
	if err = errors.Join(err, b.down, b.fails[service.Name]); err != nil {
		return nil, err
	}
	return b.provider.read(ids), nil
}

func (b *balancer) Apply(ctx context.Context, service *corev1.Service, changes []api.Change[any]) error {
	err := b.wait(ctx, service)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.applies = append(b.applies, changes)
	if err = errors.Join(err, b.down, b.fails[service.Name]); err != nil {
		return err
	}
	partial := api.MemberErrors{}
	for _, c := range changes {
		if refused := b.refuse[c.ID]; refused != nil {
			partial[c.ID] = refused
			continue
		}
		b.provider.accept(c)
		b.provider.settle(c.ID)
	}
	if len(partial) > 0 {
		return partial
	}
	return nil
}

func (b *balancer) calls() (reads, applies int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reads, len(b.applies)
}

func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name),
			Labels: map[string]string{appsv1alpha1.ControlLabel: "true"}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name}},
	}
}

func podOf(service string, i int) *corev1.Pod {
	name := fmt.Sprintf("%s-%d", service, i)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name),
			Labels: map[string]string{"app": service, appsv1alpha1.ControlLabel: "true"}},
		Spec: corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}},
		Status: corev1.PodStatus{PodIP: name, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue},
			{Type: podops.ServiceReadyCondition, Status: corev1.ConditionTrue},
		}},
	}
}

func turn(pod *corev1.Pod, up bool) {
	status := corev1.ConditionFalse
	if up {
		status = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status},
		{Type: podops.ServiceReadyCondition, Status: status}}
}

// desk plays the controller for some Pods: it observes those of whom there is news, and does what core would.
type desk struct {
	t      *testing.T
	moving mover
	news   chan types.NamespacedName
	pods   map[string]*corev1.Pod
	owner  map[string]*corev1.Service
}

// open starts an engine in a bubble of synctest, where time passes when all wait.
func open(t *testing.T, backend *balancer, o api.CallOptions) *desk {
	t.Helper()
	d := &desk{t: t, moving: New[*corev1.Service, any](backend, o, nil).(mover),
		news: make(chan types.NamespacedName, 100_000), pods: map[string]*corev1.Pod{}, owner: map[string]*corev1.Service{}}
	require.NoError(t, d.moving.err)
	d.moving.changed = func(pod types.NamespacedName) { d.news <- pod }
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = d.moving.Start(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return d
}

func (d *desk) add(s *corev1.Service, pods ...*corev1.Pod) {
	for _, p := range pods {
		d.pods[p.Name], d.owner[p.Name] = p, s
		d.reconcile(p)
	}
}

func (d *desk) reconcile(pod *corev1.Pod) {
	s := d.owner[pod.Name]
	o := d.moving.Observe(s, pod)
	if o.Unknown {
		return
	}
	held := len(pod.Finalizers) > 0
	switch view := podops.Read(pod); {
	case podops.MustLeave(view) && o.Serving:
		d.moving.Deregister(s, pod)
	case podops.MustLeave(view):
		pod.Finalizers = nil
	case podops.MayJoin(view) && !o.Serving:
		d.moving.Register(s, pod)
	case podops.MayJoin(view) && !held:
		pod.Finalizers = []string{api.Finalizer(s.Name)}
	}
}

// until handles news until it holds, at most for this long.
func (d *desk) until(what string, patience time.Duration, holds func() bool) {
	d.t.Helper()
	limit := time.After(patience)
	for !holds() {
		select {
		case name := <-d.news:
			d.reconcile(d.pods[name.Name])
		case <-limit:
			require.Fail(d.t, "waited in vain", what)
		}
	}
}

// during handles news for this long.
func (d *desk) during(long time.Duration) {
	end := time.After(long)
	for {
		select {
		case name := <-d.news:
			d.reconcile(d.pods[name.Name])
		case <-end:
			return
		}
	}
}

func (d *desk) held(service string) (n int) {
	for _, p := range d.pods {
		if d.owner[p.Name].Name == service {
			n += len(p.Finalizers)
		}
	}
	return n
}

func TestPodsGoInAndOutInFewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalancer()
		d := open(t, b, api.CallOptions{})
		s := service("web")
		const pods = 90
		for i := range pods {
			d.add(s, podOf("web", i))
		}
		d.until("all joined", time.Minute, func() bool { return d.held("web") == pods })
		reads, applies := b.calls()
		require.LessOrEqual(t, reads, 3)
		require.Equal(t, 1, applies)

		d.during(5 * time.Minute)
		r, a := b.calls()
		require.Equal(t, []int{reads, applies}, []int{r, a}, "calls at rest")

		turn(d.pods["web-7"], false)
		d.reconcile(d.pods["web-7"])
		d.until("it left", time.Minute, func() bool { return d.held("web") == pods-1 })
		r, a = b.calls()
		require.Equal(t, []int{reads + 1, applies + 1}, []int{r, a}, "one change and one reading")
	})
}

func TestASlowProviderHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalancer()
		b.latency["slow"] = 30 * time.Second
		d := open(t, b, api.CallOptions{Timeout: time.Minute})
		d.add(service("slow"), podOf("slow", 0))
		d.add(service("web"), podOf("web", 0))
		d.until("the quick one joined", 2*time.Second, func() bool { return d.held("web") == 1 })
		require.Zero(t, d.held("slow"))
		d.until("the slow one joined", 5*time.Minute, func() bool { return d.held("slow") == 1 })
	})
}

// TestManySlowEmployersHoldUpNoOther: more than may be worked on at a time, at the start and for good.
func TestManySlowEmployersHoldUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalancer()
		d := open(t, b, api.CallOptions{Timeout: 50 * time.Second, Concurrency: 3, QPS: -1})
		const slow = 15
		for i := range slow {
			name := fmt.Sprintf("slow-%d", i)
			b.change(func() { b.latency[name] = time.Minute }) // no call ever ends in time
			d.add(service(name), podOf(name, 0))
		}
		d.add(service("web"), podOf("web", 0))
		// Each of the others takes a place for a second, once.
		d.until("the quick one joined", (slow/3+2)*time.Second, func() bool { return d.held("web") == 1 })
		d.during(20 * time.Minute)
		for range 20 { // at any moment
			d.during(7 * time.Second)
			for _, up := range []bool{false, true} {
				turn(d.pods["web-0"], up)
				d.reconcile(d.pods["web-0"])
				d.until("the quick one follows", 1500*time.Millisecond, func() bool { return d.held("web") == 1 == up })
			}
		}
		for i := range slow { // they are not forgotten
			b.change(func() { b.latency[fmt.Sprintf("slow-%d", i)] = 2 * time.Second })
		}
		d.until("the slow ones joined", 10*time.Minute, func() bool {
			joined := 0
			for i := range slow {
				joined += d.held(fmt.Sprintf("slow-%d", i))
			}
			return joined == slow
		})
	})
}

// TestManyFailingEmployersHoldUpNoOther: their retries want more calls than may be made.
func TestManyFailingEmployersHoldUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalancer()
		d := open(t, b, api.CallOptions{MaxPoll: time.Second, MaxBackoff: time.Second, QPS: 10, Burst: 10})
		const failing = 50
		for i := range failing {
			name := fmt.Sprintf("bad-%d", i)
			b.change(func() { b.fails[name] = errors.New("no such balancer") })
			d.add(service(name), podOf(name, 0))
		}
		d.during(time.Minute)
		d.add(service("web"), podOf("web", 0))
		d.until("the other joined", 3*time.Second, func() bool { return d.held("web") == 1 })
		b.change(func() { clear(b.fails) })
		d.until("they joined when they could", 10*time.Minute, func() bool { return d.held("bad-0")+d.held("bad-49") == 2 })
	})
}

func TestAFailingProviderLetsNoPodLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalancer()
		d := open(t, b, api.CallOptions{})
		var reasons []string
		d.moving.report = func(_ types.NamespacedName, reason, _ string) { reasons = append(reasons, reason) }
		s := service("web")
		d.add(s, podOf("web", 0), podOf("web", 1))
		d.until("joined", time.Minute, func() bool { return d.held("web") == 2 })

		b.mu.Lock()
		b.down = errors.New("no route")
		b.mu.Unlock()
		turn(d.pods["web-0"], false)
		d.reconcile(d.pods["web-0"])
		_, before := b.calls()
		d.during(10 * time.Minute)
		require.Equal(t, 2, d.held("web"))
		_, after := b.calls()
		require.Less(t, after-before, 25, "the delay grows up to a minute")
		b.mu.Lock()
		b.down = nil
		b.mu.Unlock()
		d.until("left after recovery", 3*time.Minute, func() bool { return d.held("web") == 1 })
		d.during(time.Minute)
		require.Equal(t, []string{api.ConditionReasonInSync, api.ConditionReasonBackendFailed, api.ConditionReasonInSync},
			slices.Compact(slices.Clone(reasons)))
		require.Less(t, len(reasons), 8, "told once per change and not per retry")
	})
}

func TestMembersThatFailAreTriedAgainAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalancer()
		b.refuse["web-1"] = errors.New("quota")
		d := open(t, b, api.CallOptions{})
		s := service("web")
		d.add(s, podOf("web", 0), podOf("web", 1), podOf("web", 2))
		d.until("the others joined", time.Minute, func() bool { return d.held("web") == 2 })
		d.during(time.Minute)
		b.mu.Lock()
		require.Len(t, b.applies[0], 3)
		for _, changes := range b.applies[1:] {
			require.Equal(t, []api.Change[any]{{ID: "web-1", State: 1}}, changes)
		}
		delete(b.refuse, "web-1")
		b.mu.Unlock()
		d.until("all joined", 3*time.Minute, func() bool { return d.held("web") == 3 })
	})
}

func TestAPodThatIsGoneIsTakenOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalancer()
		d := open(t, b, api.CallOptions{})
		s := service("web")
		d.add(s, podOf("web", 0), podOf("web", 1))
		d.until("joined", time.Minute, func() bool { return d.held("web") == 2 })
		d.moving.Forget(client.ObjectKeyFromObject(d.pods["web-0"]))
		delete(d.pods, "web-0")
		d.during(time.Second)
		b.mu.Lock()
		defer b.mu.Unlock()
		require.NotContains(t, b.provider.actual, "web-0")
		require.Contains(t, b.provider.actual, "web-1")
	})
}

// TestOneChangeCostsTheSameCallsInALargeGroup compares what one Pod's way out and back costs among few and many.
func TestOneChangeCostsTheSameCallsInALargeGroup(t *testing.T) {
	cost := map[int][]int{}
	for _, pods := range []int{100, 5000} {
		synctest.Test(t, func(t *testing.T) {
			b := newBalancer()
			b.latency["web"] = 100 * time.Millisecond
			d := open(t, b, api.CallOptions{})
			s := service("web")
			all := make([]*corev1.Pod, pods)
			for i := range all {
				all[i] = podOf("web", i)
			}
			d.add(s, all...)
			d.until("all joined", 5*time.Minute, func() bool { return len(d.news) == 0 && d.held("web") == pods })
			reads, applies := b.calls()
			require.LessOrEqual(t, applies, pods/100, "full batches")
			require.LessOrEqual(t, reads, applies+3)
			d.during(time.Minute)
			require.Equal(t, 0, len(d.news))

			before, changed := b.calls()
			for _, up := range []bool{false, true} {
				held := d.held("web")
				turn(all[7], up)
				d.reconcile(all[7])
				d.until("it has followed", time.Minute, func() bool { return d.held("web") != held })
			}
			reads, applies = b.calls()
			cost[pods] = []int{reads - before, applies - changed}
		})
	}
	require.Equal(t, []int{2, 2}, cost[100], "a change and a reading for each way")
	require.Equal(t, cost[100], cost[5000])
}

// BenchmarkOneChange is one employee's way out and back in a group at rest: change, call, answer, reading. It prints
// how much more that costs among 5,000 employees than among 100.
func BenchmarkOneChange(b *testing.B) {
	took := map[int]time.Duration{}
	for _, size := range []int{100, 5000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			now := epoch
			p := newProvider()
			g := newGroup(withDefaults(api.CallOptions{}), true, func(d time.Duration) time.Duration { return d }, now)
			v := func(i int) view {
				name := fmt.Sprintf("web-%d", i)
				return view{key: employeeKey{types.NamespacedName{Namespace: "shop", Name: name}, types.UID(name)},
					serve: map[string]any{name: 1}}
			}
			move := func(i int, s direction) {
				g.look(v(i), intent{direction: s}, now)
				g.register(v(i), intent{direction: s}, s == joining, now)
			}
			calls := func() {
				for due := g.due(now); !due.IsZero() && due.Before(epoch.Add(time.Hour*1e5)); due = g.due(now) {
					if due.After(now) {
						now = due
					}
					c := g.next(now)
					if c == nil {
						continue
					}
					for _, change := range c.changes {
						p.accept(change)
						p.settle(change.ID)
					}
					var held []api.Held[any]
					if c.verb == read {
						held = p.read(c.ids)
					}
					g.answered(held, nil, now)
					if g.notified(); len(g.waiting) == 0 && len(g.unconfirmed) == 0 && len(g.retry) == 0 && g.full > 0 &&
						g.applyDue().IsZero() {
						return
					}
				}
			}
			for i := range size {
				move(i, joining)
			}
			calls()
			i := 0
			b.ResetTimer()
			for b.Loop() {
				i++
				move(i%size, leaving)
				calls()
				move(i%size, joining)
				calls()
			}
			took[size] = b.Elapsed() / time.Duration(b.N)
		})
	}
	b.Logf("one change among 5,000 costs %.2f times one among 100", float64(took[5000])/float64(took[100]))
}
