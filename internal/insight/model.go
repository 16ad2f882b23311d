package insight

import (
	"time"
)

// Fleet is the state of some namespaces, or of a whole cluster.
type Fleet struct {
	// ObservedAt is the API server's time of the picture.
	ObservedAt time.Time `json:"observedAt"`
	// Counts are the numbers of Pods by state; states without Pods are left out.
	Counts map[State]int `json:"counts"`
	// Freezes are the emergency stops in force.
	Freezes []Freeze `json:"freezes,omitempty"`
	// Components are the suite's controllers that elect a leader. Empty if Leases cannot be read.
	Components []Component `json:"components,omitempty"`
	// Budgets are the PodTransitionRules, by namespace and name.
	Budgets []Budget `json:"budgets,omitempty"`
	// Jobs are the OperationJobs that run or have ended recently, by namespace and name.
	Jobs []Job `json:"jobs,omitempty"`
	// Decorations are the PodDecorations, by namespace and name.
	Decorations []Decoration `json:"decorations,omitempty"`
	// Workloads are those that have Pods under the lifecycle, and all CollaSets; by namespace, kind and name.
	Workloads []Workload `json:"workloads"`
	// Gaps are what could not be read, and what is not said because of that.
	Gaps []Gap `json:"gaps,omitempty"`
}

// Ref names an object.
type Ref struct {
	Kind string `json:"kind"`
	// Namespace is empty for what has none.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// State is what a Pod does for those whom it serves.
type State string

const (
	// StateServing: in service, and nothing is wanted of it.
	StateServing State = "Serving"
	// StateWaiting: in service, and an operation waits for permission.
	StateWaiting State = "Waiting"
	// StateLeaving: an operation takes the Pod out of service.
	StateLeaving State = "Leaving"
	// StateOperating: out of service, and an operator acts.
	StateOperating State = "Operating"
	// StateReturning: the operation is done and the Pod returns to service.
	StateReturning State = "Returning"
	// StateStarting: a new Pod that has not served yet.
	StateStarting State = "Starting"
	// StateDown: not in service, and no operation says why.
	StateDown State = "Down"
	// StateTerminating: being deleted.
	StateTerminating State = "Terminating"
	// StateEnded: Succeeded or Failed.
	StateEnded State = "Ended"
)

// States are all states, in the order in which a Pod's life shows them.
func States() []State {
	return []State{StateStarting, StateServing, StateWaiting, StateLeaving, StateOperating, StateReturning, StateDown,
		StateTerminating, StateEnded}
}

// Workload is what owns Pods: a CollaSet, a Deployment (told by the name of its ReplicaSet), or any other controller. A
// Pod without a controller is a workload by itself, of kind Pod.
type Workload struct {
	Ref
	// Desired is the wanted number of Pods; nil if the workload's own object was not read.
	Desired *int32 `json:"desired,omitempty"`
	// Counts are its Pods by state.
	Counts map[State]int `json:"counts"`
	// CurrentRevision and UpdatedRevision are a CollaSet's; Updated counts Pods at UpdatedRevision.
	CurrentRevision string `json:"currentRevision,omitempty"`
	UpdatedRevision string `json:"updatedRevision,omitempty"`
	Updated         int    `json:"updated,omitempty"`
	// Paused is true if a CollaSet begins nothing.
	Paused bool `json:"paused,omitempty"`
	// Course is how the rollout of a CollaSet goes; nil for other workloads.
	Course *Course `json:"course,omitempty"`
	// Reasons are what keeps the workload as a whole from its spec, the blocker first.
	Reasons []Reason `json:"reasons,omitempty"`
	// Rules are the names of the PodTransitionRules that select one of its Pods, sorted.
	Rules []string `json:"rules,omitempty"`
	// Pods are its Pods under the lifecycle, by name.
	Pods []Pod `json:"pods"`
}

// Pod is one Pod under the lifecycle.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Node is empty for a Pod that has none.
	Node     string `json:"node,omitempty"`
	Revision string `json:"revision,omitempty"`
	// Images are those of its containers, in the order of its spec.
	Images []string `json:"images,omitempty"`
	// Created is when it was created.
	Created *time.Time `json:"created,omitempty"`
	State   State      `json:"state"`
	// Since is when Ready last changed, or when the deletion was asked for; nil if the Pod does not say.
	Since *time.Time `json:"since,omitempty"`
	// Operations are those on the Pod, by ID.
	Operations []Operation `json:"operations,omitempty"`
	// Marks are the labels that OperationJobs ask for.
	Marks []Mark `json:"marks,omitempty"`
	// Reasons are why a Pod without operations is not in service, or not at the revision that its workload wants.
	Reasons []Reason `json:"reasons,omitempty"`
}

