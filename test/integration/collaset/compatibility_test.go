package collaset_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

// TestCompatibility shows the rows of docs/migrate/from-kuperator.md that are collaset-controller's: what
// --compatibility=kuperator-v0.7 makes of a CollaSet that does not say otherwise, and that it may.
func TestCompatibility(t *testing.T) {
	cluster, c := start(t)
	storageClasses(t, c)
	run(t, cluster, "--compatibility=kuperator-v0.7")
	playLifecycle(t, c)
	playVolumes(t, c)
	tell(t, func(t *testing.T) volumeEnv {
		return volumeEnv{env{t, c, cluster, testcluster.Namespace(t, cluster, nil)}}
	}, compatibilityStories)
}

// are waits until there are so many Pods of which so many fulfil a condition.
func (e env) are(what string, pods, n int, hold func(corev1.Pod) bool) {
	e.Helper()
	e.eventually(fmt.Sprintf("%d of %d Pods are %s", n, pods, what), func() string {
		all, some := e.pods(), 0
		for _, p := range all {
			if hold(p) {
				some++
			}
		}
		if len(all) != pods || some != n {
			return fmt.Sprintf("%d of %d", some, len(all))
		}
		return ""
	})
}

func ready(p corev1.Pod) bool { return podops.Read(&p).Ready }

// retains says Retain of what is scaled, replaced or deleted, and nothing of templates.
func retains(s *appsv1alpha1.CollaSetSpec) {
	s.ScaleStrategy.PersistentVolumeClaimRetentionPolicy = &appsv1alpha1.PersistentVolumeClaimRetentionPolicy{
		WhenDeleted: appsv1alpha1.RetainPersistentVolumeClaim, WhenScaled: appsv1alpha1.RetainPersistentVolumeClaim,
	}
}

// haveClaims waits until there are so many claims, and returns them.
func (e volumeEnv) haveClaims(n int) []string {
	e.Helper()
	e.eventually(fmt.Sprintf("%d claims are left", n), func() string {
		if claims := e.claims(); len(claims) != n {
			return fmt.Sprint(claims)
		}
		return ""
	})
	return e.claims()
}

func (e env) isDeleted(set *appsv1alpha1.CollaSet) {
	e.Helper()
	require.NoError(e, e.Client.Delete(e.Context(), set))
	e.eventually(set.Name+" is gone", func() string {
		if err := e.Get(e.Context(), client.ObjectKeyFromObject(set), set); !apierrors.IsNotFound(err) {
			return fmt.Sprint(err)
		}
		return ""
	})
}

// names of the spec that are left.
func (e env) names(set *appsv1alpha1.CollaSet) string {
	e.Helper()
	require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
	s := set.Spec.ScaleStrategy
	return strings.Join(slices.Concat(s.PodToDelete, s.PodToExclude, s.PodToInclude), " ")
}

func (e env) haveNames(set *appsv1alpha1.CollaSet, want string) {
	e.Helper()
	e.eventually("the names left are "+want, func() string {
		if got := e.names(set); got != want {
			return "they are " + got
		}
		return ""
	})
}

