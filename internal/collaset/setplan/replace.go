package setplan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// ReplacementLabels are all that tell of a replacement, on either half of a pair.
var ReplacementLabels = [...]string{
	appsv1alpha1.ToReplaceLabel, appsv1alpha1.ReplacedByReplaceUpdateLabel, appsv1alpha1.ReplacePairNewIDLabel, appsv1alpha1.ReplacePairOriginNameLabel,
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
	// origin is the name of the Pod that this one replaces; isNew says that the label is there.
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
	noWish replaceReason = iota
	// byUser: the user's label asks for it; the new Pod has the revision of the old one.
	byUser
	// byUpdate: the update strategy wants the Pod at the updated revision, and another Pod for that.
	byUpdate
)

// pair is a live origin and the instance ID that takes its place. The two are one replica.
type pair struct {
	origin *item
	// fresh is the live new Pod; nil while it is still to be created, or to be created again.
	fresh *item
	// entry is that of the new Pod.
	entry *slot
	// committed is true if the origin is on its way out and the new Pod serves: there is no way back.
	committed bool
	// over is true if it is no pair any more.
	over bool
}

// revision is the one that the new Pod has, or will be created at.
func (p *pair) revision() string {
	if p.fresh != nil {
		return p.fresh.Revision
	}
	return p.entry.revision()
}

// byUser reports whether a user's label keeps the pair, so that it does not count against the surge of the update.
func (p *pair) byUser() bool { return p.origin.pairing.wanted && p.origin.pairing.target == "" }

// replicas is the number of live replicas: pairs count as one.
func (d *decision) replicas() int {
	n := len(d.live)
	for _, p := range d.pairs {
		if p.fresh != nil {
			n--
		}
	}
	return n
}

// link is a claim that one ID is the replacement of another.
type link struct {
	origin, fresh int
	// stored is true if the entry of the origin says so.
	stored bool
}

// readPairs finds out which Pods replace which. Both sides have to say so, in their entries or by their labels; where
// entries and labels differ, entries decide, because they are written before a new Pod is made. A claim of one side
// alone is stale: nobody becomes half of a pair, and so none too many, because of one wrong label.
func (d *decision) readPairs() {
	var links []link
	var linked []*slot
	for id, e := range d.entries {
		if n := parseID(e.data[appsv1alpha1.ContextReplaceNewPodID]); n != NoID {
			links = append(links, link{id, n, true})
		}
		if e.linked() {
			linked = append(linked, e)
		}
	}
	for _, it := range d.items {
		if n := it.pairing.newID; n != NoID && it.ID != NoID && !it.twin {
			links = append(links, link{it.ID, n, false})
		}
	}
	slices.SortFunc(links, func(a, b link) int {
		return cmp.Or(first(a.stored, b.stored), cmp.Compare(a.origin, b.origin), cmp.Compare(a.fresh, b.fresh))
	})
	for _, l := range links {
		d.join(l)
	}
	for _, e := range linked {
		if d.s.Retention.Replaced && e.marked(appsv1alpha1.ContextScaleIn) && d.holdsClaims(e) {
			continue // its claims go because of this
		}
		if e.asOrigin == nil {
			d.may(e, appsv1alpha1.ContextReplaceNewPodID, "")
		}
		if e.asNew == nil {
			d.may(e, appsv1alpha1.ContextReplaceOriginPodID, "")
		}
	}
	slices.SortFunc(d.pairs, func(a, b *pair) int { return cmp.Compare(a.origin.ID, b.origin.ID) })
}

