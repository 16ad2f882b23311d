package setplan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

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

// arriving reports whether the slot's Pod is being replaced by one of this revision, and whether for good.
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
		if !it.condemned && it.newOf == nil {
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
	if d.s.Returned && d.s.Conventions != KuperatorV07 {
		// A partition keeps Pods at the revision they come from, which is this one.
		for _, it := range d.live {
			it.inScope = !it.condemned && d.known(it.Revision)
		}
	}
	for _, c := range candidates[:count] {
		switch {
		case c.it != nil:
			c.it.inScope = true
		case d.s.Paused:
		default:
			// A vacant slot needs no Pod to be touched: it is filled at the updated revision, if that can be had.
			revision := d.s.UpdatedRevision
			if instead, refused := d.refusedRevision(revision); refused {
				revision = instead
			}
			d.must(c.entry, appsv1alpha1.ContextRevision, revision)
		}
	}
}

// updateOrder puts first whom an update takes first: what is done or begun, so that the choice stays, then whom it
// costs least, then the youngest.
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

// updateMethod is how a Pod gets to the updated revision.
type updateMethod int

const (
	inPlace updateMethod = iota
	// quietly is in place without a restart, so that the Pod stays in service.
	quietly
	recreate
	// replaceIt: replace has it in hand.
	replaceIt
	refuse
)

// methodOf says how a Pod gets to the updated revision, and if not at all, why.
func (d *decision) methodOf(it *item) (w updateMethod, reason, message string) {
	difference, known := d.s.Revisions[it.Revision]
	possible := known && len(difference.Forcing) == 0
	forcing := difference.Forcing
	if !known {
		forcing = []string{fmt.Sprintf("its revision %q is not known any more", it.Revision)}
	}
	if d.s.Policy == appsv1alpha1.PodUpdateReplace {
		return replaceIt, "", "" // another Pod has other claims
	}
	if it.unfit() && it.Revision == d.s.UpdatedRevision {
		return recreate, "", ""
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
		return d.inPlaceWay(difference), "", ""
	default:
		if possible {
			return d.inPlaceWay(difference), "", ""
		}
		return recreate, "", ""
	}
}

// inPlaceWay is the way of a change that a running Pod takes over. Kuperator v0.7 asks the rules about each.
func (d *decision) inPlaceWay(difference Difference) updateMethod {
	if difference.Quiet && d.s.Conventions != KuperatorV07 {
		return quietly
	}
	return inPlace
}

