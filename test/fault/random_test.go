package fault

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/faultproxy"
	"kusionstack.io/kuperator/internal/testkit/faultreport"
	"kusionstack.io/kuperator/internal/testkit/observer"
)

// Random runs: users do what they like with three workloads while components die, lose replies and see nothing. A
// script of steps is drawn from a seed, and says everything that is needed to run it again; when it is at its end,
// everything is asked to come to rest, and has to. Time is not in the script but for pauses, so a failure may need
// several runs to show again. One that fails is shrunk to the steps that it takes.

// step is one line of a script.
type step struct {
	// Do is one of the keys of steps.
	Do string `json:"do"`
	// Set is the workload, Pod which of its Pods, modulo their number; N what is asked for.
	Set int `json:"set,omitempty"`
	Pod int `json:"pod,omitempty"`
	N   int `json:"n,omitempty"`
	// What is a label, a component, or a component and a kind of objects.
	What string `json:"what,omitempty"`
	// Pause is how long nothing is done after it, in milliseconds.
	Pause int `json:"pause,omitempty"`
}

const (
	scriptLength = 30
	randomPods   = 3 // of each workload, in the end
	randomSets   = 3
	// mostFrozen bounds how long a component sees nothing of a kind, in milliseconds.
	mostFrozen = 2500
	// notice is how long a Pod that a user deletes need not be known to be gone, and settled how long a rule's new
	// bound: a frozen view, and a restart, on a machine that has much else to do.
	notice  = 30 * time.Second
	settled = 8 * time.Second
)

// kinds are the steps with their weights: of a hundred, as many as that.
var kinds = []struct {
	do     string
	weight int
	draw   func(*rand.Rand, *step)
}{
	{"image", 30, func(r *rand.Rand, s *step) { s.N = 1 + r.IntN(3) }},
	{"scale", 20, func(r *rand.Rand, s *step) { s.N = r.IntN(6) }},
	{"rule", 5, func(r *rand.Rand, s *step) { s.N = 1 + r.IntN(3) }},
	{"partition", 5, func(r *rand.Rand, s *step) { s.N = r.IntN(4) }},
	{"delete", 10, func(r *rand.Rand, s *step) { s.Pod = r.IntN(6) }},
	{"evict", 10, func(r *rand.Rand, s *step) { s.Pod = r.IntN(6) }},
	{"label", 5, func(r *rand.Rand, s *step) {
		s.Pod, s.What = r.IntN(6), []string{appsv1alpha1.ToDeleteLabel, appsv1alpha1.ToReplaceLabel,
			podops.StayOfflineLabel}[r.IntN(3)]
	}},
	{"recreate", 5, func(*rand.Rand, *step) {}},
	{"kill", 3, drawComponent},
	{"kill-after-commit", 3, drawComponent},
	{"drop-reply", 3, drawComponent},
	{"conflict", 2, drawComponent},
	{"fail", 2, drawComponent},
	{"freeze", 5, func(r *rand.Rand, s *step) {
		drawComponent(r, s)
		s.What += " " + []string{"pods", "collasets", "podtransitionrules", "resourcecontexts"}[r.IntN(4)]
		s.N = 200 + r.IntN(mostFrozen-200)
	}},
}

func drawComponent(r *rand.Rand, s *step) { s.What = ofWorkloads()[r.IntN(len(ofWorkloads()))] }

// draw makes the script of a seed.
func draw(seed uint64) []step {
	r := rand.New(rand.NewPCG(seed, 0))
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	var script []step
	for range scriptLength {
		n := r.IntN(total)
		for _, k := range kinds {
			if n -= k.weight; n < 0 {
				s := step{Do: k.do, Set: r.IntN(randomSets), Pause: r.IntN(400)}
				k.draw(r, &s)
				script = append(script, s)
				break
			}
		}
	}
	return script
}

