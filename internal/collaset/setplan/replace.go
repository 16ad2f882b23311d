package setplan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// ReplacementLabels are all that tell of a replacement, on either half of a pair.
var ReplacementLabels = [...]string{
	appsv1alpha1.ToReplaceLabel, appsv1alpha1.ReplacedByReplaceUpdateLabel, appsv1alpha1.ReplacePairNewIDLabel,
	appsv1alpha1.ReplacePairOriginNameLabel,
}

// pairing is what a Pod's labels say of a replacement.
type pairing struct {
	// wanted is true if the Pod is to be replaced; target names the revision if it is an update that wants it, and is ""
	// if it is a user.
	wanted bool
	target string
	// newID is the instance ID of the new Pod, NoID if the Pod names none. unreadable is what it names instead of an ID.
	newID      int
	unreadable string
	// origin is the name of the Pod that this one replaces; isNew reports whether the label is there.
	origin string
	isNew  bool
}

// pairingOf reads the labels of a Pod that has any of them.
func pairingOf(pod *Pod) pairing {
	if !pod.Replacing {
		return pairing{newID: NoID}
	}
	labels := pod.View.Labels
	p := pairing{target: labels[appsv1alpha1.ReplacedByReplaceUpdateLabel], newID: NoID}
	_, p.wanted = labels[appsv1alpha1.ToReplaceLabel]
	p.origin, p.isNew = labels[appsv1alpha1.ReplacePairOriginNameLabel]
	if value, ok := labels[appsv1alpha1.ReplacePairNewIDLabel]; ok {
		if p.newID = parseID(value); p.newID == NoID {
			p.unreadable = strconv.Quote(value)
		}
	}
	return p
}

// parseID reads an instance ID; NoID if it is none.
func parseID(value string) int {
	if value == "" { // most have none, and an error costs more than the look
		return NoID
	}
	if id, err := strconv.Atoi(value); err == nil && id >= 0 {
		return id
	}
	return NoID
}

// replaceReason is why a Pod is to be replaced.
type replaceReason int

const (
	notReplaced replaceReason = iota
	// byUser: the user's label asks for it; the new Pod has the revision of the old one.
	byUser
	// byUpdate: the update strategy wants the Pod at the updated revision, and another Pod for that.
	byUpdate
)

// pair is a live origin and the instance ID that takes its place. The two are one replica.
type pair struct {
	origin *item
	// replacement is the live new Pod; nil while it is still to be created, or to be re-created.
	replacement *item
	// entry is that of the new Pod.
	entry *entryState
	// committed is true if the origin is on its way out and the new Pod serves: there is no way back.
	committed bool
}

// isOver reports whether it is no pair any more.
func (p *pair) isOver() bool { return p.entry.asNew != p }

// revision is the one that the new Pod has, or will be created at.
func (p *pair) revision() string {
	if p.replacement != nil {
		return p.replacement.Revision
	}
	return p.entry.revision()
}

// byUser reports whether a user's label keeps the pair, so that it does not count against the surge of the update.
func (p *pair) byUser() bool { return p.origin.pairing.wanted && p.origin.pairing.target == "" }

// replacing has Pods replaced by others.
type replacing struct {
	*Mode
	*Identity
	*Strategy
	*History
	*findings

	// any is true if Pods are being replaced, or are to be.
	any bool
}

// replace moves every replacement one step: pairs that are wanted go on, those that are not are taken back, and then
// more are begun. It comes before scale-in, which removes the new Pods that are taken back.
func (r *replacing) replace(isSound bool) {
	byUpdates := 0
	for _, p := range r.pods.pairs {
		if !p.byUser() {
			byUpdates++
		}
	}
	var ready []*item
	for _, it := range r.pods.live {
		if it.newOf != nil {
			continue
		}
		it.replaceFor = r.replaceReasonOf(it)
		r.any = r.any || it.pair != nil || it.replaceFor == byUser
		isStaying := it.staying != "" ||
			it.pair != nil && it.pair.replacement != nil && it.pair.replacement.staying != ""
		if !isSound || isStaying { // neither half is released meanwhile, and no new one is created
			continue
		}
		if it.pair != nil && !r.advancePair(it.pair) {
			continue
		}
		switch {
		case it.replaceFor != notReplaced && r.mayReplace(it):
			ready = append(ready, it)
		case it.replaceFor == notReplaced && !it.condemned:
			r.forgetPair(it)
		}
	}
	r.replaceMore(ready, byUpdates)
	r.cleanUp()
	r.followNodes()
}

