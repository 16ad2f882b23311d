package setplan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// claimTemplate has a size and a class: another class is another shape.
func claimTemplate(name string, size int64, class string) setplan.ClaimTemplate {
	return setplan.ClaimTemplate{
		Name: name, Hash: fmt.Sprintf("%s-%d-%s", name, size, class), Shape: class, Meta: "", Request: size,
		Spec: &corev1.PersistentVolumeClaimSpec{StorageClassName: &class},
	}
}

func (w *world) claim(name string) *setplan.Claim {
	for i := range w.Claims {
		if w.Claims[i].Name == name {
			return &w.Claims[i]
		}
	}
	return nil
}

// roll moves the set to another revision, with what the shell says of claim templates.
func (w *world) roll(revision string) {
	w.template(revision)
	for name := range w.Revisions {
		w.Revisions[name] = setplan.Difference{Forcing: setplan.ClaimForcing(w.Templates[name], w.Templates[revision],
			w.Retention)}
	}
}

// makeClaim is the claim that a creation made, in this round or just now.
func (w *world) makeClaim(id int, t setplan.ClaimTemplate) *setplan.Claim {
	for i := range w.Claims {
		if c := &w.Claims[i]; c.ID == id && c.Template == t.Name && c.Created.Equal(w.Now) && !c.Terminating {
			return c
		}
	}
	w.uid++
	w.say("claim %d %s", id, t.Name)
	w.Claims = append(w.Claims, setplan.Claim{
		Name: fmt.Sprintf("web-%s-%05d", t.Name, w.uid), UID: types.UID(fmt.Sprint("c", w.uid)), ID: id, Template: t.Name,
		Hash: t.Hash,
		Spec: t.Spec, Requested: t.Request, Created: w.Now, Owned: w.Retention.Deleted,
	})
	return &w.Claims[len(w.Claims)-1]
}

func (w *world) mount(p *setplan.Pod, c setplan.Creation) {
	for i, t := range w.Templates[c.Revision] {
		name := ""
		if c.Claims[i].Claim != nil {
			name = c.Claims[i].Claim.Name
		} else {
			name = w.makeClaim(c.ID, t).Name
		}
		p.Mounts = append(p.Mounts, setplan.Mount{Volume: t.Name, Claim: name})
	}
}

func (w *world) mounted(claim string) []*setplan.Pod {
	var by []*setplan.Pod
	for i := range w.Pods {
		if slices.ContainsFunc(w.Pods[i].Mounts, func(m setplan.Mount) bool { return m.Claim == claim }) {
			by = append(by, &w.Pods[i])
		}
	}
	return by
}

// applyClaims carries out what a plan says of claims. Some creations get as far as their claims only.
func (w *world) applyClaims(plan setplan.Plan, passes func() bool) {
	if len(w.Templates) == 0 {
		return
	}
	for _, change := range plan.Changes {
		p := change.Pod
		for _, t := range w.Templates[w.UpdatedRevision] {
			for _, m := range p.Mounts {
				if c := w.claim(m.Claim); m.Volume == t.Name && c != nil && !c.Terminating && c.Spec == t.Spec &&
					c.Requested < t.Request {
					w.wrong("%s was changed before its claim %s", p.Name(), c.Name)
				}
			}
		}
	}
	each(plan.ClaimUpdates, passes, func(u setplan.ClaimUpdate) {
		c := w.claim(u.Claim.Name)
		w.say("expand %d %s %d", c.ID, c.Template, u.Template.Request)
		if w.grown == nil {
			w.grown = map[string]bool{}
		}
		w.grown[c.Name] = true
		c.Hash, c.Requested, c.Expanding = u.Template.Hash, max(c.Requested, u.Template.Request), "grows"
	})
	each(plan.ClaimAdoptions, passes, func(c *setplan.Claim) { w.say("adopt %d", c.ID); w.claim(c.Name).Owned = true })
	each(plan.ClaimReleases, passes, func(c *setplan.Claim) { w.say("release %d", c.ID); w.claim(c.Name).Owned = false })
	each(plan.ClaimDeletions, passes, func(c *setplan.Claim) {
		w.say("delete claim %d %s", c.ID, c.Template)
		if by := w.mounted(c.Name); len(by) > 0 {
			w.wrong("claim %s is deleted, and %s mounts it", c.Name, by[0].Name())
		}
		if !w.Retention.Scaled && !w.Retention.Changed && !w.Retention.Replaced {
			w.wrong("claim %s is deleted, and no policy says so", c.Name)
		}
		w.claim(c.Name).Terminating = true
	})
	each(plan.ClaimCreations, passes, func(c setplan.ClaimCreation) {
		if w.claim(c.Claim) != nil {
			w.wrong("claim %s is made, and exists", c.Claim)
		}
		for _, t := range w.Templates[c.Pod.Revision] {
			if t.Name == c.Template {
				w.makeClaim(c.Pod.ID, t).Name = c.Claim
			}
		}
	})
	each(plan.Creations, passes, func(c setplan.Creation) {
		for i, t := range w.Templates[c.Revision] {
			if c.Claims[i].Claim == nil && passes() {
				w.makeClaim(c.ID, t)
			}
		}
	})
}

