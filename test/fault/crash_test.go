package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/faultproxy"
	"kusionstack.io/kuperator/internal/testkit/faultreport"
	"kusionstack.io/kuperator/internal/testkit/nightly"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

const (
	// shortPlans is how many plans `make test` runs, besides the regressions, and nightlyPlans a run of everything.
	shortPlans, nightlyPlans = 30, 230
	// shortStep: `make test` plays one of so many scenarios, besides those of the regressions. Each costs a run without
	// a fault, however few plans there are of it.
	shortStep = 4
	// linger is how many plans of a cell are over and watched for writes before the first of them is cleared away.
	linger = 2
	// settle is how long after the end state is reached something may still be written: what is written of it, and not
	// in the snapshot.
	settle = 500 * time.Millisecond
	// retryAfter is when a client may repeat what was refused with 429, as faultproxy says.
	retryAfter = time.Second
	// quiet is how long nothing may be written when all plans are over.
	quiet = 10 * time.Second
)

// reference is a scenario without a fault.
type reference struct {
	snapshot         []string
	created, deleted map[string]int
	// writes counts each component's writes by key, and most those of the longest steps.
	writes, most map[string]map[string]int
}

// outcome is what became of a plan.
type outcome struct {
	plan      plan
	play      *play
	ref       *reference
	unobserve func()
	fired     bool
	began     time.Time
	converged time.Time
	took      time.Duration

	// unmarked are the Pods that were taken away without the label to-delete before the play was cleared away.
	unmarked []string

	mu       sync.Mutex
	failures []string
	checks   map[string]int
	// spent is how long each part of the run took.
	spent map[string]time.Duration
	lap   time.Time
}

// part records that a part of the run is over.
func (o *outcome) part(name string) {
	o.spent[name] += time.Since(o.lap)
	o.lap = time.Now()
}

// timing says how many plans a second there were, and where the time of one went.
func timing(outcomes []*outcome, since time.Time) string {
	took, parts, n := time.Since(since), map[string]time.Duration{}, max(len(outcomes), 1)
	for _, o := range outcomes {
		for part, spent := range o.spent {
			parts[part] += spent
		}
	}
	text := fmt.Sprintf("%d plans in %s, %.1f a second; of one plan:", len(outcomes), took.Round(time.Second),
		float64(len(outcomes))/took.Seconds())
	for _, part := range sortedKeys(parts) {
		text += fmt.Sprintf(" %s %s", part, (parts[part] / time.Duration(n)).Round(time.Millisecond))
	}
	return text
}

func (o *outcome) check(oracle string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.checks[oracle]++
	if err != nil {
		o.failures = append(o.failures, oracle+": "+err.Error())
	}
}

func newOutcome(pl plan) *outcome {
	return &outcome{plan: pl, began: time.Now(), lap: time.Now(), checks: map[string]int{},
		spent: map[string]time.Duration{}}
}

// numbers gives every run of a scenario its own prefix.
var numbers atomic.Int64

// run plays a scenario once, with the plan's fault if there is a reference to compare it with.
func (p *plane) run(ctx context.Context, c *cell, s scenario, pl plan, ref *reference) *outcome {
	o := newOutcome(pl)
	o.ref = ref
	o.play = &play{ctx: ctx, scenario: s, plane: p, cell: c, prefix: fmt.Sprintf("p%d", numbers.Add(1))}
	o.unobserve = o.play.observe()
	defer func() {
		o.took = time.Since(o.began)
		for _, proc := range o.play.processes() {
			for _, death := range proc.deaths() {
				o.check("processes", errors.New(death))
			}
		}
		o.check("processes", nil)
	}()
	p.narrowed(c, s.narrow)
	if s.setup != nil {
		if err := s.setup(o.play); err != nil {
			o.check("setup", err)
			return o
		}
		if err := o.play.idle(150 * time.Millisecond); err != nil {
			o.check("setup", err)
			return o
		}
	}
	o.part("setup")
	o.play.begin()
	end, disarm := func() {}, func() {}
	if ref != nil {
		proc := c.processes[pl.component]
		if pl.component == suite.Webhook {
			proc = p.webhook
		}
		fault := o.inject(proc)
		end, disarm = fault.end, fault.disarm
		defer func() {
			fault.disarm()
			o.fired = fault.fired()
		}()
	}
	if err := s.steps(o.play); err != nil {
		o.check("convergence", err)
		return o
	}
	o.part("steps")
	end()
	o.check("convergence", nil)
	if ref == nil {
		o.check("quiet", o.play.idle(restsAfter(p, o.play.prefix)))
	} else {
		o.check("end state", o.play.await("the end state", o.endState))
		disarm() // a fault that met its write only with the last is done by now
		o.check("end state", o.play.await("the end state", o.endState))
		o.retried(c.processes[pl.component])
	}
	o.part("end state")
	o.converged = time.Now()
	if ref != nil {
		// What is not as it should be is among the observer's violations, which judge looks at.
		o.check("at rest", ctx.Err())
		p.observer.AtRest(ctx, c.namespace)
		o.part("at rest")
	}
	return o
}

