package podcache

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// memoTime is how long a Memo remembers after it was last asked: through all of an operation on Pods, and not much
// longer, because it takes about as much memory as the cache itself.
const memoTime = 10 * time.Second

// Memo remembers what was read of Pods, so that each is read again only when it has changed: to decode those that are
// kept small is most of what it costs to look at them. It forgets all when it was not asked for memoTime. The zero
// Memo remembers nothing. It must not be copied.
type Memo[T any] struct {
	mu     sync.Mutex
	known  map[any]*memory[T] // by the object that a cache keeps
	round  int                // the number of the last Read
	last   int                // how many Pods that was of
	expiry clock.Timer
}

type memory[T any] struct {
	value T
	round int // when it was asked for last
}

// Read returns what there is to know of the Pods, in their order. read is called for those that have changed since
// the last time, with a Pod that is good until it returns: only what that points to may be kept.
func (m *Memo[T]) Read(pods Pods, read func(*corev1.Pod) T) []T {
	all, _ := m.ReadChanges(pods, read, func(T) {})
	return all
}

// ReadChanges is Read, and calls past for what the last Read knew of Pods that have changed since, or are not among
// them any more. It also reports whether that Read is remembered.
func (m *Memo[T]) ReadChanges(pods Pods, read func(*corev1.Pod) T, past func(T)) (all []T, remembered bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.expiry == nil {
		m.expiry = clock.RealClock{}.AfterFunc(memoTime, m.Forget)
	}
	m.expiry.Reset(memoTime)
	if remembered = m.known != nil; !remembered {
		m.known = make(map[any]*memory[T], pods.Len())
	}
	m.round++
	all = make([]T, pods.Len())
	var whole corev1.Pod
	same := 0
	for i, kept := range pods.kept {
		r := m.known[kept]
		if r == nil {
			r = &memory[T]{value: read(pods.look(i, &whole))}
			m.known[kept] = r
		} else if r.round == m.round-1 {
			same++
		}
		all[i], r.round = r.value, m.round
	}
	if same < m.last {
		for _, r := range m.known {
			if r.round == m.round-1 {
				past(r.value)
			}
		}
	}
	m.last = len(all)
	if len(m.known) > len(all)+len(all)/8 { // a few of the past may stay for company
		maps.DeleteFunc(m.known, func(_ any, r *memory[T]) bool { return r.round < m.round })
	}
	return all, remembered
}

// Forget gives the memory back.
func (m *Memo[T]) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known, m.last = nil, 0
}