// Mark is a label by which something is asked for of a Pod: to be deleted, to be replaced.
type Mark struct {
	Label string `json:"label"`
	// Askers are all that ask for it: "operationjob/<name>", or "other" for users and programs that are not recorded.
	Askers []string `json:"askers"`
}

// Operation is one operation on a Pod.
type Operation struct {
	ID string `json:"id"`
	// Type is empty if the operator has not said it.
	Type string `json:"type,omitempty"`
	// Job is the name of the OperationJob that it is of; empty if it is of none.
	Job   string `json:"job,omitempty"`
	Phase string `json:"phase"`
	// Since is when the phase began, by its writer's clock; nil if unknown.
	Since *time.Time `json:"since,omitempty"`
	// Overdue is what lifecycle-controller says of a phase that takes longer than its deadline; empty if it does not.
	Overdue string `json:"overdue,omitempty"`
	// Reasons are what it waits for, the blocker first; the last is that of the Pod protocol.
	Reasons []Reason `json:"reasons"`
}

// Reason is one thing that something waits for.
type Reason struct {
	// Code is a stable CamelCase word.
	Code Code `json:"code"`
	// Message is for people.
	Message string `json:"message"`
	// On is the object to look at; nil if that is the Pod or workload itself.
	On *Ref `json:"on,omitempty"`
	// Since is when it began; nil if unknown.
	Since *time.Time `json:"since,omitempty"`
	// Next is what to do about it; empty if nothing but waiting helps.
	Next string `json:"next,omitempty"`
	// Holders are the Pods that hold the budget, in an Answer only; a Fleet has them in its Budgets.
	Holders []Holder `json:"holders,omitempty"`
}

