package collaset

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// dropIn is a world under the conventions of Kuperator v0.7.
func dropIn(t *testing.T, protocol bool, objects ...client.Object) *world {
	t.Helper()
	w := newWorld(t, protocol, objects...)
	w.r.conventions = setplan.KuperatorV07
	return w
}

func TestNothingThatConventionsFillInIsWritten(t *testing.T) {
	set := collaSet(2)
	set.Spec.UpdateStrategy.RollingUpdate = nil
	storage("1Gi")(&set.Spec)
	w := dropIn(t, false, set)
	w.settle()
	w.change(image("nginx:2"))
	w.settle()
	want := w.set().Spec
	assert.Nil(t, want.UpdateStrategy.RollingUpdate)
	assert.Nil(t, want.UpdateStrategy.MaxSurge)
	assert.Nil(t, want.ProgressDeadlineSeconds)
	assert.Nil(t, want.ScaleStrategy.PersistentVolumeClaimRetentionPolicy)
	for _, claim := range w.claims() {
		assert.True(t, metav1.IsControlledBy(&claim, w.set()), "claims are the CollaSet's")
	}
}

func TestNamesAreRemovedFromTheSpecAsItWasRead(t *testing.T) {
	w := dropIn(t, false, collaSet(3))
	w.settle()
	gone, stays := w.pods()[0].Name, w.pods()[1]
	stays.Finalizers = []string{"test/stays"}
	require.NoError(t, w.store.Update(t.Context(), &stays))

	w.change(both(exclude(gone), replicas(2)))
	w.look() // it is let go
	w.refuse = func(what string, _ client.Object) error {
		if what == "patch CollaSet" {
			return errConflict
		}
		return nil
	}
	w.look()
	assert.Equal(t, []string{gone}, w.set().Spec.ScaleStrategy.PodToExclude, "somebody has written to it meanwhile")
	assert.Equal(t, 1, w.count("patch CollaSet"))

	w.forget()
	w.change(exclude(gone, stays.Name)) // what has not taken effect is not lost
	w.r.protocol = true
	w.refuse = refusing("patch Pod", errAway)
	_, err := w.reconcile()
	require.ErrorIs(t, err, errAway)
	assert.Equal(t, []string{stays.Name}, w.set().Spec.ScaleStrategy.PodToExclude)
	w.forget()
	w.see()
	w.look()
	w.see()
	w.look()
	assert.Nil(t, w.set().Spec.ScaleStrategy.PodToExclude)
	w.see()
	w.forget()
	w.look()
	assert.Zero(t, w.count("patch CollaSet"))
}

// TestANameIsNotRemovedWhileTheCacheLacksItsPod: the user who names a Pod has seen it.
func TestANameIsNotRemovedWhileTheCacheLacksItsPod(t *testing.T) {
	w := dropIn(t, true, collaSet(2))
	w.settle()
	pod := w.pods()[1]
	w.change(func(s *appsv1alpha1.CollaSetSpec) {
		s.ScaleStrategy.PodToDelete = []string{pod.Name, "never-heard-of"}
		s.Replicas = ptr.To[int32](1)
	})
	w.seeAllBut(func(o client.Object) bool { return o.GetName() == pod.Name })
	set := w.set()
	err := w.r.removeNames(t.Context(), &observation{set: set},
		setplan.Names{ToDelete: set.Spec.ScaleStrategy.PodToDelete})
	require.NoError(t, err)
	assert.Equal(t, []string{pod.Name}, w.set().Spec.ScaleStrategy.PodToDelete)
	set = w.set()
	require.ErrorIs(t, w.r.removeNames(t.Context(), &observation{set: set}, setplan.Names{ToDelete: []string{pod.Name}}),
		errStale)
}
