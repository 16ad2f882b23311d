package collaset

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

var claimsResource = schema.GroupResource{Resource: "persistentvolumeclaims"}

func storage(size string) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) {
		s.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
			ObjectMeta: metav1.ObjectMeta{Name: "data", Labels: map[string]string{"team": "one"}},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
			},
		}}
	}
}

func retention(deleted, scaled, changed bool) func(*appsv1alpha1.CollaSetSpec) {
	word := func(deletes bool) appsv1alpha1.PersistentVolumeClaimRetentionPolicyType {
		if deletes {
			return appsv1alpha1.DeletePersistentVolumeClaim
		}
		return appsv1alpha1.RetainPersistentVolumeClaim
	}
	return func(s *appsv1alpha1.CollaSetSpec) {
		s.ScaleStrategy.PersistentVolumeClaimRetentionPolicy = &appsv1alpha1.PersistentVolumeClaimRetentionPolicy{
			WhenDeleted: word(deleted), WhenScaled: word(scaled), WhenTemplateChanged: word(changed),
		}
	}
}

// withClaims is web with a claim template.
func withClaims(n int32, changes ...func(*appsv1alpha1.CollaSetSpec)) *appsv1alpha1.CollaSet {
	set := collaSet(n)
	storage("1Gi")(&set.Spec)
	both(changes...)(&set.Spec)
	return set
}

func (w *world) claims() []corev1.PersistentVolumeClaim {
	w.Helper()
	list := &corev1.PersistentVolumeClaimList{}
	require.NoError(w, w.store.List(w.Context(), list))
	slices.SortFunc(list.Items, func(a, b corev1.PersistentVolumeClaim) int {
		return strings.Compare(a.Labels[appsv1alpha1.InstanceIDLabel]+a.Name, b.Labels[appsv1alpha1.InstanceIDLabel]+b.Name)
	})
	return list.Items
}

func claimNames(claims []corev1.PersistentVolumeClaim) []string {
	var out []string
	for _, c := range claims {
		out = append(out, c.Name)
	}
	return out
}

