package v1alpha1

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// CollaSet keeps a number of Pods of one template, each with a stable instance ID, and scales, updates, replaces and
// deletes them through the Pod lifecycle, so that traffic is off before a Pod is touched.
//
// +genclient
// +genclient:method=GetScale,verb=get,subresource=scale,result=k8s.io/api/autoscaling/v1.Scale
// +genclient:method=UpdateScale,verb=update,subresource=scale,input=k8s.io/api/autoscaling/v1.Scale,result=k8s.io/api/autoscaling/v1.Scale
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=collasets,singular=collaset,shortName=cls,categories=kuperator,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="DESIRED",type=integer,JSONPath=`.spec.replicas`,description="The wanted number of Pods."
// +kubebuilder:printcolumn:name="CURRENT",type=integer,JSONPath=`.status.replicas`,description="The number of Pods that exist."
// +kubebuilder:printcolumn:name="AVAILABLE",type=integer,JSONPath=`.status.availableReplicas`,description="The number of Pods in service."
// +kubebuilder:printcolumn:name="UPDATED",type=integer,JSONPath=`.status.updatedReplicas`,description="The number of Pods at the updated revision."
// +kubebuilder:printcolumn:name="UPDATED_READY",type=integer,JSONPath=`.status.updatedReadyReplicas`,description="The number of Ready Pods at the updated revision."
// +kubebuilder:printcolumn:name="UPDATED_AVAILABLE",type=integer,JSONPath=`.status.updatedAvailableReplicas`,description="The number of Pods in service at the updated revision."
// +kubebuilder:printcolumn:name="CURRENT_REVISION",type=string,JSONPath=`.status.currentRevision`,description="The revision that Pods come from."
// +kubebuilder:printcolumn:name="UPDATED_REVISION",type=string,JSONPath=`.status.updatedRevision`,description="The revision that Pods go to."
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="has(self.spec)",message="spec is missing: give it a selector and a template whose labels the selector matches"
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || size(self.metadata.name) <= 52",optionalOldSelf=true,message="metadata.name has more than 52 characters: use a shorter one, because Pods carry the name and a revision hash as a label"
// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.namingStrategy) || !has(self.spec.namingStrategy.podNamingSuffixPolicy) || self.spec.namingStrategy.podNamingSuffixPolicy != 'PersistentSequence' || !self.metadata.name.contains('.') || (oldSelf.hasValue() && has(oldSelf.value().spec) && has(oldSelf.value().spec.namingStrategy) && has(oldSelf.value().spec.namingStrategy.podNamingSuffixPolicy) && oldSelf.value().spec.namingStrategy.podNamingSuffixPolicy == 'PersistentSequence')",optionalOldSelf=true,fieldPath=".spec.namingStrategy.podNamingSuffixPolicy",message="PersistentSequence needs a metadata.name without dots, because a name in persistent sequence is a hostname as well: use Random, or another name"
type CollaSet struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what is wanted.
	// +optional
	Spec CollaSetSpec `json:"spec,omitempty"`

	// Status is what was observed. Written by collaset-controller only.
	// +optional
	Status CollaSetStatus `json:"status,omitempty"`
}

