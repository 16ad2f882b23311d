package poddecoration

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/poddecoration/decoplan"
)

// TestD3RevisionsAreKnownByTheirOwner, whatever their labels: those of others are neither read nor deleted.
func TestD3RevisionsAreKnownByTheirOwner(t *testing.T) {
	owner := func(change func(*metav1.OwnerReference)) *appsv1.ControllerRevision {
		ref := metav1.OwnerReference{APIVersion: appsv1alpha1.SchemeGroupVersion.String(),
			Kind: appsv1alpha1.PodDecorationKind, Name: "proxy", UID: "1", Controller: ptr.To(true)}
		change(&ref)
		return &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(`{"spec":{}}`)}, ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{"app": "web"}, OwnerReferences: []metav1.OwnerReference{ref}}}
	}
	ours := owner(func(*metav1.OwnerReference) {})
	assert.Equal(t, []string{"1"}, revisionOwner(ours))
	kept, err := stripRevision(ours)
	require.NoError(t, err)
	assert.NotEmpty(t, kept.(*appsv1.ControllerRevision).Data.Raw) //nolint:forcetypeassert // a test
	for name, other := range map[string]*appsv1.ControllerRevision{
		"an orphan":                    {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}},
		"a StatefulSet's":              owner(func(r *metav1.OwnerReference) { r.Kind = "StatefulSet" }),
		"another group's":              owner(func(r *metav1.OwnerReference) { r.APIVersion = "example.com/v1" }),
		"one that is not a controller": owner(func(r *metav1.OwnerReference) { r.Controller = nil }),
	} {
		t.Run(name, func(t *testing.T) {
			assert.Empty(t, revisionOwner(other))
			kept, err := stripRevision(other)
			require.NoError(t, err)
			assert.Empty(t, kept.(*appsv1.ControllerRevision).Data.Raw, "it only takes memory") //nolint:forcetypeassert // a test
		})
	}
}

// TestWhatIsReadOfAPod is in its cached form.
func TestWhatIsReadOfAPod(t *testing.T) {
	const revisions = `[{"name":"proxy","revision":"proxy-1"}]`
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", UID: "1", ResourceVersion: "7",
			Labels: map[string]string{appsv1alpha1.ControlLabel: "true", "app": "web", "tier": "gold",
				appsv1alpha1.PodDecorationLabelPrefix + "proxy": "proxy-1", podops.ServiceAvailableLabel: "1"},
			Annotations: map[string]string{
				appsv1alpha1.PodDecorationRevisionsAnnotation: revisions,
				appsv1alpha1.PodDecorationChangesAnnotation:   `{"labels":{"tier":"iron"}}`,
				appsv1alpha1.PodDecorationDesiredAnnotation:   `[]`,
				"example.com/large":                           "unread",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-5d9f", Controller: ptr.To(true)}}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}},
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	whole := read(pod)
	kept, err := stripPod(pod.DeepCopy())
	require.NoError(t, err)
	p := read(kept.(*corev1.Pod)) //nolint:forcetypeassert // a test
	whole.View.Annotations, p.View.Annotations = nil, nil
	assert.Equal(t, whole, p, "nothing that a decision reads is lost")
	assert.Empty(t, kept.(*corev1.Pod).Spec.Containers) //nolint:forcetypeassert // a test

	assert.Equal(t, map[string]string{appsv1alpha1.ControlLabel: "true", "app": "web", "tier": "iron",
		podops.ServiceAvailableLabel: "1"}, p.Labels)
	assert.Equal(t, []decoration.Mark{{Name: "proxy", Revision: "proxy-1"}}, p.Has)
	assert.True(t, p.IsTold && p.Managed && p.Available)
	assert.Empty(t, p.Desired)
	assert.Equal(t, decoplan.Owner{Kind: "ReplicaSet", Name: "web-5d9f", Recreates: true}, p.Owner)

	pod.OwnerReferences[0].Kind = "Job"
	p = read(pod)
	assert.False(t, p.Owner.Recreates, "a Job counts a deleted Pod as one that failed")
}
