// Package bulk makes per-Pod adapters of providers whose API answers for, and changes, many members in one call.
//
// One group per employer holds what its employees want, what the provider was last seen to hold, and what is due. It is
// pure (group.go, with what it knows in employees.go and members.go, what it says in answers.go, and what is due in
// calls.go, readings.go and changes.go): it says which call is due next, and takes in what was answered. The Engine
// around it makes the calls, one at a time for each employer, a few employers at a time, all within one token bucket,
// each with a timeout.
//
// No employer holds up others. A call that takes longer than slowCall gives its place to the next employer, and its
// employer's calls have places of their own until one is quick; an employer whose calls fail gets tokens that no other
// wants.
//
// Words: an employee has members, each an entry of the backend with an ID. What a member should be is desired. A member
// is confirmed when a reading that began after its last change shows it so. An unclaimed member is one that no employee
// claims.
//
// Invariants:
//
//   - What is not known is never said to be without traffic: not before the first reading, not while a change is under
//     way, not after one until a later reading has shown its effect, not by a reading from before the employee set out.
//   - One group never has two calls under way, so a reading never overlaps a change.
//   - A member is changed only for the employee that it belongs to; unclaimed only after every employee was looked at.
//   - At rest no call is made but one reading every Resync.
package bulk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/failures"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
)

// Engine makes the calls of one adapter. Its methods may be called from many goroutines; they do no input or output.
type Engine struct {
	adapter adapter
	options api.CallOptions
	clock   clock.WithTicker
	limiter *rate.Limiter
	queue   workqueue.TypedDelayingInterface[types.NamespacedName]
	// slow are employers whose last call was slow and whose next one is due.
	slow workqueue.TypedInterface[types.NamespacedName]
	// err is what is wrong with the options.
	err error

	// changed takes in a Pod of which there is news.
	changed func(pod types.NamespacedName)
	report  backend.Report
	// podQueue is where the Pods are enqueued; nil until it starts.
	podQueue atomic.Pointer[backend.Queue]
	// pods and kind are those of the manager; nil until there is one.
	pods client.Reader
	kind string

	mu    sync.Mutex
	slots map[types.NamespacedName]*slot
	// employersOf holds the employers that have looked at a Pod.
	employersOf map[types.NamespacedName]map[types.NamespacedName]struct{}
}

// slot is one employer with its group.
type slot struct {
	mu       sync.Mutex
	employer client.Object
	group    *group
	// places are those that the newest employer names, separated by commas.
	places string
	// ended is true if the employer has left the cache.
	ended bool
	// token is true if the next call has its place in the token bucket, from tokenAt on.
	token   bool
	tokenAt time.Time
	// slow is true if its last call was a slow one, or the one under way is.
	slow bool
	// toldReason and toldMessage are what was last reported.
	toldReason, toldMessage string
	failing                 int
}

// newEngine makes an engine, whose err is what is wrong with the options. A nil clock means the real one.
func newEngine(a adapter, options api.CallOptions, clk clock.WithTicker) *Engine {
	err := errors.Join(validate(options), registerMetrics(metrics.Registry, a.Name()))
	if err != nil {
		err = fmt.Errorf("adapter %s: %w", a.Name(), err)
	}
	if clk == nil {
		clk = clock.RealClock{}
	}
	options = withDefaults(options)
	limit := rate.Limit(options.QPS)
	if options.QPS < 0 {
		limit = rate.Inf
	}
	e := &Engine{
		adapter: a, options: options, clock: clk, err: err, limiter: rate.NewLimiter(limit, options.Burst),
		queue: workqueue.NewTypedDelayingQueueWithConfig(
			workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Clock: clk}),
		slow:   workqueue.NewTyped[types.NamespacedName](),
		report: func(client.ObjectKey, string, string) {},
		slots:  map[types.NamespacedName]*slot{}, employersOf: map[types.NamespacedName]map[types.NamespacedName]struct{}{},
	}
	e.changed = func(pod types.NamespacedName) {
		if q := e.podQueue.Load(); q != nil {
			backend.Enqueue(*q, pod, true)
		}
	}
	return e
}

// NeedLeaderElection is part of manager.LeaderElectionRunnable: two engines would undo each other's changes.
func (e *Engine) NeedLeaderElection() bool { return true }

// Start is part of manager.Runnable: it makes calls until ctx ends.
func (e *Engine) Start(ctx context.Context) error {
	var workers, calls sync.WaitGroup
	for range e.options.Concurrency {
		workers.Go(func() { e.serve(e.queue, func(key types.NamespacedName) { e.workQuickly(ctx, key, &calls) }) })
		workers.Go(func() { e.serve(e.slow, func(key types.NamespacedName) { e.work(ctx, key, true) }) })
	}
	<-ctx.Done()
	e.queue.ShutDown()
	e.slow.ShutDown()
	workers.Wait()
	calls.Wait()
	return nil
}

