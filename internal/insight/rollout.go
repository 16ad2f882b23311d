package insight

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// RolloutState is how far a rollout is.
type RolloutState string

const (
	// RolloutDone: every Pod that the update strategy selects has been available at the updated revision.
	RolloutDone RolloutState = "Done"
	// RolloutFailed: it does not end until a user changes something.
	RolloutFailed RolloutState = "Failed"
	// RolloutPaused: it does not end until the CollaSet is resumed.
	RolloutPaused RolloutState = "Paused"
	// RolloutWaits: it is under way.
	RolloutWaits RolloutState = "Waits"
)

// Rollout is how far the rollout of a CollaSet is.
type Rollout struct {
	CollaSet Ref          `json:"collaSet"`
	State    RolloutState `json:"state"`
	// Message is why it has failed or what it waits for; of one that is paused, how to resume it, and of one that is
	// done, which Pods stay as they are.
	Message string `json:"message,omitempty"`
	// Blocker is what most Pods wait for, while it is under way.
	Blocker string `json:"blocker,omitempty"`
}

// RolloutOf decides whether the rollout of a CollaSet is done or has failed. What the status has of an older generation
// of the spec counts for nothing: it may be of the rollout before.
func RolloutOf(set *appsv1alpha1.CollaSet) Rollout {
	r := Rollout{CollaSet: *refOfSet(set), State: RolloutWaits}
	observed := set.Status.ObservedGeneration >= set.Generation
	progressing := present(set, appsv1alpha1.CollaSetProgressing)
	stalled := present(set, appsv1alpha1.CollaSetStalled)
	switch {
	case set.DeletionTimestamp != nil:
		r.State, r.Message = RolloutFailed, "the CollaSet is being deleted"
	case observed && is(progressing, metav1.ConditionTrue, appsv1alpha1.ReasonRolloutComplete):
		// It is the controller that knows which Pods a partition or a label selects.
		r.State, r.Message = RolloutDone, keptText(set)
	case set.Spec.Paused:
		r.State = RolloutPaused
		r.Message = "resume it with kubectl kuperator -n " + set.Namespace + " resume collaset/" + set.Name
	case !observed:
		r.Message = CollaSetController + " has not seen the present spec"
	case stalled != nil && stalled.Status == metav1.ConditionTrue:
		r.State, r.Message = RolloutFailed, said(stalled.Reason, stalled.Message)
	case is(progressing, metav1.ConditionFalse, appsv1alpha1.ReasonProgressDeadlineExceeded):
		r.State, r.Message = RolloutFailed, said(progressing.Reason, progressing.Message)
	default:
		r.Message = remaining(set, progressing)
		if b := firstCause(set.Status.Blockers); b != nil {
			r.Blocker = said(b.Reason, b.Message) + countText(b.Count)
		}
	}
	return r
}

// firstCause is the blocker of most Pods, or nil if there is none. Pods that wait for their turn do so because of
// others: they come last.
func firstCause(blockers []appsv1alpha1.Blocker) *appsv1alpha1.Blocker {
	for i := range blockers {
		if reason := blockers[i].Reason; reason != "MaxUnavailable" && reason != "InFlightLimit" {
			return &blockers[i]
		}
	}
	if len(blockers) == 0 {
		return nil
	}
	return &blockers[0]
}

// present is a condition of the present spec; nil if there is none.
func present(set *appsv1alpha1.CollaSet, of string) *metav1.Condition {
	c := meta.FindStatusCondition(set.Status.Conditions, of)
	if c == nil || c.ObservedGeneration < set.Generation {
		return nil
	}
	return c
}

func is(c *metav1.Condition, status metav1.ConditionStatus, reason appsv1alpha1.ConditionReason) bool {
	return c != nil && c.Status == status && c.Reason == string(reason)
}

// remaining is what a rollout under way waits for.
func remaining(set *appsv1alpha1.CollaSet, progressing *metav1.Condition) string {
	st, replicas := &set.Status, ptr.Deref(set.Spec.Replicas, 0)
	if isByLabel(set) { // how many Pods have the label is not in the status
		return fmt.Sprintf("%d Pods are updated, and %d of them are available", st.UpdatedReplicas,
			st.UpdatedAvailableReplicas)
	}
	wanted := replicas - kept(set)
	switch {
	case st.UpdatedReplicas < wanted:
		return fmt.Sprintf("%d of %d Pods are updated", st.UpdatedReplicas, wanted)
	case st.Replicas > replicas:
		return are(st.Replicas-replicas) + " to be removed"
	case st.UpdatedAvailableReplicas < wanted:
		return fmt.Sprintf("%d of %d updated Pods are available", st.UpdatedAvailableReplicas, wanted)
	case st.AvailableReplicas < replicas:
		return fmt.Sprintf("%d of %d Pods are available", st.AvailableReplicas, replicas)
	case progressing != nil && progressing.Message != "":
		return progressing.Message
	}
	return CollaSetController + " has not reported that it is complete"
}

