package leadership

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/faultreport"
	"kusionstack.io/kuperator/internal/testkit/race"
	"kusionstack.io/kuperator/internal/testkit/story"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
)

const (
	image1 = "web:1"
	image2 = "web:2"
)

// controllers are the components of which one replica leads.
var controllers = []string{suite.CollaSet, suite.PodTransitionRule, suite.Lifecycle, suite.ResourceConsist,
	suite.OperationJob, suite.PodDecoration}

// everything is two replicas of each controller, and one webhook-server.
var everything = testsuite.Share(func(ctx context.Context) (*story.World, error) {
	processes := []string{suite.Webhook}
	for _, controller := range controllers {
		processes = append(processes, controller, suite.ReplicaName(controller, 2))
	}
	return story.Start(ctx, suite.Config{Name: "leadership", Nodes: 2, Race: race.Enabled, Components: processes,
		Progress: os.Stderr})
})

func TestMain(m *testing.M) { everything.Main(m) }

// leaseDuration is that of package suite.
const leaseDuration = 10 * time.Second

// figure tells how long a fail-over took until the next write, beside the goal.
func figure(p *story.Plan, controller, end string, goal, took time.Duration) {
	p.Logf("FIGURE P19 %s, %s: %s until the next write (goal %s, Lease %s)", end, controller, took.Round(time.Millisecond),
		goal, leaseDuration)
}

// plan tells a story with two replicas of each controller running, and one of them leading.
func plan(t *testing.T, name, scenario, component string, tell func(*story.Plan)) {
	t.Helper()
	w := everything.Get(t)
	story.Tell(t, w, name, faultreport.Row{Suite: "leadership", Scenario: scenario, Component: component},
		func(p *story.Plan) {
			for _, controller := range controllers {
				for _, replica := range replicas(controller) {
					if !slices.Contains(p.Running(), replica) {
						require.NoError(p, p.Restart(p.Context(), replica))
					}
				}
				leader(p, controller)
			}
			tell(p)
		})
}

func replicas(controller string) []string {
	return []string{suite.ReplicaName(controller, 1), suite.ReplicaName(controller, 2)}
}

// other is the replica that is not this one.
func other(replica string) string {
	both := replicas(suite.ComponentOf(replica))
	return both[1-slices.Index(both, replica)]
}

// leader waits until a replica leads.
func leader(p *story.Plan, controller string) (name string) {
	p.Helper()
	p.Eventually("a leader of "+controller, func() error {
		if name = p.Leader(p.Context(), controller); name == "" {
			return fmt.Errorf("none leads")
		}
		return nil
	})
	return name
}

// writesOf are the successful writes of one process to anything but Leases and events, received since a moment.
func writesOf(p *story.Plan, process string, since time.Time) []suite.Request {
	p.Helper()
	requests, err := p.Requests(since)
	require.NoError(p, err)
	return slices.DeleteFunc(requests, func(r suite.Request) bool {
		return r.Credential != p.Credential(process) || !r.Write() || r.Resource == "leases" || r.Resource == "events"
	})
}