// followNodes has Pods asked to be replaced while their node is about to be drained, and no longer when it takes Pods
// again. Where one Pod of the set is evicted from a node that is closed, all are about to be.
func (r *replacing) followNodes() {
	evicted := map[string]bool{}
	for _, it := range r.pods.live {
		if it.NodeState != nil && podops.MarkedBy(it.View, appsv1alpha1.ToReplaceLabel, podops.AskerEviction) {
			evicted[it.Node] = true
		}
	}
	for _, it := range r.pods.live {
		if it.NodeState == nil || it.condemned || it.staying != "" || !it.change.IsZero() {
			continue
		}
		node := *it.NodeState
		node.Leaving = node.Leaving || node.Closed && evicted[it.Node]
		if c, err := r.Drain.Follow(it.View, node); err == nil { // the name of this asker is valid
			it.change = c
		}
	}
}

// replaceReasonOf is why a Pod is to be replaced, if it is.
func (r *replacing) replaceReasonOf(it *item) replaceReason {
	p := it.pairing
	switch {
	case it.condemned, it.staying != "":
		return notReplaced
	case p.wanted && p.target == "":
		return byUser
	case !it.isDue(), p.target != "" && !p.wanted && it.pair != nil:
		// The second: the label was taken away, and it begins again when the new Pod is gone.
		return notReplaced
	case r.Policy == appsv1alpha1.PodUpdateReplace, p.wanted && p.target == r.UpdatedRevision:
		return byUpdate
	default:
		return notReplaced
	}
}

// targetOf is the revision at which a Pod's replacement is created: where the Pod should be.
func (r *replacing) targetOf(it *item) string {
	stays := r.Paused && it.replaceFor == byUser // a pause begins no update
	if (stays || !r.outdated(it)) && r.known(it.Revision) && !r.avoided(it.Revision) {
		return it.Revision
	}
	return r.fallback()
}

// aimed reports whether the new Pod is, or will be, at the revision that is wanted of it. One that serves at the
// revision of a Pod that its user has replaced is good enough: it is updated when it has that Pod's place. One that
// does not may never, as its revision, or its decorations, may be what the update is to repair.
func (r *replacing) aimed(p *pair) bool {
	isRepaired := p.replacement == nil || p.replacement.Available || !p.replacement.isDue()
	return p.revision() == r.targetOf(p.origin) && isRepaired || r.servesAsAsked(p)
}

// servesAsAsked reports whether a user has the Pod replaced, and another serves at its revision.
func (h *History) servesAsAsked(p *pair) bool {
	next := p.replacement
	return p.origin.replaceFor == byUser && next != nil && next.Available && next.Revision == p.origin.Revision &&
		h.known(next.Revision) && !h.avoided(next.Revision)
}

// advancePair moves a pair one step and reports whether it is no more: the origin may be replaced again.
func (r *replacing) advancePair(p *pair) bool {
	it := p.origin
	switch {
	case it.condemned:
		return r.abortPair(p)
	case p.committed:
		r.notes.leaves(it, "its replacement serves; it is handed to lifecycle-controller, which deletes it as soon as it may")
	case it.replaceFor == notReplaced || !r.aimed(p):
		if r.abortPair(p) {
			return true
		}
		if it.replaceFor == notReplaced {
			r.forgetPair(it)
		} else {
			r.notes.block(it, "WaitingForReplacement",
				"its replacement "+p.replacement.Name()+" is at revision "+p.replacement.Revision+
					", which is not wanted any more: it goes, and another one comes at "+r.targetOf(it))
		}
	default:
		r.labelPair(p)
		r.awaitReplacement(p)
	}
	return false
}

// awaitReplacement waits for the new Pod and then lets the origin go.
func (r *replacing) awaitReplacement(p *pair) {
	it := p.origin
	switch {
	case p.replacement == nil:
		if r.lacksRoom(p) {
			break
		}
		r.notes.block(it, "WaitingForReplacement", fmt.Sprintf("its replacement, instance ID %d, is still to be created",
			p.entry.id))
	case !p.replacement.Available:
		r.notes.block(it, "WaitingForReplacement", "its replacement "+p.replacement.Name()+" is not available yet")
	case r.Protocol && len(podops.Operations(p.replacement.View)) > 0: // it may be out of service at once
		r.notes.block(it, "WaitingForReplacement",
			"its replacement "+p.replacement.Name()+" is being operated on and comes back")
	case r.Protocol && p.replacement.ToDelete:
		r.notes.block(it, "WaitingForReplacement", "its replacement "+p.replacement.Name()+" is being deleted and comes back")
	case it.IsEvicted() && it.Budget != "":
		r.notes.block(it, "PodDisruptionBudget", "its replacement serves, but it does not go yet: "+it.Budget)
		r.notes.look(budgetRecheck)
	case !r.api.tried(it, verdictLasts, Trial{Write: TrialDelete}):
	case r.Protocol:
		it.handed = true
		r.do.Marks = append(r.do.Marks, it.Pod)
	case r.isMoving:
		r.notes.block(it, "WaitingForDeletion",
			"its replacement serves; it is deleted in the next round, because Pods are excluded or included in this one")
	default:
		it.handed = true
		r.ledger.must(r.ledger.entries[it.ID], appsv1alpha1.ContextScaleIn, appsv1alpha1.ContextTrue)
		r.do.Deletions = append(r.do.Deletions, Deletion{it.Pod, DeleteReplaced})
	}
}

