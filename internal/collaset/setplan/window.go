package setplan

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/api/podops"
)

// Window decides which Pods of all CollaSets begin their update when (docs/design/0033-rollout-window.md). Decisions
// tell it which Pods may begin, the events of Pods whose turn it is to move each, and it answers which begin now and
// when to look again:
//
//	planned -> chosen -> begin sent -> ours <-> theirs -> back
//
// Only Pods whose next step is the suite's take one of Limits.InFlight places, each for Limits.OursFor at most.
// CollaSets that have Pods to begin take turns. All of it is memory that may be lost at any time: the next decisions
// find out from the Pods what is under way. A Window is not safe for concurrent use.
type Window struct {
	limits Limits
	sets   map[types.NamespacedName]*windowSet
	// turns are the CollaSets that have Pods to begin; the first is the next one.
	turns []types.NamespacedName
	// places are the Pods that take one, and until when at most.
	places map[types.UID]time.Time
}

// windowSet is what is known of one CollaSet.
type windowSet struct {
	// epoch counts the decisions that were begun about it.
	epoch int
	// allowed are Pods that may begin, next those that may when another comes back, and spare how many of these may now.
	allowed, next []Queued
	spare         int
	// held is true while a decision is being made: none of these begins.
	held bool
	// pods are those that are chosen, under way, or have a step sent to them.
	pods map[types.UID]*windowPod
}

// windowPod is what is known of one Pod.
type windowPod struct {
	// underWay reports whether its update has begun, or is about to; ours whether its next step is the suite's.
	underWay, ours bool
	// chosen is the update to begin now, nil for none.
	chosen *Queued
	// sent is the last step that was sent and is neither seen nor known to have failed, nil for none.
	sent *sentStep
}

// sentStep is a step that was sent to the API server.
type sentStep struct {
	version string // the resourceVersion that it was sent on
	epoch   int
	begun   *Queued     // nil for another step than a begin
	after   podops.View // the Pod with that resourceVersion, and the begin
}

// Queued is a Pod whose update may begin.
type Queued struct {
	NextPod
	Request podops.Request
	// Version is the resourceVersion that the plan was made on, and Serving whether the Pod was in service then: one
	// that was not costs nothing of the budget, as long as it is not.
	Version string
	Serving bool
}

// WindowPlan is what a decision leaves to a Window.
type WindowPlan struct {
	Allowed, Next []Queued
	Spare         int
	// UnderWay are the Pods whose update is under way, and whether the next step of each is the suite's.
	UnderWay map[types.UID]bool
}

// Answer is what a Window wants done.
type Answer struct {
	// Begin are Pods to begin now.
	Begin []Chosen
	// Look is how long to wait before Tick, if no event comes first; 0 means that only events matter.
	Look time.Duration
}

// Chosen is a Pod that is to begin now.
type Chosen struct {
	Set types.NamespacedName
	Pod NextPod
}

// NewWindow makes one that knows of nothing.
func NewWindow(limits Limits) *Window {
	return &Window{
		limits: limits,
		sets:   map[types.NamespacedName]*windowSet{},
		places: map[types.UID]time.Time{},
	}
}

// WindowPlanOf is what a plan leaves to the Window.
func WindowPlanOf(s *Snapshot, p *Plan) WindowPlan {
	w := WindowPlan{UnderWay: map[types.UID]bool{}}
	for i := range s.Pods {
		pod := &s.Pods[i]
		if pod.Live() && pod.facts().isUpdating() {
			w.UnderWay[pod.UID()] = NextIsOurs(pod)
		}
	}
	for _, b := range p.Begins {
		if b.Request.Type == podops.TypeUpdate {
			w.Allowed = append(w.Allowed, queuedAs(b.Pod, b.Request))
		}
	}
	if p.Rollout != nil {
		w.Next, w.Spare = p.Rollout.Next, p.Rollout.Spare
	}
	return w
}

// queuedAs is a Pod whose update may begin, as the plan saw it.
func queuedAs(pod *Pod, request podops.Request) Queued {
	return Queued{
		NextPod: NextPod{pod.Name(), pod.UID()},
		Request: request,
		Version: pod.View.ResourceVersion,
		Serving: pod.facts().InService,
	}
}

// NextIsOurs reports whether it is this suite that has to move a Pod on whose update is under way: not a kubelet, a
// cooperator or a rule.
func NextIsOurs(pod *Pod) bool {
	v, op := pod.View, pod.facts().Op
	switch op.Phase {
	case podops.PhaseRequested, podops.PhasePreCheck, podops.PhaseFinished, podops.PhasePostCheck:
		return !heldByRule(pod)
	case podops.PhasePreChecked, podops.PhasePreparing:
		return !v.Protected() && (!v.Gate || !v.Ready)
	case podops.PhaseOperate:
		if pod.Recorded {
			return pod.Carried
		}
		return podops.Allowed(v, OperatorID, op.Type)
	case podops.PhasePostChecked, podops.PhaseCompleting:
		return v.Ready && len(podops.MissingEmployers(v)) == 0
	case podops.PhaseNone, podops.PhaseUndone, podops.PhaseAbandoned:
	}
	return true
}

