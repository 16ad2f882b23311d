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
func (v *leaseView) watch(
	ctx context.Context, stop <-chan struct{}, client toolscache.Getter, namespace string, names []string, news func(),
) error {
	known := make([]toolscache.InformerSynced, 0, len(names))
	for _, name := range names {
		one := toolscache.NewListWatchFromClient(client, "leases", namespace,
			fields.OneTermEqualSelector(metav1.ObjectNameField, name))
		informer := toolscache.NewSharedInformer(one, &coordinationv1.Lease{}, 0)
		if _, err := informer.AddEventHandler(v.events(name, news)); err != nil {
			return fmt.Errorf("watching the Lease %s: %w", name, err)
		}
		go informer.RunWithContext(ctx)
		known = append(known, informer.HasSynced)
	}
	toolscache.WaitForCacheSync(stop, known...)
	return nil
}

func (v *leaseView) events(name string, news func()) toolscache.ResourceEventHandler {
	seen := func(o any) {
		if lease, ok := o.(*coordinationv1.Lease); ok && lease.Name == name {
			v.observe(lease)
			news()
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, after any) { seen(after) },
		DeleteFunc: func(any) { v.forget(name); news() },
	}
}

// observe takes in a Lease. One that says what it said before has not been renewed.
func (v *leaseView) observe(lease *coordinationv1.Lease) {
	record := *resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.clock.Now()
	if seen, ok := v.leases[lease.Name]; !ok || !same(seen.record, record) {
		v.leases[lease.Name] = observedLease{record: record, at: now}
	}
	if lease.Name == v.common {
		v.observeMembers(lease, now)
	}
	v.broadcast()
}

func (v *leaseView) forget(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.leases, name)
	if name == v.common {
		clear(v.members)
	}
	v.broadcast()
}

// broadcast wakes those that wait for news. The caller holds v.mu.
func (v *leaseView) broadcast() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// last is what was last seen of a Lease, and the channel that is closed at the next news of any.
func (v *leaseView) last(name string) (seen observedLease, ok bool, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	seen, ok = v.leases[name]
	return seen, ok, v.changed
}

// holder is the identity that holds a Lease, "" for none.
func (v *leaseView) holder(name string) string {
	if s, ok, _ := v.last(name); ok && v.clock.Now().Before(s.ends()) {
		return s.record.HolderIdentity
	}
	return ""
}

// observeRead takes in a Lease that was read, if by the watch it has run out: the watch may be late, or silent.
func (v *leaseView) observeRead(name string, record *resourcelock.LeaderElectionRecord) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if seen, ok := v.leases[name]; ok && !same(seen.record, *record) && !v.clock.Now().Before(seen.ends()) {
		v.leases[name] = observedLease{record: *record, at: v.clock.Now()}
	}
}

// hasRunOut reports whether a Lease that says this has said so for longer than its duration.
func (v *leaseView) hasRunOut(name string, record *resourcelock.LeaderElectionRecord) bool {
	s, ok, _ := v.last(name)
	return ok && same(s.record, *record) && !v.clock.Now().Before(s.ends())
}

// lookAgain is after how long a waiting candidate reads a Lease again whose record and what was seen of it differ.
const lookAgain = time.Second

// await waits while a Lease is held by whom the record, which was just read, names: until it is given back, deleted,
// taken by another, or has run out. It is false if ctx ended, or nothing was seen of the Lease.
func (v *leaseView) await(ctx context.Context, name string, record *resourcelock.LeaderElectionRecord) bool {
	known := false
	for first := true; ; first = false {
		seen, ok, changed := v.last(name)
		wait := lookAgain // what was read and what is seen will soon be one
		switch {
		case ok && seen.record.HolderIdentity == record.HolderIdentity:
			if wait = seen.ends().Sub(v.clock.Now()); wait <= 0 {
				return true
			}
		case !first:
			return ok || known
		}
		known = known || ok
		timer := v.clock.NewTimer(wait)
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
func (v *leaseView) next(most time.Duration) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.clock.Now()
	soonest := func(ends time.Time) {
		if left := ends.Sub(now); left > 0 {
			most = min(most, left+time.Millisecond)
		}
	}
	for _, s := range v.leases {
		if s.record.HolderIdentity != "" {
			soonest(s.ends())
		}
	}
	for _, m := range v.members {
		soonest(m.ends())
	}
	return most
}

func same(a, b resourcelock.LeaderElectionRecord) bool {
	return a.HolderIdentity == b.HolderIdentity && a.LeaseDurationSeconds == b.LeaseDurationSeconds &&
		a.LeaderTransitions == b.LeaderTransitions && a.RenewTime.Equal(&b.RenewTime) && a.AcquireTime.Equal(&b.AcquireTime)
}
