package setplan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// newPods are the live Pods that are labelled to replace a live Pod, by the name of that. Names in sequence come
// again, so that entries are asked, too.
func (w *world) newPods() map[string]*setplan.Pod {
	out := map[string]*setplan.Pod{}
	for _, p := range w.live() {
		origin := w.find(p.View.Labels[appsv1alpha1.ReplacePairOriginNameLabel])
		if origin == nil || !origin.Live() || w.Sequential &&
			w.entry(origin.ID).Data[appsv1alpha1.ContextReplaceNewPodID] != strconv.Itoa(p.ID) {
			continue
		}
		if out[origin.Name()] != nil {
			w.wrong("%s and %s replace %s", p.Name(), out[origin.Name()].Name(), origin.Name())
		}
		out[origin.Name()] = p
	}
	return out
}

// mayReplace says what is wrong with letting an origin go.
func (w *world) mayReplace(p *setplan.Pod) {
	fresh := w.newPods()[p.Name()]
	if fresh == nil || !fresh.Available {
		w.wrong("%s goes before another Pod serves for it", p.Name())
	}
}

// mayCreate says what is wrong with the creations of a plan: replicas and the surge are bounded.
func (w *world) mayCreate(plan setplan.Plan) {
	fresh := w.newPods()
	replicas, updates := len(w.live())-len(fresh), 0
	for origin := range fresh {
		if !w.asked[origin] {
			updates++
		}
	}
	begun, plain := 0, 0
	for _, c := range plan.Creations {
		switch {
		case c.Origin == "":
			plain++
		case !w.asked[c.Origin]:
			begun++
		}
	}
	if replicas+plain > max(w.Replicas, replicas) {
		w.wrong("%d replicas and %d creations for %d", replicas, plain, w.Replicas)
	}
	if beside := len(plan.Creations) - plain; w.Surge > 0 && beside > 0 && len(fresh)+beside > w.Surge {
		w.wrong("%d and %d more Pods are replaced, %d may", len(fresh), beside, w.Surge)
	}
	if begun > 0 && updates+begun > max(w.MaxSurge, 1) {
		w.wrong("%d and %d more Pods are replaced by updates, %d may", updates, begun, w.MaxSurge)
	}
}

// pairUp labels a Pod as its creator does.
func (w *world) pairUp(p *setplan.Pod, c setplan.Creation) {
	if c.Origin == "" {
		return
	}
	origin := w.find(c.Origin)
	switch {
	case origin == nil || !origin.Live():
		w.wrong("a Pod is created for %s, which is gone", c.Origin)
	case w.newPods()[c.Origin] != nil:
		w.wrong("a second Pod is created for %s", c.Origin)
	case w.entry(c.ID).Data[appsv1alpha1.ContextReplaceOriginPodID] != strconv.Itoa(origin.ID),
		w.entry(origin.ID).Data[appsv1alpha1.ContextReplaceNewPodID] != strconv.Itoa(c.ID):
		w.wrong("a Pod is created for %s before that is stored", c.Origin)
	}
	p.View.Labels[appsv1alpha1.ReplacePairOriginNameLabel] = c.Origin
	if c.Included != nil {
		p.View.Labels[appsv1alpha1.UpdateIncludedLabel] = *c.Included
	}
	w.refresh(p)
}

func (w *world) relabel(l setplan.Relabel) {
	p := w.find(l.Pod.Name())
	before := maps.Clone(p.View.Labels)
	w.change(p, l.Change)
	if maps.Equal(before, p.View.Labels) {
		w.wrong("labels of %s are written for nothing", p.Name())
	}
	w.say("label %d %s", p.ID, l.Event)
}

// set sets a label as a user does, or, without a value, removes it.
func (w *world) set(p *setplan.Pod, key string, value ...string) {
	change := podops.Change{Labels: map[string]*string{key: nil}}
	if len(value) > 0 {
		change.Labels[key] = &value[0]
	}
	w.change(p, change)
}

// ask asks for the replacement of a Pod as a user does.
func (w *world) ask(p *setplan.Pod) {
	if w.asked == nil {
		w.asked = map[string]bool{}
	}
	w.asked[p.Name()] = true
	w.set(p, appsv1alpha1.ToReplaceLabel, "1795233719860911244")
}

// evict asks for the replacement of a Pod as its eviction does.
func (w *world) evict(p *setplan.Pod) {
	if w.asked == nil {
		w.asked = map[string]bool{}
	}
	w.asked[p.Name()] = true
	c, err := podops.Mark(p.View, appsv1alpha1.ToReplaceLabel, "true", podops.AskerEviction)
	if err != nil {
		w.wrong("the eviction cannot be recorded: %v", err)
	}
	w.change(p, c)
}

// rounds runs as many rounds.
func (w *world) rounds(n int) {
	for range n {
		w.round(always)
	}
}

func (w *world) blockers() map[string]int {
	out := map[string]int{}
	for _, b := range setplan.Decide(&w.Snapshot).Blockers {
		out[b.Reason] = b.Count
	}
	return out
}

