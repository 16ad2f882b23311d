package jobplan

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// conclude counts targets, and plans the status if it is another one than is stored.
func (d *decision) conclude() {
	s := &d.status
	s.ObservedGeneration = d.Job.Generation
	s.TotalPodCount, s.SucceededPodCount, s.FailedPodCount = int32(len(s.TargetDetails)), 0, 0 //nolint:gosec // MaxTargets
	started := false
	for i := range s.TargetDetails {
		switch s.TargetDetails[i].Progress {
		case appsv1alpha1.OperationProgressSucceeded:
			s.SucceededPodCount++
		case appsv1alpha1.OperationProgressFailed:
			s.FailedPodCount++
		case appsv1alpha1.OperationProgressPending, appsv1alpha1.OperationProgressProcessing:
		}
		started = started || s.TargetDetails[i].Progress != appsv1alpha1.OperationProgressPending
	}
	s.Progress = appsv1alpha1.OperationProgressPending
	if started {
		s.Progress = appsv1alpha1.OperationProgressProcessing
	}
	if s.StartTime != nil && s.SucceededPodCount+s.FailedPodCount == s.TotalPodCount {
		s.EndTime, s.Progress = ptr.To(metav1.NewTime(d.Now)), appsv1alpha1.OperationProgressSucceeded
		if s.FailedPodCount > 0 || s.TotalPodCount == 0 {
			s.Progress = appsv1alpha1.OperationProgressFailed
		}
	}
	d.conditions()
	if !equality.Semantic.DeepEqual(*s, d.Job.Status) {
		d.plan.Status = s
	}
}

// conditions are those that kstatus reads: Ready, Reconciling and Stalled.
func (d *decision) conditions() {
	s := &d.status
	reason, message := string(s.Progress), fmt.Sprintf("%d of %d targets succeeded, %d failed", s.SucceededPodCount,
		s.TotalPodCount, s.FailedPodCount)
	ready, reconciling, stalled := metav1.ConditionFalse, metav1.ConditionTrue, metav1.ConditionFalse
	switch {
	case s.Progress == appsv1alpha1.OperationProgressSucceeded:
		ready, reconciling = metav1.ConditionTrue, metav1.ConditionFalse
	case s.Progress == appsv1alpha1.OperationProgressFailed:
		reconciling, stalled = metav1.ConditionFalse, metav1.ConditionTrue
		switch {
		case len(d.Selected) > MaxTargets:
			reason, message = "TooManyTargets", fmt.Sprintf("spec.targetSelector selects %d Pods, at most %d are possible: "+
				"select fewer, and create an OperationJob for the others", len(d.Selected), MaxTargets)
		case d.Invalid != "":
			reason, message = "InvalidSelector", d.Invalid
		case s.TotalPodCount == 0:
			reason, message = "NoTargets", "spec.targetSelector selects no Pod of the namespace"
		default:
			reason = "TargetsFailed"
		}
	case actionOf(d.Job.Spec.Action) == nil:
		stalled, reconciling = metav1.ConditionTrue, metav1.ConditionFalse
		reason, message = string(appsv1alpha1.ReasonUnknownAction), d.unknownAction()
	case d.waitsForPartition():
		reconciling, reason = metav1.ConditionFalse, "Partition"
		message += fmt.Sprintf("; spec.partition is %d: raise it to start more targets", allowed(d.Job))
	}
	set := func(kind string, status metav1.ConditionStatus) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason,
			Message: message, ObservedGeneration: s.ObservedGeneration, LastTransitionTime: metav1.NewTime(d.Now)})
	}
	set(appsv1alpha1.OperationJobReady, ready)
	set(appsv1alpha1.OperationJobReconciling, reconciling)
	set(appsv1alpha1.OperationJobStalled, stalled)
}

// waitsForPartition reports whether all have ended that may start.
func (d *decision) waitsForPartition() bool {
	ended := int(d.status.SucceededPodCount + d.status.FailedPodCount)
	return ended < len(d.status.TargetDetails) && ended >= allowed(d.Job) && d.Job.Status.StartTime != nil
}
