package metric

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// RegistryOf is where collectors go that tell of the objects of one manager: the process's registry, or the manager's
// own where a process has several managers, each with other objects.
func RegistryOf(mgr any) prometheus.Registerer {
	if own, ok := mgr.(interface{ Registry() prometheus.Registerer }); ok {
		return own.Registry()
	}
	return metrics.Registry
}
