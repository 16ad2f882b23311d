// Package shard lets several replicas of a component act at a time, each in other namespaces
// (docs/design/0012-shards.md): which shard a namespace belongs to and who should hold which is in package placement,
// that one replica alone acts on a shard is the Leases' doing, and a View shows a shard's namespaces to controllers
// that know nothing of all this.
//
// Invariants:
//
//   - A shard runs only while its Lease and the component's own are held by this process, by its own clock; a
//     LeaseFence keeps writes back as soon as that is not so.
//   - A Lease is given back only after everything that ran for the shard has ended.
//   - A Lease that is lost, rather than given up, ends the process.
package shard

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"

	"kusionstack.io/kuperator/internal/shard/placement"
)

// Options say what to run and how long Leases last. All of them are needed.
type Options struct {
	// Component is the name of the component and of the Lease that its replicas hold together.
	Component string
	// Shards is their number.
	Shards int
	// Namespace is that of the Leases.
	Namespace string
	// Identity tells this replica from all others, earlier ones of the same name too.
	Identity string
	// Client is for Leases only. Its requests should end before RenewDeadline. Watcher watches them, for as long as it
	// likes.
	Client, Watcher coordinationclient.CoordinationV1Interface
	// LeaseDuration, RenewDeadline and RetryPeriod are as in client-go's leaderelection; the last two together are less
	// than the first.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Ready is closed when the caches are filled: only then does this replica ask for shards.
	Ready <-chan struct{}
	// Run acts for a shard until ctx ends, and returns when everything that it began has ended: nil lets another replica
	// have the shard. An error ends the Coordinator, and the shard's Lease is left to run out. Every client that writes
	// has to be wrapped in fence.
	Run    func(ctx context.Context, shard int, fence *LeaseFence) error
	Logger logr.Logger
	Clock  clock.Clock
}

// Coordinator takes, runs and gives up shards. Start may be called once.
type Coordinator struct {
	Options
	view *leaseView
	// wake has room for one: that something has changed.
	wake chan struct{}
	// failed has room for one: why the Coordinator ends.
	failed chan error
	// gate is our term of the component's own Lease.
	gate *leaseTerm
	// own makes renewals of that Lease announce this replica.
	own *announcer
	// wiping is true while announcements of members that are gone are being taken back.
	wiping atomic.Bool

	mu     sync.Mutex
	shards []shardState
}

// shardState is what goes on here for one shard.
type shardState struct {
	stage placement.Stage
	// stop ends the shard's run, or the wait for its Lease.
	stop context.CancelFunc
}

// New makes a Coordinator.
func New(o Options) *Coordinator {
	c := &Coordinator{
		Options: o, view: newLeaseView(o.Clock, o.Component), wake: make(chan struct{}, 1), failed: make(chan error, 1),
		shards: make([]shardState, o.Shards),
	}
	c.gate = c.newLeaseTerm()
	c.own = &announcer{
		LeasesGetter: o.Client, view: c.view,
		identity: o.Identity, shared: Identity(o.Shards), key: memberKey(o.Shards, o.Identity),
	}
	return c
}

// NeedLeaderElection is always false: every replica has one.
func (c *Coordinator) NeedLeaderElection() bool { return false }

// Start holds what should be held here until ctx ends, then gives it all up. It returns an error when a Lease was
// lost or a shard failed: the process has to end then.
func (c *Coordinator) Start(ctx context.Context) error {
	select {
	case <-c.Ready:
	case <-ctx.Done():
		return nil
	}
	lasting, end := context.WithCancel(context.WithoutCancel(ctx)) // shards are given up in order before this ends
	defer end()
	names := []string{c.Component}
	for shard := range c.Shards {
		names = append(names, LeaseName(c.Component, shard))
	}
	if err := c.view.watch(lasting, ctx.Done(), c.Watcher.RESTClient(), c.Namespace, names, c.wakeUp); err != nil ||
		ctx.Err() != nil {
		return err
	}
	c.Logger.Info("waiting for shards", "shards", c.Shards, "identity", c.Identity)
	var running sync.WaitGroup
	go c.elect(lasting, c.newLock(c.own, c.Component, Identity(c.Shards), c.gate, nil), false, c.wakeUp)
	for {
		c.begin(lasting, &running)
		c.removeStaleMembers(lasting, &running)
		timer := c.Clock.NewTimer(c.view.next(c.RetryPeriod))
		select {
		case <-ctx.Done():
			timer.Stop()
			running.Go(func() { c.leave(lasting) })
			c.giveUpAll()
			running.Wait()
			return c.failure()
		case err := <-c.failed: // the process ends at once: nothing is waited for
			timer.Stop()
			c.giveUpAll()
			return err
		case <-c.wake:
		case <-timer.C():
		}
		timer.Stop()
	}
}

func (c *Coordinator) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Coordinator) fail(err error) {
	select {
	case c.failed <- err:
	default:
	}
}

func (c *Coordinator) failure() error {
	select {
	case err := <-c.failed:
		return err
	default:
		return nil
	}
}

