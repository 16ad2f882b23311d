package asking

import (
	"bytes"
	"container/list"
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
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxAnswer is how many bytes of an answer are read; a longer one is an error.
	maxAnswer = 1 << 20
	// maxTransports bounds the sets of connections with different certificates.
	maxTransports = 64
	// emptyBundle is base64 of a newline, which users of Kuperator write for "no caBundle".
	emptyBundle = "Cg=="
)

// misconfigured is an error that lasts until somebody changes the rule, a Secret or a flag.
type misconfigured struct{ error }

func (m misconfigured) Unwrap() error { return m.error }

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

// client asks HTTP servers that it does not trust. It is safe for concurrent use.
type client struct {
	targets *Targets
	timeout time.Duration

	mu         sync.Mutex
	transports map[[sha256.Size]byte]*list.Element // of *kept
	recent     *list.List                          // the last used in front
}

// kept is a transport with its key.
type kept struct {
	key       [sha256.Size]byte
	transport *http.Transport
}

func newClient(targets *Targets, timeout time.Duration) *client {
	return &client{targets: targets, timeout: timeout, transports: map[[sha256.Size]byte]*list.Element{}, recent: list.New()}
}

// ask returns the body of the answer. Its errors read the same every time the same goes wrong. A misconfigured error
// will last; every other one may be over the next time.
func (c *client) ask(ctx context.Context, q call) ([]byte, error) {
	target, err := parseURL(q.url)
	if err != nil {
		return nil, misconfigured{err}
	}
	if q.credentials != nil && target.Scheme != "https" {
		return nil, misconfigured{fmt.Errorf("%s is not https: credentials of a Secret are sent over https only", target.Host)}
	}
	transport, err := c.transport(q)
	if err != nil {
		return nil, misconfigured{err}
	}
	within, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(within, q.method, q.url, bytes.NewReader(q.body))
	if err != nil {
		return nil, misconfigured{fmt.Errorf("making the request: %w", err)}
	}
	request.Header.Set("User-Agent", "podtransitionrule-controller")
	request.Header.Set("Accept", "application/json")
	if q.body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if q.credentials != nil && q.credentials.token != "" {
		request.Header.Set("Authorization", "Bearer "+q.credentials.token)
	}
	// not http.Client: it would follow redirects and keep cookies
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, c.explain(ctx, target, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return nil, fmt.Errorf("%s answered with status %s", target.Host, statusText(response.StatusCode))
	}
	return c.read(ctx, target, response)
}

func (c *client) read(ctx context.Context, target *url.URL, response *http.Response) ([]byte, error) {
	tooLong := fmt.Errorf("the answer of %s has more than %d bytes", target.Host, maxAnswer)
	if response.ContentLength > maxAnswer {
		return nil, tooLong
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, c.explain(ctx, target, err)
	case len(body) > maxAnswer:
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

// parseURL accepts http and https with a host.
func parseURL(given string) (*url.URL, error) {
	u, err := url.Parse(given)
	switch {
	case err != nil:
		return nil, errors.New("the webhook's url cannot be read: write https://host, with an optional port, path and query")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, errors.New("the webhook's url must be http://host or https://host, with an optional port, path and query")
	case u.User != nil:
		return nil, errors.New("the webhook's url has a user name or password: remove it")
	}
	return u, nil
}

// transport is that for the request's certificates.
func (c *client) transport(q call) (*http.Transport, error) {
	var certificate, key []byte
	if q.credentials != nil {
		certificate, key = q.credentials.certificate, q.credentials.key
	}
	h := sha256.New()
	for _, part := range [][]byte{[]byte(q.caBundle), certificate, key} {
		_, _ = fmt.Fprintf(h, "%d:", len(part))
		_, _ = h.Write(part)
	}
	id := [sha256.Size]byte(h.Sum(nil))
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, has := c.transports[id]; has {
		c.recent.MoveToFront(at)
		if k, ok := at.Value.(*kept); ok {
			return k.transport, nil
		}
	}
	config, err := tlsConfig(q.caBundle, certificate, key)
	if err != nil {
		return nil, err
	}
	k := &kept{key: id, transport: c.newTransport(config)}
	c.transports[id] = c.recent.PushFront(k)
	if c.recent.Len() > maxTransports {
		if oldest, ok := c.recent.Remove(c.recent.Back()).(*kept); ok {
			delete(c.transports, oldest.key)
			oldest.transport.CloseIdleConnections()
		}
	}
	return k.transport, nil
}

func (c *client) newTransport(config *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                  nil, // a proxy would connect where targets says no
		DialContext:            c.dial,
		TLSClientConfig:        config,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConns:           32,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        30 * time.Second,
		TLSHandshakeTimeout:    c.timeout,
	}
}

// dial connects to an address that targets allows. The check is made on each address that the host's name stands for,
// when it is connected to.
func (c *client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{
		Timeout: c.timeout,
		ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(resolved)
			if err != nil {
				return &Refused{fmt.Sprintf("%s cannot be checked: %v", host, err)}
			}
			_, port, err := net.SplitHostPort(resolved)
			if err != nil {
				return err
			}
			return c.targets.Check(host, port, at.Addr())
		},
	}
	return dialer.DialContext(ctx, network, address)
}