// assertNoTraces checks that nothing tells of a replacement any more.
func (w *world) assertNoTraces(t require.TestingT) {
	for _, p := range w.Pods {
		require.False(t, p.Replacing, "%s: %v", p.Name(), p.View.Labels)
	}
	require.Len(t, w.Entries, len(w.Pods))
	for _, e := range w.Entries {
		require.NotContains(t, e.Data, appsv1alpha1.ContextReplaceNewPodID, "%v", w.Entries)
		require.NotContains(t, e.Data, appsv1alpha1.ContextReplaceOriginPodID, "%v", w.Entries)
		require.NotContains(t, e.Data, appsv1alpha1.ContextScaleIn, "%v", w.Entries)
	}
}

func replacing(w *world) { w.Policy, w.MaxSurge = appsv1alpha1.PodUpdateReplace, 2 }

// withClaims gives every Pod its own volume.
func withClaims(w *world) {
	w.Templates = map[string][]setplan.ClaimTemplate{}
	for name := range w.Revisions {
		w.Templates[name] = []setplan.ClaimTemplate{claimTemplate("data", 10, "fast")}
	}
}

func directly(w *world) { replacing(w); w.Protocol = false }

func TestReplacements(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(*world)
		change func(*world)
		check  func(*testing.T, *world, []string)
	}{
		"an update replaces every Pod, and each costs four writes": {
			before: replacing,
			change: func(w *world) { w.template("r2") },
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, 5, w.atRevision("r2"))
				assert.Empty(t, kept(w, before))
				for verb, count := range map[string]int{"label": 10, "create": 5, "mark": 5} {
					n := 0
					for _, line := range w.log {
						if len(line) > len(verb) && line[:len(verb)] == verb {
							n++
						}
					}
					assert.Equal(t, count, n, "%s in %v", verb, w.log)
				}
			},
		},
		"without the lifecycle origins are deleted when the new Pod serves": {
			before: directly,
			change: func(w *world) { w.template("r2") },
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, 5, w.atRevision("r2"))
				assert.Empty(t, kept(w, before))
				assert.NotContains(t, fmt.Sprint(w.log), "mark")
			},
		},
		"a partition is honoured exactly": {
			before: replacing,
			change: func(w *world) { w.Partition = 3; w.template("r2") },
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, 2, w.atRevision("r2"))
				assert.Len(t, kept(w, before), 3)
			},
		},
		"by label only the labelled Pod is replaced": {
			before: func(w *world) { replacing(w); w.ByLabel = true },
			change: func(w *world) {
				w.template("r2")
				w.set(&w.Pods[1], appsv1alpha1.UpdateIncludedLabel, "1")
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, 1, w.atRevision("r2"))
				assert.Len(t, kept(w, before), 4)
				for _, p := range w.Pods {
					assert.False(t, p.Included)
				}
			},
		},
		"claims of origins are kept, and new Pods have their own": {
			before: func(w *world) { replacing(w); withClaims(w) },
			change: func(w *world) { w.template("r2") },
			check: func(t *testing.T, w *world, _ []string) {
				assert.NotContains(t, fmt.Sprint(w.log), "delete claim")
				assert.Len(t, w.Claims, 9, "one ID came again, with the claim that was kept for it")
			},
		},
		"claims of origins go with them, if whenScaled says so": {
			before: func(w *world) { replacing(w); withClaims(w); w.Retention.Scaled = true },
			change: func(w *world) { w.template("r2") },
			check:  eachHasItsClaim,
		},
		"claims of new Pods that are taken back go with them, if whenScaled says so": {
			before: func(w *world) { replacing(w); withClaims(w); w.Retention.Scaled = true },
			change: func(w *world) {
				w.broken = map[string]bool{"r2": true}
				w.template("r2")
				w.rounds(4)
				w.template("r1")
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, before, kept(w, before))
				assert.Len(t, w.Claims, 5)
			},
		},
		"claims of origins go with them whatever whenScaled says, where those of replaced Pods do": {
			before: func(w *world) { replacing(w); withClaims(w); w.Retention.Replaced = true },
			change: func(w *world) { w.template("r2") },
			check:  eachHasItsClaim,
		},
		"so do those of new Pods that are taken back, and no others": {
			before: func(w *world) { replacing(w); withClaims(w); w.Retention.Replaced = true },
			change: func(w *world) {
				w.broken = map[string]bool{"r2": true}
				w.template("r2")
				w.rounds(4)
				w.template("r1")
				w.run(always)
				w.Replicas = 4
			},
			check: func(t *testing.T, w *world, _ []string) {
				assert.Len(t, w.live(), 4)
				assert.Len(t, w.Claims, 5, "that of the Pod that was scaled in is kept")
			},
		},
		"a Pod that was new once is scaled in like any other": {
			before: func(w *world) { replacing(w); withClaims(w); w.Retention.Replaced = true },
			change: func(w *world) { w.template("r2"); w.run(always); w.Replicas = 2 },
			check:  func(t *testing.T, w *world, _ []string) { assert.Len(t, w.Claims, 5) },
		},
		"names in sequence go on": {
			before: func(w *world) { replacing(w); w.Sequential = true },
			change: func(w *world) { w.template("r2") },
			check:  func(t *testing.T, w *world, _ []string) { assert.Equal(t, 5, w.atRevision("r2")) },
		},
		"a user's label replaces one Pod at its own revision, whatever the update policy": {
			change: func(w *world) { w.Partition = 5; w.template("r2"); w.ask(&w.Pods[2]) },
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, 5, w.atRevision("r1"))
				assert.Equal(t, []string{before[0], before[1], before[3], before[4]}, kept(w, before))
			},
		},
		"evicted Pods are replaced, also while the set is paused, and no more at a time than may be": {
			before: func(w *world) { w.Surge = 2 },
			change: func(w *world) {
				w.Paused = true
				for i := range 3 {
					w.evict(&w.Pods[i])
				}
				if w.blockers()["MaxSurge"] != 1 {
					w.wrong("that the third waits is not told: %v", w.blockers())
				}
				w.run(always)
				w.Paused = false
			},
			check: func(t *testing.T, w *world, before []string) { assert.Equal(t, before[3:], kept(w, before)) },
		},
		"a Pod that is evicted while the set is paused is replaced at its own revision": {
			change: func(w *world) {
				w.Paused = true
				w.template("r2")
				w.evict(&w.Pods[2])
				w.run(always)
				if w.atRevision("r1") != 5 || len(w.Pods) != 5 {
					w.wrong("it is not: %v", w.log)
				}
				w.Paused = false
			},
			check: func(t *testing.T, w *world, _ []string) { assert.Equal(t, 5, w.atRevision("r2")) },
		},
		"an eviction that is withdrawn leaves the Pod where it is": {
			change: func(w *world) {
				w.broken = map[string]bool{"r1": true}
				w.evict(&w.Pods[2])
				w.rounds(3)
				p := &w.Pods[2]
				w.change(p, podops.Withdraw(p.View, appsv1alpha1.ToReplaceLabel, podops.AskerEviction))
			},
			check: func(t *testing.T, w *world, before []string) { assert.Equal(t, before, kept(w, before)) },
		},
		"a PodDisruptionBudget keeps an evicted Pod whose replacement serves": {
			change: func(w *world) {
				w.evict(&w.Pods[2])
				w.Pods[2].Budget = "pdb"
				w.run(always)
				if w.blockers()["PodDisruptionBudget"] != 1 || w.Pods[2].ToDelete {
					w.wrong("it does not: %v", w.blockers())
				}
				w.Pods[2].Budget = ""
			},
			check: func(t *testing.T, w *world, before []string) { assert.Len(t, kept(w, before), 4) },
		},
		"the new Pod of a user's replacement inherits what includes it in an update": {
			before: func(w *world) { w.ByLabel = true },
			change: func(w *world) {
				w.ask(&w.Pods[2])
				w.set(&w.Pods[2], appsv1alpha1.UpdateIncludedLabel, "yes")
				w.template("r2")
			},
			check: func(t *testing.T, w *world, _ []string) { assert.Equal(t, 1, w.atRevision("r2")) },
		},
		"a Pod that an update reaches is replaced by one of the updated revision": {
			change: func(w *world) {
				w.ask(&w.Pods[2])
				w.template("r2")
				for _, b := range setplan.Decide(&w.Snapshot).Begins {
					if b.Pod.ID == 2 {
						w.wrong("it is updated itself")
					}
				}
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, 5, w.atRevision("r2"))
				assert.Len(t, kept(w, before), 4)
				assert.Equal(t, 1, countPrefix(w.log, "create"))
				assert.Contains(t, w.log, "create 5 r2")
			},
		},
		"an update waits for the end of a user's replacement by a Pod that serves": {
			change: func(w *world) {
				w.keeps = true
				w.ask(&w.Pods[2])
				w.rounds(3)
				w.template("r2")
				w.rounds(8)
				if w.blockers()["BeingReplaced"] != 1 {
					w.wrong("it is not told: %v", w.blockers())
				}
				w.keeps = false
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, 5, w.atRevision("r2"))
				assert.Len(t, kept(w, before), 4)
				assert.Equal(t, 1, countPrefix(w.log, "create"))
			},
		},
		"a good template repairs what replaces a Pod of a broken revision": {
			before: func(w *world) { w.broken = map[string]bool{} },
			change: func(w *world) {
				w.template("r2")
				w.broken["r2"] = true
				w.rounds(9)
				w.ask(&w.Pods[2])
				w.rounds(5)
				w.template("r3")
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, 5, w.atRevision("r3"))
				assert.Len(t, kept(w, before), 4, "only the Pod that its user has replaced is another one")
				assert.Equal(t, 1, countPrefix(w.log, "create 5 r2"))
			},
		},
		"a good template repairs it, when all Pods of a broken revision are replaced, half of them on request": {
			before: func(w *world) { replacing(w); w.broken = map[string]bool{} },
			change: func(w *world) {
				w.template("r2")
				w.rounds(20)
				w.template("r3")
				w.broken["r2"], w.broken["r3"] = true, true
				w.ask(&w.Pods[1])
				w.ask(&w.Pods[3])
				w.rounds(9)
				w.template("r4")
			},
			check: func(t *testing.T, w *world, _ []string) { assert.Equal(t, 5, w.atRevision("r4")) },
		},
		"a Pod that the partition keeps is replaced by one of its own revision": {
			before: func(w *world) { w.broken = map[string]bool{} },
			change: func(w *world) {
				w.broken["r1"] = true
				w.ask(&w.Pods[2])
				w.rounds(4)
				w.Partition = 5
				w.template("r2")
				w.rounds(9)
				if plan := setplan.Decide(&w.Snapshot); !plan.IsZero() {
					w.wrong("something is done about it: %+v", plan)
				}
				w.Partition = 0
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, 5, w.atRevision("r2"))
				assert.Len(t, kept(w, before), 4)
			},
		},
		"a Pod that is scaled in is not replaced": {
			change: func(w *world) {
				w.ToDelete, w.Replicas = []string{w.Pods[2].Name()}, 4
				w.ask(&w.Pods[2])
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Len(t, kept(w, before), 4)
				assert.NotContains(t, fmt.Sprint(w.log), "create")
			},
		},
		"scale-in of a pair takes both sides": {
			change: func(w *world) {
				w.broken = map[string]bool{"r1": true}
				w.ask(&w.Pods[2])
				w.rounds(3)
				w.ToDelete, w.Replicas = []string{w.Pods[2].Name()}, 4
			},
			check: func(t *testing.T, w *world, before []string) { assert.Len(t, kept(w, before), 4) },
		},
		"podToDelete chooses a pair by its new Pod, too": {
			change: func(w *world) {
				w.broken = map[string]bool{"r1": true}
				w.ask(&w.Pods[2])
				w.rounds(3)
				w.ToDelete, w.Replicas = []string{w.Pods[5].Name()}, 4
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, []string{before[0], before[1], before[3], before[4]}, kept(w, before))
			},
		},
		"scaling out while pairs exist creates no double": {
			before: replacing,
			change: func(w *world) {
				w.broken = map[string]bool{"r2": true}
				w.template("r2")
				w.rounds(3)
				w.Replicas, w.broken = 7, nil
			},
			check: func(t *testing.T, w *world, _ []string) { assert.Equal(t, 7, w.atRevision("r2")) },
		},
		"a second template midway takes back new Pods that do not serve": {
			before: replacing,
			change: func(w *world) {
				w.broken = map[string]bool{"r2": true}
				w.template("r2")
				w.rounds(5)
				w.template("r3")
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, 5, w.atRevision("r3"))
				assert.Empty(t, kept(w, before))
			},
		},
		"a rollback midway keeps the Pods that were not replaced yet": {
			before: replacing,
			change: func(w *world) {
				w.broken = map[string]bool{"r2": true}
				w.template("r2")
				w.rounds(5)
				w.template("r1")
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, before, kept(w, before))
				assert.Contains(t, fmt.Sprint(w.log), string(setplan.ReplacementCancelled))
			},
		},
		"leaving the partition midway cancels": {
			before: replacing,
			change: func(w *world) {
				w.broken = map[string]bool{"r2": true}
				w.template("r2")
				w.rounds(5)
				w.Partition = 4
				w.rounds(5)
				w.broken = nil
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, 1, w.atRevision("r2"))
				assert.Len(t, kept(w, before), 4)
			},
		},
		"another update policy midway carries on with what was begun": {
			before: replacing,
			change: func(w *world) {
				w.template("r2")
				w.rounds(2)
				w.Policy = appsv1alpha1.PodUpdateInPlaceIfPossible
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, 5, w.atRevision("r2"))
				assert.Len(t, kept(w, before), 3, "the others are updated in place")
			},
		},
		"a user takes the wish back": {
			change: func(w *world) {
				w.broken = map[string]bool{"r1": true}
				w.ask(&w.Pods[2])
				w.rounds(3)
				w.set(w.find(w.Pods[2].Name()), appsv1alpha1.ToReplaceLabel)
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, before, kept(w, before))
				assert.Len(t, w.live(), 5)
			},
		},
		"a user takes the label of an update away: it begins anew": {
			before: replacing,
			change: func(w *world) {
				w.broken = map[string]bool{"r2": true}
				w.template("r2")
				w.rounds(3)
				for origin := range w.newPods() {
					w.set(w.find(origin), appsv1alpha1.ToReplaceLabel)
				}
				w.rounds(2)
				w.broken = nil
			},
			check: func(t *testing.T, w *world, _ []string) { assert.Equal(t, 5, w.atRevision("r2")) },
		},
		"the new Pod dies midway and comes back under its ID": {
			change: func(w *world) {
				w.broken = map[string]bool{"r1": true}
				w.ask(&w.Pods[2])
				w.rounds(3)
				w.Pods[5].View.Terminating = true
				w.rounds(2)
				w.broken = nil
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, []int{0, 1, 3, 4, 5}, w.ids())
				assert.Len(t, kept(w, before), 4)
			},
		},
		"a user deletes the new Pod: the origin stays until another serves": {
			change: func(w *world) {
				w.ask(&w.Pods[2])
				w.rounds(1)
				w.set(&w.Pods[5], appsv1alpha1.ToDeleteLabel, "1")
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, []int{0, 1, 3, 4, 5}, w.ids())
				assert.Len(t, kept(w, before), 4)
			},
		},
		"somebody deletes the origin midway: the new Pod takes its place": {
			change: func(w *world) {
				w.broken = map[string]bool{"r1": true}
				w.ask(&w.Pods[2])
				w.rounds(3)
				w.Pods[2].View.Terminating = true
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, []int{0, 1, 3, 4, 5}, w.ids())
				assert.Len(t, kept(w, before), 4)
				assert.Equal(t, 1, countPrefix(w.log, "create 5"))
			},
		},
		"another Pod is lost together with the origin: that one comes back, and not the origin": {
			change: func(w *world) {
				w.broken = map[string]bool{"r1": true}
				w.ask(&w.Pods[1])
				w.rounds(3)
				w.Pods[1].View.Terminating, w.Pods[3].View.Terminating = true, true
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, []int{0, 2, 3, 4, 5}, w.ids())
				assert.Len(t, kept(w, before), 3)
			},
		},
		"the origin is lost before there is a new Pod: it comes back as it was": {
			before: func(w *world) { replacing(w); w.Partition = 4 },
			change: func(w *world) {
				w.template("r2")
				plan := setplan.Decide(&w.Snapshot)
				plan.Creations = nil
				w.apply(plan, always)
				w.find(plan.Labels[0].Pod.Name()).View.Terminating = true
			},
			check: func(t *testing.T, w *world, _ []string) { assert.Equal(t, 1, w.atRevision("r2")) },
		},
		"both are lost": {
			before: replacing,
			change: func(w *world) {
				w.broken = map[string]bool{"r2": true}
				w.template("r2")
				w.rounds(3)
				for origin, fresh := range w.newPods() {
					w.find(origin).View.Terminating, fresh.View.Terminating = true, true
				}
				w.broken = nil
			},
			check: func(t *testing.T, w *world, _ []string) { assert.Equal(t, 5, w.atRevision("r2")) },
		},
		"a lost ResourceContext is made again from both labels of a pair": {
			change: func(w *world) {
				w.broken = map[string]bool{"r1": true}
				w.ask(&w.Pods[2])
				w.rounds(3)
				w.Entries = nil
				w.rounds(2)
				w.broken = nil
			},
			check: func(t *testing.T, w *world, before []string) {
				assert.Equal(t, 6, w.uid, "no other Pod was made")
				assert.Len(t, kept(w, before), 4)
			},
		},
		"a wrong label of an origin makes no pair": {
			change: func(w *world) { w.set(&w.Pods[1], appsv1alpha1.ReplacePairNewIDLabel, "3") },
			check:  func(t *testing.T, w *world, before []string) { assert.Equal(t, before, kept(w, before)) },
		},
		"a wrong label of a new Pod makes no pair": {
			change: func(w *world) { w.set(&w.Pods[1], appsv1alpha1.ReplacePairOriginNameLabel, w.Pods[3].Name()) },
			check:  func(t *testing.T, w *world, before []string) { assert.Equal(t, before, kept(w, before)) },
		},
		"a Pod said to replace itself": {
			change: func(w *world) {
				w.set(&w.Pods[1], appsv1alpha1.ReplacePairOriginNameLabel, w.Pods[1].Name())
				w.set(&w.Pods[1], appsv1alpha1.ReplacePairNewIDLabel, "1")
			},
			check: func(t *testing.T, w *world, before []string) { assert.Equal(t, before, kept(w, before)) },
		},
		"links in the ResourceContext that lead nowhere are dropped": {
			change: func(w *world) {
				for i, value := range []string{"3", "77", "x", "3", "4"} {
					w.Entries[i].Data = maps.Clone(w.Entries[i].Data)
					w.Entries[i].Data[appsv1alpha1.ContextReplaceNewPodID] = value
				}
				w.Entries[0].Data[appsv1alpha1.ContextReplaceOriginPodID] = "2"
			},
			check: func(t *testing.T, w *world, before []string) { assert.Equal(t, before, kept(w, before)) },
		},
		"a second new Pod, as Kuperator may leave it, is one too many": {
			change: func(w *world) {
				w.keeps = true
				w.ask(&w.Pods[2])
				w.rounds(6)
				double := w.Pods[5]
				double.View.Name, double.View.UID, double.ID, double.Created = "double", "double", 9, w.Now
				double.View.Labels = maps.Clone(double.View.Labels)
				w.Pods = append(w.Pods, double)
				w.asked["double"] = true
				w.keeps = false
			},
			check: func(t *testing.T, w *world, before []string) {
				w.problems = slices.DeleteFunc(w.problems,
					func(p string) bool { return p == "double and web-00006 replace web-00003" })
				assert.Equal(t, []int{0, 1, 3, 4, 5}, w.ids())
				assert.Len(t, kept(w, before), 4)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 5, tc.before)
			var before []string
			for _, p := range w.Pods {
				before = append(before, p.Name())
			}
			tc.change(w)
			assert.True(t, w.run(always), "it comes to rest: %v", w.log)
			w.broken = nil
			assert.True(t, w.run(always), "it comes to rest: %v", w.log)
			tc.check(t, w, before)
			assert.Empty(t, w.problems)
			w.assertNoTraces(t)
			assert.Zero(t, setplan.Decide(&w.Snapshot).Blockers)
			assert.True(t, setplan.Decide(&w.Snapshot).Goal.Reached())
		})
	}
}

