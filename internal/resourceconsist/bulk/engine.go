// Package bulk makes per-Pod adapters of providers whose API answers for, and changes, many members in one call.
//
// One group per employer holds what its employees wish, what the provider was last seen to hold, and what is due. It is
// pure (group.go, with what it knows in employees.go and members.go, what it says in answers.go, and what is due in calls.go,
// readings.go and changes.go): it says which call is due next, and takes in what was answered. The Engine around it makes the
// calls, one at a time for each employer, a few employers at a time, all within one token bucket, each with a timeout.
//
// No employer holds up others. A call that takes longer than slowCall gives its place to the next employer, and its
// employer's calls have places of their own until one is quick; an employer whose calls fail gets tokens that nobody else
// wants.
//
// Words: an employee has members, each an entry of the backend with an ID. A wish is what a member should be. A member
// is confirmed when a reading that began after its last change shows it so. A stray is a member that nobody claims.
//
// Invariants:
//
//   - What is not known is never said to be without traffic: not before the first reading, not while a change is under
//     way, not after one until a later reading has shown its effect, not by a reading from before the employee set out.
//   - One group never has two calls under way, so a reading never overlaps a change.
//   - A member is changed only for the employee that it belongs to; strays only after every employee was looked at.
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
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/writes"
)

// Reporter is an adapter that says how its backend follows. ReportTo is called once, before anything else, with a function
// that takes in the condition of an employer, api.ConditionInSync, whenever it changes; it is called from many
// goroutines. The first condition of an employer in a process may be True.
type Reporter interface {
	ReportTo(report func(employer client.ObjectKey, condition metav1.Condition))
}

// Forgetter is an adapter that remembers Pods. Forget is called when there is no such Pod any more, and not while another
// of the adapter's methods is called for one of this name.
type Forgetter interface {
	Forget(pod types.NamespacedName)
}

// Cleaner is an adapter that remembers an employer's members: it says whether none is left in the backend. False also
// means that this is not known yet.
type Cleaner[E client.Object] interface {
	Clean(employer E) bool
}

// Placed is an adapter that may have an employer's members at several places; see api.Placer.
type Placed[E client.Object] interface {
	// Place is where they belong now, "" if there is but one place.
	Place(employer E) string
	// Empty says whether none is left at a place. False also means that this is not known yet.
	Empty(employer E, place string) bool
}

// Engine makes the calls of one Reader or Backend. Its methods may be called from many goroutines; they do no input or
// output.
type Engine[E, P client.Object, S comparable] struct {
	reader  api.Reader[E, P, S]
	backend api.Backend[E, P, S] // nil if it is only observed
	options api.BulkOptions
	clock   clock.WithTicker
	metrics *callMetrics
	limiter *rate.Limiter
	queue   workqueue.TypedDelayingInterface[types.NamespacedName]
	// slow are employers whose last call was slow and whose next one is due.
	slow workqueue.TypedInterface[types.NamespacedName]
	// err says what is wrong with the options.
	err error

	// changed is told of an employee about which something new is to be said.
	changed func(employer, employee types.NamespacedName)
	report  func(employer client.ObjectKey, condition metav1.Condition)
	// allLooked says whether every employee of the employer that there is has been looked at.
	allLooked func(ctx context.Context, employer E, looked func(types.NamespacedName, types.UID) bool) (bool, error)

	mu    sync.Mutex
	slots map[types.NamespacedName]*slot[E, S]
	// of holds the employers that have looked at an employee.
	of map[types.NamespacedName]map[types.NamespacedName]struct{}
}

// slot is one employer with its group.
type slot[E client.Object, S comparable] struct {
	mu       sync.Mutex
	employer E
	group    *group[S]
	// places are those that the newest employer names, separated by commas.
	places string
	// ended says that the employer has left the cache.
	ended bool
	// token says that the next call has its place in the token bucket, from tokenAt on.
	token   bool
	tokenAt time.Time
	// slow says that its last call was a slow one, or that the one under way is.
	slow bool
	// told is the reason and message last reported, toldAt when.
	toldReason, toldMessage string
	toldAt                  time.Time
	failing                 int
}

