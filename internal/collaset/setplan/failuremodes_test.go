package setplan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// The tests called TestFailureNN, here and elsewhere, are named after the fifteen ways in which CollaSets of
// Kuperator are known to have failed. docs/contributing/known-failures.md lists them.

// inScaleIn counts live Pods on which a scale-in is under way.
func (w *world) inScaleIn() int {
	n := 0
	for _, p := range w.live() {
		if podops.IsDuring(p.View, setplan.OperatorID, podops.TypeScaleIn) {
			n++
		}
	}
	return n
}

// Kuperator chose again in each round, until every Pod had been taken out of service.
func TestFailure01UnstableVictimChoice(t *testing.T) {
	for seed := range uint64(50) {
		w := atRest(t, 8, nil)
		w.Replicas = 5
		passes := sometimes(seed, 0.4)
		chosen := map[string]bool{}
		for range 60 {
			w.round(passes)
			for _, p := range w.live() {
				if podops.IsDuring(p.View, setplan.OperatorID, podops.TypeScaleIn) {
					chosen[p.Name()] = true
				}
			}
			require.LessOrEqual(t, len(chosen), 3, "seed %d: %v", seed, w.log)
			// Readiness of the others flaps meanwhile: what is begun stays chosen.
			for i := range w.Pods {
				if p := &w.Pods[i]; p.Live() && !chosen[p.Name()] && len(chosen) == 3 {
					p.View.Ready = !p.View.Ready
				}
			}
		}
		require.True(t, w.run(always))
		assert.Len(t, w.live(), 5)
		assert.Empty(t, w.problems)
	}
}

// Kuperator looked at the first of the Pods only, and deleted the others at last although they were wanted again.
func TestFailure02CancelledScaleInStrandsPods(t *testing.T) {
	for _, waits := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("cancelled after %d rounds", waits), func(t *testing.T) {
			w := atRest(t, 6, nil)
			before := w.uids()
			w.Replicas = 2
			steps := 0
			for range waits { // lifecycle comes no further than the permission of one
				w.apply(setplan.Decide(&w.Snapshot), always)
				w.settle(func() bool { steps++; return steps <= waits })
				if len(w.live()) < 6 {
					break
				}
			}
			require.Positive(t, w.inScaleIn())
			left := w.uids()
			w.Replicas = len(left)
			require.True(t, w.run(always))
			assert.Equal(t, left, w.uids(), "whoever was there when it was called off stays")
			assert.Subset(t, before, left)
			assert.Zero(t, w.inScaleIn())
			for _, p := range w.live() {
				assert.True(t, p.View.ServiceAvailable() && p.View.Ready, "%s serves: %v", p.Name(), p.View.Labels)
				assert.NotContains(t, p.View.Labels, podops.PreparingToDeleteLabel)
			}
			assert.Empty(t, w.problems)
		})
	}
}

// Kuperator indexed beyond its lists, and its partition has meant three things.
func TestFailure04PartitionEdgeCases(t *testing.T) {
	for name, tc := range map[string]struct {
		replicas, pods, partition, want int
	}{
		"more held back than replicas":           {replicas: 3, pods: 3, partition: 9, want: 0},
		"all held back":                          {replicas: 3, pods: 3, partition: 3, want: 0},
		"none held back":                         {replicas: 3, pods: 3, partition: 0, want: 3},
		"no replicas and some held back":         {replicas: 0, pods: 0, partition: 2, want: 0},
		"fewer Pods than are to be updated":      {replicas: 5, pods: 2, partition: 1, want: 4},
		"more Pods than replicas":                {replicas: 2, pods: 5, partition: 1, want: 1},
		"more Pods than replicas, all held back": {replicas: 2, pods: 5, partition: 2, want: 0},
		"scaled out from none":                   {replicas: 4, pods: 0, partition: 3, want: 1},
	} {
		for _, byWay := range []appsv1alpha1.PodUpdatePolicy{appsv1alpha1.PodUpdateInPlaceIfPossible,
			appsv1alpha1.PodUpdateRecreate} {
			t.Run(fmt.Sprintf("%s, %s", name, byWay), func(t *testing.T) {
				w := atRest(t, tc.pods, func(w *world) { w.Policy = byWay })
				w.Replicas, w.Partition = tc.replicas, tc.partition
				w.template("r2")
				require.True(t, w.run(always))
				assert.Len(t, w.live(), tc.replicas)
				assert.Equal(t, tc.want, w.atRevision("r2"), "%v", w.log)
				assert.Equal(t, tc.replicas-tc.want, w.atRevision("r1"))
				assert.Empty(t, w.problems)

				w.log = nil
				w.Partition = tc.replicas
				require.True(t, w.run(always))
				assert.Equal(t, tc.want, w.atRevision("r2"), "raising it brings nobody back")
			})
		}
	}
}

