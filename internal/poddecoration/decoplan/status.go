package decoplan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/shorten"
)

const (
	// maxMessage is how long a message of status may be, maxBlockers how many there may be.
	maxMessage  = 1024
	maxBlockers = 16
	// maxDetails bounds status.details in bytes, roughly.
	maxDetails = 64 << 10
)

// guard decides about the finalizer. It keeps a decoration that is deleted until no Pod has it that can be without it.
func (d *decision) guard(of *deciding) {
	switch {
	case !of.Deleting && !of.Protected:
		d.plan.Protect = append(d.plan.Protect, of.Name)
	case of.Deleting && of.Protected && !slices.ContainsFunc(d.pods, of.awaits):
		d.plan.Release = append(d.plan.Release, of.Name)
	}
}

// awaits reports whether a Pod has the decoration, and will be without it.
func (r *deciding) awaits(p *Pod) bool { return p.follows() && p.hasAny(r.Name) && !r.stuck[p] }

// report works out the status of a decoration.
func (d *decision) report(of *deciding) {
	s := &of.next
	s.ObservedGeneration, s.CollisionCount = of.Generation, of.Collisions
	if !of.Deleting && of.problem == "" {
		s.UpdatedRevision = of.Updated
	}
	p := d.moveClock(of, d.count(of))
	if of.isComplete(p) {
		s.CurrentRevision, s.Pilot = of.Updated, nil
	}
	s.NextUpdate = nil
	if s.CurrentRevision != s.UpdatedRevision {
		s.NextUpdate = of.Next
	}
	s.Details = d.details(of)
	s.Blockers = nil
	for _, reason := range slices.Sorted(maps.Keys(of.blockers)) {
		s.Blockers = append(s.Blockers, *of.blockers[reason])
	}
	slices.SortStableFunc(s.Blockers, func(a, b appsv1alpha1.Blocker) int { return cmp.Compare(b.Count, a.Count) })
	s.Blockers = s.Blockers[:min(len(s.Blockers), maxBlockers)]
	d.conditions(of, p)
	if !equality.Semantic.DeepEqual(*s, of.Status) {
		if d.plan.Statuses == nil {
			d.plan.Statuses = map[string]*appsv1alpha1.PodDecorationStatus{}
		}
		d.plan.Statuses[of.Name] = s
	}
}

// count sets the counts of the status, reports what Pods cannot have, and returns how the rollout fares.
func (d *decision) count(of *deciding) (p progress) {
	s := &of.next
	s.MatchedPods, s.InjectedPods, s.UpdatedPods, s.UpdatedReadyPods, s.UpdatedAvailablePods = 0, 0, 0, 0, 0
	for _, i := range of.pods {
		pod := d.pods[i]
		revision, refusal := decoration.RevisionIn(pod.Has, of.Name), refusalOf(pod, of.Name)
		s.MatchedPods++
		if refusal != "" {
			of.refuse(pod, BlockRefused, refusal)
		}
		if revision != "" {
			s.InjectedPods++
		}
		if revision != "" && revision == of.Updated {
			s.UpdatedPods++
			if pod.View.Ready {
				s.UpdatedReadyPods++
			}
			if pod.Available {
				s.UpdatedAvailablePods++
			}
		}
		if !of.isInScope(i) || !pod.follows() || of.stuck[pod] {
			continue
		}
		if revision != of.target || !pod.Available {
			p.waiting++
		}
		if revision == of.target && !pod.Available {
			p.failing++
		}
	}
	return p
}

// refusalOf is why a Pod cannot have a decoration, "" if it can.
func refusalOf(p *Pod, name string) string {
	for _, r := range p.Refused {
		if r.Name == name {
			return r.Why
		}
	}
	return ""
}

// isComplete reports whether every Pod has the updated revision and serves.
func (r *deciding) isComplete(p progress) bool {
	rolling := r.Spec.UpdateStrategy.RollingUpdate
	isHeld := rolling != nil && (rolling.Selector != nil || rolling.Partition != nil && *rolling.Partition > 0)
	return p.waiting == 0 && !r.refused && r.problem == "" && r.next.Halted == nil && !r.Deleting && !isHeld &&
		!r.Spec.UpdateStrategy.Paused && r.Updated != ""
}

