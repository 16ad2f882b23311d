package fault

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kusionstack.io/kuperator/internal/testkit/faultproxy"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

const (
	// shortViews, nightlyViews and allViews are how many plans about stale views `make test`, a run of everything and
	// `make test-faults` run.
	shortViews, nightlyViews = 10, 64
	allViews                 = 800
	// acting is how long a component that was restarted with an old view has nothing to do, and writes nothing, before
	// it is shown the present.
	acting = 700 * time.Millisecond
	// glance is how often a component that is to come to rest is looked at.
	glance = 10 * time.Millisecond
	// frozen is how long a component sees nothing new of one kind.
	frozen = 1500 * time.Millisecond
	// delayed is by how much a component sees one kind later than the others.
	delayed = 300 * time.Millisecond
)

// What a plan may do to the view of a component. Freeze, lag and expire name a kind, as in "Freeze pods", and
// timeTravel may.
const (
	// timeTravel notes what the component sees at its write, kills it at its third write after that, and starts it again
	// with that old view, of one kind if it names one: the lists are of that time and the watches frozen, until it has
	// come to rest.
	timeTravel = "TimeTravel"
	// timeTravelFar is timeTravel with the kill at the end of the steps.
	timeTravelFar = "TimeTravelFar"
	// coalesce, duplicate and reset are what may happen to all watches, from the first step to the last.
	coalesce  = "Coalesce"
	duplicate = "Duplicate"
	reset     = "Reset"
	// freeze shows the component nothing new of the kind for a while, from its write on.
	freeze = "Freeze"
	// lag shows it the kind later than others, from the first step to the last.
	lag = "Lag"
	// expire has it list the kind again, twice, after it saw nothing new of it for a while.
	expire = "Expire"
)

// ofViews reports whether a mode is about what a component sees.
func ofViews(mode string) bool {
	name, resource, _ := strings.Cut(mode, " ")
	switch name {
	case timeTravelFar, coalesce, duplicate, reset:
		return resource == ""
	case timeTravel:
		return true
	case freeze, lag, expire:
		return resource != ""
	default:
		return false
	}
}

// watched are the kinds that a component decides on, as far as a scenario has them.
func watched(component, scenario string) []string {
	kinds := map[string][]string{
		suite.CollaSet:          {"pods", "collasets", "resourcecontexts", "controllerrevisions", "persistentvolumeclaims"},
		suite.PodTransitionRule: {"pods", "podtransitionrules"},
		suite.Lifecycle:         {"pods", "podtransitionrules"},
		suite.ResourceConsist:   {"pods", "services", "endpointslices"},
		suite.OperationJob:      {"pods", "operationjobs"},
		suite.PodDecoration:     {"pods", "poddecorations", "controllerrevisions"},
	}[component]
	part := map[string]string{"persistentvolumeclaims": "volumes", "podtransitionrules": "rule", "services": "service",
		"endpointslices": "service"}
	return slices.DeleteFunc(slices.Clone(kinds),
		func(kind string) bool { return !strings.Contains(scenario, part[kind]) })
}

// viewPlans are all plans about views for a scenario, given what its components write without a fault. Those that
// last from the first step to the last are about no write.
func viewPlans(s scenario, ref *reference) []plan {
	var plans []plan
	for _, component := range s.faulted() {
		keys, kinds := ref.writes[component], watched(component, s.name)
		if len(keys) == 0 || len(kinds) == 0 {
			continue
		}
		lasting, momentary := []string{coalesce, duplicate, reset}, []string{timeTravel, timeTravelFar}
		for _, kind := range kinds {
			lasting, momentary = append(lasting, lag+" "+kind, expire+" "+kind), append(momentary, freeze+" "+kind)
			if component == suite.OperationJob { // what it remembers is in one kind, and what it acts on is the other
				momentary = append(momentary, timeTravel+" "+kind)
			}
		}
		for _, mode := range lasting {
			plans = append(plans, plan{s.name, component, "watches", 1, mode})
		}
		for _, key := range sortedKeys(keys) {
			for ordinal := 1; ordinal <= keys[key]; ordinal++ {
				for _, mode := range momentary {
					plans = append(plans, plan{s.name, component, key, ordinal, mode})
				}
			}
		}
	}
	return plans
}

