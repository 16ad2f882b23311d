package collaset_test

import (
	"encoding/json"
	"fmt"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
)

// decorationStories have the test say which decorations each Pod is to have.
var decorationStories = map[string]func(env){
	"a new template and a new sidecar are one time out of service": func(e env) {
		set := e.create("web", 3, nil)
		e.reachesReady(set)
		before := e.pods()
		all := record[*corev1.Pod](e, &corev1.PodList{})
		e.decoration("sidecar-1", `{"initContainers":[{"name":"proxy","image":"proxy:1","restartPolicy":"Always"}]}`)
		e.desire("sidecar-1")
		e.change(set, image("nginx:2"))
		e.decorated(set, "sidecar-1")

		assert.Equal(e, 3, running(e.pods(), "nginx:2"))
		assert.Equal(e, ids(before), ids(e.pods()))
		seen := map[types.UID]bool{}
		for _, p := range all.All() {
			seen[p.UID] = true
		}
		assert.Len(e, seen, 6, "each instance ID has had two Pods")
		for _, p := range e.pods() {
			assert.Equal(e, "proxy", p.Spec.InitContainers[0].Name)
			assert.Equal(e, "sidecar-1", p.Labels[appsv1alpha1.PodDecorationLabelPrefix+"sidecar"])
		}

		// What is changed about it in place leaves the Pods where they are.
		before = e.pods()
		e.decoration("sidecar-2", `{"initContainers":[{"name":"proxy","image":"proxy:2","restartPolicy":"Always"}]}`)
		e.desire("sidecar-2")
		e.decorated(set, "sidecar-2")
		assert.Equal(e, uids(before), uids(e.pods()))
		for _, p := range e.pods() {
			assert.Equal(e, "proxy:2", p.Spec.InitContainers[0].Image)
		}
	},
	"a new image leaves what a decoration sets as it is": func(e env) {
		set := e.create("web", 2, nil)
		e.reachesReady(set)
		e.decoration("sidecar-1", `{"primaryContainers":[{"targetPolicy":"ByName","name":"side","image":"envoy:debug"}],
			"metadata":[{"labels":{"tier":"debug"}}]}`)
		before := e.pods()
		e.desire("sidecar-1")
		e.decorated(set, "sidecar-1")
		e.change(set, image("nginx:2"))
		e.reachesReady(set)
		assert.Equal(e, uids(before), uids(e.pods()))
		assert.Equal(e, 2, running(e.pods(), "nginx:2"))
		for _, p := range e.pods() {
			assert.Equal(e, "envoy:debug", p.Spec.Containers[1].Image)
			assert.Equal(e, "debug", p.Labels["tier"])
		}

		e.desire("")
		e.decorated(set, "")
		for _, p := range e.pods() {
			assert.Equal(e, "envoy:1", p.Spec.Containers[1].Image)
			assert.NotContains(e, p.Labels, "tier")
			assert.NotContains(e, p.Labels, appsv1alpha1.PodDecorationLabelPrefix+"sidecar")
		}
	},
	"a Pod that is lost comes back decorated as it was": func(e env) {
		set := e.create("web", 2, nil)
		e.reachesReady(set)
		e.decoration("sidecar-1", `{"containers":[{"name":"proxy","image":"proxy:1"}]}`)
		e.desire("sidecar-1")
		e.decorated(set, "sidecar-1")
		lost := e.pods()[0]
		require.NoError(e, e.Delete(e.Context(), &lost, client.GracePeriodSeconds(0)))
		e.eventually("another one is there", func() string {
			if pods := e.pods(); len(pods) != 2 || pods[0].UID == lost.UID {
				return "not yet"
			}
			return ""
		})
		e.settles(set)
		e.decorated(set, "sidecar-1")
	},
	"what a Pod cannot have is left out and written on it": func(e env) {
		set := e.create("web", 1, nil)
		e.reachesReady(set)
		e.decoration("sidecar-1", `{"initContainers":[{"name":"side","image":"proxy:1"}]}`)
		e.desire("sidecar-1")
		e.eventually("the Pod has a note of what it cannot have", func() string {
			made, _ := decoration.Keys(e.pods()[0].Annotations)
			if made != key("sidecar-1") {
				return fmt.Sprintf("it has %q", made)
			}
			return ""
		})
		e.settles(set)
		refused := decoration.RefusedOf(e.pods()[0].Annotations)
		require.Len(e, refused, 1)
		assert.Contains(e, refused[0].Why, `init container "side" has the name of a container of the workload`)
		assert.NotContains(e, e.pods()[0].Labels, appsv1alpha1.PodDecorationLabelPrefix+"sidecar")
		e.quiet()
	},
	"a decoration that does not exist touches no Pod": func(e env) {
		set := e.create("web", 1, nil)
		e.reachesReady(set)
		e.desire(set.Status.UpdatedRevision)
		e.blocked(set, "DecorationMissing", "is not of PodDecoration sidecar")
		before := e.pods()
		e.desire("sidecar-9")
		e.blocked(set, "DecorationMissing", "revision sidecar-9 of PodDecoration sidecar does not exist")
		e.quiet()
		assert.Equal(e, uids(before), uids(e.pods()))
		e.desire("")
		e.settles(set)
	},
}

// key is that of the decoration "sidecar" at a revision, "" for none.
func key(revision string) string { return decoration.Key(marks(revision)) }

func marks(revision string) []decoration.Mark {
	if revision == "" {
		return []decoration.Mark{}
	}
	return []decoration.Mark{{Name: "sidecar", Revision: revision}}
}

// decoration stores a revision of the decoration "sidecar".
func (e env) decoration(name, template string) {
	e.Helper()
	owner := &appsv1alpha1.PodDecoration{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "sidecar"}}
	require.NoError(e, client.IgnoreAlreadyExists(e.Create(e.Context(), owner)))
	require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(owner), owner))
	require.NoError(e, e.Create(e.Context(), &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: appsv1alpha1.SchemeGroupVersion.String(), Kind: appsv1alpha1.PodDecorationKind, Name: owner.Name,
			UID: owner.UID, Controller: ptr.To(true),
		}}},
		Revision: 1,
		Data:     runtime.RawExtension{Raw: []byte(`{"spec":{"template":` + template + `}}`)},
	}))
}

// desire has all Pods be told of a revision of "sidecar"; of none if it is "".
func (e env) desire(revision string) {
	e.Helper()
	text, err := decoration.Text(marks(revision))
	require.NoError(e, err)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		appsv1alpha1.PodDecorationDesiredAnnotation: text,
	}}})
	require.NoError(e, err)
	for _, p := range e.pods() {
		require.NoError(e, e.Patch(e.Context(), &p, client.RawPatch(types.MergePatchType, patch)))
	}
}

// decorated waits until all Pods have a revision of "sidecar" and serve.
func (e env) decorated(set *appsv1alpha1.CollaSet, revision string) {
	e.Helper()
	e.eventually("all Pods are decorated", func() string {
		for _, p := range e.pods() {
			if made, _ := decoration.Keys(p.Annotations); made != key(revision) {
				return fmt.Sprintf("%s has %q", p.Name, made)
			}
		}
		return ""
	})
	e.settles(set)
}
