package setplan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// stray takes a Pod out of the set as far as its controller can see.
func (w *world) stray(name string, unmanaged bool) {
	i := slices.IndexFunc(w.Pods, func(p setplan.Pod) bool { return p.Name() == name })
	w.Strays = append(slices.Clone(w.Strays), setplan.Stray{Pod: w.Pods[i], Unmanaged: unmanaged})
	w.Pods = slices.Delete(slices.Clone(w.Pods), i, i+1)
}

// repair carries repairs out.
func (w *world) repair(plan setplan.Plan, passes func() bool) {
	each(plan.Repairs, passes, func(r setplan.Repair) {
		w.say("repair %s", r.Pod.Name())
		if i := slices.IndexFunc(w.Strays, func(st setplan.Stray) bool { return st.Pod.UID() == r.Pod.UID() }); i >= 0 {
			if st := w.Strays[i]; r.Adopt == st.Unmanaged {
				w.wrong("%s gets what it does not lack", r.Pod.Name())
			}
			w.Pods = append(w.Pods, w.Strays[i].Pod)
			w.Strays = slices.Delete(slices.Clone(w.Strays), i, i+1)
		}
		p := w.find(r.Pod.Name())
		if id, ok := r.Labels[appsv1alpha1.InstanceIDLabel]; ok {
			p.ID, _ = strconv.Atoi(id)
		}
		if revision, ok := r.Labels[appsv1.ControllerRevisionHashLabelKey]; ok {
			p.Revision = revision
		}
		p.Known = nil
		w.refresh(p)
	})
}

// doubled reports whether two live Pods have the identity of a Pod's name and instance ID as it was given at first.
func doubled(w *world, was map[string]int) string {
	by := map[int]string{}
	for _, p := range w.live() {
		id, known := was[p.Name()]
		if !known {
			id = p.ID
			was[p.Name()] = id
		}
		if other := by[id]; other != "" {
			return fmt.Sprintf("%s and %s are both %d", other, p.Name(), id)
		}
		by[id] = p.Name()
	}
	for _, st := range w.Strays {
		if id, known := was[st.Pod.Name()]; known && st.Pod.Live() && by[id] != "" {
			return fmt.Sprintf("%s and %s are both %d", st.Pod.Name(), by[id], id)
		}
	}
	return ""
}

func identities(w *world) map[string]int {
	was := map[string]int{}
	for _, p := range w.live() {
		was[p.Name()] = p.ID
	}
	return was
}

