package setplan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/decoration"
)

// decorate has the snapshot know what lies between what its Pods are made of and what they may become.
func (w *world) decorate() {
	w.Decorated = map[setplan.FormChange]setplan.Difference{}
	for i := range w.Pods {
		p := &w.Pods[i]
		if p.Decorations == "" && p.Desired == "" {
			continue
		}
		for _, revision := range []string{p.Revision, w.UpdatedRevision} {
			for _, decorations := range []string{p.Desired, p.Decorations} {
				to := setplan.Form{Revision: revision, Decorations: decorations}
				var difference setplan.Difference
				if w.forcing[decorations] != w.forcing[p.Decorations] {
					difference.Forcing = []string{"spec.containers"}
				}
				w.Decorated[setplan.FormChange{From: p.Form(), To: to}] = difference
			}
		}
	}
}

// decoratedBy is the key of one decoration's revision.
func decoratedBy(revision string) string {
	return decoration.Key([]decoration.Mark{{Name: "sidecar", Revision: revision}})
}

// desire has every Pod of which something is true be told of decorations.
func (w *world) desire(key string, is func(*setplan.Pod) bool) {
	for _, p := range w.live() {
		if is(p) {
			p.Desired = key
		}
	}
}

func everyPod(*setplan.Pod) bool { return true }

// outages counts how often each instance ID is taken out of service.
func (w *world) outages() map[string]int {
	count := map[string]int{}
	for _, line := range w.log {
		var id, kind string
		if n, _ := fmt.Sscanf(line, "begin %s %s", &id, &kind); n == 2 && kind == podops.TypeUpdate {
			count[id]++
		}
	}
	return count
}

// TestANewTemplateAndNewDecorationsAreOneTimeOutOfService: in place or by another Pod.
func TestANewTemplateAndNewDecorationsAreOneTimeOutOfService(t *testing.T) {
	for name, forces := range map[string]bool{"in place": false, "by another Pod": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(5)
			require.True(t, w.run(always))
			w.forcing = map[string]bool{decoratedBy("sidecar-1"): forces}
			w.desire(decoratedBy("sidecar-1"), everyPod)
			w.template("r2")
			w.log = nil
			require.True(t, w.run(always))
			require.Empty(t, w.problems)
			assert.Len(t, w.outages(), 5)
			for id, n := range w.outages() {
				assert.Equal(t, 1, n, id)
			}
			for _, p := range w.live() {
				assert.Equal(t, setplan.Form{Revision: "r2", Decorations: decoratedBy("sidecar-1")}, p.Form())
			}
		})
	}
}

// TestDecorationsAreNotHeldBackByThePartitionOfTheTemplate, and the other way round.
func TestDecorationsAreNotHeldBackByThePartitionOfTheTemplate(t *testing.T) {
	w := newWorld(4)
	require.True(t, w.run(always))
	w.forcing = map[string]bool{decoratedBy("sidecar-1"): true}
	w.Partition = 3
	w.template("r2")
	first := w.live()[0].ID
	w.desire(decoratedBy("sidecar-1"), func(p *setplan.Pod) bool { return p.ID == first })
	require.True(t, w.run(always))
	require.Empty(t, w.problems)
	assert.Equal(t, 1, w.atRevision("r2"))
	for _, p := range w.live() {
		want := ""
		if p.ID == first {
			want = decoratedBy("sidecar-1")
		}
		assert.Equal(t, want, p.Decorations, "instance ID %d", p.ID)
	}
}

// TestALostPodComesBackWithItsDecorations, and with those that it was told to have meanwhile.
func TestALostPodComesBackWithItsDecorations(t *testing.T) {
	for name, policy := range map[string]appsv1alpha1.PodUpdatePolicy{
		"lost": appsv1alpha1.PodUpdateInPlaceIfPossible, "replaced": appsv1alpha1.PodUpdateReplace,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(3)
			w.Policy = policy
			require.True(t, w.run(always))
			w.desire(decoratedBy("sidecar-1"), everyPod)
			require.True(t, w.run(always))
			lost := w.live()[1]
			// Told meanwhile, it comes back as it was to be.
			lost.Desired = decoratedBy("sidecar-2")
			id := lost.ID
			lost.View.Terminating = true
			w.refresh(lost)
			require.True(t, w.run(always))
			require.Empty(t, w.problems)
			require.Len(t, w.live(), 3)
			for _, p := range w.live() {
				want := decoratedBy("sidecar-1")
				if p.ID == id {
					want = decoratedBy("sidecar-2")
				}
				assert.Equal(t, want, p.Decorations, p.Name())
			}
		})
	}
}

