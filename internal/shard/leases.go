package shard

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// ComponentLabel is on every Lease of a shard.
const ComponentLabel = "kuperator.kusionstack.io/shards-of"

// LeaseName is the name of a shard's Lease. It does not tell the number of shards, because rights are given by name.
func LeaseName(component string, shard int) string {
	return fmt.Sprintf("%s-shard-%d", component, shard)
}

// Identity is who all replicas of one number of shards are, as holders of the component's own Lease.
func Identity(shards int) string { return fmt.Sprintf("%d-shards", shards) }

// leaseView is what a process has seen of Leases. A Lease has run out when it has not changed for its duration by this
// process's clock, as client-go has it: clocks of others do not matter.
type leaseView struct {
	clock clock.Clock
	// common is the Lease that members announce themselves on; "" if none is.
	common string

	mu     sync.Mutex
	leases map[string]observedLease
	// members are what replicas wrote of themselves on the component's own Lease, by key.
	members map[string]announcement
	// changed is closed, and another put in its place, when there is news.
	changed chan struct{}
}

// observedLease is what a Lease said when it was last seen, and when it came to say so.
type observedLease struct {
	record resourcelock.LeaderElectionRecord
	at     time.Time
}

func (s observedLease) ends() time.Time {
	return s.at.Add(time.Duration(s.record.LeaseDurationSeconds) * time.Second)
}

func newLeaseView(clk clock.Clock, common string) *leaseView {
	return &leaseView{clock: clk, common: common, leases: map[string]observedLease{}, members: map[string]announcement{},
		changed: make(chan struct{})}
}

// watch keeps the view up to date until ctx ends, and returns when every Lease was looked for, or stop is closed. It
// asks for each by its name, as rights are given, and calls news whenever something changed.
func (b *leaseView) watch(
	ctx context.Context, stop <-chan struct{}, client toolscache.Getter, namespace string, names []string, news func(),
) error {
	known := make([]toolscache.InformerSynced, 0, len(names))
	for _, name := range names {
		one := toolscache.NewListWatchFromClient(client, "leases", namespace,
			fields.OneTermEqualSelector(metav1.ObjectNameField, name))
		informer := toolscache.NewSharedInformer(one, &coordinationv1.Lease{}, 0)
		if _, err := informer.AddEventHandler(b.events(name, news)); err != nil {
			return fmt.Errorf("watching the Lease %s: %w", name, err)
		}
		go informer.RunWithContext(ctx)
		known = append(known, informer.HasSynced)
	}
	toolscache.WaitForCacheSync(stop, known...)
	return nil
}

func (b *leaseView) events(name string, news func()) toolscache.ResourceEventHandler {
	saw := func(o any) {
		if lease, ok := o.(*coordinationv1.Lease); ok && lease.Name == name {
			b.saw(lease)
			news()
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    saw,
		UpdateFunc: func(_, after any) { saw(after) },
		DeleteFunc: func(any) { b.forget(name); news() },
	}
}

// saw takes in a Lease. One that says what it said before has not been renewed.
func (b *leaseView) saw(lease *coordinationv1.Lease) {
	record := *resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	if seen, ok := b.leases[lease.Name]; !ok || !same(seen.record, record) {
		b.leases[lease.Name] = observedLease{record: record, at: now}
	}
	if lease.Name == b.common {
		b.hear(lease, now)
	}
	b.tell()
}

func (b *leaseView) forget(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.leases, name)
	if name == b.common {
		clear(b.members)
	}
	b.tell()
}

// tell wakes those that wait for news. The caller holds b.mu.
func (b *leaseView) tell() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// look is what was last seen of a Lease, and the channel that is closed at the next news of any.
func (b *leaseView) look(name string) (seen observedLease, ok bool, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen, ok = b.leases[name]
	return seen, ok, b.changed
}

// holder is the identity that holds a Lease, "" for none.
func (b *leaseView) holder(name string) string {
	if s, ok, _ := b.look(name); ok && b.clock.Now().Before(s.ends()) {
		return s.record.HolderIdentity
	}
	return ""
}

// read reads a Lease that has run out by the watch: the watch may be late, or silent.
func (b *leaseView) read(name string, record *resourcelock.LeaderElectionRecord) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if seen, ok := b.leases[name]; ok && !same(seen.record, *record) && !b.clock.Now().Before(seen.ends()) {
		b.leases[name] = observedLease{record: *record, at: b.clock.Now()}
	}
}

// hasRunOut reports whether a Lease that says this has said so for longer than its duration.
func (b *leaseView) hasRunOut(name string, record *resourcelock.LeaderElectionRecord) bool {
	s, ok, _ := b.look(name)
	return ok && same(s.record, *record) && !b.clock.Now().Before(s.ends())
}

// lookAgain is after how long a waiting candidate reads a Lease again whose record and what was seen of it differ.
const lookAgain = time.Second

// await waits while a Lease is held by whom the record, which was just read, names: until it is given back, deleted,
// taken by another, or has run out. It is false if ctx ended, or nothing was seen of the Lease.
func (b *leaseView) await(ctx context.Context, name string, record *resourcelock.LeaderElectionRecord) bool {
	known := false
	for first := true; ; first = false {
		seen, ok, changed := b.look(name)
		wait := lookAgain // what was read and what is seen will soon be one
		switch {
		case ok && seen.record.HolderIdentity == record.HolderIdentity:
			if wait = seen.ends().Sub(b.clock.Now()); wait <= 0 {
				return true
			}
		case !first:
			return ok || known
		}
		known = known || ok
		timer := b.clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-changed:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// next is how long it takes until another Lease runs out or a member is silent for too long, at most most.
func (b *leaseView) next(most time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	soonest := func(ends time.Time) {
		if left := ends.Sub(now); left > 0 {
			most = min(most, left+time.Millisecond)
		}
	}
	for _, s := range b.leases {
		if s.record.HolderIdentity != "" {
			soonest(s.ends())
		}
	}
	for _, m := range b.members {
		soonest(m.ends())
	}
	return most
}

func same(a, b resourcelock.LeaderElectionRecord) bool {
	return a.HolderIdentity == b.HolderIdentity && a.LeaseDurationSeconds == b.LeaseDurationSeconds &&
		a.LeaderTransitions == b.LeaderTransitions && a.RenewTime.Equal(&b.RenewTime) && a.AcquireTime.Equal(&b.AcquireTime)
}