// TestWhereNoMorePodsMayBeMade has the API server refuse the Pod that is to come first, as a quota does.
func TestWhereNoMorePodsMayBeMade(t *testing.T) {
	surge := setplan.Trial{Write: setplan.TrialSurge, To: setplan.Form{Revision: "r1"}}
	for name, tc := range map[string]struct {
		deletes bool
		other   bool // it is no quota that refuses
		budget  string
		ask     func(*world, *setplan.Pod)
		want    bool // that the Pod goes without
	}{
		"an evicted Pod waits if it is no quota":                 {deletes: true, other: true, ask: (*world).evict},
		"an evicted Pod waits for those who want it to be there": {deletes: true, budget: "pdb", ask: (*world).evict},
		"an evicted Pod waits":                                   {ask: (*world).evict},
		"an evicted Pod goes, if it may":                         {deletes: true, ask: (*world).evict, want: true},
		"one that a user has replaced does not":                  {deletes: true, ask: (*world).ask},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 2, func(w *world) { w.DeletesWhenFull = tc.deletes })
			tc.ask(w, &w.Pods[1])
			plan := setplan.Decide(&w.Snapshot)
			plan.Creations = nil
			w.apply(plan, always)
			w.Verdicts = map[setplan.Trial]setplan.Verdict{
				surge: {At: w.Now, Refused: "exceeded quota: pods", Quota: !tc.other, Retry: w.Now.Add(time.Minute)},
			}
			w.Pods[1].Budget = tc.budget
			plan = setplan.Decide(&w.Snapshot)
			assert.Equal(t, tc.want, len(plan.Marks) == 1)
			assert.Len(t, plan.Creations, 1, "it is tried again")
			assert.Positive(t, plan.NextLook)
			told := slices.IndexFunc(plan.Blockers,
				func(b setplan.Blocker) bool { return b.Reason == setplan.BlockChangeRefused })
			require.GreaterOrEqual(t, told, 0, "%v", plan.Blockers)
			assert.Contains(t, plan.Blockers[told].Message, "refuses to create one more Pod of revision r1 for one that is replaced: exceeded quota")
		})
	}
}

