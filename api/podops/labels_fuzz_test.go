package podops_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// parseLabels reads "key=value" lines; anything at all may stand there.
func parseLabels(text string) map[string]string {
	labels := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		labels[key] = value
	}
	return labels
}

// viewOf is a Pod with these labels; bits are everything else about it.
func viewOf(labels map[string]string, bits uint8) podops.View {
	v := podops.View{
		Name: "p", UID: "u", Labels: labels,
		Gate: bits&1 != 0, Ready: bits&2 != 0, ContainersReady: bits&4 != 0, Terminal: bits&8 != 0, Terminating: bits&16 != 0,
		ServiceReady: []corev1.ConditionStatus{"", corev1.ConditionTrue, corev1.ConditionFalse, "Odd"}[bits>>5&3],
	}
	if bits&128 != 0 {
		v.Finalizers = []string{cooperatorsFinalizer}
	}
	return v
}

// FuzzLabels: the protocol is defined for every label set. Nothing panics,
// Advance comes to rest at once, and whatever is undone is gone.
func FuzzLabels(f *testing.F) {
	for _, seed := range []string{
		"",
		"kusionstack.io/control=true\npodopslifecycle.kusionstack.io/service-available=1",
		"operating.podopslifecycle.kusionstack.io/collaset=1700000000000000000\noperation-type.podopslifecycle.kusionstack.io/collaset=update",
		"operating.podopslifecycle.kusionstack.io/a=2\npre-checked.podopslifecycle.kusionstack.io/a=1\noperation-permission.podopslifecycle.kusionstack.io/update=1\n" +
			"operation-type.podopslifecycle.kusionstack.io/a=update\noperate.podopslifecycle.kusionstack.io/a=1",
		"operated.podopslifecycle.kusionstack.io/a=1\ncompleting.podopslifecycle.kusionstack.io/a=1\noperate.podopslifecycle.kusionstack.io/b=1",
		"undo-operation-type.podopslifecycle.kusionstack.io/nobody=update",
		"operating.podopslifecycle.kusionstack.io=1\noperating.podopslifecycle.kusionstack.io/=1\n/a=1\n.podopslifecycle.kusionstack.io/a=1",
		"operating.podopslifecycle.kusionstack.io/a/b=-9223372036854775808\npre-check.podopslifecycle.kusionstack.io/a/b=soon",
		"pre-checked.podopslifecycle.kusionstack.io/a=99999999999999999999\ndone-operation-type.podopslifecycle.kusionstack.io/a=",
	} {
		for _, bits := range []uint8{0, 1 | 2 | 4 | 32, 1 | 64, 8, 16} {
			f.Add(seed, bits, uint8(3))
		}
	}
	f.Fuzz(func(t *testing.T, text string, bits, says uint8) {
		v := viewOf(parseLabels(text), bits)
		verdicts := podops.Verdicts{}
		for n, o := range podops.Operations(v) {
			require.Equal(t, o, podops.OperationOf(v, o.ID))
			require.Equal(t, o.Phase, podops.PhaseOf(v, o.ID))
			verdicts[podops.Ask{ID: o.ID, Stage: appsv1alpha1.StagePreCheck}] = says>>(n%4)&1 != 0
			verdicts[podops.Ask{ID: o.ID, Stage: appsv1alpha1.StagePostCheck}] = says>>(n%4+4)&1 != 0
		}
		step := podops.Advance(v, verdicts, start)
		after := step.Apply(v)
		if step.ServiceReady != "" {
			after = podops.Advance(after, verdicts, start).Apply(after) // its readiness was news
		}
		require.True(t, podops.Advance(after, verdicts, start.Add(time.Second)).IsZero(), "not at rest: %v", after.Labels)
		require.True(t, podops.Structural(podops.Structural(v, start).Apply(v), start).IsZero())
		podops.Explain(v, nil)
		everyOperation(t, v)
	})
}

// everyOperation does to each operation on the Pod all that an operator can do.
func everyOperation(t *testing.T, v podops.View) {
	for _, o := range podops.Operations(v) {
		if v.Terminating {
			require.True(t, podops.Cancel(v, o.ID, start).IsZero())
			continue
		}
		require.Equal(t, podops.PhaseNone, podops.PhaseOf(podops.Cancel(v, o.ID, start).Apply(v), o.ID), "of %s in %s",
			o.ID, o.Phase)
		podops.Finish(v, o.ID, o.Type, start)
		request := podops.Request{ID: o.ID, Type: "another"}
		begin, err := podops.Begin(v, request, start)
		if err == nil {
			begun := begin.Apply(v)
			require.True(t, podops.IsDuring(begun, o.ID, "another"))
			require.True(t, o.Type == "another" || !podops.Allowed(begun, o.ID, "another"),
				"a change of type in %s is allowed at once", o.Phase)
		}
	}
	podops.Leave(v, cooperatorsFinalizer, start)
	podops.Join(v, cooperatorsFinalizer, start)
}
