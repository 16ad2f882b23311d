package bulk

import (
	"errors"
	"time"

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
type call struct {
	verb verb
	// ids are the members that a read asks for; none means all.
	ids []string
	// changes are those of an apply.
	changes []api.Change[any]
	// began is the group's step at which the call was made.
	began int64
}

// due is when the next call is due, zero for not before something happens.
func (g *group) due(now time.Time) time.Time {
	if g.inCall != nil {
		return time.Time{}
	}
	g.removeOrphans(now)
	return earliest(g.readDue(), g.applyDue())
}

// next is the call that is due now, which is taken to be made; nil if there is none. Readings and changes take turns.
func (g *group) next(now time.Time) *call {
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

func (g *group) send(c *call) *call {
	g.step++
	c.began = g.step
	g.inCall, g.last = c, c.verb
	for _, change := range c.changes {
		g.members[change.ID].moved = g.step
	}
	return c
}

// answered takes in what the provider answered to the call that next gave.
func (g *group) answered(held []api.Held[any], err error, now time.Time) {
	g.step++
	c := g.inCall
	g.inCall = nil
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

// fails reports whether the last reading or change failed.
func (c *calls) fails() bool { return c.failures[read] > 0 || c.failures[apply] > 0 }

func (g *group) backoff(failures int, first time.Duration) time.Duration {
	d := first
	for range failures - 1 {
		if d >= g.options.MaxBackoff {
			break
		}
		d *= 2
	}
	return min(d, g.options.MaxBackoff)
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
