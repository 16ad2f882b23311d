package collaset

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

func TestCollaSetThatIsGoneIsForgotten(t *testing.T) {
	w := newWorld(t, true)
	w.r.memory.Of(key, "web")
	w.r.writes.Created(key, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p",
		ResourceVersion: "9999"}})
	result, err := w.reconcile()
	require.NoError(t, err)
	assert.Zero(t, result)
	assert.Nil(t, w.r.memory.Find(key, ""))
	wait, err := w.r.writes.Unobserved(t.Context(), key)
	require.NoError(t, err)
	assert.Zero(t, wait)
}

// waits checks that nothing is decided while the cache lacks what was written, and that it goes on when it has it.
func (w *world) waits(late func(client.Object) bool) {
	w.Helper()
	w.forget()
	if late != nil {
		w.seeAllBut(late)
	}
	for range 3 {
		result, err := w.reconcile()
		require.NoError(w, err)
		assert.Positive(w, result.RequeueAfter)
		assert.LessOrEqual(w, result.RequeueAfter, time.Second)
		w.clock.Step(time.Second)
	}
	assert.Empty(w, w.written)
	w.see()
	wait, err := w.r.writes.Unobserved(w.Context(), key)
	require.NoError(w, err)
	assert.Zero(w, wait)
}

func TestOwnWritesAreWaitedFor(t *testing.T) {
	for name, late := range map[string]func(client.Object) bool{
		"the Pods": isPod,
		"one Pod": func(o client.Object) bool {
			return isPod(o) &&
				o.GetLabels()[appsv1alpha1.InstanceIDLabel] == "1"
		},
		"the ResourceContext":     is[*appsv1alpha1.ResourceContext],
		"the ControllerRevision":  is[*appsv1.ControllerRevision],
		"the CollaSet":            is[*appsv1alpha1.CollaSet],
		"anything of what it did": nil,
	} {
		t.Run("nothing is done while the cache does not show "+name, func(t *testing.T) {
			w := newWorld(t, true, collaSet(3))
			_, err := w.reconcile()
			require.NoError(t, err)
			require.Len(t, w.pods(), 3)
			w.waits(late)
			_, err = w.reconcile()
			require.NoError(t, err)
			assert.Zero(t, w.count("create Pod"))
			assert.Len(t, w.pods(), 3)
			assert.EqualValues(t, 3, w.set().Status.Replicas)
		})
	}
	t.Run("Pods that were patched", func(t *testing.T) {
		w := newWorld(t, true, collaSet(3))
		w.settle()
		w.change(image("nginx:2"))
		_, err := w.reconcile()
		require.NoError(t, err)
		require.Equal(t, 3, w.count("patch Pod"))
		w.waits(isPod)
	})
	t.Run("Pods that were deleted", func(t *testing.T) {
		w := newWorld(t, false, collaSet(3))
		w.settle()
		w.change(replicas(1))
		_, err := w.reconcile()
		require.NoError(t, err)
		require.Equal(t, 2, w.count("delete Pod"))
		w.waits(isPod)
	})
	t.Run("a ResourceContext that was updated", func(t *testing.T) {
		w := newWorld(t, true, collaSet(1))
		w.settle()
		w.change(replicas(2))
		_, err := w.reconcile()
		require.NoError(t, err)
		require.Equal(t, 1, w.count("update ResourceContext"))
		w.waits(is[*appsv1alpha1.ResourceContext])
	})
	t.Run("status", func(t *testing.T) {
		w := newWorld(t, true, collaSet(1))
		w.settle()
		set := w.set()
		set.Status.ReadyReplicas = 7
		require.NoError(t, w.store.Status().Update(t.Context(), set))
		w.see()
		_, err := w.reconcile()
		require.NoError(t, err)
		require.Equal(t, []string{"patch CollaSet/status"}, w.written)
		w.waits(is[*appsv1alpha1.CollaSet])
	})
}

