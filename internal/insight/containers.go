package insight

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/api/podops"
)

// pullReasons are the kubelet's words for an image that it cannot get.
var pullReasons = []string{"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull",
	"ImageInspectError", "RegistryUnavailable"}

// graceSlack is how long a kubelet may take beyond a Pod's grace period before it counts as behind.
const graceSlack = 30 * time.Second

// notReady says why a Pod is not Ready.
func (x *index) notReady(pod *corev1.Pod) []Reason {
	if c := condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		next := "change what the template asks for (resources, nodeSelector, affinity, tolerations), or add nodes"
		if strings.Contains(c.Message, "persistentvolumeclaim") {
			next = "see which of its claims is missing or not bound, and why: kubectl -n " + pod.Namespace +
				" describe pvc"
		}
		return []Reason{{Code: CodeUnschedulable, Message: "no node takes the Pod: " + c.Message,
			Since: timeOf(c.LastTransitionTime.Time), Next: next}}
	}
	if r := x.badNode(pod); r != nil {
		return []Reason{*r}
	}
	if behind(pod) {
		return x.kubelet(pod, fmt.Sprintf("the kubelet has seen generation %d of the Pod and not %d",
			pod.Status.ObservedGeneration, pod.Generation))
	}
	if found := x.containers(pod); len(found) > 0 {
		return found
	}
	var found []Reason
	for _, g := range pod.Spec.ReadinessGates {
		c := condition(pod, g.ConditionType)
		if g.ConditionType == podops.ServiceReadyCondition || c != nil && c.Status == corev1.ConditionTrue {
			continue
		}
		r := Reason{Code: CodeReadinessGate, Message: fmt.Sprintf("readiness gate %s is closed", g.ConditionType),
			Next: "ask the owner of that gate"}
		if c != nil {
			r.Message, r.Since = strings.TrimSuffix(r.Message+": "+c.Message, ": "), timeOf(c.LastTransitionTime.Time)
		}
		found = append(found, r)
	}
	if len(found) > 0 {
		return found
	}
	gate := condition(pod, podops.ServiceReadyCondition)
	if gate != nil && gate.Status == corev1.ConditionFalse {
		if r := x.missing(LifecycleController); r != nil {
			return []Reason{*r}
		}
	}
	if pod.Spec.NodeName == "" {
		return []Reason{{Code: CodeUnschedulable, Message: "the Pod has no node yet",
			Next: "see whether a scheduler looks after it: spec.schedulerName is " + pod.Spec.SchedulerName}}
	}
	return x.kubelet(pod, "nothing but the kubelet of node "+pod.Spec.NodeName+
		" keeps the Pod from being Ready: it has not reported")
}

func behind(pod *corev1.Pod) bool {
	return pod.Status.ObservedGeneration > 0 && pod.Status.ObservedGeneration < pod.Generation
}

// kubelet is the reason that a kubelet does not report; a node that is not Ready explains it.
func (x *index) kubelet(pod *corev1.Pod, message string) []Reason {
	if r := x.badNode(pod); r != nil {
		return []Reason{*r}
	}
	if behind(pod) {
		message += fmt.Sprintf(" (it has seen generation %d of %d)", pod.Status.ObservedGeneration, pod.Generation)
	}
	return []Reason{{
		Code: CodeKubeletBehind, Message: message, On: nodeRef(pod),
		Next: "see the kubelet's log and load on node " + pod.Spec.NodeName + "; this waits for its report and nothing else",
	}}
}

func nodeRef(pod *corev1.Pod) *Ref {
	if pod.Spec.NodeName == "" {
		return nil
	}
	return &Ref{Kind: "Node", Name: pod.Spec.NodeName}
}

// badNode is the reason that the Pod's node is gone or not Ready; nil if it is Ready, or not known.
func (x *index) badNode(pod *corev1.Pod) *Reason {
	node, known := x.Nodes[pod.Spec.NodeName]
	if !known || pod.Spec.NodeName == "" {
		return nil
	}
	r := &Reason{Code: CodeNodeNotReady, On: nodeRef(pod), Message: "node " + pod.Spec.NodeName +
		" does not exist any more", Next: "delete the Pod, or wait for the Pod garbage collector"}
	if node == nil {
		return r
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			r.Message, r.Since = fmt.Sprintf("node %s is not Ready (%s): %s", node.Name, c.Status,
				c.Message), timeOf(c.LastTransitionTime.Time)
			r.Next = "repair the node; if it is gone for good, taint it node.kubernetes.io/out-of-service=:NoExecute"
			return r
		}
	}
	return nil
}

// containers says what keeps containers from being ready.
func (x *index) containers(pod *corev1.Pod) []Reason {
	if behind(pod) {
		return nil // what the kubelet says is about an earlier Pod
	}
	var found []Reason
	images := map[string]string{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		images[c.Name] = c.Image
	}
	initialized := true
	for _, s := range pod.Status.InitContainerStatuses {
		if r := containerReason(pod, s, images[s.Name]); r != nil {
			found = append(found, *r)
		}
		initialized = initialized && (s.Ready || s.State.Terminated != nil && s.State.Terminated.ExitCode == 0)
	}
	for _, s := range pod.Status.ContainerStatuses {
		if r := containerReason(pod, s, images[s.Name]); r != nil && (initialized || r.Code == CodeImagePull) {
			found = append(found, *r)
		}
	}
	return found
}

