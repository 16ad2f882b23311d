package setplan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// exclude carries out exclusions and reports whether entries may follow.
func (w *world) exclude(plan setplan.Plan, passes func() bool) (all bool) {
	left := len(plan.Exclusions)
	each(plan.Exclusions, passes, func(p *setplan.Pod) {
		i := slices.IndexFunc(w.Pods, func(q setplan.Pod) bool { return q.UID() == p.UID() })
		pod := w.Pods[i]
		w.Pods = slices.Delete(slices.Clone(w.Pods), i, i+1)
		w.say("exclude %d", pod.ID)
		c := podops.Cancel(pod.View, setplan.OperatorID, w.Now)
		pod.View = c.Apply(pod.View)
		pod.View.Labels = maps.Clone(pod.View.Labels)
		delete(pod.View.Labels, appsv1alpha1.ToExcludeLabel)
		if pod.ToDelete && pod.View.Labels[appsv1alpha1.ReplacePairNewIDLabel] == "" {
			w.wrong("%s is excluded and is to be deleted as well", pod.Name())
		}
		delete(pod.View.Labels, appsv1alpha1.ToDeleteLabel)
		for _, key := range setplan.ReplacementLabels {
			delete(pod.View.Labels, key)
		}
		pod.Recorded, pod.Carried = false, false
		w.refresh(&pod)
		w.takeClaimsAlong(&pod, nil)
		w.outside = append(w.outside, pod)
		left--
	})
	w.offer()
	return left == 0
}

// takeIn carries out inclusions.
func (w *world) takeIn(plan setplan.Plan, passes func() bool) {
	each(plan.Inclusions, passes, func(in setplan.Inclusion) {
		i := slices.IndexFunc(w.outside, func(q setplan.Pod) bool { return q.UID() == in.Pod.UID() })
		pod := w.outside[i]
		w.outside = slices.Delete(slices.Clone(w.outside), i, i+1)
		w.say("include %d as %d", pod.ID, in.ID)
		w.takeClaimsAlong(&pod, &in.ID)
		pod.ID = in.ID
		w.refresh(&pod)
		w.Pods = append(w.Pods, pod)
		if w.entry(in.ID).Data[appsv1alpha1.ContextOwner] != w.Name {
			w.wrong("a Pod is included as %d, which has no entry", in.ID)
		}
	})
	w.offer()
}

// offer shows the Pods that are to be included.
func (w *world) offer() {
	w.Candidates = nil
	for _, name := range w.include {
		if w.find(name) != nil {
			continue
		}
		c := setplan.Candidate{Name: name}
		for i := range w.outside {
			if w.outside[i].Name() == name {
				pod := w.outside[i]
				c.Pod = &pod
			}
		}
		w.Candidates = append(w.Candidates, c)
	}
}

func label(w *world, p *setplan.Pod, key string) {
	value := "1"
	w.change(p, podops.Change{Labels: map[string]*string{key: &value}})
}

