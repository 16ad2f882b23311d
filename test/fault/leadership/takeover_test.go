package leadership

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/story"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// TestALeaderIsKilled kills the leader of every controller, each at a random moment of a rollout under a rule. The
// other replica goes on where it was.
func TestALeaderIsKilled(t *testing.T) {
	for i := range story.Times(40) {
		plan(t, fmt.Sprint(i), "rollout with a rule, leaders killed", "", func(p *story.Plan) {
			p.WithRules("web", image1, 8, "2")
			before := p.UIDs("web")
			p.SetImage("web", image2)
			order := slices.Clone(controllers)
			p.Random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			for _, controller := range order {
				p.Within(time.Second)
				killed := leader(p, controller)
				unfinished := p.AtRest("web", 8, image2) != nil
				require.NoError(p, p.Kill(killed))
				if unfinished {
					p.Fault("leader killed")
				}
				p.Logf("killed %s while %v", killed, p.Updated("web", 8, image2))
			}
			p.WaitAtRest("web", 8, image2)
			require.Equal(p, before, p.UIDs("web"), "in place: no Pod is recreated")
			for _, controller := range controllers {
				leader(p, controller)
			}
		})
	}
}

// TestALeaderIsAskedToStop has the leader give its Lease back. How long the other one takes until it leads, and until
// it has written, is told beside the time after a crash; nothing is asserted about it.
func TestALeaderIsAskedToStop(t *testing.T) {
	for _, end := range []struct {
		fault, name string
		end         func(*story.Plan, string) error
		goal        time.Duration
	}{
		{"leader asked to stop", "graceful", func(p *story.Plan, name string) error { return p.StopComponent(name) },
			2 * time.Second},
		{"leader killed", "crash", func(p *story.Plan, name string) error { return p.Kill(name) },
			leaseDuration + 2*time.Second},
	} {
		if end.name == "crash" && !story.All() {
			continue // TestALeaderIsKilled does it
		}
		for _, controller := range controllers {
			if !story.All() && controller != suite.PodTransitionRule && controller != suite.CollaSet {
				continue
			}
			for i := range story.Times(5) {
				plan(t, fmt.Sprintf("%s of %s %d", end.name, controller, i), "rollout with a rule, "+end.fault, controller,
					func(p *story.Plan) {
						p.WithRules("web", image1, 12, "1")
						p.SetImage("web", image2)
						p.Eventually("the rollout", func() error { return p.Updated("web", 1, image2) })
						ended := leader(p, controller)
						asked := time.Now()
						require.NoError(p, end.end(p, ended))
						gone := time.Since(asked)
						p.Fault(end.fault)
						p.Eventually("the other replica leads", func() error {
							if name := p.Leader(p.Context(), controller); name != other(ended) {
								return fmt.Errorf("%q leads", name)
							}
							return nil
						})
						leads := time.Since(asked)
						p.WaitAtRest("web", 12, image2)
						writes := writesOf(p, other(ended), asked)
						if len(writes) == 0 {
							p.Logf("%s had nothing left to write", other(ended))
							return
						}
						figure(p, controller, end.name, end.goal, writes[0].Received.Sub(asked))
						p.Logf("%s of %s: gone after %s, the other leads after %s and wrote after %s (%s)",
							end.name, ended, gone, leads, writes[0].Received.Sub(asked), writes[0])
					})
			}
		}
	}
}

// TestAPausedLeaderWakes stops a leader in its tracks until it has lost its Lease and another leads, in the midst of
// a rollout and of a scale-out, and lets it go on. Nothing that it still writes succeeds: it decided on what it saw
// when it led.
func TestAPausedLeaderWakes(t *testing.T) {
	chosen := []string{suite.CollaSet, suite.PodTransitionRule}
	if story.All() {
		chosen = controllers
	}
	for _, controller := range chosen {
		for i := range story.Times(8) {
			plan(t, fmt.Sprintf("%s %d", controller, i), "rollout and scale-out, leader paused until another leads", controller,
				func(p *story.Plan) {
					p.WithRules("web", image1, 6, "2")
					paused := leader(p, controller)
					p.SetImage("web", image2)
					if i%2 == 1 {
						p.Scale("web", 9)
					}
					p.Within(600 * time.Millisecond)
					require.NoError(p, p.Pause(paused))
					p.Fault("leader paused")
					p.Eventually("another leader", func() error {
						if name := p.Leader(p.Context(), controller); name != other(paused) {
							return fmt.Errorf("%q leads", name)
						}
						return nil
					})
					p.Within(2 * time.Second)
					woken := time.Now()
					require.NoError(p, p.Resume(paused))
					p.Eventually("the woken one to end, as one does that has lost its Lease", func() error {
						if slices.Contains(p.Running(), paused) {
							return errors.New(paused + " still runs")
						}
						return nil
					})
					require.Contains(p, p.LogTail(paused), "leader election lost")
					n := 6 + 3*(i%2)
					p.WaitAtRest("web", n, image2)
					for _, r := range writesOf(p, paused, woken) {
						p.Logf("%s: after it woke up: %s", paused, r)
						require.False(p, r.OK(), "the woken leader wrote: %s", r)
					}
					p.Checked("no write after the Lease was lost")
					require.NoError(p, p.Restart(p.Context(), paused))
				})
		}
	}
}
