package podops_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

var allPrefixes = []string{
	podops.OperatingPrefix, podops.OperationTypePrefix, podops.PreCheckPrefix, podops.PreCheckedPrefix,
	podops.PermissionPrefix, podops.PreparingPrefix, podops.OperatePrefix, podops.OperatedPrefix,
	podops.DoneOperationTypePrefix, podops.PostCheckPrefix, podops.PostCheckedPrefix, podops.CompletingPrefix,
	podops.UndoOperationTypePrefix, podops.WaivedPrefix,
}

var opTypes = []string{"update", "scale-in", "restart"}

// drawView draws any Pod at all: any subset of all keys of up to three IDs,
// with any readiness, finalizers and marks.
func drawView(t *rapid.T) podops.View {
	v := podops.View{
		Name: "p", UID: "u", Labels: map[string]string{},
		Gate: rapid.Bool().Draw(t, "gate"),
		ServiceReady: rapid.SampledFrom([]corev1.ConditionStatus{"", corev1.ConditionTrue, corev1.ConditionFalse}).Draw(t,
			"serviceReady"),
		Ready:           rapid.Bool().Draw(t, "ready"),
		ContainersReady: rapid.Bool().Draw(t, "containersReady"),
		Terminal:        rapid.IntRange(0, 9).Draw(t, "terminal") == 0,
	}
	stamps := []string{"1700000000000000000", "1700000000000000001", "", "soon"}
	for _, id := range []string{"a", "b", "c"}[:rapid.IntRange(0, 3).Draw(t, "ids")] {
		for _, prefix := range allPrefixes {
			if !rapid.Bool().Draw(t, prefix+"/"+id) {
				continue
			}
			switch prefix {
			case podops.OperationTypePrefix, podops.DoneOperationTypePrefix:
				v.Labels[prefix+"/"+id] = rapid.SampledFrom(append([]string{""}, opTypes...)).Draw(t, "type")
			case podops.PermissionPrefix:
				v.Labels[prefix+"/"+rapid.SampledFrom(opTypes).Draw(t, "permitted")] = stamps[0]
			default:
				v.Labels[prefix+"/"+id] = rapid.SampledFrom(stamps).Draw(t, "stamp")
			}
		}
	}
	for _, mark := range []string{podops.ServiceAvailableLabel, podops.CreatingLabel, podops.RecreatedLabel,
		podops.PreparingToDeleteLabel, podops.StayOfflineLabel, podops.UnheldLabel} {
		if rapid.IntRange(0, 3).Draw(t, mark) == 0 {
			v.Labels[mark] = stamps[0]
		}
	}
	if rapid.Bool().Draw(t, "protected") {
		v.Finalizers = []string{"prot.podopslifecycle.kusionstack.io/x"}
	}
	if rapid.Bool().Draw(t, "expected") {
		v.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"Service/d/s":"prot.podopslifecycle.kusionstack.io/x"}}`}
	}
	return v
}

func drawVerdicts(t *rapid.T) podops.Verdicts {
	verdicts := podops.Verdicts{}
	for _, id := range []string{"a", "b", "c"} {
		for _, stage := range []appsv1alpha1.TransitionRuleStage{appsv1alpha1.StagePreCheck, appsv1alpha1.StagePostCheck} {
			verdicts[podops.Ask{ID: id, Stage: stage}] = rapid.Bool().Draw(t, "verdict")
		}
	}
	return verdicts
}

func TestAdvanceIsIdempotentForAnyLabels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, verdicts := drawView(t), drawVerdicts(t)
		step := podops.Advance(v, verdicts, start)
		after := step.Apply(v)
		again := podops.Advance(after, verdicts, start.Add(1))
		if step.ServiceReady != "" {
			// The readiness that the step wrote is news; once more, and it rests.
			after = again.Apply(after)
			again = podops.Advance(after, verdicts, start.Add(2))
		}
		require.True(t, again.IsZero(), "second step %+v after %+v", again, after.Labels)
	})
}

func TestAdvanceIsDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, verdicts := drawView(t), drawVerdicts(t)
		require.Equal(t, podops.Advance(v, verdicts, start), podops.Advance(v, verdicts, start))
	})
}

func TestNobodyOperatesOnAServingPod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		v.Terminal = false
		v.Gate = true
		after := podops.Advance(v, drawVerdicts(t), start).Apply(v)
		for _, o := range podops.Operations(after) {
			if o.Offline() {
				require.Equal(t, corev1.ConditionFalse, after.ServiceReady, "%+v", o)
				require.False(t, after.ServiceAvailable())
			}
			if podops.Allowed(after, o.ID, o.Type) {
				require.False(t, after.Ready)
				_, waived := after.Labels[podops.WaivedPrefix+"/"+o.ID]
				require.True(t, waived || !after.Protected())
				require.Equal(t, corev1.ConditionFalse, after.ServiceReady)
			}
		}
	})
}

func TestNoStepWithoutAVerdict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		before := map[string]podops.Operation{}
		for _, o := range podops.Operations(v) {
			before[o.ID] = o
		}
		after := podops.Advance(v, nil, start).Apply(v)
		for _, o := range podops.Operations(after) {
			if b := before[o.ID]; b.Phase == podops.PhasePreCheck || b.Phase == podops.PhaseRequested {
				require.Equal(t, podops.PhasePreCheck, o.Phase)
			}
			if b := before[o.ID]; b.Phase == podops.PhaseFinished || b.Phase == podops.PhasePostCheck {
				require.Equal(t, podops.PhasePostCheck, o.Phase)
			}
		}
	})
}

// Whatever the labels were, a Pod whose operators finish or cancel, whose
// cooperators cooperate and whose rules agree comes back to service and keeps
// nothing of any operation.
func TestEveryPodComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPod()
		p.View = drawView(t)
		p.Terminal = false
		delete(p.Labels, podops.StayOfflineLabel)
		delete(p.Labels, podops.UnheldLabel) // lifecycle-controller does
		mix := rapid.SliceOfN(rapid.IntRange(0, 7), 0, 20).Draw(t, "interleaving")
		for _, m := range mix {
			p.act(t, m)
		}
		for range 60 {
			p.kubelet()
			p.cooperate()
			moved := p.lifecycle()
			for _, o := range podops.Operations(p.View) {
				if podops.Allowed(p.View, o.ID, o.Type) {
					p.finish(o.ID, o.Type)
					moved = true
				}
				if o.Type == "" && o.Phase == podops.PhasePreCheck {
					p.write(podops.Cancel(p.View, o.ID, p.tick()))
					moved = true
				}
			}
			if !moved && p.ServiceAvailable() {
				break
			}
		}
		require.True(t, p.ServiceAvailable(), "labels %v, waits %+v", p.Labels, podops.Explain(p.View, nil))
		require.Empty(t, podops.Operations(p.View))
		leftovers := slices.DeleteFunc(lifecycleKeys(p.View), func(k string) bool {
			return len(k) > len(podops.OperationTypePrefix) && k[:len(podops.OperationTypePrefix)] == podops.OperationTypePrefix
		})
		require.Empty(t, leftovers)
		require.Empty(t, podops.Explain(p.View, nil))
	})
}

// act is one thing that some participant may do at any time.
func (p *pod) act(t *rapid.T, kind int) {
	id := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id")
	opType := rapid.SampledFrom(opTypes).Draw(t, "opType")
	switch kind {
	case 0, 1:
		p.begin(t, id, opType)
	case 2:
		if podops.Allowed(p.View, id, opType) {
			p.finish(id, opType)
		}
	case 3:
		p.write(podops.Cancel(p.View, id, p.tick()))
	case 4:
		p.lifecycle()
	case 5:
		p.kubelet()
	case 6:
		p.cooperate()
	case 7:
		p.Ready = !p.Ready // the application or a lagging kubelet
	}
}

// cooperate is a cooperator for the finalizer that the Pod expects or carries.
func (p *pod) cooperate() {
	const fin = "prot.podopslifecycle.kusionstack.io/x"
	switch {
	case podops.MustLeave(p.View):
		p.write(podops.Leave(p.View, fin, p.tick()))
	case podops.MayJoin(p.View):
		p.write(podops.Join(p.View, fin, p.tick()))
	}
}

func TestExplainNamesSomethingForEveryWait(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		v = podops.Advance(v, nil, start).Apply(v)
		waits := podops.Explain(v, nil)
		if len(podops.Operations(v)) == 0 && (v.ServiceAvailable() || v.Terminal) {
			require.Empty(t, waits)
			return
		}
		require.NotEmpty(t, waits)
		for _, w := range waits {
			require.NotEmpty(t, w.Reason)
			require.NotEmpty(t, w.Message)
		}
	})
}
