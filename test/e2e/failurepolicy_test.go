package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/observer"
)

// TestABadRolloutGoesBack sets an image that cannot be pulled, with every component at work. The rule lets two Pods out at a
// time; after the deadline they serve the image before again, in the operation that they are in, and no other Pod was
// touched.
func TestABadRolloutGoesBack(t *testing.T) {
	w := everything(t)
	ns := w.namespace(t)
	o := w.observe(t, observer.Options{})
	set := collaSet(ns, "web", 6)
	set.Spec.ProgressDeadlineSeconds = ptr.To[int32](5)
	set.Spec.UpdateStrategy.FailurePolicy = appsv1alpha1.RolloutFailureRollback
	w.create(t, service(ns, "web"), rule(ns, "web", "2"), set)
	w.waitServing(t, ns, "web", 6, image1)
	before := uids(w.pods(t, ns, "web"))
	require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(set), set))
	first := set.Status.CurrentRevision

	w.setImage(t, ns, "web", "web:non-exist")
	eventually(t, "the rollout is halted", func() error {
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
	require.Equal(t, before, uids(w.pods(t, ns, "web")), "in place there and back")
	require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(set), set))
	require.Equal(t, first, set.Status.CurrentRevision)
	require.NotEqual(t, first, set.Status.UpdatedRevision)
	require.True(t, meta.IsStatusConditionTrue(set.Status.Conditions, appsv1alpha1.CollaSetStalled))
	requireWithin(t, o, ns, 2)

	t.Log("another image goes on")
	w.setImage(t, ns, "web", image2)
	w.waitServing(t, ns, "web", 6, image2)
	require.Equal(t, before, uids(w.pods(t, ns, "web")))
	requireWithin(t, o, ns, 2)
}
