package v1alpha1

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// CollaSet maintains a number of Pods of one template, each with a stable instance ID. It scales, updates, replaces and
// deletes them through the Pod lifecycle, so that a Pod is out of traffic before it is changed.
//
// +genclient
// +genclient:method=GetScale,verb=get,subresource=scale,result=k8s.io/api/autoscaling/v1.Scale
// +genclient:method=UpdateScale,verb=update,subresource=scale,input=k8s.io/api/autoscaling/v1.Scale,result=k8s.io/api/autoscaling/v1.Scale
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=collasets,singular=collaset,shortName=cls,categories=kuperator,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=`.status.readiness`,description="The number of Ready Pods, and of wanted ones."
// +kubebuilder:printcolumn:name="UPDATED",type=integer,JSONPath=`.status.updatedReplicas`,description="The number of Pods at the updated revision."
// +kubebuilder:printcolumn:name="AVAILABLE",type=integer,JSONPath=`.status.availableReplicas`,description="The number of Pods in service."
// +kubebuilder:printcolumn:name="STATE",type=string,JSONPath=`.status.conditions[?(@.type=="Progressing")].reason`,description="How the rollout fares."
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="CURRENT",type=integer,priority=1,JSONPath=`.status.replicas`,description="The number of Pods that exist."
// +kubebuilder:printcolumn:name="UPDATED_READY",type=integer,priority=1,JSONPath=`.status.updatedReadyReplicas`,description="The number of Ready Pods at the updated revision."
// +kubebuilder:printcolumn:name="UPDATED_AVAILABLE",type=integer,priority=1,JSONPath=`.status.updatedAvailableReplicas`,description="The number of Pods in service at the updated revision."
// +kubebuilder:printcolumn:name="CURRENT_REVISION",type=string,priority=1,JSONPath=`.status.currentRevision`,description="The revision that Pods come from."
// +kubebuilder:printcolumn:name="UPDATED_REVISION",type=string,priority=1,JSONPath=`.status.updatedRevision`,description="The revision that Pods go to."
// +kubebuilder:printcolumn:name="IMAGE",type=string,priority=1,JSONPath=`.spec.template.spec.containers[0].image`,description="The image of the first container."
// +kubebuilder:printcolumn:name="SELECTOR",type=string,priority=1,JSONPath=`.status.selector`,description="The labels that Pods of the CollaSet have."
// +kubebuilder:validation:XValidation:rule="has(self.spec)",message="spec is missing: give it a selector and a template whose labels the selector matches"
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || size(self.metadata.name) <= 52",optionalOldSelf=true,message="metadata.name has more than 52 characters: use a shorter one, because Pods carry the name and a revision hash as a label"
// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.namingStrategy) || !has(self.spec.namingStrategy.podNamingSuffixPolicy) || self.spec.namingStrategy.podNamingSuffixPolicy != 'PersistentSequence' || !self.metadata.name.contains('.') || (oldSelf.hasValue() && has(oldSelf.value().spec) && has(oldSelf.value().spec.namingStrategy) && has(oldSelf.value().spec.namingStrategy.podNamingSuffixPolicy) && oldSelf.value().spec.namingStrategy.podNamingSuffixPolicy == 'PersistentSequence')",optionalOldSelf=true,fieldPath=".spec.namingStrategy.podNamingSuffixPolicy",message="PersistentSequence needs a metadata.name without dots, because a name in persistent sequence is a hostname as well: use Random, or another name"
type CollaSet struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	// +optional
	Spec CollaSetSpec `json:"spec,omitempty"`

	// Status is the observed state. Only collaset-controller writes it.
	// Before that its observedGeneration is -1: kstatus takes an object without it for one that is ready.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status CollaSetStatus `json:"status,omitempty"`
}

