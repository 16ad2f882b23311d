package webhook

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/drain"
)

// retrySeconds is what a refused eviction is told to wait. client-go repeats such a request up to ten times by itself
// before its caller hears of it, so a longer time would keep the reason from the user of kubectl drain.
const retrySeconds = 1

// removalVerb is how a Pod is to be removed.
type removalVerb string

const (
	// removeByDelete is a DELETE of the Pod.
	removeByDelete removalVerb = "delete"
	// removeByEviction is an Eviction of the Pod.
	removeByEviction removalVerb = "eviction"
)

// removalPolicy is what the flags say.
type removalPolicy struct {
	// Graceful is what counts where no label says anything.
	Graceful bool
	// UndelayedUsers and UndelayedGroups are those whose requests are never held up.
	UndelayedUsers, UndelayedGroups []string
}

// removal is a request to remove a Pod, and all that the answer depends on.
type removal struct {
	Verb   removalVerb
	User   string
	Groups []string
	DryRun bool
	// Forced is true if a grace period of 0 seconds was asked for.
	Forced bool
	// Pinned is true if an eviction names the resourceVersion of the Pod: no other version of it is removed.
	Pinned bool
	// Repeated is true of an eviction by name if its user was refused before to evict this very Pod, and if the Pod that
	// comes in its place gets its name. The API server asks first and looks for the Pod of that name afterwards, so
	// whoever waits for this Pod to go could evict the next one.
	Repeated bool

	Pod podops.View
	// Scheduled is true if the Pod has a node; without one nothing of it runs.
	Scheduled bool
	// Leaving is the name of the Pod's CollaSet if the garbage collector deletes the Pod while that is being deleted
	// and takes its Pods out of service itself; "" otherwise.
	Leaving string

	// NamespaceTerminating is true if the Pod's namespace is being deleted.
	NamespaceTerminating bool
	// NamespaceLabel is the namespace's podops.GracefulDeletionLabel, "" without one.
	NamespaceLabel string

	// Budget is the name of a user's PodDisruptionBudget that allows no disruption of the Pod now, "" if there is none.
	// Only the first eviction of a healthy Pod depends on it.
	Budget string
	// Policy is what the Pod's workload has an eviction do, and Awaits what a Pod that is being replaced waits for, as
	// the CollaSet's status has it; "" if it says nothing. Only evictions depend on them.
	Policy drain.Policy
	Awaits string
}

// removalAnswer is what becomes of a removal.
type removalAnswer struct {
	Allowed bool
	// Mark is the label that the Pod is to get before the request is refused, "" for none: for its graceful deletion, or
	// for its replacement.
	Mark string
	// Message says to the user why it is refused, what the Pod waits for, and how to cancel or to force.
	Message string
	// Code and Reason are the HTTP status of a refusal, RetryAfter the seconds to wait, 0 for none.
	Code       int32
	Reason     metav1.StatusReason
	RetryAfter int32
	Warnings   []string
}

