package collaset

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"kusionstack.io/kuperator/internal/collaset/core"
)

// fairTurn says that every so many places one goes to the CollaSet that has been waiting for longest.
const fairTurn = 4

// pace shares the places of Pods that are begun by standing order among all CollaSets (docs/design/0019-one-queue-of-begins.md). It is safe for
// concurrent use, and never calls anybody while it holds the lock of a flow.
type pace struct {
	// limit is how many places there are for CollaSets that wait; there are as many more for those that have none.
	limit int
	clock clock.PassiveClock

	mu sync.Mutex
	// begin has the step of a Pod made, later has look called after a while; nobody is begun before they are there.
	begin func(pod types.NamespacedName)
	later func(time.Duration)
	// places are those taken, by Pod.
	places map[types.UID]place
	// kept are places kept for decisions that are being made.
	kept int
	// waiting are the CollaSets whose order has somebody next.
	waiting map[types.NamespacedName]*waiter
	// turn counts what was handed out, arrivals the waiters that there were.
	turn, arrivals int
	// owed counts the places that CollaSets which had none took beyond the limit while others waited.
	owed int

	crowd atomic.Bool
}

// place is one that a Pod of a CollaSet has taken.
type place struct {
	set types.NamespacedName
	// until is when it is free at the latest: a Pod that is not back by then is held up by others than this suite.
	until time.Time
}

// waiter is a CollaSet that waits for a place.
type waiter struct {
	set  types.NamespacedName
	flow *flow
	// arrived is the place in the order in which they came.
	arrived int
}

func newPace(limit int, c clock.PassiveClock) *pace {
	return &pace{limit: limit, clock: c, places: map[types.UID]place{}, waiting: map[types.NamespacedName]*waiter{}}
}

// start says how a Pod's step is made, and how look is called later, and begins those that wait.
func (p *pace) start(begin func(types.NamespacedName), later func(time.Duration)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begin, p.later = begin, later
	p.handOut()
}

// look hands out the places that have run out.
func (p *pace) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handOut()
}

// keep keeps the places that are left for a decision about a CollaSet and says how many. They are kept until decided is called, with as many.
// For one that has none and waits for none, nothing is kept, and it may ask for as many as admit then says: most decisions begin nobody.
func (p *pace) keep(set types.NamespacedName) (kept int, comes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handOut()
	if p.waiting[set] == nil && !p.has(set) {
		return 0, true
	}
	kept = max(0, p.free())
	p.kept += kept
	return kept, false
}

// admit keeps up to so many places for a decision about a CollaSet that comes, and says how many.
func (p *pace) admit(wanted int) (kept int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept = max(0, min(wanted, p.limit, p.free()+p.limit))
	p.kept += kept
	return kept
}

// has says whether a Pod of the CollaSet has a place.
func (p *pace) has(set types.NamespacedName) bool {
	for _, taken := range p.places {
		if taken.set == set {
			return true
		}
	}
	return false
}

// decided has Pods that a decision begins take places, gives back the others that were kept for it, and has the CollaSet wait for its turn if
// somebody of it is next.
func (p *pace) decided(set types.NamespacedName, f *flow, kept int, begun []types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept -= kept
	for _, pod := range begun {
		p.take(set, pod)
		if len(p.places) > p.limit {
			p.owed++
		}
	}
	w := p.waiting[set]
	switch {
	case !f.waiting():
		delete(p.waiting, set)
	case w == nil || w.flow != f:
		p.arrivals++
		p.waiting[set] = &waiter{set: set, flow: f, arrived: p.arrivals}
	}
	p.handOut()
}

// back gives back the place of a Pod that serves again, and lets one more of its CollaSet begin.
func (p *pace) back(f *flow, pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.back()
	delete(p.places, pod)
	p.handOut()
}

// handedOver says that it is others who have to move the Pod now.
func (p *pace) handedOver(pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if taken, ok := p.places[pod]; ok {
		if soon := p.clock.Now().Add(core.HandedOverFor); soon.Before(taken.until) {
			p.places[pod] = place{taken.set, soon}
			p.handOut()
		}
	}
}

// giveBack gives back the places of Pods that are not begun after all.
func (p *pace) giveBack(pods ...types.UID) {
	if len(pods) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pod := range pods {
		delete(p.places, pod)
	}
	p.handOut()
}

// forget has a CollaSet wait no longer.
func (p *pace) forget(set types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, set)
	p.handOut()
}

// counts are the places that are taken, and the CollaSets that wait for one.
func (p *pace) counts() (taken, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runOut()
	return len(p.places), p.waits()
}

// crowded says that CollaSets waited for each other when places were handed out last.
func (p *pace) crowded() bool { return p.crowd.Load() }

// waits is how many CollaSets have somebody next.
func (p *pace) waits() (n int) {
	for _, w := range p.waiting {
		if w.flow.waiting() {
			n++
		}
	}
	return n
}

func (p *pace) take(set types.NamespacedName, pod types.UID) {
	p.places[pod] = place{set, p.clock.Now().Add(core.FreshFor)}
}

// free is how many of the places for those that wait nobody has; less than none where others were let in.
func (p *pace) free() int { return p.limit - p.kept - len(p.places) }

// handOut gives free places to those who wait.
func (p *pace) handOut() {
	if p.begin != nil {
		p.serve()
	}
	p.crowd.Store(p.waits() > 1)
}

// serve begins Pods while there are places, and if there are too few looks again when the first runs out.
func (p *pace) serve() {
	first := p.runOut()
	for {
		owed := p.owed >= fairTurn-1
		w := p.next(owed || p.turn%fairTurn == fairTurn-1)
		if w == nil {
			p.owed = 0
			return
		}
		if free := p.free(); free <= 0 && (!owed || free <= -p.limit) {
			if !first.IsZero() { // else all are kept for decisions
				p.later(first.Sub(p.clock.Now()))
			}
			return
		}
		pod, ok := w.flow.choose()
		if !ok {
			continue // a decision has taken it back
		}
		p.turn++
		if owed {
			p.owed -= fairTurn - 1
		}
		p.take(w.set, pod.UID)
		p.begin(types.NamespacedName{Namespace: w.set.Namespace, Name: pod.Name})
	}
}

// runOut gives back what was held for too long, and says when the next runs out.
func (p *pace) runOut() (first time.Time) {
	now := p.clock.Now()
	for pod, taken := range p.places {
		switch {
		case !taken.until.After(now):
			delete(p.places, pod)
		case first.IsZero() || taken.until.Before(first):
			first = taken.until
		}
	}
	return first
}

// next is the waiter with the fewest Pods left, or the first one that came where it is its turn; nil if there is none that has room.
func (p *pace) next(fair bool) *waiter {
	var first *waiter
	fewest := 0
	for _, w := range p.waiting {
		left := w.flow.left()
		if left == 0 {
			continue
		}
		if first == nil || !fair && left < fewest || (fair || left == fewest) && w.arrived < first.arrived {
			first, fewest = w, left
		}
	}
	return first
}

// begunBy are the Pods that a plan begins by standing order.
func begunBy(plan *core.Plan) (pods []types.UID) {
	if plan.Standing == nil {
		return nil
	}
	for _, b := range plan.Begins {
		if _, named := plan.Standing.From[b.Pod.UID()]; named {
			pods = append(pods, b.Pod.UID())
		}
	}
	return pods
}
