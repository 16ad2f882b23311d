package benchresult

import (
	"fmt"
	"strconv"
)

// Bound says on which side of its value a goal lies.
type Bound string

const (
	// AtMost is met by figures up to the value.
	AtMost Bound = "<="
	// AtLeast is met by figures from the value up.
	AtLeast Bound = ">="
)

// Goal is a bound on one figure. A goal with several figures (P3 has one for each set of rules and adapters) has
// several entries with one ID.
type Goal struct {
	// ID is "P1" to "P26", or "S1" and so on for goals about service.
	ID string
	// Figure tells the goals of one ID apart.
	Figure string
	Bound  Bound
	Value  float64
	Unit   string
	// Asks are the parameters that a figure must have at least, such as the number of Pods, to be an answer. Nil asks
	// for nothing.
	Asks map[string]float64
}

func (g Goal) String() string {
	return fmt.Sprintf("%s %s", g.Bound, strconv.FormatFloat(g.Value, 'g', 6, 64))
}

// Met reports whether a figure meets the goal.
func (g Goal) Met(value float64) bool {
	if g.Bound == AtLeast {
		return value >= g.Value
	}
	return value <= g.Value
}

// shortOf are the parameters that a goal asks for where a figure has less of one, or none; nil if it has enough.
// What was measured may be off by a hundredth: a rate never is exact.
func (g Goal) shortOf(params map[string]float64) map[string]float64 {
	for name, least := range g.Asks {
		if params[name] < least*0.99 {
			return g.Asks
		}
	}
	return nil
}

// Sizes that goals ask for.
var (
	pods500     = map[string]float64{"pods": 500}
	pods1000    = map[string]float64{"pods": 1000}
	pods4000    = map[string]float64{"pods": 4000}
	pods5000    = map[string]float64{"pods": 5000}
	pods10k     = map[string]float64{"pods": 10_000}
	managed1000 = map[string]float64{"managed": 1000}
	managed10k  = map[string]float64{"managed": 10_000}
	others40k   = map[string]float64{"others more": 40_000}
	rate500     = map[string]float64{"rate": 500}
	sets100x100 = map[string]float64{"pods": 10_000, "sets": 100}
)

