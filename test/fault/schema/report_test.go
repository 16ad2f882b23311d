package schema

import (
	"time"

	"kusionstack.io/kuperator/internal/testkit/faultreport"
)

// addRow tells the report of the fault suites what was done.
func addRow(
	scenario string, plans, failed int, outcomes, checks map[string]int, failures []string, took time.Duration,
) error {
	return faultreport.Add(faultreport.Row{
		Suite: "API and storage", Scenario: scenario, Faults: outcomes, Plans: plans, Failed: failed, Invariants: checks,
		Failures: failures, Took: took,
	})
}