// serve has one worker take employers off a queue until it is shut down.
func (e *Engine) serve(queue workqueue.TypedInterface[types.NamespacedName], work func(types.NamespacedName)) {
	for {
		key, shutdown := queue.Get()
		if shutdown {
			return
		}
		work(key)
		queue.Done(key)
	}
}

// slowCall is how long a call may take without being a slow one.
const slowCall = time.Second

// workQuickly is work, but returns when the call turns out to be a slow one; calls then goes on counting it.
func (e *Engine) workQuickly(ctx context.Context, key types.NamespacedName, calls *sync.WaitGroup) {
	done := make(chan struct{})
	calls.Go(func() {
		defer close(done)
		e.work(ctx, key, false)
	})
	slow := e.clock.NewTimer(slowCall)
	defer slow.Stop()
	select {
	case <-done:
	case <-slow.C():
	}
}

// slot is the employer's slot, which is made if there is none or if it is of an earlier employer of this name.
func (e *Engine) slot(employer client.Object) *slot {
	key := client.ObjectKeyFromObject(employer)
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.slots[key]
	if s == nil || s.uid() != employer.GetUID() {
		if s != nil {
			e.drop(key, s)
		}
		s = &slot{employer: employer, places: e.places(employer),
			group: newGroup(e.options, e.adapter.moves, jitter, e.clock.Now())}
		e.slots[key] = s
	}
	return s
}

func (s *slot) uid() types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.employer.GetUID()
}

// jitter spreads what would otherwise happen to all at once.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1) //nolint:gosec // jitter, no secret
}

// with runs f on the employer's slot, and sees to what is due then.
func (e *Engine) with(employer client.Object, pod *corev1.Pod, f func(*slot)) {
	s := e.slot(employer)
	key, name := client.ObjectKeyFromObject(employer), client.ObjectKeyFromObject(pod)
	e.mu.Lock()
	if e.employersOf[name] == nil {
		e.employersOf[name] = map[types.NamespacedName]struct{}{}
	}
	e.employersOf[name][key] = struct{}{}
	e.mu.Unlock()
	e.locked(key, s, func() {
		e.renew(s, employer)
		f(s)
	})
}

// locked runs f on a slot, and afterwards schedules its next call, notifies employees and reports.
func (e *Engine) locked(key types.NamespacedName, s *slot, f func()) {
	s.mu.Lock()
	f()
	now := e.clock.Now()
	due, orphans := s.group.due(now), s.group.orphans()
	notified := s.group.notified()
	reason, message, news := e.reportOf(s)
	over := s.ended && len(s.group.employees) == 0
	s.mu.Unlock()
	if over {
		e.employerGone(key)
	}
	if !due.IsZero() {
		e.queue.AddAfter(key, due.Sub(now))
	}
	if orphans {
		e.queue.AddAfter(key, orphanLook)
	}
	for _, employee := range notified {
		e.changed(employee.NamespacedName)
	}
	if news {
		e.report(key, reason, message)
	}
}

// reportOf is what to report of a slot, and whether it has changed.
func (e *Engine) reportOf(s *slot) (reason, message string, news bool) {
	reason, message = s.group.problem()
	message = failures.Steady(message)
	failing := len(s.group.failing)
	failingMembers.WithLabelValues(e.adapter.Name()).Add(float64(failing - s.failing))
	s.failing = failing
	inSync := reason == api.ConditionReasonInSync
	if inSync && s.group.full == 0 || reason == s.toldReason && message == s.toldMessage {
		return reason, message, false
	}
	switch wasFailing := s.toldReason != "" && s.toldReason != api.ConditionReasonInSync; {
	case inSync && wasFailing:
		failingEmployers.WithLabelValues(e.adapter.Name()).Dec()
	case !inSync && !wasFailing:
		failingEmployers.WithLabelValues(e.adapter.Name()).Inc()
	}
	s.toldReason, s.toldMessage = reason, message
	return reason, message, true
}

// work makes the call that is due for one employer. That of an employer that is slow waits for a place among the slow.
func (e *Engine) work(ctx context.Context, key types.NamespacedName, amongSlow bool) {
	e.mu.Lock()
	s := e.slots[key]
	e.mu.Unlock()
	if s == nil || ctx.Err() != nil {
		return
	}
	e.lookForOrphans(ctx, key, s)
	s.mu.Lock()
	now := e.clock.Now()
	wait := s.group.due(now).Sub(now)
	if s.slow && !amongSlow && !s.group.due(now).IsZero() && wait <= 0 {
		s.mu.Unlock()
		e.slow.Add(key)
		return
	}
	if s.group.due(now).IsZero() || wait > 0 || !e.admitted(s, now, &wait) {
		idle := s.group.due(now).IsZero()
		s.mu.Unlock()
		if !idle {
			e.queue.AddAfter(key, wait)
		}
		return
	}
	c, employer := s.group.next(now), s.employer
	if c != nil {
		s.token = false
	}
	s.mu.Unlock()
	if c == nil {
		e.locked(key, s, func() {})
		return
	}
	held, err := e.call(ctx, employer, c)
	e.locked(key, s, func() {
		end := e.clock.Now()
		s.slow = end.Sub(now) >= slowCall
		s.group.answered(held, err, end)
	})
}

