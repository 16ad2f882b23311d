package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// growthNodes have at most a hundred Pods each, as nodes do. kube-scheduler goes through all Pods of a node when one
// of them changes: with thousands on one node, which there are not, it takes 2 to 3 ms of CPU for each Pod that is
// updated.
const growthNodes = 60

// BenchmarkGrowth updates CollaSets of more and more Pods in place under a rule, the smaller ones again after the
// largest, and as many Pods in a hundred CollaSets at once. A machine that becomes slower in these minutes, or
// faster, so looks like that and not like growth. It fails if writes for each Pod grow, never on time.
func BenchmarkGrowth(b *testing.B) {
	sizes := numbers(b, "BENCH_SIZES", "250,1000,5000")
	sets, each := 100, 20
	_, err := fmt.Sscanf(fromEnvironment("BENCH_SETS", "100x20"), "%dx%d", &sets, &each)
	require.NoError(b, err, "BENCH_SETS is like 100x20: CollaSets, and Pods of each")
	a := newArenaOf(b, suite.Config{Nodes: growthNodes}, fakekubelet.Options{})
	var all []grown
	for i, pods := range sizes {
		all = append(all, a.grow(fmt.Sprintf("growth-%d", pods), 1, pods))
		if i > 0 && i < len(sizes)-1 { // so that there is something to read before the largest ends
			a.exponents(all)
		}
	}
	first, last := all[0], all[len(all)-1]
	for i := len(sizes) - 2; i >= 0; i-- {
		all = append(all, a.grow(fmt.Sprintf("growth-%d-again", sizes[i]), 1, sizes[i]))
	}
	a.exponents(all)
	if last.writes > first.writes*mostGrowth {
		b.Errorf("writes for each Pod grow from %.2f among %d to %.2f among %d", first.writes, first.pods,
			last.writes, last.pods)
	}
	one := a.grow(fmt.Sprintf("one-of-%d", sets*each), 1, sets*each)
	many := a.grow(fmt.Sprintf("%d-of-%d", sets, each), sets, each)
	a.result(benchresult.Figure{Goal: "P20", Name: "100 CollaSets / one of as many Pods, time",
		Params: map[string]float64{"pods": float64(sets * each), "sets": float64(sets)},
		Values: []float64{many.took.Seconds() / one.took.Seconds()}})
	require.NoError(b, a.suite.Died())
}

// grown is what an update of all Pods took.
type grown struct {
	spent
	pods   int
	writes float64 // to each Pod
}

// grow has so many CollaSets of so many Pods each created and updated, and removes them again.
func (a arena) grow(name string, sets, each int) grown {
	namespace, pods := a.namespace(name), sets*each
	m := newMeter(a.B, a.pods, namespace, nil)
	defer m.close()
	a.budget(namespace, "all", "20%",
		metav1.LabelSelector{MatchLabels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}})
	m.lap(serving(oldImage))
	var all []*appsv1alpha1.CollaSet
	for i := range sets {
		name := fmt.Sprintf("web-%d", i)
		all = append(all, a.createSetOf(templateOn("", name), namespace, name, each))
	}
	require.Equal(a, pods, m.wait(a.Context(), pods, patience), "Pods serve")
	created := m.figures()
	a.say("%d Pods in %d CollaSets serve", pods, sets)

	g := grown{pods: pods}
	var bytes int
	var what string
	decided := a.decided()
	a.observed(func() {
		largest := a.watchSizes(namespace)
		g.spent = a.measure(func() {
			m.lap(serving(newImage))
			for _, set := range all {
				a.merge(set, updatePatch(appsv1alpha1.PodUpdateInPlaceOnly, newImage))
			}
			require.Equal(a, pods, m.wait(a.Context(), pods, patience), "Pods serve the new image")
		}, namespace)
		g.took = m.figures().took
		bytes, what = largest()
	})
	decided = a.decided().less(decided)

	toPods, requests := suite.Sum(suite.PodWrites(g.requests)), suite.Sum(suite.Writes(g.requests))
	g.writes = float64(toPods.Writes) / float64(pods)
	of := map[string]float64{"pods": float64(pods), "sets": float64(sets)}
	figure := func(name, unit string, value float64) {
		a.result(benchresult.Figure{Name: name, Unit: unit, Series: "in place, 20 %", Params: of, Values: []float64{value}})
	}
	figure("time", "s", g.took.Seconds())
	a.say("   CPU ms/Pod: %s; a piece of work %.2f ms", g.perPod(pods), g.piece)
	figure("writes to Pods", "writes/Pod", g.writes)
	figure("all write requests", "requests/Pod", float64(requests.Total())/float64(pods))
	a.say("   write requests: %v", requests.Kinds)
	figure("conflicts", "conflicts/Pod", float64(requests.Conflicts)/float64(pods))
	figure("CPU of the suite", "ms/Pod", g.ours()*1e3/float64(pods))
	figure("CPU of the API server", "ms/Pod", g.cpu[apiServer]*1e3/float64(pods))
	figure("bytes to etcd", "KB/Pod", g.stored/1e3/float64(pods))
	figure("out of service", "s/Pod", m.figures().mean())
	events := 0
	for _, r := range g.requests {
		if changesPod(r) {
			events++
		}
	}
	a.result(benchresult.Figure{
		Goal: "P14", Name: "deciding, for each event of a Pod in an update of all", Params: of,
		Values: []float64{(decided.sets + decided.pods) * 1e6 / float64(events)},
		Note: fmt.Sprintf("CPU; %d events, %.0f decisions about the set of %.1f ms each, %.0f about a Pod of %.0f µs", events,
			decided.ofSets, decided.sets*1e3/decided.ofSets,
			decided.ofPods, decided.pods*1e6/decided.ofPods),
	})
	figure("largest object", "KiB", float64(bytes)/1024)
	a.result(benchresult.Figure{Name: "time", Unit: "s", Series: "create", Params: of,
		Values: []float64{created.took.Seconds()}})
	a.result(benchresult.Figure{Goal: "P22", Name: "largest object, 5,000 Pods", Params: of,
		Values: []float64{float64(bytes) / 1024}, Note: what})

	for _, set := range all {
		a.merge(set, `{"spec":{"replicas":0}}`)
	}
	a.until("no Pod is left", func() bool { return m.seen() == 0 })
	return g
}

