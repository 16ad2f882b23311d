package fakekubelet

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// machine is what runs of one Pod: what its kubelet knows by itself, however late it learns what others do.
type machine struct {
	address    string
	since      metav1.Time
	containers map[string]corev1.ContainerStatus
	// busyUntil is when the containers that are starting run; zero if none is starting.
	busyUntil time.Time
	// said is the status last written, and version the resourceVersion that this made. What was seen of the Pod before
	// that version lacks it.
	said    corev1.PodStatus
	version uint64
	// removed is true if the Pod was deleted for good, whether or not that was seen.
	removed bool
}

// newMachine takes over what the Pod's status says is running, as a kubelet does that was restarted.
func newMachine(pod *corev1.Pod, number int) *machine {
	m := &machine{
		address:    fmt.Sprintf("10.%d.%d.%d", 64+number>>16&63, number>>8&255, number&255),
		containers: map[string]corev1.ContainerStatus{},
	}
	if pod.Status.PodIP != "" {
		m.address = pod.Status.PodIP
	}
	if pod.Status.StartTime != nil {
		m.since = *pod.Status.StartTime
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.ContainerID != "" {
			m.containers[c.Name] = c
		}
	}
	return m
}

// run starts what the spec wants and does not run yet, and says how long that takes; 0 when all of it runs.
func (m *machine) run(pod *corev1.Pod, now time.Time, restartTime time.Duration) time.Duration {
	if ended(pod) || pod.DeletionTimestamp != nil {
		return 0
	}
	stale := func(c corev1.Container) bool { return m.containers[c.Name].Image != c.Image }
	if !slices.ContainsFunc(pod.Spec.Containers, stale) {
		m.busyUntil = time.Time{}
		return 0
	}
	if m.busyUntil.IsZero() {
		m.busyUntil = now.Add(restartTime)
	}
	if left := m.busyUntil.Sub(now); left > 0 {
		return left
	}
	m.busyUntil = time.Time{}
	if m.since.IsZero() {
		m.since = metav1.NewTime(now)
	}
	for _, c := range pod.Spec.Containers {
		if stale(c) {
			m.containers[c.Name] = started(pod, c, m.containers[c.Name], now)
		}
	}
	return 0
}

func started(pod *corev1.Pod, c corev1.Container, before corev1.ContainerStatus, now time.Time) corev1.ContainerStatus {
	running := true
	next := corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, RestartCount: before.RestartCount, Ready: true, Started: &running,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now)}},
	}
	if before.ContainerID != "" {
		next.RestartCount++
		next.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
			Reason: "Completed", ContainerID: before.ContainerID, FinishedAt: metav1.NewTime(now),
		}
	}
	next.ImageID = contentOf(c.Image)
	next.ContainerID = fmt.Sprintf("containerd://%x",
		sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", pod.UID, c.Name, next.RestartCount)))
	return next
}

// contentOf is the repository of an image, and a digest: that of the image's name, or a made-up one, the same for all
// Pods that run it.
func contentOf(image string) string {
	repository, digest, named := strings.Cut(image, "@")
	if !named {
		digest = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(image)))
	}
	if tag := strings.LastIndex(repository, ":"); tag > strings.LastIndex(repository, "/") {
		repository = repository[:tag]
	}
	return repository + "@" + digest
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// report returns the patch of pods/status that says what runs, nil if the Pod says so already.
func (m *machine) report(pod *corev1.Pod, now time.Time) ([]byte, error) {
	known := pod.Status
	if versionOf(pod) < m.version {
		known = m.said
	}
	if ended(pod) || known.Phase == corev1.PodSucceeded {
		return nil, nil
	}
	next := m.status(pod, now)
	conditions := m.changed(known.Conditions, pod, next.Phase, now)
	if len(conditions) == 0 && next.Phase == known.Phase && next.ObservedGeneration == known.ObservedGeneration &&
		sameContainers(known, next) {
		return nil, nil
	}
	patch := map[string]any{
		"phase": next.Phase, "observedGeneration": next.ObservedGeneration, "containerStatuses": next.ContainerStatuses,
		"podIP": next.PodIP, "podIPs": next.PodIPs, "startTime": next.StartTime,
	}
	if len(conditions) > 0 {
		patch["conditions"] = conditions
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": patch})
}

// status is what the kubelet says of the Pod, its conditions apart.
func (m *machine) status(pod *corev1.Pod, now time.Time) corev1.PodStatus {
	s := corev1.PodStatus{
		Phase: corev1.PodRunning, ObservedGeneration: pod.Generation,
		PodIP: m.address, PodIPs: []corev1.PodIP{{IP: m.address}}, StartTime: &m.since,
	}
	for _, c := range pod.Spec.Containers {
		if running, ok := m.containers[c.Name]; ok {
			s.ContainerStatuses = append(s.ContainerStatuses, running)
		}
	}
	if pod.DeletionTimestamp == nil {
		return s
	}
	s.Phase = corev1.PodSucceeded
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		c.Ready, c.Started = false, new(bool)
		c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason: "Completed", ContainerID: c.ContainerID, FinishedAt: metav1.NewTime(now),
		}}
	}
	return s
}

// changed lists the kubelet's own conditions that differ from the known ones.
func (m *machine) changed(
	known []corev1.PodCondition, pod *corev1.Pod, phase corev1.PodPhase, now time.Time,
) []map[string]any {
	runs := phase == corev1.PodRunning
	serves := runs && !slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool {
		return statusOf(pod.Status.Conditions, g.ConditionType) != corev1.ConditionTrue // as far as was seen
	})
	reason := "ReadinessGatesNotReady"
	if !runs {
		reason = "PodCompleted"
	}
	var all []map[string]any
	for _, c := range []struct {
		name corev1.PodConditionType
		is   bool
	}{
		{corev1.PodScheduled, true}, {corev1.PodReadyToStartContainers, true}, {corev1.PodInitialized, true},
		{corev1.ContainersReady, runs}, {corev1.PodReady, serves},
	} {
		status, why := corev1.ConditionTrue, any(nil) // null removes the reason that was there
		if !c.is {
			status, why = corev1.ConditionFalse, reason
		}
		if statusOf(known, c.name) != status {
			all = append(all, map[string]any{"type": c.name, "status": status, "reason": why, "message": nil,
				"lastTransitionTime": metav1.NewTime(now)})
		}
	}
	return all
}

// wrote takes up the answer to a write.
func (m *machine) wrote(pod *corev1.Pod) {
	m.said, m.version = pod.Status, versionOf(pod)
}

func statusOf(conditions []corev1.PodCondition, t corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range conditions {
		if c.Type == t {
			return c.Status
		}
	}
	return ""
}

func sameContainers(a, b corev1.PodStatus) bool {
	return slices.EqualFunc(a.ContainerStatuses, b.ContainerStatuses, func(a, b corev1.ContainerStatus) bool {
		return a.Name == b.Name && a.ContainerID == b.ContainerID && a.Image == b.Image && a.Ready == b.Ready
	})
}

// versionOf is the Pod's resourceVersion, which orders what is known of it; 0 if it is no number.
func versionOf(pod *corev1.Pod) uint64 {
	n, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