// CollaSetSpec is what is wanted of a CollaSet.
//
// +kubebuilder:validation:XValidation:rule="has(self.selector)",message="spec.selector is required: set matchLabels to labels that spec.template.metadata.labels carries"
// +kubebuilder:validation:XValidation:rule="!has(self.selector) || (has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0) || (has(self.selector.matchExpressions) && size(self.selector.matchExpressions) > 0)",fieldPath=".selector",message="spec.selector is empty: set matchLabels to labels of spec.template.metadata"
// +kubebuilder:validation:XValidation:rule="has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels)",message="spec.template.metadata.labels is required: set the labels that spec.selector matches"
// +kubebuilder:validation:XValidation:rule="!has(self.selector) || !has(self.selector.matchLabels) || !(has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels)) || self.selector.matchLabels.all(k, k in self.template.metadata.labels && self.template.metadata.labels[k] == self.selector.matchLabels[k])",fieldPath=".selector",message="spec.selector.matchLabels does not match spec.template.metadata.labels: give the template every label of the selector, with the same value"
// +kubebuilder:validation:XValidation:rule="!has(self.selector) || !has(self.selector.matchExpressions) || !(has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels)) || self.selector.matchExpressions.all(e, e.operator == 'In' ? (e.key in self.template.metadata.labels && has(e.values) && self.template.metadata.labels[e.key] in e.values) : e.operator == 'NotIn' ? !(e.key in self.template.metadata.labels && has(e.values) && self.template.metadata.labels[e.key] in e.values) : e.operator == 'Exists' ? e.key in self.template.metadata.labels : !(e.key in self.template.metadata.labels))",fieldPath=".selector",message="spec.selector.matchExpressions does not match spec.template.metadata.labels: change the labels of the template, or the expressions"
// +kubebuilder:validation:XValidation:rule="has(self.template) && has(self.template.spec) && size(self.template.spec.containers) > 0",message="spec.template.spec.containers is empty: give the template at least one container"
// +kubebuilder:validation:XValidation:rule="!has(self.volumeClaimTemplates) || self.volumeClaimTemplates.all(c, has(c.metadata) && has(c.metadata.name) && c.metadata.name != \"\")",fieldPath=".volumeClaimTemplates",message="every item of spec.volumeClaimTemplates needs metadata.name: set it to the name under which containers mount the volume"
// +kubebuilder:validation:XValidation:rule="!has(self.volumeClaimTemplates) || self.volumeClaimTemplates.all(c, !has(c.metadata) || !has(c.metadata.name) || self.volumeClaimTemplates.exists_one(d, has(d.metadata) && has(d.metadata.name) && d.metadata.name == c.metadata.name))",fieldPath=".volumeClaimTemplates",message="spec.volumeClaimTemplates has a name more than once: rename or remove one"
// +kubebuilder:validation:XValidation:rule="!has(self.namingStrategy) || !has(self.namingStrategy.podNamingSuffixPolicy) || self.namingStrategy.podNamingSuffixPolicy != 'PersistentSequence' || !has(self.scaleStrategy) || !has(self.scaleStrategy.podToExclude) || size(self.scaleStrategy.podToExclude) == 0",fieldPath=".scaleStrategy.podToExclude",reason=FieldValueForbidden,message="spec.scaleStrategy.podToExclude is not allowed when podNamingSuffixPolicy is PersistentSequence: remove it",messageExpression="'spec.scaleStrategy.podToExclude [' + self.scaleStrategy.podToExclude.join(', ') + '] is not allowed when podNamingSuffixPolicy is PersistentSequence: empty the list'"
// +kubebuilder:validation:XValidation:rule="!has(self.namingStrategy) || !has(self.namingStrategy.podNamingSuffixPolicy) || self.namingStrategy.podNamingSuffixPolicy != 'PersistentSequence' || !has(self.scaleStrategy) || !has(self.scaleStrategy.podToInclude) || size(self.scaleStrategy.podToInclude) == 0",fieldPath=".scaleStrategy.podToInclude",reason=FieldValueForbidden,message="spec.scaleStrategy.podToInclude is not allowed when podNamingSuffixPolicy is PersistentSequence: remove it",messageExpression="'spec.scaleStrategy.podToInclude [' + self.scaleStrategy.podToInclude.join(', ') + '] is not allowed when podNamingSuffixPolicy is PersistentSequence: empty the list'"
// +kubebuilder:validation:XValidation:rule="(has(self.scaleStrategy) && has(self.scaleStrategy.context) ? self.scaleStrategy.context : \"\") == (has(oldSelf.scaleStrategy) && has(oldSelf.scaleStrategy.context) ? oldSelf.scaleStrategy.context : \"\")",fieldPath=".scaleStrategy",reason=FieldValueForbidden,message="spec.scaleStrategy.context cannot be changed: create another CollaSet instead",messageExpression="'spec.scaleStrategy.context cannot be changed to \"' + (has(self.scaleStrategy) && has(self.scaleStrategy.context) ? self.scaleStrategy.context : \"\") + '\": set it back to \"' + (has(oldSelf.scaleStrategy) && has(oldSelf.scaleStrategy.context) ? oldSelf.scaleStrategy.context : \"\") + '\" or create another CollaSet'"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.selector) || (has(self.selector) && self.selector == oldSelf.selector)",fieldPath=".selector",reason=FieldValueForbidden,message="spec.selector cannot be changed: set it back, or create another CollaSet and move Pods with podToExclude and podToInclude"
type CollaSetSpec struct {
	// Paused stops scaling and updating; operations already begun on a Pod are brought to their end, and Pods that are lost
	// come back at their own revision.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// Replicas is the wanted number of Pods. Nil means 0.
	// That goes for an update that leaves it out, too.
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// Selector says which of the Pods that this CollaSet owns belong to it. It is required, must match the labels of the
	// template, and cannot be changed. A Pod whose labels are changed so that it no longer matches is released, as if it
	// had been named in PodToExclude.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Template is what Pods are made from. Fields of the Pod that this version does not know are kept.
	// +optional
	Template corev1.PodTemplateSpec `json:"template,omitempty"`

	// VolumeClaimTemplates are the claims that every Pod gets, each under the name of a volume; one of that name in the
	// template gives way. A claim is kept for its instance ID when the Pod is re-created.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	VolumeClaimTemplates []corev1.PersistentVolumeClaim `json:"volumeClaimTemplates,omitempty"`

	// UpdateStrategy says which Pods are updated, and how.
	// +kubebuilder:default={}
	// +optional
	UpdateStrategy UpdateStrategy `json:"updateStrategy,omitempty"`

	// ScaleStrategy says how Pods are added and removed, and names Pods to delete, orphan or adopt.
	// +optional
	ScaleStrategy ScaleStrategy `json:"scaleStrategy,omitempty"`

	// NamingStrategy says how Pods are named. Nil means random suffixes.
	// +optional
	NamingStrategy *NamingStrategy `json:"namingStrategy,omitempty"`

	// HistoryLimit is the number of revisions kept besides those in use. Nil means 20.
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=0
	// +optional
	HistoryLimit *int32 `json:"historyLimit,omitempty"`

	// MinReadySeconds is how long, in seconds, a Pod must have been Ready, and in service, to count as available. With it, at
	// most a quarter of Replicas, and at least one Pod, is being updated or is updated and not available yet. The new Pod of
	// a replacement holds back the deletion of the old one until it is available.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`

	// ProgressDeadlineSeconds is how long, in seconds, nothing may get better on the way to the spec before the CollaSet is
	// said not to progress; UpdateStrategy.FailurePolicy says what happens then. MinReadySeconds comes on top. Time while
	// paused does not count, nor does what happens after the spec was reached. Nil means 600, as in a Deployment;
	// 2147483647 means that there is no deadline.
	// +kubebuilder:validation:Minimum=1
	// +optional
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
}