// takeClaimsAlong excludes the claims of a Pod, or includes them under an ID.
func (w *world) takeClaimsAlong(p *setplan.Pod, id *int) {
	from, to := &w.Claims, &w.excluded
	if id != nil {
		from, to = to, from
	}
	var stay []setplan.Claim
	for _, c := range *from {
		if !slices.ContainsFunc(p.Mounts, func(m setplan.Mount) bool { return m.Claim == c.Name }) {
			stay = append(stay, c)
			continue
		}
		if id != nil {
			c.ID = *id
		}
		*to = append(*to, c)
	}
	*from = stay
}

// settleClaims does what volume controllers do.
func (w *world) settleClaims() {
	w.Claims = slices.DeleteFunc(w.Claims, func(c setplan.Claim) bool {
		return c.Terminating &&
			len(w.mounted(c.Name)) == 0
	})
	for i := range w.Claims {
		w.Claims[i].Expanding = ""
	}
}

// checkClaims is what must hold of claims at all times.
func (w *world) checkClaims() {
	made := map[string]string{}
	for _, c := range w.Claims {
		if w.grown[c.Name] {
			continue // a larger one was made while claims were renewed, and is left over: nothing is deleted without a policy
		}
		key := fmt.Sprint(c.ID, c.Template, c.Hash)
		if other, twice := made[key]; twice && !c.Terminating {
			w.wrong("claims %s and %s are for one instance ID", other, c.Name)
		}
		made[key] = c.Name
		if by := w.mounted(c.Name); len(by) > 1 {
			w.wrong("claim %s has %d Pods", c.Name, len(by))
		}
	}
	for _, p := range w.live() {
		for _, m := range p.Mounts {
			if c := w.claim(m.Claim); c != nil && c.ID != p.ID {
				w.wrong("%s of ID %d has a claim of ID %d", p.Name(), p.ID, c.ID)
			}
		}
	}
}

// claimNames are the claims that exist, by ID and template.
func (w *world) claimNames() map[string]string {
	out := map[string]string{}
	for _, c := range w.Claims {
		out[fmt.Sprintf("%d/%s/%s", c.ID, c.Template, c.Hash)] = c.Name
	}
	return out
}

func (w *world) reasons() []string {
	var out []string
	for _, b := range setplan.Decide(&w.Snapshot).Blockers {
		out = append(out, b.Reason)
	}
	return out
}

func runs(t *testing.T, w *world) {
	t.Helper()
	require.True(t, w.run(always), "it comes to rest: %v", w.log)
	require.Empty(t, w.problems)
}

