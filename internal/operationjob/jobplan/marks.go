package jobplan

import (
	"cmp"
	"fmt"
	"slices"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// replace asks for the Pod's replacement. collaset-controller does the rest.
type replace struct{}

func (r replace) operate(t *target) {
	pod := t.pod()
	switch {
	case pod == nil && t.stored().InstanceID != "":
		r.gone(t)
	case pod != nil && pod.View.Terminating && pod.CollaSet != "":
		r.terminating(t, pod)
	case t.requirePod() && t.requireCollaSet(pod):
		r.ask(t, pod)
	}
}

// gone looks for the Pod that comes after one that is gone.
func (replace) gone(t *target) {
	switch _, known := t.details.ExtraInfo[appsv1alpha1.ExtraInfoNewPod]; {
	case !t.requireLive():
	case !known && t.Successor == nil:
		t.fail(appsv1alpha1.ReasonPodNotFound, "the Pod was gone before another one was there")
	default:
		t.setStage(appsv1alpha1.OpsStageOperated)
	}
}

// terminating lets the Pod go as soon as it is stored who comes after it.
func (replace) terminating(t *target, pod *Pod) {
	op := t.details.Operation
	if newID := pod.View.Labels[appsv1alpha1.ReplacePairNewIDLabel]; newID != "" {
		op.InstanceID, op.CollaSet = newID, pod.CollaSet
	}
	isStored := t.stored().InstanceID == op.InstanceID
	if c := t.traces(pod); isStored && isProtected(pod.View) && !c.IsZero() {
		t.write(Write{Pod: pod, Does: "removing the job's finalizer from", Change: c})
	}
	t.reportWait("the Pod is terminating")
}

// ask asks for the replacement, and follows how far it is.
func (replace) ask(t *target, pod *Pod) {
	op := t.details.Operation
	if op.InstanceID = pod.View.Labels[appsv1alpha1.ReplacePairNewIDLabel]; op.InstanceID != "" {
		op.CollaSet = pod.CollaSet
	}
	if t.Successor != nil {
		t.setExtraInfo(appsv1alpha1.ExtraInfoNewPod, t.Successor.View.Name)
	}
	if origin, isNew := pod.View.Labels[appsv1alpha1.ReplacePairOriginNameLabel]; isNew &&
		t.stored().Stage == appsv1alpha1.OpsStageStarted {
		t.setExtraInfo(appsv1alpha1.ExtraInfoNotAllowedToReplaceNewPod, fmt.Sprintf("the Pod takes the place of %s, and is "+
			"replaced when that is over", origin))
		return
	}
	delete(t.details.ExtraInfo, appsv1alpha1.ExtraInfoNotAllowedToReplaceNewPod)
	if !t.ask(pod, appsv1alpha1.ToReplaceLabel) {
		return
	}
	isKnown := op.InstanceID != "" && t.stored().InstanceID == op.InstanceID
	if c := unprotect(pod.View, Asker(t.Job.UID)); isKnown && !c.IsZero() {
		// So that nothing waits for this job when the Pod is deleted.
		t.write(Write{Pod: pod, Does: "removing the job's finalizer from", Change: c})
	}
	switch {
	case op.InstanceID == "":
		t.reportWait("collaset-controller has to begin the replacement")
	case t.Successor == nil:
		t.reportWait(fmt.Sprintf("collaset-controller has to create the Pod of instance ID %s", op.InstanceID))
	case !t.Successor.serves():
		t.reportWait(fmt.Sprintf("its replacement %s is not in service yet", t.Successor.View.Name))
	default:
		t.reportWait("its replacement serves; the old Pod is being deleted gracefully")
	}
}

func (replace) isDone(t *target) (done bool, waits string) { return successorServes(t) }

// recreate asks for the Pod's graceful deletion. Its CollaSet creates another one with the same instance ID.
type recreate struct{}

func (recreate) operate(t *target) {
	pod, op := t.pod(), t.details.Operation
	switch {
	case pod == nil && t.stored().InstanceID != "":
		if t.requireLive() {
			t.setStage(appsv1alpha1.OpsStageOperated)
		}
		return
	case pod != nil && pod.View.Terminating && pod.CollaSet != "" && pod.InstanceID != "":
		op.InstanceID, op.CollaSet = successorID(pod), pod.CollaSet
		t.reportWait("the Pod is terminating")
		return
	case !t.requirePod() || !t.requireCollaSet(pod):
		return
	}
	op.InstanceID, op.CollaSet = successorID(pod), pod.CollaSet
	if t.stored().InstanceID == "" {
		return // once that is stored
	}
	if t.ask(pod, appsv1alpha1.ToDeleteLabel) {
		t.reportWait(waitingFor(pod, podops.DeletionID))
	}
}

func (recreate) isDone(t *target) (done bool, waits string) { return successorServes(t) }

// successorID is the instance ID of the Pod that takes the place of one that is deleted: its own, or that of its
// replacement.
func successorID(pod *Pod) string {
	return cmp.Or(pod.View.Labels[appsv1alpha1.ReplacePairNewIDLabel], pod.InstanceID)
}

// successorServes reports whether the Pod that takes the place of the target serves. One that is being replaced before
// it serves is followed to its replacement.
func successorServes(t *target) (done bool, waits string) {
	id := t.details.Operation.InstanceID
	if t.Successor == nil {
		return false, fmt.Sprintf("collaset-controller has to create the Pod of instance ID %s", id)
	}
	name := t.Successor.View.Name
	t.setExtraInfo(appsv1alpha1.ExtraInfoNewPod, name)
	if !t.Successor.serves() {
		t.details.Operation.InstanceID = successorID(t.Successor)
	}
	return t.Successor.serves(), fmt.Sprintf("%s, which takes its place, is not in service yet", name)
}

// requireCollaSet reports whether a CollaSet creates another Pod in this one's place. If none does, the target fails.
func (t *target) requireCollaSet(pod *Pod) bool {
	if pod.CollaSet == "" || pod.InstanceID == "" {
		t.fail(appsv1alpha1.ReasonNotSupported, fmt.Sprintf("no CollaSet controls the Pod, or it has no "+
			"instance ID, so it would not be created again: use action %s", appsv1alpha1.OpsActionEvict))
		return false
	}
	return true
}

// ask asks for a mark, and reports whether the Pod has it with this job in its record. A mark that was taken away is
// not asked for again: that cancels.
func (t *target) ask(pod *Pod, mark string) bool {
	asker := Asker(t.Job.UID)
	switch {
	case podops.MarkedBy(pod.View, mark, asker):
		t.setStage(appsv1alpha1.OpsStageAsked)
		return true
	case t.stored().Stage == appsv1alpha1.OpsStageAsked:
		if t.requireLive() {
			t.fail(appsv1alpha1.ReasonCancelled, fmt.Sprintf("label %s was taken off the Pod", mark))
		}
		return false
	}
	c, err := podops.Mark(pod.View, mark, "true", asker)
	if err != nil {
		t.fail(appsv1alpha1.ReasonUpdateObjectFailed, err.Error())
		return false
	}
	if mark == appsv1alpha1.ToReplaceLabel {
		if isOfKuperator(pod.View) { // the job's own, without a record
			c = c.Then(pod.View, podops.Withdraw(c.Apply(pod.View), mark, podops.AskerOther))
		}
		c = protect(pod.View, c)
	}
	t.write(Write{Pod: pod, Does: "setting " + mark + " on", Change: c, Asks: true})
	return false
}

// evict evicts the Pod. webhook-server has it leave gracefully.
type evict struct{}

func (evict) operate(t *target) {
	pod := t.pod()
	switch {
	case pod == nil && t.details.Operation.PodUID != "":
		if t.requireLive() {
			t.setStage(appsv1alpha1.OpsStageOperated)
		}
	case pod == nil:
		t.requirePod()
	case pod.View.Terminating:
		t.reportWait("the Pod is terminating")
	default:
		if _, leaves := pod.View.Labels[appsv1alpha1.ToDeleteLabel]; leaves ||
			t.stored().Stage == appsv1alpha1.OpsStageAsked {
			if t.ask(pod, appsv1alpha1.ToDeleteLabel) {
				t.reportWait(waitingFor(pod, podops.DeletionID))
			}
			return
		}
		t.reportWait("the eviction has been requested")
		t.write(Write{Pod: pod, Does: "evicting", Evict: true, Asks: true})
	}
}

func (evict) isDone(*target) (done bool, waits string) { return true, "" }

// isProtected reports whether the Pod has the finalizer of a replacement.
func isProtected(v podops.View) bool {
	return slices.Contains(v.Finalizers, appsv1alpha1.ReplaceProtectionFinalizer)
}

// isOfKuperator reports whether a job asks for a replacement as Kuperator v0.7 has it, without a record.
func isOfKuperator(v podops.View) bool {
	_, recorded := v.Annotations[appsv1alpha1.ToReplaceLabel+podops.AskersSuffix]
	return isProtected(v) && !recorded
}

// protect adds the finalizer of a replacement to a change: the Pod stays until it is known who comes after it.
func protect(v podops.View, c podops.Change) podops.Change {
	if !isProtected(v) {
		c.Finalizers = append(slices.Clone(v.Finalizers), appsv1alpha1.ReplaceProtectionFinalizer)
		c.FinalizersChanged = true
	}
	return c
}
