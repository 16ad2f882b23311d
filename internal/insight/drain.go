package insight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/drain"
)

// DrainVerdict says what a drain does with a Pod.
type DrainVerdict string

const (
	// DrainHeld: the Pod stays until a user does something.
	DrainHeld DrainVerdict = "held"
	// DrainReplaced: the Pod goes when another one serves in its place.
	DrainReplaced DrainVerdict = "replaced"
	// DrainWaits: the Pod goes when others are back.
	DrainWaits DrainVerdict = "waits"
	// DrainGoes: nothing is in its way.
	DrainGoes DrainVerdict = "goes"
	// DrainIgnored: a drain leaves it alone.
	DrainIgnored DrainVerdict = "ignored"
)

// Reasons of a Drain besides those of Pods.
const (
	// CodeDisruptionBudget: a PodDisruptionBudget allows no disruption now.
	CodeDisruptionBudget Code = "PodDisruptionBudget"
	// CodeReplaced: another Pod takes its place first.
	CodeReplaced Code = "Replaced"
	// CodeDaemonSet: its controller ignores cordons, so a drain leaves the Pod alone.
	CodeDaemonSet Code = "DaemonSet"
	// CodeMirrorPod: the kubelet's own.
	CodeMirrorPod Code = "MirrorPod"
	// CodeUnmanaged: the Pod is not under the lifecycle and is evicted as it is.
	CodeUnmanaged Code = "Unmanaged"
	// CodeNoController: no controller creates another Pod; kubectl drain asks for --force.
	CodeNoController Code = "NoController"
)

// Drain is what a drain of one node would meet.
type Drain struct {
	Node string `json:"node"`
	// Held, Replaced, Waiting, Going and Ignored are numbers of Pods.
	Held     int `json:"held"`
	Replaced int `json:"replaced"`
	Waiting  int `json:"waiting"`
	Going    int `json:"going"`
	Ignored  int `json:"ignored"`
	// Pods are those on the node, by namespace and name.
	Pods []DrainedPod `json:"pods"`
	Gaps []Gap        `json:"gaps,omitempty"`
}

// DrainedPod is one Pod of the node.
type DrainedPod struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Verdict   DrainVerdict `json:"verdict"`
	Reasons   []Reason     `json:"reasons,omitempty"`
}

