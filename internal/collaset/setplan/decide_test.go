package setplan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// atRest is a set of this size with nothing left to do.
func atRest(t testing.TB, replicas int, change func(*world)) *world {
	t.Helper()
	w := newWorld(replicas)
	if change != nil {
		change(w)
	}
	require.True(t, w.run(always))
	require.Empty(t, w.problems)
	require.Len(t, w.live(), replicas)
	w.log = nil
	return w
}

// TestWhatAMissingCooperatorHoldsUp: the blocker names the finalizer that an operation waits for, and no rule.
func TestWhatAMissingCooperatorHoldsUp(t *testing.T) {
	for name, change := range map[string]func(*world){
		"an update": func(w *world) { w.template("r2") },
		"scale-in":  func(w *world) { w.Replicas = 0 },
		"the deletion of the CollaSet": func(w *world) {
			w.Deleting, w.keeps = true, true
			label(w, &w.Pods[0], appsv1alpha1.ToDeleteLabel)
			begin, _ := podops.Begin(w.Pods[0].View,
				podops.Request{ID: podops.DeletionID, Type: podops.TypeDelete, Deletes: true}, w.Now)
			w.change(&w.Pods[0], begin)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 1, nil)
			announce, err := podops.Expect(w.Pods[0].View, "finalizer/test", "prot.podopslifecycle.kusionstack.io/test")
			require.NoError(t, err)
			w.change(&w.Pods[0], announce)
			change(w)
			w.rounds(3)
			plan := setplan.Decide(&w.Snapshot)
			require.Len(t, plan.Blockers, 1)
			assert.Equal(t, string(podops.WaitExpected), plan.Blockers[0].Reason)
			assert.Contains(t, plan.Blockers[0].Message, "prot.podopslifecycle.kusionstack.io/test of finalizer/test")
			assert.Contains(t, plan.Blockers[0].Message, w.Pods[0].ReadySince.UTC().Format(time.RFC3339))
			assert.NotContains(t, plan.Blockers[0].Message, "ule")

			w.Pods[0].View.Annotations[podops.RuleDetailPrefix+"/budget"] = "spent"
			plan = setplan.Decide(&w.Snapshot)
			require.Len(t, plan.Blockers, 1)
			assert.NotEqual(t, string(podops.WaitExpected), plan.Blockers[0].Reason, "it is a rule that holds the Pod")
		})
	}
}

