package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// pause lets a person read, if that was asked for: until Enter on a terminal, for a while elsewhere.
func (d *demo) pause(ctx context.Context, next string) error {
	if !d.options.slow {
		return ctx.Err()
	}
	d.screen.rest()
	if d.screen.asks {
		return d.enter(ctx, fmt.Sprintf("\n%s. Press Enter.", next))
	}
	d.screen.print(fmt.Sprintf("%s, in %s.", next, readingTime))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(readingTime):
		return nil
	}
}

// enter waits for the Enter key.
func (d *demo) enter(ctx context.Context, text string) error {
	d.screen.print(text)
	pressed := make(chan struct{})
	go func() { // ends with the program at the latest
		_, _ = bufio.NewReader(d.screen.in).ReadString('\n')
		close(pressed)
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-pressed:
		return nil
	}
}

// tellWhatToTry ends the story. Where a person sits at a terminal, the cluster stays until Enter is pressed.
func (d *demo) tellWhatToTry(ctx context.Context) error {
	if d.options.kubeconfig != "" || !d.options.keep && !d.screen.asks {
		return nil
	}
	fmt.Fprintln(d.screen, "building kubectl kuperator")
	bin, err := d.suite.Tools(ctx)
	if err != nil {
		return err
	}
	text := whatToTry(d.suite.AdminKubeconfig, bin)
	if d.options.keep {
		text += fmt.Sprintf("\nIt runs until you stop it:\n\n  make demo-stop\n\nLogs are in %s\n", d.suite.Dir)
		d.screen.print(text)
		return nil
	}
	return d.enter(ctx, text+
		"\nPress Enter here to stop it all (make demo KEEP=1 leaves it running until make demo-stop).")
}

// whatNext is for a run that ends by itself.
const whatNext = `
To try it yourself: make demo KEEP=1 leaves the cluster running, and says how to use it with
kubectl kuperator status, why and dashboard; make demo-stop ends it. make demo SLOW=1 pauses after each act.
`

// whatToTry are commands for a cluster that runs, with the folder of kubectl and its plugin.
func whatToTry(kubeconfig, bin string) string {
	lines := []string{
		"The cluster and the components are still running. Its nodes are simulated: no container runs, so there are no logs",
		"and no exec; all else is real. In another terminal:",
		"",
		"  export KUBECONFIG=" + kubeconfig,
		"  export PATH=" + bin + string(filepath.ListSeparator) + "$PATH",
	}
	for _, try := range [][2]string{
		{"status", "what there is, and what it waits for"},
		{"dashboard", "the same, live, in a browser; Ctrl-C ends it"},
		{fmt.Sprintf("set image collaset/%s %s=%s", name, name, badImage), "break it"},
		{"why collaset/" + name, "why does it not continue?"},
		{"undo collaset/" + name, "mend it"},
	} {
		lines = append(lines, fmt.Sprintf("  kubectl kuperator -n %s %-43s # %s", namespace, try[0], try[1]))
	}
	return "\n" + strings.Join(lines, "\n") + "\n"
}

// asksPeople reports whether a person can press Enter.
func asksPeople(files ...*os.File) bool {
	for _, file := range files {
		info, err := file.Stat()
		if err != nil || info.Mode()&os.ModeCharDevice == 0 || file.Name() == os.DevNull {
			return false
		}
	}
	return true
}
