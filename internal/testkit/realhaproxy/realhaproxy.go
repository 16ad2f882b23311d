// Package realhaproxy runs the machine's own HAProxy for tests, and HTTP servers for it to send traffic to. Everything
// is on Unix sockets and loopback addresses.
package realhaproxy

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/child"
)

// Deadline is for everything that is waited for.
const Deadline = time.Minute

// HAProxy is one instance. It ends with its test.
type HAProxy struct {
	// Runtime is its Runtime API as the flag --haproxy-runtime takes it.
	Runtime string

	t       testing.TB
	binary  string
	dir     string
	process *child.Process
}

// Start runs an instance with a frontend for HTTP whose requests go to the first of the backends, each a section of
// haproxy.cfg. It skips the test where HAProxy is not installed.
func Start(t testing.TB, backends ...string) *HAProxy {
	t.Helper()
	binary, err := exec.LookPath("haproxy")
	if err != nil {
		binary = "/usr/sbin/haproxy" // outside the PATH of ordinary users
		if _, err := os.Stat(binary); err != nil {
			t.Skip("HAProxy 2.6 or later is not installed; on Debian: apt-get install --no-install-recommends haproxy")
		}
	}
	dir, err := os.MkdirTemp("", "haproxy") // the test's own folder has too long a name for a socket
	require.NoError(t, err)
	h := &HAProxy{Runtime: "unix:" + dir + "/admin", t: t, binary: binary, dir: dir}
	t.Cleanup(func() {
		h.End()
		if log, err := os.ReadFile(dir + "/log"); err == nil && t.Failed() {
			t.Logf("HAProxy's log:\n%s", log)
		}
		os.RemoveAll(dir)
	})
	first := strings.Fields(backends[0])[1]
	config := fmt.Sprintf(`
global
    stats socket %[1]s/admin mode 600 level admin
    stats socket %[1]s/operator mode 600 level operator
    nbthread 2
defaults
    mode http
    timeout connect 5s
    timeout client 5m
    timeout server 5m
    timeout queue 30s
    retries 3
    option redispatch
frontend entrance
    bind unix@%[1]s/http
    default_backend %[2]s
%[3]s
`, dir, first, strings.Join(backends, "\n"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "haproxy.cfg"), []byte(config), 0o600))
	out, err := exec.Command(binary, "-c", "-f", dir+"/haproxy.cfg").CombinedOutput()
	require.NoError(t, err, "%s", out)
	h.Run()
	return h
}

// Operator is the Runtime API of the same process on a socket that may not change servers.
func (h *HAProxy) Operator() string { return "unix:" + h.dir + "/operator" }

// Run starts the process again that was ended.
func (h *HAProxy) Run() {
	h.t.Helper()
	h.process = &child.Process{Name: "haproxy", Log: h.dir + "/log"}
	require.NoError(h.t, h.process.Start(h.binary, []string{"-db", "-f", h.dir + "/haproxy.cfg"}, nil, false))
	require.Eventually(h.t, func() bool {
		conn, err := net.Dial("unix", h.dir+"/admin")
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, Deadline, 10*time.Millisecond, "HAProxy does not listen")
}

// End kills the process.
func (h *HAProxy) End() {
	h.t.Helper()
	h.Resume()
	require.NoError(h.t, h.process.End(syscall.SIGKILL, Deadline))
}

// Hang keeps the process from doing anything, until Resume.
func (h *HAProxy) Hang() {
	h.t.Helper()
	require.NoError(h.t, syscall.Kill(h.process.PID, syscall.SIGSTOP))
}

// Resume lets a process that hangs go on.
func (h *HAProxy) Resume() {
	if h.process.Running() {
		require.NoError(h.t, syscall.Kill(h.process.PID, syscall.SIGCONT))
	}
}

// Say sends one command, by its own connection, and returns the answer.
func (h *HAProxy) Say(command string) string {
	h.t.Helper()
	conn, err := net.Dial("unix", h.dir+"/admin")
	require.NoError(h.t, err)
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintln(conn, command)
	require.NoError(h.t, err)
	answer, err := io.ReadAll(conn)
	require.NoError(h.t, err)
	return strings.TrimSpace(string(answer))
}

// Client is an HTTP client whose requests all go to the frontend, whatever host they name.
func (h *HAProxy) Client() *http.Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", h.dir+"/http")
		},
		MaxIdleConnsPerHost: 64,
	}
	h.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: Deadline}
}

