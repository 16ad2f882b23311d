package asking

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"kusionstack.io/kuperator/internal/callout"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/testca"
)

// local is a client that may ask servers of tests.
func local(t *testing.T, timeout time.Duration, allow ...string) *callout.Client {
	t.Helper()
	targets, err := parseTargets(append(allow, "127.0.0.0/8"))
	require.NoError(t, err)
	return newClient(targets, timeout)
}

func served(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then a server notices that the client went away
		handler(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// bundle is what a rule's caBundle says to trust the authority.
func bundle(a testca.Authority) string { return base64.StdEncoding.EncodeToString(a.PEM()) }

func yes(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"success":true}`) }

func TestServersThatMisbehave(t *testing.T) {
	tests := map[string]struct {
		handler http.HandlerFunc
		want    string // with HOST for host:port
	}{
		"says no": {func(w http.ResponseWriter,
			_ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
		}, "HOST answered with status 500 Internal Server Error"},
		"speaks of a status nobody knows": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(799) },
			"HOST answered with status 799"},
		"redirects to a metadata service": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusTemporaryRedirect)
		}, "HOST answered with status 307 Temporary Redirect; redirects are not followed"},
		"never answers": {func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}, "HOST did not answer within 300ms"},
		"never ends its answer": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"success":`)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "HOST did not answer within 300ms"},
		"sends ten megabytes and says so": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(10<<20))
			_, _ = w.Write(bytes.Repeat([]byte("x"), 10<<20))
		}, "the answer of HOST has more than 1048576 bytes"},
		"sends without end": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(bytes.Repeat([]byte(" "), 1<<16)); err != nil {
					return
				}
			}
		}, "the answer of HOST has more than 1048576 bytes"},
		"has headers without end": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		},
			"HOST: net/http: HTTP/1.x transport connection broken: net/http: server response headers exceeded 65536 bytes; aborted"},
		"closes the connection": {func(w http.ResponseWriter, _ *http.Request) {
			connection, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = connection.Close()
			}
		}, "HOST closed the connection"},
		"closes it in the middle": {func(w http.ResponseWriter, _ *http.Request) {
			connection, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(connection, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
				_ = connection.Close()
			}
		}, "HOST closed the connection"},
		"speaks something else": {func(w http.ResponseWriter, _ *http.Request) {
			connection, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(connection, "220 mail.example.com ESMTP\r\n")
				_ = connection.Close()
			}
		}, "HOST does not speak HTTP"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := served(t, tc.handler)
			timeout := time.Minute
			if strings.Contains(tc.want, "300ms") {
				timeout = 300 * time.Millisecond
			}
			c := local(t, timeout)
			want := strings.ReplaceAll(tc.want, "HOST", strings.TrimPrefix(server.URL, "http://"))
			for range 2 { // the same each time
				_, err := c.Ask(t.Context(), callout.Call{Method: http.MethodPost, URL: server.URL + "/path?secret=x",
					Body: []byte("{}")})
				require.EqualError(t, err, want)
				require.False(t, failureOf(err).Refused, "failurePolicy bears on it")
			}
		})
	}
}

func TestServersThatAreNotThere(t *testing.T) {
	nobody, err := localkube.ReservePorts(1)
	require.NoError(t, err)
	t.Cleanup(nobody.Release)
	host := fmt.Sprintf("127.0.0.1:%d", nobody.Numbers[0])
	_, err = local(t, time.Minute).Ask(t.Context(), callout.Call{Method: http.MethodGet, URL: "http://" + host})
	require.EqualError(t, err, host+": connection refused")
	_, err = local(t, time.Minute).Ask(t.Context(),
		callout.Call{Method: http.MethodGet, URL: "http://does-not-exist.invalid/"})
	require.ErrorContains(t, err, "does-not-exist.invalid: ")
	require.False(t, failureOf(err).Refused)
}

func TestAnAnswerIsReadUpToItsLimit(t *testing.T) {
	server := served(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte(" "), maxAnswer))
	})
	body, err := local(t, 30*time.Second).Ask(t.Context(), callout.Call{Method: http.MethodGet, URL: server.URL})
	require.NoError(t, err)
	require.Len(t, body, maxAnswer)
}

