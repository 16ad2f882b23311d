package bench

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

const (
	// consistWrites are resourceconsist-controller's to a Pod for one operation: out, and in.
	consistWrites = 2
	// idleWindow is how long nothing must be written, and the provider not be called, while nothing happens; settling is
	// how long before that the last polls may take.
	idleWindow, settling = 20 * time.Second, 10 * time.Second
	// oneByOne are operations, one after the other, to measure what one costs.
	oneByOne = 40
)

// BenchmarkConsist prints what it costs to keep Services in step with operations: writes to Pods with one adapter and
// with two, calls to a provider, and how that depends on the number of Pods. It fails on broken promises, never on
// time.
func BenchmarkConsist(b *testing.B) {
	provider := startProvider(b)
	endpoints := filepath.Join(b.TempDir(), "endpoints.yaml")
	require.NoError(b, os.WriteFile(endpoints,
		fmt.Appendf(nil, "endpoints: [{name: bench, url: '%s', namespaces: ['*'], timeout: 30s}]", provider.URL), 0o600))
	a := newArena(b, map[string][]string{suite.ResourceConsist: {
		// it is restarted
		"--leader-elect-lease-duration=10s", "--leader-elect-renew-deadline=8s", "--leader-elect-retry-period=500ms",
		"--drain-time=0s", "--adapters=endpointslice,webhook", "--webhook-endpoints=" + endpoints,
		"--webhook-allow=127.0.0.0/8",
	}})
	sizes, scale := numbersFromZero(b, "BENCH_SIZES", "10,100,1000"), numbersFromZero(b, "BENCH_SCALE", "100,2000")
	fmt.Fprintf(os.Stdout, "\nload of the machine at the start: %s\n", load())
	if len(sizes) > 0 {
		fmt.Fprintf(os.Stdout, "\n%s", a.consistCosts(provider, sizes))
	}
	if len(scale) > 0 {
		fmt.Fprintf(os.Stdout, "\n%s", a.largeService(scale))
	}
	fmt.Fprintf(os.Stdout, "\nload at the end: %s\n\n", load())
	require.NoError(b, a.suite.Died())
}

// provider holds members in memory, answers for many in one call, and counts the calls.
type provider struct {
	*httptest.Server
	mu    sync.Mutex
	calls map[string]int // by action
	held  map[string]map[string]any
}

func startProvider(b *testing.B) *provider {
	b.Helper()
	p := &provider{calls: map[string]int{}, held: map[string]map[string]any{}}
	p.Server = httptest.NewServer(p)
	b.Cleanup(p.Close)
	return p
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		APIVersion, Action string
		Employer           struct{ UID string }
		Members            []map[string]any
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[q.Action]++
	members := []map[string]any{}
	for _, m := range q.Members {
		key := fmt.Sprint(q.Employer.UID, m["id"])
		if q.Action == "apply" {
			m["serving"] = m["serve"]
			p.held[key] = m
		} else if known, ok := p.held[key]; ok {
			m = known
		} else {
			m["serving"] = false
		}
		members = append(members, m)
	}
	for key, m := range p.held {
		if len(q.Members) == 0 && strings.HasPrefix(key, q.Employer.UID) {
			members = append(members, m)
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": q.APIVersion, "members": members})
}

// counted are calls so far.
func (p *provider) counted() (reads, applies int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls["read"], p.calls["apply"]
}

// consistCosts has Pods of Services born and operated on, with one adapter and with two.
func (a arena) consistCosts(p *provider, sizes []int) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w,
		"All Pods of one Service, writes by resourceconsist-controller for each Pod, calls to a bulk provider for each Pod (reads + changes):")
	fmt.Fprintln(w,
		"Pods\tadapters\twrites at birth\tfor an operation\tleast\trefused, conflicts\tcalls at birth\tfor an operation\tPods/s\tidle: writes\tcalls")
	type run struct{ pods, adapters int }
	runs := []run{{sizes[len(sizes)-1], 1}}
	for _, pods := range sizes {
		runs = append(runs, run{pods, 2})
	}
	first := 0.0
	for _, r := range runs {
		c := a.consistCost(p, r.pods, r.adapters)
		fmt.Fprintf(w, "%d\t%d\t%.2f\t%.2f\t%d\t%.3f\t%s\t%s\t%.1f\t%d\t%d\n", r.pods, r.adapters, c.birth.writes,
			c.operation.writes, consistWrites,
			c.operation.refused, c.birth.calls, c.operation.calls, c.rate, c.idleWrites, c.idleCalls)
		if c.operation.writes > consistWrites*mostAboveLeast || c.operation.writes < consistWrites {
			a.Errorf("an operation takes %.2f writes to each of %d Pods with %d adapters: %d are needed", c.operation.writes,
				r.pods, r.adapters, consistWrites)
		}
		if c.idleWrites+c.idleCalls > 0 {
			a.Errorf("while nothing happened to %d Pods, there were %d writes and %d calls", r.pods, c.idleWrites, c.idleCalls)
		}
		a.ReportMetric(c.operation.writes, fmt.Sprintf("writes/Pod-%d-%d", r.pods, r.adapters))
		if r.adapters == 1 {
			continue
		}
		a.ReportMetric(c.operation.each, fmt.Sprintf("calls/Pod-%d", r.pods))
		if first == 0 {
			first = c.operation.each
		} else if c.operation.each > first*mostGrowth {
			a.Errorf("calls for each Pod grow from %.2f to %.2f with %d Pods", first, c.operation.each, r.pods)
		}
	}
	require.NoError(a, w.Flush())
	return text.String()
}

