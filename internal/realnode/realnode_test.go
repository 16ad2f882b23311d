package realnode

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unpacked are the files of a tar archive.
func unpacked(t *testing.T, archive io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for in := tar.NewReader(archive); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		content, err := io.ReadAll(in)
		require.NoError(t, err)
		files[header.Name] = content
	}
}

func TestImagesOfOneProgramShareItsLayer(t *testing.T) {
	program := filepath.Join(t.TempDir(), "web")
	require.NoError(t, os.WriteFile(program, []byte("binary"), 0o600))
	var archive bytes.Buffer
	require.NoError(t, writeImages(&archive,
		Image{Name: "example.test/web:1", Program: program, Env: []string{"VERSION=1"}},
		Image{Name: "example.test/web:2", Program: program, Args: []string{"pause"}, Env: []string{"VERSION=2"}}))

	files := unpacked(t, &archive)
	blob := func(d descriptor) []byte {
		content := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		sum := sha256.Sum256(content)
		require.Equal(t, "sha256:"+hex.EncodeToString(sum[:]), d.Digest)
		require.Len(t, content, d.Size)
		return content
	}
	var index struct{ Manifests []descriptor }
	require.NoError(t, json.Unmarshal(files["index.json"], &index))
	require.Len(t, index.Manifests, 2)
	layers := map[string]bool{}
	for i, want := range []string{`"Entrypoint":["/web"]`, `"Entrypoint":["/web","pause"]`} {
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		require.NoError(t, json.Unmarshal(blob(index.Manifests[i]), &manifest))
		require.Contains(t, string(blob(manifest.Config)), want)
		require.Contains(t, string(blob(manifest.Config)), manifest.Layers[0].Digest)
		require.Equal(t, "binary", string(unpacked(t, bytes.NewReader(blob(manifest.Layers[0])))["web"]))
		layers[manifest.Layers[0].Digest] = true
	}
	require.Len(t, layers, 1)
	require.Equal(t, "example.test/web:2", index.Manifests[1].Annotations["io.containerd.image.name"])
}

func TestWhatEndedRunsLeftIsRemovedAndOthersStay(t *testing.T) {
	if err := Missing(); err != nil {
		t.Skip("makes cgroups: ", err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	dir, release, err := claimFolder()
	require.NoError(t, err)
	ended, releaseEnded, err := claimFolder()
	require.NoError(t, err)
	for _, run := range []string{dir, ended} {
		require.NoError(t, makeCgroup(filepath.Base(run)+"/node/pods"))
		t.Cleanup(func() { require.NoError(t, removeCgroup(filepath.Base(run))) })
	}
	hierarchy, _, err := hierarchies()
	require.NoError(t, err)
	require.DirExists(t, dir, "somebody holds it")
	releaseEnded()

	third, releaseThird, err := claimFolder()
	require.NoError(t, err)
	defer releaseThird()
	require.DirExists(t, dir)
	require.DirExists(t, filepath.Join(hierarchy[0], filepath.Base(dir), "node"))
	require.NoDirExists(t, ended)
	require.NoDirExists(t, filepath.Join(hierarchy[0], filepath.Base(ended)))
	require.DirExists(t, third)
	release()
}

func TestTreesOfFoldersAreRemoved(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "a", "b"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "c"), 0o700))
	require.NoError(t, removeTree(root))
	require.NoDirExists(t, root)
	require.NoError(t, removeTree(root), "it is gone already")
}
