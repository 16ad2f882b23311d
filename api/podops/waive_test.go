package podops_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

const protection = "prot.podopslifecycle.kusionstack.io/x"

// waive takes one step of lifecycle-controller on which a deadline has expired.
func (p *pod) waive(id string, phase podops.Phase) {
	p.View = podops.AdvanceWaiving(p.View, nil, podops.Waived{id: phase}, p.tick()).Apply(p.View)
}

func TestWaivedPreparingLetsTheOperatorActWithTheFinalizerOn(t *testing.T) {
	p := servingPod(t)
	p.Finalizers = []string{protection}
	p.begin(t, "a", "update")
	p.settle()
	require.Equal(t, podops.PhasePreparing, p.phase("a"))

	p.Ready = true // a kubelet that lags
	p.waive("a", podops.PhasePreparing)
	assert.Equal(t, podops.PhasePreparing, p.phase("a"), "never while the Pod is observed to be Ready")
	p.Ready = false
	p.waive("a", podops.PhaseOperate)
	assert.Equal(t, podops.PhasePreparing, p.phase("a"), "another phase was waived")

	p.waive("a", podops.PhasePreparing)
	assert.True(t, podops.Allowed(p.View, "a", "update"))
	assert.Equal(t, []string{protection}, p.Finalizers, "the cooperator's finalizer is its own to remove")
	p.Ready = true
	assert.False(t, podops.Allowed(p.View, "a", "update"))
	p.Ready = false
	p.begin(t, "a", "scale-in")
	p.settle()
	assert.Equal(t, podops.PhasePreparing, p.phase("a"), "the next request waits for the cooperator again")
	p.write(podops.Cancel(p.View, "a", p.tick()))
	p.settle()
	assert.Empty(t, lifecycleKeys(p.View))
}

func TestWaivedOperateIsAsIfFinished(t *testing.T) {
	p := servingPod(t)
	p.begin(t, "a", "update")
	p.settle()
	require.True(t, podops.Allowed(p.View, "a", "update"))
	p.waive("a", podops.PhaseOperate)
	assert.Equal(t, podops.PhasePostCheck, p.phase("a"), "the rules are asked as after any operation")
	assert.False(t, podops.Allowed(p.View, "a", "update"))
	p.settle()
	assert.True(t, p.ServiceAvailable())
}

func TestWaivedPostCheckGoesOnWithoutItsRules(t *testing.T) {
	p := servingPod(t)
	p.onlyPrecheck("a")
	p.begin(t, "a", "update")
	p.settle()
	p.allow = func(podops.Ask) bool { return false }
	p.finish("a", "update")
	p.settle()
	require.Equal(t, podops.PhasePostCheck, p.phase("a"))
	p.waive("a", podops.PhasePostCheck)
	assert.Equal(t, podops.PhaseCompleting, p.phase("a"))
	assert.Equal(t, corev1.ConditionTrue, p.ServiceReady)
}

func TestWaivedCompletingServesWithoutTheMissingCooperator(t *testing.T) {
	p := servingPod(t)
	p.begin(t, "a", "update")
	p.settle()
	c, err := podops.Expect(p.View, "Service/d/s", protection)
	require.NoError(t, err)
	p.write(c)
	p.finish("a", "update")
	p.lifecycle()
	require.Equal(t, podops.PhaseCompleting, p.phase("a"))
	p.waive("a", podops.PhaseCompleting)
	require.Equal(t, podops.PhaseCompleting, p.phase("a"), "not before the Pod is Ready")
	p.settle()
	require.Equal(t, podops.PhaseCompleting, p.phase("a"))
	p.waive("a", podops.PhaseCompleting)
	assert.True(t, p.ServiceAvailable())
	assert.Empty(t, lifecycleKeys(p.View))
	p.begin(t, "b", "update")
	p.settle()
	assert.Equal(t, podops.PhasePreCheck, p.phase("b"), "but it does not go out before the cooperator can hold it")
}

func drawWaived(t *rapid.T) podops.Waived {
	waived := podops.Waived{}
	for _, id := range []string{"a", "b", "c"} {
		if rapid.Bool().Draw(t, "waives "+id) {
			waived[id] = rapid.SampledFrom([]podops.Phase{
				podops.PhasePreCheck, podops.PhasePreparing, podops.PhaseOperate, podops.PhasePostCheck, podops.PhaseCompleting,
			}).Draw(t, "waived phase")
		}
	}
	return waived
}

func TestWaivingNeverOperatesOnAServingPod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		v.Gate, v.Terminal = true, false
		wasReady, wasOffline := v.Ready, v.ServiceReady == corev1.ConditionFalse
		waived := drawWaived(t)
		step := podops.AdvanceWaiving(v, drawVerdicts(t), waived, start)
		after := step.Apply(v)
		for _, o := range podops.Operations(after) {
			if o.Offline() {
				require.Equal(t, corev1.ConditionFalse, after.ServiceReady, "%+v", o)
				require.False(t, after.ServiceAvailable())
			}
			if _, already := v.Labels[podops.WaivedPrefix+"/"+o.ID]; !already && podops.Allowed(after, o.ID, o.Type) &&
				after.Protected() {
				require.False(t, wasReady, "waived while Ready was observed")
				require.True(t, wasOffline)
			}
			if before := podops.PhaseOf(v, o.ID); before == podops.PhasePreCheck {
				verdict := podops.AdvanceWaiving(v, nil, waived, start).Apply(v)
				require.Equal(t, podops.PhasePreCheck, podops.PhaseOf(verdict, o.ID), "PreCheck cannot be waived")
			}
		}
		if after.ServiceAvailable() && !v.ServiceAvailable() {
			require.True(t, wasReady, "in service without having been seen Ready")
		}
	})
}