// Job is an OperationJob.
type Job struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Action    string `json:"action"`
	// Progress is Pending, Processing, Succeeded or Failed.
	Progress string `json:"progress"`
	// Total, Succeeded, Failed and UnderWay are numbers of targets. Total is 0 before they are recorded.
	Total     int `json:"total"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	UnderWay  int `json:"underWay"`
	// Created is when it was created, Ended when the last target ended; nil before that.
	Created *time.Time `json:"created,omitempty"`
	Ended   *time.Time `json:"ended,omitempty"`
	// Reasons are what it waits for, or why it failed, the blocker first; those of targets once for each code. An Answer
	// has them in its own Reasons.
	Reasons []Reason `json:"reasons,omitempty"`
	// Targets, in an Answer only, are those that are under way, have failed, or were re-created instead of restarted.
	Targets []Target `json:"targets,omitempty"`
}

// Target is a Pod on which a job operates.
type Target struct {
	Pod      string `json:"pod"`
	Progress string `json:"progress"`
	// Started is when it started; nil if it has not.
	Started *time.Time `json:"started,omitempty"`
	// NewPod takes the place of Pod; empty if none does, or it is not known yet.
	NewPod string `json:"newPod,omitempty"`
	// Recreated is why a Pod that should have been restarted in place was re-created; empty if it was not.
	Recreated string `json:"recreated,omitempty"`
	// Error is why it fails; nil if it does not.
	Error *Reason `json:"error,omitempty"`
	// Reasons are what it waits for, the blocker first.
	Reasons []Reason `json:"reasons,omitempty"`
}

// Decoration is a PodDecoration.
type Decoration struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// CurrentRevision is what Pods have that are kept back, UpdatedRevision that of the present template. Empty is none.
	CurrentRevision string `json:"currentRevision,omitempty"`
	UpdatedRevision string `json:"updatedRevision,omitempty"`
	// Matched are the Pods that it selects, Injected those of them that have some revision, Updated those that have
	// UpdatedRevision, Available those of these that serve.
	Matched   int32 `json:"matched"`
	Injected  int32 `json:"injected"`
	Updated   int32 `json:"updated"`
	Available int32 `json:"available"`
	// Paused is true if no more Pods get its template, Deleting if it is being taken off its Pods.
	Paused   bool `json:"paused,omitempty"`
	Deleting bool `json:"deleting,omitempty"`
	// Reasons are what keeps Pods from what it wants, the blocker first. An Answer has them in its own Reasons.
	Reasons []Reason `json:"reasons,omitempty"`
}

// Budget is a PodTransitionRule.
type Budget struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Bounds are its checks in words.
	Bounds []string `json:"bounds"`
	// Desired, Available, Granted and Blocked are numbers of Pods, from the rule's status.
	Desired   int32 `json:"desired"`
	Available int32 `json:"available"`
	Granted   int32 `json:"granted"`
	Blocked   int32 `json:"blocked"`
	// Allowed is how many Pods the plain bounds let be out of service at the same time; nil if there is no such bound.
	Allowed *int32 `json:"allowed,omitempty"`
	// Holders are the Pods that count as out of service.
	Holders []Holder `json:"holders,omitempty"`
	// Reasons say what is wrong with the rule itself.
	Reasons []Reason `json:"reasons,omitempty"`
}

// Holder is a Pod that takes a part of a budget: it has a grant, or is down without one.
type Holder struct {
	Pod string `json:"pod"`
	// Granted is true if the rule's ledger names the Pod.
	Granted bool `json:"granted"`
	// Operation is "<type> (<id>)" of what was granted; empty without a grant.
	Operation string `json:"operation,omitempty"`
	// Since is when it was granted, or when the Pod stopped being Ready.
	Since *time.Time `json:"since,omitempty"`
	// State is the Pod's; empty if it is gone.
	State State `json:"state,omitempty"`
	// WaitsFor is the holder's own blocker; nil if it has none.
	WaitsFor *Reason `json:"waitsFor,omitempty"`
}

// ComponentState is whether a component has a leader.
type ComponentState string

const (
	// ComponentRunning: its Lease is renewed.
	ComponentRunning ComponentState = "Running"
	// ComponentStale: its Lease was not renewed in time: its work is not done.
	ComponentStale ComponentState = "Stale"
	// ComponentAbsent: it has no Lease, or one without a holder.
	ComponentAbsent ComponentState = "Absent"
)

// Component is one of the suite's controllers.
type Component struct {
	Name  string         `json:"name"`
	State ComponentState `json:"state"`
	// Holder is who leads.
	Holder string `json:"holder,omitempty"`
	// Renewed is when the Lease was last renewed.
	Renewed *time.Time `json:"renewed,omitempty"`
}

// Gap is something that could not be read.
type Gap struct {
	// What was to be read, such as "leases in namespace kuperator-system".
	What string `json:"what"`
	// Why it was not: the API server's answer.
	Why string `json:"why"`
	// Missing is the permission that lacks, such as "list leases.coordination.k8s.io in kuperator-system"; empty if it was
	// something else.
	Missing string `json:"missing,omitempty"`
	// Unsaid is what is not said because of it.
	Unsaid string `json:"unsaid,omitempty"`
}

// Event is an event about the subject of an Answer: a Warning, or in Details any.
type Event struct {
	// Normal is true if it is no Warning.
	Normal  bool       `json:"normal,omitempty"`
	Reason  string     `json:"reason"`
	Message string     `json:"message"`
	Count   int32      `json:"count"`
	Last    *time.Time `json:"last,omitempty"`
	From    string     `json:"from,omitempty"`
}

// Answer says why one Pod or workload is not where it should be, or what a job or a PodDecoration waits for.
type Answer struct {
	ObservedAt time.Time `json:"observedAt"`
	Subject    Ref       `json:"subject"`
	// Summary is the answer in one sentence.
	Summary string `json:"summary"`
	// Blocker is what has to change first; nil if nothing is wrong.
	Blocker *Reason `json:"blocker,omitempty"`
	// Reasons are all reasons, the blocker first, each once.
	Reasons []Reason `json:"reasons,omitempty"`
	// Pod is set for a Pod, Workload for a workload (without its Pods, of which Stuck has those that do not move).
	Pod      *Pod      `json:"pod,omitempty"`
	Workload *Workload `json:"workload,omitempty"`
	// Job is set for an OperationJob.
	Job *Job `json:"job,omitempty"`
	// Decoration is set for a PodDecoration.
	Decoration *Decoration `json:"decoration,omitempty"`
	// Stuck are the Pods that wait, of the workload or for the PodDecoration, by reason, most Pods first.
	Stuck []Stuck `json:"stuck,omitempty"`
	// Events are the newest Warnings about it, newest first.
	Events []Event `json:"events,omitempty"`
	Gaps   []Gap   `json:"gaps,omitempty"`
}

// Stuck are Pods that wait for the same.
type Stuck struct {
	Code Code `json:"code"`
	// Count is the number of Pods; Pods names up to ten of them.
	Count int      `json:"count"`
	Pods  []string `json:"pods"`
	// Example is the blocker of the first of them.
	Example Reason `json:"example"`
}