// newEngine makes an engine, whose err says what is wrong with the options. A nil backend only observes; a nil clock means the real one.
func newEngine[E, P client.Object, S comparable](reader api.Reader[E, P, S], backend api.Backend[E, P, S], options api.BulkOptions, clk clock.WithTicker) *Engine[E, P, S] {
	err := validate(options)
	m, metricsErr := newCallMetrics(metrics.Registry, reader.Name())
	if err = errors.Join(err, metricsErr); err != nil {
		err = fmt.Errorf("adapter %s: %w", reader.Name(), err)
	}
	if clk == nil {
		clk = clock.RealClock{}
	}
	options = withDefaults(options)
	limit := rate.Limit(options.QPS)
	if options.QPS < 0 {
		limit = rate.Inf
	}
	return &Engine[E, P, S]{
		reader: reader, backend: backend, options: options, clock: clk, metrics: m, err: err, limiter: rate.NewLimiter(limit, options.Burst),
		queue:   workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Clock: clk}),
		slow:    workqueue.NewTyped[types.NamespacedName](),
		changed: func(types.NamespacedName, types.NamespacedName) {}, report: func(types.NamespacedName, metav1.Condition) {},
		slots: map[types.NamespacedName]*slot[E, S]{}, of: map[types.NamespacedName]map[types.NamespacedName]struct{}{},
	}
}

// ReportTo is part of Reporter.
func (e *Engine[E, P, S]) ReportTo(report func(employer client.ObjectKey, condition metav1.Condition)) {
	e.report = report
}

// NeedLeaderElection is part of manager.LeaderElectionRunnable: two engines would undo each other's changes.
func (e *Engine[E, P, S]) NeedLeaderElection() bool { return true }

// Start is part of manager.Runnable: it makes calls until ctx ends.
func (e *Engine[E, P, S]) Start(ctx context.Context) error {
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
func (e *Engine[E, P, S]) serve(queue workqueue.TypedInterface[types.NamespacedName], work func(types.NamespacedName)) {
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
func (e *Engine[E, P, S]) workQuickly(ctx context.Context, key types.NamespacedName, calls *sync.WaitGroup) {
	done := make(chan struct{})
	calls.Go(func() {
		defer close(done)
		e.work(ctx, key, false)
	})
	patience := e.clock.NewTimer(slowCall)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C():
	}
}

// slot is the employer's slot, which is made if there is none or if it is of an earlier employer of this name.
func (e *Engine[E, P, S]) slot(employer E) *slot[E, S] {
	key := client.ObjectKeyFromObject(employer)
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.slots[key]
	if s == nil || s.uid() != employer.GetUID() {
		if s != nil {
			e.drop(key, s)
		}
		s = &slot[E, S]{employer: employer, places: e.places(employer), group: newGroup[S](e.options, e.backend != nil, jitter, e.clock.Now())}
		e.slots[key] = s
	}
	return s
}

func (s *slot[E, S]) uid() types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.employer.GetUID()
}

// jitter spreads what would otherwise happen to all at once.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1) //nolint:gosec // jitter, no secret
}

// viewOf asks the adapter for the employee's members.
func (e *Engine[E, P, S]) viewOf(employer E, employee P, dying bool) view[S] {
	v := view[S]{
		key:     employeeKey{client.ObjectKeyFromObject(employee), employee.GetUID()},
		created: employee.GetCreationTimestamp().Time, dying: dying,
	}
	var err error
	if v.serve, err = e.reader.Members(employer, employee, true); err == nil {
		v.idle, err = e.reader.Members(employer, employee, false)
	}
	v.invalid = err
	return v
}

// look is group.look for an employee of an employer.
func (e *Engine[E, P, S]) look(employer E, employee P, dying bool, st stance) answer {
	v := e.viewOf(employer, employee, dying)
	var a answer
	e.with(employer, employee, func(g *group[S], now time.Time) { a = g.look(v, st, now) })
	return a
}

// register is group.register for an employee of an employer.
func (e *Engine[E, P, S]) register(employer E, employee P, dying bool, st stance, serve bool) {
	v := e.viewOf(employer, employee, dying)
	e.with(employer, employee, func(g *group[S], now time.Time) { g.register(v, st, serve, now) })
}

// with runs f on the employer's group, and sees to what is due then.
func (e *Engine[E, P, S]) with(employer E, employee P, f func(*group[S], time.Time)) {
	s := e.slot(employer)
	key, name := client.ObjectKeyFromObject(employer), client.ObjectKeyFromObject(employee)
	e.mu.Lock()
	if e.of[name] == nil {
		e.of[name] = map[types.NamespacedName]struct{}{}
	}
	e.of[name][key] = struct{}{}
	e.mu.Unlock()
	e.locked(key, s, func() {
		e.renew(s, employer)
		f(s.group, e.clock.Now())
	})
}

