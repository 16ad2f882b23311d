package decoplan_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/poddecoration/decoplan"
)

// These are about Pods that would be out of service for nothing.

// decorated is a world of six Pods of a ReplicaSet that have a decoration.
func decorated(t *testing.T, change func(*decoplan.Decoration)) *world {
	t.Helper()
	w := newWorld()
	w.replicas = map[string]int{"ReplicaSet/web": 6}
	require.True(t, w.run(always))
	w.decorate("sidecar", change)
	require.True(t, w.run(always))
	require.Equal(t, 6, w.at("sidecar-1"))
	w.deleted = 0
	return w
}

func inPlaceOnly(d *decoplan.Decoration) {
	d.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceOnly
}

// reasons are those of a decoration's blockers, with the number of Pods.
func (w *world) reasons(name string) map[string]int32 {
	reasons := map[string]int32{}
	for _, b := range w.decoration(name).Status.Blockers {
		reasons[b.Reason] = b.Count
	}
	return reasons
}

// TestNoPodIsDeletedForARevisionThatTheNextDoesNotGet: with a partition, new Pods get the current one.
func TestNoPodIsDeletedForARevisionThatTheNextDoesNotGet(t *testing.T) {
	w := decorated(t, nil)
	w.forcing["sidecar-2"] = true
	w.template("sidecar", "sidecar-2")
	w.decoration("sidecar").Spec.UpdateStrategy.RollingUpdate = rolling(5)
	require.True(t, w.run(always))
	assert.Zero(t, w.deleted)
	assert.Equal(t, map[string]int32{decoplan.BlockKeptBack: 1}, w.reasons("sidecar"))
}

// TestASelectorOfWhatADecorationSetsIsNoLoop: a Pod is selected by what it had when it was created.
func TestASelectorOfWhatADecorationSetsIsNoLoop(t *testing.T) {
	w := newWorld()
	w.replicas = map[string]int{"ReplicaSet/web": 2}
	w.forcing["sidecar-1"] = true
	w.decorate("sidecar", func(d *decoplan.Decoration) {
		d.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "injected", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	})
	for range 50 {
		w.apply(decoplan.Decide(&w.Snapshot), always)
		w.settle()
		for i := range w.Pods {
			if len(w.Pods[i].Has) > 0 {
				w.Pods[i].View.Labels["injected"] = "true"
			}
		}
	}
	assert.Zero(t, w.deleted)
	assert.Equal(t, 2, w.at("sidecar-1"))
}

// TestResourcesThatPodsCannotHave: they are created again within the budget, or stay if they may not be.
func TestResourcesThatPodsCannotHave(t *testing.T) {
	for _, policy := range []appsv1alpha1.PodUpdatePolicy{appsv1alpha1.PodUpdateInPlaceOnly,
		appsv1alpha1.PodUpdateInPlaceIfPossible} {
		t.Run(string(policy), func(t *testing.T) {
			w := decorated(t, func(d *decoplan.Decoration) { d.Spec.UpdateStrategy.PodUpdatePolicy = policy })
			for i := range w.Pods {
				w.Pods[i].Recorded, w.Pods[i].Infeasible, w.Pods[i].Missing = true, true, "no room"
			}
			plan := decoplan.Decide(&w.Snapshot)
			w.apply(plan, always)
			again := decoplan.Decide(&w.Snapshot)
			assert.Empty(t, again.Writes, "nothing is taken back")
			if policy == appsv1alpha1.PodUpdateInPlaceOnly {
				assert.Empty(t, plan.Writes)
				assert.Equal(t, map[string]int32{decoplan.BlockInPlaceImpossible: 6}, w.reasons("sidecar"))
				return
			}
			assert.Len(t, plan.Writes, 1, "a quarter of six")
		})
	}
}

