package bootstrap

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// StripManagedFields drops metadata.managedFields, often a third of an object, before it enters the cache. It is the
// default transform of every component. What is no API object passes unchanged. It never returns an error.
func StripManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// StripPod keeps of a Pod what the Pod protocol reads: metadata without managed fields, the readiness gates, node and
// grace period, the containers' names and images, and the status. It is meant for components that never look at the rest of the
// spec. A Pod read from such a cache must not be sent back with Update: the API server would take what is missing as
// removed. Patches of metadata and status are safe. What is no Pod loses its managed fields only. It never returns
// an error.
func StripPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return StripManagedFields(object)
	}
	pod.ManagedFields = nil
	pod.Spec = corev1.PodSpec{
		NodeName:                      pod.Spec.NodeName,
		ReadinessGates:                pod.Spec.ReadinessGates,
		RestartPolicy:                 pod.Spec.RestartPolicy,
		TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
		Containers:                    namesAndImages(pod.Spec.Containers),
		InitContainers:                namesAndImages(pod.Spec.InitContainers),
	}
	return pod, nil
}

func namesAndImages(containers []corev1.Container) []corev1.Container {
	if containers == nil {
		return nil
	}
	kept := make([]corev1.Container, len(containers))
	for i := range containers {
		kept[i] = corev1.Container{
			Name:          containers[i].Name,
			Image:         containers[i].Image,
			Ports:         containers[i].Ports,
			RestartPolicy: containers[i].RestartPolicy,
		}
	}
	return kept
}

// OnlyAnnotations returns those annotations whose keys are wanted, nil if none is: in a cache others only take memory, and some are large.
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

// OnlyConditions returns the conditions of these types, and of each only whether it holds: without its times many Pods in a cache have the
// same ones.
func OnlyConditions(all []corev1.PodCondition, types ...corev1.PodConditionType) []corev1.PodCondition {
	var kept []corev1.PodCondition
	for i := range all {
		if slices.Contains(types, all[i].Type) {
			kept = append(kept, corev1.PodCondition{Type: all[i].Type, Status: all[i].Status})
		}
	}
	return kept
}
