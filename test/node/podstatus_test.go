package node

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/podstatus"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

var update = flag.Bool("update", false, "write what the kubelet reports to the file of package podstatus")

// TestStatusOfAPod: the simulated kubelet is compared with what a real one reports (internal/testkit/localkube).
func TestStatusOfAPod(t *testing.T) {
	needsRealNodes(t)
	w := newWorld(t, 1, suite.Config{Components: []string{suite.Lifecycle}})
	w.create(t)
	stops, err := podstatus.Play(t.Context(), w.client, namespace, images["1"], images["2"],
		"kuperator.test/web:non-exist")
	require.NoError(t, err)
	text := podstatus.Text(stops)
	if *update {
		file := filepath.Join(root(t), "internal", "testkit", "podstatus", "testdata", "kubelet.txt")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		return
	}
	require.Equal(t, podstatus.Real, text,
		"KUPERATOR_NODE_TESTS=1 go test ./test/node -run TestStatusOfAPod -args -update writes it")
}