// update moves every Pod's update one step: what is done is finished, what is allowed is changed, what is no longer
// wanted is cancelled, and then more is begun.
func (d *decision) update() {
	var ready []*item
	blocked := d.holds(func(p Problem) bool { return p.Update })
	d.startRollout(blocked)
	for id, e := range d.entries {
		if e.active() && d.holder[id] == nil && e.marked(appsv1alpha1.ContextPodRecreateUpdate) {
			d.underWay = true // between its deletion and its creation
			d.waiting++
		}
	}
	for _, it := range d.live {
		if it.condemned || it.during == podops.TypeScaleIn {
			continue
		}
		d.underWay = d.underWay || offline(it.op) || it.during == podops.TypeUpdate
		need := d.toUpdate(it)
		if need {
			d.waiting++
			need = d.takes(it)
		}
		need = need && !blocked && !d.putOff(it) && !d.replaced(it)
		if need && it.during == "" && d.isQuiet(it) {
			d.changeQuietly(it)
			continue
		}
		d.follow(it, need)
		if d.s.Protocol {
			need = d.advanceUpdate(it, need)
		} else {
			need = d.finishUpdate(it, need)
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
		d.beginUpdates(ready)
	default:
		d.updateDirectly(ready)
	}
}

// takes reports whether a Pod can get to the updated revision; why not is a blocker.
func (d *decision) takes(it *item) bool {
	w, reason, message := d.methodOf(it)
	if w == refuse {
		d.block(it, reason, message)
		d.refused = true
		return false
	}
	return !d.refusedBy(it, d.trialsFor(it, w)...)
}

// isQuiet reports whether the Pod's update restarts nothing.
func (d *decision) isQuiet(it *item) bool {
	w, _, _ := d.methodOf(it)
	return w == quietly
}

// changeQuietly has a Pod updated while it serves: that is no operation of the protocol. New resources come to no
// more Pods at a time than may be unavailable all the same: with too little memory they would all be killed at once.
func (d *decision) changeQuietly(it *item) {
	switch {
	case d.s.Paused:
		d.block(it, "Paused", "is to be updated, but the CollaSet is paused")
	case d.s.Protocol && it.ToDelete:
		d.leaves(it, "is being deleted and comes back")
	case len(d.plan.Changes) >= d.s.limits().Begins:
		d.plan.More = true
	case d.s.Revisions[it.Revision].Resizes && !d.updateBudget().allows(it):
		d.block(it, BlockMaxUnavailable, d.budgetSpent())
	case !d.tried(it, verdictLasts, d.trialsFor(it, quietly)...), d.claimsFirst(it):
	default:
		d.updateBudget().take(it)
		d.plan.Changes = append(d.plan.Changes, it.Pod)
	}
}

// offline reports whether our update keeps the Pod out of service, up to the moment it serves again.
func offline(op podops.Operation) bool {
	return op.Offline() || op.Phase == podops.PhaseCompleting || op.Phase == podops.PhasePostChecked
}

// advanceUpdate moves an update under the protocol and says whether one has yet to be begun.
func (d *decision) advanceUpdate(it *item, need bool) (begin bool) {
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
	case updating && d.s.Conventions == KuperatorV07 && it.Included && it.Revision == d.s.UpdatedRevision && podops.Allowed(it.View, OperatorID, it.during):
		d.plan.Finishes = append(d.plan.Finishes, it.Pod) // what restarts nothing is not recorded, and the label goes with its end
	case updating:
		d.plan.Cancels = append(d.plan.Cancels, it.Pod)
	case need && it.ToDelete:
		d.leaves(it, "is being deleted and comes back")
	case !need && it.Recorded && !offline(it.op):
		return d.carriedQuietly(it)
	default:
		return need
	}
	return false
}

// carriedQuietly moves a change that was made on a serving Pod to its end. It reports whether the Pod has to be created
// anew, which is an operation of its own.
func (d *decision) carriedQuietly(it *item) (begin bool) {
	if !it.Carried {
		d.waiting++
	}
	way := inPlace
	switch {
	case it.ResizeDue && it.ResizeRestarts:
	case it.unfit() && d.s.Policy != appsv1alpha1.PodUpdateInPlaceOnly && d.known(it.Revision):
		way = recreate
	default:
		d.carried(it, true)
		return false
	}
	return !it.ToDelete && !d.putOff(it) && !d.refusedBy(it, d.trialsFor(it, way)...)
}

// unfit reports whether the Pod cannot get the resources of its revision where it is.
func (it *item) unfit() bool { return it.Recorded && it.Infeasible }

// act changes or deletes a Pod on which that is allowed.
func (d *decision) act(it *item) {
	if d.claimsFirst(it) {
		return
	}
	if w, _, _ := d.methodOf(it); w == inPlace || w == quietly {
		d.plan.Changes = append(d.plan.Changes, it.Pod)
		return
	}
	if d.moving || !d.anew(it) {
		return // nothing is removed in this plan
	}
	if e := d.entries[it.ID]; e != nil {
		d.must(e, appsv1alpha1.ContextRevision, d.s.UpdatedRevision)
		d.must(e, appsv1alpha1.ContextPodRecreateUpdate, appsv1alpha1.ContextTrue)
	}
	d.plan.Deletions = append(d.plan.Deletions, Deletion{it.Pod, DeleteRecreate})
}