// join makes a pair of two IDs if both sides say that they are one, and lets the new one take over if the origin is
// gone.
func (d *decision) join(l link) {
	o, n := d.entries[l.origin], d.entries[l.fresh]
	if o == nil || n == nil || o == n || o.inPair() || n.inPair() || o.dropped || n.dropped || !d.agreed(l) {
		return
	}
	if d.freed[l.origin] || d.freed[l.fresh] {
		return // one half is excluded, and the other stands for itself
	}
	origin, fresh := d.holder[l.origin], d.holder[l.fresh]
	switch {
	case fresh == nil && n.marked(appsv1alpha1.ContextScaleIn):
		// The new Pod was taken back.
	case origin != nil:
		p := &pair{origin: origin, fresh: fresh, entry: n}
		p.committed = d.s.Protocol && origin.ToDelete && fresh != nil && fresh.Available
		origin.pair, o.asOrigin, n.asNew = p, p, p
		if fresh != nil {
			fresh.newOf = p
		}
		d.pairs = append(d.pairs, p)
		d.must(o, appsv1alpha1.ContextReplaceNewPodID, strconv.Itoa(l.fresh))
		d.must(n, appsv1alpha1.ContextReplaceOriginPodID, strconv.Itoa(l.origin))
	case fresh == nil && d.leaving[l.fresh] == nil && n.marked(appsv1alpha1.ContextPodJustCreate):
		// There never was a new Pod: the origin comes back as it was.
		d.giveUpID(n)
	default:
		// The new Pod stands for itself, and the ID of the origin is free once that is gone, and its claims where they go.
		if !d.tookOver(o, fresh) {
			d.may(o, appsv1alpha1.ContextReplaceNewPodID, "") // it was lost, not replaced: that is no reason to delete its claims
		}
		if d.holdsClaims(o) {
			d.must(o, appsv1alpha1.ContextScaleIn, appsv1alpha1.ContextTrue)
		}
		d.may(o, appsv1alpha1.ContextScaleIn, appsv1alpha1.ContextTrue)
	}
}

// tookOver reports whether the Pod of an ID that is gone left because its replacement serves.
func (d *decision) tookOver(o *slot, fresh *item) bool {
	return o.marked(appsv1alpha1.ContextScaleIn) || fresh != nil && fresh.Available || d.leaving[o.id] != nil && d.leaving[o.id].ToDelete
}

// agreed reports whether the new side says the same, in its entry or by its Pod's label.
func (d *decision) agreed(l link) bool {
	if parseID(d.entries[l.fresh].data[appsv1alpha1.ContextReplaceOriginPodID]) == l.origin {
		return true
	}
	fresh, origin := d.holder[l.fresh], d.holder[l.origin]
	if origin == nil {
		origin = d.leaving[l.origin]
	}
	return fresh != nil && origin != nil && fresh.pairing.isNew && fresh.pairing.origin == origin.Name()
}

// linked reports whether the entry says that its ID is one half of a replacement, or was until it was given up.
func (e *slot) linked() bool {
	return has(e.data, appsv1alpha1.ContextReplaceNewPodID) || has(e.data, appsv1alpha1.ContextReplaceOriginPodID)
}

// inPair reports whether the entry is a side of a pair.
func (e *slot) inPair() bool { return e.asOrigin != nil || e.asNew != nil }

// replace moves every replacement one step: pairs that are wanted go on, those that are not are taken back, and then
// more are begun. It comes before scale-in, which removes the new Pods that are taken back.
func (d *decision) replace() {
	blocked := d.holds(func(p Problem) bool { return p.Scale || p.Update })
	byUpdates := 0
	for _, p := range d.pairs {
		if !p.byUser() {
			byUpdates++
		}
	}
	var ready []*item
	for _, it := range d.live {
		if it.newOf != nil {
			continue
		}
		it.wish = d.replaceReasonOf(it)
		d.replacing = d.replacing || it.pair != nil || it.wish == byUser
		switch {
		case blocked:
		case it.staying != "", it.pair != nil && it.pair.fresh != nil && it.pair.fresh.staying != "":
			// Neither half is let go meanwhile, and none comes anew.
		case it.pair != nil && !d.advancePair(it.pair):
		case it.wish != noWish && d.mayReplace(it):
			ready = append(ready, it)
		case it.wish == noWish && !it.condemned:
			d.forgetPair(it)
		}
	}
	d.replaceMore(ready, byUpdates)
	d.cleanUp()
}

// replaceReasonOf says whether a Pod is to be replaced, and why.
func (d *decision) replaceReasonOf(it *item) replaceReason {
	p := it.pairing
	switch {
	case it.condemned, it.staying != "":
		return noWish
	case p.wanted && p.target == "":
		return byUser
	case !d.outdated(it), p.target != "" && !p.wanted && it.pair != nil:
		// The second: somebody took the label away, and it is begun anew when the new Pod is gone.
		return noWish
	case d.s.Policy == appsv1alpha1.PodUpdateReplace, p.wanted && p.target == d.s.UpdatedRevision:
		return byUpdate
	default:
		return noWish
	}
}

