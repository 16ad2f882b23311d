package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/testca"
)

// shown is a certificate with a token that the tests choose.
type shown struct {
	certificate
	tls    tls.Certificate
	token  string
	needed bool
}

func (s *shown) TLS(c *tls.Config) {
	c.MinVersion = tls.VersionTLS12
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &s.tls, nil }
}

func (s *shown) Token() (string, bool) { return s.token, s.needed }

// serve runs a server until the test ends, with a handler at each path that counts the bytes that it reads, and
// returns its address.
func serve(t *testing.T, c *shown, change func(*server)) (address string, read *atomic.Int64) {
	t.Helper()
	authority := testca.New(t)
	cert, key := authority.Issue(t)
	var err error
	c.tls, err = tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	free, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // to learn of a free port
	require.NoError(t, err)
	address = free.Addr().String()
	require.NoError(t, free.Close())
	s := newServer(address, c)
	if change != nil {
		change(s)
	}
	read = &atomic.Int64{}
	for path := range s.rooms {
		s.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			read.Add(n)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	require.Eventually(t, func() bool { return s.StartedChecker()(nil) == nil }, time.Minute, time.Millisecond)
	return address, read
}

// dial opens a TLS connection that ends with the test.
func dial(t *testing.T, address string) *tls.Conn {
	t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp",
		address) //nolint:gosec // an attacker trusts everybody
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*tls.Conn)
}

// begin sends the header of a request, and no body.
func begin(t *testing.T, conn net.Conn, method, path, contentType, length string) {
	t.Helper()
	_, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: a\r\nContent-Type: %s\r\n%s\r\n\r\n", method, path,
		contentType, length)
	require.NoError(t, err)
}

// codeOf is the status code of what comes, 0 if the connection ends without.
func codeOf(t *testing.T, conn net.Conn, within time.Duration) int {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(within)))
	line := make([]byte, 12)
	if _, err := io.ReadFull(conn, line); err != nil {
		require.False(t, errors.Is(err, context.DeadlineExceeded) || isTimeout(err), "no answer")
		return 0
	}
	var code int
	_, err := fmt.Sscanf(string(line), "HTTP/1.1 %d", &code)
	require.NoError(t, err)
	return code
}

// post sends a whole request, and is the status code of the answer.
func post(t *testing.T, conn net.Conn, path, body string) int {
	t.Helper()
	begin(t, conn, http.MethodPost, path, jsonType, fmt.Sprintf("Content-Length: %d", len(body)))
	_, err := io.WriteString(conn, body)
	require.NoError(t, err)
	return codeOf(t, conn, soon)
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

const (
	secret   = "abcdef234567"
	jsonType = "application/json"
	soon     = 10 * time.Second // below the server's own timeouts for a body that does not come
)

func TestWhatNoAPIServerSendsIsTurnedAwayBeforeItsBody(t *testing.T) {
	with, read := serve(t, &shown{token: secret, needed: true}, nil)
	without, readWithout := serve(t, &shown{}, nil)
	early, _ := serve(t, &shown{needed: true}, nil)
	tests := map[string]struct {
		at, method, path, contentType, length string
		want                                  int
	}{
		"an unknown path":      {with, "POST", "/metrics/" + secret, jsonType, "Content-Length: 1000", 404},
		"the root":             {with, "POST", "/", jsonType, "Content-Length: 1000", 404},
		"another method":       {with, "PUT", "/mutate-pods/" + secret, jsonType, "Content-Length: 1000", 405},
		"another type":         {with, "POST", "/mutate-pods/" + secret, "text/plain", "Content-Length: 1000", 415},
		"more than any review": {with, "POST", "/mutate-pods/" + secret, jsonType, "Content-Length: 7340032", 413},
		"a part of the token":  {with, "POST", "/delete-pods/" + secret[1:], jsonType, "Content-Length: 1000", 403},
		"the token and more": {with, "POST", "/delete-pods/" + secret + "/x", jsonType,
			"Content-Length: 1000", 403},
		"the token in capitals": {with, "POST", "/delete-pods/" + strings.ToUpper(secret), jsonType,
			"Content-Length: 1000", 403},
		"a body of an unknown length": {with, "POST", "/evict-pods/", jsonType, "Transfer-Encoding: chunked", 403},
		"before there is a token":     {early, "POST", "/mutate-pods/", jsonType, "Content-Length: 1000", 403},
		"another type, no token":      {without, "POST", "/mutate-pods", "text/plain", "Content-Length: 1000", 415},
		"no HTTP":                     {with, "\x00\x01", "/", jsonType, "Content-Length: 1000", 400},
		"a long header": {with, "POST", "/mutate-pods", strings.Repeat("x", 3*mostHeader),
			"Content-Length: 1000", 431},
	}
	for _, path := range guarded {
		for name, call := range map[string]string{"": path, "a guess at ": path + "/guess"} {
			tests[name+path] = struct {
				at, method, path, contentType, length string
				want                                  int
			}{with, "POST", call, jsonType, "Content-Length: 1000", 403}
		}
	}
	t.Cleanup(func() { require.Zero(t, read.Load()+readWithout.Load()) })
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // net/http lingers half a second
			conn := dial(t, tc.at)
			begin(t, conn, tc.method, tc.path, tc.contentType, tc.length)
			require.Equal(t, tc.want, codeOf(t, conn, soon), "while the body does not come")
			_, err := io.ReadAll(conn)
			require.False(t, isTimeout(err), "the connection ends: %v", err)
		})
	}
}