// kept are those of the Pods that are still there.
func kept(w *world, names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return w.find(name) == nil })
}

func TestAnUnreadablePairLabelStopsReplacementAndSaysSo(t *testing.T) {
	w := atRest(t, 2, replacing)
	w.set(&w.Pods[0], appsv1alpha1.ReplacePairNewIDLabel, "one")
	assert.Equal(t, map[string]int{"PairLabelInvalid": 1}, w.blockers())
	w.ask(&w.Pods[0])
	w.run(always)
	assert.Len(t, w.Pods, 2)
	assert.Equal(t, map[string]int{"PairLabelInvalid": 1}, w.blockers())
	assert.Contains(t, setplan.Decide(&w.Snapshot).Blockers[0].Message, `is "one"`)
	w.set(&w.Pods[0], appsv1alpha1.ReplacePairNewIDLabel)
	require.True(t, w.run(always))
	assert.Equal(t, 3, w.uid)
	w.assertNoTraces(t)
}

// TestAnUpdateThatIsTakenBackLeavesTheMarkToThoseWhoAskedMeanwhile has a job ask for a Pod that an update replaces.
func TestAnUpdateThatIsTakenBackLeavesTheMarkToThoseWhoAskedMeanwhile(t *testing.T) {
	w := atRest(t, 2, replacing)
	w.broken = map[string]bool{"r2": true}
	w.MaxSurge, w.Partition = 1, 1
	w.template("r2")
	require.True(t, w.run(always))
	require.Len(t, w.newPods(), 1)
	var origin *setplan.Pod
	for name := range w.newPods() {
		origin = w.find(name)
	}
	name := origin.Name()
	asks := func() []string { return podops.Askers(w.find(name).View, appsv1alpha1.ToReplaceLabel) }
	require.Equal(t, []string{podops.AskerOther}, asks())
	ask, err := podops.Mark(origin.View, appsv1alpha1.ToReplaceLabel, "true", "operationjob/a")
	require.NoError(t, err)
	w.change(origin, ask)

	w.Partition = 2
	w.keeps = true // the Pod that the job has replaced waits to be deleted, so that its labels can be read
	require.True(t, w.run(always))
	assert.Equal(t, []string{"operationjob/a"}, asks())
	assert.NotContains(t, w.find(name).View.Labels, appsv1alpha1.ReplacedByReplaceUpdateLabel)
	w.keeps = false
	require.True(t, w.run(always))
	assert.Nil(t, w.find(name))
	assert.Equal(t, 2, w.atRevision("r1"))
	assert.Empty(t, w.problems)
	w.assertNoTraces(t)
}

