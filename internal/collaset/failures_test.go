package collaset

import (
	"cmp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// short is what a conflict waits at most.
const short = 100 * time.Millisecond

// looksAgain checks that a round ended as on an old view: no error, and another one soon.
func looksAgain(t *testing.T, result ctrl.Result, err error) {
	t.Helper()
	require.NoError(t, err, "the view was old, not wrong")
	assert.Positive(t, result.RequeueAfter)
	assert.LessOrEqual(t, result.RequeueAfter, short)
}

func TestRefusedCreations(t *testing.T) {
	for name, answer := range errOfCreation {
		t.Run(name+" stops creations, and nothing else", func(t *testing.T) {
			w := newWorld(t, true, collaSet(2))
			w.settle()
			w.change(both(replicas(9), image("nginx:2")))
			w.refuse = func(what string, o client.Object) error {
				if what == "create Pod" && o.GetLabels()[appsv1alpha1.InstanceIDLabel] == "3" {
					return answer
				}
				return nil
			}
			_, err := w.reconcile()
			require.ErrorIs(t, err, answer, "back-off does the rest")
			assert.ErrorContains(t, err, "creating the Pod of instance ID 3")
			assert.Equal(t, 3, w.count("create Pod"), "one, then two, then no more")
			assert.Len(t, w.pods(), 4)
			for _, pod := range w.pods()[:2] {
				assert.True(t, podops.IsDuring(podops.Read(&pod), "collaset", podops.TypeUpdate), "updates begin all the same")
			}
			scale := w.condition(appsv1alpha1.CollaSetScale)
			assert.Equal(t, metav1.ConditionFalse, scale.Status)
			assert.Equal(t, string(appsv1alpha1.ReasonScaleOutFailed), scale.Reason)
			assert.Contains(t, scale.Message, answer.Error())
			assert.EqualValues(t, 2, w.set().Status.Replicas, "what was observed, not what was attempted")

			w.forget()
			w.see()
			_, err = w.reconcile()
			require.NoError(t, err)
			assert.Len(t, w.pods(), 9)
			w.see()
			w.clock.Step(time.Second)
			_, err = w.reconcile()
			require.NoError(t, err)
			assert.Equal(t, metav1.ConditionTrue, w.condition(appsv1alpha1.CollaSetScale).Status)
		})
	}
}

// heldBack is a set of one Pod whose new Pods belong to the old revision, by its partition.
func heldBack(t *testing.T) (w *world, old string) {
	t.Helper()
	w = newWorld(t, true, collaSet(1))
	w.settle()
	old = w.set().Status.UpdatedRevision
	w.change(both(replicas(3), partition(3), image("nginx:2")))
	return w, old
}

func TestRevisionOfASlotWhosePodIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		answer       error
		wantAdvanced bool
	}{
		"a quota may be raised, so the revision stays":              {answer: errQuota},
		"a server error passes, so the revision stays":              {answer: errAway},
		"an invalid Pod never gets better, so the revision goes on": {answer: errUnfit, wantAdvanced: true},
	} {
		t.Run(name, func(t *testing.T) {
			w, old := heldBack(t)
			w.refuse = refusing("create Pod", tc.answer)
			for round := range 3 {
				w.see()
				_, err := w.reconcile()
				require.ErrorIs(t, err, tc.answer)
				assert.Equal(t, round+1, w.count("create Pod"), "it is tried again, one at a time")
				w.clock.Step(time.Second)
			}
			updated := w.set().Status.UpdatedRevision
			require.NotEqual(t, old, updated)
			entries := w.entries()
			assert.Equal(t, old, entries[0][appsv1alpha1.ContextRevision], "its Pod exists")
			assert.Equal(t, old, entries[2][appsv1alpha1.ContextRevision], "it was not tried yet")
			want := old
			if tc.wantAdvanced {
				want = updated
			}
			assert.Equal(t, want, entries[1][appsv1alpha1.ContextRevision])
			assert.Equal(t, appsv1alpha1.ContextTrue, entries[1][appsv1alpha1.ContextPodJustCreate])

			w.forget()
			w.see()
			_, err := w.reconcile()
			require.NoError(t, err)
			require.Len(t, w.pods(), 3)
			assert.Equal(t, want, w.pods()[1].Labels[appsv1.ControllerRevisionHashLabelKey])
			assert.Equal(t, old, w.pods()[2].Labels[appsv1.ControllerRevisionHashLabelKey])
		})
	}
}

