package haproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"

	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	testclock "k8s.io/utils/clock/testing"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/testkit/realhaproxy"
)

const poll = 10 * time.Millisecond

// shop is a Service with its own adapter for real HAProxys, and Pods that are real HTTP servers.
type shop struct {
	*testing.T
	adapter *Adapter
	clock   *testclock.FakePassiveClock
	service *corev1.Service
	webs    map[string]*realhaproxy.Web
}

func newShop(t *testing.T, change func(*Options), runtimes []string, names ...string) *shop {
	t.Helper()
	o := DefaultOptions()
	o.Runtimes, o.ProbeInterval = runtimes, poll
	if change != nil {
		change(&o)
	}
	clk := testclock.NewFakePassiveClock(time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC))
	adapter, err := New(o, clk)
	require.NoError(t, err)
	s := &shop{T: t, adapter: adapter, clock: clk, webs: realhaproxy.Webs(t, names...)}
	port := 0
	for _, w := range s.webs {
		port = w.Port
	}
	s.service = serviceFor("web", "shop_web", intstr.FromInt(port))
	return s
}

// watch runs the adapter's own part.
func (s *shop) watch() {
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.adapter.Start(ctx)
	}()
	s.Cleanup(func() {
		cancel()
		<-done
	})
}

func (s *shop) pod(name string) *corev1.Pod { return podAt(name, s.webs[name].IP) }

func (s *shop) members(name string, serve bool) map[string]Server {
	s.Helper()
	members, err := s.adapter.Members(s.service, s.pod(name), serve)
	require.NoError(s, err)
	return members
}

func (s *shop) ids(name string) []string {
	return slices.Collect(maps.Keys(s.members(name, true)))
}

// try asks for the Pods to serve or not, and returns the error.
func (s *shop) try(serve bool, names ...string) error {
	s.Helper()
	var changes []api.Change[Server]
	for _, name := range names {
		for id, server := range s.members(name, serve) {
			changes = append(changes, api.Change[Server]{ID: id, State: server})
		}
	}
	return s.adapter.Apply(s.Context(), s.service, changes)
}

func (s *shop) serve(names ...string) {
	s.Helper()
	require.NoError(s, s.try(true, names...))
}

func (s *shop) leave(names ...string) {
	s.Helper()
	require.NoError(s, s.try(false, names...))
}

func (s *shop) remove(names ...string) {
	s.Helper()
	var changes []api.Change[Server]
	for _, name := range names {
		for _, id := range s.ids(name) {
			changes = append(changes, api.Change[Server]{ID: id, Remove: true})
		}
	}
	require.NoError(s, s.adapter.Apply(s.Context(), s.service, changes))
}

// all is what a full reading finds, by ID.
func (s *shop) all() map[string]api.Held[Server] {
	s.Helper()
	held, err := s.adapter.Read(s.Context(), s.service, nil)
	require.NoError(s, err)
	found := map[string]api.Held[Server]{}
	for _, h := range held {
		found[h.ID] = h
	}
	return found
}

// serving reports whether some instance might send traffic to the Pod.
func (s *shop) serving(name string) bool {
	s.Helper()
	held, err := s.adapter.Read(s.Context(), s.service, s.ids(name))
	require.NoError(s, err)
	return slices.ContainsFunc(held, func(h api.Held[Server]) bool { return h.Serving })
}

func (s *shop) eventually(condition func() bool, what string) {
	s.Helper()
	require.Eventually(s, condition, realhaproxy.Deadline, poll, what)
}

// answers asks n times and says who answered.
func (s *shop) answers(client *http.Client, n int) map[string]int {
	s.Helper()
	return realhaproxy.Answers(s, client, n)
}

// slowRequest begins a request that is answered when the Pod releases it, and returns how it ends.
func (s *shop) slowRequest(client *http.Client, name string) <-chan error {
	s.Helper()
	ended := make(chan error, 1)
	go func() {
		answer, err := realhaproxy.Get(client, "/wait")
		if err == nil && answer != name {
			err = fmt.Errorf("%s answered instead of %s", answer, name)
		}
		ended <- err
	}()
	s.eventually(func() bool { return s.webs[name].Waiting() == 1 }, "the request does not reach "+name)
	return ended
}

const backend = "backend shop_web\n"