func TestPodsThatLackWhatTheyAreFoundBy(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*world)
		// repaired are names, adopted those of them that get an owner, and labels what the first gets.
		repaired, adopted []string
		labels            map[string]string
		reason            string
	}{
		"the label that it is managed": {
			change:   func(w *world) { w.stray("web-00002", true) },
			repaired: []string{"web-00002"}, labels: map[string]string{appsv1alpha1.ControlLabel: "true"},
		},
		"that label and its instance ID": {
			change:   func(w *world) { w.stray("web-00002", true); w.Strays[0].Pod.ID = setplan.NoID },
			repaired: []string{"web-00002"}, labels: map[string]string{appsv1alpha1.ControlLabel: "true"},
		},
		"the owner": {
			change:   func(w *world) { w.stray("web-00002", false) },
			repaired: []string{"web-00002"}, adopted: []string{"web-00002"},
		},
		"the owner, while paused": {
			change:   func(w *world) { w.stray("web-00002", false); w.Paused = true },
			repaired: []string{"web-00002"}, adopted: []string{"web-00002"},
		},
		"the owner, and entries are gone": {
			change: func(w *world) {
				w.stray("web-00001", false)
				w.stray("web-00002", false)
				w.stray("web-00003", false)
				w.Entries = nil
			},
			repaired: []string{"web-00001", "web-00002", "web-00003"}, adopted: []string{"web-00001", "web-00002", "web-00003"},
		},
		"the instance ID, which it had before": {
			change:   func(w *world) { p := w.find("web-00002"); p.ID, p.Known = setplan.NoID, &setplan.Known{ID: 1} },
			repaired: []string{"web-00002"}, labels: map[string]string{appsv1alpha1.InstanceIDLabel: "1"},
		},
		"the instance ID, and has another's": {
			change:   func(w *world) { p := w.find("web-00002"); p.ID, p.Known = 0, &setplan.Known{ID: 1} },
			repaired: []string{"web-00002"}, labels: map[string]string{appsv1alpha1.InstanceIDLabel: "1"},
		},
		"the instance ID, of which one is vacant": {
			change:   func(w *world) { w.find("web-00002").ID = setplan.NoID },
			repaired: []string{"web-00002"}, labels: map[string]string{appsv1alpha1.InstanceIDLabel: "1"},
		},
		"the instance ID, of which two are vacant": {
			change: func(w *world) { w.find("web-00002").ID, w.find("web-00003").ID = setplan.NoID, setplan.NoID },
			reason: setplan.BlockIDLost,
		},
		"the revision, which it had before": {
			change: func(w *world) {
				p := w.find("web-00002")
				p.Revision, p.Known = "", &setplan.Known{ID: setplan.NoID, Revision: "r1"}
			},
			repaired: []string{"web-00002"}, labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: "r1"},
		},
		"the owner, and the labels that the selector wants": {
			change: func(w *world) { w.stray("web-00002", false); w.Strays[0].Pod.Selected = false },
			reason: setplan.BlockNotAdopted,
		},
		"the owner, and another has its instance ID": {
			change: func(w *world) { w.stray("web-00002", false); w.Strays[0].Pod.ID = 0 },
			reason: setplan.BlockNotAdopted,
		},
		"the owner, and none is wanted": {
			change: func(w *world) { w.stray("web-00002", false); w.Replicas = 2 },
			reason: setplan.BlockNotAdopted,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 3, nil)
			tc.change(w)
			holders := []int{0, 2}
			for i := range w.Strays {
				holders = append(holders, w.Strays[i].Pod.ID)
			}
			if len(w.Strays) == 0 {
				holders = append(holders, 1)
			}
			plan := setplan.Decide(&w.Snapshot)
			var repaired, adopted []string
			for _, r := range plan.Repairs {
				repaired = append(repaired, r.Pod.Name())
				if r.Adopt {
					adopted = append(adopted, r.Pod.Name())
				}
			}
			assert.Equal(t, tc.repaired, repaired)
			assert.Equal(t, tc.adopted, adopted)
			if len(tc.labels) > 0 {
				assert.Equal(t, tc.labels, plan.Repairs[0].Labels)
			}
			for _, c := range plan.Creations {
				require.NotContains(t, holders, c.ID, "it is not vacant")
			}
			assert.Empty(t, plan.Deletions)
			assert.Empty(t, plan.Begins, "nobody has to go")
			if tc.reason != "" {
				assert.Contains(t, w.reasons(), tc.reason)
				return
			}
			require.True(t, w.run(always))
			assert.Empty(t, w.problems)
			assert.Equal(t, []int{0, 1, 2}, w.ids())
			assert.Len(t, w.live(), 3)
			assert.Zero(t, countPrefix(w.log, "create")+countPrefix(w.log, "delete"))
		})
	}
}

// A Pod that is to be let go is not taken back, and its instance ID goes to another one.
func TestAPodThatIsToGoIsNotAdopted(t *testing.T) {
	for name, change := range map[string]func(*world){
		"named":    func(w *world) { w.ToExclude = []string{"web-00002"} },
		"labelled": func(w *world) { w.Strays[0].Pod.Excluded = true },
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 3, nil)
			w.stray("web-00002", false)
			change(w)
			plan := setplan.Decide(&w.Snapshot)
			assert.Empty(t, plan.Repairs)
			require.Len(t, plan.Creations, 1)
			assert.Equal(t, 1, plan.Creations[0].ID)
		})
	}
}

// A deleted set finds its last Pods before it goes.
func TestADeletedSetFindsItsPods(t *testing.T) {
	w := atRest(t, 1, nil)
	w.stray("web-00001", true)
	w.Deleting = true
	plan := setplan.Decide(&w.Snapshot)
	require.Len(t, plan.Repairs, 1)
	assert.False(t, plan.Release)
	w.Orphaning = true
	plan = setplan.Decide(&w.Snapshot)
	assert.Empty(t, plan.Repairs)
}