func TestPodThatWasThereComesBackOnlyAtItsRevision(t *testing.T) {
	w, old := heldBack(t)
	w.settle()
	victim := w.pods()[1]
	require.NoError(t, w.store.Delete(t.Context(), &victim))
	w.see()
	w.refuse = refusing("create Pod", errUnfit)
	_, err := w.reconcile()
	require.ErrorIs(t, err, errUnfit)
	assert.Equal(t, old, w.entries()[1][appsv1alpha1.ContextRevision])
	assert.Zero(t, w.count("update ResourceContext"))
}

func TestConflictOnOnePodLeavesItsSiblingsAlone(t *testing.T) {
	for name, answer := range map[string]error{"changed": errConflict, "gone": errNotFound} {
		t.Run("one Pod is "+name, func(t *testing.T) {
			w := newWorld(t, true, collaSet(4))
			w.settle()
			w.change(image("nginx:2"))
			victim := w.pods()[0].Name
			w.refuse = func(what string, o client.Object) error {
				if what == "patch Pod" && o.GetName() == victim {
					return answer
				}
				return nil
			}
			result, err := w.reconcile()
			looksAgain(t, result, err)
			assert.Equal(t, 4, w.count("patch Pod"))
			for _, pod := range w.pods() {
				assert.Equal(t, pod.Name != victim, podops.IsDuring(podops.Read(&pod), "collaset", podops.TypeUpdate))
			}
			assert.Equal(t, metav1.ConditionTrue, w.condition(appsv1alpha1.CollaSetUpdate).Status, "a conflict is no failure")
		})
	}
}

func TestRefusedPatchIsAFailedUpdate(t *testing.T) {
	w := newWorld(t, true, collaSet(3))
	w.settle()
	w.change(image("nginx:2"))
	w.refuse = refusing("patch Pod", errAway)
	_, err := w.reconcile()
	require.ErrorIs(t, err, errAway)
	assert.Equal(t, 3, w.count("patch Pod"), "one Pod's failure does not stop the others")
	update := w.condition(appsv1alpha1.CollaSetUpdate)
	assert.Equal(t, metav1.ConditionFalse, update.Status)
	assert.Equal(t, string(appsv1alpha1.ReasonUpdateFailed), update.Reason)
}

func TestDeletions(t *testing.T) {
	for name, tc := range map[string]struct {
		answer     error
		wantFailed bool
	}{
		"a Pod that is gone already":   {answer: errNotFound},
		"a Pod that changed meanwhile": {answer: errConflict},
		"a Pod that may not go":        {answer: errAway, wantFailed: true},
	} {
		t.Run(name+" does not keep the others", func(t *testing.T) {
			w := newWorld(t, false, collaSet(4))
			w.settle()
			w.change(replicas(1))
			w.refuse = func(what string, o client.Object) error {
				if what == "delete Pod" && o.GetName() == w.cachedPod("3") {
					return tc.answer
				}
				return nil
			}
			result, err := w.reconcile()
			assert.Equal(t, 3, w.count("delete Pod"))
			assert.Len(t, w.pods(), 2)
			scale := w.condition(appsv1alpha1.CollaSetScale)
			if tc.wantFailed {
				require.ErrorIs(t, err, tc.answer)
				assert.Equal(t, string(appsv1alpha1.ReasonScaleInFailed), scale.Reason)
				return
			}
			looksAgain(t, result, err)
			assert.Equal(t, metav1.ConditionTrue, scale.Status)
		})
	}
}

// cachedPod is the name of the Pod of an instance ID in the cache.
func (w *world) cachedPod(id string) string {
	w.Helper()
	list := &corev1.PodList{}
	require.NoError(w, w.cache.List(w.Context(), list, client.MatchingLabels{appsv1alpha1.InstanceIDLabel: id}))
	require.Len(w, list.Items, 1)
	return list.Items[0].Name
}

func TestPodThatChangedSinceItWasSeenIsNotDeleted(t *testing.T) {
	w := newWorld(t, false, collaSet(2))
	w.settle()
	w.change(replicas(1))
	for _, pod := range w.pods() {
		pod.Annotations = map[string]string{"changed": "since"}
		require.NoError(t, w.store.Update(t.Context(), &pod))
	}
	result, err := w.reconcile()
	looksAgain(t, result, err)
	assert.Equal(t, 1, w.count("delete Pod"))
	assert.Len(t, w.pods(), 2)
}

