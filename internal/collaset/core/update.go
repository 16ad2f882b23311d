package core

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// candidate is a slot that the update strategy may choose: a live Pod, or a vacant entry.
type candidate struct {
	it    *item
	entry *slot
}

func (c candidate) revision() string {
	if c.it != nil {
		return c.it.Revision
	}
	return c.entry.revision()
}

// arriving says whether the slot's Pod is being replaced by one of this revision, and whether for good.
func (c candidate) arriving(revision string) (comes, forGood bool) {
	if c.it == nil {
		return false, false
	}
	return c.it.arriving(revision)
}

// chooseScope says which slots the update strategy wants at the updated revision.
func (d *decision) chooseScope() {
	if d.s.Halted != nil {
		d.chooseHalted()
		return
	}
	if d.s.ByLabel {
		for _, it := range d.live {
			it.inScope = it.Included || it.Revision == d.s.UpdatedRevision
		}
		return
	}
	candidates := make([]candidate, 0, len(d.live))
	for _, it := range d.live {
		if !it.victim && it.newOf == nil {
			candidates = append(candidates, candidate{it: it})
		}
	}
	var vacant []*slot
	for id, e := range d.entries {
		if e.active() && d.holder[id] == nil {
			vacant = append(vacant, e)
		}
	}
	slices.SortFunc(vacant, func(a, b *slot) int { return cmp.Compare(a.id, b.id) })
	for _, e := range vacant {
		candidates = append(candidates, candidate{entry: e})
	}
	count := len(candidates)
	if d.s.Partition > 0 {
		count = min(count, max(d.s.Replicas-d.s.Partition, 0))
	}
	if count < len(candidates) {
		slices.SortFunc(candidates, d.updateOrder)
	}
	if d.s.Returned {
		// A partition keeps Pods at the revision they come from, which is this one.
		for _, it := range d.live {
			it.inScope = !it.victim && d.known(it.Revision)
		}
	}
	for _, c := range candidates[:count] {
		switch {
		case c.it != nil:
			c.it.inScope = true
		case !d.s.Paused:
			// A vacant slot needs no Pod to be touched: it is filled at the updated revision.
			d.must(c.entry, appsv1alpha1.ContextRevision, d.s.UpdatedRevision)
		}
	}
}

// updateOrder puts first whom an update takes first: what is done or begun, so that the choice stays, then whom it costs
// least, then the youngest.
func (d *decision) updateOrder(a, b candidate) int {
	updated := func(c candidate) bool {
		_, forGood := c.arriving(d.s.UpdatedRevision)
		return forGood || c.revision() == d.s.UpdatedRevision
	}
	begun := func(c candidate) bool {
		comes, _ := c.arriving(d.s.UpdatedRevision)
		return comes || c.it != nil && c.it.during == podops.TypeUpdate
	}
	if o := cmp.Or(first(updated(a), updated(b)), first(begun(a), begun(b)),
		first(a.it != nil, b.it != nil)); o != 0 {
		return o
	}
	if a.it == nil {
		return -cmp.Compare(a.entry.id, b.entry.id)
	}
	return costOrder(a.it, b.it)
}

// costOrder puts first the Pods whose update costs least service.
func costOrder(a, b *item) int {
	return cmp.Or(
		first(!a.Available, !b.Available),
		first(!a.Scheduled, !b.Scheduled),
		first(!a.View.Ready, !b.View.Ready),
		-a.ReadySince.Compare(b.ReadySince),
		-a.Created.Compare(b.Created),
		-cmp.Compare(a.ID, b.ID),
		cmp.Compare(a.Name(), b.Name()),
	)
}

// way is how a Pod gets to the updated revision.
type way int

const (
	inPlace way = iota
	recreate
	// replaceIt: replace has it in hand.
	replaceIt
	refuse
)

