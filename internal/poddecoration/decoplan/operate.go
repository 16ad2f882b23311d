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
	// BlockNotInjected: Pods are created without the decoration, so deleting more of them is of no use.
	BlockNotInjected = "NotInjected"
	// BlockMissing: a revision that it is to have does not exist.
	BlockMissing = "DecorationMissing"
	// BlockRefused: it cannot have the decoration.
	BlockRefused = "DecorationRefused"
	// BlockMaxUnavailable: enough others are unavailable.
	BlockMaxUnavailable = "MaxUnavailable"
	// BlockChangeRefused: the API server does not take the change.
	BlockChangeRefused = "ChangeRefused"
	// BlockWaiting: the lifecycle has not let it go yet, or its kubelet has not carried the change out.
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

// unmanaged reports a Pod outside the lifecycle that lacks what it would be told to have.
func (d *decision) unmanaged(i int) {
	p := d.pods[i]
	for _, of := range d.decorations {
		if of.isInScope(i) && revisionIn(p.answered(), of.Name) != of.target {
			of.block(p, BlockNotManaged, fmt.Sprintf("takes no part in the lifecycle, so only another Pod gets it: restart its "+
				"workload, and label its template %s=%s to have this done gracefully", appsv1alpha1.ControlLabel,
				appsv1alpha1.ControlValue))
		}
	}
}

// follow moves an update that has begun one step on. It reports whether one is to begin.
func (d *decision) follow(p *Pod) (begin bool) {
	due, isUpdating := p.isDue(), p.isUpdating()
	isInPlace := due && p.Difference != nil && len(p.Difference.Forcing) == 0 && p.Difference.Missing == ""
	switch {
	case due && p.Difference == nil: // what lies between is not known yet
	case p.Refusal != "" && isUpdating && !p.Recorded:
		d.cancel(p)
	case p.Refusal != "":
		d.refuse(p, BlockChangeRefused, "the API server does not take the change, which is tried again: "+p.Refusal)
	case p.isMarked():
		if isInPlace || !due && !p.Infeasible {
			d.write(p, "taking back the deletion of", podops.Withdraw(p.View, appsv1alpha1.ToDeleteLabel, OperatorID))
		} else {
			d.block(p, BlockWaiting, "waits for its graceful deletion")
		}
	case isUpdating && isInPlace:
		d.changeWhenAllowed(p)
	case p.Infeasible:
		return true
	case p.Recorded:
		return d.followRecord(p)
	case isUpdating:
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
	if p.isAllowed() {
		d.plan.Changes = append(d.plan.Changes, p)
		return
	}
	d.block(p, BlockWaiting, fmt.Sprintf("waits in phase %s", podops.PhaseOf(p.View, OperatorID)))
}

// followRecord moves a change that was made in place one step on. It reports whether an update is to begin, for what is
// left of it or for another one.
func (d *decision) followRecord(p *Pod) (begin bool) {
	isUpdating := p.isUpdating()
	switch {
	case p.ResizeDue && p.ResizeRestarts && !p.isAllowed():
		return !isUpdating
	case p.ResizeDue:
		d.plan.Resizes = append(d.plan.Resizes, p)
	case isUpdating && !p.Carried:
		d.block(p, BlockWaiting, p.Missing)
	case p.Carried && !p.Delegated && (isUpdating || podops.PhaseOf(p.View, OperatorID) == podops.PhaseNone):
		d.plan.Finishes = append(d.plan.Finishes, p)
	default:
		return !isUpdating && p.isDue()
	}
	return false
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
	isInPlace := len(difference.Forcing) == 0 && !p.Infeasible
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
		d.askDeletion(p)
	}
}

// askDeletion asks for a Pod's graceful deletion. Only another OperatorID could be an error.
func (d *decision) askDeletion(p *Pod) {
	if c, err := podops.Mark(p.View, appsv1alpha1.ToDeleteLabel, "true", OperatorID); err == nil {
		d.write(p, "asking for the deletion of", c)
	}
}

// mayRecreate reports whether the Pod may be deleted for another one.
func (d *decision) mayRecreate(p *Pod, difference *Difference) bool {
	why := strings.Join(difference.Forcing, ", ")
	if p.Infeasible {
		why = "its resources: " + p.Missing
	}
	if !p.Owner.Recreates {
		d.refuse(p, BlockNoWorkload, fmt.Sprintf("would have to be created again for %s, and no controller does that: delete "+
			"it yourself", why))
		return false
	}
	about, next := d.about(p), AssignNew(d.rollouts, p.Labels)
	for _, of := range about {
		switch gets := revisionIn(next, of.Name); {
		case of.Spec.UpdateStrategy.PodUpdatePolicy == appsv1alpha1.PodUpdateInPlaceOnly:
			d.refuse(p, BlockInPlaceImpossible, fmt.Sprintf("podUpgradePolicy of PodDecoration %s is InPlaceOnly, but a "+
				"running Pod cannot take over: %s", of.Name, why))
			return false
		case gets != revisionIn(p.wanted(), of.Name):
			d.refuse(p, BlockKeptBack, fmt.Sprintf("would have to be created again for %s, and new Pods get %q of PodDecoration "+
				"%s while a partition or a pause keeps Pods back: name Pods with rollingUpdate.selector, or let all have it",
				why, gets, of.Name))
			return false
		}
	}
	may := true
	for _, of := range about {
		may = d.passesTrial(of, p) && may
	}
	return may
}

// passesTrial reports whether a Pod may be deleted so that one with the decoration takes its place: the youngest tells
// whether new Pods get it.
func (d *decision) passesTrial(of *deciding, p *Pod) bool {
	if of.target == "" {
		return true
	}
	trial := of.Status.Trial
	newest := of.newest
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
	if !of.isTrialNew {
		of.isTrialNew = true
		of.next.Trial = &appsv1alpha1.PodDecorationTrial{Time: stamp(d.Now), PodName: p.View.Name, PodUID: p.View.UID}
	}
	return false // once that is stored
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
		if !p.Managed || p.ofCollaSet() || revisionIn(p.Has, of.Name)+revisionIn(p.wanted(), of.Name) == "" {
			continue
		}
		count++
		if !p.Available || p.isUpdating() || p.isMarked() {
			unavailable++
		}
	}
	of.spare = ptr.To(maxUnavailable(&of.Spec, count) - unavailable)
	return *of.spare
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
