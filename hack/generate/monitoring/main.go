// Command monitoring writes what internal/monitoring declares: the reference page of metrics, dashboards and alerts.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"kusionstack.io/kuperator/internal/monitoring"
)

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write() error {
	files, err := monitoring.Files()
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o750); err != nil {
			return err
		}
		if err := os.WriteFile(f.Path, f.Content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
