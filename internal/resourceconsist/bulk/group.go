package bulk

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// verb is what a call does.
type verb string

const (
	// read lists members.
	read verb = "read"
	// apply changes members.
	apply verb = "apply"
)

// call is one call to the provider.
type call[S comparable] struct {
	verb verb
	// ids are the members that a read asks for; none means all.
	ids []string
	// changes are those of an apply.
	changes []api.Change[S]
	// began is the group's step at which the call was made.
	began int64
}

// employeeKey names an employee. The UID keeps it apart from an earlier one of its name.
type employeeKey struct {
	types.NamespacedName
	uid types.UID
}

// view is an employee as the adapter sees it now.
type view[S comparable] struct {
	key     employeeKey
	created time.Time
	// dying says that the employee is being deleted or has run to its end.
	dying bool
	// serve and idle are the members as they should be with and without traffic.
	serve, idle map[string]S
	// invalid says why these are not known; the employee keeps the members that it has.
	invalid error
}

// direction is where an employee is going.
type direction string

const (
	// resting: nobody waits for anything.
	resting direction = "resting"
	// joining: it should have traffic.
	joining direction = "joining"
	// leaving: it should have none.
	leaving direction = "leaving"
)

// stance is what an employee's object says about where it is going.
type stance struct {
	direction direction
	// arrived says that nothing depends on the answer any more: one that joins is known to serve, one that leaves is
	// known not to. Then what was read earlier will do.
	arrived bool
	// forGood says that one that leaves will not come back.
	forGood bool
}

// answer is what is said about an employee.
type answer struct {
	// unknown says that nothing can be said yet.
	unknown bool
	// serving says that the provider sends traffic to a member, or, of an employee that joins, to all of them.
	serving bool
	// since is when serving was first seen false; zero if it is true, or there is no member.
	since time.Time
}

// employee is what is kept of one employee.
type employee[S comparable] struct {
	view[S]
	stance stance
	gone   bool
	// claims are its members by ID: those of its view, and former ones that are still in the backend.
	claims map[string]*member[S]
	// asked is the step at which its direction last changed.
	asked int64
	// registered says that its members were last wished to have traffic.
	registered bool
	told       answer
	lookedAt   time.Time
	// lapsed says that it was made to wait no more, because nobody had looked at it for long.
	lapsed bool
}

// place is where a member stands in the queue of changes.
type place string

const (
	// placeNone: there is nothing to do, or a change waits for its confirmation.
	placeNone place = ""
	// placeFresh: a change has not been tried yet.
	placeFresh place = "fresh"
	// placeRetry: a change has to be made again at its time.
	placeRetry place = "retry"
	// placeAway: a change is being made.
	placeAway place = "away"
)

// member is what is known and wished of one member.
type member[S comparable] struct {
	id        string
	claimants []*employee[S]

	wished bool
	wish   api.Change[S]
	// sent are the changes whose effect may still come: the last one that succeeded, and those that failed since. It is
	// empty once a reading has shown the effect of the only one.
	sent []api.Change[S]

	exists bool
	held   api.Held[S]
	// seen is the step at which the newest reading began, moved the one of the last change: a reading that began
	// before a change ended says nothing. Both are zero if there was none.
	seen, moved int64
	seenAt      time.Time
	idleSince   time.Time

	place  place
	queued time.Time
	due    time.Time
	index  int
	tries  int
	err    error
}

