package collaset

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/freshness"
)

// seeManaged brings the cache up to date: it selects by label, as that of the program does.
func (w *world) seeManaged() {
	w.Helper()
	w.show(slices.DeleteFunc(w.all(), func(o client.Object) bool {
		return (isPod(o) || is[*corev1.PersistentVolumeClaim](o)) &&
			o.GetLabels()[appsv1alpha1.ControlLabel] != appsv1alpha1.ControlValue
	})...)
}

// settleManaged is settle with such a cache.
func (w *world) settleManaged() {
	w.Helper()
	for range 30 {
		w.seeManaged()
		before := len(w.written)
		result, err := w.reconcile()
		require.NoError(w, err)
		w.serve()
		w.clock.Step(max(time.Second, result.RequeueAfter))
		if len(w.written) == before && result.RequeueAfter == 0 {
			return
		}
	}
	w.Fatalf("writes without end: %v", w.written)
}

// edit changes an object as another client does.
func edit[T client.Object](w *world, object T, change func(T)) {
	w.Helper()
	require.NoError(w, w.store.Get(w.Context(), client.ObjectKeyFromObject(object), object))
	change(object)
	require.NoError(w, w.store.Update(w.Context(), object))
}

func lacking(keys ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		for _, key := range keys {
			delete(pod.Labels, key)
		}
	}
}

// Whatever is taken off a Pod by which it is found, it stays the one Pod of its instance ID, with its claim, and gets
// back what it lacks.
func TestAPodIsFoundWhateverItLacks(t *testing.T) {
	for name, lose := range map[string]func(*corev1.Pod){
		"the label that it is managed":       lacking(appsv1alpha1.ControlLabel),
		"that and the instance ID":           lacking(appsv1alpha1.ControlLabel, appsv1alpha1.InstanceIDLabel),
		"the instance ID":                    lacking(appsv1alpha1.InstanceIDLabel),
		"the instance ID, and has another's": func(pod *corev1.Pod) { pod.Labels[appsv1alpha1.InstanceIDLabel] = "0" },
		"the revision":                       lacking(appsv1.ControllerRevisionHashLabelKey),
		"the owner":                          func(pod *corev1.Pod) { pod.OwnerReferences = nil },
		"an owner that is there":             func(pod *corev1.Pod) { pod.OwnerReferences[0].UID = "gone" },
		"that the owner is its controller":   func(pod *corev1.Pod) { pod.OwnerReferences[0].Controller = nil },
		"the owner, though others own it too": func(pod *corev1.Pod) {
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x"}}
		},
	} {
		for _, claims := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, claims %t", name, claims), func(t *testing.T) {
				set := collaSet(3)
				if claims {
					set = withClaims(3)
				}
				w := newWorld(t, true, set)
				w.settleManaged()
				before, pod := w.pods(), w.pods()[1]
				made := w.claims()
				w.forget()
				w.events()
				edit(w, &pod, lose)
				if name == "the label that it is managed" {
					edit(w, set, func(s *appsv1alpha1.CollaSet) { s.Spec.Paused = true }) // that is no reason to make another
				}
				w.settleManaged()
				assert.Zero(t, w.count("create Pod")+w.count("delete Pod")+w.count("create PersistentVolumeClaim"), "%v", w.written)
				require.Len(t, w.pods(), 3)
				now := w.pod(pod.Name)
				assert.Equal(t, before[1].UID, now.UID)
				assert.True(t, metav1.IsControlledBy(now, w.set()))
				for _, key := range []string{appsv1alpha1.ControlLabel, appsv1alpha1.InstanceIDLabel,
					appsv1.ControllerRevisionHashLabelKey} {
					assert.Equal(t, before[1].Labels[key], now.Labels[key], key)
				}
				assert.Equal(t, claimNames(made), claimNames(w.claims()))
				assert.Len(t, w.entries(), 3)
				said := w.events()
				if len(now.OwnerReferences) > 0 && (name == "the owner" || name == "an owner that is there") {
					assert.Contains(t, said, "Normal Adopted Pod "+pod.Name+" had no owner")
				}
			})
		}
	}
}

func TestAnEventTellsOfALabelThatWasPutBack(t *testing.T) {
	w := newWorld(t, true, collaSet(2))
	w.settleManaged()
	w.events()
	pod := w.pods()[1]
	edit(w, &pod, lacking(appsv1alpha1.ControlLabel))
	w.settleManaged()
	assert.Contains(t, w.events(), "Warning LabelsRestored Pod "+pod.Name+
		" is this CollaSet's and lacked kusionstack.io/control=true, which was put back; "+
		"to take a Pod out, name it in spec.scaleStrategy.podToExclude")
}