func mountedBy(pod *corev1.Pod) string {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			return v.Name + "=" + v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

func (w *world) events() string {
	said := ""
	for {
		select {
		case line := <-w.r.events.(*events.FakeRecorder).Events:
			said += line + "\n"
		default:
			return said
		}
	}
}

func TestPodsGetClaims(t *testing.T) {
	w := newWorld(t, true, withClaims(2))
	w.settle()
	pods, claims := w.pods(), w.claims()
	require.Len(t, pods, 2)
	require.Len(t, claims, 2)
	for i, c := range claims {
		assert.Equal(t, "web-data-", c.GenerateName)
		assert.Equal(t, map[string]string{
			"app": "web", "team": "one", "kusionstack.io/control": "true", "collaset.kusionstack.io/instance-id": fmt.Sprint(i),
			"collaset.kusionstack.io/pvc-template-name": "data",
			"collaset.kusionstack.io/pvc-template-hash": c.Labels[appsv1alpha1.ClaimTemplateHashLabel],
		}, c.Labels)
		assert.Empty(t, c.OwnerReferences, "no deletion takes it along")
		assert.Equal(t, "data="+c.Name, mountedBy(&pods[i]))
		assert.Equal(t, "1Gi", c.Spec.Resources.Requests.Storage().String())
	}
}

func TestClaimsOfASetThatDeletesThemHaveAnOwner(t *testing.T) {
	w := newWorld(t, true, withClaims(1, retention(true, false, false)))
	w.settle()
	claims := w.claims()
	require.Len(t, claims, 1)
	require.Len(t, claims[0].OwnerReferences, 1)
	assert.True(t, metav1.IsControlledBy(&claims[0], w.set()))
	assert.Nil(t, claims[0].OwnerReferences[0].BlockOwnerDeletion)
	w.change(retention(false, false, false))
	w.settle()
	assert.Empty(t, w.claims()[0].OwnerReferences)
	w.change(retention(true, false, false))
	w.settle()
	assert.Len(t, w.claims()[0].OwnerReferences, 1, "adopted again")
}

func TestClaimsAreNeverMadeTwice(t *testing.T) {
	t.Run("a Pod that fails leaves its claim for the next attempt", func(t *testing.T) {
		w := newWorld(t, true, withClaims(2))
		w.refuse = refusing("create Pod", errAway)
		_, err := w.reconcile()
		require.Error(t, err)
		require.Len(t, w.claims(), 1)
		assert.Empty(t, w.pods())
		first := w.claims()[0].Name
		w.forget()
		w.settle()
		assert.Len(t, w.claims(), 2)
		assert.Equal(t, "data="+first, mountedBy(&w.pods()[0]))
	})
	t.Run("a restart with a cache that lacks the claim waits for it", func(t *testing.T) {
		w := newWorld(t, true, withClaims(1))
		w.refuse = refusing("create Pod", errAway)
		_, err := w.reconcile()
		require.Error(t, err)
		w.forget()
		// Another process, whose cache has everything but the claim.
		again := newWorld(t, true, w.all()...)
		again.show(slices.DeleteFunc(again.all(), is[*corev1.PersistentVolumeClaim])...)
		result, err := again.reconcile()
		require.NoError(t, err)
		assert.Positive(t, result.RequeueAfter)
		assert.Zero(t, again.count("create PersistentVolumeClaim"))
		assert.Zero(t, again.count("create Pod"))
		again.settle()
		assert.Len(t, again.claims(), 1)
		assert.Len(t, again.pods(), 1)
	})
	t.Run("an answer that is lost is looked up", func(t *testing.T) {
		w := newWorld(t, true, withClaims(1))
		w.see()
		w.refuse = func(what string, object client.Object) error {
			if what != "create PersistentVolumeClaim" {
				return nil
			}
			// The API server has made it, and the connection breaks.
			made := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
				Name: "web-data-lost", GenerateName: object.GetGenerateName(), Namespace: object.GetNamespace(),
				Labels: object.GetLabels(), UID: "lost",
			}}
			require.NoError(t, w.store.Create(t.Context(), made))
			return errors.New("connection reset")
		}
		_, err := w.reconcile()
		require.Error(t, err)
		w.forget()
		_, err = w.reconcile() // on the cache as it was
		require.NoError(t, err)
		assert.Zero(t, w.count("create PersistentVolumeClaim"))
		w.settle()
		assert.Equal(t, []string{"web-data-lost"}, claimNames(w.claims()))
		assert.Equal(t, "data=web-data-lost", mountedBy(&w.pods()[0]))
	})
	t.Run("a set whose claims are all there reads no claims from the API server", func(t *testing.T) {
		w := newWorld(t, true, withClaims(1))
		w.settle()
		claim := w.claims()[0]
		again := newWorld(t, true, w.all()...)
		pod := again.pods()[0]
		require.NoError(t, again.store.Delete(t.Context(), &pod))
		again.settle()
		assert.Equal(t, "data="+claim.Name, mountedBy(&again.pods()[0]))
	})
}