// group is all that is known about one employer's backend, and what is due with it. It is a function of what it was
// told: it makes no call, reads no clock, and is not safe for concurrent use.
type group[S comparable] struct {
	options api.BulkOptions
	// moves says that members may be changed.
	moves bool

	// step counts what happened, so that "after" does not depend on clocks.
	step      int64
	members   map[string]*member[S]
	employees map[employeeKey]*employee[S]
	byName    map[types.NamespacedName]*employee[S]
	// waiting are employees that wait for a reading, unconfirmed members whose change no reading has shown yet,
	// failing those whose last change failed, invalid employees whose members are not known, strays members that
	// nobody claims.
	waiting     map[*employee[S]]struct{}
	unconfirmed map[*member[S]]struct{}
	failing     map[*member[S]]struct{}
	invalid     map[*employee[S]]struct{}
	strays      map[*member[S]]struct{}
	notify      map[employeeKey]struct{}

	fresh []*member[S]
	retry retries[S]

	away *call[S]
	last verb
	// full is the step at which the last full reading began that succeeded; zero if there was none.
	full      int64
	fullDue   time.Time
	askAt     time.Time
	pollDelay time.Duration
	readEnded time.Time
	notBefore map[verb]time.Time
	failures  map[verb]int
	callErrs  map[verb]error
	limit     int
	// looked says that every employee has been looked at.
	looked     bool
	resyncSpan func(time.Duration) time.Duration
}

// newGroup makes the group of an employer that was first seen now. Options are those of withDefaults; resyncSpan adds
// jitter.
func newGroup[S comparable](options api.BulkOptions, moves bool, resyncSpan func(time.Duration) time.Duration, now time.Time) *group[S] {
	g := &group[S]{
		options: options, moves: moves, resyncSpan: resyncSpan,
		members: map[string]*member[S]{}, employees: map[employeeKey]*employee[S]{}, byName: map[types.NamespacedName]*employee[S]{},
		waiting: map[*employee[S]]struct{}{}, unconfirmed: map[*member[S]]struct{}{}, failing: map[*member[S]]struct{}{},
		invalid: map[*employee[S]]struct{}{}, strays: map[*member[S]]struct{}{}, notify: map[employeeKey]struct{}{},
		notBefore: map[verb]time.Time{}, failures: map[verb]int{}, callErrs: map[verb]error{}, limit: options.BatchSize, pollDelay: options.Poll,
	}
	if moves {
		g.fullDue = now.Add(options.BatchWindow)
	}
	return g
}

// known says whether what was read of the member still holds.
func (m *member[S]) known() bool { return m.seen > m.moved && m.place != placeAway }

// serving says whether the member was last seen to take traffic.
func (m *member[S]) serving() bool { return m.exists && m.held.Serving }

// shows says whether the member is known to be as a change would make it.
func (m *member[S]) shows(c api.Change[S]) bool {
	return m.known() && c.Remove != m.exists && (c.Remove || m.held.State == c.State)
}

// confirmed says whether the member is known to be as it is wished, and will stay so.
func (m *member[S]) confirmed() bool {
	return m.wished && m.shows(m.wish) && !m.maySee(func(c api.Change[S]) bool { return c != m.wish })
}

// absent says whether the member is known not to be there, and will stay so.
func (m *member[S]) absent() bool {
	return m.known() && !m.exists && !m.maySee(func(c api.Change[S]) bool { return !c.Remove })
}

// maySee says whether a change like that may still take effect.
func (m *member[S]) maySee(like func(api.Change[S]) bool) bool {
	return slices.ContainsFunc(m.sent, like)
}

// owner is the employee that the member belongs to, nil if nobody claims it.
func (m *member[S]) owner() *employee[S] {
	if len(m.claimants) == 0 {
		return nil
	}
	return m.claimants[0]
}

// current says whether the member is one of those that the employee should have.
func (e *employee[S]) current(id string) bool {
	_, serves := e.serve[id]
	_, idles := e.idle[id]
	return !e.gone && (serves || idles)
}

// change is what makes a member of the employee take traffic, or none.
func (e *employee[S]) change(id string, serve bool) api.Change[S] {
	states := e.idle
	if serve {
		states = e.serve
	}
	state, stays := states[id]
	return api.Change[S]{ID: id, State: state, Remove: !stays}
}

// precedes says whether a member belongs to a rather than to b: one that has it now before one that had it, one that is
// employed before one that is not, one that lives before one that dies, and the younger.
func (m *member[S]) precedes(a, b *employee[S]) int {
	rank := func(e *employee[S]) int {
		switch {
		case !e.current(m.id):
			return 3
		case e.stance.forGood:
			return 2
		case e.dying:
			return 1
		}
		return 0
	}
	if d := rank(a) - rank(b); d != 0 {
		return d
	}
	if d := b.created.Compare(a.created); d != 0 {
		return d
	}
	return strings.Compare(string(b.key.uid), string(a.key.uid))
}

