package shard

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/shard/placement"
)

var (
	shardLabel = metric.Label{Name: "shard", Values: "0 to --shards minus 1"}
	heldMetric = metric.Metric{
		Name: "kuperator_shard_held", Kind: metric.Gauge, Unit: "1 or 0", Labels: []metric.Label{shardLabel},
		Stability: metric.Alpha,
		Help: "1 for each shard that this replica holds. The sum over replicas is 1 for each shard, " +
			"except while a shard is handed over. Absent unless --shards is above 1.",
	}
	membersMetric = metric.Metric{
		Name: "kuperator_shard_members", Kind: metric.Gauge, Unit: "replicas", Stability: metric.Alpha,
		Help: "Number of replicas that share the shards, as observed by this replica. Absent unless --shards is above 1.",
	}
	movesMetric = metric.Metric{
		Name: "kuperator_shard_moves_total", Kind: metric.Counter, Unit: "shards", Stability: metric.Alpha,
		Help: "Shards that this replica acquired or released.",
		Labels: []metric.Label{{Name: "move",
			Values: "gained, gave_up, lost (its Lease was not renewed in time, and the process ends)"}},
	}

	heldDesc, membersDesc = heldMetric.Desc(), membersMetric.Desc()
	moves                 = movesMetric.CounterVec()
)

const (
	gained = "gained"
	gaveUp = "gave_up"
	lost   = "lost"
)

// Metrics are what a sharded component publishes besides.
func Metrics() []metric.Metric {
	return []metric.Metric{heldMetric, membersMetric, movesMetric}
}

// Register publishes them.
func (c *Coordinator) Register(registry prometheus.Registerer) error {
	for _, move := range []string{gained, gaveUp, lost} {
		moves.WithLabelValues(move)
	}
	return metric.Register(registry, c, moves)
}

// Describe is part of prometheus.Collector.
func (c *Coordinator) Describe(out chan<- *prometheus.Desc) {
	out <- heldDesc
	out <- membersDesc
}

// Collect is part of prometheus.Collector.
func (c *Coordinator) Collect(out chan<- prometheus.Metric) {
	metric.Send(out, membersDesc, len(c.view.membersOf(c.Shards)))
	c.mu.Lock()
	defer c.mu.Unlock()
	for shard, h := range c.shards {
		value := 0
		if h.stage == placement.Held {
			value = 1
		}
		metric.Send(out, heldDesc, value, strconv.Itoa(shard))
	}
}
