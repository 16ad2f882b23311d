// Command monitoring does what needs libraries that the suite itself has no use for: it parses PromQL with Prometheus'
// own parser, and draws the data of dashboards. It is a separate module so that their dependencies do not become ours.
//
//	monitoring parse        reads a JSON list of queries, writes a JSON list of what each selects, or of what is wrong
//	monitoring draw FOLDER  reads the data of dashboards as JSON, writes an SVG for each into FOLDER
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "monitoring:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "parse":
		var queries []string
		if err := json.NewDecoder(os.Stdin).Decode(&queries); err != nil {
			return fmt.Errorf("reading queries: %w", err)
		}
		parsed := make([]parsedQuery, len(queries))
		for i, q := range queries {
			parsed[i] = parse(q)
		}
		return json.NewEncoder(os.Stdout).Encode(parsed)
	case len(args) == 2 && args[0] == "draw":
		var dashboards []dashboard
		if err := json.NewDecoder(os.Stdin).Decode(&dashboards); err != nil {
			return fmt.Errorf("reading dashboards: %w", err)
		}
		for _, d := range dashboards {
			if err := d.draw(args[1]); err != nil {
				return fmt.Errorf("drawing %s: %w", d.ID, err)
			}
		}
		return nil
	}
	return errors.New("use: monitoring parse, or monitoring draw FOLDER")
}