// tlsConfig trusts the bundle alone, or the system if it is empty, and presents the certificate if there is one.
func tlsConfig(caBundle string, certificate, key []byte) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	roots, err := rootsOf(caBundle)
	if err != nil {
		return nil, err
	}
	config.RootCAs = roots
	if len(certificate)+len(key) > 0 {
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("the Secret's tls.crt and tls.key cannot be used: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// rootsOf reads a caBundle; nil for an empty one.
func rootsOf(caBundle string) (*x509.CertPool, error) {
	if caBundle == "" || caBundle == emptyBundle {
		return nil, nil
	}
	text, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(caBundle), ""))
	if err != nil {
		return nil, errors.New("the caBundle is not base64: set it to base64 of PEM certificates (base64 -w0 ca.crt)")
	}
	pool, found := x509.NewCertPool(), false
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errors.New("the caBundle has a certificate that cannot be read: set it to base64 of PEM certificates (base64 -w0 ca.crt)")
		}
		pool.AddCert(certificate)
		found = true
	}
	if !found {
		return nil, errors.New("the caBundle has no certificate: set it to base64 of PEM certificates (base64 -w0 ca.crt), or leave it out")
	}
	return pool, nil
}

// explain says what went wrong without what differs from one attempt to the next, such as local ports. ctx is the
// caller's, without the time limit.
func (c *client) explain(ctx context.Context, target *url.URL, err error) error {
	if refused := (*Refused)(nil); errors.As(err, &refused) {
		return misconfigured{refused}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var timeout interface{ Timeout() bool }
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("%s did not answer within %s", target.Host, c.timeout)
	}
	if lookup := (*net.DNSError)(nil); errors.As(err, &lookup) {
		if lookup.IsNotFound {
			return fmt.Errorf("%s: no such host", target.Host)
		}
		return fmt.Errorf("%s: the host's name cannot be looked up", target.Host)
	}
	if verification := (*tls.CertificateVerificationError)(nil); errors.As(err, &verification) {
		return fmt.Errorf("%s: its certificate cannot be trusted: %w", target.Host, stable(verification.Err))
	}
	if record := (tls.RecordHeaderError{}); errors.As(err, &record) {
		return fmt.Errorf("%s does not speak TLS: %s", target.Host, record.Msg)
	}
	var number syscall.Errno
	if errors.As(err, &number) {
		return fmt.Errorf("%s: %w", target.Host, number)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s closed the connection", target.Host)
	}
	if strings.Contains(err.Error(), "malformed HTTP") { // net/http has no type for it, and repeats what it read
		return fmt.Errorf("%s does not speak HTTP", target.Host)
	}
	return fmt.Errorf("%s: %w", target.Host, stable(err))
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
