package grants

import (
	"slices"
	"strings"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// Snapshot is one namespace as it was observed. Decide changes nothing of it; order means nothing.
type Snapshot struct {
	// Rules are all PodTransitionRules of the namespace.
	Rules []*appsv1alpha1.PodTransitionRule
	// Pods are all Pods of the namespace, selected by a rule or not: whether a rule selects all Pods of a controller is
	// known only from those it does not select.
	Pods []Pod
	// Owners are the controllers of Pods, as far as they are known. Pods of others count themselves.
	Owners []Owner
	// Nodes are the labels of nodes by the node's name. They are needed only if UsesTopology says so. A node that is
	// missing is not known.
	Nodes map[string]map[string]string
	// Budgets are the PodDisruptionBudgets of the namespace, whosever they are.
	Budgets []*policyv1.PodDisruptionBudget
	// Frozen says why nothing new may be granted at PreCheck; "" if it may.
	Frozen string
	// GracefulDeletion is the namespace's podops.GracefulDeletionLabel, "" without one.
	GracefulDeletion string
	// Answers are what webhooks have said, by what they were asked. What is missing has not been answered.
	Answers map[Subject]Answer
	// Tasks become the RuleStates of each rule's status, by the rule's UID. A rule that is missing has none. They are as
	// the API server keeps them: sorted, and with whole seconds.
	Tasks map[types.UID][]appsv1alpha1.RuleState
	// Invalid says what is wrong with the webhook checks of a rule, by the rule's UID: no webhook can be asked before the
	// rule is changed. Its webhook checks refuse every Pod.
	Invalid map[types.UID]string
	// Unreachable says which webhook of a rule does not answer, by the rule's UID, for people and without anything that
	// changes from one attempt to the next. It is only reported.
	Unreachable map[types.UID]string
	// Now stamps what changes. Grants do not depend on it.
	Now time.Time
}

// Pod is one Pod.
type Pod struct {
	podops.View
	// Owner is the UID of the controller, "" for none.
	Owner types.UID
	// NodeName is the node that it was assigned to, "" for none.
	NodeName string
}

// Owner is a controller of Pods.
type Owner struct {
	UID types.UID
	// Replicas are the Pods it wants. Zero means that it wants none: its Pods count themselves until they are gone.
	Replicas int32
	// Surges is true if an eviction has its Pods replaced before they go (spec.disruption of a CollaSet).
	Surges bool
	// PodLabels are the labels of its Pod template, by which it is known to a rule while it has no Pod. Nil matches only
	// rules that select everything.
	PodLabels map[string]string
}

// Subject is what a webhook is asked about: the operations of one Pod that wait at one stage, for one check of one
// rule. Any change of what is asked is another Subject, so that no answer is inherited.
type Subject struct {
	Rule  types.UID
	Check string
	Pod   types.UID
	Stage appsv1alpha1.TransitionRuleStage
	// Operations are the waiting operations, as OperationsKey writes them.
	Operations string
}

// Answer is what a webhook last said about a Subject, or that it is being asked.
type Answer struct {
	// Passed lets the Subject go on.
	Passed bool
	// Reason is why not, for people, without counters or IDs that change from one question to the next.
	Reason string
}

// Question is one Subject to ask about, with what the request needs.
type Question struct {
	Subject
	// PodName is the name of the Pod.
	PodName string
	// Requests are the operations that wait.
	Requests []appsv1alpha1.GrantedOperation
}

// Plan is what to write. Any prefix of it may be written; the rest comes of the next decision.
type Plan struct {
	// Statuses are the rules whose status must change, in the order to write them.
	Statuses []RuleStatus
	// Questions are all Subjects that now wait for a webhook, answered or not, in the order in which Pods are served.
	// Answers and tasks about anything else are of no use any more.
	Questions []Question
	// Budgets are the PodDisruptionBudgets to write: by name, those that loosen anything last.
	Budgets []BudgetChange
	// Notes are what annotations of Pods should say, by the Pod's name.
	Notes []Note
	// Figures are what each rule does, in numbers, by its name. They are for people, not to be acted on.
	Figures []Figures
	// NextLook is when to decide again although nothing else happens. Zero means never.
	NextLook time.Duration
}

// RuleStatus is the complete new status of a rule.
type RuleStatus struct {
	Name string
	UID  types.UID
	// Status replaces that of the rule it was decided on: the write must depend on its resourceVersion.
	Status appsv1alpha1.PodTransitionRuleStatus
	// NewlyForeignBudget is the message that the rule's PodDisruptionBudget cannot be created, because another object has
	// its name, if that was not known before; "" otherwise. It is worth an event.
	NewlyForeignBudget string
	// NewlyStalled says what is wrong with the rule, if that was not known before; "" otherwise. It is worth an event.
	NewlyStalled string
}

// UsesTopology reports whether a decision on these rules reads Snapshot.Nodes.
func UsesTopology(rules []*appsv1alpha1.PodTransitionRule) bool {
	return slices.ContainsFunc(rules, func(r *appsv1alpha1.PodTransitionRule) bool {
		return slices.ContainsFunc(r.Spec.Rules, func(item appsv1alpha1.TransitionRule) bool {
			return item.AvailablePolicy != nil && item.AvailablePolicy.Topology != nil
		})
	})
}

// OperationsKey writes operations so that equal sets of requests are equal texts, whatever their order.
func OperationsKey(operations []appsv1alpha1.GrantedOperation) string {
	texts := make([]string, 0, len(operations))
	for _, o := range operations {
		texts = append(texts, o.ID+"/"+o.Type+"="+o.Request)
	}
	slices.Sort(texts)
	return strings.Join(texts, " ")
}
