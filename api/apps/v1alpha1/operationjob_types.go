package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// OperationJob does one thing to a list of Pods, gracefully: it replaces, restarts, re-creates or evicts them, or has
// the owner of another action do it. PodTransitionRules bound it as any other operation.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=operationjobs,singular=operationjob,shortName=opj,categories=kuperator,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="ACTION",type=string,priority=1,JSONPath=`.spec.action`,description="What is done to the Pods."
// +kubebuilder:printcolumn:name="PROGRESS",type=string,JSONPath=`.status.progress`,description="How far the job is."
// +kubebuilder:printcolumn:name="TOTAL",type=integer,priority=1,JSONPath=`.status.totalPodCount`,description="The number of targets."
// +kubebuilder:printcolumn:name="SUCCEEDED",type=integer,priority=1,JSONPath=`.status.succeededPodCount`,description="The number of targets that succeeded."
// +kubebuilder:printcolumn:name="FAILED",type=integer,priority=1,JSONPath=`.status.failedPodCount`,description="The number of targets that failed."
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="has(self.spec)",message="spec is missing: give it an action and targets"
// +kubebuilder:validation:XValidation:rule="!(self.metadata.name in ['collaset', 'poddecoration', 'pod-delete'])",message="this name is the ID of other operations: choose another one"
type OperationJob struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what to do, and to which Pods.
	// +optional
	Spec OperationJobSpec `json:"spec,omitempty"`

	// Status is how far the job is. Only operationjob-controller writes it.
	// Before that its observedGeneration is -1: kstatus takes an object without it for one that is ready.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status OperationJobStatus `json:"status,omitempty"`
}

// OperationJobSpec is what to do, and to which Pods. The action and the Pods cannot be changed, the rest can.
//
// +kubebuilder:validation:XValidation:rule="has(self.action)",message="action is required: set Replace, Restart, Recreate, Evict, or an action of a program of yours, such as example.com/warm-cache"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.action) || (has(self.action) && self.action == oldSelf.action)",message="action cannot be changed: create another OperationJob"
// +kubebuilder:validation:XValidation:rule="(has(self.targets) && size(self.targets) > 0) != has(self.targetSelector)",message="set either targets or targetSelector"
// +kubebuilder:validation:XValidation:rule="has(self.targets) == has(oldSelf.targets) && (!has(self.targets) || self.targets == oldSelf.targets)",message="targets cannot be changed: create another OperationJob"
// +kubebuilder:validation:XValidation:rule="has(self.targetSelector) == has(oldSelf.targetSelector) && (!has(self.targetSelector) || self.targetSelector == oldSelf.targetSelector)",message="targetSelector cannot be changed: create another OperationJob"
// +kubebuilder:validation:XValidation:rule="!has(self.partition) || (has(oldSelf.partition) && self.partition >= oldSelf.partition)",message="partition cannot be lowered, because targets that have started cannot be taken back; without a partition it is all targets"
type OperationJobSpec struct {
	// Action is what to do to each target: Replace, Restart, Recreate, Evict, or an action of another program, whose
	// name has a domain, such as example.com/warm-cache. Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	// +optional
	Action OperationAction `json:"action,omitempty"`

	// Targets are Pods of the job's namespace. They start in this order. At most 2000.
	// +kubebuilder:validation:MaxItems=2000
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	// +optional
	Targets []PodOpsTarget `json:"targets,omitempty" patchStrategy:"merge" patchMergeKey:"name"`

	// TargetSelector selects the Pods instead. It is resolved once, when the job starts, and the Pods are recorded in
	// status.targetDetails. Not in Kuperator v0.7.
	// +optional
	TargetSelector *OperationTargetSelector `json:"targetSelector,omitempty"`

	// Partition is the number of targets, from the front of the list, that may start. It is the opposite of a CollaSet's
	// partition, which counts Pods that stay. It can be raised or removed, not lowered. Nil means all.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Partition *int32 `json:"partition,omitempty"`

	// Parallelism is how many targets may be under way at the same time: a number, or a percentage of all targets,
	// rounded up. Nil means all. PodTransitionRules apply in addition. Not in Kuperator v0.7.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^([1-9][0-9]?|100)%$')",message="must be at least 1, or a percentage from 1% to 100%"
	// +optional
	Parallelism *intstr.IntOrString `json:"parallelism,omitempty"`

	// FailurePolicy defines when failed targets stop the job. Nil means never. Not in Kuperator v0.7.
	// +optional
	FailurePolicy *OperationFailurePolicy `json:"failurePolicy,omitempty"`

	// OperationDelaySeconds is how long to wait, in seconds, after permission to operate on a target was given. Nil means
	// 0. Replace, Recreate and Evict ignore it.
	// +kubebuilder:validation:Minimum=0
	// +optional
	OperationDelaySeconds *int32 `json:"operationDelaySeconds,omitempty"`

	// ActiveDeadlineSeconds is how long a target may take from its own start, in seconds. After that it has failed, and
	// what the job asked for is taken back. Nil means 10800.
	// +kubebuilder:validation:Minimum=1
	// +optional
	ActiveDeadlineSeconds *int32 `json:"activeDeadlineSeconds,omitempty"`

	// TTLSecondsAfterFinished is how long the job exists after it has ended, in seconds. Nil means 1800.
	// +kubebuilder:validation:Minimum=1
	// +optional
	TTLSecondsAfterFinished *int32 `json:"TTLSecondsAfterFinished,omitempty"`

	// Restart configures the action Restart. Not in Kuperator v0.7.
	// +optional
	Restart *RestartAction `json:"restart,omitempty"`
}

