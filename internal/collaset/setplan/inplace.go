package setplan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// The reasons for which a change in place waits, beside those that the Pod gives.
const (
	waitingForContainers = "WaitingForContainers"
	resizeInfeasible     = "ResizeInfeasible"
	recordUnreadable     = "RecordUnreadable"
)

// finishPatience is for how long lifecycle-controller may leave unfinished what it is to finish. One that is older
// than this program never does.
const finishPatience = 5 * time.Second

// left is how long the Pod's change is still left to lifecycle-controller, which finishes it and brings the Pod back
// in one write.
func (d *decision) left(it *item) time.Duration {
	if !it.Delegated || it.CarriedSince.IsZero() {
		return 0
	}
	return finishPatience - d.s.Now.Sub(it.CarriedSince)
}

// What the API allows of status.nextUpdate.fields: their number, and the length of each in bytes.
const (
	maxForecast      = 16
	maxForecastField = 512
)

// carried moves a change that was made in place to its end: it is finished once the kubelet has carried it out, by
// lifecycle-controller or, if that does not, here; what still lacks its write to pods/resize gets it; and a Pod that
// cannot get its resources where it is, is created anew, unless that is not wanted. allowed says that the Pod may be
// touched.
func (d *decision) carried(it *item, allowed bool) {
	switch {
	case it.Carried && d.left(it) > 0:
		d.look(d.left(it))
	case it.Carried:
		d.plan.Finishes = append(d.plan.Finishes, it.Pod)
	case it.ResizeDue && d.refusedBy(it, Trial{Write: TrialResize, To: it.Revision}):
		d.backInService(it)
	case it.ResizeDue && allowed:
		d.plan.Resizes = append(d.plan.Resizes, it.Pod)
	case it.Infeasible && d.s.Policy == appsv1alpha1.PodUpdateInPlaceOnly:
		d.refused = true
		d.block(it, resizeInfeasible, it.Missing+"; ask for less, or set podUpgradePolicy to InPlaceIfPossible")
		d.backInService(it)
	case it.Infeasible && d.known(it.Revision) && d.refusedBy(it, d.trialsFor(it, recreate)...):
		d.backInService(it)
	case it.Infeasible && allowed && d.known(it.Revision) && !d.putOff(it):
		if d.moving || !d.anew(it) {
			return
		}
		if e := d.entries[it.ID]; e != nil {
			d.must(e, appsv1alpha1.ContextRevision, it.Revision)
			d.must(e, appsv1alpha1.ContextPodRecreateUpdate, appsv1alpha1.ContextTrue)
		}
		d.plan.Deletions = append(d.plan.Deletions, Deletion{it.Pod, DeleteRecreate})
	case it.Wait == recordUnreadable:
		d.refused = true
		d.block(it, recordUnreadable, it.Missing)
	case it.Wait != "":
		d.block(it, it.Wait, it.Missing)
	default:
		d.block(it, waitingForContainers, it.Missing)
	}
}

// backInService ends an operation that cannot reach its end now. What was changed stays recorded, and is carried on
// while the Pod serves. While a container has yet to restart the Pod stays out.
func (d *decision) backInService(it *item) {
	if it.during == podops.TypeUpdate && !it.Restarting {
		d.plan.Cancels = append(d.plan.Cancels, it.Pod)
	}
}

// forecast says how a Pod gets from status.currentRevision to status.updatedRevision; nil when they are equal or not
// known.
func forecast(s *Snapshot, st *appsv1alpha1.CollaSetStatus) *appsv1alpha1.UpdateForecast {
	difference, known := s.Revisions[st.CurrentRevision]
	if !known || s.Deleting || st.CurrentRevision == st.UpdatedRevision {
		return nil
	}
	fields := slices.Clone(difference.Forcing)
	if more := len(fields) - maxForecast; more > 0 {
		fields = append(fields[:maxForecast-1], fmt.Sprintf("(%d more)", more+1))
	}
	for i := range fields {
		if len(fields[i]) > maxForecastField {
			fields[i] = strings.ToValidUTF8(fields[i][:maxForecastField-3], "") + "..."
		}
	}
	return &appsv1alpha1.UpdateForecast{InPlace: len(fields) == 0, Fields: fields}
}