// Kuperator applied the next revision under the permission for the one before, with traffic on again meanwhile, and
// left Pods that the partition no longer wanted in the lifecycle.
func TestFailure11SecondRolloutReusesHalfDoneLifecycle(t *testing.T) {
	t.Run("every change is made under a permission of its own request", func(t *testing.T) {
		for seed := range uint64(60) {
			w := atRest(t, 4, nil)
			w.template("r2")
			random := rand.New(rand.NewPCG(seed, 7))
			for range 1 + random.IntN(12) {
				w.round(sometimes(seed, 0.6))
			}
			w.template("r3")
			require.True(t, w.run(sometimes(seed, 0.7)), "seed %d", seed)
			require.True(t, w.run(always))
			// world notes every touch of a Pod that is Ready or has no permission.
			require.Empty(t, w.problems, "seed %d", seed)
			assert.Equal(t, 4, w.atRevision("r3"))
			for _, p := range w.live() {
				assert.Empty(t, podops.Operations(p.View), p.Name())
			}
		}
	})
	t.Run("who is back in service is asked for anew", func(t *testing.T) {
		w := atRest(t, 1, nil)
		w.template("r2")
		w.rounds(3)
		require.Equal(t, 1, countPrefix(w.log, "finished"), "%v", w.log)
		w.template("r3")
		require.True(t, w.run(always))
		assert.Equal(t, 2, countPrefix(w.log, "begin"), "%v", w.log)
		assert.Equal(t, 2, countPrefix(w.log, "finished"))
	})
	t.Run("Pods that leave the partition before they may be touched come back", func(t *testing.T) {
		w := atRest(t, 5, nil)
		before := w.uids()
		w.template("r2")
		w.apply(setplan.Decide(&w.Snapshot), always)
		require.Equal(t, 5, countPrefix(w.log, "begin"))
		w.Partition = 5
		require.True(t, w.run(always))
		assert.Equal(t, before, w.uids())
		assert.Equal(t, 5, w.atRevision("r1"))
		for _, p := range w.live() {
			assert.True(t, p.View.ServiceAvailable(), p.Name())
			assert.Empty(t, podops.Operations(p.View), p.Name())
		}
	})
}

// Kuperator's slow start and its in- and exclusion wrote to shared maps and lists from several goroutines.
func TestFailure13SharedMutableState(t *testing.T) {
	w := atRest(t, 12, nil)
	w.Replicas, w.Partition = 9, 3
	w.template("r2")
	for range 5 {
		w.round(sometimes(3, 0.7))
	}
	before := fmt.Sprintf("%+v", w.Snapshot)
	want := setplan.Decide(&w.Snapshot)
	var all sync.WaitGroup
	got := make([]setplan.Plan, 16)
	for i := range got {
		all.Go(func() { got[i] = setplan.Decide(&w.Snapshot) }) // the race detector watches
	}
	all.Wait()
	for _, plan := range got {
		assert.Empty(t, cmp.Diff(describe(want), describe(plan)))
	}
	assert.Equal(t, before, fmt.Sprintf("%+v", w.Snapshot), "what is decided upon is left as it is")
}

// describe names what a plan does.
func describe(p setplan.Plan) []string {
	var lines []string
	pods := func(what string, list []*setplan.Pod) {
		for _, pod := range list {
			lines = append(lines, what+" "+pod.Name())
		}
	}
	pods("finish", p.Finishes)
	pods("change", changed(p))
	pods("cancel", p.Cancels)
	pods("mark", p.Marks)
	for _, d := range p.Deletions {
		lines = append(lines, fmt.Sprintf("delete %s %s", d.Pod.Name(), d.Reason))
	}
	for _, b := range p.Begins {
		lines = append(lines, fmt.Sprintf("begin %s %+v", b.Pod.Name(), b.Request))
	}
	for _, c := range p.Creations {
		lines = append(lines, fmt.Sprintf("create %+v", c))
	}
	return append(lines, fmt.Sprint(p.Entries), p.Problem, fmt.Sprint(p.Blockers), fmt.Sprint(p.Goal))
}

