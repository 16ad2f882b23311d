package controlplane

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/suite"
	"kusionstack.io/kuperator/internal/testkit/faultreport"
	"kusionstack.io/kuperator/internal/testkit/story"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
)

const (
	image1 = "web:1"
	image2 = "web:2"
	image3 = "web:3"

	apiServer         = "kube-apiserver"
	etcd              = "etcd"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
	kubelets          = "kwok"
)

// everything is the suite on a cluster whose etcd waits for the disk. Leases are so long that the same processes live through most
// outages: package leadership is about their loss.
var everything = testsuite.Share(func(ctx context.Context) (*story.World, error) {
	args := map[string][]string{}
	for _, component := range suite.Components() {
		if component != suite.Webhook {
			args[component] = []string{"--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=50s"}
		}
	}
	return story.Start(ctx, suite.Config{
		Args: args,
		Name: "controlplane", Nodes: 2, Race: raceDetector, AuditReads: true, Progress: os.Stderr,
		EtcdArgs: []string{"--unsafe-no-fsync=false"},
	})
})

func TestMain(m *testing.M) { everything.Main(m) }

// plan tells a story with every component of the cluster and of the suite running and leading.
func plan(t *testing.T, name, scenario string, tell func(*story.Plan)) {
	t.Helper()
	if os.Getenv("FAULTS") != "all" {
		t.Skip("not among the tests of every day before a whole run has passed (docs/reliability.md): run make test-faults")
	}
	w := everything.Get(t)
	story.Tell(t, w, name, faultreport.Row{Suite: "control plane", Scenario: scenario}, func(p *story.Plan) {
		p.Lossy = true
		recover := func() {
			for _, component := range []string{etcd, apiServer, controllerManager, scheduler, kubelets} {
				require.NoError(p, p.Cluster.StartComponent(context.WithoutCancel(p.Context()), component))
			}
		}
		p.Cleanup(recover)
		recover()
		_, err := p.Revive(p.Context())
		require.NoError(p, err)
		require.NoError(p, p.WaitLeading(p.Context(), suite.Components()...))
		tell(p)
	})
}

// rolling begins a rollout of 8 Pods under a rule, and returns when it is under way.
func rolling(p *story.Plan) (finish func()) {
	p.Helper()
	p.WithRules("web", image1, 8, "2")
	before := p.UIDs("web")
	p.SetImage("web", image2)
	p.Eventually("the rollout", func() error { return p.Updated("web", 1, image2) })
	return func() {
		p.Helper()
		startKubeletsAnew(p)
		p.WaitAtRest("web", 8, image2)
		require.Equal(p, before, p.UIDs("web"), "in place: no Pod is recreated")
	}
}

// startKubeletsAnew has kwok look at every Pod. It plays a change once, and when it cannot write what came of it, never again; a
// kubelet goes on trying.
func startKubeletsAnew(p *story.Plan) {
	p.Helper()
	require.NoError(p, p.Cluster.StopComponent(kubelets))
	require.NoError(p, p.Cluster.StartComponent(p.Context(), kubelets))
}
