package jobplan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/shorten"
	"kusionstack.io/kuperator/internal/soonest"
)

const (
	// Kuperator's defaults, applied when read: what is in Git is what is in the cluster.
	defaultDeadline = 10800 * time.Second
	defaultTTL      = 1800 * time.Second
	// unknownActionGrace is how long an action that is not known is waited for: a newer version may be on its way.
	unknownActionGrace = time.Minute
	// MaxTargets is how many Pods a selector may select, the same as spec.targets may name: a status of more does not fit
	// into an object of etcd, which takes 1.5 MB.
	MaxTargets = 2000
	// maxWrites is how many writes a plan has before no Pod is asked for any more. A Pod that is out of service waits for
	// the writes of one plan at most: 1,000 Pods that were asked at once were out for 35 s each, on two cores.
	maxWrites = 64
)

// Decide makes the plan. The Snapshot has as many Targets as the status has targetDetails. The zero Plan means that
// nothing is to be done before an event.
func Decide(s *Snapshot) Plan {
	d := &decision{Snapshot: s, status: *s.Job.Status.DeepCopy()}
	switch {
	case s.Job.DeletionTimestamp != nil:
		d.releaseAll()
		return d.plan
	case isOver(s.Job.Status.Progress):
		d.expire()
		return d.plan
	case !slices.Contains(s.Job.Finalizers, appsv1alpha1.ProtectionFinalizer):
		d.plan.Protect = true
		return d.plan
	case s.Job.Status.StartTime == nil:
		d.record()
	default:
		d.advance()
		d.start()
	}
	d.conclude()
	d.putOffAsks()
	return d.plan
}

// putOffAsks leaves Pods in service that this plan has no room for.
func (d *decision) putOffAsks() {
	asksNot := func(w Write) bool { return !w.Asks }
	asks := slices.DeleteFunc(slices.Clone(d.plan.Writes), asksNot)
	others := slices.DeleteFunc(d.plan.Writes, func(w Write) bool { return w.Asks })
	room := max(0, min(maxWrites-len(others), len(asks)))
	d.plan.Writes, d.plan.More = append(others, asks[:room]...), room < len(asks)
	if d.plan.More {
		d.decideWithin(time.Millisecond)
	}
}

// Bounds of a text about one target, in bytes: all targets together have textRoom for one each.
const (
	textRoom     = 200_000
	shortestText = 64
	longestText  = 1024
)

// short is a text that leaves room in the status for those of all other targets.
func (d *decision) short(text string) string {
	limit := min(max(textRoom/max(len(d.status.TargetDetails), 1), shortestText), longestText)
	return shorten.Bytes(text, limit)
}

// decision is a plan that is being made.
type decision struct {
	*Snapshot
	status appsv1alpha1.OperationJobStatus // as it is to be
	plan   Plan
}

func isOver(p appsv1alpha1.OperationProgress) bool {
	return p == appsv1alpha1.OperationProgressSucceeded || p == appsv1alpha1.OperationProgressFailed
}

// decideWithin has the next decision be made in time.
func (d *decision) decideWithin(after time.Duration) {
	d.plan.NextLook = soonest.Of(d.plan.NextLook, max(after, time.Millisecond))
}

// record stores which Pods the targets are.
func (d *decision) record() {
	names := d.Selected
	if d.Job.Spec.TargetSelector == nil {
		names = nil
		for i := range d.Job.Spec.Targets {
			names = append(names, d.Job.Spec.Targets[i].Name)
		}
	}
	d.status.StartTime = ptr.To(metav1.NewTime(d.Now))
	if len(names) > MaxTargets || d.Invalid != "" {
		return // said by conclude
	}
	for _, name := range names {
		d.status.TargetDetails = append(d.status.TargetDetails,
			appsv1alpha1.OpsStatus{Name: name, Progress: appsv1alpha1.OperationProgressPending})
	}
}

// advance takes every target one step on that has started.
func (d *decision) advance() {
	act := actionOf(d.Job.Spec.Action)
	d.eachUnderWay(func(t *target) {
		if t.stored() != nil { // one that is only now taken over is stored first
			t.step(act)
		}
	})
}

// eachUnderWay calls f with each target that has started and has not ended.
func (d *decision) eachUnderWay(f func(*target)) {
	for i := range d.status.TargetDetails {
		details := &d.status.TargetDetails[i]
		if !isUnderWay(*details) {
			continue
		}
		if details.Operation == nil {
			d.adopt(i, details)
		}
		f(&target{decision: d, Target: &d.Targets[i], number: i, details: details})
	}
}

// adopt takes over a target that Kuperator v0.7 has begun.
func (d *decision) adopt(i int, details *appsv1alpha1.OpsStatus) {
	if details.StartTime == nil {
		details.StartTime = ptr.To(metav1.NewTime(d.Now))
	}
	details.Operation = &appsv1alpha1.TargetOperation{Stage: appsv1alpha1.OpsStageStarted}
	if pod := d.Targets[i].Pod; pod != nil {
		details.Operation.PodUID = pod.View.UID
	}
}

