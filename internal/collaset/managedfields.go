package collaset

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kusionstack.io/kuperator/internal/collaset/core"
)

// suite are the field managers of the suite's programs.
var suite = []string{Name, "lifecycle-controller", "podtransitionrule-controller", "resourceconsist-controller", "webhook-server"}

// What is kept of managedFields of Pods.
var (
	appliedOnly = []metav1.ManagedFieldsEntry{{Operation: metav1.ManagedFieldsOperationApply}}
	othersOnly  = []metav1.ManagedFieldsEntry{{Operation: metav1.ManagedFieldsOperationUpdate}}
	ownOnly     = []metav1.ManagedFieldsEntry{{Manager: Name, Operation: metav1.ManagedFieldsOperationUpdate}}
)

// noFields has the API server forget who wrote what, and track it no longer until somebody applies to the object on the server side
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields).
var noFields = json.RawMessage(`[{}]`)

// fewFields are of one entry, about a label that is collaset-controller's: the API server goes on to track, and adds what is written from then on.
var fewFields = json.RawMessage(`[{"manager":"` + Name + `","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1",` +
	`"fieldsV1":{"f:metadata":{"f:labels":{"f:kusionstack.io/control":{}}}}}]`)

// fieldsOf says what managedFields of a Pod tell, whole or as onlyFields leaves them.
func fieldsOf(pod *corev1.Pod) core.Fields {
	applied := func(e metav1.ManagedFieldsEntry) bool { return e.Operation == metav1.ManagedFieldsOperationApply }
	others := func(e metav1.ManagedFieldsEntry) bool {
		return e.Subresource != "status" && !slices.Contains(suite, e.Manager)
	}
	switch {
	case len(pod.ManagedFields) == 0:
		return core.FieldsNone
	case slices.ContainsFunc(pod.ManagedFields, applied):
		return core.FieldsApplied
	case slices.ContainsFunc(pod.ManagedFields, others):
		return core.FieldsOthers
	}
	return core.FieldsOwn
}

// onlyFields are what is kept of a Pod's managedFields.
func onlyFields(pod *corev1.Pod) []metav1.ManagedFieldsEntry {
	switch fieldsOf(pod) {
	case core.FieldsApplied:
		return appliedOnly
	case core.FieldsOwn:
		return ownOnly
	case core.FieldsOthers:
		return othersOnly
	case core.FieldsNone:
	}
	return nil
}

// anew has a patch of a Pod, one that more writes follow, begin managedFields anew where they tell of nobody else: with few, or with none, if the Pod
// is going to be deleted. What was decided on another version of the Pod, which somebody has written to since, is refused.
func (r *reconciler) anew(pod *core.Pod, goes bool, data []byte) ([]byte, error) {
	none := pod.Fields == core.FieldsNone
	switch {
	case !r.trimFields, pod.Fields != core.FieldsOwn && !none, goes && none:
		return data, nil
	case goes:
		return withFields(data, noFields)
	}
	return withFields(data, fewFields)
}

// withFields has a merge patch, strategic or not, replace managedFields too. A patch of a subresource cannot.
func withFields(data []byte, fields json.RawMessage) ([]byte, error) {
	patch := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	metadata := map[string]json.RawMessage{}
	if raw, ok := patch["metadata"]; ok {
		if err := json.Unmarshal(raw, &metadata); err != nil {
			return nil, err
		}
	}
	metadata["managedFields"] = fields
	var err error
	if patch["metadata"], err = json.Marshal(metadata); err != nil {
		return nil, err
	}
	return json.Marshal(patch)
}