// CollaSetSpec is the desired state of a CollaSet.
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
	// Paused stops scaling and updates. Operations that have begun on a Pod are finished, and Pods that are lost are
	// re-created at their own revision.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// Replicas is the desired number of Pods. Nil means 0, also in an update of the object that leaves it out.
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// Selector matches the Pods of this CollaSet among those that it owns. It is required, must match the labels of the
	// template, and is immutable. A Pod whose labels no longer match is released, as if PodToExclude named it.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Template is the template of the Pods. Pod fields that are unknown to this version are preserved.
	// +optional
	Template corev1.PodTemplateSpec `json:"template,omitempty"`

	// VolumeClaimTemplates are the templates of the PVC claims of each Pod. The name of a claim template is the name of
	// its volume, and takes precedence over a volume of that name in Template. A claim belongs to an instance ID and is
	// kept when the Pod is re-created.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	VolumeClaimTemplates []corev1.PersistentVolumeClaim `json:"volumeClaimTemplates,omitempty"`

	// UpdateStrategy selects the Pods to update, and the method.
	// +kubebuilder:default={}
	// +optional
	UpdateStrategy UpdateStrategy `json:"updateStrategy,omitempty"`

	// ScaleStrategy configures how Pods are added and removed, and names Pods to delete, exclude or include.
	// +optional
	ScaleStrategy ScaleStrategy `json:"scaleStrategy,omitempty"`

	// NamingStrategy configures the names of Pods. Nil means random suffixes.
	// +optional
	NamingStrategy *NamingStrategy `json:"namingStrategy,omitempty"`

	// HistoryLimit is the number of revisions to keep besides those in use. Nil means 20.
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=0
	// +optional
	HistoryLimit *int32 `json:"historyLimit,omitempty"`

	// MinReadySeconds is how long, in seconds, a Pod must be Ready and in service to count as available. An updated Pod
	// that is not available yet counts against MaxUnavailable. A Pod that is being replaced is deleted only when its
	// replacement is available.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`

	// Disruption configures what becomes of Pods that are evicted, as kubectl drain and node upgrades do. Nil means that
	// they are deleted gracefully and then re-created. Not in Kuperator v0.7.
	// +optional
	Disruption *Disruption `json:"disruption,omitempty"`

	// ProgressDeadlineSeconds is the maximum time, in seconds, without progress towards the spec before the condition
	// Progressing becomes False and UpdateStrategy.FailurePolicy applies. MinReadySeconds is added to it. Time while
	// paused does not count, nor does time after the spec was reached. Nil means 600, as in a Deployment. 2147483647
	// means no deadline.
	// +kubebuilder:validation:Minimum=1
	// +optional
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
}

const (
	// DefaultProgressDeadlineSeconds is the deadline, in seconds, of a spec without progressDeadlineSeconds.
	DefaultProgressDeadlineSeconds int32 = 600
	// NoProgressDeadlineSeconds is the progressDeadlineSeconds that means no deadline, as in a Deployment.
	NoProgressDeadlineSeconds int32 = math.MaxInt32
)

