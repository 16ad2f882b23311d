package bench

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// flickers is of how many Pods Ready is taken away.
const flickers = 50

// BenchmarkHealth takes Ready away from one Pod after the other of a CollaSet at rest, which its kubelet gives back,
// and prints what collaset-controller spends on each of these events.
func BenchmarkHealth(b *testing.B) {
	sizes := numbers(b, "BENCH_SIZES", "250,5000")
	a := newArenaOf(b, suite.Config{Nodes: growthNodes}, fakekubelet.Options{})
	for _, pods := range sizes {
		namespace := a.namespace(fmt.Sprintf("health-%d", pods))
		m := newMeter(b, a.pods, namespace, nil)
		m.lap(serving(oldImage))
		set := a.createSetOf(templateOn("", "web"), namespace, "web", pods)
		require.Equal(b, pods, m.wait(b.Context(), pods, patience), "Pods serve")
		a.flicker(m, set, pods)
		a.merge(set, `{"spec":{"replicas":0}}`)
		a.until("no Pod is left", func() bool { return m.seen() == 0 })
		m.close()
	}
	require.NoError(b, a.suite.Died())
}

func (a arena) flicker(m *meter, set *appsv1alpha1.CollaSet, pods int) {
	names := slices.Sorted(maps.Keys(m.names()))
	next := 0
	once := func() {
		name := names[next%len(names)]
		next++
		taken := []byte(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
		pod, err := a.pods.CoreV1().Pods(set.Namespace).Patch(a.Context(), name, types.StrategicMergePatchType, taken,
			metav1.PatchOptions{}, "status")
		require.NoError(a, err)
		require.NoError(a, m.await(a.Context(), name, func(p *corev1.Pod) bool {
			newer, err := resourceversion.CompareResourceVersion(p.ResourceVersion, pod.ResourceVersion)
			require.NoError(a, err)
			return newer > 0 && podops.Read(p).Ready
		}))
	}
	before := a.decided()
	for range flickers {
		once()
	}
	a.until("the last is decided on", func() bool {
		require.NoError(a, a.Get(a.Context(), client.ObjectKeyFromObject(set), set))
		return int(set.Status.ReadyReplicas) == pods
	})
	spent := a.decided().less(before)
	a.result(benchresult.Figure{
		Goal: "P14", Name: "following one Pod's health at rest, in a cluster",
		Params: map[string]float64{"pods": float64(pods)},
		Values: []float64{spent.sets * 1e6 / (2 * flickers)},
		Note:   fmt.Sprintf("%d events, %.0f decisions", 2*flickers, spent.ofSets),
	})
}
