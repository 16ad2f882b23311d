package webhook

import (
	"encoding/json"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// replicasShape is as much of a CollaSet as tells who set spec.replicas.
type replicasShape struct {
	Metadata struct {
		Annotations   map[string]string           `json:"annotations"`
		ManagedFields []metav1.ManagedFieldsEntry `json:"managedFields"`
	} `json:"metadata"`
	Spec struct {
		Replicas *int32 `json:"replicas"`
	} `json:"spec"`
}

// droppedReplicas is what spec.replicas was before an update that set it to 0, and whether the update left the field
// out and the schema's default made the 0 of it. Zero replicas for an update that does no such thing.
//
// The default is in place before admission is asked, so what was sent is told by what the API server and kubectl
// write down of it: a server-side apply owns all fields that it has, and a client-side apply keeps the manifest in an
// annotation. Other writes (PUT, merge and JSON patches) become the owner of the 0 either way and leave no trace of
// what they sent: they mean 0.
func droppedReplicas(request admission.Request) (was int32, leftOut bool, err error) {
	if request.Operation != admissionv1.Update {
		return 0, false, nil
	}
	var before, after replicasShape
	if err := json.Unmarshal(request.OldObject.Raw, &before); err != nil {
		return 0, false, err
	}
	if err := json.Unmarshal(request.Object.Raw, &after); err != nil {
		return 0, false, err
	}
	was = ptr.Deref(before.Spec.Replicas, 0)
	if was == 0 || ptr.Deref(after.Spec.Replicas, 0) != 0 {
		return 0, false, nil
	}
	unowned := slices.ContainsFunc(after.Metadata.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		return e.Operation == metav1.ManagedFieldsOperationApply && e.Manager == managerOf(request)
	}) && !slices.ContainsFunc(after.Metadata.ManagedFields, ownsReplicas)
	had, then := inManifest(before.Metadata.Annotations), inManifest(after.Metadata.Annotations)
	return was, unowned || (had != nil && *had && then != nil && !*then), nil
}

// managerOf is the field manager that a patch names, "" for none.
func managerOf(request admission.Request) string {
	var options metav1.PatchOptions
	if json.Unmarshal(request.Options.Raw, &options) != nil {
		return ""
	}
	return options.FieldManager
}

// ownsReplicas reports whether the manager owns spec.replicas.
func ownsReplicas(e metav1.ManagedFieldsEntry) bool {
	var fields struct {
		Spec struct {
			Replicas *json.RawMessage `json:"f:replicas"`
		} `json:"f:spec"`
	}
	return e.FieldsV1 != nil && json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) == nil && fields.Spec.Replicas != nil
}

// inManifest reports whether the manifest that kubectl apply keeps has spec.replicas; nil if there is none, or it
// cannot be read.
func inManifest(annotations map[string]string) *bool {
	var manifest struct {
		Spec struct {
			Replicas *int32 `json:"replicas"`
		} `json:"spec"`
	}
	kept, is := annotations[corev1.LastAppliedConfigAnnotation]
	if !is || json.Unmarshal([]byte(kept), &manifest) != nil {
		return nil
	}
	return ptr.To(manifest.Spec.Replicas != nil)
}

// keptReplicas warns of a value that stays although the manifest has it no more.
func keptReplicas(was int32) string {
	return fmt.Sprintf(
		"spec.replicas was left out and stays %d. Without webhook-server it would be 0: kubectl scale sets it, or an autoscaler",
		was)
}

// goneReplicas warns of a 0 that may be the default only.
func goneReplicas(was int32) string {
	return fmt.Sprintf("spec.replicas was %d and is 0: all Pods go. If it was left out, put it back: its default is 0",
		was)
}