const (
	// DefaultProgressDeadlineSeconds is what a spec without progressDeadlineSeconds means.
	DefaultProgressDeadlineSeconds int32 = 600
	// NoProgressDeadlineSeconds is the progressDeadlineSeconds that means none, as in a Deployment.
	NoProgressDeadlineSeconds int32 = math.MaxInt32
)

// UpdateStrategy says which Pods are updated, and how.
type UpdateStrategy struct {
	// RollingUpdate chooses the Pods to update: by partition or by label.
	// +kubebuilder:default={byPartition: {}}
	// +optional
	RollingUpdate *RollingUpdateStrategy `json:"rollingUpdate,omitempty"`

	// PodUpdatePolicy says how a Pod gets to the updated revision. Empty means InPlaceIfPossible.
	// +kubebuilder:default=InPlaceIfPossible
	// +optional
	PodUpdatePolicy PodUpdatePolicy `json:"podUpgradePolicy,omitempty"`

	// OperationDelaySeconds is how long to wait, in seconds, after the lifecycle allowed the update of a Pod. Nil means 0.
	// +kubebuilder:validation:Minimum=0
	// +optional
	OperationDelaySeconds *int32 `json:"operationDelaySeconds,omitempty"`

	// MaxSurge is how many Pods may be under replacement by updates at a time with podUpgradePolicy Replace, each with an
	// old and a new Pod: a number, or a percentage of Replicas rounded up, at least 1. Nil means 25 %. Other policies make
	// no surplus Pods.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^[1-9][0-9]*%$') && self.size() <= 6",message="must be at least 1, or a percentage such as 25%"
	// +optional
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`

	// FailurePolicy says what happens to a rollout that does not progress within ProgressDeadlineSeconds, or 600 seconds without
	// it. Empty means Report.
	// +optional
	FailurePolicy RolloutFailurePolicy `json:"failurePolicy,omitempty"`
}

// RolloutFailurePolicy says what happens to a rollout that does not progress.
//
// +kubebuilder:validation:Enum="";Report;Pause;Rollback
type RolloutFailurePolicy string

const (
	// RolloutFailureReport says so in conditions and goes on.
	RolloutFailureReport RolloutFailurePolicy = "Report"
	// RolloutFailurePause begins no more updates to that revision.
	RolloutFailurePause RolloutFailurePolicy = "Pause"
	// RolloutFailureRollback brings Pods back to status.currentRevision, the revision before. If there is none, it is Pause.
	RolloutFailureRollback RolloutFailurePolicy = "Rollback"
)

// PodUpdatePolicy says how a Pod gets to the updated revision.
//
// +kubebuilder:validation:Enum="";Recreate;InPlaceIfPossible;InPlaceOnly;Replace
type PodUpdatePolicy string

const (
	// PodUpdateRecreate deletes the Pod and creates it anew under the same instance ID.
	PodUpdateRecreate PodUpdatePolicy = "Recreate"
	// PodUpdateInPlaceIfPossible patches the Pod when Kubernetes allows the change on a running Pod, else re-creates it.
	PodUpdateInPlaceIfPossible PodUpdatePolicy = "InPlaceIfPossible"
	// PodUpdateInPlaceOnly patches the Pod, and leaves it at its revision, with the reason in status, when that is not
	// possible.
	PodUpdateInPlaceOnly PodUpdatePolicy = "InPlaceOnly"
	// PodUpdateReplace creates the new Pod first, under a new instance ID, and deletes the old one when the new one is in
	// service.
	PodUpdateReplace PodUpdatePolicy = "Replace"
)

// RollingUpdateStrategy chooses the Pods to update, and how many at a time. With both set, ByLabel wins; with neither, it is ByPartition with no
// Pod held back.
type RollingUpdateStrategy struct {
	// ByPartition updates all Pods but a number that is held back.
	// +optional
	ByPartition *ByPartition `json:"byPartition,omitempty"`

	// ByLabel updates the Pods that carry UpdateIncludedLabel.
	// +optional
	ByLabel *ByLabel `json:"byLabel,omitempty"`

	// MaxUnavailable bounds the Pods that updates may have out of service, as in a Deployment: an update takes a Pod out of
	// service only while fewer than that are unavailable, for whatever reason. It is a number, or a percentage of Replicas
	// rounded down; at least one. Nil means 25 %. PodTransitionRules come on top. Pods that are not available may always be
	// updated, and changes that restart nothing take no Pod out of service. 100% lets all Pods be updated at once.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^([1-9][0-9]?|100)%$')",message="must be at least 1, or a percentage from 1% to 100%"
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// ByPartition updates all Pods but a number that is held back.
type ByPartition struct {
	// Partition is the number of Pods that stay at their old revision, or a percentage of Replicas, rounded up. Nil means 0:
	// all Pods are updated. It holds no Pod back from a template that returns to status.currentRevision.
	// Programs built on the types of Kuperator v0.7 read numbers only.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : self.matches('^([0-9]|[1-9][0-9]|100)%$')",message="must be greater than or equal to 0, or a percentage from 0% to 100%"
	// +optional
	Partition *intstr.IntOrString `json:"partition,omitempty"`
}

// ByLabel updates the Pods that carry UpdateIncludedLabel.
type ByLabel struct{}

// ScaleStrategy says how Pods are added and removed, and names Pods to delete, orphan or adopt. A Pod may be in one of
// the three lists only.
//
// +kubebuilder:validation:XValidation:rule="!has(self.podToExclude) || !has(self.podToInclude) || !self.podToExclude.exists(p, p in self.podToInclude)",fieldPath=".podToExclude",reason=FieldValueForbidden,message="spec.scaleStrategy.podToExclude and podToInclude have a Pod in common: keep it in one of them",messageExpression="'spec.scaleStrategy.podToExclude [' + self.podToExclude.join(', ') + '] and podToInclude [' + self.podToInclude.join(', ') + '] have a Pod in common: keep it in one of them'"
// +kubebuilder:validation:XValidation:rule="!has(self.podToDelete) || !has(self.podToInclude) || !self.podToDelete.exists(p, p in self.podToInclude)",fieldPath=".podToDelete",reason=FieldValueForbidden,message="spec.scaleStrategy.podToDelete and podToInclude have a Pod in common: keep it in one of them",messageExpression="'spec.scaleStrategy.podToDelete [' + self.podToDelete.join(', ') + '] and podToInclude [' + self.podToInclude.join(', ') + '] have a Pod in common: keep it in one of them'"
// +kubebuilder:validation:XValidation:rule="!has(self.podToDelete) || !has(self.podToExclude) || !self.podToDelete.exists(p, p in self.podToExclude)",fieldPath=".podToDelete",reason=FieldValueForbidden,message="spec.scaleStrategy.podToDelete and podToExclude have a Pod in common: keep it in one of them",messageExpression="'spec.scaleStrategy.podToDelete [' + self.podToDelete.join(', ') + '] and podToExclude [' + self.podToExclude.join(', ') + '] have a Pod in common: keep it in one of them'"
type ScaleStrategy struct {
	// Context names the ResourceContext from which instance IDs are taken. Empty means the name of the CollaSet. It cannot
	// be changed.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	// +optional
	Context string `json:"context,omitempty"`

	// PodToExclude names Pods to orphan. Not allowed with names in persistent sequence.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +listType=atomic
	// +optional
	PodToExclude []string `json:"podToExclude,omitempty"`

	// PodToInclude names Pods to adopt. Not allowed with names in persistent sequence.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +listType=atomic
	// +optional
	PodToInclude []string `json:"podToInclude,omitempty"`

	// PodToDelete names Pods to delete through their lifecycle; they come back under the same instance ID unless Replicas
	// shrinks as well.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +listType=atomic
	// +optional
	PodToDelete []string `json:"podToDelete,omitempty"`

	// PersistentVolumeClaimRetentionPolicy says what becomes of claims made from VolumeClaimTemplates. Nil means that all are
	// kept: data is never destroyed unless this says so.
	// +optional
	PersistentVolumeClaimRetentionPolicy *PersistentVolumeClaimRetentionPolicy `json:"persistentVolumeClaimRetentionPolicy,omitempty"`

	// OperationDelaySeconds is how long to wait, in seconds, after the lifecycle allowed the scale-in of a Pod. Nil means 0.
	// +kubebuilder:validation:Minimum=0
	// +optional
	OperationDelaySeconds *int32 `json:"operationDelaySeconds,omitempty"`
}

// PersistentVolumeClaimRetentionPolicy says what becomes of claims made from VolumeClaimTemplates.
type PersistentVolumeClaimRetentionPolicy struct {
	// WhenDeleted applies when the CollaSet is deleted. Empty means Retain.
	// +optional
	WhenDeleted PersistentVolumeClaimRetentionPolicyType `json:"whenDeleted,omitempty"`

	// WhenScaled applies when the instance ID of the claim is given up: its Pod is scaled in, or was replaced by one of
	// another ID. Empty means Retain: the claim waits for the ID to be used again.
	// +optional
	WhenScaled PersistentVolumeClaimRetentionPolicyType `json:"whenScaled,omitempty"`

	// WhenTemplateChanged applies when the claim's template changes in more than size, labels and annotations (a larger
	// storage request expands the claim, a smaller one changes nothing): Delete re-creates the Pod with an empty claim of
	// the new template and deletes the old one, Retain keeps the claim as it is, and only new instance IDs get the new
	// template. Empty means Retain.
	// +optional
	WhenTemplateChanged PersistentVolumeClaimRetentionPolicyType `json:"whenTemplateChanged,omitempty"`
}

// PersistentVolumeClaimRetentionPolicyType is what becomes of a claim.
//
// +kubebuilder:validation:Enum="";Delete;Retain
type PersistentVolumeClaimRetentionPolicyType string

const (
	// RetainPersistentVolumeClaim keeps the claim.
	RetainPersistentVolumeClaim PersistentVolumeClaimRetentionPolicyType = "Retain"
	// DeletePersistentVolumeClaim deletes the claim.
	DeletePersistentVolumeClaim PersistentVolumeClaimRetentionPolicyType = "Delete"
)

// NamingStrategy says how Pods are named.
type NamingStrategy struct {
	// PodNamingSuffixPolicy says what follows the CollaSet's name and a dash in a Pod's name. Empty means Random.
	// +kubebuilder:default=Random
	// +optional
	PodNamingSuffixPolicy PodNamingSuffixPolicy `json:"podNamingSuffixPolicy,omitempty"`
}

// PodNamingSuffixPolicy says what follows the CollaSet's name and a dash in a Pod's name.
//
// +kubebuilder:validation:Enum="";PersistentSequence;Random
type PodNamingSuffixPolicy string

const (
	// PodNamingSuffixRandom is a random suffix made by the API server.
	PodNamingSuffixRandom PodNamingSuffixPolicy = "Random"
	// PodNamingSuffixPersistentSequence is the instance ID; it is the Pod's hostname as well.
	PodNamingSuffixPersistentSequence PodNamingSuffixPolicy = "PersistentSequence"
)

// CollaSetStatus is what was observed of a CollaSet. Counters are numbers of Pods.
type CollaSetStatus struct {
	// ObservedGeneration is the generation of the spec that this status answers to, also when acting on it failed.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// CurrentRevision is the name of the ControllerRevision that Pods come from. It follows UpdatedRevision once every Pod
	// has been updated and is Ready, or with MinReadySeconds available; it never follows one that is halted.
	// +optional
	CurrentRevision string `json:"currentRevision,omitempty"`

	// UpdatedRevision is the name of the ControllerRevision of the present template.
	// +optional
	UpdatedRevision string `json:"updatedRevision,omitempty"`

	// CollisionCount is how often the name of a new ControllerRevision was already taken by other content. Nil means 0.
	// +optional
	CollisionCount *int32 `json:"collisionCount,omitempty"`

	// ScheduledReplicas counts Pods that have a node.
	// +optional
	ScheduledReplicas int32 `json:"scheduledReplicas,omitempty"`

	// ReadyReplicas counts Pods that are Ready.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`

	// AvailableReplicas counts Pods in service, and Ready for MinReadySeconds.
	// +optional
	AvailableReplicas int32 `json:"availableReplicas,omitempty"`

	// Replicas counts the Pods of the CollaSet.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`

	// UpdatedReplicas counts Pods at UpdatedRevision.
	// +optional
	UpdatedReplicas int32 `json:"updatedReplicas,omitempty"`

	// OperatingReplicas counts Pods in an update or scale-in of this CollaSet, until the operation itself is done.
	// +optional
	OperatingReplicas int32 `json:"operatingReplicas,omitempty"`

	// TerminatingReplicas counts Pods that are being deleted.
	// +optional
	TerminatingReplicas int32 `json:"terminatingReplicas,omitempty"`

	// UpdatedReadyReplicas counts Ready Pods at UpdatedRevision.
	// +optional
	UpdatedReadyReplicas int32 `json:"updatedReadyReplicas,omitempty"`

	// UpdatedAvailableReplicas counts those of AvailableReplicas that are at UpdatedRevision.
	// +optional
	UpdatedAvailableReplicas int32 `json:"updatedAvailableReplicas,omitempty"`

	// Selector is spec.selector as a string, for the scale subresource and so for autoscalers.
	// +optional
	Selector string `json:"selector,omitempty"`

	// LastProgressTime is when something last got better on the way to the spec; ProgressDeadlineSeconds counts from it.
	// Nil means that it was never measured: nothing has been left to do since, or there is no deadline.
	// +optional
	LastProgressTime *metav1.Time `json:"lastProgressTime,omitempty"`

	// Halted is the rollout that FailurePolicy stopped. Nil means that none is.
	// +optional
	Halted *HaltedRollout `json:"halted,omitempty"`

	// NextUpdate says how a Pod gets from CurrentRevision to UpdatedRevision. Nil when they are equal.
	// +optional
	NextUpdate *UpdateForecast `json:"nextUpdate,omitempty"`

	// Conditions are of the types CollaSetReady, CollaSetReconciling, CollaSetStalled, CollaSetProgressing, CollaSetScale,
	// CollaSetUpdate and CollaSetTerminating.
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`

	// Blockers sums up what keeps Pods from getting where they should be, most Pods first.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Blockers []Blocker `json:"blockers,omitempty"`
}

// HaltedRollout is a rollout that FailurePolicy stopped. It ends when the template changes, when FailurePolicy is taken
// away, or when ProgressDeadlineSeconds becomes 2147483647.
type HaltedRollout struct {
	// Revision is the one that Pods no longer go to.
	// +kubebuilder:validation:MaxLength=253
	Revision string `json:"revision"`

	// RollbackTo is the revision that Pods go back to. Empty: they stay where they are.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	RollbackTo string `json:"rollbackTo,omitempty"`

	// Since is when it was stopped.
	Since metav1.Time `json:"since"`
}

// UpdateForecast says how a Pod gets from one revision to another.
type UpdateForecast struct {
	// InPlace says that a running Pod can take the change over.
	InPlace bool `json:"inPlace"`

	// Fields are the fields, below spec, that force the Pod to be created anew. Empty when InPlace.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=atomic
	// +optional
	Fields []string `json:"fields,omitempty"`
}

// Blocker is one reason that keeps Pods from getting where they should be.
type Blocker struct {
	// Reason is a CamelCase word for machines.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Reason string `json:"reason"`

	// Message is for people: an example of what is wrong, and what to do.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`

	// Count is the number of Pods that the reason holds back.
	// +kubebuilder:validation:Minimum=0
	Count int32 `json:"count"`
}

// CollaSetList is a list of CollaSets.
//
// +kubebuilder:object:root=true
type CollaSetList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CollaSet `json:"items"`
}
