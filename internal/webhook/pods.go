package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/drain"
)

// podMutator completes Pods when they are created.
type podMutator struct {
	decorations decorator
	// services reads the Services that the suite controls from a cache. Nil: employers are not announced.
	services client.Reader
	// evictions tells whether the API server serves Evictions (KEP-4563). Nil: it is not known to.
	evictions *atomic.Bool
}

// podShape is as much of a Pod as the decision needs.
type podShape struct {
	Metadata struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		ReadinessGates []struct {
			ConditionType string `json:"conditionType"`
		} `json:"readinessGates"`
		EvictionResponders []struct {
			Name string `json:"name"`
		} `json:"evictionResponders"`
		SchedulingGroup *struct{} `json:"schedulingGroup"`
	} `json:"spec"`
}

// mutate decorates a Pod, and adds the readiness gate, the responder to EvictionRequests and the employers to a managed
// one that lacks them. Gates and responders cannot be added to a Pod that exists, so only creations matter.
func (m *podMutator) mutate(ctx context.Context, request admission.Request) admission.Response {
	if !concerns(request, "pods", admissionv1.Create) {
		return admission.Allowed("")
	}
	raw, patches, warnings := m.decorations.decorate(ctx, request.Namespace, request.Object.Raw)
	var pod podShape
	if err := json.Unmarshal(raw, &pod); err != nil {
		return undecodable("Pod", err)
	}
	if pod.Metadata.Labels[appsv1alpha1.ControlLabel] != appsv1alpha1.ControlValue {
		return admission.Patched("", patches...).WithWarnings(warnings...)
	}
	patches = append(patches, addGate(&pod)...)
	if m.evictions != nil && m.evictions.Load() {
		patches = append(patches, addResponder(&pod)...)
	}
	announcement, err := m.announce(ctx, request.Namespace, &pod)
	if err != nil { // resourceconsist-controller announces it, later
		warnings = append(warnings, "the Services of the Pod are not announced at once: "+err.Error())
	}
	return admission.Patched("", append(patches, announcement...)...).WithWarnings(warnings...)
}

// addGate adds the readiness gate of the Pod protocol.
func addGate(pod *podShape) []jsonpatch.JsonPatchOperation {
	for _, gate := range pod.Spec.ReadinessGates {
		if gate.ConditionType == podops.ServiceReadyCondition {
			return nil
		}
	}
	gate := map[string]string{"conditionType": podops.ServiceReadyCondition}
	if len(pod.Spec.ReadinessGates) == 0 { // absent, null or empty
		return []jsonpatch.JsonPatchOperation{add("/spec/readinessGates", []any{gate})}
	}
	return []jsonpatch.JsonPatchOperation{add("/spec/readinessGates/-", gate)}
}

// addResponder names the suite among those that respond to EvictionRequests for the Pod.
func addResponder(pod *podShape) []jsonpatch.JsonPatchOperation {
	var named []string
	for _, responder := range pod.Spec.EvictionResponders {
		named = append(named, responder.Name)
	}
	ours := drain.ResponderOf(named, pod.Spec.SchedulingGroup != nil)
	switch {
	case ours == nil:
		return nil
	case len(named) == 0: // absent, null or empty
		return []jsonpatch.JsonPatchOperation{add("/spec/evictionResponders", []any{ours})}
	default:
		return []jsonpatch.JsonPatchOperation{add("/spec/evictionResponders/-", ours)}
	}
}

// +kubebuilder:rbac:groups="",resources=services,verbs=list;watch

// announce expects the finalizer of each Service that selects the Pod, so that the Pod does not count as serving
// before resourceconsist-controller has seen it. The error is about the Pod's annotation, which then stays as it is,
// or the cache.
func (m *podMutator) announce(
	ctx context.Context, namespace string, pod *podShape,
) ([]jsonpatch.JsonPatchOperation, error) {
	if m.services == nil {
		return nil, nil
	}
	var services corev1.ServiceList
	if err := m.services.List(ctx, &services, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing Services: %w", err)
	}
	var employers []client.ObjectKey
	for i := range services.Items {
		service := &services.Items[i]
		selector := resourceconsist.ServiceSelector(service)
		if service.DeletionTimestamp == nil && selector != nil && selector.Matches(labels.Set(pod.Metadata.Labels)) {
			employers = append(employers, client.ObjectKeyFromObject(service))
		}
	}
	return resourceconsist.Announce(pod.Metadata.Annotations, "Service", employers...)
}