// A status that has all of one moment and some of another would show Ready and count no Pod, until something happens.
func TestStatusIsOfOneMoment(t *testing.T) {
	unserving := func(t *testing.T) *world {
		w := newWorld(t, true, collaSet(2))
		w.settle()
		for _, pod := range w.pods() {
			delete(pod.Labels, podops.ServiceAvailableLabel)
			require.NoError(t, w.store.Update(t.Context(), &pod))
		}
		w.change(replicas(2)) // conditions are about a generation: they differ from those that were read
		return w
	}
	serving := func(w *world) {
		for _, pod := range w.pods() {
			pod.Labels[podops.ServiceAvailableLabel] = "1"
			require.NoError(w, w.store.Update(w.Context(), &pod))
		}
	}
	agrees := func(w *world) {
		w.Helper()
		status := w.set().Status
		ready := w.condition(appsv1alpha1.CollaSetReady).Status == metav1.ConditionTrue
		assert.Equal(w, ready, status.AvailableReplicas == 2, "Ready %t with %d available", ready, status.AvailableReplicas)
	}
	t.Run("although the cache catches up while it is read", func(t *testing.T) {
		w := unserving(t)
		_, err := w.reconcile()
		require.NoError(t, err)
		require.Zero(t, w.set().Status.AvailableReplicas)
		serving(w)
		w.clock.Step(time.Second)
		w.cache.afterGet = w.see // the status that was written, and the Pods that serve again
		_, err = w.reconcile()
		require.NoError(t, err)
		agrees(w)
	})
	t.Run("although the answer to a write was lost", func(t *testing.T) {
		w := unserving(t)
		late := is[*appsv1alpha1.CollaSet]
		w.loseAnswer = "patch CollaSet/status"
		_, err := w.reconcile()
		require.Error(t, err)
		require.Zero(t, w.set().Status.AvailableReplicas)
		serving(w)
		w.seeAllBut(late)
		w.clock.Step(time.Second)
		result, err := w.reconcile()
		require.NoError(t, err)
		assert.Positive(t, result.RequeueAfter)
		agrees(w)
		w.see()
		_, err = w.reconcile()
		require.NoError(t, err)
		assert.EqualValues(t, 2, w.set().Status.AvailableReplicas)
		agrees(w)
	})
}

func TestNothingIsWrittenAtTheGoal(t *testing.T) {
	for name, protocol := range map[string]bool{"under the lifecycle": true, "directly": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, protocol, collaSet(3))
			w.settle()
			require.Equal(t, metav1.ConditionTrue, w.condition(appsv1alpha1.CollaSetReady).Status)
			recorder := w.r.events.(*events.FakeRecorder)
			recorded := len(recorder.Events)
			before := w.all()
			for range 3 {
				result, err := w.reconcile()
				require.NoError(t, err)
				assert.Zero(t, result)
				w.clock.Step(time.Hour)
			}
			assert.Empty(t, w.written)
			assert.Empty(t, cmp.Diff(before, w.all()))
			assert.Len(t, recorder.Events, recorded)

			// A process that starts afresh has nothing to write either.
			w.r.memory = &stateCache{}
			_, err := w.reconcile()
			require.NoError(t, err)
			assert.Empty(t, w.written)
		})
	}
}

func TestFinalizerComesFirst(t *testing.T) {
	t.Run("before anything is made", func(t *testing.T) {
		w := newWorld(t, true, collaSet(1))
		_, err := w.reconcile()
		require.NoError(t, err)
		assert.Equal(t, []string{
			"patch CollaSet", "create ControllerRevision", "create ResourceContext", "create Pod", "patch CollaSet/status",
		}, w.written)
		assert.True(t, controllerutil.ContainsFinalizer(w.set(), appsv1alpha1.CollaSetFinalizer))
	})
	t.Run("without it nothing is made", func(t *testing.T) {
		w := newWorld(t, true, collaSet(1))
		w.refuse = refusing("patch CollaSet", errAway)
		_, err := w.reconcile()
		require.ErrorIs(t, err, errAway)
		assert.Equal(t, []string{"patch CollaSet"}, w.written)
	})
	t.Run("a CollaSet that changed meanwhile is looked at again", func(t *testing.T) {
		w := newWorld(t, true, collaSet(1))
		set := w.set()
		set.Finalizers = []string{"example.com/other"}
		require.NoError(t, w.store.Update(t.Context(), set))
		result, err := w.reconcile()
		looksAgain(t, result, err)
		assert.Equal(t, []string{"patch CollaSet"}, w.written)
		assert.Equal(t, []string{"example.com/other"}, w.set().Finalizers, "the other finalizer is not lost")
	})
	t.Run("a CollaSet that is being deleted gets none", func(t *testing.T) {
		set := collaSet(1)
		set.Finalizers = []string{"example.com/other"}
		w := newWorld(t, true, set)
		require.NoError(t, w.store.Delete(t.Context(), set))
		w.see()
		_, err := w.reconcile()
		require.NoError(t, err)
		assert.Empty(t, w.written)
	})
}

