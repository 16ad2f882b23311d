package resourceconsist_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
)

// TestThePageWithoutGo runs every command of the page in its order, with no controller for Services: the page's reader
// is that controller.
func TestThePageWithoutGo(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	page, err := os.ReadFile("../../../docs/adapters/without-go.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(blocks), 10)
	script := "set -euo pipefail\n"
	for _, b := range blocks {
		script += b[1]
	}

	w := start(t)
	s := w.shop(t)
	s.createService(t, "web")
	s.createPod(t, "web-0")
	seen := s.record(t, "web-0", "web")
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // each of its waits gives up after two
	defer cancel()
	commands := exec.CommandContext(ctx, "bash", "-x", "-c", script)
	commands.Dir = dir
	commands.WaitDelay = 10 * time.Second
	commands.Env = append(os.Environ(), "NS="+s.namespace, "KUBECONFIG="+w.cluster.AdminKubeconfig, "HOME="+dir,
		"PATH="+w.cluster.AssetsDir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	out, err := commands.CombinedOutput()
	require.NoErrorf(t, err, "the page's commands:\n%s", out)
	require.NotContains(t, string(out), "old view was accepted")
	require.Contains(t, string(out), "Conflict", "the patch on an old view was refused for being old")

	s.eventually(t, "the finalizer came and went twice", func() bool { return len(seen.removals()) == 2 })
	view := podops.Read(s.pod(t, "web-0"))
	require.Empty(t, podops.Operations(view))
	require.NotContains(t, view.Finalizers, api.Finalizer("web"))
	require.True(t, s.bound(t, s.pod(t, "web-0")), "the Pod is released")
}
