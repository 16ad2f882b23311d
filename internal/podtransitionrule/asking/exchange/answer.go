package exchange

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/types"
)

// Bounds of what servers say.
const (
	maxMessage = 256 // characters
	maxTaskID  = 253 // bytes
)

// Answer is the body of the answer to a POST.
type Answer struct {
	// Success is true if every Pod may go on, or with Poll that the server works on it.
	Success bool `json:"success"`
	// Message is for people.
	Message string `json:"message"`
	// FinishedNames are the names of the Pods that may go on although not all may.
	FinishedNames []string `json:"finishedNames"`
	// Poll, or Async, its old name, is true if the result is to be polled.
	Poll  bool `json:"poll"`
	Async bool `json:"async"`
	// TaskID is what to poll; TraceID if it is empty.
	TaskID  string `json:"taskId"`
	TraceID string `json:"traceId"`
}

// PollAnswer is the body of the answer to a poll.
type PollAnswer struct {
	// Success and Finished together mean that every Pod of the task may proceed.
	Success  bool `json:"success"`
	Finished bool `json:"finished"`
	// Message is for people.
	Message string `json:"message"`
	// FinishedNames are the names of the Pods that may go on.
	FinishedNames []string `json:"finishedNames"`
	// Stop ends the task; what is not finished is rejected.
	Stop bool `json:"stop"`
}

// ParseAnswer reads the answer to a POST. The error says what a server must change.
func ParseAnswer(body []byte) (Answer, error) { return parse[Answer](body) }

// ParsePollAnswer reads the answer to a poll. The error says what a server must change.
func ParsePollAnswer(body []byte) (PollAnswer, error) { return parse[PollAnswer](body) }

func parse[T any](body []byte) (T, error) {
	var answer *T
	if err := json.Unmarshal(body, &answer); err != nil || answer == nil {
		var none T
		return none, fmt.Errorf("its answer is not the JSON object expected")
	}
	return *answer, nil
}

// Answered takes in the answer to a POST.
func (i *Inquiry) Answered(r Request, a Answer, now time.Time) {
	delete(i.flights, r.number)
	i.failing = ""
	finished := namesOf(a.FinishedNames)
	var left []*subject
	for _, one := range i.flown(r) {
		if a.Success && !a.Poll && !a.Async || finished[one.PodName] {
			i.pass(one, "")
			continue
		}
		left = append(left, one)
	}
	id := a.TaskID
	if id == "" {
		id = a.TraceID
	}
	if len(left) == 0 {
		return
	}
	refusal := ""
	switch {
	case !a.Success:
		for _, one := range left {
			i.reject(one, said("rejected by the webhook", a.Message), now)
		}
	case id == "":
		refusal = "the webhook wants to be polled but names no task: its answer needs a taskId"
	case len(id) > maxTaskID:
		refusal = fmt.Sprintf("the webhook's taskId has more than %d bytes: it must give a shorter one", maxTaskID)
	case !i.settings.Polls:
		refusal = "the webhook wants to be polled: set webhook.clientConfig.poll"
	default:
		i.startTask(id, a.Message, left, now)
	}
	if refusal != "" {
		i.failing = refusal
		for _, one := range left {
			i.fail(one, Failure{Reason: refusal, Refused: true, Lasting: true}, now)
		}
	}
}

// Failed takes in that a POST was not answered. It returns how many subjects pass nevertheless, by failurePolicy.
func (i *Inquiry) Failed(r Request, f Failure, now time.Time) (ignored int) {
	delete(i.flights, r.number)
	f.Reason = printable(f.Reason)
	i.failing = f.Reason
	for _, one := range i.flown(r) {
		if i.fail(one, f, now) {
			ignored++
		}
	}
	return ignored
}

// Withdraw takes what is asked about one Pod out of a POST, because it cannot be asked about. A Failure without a
// reason only puts it off.
func (i *Inquiry) Withdraw(r *Request, pod types.UID, f Failure, now time.Time) {
	kept := r.Questions[:0:0]
	for _, q := range r.Questions {
		if q.Pod != pod {
			kept = append(kept, q)
			continue
		}
		one := i.subjects[q.Subject]
		switch {
		case one == nil || one.state != asked || one.flight != r.number:
		case f.Reason == "":
			one.state, one.due = waiting, now
		default:
			f.Reason = printable(f.Reason)
			i.fail(one, f, now)
		}
	}
	r.Questions = kept
	if len(kept) == 0 {
		delete(i.flights, r.number)
	}
}

// flown are the subjects of a POST that are still waiting for it.
func (i *Inquiry) flown(r Request) []*subject {
	var flown []*subject
	for _, q := range r.Questions {
		if one := i.subjects[q.Subject]; one != nil && one.state == asked && one.flight == r.number {
			flown = append(flown, one)
		}
	}
	return flown
}

func namesOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// said joins what happened and what the server said about it.
func said(what, message string) string {
	if message = printable(message); message == "" {
		return what
	}
	return what + ": " + message
}

// printable makes one line of bounded length of what a webhook wrote.
func printable(text string) string {
	var b strings.Builder
	length, space := 0, false
	for _, r := range text {
		if unicode.IsSpace(r) || unicode.IsControl(r) || r == unicode.ReplacementChar {
			space = length > 0
			continue
		}
		if space {
			b.WriteByte(' ')
			length, space = length+1, false
		}
		if length >= maxMessage-1 {
			return b.String() + "…"
		}
		b.WriteRune(r)
		length++
	}
	return b.String()
}
