package bootstrap

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// StripManagedFields drops metadata.managedFields, often a third of an object, before it enters the cache. It is the
// default transform of every component. What is no API object passes unchanged. It never returns an error.
func StripManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// Managed selects what the suite controls.
func Managed() labels.Selector {
	return labels.SelectorFromSet(labels.Set{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue})
}

// OnlyAnnotations returns those annotations whose keys are wanted, nil if none is: in a cache others only take
// memory, and some are large.
func OnlyAnnotations(all map[string]string, wanted func(key string) bool) map[string]string {
	var kept map[string]string
	for key, value := range all {
		if wanted(key) {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = value
		}
	}
	return kept
}

// ProtocolPods is the transform of a cache of Pods. Of the metadata it keeps all but annotations that are not read,
// which may be large, and owners other than the controller, which are only for the garbage collector; of the rest the
// readiness gates, the phase, and whether the protocol's conditions hold. add adds to these what else the component
// reads of the Pod.
func ProtocolPods(
	isRead func(annotation string) bool, add func(pod *corev1.Pod, spec *corev1.PodSpec, status *corev1.PodStatus),
) toolscache.TransformFunc {
	return func(object any) (any, error) {
		if pod, ok := object.(*corev1.Pod); ok {
			pod.Annotations = OnlyAnnotations(pod.Annotations, isRead)
			pod.OwnerReferences = slices.DeleteFunc(slices.Clone(pod.OwnerReferences),
				func(ref metav1.OwnerReference) bool { return !ptr.Deref(ref.Controller, false) })
			spec := corev1.PodSpec{ReadinessGates: pod.Spec.ReadinessGates}
			status := corev1.PodStatus{Phase: pod.Status.Phase, Conditions: OnlyConditions(pod.Status.Conditions,
				corev1.PodReady, corev1.ContainersReady, podops.ServiceReadyCondition)}
			add(pod, &spec, &status)
			pod.Spec, pod.Status = spec, status
		}
		return StripManagedFields(object)
	}
}

// OnlyConditions returns the conditions of these types, and of each only whether it holds: without its times many
// Pods in a cache have the same ones.
func OnlyConditions(all []corev1.PodCondition, types ...corev1.PodConditionType) []corev1.PodCondition {
	var kept []corev1.PodCondition
	for i := range all {
		if slices.Contains(types, all[i].Type) {
			kept = append(kept, corev1.PodCondition{Type: all[i].Type, Status: all[i].Status})
		}
	}
	return kept
}