// Disruption configures what becomes of Pods that are evicted.
//
// +kubebuilder:validation:XValidation:rule="!has(self.beforeEviction) || !self.beforeEviction || (has(self.onEviction) && self.onEviction in ['Replace', 'ReplaceWhenBlocked'])",fieldPath=".beforeEviction",message="beforeEviction replaces Pods: set onEviction to Replace or ReplaceWhenBlocked, or remove beforeEviction"
type Disruption struct {
	// OnEviction is what an eviction does to a Pod. Empty means Delete. A Pod that does not serve when it is first
	// evicted is deleted in any case, and so is one that cannot be replaced by another: with VolumeClaimTemplates, or
	// with names in persistent sequence. It needs webhook-server with graceful deletion.
	// +optional
	OnEviction EvictionPolicy `json:"onEviction,omitempty"`

	// MaxSurge is the maximum number of Pods under replacement at the same time, for any reason: evictions, updates, or
	// the label collaset.kusionstack.io/to-replace. It is a number, or a percentage of Replicas, rounded up, and at
	// least 1. Nil means 25%. Updates keep to UpdateStrategy.MaxSurge as well.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^[1-9][0-9]*%$') && self.size() <= 6",message="must be at least 1, or a percentage such as 25%"
	// +optional
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`

	// BeforeEviction replaces Pods as soon as their node is about to be drained, so that a drain finds nothing to wait
	// for. A node is about to be drained if it is cordoned, or has a taint that keeps new Pods away, and one of these is
	// true: it has a taint of Karpenter (karpenter.sh/disrupted) or of cluster-autoscaler
	// (ToBeDeletedByClusterAutoscaler); it has a condition of Kubernetes 1.37 that announces it (DrainInProgress,
	// MaintenancePlanned, MaintenanceInProgress, GracefulNodeShutdownInProgress); or another Pod of the CollaSet has been
	// evicted from it.
	// +optional
	BeforeEviction bool `json:"beforeEviction,omitempty"`
}

// EvictionPolicy is what an eviction does to a Pod.
//
// +kubebuilder:validation:Enum="";Delete;Replace;ReplaceWhenBlocked
type EvictionPolicy string

const (
	// EvictionDelete deletes the Pod gracefully when its rules let it go. Another Pod is created after that.
	EvictionDelete EvictionPolicy = "Delete"
	// EvictionReplace creates another Pod first, and deletes the evicted one gracefully when the other is available.
	// Neither PodTransitionRules nor PodDisruptionBudgets that allow no disruption block it: the number of Pods in
	// service stays the same.
	EvictionReplace EvictionPolicy = "Replace"
	// EvictionReplaceWhenBlocked is Delete while PodTransitionRules and PodDisruptionBudgets let the Pod go, and Replace
	// as soon as they do not. If a quota has no room for another Pod, it is Delete.
	EvictionReplaceWhenBlocked EvictionPolicy = "ReplaceWhenBlocked"
)

// UpdateStrategy selects the Pods to update, and the method.
type UpdateStrategy struct {
	// RollingUpdate selects the Pods to update, by partition or by label.
	// +kubebuilder:default={byPartition: {}}
	// +optional
	RollingUpdate *RollingUpdateStrategy `json:"rollingUpdate,omitempty"`

	// PodUpdatePolicy is the method by which a Pod is updated. Empty means InPlaceIfPossible.
	// +kubebuilder:default=InPlaceIfPossible
	// +optional
	PodUpdatePolicy PodUpdatePolicy `json:"podUpgradePolicy,omitempty"`

	// OperationDelaySeconds is the delay, in seconds, between the permission to update a Pod and its update. Nil means
	// 0.
	// +kubebuilder:validation:Minimum=0
	// +optional
	OperationDelaySeconds *int32 `json:"operationDelaySeconds,omitempty"`

	// MaxSurge is the maximum number of Pods that may be under replacement by updates at the same time with
	// podUpgradePolicy Replace; each has an old and a new Pod meanwhile. It is a number, or a percentage of Replicas,
	// rounded up, and at least 1. Nil means 25%. Other policies create no surplus Pods.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^[1-9][0-9]*%$') && self.size() <= 6",message="must be at least 1, or a percentage such as 25%"
	// +optional
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`

	// FailurePolicy is the reaction to a rollout without progress for ProgressDeadlineSeconds (600 seconds if that is
	// nil). Empty means Report.
	// +optional
	FailurePolicy RolloutFailurePolicy `json:"failurePolicy,omitempty"`

	// FollowConfiguration updates Pods when ConfigMaps and Secrets that the template refers to change. Nil means that
	// their changes update no Pod. When it is removed, Pods stay as they are.
	// +optional
	FollowConfiguration *FollowConfiguration `json:"followConfiguration,omitempty"`
}

// FollowConfiguration selects the ConfigMaps and Secrets whose changes update Pods, among those that the template
// refers to: in volumes, projected volumes, env and envFrom.
type FollowConfiguration struct {
	// Kinds are the kinds of objects to follow. collaset-controller needs the permission to read them in the namespace.
	// +kubebuilder:validation:MinItems=1
	// +listType=set
	Kinds []ConfigurationKind `json:"kinds"`

	// Names restricts it to objects of these names. Empty means all that the template refers to.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Names []string `json:"names,omitempty"`
}