// deleted is a CollaSet that is being deleted halfway through an update, and its Pods are at the API server.
func deleted(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, false, collaSet(2))
	w.settle()
	w.change(both(image("nginx:2"), partition(1)))
	w.settle()
	set := w.set()
	set.Finalizers = append(set.Finalizers, "example.com/other")
	set.Generation++
	require.NoError(t, w.store.Update(t.Context(), set))
	require.NoError(t, w.store.Delete(t.Context(), set))
	return w
}

func TestFinalizerIsKeptUntilThePodsAreGone(t *testing.T) {
	t.Run("the cache shows none, the API server does", func(t *testing.T) {
		w := deleted(t)
		w.seeWithoutPods()
		result, err := w.reconcile()
		looksAgain(t, result, err)
		assert.Empty(t, w.written)
		assert.Contains(t, w.set().Finalizers, appsv1alpha1.CollaSetFinalizer)
	})
	t.Run("nobody knows", func(t *testing.T) {
		w := deleted(t)
		w.seeWithoutPods()
		w.r.live = away{}
		_, err := w.reconcile()
		require.ErrorIs(t, err, errAway)
		assert.Empty(t, w.written)
	})
	t.Run("Pods are deleted first, and status says so", func(t *testing.T) {
		w := deleted(t)
		before := w.set().Status
		require.NotEqual(t, before.CurrentRevision, before.UpdatedRevision)
		w.see()
		_, err := w.reconcile()
		require.NoError(t, err)
		assert.Equal(t, []string{"delete Pod", "delete Pod", "patch CollaSet/status"}, w.written)
		terminating := w.condition(appsv1alpha1.CollaSetTerminating)
		assert.Equal(t, metav1.ConditionFalse, terminating.Status)
		assert.Equal(t, before.UpdatedRevision, w.set().Status.UpdatedRevision)
		assert.Equal(t, before.CurrentRevision, w.set().Status.CurrentRevision)
		assert.EqualValues(t, 1, w.set().Status.UpdatedReplicas)
	})
	t.Run("a Pod that may not go is told of", func(t *testing.T) {
		w := deleted(t)
		w.see()
		w.refuse = refusing("delete Pod", errAway)
		_, err := w.reconcile()
		require.ErrorIs(t, err, errAway)
		assert.Equal(t, string(appsv1alpha1.ReasonReclaimTargetsDeletionFailed),
			w.condition(appsv1alpha1.CollaSetTerminating).Reason)
	})
	t.Run("none is left, and another's Pods do not matter", func(t *testing.T) {
		w := deleted(t)
		for _, pod := range w.pods() {
			require.NoError(t, w.store.Delete(t.Context(), &pod))
		}
		other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "other", Labels: map[string]string{
			appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue,
		}}}
		require.NoError(t, w.store.Create(t.Context(), other))
		w.see()
		_, err := w.reconcile()
		require.NoError(t, err)
		assert.Equal(t, []string{"delete ResourceContext", "patch CollaSet"}, w.written)
		assert.Equal(t, []string{"example.com/other"}, w.set().Finalizers)
		assert.Nil(t, w.entries())
	})
	t.Run("a conflict on the way is looked at again", func(t *testing.T) {
		for _, what := range []string{"delete ResourceContext", "patch CollaSet"} {
			w := deleted(t)
			for _, pod := range w.pods() {
				require.NoError(t, w.store.Delete(t.Context(), &pod))
			}
			w.see()
			w.refuse = refusing(what, errConflict)
			result, err := w.reconcile()
			looksAgain(t, result, err)
			assert.Contains(t, w.set().Finalizers, appsv1alpha1.CollaSetFinalizer)
		}
	})
}

