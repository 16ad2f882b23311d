// Command bench runs benchmarks, each in its own process, and prints the table of goals.
//
// A benchmark that fails, hangs or panics does not stop the others, and what it had measured by then is kept. It ends
// with an error if one of them failed. --table only prints the table of what was measured before, and --docs puts it
// into a page.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"kusionstack.io/kuperator/internal/testkit/benchresult"
)

// packages hold the benchmarks with results, in the order in which they run.
var packages = []string{"./internal/collaset", "./test/bench"}

func main() {
	filter := flag.String("run", ".", "Benchmarks to run, a regular expression; case does not matter.")
	timeout := flag.Duration("timeout", 40*time.Minute, "How long one benchmark may take.")
	only := flag.Bool("table", false, "Run nothing, print the table of what was measured before.")
	from := flag.String("from", "", "With --table: the folder with the results, instead of bench of KUPERATOR_ARTIFACTS.")
	page := flag.String("docs", "",
		"With --table: the page whose table, between the lines goalsBegin and goalsEnd, is replaced.")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *filter, *timeout, *only, *from, *page); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// benchmark is one, with the program that holds it and the folder of its package.
type benchmark struct{ program, folder, name string }

func run(ctx context.Context, filter string, timeout time.Duration, only bool, from, page string) error {
	folder := os.Getenv("KUPERATOR_ARTIFACTS")
	if folder == "" {
		folder = filepath.Join("bin", "artifacts")
	}
	artifacts, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	var failed []string
	if !only {
		if failed, err = measure(ctx, filter, timeout, artifacts); err != nil {
			return err
		}
	}
	folder = cmp.Or(from, filepath.Join(artifacts, "bench"))
	results, err := benchresult.Read(folder)
	if err != nil {
		return err
	}
	table := benchresult.Table(results)
	fmt.Printf("\nResults are in %s.\n\n%s", folder, table)
	if len(results) > 0 && from == "" {
		if err := os.WriteFile(filepath.Join(folder, "goals.md"), []byte(table), 0o644); err != nil {
			return err
		}
	}
	if page != "" {
		if err := replaceTable(page, table); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// The lines around the table in a page.
const goalsBegin, goalsEnd = "<!-- goals: written by make plots -->\n", "<!-- end of goals -->\n"

func replaceTable(page, table string) error {
	content, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(content), goalsBegin)
	_, after, closed := strings.Cut(rest, goalsEnd)
	if !found || !closed {
		return fmt.Errorf("%s has no place for the table: lines %q and %q", page, goalsBegin, goalsEnd)
	}
	return os.WriteFile(page, []byte(before+goalsBegin+table+goalsEnd+after), 0o644)
}

// measure runs the benchmarks one after the other and says which failed. The programs are built before the first one
// runs, so sources may change meanwhile.
func measure(ctx context.Context, filter string, timeout time.Duration, artifacts string) (failed []string, err error) {
	programs, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(programs)
	selected, err := list(ctx, programs, filter)
	if err != nil {
		return nil, err
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("no benchmark matches %q", filter)
	}
	began := time.Now()
	progress := func(format string, args ...any) {
		fmt.Printf("\n[%s] "+format+"\n", append([]any{time.Since(began).Round(time.Second)}, args...)...)
	}
	for i, b := range selected {
		progress("%d of %d: %s, load of the machine %.1f", i+1, len(selected), b.name, benchresult.Load())
		one := time.Now()
		err := b.run(ctx, artifacts, timeout)
		took := time.Since(one).Round(time.Second)
		if err != nil {
			failed = append(failed, b.name)
			progress("%s failed after %s, what it measured is kept: %v", b.name, took, err)
		} else {
			progress("%s took %s", b.name, took)
		}
		if ctx.Err() != nil {
			return append(failed, "interrupted"), nil
		}
	}
	return failed, nil
}

// list builds the programs into a folder and finds their benchmarks.
func list(ctx context.Context, programs, filter string) ([]benchmark, error) {
	wanted, err := regexp.Compile("(?i)" + filter)
	if err != nil {
		return nil, fmt.Errorf("--run: %w", err)
	}
	var selected []benchmark
	for i, folder := range packages {
		program := filepath.Join(programs, fmt.Sprint(i))
		if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, folder).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building the benchmarks of %s: %w: %s", folder, err, out)
		}
		out, err := exec.CommandContext(ctx, program, "-test.list", "^Benchmark").Output()
		if err != nil {
			return nil, fmt.Errorf("listing the benchmarks of %s: %w", folder, err)
		}
		for line := range strings.Lines(string(out)) {
			if name := strings.TrimSpace(line); strings.HasPrefix(name, "Benchmark") && wanted.MatchString(name) {
				selected = append(selected, benchmark{program, folder, name})
			}
		}
	}
	return selected, nil
}

// run has the benchmark print to the terminal. One that takes too long ends itself, with what its goroutines were at.
func (b benchmark) run(ctx context.Context, artifacts string, timeout time.Duration) error {
	cmd := exec.CommandContext(ctx, b.program, "-test.timeout", timeout.String(), "-test.run", "^$", "-test.bench",
		"^"+b.name+"$", "-test.benchtime=1x", "-test.v")
	cmd.Dir = b.folder
	cmd.Env = append(os.Environ(), "KUPERATOR_ARTIFACTS="+artifacts)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	return cmd.Run()
}
