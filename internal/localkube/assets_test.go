package localkube

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
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
	r := recipe{name: "a thing", sources: []string{source(t, "one")}, build: func(_ context.Context, into string) error {
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
	require.Contains(t, progress.String(), "several minutes")

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
	r := recipe{name: "a thing", sources: []string{source(t, "one")}, build: func(_ context.Context, into string) error {
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

func TestAssetsTakesAGivenFolderOnlyWhenItIsComplete(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(AssetsVariable, dir)
	_, err := Assets(t.Context(), nil)
	require.ErrorIs(t, err, os.ErrNotExist)

	for _, name := range append([]string{kwok}, controlPlaneRoles...) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	got, err := Assets(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, dir, got)
}