var compatibilityStories = map[string]func(volumeEnv){
	"claims go with their instance ID, and with the CollaSet": func(e volumeEnv) {
		set := e.database(2)
		list := &corev1.PersistentVolumeClaimList{}
		require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
		for i := range list.Items {
			assert.True(e, metav1.IsControlledBy(&list.Items[i], set))
		}
		e.change(set, replicas(1))
		e.haveClaims(1)
		e.reachesReady(set)
		e.isDeleted(set)
		e.haveClaims(0)
	},
	"claims stay where the spec says so": func(e volumeEnv) {
		set := e.database(2, retains)
		e.change(set, replicas(1))
		e.reachesReady(set)
		e.isDeleted(set)
		assert.Len(e, e.claims(), 2)
	},
	"a larger request renews claims": func(e volumeEnv) {
		set := e.database(2)
		pods, claims := uids(e.pods()), e.claims()
		e.change(set, storage(growing, "2Gi"))
		e.settles(set)
		for _, claim := range e.haveClaims(2) {
			assert.NotContains(e, claims, claim)
		}
		for _, uid := range uids(e.pods()) {
			assert.NotContains(e, pods, uid)
		}
	},
	"a larger request renews claims, and the old ones stay with whenScaled: Retain": func(e volumeEnv) {
		set := e.database(1, retains)
		claims := e.claims()
		e.change(set, storage(growing, "2Gi"))
		e.settles(set)
		assert.Subset(e, e.haveClaims(2), claims)
	},
	"a larger request expands claims where whenTemplateChanged is set": func(e volumeEnv) {
		set := e.database(1, retains, func(s *appsv1alpha1.CollaSetSpec) {
			s.ScaleStrategy.PersistentVolumeClaimRetentionPolicy.WhenTemplateChanged = appsv1alpha1.RetainPersistentVolumeClaim
		})
		pods, claims := uids(e.pods()), e.claims()
		e.change(set, storage(growing, "2Gi"))
		e.reaches(set, appsv1alpha1.CollaSetReady)
		assert.Equal(e, pods, uids(e.pods()))
		assert.Equal(e, claims, e.claims())
	},
	"claims of replaced Pods go, whatever whenScaled says": func(e volumeEnv) {
		set := e.database(2, retains)
		claims, chosen := e.claims(), e.pods()[0]
		e.label(chosen, appsv1alpha1.ToReplaceLabel, ptr.To("true"))
		e.eventually("it is another Pod", func() string {
			if pods := e.pods(); len(pods) != 2 || slices.Contains(uids(pods), chosen.UID) {
				return fmt.Sprint(ids(pods))
			}
			return ""
		})
		e.settles(set)
		assert.NotContains(e, e.haveClaims(2), claims[0])
		// One that is taken back has its claims taken along, too.
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			s.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateReplace
			image("nginx:non-exist")(s)
		})
		e.haveClaims(4)
		e.change(set, image("nginx:1"))
		e.settles(set)
		e.haveClaims(2)
	},
	"all Pods are replaced at once": func(e volumeEnv) {
		set := e.create("web", 5,
			func(s *appsv1alpha1.CollaSet) { s.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateReplace })
		e.reachesReady(set)
		e.change(set, image("nginx:non-exist"))
		e.are("Ready", 10, 5, ready)
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			s.UpdateStrategy.MaxSurge = ptr.To(intstr.FromInt32(2))
			image("nginx:absent-non-exist")(s)
		})
		e.are("Ready", 7, 5, ready)
	},
	"all Pods are updated at once, by another Pod with InPlaceOnly, too": func(e volumeEnv) {
		set := e.create("web", 5, func(s *appsv1alpha1.CollaSet) {
			s.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceOnly
		})
		e.reachesReady(set)
		before := e.pods()
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			image("nginx:non-exist")(s)
			s.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
		})
		e.are("new and out of service", 5, 5, func(p corev1.Pod) bool {
			return !ready(p) &&
				!slices.Contains(uids(before), p.UID)
		})
	},
	"no more than maxUnavailable, where that is set": func(e volumeEnv) {
		set := e.create("web", 4, func(s *appsv1alpha1.CollaSet) {
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{MaxUnavailable: ptr.To(
				intstr.FromInt32(1))}
		})
		e.reachesReady(set)
		e.change(set, image("nginx:non-exist"))
		e.are("out of service", 4, 1, func(p corev1.Pod) bool { return !ready(p) })
		e.quiet()
		e.are("out of service", 4, 1, func(p corev1.Pod) bool { return !ready(p) })
	},
	"another image of an init container makes another Pod": func(e volumeEnv) {
		setup := func(image string) func(*appsv1alpha1.CollaSetSpec) {
			return func(s *appsv1alpha1.CollaSetSpec) {
				s.Template.Spec.InitContainers = []corev1.Container{{Name: "setup", Image: image}}
			}
		}
		set := e.create("web", 1, func(s *appsv1alpha1.CollaSet) { setup("setup:1")(&s.Spec) })
		e.reachesReady(set)
		before := e.pods()
		e.change(set, setup("setup:2"))
		e.settles(set)
		assert.NotEqual(e, uids(before), uids(e.pods()))
	},
	"new labels and annotations ask the rules": func(e volumeEnv) {
		set := e.create("web", 1, func(s *appsv1alpha1.CollaSet) {
			s.Spec.Template.Annotations = map[string]string{"hold": "rules", "note": "a"}
		})
		e.reachesReady(set)
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.Template.Annotations["note"] = "b" })
		waits := func(p corev1.Pod) bool {
			return podops.OperationOf(podops.Read(&p), "collaset").Phase == podops.PhasePreCheck && p.Annotations["note"] == "a"
		}
		e.are("waiting for the rules", 1, 1, waits)
		pod := e.pods()[0]
		require.NoError(e, e.Patch(e.Context(), &pod,
			client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"hold":null}}}`))))
		e.are("changed", 1, 1, func(p corev1.Pod) bool { return p.Annotations["note"] == "b" && p.UID == pod.UID })
		e.settles(set)
	},
	"a partition keeps Pods of a revision that is withdrawn": func(e volumeEnv) {
		set := e.create("web", 3, func(s *appsv1alpha1.CollaSet) { partition(2)(&s.Spec) })
		e.reachesReady(set)
		e.change(set, image("nginx:2"))
		e.are("at nginx:2", 3, 1, func(p corev1.Pod) bool { return p.Spec.Containers[0].Image == "nginx:2" })
		e.reaches(set, appsv1alpha1.CollaSetReady)
		e.change(set, image("nginx:1"))
		e.reaches(set, appsv1alpha1.CollaSetReady)
		e.quiet()
		e.are("at nginx:2", 3, 1, func(p corev1.Pod) bool { return p.Spec.Containers[0].Image == "nginx:2" })
	},
	"the delay of updates is one of scale-in": func(e volumeEnv) {
		set := e.create("web", 2,
			func(s *appsv1alpha1.CollaSet) { s.Spec.UpdateStrategy.OperationDelaySeconds = ptr.To[int32](3600) })
		e.reachesReady(set)
		e.change(set, replicas(1))
		e.waitsFor(set, 2, appsv1alpha1.Blocker{Reason: "OperationDelay", Count: 1})
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.ScaleStrategy.OperationDelaySeconds = ptr.To[int32](0) })
		e.are("left", 1, 1, ready)
	},
	"names go once they have taken effect": func(e volumeEnv) {
		set := e.create("web", 3, nil)
		e.reachesReady(set)
		pods := e.pods()
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.ScaleStrategy.PodToDelete = []string{pods[0].Name} })
		e.haveNames(set, "")
		e.are("there", 3, 3, func(p corev1.Pod) bool { return p.UID != pods[0].UID })
		e.settles(set)
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			s.Replicas, s.ScaleStrategy.PodToExclude = ptr.To[int32](2), []string{pods[1].Name}
		})
		e.haveNames(set, "")
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			s.Replicas, s.ScaleStrategy.PodToInclude = ptr.To[int32](3), []string{pods[1].Name, "is-not-there"}
		})
		e.haveNames(set, "is-not-there")
		e.are("there", 3, 1, func(p corev1.Pod) bool { return p.UID == pods[1].UID })
		e.quiet()
	},
	"a name in sequence is deleted once": func(e volumeEnv) {
		set := e.create("web", 2, func(s *appsv1alpha1.CollaSet) {
			s.Spec.NamingStrategy = &appsv1alpha1.NamingStrategy{PodNamingSuffixPolicy: appsv1alpha1.PodNamingSuffixPersistentSequence}
		})
		e.reachesReady(set)
		before := e.pods()
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.ScaleStrategy.PodToDelete = []string{"web-0"} })
		e.are("another web-0", 2, 1, func(p corev1.Pod) bool { return p.Name == "web-0" && p.UID != before[0].UID })
		assert.Empty(e, e.names(set))
		e.settles(set)
		after := uids(e.pods())
		e.quiet()
		assert.Equal(e, after, uids(e.pods()))
		assert.Equal(e, before[1].UID, after[1])
	},
	"a pair whose new Pod is named is scaled in after its replacement": func(e volumeEnv) {
		set := e.create("web", 1, nil)
		e.reachesReady(set)
		origin := e.pods()[0]
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { partition(1)(s); image("nginx:2")(s) })
		e.reaches(set, appsv1alpha1.CollaSetReady)
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			s.UpdateStrategy.RollingUpdate = nil
			image("nginx:non-exist")(s)
			s.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateReplace
		})
		e.are("there", 2, 1, ready)
		fresh := e.pods()[1]
		require.NotEqual(e, origin.UID, fresh.UID)
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			s.Replicas, s.ScaleStrategy.PodToDelete = ptr.To[int32](0), []string{fresh.Name}
		})
		e.waitsFor(set, 2, appsv1alpha1.Blocker{Reason: "WaitingForReplacement", Count: 2},
			appsv1alpha1.Blocker{Reason: "ContainersFail", Count: 1})
		e.quiet()
		require.Len(e, e.pods(), 2)
		// A user who repairs the new Pod ends the replacement. (A label that marks it as serving would be taken off again.)
		repair := client.RawPatch(types.JSONPatchType,
			[]byte(`[{"op":"replace","path":"/spec/containers/0/image","value":"nginx:3"}]`))
		require.NoError(e, e.Patch(e.Context(), &fresh, repair))
		e.are("there", 0, 0, ready)
		e.haveNames(set, "")
	},
	"20 revisions are kept, and no deadline counts": func(e volumeEnv) {
		set := e.create("web", 1, nil)
		e.reachesReady(set)
		for i := range 4 {
			e.change(set, image(fmt.Sprintf("nginx:%d", i+2)))
			e.reachesReady(set)
		}
		list := &appsv1.ControllerRevisionList{}
		require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
		assert.Len(e, list.Items, 5)
		assert.Nil(e, set.Status.LastProgressTime)
	},
}