// lines is a script as it is kept: a step a line, in JSON.
func lines(script []step) []byte {
	var text bytes.Buffer
	for _, s := range script {
		line, err := json.Marshal(s)
		if err != nil {
			panic(err) // a struct of numbers and texts
		}
		text.Write(append(line, '\n'))
	}
	return text.Bytes()
}

func readScript(path string) ([]step, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var script []step
	for scanner := bufio.NewScanner(bytes.NewReader(content)); scanner.Scan(); {
		var s step
		if err := json.Unmarshal(scanner.Bytes(), &s); err != nil {
			return nil, fmt.Errorf("reading line %d of %s: %w", len(script)+1, path, err)
		}
		script = append(script, s)
	}
	return script, nil
}

// wild is one run of a script.
type wild struct {
	*play
	wait sync.WaitGroup // for what ends by itself
	mu   sync.Mutex
	ends []func()
	// faults counts those that were done, by kind.
	faults map[string]int
}

func setName(i int) string { return fmt.Sprintf("web%d", i) }

// workload is number i: updated in place with a Service, re-created with volumes, replaced.
func (w *wild) workload(i int) *appsv1alpha1.CollaSet {
	with := [randomSets][]func(*appsv1alpha1.CollaSet){
		0: nil,
		1: {policy(appsv1alpha1.PodUpdateRecreate),
			volumes(appsv1alpha1.DeletePersistentVolumeClaim, appsv1alpha1.DeletePersistentVolumeClaim)},
		2: {policy(appsv1alpha1.PodUpdateReplace)},
	}
	return w.set(setName(i), randomPods, with[i]...)
}

func (w *wild) setUp() error {
	if err := w.create(w.service(setName(0)), w.rule(setName(0), setName(0), 1), w.rule(setName(1), setName(1), 2),
		w.rule(setName(2), setName(2), 1)); err != nil {
		return err
	}
	for i := range randomSets {
		if err := w.create(w.workload(i)); err != nil {
			return err
		}
	}
	return w.rest(image1)
}

// rest waits until all workloads serve.
func (w *wild) rest(image string) error {
	var errs []error
	for i := range randomSets {
		errs = append(errs, w.serving(setName(i), randomPods, image))
	}
	return errors.Join(errs...)
}

// heal ends every fault and asks for one certain state.
func (w *wild) heal() error {
	w.wait.Wait()
	w.mu.Lock()
	ends := w.ends
	w.ends = nil
	w.mu.Unlock()
	for _, end := range ends {
		end()
	}
	for i := range randomSets {
		if err := w.await(setName(i)+" to be there", func(s *state) error {
			if set, ok := get[*appsv1alpha1.CollaSet](s, setName(i)); ok && set.DeletionTimestamp == nil {
				return nil
			}
			return errors.Join(w.create(w.workload(i)), errors.New("it is being created"))
		}); err != nil {
			return err
		}
		err := errors.Join(w.apply(step{Do: "partition", Set: i}), w.apply(step{Do: "rule", Set: i, N: 2}),
			w.image(setName(i), image3), w.scale(setName(i), randomPods))
		if err != nil {
			return err
		}
	}
	now, _ := w.plane.view.state(w.prefix)
	for _, pod := range these[*corev1.Pod](now) {
		if _, offline := pod.Labels[podops.StayOfflineLabel]; offline {
			if err := client.IgnoreNotFound(w.labelPod(pod, map[string]any{podops.StayOfflineLabel: nil})); err != nil {
				return err
			}
		}
	}
	return nil
}

// pod is a Pod of a workload; nil if there is none.
func (w *wild) pod(s step) *corev1.Pod {
	now, _ := w.plane.view.state(w.prefix)
	pods := podsOf(now, setName(s.Set))
	if len(pods) == 0 {
		return nil
	}
	return pods[s.Pod%len(pods)]
}

