package e2e

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/nightly"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// TestIdle has a cluster where nothing happens: the suite writes nothing but its
// Leases, and asks nothing again and again.
func TestIdle(t *testing.T) {
	quiet, observed, reads := 5*time.Second, 20*time.Second, 3
	if nightly.Run() {
		quiet, observed, reads = 15*time.Second, time.Minute, 9
	}
	w := alone(t)
	ns := w.namespace(t)
	w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "1"), workload.CollaSet(ns, "web", image1, 5))
	w.waitServing(t, ns, "web", 5, image1)
	busy := func(since time.Time) []suite.Request {
		requests, err := w.Requests(since)
		require.NoError(t, err)
		var ours []suite.Request
		for _, r := range requests {
			if r.Component() != "" && r.Resource != "leases" && r.Verb != "watch" { // a long watch ends and begins again
				ours = append(ours, r)
			}
		}
		return ours
	}
	await.Nil(t, "a quiet suite", func() error {
		if requests := busy(time.Now().Add(-quiet)); len(requests) > 0 {
			return errors.New(requests[len(requests)-1].String())
		}
		return nil
	})
	begin := time.Now()
	await.Always(t, observed, "nothing happens",
		func() error { return workload.AtRest(t.Context(), w.client, ns, "web", 5, image1) })
	for _, r := range busy(begin) {
		require.False(t, r.Write(), "only Leases are written while nothing happens: %s", r)
	}
	require.LessOrEqual(t, len(busy(begin)), reads, "reads while idle: %v", busy(begin))
	leases := 0
	requests, err := w.Requests(begin)
	require.NoError(t, err)
	for _, r := range requests {
		if r.Component() != "" && r.Resource == "leases" && r.Write() {
			leases++
		}
	}
	require.Positive(t, leases, "the audit log shows the Leases, so it would show more")
}