func TestAMissingClaimIsMadeAgain(t *testing.T) {
	w := newWorld(t, true, withClaims(1, retention(true, false, false)))
	w.settle()
	pod, claim := w.pods()[0], w.claims()[0]
	lose := func() {
		pod = w.pods()[0]
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
		require.NoError(t, w.store.Status().Update(t.Context(), &pod))
		for _, c := range w.claims() {
			require.NoError(t, w.store.Delete(t.Context(), &c))
		}
		w.see()
	}
	lose()
	var err error
	for _, answer := range []error{errAway, apierrors.NewNotFound(claimsResource, "what it needs")} {
		w.refuse = refusing("create PersistentVolumeClaim", answer)
		_, err = w.reconcile()
		require.ErrorContains(t, err, claim.Name+" of Pod "+pod.Name)
		w.forget()
		w.see()
	}
	w.settle()
	again := w.claims()
	require.Len(t, again, 1)
	assert.Equal(t, pod.UID, w.pods()[0].UID)
	assert.NotEqual(t, claim.UID, again[0].UID)
	for _, same := range []func(*corev1.PersistentVolumeClaim) any{
		func(c *corev1.PersistentVolumeClaim) any { return c.Name },
		func(c *corev1.PersistentVolumeClaim) any { return c.GenerateName },
		func(c *corev1.PersistentVolumeClaim) any { return c.Labels },
		func(c *corev1.PersistentVolumeClaim) any { return c.Spec },
		func(c *corev1.PersistentVolumeClaim) any { return c.OwnerReferences },
	} {
		assert.Equal(t, same(&claim), same(&again[0]))
	}

	// One that is there is as good. It is the Pod's, and is known as such from now on.
	lose()
	strange := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name}}
	require.NoError(t, w.store.Create(t.Context(), strange))
	_, err = w.reconcile()
	require.NoError(t, err)
	assert.Equal(t, "0", w.claims()[0].Labels[appsv1alpha1.InstanceIDLabel])
	assert.Len(t, w.claims(), 1)
}

func TestClaimCreationFails(t *testing.T) {
	w := newWorld(t, true, withClaims(3))
	w.refuse = refusing("create PersistentVolumeClaim",
		apierrors.NewForbidden(claimsResource, "x", errors.New("exceeded quota")))
	_, err := w.reconcile()
	require.ErrorContains(t, err, "exceeded quota")
	assert.Equal(t, 1, w.count("create PersistentVolumeClaim"), "what fails once fails for all")
	assert.Empty(t, w.pods(), "no Pod without its claims")
	assert.Equal(t, string(appsv1alpha1.ReasonScaleOutFailed), w.condition(appsv1alpha1.CollaSetScale).Reason)
}

func TestExpansion(t *testing.T) {
	w := newWorld(t, false, withClaims(1))
	w.settle()
	claim := w.claims()[0]
	claim.Status.Phase = corev1.ClaimBound
	claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	require.NoError(t, w.store.Status().Update(t.Context(), &claim))
	w.events()

	w.change(storage("2Gi"))
	w.refuse = refusing("patch PersistentVolumeClaim",
		apierrors.NewForbidden(claimsResource, claim.Name, errors.New("the StorageClass does not allow it")))
	result, err := w.reconcile()
	require.NoError(t, err, "that is an answer, no failure")
	assert.Positive(t, result.RequeueAfter)
	w.see()
	_, err = w.reconcile()
	require.NoError(t, err)
	assert.Equal(t, 1, w.count("patch PersistentVolumeClaim"), "it is not tried again at once")
	assert.Zero(t, w.count("patch Pod"), "the Pod stays as it is")
	require.NotEmpty(t, w.set().Status.Blockers)
	assert.Equal(t, setplan.BlockExpansionRefused, w.set().Status.Blockers[0].Reason)
	assert.Contains(t, w.condition(appsv1alpha1.CollaSetStalled).Message, "the StorageClass does not allow it")
	said := w.events()
	assert.Equal(t, 1, strings.Count(said, "Warning "+setplan.BlockExpansionRefused), "said once")
	assert.NotContains(t, said, "ExpandingVolumes")
	w.see()
	_, err = w.reconcile()
	require.NoError(t, err)
	assert.NotContains(t, w.events(), setplan.BlockExpansionRefused)

	w.clock.Step(retryRefused)
	w.forget()
	revision := w.pods()[0].Labels["controller-revision-hash"]
	w.settle()
	after := w.claims()[0]
	assert.Equal(t, "2Gi", after.Spec.Resources.Requests.Storage().String())
	assert.NotEqual(t, claim.Labels[appsv1alpha1.ClaimTemplateHashLabel],
		after.Labels[appsv1alpha1.ClaimTemplateHashLabel])
	assert.Equal(t, claim.Name, after.Name)
	assert.NotEqual(t, revision, w.pods()[0].Labels["controller-revision-hash"])
	require.NotEmpty(t, w.set().Status.Blockers)
	assert.Equal(t, setplan.NoteExpanding, w.set().Status.Blockers[0].Reason)
	assert.Contains(t, w.events(), "ExpandingVolumes")

	after.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	require.NoError(t, w.store.Status().Update(t.Context(), &after))
	w.settle()
	assert.Empty(t, w.set().Status.Blockers)
	assert.Equal(t, 1, strings.Count(w.events(), "VolumesExpanded"))
}

