package install

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/child"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/localkube/binaries"
)

// foreign skips what only make test-foreign runs: to compile a program of others takes minutes.
func foreign(t *testing.T) {
	t.Helper()
	if os.Getenv("KUPERATOR_FOREIGN_TESTS") == "" {
		t.Skip("make test-foreign runs this")
	}
}

// runForeign applies the CRDs that lie at some places of a program's source, and runs it as administrator until the
// test ends.
func (w *world) runForeign(t *testing.T, of binaries.Foreign, args []string, crds ...string) {
	t.Helper()
	path, err := of.Asset(t.Context(), os.Stderr)
	require.NoError(t, err)
	source, err := of.Source(t.Context())
	require.NoError(t, err)
	for _, pattern := range crds {
		files, err := filepath.Glob(filepath.Join(source, filepath.FromSlash(pattern)))
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			w.kubectl(t, "apply", "--server-side", "-f", file)
		}
	}
	require.NoError(t, localkube.WaitForCRDs(t.Context(), w.cluster.RESTConfig()))
	p := &child.Process{Name: filepath.Base(path), Log: filepath.Join(t.TempDir(), "log")}
	own := t.TempDir()
	require.NoError(t, p.Start(path, args,
		[]string{"HOME=" + own, "TMPDIR=" + own, "KUBECONFIG=" + w.cluster.AdminKubeconfig}, false))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.Tail(40))
		}
		require.NoError(t, p.End(syscall.SIGTERM, stopGrace))
	})
}
