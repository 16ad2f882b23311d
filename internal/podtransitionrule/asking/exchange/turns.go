package exchange

import (
	"cmp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// slowAnswer is how long a request may take before its namespace counts as slow, slowFor for how long it does
	// after that.
	slowAnswer = 2 * time.Second
	slowFor    = 5 * time.Minute
	// firstsPerSlot is how many first requests of namespaces there are room for beside each slot.
	firstsPerSlot = 3
	// fewToShare is how many slots are too few to keep any from a namespace.
	fewToShare = 8
)

// Turns decides who may make a request when many want to: namespace by namespace, and within one rule by rule. T is
// what wants to make requests; it is in Turns at most once.
//
// There are slots, which a namespace may have up to half of. Beside them there is room for first requests: a
// namespace that has none on its way need not wait for a slot. So no one waits for servers of others that hang, as
// long as the room lasts. Namespaces whose servers were slow lately share half of the slots, and half of all room:
// the other half is for those that are new.
//
// Of those that may go on, the one with the fewest requests on their way is next; among equals who was not slow, then
// who was served longest ago.
type Turns[T comparable] struct {
	slots, perRule int
	spaces         map[string]*space[T]
	running        int
	served         int // counts, to order by
}

// space is one namespace.
type space[T comparable] struct {
	name      string
	waiting   []want[T] // the longest first
	running   int
	ofRule    map[types.UID]int // running
	served    int               // when it was last served, or came
	slowUntil time.Time
}

type want[T comparable] struct {
	rule types.UID
	who  T
}

// NewTurns has so many slots, and lets one rule make so many requests at once.
func NewTurns[T comparable](slots, perRule int) *Turns[T] {
	return &Turns[T]{slots: slots, perRule: perRule, spaces: map[string]*space[T]{}}
}

// Most is how many requests are ever on their way at once.
func (t *Turns[T]) Most() int { return t.slots * (1 + firstsPerSlot) }

// Want adds who wants to make a request about a rule.
func (t *Turns[T]) Want(namespace string, rule types.UID, who T) {
	s := t.space(namespace)
	s.waiting = append(s.waiting, want[T]{rule, who})
}

// Next takes out who is next; false if none may go on now.
func (t *Turns[T]) Next(now time.Time) (who T, some bool) {
	slow, slowFirsts := 0, 0 // requests on their way of namespaces that are slow, and how many such namespaces
	for name, s := range t.spaces {
		switch {
		case s.slow(now) && s.running > 0:
			slow += s.running
			slowFirsts++
		case s.running == 0 && len(s.waiting) == 0 && !s.slow(now):
			delete(t.spaces, name)
		}
	}
	var next *space[T]
	at := -1
	for _, s := range t.spaces {
		if next != nil && s.before(next, now) >= 0 {
			continue
		}
		if i := s.next(t.perRule); i >= 0 && t.room(s, slow, slowFirsts, now) {
			next, at = s, i
		}
	}
	if next == nil {
		return who, false
	}
	who = next.waiting[at].who
	next.waiting = append(next.waiting[:at:at], next.waiting[at+1:]...)
	return who, true
}

// room reports whether there is room for one more request of a namespace.
func (t *Turns[T]) room(s *space[T], slow, slowFirsts int, now time.Time) bool {
	isSlow := s.slow(now)
	if s.running == 0 {
		return t.running < t.Most() && (!isSlow || slowFirsts < (t.Most()+1)/2)
	}
	share := t.slots
	if t.slots >= fewToShare {
		share = t.slots / 2
	}
	return t.running < t.slots && s.running < share && (!isSlow || slow < share)
}

// Begin takes down that a request about a rule is on its way.
func (t *Turns[T]) Begin(namespace string, rule types.UID) {
	s := t.space(namespace)
	t.running++
	t.served++
	s.running++
	s.ofRule[rule]++
	s.served = t.served
}

// End takes down that it came back, and how long it took.
func (t *Turns[T]) End(namespace string, rule types.UID, took time.Duration, now time.Time) {
	s := t.space(namespace)
	t.running--
	s.running--
	if s.ofRule[rule]--; s.ofRule[rule] == 0 {
		delete(s.ofRule, rule)
	}
	if took > slowAnswer {
		s.slowUntil = now.Add(slowFor)
	}
}

func (t *Turns[T]) space(name string) *space[T] {
	s := t.spaces[name]
	if s == nil {
		t.served++
		s = &space[T]{name: name, ofRule: map[types.UID]int{}, served: t.served}
		t.spaces[name] = s
	}
	return s
}

func (s *space[T]) slow(now time.Time) bool { return now.Before(s.slowUntil) }

// before orders namespaces by who is next.
func (s *space[T]) before(other *space[T], now time.Time) int {
	slow := func(s *space[T]) int {
		if s.slow(now) {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(s.running, other.running), cmp.Compare(slow(s), slow(other)),
		cmp.Compare(s.served, other.served),
		strings.Compare(s.name, other.name))
}

// next is which of those that wait is next: of the rule with the fewest requests on their way, and of those that of
// who has waited longest. It is -1 if every rule has all that it may.
func (s *space[T]) next(perRule int) int {
	best := -1
	for i, w := range s.waiting {
		if n := s.ofRule[w.rule]; n < perRule && (best < 0 || n < s.ofRule[s.waiting[best].rule]) {
			best = i
		}
	}
	return best
}
