package metric_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"kusionstack.io/kuperator/internal/metric"
)

// TestObjectsOfTwoShards are counted, and left out, each by itself, and by none that is not elected.
func TestObjectsOfTwoShards(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	elected, standby := make(chan struct{}), make(chan struct{})
	close(elected)
	shard := func(name string, objects int, elected <-chan struct{}) {
		var all []client.Object
		for i := range objects {
			all = append(all, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: fmt.Sprint(i)}})
		}
		own := prometheus.WrapRegistererWith(prometheus.Labels{"shard": name}, registry)
		require.NoError(t, own.Register(&metric.Objects[*corev1.ConfigMapList]{
			Process: t.Context(), Cached: fake.NewClientBuilder().WithObjects(all...).Build(), Elected: elected,
			List: &corev1.ConfigMapList{}, Descs: []*prometheus.Desc{metric.LeftOutDesc},
			Publish: func(out chan<- prometheus.Metric, list *corev1.ConfigMapList) {
				kept := metric.Bounded(out, "ConfigMap", list.Items,
					func(a, b corev1.ConfigMap) int { return metric.ByName(&a, &b) })
				assert.Len(t, kept, min(objects, metric.Limit))
			},
		}))
	}
	shard("a", metric.Limit+3, elected)
	shard("b", 2, elected)
	shard("c", 2, standby)
	for range 2 { // a scrape leaves nothing behind
		families, err := registry.Gather()
		require.NoError(t, err)
		require.Len(t, families, 1)
		got := map[string]float64{}
		for _, m := range families[0].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "shard" {
					got[l.GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
		require.Equal(t, map[string]float64{"a": 3, "b": 0}, got)
	}
}
