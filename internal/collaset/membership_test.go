package collaset

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/revision"
)

func exclude(names ...string) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) { s.ScaleStrategy.PodToExclude = names }
}

func include(names ...string) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) { s.ScaleStrategy.PodToInclude = names }
}

// pod is a Pod at the API server.
func (w *world) pod(name string) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{}
	require.NoError(w, w.store.Get(w.Context(), client.ObjectKey{Namespace: key.Namespace, Name: name}, pod))
	return pod
}

// said reports whether an event with this text was recorded, and forgets the others.
func (w *world) said(text string) bool {
	recorder := w.r.events.(*events.FakeRecorder)
	for {
		select {
		case e := <-recorder.Events:
			if e == text {
				return true
			}
		default:
			return false
		}
	}
}

func TestAPodIsLetGo(t *testing.T) {
	for name, ask := range map[string]func(*world, *corev1.Pod){
		"named": func(w *world, pod *corev1.Pod) { w.change(both(exclude(pod.Name), replicas(2))) },
		"labelled": func(w *world, pod *corev1.Pod) {
			pod.Labels[appsv1alpha1.ToExcludeLabel] = "yes"
			require.NoError(w, w.store.Update(w.Context(), pod))
			w.change(replicas(2))
		},
		"not selected": func(w *world, pod *corev1.Pod) {
			pod.Labels["app"] = "other"
			require.NoError(w, w.store.Update(w.Context(), pod))
			w.change(replicas(2))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true, collaSet(3))
			w.settle()
			pod := w.pods()[1]
			pod.OwnerReferences = append(pod.OwnerReferences,
				metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x"})
			require.NoError(t, w.store.Update(t.Context(), &pod))
			ask(w, &pod)
			result, err := w.reconcile()
			require.NoError(t, err)
			assert.Positive(t, result.RequeueAfter, "and it looks again at once")
			assert.Equal(t, 1, w.count("patch Pod"), "one write")
			assert.Equal(t, 1, w.count("update ResourceContext"))
			got := w.pod(pod.Name)
			require.Len(t, got.OwnerReferences, 1, "that of others stays")
			assert.Equal(t, "ConfigMap", got.OwnerReferences[0].Kind)
			assert.Equal(t, appsv1alpha1.OrphanedValue, got.Labels[appsv1alpha1.OrphanedLabel])
			assert.NotContains(t, got.Labels, appsv1alpha1.ToExcludeLabel)
			assert.Equal(t, "1", got.Labels[appsv1alpha1.InstanceIDLabel])
			assert.NotContains(t, w.entries(), 1)
			assert.True(t, w.said("Normal Excluded Pod "+pod.Name+" was excluded"))
			w.settle()
			assert.Len(t, w.pods(), 3, "two of ours and the one that left")
			assert.Len(t, w.entries(), 2)
		})
	}
}

func TestHalfOfAPairIsLetGoWithoutItsLabels(t *testing.T) {
	w := newWorld(t, true, collaSet(2))
	w.settle()
	pod := w.pods()[0]
	pod.Labels[appsv1alpha1.ToReplaceLabel] = "yes"
	require.NoError(t, w.store.Update(t.Context(), &pod))
	w.settle()
	require.Len(t, w.pods(), 3)
	pod = *w.pod(pod.Name)
	require.Contains(t, pod.Labels, appsv1alpha1.ToDeleteLabel, "its replacement serves")
	w.change(both(exclude(pod.Name), replicas(1)))
	_, err := w.reconcile()
	require.NoError(t, err)
	got := w.pod(pod.Name)
	require.Equal(t, appsv1alpha1.OrphanedValue, got.Labels[appsv1alpha1.OrphanedLabel])
	for _, label := range append(setplan.ReplacementLabels[:], appsv1alpha1.ToDeleteLabel) {
		assert.NotContains(t, got.Labels, label)
	}
}

func TestAPodThatIsNotLetGoKeepsItsEntry(t *testing.T) {
	for name, answer := range map[string]error{"a conflict": errConflict, "a server error": errAway} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true, collaSet(3))
			w.settle()
			w.change(exclude(w.pods()[1].Name))
			w.refuse = refusing("patch Pod", answer)
			result, err := w.reconcile()
			if name == "a conflict" {
				looksAgain(t, result, err)
			} else {
				require.ErrorIs(t, err, answer)
				assert.ErrorContains(t, err, "excluding Pod")
			}
			assert.Zero(t, w.count("update ResourceContext"))
			assert.Contains(t, w.entries(), 1)
			w.forget()
			w.settle()
			assert.Len(t, w.pods(), 4)
		})
	}
}

