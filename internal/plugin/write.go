package plugin

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kusionstack.io/kuperator/internal/insight"
)

const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"
)

// change is what a command that writes did.
type change struct {
	Object insight.Ref `json:"object"`
	// Action is the past participle, such as "paused".
	Action string `json:"action"`
	// Changed is false if there was nothing to do.
	Changed bool `json:"changed"`
	// DryRun is "client" or "server"; empty if it was done.
	DryRun string `json:"dryRun,omitempty"`
	// Details say more, a line each.
	Details []string `json:"details,omitempty"`
	// idle is why there was nothing to do. Empty means that it is as Action says already.
	idle string
}

// tell adds a detail, unless it is empty.
func (c *change) tell(detail string) {
	if detail != "" {
		c.Details = append(c.Details, detail)
	}
}

// dryRun is the flag --dry-run.
type dryRun string

func (d *dryRun) flag(cmd *cobra.Command) {
	*d = dryRunNone
	cmd.Flags().StringVar((*string)(d), "dry-run", dryRunNone,
		"none, client (no request is sent) or server (the request is validated and not persisted).")
	cmd.Flags().Lookup("dry-run").NoOptDefVal = dryRunClient
	completed(cmd.RegisterFlagCompletionFunc("dry-run",
		cobra.FixedCompletions([]string{dryRunNone, dryRunClient, dryRunServer}, cobra.ShellCompDirectiveNoFileComp)))
}

func (d dryRun) check() error {
	if !slices.Contains([]string{dryRunNone, dryRunClient, dryRunServer}, string(d)) {
		return fmt.Errorf("--dry-run is %q: use %s, %s or %s", d, dryRunNone, dryRunClient, dryRunServer)
	}
	return nil
}

// options are those of a patch.
func (d dryRun) options() metav1.PatchOptions {
	o := metav1.PatchOptions{FieldManager: fieldManager}
	if d == dryRunServer {
		o.DryRun = []string{metav1.DryRunAll}
	}
	return o
}

// report prints what was done. It is called after the write, so that nothing is reported that did not happen.
func (p *plugin) report(c change, d dryRun) error {
	if d != dryRunNone {
		c.DryRun = string(d)
	}
	return p.print(c, func(w io.Writer) { writeChange(w, c) })
}

func writeChange(w io.Writer, c change) {
	fmt.Fprintln(w, c.text())
	for _, line := range c.Details {
		fmt.Fprintln(w, "  "+line)
	}
}

// text says what was done in one line, without the details.
func (c change) text() string {
	text := shown(c.Object) + " " + c.Action
	switch {
	case !c.Changed && c.idle != "":
		return shown(c.Object) + " " + c.idle + ": nothing to do"
	case !c.Changed:
		return shown(c.Object) + " is " + c.Action + " already: nothing to do"
	case c.DryRun != "":
		return text + " (" + c.DryRun + " dry run)"
	}
	return text
}
