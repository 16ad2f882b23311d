package bulk

import (
	"slices"
	"strings"
	"time"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// place is where a member stands in the queue of changes.
type place string

const (
	// placeNone: there is nothing to do, or a change waits for its confirmation.
	placeNone place = ""
	// placeFresh: a change has not been tried yet.
	placeFresh place = "fresh"
	// placeRetry: a change has to be made again at its time.
	placeRetry place = "retry"
	// placeInCall: a change is being made.
	placeInCall place = "inCall"
)

// member is what is known and wanted of one member.
type member struct {
	id        string
	claimants []*employee

	// desired is the change that makes it what it should be; nil if that does not matter.
	desired *api.Change[any]
	// sent are the changes whose effect may still come: the last one that succeeded, and those that failed since. It is
	// empty once a reading has shown the effect of the only one.
	sent []api.Change[any]

	exists bool
	held   api.Held[any]
	// seen is the step at which the newest reading began, moved the one of the last change: a reading that began
	// before a change ended says nothing. Both are zero if there was none.
	seen, moved int64
	seenAt      time.Time
	idleSince   time.Time

	place  place
	queued time.Time
	due    time.Time
	tries  int
	err    error
}

// known reports whether what was read of the member still holds.
func (m *member) known() bool { return m.seen > m.moved && m.place != placeInCall }

// serving reports whether the member was last seen to take traffic.
func (m *member) serving() bool { return m.exists && m.held.Serving }

// desires reports whether this is the change that makes the member what it should be.
func (m *member) desires(c api.Change[any]) bool { return m.desired != nil && *m.desired == c }

// shows reports whether the member is known to be as a change would make it.
func (m *member) shows(c api.Change[any]) bool {
	return m.known() && c.Remove != m.exists && (c.Remove || m.held.State == c.State)
}

// confirmed reports whether the member is known to be as it should be, and will stay so.
func (m *member) confirmed() bool {
	return m.desired != nil && m.shows(*m.desired) && !m.maySee(func(c api.Change[any]) bool { return c != *m.desired })
}

// absent reports whether the member is known not to be there, and will stay so.
func (m *member) absent() bool {
	return m.known() && !m.exists && !m.maySee(func(c api.Change[any]) bool { return !c.Remove })
}

// maySee reports whether a change like that may still take effect.
func (m *member) maySee(like func(api.Change[any]) bool) bool {
	return slices.ContainsFunc(m.sent, like)
}

// owner is the employee that the member belongs to, nil if no employee claims it.
func (m *member) owner() *employee {
	if len(m.claimants) == 0 {
		return nil
	}
	return m.claimants[0]
}

// precedes reports whether a member belongs to a rather than to b: one that has it now before one that had it, one that
// is employed before one that is not, one that lives before one that dies, and the younger.
func (m *member) precedes(a, b *employee) int {
	rank := func(e *employee) int {
		switch {
		case !e.current(m.id):
			return 3
		case e.intent.forGood:
			return 2
		case e.terminating:
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

// member is the member of this ID. What a full reading did not name was not there.
func (g *group) member(id string) *member {
	m := g.members[id]
	if m == nil {
		m = &member{id: id, seen: g.full, seenAt: g.readEnded, idleSince: g.readEnded}
		g.members[id] = m
	}
	return m
}

func (g *group) claim(e *employee, m *member, now time.Time) {
	e.claims[m.id] = m
	if len(m.claimants) == 0 && m.desired != nil { // it was to go because no employee claimed it
		g.clearDesired(m)
	}
	m.claimants = append(m.claimants, e)
	delete(g.unclaimed, m)
	g.settleOwner(m, now)
}

// settleOwner puts the claimants of a member in order. A new owner is not bound by what was wanted for the earlier one.
func (g *group) settleOwner(m *member, now time.Time) {
	before := m.owner()
	slices.SortStableFunc(m.claimants, m.precedes)
	if after := m.owner(); len(m.claimants) > 1 && before != after {
		g.clearDesired(m)
		g.notify[before.key] = struct{}{}
		g.notify[after.key] = struct{}{}
		if after.gone {
			g.want(m, api.Change[any]{ID: m.id, Remove: true}, now)
		}
	}
}

func (g *group) disclaim(e *employee, m *member, now time.Time) {
	owned := m.owner() == e
	delete(e.claims, m.id)
	m.claimants = slices.DeleteFunc(m.claimants, func(c *employee) bool { return c == e })
	if next := m.owner(); next != nil {
		if owned {
			g.clearDesired(m)
			g.notify[next.key] = struct{}{}
			if next.gone {
				g.want(m, api.Change[any]{ID: m.id, Remove: true}, now)
			}
		}
		return
	}
	g.dropIfUnused(m)
}

// dropIfUnused forgets a member that no employee claims and that is not there, and remembers one that is.
func (g *group) dropIfUnused(m *member) {
	switch {
	case len(m.claimants) > 0:
	case m.absent():
		g.clearDesired(m)
		delete(g.unclaimed, m)
		delete(g.members, m.id)
	case m.known():
		g.unclaimed[m] = struct{}{}
	}
}

// lookedAtAll takes in that every employee there is has been looked at: members that no employee claims are to go.
func (g *group) lookedAtAll() { g.looked = true }

// orphans reports whether there are members that only wait for lookedAtAll.
func (g *group) orphans() bool { return g.moves && !g.looked && len(g.unclaimed) > 0 }

// removeOrphans has unclaimed members removed.
func (g *group) removeOrphans(now time.Time) {
	if !g.moves || !g.looked || len(g.invalid) > 0 { // the members of an invalid employee may be among them
		return
	}
	for m := range g.unclaimed {
		g.want(m, api.Change[any]{ID: m.id, Remove: true}, now)
	}
}
