package setplan_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// begun are the IDs of the Pods whose scale-in the plan begins, in the order of the plan's input.
func begun(plan setplan.Plan) []int {
	var ids []int
	for _, b := range plan.Begins {
		if b.Request.Type == podops.TypeScaleIn {
			ids = append(ids, b.Pod.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// TestVictims has pairs of facts in which Pod 1 of five goes first, although later facts speak for Pod 2.
func TestVictims(t *testing.T) {
	down := func(p *setplan.Pod) {
		delete(p.View.Labels, podops.ServiceAvailableLabel)
		p.Available = false
	}
	cheap := func(p *setplan.Pod) { p.DeletionCost = -5 }
	facts := []struct {
		name  string
		apply func(*world, *setplan.Pod)
	}{
		{"it is named", func(w *world, p *setplan.Pod) { w.ToDelete = []string{p.Name()} }},
		{"it is marked for deletion", func(_ *world, p *setplan.Pod) { p.ToDelete = true }},
		{"it has no node", func(_ *world, p *setplan.Pod) { p.Scheduled = false }},
		{"it is Pending", func(_ *world, p *setplan.Pod) { p.Phase = corev1.PodPending }},
		{"its phase is Unknown", func(_ *world, p *setplan.Pod) { p.Phase = corev1.PodUnknown }},
		{"it is not in service", func(_ *world, p *setplan.Pod) { down(p) }},
		{"it is not Ready", func(_ *world, p *setplan.Pod) { p.View.Ready = false }},
		{"it costs less to delete", func(_ *world, p *setplan.Pod) { cheap(p) }},
		{"its domain is the fullest", func(w *world, p *setplan.Pod) {
			for i := range w.Pods {
				w.Pods[i].Domains = []string{fmt.Sprint("zone-", i)}
			}
			p.Domains = w.Pods[4].Domains
			w.Pods[4].DeletionCost = 9
		}},
		{"it became Ready most recently", func(w *world, p *setplan.Pod) { p.ReadySince = w.Now }},
		{"it is the newest", func(w *world, p *setplan.Pod) { p.Created = w.Now }},
	}
	for i, earlier := range facts {
		t.Run(earlier.name, func(t *testing.T) {
			w := atRest(t, 5, nil)
			for j := range w.Pods {
				w.Pods[j].Phase = corev1.PodRunning
			}
			w.Replicas = 4
			earlier.apply(w, &w.Pods[1])
			assert.Equal(t, []int{1}, begun(setplan.Decide(&w.Snapshot)), "alone it decides")
			for _, later := range facts[i+1:] {
				if later.name != "its domain is the fullest" && later.name != "it is named" {
					later.apply(w, &w.Pods[2])
				}
			}
			assert.Equal(t, []int{1}, begun(setplan.Decide(&w.Snapshot)), "it counts more than all that come after")
		})
	}
	t.Run("nothing speaks for any: the highest ID", func(t *testing.T) {
		w := atRest(t, 5, nil)
		w.Replicas = 3
		assert.Equal(t, []int{3, 4}, begun(setplan.Decide(&w.Snapshot)))
	})
	t.Run("what was begun goes on, whatever has become cheaper since", func(t *testing.T) {
		w := atRest(t, 5, nil)
		w.Replicas = 4
		w.apply(setplan.Decide(&w.Snapshot), always)
		cheap(&w.Pods[0])
		down(&w.Pods[1])
		plan := setplan.Decide(&w.Snapshot)
		assert.Empty(t, plan.Cancels)
		assert.Empty(t, plan.Begins)
	})
}

// TestScaleInKeepsTheSpread scales in at random and measures how far apart the domains are afterwards.
func TestScaleInKeepsTheSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zones, perZone, hosts := rapid.IntRange(1, 4).Draw(t, "zones"), rapid.IntRange(2, 6).Draw(t, "Pods a zone"),
			rapid.IntRange(1, 3).Draw(t, "hosts a zone")
		w := benchWorld(zones * perZone)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "ages"), 3))
		for i := range w.Pods {
			zone := i % zones
			w.Pods[i].Domains = []string{fmt.Sprint("zone-", zone), fmt.Sprint("host-", zone, "-", i/zones%hosts)}
			w.Pods[i].ReadySince = w.Now.Add(-time.Duration(random.IntN(9)) * time.Minute)
		}
		w.Replicas = rapid.IntRange(0, len(w.Pods)).Draw(t, "replicas")
		gone := begun(setplan.Decide(&w.Snapshot))
		require.Len(t, gone, len(w.Pods)-w.Replicas)
		left := []map[string]int{{}, {}}
		for i, p := range w.Pods {
			for k, domain := range p.Domains {
				if !slices.Contains(gone, i) {
					left[k][domain]++
				} else {
					left[k][domain] += 0
				}
			}
		}
		if skew := skewOf(left[0], ""); skew > 1 {
			t.Fatalf("zones differ by %d: %v", skew, left[0])
		}
		for zone := range zones {
			// Where Pods were not dealt evenly to begin with, only that may be left.
			if skew := skewOf(left[1], fmt.Sprint("host-", zone, "-")); skew > 1 {
				t.Fatalf("hosts of zone %d differ by %d: %v", zone, skew, left[1])
			}
		}
	})
}

