package collaset

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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

// remembered is what is known of the CollaSet while it is idle, nil if it is not.
func (w *world) remembered() *idle { return w.r.memory.find(key, w.set().UID).idle }

// looks reconciles on what is there now.
func (w *world) looks() {
	w.Helper()
	w.see()
	w.clock.Step(time.Second)
	_, err := w.reconcile()
	require.NoError(w, err)
}

// idling is a CollaSet at its goal that is known to be idle.
func idling(t *testing.T, n int32) *world {
	t.Helper()
	w := newWorld(t, true, collaSet(n))
	w.settle()
	w.looks()
	require.NotNil(t, w.remembered())
	w.forget()
	return w
}

func TestAnIdleCollaSetFollowsTheHealthOfItsPods(t *testing.T) {
	w := idling(t, 3)
	known := w.remembered()
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
	require.Same(t, known, w.remembered(), "no decision about all Pods was made")

	w.looks()
	require.Len(t, w.written, 6, "nothing changed")
}

// A status that was refused, because somebody else had changed the CollaSet, is not lost.
func TestTheStatusOfAnIdleCollaSetIsWrittenAgain(t *testing.T) {
	for name, refusal := range map[string]struct {
		err  error
		told bool
	}{"a conflict": {errConflict, false}, "an API server that is away": {errAway, true}} {
		t.Run(name, func(t *testing.T) {
			w := idling(t, 3)
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

// What was to wake the CollaSet does so even if the whole decision that was due on it failed.
func TestWhatWakesAnIdleCollaSetIsNotLost(t *testing.T) {
	w := idling(t, 3)
	gone := w.pods()[1]
	require.NoError(t, w.store.Delete(t.Context(), &gone))
	w.see()
	w.r.serverCan = func(context.Context) (revision.Capabilities, error) { return revision.Capabilities{}, errAway }
	_, err := w.reconcile()
	require.ErrorIs(t, err, errAway)
	w.r.serverCan = nil
	w.looks()
	require.Len(t, w.pods(), 3)
}

// A process that has just started makes sure of all Pods before its first write, and may be idle after that.
func TestAProcessThatStartedMakesSureFirst(t *testing.T) {
	w := idling(t, 3)
	w.r.memory = newMemory()
	w.looks()
	require.Empty(t, w.written)
	for _, is := range []bool{false, true} {
		w.ready(1, is)
		w.looks()
		require.Equal(t, is, w.set().Status.ReadyReplicas == 3)
	}
	require.NotNil(t, w.remembered())
}

// Whatever else changes, too many Pods among it, is decided on as a whole.
func TestWhatWakesAnIdleCollaSet(t *testing.T) {
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
		"a Pod that is to be replaced": {label(appsv1alpha1.ToReplaceLabel), func(t *testing.T, w *world) { require.NotZero(t, w.count("create Pod")) }},
		"a Pod that is to be excluded": {label(appsv1alpha1.ToExcludeLabel), func(t *testing.T, w *world) { require.NotZero(t, w.count("patch Pod")) }},
		"another image": {
			func(w *world) { w.change(image("nginx:2")) },
			func(t *testing.T, w *world) { require.NotZero(t, w.count("create ControllerRevision")) },
		},
		"more replicas": {func(w *world) { w.change(replicas(n + 1)) }, func(t *testing.T, w *world) { require.Len(t, w.pods(), n+1) }},
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
		"a claim": {
			func(w *world) {
				claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
					Namespace: key.Namespace, Name: "web-data-x", Labels: map[string]string{"app": key.Name, appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue},
					OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w.set(), appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind))},
				}}
				require.NoError(w, w.store.Create(w.Context(), claim))
			},
			func(*testing.T, *world) {},
		},
		"an API server that can change more in place": {
			func(w *world) {
				w.r.serverCan = func(context.Context) (revision.Capabilities, error) { return revision.Capabilities{Resize: true}, nil }
			},
			func(*testing.T, *world) {},
		},
		"the health of many Pods": {
			func(w *world) {
				for i := range n/changedShare + 1 {
					w.ready(i, false)
				}
			},
			func(t *testing.T, w *world) { require.EqualValues(t, n-n/changedShare-1, w.set().Status.ReadyReplicas) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := idling(t, n)
			known := w.remembered()
			tc.change(w)
			w.looks()
			require.NotSame(t, known, w.remembered())
			tc.check(t, w)
		})
	}
}

// What happens to Pods leads to the same status, whether CollaSets may be idle or each decision is about all Pods.
func TestIdleOrNotTheStatusIsTheSame(t *testing.T) {
	const n = 12
	followed := 0
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 20))
		begin := func() *world {
			set := collaSet(n)
			set.Spec.MinReadySeconds = int32(3 * (seed % 2))
			w := newWorld(t, true, set)
			w.settle()
			return w
		}
		idle, whole := begin(), begin()
		events := map[string]func(*world, int){
			"not Ready":      func(w *world, pod int) { w.ready(pod, false) },
			"Ready":          func(w *world, pod int) { w.ready(pod, true) },
			"out of service": func(w *world, pod int) { w.serving(pod, false) },
			"in service":     func(w *world, pod int) { w.serving(pod, true) },
			"gone":           func(w *world, pod int) { gone := w.pods()[pod]; require.NoError(t, w.store.Delete(t.Context(), &gone)) },
		}
		names := append(slices.Sorted(maps.Keys(events)), "not Ready", "not Ready", "out of service", "out of service")
		for range 15 {
			what, pod, wait := names[random.IntN(len(names))], random.IntN(n), time.Duration(random.IntN(5))*time.Second
			known := idle.remembered()
			for _, w := range []*world{idle, whole} {
				events[what](w, pod)
				w.clock.Step(wait)
				for range 3 { // whoever makes a Pod sees it, and it comes up
					if w == whole {
						w.r.memory.wake(key)
					}
					w.looks()
					w.serve()
				}
			}
			if known != nil && known == idle.remembered() {
				followed++
			}
			is, want := idle.set().Status, whole.set().Status
			require.True(t, equality.Semantic.DeepEqual(want, is), "seed %d, %s: %+v, and it is %+v", seed, what, want, is)
		}
	}
	require.Positive(t, followed)
}

func TestChangesAreNamedUntilTheyAreTooMany(t *testing.T) {
	var c changes
	names, all := c.take()
	require.Empty(t, names)
	require.False(t, all)

	var wg sync.WaitGroup
	for i := range mostChanged {
		wg.Go(func() { c.add(fmt.Sprint(i)) })
	}
	wg.Wait()
	names, all = c.take()
	require.Len(t, names, mostChanged)
	require.False(t, all)

	for i := range mostChanged + 1 {
		c.add(fmt.Sprint(i))
	}
	_, all = c.take()
	require.True(t, all)

	c.addAll()
	c.add("a")
	names, all = c.take()
	require.Empty(t, names)
	require.True(t, all)
	_, all = c.take()
	require.False(t, all, "that was told")
}
