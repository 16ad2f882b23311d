package setplan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Claims belong to an instance ID and a claim template. Which claim a Pod gets follows from its ID and its revision:
//
//   - a claim that fits the template, or, unless Retention.Changed deletes or Retention.Renewed renews, any claim of that ID and template;
//   - else a new one, made before the Pod.
//
// Nothing is deleted without a policy that says so, and nothing that a Pod mounts, whatever state the Pod is in. With
// claims an ID has one Pod at most: the successor waits until the predecessor is gone, and its volumes are free.

// maxClaimForcing bounds the claim templates that are named as forcing: status has room for some fields only.
const maxClaimForcing = 5

// Reasons of blockers that are about claims.
const (
	// BlockVolumesInUse: the successor of a Pod waits for its volumes.
	BlockVolumesInUse = "VolumesInUse"
	// BlockExpansionRefused: the API server does not let the claim grow, so the Pod stays at its revision.
	BlockExpansionRefused = "ClaimExpansionRefused"
	// BlockClaimUnknown: a claim lacks its labels, and it cannot be told which Pod it is for.
	BlockClaimUnknown = "ClaimUnknown"
	// NoteExpanding: the volume is growing; nothing waits for it.
	NoteExpanding = "VolumeExpanding"
	// NoteCannotShrink: the template asks for less than the claim has; the claim stays as it is.
	NoteCannotShrink = "ClaimCannotShrink"
	// NoteTemplateKept: the claim differs from its template and stays as it is.
	NoteTemplateKept = "ClaimTemplateKept"
	// NoteClaimLost: a running Pod's claim is deleted or being deleted.
	NoteClaimLost = "ClaimLost"
	// BlockClaimTerminating: a Pod that has not started waits for its claim to be gone, so that it can be made again.
	BlockClaimTerminating = "ClaimTerminating"
)

// Claim is what a decision reads of one claim that is the set's: by owner reference or, ownerless, by name and labels.
// Claims that were excluded are not among them.
type Claim struct {
	Name            string
	UID             types.UID
	ResourceVersion string
	// ID is the instance ID and Template the claim template that it was made for.
	ID       int
	Template string
	// Hash is that of the template that it was last brought in line with, "" if it has none.
	Hash string
	// Spec belongs to the cache.
	Spec *corev1.PersistentVolumeClaimSpec
	// Requested is the storage request in bytes.
	Requested int64
	Created   time.Time
	// Owned is true if an owner reference names the set; Inherited that Kuperator wrote it.
	Owned, Inherited bool
	// Dangling is true if an owner reference names a CollaSet of this name that is no more, so that the garbage
	// collector may delete the claim.
	Dangling bool
	// Unlabelled is true if the claim lacks labels by which it is found. ID is NoID then if it cannot be told.
	Unlabelled  bool
	Terminating bool
	// UsedBy is a Pod that mounts it and is not the set's, "" for none: it was left behind by another CollaSet of this
	// name.
	UsedBy string
	// Expanding says what a growing volume waits for, "" if it does not grow.
	Expanding string
	// Refused is the API server's answer to the last attempt to bring it in line with a template of hash RefusedHash, and
	// RetryIn how long it is not tried again; with no time left it is.
	Refused, RefusedHash string
	RetryIn              time.Duration
}

// ClaimTemplate is one claim template of a revision.
type ClaimTemplate struct {
	Name, Hash string
	// Shape is what cannot be changed on a claim, Meta are labels and annotations: equal texts mean the same.
	Shape, Meta string
	Spec        *corev1.PersistentVolumeClaimSpec
	// Request is the storage request in bytes.
	Request int64
}

// Retention says which claims are deleted; the zero value deletes none.
type Retention struct {
	// Scaled: those of an instance ID that is given up. Deleted: those of a deleted CollaSet. Changed: those that differ
	// from their template, once no Pod mounts them.
	Scaled, Deleted, Changed bool
	// Replaced: those of an instance ID that is given up as one half of a replacement, whatever Scaled says.
	Replaced bool
	// Renewed is true if a claim differs from its template in whatever it differs, its size and labels too, and that a
	// Pod gets a new one then.
	Renewed bool
}

