package plugin

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"kusionstack.io/kuperator/internal/insight"
)

const (
	name    = "kubectl kuperator" // to users
	program = "kubectl-kuperator"
	// fieldManager does not begin with "kubectl": Flux undoes what such field managers write.
	fieldManager = "kuperator-plugin"
)

// version is set at build time.
var version = "unknown"

// Exit codes. doctor and drain-check end with codeFindings if something is wrong or held, commands that follow a job
// with codeInterrupted if they are stopped before the job has ended: as a shell has it for Ctrl-C. diff has those of
// kubectl diff, so that an error is not taken for a difference.
const (
	codeOK          = 0
	codeError       = 1
	codeFindings    = 2
	codeDiffers     = 1
	codeDiffError   = 2
	codeInterrupted = 130
)

// errFindings means that a command worked and found something that its caller should know by the exit code.
var errFindings = errors.New("findings")

// errDiffers means that diff worked and found differences.
var errDiffers = errors.New("differences")

// Main runs the plugin and returns its exit code.
func Main(args []string, streams genericiooptions.IOStreams) int {
	root := context.Background() //nolint:forbidigo // the one root of the program
	ctx, stop := signal.NotifyContext(root, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return Run(ctx, args, streams)
}

// Run is Main with the caller's context.
func Run(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	p, root := newCommand(streams) //nolint:contextcheck // completions take the context of their command, which has this one
	refuseUnknown(root)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case errors.Is(err, errInterrupted):
		return codeInterrupted
	case err == nil, errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return codeOK
	case errors.Is(err, errFindings):
		return codeFindings
	case errors.Is(err, errDiffers):
		return codeDiffers
	}
	fmt.Fprintf(streams.ErrOut, "error: %v\n", p.advised(ctx, err))
	if cmd.Name() == diffName {
		return codeDiffError
	}
	return codeError
}

// plugin is what all commands share.
type plugin struct {
	genericiooptions.IOStreams
	config *genericclioptions.ConfigFlags
	clock  clock.WithTicker
	// output is "", json, yaml, name, wide or jsonpath=TEMPLATE.
	output string
	// system is the namespace that the suite is installed in.
	system string
	// session is the connection of the command; nil until it has one.
	session *session
}

// NewCommand is the root command.
func NewCommand(streams genericiooptions.IOStreams) *cobra.Command {
	_, root := newCommand(streams)
	return root
}

func newCommand(streams genericiooptions.IOStreams) (*plugin, *cobra.Command) {
	p := &plugin{IOStreams: streams, config: genericclioptions.NewConfigFlags(true), clock: clock.RealClock{}}
	root := &cobra.Command{
		Use:   program,
		Short: "See what Pods under the lifecycle wait for, and operate their workloads",
		Long: `See what Pods under the lifecycle wait for, and operate their workloads.

status shows workloads, their Pods and operations; why shows what one of them waits for, and what to do about it.
Every command reads with the permissions of its user: what may not be read is named, and the rest is shown.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: name},
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       buildVersion(),
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	p.config.CacheDir = nil // nothing is discovered
	p.config.AddFlags(root.PersistentFlags())
	root.PersistentFlags().StringVarP(&p.output, "output", "o", "",
		"Output format: json, yaml, name, wide or jsonpath=TEMPLATE. Empty: human-readable text.")
	root.PersistentFlags().StringVar(&p.system, "suite-namespace", insight.SystemNamespace,
		"Namespace in which the suite is installed.")
	completed(root.RegisterFlagCompletionFunc("suite-namespace", p.completeNamespaces))
	completed(root.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{outputJSON, outputYAML, outputName, outputWide, outputPath},
			cobra.ShellCompDirectiveNoFileComp)))
	completed(root.RegisterFlagCompletionFunc("namespace", p.completeNamespaces))
	root.AddGroup(&cobra.Group{ID: groupLook, Title: "Look:"}, &cobra.Group{ID: groupChange, Title: "Change:"})
	root.AddCommand(p.commands()...)
	return p, root
}

// refuseUnknown refuses a word after a group of commands that is none of them. Cobra shows the help, and reports
// success.
func refuseUnknown(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, group := range root.Commands() {
		if group.HasSubCommands() {
			group.Args, group.RunE = cobra.NoArgs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

const unlimited = -1

// between is how many words a command takes. The error shows what they are.
func between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("a name is missing: %s", cmd.UseLine())
		case most != unlimited && len(args) > most:
			return fmt.Errorf("%q is too much: %s", args[most], cmd.UseLine())
		}
		return nil
	}
}

const (
	groupLook   = "look"
	groupChange = "change"
)

func (p *plugin) commands() []*cobra.Command {
	return []*cobra.Command{
		p.statusCommand(), p.whyCommand(), p.dashboardCommand(), p.planCommand(), p.diffCommand(), p.historyCommand(),
		p.drainCheckCommand(), p.doctorCommand(), p.versionCommand(),
		p.setCommand(), p.promoteCommand(), p.abortCommand(), p.undoCommand(), p.pauseCommand(), p.resumeCommand(),
		p.restartCommand(), p.replaceCommand(), p.freezeCommand(), p.unfreezeCommand(),
	}
}

// completed fails the first test that makes the command if a flag of that name does not exist.
func completed(err error) {
	if err != nil {
		panic(err)
	}
}

func buildVersion() string {
	if version != "unknown" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return version
}
