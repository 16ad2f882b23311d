// Package traffic decides what resourceconsist-controller does with one Pod.
//
// A Pod has employers, and each employer has backends, one for each adapter. Decide looks at all of them together and
// answers with one Change of the Pod, the backends to register it with or take it out of, and what is waited for.
//
// Its rules, for an employer that wants the Pod:
//
//   - Expect: the Pod's annotation names the employer and its finalizer from birth on.
//   - Join: the Pod may serve and every backend sends it traffic; only then does it get the finalizer.
//   - Leave: the Pod is on its way out of service, no backend sends it traffic, it is observed not Ready, and both
//     have been so for the drain time; only then does the finalizer go. A Pod that merely fails its probes keeps it.
//
// An employer that does not want the Pod (any more) is forgotten: annotation and finalizer go in one write, after every
// backend that can be told to has dropped the Pod for the drain time. So is one that is named in the annotation and
// does not exist, which makes clean-up possible after the employer is gone.
//
// Employers of different kinds with one name have the same finalizer, since it is made from a hash of the name. One of
// another kind cannot be asked, so it keeps the finalizer on a living Pod as long as the Pod names it. Employers of one
// kind have different names, because they are in the Pod's namespace, and thus different finalizers, unless 64 bits of
// the hash collide. If they do, the finalizer may come when the first joins; it still goes when none needs it.
//
// Invariants: the finalizer of an employed Pod never goes while a backend of an employer that has it sends it traffic;
// no backend is told to send traffic to a Pod that does not name the employer; a Pod at rest gets no change; Decide is
// a function of its arguments alone, and the order of employers does not matter.
package traffic

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/soonest"
)

// Snapshot is one Pod with its employers of one kind, as observed.
type Snapshot struct {
	// Pod is the Pod as the cache has it.
	Pod podops.View
	// Managed is true if the Pod takes part in the lifecycle. One that does not is released by every employer.
	Managed bool
	// Kind is the employers' kind. What the Pod's annotation says of other kinds is for others.
	Kind string
	// Employers are those that want the Pod, and those that exist and are named in its annotation. An employer of Kind
	// that is named there and missing here does not exist.
	Employers []Employer
	// OutOfServiceSince is when this process first saw the Pod OutOfService, without a break since. Zero counts as Now.
	OutOfServiceSince time.Time
	// Now is the time of the decision.
	Now time.Time
}

// Employer is one employer of the Pod.
type Employer struct {
	// Key names it in the Pod's annotation: "<Kind>/<namespace>/<name>".
	Key string
	// Finalizer is the one that it puts on its Pods.
	Finalizer string
	// Drain is how long its backends must have stopped sending traffic before the Pod leaves.
	Drain time.Duration
	// Prepared is true if the employer will stay until the Pod is deregistered; without it no Mover registers the Pod.
	Prepared bool
	// Backends are those that an adapter reads for it.
	Backends []Backend
}

// Backend is what one adapter says of the Pod for one employer.
type Backend struct {
	// Adapter is the adapter's name.
	Adapter string
	// Employs is true if the employer selects the Pod through this adapter.
	Employs bool
	// Moves is true if the adapter moves traffic itself.
	Moves bool
	// Unknown is true if the adapter could not tell: the Pod neither joins nor leaves.
	Unknown bool
	// Serving is true if the backend sends traffic to the Pod, or might. It says nothing while Unknown.
	Serving bool
	// NotServingSince is when Serving was first seen false. Zero counts as Now. It says nothing while Serving.
	NotServingSince time.Time
	// LookAgain is how soon to ask the backend again while the Pod waits for it; zero if it will tell.
	LookAgain time.Duration
}

// Verb is what is done for one employer.
type Verb string

const (
	// Expect announces the employer on the Pod.
	Expect Verb = "expect"
	// Join adds the employer's finalizer.
	Join Verb = "join"
	// Leave removes the employer's finalizer; the Pod is still employed.
	Leave Verb = "leave"
	// Forget takes announcement and finalizer back; the Pod is not employed.
	Forget Verb = "forget"
	// Register makes a backend send traffic to the Pod.
	Register Verb = "register"
	// Deregister makes a backend send no more traffic to the Pod.
	Deregister Verb = "deregister"
)

// Action is one verb for one employer.
type Action struct {
	Verb     Verb
	Employer string
	// Adapter names the backend of Register and Deregister; it is "" otherwise.
	Adapter string
}

// Reason says what an employer waits for.
type Reason string

