package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PodDecoration adds containers, volumes, labels and other settings to Pods of its namespace, whatever their workload,
// and rolls changes of them out gracefully. PodTransitionRules bound that as any other operation.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=poddecorations,singular=poddecoration,shortName=pd,categories=kuperator,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="MATCHED",type=integer,JSONPath=`.status.matchedPods`,description="The number of Pods that it selects."
// +kubebuilder:printcolumn:name="INJECTED",type=integer,JSONPath=`.status.injectedPods`,description="The number of these that have some revision of it."
// +kubebuilder:printcolumn:name="UPDATED",type=integer,JSONPath=`.status.updatedPods`,description="The number of these that have the updated revision."
// +kubebuilder:printcolumn:name="STATE",type=string,JSONPath=`.status.conditions[?(@.type=="Progressing")].reason`,description="How the rollout fares."
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="UPDATED_READY",type=integer,priority=1,JSONPath=`.status.updatedReadyPods`,description="The number of these that have the updated revision and are Ready."
// +kubebuilder:printcolumn:name="CURRENT_REVISION",type=string,priority=1,JSONPath=`.status.currentRevision`,description="The revision of Pods that are not to have the updated one yet."
// +kubebuilder:printcolumn:name="UPDATED_REVISION",type=string,priority=1,JSONPath=`.status.updatedRevision`,description="The revision of the present template."
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 52",message="the name is too long: use at most 52 characters, because Pods carry it, and a revision with it, as a label"
type PodDecoration struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what is added, and to which Pods.
	// +optional
	Spec PodDecorationSpec `json:"spec,omitempty"`

	// Status is how far the Pods are. Only poddecoration-controller writes it.
	// Before that its observedGeneration is -1: kstatus takes an object without it for one that is ready.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status PodDecorationStatus `json:"status,omitempty"`
}

// PodDecorationSpec is what Pods of the namespace get in addition to what their workload gives them.
type PodDecorationSpec struct {
	// Selector matches the Pods, of any workload. Nil means none.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Weight is the order among PodDecorations of one Pod: by ascending weight, and by name where that is equal. Nil means
	// 0.
	// +optional
	Weight *int32 `json:"weight,omitempty"`

	// Template is what is added to the Pods.
	// +optional
	Template PodDecorationPodTemplate `json:"template,omitempty"`

	// UpdateStrategy selects the Pods that get a new template, and how they get it.
	// +optional
	UpdateStrategy PodDecorationUpdateStrategy `json:"updateStrategy,omitempty"`

	// Required has the API server refuse to create a Pod that takes part in the lifecycle, and that is selected, without
	// the decoration: its workload creates it again later. A Pod that cannot have the decoration is created, and so is one
	// that is not to have it yet. Not in Kuperator v0.7.
	// +optional
	Required bool `json:"required,omitempty"`

	// HistoryLimit is the number of revisions to keep besides those in use. Nil means 20.
	// +kubebuilder:validation:Minimum=0
	// +optional
	HistoryLimit *int32 `json:"historyLimit,omitempty"`

	// DisablePodDetail leaves the Pods out of status.details.
	// +optional
	DisablePodDetail bool `json:"disablePodDetail,omitempty"`

	// ProgressDeadlineSeconds is the maximum time, in seconds, without progress before the condition Progressing becomes
	// False and UpdateStrategy.FailurePolicy applies. Time while paused does not count. Nil means 600. 2147483647 means
	// no deadline. Not in Kuperator v0.7.
	// +kubebuilder:validation:Minimum=1
	// +optional
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
}

