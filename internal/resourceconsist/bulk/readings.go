package bulk

import (
	"maps"
	"slices"
	"time"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// ask wants a reading at this time, and quicker ones from then on.
func (g *group) ask(at time.Time) {
	g.pollDelay = g.options.Poll
	if g.askAt.IsZero() || at.Before(g.askAt) {
		g.askAt = at
	}
}

// readDue is when the next reading is due, zero if none is wanted.
func (g *group) readDue() time.Time {
	due := earliest(g.askAt, g.fullDue)
	if due.IsZero() {
		return due
	}
	if g.full > 0 || g.failures[read] > 0 {
		due = latest(due, g.readEnded.Add(g.options.Poll))
	}
	return latest(due, g.notBefore[read])
}

func (g *group) nextRead(now time.Time) *call {
	if g.full == 0 || !g.fullDue.IsZero() && !g.fullDue.After(now) {
		return &call{verb: read}
	}
	g.askAt = time.Time{}
	ids := map[string]struct{}{}
	need := func(m *member) {
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
	return &call{verb: read, ids: slices.Sorted(maps.Keys(ids))}
}

// wasRead takes in a reading.
func (g *group) wasRead(c *call, held []api.Held[any], now time.Time) {
	found := make(map[string]struct{}, len(held))
	for i := range held {
		found[held[i].ID] = struct{}{}
		g.saw(g.member(held[i].ID), c.began, true, held[i], now)
	}
	absent := func(m *member) {
		if _, ok := found[m.id]; !ok {
			g.saw(m, c.began, false, api.Held[any]{ID: m.id}, now)
		}
	}
	if len(c.ids) == 0 {
		g.full = c.began
		g.fullDue = now.Add(g.resyncSpan(g.options.Resync))
		if g.full < g.fullSince {
			g.fullDue = now
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
func (g *group) saw(m *member, began int64, exists bool, held api.Held[any], now time.Time) {
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
		if m.desired.Remove && owner != nil && !owner.current(m.id) {
			g.disclaim(owner, m, now)
			g.forgetIfDone(owner)
			return
		}
		if m.desired.Remove && owner != nil && owner.intent.forGood && owner.intent.arrived {
			g.release(owner, now)
		}
	case m.desired == nil || m.tries > maxAttempts:
		delete(g.unconfirmed, m)
	}
	if owner == nil {
		g.dropIfUnused(m)
	}
	if changed && owner != nil {
		g.compare(owner, now)
	}
}

// repeat wants the next reading while an employee waits, later each time.
func (g *group) repeat(now time.Time) {
	if len(g.waiting) == 0 && len(g.unconfirmed) == 0 {
		g.askAt, g.pollDelay = time.Time{}, g.options.Poll
		return
	}
	g.askAt = now.Add(g.pollDelay)
	g.pollDelay = min(2*g.pollDelay, g.options.MaxPoll)
}