// Pods that were seen to end are not looked for, so that what goes as it should costs no list.
func TestAPodThatHasEndedIsNotLookedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		last  func(*corev1.Pod)
		looks vacancy
	}{
		"deleted, and its node is done with it": {func(pod *corev1.Pod) {
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = ptr.To(metav1.Now()), ptr.To(int64(0))
		}, nothingLost},
		"being deleted": {func(pod *corev1.Pod) {
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = ptr.To(metav1.Now()), ptr.To(int64(30))
		}, somethingLost},
		"as it was": {func(*corev1.Pod) {}, somethingLost},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true, collaSet(2))
			w.settleManaged()
			m := &w.r.memory.Find(key, w.set().UID).strays
			require.Equal(t, nothingLost, m.vacancy)
			pod := w.pods()[1]
			tc.last(&pod)
			w.listener().noteEnd(event.DeleteEvent{Object: &pod})
			m.missing([]setplan.Pod{podOf(&pod, labels.Everything())}, nil, true)
			assert.Equal(t, tc.looks, m.vacancy)
		})
	}
	t.Run("nobody remembers what was there", func(t *testing.T) {
		m := &knownStrays{vacancy: nothingLost}
		m.missing(nil, nil, false)
		assert.Equal(t, somethingLost, m.vacancy)
	})
}

// A repair that is refused keeps the instance ID, and does not have the controller go round.
func TestARepairThatIsRefusedHoldsNothingElse(t *testing.T) {
	w := newWorld(t, true, collaSet(2))
	w.settleManaged()
	pod := w.pods()[1]
	edit(w, &pod, lacking(appsv1alpha1.ControlLabel))
	w.change(replicas(3))
	w.refuse = func(what string, object client.Object) error {
		if what == "patch Pod" && object.GetName() == pod.Name {
			return errQuota
		}
		return nil
	}
	for range 4 {
		w.seeManaged()
		_, _ = w.reconcile()
		w.serve()
		w.clock.Step(time.Second)
	}
	assert.Len(t, w.pods(), 3)
	assert.Equal(t, "ScaleOutFailed", w.condition(appsv1alpha1.CollaSetScale).Reason)
	w.refuse = nil
	w.settleManaged()
	assert.Equal(t, appsv1alpha1.ControlValue, w.pod(pod.Name).Labels[appsv1alpha1.ControlLabel])
	assert.Len(t, w.pods(), 3)
}

// restored is what a backup tool brings back of a world: new UIDs, no owners, no status.
func restored(w *world, owners func(client.Object)) []client.Object {
	var out []client.Object
	for i, o := range w.all() {
		o.SetUID(types.UID(fmt.Sprintf("restored-%d", i)))
		o.SetResourceVersion("")
		o.SetFinalizers(nil)
		o.SetOwnerReferences(nil)
		switch object := o.(type) {
		case *appsv1alpha1.CollaSet:
			object.Status = appsv1alpha1.CollaSetStatus{}
		default:
			owners(o)
		}
		out = append(out, o)
	}
	return out
}

// A namespace that comes back from a backup, or a CollaSet that is made again over what it had left, goes on with the
// same Pods.
func TestARestoredNamespaceKeepsItsPods(t *testing.T) {
	dangle := func(o client.Object) {
		if !is[*appsv1alpha1.ResourceContext](o) && !is[*corev1.PersistentVolumeClaim](o) {
			ref := ownerReference(collaSet(1))
			ref.UID = "gone"
			o.SetOwnerReferences([]metav1.OwnerReference{ref})
		}
	}
	for name, tc := range map[string]struct {
		owners func(client.Object)
		change func(*appsv1alpha1.CollaSetSpec)
		lost   func(client.Object) bool
	}{
		"without owners":              {owners: func(client.Object) {}},
		"with owners that are gone":   {owners: dangle},
		"without its ResourceContext": {owners: func(client.Object) {}, lost: is[*appsv1alpha1.ResourceContext]},
		"without its revisions":       {owners: func(client.Object) {}, lost: is[*appsv1.ControllerRevision]},
		"with names in sequence":      {owners: func(client.Object) {}, change: sequential},
		"with names in sequence, left by orphans": {owners: func(client.Object) {}, change: sequential,
			lost: is[*appsv1alpha1.ResourceContext]},
	} {
		for _, claims := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, claims %t", name, claims), func(t *testing.T) {
				set := collaSet(3)
				if claims {
					set = withClaims(3)
				}
				if tc.change != nil {
					tc.change(&set.Spec)
				}
				before := newWorld(t, true, set)
				before.settleManaged()
				objects := restored(before, tc.owners)
				if tc.lost != nil {
					objects = slices.DeleteFunc(objects, tc.lost)
				}
				w := newWorld(t, true, objects...)
				was := w.pods()
				require.Len(t, was, 3)
				w.settleManaged()
				assert.Zero(t, w.count("create Pod")+w.count("delete Pod")+w.count("create PersistentVolumeClaim"), "%v", w.written)
				now := w.pods()
				require.Len(t, now, 3)
				for i := range now {
					assert.Equal(t, was[i].UID, now[i].UID)
					assert.Equal(t, was[i].Labels[appsv1alpha1.InstanceIDLabel], now[i].Labels[appsv1alpha1.InstanceIDLabel])
					assert.Equal(t, was[i].Spec, now[i].Spec)
					require.Len(t, now[i].OwnerReferences, 1)
					assert.True(t, metav1.IsControlledBy(&now[i], w.set()))
					assert.Equal(t, w.set().Status.UpdatedRevision, now[i].Labels[appsv1.ControllerRevisionHashLabelKey])
				}
				require.Len(t, w.revisions(), 1)
				assert.True(t, metav1.IsControlledBy(&w.revisions()[0], w.set()))
				assert.Equal(t, claimNames(before.claims()), claimNames(w.claims()))
				assert.Len(t, w.entries(), 3)
			})
		}
	}
}