// Claims say which instance ID a Pod has, whatever its label says.
func TestClaimsTellTheInstanceID(t *testing.T) {
	w := withData(t, 3)
	for name, id := range map[string]int{"no label": setplan.NoID, "another's": 0} {
		t.Run(name, func(t *testing.T) {
			w.Pods[1].ID = id
			plan := setplan.Decide(&w.Snapshot)
			require.Len(t, plan.Repairs, 1)
			assert.Equal(t, map[string]string{appsv1alpha1.InstanceIDLabel: "1"}, plan.Repairs[0].Labels)
			assert.Empty(t, plan.Creations)
			assert.Empty(t, plan.Begins)
		})
	}
}

// Claims that lack labels are no reason to make others, and get them back.
func TestClaimsThatLackLabels(t *testing.T) {
	t.Run("of a known instance ID", func(t *testing.T) {
		w := withData(t, 2)
		w.Claims[1].Unlabelled = true
		w.Pods = w.Pods[:1]
		plan := setplan.Decide(&w.Snapshot)
		require.Len(t, plan.Creations, 1)
		assert.NotNil(t, plan.Creations[0].Claims[0].Claim)
		require.Len(t, plan.ClaimRepairs, 1)
		assert.Equal(t, w.Claims[1].Name, plan.ClaimRepairs[0].Name)
	})
	t.Run("of an unknown one", func(t *testing.T) {
		w := withData(t, 2)
		w.Claims[1].Unlabelled, w.Claims[1].ID = true, setplan.NoID
		w.Pods = w.Pods[:1]
		plan := setplan.Decide(&w.Snapshot)
		assert.Empty(t, plan.Creations)
		assert.Empty(t, plan.ClaimRepairs)
		assert.Contains(t, w.reasons(), setplan.BlockClaimUnknown)
	})
	t.Run("and whose owner is no more", func(t *testing.T) {
		w := withData(t, 1)
		w.Claims[0].Dangling = true
		assert.Len(t, setplan.Decide(&w.Snapshot).ClaimReleases, 1)
		w.Retention.Deleted = true
		assert.Len(t, setplan.Decide(&w.Snapshot).ClaimAdoptions, 1)
	})
}

// Whatever is taken off Pods, and whichever writes fail: there are never two of one identity, and in the end all is
// as it was.
func TestOnePodPerIdentity(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 7))
		n := 2 + random.IntN(5)
		w := atRest(t, n, nil)
		was, passes := identities(w), sometimes(seed, 0.7)
		before := maps.Clone(was)
		for range 6 {
			if live := w.live(); len(live) > 0 {
				p := live[random.IntN(len(live))]
				known := setplan.Known{ID: p.ID, Revision: p.Revision}
				what := random.IntN(6)
				if p.Known != nil {
					what = 5 // it lacks one thing at a time
				}
				switch what {
				case 0:
					w.stray(p.Name(), true)
				case 1:
					w.stray(p.Name(), false)
				case 2:
					p.ID, p.Known = setplan.NoID, &known
				case 3:
					if id := random.IntN(n); id != p.ID {
						p.ID, p.Known = id, &known
					}
				case 4:
					p.Revision, p.Known = "", &known
				case 5:
					w.template([]string{"r1", "r2"}[random.IntN(2)])
				}
			}
			for range random.IntN(4) {
				w.round(passes)
				require.Empty(t, doubled(w, was), "seed %d: %v", seed, w.log)
			}
		}
		for range 60 {
			w.round(always)
			require.Empty(t, doubled(w, was), "seed %d: %v", seed, w.log)
		}
		require.True(t, w.run(always), "seed %d", seed)
		require.Len(t, w.live(), n, "seed %d: %v", seed, w.log)
		require.Empty(t, w.Strays, "seed %d", seed)
		for _, p := range w.live() {
			require.Nil(t, p.Known, "seed %d: %s has ID %d and revision %s: %v", seed, p.Name(), p.ID, p.Revision, w.log)
		}
		require.Equal(t, before, identities(w), "seed %d: the same Pods: %v", seed, w.log)
	}
}

// withData has Pods with a claim each, at rest.
func withData(t *testing.T, replicas int) *world {
	return atRest(t, replicas, func(w *world) {
		w.Templates = map[string][]setplan.ClaimTemplate{"r1": {claimTemplate("data", 10, "fast")}}
	})
}
