package plugin

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"kusionstack.io/kuperator/internal/dashboard"
)

func TestDashboardIsForThisMachine(t *testing.T) {
	for address, wrong := range map[string]string{
		"127.0.0.1:0": "", "localhost:8686": "", "[::1]:1": "",
		"0.0.0.0:80": "loopback", ":80": "loopback", "10.1.2.3:80": "loopback", "example.com:80": "loopback",
		"127.0.0.1": "host:port", "": "host:port",
	} {
		if err := loopback(address); wrong == "" {
			assert.NoError(t, err, address)
		} else {
			assert.ErrorContains(t, err, wrong, address)
		}
	}
}

// TestCopiedCommandsReachTheSameCluster: they have the flags by which this command chose it.
func TestCopiedCommandsReachTheSameCluster(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(file, []byte(`{apiVersion: v1, kind: Config, current-context: dev,
		contexts: [{name: dev, context: {cluster: a}}, {name: it's prod, context: {cluster: a}}],
		clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]}`), 0o600))
	t.Setenv("KUBECONFIG", file)
	p := &plugin{config: genericclioptions.NewConfigFlags(true), system: "kuperator-system"}
	assert.Equal(t, dashboard.Scope{Text: "namespace shop", Context: "dev", System: "kuperator-system"}, p.scope("shop"))
	prod := "it's prod"
	p.config.Context, p.config.KubeConfig = &prod, &file
	scope := p.scope("shop")
	assert.Equal(t, prod, scope.Context)
	assert.Equal(t, `--context='it'\''s prod' --kubeconfig=`+file, scope.Flags)
}

func TestDashboardRefusesWhatItCannotDo(t *testing.T) {
	for args, says := range map[string]string{
		"dashboard -o json":                "status --watch",
		"dashboard --address 0.0.0.0:8686": "loopback address only",
		"dashboard web":                    "unknown command",
	} {
		var problems bytes.Buffer
		code := Run(t.Context(), strings.Fields(args),
			genericiooptions.IOStreams{In: strings.NewReader(""), Out: &bytes.Buffer{}, ErrOut: &problems})
		assert.Equal(t, codeError, code, args)
		assert.Contains(t, problems.String(), says, args)
	}
}