func skewOf(counts map[string]int, prefix string) int {
	least, most := 1<<30, 0
	for domain, n := range counts {
		if strings.HasPrefix(domain, prefix) {
			least, most = min(least, n), max(most, n)
		}
	}
	return max(most-least, 0)
}

// TestScaleInIsCancelledAtEveryStep raises replicas again after any number of steps: no Pod that was not deleted yet is
// lost, and all serve again.
func TestScaleInIsCancelledAtEveryStep(t *testing.T) {
	for steps := range 6 {
		t.Run(fmt.Sprintf("after %d steps", steps), func(t *testing.T) {
			w := atRest(t, 6, nil)
			w.ScaleInDelay = 2 * time.Second
			w.Replicas = 2
			for range steps {
				w.round(sometimes(uint64(steps), 0.6))
			}
			remaining := w.uids()
			w.Replicas = 6
			require.True(t, w.run(always))
			assert.Empty(t, w.problems)
			assert.Subset(t, w.uids(), remaining, "nobody who was still there goes")
			assert.Len(t, w.live(), 6)
			for _, p := range w.live() {
				assert.True(t, p.Available)
				assert.Equal(t, podops.PhaseNone, podops.OperationOf(p.View, setplan.OperatorID).Phase)
			}
		})
	}
}

// trickle lets rules and kubelets move one in fifty Pods at a time, while every write succeeds.
func (w *world) trickle() {
	asked := 0
	w.apply(setplan.Decide(&w.Snapshot), always)
	w.settle(func() bool { asked++; return asked%50 == int(w.Now.Unix()%50) })
	w.settleClaims()
}

