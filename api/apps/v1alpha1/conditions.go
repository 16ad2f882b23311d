package v1alpha1

// Types of CollaSet conditions. Writer: collaset-controller. Readers: users, deployment tools that assess health,
// tests.
const (
	// CollaSetReady is True when the spec of observedGeneration is reached: every desired Pod exists, is at its desired
	// revision and is available, and there are no surplus Pods.
	CollaSetReady = "Ready"

	// CollaSetReconciling is True while the controller works towards Ready, and False or absent otherwise. It is never
	// True together with Ready.
	CollaSetReconciling = "Reconciling"

	// CollaSetStalled is True when there is no progress until a user changes something; the message names it. It is
	// never True together with Ready.
	CollaSetStalled = "Stalled"

	// CollaSetProgressing is the state of the current rollout: True while Pods are updated or when it is complete,
	// False when it is paused or has stopped.
	CollaSetProgressing = "Progressing"

	// CollaSetScale is False, with the error, when the last attempt to add or remove Pods failed. True means only that
	// it did not fail.
	CollaSetScale = "Scale"

	// CollaSetUpdate is False, with the error, when the last attempt to update Pods failed. True does not mean that the
	// rollout is complete; CollaSetReady does.
	CollaSetUpdate = "Update"

	// CollaSetTerminating exists only while the CollaSet is being deleted: False while something is still to be
	// released, True with ReasonDeleted when only the finalizer is left.
	CollaSetTerminating = "Terminating"
)

// Types of OperationJob conditions. Writer: operationjob-controller. Readers: users, deployment tools that assess
// health.
const (
	// OperationJobReady is True when every target has succeeded.
	OperationJobReady = "Ready"
	// OperationJobReconciling is True while targets are under way, or can start.
	OperationJobReconciling = "Reconciling"
	// OperationJobStalled is True when the job has failed, or will unless a user changes something.
	OperationJobStalled = "Stalled"
)

// Types of PodDecoration conditions. Writer: poddecoration-controller. Readers: users, deployment tools that assess
// health.
const (
	// PodDecorationReady is True when every Pod that is to have the template serves with it.
	PodDecorationReady = "Ready"
	// PodDecorationReconciling is True while Pods are brought to it.
	PodDecorationReconciling = "Reconciling"
	// PodDecorationStalled is True when that does not go on until a user changes something; the message names it.
	PodDecorationStalled = "Stalled"
	// PodDecorationProgressing is the state of the current rollout: True while Pods are updated or when it is complete,
	// False when it is paused or has stopped.
	PodDecorationProgressing = "Progressing"
)

// ConditionReason is the machine-readable reason of a condition: CamelCase, stable.
type ConditionReason string

// Reasons of CollaSetReady, CollaSetReconciling, CollaSetStalled and CollaSetProgressing.
const (
	// ReasonAvailable: every desired Pod is available at its desired revision.
	ReasonAvailable ConditionReason = "Available"
	// ReasonUnavailable: number and revisions of Pods are as desired, but some Pods are not available.
	ReasonUnavailable ConditionReason = "Unavailable"
	// ReasonScaling: Pods are being added or removed.
	ReasonScaling ConditionReason = "Scaling"
	// ReasonTerminating: the CollaSet is being deleted, and its Pods leave first.
	ReasonTerminating ConditionReason = "Terminating"
	// ReasonUpdating: Pods are being updated or replaced.
	ReasonUpdating ConditionReason = "Updating"
	// ReasonRolloutComplete: every Pod that the update strategy selects is at the updated revision, and has been
	// available at it.
	ReasonRolloutComplete ConditionReason = "RolloutComplete"
	// ReasonPaused: spec.paused prevents what is left to do.
	ReasonPaused ConditionReason = "Paused"
	// ReasonBlocked: status.blockers has the reason for every remaining Pod.
	ReasonBlocked ConditionReason = "Blocked"
	// ReasonInvalidSpec: the spec cannot be acted on. The message names the field, the value and the remedy.
	ReasonInvalidSpec ConditionReason = "InvalidSpec"
	// ReasonReconciled: nothing is left to do.
	ReasonReconciled ConditionReason = "Reconciled"
	// ReasonProgressDeadlineExceeded (Progressing=False): there was no progress within spec.progressDeadlineSeconds.
	ReasonProgressDeadlineExceeded ConditionReason = "ProgressDeadlineExceeded"
	// ReasonRolloutHalted: spec.updateStrategy.failurePolicy stopped the rollout that is in status.halted.
	ReasonRolloutHalted ConditionReason = "RolloutHalted"
	// ReasonRolledBack: spec.updateStrategy.failurePolicy stopped the rollout, and its Pods return to the revision
	// before.
	ReasonRolledBack ConditionReason = "RolledBack"
	// ReasonFailed: the last attempt failed and is retried. The error is in CollaSetScale, CollaSetUpdate or
	// CollaSetTerminating, or in CollaSetReady if nothing could be decided.
	ReasonFailed ConditionReason = "Failed"
)

