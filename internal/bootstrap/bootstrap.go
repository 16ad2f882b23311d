// Package bootstrap turns a component's description into a program: flags, logging, the manager, probes, metrics,
// leader election and signals, once for all binaries of the suite.
//
// A component's name is at the same time its Lease, its user agent (`<name>/<version>`), its field manager, the name
// its events carry and the `component` label of its metrics, so that whatever it leaves behind in a cluster can be
// traced to it.
//
// Invariants:
//   - a program that cannot start says what to change and exits with 1;
//   - `/readyz` means "the caches have been filled", for the leader and for a standby alike; `/healthz` means "the
//     process answers";
//   - a lost Lease ends the process at once; a Lease is given back when the process is asked to stop;
//   - a missing CRD neither ends the process nor makes it unready (WhenServed).
package bootstrap

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// Component describes one binary of the suite. Name, Short and Setup are required, everything else may be left zero.
// A Component is used for one program: its functions may close over variables that AddFlags binds.
type Component struct {
	// Name is the binary's name, for example "collaset-controller".
	Name string
	// Short is one line for the first line of --help.
	Short string
	// Long is the text of --help; empty means Short.
	Long string
	// LeaderElected is true if only one replica may act at a time. False leaves out the flags of leader election.
	LeaderElected bool
	// Concurrency is the default of --concurrency: reconciles of one controller running at a time. Zero means 1.
	Concurrency int
	// Cache says what the component caches, by label, field and transform. Nil caches whole objects without their
	// managed fields. It is called once, after the flags were validated. DefaultTransform and DefaultNamespaces are
	// filled in afterwards where it left them nil (StripManagedFields; --namespaces).
	Cache func(o *Options) cache.Options
	// AddFlags adds the component's own flags, shown under the component's name in --help. Nil adds none.
	AddFlags func(fs *pflag.FlagSet)
	// Validate checks the component's own flags after parsing. Its error should say what to change. Nil accepts all.
	Validate func(o *Options) error
	// Manager changes the manager's options last of all, for example to set a webhook server. Nil changes nothing.
	Manager func(o *Options, m *ctrl.Options) error
	// Setup adds the component's controllers, webhooks and runnables to mgr, in reading order. ctx ends with the
	// process. Wrap what needs a CRD in WhenServed.
	Setup func(ctx context.Context, mgr ctrl.Manager, o Options) error
	// ReadyChecks are further conditions of /readyz, by name. "caches" is always there and may not be used.
	ReadyChecks map[string]healthz.Checker
}

// Main runs the component until it is asked to stop and ends the process: with 0 after a stop that was asked for,
// with 1 after an error, which it prints on standard error.
func Main(c Component) {
	ctx := context.Background() //nolint:forbidigo // the root of every context of the process
	if err := Command(c).ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", c.Name, err)
		os.Exit(1)
	}
}

// Command is the component as a cobra command. It panics when c lacks a name or Setup: that is a mistake in the
// program, not in its use. Running it returns an error for flags that make no sense and for a manager that cannot
// start or loses its Lease, and nil after SIGINT, SIGTERM or the end of the command's context.
func Command(c Component) *cobra.Command {
	if c.Name == "" || c.Setup == nil {
		panic("bootstrap: a Component needs a Name and a Setup")
	}
	if c.Long == "" {
		c.Long = c.Short
	}
	options := defaultOptions(&c)
	var groups cliflag.NamedFlagSets
	options.addFlags(&groups, c.LeaderElected)
	if c.AddFlags != nil {
		c.AddFlags(groups.FlagSet(c.Name))
	}
	showVersion := groups.FlagSet("other").Bool("version", false, "Print the version and exit.")
	groups.FlagSet("other").BoolP("help", "h", false, "Print this help and exit.")

	cmd := &cobra.Command{
		Use:           c.Name,
		Short:         c.Short,
		Long:          c.Long,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if *showVersion {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", c.Name, Version())
				return err
			}
			if err := options.validate(c.LeaderElected); err != nil {
				return err
			}
			if c.Validate != nil {
				if err := c.Validate(options); err != nil {
					return err
				}
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return run(ctx, c, options, cmd.ErrOrStderr())
		},
	}
	for _, name := range groups.Order {
		cmd.Flags().AddFlagSet(groups.FlagSets[name])
	}
	cliflag.SetUsageAndHelpFunc(cmd, groups, 0) // 0: lines are not wrapped, so that help reads the same everywhere
	return cmd
}

// untilSignal is ctx until the first SIGINT or SIGTERM. After the first signal the default handling is back, so that a
// second one ends a process whose shutdown hangs.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