// TestAResizeThatRestartsAsksFirst.
func TestAResizeThatRestartsAsksFirst(t *testing.T) {
	w := decorated(t, nil)
	p := &w.Pods[0]
	p.Recorded, p.ResizeDue, p.ResizeRestarts = true, true, true // cancelled by a deadline before the second write
	plan := decoplan.Decide(&w.Snapshot)
	assert.Empty(t, plan.Resizes)
	require.Len(t, those(plan, "asking for the update of"), 1)
	assert.False(t, plan.Writes[0].Tries, "nothing is left to change in place")
	p.ResizeRestarts = false
	plan = decoplan.Decide(&w.Snapshot)
	assert.Len(t, plan.Resizes, 1)
	assert.Empty(t, plan.Writes)
}

// TestADecorationThatCannotBeTakenOffStays, and its deletion does not wait for that.
func TestADecorationThatCannotBeTakenOffStays(t *testing.T) {
	w := decorated(t, inPlaceOnly)
	w.forcing["sidecar-1"] = true
	w.decoration("sidecar").Deleting = true
	require.True(t, w.run(always))
	assert.Nil(t, w.decoration("sidecar"))
	assert.Zero(t, w.deleted)
	assert.Equal(t, 6, w.at("sidecar-1"))
}

// TestDeletionDoesNotNeedAValidSpec.
func TestDeletionDoesNotNeedAValidSpec(t *testing.T) {
	w := decorated(t, nil)
	d := w.decoration("sidecar")
	d.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}}
	d.Deleting = true
	require.True(t, w.run(always))
	assert.Nil(t, w.decoration("sidecar"))
	assert.Zero(t, w.at("sidecar-1"))
}

// TestOneDecorationHoldsUpNoOthersDeletion.
func TestOneDecorationHoldsUpNoOthersDeletion(t *testing.T) {
	w := decorated(t, nil)
	w.decorate("agent", inPlaceOnly)
	require.True(t, w.run(always))
	w.forcing["agent-2"], w.forcing["sidecar-1"] = true, true
	w.template("agent", "agent-2")
	w.decoration("sidecar").Deleting = true
	require.True(t, w.run(always))
	assert.Nil(t, w.decoration("sidecar"))
}

// TestFewDecoratedPodsAreLostWhereNewOnesAreBare: webhook-server is away, and the youngest Pod tells.
func TestFewDecoratedPodsAreLostWhereNewOnesAreBare(t *testing.T) {
	w := decorated(t, nil)
	w.bare = true
	w.forcing["sidecar-2"] = true
	w.template("sidecar", "sidecar-2")
	require.True(t, w.run(always))
	assert.LessOrEqual(t, w.deleted, 3)
	assert.GreaterOrEqual(t, w.at("sidecar-1"), 4)
	assert.Contains(t, w.reasons("sidecar"), decoplan.BlockNotInjected)
}

// TestAMomentIsNoFailure: although a Pod that never gets it has let the clock run out.
func TestAMomentIsNoFailure(t *testing.T) {
	w := newWorld()
	w.replicas = map[string]int{"ReplicaSet/web": 6, "Job/task": 1}
	require.True(t, w.run(always))
	w.decorate("sidecar", func(d *decoplan.Decoration) {
		d.Spec.UpdateStrategy.FailurePolicy = appsv1alpha1.RolloutFailureRollback
		d.Spec.ProgressDeadlineSeconds = ptr.To[int32](60)
	})
	require.True(t, w.run(always))
	w.forcing["sidecar-2"] = true
	w.template("sidecar", "sidecar-2")
	require.True(t, w.run(always))
	require.Equal(t, 6, w.at("sidecar-2"))
	for range 60 {
		w.apply(decoplan.Decide(&w.Snapshot), always)
		w.settle()
	}
	for i := range w.Pods {
		w.Pods[i].Available = w.Pods[i].Available && w.Pods[i].View.Name != "web-0007"
	}
	w.apply(decoplan.Decide(&w.Snapshot), always)
	assert.Nil(t, w.decoration("sidecar").Status.Halted)
}

// TestAChangeThatIsRefusedLeavesNoPodOut.
func TestAChangeThatIsRefusedLeavesNoPodOut(t *testing.T) {
	w := decorated(t, nil)
	w.template("sidecar", "sidecar-2")
	for range 200 {
		plan := decoplan.Decide(&w.Snapshot)
		for _, c := range plan.Changes {
			w.find(c.View.Name).Refusal = "denied by policy"
		}
		plan.Changes = nil
		w.apply(plan, always)
		w.settle()
	}
	for i := range w.Pods {
		assert.True(t, w.Pods[i].Available, w.Pods[i].View.Name)
	}
}