const (
	// WaitStillServing: the Pod is on its way out and a backend still sends it traffic.
	WaitStillServing Reason = "StillServing"
	// WaitUnknown: an adapter could not tell what its backend does.
	WaitUnknown Reason = "BackendUnknown"
	// WaitStillReady: the Pod is on its way out and not yet observed to be out of service.
	WaitStillReady Reason = "StillReady"
	// WaitDraining: traffic has stopped and the drain time has not passed.
	WaitDraining Reason = "Draining"
	// WaitSharedFinalizer: another employer that is not as far has the same finalizer on the Pod.
	WaitSharedFinalizer Reason = "SharedFinalizer"
	// WaitNotServing: the Pod may serve and a backend does not send it traffic yet.
	WaitNotServing Reason = "NotServing"
	// WaitEmployer: the employer does not hold its clean-up finalizer yet.
	WaitEmployer Reason = "EmployerNotPrepared"
	// WaitAnnotation: the Pod's annotation of expected finalizers cannot be read.
	WaitAnnotation Reason = "BrokenAnnotation"
)

// Reasons are all reasons there are.
func Reasons() []Reason {
	return []Reason{WaitStillServing, WaitUnknown, WaitStillReady, WaitDraining, WaitSharedFinalizer, WaitNotServing,
		WaitEmployer, WaitAnnotation}
}

// Wait is one thing that one employer waits for.
type Wait struct {
	Employer string
	Reason   Reason
}

// FinalizerConflict is an employer whose finalizer one of another kind has, too.
type FinalizerConflict struct {
	// Employer is the one of this kind, With the other one, as the Pod's annotation names them.
	Employer, With string
}

// Plan is what to do with the Pod. The zero Plan is a Pod at rest.
type Plan struct {
	// Change is to be written as one patch of the Pod.
	Change podops.Change
	// Written are the actions that Change carries out.
	Written []Action
	// Moves are the calls to make to backends, before the patch.
	Moves []Action
	// Waits is what stands in the way, by employer.
	Waits []Wait
	// FinalizerConflicts are the employers that want the Pod and whose finalizer others of another kind have, in order.
	FinalizerConflicts []FinalizerConflict
	// NextLook is how soon to decide again if nothing happens; zero if there is no need.
	NextLook time.Duration
	// Broken is the error of an annotation that cannot be read; nil otherwise.
	Broken error
}

// lookAfterMove is how soon a backend is asked whether a call took effect, if it does not say itself.
const lookAfterMove = time.Second

// OutOfService reports whether the Pod, as observed, can be given no traffic by anything that follows its readiness: it
// is being deleted or has run to its end, or its gate is off and Ready has followed. Without the gate there is nothing
// to observe.
func OutOfService(v podops.View) bool {
	return v.Terminating || v.Terminal || !v.Gate || (v.ServiceReady == corev1.ConditionFalse && !v.Ready)
}

// Decide says what is due on the Pod.
func Decide(s Snapshot) Plan {
	d := &decision{Snapshot: s}
	d.expected, d.plan.Broken = podops.ExpectedFinalizers(s.Pod.Annotations)
	employers := slices.Clone(s.Employers)
	slices.SortFunc(employers, func(a, b Employer) int { return cmp.Compare(a.Key, b.Key) })
	for _, e := range employers {
		if s.Managed && d.wants(e) {
			d.keep(e)
		} else {
			d.release(e)
		}
	}
	d.forgetGone(employers)
	d.compose()
	return d.plan
}

// decision collects what is due, so that all of it goes into one Change.
type decision struct {
	Snapshot
	expected map[string]string
	plan     Plan

	expect, join, leave, forget []Employer
}

// wants reports whether some backend of the employer takes part. One that only observes has nothing to wait for on a
// Pod that no condition can take out of service.
func (d *decision) wants(e Employer) bool {
	return slices.ContainsFunc(e.Backends, d.takesPart)
}

func (d *decision) takesPart(b Backend) bool { return b.Employs && (b.Moves || d.Pod.Gate) }

func (d *decision) announces(e Employer) bool { return d.expected[e.Key] == e.Finalizer }

func (d *decision) dying() bool { return d.Pod.Terminating || d.Pod.Terminal }

func (d *decision) holds(e Employer) bool { return slices.Contains(d.Pod.Finalizers, e.Finalizer) }

