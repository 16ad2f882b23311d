package setplan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

const (
	// minLazy is the number of entries that may lag behind their Pods before the ResourceContext is written for them
	// alone, and lazyShare the share of them, if that is more: a write is as large as there are entries, and in an
	// operation on all Pods there are no more than lazyShare of them.
	minLazy   = 64
	lazyShare = 4
	// maxBlockers bounds the reasons in status.
	maxBlockers = 16
)

// Decide says what is due. Its cost is O(Pods log Pods) for one sort by ID; everything else is linear.
func Decide(s *Snapshot) Plan {
	d := newDecision(s)
	d.findProblems()
	if s.Deleting {
		d.reclaim()
		return d.done()
	}
	d.readEntries()
	d.repair()
	d.avoidHalted()
	if !d.holds(func(p Problem) bool { return p.Scale }) {
		d.planMembership()
		d.chooseCondemned()
		d.fillSlots()
	}
	d.chooseScope()
	d.replace()
	d.scaleIn()
	d.update()
	d.removeTerminal()
	d.create()
	d.keepClaims()
	d.markPodsToDelete()
	d.takeNames()
	d.relabelPods()
	d.storeEntries()
	d.computeGoal()
	return d.done()
}

// item is a Pod with what the decision finds out about it.
type item struct {
	*Pod
	op podops.Operation
	// during is the type of our operation while it is asked for or carried out, "" otherwise.
	during string
	// inService is true if the Pod has the label service-available.
	inService bool
	// twin is true if an older live Pod carries the same ID.
	twin      bool
	condemned bool
	inScope   bool
	// excluding is true if the Pod is to be excluded now: it does not count. staying says why it is not, although it should
	// be: it counts as gone for scale-in, and nothing that would delete it is done to it.
	excluding bool
	staying   string
	// ranks are the numbers of Pods of the same domain that scale-in would remove later, by constraint.
	ranks []int
	// pairing is what the labels say of a replacement, and wish whether there is to be one. pair is the pair of which this
	// is the origin, newOf the one of which it is the new Pod.
	pairing pairing
	wish    replaceReason
	pair    *pair
	newOf   *pair
	// spared is true if the Pod is named, and is not deleted for that before it has another Pod's place.
	spared bool
	// handed is true if the Pod is on its way out by this plan; labels and told are for Plan.Labels.
	handed bool
	labels map[string]*string
	told   ReplacementEvent
}

type decision struct {
	s     *Snapshot
	plan  Plan
	items []*item

	live     []*item       // live, not twins; by ID
	holder   map[int]*item // the live Pod of an ID
	leaving  map[int]*item // a terminating or terminal Pod of an ID
	freed    map[int]bool  // IDs of Pods that are excluded in this plan
	named    map[string]bool
	entries  map[int]*slot
	claims   claimIndex
	blockers map[string]*Blocker
	foreign  map[int]string // the other CollaSet that has an ID
	included map[int]bool   // IDs given to Pods that are included
	moving   bool           // Pods are excluded or included in this plan
	held     map[int]bool   // IDs of Pods that are no members and may not be doubled
	repairs  []Repair
	refused  bool    // an update in scope is refused
	budget   *budget // see updateBudget
	refuses  string  // what the API server refuses, and why; "" for nothing
	waiting  int     // Pods in scope that are not at their goal
	underWay bool    // the update of some Pod is under way

	pairs     []*pair // by the origin's ID
	replacing bool    // Pods are being replaced, or are to be
	// taken are the IDs in use, once somebody asks; none below nextID is free.
	taken  map[int]bool
	nextID int

	mustStore, mayStore, release int
}

func newDecision(s *Snapshot) *decision {
	d := &decision{
		s: s, items: make([]*item, len(s.Pods)), live: make([]*item, 0, len(s.Pods)),
		holder: make(map[int]*item, len(s.Pods)), leaving: map[int]*item{}, freed: map[int]bool{}, named: map[string]bool{},
		entries: make(map[int]*slot, len(s.Entries)), blockers: map[string]*Blocker{},
	}
	for _, name := range s.ToDelete {
		d.named[name] = true
	}
	excluded := map[string]bool{}
	for _, name := range s.ToExclude {
		excluded[name] = true
	}
	d.indexClaims()
	pods := make([]item, len(s.Pods))
	for i := range s.Pods {
		pod := &s.Pods[i]
		facts := pod.facts()
		it := item{Pod: pod, op: facts.Op, during: facts.During, inService: facts.InService, pairing: pairingOf(pod)}
		d.identify(&it)
		it.excluding, it.staying = d.toExclude(&it, excluded)
		pods[i] = it
		d.items[i] = &pods[i]
	}
	// Of several live Pods with one ID the oldest comes first and keeps it.
	slices.SortFunc(d.items, func(a, b *item) int {
		if a.ID != b.ID {
			return cmp.Compare(a.ID, b.ID)
		}
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name(), b.Name()))
	})
	for _, it := range d.items {
		switch {
		case it.excluding:
			d.freed[it.ID] = true
		case !it.Live():
			d.leave(it)
		case it.ID == NoID:
			d.live = append(d.live, it)
		case d.holder[it.ID] != nil:
			it.twin, it.condemned = true, it.staying == ""
		default:
			d.holder[it.ID] = it
			d.live = append(d.live, it)
		}
	}
	d.indexMounts()
	return d
}