// locked runs f on a slot, and afterwards schedules its next call, notifies employees and reports.
func (e *Engine[E, P, S]) locked(key types.NamespacedName, s *slot[E, S], f func()) {
	s.mu.Lock()
	f()
	now := e.clock.Now()
	due, orphans := s.group.due(now), s.group.orphans()
	notified := s.group.notified()
	condition := e.conditionOf(s, now)
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
		e.changed(key, employee.NamespacedName)
	}
	if condition != nil {
		e.report(key, *condition)
	}
}

// conditionOf is what is to be reported of a slot, nil if nothing has changed. A message that changes with every retry,
// because the provider puts a number into it, is not a change.
func (e *Engine[E, P, S]) conditionOf(s *slot[E, S], now time.Time) *metav1.Condition {
	reason, message := s.group.problem()
	message = writes.Steady(message)
	failing := len(s.group.failing)
	e.metrics.members.Add(float64(failing - s.failing))
	s.failing = failing
	inSync := reason == api.ConditionReasonInSync
	if inSync && s.group.full == 0 || reason == s.toldReason && (message == s.toldMessage || now.Sub(s.toldAt) < e.options.MaxBackoff) {
		return nil
	}
	switch wasFailing := s.toldReason != "" && s.toldReason != api.ConditionReasonInSync; {
	case inSync && wasFailing:
		e.metrics.groups.Dec()
	case !inSync && !wasFailing:
		e.metrics.groups.Inc()
	}
	s.toldReason, s.toldMessage, s.toldAt = reason, message, now
	c := &metav1.Condition{
		Type: api.ConditionInSync, Status: metav1.ConditionFalse, Reason: reason, Message: message,
		ObservedGeneration: s.employer.GetGeneration(), LastTransitionTime: metav1.NewTime(now),
	}
	if inSync {
		c.Status, c.Message = metav1.ConditionTrue, "the backend follows"
	}
	return c
}

// work makes the call that is due for one employer. That of an employer that is slow waits for a place among the slow.
func (e *Engine[E, P, S]) work(ctx context.Context, key types.NamespacedName, amongSlow bool) {
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

// leftover is how soon an employer whose calls fail looks again for a token that nobody else wants.
const leftover = 500 * time.Millisecond

// admitted says whether the token bucket lets the slot's next call pass; wait is how long it takes if not. An employer
// whose calls fail has no token kept for it.
func (e *Engine[E, P, S]) admitted(s *slot[E, S], now time.Time, wait *time.Duration) bool {
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
func (e *Engine[E, P, S]) call(ctx context.Context, employer E, c *call[S]) (held []api.Held[S], err error) {
	began := e.clock.Now()
	limited, cancel := context.WithTimeout(ctx, e.options.Timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("adapter %s panicked: %v", e.reader.Name(), p)
			log.FromContext(ctx).Error(err, "the call counts as failed", "stack", string(debug.Stack()))
		}
		e.metrics.called(c.verb, err, e.clock.Since(began))
		log.FromContext(ctx).V(1).Info("called a provider", "adapter", e.reader.Name(), "employer", client.ObjectKeyFromObject(employer),
			"verb", c.verb, "asked", len(c.ids), "changes", len(c.changes), "error", err)
	}()
	if c.verb == apply {
		return nil, e.backend.Apply(limited, employer, c.changes)
	}
	return e.reader.Read(limited, employer, c.ids)
}

// orphanLook is how soon to look again whether all employees have been looked at.
const orphanLook = time.Second

// lookForOrphans tells the group when every employee has been looked at, if members wait for that.
func (e *Engine[E, P, S]) lookForOrphans(ctx context.Context, key types.NamespacedName, s *slot[E, S]) {
	s.mu.Lock()
	due, employer := s.group.orphans(), s.employer
	s.mu.Unlock()
	if !due || e.allLooked == nil {
		return
	}
	all, err := e.allLooked(ctx, employer, func(name types.NamespacedName, uid types.UID) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.group.employees[employeeKey{name, uid}] != nil
	})
	if err != nil || !all {
		e.queue.AddAfter(key, orphanLook)
		return
	}
	e.locked(key, s, func() { s.group.lookedAtAll() })
}

