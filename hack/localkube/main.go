// Command localkube starts and stops local Kubernetes clusters for trying things
// out by hand. See docs/local-kubernetes.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/realnode"
)

// kubernetesUsage is of a flag that several commands have.
var kubernetesUsage = fmt.Sprintf("version of Kubernetes, one of %v (default: the first, or what %s says)",
	localkube.Versions(), localkube.VersionVariable)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := rootCommand().ExecuteContext(ctx); err != nil {
		stop()
		os.Exit(1)
	}
}

// place says where a named cluster lives.
type place struct {
	name, dir string
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:          "localkube",
		Short:        "Run real Kubernetes control planes with simulated nodes on this machine",
		SilenceUsage: true,
	}
	at := &place{}
	root.PersistentFlags().StringVar(&at.name, "name", "kuperator", "name of the cluster")
	root.PersistentFlags().StringVar(&at.dir, "dir", "",
		"folder of the cluster (default: clusters/NAME in the cache folder)")
	root.AddCommand(upCommand(at), downCommand(at), statusCommand(at), logsCommand(at), assetsCommand(),
		realNodesCommand())
	return root
}

// folder is --dir or, by default, a folder per name.
func (p *place) folder() (string, error) {
	if p.dir != "" {
		return p.dir, nil
	}
	if p.name == "" || p.name != filepath.Base(p.name) || p.name == ".." || p.name == "." {
		return "", fmt.Errorf("%q is not a cluster name: it must be fit to be the name of a folder", p.name)
	}
	cache, err := localkube.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "clusters", p.name), nil
}

func (p *place) attach() (*localkube.Cluster, error) {
	dir, err := p.folder()
	if err != nil {
		return nil, err
	}
	return localkube.Attach(dir)
}

func upCommand(at *place) *cobra.Command {
	config := localkube.Config{Detached: true, Audit: true}
	var withoutControllers, withoutScheduler bool
	command := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster that runs until \"down\"",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := at.folder()
			if err != nil {
				return err
			}
			if running, err := localkube.Attach(dir); err == nil {
				return fmt.Errorf("cluster %s is there already (\"status\" shows it, \"down\" ends it)", running.Name)
			} else if !errors.Is(err, os.ErrNotExist) {
				return err
			}
			config.Name, config.Dir, config.Progress = at.name, dir, cmd.ErrOrStderr()
			config.WithNodes = config.Nodes > 0
			config.WithControllerManager, config.WithScheduler = !withoutControllers, !withoutScheduler
			cluster, err := localkube.Start(cmd.Context(), config)
			if err != nil {
				return err
			}
			fmt.Fprint(cmd.ErrOrStderr(), whatItIs(config, at))
			fmt.Fprintf(cmd.OutOrStdout(), "export KUBECONFIG=%s\n", cluster.AdminKubeconfig)
			return nil
		},
	}
	flags := command.Flags()
	flags.IntVar(&config.Nodes, "nodes", 3, "number of simulated nodes; 0 starts none")
	flags.BoolVar(&config.DualStack, "dual-stack", false, "give Services and Pods addresses of both families, IPv4 first")
	flags.StringVar(&config.Kubernetes, "kubernetes", "", kubernetesUsage)
	flags.IntVar(&config.Port, "port", 0, "port of the API server, etcd takes the two after it; 0 chooses free ones")
	flags.BoolVar(&config.Audit, "audit", true, "keep an audit log of writes")
	flags.BoolVar(&config.AuditReads, "audit-reads", false, "let reads be in the audit log as well")
	flags.BoolVar(&withoutControllers, "without-controller-manager", false, "start no kube-controller-manager")
	flags.BoolVar(&withoutScheduler, "without-scheduler", false, "start no kube-scheduler")
	return command
}