// look takes in an employee as it is now, and says what the provider does with it. If that is not known, or not what
// the employee waits for, it is read, and the employee is among those to notify when the answer changes.
func (g *group[S]) look(v view[S], s stance, now time.Time) answer {
	g.step++
	e := g.take(v, s, now)
	if g.moves {
		g.keepUp(e, now)
	}
	a := g.tell(e, now)
	if s.forGood && s.arrived && !a.unknown && !a.serving {
		g.release(e, now)
	}
	return a
}

// release forgets an employee that has nothing to do with the employer any more, once none of its members is left.
func (g *group[S]) release(e *employee[S], now time.Time) {
	for _, m := range e.claims {
		if m.owner() == e && g.moves && !m.absent() {
			return
		}
	}
	g.leave(e, now)
}

// take brings an employee and its claims up to date.
func (g *group[S]) take(v view[S], s stance, now time.Time) *employee[S] {
	e := g.employees[v.key]
	if e == nil {
		if before := g.byName[v.key.NamespacedName]; before != nil {
			g.leave(before, now)
		}
		e = &employee[S]{claims: map[string]*member[S]{}, stance: stance{direction: resting}}
		g.employees[v.key], g.byName[v.key.NamespacedName] = e, e
	}
	if v.invalid != nil {
		v.serve, v.idle = e.serve, e.idle
		g.invalid[e] = struct{}{}
	} else {
		delete(g.invalid, e)
	}
	changed := e.dying != v.dying || e.gone
	if e.gone { // it was only out of sight
		e.gone = false
		g.byName[v.key.NamespacedName] = e
	}
	changed = changed || e.stance.forGood != s.forGood
	if e.stance.direction != s.direction {
		e.asked = g.step
	}
	e.view, e.stance, e.lookedAt = v, s, now
	for id := range e.claims {
		changed = changed || !e.current(id)
	}
	for _, members := range []map[string]S{v.serve, v.idle} {
		for id := range members {
			if _, ok := e.claims[id]; !ok {
				g.claim(e, g.member(id), now)
			}
		}
	}
	if changed {
		for _, m := range e.claims {
			g.settleOwner(m, now)
		}
	}
	return e
}

// member is the member of this ID. What a full reading did not name was not there.
func (g *group[S]) member(id string) *member[S] {
	m := g.members[id]
	if m == nil {
		m = &member[S]{id: id, seen: g.full, seenAt: g.readEnded, idleSince: g.readEnded}
		g.members[id] = m
	}
	return m
}

func (g *group[S]) claim(e *employee[S], m *member[S], now time.Time) {
	e.claims[m.id] = m
	if len(m.claimants) == 0 && m.wished { // it was to go because nobody claimed it
		g.unwish(m)
	}
	m.claimants = append(m.claimants, e)
	delete(g.strays, m)
	g.settleOwner(m, now)
}

// settleOwner puts the claimants of a member in order. A new owner is not bound by what was wished for the earlier one.
func (g *group[S]) settleOwner(m *member[S], now time.Time) {
	before := m.owner()
	slices.SortStableFunc(m.claimants, m.precedes)
	if after := m.owner(); len(m.claimants) > 1 && before != after {
		g.unwish(m)
		g.notify[before.key] = struct{}{}
		g.notify[after.key] = struct{}{}
		if after.gone {
			g.want(m, api.Change[S]{ID: m.id, Remove: true}, now)
		}
	}
}

func (g *group[S]) disclaim(e *employee[S], m *member[S], now time.Time) {
	owned := m.owner() == e
	delete(e.claims, m.id)
	m.claimants = slices.DeleteFunc(m.claimants, func(c *employee[S]) bool { return c == e })
	if next := m.owner(); next != nil {
		if owned {
			g.unwish(m)
			g.notify[next.key] = struct{}{}
			if next.gone {
				g.want(m, api.Change[S]{ID: m.id, Remove: true}, now)
			}
		}
		return
	}
	g.tidy(m)
}