// renews reports whether a Pod does not take a claim that differs from its template.
func (r Retention) renews() bool { return r.Changed || r.Renewed }

// forces reports whether a Pod has to be created anew to get from one template of a claim to another.
func (r Retention) forces(before, after *ClaimTemplate) bool {
	if r.Renewed {
		return !before.same(after)
	}
	return r.Changed && before.Shape != after.Shape
}

// same reports whether two templates make the same claim.
func (t *ClaimTemplate) same(other *ClaimTemplate) bool {
	return t.Hash == other.Hash || t.Shape == other.Shape && t.Meta == other.Meta && t.Request == other.Request
}

// Mount is a volume of a Pod that is a claim.
type Mount struct{ Volume, Claim string }

// ClaimCreation is a claim that a Pod mounts and that does not exist.
type ClaimCreation struct {
	Pod *Pod
	// Claim is the name that the Pod gives it, Template the one of the claim template of the Pod's revision.
	Claim, Template string
}

// CreationClaim is the claim that a Pod to be created gets for one template.
type CreationClaim struct {
	Template string
	// Claim is the one that exists, nil for one to be made.
	Claim *Claim
}

// ClaimUpdate brings a claim in line with a template, as far as that can be done: a larger request, labels,
// annotations.
type ClaimUpdate struct {
	Claim    *Claim
	Template ClaimTemplate
	Revision string
}

// refused reports whether the API server refused this very change.
func (u *ClaimUpdate) refused() bool {
	return u.Claim.Refused != "" && u.Claim.RefusedHash == u.Template.Hash
}

// claimIndex is what a decision knows of claims. The zero value is that of a set without any.
type claimIndex struct {
	byID    map[int][]*Claim
	byName  map[string]*Claim
	mounted map[string]bool // names of claims that some Pod mounts, in whatever state it is
	// templates are all known ones by name and hash.
	templates map[[2]string]*ClaimTemplate
	// updated are those that the plan changes.
	updated map[string]bool
}

func (d *decision) indexClaims() {
	s := d.s
	if len(s.Claims) == 0 && len(s.Templates) == 0 {
		return
	}
	d.claims = claimIndex{
		byID: make(map[int][]*Claim, len(s.Claims)), byName: make(map[string]*Claim, len(s.Claims)), mounted: make(map[string]bool, len(s.Claims)),
		templates: map[[2]string]*ClaimTemplate{}, updated: map[string]bool{},
	}
	for i := range s.Claims {
		c := &s.Claims[i]
		d.claims.byName[c.Name] = c
		d.claims.mounted[c.Name] = c.UsedBy != ""
		if !c.Terminating && c.ID != NoID {
			d.claims.byID[c.ID] = append(d.claims.byID[c.ID], c)
		}
	}
	for _, claims := range d.claims.byID {
		slices.SortFunc(claims, func(a, b *Claim) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) })
	}
	for _, templates := range s.Templates {
		for i := range templates {
			d.claims.templates[[2]string{templates[i].Name, templates[i].Hash}] = &templates[i]
		}
	}
}

// indexMounts notes which claims Pods mount.
func (d *decision) indexMounts() {
	if d.claims.byName == nil {
		return
	}
	for _, it := range d.items {
		for _, m := range it.Mounts {
			d.claims.mounted[m.Claim] = true
		}
	}
}

// origin is the template that a claim was last brought in line with; nil if no known revision has it.
func (d *decision) origin(c *Claim) *ClaimTemplate {
	return d.claims.templates[[2]string{c.Template, c.Hash}]
}

// fits reports whether a claim differs from a template of its name in nothing but what can be changed; in nothing at
// all where claims are renewed.
func (d *decision) fits(c *Claim, t *ClaimTemplate) bool {
	if c.Hash == t.Hash {
		return true
	}
	renewed := d.s.Retention.Renewed
	if origin := d.origin(c); origin != nil {
		return origin.Shape == t.Shape && (!renewed || origin.same(t))
	}
	return shaped(c.Spec, t.Spec) && (!renewed || c.Requested == t.Request)
}