// outdated reports whether the update strategy wants the Pod at the updated revision, and it is at another.
func (d *decision) outdated(it *item) bool { return it.inScope && it.Revision != d.s.UpdatedRevision }

// targetOf is the revision at which a Pod's replacement is created: where the Pod should be.
func (d *decision) targetOf(it *item) string {
	if it.wish == byUser && !d.outdated(it) && d.known(it.Revision) && !d.s.avoided(it.Revision) {
		return it.Revision
	}
	return d.s.fallback()
}

// aimed reports whether the new Pod is, or will be, at the revision that is wanted of it. One that serves at the
// revision of a Pod that its user has replaced is good enough: it is updated when it has that Pod's place. One that
// does not may never, as its revision may be what the update is to repair.
func (d *decision) aimed(p *pair) bool {
	revision := p.revision()
	return revision == d.targetOf(p.origin) || d.servesAsAsked(p)
}

// servesAsAsked reports whether a user has the Pod replaced, and another serves at its revision.
func (d *decision) servesAsAsked(p *pair) bool {
	return p.origin.wish == byUser && p.fresh != nil && p.fresh.Available && p.fresh.Revision == p.origin.Revision &&
		d.known(p.fresh.Revision) && !d.s.avoided(p.fresh.Revision)
}

// advancePair moves a pair one step and says whether it is no more: the origin may be replaced anew.
func (d *decision) advancePair(p *pair) (over bool) {
	it := p.origin
	switch {
	case it.condemned:
		return d.abortPair(p)
	case p.committed:
		d.leaves(it, "its replacement serves; it is handed to lifecycle-controller, which deletes it as soon as it may")
	case it.wish == noWish || !d.aimed(p):
		over = d.abortPair(p)
		switch {
		case over:
		case it.wish == noWish:
			d.forgetPair(it)
		default:
			d.block(it, "WaitingForReplacement", "its replacement "+p.fresh.Name()+" is at revision "+p.fresh.Revision+", which is not wanted any more: it goes, and another one comes at "+d.targetOf(it))
		}
		return over
	default:
		d.labelPair(p)
		d.awaitReplacement(p)
	}
	return false
}

// awaitReplacement waits for the new Pod and then lets the origin go.
func (d *decision) awaitReplacement(p *pair) {
	it := p.origin
	switch {
	case p.fresh == nil:
		d.block(it, "WaitingForReplacement", fmt.Sprintf("its replacement, instance ID %d, is still to be created", p.entry.id))
	case !p.fresh.Available:
		d.block(it, "WaitingForReplacement", "its replacement "+p.fresh.Name()+" is not available yet")
	case d.s.Protocol && p.fresh.ToDelete:
		d.block(it, "WaitingForReplacement", "its replacement "+p.fresh.Name()+" is being deleted and comes back")
	case !d.tried(it, verdictLasts, Trial{Write: TrialDelete}):
	case d.s.Protocol:
		it.handed = true
		d.plan.Marks = append(d.plan.Marks, it.Pod)
	case d.moving:
		d.block(it, "WaitingForDeletion", "its replacement serves; it is deleted in the next round, because Pods are excluded or included in this one")
	default:
		it.handed = true
		if e := d.entries[it.ID]; e != nil {
			d.must(e, appsv1alpha1.ContextScaleIn, appsv1alpha1.ContextTrue)
		}
		d.plan.Deletions = append(d.plan.Deletions, Deletion{it.Pod, DeleteReplaced})
	}
}

// abortPair ends a pair that is not wanted any more, or not like this: the new Pod is scaled in. It says whether there
// was none, so that the pair is over.
func (d *decision) abortPair(p *pair) (over bool) {
	if p.fresh != nil {
		p.fresh.condemned = p.fresh.staying == ""
		return false
	}
	d.giveUpID(p.entry)
	p.entry.asNew = nil
	p.origin.pair = nil
	if o := d.entries[p.origin.ID]; o != nil {
		o.asOrigin = nil
		d.may(o, appsv1alpha1.ContextReplaceNewPodID, "")
	}
	p.over = true
	return true
}

