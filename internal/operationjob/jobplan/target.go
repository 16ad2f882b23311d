package jobplan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

const (
	// askerPrefix, followed by the UID of a job, is its name in the record of a mark.
	askerPrefix = "operationjob/"
	// waitingAfter is how long a target may take before its status has what it waits for: what is quick costs no write.
	waitingAfter = 30 * time.Second
	// RefusedAgain is how soon a write to a Pod is tried again that the API server does not take.
	RefusedAgain = 10 * time.Second
)

// Asker is a job's name in the record of a mark.
func Asker(job types.UID) string { return askerPrefix + string(job) }

// target is a target that has started and has not ended.
type target struct {
	*decision
	*Target
	number  int
	details *appsv1alpha1.OpsStatus // in the status as it is to be
}

// action takes a target one step on: it writes to the Pod, stores a stage, or ends the target.
type action interface {
	// operate carries the action out. The Pod is there, or was not seen to be gone.
	operate(t *target)
	// isDone reports whether service is back after the action was carried out, and what it waits for if not.
	isDone(t *target) (done bool, waits string)
}

// actionOf is how an action is carried out; nil if it is not known.
func actionOf(a appsv1alpha1.OperationAction) action {
	switch {
	case a == appsv1alpha1.OpsActionReplace:
		return replace{}
	case a == appsv1alpha1.OpsActionRestart:
		return inPlace{restart{}}
	case a == appsv1alpha1.OpsActionRecreate:
		return recreate{}
	case a == appsv1alpha1.OpsActionEvict:
		return evict{}
	case hasDomain(a):
		return inPlace{custom{}}
	default:
		return nil
	}
}

// stored is the operation as the status has it: only what is stored may be relied on by a write.
func (t *target) stored() *appsv1alpha1.TargetOperation {
	return t.Job.Status.TargetDetails[t.number].Operation
}

// step takes the target one step on.
func (t *target) step(act action) {
	if t.details.Operation.Recreates {
		act = recreate{}
	}
	delete(t.details.ExtraInfo, appsv1alpha1.ExtraInfoWaiting) // said again if it still waits
	switch stage := t.stored().Stage; {
	case stage == appsv1alpha1.OpsStageReleasing:
		t.finishRelease()
	case act == nil: // begun by a version that knows it
		t.fail(appsv1alpha1.ReasonUnknownAction, t.unknownAction())
	case t.isLate():
		t.overdue(act)
	default:
		t.proceed(act)
	}
}

// proceed carries the action out, or ends the target after that.
func (t *target) proceed(act action) {
	if t.stored().Stage == appsv1alpha1.OpsStageOperated {
		t.finish(act)
		return
	}
	act.operate(t)
}

// overdue fails a target whose deadline is over, unless all was done in time and only this program was late.
func (t *target) overdue(act action) {
	writes, confirms := len(t.plan.Writes), len(t.plan.Confirm)
	t.proceed(act)
	op := t.details.Operation
	if op == nil || len(t.plan.Confirm) > confirms || op.Stage == appsv1alpha1.OpsStageReleasing ||
		op.Stage == appsv1alpha1.OpsStageOperated && t.stored().Stage != appsv1alpha1.OpsStageOperated {
		return
	}
	t.plan.Writes = t.plan.Writes[:writes]
	t.fail(appsv1alpha1.ReasonDeadlineExceeded, fmt.Sprintf("not done within %s (spec.activeDeadlineSeconds)%s",
		t.deadline(), t.waitedFor()))
}

// finish takes what is left on the Pod away, and ends the target when service is back.
func (t *target) finish(act action) {
	if !t.clear("ending the operation on") {
		return
	}
	done, waits := act.isDone(t)
	switch {
	case t.details.Operation.Stage == appsv1alpha1.OpsStageReleasing:
	case !done:
		t.reportWait(waits)
	case t.requireLive():
		t.end(appsv1alpha1.OperationProgressSucceeded)
	}
}

// finishRelease ends a target that fails, when nothing of the job is left on its Pod.
func (t *target) finishRelease() {
	if t.release() {
		t.end(appsv1alpha1.OperationProgressFailed)
	}
}

// release takes away what the job has left on the Pod, and reports whether nothing is left.
func (t *target) release() bool {
	return t.clear("removing what the job has left on") && t.requireLive()
}

// clear takes away what the job has left on the Pod, and reports whether the view has nothing of it.
func (t *target) clear(does string) bool {
	pod := t.pod()
	if pod == nil {
		return true
	}
	c := t.traces(pod)
	if !c.IsZero() {
		t.write(Write{Pod: pod, Does: does, Change: c})
	}
	return c.IsZero()
}

// traces is the change that takes all that is the job's off a Pod, whatever the action: the marks that it asks for,
// the finalizer of a replacement that no other job needs, its operation, and its task.
func (t *target) traces(pod *Pod) podops.Change {
	asker, id := Asker(t.Job.UID), podops.JobOperationID(t.Job.Name)
	c := unprotect(pod.View, asker)
	if isOfKuperator(pod.View) {
		c = c.Then(pod.View, withdraw(pod.View, appsv1alpha1.ToReplaceLabel, podops.AskerOther))
	}
	for _, mark := range []string{appsv1alpha1.ToReplaceLabel, appsv1alpha1.ToDeleteLabel} {
		c = c.Then(pod.View, withdraw(c.Apply(pod.View), mark, asker))
	}
	c = c.Then(pod.View, podops.Finish(c.Apply(pod.View), id, t.operationType(), t.Now))
	if tasks, err := podops.Tasks(pod.View); err != nil || tasks[id].Action != "" {
		c = c.Then(pod.View, podops.PutTask(c.Apply(pod.View), id, nil))
	}
	return c
}

