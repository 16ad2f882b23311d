package clocks

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/faultreport"
	"kusionstack.io/kuperator/internal/testkit/story"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
)

const (
	image1 = "web:1"
	image2 = "web:2"
	image3 = "web:3"

	// furthest is how much a clock is fast or slow at most.
	furthest = 10 * time.Minute
)

// start starts the suite with clocks that can be put wrong.
func start(t *testing.T) (*story.World, clocks) {
	t.Helper()
	if !story.All() {
		t.Skip("builds the standard library anew: make test-faults runs it")
	}
	c := clocks{dir: t.TempDir()}
	w, err := story.Start(t.Context(), suite.Config{
		Name: "clocks", Nodes: 2, Progress: os.Stderr, BuildOverlay: c.overlay(t), Env: c.environment(),
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		testsuite.Explain(t, w)
		if err := w.Stop(); err != nil {
			t.Errorf("stopping the suite: %v", err)
		}
	})
	return w, c
}

// TestClocksApart puts the clocks of all components wrong, each by a different time, and in the midst of a rollout by
// another one, as where a component is moved to another node.
func TestClocksApart(t *testing.T) {
	w, clocks := start(t)
	for i := range 6 {
		story.Tell(t, w, fmt.Sprint(i), faultreport.Row{Suite: "clocks",
			Scenario: "rollouts, scales and a deletion, clocks up to 10 minutes wrong"}, func(p *story.Plan) {
			p.Lossy = true // who is restarted waits for a Lease
			wrong := func(component string) {
				by := time.Duration(p.Random.Int64N(int64(2*furthest))) - furthest
				switch p.Random.IntN(4) {
				case 0:
					by = furthest
				case 1:
					by = -furthest
				}
				clocks.set(p.T, component, by)
				require.NoError(p, p.Restart(p.Context(), component))
				p.Fault("clock put wrong")
				p.Logf("%s is fast by %s", component, by.Round(time.Second))
			}
			for _, component := range suite.Components() {
				wrong(component)
			}
			require.NoError(p, p.WaitLeading(p.Context(), suite.Components()...))
			p.WithRules("web", image1, 6, "2")
			before := p.UIDs("web")
			p.SetImage("web", image2)
			p.Within(time.Second)
			order := p.Random.Perm(len(suite.Components()))
			for _, at := range order[:2] {
				wrong(suite.Components()[at])
			}
			p.WaitAtRest("web", 6, image2)
			require.Equal(p, before, p.UIDs("web"), "in place: no Pod is recreated")
			p.Scale("web", 8)
			p.WaitAtRest("web", 8, image2)
			p.Patch("web", fmt.Sprintf(`{"spec":{"replicas":5,"updateStrategy":{"podUpgradePolicy":%q}}}`,
				appsv1alpha1.PodUpdateRecreate))
			p.SetImage("web", image3)
			p.Within(time.Second)
			wrong(suite.Components()[order[2]])
			p.WaitAtRest("web", 5, image3)
			deleteGracefully(p, "web")
			p.WaitAtRest("web", 5, image3)
		})
	}
}

// deleteGracefully deletes a Pod as a user does, and waits until it is gone.
func deleteGracefully(p *story.Plan, name string) {
	p.Helper()
	pods, err := p.Pods(name)
	require.NoError(p, err)
	_, err = p.Kubectl(p.Context(), "-n", p.Namespace, "delete", "pod", pods[0].Name, "--wait=false")
	require.ErrorContains(p, err, "is being taken out of service and is then deleted by itself")
	p.Eventually(pods[0].Name+" to be gone", func() error {
		if slices.Contains(p.UIDs(name), pods[0].UID) {
			return errors.New("it is there")
		}
		return nil
	})
}