// shaped reports whether a claim as it is could have been made from a template, its size apart: what the template
// leaves open may have been filled in.
func shaped(c, t *corev1.PersistentVolumeClaimSpec) bool {
	if c == nil || t == nil {
		return false
	}
	open := func(unset bool, same bool) bool { return unset || same }
	return equality.Semantic.DeepEqual(c.AccessModes, t.AccessModes) &&
		open(t.StorageClassName == nil, equality.Semantic.DeepEqual(c.StorageClassName, t.StorageClassName)) &&
		open(t.VolumeMode == nil, equality.Semantic.DeepEqual(c.VolumeMode, t.VolumeMode)) &&
		open(t.VolumeName == "", c.VolumeName == t.VolumeName) &&
		open(t.VolumeAttributesClassName == nil, equality.Semantic.DeepEqual(c.VolumeAttributesClassName, t.VolumeAttributesClassName)) &&
		open(t.DataSource == nil, equality.Semantic.DeepEqual(c.DataSource, t.DataSource)) &&
		open(t.DataSourceRef == nil, equality.Semantic.DeepEqual(c.DataSourceRef, t.DataSourceRef)) &&
		equality.Semantic.DeepEqual(c.Selector, t.Selector)
}

// pick is the claim of an ID that stands for a template; nil if there is none.
func (d *decision) pick(id int, t *ClaimTemplate) *Claim {
	var best *Claim
	order := func(a, b *Claim) int {
		return cmp.Or(first(d.fits(a, t), d.fits(b, t)), first(d.claims.mounted[a.Name], d.claims.mounted[b.Name]))
	}
	for _, c := range d.claims.byID[id] {
		if c.Template != t.Name || (d.s.Retention.renews() && !d.fits(c, t)) {
			continue
		}
		if best == nil || order(c, best) < 0 {
			best = c
		}
	}
	return best
}

// creationClaims are what a Pod of an ID and a revision gets.
func (d *decision) creationClaims(id int, revision string) []CreationClaim {
	templates := d.s.Templates[revision]
	if len(templates) == 0 {
		return nil
	}
	out := make([]CreationClaim, len(templates))
	for i := range templates {
		out[i] = CreationClaim{Template: templates[i].Name, Claim: d.pick(id, &templates[i])}
	}
	return out
}

// waitsForStranger reports whether a claim of a Pod to be created is mounted by a Pod that is not the set's.
func (d *decision) waitsForStranger(c *Creation) bool {
	for _, claim := range c.Claims {
		if claim.Claim != nil && claim.Claim.UsedBy != "" {
			d.blockName(claim.Claim.UsedBy, BlockVolumesInUse, fmt.Sprintf(
				"mounts claim %s of instance ID %d and is not this CollaSet's: delete the Pod, or take it in with spec.scaleStrategy.podToInclude", claim.Claim.Name, c.ID))
			return true
		}
	}
	return false
}

// waitsForUnknown reports whether a claim would be made for a Pod, and one is there of which nothing tells whose it is.
func (d *decision) waitsForUnknown(c *Creation) bool {
	for _, claim := range c.Claims {
		i := slices.IndexFunc(d.s.Claims, func(other Claim) bool { return other.ID == NoID && other.Template == claim.Template })
		if claim.Claim != nil || i < 0 {
			continue
		}
		b := d.blockers[BlockClaimUnknown]
		if b == nil {
			b = &Blocker{Reason: BlockClaimUnknown, Message: fmt.Sprintf("claim %s was made for this CollaSet, and no label, Pod or memory tells for which instance ID; no claim is made for instance ID %d, "+
				"which it may be: set its labels %s and %s, or label it %s=%s if it is to be left alone", d.s.Claims[i].Name, c.ID,
				appsv1alpha1.InstanceIDLabel, appsv1alpha1.ControlLabel, appsv1alpha1.OrphanedLabel, appsv1alpha1.OrphanedValue)}
			d.blockers[BlockClaimUnknown] = b
		}
		b.Count++
		return true
	}
	return false
}

