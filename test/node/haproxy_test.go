package node

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/child"
)

const (
	haproxyBackend  = namespace + "_" + name
	haproxyFrontend = "127.0.0.1:8088"
)

// haproxy is Debian's HAProxy in front of the Pods, which resourceconsist-controller makes its servers. It never
// tries a request again, so that none that is lost is hidden.
type haproxy struct {
	// control is the way to its Runtime API, which a test can bar.
	control *gate
}

// startHAProxy starts it without servers, until the test ends.
func startHAProxy(t *testing.T) *haproxy {
	t.Helper()
	binary, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("HAProxy is not installed (Debian: package haproxy)")
	}
	dir, err := os.MkdirTemp("", "h") // short: the paths of sockets may have 108 characters
	require.NoError(t, err)
	in := func(name string) string { return filepath.Join(dir, name) }
	config := fmt.Sprintf(`global
	stats socket %s mode 600 level admin
	stats socket %s mode 600 level operator
	nbthread 1
defaults
	mode http
	retries 0
	timeout connect 5s
	timeout client 60s
	timeout server 60s
	timeout queue 5s
frontend entrance
	bind %s
	default_backend %s
backend %s
	balance roundrobin
`, in("admin"), in("operator"), haproxyFrontend, haproxyBackend, haproxyBackend)
	require.NoError(t, os.WriteFile(in("cfg"), []byte(config), 0o600))
	process := &child.Process{Name: "haproxy", Log: in("log")}
	require.NoError(t, process.Start(binary, []string{"-db", "-f", in("cfg")}, os.Environ(), false))
	t.Cleanup(func() {
		if log, err := os.ReadFile(in("log")); err == nil && t.Failed() {
			t.Logf("HAProxy's log:\n%s", log)
		}
		require.NoError(t, process.End(syscall.SIGTERM, 10*time.Second))
	})
	eventually(t.Context(), t, "HAProxy", func() error {
		conn, err := net.Dial("unix", in("admin"))
		if err == nil {
			conn.Close()
		}
		return err
	})
	h := &haproxy{control: &gate{path: in("control"),
		targets: map[way]string{open: in("admin"), refusing: in("operator")}}}
	h.control.set(t, open)
	t.Cleanup(func() { h.control.set(t, shut) })
	return h
}

// client is part of path.
func (h *haproxy) client(keepAlive bool) (func(string) http.RoundTripper, func() (string, error)) {
	transport := &http.Transport{DisableKeepAlives: !keepAlive}
	return func(string) http.RoundTripper { return transport },
		func() (string, error) { return "http://" + haproxyFrontend, nil }
}

// way says what becomes of those who come to a gate.
type way string

const (
	// open lets them change HAProxy.
	open way = "open"
	// refusing lets them read; HAProxy itself refuses every change, because the socket behind has no right to it.
	refusing way = "refusing"
	// shut is a socket that is not there.
	shut way = "shut"
)

// gate is a Unix socket in front of others.
type gate struct {
	path    string
	targets map[way]string

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
}

// set ends all connections and treats those to come in another way.
func (g *gate) set(t *testing.T, to way) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil {
		require.NoError(t, g.listener.Close()) // removes the socket too
		g.listener = nil
	}
	for conn := range g.conns {
		conn.Close()
	}
	g.conns = map[net.Conn]bool{}
	if to == shut {
		return
	}
	listener, err := net.Listen("unix", g.path)
	require.NoError(t, err)
	g.listener = listener
	go g.serve(listener, g.targets[to])
}

func (g *gate) serve(listener net.Listener, target string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go g.pass(listener, conn, target)
	}
}

// pass connects both ends until one of them closes.
func (g *gate) pass(listener net.Listener, conn net.Conn, target string) {
	defer conn.Close()
	behind, err := net.Dial("unix", target)
	if err != nil {
		return
	}
	defer behind.Close()
	g.mu.Lock()
	if g.listener != listener {
		g.mu.Unlock()
		return
	}
	g.conns[conn] = true
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.conns, conn)
	}()
	go func() {
		defer conn.Close()
		_, _ = io.Copy(conn, behind)
	}()
	_, _ = io.Copy(behind, conn)
}
