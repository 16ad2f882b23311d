// Command plots draws the results of benchmarks as SVG: go run -C hack/tools/plots . -from
// ../../../bin/artifacts/bench -to ../../../docs/performance.
//
// A plot whose figures were not measured is left as it is, and said so. With -page the plots that there are then are
// shown in that page, between the lines picturesBegin and picturesEnd.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// result is what is read of one figure; internal/testkit/benchresult writes it.
type result struct {
	Goal, Name, Benchmark, Series, Unit string
	Params                              map[string]float64
	Value, Min, Max, Load               float64
	N                                   int
}

func main() {
	from := flag.String("from", "", "Folder with the results, one JSON file for each benchmark.")
	to := flag.String("to", "", "Folder for the plots.")
	page := flag.String("page", "", "Page that shows the plots.")
	flag.Parse()
	if err := run(*from, *to, *page); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(1)
	}
}

func run(from, to, page string) error {
	results, err := read(from)
	if err != nil {
		return err
	}
	if len(results) == 0 {
		return fmt.Errorf("there are no results in %s: run make bench first", from)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, d := range drawings {
		switch err := d.draw(results, filepath.Join(to, d.file)); {
		case errors.Is(err, errNotMeasured):
			fmt.Printf("%s is left as it is: %v\n", d.file, err)
		case err != nil:
			return fmt.Errorf("drawing %s: %w", d.file, err)
		default:
			fmt.Println(d.file)
		}
	}
	if page == "" {
		return nil
	}
	return show(to, page)
}

// The lines around the pictures in a page.
const picturesBegin, picturesEnd = "<!-- pictures: written by make plots -->\n", "<!-- end of pictures -->\n"

// show puts the plots of a folder into a page.
func show(folder, page string) error {
	content, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(content), picturesBegin)
	_, after, closed := strings.Cut(rest, picturesEnd)
	if !found || !closed {
		return fmt.Errorf("%s has no place for the pictures: lines %q and %q", page, picturesBegin, picturesEnd)
	}
	var text strings.Builder
	for _, d := range drawings {
		path := filepath.Join(folder, d.file)
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			continue
		}
		link, err := filepath.Rel(filepath.Dir(page), path)
		if err != nil {
			return err
		}
		alternative := strings.NewReplacer("*", "", "\n", " ").Replace(d.text)
		fmt.Fprintf(&text, "%s\n\n![%s](%s)\n\n", d.text, alternative, filepath.ToSlash(link))
	}
	return os.WriteFile(page, []byte(before+picturesBegin+text.String()+picturesEnd+after), 0o644)
}

func read(folder string) ([]result, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []result
	for _, path := range slices.Sorted(slices.Values(paths)) {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var results []result
		if err := json.Unmarshal(content, &results); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		all = append(all, results...)
	}
	return all, nil
}
