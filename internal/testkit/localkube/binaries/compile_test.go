package binaries

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimeLeftBeginsWithTheEstimateAndFollowsWhatIsSeen(t *testing.T) {
	const total = 1000
	whole := 10 * time.Minute
	require.Equal(t, whole, timeLeft(0, total, 0, whole))
	require.Equal(t, whole, timeLeft(0, total, 10*whole, whole), "it was something else, such as linking")
	require.InDelta(t, whole.Seconds()/2, timeLeft(500, total, whole/2, whole).Seconds(), 1, "as estimated")
	slow := timeLeft(500, total, 2*whole, whole)
	require.Greater(t, slow, whole+whole/2, "half took four times as long as estimated: so will the rest, nearly")
	require.Less(t, slow, 2*whole)
	fast := timeLeft(500, total, whole/20, whole)
	require.Less(t, fast, whole/8)
	require.Zero(t, timeLeft(total, total, whole, whole))
	require.Zero(t, timeLeft(0, 0, 0, 0), "nothing to do")
}

func TestMoreCoresTakeLessTime(t *testing.T) {
	require.Equal(t, 20*time.Second, estimate(20*bytesPerCPUSecond, 1))
	require.Equal(t, 5*time.Second, estimate(20*bytesPerCPUSecond, 4))
}

func TestDurationsAreSaidRoughly(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"some seconds":     4 * time.Second,
		"about 20 seconds": 17 * time.Second,
		"about a minute":   80 * time.Second,
		"about 12 minutes": 11*time.Minute + 40*time.Second,
	} {
		require.Equal(t, want, about(d))
	}
}

func TestEachPackageCountsOnceByItsWeight(t *testing.T) {
	now := time.Unix(0, 0)
	c := NewCompiler(&bytes.Buffer{})
	c.now = func() time.Time { return now }
	c.weights = map[string]int64{"a": 300 * bytesPerCPUSecond, "b": 100 * bytesPerCPUSecond}
	c.total, c.name, c.begun = 400*bytesPerCPUSecond, "a thing", now
	require.False(t, c.heard("# a"), "what the compiler says is kept for errors")
	require.True(t, c.heard("b"))
	c.heard("b")
	now = now.Add(100 * time.Second)
	require.Contains(t, c.status(), "1 of 2 packages compiled, about ")
	require.Contains(t, c.status(), " left (now: a thing)")
	require.True(t, c.heard("a"))
	require.Contains(t, c.status(), "the last of 2 packages")
}

func TestWhatWillBeCompiledIsSaidFirst(t *testing.T) {
	var out bytes.Buffer
	c := NewCompiler(&out)
	one, other := &Compilation{Name: "a control plane"}, &Compilation{Name: "programs"}
	c.Announce(one, other)
	require.Empty(t, out.String(), "nothing is to be compiled")
	one.weights = map[string]int64{"a": 1, "b": 1}
	c.weights = one.weights
	c.total = estimateOf(t, 600)
	c.Announce(one, other)
	require.Contains(t, out.String(), "to compile, once: 2 Go packages, about ")
	require.Contains(t, out.String(), "a control plane (2)")
	require.NotContains(t, out.String(), "programs (")
}

// estimateOf is a weight that is estimated to take some CPU seconds.
func estimateOf(t *testing.T, seconds int64) int64 {
	t.Helper()
	return seconds * bytesPerCPUSecond
}

// TestOnlyWhatTheCacheLacksIsPlanned compiles a small module that no run before had: its folder is in its sources.
func TestOnlyWhatTheCacheLacksIsPlanned(t *testing.T) {
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600))
	}
	write("go.mod", "module example.com/small\n\ngo 1.26\n")
	write("a/a.go", "package a\n\nconst A = 1 // "+dir+"\n")
	write("b/b.go", "package b\n\nimport \"example.com/small/a\"\n\nconst B = a.A // "+dir+"\n")
	plan := func() (*Compiler, *Compilation, *Compilation) {
		c := NewCompiler(&bytes.Buffer{})
		a := &Compilation{Name: "a", Dir: dir, Packages: []string{"./a"}}
		b := &Compilation{Name: "b", Dir: dir, Packages: []string{"./b"}}
		require.NoError(t, c.Plan(t.Context(), a, b))
		return c, a, b
	}
	c, a, b := plan()
	require.Equal(t, 2, c.Packages(), "unsafe and the like are not compiled")
	require.Equal(t, "a (1), b (1)", Work(a, b), "what both need is counted once")
	require.NoError(t, c.Compile(t.Context(), a))
	require.NoError(t, c.Compile(t.Context(), b))
	require.Equal(t, 2, c.packages)
	require.Equal(t, c.total, c.done)

	c, _, _ = plan()
	require.Zero(t, c.Packages(), "the cache has all of it")

	write("b/b.go", "package b\n\nfunc B() { no }\n")
	c, _, b = plan()
	require.ErrorContains(t, c.Compile(t.Context(), b), "undefined: no")
}
