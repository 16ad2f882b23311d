package collaset

import (
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/internal/freshness"
)

// stateCache is what is kept between reconciles. All of it can be lost: it saves reads and writes, and measures delays
// from what this process observed. A CollaSet is reconciled by one worker at a time, so only the map needs the lock.
type stateCache struct {
	mu   sync.Mutex
	sets map[types.NamespacedName]*setState
}

// setState is what is kept of one CollaSet, each part for those that read it.
type setState struct {
	uid       types.UID
	revisions knownRevisions
	pods      knownPods
	strays    knownStrays
	claims    knownClaims
	// view is whether what the cache shows was compared with the API server: it may lack a Pod that was created.
	view freshness.Check[baseline]
	// creations is what became of the last creations.
	creations createBackoff
	// verdicts are answers of the API server to trials, and to the writes that they are about.
	verdicts verdicts
	// forms are those of Pods with decorations.
	forms  knownForms
	status statusWrites
	// rollout is what the last decision says of single Pods, nil for nothing.
	rollout atomic.Pointer[rollout]
	// decidedAt is when the last decision began, in nanoseconds since 1970.
	decidedAt atomic.Int64
}

func newMemory() *stateCache { return &stateCache{sets: map[types.NamespacedName]*setState{}} }

// of is the memory of a CollaSet; another UID under the same name starts afresh.
func (m *stateCache) of(key types.NamespacedName, uid types.UID) *setState {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sets[key]; s != nil && s.uid == uid {
		return s
	}
	s := &setState{uid: uid}
	m.sets[key] = s
	return s
}

// find is the memory of a CollaSet, nil if there is none.
func (m *stateCache) find(key types.NamespacedName, uid types.UID) *setState {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sets[key]; s != nil && s.uid == uid {
		return s
	}
	return nil
}

// dangles notes a Pod of an earlier CollaSet of the same name.
func (m *stateCache) dangles(set types.NamespacedName, pod string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sets[set]; s != nil {
		s.strays.identities.dangles(pod)
	}
}

func (m *stateCache) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sets, key)
}
