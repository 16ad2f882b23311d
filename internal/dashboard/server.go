package dashboard

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"sync"

	"kusionstack.io/kuperator/internal/insight"
)

//go:embed page
var page embed.FS

// Source is where pictures come from.
type Source interface {
	// Watch calls seen with the fleet as it is and again whenever it has changed, until ctx ends, which is no error.
	Watch(ctx context.Context, seen func(insight.Fleet)) error
	// Why answers for a Pod or a workload.
	Why(ctx context.Context, subject insight.Ref) (insight.Answer, error)
	// Details says what there is to know about a workload.
	Details(ctx context.Context, workload insight.Ref) (insight.Details, error)
}

// Scope is what a page shows.
type Scope struct {
	// Text says it in words, such as "namespace shop".
	Text string `json:"scope"`
	// Context is the name of the kubeconfig's context; empty if there is none.
	Context string `json:"context,omitempty"`
	// System is the namespace that the suite is installed in.
	System string `json:"system,omitempty"`
	// Actions is true if the page may act, for who has the token.
	Actions bool `json:"actions,omitempty"`
	// Flags are what a command that is copied from the page needs to reach the same cluster; empty if it needs none.
	Flags string `json:"flags,omitempty"`
}

// Server serves the page. Make one with New; its methods are safe for concurrent use.
type Server struct {
	source Source
	scope  Scope
	files  http.Handler
	actor  Actor  // nil: it only reads
	token  string // of this run

	mu      sync.Mutex
	parts   Parts // nil before the first picture
	problem string
	next    chan struct{} // closed when there is something new
}

// New makes a Server. scope says what it shows.
func New(source Source, scope Scope) (*Server, error) {
	files, err := fs.Sub(page, "page")
	if err != nil {
		return nil, err
	}
	return &Server{source: source, scope: scope, files: http.FileServerFS(files), next: make(chan struct{})}, nil
}

// Run keeps the picture until ctx ends. An error of the source is shown on the page and returned.
func (s *Server) Run(ctx context.Context) error {
	var failed error
	err := s.source.Watch(ctx, func(fleet insight.Fleet) {
		parts, err := PartsOf(fleet, s.scope)
		failed = errors.Join(failed, err)
		s.tell(func() { s.parts, s.problem = parts, "" })
	})
	if err = errors.Join(err, failed); err != nil {
		s.tell(func() { s.problem = err.Error() })
	}
	return err
}

func (s *Server) tell(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.next)
	s.next = make(chan struct{})
}

func (s *Server) now() (parts Parts, problem string, next <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parts, s.problem, s.next
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy",
		"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	switch {
	case !local(r.Host):
		http.Error(w, "open this page as http://127.0.0.1 or http://localhost", http.StatusForbidden)
	case s.actor != nil && r.URL.Path == actPath:
		s.act(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "this page only reads", http.StatusMethodNotAllowed)
	case s.actor != nil && r.URL.Path == "/api/actions":
		s.offer(w, r)
	case r.URL.Path == "/api/fleet":
		s.stream(w, r)
	case r.URL.Path == "/api/why":
		answer(w, r, s.source.Why)
	case r.URL.Path == "/api/details":
		answer(w, r, s.source.Details)
	default:
		s.files.ServeHTTP(w, r)
	}
}

// local reports whether a request was meant for this machine: a foreign name that resolves to it is not its own.
func local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// stream sends what changes, as events (text/event-stream): messages are Changes; "problem" says why nothing comes.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	var sent Parts
	told := ""
	if out.Flush() != nil {
		return
	}
	for {
		parts, problem, next := s.now()
		var err error
		if problem != told {
			kind := "problem"
			if problem == "" {
				kind = "fine"
			}
			told, err = problem, send(w, kind, problem)
		}
		if change := Between(sent, parts); err == nil && parts != nil && len(change.Set)+len(change.Gone) > 0 {
			sent, err = parts, send(w, "message", change)
		}
		if err != nil || out.Flush() != nil {
			return // the reader is gone
		}
		select {
		case <-r.Context().Done():
			return
		case <-next:
		}
	}
}

func send(w http.ResponseWriter, kind string, value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		_, err = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, text)
	}
	return err
}

// answer answers a question about the object that the request names.
func answer[T any](
	w http.ResponseWriter, r *http.Request, ask func(context.Context, insight.Ref) (T, error),
) {
	subject := insight.Ref{Kind: r.FormValue("kind"), Namespace: r.FormValue("namespace"), Name: r.FormValue("name")}
	if subject.Kind == "" || subject.Namespace == "" || subject.Name == "" {
		http.Error(w, "name kind, namespace and name", http.StatusBadRequest)
		return
	}
	found, err := ask(r.Context(), subject)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	reply(w, found)
}

func reply(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		return // the reader is gone
	}
}
