package decoplan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/decoration"
)

// Reasons of Pods that wait.
const (
	// BlockNotManaged: nothing brings the Pod to what it is to have.
	BlockNotManaged = "NotManaged"
	// BlockNoWorkload: it would have to be created again, and nothing would.
	BlockNoWorkload = "NoWorkload"
	// BlockInPlaceImpossible: it would have to be created again, and the policy is InPlaceOnly.
	BlockInPlaceImpossible = "InPlaceImpossible"
	// BlockKeptBack: it would have to be created again, and the Pod in its place would not get the revision.
	BlockKeptBack = "KeptBack"
	// BlockNotInjected: Pods are created without the decoration, so deleting more of them helps nobody.
	BlockNotInjected = "NotInjected"
	// BlockMissing: a revision that it is to have does not exist.
	BlockMissing = "DecorationMissing"
	// BlockRefused: it cannot have the decoration.
	BlockRefused = "DecorationRefused"
	// BlockMaxUnavailable: enough others are unavailable.
	BlockMaxUnavailable = "MaxUnavailable"
	// BlockChangeRefused: the API server does not take the change.
	BlockChangeRefused = "ChangeRefused"
	// BlockWaiting: the lifecycle has not let it go yet, or it has not carried the change out.
	BlockWaiting = "Waiting"
)

// trialPatience is how long the workload may take to create a Pod in the place of the one that was deleted.
const trialPatience = 10 * time.Minute

// operate brings Pods to what they were told that no CollaSet owns.
func (d *decision) operate() {
	told := map[*Pod]bool{}
	for _, t := range d.plan.Tells {
		told[t.Pod] = true
	}
	var ready []*Pod
	for i, p := range d.pods {
		switch {
		case p.ofCollaSet(), told[p]: // the next decision sees what it was told
		case !p.Managed:
			d.unmanaged(i)
		case d.follow(p):
			ready = append(ready, p)
		}
	}
	slices.SortFunc(ready, costOrder)
	for _, p := range ready {
		d.begin(p)
	}
}

// unmanaged blocks a Pod that would be told to have something else if anything had it follow.
func (d *decision) unmanaged(i int) {
	p := d.pods[i]
	for _, of := range d.decorations {
		if of.isInScope(i) && !slices.Contains(p.answered(), decoration.Mark{Name: of.Name, Revision: of.target}) {
			of.block(p, BlockNotManaged, fmt.Sprintf("takes no part in the lifecycle, so only another Pod gets it: restart its "+
				"workload, and label its template %s=%s to have this done gracefully", appsv1alpha1.ControlLabel,
				appsv1alpha1.ControlValue))
		}
	}
}

// follow moves an update that has begun one step on. It reports whether one is to begin.
func (d *decision) follow(p *Pod) (begin bool) {
	isUnderWay := podops.IsDuring(p.View, OperatorID, podops.TypeUpdate)
	due := p.isDue()
	isInPlace := due && p.Difference != nil && len(p.Difference.Forcing) == 0 && p.Difference.Missing == ""
	switch {
	case due && p.Difference == nil: // what lies between is not known yet
	case p.Refusal != "" && isUnderWay && !p.Recorded:
		d.cancel(p)
	case p.Refusal != "":
		d.refuse(p, BlockChangeRefused, "the API server does not take the change, which is tried again: "+p.Refusal)
	case podops.MarkedBy(p.View, appsv1alpha1.ToDeleteLabel, OperatorID):
		if isInPlace || !due && !p.isInfeasible() {
			d.write(p, "taking back the deletion of", podops.Withdraw(p.View, appsv1alpha1.ToDeleteLabel, OperatorID))
		} else {
			d.block(p, BlockWaiting, "waits for its graceful deletion")
		}
	case isUnderWay && isInPlace:
		d.changeWhenAllowed(p)
	case p.isInfeasible():
		return true
	case p.Recorded:
		return d.followRecord(p)
	case isUnderWay:
		d.cancel(p)
	default:
		return due
	}
	return false
}

// cancel takes back an update that was asked for.
func (d *decision) cancel(p *Pod) {
	d.write(p, "cancelling the update of", podops.Cancel(p.View, OperatorID, d.Now))
}

// changeWhenAllowed changes a Pod in place that was let go for that.
func (d *decision) changeWhenAllowed(p *Pod) {
	if podops.Allowed(p.View, OperatorID, podops.TypeUpdate) {
		d.plan.Changes = append(d.plan.Changes, p)
		return
	}
	d.block(p, BlockWaiting, fmt.Sprintf("waits in phase %s", podops.PhaseOf(p.View, OperatorID)))
}

