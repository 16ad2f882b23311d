// Package callout makes HTTP requests to servers that are not trusted, on behalf of users: what a rule or an adapter
// calls outside the cluster goes through here.
//
// The address that is connected to decides whether a server may be asked (Targets). Redirects are not followed, proxies
// of the environment are not used, TLS is 1.2 or newer, credentials are sent over https only, and a request and its
// answer are bounded in time and size. Errors read the same every time the same goes wrong, so that they can stand in
// a status without changing it at each attempt.
package callout

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/utils/lru"
)

// maxTransports bounds the sets of connections with different certificates.
const maxTransports = 64

// Misconfigured is an error that lasts until a user changes the URL to call, its credentials or a flag. Nothing was
// sent.
type Misconfigured struct {
	// Err says what is wrong.
	Err error
}

// Error says what is wrong.
func (m *Misconfigured) Error() string { return m.Err.Error() }

// Unwrap returns what is wrong.
func (m *Misconfigured) Unwrap() error { return m.Err }

// BadStatus is an answer whose status is not 2xx.
type BadStatus struct {
	// Host answered, as the URL names it.
	Host string
	// Code is the status.
	Code int
	// RetryAfter is the answer's header of that name, as it came; empty if there was none.
	RetryAfter string
}

// Error says who answered, and what.
func (b *BadStatus) Error() string {
	return fmt.Sprintf("%s answered with status %s", b.Host, statusText(b.Code))
}

// Options are what all calls of a Client have in common.
type Options struct {
	// Targets says which servers may be asked.
	Targets *Targets
	// Timeout is how long one call may take, from the look-up of the name to the last byte.
	Timeout time.Duration
	// MaxAnswer is how many bytes an answer may have; a longer one is an error.
	MaxAnswer int64
	// UserAgent is sent as such.
	UserAgent string
	// HTTP2 offers HTTP/2 to servers at https.
	HTTP2 bool
}

// Call is one HTTP request.
type Call struct {
	// Method is that of HTTP.
	Method string
	// URL has the scheme http or https and a host.
	URL string
	// Body is sent as JSON; nil for none.
	Body []byte
	// Roots are PEM certificates, which alone are trusted then. Empty means the system's.
	Roots []byte
	// Credentials go with it; nil for none.
	Credentials *Credentials
	// Timeout replaces that of Options if it is shorter; zero does not.
	Timeout time.Duration
}

// Credentials tell a server who asks.
type Credentials struct {
	// Of says where they are from, for messages: "a Secret".
	Of string
	// Token is sent as a bearer token; empty for none.
	Token string
	// Certificate and Key are those of the client, as PEM; both are empty for none.
	Certificate, Key []byte
}

// Client makes calls. It is safe for concurrent use.
type Client struct {
	options Options

	// mu has one transport made at a time.
	mu sync.Mutex
	// transports are of *http.Transport, by a hash of the certificates.
	transports *lru.Cache
}

// NewClient makes a client.
func NewClient(o Options) *Client {
	return &Client{options: o, transports: lru.NewWithEvictionFunc(maxTransports, func(_ lru.Key, evicted any) {
		if t, ok := evicted.(*http.Transport); ok {
			t.CloseIdleConnections()
		}
	})}
}

