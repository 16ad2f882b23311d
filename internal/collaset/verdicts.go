package collaset

import (
	"errors"
	"maps"
	"sync"
	"time"

	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/failures"
)

// errNotTaken is that the API server refuses a write, which is remembered: the next decision sees it.
var errNotTaken = errors.New("the API server refuses it")

// verdictKeptOn is for how long an answer is kept that no decision asks for.
const verdictKeptOn = 10 * time.Minute

// verdicts are the API server's answers to trials and to the writes themselves. The zero verdicts are none. They are
// safe for concurrent use.
type verdicts struct {
	mu      sync.Mutex
	answers map[setplan.Trial]answer
}

type answer struct {
	setplan.Verdict
	// refusals counts those since a write, and not only a trial, was accepted.
	refusals int
}

// all are the answers that may still count.
func (v *verdicts) all(now time.Time) map[setplan.Trial]setplan.Verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.answers, func(_ setplan.Trial, a answer) bool { return now.Sub(a.At) > verdictKeptOn })
	out := make(map[setplan.Trial]setplan.Verdict, len(v.answers))
	for t, a := range v.answers {
		out[t] = a.Verdict
	}
	return out
}

// accept notes that the API server takes a write. What only a trial showed does not shorten the wait after the next
// refusal: a write that is refused although its trial was not must not be repeated at once.
func (v *verdicts) accept(t setplan.Trial, trial bool, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	a := answer{Verdict: setplan.Verdict{At: now}}
	if trial {
		a.refusals = v.answers[t].refusals
	}
	v.put(t, a)
}

// refuse notes that it does not, and reports whether that is news.
func (v *verdicts) refuse(t setplan.Trial, refusal setplan.Verdict, now time.Time) (news bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.answers[t]
	refusal.At = now
	a := answer{Verdict: refusal, refusals: before.refusals + 1}
	a.Retry = now.Add(failures.AskAgainIn(a.refusals))
	if before.Refused != "" && now.Before(before.Retry) {
		a.Retry, a.refusals = before.Retry, before.refusals // one of several writes that were under way
	}
	v.put(t, a)
	return before.Refused != refusal.Refused
}

func (v *verdicts) put(t setplan.Trial, a answer) {
	if v.answers == nil {
		v.answers = map[setplan.Trial]answer{}
	}
	v.answers[t] = a
}

// refusalIn is failures.RejectionIn, in a length that status takes.
func refusalIn(err error) (r failures.Rejection, refused bool) {
	r, refused = failures.RejectionIn(err)
	r.Why = setplan.Cut(r.Why)
	return r, refused
}