func sequential(s *appsv1alpha1.CollaSetSpec) {
	s.NamingStrategy = &appsv1alpha1.NamingStrategy{PodNamingSuffixPolicy: appsv1alpha1.PodNamingSuffixPersistentSequence}
}

// Pods that the cache does not show yet are waited for, not doubled.
func TestRestoredPodsThatTheCacheLacksAreWaitedFor(t *testing.T) {
	before := newWorld(t, true, collaSet(2))
	before.settleManaged()
	w := newWorld(t, true, restored(before, func(client.Object) {})...)
	w.seeWithoutPods()
	for range 3 {
		_, err := w.reconcile()
		require.NoError(t, err)
		assert.Zero(t, w.count("create Pod"), "%v", w.written)
	}
	w.clock.Step(2 * freshness.ReadAgain)
	w.settleManaged()
	assert.Zero(t, w.count("create Pod"), "%v", w.written)
	assert.Len(t, w.pods(), 2)
}

// What was made for another CollaSet, or is to be left alone, is not taken by any CollaSet, whatever the selectors say.
func TestPodsOfOthersAreNotAdopted(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*corev1.Pod)
		blocked bool
	}{
		"of a revision of another": {change: func(
			pod *corev1.Pod) {
			pod.Labels[appsv1.ControllerRevisionHashLabelKey] = "web-a-12345"
		}},
		"named after another": {change: func(pod *corev1.Pod) {
			delete(pod.Labels, appsv1.ControllerRevisionHashLabelKey)
			pod.Name = "web-a-x1y2z"
		}},
		"let go on purpose": {change: func(
			pod *corev1.Pod) {
			pod.Labels[appsv1alpha1.OrphanedLabel] = appsv1alpha1.OrphanedValue
		}},
		"of another controller": {change: func(pod *corev1.Pod) {
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "x",
				Controller: ptr.To(true)}}
		}},
		"not selected": {change: func(pod *corev1.Pod) { pod.Labels["app"] = "other" }, blocked: true},
	} {
		t.Run(name, func(t *testing.T) {
			first := newWorld(t, true, collaSet(1))
			first.settleManaged()
			pod := first.pods()[0]
			pod.OwnerReferences, pod.ResourceVersion = nil, ""
			tc.change(&pod)
			set := collaSet(1)
			set.UID = "another"
			w := newWorld(t, true, set, &pod)
			for range 4 {
				w.seeManaged()
				_, err := w.reconcile()
				require.NoError(t, err)
				w.clock.Step(time.Second)
			}
			assert.Equal(t, pod.OwnerReferences, w.pod(pod.Name).OwnerReferences)
			if tc.blocked {
				require.Len(t, w.pods(), 2)
				assert.Equal(t, "1", w.pods()[1].Labels[appsv1alpha1.InstanceIDLabel], "the other ID is not vacant")
				require.NotEmpty(t, w.set().Status.Blockers)
				assert.Equal(t, setplan.BlockNotAdopted, w.set().Status.Blockers[0].Reason)
				return
			}
			assert.Len(t, w.pods(), 2)
		})
	}
}

// A CollaSet that was deleted meanwhile adopts nothing.
func TestADeletedCollaSetAdoptsNothing(t *testing.T) {
	w := newWorld(t, true, collaSet(2))
	w.settleManaged()
	pod := w.pods()[1]
	edit(w, &pod, func(pod *corev1.Pod) { pod.OwnerReferences = nil })
	w.seeManaged()
	w.forget()
	require.NoError(t, w.store.Delete(t.Context(), w.set())) // which the cache does not show yet
	result, err := w.reconcile()
	looksAgain(t, result, err)
	assert.Empty(t, w.pod(pod.Name).OwnerReferences)
	assert.Zero(t, w.count("create Pod"))
}

