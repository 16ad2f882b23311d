package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/nightly"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// moments of a rollout have come when enough Pods are so.
var moments = []struct {
	name   string
	enough int
	is     func(*corev1.Pod) bool
}{
	{"a Pod is out of service", 1, func(p *corev1.Pod) bool { return !podops.Read(p).Ready }},
	{"two Pods have the new image", 2, func(p *corev1.Pod) bool { return p.Spec.Containers[0].Image == image2 }},
	{"five Pods have the new image", 5, func(p *corev1.Pod) bool { return p.Spec.Containers[0].Image == image2 }},
}

// TestKillAnyProcess kills each component at a moment of a rollout; every night each at every moment, in its own
// rollout. The rollout completes, and no promise breaks. test/fault kills them at their writes.
func TestKillAnyProcess(t *testing.T) {
	if !nightly.Run() {
		killed := make([][]string, len(moments))
		for i, component := range suite.Components() {
			killed[i%len(moments)] = append(killed[i%len(moments)], component)
		}
		killDuringRollout(t, killed)
		return
	}
	for _, component := range suite.Components() {
		t.Run(component, func(t *testing.T) {
			killDuringRollout(t, [][]string{{component}, {component}, {component}})
		})
	}
}

// killDuringRollout kills components at each moment.
func killDuringRollout(t *testing.T, killed [][]string) {
	t.Helper()
	w := alone(t)
	ns := w.namespace(t)
	o := w.observe(t, ns, observer.Options{})
	w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "2"), workload.CollaSet(ns, "web", image1, 8))
	w.waitServing(t, ns, "web", 8, image1)
	before := workload.UIDs(w.pods(t, ns, "web"))
	w.setImage(t, ns, "web", image2)
	for i, moment := range moments {
		await.Nil(t, moment.name, func() error {
			n := 0
			pods := w.pods(t, ns, "web")
			for i := range pods {
				if moment.is(&pods[i]) {
					n++
				}
			}
			if n < moment.enough && workload.AtRest(t.Context(), w.client, ns, "web", 8, image2) != nil {
				return fmt.Errorf("%d of %d", n, moment.enough)
			}
			return nil
		})
		for _, component := range killed[i] {
			require.NoError(t, w.Kill(component))
		}
		for _, component := range killed[i] {
			require.NoError(t, w.Restart(t.Context(), component))
		}
	}
	w.waitServing(t, ns, "web", 8, image2)
	require.Equal(t, before, workload.UIDs(w.pods(t, ns, "web")))
	requireWithin(t, o, ns, 2)
	requireAtRest(t, o, ns)
}