func TestPodsThatLeave(t *testing.T) {
	for name, leave := range map[string]func(*world, *setplan.Pod){
		"named":                 func(w *world, p *setplan.Pod) { w.ToExclude = []string{p.Name(), "never-heard-of"} },
		"labelled":              func(w *world, p *setplan.Pod) { label(w, p, appsv1alpha1.ToExcludeLabel) },
		"not selected any more": func(_ *world, p *setplan.Pod) { p.Selected = false },
		"in the middle of an update": func(w *world,
			p *setplan.Pod) {
			w.template("r2")
			w.round(always)
			w.ToExclude = []string{p.Name()}
		},
		"in the middle of a scale-in": func(w *world, p *setplan.Pod) {
			w.ToDelete = nil
			w.Replicas = 0
			w.round(always)
			w.Replicas = 5
			w.ToExclude = []string{p.Name()}
		},
	} {
		t.Run(name+" it is let go, untouched, and another takes its place", func(t *testing.T) {
			w := atRest(t, 5, nil)
			leaver := w.Pods[1].UID()
			leave(w, w.find("web-00002"))
			plan := setplan.Decide(&w.Snapshot)
			require.Len(t, plan.Exclusions, 1)
			assert.Empty(t, plan.Creations)
			assert.Empty(t, plan.Deletions)
			assert.True(t, plan.More)
			require.True(t, w.run(always))
			assert.Empty(t, w.problems)
			require.Len(t, w.outside, 1)
			assert.Equal(t, leaver, w.outside[0].UID())
			assert.False(t, w.outside[0].View.Terminating)
			assert.Empty(t, podops.Operations(w.outside[0].View), "our operation is undone")
			assert.Equal(t, []int{0, 1, 2, 3, 4}, w.ids(), "its ID is free again")
			assert.Len(t, w.Entries, 5)
		})
		t.Run(name+", with one replica less, it leaves alone", func(t *testing.T) {
			w := atRest(t, 5, nil)
			leave(w, w.find("web-00002"))
			w.Replicas = 4
			require.True(t, w.run(always))
			assert.Empty(t, w.problems)
			assert.Len(t, w.outside, 1)
			assert.Equal(t, []int{0, 2, 3, 4}, w.ids())
			assert.Zero(t, countPrefix(w.log, "create"))
			assert.Zero(t, countPrefix(w.log, "delete"))
			assert.Len(t, w.Entries, 4)
		})
	}
}

func TestPodsThatMayNotLeave(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*world, *setplan.Pod)
		says   string
	}{
		"names in sequence": {func(w *world, _ *setplan.Pod) { w.Sequential = true }, "persistent sequence"},
		"it is to be deleted": {func(w *world, p *setplan.Pod) { w.ToDelete = []string{p.Name()} },
			"take back one of the two"},
		"it is marked for deletion": {func(_ *world, p *setplan.Pod) { p.ToDelete = true }, "take back one of the two"},
		"the CollaSet is paused":    {func(w *world, _ *setplan.Pod) { w.Paused = true }, "paused"},
		"the selector left it behind": {func(w *world, p *setplan.Pod) { w.Sequential = true; p.Selected = false },
			"spec.selector"},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 3, nil)
			label(w, &w.Pods[1], appsv1alpha1.ToExcludeLabel)
			tc.change(w, &w.Pods[1])
			plan := setplan.Decide(&w.Snapshot)
			assert.Empty(t, plan.Exclusions)
			assert.Empty(t, plan.Creations, "it counts")
			i := slices.IndexFunc(plan.Blockers, func(b setplan.Blocker) bool { return b.Reason == "ExcludeNotAllowed" })
			require.GreaterOrEqual(t, i, 0, plan.Blockers)
			assert.Contains(t, plan.Blockers[i].Message, tc.says)
		})
	}
}

// stranger is a Pod without an owner.
func stranger(w *world, name string, id int, change func(*setplan.Pod)) {
	p := setplan.Pod{
		View: podops.View{Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: "1", Gate: true, Ready: true,
			ServiceReady: "True",
			Labels:       map[string]string{podops.ServiceAvailableLabel: "1"}},
		ID: id, Revision: "r1", Created: w.Now,
		Service: setplan.Service{ReadySince: w.Now, Available: true, Scheduled: true},
		Marks:   setplan.Marks{Selected: true},
	}
	if change != nil {
		change(&p)
	}
	w.outside = append(w.outside, p)
	w.include = append(w.include, name)
	w.offer()
}