// CheckDrain says what a drain of the node would meet now. f.Pods are the Pods of the node, those that are not under
// the lifecycle among them.
func CheckDrain(f Facts, node string, budgets []policyv1.PodDisruptionBudget) Drain {
	x := newIndex(&f)
	d := Drain{Node: node, Pods: []DrainedPod{}, Gaps: f.Gaps}
	for i := range f.Pods {
		verdict, reasons := x.drained(&f.Pods[i], budgets)
		switch verdict {
		case DrainHeld:
			d.Held++
		case DrainReplaced:
			d.Replaced++
		case DrainWaits:
			d.Waiting++
		case DrainGoes:
			d.Going++
		case DrainIgnored:
			d.Ignored++
		}
		d.Pods = append(d.Pods, DrainedPod{f.Pods[i].Namespace, f.Pods[i].Name, verdict, reasons})
	}
	slices.SortFunc(d.Pods, func(a, b DrainedPod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return d
}

func (x *index) drained(pod *corev1.Pod, budgets []policyv1.PodDisruptionBudget) (DrainVerdict, []Reason) {
	v := podops.Read(pod)
	owner := metav1.GetControllerOf(pod)
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case mirror:
		return DrainIgnored, []Reason{{Code: CodeMirrorPod, Message: "a static Pod of the kubelet"}}
	case owner != nil && owner.Kind == "DaemonSet":
		return DrainIgnored, []Reason{{Code: CodeDaemonSet,
			Message: "DaemonSet " + owner.Name + " keeps it on the node (--ignore-daemonsets)"}}
	case v.Terminating:
		return DrainWaits, x.terminating(pod)
	case v.Terminal:
		return DrainGoes, nil
	}
	var held, waits []Reason
	managed := pod.Labels[appsv1alpha1.ControlLabel] == appsv1alpha1.ControlValue && v.Gate &&
		!drain.IsDisabled(pod.Labels[podops.GracefulDeletionLabel],
			x.NamespaceLabels[pod.Namespace][podops.GracefulDeletionLabel])
	for i := range budgets {
		if r := budgetRefuses(&budgets[i], pod, v, managed); r != nil {
			held = append(held, *r)
		}
	}
	if owner == nil {
		held = append(held, Reason{Code: CodeNoController, Message: "no controller makes another Pod in its place",
			Next: "kubectl drain --force deletes it for good"})
	}
	var replaced *Reason
	if managed {
		gracefulHeld, gracefulWaits := x.gracefully(pod, v)
		held, waits = append(held, gracefulHeld...), append(waits, gracefulWaits...)
		replaced, held, waits = x.replacedFirst(pod, v, held, waits)
	}
	switch {
	case replaced != nil && len(held) == 0:
		return DrainReplaced, append([]Reason{*replaced}, waits...)
	case len(held) > 0:
		return DrainHeld, append(held, waits...)
	case len(waits) > 0:
		return DrainWaits, waits
	case !managed:
		return DrainGoes, []Reason{{Code: CodeUnmanaged, Message: "it is evicted at once, without leaving service first"}}
	}
	return DrainGoes, nil
}

// replacedFirst is why another Pod takes the place of this one first, nil if none does. What counts Pods is then no
// longer in the way.
func (x *index) replacedFirst(
	pod *corev1.Pod, v podops.View, held, waits []Reason,
) (replaced *Reason, leftHeld, leftWaits []Reason) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return nil, held, waits
	}
	set := x.sets[types.NamespacedName{Namespace: pod.Namespace, Name: owner.Name}]
	if set == nil || set.UID != owner.UID {
		return nil, held, waits
	}
	counts := func(r Reason) bool { return r.Code.IsBudget() || r.Code == CodeDisruptionBudget }
	isCounted := slices.ContainsFunc(held, counts) || slices.ContainsFunc(waits, counts)
	policy := drain.PolicyOf(set)
	if policy.Obstacle != "" && isCounted {
		held = append(held, Reason{Code: CodeReplaced, Message: "it is not replaced by another Pod first: " + policy.Obstacle})
		return nil, held, waits
	}
	if !policy.Replaces(v, isCounted) {
		return nil, held, waits
	}
	return &Reason{Code: CodeReplaced, Message: fmt.Sprintf(
			"another Pod serves in its place first (CollaSet %s, spec.disruption.onEviction %s)", set.Name, policy.OnEviction)},
		slices.DeleteFunc(held, counts), slices.DeleteFunc(waits, counts)
}

// budgetRefuses is the reason for which a PodDisruptionBudget refuses the eviction now; nil if it does not. One that
// mirrors a rule does not count for a Pod that the rule decides about.
func budgetRefuses(b *policyv1.PodDisruptionBudget, pod *corev1.Pod, v podops.View, managed bool) *Reason {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil || b.Namespace != pod.Namespace || !selector.Matches(labels.Set(pod.Labels)) ||
		b.Status.DisruptionsAllowed > 0 {
		return nil
	}
	owner := metav1.GetControllerOf(b)
	always := b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
	if managed && owner != nil && owner.Kind == appsv1alpha1.PodTransitionRuleKind ||
		!v.Ready && (always || b.Status.CurrentHealthy >= b.Status.DesiredHealthy) {
		return nil
	}
	return &Reason{
		Code: CodeDisruptionBudget, On: &Ref{Kind: "PodDisruptionBudget", Namespace: b.Namespace, Name: b.Name},
		Message: fmt.Sprintf("PodDisruptionBudget %s allows no disruption now (%d healthy, %d wanted)", b.Name,
			b.Status.CurrentHealthy, b.Status.DesiredHealthy),
		Next: "it goes on when more of its Pods are healthy; with as many wanted as there are, never",
	}
}

// gracefully says what the lifecycle puts in the way of an eviction.
func (x *index) gracefully(pod *corev1.Pod, v podops.View) (held, waits []Reason) {
	if f := x.freezeOf(pod.Namespace); f != nil {
		held = append(held, f.reason(x.Now))
	}
	held = append(held, x.alone(LifecycleController)...)
	bears := false
	for i, compiled := range x.rules[pod.Namespace] {
		if !compiled.BearsOn(v, appsv1alpha1.StagePreCheck) {
			continue
		}
		bears = true
		ruleHeld, ruleWaits := ruleBefore(x.sources[pod.Namespace][i], pod, v)
		held, waits = append(held, ruleHeld...), append(waits, ruleWaits...)
	}
	if bears {
		held = append(held, x.alone(PodTransitionController)...)
	}
	if protected := podops.ProtectionFinalizers(v.Finalizers); len(protected) > 0 {
		if r := x.missing(ResourceConsistController); r != nil {
			r.Message += "; " + strings.Join(protected, ", ") + " may not be removed"
			held = append(held, *r)
		}
	}
	for _, finalizer := range pod.Finalizers {
		if !strings.HasPrefix(finalizer, podops.ProtectionFinalizerPrefix) {
			waits = append(waits, Reason{Code: CodeFinalizer,
				Message: "finalizer " + finalizer + " keeps the Pod after its deletion", Next: "ask the owner of that finalizer"})
		}
	}
	return held, waits
}