func TestRollouts(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(*world)
		change func(*world)
		check  func(*testing.T, *world, []types.UID)
	}{
		"in place: no Pod is another one, and each costs two writes, as lifecycle-controller finishes": {
			change: func(w *world) { w.template("r2") },
			check: func(t *testing.T, w *world, before []types.UID) {
				assert.Equal(t, before, w.uids())
				assert.Equal(t, 5, w.atRevision("r2"))
				for _, id := range w.ids() {
					for _, verb := range []string{"begin", "change", "finished"} {
						assert.Equal(t, 1, countPrefix(w.log, fmt.Sprintf("%s %d", verb, id)), "%s %d in %v", verb, id, w.log)
					}
				}
				assert.Zero(t, countPrefix(w.log, "finish"))
				assert.Equal(t, 1, countPrefix(w.log, "store"), "the ResourceContext follows once")
			},
		},
		"in place, beside a lifecycle-controller that does not finish": {
			before: func(w *world) { w.older = true },
			change: func(w *world) { w.template("r2") },
			check: func(t *testing.T, w *world, before []types.UID) {
				assert.Equal(t, before, w.uids())
				assert.Equal(t, 5, w.atRevision("r2"))
				assert.Equal(t, 5, countPrefix(w.log, "finish"), "%v", w.log)
				for _, p := range w.live() {
					assert.True(t, p.Available, p.Name())
				}
			},
		},
		"recreate: every Pod is another one, under the same IDs": {
			change: func(w *world) { w.template("r2"); w.Revisions["r1"] = setplan.Difference{Forcing: []string{"env"}} },
			check: func(t *testing.T, w *world, before []types.UID) {
				for _, uid := range w.uids() {
					assert.NotContains(t, before, uid)
				}
				assert.Equal(t, []int{0, 1, 2, 3, 4}, w.ids())
				assert.Equal(t, 5, w.atRevision("r2"))
			},
		},
		"a partition is honoured exactly": {
			change: func(w *world) { w.Partition = 3; w.template("r2") },
			check: func(t *testing.T, w *world, _ []types.UID) {
				assert.Equal(t, 2, w.atRevision("r2"))
				assert.Equal(t, 2, countPrefix(w.log, "begin"))
			},
		},
		"a partition beyond the replicas holds everything": {
			change: func(w *world) { w.Partition = 9; w.template("r2") },
			check: func(t *testing.T, w *world, _ []types.UID) {
				assert.Equal(t, 5, w.atRevision("r1"))
				assert.Empty(t, w.log)
			},
		},
		"by label nothing moves without the label": {
			before: func(w *world) { w.ByLabel = true },
			change: func(w *world) { w.template("r2") },
			check:  func(t *testing.T, w *world, _ []types.UID) { assert.Empty(t, w.log) },
		},
		"by label the labelled Pod moves": {
			before: func(w *world) { w.ByLabel = true },
			change: func(w *world) {
				w.template("r2")
				value := "1"
				w.change(&w.Pods[1], podops.Change{Labels: map[string]*string{appsv1alpha1.UpdateIncludedLabel: &value}})
			},
			check: func(t *testing.T, w *world, _ []types.UID) { assert.Equal(t, 1, w.atRevision("r2")) },
		},
		"paused holds everything": {
			change: func(w *world) { w.Paused = true; w.template("r2"); w.Replicas = 7 },
			check:  func(t *testing.T, w *world, _ []types.UID) { assert.Empty(t, w.log) },
		},
		"in place only refuses what needs another Pod": {
			change: func(w *world) {
				w.Policy = appsv1alpha1.PodUpdateInPlaceOnly
				w.template("r2")
				w.Revisions["r1"] = setplan.Difference{Forcing: []string{"template.spec.volumes"}}
			},
			check: func(t *testing.T, w *world, _ []types.UID) {
				assert.Empty(t, w.log)
				plan := setplan.Decide(&w.Snapshot)
				require.Len(t, plan.Blockers, 1)
				assert.Equal(t, 5, plan.Blockers[0].Count)
				assert.Contains(t, plan.Blockers[0].Message, "template.spec.volumes")
				assert.True(t, plan.Goal.Held)
			},
		},
		"scale-in removes Pods that do not serve first": {
			change: func(w *world) {
				w.Pods[0].View.Ready, w.Pods[0].Available = false, false
				delete(w.Pods[0].View.Labels, podops.ServiceAvailableLabel)
				w.Replicas = 4
			},
			check: func(t *testing.T, w *world, _ []types.UID) { assert.NotContains(t, w.uids(), types.UID("1")) },
		},
		"scale-in removes the Pods that are named": {
			change: func(w *world) { w.ToDelete = []string{w.Pods[2].Name()}; w.Replicas = 4 },
			check: func(t *testing.T, w *world, _ []types.UID) {
				assert.Equal(t, []int{0, 1, 3, 4}, w.ids())
				assert.Zero(t, countPrefix(w.log, "mark"))
			},
		},
		"scaling out after scaling in fills the lowest IDs": {
			before: func(*world) {},
			change: func(w *world) {
				w.ToDelete = []string{w.Pods[0].Name()}
				w.Replicas = 4
				w.run(always)
				w.ToDelete = nil
				w.Replicas = 6
			},
			check: func(t *testing.T, w *world, _ []types.UID) { assert.Equal(t, []int{0, 1, 2, 3, 4, 5}, w.ids()) },
		},
		"a Pod deleted by hand comes back with its ID and revision": {
			change: func(w *world) {
				w.Partition = 3
				w.template("r2")
				w.run(always)
				for _, p := range w.live() {
					if p.Revision == "r1" {
						p.View.Terminating = true
						break
					}
				}
			},
			check: func(t *testing.T, w *world, _ []types.UID) {
				assert.Equal(t, 2, w.atRevision("r2"))
				assert.Equal(t, 3, w.atRevision("r1"))
				assert.Equal(t, []int{0, 1, 2, 3, 4}, w.ids())
			},
		},
		"without the lifecycle one Pod at a time": {
			before: func(w *world) { w.Protocol = false },
			change: func(w *world) { w.template("r2") },
			check: func(t *testing.T, w *world, before []types.UID) {
				assert.Equal(t, before, w.uids())
				assert.Equal(t, 5, w.atRevision("r2"))
				assert.Zero(t, countPrefix(w.log, "begin"))
			},
		},
		"a lost ResourceContext is made again from the Pods": {
			change: func(w *world) { w.Entries = nil },
			check:  func(t *testing.T, w *world, _ []types.UID) { assert.Len(t, w.Entries, 5) },
		},
		"of two Pods with one ID the younger goes": {
			change: func(w *world) {
				twin := w.Pods[2]
				twin.View.Name, twin.View.UID, twin.Created = "twin", "twin", w.Now
				w.Pods = append(w.Pods, twin)
			},
			check: func(t *testing.T, w *world, before []types.UID) { assert.Equal(t, before, w.uids()) },
		},
		"entries of others are kept, and their IDs left alone": {
			change: func(w *world) {
				w.Entries = append(w.Entries, setplan.Entry{ID: 6, Data: map[string]string{appsv1alpha1.ContextOwner: "other"}},
					setplan.Entry{ID: 8})
				w.Replicas = 8
			},
			check: func(t *testing.T, w *world, _ []types.UID) {
				assert.Equal(t, []int{0, 1, 2, 3, 4, 5, 7, 9}, w.ids())
				assert.Len(t, w.Entries, 10)
			},
		},
		"entries of nobody that is left are dropped, and their IDs free": {
			change: func(w *world) {
				w.Entries = append(w.Entries, setplan.Entry{ID: 5, Data: map[string]string{appsv1alpha1.ContextOwner: "gone"}})
				w.StaleOwners = map[string]bool{"gone": true}
				w.Replicas = 6
			},
			check: func(t *testing.T, w *world, _ []types.UID) {
				assert.Equal(t, []int{0, 1, 2, 3, 4, 5}, w.ids())
				assert.Equal(t, "web", w.entry(5).Data[appsv1alpha1.ContextOwner])
				assert.Len(t, w.Entries, 6)
			},
		},
		"a Pod whose ID is another's is named, and counts": {
			change: func(w *world) {
				w.Entries[2].Data = map[string]string{appsv1alpha1.ContextOwner: "other"}
				w.template("r2")
			},
			check: func(t *testing.T, w *world, before []types.UID) {
				assert.Equal(t, before, w.uids())
				assert.Equal(t, 5, w.atRevision("r2"))
				assert.Equal(t, "other", w.entry(2).Data[appsv1alpha1.ContextOwner])
				blockers := setplan.Decide(&w.Snapshot).Blockers
				require.Len(t, blockers, 1)
				assert.Equal(t, "InstanceIDTaken", blockers[0].Reason)
				assert.Contains(t, blockers[0].Message, "CollaSet other")
				w.find(blockers[0].Message[len("Pod "):len("Pod web-00003")]).View.Terminating = true
				require.True(t, w.run(always))
				assert.Equal(t, []int{0, 1, 3, 4, 5}, w.ids())
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 5, tc.before)
			before := w.uids()
			tc.change(w)
			assert.True(t, w.run(always), "it comes to rest: %v", w.log)
			assertNoTwins(t, w, name)
			tc.check(t, w, before)
		})
	}
}

