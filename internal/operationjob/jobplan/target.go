package jobplan

import (
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
	// waitingAfter is how long a target may take before its status says what it waits for: what is quick costs no write.
	waitingAfter = 30 * time.Second
	// evictAgain is when an eviction that was refused is tried again.
	evictAgain = 10 * time.Second
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
		return inPlace{foreign{}}
	default:
		return nil
	}
}

// stored is the operation as the status has it: only what is stored may be relied on by a write.
func (t *target) stored() *appsv1alpha1.OpsProgress {
	return t.Job.Status.TargetDetails[t.number].Operation
}

// step takes the target one step on.
func (t *target) step(act action) {
	if t.details.Operation.Recreates {
		act = recreate{}
	}
	switch stage := t.stored().Stage; {
	case stage == appsv1alpha1.OpsStageReleasing || act == nil:
		t.letGo()
	case t.isLate():
		t.fail(appsv1alpha1.ReasonDeadlineExceeded, fmt.Sprintf("not done within %s (spec.activeDeadlineSeconds)%s",
			t.deadline(), t.waitedFor()))
	case stage == appsv1alpha1.OpsStageOperated:
		t.finish(act)
	default:
		act.operate(t)
	}
}

// finish takes what is left on the Pod away, and ends the target when service is back.
func (t *target) finish(act action) {
	if pod := t.pod(); pod != nil {
		if c := t.traces(pod); !c.IsZero() {
			t.write(pod, "ending the operation on", c)
			return
		}
	}
	done, waits := act.isDone(t)
	switch {
	case !done:
		t.waits(waits)
	case t.confirmed():
		t.end(appsv1alpha1.OperationProgressSucceeded)
	}
}

// letGo ends a target that fails, when nothing of the job is left on its Pod.
func (t *target) letGo() {
	if t.release() {
		t.end(appsv1alpha1.OperationProgressFailed)
	}
}

// release takes away what the job has left on the Pod, and reports whether nothing is left.
func (t *target) release() bool {
	if pod := t.pod(); pod != nil {
		if c := t.traces(pod); !c.IsZero() {
			t.write(pod, "taking back what was asked for of", c)
			return false
		}
	}
	return t.confirmed()
}

// traces is the change that takes all that is the job's off a Pod, whatever the action: the marks that it asks for,
// the finalizer of a replacement that no other job needs, its operation, and its task.
func (t *target) traces(pod *Pod) podops.Change {
	asker, id := Asker(t.Job.UID), podops.JobOperationID(t.Job.Name)
	c := unprotect(pod.View, asker)
	for _, mark := range []string{appsv1alpha1.ToReplaceLabel, appsv1alpha1.ToDeleteLabel} {
		c = c.Then(pod.View, withdraw(c.Apply(pod.View), mark, asker))
	}
	c = c.Then(pod.View, podops.Finish(c.Apply(pod.View), id, t.operationType(), t.Now))
	if tasks, err := podops.Tasks(pod.View); err != nil || tasks[id].Action != "" {
		c = c.Then(pod.View, podops.PutTask(c.Apply(pod.View), id, nil))
	}
	return c
}

// withdraw takes a job out of the record of a mark. On a Pod that is being deleted nothing comes of the mark any more,
// and it says what happened to the Pod: it stays.
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

// confirmed reports whether the view was read past the cache, and has that done if not.
func (t *target) confirmed() bool {
	if !t.Live {
		t.plan.Confirm = append(t.plan.Confirm, t.number)
	}
	return t.Live
}

// write writes to the Pod.
func (t *target) write(pod *Pod, does string, c podops.Change) {
	t.plan.Writes = append(t.plan.Writes, Write{Target: t.number, Pod: pod, Does: does, Change: c})
	if t.Refused != "" {
		t.waits("the API server refuses a write to the Pod: " + t.Refused)
	}
}

// reach stores a stage.
func (t *target) reach(stage appsv1alpha1.OpsStage) { t.details.Operation.Stage = stage }

// fail stores that the target fails, and why. What is left on its Pod is taken away after that. A target that has
// nothing on its Pod ends at once.
func (t *target) fail(reason appsv1alpha1.OpsReason, message string) {
	t.details.Error = &appsv1alpha1.OpsError{Reason: reason, Message: message}
	t.reach(appsv1alpha1.OpsStageReleasing)
	t.look(time.Millisecond)
}

// end ends the target. What was remembered of it is of no use any more.
func (t *target) end(progress appsv1alpha1.OperationProgress) {
	d := t.details
	if progress == appsv1alpha1.OperationProgressSucceeded {
		d.Error = nil
	} else if d.Operation.Stage == appsv1alpha1.OpsStageReleasing {
		t.say(appsv1alpha1.ExtraInfoReleased, "true")
	}
	delete(d.ExtraInfo, appsv1alpha1.ExtraInfoWaiting)
	d.Progress, d.EndTime, d.Operation = progress, ptr.To(metav1.NewTime(t.Now)), nil
	t.plan.Ended = append(t.plan.Ended, t.number)
}

// say stores extra information.
func (t *target) say(key appsv1alpha1.OpsExtraInfoKey, value string) {
	if t.details.ExtraInfo == nil {
		t.details.ExtraInfo = map[appsv1alpha1.OpsExtraInfoKey]string{}
	}
	t.details.ExtraInfo[key] = value
}

// waits says what the target waits for, once that takes long.
func (t *target) waits(what string) {
	if wait := t.details.StartTime.Add(waitingAfter).Sub(t.Now); wait > 0 {
		t.look(wait)
		return
	}
	t.say(appsv1alpha1.ExtraInfoWaiting, what)
}

func (t *target) waitedFor() string {
	if what := t.details.ExtraInfo[appsv1alpha1.ExtraInfoWaiting]; what != "" {
		return "; it waited: " + what
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
		t.look(left)
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

// isThere reports whether there is a Pod to operate on, and fails the target if there is none.
func (t *target) isThere() bool {
	switch pod := t.pod(); {
	case pod != nil && !pod.View.Terminating:
		return true
	case pod != nil:
		t.fail(appsv1alpha1.ReasonPodNotFound, "the Pod is being deleted")
	case t.confirmed():
		t.fail(appsv1alpha1.ReasonPodNotFound, "there is no such Pod in the namespace, or not any more")
	}
	return false
}
