package core_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/core"
)

// What an idle CollaSet says of Pods that have changed since is what a decision about the whole CollaSet says: that there is nothing to do, and the same
// status. Or it says that it does not know.
func TestAnIdleCollaSetKnowsWhatADecisionWouldSay(t *testing.T) {
	health, rest := 0, 0
	for range 10 {
		checkIdle(t, &health, &rest)
	}
	require.Positive(t, health, "some changes were of health")
	require.Positive(t, rest, "some were not")
}

func checkIdle(t *testing.T, health, rest *int) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(0, 5).Draw(t, "replicas"))
		w.Protocol = rapid.Bool().Draw(t, "protocol")
		w.Sequential, w.ByLabel = rapid.Bool().Draw(t, "sequential"), rapid.IntRange(0, 3).Draw(t, "by label") == 0
		w.Policy = rapid.SampledFrom([]appsv1alpha1.PodUpdatePolicy{
			appsv1alpha1.PodUpdateRecreate, appsv1alpha1.PodUpdateInPlaceIfPossible, appsv1alpha1.PodUpdateInPlaceOnly, appsv1alpha1.PodUpdateReplace,
		}).Draw(t, "policy")
		w.MinReady = time.Duration(rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "seconds to be Ready")) * time.Second
		w.Failure = core.FailureHandling{
			Deadline: time.Duration(rapid.SampledFrom([]int{0, 30}).Draw(t, "deadline")) * time.Second,
			Policy:   rapid.SampledFrom([]appsv1alpha1.RolloutFailurePolicy{"", appsv1alpha1.RolloutFailurePause, appsv1alpha1.RolloutFailureRollback}).Draw(t, "failure policy"),
		}
		w.run(always)
		w.template("r2")
		w.Partition = rapid.IntRange(0, 5).Draw(t, "partition")
		w.run(always)
		w.Paused = rapid.IntRange(0, 9).Draw(t, "paused") == 0
		outcome := core.Outcome{Collisions: 1}
		if rapid.IntRange(0, 9).Draw(t, "a failure") == 0 {
			outcome.Update = errors.New("a failure")
		}
		plan := core.Decide(&w.Snapshot)
		status := core.StatusOf(&w.Snapshot, &plan, outcome, appsv1alpha1.CollaSetStatus{})
		idle := core.IdleAfter(&w.Snapshot, &plan)
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			if idle == nil || len(w.Pods) == 0 {
				return
			}
			p := &w.Pods[rapid.IntRange(0, len(w.Pods)-1).Draw(t, "Pod")]
			before := *p
			what, ofHealth := rapid.SampledFrom(changesOfHealth).Draw(t, "change of health"), rapid.IntRange(0, 7).Draw(t, "another change") > 0
			if !ofHealth {
				what = rapid.SampledFrom(otherChanges).Draw(t, "change")
			}
			what.change(t, w, p)
			w.Now = w.Now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
			w.refresh(p)
			if !idle.Change(&before, p) {
				*rest++
				require.False(t, ofHealth && before.AvailableIn == 0 && p.AvailableIn == 0, "%s is no reason for another decision", what.name)
				return
			}
			*health++
			require.True(t, ofHealth, "%s takes another decision", what.name)
			plan = core.Decide(&w.Snapshot)
			require.True(t, plan.IsZero(), "%s: %+v", what.name, plan)
			require.Empty(t, plan.Problems)
			require.Empty(t, plan.Blockers)
			require.Zero(t, plan.NextLook)
			want := core.StatusOf(&w.Snapshot, &plan, outcome, *status.DeepCopy())
			is, deadline := idle.Status(w.Now, outcome, *status.DeepCopy())
			require.Equal(t, want, is, what.name)
			require.Equal(t, core.DeadlineIn(&w.Snapshot, plan.Goal, &want), deadline)
			if is.Halted != nil || is.CurrentRevision != w.CurrentRevision {
				return // a decision is due on that
			}
			status = is
		}
	})
}

type changeOfPods struct {
	name   string
	change func(*rapid.T, *world, *core.Pod)
}

// changesOfHealth are those that an idle CollaSet has to cope with.
var changesOfHealth = []changeOfPods{
	{"Ready", func(_ *rapid.T, w *world, p *core.Pod) {
		p.View.Ready, p.View.ContainersReady, p.ReadySince = true, true, w.Now
	}},
	{"not Ready", func(_ *rapid.T, _ *world, p *core.Pod) { p.View.Ready, p.ReadySince = false, time.Time{} }},
	{"in service", func(_ *rapid.T, w *world, p *core.Pod) { w.set(p, podops.ServiceAvailableLabel, "1") }},
	{"out of service", func(_ *rapid.T, w *world, p *core.Pod) { w.set(p, podops.ServiceAvailableLabel) }},
	{"a gate", func(t *rapid.T, _ *world, p *core.Pod) {
		p.Awaited = rapid.SampledFrom([]string{"", "example.com/a", "example.com/b"}).Draw(t, "gate")
	}},
	{"a node", func(t *rapid.T, _ *world, p *core.Pod) {
		p.Scheduled = rapid.Bool().Draw(t, "scheduled")
		p.Node = "node"
	}},
	{"another operator", func(t *rapid.T, w *world, p *core.Pod) {
		change, err := podops.Begin(p.View, podops.Request{ID: "other", Type: "restart"}, w.Now)
		require.NoError(t, err)
		p.View = change.Apply(p.View)
	}},
}

