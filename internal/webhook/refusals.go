package webhook

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
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

// refusals remembers which Pod a user was refused to evict of late. An Eviction names no UID, and kubectl drain repeats
// it without looking: once the Pod is gone and another has its name (a StatefulSet's, for example), the repetition would
// take that one out of service as well. It is a memory of one process; the API server as a rule asks the same process
// again.
type refusals struct {
	uids *cache.LRUExpireCache // by evictor
}

func newRefusals(clk clock.PassiveClock) refusals {
	return refusals{cache.NewLRUExpireCacheWithClock(mostEvictions, clk)}
}

// remember records that e was refused to evict the Pod with this UID.
func (r refusals) remember(e evictor, uid types.UID) { r.uids.Add(e, uid, evictionMemory) }

// refused reports whether e was refused to evict this very Pod.
func (r refusals) refused(e evictor, uid types.UID) bool {
	known, isKnown := r.uids.Get(e)
	return isKnown && known == uid
}

// replaced reports whether e was refused to evict another Pod of the same name, and forgets it: a user who asks again
// means the Pod that is there.
func (r refusals) replaced(e evictor, uid types.UID) bool {
	known, isKnown := r.uids.Get(e)
	if !isKnown || known == uid {
		return false
	}
	r.uids.Remove(e)
	return true
}