// waitsForVolumes reports whether the successor of a Pod on its way out may need the volumes that it still has.
func (d *decision) waitsForVolumes(e *slot, gone *item) bool {
	if len(d.s.Templates[e.revision()]) > 0 {
		return true
	}
	return slices.ContainsFunc(gone.Mounts, func(m Mount) bool { return d.claims.byName[m.Claim] != nil })
}

// ClaimForcing names the claim templates because of which a Pod has to be re-created to get from one revision to
// another: a running Pod gets no volume and loses none, and another claim is only made if the policy is to delete the
// old one, or to renew it.
func ClaimForcing(before, after []ClaimTemplate, policy Retention) []string {
	var forcing []string
	named := func(in []ClaimTemplate, name string) *ClaimTemplate {
		if i := slices.IndexFunc(in, func(t ClaimTemplate) bool { return t.Name == name }); i >= 0 {
			return &in[i]
		}
		return nil
	}
	for i := range after {
		if old := named(before, after[i].Name); old == nil || policy.forces(old, &after[i]) {
			forcing = append(forcing, fmt.Sprintf("volumeClaimTemplates[%s]", after[i].Name))
		}
	}
	for i := range before {
		if named(after, before[i].Name) == nil {
			forcing = append(forcing, fmt.Sprintf("volumeClaimTemplates[%s]", before[i].Name))
		}
	}
	if more := len(forcing) - maxClaimForcing; more > 0 {
		forcing = append(forcing[:maxClaimForcing], fmt.Sprintf("(%d more claim templates)", more))
	}
	return forcing
}

// dueUpdate reports whether a claim is to be brought in line with a template that it fits.
func (d *decision) dueUpdate(c *Claim, t *ClaimTemplate) bool {
	if c.Requested < t.Request {
		return true
	}
	if c.Hash == t.Hash {
		return false
	}
	origin := d.origin(c)
	return origin != nil && origin.Meta != t.Meta
}

// updates are the claims of a Pod that have to be changed before it moves to the updated revision.
func (d *decision) updates(it *item) []ClaimUpdate {
	templates := d.s.Templates[d.s.UpdatedRevision]
	var out []ClaimUpdate
	for i := range templates {
		t := &templates[i]
		if c := d.pick(it.ID, t); c != nil && d.fits(c, t) && d.dueUpdate(c, t) {
			out = append(out, ClaimUpdate{c, *t, d.s.UpdatedRevision})
		}
	}
	return out
}

// refusedExpansion is why a Pod's claim cannot become what the updated revision asks for, "" if nothing is known to be
// in the way, or it is time to try again.
func (d *decision) refusedExpansion(it *item) string {
	for _, u := range d.updates(it) {
		if u.refused() && u.Claim.RetryIn > 0 {
			d.look(u.Claim.RetryIn)
			return refusal(u.Claim)
		}
	}
	return ""
}

func refusal(c *Claim) string {
	return fmt.Sprintf("claim %s cannot be expanded: %s; put the storage request back, or let the StorageClass or the quota allow it", c.Name, c.Refused)
}

// claimsFirst changes the claims that a Pod's update needs, and says whether there are any: the Pod follows when they
// show the change. That needs no permission, as no Pod notices, and a Pod whose claim is refused has not been touched
// then.
func (d *decision) claimsFirst(it *item) bool {
	updates := d.updates(it)
	for _, u := range updates {
		if u.refused() {
			d.block(it, BlockExpansionRefused, refusal(u.Claim))
			d.refused = true
		}
		d.updateClaim(u)
	}
	return len(updates) > 0
}

