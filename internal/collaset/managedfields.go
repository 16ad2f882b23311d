package collaset

import (
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
