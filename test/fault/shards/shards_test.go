package shards

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/faultreport"
	"kusionstack.io/kuperator/internal/testkit/observer"
)

// everything is true for make test-faults.
var everything = os.Getenv("FAULTS") == "all"

// observed is what a scenario is checked by.
type observed struct {
	*world
	t          *testing.T
	observer   *observer.Observer
	namespaces []string
	began      time.Time
	faults     map[string]int
}

// observe makes namespaces with Pods in service and an observer.
func (w *world) observe(t *testing.T, namespaces int) *observed {
	t.Helper()
	began := time.Now()
	o, err := observer.Start(t.Context(), w.RESTConfig(), observer.Options{StuckAfter: 3 * time.Minute})
	require.NoError(t, err)
	s := &observed{world: w, t: t, observer: o, namespaces: w.teams(t, namespaces), began: began, faults: map[string]int{}}
	s.waitServing(t, s.namespaces, image1)
	o.Settled(t.Context())
	o.Lap()
	return s
}

// done checks the promises and adds to the report. shards are the numbers that were used.
func (s *observed) done(scenario string, shards ...int) {
	s.t.Helper()
	report, err := s.observer.Stop()
	require.NoError(s.t, err)
	require.NoError(s.t, report.Err())
	for _, ns := range s.namespaces {
		rule, ok := report.Rule(ns, "web")
		require.True(s.t, ok, "the observer saw no rule in %s", ns)
		require.LessOrEqual(s.t, rule.MaxOut, 1, "%s: more Pods were out than the rule lets be", ns)
	}
	writes, changes := s.requireOneWriter(s.t, s.began, s.namespaces, shards...)
	s.t.Logf("%s: %d writes in %d namespaces, the writer of a component and namespace changed %d times", scenario, writes,
		len(s.namespaces), changes)
	require.NotZero(s.t, changes, "no namespace changed hands: nothing was tested")
	require.NoError(s.t, faultreport.Add(faultreport.Row{
		Suite: "shards", Scenario: scenario, Faults: s.faults, Plans: 1, Took: time.Since(s.began),
		Invariants: map[string]int{"one writer at a time": writes, "budgets": len(s.namespaces)},
	}))
}

// TestReplicasComeAndGo: rollouts go on in a dozen namespaces while a replica is added, one is killed, one is stopped.
func TestReplicasComeAndGo(t *testing.T) {
	const shards = 5
	w := shared.Get(t)
	a, b := w.start(t, "a", shards), w.start(t, "b", shards)
	w.waitSpread(t, shards, 2)
	s := w.observe(t, 12)

	w.setImage(t, s.namespaces, image2)
	w.waitUnderWay(t, s.namespaces, image2)
	w.start(t, "c", shards)
	s.faults["replica added"]++
	w.waitSpread(t, shards, 3)
	a.kill(t)
	s.faults["replica killed"]++
	w.waitServing(t, s.namespaces, image2)

	w.setImage(t, s.namespaces, image3)
	w.waitUnderWay(t, s.namespaces, image3)
	b.stop(t)
	s.faults["replica stopped"]++
	w.waitServing(t, s.namespaces, image3)
	w.waitSpread(t, shards, 1)
	s.done("replicas come and go", shards)
}

// TestPausedReplica: one that was stopped for longer than its Leases wakes up while others act. It writes nothing and
// ends.
func TestPausedReplica(t *testing.T) {
	if !everything {
		t.Skip("takes a minute: make test-faults")
	}
	const shards = 4
	w := shared.Get(t)
	a := w.start(t, "paused-a", shards)
	w.start(t, "paused-b", shards)
	w.waitSpread(t, shards, 2)
	s := w.observe(t, 12)
	for _, image := range []string{image2, image3} {
		w.setImage(t, s.namespaces, image)
		w.waitUnderWay(t, s.namespaces, image)
		a.signal(t, syscall.SIGSTOP)
		s.faults["replica paused"]++
		w.waitSpread(t, shards, 1)
		a.signal(t, syscall.SIGCONT)
		a.waitEnded(t)
		w.waitServing(t, s.namespaces, image)
		a.kill(t)
		a = w.start(t, "again-"+image[len(image)-1:], shards)
		w.waitSpread(t, shards, 2)
	}
	s.done("a paused replica wakes up", shards)
}

// TestOtherNumberOfShards: a rolling update to other numbers of shards, and from and to none. There are never two
// owners.
func TestOtherNumberOfShards(t *testing.T) {
	if !everything {
		t.Skip("takes a minute: make test-faults")
	}
	w := shared.Get(t)
	numbers := []int{1, 4, 3, 1}
	old := []*replica{w.start(t, "one-a", 1), w.start(t, "one-b", 1)}
	s := w.observe(t, 12)
	images := []string{image2, image3, image1}
	for i, shards := range numbers[1:] {
		w.setImage(t, s.namespaces, images[i])
		w.waitUnderWay(t, s.namespaces, images[i])
		var next []*replica
		for j, name := range []string{"a", "b"} {
			next = append(next, w.start(t, []string{"four-", "three-", "last-"}[i]+name, shards))
			old[j].stop(t)
			s.faults["number of shards changed"]++
		}
		old = next
		w.waitServing(t, s.namespaces, images[i])
		for _, component := range controllers {
			require.NotEmpty(t, w.lease(t, component).holder)
		}
	}
	s.done("another number of shards", numbers...)
}
