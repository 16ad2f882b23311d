package dashboard

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"mime"
	"net/http"

	"kusionstack.io/kuperator/internal/insight"
)

const (
	actPath = "/api/act"
	// tokenHeader has the token. A page of another origin cannot set it: the browser would ask this server first, and the
	// answer allows nothing.
	tokenHeader = "Kuperator-Token"
	// maxOrder is more than an order has, in bytes.
	maxOrder = 4096
)

// Actor does what the page is told to do.
type Actor interface {
	// Offer says what may be done to a workload now. Of a verb that is not empty, only that is asked.
	Offer(ctx context.Context, workload insight.Ref, verb insight.Verb) (Offer, error)
	// Act does it. A Refusal says why not, and with which status.
	Act(ctx context.Context, order Order) (Outcome, error)
}

// Offer are the actions on a workload as it is.
type Offer struct {
	// Version is what the workload was when it was read. An order repeats it.
	Version string           `json:"version"`
	Actions []insight.Action `json:"actions"`
}

// Order is an action that the user has confirmed.
type Order struct {
	insight.Ref
	Verb insight.Verb `json:"verb"`
	// Version and Revision are those of the Offer that was shown.
	Version  string `json:"version"`
	Revision int64  `json:"revision,omitempty"`
}

// Outcome is what was done, in words.
type Outcome struct {
	Text string `json:"text"`
	// Details say more, a line each.
	Details []string `json:"details,omitempty"`
}

// Refusal is why nothing was done.
type Refusal struct {
	// Status is of HTTP.
	Status int
	// Reason is for people. Answer is the API server's; empty if it has said nothing else.
	Reason, Answer string
}

// Error is the reason, and the answer on a line of its own.
func (r *Refusal) Error() string {
	if r.Answer == "" {
		return r.Reason
	}
	return r.Reason + "\n" + r.Answer
}

// Allow lets the page act by actor, and returns the token that requests must have for that. Call it before the server
// is used.
func (s *Server) Allow(actor Actor) (token string) {
	s.actor, s.token, s.scope.Actions = actor, rand.Text(), true
	return s.token
}

// hasToken reports whether the request comes from who was given the token of this run.
func (s *Server) hasToken(r *http.Request) bool {
	return subtle.ConstantTimeCompare([]byte(r.Header.Get(tokenHeader)), []byte(s.token)) == 1
}

const noToken = "to act, open the address that the terminal of kubectl kuperator dashboard shows now"

// offer answers what may be done. That takes requests with the user's rights, so it is not for everybody either.
func (s *Server) offer(w http.ResponseWriter, r *http.Request) {
	if !s.hasToken(r) {
		http.Error(w, noToken, http.StatusForbidden)
		return
	}
	answer(w, r, func(ctx context.Context, workload insight.Ref) (Offer, error) {
		return s.actor.Offer(ctx, workload, insight.Verb(r.FormValue("verb")))
	})
}

// act does what an order says, if it comes from this page.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	var order Order
	switch {
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "an order is a POST", http.StatusMethodNotAllowed)
		return
	case r.Header.Get("Origin") != "http://"+r.Host:
		http.Error(w, "an order comes from this page alone", http.StatusForbidden)
		return
	case err != nil || kind != "application/json":
		http.Error(w, "an order is application/json", http.StatusUnsupportedMediaType)
		return
	case !s.hasToken(r):
		http.Error(w, noToken, http.StatusForbidden)
		return
	}
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder))
	body.DisallowUnknownFields()
	if err := body.Decode(&order); err != nil || order.Kind == "" || order.Namespace == "" || order.Name == "" ||
		order.Verb == "" || order.Version == "" {
		http.Error(w, "an order has kind, namespace, name, verb and version", http.StatusBadRequest)
		return
	}
	outcome, err := s.actor.Act(r.Context(), order)
	if err == nil {
		reply(w, outcome)
		return
	}
	status := http.StatusBadGateway
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		status = refusal.Status
	}
	http.Error(w, err.Error(), status)
}
