package setplan_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// What a Rollout asks of a Pod, however that has moved on since, is what a new decision plans for it.
// The draws go on until both steps were among them: finishes are rare.
func TestAStepIsAmongThoseThatADecisionPlans(t *testing.T) {
	steps := map[setplan.Step]int{}
	for range 10 {
		checkSteps(t, steps)
		if steps[setplan.StepChange] > 0 && steps[setplan.StepFinish] > 0 {
			return
		}
	}
	require.Positive(t, steps[setplan.StepChange], "some Pod was to be changed")
	require.Positive(t, steps[setplan.StepFinish], "some Pod was to be finished")
}

func checkSteps(t *testing.T, steps map[setplan.Step]int) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(1, 6).Draw(t, "replicas"))
		w.Policy = rapid.SampledFrom([]appsv1alpha1.PodUpdatePolicy{
			appsv1alpha1.PodUpdateRecreate, appsv1alpha1.PodUpdateInPlaceIfPossible, appsv1alpha1.PodUpdateInPlaceOnly,
			appsv1alpha1.PodUpdateReplace,
		}).Draw(t, "policy")
		w.older = rapid.Bool().Draw(t, "lifecycle-controller is older")
		w.resizes, w.infeasible = rapid.Bool().Draw(t, "resizes"), rapid.Bool().Draw(t, "infeasible")
		w.budget = rapid.IntRange(0, 3).Draw(t, "budget")
		passes := sometimes(rapid.Uint64().Draw(t, "seed"), rapid.Float64Range(0.3, 1).Draw(t, "chance"))
		for range 5 {
			w.round(passes)
		}
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			w.template(rapid.SampledFrom([]string{"r1", "r2", "r3"}).Draw(t, "revision"))
			w.Partition = rapid.IntRange(0, 4).Draw(t, "partition")
			w.Replicas = rapid.IntRange(1, 7).Draw(t, "replicas")
			for range rapid.IntRange(1, 12).Draw(t, "rounds") {
				plan := setplan.Decide(&w.Snapshot)
				w.apply(plan, passes)
				w.settle(passes)
				for name, step := range due(w, plan.Rollout) {
					steps[step]++
					next := setplan.Decide(&w.Snapshot)
					want := map[setplan.Step][]*setplan.Pod{setplan.StepChange: changed(next), setplan.StepFinish: next.Finishes}[step]
					require.True(t, among(want, name), "step %d of %s is not planned\n%v", step, name, w.log)
				}
			}
		}
		require.Empty(t, w.problems)
	})
}

// underWay counts the Pods on which an operation is under way, or that are on their way back.
func (w *world) underWay() int {
	n := 0
	for _, p := range w.live() {
		if len(podops.Operations(p.View)) > 0 || !p.View.ServiceAvailable() {
			n++
		}
	}
	return n
}

// step makes the step of one Pod.
func (w *world) step(name string, step setplan.Step) {
	plan := setplan.Plan{}
	switch p := w.find(name); step {
	case setplan.StepChange:
		plan.Changes = []setplan.PodChange{{Pod: p, To: setplan.Form{Revision: w.UpdatedRevision}}}
	case setplan.StepFinish:
		plan.Finishes = []*setplan.Pod{p}
	case setplan.StepNone, setplan.StepBegin:
	}
	w.apply(plan, always)
}

func TestWhoIsNext(t *testing.T) {
	w := atRest(t, 2000, nil)
	w.template("r2")
	w.MaxUnavailable = 26
	plan := setplan.Decide(&w.Snapshot)
	require.Len(t, plan.Begins, 26)
	require.Len(t, plan.Rollout.Next, 1024)
	ids := map[types.UID]int{}
	for i := range w.Pods {
		ids[w.Pods[i].UID()] = w.Pods[i].ID
	}
	for i, next := range plan.Rollout.Next {
		require.Equal(t, 2000-1-26-i, ids[next.UID], "in the order in which decisions begin")
	}
	for name, change := range map[string]func(*world){
		"Pods bake":     func(w *world) { w.MinReady = time.Second },
		"re-creation":   func(w *world) { w.Policy = appsv1alpha1.PodUpdateRecreate },
		"there is room": func(w *world) { w.MaxUnavailable = 100 },
		"paused":        func(w *world) { w.Paused = true },
	} {
		w := atRest(t, 100, nil)
		w.template("r2")
		w.MaxUnavailable = 26
		require.NotEmpty(t, setplan.Decide(&w.Snapshot).Rollout.Next)
		change(w)
		assert.Empty(t, setplan.Decide(&w.Snapshot).Rollout.Next, name)
	}
}

