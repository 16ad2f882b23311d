package bench

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// BenchmarkManagedFields updates CollaSets in place twice, by a collaset-controller that leaves managedFields of Pods
// alone and by one that clears them, one after the other, in rounds. It fails if a Pod's are not what they should be,
// never on time.
func BenchmarkManagedFields(b *testing.B) {
	sizes, rounds := numbers(b, "BENCH_SIZES", "500"), numbers(b, "BENCH_ROUNDS", "2")
	a := newArenaOf(b, suite.Config{}, fakekubelet.Options{})
	for _, pods := range sizes {
		for round := range rounds[0] {
			r := a.newRace(pods, round)
			r.observed(func() {
				r.patches()
				r.updates("kept", "--clear-pod-managed-fields=false")
				r.updates("cleared", "--clear-pod-managed-fields=true")
			})
			ratio := func(name, of, to string, what func(spent) float64) {
				r.result(benchresult.Figure{Name: name, Unit: "×", Params: r.of,
					Values: []float64{what(r.times[of]) / what(r.times[to])}})
			}
			took := func(s spent) float64 { return s.took.Seconds() }
			for _, update := range []string{"first", "second"} {
				kept := kuperator + "/" + update + " update, managedFields kept"
				cleared := kuperator + "/" + update + " update, managedFields cleared"
				ratio(update+" update, time with managedFields cleared / kept", cleared, kept, took)
				ratio(update+" update, API server's CPU with managedFields cleared / kept", cleared, kept,
					func(s spent) float64 { return s.cpu[apiServer] })
				ratio(update+" update, bytes to etcd with managedFields cleared / kept", cleared, kept,
					func(s spent) float64 { return s.stored })
				ratio(update+" update, time with managedFields cleared / bare image patches", cleared,
					barePatches+"/in place", took)
			}
		}
	}
	require.NoError(b, a.suite.Died())
}

// restartCollaSets restarts collaset-controller, with a flag.
func (r *race) restartCollaSets(flag string) {
	// One that is asked to end gives its Lease back; else the next would wait for it.
	require.NoError(r, r.suite.StopComponent(suite.CollaSet))
	require.NoError(r, r.suite.Restart(r.Context(), suite.CollaSet, append(patient(nil)[suite.CollaSet], flag)...))
	require.NoError(r, r.suite.WaitLeading(r.Context(), suite.CollaSet))
}

// updates are two of one CollaSet in place.
func (r *race) updates(fields, flag string) {
	r.restartCollaSets(flag)
	namespace := r.namespaceOf(fields)
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	defer m.close()
	set := r.createSet(namespace, "web", r.pods)
	r.settled(m, set, r.pods)
	for i, update := range []string{"first", "second"} {
		image := fmt.Sprintf("app:v%d", i+2)
		r.leg(m, namespace, kuperator, update+" update, managedFields "+fields, serving(image), func() {
			r.merge(set, updatePatch(appsv1alpha1.PodUpdateInPlaceOnly, image))
		})
		r.settled(m, set, r.pods)
	}
	list, err := r.arena.pods.CoreV1().Pods(namespace).List(r.Context(), metav1.ListOptions{})
	require.NoError(r, err)
	for i := range list.Items {
		var all string
		for _, entry := range list.Items[i].ManagedFields {
			all += entry.FieldsV1.GetRawString()
		}
		require.Equal(r, fields != "cleared", len(list.Items[i].ManagedFields) > 0, "Pod %s has managedFields",
			list.Items[i].Name)
		require.Equal(r, fields == "kept", strings.Contains(all, "f:terminationMessagePath"),
			"Pod %s has those of its creation: %s", list.Items[i].Name, all)
	}
	r.merge(set, `{"spec":{"replicas":0}}`)
	r.until("no Pod is left", func() bool { return m.seen() == 0 })
}