// keep decides for an employer that wants the Pod.
func (d *decision) keep(e Employer) {
	if !d.announces(e) && !d.dying() && d.plan.Broken == nil {
		d.expect = append(d.expect, e)
	}
	for _, with := range d.sharers(e) {
		d.plan.FinalizerConflicts = append(d.plan.FinalizerConflicts, FinalizerConflict{Employer: e.Key, With: with})
	}
	switch {
	case podops.MustLeave(d.Pod):
		moved := d.deregister(e, false)
		if d.holds(e) {
			d.mayLeave(e, moved)
		}
	case podops.MayJoin(d.Pod):
		d.deregister(e, true)
		d.mayJoin(e)
	}
}

// deregister takes the Pod out of every backend that can be told to drop it, or only out of those for which the
// employer does not select it any more. It reports whether one had to be told.
func (d *decision) deregister(e Employer, onlyUnemployed bool) (moved bool) {
	for _, b := range e.Backends {
		if b.Moves && b.Serving && !b.Unknown && (!onlyUnemployed || !b.Employs) {
			d.move(Deregister, e, b)
			moved = true
		}
	}
	return moved
}

func (d *decision) move(verb Verb, e Employer, b Backend) {
	d.plan.Moves = append(d.plan.Moves, Action{Verb: verb, Employer: e.Key, Adapter: b.Adapter})
	d.lookIn(cmp.Or(b.LookAgain, lookAfterMove))
}

// mayLeave decides for a finalizer that has to go.
func (d *decision) mayLeave(e Employer, moved bool) {
	if moved {
		d.wait(e, WaitStillServing)
		return
	}
	for _, b := range e.Backends {
		if b.Unknown && (d.takesPart(b) || b.Moves) {
			d.wait(e, WaitUnknown)
			return
		}
		if d.takesPart(b) && b.Serving {
			d.wait(e, WaitStillServing)
			d.lookIn(b.LookAgain)
			return
		}
	}
	if !OutOfService(d.Pod) {
		d.wait(e, WaitStillReady)
		return
	}
	if left := d.drainLeft(e, d.orNow(d.OutOfServiceSince), d.takesPart); left > 0 {
		d.wait(e, WaitDraining)
		d.lookIn(left)
		return
	}
	if !d.dying() && len(d.sharers(e)) > 0 {
		d.wait(e, WaitSharedFinalizer)
		return
	}
	d.leave = append(d.leave, e)
}

// drainLeft is how much of the drain time is left. It counts from since, when the Pod was seen out of service, or from
// when the last of these backends had stopped, whichever was later: a backend that is seen idle may have been idle for
// another reason, and serve once more before it follows the Pod.
func (d *decision) drainLeft(e Employer, since time.Time, which func(Backend) bool) time.Duration {
	for _, b := range e.Backends {
		if t := d.orNow(b.NotServingSince); which(b) && t.After(since) {
			since = t
		}
	}
	return e.Drain - d.Now.Sub(since)
}

func (d *decision) orNow(t time.Time) time.Time {
	if t.IsZero() {
		return d.Now
	}
	return t
}

// mayJoin decides for a Pod that may serve.
func (d *decision) mayJoin(e Employer) {
	serving := true
	for _, b := range e.Backends {
		if !d.takesPart(b) || (b.Serving && !b.Unknown) {
			continue
		}
		serving = false
		switch {
		case b.Unknown:
			d.wait(e, WaitUnknown)
		case b.Moves && !e.Prepared:
			d.wait(e, WaitEmployer)
		case b.Moves && !d.announces(e): // a member that no Pod owns up to could not be found again
			d.wait(e, WaitNotServing)
		case b.Moves:
			d.move(Register, e, b)
			d.wait(e, WaitNotServing)
		case !d.holds(e):
			d.wait(e, WaitNotServing)
			d.lookIn(b.LookAgain)
		}
	}
	switch {
	case d.holds(e) || !serving:
	case d.plan.Broken != nil:
		d.wait(e, WaitAnnotation)
	default:
		d.join = append(d.join, e)
	}
}

// release decides for an employer that does not want the Pod.
func (d *decision) release(e Employer) {
	moved := d.deregister(e, false)
	moves := func(b Backend) bool { return b.Moves }
	unknown := slices.ContainsFunc(e.Backends, func(b Backend) bool { return b.Moves && b.Unknown })
	_, announced := d.expected[e.Key]
	draining := d.drainLeft(e, time.Time{}, moves)
	switch {
	case !announced && !d.holds(e):
	case unknown:
		d.wait(e, WaitUnknown)
	case moved:
		d.wait(e, WaitStillServing)
	case draining > 0 && slices.ContainsFunc(e.Backends, moves):
		d.wait(e, WaitDraining)
		d.lookIn(draining)
	case d.plan.Broken != nil && !d.Pod.Terminating:
		d.wait(e, WaitAnnotation)
	case d.Pod.Terminating && !d.holds(e): // the annotation dies with the Pod
	default:
		d.forget = append(d.forget, e)
	}
}

