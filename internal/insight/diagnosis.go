package insight

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// Level is how bad a finding is.
type Level string

const (
	// LevelOK: as it should be.
	LevelOK Level = "ok"
	// LevelUnknown: it could not be looked at.
	LevelUnknown Level = "unknown"
	// LevelWarning: worth a look, and it may be meant.
	LevelWarning Level = "warning"
	// LevelProblem: something does not work.
	LevelProblem Level = "problem"
)

// Finding is one thing that doctor looked at.
type Finding struct {
	Level   Level  `json:"level"`
	Check   string `json:"check"`
	Message string `json:"message"`
	Next    string `json:"next,omitempty"`
}

// Diagnosis is what doctor found, in the order in which it looked.
type Diagnosis struct {
	Problems int       `json:"problems"`
	Warnings int       `json:"warnings"`
	Findings []Finding `json:"findings"`
}

// Add adds a finding.
func (d *Diagnosis) Add(level Level, check, message, next string) {
	switch level {
	case LevelProblem:
		d.Problems++
	case LevelWarning:
		d.Warnings++
	case LevelOK, LevelUnknown:
	}
	d.Findings = append(d.Findings, Finding{level, check, message, next})
}

// AddGap adds that something could not be read. err is for what is no gap.
func (d *Diagnosis) AddGap(check string, g *Gap, err error) {
	switch {
	case g == nil:
		d.Add(LevelUnknown, check, err.Error(), "")
	case g.Missing != "":
		d.Add(LevelUnknown, check, "not known: "+g.Unsaid+" (you may not "+g.Missing+")", "")
	default:
		d.Add(LevelUnknown, check, "not known: "+g.Unsaid+" ("+g.Why+")", "")
	}
}

// Diagnose looks at components, freezes, rules, CollaSets and Pods. where says of which namespaces they are.
func Diagnose(f Facts, where string, d *Diagnosis) {
	x := newIndex(&f)
	for i := range f.Gaps {
		d.AddGap("reading", &f.Gaps[i], nil)
	}
	for _, name := range Controllers() {
		switch c, known := x.components[name]; {
		case !known:
		case c.State == ComponentRunning:
			d.Add(LevelOK, "components", name+" runs ("+c.Holder+")", "")
		default:
			r := x.missing(name)
			level := LevelWarning // a subset of the suite is a choice
			if c.State == ComponentStale || len(f.Pods) > 0 && name == LifecycleController {
				level = LevelProblem
			}
			d.Add(level, "components", r.Message, r.Next)
		}
	}
	for _, freeze := range x.allFreezes() {
		r := freeze.reason(f.Now)
		d.Add(LevelWarning, "freezes", r.Message, r.Next)
	}
	for i := range f.Rules {
		if r := invalidRule(&f.Rules[i]); r != nil {
			d.Add(LevelProblem, "rules", f.Rules[i].Namespace+"/"+f.Rules[i].Name+": "+r.Message, r.Next)
		}
	}
	for i := range f.CollaSets {
		set := &f.CollaSets[i]
		if c := meta.FindStatusCondition(set.Status.Conditions, appsv1alpha1.CollaSetStalled); c != nil &&
			c.Status == "True" {
			d.Add(LevelProblem, "CollaSets", set.Namespace+"/"+set.Name+" is stalled: "+said(c.Reason, c.Message),
				"kubectl kuperator -n "+set.Namespace+" why collaset/"+set.Name)
		}
	}
	x.leftovers(where, d)
}

// leftovers are marks on Pods that no component looks after.
func (x *index) leftovers(where string, d *Diagnosis) {
	strange, noGate, deleting := map[string]int{}, 0, 0
	for i := range x.Pods {
		pod := &x.Pods[i]
		v := podops.Read(pod)
		expected, _ := podops.ExpectedFinalizers(pod.Annotations)
		for _, finalizer := range podops.ProtectionFinalizers(pod.Finalizers) {
			if !slices.Contains(slices.Collect(maps.Values(expected)), finalizer) {
				strange[finalizer]++
			}
		}
		if !v.Gate && !v.Terminal {
			noGate++
		}
		if v.Terminating && x.Now.Sub(pod.DeletionTimestamp.Time) > graceSlack {
			deleting++
		}
	}
	for _, finalizer := range slices.Sorted(maps.Keys(strange)) {
		d.Add(LevelWarning, "leftovers",
			fmt.Sprintf("%d Pods have the finalizer %s, and name no employer for it: its adapter may be gone",
				strange[finalizer], finalizer),
			"start that adapter; if it is gone for good, remove the finalizer from these Pods")
	}
	if noGate > 0 {
		d.Add(LevelWarning, "leftovers",
			fmt.Sprintf("%d Pods lack the readiness gate %s: no operation can take them out of service first", noGate,
				podops.ServiceReadyCondition),
			"they are from before webhook-server; re-create them")
	}
	if deleting > 0 {
		d.Add(LevelWarning, "leftovers", fmt.Sprintf("%d Pods should be gone and are not", deleting),
			"kubectl kuperator why names what keeps each")
	}
	if len(strange) == 0 && noGate == 0 && deleting == 0 {
		d.Add(LevelOK, "leftovers",
			strings.TrimSpace(fmt.Sprintf("none on %d Pods under the lifecycle %s", len(x.Pods), where)), "")
	}
}