// wayOf says how a Pod gets to the updated revision, and if not at all, why.
func (d *decision) wayOf(it *item) (w way, reason, message string) {
	difference, known := d.s.Revisions[it.Revision]
	possible := known && len(difference.Forcing) == 0
	forcing := difference.Forcing
	if !known {
		forcing = []string{fmt.Sprintf("its revision %q is not known any more", it.Revision)}
	}
	if d.s.Policy == appsv1alpha1.PodUpdateReplace {
		return replaceIt, "", "" // another Pod has other claims
	}
	if message := d.refusedExpansion(it); message != "" {
		return refuse, BlockExpansionRefused, message
	}
	switch d.s.Policy {
	case appsv1alpha1.PodUpdateRecreate:
		return recreate, "", ""
	case appsv1alpha1.PodUpdateInPlaceOnly:
		if !possible {
			return refuse, "InPlaceImpossible", "podUpgradePolicy is InPlaceOnly, but a running Pod cannot take over: " + strings.Join(forcing, ", ") +
				"; put these fields back, or set podUpgradePolicy to InPlaceIfPossible"
		}
		return inPlace, "", ""
	default:
		if possible {
			return inPlace, "", ""
		}
		return recreate, "", ""
	}
}

// update moves every Pod's update one step: what is done is finished, what is allowed is changed, what is no longer
// wanted is cancelled, and then more is begun.
func (d *decision) update() {
	var ready []*item
	var under flight
	blocked := d.holds(func(p Problem) bool { return p.Update })
	d.stand(blocked)
	for id, e := range d.entries {
		if e.active() && d.holder[id] == nil && e.marked(appsv1alpha1.ContextPodRecreateUpdate) {
			under.offline++ // between its deletion and its creation
		}
	}
	for _, it := range d.live {
		if it.victim || it.during == podops.TypeScaleIn {
			continue
		}
		under.count(it, d.s)
		need := it.inScope && it.newOf == nil && it.Revision != d.s.UpdatedRevision
		if need {
			d.waiting++
			if w, reason, message := d.wayOf(it); w == refuse {
				d.block(it, reason, message)
				d.refused, need = true, false
			}
		}
		need = need && !blocked && !d.putOff(it) && !d.replaced(it)
		d.order(it, need)
		if d.s.Protocol {
			need = d.carryOn(it, need)
		} else {
			need = d.settle(it, need)
		}
		if need {
			ready = append(ready, it)
		}
	}
	switch {
	case len(ready) == 0:
	case d.s.Paused:
		for _, it := range ready {
			d.block(it, "Paused", "is to be updated, but the CollaSet is paused")
		}
	case d.s.Protocol:
		d.beginUpdates(ready, under)
	default:
		d.updateDirectly(ready)
	}
}

// flight counts the Pods on which our update is under way.
type flight struct {
	offline, fresh int
	// any says that there are some.
	any bool
	// baking are those that are updated and in service, but not available yet.
	baking int
	// settles is when the first of the fresh ones is no longer; 0 if there are none.
	settles time.Duration
}

func (f *flight) count(it *item, s *Snapshot) {
	now := s.Now
	switch {
	case offline(it.op):
		f.offline++
	case it.during == podops.TypeUpdate && s.MinReady > 0:
		// What is asked for counts as well: the rules would let it pass while others bake.
		f.baking++
	case it.Revision == s.UpdatedRevision && !it.Available:
		f.baking++
	}
	if !offline(it.op) && it.during != podops.TypeUpdate {
		return
	}
	f.any = true
	stamp, known := podops.TimeOf(it.op.Request)
	most := FreshFor
	if it.Recorded && !it.Carried || it.op.Phase == podops.PhasePreparing {
		most = HandedOverFor
	}
	if age := now.Sub(stamp); known && age >= 0 && age < most {
		f.fresh++
		if left := most - age; f.settles == 0 || left < f.settles {
			f.settles = left
		}
	}
}

// maxInFlight bounds the Pods that are being updated, or are updated and not available yet. Where Pods have to stay Ready
// to count as available, a revision that fails late shall not get at more than a quarter of them.
func (d *decision) maxInFlight() int {
	if d.s.MinReady == 0 {
		return maxBegins
	}
	return min(maxBegins, max(1, (d.s.Replicas+3)/4))
}

// offline says that our update keeps the Pod out of service, up to the moment it serves again.
func offline(op podops.Operation) bool {
	return op.Offline() || op.Phase == podops.PhaseCompleting || op.Phase == podops.PhasePostChecked
}