// ConfigurationKind is a kind of objects that configure containers.
//
// +kubebuilder:validation:Enum=ConfigMap;Secret
type ConfigurationKind string

const (
	// ConfigurationConfigMap is a ConfigMap.
	ConfigurationConfigMap ConfigurationKind = "ConfigMap"
	// ConfigurationSecret is a Secret.
	ConfigurationSecret ConfigurationKind = "Secret"
)

// RolloutFailurePolicy is the reaction to a rollout without progress.
//
// +kubebuilder:validation:Enum="";Report;Pause;Rollback
type RolloutFailurePolicy string

const (
	// RolloutFailureReport reports it in conditions and continues.
	RolloutFailureReport RolloutFailurePolicy = "Report"
	// RolloutFailurePause begins no more updates to that revision.
	RolloutFailurePause RolloutFailurePolicy = "Pause"
	// RolloutFailureRollback returns Pods to status.currentRevision, the revision before. Without one it acts as Pause.
	RolloutFailureRollback RolloutFailurePolicy = "Rollback"
)

// PodUpdatePolicy is the method by which a Pod is updated.
//
// +kubebuilder:validation:Enum="";Recreate;InPlaceIfPossible;InPlaceOnly;Replace
type PodUpdatePolicy string

const (
	// PodUpdateRecreate deletes the Pod and creates another one with the same instance ID.
	PodUpdateRecreate PodUpdatePolicy = "Recreate"
	// PodUpdateInPlaceIfPossible patches the Pod if Kubernetes allows the change on a running Pod, and re-creates it
	// otherwise.
	PodUpdateInPlaceIfPossible PodUpdatePolicy = "InPlaceIfPossible"
	// PodUpdateInPlaceOnly patches the Pod. If that is not possible, the Pod stays at its revision, with the reason in
	// status.
	PodUpdateInPlaceOnly PodUpdatePolicy = "InPlaceOnly"
	// PodUpdateReplace creates the new Pod first, with another instance ID, and deletes the old one when the new one is
	// available.
	PodUpdateReplace PodUpdatePolicy = "Replace"
)