func TestClaims(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(*world)
		change func(*testing.T, *world)
		check  func(t *testing.T, w *world, pods []types.UID, claims map[string]string)
	}{
		"every Pod gets a claim of each template, and nothing more happens": {
			change: func(*testing.T, *world) {},
			check: func(t *testing.T, w *world, _ []types.UID, claims map[string]string) {
				assert.Len(t, claims, 3)
				assert.Empty(t, w.log)
			},
		},
		"claims follow their ID when Pods are re-created": {
			change: func(_ *testing.T, w *world) {
				w.Templates["r2"] = w.Templates["r1"]
				w.roll("r2")
				w.Revisions["r1"] = setplan.Difference{Forcing: []string{"env"}}
			},
			check: func(t *testing.T, w *world, pods []types.UID, claims map[string]string) {
				assert.NotEqual(t, pods, w.uids())
				assert.Equal(t, claims, w.claimNames())
			},
		},
		"a Pod deleted by hand comes back to its claim": {
			change: func(_ *testing.T, w *world) { w.Pods[1].View.Terminating = true },
			check: func(t *testing.T, w *world, _ []types.UID, claims map[string]string) {
				assert.Equal(t, claims, w.claimNames())
			},
		},
		"a larger request expands claims first, and no Pod is another one": {
			change: func(_ *testing.T, w *world) {
				w.Templates["r2"] = []setplan.ClaimTemplate{claimTemplate("data", 20, "fast")}
				w.roll("r2")
			},
			check: func(t *testing.T, w *world, pods []types.UID, _ map[string]string) {
				assert.Equal(t, pods, w.uids())
				assert.Equal(t, 3, w.atRevision("r2"))
				assert.Equal(t, 3, countPrefix(w.log, "expand"))
				assert.Less(t, slices.Index(w.log, "expand 0 data 20"), slices.Index(w.log, "begin 0 update"), "%v", w.log)
			},
		},
		"with a partition only the claims of updated Pods grow": {
			change: func(_ *testing.T, w *world) {
				w.Partition = 2
				w.Templates["r2"] = []setplan.ClaimTemplate{claimTemplate("data", 20, "fast")}
				w.roll("r2")
			},
			check: func(t *testing.T, w *world, _ []types.UID, _ map[string]string) {
				assert.Equal(t, 1, countPrefix(w.log, "expand"))
			},
		},
		"a smaller request changes no claim, and says so": {
			change: func(_ *testing.T, w *world) {
				w.Templates["r2"] = []setplan.ClaimTemplate{claimTemplate("data", 5, "fast")}
				w.roll("r2")
			},
			check: func(t *testing.T, w *world, pods []types.UID, claims map[string]string) {
				assert.Equal(t, pods, w.uids())
				assert.Equal(t, 3, w.atRevision("r2"))
				assert.Equal(t, claims, w.claimNames())
				assert.Equal(t, []string{setplan.NoteCannotShrink}, w.reasons())
				assert.True(t, setplan.Decide(&w.Snapshot).Goal.Reached())
			},
		},
		"another class keeps claims, and only new IDs get it": {
			change: func(_ *testing.T, w *world) {
				w.Templates["r2"] = []setplan.ClaimTemplate{claimTemplate("data", 10, "slow")}
				w.roll("r2")
				w.Replicas = 4
			},
			check: func(t *testing.T, w *world, pods []types.UID, claims map[string]string) {
				for _, uid := range pods {
					assert.Contains(t, w.uids(), uid)
				}
				for key := range claims {
					assert.Contains(t, w.claimNames(), key)
				}
				assert.Contains(t, w.claimNames(), "3/data/data-10-slow")
				assert.Equal(t, []string{setplan.NoteTemplateKept}, w.reasons())
			},
		},
		"another class with Delete re-creates Pods, and old claims go when their Pods are gone": {
			before: func(w *world) { w.Retention.Changed = true },
			change: func(_ *testing.T, w *world) {
				w.Templates["r2"] = []setplan.ClaimTemplate{claimTemplate("data", 10, "slow")}
				w.roll("r2")
			},
			check: func(t *testing.T, w *world, _ []types.UID, _ map[string]string) {
				assert.ElementsMatch(t, []string{"0/data/data-10-slow", "1/data/data-10-slow", "2/data/data-10-slow"},
					keys(w.claimNames()))
				assert.Equal(t, 3, countPrefix(w.log, "delete claim"))
			},
		},
		"what was kept while the policy was Retain is not taken from a Pod that mounts it": {
			change: func(t *testing.T, w *world) {
				w.Templates["r2"] = []setplan.ClaimTemplate{claimTemplate("data", 10, "slow")}
				w.roll("r2")
				runs(t, w)
				w.Retention.Changed = true
			},
			check: func(t *testing.T, w *world, _ []types.UID, claims map[string]string) {
				assert.Equal(t, claims, w.claimNames())
			},
		},
		"a template more re-creates Pods": {
			change: func(_ *testing.T, w *world) {
				w.Templates["r2"] = append(slices.Clone(w.Templates["r1"]), claimTemplate("logs", 1, "fast"))
				w.roll("r2")
			},
			check: func(t *testing.T, w *world, pods []types.UID, claims map[string]string) {
				for _, uid := range w.uids() {
					assert.NotContains(t, pods, uid)
				}
				assert.Len(t, w.Claims, 6)
				for key, name := range claims {
					assert.Equal(t, name, w.claimNames()[key])
				}
			},
		},
		"claims of a template less are kept": {
			change: func(_ *testing.T, w *world) { w.roll("r2") },
			check: func(t *testing.T, w *world, _ []types.UID, claims map[string]string) {
				assert.Equal(t, claims, w.claimNames())
				assert.Equal(t, 3, w.atRevision("r2"))
			},
		},
		"claims of a template less go with Delete": {
			before: func(w *world) { w.Retention.Changed = true },
			change: func(_ *testing.T, w *world) { w.roll("r2") },
			check:  func(t *testing.T, w *world, _ []types.UID, _ map[string]string) { assert.Empty(t, w.Claims) },
		},
		"a larger request that renews makes new claims, and old ones go when their Pods are gone": {
			before: func(w *world) { w.Retention = setplan.Retention{Scaled: true, Changed: true, Renewed: true} },
			change: func(_ *testing.T, w *world) {
				w.Templates["r2"] = []setplan.ClaimTemplate{claimTemplate("data", 20, "fast")}
				w.roll("r2")
			},
			check: func(t *testing.T, w *world, _ []types.UID, _ map[string]string) {
				assert.ElementsMatch(t, []string{"0/data/data-20-fast", "1/data/data-20-fast", "2/data/data-20-fast"},
					keys(w.claimNames()))
				assert.Equal(t, 3, countPrefix(w.log, "delete claim"))
				assert.Zero(t, countPrefix(w.log, "expand"))
			},
		},
		"a smaller request that renews keeps the old claims with Retain, and they are found again": {
			before: func(w *world) { w.Retention = setplan.Retention{Renewed: true} },
			change: func(t *testing.T, w *world) {
				w.Templates["r2"] = []setplan.ClaimTemplate{claimTemplate("data", 5, "fast")}
				w.roll("r2")
				runs(t, w)
				require.Len(t, w.Claims, 6)
				w.roll("r1")
			},
			check: func(t *testing.T, w *world, pods []types.UID, claims map[string]string) {
				assert.Len(t, w.Claims, 6)
				for _, uid := range w.uids() {
					assert.NotContains(t, pods, uid)
				}
				for key, name := range claims {
					assert.Len(t, w.mounted(name), 1, key)
				}
			},
		},
		"scaled in, claims wait for their ID": {
			change: func(t *testing.T, w *world) {
				w.Replicas = 1
				runs(t, w)
				assert.Len(t, w.Claims, 3)
				w.Replicas = 3
			},
			check: func(t *testing.T, w *world, _ []types.UID, claims map[string]string) {
				assert.Equal(t, claims, w.claimNames())
			},
		},
		"a retained claim that is too small grows when its ID is used again": {
			change: func(t *testing.T, w *world) {
				w.Replicas = 2
				runs(t, w)
				w.Templates["r2"] = []setplan.ClaimTemplate{claimTemplate("data", 20, "fast")}
				w.roll("r2")
				runs(t, w)
				w.Replicas = 3
			},
			check: func(t *testing.T, w *world, _ []types.UID, claims map[string]string) {
				assert.Len(t, w.Claims, len(claims))
				for _, c := range w.Claims {
					assert.EqualValues(t, 20, c.Requested)
				}
			},
		},
		"scaled in with Delete, claims go, and before their IDs are free": {
			before: func(w *world) { w.Retention.Scaled = true },
			change: func(_ *testing.T, w *world) { w.Replicas = 1 },
			check: func(t *testing.T, w *world, _ []types.UID, _ map[string]string) {
				assert.Len(t, w.Claims, 1)
				assert.Equal(t, 2, countPrefix(w.log, "delete claim"))
				assert.Less(t, lastPrefix(w.log, "delete claim"), lastPrefix(w.log, "store"))
			},
		},
		"what was kept stays kept when the policy becomes Delete": {
			change: func(t *testing.T, w *world) {
				w.Replicas = 1
				runs(t, w)
				w.Retention.Scaled = true
			},
			check: func(t *testing.T, w *world, _ []types.UID, claims map[string]string) {
				assert.Equal(t, claims, w.claimNames())
			},
		},
		"an ID that is given up without a Pod loses its claim with Delete": {
			before: func(w *world) { w.Retention.Scaled = true },
			change: func(t *testing.T, w *world) {
				w.Pods = w.Pods[:2]
				w.Replicas = 2
				assert.Empty(t, setplan.Decide(&w.Snapshot).ClaimDeletions, "that it is given up is stored first")
			},
			check: func(t *testing.T, w *world, _ []types.UID, _ map[string]string) {
				assert.Len(t, w.Claims, 2)
				assert.Len(t, w.Entries, 2)
			},
		},
		"with whenDeleted Delete claims get an owner, and lose it with Retain": {
			change: func(t *testing.T, w *world) {
				assert.False(t, w.Claims[0].Owned)
				w.Retention.Deleted = true
				runs(t, w)
				assert.Equal(t, 3, countPrefix(w.log, "adopt"))
				w.Retention.Deleted = false
			},
			check: func(t *testing.T, w *world, _ []types.UID, _ map[string]string) {
				assert.Equal(t, 3, countPrefix(w.log, "release"))
			},
		},
		"the owner that Kuperator gave claims stays while nothing happens": {
			change: func(_ *testing.T, w *world) {
				for i := range w.Claims {
					w.Claims[i].Owned, w.Claims[i].Inherited = true, true
				}
			},
			check: func(t *testing.T, w *world, _ []types.UID, _ map[string]string) { assert.Empty(t, w.log) },
		},
		"a deleted CollaSet lets go of claims that have an owner": {
			change: func(_ *testing.T, w *world) {
				w.Claims[0].Owned, w.Claims[1].Owned, w.Claims[1].Inherited = true, true, true
				w.Deleting = true
				w.Pods = nil
				plan := setplan.Decide(&w.Snapshot)
				w.applyClaims(plan, always)
				w.Replicas = 0
			},
			check: func(t *testing.T, w *world, _ []types.UID, claims map[string]string) {
				assert.Equal(t, 2, countPrefix(w.log, "release"))
				assert.Equal(t, claims, w.claimNames())
				assert.True(t, setplan.Decide(&w.Snapshot).Release)
			},
		},
		"a Pod that lost its claim goes on, and gets a new one when it is re-created": {
			change: func(t *testing.T, w *world) {
				w.Claims[0].Terminating = true
				runs(t, w)
				assert.Equal(t, []string{setplan.NoteClaimLost}, w.reasons())
				assert.Empty(t, w.log)
				w.Pods[0].View.Terminating = true
			},
			check: func(t *testing.T, w *world, _ []types.UID, claims map[string]string) {
				assert.Equal(t, keys(claims), keys(w.claimNames()))
				assert.NotEqual(t, claims, w.claimNames())
				assert.Empty(t, w.reasons())
			},
		},
		"a Pod that has not started gets its claim again, under its name": {
			change: func(t *testing.T, w *world) {
				w.Pods[0].Phase, w.Pods[1].Phase = corev1.PodPending, ""
				w.Claims = w.Claims[2:]
				assert.Empty(t, w.reasons())
				runs(t, w)
				assert.Equal(t, []string{"claim 0 data", "claim 1 data"}, w.log)
			},
			check: func(t *testing.T, w *world, pods []types.UID, claims map[string]string) {
				assert.Equal(t, claims, w.claimNames())
				assert.Equal(t, pods, w.uids())
			},
		},
		"also while the set is paused": {
			change: func(_ *testing.T, w *world) {
				w.Paused = true
				w.Pods[0].Phase = corev1.PodPending
				w.Claims = w.Claims[1:]
			},
			check: func(t *testing.T, w *world, _ []types.UID, claims map[string]string) {
				assert.Equal(t, claims, w.claimNames())
			},
		},
		"a Pod that has not started waits for the end of its claim, and says what to do": {
			change: func(t *testing.T, w *world) {
				w.broken = map[string]bool{"r1": true}
				for i := range 2 {
					w.Pods[i].Phase, w.Pods[i].Scheduled, w.Claims[i].Terminating = corev1.PodPending, i == 1, true
				}
				plan := setplan.Decide(&w.Snapshot)
				assert.Empty(t, plan.ClaimCreations)
				require.Len(t, plan.Blockers, 1)
				assert.Equal(t, setplan.BlockClaimTerminating, plan.Blockers[0].Reason)
				assert.Equal(t, 2, plan.Blockers[0].Count)
				assert.Contains(t, plan.Blockers[0].Message,
					w.Claims[0].Name+" is being deleted; a new, empty one is made when it is gone")
				w.Pods[0].Scheduled = true
				assert.Contains(t, setplan.Decide(&w.Snapshot).Blockers[0].Message, "delete the Pod")
				w.Pods[0].Scheduled = false
				w.Claims = w.Claims[2:]
				w.broken = nil
			},
			check: func(t *testing.T, w *world, pods []types.UID, claims map[string]string) {
				assert.Equal(t, claims, w.claimNames())
				assert.Equal(t, pods, w.uids())
				assert.Empty(t, w.reasons())
			},
		},
		"a Pod that goes anyway gets none": {
			change: func(t *testing.T, w *world) {
				w.Pods[0].Phase, w.Pods[1].Phase = corev1.PodPending, corev1.PodPending
				label(w, &w.Pods[0], appsv1alpha1.ToExcludeLabel)
				w.Pods[1].View.Ready = false
				w.Claims = w.Claims[2:]
				w.Replicas = 1
				assert.Empty(t, setplan.Decide(&w.Snapshot).ClaimCreations)
			},
			check: func(t *testing.T, w *world, _ []types.UID, _ map[string]string) { assert.Len(t, w.Claims, 1) },
		},
		"claims of early Kuperator fit by what they are": {
			change: func(_ *testing.T, w *world) {
				for i := range w.Claims {
					w.Claims[i].Hash = "other"
					w.Claims[i].Spec = w.Claims[i].Spec.DeepCopy()
					w.Claims[i].Spec.VolumeMode = ptr.To(corev1.PersistentVolumeFilesystem)
				}
				w.Pods[0].View.Terminating = true
			},
			check: func(t *testing.T, w *world, _ []types.UID, _ map[string]string) {
				assert.Len(t, w.Claims, 3)
				assert.Empty(t, w.reasons())
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 3, func(w *world) {
				w.Templates = map[string][]setplan.ClaimTemplate{"r1": {claimTemplate("data", 10, "fast")}}
				if tc.before != nil {
					tc.before(w)
				}
			})
			pods, claims := w.uids(), w.claimNames()
			tc.change(t, w)
			if !w.Deleting {
				runs(t, w)
			}
			tc.check(t, w, pods, claims)
			assert.Empty(t, w.problems)
		})
	}
}