func (d *decision) updateClaim(u ClaimUpdate) {
	switch {
	case d.claims.updated[u.Claim.Name]:
	case len(d.plan.ClaimUpdates) >= d.s.limits().Begins:
		d.plan.More = true
	default:
		d.claims.updated[u.Claim.Name] = true
		d.plan.ClaimUpdates = append(d.plan.ClaimUpdates, u)
	}
}

// keepClaims looks after the claims of the set as it is: of live Pods, of IDs that are given up, and those that nobody
// needs any more.
func (d *decision) keepClaims() {
	if d.claims.byName == nil {
		return
	}
	for _, it := range d.live {
		if !it.condemned && !it.excluding {
			d.keepClaimsOf(it)
		}
	}
	for i := range d.s.Claims {
		d.keepClaim(&d.s.Claims[i])
	}
	sortClaims(d.plan.ClaimAdoptions)
	sortClaims(d.plan.ClaimReleases)
	sortClaims(d.plan.ClaimRepairs)
	sortClaims(d.plan.ClaimDeletions)
	slices.SortFunc(d.plan.ClaimUpdates, func(a, b ClaimUpdate) int { return cmp.Compare(a.Claim.Name, b.Claim.Name) })
}

func sortClaims(claims []*Claim) {
	slices.SortFunc(claims, func(a, b *Claim) int { return cmp.Compare(a.Name, b.Name) })
}

// keepClaimsOf expands what a Pod's own revision wants larger, and says what is odd about the Pod's claims.
func (d *decision) keepClaimsOf(it *item) {
	templates := d.s.Templates[it.Revision]
	for i := range templates {
		t := &templates[i]
		at := slices.IndexFunc(it.Mounts, func(m Mount) bool { return m.Volume == t.Name })
		if at < 0 {
			continue
		}
		name := it.Mounts[at].Claim
		c := d.claims.byName[name]
		switch {
		case c == nil && it.waitsForClaims():
			d.makeAgain(ClaimCreation{it.Pod, name, t.Name})
			continue
		case c != nil && c.Terminating && it.waitsForClaims():
			d.block(it, BlockClaimTerminating, claimTerminating(it, name))
			continue
		case c == nil || c.Terminating:
			d.block(it, NoteClaimLost, fmt.Sprintf("its claim %s is deleted: the Pod goes on with the volume that it has, and gets a new, empty one when it is re-created; save the data before", name))
			continue
		case !d.fits(c, t):
			d.block(it, NoteTemplateKept, fmt.Sprintf("its claim %s differs from the claim template %s and is kept; only new instance IDs get the template (whenTemplateChanged)", name, t.Name))
			continue
		case c.Requested < t.Request:
			d.expand(it, ClaimUpdate{c, *t, it.Revision})
		case c.Requested > t.Request && c.Hash != t.Hash && it.Revision == d.s.UpdatedRevision:
			d.block(it, NoteCannotShrink, fmt.Sprintf("its claim %s is larger than the claim template %s asks for; it stays as it is, as volumes cannot shrink", name, t.Name))
		}
		if c.Expanding != "" {
			d.block(it, NoteExpanding, fmt.Sprintf("the volume of claim %s is being expanded: %s", name, c.Expanding))
		}
	}
}

// waitsForClaims reports whether the Pod has not started: it cannot, without its claims, and there is nothing in its
// volumes yet that another claim of the same name would hide.
func (p *Pod) waitsForClaims() bool { return phaseRank(p.Phase) == 0 }

// makeAgain makes a claim for a Pod that exists, under the name that the Pod gives it.
func (d *decision) makeAgain(c ClaimCreation) {
	if len(d.plan.ClaimCreations) >= d.s.limits().Begins {
		d.plan.More = true
		return
	}
	d.plan.ClaimCreations = append(d.plan.ClaimCreations, c)
}

// claimTerminating says what a Pod waits for whose claim is being deleted. Kubernetes keeps the claim of a Pod that
// has a node until that Pod is gone, and does not start the Pod meanwhile.
func claimTerminating(it *item, claim string) string {
	if it.Scheduled {
		return fmt.Sprintf("its claim %s is being deleted and stays until the Pod is gone, which cannot start with it: delete the Pod; the next one gets a new, empty claim", claim)
	}
	return fmt.Sprintf("its claim %s is being deleted; a new, empty one is made when it is gone: see its finalizers", claim)
}

