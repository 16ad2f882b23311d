package observer

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// poolID is an instance ID of a pool: a ResourceContext's name, or a workload's UID where it has none.
type poolID struct{ pool, id string }

// pool is what a ResourceContext says: the owner of every instance ID in use.
type pool struct {
	obj    *appsv1alpha1.ResourceContext // nil when it is gone
	owners map[string]string
	// origins are the IDs of Pods that the one with an ID replaces.
	origins map[string]string
}

// poolOf is the pool and ID that a Pod holds; false if it holds none.
func (s *space) poolOf(p *pod) (poolID, bool) {
	id := p.obj.Labels[instanceIDLabel]
	if id == "" || p.owner == "" {
		return poolID{}, false
	}
	if set := s.setsByUID[p.owner]; set != nil {
		return poolID{set.pool(), id}, true
	}
	return poolID{string(p.owner), id}, true
}

func (s *space) hold(p *pod) {
	at, ok := s.poolOf(p)
	if !ok {
		return
	}
	if s.holders[at] == nil {
		s.holders[at] = map[string]*pod{}
	}
	s.holders[at][p.obj.Name] = p
}

func (s *space) release(p *pod) {
	at, ok := s.poolOf(p)
	if !ok {
		return
	}
	delete(s.holders[at], p.obj.Name)
	if len(s.holders[at]) == 0 {
		delete(s.holders, at)
	}
}

// checkInstanceID judges a Pod that has an instance ID which it did not have before.
func (s *space) checkInstanceID(before, now *pod, e Event) {
	at, ok := s.poolOf(now)
	if !ok || !isLive(now.obj) {
		return
	}
	if before != nil {
		if was, had := s.poolOf(before); had && was == at {
			return
		}
	}
	s.checks[InstanceID]++
	owner := metav1.GetControllerOfNoCopy(now.obj)
	for _, name := range sortedKeys(s.holders[at]) {
		if name != now.obj.Name && isLive(s.holders[at][name].obj) {
			s.report(InstanceID, e, fmt.Sprintf("instance ID %s of %s %s is also that of Pod %s", at.id, owner.Kind,
				owner.Name, name))
		}
	}
	if p := s.contexts[at.pool]; p != nil && before == nil && !e.Initial && s.setsByUID[now.owner] != nil &&
		p.owners[at.id] != owner.Name {
		s.report(InstanceID, e,
			fmt.Sprintf("was created with instance ID %s, which ResourceContext %s does not give to CollaSet %s (but to %q)",
				at.id, at.pool, owner.Name, p.owners[at.id]))
	}
}

// applyContext judges what a ResourceContext says, and what it does not say any more.
func (s *space) applyContext(obj *appsv1alpha1.ResourceContext, e Event) {
	before, now := s.contexts[obj.Name], &pool{obj: obj, owners: map[string]string{}, origins: map[string]string{}}
	if e.Deleted {
		now.obj = nil
	} else {
		for i := range obj.Spec.Contexts {
			entry := &obj.Spec.Contexts[i]
			id := strconv.Itoa(entry.ID)
			if other, twice := now.owners[id]; twice {
				s.report(InstanceID, e, fmt.Sprintf("has instance ID %s twice, for CollaSets %q and %q", id, other,
					entry.Data[appsv1alpha1.ContextOwner]))
			}
			now.owners[id] = entry.Data[appsv1alpha1.ContextOwner]
			now.origins[id] = entry.Data[appsv1alpha1.ContextReplaceOriginPodID]
		}
	}
	s.contexts[obj.Name] = now
	s.checks[InstanceID]++
	if before == nil {
		return
	}
	for id, name := range before.owners {
		if now.owners[id] != name {
			s.checkReleased(obj.Name, id, name, e)
		}
	}
}

// checkReleased judges that an ID is not the CollaSet's any more: its Pod has to be gone, and its claims if they are
// to go.
func (s *space) checkReleased(pool, id, owner string, e Event) {
	set := s.sets[owner]
	if set == nil {
		return // whatever was its own is the garbage collector's
	}
	s.checks[InstanceID]++
	for _, name := range sortedKeys(s.holders[poolID{pool, id}]) {
		if s.holders[poolID{pool, id}][name].owner == set.obj.UID {
			s.report(InstanceID, e, fmt.Sprintf("releases instance ID %s of CollaSet %s, whose Pod %s is still there", id,
				owner, name))
		}
	}
	if set.obj.DeletionTimestamp != nil || !retention(set.obj).scaled {
		return
	}
	for _, name := range sortedKeys(s.claims) {
		claim := s.claims[name]
		if claim.DeletionTimestamp == nil && claim.Labels[instanceIDLabel] == id && s.claimOwner(claim) == set {
			s.report(InstanceID, e,
				fmt.Sprintf("releases instance ID %s of CollaSet %s, whose claim %s is still there (whenScaled: Delete)", id,
					owner, name))
		}
	}
}

// retained says which claims a CollaSet deletes.
type retained struct{ scaled, deleted, changed bool }

func retention(set *appsv1alpha1.CollaSet) retained {
	policy := set.Spec.ScaleStrategy.PersistentVolumeClaimRetentionPolicy
	if policy == nil {
		return retained{}
	}
	return retained{
		scaled:  policy.WhenScaled == appsv1alpha1.DeletePersistentVolumeClaim,
		deleted: policy.WhenDeleted == appsv1alpha1.DeletePersistentVolumeClaim,
		changed: policy.WhenTemplateChanged == appsv1alpha1.DeletePersistentVolumeClaim,
	}
}

// claimOwner is the CollaSet that a claim belongs to, nil if it belongs to none that exists.
func (s *space) claimOwner(claim *corev1.PersistentVolumeClaim) *set {
	if _, orphaned := claim.Labels[appsv1alpha1.OrphanedLabel]; orphaned || claim.Labels[controlLabel] != "true" ||
		claim.Labels[instanceIDLabel] == "" {
		return nil
	}
	if ref := metav1.GetControllerOfNoCopy(claim); ref != nil {
		return s.setsByUID[ref.UID]
	}
	if name := claim.Annotations[appsv1alpha1.ClaimOwnerAnnotation]; name != "" {
		return s.sets[name]
	}
	base, ok := strings.CutSuffix(strings.TrimSuffix(claim.GenerateName, "-"),
		"-"+claim.Labels[appsv1alpha1.ClaimTemplateNameLabel])
	if !ok {
		return nil
	}
	return s.sets[base]
}
