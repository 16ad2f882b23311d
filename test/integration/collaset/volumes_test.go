package collaset_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

const (
	growing = "growing" // a StorageClass that allows expansion
	fixed   = "fixed"   // one that does not
	nowhere = "nowhere" // one that does not exist, for which there are no volumes
)

// storageClasses makes the classes that exist.
func storageClasses(t *testing.T, c client.Client) {
	t.Helper()
	for name, grows := range map[string]bool{growing: true, fixed: false} {
		require.NoError(t, c.Create(t.Context(), &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "kubernetes.io/no-provisioner", AllowVolumeExpansion: &grows,
		}))
	}
}

// playVolumes makes a volume for every claim, as a provisioner does, until the test ends.
func playVolumes(t *testing.T, c client.Client) {
	play(t, 50*time.Millisecond, func(ctx context.Context) { provide(ctx, c) })
}

func provide(ctx context.Context, c client.Client) {
	list := &corev1.PersistentVolumeClaimList{}
	if c.List(ctx, list) != nil {
		return
	}
	for i := range list.Items {
		claim := &list.Items[i]
		if claim.Status.Phase == corev1.ClaimBound || claim.DeletionTimestamp != nil ||
			ptr.Deref(claim.Spec.StorageClassName, "") == nowhere {
			continue
		}
		_ = c.Create(ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "volume-" + string(claim.UID)},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes,
				StorageClassName: ptr.Deref(claim.Spec.StorageClassName, ""),
				PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data/" +
					string(claim.UID)}},
				ClaimRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim",
					Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			},
		})
	}
}

type volumeEnv struct{ env }

func storage(class, size string) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) {
		s.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
			ObjectMeta: metav1.ObjectMeta{Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
			},
		}}
	}
}

func deletes(deleted, scaled, changed bool) func(*appsv1alpha1.CollaSetSpec) {
	word := map[bool]appsv1alpha1.PersistentVolumeClaimRetentionPolicyType{true: appsv1alpha1.DeletePersistentVolumeClaim}
	return func(s *appsv1alpha1.CollaSetSpec) {
		s.ScaleStrategy.PersistentVolumeClaimRetentionPolicy = &appsv1alpha1.PersistentVolumeClaimRetentionPolicy{
			WhenDeleted: word[deleted], WhenScaled: word[scaled], WhenTemplateChanged: word[changed],
		}
	}
}

// database makes a CollaSet whose container mounts the claim, and waits until it serves.
func (e volumeEnv) database(n int32, changes ...func(*appsv1alpha1.CollaSetSpec)) *appsv1alpha1.CollaSet {
	e.Helper()
	set := e.create("db", n, func(s *appsv1alpha1.CollaSet) {
		storage(growing, "1Gi")(&s.Spec)
		s.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		for _, change := range changes {
			change(&s.Spec)
		}
	})
	e.reachesReady(set)
	return set
}

// claims are those of the namespace that are not being deleted, as "ID name".
func (e volumeEnv) claims() []string {
	e.Helper()
	list := &corev1.PersistentVolumeClaimList{}
	require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
	var out []string
	for _, c := range list.Items {
		if c.DeletionTimestamp == nil {
			out = append(out, c.Labels[appsv1alpha1.InstanceIDLabel]+" "+c.Name)
		}
	}
	slices.Sort(out)
	return out
}

// mounted are the claims that Pods mount, as "ID name".
func (e volumeEnv) mounted() []string {
	e.Helper()
	var out []string
	for _, p := range e.pods() {
		for _, v := range p.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				out = append(out, p.Labels[appsv1alpha1.InstanceIDLabel]+" "+v.PersistentVolumeClaim.ClaimName)
			}
		}
	}
	slices.Sort(out)
	return out
}

func (e volumeEnv) claimsAre(want []string) {
	e.Helper()
	e.eventually(fmt.Sprint("the claims are ", want), func() string {
		if got := e.claims(); !slices.Equal(got, want) {
			return fmt.Sprint(got)
		}
		return ""
	})
}

func (e volumeEnv) says(set *appsv1alpha1.CollaSet, reason string) {
	e.Helper()
	e.eventually("status says "+reason, func() string {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		if slices.ContainsFunc(set.Status.Blockers, func(b appsv1alpha1.Blocker) bool { return b.Reason == reason }) {
			return ""
		}
		return "it does not"
	})
}

func (e volumeEnv) events(reason string) int {
	e.Helper()
	list := &eventsv1.EventList{}
	require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
	n := 0
	for _, event := range list.Items {
		if event.Reason == reason {
			n++
		}
	}
	return n
}

// tellsOf waits until an event says it, which comes after what it tells of.
func (e volumeEnv) tellsOf(reason string) {
	e.Helper()
	e.eventually("an event says "+reason, func() string {
		if e.events(reason) == 0 {
			return "none does"
		}
		return ""
	})
}

