package collaset

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// The tests called TestFailureNN, here and elsewhere, are named after the fifteen ways in which CollaSets of Kuperator
// are known to have failed. docs/contributing/known-failures.md lists them, and internal/testkit/archtest compares.

// Kuperator deleted revisions that Pods, entries or its own status named, and then met nil.
func TestFailure03HistoryCleanupDeletesRevisionsInUse(t *testing.T) {
	set := collaSet(3)
	set.Spec.HistoryLimit = ptr.To[int32](0)
	w := newWorld(t, true, set)
	w.settle()
	first := w.set().Status.UpdatedRevision
	w.change(both(image("nginx:2"), partition(2))) // nothing carries updates out here: the Pods stay at the first
	w.settle()
	second := w.set().Status.UpdatedRevision
	got := w.pods()[1]
	got.Labels[appsv1.ControllerRevisionHashLabelKey] = second // it got there
	require.NoError(t, w.store.Update(t.Context(), &got))
	w.change(both(image("nginx:3"), partition(3)))
	w.settle()
	third := w.set().Status.UpdatedRevision
	for n := 4; n < 8; n++ {
		w.change(both(image(fmt.Sprintf("nginx:%d", n)), partition(3)))
		w.settle()
		names := []string{}
		for _, cr := range w.revisions() {
			names = append(names, cr.Name)
		}
		status := w.set().Status
		assert.Subset(t, names, []string{first, second, status.CurrentRevision, status.UpdatedRevision}, "in use")
		assert.LessOrEqual(t, len(names), 3, "and the others are not kept")
		assert.NotContains(t, names, third)
	}
	gone := w.pods()[2]
	own := gone.Labels[appsv1.ControllerRevisionHashLabelKey]
	require.NoError(t, w.store.Delete(t.Context(), &gone))
	w.change(both(image("nginx:9"), partition(3)))
	w.settle()
	require.Len(t, w.pods(), 3)
	assert.Equal(t, own, w.pods()[2].Labels[appsv1.ControllerRevisionHashLabelKey],
		"the revision of a Pod that is gone is there for its successor")
}

// Kuperator ended the round at a creation that failed: no update, no word in status, not even the generation.
func TestFailure05ScaleErrorsBlockUpdates(t *testing.T) {
	w := newWorld(t, true, collaSet(2))
	w.settle()
	w.change(both(replicas(4), image("nginx:2")))
	w.refuse = refusing("create Pod", errQuota)
	_, err := w.reconcile()
	require.ErrorIs(t, err, errQuota)
	for _, pod := range w.pods() {
		assert.True(t, podops.IsDuring(podops.Read(&pod), "collaset", podops.TypeUpdate),
			"%s is updated all the same", pod.Name)
	}
	status := w.set().Status
	assert.Equal(t, w.set().Generation, status.ObservedGeneration)
	scale, update := w.condition(appsv1alpha1.CollaSetScale), w.condition(appsv1alpha1.CollaSetUpdate)
	assert.Equal(t, metav1.ConditionFalse, scale.Status)
	assert.Contains(t, scale.Message, "exceeded quota")
	assert.Equal(t, metav1.ConditionTrue, update.Status, "each speaks for itself")

	t.Run("and the other way round", func(t *testing.T) {
		w := newWorld(t, true, collaSet(2))
		w.settle()
		w.change(both(replicas(4), image("nginx:2")))
		w.refuse = refusing("patch Pod", errAway)
		_, err := w.reconcile()
		require.ErrorIs(t, err, errAway)
		assert.Len(t, w.pods(), 4)
		assert.Equal(t, metav1.ConditionFalse, w.condition(appsv1alpha1.CollaSetUpdate).Status)
		assert.Equal(t, metav1.ConditionTrue, w.condition(appsv1alpha1.CollaSetScale).Status)
	})
}

// Kuperator left ResourceContexts behind, dropped its finalizer while Pods existed, or waited for ever.
func TestFailure06DeletionBlockedOrLeaking(t *testing.T) {
	for name, protocol := range map[string]bool{"under the lifecycle": true, "directly": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, protocol, collaSet(3))
			w.settle()
			w.change(both(replicas(2), image("nginx:2"))) // deleted in the middle of scaling and updating
			_, err := w.reconcile()
			require.NoError(t, err)
			require.NoError(t, w.store.Delete(t.Context(), w.set()))
			for round := 0; ; round++ {
				require.Less(t, round, 10, "it comes to an end: %v", w.written)
				w.see()
				_, err := w.reconcile()
				require.NoError(t, err)
				left := w.pods()
				set := &appsv1alpha1.CollaSet{}
				if err := w.store.Get(t.Context(), key, set); client.IgnoreNotFound(err) == nil && err != nil {
					assert.Empty(t, left, "the finalizer outlives the last Pod")
					break
				}
				require.NotNil(t, w.entries(), "the ResourceContext outlives the last Pod too")
				for _, pod := range left { // lifecycle-controller, one Pod a round
					if _, marked := pod.Labels[appsv1alpha1.ToDeleteLabel]; marked {
						require.NoError(t, w.store.Delete(t.Context(), &pod))
						break
					}
				}
				w.clock.Step(time.Second)
			}
			assert.Nil(t, w.entries(), "no ResourceContext is left")
			_, err = w.reconcile()
			require.NoError(t, err)
			w.see()
			_, err = w.reconcile()
			require.NoError(t, err, "a CollaSet that is gone is no error")
		})
	}
}