// start starts the next targets, as many as may be under way. They are written to once that is stored.
func (d *decision) start() {
	if actionOf(d.Job.Spec.Action) == nil {
		d.unknown()
		return
	}
	failed := 0
	for i := range d.status.TargetDetails {
		if details := &d.status.TargetDetails[i]; details.Error != nil {
			failed++
		}
	}
	if policy := d.Job.Spec.FailurePolicy; policy != nil && policy.MaxFailedTargets != nil &&
		failed > int(*policy.MaxFailedTargets) {
		if !slices.ContainsFunc(d.status.TargetDetails, isUnderWay) {
			d.failRest(appsv1alpha1.ReasonNotStarted, fmt.Sprintf("%d targets failed, more than "+
				"spec.failurePolicy.maxFailedTargets allows", failed))
		}
		return
	}
	for _, i := range next(d.Job) {
		d.startOne(i, &d.status.TargetDetails[i])
	}
}

func isUnderWay(d appsv1alpha1.OpsStatus) bool {
	return d.Operation != nil || d.Progress == appsv1alpha1.OperationProgressProcessing
}

// TargetsToRead are the targets, by number, whose Pods a decision reads: those under way, and those that may start.
func TargetsToRead(job *appsv1alpha1.OperationJob) []int {
	if isOver(job.Status.Progress) {
		return nil
	}
	var numbers []int
	for i, d := range job.Status.TargetDetails {
		if isUnderWay(d) {
			numbers = append(numbers, i)
		}
	}
	return append(numbers, next(job)...)
}

// next are the targets that may start, as the stored status has it: as many as spec.partition and spec.parallelism
// leave room for.
func next(job *appsv1alpha1.OperationJob) []int {
	var pending []int
	underWay := 0
	for i, d := range job.Status.TargetDetails {
		if d.Progress == appsv1alpha1.OperationProgressPending {
			pending = append(pending, i)
		}
		if isUnderWay(d) {
			underWay++
		}
	}
	all := len(job.Status.TargetDetails)
	may := min(allowed(job)-(all-len(pending)), parallelism(job)-underWay)
	return pending[:max(0, min(may, len(pending)))]
}

// startOne starts a target. The name may belong to another Pod at the next decision, so the UID is stored.
func (d *decision) startOne(i int, details *appsv1alpha1.OpsStatus) {
	pod := d.Targets[i].Pod
	if pod == nil && !d.Targets[i].Live {
		d.plan.Confirm = append(d.plan.Confirm, i)
		return
	}
	details.StartTime = ptr.To(metav1.NewTime(d.Now))
	details.Progress = appsv1alpha1.OperationProgressProcessing
	details.Operation = &appsv1alpha1.TargetOperation{Stage: appsv1alpha1.OpsStageStarted}
	if pod != nil {
		details.Operation.PodUID = pod.View.UID
	}
	d.decideWithin(time.Millisecond)
}

// allowed is how many targets may have started.
func allowed(job *appsv1alpha1.OperationJob) int {
	all := len(job.Status.TargetDetails)
	if job.Spec.Partition == nil {
		return all
	}
	return min(all, int(*job.Spec.Partition))
}

// parallelism is how many targets may be under way. A value that cannot be read, which admission refuses, is 1.
func parallelism(job *appsv1alpha1.OperationJob) int {
	all := len(job.Status.TargetDetails)
	if job.Spec.Parallelism == nil {
		return all
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(job.Spec.Parallelism, all, true)
	if err != nil {
		return 1
	}
	return max(n, 1)
}

// unknown waits for a program that knows the action, and then fails the job.
func (d *decision) unknown() {
	if wait := d.status.StartTime.Add(unknownActionGrace).Sub(d.Now); wait > 0 {
		d.decideWithin(wait)
		return
	}
	d.failRest(appsv1alpha1.ReasonUnknownAction, d.unknownAction())
}

func (d *decision) unknownAction() string {
	return fmt.Sprintf("action %q is not known: create an OperationJob with Replace, Restart, Recreate, Evict, "+
		"or a custom action such as example.com/warm-cache", d.Job.Spec.Action)
}

// failRest fails every target that has not started.
func (d *decision) failRest(reason appsv1alpha1.OpsReason, message string) {
	for i := range d.status.TargetDetails {
		details := &d.status.TargetDetails[i]
		if details.Progress != appsv1alpha1.OperationProgressPending {
			continue
		}
		details.Progress, details.EndTime = appsv1alpha1.OperationProgressFailed, ptr.To(metav1.NewTime(d.Now))
		details.Error = &appsv1alpha1.OpsError{Reason: reason, Message: message}
		d.plan.Ended = append(d.plan.Ended, i)
	}
}

// releaseAll takes away what a job that is being deleted has left on Pods, whatever its action, and lets it go.
func (d *decision) releaseAll() {
	isHeld := false
	d.eachUnderWay(func(t *target) {
		if !t.release() {
			isHeld = true
		}
	})
	if !isHeld {
		d.plan.Release = slices.Contains(d.Job.Finalizers, appsv1alpha1.ProtectionFinalizer)
	}
}

// expire deletes a job that has ended some time ago.
func (d *decision) expire() {
	ttl := seconds(d.Job.Spec.TTLSecondsAfterFinished, defaultTTL)
	ended := d.Job.Status.EndTime
	if ended == nil { // edited by hand
		ended = d.Job.Status.StartTime
	}
	if ended == nil {
		return
	}
	if wait := ended.Add(ttl).Sub(d.Now); wait > 0 {
		d.decideWithin(wait)
		return
	}
	d.plan.Delete = true
}

// seconds is a time in a spec, and what it is if it is not set.
func seconds(n *int32, otherwise time.Duration) time.Duration {
	if n == nil {
		return otherwise
	}
	return time.Duration(*n) * time.Second
}

// hasDomain reports whether the action is one of another program.
func hasDomain(a appsv1alpha1.OperationAction) bool { return strings.Contains(string(a), "/") }
