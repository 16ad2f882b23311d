package decoplan

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Spec is what a PodDecoration asks for, without its template.
type Spec struct {
	// Selector matches the Pods, of any workload. Nil means none.
	Selector *metav1.LabelSelector

	// Weight is the order among PodDecorations of one Pod: by ascending weight, and by name where that is equal. Nil means
	// 0.
	Weight *int32

	// UpdateStrategy selects the Pods that get a new template, and how they get it.
	UpdateStrategy UpdateStrategy

	// DisablePodDetail leaves the Pods out of status.details.
	DisablePodDetail bool

	// ProgressDeadlineSeconds is the maximum time, in seconds, without progress before the condition Progressing becomes
	// False and UpdateStrategy.FailurePolicy applies. Time while paused does not count. Nil means 600. 2147483647 means
	// no deadline. Not in Kuperator v0.7.
	ProgressDeadlineSeconds *int32
}

// Types of conditions.
const (
	// Ready is True when every Pod that is to have the template serves with it.
	Ready = "Ready"
	// Reconciling is True while Pods are brought to it.
	Reconciling = "Reconciling"
	// Stalled is True when that does not go on until a user changes something; the message names it.
	Stalled = "Stalled"
	// Progressing is the state of the current rollout: True while Pods are updated or when it is complete, False when it
	// is paused or has stopped.
	Progressing = "Progressing"
)

// UpdateStrategy selects the Pods that get a new template, and how they get it.
type UpdateStrategy struct {
	// RollingUpdate selects the Pods. Nil means all.
	RollingUpdate *RollingUpdate

	// Paused has no more Pods get the new template. Updates that have begun are finished. Not in Kuperator v0.7.
	Paused bool

	// PodUpdatePolicy is how Pods that no CollaSet owns get the template: InPlaceOnly, or InPlaceIfPossible if it is empty.
	// Those of a CollaSet get it as the CollaSet says. Not in Kuperator v0.7.
	PodUpdatePolicy appsv1alpha1.PodUpdatePolicy

	// FailurePolicy is the reaction to a template with which Pods do not serve within ProgressDeadlineSeconds. Empty means
	// Report. Not in Kuperator v0.7.
	FailurePolicy appsv1alpha1.RolloutFailurePolicy
}

// RollingUpdate selects the Pods that get a new template. If both Partition and Selector are set, Selector
// applies.
type RollingUpdate struct {
	// Partition is the number of Pods that keep what they have. New Pods get status.currentRevision meanwhile. Nil means
	// that none do.
	Partition *int32

	// Selector matches the Pods that get the new template. Nil means all but those of Partition.
	Selector *metav1.LabelSelector

	// MaxUnavailable is the maximum number of Pods, of those that no CollaSet owns, that may be unavailable when an update
	// takes another one out of service: a number, or a percentage of them, rounded down, and at least 1. Nil means 25%.
	// PodTransitionRules apply in addition. Not in Kuperator v0.7.
	MaxUnavailable *intstr.IntOrString
}

// Status is how far the Pods are. Pods that are terminating or have ended do not count.
type Status struct {
	// ObservedGeneration is the generation of the spec to which this status refers.
	ObservedGeneration int64

	// CurrentRevision is the name of the ControllerRevision of Pods that do not have to get UpdatedRevision yet. Empty means
	// that they get none. It becomes UpdatedRevision when every Pod has that and serves. It never becomes
	// a revision that is halted.
	CurrentRevision string

	// UpdatedRevision is the name of the ControllerRevision of the current template.
	UpdatedRevision string

	// CollisionCount is how often the name of a new ControllerRevision was in use with other content. Nil means 0.
	CollisionCount *int32

	// MatchedPods is the number of Pods that spec.selector matches.
	MatchedPods int32

	// InjectedPods is the number of these that have some revision.
	InjectedPods int32

	// UpdatedPods is the number of these that have UpdatedRevision.
	UpdatedPods int32

	// UpdatedReadyPods is the number of these that have UpdatedRevision and are Ready.
	UpdatedReadyPods int32

	// UpdatedAvailablePods is the number of these that have UpdatedRevision and are in service.
	UpdatedAvailablePods int32

	// Details are the Pods by the workload that controls them, sorted. What is too much for this list is left out, the
	// counts are of all.
	Details []WorkloadDetail

	// LastProgressTime is the time of the last progress, from which ProgressDeadlineSeconds is counted. Nil means that it
	// was never measured.
	LastProgressTime *metav1.Time

	// Halted is the rollout that FailurePolicy stopped. Nil means none.
	Halted *appsv1alpha1.HaltedRollout

	// Trial is the Pod that was last deleted because it was created without the decoration. No other Pod is deleted for
	// that until a newer one has the decoration. Nil means none.
	Trial *Trial

	// NextUpdate is how a Pod gets from CurrentRevision to UpdatedRevision. Nil if they are equal.
	NextUpdate *appsv1alpha1.UpdateForecast

	// Conditions are of the types Ready, Reconciling, Stalled and Progressing.
	Conditions []metav1.Condition

	// Blockers are what keeps Pods from what they are to have, sorted by the number of Pods, the largest first.
	Blockers []appsv1alpha1.Blocker
}

// Trial is a Pod that was deleted to see whether the next one is decorated.
type Trial struct {
	// Time is when that was decided.
	Time metav1.Time

	// PodName and PodUID are of the Pod.
	PodName string
	PodUID  types.UID
}

// WorkloadDetail is the Pods of one workload.
type WorkloadDetail struct {
	// CollaSet is the name of the CollaSet. Empty for the Pods of others.
	CollaSet string

	// Workload is the kind and name of another controller, such as ReplicaSet/web-5d9f. Empty for a CollaSet, and for
	// Pods without a controller. Not in Kuperator v0.7.
	Workload string

	// AffectedReplicas is the number of its Pods.
	AffectedReplicas int32

	// Pods are its Pods, sorted by name.
	Pods []PodInfo
}

// PodInfo is one Pod.
type PodInfo struct {
	// Name is the name of the Pod.
	Name string

	// Revision is the revision that it has. Empty means none.
	Revision string

	// Escaped is whether it has none although it is to have one.
	Escaped bool
}
