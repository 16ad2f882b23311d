package setplan

import (
	"cmp"
	"fmt"
	"slices"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// keeping looks after the claims of the set as it is.
type keeping struct {
	*Mode
	*History
	*findings
	actions ClaimActions
}

// keepClaims looks after the claims of live Pods, of IDs that are given up, and those that are not needed any more.
func (k *keeping) keepClaims() ClaimActions {
	if k.claims.byName == nil {
		return k.actions
	}
	for _, it := range k.pods.live {
		if !it.condemned {
			k.keepClaimsOf(it)
		}
	}
	for i := range k.claims.Claims {
		k.keepClaim(&k.claims.Claims[i])
	}
	sortClaims(k.actions.ClaimAdoptions)
	sortClaims(k.actions.ClaimReleases)
	sortClaims(k.actions.ClaimRepairs)
	sortClaims(k.actions.ClaimDeletions)
	k.actions.ClaimUpdates = k.claims.due
	slices.SortFunc(k.actions.ClaimUpdates, func(a, b ClaimUpdate) int { return cmp.Compare(a.Claim.Name, b.Claim.Name) })
	return k.actions
}

func sortClaims(claims []*Claim) {
	slices.SortFunc(claims, func(a, b *Claim) int { return cmp.Compare(a.Name, b.Name) })
}

// keepClaimsOf expands what a Pod's own revision wants larger, and says what is odd about the Pod's claims.
func (k *keeping) keepClaimsOf(it *item) {
	templates := k.claims.Templates[it.Revision]
	for i := range templates {
		t := &templates[i]
		at := slices.IndexFunc(it.Mounts, func(m Mount) bool { return m.Volume == t.Name })
		if at < 0 {
			continue
		}
		name := it.Mounts[at].Claim
		c := k.claims.byName[name]
		switch {
		case c == nil && it.waitsForClaims():
			k.makeAgain(ClaimCreation{it.Pod, name, t.Name})
			continue
		case c != nil && c.Terminating && it.waitsForClaims():
			k.notes.block(it, BlockClaimTerminating, claimTerminating(it, name))
			continue
		case c == nil || c.Terminating:
			k.notes.block(it, NoteClaimLost,
				fmt.Sprintf(
					"its claim %s is deleted: the Pod goes on with the volume that it has, and gets a new, empty one when it is re-created; save the data before", name))
			continue
		case !k.claims.fits(c, t):
			k.notes.block(it, NoteTemplateKept,
				fmt.Sprintf(
					"its claim %s differs from the claim template %s and is kept; only new instance IDs get the template (whenTemplateChanged)", name, t.Name))
			continue
		case c.Requested < t.Request:
			k.expand(it, ClaimUpdate{c, *t, it.Revision})
		case c.Requested > t.Request && c.Hash != t.Hash && it.Revision == k.UpdatedRevision:
			k.notes.block(it, NoteCannotShrink,
				fmt.Sprintf(
					"its claim %s is larger than the claim template %s asks for; it stays as it is, as volumes cannot shrink",
					name, t.Name))
		}
		if c.Expanding != "" {
			k.notes.block(it, NoteExpanding, fmt.Sprintf("the volume of claim %s is being expanded: %s", name, c.Expanding))
		}
	}
}

// waitsForClaims reports whether the Pod has not started: it cannot, without its claims, and there is nothing in its
// volumes yet that another claim of the same name would hide.
func (p *Pod) waitsForClaims() bool { return phaseRank(p.Phase) == 0 }

// makeAgain makes a claim for a Pod that exists, under the name that the Pod gives it.
func (k *keeping) makeAgain(c ClaimCreation) {
	if len(k.actions.ClaimCreations) >= k.Limits.Begins {
		k.notes.more = true
		return
	}
	k.actions.ClaimCreations = append(k.actions.ClaimCreations, c)
}

// claimTerminating says what a Pod waits for whose claim is being deleted. Kubernetes keeps the claim of a Pod that
// has a node until that Pod is gone, and does not start the Pod meanwhile.
func claimTerminating(it *item, claim string) string {
	if it.Scheduled {
		return fmt.Sprintf(
			"its claim %s is being deleted and stays until the Pod is gone, which cannot start with it: delete the Pod; the next one gets a new, empty claim", claim)
	}
	return fmt.Sprintf("its claim %s is being deleted; a new, empty one is made when it is gone: see its finalizers",
		claim)
}

// expand brings a claim of a Pod to the size of its own revision. The Pod does not wait for that.
func (k *keeping) expand(it *item, u ClaimUpdate) {
	if u.refused() {
		k.notes.block(it, BlockExpansionRefused, refusal(u.Claim))
		if u.Claim.RetryIn > 0 {
			k.notes.look(u.Claim.RetryIn)
			return
		}
	}
	if !k.Paused {
		k.claims.update(u)
	}
}

// keepClaim adopts, releases or deletes a claim.
func (k *keeping) keepClaim(c *Claim) {
	if c.Terminating {
		return
	}
	e := k.ledger.entries[c.ID]
	switch {
	case c.Unlabelled:
		if c.ID != NoID {
			k.actions.ClaimRepairs = append(k.actions.ClaimRepairs, c)
		}
	case c.Dangling && k.claims.Retention.Deleted:
		k.actions.ClaimAdoptions = append(k.actions.ClaimAdoptions, c)
	case c.Dangling:
		k.actions.ClaimReleases = append(k.actions.ClaimReleases, c)
	case e != nil && k.obsolete(c, e):
		k.actions.ClaimDeletions = append(k.actions.ClaimDeletions, c)
	case c.Owned && !c.Inherited && !k.claims.Retention.Deleted:
		// So that no way of deleting the CollaSet takes the claim along.
		k.actions.ClaimReleases = append(k.actions.ClaimReleases, c)
	case !c.Owned && k.claims.Retention.Deleted && e != nil && e.active():
		k.actions.ClaimAdoptions = append(k.actions.ClaimAdoptions, c)
	}
}

// obsolete reports whether a claim of an ID of the set is to be deleted now: no Pod mounts it or has its ID, and that
// the ID is given up under such a policy is stored; or its ID has a Pod that does without it.
func (k *keeping) obsolete(c *Claim, e *entryState) bool {
	if k.claims.mounted[c.Name] || k.pods.leaving[c.ID] != nil {
		return false
	}
	holder := k.pods.holder[c.ID]
	if e.vacated {
		isStored := e.stored[appsv1alpha1.ContextScaleIn] == appsv1alpha1.ContextTrue
		return holder == nil && !e.dropped && k.claims.claimsGo(e) && isStored
	}
	if !e.active() || holder == nil || holder.condemned || !k.claims.Retention.Changed ||
		!k.known(holder.Revision) {
		return false
	}
	templates := k.claims.Templates[holder.Revision]
	return !slices.ContainsFunc(templates, func(t ClaimTemplate) bool {
		return t.Name == c.Template &&
			k.claims.fits(c, &t)
	})
}