// phase is what something came to, for each Pod.
type phase struct {
	writes, refused, each float64
	calls                 string
}

type consistCost struct {
	birth, operation      phase
	rate                  float64
	idleWrites, idleCalls int
}

func (a arena) consistCost(p *provider, pods, adapters int) consistCost {
	namespace := a.namespace(fmt.Sprintf("consist-%d-%d", pods, adapters))
	m := newMeter(a.B, a.pods, namespace, nil)
	defer m.close()
	var c consistCost
	phaseOf := func(what func()) phase {
		begin := time.Now()
		readsBefore, appliesBefore := p.counted()
		what()
		reads, applies := p.counted()
		counts := a.consistWrites(namespace, begin)
		n := float64(pods)
		return phase{
			writes: float64(counts.Writes) / n, refused: float64(counts.Refused+counts.Conflicts) / n,
			each:  float64(reads-readsBefore+applies-appliesBefore) / n,
			calls: fmt.Sprintf("%.2f + %.2f", float64(reads-readsBefore)/n, float64(applies-appliesBefore)/n),
		}
	}
	var names []string
	c.birth = phaseOf(func() {
		a.service(namespace, adapters)
		names = a.managedPods(m, namespace, pods)
		m.lap(joined)
		require.Equal(a, pods, m.wait(a.Context(), pods, patience), "Pods have joined their Service")
		a.rest(settling)
	})
	c.operation = phaseOf(func() {
		o := newOperator(a, m, namespace)
		m.lap(func(pod *corev1.Pod) bool { return o.finished(pod.Name) && joined(pod) })
		a.inFlight(names, o.begin)
		require.Equal(a, pods, m.wait(a.Context(), pods, patience), "Pods are back")
		c.rate = m.figures().rate()
		o.stop()
		a.rest(settling)
	})
	idle := phaseOf(func() { a.rest(idleWindow) })
	c.idleWrites, c.idleCalls = int(idle.writes*float64(pods)+.5), int(idle.each*float64(pods)+.5)
	return c
}

// service creates the Service "web" of all managed Pods, which the endpointslice adapter follows and, as the second,
// the provider.
func (a arena) service(namespace string, adapters int) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "web", Labels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue},
	}}
	if adapters > 1 {
		s.Annotations = map[string]string{"webhook.resource-consist.kusionstack.io/endpoint": "bench"}
	}
	s.Spec.Selector = map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}
	s.Spec.Ports = []corev1.ServicePort{{Port: 80}}
	require.NoError(a, a.Create(a.Context(), s))
}

// joined reports whether a Pod is in service, and its Service has it.
func joined(p *corev1.Pod) bool { return serving(oldImage)(p) && inService(p) }

// inService reports whether the Service "web" has it.
func inService(p *corev1.Pod) bool {
	return slices.Contains(p.Finalizers, resourceconsist.Finalizer("web"))
}

// consistWrites counts what resourceconsist-controller wrote in a namespace since a moment, whatever it was.
func (a arena) consistWrites(namespace string, since time.Time) suite.Counts {
	requests, err := a.suite.Requests(since)
	require.NoError(a, err)
	requests = slices.DeleteFunc(requests, func(r suite.Request) bool {
		return r.Namespace != namespace || r.Component() != suite.ResourceConsist
	})
	return suite.Sum(suite.Writes(requests))
}

// rest lets time pass.
func (a arena) rest(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-a.Context().Done():
	case <-timer.C:
	}
}