// decisions are how many seconds collaset-controller has spent on deciding about sets and about single Pods, and how
// often.
type decisions struct{ sets, pods, ofSets, ofPods float64 }

func (d decisions) less(before decisions) decisions {
	return decisions{d.sets - before.sets, d.pods - before.pods, d.ofSets - before.ofSets, d.ofPods - before.ofPods}
}

func (a arena) decided() decisions {
	metrics, err := a.suite.Metrics(a.Context(), suite.CollaSet)
	require.NoError(a, err)
	read := func(suffix, of string) float64 {
		value, err := readSeries(metrics, "kuperator_collaset_decide_seconds"+suffix, `of="`+of+`"`)
		require.NoError(a, err)
		return value
	}
	return decisions{read("_sum", "set"), read("_sum", "pod"), read("_count", "set"), read("_count", "pod")}
}

// exponents of growth: of y = c·pods^e through all numbers of Pods, by least squares of logarithms. Those that a
// faster machine makes smaller are told in pieces of work as well, which that machine does faster too.
func (a arena) exponents(all []grown) {
	largest := slices.MaxFunc(all, func(a, b grown) int { return cmp.Compare(a.pods, b.pods) })
	of := map[string]float64{"pods": float64(largest.pods)}
	exponent := func(goal, name string, y func(grown) float64) {
		var xs, ys []float64
		for _, g := range all {
			xs, ys = append(xs, math.Log(float64(g.pods))), append(ys, math.Log(y(g)))
		}
		if e := slope(xs, ys); !math.IsNaN(e) && !math.IsInf(e, 0) {
			a.result(benchresult.Figure{Goal: goal, Name: "growth exponent of " + name, Params: of, Values: []float64{e},
				Note: fmt.Sprintf("from %d Pods", all[0].pods)})
		}
	}
	took := func(g grown) float64 { return g.took.Seconds() }
	exponent("P13", "time", took)
	exponent("", "time, in pieces of work", func(g grown) float64 { return took(g) / g.piece })
	exponent("P13", "writes", func(g grown) float64 { return float64(suite.Sum(suite.Writes(g.requests)).Total()) })
	exponent("P13", "the binaries' CPU", grown.ours)
	exponent("", "the binaries' CPU, in pieces of work", func(g grown) float64 { return g.ours() / g.piece })
	exponent("P13", "bytes written", func(g grown) float64 { return g.stored })
}

// slope is that of the line with the least squares.
func slope(xs, ys []float64) float64 {
	n, mx, my := float64(len(xs)), 0.0, 0.0
	for i := range xs {
		mx, my = mx+xs[i]/n, my+ys[i]/n
	}
	above, below := 0.0, 0.0
	for i := range xs {
		above, below = above+(xs[i]-mx)*(ys[i]-my), below+(xs[i]-mx)*(xs[i]-mx)
	}
	return above / below
}

func TestSlope(t *testing.T) {
	require.InDelta(t, 2, slope([]float64{1, 2, 4}, []float64{3, 5, 9}), 1e-9)
}

