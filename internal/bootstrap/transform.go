package bootstrap

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
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

// OnlyController returns those owner references that name the controller: others are only for the garbage collector.
func OnlyController(all []metav1.OwnerReference) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(all),
		func(ref metav1.OwnerReference) bool { return !ptr.Deref(ref.Controller, false) })
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
