package collaset

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/freshness"
)

// The API server has the Pods a at 10 and b at 20, listed at 30.
func TestAnOldViewIsTold(t *testing.T) {
	pod := func(uid types.UID, version, app string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, ResourceVersion: version,
			Labels: map[string]string{"app": app}}}
	}
	a, b := pod("a", "10", "web"), pod("b", "20", "web")
	context := func(version string) *appsv1alpha1.ResourceContext {
		return &appsv1alpha1.ResourceContext{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}
	}
	for name, tc := range map[string]struct {
		pods    []*corev1.Pod
		entries string // "" for none
		context *appsv1alpha1.ResourceContext
		old     bool
	}{
		"entries as they are":               {pods: []*corev1.Pod{a, b}, entries: "25", context: context("25")},
		"newer entries":                     {pods: []*corev1.Pod{a, b}, entries: "25", context: context("31")},
		"older entries":                     {pods: []*corev1.Pod{a, b}, entries: "25", context: context("24"), old: true},
		"entries are missing":               {pods: []*corev1.Pod{a, b}, entries: "25", old: true},
		"entries are gone":                  {pods: []*corev1.Pod{a, b}, context: context("25"), old: true},
		"entries came since":                {pods: []*corev1.Pod{a, b}, context: context("31")},
		"as it is":                          {pods: []*corev1.Pod{a, b}},
		"newer":                             {pods: []*corev1.Pod{a, pod("b", "31", "web"), pod("c", "32", "web")}},
		"a Pod is missing":                  {pods: []*corev1.Pod{a}, old: true},
		"a Pod is older":                    {pods: []*corev1.Pod{a, pod("b", "19", "web")}, old: true},
		"a Pod is gone":                     {pods: []*corev1.Pod{a, b, pod("c", "15", "web")}, old: true},
		"a Pod has no labels to list it by": {pods: []*corev1.Pod{a, b, pod("c", "15", "other")}},
	} {
		t.Run(name, func(t *testing.T) {
			base := &baseline{generation: 1, entries: tc.entries, labels: labels.SelectorFromSet(labels.Set{"app": "web"}),
				pods: freshness.Baseline{Listed: "30", Versions: map[types.UID]string{"a": "10", "b": "20"}}}
			o := &observation{set: collaSet(2), context: tc.context}
			for _, p := range tc.pods {
				o.snapshot.Pods = append(o.snapshot.Pods, podOf(p, labels.Everything()))
			}
			assert.Equal(t, !tc.old, o.shows(base))
		})
	}
}

// A process that has just started writes no status either on a view of the past: it would be refused as long as that
// lasts.
func TestAViewOfThePastWritesNoStatus(t *testing.T) {
	w := newWorld(t, true, collaSet(2))
	w.settle()
	set := w.set()
	set.Status.ReadyReplicas = 0
	require.NoError(t, w.store.Status().Update(t.Context(), set))
	w.see()
	pod := w.pods()[0]
	pod.Annotations = map[string]string{"changed": "since"}
	require.NoError(t, w.store.Update(t.Context(), &pod))
	w.r.memory, w.r.writes = &stateCache{}, freshness.New(w.cache, w.clock)
	for range 5 {
		result, err := w.reconcile()
		require.NoError(t, err)
		assert.Positive(t, result.RequeueAfter)
		assert.Empty(t, w.written)
	}
	w.see()
	w.clock.Step(2 * freshness.ReadAgain)
	_, err := w.reconcile()
	require.NoError(t, err)
	assert.Equal(t, []string{"patch CollaSet/status"}, w.written)
}

// Of two CollaSets of one ResourceContext, the one that does not see yet what the other wrote does not write.
func TestAPoolIsWrittenOnTheNewestOnly(t *testing.T) {
	other := pooled("other", key.Name)
	other.UID = "other"
	w := newWorld(t, true, collaSet(2), other)
	w.settle()
	w.change(replicas(3))
	_, err := w.r.Reconcile(t.Context(), request("other"))
	require.NoError(t, err)
	require.Equal(t, 1, w.count("update ResourceContext"))
	result, err := w.reconcile()
	looksAgain(t, result, err)
	assert.Equal(t, 1, w.count("update ResourceContext"), "the second would be refused: %v", w.written)
	for range 3 {
		w.settle()
		_, err := w.r.Reconcile(t.Context(), request("other"))
		require.NoError(t, err)
	}
	assert.Len(t, w.entries(), 5)
}

// What is remembered of a pool ends with it, and not with a CollaSet of its name.
func TestAPoolIsForgottenWhenItIsDeleted(t *testing.T) {
	set := collaSet(1)
	set.Spec.ScaleStrategy.Context = "pool"
	pool := types.NamespacedName{Namespace: key.Namespace, Name: "pool"}
	w := newWorld(t, false, set)
	w.settle()
	_, err := w.r.Reconcile(t.Context(), request("pool")) // there is no such CollaSet
	require.NoError(t, err)
	require.Contains(t, w.r.pools.all, pool)
	require.NoError(t, w.store.Delete(t.Context(), w.set()))
	w.settle()
	require.True(t, apierrors.IsNotFound(w.store.Get(t.Context(), pool, &appsv1alpha1.ResourceContext{})))
	require.Empty(t, w.r.pools.all)
}

// After a restoration of etcd the ResourceContext has an older version than that which was written before, and is
// what there is.
func TestAPoolThatWasSetBackIsWritten(t *testing.T) {
	now := &appsv1alpha1.ResourceContext{ObjectMeta: metav1.ObjectMeta{Name: "pool", ResourceVersion: "5"}}
	newest, asked, wrote := "5", 0, 0
	p := &pool{version: "9"}
	write := func() error {
		return p.write(now, func() (string, error) { asked++; return newest, nil },
			func() (*appsv1alpha1.ResourceContext, error) {
				wrote++
				now = now.DeepCopy()
				now.ResourceVersion = "6"
				return now, nil
			})
	}
	require.NoError(t, write())
	require.NoError(t, write())
	assert.Equal(t, [2]int{1, 2}, [2]int{asked, wrote}, "it is asked once")

	p.version, newest = "9", "8"
	require.True(t, apierrors.IsConflict(write()), "the cache is behind")
	assert.Equal(t, 2, wrote)
}

func request(name string) (r ctrl.Request) {
	r.NamespacedName = client.ObjectKey{Namespace: key.Namespace, Name: name}
	return r
}