func TestClaimsOfADeletedCollaSet(t *testing.T) {
	inherited := []metav1.OwnerReference{{
		APIVersion: "apps.kusionstack.io/v1alpha1", Kind: "CollaSet", Name: "web", UID: "web", Controller: ptr.To(true),
		BlockOwnerDeletion: ptr.To(true),
	}}
	for name, tc := range map[string]struct {
		deletes, owned bool
	}{
		"are let go of, those that the cache lacks too": {},
		"stay owned with Delete, to be collected":       {deletes: true, owned: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true, withClaims(1, retention(tc.deletes, false, false)))
			w.settle()
			claim := w.claims()[0]
			claim.OwnerReferences = inherited
			require.NoError(t, w.store.Update(t.Context(), &claim))
			for _, pod := range w.pods() {
				require.NoError(t, w.store.Delete(t.Context(), &pod))
			}
			require.NoError(t, w.store.Delete(t.Context(), w.set()))
			w.seeAllBut(is[*corev1.PersistentVolumeClaim])
			_, err := w.reconcile()
			require.NoError(t, err)
			require.True(t, apierrors.IsNotFound(w.store.Get(t.Context(), key, &appsv1alpha1.CollaSet{})), "it is gone")
			assert.Equal(t, tc.owned, len(w.claims()[0].OwnerReferences) > 0)
		})
	}
	t.Run("are not lost when they cannot be let go of", func(t *testing.T) {
		w := newWorld(t, true, withClaims(1))
		w.settle()
		claim := w.claims()[0]
		claim.OwnerReferences = inherited
		require.NoError(t, w.store.Update(t.Context(), &claim))
		for _, pod := range w.pods() {
			require.NoError(t, w.store.Delete(t.Context(), &pod))
		}
		require.NoError(t, w.store.Delete(t.Context(), w.set()))
		w.see()
		w.refuse = refusing("patch PersistentVolumeClaim", errAway)
		_, err := w.reconcile()
		require.Error(t, err)
		assert.Contains(t, w.set().Finalizers, appsv1alpha1.CollaSetFinalizer)
	})
}

func TestACollaSetOfTheSameNameFindsItsClaims(t *testing.T) {
	w := newWorld(t, true, withClaims(2))
	w.settle()
	before := claimNames(w.claims())
	var left []client.Object
	for _, c := range w.claims() {
		left = append(left, &c)
	}
	set := withClaims(2)
	set.UID = "another"
	again := newWorld(t, true, append(left, set)...)
	again.settle()
	assert.Equal(t, before, claimNames(again.claims()))
	assert.Equal(t, "data="+before[0], mountedBy(&again.pods()[0]))
}

func TestAPodLeftBehindKeepsItsVolume(t *testing.T) {
	w := newWorld(t, true, withClaims(1))
	w.settle()
	pod, claim := w.pods()[0], w.claims()[0]
	pod.OwnerReferences = nil
	pod.Labels[appsv1alpha1.OrphanedLabel] = "true" // a user wants it left alone
	set := withClaims(1)
	set.UID = "another"
	again := newWorld(t, true, set, &pod, &claim)
	_, err := again.reconcile()
	require.NoError(t, err)
	assert.Zero(t, again.count("create Pod"), "two Pods would write to one volume")
	assert.Zero(t, again.count("create PersistentVolumeClaim"))
	require.NotEmpty(t, again.set().Status.Blockers)
	assert.Equal(t, setplan.BlockVolumesInUse, again.set().Status.Blockers[0].Reason)
	assert.Contains(t, again.set().Status.Blockers[0].Message, "Pod "+pod.Name+": mounts claim "+claim.Name)
	assert.Equal(t, []reconcile.Request{{NamespacedName: key}}, again.listener().volumeUsers(t.Context(), &pod))
	require.NoError(t, again.store.Delete(t.Context(), &pod))
	again.settle()
	assert.Equal(t, "data="+claim.Name, mountedBy(&again.pods()[0]))
	assert.Empty(t, again.listener().volumeUsers(t.Context(), &again.pods()[0]), "it has a controller")
}

