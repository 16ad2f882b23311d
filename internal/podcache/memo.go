package podcache

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// memoTime is how long a Memo remembers after it was last asked: through all of an operation on Pods, and not much longer, because it
// takes about as much memory as the cache itself.
const memoTime = 10 * time.Second

// Memo remembers what was read of Pods, so that each is read again only when it has changed: to decode those that are kept small is most of
// what it costs to look at them. It forgets all when it was not asked for memoTime. The zero Memo remembers nothing. It must not be copied.
type Memo[T any] struct {
	mu     sync.Mutex
	known  map[any]*remembered[T] // by the object that a cache keeps
	round  int                    // the number of the last Read
	expiry clock.Timer
}

type remembered[T any] struct {
	value T
	round int // when it was asked for last
}

// Read returns what there is to know of the Pods, in their order. read is called for those that have changed since the last time, with a Pod that is
// good until it returns: only what that points to may be kept.
func (m *Memo[T]) Read(pods Pods, read func(*corev1.Pod) T) []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.expiry == nil {
		m.expiry = clock.RealClock{}.AfterFunc(memoTime, m.Forget)
	}
	m.expiry.Reset(memoTime)
	if m.known == nil {
		m.known = make(map[any]*remembered[T], pods.Len())
	}
	m.round++
	all := make([]T, pods.Len())
	var whole corev1.Pod
	for i, kept := range pods.kept {
		r := m.known[kept]
		if r == nil {
			r = &remembered[T]{value: read(pods.look(i, &whole))}
			m.known[kept] = r
		}
		all[i], r.round = r.value, m.round
	}
	if len(m.known) > len(all)+len(all)/8 { // a few of the past may stay for company
		maps.DeleteFunc(m.known, func(_ any, r *remembered[T]) bool { return r.round < m.round })
	}
	return all
}

// Forget gives the memory back.
func (m *Memo[T]) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = nil
}
