package webhook

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// evictionMemory is for how long a refused eviction is remembered after it was last tried.
	evictionMemory = 5 * time.Minute
	// mostEvictions bounds the memory.
	mostEvictions = 10000
)

// evictor is a user who evicts a Pod by its name.
type evictor struct {
	user string
	pod  types.NamespacedName
}

type refusal struct {
	uid  types.UID
	last time.Time
}

// refusals remembers which Pod a user was refused to evict. An Eviction names no UID, and kubectl drain repeats it
// without looking: once the Pod is gone and another has its name (a StatefulSet's, for example), the repetition would
// take that one out of service as well. It is a memory of one process; the API server as a rule asks the same process
// again.
type refusals struct {
	mu  sync.Mutex
	all map[evictor]refusal
}

// remember records that e was refused to evict the Pod with this UID.
func (r *refusals) remember(e evictor, uid types.UID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[evictor]refusal{}
	}
	if len(r.all) >= mostEvictions {
		for key, known := range r.all {
			if now.Sub(known.last) > evictionMemory {
				delete(r.all, key)
			}
		}
	}
	if _, known := r.all[e]; known || len(r.all) < mostEvictions {
		r.all[e] = refusal{uid: uid, last: now}
	}
}

// refused reports whether e was refused to evict this very Pod.
func (r *refusals) refused(e evictor, uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[e].uid == uid && uid != ""
}

// replaced reports whether e has of late been refused to evict another Pod of the same name, and forgets it: a user who
// asks again means the Pod that is there.
func (r *refusals) replaced(e evictor, uid types.UID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.all[e]
	if !ok || known.uid == uid {
		return false
	}
	delete(r.all, e)
	return now.Sub(known.last) <= evictionMemory
}
