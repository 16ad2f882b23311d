package decoplan_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/poddecoration/decoplan"
)

// started is a world of Pods of several workloads that were there before their decoration.
func started(t testing.TB) *world {
	t.Helper()
	w := newWorld()
	w.replicas = map[string]int{"ReplicaSet/web": 6, appsv1alpha1.CollaSetKind + "/db": 4}
	require.True(t, w.run(always))
	return w
}

// TestAllPodsGetADecoration: in place or by another Pod, of every workload, and then nothing is written.
func TestAllPodsGetADecoration(t *testing.T) {
	for name, forces := range map[string]bool{"in place": false, "by another Pod": true} {
		t.Run(name, func(t *testing.T) {
			w := started(t)
			w.forcing["sidecar-1"] = forces
			w.decorate("sidecar", nil)
			require.True(t, w.run(always), w.log)
			require.Empty(t, w.problems)
			assert.Equal(t, 10, w.at("sidecar-1"))
			s := w.decoration("sidecar").Status
			assert.EqualValues(t, 10, s.MatchedPods)
			assert.EqualValues(t, 10, s.InjectedPods)
			assert.EqualValues(t, 10, s.UpdatedAvailablePods)
			assert.Equal(t, "sidecar-1", s.CurrentRevision)
			_, ready := w.condition("sidecar", appsv1alpha1.PodDecorationReady)
			assert.True(t, ready)
			require.Len(t, s.Details, 2)
			assert.Equal(t, "db", s.Details[0].CollaSet)
			assert.Equal(t, "ReplicaSet/web", s.Details[1].Workload)
			assert.Empty(t, s.Blockers)
		})
	}
}

// TestD1DetailsAreInOneOrder: whatever the order of what is read.
func TestD1DetailsAreInOneOrder(t *testing.T) {
	w := started(t)
	w.decorate("sidecar", nil)
	w.decorate("agent", nil)
	first := decoplan.Decide(&w.Snapshot)
	for range 10 {
		other := w.Snapshot
		other.Pods, other.Decorations = slices.Clone(w.Pods), slices.Clone(w.Decorations)
		rand.Shuffle(len(other.Pods), func(i, j int) { other.Pods[i], other.Pods[j] = other.Pods[j], other.Pods[i] })
		slices.Reverse(other.Decorations)
		again := decoplan.Decide(&other)
		assert.Equal(t, first.Statuses, again.Statuses)
		require.Len(t, those(again, "telling its decorations to"), len(w.Pods))
		require.Len(t, again.Writes, len(first.Writes))
		for i := range again.Writes {
			assert.Equal(t, first.Writes[i].Pod.View.Name, again.Writes[i].Pod.View.Name)
			assert.Equal(t, first.Writes[i].Change, again.Writes[i].Change)
		}
	}
}

// TestD4ASelectorThatIsNotValidSelectsNothing, says so, and touches no Pod.
func TestD4ASelectorThatIsNotValidSelectsNothing(t *testing.T) {
	w := started(t)
	w.decorate("sidecar", nil)
	require.True(t, w.run(always))
	d := w.decoration("sidecar")
	d.Generation++
	d.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}}
	w.log = nil
	require.True(t, w.run(always))
	assert.Empty(t, w.log)
	assert.Equal(t, 10, w.at("sidecar-1"))
	reason, stalled := w.condition("sidecar", appsv1alpha1.PodDecorationStalled)
	assert.True(t, stalled)
	assert.Equal(t, string(appsv1alpha1.ReasonInvalidSpec), reason)
	// Others go on.
	w.decorate("agent", nil)
	require.True(t, w.run(always))
	assert.Equal(t, 10, w.at("agent-1"))
}

// TestD5APartitionIsKeptByWhoeverDecides: nothing is remembered between decisions, so all of this holds in each.
func TestD5APartitionIsKeptByWhoeverDecides(t *testing.T) {
	w := started(t)
	w.decorate("sidecar", nil)
	require.True(t, w.run(always))
	w.template("sidecar", "sidecar-2")
	w.decoration("sidecar").Spec.UpdateStrategy.RollingUpdate = rolling(9)
	require.True(t, w.run(always))
	assert.Equal(t, 1, w.at("sidecar-2"))
	_, ready := w.condition("sidecar", appsv1alpha1.PodDecorationReady)
	assert.True(t, ready)
	assert.Equal(t, "sidecar-1", w.decoration("sidecar").Status.CurrentRevision)
	// New Pods get the current one.
	w.replicas["ReplicaSet/web"] = 7
	w.settle()
	assert.Equal(t, 1, w.at("sidecar-2"))
	w.decoration("sidecar").Spec.UpdateStrategy.RollingUpdate = nil
	require.True(t, w.run(always))
	assert.Equal(t, 11, w.at("sidecar-2"))
}

