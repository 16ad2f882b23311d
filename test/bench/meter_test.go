package bench

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"kusionstack.io/kuperator/api/podops"
)

// meter watches the Pods of one namespace, as any outsider could, and costs a constant per event.
type meter struct {
	factory informers.SharedInformerFactory
	stop    context.CancelFunc

	mu      sync.Mutex
	pods    map[string]*metered
	budgets map[string]*outage // by rule
	waiters map[string]chan *corev1.Pod
	goal    func(*corev1.Pod) bool
	met     int
	metAt   []time.Time // when each Pod met the goal, in order
	notify  func(*corev1.Pod)
	begun   time.Time // of the lap
	// want Pods serve while nothing happens. missing is the time that Pods were fewer, for each that was missing, until
	// the last of them met the goal; serve are those that do since since.
	want, serve int
	missing     time.Duration
	since       time.Time
	goneAt      time.Time // when the last one went
}

// metered is one Pod.
type metered struct {
	pod    *corev1.Pod
	serves bool // is Ready
	served bool // was Ready once
	down   time.Time
	out    time.Duration // in this lap
	met    bool
}

// outage counts the Pods of one rule that served once and do not now.
type outage struct {
	selects  func(*corev1.Pod) bool
	now, max int
}

// newMeter watches from here to the end of the benchmark. Budgets are what Pods to count together, by rule.
func newMeter(
	b *testing.B, clients kubernetes.Interface, namespace string, budgets map[string]func(*corev1.Pod) bool,
) *meter {
	b.Helper()
	ctx, stop := context.WithCancel(b.Context())
	m := &meter{stop: stop, pods: map[string]*metered{}, budgets: map[string]*outage{},
		waiters: map[string]chan *corev1.Pod{}}
	for rule, selects := range budgets {
		m.budgets[rule] = &outage{selects: selects}
	}
	m.factory = informers.NewSharedInformerFactoryWithOptions(clients, 0, informers.WithNamespace(namespace))
	registered, err := m.factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    m.see,
		UpdateFunc: func(_, obj any) { m.see(obj) },
		DeleteFunc: m.forget,
	})
	require.NoError(b, err)
	m.factory.Start(ctx.Done())
	require.True(b, cache.WaitForCacheSync(ctx.Done(), registered.HasSynced))
	b.Cleanup(m.close)
	return m
}

func (m *meter) close() {
	m.stop()
	m.factory.Shutdown()
}

func (m *meter) see(obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[pod.Name]
	if p == nil {
		p = &metered{}
		m.pods[pod.Name] = p
	}
	p.pod = pod
	ready := podops.Read(pod).Ready
	switch {
	case ready && !p.down.IsZero():
		p.out += now.Sub(p.down)
		p.down = time.Time{}
		m.count(pod, -1)
	case !ready && p.served && p.down.IsZero():
		p.down = now
		m.count(pod, 1)
	}
	if ready != p.serves {
		m.change(now, ready)
		p.serves = ready
	}
	p.served = p.served || ready
	m.judge(p, now)
	if w := m.waiters[pod.Name]; w != nil {
		select {
		case <-w: // only the newest matters
		default:
		}
		w <- pod
	}
	if m.notify != nil {
		m.notify(pod)
	}
}

// change accounts for one Pod that serves more, or less.
func (m *meter) change(now time.Time, serves bool) {
	if m.goal != nil && m.met < m.want {
		m.missing += time.Duration(max(0, m.want-m.serve)) * now.Sub(m.since)
	}
	m.since = now
	if serves {
		m.serve++
	} else {
		m.serve--
	}
}

func (m *meter) count(pod *corev1.Pod, n int) {
	for _, o := range m.budgets {
		if o.selects(pod) {
			o.now += n
			o.max = max(o.max, o.now)
		}
	}
}

func (m *meter) forget(obj any) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		m.mu.Lock()
		defer m.mu.Unlock()
		if p := m.pods[pod.Name]; p != nil && p.serves {
			m.change(time.Now(), false)
		}
		delete(m.pods, pod.Name)
		m.goneAt = time.Now()
	}
}

func (m *meter) judge(p *metered, now time.Time) {
	if m.goal == nil || p.met || !m.goal(p.pod) {
		return
	}
	p.met = true
	m.met++
	m.metAt = append(m.metAt, now)
}

// lap starts measuring again, with what a Pod has to come to.
func (m *meter) lap(goal func(*corev1.Pod) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.goal, m.met, m.metAt, m.begun = goal, 0, nil, time.Now()
	m.want, m.missing, m.since = m.serve, 0, m.begun
	for _, o := range m.budgets {
		o.max = o.now
	}
	for _, p := range m.pods {
		p.met, p.out = false, 0
		m.judge(p, m.begun)
	}
}

// wait waits until so many Pods have met the goal, at most for a while, and says how many did.
func (m *meter) wait(ctx context.Context, pods int, longest time.Duration) int {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	tick := time.NewTicker(pulse)
	defer tick.Stop()
	for {
		m.mu.Lock()
		met := m.met
		m.mu.Unlock()
		if met >= pods {
			return met
		}
		select {
		case <-ctx.Done():
			return met
		case <-tick.C:
		}
	}
}

// await waits until one Pod is as asked.
func (m *meter) await(ctx context.Context, name string, as func(*corev1.Pod) bool) error {
	_, err := m.sighted(ctx, name, as)
	return err
}

// sighted is await, and returns the Pod as it was then.
func (m *meter) sighted(ctx context.Context, name string, as func(*corev1.Pod) bool) (*corev1.Pod, error) {
	m.mu.Lock()
	w := make(chan *corev1.Pod, 1)
	if p := m.pods[name]; p != nil {
		w <- p.pod
	}
	m.waiters[name] = w
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.waiters, name)
	}()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case pod := <-w:
			if as(pod) {
				return pod, nil
			}
		}
	}
}

// figures are what a lap came to.
type figures struct {
	// pods met the goal, by name.
	pods map[string]bool
	// took is the time to the last of them.
	took time.Duration
	// out is how long each of them was out of service, sorted.
	out []time.Duration
	// missing is how long a Pod was not there or not Ready, on average, in seconds, of those that served before.
	missing float64
	// most are the Pods that were out of service at a time, by rule.
	most map[string]int
}

func (m *meter) figures() figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := figures{pods: map[string]bool{}, most: map[string]int{}, missing: m.missing.Seconds() / float64(max(1, m.want))}
	for name, p := range m.pods {
		if p.met {
			f.pods[name] = true
			f.out = append(f.out, p.out)
		}
	}
	slices.Sort(f.out)
	if len(m.metAt) > 0 {
		f.took = m.metAt[len(m.metAt)-1].Sub(m.begun)
	}
	for rule, o := range m.budgets {
		f.most[rule] = o.max
	}
	return f
}

// rate is the Pods a second that met the goal.
func (f figures) rate() float64 { return float64(len(f.pods)) / f.took.Seconds() }

// mean is the mean time out of service, in seconds.
func (f figures) mean() float64 {
	var sum time.Duration
	for _, d := range f.out {
		sum += d
	}
	return sum.Seconds() / float64(max(len(f.out), 1))
}

// lastGone is when the last Pod went, in seconds since the lap began.
func (m *meter) lastGone() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.goneAt.Sub(m.begun).Seconds()
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
