package haproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// instance is one HAProxy, whichever process runs it. Its servers are named by path, "<backend>/<server>".
type instance struct {
	name             string // as the flag gives it
	network, address string
	clock            clock.PassiveClock
	serverOptions    string
	checks           bool

	// changing is held by the one who changes servers.
	changing chan struct{}

	mu sync.Mutex
	// desired are the desired states of the servers, for a process that has lost them.
	desired map[string]Server
	// leaving are the servers that are under way to having no session, or to being gone.
	leaving map[string]desiredServer
	// outSince is since when a server that takes no new sessions has been seen with some.
	outSince map[string]time.Time
	// changes counts the calls of apply that began and ended: a reading that one of them overlaps is not remembered.
	changes int
}

// desiredServer is the desired state of a server.
type desiredServer struct {
	server Server
	// gone is true if there is to be none.
	gone bool
	// maxDrain is after how long its sessions are cut; 0 is for never.
	maxDrain time.Duration
}

// leaves reports whether the server is to have no sessions.
func (w desiredServer) leaves() bool { return w.gone || w.server.Out }

func newInstance(runtime string, o Options, clk clock.PassiveClock) (*instance, error) {
	network, address, err := parseRuntime(runtime)
	if err != nil {
		return nil, err
	}
	return &instance{
		name: runtime, network: network, address: address, clock: clk, serverOptions: o.ServerOptions, checks: o.hasChecks(),
		changing: make(chan struct{}, 1), desired: map[string]Server{}, leaving: map[string]desiredServer{},
		outSince: map[string]time.Time{},
	}, nil
}

// read returns the servers of one Service that pick chooses in these backends, nil for all backends. maxDrain is the
// Service's limit as it is now, which counts for those that are on their way out.
func (i *instance) read(
	ctx context.Context, backends []string, pick func(path string) bool, maxDrain time.Duration,
) (map[string]found, error) {
	i.mu.Lock()
	began := i.changes
	i.mu.Unlock()
	s, err := dial(ctx, i.network, i.address)
	if err != nil {
		return nil, err
	}
	defer s.close()
	seen, err := i.observe(s, backends, pick)
	if err != nil {
		return nil, err
	}
	i.learn(began, seen, maxDrain)
	return seen, nil
}

// learn takes servers that are there for wished. Of those from before this process started it is not known, because
// nothing about them has to change. One that an earlier process left in the midst of its way out, in drain, is taken
// further: what is wished of it is set already, so it is not asked for again, but it has not left yet.
func (i *instance) learn(began int, seen map[string]found, maxDrain time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for path := range seen {
		if w, leaves := i.leaving[path]; leaves {
			w.maxDrain = maxDrain
			i.leaving[path] = w
		}
	}
	if began != i.changes || began%2 != 0 {
		return
	}
	for path, f := range seen {
		_, known := i.desired[path]
		if _, leaves := i.leaving[path]; known || leaves {
			continue
		}
		i.desired[path] = f.server()
		if !f.taking() && (!f.held() || f.sessions > 0) {
			i.leaving[path] = desiredServer{server: f.server(), maxDrain: maxDrain}
		}
	}
}

// observe reads, and keeps since when servers have been on their way out.
func (i *instance) observe(s *session, backends []string, pick func(path string) bool) (map[string]found, error) {
	seen, err := s.observe(backends, pick)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for path, f := range seen {
		if _, known := i.outSince[path]; f.taking() || f.sessions == 0 {
			delete(i.outSince, path)
		} else if !known {
			i.outSince[path] = i.clock.Now()
		}
	}
	return seen, nil
}

// overdue reports whether a server has been on its way out for too long.
func (i *instance) overdue(path string, most time.Duration) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	since, known := i.outSince[path]
	return most > 0 && known && i.clock.Since(since) >= most
}

// apply takes servers as far towards their desired states as they can go now; advance takes those that have to wait for
// their sessions further. It returns the errors of servers, and an error if it is not known how far all of them got.
func (i *instance) apply(ctx context.Context, desired map[string]desiredServer) (map[string]error, error) {
	if len(desired) == 0 {
		return nil, nil
	}
	return i.change(ctx, func() map[string]desiredServer {
		for path, w := range desired {
			delete(i.leaving, path)
			if w.leaves() {
				i.leaving[path] = w
			}
			if w.gone {
				delete(i.desired, path)
			} else {
				i.desired[path] = w.server
			}
		}
		return maps.Clone(desired)
	})
}

// advance takes the servers that are on their way out further.
func (i *instance) advance(ctx context.Context) (map[string]error, error) {
	return i.change(ctx, func() map[string]desiredServer { return maps.Clone(i.leaving) })
}