// away is an API server that does not answer.
type away struct{ client.Reader }

func (away) List(context.Context, client.ObjectList, ...client.ListOption) error { return errAway }

func (away) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errAway
}

func TestStatusIsCoalesced(t *testing.T) {
	w := newWorld(t, true, collaSet(3))
	_, err := w.reconcile()
	require.NoError(t, err)
	w.clock.Step(time.Second)
	w.see()
	_, err = w.reconcile()
	require.NoError(t, err)
	require.EqualValues(t, 3, w.set().Status.Replicas)
	w.forget()
	names := []string{}
	for _, pod := range w.pods() {
		names = append(names, pod.Name)
	}
	look := func() ctrl.Result {
		w.see()
		result, err := w.reconcile()
		require.NoError(t, err)
		return result
	}

	w.clock.Step(50 * time.Millisecond)
	w.serve(names[0])
	assert.Equal(t, statusPause-50*time.Millisecond, look().RequeueAfter, "a number can wait")
	assert.Empty(t, w.written)

	w.clock.Step(50 * time.Millisecond)
	w.serve(names[1])
	assert.Equal(t, statusPause-100*time.Millisecond, look().RequeueAfter)
	assert.Empty(t, w.written)

	w.clock.Step(statusPause - 100*time.Millisecond)
	assert.Greater(t, look().RequeueAfter, 9*time.Minute, "nothing is left to wait for but the progress deadline")
	assert.Equal(t, []string{"patch CollaSet/status"}, w.written, "two changes, one write")
	assert.EqualValues(t, 2, w.set().Status.ReadyReplicas)

	w.serve(names[2])
	look()
	assert.Equal(t, 2, w.count("patch CollaSet/status"), "that it is ready cannot wait")
	assert.Equal(t, metav1.ConditionTrue, w.condition(appsv1alpha1.CollaSetReady).Status)
}

func TestNextLookIsTheSoonest(t *testing.T) {
	set := collaSet(1)
	set.Spec.MinReadySeconds = 30
	w := newWorld(t, false, set)
	_, err := w.reconcile()
	require.NoError(t, err)
	w.serve()
	w.clock.Step(10 * time.Second)
	w.see()
	result, err := w.reconcile()
	require.NoError(t, err)
	assert.Equal(t, 20*time.Second, result.RequeueAfter)
	assert.Zero(t, w.set().Status.AvailableReplicas)
	w.clock.Step(20 * time.Second)
	w.see()
	_, err = w.reconcile()
	require.NoError(t, err)
	assert.EqualValues(t, 1, w.set().Status.AvailableReplicas)
}

