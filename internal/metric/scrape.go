package metric

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Objects is a collector of what objects say at the time of the scrape, from the cache: one that is gone has no
// series. A standby says nothing, or everything would be counted twice.
type Objects[L client.ObjectList] struct {
	// Process is the context of the process.
	Process context.Context //nolint:containedctx // a scrape brings none
	Cached  client.Reader
	Elected <-chan struct{}
	// List is an empty list of the kind.
	List L
	// Descs are those of all that Publish sends.
	Descs []*prometheus.Desc
	// Publish sends what the objects say. They are the cache's own and must not be changed.
	Publish func(out chan<- prometheus.Metric, all L)
}

// Describe is part of prometheus.Collector.
func (o *Objects[L]) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range o.Descs {
		out <- desc
	}
}

// Collect is part of prometheus.Collector.
func (o *Objects[L]) Collect(out chan<- prometheus.Metric) {
	select {
	case <-o.Elected:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(o.Process, time.Second)
	defer cancel()
	all := o.List.DeepCopyObject().(L)
	if err := o.Cached.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return // the cache is being filled
	}
	o.Publish(out, all)
}

// Send sends one value of a scrape.
func Send[N int | int32 | float64](out chan<- prometheus.Metric, desc *prometheus.Desc, value N, labels ...string) {
	out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
}