func TestClaimForcing(t *testing.T) {
	fast, slow, logs := claimTemplate("data", 10, "fast"), claimTemplate("data", 10, "slow"),
		claimTemplate("logs", 1, "fast")
	deletes, renews := setplan.Retention{Changed: true}, setplan.Retention{Renewed: true}
	labelled, reworded := fast, fast
	labelled.Hash, labelled.Meta = "other labels", "other labels"
	reworded.Hash = "other words"
	var many []setplan.ClaimTemplate
	for i := range 20 {
		many = append(many, claimTemplate(fmt.Sprint("disk", i), 1, "fast"))
	}
	for name, tc := range map[string]struct {
		before, after []setplan.ClaimTemplate
		policy        setplan.Retention
		want          int
	}{
		"the same": {before: many, after: many},
		"a larger request": {before: many[:1],
			after: []setplan.ClaimTemplate{claimTemplate("disk0", 2, "fast")}, policy: deletes},
		"a larger request that renews": {before: many[:1],
			after: []setplan.ClaimTemplate{claimTemplate("disk0", 2, "fast")}, policy: renews, want: 1},
		"other labels that renew": {before: []setplan.ClaimTemplate{fast}, after: []setplan.ClaimTemplate{labelled},
			policy: renews, want: 1},
		"other words that renew nothing": {before: []setplan.ClaimTemplate{fast}, after: []setplan.ClaimTemplate{reworded},
			policy: renews},
		"another class that is not wanted": {before: []setplan.ClaimTemplate{fast}, after: []setplan.ClaimTemplate{slow}},
		"another class": {before: []setplan.ClaimTemplate{fast}, after: []setplan.ClaimTemplate{slow},
			policy: deletes, want: 1},
		"one more": {before: []setplan.ClaimTemplate{fast},
			after: []setplan.ClaimTemplate{fast, logs}, want: 1},
		"one less": {before: []setplan.ClaimTemplate{fast, logs},
			after: []setplan.ClaimTemplate{logs}, want: 1},
		"many": {after: many, want: 6},
	} {
		t.Run(name, func(t *testing.T) { assert.Len(t, setplan.ClaimForcing(tc.before, tc.after, tc.policy), tc.want) })
	}
}

