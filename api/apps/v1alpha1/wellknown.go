package v1alpha1

// Labels on Pods.
const (
	// ControlLabel with ControlValue marks a Pod (or claim) as managed by the suite: only such Pods take part in the
	// lifecycle, pass the Pod webhooks and may be included in a CollaSet.
	// Writer: collaset-controller at creation, or the user in any workload's Pod template. Readers: every component.
	// Format: exactly ControlValue; any other value means not managed. Lifetime: that of the Pod.
	ControlLabel = "kusionstack.io/control"

	// ControlValue is the only value of ControlLabel that means managed.
	ControlValue = "true"

	// InstanceIDLabel links a Pod, its claims and its ResourceContext entry.
	// Writer: collaset-controller at creation and at inclusion. Readers: collaset-controller.
	// Format: decimal integer, not negative; absent or unparsable means the Pod has no ID. Lifetime: that of the Pod;
	// also on PersistentVolumeClaims.
	InstanceIDLabel = "collaset.kusionstack.io/instance-id"

	// UpdateIncludedLabel includes a Pod in an update by label (spec.updateStrategy.rollingUpdate.byLabel).
	// Writer: the user. Reader: collaset-controller, which removes it when the Pod's update has finished, not when it was
	// cancelled. Format: any value.
	UpdateIncludedLabel = "collaset.kusionstack.io/update-included"

	// ToDeleteLabel asks for the deletion of a Pod through its lifecycle.
	// Writers: the user, collaset-controller, webhook-server for a deletion that must be graceful. Readers:
	// lifecycle-controller, collaset-controller. Format: UnixNano in decimal, or any value. Lifetime: until the Pod is gone.
	ToDeleteLabel = "collaset.kusionstack.io/to-delete"

	// ToReplaceLabel asks for the replacement of a Pod; removing it cancels the replacement.
	// Writers: the user, collaset-controller. Reader: collaset-controller. Format: UnixNano in decimal, or "true".
	ToReplaceLabel = "collaset.kusionstack.io/to-replace"

	// ReplacedByReplaceUpdateLabel, on a Pod being replaced, says that the replacement is an update.
	// Writer and reader: collaset-controller. Format: name of the ControllerRevision that it updates to. Lifetime: that
	// of the pair.
	ReplacedByReplaceUpdateLabel = "collaset.kusionstack.io/replaced-by-replace-update"

	// ReplacePairNewIDLabel, on a Pod being replaced, is the instance ID of its replacement.
	// Writer and reader: collaset-controller. Format: decimal integer. Lifetime: that of the pair.
	ReplacePairNewIDLabel = "collaset.kusionstack.io/replace-pair-new-id"

	// ReplacePairOriginNameLabel, on a replacement, is the name of the Pod that it replaces.
	// Writer and reader: collaset-controller. Format: Pod name. Lifetime: that of the pair.
	ReplacePairOriginNameLabel = "collaset.kusionstack.io/replace-pair-origin-name"

	// ToExcludeLabel asks to orphan a Pod, as spec.scaleStrategy.podToExclude does.
	// Writer: the user. Reader: collaset-controller, which removes it when the Pod is excluded. Format: any value.
	ToExcludeLabel = "collaset.kusionstack.io/to-exclude"

	// OrphanedLabel marks a Pod or claim as excluded from its CollaSet.
	// Writer: collaset-controller at exclusion; it removes it at inclusion. Readers: collaset-controller, users.
	// Format: OrphanedValue.
	OrphanedLabel = "collaset.kusionstack.io/orphaned"

	// OrphanedValue is the value of OrphanedLabel.
	OrphanedValue = "true"

	// PodDecorationLabelPrefix, followed by the name of a PodDecoration, records the revision applied to the Pod.
	// Writer: collaset-controller when it builds the Pod. Format: revision name. Lifetime: that of the Pod's revision.
	PodDecorationLabelPrefix = "poddecoration.kusionstack.io/pd-"
)

// Annotations on Pods.
const (
	// LastPodStatusAnnotation records what an in-place update has to see change before it is done.
	// Writer: collaset-controller with the in-place patch; it, or with "finish" lifecycle-controller, removes it when the update has finished.
	// Readers: both. Format: JSON {"containerStates":{"<container>":{"latestImage":"..","lastImageID":".."}}},
	// with lastImageID only for containers whose image changed; {} for a change of metadata only. Besides, with
	// "lastContainerID" and others in a container; with "resize" (by container) and "podResize" as the resources that
	// pods/resize is told; with "refused" as why the API server refuses them; and with "finish", {"id","type","request"}, as the operation that lifecycle-controller
	// finishes when all of it is seen, request being the value of its operating label.
	LastPodStatusAnnotation = "collaset.kusionstack.io/last-pod-status"

	// PodDecorationRevisionsAnnotation records which PodDecorations were applied to the Pod.
	// Writer and reader: collaset-controller. Format: JSON array of {"name","revision"}; "[]" when none apply.
	PodDecorationRevisionsAnnotation = "poddecoration.kusionstack.io/revisions"
)

// Labels on PersistentVolumeClaims, besides InstanceIDLabel, ControlLabel and OrphanedLabel.
const (
	// ClaimTemplateNameLabel is the name of the volume claim template that a claim was made from.
	// Writer and reader: collaset-controller. Lifetime: that of the claim. Claims of early Kuperator lack it.
	ClaimTemplateNameLabel = "collaset.kusionstack.io/pvc-template-name"

	// ClaimTemplateHashLabel is the hash of the volume claim template that a claim was made from.
	// Writer and reader: collaset-controller. Lifetime: that of the claim, moved on when the claim is expanded. A claim
	// with another hash may still fit: see docs/collaset.md.
	ClaimTemplateHashLabel = "collaset.kusionstack.io/pvc-template-hash"
)

// Annotations on PersistentVolumeClaims.
const (
	// ClaimOwnerAnnotation names the CollaSet that an ownerless claim belongs to where the claim's name does not say it:
	// the claim was included from another CollaSet.
	// Writer and reader: collaset-controller. Format: name of a CollaSet. Lifetime: that of the claim, or until it is excluded.
	ClaimOwnerAnnotation = "collaset.kusionstack.io/pvc-owner"
)

// Labels on ControllerRevisions, besides the selector's matchLabels.
const (
	// RevisionHashLabel is the hash of the revision's content. Writer and reader: collaset-controller.
	RevisionHashLabel = "controller.kubernetes.io/hash"

	// RevisionCollisionLabel is the collision count with which the hash was made, in decimal.
	// Writer and reader: collaset-controller.
	RevisionCollisionLabel = "controller.kubernetes.io/collision"
)

// Finalizers.
const (
	// CollaSetFinalizer holds a CollaSet until its Pods are drained and deleted and its claims and ResourceContext
	// entries are released. Writer: collaset-controller.
	CollaSetFinalizer = "apps.kusionstack.io/pre-reclaim"

	// ProtectionFinalizer is what Kuperator puts on a PodTransitionRule. podtransitionrule-controller needs none of its
	// own (nothing outside the rule has to be cleaned up); it removes the one that it finds, so that a rule taken over
	// from Kuperator can be deleted.
	ProtectionFinalizer = "finalizer.operating.kusionstack.io/protected"
)
