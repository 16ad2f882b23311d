package insight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

const (
	// recentJob is how long after its end a job is a part of the picture.
	recentJob = 10 * time.Minute
	// jobAsker, before a job's UID, is its name in the record of a mark (internal/operationjob/jobplan.Asker).
	jobAsker = "operationjob/"
)

// JobAskers are the UIDs of the jobs that ask for a mark, a label of the Pod.
func JobAskers(v podops.View, label string) []types.UID {
	var uids []types.UID
	for _, asker := range podops.Askers(v, label) {
		if uid, isJob := strings.CutPrefix(asker, jobAsker); isJob {
			uids = append(uids, types.UID(uid))
		}
	}
	return uids
}

func refOfJob(job *appsv1alpha1.OperationJob) *Ref {
	return &Ref{Kind: appsv1alpha1.OperationJobKind, Namespace: job.Namespace, Name: job.Name}
}

// jobs are those that run or have ended recently, by namespace and name.
func (x *index) jobs() []Job {
	var all []Job
	for i := range x.Jobs {
		job := &x.Jobs[i]
		if ended := job.Status.EndTime; ended == nil || x.Now.Sub(ended.Time) < recentJob {
			all = append(all, x.job(job, x.targets(job)))
		}
	}
	slices.SortFunc(all, func(a, b Job) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return all
}

// job is the picture of one job, whose targets are described already.
func (x *index) job(job *appsv1alpha1.OperationJob, targets []Target) Job {
	s := &job.Status
	described := Job{
		Namespace: job.Namespace, Name: job.Name, Action: string(job.Spec.Action),
		Progress: string(cmp.Or(s.Progress, appsv1alpha1.OperationProgressPending)), Total: len(s.TargetDetails),
		Succeeded: int(s.SucceededPodCount), Failed: int(s.FailedPodCount), Created: timeOf(job.CreationTimestamp.Time),
		Ended: since(s.EndTime),
	}
	for i := range s.TargetDetails {
		if isUnderWay(&s.TargetDetails[i]) {
			described.UnderWay++
		}
	}
	described.Reasons = x.jobReasons(job, targets)
	return described
}

func isUnderWay(d *appsv1alpha1.OpsStatus) bool {
	return d.Operation != nil || d.Progress == appsv1alpha1.OperationProgressProcessing
}

// jobReasons are what a job waits for or why it failed, the blocker first. What targets wait for is said once for each
// code, with the first of them.
func (x *index) jobReasons(job *appsv1alpha1.OperationJob, targets []Target) []Reason {
	if job.Status.EndTime != nil {
		return failures(job, targets)
	}
	found := x.alone(OperationJobController)
	switch {
	case job.DeletionTimestamp != nil:
		return append(found, Reason{Code: codeTerminating, Since: timeOf(job.DeletionTimestamp.Time),
			Message: "the job is being deleted, and what it asked for is taken off its Pods"})
	case job.Status.StartTime == nil:
		return append(found, Reason{Code: CodeNotObserved,
			Message: OperationJobController + " has not recorded the job's targets", Next: "it does so by itself"})
	}
	found = append(found, stalled(job)...)
	found = append(found, summed(targets, func(t *Target) *Reason { return t.blocker() })...)
	return byDepth(append(found, notStarted(job)...))
}

// summed are reasons of targets, one for each code, most targets first. The message has the first target.
func summed(targets []Target, of func(*Target) *Reason) []Reason {
	var reasons []Reason
	for _, s := range group(len(targets), func(i int) (string, *Reason) { return targets[i].Pod, of(&targets[i]) }) {
		r := s.Example
		r.Message = s.Pods[0] + ": " + r.Message
		if more := s.Count - 1; more > 0 {
			r.Message += fmt.Sprintf(" (and %d more)", more)
		}
		reasons = append(reasons, r)
	}
	return reasons
}

// stalled is why a job cannot go on; nil if it can.
func stalled(job *appsv1alpha1.OperationJob) []Reason {
	c := meta.FindStatusCondition(job.Status.Conditions, appsv1alpha1.OperationJobStalled)
	if c == nil || c.Status != metav1.ConditionTrue {
		return nil
	}
	return []Reason{{Code: Code(c.Reason), Message: c.Message, Since: timeOf(c.LastTransitionTime.Time)}}
}

// failures are why a job that has ended failed; nil if it succeeded.
func failures(job *appsv1alpha1.OperationJob, targets []Target) []Reason {
	var found []Reason
	if job.Status.FailedPodCount == 0 {
		found = stalled(job)
	}
	return append(found, summed(targets, func(t *Target) *Reason { return t.Error })...)
}

// notStarted is why targets have not started.
func notStarted(job *appsv1alpha1.OperationJob) []Reason {
	pending, failed := 0, 0
	for i := range job.Status.TargetDetails {
		d := &job.Status.TargetDetails[i]
		if d.Progress == appsv1alpha1.OperationProgressPending && !isUnderWay(d) {
			pending++
		}
		if d.Error != nil {
			failed++
		}
	}
	if pending == 0 {
		return nil
	}
	policy := job.Spec.FailurePolicy
	if policy != nil && policy.MaxFailedTargets != nil && failed > int(*policy.MaxFailedTargets) {
		return []Reason{{
			Code: CodeFailurePolicy, On: refOfJob(job), Message: fmt.Sprintf("%s failed, more than "+
				"spec.failurePolicy.maxFailedTargets allows: no other one starts", Plural(failed, "target")),
			Next: "see why they failed; then create a job for the others",
		}}
	}
	mayStart := pending
	if job.Spec.Partition != nil {
		mayStart = max(0, min(pending, int(*job.Spec.Partition)-(len(job.Status.TargetDetails)-pending)))
	}
	var found []Reason
	if mayStart > 0 && job.Spec.Parallelism != nil { // without it they start at once
		found = append(found, Reason{Code: CodeQueued, On: refOfJob(job), Next: "they start by themselves",
			Message: fmt.Sprintf("%s not started yet: at most %s are under way at the same time (spec.parallelism)",
				Plural(mayStart, "target"), job.Spec.Parallelism.String())})
	}
	if held := pending - mayStart; held > 0 {
		found = append(found, Reason{
			Code: CodeHeldByPartition, On: refOfJob(job), Message: fmt.Sprintf("%s held: spec.partition is %d",
				Plural(held, "target"), *job.Spec.Partition),
			Next: "raise or remove it to go on: kubectl -n " + job.Namespace + " edit operationjob " + job.Name,
		})
	}
	return found
}

// targets are those of a job that have something to tell: they are under way, have failed, or were re-created instead
// of restarted.
func (x *index) targets(job *appsv1alpha1.OperationJob) []Target {
	var all []Target
	for i := range job.Status.TargetDetails {
		d := &job.Status.TargetDetails[i]
		t := Target{
			Pod: d.Name, Progress: string(d.Progress), Started: since(d.StartTime),
			NewPod:    d.ExtraInfo[appsv1alpha1.ExtraInfoNewPod],
			Recreated: d.ExtraInfo[appsv1alpha1.ExtraInfoRecreated],
		}
		if d.Error != nil {
			t.Error = &Reason{Code: Code(d.Error.Reason), Message: cmp.Or(d.Error.Message, string(d.Error.Reason))}
		}
		if isUnderWay(d) && job.DeletionTimestamp == nil {
			t.Reasons = x.targetReasons(job, d)
		}
		if isUnderWay(d) || t.Error != nil || t.Recreated != "" {
			all = append(all, t)
		}
	}
	return all
}

// targetReasons are what a target waits for that is under way: what its Pod waits for, and then the Pod that takes its
// place.
func (x *index) targetReasons(job *appsv1alpha1.OperationJob, d *appsv1alpha1.OpsStatus) []Reason {
	var found []Reason
	for _, pod := range []*corev1.Pod{x.targetPod(job, d), x.successor(job, d)} {
		if pod != nil {
			p := x.podWithout(pod)
			found = append(found, p.all()...)
		}
	}
	if len(found) > 0 {
		return once(found)
	}
	switch job.Spec.Action {
	case appsv1alpha1.OpsActionReplace:
		found = x.alone(CollaSetController)
	case appsv1alpha1.OpsActionRecreate:
		found = slices.Concat(x.alone(LifecycleController), x.alone(CollaSetController))
	default:
		found = x.alone(LifecycleController)
	}
	waits := cmp.Or(d.ExtraInfo[appsv1alpha1.ExtraInfoWaiting],
		d.ExtraInfo[appsv1alpha1.ExtraInfoNotAllowedToReplaceNewPod])
	if waits != "" {
		found = append(found, Reason{Code: CodeTargetUnderWay, Message: waits, Since: since(d.StartTime)})
	}
	return found
}

func since(t *metav1.Time) *time.Time {
	if t == nil {
		return nil
	}
	return timeOf(t.Time)
}

// targetPod is the Pod that a target started with; nil if it is gone, or was not read.
func (x *index) targetPod(job *appsv1alpha1.OperationJob, d *appsv1alpha1.OpsStatus) *corev1.Pod {
	pod := x.pods[types.NamespacedName{Namespace: job.Namespace, Name: d.Name}]
	if pod == nil || d.Operation != nil && d.Operation.PodUID != pod.UID {
		return nil
	}
	return pod
}

// successor is the Pod that takes the place of a target; nil if there is none, or it was not read.
func (x *index) successor(job *appsv1alpha1.OperationJob, d *appsv1alpha1.OpsStatus) *corev1.Pod {
	pod := x.pods[types.NamespacedName{Namespace: job.Namespace, Name: d.ExtraInfo[appsv1alpha1.ExtraInfoNewPod]}]
	if pod == nil || d.Operation != nil && d.Operation.PodUID == pod.UID {
		return nil
	}
	return pod
}

// jobOf is the job that an operation is of; nil if it is no job's, or that was not read.
func (x *index) jobOf(namespace, id, operationType string) *appsv1alpha1.OperationJob {
	job := x.jobsByID[types.NamespacedName{Namespace: namespace, Name: id}]
	if job == nil || podops.JobOperationType(string(job.Spec.Action)) != operationType {
		return nil
	}
	return job
}

// jobAtWork says why a job that may act on the Pod has not finished. It is nil for an operation of another program.
func (x *index) jobAtWork(pod *corev1.Pod, w podops.Wait) []Reason {
	v := podops.Read(pod)
	tasks, _ := podops.Tasks(v) // one that cannot be read is replaced
	job, task := x.jobOf(pod.Namespace, w.ID, w.Type), tasks[w.ID]
	isGiven := task.Action != "" && task.Request == podops.OperationOf(v, w.ID).Request
	switch {
	case job == nil && !isGiven:
		return nil
	case isGiven && task.Result == "" && task.Action == string(appsv1alpha1.OpsActionRestart):
		if found := x.containers(pod); len(found) > 0 {
			return found
		}
		return x.kubelet(pod, "the kubelet has not restarted the containers that the job names")
	case isGiven && task.Result == "":
		r := Reason{Code: CodeActionPending, Message: "the program for action " + task.Action + " has not answered",
			Next: "see whether that program runs, and its log"}
		if task.Message != "" {
			r.Message += ": " + task.Message
		}
		return []Reason{r}
	case !isGiven && job.Spec.OperationDelaySeconds != nil:
		delay := time.Duration(*job.Spec.OperationDelaySeconds) * time.Second
		if left := w.Since.Add(delay).Sub(x.Now); left > 0 {
			return []Reason{{Code: CodeOperationDelay, On: refOfJob(job),
				Message: fmt.Sprintf("the job acts %s after it was permitted (spec.operationDelaySeconds)", delay)}}
		}
	}
	if found := x.alone(OperationJobController); found != nil {
		return found
	}
	return []Reason{{Code: codeOperatorAtWork,
		Message: "the next step is " + OperationJobController + "'s" + x.refusal(job, pod)}}
}

// refusal is what the target of this Pod waits for by the job's status; "" if that has nothing.
func (x *index) refusal(job *appsv1alpha1.OperationJob, pod *corev1.Pod) string {
	if job == nil {
		return ""
	}
	for i := range job.Status.TargetDetails {
		d := &job.Status.TargetDetails[i]
		if waits := d.ExtraInfo[appsv1alpha1.ExtraInfoWaiting]; d.Name == pod.Name && waits != "" {
			return ": " + waits
		}
	}
	return ""
}

// marks are the labels of a Pod that jobs ask for, with all that ask for them.
func (x *index) marks(v podops.View) []Mark {
	var found []Mark
	for _, label := range []string{appsv1alpha1.ToDeleteLabel, appsv1alpha1.ToReplaceLabel} {
		if len(JobAskers(v, label)) == 0 {
			continue
		}
		mark := Mark{Label: label}
		for _, asker := range podops.Askers(v, label) {
			uid, isJob := strings.CutPrefix(asker, jobAsker)
			job := x.jobsByUID[types.UID(uid)]
			switch {
			case isJob && job != nil:
				asker = jobAsker + job.Name
			case isJob:
				asker = "a job that was not read (UID " + uid + ")"
			}
			mark.Askers = append(mark.Askers, asker)
		}
		found = append(found, mark)
	}
	return found
}

func (x *index) whyJob(ref Ref, events []corev1.Event) (Answer, bool) {
	at := slices.IndexFunc(x.Jobs, func(j appsv1alpha1.OperationJob) bool { return *refOfJob(&j) == ref })
	if at < 0 {
		return Answer{}, false
	}
	job := &x.Jobs[at]
	targets := x.targets(job)
	described := x.job(job, targets)
	a := Answer{ObservedAt: x.Now.UTC(), Subject: ref, Job: &described, Events: warnings(events), Gaps: x.Gaps}
	a.Reasons, described.Reasons, described.Targets = described.Reasons, nil, targets
	x.nameHolders(a.Reasons, "")
	a.conclude(jobSummary(described))
	return a, true
}

func jobSummary(j Job) string {
	text := fmt.Sprintf("OperationJob %s: %s, %s, %s", j.Name, j.Action, strings.ToLower(j.Progress), j.Done())
	if j.UnderWay > 0 {
		text += fmt.Sprintf(", %d under way", j.UnderWay)
	}
	return text
}

// Done is how far a job is, in words.
func (j *Job) Done() string {
	if j.Total == 0 && j.Ended == nil {
		return "targets are not recorded yet"
	}
	text := fmt.Sprintf("%d of %d targets done", j.Succeeded+j.Failed, j.Total)
	if j.Failed > 0 {
		text += fmt.Sprintf(", %d failed", j.Failed)
	}
	return text
}

// blocker is the first thing that a target waits for; nil if it waits for nothing.
func (t *Target) blocker() *Reason {
	if len(t.Reasons) == 0 {
		return nil
	}
	return &t.Reasons[0]
}