func TestClaimsGoWithTheirPods(t *testing.T) {
	w := newWorld(t, true, withClaims(2, retention(true, true, true)))
	w.settle()
	leaver := w.pods()[1]
	w.change(both(replicas(1), exclude(leaver.Name)))
	w.settle()
	after := w.claims()
	require.Len(t, after, 2, "what is excluded is nobody's to delete")
	assert.Equal(t, appsv1alpha1.OrphanedValue, after[1].Labels[appsv1alpha1.OrphanedLabel])
	assert.Empty(t, after[1].OwnerReferences)

	t.Run("a claim that another has keeps its Pod out", func(t *testing.T) {
		other := w.claims()[1]
		other.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Database", Name: "big", UID: "big",
			Controller: ptr.To(true)}}
		require.NoError(t, w.store.Update(t.Context(), &other))
		w.change(both(replicas(2), exclude(), include(leaver.Name)))
		_, err := w.reconcile()
		require.NoError(t, err)
		assert.Contains(t, fmt.Sprint(w.set().Status.Blockers), "belongs to Database big")
		other.OwnerReferences = nil
		require.NoError(t, w.store.Update(t.Context(), &other))
	})
	w.change(both(replicas(2), exclude(), include(leaver.Name)))
	w.settle()
	after = w.claims()
	require.Len(t, after, 3, "the ID was filled meanwhile")
	for _, c := range after {
		assert.NotContains(t, c.Labels, appsv1alpha1.OrphanedLabel)
		assert.True(t, metav1.IsControlledBy(&c, w.set()))
	}

	t.Run("into another CollaSet, which knows it by the annotation", func(t *testing.T) {
		o := &observation{set: collaSet(1), claims: map[string]*corev1.PersistentVolumeClaim{}}
		o.set.Name, o.set.UID = "other", "other"
		moved := w.claims()[0]
		moved.OwnerReferences = nil
		require.NoError(t, w.store.Update(t.Context(), &moved))
		w.see()
		in := setplan.Inclusion{Pod: &setplan.Pod{Mounts: []setplan.Mount{{Volume: "data", Claim: moved.Name}}}, ID: 7}
		require.NoError(t, claimWriter{w.r.server}.adoptVolumes(t.Context(), o, in))
		require.NoError(t, w.store.Get(t.Context(), client.ObjectKeyFromObject(&moved), &moved))
		assert.Equal(t, "7", moved.Labels[appsv1alpha1.InstanceIDLabel])
		assert.Equal(t, []string{"name/other"}, claimKeys(&moved))
	})
}