func TestAPodComesAndGoes(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	s := newShop(t, nil, []string{h.Runtime}, "a", "b")
	s.watch()
	client := h.Client()

	require.Empty(t, s.all())
	s.serve("a")
	slow := s.slowRequest(client, "a")
	s.serve("b")
	require.Len(t, s.answers(client, 20), 2, "both Pods get requests")
	for id, state := range s.members("a", true) {
		require.Equal(t, api.Held[Server]{ID: id, State: state, Serving: true}, s.all()[id])
	}

	s.leave("a")
	require.Equal(t, map[string]int{"b": 20}, s.answers(client, 20), "no new request gets to a Pod that leaves")
	for id, state := range s.members("a", false) {
		require.Equal(t, api.Held[Server]{ID: id, State: state, Serving: true}, s.all()[id], "it has a session")
	}
	s.webs["a"].Release()
	require.NoError(t, <-slow, "the request that was under way")
	s.eventually(func() bool { return !s.serving("a") }, "the Pod does not leave after its last session")
	for id, state := range s.members("a", false) {
		require.Equal(t, api.Held[Server]{ID: id, State: state}, s.all()[id], "it stays, without traffic")
	}

	s.serve("a")
	require.Len(t, s.answers(client, 20), 2, "it is back at once")

	s.leave("a")
	s.remove("a", "b")
	s.eventually(func() bool { return len(s.all()) == 0 }, "servers that are not wanted are removed")
	s.remove("a")
	_, err := realhaproxy.Get(client, "/")
	require.ErrorContains(t, err, "503")
}

func TestAppliedTwiceChangesNothing(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	s := newShop(t, nil, []string{h.Runtime}, "a", "b")
	s.serve("a", "b")
	s.leave("b")
	before := h.Say("show servers state shop_web")
	s.serve("a")
	s.leave("b")
	s.leave("b")
	strip := func(state string) (kept [][]string) {
		for line := range strings.Lines(state) {
			if f := strings.Fields(line); len(f) > 10 && f[0] != "#" {
				kept = append(kept, append(f[:9:9], f[10:]...)) // all but the time since the last change
			}
		}
		return kept
	}
	require.Equal(t, strip(before), strip(h.Say("show servers state shop_web")))
}

func TestAServerFollowsItsPod(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	s := newShop(t, nil, []string{h.Runtime}, "a", "b")
	s.serve("a")
	s.webs["a"].IP = s.webs["b"].IP // a Pod that has lost its sandbox has another address
	s.service.Annotations[WeightAnnotation] = "7"
	s.serve("a")
	require.Equal(t, map[string]int{"b": 5}, s.answers(h.Client(), 5))
	for id, state := range s.members("a", true) {
		require.Equal(t, 7, state.Weight)
		require.Equal(t, state, s.all()[id].State)
	}
}

func TestSessionsAreCutAtTheLimit(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	s := newShop(t, nil, []string{h.Runtime}, "a")
	s.watch()
	s.service.Annotations[MaxDrainSecondsAnnotation] = "30"
	s.serve("a")
	slow := s.slowRequest(h.Client(), "a")
	s.leave("a")
	s.clock.SetTime(s.clock.Now().Add(29 * time.Second))
	s.leave("a")
	require.True(t, s.serving("a"), "a second before the limit")
	require.Equal(t, 1, s.webs["a"].Waiting())
	s.clock.SetTime(s.clock.Now().Add(time.Second))
	require.Error(t, <-slow)
	s.eventually(func() bool { return !s.serving("a") }, "the Pod does not leave at its limit")
}

// TestTheLimitIsThatOfTheServiceAlways: no matter which client put the server into drain, and whatever the limit was
// then.
func TestTheLimitIsThatOfTheServiceAlways(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after string
		killed        bool
	}{
		"a limit of its own, and the controller was killed": {before: "30", after: "30", killed: true},
		"one that came while no process looked":             {before: "0", after: "30", killed: true},
		"one that is changed midway":                        {before: "0", after: "30"},
	} {
		t.Run(name, func(t *testing.T) {
			h := realhaproxy.Start(t, backend)
			s := newShop(t, nil, []string{h.Runtime}, "a")
			s.service.Annotations[MaxDrainSecondsAnnotation] = tc.before
			s.serve("a")
			slow := s.slowRequest(h.Client(), "a")
			s.leave("a")
			if tc.killed { // a new process, that knows nothing and reads
				next, err := New(s.adapter.options, s.clock)
				require.NoError(t, err)
				s.adapter = next
			}
			s.service.Annotations[MaxDrainSecondsAnnotation] = tc.after
			require.True(t, s.serving("a"))
			s.watch()
			s.clock.SetTime(s.clock.Now().Add(29 * time.Second))
			require.True(t, s.serving("a"), "a second before the limit; the flag's would be over much later")
			s.clock.SetTime(s.clock.Now().Add(time.Second))
			require.Error(t, <-slow)
			s.eventually(func() bool { return !s.serving("a") }, "the Pod does not leave at its limit")
		})
	}
}

