package observer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// RuleReport is what was seen of one PodTransitionRule.
type RuleReport struct {
	Namespace, Name string
	// Out is the number of its Pods out of service now, those missing included.
	Out int
	// Allowed is how many may be, -1 for a rule that bounds none.
	Allowed int
	// Desired is the number of Pods wanted.
	Desired int
	// MaxOut is the largest number out of service at any time, MaxOutAllowed what
	// was allowed then, and MaxOutAt when; MaxOutAt is zero if none ever was.
	MaxOut        int
	MaxOutAllowed int
	MaxOutAt      time.Time
}

// Report is what was seen so far.
type Report struct {
	// Violations are in the order in which they were seen; none is good.
	Violations []Violation
	// Rules are sorted by namespace and name.
	Rules []RuleReport
	// OutOfService is how long the Pods of a place (instance ID of a workload, or
	// a name) were out of service, for places that ever were. One that still is
	// counts only for earlier times.
	OutOfService map[string]time.Duration
	// UIDs is the number of different Pods that filled a place; 1 if it was never
	// refilled.
	UIDs map[string]int
	// PodVersions is the number of changes seen of each Pod, its creation and
	// deletion included.
	PodVersions map[types.UID]int
	// Gaps is how often a watch broke so that changes may have been missed, and
	// Late how many events came too late to be judged in order. Both are 0 in a
	// run whose numbers are to be trusted.
	Gaps, Late int
}

// Report returns what was seen so far.
func (c *Checker) Report() Report {
	r := Report{
		Violations: slices.Clone(c.violations), OutOfService: maps.Clone(c.outTotal),
		UIDs: map[string]int{}, PodVersions: maps.Clone(c.versions),
	}
	for at, uids := range c.uids {
		r.UIDs[at] = len(uids)
	}
	for at, rule := range c.rules {
		out, missing := c.outOf(rule)
		r.Rules = append(r.Rules, RuleReport{
			Namespace: at.Namespace, Name: at.Name, Out: out + missing, Allowed: rule.allowed, Desired: rule.desired,
			MaxOut: rule.maxOut, MaxOutAllowed: rule.maxOutAllowed, MaxOutAt: rule.maxOutAt,
		})
	}
	slices.SortFunc(r.Rules, func(a, b RuleReport) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return r
}

// Rule returns the report of one rule, and false if it was never seen.
func (r Report) Rule(namespace, name string) (RuleReport, bool) {
	i := slices.IndexFunc(r.Rules, func(rule RuleReport) bool { return rule.Namespace == namespace && rule.Name == name })
	if i < 0 {
		return RuleReport{}, false
	}
	return r.Rules[i], true
}

// Err returns the violations as an error, nil if there are none.
func (r Report) Err() error {
	if len(r.Violations) == 0 {
		return nil
	}
	lines := make([]string, 0, len(r.Violations))
	for _, v := range r.Violations {
		lines = append(lines, v.String())
	}
	return fmt.Errorf("the observer saw %d violations:\n%s", len(lines), strings.Join(lines, "\n"))
}

// Lap starts new maxima for every rule, as if the Pods that are out of service
// now had just gone. Everything else goes on.
func (c *Checker) Lap(now time.Time) {
	for _, r := range c.rules {
		out, missing := c.outOf(r)
		r.maxOut, r.maxOutAllowed, r.maxOutAt = out+missing, r.allowed, now
	}
}