// TestD14DeletingADecorationIsARollout like any other: no more Pods are out of service than may be.
func TestD14DeletingADecorationIsARollout(t *testing.T) {
	w := started(t)
	w.forcing["sidecar-1"] = true
	w.decorate("sidecar", nil)
	require.True(t, w.run(always))
	w.deleted = 0
	w.decoration("sidecar").Deleting = true
	for range 300 {
		if w.decoration("sidecar") == nil {
			break
		}
		w.apply(decoplan.Decide(&w.Snapshot), always)
		out := 0
		for i := range w.Pods {
			if p := &w.Pods[i]; p.Owner.Recreates && !p.Available {
				out++
			}
		}
		assert.LessOrEqual(t, out, 1, "a quarter of six")
		w.settle()
	}
	require.Nil(t, w.decoration("sidecar"), w.log)
	assert.Zero(t, w.at("sidecar-1"))
	assert.Equal(t, 6, w.deleted)
	require.Empty(t, w.problems)
}

// TestWebhookServerIsAway: Pods that were created without a decoration come right when it is back, and one of them at
// most is deleted before.
func TestWebhookServerIsAway(t *testing.T) {
	w := newWorld()
	w.forcing["sidecar-1"] = true
	w.decorate("sidecar", nil)
	require.True(t, w.run(always))
	w.bare = true
	w.replicas = map[string]int{"ReplicaSet/web": 20}
	require.True(t, w.run(always))
	assert.Equal(t, 1, w.deleted)
	assert.Zero(t, w.at("sidecar-1"))
	blockers := w.decoration("sidecar").Status.Blockers
	require.NotEmpty(t, blockers)
	assert.Equal(t, decoplan.BlockNotInjected, blockers[0].Reason)
	_, stalled := w.condition("sidecar", appsv1alpha1.PodDecorationStalled)
	assert.False(t, stalled, "it is tried again")

	w.bare = false
	w.Pods[3].View.Terminating = true // as the message asks
	require.True(t, w.run(always), w.log)
	assert.Equal(t, 20, w.at("sidecar-1"))
	require.Empty(t, w.problems)
}

// TestPodsThatNothingCreatesAgainAreNotDeleted, nor are those that take no part in the lifecycle.
func TestPodsThatNothingCreatesAgainAreNotDeleted(t *testing.T) {
	w := newWorld()
	w.replicas = map[string]int{"Bare/one": 1, "Job/task": 1, "ReplicaSet/others": 2}
	w.unmanaged["ReplicaSet/others"] = true
	w.create("Bare/one")
	delete(w.replicas, "Bare/one")
	require.True(t, w.run(always))
	w.forcing["sidecar-1"] = true
	w.decorate("sidecar", nil)
	require.True(t, w.run(always))
	require.Empty(t, w.problems)
	assert.Zero(t, w.deleted)
	reasons := map[string]int32{}
	for _, b := range w.decoration("sidecar").Status.Blockers {
		reasons[b.Reason] = b.Count
	}
	assert.Equal(t, map[string]int32{decoplan.BlockNoWorkload: 2, decoplan.BlockNotManaged: 2}, reasons)

	// Deleting it does not wait for what never comes.
	w.decoration("sidecar").Deleting = true
	require.True(t, w.run(always))
	assert.Nil(t, w.decoration("sidecar"))
}

