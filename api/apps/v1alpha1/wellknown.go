package v1alpha1

// Labels on Pods.
const (
	// ControlLabel with ControlValue marks a Pod (or claim) as managed by the suite. Only managed Pods take part in the
	// lifecycle, are seen by the Pod webhooks and may be included in a CollaSet.
	// Writer: collaset-controller at creation, or the user in any workload's Pod template. Readers: every component.
	// Format: exactly ControlValue; any other value means not managed. Lifetime: that of the Pod.
	ControlLabel = "kusionstack.io/control"

	// ControlValue is the only value of ControlLabel that means managed.
	ControlValue = "true"

	// InstanceIDLabel connects a Pod, its claims and its ResourceContext entry.
	// Writer: collaset-controller at creation and at inclusion. Reader: collaset-controller. Format: decimal integer of
	// at least 0; absent or invalid means that the Pod has no ID. Lifetime: that of the Pod. It is also on
	// PersistentVolumeClaims.
	InstanceIDLabel = "collaset.kusionstack.io/instance-id"

	// UpdateIncludedLabel selects a Pod for an update by label (spec.updateStrategy.rollingUpdate.byLabel).
	// Writer: the user. Reader: collaset-controller, which removes it when the Pod's update has finished, but not when
	// the update was cancelled. Format: any value.
	UpdateIncludedLabel = "collaset.kusionstack.io/update-included"

	// ToDeleteLabel requests the deletion of a Pod through its lifecycle.
	// Writers: the user, collaset-controller, and webhook-server for a graceful deletion. Readers:
	// lifecycle-controller, collaset-controller. Format: UnixNano in decimal, or any value. Lifetime: until the Pod is
	// gone.
	ToDeleteLabel = "collaset.kusionstack.io/to-delete"

	// ToReplaceLabel requests the replacement of a Pod; removing it cancels the replacement.
	// Writers: the user, collaset-controller. Reader: collaset-controller. Format: UnixNano in decimal, or "true".
	ToReplaceLabel = "collaset.kusionstack.io/to-replace"

	// ReplacedByReplaceUpdateLabel, on a Pod that is being replaced, means that an update replaces it.
	// Writer and reader: collaset-controller. Format: name of the ControllerRevision of the update. Lifetime: that of
	// the replacement pair.
	ReplacedByReplaceUpdateLabel = "collaset.kusionstack.io/replaced-by-replace-update"

	// ReplacePairNewIDLabel, on a Pod that is being replaced, is the instance ID of its replacement.
	// Writer and reader: collaset-controller. Format: decimal integer. Lifetime: that of the replacement pair.
	ReplacePairNewIDLabel = "collaset.kusionstack.io/replace-pair-new-id"

	// ReplacePairOriginNameLabel, on a replacement, is the name of the Pod that it replaces.
	// Writer and reader: collaset-controller. Format: Pod name. Lifetime: that of the replacement pair.
	ReplacePairOriginNameLabel = "collaset.kusionstack.io/replace-pair-origin-name"

	// ToExcludeLabel requests to orphan a Pod, as spec.scaleStrategy.podToExclude does.
	// Writer: the user. Reader: collaset-controller, which removes it when the Pod is excluded. Format: any value.
	ToExcludeLabel = "collaset.kusionstack.io/to-exclude"

	// OrphanedLabel marks a Pod or claim as excluded from its CollaSet.
	// Writer: collaset-controller, which adds it at exclusion and removes it at inclusion. Readers:
	// collaset-controller, users. Format: OrphanedValue.
	OrphanedLabel = "collaset.kusionstack.io/orphaned"

	// OrphanedValue is the value of OrphanedLabel.
	OrphanedValue = "true"

	// DecorateAllPodsLabel on a Namespace has webhook-server decorate Pods that take no part in the lifecycle as well.
	// They are decorated when they are created, and never touched after that.
	// Writer: a user. Reader: the API server, by the webhook configuration. Value: "true". Not in Kuperator v0.7.
	DecorateAllPodsLabel = "poddecoration.kusionstack.io/decorate-all-pods"

	// PodDecorationLabelPrefix, followed by the name of a PodDecoration, is the revision of it that is applied to the
	// Pod.
	// Writers and lifetime: as PodDecorationRevisionsAnnotation. Format: revision name.
	PodDecorationLabelPrefix = "poddecoration.kusionstack.io/pd-"
)