// Kuperator wrote timestamps into labels and conditions in every round, and each write made another round.
func TestFailure08EndlessSelfInflictedWrites(t *testing.T) {
	for name, prepare := range map[string]func(*world){
		"at the goal":                        func(*world) {},
		"a Pod marked for deletion":          func(w *world) { w.change(toDelete(w.pods()[1].Name)) },
		"an update that waits for the rules": func(w *world) { w.change(image("nginx:2")) },
		"a scale-in that waits":              func(w *world) { w.change(replicas(1)) },
		"paused with something to do":        func(w *world) { w.change(both(image("nginx:2"), replicas(5), paused)) },
		"in place only, and impossible": func(w *world) {
			w.change(func(s *appsv1alpha1.CollaSetSpec) {
				s.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceOnly
				s.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "1"}}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true, collaSet(3))
			w.settle()
			prepare(w)
			for range 4 {
				_, err := w.reconcile()
				require.NoError(t, err)
				w.see()
				w.clock.Step(10 * time.Minute) // the progress deadline passes, which is told of
			}
			w.forget()
			recorder := w.r.events.(*events.FakeRecorder)
			said := len(recorder.Events)
			for range 5 {
				_, err := w.reconcile()
				require.NoError(t, err)
				w.see()
				w.clock.Step(time.Hour)
			}
			assert.Empty(t, w.written)
			assert.Len(t, recorder.Events, said, "events once per change, too")
		})
	}
}

func toDelete(names ...string) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) { s.ScaleStrategy.PodToDelete = names }
}

func paused(s *appsv1alpha1.CollaSetSpec) { s.Paused = true }

// Kuperator's ResourceContext kept the failing template for IDs whose Pods had never come, whatever the spec said.
func TestFailure10BadRevisionCannotBeRepaired(t *testing.T) {
	unfit := func(what string, o client.Object) error {
		raw, err := json.Marshal(o)
		if err == nil && what == "create Pod" && strings.Contains(string(raw), "nginx:bad") {
			return errUnfit
		}
		return err
	}
	for name, prepare := range map[string]func(*world){
		"a new CollaSet of a bad template": func(w *world) { w.change(both(image("nginx:bad"), replicas(2))) },
		"scaled out with a bad template": func(w *world) {
			w.change(replicas(2))
			w.settle()
			w.change(both(image("nginx:bad"), replicas(4), partition(2)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true, collaSet(0))
			w.settle()
			prepare(w)
			w.refuse = unfit
			for range 6 {
				w.see()
				_, _ = w.reconcile() // it fails, or not: the bad ones do not come
				w.serve()
				w.clock.Step(time.Second)
			}
			w.refuse = unfit
			want := int(*w.set().Spec.Replicas)
			w.change(both(image("nginx:good"), partition(0)))
			for range 10 {
				w.see()
				_, _ = w.reconcile()
				w.serve()
				w.clock.Step(time.Second)
			}
			good := 0
			updated := w.set().Status.UpdatedRevision
			for _, pod := range w.pods() {
				assert.NotContains(t, pod.Spec.Containers[0].Image, ":bad")
				if pod.Labels[appsv1.ControllerRevisionHashLabelKey] == updated {
					good++
				}
			}
			assert.Len(t, w.pods(), want, "every Pod that was missing is there")
			assert.Positive(t, good)
		})
	}
}

// Kuperator's reconciler shared maps and flags between its goroutines. The race detector watches.
func TestFailure13SharedMutableStateOfTheReconciler(t *testing.T) {
	var objects []client.Object
	const sets = 6
	for i := range sets {
		set := collaSet(4)
		set.Name, set.UID = fmt.Sprintf("web-%d", i), types.UID(fmt.Sprintf("web-%d", i))
		set.Spec.Selector.MatchLabels["app"], set.Spec.Template.Labels["app"] = set.Name, set.Name
		objects = append(objects, set)
	}
	w := newWorld(t, true, objects...)
	for range 3 {
		var all sync.WaitGroup
		errs := make([]error, sets)
		for i := range sets {
			all.Go(func() {
				_, errs[i] = w.r.Reconcile(t.Context(),
					ctrl.Request{NamespacedName: types.NamespacedName{Namespace: key.Namespace, Name: fmt.Sprintf("web-%d", i)}})
			})
		}
		all.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		w.see()
	}
	assert.Len(t, w.pods(), sets*4)
}

// Kuperator's admission filled in defaults of Kubernetes, so a new version of it was a rollout of everything.
func TestFailure15MutatingDefaultsMakeNoRevision(t *testing.T) {
	set := collaSet(2)
	set.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists},
		{Key: "b", Operator: corev1.TolerationOpExists}}
	w := newWorld(t, true, set)
	w.settle()
	before := w.set().Status.UpdatedRevision
	w.change(func(s *appsv1alpha1.CollaSetSpec) { // what the API server, or another client, makes of the same template
		s.Template.CreationTimestamp = metav1.Time{}
		s.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{},
			Requests: corev1.ResourceList{}}
		s.Template.Spec.Containers[0].TerminationMessagePath = corev1.TerminationMessagePathDefault
		s.Template.Spec.SecurityContext = &corev1.PodSecurityContext{}
		s.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
		slices.Reverse(s.Template.Spec.Tolerations)
		s.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceIfPossible
		s.HistoryLimit = ptr.To[int32](20)
	})
	_, err := w.reconcile()
	require.NoError(t, err)
	assert.Equal(t, before, w.set().Status.UpdatedRevision)
	assert.Zero(t, w.count("create ControllerRevision"))
	assert.Zero(t, w.count("patch Pod")+w.count("delete Pod"))
	raw, err := json.Marshal(w.revisions()[0].Data)
	require.NoError(t, err)
	assert.NotContains(t, string(raw), "terminationMessagePath", "nothing is defaulted into what is kept")
}
