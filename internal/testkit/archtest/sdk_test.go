package archtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/archtest"
	"kusionstack.io/kuperator/internal/testkit/pages"
)

// TestTheSDKInAnotherModule follows docs/sdk/import.md in a fresh module: it builds, and gets nothing of tests or of a
// cloud.
func TestTheSDKInAnotherModule(t *testing.T) {
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	source, err := os.ReadFile(filepath.Join(root, "docs/sdk/import.md"))
	require.NoError(t, err)
	module, commands := t.TempDir(), ""
	for _, block := range pages.Read("docs/sdk/import.md", source).Blocks {
		switch block.Language {
		case "go":
			require.NoError(t, os.WriteFile(filepath.Join(module, "main.go"), []byte(block.Text), 0o600))
		case "bash":
			commands += block.Text + "\n"
		}
	}
	require.Contains(t, commands, "../kuperator")
	run := func(script string) string {
		cmd := exec.CommandContext(t.Context(), "bash", "-ec", script)
		cmd.Dir, cmd.Env = module, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", script, out)
		return string(out)
	}
	run("go mod init example.com/mine\n" + strings.ReplaceAll(commands, "../kuperator", root))
	for _, dependency := range strings.Fields(run("go list -deps .")) {
		for _, no := range []string{"/testify", "/rapid", "alibaba", archtest.Module + "/internal/testkit"} {
			assert.NotContains(t, dependency, no)
		}
	}
}
