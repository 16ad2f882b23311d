package core_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/core"
)

// What a standing order asks of a Pod, however that has moved on since, is what a new decision plans for it.
// The draws go on until both steps were among them: finishes are rare.
func TestAStepIsAmongThoseThatADecisionPlans(t *testing.T) {
	steps := map[core.Step]int{}
	for range 10 {
		checkSteps(t, steps)
		if steps[core.StepChange] > 0 && steps[core.StepFinish] > 0 {
			return
		}
	}
	require.Positive(t, steps[core.StepChange], "some Pod was to be changed")
	require.Positive(t, steps[core.StepFinish], "some Pod was to be finished")
}

func checkSteps(t *testing.T, steps map[core.Step]int) {
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
}

// TestPodsThatComeBackLetOthersBegin plays the begins of standing orders: each Pod that comes back lets the next begin, and decisions are rare.
func TestPodsThatComeBackLetOthersBegin(t *testing.T) {
	begun := 0
	settled := map[int]*world{}
	for _, replicas := range []int{30, 64} {
		settled[replicas] = newWorld(replicas)
		settled[replicas].run(always)
	}
	rapid.Check(t, func(t *rapid.T) {
		begin := *settled[rapid.SampledFrom([]int{30, 64}).Draw(t, "replicas")]
		w := &begin
		w.Pods, w.Entries, w.log = slices.Clone(w.Pods), slices.Clone(w.Entries), nil
		w.older = rapid.Bool().Draw(t, "lifecycle-controller is older")
		w.budget = rapid.SampledFrom([]int{0, 20}).Draw(t, "budget")
		passes := sometimes(rapid.Uint64().Draw(t, "seed"), rapid.Float64Range(0.5, 1).Draw(t, "chance"))
		w.template("r2")
		w.Partition = rapid.SampledFrom([]int{0, 2, 30}).Draw(t, "partition")
		goal := max(w.Replicas-w.Partition, 0)
		rest := rapid.IntRange(1, 12).Draw(t, "rounds from one decision to the next")
		for range 480 / rest {
			if w.underWay() == 0 && w.atRevision("r2") == goal {
				break
			}
			plan := core.Decide(&w.Snapshot)
			next := slices.Clone(plan.Standing.Next)
			w.apply(plan, passes)
			limit := max(w.underWay(), core.MaxFresh)
			for range rest {
				before := map[types.UID]podops.View{}
				for _, p := range w.live() {
					before[p.UID()] = p.View
				}
				w.settle(passes)
				for name, step := range due(w, plan.Standing) {
					w.step(name, step)
				}
				for _, p := range w.live() {
					if core.Back(before[p.UID()], p.View) && len(next) > 0 {
						begun += w.beginNext(t, plan.Standing, next[0])
						next = next[1:]
					}
				}
				require.LessOrEqual(t, w.underWay(), limit, "one for one")
				require.LessOrEqual(t, w.atRevision("r2"), goal, "a partition holds")
			}
		}
		require.Empty(t, w.problems)
		require.Equal(t, goal, w.atRevision("r2"))
	})
	require.Positive(t, begun)
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
func (w *world) step(name string, step core.Step) {
	plan := core.Plan{}
	switch p := w.find(name); step {
	case core.StepChange:
		plan.Changes = []*core.Pod{p}
	case core.StepFinish:
		plan.Finishes = []*core.Pod{p}
	case core.StepNone:
	}
	w.apply(plan, always)
}

// beginNext begins the next Pod of the order, if that is fit, and says how many it has begun.
func (w *world) beginNext(t *rapid.T, order *core.Standing, next core.NextPod) int {
	p := w.find(next.Name)
	if p == nil || p.UID() != next.UID || !order.MayBegin(p) {
		return 0
	}
	w.apply(core.Plan{Begins: []core.Begin{{Pod: p, Request: podops.Request{ID: core.OperatorID, Type: podops.TypeUpdate}}}}, always)
	for _, cancelled := range core.Decide(&w.Snapshot).Cancels {
		require.NotEqual(t, p.Name(), cancelled.Name(), "what was begun is wanted")
	}
	return 1
}

func TestWhoIsNext(t *testing.T) {
	w := atRest(t, 2000, nil)
	w.template("r2")
	plan := core.Decide(&w.Snapshot)
	require.Len(t, plan.Begins, core.MaxFresh)
	require.Len(t, plan.Standing.Next, 1024)
	ids := map[types.UID]int{}
	for i := range w.Pods {
		ids[w.Pods[i].UID()] = w.Pods[i].ID
	}
	for i, next := range plan.Standing.Next {
		require.Equal(t, 2000-1-core.MaxFresh-i, ids[next.UID], "in the order in which decisions begin")
	}
	for name, change := range map[string]func(*world){
		"Pods bake":     func(w *world) { w.MinReady = time.Second },
		"re-creation":   func(w *world) { w.Policy = appsv1alpha1.PodUpdateRecreate },
		"there is room": func(w *world) { w.Pods = w.Pods[:25]; w.Replicas = 25; w.Entries = w.Entries[:25] },
		"paused":        func(w *world) { w.Paused = true },
	} {
		w := atRest(t, 100, nil)
		w.template("r2")
		require.NotEmpty(t, core.Decide(&w.Snapshot).Standing.Next)
		change(w)
		assert.Empty(t, core.Decide(&w.Snapshot).Standing.Next, name)
	}
}

// TestRoomBesideOtherCollaSets: what others leave no room for is next, as soon as there is some, in the order in which it would have begun.
func TestRoomBesideOtherCollaSets(t *testing.T) {
	w := atRest(t, 60, nil)
	w.template("r2")
	alone := core.Decide(&w.Snapshot)
	require.Zero(t, alone.Standing.Room, "its own limit is what it waits for")
	for room, begins := range map[int]int{0: 0, 10: 10, core.MaxFresh: core.MaxFresh, 1000: core.MaxFresh} {
		w.Room = &room
		plan := core.Decide(&w.Snapshot)
		require.Len(t, plan.Begins, begins)
		require.Equal(t, core.MaxFresh-begins, plan.Standing.Room)
		require.Len(t, plan.Standing.Next, 60-begins)
		for i, b := range append(alone.Begins[begins:], core.Begin{}) {
			if b.Pod != nil {
				require.Equal(t, b.Pod.UID(), plan.Standing.Next[i].UID)
			}
		}
	}
	none := 0
	w.Room = &none
	w.MinReady = time.Second
	require.NotEmpty(t, core.Decide(&w.Snapshot).Begins, "Pods that bake are few, and no order begins them")
	w.MinReady, w.Policy = 0, appsv1alpha1.PodUpdateRecreate
	require.NotEmpty(t, core.Decide(&w.Snapshot).Begins, "nor does one begin a re-creation, so nobody would hand it a place")
	w.Policy = appsv1alpha1.PodUpdateInPlaceOnly
	for i := range w.Pods {
		delete(w.Pods[i].View.Labels, podops.ServiceAvailableLabel)
	}
	require.NotEmpty(t, core.Decide(&w.Snapshot).Begins, "a Pod that does not serve does not wait")
}

// TestOneThatComesBackMakesNoRoom where more Pods are unavailable than may be, or while it is on its way out again.
func TestOneThatComesBackMakesNoRoom(t *testing.T) {
	w := atRest(t, 10, nil)
	w.template("r2")
	w.MaxUnavailable = 1
	w.apply(core.Decide(&w.Snapshot), always)
	require.Zero(t, core.Decide(&w.Snapshot).Standing.Room)
	for i := range w.Pods[:3] {
		w.Pods[i].Available, w.Pods[i].View.Ready = false, false
		delete(w.Pods[i].View.Labels, podops.ServiceAvailableLabel)
	}
	require.Equal(t, -3, core.Decide(&w.Snapshot).Standing.Room)

	at := podops.Stamp(w.Now)
	out := podops.View{Name: "p", Labels: map[string]string{podops.OperatePrefix + "/" + core.OperatorID: at}}
	in := podops.View{Name: "p", Labels: map[string]string{podops.ServiceAvailableLabel: at}}
	require.True(t, core.Back(out, in))
	change, err := podops.Begin(in, podops.Request{ID: core.OperatorID, Type: podops.TypeUpdate}, w.Now)
	require.NoError(t, err)
	require.False(t, core.Back(out, change.Apply(in)), "a rollback began it anew")
}

func TestPodsThatAreNotFitAreNotBegun(t *testing.T) {
	w := atRest(t, 40, nil)
	w.template("r2")
	order := core.Decide(&w.Snapshot).Standing
	require.NotEmpty(t, order.Next)
	next := w.find(order.Next[0].Name)
	require.True(t, order.MayBegin(next))
	for name, change := range map[string]func(*core.Pod){
		"another Pod":      func(p *core.Pod) { p.View.UID = "other" },
		"another revision": func(p *core.Pod) { p.Revision = "r3" },
		"updated":          func(p *core.Pod) { p.Revision = "r2" },
		"being deleted":    func(p *core.Pod) { p.View.Terminating = true },
		"to be excluded":   func(p *core.Pod) { p.Excluded = true },
		"to be deleted":    func(p *core.Pod) { p.ToDelete = true },
		"being replaced":   func(p *core.Pod) { p.Replacing = true },
		"not selected":     func(p *core.Pod) { p.Selected = false },
		"not in service":   func(p *core.Pod) { p.View.Labels = nil },
		"recorded":         func(p *core.Pod) { p.Recorded = true },
		"under way": func(p *core.Pod) {
			change, err := podops.Begin(p.View, podops.Request{ID: core.OperatorID, Type: podops.TypeUpdate}, w.Now)
			require.NoError(t, err)
			p.View = change.Apply(p.View)
		},
	} {
		p := *next
		p.Facts = nil
		change(&p)
		assert.False(t, order.MayBegin(&p), name)
	}
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