// forgetGone releases the Pod of employers that its annotation names and that do not exist. Upstream wrote the key
// without a kind when the employer it had read carried none; such a key is a Service's.
func (d *decision) forgetGone(present []Employer) {
	for key, finalizer := range d.expected {
		kind, _, ok := strings.Cut(key, "/")
		if !ok || (kind != d.Kind && (kind != "" || d.Kind != "Service")) {
			continue
		}
		if slices.ContainsFunc(present, func(e Employer) bool { return e.Key == key }) {
			continue
		}
		gone := Employer{Key: key, Finalizer: finalizer}
		if d.Pod.Terminating && !d.holds(gone) {
			continue
		}
		d.forget = append(d.forget, gone)
	}
	slices.SortFunc(d.forget, func(a, b Employer) int { return cmp.Compare(a.Key, b.Key) })
}

// sharers are the employers of other kinds that the annotation names under the same finalizer, in order.
func (d *decision) sharers(e Employer) []string {
	var keys []string
	for key, finalizer := range d.expected {
		if kind, _, _ := strings.Cut(key, "/"); finalizer == e.Finalizer && kind != "" && kind != d.Kind {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// compose puts everything that is due into one Change. What makes the Pod wait comes first, so that what completes it
// is seen only in the end.
func (d *decision) compose() {
	v := d.Pod
	apply := func(verb Verb, e Employer, c podops.Change) {
		if c.IsZero() {
			return
		}
		v = c.Apply(v)
		d.plan.Change = d.plan.Change.Then(d.Pod, c)
		action := Action{Verb: verb, Employer: e.Key}
		if !slices.Contains(d.plan.Written, action) {
			d.plan.Written = append(d.plan.Written, action)
		}
	}
	for _, e := range d.expect {
		c, err := podops.Expect(v, e.Key, e.Finalizer)
		if err == nil {
			apply(Expect, e, c)
		}
	}
	for _, e := range d.join {
		apply(Join, e, podops.Join(v, e.Finalizer, d.Now))
	}
	for _, e := range d.forget {
		if c, err := podops.Forget(v, e.Key, d.Now); err == nil {
			apply(Forget, e, c)
		}
	}
	for _, e := range d.forget {
		if d.mayRemove(v, e) {
			apply(Forget, e, podops.Leave(v, e.Finalizer, d.Now))
		}
	}
	for _, e := range d.leave {
		if d.mayRemove(v, e) {
			apply(Leave, e, podops.Leave(v, e.Finalizer, d.Now))
		} else {
			d.wait(e, WaitSharedFinalizer)
		}
	}
}

// mayRemove reports whether no other needs the finalizer: no employer of this kind that has not let go itself, and, as
// long as the Pod lives, none that the annotation names. A finalizer that is no protection finalizer is never ours,
// whatever the annotation says.
func (d *decision) mayRemove(v podops.View, e Employer) bool {
	if !strings.HasPrefix(e.Finalizer, podops.ProtectionFinalizerPrefix+"/") {
		return false
	}
	for _, o := range d.Employers {
		if o.Finalizer == e.Finalizer && o.Key != e.Key && !has(d.leave, o) && !has(d.forget, o) {
			return false
		}
	}
	if d.dying() {
		return true
	}
	named, _ := podops.ExpectedFinalizers(v.Annotations)
	for key, finalizer := range named {
		if finalizer == e.Finalizer && key != e.Key && !has(d.leave, Employer{Key: key}) {
			return false
		}
	}
	return true
}

func has(list []Employer, e Employer) bool {
	return slices.ContainsFunc(list, func(o Employer) bool { return o.Key == e.Key })
}

func (d *decision) wait(e Employer, r Reason) {
	if w := (Wait{Employer: e.Key, Reason: r}); !slices.Contains(d.plan.Waits, w) {
		d.plan.Waits = append(d.plan.Waits, w)
	}
}

func (d *decision) lookIn(after time.Duration) {
	d.plan.NextLook = soonest.Of(d.plan.NextLook, after)
}
