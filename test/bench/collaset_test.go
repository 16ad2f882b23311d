package bench

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/observer"
	"kusionstack.io/kuperator/internal/suite"
)

// mostAboveLeast is how many writes to Pods the suite may make for each that must be made.
const mostAboveLeast = 1.10

// effect is something that a user asks of a CollaSet with all its Pods.
type effect struct {
	name string
	// bare are the writes to Pods that a client needs for it, for each Pod, with no lifecycle; least those that the lifecycle
	// needs, which are steps.
	bare, least int
	steps       string
	// patch is what the user writes. For the first effect there is nothing to patch: the CollaSet is created.
	patch string
	image string // that all Pods have in the end, "" for no Pods
}

// effects are carried out one after the other.
func effects() []effect {
	update := func(policy appsv1alpha1.PodUpdatePolicy, image string) string {
		return fmt.Sprintf(`{"spec":{"updateStrategy":{"podUpgradePolicy":%q},"template":{"spec":{"containers":[{"name":"app","image":%q}]}}}}`, policy, image)
	}
	return []effect{
		{
			name: "create", bare: 1, least: 3, steps: "create, gate on, available", image: oldImage,
		},
		{
			name: "in place", bare: 1, least: 6, steps: "begin, gate off, image, finish, gate on, available",
			patch: update(appsv1alpha1.PodUpdateInPlaceOnly, "app:v2"), image: "app:v2",
		},
		{
			name: "recreate", bare: 2, least: 6, steps: "begin, gate off, delete; create, gate on, available",
			patch: update(appsv1alpha1.PodUpdateRecreate, "app:v3"), image: "app:v3",
		},
		{
			name: "replace", bare: 2, least: 8, steps: "label; create, gate on, available; mark, gate off, delete; unlabel",
			patch: update(appsv1alpha1.PodUpdateReplace, "app:v4"), image: "app:v4",
		},
		{
			name: "scale in", bare: 1, least: 3, steps: "begin, gate off, delete",
			patch: `{"spec":{"replicas":0}}`,
		},
	}
}

// BenchmarkCollaSet prints what it costs to do something with all Pods of a CollaSet, in writes to the API server, beside
// the least that does it. It fails when the suite makes more writes to Pods than that, never on time.
func BenchmarkCollaSet(b *testing.B) {
	a := newArena(b, nil)
	fmt.Fprintf(os.Stdout, "\nload of the machine at the start: %s\n", load())
	for _, pods := range numbers(b, "BENCH_SIZES", "1000") {
		fmt.Fprintf(os.Stdout, "\n%s", a.effects(pods))
	}
	fmt.Fprintf(os.Stdout, "\nload at the end: %s\n\n", load())
	require.NoError(b, a.suite.Died())
}

// effects has so many Pods created, changed and removed.
func (a arena) effects(pods int) string {
	var text, kinds strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "What is done to %d Pods of a CollaSet, in writes for each:\n", pods)
	fmt.Fprintln(w, "effect\tto Pods\tleast\tratio\tbare client\tto other objects\trefused, conflicts\tPods/s\tthe least are")
	namespace := a.namespace(fmt.Sprintf("effects-%d", pods))
	m := newMeter(a.B, a.pods, namespace, nil)
	defer m.close()
	var set *appsv1alpha1.CollaSet
	for _, e := range effects() {
		begin := time.Now()
		set = a.carryOut(m, e, set, namespace, pods)
		took := time.Since(begin)
		requests, err := a.suite.Requests(begin)
		require.NoError(a, err)
		requests = slices.DeleteFunc(requests, func(r suite.Request) bool { return r.Namespace != namespace })
		toPods, all := suite.Sum(suite.PodWrites(requests)), suite.Sum(suite.Writes(requests))
		n := float64(pods)
		ratio := float64(toPods.Writes) / n / float64(e.least)
		fmt.Fprintf(w, "%s\t%.2f\t%d\t%.2f\t%d\t%.2f\t%.3f\t%.1f\t%s\n", e.name, float64(toPods.Writes)/n, e.least, ratio, e.bare,
			float64(all.Writes-toPods.Writes)/n, float64(all.Refused+all.Conflicts)/n, n/took.Seconds(), e.steps)
		fmt.Fprintf(&kinds, "%s: %s\n", e.name, perPod(all.Kinds, pods))
		a.ReportMetric(float64(toPods.Writes)/n, fmt.Sprintf("writes/Pod-%s-%d", strings.ReplaceAll(e.name, " ", "-"), pods))
		if ratio > mostAboveLeast {
			a.Errorf("%s takes %.2f writes to each Pod, and could do with %d", e.name, float64(toPods.Writes)/n, e.least)
		}
	}
	require.NoError(a, w.Flush())
	return text.String() + "Writes by kind, whatever their answer, for each Pod:\n" + kinds.String()
}

// carryOut has one effect under the eyes of the observer, and returns when nothing of it is left to do.
func (a arena) carryOut(m *meter, e effect, set *appsv1alpha1.CollaSet, namespace string, pods int) *appsv1alpha1.CollaSet {
	if set == nil {
		set = a.collaSet(m, namespace, pods)
		a.settled(m, set, pods)
		return set
	}
	watcher, err := observer.Start(a.Context(), a.suite.RESTConfig(), observer.Options{})
	require.NoError(a, err)
	m.lap(serving(e.image))
	require.NoError(a, a.Patch(a.Context(), set, client.RawPatch(types.MergePatchType, []byte(e.patch))))
	if e.image == "" {
		pods = 0 // none
	}
	require.Equal(a, pods, m.wait(a.Context(), pods, patience), "%s: Pods serve %s", e.name, e.image)
	a.settled(m, set, pods)
	watcher.Settled(a.Context())
	report, err := watcher.Stop()
	require.NoError(a, err)
	require.NoError(a, report.Err(), "%s broke a promise", e.name)
	return set
}

// settled waits until the CollaSet says that it has just these Pods, and there are no others.
func (a arena) settled(m *meter, set *appsv1alpha1.CollaSet, pods int) {
	bench := bench{a.B, a.Client, a.suite}
	bench.until("the CollaSet is at its goal", func() bool {
		if a.Get(a.Context(), client.ObjectKeyFromObject(set), set) != nil {
			return false
		}
		s := &set.Status
		return s.ObservedGeneration == set.Generation && s.Replicas == int32(pods) && s.UpdatedAvailableReplicas == int32(pods) && m.seen() == pods
	})
}

// seen is the number of Pods that there are.
func (m *meter) seen() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.pods)
}

// perPod are counts by kind, the largest first.
func perPod(kinds map[string]int, pods int) string {
	names := slices.SortedFunc(maps.Keys(kinds), func(x, y string) int {
		return cmp.Or(cmp.Compare(kinds[y], kinds[x]), strings.Compare(x, y))
	})
	parts := make([]string, 0, len(names))
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %.3f", name, float64(kinds[name])/float64(pods)))
	}
	return strings.Join(parts, ", ")
}