// budgetRecheck is how soon the PodDisruptionBudgets are looked at again that keep a Pod whose replacement serves.
const budgetRecheck = time.Second

// lacksRoom reports whether the API server refuses to create the new Pod of a pair, as it does when a quota is used up.
// The creation is tried again; an evicted Pod goes meanwhile if the CollaSet says so.
func (r *replacing) lacksRoom(p *pair) bool {
	t := Trial{Write: TrialSurge, To: Form{p.entry.revision(), p.entry.decorations()}}
	v, known := r.api.verdict(t, verdictLasts)
	if !known || v.Refused == "" {
		return false
	}
	it := p.origin
	r.notes.look(v.Retry.Sub(r.notes.now))
	r.notes.block(it, BlockChangeRefused, t.Refusal(v.Refused))
	switch {
	case !v.Quota || !r.DeletesWhenFull || !r.Protocol || !it.IsEvicted() || it.ToDelete:
	case it.Budget != "":
		r.notes.block(it, "PodDisruptionBudget", "a quota has no room for its replacement, and it does not go before: "+
			it.Budget)
		r.notes.look(budgetRecheck)
	default:
		it.handed = true
		r.do.Marks = append(r.do.Marks, it.Pod)
	}
	return true
}

// abortPair ends a pair that is not wanted any more, or not like this: the new Pod is scaled in. It reports whether
// there was none, so that the pair is over.
func (r *replacing) abortPair(p *pair) bool {
	if p.replacement != nil {
		p.replacement.condemned = p.replacement.staying == ""
		return false
	}
	r.ledger.giveUpID(p.entry)
	p.entry.asNew = nil
	p.origin.pair = nil
	if o := r.ledger.entries[p.origin.ID]; o != nil {
		o.asOrigin = nil
		r.ledger.may(o, appsv1alpha1.ContextReplaceNewPodID, "")
	}
	return true
}

// isUnreadable blocks a Pod whose label names no new Pod that can be read, and reports whether it does.
func (r *replacing) isUnreadable(it *item) bool {
	if it.pairing.unreadable == "" {
		return false
	}
	r.notes.block(it, "PairLabelInvalid", fmt.Sprintf("label %s is %s, which is no instance ID: remove the label",
		appsv1alpha1.ReplacePairNewIDLabel, it.pairing.unreadable))
	return true
}

// mayReplace reports whether a replacement of the Pod may begin now.
func (r *replacing) mayReplace(it *item) bool {
	switch {
	case r.ledger.entries[it.ID] == nil:
		r.notes.block(it, "NoInstanceID", "has no instance ID of its own (label "+appsv1alpha1.InstanceIDLabel+
			") and cannot be replaced: delete it, another one is created")
	case r.isUnreadable(it):
	case r.Protocol && it.ToDelete, it.named && (r.Protocol || !r.Sequential):
		r.notes.leaves(it, "is being deleted and comes back")
	case it.During == podops.TypeScaleIn, it.During == podops.TypeUpdate && !it.Recorded:
		// Cancelled first.
	case it.replaceFor == byUser:
		return true
	default:
		return !it.Recorded
	}
	return false
}

// replaceMore begins replacements, no more at a time than the surge allows, and of updates than theirs does.
func (r *replacing) replaceMore(ready []*item, byUpdates int) {
	underWay := 0
	for _, p := range r.pods.pairs {
		if !p.isOver() {
			underWay++
		}
	}
	slices.SortFunc(ready, func(a, b *item) int {
		return cmp.Or(first(a.replaceFor == byUser, b.replaceFor == byUser), first(a.pairing.wanted, b.pairing.wanted),
			costOrder(a, b))
	})
	room, begun := max(r.MaxSurge, 1)-byUpdates, 0
	for _, it := range ready {
		switch {
		case r.Paused && !it.IsEvicted():
			r.notes.block(it, "Paused", "is to be replaced, but the CollaSet is paused")
		case r.Surge > 0 && underWay >= r.Surge:
			r.notes.block(it, "MaxSurge", fmt.Sprintf("%d Pods are being replaced, as many as disruption.maxSurge allows",
				underWay))
		case it.replaceFor == byUpdate && room <= 0:
			r.notes.block(it, "MaxSurge", fmt.Sprintf("%d Pods are being replaced, as many as updateStrategy.maxSurge allows",
				byUpdates))
		case begun >= r.Limits.Begins:
			r.notes.more = true
		case it.Available && !r.api.tried(it, verdictLasts, Trial{Write: TrialDelete}):
			// It would stay, and the new Pod would be one too many. One that does not serve is replaced all the same.
		default:
			if it.replaceFor == byUpdate {
				room--
				byUpdates++
			}
			begun++
			underWay++
			r.beginPair(it)
		}
	}
}