func TestPodsThatJoin(t *testing.T) {
	for name, tc := range map[string]struct {
		id       int
		revision string
		replicas int
		want     []int
	}{
		"under its own ID, if that is free":  {id: 7, revision: "r1", replicas: 4, want: []int{0, 1, 2, 7}},
		"under the lowest one, if it is not": {id: 1, revision: "r1", replicas: 4, want: []int{0, 1, 2, 3}},
		"under the lowest one, if it has none": {id: setplan.NoID, revision: "r1", replicas: 4,
			want: []int{0, 1, 2, 3}},
		"of an unknown revision it is made anew":      {id: 5, revision: "x", replicas: 4, want: []int{0, 1, 2, 5}},
		"where a Pod lacks, it is the one":            {id: 9, revision: "r1", replicas: 4, want: []int{0, 1, 2, 9}},
		"one too many, the one that costs least goes": {id: 3, revision: "r1", replicas: 3, want: []int{0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 3, nil)
			before := w.uids()
			w.Replicas = tc.replicas
			stranger(w, "old", tc.id, func(p *setplan.Pod) { p.Revision = tc.revision })
			plan := setplan.Decide(&w.Snapshot)
			require.Len(t, plan.Inclusions, 1)
			assert.True(t, plan.EntriesFirst)
			assert.Empty(t, plan.Creations)
			assert.Empty(t, plan.Deletions)
			require.True(t, w.run(always))
			assert.Empty(t, w.problems)
			assert.Empty(t, w.outside)
			assert.Equal(t, tc.want, w.ids())
			assert.Equal(t, tc.replicas, w.atRevision("r1"))
			assert.Len(t, w.Entries, tc.replicas)
			if tc.revision == "r1" && tc.replicas == 4 {
				assert.Zero(t, countPrefix(w.log, "create"))
				assert.Subset(t, w.uids(), append(before, "old"))
			}
		})
	}
	t.Run("if it does not follow its entry, it gets the same one next time", func(t *testing.T) {
		w := atRest(t, 3, nil)
		w.Replicas = 5
		stranger(w, "old", 1, nil)
		first := setplan.Decide(&w.Snapshot)
		w.Entries = first.Entries
		again := setplan.Decide(&w.Snapshot)
		assert.Equal(t, first.Inclusions[0].ID, again.Inclusions[0].ID)
		assert.False(t, again.EntriesChanged)
	})
}

func TestPodsThatMayNotJoin(t *testing.T) {
	for says, change := range map[string]func(*world, *setplan.Candidate){
		"names in persistent sequence":   func(w *world, _ *setplan.Candidate) { w.Sequential = true },
		"kusionstack.io/control=true":    func(_ *world, c *setplan.Candidate) { c.Pod = nil },
		"it belongs to ReplicaSet x":     func(_ *world, c *setplan.Candidate) { c.Owner = "ReplicaSet x" },
		"it is to be excluded as well":   func(w *world, _ *setplan.Candidate) { w.ToExclude = []string{"old"} },
		"remove its label":               func(_ *world, c *setplan.Candidate) { c.Pod.Excluded = true },
		"spec.selector does not match":   func(_ *world, c *setplan.Candidate) { c.Pod.Selected = false },
		"it is not alive":                func(_ *world, c *setplan.Candidate) { c.Pod.View.Terminating = true },
		"it is to be deleted as well":    func(_ *world, c *setplan.Candidate) { c.Pod.ToDelete = true },
		"take back one of the two":       func(w *world, _ *setplan.Candidate) { w.ToDelete = []string{"old"} },
		"it has labels of a replacement": func(_ *world, c *setplan.Candidate) { c.Pod.Replacing = true },
		"its claim data belongs to somebody": func(_ *world,
			c *setplan.Candidate) {
			c.Refusal = "its claim data belongs to somebody"
		},
		"the CollaSet is paused": func(w *world, _ *setplan.Candidate) { w.Paused = true },
	} {
		t.Run(says, func(t *testing.T) {
			w := atRest(t, 2, nil)
			stranger(w, "old", 7, nil)
			change(w, &w.Candidates[0])
			plan := setplan.Decide(&w.Snapshot)
			assert.True(t, plan.IsZero(), "%+v", plan)
			require.NotEmpty(t, plan.Blockers)
			assert.Equal(t, "IncludeNotAllowed", plan.Blockers[0].Reason)
			assert.Contains(t, plan.Blockers[0].Message, "Pod old: ")
			assert.Contains(t, plan.Blockers[0].Message, says)
			assert.True(t, plan.Goal.Reached() || w.Paused, "nothing waits for it")
		})
	}
}

