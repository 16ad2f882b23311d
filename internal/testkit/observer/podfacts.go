package observer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The published keys that the observer reads, spelled out once more on purpose.
const (
	controlLabel       = "kusionstack.io/control"
	instanceIDLabel    = "collaset.kusionstack.io/instance-id"
	serviceReady       = "pod.kusionstack.io/service-ready"
	skipRules          = "podtransitionrule.kusionstack.io/skip-rule-conditions"
	protocolSuffix     = ".podopslifecycle.kusionstack.io/"
	preparingPrefix    = "preparing" + protocolSuffix
	operatePrefix      = "operate" + protocolSuffix
	preCheckKeysPrefix = "pre-check"
)

func conditionStatus(obj *corev1.Pod, t corev1.PodConditionType) corev1.ConditionStatus {
	for _, condition := range obj.Status.Conditions {
		if condition.Type == t {
			return condition.Status
		}
	}
	return ""
}

func isReady(obj *corev1.Pod) bool {
	return conditionStatus(obj, corev1.PodReady) == corev1.ConditionTrue
}

// readySince is when the Pod last became Ready, to the second; zero if it is not.
func readySince(obj *corev1.Pod) time.Time {
	for _, c := range obj.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

func isTerminal(obj *corev1.Pod) bool {
	return obj.Status.Phase == corev1.PodSucceeded || obj.Status.Phase == corev1.PodFailed
}

func isLive(obj *corev1.Pod) bool {
	return obj.DeletionTimestamp == nil && !isTerminal(obj)
}

func hasGate(obj *corev1.Pod) bool {
	return slices.ContainsFunc(obj.Spec.ReadinessGates,
		func(g corev1.PodReadinessGate) bool { return g.ConditionType == serviceReady })
}

func hasKey(obj *corev1.Pod, prefix string) bool {
	for k := range obj.Labels {
		if strings.HasPrefix(k, prefix) {
			return true
		}
	}
	return false
}

// isAway reports whether an operation has the Pod out of service.
func isAway(obj *corev1.Pod) bool {
	return obj.DeletionTimestamp != nil || conditionStatus(obj, serviceReady) == corev1.ConditionFalse ||
		hasKey(obj, preparingPrefix) || hasKey(obj, operatePrefix)
}

func images(obj *corev1.Pod) []string {
	var all []string
	for _, container := range slices.Concat(obj.Spec.InitContainers, obj.Spec.Containers) {
		all = append(all, container.Name+"="+container.Image)
	}
	return all
}

// protocolState is what of a Pod moves when an operation makes progress.
func protocolState(obj *corev1.Pod) string {
	var state []string
	for _, k := range slices.Sorted(maps.Keys(obj.Labels)) {
		if prefix, id, ok := strings.Cut(k, protocolSuffix); ok && !strings.HasPrefix(prefix, preCheckKeysPrefix) {
			state = append(state, prefix+"/"+id)
		}
	}
	state = append(state, fmt.Sprintf("finalizers=%v", obj.Finalizers),
		"service-ready="+string(conditionStatus(obj, serviceReady)),
		"Ready="+string(conditionStatus(obj, corev1.PodReady)), fmt.Sprint(images(obj)))
	return strings.Join(state, " ")
}
