package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"kusionstack.io/kuperator/internal/dashboard"
	"kusionstack.io/kuperator/internal/insight"
)

const (
	// headerTimeout bounds how long a browser may take to ask.
	headerTimeout = 10 * time.Second
	// closeTimeout bounds how long answers in flight are waited for at the end.
	closeTimeout = 2 * time.Second
	// tryAgainAfter is how long after a failure the cluster is read again.
	tryAgainAfter = 5 * time.Second
)

func (p *plugin) dashboardCommand() *cobra.Command {
	var address string
	var allNamespaces bool
	cmd := &cobra.Command{
		Use:     "dashboard",
		GroupID: groupLook,
		Short:   "Show the fleet as a live page in a browser",
		Long: `Show the fleet as a live page in a browser: workloads, their Pods by state, budgets, and what Pods wait for.

The page is served on a loopback address of this machine, with the permissions of the user of this command. It is
read-only, and is served until the command ends (Ctrl-C).`,
		Example: `  # One namespace
  kubectl kuperator dashboard -n shop
  # The whole cluster, at a given address
  kubectl kuperator dashboard -A --address 127.0.0.1:8686`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.dashboard(cmd.Context(), address, allNamespaces)
		},
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1:0",
		"Loopback address to serve at, host:port. Port 0: a free port.")
	cmd.Flags().BoolVarP(&allNamespaces, "all-namespaces", "A", false, "Show all namespaces.")
	return cmd
}

func (p *plugin) dashboard(ctx context.Context, address string, allNamespaces bool) error {
	if p.output != "" {
		return errors.New("dashboard is for eyes: for -o use kubectl kuperator status --watch")
	}
	if err := loopback(address); err != nil {
		return err
	}
	s, err := p.connect()
	if err != nil {
		return err
	}
	namespace, scope := s.namespace, "namespace "+s.namespace
	if allNamespaces {
		namespace, scope = "", "all namespaces"
	}
	if _, err := s.facts(ctx, namespace); err != nil { // tell at once what can never work
		return err
	}
	page, err := dashboard.New(fleetSource{s, namespace}, scope)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--address %s: %w; choose another port, or 0 for a free one", address, err)
	}
	server := &http.Server{Handler: page, ReadHeaderTimeout: headerTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Fprintf(p.Out, "http://%s shows %s. Ctrl-C ends it.\n", listener.Addr(), scope)
	s.keep(ctx, page)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := server.Shutdown(ending); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// keep keeps the page up to date until ctx ends: what fails is told on the page and tried again.
func (s *session) keep(ctx context.Context, page *dashboard.Server) {
	for ctx.Err() == nil {
		if err := page.Run(ctx); err == nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-s.clock.After(tryAgainAfter):
		}
	}
}

// loopback refuses an address that others could reach: the page has no way to tell who asks.
func loopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--address is %q: give host:port, such as 127.0.0.1:8686", address)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf(
			"--address is %q: the page knows no users, so it is served on a loopback address only; to see it from elsewhere, forward the port with ssh",
			address)
	}
	return nil
}

// fleetSource is the cluster as the page sees it.
type fleetSource struct {
	s         *session
	namespace string
}

// Watch implements dashboard.Source.
func (f fleetSource) Watch(ctx context.Context, seen func(insight.Fleet)) error {
	return f.s.follow(ctx, f.namespace, func(fleet insight.Fleet) error {
		seen(fleet)
		return nil
	})
}

// Why implements dashboard.Source.
func (f fleetSource) Why(ctx context.Context, subject insight.Ref) (insight.Answer, error) {
	if f.namespace != "" && subject.Namespace != f.namespace {
		return insight.Answer{}, fmt.Errorf("this page shows namespace %s", f.namespace)
	}
	return f.s.answer(ctx, subject)
}