// Ask returns the body of the answer. A *Misconfigured error will last; every other one may be over the next time.
func (c *Client) Ask(ctx context.Context, q Call) ([]byte, error) {
	target, err := ParseURL(q.URL)
	if err != nil {
		return nil, &Misconfigured{err}
	}
	if q.Credentials != nil && target.Scheme != "https" {
		return nil, &Misconfigured{fmt.Errorf("%s is not https: credentials of %s are sent over https only", target.Host,
			q.Credentials.Of)}
	}
	transport, err := c.transport(q)
	if err != nil {
		return nil, &Misconfigured{err}
	}
	a := attempt{caller: ctx, host: target.Host, timeout: c.options.Timeout, maxAnswer: c.options.MaxAnswer}
	if q.Timeout > 0 {
		a.timeout = min(a.timeout, q.Timeout)
	}
	within, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(within, q.Method, q.URL, bytes.NewReader(q.Body))
	if err != nil {
		return nil, &Misconfigured{fmt.Errorf("making the request: %w", err)}
	}
	request.Header.Set("User-Agent", c.options.UserAgent)
	request.Header.Set("Accept", "application/json")
	if q.Body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if q.Credentials != nil && q.Credentials.Token != "" {
		request.Header.Set("Authorization", "Bearer "+q.Credentials.Token)
	}
	// not http.Client: it would follow redirects and keep cookies
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, a.explain(err)
	}
	defer func() { _ = response.Body.Close() }()
	// A server that ends its answer because the connection is being closed may be faster than its end.
	if err := within.Err(); err != nil {
		return nil, a.explain(err)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return nil, &BadStatus{Host: target.Host, Code: response.StatusCode, RetryAfter: response.Header.Get("Retry-After")}
	}
	return a.read(response)
}

// attempt is one request on its way.
type attempt struct {
	caller    context.Context // without the time limit
	host      string
	timeout   time.Duration
	maxAnswer int64
}

func (a attempt) read(response *http.Response) ([]byte, error) {
	tooLong := fmt.Errorf("the answer of %s has more than %d bytes", a.host, a.maxAnswer)
	if response.ContentLength > a.maxAnswer {
		return nil, tooLong
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, a.maxAnswer+1))
	switch {
	case err != nil:
		return nil, a.explain(err)
	case int64(len(body)) > a.maxAnswer:
		return nil, tooLong
	}
	return body, nil
}

func statusText(code int) string {
	text := strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
	if code >= 300 && code < 400 {
		return text + "; redirects are not followed"
	}
	return text
}

// ParseURL accepts http and https with a host. What is not accepted is returned as well, nil if it cannot be read.
func ParseURL(given string) (*url.URL, error) {
	u, err := url.Parse(given)
	switch {
	case err != nil:
		return nil, errors.New("the webhook's url cannot be read: write https://host, with an optional port, path and query")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return u, errors.New("the webhook's url must be http://host or https://host, with an optional port, path and query")
	case u.User != nil:
		return u, errors.New("the webhook's url has a user name or password: remove it")
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); u.Port() != "" && (err != nil || port == 0) {
		return u, errors.New("the port of the webhook's url must be between 1 and 65535")
	}
	return u, nil
}

// transport is that for the call's certificates.
func (c *Client) transport(q Call) (*http.Transport, error) {
	credentials := q.Credentials
	if credentials == nil {
		credentials = &Credentials{}
	}
	h := sha256.New()
	for _, part := range [][]byte{q.Roots, credentials.Certificate, credentials.Key} {
		_, _ = fmt.Fprintf(h, "%d:", len(part))
		_, _ = h.Write(part)
	}
	id := [sha256.Size]byte(h.Sum(nil))
	c.mu.Lock()
	defer c.mu.Unlock()
	known, _ := c.transports.Get(id)
	if t, ok := known.(*http.Transport); ok {
		return t, nil
	}
	config, err := tlsConfig(q.Roots, credentials)
	if err != nil {
		return nil, err
	}
	t := c.newTransport(config)
	c.transports.Add(id, t)
	return t, nil
}

func (c *Client) newTransport(config *tls.Config) *http.Transport {
	t := &http.Transport{
		Proxy:                  nil, // a proxy would connect where targets says no
		DialContext:            c.dial,
		TLSClientConfig:        config,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConns:           32,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        30 * time.Second,
		TLSHandshakeTimeout:    c.options.Timeout,
	}
	if c.options.HTTP2 {
		// a dialer of one's own switches it off
		t.ForceAttemptHTTP2 = true
		// finds connections that died silently
		t.HTTP2 = &http.HTTP2Config{SendPingTimeout: c.options.Timeout, PingTimeout: c.options.Timeout}
	}
	return t
}

