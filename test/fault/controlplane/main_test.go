package controlplane

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/faultreport"
	"kusionstack.io/kuperator/internal/testkit/race"
	"kusionstack.io/kuperator/internal/testkit/story"
	"kusionstack.io/kuperator/internal/testkit/suite"
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

// everything is the suite on a cluster whose etcd waits for the disk. Leases are so long that the same processes live
// through most outages: package leadership is about their loss.
var everything = testsuite.Share(func(ctx context.Context) (*story.World, error) {
	args := map[string][]string{}
	for _, component := range suite.Components() {
		if component != suite.Webhook {
			args[component] = []string{"--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=50s"}
		}
	}
	return story.Start(ctx, suite.Config{
		Args: args,
		Name: "controlplane", Nodes: 2, Race: race.Enabled, AuditReads: true, Progress: os.Stderr,
		EtcdArgs: []string{"--unsafe-no-fsync=false"},
	})
})

func TestMain(m *testing.M) { everything.Main(m) }

// plan tells a story with every component of the cluster and of the suite running and leading.
func plan(t *testing.T, name, scenario string, tell func(*story.Plan)) {
	t.Helper()
	w := everything.Get(t)
	story.Tell(t, w, name, faultreport.Row{Suite: "control plane", Scenario: scenario}, func(p *story.Plan) {
		p.Lossy = true
		p.Again = func() { startKubeletsAnew(p) }
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

// startKubeletsAnew has kwok look at every Pod, once Pods can be written. It plays a change once, and when it cannot
// write what came of it, never again; a kubelet goes on trying. The API server has a connection to etcd for Pods
// alone, which after a restart of etcd may come back seconds after others: a get of one Pod reads by it.
func startKubeletsAnew(p *story.Plan) {
	p.Helper()
	p.Eventually("an answer about a Pod from etcd", func() error {
		return client.IgnoreNotFound(p.Client.Get(p.Context(), client.ObjectKey{Namespace: p.Namespace, Name: "any"},
			&corev1.Pod{}))
	})
	require.NoError(p, p.Cluster.StopComponent(kubelets))
	require.NoError(p, p.Cluster.StartComponent(p.Context(), kubelets))
}
