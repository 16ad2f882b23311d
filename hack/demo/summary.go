package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// summarise prints what was seen, stage by stage, and returns an error for each
// promise that was broken.
func (d *demo) summarise(report observer.Report) error {
	d.screen.rest()
	operations := slices.DeleteFunc(slices.Clone(d.stages), func(s stage) bool { return s.operated == 0 })
	row := func(label string, cell func(stage) string) string {
		line := fmt.Sprintf("  %-24s", label)
		for _, s := range operations {
			line += fmt.Sprintf("%9s", cell(s))
		}
		return line
	}
	perPod := func(n int, s stage) string { return fmt.Sprintf("%.1f", float64(n)/float64(s.operated)) }
	lines := []string{
		"",
		d.screen.paint(bold, row("What was seen", func(s stage) string { return s.column })),
		row("time", func(s stage) string { return fmt.Sprintf("%.1f s", s.took.Seconds()) }),
		row("Pods operated on", func(s stage) string { return fmt.Sprint(s.operated) }),
		row("most out / allowed", func(s stage) string {
			return fmt.Sprintf("%d / %d", s.rule.MaxOut, s.rule.MaxOutAllowed)
		}),
		row("out of service, median", func(s stage) string {
			if len(s.outages) == 0 {
				return "-"
			}
			slices.Sort(s.outages)
			return s.outages[len(s.outages)/2].Round(10 * time.Millisecond).String()
		}),
		row("Pods kept", func(s stage) string { return fmt.Sprintf("%d/%d", s.kept, s.replicas) }),
	}
	if d.suite.Cluster != nil {
		lines = append(lines, row("writes to Pods per Pod",
			func(s stage) string { return perPod(suite.Sum(s.writes).Total(), s) }))
		for _, component := range suite.Components() {
			if slices.ContainsFunc(operations, func(s stage) bool { return s.writes[component].Total() > 0 }) {
				lines = append(lines, d.screen.paint(dim,
					row("  "+short(component), func(s stage) string { return perPod(s.writes[component].Total(), s) })))
			}
		}
		lines = append(lines,
			row("conflicts / no-op writes", func(s stage) string {
				sum := suite.Sum(s.writes)
				return fmt.Sprintf("%d / %d", sum.Conflicts, sum.NoOps)
			}))
	} else {
		lines = append(lines, "  (writes are not counted on a cluster that existed before)")
	}
	lines = append(lines, row("events per Pod",
		func(s stage) string { return perPod(s.events, s) }))
	err := errors.Join(report.Err(), d.broken(operations))
	verdict := d.screen.paint(bold+";"+green, "  ✔ every promise was kept")
	if err != nil {
		verdict = d.screen.paint(bold+";"+red, "  ✘ a promise was broken")
	}
	total := time.Duration(0)
	for _, s := range d.stages {
		total += s.took
	}
	lines = append(lines, "", verdict+fmt.Sprintf(", in %.0f s", total.Seconds()), "")
	d.screen.print(strings.Join(lines, "\n"))
	return err
}

// broken says which numbers are not what was promised.
func (d *demo) broken(operations []stage) error {
	var errs []error
	for _, s := range operations {
		if s.rule.MaxOut > s.rule.MaxOutAllowed {
			errs = append(errs, fmt.Errorf("%s: %d Pods were out of service, %d are allowed", s.title, s.rule.MaxOut,
				s.rule.MaxOutAllowed))
		}
		if s.kept != s.replicas {
			errs = append(errs, fmt.Errorf("%s: only %d of %d Pods were kept", s.title, s.kept, s.replicas))
		}
		if n := suite.Sum(s.writes).NoOps; n > 0 {
			errs = append(errs, fmt.Errorf("%s: %d writes changed nothing", s.title, n))
		}
	}
	return errors.Join(errs...)
}