func TestTheSurgeIsBounded(t *testing.T) {
	w := atRest(t, 10, replacing)
	w.MaxSurge, w.broken = 3, map[string]bool{"r2": true}
	w.template("r2")
	require.True(t, w.run(always))
	assert.Len(t, w.newPods(), 3)
	assert.Len(t, w.live(), 13)
	assert.Equal(t, map[string]int{"WaitingForReplacement": 3, "MaxSurge": 7}, w.blockers())
	assert.False(t, setplan.Decide(&w.Snapshot).Goal.Reached())

	// A user's wish is not held back, and does not hold back the update.
	for i := range w.Pods {
		if p := &w.Pods[i]; p.Revision == "r1" && !p.Replacing {
			w.ask(p)
			break
		}
	}
	w.run(always)
	assert.Len(t, w.newPods(), 4)
	assert.Equal(t, map[string]int{"WaitingForReplacement": 4, "MaxSurge": 6}, w.blockers())

	// A smaller surge takes no pair back.
	w.MaxSurge = 1
	w.run(always)
	assert.Len(t, w.newPods(), 4)
	w.broken = nil
	require.True(t, w.run(always))
	assert.Equal(t, 10, w.atRevision("r2"))
	assert.Empty(t, w.problems)
	w.assertNoTraces(t)
}

