package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of the suite.
const GroupName = "apps.kusionstack.io"

// Kinds of this package, as they appear in manifests and owner references.
const (
	CollaSetKind          = "CollaSet"
	PodTransitionRuleKind = "PodTransitionRule"
	ResourceContextKind   = "ResourceContext"
	OperationJobKind      = "OperationJob"
	PodDecorationKind     = "PodDecoration"
)

var (
	// SchemeGroupVersion is the group and version of every type in this package.
	SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

	// SchemeBuilder collects the functions that register this package with a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme registers every type of this package with a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

// Kind qualifies an unqualified kind with the group of this package.
func Kind(kind string) schema.GroupKind {
	return SchemeGroupVersion.WithKind(kind).GroupKind()
}

// Resource qualifies an unqualified resource with the group of this package.
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&CollaSet{}, &CollaSetList{},
		&PodTransitionRule{}, &PodTransitionRuleList{},
		&ResourceContext{}, &ResourceContextList{},
		&OperationJob{}, &OperationJobList{},
		&PodDecoration{}, &PodDecorationList{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
