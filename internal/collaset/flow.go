package collaset

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/core"
)

// foreseenPause is how long after a decision on Pods that were foreseen, or beside a step that somebody else was making, the next
// one looks what became of them.
const foreseenPause = time.Second

// flow has the Pods that a standing order begins next, as far as the CollaSet has room for them: one for each that came back
// (docs/design/0018-beginning-by-standing-order.md), and those that were to wait for others only. When each begins, the pace says.
// The zero flow has nobody to begin. It is safe for concurrent use.
type flow struct {
	mu sync.Mutex
	// order is the one that is followed, nil for none.
	order *core.Standing
	// next are those of the order that are left.
	next []core.NextPod
	// room is how many of them may begin before another Pod comes back, as far as their CollaSet is concerned.
	room int
	// waits says that some of the last order are left. A decision that is being made does not change it.
	waits bool
	// chosen are those that are to be begun now.
	chosen map[types.UID]bool
	// begun are those whose begin was sent, and is not known to have failed or to be seen.
	begun map[types.UID]begun
}

// begun is a Pod whose begin was sent.
type begun struct {
	version string      // the resourceVersion that it had
	after   podops.View // the Pod with that resourceVersion, and the begin
}

// hold withdraws the order, so that until the next one nothing is begun but what has been sent already. Those that were chosen and are not
// begun now are withdrawn.
func (f *flow) hold() (withdrawn []types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for pod := range f.chosen {
		withdrawn = append(withdrawn, pod)
	}
	f.order, f.next, f.room, f.chosen = nil, nil, 0, nil
	return withdrawn
}

// give puts an order in the place of the one before.
func (f *flow) give(order *core.Standing) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.order, f.next, f.room, f.chosen = order, nil, 0, nil
	if order != nil {
		f.next, f.room = order.Next, order.Room
	}
	f.waits = len(f.next) > 0
}

// back lets one more Pod begin.
func (f *flow) back() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.room++
}

// left is how many are next, 0 if none of them may begin now.
func (f *flow) left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.room <= 0 {
		return 0
	}
	return len(f.next)
}

// choose takes the next Pod to begin, if there is one that may.
func (f *flow) choose() (pod core.NextPod, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.next) == 0 || f.room <= 0 {
		return pod, false
	}
	pod, f.next = f.next[0], f.next[1:]
	f.room--
	f.waits = len(f.next) > 0
	if f.chosen == nil {
		f.chosen = map[types.UID]bool{}
	}
	f.chosen[pod.UID] = true
	return pod, true
}

// waiting says whether somebody is left to begin; while a decision is being made, whether somebody was.
func (f *flow) waiting() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waits
}

// taken says whether the Pod is one of those to be begun now.
func (f *flow) taken(pod types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.chosen[pod]
}

// drop says that a chosen Pod is not fit to be begun.
func (f *flow) drop(pod types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.chosen, pod)
}

// send sends the begin of a chosen Pod, which looks like after then, unless the order was withdrawn. One that fails may be sent again.
func (f *flow) send(pod *core.Pod, after podops.View, do func() error) error {
	uid := pod.UID()
	f.mu.Lock()
	if !f.chosen[uid] {
		f.mu.Unlock()
		return errAttempted
	}
	delete(f.chosen, uid)
	order := f.order
	if f.begun == nil {
		f.begun = map[types.UID]begun{}
	}
	f.begun[uid] = begun{pod.View.ResourceVersion, after}
	f.mu.Unlock()

	err := do()
	if err == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.begun, uid)
	if f.order == order {
		f.chosen[uid] = true
	}
	return err
}

// foresee lets Pods whose begin was sent and is not seen yet look as they will, and forgets those that are seen. It says whether
// there are any: a begin may yet fail, and no event tells of that.
func (f *flow) foresee(pods []core.Pod) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.begun) == 0 {
		return false
	}
	before := f.begun
	f.begun = nil
	for i := range pods {
		p := &pods[i]
		sent, ok := before[p.UID()]
		if !ok || sent.version != p.View.ResourceVersion {
			continue
		}
		p.View, p.Facts = sent.after, core.FactsOf(sent.after)
		if f.begun == nil {
			f.begun = map[types.UID]begun{}
		}
		f.begun[p.UID()] = sent
	}
	return len(f.begun) > 0
}
