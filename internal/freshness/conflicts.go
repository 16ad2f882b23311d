package freshness

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = time.Second
)

// Conflicts says when to look again after a write was refused because the object is newer than the cache shows.
// Usually the cache has caught up in a moment. While a watch lags, looking again as soon every time would refuse the
// same write some thirty times a second, for each object, at the expense of the API server that is already late.
//
// The zero value is ready for use, and safe for concurrent use. It remembers those whose last look met a conflict.
type Conflicts struct {
	mu    sync.Mutex
	inRow map[types.NamespacedName]int
}

// Met notes a conflict and says how long to wait: 20 to 50 ms after the first, twice as long after each further one
// in a row, and 2.5 s at most.
func (c *Conflicts) Met(owner types.NamespacedName) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inRow == nil {
		c.inRow = map[types.NamespacedName]int{}
	}
	wait := min(firstRetry<<min(c.inRow[owner], 20), lastRetry)
	c.inRow[owner]++
	return wait + rand.N(wait*3/2) //nolint:gosec // jitter, no secret
}

// None notes that a look met no conflict, or that the owner is gone.
func (c *Conflicts) None(owner types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.inRow, owner)
}

// Refused notes a conflict about a Pod, its own owner, and returns how long to wait, as Conflicts.Met does. Until the
// cache has come as far as the Pod is now, it is unobserved, as if that were an own write: without it a controller whose
// watch is seconds behind sends the same write again and again. A Pod that cannot be read, or is gone, records nothing.
func (t *Tracker) Refused(ctx context.Context, live client.Reader, pod types.NamespacedName) time.Duration {
	now := PodTarget(pod.Namespace, pod.Name)
	if err := live.Get(ctx, pod, now); err == nil {
		t.Wrote(pod, now)
	}
	return t.Conflicts.Met(pod)
}