// TestATemplateThatDoesNotServeStops, and its Pods go back where that is asked.
func TestATemplateThatDoesNotServeStops(t *testing.T) {
	for _, policy := range []appsv1alpha1.RolloutFailurePolicy{appsv1alpha1.RolloutFailurePause,
		appsv1alpha1.RolloutFailureRollback, appsv1alpha1.RolloutFailureReport} {
		t.Run(string(policy), func(t *testing.T) {
			w := started(t)
			delete(w.replicas, appsv1alpha1.CollaSetKind+"/db")
			w.Pods = slices.DeleteFunc(w.Pods, func(p decoplan.Pod) bool { return !p.Owner.Recreates })
			w.decorate("sidecar", func(d *decoplan.Decoration) {
				d.Spec.UpdateStrategy.FailurePolicy = policy
				d.Spec.ProgressDeadlineSeconds = ptr.To[int32](30)
			})
			require.True(t, w.run(always))
			w.broken["sidecar-2"] = true
			w.template("sidecar", "sidecar-2")
			require.True(t, w.run(always), w.log)
			for range 30 { // the deadline passes
				w.apply(decoplan.Decide(&w.Snapshot), always)
				w.settle()
			}
			require.True(t, w.run(always), w.log)
			require.Empty(t, w.problems)
			s := w.decoration("sidecar").Status
			reason, stalled := w.condition("sidecar", appsv1alpha1.PodDecorationStalled)
			assert.Equal(t, "sidecar-1", s.CurrentRevision)
			switch policy {
			case appsv1alpha1.RolloutFailureRollback:
				assert.Equal(t, 6, w.at("sidecar-1"))
				assert.Equal(t, string(appsv1alpha1.ReasonRolledBack), reason)
				assert.True(t, stalled)
			case appsv1alpha1.RolloutFailurePause:
				assert.Equal(t, 1, w.at("sidecar-2"))
				assert.Equal(t, string(appsv1alpha1.ReasonRolloutHalted), reason)
				assert.True(t, stalled)
			default:
				assert.Nil(t, s.Halted)
				assert.Equal(t, string(appsv1alpha1.ReasonProgressDeadlineExceeded), reason)
			}
			// The next template goes on.
			w.template("sidecar", "sidecar-3")
			require.True(t, w.run(always), w.log)
			assert.Equal(t, 6, w.at("sidecar-3"))
		})
	}
}

// TestPausedTellsNoOtherPod.
func TestPausedTellsNoOtherPod(t *testing.T) {
	w := started(t)
	w.decorate("sidecar", nil)
	require.True(t, w.run(always))
	w.template("sidecar", "sidecar-2")
	w.decoration("sidecar").Spec.UpdateStrategy.Paused = true
	w.log = nil
	require.True(t, w.run(always))
	assert.Empty(t, w.log)
	reason, _ := w.condition("sidecar", appsv1alpha1.PodDecorationProgressing)
	assert.Equal(t, string(appsv1alpha1.ReasonPaused), reason)
}

// TestAnythingAtRandom: whatever changes meanwhile, and whichever writes fail, it comes to rest where each Pod has
// what it is to have.
func TestAnythingAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.replicas = map[string]int{"ReplicaSet/web": 4, appsv1alpha1.CollaSetKind + "/db": 2, "ReplicaSet/others": 1}
		w.unmanaged["ReplicaSet/others"] = true
		names := []string{"a", "b"}
		for _, name := range names {
			w.decorate(name, nil)
			w.forcing[name+"-2"] = rapid.Bool().Draw(t, "forcing")
		}
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		mostly := func() bool { return random.IntN(4) > 0 }
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			d := w.decoration(rapid.SampledFrom(names).Draw(t, "name"))
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				w.template(d.Name, d.Name+rapid.SampledFrom([]string{"-1", "-2", "-3"}).Draw(t, "revision"))
			case 1:
				d.Generation++
				d.Spec.UpdateStrategy.RollingUpdate = rolling(rapid.Int32Range(0, 6).Draw(t, "partition"))
			case 2:
				w.replicas["ReplicaSet/web"] = rapid.IntRange(1, 6).Draw(t, "replicas")
			case 3:
				d.Spec.UpdateStrategy.Paused = !d.Spec.UpdateStrategy.Paused
				d.Generation++
			default:
				w.apply(decoplan.Decide(&w.Snapshot), mostly)
				w.settle()
			}
		}
		for _, name := range names {
			d := w.decoration(name)
			d.Generation++
			d.Spec.UpdateStrategy = appsv1alpha1.PodDecorationUpdateStrategy{}
		}
		require.True(t, w.run(always), "does not come to rest\n%v", w.log)
		require.Empty(t, w.problems)
		for i := range w.Pods {
			p := &w.Pods[i]
			for _, name := range names {
				has := slices.ContainsFunc(p.Has, func(m decoration.Mark) bool {
					return m.Name == name && m.Revision == w.decoration(name).Updated
				})
				require.True(t, has || !p.Managed, "%s has %s", p.View.Name, keyOf(p))
			}
			require.Empty(t, p.View.Labels[appsv1alpha1.ToDeleteLabel])
		}
		require.Less(t, w.Now.Sub(time.Unix(1_700_000_000, 0)), 2*time.Hour)
	})
}

