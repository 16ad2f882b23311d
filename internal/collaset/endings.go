package collaset

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// Bounds of the wait between one Pod of an instance ID that ran to its end and the next, and how long an ID must do
// without such an ending for the wait to start afresh.
const (
	firstAgain   = 10 * time.Second
	longestAgain = 5 * time.Minute
	backoffReset = 10 * time.Minute
)

// restartBackoff counts, by instance ID, the Pods that ran to their ends.
type restartBackoff struct {
	// counted are those that still exist.
	counted map[types.UID]bool
	ids     map[int]ending
}

// ending is how often Pods of an ID ran to their ends, and when the last was first seen so.
type ending struct {
	count int
	last  time.Time
}

// measure counts endings that are new and fills in how long the Pods' successors wait.
func (e *restartBackoff) measure(pods []setplan.Pod, now time.Time) {
	for id, was := range e.ids {
		if now.Sub(was.last) > backoffReset {
			delete(e.ids, id)
		}
	}
	counted := map[types.UID]bool{}
	for i := range pods {
		p := &pods[i]
		if !p.View.Terminal || p.ID == setplan.NoID {
			continue
		}
		counted[p.UID()] = true
		if e.counted[p.UID()] {
			continue
		}
		if e.ids == nil {
			e.ids = map[int]ending{}
		}
		was := e.ids[p.ID]
		e.ids[p.ID] = ending{count: was.count + 1, last: now}
	}
	e.counted = counted
	for i := range pods {
		if p := &pods[i]; p.View.Terminal && !p.View.Terminating {
			was := e.ids[p.ID]
			p.Again = max(was.wait()-now.Sub(was.last), 0)
		}
	}
}

// wait is nothing after the first ending, then 10 s, 20 s and so on.
func (e ending) wait() time.Duration {
	if e.count < 2 {
		return 0
	}
	return min(firstAgain<<min(e.count-2, 20), longestAgain)
}

// ended says how a Pod ended: what the kubelet says of the Pod, or of the first container that failed.
func ended(pod *corev1.Pod) string {
	if pod.Status.Phase == corev1.PodSucceeded {
		return "ran to its end, all containers succeeded"
	}
	switch {
	case pod.Status.Reason != "" && pod.Status.Message != "":
		return fmt.Sprintf("failed, %s: %s", pod.Status.Reason, pod.Status.Message)
	case pod.Status.Reason+pod.Status.Message != "":
		return "failed, " + pod.Status.Reason + pod.Status.Message
	}
	for i := range pod.Status.ContainerStatuses {
		if t := pod.Status.ContainerStatuses[i].State.Terminated; t != nil && t.ExitCode != 0 {
			return fmt.Sprintf("failed, container %s exited with %d (%s)", pod.Status.ContainerStatuses[i].Name,
				t.ExitCode, t.Reason)
		}
	}
	return "failed"
}

// failingContainer says which container of a Pod cannot run, and why: the first that the kubelet is waiting to try
// again; "" if none is. What the kubelet has between two tries is not told, for it changes with each.
func failingContainer(pod *corev1.Pod) string {
	for i := range pod.Status.InitContainerStatuses {
		if why := failure(&pod.Status.InitContainerStatuses[i], pod.Spec.InitContainers); why != "" {
			return why
		}
	}
	for i := range pod.Status.ContainerStatuses {
		if why := failure(&pod.Status.ContainerStatuses[i], pod.Spec.Containers); why != "" {
			return why
		}
	}
	return ""
}

// failure tells why one of these containers cannot run, "" if it can or if the kubelet has not tried.
func failure(s *corev1.ContainerStatus, containers []corev1.Container) string {
	if s.State.Waiting == nil {
		return ""
	}
	switch why := s.State.Waiting.Reason; why {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
		"RegistryUnavailable", "SignatureValidationFailed":
		image := ""
		if i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == s.Name }); i >= 0 {
			image = containers[i].Image
		}
		return fmt.Sprintf("container %s cannot start: its image %s cannot be pulled", s.Name, image)
	case "CrashLoopBackOff":
		return fmt.Sprintf("container %s ends again and again", s.Name)
	case "CreateContainerConfigError": // for example a Secret that is missing
		return fmt.Sprintf("container %s cannot start: %s", s.Name, s.State.Waiting.Message)
	case "CreateContainerError", "PreStartHookError", "PostStartHookError", "RunContainerError":
		return fmt.Sprintf("container %s cannot start: %s", s.Name, why)
	}
	return ""
}