// apply does one step. What the API server refuses is no failure: users ask for many things.
func (w *wild) apply(s step) error {
	name := setName(s.Set)
	now, _ := w.plane.view.state(w.prefix)
	if _, there := get[*appsv1alpha1.CollaSet](now, name); !there {
		if err := w.create(w.workload(s.Set)); err != nil {
			return err
		}
	}
	pod := w.pod(s)
	switch s.Do {
	case "image":
		return w.image(name, fmt.Sprintf("web:%d", s.N))
	case "scale":
		return w.scale(name, s.N)
	case "rule":
		fresh := w.rule(name, name, s.N)
		return w.patch(&appsv1alpha1.PodTransitionRule{}, name,
			map[string]any{"spec": map[string]any{"rules": fresh.Spec.Rules}})
	case "partition":
		return w.spec(name,
			map[string]any{"updateStrategy": map[string]any{"rollingUpdate": map[string]any{"byPartition": map[string]any{"partition": s.N}}}})
	case "recreate":
		return w.delete(&appsv1alpha1.CollaSet{}, name) // the next step that finds it gone makes it again
	case "delete":
		if pod != nil {
			return w.plane.client.Delete(w.ctx, pod.DeepCopy())
		}
	case "evict":
		if pod != nil {
			return w.plane.client.SubResource("eviction").Create(w.ctx, pod.DeepCopy(),
				&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}})
		}
	case "label":
		if pod != nil {
			return w.labelPod(pod, map[string]any{s.What: "true"})
		}
	default:
		return w.disturb(s)
	}
	return nil
}

// disturb does a step that is a fault.
func (w *wild) disturb(s step) error {
	component, kind, _ := strings.Cut(s.What, " ")
	proc := w.cell.processes[component]
	if proc == nil {
		return fmt.Errorf("the step %+v names no component: give one of %v", s, ofWorkloads())
	}
	if s.Do == "kill" {
		proc.kill()
		w.count(s.Do)
		return nil
	}
	next := faultproxy.Match{Where: w.own, Ordinal: 1}
	fault, known := map[string]faultproxy.Fault{
		"kill-after-commit": {Action: faultproxy.KillAfterCommit, Match: next},
		"drop-reply":        {Action: faultproxy.DropReply, Match: next},
		"conflict":          {Action: faultproxy.FailBefore, Code: 409, Match: next},
		"fail":              {Action: faultproxy.FailBefore, Code: 500, Match: next},
		"freeze":            {Action: faultproxy.Freeze, Match: faultproxy.Match{Resource: kind}},
	}[s.Do]
	if !known {
		return fmt.Errorf("there is no step %q", s.Do)
	}
	armed := proc.proxy.Arm(fault)
	end := sync.OnceFunc(func() {
		if armed.Fired() > 0 {
			w.count(s.Do)
		}
		armed.Disarm()
	})
	w.mu.Lock()
	w.ends = append(w.ends, end)
	w.mu.Unlock()
	if s.Do == "freeze" {
		w.wait.Go(func() { w.pause(s.N); end() })
	}
	return nil
}

func (w *wild) count(fault string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults[fault]++
}

// pause waits for so many milliseconds.
func (w *wild) pause(ms int) {
	select {
	case <-w.ctx.Done():
	case <-time.After(time.Duration(ms) * time.Millisecond):
	}
}

// result is what came of a script.
type result struct {
	seed     uint64 // 0 for one that was not drawn
	script   []step
	failures []string
	faults   map[string]int
	checks   map[observer.Invariant]int
	took     time.Duration
}

// playScript runs a script in a cell, and lets everything come to rest.
func (p *plane) playScript(ctx context.Context, o *observer.Observer, c *cell, script []step) result {
	begin := time.Now()
	r := result{script: script}
	fail := func(what string, err error) {
		if err != nil {
			r.failures = append(r.failures, what+": "+err.Error())
		}
	}
	w := &wild{play: &play{ctx: ctx, plane: p, cell: c, prefix: fmt.Sprintf("p%d", numbers.Add(1))},
		faults: map[string]int{}}
	o.Forget(ctx, c.namespace)
	fail("setup", w.setUp())
	for _, s := range script {
		if len(r.failures) > 0 {
			break
		}
		if err := w.apply(s); err != nil && strings.Contains(err.Error(), "the step") {
			fail("script", err)
		}
		w.pause(s.Pause)
	}
	if len(r.failures) == 0 {
		fail("healing", w.heal())
		fail("convergence", w.rest(image3))
	}
	report := o.AtRest(ctx, c.namespace)
	for _, v := range report.Violations {
		r.failures = append(r.failures, v.String())
	}
	for _, proc := range w.processes() {
		r.failures = append(r.failures, proc.deaths()...)
	}
	fail("clearing", w.clear())
	fail("nothing left", w.cleared())
	r.faults, r.checks, r.took = w.faults, report.Checks, time.Since(begin)
	return r
}