// leavingIDs are those whose entries mark their Pods as scaled in.
func (w *world) leavingIDs() (ids []int) {
	for _, e := range w.Entries {
		if e.Data[appsv1alpha1.ContextScaleIn] == appsv1alpha1.ContextTrue {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// TestPodsThatLeaveOneByOneCostFewWritesOfTheContext scales in under rules that let few Pods go at a time.
func TestPodsThatLeaveOneByOneCostFewWritesOfTheContext(t *testing.T) {
	w := atRest(t, 120, nil)
	w.Replicas = 20
	for range 4000 {
		w.trickle()
	}
	require.Len(t, w.Pods, 20)
	assert.Len(t, w.Entries, 20, "once the last is gone, all IDs are free")
	assert.Equal(t, 100, countPrefix(w.log, "delete"))
	assert.LessOrEqual(t, countPrefix(w.log, "store"), 4, "100 marks, 64 IDs, and what is left: %v", w.log)
	assert.Empty(t, w.problems)
}

// TestAScaleInThatIsGivenUpLeavesNoMark has Pods wait for their rules when the CollaSet changes its mind: a mark
// would have the ID of a Pod that is lost now forgotten, with its revision.
func TestAScaleInThatIsGivenUpLeavesNoMark(t *testing.T) {
	w := atRest(t, 120, nil)
	w.Replicas = 20
	for len(w.leavingIDs()) == 0 {
		w.trickle()
	}
	require.GreaterOrEqual(t, len(w.leavingIDs()), 60, "all that wait are marked with the first that goes")
	w.Replicas = 120
	plan := setplan.Decide(&w.Snapshot)
	require.True(t, plan.EntriesChanged)
	w.Entries = plan.Entries
	for _, id := range w.leavingIDs() {
		assert.False(t, slices.ContainsFunc(w.live(), func(p *setplan.Pod) bool { return p.ID == id }), "ID %d", id)
	}
	require.True(t, w.run(always))
	assert.Len(t, w.live(), 120)
	assert.Empty(t, w.problems)
}

// TestWhereClaimsAreDeletedOnlyWhatIsDeletedIsMarked keeps a lost Pod's data if the CollaSet changes its mind.
func TestWhereClaimsAreDeletedOnlyWhatIsDeletedIsMarked(t *testing.T) {
	w := atRest(t, 60, func(w *world) {
		w.Templates = map[string][]setplan.ClaimTemplate{"r1": {claimTemplate("data", 10, "fast")}}
		w.Retention.Scaled = true
	})
	w.Replicas = 20
	for range 4000 {
		w.trickle()
		for _, p := range w.live() {
			require.NotContains(t, w.leavingIDs(), p.ID)
		}
	}
	assert.Len(t, w.Claims, 20)
	assert.Empty(t, w.problems)
}

func TestPausedBeginsNoScaling(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*world)
		reason string
	}{
		"nothing is created":      {change: func(w *world) { w.Replicas = 9 }},
		"nothing is removed":      {change: func(w *world) { w.Replicas = 1 }, reason: "Paused"},
		"nobody named is deleted": {change: func(w *world) { w.ToDelete = []string{w.Pods[0].Name()} }},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 3, nil)
			w.Paused = true
			tc.change(w)
			require.True(t, w.run(always))
			assert.Zero(t, countPrefix(w.log, "create")+countPrefix(w.log, "delete")+countPrefix(w.log, "begin")+
				countPrefix(w.log, "mark"), w.log)
			plan := setplan.Decide(&w.Snapshot)
			if tc.reason != "" {
				require.NotEmpty(t, plan.Blockers)
				assert.Equal(t, tc.reason, plan.Blockers[0].Reason)
			}
			w.Paused = false
			require.True(t, w.run(always))
			assert.Len(t, w.live(), w.Replicas)
			assert.Empty(t, w.problems)
		})
	}
}

// A pause is for the hands that change things; it does not leave a set with fewer Pods than it has had.
func TestPausedReplacesWhatIsLost(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"a Pod that ended":                     func(w *world) { end(w, 0) },
		"a Pod that somebody deleted":          func(w *world) { w.Pods[0].View.Terminating = true },
		"one of a set that is to have more":    func(w *world) { w.Replicas = 9; w.Pods[0].View.Terminating = true },
		"one of a set whose template is newer": func(w *world) { w.template("r2"); w.Pods[0].View.Terminating = true },
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 3, nil)
			w.Paused = true
			lose(w)
			require.True(t, w.run(always))
			assert.Equal(t, []int{0, 1, 2}, w.ids())
			assert.Len(t, w.live(), 3)
			assert.Equal(t, 3, w.atRevision("r1"), "at its own revision")
			assert.Empty(t, w.problems)
		})
	}
}

