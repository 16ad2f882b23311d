package podops

import "strings"

// Key prefixes of one operation; the full label key is "<prefix>/<id>". Unless noted otherwise, a value is a decimal
// Unix time in nanoseconds by the writer's clock, and only the presence of the key has a meaning.
const (
	// OperatingPrefix marks a request. Written by the operator when it begins, and removed by it when it has finished.
	// Its value identifies the request: a new value is a new request, which needs its own permission.
	OperatingPrefix = "operating.podopslifecycle.kusionstack.io"
	// OperationTypePrefix holds the operation's type, for example "update".
	// Written by the operator together with OperatingPrefix.
	OperationTypePrefix = "operation-type.podopslifecycle.kusionstack.io"
	// PreCheckPrefix puts the Pod in stage PreCheck: rules are evaluated.
	PreCheckPrefix = "pre-check.podopslifecycle.kusionstack.io"
	// PreCheckedPrefix means that every rule has granted this request.
	PreCheckedPrefix = "pre-checked.podopslifecycle.kusionstack.io"
	// PermissionPrefix is keyed by operation type, not by ID: at least one operation of that type has permission and
	// has not finished.
	PermissionPrefix = "operation-permission.podopslifecycle.kusionstack.io"
	// PreparingPrefix requests that cooperators leave; the Pod goes out of service.
	PreparingPrefix = "preparing.podopslifecycle.kusionstack.io"
	// OperatePrefix is the permission to act. Its value is the time it was given.
	OperatePrefix = "operate.podopslifecycle.kusionstack.io"
	// OperatedPrefix marks a finished operation until the Pod is back in service. Beside OperatingPrefix it means that the
	// Pod was operated on, has not been post-checked, and must stay offline while the ID asks again. Its value identifies
	// the request to PostCheck rules.
	OperatedPrefix = "operated.podopslifecycle.kusionstack.io"
	// DoneOperationTypePrefix holds the type of a finished operation; always
	// together with OperatedPrefix.
	DoneOperationTypePrefix = "done-operation-type.podopslifecycle.kusionstack.io"
	// PostCheckPrefix puts the Pod in stage PostCheck: rules are evaluated.
	PostCheckPrefix = "post-check.podopslifecycle.kusionstack.io"
	// PostCheckedPrefix means that every rule has granted the Pod's return.
	PostCheckedPrefix = "post-checked.podopslifecycle.kusionstack.io"
	// CompletingPrefix requests that cooperators join; the Pod returns to service.
	CompletingPrefix = "completing.podopslifecycle.kusionstack.io"
	// UndoOperationTypePrefix cancels the operation: the next program that advances the Pod removes every key of the
	// ID. Written by operators that do not use Cancel.
	UndoOperationTypePrefix = "undo-operation-type.podopslifecycle.kusionstack.io"
	// WaivedPrefix means that the operator may act although cooperators have not left, because a deadline with policy
	// Proceed expired. Its value is the request that it covers. Written by lifecycle-controller with OperatePrefix.
	WaivedPrefix = "waived.podopslifecycle.kusionstack.io"
)

// mark is one of the keys that belong to an ID: its place in prefixes.
type mark int

const (
	markOperating mark = iota
	markOperationType
	markPreCheck
	markPreChecked
	markPreparing
	markOperate
	markOperated
	markDoneOperationType
	markPostCheck
	markPostChecked
	markCompleting
	markUndoOperationType
	markWaived
)

// prefixes are the keys that belong to an ID. All of them are removed with it.
var prefixes = [...]string{
	markOperating: OperatingPrefix, markOperationType: OperationTypePrefix, markPreCheck: PreCheckPrefix,
	markPreChecked: PreCheckedPrefix, markPreparing: PreparingPrefix, markOperate: OperatePrefix,
	markOperated: OperatedPrefix, markDoneOperationType: DoneOperationTypePrefix, markPostCheck: PostCheckPrefix,
	markPostChecked: PostCheckedPrefix, markCompleting: CompletingPrefix, markUndoOperationType: UndoOperationTypePrefix,
	markWaived: WaivedPrefix,
}