// randomObserver is one that knows that users delete Pods.
func (p *plane) randomObserver(t *testing.T) *observer.Observer {
	t.Helper()
	o, err := observer.Start(context.WithoutCancel(t.Context()), p.cluster.RESTConfig(),
		observer.Options{StuckAfter: 2 * patience, Notice: notice, Settle: settled})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := o.Stop()
		assert.NoError(t, err)
		for _, c := range p.all { // the plane's own observer expects that Pods are not deleted
			p.observer.Forget(context.WithoutCancel(t.Context()), c.namespace)
		}
	})
	return o
}

// TestRandom draws scripts and plays them for a while, as many at a time as there are cells. FAULT_SEED and FAULT_TIME
// say from which seed and for how long, FAULT_SCRIPT names a script to play instead.
func TestRandom(t *testing.T) {
	notShort(t, "what random scripts have found is in TestRandomRegressions")
	p := start(t)
	o := p.randomObserver(t)
	if path := os.Getenv("FAULT_SCRIPT"); path != "" {
		script, err := readScript(path)
		require.NoError(t, err)
		r := p.playScript(t.Context(), o, p.all[0], script)
		require.Empty(t, strings.Join(r.failures, "\n"))
		return
	}
	seed, lasting := randomSettings(t)
	t.Logf("FAULT_SEED=%d FAULT_TIME=%s", seed, lasting)
	begin := time.Now()
	var mu sync.Mutex
	var results []result
	var wait sync.WaitGroup
	for next := seed; time.Since(begin) < lasting && !t.Failed(); next++ {
		c := <-p.cells
		wait.Go(func() {
			r := p.playScript(t.Context(), o, c, draw(next))
			r.seed = next
			mu.Lock()
			defer mu.Unlock()
			results = append(results, r)
			if len(r.failures) > 0 {
				t.Errorf("seed %d: %s\nthe script:\n%s", r.seed, strings.Join(r.failures, "\n"), lines(r.script))
			}
			p.cells <- c
		})
	}
	wait.Wait()
	reportRandom(t, results)
	for _, r := range results {
		if len(r.failures) > 0 && os.Getenv("FAULTS") == "all" {
			p.shrink(t, o, r)
			return // the others may be the same
		}
	}
}

func randomSettings(t *testing.T) (seed uint64, lasting time.Duration) {
	t.Helper()
	seed, lasting = 1, 5*time.Second // and the runs that have begun
	if os.Getenv("FAULTS") == "all" {
		seed, lasting = uint64(time.Now().Unix()), 10*time.Minute
	}
	if text := os.Getenv("FAULT_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "FAULT_SEED: give a number")
	}
	if text := os.Getenv("FAULT_TIME"); text != "" {
		var err error
		lasting, err = time.ParseDuration(text)
		require.NoError(t, err, "FAULT_TIME: give a duration, such as 10m")
	}
	return seed, lasting
}