// dial connects to an address that targets allows. The check is made on each address that the host's name stands for,
// when it is connected to.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{
		Timeout: c.options.Timeout,
		ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(resolved)
			if err != nil {
				return &Refused{fmt.Sprintf("%s cannot be checked: %v", host, err)}
			}
			_, port, err := net.SplitHostPort(resolved)
			if err != nil {
				return err
			}
			return c.options.Targets.Check(host, port, at.Addr())
		},
	}
	return dialer.DialContext(ctx, network, address)
}

// tlsConfig trusts the roots alone, or the system if there are none, and presents the certificate if there is one.
func tlsConfig(roots []byte, credentials *Credentials) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(roots) > 0 {
		pool, err := ParseRoots(roots)
		if err != nil {
			return nil, err
		}
		config.RootCAs = pool
	}
	if len(credentials.Certificate)+len(credentials.Key) > 0 {
		pair, err := tls.X509KeyPair(credentials.Certificate, credentials.Key)
		if err != nil {
			return nil, fmt.Errorf("credentials of %s: tls.crt and tls.key cannot be used: %w", credentials.Of, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// ParseRoots reads PEM certificates that are to be trusted. It is an error if there is none.
func ParseRoots(roots []byte) (*x509.CertPool, error) {
	pool, found := x509.NewCertPool(), false
	for block, rest := pem.Decode(roots); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errors.New("the caBundle has a certificate that cannot be read")
		}
		pool.AddCert(certificate)
		found = true
	}
	if !found {
		return nil, errors.New("the caBundle has no certificate")
	}
	return pool, nil
}

// emptyBundle is base64 of a newline, which users of Kuperator write for "no caBundle".
const emptyBundle = "Cg=="

// ParseBundle reads base64 of PEM certificates that are to be trusted; nil for none.
func ParseBundle(caBundle string) ([]byte, error) {
	if caBundle == "" || caBundle == emptyBundle {
		return nil, nil
	}
	text, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(caBundle), ""))
	if err != nil {
		return nil, errors.New("the caBundle is not base64: set it to base64 of PEM certificates (base64 -w0 ca.crt)")
	}
	if _, err := ParseRoots(text); err != nil {
		return nil, fmt.Errorf("%w: set it to base64 of PEM certificates (base64 -w0 ca.crt), or leave it out", err)
	}
	return text, nil
}

// explain says what went wrong without what differs from one attempt to the next, such as local ports.
func (a attempt) explain(err error) error {
	if refused := (*Refused)(nil); errors.As(err, &refused) {
		return &Misconfigured{refused}
	}
	if a.caller.Err() != nil {
		return a.caller.Err()
	}
	var timeout interface{ Timeout() bool }
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("%s did not answer within %s", a.host, a.timeout)
	}
	if lookup := (*net.DNSError)(nil); errors.As(err, &lookup) {
		if lookup.IsNotFound {
			return fmt.Errorf("%s: no such host", a.host)
		}
		return fmt.Errorf("%s: the host's name cannot be looked up", a.host)
	}
	if verification := (*tls.CertificateVerificationError)(nil); errors.As(err, &verification) {
		return fmt.Errorf("%s: its certificate cannot be trusted: %w", a.host, stable(verification.Err))
	}
	if record := (tls.RecordHeaderError{}); errors.As(err, &record) {
		return fmt.Errorf("%s does not speak TLS: %s", a.host, record.Msg)
	}
	var number syscall.Errno
	if errors.As(err, &number) {
		return fmt.Errorf("%s: %w", a.host, number)
	}
	// net.ErrClosed: the transport closed its side after the server ended the connection, before the request was sent.
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("%s closed the connection", a.host)
	}
	if strings.Contains(err.Error(), "malformed HTTP") { // net/http has no type for it, and repeats what it read
		return fmt.Errorf("%s does not speak HTTP", a.host)
	}
	return fmt.Errorf("%s: %w", a.host, stable(err))
}

// stable leaves out addresses of this side of a connection, and the current time of certificate errors.
func stable(err error) error {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return errors.New("it has expired or is not yet valid")
	}
	var operation *net.OpError
	if errors.As(err, &operation) {
		return operation.Err
	}
	return err
}