// A deadline is re-decided with the phases it finds; the same waiver applied
// again finds nothing to do.
func TestWaivingIsIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, verdicts, waived := drawView(t), drawVerdicts(t), drawWaived(t)
		after := v
		for range 3 {
			after = podops.AdvanceWaiving(after, verdicts, waived, start).Apply(after)
		}
		again := podops.AdvanceWaiving(after, verdicts, waived, start.Add(2))
		require.True(t, again.IsZero(), "%+v", again)
	})
}

func TestRuleDetailsGoWithTheStepOutOfTheStage(t *testing.T) {
	detail := podops.RuleDetailPrefix + "/web"
	blocked := func(t *testing.T) *pod {
		p := servingPod(t)
		p.allow = func(podops.Ask) bool { return false }
		p.begin(t, "a", "update")
		p.settle()
		p.Annotations = map[string]string{detail: "{}", "mine": "1"}
		return p
	}
	kept := map[string]string{"mine": "1"}
	t.Run("when the rules agree, in the same patch", func(t *testing.T) {
		p := blocked(t)
		step := podops.Advance(p.View, podops.Verdicts{{ID: "a", Stage: appsv1alpha1.StagePreCheck}: true}, p.tick())
		assert.Equal(t, corev1.ConditionFalse, step.ServiceReady)
		assert.Contains(t, string(step.StatusPatch(p.View, metav1.NewTime(start))), `"annotations":{"`+detail+`":null}`)
		assert.Equal(t, kept, step.Apply(p.View).Annotations)
	})
	t.Run("when the operator cancels, in its own write", func(t *testing.T) {
		p := blocked(t)
		p.write(podops.Cancel(p.View, "a", p.tick()))
		assert.Equal(t, kept, p.Annotations)
	})
	t.Run("when the operator that cancels knows only labels", func(t *testing.T) {
		p := blocked(t)
		p.Labels = maps.Clone(p.Labels)
		p.Labels[podops.UndoOperationTypePrefix+"/a"] = "update"
		p.settle()
		assert.Equal(t, kept, p.Annotations)
	})
	t.Run("not while another operation waits in a stage", func(t *testing.T) {
		p := blocked(t)
		p.begin(t, "b", "update")
		p.onlyPrecheck("b")
		p.settle()
		require.Equal(t, podops.PhaseOperate, p.phase("b"))
		assert.Contains(t, p.Annotations, detail)
	})
	t.Run("alone they are no reason for a write", func(t *testing.T) {
		p := servingPod(t)
		p.Annotations = map[string]string{detail: "{}"}
		assert.False(t, p.lifecycle())
	})
}

func TestExplainFrozen(t *testing.T) {
	p := servingPod(t)
	p.allow = func(podops.Ask) bool { return false }
	p.begin(t, "a", "update")
	wait := podops.ExplainWith(p.View, podops.Surroundings{Frozen: "the namespace is frozen: audit"})[0]
	assert.Equal(t, podops.WaitFrozen, wait.Reason)
	assert.Equal(t, "the namespace is frozen: audit", wait.Message)
	p.allow = func(podops.Ask) bool { return true }
	p.settle()
	assert.Equal(t, podops.WaitOperator, podops.ExplainWith(p.View, podops.Surroundings{Frozen: "x"})[0].Reason,
		"what is out already goes on")
}

// An undo that names an ID of which nothing is on the Pod is taken away (upstream v0.7 leaves it for ever); a key
// without an ID belongs to no operation.
func TestUndoOfAnUnknownIDAndKeysWithoutAnID(t *testing.T) {
	p := servingPod(t)
	p.Labels = maps.Clone(p.Labels)
	p.Labels[podops.UndoOperationTypePrefix+"/ghost"] = "update"
	for _, prefix := range allPrefixes {
		p.Labels[prefix] = "1"
		p.Labels[prefix+"/"] = "1"
	}
	p.settle()
	assert.NotContains(t, p.Labels, podops.UndoOperationTypePrefix+"/ghost")
	assert.Empty(t, podops.Operations(p.View))
	assert.True(t, p.ServiceAvailable(), "and keeps no Pod from serving")
	left := slices.DeleteFunc(lifecycleKeys(p.View), func(k string) bool {
		prefix, id, _ := strings.Cut(k, "/")
		return id == "" && (slices.Contains(allPrefixes, prefix))
	})
	assert.Empty(t, left)
}

func TestMarkOfDeletionStaysWhileAnotherOperationIsUnderWay(t *testing.T) {
	p := servingPod(t)
	p.allow = func(podops.Ask) bool { return false }
	for _, id := range []string{"a", "b"} {
		c, err := podops.Begin(p.View, podops.Request{ID: id, Type: podops.TypeDelete, Deletes: true}, p.tick())
		require.NoError(t, err)
		p.write(c)
	}
	p.write(podops.Cancel(p.View, "a", p.tick()))
	assert.Contains(t, p.Labels, podops.PreparingToDeleteLabel)
	p.write(podops.Cancel(p.View, "b", p.tick()))
	assert.NotContains(t, p.Labels, podops.PreparingToDeleteLabel)
}

func TestStayOfflineKeepsAnOperatedPodOfflineUntilItIsRemoved(t *testing.T) {
	p := servingPod(t)
	p.begin(t, "a", "update")
	p.settle()
	p.Labels = maps.Clone(p.Labels)
	p.Labels[podops.StayOfflineLabel] = ""
	p.finish("a", "update")
	p.settle()
	assert.Equal(t, podops.PhaseCompleting, p.phase("a"))
	assert.Equal(t, corev1.ConditionFalse, p.ServiceReady)
	delete(p.Labels, podops.StayOfflineLabel)
	p.settle()
	assert.True(t, p.ServiceAvailable())
}
