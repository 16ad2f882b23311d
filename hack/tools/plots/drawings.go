package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot/vg"
)

// peer is what others took on a machine of this size on another day, without client limits: an update in place of 500
// and of 1,000 Pods. Kuperator 0.7.4 and OpenKruise 1.9.0 as CloneSet.
type peer struct {
	name             string
	seconds          [2]float64
	out, outBudgeted [2]float64 // seconds out of service for each Pod, without a budget and with one of 20 %
}

var peers = []peer{
	{"OpenKruise 1.9 *", [2]float64{32.8, 62.5}, [2]float64{16.6, 30.4}, [2]float64{3.6, 7.4}},
	{"upstream 0.7.4 *", [2]float64{85.0, 176.3}, [2]float64{70.3, 145.4}, [2]float64{16.2, math.NaN()}},
}

// goals as benchresult has them.
const (
	goalCPU, goalRSSCollaSet, goalRSSOthers = 15, 100, 60
)

var drawings = []drawing{
	{"rollout.svg",
		"Time of an update in place. *Bare loop* makes the suite's very writes without deciding, *bare patches* one image\n" +
			"patch for each Pod.", rollout},
	{"out-of-service.svg", "Seconds out of service for each Pod in that update, and under a budget of 20 %.",
		outOfService},
	{"recreate.svg", "Time of an update by new Pods, beside the workloads of Kubernetes in the same run.", recreate},
	{"operations.svg", "Writes to each Pod, by operation, rules and adapters.", operations},
	{"growth-time.svg", "Time of an update in place among more and more Pods: level is linear.", growthTime},
	{"growth-cost.svg", "CPU for each Pod in that update.", growthCost},
	{"cpu.svg", "CPU of the programs in an update in place.", cpu},
	{"memory.svg", "Memory at rest, among managed and other Pods.", memory},
}

// find is the value of one figure, NaN if it was not measured.
func find(results []result, benchmark, name, series string, params map[string]float64) float64 {
	for _, r := range results {
		if r.Benchmark != benchmark || r.Goal != "" || r.Name != name || r.Series != series {
			continue
		}
		same := true
		for key, value := range params {
			same = same && r.Params[key] == value
		}
		if same {
			return r.Value
		}
	}
	return math.NaN()
}