// Get asks for a path and returns who answered. An answer other than 200 is an error.
func Get(client *http.Client, path string) (string, error) {
	response, err := client.Get("http://entrance" + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), nil
}

// Load are requests without pause.
type Load struct {
	end      chan struct{}
	group    sync.WaitGroup
	mu       sync.Mutex
	requests int
	failures []error
}

// StartLoad sends requests, so many at a time, until Stop.
func StartLoad(client *http.Client, atATime int) *Load {
	l := &Load{end: make(chan struct{})}
	for range atATime {
		l.group.Go(func() {
			for l.one(client) {
			}
		})
	}
	return l
}

// one sends a request, and reports whether to send more: not when enough have failed.
func (l *Load) one(client *http.Client) bool {
	const enough = 10
	select {
	case <-l.end:
		return false
	default:
	}
	_, err := Get(client, "/")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	if err != nil {
		l.failures = append(l.failures, err)
	}
	return len(l.failures) < enough
}

// Stop ends the load and says how many requests there were, and how those that failed did.
func (l *Load) Stop() (requests int, failures []error) {
	close(l.end)
	l.group.Wait()
	return l.requests, l.failures
}

// Answers asks n times and says who answered how often.
func Answers(t testing.TB, client *http.Client, n int) map[string]int {
	t.Helper()
	by := map[string]int{}
	for range n {
		name, err := Get(client, "/")
		require.NoError(t, err)
		by[name]++
	}
	return by
}

// Web is an HTTP server that answers with its name. A request for /wait is answered when Release is called.
type Web struct {
	// Name is what it answers with, IP and Port where it listens.
	Name string
	IP   string
	Port int

	server   *httptest.Server
	release  chan struct{}
	once     sync.Once
	requests atomic.Int64
	waiting  atomic.Int64
}

// Webs starts servers of these names, all on one port, each on its own loopback address.
func Webs(t testing.TB, names ...string) map[string]*Web {
	t.Helper()
	for range 100 {
		if webs := tryWebs(t, names); webs != nil {
			return webs
		}
	}
	require.Fail(t, "no port is free on as many loopback addresses")
	return nil
}

func tryWebs(t testing.TB, names []string) map[string]*Web {
	webs := map[string]*Web{}
	port := 0
	for _, name := range names {
		w := &Web{Name: name, IP: Loopback(), release: make(chan struct{})}
		listener, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", w.IP, port))
		if err != nil {
			for _, other := range webs {
				other.End()
			}
			return nil
		}
		address, ok := listener.Addr().(*net.TCPAddr)
		require.True(t, ok)
		port = address.Port
		w.Port = port
		w.server = httptest.NewUnstartedServer(w)
		w.server.Listener.Close()
		w.server.Listener = listener
		w.server.Start()
		t.Cleanup(w.End)
		webs[name] = w
	}
	return webs
}

// Loopback is a loopback address that no other process is likely to listen on.
func Loopback() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}

// ServeHTTP answers.
func (w *Web) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	w.requests.Add(1)
	if request.URL.Path == "/wait" {
		w.waiting.Add(1)
		defer w.waiting.Add(-1)
		select {
		case <-w.release:
		case <-request.Context().Done():
			return
		}
	}
	fmt.Fprint(out, w.Name)
}

// Requests is how many have come in.
func (w *Web) Requests() int { return int(w.requests.Load()) }

// Waiting is how many requests for /wait have not been answered yet.
func (w *Web) Waiting() int { return int(w.waiting.Load()) }

// Release answers the requests for /wait, those to come too.
func (w *Web) Release() { w.once.Do(func() { close(w.release) }) }

// End closes the server and all its connections, as the end of its container does.
func (w *Web) End() {
	w.Release()
	w.server.CloseClientConnections()
	w.server.Close()
}