// operationOf is our operation on a Pod. Most Pods have none, which one look at their labels shows.
func operationOf(v podops.View) (op podops.Operation, known bool) {
	if Operated(v.Labels) {
		return podops.OperationOf(v, OperatorID), true
	}
	return podops.Operation{ID: OperatorID}, false
}

// duringOf is the type of an operation while it is asked for or carried out, "" otherwise.
func duringOf(o podops.Operation) string {
	switch o.Phase {
	case podops.PhaseRequested, podops.PhasePreCheck, podops.PhasePreChecked, podops.PhasePreparing, podops.PhaseOperate:
		return o.Type
	case podops.PhaseNone, podops.PhaseFinished, podops.PhasePostCheck, podops.PhasePostChecked, podops.PhaseCompleting,
		podops.PhaseUndone, podops.PhaseAbandoned:
	}
	return ""
}

// findProblems names what keeps the set from going on until somebody changes something.
func (d *decision) findProblems() {
	d.checkNames(func(p Problem) { d.plan.Problems = append(d.plan.Problems, p) })
}

// holds reports whether some problem holds something back.
func (d *decision) holds(what func(Problem) bool) bool {
	return slices.ContainsFunc(d.plan.Problems, what)
}

// block counts a Pod that waits. Pods come in one order always, so that the example in the message does not flap.
func (d *decision) block(it *item, reason, message string) { d.blockName(it.Name(), reason, message) }

func (d *decision) blockName(pod, reason, message string) {
	b := d.blockers[reason]
	if b == nil {
		b = &Blocker{Reason: reason, Message: fmt.Sprintf("Pod %s: %s", pod, message)}
		d.blockers[reason] = b
	}
	b.Count++
}

// look asks for another decision after a time.
func (d *decision) look(in time.Duration) {
	if in > 0 && (d.plan.NextLook == 0 || in < d.plan.NextLook) {
		d.plan.NextLook = in
	}
}

// due reports whether the operator may act on the Pod now: it has permission, and the delay has passed since it first
// saw it.
func (d *decision) due(it *item, delay time.Duration) bool {
	if !podops.Allowed(it.View, OperatorID, it.during) {
		reason, message := waitFor(it)
		d.block(it, reason, message)
		return false
	}
	if it.AllowedSince.IsZero() {
		d.look(delay)
		return delay <= 0
	}
	if left := delay - d.s.Now.Sub(it.AllowedSince); left > 0 {
		d.block(it, "OperationDelay", "permission is there; waiting for operationDelaySeconds to pass")
		d.look(left)
		return false
	}
	return true
}

// waitFor says what our operation on a Pod waits for. Rules are not read here, so a Pod before the rules is named as
// such; the rules' own status says which of them blocks it.
func waitFor(it *item) (reason, message string) {
	if stage, waits := podops.StageOfPhase(it.op.Phase); waits && stage == appsv1alpha1.StagePreCheck {
		if reason, message := unheld(it, OperatorID); reason != "" {
			return reason, message
		}
		return "WaitingForPermission", "PodTransitionRules have not let the " + it.during + " pass; their status says why"
	}
	for _, w := range podops.Explain(it.View, nil) {
		if w.ID == OperatorID {
			if w.Reason == podops.WaitOperator {
				// In Operate, and yet not allowed.
				if it.View.Protected() {
					return string(podops.WaitFinalizer), "a cooperator still holds the Pod: " + strings.Join(podops.ProtectionFinalizers(it.View.Finalizers), ", ")
				}
				return string(podops.WaitNotReady), "the Pod is still observed to be Ready"
			}
			return string(w.Reason), w.Message
		}
	}
	return string(podops.WaitLifecycle), "the next step is lifecycle-controller's"
}

// unheld says which finalizer an operation on a Pod waits for, and since when, if it does; "" if not, or if a rule
// has told that it holds the Pod.
func unheld(it *item, id string) (reason, message string) {
	if heldByRule(it.Pod) {
		return "", ""
	}
	for _, w := range podops.Explain(it.View, nil) {
		if w.ID != id || w.Reason != podops.WaitExpected || it.ReadySince.IsZero() {
			continue
		}
		return string(w.Reason), fmt.Sprintf("%s (Ready since %s)", w.Message, it.ReadySince.UTC().Format(time.RFC3339))
	}
	return "", ""
}