func TestRevisionNames(t *testing.T) {
	first := newWorld(t, true, collaSet(1))
	first.settle()
	own := first.revisions()[0]

	t.Run("a name that other content has is left to it", func(t *testing.T) {
		foreign := own.DeepCopy()
		foreign.ResourceVersion, foreign.OwnerReferences = "", nil
		foreign.Data.Raw = []byte(`{"spec":{"template":{"spec":{"containers":[]}}}}`)
		w := newWorld(t, true, collaSet(1), foreign)
		w.settle()
		require.Len(t, w.revisions(), 2)
		status := w.set().Status
		assert.EqualValues(t, 1, *status.CollisionCount)
		assert.NotEqual(t, own.Name, status.UpdatedRevision)
		assert.Equal(t, status.UpdatedRevision, w.pods()[0].Labels[appsv1.ControllerRevisionHashLabelKey])
		made := &appsv1.ControllerRevision{}
		require.NoError(t, w.store.Get(t.Context(),
			client.ObjectKey{Namespace: key.Namespace, Name: status.UpdatedRevision}, made))
		assert.Equal(t, "1", made.Labels[appsv1alpha1.RevisionCollisionLabel])
		assert.JSONEq(t, string(own.Data.Raw), string(made.Data.Raw))
		left := &appsv1.ControllerRevision{}
		require.NoError(t, w.store.Get(t.Context(), client.ObjectKeyFromObject(foreign), left))
		assert.Equal(t, foreign.Data.Raw, left.Data.Raw)
	})
	t.Run("equal content of somebody else is not ours", func(t *testing.T) {
		foreign := own.DeepCopy()
		foreign.ResourceVersion, foreign.OwnerReferences[0].UID, foreign.OwnerReferences[0].Name = "", "another", "another"
		w := newWorld(t, true, collaSet(1), foreign)
		w.settle()
		assert.EqualValues(t, 1, *w.set().Status.CollisionCount)
	})
	t.Run("our own that the cache does not show is taken", func(t *testing.T) {
		ours := own.DeepCopy()
		ours.ResourceVersion = ""
		w := newWorld(t, true, collaSet(1), ours)
		w.show(slices.DeleteFunc(w.all(), is[*appsv1.ControllerRevision])...)
		_, err := w.reconcile()
		require.NoError(t, err)
		assert.Len(t, w.revisions(), 1)
		assert.Zero(t, *w.set().Status.CollisionCount)
		assert.Equal(t, own.Name, w.pods()[0].Labels[appsv1.ControllerRevisionHashLabelKey])
	})
	t.Run("a refused revision stops the round", func(t *testing.T) {
		w := newWorld(t, true, collaSet(1))
		w.refuse = refusing("create ControllerRevision", errAway)
		_, err := w.reconcile()
		require.ErrorIs(t, err, errAway)
		assert.Equal(t, []string{"patch CollaSet", "create ControllerRevision", "patch CollaSet/status"}, w.written)
	})
}

func TestWhatCannotBeDecidedIsSaid(t *testing.T) {
	w := newWorld(t, true, collaSet(1))
	w.refuse = refusing("create ControllerRevision", errQuota)
	for range 3 {
		w.see()
		_, err := w.reconcile()
		require.ErrorIs(t, err, errQuota)
		w.clock.Step(time.Minute)
	}
	assert.EqualValues(t, 1, w.set().Status.ObservedGeneration)
	ready := w.condition(appsv1alpha1.CollaSetReady)
	assert.Equal(t, metav1.ConditionFalse, ready.Status)
	assert.Equal(t, string(appsv1alpha1.ReasonFailed), ready.Reason)
	assert.Contains(t, ready.Message, "exceeded quota")
	assert.EqualValues(t, 1, ready.ObservedGeneration)
	assert.Equal(t, 1, w.count("patch CollaSet/status"), "once")

	w.forget()
	w.settle()
	assert.Equal(t, metav1.ConditionTrue, w.condition(appsv1alpha1.CollaSetReady).Status)
}

func TestRevisionIsMadeOfWhatIsStored(t *testing.T) {
	w := newWorld(t, true, collaSet(1))
	set := w.set()
	set.Generation++
	image("nginx:2")(&set.Spec)
	require.NoError(t, w.store.Update(t.Context(), set))
	w.see()
	set.Generation++
	require.NoError(t, w.store.Update(t.Context(), set))
	cached := &appsv1alpha1.CollaSet{}
	require.NoError(t, w.cache.Get(t.Context(), key, cached))
	_, err := revisions{w.r.server}.observe(t.Context(), cached, &knownRevisions{}, w.r.serverCan)
	require.ErrorIs(t, err, errStale, "the cache is a generation behind")
	assert.Empty(t, w.written)
}

