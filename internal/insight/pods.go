package insight

import (
	"cmp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/revision"
)

// collaSetOperator is collaset-controller's slot in the Pod protocol (internal/collaset/setplan.OperatorID).
const collaSetOperator = "collaset"

// stateOf says what a Pod does for those whom it serves.
func stateOf(v podops.View, operations []podops.Operation) State {
	switch {
	case v.Terminating:
		return StateTerminating
	case v.Terminal:
		return StateEnded
	}
	state, rank := State(""), 0
	note := func(s State, r int) {
		if r > rank {
			state, rank = s, r
		}
	}
	for _, o := range operations {
		switch o.Phase {
		case podops.PhaseOperate:
			note(StateOperating, 4)
		case podops.PhasePreChecked, podops.PhasePreparing:
			note(StateLeaving, 3)
		case podops.PhaseFinished, podops.PhasePostCheck, podops.PhasePostChecked, podops.PhaseCompleting:
			note(StateReturning, 2)
		case podops.PhaseRequested, podops.PhasePreCheck:
			if v.ServiceAvailable() {
				note(StateWaiting, 1)
			}
		case podops.PhaseNone, podops.PhaseUndone, podops.PhaseAbandoned:
		}
	}
	_, creating := v.Labels[podops.CreatingLabel]
	_, recreated := v.Labels[podops.RecreatedLabel]
	switch {
	case state != "":
		return state
	case v.ServiceAvailable():
		return StateServing
	case creating || recreated:
		return StateStarting
	}
	return StateDown
}