// OperationAction is what is done to Pods.
type OperationAction string

// Actions that are built in.
const (
	// OpsActionReplace has the CollaSet of the Pod create another one first.
	OpsActionReplace OperationAction = "Replace"
	// OpsActionRestart restarts containers in place: the Pod keeps its name, UID and IP.
	OpsActionRestart OperationAction = "Restart"
	// OpsActionRecreate deletes the Pod, and waits for the one with its instance ID. Not in Kuperator v0.7.
	OpsActionRecreate OperationAction = "Recreate"
	// OpsActionEvict evicts the Pod. Not in Kuperator v0.7.
	OpsActionEvict OperationAction = "Evict"
)

// PodOpsTarget is a Pod to operate on.
type PodOpsTarget struct {
	// Name is the name of the Pod. Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`

	// Containers are the containers to operate on, native sidecars too. Empty means all regular containers. Built-in
	// actions other than Restart ignore it.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Containers []string `json:"containers,omitempty"`
}

// OperationTargetSelector selects the Pods to operate on, in the order of their names. Both selectors apply if both are
// set.
//
// +kubebuilder:validation:XValidation:rule="has(self.workload) || has(self.labelSelector)",message="targetSelector needs workload or labelSelector"
type OperationTargetSelector struct {
	// Workload selects the Pods that are controlled by a workload. Nil means Pods of any.
	// +optional
	Workload *WorkloadReference `json:"workload,omitempty"`

	// LabelSelector selects Pods by their labels. An empty one ({}) selects every Pod. Nil means any labels.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`

	// Containers are the containers of each Pod to operate on, as in PodOpsTarget.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Containers []string `json:"containers,omitempty"`
}