// TestMembersComeAndGoAtRandom lets Pods leave by every way, join, end and be deleted while the set is scaled and
// updated, with each action passing or not, and demands the goal and no breach on the way.
func TestMembersComeAndGoAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(0, 5).Draw(t, "replicas"))
		w.Protocol = rapid.Bool().Draw(t, "protocol")
		if rapid.Bool().Draw(t, "claims") {
			w.Templates = map[string][]setplan.ClaimTemplate{}
			for name := range w.Revisions {
				w.Templates[name] = []setplan.ClaimTemplate{claimTemplate("data", 10, "fast")}
			}
		}
		w.StaleOwners = map[string]bool{"gone": true}
		for id, owner := range rapid.MapOf(rapid.IntRange(0, 5), rapid.SampledFrom([]string{"other", "gone", ""})).Draw(t,
			"entries of others") {
			w.Entries = append(w.Entries, setplan.Entry{ID: id, Data: map[string]string{appsv1alpha1.ContextOwner: owner}})
		}
		kept := slices.DeleteFunc(slices.Clone(w.Entries),
			func(e setplan.Entry) bool { return e.Data[appsv1alpha1.ContextOwner] == "gone" })
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 4))
		passes := sometimes(rapid.Uint64().Draw(t, "seed"), rapid.Float64Range(0.3, 1).Draw(t, "chance"))
		pick := func() *setplan.Pod {
			if len(w.Pods) == 0 {
				return nil
			}
			return &w.Pods[rapid.IntRange(0, len(w.Pods)-1).Draw(t, "Pod")]
		}
		for step := range rapid.IntRange(1, 10).Draw(t, "changes") {
			p := pick()
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
			case what == 0:
				w.Replicas = rapid.IntRange(0, 6).Draw(t, "replicas")
			case what == 1:
				w.template(rapid.SampledFrom([]string{"r1", "r2", "r3"}).Draw(t, "revision"))
			case what == 2 && p != nil && p.Live():
				w.ToExclude = append(slices.Clone(w.ToExclude), p.Name())
			case what == 3 && p != nil && p.Live():
				label(w, p, appsv1alpha1.ToExcludeLabel)
			case what == 4 && p != nil && p.Live():
				p.Selected = false
			case what == 5:
				stranger(w, fmt.Sprint("old-", step), rapid.IntRange(-1, 6).Draw(t, "its ID"), func(p *setplan.Pod) {
					p.Revision = rapid.SampledFrom([]string{"r1", "r2", "gone"}).Draw(t, "its revision")
				})
			case what == 6 && p != nil && p.Live():
				end(w, slices.IndexFunc(w.Pods, func(q setplan.Pod) bool { return q.UID() == p.UID() }))
				p.Again = time.Duration(rapid.IntRange(0, 9).Draw(t, "again")) * time.Second
			case what == 7 && len(w.outside) > 0 && !slices.Contains(w.include, w.outside[0].Name()) && w.outside[0].Live():
				name := w.outside[0].Name()
				w.ToExclude = slices.DeleteFunc(slices.Clone(w.ToExclude), func(n string) bool { return n == name })
				w.outside[0].Selected = true
				w.include = append(w.include, name)
				w.offer()
			case what == 8 && p != nil && p.Live():
				w.ask(p)
			case what == 9:
				w.Policy = rapid.SampledFrom([]appsv1alpha1.PodUpdatePolicy{appsv1alpha1.PodUpdateReplace,
					appsv1alpha1.PodUpdateRecreate}).Draw(t, "policy")
			}
			for range rapid.IntRange(0, 5).Draw(t, "rounds") {
				if diff := cmp.Diff(setplan.Decide(&w.Snapshot), setplan.Decide(shuffled(w, random))); diff != "" {
					t.Fatalf("the order of the input matters: %s", diff)
				}
				w.round(passes)
			}
		}
		if !w.run(passes) {
			t.Fatalf("it does not come to rest: %v", w.log[max(0, len(w.log)-40):])
		}
		if len(w.problems) > 0 {
			t.Fatalf("%v\n%v", w.problems, w.log)
		}
		if len(w.live()) != w.Replicas {
			t.Fatalf("%d Pods for %d replicas\n%v", len(w.live()), w.Replicas, w.log)
		}
		for _, e := range kept {
			if got := w.entry(e.ID).Data[appsv1alpha1.ContextOwner]; got != e.Data[appsv1alpha1.ContextOwner] {
				t.Fatalf("ID %d was another's and is %s's\n%v", e.ID, got, w.log)
			}
			if slices.Contains(w.ids(), e.ID) {
				t.Fatalf("ID %d is another's\n%v", e.ID, w.log)
			}
		}
		for _, p := range w.live() {
			if p.Excluded || !p.Selected || slices.Contains(w.ToExclude, p.Name()) {
				t.Fatalf("%s should have left\n%v", p.Name(), w.log)
			}
		}
		for _, c := range w.Candidates {
			if c.Pod != nil && c.Pod.Live() && c.Pod.Selected && !c.Pod.Excluded && !slices.Contains(w.ToExclude, c.Name) {
				t.Fatalf("%s should have joined\n%v", c.Name, w.log)
			}
		}
		if len(w.Entries) != w.Replicas+len(kept) {
			t.Fatalf("%d entries for %d replicas and %d of others\n%v", len(w.Entries), w.Replicas, len(kept), w.log)
		}
		if plan := setplan.Decide(&w.Snapshot); !plan.IsZero() {
			t.Fatalf("a plan at the goal: %+v", plan)
		}
	})
}