// begin does what is due now.
func (c *Coordinator) begin(ctx context.Context, running *sync.WaitGroup) {
	c.mu.Lock()
	defer c.mu.Unlock()
	plan := placement.Decide(c.snapshot())
	for _, shard := range plan.GiveUp {
		c.giveUp(shard)
	}
	if !c.gate.running() {
		return
	}
	for _, shard := range plan.Take {
		taking, stop := context.WithCancel(ctx)
		c.shards[shard] = shardState{stage: placement.Taking, stop: stop}
		running.Go(func() {
			defer stop()
			if err := c.serve(ctx, taking, shard); err != nil {
				c.fail(err)
			}
			c.enter(shard, placement.Idle)
		})
	}
}

// removeStaleMembers begins to take back what members announced that are gone.
func (c *Coordinator) removeStaleMembers(ctx context.Context, running *sync.WaitGroup) {
	gone := c.view.silent()
	if len(gone) == 0 || !c.gate.running() || !c.wiping.CompareAndSwap(false, true) {
		return
	}
	running.Go(func() {
		defer c.wiping.Store(false)
		ctx, cancel := context.WithTimeout(ctx, c.RenewDeadline)
		defer cancel()
		c.own.removeStale(ctx, c.Namespace, c.Component, gone)
	})
}

func (c *Coordinator) snapshot() placement.Snapshot {
	s := placement.Snapshot{
		Me: c.Identity, Members: c.view.membersOf(c.Shards),
		Holders: make([]string, c.Shards), Stages: make([]placement.Stage, c.Shards),
	}
	for shard := range c.shards {
		s.Holders[shard] = c.view.holder(LeaseName(c.Component, shard))
		s.Stages[shard] = c.shards[shard].stage
	}
	return s
}

// giveUp has a shard's run end. The caller holds c.mu.
func (c *Coordinator) giveUp(shard int) {
	if h := &c.shards[shard]; h.stop != nil && h.stage != placement.Leaving {
		if h.stage == placement.Held {
			c.Logger.Info("giving up a shard", "shard", shard)
			moves.WithLabelValues(gaveUp).Inc()
		}
		h.stage = placement.Leaving
		h.stop()
	}
}

func (c *Coordinator) giveUpAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for shard := range c.shards {
		c.giveUp(shard)
	}
}

// enter notes what goes on for a shard now. What is being given up is not taken back.
func (c *Coordinator) enter(shard int, stage placement.Stage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := &c.shards[shard]; stage == placement.Idle || h.stage != placement.Leaving {
		h.stage = stage
	}
	c.wakeUp()
}

// leave has others not count on this replica any more. What fails is put right when it has been silent for long enough.
func (c *Coordinator) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.RenewDeadline)
	defer cancel()
	if err := c.own.leave(ctx, c.Namespace, c.Component); err != nil {
		c.Logger.V(1).Info("others were not told that this replica leaves", "error", err.Error())
	}
}

// serve takes a shard's Lease, runs the shard until taking ends, and gives the Lease back. Ctx lasts longer than
// taking.
func (c *Coordinator) serve(ctx, taking context.Context, shard int) error {
	own := c.newLeaseTerm()
	electing, end := context.WithCancel(ctx)
	defer end()
	lease := c.newLock(c.Client, LeaseName(c.Component, shard), c.Identity, own, c.labels())
	acquired, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		c.elect(electing, lease, true, func() { close(acquired) })
	}()
	select {
	case <-acquired:
	case <-over:
		return nil
	case <-taking.Done(): // another member holds it, or should
		end()
		<-over
		return nil
	}
	lease.inUse.Store(true)
	c.enter(shard, placement.Held)
	c.Logger.Info("holding a shard", "shard", shard)
	moves.WithLabelValues(gained).Inc()
	if err := c.Run(taking, shard, &LeaseFence{terms: []*leaseTerm{own, c.gate}}); err != nil {
		return fmt.Errorf("running shard %d: %w", shard, err)
	}
	if taking.Err() == nil {
		return fmt.Errorf("shard %d ended by itself", shard)
	}
	own.end()
	lease.inUse.Store(false)
	end()
	<-over
	return nil
}

// elect holds a Lease until ctx ends; release says to give it back then. A Lease that is lost is a failure of the
// Coordinator.
func (c *Coordinator) elect(ctx context.Context, l *lock, release bool, acquired func()) {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l, LeaseDuration: c.LeaseDuration, RenewDeadline: c.RenewDeadline, RetryPeriod: c.RetryPeriod,
		ReleaseOnCancel: release, Name: l.name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { acquired() },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		c.fail(fmt.Errorf("preparing the election for Lease %s: %w", l.name, err))
		return
	}
	elector.Run(logr.NewContext(ctx, c.Logger.WithName("leaderelection")))
	if ctx.Err() == nil {
		l.lease.end()
		moves.WithLabelValues(lost).Inc()
		c.fail(fmt.Errorf("lost the Lease %s", l.name))
	}
}

func (c *Coordinator) labels() map[string]string {
	return map[string]string{ComponentLabel: c.Component, "app.kubernetes.io/part-of": "kuperator"}
}

func (c *Coordinator) newLeaseTerm() *leaseTerm {
	return newLeaseTerm(c.Clock, c.RetryPeriod, c.RenewDeadline)
}

// newLock is a Lease for an election.
func (c *Coordinator) newLock(
	client coordinationclient.LeasesGetter, name, identity string, own *leaseTerm, labels map[string]string,
) *lock {
	return &lock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name}, Client: client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity}, Labels: labels,
		},
		name: name, view: c.view, shared: name == c.Component, patient: name == c.Component, lease: own,
	}
}