// tidy forgets a member that nobody claims and that is not there, and remembers one that is.
func (g *group[S]) tidy(m *member[S]) {
	switch {
	case len(m.claimants) > 0:
	case m.absent():
		g.unwish(m)
		delete(g.strays, m)
		delete(g.members, m.id)
	case m.known():
		g.strays[m] = struct{}{}
	}
}

// keepUp wishes what follows from the employee's object without anybody asking for it.
func (g *group[S]) keepUp(e *employee[S], now time.Time) {
	for id, m := range e.claims {
		if m.owner() != e {
			if !e.current(id) {
				g.disclaim(e, m, now)
			}
			continue
		}
		switch state, serves := e.serve[id]; {
		case !e.current(id): // for example an address that it had
			if m.absent() {
				g.disclaim(e, m, now)
			} else {
				g.want(m, api.Change[S]{ID: id, Remove: true}, now)
			}
		case e.stance.direction == joining && serves && (m.wished && !m.wish.Remove && e.registered || m.known() && m.serving() && e.stance.arrived):
			e.registered = true
			g.want(m, api.Change[S]{ID: id, State: state}, now)
		}
	}
	if a, _ := g.answerFor(e); e.stance.forGood && e.stance.direction == leaving && !a.unknown && !a.serving {
		for id, m := range e.claims {
			if m.owner() == e {
				g.want(m, api.Change[S]{ID: id, Remove: true}, now)
			}
		}
	}
}

// tell is the answer about an employee, which is remembered: the employee is notified when it changes.
func (g *group[S]) tell(e *employee[S], now time.Time) answer {
	a, waits := g.answerFor(e)
	e.told = a
	delete(g.notify, e.key)
	g.await(e, waits, now)
	return a
}

// await has the employee wait for a reading, or not. One that goes on waiting does not make readings quicker again.
func (g *group[S]) await(e *employee[S], waits bool, now time.Time) {
	lapsed := e.lapsed
	e.lapsed = false
	if !waits {
		delete(g.waiting, e)
		return
	}
	if _, already := g.waiting[e]; already {
		return
	}
	g.waiting[e] = struct{}{}
	switch {
	case !lapsed:
		g.ask(now.Add(g.options.BatchWindow))
	case g.askAt.IsZero():
		g.askAt = now.Add(g.options.MaxPoll)
	}
}

// ask wants a reading at this time, and quicker ones from then on.
func (g *group[S]) ask(at time.Time) {
	g.pollDelay = g.options.Poll
	if g.askAt.IsZero() || at.Before(g.askAt) {
		g.askAt = at
	}
}

// answerFor is what can be said of an employee, and whether it waits for a reading.
//
// What serves by an old reading serves, for one that leaves; what does not serve by an old reading does not, for one
// that joins. The opposite takes a reading that began after the employee had set out.
func (g *group[S]) answerFor(e *employee[S]) (a answer, waits bool) {
	switch e.stance.direction {
	case joining:
		return g.joins(e)
	case leaving:
		return g.leaves(e)
	default:
		for _, m := range e.claims {
			if m.owner() == e {
				a.unknown = a.unknown || !m.known()
				a.serving = a.serving || m.serving()
			}
		}
		return a, false
	}
}

func (g *group[S]) joins(e *employee[S]) (a answer, waits bool) {
	if len(e.serve) == 0 || e.invalid != nil && !e.stance.arrived {
		return answer{}, false
	}
	for id := range e.serve {
		m := e.claims[id]
		switch {
		case m.owner() != e:
			return answer{}, false // it will be notified when it owns the member
		case m.known() && !m.serving() && len(m.sent) > 0: // it may be on its way
			a.unknown = true
		case m.known() && !m.serving():
			return answer{}, !e.stance.arrived && (e.registered || !g.moves) // the core will register it otherwise
		case !m.known(), !e.stance.arrived && m.seen <= e.asked:
			a.unknown = true
		}
	}
	a.serving = !a.unknown
	return a, a.unknown
}