func TestScaleInBegunBeforeAPauseIsBroughtToItsEnd(t *testing.T) {
	w := atRest(t, 3, nil)
	w.Replicas = 2
	w.apply(setplan.Decide(&w.Snapshot), always)
	w.Paused = true
	require.True(t, w.run(always))
	assert.Len(t, w.live(), 2)
}

// end lets a Pod run to its end.
func end(w *world, i int) {
	p := &w.Pods[i]
	p.View.Terminal, p.View.Ready, p.View.ContainersReady = true, false, false
	p.Phase, p.Ended = corev1.PodFailed, "failed, Evicted: the node was low on memory"
	p.ReadySince = time.Time{}
	w.refresh(p)
}

func TestPodsThatEnd(t *testing.T) {
	for name, sequential := range map[string]bool{"with random names": false, "with names in sequence": true} {
		t.Run(name, func(t *testing.T) {
			started := func() *world { return atRest(t, 3, func(w *world) { w.Sequential = sequential }) }
			t.Run("the Pod is replaced under its ID, and deleted", func(t *testing.T) {
				w := started()
				end(w, 1)
				plan := setplan.Decide(&w.Snapshot)
				require.Len(t, plan.Deletions, 1)
				assert.Equal(t, setplan.DeleteTerminal, plan.Deletions[0].Reason)
				assert.Equal(t, sequential, len(plan.Creations) == 0, "two Pods cannot have one name")
				require.True(t, w.run(always))
				assert.Empty(t, w.problems)
				assert.Equal(t, []int{0, 1, 2}, w.ids())
				assert.Len(t, w.Pods, 3, "nothing is left of it")
			})
			t.Run("it waits when that happens again and again, and says how it ended", func(t *testing.T) {
				w := started()
				end(w, 1)
				w.Pods[1].Again = 7 * time.Second
				plan := setplan.Decide(&w.Snapshot)
				assert.True(t, plan.IsZero(), "%+v", plan)
				assert.Equal(t, 7*time.Second, plan.NextLook)
				require.Len(t, plan.Blockers, 1)
				assert.Equal(t, "BackOff", plan.Blockers[0].Reason)
				assert.Contains(t, plan.Blockers[0].Message, "Evicted: the node was low on memory")
				assert.False(t, plan.Goal.ScaleReached)
			})
			t.Run("a repaired template does not wait", func(t *testing.T) {
				w := started()
				end(w, 1)
				w.Pods[1].Again = 5 * time.Minute
				w.template("r2")
				assert.Len(t, setplan.Decide(&w.Snapshot).Deletions, 1)
				w.Pods[1].Again = 0
				require.True(t, w.run(always))
				assert.Equal(t, 3, w.atRevision("r2"))
				assert.Empty(t, w.problems)
			})
			t.Run("without a slot it just goes", func(t *testing.T) {
				w := started()
				end(w, 1)
				w.Pods[1].Again = 5 * time.Minute
				w.Replicas = 2
				plan := setplan.Decide(&w.Snapshot)
				assert.Empty(t, plan.Begins, "no other Pod has to go")
				require.Len(t, plan.Deletions, 1)
				require.True(t, w.run(always))
				assert.Equal(t, []int{0, 2}, w.ids())
			})
		})
	}
}

func TestAPodThatCannotGo(t *testing.T) {
	for name, tc := range map[string]struct {
		sequential, identity bool
		reason               string
	}{
		"its successor comes at once":           {},
		"its successor waits for the name":      {sequential: true, reason: "NameInUse"},
		"its successor waits for the volumes":   {identity: true, reason: "VolumesInUse"},
		"with both it is the name that is said": {sequential: true, identity: true, reason: "NameInUse"},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 2, func(w *world) {
				w.Sequential = tc.sequential
				if tc.identity {
					w.Templates = map[string][]setplan.ClaimTemplate{"r1": {{Name: "data", Hash: "h"}}}
				}
			})
			w.Pods[0].View.Terminating = true
			plan := setplan.Decide(&w.Snapshot)
			if tc.reason == "" {
				assert.Len(t, plan.Creations, 1)
				return
			}
			assert.Empty(t, plan.Creations)
			assert.Empty(t, plan.Deletions, "nothing is deleted by force")
			require.Len(t, plan.Blockers, 1)
			assert.Equal(t, tc.reason, plan.Blockers[0].Reason)
		})
	}
}