// whatItIs says what a new cluster is, what it is not, and how to stop it.
func whatItIs(config localkube.Config, at *place) string {
	nodes := "It has no nodes: Pods stay Pending.\n"
	if config.WithNodes {
		nodes = fmt.Sprintf("Its nodes (%d) are simulated: Pods become Ready, but no container runs and no image is pulled.\n",
			config.Nodes)
	}
	stop := "make cluster-down NAME=" + at.name
	if at.dir != "" {
		stop = "go run ./hack/localkube down --dir " + at.dir
	}
	return fmt.Sprintf("Cluster %s runs until %s.\n%sTo use it:\n", at.name, stop, nodes)
}

func downCommand(at *place) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop a cluster and remove its folder",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := at.attach()
			if errors.Is(err, os.ErrNotExist) {
				fmt.Fprintf(cmd.ErrOrStderr(), "%v\n", err)
				return nil // what is not there need not be stopped
			}
			if err != nil {
				return err
			}
			return cluster.Stop()
		},
	}
}

func statusCommand(at *place) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show a cluster's processes and paths",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := at.attach()
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "name:       %s\nserver:     %s\nfolder:     %s\nkubeconfig: %s\naudit log:  %s\n",
				cluster.Name, cluster.RESTConfig().Host, cluster.Dir, cluster.AdminKubeconfig, orNone(cluster.AuditLog()))
			processes := cluster.Processes()
			stopped := 0
			for _, name := range slices.Sorted(maps.Keys(processes)) {
				if pid := processes[name]; pid != 0 {
					fmt.Fprintf(out, "%-24s process %d\n", name, pid)
				} else {
					fmt.Fprintf(out, "%-24s not running\n", name)
					stopped++
				}
			}
			if stopped > 0 {
				return fmt.Errorf("%d of %d components do not run; \"logs\" may say why", stopped, len(processes))
			}
			return nil
		},
	}
}

func logsCommand(at *place) *cobra.Command {
	return &cobra.Command{
		Use:   "logs [COMPONENT]",
		Short: "Print the log of a component, or the paths of all logs",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := at.attach()
			if err != nil {
				return err
			}
			paths := cluster.Logs()
			names := slices.Sorted(maps.Keys(paths))
			if len(args) == 0 {
				for _, name := range names {
					fmt.Fprintf(cmd.OutOrStdout(), "%-24s %s\n", name, paths[name])
				}
				return nil
			}
			path, found := paths[args[0]]
			if !found {
				return fmt.Errorf("no component %q; there are %v", args[0], names)
			}
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			_, err = io.Copy(cmd.OutOrStdout(), file)
			return err
		},
	}
}

func assetsCommand() *cobra.Command {
	var kubelet, cached bool
	var version string
	command := &cobra.Command{
		Use:   "assets",
		Short: "Build the binaries if need be and print their folder (fit for KUBEBUILDER_ASSETS)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cached {
				there, err := localkube.AssetsCached(cmd.Context(), version)
				if err == nil && !there {
					err = errors.New("they are not built yet")
				}
				return err
			}
			get := func(ctx context.Context, progress io.Writer) (string, error) {
				return localkube.AssetsOf(ctx, version, progress)
			}
			if kubelet {
				get = localkube.KubeletAsset
			}
			path, err := get(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), path)
			return nil
		},
	}
	command.Flags().BoolVar(&kubelet, "kubelet", false, "build a real kubelet instead and print its path")
	command.Flags().BoolVar(&cached, "cached", false, "build and print nothing; fail unless they are built")
	command.Flags().StringVar(&version, "kubernetes", "", kubernetesUsage)
	command.MarkFlagsMutuallyExclusive("kubelet", "cached")
	command.MarkFlagsMutuallyExclusive("kubelet", "kubernetes")
	return command
}

func realNodesCommand() *cobra.Command {
	return &cobra.Command{
		Use:           "real-nodes",
		Short:         "Say whether this machine can run real nodes, as make test-node does; fails with the reasons if not",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := realnode.Missing(); err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), err)
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "this machine can run real nodes")
			return nil
		},
	}
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}
