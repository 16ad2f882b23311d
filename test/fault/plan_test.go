package fault

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/faultproxy"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// plan is one fault, done to one write of one component in one scenario.
type plan struct {
	scenario, component string
	// key is verb and resource of the write, ordinal which of those of its key since the steps began, from 1.
	key     string
	ordinal int
	mode    string
}

// modes are the faults that are done to a write.
var modes = map[string]faultproxy.Fault{
	"KillBefore":         {Action: faultproxy.KillBefore},
	"KillAfterCommit":    {Action: faultproxy.KillAfterCommit},
	"DropReply":          {Action: faultproxy.DropReply},
	"TimeoutAfterCommit": {Action: faultproxy.TimeoutAfterCommit, Delay: 200 * time.Millisecond},
	"Forbidden":          {Action: faultproxy.FailBefore, Code: http.StatusForbidden},
	"Conflict":           {Action: faultproxy.FailBefore, Code: http.StatusConflict},
	"TooManyRequests":    {Action: faultproxy.FailBefore, Code: http.StatusTooManyRequests},
	"InternalError":      {Action: faultproxy.FailBefore, Code: http.StatusInternalServerError},
	"Unavailable":        {Action: faultproxy.FailBefore, Code: http.StatusServiceUnavailable},
}

// String is the line that runs the plan again.
func (p plan) String() string {
	return strings.Join([]string{p.scenario, p.component, p.key, strconv.Itoa(p.ordinal), p.mode}, "|")
}

func parsePlan(line string) (plan, error) {
	parts := strings.Split(strings.TrimSpace(line), "|")
	if len(parts) != 5 {
		return plan{},
			fmt.Errorf(
				"the plan %q has %d parts: give scenario|component|write|ordinal|fault, as in in-place|collaset-controller|patch pods|2|KillAfterCommit", line, len(parts))
	}
	ordinal, err := strconv.Atoi(parts[3])
	p := plan{parts[0], parts[1], parts[2], ordinal, parts[4]}
	switch _, known := modes[p.mode]; {
	case err != nil || ordinal < 1:
		return plan{}, fmt.Errorf("the plan %q has the ordinal %q: give a number from 1", line, parts[3])
	case !known && !ofViews(p.mode):
		return plan{}, fmt.Errorf("the plan %q has the fault %q: give one of %s", line, p.mode,
			strings.Join(modeNames(), ", "))
	case !slices.Contains(scenarioNames(), p.scenario):
		return plan{}, fmt.Errorf("the plan %q has the scenario %q, which there is not", line, p.scenario)
	}
	return p, nil
}

// scenarioNames are those of all tests that run plans.
func scenarioNames() []string {
	var names []string
	for _, s := range scenarios() {
		names = append(names, s.name)
	}
	for _, s := range certificateScenarios() {
		names = append(names, s.name)
	}
	return names
}

func modeNames() []string {
	return []string{"KillBefore", "KillAfterCommit", "DropReply", "TimeoutAfterCommit", "Conflict", "InternalError",
		"TooManyRequests", "Forbidden", "Unavailable"}
}

// faulted are the components whose writes are faulted.
func (s scenario) faulted() []string {
	if s.components == nil {
		return faulted()
	}
	return s.components
}

// plansFor are all plans for a scenario, given what its components write without a fault.
func plansFor(s scenario, ref *reference) []plan {
	var plans []plan
	for _, component := range s.faulted() {
		plans = append(plans, plansOf(s.name, component, ref.writes[component])...)
	}
	return plans
}

// plansOf are those for a component's writes, by key.
func plansOf(scenario, component string, writes map[string]int) []plan {
	var plans []plan
	for _, key := range sortedKeys(writes) {
		for ordinal := 1; ordinal <= writes[key]; ordinal++ {
			for _, mode := range modeNames() {
				plans = append(plans, plan{scenario, component, key, ordinal, mode})
			}
		}
	}
	return plans
}

// sample takes n plans, evenly from all.
func sample(plans []plan, n int) []plan {
	if n >= len(plans) {
		return plans
	}
	var some []plan
	for i := range n {
		some = append(some, plans[i*len(plans)/n])
	}
	return some
}

// fairSample takes n plans, a fifth of them about operationjob-controller and poddecoration-controller if there are so
// many: in few of the scenarios these have work.
func fairSample(plans []plan, n int) []plan {
	var ofJobs, others []plan
	for _, p := range plans {
		if p.component == suite.OperationJob || p.component == suite.PodDecoration {
			ofJobs = append(ofJobs, p)
		} else {
			others = append(others, p)
		}
	}
	ofJobs = sample(ofJobs, max(n/5, n-len(others)))
	return append(sample(others, n-len(ofJobs)), ofJobs...)
}

func TestFairSample(t *testing.T) {
	plans := func(component string, n int) []plan {
		var all []plan
		for i := range n {
			all = append(all, plan{component: component, ordinal: i})
		}
		return all
	}
	for name, tc := range map[string]struct{ workloads, jobs, want, wantJobs int }{
		"many of both":    {1000, 100, 30, 6},
		"few about jobs":  {1000, 2, 30, 2},
		"jobs alone":      {0, 100, 30, 30},
		"none about jobs": {100, 0, 30, 0},
		"fewer than that": {10, 10, 20, 10},
	} {
		t.Run(name, func(t *testing.T) {
			chosen := fairSample(slices.Concat(plans(suite.CollaSet, tc.workloads), plans(suite.OperationJob, tc.jobs)), tc.want)
			require.Len(t, chosen, tc.want)
			count := map[plan]int{}
			jobs := 0
			for _, p := range chosen {
				count[p]++
				if p.component == suite.OperationJob {
					jobs++
				}
			}
			require.Len(t, count, tc.want, "none is there twice")
			require.Equal(t, tc.wantJobs, jobs)
		})
	}
}