func reportRandom(t *testing.T, results []result) {
	t.Helper()
	row := faultreport.Row{Suite: "random", Scenario: fmt.Sprintf("%d steps on %d workloads", scriptLength, randomSets),
		Faults: map[string]int{}, Invariants: map[string]int{}}
	for _, r := range results {
		row.Plans++
		row.Took += r.took
		for fault, n := range r.faults {
			row.Faults[fault] += n
		}
		for i, n := range r.checks {
			row.Invariants[string(i)] += n
		}
		if len(r.failures) > 0 {
			row.Failed++
			row.Failures = append(row.Failures, fmt.Sprintf("FAULT_SEED=%d\n%s", r.seed, strings.Join(r.failures, "\n")))
		}
	}
	require.NoError(t, faultreport.Add(row))
	t.Logf("%d scripts, %d failed, faults %v, checks %v", row.Plans, row.Failed, row.Faults, row.Invariants)
}

// shrink looks for a shorter script that fails, prints it and keeps it as an artifact.
func (p *plane) shrink(t *testing.T, o *observer.Observer, r result) {
	t.Helper()
	const most = 10 * time.Minute
	begin := time.Now()
	fails := func(script []step) bool {
		for range 2 { // what depends on time may need another run
			if time.Since(begin) > most {
				return false
			}
			if again := p.playScript(t.Context(), o, p.all[0], script); len(again.failures) > 0 {
				return true
			}
		}
		return false
	}
	small := shrunk(r.script, fails)
	folder, err := faultreport.Folder()
	require.NoError(t, err)
	path := filepath.Join(folder, fmt.Sprintf("random-%d.jsonl", r.seed))
	require.NoError(t, os.MkdirAll(folder, 0o755))
	require.NoError(t, os.WriteFile(path, lines(small), 0o644))
	t.Logf("%d of %d steps are left after %s, in %s; play them with FAULT_SCRIPT=%s\n%s", len(small), len(r.script),
		time.Since(begin).Round(time.Second), path, path, lines(small))
}

// shrunk takes steps away for as long as what is left fails: delta debugging (Zeller and Hildebrandt's ddmin,
// complements only).
func shrunk(script []step, fails func([]step) bool) []step {
	for parts := 2; len(script) > 1; {
		size := (len(script) + parts - 1) / parts
		smaller := []step(nil)
		for at := 0; at < len(script); at += size {
			rest := slices.Concat(script[:at], script[min(at+size, len(script)):])
			if fails(rest) {
				smaller = rest
				break
			}
		}
		switch {
		case smaller != nil:
			script, parts = smaller, max(parts-1, 2)
		case size == 1:
			return script
		default:
			parts = min(2*parts, len(script))
		}
	}
	return script
}

// TestRandomRegressions plays the scripts that once failed.
func TestRandomRegressions(t *testing.T) {
	paths, err := filepath.Glob("testdata/random/*.jsonl")
	require.NoError(t, err)
	require.NotEmpty(t, paths, "testdata/random holds the scripts")
	p := start(t)
	o := p.randomObserver(t)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			script, err := readScript(path)
			require.NoError(t, err)
			r := p.playScript(t.Context(), o, p.all[0], script)
			require.Empty(t, strings.Join(r.failures, "\n"))
		})
	}
}

func TestAScriptIsOfItsSeed(t *testing.T) {
	require.Equal(t, draw(7), draw(7))
	require.NotEqual(t, draw(7), draw(8))
	path := filepath.Join(t.TempDir(), "script.jsonl")
	require.NoError(t, os.WriteFile(path, lines(draw(7)), 0o644))
	again, err := readScript(path)
	require.NoError(t, err)
	require.Equal(t, draw(7), again)
	for _, k := range kinds {
		require.True(t, slices.ContainsFunc(slices.Concat(draw(1), draw(2), draw(3), draw(4), draw(5), draw(6), draw(7),
			draw(8)), func(s step) bool { return s.Do == k.do }), "%s is drawn", k.do)
	}
}

func TestShrunk(t *testing.T) {
	script := draw(3)
	needed := []step{script[4], script[17], script[29]}
	runs := 0
	small := shrunk(script, func(s []step) bool {
		runs++
		return !slices.ContainsFunc(needed, func(n step) bool { return !slices.Contains(s, n) })
	})
	require.Equal(t, needed, small)
	require.Less(t, runs, 100)
}