// assertNoTwins checks what must hold, except where the test itself broke it.
func assertNoTwins(t *testing.T, w *world, name string) {
	t.Helper()
	for _, p := range w.problems {
		if !strings.HasPrefix(name, "of two Pods") || !strings.HasPrefix(p, "two live Pods") {
			t.Error(p)
		}
	}
}

func countPrefix(log []string, prefix string) int {
	n := 0
	for _, line := range log {
		if line == prefix || strings.HasPrefix(line, prefix+" ") {
			n++
		}
	}
	return n
}

func TestScaleInIsCancelledWhenReplicasRise(t *testing.T) {
	w := atRest(t, 5, nil)
	before := w.uids()
	w.Replicas = 2
	plan := setplan.Decide(&w.Snapshot)
	require.Len(t, plan.Begins, 3)
	w.apply(plan, always)
	w.Replicas = 4
	plan = setplan.Decide(&w.Snapshot)
	assert.Len(t, plan.Cancels, 2)
	assert.Empty(t, plan.Deletions)
	w.Replicas = 5
	require.True(t, w.run(always))
	assert.Equal(t, before, w.uids())
}

func TestRollbackMidwayCancelsWhatWasNotChanged(t *testing.T) {
	w := atRest(t, 6, nil)
	before := w.uids()
	w.template("r2")
	w.round(always)            // begin
	w.round(sometimes(3, 0.5)) // some are changed
	w.template("r1")
	require.True(t, w.run(always))
	assert.Empty(t, w.problems)
	assert.Equal(t, before, w.uids())
	assert.Equal(t, 6, w.atRevision("r1"))
	assert.Positive(t, countPrefix(w.log, "cancel"))
}

