package main

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

const (
	namespace = "demo"
	name      = "web"
	ruleName  = "web"

	replicas       = 10
	fewer          = 7
	restarted      = 4
	maxUnavailable = "20%"
	oldImage       = "web:1"
	newImage       = "web:2"
	badImage       = "web:non-exist" // the simulated kubelet cannot pull it
)

var appLabels = map[string]string{"app": name}

// restartJob restarts containers of the first Pods in place.
func restartJob(rows []row) *appsv1alpha1.OperationJob {
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "restart-"}}
	job.Spec.Action = appsv1alpha1.OpsActionRestart
	job.Spec.Restart = &appsv1alpha1.RestartAction{Fallback: appsv1alpha1.RestartFallbackFail}
	for _, r := range rows[:restarted] {
		job.Spec.Targets = append(job.Spec.Targets, appsv1alpha1.PodOpsTarget{Name: r.name})
	}
	return job
}

// objects are what the demo creates, in order.
func objects() []client.Object {
	in := metav1.ObjectMeta{Namespace: namespace, Name: name}
	podLabels := map[string]string{"app": name, appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}
	service := &corev1.Service{ObjectMeta: in, Spec: corev1.ServiceSpec{
		Selector: appLabels,
		Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}}
	service.Labels = map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}
	budget := intstr.FromString(maxUnavailable)
	rule := &appsv1alpha1.PodTransitionRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ruleName},
		Spec: appsv1alpha1.PodTransitionRuleSpec{
			Selector: &metav1.LabelSelector{MatchLabels: appLabels},
			Rules: []appsv1alpha1.TransitionRule{{Name: "available",
				TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
					AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: &budget},
				}}},
		},
	}
	set := &appsv1alpha1.CollaSet{ObjectMeta: in, Spec: appsv1alpha1.CollaSetSpec{
		Replicas: ptr.To[int32](replicas),
		Selector: &metav1.LabelSelector{MatchLabels: appLabels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: podLabels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: name, Image: oldImage}}},
		},
		UpdateStrategy: appsv1alpha1.UpdateStrategy{PodUpdatePolicy: appsv1alpha1.PodUpdateInPlaceIfPossible},
	}}
	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, service, rule, set,
	}
}