func TestWithoutALimitNothingIsCut(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	s := newShop(t, nil, []string{h.Runtime}, "a")
	s.service.Annotations[MaxDrainSecondsAnnotation] = "0"
	s.serve("a")
	slow := s.slowRequest(h.Client(), "a")
	s.leave("a")
	s.clock.SetTime(s.clock.Now().Add(24 * time.Hour))
	s.leave("a")
	require.True(t, s.serving("a"))
	s.webs["a"].Release()
	require.NoError(t, <-slow)
}

// A Pod that comes back while it drains has its limit start again the next time.
func TestTheLimitStartsWithEachLeaving(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	s := newShop(t, nil, []string{h.Runtime}, "a")
	s.service.Annotations[MaxDrainSecondsAnnotation] = "30"
	s.serve("a")
	slow := s.slowRequest(h.Client(), "a")
	s.leave("a")
	s.clock.SetTime(s.clock.Now().Add(20 * time.Second))
	s.serve("a")
	s.clock.SetTime(s.clock.Now().Add(20 * time.Second))
	s.leave("a")
	require.True(t, s.serving("a"))
	s.webs["a"].Release()
	require.NoError(t, <-slow)
}

// Clients that stick to a server get to it even while it drains; it has left when they do not.
func TestClientsThatStickAreMoved(t *testing.T) {
	h := realhaproxy.Start(t, "backend shop_web\n    stick-table type string size 1k\n    stick on hdr(X-User)\n")
	s := newShop(t, nil, []string{h.Runtime}, "a", "b")
	s.watch()
	s.serve("a")
	client := h.Client()
	client.Transport = user{client.Transport}
	require.Equal(t, map[string]int{"a": 1}, s.answers(client, 1))
	s.serve("b")
	require.Equal(t, map[string]int{"a": 10}, s.answers(client, 10), "the client sticks to a")
	s.leave("a")
	// HAProxy may end a session a moment after the client has its answer.
	s.eventually(func() bool { return !s.serving("a") }, "a does not leave after its last session")
	require.Equal(t, map[string]int{"b": 10}, s.answers(client, 10))
}

// user sends who it is with each request.
type user struct{ http.RoundTripper }

func (u user) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-User", "someone")
	return u.RoundTripper.RoundTrip(r)
}

// Every way in which HAProxy may use a connection again. The Pod's server ends the moment the Pod has left.
func TestNoRequestFailsWhenAPodThatHasLeftEnds(t *testing.T) {
	for _, settings := range []string{"http-reuse never", "http-reuse safe", "http-reuse aggressive", "http-reuse always",
		"option prefer-last-server", "balance leastconn", "option http-server-close", "fullconn 10"} {
		t.Run(settings, func(t *testing.T) {
			h := realhaproxy.Start(t, "backend shop_web\n    "+settings+"\n")
			names := []string{"a", "b", "c"}
			s := newShop(t, nil, []string{h.Runtime}, names...)
			s.watch()
			s.serve(names...)
			load := realhaproxy.StartLoad(h.Client(), 8)
			for _, name := range []string{"a", "b"} {
				before := s.webs[name].Requests()
				s.eventually(func() bool { return s.webs[name].Requests() > before+20 }, name+" gets no requests")
				s.leave(name)
				s.eventually(func() bool { return !s.serving(name) }, name+" does not leave")
				s.webs[name].End()
			}
			before := s.webs["c"].Requests()
			s.eventually(func() bool { return s.webs["c"].Requests() > before+50 }, "c gets no requests")
			requests, failures := load.Stop()
			require.Empty(t, failures, "of %d requests", requests)
		})
	}
}

