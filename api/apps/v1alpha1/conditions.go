package v1alpha1

// Types of CollaSet conditions. Writer: collaset-controller. Readers: users, deployment tools that judge health, tests.
const (
	// CollaSetReady is True when the spec of observedGeneration is reached: every wanted Pod exists, is at its wanted
	// revision and is available, and none is left over.
	CollaSetReady = "Ready"

	// CollaSetReconciling is True while the controller is on its way to Ready, and False or absent otherwise. It is
	// never True together with Ready.
	CollaSetReconciling = "Reconciling"

	// CollaSetStalled is True when nothing goes on until somebody changes something; its message says what. It is never
	// True together with Ready.
	CollaSetStalled = "Stalled"

	// CollaSetProgressing says how the present rollout fares: True while Pods move or when it is complete, False when it
	// is paused or stuck.
	CollaSetProgressing = "Progressing"

	// CollaSetScale is False when the last attempt to add or remove Pods failed, and has the error. True means no more than
	// that it did not.
	CollaSetScale = "Scale"

	// CollaSetUpdate is False when the last attempt to update Pods failed, and has the error. True does not mean that the
	// rollout is complete; CollaSetReady does.
	CollaSetUpdate = "Update"

	// CollaSetTerminating exists only while the CollaSet is being deleted: False while something is still to be released,
	// True with ReasonDeleted when nothing is left but the finalizer.
	CollaSetTerminating = "Terminating"
)

// ConditionReason is the machine-readable reason of a condition: CamelCase, stable.
type ConditionReason string

// Reasons of CollaSetReady, CollaSetReconciling, CollaSetStalled and CollaSetProgressing.
const (
	// ReasonAvailable: every wanted Pod is available at its wanted revision.
	ReasonAvailable ConditionReason = "Available"
	// ReasonUnavailable: Pods are as wanted, but some are not available.
	ReasonUnavailable ConditionReason = "Unavailable"
	// ReasonScaling: Pods are being added or removed.
	ReasonScaling ConditionReason = "Scaling"
	// ReasonUpdating: Pods are being updated or replaced.
	ReasonUpdating ConditionReason = "Updating"
	// ReasonRolloutComplete: every Pod that the strategy chooses is at the updated revision, and has been available with it.
	ReasonRolloutComplete ConditionReason = "RolloutComplete"
	// ReasonPaused: spec.paused holds back what is left to do.
	ReasonPaused ConditionReason = "Paused"
	// ReasonBlocked: status.blockers says what every remaining Pod waits for.
	ReasonBlocked ConditionReason = "Blocked"
	// ReasonInvalidSpec: the spec cannot be acted on; the message names the field, the value and the remedy.
	ReasonInvalidSpec ConditionReason = "InvalidSpec"
	// ReasonReconciled: nothing is left to do.
	ReasonReconciled ConditionReason = "Reconciled"
	// ReasonProgressDeadlineExceeded (Progressing=False): nothing got better within spec.progressDeadlineSeconds.
	ReasonProgressDeadlineExceeded ConditionReason = "ProgressDeadlineExceeded"
	// ReasonRolloutHalted: spec.updateStrategy.failurePolicy stopped the rollout; status.halted says which.
	ReasonRolloutHalted ConditionReason = "RolloutHalted"
	// ReasonRolledBack: spec.updateStrategy.failurePolicy stopped the rollout, and its Pods go back.
	ReasonRolledBack ConditionReason = "RolledBack"
	// ReasonFailed: the last attempt failed and is repeated; CollaSetScale, CollaSetUpdate or CollaSetTerminating has the
	// error, or CollaSetReady if nothing could be decided.
	ReasonFailed ConditionReason = "Failed"
)

// Reasons of CollaSetScale and CollaSetUpdate, as Kuperator has them.
const (
	// ReasonScaled (Scale=True): there are as many Pods as are wanted. Until then it is ReasonScaling.
	ReasonScaled ConditionReason = "Scaled"
	// ReasonScaleOutFailed (Scale=False): creating a Pod or claim failed.
	ReasonScaleOutFailed ConditionReason = "ScaleOutFailed"
	// ReasonScaleInFailed (Scale=False): beginning, recording or carrying out the removal of a Pod failed.
	ReasonScaleInFailed ConditionReason = "ScaleInFailed"
	// ReasonUpdated (Update=True): every Pod that the strategy chooses is at the updated revision, and available. Until then
	// it is ReasonUpdating.
	ReasonUpdated ConditionReason = "Updated"
	// ReasonUpdateFailed (Update=False): beginning, recording or carrying out the update of a Pod failed.
	ReasonUpdateFailed ConditionReason = "UpdateFailed"
)

// Reasons of CollaSetTerminating, as Kuperator has them.
const (
	// ReasonReclaimSubResourcesFailed (False): releasing the claims failed.
	ReasonReclaimSubResourcesFailed ConditionReason = "ReclaimSubResourcesFailed"
	// ReasonReclaimOwnerReferencesFailed (False): removing foreign owner references from Pods failed.
	ReasonReclaimOwnerReferencesFailed ConditionReason = "ReclaimOwnerReferencesFailed"
	// ReasonReclaimTargetsDeletionFailed (False): asking for the deletion of the Pods failed.
	ReasonReclaimTargetsDeletionFailed ConditionReason = "ReclaimTargetsDeletionFailed"
	// ReasonReclaimingTargetsDeletion (False): Pods are on their way out.
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

	// RuleStalled is True when the rule cannot be evaluated until somebody changes it; its message says what. Pods that it
	// selects wait meanwhile.
	RuleStalled = "Stalled"

	// RuleReconciling is True while something is under way that will change the rule's verdicts by itself: a webhook has
	// not answered, or a grant is written to some rules of a Pod and not yet to all.
	RuleReconciling = "Reconciling"
)

// Reasons of PodTransitionRule conditions.
const (
	// ReasonInForce (Ready=True, Stalled=False): the rule is evaluated.
	ReasonInForce ConditionReason = "InForce"
	// ReasonAskingWebhook (Reconciling=True): a webhook has been asked and has not answered finally.
	ReasonAskingWebhook ConditionReason = "AskingWebhook"
	// ReasonExtendingGrants (Reconciling=True): grants are being extended to all rules of their Pods.
	ReasonExtendingGrants ConditionReason = "ExtendingGrants"
	// ReasonFrozen (Reconciling=False): nothing new is granted while the namespace or the cluster is frozen.
	ReasonFrozen ConditionReason = "Frozen"
	// ReasonInvalidRule (Ready=False, Stalled=True): the rule cannot be evaluated; the message names the field, the value
	// and the remedy.
	ReasonInvalidRule ConditionReason = "InvalidRule"
	// ReasonWebhookUnreachable (Ready=False): a webhook that the rule asks does not answer; it is asked again.
	ReasonWebhookUnreachable ConditionReason = "WebhookUnreachable"
)
