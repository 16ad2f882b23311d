package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// gathered renders what a collector counts, one line a series.
func gathered(t *testing.T, c prometheus.Collector) (lines []string) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetGauge().GetValue()
			if h := m.GetHistogram(); h != nil {
				value = h.GetSampleSum()
			}
			lines = append(lines, fmt.Sprintf("%s{%s} %v", family.GetName(), strings.Join(labels, ","), value))
		}
	}
	slices.Sort(lines)
	return lines
}

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
		"kuperator_lifecycle_oldest_phase_seconds{phase=Preparing} 600",
		"kuperator_lifecycle_operations{phase=Preparing} 1",
		"kuperator_lifecycle_overdue_operations{phase=Preparing,policy=Wait,type=restart} 1",
	}, gathered(t, r.ages))
	r.gone(key)
	assert.Empty(t, gathered(t, r.ages))
	assert.Contains(t, gathered(t, phaseAges), "kuperator_lifecycle_phase_age_seconds{phase=Preparing,type=restart} 600")
}
