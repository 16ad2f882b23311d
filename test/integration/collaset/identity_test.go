package collaset_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

// identityStories take off Pods and claims what they are found by, and save and restore a namespace.
func identityStories() map[string]func(volumeEnv) {
	stories := map[string]func(volumeEnv){"a claim without labels": volumeEnv.losesLabelsOfClaims}
	for name, lose := range map[string]func(*corev1.Pod){
		"the label that it is managed": func(pod *corev1.Pod) { delete(pod.Labels, appsv1alpha1.ControlLabel) },
		"its instance ID":              func(pod *corev1.Pod) { delete(pod.Labels, appsv1alpha1.InstanceIDLabel) },
		"both": func(pod *corev1.Pod) {
			delete(pod.Labels, appsv1alpha1.ControlLabel)
			delete(pod.Labels, appsv1alpha1.InstanceIDLabel)
		},
		"its revision": func(pod *corev1.Pod) { delete(pod.Labels, appsv1.ControllerRevisionHashLabelKey) },
		"its owner":    func(pod *corev1.Pod) { pod.OwnerReferences = nil },
	} {
		stories["a Pod without "+name] = func(e volumeEnv) { e.loses(lose) }
	}
	for name, sequential := range map[string]bool{"random names": false, "names in sequence": true} {
		stories["orphans of a CollaSet with "+name] = func(e volumeEnv) { e.isMadeAgain(sequential) }
		stories["a restored namespace with "+name] = func(e volumeEnv) {
			other := volumeEnv{env{e.T, e.Client, e.cluster, testcluster.Namespace(e.T, e.cluster, nil)}}
			e.isRestored(other, sequential)
		}
	}
	return stories
}

// loses takes something off one Pod, and checks that all goes on with the same Pods and claims.
func (e volumeEnv) loses(lose func(*corev1.Pod)) {
	set := e.database(3)
	before, claims := e.pods(), e.claims()
	e.quiet()
	pod := before[1].DeepCopy()
	lose(pod)
	require.NoError(e, e.Patch(e.Context(), pod, client.MergeFrom(&before[1])))
	e.staysTheSame(set, before, claims)
}

// staysTheSame waits until the CollaSet has its Pods, and checks that these are the Pods and claims from before.
func (e volumeEnv) staysTheSame(set *appsv1alpha1.CollaSet, before []corev1.Pod, claims []string) {
	e.Helper()
	e.eventually("all Pods are the CollaSet's", func() string {
		now := e.pods()
		for i := range now {
			had := slices.IndexFunc(before, func(p corev1.Pod) bool { return p.UID == now[i].UID })
			if had < 0 {
				e.Fatalf("%s was made anew: %v", now[i].Name, now[i].Labels)
			}
			for _, key := range []string{appsv1alpha1.ControlLabel, appsv1alpha1.InstanceIDLabel,
				appsv1.ControllerRevisionHashLabelKey} {
				if got, want := now[i].Labels[key], before[had].Labels[key]; got != want {
					return fmt.Sprintf("%s has %s=%s, not %s", now[i].Name, key, got, want)
				}
			}
			if !metav1.IsControlledBy(&now[i], set) {
				return now[i].Name + " is not its own"
			}
		}
		return ""
	})
	e.settles(set)
	assert.ElementsMatch(e, uids(before), uids(e.pods()), "the same Pods")
	for i, pod := range e.pods() {
		for _, status := range pod.Status.ContainerStatuses {
			assert.Zero(e, status.RestartCount, "%s, %d", pod.Name, i)
		}
	}
	assert.Equal(e, claims, e.claims())
}

// losesLabelsOfClaims takes the labels off claims, once with the Pod left and once with the Pod deleted.
func (e volumeEnv) losesLabelsOfClaims() {
	set := e.database(2)
	claims := e.claims()
	for _, keys := range [][]string{{appsv1alpha1.ControlLabel}, {appsv1alpha1.InstanceIDLabel},
		{appsv1alpha1.ControlLabel, appsv1alpha1.InstanceIDLabel, "app"}} {
		for _, deleted := range []bool{false, true} {
			pod := e.pods()[1]
			list := &corev1.PersistentVolumeClaimList{}
			require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
			for i := range list.Items {
				claim := &list.Items[i]
				if claim.Labels[appsv1alpha1.InstanceIDLabel] != "1" {
					continue
				}
				was := claim.DeepCopy()
				for _, key := range keys {
					delete(claim.Labels, key)
				}
				require.NoError(e, e.Patch(e.Context(), claim, client.MergeFrom(was)))
			}
			if deleted {
				require.NoError(e, e.Client.Delete(e.Context(), &pod))
				e.eventually("the Pod is another one", func() string {
					if now := e.pods(); len(now) != 2 || slices.Contains(uids(now), pod.UID) {
						return "it is not"
					}
					return ""
				})
			}
			e.claimsAre(claims)
			e.settles(set)
			assert.Equal(e, claims, e.mounted())
		}
	}
}