// TestAnIDIsKeptUntilItsPodIsGone has a Pod deleted by a user just before one Pod fewer is wanted: another CollaSet of
// the pool must not get its ID while it is there.
func TestAnIDIsKeptUntilItsPodIsGone(t *testing.T) {
	w := atRest(t, 3, nil)
	w.Pods[2].View.Terminating = true
	w.Replicas = 2
	id := w.Pods[2].ID
	entries := func() (ids []int) {
		for range 3 {
			if plan := setplan.Decide(&w.Snapshot); plan.EntriesChanged {
				w.Entries = plan.Entries
			}
		}
		for _, e := range w.Entries {
			ids = append(ids, e.ID)
		}
		return ids
	}
	require.Contains(t, entries(), id)
	w.Pods = slices.Delete(w.Pods, 2, 3)
	require.NotContains(t, entries(), id)
}

func TestNamesInSequenceThatNoPodCanHave(t *testing.T) {
	for name, tc := range map[string]struct {
		set      string
		replicas int
		says     string
	}{
		"a dot":                      {set: "a.b", replicas: 1, says: "a.b-1"},
		"too long":                   {set: strings.Repeat("x", 62), replicas: 1, says: "no more than 63"},
		"too long with ten of them":  {set: strings.Repeat("x", 61), replicas: 10, says: "no more than 63"},
		"long enough for nine":       {set: strings.Repeat("x", 61), replicas: 9},
		"a name like most are named": {set: "web", replicas: 100},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(tc.replicas)
			w.Name, w.Sequential = tc.set, true
			plan := setplan.Decide(&w.Snapshot)
			if tc.says == "" {
				assert.Empty(t, plan.Problem)
				return
			}
			assert.Contains(t, plan.Problem, tc.says)
			assert.Contains(t, plan.Problem, "podNamingSuffixPolicy to Random")
			assert.Empty(t, plan.Creations)
			w.Sequential = false
			plan = setplan.Decide(&w.Snapshot)
			assert.Empty(t, plan.Problem)
			w.Sequential, w.Deleting = true, true
			assert.True(t, setplan.Decide(&w.Snapshot).Release, "it can be deleted")
		})
	}
}

func TestASetThatIsDeletedWithoutItsPods(t *testing.T) {
	for name, protocol := range map[string]bool{"under the lifecycle": true, "without it": false} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 3, func(w *world) { w.Protocol = protocol })
			w.Deleting, w.Orphaning = true, true
			plan := setplan.Decide(&w.Snapshot)
			assert.True(t, plan.IsZero(), "no Pod is touched: %+v", plan)
			require.Len(t, plan.Blockers, 1)
			assert.Equal(t, "WaitingForGarbageCollector", plan.Blockers[0].Reason)
			w.Pods = nil
			assert.True(t, setplan.Decide(&w.Snapshot).Release)
		})
	}
}

// TestAnAbsurdNumberOfReplicasCostsNoMoreThanALargeOne: the memory of the process is that of all tenants.
func TestAnAbsurdNumberOfReplicasCostsNoMoreThanALargeOne(t *testing.T) {
	w := newWorld(math.MaxInt32)
	plan := setplan.Decide(&w.Snapshot)
	require.Len(t, plan.Entries, 10_000)
	require.True(t, plan.More, "the others come later")
	require.Len(t, plan.Creations, 256, "status is written between two decisions")
}
