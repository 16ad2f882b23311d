package exchange

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

// Bounds of the record of tasks that ended.
const (
	keepHistory     = 10 * time.Minute
	maxHistoryNames = 16 // of each list of an entry
)

// task is something that the server works on.
type task struct {
	id      string
	begun   time.Time
	spoke   time.Time // when the server last said something new
	message string
	members []grants.Subject // passed ones too, as long as they are wanted
	known   bool             // status was seen to hold it
	polling bool             // a poll is on its way
	next    time.Time        // when to poll
	// failures of polls in a row.
	failures int
}

// ended is a task that is over.
type ended struct {
	at   time.Time
	info appsv1alpha1.TaskInfo
}

func (i *Inquiry) startTask(id, message string, members []*subject, now time.Time) {
	t := &task{id: id, begun: now, spoke: now, message: printable(message), next: now.Add(i.settings.Interval)}
	for _, one := range members {
		one.state = tasked
		t.members = append(t.members, one.Subject)
	}
	i.tasks = append(i.tasks, t)
	i.explain(t)
}

// explain tells those who wait for a task what is known of it.
func (i *Inquiry) explain(t *task) {
	for _, s := range t.members {
		if one := i.subjects[s]; one != nil && one.state == tasked {
			one.answer, one.answered = grants.Answer{Reason: said("the webhook works on it, task "+printable(t.id),
				t.message)}, true
		}
	}
}

// Adopt takes over the tasks and the record that an earlier process left in status. It comes before the first Want.
func (i *Inquiry) Adopt(status *appsv1alpha1.WebhookStatus, now time.Time) {
	if status == nil {
		return
	}
	for _, info := range status.History {
		i.history = append(i.history, ended{at: past(info.LastTime, now), info: *info.DeepCopy()})
	}
	i.trimHistory()
	if !i.settings.Polls {
		return
	}
	for _, info := range status.TaskStates {
		t := &task{
			id: info.TaskID, begun: past(info.BeginTime, now), spoke: past(info.LastTime, now), message: printable(info.Message),
			known: true, next: now,
		}
		for _, s := range info.Subjects {
			i.adopt(t, s)
		}
		if len(t.members) > 0 && t.id != "" {
			i.tasks = append(i.tasks, t)
			i.explain(t)
		}
	}
}

func (i *Inquiry) adopt(t *task, s appsv1alpha1.TaskSubject) {
	of := grants.Subject{Rule: i.settings.Rule, Check: i.settings.Check, Pod: s.PodUID, Stage: s.Stage,
		Operations: grants.OperationsKey(s.Operations)}
	if _, known := i.subjects[of]; known || t.id == "" {
		return
	}
	one := &subject{Question: grants.Question{Subject: of, PodName: s.PodName, Requests: slices.Clone(s.Operations)},
		state: tasked}
	if s.Approved {
		i.pass(one, "")
	}
	i.subjects[of] = one
	t.members = append(t.members, of)
}

// timeOf is a time of status, other if it is missing.
func timeOf(t *metav1.Time, other time.Time) time.Time {
	if t == nil {
		return other
	}
	return t.Time
}

// past is a time of status, now if it is missing or in the future.
func past(t *metav1.Time, now time.Time) time.Time {
	if at := timeOf(t, now); at.Before(now) {
		return at
	}
	return now
}

// Known says what status was seen to hold.
func (i *Inquiry) Known(status *appsv1alpha1.WebhookStatus) {
	if status == nil {
		return
	}
	for _, t := range i.tasks {
		t.known = t.known || slices.ContainsFunc(status.TaskStates, func(info appsv1alpha1.TaskInfo) bool {
			return info.TaskID == t.id && i.holds(info, t)
		})
	}
}

// holds reports whether every subject of the task is among those that status has.
func (i *Inquiry) holds(info appsv1alpha1.TaskInfo, t *task) bool {
	type key struct {
		pod        string
		stage      appsv1alpha1.TransitionRuleStage
		operations string
	}
	has := make(map[key]bool, len(info.Subjects))
	for _, s := range info.Subjects {
		has[key{string(s.PodUID), s.Stage, grants.OperationsKey(s.Operations)}] = true
	}
	return !slices.ContainsFunc(t.members,
		func(s grants.Subject) bool { return !has[key{string(s.Pod), s.Stage, s.Operations}] })
}

// duePoll is the task whose poll is most overdue; nil if none is due.
func (i *Inquiry) duePoll(now time.Time) *task {
	var due *task
	for _, t := range i.tasks {
		if t.known && !t.polling && !t.next.After(now) && (due == nil || t.next.Before(due.next)) {
			due = t
		}
	}
	return due
}