// TestWhatIsNotKnownCancelsNothing.
func TestWhatIsNotKnownCancelsNothing(t *testing.T) {
	w := decorated(t, nil)
	w.template("sidecar", "sidecar-2")
	w.log = nil
	isHidden := false
	for range 100 {
		for i := range w.Pods {
			if p := &w.Pods[i]; !isHidden && !p.Available && p.IsTold {
				p.Difference, isHidden = nil, true
			}
		}
		w.apply(decoplan.Decide(&w.Snapshot), always)
		w.settle()
	}
	require.True(t, isHidden)
	begins := map[string]int{}
	for _, line := range w.log {
		var pod string
		if n, _ := fmt.Sscanf(line, "asking for the update of %s", &pod); n == 1 {
			begins[pod]++
		}
	}
	assert.Len(t, begins, 6)
	for pod, n := range begins {
		assert.Equal(t, 1, n, pod)
	}
}

// TestNoWorkloadIsDrained: where no Pods are created in the place of those that are deleted, no more are deleted than may
// be unavailable.
func TestNoWorkloadIsDrained(t *testing.T) {
	for name, before := range map[string]int{"from the start": 0, "in the middle": 3} {
		t.Run(name, func(t *testing.T) {
			w := decorated(t, nil)
			w.forcing["sidecar-2"] = true
			w.template("sidecar", "sidecar-2")
			for w.at("sidecar-2") < before {
				w.apply(decoplan.Decide(&w.Snapshot), always)
				w.settle()
			}
			w.deleted, w.full = 0, true
			for range 600 { // twenty minutes
				w.apply(decoplan.Decide(&w.Snapshot), always)
				w.settle()
			}
			assert.LessOrEqual(t, w.deleted, 1, w.log)
			assert.GreaterOrEqual(t, w.count("ReplicaSet/web"), 5)
			w.full = false
			require.True(t, w.run(always))
			assert.Equal(t, 6, w.at("sidecar-2"))
		})
	}
}

// TestPodsThatAreCreatedWithoutTheRevisionAreNotDeletedAtOnce: those who create them see an older state.
func TestPodsThatAreCreatedWithoutTheRevisionAreNotDeletedAtOnce(t *testing.T) {
	w := decorated(t, nil)
	w.forcing["sidecar-2"] = true
	w.template("sidecar", "sidecar-2")
	w.bare = true
	for range 100 {
		w.apply(decoplan.Decide(&w.Snapshot), always)
		w.settle()
	}
	assert.Equal(t, 3, w.deleted, "at first, and after one and two minutes: %v", w.log)
	assert.Contains(t, w.reasons("sidecar"), decoplan.BlockNotInjected)
}

// TestACancelledDeletionIsNotAskedForAgain.
func TestACancelledDeletionIsNotAskedForAgain(t *testing.T) {
	w := decorated(t, nil)
	w.forcing["sidecar-2"] = true
	w.template("sidecar", "sidecar-2")
	for i := range w.Pods {
		w.Pods[i].View.Annotations = map[string]string{appsv1alpha1.ToDeleteLabel + "-askers": decoplan.OperatorID}
	}
	require.True(t, w.run(always))
	assert.Zero(t, w.deleted)
	assert.Equal(t, map[string]int32{decoplan.BlockCancelled: 6}, w.reasons("sidecar"))
}

// TestPodsThatAreNotManagedKeepNoOtherFromBeingCreatedAgain: they do not pass webhook-server.
func TestPodsThatAreNotManagedKeepNoOtherFromBeingCreatedAgain(t *testing.T) {
	w := decorated(t, nil)
	w.unmanaged["ReplicaSet/others"], w.bare = true, true
	w.replicas["ReplicaSet/others"] = 1
	w.settle()
	w.bare = false
	w.forcing["sidecar-2"] = true
	w.template("sidecar", "sidecar-2")
	require.True(t, w.run(always))
	assert.Equal(t, 6, w.at("sidecar-2"))
}