func TestDelayIsMeasuredFromTheFirstSightAndAskedForExactly(t *testing.T) {
	w := atRest(t, 1, nil)
	w.UpdateDelay = 10 * time.Second
	w.template("r2")
	w.apply(setplan.Decide(&w.Snapshot), always)
	w.settle(always)
	w.settle(always)
	require.False(t, w.Pods[0].AllowedSince.IsZero())
	w.Pods[0].AllowedSince = w.Now
	w.Now = w.Now.Add(3 * time.Second)
	plan := setplan.Decide(&w.Snapshot)
	assert.Equal(t, 7*time.Second, plan.NextLook)
	assert.Empty(t, plan.Changes)
	w.Now = w.Now.Add(7 * time.Second)
	assert.Len(t, setplan.Decide(&w.Snapshot).Changes, 1)
}

// TestAllThatTheBudgetAllowsMayBegin: a decision knows no other bound, and says who is next beyond it.
func TestAllThatTheBudgetAllowsMayBegin(t *testing.T) {
	for name, tc := range map[string]struct{ budget, begins, next int }{
		"no budget":          {0, 300, 0},
		"a half":             {150, 150, 150},
		"others are missing": {-40, 110, 190},
	} {
		w := atRest(t, 300, nil)
		w.template("r2")
		w.MaxUnavailable = tc.budget
		if tc.budget < 0 {
			w.MaxUnavailable = 150
			w.fail(w.Pods[:40])
			tc.begins += 40 // they cost no service
			tc.next -= 40
		}
		plan := setplan.Decide(&w.Snapshot)
		assert.Len(t, plan.Begins, tc.begins, name)
		assert.Len(t, plan.Rollout.Next, tc.next, name)
		if tc.next > 0 {
			assert.Zero(t, plan.Rollout.Spare, name)
		}
	}
}

// TestAPodBeyondTheBudgetWaitsForMoreThanOneToComeBack where more are unavailable than may be.
func TestAPodBeyondTheBudgetWaitsForMoreThanOneToComeBack(t *testing.T) {
	w := atRest(t, 10, nil)
	w.template("r2")
	w.MaxUnavailable = 1
	w.apply(setplan.Decide(&w.Snapshot), always)
	w.fail(w.Pods[:3])
	require.Equal(t, -3, setplan.Decide(&w.Snapshot).Rollout.Spare)
}

// fail has Pods stop serving.
func (w *world) fail(pods []setplan.Pod) {
	for i := range pods {
		pods[i].Available, pods[i].Facts, pods[i].View.Ready = false, nil, false
		delete(pods[i].View.Labels, podops.ServiceAvailableLabel)
	}
}

