package collaset

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/revision"
)

// ready has a Pod be Ready, or not.
func (w *world) ready(n int, is bool) {
	w.Helper()
	pod := w.pods()[n]
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			c.LastTransitionTime, c.Status = metav1.NewTime(w.clock.Now()), corev1.ConditionFalse
			if is {
				c.Status = corev1.ConditionTrue
			}
		}
	}
	require.NoError(w, w.store.Status().Update(w.Context(), &pod))
}

// serving has a Pod be in service, or not.
func (w *world) serving(n int, is bool) {
	w.Helper()
	pod := w.pods()[n]
	if delete(pod.Labels, podops.ServiceAvailableLabel); is {
		pod.Labels[podops.ServiceAvailableLabel] = "1"
	}
	require.NoError(w, w.store.Update(w.Context(), &pod))
}

// looks reconciles on what is there now.
func (w *world) looks() {
	w.Helper()
	w.see()
	w.clock.Step(time.Second)
	_, err := w.reconcile()
	require.NoError(w, err)
}

// atRest is a CollaSet at its goal.
func atRest(t *testing.T, n int32) *world {
	t.Helper()
	w := newWorld(t, true, collaSet(n))
	w.settle()
	w.looks()
	w.forget()
	return w
}

func TestStatusFollowsTheHealthOfPods(t *testing.T) {
	w := atRest(t, 3)
	w.ready(1, false)
	w.looks()
	require.EqualValues(t, 2, w.set().Status.ReadyReplicas)
	w.ready(1, true)
	w.looks()
	require.EqualValues(t, 3, w.set().Status.ReadyReplicas)
	require.Equal(t, metav1.ConditionTrue, w.condition(appsv1alpha1.CollaSetReady).Status)
	for range 2 {
		w.serving(1, false)
		w.looks()
		require.EqualValues(t, 2, w.set().Status.AvailableReplicas)
		w.serving(1, true)
		w.looks()
		require.EqualValues(t, 3, w.set().Status.AvailableReplicas)
	}
	require.Equal(t, slices.Repeat([]string{"patch CollaSet/status"}, 6), w.written)

	w.looks()
	require.Len(t, w.written, 6, "nothing changed")
}

// A status that was refused, because another client had changed the CollaSet, is not lost.
func TestAStatusThatWasRefusedIsWrittenAgain(t *testing.T) {
	for name, refusal := range map[string]struct {
		err  error
		told bool
	}{"a conflict": {errConflict, false}, "an API server that is away": {errAway, true}} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 3)
			w.ready(1, false)
			w.see()
			w.refuse = refusing("patch CollaSet/status", refusal.err)
			_, err := w.reconcile()
			require.Equal(t, refusal.told, err != nil)
			require.EqualValues(t, 3, w.set().Status.ReadyReplicas)
			w.forget()
			w.clock.Step(time.Minute)
			_, err = w.reconcile()
			require.NoError(t, err)
			require.EqualValues(t, 2, w.set().Status.ReadyReplicas)
		})
	}
}

func TestADecisionThatFailedIsMadeAgain(t *testing.T) {
	w := atRest(t, 3)
	gone := w.pods()[1]
	require.NoError(t, w.store.Delete(t.Context(), &gone))
	w.see()
	w.r.serverCan = func(context.Context) (revision.Capabilities, error) { return revision.Capabilities{}, errAway }
	_, err := w.reconcile()
	require.ErrorIs(t, err, errAway)
	w.r.serverCan = canLeast
	w.looks()
	require.Len(t, w.pods(), 3)
}

// A process that has just started makes sure of all Pods before its first write.
func TestAProcessThatStartedMakesSureFirst(t *testing.T) {
	w := atRest(t, 3)
	w.r.memory = &stateCache{}
	w.looks()
	require.Empty(t, w.written)
	for _, is := range []bool{false, true} {
		w.ready(1, is)
		w.looks()
		require.Equal(t, is, w.set().Status.ReadyReplicas == 3)
	}
}