// PodDecorationPodTemplate is what is added to Pods. Pod fields that are unknown to this version are preserved.
type PodDecorationPodTemplate struct {
	// Metadata are labels and annotations, and what becomes of those that are there.
	// +listType=atomic
	// +optional
	Metadata []*PodDecorationPodTemplateMeta `json:"metadata,omitempty"`

	// InitContainers are added behind those of the Pod. One whose name the Pod has already is not added.
	// +listType=atomic
	// +optional
	InitContainers []*corev1.Container `json:"initContainers,omitempty"`

	// Containers are added in front of those of the Pod, or behind them. One takes the place of a container with its name.
	// +listType=atomic
	// +optional
	Containers []*ContainerPatch `json:"containers,omitempty"`

	// PrimaryContainers are changes to the containers that the workload itself has. Those that PodDecorations add are not
	// among them.
	// +listType=atomic
	// +optional
	PrimaryContainers []*PrimaryContainerPatch `json:"primaryContainers,omitempty"`

	// Volumes are added. One takes the place of a volume with its name.
	// +listType=atomic
	// +optional
	Volumes []corev1.Volume `json:"volumes,omitempty"`

	// Affinity changes where the Pods may run.
	// +optional
	Affinity *PodDecorationAffinity `json:"affinity,omitempty"`

	// Tolerations are added. One takes the place of a toleration with its key, effect and operator.
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// RuntimeClassName replaces that of the Pods. Kuperator v0.7 ignores it.
	// +optional
	RuntimeClassName *string `json:"runtimeClassName,omitempty"`
}