// restsAfter is how long nothing may have been written for a reference to be at its end: a rule counts Pods some time
// after it has decided about them.
func restsAfter(p *plane, prefix string) time.Duration {
	now, _ := p.view.state(prefix)
	if len(these[*appsv1alpha1.PodTransitionRule](now)) > 0 {
		return 3 * time.Second
	}
	return time.Second
}

// retried waits for what was refused with Retry-After: the client's library sends the same request again after that
// time, whatever the component has decided meanwhile. A process that has ended since sends nothing; there is nothing
// to wait for then.
func (o *outcome) retried(proc *process) {
	if proc == nil || modes[o.plan.mode].Code != http.StatusTooManyRequests {
		return
	}
	for {
		var refused *faultproxy.Write
		for _, w := range o.play.ownWrites(proc) {
			switch {
			case w.At.Before(o.play.began):
			case w.Fault == faultproxy.FailBefore:
				refused = &w
			case refused != nil && w.Key() == refused.Key() && (w.Name == refused.Name || w.Verb == "create") &&
				bytes.Equal(w.Body, refused.Body):
				return
			}
		}
		if refused == nil || time.Since(refused.At) > retryAfter+settle {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (o *outcome) endState(s *state) error {
	if diff := cmp.Diff(o.ref.snapshot, s.snapshot(o.play.scenario)); diff != "" {
		return fmt.Errorf("it differs from the run without a fault (-without +with):\n%s", diff)
	}
	return nil
}

// retire judges what shows later, and clears a plan away; the returned function waits until that is done.
func (o *outcome) retire() (wait func()) {
	if o.ref != nil && !o.converged.IsZero() {
		later := o.play.since(o.converged.Add(settle))
		var err error
		if len(later) > 0 {
			err = fmt.Errorf("%d writes after the end state was reached, the first %s by %s, %s after:\n%s", len(later),
				later[0].key, later[0].component,
				later[0].at.Sub(o.converged), strings.Join(o.play.told(later[0].component), "\n"))
		}
		o.check("quiet", err)
		now, _ := o.play.plane.view.state(o.play.prefix)
		o.unmarked = now.unmarked
		o.check("end state", o.endState(now))
		o.check("economy", o.economy(now))
	}
	err := o.play.clear()
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.check("nothing left", errors.Join(err, o.play.cleared()))
		o.founded()
		o.unobserve()
	}()
	return func() { <-done }
}

// economy compares how much was done with how much is without the fault.
func (o *outcome) economy(now *state) error {
	var errs []error
	for _, kind := range []string{"Pod", "PersistentVolumeClaim", "ControllerRevision", "ResourceContext"} {
		same := now.created[kind] == o.ref.created[kind] && now.deleted[kind] == o.ref.deleted[kind]
		// its place is filled at the revision before, for a while
		if kind == "Pod" && o.plan.key == "create pods" && o.plan.mode == "Forbidden" {
			more := now.created[kind] - o.ref.created[kind]
			same = more == now.deleted[kind]-o.ref.deleted[kind] && (more == 0 || more == 1)
		}
		if kind == "ResourceContext" { // one that has become empty is removed, or taken into use again before that
			same = now.created[kind]-now.deleted[kind] == o.ref.created[kind]-o.ref.deleted[kind]
		}
		if !same {
			errs = append(errs, fmt.Errorf("%s: %d created and %d deleted, without the fault %d and %d", kind, now.created[kind],
				now.deleted[kind], o.ref.created[kind], o.ref.deleted[kind]))
		}
	}
	counts := o.play.counts()
	for _, component := range append(faulted(), suite.Webhook) {
		if err := thrifty(counts[component], o.ref.most[component]); err != nil {
			errs = append(errs, fmt.Errorf("%s %w:\n%s", component, err, strings.Join(o.play.told(component), "\n")))
		}
	}
	return errors.Join(errs...)
}

// thrifty compares a component's writes, by key, with those without the fault.
func thrifty(with, without map[string]int) error {
	if w, wo := total(with), total(without); w > 2*wo+10 {
		return fmt.Errorf("wrote %d times, without the fault %d", w, wo)
	}
	return nil
}

func total(counts map[string]int) int {
	n := 0
	for _, k := range counts {
		n += k
	}
	return n
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// refer runs a scenario without a fault, and once more with its longest steps if it has any. A short run plays it once,
// others twice, to see whether it ends in two ways.
func (p *plane) refer(ctx context.Context, c *cell, s scenario) (*reference, error) {
	ref, runs := &reference{writes: map[string]map[string]int{}}, 2
	if isShort() {
		runs = 1
	}
	for range runs {
		if err := p.referTo(ctx, c, s, ref, ref.writes); err != nil {
			return nil, err
		}
	}
	ref.most = ref.writes
	if s.longest != nil {
		s.steps, ref.most = s.longest, map[string]map[string]int{}
		if err := p.referTo(ctx, c, s, ref, ref.most); err != nil {
			return nil, err
		}
	}
	return ref, nil
}

// referTo runs a scenario once without a fault. It has to end as it did before; its writes are counted where they are
// more.
func (p *plane) referTo(
	ctx context.Context, c *cell, s scenario, ref *reference, writes map[string]map[string]int,
) error {
	o := p.run(ctx, c, s, plan{scenario: s.name}, nil)
	now, _ := p.view.state(o.play.prefix)
	snapshot, counts := now.snapshot(s), o.play.counts()
	failed := func() error {
		if len(o.failures) == 0 {
			return nil
		}
		return fmt.Errorf("%s without a fault: %s\n%s", s.name, strings.Join(o.failures, "\n"), strings.Join(snapshot, "\n"))
	}
	if err := failed(); err != nil {
		return err
	}
	gone := o.retire()
	p.leave(func() error { gone(); return failed() })
	if diff := cmp.Diff(ref.snapshot, snapshot); ref.snapshot != nil && diff != "" {
		return fmt.Errorf("%s ends in two ways, without a fault:\n%s", s.name, diff)
	}
	ref.snapshot, ref.created, ref.deleted = snapshot, now.created, now.deleted
	for component, keys := range counts {
		if writes[component] == nil {
			writes[component] = map[string]int{}
		}
		for key, n := range keys {
			writes[component][key] = max(writes[component][key], n)
		}
	}
	return nil
}

// leave keeps what is judged when nothing waits for it any more: garbage collection of a control plane that has just
// started takes half a minute to know our kinds.
func (p *plane) leave(judge func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = append(p.left, judge)
}

// leftovers waits for what was left, and returns what was wrong with it.
func (p *plane) leftovers() error {
	p.mu.Lock()
	left := p.left
	p.left = nil
	p.mu.Unlock()
	var errs []error
	for _, judge := range left {
		errs = append(errs, judge())
	}
	return errors.Join(errs...)
}

// each calls do for all items, as many at a time as there are cells.
func each[T any](p *plane, items []T, do func(*cell, T)) {
	var wg sync.WaitGroup
	for _, item := range items {
		c := <-p.cells
		wg.Go(func() {
			do(c, item)
			p.cells <- c
		})
	}
	wg.Wait()
}

// TestCrashAtEveryWrite breaks each component at its writes, in every scenario, and compares with the run without a
// fault.
func TestCrashAtEveryWrite(t *testing.T) {
	chosen := plansAskedFor(t, func(p plan) bool { return !ofViews(p.mode) && !ofCertificates(p) })
	p := start(t)
	refs := p.references(t, chosen)
	plans := chosen
	if len(plans) == 0 {
		for _, s := range scenarios() {
			if refs[s.name] != nil {
				plans = append(plans, plansFor(s, refs[s.name])...)
			}
		}
		t.Logf("%d plans in all", len(plans))
		plans = selection(t, plans, onceFailed, ofNight(shortPlans, nightlyPlans), 0)
	}
	begin := time.Now()
	outcomes := p.execute(t, plans, refs)
	t.Log(timing(outcomes, begin))
	p.judge(t, outcomes)
	report(t, "crash at every write", outcomes)
}

// isShort reports whether this is the run of `make test`, which plays only some of the scenarios.
func isShort() bool {
	asked := []string{"PLAN", "FAULT_PLANS", "FAULTS", "FAULT_SCENARIO", "FAULT_SCRIPT", "FAULT_SEED", "FAULT_TIME"}
	if slices.ContainsFunc(asked, func(name string) bool { return strings.TrimSpace(os.Getenv(name)) != "" }) {
		return false
	}
	return !nightly.Run()
}

// notShort skips a test in a short run.
func notShort(t *testing.T, reason string) {
	t.Helper()
	if isShort() {
		nightly.Only(t, reason)
	}
}

// shortScenarios are those that a short run plays: all that a plan once failed in, and some of the others.
func shortScenarios(t *testing.T) map[string]bool {
	t.Helper()
	played := map[string]bool{}
	for _, line := range slices.Concat(onceFailed, staleFailed) {
		p, err := parsePlan(line)
		require.NoError(t, err)
		played[p.scenario] = true
	}
	others := slices.DeleteFunc(scenarios(), func(s scenario) bool { return played[s.name] })
	for i := 0; i < len(others); i += shortStep {
		played[others[i].name] = true
	}
	return played
}

func ofNight(short, nights int) int {
	if nightly.Run() {
		return nights
	}
	return short
}

// selection is what FAULTS and FAULT_PLANS ask for: so many of all plans, or what `make test` runs. Those that once
// failed are in it unless a number was given. most is how many there are of all; 0 means no bound.
func selection(t *testing.T, plans []plan, failed []string, short, most int) []plan {
	t.Helper()
	text := os.Getenv("FAULT_PLANS")
	switch {
	case text != "":
		n, err := strconv.Atoi(text)
		require.Truef(t, err == nil && n > 0, "FAULT_PLANS is %q: give a number of plans", text)
		return fairSample(plans, n)
	case os.Getenv("FAULTS") == "all" && most == 0:
		return plans
	case os.Getenv("FAULTS") == "all":
		short = most
	}
	var chosen []plan
	isWanted := wantedScenario(t, nil)
	for _, line := range failed {
		p, err := parsePlan(line)
		require.NoError(t, err)
		if isWanted(p.scenario) {
			chosen = append(chosen, p)
		}
	}
	return append(chosen, fairSample(plans, short)...)
}

// plansAskedFor are those of the variable PLAN, one a line, that the test runs. If there are only others, it is
// skipped.
func plansAskedFor(t *testing.T, mine func(plan) bool) []plan {
	t.Helper()
	var plans []plan
	asked := strings.TrimSpace(os.Getenv("PLAN"))
	for line := range strings.Lines(asked) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		p, err := parsePlan(line)
		require.NoError(t, err)
		if mine(p) {
			plans = append(plans, p)
		}
	}
	if asked != "" && len(plans) == 0 {
		t.Skip("PLAN has plans for other tests")
	}
	return plans
}

// wantedScenario reports whether plans of a scenario are run: those of FAULT_SCENARIO, and of the chosen plans if there
// are any.
func wantedScenario(t *testing.T, chosen []plan) func(name string) bool {
	t.Helper()
	pattern := os.Getenv("FAULT_SCENARIO")
	if pattern == "" {
		pattern = ".*"
	}
	named, err := regexp.Compile("^(" + pattern + ")$")
	require.NoError(t, err, "FAULT_SCENARIO is no regular expression")
	require.True(t, slices.ContainsFunc(scenarioNames(), named.MatchString),
		"FAULT_SCENARIO %s names no scenario", pattern)
	return func(name string) bool {
		return named.MatchString(name) && (len(chosen) == 0 ||
			slices.ContainsFunc(chosen, func(p plan) bool { return p.scenario == name }))
	}
}

func (p *plane) references(t *testing.T, chosen []plan) map[string]*reference {
	t.Helper()
	var mu sync.Mutex
	refs := map[string]*reference{}
	isWanted := wantedScenario(t, chosen)
	wanted := slices.DeleteFunc(scenarios(), func(s scenario) bool { return !isWanted(s.name) })
	if isShort() {
		played := shortScenarios(t)
		wanted = slices.DeleteFunc(wanted, func(s scenario) bool { return !played[s.name] })
	}
	if len(wanted) == 0 {
		t.Skip("FAULT_SCENARIO has scenarios of other tests")
	}
	if p.narrow == "" && slices.ContainsFunc(wanted, func(s scenario) bool { return s.narrow }) {
		p.narrow = p.buildChanged(t, "narrow", suite.CollaSet, narrowBounds)
	}
	each(p, wanted, func(c *cell, s scenario) {
		begin := time.Now()
		mu.Lock()
		ref, err := p.refs[s.name], error(nil)
		mu.Unlock()
		if ref == nil {
			ref, err = p.refer(t.Context(), c, s)
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			t.Error(err)
			return
		}
		refs[s.name], p.refs[s.name] = ref, ref
		t.Logf("%s: %s, in %s", s.name, fmt.Sprint(ref.writes), time.Since(begin).Round(10*time.Millisecond))
	})
	return refs
}

// execute runs plans over the cells: those that fault webhook-server, which all share, one after the other when the
// others are over.
func (p *plane) execute(t *testing.T, plans []plan, refs map[string]*reference) []*outcome {
	t.Helper()
	byName := map[string]scenario{}
	for _, s := range scenarios() {
		byName[s.name] = s
	}
	var mu sync.Mutex
	var outcomes []*outcome
	var waits []func()
	one := func(c *cell, pl plan) {
		ref := refs[pl.scenario]
		if ref == nil {
			t.Errorf("%s: its scenario does not run without a fault", pl)
			return
		}
		o := p.run(t.Context(), c, byName[pl.scenario], pl, ref)
		c.lingering = append(c.lingering, o)
		var wait func()
		if len(c.lingering) > linger {
			wait = c.lingering[0].retire()
			c.lingering = c.lingering[1:]
		}
		mu.Lock()
		defer mu.Unlock()
		outcomes = append(outcomes, o)
		if wait != nil {
			waits = append(waits, wait)
		}
		if len(outcomes)%100 == 0 {
			fmt.Fprintf(os.Stderr, "%d of %d plans\n", len(outcomes), len(plans))
		}
	}
	alone := func(pl plan) bool { return pl.component == suite.Webhook }
	each(p, slices.DeleteFunc(slices.Clone(plans), alone), one)
	for _, pl := range plans {
		if alone(pl) {
			one(p.all[0], pl)
		}
	}
	_ = pass(t.Context(), quiet) // what follows reports an early end
	for _, c := range p.all {
		for _, o := range c.lingering {
			waits = append(waits, o.retire())
		}
		c.lingering = nil
	}
	for _, wait := range waits {
		wait()
	}
	assert.NoError(t, p.leftovers())
	return outcomes
}

// judge adds what the observer and the logs tell.
func (p *plane) judge(t *testing.T, outcomes []*outcome) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	seen := p.observer.Settled(ctx)
	require.NoError(t, ctx.Err(), "the observer has not seen everything")
	byPrefix := map[string]*outcome{}
	for _, o := range outcomes {
		byPrefix[o.play.prefix] = o
		o.check("promises", nil)
		for _, verdict := range []func(string) (int, []observer.Violation){p.provider.verdict, p.jobs.verdict} {
			checks, broken := verdict(o.play.prefix)
			o.checks["promises"] += checks
			for _, v := range broken {
				o.check("promises", errors.New(v.String()))
			}
		}
	}
	for _, v := range seen.Violations {
		if p.judged[v] { // by an earlier test
			continue
		}
		p.judged[v] = true
		_, name, _ := strings.Cut(v.Object, "/")
		switch o := byPrefix[prefixOf(name)]; {
		case o == nil:
			t.Errorf("in no plan: %s", v)
		case o.unasked(v):
		default:
			o.check("promises", errors.New(v.String()))
		}
	}
	for _, c := range p.all {
		for _, proc := range c.processes {
			for _, text := range proc.blunders() {
				t.Errorf("%s in %s: %s", proc.component, c.namespace, text)
			}
		}
	}
}

// unasked reports whether a budget was exceeded because the API server could not ask webhook-server, which the plan
// has ended: an eviction goes on then, and counts (docs/deletion.md). The Pod it took away does not have the label
// to-delete.
func (o *outcome) unasked(v observer.Violation) bool {
	isOut := func(pod string) bool { return strings.Contains(v.String(), pod) }
	ended := o.plan.component == suite.Webhook && o.fired && strings.HasPrefix(o.plan.mode, "Kill")
	return ended && v.Invariant == observer.Budget && slices.ContainsFunc(o.unmarked, isOut)
}

// injected is a fault at work.
type injected struct {
	// fired reports whether it was done.
	fired func() bool
	// end ends what lasts, when the users have done their steps. It returns when nothing of it is left.
	end func()
	// disarm ends what is still waiting for its write.
	disarm func()
}

// inject begins the fault of the plan.
func (o *outcome) inject(proc *process) injected {
	if ofViews(o.plan.mode) {
		return o.blur(proc)
	}
	fault := modes[o.plan.mode]
	fault.Match = o.trigger()
	armed := proc.proxy.Arm(fault)
	return injected{fired: func() bool { return armed.Fired() > 0 }, end: func() {}, disarm: armed.Disarm}
}

// trigger is the plan's write.
func (o *outcome) trigger() faultproxy.Match {
	return faultproxy.Match{Key: o.plan.key, Ordinal: o.plan.ordinal, Where: o.play.own}
}

// report fails the test for plans that failed, and adds the rows of the report.
func report(t *testing.T, name string, outcomes []*outcome) {
	t.Helper()
	rows := map[string]*faultreport.Row{}
	for _, o := range outcomes {
		at := o.plan.scenario + "|" + o.plan.component
		row := rows[at]
		if row == nil {
			row = &faultreport.Row{Suite: name, Scenario: o.plan.scenario, Component: o.plan.component, Faults: map[string]int{},
				Invariants: map[string]int{}}
			rows[at] = row
		}
		row.Plans++
		row.Took += o.took
		for name, n := range o.checks {
			row.Invariants[name] += n
		}
		if o.fired {
			row.Faults[o.plan.mode]++
		}
		switch {
		case len(o.failures) > 0:
			row.Failed++
			text := fmt.Sprintf("%s (%stook %s, fired %t)\n%s", o.plan, o.named(), o.took.Round(10*time.Millisecond), o.fired,
				strings.Join(o.failures, "\n"))
			row.Failures = append(row.Failures, text)
			t.Error(text)
		case !o.fired:
			row.NotFired++
		}
	}
	for _, at := range sortedKeys(rows) {
		require.NoError(t, faultreport.Add(*rows[at]))
		row := rows[at]
		t.Logf("%s %s: %d plans, %d passed, %d failed, %d not fired", row.Scenario, row.Component, row.Plans, row.Passed(),
			row.Failed, row.NotFired)
	}
}

// named are the objects of the plan, if they have names of their own.
func (o *outcome) named() string {
	if o.play == nil {
		return ""
	}
	return o.play.prefix + ", "
}

// onceFailed are plans that found a defect, each with what was wrong.
var onceFailed = []string{
	// The Pod was of a revision that the CollaSet which takes it in did not know, and was re-created.
	"move-pod|collaset-controller|patch pods|1|KillAfterCommit",
	// The repeat of what was refused came when the plan was over: the suite was wrong.
	"rollback|collaset-controller|patch pods|7|TooManyRequests",
	// A decision left a change to the step that was making it, which met a conflict; the controller did not look again.
	"service-and-rule|collaset-controller|patch pods|6|Conflict",
	// The begin of a Pod whose workload had waited for others, and had no other Pod under way, met a conflict; the
	// controller did not look again.
	"one-by-one-crowd|collaset-controller|patch pods|5|Conflict",
	"one-by-one-crowd|collaset-controller|patch pods|9|Conflict",
	// The judge did not know that an eviction passes the rules while there is no webhook-server.
	"evict-in-update|webhook-server|patch pods|2|KillBefore",
}
