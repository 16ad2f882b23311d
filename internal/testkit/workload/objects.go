// Package workload is the workload that tests play with: a CollaSet, its traffic and its rule, and what its Pods are
// like at rest. All of it goes by one name, which is also the value of the Pods' label "app".
package workload

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// CollaSet is a workload of n Pods with one container, main, that is updated in place if possible. Its updates ask
// for all Pods at once, so that rules alone decide how many leave.
func CollaSet(namespace, name, image string, n int32) *appsv1alpha1.CollaSet {
	return &appsv1alpha1.CollaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1alpha1.CollaSetSpec{
			Replicas: ptr.To(n),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name,
					appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}},
			},
			UpdateStrategy: appsv1alpha1.UpdateStrategy{
				PodUpdatePolicy: appsv1alpha1.PodUpdateInPlaceIfPossible,
				RollingUpdate:   &appsv1alpha1.RollingUpdateStrategy{MaxUnavailable: ptr.To(intstr.FromString("100%"))},
			},
		},
	}
}

// Service gives the Pods traffic that the suite controls.
func Service(namespace, name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

// Rule allows so many of the Pods, a number or a percentage, to be out of service.
func Rule(namespace, name, maxUnavailable string) *appsv1alpha1.PodTransitionRule {
	return &appsv1alpha1.PodTransitionRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1alpha1.PodTransitionRuleSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Rules: []appsv1alpha1.TransitionRule{{Name: "available",
				TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
					AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: ptr.To(intstr.Parse(maxUnavailable))},
				}}},
		},
	}
}
