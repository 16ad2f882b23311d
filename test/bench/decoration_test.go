package bench

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// decorations is how many PodDecorations there are in the namespace.
const decorations = 20

// BenchmarkDecoration changes PodDecorations of a tenth and of a hundredth of the Pods of a namespace with twenty
// PodDecorations, and of all of them: a label, which restarts nothing, and the image of a sidecar, in place. What a
// change costs for each Pod that it selects should depend on neither number.
func BenchmarkDecoration(b *testing.B) {
	a := newArenaOf(b, suite.Config{Nodes: growthNodes}, fakekubelet.Options{})
	var costs []map[string]float64
	sizes := numbers(b, "BENCH_SIZES", "1000,10000")
	for _, pods := range sizes {
		costs = append(costs, a.decorated(pods))
	}
	last := costs[len(costs)-1]
	of := map[string]float64{"pods": float64(sizes[len(sizes)-1])}
	a.result(benchresult.Figure{Goal: "P26", Name: "CPU for each Pod, a label of 1,000 Pods / of 100", Params: of,
		Values: []float64{last["tenth"] / last["hundredth"]}})
	if len(costs) > 1 {
		a.result(benchresult.Figure{Goal: "P26", Name: "CPU for each Pod, a label of 100 Pods among 10,000 / among 1,000",
			Params: of, Values: []float64{last["hundredth"] / costs[0]["tenth"]}})
	}
	require.NoError(b, a.suite.Died())
}

// decorated measures one namespace, and returns what poddecoration-controller used of a core for each Pod that a change
// of a label selects, by what that was.
func (a arena) decorated(pods int) map[string]float64 {
	namespace := a.namespace(fmt.Sprintf("decoration-%d", pods))
	of := map[string]float64{"pods": float64(pods)}
	all := []*appsv1alpha1.PodDecoration{
		decorationOf(namespace, "all", metav1.LabelSelector{}),
		decorationOf(namespace, "tenth", metav1.LabelSelector{MatchLabels: map[string]string{"tenth": "0"}}),
		decorationOf(namespace, "hundredth", metav1.LabelSelector{MatchLabels: map[string]string{"hundredth": "0"}}),
	}
	all[1].Spec.Template.Containers = []*appsv1alpha1.ContainerPatch{{Container: corev1.Container{Name: "sidecar",
		Image: oldImage}}}
	for i := len(all); i < decorations; i++ {
		all = append(all, decorationOf(namespace, fmt.Sprintf("other-%d", i),
			metav1.LabelSelector{MatchLabels: map[string]string{"tenth": fmt.Sprint(i % 10)}}))
	}
	for _, d := range all {
		require.NoError(a, a.Create(a.Context(), d))
	}
	for _, d := range all {
		a.until("PodDecoration "+d.Name+" has a revision", func() bool { return a.has(d) })
	}
	m := newMeter(a.B, a.pods, namespace, nil)
	defer m.close()
	m.lap(func(p *corev1.Pod) bool { return podops.Read(p).ServiceAvailable() })
	names := numbered("web-", pods)
	place := map[string]int{}
	for i, name := range names {
		place[name] = i
	}
	a.inFlight(names, func(name string) error {
		i := place[name]
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue,
			"tenth":                   fmt.Sprint(i % 10), "hundredth": fmt.Sprint(i % 100),
		}}}
		pod.Spec = templateOn(fmt.Sprintf("node-%d", i%growthNodes), "web").Spec
		_, err := a.pods.CoreV1().Pods(namespace).Create(a.Context(), pod, metav1.CreateOptions{})
		return err
	})
	require.Equal(a, pods, m.wait(a.Context(), pods, patience), "Pods serve")
	a.until("the PodDecorations are complete", func() bool { return a.has(all[0]) && a.has(all[1]) })
	a.say("%d Pods serve with %d PodDecorations", pods, decorations)

	largest := a.watchSizes(namespace)
	costs := map[string]float64{}
	leg := func(d *appsv1alpha1.PodDecoration, what string, selected int, patch string, goal func(*corev1.Pod) bool) {
		s := a.measure(func() {
			m.lap(goal)
			require.NoError(a, a.Patch(a.Context(), d, client.RawPatch(types.MergePatchType, []byte(patch))))
			require.Equal(a, selected, m.wait(a.Context(), selected, patience), "Pods have it")
			a.until("status says so", func() bool { return a.has(d) })
		}, namespace)
		toPods := suite.Sum(suite.PodWrites(s.requests))
		each := func(total float64) float64 { return total / float64(selected) }
		figure := func(name, unit string, value float64) {
			a.result(benchresult.Figure{Name: name, Unit: unit, Series: fmt.Sprintf("%s of %d", what, selected), Params: of,
				Values: []float64{value}})
		}
		figure("time", "s", s.took.Seconds())
		figure("writes to Pods", "writes/Pod", each(float64(toPods.Writes)))
		figure("CPU of poddecoration-controller", "ms/Pod", each(s.cpu[suite.PodDecoration]*1e3))
		a.say("   CPU ms/Pod: %s", s.perPod(selected))
		if what == "a label" {
			costs[d.Name] = each(s.cpu[suite.PodDecoration])
		}
	}
	label := func(d *appsv1alpha1.PodDecoration, selected int) {
		leg(d, "a label", selected, labelPatch(d.Name, "new"),
			func(p *corev1.Pod) bool { return p.Labels["example.com/"+d.Name] == "new" })
	}
	label(all[2], pods/100)
	label(all[1], pods/10)
	leg(all[1], "a sidecar in place", pods/10, fmt.Sprintf(
		`{"spec":{"template":{"containers":[{"name":"sidecar","image":%q}]}}}`, newImage), func(p *corev1.Pod) bool {
		v := podops.Read(p)
		return p.Spec.Containers[0].Image == newImage && v.Ready && v.ServiceAvailable() && len(podops.Operations(v)) == 0
	})
	label(all[0], pods)
	bytes, what := largest()
	a.result(benchresult.Figure{Goal: "P26", Name: "largest object, PodDecorations", Params: of,
		Values: []float64{float64(bytes) / 1024}, Note: what})
	a.say("resident memory of %s: %.0f MB", suite.PodDecoration, a.resident(suite.PodDecoration, "VmRSS"))
	return costs
}

// decorationOf sets a label on the Pods that it selects.
func decorationOf(namespace, name string, selector metav1.LabelSelector) *appsv1alpha1.PodDecoration {
	d := &appsv1alpha1.PodDecoration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	d.Spec.Selector = &selector
	d.Spec.Template.Metadata = []*appsv1alpha1.PodDecorationPodTemplateMeta{{
		PatchPolicy: appsv1alpha1.OverwriteMetadata, Labels: map[string]string{"example.com/" + name: "old"}}}
	return d
}

// labelPatch has such a decoration set another value.
func labelPatch(name, value string) string {
	return fmt.Sprintf(`{"spec":{"template":{"metadata":[{"patchPolicy":"Overwrite","labels":{"example.com/%s":%q}}]}}}`,
		name, value)
}

// has reports whether all Pods of a PodDecoration have its present revision, by its status.
func (a arena) has(d *appsv1alpha1.PodDecoration) bool {
	a.Helper()
	require.NoError(a, a.Get(a.Context(), client.ObjectKeyFromObject(d), d))
	s := &d.Status
	return s.ObservedGeneration == d.Generation && s.UpdatedRevision != "" && s.CurrentRevision == s.UpdatedRevision
}