// changedAt is when Ready last changed, or the deletion was asked for.
func changedAt(pod *corev1.Pod) *time.Time {
	if pod.DeletionTimestamp != nil {
		asked := pod.DeletionTimestamp.Time
		if pod.DeletionGracePeriodSeconds != nil {
			asked = asked.Add(-time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
		}
		return timeOf(asked)
	}
	if c := condition(pod, corev1.PodReady); c != nil {
		return timeOf(c.LastTransitionTime.Time)
	}
	return timeOf(pod.CreationTimestamp.Time)
}

// pod describes one Pod, with what its workload wants of it.
func (x *index) pod(pod *corev1.Pod) Pod {
	p := x.podWithout(pod)
	isUpdate := func(o Operation) bool { return o.ID == collaSetOperator || o.ID == decorationOperator }
	if !slices.ContainsFunc(p.Operations, isUpdate) {
		p.Reasons = append(p.Reasons, x.notBegun(pod)...)
	}
	return p
}

// podWithout describes one Pod as it is.
func (x *index) podWithout(pod *corev1.Pod) Pod {
	v := podops.Read(pod)
	operations := podops.Operations(v)
	p := Pod{
		Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName,
		Revision: pod.Labels[appsv1.ControllerRevisionHashLabelKey],
		Created:  timeOf(pod.CreationTimestamp.Time),
		State:    stateOf(v, operations), Since: changedAt(pod), Marks: x.marks(v),
	}
	for i := range pod.Spec.Containers {
		p.Images = append(p.Images, pod.Spec.Containers[i].Image)
	}
	if v.Terminating {
		p.Reasons = x.terminating(pod)
		return p
	}
	if v.Terminal {
		p.Reasons = []Reason{ended(pod)}
		return p
	}
	overdue := ""
	if c := condition(pod, podops.OverdueCondition); c != nil && c.Status == corev1.ConditionTrue {
		overdue = c.Message
	}
	for _, w := range podops.ExplainWith(v, x.surroundings(pod.Namespace)) {
		reasons := x.behind(pod, v, w)
		if w.Phase == podops.PhaseNone { // no operation that has begun
			p.Reasons = append(p.Reasons, reasons...)
			continue
		}
		o := Operation{ID: w.ID, Type: w.Type, Phase: string(w.Phase), Since: timeOf(w.Since), Reasons: reasons}
		if job := x.jobOf(pod.Namespace, w.ID, w.Type); job != nil {
			o.Job = job.Name
		}
		if strings.Contains(overdue, w.ID) {
			o.Overdue = overdue
		}
		p.Operations = append(p.Operations, o)
	}
	return p
}

// behind is the wait with what is found behind it, that first.
func (x *index) behind(pod *corev1.Pod, v podops.View, w podops.Wait) []Reason {
	last := Reason{Code: Code(w.Reason), Message: w.Message, Since: timeOf(w.Since)}
	var found []Reason
	switch w.Reason {
	case podops.WaitOperationType:
		last.Next = "correct the operator: it has to write operation-type together with operating"
	case podops.WaitRule:
		found = x.behindRules(pod, v, podops.OperationOf(v, w.ID))
	case podops.WaitFrozen:
		if f := x.freezeOf(pod.Namespace); f != nil {
			frozen := f.reason(x.Now)
			frozen.Since = last.Since
			return []Reason{frozen}
		}
	case podops.WaitFinalizer:
		found = x.protected(pod, v)
	case podops.WaitNotReady:
		found = x.kubelet(pod, "the kubelet of node "+pod.Spec.NodeName+" has not reported that the Pod is out of service")
	case podops.WaitOperator:
		found = x.operator(pod, w)
	case podops.WaitReady:
		found = x.notReady(pod)
	case podops.WaitExpected:
		found = x.unjoined(pod, v)
	case podops.WaitLifecycle:
		found = x.alone(LifecycleController)
		last.Next = "it goes on by itself; if it does not, see whether " + LifecycleController +
			" runs: kubectl kuperator doctor"
	case podops.WaitStayOffline:
		last.Next = "kubectl -n " + pod.Namespace + " label pod " + pod.Name + " " + podops.StayOfflineLabel + "-"
	case podops.WaitOther:
		last.Next = "see the other operation of this Pod"
	case podops.WaitRefused:
		last.Next = "have the policy or webhook that it names let the Pod go; to keep the Pod: " +
			"kubectl -n " + pod.Namespace + " label pod " + pod.Name + " " + appsv1alpha1.ToDeleteLabel + "-"
	}
	if last.Since == nil && w.Reason != podops.WaitRefused {
		last.Since = changedAt(pod) // no operation: the Pod itself has changed
	}
	for i := range found {
		if found[i].Since == nil {
			found[i].Since = last.Since
		}
	}
	// The component that takes the next step must run, whatever else is missing.
	if w.Reason != podops.WaitLifecycle && w.Reason != podops.WaitOperator {
		found = append(found, x.alone(LifecycleController)...)
	}
	return append(found, last)
}

// protected names the cooperators that hold the Pod.
func (x *index) protected(pod *corev1.Pod, v podops.View) []Reason {
	expected, _ := podops.ExpectedFinalizers(v.Annotations)
	var found []Reason
	for _, f := range podops.ProtectionFinalizers(v.Finalizers) {
		r := Reason{
			Code: CodeProtectionFinalizer, Message: "finalizer " + f + " holds the Pod, and nothing on the Pod says whose it is",
			Next: "find the controller that writes " + f +
				" (kubectl kuperator doctor lists those of adapters that are gone); remove it by hand only if nothing outside depends on the Pod",
		}
		for employer, finalizer := range expected {
			if finalizer == f {
				r.On = employerRef(employer)
				r.Message = employer + " holds the Pod with finalizer " + f
				r.Next = "see whether traffic to the Pod can be taken off: " + lookAt(r.On, pod, finalizer)
			}
		}
		found = append(found, r)
	}
	if r := x.missing(ResourceConsistController); r != nil && len(found) > 0 {
		r.Message += "; it removes the finalizers of the built-in adapters"
		found = append(found, *r)
	}
	return found
}

// lookAt is how to look at the employer of a finalizer. A key that names no object leads to the Pod that has it, and
// to the finalizer's writer.
func lookAt(employer *Ref, pod *corev1.Pod, finalizer string) string {
	if employer.Namespace != "" {
		return "kubectl -n " + employer.Namespace + " describe " + strings.ToLower(employer.Kind) + " " + employer.Name
	}
	return "see whether the controller that writes " + finalizer +
		" runs; if it is gone for good, take its entry off the annotation " +
		podops.AvailableConditionsAnnotation + ": kubectl -n " + pod.Namespace + " edit pod " + pod.Name
}

// unjoined names the cooperators that do not have the Pod back.
func (x *index) unjoined(pod *corev1.Pod, v podops.View) []Reason {
	var found []Reason
	expected, _ := podops.ExpectedFinalizers(v.Annotations)
	for _, employer := range podops.MissingEmployers(v) {
		ref := employerRef(employer)
		found = append(found, Reason{
			Code: CodeCooperatorMissing, On: ref, Since: changedAt(pod),
			Message: employer + " has not brought the Pod back: its controller has not put finalizer " +
				expected[employer] + " on",
			Next: lookAt(ref, pod, expected[employer]),
		})
	}
	if r := x.missing(ResourceConsistController); r != nil && len(found) > 0 {
		r.Message += "; it is the cooperator of the built-in adapters"
		found = append([]Reason{*r}, found...)
	}
	return found
}

// employerRef reads "<Kind>/<namespace>/<name>".
func employerRef(key string) *Ref {
	parts := strings.SplitN(key, "/", 3)
	if len(parts) < 3 {
		return &Ref{Kind: "Employer", Name: key}
	}
	return &Ref{Kind: parts[0], Namespace: parts[1], Name: parts[2]}
}

// operator says why an operator that may act has not finished.
func (x *index) operator(pod *corev1.Pod, w podops.Wait) []Reason {
	switch w.ID {
	case collaSetOperator:
		return x.inPlace(pod, CollaSetController)
	case decorationOperator:
		return x.inPlace(pod, PodDecorationController)
	case podops.DeletionID:
		return x.alone(LifecycleController)
	}
	if found := x.jobAtWork(pod, w); found != nil {
		return found
	}
	return []Reason{{
		Code:    codeOperatorAtWork,
		Message: "the program that operates as \"" + w.ID + "\" may act and has not said that it is done",
		Next: "see what that program waits for; it ends its operation by removing the label " +
			podops.OperatingPrefix + "/" + w.ID,
	}}
}

// inPlace says why an update in place by a component has not finished.
func (x *index) inPlace(pod *corev1.Pod, component string) []Reason {
	if !revision.Recorded(pod) {
		return x.alone(component)
	}
	progress := revision.Carried(pod)
	switch progress.Wait {
	case revision.WaitNone:
	case revision.WaitContainers:
		if found := x.containers(pod); len(found) > 0 {
			return found
		}
		return x.kubelet(pod, progress.Missing)
	case revision.WaitResize:
		return x.kubelet(pod, progress.Missing)
	case revision.WaitRestartInfeasible:
		return []Reason{{Code: Code(progress.Wait), Message: progress.Missing,
			Next: "have the Pod replaced: kubectl kuperator -n " + pod.Namespace + " replace pod/" + pod.Name}}
	case revision.WaitRecordUnreadable:
		return []Reason{{Code: Code(progress.Wait), Message: progress.Missing,
			Next: "kubectl -n " + pod.Namespace + " annotate --overwrite pod " +
				pod.Name + " " + appsv1alpha1.LastPodStatusAnnotation + "={}"}}
	case revision.WaitResizeDeferred, revision.WaitResizeInfeasible:
		return []Reason{{Code: Code(progress.Wait), Message: progress.Missing,
			Next: "ask for less, or have the Pod replaced: kubectl kuperator -n " + pod.Namespace + " replace pod/" + pod.Name}}
	}
	if progress.Finish != nil {
		return x.alone(LifecycleController)
	}
	return x.alone(component)
}

// alone is what is wrong if only this component can go on.
func (x *index) alone(component string) []Reason {
	if r := x.missing(component); r != nil {
		return []Reason{*r}
	}
	return nil
}

// Blocker is the first of the Pod's reasons: of the operation that is the furthest, else of the Pod itself.
func (p *Pod) Blocker() *Reason {
	reasons := p.all()
	if len(reasons) == 0 {
		return nil
	}
	return &reasons[0]
}

// all are the Pod's reasons, those of the furthest operation first: the others wait for it.
func (p *Pod) all() []Reason {
	rank := func(o Operation) int {
		switch podops.Phase(o.Phase) {
		case podops.PhaseRequested, podops.PhasePreCheck:
			return 1
		case podops.PhasePostChecked, podops.PhaseCompleting:
			return 2
		default:
			return 3
		}
	}
	operations := slices.Clone(p.Operations)
	slices.SortStableFunc(operations, func(a, b Operation) int { return cmp.Compare(rank(b), rank(a)) })
	var reasons []Reason
	for _, o := range operations {
		reasons = append(reasons, o.Reasons...)
	}
	return once(append(reasons, p.Reasons...))
}
