// Command faultreport prints what the fault suites did as one table, and writes it beside their results.
// It fails if they left nothing, or if a plan failed.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"kusionstack.io/kuperator/internal/testkit/faultreport"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "faultreport:", err)
		os.Exit(1)
	}
}

func run() error {
	folder, err := faultreport.Folder()
	if err != nil {
		return err
	}
	rows, err := faultreport.Read(folder)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return fmt.Errorf("there are no results in %s: run make test-faults", folder)
	}
	page := faultreport.Markdown(rows)
	fmt.Print(page)
	if err := os.WriteFile(filepath.Join(folder, "report.md"), []byte(page), 0o644); err != nil {
		return err
	}
	if faultreport.Total(rows).Failed > 0 {
		return errors.New("some plans failed")
	}
	return nil
}