// ruleBefore is what one rule will say.
func ruleBefore(r *appsv1alpha1.PodTransitionRule, pod *corev1.Pod, v podops.View) (held, waits []Reason) {
	if invalid := invalidRule(r); invalid != nil {
		return []Reason{*invalid}, nil
	}
	for i := range r.Spec.Rules {
		item := &r.Spec.Rules[i]
		if item.Disabled || podops.StageOf(item) != appsv1alpha1.StagePreCheck || v.SkipsRule(item.Name) ||
			!passesFilter(item, pod) {
			continue
		}
		reason := Reason{On: refOf(r), Message: "rule " + r.Name + ", check " + item.Name + ": "}
		switch {
		case item.AvailablePolicy != nil:
			if !v.ServiceAvailable() || !v.Ready {
				continue // it takes no further budget
			}
			reason.Code = CodeBudgetSpent
			room, known := roomOf(item.AvailablePolicy, r.Status)
			reason.Message += strings.Join(policyBounds(item.AvailablePolicy), ", ")
			if known && room <= 0 {
				reason.Message += fmt.Sprintf("; no room now (%d desired, %d available)", r.Status.Desired, r.Status.Available)
				reason.Next = "kubectl kuperator -n " + r.Namespace + " status shows who holds it"
			}
			if known && neverRoom(item.AvailablePolicy, r.Status.Desired) {
				reason.Message += ", and never: the bound lets no Pod go"
				held = append(held, reason)
				continue
			}
			if known && room > 1 && item.AvailablePolicy.Topology == nil && item.AvailablePolicy.Groups == nil {
				continue
			}
			waits = append(waits, reason)
		case item.LabelCheck != nil:
			selector, err := metav1.LabelSelectorAsSelector(item.LabelCheck.Requires)
			if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
				reason.Code, reason.Message = CodeLabelCheck, reason.Message+"labels do not match "+
					metav1.FormatLabelSelector(item.LabelCheck.Requires)
				reason.Next = "give the Pod these labels, or ask the owner of the rule"
				held = append(held, reason)
			}
		case item.Webhook != nil:
			reason.Code, reason.Message = CodeWebhookRule, reason.Message+item.Webhook.ClientConfig.URL+" will be asked"
			waits = append(waits, reason)
		}
	}
	return held, waits
}

func passesFilter(item *appsv1alpha1.TransitionRule, pod *corev1.Pod) bool {
	if len(item.Conditions) > 0 {
		return false
	}
	if item.Filter == nil || item.Filter.LabelSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(item.Filter.LabelSelector)
	return err == nil && selector.Matches(labels.Set(pod.Labels))
}

// roomOf is how many more Pods the policy's plain bounds let go now; false if it has only others.
func roomOf(p *appsv1alpha1.AvailableRule, s appsv1alpha1.PodTransitionRuleStatus) (room int, known bool) {
	room = int(s.Desired)
	if p.MaxUnavailableValue != nil {
		if limit, err := intstr.GetScaledValueFromIntOrPercent(p.MaxUnavailableValue, int(s.Desired), true); err == nil {
			room, known = min(room, limit-int(s.Desired-s.Available)), true
		}
	}
	if p.MinAvailableValue != nil {
		if limit, err := intstr.GetScaledValueFromIntOrPercent(p.MinAvailableValue, int(s.Desired), false); err == nil {
			room, known = min(room, int(s.Available)-limit), true
		}
	}
	return room, known
}

// neverRoom reports whether the policy lets no Pod go even when all are available.
func neverRoom(p *appsv1alpha1.AvailableRule, desired int32) bool {
	room, known := roomOf(p, appsv1alpha1.PodTransitionRuleStatus{Desired: desired, Available: desired})
	known = known && desired > 0
	return known && room <= 0
}