// mayReplace reports whether a replacement of the Pod may begin now.
func (d *decision) mayReplace(it *item) bool {
	switch {
	case d.entries[it.ID] == nil:
		d.block(it, "NoInstanceID", "has no instance ID of its own (label "+appsv1alpha1.InstanceIDLabel+") and cannot be replaced: delete it, another one is created")
	case it.pairing.unreadable != "":
		d.block(it, "PairLabelInvalid", fmt.Sprintf("label %s is %s, which is no instance ID: remove the label", appsv1alpha1.ReplacePairNewIDLabel, it.pairing.unreadable))
	case d.s.Protocol && it.ToDelete, d.named[it.Name()] && (d.s.Protocol || !d.s.Sequential):
		d.leaves(it, "is being deleted and comes back")
	case it.during == podops.TypeScaleIn, it.during == podops.TypeUpdate && !it.Recorded:
		// Cancelled first.
	case it.wish == byUser:
		return true
	default:
		return !it.excluding && !it.Recorded
	}
	return false
}

// replaceMore begins replacements, of updates no more at a time than the surge allows.
func (d *decision) replaceMore(ready []*item, byUpdates int) {
	slices.SortFunc(ready, func(a, b *item) int {
		return cmp.Or(first(a.wish == byUser, b.wish == byUser), first(a.pairing.wanted, b.pairing.wanted), costOrder(a, b))
	})
	room, begun := max(d.s.MaxSurge, 1)-byUpdates, 0
	for _, it := range ready {
		switch {
		case d.s.Paused:
			d.block(it, "Paused", "is to be replaced, but the CollaSet is paused")
		case it.wish == byUpdate && room <= 0:
			d.block(it, "MaxSurge", fmt.Sprintf("%d Pods are being replaced, as many as updateStrategy.maxSurge allows", byUpdates))
		case begun >= d.s.limits().Begins:
			d.plan.More = true
		case it.Available && !d.tried(it, verdictLasts, Trial{Write: TrialDelete}):
			// It would stay, and the new Pod would be one too many. One that does not serve is replaced all the same.
		default:
			if it.wish == byUpdate {
				room--
				byUpdates++
			}
			begun++
			d.beginPair(it)
		}
	}
}

// beginPair takes an ID for the new Pod and links the two. The Pod is created in the same round, after the entries.
func (d *decision) beginPair(it *item) {
	e := &slot{id: d.freeID(), data: map[string]string{
		appsv1alpha1.ContextOwner:              d.s.Name,
		appsv1alpha1.ContextRevision:           d.targetOf(it),
		appsv1alpha1.ContextPodJustCreate:      appsv1alpha1.ContextTrue,
		appsv1alpha1.ContextReplaceOriginPodID: strconv.Itoa(it.ID),
	}}
	d.entries[e.id] = e
	d.must(d.entries[it.ID], appsv1alpha1.ContextReplaceNewPodID, strconv.Itoa(e.id))
	p := &pair{origin: it, entry: e}
	it.pair, e.asNew, d.entries[it.ID].asOrigin = p, p, p
	d.pairs = append(d.pairs, p)
	d.replacing = true
	d.labelPair(p)
	d.block(it, "WaitingForReplacement", fmt.Sprintf("its replacement, instance ID %d, is still to be created", e.id))
}

// freeID is the lowest ID that nobody uses: no entry, no Pod, not even one on its way out.
func (d *decision) freeID() int {
	if d.taken == nil {
		d.taken = d.takenIDs()
	}
	for d.taken[d.nextID] {
		d.nextID++
	}
	d.taken[d.nextID] = true
	return d.nextID
}

// newSlots are the vacant entries of new Pods, lowest ID first.
func (d *decision) newSlots() []*slot {
	var out []*slot
	for _, p := range d.pairs {
		if p.fresh == nil && !p.over && p.origin.staying == "" {
			out = append(out, p.entry)
		}
	}
	slices.SortFunc(out, func(a, b *slot) int { return cmp.Compare(a.id, b.id) })
	return out
}

// labelPair makes the labels of a pair say what its entries say.
func (d *decision) labelPair(p *pair) {
	it := p.origin
	if it.wish == byUpdate {
		if !it.pairing.wanted {
			d.label(it, appsv1alpha1.ToReplaceLabel, appsv1alpha1.ContextTrue)
		}
		d.label(it, appsv1alpha1.ReplacedByReplaceUpdateLabel, d.s.UpdatedRevision)
	}
	if d.label(it, appsv1alpha1.ReplacePairNewIDLabel, strconv.Itoa(p.entry.id)) {
		it.told = ReplacementBegun
	}
	if p.fresh != nil {
		d.label(p.fresh, appsv1alpha1.ReplacePairOriginNameLabel, it.Name())
	}
}

