package observer

import (
	"math"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

const (
	revisionLabel = appsv1.ControllerRevisionHashLabelKey
	// operatorID is under which collaset-controller asks for operations.
	operatorID          = "collaset"
	updateType          = "update"
	operatingPrefix     = "operating" + protocolSuffix
	operationTypePrefix = "operation-type" + protocolSuffix
)

// set is one CollaSet.
type set struct {
	obj *appsv1alpha1.CollaSet
	// wanted, surge and disruption are the largest numbers that were wanted not long ago.
	wanted, surge, disruption lately
	// sample is the object's size when it was last at rest.
	sample sample
}

// lately is a number that may not be known to every component yet after it has become smaller.
type lately struct {
	now, before int
	until       time.Time
}

func (l *lately) set(n int, when time.Time, settle time.Duration) {
	if n < l.now {
		l.before, l.until = l.most(when), when.Add(settle)
	}
	l.now = n
}

// most is the largest number that a component may still go by.
func (l *lately) most(when time.Time) int {
	if when.Before(l.until) {
		return max(l.now, l.before)
	}
	return l.now
}

// pool is the name of the ResourceContext that the CollaSet takes its instance IDs from.
func (s *set) pool() string {
	if s.obj.Spec.ScaleStrategy.Context != "" {
		return s.obj.Spec.ScaleStrategy.Context
	}
	return s.obj.Name
}

// replicas are the wanted Pods. Nil means 0 here, whatever it means to others: the API server fills it in.
func replicas(obj *appsv1alpha1.CollaSet) int {
	if obj.Spec.Replicas == nil {
		return 0
	}
	return int(*obj.Spec.Replicas)
}

// unbounded is no bound.
const unbounded = math.MaxInt

// maxDisruptionSurge is how many Pods may be replaced at a time, for whatever reason.
func maxDisruptionSurge(obj *appsv1alpha1.CollaSet) int {
	if obj.Spec.Disruption == nil {
		return unbounded
	}
	return surgeOf(obj, obj.Spec.Disruption.MaxSurge)
}

func surgeOf(obj *appsv1alpha1.CollaSet, value *intstr.IntOrString) int {
	if value == nil {
		return max(1, (replicas(obj)+3)/4)
	}
	return max(1, scaled(value, replicas(obj), true))
}

func (s *space) applySet(obj *appsv1alpha1.CollaSet, e Event) {
	before := s.sets[obj.Name]
	if e.Deleted {
		if before != nil {
			delete(s.setsByUID, before.obj.UID)
		}
		delete(s.sets, obj.Name)
		return
	}
	if before == nil || before.obj.UID != obj.UID {
		s.meet(obj)
	} else {
		s.checkWriters(before.obj, obj, e)
	}
	now := s.sets[obj.Name]
	now.obj = obj
	now.wanted.set(replicas(obj), e.Time, s.options.Settle)
	now.surge.set(surgeOf(obj, obj.Spec.UpdateStrategy.MaxSurge), e.Time, s.options.Settle)
	now.disruption.set(maxDisruptionSurge(obj), e.Time, s.options.Settle)
}

// meet takes up a CollaSet. The pool of its Pods is known from now on.
func (s *space) meet(obj *appsv1alpha1.CollaSet) {
	var owned []*pod
	for _, p := range s.pods {
		if p.owner == obj.UID {
			s.release(p)
			owned = append(owned, p)
		}
	}
	now := &set{obj: obj}
	s.sets[obj.Name], s.setsByUID[obj.UID] = now, now
	for _, p := range owned {
		s.hold(p)
	}
}

// Churns are the Pods of a workload that were created and deleted.
type Churns struct{ Created, Deleted int }

type churn struct {
	Churns
	// expected is what AtRest compares with, nil for anything.
	expected *Churns
}

func (s *space) churnOf(workload string) *churn {
	c := s.churn[workload]
	if c == nil {
		c = &churn{}
		s.churn[workload] = c
	}
	return c
}

func (s *space) countChurn(p *pod, created, deleted int) {
	if ref := metav1.GetControllerOfNoCopy(p.obj); ref != nil {
		c := s.churnOf(ref.Name)
		c.Created += created
		c.Deleted += deleted
	}
}

// Expect says how many Pods of a workload are created and deleted from now on, which AtRest judges. Counting begins
// again.
func (c *Checker) Expect(namespace, workload string, want Churns) {
	c.space(namespace).churn[workload] = &churn{expected: &want}
}

// checkCreation judges that a CollaSet creates no Pod that it does not want.
func (s *space) checkCreation(p *pod, e Event) {
	if e.Initial {
		return
	}
	s.countChurn(p, 1, 0)
	set := s.setsByUID[p.owner]
	if set == nil || !isLive(p.obj) {
		return
	}
	live, pairs, wanted := s.ownerOf(p.owner).live, 0, set.wanted.most(e.Time)
	if live <= wanted || s.firstOf(p) {
		s.checks[Churn]++
		return
	}
	live = 0
	for _, other := range s.pods {
		if other.owner == p.owner && isLive(other.obj) {
			live++
			if s.replaces(other) != nil {
				pairs++
			}
		}
	}
	s.check(Churn, e, live-pairs <= wanted,
		"was created as number %d (and %d replacements) of CollaSet %s, which wants %d", live-pairs, pairs,
		set.obj.Name, wanted)
}

// firstOf reports whether a Pod is the only live replacement of another. It makes none too many, however many are on
// their way out meanwhile; whether it may be replaced now is for checkSurge.
func (s *space) firstOf(p *pod) bool {
	origin := s.replaces(p)
	if origin == nil {
		return false
	}
	for _, other := range s.pods {
		if other != p && other.owner == p.owner && isLive(other.obj) && s.replaces(other) == origin {
			return false
		}
	}
	return true
}

// replaces is the live Pod that a Pod is the replacement of, as the new Pod says, and the origin's label or the
// ResourceContext, which knows it first; nil if it is none.
func (s *space) replaces(p *pod) *pod {
	name, ok := p.obj.Labels[appsv1alpha1.ReplacePairOriginNameLabel]
	if !ok {
		return nil
	}
	origin := s.pods[name]
	if origin == nil || origin.owner != p.owner || !isLive(origin.obj) {
		return nil
	}
	if at, ok := s.poolOf(p); ok {
		if context := s.contexts[at.pool]; context != nil && context.origins[at.id] == origin.obj.Labels[instanceIDLabel] &&
			context.origins[at.id] != "" {
			return origin
		}
	}
	if origin.obj.Labels[appsv1alpha1.ReplacePairNewIDLabel] != p.obj.Labels[instanceIDLabel] {
		return nil
	}
	return origin
}

// joins reports whether a Pod has become one side of a replacement.
func joins(before, now *pod) bool {
	for _, k := range []string{appsv1alpha1.ReplacePairOriginNameLabel, appsv1alpha1.ReplacePairNewIDLabel} {
		is := now.obj.Labels[k]
		if is != "" && (before == nil || before.obj.Labels[k] != is) {
			return true
		}
	}
	return false
}

// checkSurge judges that updates replace no more Pods at a time than spec.updateStrategy.maxSurge allows, and all
// reasons together no more than spec.disruption.maxSurge.
func (s *space) checkSurge(p *pod, e Event) {
	set := s.setsByUID[p.owner]
	replaced := func(p *pod) (is, byUpdate bool) {
		origin := s.replaces(p)
		if origin == nil || origin.obj.Labels[appsv1alpha1.ReplacePairNewIDLabel] != p.obj.Labels[instanceIDLabel] {
			return false, false
		}
		_, byUpdate = origin.obj.Labels[appsv1alpha1.ReplacedByReplaceUpdateLabel]
		return true, byUpdate
	}
	if e.Initial || set == nil {
		return
	}
	n, all := 0, 0
	for _, other := range s.pods {
		if other.owner != p.owner || !isLive(other.obj) {
			continue
		}
		is, byUpdate := replaced(other)
		if is {
			all++
		}
		if byUpdate {
			n++
		}
	}
	most := set.disruption.most(e.Time)
	s.check(Budget, e, all <= most,
		"takes part in replacement number %d at a time of CollaSet %s, whose disruption.maxSurge is %d", all, set.obj.Name, most)
	most = set.surge.most(e.Time)
	s.check(Budget, e, n <= most, "takes part in replacement number %d at a time of CollaSet %s, whose maxSurge is %d", n,
		set.obj.Name, most)
}

// checkRecentlyReady judges that with spec.minReadySeconds no more than a quarter of the Pods are being updated or have
// been updated just now.
func (s *space) checkRecentlyReady(before, now *pod, e Event) {
	set := s.setsByUID[now.owner]
	if set == nil || set.obj.Spec.MinReadySeconds == 0 || updating(before) || !updating(now) {
		return
	}
	n := 0
	recent := e.Time.Add(-time.Duration(set.obj.Spec.MinReadySeconds)*time.Second + s.options.Settle)
	for _, p := range s.pods {
		if p.owner != now.owner || !isLive(p.obj) {
			continue
		}
		recentlyReady := p.obj.Labels[revisionLabel] == set.obj.Status.UpdatedRevision && isReady(p.obj) &&
			readySince(p.obj).After(recent)
		if updating(p) || recentlyReady {
			n++
		}
	}
	most := max(1, (set.wanted.most(e.Time)+3)/4)
	s.check(Budget, e, n <= most,
		"begins its update as number %d of CollaSet %s that is being updated or was just now: with minReadySeconds it may be %d", n, set.obj.Name, most)
}

func updating(p *pod) bool {
	_, asked := p.obj.Labels[operatingPrefix+operatorID]
	return asked && p.obj.Labels[operationTypePrefix+operatorID] == updateType
}

// checkRevision judges that a Pod's revision exists and is its CollaSet's.
func (s *space) checkRevision(p *pod, e Event) {
	set := s.setsByUID[p.owner]
	if e.Initial || set == nil || !isLive(p.obj) {
		return
	}
	name := p.obj.Labels[revisionLabel]
	known := s.revisions[name]
	s.check(Revision, e, known != nil && metav1.IsControlledBy(known, set.obj),
		"is labelled with revision %q, which CollaSet %s does not have", name, set.obj.Name)
}

// applyRevision judges that no revision is deleted that a Pod has or comes from.
func (s *space) applyRevision(obj *appsv1.ControllerRevision, e Event) {
	keep(s.revisions, obj, e)
	ref := metav1.GetControllerOfNoCopy(obj)
	if !e.Deleted || ref == nil {
		return
	}
	set := s.setsByUID[ref.UID]
	if set == nil || set.obj.DeletionTimestamp != nil {
		return
	}
	var users []string
	for _, name := range sortedKeys(s.pods) {
		if p := s.pods[name]; p.owner == ref.UID && isLive(p.obj) && p.obj.Labels[revisionLabel] == obj.Name {
			users = append(users, "Pod "+name)
		}
	}
	if obj.Name == set.obj.Status.UpdatedRevision || obj.Name == set.obj.Status.CurrentRevision {
		users = append(users, "status of CollaSet "+set.obj.Name)
	}
	s.check(Revision, e, len(users) == 0, "was deleted, but is that of %s", strings.Join(users, ", "))
}
