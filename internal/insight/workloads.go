package insight

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

func refOfSet(set *appsv1alpha1.CollaSet) *Ref {
	return &Ref{Kind: appsv1alpha1.CollaSetKind, Namespace: set.Namespace, Name: set.Name}
}

// ofSet is what keeps a CollaSet from its spec, the blocker first. Reasons come from its conditions and blockers.
func (x *index) ofSet(set *appsv1alpha1.CollaSet) []Reason {
	found := slices.Concat(x.alone(CollaSetController),
		notObserved(CollaSetController, set.Status.ObservedGeneration, set.Generation), refusedCreation(set))
	ready := meta.FindStatusCondition(set.Status.Conditions, appsv1alpha1.CollaSetReady)
	if ready != nil && ready.Status == metav1.ConditionTrue && len(found) == 0 {
		if set.Spec.Paused {
			return []Reason{paused(set)}
		}
		return nil
	}
	if at := set.DeletionTimestamp; at != nil {
		found = append(found, Reason{Code: Code(appsv1alpha1.ReasonTerminating), Message: "the CollaSet is being deleted",
			Since: timeOf(at.Time)})
	}
	if set.Spec.Paused {
		found = append(found, paused(set))
	}
	if h := set.Status.Halted; h != nil {
		found = append(found, halted(set))
	}
	if c := meta.FindStatusCondition(set.Status.Conditions, appsv1alpha1.CollaSetStalled); c != nil &&
		c.Status == metav1.ConditionTrue && set.Status.Halted == nil {
		found = append(found, Reason{Code: CodeStalled, Message: said(c.Reason, c.Message),
			Since: timeOf(c.LastTransitionTime.Time), Next: remedyFor(c.Reason)})
	}
	for _, c := range set.Status.Conditions {
		failed := c.Type == appsv1alpha1.CollaSetUpdate || c.Type == appsv1alpha1.CollaSetScale
		if failed && c.Status == metav1.ConditionFalse && c.Reason != string(appsv1alpha1.ReasonScaleOutFailed) {
			found = append(found, refused(Code(c.Reason), c))
		}
	}
	for _, b := range set.Status.Blockers {
		if b.Reason == string(CodePaused) && set.Spec.Paused {
			continue
		}
		found = append(found, Reason{Code: Code(b.Reason), Message: b.Message + countText(b.Count)})
	}
	if len(found) == 0 && ready != nil && ready.Status == metav1.ConditionFalse {
		found = append(found, Reason{Code: Code(ready.Reason), Message: inFull(set, ready),
			Since: timeOf(ready.LastTransitionTime.Time)})
	}
	return once(found)
}

// inFull is what keeps a CollaSet from being Ready: Progressing has the whole text, unless Ready alone is about it.
func inFull(set *appsv1alpha1.CollaSet, ready *metav1.Condition) string {
	c := meta.FindStatusCondition(set.Status.Conditions, appsv1alpha1.CollaSetProgressing)
	if c == nil || c.Reason != ready.Reason || c.Message == "" {
		return ready.Message
	}
	return c.Message
}

// countText says how many Pods a blocker holds back, if its message is about one of several.
func countText(n int32) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf(" (%d Pods)", n)
}

// notObserved is the reason that a controller has not seen the present generation of a spec; empty if it has.
func notObserved(controller string, observed, generation int64) []Reason {
	if observed >= generation {
		return nil
	}
	return []Reason{{
		Code: CodeNotObserved, Message: fmt.Sprintf("%s has not looked at the present spec (generation %d of %d)",
			controller, max(observed, 0), generation), // -1 by the default of the CRD
		Next: "wait some seconds; then see whether it runs: kubectl kuperator doctor",
	}}
}

// refusedCreation is the reason that the API server refuses the CollaSet's Pods; nil if it does not.
func refusedCreation(set *appsv1alpha1.CollaSet) []Reason {
	c := meta.FindStatusCondition(set.Status.Conditions, appsv1alpha1.CollaSetScale)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != string(appsv1alpha1.ReasonScaleOutFailed) {
		return nil
	}
	return []Reason{refused(CodeCreationRefused, *c)}
}

// refused is an answer of the API server that a condition keeps.
func refused(code Code, c metav1.Condition) Reason {
	r := Reason{Code: code, Message: said(c.Reason, c.Message), Since: timeOf(c.LastTransitionTime.Time),
		Next: "change what the API server's answer names; it is tried again by itself"}
	if strings.Contains(c.Message, "exceeded quota") {
		r.Code = CodeQuota
		r.Next = "raise the ResourceQuota that is named, ask for less, or free what others use; it is tried again by itself"
	}
	return r
}

func paused(set *appsv1alpha1.CollaSet) Reason {
	return Reason{
		Code: CodePaused, On: refOfSet(set), Since: progressing(set, appsv1alpha1.ReasonPaused),
		Message: "CollaSet " + set.Name + " is paused: it begins nothing",
		Next:    "kubectl kuperator -n " + set.Namespace + " resume collaset/" + set.Name,
	}
}

