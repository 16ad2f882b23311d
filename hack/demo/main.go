// Command demo shows the suite at work: it starts a local cluster and all
// components, each as its own process, and lets a workload of ten Pods be
// updated, broken by a bad image and mended, restarted in place, scaled in and
// rolled back while it tells, live, what happens to each Pod and why. It ends with
// what the API server counted, and fails if a promise broke.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)      // a second ^C ends the demo at once
	ctrllog.SetLogger(logr.Discard()) // of the demo's own client
	err := command().ExecuteContext(ctx)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "interrupted; everything that was started is stopped and removed")
		os.Exit(130)
	case err != nil:
		fmt.Fprintf(os.Stderr, "the demo failed: %v\n", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:           "demo",
		Short:         "Show the suite at work on a local cluster",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.keep && o.kubeconfig != "" {
				return errors.New("KEEP=1 is for a cluster that the demo starts: leave out KUBECONFIG=")
			}
			return run(cmd.Context(), o, newScreen(os.Stdout, o.plain))
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.keep, "keep", false, "Leave cluster and components running, and say how to use and stop them.")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "",
		"Use this cluster instead of starting one, with an administrator's kubeconfig. Installs the suite there.")
	flags.BoolVar(&o.slow, "slow", false, "Pause after each act: until Enter on a terminal, some seconds elsewhere.")
	flags.BoolVar(&o.stop, "stop", false, "Stop what --keep has left running, and do nothing else.")
	flags.BoolVar(&o.plain, "plain", false, "Print a line per change, as without a terminal.")
	return cmd
}

type options struct {
	keep, plain, slow, stop bool
	kubeconfig              string
}