func TestHistory(t *testing.T) {
	grown := func(t *testing.T) *world {
		set := collaSet(0)
		limit := int32(1)
		set.Spec.HistoryLimit = &limit
		w := newWorld(t, true, set)
		w.settle()
		w.change(image("nginx:2"))
		w.settle()
		w.change(image("nginx:3"))
		return w
	}
	t.Run("the oldest unused revision goes", func(t *testing.T) {
		w := grown(t)
		oldest := w.revisions()
		w.settle()
		left := w.revisions()
		require.Len(t, left, 2)
		for _, cr := range left {
			assert.NotEqual(t, int64(1), cr.Revision)
		}
		assert.Len(t, oldest, 2)
	})
	for name, answer := range map[string]error{"changed": errConflict, "gone": errNotFound} {
		t.Run("a revision that "+name+" does not hold the CollaSet up", func(t *testing.T) {
			w := grown(t)
			_, err := w.reconcile()
			require.NoError(t, err)
			w.see()
			w.refuse = refusing("delete ControllerRevision", answer)
			_, err = w.reconcile()
			require.NoError(t, err)
			require.Equal(t, 1, w.count("delete ControllerRevision"))
			w.forget()
			w.change(replicas(1))
			_, err = w.reconcile()
			require.NoError(t, err)
			assert.Equal(t, 1, w.count("create Pod"))
		})
	}
	t.Run("a revision that may not go is an error", func(t *testing.T) {
		w := grown(t)
		_, err := w.reconcile()
		require.NoError(t, err)
		w.see()
		w.refuse = refusing("delete ControllerRevision", errAway)
		_, err = w.reconcile()
		require.ErrorIs(t, err, errAway)
	})
	t.Run("a template that comes back takes its revision up again", func(t *testing.T) {
		w := grown(t)
		w.settle()
		w.change(image("nginx:2"))
		_, err := w.reconcile()
		require.NoError(t, err)
		assert.Equal(t, 1, w.count("patch ControllerRevision"))
		assert.Zero(t, w.count("create ControllerRevision"))
		w.settle()
		newest := int64(0)
		for _, cr := range w.revisions() {
			newest = max(newest, cr.Revision)
		}
		assert.EqualValues(t, 4, newest)
	})
}

func TestNewPod(t *testing.T) {
	for name, tc := range map[string]struct {
		protocol, sequential bool
		wantName             string
	}{
		"under the lifecycle it has the readiness gate": {protocol: true},
		"directly it has none":                          {},
		"in sequence its name follows from its ID":      {sequential: true, wantName: "web-0"},
	} {
		t.Run(name, func(t *testing.T) {
			set := collaSet(1)
			if tc.sequential {
				set.Spec.NamingStrategy = &appsv1alpha1.NamingStrategy{PodNamingSuffixPolicy: appsv1alpha1.PodNamingSuffixPersistentSequence}
			}
			w := newWorld(t, tc.protocol, set)
			_, err := w.reconcile()
			require.NoError(t, err)
			pod := w.pods()[0]
			assert.Equal(t, tc.protocol, podops.Read(&pod).Gate)
			assert.True(t, metav1.IsControlledBy(&pod, w.set()))
			assert.Equal(t, appsv1alpha1.ControlValue, pod.Labels[appsv1alpha1.ControlLabel])
			assert.Equal(t, "0", pod.Labels[appsv1alpha1.InstanceIDLabel])
			assert.Equal(t, key.Name, pod.Labels["app"])
			assert.Contains(t, pod.Labels, podops.CreatingLabel)
			assert.NotContains(t, pod.Labels, podops.RecreatedLabel)
			assert.Equal(t, "web-", pod.GenerateName)
			assert.Equal(t, tc.wantName, pod.Spec.Hostname)
			if tc.wantName != "" {
				assert.Equal(t, tc.wantName, pod.Name)
			}
			w.serve()
			w.settle()
			require.NoError(t, w.store.Delete(t.Context(), &pod))
			w.see()
			_, err = w.reconcile()
			require.NoError(t, err)
			assert.Contains(t, w.pods()[0].Labels, podops.RecreatedLabel)
			assert.NotContains(t, w.pods()[0].Labels, podops.CreatingLabel)
		})
	}
}
