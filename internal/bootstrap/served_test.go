package bootstrap

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"kusionstack.io/kuperator/internal/metric"
)

var exampleKind = schema.GroupVersionKind{Group: "example.io", Version: "v1", Kind: "Example"}

// discovery is a mapper that answers one error after another and then, for good, that the kind is there.
type discovery struct {
	meta.RESTMapper
	mu      sync.Mutex
	answers []error
	asked   int
}

func (d *discovery) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if kind != exampleKind.GroupKind() || len(versions) != 1 || versions[0] != exampleKind.Version {
		return nil, errors.New("asked for another kind")
	}
	d.asked++
	if d.asked <= len(d.answers) {
		return nil, d.answers[d.asked-1]
	}
	return &meta.RESTMapping{}, nil
}

func (d *discovery) looks() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

func TestWhenServed(t *testing.T) {
	missing := &meta.NoKindMatchError{GroupKind: exampleKind.GroupKind()}
	away := errors.New("connection refused")
	tests := map[string]struct {
		answers   []error
		waits     []time.Duration // before each further look
		rare      bool
		wantLines int
	}{
		"a kind that is served is set up at once and without a word": {},
		"a kind that appears later is looked for ever less often": {
			answers:   []error{missing, missing, missing, missing, missing},
			waits:     []time.Duration{5 * time.Second, 10 * time.Second, 10 * time.Second, 10 * time.Second, 10 * time.Second},
			wantLines: 2, // waiting, once; served now
		},
		"an API server that is away is waited for as well": {
			answers:   []error{away, missing},
			waits:     []time.Duration{5 * time.Second, 10 * time.Second},
			wantLines: 2,
		},
		"a kind that most clusters do not serve is looked for rarely and without a word": {
			answers: []error{missing, missing, missing},
			waits:   []time.Duration{5 * time.Minute, 5 * time.Minute, 5 * time.Minute},
			rare:    true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			clk := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
			mapper := &discovery{answers: tc.answers}
			var lines []string
			setUp := make(chan struct{}, 2)
			s := &served{
				kind: exampleKind, mapper: mapper, clock: clk, rare: tc.rare,
				setup:  func() error { setUp <- struct{}{}; return nil },
				older:  func(context.Context) ([]string, error) { return nil, nil },
				logger: funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{}),
			}
			done := make(chan error, 1)
			go func() { done <- s.Start(t.Context()) }()

			for i, wait := range tc.waits {
				require.Eventually(t, clk.HasWaiters, time.Minute, time.Millisecond)
				require.Equal(t, i+1, mapper.looks())
				clk.Step(wait - time.Millisecond)
				require.True(t, clk.HasWaiters(), "look %d comes too early", i+2)
				clk.Step(time.Millisecond)
			}
			require.NoError(t, <-done)
			require.Len(t, setUp, 1)
			require.Len(t, lines, tc.wantLines)
			if tc.wantLines > 0 {
				require.Contains(t, lines[0], "waiting for Example")
				require.Contains(t, lines[1], "Example is served now")
			}
		})
	}
}

func TestWhenServedEndsWithTheProcessWithoutSettingUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	clk := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	s := &served{
		kind: exampleKind, clock: clk, mapper: &discovery{answers: []error{errors.New("no"), errors.New("no")}},
		setup: func() error { panic("set up") },
	}
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	require.Eventually(t, clk.HasWaiters, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

func TestWhenServedReportsASetupThatFails(t *testing.T) {
	broken := errors.New("no such index")
	s := &served{kind: exampleKind, mapper: &discovery{}, clock: clocktesting.NewFakeClock(time.Unix(1, 0)),
		setup: func() error { return broken }}
	require.ErrorIs(t, s.Start(t.Context()), broken)
	require.False(t, s.NeedLeaderElection(), "a standby fills its caches too")
}

func TestWhenServedSaysWhatAnOlderCRDLacks(t *testing.T) {
	var lines []string
	s := &served{
		kind: exampleKind, mapper: &discovery{}, clock: clocktesting.NewFakeClock(time.Unix(1, 0)),
		setup:  func() error { return nil },
		older:  func(context.Context) ([]string, error) { return []string{"spec.newest"}, nil },
		logger: funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{}),
	}
	require.NoError(t, s.Start(t.Context()))
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "older than this program")
	require.Contains(t, lines[0], "spec.newest")
	require.Contains(t, lines[0], "Example")
}

// recorder is a manager that only takes down what is added to it.
type recorder struct {
	ctrl.Manager
	added []manager.Runnable
	err   error
}

func (r *recorder) Add(runnable manager.Runnable) error {
	r.added = append(r.added, runnable)
	return r.err
}

func TestWhatASetupAddsRunsOnceTheSetupIsThrough(t *testing.T) {
	first, second, third := &served{}, &served{}, &served{}
	mgr := &recorder{}
	var given ctrl.Manager
	require.NoError(t, atOnce(mgr, func(m ctrl.Manager) error {
		given = m
		require.NoError(t, errors.Join(m.Add(first), m.Add(second)))
		require.Empty(t, mgr.added, "a controller that runs now would not wait for the watches that it gets next")
		return nil
	}))
	require.Equal(t, []manager.Runnable{first, second}, mgr.added)
	require.NoError(t, given.Add(third))
	require.Len(t, mgr.added, 3, "what comes later runs at once")
}

func TestNothingRunsOfASetupThatFails(t *testing.T) {
	broken, mgr := errors.New("no such index"), &recorder{}
	require.ErrorIs(t, atOnce(mgr, func(m ctrl.Manager) error { return errors.Join(m.Add(&served{}), broken) }), broken)
	require.Empty(t, mgr.added)
	mgr.err = errors.New("it is stopping")
	require.ErrorIs(t, atOnce(mgr, func(m ctrl.Manager) error { return m.Add(&served{}) }), mgr.err)
}

func TestASetupOfAShardReadsAndTellsAsTheShardDoes(t *testing.T) {
	all, own := fake.NewFakeClient(), fake.NewFakeClient()
	shard := shardManager{Manager: readingManager{direct: all}, direct: own, registry: prometheus.NewRegistry()}
	require.NoError(t, atOnce(shard, func(m ctrl.Manager) error {
		require.Same(t, own, m.GetAPIReader())
		require.Same(t, shard.registry, metric.RegistryOf(m))
		return nil
	}))
	require.NoError(t, atOnce(readingManager{direct: all}, func(m ctrl.Manager) error {
		require.Same(t, all, m.GetAPIReader())
		require.Equal(t, metrics.Registry, metric.RegistryOf(m))
		return nil
	}))
}

type readingManager struct {
	ctrl.Manager
	direct client.Reader
}

func (m readingManager) GetAPIReader() client.Reader { return m.direct }
