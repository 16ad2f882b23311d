package fakekubelet

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// seenPod is one change of a Pod, as the API server told it.
type seenPod struct {
	pod  *corev1.Pod
	gone bool
	due  time.Time
}

// lateness hands sightings on in their order, each a constant time after it came in.
type lateness struct {
	lag  time.Duration
	wake chan struct{}

	mu      sync.Mutex
	waiting []seenPod
}

func newLateness(lag time.Duration) *lateness {
	return &lateness{lag: lag, wake: make(chan struct{}, 1)}
}

func (l *lateness) add(s seenPod) {
	s.due = time.Now().Add(l.lag)
	l.mu.Lock()
	l.waiting = append(l.waiting, s)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// due takes out what is due by now, and says how long until the next is; 0 if none waits.
func (l *lateness) due(now time.Time) (due []seenPod, next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for n < len(l.waiting) && !l.waiting[n].due.After(now) {
		n++
	}
	due, l.waiting = l.waiting[:n:n], l.waiting[n:]
	if len(l.waiting) > 0 {
		next = l.waiting[0].due.Sub(now)
	}
	return due, next
}

func (l *lateness) run(ctx context.Context, see func(seenPod)) {
	for {
		due, next := l.due(time.Now())
		for _, s := range due {
			see(s)
		}
		var alarm <-chan time.Time
		if next > 0 {
			alarm = time.After(next)
		}
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-alarm:
		}
	}
}