// Kuperator updated healthy Pods first and left the broken ones, so that the rollout could not end. (That Pods which
// are missing altogether count as unavailable is podtransitionrule-controller's, and tested there.)
func TestFailure14AvailabilityBlindChoices(t *testing.T) {
	broken := func(w *world, at ...int) {
		for _, i := range at {
			p := &w.Pods[i]
			p.View.Ready, p.View.ContainersReady, p.Available = false, false, false
			delete(p.View.Labels, podops.ServiceAvailableLabel)
		}
	}
	t.Run("who does not serve is chosen first", func(t *testing.T) {
		w := atRest(t, 6, nil)
		broken(w, 1, 4)
		w.Partition = 4
		w.template("r2")
		plan := setplan.Decide(&w.Snapshot)
		require.Len(t, plan.Begins, 2)
		assert.ElementsMatch(t, []string{w.Pods[1].Name(), w.Pods[4].Name()},
			[]string{plan.Begins[0].Pod.Name(), plan.Begins[1].Pod.Name()})
	})
	t.Run("and removed first", func(t *testing.T) {
		w := atRest(t, 6, nil)
		broken(w, 1, 4)
		w.Replicas = 4
		plan := setplan.Decide(&w.Snapshot)
		require.Len(t, plan.Begins, 2)
		assert.ElementsMatch(t, []string{w.Pods[1].Name(), w.Pods[4].Name()},
			[]string{plan.Begins[0].Pod.Name(), plan.Begins[1].Pod.Name()})
	})
	t.Run("without the lifecycle a broken Pod is repaired at once, and no other is touched meanwhile", func(t *testing.T) {
		w := atRest(t, 4, func(w *world) { w.Protocol = false })
		broken(w, 2)
		w.template("r2")
		plan := setplan.Decide(&w.Snapshot)
		assert.Equal(t, []string{"change " + w.Pods[2].Name()}, actionsOf(plan))
	})
}