// largeService has Services of different sizes found by a controller that has just started, and operates on single
// Pods.
func (a arena) largeService(sizes []int) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "One Service with many Pods, followed by EndpointSlices:")
	fmt.Fprintln(w,
		"Pods\tEndpointSlices\tall joined in, s\tPods/s\trestarted and leading in, s\tRSS then, MiB\tone Pod out and in: CPU, ms\tratio\tallocations\tratio\twrites")
	var first [2]float64
	for i, pods := range sizes {
		namespace := a.namespace(fmt.Sprintf("large-%d", pods))
		m := newMeter(a.B, a.pods, namespace, nil)
		names := a.managedPods(m, namespace, pods)
		m.lap(joined)
		a.service(namespace, 1)
		require.Equal(a, pods, m.wait(a.Context(), pods, patience), "Pods have joined their Service")
		f := m.figures()
		slices, err := a.pods.DiscoveryV1().EndpointSlices(namespace).List(a.Context(), metav1.ListOptions{})
		require.NoError(a, err)

		begin := time.Now()
		require.NoError(a, a.suite.Restart(a.Context(), suite.ResourceConsist))
		require.NoError(a, a.suite.WaitLeading(a.Context(), suite.ResourceConsist))
		led := time.Since(begin)
		a.rest(settling)
		if found := a.consistWrites(namespace, begin); found.Total() > 0 {
			a.Errorf("%d writes after a restart, with nothing to do for %d Pods", found.Total(), pods)
		}
		resident := a.gauge("process_resident_memory_bytes")

		before, began := [2]float64{a.gauge("process_cpu_seconds_total"), a.gauge("go_memstats_mallocs_total")}, time.Now()
		for n := range oneByOne {
			name := names[n*len(names)/oneByOne]
			a.outAndIn(m, namespace, name)
			require.NoError(a, m.await(a.Context(), name, joined))
		}
		cost := [2]float64{a.gauge("process_cpu_seconds_total"), a.gauge("go_memstats_mallocs_total")}
		for j := range cost {
			cost[j] = (cost[j] - before[j]) / oneByOne
		}
		if i == 0 {
			first = cost
		}
		writes := float64(a.consistWrites(namespace, began).Writes) / oneByOne
		fmt.Fprintf(w, "%d\t%d\t%.1f\t%.1f\t%.1f\t%.0f\t%.1f\t%.2f\t%.0f\t%.2f\t%.2f\n", pods, len(slices.Items),
			f.took.Seconds(), f.rate(), led.Seconds(),
			resident/(1<<20), cost[0]*1e3, cost[0]/max(first[0], 1e-9), cost[1], cost[1]/first[1], writes)
		a.ReportMetric(cost[1]/first[1], fmt.Sprintf("allocations-ratio-%d", pods))
		if writes > consistWrites*mostAboveLeast {
			a.Errorf("one Pod's way out and in takes %.2f writes among %d Pods", writes, pods)
		}
		m.close()
	}
	require.NoError(a, w.Flush())
	return text.String()
}

// outAndIn operates on one Pod and waits until it is back.
func (a arena) outAndIn(m *meter, namespace, name string) {
	a.out(m, namespace, name)
	a.in(namespace, name)
	require.NoError(a, m.await(a.Context(), name, serving(oldImage)))
}

// out begins an operation on one Pod and says when it was permitted.
func (a arena) out(m *meter, namespace, name string) time.Time {
	require.NoError(a, a.write(namespace, name, labelled(map[string]any{
		podops.OperatingPrefix + "/" + operatorID:     strconv.FormatInt(time.Now().UnixNano(), 10),
		podops.OperationTypePrefix + "/" + operatorID: operationType,
	})))
	require.NoError(a, m.await(a.Context(), name, func(p *corev1.Pod) bool {
		return podops.Allowed(podops.Read(p), operatorID, operationType)
	}))
	return time.Now()
}

// in ends the operation.
func (a arena) in(namespace, name string) {
	require.NoError(a, a.write(namespace, name, labelled(map[string]any{podops.OperatingPrefix + "/" + operatorID: nil})))
}

// gauge is the value of a metric of resourceconsist-controller that has no labels.
func (a arena) gauge(name string) float64 {
	metrics, err := a.suite.Metrics(a.Context(), suite.ResourceConsist)
	require.NoError(a, err)
	for line := range strings.Lines(metrics) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			require.NoError(a, err)
			return v
		}
	}
	a.Fatalf("resourceconsist-controller has no metric %s", name)
	return 0
}