// shuffled is the same Snapshot in another order.
func shuffled(w *world, random *rand.Rand) *setplan.Snapshot {
	s := w.Snapshot
	s.Pods, s.Entries, s.Candidates = slices.Clone(s.Pods), slices.Clone(s.Entries), slices.Clone(s.Candidates)
	random.Shuffle(len(s.Pods), func(i, j int) { s.Pods[i], s.Pods[j] = s.Pods[j], s.Pods[i] })
	random.Shuffle(len(s.Entries), func(i, j int) { s.Entries[i], s.Entries[j] = s.Entries[j], s.Entries[i] })
	random.Shuffle(len(s.Candidates), func(i, j int) {
		s.Candidates[i], s.Candidates[j] = s.Candidates[j],
			s.Candidates[i]
	})
	return &s
}

// TestSharedPools has three sets on one pool, scaled at random, each deciding on the pool as it is; a write on an old
// view is refused.
func TestSharedPools(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sets []*world
		for _, name := range []string{"a", "b", "c"} {
			w := newWorld(rapid.IntRange(0, 4).Draw(t, "replicas"))
			w.Name = name
			sets = append(sets, w)
		}
		passes := sometimes(rapid.Uint64().Draw(t, "seed"), rapid.Float64Range(0.4, 1).Draw(t, "chance"))
		var pool []setplan.Entry
		round := func(w *world, passes func() bool) {
			w.Entries = slices.Clone(pool)
			w.round(passes)
			pool = w.Entries
			seen := map[int]string{}
			for _, set := range sets {
				for _, p := range set.live() {
					if seen[p.ID] != "" {
						t.Fatalf("%s and %s both have %d", seen[p.ID], set.Name, p.ID)
					}
					seen[p.ID] = set.Name
				}
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "rounds") {
			w := sets[rapid.IntRange(0, 2).Draw(t, "set")]
			if rapid.Bool().Draw(t, "scaled") {
				w.Replicas = rapid.IntRange(0, 5).Draw(t, "replicas")
			}
			round(w, passes)
		}
		for range 60 {
			for _, w := range sets {
				round(w, always)
			}
		}
		total := 0
		for _, w := range sets {
			total += w.Replicas
			if len(w.live()) != w.Replicas || len(w.problems) > 0 {
				t.Fatalf("%s has %d of %d: %v %v", w.Name, len(w.live()), w.Replicas, w.problems, w.log)
			}
		}
		if len(pool) != total {
			t.Fatalf("%d entries for %d Pods", len(pool), total)
		}
	})
}