func TestWhatChangesAtRestIsDecidedOn(t *testing.T) {
	const n = 16
	label := func(key string) func(*world) {
		return func(w *world) {
			pod := w.pods()[3]
			pod.Labels[key] = "1"
			require.NoError(w, w.store.Update(w.Context(), &pod))
		}
	}
	for name, tc := range map[string]struct {
		change func(*world)
		check  func(*testing.T, *world)
	}{
		"a Pod that is deleted": {
			func(w *world) { pod := w.pods()[3]; require.NoError(w, w.store.Delete(w.Context(), &pod)) },
			func(t *testing.T, w *world) { require.Len(t, w.pods(), n) },
		},
		"a Pod more": {
			func(w *world) {
				pod := w.pods()[3].DeepCopy()
				pod.Name, pod.UID, pod.ResourceVersion, pod.Labels[appsv1alpha1.InstanceIDLabel] = "web-more", "more", "", "77"
				require.NoError(w, w.store.Create(w.Context(), pod))
			},
			func(t *testing.T, w *world) { require.NotZero(t, w.count("patch Pod"), "one is let go") },
		},
		"a Pod that is somebody else's now": {
			func(w *world) {
				pod := w.pods()[3]
				pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].UID = "ReplicaSet", "other"
				require.NoError(w, w.store.Update(w.Context(), &pod))
			},
			func(t *testing.T, w *world) { require.NotZero(t, w.count("create Pod")) },
		},
		"a Pod that is nobody's now": {
			func(w *world) {
				pod := w.pods()[3]
				pod.OwnerReferences = nil
				require.NoError(w, w.store.Update(w.Context(), &pod))
			},
			func(t *testing.T, w *world) { require.NotZero(t, w.count("patch Pod"), "it is adopted") },
		},
		"a Pod of a CollaSet of the same name that is gone": {
			func(w *world) {
				pod := w.pods()[3]
				pod.OwnerReferences[0].UID = "gone"
				require.NoError(w, w.store.Update(w.Context(), &pod))
			},
			func(t *testing.T, w *world) { require.NotZero(t, w.count("patch Pod"), "it is adopted") },
		},
		"a Pod that is to be replaced": {label(appsv1alpha1.ToReplaceLabel),
			func(t *testing.T, w *world) { require.NotZero(t, w.count("create Pod")) }},
		"a Pod that is to be excluded": {label(appsv1alpha1.ToExcludeLabel),
			func(t *testing.T, w *world) { require.NotZero(t, w.count("patch Pod")) }},
		"another image": {
			func(w *world) { w.change(image("nginx:2")) },
			func(t *testing.T, w *world) { require.NotZero(t, w.count("create ControllerRevision")) },
		},
		"more replicas": {func(w *world) { w.change(replicas(n + 1)) },
			func(t *testing.T, w *world) { require.Len(t, w.pods(), n+1) }},
		"a deletion": {
			func(w *world) { require.NoError(w, w.store.Delete(w.Context(), w.set())) },
			func(t *testing.T, w *world) { require.NotZero(t, w.count("patch Pod")) },
		},
		"a revision that is gone": {
			func(w *world) {
				require.NoError(w, w.store.Delete(w.Context(), &w.revisions()[0]))
			},
			func(t *testing.T, w *world) { require.Len(t, w.revisions(), 1) },
		},
		"an entry of the ResourceContext that is gone": {
			func(w *world) {
				rc := &appsv1alpha1.ResourceContext{}
				require.NoError(w, w.store.Get(w.Context(), key, rc))
				rc.Spec.Contexts = rc.Spec.Contexts[1:]
				require.NoError(w, w.store.Update(w.Context(), rc))
			},
			func(t *testing.T, w *world) { require.Len(t, w.entries(), n) },
		},
		"another generation in status": {
			func(w *world) {
				set := w.set()
				set.Status.CurrentRevision, set.Status.UpdatedRevision = "", ""
				require.NoError(w, w.store.Status().Update(w.Context(), set))
			},
			func(t *testing.T, w *world) { require.Equal(t, w.revisions()[0].Name, w.set().Status.CurrentRevision) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, n)
			tc.change(w)
			w.looks()
			tc.check(t, w)
		})
	}
}