// ownerless is a managed Pod without a controller.
func ownerless(name string) *corev1.Pod {
	pod := fullPod()
	pod.Name, pod.UID, pod.OwnerReferences, pod.ResourceVersion = name, "ownerless", nil, ""
	pod.Labels = map[string]string{"app": key.Name, appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue,
		appsv1alpha1.OrphanedLabel: appsv1alpha1.OrphanedValue}
	pod.Finalizers, pod.Annotations = nil, nil
	return pod
}

func TestAPodIsTakenIn(t *testing.T) {
	w := newWorld(t, true, collaSet(2))
	w.settle()
	require.NoError(t, w.store.Create(t.Context(), ownerless("old")))
	w.change(both(include("old", "old"), replicas(3)))
	_, err := w.reconcile()
	require.NoError(t, err)
	got := w.pod("old")
	owner := metav1.GetControllerOf(got)
	require.NotNil(t, owner)
	assert.Equal(t, w.set().UID, owner.UID)
	assert.Equal(t, "2", got.Labels[appsv1alpha1.InstanceIDLabel])
	assert.NotContains(t, got.Labels, appsv1alpha1.OrphanedLabel)
	assert.Contains(t, w.entries(), 2)
	assert.Equal(t, []string{"update ResourceContext", "patch Pod"}, w.written[:2], "the entry first")
	assert.Zero(t, w.count("create Pod"))
	assert.True(t, w.said("Normal Included Pod old was included"))
}

// A user who waits until a Pod is free, and then asks for it and for one Pod more, gets it and no other one.
func TestAPodThatHasJustBecomeFreeIsTakenIn(t *testing.T) {
	w := newWorld(t, true, collaSet(2))
	w.settle()
	pod := ownerless("old")
	pod.OwnerReferences = fullPod().OwnerReferences
	pod.OwnerReferences[0].UID, pod.OwnerReferences[0].Name = "x", "x"
	require.NoError(t, w.store.Create(t.Context(), pod))
	w.change(both(include("old"), replicas(3)))
	pod.OwnerReferences = nil
	require.NoError(t, w.store.Update(t.Context(), pod)) // which the cache does not show yet
	_, err := w.reconcile()
	require.NoError(t, err)
	owner := metav1.GetControllerOf(w.pod("old"))
	require.NotNil(t, owner)
	assert.Equal(t, w.set().UID, owner.UID)
	w.settle()
	assert.Zero(t, w.count("create Pod"))
	assert.Len(t, w.pods(), 3)
}

// moved is a Pod that a CollaSet named other has let go, and that CollaSet's revision of it.
func moved(t *testing.T, like *appsv1alpha1.CollaSet) (*corev1.Pod, *appsv1.ControllerRevision) {
	t.Helper()
	like.Name, like.UID = "other", "other"
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&like.Spec)
	require.NoError(t, err)
	data, err := revision.Render(spec)
	require.NoError(t, err)
	cr := newRevision(like, data, 0, 3)
	cr.UID = "revision of other"
	pod := ownerless("old")
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = cr.Name
	pod.Spec.Containers = like.Spec.Template.Spec.Containers
	return pod, cr
}

