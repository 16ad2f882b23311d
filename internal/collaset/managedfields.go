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

// appliedOnly and ownOnly are what is kept of managedFields of a Pod that somebody has applied to, and of one that tell of nobody else.
var (
	appliedOnly = []metav1.ManagedFieldsEntry{{Operation: metav1.ManagedFieldsOperationApply}}
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
		return core.FieldsUnknown
	case slices.ContainsFunc(pod.ManagedFields, applied):
		return core.FieldsApplied
	case slices.ContainsFunc(pod.ManagedFields, others):
		return core.FieldsUnknown
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
	case core.FieldsUnknown:
	}
	return nil
}

// anew has a patch of a Pod, one that more writes follow, begin managedFields anew where they tell of nobody else. What was decided on another version of
// the Pod, which somebody has written to since, is refused.
func (r *reconciler) anew(pod *core.Pod, data []byte) ([]byte, error) {
	if !r.trimFields || pod.Fields != core.FieldsOwn {
		return data, nil
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
