package suite

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/localkube"
)

// checkout is a small project as components are built from.
func checkout(t *testing.T) (root string, write func(path, text string)) {
	root = t.TempDir()
	write = func(path, text string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(text), 0o600))
	}
	write("go.mod", "module "+modulePath+"\n\ngo 1.26\n")
	write("go.sum", "")
	write("api/a.go", "package api\n")
	write("internal/x/x.go", "package x\n\nconst Name = \"x\"\n")
	write("internal/testkit/t.go", "package testkit\n")
	write("cmd/one/main.go", "package main\n\nimport \"kusionstack.io/kuperator/internal/x\"\n\nfunc main() { println(x.Name) }\n")
	write("cmd/two/main.go", "package main\n\nfunc main() {}\n")
	return root, write
}

func TestComponentsAreBuiltOnceForAllCheckoutsOfOneContent(t *testing.T) {
	t.Setenv(localkube.CacheVariable, t.TempDir())
	first, _ := checkout(t)
	second, write := checkout(t)
	at := func(root string, names ...string) (dir string, built time.Time) {
		t.Helper()
		dir, err := build(t.Context(), root, false, "", names...)
		require.NoError(t, err)
		info, err := os.Stat(filepath.Join(dir, names[0]))
		require.NoError(t, err)
		return dir, info.ModTime()
	}
	dir, built := at(first, "one")
	again, builtAgain := at(second, "one", "two")
	require.Equal(t, dir, again)
	require.Equal(t, built, builtAgain, "it is not built again")
	require.FileExists(t, filepath.Join(dir, "two"))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "nothing else is left there")

	write("internal/x/x_test.go", "package x\n")
	write("internal/testkit/t.go", "package testkit // changed\n")
	same, _ := at(second, "one")
	require.Equal(t, dir, same, "tests are not in it")
	write("internal/x/x.go", "package x\n\nconst Name = \"y\"\n")
	changed, _ := at(second, "one")
	require.NotEqual(t, dir, changed)

	write("internal/x/x.go", "package x\n\nconst Name = \n")
	_, err = build(t.Context(), second, false, "", "one")
	require.ErrorContains(t, err, "internal/x/x.go")
}

func TestBuildsThatWereNotUsedForLongAreRemoved(t *testing.T) {
	now := time.Now()
	used := map[string]time.Time{"running": now.Add(-keptFor / 2)}
	for i, name := range []string{"a", "b", "c", "d"} {
		used[name] = now.Add(-time.Duration(i) * time.Minute)
	}
	require.Empty(t, oldBuilds(used, now), "a suite may run that is not among the last")
	used["old"], used["older"] = now.Add(-keptFor-time.Minute), now.Add(-2*keptFor)
	require.ElementsMatch(t, []string{"old", "older"}, oldBuilds(used, now))
	require.Empty(t, oldBuilds(map[string]time.Time{"old": used["old"], "older": used["older"]}, now), "a few are kept")
}
