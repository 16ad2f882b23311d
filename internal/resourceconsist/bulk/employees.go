package bulk

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// employeeKey names an employee. The UID keeps it apart from an earlier one of its name.
type employeeKey struct {
	types.NamespacedName
	uid types.UID
}

// view is an employee as the adapter sees it now.
type view struct {
	key     employeeKey
	created time.Time
	// terminating is true if the employee is being deleted or has run to its end.
	terminating bool
	// serve and idle are the members as they should be with and without traffic.
	serve, idle map[string]any
	// invalid says why these are not known; the employee keeps the members that it has.
	invalid error
}

// direction is where an employee is going.
type direction string

const (
	// resting: nothing waits for it.
	resting direction = "resting"
	// joining: it should have traffic.
	joining direction = "joining"
	// leaving: it should have none.
	leaving direction = "leaving"
)

// intent is what an employee's object says about where it is going.
type intent struct {
	direction direction
	// arrived is true if nothing depends on the answer any more: one that joins is known to serve, one that leaves is
	// known not to. Then what was read earlier will do.
	arrived bool
	// forGood is true if one that leaves will not come back.
	forGood bool
}

// answer is what is said about an employee.
type answer struct {
	// unknown is true if nothing can be said yet.
	unknown bool
	// serving is true if the provider sends traffic to a member, or, of an employee that joins, to all of them.
	serving bool
	// since is when serving was first seen false; zero if it is true, or there is no member.
	since time.Time
}

// employee is what is kept of one employee.
type employee struct {
	view
	intent intent
	gone   bool
	// claims are its members by ID: those of its view, and former ones that are still in the backend.
	claims map[string]*member
	// asked is the step at which its direction last changed, or it got another member.
	asked int64
	// registered is true if its members were last wanted to have traffic.
	registered bool
	told       answer
	lookedAt   time.Time
	// lapsed is true if it was made to wait no more, because it had not been looked at for long.
	lapsed bool
}

// current reports whether the member is one of those that the employee should have.
func (e *employee) current(id string) bool {
	_, serves := e.serve[id]
	_, idles := e.idle[id]
	return !e.gone && (serves || idles)
}

// change is what makes a member of the employee take traffic, or none.
func (e *employee) change(id string, serve bool) api.Change[any] {
	states := e.idle
	if serve {
		states = e.serve
	}
	state, stays := states[id]
	return api.Change[any]{ID: id, State: state, Remove: !stays}
}

// look takes in an employee as it is now, and says what the provider does with it. If that is not known, or not what
// the employee waits for, it is read, and the employee is among those to notify when the answer changes.
func (g *group) look(v view, s intent, now time.Time) answer {
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
func (g *group) release(e *employee, now time.Time) {
	for _, m := range e.claims {
		if m.owner() == e && g.moves && !m.absent() {
			return
		}
	}
	g.leave(e, now)
}

// take brings an employee and its claims up to date.
func (g *group) take(v view, s intent, now time.Time) *employee {
	e := g.employees[v.key]
	if e == nil {
		if before := g.byName[v.key.NamespacedName]; before != nil {
			g.leave(before, now)
		}
		e = &employee{claims: map[string]*member{}, intent: intent{direction: resting}}
		g.employees[v.key], g.byName[v.key.NamespacedName] = e, e
	}
	if v.invalid != nil {
		v.serve, v.idle = e.serve, e.idle
		g.invalid[e] = struct{}{}
	} else {
		delete(g.invalid, e)
	}
	changed := e.terminating != v.terminating || e.gone
	if e.gone { // it was only out of sight
		e.gone = false
		g.byName[v.key.NamespacedName] = e
	}
	changed = changed || e.intent.forGood != s.forGood
	if e.intent.direction != s.direction {
		e.asked = g.step
	}
	former := func() bool {
		for id := range e.claims {
			if !e.current(id) {
				return true
			}
		}
		return false
	}
	changed = changed || former() // it may have one of them again
	e.view, e.intent, e.lookedAt = v, s, now
	changed = changed || former()
	for _, members := range []map[string]any{v.serve, v.idle} {
		for id := range members {
			if _, ok := e.claims[id]; !ok {
				g.claim(e, g.member(id), now)
				e.asked = g.step // what was read before it had the member is too old
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

// keepUp wants what follows from the employee's object without being asked for.
func (g *group) keepUp(e *employee, now time.Time) {
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
				g.want(m, api.Change[any]{ID: id, Remove: true}, now)
			}
		case e.intent.direction == joining && serves &&
			(m.desired != nil && !m.desired.Remove && e.registered || m.known() && m.serving() && e.intent.arrived ||
				// what was sent for an earlier one may still take effect, and is not tried any more
				m.desired == nil && len(m.sent) > 0):
			e.registered = true
			g.want(m, api.Change[any]{ID: id, State: state}, now)
		}
	}
	if a, _ := g.answerFor(e); e.intent.forGood && e.intent.direction == leaving && !a.unknown && !a.serving {
		for id, m := range e.claims {
			if m.owner() == e {
				g.want(m, api.Change[any]{ID: id, Remove: true}, now)
			}
		}
	}
}

// register takes in that an employee should have traffic, or none.
func (g *group) register(v view, s intent, serve bool, now time.Time) {
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
func (g *group) leave(e *employee, now time.Time) {
	e.gone, e.registered = true, false
	e.intent = intent{direction: resting}
	for _, set := range []map[*employee]struct{}{g.waiting, g.invalid} {
		delete(set, e)
	}
	for _, m := range e.claims {
		g.settleOwner(m, now)
		switch {
		case m.owner() != e:
			g.disclaim(e, m, now)
		case g.moves && !m.absent():
			g.want(m, api.Change[any]{ID: m.id, Remove: true}, now)
		default:
			g.disclaim(e, m, now)
		}
	}
	g.forgetIfDone(e)
}

// forget takes in that the employee of this name is gone.
func (g *group) forget(name types.NamespacedName, now time.Time) {
	g.step++
	if e := g.byName[name]; e != nil {
		g.leave(e, now)
	}
}

func (g *group) forgetIfDone(e *employee) {
	if !e.gone || len(e.claims) > 0 {
		return
	}
	delete(g.employees, e.key)
	delete(g.notify, e.key)
	if g.byName[e.key.NamespacedName] == e {
		delete(g.byName, e.key.NamespacedName)
	}
}