// beginUpdates asks for the updates of all Pods that the budget allows. When each begins, the window says: see
// Plan.Admit.
func (d *decision) beginUpdates(ready []*item) {
	budget := d.updateBudget()
	slices.SortFunc(ready, costOrder)
	for _, it := range ready {
		w, _, _ := d.methodOf(it)
		switch {
		case !d.tried(it, verdictLasts, d.trialsFor(it, w)...):
		case !budget.allows(it):
			d.block(it, BlockMaxUnavailable, d.budgetSpent())
			d.queue(it, w)
		default:
			budget.take(it)
			if d.claimsFirst(it) {
				continue
			}
			d.begin(it, podops.TypeUpdate, w == recreate)
			if w == inPlace && d.plan.Rollout != nil && !it.Recorded {
				d.plan.Rollout.From[it.UID()] = it.Revision
			}
		}
	}
	if d.plan.Rollout != nil {
		d.plan.Rollout.Spare = budget.available
	}
}

// BlockMaxUnavailable is the reason of Pods that wait because enough others are not available.
const BlockMaxUnavailable = "MaxUnavailable"

// budget is what MaxUnavailable leaves: how many available Pods updates may take out of service now, and how many of
// those that serve, but have to do so for longer to be available. Against the first counts every Pod that is missing,
// not available, or under an update, also one that a rule holds back: the rule may let all of them go at once.
// Against the second only those under an update count: else a revision that never becomes available could not be
// repaired.
type budget struct{ available, serving int }

// updateBudget is the one budget of a decision, from which all of it takes.
func (d *decision) updateBudget() *budget {
	if d.budget != nil {
		return d.budget
	}
	most := d.s.MaxUnavailable
	switch {
	case most == 0 && d.s.Protocol:
		most = 2 * (len(d.live) + d.s.Replicas)
	case most == 0:
		most = 1
	}
	d.budget = &budget{available: most - d.s.Replicas, serving: most}
	for _, it := range d.live {
		updating := it.during == podops.TypeUpdate || offline(it.op) || it.Recorded && !it.Carried
		if updating {
			d.budget.serving--
		}
		if it.Available && !updating && !it.condemned && it.newOf == nil {
			d.budget.available++
		}
	}
	d.budget.available = min(d.budget.available, most)
	return d.budget
}

// allows reports whether the Pod may be taken out of service. One that does not serve, or that counts already, may
// always.
func (b *budget) allows(it *item) bool {
	switch {
	case it.Recorded && !it.Carried:
		return true
	case it.Available:
		return b.available > 0
	case it.inService && it.View.Ready:
		return b.serving > 0
	}
	return true
}

// take counts a Pod that is taken out.
func (b *budget) take(it *item) {
	if it.Recorded && !it.Carried {
		return
	}
	if it.Available {
		b.available--
	}
	if it.inService {
		b.serving--
	}
}

// budgetSpent names the bound, and what ends the wait.
func (d *decision) budgetSpent() string {
	return fmt.Sprintf("as many Pods are being updated or not available as updateStrategy.rollingUpdate.maxUnavailable allows (%d of %d); the next begins when one is available",
		d.s.MaxUnavailable, d.s.Replicas)
}

// finishUpdate ends an in-place change made without the protocol and says whether another is needed.
func (d *decision) finishUpdate(it *item, need bool) bool {
	if need || !it.Recorded {
		return need
	}
	if !it.Carried {
		d.waiting++
	}
	d.carried(it, true)
	return false
}

// updateDirectly takes no more Pods out of service at a time than MaxUnavailable, one if it is 0: while as many are
// missing, unavailable or being changed, only Pods that do not serve anyway are updated.
func (d *decision) updateDirectly(ready []*item) {
	slices.SortFunc(ready, costOrder)
	serves := func(it *item) bool { return it.Available && (!it.Recorded || it.Carried) }
	budget := d.updateBudget()
	for i, it := range ready {
		w, _, _ := d.methodOf(it)
		switch {
		case i >= d.s.limits().Begins:
			d.plan.More = true
			return
		case !d.tried(it, verdictLasts, d.trialsFor(it, w)...):
		case serves(it) && budget.available <= 0:
			d.block(it, BlockMaxUnavailable, d.budgetSpent())
		default:
			if serves(it) {
				budget.take(it)
			}
			d.act(it)
		}
	}
}