// Labels and annotations of the Pod as a whole.
const (
	// ServiceAvailableLabel means that the Pod serves: it is Ready and in traffic, and no operation is under way.
	// Written and removed through Advance.
	ServiceAvailableLabel = "podopslifecycle.kusionstack.io/service-available"
	// CreatingLabel marks a new Pod until it first serves. Written by the workload at creation.
	CreatingLabel = "podopslifecycle.kusionstack.io/creating"
	// RecreatedLabel marks a Pod that takes the place of an earlier one until it first serves. Written by the workload
	// at creation. Not to be confused with CompletingPrefix, which has an ID.
	RecreatedLabel = "podopslifecycle.kusionstack.io/completing"
	// PreparingToDeleteLabel informs users' rules that the operation will delete the Pod. Written at Begin of such
	// operations, and removed when they are undone (upstream v0.7 never removes it).
	PreparingToDeleteLabel = "podopslifecycle.kusionstack.io/preparing-to-delete"
	// StayOfflineLabel, with any value, keeps a Pod offline. Written by users.
	StayOfflineLabel = "podopslifecycle.kusionstack.io/stay-offline"
	// UnheldLabel marks a Pod that was taken out of service although an expected cooperator did not hold it. No
	// operation enters Operate while the Pod has the label, which gives a cooperator that was about to bring the Pod
	// back time to undo that. Its value is a time. Written by Advance and removed by lifecycle-controller.
	UnheldLabel = "podopslifecycle.kusionstack.io/unheld"

	// AvailableConditionsAnnotation is JSON {"expectedFinalizers":{"<Kind>/<namespace>/<name>":"<finalizer>"}}: the
	// cooperators without which the Pod does not count as serving. Written by cooperators through Expect and Forget.
	AvailableConditionsAnnotation = "pod.kusionstack.io/available-conditions"
	// SkipRulesAnnotation is JSON {"skipRules":["<rule>",…]}: names of rules that do not apply to this Pod. Written by
	// users.
	SkipRulesAnnotation = "podtransitionrule.kusionstack.io/skip-rule-conditions"

	// RuleDetailPrefix, followed by "/" and a PodTransitionRule's name, is an annotation with the reasons, as JSON, why
	// a Pod has waited for that rule for a while. Written by podtransitionrule-controller.
	RuleDetailPrefix = "detail.podtransitionrule.kusionstack.io"
	// DeadlinesAnnotation is JSON {"<phase>[/<type>]":{"after":"10m","policy":"Wait"}}: how long the phases of
	// operations on this Pod may take. Written by users.
	DeadlinesAnnotation = "podopslifecycle.kusionstack.io/deadlines"
	// DeletionRefusedAnnotation is why the API server refuses to delete a Pod that is marked for graceful deletion. The
	// Pod stays in service meanwhile. Written by lifecycle-controller.
	DeletionRefusedAnnotation = "podopslifecycle.kusionstack.io/deletion-refused"
	// FreezeAnnotation, on a Namespace, keeps all its Pods in service; its value is the reason. Written by users.
	FreezeAnnotation = "podopslifecycle.kusionstack.io/freeze"
	// FreezeClusterAnnotation, on the Namespace that the suite runs in, keeps all Pods of the cluster in service; its
	// value is the reason. Written by users.
	FreezeClusterAnnotation = "podopslifecycle.kusionstack.io/freeze-cluster"
	// GracefulDeletionLabel, on a Namespace or a Pod, is "enabled" or "disabled": whether deletions and evictions
	// follow the protocol. The Pod's label takes precedence. Written by users.
	GracefulDeletionLabel = "podopslifecycle.kusionstack.io/graceful-deletion"

	// OverdueCondition is a Pod condition: True while an operation is past the deadline of its phase.
	OverdueCondition = "podopslifecycle.kusionstack.io/OperationOverdue"
	// ServiceReadyCondition is the readiness gate and Pod condition by which the
	// protocol takes a Pod out of service and brings it back.
	ServiceReadyCondition = "pod.kusionstack.io/service-ready"

	// ProtectionFinalizerPrefix is the prefix of every cooperator's finalizer, "<prefix>/<unique>". While a Pod has
	// such a finalizer, something outside still depends on it, and no operation may start.
	ProtectionFinalizerPrefix = "prot.podopslifecycle.kusionstack.io"
)

// Operation types that the suite itself uses. Any label value is a legal type.
const (
	// TypeUpdate changes a Pod to another revision.
	TypeUpdate = "update"
	// TypeScaleIn removes a Pod because fewer are desired.
	TypeScaleIn = "scale-in"
	// TypeDelete removes a Pod whose deletion a user or a controller requested.
	TypeDelete = "delete"
)

// DeletionID is the ID under which lifecycle-controller deletes Pods that are marked for deletion, as in upstream v0.7.
// Its type is TypeDelete.
const DeletionID = "pod-delete"

// ProtectionFinalizers returns the finalizers by which cooperators hold the Pod.
func ProtectionFinalizers(finalizers []string) []string {
	var held []string
	for _, f := range finalizers {
		if strings.HasPrefix(f, ProtectionFinalizerPrefix) {
			held = append(held, f)
		}
	}
	return held
}

// domainSuffix ends the prefix of every key of an operation.
const domainSuffix = ".podopslifecycle.kusionstack.io"

// splitKey returns the mark and ID of a label key, and false if the key does not belong to an operation.
func splitKey(key string) (m mark, id string, ok bool) {
	prefix, id, ok := strings.Cut(key, "/")
	if !ok || id == "" || !strings.HasSuffix(prefix, domainSuffix) {
		return 0, "", false
	}
	for i := range prefixes {
		if prefixes[i] == prefix {
			return mark(i), id, true
		}
	}
	return 0, "", false
}
