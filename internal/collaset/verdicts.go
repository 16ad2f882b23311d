package collaset

import (
	"errors"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"kusionstack.io/kuperator/internal/collaset/core"
	"kusionstack.io/kuperator/internal/writes"
)

// errNotTaken is that the API server refuses a write, which is remembered: the next decision sees it.
var errNotTaken = errors.New("the API server refuses it")

// Bounds of the wait between two attempts at a write that is refused, and for how long an answer is kept that no decision
// asks for.
const (
	firstTrialIn  = time.Second
	lastTrialIn   = 30 * time.Second
	verdictKeptOn = 10 * time.Minute
)

// verdicts are the API server's answers to trials and to the writes themselves. The zero verdicts are none. They are safe
// for concurrent use.
type verdicts struct {
	mu      sync.Mutex
	answers map[core.Trial]answer
}

type answer struct {
	core.Verdict
	// refusals counts those since a write, and not only a trial, was accepted.
	refusals int
}

// all are the answers that may still count.
func (v *verdicts) all(now time.Time) map[core.Trial]core.Verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.answers, func(_ core.Trial, a answer) bool { return now.Sub(a.At) > verdictKeptOn })
	out := make(map[core.Trial]core.Verdict, len(v.answers))
	for t, a := range v.answers {
		out[t] = a.Verdict
	}
	return out
}

// accept notes that the API server takes a write. What only a trial showed does not shorten the wait after the next refusal:
// a write that is refused although its trial was not must not be repeated at once.
func (v *verdicts) accept(t core.Trial, trial bool, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	a := answer{Verdict: core.Verdict{At: now}}
	if trial {
		a.refusals = v.answers[t].refusals
	}
	v.put(t, a)
}

// refuse notes that it does not, and reports whether that is news.
func (v *verdicts) refuse(t core.Trial, r refusalOf, now time.Time) (news bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.answers[t]
	a := answer{Verdict: core.Verdict{At: now, Refused: r.why, Quota: r.quota}, refusals: before.refusals + 1}
	wait := firstTrialIn
	for i := 1; i < a.refusals && wait < lastTrialIn; i++ {
		wait *= 2
	}
	a.Retry = now.Add(min(wait, lastTrialIn))
	if before.Refused != "" && now.Before(before.Retry) {
		a.Retry, a.refusals = before.Retry, before.refusals // one of several writes that were under way
	}
	v.put(t, a)
	return before.Refused != r.why
}

func (v *verdicts) put(t core.Trial, a answer) {
	if v.answers == nil {
		v.answers = map[core.Trial]answer{}
	}
	v.answers[t] = a
}

// refusalOf is why the API server refuses a write.
type refusalOf struct {
	why string
	// quota reports whether it is for a quota.
	quota bool
}

// refusalIn reports whether an error is the API server's answer that it does not take the write, whatever is tried again. It
// is none that the object has changed or is gone, that the API server is busy, or that it cannot be reached. A webhook that
// does not answer refuses, too: it may be away for long.
func refusalIn(err error) (r refusalOf, refused bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return r, false
	}
	code, message := status.Status().Code, status.Status().Message
	switch denied := strings.Contains(message, "denied the request"); {
	case code == http.StatusConflict, code == http.StatusNotFound && !notServed(err), code == http.StatusTooManyRequests, code == http.StatusUnauthorized:
		refused = denied // a webhook gives its refusals what code it likes
	case code == http.StatusInternalServerError:
		refused = denied || strings.Contains(message, "failed calling webhook")
	default:
		refused = code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
	return refusalOf{why: core.Cut(writes.Steady(unnamed(message))), quota: strings.Contains(message, "exceeded quota")}, refused
}

// namedFirst is the Pod with whose name an answer begins: it is another one for each attempt, or for each Pod.
var namedFirst = regexp.MustCompile(`^(?:pods|Pod) "[^"]*" is (forbidden|invalid): `)

// unnamed is an answer of the API server that does not depend on the name of the Pod.
func unnamed(message string) string { return namedFirst.ReplaceAllString(message, "$1: ") }
