package controlplane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/story"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// TestTheAPIServer is killed, gone for longer than a Lease lasts, slow, and deaf.
func TestTheAPIServer(t *testing.T) {
	for range story.Times(3) {
		plan(t, "killed and restarted", "API server killed in a rollout", func(p *story.Plan) {
			finish := rolling(p)
			p.Within(300 * time.Millisecond)
			killed := time.Now()
			require.NoError(p, p.Cluster.KillComponent(apiServer))
			p.Fault("API server killed")
			require.NoError(p, p.Cluster.StartComponent(p.Context(), apiServer))
			ready := time.Now()
			finish()
			resumed(p, killed, ready)
		})
	}
	if !story.All() {
		return
	}
	plan(t, "gone for 30 seconds", "API server gone for 30 s in a rollout", func(p *story.Plan) {
		finish := rolling(p)
		killed := time.Now()
		require.NoError(p, p.Cluster.KillComponent(apiServer))
		p.Fault("API server gone")
		p.Always(30*time.Second, "nothing", func() error { return nil })
		require.NoError(p, p.Cluster.StartComponent(p.Context(), apiServer))
		ready := time.Now()
		finish()
		resumed(p, killed, ready)
	})
	plan(t, "slow", "API server that runs a fifth of the time", func(p *story.Plan) {
		finish := rolling(p)
		dutyCycle(p, 20*time.Second, 400*time.Millisecond, 100*time.Millisecond, func(run bool) error {
			if run {
				return p.Cluster.ResumeComponent(apiServer)
			}
			return p.Cluster.PauseComponent(apiServer)
		})
		p.Fault("API server slow")
		finish()
	})
	plan(t, "deaf", "API server that answers nobody for 20 s", func(p *story.Plan) {
		finish := rolling(p)
		require.NoError(p, p.Cluster.PauseComponent(apiServer))
		p.Fault("API server deaf")
		p.Always(20*time.Second, "nothing", func() error { return nil })
		require.NoError(p, p.Cluster.ResumeComponent(apiServer))
		finish()
	})
}

// resumed tells how long the suite took to write again, and how often it listed what.
func resumed(p *story.Plan, killed, ready time.Time) {
	p.Helper()
	requests, err := p.Requests(killed)
	require.NoError(p, err)
	first := time.Time{}
	lists := map[string]int{}
	for _, r := range requests {
		switch {
		case r.Component() == "" || r.Resource == "leases":
		case r.Verb == "list" && r.Resource != "":
			lists[r.Component()+" "+r.Resource]++
		case r.Write() && r.OK() && r.Resource != "events" && first.IsZero():
			first = r.Received
		}
	}
	p.Logf("FIGURE the suite wrote again %s after the API server was ready",
		max(0, first.Sub(ready)).Round(time.Millisecond))
	p.Logf("FIGURE lists since it was killed: %v", lists)
}

// dutyCycle lets something run and stop, in turns, for a while; it runs in the end.
func dutyCycle(p *story.Plan, d, stopped, running time.Duration, set func(run bool) error) {
	p.Helper()
	p.Cleanup(func() { _ = set(true) })
	for deadline := time.Now().Add(d); time.Now().Before(deadline); {
		for _, turn := range []struct {
			run bool
			d   time.Duration
		}{{false, stopped}, {true, running}} {
			require.NoError(p, set(turn.run))
			select {
			case <-p.Context().Done():
				p.Fatal(p.Context().Err())
			case <-time.After(turn.d):
			}
		}
	}
}

// TestStarved has components that get a tenth of the time: slow, and right.
func TestStarved(t *testing.T) {
	if !story.All() {
		t.Skip("FAULTS=all runs it")
	}
	plan(t, "all components", "components that run a tenth of the time", func(p *story.Plan) {
		finish := rolling(p)
		dutyCycle(p, 20*time.Second, 450*time.Millisecond, 50*time.Millisecond, func(run bool) error {
			for _, name := range p.Running() {
				change := p.Pause
				if run {
					change = p.Resume
				}
				if err := change(name); err != nil {
					return err
				}
			}
			return nil
		})
		p.Fault("CPU starved")
		finish()
	})
	for _, component := range suite.Components() {
		plan(t, component, "one component that runs a tenth of the time", func(p *story.Plan) {
			finish := rolling(p)
			dutyCycle(p, 10*time.Second, 450*time.Millisecond, 50*time.Millisecond, func(run bool) error {
				if run {
					return p.Resume(component)
				}
				return p.Pause(component)
			})
			p.Fault("CPU starved")
			finish()
		})
	}
}

// TestWithoutTheControllersOfKubernetes has each of them stopped for a part of a rollout that scales as well.
func TestWithoutTheControllersOfKubernetes(t *testing.T) {
	if !story.All() {
		t.Skip("FAULTS=all runs it")
	}
	for _, component := range []string{controllerManager, scheduler, kubelets} {
		plan(t, component, component+" stopped in a rollout and a scale-out", func(p *story.Plan) {
			rolling(p)
			require.NoError(p, p.Cluster.KillComponent(component))
			p.Fault(component + " stopped")
			p.Scale("web", 10)
			p.Always(8*time.Second, "nothing", func() error { return nil })
			require.NoError(p, p.Cluster.StartComponent(p.Context(), component))
			p.WaitAtRest("web", 10, image2)
		})
	}
}
