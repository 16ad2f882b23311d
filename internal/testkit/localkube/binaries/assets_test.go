package binaries

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// source is a folder that go env can run in and that decides a recipe's key.
func source(t *testing.T, content string) string {
	path := filepath.Join(t.TempDir(), "source.txt")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestAFolderOfTheCacheIsBuiltOnce(t *testing.T) {
	t.Setenv(CacheVariable, t.TempDir())
	var builds atomic.Int32
	started, release := make(chan struct{}), make(chan struct{})
	r := recipe{name: "a thing", sources: []string{source(t, "one")}, build: func(_ context.Context, _ *Compiler, into string) error {
		builds.Add(1)
		close(started) // a second build would panic
		<-release
		return os.WriteFile(filepath.Join(into, "made"), []byte("x"), 0o600)
	}}
	var progress bytes.Buffer
	dirs := make([]string, 4)
	var wg sync.WaitGroup
	wg.Go(func() {
		dir, err := cachedBuild(t.Context(), &progress, r)
		require.NoError(t, err)
		dirs[0] = dir
	})
	<-started
	for i := range dirs[1:] {
		wg.Go(func() {
			dir, err := cachedBuild(t.Context(), nil, r)
			require.NoError(t, err)
			dirs[i+1] = dir
		})
	}
	close(release)
	wg.Wait()

	require.EqualValues(t, 1, builds.Load())
	for _, dir := range dirs {
		require.Equal(t, dirs[0], dir)
	}
	require.FileExists(t, filepath.Join(dirs[0], "made"))
	require.Contains(t, progress.String(), "building a thing once")

	progress.Reset()
	_, err := cachedBuild(t.Context(), &progress, r)
	require.NoError(t, err)
	require.Empty(t, progress.String(), "a filled cache is no news")
}

func TestAFailedBuildLeavesNothing(t *testing.T) {
	cache := t.TempDir()
	t.Setenv(CacheVariable, cache)
	broken := errors.New("out of paper")
	fail := true
	r := recipe{name: "a thing", sources: []string{source(t, "one")}, build: func(_ context.Context, _ *Compiler, into string) error {
		require.NoError(t, os.WriteFile(filepath.Join(into, "half"), []byte("x"), 0o600))
		if fail {
			return broken
		}
		return nil
	}}
	_, err := cachedBuild(t.Context(), nil, r)
	require.ErrorIs(t, err, broken)
	entries, err := os.ReadDir(cache)
	require.NoError(t, err)
	for _, entry := range entries {
		require.False(t, entry.IsDir(), "%s was left behind", entry.Name())
	}

	fail = false
	_, err = cachedBuild(t.Context(), nil, r)
	require.NoError(t, err, "a failure is not remembered")
}

func TestOtherSourcesGiveAnotherFolder(t *testing.T) {
	cache := t.TempDir()
	t.Setenv(CacheVariable, cache)
	keyOf := func(content string) string {
		key, err := recipe{sources: []string{source(t, content)}}.key(t.Context())
		require.NoError(t, err)
		return key
	}
	require.Equal(t, keyOf("one"), keyOf("one"))
	require.NotEqual(t, keyOf("one"), keyOf("two"))
}

func TestEveryVersionHasItsModules(t *testing.T) {
	root, err := projectRoot()
	require.NoError(t, err)
	keys := map[string]string{}
	for _, version := range Versions() {
		of, err := ReleaseOf(version)
		require.NoError(t, err)
		require.Contains(t, of.version, "v"+version+".")
		goMod, err := os.ReadFile(filepath.Join(root, "hack", "cluster", of.modFile))
		require.NoError(t, err)
		require.Contains(t, string(goMod), "\tk8s.io/kubernetes "+of.version+"\n")
		staging := "v0" + strings.TrimPrefix(of.version, "v1")
		for _, module := range []string{"api", "apimachinery", "apiserver", "client-go"} {
			require.Contains(t, string(goMod), "k8s.io/"+module+" => k8s.io/"+module+" "+staging+"\n")
		}
		plan, err := controlPlane(version)
		require.NoError(t, err)
		key, err := plan.key(t.Context())
		require.NoError(t, err)
		require.Empty(t, keys[key], "each has a folder of its own")
		keys[key] = version
	}
	require.Equal(t, OldestVersion, Versions()[len(Versions())-1])
}

func TestTheVersionIsTheOneAskedForElseThatOfTheEnvironmentElseTheNewest(t *testing.T) {
	for name, tc := range map[string]struct{ asked, environment, want string }{
		"neither":             {want: "1.37"},
		"asked for":           {asked: "1.30", want: "1.30"},
		"the environment":     {environment: "1.30", want: "1.30"},
		"both":                {asked: "1.36", environment: "1.30", want: "1.36"},
		"as it is often said": {asked: "v1.30", want: "1.30"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(VersionVariable, tc.environment)
			got, err := ReleaseOf(tc.asked)
			require.NoError(t, err)
			require.Equal(t, tc.want, got.minor)
		})
	}
	_, err := ReleaseOf("1.12")
	require.ErrorContains(t, err, "1.37, 1.36, 1.30")
}

func TestAssetsTakesAGivenFolderOnlyWhenItIsComplete(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(AssetsVariable, dir)
	_, err := Assets(t.Context(), nil)
	require.ErrorIs(t, err, os.ErrNotExist)

	for _, name := range append([]string{Kwok}, controlPlaneRoles...) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	got, err := Assets(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, dir, got)
}
