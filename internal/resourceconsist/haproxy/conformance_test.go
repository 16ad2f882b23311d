package haproxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/conformance"
	"kusionstack.io/kuperator/internal/testkit/realhaproxy"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t testing.TB) conformance.Fixture[*corev1.Service, Server] {
		h := realhaproxy.Start(t, "backend shop_web\n    server static 127.0.0.1:9 disabled\n", "backend shop_admin\n",
			"backend elsewhere_web\n")
		fault := newFault(t, strings.TrimPrefix(h.Runtime, "unix:"))
		o := DefaultOptions()
		o.Runtimes = []string{"tcp:" + fault.listener.Addr().String()}
		return conformance.Fixture[*corev1.Service, Server]{
			Connect: func() api.Adapter[*corev1.Service, Server] {
				a, err := New(o, nil)
				require.NoError(t, err)
				return a
			},
			Provider: conformance.Provider[*corev1.Service]{
				Employer: func(namespace, name string) *corev1.Service {
					s := conformance.Service(namespace, name)
					s.Annotations = map[string]string{BackendAnnotation: namespace + "_" + name}
					return s
				},
				Serves: func(s *corev1.Service, pod *corev1.Pod) bool {
					for _, server := range servers(h, s.Annotations[BackendAnnotation]) {
						for _, ip := range pod.Status.PodIPs {
							if server.address == ip.IP && server.admin == "0" {
								return true
							}
						}
					}
					return false
				},
				Foreign: func(s *corev1.Service) func() bool {
					backend := s.Annotations[BackendAnnotation]
					h.Say("add server " + backend + "/by-hand 127.0.0.1:9")
					h.Say("add server " + backend + "/other:shop:web:web-0:00 10.0.0.1:80")
					before := len(servers(h, backend))
					return func() bool {
						kept := 0
						for _, server := range servers(h, backend) {
							if !strings.HasPrefix(server.name, o.Owner+":") && server.admin != "0" {
								kept++
							}
						}
						return kept == before
					}
				},
				Fail: fault.fail, FailFor: fault.failFor, Throttle: fault.throttle, Delay: fault.setDelay, Calls: fault.count,
				Sizes: []int{10, 50, 150}, Seeds: []uint64{1, 2},
			},
		}
	})
}

// line is one server as "show servers state" has it.
type line struct{ name, address, admin string }

func servers(h *realhaproxy.HAProxy, backend string) []line {
	var all []line
	for text := range strings.Lines(h.Say("show servers state " + backend)) {
		if f := strings.Fields(text); len(f) > 10 && f[1] == backend {
			all = append(all, line{name: f[3], address: f[4], admin: f[6]})
		}
	}
	return all
}

// fault stands between the adapter and a real HAProxy, and makes of it what the real one is not on demand: unreachable,
// slow, overcharged, or refusing some servers.
type fault struct {
	listener net.Listener
	socket   string

	mu         sync.Mutex
	failing    bool
	throttling bool
	bad        []string
	delayed    time.Duration
	changed    chan struct{}
	// sessions and calls are how many there have been.
	sessions, calls int
}

func newFault(t testing.TB, socket string) *fault {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	f := &fault{listener: listener, socket: socket, changed: make(chan struct{})}
	var running sync.WaitGroup
	t.Cleanup(func() {
		listener.Close()
		f.setDelay(0)
		running.Wait()
	})
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { f.serve(conn) })
		}
	})
	return f
}

// serve passes on one command after the other.
func (f *fault) serve(client net.Conn) {
	defer client.Close()
	f.mu.Lock()
	f.sessions++
	refused := f.throttling && f.sessions%3 == 0
	f.mu.Unlock()
	server, err := net.Dial("unix", f.socket)
	if err != nil {
		return
	}
	defer server.Close()
	if refused {
		return
	}
	go func() {
		defer client.Close()
		_, _ = io.Copy(client, server)
	}()
	commands := bufio.NewReader(client)
	for {
		command, err := commands.ReadString('\n')
		if err != nil || !f.pass() {
			return
		}
		if f.refuses(command) {
			fmt.Fprint(client, "[3]: Not this one.\n\n> ")
			continue
		}
		if _, err := io.WriteString(server, command); err != nil {
			return
		}
	}
}

// pass counts a command, and reports whether it gets through, after the delay.
func (f *fault) pass() bool {
	f.mu.Lock()
	f.calls++
	passes := !f.failing
	began := time.Now()
	f.mu.Unlock()
	for {
		f.mu.Lock()
		left, changed := f.delayed-time.Since(began), f.changed
		f.mu.Unlock()
		if left <= 0 {
			return passes
		}
		select {
		case <-changed:
		case <-time.After(left):
		}
	}
}

func (f *fault) refuses(command string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range f.bad {
		if !strings.HasPrefix(command, "show") && strings.Contains(command, ":"+name+":") {
			return true
		}
	}
	return false
}

func (f *fault) fail(failing bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = failing
}

func (f *fault) throttle(throttling bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.throttling = throttling
}

func (f *fault) failFor(pods ...*corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bad = nil
	for _, pod := range pods {
		f.bad = append(f.bad, pod.Name)
	}
}

func (f *fault) setDelay(delay time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delayed = delay
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fault) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}
