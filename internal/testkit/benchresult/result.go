// Package benchresult is the form of every figure that a benchmark measures: one JSON schema, one list of goals, one
// table.
//
// A benchmark opens a Recorder and adds what it measures as it goes. Each addition is on disk before Add returns, so
// a benchmark that is cut short leaves what it had. Files are <folder>/<benchmark>.json, an array of Result; the
// folder is bench in KUPERATOR_ARTIFACTS, or bin/artifacts/bench of the project.
package benchresult

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kusionstack.io/kuperator/internal/testkit/yardstick"
)

// Result is one figure.
type Result struct {
	// Goal is the ID of the goal that the figure is held against; "" for a figure without one.
	Goal string `json:"goal,omitempty"`
	// Name says what was measured. That of a figure with a goal is the goal's.
	Name string `json:"name"`
	// Benchmark measured it.
	Benchmark string `json:"benchmark"`
	// Series and Params place the figure in plots: what was measured ("in place"), under which conditions (pods=1000).
	Series string             `json:"series,omitempty"`
	Params map[string]float64 `json:"params,omitempty"`
	Unit   string             `json:"unit"`
	// Value is the median of N figures; Min and Max are the ends of their spread.
	Value float64 `json:"value"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
	N     int     `json:"n"`
	// GoalValue is the goal in words, "<= 1.25"; Met whether the worst of the N figures is within. Both only with a
	// goal, and Met only where the goal's sizes were measured: ShortOf are these sizes otherwise, and the figure says
	// nothing about the goal.
	GoalValue string             `json:"goalValue,omitempty"`
	Met       *bool              `json:"met,omitempty"`
	ShortOf   map[string]float64 `json:"shortOf,omitempty"`
	// Load is the machine's load average over a minute when the benchmark began; -1 where it is not known.
	Load float64 `json:"load"`
	// Piece is what a fixed piece of work took of a core then, in milliseconds (package yardstick): how fast the machine
	// was. 0 where it is not known.
	Piece float64 `json:"piece,omitempty"`
	// Commit and Measured say of what and when, Note anything a reader must know.
	Commit   string    `json:"commit,omitempty"`
	Measured time.Time `json:"measured"`
	Note     string    `json:"note,omitempty"`
}

// Figure is what a benchmark says of one figure. Values must not be empty.
type Figure struct {
	// Goal and Name are those of a Goal; without a Goal the Name is free.
	Goal, Name string
	// Unit is taken from the goal if there is one.
	Unit   string
	Series string
	Params map[string]float64
	Values []float64
	Note   string
}

// Recorder writes the results of one benchmark. It may be used concurrently.
type Recorder struct {
	path      string
	benchmark string
	load      float64
	piece     float64
	commit    string

	mu      sync.Mutex
	results []Result
	values  map[string][]float64
	places  map[string]int
}

// Open begins the results of a benchmark in a folder and removes those of its last run.
func Open(folder, benchmark, commit string) (*Recorder, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	r := &Recorder{path: filepath.Join(folder, benchmark+".json"), benchmark: benchmark, commit: commit, load: Load(),
		piece: yardstick.Measure(), values: map[string][]float64{}, places: map[string]int{}}
	if err := os.Remove(r.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return r, nil
}

// ForTest opens the results of a benchmark of Go's, in bench of KUPERATOR_ARTIFACTS or of bin/artifacts below the
// project's root, for the commit that is checked out.
func ForTest(b *testing.B, root string) *Recorder {
	b.Helper()
	folder := os.Getenv("KUPERATOR_ARTIFACTS")
	if folder == "" {
		folder = filepath.Join(root, "bin", "artifacts")
	}
	commit, err := exec.CommandContext(b.Context(), "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		commit = nil // outside a checkout
	}
	results, err := Open(filepath.Join(folder, "bench"), b.Name(), strings.TrimSpace(string(commit)))
	if err != nil {
		b.Fatalf("opening the results: %v", err)
	}
	return results
}

// Add keeps a figure and writes all that were added. Values for a figure that is known already, by everything but its
// values and note, are added to those it has.
func (r *Recorder) Add(f Figure) (Result, error) {
	if len(f.Values) == 0 {
		return Result{}, fmt.Errorf("%s %s has no values", f.Goal, f.Name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := fmt.Sprint(f.Goal, f.Name, f.Unit, f.Series, f.Params) // maps are printed in order
	r.values[key] = append(r.values[key], f.Values...)
	sorted := slices.Sorted(slices.Values(r.values[key]))
	result := Result{
		Goal: f.Goal, Name: f.Name, Benchmark: r.benchmark, Series: f.Series, Params: f.Params, Unit: f.Unit,
		Value: median(sorted), Min: sorted[0], Max: sorted[len(sorted)-1], N: len(sorted),
		Load: r.load, Piece: r.piece, Commit: r.commit, Measured: time.Now().UTC().Truncate(time.Second), Note: f.Note,
	}
	if f.Goal != "" {
		g := goal(f.Goal, f.Name)
		result.Unit, result.GoalValue, result.ShortOf = g.Unit, g.String(), g.shortOf(f.Params)
		if result.ShortOf == nil {
			met := g.within(result)
			result.Met = &met
		}
	}
	if at, known := r.places[key]; known {
		r.results[at] = result
	} else {
		r.places[key] = len(r.results)
		r.results = append(r.results, result)
	}
	content, err := json.MarshalIndent(r.results, "", "  ")
	if err != nil {
		return result, fmt.Errorf("%s %s: %w", f.Goal, f.Name, err)
	}
	next := r.path + ".next"
	if err := os.WriteFile(next, append(content, '\n'), 0o644); err != nil {
		return result, err
	}
	return result, os.Rename(next, r.path)
}

func median(sorted []float64) float64 {
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Load is the machine's load average over a minute, -1 where the system does not tell.
func Load() float64 {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return -1
	}
	first, _, _ := strings.Cut(string(content), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return -1
	}
	return load
}

// Read returns all results in a folder, by benchmark and then in the order in which they were added. A folder that is
// not there has none.
func Read(folder string) ([]Result, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []Result
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var results []Result
		if err := json.Unmarshal(content, &results); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		all = append(all, results...)
	}
	return all, nil
}

// String is the figure with its spread.
func (r Result) String() string {
	text := number(r.Value)
	if r.N > 1 {
		text += fmt.Sprintf(" (%s–%s, n=%d)", number(r.Min), number(r.Max), r.N)
	}
	return text
}

// number has three digits that count, and no exponent.
func number(v float64) string {
	switch a := max(v, -v); {
	case a == float64(int64(a)) || a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// conditions are parameters, sorted by name.
func conditions(params map[string]float64) string {
	parts := make([]string, 0, len(params))
	for _, name := range slices.Sorted(maps.Keys(params)) {
		parts = append(parts, name+"="+number(params[name]))
	}
	return strings.Join(parts, " ")
}

// verdict is what a figure means for a goal. Figures are judged by the present goals, whatever the file has.
func (g Goal) verdict(r Result) string {
	short, within := g.shortOf(r.Params), g.within(r)
	switch {
	case short != nil && within:
		return "met at this only; asks for " + conditions(short)
	case short != nil:
		return "missed at this; asks for " + conditions(short)
	case within:
		return "met"
	}
	return "**not met**"
}

// within reports whether the worst of the figures meets the goal, at whatever size.
func (g Goal) within(r Result) bool { return g.Met(r.Min) && g.Met(r.Max) }

// Table is Markdown: one line for each goal and the conditions under which it was measured, goals that were not
// measured among them. It also says how many goals were met, missed, measured at smaller sizes than they ask for, and
// not measured; and of each benchmark when it was run, of which commit, and how fast and how busy the machine was.
func Table(results []Result) string {
	var text strings.Builder
	text.WriteString(
		"| goal | what | figure | unit | goal | met | at | benchmark |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	met, missed, small, unmeasured := 0, 0, 0, 0
	for _, g := range goals {
		found := slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return r.Goal != g.ID || r.Name != g.Figure })
		slices.SortStableFunc(found, func(a, b Result) int { return cmp.Compare(a.Params["pods"], b.Params["pods"]) })
		if len(found) == 0 {
			unmeasured++
			fmt.Fprintf(&text, "| %s | %s | not measured | %s | %s | | | |\n", g.ID, g.Figure, g.Unit, g)
			continue
		}
		asked, within := 0, 0
		for _, r := range found {
			if g.shortOf(r.Params) == nil {
				asked++
				if g.within(r) {
					within++
				}
			}
			at := strings.TrimSpace(conditions(r.Params) + " " + r.Note)
			fmt.Fprintf(&text, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", g.ID, g.Figure, r, g.Unit, g, g.verdict(r), at,
				strings.TrimPrefix(r.Benchmark, "Benchmark"))
		}
		switch {
		case asked == 0:
			small++
		case within == asked:
			met++
		default:
			missed++
		}
	}
	fmt.Fprintf(&text,
		"\nOf %d goals %d are met under all conditions that they ask for, %d are not, %d were measured at "+
			"smaller sizes only, %d were\nnot measured.\n",
		len(goals), met, missed, small, unmeasured)
	text.WriteString(runs(results))
	return text.String()
}

// runs is one line for each benchmark that measured anything a goal is about.
func runs(results []Result) string {
	last := map[string]Result{}
	for _, r := range results {
		if r.Goal != "" && !r.Measured.Before(last[r.Benchmark].Measured) {
			last[r.Benchmark] = r
		}
	}
	if len(last) == 0 {
		return ""
	}
	var text strings.Builder
	text.WriteString("\n| benchmark | measured | commit | piece of work, ms | load |\n| --- | --- | --- | --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(last)) {
		r := last[name]
		piece := "not known"
		if r.Piece > 0 {
			piece = number(r.Piece)
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %s | %s |\n", strings.TrimPrefix(name, "Benchmark"),
			r.Measured.Format(time.DateOnly), r.Commit, piece, number(r.Load))
	}
	return text.String()
}
