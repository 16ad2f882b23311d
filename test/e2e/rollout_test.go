package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// What an in-place update costs at most, per Pod: five writes for the operation,
// two for the Service that goes off and on, one to spare.
const (
	maxWritesPerPod    = 8.0
	maxConflictsPerPod = 0.1
)

func TestRollout(t *testing.T) {
	w := alone(t) // conflicts are counted
	ns := w.namespace(t)
	o := w.observe(t, ns, observer.Options{})
	begin := time.Now()
	w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "20%"), workload.CollaSet(ns, "web", image1, 10))
	w.waitServing(t, ns, "web", 10, image1)
	w.logWrites(t, ns, begin, 10)
	before := workload.UIDs(w.pods(t, ns, "web"))

	t.Log("the image changes")
	begin = time.Now()
	w.setImage(t, ns, "web", image2)
	w.waitServing(t, ns, "web", 10, image2)
	t.Logf("the update took %s", time.Since(begin).Round(100*time.Millisecond))
	require.Equal(t, before, workload.UIDs(w.pods(t, ns, "web")), "in place: no Pod is recreated")
	conflicts := w.requireFrugal(t, ns, begin, 10)
	w.requireFewEvents(t, ns, 1)
	requireWithin(t, o, ns, 2)

	t.Log("fewer Pods")
	begin = time.Now()
	w.scale(t, ns, "web", 7)
	w.waitServing(t, ns, "web", 7, image2)
	remaining := workload.UIDs(w.pods(t, ns, "web"))
	for _, uid := range remaining {
		require.Contains(t, before, uid)
	}
	conflicts += w.requireFrugal(t, ns, begin, 3)
	requireWithin(t, o, ns, 2)

	t.Log("back to the old image")
	begin = time.Now()
	w.setImage(t, ns, "web", image1)
	w.waitServing(t, ns, "web", 7, image1)
	require.Equal(t, remaining, workload.UIDs(w.pods(t, ns, "web")))
	conflicts += w.requireFrugal(t, ns, begin, 7)
	assert.LessOrEqual(t, float64(conflicts)/(10+3+7), maxConflictsPerPod, "conflicts per operated Pod")
	w.requireFewEvents(t, ns, 2)
	requireWithin(t, o, ns, 2)

	t.Log("more Pods again")
	w.scale(t, ns, "web", 10)
	w.waitServing(t, ns, "web", 10, image1)
	for _, uid := range remaining {
		require.Contains(t, workload.UIDs(w.pods(t, ns, "web")), uid)
	}
	requireAtRest(t, o, ns)
}

// requireAtRest checks that nothing is left to do, nothing is left over, and nothing is done any more.
func requireAtRest(t *testing.T, o *observer.Observer, namespace string) {
	t.Helper()
	require.NoError(t, o.AtRest(t.Context(), namespace).Err())
	report := o.Quiet(t.Context(), namespace, standstill)
	require.NoError(t, report.Err())
	t.Logf("the observer judged %v", report.Checks)
}

// requireWithin checks that the observer never saw more Pods out of service.
func requireWithin(t *testing.T, o *observer.Observer, namespace string, most int) {
	t.Helper()
	report := o.SettledIn(t.Context(), namespace)
	require.NoError(t, report.Err())
	require.Zero(t, report.Gaps, "the observer missed nothing")
	r, seen := report.Rule(namespace, "web")
	require.True(t, seen)
	require.Positive(t, r.MaxOut, "the operation took Pods out of service, and the observer saw it")
	require.LessOrEqual(t, r.MaxOut, most)
}

// requireFrugal checks what the API server counted since a moment against what
// operating on so many Pods may cost, and returns the conflicts: they are chance,
// and their share can be judged over many Pods only.
func (w *world) requireFrugal(t *testing.T, namespace string, since time.Time, pods int) (conflicts int) {
	t.Helper()
	sum, requests := w.logWrites(t, namespace, since, pods)
	perPod := float64(sum.Total()) / float64(pods)
	assert.Positive(t, sum.Writes, "the audit log was read")
	assert.LessOrEqual(t, perPod, maxWritesPerPod, "Pod writes per operated Pod")
	assert.Zero(t, sum.NoOps, "writes that change nothing")
	assert.Zero(t, sum.Refused, "refused writes: %v", refused(requests))
	return sum.Conflicts
}

// logWrites logs and returns what the API server counted in the namespace since a moment.
func (w *world) logWrites(t *testing.T, namespace string, since time.Time, pods int) (suite.Counts, []suite.Request) {
	t.Helper()
	requests, err := w.Requests(since)
	require.NoError(t, err)
	requests = slices.DeleteFunc(requests, func(r suite.Request) bool { return r.Namespace != namespace })
	counts := suite.PodWrites(requests)
	sum := suite.Sum(counts)
	perPod := float64(sum.Total()) / float64(pods)
	t.Logf("%.1f Pod writes per Pod (%d for %d Pods), %d conflicts, %d no-ops", perPod, sum.Total(), pods,
		sum.Conflicts, sum.NoOps)
	for _, component := range suite.Components() {
		if c := counts[component]; c.Total() > 0 {
			t.Logf("  %-30s %4.1f per Pod %v", component, float64(c.Total())/float64(pods), c.Kinds)
		}
	}
	return sum, requests
}

func refused(requests []suite.Request) []string {
	var all []string
	for _, r := range requests {
		if r.Write() && r.Component() != "" && !r.OK() && r.Code != 409 {
			all = append(all, r.String())
		}
	}
	return all
}

// requireFewEvents checks that no Pod has more events than operations.
func (w *world) requireFewEvents(t *testing.T, namespace string, operations int) {
	t.Helper()
	events, err := w.PodEvents(t.Context(), namespace)
	require.NoError(t, err)
	pods := w.pods(t, namespace, "web")
	for i := range pods {
		total := 0
		for _, e := range events[pods[i].UID] {
			total += e.Times
		}
		assert.LessOrEqual(t, total, operations, "events of Pod %s: %+v", pods[i].Name, events[pods[i].UID])
	}
}
