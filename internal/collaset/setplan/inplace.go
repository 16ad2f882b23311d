package setplan

import (
	"fmt"
	"slices"
	"time"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/shorten"
)

// The reasons for which a change in place waits, beside those that the Pod gives.
const (
	waitingForContainers = "WaitingForContainers"
	// BlockContainersFail is the reason of Pods that do not serve because a container cannot run.
	BlockContainersFail = "ContainersFail"
	resizeInfeasible    = "ResizeInfeasible"
	restartInfeasible   = "RestartInfeasible"
	recordUnreadable    = "RecordUnreadable"
)

// finishPatience is for how long lifecycle-controller may leave unfinished what it is to finish. One that is older
// than this program never does.
const finishPatience = 5 * time.Second

// left is how long the Pod's change is still left to lifecycle-controller, which finishes it and brings the Pod back
// in one write.
func (u *updating) left(it *item) time.Duration {
	if !it.Delegated || it.CarriedSince.IsZero() {
		return 0
	}
	return finishPatience - u.Now.Sub(it.CarriedSince)
}

// What the API allows of status.nextUpdate.fields: their number, and the length of each in bytes.
const (
	maxForecast      = 16
	maxForecastField = 512
)

// carried moves a change that was made in place to its end: it is finished once the kubelet has carried it out, by
// lifecycle-controller or, if that does not, here; what still lacks its write to pods/resize gets it; and a Pod that
// cannot get its resources where it is, is re-created, unless that is not wanted. allowed reports whether the Pod
// may be touched.
func (u *updating) carried(it *item, allowed bool) {
	switch {
	case it.Carried && u.left(it) > 0:
		u.notes.look(u.left(it))
	case it.Carried:
		u.do.Finishes = append(u.do.Finishes, it.Pod)
	case it.ResizeDue && u.api.refusedBy(it, Trial{Write: TrialResize, To: it.Form()}):
		u.backInService(it)
	case it.ResizeDue && allowed:
		u.do.Resizes = append(u.do.Resizes, it.Pod)
	case it.Infeasible && u.Policy == appsv1alpha1.PodUpdateInPlaceOnly:
		u.notes.refused = true
		if it.Wait == restartInfeasible {
			u.notes.block(it, restartInfeasible, it.Missing+"; set podUpgradePolicy to InPlaceIfPossible")
		} else {
			u.notes.block(it, resizeInfeasible, it.Missing+"; ask for less, or set podUpgradePolicy to InPlaceIfPossible")
		}
		u.backInService(it)
	case it.Infeasible && u.known(it.Revision) && u.api.refusedBy(it, u.trialsFor(it, recreate)...):
		u.backInService(it)
	case it.Infeasible && allowed && u.known(it.Revision) && !it.putOff:
		u.recreate(it, it.Form())
	case it.Wait == recordUnreadable:
		u.notes.refused = true
		u.notes.block(it, recordUnreadable, it.Missing)
	case it.Fails != "" && (it.Wait == "" || it.Wait == waitingForContainers):
		// It is told why with all that do not serve.
	case it.Wait != "":
		u.notes.block(it, it.Wait, it.Missing)
	default:
		u.notes.block(it, waitingForContainers, it.Missing)
	}
}

// backInService ends an operation that cannot reach its end now. What was changed stays recorded, and is carried on
// while the Pod serves. While a container has yet to restart the Pod stays out.
func (u *updating) backInService(it *item) {
	if it.During == podops.TypeUpdate && !it.Restarting {
		u.do.Cancels = append(u.do.Cancels, it.Pod)
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
		fields[i] = shorten.Bytes(fields[i], maxForecastField)
	}
	return &appsv1alpha1.UpdateForecast{InPlace: len(fields) == 0, Fields: fields}
}
