package bulk

import (
	"cmp"
	"maps"
	"slices"
	"time"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// want has a change made of a member. It is queued unless the member is so already, or the change is on its way.
func (g *group) want(m *member, c api.Change[any], now time.Time) {
	same := m.desires(c)
	m.desired = &c
	switch {
	case m.place == placeInCall: // its answer will tell
	case m.confirmed():
		g.dequeue(m)
		g.healed(m)
	case !same || m.place == placeNone && m.known():
		g.dequeue(m)
		m.tries = 0
		g.enqueue(m, now)
	}
}

// clearDesired takes back what was wanted of a member.
func (g *group) clearDesired(m *member) {
	m.desired = nil
	if m.place != placeInCall {
		g.dequeue(m)
	}
	g.healed(m)
}

func (g *group) healed(m *member) {
	m.tries, m.err = 0, nil
	delete(g.unconfirmed, m)
	delete(g.failing, m)
}

func (g *group) enqueue(m *member, now time.Time) {
	m.place, m.queued = placeFresh, now
	g.fresh = append(g.fresh, m)
}

func (g *group) enqueueRetry(m *member, due time.Time) {
	m.place, m.due = placeRetry, due
	g.retry[m] = struct{}{}
	g.retryDue = earliest(g.retryDue, due)
}

func (g *group) dequeue(m *member) {
	delete(g.retry, m)
	m.place = placeNone // what stands in fresh is skipped there
}

// applyDue is when the next change is due, zero if there is none. Nothing is changed before the first reading.
func (g *group) applyDue() time.Time {
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
		due = earliest(due, g.retryDue)
	}
	if due.IsZero() {
		return due
	}
	return latest(due, g.notBefore[apply])
}

// nextApply takes the oldest changes that have not been tried, or else those that are to be tried again: one that
// fails for ever must not take others down with it.
func (g *group) nextApply(now time.Time) *call {
	c := &call{verb: apply}
	take := func(m *member) {
		if m.confirmed() {
			m.place = placeNone
			g.healed(m)
			return
		}
		m.place = placeInCall
		if !slices.Contains(m.sent, *m.desired) {
			m.sent = append(m.sent, *m.desired)
		}
		c.changes = append(c.changes, *m.desired)
	}
	for len(g.fresh) > 0 && len(c.changes) < g.limit {
		m := g.fresh[0]
		g.fresh[0] = nil
		g.fresh = g.fresh[1:]
		if m.place == placeFresh {
			take(m)
		}
	}
	if len(c.changes) == 0 && !g.retryDue.After(now) {
		g.retryDue = time.Time{}
		for _, m := range slices.SortedFunc(maps.Keys(g.retry), compareDue) {
			if m.due.After(now) || len(c.changes) == g.limit {
				g.retryDue = m.due
				break
			}
			delete(g.retry, m)
			take(m)
		}
	}
	if len(c.changes) == 0 {
		return nil
	}
	return c
}

func compareDue(a, b *member) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.id, b.id)) }

// applied takes in the answer to an apply.
func (g *group) applied(c *call, err error, partial api.MemberErrors, failed bool, now time.Time) {
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
			m.sent = []api.Change[any]{change}
		}
		switch {
		case m.desired == nil:
			g.unconfirmed[m] = struct{}{}
			if m.owner() != nil {
				g.notify[m.owner().key] = struct{}{}
			}
		case *m.desired != change:
			g.enqueue(m, now)
		case failed && len(c.changes) > 1: // it is not known which one it was
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

// maxAttempts is how many times a change is made before it is read only once each time.
const maxAttempts = 3