// actionsOf names the writes to Pods of a plan.
func actionsOf(p setplan.Plan) []string {
	var lines []string
	for _, line := range describe(p) {
		for _, verb := range []string{"finish", "change", "cancel", "mark", "delete", "begin", "create"} {
			if strings.HasPrefix(line, verb+" ") {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// firstPair is the oldest pair, nil if there is none.
func (w *world) firstPair() (origin, fresh *setplan.Pod) {
	pairs := w.newPods()
	for _, p := range w.live() {
		if pairs[p.Name()] != nil {
			return p, pairs[p.Name()]
		}
	}
	return nil, nil
}

// Kuperator replaced in circles, made a second new Pod when it scaled out, took one side of a pair alone, and
// panicked when an entry was missing. (Any disturbance at any time is TestAnySubsetOfAReplacementReachesTheGoal.)
func TestFailure07ReplaceUnderConcurrentUpdateAndScale(t *testing.T) {
	for name, meanwhile := range map[string]func(w *world){
		"scaled out":                func(w *world) { w.Replicas = 6 },
		"scaled in":                 func(w *world) { w.Replicas = 2 },
		"scaled to none":            func(w *world) { w.Replicas = 0 },
		"a newer revision":          func(w *world) { w.template("r3") },
		"rolled back":               func(w *world) { w.template("r1") },
		"held back":                 func(w *world) { w.Partition = 4 },
		"another policy":            func(w *world) { w.Policy = appsv1alpha1.PodUpdateInPlaceIfPossible },
		"the entries are lost":      func(w *world) { w.Entries = nil },
		"a user replaces a Pod too": func(w *world) { w.ask(w.live()[0]) },
		"one side of a pair is to be deleted": func(w *world) {
			if origin, _ := w.firstPair(); origin != nil {
				w.ToDelete = []string{origin.Name()}
			}
		},
		"the new side of a pair is to be deleted, and one fewer is wanted": func(w *world) {
			if _, fresh := w.firstPair(); fresh != nil {
				w.ToDelete, w.Replicas = []string{fresh.Name()}, 3
			}
		},
		"scaled and updated at once": func(w *world) { w.Replicas = 5; w.template("r3") },
	} {
		for rounds := 1; rounds <= 8; rounds++ {
			t.Run(fmt.Sprintf("%s after %d rounds", name, rounds), func(t *testing.T) {
				w := atRest(t, 4, replacing)
				w.template("r2")
				w.rounds(rounds)
				meanwhile(w)
				require.True(t, w.run(always), "it comes to rest: %v", w.log[max(0, len(w.log)-30):])
				assert.Empty(t, w.problems, "%v", w.log)
				assert.Len(t, w.live(), w.Replicas)
				w.ToDelete = nil
				w.assertNoTraces(t)
				assert.Len(t, w.ids(), w.Replicas)
			})
		}
	}
}

// Kuperator handed out IDs that Pods had, leaked entries of Pods that were gone, and dropped or took those of others.
func TestFailure12ResourceContextCorruptionAndGaps(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(*world)
		// wantIDs are those of the Pods in the end; the Pods of before stay in any case.
		wantIDs []int
	}{
		"all entries are lost": {func(w *world) { w.Entries = nil }, []int{0, 1, 2, 3}},
		"one is lost":          {func(w *world) { w.Entries = slices.Delete(w.Entries, 1, 2) }, []int{0, 1, 2, 3}},
		"one is lost while scaling out": {func(w *world) { w.Entries = slices.Delete(w.Entries, 1, 2); w.Replicas = 6 },
			[]int{0, 1, 2, 3, 4, 5}},
		"one has no Pod and is too many": {func(w *world) {
			w.Entries = append(w.Entries, setplan.Entry{ID: 9,
				Data: map[string]string{appsv1alpha1.ContextOwner: w.Name, appsv1alpha1.ContextRevision: "r1"}})
		}, []int{0, 1, 2, 3}},
		"one says that its Pod is scaled in, which it is not": {func(w *world) {
			data := maps.Clone(w.Entries[2].Data)
			data[appsv1alpha1.ContextScaleIn] = appsv1alpha1.ContextTrue
			w.Entries[2].Data = data
		}, []int{0, 1, 2, 3}},
		"one names a revision that is not there": {func(w *world) {
			data := maps.Clone(w.Entries[2].Data)
			data[appsv1alpha1.ContextRevision] = "gone"
			w.Entries[2].Data = data
		}, []int{0, 1, 2, 3}},
	} {
		for _, seed := range []uint64{1, 2, 3} {
			t.Run(fmt.Sprintf("%s, order %d", name, seed), func(t *testing.T) {
				w := atRest(t, 4, nil)
				before := w.uids()
				tc.spoil(w)
				require.True(t, w.run(sometimes(seed, 0.7)), "%v", w.log)
				require.True(t, w.run(always), "%v", w.log)
				assert.Empty(t, w.problems, "%v", w.log)
				assert.Equal(t, tc.wantIDs, w.ids())
				assert.Subset(t, w.uids(), before, "no Pod pays for it")
				own := []int{}
				for _, e := range w.Entries {
					require.Equal(t, w.Name, e.Data[appsv1alpha1.ContextOwner])
					own = append(own, e.ID)
				}
				assert.Equal(t, tc.wantIDs, own, "entries say what Pods say")
			})
		}
	}
	t.Run("those of others are kept, and their IDs are not taken, unless they are nobody's any more", func(t *testing.T) {
		w := atRest(t, 2, nil)
		of := func(owner string) map[string]string {
			return map[string]string{appsv1alpha1.ContextOwner: owner, "Theirs": "x"}
		}
		w.Entries = append(w.Entries, setplan.Entry{ID: 2, Data: of("other")}, setplan.Entry{ID: 3, Data: of("gone")},
			setplan.Entry{ID: 5, Data: of("other")})
		w.StaleOwners = map[string]bool{"gone": true}
		w.Replicas = 5
		require.True(t, w.run(always))
		assert.Empty(t, w.problems, "%v", w.log)
		w.Replicas = 1
		require.True(t, w.run(always))
		left := map[int]string{}
		for _, e := range w.Entries {
			left[e.ID] = e.Data[appsv1alpha1.ContextOwner]
			if e.Data[appsv1alpha1.ContextOwner] == "other" {
				assert.Equal(t, of("other"), e.Data, "to the last key")
			}
		}
		assert.Equal(t, "other", left[2])
		assert.Equal(t, "other", left[5])
		assert.Len(t, left, 3, "%v", left)
		for _, id := range w.ids() {
			assert.NotContains(t, []int{2, 5}, id)
		}
	})
}
