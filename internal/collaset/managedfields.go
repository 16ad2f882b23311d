package collaset

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/writes"
)

// suite are the field managers of the suite's programs.
var suite = []string{Name, "lifecycle-controller", "podtransitionrule-controller", "resourceconsist-controller", "webhook-server"}

// keptFields is what is kept of a Pod's managedFields, by what they tell; nothing where there are none.
var keptFields = map[setplan.Fields][]metav1.ManagedFieldsEntry{
	setplan.FieldsApplied: {{Operation: metav1.ManagedFieldsOperationApply}},
	setplan.FieldsOthers:  {{Operation: metav1.ManagedFieldsOperationUpdate}},
	setplan.FieldsOwn:     {{Manager: Name, Operation: metav1.ManagedFieldsOperationUpdate}},
}

// fewFields is what managedFields begin anew with.
var fewFields = writes.FewFields(Name, appsv1alpha1.ControlLabel)

// fieldsOf says what managedFields of a Pod tell, whole or as keptFields has them.
func fieldsOf(pod *corev1.Pod) setplan.Fields {
	applied := func(e metav1.ManagedFieldsEntry) bool { return e.Operation == metav1.ManagedFieldsOperationApply }
	others := func(e metav1.ManagedFieldsEntry) bool {
		return e.Subresource != "status" && !slices.Contains(suite, e.Manager)
	}
	switch {
	case len(pod.ManagedFields) == 0:
		return setplan.FieldsNone
	case slices.ContainsFunc(pod.ManagedFields, applied):
		return setplan.FieldsApplied
	case slices.ContainsFunc(pod.ManagedFields, others):
		return setplan.FieldsOthers
	}
	return setplan.FieldsOwn
}

// anew has a patch of a Pod, one that more writes follow, begin managedFields anew where they tell of nobody else:
// with few, or with none, if the Pod is going to be deleted. What was decided on another version of the Pod, which
// somebody has written to since, is refused.
func (r *reconciler) anew(pod *setplan.Pod, goes bool, data []byte) ([]byte, error) {
	none := pod.Fields == setplan.FieldsNone
	switch {
	case !r.trimFields, pod.Fields != setplan.FieldsOwn && !none, goes && none:
		return data, nil
	case goes:
		return writes.WithFields(data, writes.NoFields)
	}
	return writes.WithFields(data, fewFields)
}
