package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlotsAreDrawnFromResultsAndOthersLeftAlone(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	require.Error(t, run(from, to, ""), "nothing was measured")
	const results = `[
		{"benchmark": "BenchmarkRollout", "name": "time", "series": "Kuperator, in place", "unit": "s", "params": {"pods": 500}, "value": 20, "min": 19, "max": 22, "n": 2},
		{"benchmark": "BenchmarkRollout", "name": "time", "series": "bare loop, in place", "unit": "s", "params": {"pods": 500}, "value": 15, "min": 15, "max": 15, "n": 2}
	]`
	require.NoError(t, os.WriteFile(filepath.Join(from, "BenchmarkRollout.json"), []byte(results), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(to, "memory.svg"), []byte("of the last time"), 0o600))
	page := filepath.Join(filepath.Dir(to), "page.md")
	require.NoError(t, os.WriteFile(page, []byte("before\n"+picturesBegin+"old\n"+picturesEnd+"after\n"), 0o600))
	require.NoError(t, run(from, to, page))

	drawn, err := os.ReadFile(filepath.Join(to, "rollout.svg"))
	require.NoError(t, err)
	for _, text := range []string{"<svg", "500 Pods", "OpenKruise", "time until the last Pod serves, s",
		"* measured on another day"} {
		require.Contains(t, string(drawn), text)
	}
	require.Equal(t, 1, strings.Count(string(drawn), ">20<"), "the value is above its bar")
	shown, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(shown), "]("+filepath.Base(to)+"/rollout.svg)\n")
	require.NotContains(t, string(shown), "recreate.svg")
	require.Regexp(t, "^before\n(?s:.*)after\n$", string(shown))
	kept, err := os.ReadFile(filepath.Join(to, "memory.svg"))
	require.NoError(t, err)
	require.Equal(t, "of the last time", string(kept))
}

func TestFigure(t *testing.T) {
	for v, want := range map[float64]string{0.734: "0.73", 12.34: "12.3", 176.3: "176", 6: "6", 10000: "10,000",
		59000: "59,000"} {
		require.Equal(t, want, figure(v))
	}
}
