// Package faultreport collects what the fault suites did, whichever packages and processes they run in, and makes one
// table of it. A suite adds rows, which are kept as lines of JSON in a folder; the table is made of all that are
// there.
package faultreport

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ArtifactsVariable names the folder that results go into, bin/artifacts of the module if it is empty.
const ArtifactsVariable = "KUPERATOR_ARTIFACTS"

// Row is what was done to one component, or to several, in one scenario. Rows that are added for the same suite,
// scenario and component are added up.
type Row struct {
	// Suite is what is done: "crash at every write", "stale views".
	Suite string `json:"suite"`
	// Scenario is what the users of the cluster do meanwhile.
	Scenario string `json:"scenario"`
	// Component is the one that was faulted, "" if that makes no difference.
	Component string `json:"component,omitempty"`
	// Faults counts those that were injected, by kind. A plan may inject several, or none if it did not fire.
	Faults map[string]int `json:"faults,omitempty"`
	// Plans were run. Of these NotFired never met what they were to fault, so that nothing was tested, and Failed broke
	// a promise. The others passed.
	Plans    int `json:"plans"`
	NotFired int `json:"notFired"`
	Failed   int `json:"failed"`
	// Invariants counts the checks that were made, by invariant.
	Invariants map[string]int `json:"invariants,omitempty"`
	// Failures say what failed, each with how to run it again.
	Failures []string `json:"failures,omitempty"`
	// Took is the sum of what the plans took, which is longer than the run if they run in parallel.
	Took time.Duration `json:"tookNanoseconds"`
}

// Passed is the number of plans that met their fault and kept every promise.
func (r Row) Passed() int { return r.Plans - r.NotFired - r.Failed }

// Folder is where rows are kept.
func Folder() (string, error) {
	if artifacts := os.Getenv(ArtifactsVariable); artifacts != "" {
		return filepath.Join(artifacts, "faults"), nil
	}
	root, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return filepath.Join(root, "bin", "artifacts", "faults"), nil
		}
		parent := filepath.Dir(root)
		if parent == root {
			return "", errors.New("not inside the module: set " + ArtifactsVariable + " to a folder for results")
		}
		root = parent
	}
}

// Add keeps a row in Folder. Processes may add rows at the same time.
func Add(row Row) error {
	folder, err := Folder()
	if err != nil {
		return err
	}
	return add(folder, row)
}

func add(folder string, row Row) error {
	line, err := json.Marshal(row)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(folder, "rows.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n')) // one write, so that lines of several processes do not mix
	return errors.Join(err, file.Close())
}

// Read returns the rows of a folder, merged and in the order in which they were first added. A folder that is not
// there has none.
func Read(folder string) ([]Row, error) {
	file, err := os.Open(filepath.Join(folder, "rows.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var rows []Row
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var row Row
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("reading line %d of %s: %w", len(rows)+1, file.Name(), err)
		}
		rows = append(rows, row)
	}
	return merge(rows), lines.Err()
}

func merge(rows []Row) []Row {
	var merged []Row
	for _, row := range rows {
		i := slices.IndexFunc(merged, func(m Row) bool {
			return m.Suite == row.Suite && m.Scenario == row.Scenario && m.Component == row.Component
		})
		if i < 0 {
			merged = append(merged, Row{Suite: row.Suite, Scenario: row.Scenario, Component: row.Component})
			i = len(merged) - 1
		}
		merged[i] = sum(merged[i], row)
	}
	return merged
}

func sum(a, b Row) Row {
	a.Plans += b.Plans
	a.NotFired += b.NotFired
	a.Failed += b.Failed
	a.Took += b.Took
	a.Faults = addCounts(a.Faults, b.Faults)
	a.Invariants = addCounts(a.Invariants, b.Invariants)
	a.Failures = append(a.Failures, b.Failures...)
	return a
}

func addCounts(a, b map[string]int) map[string]int {
	both := map[string]int{}
	for _, counts := range []map[string]int{a, b} {
		for name, n := range counts {
			both[name] += n
		}
	}
	return both
}

// Total is the sum of all rows; its names are empty.
func Total(rows []Row) Row {
	var total Row
	for _, row := range rows {
		total = sum(total, row)
	}
	return total
}

// Markdown returns the rows as a page: the totals, a table of all rows, the faults and checks by kind, and every
// failure.
func Markdown(rows []Row) string {
	var page strings.Builder
	total := Total(rows)
	fmt.Fprintf(&page, "%d plans: %d passed, %d failed, %d not fired. %d faults injected, %d checks of invariants.\n\n",
		total.Plans, total.Passed(), total.Failed, total.NotFired, count(total.Faults), count(total.Invariants))
	page.WriteString("| suite | scenario | component | plans | passed | failed | not fired | faults | checks |\n")
	page.WriteString("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, r := range rows {
		fmt.Fprintf(&page, "| %s | %s | %s | %d | %d | %d | %d | %d | %d |\n", cell(r.Suite), cell(r.Scenario),
			cell(r.Component),
			r.Plans, r.Passed(), r.Failed, r.NotFired, count(r.Faults), count(r.Invariants))
	}
	counts(&page, "fault", total.Faults)
	counts(&page, "invariant", total.Invariants)
	if len(total.Failures) > 0 {
		page.WriteString("\nFailures:\n\n")
		for _, failure := range total.Failures {
			fmt.Fprintf(&page, "    %s\n\n", strings.ReplaceAll(strings.TrimSpace(failure), "\n", "\n    "))
		}
	}
	return page.String()
}

func counts(page *strings.Builder, what string, by map[string]int) {
	if len(by) == 0 {
		return
	}
	fmt.Fprintf(page, "\n| %s | times |\n| --- | ---: |\n", what)
	for _, name := range slices.Sorted(maps.Keys(by)) {
		fmt.Fprintf(page, "| %s | %d |\n", cell(name), by[name])
	}
}

func count(by map[string]int) int {
	n := 0
	for _, times := range by {
		n += times
	}
	return n
}

// cell is text that keeps to its cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(text)
}
