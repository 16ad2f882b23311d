package setplan_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// picky is a world whose API server refuses some writes, in a dry run and in earnest.
type picky struct {
	*world
	refuses map[setplan.Trial]bool
	// least is the smallest number of Pods in service that was seen.
	least int
	// trials counts dry runs.
	trials int
}

// newPicky is a world at rest at r1, whose template becomes r2. At most so many Pods may be unavailable.
func newPicky(t *testing.T, replicas, maxUnavailable int, setup func(*world)) *picky {
	w := atRest(t, replicas, setup)
	w.MaxUnavailable, w.Verdicts = maxUnavailable, map[setplan.Trial]setplan.Verdict{}
	w.template("r2")
	return &picky{world: w, refuses: map[setplan.Trial]bool{}, least: replicas}
}

// answer is what the API server says of a write.
func (w *picky) answer(t setplan.Trial) bool {
	v := setplan.Verdict{At: w.Now}
	if w.refuses[t] {
		v.Refused, v.Retry = "policy \"no\" denied the request", w.Now.Add(5*time.Second)
	}
	w.Verdicts[t] = v
	return v.Refused == ""
}

// look decides, makes trials, and applies what the API server takes.
func (w *picky) look() setplan.Plan {
	plan := setplan.Decide(&w.Snapshot)
	if len(plan.Trials) > 0 {
		for _, t := range plan.Trials {
			w.trials++
			w.answer(t.Trial)
		}
		plan = setplan.Decide(&w.Snapshot)
	}
	taken := plan
	taken.Changes = slices.DeleteFunc(slices.Clone(plan.Changes), func(c setplan.PodChange) bool {
		return !w.answer(setplan.Trial{Write: setplan.TrialPatch, From: c.Pod.Form(), To: c.To})
	})
	taken.Resizes = slices.DeleteFunc(slices.Clone(plan.Resizes), func(p *setplan.Pod) bool {
		return !w.answer(setplan.Trial{Write: setplan.TrialResize, To: p.Form()})
	})
	taken.Deletions = slices.DeleteFunc(slices.Clone(plan.Deletions), func(d setplan.Deletion) bool {
		if d.Reason == setplan.DeleteRecreate {
			form := setplan.Form{Revision: w.entryAfter(plan, d.Pod.ID)}
			successor := w.Verdicts[setplan.Trial{Write: setplan.TrialCreate, To: form}]
			if successor.Refused != "" || successor.At.Before(w.Now) {
				w.wrong("%s is deleted, and nothing is known of its successor", d.Pod.Name())
			}
		}
		return !w.answer(setplan.Trial{Write: setplan.TrialDelete})
	})
	taken.Creations = slices.DeleteFunc(slices.Clone(plan.Creations), func(c setplan.Creation) bool {
		return !w.answer(setplan.Trial{Write: setplan.TrialCreate, To: c.Form()})
	})
	w.apply(taken, always)
	w.refusesDeletions = w.refuses[deleteTrial]
	w.settle(always)
	serving := 0
	for _, p := range w.live() {
		if p.Available {
			serving++
		}
	}
	w.least = min(w.least, serving)
	return plan
}

// entryAfter is the revision of an ID's entry after a plan.
func (w *picky) entryAfter(plan setplan.Plan, id int) string {
	entries := w.Entries
	if plan.EntriesChanged {
		entries = plan.Entries
	}
	for _, e := range entries {
		if e.ID == id {
			return e.Data[appsv1alpha1.ContextRevision]
		}
	}
	return ""
}

func (w *picky) stalled(t *testing.T, plan setplan.Plan) metav1.Condition {
	t.Helper()
	status := setplan.StatusOf(&w.Snapshot, &plan, setplan.Outcome{}, appsv1alpha1.CollaSetStatus{})
	c := meta.FindStatusCondition(status.Conditions, appsv1alpha1.CollaSetStalled)
	require.NotNil(t, c)
	return *c
}

var (
	patchTrial = setplan.Trial{Write: setplan.TrialPatch, From: setplan.Form{Revision: "r1"},
		To: setplan.Form{Revision: "r2"}}
	createTrial = setplan.Trial{Write: setplan.TrialCreate, To: setplan.Form{Revision: "r2"}}
	deleteTrial = setplan.Trial{Write: setplan.TrialDelete}
	resizeTrial = setplan.Trial{Write: setplan.TrialResize, To: setplan.Form{Revision: "r2"}}
)

func recreating(w *world) { w.Policy = appsv1alpha1.PodUpdateRecreate }

func resizing(w *world) {
	w.resizes = true
	for name := range w.Revisions {
		w.Revisions[name] = setplan.Difference{Resizes: true}
	}
}