// Forget takes in that an employee is gone: its members are removed.
func (e *Engine[E, P, S]) Forget(employee types.NamespacedName) {
	e.mu.Lock()
	slots := map[types.NamespacedName]*slot[E, S]{}
	for key := range e.of[employee] {
		slots[key] = e.slots[key]
	}
	delete(e.of, employee)
	e.mu.Unlock()
	for key, s := range slots {
		if s != nil {
			e.locked(key, s, func() { s.group.forget(employee, e.clock.Now()) })
		}
	}
}

// keep has an employee's members in the backend, with traffic.
func (e *Engine[E, P, S]) keep(employer E, employee P) {
	v, st := e.viewOf(employer, employee, false), stance{direction: joining, arrived: true}
	e.with(employer, employee, func(g *group[S], now time.Time) {
		g.look(v, st, now)
		g.register(v, st, true, now)
	})
}

// forgetAt takes in that an employee is gone for one employer.
func (e *Engine[E, P, S]) forgetAt(employer, employee types.NamespacedName) {
	e.mu.Lock()
	s := e.slots[employer]
	delete(e.of[employee], employer)
	if len(e.of[employee]) == 0 {
		delete(e.of, employee)
	}
	e.mu.Unlock()
	if s != nil {
		e.locked(employer, s, func() { s.group.forget(employee, e.clock.Now()) })
	}
}

// emptied takes in that all employees of an employer are gone, and says whether the backend is clean.
func (e *Engine[E, P, S]) emptied(employer E) bool {
	s := e.slot(employer)
	var names []types.NamespacedName
	s.mu.Lock()
	for key := range s.group.employees {
		names = append(names, key.NamespacedName)
	}
	s.mu.Unlock()
	for _, name := range names {
		e.forgetAt(client.ObjectKeyFromObject(employer), name)
	}
	return e.Clean(employer)
}

// Clean is part of Cleaner. It has the backend read if that was not done yet, for an employer that is not in the cache.
func (e *Engine[E, P, S]) Clean(employer E) bool {
	s := e.slot(employer)
	clean := false
	e.locked(client.ObjectKeyFromObject(employer), s, func() {
		e.renew(s, employer)
		clean = s.group.clean()
	})
	return clean
}

// renew takes in the newest state of a slot's employer. If it names other places, everything is read again: what was read
// before says nothing of them.
func (e *Engine[E, P, S]) renew(s *slot[E, S], employer E) {
	s.employer = employer
	if places := e.places(employer); places != s.places {
		s.places = places
		s.group.readAllAgain(e.clock.Now())
	}
}

// places are all that the employer names, separated by commas.
func (e *Engine[E, P, S]) places(employer E) string {
	if _, ok := e.reader.(api.Placer[E]); !ok {
		return ""
	}
	return strings.Join(api.PlacesOf(employer, e.reader.Name(), e.Place(employer)), ",")
}

// Place is part of Placed.
func (e *Engine[E, P, S]) Place(employer E) string {
	if p, ok := e.reader.(api.Placer[E]); ok {
		return p.Place(employer)
	}
	return ""
}

// Empty is part of Placed. It has the backend read if that was not done yet.
func (e *Engine[E, P, S]) Empty(employer E, place string) bool {
	p, ok := e.reader.(api.Placer[E])
	if !ok {
		return true
	}
	s := e.slot(employer)
	empty := false
	e.locked(client.ObjectKeyFromObject(employer), s, func() {
		e.renew(s, employer)
		empty = s.group.cleanOf(func(id string) bool { return p.PlaceOf(id) == place })
	})
	return empty
}

// employerIs takes in an employer as it is now, so that its backend is read although it has no employee.
func (e *Engine[E, P, S]) employerIs(employer E) {
	s := e.slot(employer)
	e.locked(client.ObjectKeyFromObject(employer), s, func() {
		e.renew(s, employer)
		s.ended = false
	})
}

// employerGone takes in that an employer has left the cache. What its employees still need is done.
func (e *Engine[E, P, S]) employerGone(key types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.slots[key]
	if s == nil {
		return
	}
	s.mu.Lock()
	s.ended = true
	over := len(s.group.employees) == 0 || e.backend == nil
	s.mu.Unlock()
	if over {
		e.drop(key, s)
	}
}

// drop forgets a slot. The caller holds e.mu.
func (e *Engine[E, P, S]) drop(key types.NamespacedName, s *slot[E, S]) {
	if e.slots[key] != s {
		return
	}
	delete(e.slots, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e.metrics.members.Sub(float64(s.failing))
	if s.toldReason != "" && s.toldReason != api.ConditionReasonInSync {
		e.metrics.groups.Dec()
	}
	s.failing, s.toldReason = 0, ""
}