// watchSizes looks at all objects of our kinds, and the revisions, every two seconds until its result is asked for:
// the size of the largest as JSON without managedFields, and what it was. Of 4,000 Pods these are half a megabyte, so
// that to look more often would be a part of the growth that is measured.
func (a arena) watchSizes(namespace string) func() (int, string) {
	done, ended := make(chan struct{}), make(chan struct{})
	var most atomic.Int64
	var what atomic.Value
	look := func(path string) error {
		raw, err := a.pods.CoreV1().RESTClient().Get().AbsPath(path).Param("resourceVersion", "0").SetHeader("Accept",
			"application/json").DoRaw(a.Context())
		if err != nil {
			return err
		}
		var list struct {
			Items []map[string]any `json:"items"`
		}
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
		for _, item := range list.Items {
			if meta, ok := item["metadata"].(map[string]any); ok {
				delete(meta, "managedFields")
			}
			content, err := json.Marshal(item)
			if err != nil {
				return err
			}
			if n := int64(len(content)); n > most.Load() {
				most.Store(n)
				what.Store(path[1+lastSlash(path):])
			}
		}
		return nil
	}
	go func() {
		defer close(ended)
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		ours := fmt.Sprintf("/apis/%s/namespaces/%s/", appsv1alpha1.SchemeGroupVersion, namespace)
		for {
			for _, path := range []string{ours + "podtransitionrules", ours + "collasets", ours + "resourcecontexts",
				ours + "poddecorations",
				"/apis/apps/v1/namespaces/" + namespace + "/controllerrevisions"} {
				if err := look(path); err != nil && a.Context().Err() == nil {
					a.Errorf("looking at the sizes of objects: %v", err)
				}
			}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	return func() (int, string) {
		close(done)
		<-ended
		name, _ := what.Load().(string)
		return int(most.Load()), name
	}
}

func lastSlash(path string) int {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return i
		}
	}
	return -1
}

// BenchmarkNeighbour measures the update of a small CollaSet alone, and beside that of a large one in another
// namespace with rules of its own, in turns.
func BenchmarkNeighbour(b *testing.B) {
	noisy, rounds := numbers(b, "BENCH_SIZES", "1000")[0], numbers(b, "BENCH_ROUNDS", "2")[0]
	const quiet = 20
	a := newArena(b, nil)
	n := neighbours{arena: a}
	n.quiet = n.tenant("quiet", quiet)
	n.noisy = n.tenant("noisy", noisy)
	for round := range rounds {
		image := func(i int) string { return fmt.Sprintf("app:r%d-%d", round, i) }
		alone := n.quiet.update(a, image(0))
		m := n.noisy.meter
		m.lap(serving(image(1)))
		n.noisy.ask(a, image(1))
		require.Equal(b, noisy/10, min(noisy/10, m.wait(b.Context(), noisy/10, patience)), "the noisy tenant is at work")
		beside := n.quiet.update(a, image(2))
		m.mu.Lock()
		met := m.met
		m.mu.Unlock()
		if met == noisy {
			b.Errorf("the noisy tenant was done before the quiet one: it needs more than %d Pods", noisy)
		}
		require.Equal(b, noisy, m.wait(b.Context(), noisy, patience), "the noisy tenant ends")
		of := map[string]float64{"quiet": quiet, "noisy": float64(noisy)}
		a.result(benchresult.Figure{Goal: "P21", Name: "quiet tenant beside a noisy one, time / alone", Params: of,
			Values: []float64{beside / alone}})
		a.result(benchresult.Figure{Name: "time", Unit: "s", Series: "quiet tenant, alone", Params: of,
			Values: []float64{alone}})
		a.result(benchresult.Figure{Name: "time", Unit: "s", Series: "quiet tenant, beside a noisy one", Params: of,
			Values: []float64{beside}})
	}
	require.NoError(b, a.suite.Died())
}

type neighbours struct {
	arena
	quiet, noisy tenant
}

// tenant is one CollaSet in its own namespace, under three rules.
type tenant struct {
	meter *meter
	set   *appsv1alpha1.CollaSet
	pods  int
}

func (n neighbours) tenant(name string, pods int) tenant {
	namespace := n.namespace(name)
	for i := range 3 {
		n.budget(namespace, fmt.Sprintf("rule-%d", i), "50%",
			metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}})
	}
	t := tenant{meter: newMeter(n.B, n.pods, namespace, nil), pods: pods}
	t.set = n.collaSet(t.meter, namespace, pods)
	return t
}

func (t tenant) ask(a arena, image string) {
	a.merge(t.set, updatePatch(appsv1alpha1.PodUpdateInPlaceOnly, image))
}

// update is how many seconds one takes.
func (t tenant) update(a arena, image string) float64 {
	t.meter.lap(func(p *corev1.Pod) bool { return serving(image)(p) })
	t.ask(a, image)
	require.Equal(a, t.pods, t.meter.wait(a.Context(), t.pods, patience), "the tenant's Pods serve %s", image)
	return t.meter.figures().took.Seconds()
}
