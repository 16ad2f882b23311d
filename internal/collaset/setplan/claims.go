package setplan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// Claims belong to an instance ID and a claim template. Which claim a Pod gets follows from its ID and its revision:
//
//   - a claim that fits the template, or, unless Retention.Changed deletes or Retention.Renewed renews, any claim of
//     that ID and template;
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

// forces reports whether a Pod has to be re-created to get from one template of a claim to another.
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

// claimIndex is what a decision knows of claims. That of a set without any is empty.
type claimIndex struct {
	*Volumes
	begins  int // Limits.Begins
	notes   *notes
	byID    map[int][]*Claim
	byName  map[string]*Claim
	mounted map[string]bool // names of claims that some Pod mounts, in whatever state it is
	// templates are all known ones by name and hash.
	templates map[[2]string]*ClaimTemplate
	// due are those that the plan changes, updated their names.
	due     []ClaimUpdate
	updated map[string]bool
}

func newClaimIndex(s *Snapshot, notes *notes) *claimIndex {
	x := &claimIndex{Volumes: &s.Volumes, begins: s.Limits.Begins, notes: notes}
	if len(s.Claims) == 0 && len(s.Templates) == 0 {
		return x
	}
	x.byID, x.byName = make(map[int][]*Claim, len(s.Claims)), make(map[string]*Claim, len(s.Claims))
	x.mounted, x.updated = make(map[string]bool, len(s.Claims)), map[string]bool{}
	x.templates = map[[2]string]*ClaimTemplate{}
	for i := range s.Claims {
		c := &s.Claims[i]
		x.byName[c.Name] = c
		x.mounted[c.Name] = c.UsedBy != ""
		if !c.Terminating && c.ID != NoID {
			x.byID[c.ID] = append(x.byID[c.ID], c)
		}
	}
	for _, claims := range x.byID {
		slices.SortFunc(claims, func(a, b *Claim) int {
			return cmp.Or(a.Created.Compare(b.Created),
				cmp.Compare(a.Name, b.Name))
		})
	}
	for _, templates := range s.Templates {
		for i := range templates {
			x.templates[[2]string{templates[i].Name, templates[i].Hash}] = &templates[i]
		}
	}
	for i := range s.Pods {
		for _, m := range s.Pods[i].Mounts {
			x.mounted[m.Claim] = true
		}
	}
	return x
}

// origin is the template that a claim was last brought in line with; nil if no known revision has it.
func (x *claimIndex) origin(c *Claim) *ClaimTemplate {
	return x.templates[[2]string{c.Template, c.Hash}]
}

