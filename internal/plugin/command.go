package plugin

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"kusionstack.io/kuperator/internal/insight"
)

// name is the plugin's name to users, and its field manager with a dash.
const (
	name         = "kubectl kuperator"
	fieldManager = "kubectl-kuperator"
)

// version is set at build time.
var version = "unknown"

// Exit codes. doctor and drain-check end with codeFindings if something is wrong or held, commands that follow a job
// with codeInterrupted if they are stopped before the job has ended: as a shell has it for Ctrl-C.
const (
	codeOK          = 0
	codeError       = 1
	codeFindings    = 2
	codeInterrupted = 130
)

// errFindings means that a command worked and found something that its caller should know by the exit code.
var errFindings = errors.New("findings")

// Main runs the plugin and returns its exit code.
func Main(args []string, streams genericiooptions.IOStreams) int {
	root := context.Background() //nolint:forbidigo // the one root of the program
	ctx, stop := signal.NotifyContext(root, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return Run(ctx, args, streams)
}

// Run is Main with the caller's context.
func Run(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	root := NewCommand(streams) //nolint:contextcheck // completions take the context of their command, which has this one
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case errors.Is(err, errInterrupted):
		return codeInterrupted
	case err == nil, errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return codeOK
	case errors.Is(err, errFindings):
		return codeFindings
	}
	fmt.Fprintf(streams.ErrOut, "error: %v\n", advised(err))
	return codeError
}

// plugin is what all commands share.
type plugin struct {
	genericiooptions.IOStreams
	config *genericclioptions.ConfigFlags
	clock  clock.WithTicker
	// output is "", json or yaml.
	output string
	// system is the namespace that the suite is installed in.
	system string
}

// NewCommand is the root command.
func NewCommand(streams genericiooptions.IOStreams) *cobra.Command {
	p := &plugin{IOStreams: streams, config: genericclioptions.NewConfigFlags(true), clock: clock.RealClock{}}
	root := &cobra.Command{
		Use:   fieldManager,
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
		"Output format: json or yaml. Empty: human-readable text.")
	root.PersistentFlags().StringVar(&p.system, "suite-namespace", insight.SystemNamespace,
		"Namespace in which the suite is installed.")
	completed(root.RegisterFlagCompletionFunc("suite-namespace", p.completeNamespaces))
	completed(root.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)))
	completed(root.RegisterFlagCompletionFunc("namespace", p.completeNamespaces))
	root.AddGroup(&cobra.Group{ID: groupLook, Title: "Look:"}, &cobra.Group{ID: groupChange, Title: "Change:"})
	root.AddCommand(p.commands()...)
	return root
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

// advised adds to an error what its user can do about it.
func advised(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf(
			"%w\nyou lack that permission: the roles view (to look) and edit (to change) have it for a namespace where kuperator-view and kuperator-edit are installed; see docs/kubectl-kuperator.md#permissions",
			err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w\nthe API server does not accept your credentials: log in again, or choose another --context",
			err)
	case apierrors.IsConflict(err):
		return fmt.Errorf("%w\nanother client has changed it meanwhile: look again, and repeat the command", err)
	}
	return err
}