func (g *group[S]) leaves(e *employee[S]) (a answer, waits bool) {
	if e.registered {
		return answer{serving: true}, false // the core will take that back
	}
	if e.invalid != nil && len(e.claims) == 0 && !e.stance.arrived {
		return answer{unknown: true}, false
	}
	for _, m := range e.claims {
		switch {
		case m.owner() != e:
		case !m.known():
			a.unknown = true
		case m.serving():
			a.serving = true
		case m.maySee(func(c api.Change[S]) bool { return !c.Remove && c != e.change(m.id, false) }):
			idles := m.wished && m.wish == e.change(m.id, false)
			a.unknown, a.serving = a.unknown || idles, a.serving || !idles
		case !e.stance.arrived && m.seen <= e.asked:
			a.unknown = true
		case m.idleSince.After(a.since):
			a.since = m.idleSince
		}
	}
	if a.serving {
		return answer{serving: true}, true
	}
	if a.unknown {
		return answer{unknown: true}, true
	}
	return a, false
}

// register takes in that an employee should have traffic, or none.
func (g *group[S]) register(v view[S], s stance, serve bool, now time.Time) {
	e := g.employees[v.key]
	if e == nil {
		g.look(v, s, now)
		e = g.employees[v.key]
	}
	g.step++
	if e.invalid != nil && serve {
		return
	}
	e.registered = serve
	for id, m := range e.claims {
		if m.owner() == e {
			g.want(m, e.change(id, serve), now)
		}
	}
	a, waits := g.answerFor(e)
	g.await(e, waits, now)
	if a != e.told {
		g.notify[e.key] = struct{}{}
	}
}

// leave takes in that an employee is gone.
func (g *group[S]) leave(e *employee[S], now time.Time) {
	e.gone, e.registered = true, false
	e.stance = stance{direction: resting}
	for _, set := range []map[*employee[S]]struct{}{g.waiting, g.invalid} {
		delete(set, e)
	}
	for _, m := range e.claims {
		g.settleOwner(m, now)
		switch {
		case m.owner() != e:
			g.disclaim(e, m, now)
		case g.moves && !m.absent():
			g.want(m, api.Change[S]{ID: m.id, Remove: true}, now)
		default:
			g.disclaim(e, m, now)
		}
	}
	g.forgetIfDone(e)
}

// forget takes in that the employee of this name is gone.
func (g *group[S]) forget(name types.NamespacedName, now time.Time) {
	g.step++
	if e := g.byName[name]; e != nil {
		g.leave(e, now)
	}
}

func (g *group[S]) forgetIfDone(e *employee[S]) {
	if !e.gone || len(e.claims) > 0 {
		return
	}
	delete(g.employees, e.key)
	delete(g.notify, e.key)
	if g.byName[e.key.NamespacedName] == e {
		delete(g.byName, e.key.NamespacedName)
	}
}

// lookedAtAll takes in that every employee there is has been looked at: members that nobody claims are to go.
func (g *group[S]) lookedAtAll() { g.looked = true }

// orphans says whether there are members that only wait for lookedAtAll.
func (g *group[S]) orphans() bool { return g.moves && !g.looked && len(g.strays) > 0 }

// removeOrphans wishes strays away.
func (g *group[S]) removeOrphans(now time.Time) {
	if !g.moves || !g.looked || len(g.invalid) > 0 { // the members of an invalid employee may be among them
		return
	}
	for m := range g.strays {
		g.want(m, api.Change[S]{ID: m.id, Remove: true}, now)
	}
}

// want wishes a change of a member, which is queued unless the member is as wished, or the change is on its way.
func (g *group[S]) want(m *member[S], c api.Change[S], now time.Time) {
	same := m.wished && m.wish == c
	m.wished, m.wish = true, c
	switch {
	case m.place == placeAway: // its answer will tell
	case m.confirmed():
		g.dequeue(m)
		g.healed(m)
	case !same || m.place == placeNone && m.known():
		g.dequeue(m)
		m.tries = 0
		g.enqueue(m, now)
	}
}

// unwish takes back what was wished of a member.
func (g *group[S]) unwish(m *member[S]) {
	m.wished, m.wish = false, api.Change[S]{}
	if m.place != placeAway {
		g.dequeue(m)
	}
	g.healed(m)
}