// expand brings a claim of a Pod to the size of its own revision. The Pod does not wait for that.
func (d *decision) expand(it *item, u ClaimUpdate) {
	if u.refused() {
		d.block(it, BlockExpansionRefused, refusal(u.Claim))
		if u.Claim.RetryIn > 0 {
			d.look(u.Claim.RetryIn)
			return
		}
	}
	if !d.s.Paused {
		d.updateClaim(u)
	}
}

// keepClaim adopts, releases or deletes a claim.
func (d *decision) keepClaim(c *Claim) {
	if c.Terminating {
		return
	}
	e := d.entries[c.ID]
	switch {
	case c.Unlabelled:
		if c.ID != NoID {
			d.plan.ClaimRepairs = append(d.plan.ClaimRepairs, c)
		}
	case c.Dangling && d.s.Retention.Deleted:
		d.plan.ClaimAdoptions = append(d.plan.ClaimAdoptions, c)
	case c.Dangling:
		d.plan.ClaimReleases = append(d.plan.ClaimReleases, c)
	case e != nil && d.obsolete(c, e):
		d.plan.ClaimDeletions = append(d.plan.ClaimDeletions, c)
	case c.Owned && !c.Inherited && !d.s.Retention.Deleted:
		// So that no way of deleting the CollaSet takes the claim along.
		d.plan.ClaimReleases = append(d.plan.ClaimReleases, c)
	case !c.Owned && d.s.Retention.Deleted && e != nil && e.active():
		d.plan.ClaimAdoptions = append(d.plan.ClaimAdoptions, c)
	}
}

// obsolete reports whether a claim of an ID of the set is to be deleted now: no Pod mounts it or has its ID, and that
// the ID is given up under such a policy is stored; or its ID has a Pod that does without it.
func (d *decision) obsolete(c *Claim, e *slot) bool {
	if d.claims.mounted[c.Name] || d.leaving[c.ID] != nil {
		return false
	}
	holder := d.holder[c.ID]
	if e.vacated {
		return holder == nil && !e.dropped && d.claimsGo(e) && storedScaleIn(e)
	}
	if !e.active() || holder == nil || holder.condemned || holder.excluding || !d.s.Retention.Changed || !d.known(holder.Revision) {
		return false
	}
	templates := d.s.Templates[holder.Revision]
	return !slices.ContainsFunc(templates, func(t ClaimTemplate) bool { return t.Name == c.Template && d.fits(c, &t) })
}

// holdsClaims reports whether the ID has claims that go before it is free again.
func (d *decision) holdsClaims(e *slot) bool {
	return d.claimsGo(e) && len(d.claims.byID[e.id]) > 0
}

// claimsGo reports whether the claims of an ID go when it is given up.
func (d *decision) claimsGo(e *slot) bool {
	return d.s.Retention.Scaled || d.s.Retention.Replaced && e.linked()
}

// hasOtherClaims reports whether an ID has claims that wait for it, which are not those of a Pod that brings its own.
func (d *decision) hasOtherClaims(id int, pod *Pod) bool {
	return len(pod.Mounts) > 0 && slices.ContainsFunc(d.claims.byID[id], func(c *Claim) bool {
		return !slices.ContainsFunc(pod.Mounts, func(m Mount) bool { return m.Claim == c.Name })
	})
}

// releaseClaims takes the owner references off before a deleted CollaSet, or a garbage collector on its behalf, takes
// the claims along.
func (d *decision) releaseClaims() {
	for i := range d.s.Claims {
		if c := &d.s.Claims[i]; c.Owned && !c.Terminating && !d.s.Retention.Deleted {
			d.plan.ClaimReleases = append(d.plan.ClaimReleases, c)
		}
	}
	sortClaims(d.plan.ClaimReleases)
}
