package metric

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Limit is how many objects of a kind have series of their own, so that a cluster of any size costs a Prometheus no
// more than a known number of series. Totals count all objects.
const Limit = 1000

// LeftOut declares how many objects have no series of their own.
var LeftOut = Metric{
	Name: "kuperator_metrics_objects_left_out", Kind: Gauge, Unit: "objects",
	Help:   "Objects without series of their own, because there are more than 1000 of their kind. Totals include them.",
	Labels: []Label{{Name: "kind", Values: "CollaSet, PodTransitionRule, Namespace"}},
}

// LeftOutDesc is for collectors that use Bounded.
var LeftOutDesc = LeftOut.Desc()

// Bounded sorts the objects of a kind by compare and keeps the first Limit of them; how many it left out is sent with
// the scrape. Which ones are kept does not depend on the order they came in.
func Bounded[T any](out chan<- prometheus.Metric, kind string, objects []T, compare func(a, b T) int) []T {
	slices.SortFunc(objects, compare)
	kept := objects[:min(len(objects), Limit)]
	Send(out, LeftOutDesc, len(objects)-len(kept), kind)
	return kept
}

// ByName orders objects by namespace and name.
func ByName[T interface {
	GetNamespace() string
	GetName() string
}](a, b T) int {
	return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}