// decideRemoval admits what needs no preparation or cannot wait for it, and refuses the rest until
// lifecycle-controller has taken the Pod out of service. It admits again once the Pod is out: a refusal is never the
// end. Only an eviction that is repeated, of a Pod whose name comes again, is refused until that Pod is gone.
func decideRemoval(r removal, policy removalPolicy) removalAnswer {
	if unprepared(r, policy) {
		return removalAnswer{Allowed: true}
	}
	graceful, warnings := gracefulFor(r, policy)
	_, marked := r.Pod.Labels[appsv1alpha1.ToDeleteLabel]
	replaces := r.Verb == removeByEviction && r.Policy.Replaces(r.Pod, r.Budget != "")
	switch {
	case r.Repeated && !r.DryRun && (r.Pod.Terminating || isOut(r, marked)):
		return refuse(r, warnings, fmt.Sprintf("Pod %s is out of service and is being deleted", r.Pod.Name))
	case !graceful, isOut(r, marked):
		return removalAnswer{Allowed: true, Warnings: warnings}
	case r.DryRun:
		then := "the Pod is taken out of service, then deleted (graceful deletion)"
		if replaces {
			then = "another Pod takes its place, then it is taken out of service and deleted"
		}
		return removalAnswer{Allowed: true, Warnings: append(warnings,
			fmt.Sprintf("not in a dry run, this %s would be refused at first: %s", r.Verb, then))}
	case replaces:
		return replaceFirst(r, warnings)
	}
	if r.Verb == removeByEviction && !marked && r.Pod.Ready && r.Budget != "" {
		return refuse(r, warnings,
			fmt.Sprintf("PodDisruptionBudget %s allows no disruption now; Pod %s has not been marked for deletion",
				r.Budget, r.Pod.Name))
	}
	if r.Leaving != "" {
		return refuse(r, warnings,
			fmt.Sprintf("CollaSet %s is being deleted and takes Pod %s out of service before it deletes it",
				r.Leaving, r.Pod.Name))
	}
	answer := refuse(r, warnings, explainRemoval(r.Pod, marked))
	if r.Policy.Obstacle != "" {
		answer.Message += ". It is not replaced by another Pod first: " + r.Policy.Obstacle
	}
	if !marked || mayBeWithdrawn(r) {
		answer.Mark = appsv1alpha1.ToDeleteLabel
	}
	return answer
}

// mayBeWithdrawn reports whether the mark of a Pod might go although the request for its removal stands: all that ask
// for the mark are programs that may withdraw. An eviction may become one by replacement, so a deletion is asked for
// beside it.
func mayBeWithdrawn(r removal) bool {
	return !slices.ContainsFunc(podops.Askers(r.Pod, appsv1alpha1.ToDeleteLabel), func(asker string) bool {
		return asker == podops.AskerOther || asker == podops.AskerEviction && r.Verb == removeByEviction
	})
}

// replaceFirst refuses an eviction until another Pod serves and the evicted one is gone.
func replaceFirst(r removal, warnings []string) removalAnswer {
	waits := cmp.Or(r.Awaits, "it waits for the other Pod")
	if _, isDeleted := r.Pod.Labels[appsv1alpha1.ToDeleteLabel]; isDeleted {
		waits = waitingFor(r.Pod, true)
	}
	answer := refuse(r, warnings, fmt.Sprintf("Pod %[2]s is replaced: another Pod serves before it is taken out of service "+
		"and deleted. Now: %[3]s. To cancel: kubectl label pod -n %[1]s %[2]s %[4]s- . "+
		"To delete it at once: kubectl delete pod -n %[1]s %[2]s --grace-period=0 --force",
		r.Pod.Namespace, r.Pod.Name, waits, appsv1alpha1.ToReplaceLabel))
	if !podops.MarkedBy(r.Pod, appsv1alpha1.ToReplaceLabel, podops.AskerEviction) {
		answer.Mark = appsv1alpha1.ToReplaceLabel
	}
	return answer
}

// unprepared reports whether the Pod can be removed without preparation, or must be.
func unprepared(r removal, policy removalPolicy) bool {
	switch {
	case r.Pod.Labels[appsv1alpha1.ControlLabel] != appsv1alpha1.ControlValue:
		return true // not managed
	case !r.Pod.Gate:
		return true // it cannot be taken out of service first
	case r.Pod.Terminating && !r.Repeated, r.Pod.Terminal, !r.Scheduled:
		return true // it does not serve, and nothing brings it back
	case r.Forced, r.NamespaceTerminating:
		return true
	}
	return r.Leaving == "" && slices.Contains(policy.UndelayedUsers, r.User) ||
		slices.ContainsFunc(r.Groups, func(group string) bool { return slices.Contains(policy.UndelayedGroups, group) })
}