// PodDecorationPodTemplateMeta are labels and annotations, and what becomes of those that are there.
type PodDecorationPodTemplateMeta struct {
	// PatchPolicy is what becomes of a label or annotation that the Pod has. Empty means Retain.
	// +optional
	PatchPolicy PodMetadataPatchPolicy `json:"patchPolicy,omitempty"`

	// Labels are labels of the Pods. With MergePatchJson there are none.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations are annotations of the Pods. With MergePatchJson each is JSON.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PodMetadataPatchPolicy is what becomes of a label or annotation that the Pod has.
//
// +kubebuilder:validation:Enum="";Retain;Overwrite;MergePatchJson
type PodMetadataPatchPolicy string

const (
	// RetainMetadata keeps what is there.
	RetainMetadata PodMetadataPatchPolicy = "Retain"
	// OverwriteMetadata replaces it.
	OverwriteMetadata PodMetadataPatchPolicy = "Overwrite"
	// MergePatchJsonMetadata merges an annotation into the JSON that is there (RFC 7396).
	MergePatchJsonMetadata PodMetadataPatchPolicy = "MergePatchJson"
)

// ContainerPatch is a container that is added.
type ContainerPatch struct {
	// InjectPolicy is where the container is added. Empty means BeforePrimaryContainer.
	// +optional
	InjectPolicy ContainerInjectPolicy `json:"injectPolicy,omitempty"`

	corev1.Container `json:",inline"`
}

// ContainerInjectPolicy is where a container is added.
//
// +kubebuilder:validation:Enum="";BeforePrimaryContainer;AfterPrimaryContainer
type ContainerInjectPolicy string

const (
	// BeforePrimaryContainer is in front of the containers that are there.
	BeforePrimaryContainer ContainerInjectPolicy = "BeforePrimaryContainer"
	// AfterPrimaryContainer is behind them.
	AfterPrimaryContainer ContainerInjectPolicy = "AfterPrimaryContainer"
)

// PrimaryContainerPatch is a change to containers of the workload.
type PrimaryContainerPatch struct {
	// TargetPolicy is which containers are changed. Empty means All.
	// +optional
	TargetPolicy PrimaryContainerInjectTargetPolicy `json:"targetPolicy,omitempty"`

	// Name is the name of the container, with ByName.
	// +optional
	Name *string `json:"name,omitempty"`

	// Image replaces the image. Nil means that it stays.
	// +optional
	Image *string `json:"image,omitempty"`

	// Env are variables to add. One takes the place of a variable with its name.
	// +listType=atomic
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`

	// VolumeMounts are mounts to add. One takes the place of a mount with its path.
	// +listType=atomic
	// +optional
	VolumeMounts []corev1.VolumeMount `json:"volumeMounts,omitempty"`
}

// PrimaryContainerInjectTargetPolicy is which containers of the workload are changed.
//
// +kubebuilder:validation:Enum="";ByName;All;First;Last
type PrimaryContainerInjectTargetPolicy string

const (
	// InjectByName changes the container of a name.
	InjectByName PrimaryContainerInjectTargetPolicy = "ByName"
	// InjectAllContainers changes all.
	InjectAllContainers PrimaryContainerInjectTargetPolicy = "All"
	// InjectFirstContainer changes the first.
	InjectFirstContainer PrimaryContainerInjectTargetPolicy = "First"
	// InjectLastContainer changes the last.
	InjectLastContainer PrimaryContainerInjectTargetPolicy = "Last"
)

// PodDecorationAffinity changes where Pods may run.
type PodDecorationAffinity struct {
	// OverrideAffinity replaces the affinity of the Pods.
	// +optional
	OverrideAffinity *corev1.Affinity `json:"overrideAffinity,omitempty"`

	// NodeSelectorTerms are added to the node affinity that is required. Terms are alternatives: where the Pod has some
	// already, one more lets it run on more nodes.
	// +listType=atomic
	// +optional
	NodeSelectorTerms []corev1.NodeSelectorTerm `json:"nodeSelectorTerms,omitempty"`
}

// PodDecorationUpdateStrategy selects the Pods that get a new template, and how they get it.
type PodDecorationUpdateStrategy struct {
	// RollingUpdate selects the Pods. Nil means all.
	// +optional
	RollingUpdate *PodDecorationRollingUpdate `json:"rollingUpdate,omitempty"`

	// Paused has no more Pods get the new template. Updates that have begun are finished. Not in Kuperator v0.7.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// PodUpdatePolicy is how Pods that no CollaSet owns get the template: InPlaceOnly, or InPlaceIfPossible if it is
	// empty. Those of a CollaSet get it as the CollaSet says. Not in Kuperator v0.7.
	// +kubebuilder:validation:Enum="";InPlaceIfPossible;InPlaceOnly
	// +optional
	PodUpdatePolicy PodUpdatePolicy `json:"podUpgradePolicy,omitempty"`

	// FailurePolicy is the reaction to a template with which Pods do not serve within ProgressDeadlineSeconds. Empty means
	// Report. Not in Kuperator v0.7.
	// +optional
	FailurePolicy RolloutFailurePolicy `json:"failurePolicy,omitempty"`
}

// PodDecorationRollingUpdate selects the Pods that get a new template. If both Partition and Selector are set, Selector
// applies.
type PodDecorationRollingUpdate struct {
	// Partition is the number of Pods that keep what they have. New Pods get status.currentRevision meanwhile. Nil means
	// that none do.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Partition *int32 `json:"partition,omitempty"`

	// Selector matches the Pods that get the new template. Nil means all but those of Partition.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// MaxUnavailable is the maximum number of Pods, of those that no CollaSet owns, that may be unavailable when an update
	// takes another one out of service: a number, or a percentage of them, rounded down, and at least 1. Nil means 25%.
	// PodTransitionRules apply in addition. Not in Kuperator v0.7.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^([1-9][0-9]?|100)%$')",message="must be at least 1, or a percentage from 1% to 100%"
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// PodDecorationStatus is how far the Pods are. Pods that are terminating or have ended do not count.
type PodDecorationStatus struct {
	// ObservedGeneration is the generation of the spec to which this status refers.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// CurrentRevision is the name of the ControllerRevision of Pods that do not have to get UpdatedRevision yet. Empty
	// means that they get none. It becomes UpdatedRevision when every Pod has that and serves. It never becomes a revision
	// that is halted.
	// +optional
	CurrentRevision string `json:"currentRevision,omitempty"`

	// UpdatedRevision is the name of the ControllerRevision of the current template.
	// +optional
	UpdatedRevision string `json:"updatedRevision,omitempty"`

	// CollisionCount is how often the name of a new ControllerRevision was in use with other content. Nil means 0.
	// +optional
	CollisionCount *int32 `json:"collisionCount,omitempty"`

	// MatchedPods is the number of Pods that spec.selector matches.
	// +kubebuilder:default=0
	// +optional
	MatchedPods int32 `json:"matchedPods,omitempty"`

	// InjectedPods is the number of these that have some revision.
	// +kubebuilder:default=0
	// +optional
	InjectedPods int32 `json:"injectedPods,omitempty"`

	// UpdatedPods is the number of these that have UpdatedRevision.
	// +kubebuilder:default=0
	// +optional
	UpdatedPods int32 `json:"updatedPods,omitempty"`

	// UpdatedReadyPods is the number of these that have UpdatedRevision and are Ready.
	// +kubebuilder:default=0
	// +optional
	UpdatedReadyPods int32 `json:"updatedReadyPods,omitempty"`

	// UpdatedAvailablePods is the number of these that have UpdatedRevision and are in service.
	// +kubebuilder:default=0
	// +optional
	UpdatedAvailablePods int32 `json:"updatedAvailablePods,omitempty"`

	// Details are the Pods by the workload that controls them, sorted. What is too much for this list is left out, the
	// counts are of all.
	// +listType=atomic
	// +optional
	Details []PodDecorationWorkloadDetail `json:"details,omitempty"`

	// LastProgressTime is the time of the last progress, from which ProgressDeadlineSeconds is counted. Nil means that it
	// was never measured.
	// +optional
	LastProgressTime *metav1.Time `json:"lastProgressTime,omitempty"`

	// Halted is the rollout that FailurePolicy stopped. Nil means none.
	// +optional
	Halted *HaltedRollout `json:"halted,omitempty"`

	// Pilot is the Pod that was deleted first so that a Pod with a revision takes its place. Others follow when that one
	// has the revision. Nil means none. Not in Kuperator v0.7.
	// +optional
	Pilot *PodDecorationPilot `json:"pilot,omitempty"`

	// NextUpdate is how a Pod gets from CurrentRevision to UpdatedRevision. Nil if they are equal.
	// +optional
	NextUpdate *UpdateForecast `json:"nextUpdate,omitempty"`

	// Conditions are of the types Ready, Reconciling, Stalled and Progressing.
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`

	// Blockers are what keeps Pods from what they are to have, sorted by the number of Pods, the largest first.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Blockers []Blocker `json:"blockers,omitempty"`
}

// PodDecorationPilot is a Pod that was deleted to see whether the next one has a revision.
type PodDecorationPilot struct {
	// Generation is that of the spec for which the Pod was deleted: for another one there is another pilot.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// Revision is the one that the next Pod should have.
	// +optional
	Revision string `json:"revision,omitempty"`

	// Time is when that was decided.
	Time metav1.Time `json:"time"`

	// Attempts is how many Pods were deleted for that, one after the other, this one among them. 0 means 1.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`

	// PodName and PodUID are of the Pod.
	PodName string    `json:"podName"`
	PodUID  types.UID `json:"podUID"`
}

// PodDecorationWorkloadDetail is the Pods of one workload.
type PodDecorationWorkloadDetail struct {
	// CollaSet is the name of the CollaSet. Empty for the Pods of others.
	// +optional
	CollaSet string `json:"collaSet,omitempty"`

	// Workload is the kind and name of another controller, such as ReplicaSet/web-5d9f. Empty for a CollaSet, and for
	// Pods without a controller. Not in Kuperator v0.7.
	// +optional
	Workload string `json:"workload,omitempty"`

	// AffectedReplicas is the number of its Pods.
	// +optional
	AffectedReplicas int32 `json:"affectedReplicas,omitempty"`

	// Pods are its Pods, sorted by name.
	// +listType=atomic
	// +optional
	Pods []PodDecorationPodInfo `json:"pods,omitempty"`
}

// PodDecorationPodInfo is one Pod.
type PodDecorationPodInfo struct {
	// Name is the name of the Pod.
	// +optional
	Name string `json:"name,omitempty"`

	// Revision is the revision that it has. Empty means none.
	// +optional
	Revision string `json:"revision,omitempty"`

	// Escaped is whether it has none although it is to have one.
	// +optional
	Escaped bool `json:"escaped,omitempty"`
}

// PodDecorationList is a list of PodDecorations.
//
// +kubebuilder:object:root=true
type PodDecorationList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PodDecoration `json:"items"`
}