// A Pod that one CollaSet lets go and another takes in goes on running where the templates allow it.
func TestAPodThatIsTakenInKeepsRunning(t *testing.T) {
	for name, tc := range map[string]struct {
		other, own func(*appsv1alpha1.CollaSetSpec)
		// brought is true if the set has the Pod's revision then, stays that the Pod is not re-created.
		brought, stays bool
		image          string
	}{
		"the same template": {brought: true, stays: true, image: "nginx:1"},
		"another image, updated in place": {
			other: image("nginx:0"), brought: true, stays: true, image: "nginx:1",
		},
		"another image, which is not to be updated": {
			other: image("nginx:0"), own: func(s *appsv1alpha1.CollaSetSpec) {
				s.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByLabel: &appsv1alpha1.ByLabel{}}
			}, brought: true, stays: true, image: "nginx:0",
		},
		"another image, with no history kept": {
			other: image("nginx:0"), own: func(s *appsv1alpha1.CollaSetSpec) { s.HistoryLimit = ptr.To(int32(0)) }, stays: true,
			image: "nginx:1",
		},
		"what only another Pod can have": {
			other: func(s *appsv1alpha1.CollaSetSpec) { s.Template.Spec.HostNetwork = true }, brought: true, image: "nginx:1",
		},
		"of a template that the set does not select": {
			other: both(image("nginx:0"),
				func(s *appsv1alpha1.CollaSetSpec) { s.Template.Labels = map[string]string{"app": "other"} }), image: "nginx:1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			set, like := collaSet(2), collaSet(2)
			if tc.own != nil {
				tc.own(&set.Spec)
			}
			if tc.other != nil {
				tc.other(&like.Spec)
			}
			pod, cr := moved(t, like)
			w := newWorld(t, false, set, cr)
			w.settle()
			require.NoError(t, w.store.Create(t.Context(), pod))
			w.change(both(include("old"), replicas(3)))
			_, err := w.reconcile()
			require.NoError(t, err)
			if owner := metav1.GetControllerOf(w.pod("old")); assert.NotNil(t, owner) {
				assert.Equal(t, w.set().UID, owner.UID)
			}
			w.settle()
			require.Len(t, w.pods(), 3)
			last, own := w.pods()[2], map[string]bool{}
			for _, r := range w.revisions() {
				own[r.Name] = metav1.IsControlledBy(&r, w.set())
			}
			assert.Equal(t, tc.stays, last.Name == "old")
			assert.Equal(t, tc.image, last.Spec.Containers[0].Image)
			assert.True(t, own[last.Labels[appsv1.ControllerRevisionHashLabelKey]], last.Labels)
			assert.Equal(t, tc.brought, own[revision.Name(key.Name, cr.Labels[appsv1alpha1.RevisionHashLabel])])
			assert.Equal(t, last.Labels[appsv1.ControllerRevisionHashLabelKey], w.entries()[2][appsv1alpha1.ContextRevision])
		})
	}
	t.Run("its revision is kept when the Pod does not follow at once", func(t *testing.T) {
		like := collaSet(2)
		image("nginx:0")(&like.Spec)
		pod, cr := moved(t, like)
		w := newWorld(t, false, collaSet(2), cr)
		w.settle()
		require.NoError(t, w.store.Create(t.Context(), pod))
		w.change(both(include("old"), replicas(3)))
		w.refuse = refusing("patch Pod", errConflict)
		result, err := w.reconcile()
		looksAgain(t, result, err)
		w.forget()
		w.settle()
		assert.Equal(t, "nginx:1", w.pod("old").Spec.Containers[0].Image)
		assert.Len(t, w.revisions(), 3)
	})
	t.Run("a revision of no CollaSet says nothing", func(t *testing.T) {
		pod, cr := moved(t, collaSet(2))
		cr.OwnerReferences[0].Kind = "StatefulSet"
		w := newWorld(t, false, collaSet(2), cr)
		w.settle()
		require.NoError(t, w.store.Create(t.Context(), pod))
		w.change(both(include("old"), replicas(3)))
		w.settle()
		require.Len(t, w.pods(), 3)
		assert.NotEqual(t, "old", w.pods()[2].Name)
	})
}

func TestAPodIsNotTakenInBeforeItsEntryIsStored(t *testing.T) {
	w := newWorld(t, true, collaSet(2))
	w.settle()
	require.NoError(t, w.store.Create(t.Context(), ownerless("old")))
	w.change(include("old"))
	w.refuse = refusing("update ResourceContext", errConflict)
	result, err := w.reconcile()
	looksAgain(t, result, err)
	assert.Nil(t, metav1.GetControllerOf(w.pod("old")))
}

func TestAPodThatCannotBeTakenInIsSaid(t *testing.T) {
	for says, change := range map[string]func(*corev1.Pod){
		"set the label on it": func(pod *corev1.Pod) { pod.Name = "another" },
		"belongs to CollaSet x": func(pod *corev1.Pod) {
			pod.OwnerReferences = fullPod().OwnerReferences
			pod.OwnerReferences[0].UID = "x"
			pod.OwnerReferences[0].Name = "x"
		},
		"spec.selector": func(pod *corev1.Pod) { pod.Labels["app"] = "other" },
	} {
		t.Run(says, func(t *testing.T) {
			w := newWorld(t, true, collaSet(1))
			w.settle()
			pod := ownerless("old")
			change(pod)
			require.NoError(t, w.store.Create(t.Context(), pod))
			w.change(include("old"))
			w.clock.Step(time.Second)
			_, err := w.reconcile()
			require.NoError(t, err)
			require.Len(t, w.set().Status.Blockers, 1)
			assert.Equal(t, "IncludeNotAllowed", w.set().Status.Blockers[0].Reason)
			assert.Contains(t, w.set().Status.Blockers[0].Message, says)
		})
	}
}

