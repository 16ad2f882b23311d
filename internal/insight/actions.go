package insight

import (
	"fmt"
	"strings"

	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Verb is something that a user may do to a CollaSet, by the word of the plugin's command.
type Verb string

const (
	// VerbPause: nothing new begins.
	VerbPause Verb = "pause"
	// VerbResume ends a pause.
	VerbResume Verb = "resume"
	// VerbPromote removes the partition.
	VerbPromote Verb = "promote"
	// VerbUndo puts the template of an earlier revision back.
	VerbUndo Verb = "undo"
	// VerbRestart re-creates Pods, as an update.
	VerbRestart Verb = "restart"
)

// Action is what a user may do to a CollaSet now.
type Action struct {
	Verb Verb `json:"verb"`
	// Happens is what it does to which Pods, in a few sentences.
	Happens string `json:"happens"`
	// Command does the same in a terminal.
	Command string `json:"command"`
	// Revision is the number of the revision that undo goes back to; 0 for other verbs.
	Revision int64 `json:"revision,omitempty"`
	// Refused is why this user cannot do it now; empty if they can.
	Refused string `json:"refused,omitempty"`
	// Warnings are what admission warns of.
	Warnings []string `json:"warnings,omitempty"`
}

// Actions are what may be sensible to do to a CollaSet in its present state. back is the revision that undo goes back
// to, with InPlace and Fields from the present one; nil if there is none. Whether the user may do it is not known here.
func Actions(set *appsv1alpha1.CollaSet, back *Revision) []Action {
	if set.DeletionTimestamp != nil {
		return nil
	}
	var all []Action
	add := func(verb Verb, sentences ...string) *Action {
		said := strings.ToUpper(string(verb[:1])) + string(verb[1:]) + " " + set.Name + ": "
		all = append(all, Action{Verb: verb, Happens: said + joinSentences(sentences),
			Command: fmt.Sprintf("kubectl kuperator %s collaset/%s -n %s", verb, set.Name, set.Namespace)})
		return &all[len(all)-1]
	}
	switch {
	case set.Spec.Paused:
		add(VerbResume, "Pods are added, removed and updated again", toGo(set))
	case RolloutOf(set).State != RolloutDone || set.Status.OperatingReplicas > 0:
		add(VerbPause, "no further Pod is added, removed or updated", far(set), finished(set))
	}
	if partition := partitionText(Partition(set)); partition != "0" {
		add(VerbPromote, "the partition ("+partition+") is removed, and no Pod is kept back", promoted(set), WhilePaused(set))
	}
	if back != nil {
		a := add(VerbUndo, fmt.Sprintf("the template of revision %d (%s) is put back%s", back.Revision, back.Name,
			listed(": ", back.Images)), goingBack(set, back), UndoWhilePaused(set), "change your manifests as well")
		a.Revision = back.Revision
		a.Command += fmt.Sprintf(" --to-revision=%d", back.Revision)
	}
	add(VerbRestart, recreated(set), joins(set))
	return all
}

// joinSentences makes a text of what follows a colon: the first goes on in it, the others begin with a capital. Empty
// ones are left out.
func joinSentences(sentences []string) string {
	var text strings.Builder
	for _, s := range sentences {
		switch {
		case s == "":
		case text.Len() == 0:
			text.WriteString(s + ".")
		default:
			text.WriteString(" " + strings.ToUpper(s[:1]) + s[1:] + ".")
		}
	}
	return text.String()
}

func listed(before string, words []string) string {
	if len(words) == 0 {
		return ""
	}
	return before + strings.Join(words, ", ")
}

// isRolling reports whether a rollout is under way, as far as the status is about the present spec.
func isRolling(set *appsv1alpha1.CollaSet) bool {
	st := &set.Status
	return st.ObservedGeneration >= set.Generation && st.CurrentRevision != "" && st.CurrentRevision != st.UpdatedRevision
}

// far is how many Pods have the new revision.
func far(set *appsv1alpha1.CollaSet) string {
	if !isRolling(set) {
		return ""
	}
	verb := "have"
	if set.Status.UpdatedReplicas == 1 {
		verb = "has"
	}
	keep := "keep it"
	switch set.Status.UpdatedReplicas {
	case 0:
		return fmt.Sprintf("none of %s has the new revision %s yet", podsText(set.Status.Replicas),
			set.Status.UpdatedRevision)
	case 1:
		keep = "keeps it"
	}
	return fmt.Sprintf("%d of %s %s the new revision %s and %s", set.Status.UpdatedReplicas,
		podsText(set.Status.Replicas), verb, set.Status.UpdatedRevision, keep)
}

// finished is what becomes of operations that have begun.
func finished(set *appsv1alpha1.CollaSet) string {
	if n := set.Status.OperatingReplicas; n > 0 {
		return "the operation on " + podsText(n) + " has begun and is finished"
	}
	return ""
}

// toGo is what a rollout has yet to do.
func toGo(set *appsv1alpha1.CollaSet) string {
	st := &set.Status
	left := ptr.Deref(set.Spec.Replicas, 0) - kept(set) - st.UpdatedReplicas
	switch {
	case !isRolling(set):
		return ""
	case st.Halted != nil:
		return "the rollout to " + st.Halted.Revision +
			" was stopped by spec.updateStrategy.failurePolicy and does not go on before the template is changed"
	case isByLabel(set):
		return "Pods with the label " + appsv1alpha1.UpdateIncludedLabel + " are to get revision " + st.UpdatedRevision
	case left <= 0:
		return ""
	case left == 1:
		return "1 Pod is still to get revision " + st.UpdatedRevision
	}
	return fmt.Sprintf("%d Pods are still to get revision %s, as fast as rules and maxUnavailable allow", left,
		st.UpdatedRevision)
}

// promoted is what is updated once there is no partition.
func promoted(set *appsv1alpha1.CollaSet) string {
	p, err := Promote(set, nil)
	if err != nil || len(p.Details) < 2 {
		return ""
	}
	return p.Details[1] // the first is the partition
}

// goingBack is which Pods leave the present revision. A partition holds none back from the one that they come from.
func goingBack(set *appsv1alpha1.CollaSet, back *Revision) string {
	how := ""
	switch {
	case back.InPlace == nil:
	case *back.InPlace:
		how = ", in place"
	default:
		how = ", re-created" + listed(" because of ", back.Fields)
	}
	if isByLabel(set) {
		return "Pods with the label " + appsv1alpha1.UpdateIncludedLabel + " go back" + how
	}
	n, rest := set.Status.Replicas-int32(back.Pods), "" //nolint:gosec // fewer than there are
	stays := stay(Partition(set), ptr.Deref(set.Spec.Replicas, 0))
	if most := set.Status.Replicas - stays; stays > 0 && back.Name != set.Status.CurrentRevision {
		n, rest = min(n, most), "; the partition keeps back "+podsText(stays)
	}
	switch {
	case n <= 0:
		return "no Pod is changed by that" + rest
	case n == 1:
		return "1 of " + podsText(set.Status.Replicas) + " goes back" + how + rest
	}
	return fmt.Sprintf("%d of %s go back%s%s", n, podsText(set.Status.Replicas), how, rest)
}

// WhilePaused is what a pause does to a change. It is empty if the CollaSet is not paused.
func WhilePaused(set *appsv1alpha1.CollaSet) string {
	if set.Spec.Paused {
		return "it is paused, and begins when it is resumed"
	}
	return ""
}

// UndoWhilePaused is what a pause does to an undo: Pods under way go back within their operation. It is empty if the
// CollaSet is not paused.
func UndoWhilePaused(set *appsv1alpha1.CollaSet) string {
	if set.Spec.Paused && set.Status.OperatingReplicas > 0 {
		return "it is paused: Pods on which an operation has begun go back within it, and the others when it is resumed"
	}
	return WhilePaused(set)
}

// recreated is which Pods a restart takes.
func recreated(set *appsv1alpha1.CollaSet) string {
	replicas := ptr.Deref(set.Spec.Replicas, 0)
	n := stay(Partition(set), replicas)
	who, rest, isOne := fmt.Sprintf("all %d Pods", replicas), "", false
	switch {
	case isByLabel(set):
		who = "Pods with the label " + appsv1alpha1.UpdateIncludedLabel
	case n > 0:
		who, rest = fmt.Sprintf("%d of %s", replicas-n, podsText(replicas)), "; the partition keeps the others as they are"
		isOne = replicas-n == 1
	case replicas == 1:
		who, isOne = "its Pod", true
	}
	how := "are re-created"
	if isOne {
		how = "is re-created"
	}
	if set.Spec.UpdateStrategy.PodUpdatePolicy == appsv1alpha1.PodUpdateReplace {
		how = strings.Fields(how)[0] + " replaced, another one first,"
	}
	return who + " " + how + " as an update, as fast as rules and maxUnavailable allow" + rest
}

// joins is what a restart does to a rollout under way.
func joins(set *appsv1alpha1.CollaSet) string {
	if !isRolling(set) {
		return ""
	}
	return "those that do not have revision " + set.Status.UpdatedRevision + " yet get it with that"
}
