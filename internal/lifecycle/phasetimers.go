package lifecycle

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/lifecycle/podphase"
)

// typesNamed bounds the values of the metrics' label type; further types are "other".
const typesNamed = 20

// phaseTimers remembers since when each operation is in its phase, as this process saw
// it. It is a memory of times alone: without it, after a restart, the same
// decisions are taken by the phase labels' times. It holds only Pods with an
// operation under way or with a missing cooperator, and is safe for concurrent use.
type phaseTimers struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	started time.Time // of the first observation
	pods    map[types.NamespacedName]*podAges
	types   map[string]bool
	// refused are the Pods whose graceful deletion the API server refuses.
	refused map[types.NamespacedName]bool
}

type podAges struct {
	uid        types.UID
	operations map[string]*phaseAge
	// missingSince is when the Pod was first seen to wait for cooperators.
	missingSince time.Time
	// employers says what is known of those cooperators' employers.
	employers map[string]string
	// badDeadlines is the annotation's value that was last complained about.
	badDeadlines string
}

type phaseAge struct {
	phase   podops.Phase // one that a deadline can be for
	opType  string       // as the metrics name it
	request string
	since   time.Time
	overdue podops.DeadlinePolicy // "" if in time
	waits   podops.WaitReason     // as last looked at
}

func newPhaseTimers(clk clock.PassiveClock) *phaseTimers {
	return &phaseTimers{
		clock: clk, pods: map[types.NamespacedName]*podAges{}, types: map[string]bool{},
		refused: map[types.NamespacedName]bool{},
	}
}

// observe takes in the Pod as it is and returns since when each operation is in
// its phase, by ID.
func (a *phaseTimers) observe(pod *corev1.Pod, v podops.View) map[string]time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	if a.started.IsZero() {
		a.started = now
	}
	key := client.ObjectKeyFromObject(pod)
	if _, refused := podops.DeletionRefused(v); refused {
		a.refused[key] = true
	} else {
		delete(a.refused, key)
	}
	p, known := a.pods[key]
	if known && p.uid != pod.UID {
		a.forget(key)
		known = false
	}
	missing := waitsForEmployers(v)
	ops := podops.Operations(v)
	if len(ops) == 0 && !missing {
		a.forget(key)
		return nil
	}
	if !known {
		p = &podAges{uid: pod.UID, operations: map[string]*phaseAge{}}
		a.pods[key] = p
	}
	switch {
	case !missing:
		p.missingSince, p.employers = time.Time{}, nil
	case p.missingSince.IsZero():
		p.missingSince = now
	}
	a.observeOperations(p, ops, func(o podops.Operation) time.Time {
		if known {
			return now
		}
		return a.restore(podops.PhaseTime(v, o), pod.CreationTimestamp.Time, now)
	})
	since := make(map[string]time.Time, len(p.operations))
	for id, o := range p.operations {
		since[id] = o.since
	}
	return since
}

func (a *phaseTimers) observeOperations(p *podAges, ops []podops.Operation, begun func(podops.Operation) time.Time) {
	seen := make(map[string]bool, len(ops))
	for _, o := range ops {
		phase := podops.DeadlinePhase(o.Phase)
		if phase == podops.PhaseNone {
			continue
		}
		seen[o.ID] = true
		last, ok := p.operations[o.ID]
		if ok && last.phase == phase && last.request == o.Request {
			continue
		}
		if ok {
			a.left(last)
		}
		p.operations[o.ID] = &phaseAge{phase: phase, opType: a.typeLabel(o.Type), request: o.Request, since: begun(o),
			waits: podops.WaitLifecycle}
	}
	for id, o := range p.operations {
		if !seen[id] {
			a.left(o)
			delete(p.operations, id)
		}
	}
}

// restore is when a phase began that was there before this process looked: the
// label's time, if it is from before and the Pod was there. A label of later is by
// a clock that may be wrong, while this process has one of its own.
func (a *phaseTimers) restore(labelled, created, now time.Time) time.Time {
	if labelled.IsZero() || !labelled.Before(a.started) {
		return now
	}
	if labelled.Before(created) {
		return created
	}
	return labelled
}

// overdue takes in what the decision found to be late and returns what is so for
// the first time.
func (a *phaseTimers) overdue(key types.NamespacedName, late []podphase.Overdue) (first []podphase.Overdue) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.pods[key]
	if !ok {
		return nil
	}
	for id, o := range p.operations {
		i := slices.IndexFunc(late, func(l podphase.Overdue) bool { return l.ID == id })
		switch {
		case i < 0:
			o.overdue = ""
		case o.overdue == "":
			first = append(first, late[i])
			o.overdue = late[i].Policy
		default:
			o.overdue = late[i].Policy
		}
	}
	return first
}

// explained takes in what the operations wait for.
func (a *phaseTimers) explained(key types.NamespacedName, waits []podops.Wait) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.pods[key]
	if !ok {
		return
	}
	for _, w := range waits {
		if o := p.operations[w.ID]; o != nil {
			o.waits = w.Reason
		}
	}
}

// firstComplaint reports whether the value of the deadlines annotation has not been
// complained about yet.
func (a *phaseTimers) firstComplaint(key types.NamespacedName, value string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.pods[key]
	if !ok || p.badDeadlines == value {
		return false
	}
	p.badDeadlines = value
	return true
}

// missing is when the Pod was first seen to wait for cooperators, zero if it does
// not, and what is known of their employers.
func (a *phaseTimers) missing(key types.NamespacedName) (since time.Time, employers map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p, ok := a.pods[key]; ok {
		return p.missingSince, p.employers
	}
	return time.Time{}, nil
}

// note keeps what is known of the employers that the Pod waits for and reports whether that is news.
func (a *phaseTimers) note(key types.NamespacedName, employers map[string]string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.pods[key]
	if !ok || maps.Equal(p.employers, employers) {
		return false
	}
	p.employers = employers
	return true
}

// gone drops a Pod.
func (a *phaseTimers) gone(key types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forget(key)
	delete(a.refused, key)
}

func (a *phaseTimers) forget(key types.NamespacedName) {
	if p, ok := a.pods[key]; ok {
		for _, o := range p.operations {
			a.left(o)
		}
		delete(a.pods, key)
	}
}

func (a *phaseTimers) left(o *phaseAge) {
	phaseAges.WithLabelValues(string(o.phase), o.opType).Observe(a.clock.Now().Sub(o.since).Seconds())
}

// typeLabel keeps the number of label values bounded, whatever types operators invent.
func (a *phaseTimers) typeLabel(opType string) string {
	if !a.types[opType] {
		if len(a.types) >= typesNamed {
			return "other"
		}
		a.types[opType] = true
	}
	return opType
}

// waitsForEmployers reports whether the Pod could serve if a cooperator had it back:
// new, completing, or begun upon before that.
func waitsForEmployers(v podops.View) bool {
	return !v.Terminating && !v.Terminal && v.Ready && v.ServiceReady != corev1.ConditionFalse &&
		!podops.Offline(v) && len(podops.MissingEmployers(v)) > 0
}
