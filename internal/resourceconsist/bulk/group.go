package bulk

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// group is all that is known about one employer's backend, and what is due with it. It is a function of what it was
// told: it makes no call, reads no clock, and is not safe for concurrent use.
type group struct {
	options api.CallOptions
	// moves is true if members may be changed.
	moves bool

	// step counts what happened, so that "after" does not depend on clocks.
	step      int64
	members   map[string]*member
	employees map[employeeKey]*employee
	byName    map[types.NamespacedName]*employee
	// waiting are employees that wait for a reading, unconfirmed members whose change no reading has shown yet,
	// failing those whose last change failed, invalid employees whose members are not known, unclaimed members that
	// no employee claims.
	waiting     map[*employee]struct{}
	unconfirmed map[*member]struct{}
	failing     map[*member]struct{}
	invalid     map[*employee]struct{}
	unclaimed   map[*member]struct{}
	notify      map[employeeKey]struct{}

	// fresh and retry are the queue of changes. No change in retry is due before retryDue.
	fresh    []*member
	retry    map[*member]struct{}
	retryDue time.Time

	readings
	calls
	// looked is true if every employee has been looked at.
	looked     bool
	resyncSpan func(time.Duration) time.Duration
}

// readings is which readings there were, and when the next is due. Due times are zero for none.
type readings struct {
	// full is the step at which the last full reading began that succeeded; zero if there was none.
	full int64
	// fullSince is the step after which a full reading has to have begun.
	fullSince int64
	// fullDue and askAt are when a full reading, and one of what is waited for, are due.
	fullDue, askAt time.Time
	// pollDelay is the time to the next reading of what is waited for. It grows.
	pollDelay time.Duration
	// readEnded is when the last reading ended.
	readEnded time.Time
}

// calls is what became of the calls of the backend.
type calls struct {
	// inCall is the call under way, nil for none, and last the verb of the one before.
	inCall *call
	last   verb
	// notBefore is when a call that failed may be made again, failures how often it failed in a row, and callErrs why.
	notBefore map[verb]time.Time
	failures  map[verb]int
	callErrs  map[verb]error
	// limit is how many changes a call may have.
	limit int
}

// newGroup makes the group of an employer that was first seen now. Options are those of withDefaults; resyncSpan adds
// jitter.
func newGroup(options api.CallOptions, moves bool, resyncSpan func(time.Duration) time.Duration, now time.Time) *group {
	g := &group{
		options: options, moves: moves, resyncSpan: resyncSpan,
		members: map[string]*member{}, employees: map[employeeKey]*employee{}, byName: map[types.NamespacedName]*employee{},
		waiting: map[*employee]struct{}{}, unconfirmed: map[*member]struct{}{}, failing: map[*member]struct{}{},
		invalid: map[*employee]struct{}{}, unclaimed: map[*member]struct{}{}, notify: map[employeeKey]struct{}{},
		retry:    map[*member]struct{}{},
		readings: readings{pollDelay: options.Poll},
		calls: calls{
			notBefore: map[verb]time.Time{}, failures: map[verb]int{}, callErrs: map[verb]error{}, limit: options.BatchSize,
		},
	}
	if moves {
		g.fullDue = now.Add(options.BatchWindow)
	}
	return g
}

// cleanOf reports whether nothing of the members that which chooses by their ID is left in the backend, nor could come.
func (g *group) cleanOf(which func(id string) bool) bool {
	if !g.moves {
		return true
	}
	for id, m := range g.members {
		if which(id) && !m.absent() {
			return false
		}
	}
	return g.full > g.fullSince && g.inCall == nil
}

// readAllAgain has everything read once more, without which nothing is known to be clean.
func (g *group) readAllAgain(now time.Time) {
	g.step++
	g.fullSince, g.fullDue = g.step, now
}

// problem says what is wrong with the backend, as reason and message of api.ConditionInSync.
func (g *group) problem() (reason, message string) {
	for _, v := range []verb{apply, read} {
		if err := g.callErrs[v]; err != nil {
			return api.ConditionReasonBackendFailed, fmt.Sprintf("%s: %v", v, err)
		}
	}
	if len(g.failing) > 0 {
		errs := api.MemberErrors{}
		for m := range g.failing {
			errs[m.id] = m.err
		}
		return api.ConditionReasonBackendFailed, errs.Error()
	}
	if len(g.invalid) > 0 {
		errs := api.MemberErrors{}
		for e := range g.invalid {
			errs[e.key.Name] = e.view.invalid
		}
		return api.ConditionReasonInvalid, errs.Error()
	}
	return api.ConditionReasonInSync, ""
}