// TestWhatTheWindowDoesNotAdmitWaits: it is a blocker, and its time does not count as long as nothing is under way.
func TestWhatTheWindowDoesNotAdmitWaits(t *testing.T) {
	w := atRest(t, 5, nil)
	w.template("r2")
	plan := setplan.Decide(&w.Snapshot)
	first := plan.Begins[0].Pod.UID()
	plan.Admit(func(uid types.UID) bool { return uid == first })
	require.Len(t, plan.Begins, 1)
	require.Equal(t, 4, plan.Blockers[0].Count)
	require.Equal(t, setplan.BlockInFlight, plan.Blockers[0].Reason)
	require.False(t, plan.Goal.Waits)

	plan = setplan.Decide(&w.Snapshot)
	plan.Admit(func(types.UID) bool { return false })
	require.Empty(t, plan.Begins)
	require.True(t, plan.Goal.Waits)

	w.Replicas = 3
	plan = setplan.Decide(&w.Snapshot)
	removals := len(plan.Begins)
	plan.Admit(func(types.UID) bool { return false })
	require.Len(t, plan.Begins, 2, "of %d: a scale-in waits for no window", removals)
	require.False(t, plan.Goal.Waits)
}

func TestAReadinessGateOfOthersIsNamedWhileReadyIsMissing(t *testing.T) {
	w := atRest(t, 3, nil)
	require.Empty(t, setplan.Decide(&w.Snapshot).Goal.Awaited)
	for i, gate := range []string{"", "b", "a"} {
		w.Pods[i].Available, w.Pods[i].ReadySince, w.Pods[i].Awaited = false, time.Time{}, gate
	}
	plan := setplan.Decide(&w.Snapshot)
	assert.Equal(t, setplan.LacksReady, plan.Goal.Lacking)
	assert.Equal(t, "a", plan.Goal.Awaited, "the same as long as it is missing, whatever the order of Pods")

	for i := range w.Pods {
		w.Pods[i].ReadySince, w.Pods[i].Awaited = w.Now, "prot/mesh"
	}
	w.Pods[0].ReadySince, w.Pods[0].Awaited = time.Time{}, ""
	assert.Empty(t, setplan.Decide(&w.Snapshot).Goal.Awaited, "it is no gate that is awaited of a Pod that is not Ready")
	w.Pods[0].ReadySince, w.Pods[0].Awaited = w.Now, "prot/mesh"
	plan = setplan.Decide(&w.Snapshot)
	assert.Equal(t, setplan.LacksService, plan.Goal.Lacking)
	status := setplan.StatusOf(&w.Snapshot, &plan, setplan.Outcome{}, appsv1alpha1.CollaSetStatus{})
	assert.Contains(t, meta.FindStatusCondition(status.Conditions, appsv1alpha1.CollaSetProgressing).Message,
		"the finalizer prot/mesh on")
}

// TestEntriesOfManyPodsAreWrittenAsOftenAsThoseOfFewer matters because each write is as large as there are Pods.
func TestEntriesOfManyPodsAreWrittenAsOftenAsThoseOfFewer(t *testing.T) {
	for _, pods := range []int{1100, 2200} {
		w := atRest(t, pods, nil)
		w.template("r2")
		require.True(t, w.run(always))
		assert.LessOrEqual(t, countPrefix(w.log, "store"), 6, "%d Pods", pods)
		assert.Empty(t, w.problems)
	}
}

// TestABrokenRevisionIsRepaired lets more Pods than may be in flight hang at a revision that never serves.
func TestABrokenRevisionIsRepaired(t *testing.T) {
	w := atRest(t, 100, nil)
	for i := range w.Pods {
		p := &w.Pods[i]
		p.View.Ready, p.Revision = false, "r2"
		delete(p.View.Labels, podops.ServiceAvailableLabel)
		w.refresh(p)
	}
	w.template("r3")
	require.True(t, w.run(always))
	assert.Equal(t, 100, w.atRevision("r3"))
}