// leftover is how soon an employer whose calls fail looks again for a token that no other wants.
const leftover = 500 * time.Millisecond

// admitted reports whether the token bucket lets the slot's next call pass; wait is how long it takes if not. An
// employer whose calls fail has no token kept for it.
func (e *Engine) admitted(s *slot, now time.Time, wait *time.Duration) bool {
	if !s.token && s.group.fails() {
		if !e.limiter.AllowN(now, 1) {
			*wait = jitter(leftover)
			return false
		}
		s.token, s.tokenAt = true, now
	}
	if !s.token {
		s.token, s.tokenAt = true, now.Add(e.limiter.ReserveN(now, 1).DelayFrom(now))
	}
	*wait = s.tokenAt.Sub(now)
	return *wait <= 0
}

// call makes one call, with a timeout. An adapter that panics has failed.
func (e *Engine) call(ctx context.Context, employer client.Object, c *call) (held []api.Held[any], err error) {
	began := e.clock.Now()
	limited, cancel := context.WithTimeout(ctx, e.options.Timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("adapter %s panicked: %v", e.adapter.Name(), p)
			log.FromContext(ctx).Error(err, "the call counts as failed", "stack", string(debug.Stack()))
		}
		observeCall(e.adapter.Name(), c.verb, err, e.clock.Since(began))
		log.FromContext(ctx).V(1).Info("called a provider", "adapter", e.adapter.Name(),
			"employer", client.ObjectKeyFromObject(employer),
			"verb", c.verb, "asked", len(c.ids), "changes", len(c.changes), "error", err)
	}()
	if c.verb == apply {
		return nil, e.adapter.Apply(limited, employer, c.changes)
	}
	return e.adapter.Read(limited, employer, c.ids)
}

// orphanLook is how soon to look again whether all employees have been looked at.
const orphanLook = time.Second

// lookForOrphans tells the group when every employee has been looked at, if members wait for that.
func (e *Engine) lookForOrphans(ctx context.Context, key types.NamespacedName, s *slot) {
	s.mu.Lock()
	due, employer := s.group.orphans(), s.employer
	s.mu.Unlock()
	if !due || e.pods == nil {
		return
	}
	all, err := e.everyPodLooked(ctx, employer, func(pod employeeKey) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.group.employees[pod] != nil
	})
	if err != nil || !all {
		e.queue.AddAfter(key, orphanLook)
		return
	}
	e.locked(key, s, func() { s.group.lookedAtAll() })
}

// renew takes in the newest state of a slot's employer. If it names other places, everything is read again: what was
// read before says nothing of them.
func (e *Engine) renew(s *slot, employer client.Object) {
	s.employer = employer
	if places := e.places(employer); places != s.places {
		s.places = places
		s.group.readAllAgain(e.clock.Now())
	}
}

// places are all that the employer names, separated by commas.
func (e *Engine) places(employer client.Object) string {
	return strings.Join(api.PlacesOf(employer, e.adapter.Name(), e.adapter.Place(employer)), ",")
}

// employerIs takes in an employer as it is now, so that its backend is read although it has no employee.
func (e *Engine) employerIs(employer client.Object) {
	s := e.slot(employer)
	e.locked(client.ObjectKeyFromObject(employer), s, func() {
		e.renew(s, employer)
		s.ended = false
	})
}

// employerGone takes in that an employer has left the cache. What its employees still need is done.
func (e *Engine) employerGone(key types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.slots[key]
	if s == nil {
		return
	}
	s.mu.Lock()
	s.ended = true
	over := len(s.group.employees) == 0 || !e.adapter.moves
	s.mu.Unlock()
	if over {
		e.drop(key, s)
	}
}

// drop forgets a slot. The caller holds e.mu.
func (e *Engine) drop(key types.NamespacedName, s *slot) {
	if e.slots[key] != s {
		return
	}
	delete(e.slots, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	failingMembers.WithLabelValues(e.adapter.Name()).Sub(float64(s.failing))
	if s.toldReason != "" && s.toldReason != api.ConditionReasonInSync {
		failingEmployers.WithLabelValues(e.adapter.Name()).Dec()
	}
	s.failing, s.toldReason = 0, ""
}