func containerReason(pod *corev1.Pod, s corev1.ContainerStatus, image string) *Reason {
	switch {
	case s.State.Waiting != nil && slices.Contains(pullReasons, s.State.Waiting.Reason):
		return &Reason{
			Code: CodeImagePull, Message: fmt.Sprintf("container %s: image %s cannot be pulled: %s", s.Name, image,
				said(s.State.Waiting.Reason, s.State.Waiting.Message)),
			Next: "correct the image in the template, or the registry and its credentials",
		}
	case s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff":
		r := &Reason{Code: CodeContainerCrashing, Message: fmt.Sprintf("container %s ends again and again (%d restarts)%s",
			s.Name, s.RestartCount, endText(s.LastTerminationState.Terminated))}
		r.Next = "see its log: kubectl -n " + pod.Namespace + " logs --previous " + pod.Name + " -c " + s.Name
		return r
	case s.State.Waiting != nil && s.State.Waiting.Reason != "" && s.State.Waiting.Reason != "ContainerCreating" &&
		s.State.Waiting.Reason != "PodInitializing":
		return &Reason{
			Code: CodeContainerWaiting, Message: fmt.Sprintf("container %s cannot start: %s", s.Name,
				said(s.State.Waiting.Reason, s.State.Waiting.Message)),
			Next: "correct what the message names (ConfigMaps, Secrets, volumes, the command)",
		}
	case s.State.Waiting != nil && s.State.Waiting.Reason != "PodInitializing":
		return &Reason{Code: CodeContainerWaiting, Message: "container " + s.Name + " is being created",
			Next: "see the Pod's events if it takes long (volumes, network)"}
	case s.State.Running != nil && !s.Ready &&
		(s.Started == nil || !*s.Started || s.RestartCount == 0 || s.LastTerminationState.Terminated == nil):
		return &Reason{
			Code: CodeProbeFailing, Message: fmt.Sprintf("container %s runs and is not ready", s.Name),
			Since: timeOf(s.State.Running.StartedAt.Time),
			Next:  "see its readiness and startup probes in the Pod's events, and its log",
		}
	case s.State.Running != nil && !s.Ready:
		return &Reason{
			Code: CodeProbeFailing, Message: fmt.Sprintf("container %s runs and is not ready, after %d restarts%s", s.Name,
				s.RestartCount, endText(s.LastTerminationState.Terminated)),
			Since: timeOf(s.State.Running.StartedAt.Time), Next: "see its probes in the Pod's events, and its log",
		}
	case s.State.Terminated != nil && s.State.Terminated.ExitCode != 0:
		return &Reason{
			Code: CodeContainerCrashing, Message: "container " + s.Name + " has ended" + endText(s.State.Terminated),
			Since: timeOf(s.State.Terminated.FinishedAt.Time),
			Next:  "see its log: kubectl -n " + pod.Namespace + " logs " + pod.Name + " -c " + s.Name,
		}
	}
	return nil
}

func said(reason, message string) string {
	if message == "" {
		return reason
	}
	return reason + ": " + message
}

func endText(t *corev1.ContainerStateTerminated) string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf(", last with exit code %d (%s)", t.ExitCode, t.Reason)
}

func ended(pod *corev1.Pod) Reason {
	return Reason{
		Code: CodeEnded, Message: "the Pod has run to its end: " +
			said(string(pod.Status.Phase), strings.TrimSpace(pod.Status.Reason+" "+pod.Status.Message)),
		Next: "its workload replaces it; see why it ended: kubectl -n " + pod.Namespace + " describe pod " + pod.Name,
	}
}

// terminating says why a Pod that is being deleted is still there.
func (x *index) terminating(pod *corev1.Pod) []Reason {
	var found []Reason
	v := podops.Read(pod)
	protected := x.protected(pod, v)
	running := slices.ContainsFunc(pod.Status.ContainerStatuses,
		func(s corev1.ContainerStatus) bool { return s.State.Running != nil })
	if late := x.Now.Sub(pod.DeletionTimestamp.Time); (running || len(pod.Finalizers) == 0) && late > graceSlack {
		found = append(found, x.kubelet(pod, "the kubelet has not ended the Pod, whose grace period is over since "+
			late.Truncate(time.Second).String())...)
	}
	found = append(found, protected...)
	for _, f := range pod.Finalizers {
		if !strings.HasPrefix(f, podops.ProtectionFinalizerPrefix) {
			found = append(found, Reason{Code: CodeFinalizer, Message: "finalizer " + f + " keeps the deleted Pod",
				Next: "ask the owner of that finalizer"})
		}
	}
	if len(found) == 0 {
		found = append(found, Reason{Code: codeTerminating, Message: "the Pod is being deleted, within its grace period",
			Since: changedAt(pod)})
	}
	return found
}