// TestWhoIsTurnedAwayLearnsWhy: an API server that has an old token sends the whole review before it reads the answer.
func TestWhoIsTurnedAwayLearnsWhy(t *testing.T) {
	guarded, read := serve(t, &shown{token: secret, needed: true}, nil)
	body := strings.Repeat("x", 128<<10)
	for range 50 {
		require.Equal(t, http.StatusForbidden, post(t, dial(t, guarded), "/delete-pods/old", body))
	}
	require.Zero(t, read.Load())
}

func TestAReviewIsReadAtEveryPath(t *testing.T) {
	with, read := serve(t, &shown{token: secret, needed: true}, nil)
	without, _ := serve(t, &shown{}, nil)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		ForceAttemptHTTP2: true} //nolint:gosec // the certificate is not what is tested
	t.Cleanup(transport.CloseIdleConnections)
	caller := &http.Client{Transport: transport, Timeout: time.Minute}
	send := func(at string, body io.Reader) int {
		t.Helper()
		response, err := caller.Post(at, jsonType, body) //nolint:noctx // it has a timeout
		require.NoError(t, err)
		defer response.Body.Close()
		require.Equal(t, 1, response.ProtoMajor, "a connection is one request")
		return response.StatusCode
	}
	for _, path := range guarded {
		review := "https://" + with + path + "/" + secret + "?timeout=5s"
		require.Equal(t, http.StatusOK, send(review, strings.NewReader("{}")), path)
		require.Equal(t, http.StatusOK, send("https://"+without+path, strings.NewReader("{}")), path)
	}
	read.Store(0)
	require.Equal(t, http.StatusOK, send("https://"+with+"/mutate-pods/"+secret,
		bytes.NewReader(make([]byte, mostReview))))
	require.EqualValues(t, mostReview, read.Load(), "the largest review")
	stream := io.MultiReader(bytes.NewReader(make([]byte, mostReview)), strings.NewReader("x")) // of no known length
	require.Equal(t, http.StatusBadRequest, send("https://"+with+"/mutate-pods/"+secret, stream))
	require.EqualValues(t, 2*mostReview, read.Load())
}

// TestReviewsOfObjectsLeaveRoomForDeletions: what tenants write goes to the other webhooks.
func TestReviewsOfObjectsLeaveRoomForDeletions(t *testing.T) {
	address, _ := serve(t, &shown{token: secret, needed: true}, nil)
	hung := dial(t, address)
	begin(t, hung, "POST", "/validate-collasets/"+secret, jsonType, fmt.Sprintf("Content-Length: %d", mostReview))
	call := func(path string, body string) int {
		return post(t, dial(t, address), path+"/"+secret, body)
	}
	require.Eventually(t, func() bool {
		return call("/mutate-pods",
			strings.Repeat("x", 2<<20)) == http.StatusServiceUnavailable
	}, time.Minute, time.Millisecond)
	require.Equal(t, http.StatusOK, call("/mutate-pods", "{}"), "there is room for a small one")
	require.Equal(t, http.StatusOK, call("/delete-pods", strings.Repeat("x", 2<<20)))
	require.NoError(t, hung.Close())
	require.Eventually(t, func() bool { return call("/mutate-pods", strings.Repeat("x", 2<<20)) == http.StatusOK },
		time.Minute, time.Millisecond, "the room comes back")
}

func TestAFloodOfConnectionsEndsItself(t *testing.T) {
	address, _ := serve(t, &shown{token: secret, needed: true}, func(s *server) { s.connections.most = 8 })
	call := func(conn net.Conn) int { return post(t, conn, "/delete-pods/"+secret, "{}") }
	apiServer := dial(t, address)
	require.Equal(t, http.StatusOK, call(apiServer))
	var flood []*tls.Conn
	for range 40 {
		flood = append(flood, dial(t, address))
	}
	for _, gone := range flood[:30] {
		require.NoError(t, gone.SetReadDeadline(time.Now().Add(soon)))
		_, err := gone.Read(make([]byte, 1))
		require.Error(t, err)
		require.False(t, isTimeout(err), "the oldest are closed")
	}
	require.NoError(t, apiServer.SetReadDeadline(time.Time{}))
	_, err := apiServer.Read(make([]byte, 1<<10)) // the rest of the first answer
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, call(apiServer), "who has shown the token stays")
	require.Equal(t, http.StatusOK, call(dial(t, address)), "and a new one finds a place")
}

// ended is a connection that knows whether it was closed.
type ended struct {
	net.Conn
	from   string
	closed bool
}

func (e *ended) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(e.from), Port: 1} }
func (e *ended) Close() error         { e.closed = true; return nil }

func TestTheAddressWithMostConnectionsLosesOne(t *testing.T) {
	c := &connections{most: 4}
	one, flood := &ended{from: "10.0.0.1"}, []*ended{}
	first := c.add(one)
	for range 20 {
		next := &ended{from: "10.0.0.2"}
		flood = append(flood, next)
		require.NotNil(t, c.add(next))
		require.Len(t, c.open, min(len(flood)+1, 4))
	}
	require.False(t, one.closed, "the oldest, of an address with few")
	for i, of := range flood {
		require.Equal(t, i < len(flood)-3, of.closed, i)
	}
	for o := range c.open {
		c.believe(o)
	}
	late := &ended{from: "10.0.0.3"}
	require.Nil(t, c.add(late), "those that are believed and have requests stay")
	require.True(t, late.closed)
	for o := range c.open {
		if o != first {
			c.tell(o, http.StateIdle)
			break
		}
	}
	c.tell(first, http.StateIdle)
	for range 2 {
		require.NotNil(t, c.add(&ended{from: "10.0.0.3"}), "an idle one makes room, or then the one that is not believed")
		require.False(t, one.closed, "it has been idle for less time")
	}
	require.NoError(t, first.Close())
	require.NotNil(t, c.add(&ended{from: "10.0.0.3"}))
}
