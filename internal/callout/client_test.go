package callout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/testca"
)

// What servers do wrong is tested where a client of this package meets it: internal/podtransitionrule/asking.

func local(t *testing.T, change ...func(*Options)) *Client {
	t.Helper()
	targets, err := ParseTargets([]string{"127.0.0.0/8"}, tester)
	require.NoError(t, err)
	o := Options{Targets: targets, Timeout: 30 * time.Second, MaxAnswer: 1 << 20, UserAgent: "tester"}
	for _, c := range change {
		c(&o)
	}
	return NewClient(o)
}

func TestConnectionsAreKeptForABoundedNumberOfCertificates(t *testing.T) {
	c := local(t)
	first, err := c.transport(Call{})
	require.NoError(t, err)
	for range maxTransports - 1 {
		_, err := c.transport(Call{Roots: testca.New(t).PEM()})
		require.NoError(t, err)
	}
	again, err := c.transport(Call{})
	require.NoError(t, err)
	require.Same(t, first, again)
	for range 2 * maxTransports {
		_, err := c.transport(Call{Roots: testca.New(t).PEM()})
		require.NoError(t, err)
		require.LessOrEqual(t, c.transports.Len(), maxTransports)
	}
	again, err = c.transport(Call{})
	require.NoError(t, err)
	require.NotSame(t, first, again, "what was not used for long is dropped")
}

// TestAConnectionThatEndsBeforeTheRequest: the transport closes its side as soon as it reads the end of the server's,
// and the request that it was about to write then fails with an error of this side.
func TestAConnectionThatEndsBeforeTheRequest(t *testing.T) {
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, &net.OpError{Op: "write", Err: net.ErrClosed}} {
		explained := attempt{caller: t.Context(), host: "HOST"}.explain(fmt.Errorf("Post: %w", err))
		require.EqualError(t, explained, "HOST closed the connection")
	}
}

func TestHTTP2IsSpokenWhereItIsOffered(t *testing.T) {
	authority := testca.New(t)
	for name, tc := range map[string]struct {
		offered bool
		want    string
	}{
		"offered": {true, "HTTP/2.0"},
		"not":     {false, "HTTP/1.1"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, r.Proto)
			}))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.EnableHTTP2, server.TLS = true, authority.Config(t, false)
			server.StartTLS()
			t.Cleanup(server.Close)
			body, err := local(t, func(o *Options) { o.HTTP2 = tc.offered }).Ask(t.Context(),
				Call{Method: http.MethodPost, URL: server.URL, Roots: authority.PEM()})
			require.NoError(t, err)
			require.Equal(t, tc.want, string(body))
		})
	}
}

func TestAStatusThatIsNoAnswerIsTold(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "tester", r.UserAgent())
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(server.Close)
	_, err := local(t).Ask(t.Context(), Call{Method: http.MethodGet, URL: server.URL})
	var bad *BadStatus
	require.ErrorAs(t, err, &bad)
	require.Equal(t, http.StatusTooManyRequests, bad.Code)
	require.Equal(t, "7", bad.RetryAfter)
	require.ErrorContains(t, err, "answered with status 429 Too Many Requests")
}

func TestACallMayHaveLessTime(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(server.Close)
	_, err := local(t).Ask(t.Context(), Call{Method: http.MethodGet, URL: server.URL, Timeout: 50 * time.Millisecond})
	require.ErrorContains(t, err, "did not answer within 50ms")
	_, err = local(t, func(o *Options) { o.Timeout = 60 * time.Millisecond }).Ask(t.Context(),
		Call{Method: http.MethodGet, URL: server.URL, Timeout: time.Hour})
	require.ErrorContains(t, err, "did not answer within 60ms")
}

// TestAnAnswerToACallThatIsOverIsNone: the answer may arrive while the connection is being closed.
func TestAnAnswerToACallThatIsOverIsNone(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	c := local(t)
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: cancel})
		_, err := c.Ask(traced, Call{Method: http.MethodGet, URL: server.URL})
		require.ErrorIs(t, err, context.Canceled)
	}
}

func TestCredentialsThatCannotBeUsedAreNotSent(t *testing.T) {
	for name, tc := range map[string]struct {
		call Call
		want string
	}{
		"http": {Call{URL: "http://127.0.0.1:1/", Credentials: &Credentials{Of: "a test", Token: "x"}},
			"credentials of a test are sent over https only"},
		"no certificate": {Call{URL: "https://127.0.0.1:1/",
			Credentials: &Credentials{Of: "a test", Certificate: []byte("x")}},
			"credentials of a test: tls.crt and tls.key cannot be used"},
		"roots that are no PEM": {Call{URL: "https://127.0.0.1:1/", Roots: []byte("x")}, "the caBundle has no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := local(t).Ask(t.Context(), tc.call)
			require.ErrorContains(t, err, tc.want)
			var lasting *Misconfigured
			require.True(t, errors.As(err, &lasting))
		})
	}
}