func TestWhatIsRefusedIsNotBegun(t *testing.T) {
	for name, tc := range map[string]struct {
		setup   func(*world)
		refused setplan.Trial
		says    string
	}{
		"a change in place":                {nil, patchTrial, "update Pods in place to revision r2"},
		"a resize":                         {resizing, resizeTrial, "resize Pods to revision r2"},
		"the successor":                    {recreating, createTrial, "create Pods of revision r2"},
		"the deletion for the successor":   {recreating, deleteTrial, "delete Pods"},
		"the deletion of what is replaced": {replacing, deleteTrial, "delete Pods"},
	} {
		for _, protocol := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, protocol %t", name, protocol), func(t *testing.T) {
				w := newPicky(t, 8, 2, func(w *world) {
					w.Protocol = protocol
					if tc.setup != nil {
						tc.setup(w)
					}
				})
				before := w.uids()
				w.refuses[tc.refused] = true
				w.log = nil
				var plan setplan.Plan
				for range 60 {
					plan = w.look()
				}
				assert.Empty(t, w.log, "no Pod is touched")
				assert.Equal(t, before, w.uids())
				assert.Equal(t, 8, w.least)
				assert.True(t, plan.Goal.Held && plan.Goal.Refusal != "")
				stalled := w.stalled(t, plan)
				assert.Equal(t, metav1.ConditionTrue, stalled.Status)
				assert.Contains(t, stalled.Message, tc.says)
				assert.Contains(t, stalled.Message, `policy "no" denied the request`)
				assert.Positive(t, plan.NextLook, "it is asked again")
				assert.LessOrEqual(t, w.trials, 2*60/5+2, "with pauses")

				delete(w.refuses, tc.refused)
				for range 60 {
					plan = w.look()
				}
				assert.Equal(t, 8, w.atRevision("r2"), "and goes on by itself")
				assert.True(t, plan.Goal.Reached(), "%+v", plan.Blockers)
				assert.GreaterOrEqual(t, w.least, 6)
				assert.Empty(t, w.problems)
			})
		}
	}
}

func TestAScaleInThatIsRefusedIsNotBegun(t *testing.T) {
	w := newPicky(t, 4, 1, nil)
	w.template("r1")
	w.Replicas = 2
	w.refuses[deleteTrial] = true
	for range 20 {
		w.look()
	}
	assert.Equal(t, 4, w.least)
	assert.Len(t, w.live(), 4)
	delete(w.refuses, deleteTrial)
	for range 20 {
		w.look()
	}
	assert.Len(t, w.live(), 2)
	assert.Empty(t, w.problems)
}

// TestRefusedInTheMidst has the API server change its mind when Pods are out of service: these come back, and no
// other follows.
func TestRefusedInTheMidst(t *testing.T) {
	for name, tc := range map[string]struct {
		setup   func(*world)
		refused setplan.Trial
	}{
		"a change in place": {nil, patchTrial},
		"a resize":          {resizing, resizeTrial},
		"the successor":     {recreating, createTrial},
		"the deletion":      {recreating, deleteTrial},
	} {
		for after := range 8 {
			t.Run(fmt.Sprintf("%s after %d looks", name, after), func(t *testing.T) {
				w := newPicky(t, 8, 2, tc.setup)
				for range after {
					w.look()
				}
				w.refuses[tc.refused] = true
				for range 20 {
					w.look()
				}
				atUpdated := w.atRevision("r2")
				w.log = nil
				for range 40 {
					w.look()
				}
				for _, p := range w.live() {
					assert.True(t, p.Available, "%s is in service", p.Name())
				}
				assert.Len(t, w.live(), 8)
				assert.Equal(t, atUpdated, w.atRevision("r2"), "nothing goes on")
				assert.GreaterOrEqual(t, w.least, 6)
				delete(w.refuses, tc.refused)
				for range 80 {
					w.look()
				}
				assert.Equal(t, 8, w.atRevision("r2"))
				assert.Empty(t, w.problems)
			})
		}
	}
}

