package decoplan

import (
	"cmp"
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
	// BlockNotInjected: Pods are created without the decoration, so deleting more of them is of no use.
	BlockNotInjected = "NotInjected"
	// BlockCancelled: it would have to be created again, and its deletion was cancelled.
	BlockCancelled = "DeletionCancelled"
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

const (
	// pilotPatience is how long the workload may take to create a Pod in the place of the one that was deleted.
	pilotPatience = 10 * time.Minute
	// maxPilots is how often one Pod is deleted for the next to have a revision, and pilotAgain how long after the first
	// the second is; that doubles. webhook-server may have been away, and be back.
	maxPilots  = 5
	pilotAgain = time.Minute
)

// operate brings Pods that no CollaSet owns to what they were told to have.
func (d *decision) operate() {
	var ready []*Pod
	for i, p := range d.pods {
		switch {
		case p.ofCollaSet(), d.told[p]: // the next decision sees what it was told
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
		if of.isInScope(i) && decoration.RevisionIn(p.answered(), of.Name) != of.target {
			of.block(p, BlockNotManaged, fmt.Sprintf("takes no part in the lifecycle, so only a new Pod gets it: label its "+
				"workload's template %s=%s, or label the namespace %s=true and restart the workload",
				appsv1alpha1.ControlLabel, appsv1alpha1.ControlValue, appsv1alpha1.DecorateAllPodsLabel))
		}
	}
}

// follow moves an update that has begun one step on. It reports whether one is to begin.
func (d *decision) follow(p *Pod) (begin bool) {
	due, isUpdating := p.IsDue(), p.isUpdating()
	isInPlace := due && p.Difference != nil && len(p.Difference.Forcing) == 0 && p.Difference.Missing == ""
	switch {
	case due && p.Difference == nil: // what lies between is not known yet
	case p.Refusal != "" && isUpdating && !p.Recorded:
		d.cancel(p)
	case p.Refusal != "":
		d.block(p, BlockChangeRefused, "the API server does not take the change, which is tried again: "+p.Refusal)
	case p.isMarked():
		if isInPlace || !due && !p.Infeasible {
			d.write(p, "taking back the deletion of", podops.Withdraw(p.View, appsv1alpha1.ToDeleteLabel, OperatorID))
		} else {
			d.block(p, BlockWaiting, "waits for its graceful deletion")
		}
	case isUpdating && isInPlace:
		d.changeWhenAllowed(p)
	case p.Infeasible && isUpdating && !p.Owner.Recreates: // it serves again as it is
		d.refuse(p, BlockNoWorkload, "cannot get its resources where it is, and no controller re-creates it: "+p.Missing)
		d.finish(p)
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
		d.change(p)
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
		d.finish(p)
	default:
		return !isUpdating && p.IsDue()
	}
	return false
}

// write changes a Pod's metadata.
func (d *decision) write(p *Pod, does string, c podops.Change) {
	if !c.IsZero() {
		d.begun++
		d.plan.Writes = append(d.plan.Writes, Write{Pod: p, Does: does, Change: c})
	}
}

// change changes a Pod in place.
func (d *decision) change(p *Pod) {
	d.begun++
	d.plan.Changes = append(d.plan.Changes, p)
}

// finish ends the update of a Pod that its kubelet has carried out, whatever else there is to write.
func (d *decision) finish(p *Pod) {
	c := podops.Finish(p.View, OperatorID, podops.TypeUpdate, d.Now)
	if c.Annotations == nil {
		c.Annotations = map[string]*string{}
	}
	c.Annotations[appsv1alpha1.LastPodStatusAnnotation] = nil
	d.plan.Writes = append(d.plan.Writes, Write{Pod: p, Does: "finishing the update of", Change: c})
}

// begin begins the update of a Pod, as far as that may be.
func (d *decision) begin(p *Pod) {
	difference := p.Difference
	if difference == nil {
		difference = &Difference{} // it was made already
	}
	_, leaves := p.View.Labels[appsv1alpha1.ToDeleteLabel]
	isInPlace := len(difference.Forcing) == 0 && !p.Infeasible
	switch {
	case difference.Missing != "":
		d.refuse(p, BlockMissing, difference.Missing)
	case leaves: // another Pod takes its place, and is made as it is to be
	case d.begun >= maxWrites:
		d.plan.More = true
	case isInPlace && difference.Quiet:
		d.change(p)
	case !isInPlace && !d.mayRecreate(p, difference):
	case !d.spends(p):
		d.block(p, BlockMaxUnavailable, "as many Pods are unavailable as updateStrategy.rollingUpdate.maxUnavailable allows")
	case isInPlace:
		d.askUpdate(p)
	default:
		d.askDeletion(p)
	}
}

// askUpdate asks for a Pod's update in place. Only another OperatorID could be an error.
func (d *decision) askUpdate(p *Pod) {
	c, err := podops.Begin(p.View, podops.Request{ID: OperatorID, Type: podops.TypeUpdate}, d.Now)
	if err == nil {
		d.begun++
		d.plan.Writes = append(d.plan.Writes,
			Write{Pod: p, Does: "asking for the update of", Change: c, Tries: p.Difference != nil})
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
		d.refuse(p, BlockNoWorkload, fmt.Sprintf("would have to be re-created for %s, and no controller does that: delete "+
			"it yourself", why))
		return false
	}
	if p.wasCancelled() {
		d.refuse(p, BlockCancelled, "was to be deleted, and a user has taken the mark away: delete the Pod yourself, or "+
			"remove annotation "+appsv1alpha1.ToDeleteLabel+podops.AskersSuffix)
		return false
	}
	about, next := d.about(p), AssignNew(d.rollouts, p.Labels)
	for _, of := range about {
		switch gets := decoration.RevisionIn(next, of.Name); {
		case of.Spec.UpdateStrategy.PodUpdatePolicy == appsv1alpha1.PodUpdateInPlaceOnly:
			d.refuse(p, BlockInPlaceImpossible, fmt.Sprintf("podUpgradePolicy of PodDecoration %s is InPlaceOnly, but a "+
				"running Pod cannot take over: %s", of.Name, why))
			return false
		case gets != decoration.RevisionIn(p.wanted(), of.Name):
			d.refuse(p, BlockKeptBack, fmt.Sprintf("would have to be re-created for %s, but a new Pod would get %s of "+
				"PodDecoration %s because of its partition or pause: choose Pods with rollingUpdate.selector, or end it",
				why, cmp.Or(gets, "no revision"), of.Name))
			return false
		}
	}
	may := true
	isFirst := slices.ContainsFunc(about, func(of *deciding) bool { return of.isPilot(p) })
	for _, of := range about {
		may = d.passesPilot(of, p, isFirst) && may
	}
	return may
}

// pilot is the one for the present target, nil without one. What new Pods were to get under an older spec tells
// nothing.
func (r *deciding) pilot() *appsv1alpha1.PodDecorationPilot {
	if pilot := r.Status.Pilot; pilot != nil && pilot.Revision == r.target && pilot.Generation == r.Generation {
		return pilot
	}
	return nil
}

// isPilot reports whether the Pod is deleted first for the decoration.
func (r *deciding) isPilot(p *Pod) bool {
	pilot := r.pilot()
	return pilot != nil && pilot.PodUID == p.View.UID
}

// passesPilot reports whether a Pod may be deleted so that one with the decoration takes its place. For each revision
// one Pod is deleted first. Others follow while the youngest Pod has the revision: what is created without it would
// only be deleted again. isFirst is whether the Pod is the first of a decoration that its update is about: it waits for
// no other's.
func (d *decision) passesPilot(of *deciding, p *Pod, isFirst bool) bool {
	if of.target == "" {
		return true
	}
	pilot, newest := of.pilot(), of.newest
	if pilot != nil && d.isOver(pilot, p.Owner) {
		pilot = nil
	}
	helps := newest != nil && decoration.RevisionIn(newest.answered(), of.Name) == of.target
	switch {
	case pilot == nil && helps, pilot != nil && helps && newest.Created.After(pilot.Time.Time):
		return true
	case pilot == nil && isFirst:
		return true
	case pilot == nil:
		d.try(of, p, 1) // it is deleted once that is stored
	case newest != nil && newest.Created.After(pilot.Time.Time):
		d.tryAgain(of, p, pilot)
	case d.Now.Sub(pilot.Time.Time) < time.Second: // times of creation are in seconds: the next Pod is to be later
		d.look(time.Second)
	case isFirst:
		return true
	case d.isThere(pilot), d.Now.Sub(pilot.Time.Time) < pilotPatience:
		d.look(pilotPatience - d.Now.Sub(pilot.Time.Time))
		of.block(p, BlockWaiting, fmt.Sprintf("Pod %s is deleted first, and the others when the one after it has revision %s",
			pilot.PodName, of.target))
	default:
		of.refuse(p, BlockNotInjected, fmt.Sprintf("no Pod was created in the place of %s: no more are deleted; see events "+
			"of its workload for what keeps it from creating Pods", pilot.PodName))
	}
	return false
}

// isThere reports whether the Pod that is deleted first is still there: it may wait for a rule as long as any other.
func (d *decision) isThere(pilot *appsv1alpha1.PodDecorationPilot) bool {
	return slices.ContainsFunc(d.pods, func(p *Pod) bool { return p.View.UID == pilot.PodUID })
}

// try has the Pod be the one that is deleted first, unless this decision has chosen another.
func (d *decision) try(of *deciding, p *Pod, attempt int32) {
	if !of.isPilotNew {
		of.isPilotNew = true
		of.next.Pilot = &appsv1alpha1.PodDecorationPilot{Generation: of.Generation, Revision: of.target,
			Time: stamp(d.Now), PodName: p.View.Name, PodUID: p.View.UID, Attempts: attempt}
	}
}

// tryAgain is what follows a pilot after which a Pod was created without the revision.
func (d *decision) tryAgain(of *deciding, p *Pod, pilot *appsv1alpha1.PodDecorationPilot) {
	why := fmt.Sprintf("Pod %s was created later, and without revision %s", of.newest.View.Name, of.target)
	attempts := max(1, pilot.Attempts)
	if attempts >= maxPilots {
		of.refuse(p, BlockNotInjected, why+": no more are deleted; see why webhook-server does not give it to new Pods, and "+
			"then delete that one")
		return
	}
	wait := pilotAgain << (attempts - 1)
	if left := wait - d.Now.Sub(pilot.Time.Time); left > 0 {
		d.look(left)
		of.block(p, BlockNotInjected, fmt.Sprintf("%s; webhook-server may be away: one Pod is deleted to try again after %s",
			why, wait))
		return
	}
	d.try(of, p, attempts+1)
}

// isOver reports whether a pilot tells nothing: its Pod is gone, and the workload has all the Pods that it wants
// without one that is younger. It was scaled in.
func (d *decision) isOver(pilot *appsv1alpha1.PodDecorationPilot, owner Owner) bool {
	there := 0
	for _, p := range d.pods {
		if p.View.UID == pilot.PodUID || p.Owner == owner && p.Created.After(pilot.Time.Time) {
			return false
		}
		if p.Owner == owner {
			there++
		}
	}
	wanted, isKnown := d.Wanted[owner]
	return isKnown && there >= wanted
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
	owners := map[Owner]int{}
	for _, p := range d.pods {
		owners[p.Owner]++
		isAny := decoration.RevisionIn(p.Has, of.Name)+decoration.RevisionIn(p.wanted(), of.Name) != ""
		if !p.Managed || p.ofCollaSet() || !isAny {
			continue
		}
		count++
		if !p.Available || p.isUpdating() || p.isMarked() {
			unavailable++
		}
	}
	for owner, there := range owners { // those that it has yet to create serve no more than those that are out of service
		missing := max(0, d.Wanted[owner]-there)
		count, unavailable = count+missing, unavailable+missing
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
