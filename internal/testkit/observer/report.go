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
	// Checks is how often each promise was judged. What was never judged was not kept either.
	Checks map[Invariant]int
	// Largest are the largest objects by kind.
	Largest map[string]Largest
	// Churn are the Pods created and deleted, by "<namespace>/<workload>".
	Churn map[string]Churns
	// Gaps is how often a watch broke so that changes may have been missed, and
	// Late how many events came too late to be judged in order. Both are 0 in a
	// run whose numbers are to be trusted.
	Gaps, Late int
}

// Report returns what was seen so far.
func (c *Checker) Report() Report { return c.report(sortedKeys(c.spaces)...) }

// ReportIn is Report for one namespace.
func (c *Checker) ReportIn(namespace string) Report { return c.report(namespace) }

func (c *Checker) report(namespaces ...string) Report {
	r := Report{OutOfService: map[string]time.Duration{}, UIDs: map[string]int{}, PodVersions: map[types.UID]int{},
		Checks: map[Invariant]int{}, Largest: map[string]Largest{}, Churn: map[string]Churns{}}
	for _, name := range namespaces {
		if s := c.spaces[name]; s != nil {
			s.addTo(&r)
		}
	}
	slices.SortStableFunc(r.Violations, func(a, b Violation) int { return a.Time.Compare(b.Time) })
	return r
}

func (s *space) addTo(r *Report) {
	r.Violations = append(r.Violations, s.violations...)
	maps.Copy(r.OutOfService, s.outTotal)
	maps.Copy(r.PodVersions, s.versions)
	for at, uids := range s.uids {
		r.UIDs[at] = len(uids)
	}
	for i, n := range s.checks {
		r.Checks[i] += n
	}
	for kind, l := range s.largest {
		if l.Bytes > r.Largest[kind].Bytes {
			r.Largest[kind] = Largest{s.name + "/" + l.Name, l.Bytes}
		}
	}
	for workload, c := range s.churn {
		r.Churn[s.name+"/"+workload] = c.Churns
	}
	for _, name := range sortedKeys(s.rules) {
		rule := s.rules[name]
		out, missing := rule.outOf()
		r.Rules = append(r.Rules, RuleReport{
			Namespace: s.name, Name: name, Out: out + missing, Allowed: rule.allowed, Desired: rule.desired,
			MaxOut: rule.maxOut, MaxOutAllowed: rule.maxOutAllowed, MaxOutAt: rule.maxOutAt,
		})
	}
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
	for _, s := range c.spaces {
		for _, r := range s.rules {
			out, missing := r.outOf()
			r.maxOut, r.maxOutAllowed, r.maxOutAt = out+missing, r.allowed, now
		}
	}
}
