package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

const (
	// requestTimeout makes a request without an answer a failed one.
	requestTimeout = 20 * time.Second
	// pause between two requests of one client. With the 5 ms that the server works on each, a client asks about 60
	// times a second.
	pause = 10 * time.Millisecond
	// examples is how many failures of a phase are kept with their time.
	examples = 5
)

// path is a way to the Pods.
type path interface {
	// client returns how one client sends its requests: over connections that it keeps, or each over a new one. Next gives
	// the base URL of the next request, or an error if there is no server to ask.
	client(keepAlive bool) (transport func(base string) http.RoundTripper, next func() (base string, err error))
}

// load is a number of clients that send requests until it is stopped. Each belongs to the phase in which it began.
type load struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu     sync.Mutex
	phases []*phase
}

// phase is what happened between two moments, by kind of client.
type phase struct {
	name  string
	begin time.Time
	took  time.Duration
	kinds map[string]*tally
}

type tally struct {
	requests  int
	slowest   time.Duration
	latencies time.Duration  // all, added up
	failures  map[string]int // by what went wrong
	examples  []string       // the first ones, with their time
	versions  map[string]int // answers by version
}

// startLoad starts clients on each of the paths, half of them with connections that they keep.
func startLoad(t *testing.T, clients int, paths map[string]path) *load {
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	l := &load{stop: stop}
	l.phase("before")
	for name, p := range paths {
		for i := range clients {
			keep := i%2 == 0
			kind := name + ", new connections"
			if keep {
				kind = name + ", keep-alive"
			}
			transport, next := p.client(keep)
			l.done.Go(func() { l.run(ctx, kind, transport, next) })
		}
	}
	t.Cleanup(l.end)
	return l
}

// end stops the clients; requests under way are finished first.
func (l *load) end() {
	l.stop()
	l.done.Wait()
}

// phase begins another phase.
func (l *load) phase(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if n := len(l.phases); n > 0 {
		l.phases[n-1].took = now.Sub(l.phases[n-1].begin)
	}
	l.phases = append(l.phases, &phase{name: name, begin: now, kinds: map[string]*tally{}})
}

func (l *load) now() *phase {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phases[len(l.phases)-1]
}

func (l *load) run(
	ctx context.Context, kind string, transport func(string) http.RoundTripper, next func() (string, error),
) {
	for ctx.Err() == nil {
		p, begin := l.now(), time.Now()
		version, err := ask(transport, next)
		l.count(p, kind, version, begin, time.Since(begin), err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// ask sends one request. It is a POST, which no client and no proxy sends twice.
func ask(transport func(string) http.RoundTripper, next func() (string, error)) (version string, err error) {
	base, err := next()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/", strings.NewReader("?"))
	if err != nil {
		return "", err
	}
	response, err := transport(base).RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", fmt.Errorf("reading the answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("answer %s", response.Status)
	}
	return strings.TrimSpace(string(body)), nil
}

func (l *load) count(p *phase, kind, version string, begin time.Time, took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := p.kinds[kind]
	if c == nil {
		c = &tally{failures: map[string]int{}, versions: map[string]int{}}
		p.kinds[kind] = c
	}
	c.requests++
	c.latencies += took
	c.slowest = max(c.slowest, took)
	if err == nil {
		c.versions[version]++
		return
	}
	c.failures[reasonOf(err)]++
	if len(c.examples) < examples {
		c.examples = append(c.examples, fmt.Sprintf("%s after %s: %v", begin.UTC().Format("15:04:05.000"),
			took.Round(time.Millisecond), err))
	}
}

// reasonOf is an error without addresses and ports.
func reasonOf(err error) string {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err.Error()
}

// sums are all requests and the failed ones of all phases so far.
func (l *load) sums() (requests, failed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.phases {
		r, f := p.sums()
		requests, failed = requests+r, failed+f
	}
	return requests, failed
}

func (p *phase) sums() (requests, failed int) {
	for _, c := range p.kinds {
		requests += c.requests
		for _, n := range c.failures {
			failed += n
		}
	}
	return requests, failed
}

// table are the figures, for people.
func (l *load) table() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var text strings.Builder
	out := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "phase\ttook\tclients\trequests\tfailed\tmean\tslowest\tanswered by version")
	var failures []string
	for _, p := range l.phases {
		for _, kind := range slices.Sorted(maps.Keys(p.kinds)) {
			c := p.kinds[kind]
			failed := 0
			for _, reason := range slices.Sorted(maps.Keys(c.failures)) {
				failed += c.failures[reason]
				failures = append(failures, fmt.Sprintf("%s, %s: %d× %s", p.name, kind, c.failures[reason], reason))
			}
			for _, example := range c.examples {
				failures = append(failures, "    "+example)
			}
			fmt.Fprintf(out, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%v\n", p.name, p.took.Round(100*time.Millisecond), kind,
				c.requests, failed,
				(c.latencies / time.Duration(c.requests)).Round(100*time.Microsecond), c.slowest.Round(time.Millisecond),
				c.versions)
		}
	}
	_ = out.Flush()
	return text.String() + strings.Join(failures, "\n")
}