// goals in the order of the table. What a figure means, and how it is measured, is in docs/design/0011-benchmarks.md.
var goals = []Goal{
	// as many at a time as Kuperator
	{"P1", "in place, time / bare loop with the same writes", AtMost, 1.25, "×", pods1000},
	{"P1", "in place, time / bare loop with the same writes, 64 at a time", AtMost, 1.25, "×", pods1000},
	{"P2", "faster than Kuperator 0.7.4 without client limits", AtLeast, 3, "×", pods1000},
	{"P3", "writes to Pods, in place, no rule", AtMost, 6, "writes/Pod", nil},
	{"P3", "writes to Pods, in place, 1 rule", AtMost, 6, "writes/Pod", nil},
	{"P3", "writes to Pods, in place, 3 rules", AtMost, 6, "writes/Pod", nil},
	{"P3", "writes to Pods, in place, 1 rule, 1 adapter", AtMost, 8, "writes/Pod", nil},
	{"P4", "all write requests, in place, no rule", AtMost, 8, "requests/Pod", nil},
	{"P4", "all write requests, in place, 1 rule", AtMost, 8.5, "requests/Pod", nil},
	{"P5", "conflicts, in place", AtMost, 0.02, "conflicts/Pod", nil},
	{"P5", "writes that change nothing", AtMost, 0, "writes", nil},
	{"P6", "in place with a rule, time / without", AtMost, 1.1, "×", pods500},
	{"P7", "CPU of all binaries, in place", AtMost, 15, "ms/Pod", pods1000},
	{"P8", "API server's CPU, in place / bare loop", AtMost, 1.25, "×", pods1000},
	{"P9", "idle requests of the busiest binary", AtMost, 6, "requests/min", managed10k},
	{"P10", "event to write, p50", AtMost, 20, "ms", pods1000},
	{"P10", "event to write, p99", AtMost, 150, "ms", pods1000},
	{"P11", "RSS of collaset-controller, 10,000 managed Pods", AtMost, 100, "MB", managed10k},
	{"P11", "RSS of the largest other binary, 10,000 managed Pods", AtMost, 60, "MB", managed10k},
	{"P11", "RSS for 40,000 Pods that are not managed", AtMost, 10, "MB", others40k},
	{"P11", "heap per managed Pod, collaset-controller", AtMost, 4, "KB", managed1000},
	{"P11", "heap per managed Pod, largest other binary", AtMost, 2, "KB", managed1000},
	{"P12", "restart to first correct write", AtMost, 3, "s", managed10k},
	{"P12", "restart to quiet", AtMost, 6, "s", managed10k},
	{"P12", "writes after a restart when nothing changed", AtMost, 0, "writes", managed10k},
	{"P12", "LISTs of one kind after a restart", AtMost, 1, "requests", managed10k},
	{"P13", "growth exponent of time", AtMost, 1.05, "", pods4000},
	{"P13", "growth exponent of writes", AtMost, 1.05, "", pods4000},
	{"P13", "growth exponent of the binaries' CPU", AtMost, 1.05, "", pods4000},
	{"P13", "growth exponent of bytes written", AtMost, 1.1, "", pods4000},
	{"P14", "step of one Pod after its event, among 5,000", AtMost, 50, "µs", pods5000},
	{"P14", "deciding, for each event of a Pod in an update of all", AtMost, 50, "µs", pods5000},
	{"P14", "following one Pod's health at rest, in a cluster", AtMost, 50, "µs", pods5000},
	{"P14", "decision after one Pod's event among 5,000, at rest", AtMost, 50, "µs", pods5000},
	{"P14", "decision after one Pod's event among 5,000, half updated", AtMost, 50, "µs", pods5000},
	{"P15", "scale out from 0, time / bare loop with the same writes", AtMost, 1.3, "×", pods1000},
	{"P16", "recreate under 20 %, time / Deployment", AtMost, 1, "×", pods500},
	{"P16", "recreate under 20 %, writes / Deployment", AtMost, 1, "×", pods500},
	{"P17", "in place, time / OpenKruise 1.9 CloneSet", AtMost, 0.8, "×", pods500},
	{"P18", "admission of a managed Pod at 500/s, p50", AtMost, 2, "ms", rate500},
	{"P18", "admission of a managed Pod at 500/s, p99", AtMost, 10, "ms", rate500},
	{"P18", "webhook calls for Pods that are not managed", AtMost, 0, "calls", nil},
	{"P19", "fail-over after SIGTERM to the next grant", AtMost, 2, "s", nil},
	{"P19", "fail-over after SIGKILL to the next grant", AtMost, 17, "s", nil},
	{"P20", "100 CollaSets / one of as many Pods, time", AtMost, 1.1, "×", sets100x100},
	{"P21", "quiet tenant beside a noisy one, time / alone", AtMost, 1.2, "×", nil},
	{"P22", "largest object, 5,000 Pods", AtMost, 50, "KiB", pods5000},
	{"P23", "largest binary", AtMost, 35, "MB", nil},
	{"P23", "start to ready with 10,000 Pods", AtMost, 1, "s", managed10k},
	{"P24", "in place with slow containers, time / restarts one after the other", AtMost, 1.15, "×", nil},
	{"P25", "writes to Pods, restart by a job / bare client", AtMost, 1.25, "×", pods1000},
	{"P25", "all write requests, restart by a job", AtMost, 6.5, "requests/Pod", pods1000},
	{"P25", "out of service per Pod, restart by a job, no rule, mean", AtMost, 8, "s", pods1000},
	{"P25", "conflicts, restart by a job", AtMost, 0.02, "conflicts/Pod", pods1000},
	{"P25", "writes after the end of a job", AtMost, 0, "writes", pods1000},
	{"P26", "CPU for each Pod, a label of 1,000 Pods / of 100", AtMost, 1.1, "×", pods10k},
	{"P26", "CPU for each Pod, a label of 100 Pods among 10,000 / among 1,000", AtMost, 1.5, "×", pods10k},
	{"P26", "largest object, PodDecorations", AtMost, 100, "KiB", pods10k},
	{"S1", "out of service per Pod, no budget, mean", AtMost, 2, "s", pods500},
	{"S2", "out of service per Pod, 20 % budget, mean", AtMost, 1, "s", pods500},
	{"S3", "in place, time / bare image patches", AtMost, 4.5, "×", pods1000},
	{"S3", "in place, time / bare image patches, as peers were measured", AtMost, 4.5, "×", pods1000},
	{"S3", "in place, time / bare image patches, as peers were measured, managedFields of Pods cleared", AtMost, 4.5,
		"×", pods1000},
	{"S4", "scale to 0 of 500, time / Deployment", AtMost, 2, "×", pods500},
	{"S4", "scale to 0 of 500, time / Deployment, as peers were measured", AtMost, 2, "×", pods500},
	{"S4", "scale to 0 of 500, time / Deployment, as peers were measured, managedFields of Pods cleared", AtMost, 2,
		"×", pods500},
}

// Goals returns all goals in the order of the table.
func Goals() []Goal { return append([]Goal(nil), goals...) }

// goal finds a goal, and panics if there is none: the name is a constant of the benchmark.
func goal(id, figure string) Goal {
	for _, g := range goals {
		if g.ID == id && g.Figure == figure {
			return g
		}
	}
	panic(fmt.Sprintf("there is no goal %s %q: add it to the list in this package", id, figure))
}