// TestRefusalsCostNoService draws API servers that change their minds at any time. However they do, no more Pods than
// maxUnavailable are out of service, and once they agree the update ends.
func TestRefusalsCostNoService(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		replicas := rapid.IntRange(1, 9).Draw(rt, "replicas")
		most := rapid.IntRange(1, 3).Draw(rt, "maxUnavailable")
		setup := rapid.SampledFrom([]func(*world){nil, recreating, replacing, resizing, func(w *world) {
			resizing(w)
			w.quietResize = true
		}, func(w *world) {
			resizing(w)
			w.infeasible = true
		}}).Draw(rt, "setup")
		w := newPicky(t, replicas, most, func(w *world) {
			w.Protocol = rapid.Bool().Draw(rt, "protocol")
			if setup != nil {
				setup(w)
			}
		})
		trials := []setplan.Trial{patchTrial, createTrial, deleteTrial, resizeTrial}
		for range rapid.IntRange(1, 30).Draw(rt, "looks") {
			if rapid.Bool().Draw(rt, "turn") {
				changed := rapid.SampledFrom(trials).Draw(rt, "trial")
				w.refuses[changed] = !w.refuses[changed]
			}
			w.look()
			if w.least < replicas-most {
				rt.Fatalf("%d of %d Pods serve, and at most %d may be unavailable\n%s", w.least, replicas, most, w.log)
			}
		}
		w.refuses = map[setplan.Trial]bool{}
		for range 40 * replicas {
			w.look()
		}
		if w.atRevision("r2") != replicas || w.least < replicas-most || len(w.problems) > 0 {
			rt.Fatalf("%d of %d Pods are at r2, at least %d served; %s\n%s", w.atRevision("r2"), replicas, w.least,
				w.problems, w.log)
		}
	})
}

func refusal(b setplan.Blocker) bool { return b.Reason == setplan.BlockChangeRefused }

// TestReplacedPodsThatMayNotGo has the API server refuse deletions while a Pod is being replaced: both halves serve, no
// other is begun, and it goes on by itself.
func TestReplacedPodsThatMayNotGo(t *testing.T) {
	for _, protocol := range []bool{true, false} {
		for after := range 8 {
			t.Run(fmt.Sprintf("protocol %t, after %d looks", protocol, after), func(t *testing.T) {
				w := newPicky(t, 4, 1, func(w *world) { w.Protocol, w.Policy = protocol, appsv1alpha1.PodUpdateReplace })
				for range after {
					w.look()
				}
				w.refuses[deleteTrial] = true
				var plan setplan.Plan
				for range 30 {
					plan = w.look()
				}
				most := len(w.live())
				assert.LessOrEqual(t, most, 5, "one more, as the surge allows")
				w.log = nil
				for range 30 {
					plan = w.look()
				}
				assert.Empty(t, w.log)
				for _, p := range w.live() {
					assert.True(t, p.Available, "%s is in service", p.Name())
				}
				stalled := w.stalled(t, plan)
				assert.Equal(t, metav1.ConditionTrue, stalled.Status)
				assert.Contains(t, stalled.Message, `delete Pods: policy "no" denied the request`)
				assert.True(t, slices.ContainsFunc(plan.Blockers, refusal))

				delete(w.refuses, deleteTrial)
				for range 60 {
					plan = w.look()
				}
				assert.Equal(t, 4, w.atRevision("r2"))
				assert.Len(t, w.live(), 4)
				assert.Equal(t, 4, w.least)
				assert.Empty(t, w.problems)
			})
		}
	}
}

// TestAPodThatDoesNotServeIsReplacedAllTheSame: the new one serves for it, even if the old one may not be deleted.
func TestAPodThatDoesNotServeIsReplacedAllTheSame(t *testing.T) {
	w := newPicky(t, 3, 1, nil)
	w.template("r1")
	w.refuses[deleteTrial] = true
	for i := range 2 { // the first serves
		w.ask(&w.Pods[i])
	}
	w.Pods[1].Available, w.Pods[1].View.Ready = false, false
	for range 10 {
		w.look()
	}
	assert.Len(t, w.live(), 4)
	for _, p := range w.newPods() {
		assert.True(t, p.Available)
	}
	assert.Nil(t, w.newPods()[w.Pods[0].Name()])
}

// TestDeletionsThatLifecycleControllerIsRefused are told like those that collaset-controller is refused.
func TestDeletionsThatLifecycleControllerIsRefused(t *testing.T) {
	for name, change := range map[string]func(*world){
		"of a Pod that is to be updated": func(w *world) { w.template("r2") },
		"of a Pod that is to be replaced": func(w *world) {
			w.ask(&w.Pods[0])
		},
		"of one that podToDelete names": func(w *world) { w.ToDelete = []string{w.Pods[0].Name()} },
		"of all":                        func(w *world) { w.Deleting = true },
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 1, nil)
			label(w, &w.Pods[0], appsv1alpha1.ToDeleteLabel)
			change(w)
			assert.NotContains(t, w.blockers(), setplan.BlockChangeRefused)
			w.Pods[0].View.Annotations = map[string]string{podops.DeletionRefusedAnnotation: "no"}
			plan := setplan.Decide(&w.Snapshot)
			at := slices.IndexFunc(plan.Blockers, refusal)
			require.GreaterOrEqual(t, at, 0)
			assert.Contains(t, plan.Blockers[at].Message, "delete Pods: no")
			assert.Equal(t, !w.Deleting, plan.Goal.Held)
			delete(w.Pods[0].View.Labels, appsv1alpha1.ToDeleteLabel)
			assert.NotContains(t, w.blockers(), setplan.BlockChangeRefused, "without the mark it says nothing")
		})
	}
}