func (g *group[S]) healed(m *member[S]) {
	m.tries, m.err = 0, nil
	delete(g.unconfirmed, m)
	delete(g.failing, m)
}

func (g *group[S]) enqueue(m *member[S], now time.Time) {
	m.place, m.queued = placeFresh, now
	g.fresh = append(g.fresh, m)
}

func (g *group[S]) enqueueRetry(m *member[S], due time.Time) {
	m.place, m.due = placeRetry, due
	g.retry.push(m)
}

func (g *group[S]) dequeue(m *member[S]) {
	if m.place == placeRetry {
		g.retry.remove(m)
	}
	m.place = placeNone // what stands in fresh is skipped there
}

// due is when the next call is due, zero for not before something happens.
func (g *group[S]) due(now time.Time) time.Time {
	if g.away != nil {
		return time.Time{}
	}
	g.removeOrphans(now)
	return earliest(g.readDue(), g.applyDue())
}

// next is the call that is due now, which is taken to be made; nil if there is none. Readings and changes take turns.
func (g *group[S]) next(now time.Time) *call[S] {
	if due := g.due(now); due.IsZero() || due.After(now) {
		return nil
	}
	turns := []verb{read, apply}
	if g.last == read {
		turns = []verb{apply, read}
	}
	for _, v := range turns {
		due, make := g.readDue, g.nextRead
		if v == apply {
			due, make = g.applyDue, g.nextApply
		}
		if at := due(); at.IsZero() || at.After(now) {
			continue
		}
		if c := make(now); c != nil {
			return g.send(c)
		}
	}
	return nil
}

func (g *group[S]) send(c *call[S]) *call[S] {
	g.step++
	c.began = g.step
	g.away, g.last = c, c.verb
	for _, change := range c.changes {
		g.members[change.ID].moved = g.step
	}
	return c
}

// readDue is when the next reading is due, zero if nobody wants one.
func (g *group[S]) readDue() time.Time {
	due := earliest(g.askAt, g.fullDue)
	if due.IsZero() {
		return due
	}
	if g.full > 0 || g.failures[read] > 0 {
		due = latest(due, g.readEnded.Add(g.options.Poll))
	}
	return latest(due, g.notBefore[read])
}

func (g *group[S]) nextRead(now time.Time) *call[S] {
	if g.full == 0 || !g.fullDue.IsZero() && !g.fullDue.After(now) {
		return &call[S]{verb: read}
	}
	g.askAt = time.Time{}
	ids := map[string]struct{}{}
	need := func(m *member[S]) {
		// A known member with a change in the queue is read when that has been made.
		_, unconfirmed := g.unconfirmed[m]
		if m.place == placeNone || unconfirmed || !m.known() {
			ids[m.id] = struct{}{}
		}
	}
	for e := range g.waiting {
		for _, m := range e.claims {
			if m.owner() == e {
				need(m)
			}
		}
	}
	for m := range g.unconfirmed {
		need(m)
	}
	if len(ids) == 0 {
		return nil
	}
	return &call[S]{verb: read, ids: slices.Sorted(maps.Keys(ids))}
}

// applyDue is when the next change is due, zero if there is none. Nothing is changed before the first reading.
func (g *group[S]) applyDue() time.Time {
	if g.full == 0 {
		return time.Time{}
	}
	for len(g.fresh) > 0 && g.fresh[0].place != placeFresh {
		g.fresh = g.fresh[1:]
	}
	var due time.Time
	if len(g.fresh) > 0 {
		due = g.fresh[0].queued.Add(g.options.BatchWindow)
	}
	if len(g.retry) > 0 {
		due = earliest(due, g.retry[0].due)
	}
	if due.IsZero() {
		return due
	}
	return latest(due, g.notBefore[apply])
}