// carryOn moves an update under the protocol and says whether one has yet to be begun.
func (d *decision) carryOn(it *item, need bool) (begin bool) {
	updating := it.during == podops.TypeUpdate
	switch {
	case need && updating:
		if d.due(it, d.s.UpdateDelay) {
			d.act(it)
		}
	case updating && it.Recorded:
		if it.Revision == d.s.UpdatedRevision {
			d.waiting++
		}
		d.carried(it, podops.Allowed(it.View, OperatorID, it.during))
	case updating:
		d.plan.Cancels = append(d.plan.Cancels, it.Pod)
	case need && it.ToDelete:
		d.block(it, "WaitingForDeletion", "is being deleted and comes back")
	default:
		return need
	}
	return false
}

// act changes or deletes a Pod on which that is allowed.
func (d *decision) act(it *item) {
	if d.claimsFirst(it) {
		return
	}
	if w, _, _ := d.wayOf(it); w == inPlace {
		d.plan.Changes = append(d.plan.Changes, it.Pod)
		return
	}
	if d.moving {
		return // nothing is removed in this plan
	}
	if e := d.entries[it.ID]; e != nil {
		d.must(e, appsv1alpha1.ContextRevision, d.s.UpdatedRevision)
		d.must(e, appsv1alpha1.ContextPodRecreateUpdate, appsv1alpha1.ContextTrue)
	}
	d.plan.Deletions = append(d.plan.Deletions, Deletion{it.Pod, DeleteRecreate})
}

// beginUpdates asks for the updates of a bounded number of Pods. Pods that are down anyway cost no service and do not
// count against the Pods in flight: a broken revision can always be repaired.
func (d *decision) beginUpdates(ready []*item, under flight) {
	room := maxBegins - len(d.plan.Begins)
	ahead := 0
	if !d.flows() {
		// The next decision comes when so many have left: on average as many are under way as if each were followed at once.
		ahead = min(d.s.Leaving/2, MaxFresh)
	}
	serving := min(d.maxInFlight()-under.offline-under.baking, MaxFresh+ahead-under.fresh)
	beside := serving
	if d.s.Room != nil {
		beside = *d.s.Room
	}
	slices.SortFunc(ready, costOrder)
	for _, it := range ready {
		queues := it.inService && min(serving, beside) <= 0 && d.queues(it)
		switch {
		case queues, it.inService && serving <= 0:
			if serving <= 0 {
				// Pods that come back into service make events; those that take long make none.
				d.look(max(under.settles, d.s.Rest))
			}
			if queues {
				d.queue(it)
			}
			d.block(it, "InFlightLimit", "enough Pods of this CollaSet or of others are being updated or not available yet; the next begins when one is available or takes long")
			continue
		case room <= 0:
			d.plan.More = true
			return
		}
		room--
		if it.inService {
			serving--
			beside--
		}
		if d.claimsFirst(it) {
			continue
		}
		w, _, _ := d.wayOf(it)
		d.begin(it, podops.TypeUpdate, w == recreate)
		if w == inPlace && d.plan.Standing != nil && !it.Recorded {
			d.plan.Standing.From[it.UID()] = it.Revision
		}
	}
	if d.flows() {
		d.plan.Standing.Room = max(0, serving)
		d.waits = !under.any && serving > 0 && len(d.plan.Standing.Next) > 0 && len(d.plan.Begins) == 0
	}
}

// settle ends an in-place change made without the protocol and says whether another is needed.
func (d *decision) settle(it *item, need bool) bool {
	if need || !it.Recorded {
		return need
	}
	if !it.Carried {
		d.waiting++
	}
	d.carried(it, true)
	return false
}

// updateDirectly takes at most one Pod out of service at a time: while any Pod is missing, unavailable or being changed,
// only Pods that do not serve anyway are updated.
func (d *decision) updateDirectly(ready []*item) {
	slices.SortFunc(ready, costOrder)
	serves := func(it *item) bool { return it.Available && (!it.Recorded || it.Carried) }
	disrupted := d.replicas() < d.s.Replicas
	for _, it := range d.live {
		disrupted = disrupted || (!it.victim && it.newOf == nil && !serves(it))
	}
	for i, it := range ready {
		switch {
		case i >= maxBegins:
			d.plan.More = true
			return
		case serves(it) && disrupted:
			d.block(it, "OneAtATime", "another Pod is not available; without the lifecycle Pods are updated one at a time")
		default:
			disrupted = true
			d.act(it)
		}
	}
}
