package fault

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"kusionstack.io/kuperator/internal/testkit/faultproxy"
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

// plansFor are all plans for a scenario, given what its components write without a fault.
func plansFor(s scenario, ref *reference) []plan {
	components := s.components
	if components == nil {
		components = faulted()
	}
	var plans []plan
	for _, component := range components {
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
