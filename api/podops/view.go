package podops

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// View is everything that the protocol reads of a Pod. Its maps and slices are shared with the Pod it was read from:
// nothing in this package changes them.
type View struct {
	Namespace       string
	Name            string
	UID             types.UID
	ResourceVersion string

	Labels      map[string]string
	Annotations map[string]string
	Finalizers  []string

	// Gate is whether the Pod has the service-ready readiness gate, without which no condition can take it out of
	// service.
	Gate bool
	// ServiceReady is the status of the service-ready condition; "" without the condition.
	ServiceReady corev1.ConditionStatus
	// Ready is the Pod's Ready condition, as last observed.
	Ready bool
	// ContainersReady is the Pod's ContainersReady condition: the kubelet has
	// reported, and only readiness gates can keep the Pod from being Ready.
	ContainersReady bool
	// Terminating is whether the Pod is being deleted; the protocol no longer applies then.
	Terminating bool
	// Terminal is whether the Pod has terminated (Succeeded or Failed) and will not be Ready again.
	Terminal bool
}

// Read returns the view of a Pod. A nil Pod gives the zero View.
func Read(pod *corev1.Pod) View {
	if pod == nil {
		return View{}
	}
	v := View{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		Labels: pod.Labels, Annotations: pod.Annotations, Finalizers: pod.Finalizers,
		Terminating: pod.DeletionTimestamp != nil,
		Terminal:    pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
	}
	for _, g := range pod.Spec.ReadinessGates {
		v.Gate = v.Gate || g.ConditionType == ServiceReadyCondition
	}
	for _, c := range pod.Status.Conditions {
		switch c.Type {
		case ServiceReadyCondition:
			v.ServiceReady = c.Status
		case corev1.PodReady:
			v.Ready = c.Status == corev1.ConditionTrue
		case corev1.ContainersReady:
			v.ContainersReady = c.Status == corev1.ConditionTrue
		}
	}
	return v
}

// ServiceAvailable reports whether the Pod has the label that means that it serves.
func (v View) ServiceAvailable() bool {
	_, ok := v.Labels[ServiceAvailableLabel]
	return ok
}

// Protected reports whether a cooperator still holds the Pod.
func (v View) Protected() bool {
	return slices.ContainsFunc(v.Finalizers,
		func(f string) bool { return strings.HasPrefix(f, ProtectionFinalizerPrefix) })
}

type availableConditions struct {
	ExpectedFinalizers map[string]string `json:"expectedFinalizers,omitempty"`
}

// ExpectedFinalizers reads AvailableConditionsAnnotation: finalizers by employer key "<Kind>/<namespace>/<name>". It is
// nil without the annotation, and returns an error if the value is not valid JSON of that form.
func ExpectedFinalizers(annotations map[string]string) (map[string]string, error) {
	raw := annotations[AvailableConditionsAnnotation]
	if raw == "" {
		return nil, nil
	}
	var c availableConditions
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		return nil, fmt.Errorf("annotation %s is not valid JSON, correct or remove it: %w",
			AvailableConditionsAnnotation, err)
	}
	return c.ExpectedFinalizers, nil
}

// MissingEmployers returns the employers whose expected finalizer is not on the Pod, sorted; nil if none is missing or
// the annotation is not valid.
func MissingEmployers(v View) []string {
	if _, err := ExpectedFinalizers(v.Annotations); err != nil {
		return nil
	}
	return v.missingFinalizers()
}

// missingFinalizers returns the employers whose expected finalizer is not on the Pod, sorted. An annotation that cannot
// be read counts as one missing employer: a Pod whose employers are unknown is not declared available.
func (v View) missingFinalizers() []string {
	expected, err := ExpectedFinalizers(v.Annotations)
	if err != nil {
		return []string{"(" + err.Error() + ")"}
	}
	var missing []string
	for employer, f := range expected {
		if !slices.Contains(v.Finalizers, f) {
			missing = append(missing, employer)
		}
	}
	slices.Sort(missing)
	return missing
}

// SkipsRule reports whether the Pod's annotation excludes it from the named rule. An annotation that is not valid
// excludes it from none.
func (v View) SkipsRule(name string) bool {
	raw := v.Annotations[SkipRulesAnnotation]
	if raw == "" {
		return false
	}
	var skip struct {
		SkipRules []string `json:"skipRules"`
	}
	return json.Unmarshal([]byte(raw), &skip) == nil && slices.Contains(skip.SkipRules, name)
}

// returning reports whether the Pod is Ready and an expected cooperator does not hold it: it may receive traffic
// already, and no finalizer would keep an operation from starting before that traffic is gone. Taking the Pod out of
// service must wait until the cooperator has added its finalizer.
func (v View) returning() bool {
	return v.Gate && v.Ready && !v.Terminal && v.ServiceReady != corev1.ConditionFalse && len(v.missingFinalizers()) > 0
}