// TestHalfOfAPairLeaves excludes one half of a pair and lowers replicas in the same change: that half stays as it is,
// the other stands for itself, and of the rest what serves least goes.
func TestHalfOfAPairLeaves(t *testing.T) {
	for _, leaves := range []string{"origin", "new"} {
		for _, sick := range []string{"none", "origin", "new"} {
			for _, marked := range []bool{false, true} {
				if marked && sick == "new" {
					continue // only a new Pod that serves has its origin marked
				}
				t.Run(fmt.Sprintf("%s leaves, %s is not Ready, marked %v", leaves, sick, marked), func(t *testing.T) {
					w := atRest(t, 3, nil)
					w.keeps = true
					w.broken = map[string]bool{"r1": sick == "new"}
					w.ask(&w.Pods[0])
					w.rounds(2)
					if marked {
						w.rounds(3)
					}
					pair := map[string]*setplan.Pod{"origin": &w.Pods[0], "new": &w.Pods[3]}
					require.Equal(t, marked, pair["origin"].ToDelete)
					if sick == "origin" {
						pair["origin"].View.Ready = false
						delete(pair["origin"].View.Labels, podops.ServiceAvailableLabel)
						w.refresh(pair["origin"])
					}
					name, bystanders := pair[leaves].Name(), []string{w.Pods[1].Name(), w.Pods[2].Name()}
					other := pair[map[string]string{"origin": "new", "new": "origin"}[leaves]].Name()
					w.ToExclude, w.Replicas = []string{name}, 2
					w.rounds(10)
					require.Len(t, w.outside, 1)
					left := &w.outside[0]
					assert.Equal(t, name, left.Name())
					assert.False(t, left.View.Terminating)
					assert.NotContains(t, left.View.Labels, appsv1alpha1.ToDeleteLabel)
					assert.NotContains(t, left.View.Labels, appsv1alpha1.ToReplaceLabel)
					assert.Empty(t, podops.Operations(left.View))
					w.keeps, w.broken = false, nil
					require.True(t, w.run(always))
					assert.Len(t, w.live(), 2)
					assert.Empty(t, w.problems)
					if sick == "new" && leaves == "origin" || sick == "origin" && leaves == "new" {
						for _, p := range bystanders {
							assert.NotNil(t, w.find(p), "it serves, and %s does not", other)
						}
					}
				})
			}
		}
	}
}

