package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// TestABadRolloutGoesBack sets an image that cannot be pulled, with every component at work. The rule lets two Pods
// out at a time; after the deadline they serve the image before again, in the operation that they are in, and no
// other Pod was touched.
func TestABadRolloutGoesBack(t *testing.T) {
	w := together(t)
	ns := w.namespace(t)
	o := w.observe(t, ns, observer.Options{})
	set := workload.CollaSet(ns, "web", image1, 6)
	// a rollout that works is not stopped, on however busy a machine
	set.Spec.ProgressDeadlineSeconds = ptr.To[int32](3600)
	set.Spec.UpdateStrategy.FailurePolicy = appsv1alpha1.RolloutFailureRollback
	w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "2"), set)
	w.waitServing(t, ns, "web", 6, image1)
	before := workload.UIDs(w.pods(t, ns, "web"))
	await.Nil(t, "the status to tell of it", func() error {
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(set), set); err != nil ||
			meta.IsStatusConditionTrue(set.Status.Conditions, appsv1alpha1.CollaSetReady) {
			return err
		}
		return fmt.Errorf("%+v", set.Status.Conditions)
	})
	first := set.Status.CurrentRevision

	const broken = "web:non-exist"
	w.setImage(t, ns, "web", broken)
	await.Nil(t, "Pods that are broken", func() error {
		n := 0
		for _, p := range w.pods(t, ns, "web") {
			if p.Spec.Containers[0].Image == broken {
				n++
			}
		}
		if n != 2 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	w.patch(t, ns, "web", `{"spec":{"progressDeadlineSeconds":5}}`)
	await.Nil(t, "the rollout is halted", func() error {
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(set), set); err != nil {
			return err
		}
		if set.Status.Halted == nil {
			return fmt.Errorf("%+v", set.Status.Conditions)
		}
		return nil
	})
	require.Equal(t, first, set.Status.Halted.RollbackTo)
	w.waitServing(t, ns, "web", 6, image1)
	require.Equal(t, before, workload.UIDs(w.pods(t, ns, "web")), "in place there and back")
	w.patch(t, ns, "web", `{"spec":{"progressDeadlineSeconds":3600}}`)
	await.Nil(t, "the status of the present spec", func() error {
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(set), set); err != nil ||
			set.Status.ObservedGeneration == set.Generation {
			return err
		}
		return fmt.Errorf("it is of generation %d", set.Status.ObservedGeneration)
	})
	require.Equal(t, first, set.Status.CurrentRevision)
	require.NotEqual(t, first, set.Status.UpdatedRevision)
	require.True(t, meta.IsStatusConditionTrue(set.Status.Conditions, appsv1alpha1.CollaSetStalled))
	requireWithin(t, o, ns, 2)

	t.Log("another image goes on")
	w.setImage(t, ns, "web", image2)
	w.waitServing(t, ns, "web", 6, image2)
	require.Equal(t, before, workload.UIDs(w.pods(t, ns, "web")))
	requireWithin(t, o, ns, 2)
}
