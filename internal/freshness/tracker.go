// Package freshness answers one question for a reconciler that reads from a cache: may I decide on this cache? Deciding
// on a cache that lacks one's own writes counts a Pod that was just taken out of service as still serving, or creates a
// replica twice. A reconciler asks
//
//   - Tracker.Unobserved, before it reads anything: the cache may catch up in between. It records each write, and calls
//     Forget for an owner that is gone;
//   - Check.Pass, with what it has read, if it does anything that no precondition of a write protects: what was written
//     by the leader before, or in a write whose answer was lost, is known to no Tracker;
//   - Tracker.Conflicts, when to look again after a conflict.
//
// A Tracker remembers, for each owner, the writes that the cache may not show yet, each with the resourceVersion that
// the API server answered. A write counts as seen when
//
//   - the cache's store has reached that resourceVersion, whatever happened to the object since (KEP-5647), or
//   - the cache holds the object at that resourceVersion or a later one, or
//   - a deletion was written, the cache has come as far as the object that was deleted, and that object is gone, is
//     marked for deletion or has another UID, or
//   - the last finalizer of an object on its way out was taken, the cache has come as far as the answer, and that
//     object is gone or has another UID: such an answer has the resourceVersion from before, for there is no later one
//     of the object, or
//   - an update or a deletion was written and a cache that cannot say how far it has got does not hold the object: it
//     was deleted or left the cache's selector since, or
//   - it is older than GiveUpAfter: for example an object created and deleted while the watch was broken, in a cache
//     that cannot say how far it has got. By then every watch has been renewed.
//
// Nothing here panics and nothing blocks; a resourceVersion that cannot be compared counts as seen. Record only writes
// of kinds that the cache watches, in their Go types (a Pod may come in any), and record them as soon as the API server
// has answered. A write whose answer was lost is not recorded; the caller's preconditions and deterministic names keep
// that safe.
package freshness

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// GiveUpAfter is the age at which a write counts as seen although nothing shows it.
const GiveUpAfter = 5 * time.Minute

// Bounds of the wait that Unobserved answers. In between it is the age of the oldest write that was not seen, so that
// asking again backs off by itself.
const (
	shortestWait = 20 * time.Millisecond
	longestWait  = time.Second
)

// Tracker remembers own writes by owner. Make one with New; it is safe for concurrent use. Its memory is bounded by
// the writes that the cache has not shown yet, and the owners whose last look met a conflict.
type Tracker struct {
	// Conflicts are those that an owner met in a row.
	Conflicts Conflicts

	cached client.Reader
	clock  clock.PassiveClock

	mu     sync.Mutex
	owners map[types.NamespacedName]map[target]write
	// waiting holds since when an owner is put off because of a write that the cache does not show.
	waiting map[types.NamespacedName]time.Time
}

// New makes a Tracker for what cached shows: a manager's cache (mgr.GetCache(), best: it can say how far it has got),
// its client, or a fake client in a test.
func New(cached client.Reader, clk clock.PassiveClock) *Tracker {
	t := &Tracker{
		cached: cached, clock: clk,
		owners:  map[types.NamespacedName]map[target]write{},
		waiting: map[types.NamespacedName]time.Time{},
	}
	trackers.add(t)
	return t
}

// Created records that obj, as the API server returned it, was created for owner.
func (t *Tracker) Created(owner types.NamespacedName, obj client.Object) {
	t.record(owner, obj, write{rv: obj.GetResourceVersion(), created: true})
}

// Wrote records that obj, as the API server returned it, was updated or patched (status too) for owner.
func (t *Tracker) Wrote(owner types.NamespacedName, obj client.Object) {
	t.record(owner, obj, write{rv: obj.GetResourceVersion(), ended: ended(obj)})
}

// Deleted records that the API server accepted the deletion (or eviction) of obj, done for owner. obj is the object as
// it was before; its name, namespace, UID and resourceVersion are read.
func (t *Tracker) Deleted(owner types.NamespacedName, obj client.Object) {
	t.record(owner, obj, write{rv: obj.GetResourceVersion(), deleted: true})
}

// Forget drops what is recorded for owner, conflicts too, for example because the owner is gone.
func (t *Tracker) Forget(owner types.NamespacedName) {
	t.Conflicts.None(owner)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.owners, owner)
	delete(t.waiting, owner)
}

// Unobserved is zero when the cache shows every recorded write of owner, and of an owner without any. Otherwise it is
// how long to wait before asking again (20 ms to 1 s, growing with the age of the write) if no event comes first. The
// error is the cache's own, such as a cache that is not started.
func (t *Tracker) Unobserved(ctx context.Context, owner types.NamespacedName) (time.Duration, error) {
	t.mu.Lock()
	all := maps.Clone(t.owners[owner])
	t.mu.Unlock()

	now := t.clock.Now()
	var wait time.Duration
	for which, last := range all {
		seen, err := t.seen(ctx, which, last, now)
		if err != nil {
			return 0, fmt.Errorf("looking for the own write of %s %s in the cache: %w", which.goType, which.key, err)
		}
		if seen {
			t.settle(owner, which, last)
			continue
		}
		wait = max(wait, min(max(now.Sub(last.at), shortestWait), longestWait))
	}
	t.measure(owner, now, wait)
	return wait, nil
}

func (t *Tracker) record(owner types.NamespacedName, obj client.Object, w write) {
	w.uid, w.at = obj.GetUID(), t.clock.Now()

	t.mu.Lock()
	defer t.mu.Unlock()
	which := targetOf(obj)
	of := t.owners[owner]
	if of == nil {
		of = map[target]write{}
		t.owners[owner] = of
	}
	if last, known := of[which]; known && last.uid == w.uid {
		w = last.followedBy(w)
	}
	of[which] = w
}

// settle drops a write that was seen, unless a later one of the same object was recorded meanwhile.
func (t *Tracker) settle(owner types.NamespacedName, which target, seen write) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.owners[owner]
	if of[which] != seen {
		return
	}
	delete(of, which)
	if len(of) == 0 {
		delete(t.owners, owner)
	}
}
