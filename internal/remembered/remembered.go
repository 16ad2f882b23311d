// Package remembered keeps what a controller remembers of objects between two reconciles. All of it can be lost.
package remembered

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Map is what is remembered of objects by name. It may be used concurrently, but has no lock for what it holds: one
// worker at a time serves an object. The zero Map is empty.
type Map[V any] struct {
	mu  sync.Mutex
	all map[types.NamespacedName]*entry[V]
}

type entry[V any] struct {
	uid   types.UID
	value V
}

// Of is what is remembered of an object. It is zero if that is nothing yet, or of another UID under the same name.
func (m *Map[V]) Of(key types.NamespacedName, uid types.UID) *V {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.all[key]; e != nil && e.uid == uid {
		return &e.value
	}
	if m.all == nil {
		m.all = map[types.NamespacedName]*entry[V]{}
	}
	e := &entry[V]{uid: uid}
	m.all[key] = e
	return &e.value
}

// Find is what is remembered of an object, nil if that is nothing. An empty UID stands for any.
func (m *Map[V]) Find(key types.NamespacedName, uid types.UID) *V {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.all[key]; e != nil && (uid == "" || e.uid == uid) {
		return &e.value
	}
	return nil
}

// Forget forgets an object.
func (m *Map[V]) Forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, key)
}