func TestARestartedInstanceIsFilledAgain(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	s := newShop(t, nil, []string{h.Runtime}, "a", "b")
	s.watch()
	s.serve("a", "b")
	s.leave("b")
	h.End()
	_, err := s.adapter.Read(t.Context(), s.service, nil)
	require.Error(t, err, "an instance that is not there")
	h.Run()
	client := h.Client()
	s.eventually(func() bool {
		name, err := realhaproxy.Get(client, "/")
		return err == nil && name == "a"
	}, "the new process is not filled")
	s.eventually(func() bool { return len(s.all()) == 2 }, "the server without traffic is not back")
	require.False(t, s.serving("b"))
	require.Equal(t, map[string]int{"a": 10}, s.answers(client, 10))
}

// A Pod that is as it should be is not asked for. The adapter has to know it all the same, from reading.
func TestServersFromBeforeAreFilledAgain(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	first := newShop(t, nil, []string{h.Runtime}, "a", "b")
	first.serve("a", "b")
	second := newShop(t, nil, []string{h.Runtime}, "unused")
	second.service = first.service
	second.watch()
	require.Len(t, second.all(), 2)
	require.NoError(t, second.adapter.Apply(t.Context(), second.service,
		[]api.Change[Server]{{ID: first.ids("b")[0], Remove: true}}))
	h.End()
	h.Run()
	client := h.Client()
	second.eventually(func() bool {
		_, err := realhaproxy.Get(client, "/")
		return err == nil
	}, "the new process is not filled")
	require.Len(t, second.all(), 1, "what was removed stays away")
	require.Equal(t, map[string]int{"a": 10}, second.answers(client, 10))
}

func TestAServerThatAnEarlierProcessLeftOnItsWayOutLeaves(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	first := newShop(t, nil, []string{h.Runtime}, "a")
	first.serve("a")
	slow := first.slowRequest(h.Client(), "a")
	first.leave("a")
	require.True(t, first.serving("a"), "it has a session, and its process ends here")

	second := newShop(t, nil, []string{h.Runtime}, "unused")
	second.service, second.webs = first.service, first.webs
	second.watch()
	require.True(t, second.serving("a"))
	first.webs["a"].Release()
	require.NoError(t, <-slow, "the request that was under way")
	second.eventually(func() bool { return !second.serving("a") },
		"what is wished already is not asked for, so it has to go on by itself")
}

func TestSeveralInstances(t *testing.T) {
	one, two := realhaproxy.Start(t, backend), realhaproxy.Start(t, backend)
	s := newShop(t, nil, []string{one.Runtime, two.Runtime}, "a", "b")
	s.watch()
	s.serve("a")
	slow := s.slowRequest(two.Client(), "a")
	s.serve("b")
	require.Len(t, s.answers(one.Client(), 20), 2)
	require.Len(t, s.answers(two.Client(), 20), 2)

	s.leave("a")
	s.eventually(func() bool {
		held, err := s.adapter.Read(t.Context(), s.service, s.ids("a"))
		require.NoError(t, err)
		require.Len(t, held, 2)
		return slices.ContainsFunc(held, func(h api.Held[Server]) bool { return !h.Serving })
	}, "the instance without a session lets it go")
	require.True(t, s.serving("a"), "the other one has a session")
	s.webs["a"].Release()
	require.NoError(t, <-slow)
	s.eventually(func() bool { return !s.serving("a") }, "a does not leave")

	one.End()
	err := s.try(true, "a")
	var failed api.MemberErrors
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed, 1, "only the member in the instance that is down fails")
	for id := range failed {
		require.True(t, strings.HasSuffix(id, "@"+one.Runtime), id)
	}
	require.Len(t, s.answers(two.Client(), 20), 2, "the other one follows")
	_, err = s.adapter.Read(t.Context(), s.service, nil)
	require.ErrorContains(t, err, one.Runtime, "nothing is known of the instance that is down")
	one.Run()
	s.eventually(func() bool {
		held, err := s.adapter.Read(t.Context(), s.service, nil)
		return err == nil && len(held) == 4 && !slices.ContainsFunc(held, func(h api.Held[Server]) bool { return !h.Serving })
	}, "the instance that came back is not filled, with what was asked for meanwhile")
	two.End()
	one.End()
	err = s.try(true, "a")
	require.Error(t, err)
	require.False(t, errors.As(err, &failed), "no instance answers: %v", err)
}

