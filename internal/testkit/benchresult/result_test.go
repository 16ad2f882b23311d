package benchresult

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestResultsAreOnDiskAtOnceAndReplaceThoseOfTheLastRun(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "bench")
	for range 2 {
		r, err := Open(folder, "BenchmarkRollout", "abc")
		require.NoError(t, err)
		for i, values := range [][]float64{{1.1, 1.3, 1.2}, {1.2, 1.1}} {
			_, err = r.Add(Figure{Goal: "P1", Name: "in place, time / bare loop with the same writes", Values: values,
				Params: map[string]float64{"pods": float64(1000 + i)}})
			require.NoError(t, err)
			results, err := Read(folder)
			require.NoError(t, err)
			require.Len(t, results, i+1)
		}
	}
	results, err := Read(folder)
	require.NoError(t, err)
	require.InDelta(t, 1.2, results[0].Value, 1e-9)
	require.InDelta(t, 1.15, results[1].Value, 1e-9)
	require.Equal(t, "<= 1.25", results[0].GoalValue)
	require.False(t, *results[0].Met, "a goal is met when the worst figure meets it")
	require.True(t, *results[1].Met)
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, left, 1)
}

func TestMoreValuesOfAKnownFigureAreAddedToIt(t *testing.T) {
	folder := t.TempDir()
	r, err := Open(folder, "B", "")
	require.NoError(t, err)
	for _, value := range []float64{5, 1, 3} {
		_, err = r.Add(Figure{Name: "time", Unit: "s", Params: map[string]float64{"pods": 1, "rules": 2},
			Values: []float64{value}})
		require.NoError(t, err)
	}
	results, err := Read(folder)
	require.NoError(t, err)
	require.Len(t, results, 1)
	require.Equal(t, []float64{3, 1, 5, 3},
		[]float64{results[0].Value, results[0].Min, results[0].Max, float64(results[0].N)})
}

func TestTableHasEveryGoal(t *testing.T) {
	r, err := Open(t.TempDir(), "B", "")
	require.NoError(t, err)
	low, err := r.Add(Figure{Goal: "P5", Name: "conflicts, in place", Values: []float64{0.01},
		Params: map[string]float64{"pods": 1000, "rules": 1}})
	require.NoError(t, err)
	high, err := r.Add(Figure{Goal: "P5", Name: "conflicts, in place", Values: []float64{0.5},
		Params: map[string]float64{"pods": 100}})
	require.NoError(t, err)
	table := Table([]Result{low, high})
	for _, g := range Goals() {
		require.Contains(t, table, "| "+g.ID+" | "+g.Figure+" |")
	}
	require.Less(t, strings.Index(table, "pods=100 "), strings.Index(table, "pods=1000 rules=1"))
	require.Contains(t, table, "| P5 | conflicts, in place | 0.01 | conflicts/Pod | <= 0.02 | met |")
	require.Contains(t, table, "| **not met** |")
	require.Contains(t, table,
		"0 are met under all conditions that they ask for, 1 are not, 0 were measured at smaller sizes only")
}

func TestAFigureOfASmallerSizeSaysNothingAboutTheGoal(t *testing.T) {
	r, err := Open(t.TempDir(), "B", "")
	require.NoError(t, err)
	add := func(pods, value float64) Result {
		result, err := r.Add(Figure{Goal: "S3", Name: "in place, time / bare image patches", Values: []float64{value},
			Params: map[string]float64{"pods": pods}})
		require.NoError(t, err)
		return result
	}
	small, slow, whole := add(200, 2), add(300, 20), add(1000, 3)
	require.Nil(t, small.Met)
	require.Equal(t, map[string]float64{"pods": 1000}, small.ShortOf)
	require.True(t, *whole.Met)
	require.Nil(t, whole.ShortOf)

	table := Table([]Result{small, slow})
	require.Contains(t, table, "| met at this only; asks for pods=1000 | pods=200 |")
	require.Contains(t, table, "| missed at this; asks for pods=1000 | pods=300 |")
	require.Contains(t, table,
		"0 are met under all conditions that they ask for, 0 are not, 1 were measured at smaller sizes only")
	require.Contains(t, Table([]Result{small, slow, whole}),
		"1 are met under all conditions that they ask for, 0 are not, 0 were measured")

	missing, err := r.Add(Figure{Goal: "P20", Name: "100 CollaSets / one of as many Pods, time", Values: []float64{1},
		Params: map[string]float64{"pods": 10_000}})
	require.NoError(t, err)
	require.Nil(t, missing.Met, "a size that is not told is none")
	rate, err := r.Add(Figure{Goal: "P18", Name: "admission of a managed Pod at 500/s, p50", Values: []float64{1},
		Params: map[string]float64{"rate": 499.9}})
	require.NoError(t, err)
	require.True(t, *rate.Met)
}

func TestAGoalThatIsNotListedIsAnError(t *testing.T) {
	r, err := Open(t.TempDir(), "B", "")
	require.NoError(t, err)
	require.Panics(t, func() { _, _ = r.Add(Figure{Goal: "P99", Name: "speed", Values: []float64{1}}) })
	_, err = r.Add(Figure{Name: "speed"})
	require.Error(t, err)
}

func TestTheTableSaysWhereFiguresAreFrom(t *testing.T) {
	day := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	from := func(benchmark, commit string, hours int, piece float64) Result {
		g := goal("P1", "in place, time / bare loop with the same writes")
		return Result{
			Goal: g.ID, Name: g.Figure, Unit: g.Unit, Benchmark: benchmark, Commit: commit,
			Measured: day.Add(time.Duration(hours) * time.Hour),
			Params:   map[string]float64{"pods": 1000}, Load: 0.5, Piece: piece, Value: 1.1, Min: 1.1, Max: 1.1, N: 1,
		}
	}
	table := Table([]Result{from("BenchmarkRollout", "abc", 1, 1.44), from("BenchmarkRollout", "abc", 0, 1.44),
		from("BenchmarkIdle", "def", 24, 0), {Benchmark: "BenchmarkNone"}})
	require.Contains(t, table, "| 1.10 | × | <= 1.25 | met | pods=1000 | Rollout |")
	require.Contains(t, table,
		"\n| Idle | 2026-11-26 | def | not known | 0.50 |\n| Rollout | 2026-11-25 | abc | 1.44 | 0.50 |\n")
	require.NotContains(t, table, "None", "it has no figure that a goal is about")
	require.NotContains(t, Table(nil), "commit")
}
