package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ResourceContext is a pool of instance IDs and what must be remembered about each while its Pod does not exist.
//
// A CollaSet uses the ResourceContext of its own name, or the one that spec.scaleStrategy.context names, in its own
// namespace. It carries no owner reference: the CollaSet's finalizer removes its entries. A ResourceContext without
// entries is deleted.
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

	// Spec holds the entries of the pool.
	// +optional
	Spec ResourceContextSpec `json:"spec,omitempty"`
}

// ResourceContextSpec is the content of a pool of instance IDs.
type ResourceContextSpec struct {
	// Contexts has one entry per instance ID in use, sorted by ID. It is atomic, so that the bookkeeping of field
	// ownership does not outgrow the entries themselves in a pool of thousands.
	// +optional
	// +listType=atomic
	Contexts []ContextDetail `json:"contexts,omitempty"`
}

// ContextDetail is what is remembered about one instance ID.
type ContextDetail struct {
	// ID is the instance ID: not negative, unique within the pool.
	// +kubebuilder:validation:Minimum=0
	ID int `json:"id"`

	// Data is the record of this ID under the keys ContextOwner, ContextRevision and so on. Unknown keys are kept.
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
	// ContextOwner holds the name of the CollaSet that owns the entry. An entry without it is foreign to everybody.
	// Lifetime: that of the entry.
	ContextOwner = "Owner"

	// ContextRevision holds the name of the ControllerRevision from which the Pod of this ID is created or re-created.
	// Decided when the ID is allocated, rewritten when the Pod is updated. Lifetime: that of the entry.
	ContextRevision = "Revision"

	// ContextPodDecorationRevisions holds a JSON array of {"name","revision"}: the PodDecoration revisions with which
	// the Pod is created. Absent when none apply.
	ContextPodDecorationRevisions = "PodDecorationRevisions"

	// ContextPodJustCreate is ContextTrue from the allocation of the ID until its first Pod was created.
	ContextPodJustCreate = "PodJustCreate"

	// ContextPodRecreateUpdate is ContextTrue from the deletion of a Pod by an update that re-creates it until its
	// successor was created.
	ContextPodRecreateUpdate = "PodRecreateUpdate"

	// ContextScaleIn is ContextTrue from the moment the Pod is chosen for scale-in; the entry goes when the Pod is gone.
	ContextScaleIn = "ScaleIn"

	// ContextReplaceNewPodID is set on the entry of a Pod being replaced: the decimal instance ID of its replacement.
	ContextReplaceNewPodID = "ReplaceNewPodID"

	// ContextReplaceOriginPodID is set on the entry of a replacement: the decimal instance ID of the Pod it replaces.
	ContextReplaceOriginPodID = "ReplaceOriginPodID"

	// ContextTrue is the value of the keys that are marks.
	ContextTrue = "true"
)