func TestServersOfOthersAreNotTouched(t *testing.T) {
	h := realhaproxy.Start(t,
		"backend shop_web\n    server static 127.0.0.1:9 disabled\n    server kuperator:shop:web 127.0.0.1:9 disabled\n",
		"backend bank_web\n    server kuperator:bank:web:x:1 127.0.0.1:9\n")
	s := newShop(t, nil, []string{h.Runtime}, "a")
	other := newShop(t, func(o *Options) { o.Owner = "other" }, []string{h.Runtime}, "a")
	neighbour := newShop(t, nil, []string{h.Runtime}, "a")
	neighbour.service.Name = "web-2"
	other.serve("a")
	neighbour.serve("a")
	require.Empty(t, s.all())
	s.serve("a")
	require.Len(t, s.all(), 1)
	require.Len(t, other.all(), 1)
	require.Len(t, neighbour.all(), 1)
	at := "@" + h.Runtime
	for _, id := range []string{"shop_web/static" + at, "shop_web/kuperator:shop:web" + at,
		"bank_web/kuperator:bank:web:x:1" + at, other.ids("a")[0], neighbour.ids("a")[0],
		"shop_web/kuperator:shop:web:x;shutdown sessions server shop_web/static" + at, "shop web/kuperator:shop:web:x" + at} {
		err := s.adapter.Apply(t.Context(), s.service, []api.Change[Server]{{ID: id, Remove: true}})
		require.Error(t, err, id)
	}
	s.remove("a")
	require.Empty(t, s.all())
	state := h.Say("show servers state")
	for _, name := range []string{"static", "kuperator:shop:web", "kuperator:bank:web:x:1", "other:shop:web:a:",
		"kuperator:shop:web-2:a:"} {
		require.Contains(t, state, " "+name)
	}
	_, err := other.adapter.Read(t.Context(), s.service, nil)
	require.NoError(t, err)
	require.True(t, other.serving("a"))
	require.True(t, neighbour.serving("a"))
}

// A Service that names another backend has its members in the old one found, so that they can be removed.
func TestAReadingCoversAllBackends(t *testing.T) {
	h := realhaproxy.Start(t, backend, "backend shop_next\n")
	s := newShop(t, nil, []string{h.Runtime}, "a")
	s.serve("a")
	old := s.ids("a")
	s.service.Annotations[BackendAnnotation] = "shop_next"
	s.serve("a")
	require.Len(t, s.all(), 2)
	require.NoError(t, s.adapter.Apply(t.Context(), s.service, []api.Change[Server]{{ID: old[0], Remove: true}}))
	require.Len(t, s.all(), 1)
	require.True(t, s.serving("a"))
}

func TestWhatHAProxyRefuses(t *testing.T) {
	h := realhaproxy.Start(t, backend, "backend shop_static\n    balance source\n")
	s := newShop(t, nil, []string{h.Runtime}, "a", "b")
	for backend, want := range map[string]string{"shop_nope": "No such backend", "shop_static": "dynamic load balancing"} {
		s.service.Annotations[BackendAnnotation] = backend
		var failed api.MemberErrors
		require.ErrorAs(t, s.try(true, "a"), &failed)
		require.Len(t, failed, 1)
		require.ErrorContains(t, failed[s.ids("a")[0]], want)
		require.False(t, s.serving("a"))
	}
	good := s.members("b", true)
	s.service.Annotations[BackendAnnotation] = "shop_web"
	var changes []api.Change[Server]
	for _, members := range []map[string]Server{good, s.members("a", true)} {
		for id, state := range members {
			changes = append(changes, api.Change[Server]{ID: id, State: state})
		}
	}
	var failed api.MemberErrors
	require.ErrorAs(t, s.adapter.Apply(t.Context(), s.service, changes), &failed)
	require.Len(t, failed, 1, "one bad member does not keep back the others")
	require.Equal(t, map[string]int{"a": 3}, s.answers(h.Client(), 3))

	operator := newShop(t, nil, []string{h.Operator()}, "a")
	require.ErrorContains(t, operator.try(true, "a"), "Permission denied")
}

func TestServerOptions(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	s := newShop(t, func(o *Options) { o.ServerOptions = "check inter 100ms fall 1 rise 1" },
		[]string{h.Runtime}, "a", "b")
	s.serve("a", "b")
	s.webs["a"].End()
	s.eventually(func() bool { return strings.Contains(h.Say("show stat shop_web 4 -1"), ",DOWN,") },
		"HAProxy checks no health")
	require.Equal(t, map[string]int{"b": 5}, s.answers(h.Client(), 5))
}