func keys(m map[string]string) []string {
	var out []string
	for key := range m {
		out = append(out, key)
	}
	slices.Sort(out)
	return out
}

func lastPrefix(log []string, prefix string) int {
	last := -1
	for i, line := range log {
		if strings.HasPrefix(line, prefix) {
			last = i
		}
	}
	return last
}

func TestRefusedExpansionHoldsThePodAtItsRevision(t *testing.T) {
	for name, policy := range map[string]appsv1alpha1.PodUpdatePolicy{
		"in place": appsv1alpha1.PodUpdateInPlaceIfPossible, "recreate": appsv1alpha1.PodUpdateRecreate,
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 2, func(w *world) {
				w.Policy = policy
				w.Templates = map[string][]setplan.ClaimTemplate{"r1": {claimTemplate("data", 10, "fast")},
					"r2": {claimTemplate("data", 20, "fast")}}
			})
			w.roll("r2")
			for i := range w.Claims {
				w.Claims[i].Refused, w.Claims[i].RefusedHash, w.Claims[i].RetryIn = "the class does not allow it", "data-20-fast",
					time.Minute
			}
			plan := setplan.Decide(&w.Snapshot)
			assert.True(t, plan.IsZero(), "no Pod is taken out of service for nothing")
			assert.True(t, plan.Goal.Held)
			assert.Equal(t, time.Minute, plan.NextLook)
			require.Len(t, plan.Blockers, 1)
			assert.Equal(t, 2, plan.Blockers[0].Count)
			assert.Contains(t, plan.Blockers[0].Message, "the class does not allow it")

			t.Run("after a while it is tried again, and still said", func(t *testing.T) {
				again := w.Snapshot
				again.Claims = slices.Clone(w.Claims)
				for i := range again.Claims {
					again.Claims[i].RetryIn = 0
				}
				plan := setplan.Decide(&again)
				assert.Len(t, plan.ClaimUpdates, 2)
				assert.Empty(t, plan.Begins)
				assert.Empty(t, plan.Deletions)
				assert.Equal(t, []string{setplan.BlockExpansionRefused}, w.reasons())
			})
			t.Run("another size is tried at once", func(t *testing.T) {
				w.Templates["r3"] = []setplan.ClaimTemplate{claimTemplate("data", 15, "fast")}
				w.roll("r3")
				assert.Len(t, setplan.Decide(&w.Snapshot).ClaimUpdates, 2)
			})
			t.Run("put back, nothing is in the way", func(t *testing.T) {
				w.roll("r1")
				plan := setplan.Decide(&w.Snapshot)
				assert.True(t, plan.Goal.Reached())
				assert.Empty(t, plan.Blockers)
			})
		})
	}
}

