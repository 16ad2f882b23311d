package setplan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/soonest"
)

// notes collect what a decision tells beside its actions: what Pods wait for, and when to decide again.
type notes struct {
	now      time.Time
	blockers map[string]*Blocker
	// nextLook and more are those of the Plan.
	nextLook time.Duration
	more     bool
	// refused is true if an update in scope is refused, and refuses what the API server refuses, and why.
	refused bool
	refuses string
}

// tell puts what was collected into the plan.
func (n *notes) tell(p *Plan) {
	p.NextLook, p.More = n.nextLook, n.more
	for _, b := range n.blockers {
		p.Blockers = append(p.Blockers, *b)
	}
	p.sortBlockers()
}

// block counts a Pod that waits. Pods come in one order always, so that the example in the message does not flap.
func (n *notes) block(it *item, reason, message string) { n.blockName(it.Name(), reason, message) }

func (n *notes) blockName(pod, reason, message string) {
	n.count(reason, "Pod ", pod, ": ", message)
}

// count counts one more for a reason; the first of them has the message.
func (n *notes) count(reason string, message ...string) {
	b := n.blockers[reason]
	if b == nil {
		b = &Blocker{Reason: reason, Message: strings.Join(message, "")}
		n.blockers[reason] = b
	}
	b.Count++
}

// look asks for another decision after a time.
func (n *notes) look(in time.Duration) {
	n.nextLook = soonest.Of(n.nextLook, in)
}

// due reports whether the operator may act on the Pod now: it has permission, and the delay has passed since it first
// saw it.
func (n *notes) due(it *item, delay time.Duration) bool {
	if !podops.Allowed(it.View, OperatorID, it.During) {
		reason, message := waitFor(it)
		n.block(it, reason, message)
		return false
	}
	if it.AllowedSince.IsZero() {
		n.look(delay)
		return delay <= 0
	}
	if left := delay - n.now.Sub(it.AllowedSince); left > 0 {
		n.block(it, "OperationDelay", "permission is there; waiting for operationDelaySeconds to pass")
		n.look(left)
		return false
	}
	return true
}

// waitFor says what our operation on a Pod waits for. Rules are not read here, so a Pod before the rules is named as
// such; the rules' own status says which of them blocks it.
func waitFor(it *item) (reason, message string) {
	if stage, waits := podops.StageOfPhase(it.Op.Phase); waits && stage == appsv1alpha1.StagePreCheck {
		if reason, message := unheld(it, OperatorID); reason != "" {
			return reason, message
		}
		return "WaitingForPermission", "PodTransitionRules have not let the " + it.During + " pass; their status says why"
	}
	waits := podops.Explain(it.View, nil)
	i := slices.IndexFunc(waits, func(w podops.Wait) bool { return w.ID == OperatorID })
	switch {
	case i < 0:
		return string(podops.WaitLifecycle), "the next step is lifecycle-controller's"
	case waits[i].Reason != podops.WaitOperator:
		return string(waits[i].Reason), waits[i].Message
	case it.View.Protected(): // in Operate, and yet not allowed
		return string(podops.WaitFinalizer),
			"a cooperator still holds the Pod: " + strings.Join(podops.ProtectionFinalizers(it.View.Finalizers), ", ")
	}
	return string(podops.WaitNotReady), "the Pod is still observed to be Ready"
}

// unheld says which finalizer an operation on a Pod waits for, and since when, if it does; "" if not, or if a rule has
// reported that it holds the Pod.
func unheld(it *item, id string) (reason, message string) {
	if heldByRule(it.Pod) {
		return "", ""
	}
	for _, w := range podops.Explain(it.View, nil) {
		if w.ID != id || w.Reason != podops.WaitExpected || it.ReadySince.IsZero() {
			continue
		}
		return string(w.Reason), fmt.Sprintf("%s (Ready since %s)", w.Message, it.ReadySince.UTC().Format(time.RFC3339))
	}
	return "", ""
}

// heldByRule reports whether a rule has had something against an operation on the Pod for a while, as the Pod itself
// tells.
func heldByRule(pod *Pod) bool {
	for key := range pod.View.Annotations {
		if strings.HasPrefix(key, podops.RuleDetailPrefix+"/") {
			return true
		}
	}
	return false
}
