package bulk

import (
	"maps"
	"slices"
	"time"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// tell is the answer about an employee, which is remembered: the employee is notified when it changes.
func (g *group) tell(e *employee, now time.Time) answer {
	a, waits := g.answerFor(e)
	e.told = a
	delete(g.notify, e.key)
	g.await(e, waits, now)
	return a
}

// await has the employee wait for a reading, or not. One that goes on waiting does not make readings quicker again.
func (g *group) await(e *employee, waits bool, now time.Time) {
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

// answerFor is what can be said of an employee, and whether it waits for a reading.
//
// What serves by an old reading serves, for one that leaves; what does not serve by an old reading does not, for one
// that joins. The opposite takes a reading that began after the employee had set out.
func (g *group) answerFor(e *employee) (a answer, waits bool) {
	switch e.intent.direction {
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

func (g *group) joins(e *employee) (a answer, waits bool) {
	if len(e.serve) == 0 || e.invalid != nil && !e.intent.arrived {
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
			return answer{}, !e.intent.arrived && (e.registered || !g.moves) // the core will register it otherwise
		case !m.known(), !e.intent.arrived && m.seen <= e.asked:
			a.unknown = true
		case !e.intent.arrived && m.maySee(func(c api.Change[any]) bool { return c.Remove }): // it may be on its way out
			a.unknown = true
		}
	}
	a.serving = !a.unknown
	return a, a.unknown
}

func (g *group) leaves(e *employee) (a answer, waits bool) {
	if e.registered {
		return answer{serving: true}, false // the core will take that back
	}
	if e.invalid != nil && len(e.claims) == 0 && !e.intent.arrived {
		return answer{unknown: true}, false
	}
	for _, m := range e.claims {
		switch {
		case m.owner() != e:
		case !m.known():
			a.unknown = true
		case m.serving():
			a.serving = true
		case m.maySee(func(c api.Change[any]) bool { return !c.Remove && c != e.change(m.id, false) }):
			idles := m.desires(e.change(m.id, false))
			a.unknown, a.serving = a.unknown || idles, a.serving || !idles
		case !e.intent.arrived && m.seen <= e.asked:
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

// compare notifies an employee of which something else has to be said than was told.
func (g *group) compare(e *employee, now time.Time) {
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

// drifted reports whether a member of an employee that serves is known to be other than it should be.
func (g *group) drifted(e *employee) bool {
	if !g.moves || e.gone || e.intent.direction != joining {
		return false
	}
	for id, state := range e.serve {
		if m := e.claims[id]; m.owner() == e && m.place == placeNone && m.known() && m.exists && m.held.State != state {
			return true
		}
	}
	return false
}

// lapse lets employees that have not been looked at for long wait no more; they are notified, and ask again if they
// still wait.
func (g *group) lapse(now time.Time) {
	for e := range g.waiting {
		if now.Sub(e.lookedAt) >= 2*g.options.MaxBackoff {
			delete(g.waiting, e)
			e.lapsed = true
			g.notify[e.key] = struct{}{}
		}
	}
}

// notified are the employees about which something else has to be said than was told, once.
func (g *group) notified() []employeeKey {
	if len(g.notify) == 0 {
		return nil
	}
	keys := slices.Collect(maps.Keys(g.notify))
	clear(g.notify)
	return keys
}