// details are the Pods by workload, as many as fit.
func (d *decision) details(of *deciding) []appsv1alpha1.PodDecorationWorkloadDetail {
	by := map[string]*appsv1alpha1.PodDecorationWorkloadDetail{}
	size := 0
	for _, i := range of.pods {
		p := d.pods[i]
		owner := p.Owner.Kind + "/" + p.Owner.Name
		detail := by[owner]
		if detail == nil {
			if size += len(owner) + 64; size > maxDetails {
				continue
			}
			detail = &appsv1alpha1.PodDecorationWorkloadDetail{}
			switch {
			case p.ofCollaSet():
				detail.CollaSet = p.Owner.Name
			case p.Owner.Kind != "":
				detail.Workload = owner
			}
			by[owner] = detail
		}
		detail.AffectedReplicas++
		revision := decoration.RevisionIn(p.Has, of.Name)
		if of.Spec.DisablePodDetail {
			continue
		}
		if size += len(p.View.Name) + len(revision) + 64; size > maxDetails {
			continue
		}
		detail.Pods = append(detail.Pods, appsv1alpha1.PodDecorationPodInfo{Name: p.View.Name, Revision: revision,
			Escaped: revision == "" && of.assigned[i] != ""})
	}
	var details []appsv1alpha1.PodDecorationWorkloadDetail
	for _, owner := range slices.Sorted(maps.Keys(by)) {
		details = append(details, *by[owner])
	}
	return details
}

// conditions are those that kstatus reads, and Progressing.
func (d *decision) conditions(of *deciding, p progress) {
	s := &of.next
	reason, message := appsv1alpha1.ReasonUpdating, fmt.Sprintf("%d of %d Pods have %s, %d of them serve", s.UpdatedPods,
		s.MatchedPods, s.UpdatedRevision, s.UpdatedAvailablePods)
	ready, reconciling, stalled, progressing := false, true, false, true
	stop := func(why appsv1alpha1.ConditionReason, text string) {
		reason, message, reconciling, stalled, progressing = why, text, false, true, false
	}
	switch h := s.Halted; {
	case of.problem != "":
		stop(appsv1alpha1.ReasonInvalidSpec, of.problem)
	case of.Deleting:
		message = fmt.Sprintf("it is being deleted, and %d Pods still have it", s.InjectedPods)
	case h != nil && h.RollbackTo != "":
		stop(appsv1alpha1.ReasonRolledBack, fmt.Sprintf("Pods with revision %s did not serve within "+
			"spec.progressDeadlineSeconds: they go back to %s; change spec.template", h.Revision, h.RollbackTo))
	case h != nil:
		stop(appsv1alpha1.ReasonRolloutHalted, fmt.Sprintf("Pods with revision %s did not serve within "+
			"spec.progressDeadlineSeconds: no more Pods get it; change spec.template", h.Revision))
	case of.refused && p.waiting == 0:
		stop(appsv1alpha1.ReasonBlocked, message+"; status.blockers has what keeps the others from it")
	case p.waiting == 0 && s.CurrentRevision == s.UpdatedRevision:
		ready, reconciling, reason = true, false, appsv1alpha1.ReasonRolloutComplete
	case p.exceeded:
		stop(appsv1alpha1.ReasonProgressDeadlineExceeded, message+"; no progress within spec.progressDeadlineSeconds")
	case of.Spec.UpdateStrategy.Paused:
		reconciling, reason, progressing = false, appsv1alpha1.ReasonPaused, false
	case p.waiting == 0:
		ready, reconciling, reason = true, false, appsv1alpha1.ReasonRolloutComplete
		message += "; spec.updateStrategy.rollingUpdate keeps the others at what they have"
	}
	set := func(kind string, is bool) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: status, Reason: string(reason),
			Message: shorten.Bytes(message, maxMessage), ObservedGeneration: of.Generation, LastTransitionTime: stamp(d.Now)})
	}
	set(appsv1alpha1.PodDecorationReady, ready)
	set(appsv1alpha1.PodDecorationReconciling, reconciling)
	set(appsv1alpha1.PodDecorationStalled, stalled)
	set(appsv1alpha1.PodDecorationProgressing, progressing)
}