// WorkloadReference names a workload in the job's namespace. Its API group is not compared.
type WorkloadReference struct {
	// Kind is the kind of the workload, such as CollaSet, Deployment or StatefulSet. Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`

	// Name is the name of the workload. Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// OperationFailurePolicy defines when failed targets stop the job.
type OperationFailurePolicy struct {
	// MaxFailedTargets is how many targets may fail: after one more, no other target starts, and those that have not
	// started fail when those under way have ended. Nil means any number.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxFailedTargets *int32 `json:"maxFailedTargets,omitempty"`
}

// RestartAction configures the action Restart.
type RestartAction struct {
	// Fallback is what happens to a Pod one of whose containers cannot be restarted in place, because its image
	// cannot be named differently on the node: Recreate, or Fail. Empty means Recreate.
	// +optional
	Fallback RestartFallback `json:"fallback,omitempty"`
}

// RestartFallback is what happens to a Pod that cannot be restarted in place.
//
// +kubebuilder:validation:Enum=Recreate;Fail
type RestartFallback string

const (
	// RestartFallbackRecreate does to it what the action Recreate does.
	RestartFallbackRecreate RestartFallback = "Recreate"
	// RestartFallbackFail fails the target.
	RestartFallbackFail RestartFallback = "Fail"
)

// OperationJobStatus is how far a job is.
type OperationJobStatus struct {
	// ObservedGeneration is the generation of the spec that this status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Progress is Pending until the first target starts, then Processing, and in the end Succeeded if all targets
	// succeeded, else Failed. The last two are final.
	// +optional
	Progress OperationProgress `json:"progress,omitempty"`

	// StartTime is when the targets were recorded.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// EndTime is when the last target ended.
	// +optional
	EndTime *metav1.Time `json:"endTime,omitempty"`

	// TotalPodCount is the number of targets.
	// +kubebuilder:default=0
	// +optional
	TotalPodCount int32 `json:"totalPodCount,omitempty"`

	// SucceededPodCount is the number of targets that succeeded.
	// +kubebuilder:default=0
	// +optional
	SucceededPodCount int32 `json:"succeededPodCount,omitempty"`

	// FailedPodCount is the number of targets that failed.
	// +kubebuilder:default=0
	// +optional
	FailedPodCount int32 `json:"failedPodCount,omitempty"`

	// TargetDetails is one entry for each target, in the order of spec.targets, or of Pod names with a
	// targetSelector. The list is atomic, because field ownership of single entries would be larger than the entries themselves.
	// +listType=atomic
	// +optional
	TargetDetails []OpsStatus `json:"targetDetails,omitempty"`

	// Conditions are Ready, Reconciling and Stalled. Not in Kuperator v0.7.
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// OperationProgress is how far a job or one of its targets is.
type OperationProgress string

const (
	// OperationProgressPending: it has not started.
	OperationProgressPending OperationProgress = "Pending"
	// OperationProgressProcessing: it is under way.
	OperationProgressProcessing OperationProgress = "Processing"
	// OperationProgressFailed: it has ended, and what was asked for was not done, or not to all targets.
	OperationProgressFailed OperationProgress = "Failed"
	// OperationProgressSucceeded: it has ended, and what was asked for was done.
	OperationProgressSucceeded OperationProgress = "Succeeded"
)

// OpsStatus is how far a target is.
type OpsStatus struct {
	// Name is the name of the Pod.
	// +optional
	Name string `json:"name,omitempty"`

	// Progress is how far the target is.
	// +optional
	Progress OperationProgress `json:"progress,omitempty"`

	// StartTime is when the target started.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// EndTime is when it ended. Nothing of the job is left on its Pod then.
	// +optional
	EndTime *metav1.Time `json:"endTime,omitempty"`

	// ExtraInfo says more, under the keys NewPod, Released, NotAllowedToReplaceNewPod, Waiting and Recreated. Nil means
	// none.
	// +optional
	ExtraInfo map[OpsExtraInfoKey]string `json:"extraInfo,omitempty"`

	// Error is why the target fails or failed.
	// +optional
	Error *OpsError `json:"error,omitempty"`

	// Operation is what operationjob-controller remembers of a target that has started and has not ended. Not in
	// Kuperator v0.7.
	// +optional
	Operation *TargetOperation `json:"operation,omitempty"`
}

// OpsError is why a target fails.
type OpsError struct {
	// Reason is a word for it, in CamelCase.
	// +optional
	Reason OpsReason `json:"reason,omitempty"`

	// Message says what happened and what to change.
	// +optional
	Message string `json:"message,omitempty"`
}

// TargetOperation is what operationjob-controller remembers of a target that has started and has not ended.
type TargetOperation struct {
	// Stage is how far it is.
	// +optional
	Stage OpsStage `json:"stage,omitempty"`

	// PodUID is the UID of the Pod that had the target's name when the target started; "" if there was none.
	// +optional
	PodUID types.UID `json:"podUID,omitempty"`

	// CollaSet is the UID of the CollaSet that the Pod belongs to, and InstanceID the instance ID at which the Pod is
	// that takes its place. Both are "" if none is awaited.
	// +optional
	CollaSet types.UID `json:"collaSet,omitempty"`
	// +optional
	InstanceID string `json:"instanceID,omitempty"`

	// Recreates is whether a Pod that should have been restarted in place is re-created.
	// +optional
	Recreates bool `json:"recreates,omitempty"`
}

// OpsStage is how far a target is that has started and has not ended. Each is stored before the evidence of it may go.
type OpsStage string

const (
	// OpsStageStarted: the Pod may be written to.
	OpsStageStarted OpsStage = "Started"
	// OpsStageAsked: the Pod was seen to carry what the job asks for. If that is gone, it was cancelled.
	OpsStageAsked OpsStage = "Asked"
	// OpsStageOperated: the action was carried out, and service has to be back.
	OpsStageOperated OpsStage = "Operated"
	// OpsStageReleasing: the target fails, and what the job has left on its Pod is taken away.
	OpsStageReleasing OpsStage = "Releasing"
)

// OpsReason is why a target fails.
type OpsReason string

// Reasons of OpsError.
const (
	// ReasonPodNotFound: there is no such Pod, or there was none any more.
	ReasonPodNotFound OpsReason = "PodNotFound"
	// ReasonContainerNotFound: the Pod has no such container.
	ReasonContainerNotFound OpsReason = "ContainerNotFound"
	// ReasonUpdateObjectFailed: the API server refuses a write to a Pod that is out of service for it, or the operation's
	// ID is not valid.
	ReasonUpdateObjectFailed OpsReason = "UpdateObjectFailed"
	// ReasonGetObjectFailed is set by Kuperator v0.7 only.
	ReasonGetObjectFailed OpsReason = "GetObjectFailed"
	// ReasonNotSupported: the action cannot be done to this Pod. Not in Kuperator v0.7, as those below.
	ReasonNotSupported OpsReason = "NotSupported"
	// ReasonUnknownAction: the action is not built in, and has no domain.
	ReasonUnknownAction OpsReason = "UnknownAction"
	// ReasonDeadlineExceeded: the target took longer than spec.activeDeadlineSeconds.
	ReasonDeadlineExceeded OpsReason = "DeadlineExceeded"
	// ReasonCancelled: the mark or the operation was removed from the Pod before it finished.
	ReasonCancelled OpsReason = "Cancelled"
	// ReasonActionFailed: the owner of the action says that it failed.
	ReasonActionFailed OpsReason = "ActionFailed"
	// ReasonNotStarted: spec.failurePolicy stopped the job before this target.
	ReasonNotStarted OpsReason = "NotStarted"
)

// OpsExtraInfoKey is a key of OpsStatus.ExtraInfo.
type OpsExtraInfoKey string

// Keys of OpsStatus.ExtraInfo.
const (
	// ExtraInfoNewPod is the name of the Pod that takes the place of the target.
	ExtraInfoNewPod OpsExtraInfoKey = "NewPod"
	// ExtraInfoReleased is "true" for a target that failed after it had started: its Pod carries nothing of the job any
	// more.
	ExtraInfoReleased OpsExtraInfoKey = "Released"
	// ExtraInfoNotAllowedToReplaceNewPod says that the target takes the place of another Pod, and is replaced after that.
	ExtraInfoNotAllowedToReplaceNewPod OpsExtraInfoKey = "NotAllowedToReplaceNewPod"
	// ExtraInfoWaiting says what a target waits for that is under way for a while. Not in Kuperator v0.7, as those below.
	ExtraInfoWaiting OpsExtraInfoKey = "Waiting"
	// ExtraInfoRecreated says why a Pod is re-created that should have been restarted in place.
	ExtraInfoRecreated OpsExtraInfoKey = "Recreated"
)

// OperationJobList is a list of OperationJobs.
//
// +kubebuilder:object:root=true
type OperationJobList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OperationJob `json:"items"`
}
