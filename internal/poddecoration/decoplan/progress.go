package decoplan

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// halted is what is still halted of what status says: nothing once the template is another one, or the failure policy
// halts nothing any more.
func halted(of *Decoration) *appsv1alpha1.HaltedRollout {
	h := of.Status.Halted
	if h == nil || h.Revision != of.Updated || !halts(of) {
		return nil
	}
	next := *h
	if of.Spec.UpdateStrategy.FailurePolicy != appsv1alpha1.RolloutFailureRollback {
		next.RollbackTo = ""
	} else if next.RollbackTo == "" && of.Status.CurrentRevision != of.Updated {
		next.RollbackTo = of.Status.CurrentRevision
	}
	return &next
}

// halts reports whether the failure policy stops a rollout that fails.
func halts(of *Decoration) bool {
	policy := of.Spec.UpdateStrategy.FailurePolicy
	return deadline(of) > 0 &&
		(policy == appsv1alpha1.RolloutFailurePause || policy == appsv1alpha1.RolloutFailureRollback)
}

// deadline is the longest time without progress, 0 for no bound.
func deadline(of *Decoration) time.Duration {
	seconds := ptr.Deref(of.Spec.ProgressDeadlineSeconds, appsv1alpha1.DefaultProgressDeadlineSeconds)
	if seconds == appsv1alpha1.NoProgressDeadlineSeconds {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// progress is how a rollout fares.
type progress struct {
	// waiting are Pods that are to have the target and do not serve with it; failing are those of them that have it.
	waiting, failing int
	// exceeded is whether nothing got better for longer than the deadline.
	exceeded bool
}

// moveClock moves the clock in the status to be, and halts what fails.
func (d *decision) moveClock(of *deciding, p progress) progress {
	before, next := &of.Status, &of.next
	next.Halted = of.halted
	limit := deadline(of.Decoration)
	if limit == 0 || of.Deleting {
		return p
	}
	isRunning := p.waiting > 0 && of.problem == "" && of.halted == nil && !of.Spec.UpdateStrategy.Paused
	isBetter := before.ObservedGeneration != of.Generation || before.UpdatedRevision != next.UpdatedRevision ||
		next.UpdatedPods > before.UpdatedPods || next.UpdatedAvailablePods > before.UpdatedAvailablePods ||
		p.failing > 0 && before.UpdatedPods == before.UpdatedAvailablePods || // it began to fail now
		!wasRunning(before)
	if isRunning && (before.LastProgressTime == nil || isBetter) {
		next.LastProgressTime = ptr.To(stamp(d.Now))
	}
	if !isRunning {
		return p
	}
	left := limit - d.Now.Sub(next.LastProgressTime.Time)
	p.exceeded = left <= 0
	d.look(left)
	// Pods that a rule or another rollout holds back are no fault of the template.
	if p.exceeded && p.failing > 0 && halts(of.Decoration) && of.Updated != before.CurrentRevision {
		next.Halted = &appsv1alpha1.HaltedRollout{Revision: of.Updated, Since: stamp(d.Now)}
		if of.Spec.UpdateStrategy.FailurePolicy == appsv1alpha1.RolloutFailureRollback {
			next.Halted.RollbackTo = before.CurrentRevision
		}
		d.look(time.Millisecond)
	}
	return p
}

// wasRunning reports whether a status is of a rollout that was under way: the clock runs from its begin.
func wasRunning(s *appsv1alpha1.PodDecorationStatus) bool {
	for _, c := range s.Conditions {
		if c.Type == appsv1alpha1.PodDecorationProgressing {
			return c.Reason != string(appsv1alpha1.ReasonRolloutComplete) && c.Reason != string(appsv1alpha1.ReasonPaused)
		}
	}
	return false
}

// stamp is a time as objects store it.
func stamp(t time.Time) metav1.Time { return metav1.NewTime(t).Rfc3339Copy() }