// followRecord moves a change that was made in place one step on. It reports whether an update is to begin, for what is
// left of it or for another one.
func (d *decision) followRecord(p *Pod) (begin bool) {
	isUnderWay := podops.IsDuring(p.View, OperatorID, podops.TypeUpdate)
	switch {
	case p.ResizeDue && p.ResizeRestarts && !podops.Allowed(p.View, OperatorID, podops.TypeUpdate):
		return !isUnderWay
	case p.ResizeDue:
		d.plan.Resizes = append(d.plan.Resizes, p)
	case isUnderWay && !p.Carried:
		d.blockMade(p, BlockWaiting, p.Missing)
	case p.Carried && !p.Delegated && (isUnderWay || podops.PhaseOf(p.View, OperatorID) == podops.PhaseNone):
		d.plan.Finishes = append(d.plan.Finishes, p)
	default:
		return !isUnderWay && p.isDue()
	}
	return false
}

// isInfeasible reports whether the Pod cannot get the resources of its decorations where it is.
func (p *Pod) isInfeasible() bool { return p.Recorded && p.Infeasible }

// blockMade blocks a Pod that was changed already, so that its update is about nothing any more.
func (d *decision) blockMade(p *Pod, reason, why string) {
	for _, of := range d.decorations {
		if slices.Contains(p.Has, decoration.Mark{Name: of.Name, Revision: of.target}) {
			of.block(p, reason, why)
		}
	}
}

// write changes a Pod's metadata.
func (d *decision) write(p *Pod, does string, c podops.Change) {
	if !c.IsZero() {
		d.plan.Writes = append(d.plan.Writes, Write{p, does, c})
	}
}

// begin begins the update of a Pod, as far as that may be.
func (d *decision) begin(p *Pod) {
	difference := p.Difference
	if difference == nil {
		difference = &Difference{} // it was made already
	}
	_, leaves := p.View.Labels[appsv1alpha1.ToDeleteLabel]
	writes := len(d.plan.Begins) + len(d.plan.Changes) + len(d.plan.Writes)
	isInPlace := len(difference.Forcing) == 0 && !p.isInfeasible()
	switch {
	case difference.Missing != "":
		d.refuse(p, BlockMissing, difference.Missing)
	case leaves: // another Pod takes its place, and is made as it is to be
	case writes >= maxWrites:
		d.plan.More = true
	case isInPlace && difference.Quiet:
		d.plan.Changes = append(d.plan.Changes, p)
	case !isInPlace && !d.mayRecreate(p, difference):
	case !d.spends(p):
		d.block(p, BlockMaxUnavailable, "as many Pods are unavailable as updateStrategy.rollingUpdate.maxUnavailable allows")
	case isInPlace:
		d.plan.Begins = append(d.plan.Begins, p)
	default:
		d.delete(p)
	}
}

// delete asks for a Pod's graceful deletion.
func (d *decision) delete(p *Pod) {
	if c, err := podops.Mark(p.View, appsv1alpha1.ToDeleteLabel, "true", OperatorID); err == nil {
		d.write(p, "asking for the deletion of", c)
	}
}

// mayRecreate reports whether the Pod may be deleted for another one.
func (d *decision) mayRecreate(p *Pod, difference *Difference) bool {
	why := strings.Join(difference.Forcing, ", ")
	if p.isInfeasible() {
		why = "its resources: " + p.Missing
	}
	about := d.about(p)
	refuse := func(reason, text string) bool {
		for _, of := range about {
			of.refuse(p, reason, text)
		}
		return false
	}
	if !p.Owner.Recreates {
		of := "it has no controller"
		if p.Owner.Kind != "" {
			of = "it is of a " + p.Owner.Kind
		}
		return refuse(BlockNoWorkload, fmt.Sprintf("would have to be created again for %s, and %s that does this: delete it "+
			"when that suits", why, of))
	}
	next := AssignNew(d.rollouts, p.Labels)
	for _, of := range about {
		if of.Spec.UpdateStrategy.PodUpdatePolicy == appsv1alpha1.PodUpdateInPlaceOnly {
			return refuse(BlockInPlaceImpossible, fmt.Sprintf("podUpgradePolicy of PodDecoration %s is InPlaceOnly, but a running "+
				"Pod cannot take over: %s", of.Name, why))
		}
		if revisionIn(next, of.Name) != revisionIn(p.wanted(), of.Name) {
			return refuse(BlockKeptBack, fmt.Sprintf("would have to be created again for %s, and new Pods get %q of PodDecoration %s "+
				"while a partition or a pause keeps Pods back: name Pods with rollingUpdate.selector, or let all have it", why,
				revisionIn(next, of.Name), of.Name))
		}
	}
	may := true
	for _, of := range about {
		may = d.isTried(of, p) && may
	}
	return may
}