// TestPodsThatAreToLeaveAreSpared names Pods to be excluded and lowers replicas in one change, in every state of
// replacements, health, marks and pause: no such Pod is deleted, handed over or begun upon, and no replica more than
// is too many.
func TestPodsThatAreToLeaveAreSpared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(1, 5).Draw(t, "replicas"))
		w.Protocol = rapid.Bool().Draw(t, "protocol")
		w.broken = map[string]bool{}
		w.run(always)
		w.keeps = true
		w.broken["r1"] = rapid.Bool().Draw(t, "new Pods are broken")
		some := func(what string, do func(*setplan.Pod)) {
			for i := range w.Pods {
				if rapid.Bool().Draw(t, what) {
					do(&w.Pods[i])
				}
			}
		}
		some("replaced", func(p *setplan.Pod) { w.ask(p) })
		w.rounds(rapid.IntRange(0, 5).Draw(t, "rounds"))
		some("not Ready", func(p *setplan.Pod) {
			p.View.Ready = false
			delete(p.View.Labels, podops.ServiceAvailableLabel)
			w.refresh(p)
		})
		if rapid.Bool().Draw(t, "there are marks") {
			some("marked", func(p *setplan.Pod) { label(w, p, appsv1alpha1.ToDeleteLabel) })
		}
		if rapid.Bool().Draw(t, "there are names") {
			some("named to be deleted", func(p *setplan.Pod) { w.ToDelete = append(w.ToDelete, p.Name()) })
		}
		w.Paused = rapid.Bool().Draw(t, "paused")
		w.Sequential = rapid.IntRange(0, 4).Draw(t, "in sequence") == 0
		leave := map[string]bool{}
		some("leaves", func(p *setplan.Pod) {
			if leave[p.Name()] = p.Live(); !leave[p.Name()] {
				return
			}
			if rapid.Bool().Draw(t, "by label") {
				label(w, p, appsv1alpha1.ToExcludeLabel)
			} else {
				w.ToExclude = append(w.ToExclude, p.Name())
			}
		})
		w.Replicas = rapid.IntRange(0, w.Replicas).Draw(t, "fewer replicas")

		// A replica is a Pod, or a pair both of whose halves stay.
		replica, replicas := map[int]int{}, map[int]bool{}
		for _, p := range w.live() {
			replica[p.ID] = p.ID
		}
		for origin, fresh := range w.newPods() {
			if !leave[origin] && !leave[fresh.Name()] {
				replica[fresh.ID] = w.find(origin).ID
			}
		}
		for _, p := range w.live() {
			if !leave[p.Name()] {
				replicas[replica[p.ID]] = true
			}
		}
		passes := sometimes(rapid.Uint64().Draw(t, "seed"), rapid.Float64Range(0.3, 1).Draw(t, "chance"))
		for range 12 {
			plan := setplan.Decide(&w.Snapshot)
			for _, p := range plan.Marks {
				if leave[p.Name()] {
					t.Fatalf("%s is handed over\n%v", p.Name(), w.log)
				}
			}
			for _, b := range plan.Begins {
				if leave[b.Pod.Name()] {
					t.Fatalf("%s of %s is begun\n%v", b.Request.Type, b.Pod.Name(), w.log)
				}
			}
			for _, deletion := range plan.Deletions {
				if leave[deletion.Pod.Name()] {
					t.Fatalf("%s is deleted: %s\n%v", deletion.Pod.Name(), deletion.Reason, w.log)
				}
			}
			w.apply(plan, passes)
			for origin, fresh := range w.newPods() {
				if !leave[origin] && !leave[fresh.Name()] {
					replica[fresh.ID] = replica[w.find(origin).ID]
				}
			}
			left := map[int]bool{}
			for _, name := range w.ToDelete { // what a user has deleted comes back, and is none of this
				if p := w.find(name); p == nil || !p.Live() {
					return
				}
			}
			for _, p := range w.live() {
				if of := replica[p.ID]; replicas[of] && !leave[p.Name()] &&
					!podops.IsDuring(p.View, setplan.OperatorID, podops.TypeScaleIn) {
					left[of] = true
				}
			}
			if len(left) < min(len(replicas), w.Replicas) {
				t.Fatalf("of %d replicas %d are left, %d are wanted\n%v", len(replicas), len(left), w.Replicas, w.log)
			}
			w.settle(passes)
		}
		if len(w.problems) > 0 {
			t.Fatalf("%v\n%v", w.problems, w.log)
		}
		if w.Paused || w.Sequential || len(w.ToDelete) > 0 ||
			slices.ContainsFunc(w.Pods, func(p setplan.Pod) bool { return p.ToDelete }) {
			return
		}
		w.broken = map[string]bool{}
		w.keeps = false
		if w.run(passes); len(w.live()) != w.Replicas {
			t.Fatalf("%d Pods for %d replicas\n%v", len(w.live()), w.Replicas, w.log)
		}
	})
}
