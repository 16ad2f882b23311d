package builtin

import (
	"slices"

	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/bulk"
	"kusionstack.io/kuperator/internal/resourceconsist/haproxy"
)

// Metrics are what resourceconsist-controller publishes beside what every component does, with all of its adapters.
func Metrics() []metric.Metric {
	return slices.Concat(resourceconsist.Metrics(), bulk.Metrics(), haproxy.Metrics())
}