func TestARuntimeOverTCP(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	// a relay stands for "stats socket ipv4@…": no port has to be guessed to be free
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	go relay(listener, strings.TrimPrefix(h.Runtime, "unix:"))
	s := newShop(t, nil, []string{"tcp:" + listener.Addr().String()}, "a")
	s.serve("a")
	require.Equal(t, map[string]int{"a": 3}, s.answers(h.Client(), 3))
	require.True(t, s.serving("a"))
}

// An instance that does not answer in time, and one that ends while it answers: an error, never "no server".
func TestNotKnowingIsAnError(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	s := newShop(t, nil, []string{h.Runtime}, "a")
	s.serve("a")
	h.Hang()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := s.adapter.Read(ctx, s.service, nil)
	require.Error(t, err)
	require.Error(t, s.adapter.Apply(ctx, s.service, []api.Change[Server]{{ID: s.ids("a")[0], Remove: true}}))
	h.Resume()
	require.True(t, s.serving("a"))

	answers := map[string]string{}
	for _, command := range []string{"show servers state", "show servers state shop_web", "show stat -1 4 -1",
		"show stat 3 4 -1"} {
		answers[command] = h.Say(command)
	}
	for cut := range answers {
		for _, at := range []int{0, 1, 2, len(answers[cut]) / 2, len(answers[cut])} {
			listener, err := net.Listen("tcp4", "127.0.0.1:0")
			require.NoError(t, err)
			go dies(listener, answers, cut, at)
			dying := newShop(t, nil, []string{"tcp:" + listener.Addr().String()}, "unused")
			ids := []string{s.ids("a")[0][:strings.Index(s.ids("a")[0], "@")] + "@tcp:" + listener.Addr().String()}
			if strings.Contains(cut, "-1") && !strings.Contains(cut, "3") || cut == "show servers state" {
				ids = nil
			}
			_, err = dying.adapter.Read(t.Context(), s.service, ids)
			require.ErrorContains(t, err, "not complete", "%s cut after %d characters", cut, at)
			listener.Close()
		}
	}
}

// dies answers like HAProxy, and ends in the middle of the answer to one command: what no real process does on demand.
func dies(listener net.Listener, answers map[string]string, cut string, at int) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			in := make([]byte, 4096)
			for {
				n, err := conn.Read(in)
				if err != nil {
					return
				}
				command := strings.TrimSpace(string(in[:n]))
				if command == cut {
					fmt.Fprint(conn, answers[command][:at])
					return
				}
				fmt.Fprint(conn, answers[command]+"\n\n> ")
			}
		}()
	}
}

func relay(listener net.Listener, path string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("unix", path)
		if err != nil {
			conn.Close()
			continue
		}
		pump := func(to, from net.Conn) {
			defer to.Close()
			in := make([]byte, 4096)
			for {
				n, err := from.Read(in)
				if err != nil {
					return
				}
				if _, err := to.Write(in[:n]); err != nil {
					return
				}
			}
		}
		go pump(to, conn)
		go pump(conn, to)
	}
}

func TestNoCommandHoldsASecondOne(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	session, err := dial(t.Context(), "unix", strings.TrimPrefix(h.Runtime, "unix:"))
	require.NoError(t, err)
	defer session.close()
	for _, command := range []string{"show info;disable frontend entrance", "show info\ndisable frontend entrance",
		`show info\`} {
		_, err := session.do(command)
		require.ErrorContains(t, err, "more than one command")
	}
	_, err = session.do("show nothing that there is")
	require.Error(t, err)
	require.Contains(t, h.Say("show stat entrance 1 -1"), ",OPEN,")
}

// Many Pods at once, as a rollout brings them.
func TestManyMembersInOneCall(t *testing.T) {
	h := realhaproxy.Start(t, backend)
	s := newShop(t, nil, []string{h.Runtime}, "a")
	var changes []api.Change[Server]
	for n := range 300 {
		members, err := s.adapter.Members(s.service,
			podAt(fmt.Sprintf("web-%d", n), fmt.Sprintf("127.9.%d.%d", n/250, n%250+1)), true)
		require.NoError(t, err)
		for id, state := range members {
			changes = append(changes, api.Change[Server]{ID: id, State: state})
		}
	}
	require.NoError(t, s.adapter.Apply(t.Context(), s.service, changes))
	require.Len(t, s.all(), 300)
	for i := range changes {
		changes[i].Remove = true
	}
	require.NoError(t, s.adapter.Apply(t.Context(), s.service, changes))
	require.Empty(t, s.all())
}