// TestADecorationThatDoesNotExistTouchesNoPod: the Pod says so.
func TestADecorationThatDoesNotExistTouchesNoPod(t *testing.T) {
	w := newWorld(2)
	require.True(t, w.run(always))
	w.desire(decoratedBy("gone"), everyPod)
	w.decorate()
	for between := range w.Decorated {
		w.Decorated[between] = setplan.Difference{Missing: "revision gone of PodDecoration sidecar does not exist"}
	}
	plan := setplan.Decide(&w.Snapshot)
	assert.True(t, plan.IsZero())
	require.Len(t, plan.Blockers, 1)
	assert.Equal(t, setplan.BlockDecorationMissing, plan.Blockers[0].Reason)
	assert.Contains(t, plan.Blockers[0].Message, "revision gone")
}

// TestDecorationsAndTemplatesAtRandom: whatever is asked meanwhile, and whichever writes fail, each Pod gets what it
// is to have, and none is touched without permission.
func TestDecorationsAndTemplatesAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(1, 6).Draw(t, "replicas"))
		w.budget = rapid.IntRange(0, 2).Draw(t, "budget")
		w.Policy = rapid.SampledFrom([]appsv1alpha1.PodUpdatePolicy{appsv1alpha1.PodUpdateInPlaceIfPossible,
			appsv1alpha1.PodUpdateRecreate, appsv1alpha1.PodUpdateReplace}).Draw(t, "policy")
		keys := []string{"", decoratedBy("sidecar-1"), decoratedBy("sidecar-2")}
		w.forcing = map[string]bool{keys[1]: true, keys[2]: rapid.Bool().Draw(t, "forcing")}
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		mostly := func() bool { return random.IntN(4) > 0 }
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				w.template(rapid.SampledFrom([]string{"r1", "r2", "r3"}).Draw(t, "revision"))
			case 1:
				w.desire(rapid.SampledFrom(keys).Draw(t, "desired"), func(*setplan.Pod) bool { return mostly() })
			case 2:
				w.Replicas = rapid.IntRange(1, 6).Draw(t, "replicas")
			default:
				w.round(mostly)
			}
		}
		require.True(t, w.run(always), "does not come to rest\n%v", w.log)
		require.Empty(t, w.problems)
		require.Len(t, w.live(), w.Replicas)
		for _, p := range w.live() {
			require.Equal(t, setplan.Form{Revision: w.UpdatedRevision, Decorations: p.Desired}, p.Form(), p.Name())
		}
	})
}

// failing has Pods with these decorations not serve.
func (w *world) failing(decorations string) {
	for i := range w.Pods {
		if p := &w.Pods[i]; p.Decorations == decorations {
			p.View.ContainersReady, p.View.Ready = false, false
			delete(p.View.Labels, podops.ServiceAvailableLabel)
			p.Facts = nil
			w.refresh(p)
			p.Available = false
		}
	}
}

// TestARepairedDecorationReachesANewPodThatDoesNotServe, and no Pod waits for it for ever.
func TestARepairedDecorationReachesANewPodThatDoesNotServe(t *testing.T) {
	for name, isByUser := range map[string]bool{"by an update": false, "by a user": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(2)
			bad, good := decoratedBy("sidecar-2"), decoratedBy("sidecar-3")
			if !isByUser {
				w.Policy = appsv1alpha1.PodUpdateReplace
			}
			require.True(t, w.run(always))
			w.desire(bad, everyPod)
			if isByUser {
				w.forcing = map[string]bool{bad: true, good: true}
				w.set(w.live()[0], appsv1alpha1.ToReplaceLabel, "true")
			}
			for range 30 {
				w.round(always)
				w.failing(bad)
			}
			w.desire(good, everyPod)
			for range 300 {
				w.round(always)
				w.failing(bad)
			}
			require.Empty(t, w.problems)
			for _, p := range w.live() {
				assert.Equal(t, good, p.Decorations, p.Name())
			}
		})
	}
}