func halted(set *appsv1alpha1.CollaSet) Reason {
	r := Reason{
		Code: CodeRolloutHalted, On: refOfSet(set), Since: timeOf(set.Status.Halted.Since.Time),
		Message: "the rollout to " + set.Status.Halted.Revision +
			" did not progress and was stopped by spec.updateStrategy.failurePolicy",
		Next: "see why Pods of that revision do not serve; then change the template",
	}
	if set.Status.Halted.RollbackTo != "" {
		r.Message += "; Pods go back to " + set.Status.Halted.RollbackTo
	}
	return r
}

func progressing(set *appsv1alpha1.CollaSet, reason appsv1alpha1.ConditionReason) *time.Time {
	c := meta.FindStatusCondition(set.Status.Conditions, appsv1alpha1.CollaSetProgressing)
	if c == nil || c.Reason != string(reason) {
		return nil
	}
	return timeOf(c.LastTransitionTime.Time)
}

// notBegun is why a Pod is not what its CollaSet or PodDecorations want, with no update on it.
func (x *index) notBegun(pod *corev1.Pod) []Reason {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	due, set := dueDecorations(pod), x.setOf(pod)
	switch {
	case set != nil:
		return x.notUpdated(set, pod, due)
	case len(due) == 0:
		return nil
	}
	if found := x.alone(PodDecorationController); len(found) > 0 {
		return found
	}
	return x.notDecorated(pod, due)
}

// notUpdated is why a CollaSet's Pod is not at its updated revision, or not as PodDecorations want it.
func (x *index) notUpdated(set *appsv1alpha1.CollaSet, pod *corev1.Pod, due []string) []Reason {
	at := pod.Labels[appsv1.ControllerRevisionHashLabelKey]
	unseen := notObserved(CollaSetController, set.Status.ObservedGeneration, set.Generation)
	isUpdated := len(unseen) == 0 && (at == set.Status.UpdatedRevision || set.Status.UpdatedRevision == "")
	if isUpdated && len(due) == 0 {
		return nil
	}
	found := x.alone(CollaSetController)
	if set.Spec.Paused {
		found = append(found, paused(set))
	}
	if set.Status.Halted != nil && !isUpdated {
		found = append(found, halted(set))
	}
	if len(found) == 0 {
		found = unseen
	}
	switch {
	case len(found) > 0:
		return found
	case len(due) == 0:
		return notChosen(set, pod)
	}
	if found = blocking(set); len(found) > 0 {
		return found
	}
	return toBegin(due)
}

// notChosen is what the strategy and the blockers say of a Pod whose update has not begun.
func notChosen(set *appsv1alpha1.CollaSet, pod *corev1.Pod) []Reason {
	var found []Reason
	rolling := set.Spec.UpdateStrategy.RollingUpdate
	_, included := pod.Labels[appsv1alpha1.UpdateIncludedLabel]
	switch {
	case rolling != nil && rolling.ByLabel != nil && !included:
		return []Reason{{
			Code: CodeNotIncluded, On: refOfSet(set), Message: "Pods of CollaSet " + set.Name +
				" are updated by label, and this one lacks " + appsv1alpha1.UpdateIncludedLabel,
			Next: "kubectl -n " + pod.Namespace + " label pod " + pod.Name + " " + appsv1alpha1.UpdateIncludedLabel + "=true",
		}}
	case rolling != nil && rolling.ByLabel == nil && rolling.ByPartition != nil && rolling.ByPartition.Partition != nil &&
		rolling.ByPartition.Partition.String() != "0":
		found = append(found, Reason{
			Code: CodeHeldByPartition, On: refOfSet(set), Message: "the partition of CollaSet " + set.Name + " keeps " +
				rolling.ByPartition.Partition.String() + " Pods at their revision",
			Next: "lower spec.updateStrategy.rollingUpdate.byPartition.partition to go on",
		})
	}
	if found = append(blocking(set), found...); len(found) > 0 {
		return found
	}
	return []Reason{{
		Code: CodeQueued, On: refOfSet(set), Message: "its update to " + set.Status.UpdatedRevision +
			" has not begun; nothing holds it back", Next: "it begins by itself",
	}}
}

// blocking are the blockers of a CollaSet that keep updates from beginning.
func blocking(set *appsv1alpha1.CollaSet) []Reason {
	updates := []string{"ChangeRefused", "InFlightLimit", "MaxUnavailable", "InPlaceImpossible", "ClaimExpansionRefused",
		"MaxSurge", "BeingReplaced", "OperationDelay", "DecorationMissing"}
	var found []Reason
	for _, b := range set.Status.Blockers {
		if slices.Contains(updates, b.Reason) {
			found = append(found, Reason{Code: Code(b.Reason), On: refOfSet(set), Message: b.Message + countText(b.Count)})
		}
	}
	return found
}

// remedyFor is what to do about a condition Stalled with this reason.
func remedyFor(reason string) string {
	if reason == string(appsv1alpha1.ReasonProgressDeadlineExceeded) {
		return "see below what Pods wait for; if the template is to blame, change it or take it back"
	}
	return "change what the message names"
}
