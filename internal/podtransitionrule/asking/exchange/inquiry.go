package exchange

import (
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

// Bounds of what is asked at once and kept.
const (
	// MaxBatch is how many subjects one POST is about.
	MaxBatch = 100
	// together is how much earlier than planned a subject is asked about because others are.
	together = 500 * time.Millisecond
)

// Rests between two attempts; a quarter of it is added at most.
const (
	afterRejection = 5 * time.Second
	afterFailure   = time.Second
	longestRest    = 48 * time.Second // 60 s with a quarter of it
)

// Settings are what an Inquiry needs to know of its check. They may change while it runs.
type Settings struct {
	// Rule and Check are what every subject belongs to.
	Rule  types.UID
	Check string
	// Ignore is true if a Pod passes when the server cannot be asked.
	Ignore bool
	// Polls is true if the server may answer that it needs time.
	Polls bool
	// Interval is the time between two polls, Timeout the life of a task. Both above 0.
	Interval, Timeout time.Duration
	// Room is how many bytes of status the tasks may take, HistoryRoom how many tasks that ended are kept.
	Room, HistoryRoom int
}

// Inquiry is what one check is asking about.
type Inquiry struct {
	settings Settings
	subjects map[grants.Subject]*subject
	order    []grants.Subject // of the last Want
	tasks    []*task
	history  []ended
	flights  map[int]bool // requests whose result has not come; true: a POST
	requests int          // made so far
	failing  string       // why the server could not be asked last time; "" if it could
}

// subject is one thing to ask about.
type subject struct {
	grants.Question
	state  state
	flight int       // the POST that it is in; state asked
	due    time.Time // when to ask; state waiting
	// rejections and failures in a row.
	rejections, failures int
	answer               grants.Answer
	answered             bool // answer holds
	// ignored is true if it passed because what could not be asked was ignored.
	ignored bool
}

// state of a subject.
type state string

const (
	waiting state = "Waiting" // it is to be asked about
	asked   state = "Asked"   // it is part of a POST whose answer has not come
	tasked  state = "Tasked"  // it is part of a task
	passed  state = "Passed"  // it may go on
)

// Failure is a request without an answer about its subjects.
type Failure struct {
	// Reason is for people, and the same each time the same thing fails.
	Reason string
	// Refused is true if the server was not asked, or asked for what the rule does not have. The rule's failurePolicy is
	// about servers that cannot be asked, not about this.
	Refused bool
	// Lasting is true if a user must change the rule, a Secret or a setting first.
	Lasting bool
}

// Request is one question for the server. Its result is told by exactly one of Answered, Failed, Polled and PollFailed.
type Request struct {
	// TaskID is the task to poll. Empty means that Questions are to be posted.
	TaskID string
	// Questions are what to ask about. No two have a Pod's name in common.
	Questions []grants.Question

	number int
	task   *task
}

// New starts with nothing asked.
func New(s Settings) *Inquiry {
	return &Inquiry{settings: s, subjects: map[grants.Subject]*subject{}, flights: map[int]bool{}}
}

// Use takes new settings. They are about the same server and the same questions.
func (i *Inquiry) Use(s Settings) {
	i.settings = s
	if s.Ignore {
		return
	}
	for _, one := range i.subjects {
		if one.ignored { // it is not to be ignored any more
			*one = subject{Question: one.Question, state: waiting}
		}
	}
}

// Retry lets everything that was refused be asked about again at once.
func (i *Inquiry) Retry() {
	for _, one := range i.subjects {
		if one.state == waiting {
			one.due, one.rejections, one.failures = time.Time{}, 0, 0
		}
	}
}

// Want says what waits for an answer now, in the order in which Pods are served. Everything else is forgotten.
func (i *Inquiry) Want(questions []grants.Question) {
	order := make([]grants.Subject, 0, len(questions))
	wanted := make(map[grants.Subject]bool, len(questions))
	for _, q := range questions {
		if wanted[q.Subject] {
			continue
		}
		wanted[q.Subject] = true
		order = append(order, q.Subject)
		if _, known := i.subjects[q.Subject]; !known {
			i.subjects[q.Subject] = &subject{Question: q, state: waiting}
		}
	}
	for s := range i.subjects {
		if !wanted[s] {
			delete(i.subjects, s)
		}
	}
	i.order = order
	for _, t := range i.tasks {
		t.members = slices.DeleteFunc(t.members, func(s grants.Subject) bool { return !wanted[s] })
	}
	i.tasks = slices.DeleteFunc(i.tasks, func(t *task) bool { return len(t.members) == 0 })
}

// Tick lets time pass: tasks run out, and what ended long ago is forgotten.
func (i *Inquiry) Tick(now time.Time) {
	for _, t := range slices.Clone(i.tasks) {
		if !t.polling && !now.Before(t.begun.Add(i.settings.Timeout)) {
			i.timeOut(t, now)
		}
	}
	i.history = slices.DeleteFunc(i.history, func(e ended) bool { return !now.Before(e.at.Add(keepHistory)) })
}

// Next is a request to make now; false if there is none.
func (i *Inquiry) Next(now time.Time) (Request, bool) {
	i.Tick(now)
	if t := i.duePoll(now); t != nil {
		t.polling = true
		r := Request{TaskID: t.id, task: t}
		i.begin(&r)
		return r, true
	}
	batch := i.dueSubjects(now)
	if len(batch) == 0 || i.posting() && len(batch) < MaxBatch {
		return Request{}, false // what comes due while a POST is on its way is asked about together afterwards
	}
	r := Request{}
	i.begin(&r)
	for _, one := range batch {
		one.state, one.flight = asked, r.number
		r.Questions = append(r.Questions, one.Question)
	}
	return r, true
}

// Due is when there may be something to do although nothing happens; false for never.
func (i *Inquiry) Due() (time.Time, bool) {
	var soonest time.Time
	found := false
	at := func(t time.Time) {
		if !found || t.Before(soonest) {
			soonest, found = t, true
		}
	}
	for _, t := range i.tasks {
		if t.polling {
			continue
		}
		at(t.begun.Add(i.settings.Timeout))
		if t.known {
			at(t.next)
		}
	}
	for _, e := range i.history {
		at(e.at.Add(keepHistory))
	}
	if !i.posting() {
		used := i.used()
		for _, one := range i.subjects {
			if one.state == waiting && i.fits(used, one) {
				at(one.due)
			}
		}
	}
	return soonest, found
}

// Answers adds what is known about the subjects.
func (i *Inquiry) Answers(into map[grants.Subject]grants.Answer) {
	for s, one := range i.subjects {
		if one.answered {
			into[s] = one.answer
		}
	}
}

// Failing says why the server could not be asked the last time; "" if it could, or was not asked yet.
func (i *Inquiry) Failing() string { return i.failing }

func (i *Inquiry) begin(r *Request) {
	i.requests++
	r.number = i.requests
	i.flights[r.number] = r.task == nil
}

// posting reports whether a POST is on its way.
func (i *Inquiry) posting() bool {
	for _, post := range i.flights {
		if post {
			return true
		}
	}
	return false
}

// dueSubjects are the next to be asked about, as many as may be: those that are due, and with them those that soon are.
func (i *Inquiry) dueSubjects(now time.Time) []*subject {
	var batch []*subject
	names := map[string]bool{}
	used := i.used()
	add := func(after, until time.Time) {
		for _, s := range i.order {
			one := i.subjects[s]
			if len(batch) == MaxBatch {
				return
			}
			if one == nil || one.state != waiting || !one.due.After(after) || one.due.After(until) || names[one.PodName] ||
				!i.fits(used, one) {
				continue
			}
			used += sizeOf(one.Question)
			names[one.PodName] = true
			batch = append(batch, one)
		}
	}
	if add(time.Time{}.Add(-1), now); len(batch) > 0 {
		add(now, now.Add(together))
	}
	return batch
}

// used is the status that the subjects in tasks, and those that may come to be in one, take.
func (i *Inquiry) used() int {
	used := 0
	if !i.settings.Polls {
		return 0
	}
	for _, one := range i.subjects {
		if one.state == asked || one.state == tasked {
			used += sizeOf(one.Question)
		}
	}
	for _, t := range i.tasks {
		for _, s := range t.members {
			if one := i.subjects[s]; one != nil && one.state == passed {
				used += sizeOf(one.Question)
			}
		}
	}
	return used
}

// fits reports whether status has room for one more subject. There is always room for the first.
func (i *Inquiry) fits(used int, one *subject) bool {
	return !i.settings.Polls || used == 0 || used+sizeOf(one.Question) <= i.settings.Room
}

// sizeOf is about how many bytes of status a question takes as part of a task.
func sizeOf(q grants.Question) int {
	size := 160 + 2*len(q.PodName)
	for _, o := range q.Requests {
		size += 40 + len(o.ID) + len(o.Type) + len(o.Request)
	}
	return size
}

func (i *Inquiry) pass(one *subject, reason string) {
	one.state, one.answer, one.answered = passed, grants.Answer{Passed: true, Reason: reason}, true
}

func (i *Inquiry) reject(one *subject, reason string, now time.Time) {
	one.rejections, one.failures = one.rejections+1, 0
	one.state, one.answer, one.answered = waiting, grants.Answer{Reason: reason}, true
	one.due = now.Add(i.rest(afterRejection, one.rejections))
}

// fail returns whether the subject passes nevertheless.
func (i *Inquiry) fail(one *subject, f Failure, now time.Time) (ignored bool) {
	if i.settings.Ignore && !f.Refused {
		i.pass(one, "failurePolicy is Ignore, and "+f.Reason)
		one.ignored = true
		return true
	}
	one.failures++
	one.state, one.answer, one.answered = waiting, grants.Answer{Reason: f.Reason}, true
	rest := i.rest(afterFailure, one.failures)
	if f.Lasting {
		rest = i.rest(longestRest, 1)
	}
	one.due = now.Add(rest)
	return false
}

// rest is the time after the attempt of that number: first, doubled each time, and up to a quarter more.
func (i *Inquiry) rest(first time.Duration, attempt int) time.Duration {
	rest := longestRest
	if doublings := attempt - 1; doublings < 10 {
		rest = min(longestRest, first<<doublings)
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(string(i.settings.Rule) + "/" + i.settings.Check + "/" + strconv.Itoa(attempt)))
	return rest + rest/4*time.Duration(h.Sum32()%1000)/1000
}

// taskSubject is a question as status keeps it.
func taskSubject(q grants.Question, approved bool) appsv1alpha1.TaskSubject {
	return appsv1alpha1.TaskSubject{
		PodName: q.PodName, PodUID: q.Pod, Stage: q.Stage, Operations: slices.Clone(q.Requests), Approved: approved,
	}
}
