// Command monitoring writes what internal/monitoring declares: the reference page of metrics, dashboards and alerts.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"kusionstack.io/kuperator/internal/monitoring"
)

func main() {
	runbooks := flag.String("runbook-base", monitoring.RunbookBase, "URL below which alerts find their runbooks")
	folder := flag.String("dir", ".",
		"folder to write to: the repository, or another one for files with a runbook base of your own")
	flag.Parse()
	if err := write(*folder, strings.TrimRight(*runbooks, "/")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(folder, runbooks string) error {
	files, err := monitoring.Files(runbooks)
	if err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(folder, f.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.Content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