// Hold is a decision about a CollaSet that begins to read: nothing of it is chosen until its plan is there, and what
// was chosen and is not sent is taken back.
func (w *Window) Hold(set types.NamespacedName, now time.Time) Answer {
	s := w.of(set)
	s.epoch++
	s.held = true
	for uid := range s.pods {
		w.takeBack(s, uid)
	}
	return w.serve(now)
}

// Foresee lets Pods whose begin was sent and is not seen yet look as they will, and forgets the steps that are seen.
// It follows upon Hold, with Pods that were read after that.
func (w *Window) Foresee(set types.NamespacedName, pods []Pod) {
	s := w.of(set)
	unseen := map[types.UID]bool{}
	for i := range pods {
		pod := &pods[i]
		p := s.pods[pod.UID()]
		if p == nil || p.sent == nil || p.sent.version != pod.View.ResourceVersion {
			continue
		}
		unseen[pod.UID()] = true
		if p.sent.begun != nil {
			pod.View, pod.Facts = p.sent.after, FactsOf(p.sent.after)
		}
	}
	for uid, p := range s.pods {
		if !unseen[uid] {
			p.sent = nil
			s.dropIfEmpty(uid)
		}
	}
}

// Planned is a decision about a CollaSet. Those of its Pods that begin now are in the answer.
func (w *Window) Planned(set types.NamespacedName, plan WindowPlan, now time.Time) Answer {
	s := w.of(set)
	s.held, s.allowed, s.next, s.spare = false, slices.Clone(plan.Allowed), slices.Clone(plan.Next), plan.Spare
	for uid, ours := range plan.UnderWay {
		if p := s.pod(uid); !p.underWay || p.ours != ours {
			w.turn(s, uid, ours, now)
		}
	}
	for uid := range s.pods {
		if _, underWay := plan.UnderWay[uid]; !underWay {
			w.leave(s, uid)
		}
	}
	w.line(set)
	return w.serve(now)
}

// Moved is an event of a Pod whose update is under way.
func (w *Window) Moved(set types.NamespacedName, uid types.UID, ours bool, now time.Time) Answer {
	s := w.known(set)
	if p := s.pods[uid]; p == nil || !p.underWay || p.ours == ours || p.chosen != nil {
		return Answer{}
	}
	w.turn(s, uid, ours, now)
	return w.serve(now)
}

// Back is a Pod that came back into service from its update, in this version of it: another may begin. An event may
// come later than the cache shows the Pod. What a decision, or the begin that follows upon one, has taken into account
// by then does not count twice.
func (w *Window) Back(set types.NamespacedName, uid types.UID, version string, now time.Time) Answer {
	s := w.known(set)
	p := s.pods[uid]
	if p == nil || !p.underWay || p.chosen != nil || p.sent != nil && p.sent.begun != nil && p.sent.version == version {
		return Answer{}
	}
	s.spare++
	w.leave(s, uid)
	w.line(set)
	return w.serve(now)
}

// Lost is a Pod that stopped serving by itself: one fewer may begin.
func (w *Window) Lost(set types.NamespacedName) { w.known(set).spare-- }

// Tick is time that has passed.
func (w *Window) Tick(now time.Time) Answer { return w.serve(now) }

// Chosen is the update to begin on a Pod now, nil for none.
func (w *Window) Chosen(set types.NamespacedName, uid types.UID) *Queued {
	if p := w.known(set).pods[uid]; p != nil {
		return p.chosen
	}
	return nil
}

// Send is a step that is about to be sent to a Pod, and reports whether it may be: each version of a Pod gets one
// step, for the second would only conflict, and a begin needs a Pod that is chosen. begun is the Pod as a begin
// leaves it, nil for another step.
func (w *Window) Send(set types.NamespacedName, pod *Pod, begun *podops.View) bool {
	s, uid, version := w.of(set), pod.UID(), pod.View.ResourceVersion
	p := s.pods[uid]
	isRepeated := p != nil && p.sent != nil && p.sent.version == version
	isChosen := p != nil && p.chosen != nil
	if isRepeated || begun != nil && !isChosen {
		return false
	}
	p = s.pod(uid)
	p.sent = &sentStep{version: version, epoch: s.epoch}
	if begun != nil {
		p.sent.begun, p.sent.after, p.chosen = p.chosen, *begun, nil
	}
	return true
}

// Failed is a step that was sent and not done: it may be sent again. decide reports whether its CollaSet has to be
// decided on for that: a decision may have counted on it meanwhile, and no event reports the failure.
func (w *Window) Failed(set types.NamespacedName, pod *Pod) (decide bool) {
	s := w.known(set)
	p := s.pods[pod.UID()]
	if p == nil || p.sent == nil || p.sent.version != pod.View.ResourceVersion {
		return true
	}
	sent := p.sent
	p.sent = nil
	if sent.begun == nil {
		s.dropIfEmpty(pod.UID())
		return true
	}
	if sent.epoch == s.epoch {
		p.chosen = sent.begun
		return false
	}
	w.leave(s, pod.UID())
	return true
}