// sequence has a CollaSet name its Pods by their instance IDs.
func sequence(s *appsv1alpha1.CollaSetSpec) {
	s.NamingStrategy = &appsv1alpha1.NamingStrategy{PodNamingSuffixPolicy: appsv1alpha1.PodNamingSuffixPersistentSequence}
}

// again makes a CollaSet like this one.
func again(set *appsv1alpha1.CollaSet, namespace string) *appsv1alpha1.CollaSet {
	return &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: set.Name},
		Spec: *set.Spec.DeepCopy()}
}

// isMadeAgain deletes a CollaSet without its Pods, and makes it again.
func (e volumeEnv) isMadeAgain(sequential bool) {
	set := e.database(3, func(s *appsv1alpha1.CollaSetSpec) {
		if sequential {
			sequence(s)
		}
	})
	before, claims := e.pods(), e.claims()
	require.NoError(e, e.Client.Delete(e.Context(), set, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	e.eventually("the CollaSet is gone", func() string {
		sets := &appsv1alpha1.CollaSetList{}
		require.NoError(e, e.List(e.Context(), sets, client.InNamespace(e.namespace)))
		return strings.TrimPrefix(fmt.Sprint(len(sets.Items)), "0")
	})
	set = again(set, e.namespace)
	require.NoError(e, e.Create(e.Context(), set))
	e.staysTheSame(set, before, claims)
	e.tellsOf("Adopted")
}

// isRestored brings into another namespace what a backup tool saves of this one: without UIDs, owners and status.
func (e volumeEnv) isRestored(to volumeEnv, sequential bool) {
	set := e.database(3, func(s *appsv1alpha1.CollaSetSpec) {
		if sequential {
			sequence(s)
		}
	})
	for _, list := range []client.ObjectList{
		&corev1.PersistentVolumeClaimList{}, &appsv1.ControllerRevisionList{}, &appsv1alpha1.ResourceContextList{},
		&corev1.PodList{},
	} {
		require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
		raw, err := json.Marshal(list)
		require.NoError(e, err)
		var saved struct {
			Items []map[string]any `json:"items"`
		}
		require.NoError(e, json.Unmarshal(raw, &saved))
		for i := range saved.Items {
			to.brings(list, saved.Items[i])
		}
	}
	restored := again(set, to.namespace)
	before, claims := to.pods(), to.claims()
	require.Len(e, before, 3)
	require.NoError(e, to.Create(e.Context(), restored))
	to.staysTheSame(restored, before, claims)
	revisions := &appsv1.ControllerRevisionList{}
	require.NoError(e, to.List(e.Context(), revisions, client.InNamespace(to.namespace)))
	require.Len(e, revisions.Items, 1)
	assert.True(e, metav1.IsControlledBy(&revisions.Items[0], restored))
}

// brings makes an object again that was saved.
func (e volumeEnv) brings(list client.ObjectList, saved map[string]any) {
	e.Helper()
	metadata, _ := saved["metadata"].(map[string]any)
	for _, key := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields",
		"ownerReferences", "finalizers"} {
		delete(metadata, key)
	}
	metadata["namespace"] = e.namespace
	delete(saved, "status")
	var object client.Object
	switch list.(type) {
	case *corev1.PersistentVolumeClaimList:
		object = &corev1.PersistentVolumeClaim{}
	case *appsv1.ControllerRevisionList:
		object = &appsv1.ControllerRevision{}
	case *appsv1alpha1.ResourceContextList:
		object = &appsv1alpha1.ResourceContext{}
	case *corev1.PodList:
		object = &corev1.Pod{}
	}
	raw, err := json.Marshal(saved)
	require.NoError(e, err)
	require.NoError(e, json.Unmarshal(raw, object))
	switch o := object.(type) {
	case *corev1.Pod:
		o.Spec.NodeName = ""
	case *corev1.PersistentVolumeClaim:
		o.Spec.VolumeName = ""
		delete(o.Annotations, "pv.kubernetes.io/bind-completed")
	}
	require.NoError(e, e.Create(e.Context(), object))
}