func TestRefusedStatus(t *testing.T) {
	t.Run("a conflict is looked at again", func(t *testing.T) {
		w := newWorld(t, true, collaSet(2))
		w.refuse = refusing("patch CollaSet/status", errConflict)
		result, err := w.reconcile()
		looksAgain(t, result, err)
		assert.Len(t, w.pods(), 2, "the plan was applied")
		assert.Zero(t, w.set().Status.ObservedGeneration)
		w.forget()
		w.see()
		w.clock.Step(time.Second)
		_, err = w.reconcile()
		require.NoError(t, err)
		assert.EqualValues(t, 1, w.set().Status.ObservedGeneration)
	})
	t.Run("however many events come while the cache does not show the newer CollaSet", func(t *testing.T) {
		w := newWorld(t, true, collaSet(2))
		for range 30 {
			w.refuse = refusing("patch CollaSet/status", errConflict)
			result, err := w.reconcile()
			require.NoError(t, err)
			require.Positive(t, result.RequeueAfter)
			w.clock.Step(50 * time.Millisecond)
			w.see()
		}
		tries := w.count("patch CollaSet/status")
		assert.Equal(t, 2, tries, "one a second")
		w.edit(func(s *appsv1alpha1.CollaSet) { s.Status.Replicas = 7 })
		w.refuse = nil
		_, err := w.reconcile()
		require.NoError(t, err)
		assert.EqualValues(t, 1, w.set().Status.ObservedGeneration, "it shows the newer one")
	})
	t.Run("nor that nothing can be decided", func(t *testing.T) {
		w := newWorld(t, true, collaSet(2))
		quota, conflict := refusing("create ControllerRevision", errQuota), refusing("patch CollaSet/status", errConflict)
		w.refuse = func(what string, object client.Object) error {
			return cmp.Or(quota(what, object), conflict(what, object))
		}
		for range 30 {
			_, _ = w.reconcile()
			w.clock.Step(50 * time.Millisecond)
			w.see()
		}
		assert.LessOrEqual(t, w.count("patch CollaSet/status"), 8)
		w.refuse = quota
		w.clock.Step(3 * time.Second)
		_, err := w.reconcile()
		require.ErrorIs(t, err, errQuota)
		assert.Contains(t, w.condition(appsv1alpha1.CollaSetReady).Message, "exceeded quota", "it is its turn")
	})
	t.Run("a server error is one", func(t *testing.T) {
		w := newWorld(t, true, collaSet(2))
		w.refuse = refusing("patch CollaSet/status", errAway)
		_, err := w.reconcile()
		require.ErrorIs(t, err, errAway)
		assert.ErrorContains(t, err, "writing status")
	})
	t.Run("a CollaSet that is gone needs none", func(t *testing.T) {
		w := newWorld(t, true, collaSet(2))
		w.refuse = refusing("patch CollaSet/status", errNotFound)
		_, err := w.reconcile()
		require.NoError(t, err)
	})
}

func TestNothingIsCreatedWhatTheResourceContextDoesNotHave(t *testing.T) {
	for name, tc := range map[string]struct {
		what       string
		answer     error
		wantFailed bool
	}{
		"it exists already, which the cache does not show": {what: "create ResourceContext", answer: errExists},
		"its creation meets a conflict":                    {what: "create ResourceContext", answer: errConflict},
		"its creation fails": {what: "create ResourceContext", answer: errAway,
			wantFailed: true},
		"it changed meanwhile": {what: "update ResourceContext", answer: errConflict},
		"it is gone meanwhile": {what: "update ResourceContext", answer: errNotFound},
		"its update fails": {what: "update ResourceContext", answer: errAway,
			wantFailed: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true, collaSet(2))
			before := 0
			if tc.what == "update ResourceContext" {
				w.settle()
				w.change(replicas(4))
				before = 2
			}
			w.refuse = refusing(tc.what, tc.answer)
			result, err := w.reconcile()
			assert.Equal(t, 1, w.count(tc.what))
			assert.Zero(t, w.count("create Pod"))
			assert.Len(t, w.pods(), before)
			scale := w.condition(appsv1alpha1.CollaSetScale)
			if tc.wantFailed {
				require.ErrorIs(t, err, tc.answer)
				assert.Equal(t, string(appsv1alpha1.ReasonScaleOutFailed), scale.Reason)
			} else {
				looksAgain(t, result, err)
				assert.Equal(t, metav1.ConditionTrue, scale.Status)
			}
			w.forget()
			w.settle()
			assert.Len(t, w.pods(), before+2)
		})
	}
}

func TestNothingIsDeletedWhatTheResourceContextDoesNotSay(t *testing.T) {
	w := newWorld(t, false, collaSet(2))
	w.settle()
	w.change(replicas(1))
	w.refuse = refusing("update ResourceContext", errConflict)
	result, err := w.reconcile()
	looksAgain(t, result, err)
	assert.Zero(t, w.count("delete Pod"), "its ID would come back")
}
