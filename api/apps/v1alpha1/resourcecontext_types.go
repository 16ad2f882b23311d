package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ResourceContext is a pool of instance IDs, with the data of each ID that must be kept while its Pod does not exist.
//
// A CollaSet uses the ResourceContext of its own name, or the one that spec.scaleStrategy.context names, in its own
// namespace. It has no owner reference: the CollaSet's finalizer removes its entries. A ResourceContext without entries
// is deleted.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=resourcecontexts,singular=resourcecontext,shortName=rc,categories=kuperator,scope=Namespaced
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type ResourceContext struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the content of the pool.
	// +optional
	Spec ResourceContextSpec `json:"spec,omitempty"`
}

// ResourceContextSpec is the content of a pool of instance IDs.
type ResourceContextSpec struct {
	// Contexts has one entry per instance ID in use, sorted by ID. The list is atomic, because field ownership of
	// single entries would be larger than the entries themselves in a pool of thousands.
	// +optional
	// +listType=atomic
	Contexts []ContextDetail `json:"contexts,omitempty"`
}

// ContextDetail is the entry of one instance ID.
type ContextDetail struct {
	// ID is the instance ID: at least 0, unique within the pool.
	// +kubebuilder:validation:Minimum=0
	ID int `json:"id"`

	// Data is the data of this ID under the keys ContextOwner, ContextRevision and so on. Unknown keys are preserved.
	// +optional
	Data map[string]string `json:"data,omitempty"`
}

// ResourceContextList is a list of ResourceContexts.
//
// +kubebuilder:object:root=true
type ResourceContextList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ResourceContext `json:"items"`
}

// Keys of ContextDetail.Data. All are written and read by collaset-controller only.
const (
	// ContextOwner is the name of the CollaSet that owns the entry. No CollaSet uses an entry without it. Lifetime:
	// that of the entry.
	ContextOwner = "Owner"

	// ContextRevision is the name of the ControllerRevision from which the Pod of this ID is created or re-created. Set
	// when the ID is allocated, and changed when the Pod is updated. Lifetime: that of the entry.
	ContextRevision = "Revision"

	// ContextPodDecorationRevisions is a JSON array of {"name","revision"}: the PodDecoration revisions with which the
	// Pod is created. Absent if none apply.
	ContextPodDecorationRevisions = "PodDecorationRevisions"

	// ContextPodJustCreate is ContextTrue from the allocation of the ID until its first Pod is created.
	ContextPodJustCreate = "PodJustCreate"

	// ContextPodRecreateUpdate is ContextTrue from the deletion of a Pod by an update that re-creates it until its
	// successor is created.
	ContextPodRecreateUpdate = "PodRecreateUpdate"

	// ContextScaleIn is ContextTrue once the Pod is condemned. The entry is removed when the Pod is gone.
	ContextScaleIn = "ScaleIn"

	// ContextReplaceNewPodID, in the entry of a Pod that is being replaced, is the decimal instance ID of its
	// replacement.
	ContextReplaceNewPodID = "ReplaceNewPodID"

	// ContextReplaceOriginPodID, in the entry of a replacement, is the decimal instance ID of the Pod that it replaces.
	ContextReplaceOriginPodID = "ReplaceOriginPodID"

	// ContextTrue is the value of boolean keys.
	ContextTrue = "true"
)
