package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/dashboard"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/revision"
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
	var allNamespaces, actions bool
	cmd := &cobra.Command{
		Use:     "dashboard",
		GroupID: groupLook,
		Short:   "Show the fleet as a live page in a browser",
		Long: `Show the fleet as a live page in a browser: workloads, their Pods by state, budgets, and what Pods wait for.

The page is served on a loopback address of this machine, with the permissions of the user of this command, until the
command ends (Ctrl-C). It is read-only.

With --actions it pauses, resumes, promotes, undoes and restarts CollaSets as the commands of these names do, once you
have confirmed what will happen. The address has a token then: who has it acts with your permissions.`,
		Example: `  # One namespace
  kubectl kuperator dashboard -n shop
  # With buttons to pause, resume, promote, undo and restart
  kubectl kuperator dashboard -n shop --actions
  # The whole cluster, at a given address
  kubectl kuperator dashboard -A --address 127.0.0.1:8686`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.dashboard(cmd.Context(), address, allNamespaces, actions)
		},
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1:0",
		"Loopback address to serve at, host:port. Port 0: a free port.")
	cmd.Flags().BoolVarP(&allNamespaces, "all-namespaces", "A", false, "Show all namespaces.")
	cmd.Flags().BoolVar(&actions, "actions", false,
		"Let the page pause, resume, promote, undo and restart CollaSets, each after a confirmation.")
	return cmd
}

func (p *plugin) dashboard(ctx context.Context, address string, allNamespaces, actions bool) error {
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
	scope := p.scope(s.namespace)
	namespace := s.namespace
	if allNamespaces {
		namespace, scope.Text = "", "all namespaces"
	}
	if _, err := s.facts(ctx, namespace); err != nil { // tell at once what can never work
		return err
	}
	source := &fleetSource{s: s, namespace: namespace}
	page, err := dashboard.New(source, scope)
	if err != nil {
		return err
	}
	fragment, acts := "", ""
	if actions { // a browser does not send what follows #, and so the token is in no log
		fragment = "/#token=" + page.Allow(&pageActor{p: p, source: source})
		acts = " and acts with your permissions, for who has this address"
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--address %s: %w; choose another port, or 0 for a free one", address, err)
	}
	server := &http.Server{Handler: page, ReadHeaderTimeout: headerTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Fprintf(p.Out, "http://%s%s shows %s%s. Ctrl-C ends it.\n", listener.Addr(), fragment, scope.Text, acts)
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

// scope is what the page shows of a namespace, and how commands that are copied from it reach the same cluster: by the
// flags of this command, since the kubeconfig alone may lead elsewhere.
func (p *plugin) scope(namespace string) dashboard.Scope {
	scope := dashboard.Scope{Text: "namespace " + namespace, System: p.system}
	if raw, err := p.config.ToRawKubeConfigLoader().RawConfig(); err == nil {
		scope.Context = raw.CurrentContext
	}
	var flags []string
	add := func(name string, value *string) {
		if value != nil && *value != "" {
			flags = append(flags, "--"+name+"="+quoted(*value))
		}
	}
	if p.config.Context != nil && *p.config.Context != "" {
		scope.Context = *p.config.Context
	}
	add("context", p.config.Context)
	add("kubeconfig", p.config.KubeConfig)
	scope.Flags = strings.Join(flags, " ")
	return scope
}

// quoted is a word for a shell.
func quoted(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-"
	if strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// fleetSource is the cluster as the page sees it.
type fleetSource struct {
	s         *session
	namespace string

	mu    sync.Mutex
	facts *insight.Facts // the last ones; nil before the first
	can   *revision.Capabilities
}

// Watch implements dashboard.Source.
func (f *fleetSource) Watch(ctx context.Context, seen func(insight.Fleet)) error {
	return f.s.followFacts(ctx, f.namespace, func(facts insight.Facts) error {
		f.mu.Lock()
		f.facts = &facts
		f.mu.Unlock()
		seen(insight.Describe(facts))
		return nil
	})
}

// shows is an error for what the page does not show.
func (f *fleetSource) shows(subject insight.Ref) error {
	if f.namespace != "" && subject.Namespace != f.namespace {
		return fmt.Errorf("this page shows namespace %s", f.namespace)
	}
	return nil
}

// now are the facts of the watches, so that no question reads ten thousand Pods.
func (f *fleetSource) now(ctx context.Context, subject insight.Ref) (insight.Facts, error) {
	if err := f.shows(subject); err != nil {
		return insight.Facts{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.facts == nil {
		return f.s.facts(ctx, subject.Namespace)
	}
	facts := *f.facts
	facts.Now, facts.Gaps = f.s.now(), slices.Clone(facts.Gaps)
	return facts, nil
}

// Why implements dashboard.Source.
func (f *fleetSource) Why(ctx context.Context, subject insight.Ref) (insight.Answer, error) {
	facts, err := f.now(ctx, subject)
	if err != nil {
		return insight.Answer{}, err
	}
	return f.s.answerFrom(ctx, facts, subject)
}

// Details implements dashboard.Source.
func (f *fleetSource) Details(ctx context.Context, workload insight.Ref) (insight.Details, error) {
	facts, err := f.now(ctx, workload)
	if err != nil {
		return insight.Details{}, err
	}
	events, err := f.s.events(ctx, workload, &facts)
	if err != nil {
		return insight.Details{}, err
	}
	ofPods, err := f.s.podWarnings(ctx, workload.Namespace, &facts)
	if err != nil {
		return insight.Details{}, err
	}
	revisions, err := f.revisions(ctx, workload, &facts)
	if err != nil {
		return insight.Details{}, err
	}
	details, found := insight.DetailsOf(facts, workload, revisions, events, ofPods)
	if !found {
		return details, notThere(&facts, workload)
	}
	return details, nil
}

// revisions are those of a CollaSet; none of another workload.
func (f *fleetSource) revisions(
	ctx context.Context, workload insight.Ref, facts *insight.Facts,
) ([]insight.Revision, error) {
	at := slices.IndexFunc(facts.CollaSets, func(set appsv1alpha1.CollaSet) bool { return refOfSet(&set) == workload })
	if at < 0 {
		return nil, nil
	}
	set := &facts.CollaSets[at]
	list, contents, err := f.s.revisions(ctx, set)
	if err != nil {
		return nil, tolerate(facts, err, "list", "controllerrevisions.apps", set.Namespace, "the history of its templates")
	}
	can, err := f.capabilities(ctx)
	if err != nil {
		return nil, err
	}
	return historyOf(set, list, contents, facts.Pods, can), nil
}

// capabilities are those of the API server, asked once.
func (f *fleetSource) capabilities(ctx context.Context) (revision.Capabilities, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.can == nil {
		can, err := f.s.capabilities(ctx)
		if err != nil {
			return can, err
		}
		f.can = &can
	}
	return *f.can, nil
}