// Reasons of CollaSetScale and CollaSetUpdate, as Kuperator has them.
const (
	// ReasonScaled (Scale=True): the number of Pods is the desired one. Until then the reason is ReasonScaling.
	ReasonScaled ConditionReason = "Scaled"
	// ReasonScaleOutFailed (Scale=False): creating a Pod or claim failed.
	ReasonScaleOutFailed ConditionReason = "ScaleOutFailed"
	// ReasonScaleInFailed (Scale=False): requesting, recording or performing the removal of a Pod failed.
	ReasonScaleInFailed ConditionReason = "ScaleInFailed"
	// ReasonUpdated (Update=True): every Pod that the update strategy selects is at the updated revision, and
	// available. Until then the reason is ReasonUpdating.
	ReasonUpdated ConditionReason = "Updated"
	// ReasonUpdateFailed (Update=False): requesting, recording or performing the update of a Pod failed.
	ReasonUpdateFailed ConditionReason = "UpdateFailed"
)

// Reasons of CollaSetTerminating, as Kuperator has them.
const (
	// ReasonReclaimSubResourcesFailed (False): releasing the claims failed.
	ReasonReclaimSubResourcesFailed ConditionReason = "ReclaimSubResourcesFailed"
	// ReasonReclaimOwnerReferencesFailed (False): removing foreign owner references from Pods failed.
	ReasonReclaimOwnerReferencesFailed ConditionReason = "ReclaimOwnerReferencesFailed"
	// ReasonReclaimTargetsDeletionFailed (False): requesting the deletion of the Pods failed.
	ReasonReclaimTargetsDeletionFailed ConditionReason = "ReclaimTargetsDeletionFailed"
	// ReasonReclaimingTargetsDeletion (False): Pods are being drained and deleted.
	ReasonReclaimingTargetsDeletion ConditionReason = "ReclaimingTargetsDeletion"
	// ReasonReclaimResourceContext (False): releasing the ResourceContext entries failed.
	ReasonReclaimResourceContext ConditionReason = "ReclaimResourceContext"
	// ReasonDeleted (True): everything is released.
	ReasonDeleted ConditionReason = "Deleted"
)

// Types of PodTransitionRule conditions. Writer: podtransitionrule-controller.
const (
	// RuleReady is True when the rule of observedGeneration is in force and can be evaluated.
	RuleReady = "Ready"

	// RuleStalled is True when the rule cannot be evaluated until a user changes it; the message names what. Until then
	// the Pods that it selects wait.
	RuleStalled = "Stalled"

	// RuleReconciling is True while the rule's verdicts will change without a user: a webhook has not answered, or a
	// grant is written to some rules of a Pod and not yet to all.
	RuleReconciling = "Reconciling"
)

// Reasons of PodTransitionRule conditions.
const (
	// ReasonInForce (Ready=True, Stalled=False): the rule is evaluated.
	ReasonInForce ConditionReason = "InForce"
	// ReasonAskingWebhook (Reconciling=True): a webhook has been asked and has not given its final answer.
	ReasonAskingWebhook ConditionReason = "AskingWebhook"
	// ReasonExtendingGrants (Reconciling=True): grants are being extended to all rules of their Pods.
	ReasonExtendingGrants ConditionReason = "ExtendingGrants"
	// ReasonFrozen (Reconciling=False): no new grants are given while the namespace or the cluster is frozen.
	ReasonFrozen ConditionReason = "Frozen"
	// ReasonInvalidRule (Ready=False, Stalled=True): the rule cannot be evaluated. The message names the field, the
	// value and the remedy.
	ReasonInvalidRule ConditionReason = "InvalidRule"
	// ReasonWebhookUnreachable (Ready=False): a webhook of the rule does not answer. The request is retried.
	ReasonWebhookUnreachable ConditionReason = "WebhookUnreachable"
)