// nextApply takes the oldest changes that have not been tried, or else those that are to be tried again: one that
// fails for ever must not take others down with it.
func (g *group[S]) nextApply(now time.Time) *call[S] {
	c := &call[S]{verb: apply}
	take := func(m *member[S]) {
		if m.confirmed() {
			m.place = placeNone
			g.healed(m)
			return
		}
		m.place = placeAway
		if !slices.Contains(m.sent, m.wish) {
			m.sent = append(m.sent, m.wish)
		}
		c.changes = append(c.changes, m.wish)
	}
	for len(g.fresh) > 0 && len(c.changes) < g.limit {
		m := g.fresh[0]
		g.fresh[0] = nil
		g.fresh = g.fresh[1:]
		if m.place == placeFresh {
			take(m)
		}
	}
	for len(c.changes) == 0 && len(g.retry) > 0 && !g.retry[0].due.After(now) {
		for len(g.retry) > 0 && len(c.changes) < g.limit && !g.retry[0].due.After(now) {
			take(g.retry.pop())
		}
	}
	if len(c.changes) == 0 {
		return nil
	}
	return c
}

// answered takes in what the provider answered to the call that next gave.
func (g *group[S]) answered(held []api.Held[S], err error, now time.Time) {
	g.step++
	c := g.away
	g.away = nil
	var partial api.MemberErrors
	failed := err != nil && (c.verb == read || !errors.As(err, &partial))
	g.callErrs[c.verb] = nil
	if failed {
		g.failures[c.verb]++
		g.callErrs[c.verb] = err
		g.notBefore[c.verb] = now.Add(g.backoff(g.failures[c.verb], g.options.Poll))
	} else {
		g.failures[c.verb] = 0
		g.notBefore[c.verb] = time.Time{}
	}
	switch {
	case c.verb == apply:
		g.applied(c, err, partial, failed, now)
	case failed:
		g.readEnded = now
		g.repeat(now)
	default:
		g.wasRead(c, held, now)
	}
	g.lapse(now)
}

// applied takes in the answer to an apply.
func (g *group[S]) applied(c *call[S], err error, partial api.MemberErrors, failed bool, now time.Time) {
	if failed {
		g.limit = max(1, len(c.changes)/2) // one bad change may have failed them all
	} else {
		g.limit = min(g.options.BatchSize, g.limit*2)
	}
	for _, change := range c.changes {
		m := g.members[change.ID]
		m.moved, m.place = g.step, placeNone
		changeErr := partial[change.ID]
		if failed {
			changeErr = err
		}
		if changeErr == nil {
			m.sent = []api.Change[S]{change}
		}
		switch {
		case !m.wished:
			g.unconfirmed[m] = struct{}{}
			if m.owner() != nil {
				g.notify[m.owner().key] = struct{}{}
			}
		case m.wish != change:
			g.enqueue(m, now)
		case failed && len(c.changes) > 1: // nobody knows which one it was
			g.enqueue(m, now)
		case changeErr != nil:
			m.tries++
			m.err = changeErr
			g.failing[m] = struct{}{}
			g.enqueueRetry(m, now.Add(g.backoff(m.tries, g.options.Poll)))
		default:
			m.tries++
			m.err = nil
			delete(g.failing, m)
			g.unconfirmed[m] = struct{}{}
			g.enqueueRetry(m, now.Add(g.backoff(m.tries, g.options.MaxPoll)))
		}
	}
	g.ask(now)
}

// patience is how many times a change is made before it is read only once each time.
const patience = 3

// wasRead takes in a reading.
func (g *group[S]) wasRead(c *call[S], held []api.Held[S], now time.Time) {
	found := make(map[string]struct{}, len(held))
	for i := range held {
		found[held[i].ID] = struct{}{}
		g.saw(g.member(held[i].ID), c.began, true, held[i], now)
	}
	absent := func(m *member[S]) {
		if _, ok := found[m.id]; !ok {
			g.saw(m, c.began, false, api.Held[S]{ID: m.id}, now)
		}
	}
	if len(c.ids) == 0 {
		g.full = c.began
		g.fullDue = time.Time{}
		if g.options.Resync > 0 {
			g.fullDue = now.Add(g.resyncSpan(g.options.Resync))
		}
		for _, m := range g.members {
			absent(m)
		}
	}
	for _, id := range c.ids {
		if m := g.members[id]; m != nil {
			absent(m)
		}
	}
	g.readEnded = now
	for e := range g.waiting {
		g.compare(e, now)
	}
	g.repeat(now)
}