func TestPausedBeginsNoReplacementAndEndsThoseUnderWay(t *testing.T) {
	w := atRest(t, 4, replacing)
	w.template("r2")
	w.rounds(1)
	w.Paused = true
	w.ask(w.find("web-00001"))
	w.log = nil
	require.True(t, w.run(always))
	assert.Equal(t, 2, w.atRevision("r2"))
	assert.Equal(t, 2, countPrefix(prefixes(w.log), "mark"))
	assert.Zero(t, countPrefix(prefixes(w.log), "create"))
	assert.Equal(t, 2, w.blockers()["Paused"])
	w.Paused = false
	require.True(t, w.run(always))
	assert.Equal(t, 4, w.atRevision("r2"))
	assert.Empty(t, w.problems)
}

// prefixes are the verbs of a log.
func prefixes(log []string) []string {
	var out []string
	for _, line := range log {
		var verb string
		_, _ = fmt.Sscan(line, &verb)
		out = append(out, verb)
	}
	return out
}

// TestThereIsNoWayBackOnceTheOriginIsHandedOver has an origin that waits for permission to be deleted.
func TestThereIsNoWayBackOnceTheOriginIsHandedOver(t *testing.T) {
	w := atRest(t, 2, replacing)
	w.keeps, w.MaxSurge, w.Partition = true, 1, 1
	w.template("r2")
	require.True(t, w.run(always))
	assert.Equal(t, map[string]int{"WaitingForDeletion": 1}, w.blockers())
	w.Partition = 2
	require.True(t, w.run(always))
	assert.Len(t, w.newPods(), 1, "the new Pod serves and stays")

	// It fails after all: what it was to become is taken back, and something better comes.
	for _, p := range w.newPods() {
		w.broken = map[string]bool{"r2": true}
		p.View.Ready, p.View.ContainersReady = false, false
		w.refresh(p)
	}
	w.Partition = 1
	w.template("r3")
	require.True(t, w.run(always))
	w.keeps = false
	require.True(t, w.run(always))
	assert.Equal(t, 1, w.atRevision("r3"))
	assert.Equal(t, 1, w.atRevision("r1"))
	assert.Empty(t, w.problems)
	w.assertNoTraces(t)
}