// TestWebhookServerMayComeBack: one Pod at a time shows whether it decorates new ones, less and less often, and in the
// end none any more.
func TestWebhookServerMayComeBack(t *testing.T) {
	for name, test := range map[string]struct {
		back    time.Duration
		deleted int
	}{"soon": {30 * time.Second, 7}, "late": {10 * time.Minute, 10}, "never": {2 * time.Hour, 5}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.bare, w.replicas = true, map[string]int{"ReplicaSet/web": 6}
			require.True(t, w.run(always))
			w.forcing["sidecar-1"] = true
			w.decorate("sidecar", nil)
			for begin := w.Now; w.Now.Sub(begin) < time.Hour; {
				w.bare = w.Now.Sub(begin) < test.back
				w.apply(decoplan.Decide(&w.Snapshot), always)
				w.settle()
			}
			require.Empty(t, w.problems)
			assert.Equal(t, test.deleted, w.deleted)
			if test.back < time.Hour {
				assert.Equal(t, 6, w.at("sidecar-1"))
			} else {
				assert.Equal(t, map[string]int32{decoplan.BlockNotInjected: 6}, w.reasons("sidecar"))
			}
		})
	}
}

// TestTheFirstMayWaitForARule as long as any other: that tells nothing of the Pod in its place.
func TestTheFirstMayWaitForARule(t *testing.T) {
	w := started(t)
	w.held, w.forcing["sidecar-1"] = true, true
	w.decorate("sidecar", nil)
	for range 500 { // 1,000 s
		w.apply(decoplan.Decide(&w.Snapshot), always)
		w.settle()
	}
	assert.NotContains(t, w.reasons("sidecar"), decoplan.BlockNotInjected)
	w.held = false
	require.True(t, w.run(always))
	assert.Equal(t, 10, w.at("sidecar-1"))
}

// TestD6ADefaultIsAppliedWhenItIsRead: what is left out means the same as what is written.
func TestD6ADefaultIsAppliedWhenItIsRead(t *testing.T) {
	rollout := func(change func(*appsv1alpha1.PodDecorationSpec)) ([]string, appsv1alpha1.PodDecorationStatus) {
		w := started(t)
		w.forcing["sidecar-1"] = true
		w.decorate("sidecar", func(d *decoplan.Decoration) { change(&d.Spec) })
		require.True(t, w.run(always), w.log)
		return w.log, w.decoration("sidecar").Status
	}
	left, status := rollout(func(*appsv1alpha1.PodDecorationSpec) {})
	written, same := rollout(func(s *appsv1alpha1.PodDecorationSpec) {
		s.Weight, s.ProgressDeadlineSeconds = ptr.To[int32](0), ptr.To[int32](appsv1alpha1.DefaultProgressDeadlineSeconds)
		s.UpdateStrategy = appsv1alpha1.PodDecorationUpdateStrategy{PodUpdatePolicy: appsv1alpha1.PodUpdateInPlaceIfPossible,
			FailurePolicy: appsv1alpha1.RolloutFailureReport,
			RollingUpdate: &appsv1alpha1.PodDecorationRollingUpdate{Partition: ptr.To[int32](0),
				MaxUnavailable: ptr.To(intstr.FromString("25%"))}}
	})
	assert.Equal(t, left, written)
	assert.Equal(t, status, same)
}

// TestOneDecisionIsBounded: it tells 64 Pods, and begins while fewer than 64 others are written to. What is under way
// is finished, however much that is.
func TestOneDecisionIsBounded(t *testing.T) {
	const pods, bound = 200, 64
	w := newWorld()
	w.replicas = map[string]int{"ReplicaSet/web": pods}
	require.True(t, w.run(always))
	w.decorate("sidecar", func(d *decoplan.Decoration) {
		d.Protected = true
		d.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.PodDecorationRollingUpdate{
			MaxUnavailable: ptr.To(intstr.FromString("100%"))}
	})
	for _, want := range []struct{ told, begun int }{{bound, 0}, {bound, bound}, {bound, bound}, {8, bound}, {0, 8}} {
		plan := decoplan.Decide(&w.Snapshot)
		require.Len(t, those(plan, "telling its decorations to"), want.told)
		require.Len(t, those(plan, "asking for the update of"), want.begun)
		require.Len(t, plan.Writes, want.told+want.begun)
		require.Equal(t, want.told == bound, plan.More)
		w.apply(plan, always)
	}
	for i := range w.Pods {
		w.Pods[i].Has, w.Pods[i].Recorded, w.Pods[i].Carried = w.Pods[i].Desired, true, true
	}
	require.Len(t, those(decoplan.Decide(&w.Snapshot), "finishing the update of"), pods)
}