// kept is how many Pods the partition keeps at the revision that they come from.
func kept(set *appsv1alpha1.CollaSet) int32 {
	if set.Status.CurrentRevision == set.Status.UpdatedRevision { // it does not hold Pods back from that one
		return 0
	}
	return stay(Partition(set), ptr.Deref(set.Spec.Replicas, 0))
}

func keptText(set *appsv1alpha1.CollaSet) string {
	switch {
	case isByLabel(set):
		return "of Pods with the label " + appsv1alpha1.UpdateIncludedLabel
	case kept(set) > 0:
		return fmt.Sprintf("the partition keeps back %s", podsText(kept(set)))
	}
	return ""
}

func podsText(n int32) string { return Plural(int(n), "Pod") }

// Plural is a number of things, of which one is the word for a single one.
func Plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func isByLabel(set *appsv1alpha1.CollaSet) bool {
	rolling := set.Spec.UpdateStrategy.RollingUpdate
	return rolling != nil && rolling.ByLabel != nil
}

// Partition is a CollaSet's; nil if none is set or Pods are selected by label.
func Partition(set *appsv1alpha1.CollaSet) *intstr.IntOrString {
	rolling := set.Spec.UpdateStrategy.RollingUpdate
	if rolling == nil || rolling.ByPartition == nil || rolling.ByLabel != nil {
		return nil
	}
	return rolling.ByPartition.Partition
}

// stay is how many Pods a partition keeps of so many; nil keeps none.
func stay(partition *intstr.IntOrString, replicas int32) int32 {
	if partition == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(partition, int(replicas), true)
	if err != nil {
		return 0 // the schema refuses that
	}
	return int32(min(max(n, 0), int(replicas))) //nolint:gosec // it is at most replicas
}

// Promotion is what another partition does to a CollaSet.
type Promotion struct {
	// Changed is false if the CollaSet has that partition already.
	Changed bool
	// Details are what changes and what happens then, a line each.
	Details []string
}

// Promote decides what lowering the partition to that value does; nil means none. It is an error if that holds back
// more Pods than now, or if the partition does not apply.
func Promote(set *appsv1alpha1.CollaSet, to *intstr.IntOrString) (Promotion, error) {
	from, replicas := Partition(set), ptr.Deref(set.Spec.Replicas, 0)
	before, after := stay(from, replicas), stay(to, replicas)
	switch {
	case isByLabel(set):
		return Promotion{}, fmt.Errorf("collaset/%s selects Pods by label and has no partition: choose Pods with "+
			"kubectl -n %s label pod NAME %s=true", set.Name, set.Namespace, appsv1alpha1.UpdateIncludedLabel)
	case after > before:
		return Promotion{}, fmt.Errorf("collaset/%s keeps back %s, and promote cannot hold back more (%d): for "+
			"that, raise spec.updateStrategy.rollingUpdate.byPartition.partition", set.Name, podsText(before), after)
	case partitionText(from) == partitionText(to):
		return Promotion{}, nil
	}
	p := Promotion{Changed: true, Details: []string{"partition " + partitionText(from) + " -> " + partitionText(to)}}
	st := &set.Status
	switch more := replicas - after - st.UpdatedReplicas; {
	case st.Halted != nil:
		p.Details = append(p.Details, "no Pod is updated: the rollout to "+st.Halted.Revision+
			" was stopped by spec.updateStrategy.failurePolicy, and the template has to be changed first")
	case st.ObservedGeneration < set.Generation: // how many are updated is not known
	case st.CurrentRevision == st.UpdatedRevision:
		p.Details = append(p.Details, "no rollout is under way: it applies to the next one")
	case more <= 0:
		p.Details = append(p.Details, fmt.Sprintf("%s updated to %s already: no other one is updated now",
			are(st.UpdatedReplicas), st.UpdatedRevision))
	default:
		p.Details = append(p.Details, fmt.Sprintf("%d of %d Pods are to be at %s: %d more than now", replicas-after,
			replicas, st.UpdatedRevision, more))
	}
	return p, nil
}

func are(n int32) string {
	if n == 1 {
		return "1 Pod is"
	}
	return fmt.Sprintf("%d Pods are", n)
}

// PartitionPods is how many Pods a partition keeps back, for people.
func PartitionPods(p *intstr.IntOrString) string {
	if p.Type == intstr.String {
		return p.StrVal + " of the Pods"
	}
	return podsText(p.IntVal)
}

// partitionText is a partition for people; without one and 0 are the same.
func partitionText(p *intstr.IntOrString) string {
	if p == nil || p.String() == "0" {
		return "0"
	}
	return p.String()
}