// TestStaleViews has each component decide on old, incomplete and late views, and compares with the run without a
// fault.
func TestStaleViews(t *testing.T) {
	chosen := plansAskedFor(t, func(p plan) bool { return ofViews(p.mode) })
	p := start(t)
	refs := p.references(t, chosen)
	plans := chosen
	if len(plans) == 0 {
		for _, s := range scenarios() {
			if refs[s.name] != nil {
				plans = append(plans, viewPlans(s, refs[s.name])...)
			}
		}
		t.Logf("%d plans in all", len(plans))
		plans = selection(t, plans, staleFailed, ofNight(shortViews, nightlyViews), allViews)
	}
	begin := time.Now()
	outcomes := p.execute(t, plans, refs)
	t.Log(timing(outcomes, begin))
	p.judge(t, outcomes)
	report(t, "stale views", outcomes)
}

// blur begins what the plan does to the component's view.
func (o *outcome) blur(proc *process) injected {
	name, resource, _ := strings.Cut(o.plan.mode, " ")
	of := faultproxy.Match{Resource: resource}
	switch name {
	case timeTravel:
		return o.travel(proc, of, 3)
	case timeTravelFar:
		return o.travel(proc, of, 0)
	case freeze:
		return o.freeze(proc, of)
	case duplicate:
		return lasting(proc, faultproxy.Fault{Action: faultproxy.Duplicate})
	case reset:
		return lasting(proc, faultproxy.Fault{Action: faultproxy.Reset, Every: 1})
	case lag:
		return lasting(proc, faultproxy.Fault{Action: faultproxy.Lag, Match: of, Delay: delayed})
	case expire:
		of.Times = 2 // an informer waits longer before each further list
		return lasting(proc, faultproxy.Fault{Action: faultproxy.Gone410, Match: of, Delay: delayed})
	default:
		return lasting(proc, faultproxy.Fault{Action: faultproxy.Coalesce, Delay: delayed})
	}
}

// lasting is a fault from the first step to the last.
func lasting(proc *process, f faultproxy.Fault) injected {
	armed := proc.proxy.Arm(f)
	return injected{fired: func() bool { return armed.Fired() > 0 }, end: armed.Disarm, disarm: armed.Disarm}
}

// freeze holds back a kind for a while.
func (o *outcome) freeze(proc *process, of faultproxy.Match) injected {
	var mu sync.Mutex
	var armed *faultproxy.Armed
	thawed := make(chan struct{})
	trigger := proc.proxy.Arm(faultproxy.Fault{Match: o.trigger(), Call: func(faultproxy.Write) {
		mu.Lock()
		defer mu.Unlock()
		armed = proc.proxy.Arm(faultproxy.Fault{Action: faultproxy.Freeze, Match: of})
		time.AfterFunc(frozen, func() { armed.Disarm(); close(thawed) })
	}})
	begun := func() *faultproxy.Armed {
		mu.Lock()
		defer mu.Unlock()
		return armed
	}
	return injected{
		fired: func() bool { a := begun(); return a != nil && a.Fired() > 0 },
		end: func() {
			if begun() != nil {
				<-thawed
			}
		},
		disarm: trigger.Disarm,
	}
}

// travel restarts the component with an old view, at its later-th write after the plan's, or when the steps are done.
func (o *outcome) travel(proc *process, of faultproxy.Match, later int) injected {
	var mu sync.Mutex // guards version
	version := ""
	var once sync.Once
	travelled, returned := false, make(chan struct{})
	jump := func(to string) {
		once.Do(func() {
			go func() {
				defer close(returned)
				travelled = restartAt(proc, of, to)
			}()
		})
	}
	var arms []*faultproxy.Armed
	trigger := proc.proxy.Arm(faultproxy.Fault{Match: o.trigger(), Call: func(faultproxy.Write) {
		mu.Lock()
		defer mu.Unlock()
		version = proc.proxy.ResourceVersion()
		if at := version; later > 0 {
			arms = append(arms, proc.proxy.Arm(faultproxy.Fault{
				Match: faultproxy.Match{Where: o.play.own, Ordinal: later}, Call: func(faultproxy.Write) { jump(at) },
			}))
		}
	}})
	began := func() string {
		mu.Lock()
		defer mu.Unlock()
		return version
	}
	return injected{
		fired: func() bool { return began() != "" && travelled },
		end: func() {
			if at := began(); at != "" {
				jump(at)
				<-returned
			}
		},
		disarm: func() {
			if began() != "" {
				jump(began())
				<-returned
			}
			trigger.Disarm()
			mu.Lock()
			defer mu.Unlock()
			for _, a := range arms {
				a.Disarm()
			}
		},
	}
}

