package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/localkube"
)

// in runs a command in a folder.
func in(t *testing.T, dir string, environment []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), environment...)
	out, err := cmd.CombinedOutput()
	require.NoErrorf(t, err, "%s %v\n%s", name, args, out)
	return string(out)
}

// TestTwoClonesGiveTheSameRelease makes the release in two clones, and uses what the first one made.
func TestTwoClonesGiveTheSameRelease(t *testing.T) {
	if os.Getenv("KUPERATOR_RELEASE") == "" {
		t.Skip("builds everything: make test-release")
	}
	released := func(environment ...string) release {
		clone := filepath.Join(t.TempDir(), "clone")
		in(t, projectRoot, nil, "git", "clone", "--quiet", "--no-hardlinks", ".", clone)
		in(t, clone, environment, "make", "release", "VERSION=v9.8.7", "REPOSITORY=registry.example.com/kuperator")
		r, err := parse([]string{"-root", clone, "-out", filepath.Join(clone, "bin", "release"), "-version", "v9.8.7"})
		require.NoError(t, err)
		return r
	}
	r := released()
	other := released("TZ=Asia/Shanghai", "GOFLAGS=-tags=anything")
	r.checkSums(t)
	other.checkSums(t)
	require.Equal(t, r.read(t, sums), other.read(t, sums))

	t.Run("krew installs the plugin", func(t *testing.T) { installWithKrew(t, r) })
	t.Run("helm renders the chart", func(t *testing.T) {
		helm, err := localkube.HelmAsset(t.Context(), os.Stderr)
		require.NoError(t, err)
		rendered := in(t, r.out, nil, helm, "template", "kuperator", r.chartFile(), "--namespace", "kuperator-system")
		found := imageLine.FindAllStringSubmatch(rendered, -1)
		installed := imageLine.FindAllStringSubmatch(r.read(t, "install-full.yaml"), -1)
		require.Len(t, found, len(installed))
		for _, image := range found {
			assert.Regexp(t, `^"?registry\.example\.com/kuperator/[a-z-]+:v9\.8\.7"?$`, image[1])
		}
	})
}

func installWithKrew(t *testing.T, r release) {
	bin := t.TempDir()
	in(t, filepath.Join(projectRoot, "hack", "krew"), nil, "go", "build", "-o", bin, "sigs.k8s.io/krew/cmd/krew")
	home := t.TempDir()
	archive := pluginName + "_" + runtime.GOOS + "_" + runtime.GOARCH + ".tar.gz"
	in(t, r.out, []string{"KREW_ROOT=" + home}, filepath.Join(bin, "krew"), "install", "--manifest=kuperator.yaml",
		"--archive="+archive)
	version := in(t, home, nil, filepath.Join(home, "bin", pluginName), "version", "--client")
	assert.Contains(t, version, "v9.8.7")
	store := filepath.Join(home, "store", "kuperator", "v9.8.7")
	assert.FileExists(t, filepath.Join(store, "LICENSE"))
	assert.FileExists(t, filepath.Join(store, "kubectl_complete-kuperator"))
}
