// Package metric is how a component says what it measures: as data, of which the collectors, the reference page and the
// checks of dashboards and alerts are made. Nothing that is called kuperator_* is published without being declared.
//
// Rules that Check holds every declaration to: names as Prometheus recommends them (_total for counters and for
// nothing else, base units, seconds and bytes spelled out), a help text and a unit, and for each label what bounds
// its values. No metric has a label with names of Pods. Series of single objects (CollaSets, PodTransitionRules,
// namespaces) exist only for objects that exist, and for no more than Limit of each kind (see Bounded).
package metric

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Kind is the type of a metric.
type Kind string

const (
	// Counter only grows, until its process ends.
	Counter Kind = "counter"
	// Gauge goes up and down.
	Gauge Kind = "gauge"
	// Histogram counts observations by size.
	Histogram Kind = "histogram"
)

// Stability says what a user may build on.
type Stability string

const (
	// Stable keeps name, type, labels and meaning within a major version.
	Stable Stability = "stable"
	// Alpha may change with any version; the release notes say how.
	Alpha Stability = "alpha"
)

// Label is a dimension of a metric.
type Label struct {
	Name string
	// Values says what values there are. A few are listed, separated by commas; otherwise it says what bounds them.
	Values string
}

// Metric declares a metric.
type Metric struct {
	Name string
	Kind Kind
	// Unit is what a value counts or measures: "seconds", "Pods". Counters count it.
	Unit string
	Help string
	// Labels are in the order in which values are given.
	Labels []Label
	// Buckets are the upper bounds of a histogram's buckets, in Unit.
	Buckets []float64
	// PerObject is true if there is a series for each object of a kind, bounded by Limit.
	PerObject bool
	// Stability is Stable if it is empty.
	Stability Stability
}

// Desc is what client_golang calls a metric.
func (m Metric) Desc() *prometheus.Desc {
	return prometheus.NewDesc(m.Name, m.Help, m.labelNames(), nil)
}

// CounterVec makes the collector of a counter. The caller publishes the series that queries need from the start.
func (m Metric) CounterVec() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.labelNames())
}

// GaugeVec makes the collector of a gauge.
func (m Metric) GaugeVec() *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: m.Name, Help: m.Help}, m.labelNames())
}

// HistogramVec makes the collector of a histogram.
func (m Metric) HistogramVec() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: m.Buckets},
		m.labelNames())
}

func (m Metric) labelNames() []string {
	names := make([]string, len(m.Labels))
	for i, l := range m.Labels {
		names[i] = l.Name
	}
	return names
}

// HasLabel reports whether the metric has a label of that name.
func (m Metric) HasLabel(name string) bool { return slices.Contains(m.labelNames(), name) }

// Prefix is what the names of all metrics of the suite begin with.
const Prefix = "kuperator_"

var (
	name = regexp.MustCompile(`^` + Prefix + `[a-z0-9]+(_[a-z0-9]+)*$`)
	// notBase are units that Prometheus asks to express in base units.
	notBase = regexp.MustCompile(
		`_(milliseconds|ms|microseconds|nanoseconds|minutes|hours|days|kilobytes|megabytes|percent)(_|$)`)
	// reserved are labels that Prometheus or the scrape sets, and one that would have no bound.
	reserved = []string{"job", "instance", "pod", "pod_name", "container", "le", "quantile"}
)

// Check says what is wrong with the declaration, nil if nothing is.
func (m Metric) Check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(m.Name+": "+format, args...)) }
	if !name.MatchString(m.Name) {
		wrong("the name is not %s", name)
	}
	if notBase.MatchString(m.Name) {
		wrong("use base units: seconds, bytes, ratio")
	}
	if total := strings.HasSuffix(m.Name, "_total"); total != (m.Kind == Counter) {
		wrong("_total belongs to counters and to nothing else")
	}
	if strings.Contains(m.Name, "_seconds") && m.Unit != "seconds" {
		wrong("the unit of _seconds is seconds, not %q", m.Unit)
	}
	if m.Unit == "seconds" && !strings.Contains(m.Name, "_seconds") {
		wrong("the name does not say seconds")
	}
	if m.Unit == "" || m.Help == "" || !strings.HasSuffix(m.Help, ".") {
		wrong("unit and help are needed, help as sentences")
	}
	if (m.Kind == Histogram) != (len(m.Buckets) > 0) || !slices.IsSorted(m.Buckets) {
		wrong("a histogram has ascending buckets, and nothing else has")
	}
	for _, l := range m.Labels {
		if l.Name == "" || l.Values == "" || slices.Contains(reserved, l.Name) {
			wrong("label %q needs a name that is not reserved and what bounds its values", l.Name)
		}
	}
	if m.HasLabel("namespace") != m.PerObject {
		wrong("series of single objects, and they alone, are told apart by namespace")
	}
	return errors.Join(errs...)
}

// Register adds collectors; one that is registered already is no error, because two components of a test share a
// process.
func Register(registry prometheus.Registerer, collectors ...prometheus.Collector) error {
	for _, c := range collectors {
		if err := registry.Register(c); err != nil && !errors.As(err, &prometheus.AlreadyRegisteredError{}) {
			return fmt.Errorf("registering a metric: %w", err)
		}
	}
	return nil
}