// Polled takes in the answer to a poll.
func (i *Inquiry) Polled(r Request, a PollAnswer, now time.Time) {
	i.landed(r)
	i.failing = ""
	t := r.task
	if !slices.Contains(i.tasks, t) {
		return
	}
	finished, news := namesOf(a.FinishedNames), false
	var left []*subject
	for _, s := range t.members {
		one := i.subjects[s]
		switch {
		case one == nil || one.state != tasked:
		case a.Success && a.Finished || finished[one.PodName]:
			i.pass(one, "")
			news = true
		default:
			left = append(left, one)
		}
	}
	t.failures, t.next = 0, now.Add(i.settings.Interval)
	if message := printable(a.Message); news || message != t.message {
		t.message, t.spoke = message, now
	}
	switch {
	case len(left) == 0:
		i.end(t, now)
	case a.Stop:
		i.end(t, now)
		for _, one := range left {
			i.reject(one, said("the webhook stopped its task", a.Message), now)
		}
	default:
		i.explain(t)
	}
}

// PollFailed takes in that a poll was not answered. The task goes on until its time is over.
func (i *Inquiry) PollFailed(r Request, f Failure, now time.Time) {
	i.landed(r)
	i.failing = printable(f.Reason)
	t := r.task
	t.failures++
	t.message = i.failing
	t.next = now.Add(max(i.settings.Interval, i.rest(afterFailure, t.failures)))
	i.explain(t)
}

func (i *Inquiry) landed(r Request) {
	delete(i.flights, r.number)
	r.task.polling = false
}

func (i *Inquiry) timeOut(t *task, now time.Time) {
	reason := said("Polling timeout: the webhook's task did not finish within "+i.settings.Timeout.String(), t.message)
	t.message = said("Polling timeout", t.message)
	i.end(t, now)
	for _, s := range t.members {
		if one := i.subjects[s]; one != nil && one.state == tasked {
			i.reject(one, reason, now)
		}
	}
}

// end puts a task on record. Its members are as they were when it ended.
func (i *Inquiry) end(t *task, now time.Time) {
	i.tasks = slices.DeleteFunc(i.tasks, func(other *task) bool { return other == t })
	info := i.info(t)
	info.Subjects = nil
	info.Processing = info.Processing[:min(len(info.Processing), maxHistoryNames)]
	info.Approved = info.Approved[:min(len(info.Approved), maxHistoryNames)]
	info.LastTime = seconds(now)
	i.history = append(i.history, ended{at: now, info: info})
	i.trimHistory()
}

// trimHistory keeps what ended last.
func (i *Inquiry) trimHistory() {
	slices.SortStableFunc(i.history, func(a, b ended) int { return a.at.Compare(b.at) })
	if over := len(i.history) - i.settings.HistoryRoom; over > 0 {
		i.history = slices.Delete(i.history, 0, over)
	}
}

// State is what status is to hold: what is polled, and what ended lately. Nil for nothing.
func (i *Inquiry) State() *appsv1alpha1.WebhookStatus {
	if len(i.tasks) == 0 && len(i.history) == 0 {
		return nil
	}
	state := &appsv1alpha1.WebhookStatus{}
	for _, t := range i.tasks {
		state.TaskStates = append(state.TaskStates, i.info(t))
	}
	for _, e := range i.history {
		state.History = append(state.History, *e.info.DeepCopy())
	}
	slices.SortStableFunc(state.TaskStates, byTask)
	slices.SortStableFunc(state.History, byTask)
	return state
}

func byTask(a, b appsv1alpha1.TaskInfo) int {
	return cmp.Or(strings.Compare(a.TaskID, b.TaskID),
		timeOf(a.BeginTime, time.Time{}).Compare(timeOf(b.BeginTime, time.Time{})))
}

// info is a task as status holds it: names and subjects sorted.
func (i *Inquiry) info(t *task) appsv1alpha1.TaskInfo {
	info := appsv1alpha1.TaskInfo{TaskID: t.id, BeginTime: seconds(t.begun), LastTime: seconds(t.spoke),
		Message: t.message}
	for _, s := range t.members {
		one := i.subjects[s]
		if one == nil {
			continue
		}
		if one.state == passed {
			info.Approved = append(info.Approved, one.PodName)
		} else {
			info.Processing = append(info.Processing, one.PodName)
		}
		info.Subjects = append(info.Subjects, taskSubject(one.Question, one.state == passed))
	}
	slices.Sort(info.Processing)
	slices.Sort(info.Approved)
	slices.SortFunc(info.Subjects, func(a, b appsv1alpha1.TaskSubject) int {
		return cmp.Or(strings.Compare(a.PodName, b.PodName), strings.Compare(string(a.PodUID), string(b.PodUID)))
	})
	return info
}

// seconds is a time as the API server keeps it.
func seconds(t time.Time) *metav1.Time {
	kept := metav1.NewTime(t.Truncate(time.Second))
	return &kept
}
