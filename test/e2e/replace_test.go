package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// TestReplacement updates a CollaSet whose rule lets no Pod out of service below the wanted number. Recreating or
// updating in place would wait for ever; replacing has another Pod in service first.
func TestReplacement(t *testing.T) {
	const n, most = 6, 2
	w := together(t)
	ns := w.namespace(t)
	o := w.observe(t, ns, observer.Options{})
	set := workload.CollaSet(ns, "web", image1, n)
	set.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateReplace
	set.Spec.UpdateStrategy.MaxSurge = ptr.To(intstr.FromInt32(most))
	all := workload.Rule(ns, "web", "0")
	all.Spec.Rules[0].AvailablePolicy = &appsv1alpha1.AvailableRule{MinAvailableValue: ptr.To(intstr.FromString("100%"))}
	w.create(t, workload.Service(ns, "web"), all, set)
	w.waitServing(t, ns, "web", n, image1)
	w.waitListed(t, ns, n)
	before := workload.UIDs(w.pods(t, ns, "web"))

	t.Log("an update")
	begin := time.Now()
	w.setImage(t, ns, "web", image2)
	w.waitServedBy(t, ns, n, n+most, func() error { return workload.AtRest(t.Context(), w.client, ns, "web", n, image2) })
	t.Logf("it took %s", time.Since(begin).Round(100*time.Millisecond))
	for _, uid := range workload.UIDs(w.pods(t, ns, "web")) {
		require.NotContains(t, before, uid)
	}
	sum, _ := w.logWrites(t, ns, begin, n)
	assert.Zero(t, sum.NoOps, "writes that change nothing")

	t.Log("one Pod, by its label")
	chosen := w.pods(t, ns, "web")[0]
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"job"}}}`, appsv1alpha1.ToReplaceLabel)
	require.NoError(t, w.client.Patch(t.Context(), &chosen, client.RawPatch(types.MergePatchType, []byte(patch))))
	w.waitServedBy(t, ns, n, n+1, func() error {
		if err := gone(w.client.Get(t.Context(), keyOf(&chosen), &corev1.Pod{})); err != nil {
			return err
		}
		return workload.AtRest(t.Context(), w.client, ns, "web", n, image2)
	})
	report := o.Settled(t.Context())
	require.NoError(t, report.Err())
	require.Zero(t, report.Gaps, "the observer missed nothing")
	requireAtRest(t, o, ns)
}

// waitServedBy waits for something, and demands meanwhile that the Service has at least so many endpoints, and that
// there are no more Pods than so many, but for those that are being deleted.
func (w *world) waitServedBy(t *testing.T, namespace string, endpoints, pods int, check func() error) {
	t.Helper()
	await.Nil(t, "the goal", func() error {
		slices := &discoveryv1.EndpointSliceList{}
		require.NoError(t, w.client.List(t.Context(), slices, client.InNamespace(namespace),
			client.MatchingLabels{discoveryv1.LabelServiceName: "web"}))
		ready := 0
		for _, slice := range slices.Items {
			for _, e := range slice.Endpoints {
				if ptr.Deref(e.Conditions.Ready, false) {
					ready++
				}
			}
		}
		require.GreaterOrEqual(t, ready, endpoints, "the Service has fewer endpoints than before")
		live := 0
		for _, p := range w.pods(t, namespace, "web") {
			if p.DeletionTimestamp == nil {
				live++
			}
		}
		require.LessOrEqual(t, live, pods)
		return check()
	})
}