// isOut reports whether some operation has the Pod out of service, so that its removal does no harm, and whether it is
// out when it is removed.
//
// About a deletion the API server asks again if the Pod has changed. About an eviction it asks once, and then deletes
// the Pod as it is: an update in place may have it back in service by then. So an eviction has to name the version of
// the Pod, or the operation has to be the Pod's own deletion, which brings nothing back.
func isOut(r removal, marked bool) bool {
	if r.Verb == removeByEviction && !r.Pinned {
		return marked && podops.Allowed(r.Pod, podops.DeletionID, podops.TypeDelete)
	}
	return slices.ContainsFunc(podops.Operations(r.Pod),
		func(o podops.Operation) bool { return podops.Allowed(r.Pod, o.ID, o.Type) })
}

// gracefulFor reports whether the Pod's removal is to be prepared: by its own label, else its namespace's, else the
// flag, or because its workload wants evicted Pods replaced first. A value that is neither counts as absent, with a
// warning.
func gracefulFor(r removal, policy removalPolicy) (graceful bool, warnings []string) {
	for _, label := range []struct{ of, value string }{
		{"Pod " + r.Pod.Name, r.Pod.Labels[podops.GracefulDeletionLabel]},
		{"Namespace " + r.Pod.Namespace, r.NamespaceLabel},
	} {
		switch label.value {
		case "":
		case drain.GracefulEnabled:
			return true, warnings
		case drain.GracefulDisabled:
			return false, warnings
		default:
			warnings = append(warnings, fmt.Sprintf("label %s of %s is %q and is ignored: set %s or %s",
				podops.GracefulDeletionLabel, label.of, label.value, drain.GracefulEnabled, drain.GracefulDisabled))
		}
	}
	return policy.Graceful || r.Verb == removeByEviction && r.Policy.Surges(), warnings
}

// refuse answers an eviction with 429, so that a drain tries again, and a deletion with 409.
func refuse(r removal, warnings []string, message string) removalAnswer {
	if r.Verb == removeByEviction {
		return removalAnswer{
			Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, RetryAfter: retrySeconds,
			Message: message, Warnings: warnings,
		}
	}
	return removalAnswer{Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: message,
		Warnings: warnings}
}

// explainRemoval says what happens to the Pod, what it waits for now, and what one can do.
func explainRemoval(v podops.View, marked bool) string {
	return fmt.Sprintf("Pod %[2]s is being taken out of service and is then deleted by itself. Now: %[3]s. "+
		"To cancel: kubectl label pod -n %[1]s %[2]s %[4]s- . To delete it at once: kubectl delete pod -n %[1]s %[2]s --grace-period=0 --force",
		v.Namespace, v.Name, waitingFor(v, marked), appsv1alpha1.ToDeleteLabel)
}

// waitingFor names what the Pod's deletion waits for.
func waitingFor(v podops.View, marked bool) string {
	for _, wait := range podops.Explain(v, nil) {
		if !marked || wait.ID != podops.DeletionID {
			continue
		}
		if wait.Phase == podops.PhasePreCheck && wait.Reason == podops.WaitLifecycle { // the rules were not looked at
			return waitingForRules(v)
		}
		return fmt.Sprintf("%s: %s", wait.Reason, wait.Message)
	}
	return "it waits for lifecycle-controller to begin"
}

// waitingForRules names the rules that have held the Pod for a while, as the Pod itself tells.
func waitingForRules(v podops.View) string {
	var rules []string
	for key := range v.Annotations {
		if prefix, rule, ok := strings.Cut(key, "/"); ok && prefix == podops.RuleDetailPrefix {
			rules = append(rules, rule)
		}
	}
	if len(rules) == 0 {
		return "it waits for the PodTransitionRules that select it, then for lifecycle-controller"
	}
	slices.Sort(rules)
	return "it waits for PodTransitionRule " + strings.Join(rules, ", ") + ": see kubectl describe podtransitionrule -n " +
		v.Namespace
}
