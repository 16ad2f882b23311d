package insight

import "kusionstack.io/kuperator/api/podops"

// Code is the word for a reason. Besides these, the words of podops.WaitReason and the reasons in a CollaSet's
// status.blockers and conditions are used as they are.
type Code string

// What is found behind a rule that has not granted.
const (
	// CodeBudgetSpent: as many Pods are out of service as an availablePolicy lets.
	CodeBudgetSpent Code = "BudgetSpent"
	// CodeTopologyBudgetSpent: as many domains are disrupted as may be.
	CodeTopologyBudgetSpent Code = "TopologyBudgetSpent"
	// CodeGroupBudgetSpent: as many groups of Pods are disrupted as may be.
	CodeGroupBudgetSpent Code = "GroupBudgetSpent"
	// CodeLabelCheck: the Pod lacks labels that a rule demands.
	CodeLabelCheck Code = "LabelCheck"
	// CodeWebhookRule: a webhook has not let the Pod pass, or cannot be asked.
	CodeWebhookRule Code = "WebhookRule"
	// CodeInvalidRule: the rule cannot be evaluated.
	CodeInvalidRule Code = "InvalidRule"
	// CodeOtherRule: another rule of the same Pod holds it back.
	CodeOtherRule Code = "OtherRule"
	// CodeRuleNotEvaluated: the rule has said nothing about the Pod yet.
	CodeRuleNotEvaluated Code = "RuleNotEvaluated"
)

// IsBudget reports whether the code means that Pods are out of service and hold a budget.
func (c Code) IsBudget() bool {
	return c == CodeBudgetSpent || c == CodeTopologyBudgetSpent || c == CodeGroupBudgetSpent
}

// What is found behind a Pod that does not get Ready, does not stop being Ready, or is not changed.
const (
	// CodeUnschedulable: no node takes the Pod.
	CodeUnschedulable Code = "Unschedulable"
	// CodeImagePull: an image cannot be pulled.
	CodeImagePull Code = "ImagePull"
	// CodeContainerCrashing: a container ends again and again.
	CodeContainerCrashing Code = "ContainerCrashing"
	// CodeContainerWaiting: a container cannot be started for another reason.
	CodeContainerWaiting Code = "ContainerWaiting"
	// CodeProbeFailing: a container runs and is not ready.
	CodeProbeFailing Code = "ProbeFailing"
	// CodeReadinessGate: a readiness gate of another program is closed.
	CodeReadinessGate Code = "ReadinessGate"
	// CodeKubeletBehind: the Pod's kubelet has not acted on, or not reported, what is written already.
	CodeKubeletBehind Code = "KubeletBehind"
	// CodeNodeNotReady: the Pod's node is not Ready, or gone.
	CodeNodeNotReady Code = "NodeNotReady"
	// CodeFinalizer: a finalizer keeps a deleted Pod.
	CodeFinalizer Code = "Finalizer"
	// CodeEnded: the Pod has run to its end.
	CodeEnded Code = "Ended"
)

// What is found behind waits for others.
const (
	// CodeProtectionFinalizer: a cooperator holds the Pod.
	CodeProtectionFinalizer Code = "ProtectionFinalizer"
	// CodeCooperatorMissing: a cooperator does not have the Pod back.
	CodeCooperatorMissing Code = "CooperatorMissing"
	// CodeControllerMissing: the component whose step it is does not run.
	CodeControllerMissing Code = "ControllerMissing"
)

// What is found in a CollaSet.
const (
	// CodePaused: spec.paused.
	CodePaused Code = "Paused"
	// CodeRolloutHalted: the failure policy stopped the rollout.
	CodeRolloutHalted Code = "RolloutHalted"
	// CodeHeldByPartition: the partition keeps the Pod at its revision, or targets of a job from starting.
	CodeHeldByPartition Code = "HeldByPartition"
	// CodeNotIncluded: Pods are updated by label and this one lacks it.
	CodeNotIncluded Code = "NotIncluded"
	// CodeQuota: a quota refuses Pods.
	CodeQuota Code = "Quota"
	// CodeCreationRefused: the API server refuses Pods for another reason.
	CodeCreationRefused Code = "CreationRefused"
	// CodeNotObserved: collaset-controller has not looked at the present spec.
	CodeNotObserved Code = "SpecNotObserved"
	// CodeStalled: the condition Stalled.
	CodeStalled Code = "Stalled"
	// CodeQueued: the Pod's update has not begun, and nothing holds it back; or targets of a job have their turn later.
	CodeQueued Code = "Queued"
)

// What is found in an OperationJob. Besides, the reasons of its condition Stalled and of its targets' errors are used
// as they are.
const (
	// CodeFailurePolicy: too many targets failed for another one to start.
	CodeFailurePolicy Code = "FailurePolicy"
	// CodeOperationDelay: spec.operationDelaySeconds has not passed.
	CodeOperationDelay Code = "OperationDelay"
	// CodeActionPending: the program of the job's action has not answered.
	CodeActionPending Code = "ActionPending"
	// CodeTargetUnderWay: a target waits for what its job's status says, and its Pods do not show it.
	CodeTargetUnderWay Code = "TargetUnderWay"
)

const (
	codeFrozen          = Code(podops.WaitFrozen)
	codeLifecycle       = Code(podops.WaitLifecycle)
	codeOperatorAtWork  = Code(podops.WaitOperator)
	codeOtherOperation  = Code(podops.WaitOther)
	codeBlockedByRule   = Code(podops.WaitRule)
	codeWaitingForReady = Code(podops.WaitReady)
	// codeTerminating: what is asked about is being deleted.
	codeTerminating = Code("Terminating")
)