// TestHalfDoneReplacementsOfKuperatorAreTakenOver has the labels and entries that Kuperator v0.7.4 left of two pairs
// whose new Pods cannot start.
func TestHalfDoneReplacementsOfKuperatorAreTakenOver(t *testing.T) {
	w := atRest(t, 2, func(w *world) { w.Policy, w.MaxSurge = appsv1alpha1.PodUpdateReplace, 1 })
	w.Entries = nil
	for id, data := range []map[string]string{
		{"Revision": "r1", "ReplaceNewPodID": "3"}, {"Revision": "r1", "ReplaceNewPodID": "2"},
		{"Revision": "r2", "ReplaceOriginPodID": "1"}, {"Revision": "r2", "ReplaceOriginPodID": "0"},
	} {
		data["Owner"], data["PodDecorationRevisions"] = "web", "[]"
		w.Entries = append(w.Entries, setplan.Entry{ID: id, Data: data})
	}
	for i := range 2 {
		origin, fresh := &w.Pods[i], w.Pods[i]
		fresh.ID, fresh.Revision, fresh.Available, fresh.View.Ready = 3-i, "r2", false, false
		fresh.View.Name, fresh.View.UID, fresh.View.ContainersReady = fmt.Sprintf("new-%d", i), "", false
		fresh.View.Labels = map[string]string{podops.CreatingLabel: "1795233719922036490",
			appsv1alpha1.ReplacePairOriginNameLabel: origin.Name()}
		w.set(origin, appsv1alpha1.ToReplaceLabel, "1795233719860911244")
		w.set(origin, appsv1alpha1.ReplacedByReplaceUpdateLabel, "r2")
		w.set(origin, appsv1alpha1.ReplacePairNewIDLabel, strconv.Itoa(fresh.ID))
		w.refresh(&fresh)
		w.Pods = append(w.Pods, fresh)
	}
	w.broken = map[string]bool{"r2": true}
	w.template("r2")
	w.log = nil
	require.True(t, w.run(always))
	assert.Empty(t, w.log, "nothing moves")
	assert.Equal(t, map[string]int{"WaitingForReplacement": 2}, w.blockers())

	w.template("r3")
	require.True(t, w.run(always))
	assert.Equal(t, 2, w.atRevision("r3"))
	assert.Empty(t, w.problems)
	for i := range w.Entries {
		delete(w.Entries[i].Data, "PodDecorationRevisions")
	}
	w.assertNoTraces(t)
}