func TestWhatRestartsNothingTakesNoPodOut(t *testing.T) {
	quiet := func(w *world) {
		for name := range w.Revisions {
			w.Revisions[name] = setplan.Difference{Quiet: true, Resizes: w.resizes}
		}
	}
	t.Run("metadata", func(t *testing.T) {
		w := newPicky(t, 8, 2, quiet)
		w.look()
		assert.Equal(t, 8, w.atRevision("r2"), "all at once")
		assert.Equal(t, 8, w.least)
		assert.Zero(t, countPrefix(w.log, "begin"))
		assert.Equal(t, 1, w.trials)
	})
	t.Run("partition and pause hold", func(t *testing.T) {
		w := newPicky(t, 8, 2, quiet)
		w.Partition = 6
		w.look()
		assert.Equal(t, 2, w.atRevision("r2"))
		w.Paused, w.Partition = true, 0
		w.look()
		assert.Equal(t, 2, w.atRevision("r2"))
	})
	t.Run("a resize, no more Pods at a time than may be unavailable", func(t *testing.T) {
		w := newPicky(t, 8, 2, func(w *world) {
			w.resizes, w.quietResize = true, true
			quiet(w)
		})
		for range 40 {
			w.look()
			open := 0
			for _, p := range w.live() {
				if p.Recorded && !p.Carried {
					open++
				}
			}
			assert.LessOrEqual(t, open, 2)
		}
		assert.Equal(t, 8, w.atRevision("r2"))
		assert.Equal(t, 8, w.least)
		assert.Zero(t, countPrefix(w.log, "begin"))
		assert.Empty(t, w.problems)
	})
	t.Run("a resize that no node can carry out becomes a re-creation", func(t *testing.T) {
		w := newPicky(t, 4, 1, func(w *world) {
			w.resizes, w.quietResize, w.infeasible = true, true, true
			quiet(w)
		})
		before := w.uids()
		for range 120 {
			w.look()
		}
		assert.Equal(t, 4, w.atRevision("r2"))
		for _, uid := range w.uids() {
			assert.NotContains(t, before, uid)
		}
		assert.Equal(t, 3, w.least)
		assert.Empty(t, w.problems)
	})
	t.Run("a resize that is refused leaves the Pod as it is", func(t *testing.T) {
		w := newPicky(t, 4, 1, func(w *world) {
			w.resizes, w.quietResize = true, true
			quiet(w)
		})
		w.refuses[resizeTrial] = true
		for range 20 {
			w.look()
		}
		assert.Zero(t, w.atRevision("r2"))
		assert.Equal(t, 4, w.least)
	})
}

// TestPodsThatARuleHoldsCount: it may let all of them go at once.
func TestPodsThatARuleHoldsCount(t *testing.T) {
	w := atRest(t, 8, func(w *world) { w.MaxUnavailable, w.budget = 2, -1 })
	w.template("r2")
	for range 4 {
		w.round(always)
		for _, p := range w.live() {
			if podops.IsDuring(p.View, setplan.OperatorID, podops.TypeUpdate) {
				p.View.Annotations = map[string]string{podops.RuleDetailPrefix + "/approval": "not approved"}
			}
		}
	}
	assert.Equal(t, 2, countPrefix(w.log, "begin"))
	plan := setplan.Decide(&w.Snapshot)
	assert.True(t, slices.ContainsFunc(plan.Blockers,
		func(b setplan.Blocker) bool { return b.Reason == "WaitingForPermission" }), plan.Blockers)
}

func TestMaxUnavailable(t *testing.T) {
	for name, tc := range map[string]struct {
		sick   int
		begins int
	}{
		"as many as it says":                  {0, 3},
		"others that are not available count": {2, 1},
		"and if there are more, no other":     {4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 12, func(w *world) { w.MaxUnavailable = 3 })
			for i := range tc.sick {
				w.Pods[i].View.Ready, w.Pods[i].Available = false, false
				delete(w.Pods[i].View.Labels, podops.ServiceAvailableLabel)
			}
			w.template("r2")
			plan := setplan.Decide(&w.Snapshot)
			serving := slices.DeleteFunc(plan.Begins, func(b setplan.Begin) bool { return !b.Pod.Available })
			assert.Len(t, serving, tc.begins)
			if tc.begins == 3 {
				return
			}
			assert.True(t, slices.ContainsFunc(plan.Blockers,
				func(b setplan.Blocker) bool { return b.Reason == setplan.BlockMaxUnavailable }))
		})
	}
}
