package realnode

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// holdVariable makes the test binary a run that does not end by itself.
const holdVariable = "KUPERATOR_REALNODE_HOLD"

func TestMain(m *testing.M) {
	if os.Getenv(holdVariable) == "" {
		os.Exit(m.Run())
	}
	os.Exit(Main(func() int {
		fmt.Println("inside", os.Getenv(folderVariable))
		time.Sleep(time.Hour)
		return 0
	}))
}

// within are the processes of a run.
func within(t *testing.T, dir string) []string {
	t.Helper()
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	var found []string
	for _, path := range environments {
		// What cannot be read has ended, or is ending.
		if content, err := os.ReadFile(path); err == nil && bytes.Contains(content, []byte(folderVariable+"="+dir+"\x00")) {
			found = append(found, path)
		}
	}
	return found
}

func TestARunEndsWhateverEndsIt(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("needs root on Linux")
	}
	for _, check := range []func() error{tryNamespaces, tryCgroups} {
		if err := check(); err != nil {
			t.Skip(err)
		}
	}
	t.Setenv("TMPDIR", t.TempDir())
	for _, signal := range []os.Signal{os.Interrupt, os.Kill} {
		t.Run(signal.String(), func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), holdVariable+"=1")
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			var dir string
			_, err = fmt.Fscanf(out, "inside %s\n", &dir)
			require.NoError(t, err)
			require.NotEmpty(t, within(t, dir))

			require.NoError(t, cmd.Process.Signal(signal))
			require.Error(t, cmd.Wait())
			require.Eventually(t, func() bool { return len(within(t, dir)) == 0 }, time.Minute, 20*time.Millisecond)
			if signal == os.Kill {
				require.DirExists(t, dir, "nobody was left to remove it")
				require.NoError(t, sweep())
			}
			require.NoDirExists(t, dir)
			hierarchy, _, err := hierarchies()
			require.NoError(t, err)
			require.NoDirExists(t, filepath.Join(hierarchy[0], filepath.Base(dir)))
		})
	}
}

func TestSweepFollowsNoLink(t *testing.T) {
	shared, elsewhere := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", shared)
	file := filepath.Join(elsewhere, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(shared, prefix+"link")))
	open := filepath.Join(shared, prefix+"open")
	require.NoError(t, os.Mkdir(open, 0o755))

	require.NoError(t, sweep())
	require.FileExists(t, file)
	require.NoFileExists(t, filepath.Join(elsewhere, "lock"))
	require.DirExists(t, open)
}

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
	require.Len(t, index.Manifests, 4, "each image by its tag and by its digest")
	const nameOf = "io.containerd.image.name"
	layers := map[string]bool{}
	for i, want := range []string{`"Entrypoint":["/web"]`, `"Entrypoint":["/web","pause"]`} {
		byTag, byDigest := index.Manifests[2*i], index.Manifests[2*i+1]
		require.Equal(t, byTag.Digest, byDigest.Digest)
		require.Equal(t, fmt.Sprintf("example.test/web:%d", i+1), byTag.Annotations[nameOf])
		require.Equal(t, "example.test/web@"+byTag.Digest, byDigest.Annotations[nameOf])
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		require.NoError(t, json.Unmarshal(blob(byTag), &manifest))
		require.Contains(t, string(blob(manifest.Config)), want)
		require.Contains(t, string(blob(manifest.Config)), manifest.Layers[0].Digest)
		require.Equal(t, "binary", string(unpacked(t, bytes.NewReader(blob(manifest.Layers[0])))["web"]))
		layers[manifest.Layers[0].Digest] = true
	}
	require.Len(t, layers, 1)
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