func TestGrowingVolumesHoldNothingBack(t *testing.T) {
	w := atRest(t, 2, func(w *world) {
		w.Templates = map[string][]setplan.ClaimTemplate{"r1": {claimTemplate("data", 10, "fast")},
			"r2": {claimTemplate("data", 20, "fast")}}
	})
	w.roll("r2")
	for range 60 {
		w.round(always)
		for i := range w.Claims {
			w.Claims[i].Expanding = "the storage driver is at it"
		}
	}
	assert.Equal(t, 2, w.atRevision("r2"))
	assert.Equal(t, []string{setplan.NoteExpanding}, w.reasons())
	assert.True(t, setplan.Decide(&w.Snapshot).Goal.Reached())
}

func TestVolumesInUse(t *testing.T) {
	w := atRest(t, 2, func(w *world) {
		w.Templates = map[string][]setplan.ClaimTemplate{"r1": {claimTemplate("data", 10, "fast")}}
	})
	w.roll("r2") // without claims
	w.Pods[0].View.Terminating = true
	plan := setplan.Decide(&w.Snapshot)
	assert.Empty(t, plan.Creations)
	assert.Contains(t, w.reasons(), setplan.BlockVolumesInUse)
	w.Pods = w.Pods[1:]
	assert.Len(t, setplan.Decide(&w.Snapshot).Creations, 1)
}