// withdraw takes a job out of the record of a mark. On a terminating Pod the mark has no effect any more and records
// why the Pod goes, so it stays.
func withdraw(v podops.View, mark, asker string) podops.Change {
	c := podops.Withdraw(v, mark, asker)
	if v.Terminating {
		c.Labels = nil
	}
	return c
}

// unprotect removes the finalizer of a replacement, unless another job has asked for it, too.
func unprotect(v podops.View, asker string) podops.Change {
	at := slices.Index(v.Finalizers, appsv1alpha1.ReplaceProtectionFinalizer)
	isOther := func(name string) bool { return strings.HasPrefix(name, askerPrefix) && name != asker }
	if at < 0 || slices.ContainsFunc(podops.Askers(v, appsv1alpha1.ToReplaceLabel), isOther) {
		return podops.Change{}
	}
	return podops.Change{Finalizers: slices.Delete(slices.Clone(v.Finalizers), at, at+1), FinalizersChanged: true}
}

// pod is the Pod that the target started with; nil if it is not there.
func (t *target) pod() *Pod {
	if t.Pod == nil || t.Pod.View.UID != t.details.Operation.PodUID {
		return nil
	}
	return t.Pod
}

// requireLive reports whether the view was read past the cache, and has that done if not.
func (t *target) requireLive() bool {
	if !t.Live {
		t.plan.Confirm = append(t.plan.Confirm, t.number)
	}
	return t.Live
}

// write writes to the Pod. A write that the API server does not take is tried again after RefusedAgain.
func (t *target) write(w Write) {
	t.decideWithin(RefusedAgain)
	if t.Refused != "" {
		t.reportWait(fmt.Sprintf("the API server refuses %s the Pod, which is tried again: %s", w.Does, t.Refused))
	}
	if !t.PutOff {
		t.plan.Writes = append(t.plan.Writes, w)
	}
}

// setStage stores a stage.
func (t *target) setStage(stage appsv1alpha1.OpsStage) { t.details.Operation.Stage = stage }

// fail stores that the target fails, and why. The next decisions remove what the job has left on the Pod, and then end
// the target.
func (t *target) fail(reason appsv1alpha1.OpsReason, message string) {
	t.details.Error = &appsv1alpha1.OpsError{Reason: reason, Message: t.short(message)}
	t.setStage(appsv1alpha1.OpsStageReleasing)
	t.decideWithin(time.Millisecond)
}

// end ends the target. What was remembered of it is of no use any more.
func (t *target) end(progress appsv1alpha1.OperationProgress) {
	d := t.details
	if progress == appsv1alpha1.OperationProgressSucceeded {
		d.Error = nil
	} else {
		t.setExtraInfo(appsv1alpha1.ExtraInfoReleased, "true")
	}
	delete(d.ExtraInfo, appsv1alpha1.ExtraInfoWaiting)
	d.Progress, d.EndTime, d.Operation = progress, ptr.To(metav1.NewTime(t.Now)), nil
	t.plan.Ended = append(t.plan.Ended, t.number)
}

// setExtraInfo stores extra information.
func (t *target) setExtraInfo(key appsv1alpha1.OpsExtraInfoKey, value string) {
	if t.details.ExtraInfo == nil {
		t.details.ExtraInfo = map[appsv1alpha1.OpsExtraInfoKey]string{}
	}
	t.details.ExtraInfo[key] = t.short(value)
}

// reportWait stores what the target waits for, once that takes long or its deadline is over.
func (t *target) reportWait(what string) {
	if wait := t.details.StartTime.Add(min(waitingAfter, t.deadline())).Sub(t.Now); wait > 0 {
		t.decideWithin(wait)
		return
	}
	t.setExtraInfo(appsv1alpha1.ExtraInfoWaiting, what)
}

// waitedFor is what a target waits for whose deadline is over: as this decision has it, or else the last one.
func (t *target) waitedFor() string {
	stored := t.Job.Status.TargetDetails[t.number].ExtraInfo[appsv1alpha1.ExtraInfoWaiting]
	if what := cmp.Or(t.details.ExtraInfo[appsv1alpha1.ExtraInfoWaiting], stored); what != "" {
		return "; it was waiting: " + what
	}
	return ""
}

func (t *target) deadline() time.Duration {
	return seconds(t.Job.Spec.ActiveDeadlineSeconds, defaultDeadline)
}

// isLate reports whether the target's deadline is over. It has the next decision be made when it is.
func (t *target) isLate() bool {
	left := t.details.StartTime.Add(t.deadline()).Sub(t.Now)
	if left > 0 {
		t.decideWithin(left)
	}
	return left <= 0
}

// containers are those that the job names for the target; nil if it names none.
func (t *target) containers() []string {
	if selector := t.Job.Spec.TargetSelector; selector != nil {
		return selector.Containers
	}
	for i := range t.Job.Spec.Targets {
		if t.Job.Spec.Targets[i].Name == t.details.Name {
			return t.Job.Spec.Targets[i].Containers
		}
	}
	return nil
}

func (t *target) operationType() string { return podops.JobOperationType(string(t.Job.Spec.Action)) }

// requirePod reports whether there is a Pod to operate on, and fails the target if there is none.
func (t *target) requirePod() bool {
	switch pod := t.pod(); {
	case pod != nil && !pod.View.Terminating:
		return true
	case pod != nil:
		t.fail(appsv1alpha1.ReasonPodNotFound, "the Pod is being deleted")
	case t.requireLive():
		t.fail(appsv1alpha1.ReasonPodNotFound, "the Pod does not exist, or has been deleted")
	}
	return false
}