// TestAnySubsetOfAReplacementReachesTheGoal does with replacements what TestAnySubsetOfAPlanReachesTheGoal does with
// the rest.
func TestAnySubsetOfAReplacementReachesTheGoal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(0, 5).Draw(t, "replicas"))
		w.broken = map[string]bool{}
		w.Policy, w.MaxSurge = appsv1alpha1.PodUpdateReplace, rapid.IntRange(0, 3).Draw(t, "surge")
		w.Protocol = rapid.Bool().Draw(t, "protocol")
		w.Sequential = rapid.Bool().Draw(t, "sequential")
		passes := sometimes(rapid.Uint64().Draw(t, "seed"), rapid.Float64Range(0.3, 1).Draw(t, "chance"))
		for range rapid.IntRange(1, 10).Draw(t, "changes") {
			w.disturb(t)
			for range rapid.IntRange(0, 6).Draw(t, "rounds") {
				w.round(passes)
			}
		}
		w.broken, w.keeps, w.Paused = nil, false, false
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
		w.assertNoTraces(t)
		updated, scope := w.atRevision(w.UpdatedRevision), max(w.Replicas-w.Partition, 0)
		if w.CurrentRevision != w.UpdatedRevision && (updated < scope || updated > max(scope, already)) {
			t.Fatalf("%d Pods at the updated revision, %d wanted, %d before\n%v", updated, scope, already, w.log)
		}
		if plan := setplan.Decide(&w.Snapshot); !plan.IsZero() || !plan.Goal.Reached() {
			t.Fatalf("a plan at the goal: %+v", plan)
		}
	})
}

// disturb is one thing that users, or bad luck, may do.
func (w *world) disturb(t *rapid.T) {
	var chosen *setplan.Pod
	if live := w.live(); len(live) > 0 {
		chosen = live[rapid.IntRange(0, len(live)-1).Draw(t, "Pod")]
	}
	switch what := rapid.IntRange(0, 12).Draw(t, "what"); {
	case what == 0:
		w.Replicas = rapid.IntRange(0, 6).Draw(t, "replicas")
	case what == 1:
		w.template(rapid.SampledFrom([]string{"r1", "r2", "r3"}).Draw(t, "revision"))
	case what == 2:
		w.Partition = rapid.IntRange(0, 6).Draw(t, "partition")
	case what == 3:
		w.broken[rapid.SampledFrom([]string{"r1", "r2", "r3"}).Draw(t, "broken")] = rapid.Bool().Draw(t, "is")
	case what == 4:
		w.Policy = rapid.SampledFrom([]appsv1alpha1.PodUpdatePolicy{
			appsv1alpha1.PodUpdateRecreate, appsv1alpha1.PodUpdateInPlaceIfPossible, appsv1alpha1.PodUpdateReplace,
			appsv1alpha1.PodUpdateReplace,
		}).Draw(t, "policy")
	case what == 5:
		w.Paused = rapid.Bool().Draw(t, "paused")
	case what == 6:
		w.keeps = rapid.Bool().Draw(t, "keeps")
	case chosen == nil:
	case what == 7:
		chosen.View.Terminating = true
	case what == 8:
		w.set(chosen, appsv1alpha1.ToReplaceLabel)
	case what == 12:
		end(w, slices.IndexFunc(w.Pods, func(p setplan.Pod) bool { return p.UID() == chosen.UID() }))
	case what == 9 && w.Protocol:
		w.set(chosen, appsv1alpha1.ToDeleteLabel, "1")
	default:
		w.ask(chosen)
	}
}

func TestTheOrderOfTheInputDoesNotMatterToReplacements(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(1, 8).Draw(t, "replicas"))
		w.broken = map[string]bool{}
		replacing(w)
		passes := sometimes(rapid.Uint64().Draw(t, "seed"), 0.6)
		for range 6 {
			w.disturb(t)
			w.rounds(1)
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

// eachHasItsClaim checks that every Pod has one claim, and no claim is left of another.
func eachHasItsClaim(t *testing.T, w *world, _ []string) {
	t.Helper()
	var owners []int
	for _, c := range w.Claims {
		owners = append(owners, c.ID)
	}
	assert.ElementsMatch(t, w.ids(), owners)
}
