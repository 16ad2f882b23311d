package collaset

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// applyEntry is what the cache keeps of metadata.managedFields of a Pod that a client has applied to.
var applyEntry = []metav1.ManagedFieldsEntry{{Operation: metav1.ManagedFieldsOperationApply}}

// hasApplied reports whether any client has applied to a Pod on the server side: its managedFields then tell what is
// that client's to remove.
func hasApplied(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		return e.Operation == metav1.ManagedFieldsOperationApply
	})
}

// noFields has the API server forget who wrote what of an object, and track it no longer until a client applies to it
// on the server side (https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields).
var noFields = json.RawMessage(`[{}]`)

// clearFields has a merge patch, strategic or not, clear metadata.managedFields too. A patch of a subresource cannot.
// It is an error if the patch, or its metadata, is no JSON object.
func clearFields(data []byte) ([]byte, error) {
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
	metadata["managedFields"] = noFields
	var err error
	if patch["metadata"], err = json.Marshal(metadata); err != nil {
		return nil, err
	}
	return json.Marshal(patch)
}