// about are the decorations that an update of the Pod is about: of one that was made already, all that it has.
func (d *decision) about(p *Pod) (about []*deciding) {
	add := func(of *deciding) { about = append(about, of) }
	if p.isDue() {
		d.concerns(p, add)
		return about
	}
	for _, of := range d.decorations {
		if hasAny(p, of.Name) {
			add(of)
		}
	}
	return about
}

// isTried reports whether a Pod may be deleted so that one with the decoration takes its place: the youngest tells
// whether new Pods get it.
func (d *decision) isTried(of *deciding, p *Pod) bool {
	if of.target == "" {
		return true
	}
	trial := of.Status.Trial
	newest := d.newest(of)
	isSince := newest != nil && trial != nil && newest.Created.After(trial.Time.Time)
	switch {
	case newest != nil && !newest.Seen && (isSince || p.Seen && newest.Created.After(p.Created)):
		of.refuse(p, BlockNotInjected, fmt.Sprintf("Pod %s was created later, and without its decorations: no more are deleted; "+
			"see why webhook-server does not decorate new Pods, and then delete that one", newest.View.Name))
		return false
	case p.Seen, isSince, trial != nil && trial.PodUID == p.View.UID:
		return true
	case trial != nil && d.Now.Sub(trial.Time.Time) < trialPatience:
		d.look(trialPatience - d.Now.Sub(trial.Time.Time))
		of.block(p, BlockWaiting, fmt.Sprintf("was created without it; Pod %s is deleted first, and the others when the one "+
			"after it has it", trial.PodName))
		return false
	}
	if !of.tries {
		of.tries = true
		of.next.Trial = &appsv1alpha1.PodDecorationTrial{Time: stamp(d.Now), PodName: p.View.Name, PodUID: p.View.UID}
	}
	return false // once that is stored
}

// newest is the youngest Pod that a decoration selects and that webhook-server was to decorate; nil for none.
func (d *decision) newest(of *deciding) *Pod {
	if of.isNewestKnown {
		return of.youngest
	}
	of.isNewestKnown = true
	for _, i := range of.pods {
		if p := d.pods[i]; !p.ofCollaSet() && (of.youngest == nil || p.Created.After(of.youngest.Created)) {
			of.youngest = p
		}
	}
	return of.youngest
}

func hasAny(p *Pod, name string) bool {
	return slices.ContainsFunc(p.answered(), func(m decoration.Mark) bool { return m.Name == name })
}

// spends reports whether another Pod may be unavailable, for each decoration that its update is about, and counts it.
func (d *decision) spends(p *Pod) bool {
	if !p.Available {
		return true
	}
	may := true
	about := d.about(p)
	for _, of := range about {
		may = may && d.spare(of) > 0
	}
	if may {
		for _, of := range about {
			*of.spare--
		}
	}
	return may
}

// spare is how many more Pods may become unavailable.
func (d *decision) spare(of *deciding) int {
	if of.spare != nil {
		return *of.spare
	}
	count, unavailable := 0, 0
	for _, p := range d.pods {
		if !p.Managed || p.ofCollaSet() || !d.isOf(of, p) {
			continue
		}
		count++
		isLeaving := podops.IsDuring(p.View, OperatorID, podops.TypeUpdate) ||
			podops.MarkedBy(p.View, appsv1alpha1.ToDeleteLabel, OperatorID)
		if !p.Available || isLeaving {
			unavailable++
		}
	}
	of.spare = ptr.To(maxUnavailable(&of.Spec, count) - unavailable)
	return *of.spare
}

// isOf reports whether a Pod has a decoration or is to have it.
func (d *decision) isOf(of *deciding, p *Pod) bool {
	named := func(m decoration.Mark) bool { return m.Name == of.Name }
	return slices.ContainsFunc(p.Has, named) || p.IsTold && slices.ContainsFunc(p.Desired, named)
}

// maxUnavailable is a Deployment's: 25 % by default, rounded down, and at least one.
func maxUnavailable(spec *appsv1alpha1.PodDecorationSpec, count int) int {
	value := intstr.FromString("25%")
	if rolling := spec.UpdateStrategy.RollingUpdate; rolling != nil && rolling.MaxUnavailable != nil {
		value = *rolling.MaxUnavailable
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&value, count, false)
	if err != nil {
		return 1 // the schema refuses that
	}
	return max(1, n)
}