var otherChanges = []changeOfPods{
	{"being deleted", func(_ *rapid.T, _ *world, p *core.Pod) { p.View.Terminating = true }},
	{"ended", func(_ *rapid.T, _ *world, p *core.Pod) { p.View.Terminal = true }},
	{"to be deleted", func(_ *rapid.T, w *world, p *core.Pod) { w.set(p, appsv1alpha1.ToDeleteLabel, "1") }},
	{"to be excluded", func(_ *rapid.T, w *world, p *core.Pod) { w.set(p, appsv1alpha1.ToExcludeLabel, "1") }},
	{"to be replaced", func(_ *rapid.T, w *world, p *core.Pod) { w.set(p, appsv1alpha1.ToReplaceLabel, "1") }},
	{"chosen", func(_ *rapid.T, w *world, p *core.Pod) { w.set(p, appsv1alpha1.UpdateIncludedLabel, "1") }},
	{"not selected", func(_ *rapid.T, _ *world, p *core.Pod) { p.Selected = false }},
	{"another revision", func(_ *rapid.T, _ *world, p *core.Pod) { p.Revision = "r3" }},
	{"another ID", func(_ *rapid.T, _ *world, p *core.Pod) { p.ID += 100 }},
	{"another Pod of the name", func(_ *rapid.T, _ *world, p *core.Pod) { p.View.UID += "b" }},
	{"recorded", func(_ *rapid.T, _ *world, p *core.Pod) { p.Recorded = true }},
	{"our operation", func(t *rapid.T, w *world, p *core.Pod) {
		change, err := podops.Begin(p.View, podops.Request{ID: core.OperatorID, Type: podops.TypeUpdate}, w.Now)
		require.NoError(t, err)
		p.View = change.Apply(p.View)
	}},
}

// TestWhatIsNotIdle: with more to a CollaSet than its Pods, or something under way, every event takes a decision.
func TestWhatIsNotIdle(t *testing.T) {
	idle := func(w *world) *core.Idle {
		plan := core.Decide(&w.Snapshot)
		return core.IdleAfter(&w.Snapshot, &plan)
	}
	require.NotNil(t, idle(atRest(t, 3, nil)))
	for name, change := range map[string]func(*world){
		"an update":       func(w *world) { w.template("r2") },
		"more Pods":       func(w *world) { w.Replicas++ },
		"fewer Pods":      func(w *world) { w.Replicas-- },
		"being deleted":   func(w *world) { w.Deleting = true },
		"paused":          func(w *world) { w.Paused = true },
		"halted":          func(w *world) { w.Halted = &appsv1alpha1.HaltedRollout{Revision: "r1"} },
		"Pods to delete":  func(w *world) { w.ToDelete = []string{"other"} },
		"Pods to exclude": func(w *world) { w.ToExclude = []string{"other"} },
		"Pods to include": func(w *world) { w.Candidates = []core.Candidate{{Name: "other"}} },
		"claim templates": func(w *world) { w.Templates = map[string][]core.ClaimTemplate{"r3": {{Name: "data"}}} },
		"claims":          func(w *world) { w.Claims = []core.Claim{{Name: "data"}} },
		"another set's entries": func(w *world) {
			w.Entries = append(w.Entries, core.Entry{ID: 99, Data: map[string]string{appsv1alpha1.ContextOwner: "other"}})
		},
		"a Pod that bakes": func(w *world) {
			w.MinReady, w.Pods[1].AvailableIn, w.Pods[1].Available = time.Minute, time.Second, false
		},
		"a Pod that is going": func(w *world) { w.Pods[1].View.Terminating = true },
		"a Pod that is asked": func(w *world) { w.set(&w.Pods[1], podops.OperatingPrefix+"/"+core.OperatorID, "1") },
	} {
		w := atRest(t, 3, nil)
		change(w)
		assert.Nil(t, idle(w), name)
	}
}

// BenchmarkIdle is one Pod that is Ready and not Ready in turns among 5,000.
func BenchmarkIdle(b *testing.B) {
	w := atRest(b, 5000, nil)
	plan := core.Decide(&w.Snapshot)
	status := core.StatusOf(&w.Snapshot, &plan, core.Outcome{}, appsv1alpha1.CollaSetStatus{})
	idle := core.IdleAfter(&w.Snapshot, &plan)
	ready := w.Pods[7]
	failing := ready
	failing.View.Ready, failing.Available, failing.ReadySince = false, false, time.Time{}
	for b.Loop() {
		if !idle.Change(&ready, &failing) {
			b.Fatal("a whole decision")
		}
		status, _ = idle.Status(w.Now, core.Outcome{}, status)
		ready, failing = failing, ready
	}
}
