package revision

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// OnlyContainers keeps of containers what changes in place and Carried read: resources and their policy only with
// resize. It is for caches.
func OnlyContainers(containers []corev1.Container, resize bool) []corev1.Container {
	var out []corev1.Container
	for i := range containers {
		c := &containers[i]
		kept := corev1.Container{Name: c.Name, Image: c.Image, RestartPolicy: c.RestartPolicy}
		if resize {
			kept.Resources, kept.ResizePolicy = c.Resources, c.ResizePolicy
		}
		out = append(out, kept)
	}
	return out
}

// SidecarStatuses are those of init containers that run as long as the Pod: Carried waits for no others.
func SidecarStatuses(pod *corev1.Pod) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range pod.Status.InitContainerStatuses {
		s := &pod.Status.InitContainerStatuses[i]
		if slices.ContainsFunc(pod.Spec.InitContainers,
			func(c corev1.Container) bool { return c.Name == s.Name && isSidecar(&c) }) {
			out = append(out, *s)
		}
	}
	return out
}

// OnlyStatuses keeps of containers' statuses what shows Carried how far a change has come: resources only with
// resize. It is for caches.
func OnlyStatuses(statuses []corev1.ContainerStatus, resize bool) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range statuses {
		s := &statuses[i]
		kept := corev1.ContainerStatus{Name: s.Name, ContainerID: s.ContainerID, ImageID: s.ImageID,
			RestartCount: s.RestartCount, State: s.State}
		if resize {
			kept.Resources = s.Resources
		}
		out = append(out, kept)
	}
	return out
}