func TestReclaim(t *testing.T) {
	for name, protocol := range map[string]bool{"under the lifecycle Pods are marked": true,
		"without it they are deleted": false} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 3, func(w *world) { w.Protocol = protocol })
			w.Deleting = true
			plan := setplan.Decide(&w.Snapshot)
			assert.Equal(t, protocol, len(plan.Marks) == 3)
			assert.Equal(t, !protocol, len(plan.Deletions) == 3)
			assert.False(t, plan.Release)
			w.apply(plan, always)
			w.settle(always)
			w.settle(always)
			assert.True(t, setplan.Decide(&w.Snapshot).Release)
		})
	}
}

// TestAnySubsetOfAPlanReachesTheGoal changes the spec at random moments, lets each action pass or not, and demands that
// the goal is reached with no breach on the way, from whatever state that led to.
func TestAnySubsetOfAPlanReachesTheGoal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(0, 6).Draw(t, "replicas"))
		w.Protocol = rapid.Bool().Draw(t, "protocol")
		w.Sequential = rapid.Bool().Draw(t, "sequential")
		w.Policy = rapid.SampledFrom([]appsv1alpha1.PodUpdatePolicy{appsv1alpha1.PodUpdateRecreate,
			appsv1alpha1.PodUpdateInPlaceIfPossible}).Draw(t, "policy")
		w.older = rapid.Bool().Draw(t, "lifecycle-controller is older")
		w.resizes, w.infeasible = rapid.Bool().Draw(t, "resizes"), rapid.Bool().Draw(t, "infeasible")
		passes := sometimes(rapid.Uint64().Draw(t, "seed"), rapid.Float64Range(0.3, 1).Draw(t, "chance"))
		revisions := []string{"r1", "r2", "r3"}
		for range rapid.IntRange(1, 8).Draw(t, "changes") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				w.Replicas = rapid.IntRange(0, 7).Draw(t, "replicas")
			case 1:
				w.template(rapid.SampledFrom(revisions).Draw(t, "revision"))
			case 2:
				w.Partition = rapid.IntRange(0, 8).Draw(t, "partition")
			case 3:
				if live := w.live(); len(live) > 0 {
					live[rapid.IntRange(0, len(live)-1).Draw(t, "victim")].View.Terminating = true
				}
			case 4:
				w.Revisions[w.UpdatedRevision] = setplan.Difference{Forcing: []string{"env"}}
			case 5:
				if i := slices.IndexFunc(w.Pods, func(p setplan.Pod) bool { return p.Live() }); i >= 0 {
					end(w, i)
					w.Pods[i].Again = time.Duration(rapid.IntRange(0, 9).Draw(t, "again")) * time.Second
				}
			}
			for range rapid.IntRange(0, 6).Draw(t, "rounds") {
				w.round(passes)
			}
		}
		already := w.slotsAt(w.UpdatedRevision)
		if !w.run(passes) {
			t.Fatalf("it does not come to rest: %v", w.log[max(0, len(w.log)-40):])
		}
		if len(w.problems) > 0 {
			t.Fatalf("%v\n%v", w.problems, w.log)
		}
		if len(w.live()) != w.Replicas {
			t.Fatalf("%d Pods for %d replicas\n%v", len(w.live()), w.Replicas, w.log)
		}
		// At least what is in scope, and no more than that unless it was there before.
		updated, scope := w.atRevision(w.UpdatedRevision), max(w.Replicas-w.Partition, 0)
		if w.CurrentRevision != w.UpdatedRevision && (updated < scope || updated > max(scope, already)) {
			t.Fatalf("%d Pods at the updated revision, %d wanted, %d before\n%v", updated, scope, already, w.log)
		}
		if plan := setplan.Decide(&w.Snapshot); !plan.IsZero() {
			t.Fatalf("a plan at the goal: %+v", plan)
		}
	})
}

func TestTheOrderOfTheInputDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(1, 8).Draw(t, "replicas"))
		passes := sometimes(rapid.Uint64().Draw(t, "seed"), 0.6)
		for range 4 {
			w.round(passes)
		}
		w.template("r2")
		w.Partition = rapid.IntRange(0, 3).Draw(t, "partition")
		w.Replicas = rapid.IntRange(0, 9).Draw(t, "then")
		for range rapid.IntRange(0, 5).Draw(t, "rounds") {
			w.round(passes)
		}
		shuffled := w.Snapshot
		shuffled.Pods, shuffled.Entries = slices.Clone(w.Pods), slices.Clone(w.Entries)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 2))
		random.Shuffle(len(shuffled.Pods), func(i, j int) {
			shuffled.Pods[i], shuffled.Pods[j] = shuffled.Pods[j],
				shuffled.Pods[i]
		})
		random.Shuffle(len(shuffled.Entries), func(i, j int) {
			shuffled.Entries[i], shuffled.Entries[j] = shuffled.Entries[j], shuffled.Entries[i]
		})
		if diff := cmp.Diff(setplan.Decide(&w.Snapshot), setplan.Decide(&shuffled)); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestStatusSaysWhereTheSetStands(t *testing.T) {
	condition := func(st appsv1alpha1.CollaSetStatus, name string) string {
		for _, c := range st.Conditions {
			if c.Type == name {
				return string(c.Status) + " " + c.Reason
			}
		}
		return "absent"
	}
	w := atRest(t, 3, nil)
	status := func() appsv1alpha1.CollaSetStatus {
		plan := setplan.Decide(&w.Snapshot)
		return setplan.StatusOf(&w.Snapshot, &plan, setplan.Outcome{}, appsv1alpha1.CollaSetStatus{})
	}
	st := status()
	assert.Equal(t, "True Available", condition(st, appsv1alpha1.CollaSetReady))
	assert.Equal(t, "True RolloutComplete", condition(st, appsv1alpha1.CollaSetProgressing))
	assert.Equal(t, "False Reconciled", condition(st, appsv1alpha1.CollaSetStalled))
	assert.EqualValues(t, 3, st.UpdatedAvailableReplicas)

	w.template("r2")
	st = status()
	assert.Equal(t, "False Updating", condition(st, appsv1alpha1.CollaSetReady))
	assert.Equal(t, "True Updating", condition(st, appsv1alpha1.CollaSetReconciling))
	assert.Equal(t, "r1", st.CurrentRevision)

	w.Paused = true
	st = status()
	assert.Equal(t, "False Paused", condition(st, appsv1alpha1.CollaSetProgressing))
	assert.Equal(t, "Paused", st.Blockers[0].Reason)

	w.Paused, w.Policy, w.Revisions["r1"] = false, appsv1alpha1.PodUpdateInPlaceOnly,
		setplan.Difference{Forcing: []string{"env"}}
	st = status()
	assert.Equal(t, "True Blocked", condition(st, appsv1alpha1.CollaSetStalled))
	assert.Equal(t, "False Blocked", condition(st, appsv1alpha1.CollaSetReady))
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		w := benchWorld(n)
		for name, revision := range map[string]string{"rest": "r1", "rollout": "r2"} {
			w.template(revision)
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				for b.Loop() {
					setplan.Decide(&w.Snapshot)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/Pod")
			})
		}
	}
}

// benchWorld is a set at rest, made without the detour over a rollout.
func benchWorld(n int) *world {
	w := newWorld(n)
	for id := range n {
		w.Entries = append(w.Entries, setplan.Entry{ID: id,
			Data: map[string]string{appsv1alpha1.ContextOwner: "web", appsv1alpha1.ContextRevision: "r1"}})
		name := fmt.Sprintf("web-%05d", id)
		w.Pods = append(w.Pods, setplan.Pod{
			View: podops.View{Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: "1", Gate: true, Ready: true,
				ServiceReady: "True",
				Labels:       map[string]string{podops.ServiceAvailableLabel: "1", "app": "web", "kusionstack.io/control": "true"}},
			ID: id, Revision: "r1", Created: w.Now,
			Service: setplan.Service{ReadySince: w.Now, Available: true, Scheduled: true},
			Marks:   setplan.Marks{Selected: true},
		})
	}
	return w
}
