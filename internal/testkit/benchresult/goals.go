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

// Goal is a bound on one figure. A goal with several figures (P3 has one for each set of rules and adapters) has several
// entries with one ID.
type Goal struct {
	// ID is "P1" to "P23", or "S1" and so on for goals about service.
	ID string
	// Figure tells the goals of one ID apart.
	Figure string
	Bound  Bound
	Value  float64
	Unit   string
}

func (g Goal) String() string {
	return fmt.Sprintf("%s %s", g.Bound, strconv.FormatFloat(g.Value, 'g', 6, 64))
}

// Met says whether a figure meets the goal.
func (g Goal) Met(value float64) bool {
	if g.Bound == AtLeast {
		return value >= g.Value
	}
	return value <= g.Value
}

// goals in the order of the table. What a figure means, and how it is measured, is in docs/design/0011-benchmarks.md.
var goals = []Goal{
	{"P1", "in place, time / bare loop with the same writes", AtMost, 1.25, "×"},
	{"P2", "faster than Kuperator 0.7.4 without client limits", AtLeast, 3, "×"},
	{"P3", "writes to Pods, in place, no rule", AtMost, 6, "writes/Pod"},
	{"P3", "writes to Pods, in place, 1 rule", AtMost, 6, "writes/Pod"},
	{"P3", "writes to Pods, in place, 3 rules", AtMost, 6, "writes/Pod"},
	{"P3", "writes to Pods, in place, 1 rule, 1 adapter", AtMost, 8, "writes/Pod"},
	{"P4", "all write requests, in place, no rule", AtMost, 8, "requests/Pod"},
	{"P4", "all write requests, in place, 1 rule", AtMost, 8.5, "requests/Pod"},
	{"P5", "conflicts, in place", AtMost, 0.02, "conflicts/Pod"},
	{"P5", "writes that change nothing", AtMost, 0, "writes"},
	{"P6", "in place with a rule, time / without", AtMost, 1.1, "×"},
	{"P7", "CPU of all binaries, in place", AtMost, 15, "ms/Pod"},
	{"P8", "API server's CPU, in place / bare loop", AtMost, 1.25, "×"},
	{"P9", "idle requests of the busiest binary", AtMost, 6, "requests/min"},
	{"P10", "event to write, p50", AtMost, 20, "ms"},
	{"P10", "event to write, p99", AtMost, 150, "ms"},
	{"P11", "RSS of collaset-controller, 10,000 managed Pods", AtMost, 100, "MB"},
	{"P11", "RSS of the largest other binary, 10,000 managed Pods", AtMost, 60, "MB"},
	{"P11", "RSS for 40,000 Pods that are not managed", AtMost, 10, "MB"},
	{"P11", "heap per managed Pod, collaset-controller", AtMost, 4, "KB"},
	{"P11", "heap per managed Pod, largest other binary", AtMost, 2, "KB"},
	{"P12", "restart to first correct write", AtMost, 3, "s"},
	{"P12", "restart to quiet", AtMost, 6, "s"},
	{"P12", "writes after a restart when nothing changed", AtMost, 0, "writes"},
	{"P12", "LISTs of one kind after a restart", AtMost, 1, "requests"},
	{"P13", "growth exponent of time", AtMost, 1.05, ""},
	{"P13", "growth exponent of writes", AtMost, 1.05, ""},
	{"P13", "growth exponent of the binaries' CPU", AtMost, 1.05, ""},
	{"P13", "growth exponent of bytes written", AtMost, 1.1, ""},
	{"P14", "decision after one Pod's event among 5,000", AtMost, 50, "µs"},
	{"P15", "scale out from 0, time / bare loop with the same writes", AtMost, 1.3, "×"},
	{"P16", "recreate under 20 %, time / Deployment", AtMost, 1, "×"},
	{"P16", "recreate under 20 %, writes / Deployment", AtMost, 1, "×"},
	{"P17", "in place, time / OpenKruise 1.9 CloneSet", AtMost, 0.8, "×"},
	{"P18", "admission of a managed Pod at 500/s, p50", AtMost, 2, "ms"},
	{"P18", "admission of a managed Pod at 500/s, p99", AtMost, 10, "ms"},
	{"P18", "webhook calls for Pods that are not managed", AtMost, 0, "calls"},
	{"P19", "fail-over after SIGTERM to the next grant", AtMost, 2, "s"},
	{"P19", "fail-over after SIGKILL to the next grant", AtMost, 17, "s"},
	{"P20", "100 CollaSets / one of as many Pods, time", AtMost, 1.1, "×"},
	{"P21", "quiet tenant beside a noisy one, time / alone", AtMost, 1.2, "×"},
	{"P22", "largest object, 5,000 Pods", AtMost, 50, "KiB"},
	{"P23", "largest binary", AtMost, 35, "MB"},
	{"P23", "start to ready with 10,000 Pods", AtMost, 1, "s"},
	{"S1", "out of service per Pod, no budget, mean", AtMost, 2, "s"},
	{"S2", "out of service per Pod, 20 % budget, mean", AtMost, 1, "s"},
	{"S3", "in place, time / bare image patches", AtMost, 4.5, "×"},
	{"S4", "scale to 0 of 500, time / Deployment", AtMost, 2, "×"},
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