// TestDecorationsThatCannotBeHadHoldUpNoTemplate, nor do they count against it.
func TestDecorationsThatCannotBeHadHoldUpNoTemplate(t *testing.T) {
	bad := decoratedBy("sidecar-1")
	told := func(t *testing.T, change func(*world)) *world {
		w := newWorld(3)
		require.True(t, w.run(always))
		w.forcing = map[string]bool{bad: true}
		change(w)
		w.desire(bad, everyPod)
		w.template("r2")
		return w
	}
	t.Run("in place only", func(t *testing.T) {
		w := told(t, func(w *world) { w.Policy = appsv1alpha1.PodUpdateInPlaceOnly })
		require.True(t, w.run(always))
		assert.Equal(t, 3, w.atRevision("r2"))
		assert.Equal(t, 3, w.blockers()["InPlaceImpossible"])
	})
	t.Run("refused", func(t *testing.T) {
		w := told(t, func(*world) {})
		w.decorate()
		form := setplan.Form{Revision: "r2", Decorations: bad}
		w.Verdicts = map[setplan.Trial]setplan.Verdict{
			{Write: setplan.TrialCreate, To: form}: {Refused: "pod security", Retry: w.Now.Add(time.Hour), At: w.Now},
		}
		plan := setplan.Decide(&w.Snapshot)
		assert.Empty(t, plan.Goal.Refusal)
		assert.False(t, plan.Goal.Held)
		require.NotEmpty(t, plan.Trials, "it goes on without")
		assert.Empty(t, plan.Trials[0].To.Decorations)
	})
}

// TestAnUpdateToDecorationsTakesNoPlaceInThePartition.
func TestAnUpdateToDecorationsTakesNoPlaceInThePartition(t *testing.T) {
	w := newWorld(4)
	require.True(t, w.run(always))
	w.Partition = 3
	older, younger := w.live()[0], w.live()[3]
	older.Created = older.Created.Add(-time.Hour)
	w.template("r2")
	takeOut := func(p *setplan.Pod) {
		c, err := podops.Begin(p.View, podops.Request{ID: setplan.OperatorID, Type: podops.TypeUpdate}, w.Now)
		require.NoError(t, err)
		p.View = c.Apply(p.View)
		permitted := podops.Verdicts{podops.Ask{ID: setplan.OperatorID, Stage: appsv1alpha1.StagePreCheck}: true}
		p.View = podops.Advance(p.View, permitted, w.Now).Apply(p.View)
		p.View.Ready, p.ReadySince, p.Facts = false, time.Time{}, nil
		w.refresh(p)
	}
	takeOut(older)
	younger.Desired = decoratedBy("sidecar-1")
	takeOut(younger)
	w.decorate()
	assert.Empty(t, setplan.Decide(&w.Snapshot).Cancels)
}

// TestDecorationsOfSomePodsAreRemembered as they are seen, while others are under way: a Pod that is lost without a
// trace comes back as it was.
func TestDecorationsOfSomePodsAreRemembered(t *testing.T) {
	w := newWorld(4)
	w.budget = 1
	require.True(t, w.run(always))
	some := w.ids()[:2]
	w.desire(decoratedBy("sidecar-1"), func(p *setplan.Pod) bool { return slices.Contains(some, p.ID) })
	w.template("r2") // keeps the set busy
	for range 100 {
		w.round(always)
		for _, p := range w.live() {
			if p.Decorations == "" {
				continue
			}
			w.round(always)
			entry := w.entry(p.ID)
			require.Equal(t, decoratedBy("sidecar-1"), entry.Data[appsv1alpha1.ContextPodDecorationRevisions])
			return
		}
	}
	t.Fatal("no Pod was updated", w.log)
}
