package insight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
)

// decorationOperator is poddecoration-controller's slot in the Pod protocol
// (internal/poddecoration/decoplan.OperatorID).
const decorationOperator = "poddecoration"

func refOfDecoration(d *appsv1alpha1.PodDecoration) *Ref {
	return &Ref{Kind: appsv1alpha1.PodDecorationKind, Namespace: d.Namespace, Name: d.Name}
}

// decorations are all, by namespace and name.
func (x *index) decorations() []Decoration {
	var all []Decoration
	for i := range x.Decorations {
		all = append(all, x.decoration(&x.Decorations[i]))
	}
	slices.SortFunc(all, func(a, b Decoration) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return all
}

func (x *index) decoration(d *appsv1alpha1.PodDecoration) Decoration {
	s := &d.Status
	return Decoration{
		Namespace: d.Namespace, Name: d.Name, CurrentRevision: s.CurrentRevision, UpdatedRevision: s.UpdatedRevision,
		Matched: s.MatchedPods, Injected: s.InjectedPods, Updated: s.UpdatedPods, Available: s.UpdatedAvailablePods,
		Paused: d.Spec.UpdateStrategy.Paused, Deleting: d.DeletionTimestamp != nil, Reasons: x.ofDecoration(d),
	}
}

// ofDecoration is what keeps Pods from what a PodDecoration wants, the blocker first.
func (x *index) ofDecoration(d *appsv1alpha1.PodDecoration) []Reason {
	found := x.alone(PodDecorationController)
	found = append(found, notObserved(PodDecorationController, d.Status.ObservedGeneration, d.Generation)...)
	var blockers []Reason
	for _, b := range d.Status.Blockers {
		blockers = append(blockers, Reason{Code: Code(b.Reason), Message: b.Message + countText(b.Count)})
	}
	ready := meta.FindStatusCondition(d.Status.Conditions, appsv1alpha1.PodDecorationReady)
	if ready == nil || ready.Status == metav1.ConditionTrue { // Pods that nothing brings to it do not count
		return append(found, blockers...)
	}
	stalled := meta.FindStatusCondition(d.Status.Conditions, appsv1alpha1.PodDecorationStalled)
	switch {
	case d.Status.Halted != nil:
		found = append(found, Reason{Code: CodeRolloutHalted, Message: ready.Message,
			Since: timeOf(d.Status.Halted.Since.Time),
			Next:  "see why Pods of that revision do not serve; then change spec.template"})
	case stalled != nil && stalled.Status == metav1.ConditionTrue &&
		stalled.Reason != string(appsv1alpha1.ReasonBlocked):
		found = append(found, Reason{Code: CodeStalled, Message: said(ready.Reason, ready.Message),
			Since: timeOf(stalled.LastTransitionTime.Time), Next: remedyFor(stalled.Reason)})
	case d.DeletionTimestamp != nil:
		found = append(found, Reason{Code: codeTerminating, Message: ready.Message,
			Since: timeOf(d.DeletionTimestamp.Time)})
	case d.Spec.UpdateStrategy.Paused:
		found = append(found, Reason{Code: CodePaused, On: refOfDecoration(d),
			Message: "PodDecoration " + d.Name + " is paused: no more Pods get its template",
			Next:    "set spec.updateStrategy.paused to false: kubectl -n " + d.Namespace + " edit poddecoration " + d.Name})
	}
	if found = append(found, blockers...); len(found) == 0 {
		found = append(found, Reason{Code: Code(ready.Reason), Message: ready.Message,
			Since: timeOf(ready.LastTransitionTime.Time)})
	}
	return byDepth(once(found))
}

// dueDecorations are the names of the PodDecorations that a Pod is to get, to get at another revision, or to lose.
func dueDecorations(pod *corev1.Pod) []string {
	if made, desired := decoration.Keys(pod.Annotations); made == desired {
		return nil
	}
	made := decoration.Made(decoration.MarksOf(pod.Annotations), decoration.RefusedOf(pod.Annotations))
	desired := decoration.MarksIn(pod.Annotations[appsv1alpha1.PodDecorationDesiredAnnotation])
	var names []string
	for _, m := range slices.Concat(made, desired) {
		if !slices.Contains(made, m) || !slices.Contains(desired, m) {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// notDecorated is what keeps a Pod that no CollaSet owns from PodDecorations: what they say of it, or else of others of
// which it may be true.
func (x *index) notDecorated(pod *corev1.Pod, due []string) []Reason {
	var own, others []Reason
	for _, name := range due {
		d := x.byName[types.NamespacedName{Namespace: pod.Namespace, Name: name}]
		if d == nil {
			continue
		}
		for _, b := range d.Status.Blockers {
			r := Reason{Code: Code(b.Reason), On: refOfDecoration(d),
				Message: "PodDecoration " + name + ": " + b.Message + countText(b.Count)}
			switch {
			case strings.HasPrefix(b.Message, "Pod "+pod.Name+": "):
				own = append(own, r)
			case concerns(b.Reason, pod):
				others = append(others, r)
			}
		}
	}
	switch {
	case len(own) > 0:
		return own
	case len(others) > 0:
		return others
	}
	return toBegin(due)
}

// concerns reports whether what a PodDecoration says of another Pod may be true of this one, which is managed and due.
func concerns(blocker string, pod *corev1.Pod) bool {
	switch blocker {
	case "NotManaged", "DecorationRefused":
		return false
	case "NoWorkload":
		return !slices.Contains([]string{"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"}, ownerOf(pod).Kind)
	}
	return true
}

// toBegin is the reason of an update that has not begun, and that nothing known holds back.
func toBegin(due []string) []Reason {
	return []Reason{{Code: CodeQueued, Next: "it begins by itself",
		Message: "its update to what PodDecoration " + strings.Join(due, ", ") + " wants has not begun; " +
			"nothing holds it back"}}
}

// whyDecoration says why Pods do not have what a PodDecoration wants.
func (x *index) whyDecoration(ref Ref, events []corev1.Event) (Answer, bool) {
	d := x.byName[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}]
	if d == nil {
		return Answer{}, false
	}
	var pods []Pod
	for i := range x.Pods {
		pod := &x.Pods[i]
		if pod.Namespace != ref.Namespace {
			continue
		}
		_, has := pod.Labels[appsv1alpha1.PodDecorationLabelPrefix+ref.Name]
		isDue := slices.Contains(dueDecorations(pod), ref.Name)
		if !has && !isDue {
			continue
		}
		switch p := x.pod(pod); {
		case p.State == StateEnded, p.State == StateTerminating, p.State == StateServing && !isDue:
		default:
			pods = append(pods, p)
		}
	}
	described := x.decoration(d)
	a := Answer{ObservedAt: x.Now.UTC(), Subject: ref, Decoration: &described, Stuck: stuck(pods),
		Events: warnings(events), Gaps: x.Gaps}
	a.Reasons, described.Reasons = described.Reasons, nil
	for _, s := range a.Stuck {
		if s.Example.On == nil || *s.Example.On != a.Subject { // else it is its own blocker
			a.Reasons = append(a.Reasons, s.Example)
		}
	}
	a.Reasons = byDepth(once(a.Reasons))
	x.nameHolders(a.Reasons, "")
	a.conclude("PodDecoration " + ref.Name + ": " + described.Progress())
	return a, true
}

// Progress is how far a PodDecoration is, in words.
func (d *Decoration) Progress() string {
	switch {
	case d.Deleting:
		return fmt.Sprintf("is being deleted; %d of %d Pods still have it", d.Injected, d.Matched)
	case d.UpdatedRevision == "":
		return "no revision is recorded yet"
	}
	return fmt.Sprintf("%d of %d Pods have %s, %d of them serve", d.Updated, d.Matched, d.UpdatedRevision, d.Available)
}