// saw takes in what a reading says of a member.
func (g *group[S]) saw(m *member[S], began int64, exists bool, held api.Held[S], now time.Time) {
	changed := !m.known() || m.exists != exists || m.held != held
	serving := exists && held.Serving
	watched := now.Sub(m.seenAt) <= 2*g.options.MaxPoll && m.seen > 0 && !m.serving()
	if !serving && (!watched || m.idleSince.IsZero()) {
		m.idleSince = now
	}
	m.seen, m.seenAt, m.exists, m.held = began, now, exists, held
	if len(m.sent) == 1 && m.shows(m.sent[0]) {
		m.sent = nil
	}
	owner := m.owner()
	switch {
	case m.confirmed():
		g.dequeue(m)
		g.healed(m)
		if m.wish.Remove && owner != nil && !owner.current(m.id) {
			g.disclaim(owner, m, now)
			g.forgetIfDone(owner)
			return
		}
		if m.wish.Remove && owner != nil && owner.stance.forGood && owner.stance.arrived {
			g.release(owner, now)
		}
	case !m.wished || m.tries > patience:
		delete(g.unconfirmed, m)
	}
	if owner == nil {
		g.tidy(m)
	}
	if changed && owner != nil {
		g.compare(owner, now)
	}
}

// compare notifies an employee of which something else has to be said than was told.
func (g *group[S]) compare(e *employee[S], now time.Time) {
	if g.moves && e.registered && !e.gone {
		g.keepUp(e, now)
	}
	a, waits := g.answerFor(e)
	if !waits {
		delete(g.waiting, e)
	}
	if a != e.told || g.drifted(e) {
		g.notify[e.key] = struct{}{}
	}
}

// drifted says whether a member of an employee that serves is known to be other than it should be.
func (g *group[S]) drifted(e *employee[S]) bool {
	if !g.moves || e.gone || e.stance.direction != joining {
		return false
	}
	for id, state := range e.serve {
		if m := e.claims[id]; m.owner() == e && m.place == placeNone && m.known() && m.exists && m.held.State != state {
			return true
		}
	}
	return false
}

// repeat wants the next reading while somebody waits, later each time.
func (g *group[S]) repeat(now time.Time) {
	if len(g.waiting) == 0 && len(g.unconfirmed) == 0 {
		g.askAt, g.pollDelay = time.Time{}, g.options.Poll
		return
	}
	g.askAt = now.Add(g.pollDelay)
	g.pollDelay = min(2*g.pollDelay, g.options.MaxPoll)
}

// lapse lets employees that nobody has looked at for long wait no more; they are notified, and ask again if they still
// wait.
func (g *group[S]) lapse(now time.Time) {
	for e := range g.waiting {
		if now.Sub(e.lookedAt) >= 2*g.options.MaxBackoff {
			delete(g.waiting, e)
			e.lapsed = true
			g.notify[e.key] = struct{}{}
		}
	}
}

func (g *group[S]) backoff(failures int, first time.Duration) time.Duration {
	d := first
	for range failures - 1 {
		if d >= g.options.MaxBackoff {
			break
		}
		d *= 2
	}
	return min(d, g.options.MaxBackoff)
}

// notified are the employees about which something else has to be said than was told, once.
func (g *group[S]) notified() []employeeKey {
	if len(g.notify) == 0 {
		return nil
	}
	keys := slices.Collect(maps.Keys(g.notify))
	clear(g.notify)
	return keys
}

// clean says whether nothing of the group is left in the backend: no member, and none that could come.
func (g *group[S]) clean() bool {
	if !g.moves {
		return true
	}
	for _, m := range g.members {
		if !m.absent() {
			return false
		}
	}
	return g.full > 0 && g.away == nil
}

// problem says what is wrong with the backend, as reason and message of api.ConditionInSync.
func (g *group[S]) problem() (reason, message string) {
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

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