func TestAPodThatNobodyHasConcernsWhoWaitsForIt(t *testing.T) {
	set, other := collaSet(1), collaSet(1)
	include("old", "older")(&set.Spec)
	other.Name, other.UID = "other", "other"
	w := newWorld(t, true, set, other)
	got := w.listener().wouldInclude(t.Context(), ownerless("old"))
	require.Len(t, got, 1)
	assert.Equal(t, key, got[0].NamespacedName)
	assert.Empty(t, w.listener().wouldInclude(t.Context(), ownerless("young")))
	owned := ownerless("old")
	owned.OwnerReferences = fullPod().OwnerReferences
	assert.Empty(t, w.listener().wouldInclude(t.Context(), owned))
}

// pooled is a CollaSet that takes its instance IDs from a pool.
func pooled(name, pool string) *appsv1alpha1.CollaSet {
	set := collaSet(2)
	set.Name, set.Spec.ScaleStrategy.Context = name, pool
	return set
}

func TestAResourceContextConcernsWhoUsesIt(t *testing.T) {
	named, first, second := pooled("pool", ""), pooled("a", "pool"), pooled("b", "other")
	named.UID, first.UID, second.UID = "1", "2", "3"
	w := newWorld(t, true, named, first, second)
	var names []string
	rc := &appsv1alpha1.ResourceContext{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "pool"}}
	for _, request := range w.listener().usersOf(t.Context(), rc) {
		names = append(names, request.Name)
	}
	assert.ElementsMatch(t, []string{"pool", "a"}, names)
	assert.Empty(t, w.listener().usersOf(t.Context(), ownerless("old")))
}

func TestEntriesOfOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		other []client.Object
		// unseen is true if the cache does not show it.
		unseen   bool
		wantKept bool
	}{
		"of a set with the same pool are kept": {other: []client.Object{pooled("other", key.Name)},
			wantKept: true},
		"of a set that the cache does not show yet are kept": {other: []client.Object{pooled("other", key.Name)},
			unseen: true, wantKept: true},
		"of a set that is gone are dropped": {},
		"of a set with another pool are dropped": {other: []client.Object{pooled("other",
			"elsewhere")}},
		"of a set with its own pool, which is no pool, are dropped too": {other: []client.Object{pooled("other", "")}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, o := range tc.other {
				o.SetUID("other")
			}
			rc := &appsv1alpha1.ResourceContext{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
			rc.Spec.Contexts = []appsv1alpha1.ContextDetail{{ID: 0,
				Data: map[string]string{appsv1alpha1.ContextOwner: "other", "unknown": "kept"}}}
			w := newWorld(t, true, append(tc.other, collaSet(2), rc)...)
			if tc.unseen {
				w.show(without(w, "other")...)
			}
			for range 2 {
				_, err := w.reconcile()
				require.NoError(t, err)
			}
			entries := w.entries()
			if tc.wantKept {
				assert.Equal(t, map[string]string{appsv1alpha1.ContextOwner: "other", "unknown": "kept"}, entries[0])
				assert.Contains(t, entries, 1)
				assert.Contains(t, entries, 2)
				return
			}
			assert.Equal(t, key.Name, entries[0][appsv1alpha1.ContextOwner])
			assert.Len(t, entries, 2)
		})
	}
}

// without are the objects of the API server but the CollaSet of that name.
func without(w *world, name string) []client.Object {
	var shown []client.Object
	for _, o := range w.all() {
		if !is[*appsv1alpha1.CollaSet](o) || o.GetName() != name {
			shown = append(shown, o)
		}
	}
	return shown
}

func TestADeletedSetFreesOnlyItsOwnEntries(t *testing.T) {
	set, other := collaSet(1), pooled("other", key.Name)
	other.UID = "other"
	rc := &appsv1alpha1.ResourceContext{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	rc.Spec.Contexts = []appsv1alpha1.ContextDetail{{ID: 0, Data: map[string]string{appsv1alpha1.ContextOwner: "other"}}}
	w := newWorld(t, false, set, other, rc)
	w.settle()
	require.Len(t, w.entries(), 2)
	require.NoError(t, w.store.Delete(t.Context(), w.set()))
	for range 6 {
		w.see()
		_, err := w.reconcile()
		require.NoError(t, err)
		w.clock.Step(time.Second)
	}
	assert.Error(t, w.store.Get(context.Background(), key, &appsv1alpha1.CollaSet{}))
	assert.Equal(t, map[int]map[string]string{0: {appsv1alpha1.ContextOwner: "other"}}, w.entries())
}