func TestWhatIsNeverAsked(t *testing.T) {
	asked := false
	server := served(t, func(w http.ResponseWriter, r *http.Request) { asked = true; yes(w, r) })
	none, err := parseTargets(nil)
	require.NoError(t, err)
	tests := map[string]struct {
		client *callout.Client
		url    string
		bundle string
		want   string
	}{
		"loopback that is not listed": {newClient(none, time.Minute), server.URL, "",
			"127.0.0.1 is a loopback address"},
		"a name that leads to loopback": {newClient(none, time.Minute),
			strings.Replace(server.URL, "127.0.0.1", "localhost", 1), "", "is a loopback address"},
		"a metadata service": {local(t, time.Minute), "http://169.254.169.254/latest", "",
			"169.254.169.254 is a link-local address"},
		"a metadata service of IPv6": {local(t, time.Minute), "http://[::ffff:169.254.169.254]/", "",
			"(169.254.169.254) is a link-local address"},
		"another address than listed": {local(t, time.Minute), "http://192.0.2.1/", "",
			"192.0.2.1:80 is not among the servers that webhook rules may ask"},
		"another scheme": {local(t, time.Minute), "ftp://127.0.0.1/", "",
			"must be http://host or https://host"},
		"no host": {local(t, time.Minute), "http:///path", "",
			"must be http://host or https://host"},
		"no URL": {local(t, time.Minute), "http://[::1", "", "cannot be read"},
		"a password in the URL": {local(t, time.Minute),
			strings.Replace(server.URL, "//", "//me:secret@", 1), "", "has a user name or password: remove it"},
		"a caBundle that is not base64": {local(t, time.Minute), server.URL, "%",
			"the caBundle is not base64"},
		"a caBundle without certificates": {local(t, time.Minute), server.URL, "aGVsbG8=",
			"the caBundle has no certificate"},
		"a caBundle that is cut off": {local(t, time.Minute),
			server.URL, base64.StdEncoding.EncodeToString(
				pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("cut")})), "cannot be read"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a := &Asker{client: tc.client, secrets: newSecrets(nil, clock.RealClock{}), clock: clock.RealClock{}}
			_, _, err := a.ask(t.Context(), &inquiry{}, callout.Call{Method: http.MethodGet, URL: tc.url}, tc.bundle, "")
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, err.Error(), "secret@")
			require.True(t, failureOf(err).Refused && failureOf(err).Lasting,
				"failurePolicy does not bear on it, and it is not tried again soon")
		})
	}
	require.False(t, asked)
}

func TestProxiesOfTheEnvironmentAreNotUsed(t *testing.T) {
	proxy := served(t, func(http.ResponseWriter, *http.Request) { t.Error("the proxy was asked") })
	t.Setenv("HTTP_PROXY", proxy.URL)
	server := served(t, yes)
	_, err := local(t, 30*time.Second).Ask(t.Context(), callout.Call{Method: http.MethodGet, URL: server.URL})
	require.NoError(t, err)
}

func TestCertificates(t *testing.T) {
	ours, others := testca.New(t), testca.New(t)
	certificate, key := ours.Issue(t)
	mine := &callout.Credentials{Certificate: certificate, Key: key}
	foreign := &callout.Credentials{}
	foreign.Certificate, foreign.Key = others.Issue(t)
	token := func(secret string) *callout.Credentials { return &callout.Credentials{Token: secret} }
	plain := ours.Serve(t, false, yes)
	mutual := ours.Serve(t, true, yes)
	bearer := ours.Serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		yes(w, r)
	})
	old := httptest.NewUnstartedServer(http.HandlerFunc(yes))
	old.Config.ErrorLog = log.New(io.Discard, "", 0)
	pair, err := tls.X509KeyPair(certificate, key)
	require.NoError(t, err)
	old.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS10,
		MaxVersion: tls.VersionTLS11}
	old.StartTLS()
	t.Cleanup(old.Close)
	http1 := served(t, yes)
	tests := map[string]struct {
		url         string
		bundle      string
		credentials *callout.Credentials
		want        string // "" for an answer
	}{
		"the given authority":              {plain.URL, bundle(ours), nil, ""},
		"a bundle with line breaks":        {plain.URL, bundle(ours)[:64] + "\n" + bundle(ours)[64:] + "\n", nil, ""},
		"another authority":                {plain.URL, bundle(others), nil, "its certificate cannot be trusted"},
		"the authorities of the system":    {plain.URL, "", nil, "its certificate cannot be trusted"},
		"an empty bundle is the system's":  {plain.URL, "Cg==", nil, "its certificate cannot be trusted"},
		"a client certificate":             {mutual.URL, bundle(ours), mine, ""},
		"no client certificate":            {mutual.URL, bundle(ours), nil, "certificate required"},
		"a foreign client certificate":     {mutual.URL, bundle(ours), foreign, "certificate"},
		"a token":                          {bearer.URL, bundle(ours), token("secret"), ""},
		"another token":                    {bearer.URL, bundle(ours), token("guess"), "401 Unauthorized"},
		"a server without a modern TLS":    {old.URL, bundle(ours), nil, "protocol version not supported"},
		"a server without TLS":             {strings.Replace(http1.URL, "http:", "https:", 1), "", nil, "does not speak TLS"},
		"a bundle does no harm over http.": {http1.URL, bundle(ours), nil, ""},
	}
	c := local(t, 30*time.Second)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			roots, err := callout.ParseBundle(tc.bundle)
			require.NoError(t, err)
			for range 2 {
				ask := func() error {
					_, err := c.Ask(t.Context(), callout.Call{Method: http.MethodPost, URL: tc.url, Body: []byte("{}"),
						Roots: roots, Credentials: tc.credentials})
					return err
				}
				if tc.want == "" {
					require.NoError(t, ask())
					continue
				}
				await.Nil(t, "the reason, where it is read before the connection ends", func() error {
					err := ask()
					require.Error(t, err)
					require.False(t, failureOf(err).Refused)
					if !strings.Contains(err.Error(), tc.want) {
						return err
					}
					return nil
				})
			}
		})
	}
}