func TestPodsThatAreNotFitAreNotBegun(t *testing.T) {
	w := atRest(t, 40, nil)
	w.template("r2")
	w.MaxUnavailable = 10
	order := setplan.Decide(&w.Snapshot).Rollout
	require.NotEmpty(t, order.Next)
	next := w.find(order.Next[0].Name)
	queued := order.Next[0]
	queued.Version = "another"
	require.Equal(t, setplan.StepBegin, order.NextStep(next))
	require.True(t, queued.MayBegin(order, next))
	for name, change := range map[string]func(*setplan.Pod){
		"another Pod":      func(p *setplan.Pod) { p.View.UID = "other" },
		"another revision": func(p *setplan.Pod) { p.Revision = "r3" },
		"updated":          func(p *setplan.Pod) { p.Revision = "r2" },
		"being deleted":    func(p *setplan.Pod) { p.View.Terminating = true },
		"to be excluded":   func(p *setplan.Pod) { p.Excluded = true },
		"to be deleted":    func(p *setplan.Pod) { p.ToDelete = true },
		"being replaced":   func(p *setplan.Pod) { p.Replacing = true },
		"not selected":     func(p *setplan.Pod) { p.Selected = false },
		"not in service":   func(p *setplan.Pod) { p.View.Labels = nil },
		"recorded":         func(p *setplan.Pod) { p.Recorded = true },
		"under way": func(p *setplan.Pod) {
			change, err := podops.Begin(p.View, podops.Request{ID: setplan.OperatorID, Type: podops.TypeUpdate}, w.Now)
			require.NoError(t, err)
			p.View = change.Apply(p.View)
		},
	} {
		p := *next
		p.Facts = nil
		change(&p)
		assert.False(t, queued.MayBegin(order, &p), name)
	}
	queued.Serving = false
	require.False(t, queued.MayBegin(order, next), "it was allowed because it did not serve")
	queued.Serving = true
	require.False(t, queued.MayBegin(nil, next),
		"where no step follows from a Pod alone, it has to be as the decision saw it")
	queued.Version = next.View.ResourceVersion
	require.True(t, queued.MayBegin(nil, next))
}

// due are the steps that a Rollout asks for, by Pod.
func due(w *world, order *setplan.Rollout) map[string]setplan.Step {
	steps := map[string]setplan.Step{}
	for i := range w.Pods {
		if step := order.NextStep(&w.Pods[i]); step == setplan.StepChange || step == setplan.StepFinish {
			steps[w.Pods[i].Name()] = step
		}
	}
	return steps
}

func among(pods []*setplan.Pod, name string) bool {
	for _, p := range pods {
		if p.Name() == name {
			return true
		}
	}
	return false
}

func TestPodsThatAreNotAsTheyWereOrderedAreLeftToADecision(t *testing.T) {
	always := func() bool { return true }
	allowed := func() (*world, *setplan.Rollout) {
		w := newWorld(1)
		w.run(always)
		w.template("r2")
		plan := setplan.Decide(&w.Snapshot)
		w.apply(plan, always)
		for len(due(w, plan.Rollout)) == 0 {
			w.settle(always)
		}
		return w, plan.Rollout
	}
	w, order := allowed()
	require.Equal(t, setplan.StepChange, order.NextStep(&w.Pods[0]))
	require.Equal(t, setplan.StepNone, (*setplan.Rollout)(nil).NextStep(&w.Pods[0]))
	for name, change := range map[string]func(*setplan.Pod){
		"another Pod":         func(p *setplan.Pod) { p.View.UID = "other" },
		"another revision":    func(p *setplan.Pod) { p.Revision = "r3" },
		"being deleted":       func(p *setplan.Pod) { p.View.Terminating = true },
		"run to its end":      func(p *setplan.Pod) { p.View.Terminal = true },
		"to be excluded":      func(p *setplan.Pod) { p.Excluded = true },
		"to be deleted":       func(p *setplan.Pod) { p.ToDelete = true },
		"being replaced":      func(p *setplan.Pod) { p.Replacing = true },
		"not selected":        func(p *setplan.Pod) { p.Selected = false },
		"without permission":  func(p *setplan.Pod) { p.View.Ready = true },
		"changed, not called": func(p *setplan.Pod) { p.Recorded = true },
		"lifecycle-controller finishes": func(p *setplan.Pod) {
			p.Recorded, p.Carried, p.Delegated, p.Revision = true, true, true, "r2"
		},
	} {
		w, order := allowed()
		change(&w.Pods[0])
		assert.Equal(t, setplan.StepNone, order.NextStep(&w.Pods[0]), name)
	}
}

func TestNoOrderStandsWhereStepsDependOnMoreThanThePod(t *testing.T) {
	for name, change := range map[string]func(*world){
		"a delay":       func(w *world) { w.UpdateDelay = 1 },
		"labels choose": func(w *world) { w.ByLabel = true },
		"no protocol":   func(w *world) { w.Protocol = false },
		"claims":        func(w *world) { w.Templates = map[string][]setplan.ClaimTemplate{"r1": {{Name: "data"}}} },
		"a halt":        func(w *world) { w.Halted = &appsv1alpha1.HaltedRollout{} },
	} {
		w := newWorld(2)
		w.run(func() bool { return true })
		w.template("r2")
		require.NotNil(t, setplan.Decide(&w.Snapshot).Rollout)
		change(w)
		assert.Nil(t, setplan.Decide(&w.Snapshot).Rollout, name)
	}
}
