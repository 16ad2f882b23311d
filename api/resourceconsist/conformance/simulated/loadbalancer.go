// Package simulated has in-memory providers to test adapters with. They can be slow, refuse calls, fail for single
// members and delay changes, which a real provider does only occasionally.
package simulated

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// ErrUnavailable is the error of a LoadBalancer while it fails.
var ErrUnavailable = errors.New("load balancer unavailable")

// ErrThrottled is the error of a LoadBalancer for a throttled call.
var ErrThrottled = errors.New("too many requests")

// Member is one member of a group of backends.
type Member struct {
	// ID names the member in its group.
	ID string `json:"id"`
	// Address and Port are where requests go.
	Address string `json:"address"`
	Port    int32  `json:"port,omitempty"`
	// Weight is the member's share of requests. A member of weight 0 gets none.
	Weight int32 `json:"weight"`
	// Owner identifies the writer of the member. The load balancer ignores it.
	Owner string `json:"owner,omitempty"`
}

// LoadBalancer has groups of members and sends requests to those that have a weight. A group exists as soon as it is
// named. Its methods may be called concurrently. Create one with NewLoadBalancer.
type LoadBalancer struct {
	mu     sync.Mutex
	groups map[string]map[string]*history
	calls  int

	failing, throttling, holding bool
	delay                        time.Duration
	refused                      map[string]bool
	// random says which calls are throttled: a fixed rhythm could refuse the same call of a caller for ever.
	random *rand.Rand
	// woken is closed when the delay changes, so that calls that wait for the old one go on.
	woken chan struct{}
}

// history is what a member is and what it will be; nil is not there.
type history struct{ now, next *Member }

// NewLoadBalancer returns a load balancer without members and without faults.
func NewLoadBalancer() *LoadBalancer {
	return &LoadBalancer{groups: map[string]map[string]*history{}, random: rand.New(rand.NewPCG(1, 1)),
		woken: make(chan struct{})}
}

// List is a call that returns the current members of a group, sorted by ID: those with the given IDs that exist, or all
// without IDs.
func (l *LoadBalancer) List(ctx context.Context, group string, ids ...string) ([]Member, error) {
	if err := l.call(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	wanted := slices.Values(ids)
	if len(ids) == 0 {
		wanted = maps.Keys(l.groups[group])
	}
	var found []Member
	for id := range wanted {
		if h := l.groups[group][id]; h != nil && h.now != nil {
			found = append(found, *h.now)
		}
	}
	slices.SortFunc(found, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return slices.Compact(found), nil
}

// Put is a call that adds members to a group or changes existing ones. Members that were refused are in the first
// result, and all others are accepted. With an error, no member is accepted.
func (l *LoadBalancer) Put(ctx context.Context, group string, members ...Member) (refused map[string]error, err error) {
	return l.Change(ctx, group, members, nil)
}

// Remove is a call that removes members from a group. A member that does not exist is no error. Results are as for Put.
func (l *LoadBalancer) Remove(ctx context.Context, group string, ids ...string) (refused map[string]error, err error) {
	return l.Change(ctx, group, nil, ids)
}

// Change is Put and Remove in one call.
func (l *LoadBalancer) Change(
	ctx context.Context, group string, put []Member, remove []string,
) (refused map[string]error, err error) {
	if err := l.call(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	refused = map[string]error{}
	for _, m := range put {
		if l.refused[m.Address] {
			refused[m.ID] = refusal(m.Address)
			continue
		}
		l.set(group, m.ID, &m)
	}
	for _, id := range remove {
		h := l.groups[group][id]
		switch {
		case h == nil:
		case h.next != nil && l.refused[h.next.Address]:
			refused[id] = refusal(h.next.Address)
		default:
			l.set(group, id, nil)
		}
	}
	return refused, nil
}

func refusal(address string) error { return fmt.Errorf("address %s: %w", address, ErrUnavailable) }

// call counts a call, waits and fails as it is set.
func (l *LoadBalancer) call(ctx context.Context) error {
	l.mu.Lock()
	l.calls++
	refused := l.throttling && l.random.IntN(2) == 0
	l.mu.Unlock()
	if err := l.wait(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.failing:
		return ErrUnavailable
	case refused:
		return ErrThrottled
	}
	return nil
}

func (l *LoadBalancer) wait(ctx context.Context) error {
	l.mu.Lock()
	delay, woken := l.delay, l.woken
	l.mu.Unlock()
	if delay <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	case <-woken:
	}
	return nil
}

func (l *LoadBalancer) set(group, id string, to *Member) {
	if l.groups[group] == nil {
		l.groups[group] = map[string]*history{}
	}
	h := l.groups[group][id]
	if h == nil {
		h = &history{}
		l.groups[group][id] = h
	}
	h.next = to
	if !l.holding {
		h.now = to
	}
}

// Serves reports whether a request to the group can reach the address now. It does not count as a call.
func (l *LoadBalancer) Serves(group, address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.groups[group] {
		if m := h.now; m != nil && m.Address == address && m.Weight > 0 {
			return true
		}
	}
	return false
}

// Set adds a member to a group like another system: at once, whatever faults are set. It does not count as a call.
func (l *LoadBalancer) Set(group string, member Member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(group, member.ID, &member)
	l.groups[group][member.ID].now = &member
}

// Has reports whether a group has exactly this member. It does not count as a call.
func (l *LoadBalancer) Has(group string, member Member) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.groups[group][member.ID]
	if h == nil {
		return false
	}
	return h.now != nil && *h.now == member
}

// Calls is the number of calls so far.
func (l *LoadBalancer) Calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// Fail makes all calls fail with ErrUnavailable, until it is called with false.
func (l *LoadBalancer) Fail(failing bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failing = failing
}

// Throttle makes a random half of the calls fail with ErrThrottled, until it is called with false.
func (l *LoadBalancer) Throttle(throttling bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.throttling = throttling
}

// FailFor makes Put and Remove refuse the members with these addresses, and no others.
func (l *LoadBalancer) FailFor(addresses ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = map[string]bool{}
	for _, a := range addresses {
		l.refused[a] = true
	}
}

// Delay makes each call take this long, or until its context ends. It ends the delay of calls under way.
func (l *LoadBalancer) Delay(delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = delay
	close(l.woken)
	l.woken = make(chan struct{})
}

// Hold makes accepted changes wait, until it is called with false. List returns what is in effect.
func (l *LoadBalancer) Hold(holding bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holding = holding
	if holding {
		return
	}
	for _, group := range l.groups {
		for _, h := range group {
			h.now = h.next
		}
	}
}