// TestClaimsProperty runs sets with claims through any changes of spec, with plans applied in part, and then to rest.
func TestClaimsProperty(t *testing.T) {
	options := []setplan.ClaimTemplate{claimTemplate("data", 10, "fast"), claimTemplate("data", 20, "fast"),
		claimTemplate("data", 10, "slow")}
	logs := claimTemplate("logs", 1, "fast")
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(0, 4).Draw(t, "replicas"))
		w.Protocol = rapid.Bool().Draw(t, "protocol")
		w.Sequential = rapid.Bool().Draw(t, "sequential")
		w.Policy = rapid.SampledFrom([]appsv1alpha1.PodUpdatePolicy{
			appsv1alpha1.PodUpdateRecreate, appsv1alpha1.PodUpdateInPlaceIfPossible, appsv1alpha1.PodUpdateInPlaceOnly,
			appsv1alpha1.PodUpdateReplace,
		}).Draw(t, "policy")
		policy := func() { w.Retention = rapid.Make[setplan.Retention]().Draw(t, "retention") }
		policy()
		w.Templates = map[string][]setplan.ClaimTemplate{}
		for _, name := range slices.Sorted(maps.Keys(w.Revisions)) { // what is drawn must not depend on the order of a map
			templates := []setplan.ClaimTemplate{rapid.SampledFrom(options).Draw(t, name)}
			if rapid.Bool().Draw(t, name+" logs") {
				templates = append(templates, logs)
			}
			w.Templates[name] = templates
		}
		seed := rapid.Uint64().Draw(t, "seed")
		passes := sometimes(seed, 0.7)
		destroys := w.Retention.Scaled || w.Retention.Changed || w.Retention.Replaced
		for range rapid.IntRange(1, 5).Draw(t, "changes") {
			switch rapid.SampledFrom([]string{"scale", "roll", "policy", "kill", "partition", "ask"}).Draw(t, "change") {
			case "scale":
				w.Replicas = rapid.IntRange(0, 4).Draw(t, "to")
			case "roll":
				w.UpdatedRevision = rapid.SampledFrom([]string{"r1", "r2", "r3"}).Draw(t, "revision")
			case "policy":
				policy()
				destroys = destroys || w.Retention.Scaled || w.Retention.Changed || w.Retention.Replaced
			case "kill":
				if live := w.live(); len(live) > 0 {
					live[int(seed%uint64(len(live)))].View.Terminating = true
				}
			case "ask":
				if live := w.live(); len(live) > 0 {
					w.ask(live[int(seed%uint64(len(live)))])
				}
			case "partition":
				w.Partition = rapid.IntRange(0, 4).Draw(t, "partition")
			}
			w.roll(w.UpdatedRevision)
			for range rapid.IntRange(1, 12).Draw(t, "rounds") {
				same(t, w)
				w.round(passes)
			}
		}
		if !w.run(always) {
			t.Fatalf("it does not come to rest: %v", w.log)
		}
		if len(w.problems) > 0 {
			t.Fatalf("%v\n%v", w.problems, w.log)
		}
		if !destroys && countPrefix(w.log, "delete claim") > 0 {
			t.Fatalf("claims were deleted: %v", w.log)
		}
		if len(w.live()) != w.Replicas {
			t.Fatalf("%d Pods for %d replicas: %v", len(w.live()), w.Replicas, w.log)
		}
		for _, p := range w.live() {
			if len(p.Mounts) != len(w.Templates[p.Revision]) {
				t.Fatalf("%s at %s mounts %v", p.Name(), p.Revision, p.Mounts)
			}
			for _, m := range p.Mounts {
				if w.claim(m.Claim) == nil {
					t.Fatalf("%s lost its claim: %v", p.Name(), w.log)
				}
			}
		}
	})
}

// same checks that the order of claims and Pods does not matter.
func same(t *rapid.T, w *world) {
	shuffled := w.Snapshot
	shuffled.Pods, shuffled.Claims = slices.Clone(w.Pods), slices.Clone(w.Claims)
	random := rand.New(rand.NewPCG(1, uint64(len(w.log))))
	random.Shuffle(len(shuffled.Pods), func(i, j int) {
		shuffled.Pods[i], shuffled.Pods[j] = shuffled.Pods[j],
			shuffled.Pods[i]
	})
	random.Shuffle(len(shuffled.Claims), func(i, j int) {
		shuffled.Claims[i], shuffled.Claims[j] = shuffled.Claims[j],
			shuffled.Claims[i]
	})
	if diff := cmp.Diff(setplan.Decide(&w.Snapshot), setplan.Decide(&shuffled)); diff != "" {
		t.Fatalf("the order of the input matters: %s", diff)
	}
}