// RollingUpdateStrategy selects the Pods to update, and how many at the same time. If both ByPartition and ByLabel are
// set, ByLabel applies. If neither is set, all Pods are updated.
type RollingUpdateStrategy struct {
	// ByPartition updates all Pods except the number given by Partition.
	// +optional
	ByPartition *ByPartition `json:"byPartition,omitempty"`

	// ByLabel updates the Pods with UpdateIncludedLabel.
	// +optional
	ByLabel *ByLabel `json:"byLabel,omitempty"`

	// MaxUnavailable is the maximum number of Pods that may be unavailable during updates, as in a Deployment: an
	// update takes a Pod out of service only while fewer Pods than that are unavailable, for any reason. It is a
	// number, or a percentage of Replicas, rounded down, and at least 1. Nil means 25%. PodTransitionRules apply in
	// addition. Pods that are not available may always be updated, and changes that restart no container take no Pod
	// out of service. 100% lets all Pods be updated at once.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^([1-9][0-9]?|100)%$')",message="must be at least 1, or a percentage from 1% to 100%"
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// ByPartition updates all Pods except the number given by Partition.
type ByPartition struct {
	// Partition is the number of Pods that stay at their old revision, or a percentage of Replicas, rounded up. Nil
	// means 0: all Pods are updated. It does not apply to a template that returns to status.currentRevision: all Pods
	// return to it. Programs built on the types of Kuperator v0.7 can read numbers only.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : self.matches('^([0-9]|[1-9][0-9]|100)%$')",message="must be greater than or equal to 0, or a percentage from 0% to 100%"
	// +optional
	Partition *intstr.IntOrString `json:"partition,omitempty"`
}

// ByLabel updates the Pods with UpdateIncludedLabel.
type ByLabel struct{}

// ScaleStrategy configures how Pods are added and removed, and names Pods to delete, exclude or include. A Pod may be
// named in one of the three lists only.
//
// +kubebuilder:validation:XValidation:rule="!has(self.podToExclude) || !has(self.podToInclude) || !self.podToExclude.exists(p, p in self.podToInclude)",fieldPath=".podToExclude",reason=FieldValueForbidden,message="spec.scaleStrategy.podToExclude and podToInclude have a Pod in common: keep it in one of them",messageExpression="'spec.scaleStrategy.podToExclude [' + self.podToExclude.join(', ') + '] and podToInclude [' + self.podToInclude.join(', ') + '] have a Pod in common: keep it in one of them'"
// +kubebuilder:validation:XValidation:rule="!has(self.podToDelete) || !has(self.podToInclude) || !self.podToDelete.exists(p, p in self.podToInclude)",fieldPath=".podToDelete",reason=FieldValueForbidden,message="spec.scaleStrategy.podToDelete and podToInclude have a Pod in common: keep it in one of them",messageExpression="'spec.scaleStrategy.podToDelete [' + self.podToDelete.join(', ') + '] and podToInclude [' + self.podToInclude.join(', ') + '] have a Pod in common: keep it in one of them'"
// +kubebuilder:validation:XValidation:rule="!has(self.podToDelete) || !has(self.podToExclude) || !self.podToDelete.exists(p, p in self.podToExclude)",fieldPath=".podToDelete",reason=FieldValueForbidden,message="spec.scaleStrategy.podToDelete and podToExclude have a Pod in common: keep it in one of them",messageExpression="'spec.scaleStrategy.podToDelete [' + self.podToDelete.join(', ') + '] and podToExclude [' + self.podToExclude.join(', ') + '] have a Pod in common: keep it in one of them'"
type ScaleStrategy struct {
	// Context is the name of the ResourceContext from which instance IDs are allocated. Empty means the name of the
	// CollaSet. It is immutable.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	// +optional
	Context string `json:"context,omitempty"`

	// PodToExclude are the names of Pods to orphan. Not allowed with PodNamingSuffixPolicy PersistentSequence.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +listType=atomic
	// +optional
	PodToExclude []string `json:"podToExclude,omitempty"`

	// PodToInclude are the names of Pods to adopt. Not allowed with PodNamingSuffixPolicy PersistentSequence.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +listType=atomic
	// +optional
	PodToInclude []string `json:"podToInclude,omitempty"`

	// PodToDelete are the names of Pods to delete through the Pod lifecycle. They are re-created with the same instance
	// ID unless Replicas is reduced as well.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +listType=atomic
	// +optional
	PodToDelete []string `json:"podToDelete,omitempty"`

	// PersistentVolumeClaimRetentionPolicy configures when claims of VolumeClaimTemplates are deleted. Nil means never:
	// data is deleted only where this field asks for it.
	// +optional
	PersistentVolumeClaimRetentionPolicy *PersistentVolumeClaimRetentionPolicy `json:"persistentVolumeClaimRetentionPolicy,omitempty"`

	// OperationDelaySeconds is the delay, in seconds, between the permission to scale in a Pod and its deletion. Nil
	// means 0.
	// +kubebuilder:validation:Minimum=0
	// +optional
	OperationDelaySeconds *int32 `json:"operationDelaySeconds,omitempty"`
}

// PersistentVolumeClaimRetentionPolicy configures when claims of VolumeClaimTemplates are deleted.
type PersistentVolumeClaimRetentionPolicy struct {
	// WhenDeleted applies when the CollaSet is deleted. Empty means Retain.
	// +optional
	WhenDeleted PersistentVolumeClaimRetentionPolicyType `json:"whenDeleted,omitempty"`

	// WhenScaled applies when the instance ID of the claim is given up, because its Pod was scaled in, or was replaced
	// by a Pod with another ID. Empty means Retain: the claim is used again with its ID.
	// +optional
	WhenScaled PersistentVolumeClaimRetentionPolicyType `json:"whenScaled,omitempty"`

	// WhenTemplateChanged applies when the claim template changes in more than size, labels and annotations. Delete
	// re-creates the Pod with an empty claim of the new template and deletes the old claim. Retain keeps the claim as
	// it is; only new instance IDs get a claim of the new template. Empty means Retain. A larger storage request
	// expands the claim, and a smaller one has no effect, whatever this field is.
	// +optional
	WhenTemplateChanged PersistentVolumeClaimRetentionPolicyType `json:"whenTemplateChanged,omitempty"`
}

// PersistentVolumeClaimRetentionPolicyType is what happens to a claim.
//
// +kubebuilder:validation:Enum="";Delete;Retain
type PersistentVolumeClaimRetentionPolicyType string

const (
	// RetainPersistentVolumeClaim keeps the claim.
	RetainPersistentVolumeClaim PersistentVolumeClaimRetentionPolicyType = "Retain"
	// DeletePersistentVolumeClaim deletes the claim.
	DeletePersistentVolumeClaim PersistentVolumeClaimRetentionPolicyType = "Delete"
)

// NamingStrategy configures the names of Pods.
type NamingStrategy struct {
	// PodNamingSuffixPolicy is the kind of suffix in a Pod's name, which follows the CollaSet's name and a dash. Empty
	// means Random.
	// +kubebuilder:default=Random
	// +optional
	PodNamingSuffixPolicy PodNamingSuffixPolicy `json:"podNamingSuffixPolicy,omitempty"`
}

// PodNamingSuffixPolicy is the kind of suffix in a Pod's name, which follows the CollaSet's name and a dash.
//
// +kubebuilder:validation:Enum="";PersistentSequence;Random
type PodNamingSuffixPolicy string

const (
	// PodNamingSuffixRandom is a random suffix from the API server.
	PodNamingSuffixRandom PodNamingSuffixPolicy = "Random"
	// PodNamingSuffixPersistentSequence is the instance ID as the suffix. The Pod's name is its hostname as well.
	PodNamingSuffixPersistentSequence PodNamingSuffixPolicy = "PersistentSequence"
)

// CollaSetStatus is the observed state of a CollaSet. Counters are numbers of Pods.
type CollaSetStatus struct {
	// ObservedGeneration is the generation of the spec to which this status refers. It is set even if the last attempt
	// to reconcile that spec failed.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// CurrentRevision is the name of the ControllerRevision from which Pods are updated. It becomes UpdatedRevision
	// when every Pod is updated and Ready, or available if MinReadySeconds is set. It never becomes a revision that is
	// halted.
	// +optional
	CurrentRevision string `json:"currentRevision,omitempty"`

	// UpdatedRevision is the name of the ControllerRevision of the current template.
	// +optional
	UpdatedRevision string `json:"updatedRevision,omitempty"`

	// CollisionCount is how often the name of a new ControllerRevision was in use with other content. Nil means 0.
	// +optional
	CollisionCount *int32 `json:"collisionCount,omitempty"`

	// ScheduledReplicas is the number of Pods with a node.
	// +kubebuilder:default=0
	// +optional
	ScheduledReplicas int32 `json:"scheduledReplicas,omitempty"`

	// Readiness is ReadyReplicas and spec.replicas as one text, such as "2/3", for the column READY of kubectl.
	// +optional
	Readiness string `json:"readiness,omitempty"`

	// ReadyReplicas is the number of Ready Pods.
	// +kubebuilder:default=0
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`

	// AvailableReplicas is the number of Pods that are in service, and have been Ready for MinReadySeconds.
	// +kubebuilder:default=0
	// +optional
	AvailableReplicas int32 `json:"availableReplicas,omitempty"`

	// Replicas is the number of Pods of the CollaSet.
	// +kubebuilder:default=0
	// +optional
	Replicas int32 `json:"replicas,omitempty"`

	// UpdatedReplicas is the number of Pods at UpdatedRevision.
	// +kubebuilder:default=0
	// +optional
	UpdatedReplicas int32 `json:"updatedReplicas,omitempty"`

	// OperatingReplicas is the number of Pods in an update or scale-in of this CollaSet that is not finished.
	// +kubebuilder:default=0
	// +optional
	OperatingReplicas int32 `json:"operatingReplicas,omitempty"`

	// TerminatingReplicas is the number of terminating Pods.
	// +kubebuilder:default=0
	// +optional
	TerminatingReplicas int32 `json:"terminatingReplicas,omitempty"`

	// UpdatedReadyReplicas is the number of Ready Pods at UpdatedRevision.
	// +kubebuilder:default=0
	// +optional
	UpdatedReadyReplicas int32 `json:"updatedReadyReplicas,omitempty"`

	// UpdatedAvailableReplicas is the number of available Pods at UpdatedRevision.
	// +kubebuilder:default=0
	// +optional
	UpdatedAvailableReplicas int32 `json:"updatedAvailableReplicas,omitempty"`

	// Selector is spec.selector as a string, for the scale subresource, and so for autoscalers.
	// +optional
	Selector string `json:"selector,omitempty"`

	// LastProgressTime is the time of the last progress towards the spec, from which ProgressDeadlineSeconds is
	// counted. Nil means that it was never measured: there has been nothing to do since, or there is no deadline.
	// +optional
	LastProgressTime *metav1.Time `json:"lastProgressTime,omitempty"`

	// Halted is the rollout that FailurePolicy stopped. Nil means none.
	// +optional
	Halted *HaltedRollout `json:"halted,omitempty"`

	// NextUpdate is how a Pod gets from CurrentRevision to UpdatedRevision. Nil if they are equal.
	// +optional
	NextUpdate *UpdateForecast `json:"nextUpdate,omitempty"`

	// Conditions are of the types CollaSetReady, CollaSetReconciling, CollaSetStalled, CollaSetProgressing,
	// CollaSetScale, CollaSetUpdate and CollaSetTerminating.
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`

	// Blockers are what keeps Pods from their desired state, sorted by the number of Pods, the largest first.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Blockers []Blocker `json:"blockers,omitempty"`

	// Configuration has the ConfigMaps and Secrets that are followed (spec.updateStrategy.followConfiguration), sorted by
	// kind and name. An object whose hash is not its initialHash is part of the updated revision.
	// +listType=map
	// +listMapKey=kind
	// +listMapKey=name
	// +optional
	Configuration []ConfigurationStatus `json:"configuration,omitempty"`
}

// ConfigurationStatus is a ConfigMap or Secret that is followed.
type ConfigurationStatus struct {
	// Kind is the kind of the object.
	Kind ConfigurationKind `json:"kind"`

	// Name is the name of the object.
	Name string `json:"name"`

	// InitialHash is the hash of its content when it was first read. Pods that were there then are current with it. Empty
	// means that it has not been read yet.
	// +optional
	InitialHash string `json:"initialHash,omitempty"`

	// Hash is the hash of its content when it was last read. It stays while the object does not exist or cannot be read.
	// +optional
	Hash string `json:"hash,omitempty"`

	// Message is why it cannot be read now. Empty if it can.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
}

// HaltedRollout is a rollout that FailurePolicy stopped. It ends when the template changes, when FailurePolicy becomes
// Report or empty, or when ProgressDeadlineSeconds becomes 2147483647.
type HaltedRollout struct {
	// Revision is the revision to which no more Pods are updated.
	// +kubebuilder:validation:MaxLength=253
	Revision string `json:"revision"`

	// RollbackTo is the revision to which Pods return. Empty means that they stay at their revision.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	RollbackTo string `json:"rollbackTo,omitempty"`

	// Since is when the rollout was stopped.
	Since metav1.Time `json:"since"`
}

// UpdateForecast is how a Pod gets from one revision to another.
type UpdateForecast struct {
	// InPlace is whether the change can be applied to a running Pod.
	InPlace bool `json:"inPlace"`

	// Fields are the fields, below spec, whose change requires that the Pod is re-created. Empty if InPlace is true.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=atomic
	// +optional
	Fields []string `json:"fields,omitempty"`
}

// Blocker is one reason that keeps Pods from their desired state.
type Blocker struct {
	// Reason is a machine-readable reason in CamelCase.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Reason string `json:"reason"`

	// Message is the human-readable explanation: an example of what is wrong, and the remedy.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`

	// Count is the number of Pods to which the reason applies.
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
