package podphase

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/soonest"
)

// Overdue is an operation whose phase has taken longer than its deadline.
type Overdue struct {
	podops.Wait
	// Policy is what is done about it, beside reporting.
	Policy podops.DeadlinePolicy
	// Text says in a sentence which operation waits for what, and what is done.
	Text string
	// request tells this request from the next one under the same ID.
	request string
}

// overdueOperations returns the operations whose deadline has expired, by ID, and
// the time until the next one does; zero if none will.
func overdueOperations(v podops.View, s Snapshot) (overdue []Overdue, nextLook time.Duration) {
	if len(s.Deadlines) == 0 {
		return nil, 0
	}
	var waits []podops.Wait // one for each operation; only worth the work if something is late
	for i, o := range podops.Operations(v) {
		deadline, ok := s.Deadlines.For(o.Phase, o.Type)
		if !ok {
			continue
		}
		since, seen := s.Since[o.ID]
		if !seen {
			since = s.Now
		}
		if left := deadline.After - s.Now.Sub(since); left > 0 {
			nextLook = soonest.Of(nextLook, left)
			continue
		}
		if waits == nil {
			waits = podops.ExplainWith(v,
				podops.Surroundings{Rules: s.Rules, Frozen: s.Frozen, Employers: s.Employers, Brief: true})
		}
		late := Overdue{Wait: waits[i], Policy: policyFor(o, deadline), request: o.Request}
		late.Text = late.text(deadline)
		overdue = append(overdue, late)
	}
	return overdue, nextLook
}

// policyFor is what may be done about an operation that is overdue. The operator
// of graceful deletion is this program: pretending that it had finished would
// only make it ask again.
func policyFor(o podops.Operation, d podops.Deadline) podops.DeadlinePolicy {
	if o.ID == podops.DeletionID && o.Phase == podops.PhaseOperate {
		return podops.DeadlineWait
	}
	return d.Policy
}

func (o Overdue) text(d podops.Deadline) string {
	then := ""
	switch o.Policy {
	case podops.DeadlineCancel:
		then = "; it is cancelled"
	case podops.DeadlineProceed:
		then = "; it goes on without that as soon as it may"
	case podops.DeadlineWait:
	}
	return fmt.Sprintf("operation %q of type %q has been in %s for more than %s: %s%s", o.ID, o.Type,
		podops.DeadlinePhase(o.Phase), d.After, o.Message, then)
}

// waived are the overdue operations that go on without what they wait for.
func waived(overdue []Overdue) podops.Waived {
	w := podops.Waived{}
	for _, o := range overdue {
		if o.Policy == podops.DeadlineProceed {
			w[o.ID] = o.Phase
		}
	}
	return w
}

// stillOverdue are those that the step leaves where they are.
func stillOverdue(overdue []Overdue, after podops.View) []Overdue {
	var still []Overdue
	for _, o := range overdue {
		now := podops.OperationOf(after, o.ID)
		if podops.DeadlinePhase(now.Phase) == podops.DeadlinePhase(o.Phase) && now.Request == o.request {
			still = append(still, o)
		}
	}
	return still
}

// report is the condition to write, nil if the Pod has it already. A Pod that was
// never overdue does not get one.
func report(s Snapshot, overdue []Overdue) *Report {
	want := Report{Status: corev1.ConditionFalse, Reason: "InTime", Message: "no operation takes longer than its deadline"}
	if len(overdue) > 0 {
		texts := make([]string, len(overdue))
		for i, o := range overdue {
			texts[i] = o.Text
		}
		want = Report{Status: corev1.ConditionTrue, Reason: string(overdue[0].Reason), Message: strings.Join(texts, "; ")}
	}
	if s.Reported == want || (len(overdue) == 0 && s.Reported.Status != corev1.ConditionTrue) {
		return nil
	}
	return &want
}
