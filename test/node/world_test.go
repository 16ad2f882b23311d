package node

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/realnode"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

const (
	// patience bounds a wait for something that takes seconds, on a busy machine.
	patience = 3 * time.Minute
	interval = 100 * time.Millisecond
	// remark is how often a wait is logged that takes longer.
	remark = 15 * time.Second
)

// world is a cluster with real nodes, the suite on it, and a user of both.
type world struct {
	*suite.Suite
	cluster *localkube.Cluster
	client  client.Client
	nodes   []*realnode.Node
}

// images are versions of the HTTP server.
var images = map[string]string{"1": "kuperator.test/web:1", "2": "kuperator.test/web:2", "3": "kuperator.test/web:3"}

func needsRealNodes(t *testing.T) {
	t.Helper()
	if whyNot != "" {
		t.Skip(whyNot)
	}
}

// newWorld starts so many nodes, with the images of the HTTP server and more, and these components; nil means all.
func newWorld(t *testing.T, nodes int, config suite.Config, more ...realnode.Image) *world {
	t.Helper()
	begin := time.Now()
	kubelet, err := localkube.KubeletAsset(t.Context(), os.Stderr)
	require.NoError(t, err)
	server, err := realnode.BuildProgram(t.Context(), root(t), "./hack/webserver", t.TempDir())
	require.NoError(t, err)
	cluster, err := localkube.Start(t.Context(),
		localkube.Config{Name: "node", WithControllerManager: true, WithScheduler: true, Progress: os.Stderr})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Stop()) })
	w := &world{cluster: cluster}
	built := slices.Clone(more)
	for version, name := range images {
		built = append(built, realnode.Image{Name: name, Program: server, Env: []string{"VERSION=" + version, "WORK=5ms"}})
	}
	for n := range nodes {
		node, err := realnode.Start(t.Context(), cluster, n+1, kubelet, server, built...)
		require.NoError(t, err)
		w.nodes = append(w.nodes, node)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the logs of node %s:\n%s", node.Name, node.LogTail())
			}
			require.NoError(t, node.Stop())
		})
	}
	t.Logf("%d nodes are Ready after %s", nodes, time.Since(begin).Round(100*time.Millisecond))
	config.Kubeconfig = cluster.AdminKubeconfig
	w.Suite, err = suite.Start(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.LogTails())
		}
		if err := w.Stop(); err != nil {
			t.Errorf("stopping the suite: %v", err)
		}
	})
	require.NoError(t, w.WaitLeading(t.Context(), w.Running()...))
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, appsv1alpha1.AddToScheme(scheme))
	w.client, err = client.New(w.RESTConfig(), client.Options{Scheme: scheme})
	require.NoError(t, err)
	t.Logf("the suite leads after %s", time.Since(begin).Round(100*time.Millisecond))
	return w
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	return dir
}

// eventually waits until check returns nil.
func eventually(ctx context.Context, t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	begin, told := time.Now(), time.Now()
	for time.Since(begin) < patience {
		if err = check(); err == nil {
			return
		}
		if time.Since(told) > remark {
			told = time.Now()
			t.Logf("waiting for %s since %s: %v", what, time.Since(begin).Round(time.Second), err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v; last: %v", what, ctx.Err(), err)
		case <-time.After(interval):
		}
	}
	t.Fatalf("waited %s in vain for %s: %v", patience, what, err)
}
