// Package podphase decides the one write that lifecycle-controller owes a Pod.
//
// It adds to podops.Advance, which moves the phases:
//
//   - the reading of the rules' ledger, and the freeze, which withholds every
//     verdict of PreCheck;
//   - graceful deletion: a Pod marked to-delete gets a separate operation (ID "pod-delete"), passes the rules and its
//     cooperators like any other, and is deleted when the protocol allows it; taking the mark away cancels. The API
//     server is asked first by a dry run: a refused deletion takes no Pod out;
//   - finishing for an operator that has recorded on the Pod what has to be seen
//     before its operation is carried out;
//   - deadlines: a phase that takes too long is reported, and, by policy, the
//     operation is undone or goes on without what it waits for.
package podphase

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/soonest"
)

// Snapshot is all that a decision depends on.
type Snapshot struct {
	// Pod is the Pod as last observed.
	Pod podops.View
	// Finish is the operation that has been carried out by its record, and is to be finished here; zero if there is none.
	Finish Finish
	// Rules are all rules of the Pod's namespace; nil if there are none.
	Rules []podops.Rule
	// Frozen says why nothing may be taken out of service; "" if it may.
	Frozen string
	// Deletion is what the API server last said of deleting the Pod.
	Deletion Verdict
	// Deadlines are those that bear on the Pod, its own over the suite's.
	Deadlines podops.Deadlines
	// Since is when each operation, by ID, was first seen in the phase that it is
	// in. An operation that is missing has just come into it.
	Since map[string]time.Time
	// MissingSince is when the Pod, being Ready, was first seen without a finalizer that it expects; zero if it has all.
	MissingSince time.Time
	// Patience is how long operations wait for those finalizers before they go on without; zero for ever.
	Patience time.Duration
	// NotAwaited is true if operations do not wait for those finalizers at all, as in Kuperator v0.7.
	NotAwaited bool
	// Employers says what is known of employers that are waited for, by key.
	Employers map[string]string
	// Reported is the Pod's condition podops.OverdueCondition; zero if it has none.
	Reported Report
	// Now stamps label values and is what deadlines are measured by.
	Now time.Time
}

// Finish names an operation: its ID, its type, and the value of its operating label.
type Finish struct {
	ID, Type, Request string
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
	// Try is true if the API server is to be asked by a dry run whether it would delete the Pod, and the decision made
	// again with its answer. The rest of the plan does without one.
	Try bool
	// Delete says to delete the Pod; then Step is zero.
	Delete bool
	// Overdue are the operations whose phase has taken too long, by ID.
	Overdue []Overdue
	// NextLook is when the next deadline expires, or when a deletion that is
	// refused is tried again; zero if there is neither.
	NextLook time.Duration
}

// IsZero reports whether there is nothing to write.
func (p Plan) IsZero() bool { return !p.Delete && p.Report == nil && p.Step.IsZero() }

// Decide gives the next write for the Pod.
func Decide(s Snapshot) Plan {
	if s.Pod.Terminating {
		return Plan{}
	}
	_, marked := s.Pod.Labels[appsv1alpha1.ToDeleteLabel]
	if marked && s.Deletion.Refused == "" && podops.Allowed(s.Pod, podops.DeletionID, podops.TypeDelete) {
		return Plan{Delete: true}
	}
	first := deletion(s, marked)
	released, held := release(s)
	first = first.Then(s.Pod, released)
	first = first.Then(s.Pod, finish(first.Apply(s.Pod), s.Finish, s.Now))
	overdue, nextLook := overdueOperations(first.Apply(s.Pod), s)
	for _, o := range overdue {
		if o.Policy == podops.DeadlineCancel {
			first = first.Then(s.Pod, cancel(first.Apply(s.Pod), o.ID, s.Now))
		}
	}
	view := first.Apply(s.Pod)
	verdicts, untried := verdicts(view, s)
	waived := waived(overdue)
	unheld, comes := unheld(view, s)
	maps.Copy(waived, unheld)
	step := podops.AdvanceWaiving(view, verdicts, waived, s.Now)
	if step.Labels[podops.UnheldLabel] != nil {
		held = hold(s)
	}
	plan := Plan{
		Step:     podops.Step{Change: first.Then(s.Pod, step.Change), ServiceReady: step.ServiceReady},
		Try:      untried || tryFirst(s, marked),
		Overdue:  overdue,
		NextLook: soonest.Of(nextLook, held, comes, retryIn(s, marked)),
	}
	plan.Report = report(s, stillOverdue(overdue, plan.Step.Apply(s.Pod)))
	return plan
}

// verdicts reads the ledger. While frozen no operation leaves PreCheck, with rules or without, granted or not. A
// graceful deletion does not leave it before the API server has agreed of late; untried reports whether that is all
// that it waits for.
func verdicts(v podops.View, s Snapshot) (verdicts podops.Verdicts, untried bool) {
	verdicts = podops.VerdictsFor(v, s.Rules)
	for ask := range verdicts {
		switch {
		case ask.Stage != appsv1alpha1.StagePreCheck:
		case s.Frozen != "":
			delete(verdicts, ask)
		case ask.ID == podops.DeletionID && !s.Deletion.accepted(s.Now):
			delete(verdicts, ask)
			untried = true
		}
	}
	return verdicts, untried
}

// finish ends the operation that has been carried out, with its record. Another request than the recorded one has yet
// to be carried out.
func finish(v podops.View, done Finish, now time.Time) podops.Change {
	if done.ID == "" {
		return podops.Change{}
	}
	o := podops.OperationOf(v, done.ID)
	if o.Phase != podops.PhaseOperate || o.Type != done.Type || o.Request != done.Request {
		return podops.Change{}
	}
	change := podops.Finish(v, done.ID, done.Type, now)
	change.Annotations = map[string]*string{appsv1alpha1.LastPodStatusAnnotation: nil}
	return change
}

// cancel undoes an operation. The mark of graceful deletion goes with it, which
// would ask again at once.
func cancel(v podops.View, id string, now time.Time) podops.Change {
	if id != podops.DeletionID {
		return podops.Cancel(v, id, now)
	}
	unmark := podops.Unmark(v, appsv1alpha1.ToDeleteLabel)
	return unmark.Then(v, podops.Cancel(unmark.Apply(v), id, now))
}
