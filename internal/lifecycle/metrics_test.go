package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/freeze"
	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/testkit/gathered"
)

func TestOperationsAreCounted(t *testing.T) {
	phaseAges.Reset()
	pod := beginning()
	pod.Finalizers = []string{protection}
	r, _ := newReconciler(t, &mapperFor{err: errNoRules}, interceptor.Funcs{}, pod)
	for range 2 {
		_, err := reconcilePod(t, r)
		require.NoError(t, err)
	}
	r.step(10 * time.Minute)
	_, err := reconcilePod(t, r)
	require.NoError(t, err)
	assert.Equal(t, []string{
		"kuperator_lifecycle_namespace_oldest_phase_seconds{namespace=default,phase=Preparing} 600",
		"kuperator_lifecycle_namespace_operations{namespace=default,phase=Preparing} 1",
		"kuperator_lifecycle_oldest_phase_seconds{phase=Preparing} 600",
		"kuperator_lifecycle_operations{phase=Preparing} 1",
		"kuperator_lifecycle_overdue_operations{phase=Preparing,policy=Wait,type=restart} 1",
		"kuperator_lifecycle_waiting_operations{reason=WaitingForCooperatorToLeave} 1",
	}, nonzero(gathered.Lines(t, r.timers)))
	r.gone(key)
	assert.Empty(t, nonzero(gathered.Lines(t, r.timers)))
	assert.Len(t, gathered.Lines(t, r.timers), 2*len(phases)+len(podops.WaitReasons())+1,
		"queries find series while nothing happens, and how many are left out")
	assert.Contains(t, gathered.Lines(t, phaseAges),
		"kuperator_lifecycle_phase_age_seconds{phase=Preparing,type=restart} 600")
}

func nonzero(lines []string) []string {
	return slices.DeleteFunc(lines, func(line string) bool { return strings.HasSuffix(line, " 0") })
}

func TestMetricsAreSound(t *testing.T) {
	for _, m := range Metrics() {
		assert.NoError(t, m.Check())
	}
}

// TestSeriesOfNamespacesAreBounded has more namespaces with operations than there may be series of: the oldest count.
func TestSeriesOfNamespacesAreBounded(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Unix(1_700_000_000, 0))
	a := newPhaseTimers(clk)
	const extra = 5
	for i := range metric.Limit + extra {
		a.pods[types.NamespacedName{Namespace: fmt.Sprintf("ns-%04d", i),
			Name: "a"}] = &podAges{operations: map[string]*phaseAge{
			"x": {phase: podops.PhaseOperate, since: clk.Now().Add(-time.Duration(i) * time.Second)},
		}}
	}
	lines := gathered.Lines(t, a)
	own := slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return !strings.HasPrefix(line, namespaceOldestMetric.Name)
	})
	assert.Len(t, own, metric.Limit)
	assert.NotContains(t, strings.Join(own, "\n"), fmt.Sprintf("ns-%04d", extra-1), "the youngest are left out")
	assert.Contains(t, lines, fmt.Sprintf("kuperator_lifecycle_operations{phase=Operate} %d", metric.Limit+extra),
		"totals count all")
	assert.Contains(t, lines, fmt.Sprintf("%s{kind=Namespace} %d", metric.LeftOut.Name, extra))
}

func TestFreezesAreCounted(t *testing.T) {
	frozen := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a",
		Annotations: map[string]string{podops.FreezeAnnotation: "audit"}}}
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kuperator-system",
		Annotations: map[string]string{podops.FreezeClusterAnnotation: "audit"}}}
	elected := make(chan struct{})
	c := fake.NewClientBuilder().WithObjects(frozen, own,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "b"}}).Build()
	f := newFreezes(t.Context(), &freeze.Namespaces{Cached: c, Suite: own.Name}, elected)
	assert.Empty(t, gathered.Lines(t, f), "a standby does not count")
	close(elected)
	assert.Equal(t, []string{"kuperator_lifecycle_cluster_frozen{} 1", "kuperator_lifecycle_frozen_namespaces{} 1"},
		gathered.Lines(t, f))
}
