package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/clock"

	"kusionstack.io/kuperator/api/client/clientset/versioned"
	"kusionstack.io/kuperator/internal/insight"
)

const (
	// pageSize is how many objects one page of a list has.
	pageSize = 500
	// Requests a second that the plugin may send, as kubectl does.
	qps, burst = 50, 300
	// warningCode is that of a warning without a more special one (RFC 7234), which is all that the API server sends.
	warningCode = 299
)

// session is a connection to one cluster.
type session struct {
	config    *rest.Config
	namespace string
	system    string // namespace of the suite
	kube      kubernetes.Interface
	suite     versioned.Interface
	dynamic   dynamic.Interface
	clock     clock.WithTicker
	server    *serverTime
}

// sessionFor connects for a command, dryRunNone for one that does not write, after its flags are checked.
func (p *plugin) sessionFor(dry dryRun) (*session, error) {
	if err := p.checkOutput(); err != nil {
		return nil, err
	}
	if err := dry.check(); err != nil {
		return nil, err
	}
	return p.connect()
}

// connect reads the flags. No request is sent.
func (p *plugin) connect() (*session, error) {
	config, err := p.config.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig (--kubeconfig, --context): %w", err)
	}
	namespace, _, err := p.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("reading the namespace: %w", err)
	}
	config.QPS, config.Burst = qps, burst
	config.WarningHandlerWithContext = warningsTo(p.ErrOut)
	config.UserAgent = program + "/" + buildVersion()
	server := &serverTime{clock: p.clock}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &timedTransport{next, server} })
	s := &session{config: config, namespace: namespace, system: p.system, clock: p.clock, server: server}
	var errs [3]error
	s.kube, errs[0] = kubernetes.NewForConfig(config)
	s.suite, errs[1] = versioned.NewForConfig(config)
	s.dynamic, errs[2] = dynamic.NewForConfig(config)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("making clients: %w", err)
	}
	p.session = s
	return s, nil
}

// warningsTo prints what admission warns of, as kubectl does. Whoever asks by gathering has it instead.
func warningsTo(w io.Writer) rest.WarningHandlerWithContext {
	return warningPrinter{rest.NewWarningWriter(w, rest.WarningWriterOptions{Deduplicate: true})}
}

type warningPrinter struct{ to rest.WarningHandler }

// gathering is a context whose requests add what admission warns of to into. They must not be concurrent.
func gathering(ctx context.Context, into *[]string) context.Context {
	return context.WithValue(ctx, gatheredWarnings{}, into)
}

type gatheredWarnings struct{}

// HandleWarningHeaderWithContext prints a warning.
func (p warningPrinter) HandleWarningHeaderWithContext(ctx context.Context, code int, agent string, text string) {
	if into, ok := ctx.Value(gatheredWarnings{}).(*[]string); ok {
		if code == warningCode && !slices.Contains(*into, text) {
			*into = append(*into, text)
		}
		return
	}
	p.to.HandleWarningHeader(code, agent, text)
}

// now is the API server's time, as far as an answer has told it.
func (s *session) now() time.Time { return s.clock.Now().Add(s.server.ahead()) }

// serverTime is how far the API server's clock is ahead of ours, by the Date of its last answer.
type serverTime struct {
	clock clock.PassiveClock

	mu   sync.Mutex
	skew time.Duration
}

func (t *serverTime) ahead() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.skew
}

func (t *serverTime) note(date string) {
	at, err := http.ParseTime(date)
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// A Date has whole seconds, and answers take a while: less than that is no difference.
	if t.skew = at.Sub(t.clock.Now()); t.skew.Abs() <= 2*time.Second {
		t.skew = 0
	}
}

type timedTransport struct {
	next http.RoundTripper
	time *serverTime
}

// RoundTrip notes the time of the answer.
func (t *timedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if err == nil {
		t.time.note(response.Header.Get("Date"))
	}
	return response, err
}

// each lists with pages and calls f with every object.
func each[T, L runtime.Object](
	ctx context.Context, options metav1.ListOptions,
	list func(context.Context, metav1.ListOptions) (L, error), f func(T),
) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) })
	pages.PageSize = pageSize
	return pages.EachListItem(ctx, options, func(o runtime.Object) error {
		item, ok := o.(T)
		if !ok {
			return fmt.Errorf("the API server listed a %T", o)
		}
		f(item)
		return nil
	})
}

// gap says what could not be read and what is not said because of it; nil for an error that ends the command.
func gap(err error, verb, resource, namespace, unsaid string) *insight.Gap {
	where := " in the cluster"
	if namespace != "" {
		where = " in namespace " + namespace
	}
	g := &insight.Gap{What: resource + where, Why: err.Error(), Unsaid: unsaid}
	switch {
	case apierrors.IsForbidden(err):
		g.Missing = verb + " " + resource + where
	case isUnserved(err):
		g.Why = notServed
	case apierrors.IsNotFound(err):
		g.Why = "it does not exist: " + err.Error()
	default:
		return nil
	}
	return g
}
