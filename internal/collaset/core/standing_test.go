package core_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/core"
)

// What a standing order asks of a Pod, however that has moved on since, is what a new decision plans for it.
func TestAStepIsAmongThoseThatADecisionPlans(t *testing.T) {
	steps := map[core.Step]int{}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(1, 6).Draw(t, "replicas"))
		w.Policy = rapid.SampledFrom([]appsv1alpha1.PodUpdatePolicy{
			appsv1alpha1.PodUpdateRecreate, appsv1alpha1.PodUpdateInPlaceIfPossible, appsv1alpha1.PodUpdateInPlaceOnly, appsv1alpha1.PodUpdateReplace,
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
				plan := core.Decide(&w.Snapshot)
				w.apply(plan, passes)
				w.settle(passes)
				for name, step := range due(w, plan.Standing) {
					steps[step]++
					next := core.Decide(&w.Snapshot)
					want := map[core.Step][]*core.Pod{core.StepChange: next.Changes, core.StepFinish: next.Finishes}[step]
					require.True(t, among(want, name), "step %d of %s is not planned\n%v", step, name, w.log)
				}
			}
		}
		require.Empty(t, w.problems)
	})
	require.Positive(t, steps[core.StepChange], "some Pod was to be changed")
	require.Positive(t, steps[core.StepFinish], "some Pod was to be finished")
}

// due are the steps that a standing order asks for, by Pod.
func due(w *world, order *core.Standing) map[string]core.Step {
	steps := map[string]core.Step{}
	for i := range w.Pods {
		if step := order.Step(&w.Pods[i]); step != core.StepNone {
			steps[w.Pods[i].Name()] = step
		}
	}
	return steps
}

func among(pods []*core.Pod, name string) bool {
	for _, p := range pods {
		if p.Name() == name {
			return true
		}
	}
	return false
}

func TestPodsThatAreNotAsTheyWereOrderedAreLeftToADecision(t *testing.T) {
	always := func() bool { return true }
	allowed := func() (*world, *core.Standing) {
		w := newWorld(1)
		w.run(always)
		w.template("r2")
		plan := core.Decide(&w.Snapshot)
		w.apply(plan, always)
		for len(due(w, plan.Standing)) == 0 {
			w.settle(always)
		}
		return w, plan.Standing
	}
	w, order := allowed()
	require.Equal(t, core.StepChange, order.Step(&w.Pods[0]))
	require.Equal(t, core.StepNone, (*core.Standing)(nil).Step(&w.Pods[0]))
	for name, change := range map[string]func(*core.Pod){
		"another Pod":         func(p *core.Pod) { p.View.UID = "other" },
		"another revision":    func(p *core.Pod) { p.Revision = "r3" },
		"being deleted":       func(p *core.Pod) { p.View.Terminating = true },
		"run to its end":      func(p *core.Pod) { p.View.Terminal = true },
		"to be excluded":      func(p *core.Pod) { p.Excluded = true },
		"to be deleted":       func(p *core.Pod) { p.ToDelete = true },
		"being replaced":      func(p *core.Pod) { p.Replacing = true },
		"not selected":        func(p *core.Pod) { p.Selected = false },
		"without permission":  func(p *core.Pod) { p.View.Ready = true },
		"changed, not called": func(p *core.Pod) { p.Recorded = true },
		"lifecycle-controller finishes": func(p *core.Pod) {
			p.Recorded, p.Carried, p.Delegated, p.Revision = true, true, true, "r2"
		},
	} {
		w, order := allowed()
		change(&w.Pods[0])
		assert.Equal(t, core.StepNone, order.Step(&w.Pods[0]), name)
	}
}

func TestNoOrderStandsWhereStepsDependOnMoreThanThePod(t *testing.T) {
	for name, change := range map[string]func(*world){
		"a delay":       func(w *world) { w.UpdateDelay = 1 },
		"labels choose": func(w *world) { w.ByLabel = true },
		"no protocol":   func(w *world) { w.Protocol = false },
		"claims":        func(w *world) { w.Templates = map[string][]core.ClaimTemplate{"r1": {{Name: "data"}}} },
		"a halt":        func(w *world) { w.Halted = &appsv1alpha1.HaltedRollout{} },
	} {
		w := newWorld(2)
		w.run(func() bool { return true })
		w.template("r2")
		require.NotNil(t, core.Decide(&w.Snapshot).Standing)
		change(w)
		assert.Nil(t, core.Decide(&w.Snapshot).Standing, name)
	}
}