// sizes are the numbers of Pods of one benchmark, in order.
func sizes(results []result, benchmark, key string) []float64 {
	var all []float64
	for _, r := range results {
		if v := r.Params[key]; r.Benchmark == benchmark && v > 0 && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	slices.Sort(all)
	return all
}

// peerAt is the index of a size in peer's arrays, false if peers were not measured there.
func peerAt(pods float64) (int, bool) {
	at := slices.Index([]float64{500, 1000}, pods)
	return at, at >= 0
}

func groupsOf(sizes []float64) []string {
	var names []string
	for _, pods := range sizes {
		names = append(names, figure(pods)+" Pods")
	}
	return names
}

// contend draws what several took at every size.
func contend(
	results []result, path, title, y, name string, lines map[string]string, order []string, theirs func(peer) [2]float64,
	goal float64, goalText string,
) error {
	all := sizes(results, "BenchmarkRollout", "pods")
	values := map[string][]float64{}
	measured := false
	for _, who := range order {
		for _, pods := range all {
			v := find(results, "BenchmarkRollout", name, lines[who], map[string]float64{"pods": pods})
			measured = measured || !math.IsNaN(v)
			values[who] = append(values[who], v)
		}
	}
	if !measured {
		return errNotMeasured
	}
	if theirs != nil {
		for _, p := range peers {
			order = append(order, p.name)
			for _, pods := range all {
				v := math.NaN()
				if at, ok := peerAt(pods); ok {
					v = theirs(p)[at]
				}
				values[p.name] = append(values[p.name], v)
			}
		}
	}
	order = slices.DeleteFunc(order, func(who string) bool {
		return !slices.ContainsFunc(values[who], func(v float64) bool { return !math.IsNaN(v) })
	})
	x := ""
	if slices.ContainsFunc(order, func(who string) bool { return strings.HasSuffix(who, "*") }) {
		x = "* measured on another day, on a machine of this size"
	}
	p := newPlot(title, x, y)
	if err := bars(p, groupsOf(all), order, values); err != nil {
		return err
	}
	if goal > 0 {
		level(p, goal, goalText)
	}
	return save(p, path)
}

func rollout(results []result, path string) error {
	return contend(results, path, "Update of all Pods to a new image, in place, no budget",
		"time until the last Pod serves, s", "time",
		map[string]string{"bare patches": "bare patches, in place", "bare loop": "bare loop, in place",
			"Kuperator": "Kuperator, in place"},
		[]string{"bare patches", "bare loop", "Kuperator"}, func(p peer) [2]float64 { return p.seconds }, 0, "")
}

func recreate(results []result, path string) error {
	return contend(results, path, "Update of all Pods by new Pods, at most 20 % out at a time",
		"time until the last Pod serves, s", "time",
		map[string]string{"Deployment": "Deployment, recreate, 20 %", "StatefulSet": "StatefulSet, recreate, 20 %",
			"Kuperator": "Kuperator, recreate, 20 %"},
		[]string{"Deployment", "StatefulSet", "Kuperator"}, nil, 0, "")
}

func outOfService(results []result, path string) error {
	return contend(results, path, "Out of service in an update in place (the restart itself: 0.1 s)",
		"mean for each Pod, s", "out of service",
		map[string]string{"Kuperator": "Kuperator, in place", "Kuperator, 20 %": "Kuperator, in place, 20 %",
			"bare loop": "bare loop, in place"},
		[]string{"bare loop", "Kuperator", "Kuperator, 20 %"}, func(p peer) [2]float64 { return p.out }, 2,
		"goal without a budget: 2 s")
}

// operations draws the writes of every operation.
func operations(results []result, path string) error {
	found := where(results, func(r result) bool {
		return r.Benchmark == "BenchmarkOperations" &&
			r.Name == "writes to Pods"
	})
	if len(found) == 0 {
		return errNotMeasured
	}
	var groups []string
	for _, r := range found {
		if !slices.Contains(groups, r.Series) {
			groups = append(groups, r.Series)
		}
	}
	series := []struct {
		name            string
		rules, adapters float64
	}{{"no rule", 0, 0}, {"1 rule", 1, 0}, {"3 rules", 3, 0}, {"1 rule, 1 adapter", 1, 1}, {"3 rules, 2 adapters", 3, 2}}
	values, names := map[string][]float64{}, []string{}
	for _, s := range series {
		any := false
		for _, g := range groups {
			v := find(found, "BenchmarkOperations", "writes to Pods", g,
				map[string]float64{"rules": s.rules, "adapters": s.adapters})
			any = any || !math.IsNaN(v)
			values[s.name] = append(values[s.name], v)
		}
		if any {
			names = append(names, s.name)
		}
	}
	for i := range groups {
		groups[i] = strings.ReplaceAll(groups[i], ", ", ",\n")
	}
	p := newPlot("Writes to each Pod, by operation", "", "writes for each Pod")
	if err := bars(p, groups, names, values); err != nil {
		return err
	}
	return save(p, path)
}

func growth(results []result, name string) []result {
	return where(results, func(r result) bool {
		return r.Benchmark == "BenchmarkGrowth" && r.Name == name && r.Series == "in place, 20 %" && r.Goal == ""
	})
}

func growthTime(results []result, path string) error {
	found := growth(results, "time")
	for i, r := range found { // seconds for 1,000 Pods, so that linear is level
		scale := 1000 / r.Params["pods"]
		found[i].Value, found[i].Min, found[i].Max = r.Value*scale, r.Min*scale, r.Max*scale
	}
	p := newPlot("Update in place under a rule of 20 %, among more and more Pods", "Pods", "time for 1,000 Pods, s")
	if err := lines(p, found, "pods", inSets); err != nil {
		return err
	}
	pods(p, found, "pods")
	return save(p, path)
}

func growthCost(results []result, path string) error {
	suite, server := growth(results, "CPU of the suite"), growth(results, "CPU of the API server")
	found := append(where(suite, oneSet), where(server, oneSet)...)
	p := newPlot("CPU of an update in place under a rule of 20 %", "Pods in one CollaSet", "CPU for each Pod, ms")
	if err := lines(p, found, "pods", func(r result) string {
		return map[string]string{"CPU of the suite": "all programs", "CPU of the API server": "API server"}[r.Name]
	}); err != nil {
		return err
	}
	pods(p, found, "pods")
	level(p, goalCPU, fmt.Sprintf("goal of all programs: %d ms", goalCPU))
	return save(p, path)
}

func oneSet(r result) bool { return r.Params["sets"] == 1 }

func inSets(r result) string {
	if oneSet(r) {
		return "in one CollaSet"
	}
	return fmt.Sprintf("in %s CollaSets", figure(r.Params["sets"]))
}

// cpu draws where the CPU of an update goes.
func cpu(results []result, path string) error {
	all := sizes(results, "BenchmarkRollout", "pods")
	values, order := map[string][]float64{},
		[]string{"collaset-controller", "lifecycle-controller", "podtransitionrule-controller", "resourceconsist-controller",
			"webhook-server"}
	measured := false
	for _, name := range order {
		for _, pods := range all {
			v := find(results, "BenchmarkRollout", "CPU of "+name, "Kuperator, in place", map[string]float64{"pods": pods})
			measured = measured || !math.IsNaN(v)
			values[name] = append(values[name], v)
		}
	}
	if !measured {
		return errNotMeasured
	}
	p := newPlot("CPU of the programs, update in place", "", "CPU seconds for 1,000 Pods")
	if err := bars(p, groupsOf(all), order, values); err != nil {
		return err
	}
	return save(p, path)
}

// memory draws what each program holds at rest.
func memory(results []result, path string) error {
	found := where(results, func(r result) bool {
		return r.Benchmark == "BenchmarkIdle" && r.Name == "RSS" && strings.Contains(r.Series, "-") &&
			r.Series != "kube-apiserver"
	})
	if len(found) == 0 {
		return errNotMeasured
	}
	type step struct{ managed, pods float64 }
	var steps []step
	for _, r := range found {
		if s := (step{r.Params["managed"], r.Params["pods"]}); !slices.Contains(steps, s) {
			steps = append(steps, s)
		}
	}
	values, order, groups := map[string][]float64{}, []string{}, []string{}
	for _, s := range steps {
		groups = append(groups, fmt.Sprintf("%s\nof %s", figure(s.managed), figure(s.pods)))
	}
	for _, r := range found {
		if slices.Contains(order, r.Series) {
			continue
		}
		order = append(order, r.Series)
		for _, s := range steps {
			values[r.Series] = append(values[r.Series],
				find(found, "BenchmarkIdle", "RSS", r.Series, map[string]float64{"managed": s.managed, "pods": s.pods}))
		}
	}
	p := newPlot("Memory at rest", "managed Pods of all Pods", "resident memory, MB")
	if err := bars(p, groups, order, values); err != nil {
		return err
	}
	level(p, goalRSSCollaSet, fmt.Sprintf("goal of collaset-controller at 10,000: %d MB", goalRSSCollaSet))
	level(p, goalRSSOthers, fmt.Sprintf("goal of the others: %d MB", goalRSSOthers), vg.Points(1), vg.Points(3))
	p.Y.Max *= 1.4
	return save(p, path)
}
