package jobplan

import (
	"fmt"
	"slices"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// replace asks for the Pod's replacement. collaset-controller does the rest.
type replace struct{}

func (replace) operate(t *target) {
	pod, op := t.pod(), t.details.Operation
	switch {
	case pod == nil && t.stored().InstanceID != "":
		switch _, known := t.details.ExtraInfo[appsv1alpha1.ExtraInfoNewPod]; {
		case !t.confirmed():
		case !known && t.Successor == nil:
			t.fail(appsv1alpha1.ReasonPodNotFound, "the Pod was gone before another one was there")
		default:
			t.reach(appsv1alpha1.OpsStageOperated)
		}
		return
	case pod != nil && pod.View.Terminating && pod.CollaSet != "":
		if newID := pod.View.Labels[appsv1alpha1.ReplacePairNewIDLabel]; newID != "" {
			op.InstanceID, op.CollaSet = newID, pod.CollaSet
		}
		known := t.stored().InstanceID == op.InstanceID // who comes after it
		if c := t.traces(pod); known && isProtected(pod.View) && !c.IsZero() {
			t.write(pod, "letting go of", c)
		}
		t.waits("the Pod ends")
		return
	case !t.isThere() || !t.belongs(pod):
		return
	}
	if newID := pod.View.Labels[appsv1alpha1.ReplacePairNewIDLabel]; newID != "" {
		op.InstanceID, op.CollaSet = newID, pod.CollaSet
	}
	if t.Successor != nil {
		t.say(appsv1alpha1.ExtraInfoNewPod, t.Successor.View.Name)
	}
	if origin, isNew := pod.View.Labels[appsv1alpha1.ReplacePairOriginNameLabel]; isNew &&
		t.stored().Stage == appsv1alpha1.OpsStageStarted {
		t.say(appsv1alpha1.ExtraInfoNotAllowedToReplaceNewPod, fmt.Sprintf("the Pod takes the place of %s, and is "+
			"replaced when that is over", origin))
		return
	}
	delete(t.details.ExtraInfo, appsv1alpha1.ExtraInfoNotAllowedToReplaceNewPod)
	if !t.ask(pod, appsv1alpha1.ToReplaceLabel) {
		return
	}
	if c := unprotect(pod.View, Asker(t.Job.UID)); t.stored().InstanceID != "" && !c.IsZero() {
		t.write(pod, "letting go of", c) // so that nothing waits for this job when the Pod is deleted
	}
	switch {
	case op.InstanceID == "":
		t.waits("collaset-controller has to begin the replacement")
	case t.Successor == nil:
		t.waits(fmt.Sprintf("collaset-controller has to create the Pod of instance ID %s", op.InstanceID))
	case !t.Successor.serves():
		t.waits(fmt.Sprintf("its replacement %s is not in service yet", t.Successor.View.Name))
	default:
		t.waits("its replacement serves; the Pod has to be deleted gracefully")
	}
}

func (replace) isDone(t *target) (done bool, waits string) { return followed(t) }

// recreate asks for the Pod's graceful deletion. Its CollaSet creates another one with the same instance ID.
type recreate struct{}

func (recreate) operate(t *target) {
	pod, op := t.pod(), t.details.Operation
	switch {
	case pod == nil && t.stored().InstanceID != "":
		if t.confirmed() {
			t.reach(appsv1alpha1.OpsStageOperated)
		}
		return
	case pod != nil && pod.View.Terminating && pod.CollaSet != "" && pod.InstanceID != "":
		op.InstanceID, op.CollaSet = pod.InstanceID, pod.CollaSet
		t.waits("the Pod ends")
		return
	case !t.isThere() || !t.belongs(pod):
		return
	}
	op.InstanceID, op.CollaSet = pod.InstanceID, pod.CollaSet
	if t.stored().InstanceID == "" {
		return // once that is stored
	}
	if t.ask(pod, appsv1alpha1.ToDeleteLabel) {
		t.waits(waitingFor(pod, podops.DeletionID))
	}
}

func (recreate) isDone(t *target) (done bool, waits string) { return followed(t) }

// followed reports whether the Pod that takes the place of the target serves.
func followed(t *target) (done bool, waits string) {
	id := t.details.Operation.InstanceID
	if t.Successor == nil {
		return false, fmt.Sprintf("collaset-controller has to create the Pod of instance ID %s", id)
	}
	name := t.Successor.View.Name
	t.say(appsv1alpha1.ExtraInfoNewPod, name)
	return t.Successor.serves(), fmt.Sprintf("%s, which takes its place, is not in service yet", name)
}

// belongs reports whether a CollaSet creates another Pod in this one's place, and fails the target if none does.
func (t *target) belongs(pod *Pod) bool {
	if pod.CollaSet == "" || pod.InstanceID == "" {
		t.fail(appsv1alpha1.ReasonNotSupported, fmt.Sprintf("no CollaSet has the Pod, so none creates another one in its "+
			"place: use action %s", appsv1alpha1.OpsActionEvict))
		return false
	}
	return true
}

// ask asks for a mark, and reports whether the Pod has it and says so. A mark that was taken away is not asked for
// again: that cancels.
func (t *target) ask(pod *Pod, mark string) bool {
	asker := Asker(t.Job.UID)
	switch {
	case podops.MarkedBy(pod.View, mark, asker):
		t.reach(appsv1alpha1.OpsStageAsked)
		return true
	case t.stored().Stage == appsv1alpha1.OpsStageAsked:
		if t.confirmed() {
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
		c = protect(pod.View, c)
	}
	t.write(pod, "asking for "+mark+" of", c)
	return false
}

// evict evicts the Pod. webhook-server has it leave gracefully.
type evict struct{}

func (evict) operate(t *target) {
	pod := t.pod()
	switch {
	case pod == nil && t.details.Operation.PodUID != "":
		if t.confirmed() {
			t.reach(appsv1alpha1.OpsStageOperated)
		}
	case pod == nil:
		t.isThere()
	case pod.View.Terminating:
		t.waits("the Pod ends")
	default:
		if _, leaves := pod.View.Labels[appsv1alpha1.ToDeleteLabel]; leaves {
			t.waits(waitingFor(pod, podops.DeletionID))
			return
		}
		t.plan.Writes = append(t.plan.Writes, Write{Target: t.number, Pod: pod, Does: "evicting", Evict: true})
		t.waits("the Pod has to be evicted; that is tried again and again: " + t.Refused)
		t.look(evictAgain)
	}
}

func (evict) isDone(*target) (done bool, waits string) { return true, "" }

// isProtected reports whether the Pod has the finalizer of a replacement.
func isProtected(v podops.View) bool {
	return slices.Contains(v.Finalizers, appsv1alpha1.ReplaceProtectionFinalizer)
}

// protect adds the finalizer of a replacement to a change: the Pod stays until it is known who comes after it.
func protect(v podops.View, c podops.Change) podops.Change {
	if !isProtected(v) {
		c.Finalizers = append(slices.Clone(v.Finalizers), appsv1alpha1.ReplaceProtectionFinalizer)
		c.FinalizersChanged = true
	}
	return c
}