// restartAt kills the component and has it see the world, or one kind, of an earlier time until it has come to rest,
// then the present until it has again: what it decides on the way there is refused. It reports whether it did.
func restartAt(proc *process, of faultproxy.Match, version string) bool {
	list := proc.proxy.Arm(faultproxy.Fault{Action: faultproxy.ListAt, Match: of, ResourceVersion: version})
	hold := proc.proxy.Arm(faultproxy.Fault{Action: faultproxy.Freeze, Match: of})
	var mu sync.Mutex
	// idle is for how long it has had nothing to do since its last write. On a busy machine it may be a while before a
	// component that has started takes its first decision: that does not count.
	var idle time.Duration
	anew := func() {
		mu.Lock()
		defer mu.Unlock()
		idle = 0
	}
	writes := proc.proxy.Arm(faultproxy.Fault{Call: func(faultproxy.Write) { anew() }})
	defer writes.Disarm()
	// nodes are watched from the first decision that needs them, and on an old view there may be none
	started := func() int {
		return len(slices.DeleteFunc(proc.proxy.Watches(), func(kind string) bool { return kind == "nodes" }))
	}
	kinds := started()
	rest := func(d time.Duration) {
		anew()
		for begin := time.Now(); time.Since(begin) < patience; time.Sleep(glance) {
			starting, busy := started() < kinds, proc.busy()
			mu.Lock()
			if starting {
				idle = 0
			}
			if !busy {
				idle += glance
			}
			rested := idle > d
			mu.Unlock()
			if rested {
				return
			}
		}
	}
	proc.proxy.Kill()
	rest(acting)
	list.Disarm()
	hold.Disarm()
	rest(settle)
	return list.Fired() > 0
}

// staleFailed are plans that found a defect, each with what was wrong.
var staleFailed = []string{
	// Each conflict was answered by another try 20 to 50 ms later, as long as the view was old: 835 writes instead of 18.
	"in-place|collaset-controller|patch pods|2|TimeTravel",
	"in-place|collaset-controller|patch pods|2|TimeTravelFar",
	// The component had yet to take its first decision when it was taken to be at rest. The suite was wrong: it looks
	// whether it works since.
	"replace-pod|collaset-controller|patch collasets/status|3|TimeTravelFar",
	// All four Pods were updated when the rollback was seen, and taken back. The suite was wrong: it has three Pods since.
	"one-by-one-rollback|collaset-controller|patch pods|1|Freeze collasets",
	// So were all three, which is what the suite compares with since.
	"one-by-one-rollback|collaset-controller|patch pods|2|Freeze collasets",
	// With each event status was written once more on the version that it had been refused on: 39 writes instead of 12.
	"one-by-one-rollback|collaset-controller|patch collasets/status|3|Freeze collasets",
	// Pods that were gone were marked again and again, and with them status, on a view that was taken for the present
	// because all Pods that there were (none) were in it: 26 writes instead of 7.
	"delete-volumes-dd|collaset-controller|patch pods|1|TimeTravel",
	// One of two CollaSets with one ResourceContext wrote it on an older version than the process had written for the
	// other.
	"move-pod|collaset-controller|patch pods|2|TimeTravel",
	// The same write was refused again and again while the view lagged.
	"create|lifecycle-controller|patch pods/status|3|TimeTravel",
	"service-added|resourceconsist-controller|patch pods|2|TimeTravelFar",
	"service-deleted|resourceconsist-controller|patch pods|1|TimeTravelFar",
	"stay-offline|resourceconsist-controller|patch pods|3|TimeTravel",
	// The status of a rule that was gone was written as long as the view had it.
	"rule-deleted|podtransitionrule-controller|watches|1|Expire podtransitionrules",
	// A Pod that lifecycle-controller had deleted was deleted once more, on what it had seen before.
	"webhook-rule-polled|collaset-controller|patch collasets/status|5|Freeze controllerrevisions",
	// The play itself asked for Pods again while a status told of one being deleted, whose ID is not free before it is
	// gone.
	"scale-to-nothing|collaset-controller|watches|1|Reset",
}