func TestWhoseAClaimIs(t *testing.T) {
	set := withClaims(1)
	set.UID = "uid"
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-data-x1y2z", GenerateName: "web-data-",
			Labels: map[string]string{"app": "web", appsv1alpha1.InstanceIDLabel: "0",
				appsv1alpha1.ClaimTemplateNameLabel: "data"},
		}}
		change(c)
		return c
	}
	controlledBy := func(kind, uid string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "owner", UID: "x", Controller: ptr.To(true)}}
			c.OwnerReferences[0].UID = "uid"
			if uid != "" {
				c.OwnerReferences[0].UID = "other"
			}
		}
	}
	for name, tc := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		keys  []string
		ours  bool
		users []string
	}{
		"ownerless, by its name": {claim(func(*corev1.PersistentVolumeClaim) {}), []string{"name/web"}, true,
			[]string{"web"}},
		"ownerless, by its name alone": {claim(func(c *corev1.PersistentVolumeClaim) { c.GenerateName = "" }),
			[]string{"name/web"}, true, []string{"web"}},
		"of a set whose name begins with ours": {claim(
			func(c *corev1.PersistentVolumeClaim) { c.GenerateName = "web-data-data-" }),
			[]string{"name/web-data"}, true, []string{"web-data"}},
		"of another template": {claim(func(c *corev1.PersistentVolumeClaim) { c.GenerateName = "web-logs-" }), nil,
			true, nil},
		"with other labels": {claim(func(c *corev1.PersistentVolumeClaim) { c.Labels["app"] = "db" }),
			[]string{"name/web"}, false, []string{"web"}},
		"excluded": {claim(func(
			c *corev1.PersistentVolumeClaim) {
			c.Labels[appsv1alpha1.OrphanedLabel] = "true"
		}), nil, false, nil},
		"without an instance ID": {claim(func(c *corev1.PersistentVolumeClaim) {
			delete(c.Labels,
				appsv1alpha1.InstanceIDLabel)
		}), nil, true, nil},
		"ours": {claim(controlledBy("CollaSet", "")), []string{"uid/uid", "name/owner"}, true,
			[]string{"owner"}},
		"another set's": {claim(controlledBy("CollaSet", "other")), []string{"uid/other", "name/owner"}, false,
			[]string{"owner"}},
		"of an earlier set of our name": {claim(func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: appsv1alpha1.SchemeGroupVersion.String(), Kind: "CollaSet",
				Name: "web", UID: "gone", Controller: new(true)}}
		}), []string{"uid/gone", "name/web"}, true, []string{"web"}},
		"a StatefulSet's": {claim(controlledBy("StatefulSet", "other")), nil, false, nil},
		"included from another set": {claim(func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{appsv1alpha1.ClaimOwnerAnnotation: "b"}
		}), []string{"name/b"}, true, []string{"b"}},
		"of early Kuperator, without the template's name": {claim(func(c *corev1.PersistentVolumeClaim) {
			delete(c.Labels, appsv1alpha1.ClaimTemplateNameLabel)
			c.GenerateName = "a-web-data-"
		}), []string{"name/a", "name/a-web"}, true, []string{"a", "a-web"}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.keys, claimKeys(tc.claim))
			assert.Equal(t, tc.ours, ours(set, tc.claim))
			var users []string
			for _, request := range claimUsers(t.Context(), tc.claim) {
				assert.IsType(t, reconcile.Request{}, request)
				users = append(users, request.Name)
			}
			assert.Equal(t, tc.users, users)
		})
	}
	assert.Equal(t, "data",
		templateOf(claim(func(c *corev1.PersistentVolumeClaim) { delete(c.Labels, appsv1alpha1.ClaimTemplateNameLabel) }),
			"web"))
}

func TestExpanding(t *testing.T) {
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{}
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
		c.Status.Phase = corev1.ClaimBound
		c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		change(c)
		return c
	}
	condition := func(kind corev1.PersistentVolumeClaimConditionType) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: kind, Status: corev1.ConditionTrue}}
		}
	}
	for name, tc := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		says  string
	}{
		"asked for": {claim(func(*corev1.PersistentVolumeClaim) {}), "has not begun"},
		"under way": {claim(condition(corev1.PersistentVolumeClaimResizing)), "is at it"},
		"waits for the node": {claim(condition(corev1.PersistentVolumeClaimFileSystemResizePending)),
			"when the Pod is re-created"},
		"cannot be done": {claim(func(c *corev1.PersistentVolumeClaim) {
			c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInfeasible}
		}), "more than 1Gi"},
	} {
		t.Run(name, func(t *testing.T) { assert.Contains(t, expanding(tc.claim), tc.says) })
	}
	assert.Empty(t, expanding(claim(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending })))
	assert.Empty(t, expanding(claim(func(c *corev1.PersistentVolumeClaim) {
		c.Status.Capacity[corev1.ResourceStorage] = resource.MustParse("2Gi")
	})))
	assert.Greater(t, retryRefused, time.Second)
}