// fits reports whether a claim differs from a template of its name in nothing but what can be changed; in nothing at
// all where claims are renewed.
func (x *claimIndex) fits(c *Claim, t *ClaimTemplate) bool {
	if c.Hash == t.Hash {
		return true
	}
	renewed := x.Retention.Renewed
	if origin := x.origin(c); origin != nil {
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
		open(t.VolumeAttributesClassName == nil,
			equality.Semantic.DeepEqual(c.VolumeAttributesClassName, t.VolumeAttributesClassName)) &&
		open(t.DataSource == nil, equality.Semantic.DeepEqual(c.DataSource, t.DataSource)) &&
		open(t.DataSourceRef == nil, equality.Semantic.DeepEqual(c.DataSourceRef, t.DataSourceRef)) &&
		equality.Semantic.DeepEqual(c.Selector, t.Selector)
}

// pick is the claim of an ID that stands for a template; nil if there is none.
func (x *claimIndex) pick(id int, t *ClaimTemplate) *Claim {
	var best *Claim
	order := func(a, b *Claim) int {
		return cmp.Or(first(x.fits(a, t), x.fits(b, t)), first(x.mounted[a.Name], x.mounted[b.Name]))
	}
	for _, c := range x.byID[id] {
		if c.Template != t.Name || (x.Retention.renews() && !x.fits(c, t)) {
			continue
		}
		if best == nil || order(c, best) < 0 {
			best = c
		}
	}
	return best
}

// creationClaims are what a Pod of an ID and a revision gets.
func (x *claimIndex) creationClaims(id int, revision string) []CreationClaim {
	templates := x.Templates[revision]
	if len(templates) == 0 {
		return nil
	}
	out := make([]CreationClaim, len(templates))
	for i := range templates {
		out[i] = CreationClaim{Template: templates[i].Name, Claim: x.pick(id, &templates[i])}
	}
	return out
}

// waitsForVolumes reports whether the successor of a Pod on its way out may need the volumes that it still has.
func (x *claimIndex) waitsForVolumes(e *entryState, gone *item) bool {
	if len(x.Templates[e.revision()]) > 0 {
		return true
	}
	return slices.ContainsFunc(gone.Mounts, func(m Mount) bool { return x.byName[m.Claim] != nil })
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
func (x *claimIndex) dueUpdate(c *Claim, t *ClaimTemplate) bool {
	if c.Requested < t.Request {
		return true
	}
	if c.Hash == t.Hash {
		return false
	}
	origin := x.origin(c)
	return origin != nil && origin.Meta != t.Meta
}

// updates are the claims of a Pod that have to be changed before it moves to a revision.
func (x *claimIndex) updates(it *item, revision string) []ClaimUpdate {
	templates := x.Templates[revision]
	var out []ClaimUpdate
	for i := range templates {
		t := &templates[i]
		if c := x.pick(it.ID, t); c != nil && x.fits(c, t) && x.dueUpdate(c, t) {
			out = append(out, ClaimUpdate{c, *t, revision})
		}
	}
	return out
}

func refusal(c *Claim) string {
	return fmt.Sprintf(
		"claim %s cannot be expanded: %s; put the storage request back, or let the StorageClass or the quota allow it",
		c.Name, c.Refused)
}

// update has a claim brought in line, once.
func (x *claimIndex) update(u ClaimUpdate) {
	switch {
	case x.updated[u.Claim.Name]:
	case len(x.due) >= x.begins:
		x.notes.more = true
	default:
		x.updated[u.Claim.Name] = true
		x.due = append(x.due, u)
	}
}

// holdsClaims reports whether the ID has claims that go before it is free again.
func (x *claimIndex) holdsClaims(e *entryState) bool {
	return x.claimsGo(e) && len(x.byID[e.id]) > 0
}

// claimsGo reports whether the claims of an ID go when it is given up.
func (x *claimIndex) claimsGo(e *entryState) bool {
	return x.Retention.Scaled || x.Retention.Replaced && e.linked()
}

// hasOtherClaims reports whether an ID has claims that wait for it, which are not those of a Pod that brings its own.
func (x *claimIndex) hasOtherClaims(id int, pod *Pod) bool {
	return len(pod.Mounts) > 0 && slices.ContainsFunc(x.byID[id], func(c *Claim) bool {
		return !slices.ContainsFunc(pod.Mounts, func(m Mount) bool { return m.Claim == c.Name })
	})
}

// releases are the claims whose owner references go before a deleted CollaSet, or a garbage collector on its behalf,
// takes them along.
func (x *claimIndex) releases() (released []*Claim) {
	for i := range x.Claims {
		if c := &x.Claims[i]; c.Owned && !c.Terminating && !x.Retention.Deleted {
			released = append(released, c)
		}
	}
	sortClaims(released)
	return released
}

// claimedID is the instance ID of the claims that a Pod mounts, NoID if it mounts none of the set's, or such of several
// IDs.
func (x *claimIndex) claimedID(pod *Pod) int {
	id := NoID
	for _, m := range pod.Mounts {
		c := x.byName[m.Claim]
		switch {
		case c == nil || c.ID == NoID:
		case id != NoID && id != c.ID:
			return NoID
		default:
			id = c.ID
		}
	}
	return id
}