// Annotations on Pods.
const (
	// LastPodStatusAnnotation is what must change in the Pod's status before an update in place is complete.
	// Writer: collaset-controller, with the patch in place. Removed when the update has finished, by
	// lifecycle-controller if it has "finish", by collaset-controller otherwise. Readers: both.
	//
	// Format: JSON {"containerStates":{"<container>":{"latestImage":"..","lastImageID":".."}}}, with lastImageID only
	// for containers whose image changed; {} for a change of metadata only. Besides:
	//
	//   - "lastContainerID" and others, in a container;
	//   - "resize" (by container) and "podResize": the resources that are sent to pods/resize;
	//   - "refused": why the API server refuses them;
	//   - "finish", {"id","type","request"}: the operation that lifecycle-controller finishes when all of these
	//     changes are observed. request is the value of its operating label.
	LastPodStatusAnnotation = "collaset.kusionstack.io/last-pod-status"

	// ConfigurationAnnotation has the ConfigMaps and Secrets that have changed since their CollaSet follows them, with the
	// content that the Pod was created or updated for. In spec.template it is ignored.
	//
	// Writer: collaset-controller, in revisions and Pods. Format: kind/name=hash of each, sorted, separated by commas.
	// Lifetime: that of the Pod's revision.
	ConfigurationAnnotation = "collaset.kusionstack.io/configuration"

	// PodDecorationRevisionsAnnotation is the list of PodDecorations that were applied to the Pod.
	// Writers: webhook-server at the Pod's creation, collaset-controller and poddecoration-controller. Readers: the same.
	// Format: JSON array of {"name","revision"}; "[]" if none apply.
	PodDecorationRevisionsAnnotation = "poddecoration.kusionstack.io/revisions"

	// PodDecorationDesiredAnnotation is the list of PodDecorations that the Pod is to have. Absent means those that it
	// has.
	// Writer: poddecoration-controller. Readers: collaset-controller, which updates its Pods to them, together with a new
	// revision of the CollaSet if there is one, and poddecoration-controller, which updates the others. Format: as
	// PodDecorationRevisionsAnnotation. Lifetime: that of the Pod.
	PodDecorationDesiredAnnotation = "poddecoration.kusionstack.io/desired"

	// PodDecorationRefusedAnnotation is the list of PodDecorations that the Pod was to have and cannot have.
	// Writers and readers: as PodDecorationRevisionsAnnotation. Format: JSON array of {"name","revision","why"}; absent if
	// there are none.
	PodDecorationRefusedAnnotation = "poddecoration.kusionstack.io/refused"

	// PodDecorationChangesAnnotation is what PodDecorations did to the Pod that is not seen on it: what labels were
	// before, by which the Pod is selected, and which annotations and init containers they added.
	// Writers: as PodDecorationRevisionsAnnotation. Readers: the same. Format: JSON object {"labels", "annotations",
	// "initContainers"}; a label that was not there is null.
	// Lifetime: that of the Pod, or until it has no PodDecoration. Not in Kuperator v0.7.
	PodDecorationChangesAnnotation = "poddecoration.kusionstack.io/changes"
)

// Labels on PersistentVolumeClaims, besides InstanceIDLabel, ControlLabel and OrphanedLabel.
const (
	// ClaimTemplateNameLabel is the name of the claim template of a claim.
	// Writer and reader: collaset-controller. Lifetime: that of the claim. Claims of early Kuperator versions do not
	// have it.
	ClaimTemplateNameLabel = "collaset.kusionstack.io/pvc-template-name"

	// ClaimTemplateHashLabel is the hash of the claim template of a claim.
	// Writer and reader: collaset-controller. Lifetime: that of the claim; changed when the claim is expanded. A claim
	// with another hash may still fit: see docs/volumes.md.
	ClaimTemplateHashLabel = "collaset.kusionstack.io/pvc-template-hash"
)

// Annotations on PersistentVolumeClaims.
const (
	// ClaimOwnerAnnotation is the name of the CollaSet of a claim without an owner reference, if it cannot be derived
	// from the claim's name: the claim was included from another CollaSet.
	// Writer and reader: collaset-controller. Format: name of a CollaSet. Lifetime: that of the claim, or until it is
	// excluded.
	ClaimOwnerAnnotation = "collaset.kusionstack.io/pvc-owner"
)

// Labels on ControllerRevisions, besides the selector's matchLabels.
const (
	// RevisionHashLabel is the hash of the revision's content. Writer and reader: collaset-controller.
	RevisionHashLabel = "controller.kubernetes.io/hash"

	// RevisionCollisionLabel is the collision count that is part of the hash, in decimal.
	// Writer and reader: collaset-controller.
	RevisionCollisionLabel = "controller.kubernetes.io/collision"
)

// Finalizers.
const (
	// CollaSetFinalizer keeps a CollaSet until its Pods are drained and deleted, and its claims and ResourceContext
	// entries are released.
	// Writer: collaset-controller.
	CollaSetFinalizer = "apps.kusionstack.io/pre-reclaim"

	// ProtectionFinalizer keeps an OperationJob until what it has left on Pods is taken away.
	// Writer: operationjob-controller.
	//
	// It is also the finalizer of Kuperator v0.7 on a PodTransitionRule. podtransitionrule-controller adds none, because
	// nothing outside the rule has to be cleaned up. It removes this one, so that a rule of Kuperator v0.7 can be
	// deleted.
	ProtectionFinalizer = "finalizer.operating.kusionstack.io/protected"

	// ReplaceProtectionFinalizer keeps a Pod that an OperationJob has replaced until the job knows the Pod that takes
	// its place.
	// Writer: operationjob-controller.
	ReplaceProtectionFinalizer = "finalizer.operationjob.kusionstack.io/replace-protected"
)
