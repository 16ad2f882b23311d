package controlplane

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/story"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// TestEtcd is killed, out of space, and put back to what it was some time ago.
func TestEtcd(t *testing.T) {
	for range story.Times(3) {
		plan(t, "killed and restarted", "etcd killed in a rollout", func(p *story.Plan) {
			finish := rolling(p)
			p.Within(300 * time.Millisecond)
			require.NoError(p, p.Cluster.KillComponent(etcd))
			p.Fault("etcd killed")
			require.NoError(p, p.Cluster.StartComponent(p.Context(), etcd))
			finish()
		})
	}
	if !story.All() {
		return
	}
	for range 3 {
		plan(t, "restored", "etcd restored from an older snapshot in a rollout", restored)
	}
	plan(t, "out of space", "etcd with its alarm NOSPACE", outOfSpace)
}

// restored goes back to before a rollout while that is under way. The suite is stopped meanwhile, as
// docs/operations/restore.md tells: a controller that is not would act once more on what it saw before.
func restored(p *story.Plan) {
	p.WithRules("web", image1, 6, "2")
	before := p.UIDs("web")
	require.NoError(p, p.Cluster.StopComponent(apiServer))
	require.NoError(p, p.Cluster.StopComponent(etcd))
	snapshot := filepath.Join(p.TempDir(), "etcd")
	require.NoError(p, os.CopyFS(snapshot, os.DirFS(p.Cluster.EtcdDir())))
	require.NoError(p, p.Cluster.StartComponent(p.Context(), etcd))
	require.NoError(p, p.Cluster.StartComponent(p.Context(), apiServer))

	p.SetImage("web", image2)
	p.WaitAtRest("web", 6, image2)
	p.SetImage("web", image3)
	p.Scale("web", 9)
	p.Eventually("the next rollout", func() error { return p.Updated("web", 1, image3) })
	require.NoError(p, p.StopObserver()) // what it knows will not have happened

	for _, component := range suite.Components() {
		require.NoError(p, p.StopComponent(component))
	}
	require.NoError(p, p.Cluster.KillComponent(apiServer))
	require.NoError(p, p.Cluster.KillComponent(etcd))
	require.NoError(p, os.RemoveAll(p.Cluster.EtcdDir()))
	require.NoError(p, os.CopyFS(p.Cluster.EtcdDir(), os.DirFS(snapshot)))
	p.Fault("etcd restored from a snapshot")
	// The administrator of a cluster restarts the components that watch: Kubernetes documents this for its own components.
	for _, component := range []string{controllerManager, scheduler, kubelets} {
		require.NoError(p, p.Cluster.StopComponent(component))
	}
	back := time.Now()
	require.NoError(p, p.Cluster.StartComponent(p.Context(), etcd))
	require.NoError(p, p.Cluster.StartComponent(p.Context(), apiServer))
	for _, component := range []string{controllerManager, scheduler, kubelets} {
		require.NoError(p, p.Cluster.StartComponent(p.Context(), component))
	}
	for _, component := range suite.Components() {
		require.NoError(p, p.Restart(p.Context(), component))
	}
	require.NoError(p, p.WaitLeading(p.Context(), suite.Components()...))
	p.SetImage("web", image2)
	p.WaitAtRest("web", 6, image2)
	p.Logf("FIGURE a rollout after the restoration took %s", time.Since(back).Round(time.Millisecond))
	require.Equal(p, before, p.UIDs("web"), "no Pod of the snapshot was lost")
	requests, err := p.Requests(back)
	require.NoError(p, err)
	for _, r := range requests {
		created := r.Component() != "" && r.Namespace == p.Namespace && r.Resource == "pods" && r.Subresource == "" &&
			r.Verb == "create" && r.OK()
		require.False(p, created, "of 6 Pods that are there: %s", r)
	}
	p.Checked("no Pod is created for what was undone")
	p.Observe()
	p.SetImage("web", image3)
	p.WaitAtRest("web", 6, image3)
}

// outOfSpace raises etcd's own alarm, by which it refuses every write but deletions, for longer than a Lease lasts.
func outOfSpace(p *story.Plan) {
	finish := rolling(p)
	alarm(p, "ACTIVATE")
	p.Cleanup(func() { alarm(p, "DEACTIVATE") })
	p.Fault("etcd out of space")
	p.Always(20*time.Second, "nothing", func() error { return nil })
	alarm(p, "DEACTIVATE")
	finish()
}

func alarm(p *story.Plan, action string) {
	p.Helper()
	member := struct {
		Header struct {
			ID string `json:"member_id"`
		} `json:"header"`
	}{}
	require.NoError(p, json.Unmarshal(ask(p, "/v3/maintenance/status", map[string]any{}), &member))
	ask(p, "/v3/maintenance/alarm", map[string]any{"action": action, "alarm": "NOSPACE", "memberID": member.Header.ID})
}

// ask posts to etcd's gateway.
func ask(p *story.Plan, path string, body any) []byte {
	p.Helper()
	content, err := json.Marshal(body)
	require.NoError(p, err)
	response, err := http.Post(p.Cluster.EtcdURL()+path, "application/json", bytes.NewReader(content))
	require.NoError(p, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(p, err)
	require.Equal(p, http.StatusOK, response.StatusCode, fmt.Sprintf("%s: %s", path, answer))
	return answer
}
