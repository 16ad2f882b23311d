package shard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// lock is a Lease for client-go's elections, which differs in what a candidate and a holder see:
//
//   - A holder that was seen to have run out is shown as none, so that a candidate that comes late does not wait once
//     more.
//   - A patient candidate reads the Lease when it is free, instead of every retry period.
//   - Where several processes hold it together, each takes what the others wrote for its own.
//   - What was lost is lost: a process that held the Lease, did not renew it in time or saw another holder, does not
//     get it back, which client-go does once the other is gone. What it knows is of the time before.
//   - Nothing is given back that another process has taken meanwhile, which client-go does when the last renewal ended
//     without an answer.
type lock struct {
	resourcelock.Interface
	name   string
	view   *leaseView
	shared bool
	// patient candidates wait in Get.
	patient bool
	lease   *leaseTerm
	// inUse is true if something runs that the Lease is held for: it is not given back.
	inUse atomic.Bool
	// holder is whom the Lease named when it was last read or written.
	holder string
}

// Get is part of resourcelock.Interface.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	for {
		record, raw, err := l.Interface.Get(ctx)
		if err != nil {
			return record, raw, err
		}
		l.holder = record.HolderIdentity
		held := l.lease.begun()
		if held && l.holder != l.Identity() {
			l.lease.end()
		}
		l.view.observeRead(l.name, record)
		if !held && l.view.hasRunOut(l.name, record) {
			free := *record
			free.HolderIdentity = ""
			return &free, raw, nil
		}
		if held || !l.patient || l.holder == "" || l.holder == l.Identity() || !l.view.await(ctx, l.name, record) {
			return record, raw, nil
		}
	}
}

// Create is part of resourcelock.Interface.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.mayHold(); err != nil {
		return err
	}
	began := l.lease.clock.Now()
	err := l.Interface.Create(ctx, record)
	if err == nil {
		l.took(record, began)
	}
	return err
}

// Update is part of resourcelock.Interface.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		if l.inUse.Load() {
			return fmt.Errorf("not giving back %s: what it is held for has not ended", l.Describe())
		}
		l.lease.end()
		if l.holder != l.Identity() {
			return fmt.Errorf("not giving back %s, which %q holds", l.Describe(), l.holder)
		}
	} else if err := l.mayHold(); err != nil {
		return err
	}
	began := l.lease.clock.Now()
	err := l.Interface.Update(ctx, record)
	if apierrors.IsConflict(err) && l.shared {
		if now, _, getErr := l.Interface.Get(ctx); getErr == nil && now.HolderIdentity == l.Identity() {
			began = l.lease.clock.Now()
			err = l.Interface.Update(ctx, record)
		}
	}
	if err == nil {
		l.took(record, began)
	}
	return err
}

func (l *lock) mayHold() error {
	if l.lease.begun() && !l.lease.running() {
		return fmt.Errorf("%s was not renewed in time, or taken away: others may have acted since", l.Describe())
	}
	return nil
}

func (l *lock) took(record resourcelock.LeaderElectionRecord, began time.Time) {
	l.holder = record.HolderIdentity
	if record.HolderIdentity != "" {
		l.lease.renewed(began)
	}
}

// leaseTerm is for how long a Lease is ours by this process's clock, as far as it knows: since before the last renewal
// was asked for. It is over before others may take the Lease, and then for good.
type leaseTerm struct {
	clock clock.PassiveClock
	lasts time.Duration

	mu    sync.Mutex
	since time.Time
	// ended is true if the Lease was given back or taken away, lapsed if it was not renewed in time.
	ended, lapsed bool
}

// newLeaseTerm is one for a Lease that an elector gives up as lost when the term ends: a try to renew begins a retry
// period after the last renewal and lasts for the renew deadline.
func newLeaseTerm(clk clock.PassiveClock, retryPeriod, renewDeadline time.Duration) *leaseTerm {
	return &leaseTerm{clock: clk, lasts: retryPeriod + renewDeadline}
}

// renewed extends the term, unless it was over at some time since the renewal was asked for.
func (t *leaseTerm) renewed(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lapse()
	t.since = at
}

// end ends the term for good.
func (t *leaseTerm) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
}

// begun reports whether the Lease was ours at some time.
func (t *leaseTerm) begun() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.since.IsZero()
}

// running reports whether the Lease is ours.
func (t *leaseTerm) running() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lapse()
	return !t.ended && !t.lapsed && !t.since.IsZero()
}

// inTime reports whether the Lease was renewed in time so far, or was never ours. It goes on for a while after the
// Lease was given back, so that the last events are written.
func (t *leaseTerm) inTime() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lapse()
	return !t.lapsed
}

// lapse notes that the Lease was not renewed in time. The caller holds t.mu.
func (t *leaseTerm) lapse() {
	if !t.since.IsZero() && t.clock.Now().Sub(t.since) >= t.lasts {
		t.lapsed = true
	}
}

// LeaseFence keeps a process that has been asleep from writing what it decided before: one that was paused, or starved
// of CPU, for longer than its Lease goes on where it was, and learns only some moments later that another leads. It
// lets writes pass while the Leases are held. Preconditions refuse what is on its way when a process falls asleep. The
// zero LeaseFence lets no write pass.
type LeaseFence struct {
	terms []*leaseTerm
	// candidate lets writes pass before the first renewal, too, because whoever has never led waits for its Lease by
	// other means, and after the Lease was given back, until it would have run out.
	candidate bool
}

func (f *LeaseFence) open() bool {
	for _, t := range f.terms {
		if ours := t.running() || f.candidate && t.inTime(); !ours {
			return false
		}
	}
	return len(f.terms) > 0
}

// Wrap is for rest.Config.Wrap. Reads, and questions about tokens and rights, always pass.
func (f *LeaseFence) Wrap(next http.RoundTripper) http.RoundTripper {
	return &fencedTransport{fence: f, next: next}
}

type fencedTransport struct {
	fence *LeaseFence
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (f *fencedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !isWrite(r) || f.fence.open() {
		return f.next.RoundTrip(r)
	}
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return nil, errors.New("nothing is written: a Lease was not renewed in time, so another replica may lead")
}

// isWrite reports whether a request changes something; questions about tokens and rights, which are posted, do not.
func isWrite(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	return !strings.Contains(r.URL.Path, "/apis/authentication.k8s.io/") &&
		!strings.Contains(r.URL.Path, "/apis/authorization.k8s.io/")
}

// WrappedRoundTripper lets client-go find the transport below.
func (f *fencedTransport) WrappedRoundTripper() http.RoundTripper { return f.next }

// CloseIdleConnections passes on what http.Client asks for.
func (f *fencedTransport) CloseIdleConnections() {
	if closer, ok := f.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}