// removed waits until the CollaSet is gone.
func (e volumeEnv) removed(set *appsv1alpha1.CollaSet, how metav1.DeletionPropagation) {
	e.Helper()
	require.NoError(e, e.Client.Delete(e.Context(), set, client.PropagationPolicy(how)))
	e.eventually("the CollaSet is gone", func() string {
		if err := e.Get(e.Context(), client.ObjectKeyFromObject(set), &appsv1alpha1.CollaSet{}); !apierrors.IsNotFound(err) {
			return "it is not"
		}
		return ""
	})
}

func environment(value string) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) {
		s.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: value}}
	}
}

var volumeStories = map[string]func(volumeEnv){
	"a claim of a Pod that has not started is made again": func(e volumeEnv) {
		set := e.create("db", 2, func(s *appsv1alpha1.CollaSet) {
			storage(nowhere, "1Gi")(&s.Spec)
			s.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		})
		e.eventually("there are two Pods", func() string {
			if n := len(e.pods()); n != 2 {
				return fmt.Sprint(n)
			}
			return ""
		})
		claims, before := e.mounted(), uids(e.pods())
		e.claimsAre(claims)
		first := &corev1.PersistentVolumeClaim{}
		_, name, _ := strings.Cut(claims[0], " ")
		key := client.ObjectKey{Namespace: e.namespace, Name: name}
		require.NoError(e, e.Get(e.Context(), key, first))
		require.NoError(e, e.Client.Delete(e.Context(), first))
		e.eventually("there is another claim of that name", func() string {
			again := &corev1.PersistentVolumeClaim{}
			if err := e.Get(e.Context(), key, again); err != nil {
				return err.Error()
			}
			if again.UID == first.UID {
				return "it is the old one"
			}
			return ""
		})
		e.claimsAre(claims)
		e.tellsOf("ClaimsMadeAgain")
		assert.Equal(e, before, uids(e.pods()))
		e.removed(set, metav1.DeletePropagationBackground)
	},
	"claims follow their instance ID": func(e volumeEnv) {
		set := e.database(2)
		claims := e.claims()
		require.Len(e, claims, 2)
		assert.Equal(e, claims, e.mounted())
		before := uids(e.pods())

		e.change(set, environment("1"))
		e.reachesReady(set)
		assert.Equal(e, claims, e.mounted(), "re-created by an update")
		for _, uid := range uids(e.pods()) {
			assert.NotContains(e, before, uid)
		}

		// A Pod that does not go: its successor waits, because it would write to the same volume.
		pod := e.pods()[0]
		held := pod.DeepCopy()
		held.Finalizers = append(held.Finalizers, "example.com/hold")
		require.NoError(e, e.Patch(e.Context(), held, client.MergeFrom(&pod)))
		require.NoError(e, e.Client.Delete(e.Context(), held))
		e.says(set, "VolumesInUse")
		assert.Len(e, e.pods(), 1)
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(held), held))
		free := held.DeepCopy()
		free.Finalizers = nil
		require.NoError(e, e.Patch(e.Context(), free, client.MergeFrom(held)))
		e.eventually("the Pod is back", func() string {
			if len(e.pods()) != 2 {
				return "it is not"
			}
			return ""
		})
		e.settles(set)
		assert.Equal(e, claims, e.mounted(), "re-created after a deletion by hand")
		assert.Equal(e, claims, e.claims())
		e.quiet()
	},
	"a larger request expands claims, and no Pod is another one": func(e volumeEnv) {
		set := e.database(2)
		before, claims := uids(e.pods()), e.claims()
		e.change(set, storage(growing, "2Gi"))
		e.reachesReady(set)
		assert.Equal(e, before, uids(e.pods()))
		assert.Equal(e, claims, e.mounted())
		assert.Equal(e, set.Status.UpdatedRevision, set.Status.CurrentRevision)
		e.says(set, "VolumeExpanding")
		list := &corev1.PersistentVolumeClaimList{}
		require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
		require.Len(e, list.Items, 2)
		for _, c := range list.Items {
			assert.Equal(e, "2Gi", c.Spec.Resources.Requests.Storage().String())
			grown := c.DeepCopy()
			grown.Status.Capacity = c.Spec.Resources.Requests
			require.NoError(e, e.Status().Patch(e.Context(), grown, client.MergeFrom(&c)))
		}
		e.eventually("it is said when volumes have grown", func() string {
			if e.events("VolumesExpanded") != 1 || e.events("ExpandingVolumes") == 0 {
				return "not yet"
			}
			return ""
		})
		assert.Empty(e, set.Status.Conditions[slices.IndexFunc(set.Status.Conditions,
			func(c metav1.Condition) bool { return c.Type == appsv1alpha1.CollaSetReady })].Message)
		e.quiet()
	},
	"a claim that may not grow holds its Pod at its revision": func(e volumeEnv) {
		set := e.database(2, storage(fixed, "1Gi"))
		first, before := set.Status.UpdatedRevision, uids(e.pods())
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { storage(fixed, "2Gi")(s); image("nginx:2")(s) })
		e.reaches(set, appsv1alpha1.CollaSetStalled)
		e.says(set, "ClaimExpansionRefused")
		assert.Contains(e, set.Status.Blockers[0].Message, "storageclass that provisions the pvc must support resize")
		e.quiet()
		for _, p := range e.pods() {
			assert.Equal(e, first, p.Labels["controller-revision-hash"])
			assert.Equal(e, "nginx:1", p.Spec.Containers[0].Image)
			assert.Equal(e, corev1.ConditionTrue, readyOf(&p), "it never left service")
		}
		e.tellsOf("ClaimExpansionRefused")
		assert.Equal(e, 1, e.events("ClaimExpansionRefused"))
		e.change(set, storage(fixed, "1Gi"))
		e.reachesReady(set)
		assert.Equal(e, before, uids(e.pods()))
		assert.Equal(e, 2, running(e.pods(), "nginx:2"))
	},
	"a smaller request leaves claims alone": func(e volumeEnv) {
		set := e.database(1, storage(growing, "2Gi"))
		claims := e.claims()
		e.change(set, storage(growing, "1Gi"))
		e.reachesReady(set)
		e.says(set, "ClaimCannotShrink")
		assert.Equal(e, claims, e.mounted())
	},
	"another class keeps claims": func(e volumeEnv) {
		set := e.database(1)
		claims, before := e.claims(), uids(e.pods())
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { storage(fixed, "1Gi")(s); replicas(2)(s) })
		e.reachesReady(set)
		e.says(set, "ClaimTemplateKept")
		assert.Contains(e, uids(e.pods()), before[0])
		assert.Contains(e, e.mounted(), claims[0])
		class := map[string]string{}
		list := &corev1.PersistentVolumeClaimList{}
		require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
		for _, c := range list.Items {
			class[c.Labels[appsv1alpha1.InstanceIDLabel]] = *c.Spec.StorageClassName
		}
		assert.Equal(e, map[string]string{"0": growing, "1": fixed}, class)
	},
	"another class, told to delete, makes new claims": func(e volumeEnv) {
		set := e.database(2, deletes(false, false, true))
		claims := e.claims()
		e.change(set, storage(fixed, "1Gi"))
		e.reachesReady(set)
		e.eventually("the old claims are gone", func() string {
			if now := e.claims(); !slices.Equal(now, e.mounted()) || len(now) != 2 {
				return fmt.Sprint(now)
			}
			return ""
		})
		for _, claim := range claims {
			assert.NotContains(e, e.claims(), claim)
		}
		e.tellsOf("ClaimsDeleted")
	},
	"a template more and then less": func(e volumeEnv) {
		set := e.database(1)
		before := e.claims()
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			more := *s.VolumeClaimTemplates[0].DeepCopy()
			more.Name = "logs"
			s.VolumeClaimTemplates = append(s.VolumeClaimTemplates, more)
		})
		e.reachesReady(set)
		both := e.claims()
		assert.Len(e, both, 2)
		assert.Equal(e, both, e.mounted())
		assert.Contains(e, both, before[0])
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.VolumeClaimTemplates = s.VolumeClaimTemplates[:1] })
		e.reachesReady(set)
		assert.Equal(e, before, e.mounted())
		assert.Equal(e, both, e.claims(), "kept")
		e.change(set, deletes(false, false, true))
		e.claimsAre(before)
	},
	"scaled in, claims wait for their ID": func(e volumeEnv) {
		set := e.database(3)
		claims := e.claims()
		e.change(set, replicas(1))
		e.reachesReady(set)
		assert.Equal(e, claims, e.claims())
		e.change(set, replicas(3))
		e.reachesReady(set)
		assert.Equal(e, claims, e.mounted())
	},
	"scaled in, told to delete, claims go": func(e volumeEnv) {
		set := e.database(3, deletes(false, true, false))
		e.change(set, replicas(1))
		e.reachesReady(set)
		e.claimsAre(e.mounted())
		e.change(set, replicas(2))
		e.reachesReady(set)
		e.claimsAre(e.mounted())
	},
	"a deleted CollaSet leaves its claims, whatever way it is deleted, and its successor finds them": func(e volumeEnv) {
		for _, how := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground,
			metav1.DeletePropagationForeground} {
			set := e.database(2)
			claims := e.claims()
			require.Len(e, claims, 2)
			e.removed(set, how)
			// The garbage collector takes what has an owner reference to the CollaSet; a ConfigMap shows when it has been.
			witness := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace: e.namespace, Name: "witness-" + strings.ToLower(string(how)),
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set,
					appsv1alpha1.SchemeGroupVersion.WithKind("CollaSet"))},
			}}
			require.NoError(e, e.Client.Create(e.Context(), witness))
			e.eventually("the garbage collector has been there", func() string {
				if err := e.Get(e.Context(), client.ObjectKeyFromObject(witness), witness); !apierrors.IsNotFound(err) {
					return "it has not"
				}
				return ""
			})
			assert.Equal(e, claims, e.claims(), "%s", how)
		}
		set := e.database(2)
		assert.Equal(e, e.claims(), e.mounted())
		assert.Len(e, e.claims(), 2)
		e.removed(set, metav1.DeletePropagationBackground)
	},
	"a deleted CollaSet takes its claims along if it is told to": func(e volumeEnv) {
		set := e.database(2, deletes(true, false, false))
		require.Len(e, e.claims(), 2)
		e.removed(set, metav1.DeletePropagationBackground)
		e.claimsAre(nil)
	},
	"a policy that changes to Retain works at once": func(e volumeEnv) {
		set := e.database(1, deletes(true, false, false))
		claims := e.claims()
		e.change(set, deletes(false, false, false))
		e.eventually("the owner reference is gone", func() string {
			list := &corev1.PersistentVolumeClaimList{}
			require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
			if len(list.Items[0].OwnerReferences) > 0 {
				return "it is there"
			}
			return ""
		})
		e.removed(set, metav1.DeletePropagationForeground)
		assert.Equal(e, claims, e.claims())
	},
	"a claim whose Pod is refused is not made twice": func(e volumeEnv) {
		quota := &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "none"},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
		}
		require.NoError(e, e.Client.Create(e.Context(), quota))
		e.refuses("exceeded quota", nil)
		set := e.create("db", 1, func(s *appsv1alpha1.CollaSet) { storage(growing, "1Gi")(&s.Spec) })
		e.eventually("the Pod is refused", func() string {
			require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
			for _, c := range set.Status.Conditions {
				if c.Type == appsv1alpha1.CollaSetScale && c.Status == metav1.ConditionFalse &&
					strings.Contains(c.Message, "exceeded quota") {
					return ""
				}
			}
			return "not yet"
		})
		claims := e.claims()
		require.Len(e, claims, 1)
		require.NoError(e, e.Client.Delete(e.Context(), quota))
		e.reachesReady(set)
		assert.Equal(e, claims, e.claims())
		assert.Equal(e, claims, e.mounted())
	},
	"a Pod that leaves takes its claim along, and brings it back": func(e volumeEnv) {
		set := e.database(2, deletes(true, true, true))
		claims := e.claims()
		leaver := e.pods()[1]
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			s.ScaleStrategy.PodToExclude = []string{leaver.Name}
			replicas(1)(s)
		})
		e.eventually("it is excluded", func() string {
			require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(&leaver), &leaver))
			if leaver.Labels[appsv1alpha1.OrphanedLabel] == "" {
				return "it is not"
			}
			return ""
		})
		e.eventually("one replica is left", func() string {
			require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
			if set.Status.Replicas != 1 || set.Status.ObservedGeneration != set.Generation {
				return "not yet"
			}
			return ""
		})
		e.quiet()
		assert.Equal(e, claims, e.claims(), "its claim is nobody's to delete")
		claim := &corev1.PersistentVolumeClaim{}
		name := client.ObjectKey{Namespace: e.namespace, Name: strings.TrimPrefix(claims[1], "1 ")}
		e.eventually("the claim has no owner", func() string {
			require.NoError(e, e.Get(e.Context(), name, claim))
			if len(claim.OwnerReferences) > 0 || claim.Labels[appsv1alpha1.OrphanedLabel] != appsv1alpha1.OrphanedValue {
				return fmt.Sprint(claim.OwnerReferences, claim.Labels)
			}
			return ""
		})

		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			s.ScaleStrategy.PodToExclude, s.ScaleStrategy.PodToInclude = nil, []string{leaver.Name}
			replicas(2)(s)
		})
		e.reachesReady(set)
		assert.Equal(e, claims, e.mounted())
		e.eventually("the claim is the CollaSet's again", func() string {
			require.NoError(e, e.Get(e.Context(), name, claim))
			if _, orphaned := claim.Labels[appsv1alpha1.OrphanedLabel]; orphaned || !metav1.IsControlledBy(claim, set) {
				return fmt.Sprint(claim.OwnerReferences, claim.Labels)
			}
			return ""
		})
	},
}

func readyOf(pod *corev1.Pod) corev1.ConditionStatus {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}