// heldByRule reports whether a rule has had something against an operation on the Pod for a while, as the Pod itself
// tells.
func heldByRule(pod *Pod) bool {
	for key := range pod.View.Annotations {
		if strings.HasPrefix(key, podops.RuleDetailPrefix+"/") {
			return true
		}
	}
	return false
}

// begin asks for an operation, unless one of that type is under way.
func (d *decision) begin(it *item, opType string, deletes bool) {
	d.plan.Begins = append(d.plan.Begins, Begin{it.Pod, podops.Request{ID: OperatorID, Type: opType, Deletes: deletes}})
}

// reclaim takes a deleted CollaSet's Pods out, and then itself.
func (d *decision) reclaim() {
	if d.holds(func(p Problem) bool { return p.Deletion }) {
		return
	}
	d.plan.Problems = nil // nothing else matters any more
	left := d.repairLast()
	d.releaseClaims()
	for _, it := range d.items {
		switch {
		case d.s.Orphaning:
			d.block(it, "WaitingForGarbageCollector", "is to be left behind, and the garbage collector has not taken its owner reference off yet")
		case it.View.Terminating:
			d.block(it, "Terminating", "is being deleted")
		case !d.s.Protocol:
			d.plan.Deletions = append(d.plan.Deletions, Deletion{it.Pod, DeleteReclaim})
		case !it.ToDelete:
			d.plan.Marks = append(d.plan.Marks, it.Pod)
		default:
			if reason, message := unheld(it, podops.DeletionID); reason != "" {
				d.block(it, reason, message)
				continue
			}
			d.leaves(it, "is handed to lifecycle-controller, which deletes it as soon as it may")
		}
	}
	d.plan.Release = len(d.items) == 0 && !left
}

// markPodsToDelete hands the Pods of podToDelete over, as long as they are not removed by scale-in anyway.
func (d *decision) markPodsToDelete() {
	if d.s.Paused || d.moving || d.holds(func(p Problem) bool { return p.Scale }) {
		return
	}
	for _, it := range d.live {
		switch {
		case !d.named[it.Name()] || it.condemned || it.handed || it.spared || it.staying != "":
		case d.s.Protocol && !it.ToDelete:
			d.plan.Marks = append(d.plan.Marks, it.Pod)
		case d.s.Protocol:
			if why, refused := podops.DeletionRefused(it.View); refused {
				d.stall(it, Trial{Write: TrialDelete}, why)
			}
		case d.s.Sequential && d.s.Conventions != KuperatorV07:
			// Its successor has the same name and would be deleted again, for ever.
			d.block(it, "PodToDeleteIgnored", "podToDelete with PersistentSequence names only chooses what scale-in removes when the lifecycle is off; delete the Pod instead")
		default:
			d.plan.Deletions = append(d.plan.Deletions, Deletion{it.Pod, DeleteNamed})
		}
	}
}

// computeGoal says where the set stands, once everything is decided.
func (d *decision) computeGoal() {
	missing := d.replicas() != d.s.Replicas
	surplus := slices.ContainsFunc(d.items, func(it *item) bool { return it.condemned })
	// lacking is what the Pod lacks that is furthest from being available, awaited the first of what such Pods wait for.
	lacking, awaited := LacksNothing, ""
	for _, it := range d.live {
		if it.Available {
			continue
		}
		d.look(it.AvailableIn)
		lack := unavailableReason(it.Pod)
		if lack > lacking {
			lacking, awaited = lack, ""
		}
		if lack == lacking && it.Awaited != "" && (awaited == "" || it.Awaited < awaited) {
			awaited = it.Awaited
		}
	}
	scaled := !missing && !surplus && !d.moving
	d.plan.Goal = Goal{
		ScaleReached:  scaled,
		UpdateReached: d.waiting == 0,
		Replacing:     d.replacing,
		Lacking:       lacking,
		Awaited:       awaited,
		Held:          d.refused,
		Refusal:       d.refuses,
		UpdatesOnly:   d.waiting > 0 && !d.underWay && scaled && lacking == LacksNothing && !d.replacing && !d.refused,
	}
}

// unavailableReason says what a Pod that is not available lacks first.
func unavailableReason(pod *Pod) Lack {
	switch {
	case !pod.Scheduled:
		return LacksNode
	case pod.ReadySince.IsZero():
		return LacksReady
	case pod.AvailableIn > 0:
		return LacksTime
	}
	return LacksService
}

// done sorts what was collected.
func (d *decision) done() Plan {
	sortTrials(d.plan.Trials)
	for _, b := range d.blockers {
		d.plan.Blockers = append(d.plan.Blockers, *b)
	}
	d.plan.sortBlockers()
	return d.plan
}