// A claim that lacks its labels is found before another is made for its instance ID, and gets them back.
func TestAClaimIsFoundWhateverItLacks(t *testing.T) {
	for name, lose := range map[string]func(*corev1.PersistentVolumeClaim){
		"the label that it is managed": func(c *corev1.PersistentVolumeClaim) { delete(c.Labels, appsv1alpha1.ControlLabel) },
		"the instance ID": func(c *corev1.PersistentVolumeClaim) {
			delete(c.Labels,
				appsv1alpha1.InstanceIDLabel)
		},
		"the template's name": func(c *corev1.PersistentVolumeClaim) {
			delete(c.Labels,
				appsv1alpha1.ClaimTemplateNameLabel)
		},
		"the selector's labels": func(c *corev1.PersistentVolumeClaim) { delete(c.Labels, "app") },
		"all labels":            func(c *corev1.PersistentVolumeClaim) { c.Labels = nil },
		"an owner that is there": func(c *corev1.PersistentVolumeClaim) {
			ref := ownerReference(collaSet(1))
			ref.UID = "gone"
			c.OwnerReferences = []metav1.OwnerReference{ref}
		},
	} {
		for _, after := range []string{"and its Pod is re-created", "and nothing else happens", "while nobody looks"} {
			t.Run(name+", "+after, func(t *testing.T) {
				w := newWorld(t, true, withClaims(2))
				w.settleManaged()
				pod, claim := w.pods()[1], w.claims()[1]
				before := claimNames(w.claims())
				w.forget()
				edit(w, &claim, lose)
				if after == "while nobody looks" {
					w.r.memory = &stateCache{}
				}
				if after != "and nothing else happens" {
					require.NoError(t, w.store.Delete(t.Context(), &pod))
				}
				if (name == "all labels" || name == "the instance ID") && after == "while nobody looks" { // nothing tells
					for range 4 {
						w.seeManaged()
						_, err := w.reconcile()
						require.NoError(t, err)
						w.clock.Step(time.Second)
					}
					assert.Zero(t, w.count("create PersistentVolumeClaim"), "%v", w.written)
					assert.Equal(t, setplan.BlockClaimUnknown, w.set().Status.Blockers[0].Reason)
					return
				}
				w.settleManaged()
				assert.Zero(t, w.count("create PersistentVolumeClaim"), "%v", w.written)
				slices.Sort(before)
				now := claimNames(w.claims())
				slices.Sort(now)
				assert.Equal(t, before, now)
				assert.Equal(t, "data="+claim.Name, mountedBy(&w.pods()[1]))
				for _, c := range w.claims() {
					assert.Empty(t, c.OwnerReferences)
					// it is found by its own name
					assert.True(t, labelled(w.set(), &c) || name == "the template's name", "%v", c.Labels)
				}
			})
		}
	}
}

// A claim that only has a name like the CollaSet's is a user's own.
func TestAClaimThatOnlyHasTheNameIsLeftAlone(t *testing.T) {
	own := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "web-data-backup"}}
	w := newWorld(t, true, withClaims(1), own)
	w.settleManaged()
	assert.Equal(t, 1, w.count("create PersistentVolumeClaim"))
	left := &corev1.PersistentVolumeClaim{}
	require.NoError(t, w.store.Get(t.Context(), client.ObjectKeyFromObject(own), left))
	assert.Empty(t, left.Labels)
}

func TestWhoWouldAdopt(t *testing.T) {
	w := newWorld(t, true, collaSet(1))
	w.settleManaged()
	pod := w.pods()[0]
	assert.Empty(t, w.listener().wouldAdopt(t.Context(), &pod), "it has a controller")
	pod.OwnerReferences = nil
	requests := w.listener().wouldAdopt(t.Context(), &pod)
	require.Len(t, requests, 1)
	assert.Equal(t, key, requests[0].NamespacedName)
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = "other-1"
	assert.Empty(t, w.listener().wouldAdopt(t.Context(), &pod))
}

// Where it is unknown whether an instance ID is vacant, no Pod is made for it.
func TestWithoutTheListNothingIsMade(t *testing.T) {
	w := newWorld(t, true, collaSet(2))
	w.settleManaged()
	pod := w.pods()[1]
	edit(w, &pod, lacking(appsv1alpha1.ControlLabel))
	w.seeManaged()
	w.forget()
	w.r.live = failing{w.r.live}
	_, err := w.reconcile()
	require.ErrorIs(t, err, errAway)
	assert.Zero(t, w.count("create Pod"))
}

// failing is an API server that lists nothing.
type failing struct{ client.Reader }

func (failing) List(context.Context, client.ObjectList, ...client.ListOption) error { return errAway }
