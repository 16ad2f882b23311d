package collaset_test

import (
	"fmt"
	"slices"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// ofExpressions is a change of a new CollaSet.
func ofExpressions(set *appsv1alpha1.CollaSet) {
	set.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{set.Name, "another"}},
		{Key: "quarantined", Operator: metav1.LabelSelectorOpDoesNotExist},
	}}
}

// expressionStories show that everything works with a selector that has no matchLabels. Kuperator then silently neither
// excludes nor includes, keeps no claim, and adopts every ControllerRevision of the namespace.
var expressionStories = map[string]func(env){
	"Pods are made, updated and scaled, and the scale subresource tells the selector": func(e env) {
		set := e.create("web", 3, ofExpressions)
		e.reachesReady(set)
		before := e.pods()
		e.change(set, image("nginx:2"))
		e.reachesReady(set)
		assert.Equal(e, uids(before), uids(e.pods()))
		assert.Equal(e, 3, running(e.pods(), "nginx:2"))
		e.eventually("it is scaled", func() string { // between two writes of its status
			scale := &autoscalingv1.Scale{}
			require.NoError(e, e.SubResource("scale").Get(e.Context(), set, scale))
			assert.Equal(e, autoscalingv1.ScaleStatus{Replicas: 3, Selector: "app in (another,web),!quarantined"}, scale.Status)
			scale.Spec.Replicas = 1
			err := e.SubResource("scale").Update(e.Context(), set, client.WithSubResourceBody(scale))
			if !apierrors.IsConflict(err) {
				require.NoError(e, err)
				return ""
			}
			return err.Error()
		})
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		e.reachesReady(set)
		assert.Len(e, e.pods(), 1)
		e.quiet()
	},
	"a Pod that it no longer matches is let go as it is, and another takes its place": func(e env) {
		set := e.create("web", 2, ofExpressions)
		e.reachesReady(set)
		sick := e.pods()[1]
		require.NoError(e, e.Patch(e.Context(), sick.DeepCopy(),
			client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"quarantined":"yes"}}}`))))
		e.eventually("the Pod has no owner, and two others do", func() string { return e.owned(set, 2, sick.Name) })
		now := &corev1.Pod{}
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(&sick), now))
		assert.Equal(e, sick.UID, now.UID)
		assert.Nil(e, now.DeletionTimestamp)
		assert.Equal(e, "true", now.Labels["collaset.kusionstack.io/orphaned"])
		e.reaches(set, appsv1alpha1.CollaSetReady)
	},
	"a Pod is excluded and included again": func(e env) {
		set := e.create("web", 2, ofExpressions)
		e.reachesReady(set)
		chosen := e.pods()[0]
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.ScaleStrategy.PodToExclude = []string{chosen.Name} })
		e.eventually("the Pod has no owner, and two others do", func() string { return e.owned(set, 2, chosen.Name) })
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			n := int32(3)
			s.Replicas, s.ScaleStrategy.PodToExclude, s.ScaleStrategy.PodToInclude = &n, nil, []string{chosen.Name}
		})
		e.eventually("the Pod is one of three", func() string { return e.owned(set, 3, "") })
		assert.Contains(e, uids(e.pods()), chosen.UID)
	},
	"claims are kept for their instance IDs": func(e env) {
		set := e.create("web", 2, func(set *appsv1alpha1.CollaSet) {
			ofExpressions(set)
			claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}}
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
			claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
			set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{claim}
		})
		claims := func() map[types.UID]string {
			list := &corev1.PersistentVolumeClaimList{}
			require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
			out := map[types.UID]string{}
			for _, claim := range list.Items {
				out[claim.UID] = claim.Labels[appsv1alpha1.InstanceIDLabel]
			}
			return out
		}
		// Volumes are not provisioned here, so the Pods are made and do not run.
		e.eventually("two Pods with a claim each", func() string { return e.owned(set, 2, "") })
		before := claims()
		require.Len(e, before, 2)
		e.change(set, replicas(1))
		e.eventually("one Pod", func() string { return e.owned(set, 1, "") })
		e.change(set, replicas(2))
		e.eventually("two Pods", func() string { return e.owned(set, 2, "") })
		assert.Equal(e, before, claims())
	},
	"revisions of others are left alone": func(e env) {
		other := e.create("other", 0, func(set *appsv1alpha1.CollaSet) { set.Spec.HistoryLimit = new(int32) })
		e.reaches(other, appsv1alpha1.CollaSetReady)
		orphan := &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "orphan", Labels: map[string]string{"app": "web"}},
			Revision:   1,
			Data:       runtime.RawExtension{Raw: []byte(`{"spec":{"template":{}}}`)},
		}
		require.NoError(e, e.Create(e.Context(), orphan))
		set := e.create("web", 1, func(set *appsv1alpha1.CollaSet) { ofExpressions(set); set.Spec.HistoryLimit = new(int32) })
		e.reaches(set, appsv1alpha1.CollaSetReady)
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(orphan), orphan))
		assert.Empty(e, orphan.OwnerReferences)
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(other), other))
		assert.NotEqual(e, other.Status.UpdatedRevision, set.Status.UpdatedRevision)
	},
	"it cannot be changed": func(e env) {
		set := e.create("web", 0, ofExpressions)
		set.Spec.Selector.MatchExpressions[0].Values = []string{"web"}
		err := e.Update(e.Context(), set)
		for err != nil && apierrors.IsConflict(err) {
			require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
			set.Spec.Selector.MatchExpressions[0].Values = []string{"web"}
			err = e.Update(e.Context(), set)
		}
		require.ErrorContains(e, err, "spec.selector cannot be changed: set it back")
	},
}

// owned says what is missing for the CollaSet to own exactly so many live Pods, without is not among them.
func (e env) owned(set *appsv1alpha1.CollaSet, want int, without string) string {
	e.Helper()
	names := []string{}
	for _, pod := range e.pods() {
		if metav1.IsControlledBy(&pod, set) {
			names = append(names, pod.Name)
		}
	}
	if len(names) != want || slices.Contains(names, without) {
		return fmt.Sprintf("it owns %v", names)
	}
	return ""
}
