package freshness

import (
	"sync"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/internal/metric"
)

var (
	waitsMetric = metric.Metric{
		Name: "kuperator_stale_cache_waits_total", Kind: metric.Counter, Unit: "waits",
		Help: "Reconciles deferred because the cache did not show an own write yet. Some are usual; " +
			"many over a long time mean that watches lag.",
	}
	oldestMetric = metric.Metric{
		Name: "kuperator_stale_cache_oldest_wait_seconds", Kind: metric.Gauge, Unit: "seconds",
		Help: "Longest current wait of an object for the cache to show an own write. 0 if none waits.",
	}
)

// Metrics are what Collector publishes.
func Metrics() []metric.Metric { return []metric.Metric{waitsMetric, oldestMetric} }

var waits = prometheus.NewCounter(prometheus.CounterOpts{Name: waitsMetric.Name, Help: waitsMetric.Help})

// trackers are those of the process, as long as a controller uses them.
var trackers registered

type registered struct {
	mu  sync.Mutex
	all []weak.Pointer[Tracker]
}

func (r *registered) add(t *Tracker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, weak.Make(t))
}

// oldest is how long the longest wait of all trackers has been going on.
func (r *registered) oldest() (oldest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := r.all[:0]
	for _, p := range r.all {
		if t := p.Value(); t != nil {
			kept = append(kept, p)
			oldest = max(oldest, t.oldest())
		}
	}
	r.all = kept
	return oldest
}

// Collectors publish what Metrics declares, for all trackers of the process. They are to be registered once.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{waits, prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: oldestMetric.Name, Help: oldestMetric.Help},
		func() float64 { return trackers.oldest().Seconds() },
	)}
}

// measure takes down whether the owner waits.
func (t *Tracker) measure(owner types.NamespacedName, now time.Time, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if wait == 0 {
		delete(t.waiting, owner)
		return
	}
	waits.Inc()
	if _, known := t.waiting[owner]; !known {
		t.waiting[owner] = now
	}
}

func (t *Tracker) oldest() (oldest time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	for _, since := range t.waiting {
		oldest = max(oldest, now.Sub(since))
	}
	return oldest
}