// refill gives a process that has lost its servers all of them.
func (i *instance) refill(ctx context.Context) (map[string]error, error) {
	return i.change(ctx, func() map[string]desiredServer {
		desired := make(map[string]desiredServer, len(i.desired))
		for path, server := range i.desired {
			desired[path] = desiredServer{server: server}
		}
		maps.Copy(desired, i.leaving)
		return desired
	})
}

// change carries out what it gets when no other changes servers.
func (i *instance) change(ctx context.Context, desired func() map[string]desiredServer) (map[string]error, error) {
	select {
	case i.changing <- struct{}{}:
		defer func() { <-i.changing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	i.mu.Lock()
	open := desired()
	if len(open) == 0 {
		i.mu.Unlock()
		return nil, nil
	}
	i.changes++
	i.mu.Unlock()
	defer func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.changes++
	}()
	s, err := dial(ctx, i.network, i.address)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return i.carryOut(s, open)
}

// carryOut takes servers as far as they can go. One leaves in up to three steps, drain, maintenance and removal, each
// of which begins with a look; a last look finds nothing to do.
func (i *instance) carryOut(s *session, open map[string]desiredServer) (map[string]error, error) {
	failed := map[string]error{}
	for range 4 {
		seen, err := i.observe(s, backendsOf(maps.Keys(open)), func(path string) bool { _, ok := open[path]; return ok })
		if err != nil {
			return failed, err
		}
		for _, path := range slices.Sorted(maps.Keys(open)) {
			w := open[path]
			f, there := seen[path]
			commands := i.commands(path, f, there, w, i.overdue(path, w.maxDrain))
			if err := run(s, commands); err != nil {
				var refused *commandError
				if !errors.As(err, &refused) {
					return failed, err
				}
				failed[path] = refused
			}
			if w.leaves() && (!there && w.gone || there && f.held() && f.sessions == 0 && !w.gone) {
				i.left(path)
			}
			if failed[path] != nil || len(commands) == 0 || !w.leaves() {
				delete(open, path)
			}
		}
		if len(open) == 0 {
			break
		}
	}
	return failed, nil
}

// left takes in that a server has nothing left to wait for.
func (i *instance) left(path string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.leaving, path)
	delete(i.outSince, path)
}

// commands are those that take a server one step towards its desired state; none if it is there, or has to wait for its
// sessions.
func (i *instance) commands(path string, f found, there bool, w desiredServer, overdue bool) []string {
	switch {
	case !there && w.gone:
		return nil
	case !there:
		return i.add(path, w.server)
	}
	var all []string
	if !w.gone && f.endpoint != w.server.Endpoint {
		all = append(all, fmt.Sprintf("set server %s addr %s port %d", path, w.server.Endpoint.Addr(),
			w.server.Endpoint.Port()))
	}
	if !w.gone && f.weight != w.server.Weight {
		all = append(all, fmt.Sprintf("set server %s weight %d", path, w.server.Weight))
	}
	switch {
	case !w.leaves():
		if !f.taking() {
			all = append(all, "set server "+path+" state ready")
		}
	case f.taking():
		all = append(all, "set server "+path+" state drain")
	case f.sessions > 0 && !overdue:
		// waits for them
	case f.sessions > 0:
		if !f.held() {
			all = append(all, "set server "+path+" state maint")
		}
		all = append(all, "shutdown sessions server "+path)
	case !f.held(): // else clients that stick to the server still got there
		all = append(all, "set server "+path+" state maint")
	case w.gone:
		all = append(all, "del server "+path)
	}
	return all
}

// add are the commands for a new server, which HAProxy starts in maintenance.
func (i *instance) add(path string, server Server) []string {
	add := fmt.Sprintf("add server %s %s weight %d %s", path, server.Endpoint, server.Weight, i.serverOptions)
	all := []string{strings.TrimSpace(add)}
	if i.checks {
		all = append(all, "enable health "+path)
	}
	if !server.Out {
		all = append(all, "set server "+path+" state ready")
	}
	return all
}

func run(s *session, commands []string) error {
	for _, command := range commands {
		_, err := s.do(command)
		var refused *commandError
		if errors.As(err, &refused) && strings.HasPrefix(command, "del server") &&
			strings.Contains(refused.answer, "connection") {
			return nil // a connection is just being closed: it is tried again
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// process asks which process runs.
func (i *instance) process(ctx context.Context) (process, error) {
	s, err := dial(ctx, i.network, i.address)
	if err != nil {
		return process{}, err
	}
	defer s.close()
	return s.process()
}