// forgetPair takes the labels of a replacement off a Pod that is not to be replaced. A user's own wish is the user's.
func (d *decision) forgetPair(it *item) {
	if !it.Replacing {
		return // most have none of these labels
	}
	if it.pairing.unreadable != "" {
		d.block(it, "PairLabelInvalid", fmt.Sprintf("label %s is %s, which is no instance ID: remove the label", appsv1alpha1.ReplacePairNewIDLabel, it.pairing.unreadable))
	} else if d.unlabel(it, appsv1alpha1.ReplacePairNewIDLabel) {
		it.told = ReplacementCancelled
	}
	if it.pairing.target != "" {
		d.unlabel(it, appsv1alpha1.ToReplaceLabel)
	}
	d.unlabel(it, appsv1alpha1.ReplacedByReplaceUpdateLabel)
}

// cleanUp takes the label of a new Pod off Pods that are none, or whose origin is gone.
func (d *decision) cleanUp() {
	var left map[string]bool
	for _, it := range d.live {
		if !it.pairing.isNew || it.newOf != nil {
			continue
		}
		if left == nil {
			left = map[string]bool{}
			for _, other := range d.items {
				if !other.Live() {
					left[other.Name()] = true
				}
			}
		}
		if !left[it.pairing.origin] && d.unlabel(it, appsv1alpha1.ReplacePairOriginNameLabel) {
			it.told = ReplacementDone
		}
	}
}

// label sets a label and says whether that changes it.
func (d *decision) label(it *item, key, value string) bool {
	if before, ok := it.View.Labels[key]; ok && before == value {
		return false
	}
	it.relabel(key, &value)
	return true
}

// unlabel removes a label and says whether it was there.
func (d *decision) unlabel(it *item, key string) bool {
	if _, ok := it.View.Labels[key]; !ok {
		return false
	}
	it.relabel(key, nil)
	return true
}

func (it *item) relabel(key string, value *string) {
	if it.labels == nil {
		it.labels = map[string]*string{}
	}
	it.labels[key] = value
}

// relabelPods collects the changed labels. A Pod that is written anyway in this round is left for the next, so that the
// two writes do not meet.
func (d *decision) relabelPods() {
	written := map[*Pod]bool{}
	p := &d.plan
	for _, pods := range [][]*Pod{p.Finishes, p.Changes, p.Resizes, p.Cancels, p.Marks} {
		for _, pod := range pods {
			written[pod] = true
		}
	}
	for _, b := range p.Begins {
		written[b.Pod] = true
	}
	for _, deletion := range p.Deletions {
		written[deletion.Pod] = true
	}
	for _, it := range d.items {
		if len(it.labels) > 0 && !written[it.Pod] {
			p.Labels = append(p.Labels, Relabel{Pod: it.Pod, Labels: it.labels, Tells: it.told})
		}
	}
}

// replaced reports whether the Pod's own update has to wait: it is a side of a pair, or becomes one.
func (d *decision) replaced(it *item) bool {
	if it.pair != nil && d.outdated(it) && d.servesAsAsked(it.pair) {
		d.block(it, "BeingReplaced", "is being replaced on request, and the new Pod is updated after that; remove the label "+appsv1alpha1.ToReplaceLabel+" to update this one now")
	}
	return it.pair != nil || it.newOf != nil || it.wish != noWish
}

// isNamed reports whether podToDelete names the Pod, or the other side of its pair.
func (d *decision) isNamed(it *item) bool {
	p := it.pair
	if it.newOf != nil {
		p = it.newOf
	}
	named := func(half *item) bool { return half != nil && half.staying == "" && d.named[half.Name()] }
	return named(it) || p != nil && (named(p.origin) || named(p.fresh))
}

// survivor is the Pod of a replica that scale-in judges it by: the one that stays.
func (it *item) survivor() *item {
	if it.pair != nil && it.pair.committed {
		return it.pair.fresh
	}
	return it
}

// arriving reports whether the Pod is being replaced by one of this revision; for good says that nothing can stop that.
func (it *item) arriving(revision string) (comes, forGood bool) {
	if it.pair == nil || it.pair.revision() != revision {
		return false, false
	}
	return true, it.pair.committed
}