// beginPair takes an ID for the new Pod and links the two. The Pod is created in the same round, after the entries.
func (r *replacing) beginPair(it *item) {
	e := r.ledger.add(r.ledger.freeID(), r.targetOf(it))
	e.set(appsv1alpha1.ContextPodDecorationRevisions, it.Desired)
	e.set(appsv1alpha1.ContextPodJustCreate, appsv1alpha1.ContextTrue)
	e.set(appsv1alpha1.ContextReplaceOriginPodID, strconv.Itoa(it.ID))
	r.ledger.must(r.ledger.entries[it.ID], appsv1alpha1.ContextReplaceNewPodID, strconv.Itoa(e.id))
	p := &pair{origin: it, entry: e}
	it.pair, e.asNew, r.ledger.entries[it.ID].asOrigin = p, p, p
	r.pods.pairs = append(r.pods.pairs, p)
	r.any = true
	r.labelPair(p)
	r.notes.block(it, "WaitingForReplacement",
		fmt.Sprintf("its replacement, instance ID %d, is still to be created", e.id))
}

// labelPair makes the labels of a pair say what its entries say.
func (r *replacing) labelPair(p *pair) {
	it := p.origin
	if it.replaceFor == byUpdate {
		if !it.pairing.wanted {
			it.label(appsv1alpha1.ToReplaceLabel, appsv1alpha1.ContextTrue)
		}
		it.label(appsv1alpha1.ReplacedByReplaceUpdateLabel, r.UpdatedRevision)
	}
	if it.label(appsv1alpha1.ReplacePairNewIDLabel, strconv.Itoa(p.entry.id)) {
		it.event = ReplacementBegun
	}
	if p.replacement != nil {
		p.replacement.label(appsv1alpha1.ReplacePairOriginNameLabel, it.Name())
	}
}

// forgetPair takes the labels of a replacement off a Pod that is not to be replaced. A user's own wish is the user's.
func (r *replacing) forgetPair(it *item) {
	if !it.Replacing {
		return // most have none of these labels
	}
	if !r.isUnreadable(it) && it.unlabel(appsv1alpha1.ReplacePairNewIDLabel) {
		it.event = ReplacementCancelled
	}
	if it.pairing.target != "" {
		it.withdraw(appsv1alpha1.ToReplaceLabel)
	}
	it.unlabel(appsv1alpha1.ReplacedByReplaceUpdateLabel)
}

// cleanUp takes the label of a new Pod off Pods that are none, or whose origin is gone.
func (r *replacing) cleanUp() {
	var left map[string]bool
	for _, it := range r.pods.live {
		if !it.pairing.isNew || it.newOf != nil {
			continue
		}
		if left == nil {
			left = map[string]bool{}
			for _, other := range r.pods.items {
				if !other.Live() {
					left[other.Name()] = true
				}
			}
		}
		if !left[it.pairing.origin] && it.unlabel(appsv1alpha1.ReplacePairOriginNameLabel) {
			it.event = ReplacementDone
		}
	}
}

// relabels are the changed labels. A Pod that is written anyway in this round is left for the next, so that the
// two writes do not meet.
func relabels(pods *members, p *PodActions) (relabels []Relabel) {
	written := map[*Pod]bool{}
	for _, list := range [][]*Pod{p.Finishes, p.Resizes, p.Cancels, p.Marks} {
		for _, pod := range list {
			written[pod] = true
		}
	}
	for _, c := range p.Changes {
		written[c.Pod] = true
	}
	for _, b := range p.Begins {
		written[b.Pod] = true
	}
	for _, deletion := range p.Deletions {
		written[deletion.Pod] = true
	}
	for _, it := range pods.items {
		if !it.change.IsZero() && !written[it.Pod] {
			relabels = append(relabels, Relabel{Pod: it.Pod, Change: it.change, Event: it.event})
		}
	}
	return relabels
}
