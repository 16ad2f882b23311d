// Package core decides the one write that lifecycle-controller owes a Pod.
//
// It adds to podops.Advance, which moves the phases:
//
//   - the reading of the rules' ledger, and the freeze, which withholds every
//     verdict of PreCheck;
//   - graceful deletion: a Pod marked to-delete gets an operation of its own (ID
//     "pod-delete"), passes the rules and its cooperators like any other, and is
//     deleted when the protocol allows it; taking the mark away cancels;
//   - deadlines: a phase that takes too long is reported, and, by policy, the
//     operation is undone or goes on without what it waits for.
package core

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// Snapshot is all that a decision depends on.
type Snapshot struct {
	// Pod is the Pod as last observed.
	Pod podops.View
	// Rules are all rules of the Pod's namespace; nil if there are none.
	Rules []podops.Rule
	// Frozen says why nothing may be taken out of service; "" if it may.
	Frozen string
	// Deadlines are those that bear on the Pod, its own over the suite's.
	Deadlines podops.Deadlines
	// Since is when each operation, by ID, was first seen in the phase that it is
	// in. An operation that is missing has just come into it.
	Since map[string]time.Time
	// Employers says what is known of employers that are waited for, by key.
	Employers map[string]string
	// Reported is the Pod's condition podops.OverdueCondition; zero if it has none.
	Reported Report
	// Now stamps label values and is what deadlines are measured by.
	Now time.Time
}

// Report is the content of the condition podops.OverdueCondition.
type Report struct {
	// Status is "" for a Pod that does not have the condition.
	Status corev1.ConditionStatus
	// Reason is a podops.WaitReason while Status is True.
	Reason string
	// Message says which operation waits for what. It is the same as long as
	// that is the same.
	Message string
}

// Plan is what to do; the zero Plan means at rest, or waiting.
type Plan struct {
	// Step is the patch of metadata and status to write.
	Step podops.Step
	// Report is the condition to write with it; nil leaves it as it is.
	Report *Report
	// Delete says to delete the Pod; then Step is zero.
	Delete bool
	// Overdue are the operations whose phase has taken too long, by ID.
	Overdue []Overdue
	// NextLook is when the next deadline expires; zero if none is running.
	NextLook time.Duration
}

// IsZero says that there is nothing to write.
func (p Plan) IsZero() bool { return !p.Delete && p.Report == nil && p.Step.IsZero() }

// Decide gives the next write for the Pod.
func Decide(s Snapshot) Plan {
	if s.Pod.Terminating {
		return Plan{}
	}
	_, marked := s.Pod.Labels[appsv1alpha1.ToDeleteLabel]
	if marked && podops.Allowed(s.Pod, podops.DeletionID, podops.TypeDelete) {
		return Plan{Delete: true}
	}
	first := deletion(s, marked)
	overdue, nextLook := overdueOperations(first.Apply(s.Pod), s)
	for _, o := range overdue {
		if o.Policy == podops.DeadlineCancel {
			first = first.Then(s.Pod, cancel(first.Apply(s.Pod), o.ID, s.Now))
		}
	}
	view := first.Apply(s.Pod)
	step := podops.AdvanceWaiving(view, verdicts(view, s), waived(overdue), s.Now)
	plan := Plan{
		Step:     podops.Step{Change: first.Then(s.Pod, step.Change), ServiceReady: step.ServiceReady},
		Overdue:  overdue,
		NextLook: nextLook,
	}
	plan.Report = report(s, stillOverdue(overdue, plan.Step.Apply(s.Pod)))
	return plan
}

// verdicts reads the ledger. While frozen nobody leaves PreCheck, with rules or
// without, granted or not.
func verdicts(v podops.View, s Snapshot) podops.Verdicts {
	verdicts := podops.VerdictsFor(v, s.Rules)
	if s.Frozen == "" {
		return verdicts
	}
	for ask := range verdicts {
		if ask.Stage == appsv1alpha1.StagePreCheck {
			delete(verdicts, ask)
		}
	}
	return verdicts
}

// deletion asks for the deletion of a marked Pod, or takes the request back when
// the mark is gone.
func deletion(s Snapshot, marked bool) podops.Change {
	switch {
	case marked:
		// The request is a constant that Validate accepts, so Begin cannot fail.
		begin, _ := podops.Begin(s.Pod, podops.Request{ID: podops.DeletionID, Type: podops.TypeDelete, Deletes: true}, s.Now)
		return begin
	case podops.IsDuring(s.Pod, podops.DeletionID, podops.TypeDelete):
		return podops.Cancel(s.Pod, podops.DeletionID, s.Now)
	default:
		return podops.Change{}
	}
}

// cancel undoes an operation. The mark of graceful deletion goes with it, which
// would ask again at once.
func cancel(v podops.View, id string, now time.Time) podops.Change {
	if id != podops.DeletionID {
		return podops.Cancel(v, id, now)
	}
	unmark := podops.Change{Labels: map[string]*string{appsv1alpha1.ToDeleteLabel: nil}}
	return unmark.Then(v, podops.Cancel(unmark.Apply(v), id, now))
}