// Drop takes back what was chosen: the Pod is not fit to begin.
func (w *Window) Drop(set types.NamespacedName, uid types.UID, now time.Time) Answer {
	w.takeBack(w.known(set), uid)
	return w.serve(now)
}

// Forget is a CollaSet that is no more.
func (w *Window) Forget(set types.NamespacedName, now time.Time) Answer {
	for uid := range w.known(set).pods {
		delete(w.places, uid)
	}
	delete(w.sets, set)
	return w.serve(now)
}

// Follows reports whether it is known which Pods of a CollaSet begin next.
func (w *Window) Follows(set types.NamespacedName) bool {
	s := w.known(set)
	return len(s.allowed)+len(s.next) > 0
}

// Counts are the places that are taken, and the CollaSets that wait for one.
func (w *Window) Counts(now time.Time) (taken, waiting int) {
	w.expire(now)
	for _, set := range w.turns {
		if w.known(set).mayBegin() {
			waiting++
		}
	}
	return len(w.places), waiting
}

// known is what is known of a CollaSet, or what there is to be known of one that was never decided on.
func (w *Window) known(set types.NamespacedName) *windowSet {
	if s := w.sets[set]; s != nil {
		return s
	}
	return &windowSet{}
}

func (w *Window) of(set types.NamespacedName) *windowSet {
	if w.sets[set] == nil {
		w.sets[set] = &windowSet{pods: map[types.UID]*windowPod{}}
	}
	return w.sets[set]
}

func (s *windowSet) pod(uid types.UID) *windowPod {
	if s.pods[uid] == nil {
		s.pods[uid] = &windowPod{}
	}
	return s.pods[uid]
}

// turn has a Pod be the suite's to move, or that of others, from now on.
func (w *Window) turn(s *windowSet, uid types.UID, ours bool, now time.Time) {
	most := w.limits.HandoverFor
	if ours {
		most = w.limits.OursFor
	}
	p := s.pod(uid)
	p.underWay, p.ours = true, ours
	w.places[uid] = now.Add(most)
}

// takeBack takes back what was chosen and is not sent, if there is anything.
func (w *Window) takeBack(s *windowSet, uid types.UID) {
	if p := s.pods[uid]; p != nil && p.chosen != nil {
		p.chosen = nil
		w.leave(s, uid)
	}
}

// leave is a Pod whose update is not under way, or not any more.
func (w *Window) leave(s *windowSet, uid types.UID) {
	delete(w.places, uid)
	if p := s.pods[uid]; p != nil {
		p.underWay = false
		s.dropIfEmpty(uid)
	}
}

// dropIfEmpty forgets a Pod of which nothing is left to know.
func (s *windowSet) dropIfEmpty(uid types.UID) {
	if p := s.pods[uid]; p.chosen == nil && p.sent == nil && !p.underWay {
		delete(s.pods, uid)
	}
}

// expire frees places that were taken for too long, and tells when the first of the others is.
func (w *Window) expire(now time.Time) (first time.Time) {
	for uid, until := range w.places {
		switch {
		case !until.After(now):
			delete(w.places, uid)
		case first.IsZero() || until.Before(first):
			first = until
		}
	}
	return first
}

func (s *windowSet) mayBegin() bool {
	return !s.held && (len(s.allowed) > 0 || len(s.next) > 0 && s.spare > 0)
}

// take takes the next Pod of a CollaSet that has one that may begin.
func (s *windowSet) take() (q Queued) {
	if len(s.allowed) > 0 {
		q, s.allowed = s.allowed[0], s.allowed[1:]
		return q
	}
	q, s.next = s.next[0], s.next[1:]
	s.spare--
	return q
}

// line puts a CollaSet that has a Pod to begin behind the others.
func (w *Window) line(set types.NamespacedName) {
	if w.known(set).mayBegin() && !slices.Contains(w.turns, set) {
		w.turns = append(w.turns, set)
	}
}

// serve chooses Pods while there are places, of one CollaSet after the other.
func (w *Window) serve(now time.Time) (a Answer) {
	w.turns = slices.DeleteFunc(w.turns, func(set types.NamespacedName) bool { return !w.known(set).mayBegin() })
	w.expire(now)
	for len(w.places) < w.limits.InFlight && len(w.turns) > 0 {
		set := w.turns[0]
		w.turns = w.turns[1:]
		s := w.known(set)
		q := s.take()
		s.pod(q.UID).chosen = &q
		w.turn(s, q.UID, true, now)
		a.Begin = append(a.Begin, Chosen{set, q.NextPod})
		w.line(set)
	}
	if first := w.expire(now); len(w.turns) > 0 && !first.IsZero() {
		a.Look = first.Sub(now)
	}
	return a
}

// MayBegin reports whether a Pod that was chosen may be begun as it is: it is as the plan had it, or differs in
// nothing that the plan depends on.
func (q *Queued) MayBegin(r *Rollout, pod *Pod) bool {
	return q.UID == pod.UID() && (q.Version == pod.View.ResourceVersion || q.Serving && r.NextStep(pod) == StepBegin)
}
