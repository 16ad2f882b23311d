package bootstrap

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// leaseFence keeps a leader that has been asleep from writing what it decided before: a process that was paused, or
// starved of CPU, for longer than its Lease goes on where it was, and learns only some moments later that another
// leads.
//
// Once this process has renewed its Lease, it writes as long as the last renewal is no older than retry period and
// renew deadline together, which is when leader election ends the process too, and before another process can hold the
// Lease. Preconditions refuse what is on its way when a process falls asleep.
type leaseFence struct {
	lease    string // path of the Lease
	deadline time.Duration
	clock    clock.PassiveClock
	// renewed is when the last renewal that succeeded was sent; nil before the first.
	renewed atomic.Pointer[time.Time]
}

// fenceClients makes all clients of the configuration heed the component's Lease.
func fenceClients(cfg *rest.Config, o *Options) {
	f := &leaseFence{
		lease:    fmt.Sprintf("/apis/coordination.k8s.io/v1/namespaces/%s/leases/%s", o.LeaderElectNamespace, o.Name),
		deadline: o.RetryPeriod + o.RenewDeadline, clock: clock.RealClock{},
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &fencedTransport{fence: f, next: next} })
}

type fencedTransport struct {
	fence *leaseFence
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *fencedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	f := t.fence
	if !isWrite(r) {
		return t.next.RoundTrip(r)
	}
	now := f.clock.Now()
	if strings.HasSuffix(r.URL.Path, f.lease) { // a proxy may have a prefix
		response, err := t.next.RoundTrip(r)
		if err == nil && response.StatusCode < http.StatusMultipleChoices {
			f.renewed.Store(&now)
		}
		return response, err
	}
	if renewed := f.renewed.Load(); renewed != nil {
		if age := now.Sub(*renewed); age > f.deadline {
			return nil, fmt.Errorf(
				"not written: the Lease was last renewed %s ago, which is longer than --leader-elect-retry-period and --leader-elect-renew-deadline together, so that another replica may lead",
				age.Round(time.Millisecond))
		}
	}
	return t.next.RoundTrip(r)
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

// CloseIdleConnections passes on what http.Client asks for.
func (t *fencedTransport) CloseIdleConnections() {
	if closer, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *fencedTransport) WrappedRoundTripper() http.RoundTripper { return t.next }
