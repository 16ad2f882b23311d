package setplan

import (
	"fmt"
	"slices"
	"strings"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// updateMethod is how a Pod gets to its goal: the revision and the decorations that it is to have.
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

// methodOf is how a Pod gets to its goal, with the reason if not at all.
func (u *updating) methodOf(it *item) (w updateMethod, reason, message string) {
	difference, known := u.difference(it.Form(), it.goal)
	switch {
	case difference.Missing != "":
		return refuse, BlockDecorationMissing, difference.Missing
	case u.Policy == appsv1alpha1.PodUpdateReplace:
		return replaceIt, "", "" // another Pod has other claims
	case it.unfit() && it.Form() == it.goal:
		return recreate, "", ""
	}
	if message := u.refusedExpansion(it); message != "" {
		return refuse, BlockExpansionRefused, message
	}
	switch {
	case u.Policy != appsv1alpha1.PodUpdateRecreate && known && len(difference.Forcing) == 0:
		if difference.Quiet && u.Conventions != KuperatorV07 { // v0.7 asks the rules about each change
			return quietly, "", ""
		}
		return inPlace, "", ""
	case u.Policy != appsv1alpha1.PodUpdateInPlaceOnly:
		return recreate, "", ""
	case !known:
		unknown := fmt.Sprintf("its revision %q is not known any more", it.Revision)
		return refuse, inPlaceImpossible, cannotTakeOver([]string{unknown})
	}
	return refuse, inPlaceImpossible, cannotTakeOver(difference.Forcing)
}

// cannotTakeOver tells people why a Pod stays as it is with podUpgradePolicy InPlaceOnly.
func cannotTakeOver(forcing []string) string {
	return "podUpgradePolicy is InPlaceOnly, but a running Pod cannot take over: " + strings.Join(forcing, ", ") +
		"; put these fields back, or set podUpgradePolicy to InPlaceIfPossible"
}

// resizes reports whether the Pod's update sets resources in place.
func (u *updating) resizes(it *item) bool {
	difference, _ := u.difference(it.Form(), it.goal)
	return difference.Resizes
}

// updating brings Pods to the updated revision, and to the decorations that they are to have.
type updating struct {
	*Mode
	*Scale
	*Strategy
	*History
	*findings

	budget  budget
	rollout *Rollout
	waiting int // Pods in scope that are not at their goal
	// underWay is true if the update of some Pod is.
	underWay bool
}

// update moves every Pod's update one step: what is done is finished, what is allowed is changed, what is no longer
// wanted is cancelled, and then more is begun.
func (u *updating) update() {
	var ready []*item
	u.budget = newBudget(u.MaxUnavailable, u.Replicas, u.Protocol, u.pods)
	u.startRollout()
	for _, e := range u.ledger.vacant() {
		if e.marked(appsv1alpha1.ContextPodRecreateUpdate) {
			u.underWay = true // between its deletion and its creation
			u.waiting++
		}
	}
	for _, it := range u.pods.live {
		if it.condemned || it.During == podops.TypeScaleIn {
			continue
		}
		u.underWay = u.underWay || it.isUpdating()
		if it.undecorated != "" {
			u.notes.block(it, it.undecorated, it.why)
		}
		need := it.toUpdate()
		if need {
			u.waiting++
			need = u.takes(it)
		}
		need = need && !it.putOff && !u.replaced(it)
		if need && it.During == "" && it.method == quietly {
			u.changeQuietly(it)
			continue
		}
		u.follow(it, need)
		if u.Protocol {
			need = u.advanceUpdate(it, need)
		} else {
			need = u.finishUpdate(it, need)
		}
		if need {
			ready = append(ready, it)
		}
	}
	switch {
	case len(ready) == 0:
	case u.Paused:
		for _, it := range ready {
			u.notes.block(it, "Paused", "is to be updated, but the CollaSet is paused")
		}
	default:
		u.start(ready)
	}
}

// choose notes how a Pod gets to its goal; reason and message are why it cannot.
func (u *updating) choose(it *item) (reason, message string) {
	it.method, reason, message = u.methodOf(it)
	it.trials = u.trialsFor(it, it.method)
	return reason, message
}

// takes reports whether a Pod can get to its goal; why not is a blocker.
func (u *updating) takes(it *item) bool {
	reason, message := u.choose(it)
	if it.method == refuse {
		u.notes.block(it, reason, message)
		u.notes.refused = true
		return false
	}
	return !u.api.refusedBy(it, it.trials...)
}

// changeQuietly has a Pod updated while it serves: that is no operation of the protocol. New resources come to no
// more Pods at a time than may be unavailable all the same: with too little memory they would all be killed at once.
func (u *updating) changeQuietly(it *item) {
	switch {
	case u.Paused:
		u.notes.block(it, "Paused", "is to be updated, but the CollaSet is paused")
	case u.Protocol && it.ToDelete:
		u.notes.leaves(it, "is being deleted and comes back")
	case len(u.do.Changes) >= u.Limits.Begins:
		u.notes.more = true
	case u.resizes(it) && !u.budget.allows(it):
		u.notes.block(it, BlockMaxUnavailable, u.budgetSpent())
	case !u.api.tried(it, verdictLasts, it.trials...), u.claimsFirst(it):
	default:
		u.budget.take(it)
		u.do.Changes = append(u.do.Changes, PodChange{it.Pod, it.goal})
	}
}

// offline reports whether our update keeps the Pod out of service, up to the moment it serves again.
func offline(op podops.Operation) bool {
	return op.Offline() || op.Phase == podops.PhaseCompleting || op.Phase == podops.PhasePostChecked
}

// advanceUpdate moves an update under the protocol and reports whether one has yet to be begun.
func (u *updating) advanceUpdate(it *item, need bool) (begin bool) {
	updating := it.During == podops.TypeUpdate
	switch {
	case need && updating:
		if u.notes.due(it, u.UpdateDelay) {
			u.act(it)
		}
	case updating && it.Recorded:
		if it.Revision == u.UpdatedRevision {
			u.waiting++
		}
		u.carried(it, podops.Allowed(it.View, OperatorID, it.During))
	case updating && u.Conventions == KuperatorV07 && it.Included && it.Revision == u.UpdatedRevision &&
		podops.Allowed(it.View, OperatorID, it.During):
		// what restarts nothing is not recorded, and the label goes with its end
		u.do.Finishes = append(u.do.Finishes, it.Pod)
	case updating:
		u.do.Cancels = append(u.do.Cancels, it.Pod)
	case need && it.ToDelete:
		u.notes.leaves(it, "is being deleted and comes back")
	case !need && it.Recorded && !offline(it.Op):
		return u.carriedQuietly(it)
	default:
		return need
	}
	return false
}

// carriedQuietly moves a change that was made on a serving Pod to its end. It reports whether the Pod has to be created
// again, which is a separate operation.
func (u *updating) carriedQuietly(it *item) (begin bool) {
	if !it.Carried {
		u.waiting++
	}
	way := inPlace
	switch {
	case it.ResizeDue && it.ResizeRestarts:
	case it.unfit() && u.Policy != appsv1alpha1.PodUpdateInPlaceOnly && u.known(it.Revision):
		way = recreate
	default:
		u.carried(it, true)
		return false
	}
	if it.ToDelete || it.putOff || u.api.refusedBy(it, u.trialsFor(it, way)...) {
		return false
	}
	u.choose(it)
	return true
}

// unfit reports whether the Pod cannot get the resources of its revision where it is.
func (it *item) unfit() bool { return it.Recorded && it.Infeasible }

// act changes or deletes a Pod on which that is allowed.
func (u *updating) act(it *item) {
	if u.claimsFirst(it) {
		return
	}
	if it.method == inPlace || it.method == quietly {
		u.do.Changes = append(u.do.Changes, PodChange{it.Pod, it.goal})
		return
	}
	u.recreate(it, it.goal)
}

// recreate deletes a Pod for another one in its place, unless Pods are excluded or included in this plan.
func (u *updating) recreate(it *item, to Form) {
	if u.isMoving || !u.mayRecreate(it) {
		return
	}
	e := u.ledger.entries[it.ID]
	u.ledger.must(e, appsv1alpha1.ContextRevision, to.Revision)
	u.ledger.decorate(e, to.Decorations, u.ledger.must)
	u.ledger.must(e, appsv1alpha1.ContextPodRecreateUpdate, appsv1alpha1.ContextTrue)
	u.do.Deletions = append(u.do.Deletions, Deletion{it.Pod, DeleteRecreate})
}

// start takes Pods out of service for their updates as the budget allows. Under the protocol it asks for all of these
// updates, and when each begins, the window says: see Plan.Admit. Without it, while as many Pods are missing,
// unavailable or being changed as may be, only Pods that do not serve anyway are updated.
func (u *updating) start(ready []*item) {
	slices.SortFunc(ready, costOrder)
	for i, it := range ready {
		switch {
		case !u.Protocol && i >= u.Limits.Begins:
			u.notes.more = true
			return
		case !u.api.tried(it, verdictLasts, it.trials...):
		case !u.budget.allows(it) && (u.Protocol || it.Available):
			u.notes.block(it, BlockMaxUnavailable, u.budgetSpent())
			u.queue(it)
		default:
			u.budget.take(it)
			switch {
			case !u.Protocol:
				u.act(it)
			case !u.claimsFirst(it):
				u.do.begin(it, podops.TypeUpdate, it.method == recreate)
				if u.isStepwise(it) {
					u.rollout.From[it.UID()] = it.Revision
				}
			}
		}
	}
	if u.rollout != nil {
		u.rollout.Spare = u.budget.available
	}
}

// BlockMaxUnavailable is the reason of Pods that wait because enough others are not available.
const BlockMaxUnavailable = "MaxUnavailable"

// budgetSpent names the bound, and what ends the wait.
func (u *updating) budgetSpent() string {
	return fmt.Sprintf(
		"as many Pods are being updated or not available as updateStrategy.rollingUpdate.maxUnavailable allows (%d of %d); the next begins when one is available",
		u.MaxUnavailable, u.Replicas)
}

// finishUpdate ends an in-place change made without the protocol and reports whether another is needed.
func (u *updating) finishUpdate(it *item, need bool) bool {
	if need || !it.Recorded {
		return need
	}
	if !it.Carried {
		u.waiting++
	}
	u.carried(it, true)
	return false
}

// refusedExpansion is why a Pod's claim cannot become what the updated revision asks for, "" if nothing is known to be
// in the way, or it is time to try again.
func (u *updating) refusedExpansion(it *item) string {
	for _, due := range u.claims.updates(it, u.UpdatedRevision) {
		if due.refused() && due.Claim.RetryIn > 0 {
			u.notes.look(due.Claim.RetryIn)
			return refusal(due.Claim)
		}
	}
	return ""
}

// claimsFirst changes the claims that a Pod's update needs, and reports whether there are any: the Pod follows when
// they show the change. That needs no permission, as no Pod notices, and a Pod whose claim is refused has not been
// touched then.
func (u *updating) claimsFirst(it *item) bool {
	updates := u.claims.updates(it, u.UpdatedRevision)
	for _, due := range updates {
		if due.refused() {
			u.notes.block(it, BlockExpansionRefused, refusal(due.Claim))
			u.notes.refused = true
		}
		u.claims.update(due)
	}
	return len(updates) > 0
}

// replaced reports whether the Pod's own update has to wait: it is a side of a pair, or becomes one.
func (u *updating) replaced(it *item) bool {
	if it.pair != nil && it.isDue() && u.servesAsAsked(it.pair) {
		u.notes.block(it, "BeingReplaced",
			"is being replaced on request, and the new Pod is updated after that; remove the label "+appsv1alpha1.ToReplaceLabel+
				" to update this one now")
	}
	return it.pair != nil || it.newOf != nil || it.replaceFor != notReplaced
}

// budget is what MaxUnavailable leaves: how many available Pods updates may take out of service now, and how many of
// those that serve, but have to do so for longer to be available. Against the first counts every Pod that is missing,
// not available, or under an update, also one that a rule holds back: the rule may let all of them go at once.
// Against the second only those under an update count: else a revision that never becomes available could not be
// repaired.
type budget struct{ available, serving int }

// newBudget is the one budget of a decision, from which all of it takes.
func newBudget(maxUnavailable, replicas int, isProtocol bool, pods *members) budget {
	most := maxUnavailable
	switch {
	case most == 0 && isProtocol:
		most = 2 * (len(pods.live) + replicas)
	case most == 0:
		most = 1
	}
	b := budget{available: most - replicas, serving: most}
	for _, it := range pods.live {
		isUpdating := it.isUpdating() || it.isPending()
		if isUpdating {
			b.serving--
		}
		if it.Available && !isUpdating && !it.condemned && it.newOf == nil {
			b.available++
		}
	}
	b.available = min(b.available, most)
	return b
}

// allows reports whether the Pod may be taken out of service. One that does not serve, or that counts already, may
// always.
func (b *budget) allows(it *item) bool {
	switch {
	case it.isPending():
		return true
	case it.Available:
		return b.available > 0
	case it.InService && it.View.Ready:
		return b.serving > 0
	}
	return true
}

// take counts a Pod that is taken out.
func (b *budget) take(it *item) {
	if it.isPending() {
		return
	}
	if it.Available {
		b.available--
	}
	if it.InService {
		b.serving--
	}
}
