package asking

import (
	"context"
	"time"

	"kusionstack.io/kuperator/internal/callout"
)

// maxAnswer is how many bytes of an answer are read; a longer one is an error.
const maxAnswer = 1 << 20

// unprepared is an error on the way to a request: nothing was sent, and it may be over the next time.
type unprepared struct{ error }

func (u unprepared) Unwrap() error { return u.error }

// call is one HTTP request.
type call struct {
	method string
	url    string
	body   []byte // nil for none
	// caBundle is base64 of PEM certificates. Empty means the system's.
	caBundle string
	// credentials go with it; nil for none.
	credentials *credentials
}

// client asks the servers of rules. It is safe for concurrent use.
type client struct{ out *callout.Client }

func newClient(targets *callout.Targets, timeout time.Duration) *client {
	return &client{callout.NewClient(callout.Options{
		Targets: targets, Timeout: timeout, MaxAnswer: maxAnswer, UserAgent: "podtransitionrule-controller",
	})}
}

// ask returns the body of the answer. A callout.Misconfigured will last; every other error may be over the next time.
func (c *client) ask(ctx context.Context, q call) ([]byte, error) {
	roots, err := callout.ParseBundle(q.caBundle)
	if err != nil {
		return nil, &callout.Misconfigured{Err: err}
	}
	out := callout.Call{Method: q.method, URL: q.url, Body: q.body, Roots: roots}
	if q.credentials != nil {
		out.Credentials = &callout.Credentials{
			Of: "a Secret", Token: q.credentials.token, Certificate: q.credentials.certificate, Key: q.credentials.key,
		}
	}
	return c.out.Ask(ctx, out)
}

// parseTargets reads the list of servers that rules may ask.
func parseTargets(list []string) (*callout.Targets, error) {
	return callout.ParseTargets(list,
		callout.Asker{Who: "webhook rules", Flag: "--rule-webhook-allow of podtransitionrule-controller"})
}
