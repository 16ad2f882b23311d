package collaset

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

func bySurge(most string) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) {
		s.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateReplace
		s.UpdateStrategy.MaxSurge = ptr.To(intstr.Parse(most))
	}
}

// replacingSet is a set at rest that updates by replacing, without the lifecycle.
func replacingSet(t *testing.T, n int32, most string) *world {
	t.Helper()
	set := collaSet(n)
	bySurge(most)(&set.Spec)
	w := newWorld(t, false, set)
	w.settle()
	require.Len(t, w.pods(), int(n))
	w.told()
	return w
}

// reasons are those of the events since the last time.
func (w *world) reasons() []string {
	w.Helper()
	var reasons []string
	for _, event := range w.told() {
		reasons = append(reasons, strings.Fields(event)[1])
	}
	return reasons
}

// rounds reconciles a few times with a cache that keeps up; Pods that are new since come up if they run the image.
func (w *world) rounds(image string) {
	w.Helper()
	for range 12 {
		w.see()
		_, err := w.reconcile()
		require.NoError(w, err)
		var up []string
		for _, p := range w.pods() {
			if p.Spec.Containers[0].Image == image {
				up = append(up, p.Name)
			}
		}
		if len(up) > 0 {
			w.serve(up...)
		}
		w.clock.Step(time.Second)
	}
	w.see()
}

func (w *world) images() []string {
	w.Helper()
	var out []string
	for _, p := range w.pods() {
		out = append(out, p.Spec.Containers[0].Image)
	}
	return out
}

func TestANewPodIsMadeForItsOrigin(t *testing.T) {
	w := replacingSet(t, 2, "1")
	w.change(image("nginx:2"))
	_, err := w.reconcile()
	require.NoError(t, err)
	pods := w.pods()
	require.Len(t, pods, 3)
	origin := pods[slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Labels[appsv1alpha1.ToReplaceLabel] != "" })]
	fresh := pods[2]
	assert.Equal(t, "2", origin.Labels[appsv1alpha1.ReplacePairNewIDLabel])
	assert.Equal(t, w.set().Status.UpdatedRevision, origin.Labels[appsv1alpha1.ReplacedByReplaceUpdateLabel])
	assert.Equal(t, origin.Name, fresh.Labels[appsv1alpha1.ReplacePairOriginNameLabel])
	assert.Contains(t, fresh.Labels, podops.CreatingLabel)
	assert.Equal(t, []string{"ReplacementBegun", "RolloutBegun"}, w.reasons(), "and not that the set was scaled")

	w.rounds("nginx:2")
	assert.Equal(t, []string{"nginx:2", "nginx:2"}, w.images())
	assert.ElementsMatch(t, []string{"ReplacementBegun", "ReplacementDone", "ReplacementDone", "Scaled", "Scaled",
		"RolloutComplete"}, w.reasons())
	for _, data := range w.entries() {
		assert.Len(t, data, 2, "%v", data)
	}
	assert.Len(t, w.entries(), 2)
}

func TestMaxSurge(t *testing.T) {
	for given, want := range map[string]int{"1": 1, "3": 3, "10%": 1, "30%": 3, "21%": 3, "": 3} {
		t.Run(given, func(t *testing.T) {
			w := replacingSet(t, 10, "1")
			w.change(func(s *appsv1alpha1.CollaSetSpec) {
				image("nginx:2")(s)
				if bySurge(given)(s); given == "" {
					s.UpdateStrategy.MaxSurge = nil
				}
			})
			w.rounds("")
			assert.Len(t, w.pods(), 10+want)
		})
	}
}

// TestAReplacementSurvivesEveryRefusedWrite refuses each kind of write for some time. There is never a second new Pod.
func TestAReplacementSurvivesEveryRefusedWrite(t *testing.T) {
	for _, what := range []string{"update ResourceContext", "create Pod", "patch Pod", "delete Pod",
		"patch CollaSet/status"} {
		for name, answer := range map[string]error{"fails": errAway, "conflicts": errConflict} {
			t.Run(what+" "+name, func(t *testing.T) {
				w := replacingSet(t, 2, "2")
				w.change(image("nginx:2"))
				w.refuse = refusing(what, answer)
				for range 8 {
					w.see()
					_, err := w.reconcile()
					if err != nil {
						require.ErrorIs(t, err, answer)
					}
					w.serve()
					w.clock.Step(time.Second)
					require.LessOrEqual(t, len(w.pods()), 4)
					if what == "update ResourceContext" {
						require.Len(t, w.pods(), 2, "entries come first")
					}
				}
				w.forget()
				w.rounds("nginx:2")
				assert.Equal(t, []string{"nginx:2", "nginx:2"}, w.images())
				for _, p := range w.pods() {
					assert.NotContains(t, p.Labels, appsv1alpha1.ReplacePairOriginNameLabel)
				}
			})
		}
	}
}

// TestHalfDoneReplacementsAreTakenOver has two pairs as Kuperator v0.7.4 leaves them, whose new Pods cannot start,
// and more of them than maxSurge allows.
func TestHalfDoneReplacementsAreTakenOver(t *testing.T) {
	w := replacingSet(t, 2, "2")
	w.change(image("nginx:non-exist"))
	w.rounds("nginx:1")
	require.Equal(t, []string{"nginx:1", "nginx:1", "nginx:non-exist", "nginx:non-exist"}, w.images())

	rc := &appsv1alpha1.ResourceContext{}
	require.NoError(t, w.store.Get(t.Context(), key, rc))
	for i := range rc.Spec.Contexts {
		data := maps.Clone(rc.Spec.Contexts[i].Data)
		delete(data, appsv1alpha1.ContextPodJustCreate)
		if _, isNew := data[appsv1alpha1.ContextReplaceOriginPodID]; !isNew {
			data[appsv1alpha1.ContextPodDecorationRevisions] = "[]"
		}
		rc.Spec.Contexts[i].Data = data
	}
	require.NoError(t, w.store.Update(t.Context(), rc))
	for _, pod := range w.pods()[:2] {
		pod.Labels[appsv1alpha1.ToReplaceLabel] = "1795233719860911244"
		require.NoError(t, w.store.Update(t.Context(), &pod))
	}
	w.change(func(s *appsv1alpha1.CollaSetSpec) { s.UpdateStrategy.MaxSurge = nil })
	w.r.memory = &stateCache{}
	w.forget()
	w.told()
	w.rounds("nginx:1")
	assert.Empty(t, slices.DeleteFunc(w.written, func(what string) bool { return what == "patch CollaSet/status" }),
		"nothing moves")
	assert.Empty(t, w.told())

	w.change(image("nginx:3"))
	w.rounds("nginx:3")
	assert.Equal(t, []string{"nginx:3", "nginx:3"}, w.images())
	assert.Equal(t, 4, w.count("delete Pod"), "two new Pods that could not start, two origins")
}

func TestARelabelOfAPodThatIsGoneIsNoFailure(t *testing.T) {
	w := replacingSet(t, 1, "1")
	w.change(image("nginx:2"))
	w.refuse = refusing("patch Pod", errNotFound)
	_, err := w.reconcile()
	require.NoError(t, err)
}
