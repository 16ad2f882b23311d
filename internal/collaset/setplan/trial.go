package setplan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"kusionstack.io/kuperator/api/podops"
)

// How long the answer to a trial holds. A Pod is only deleted for an update under an answer about its successor that
// was asked for this very decision: in any time after the answer a policy or a quota may change, and the service
// would pay for it.
const (
	verdictLasts        = time.Minute
	successorVerdictFor = 0
)

// BlockChangeRefused is the reason of Pods whose change the API server refuses.
const BlockChangeRefused = "ChangeRefused"

// blockTrying is the reason of Pods that wait for the answer to a trial.
const blockTrying = "WaitingForTrial"

// TrialWrite is what a trial writes.
type TrialWrite string

const (
	// TrialPatch changes a Pod in place, all but its resources.
	TrialPatch TrialWrite = "Patch"
	// TrialResize changes the resources of a Pod in place.
	TrialResize TrialWrite = "Resize"
	// TrialCreate creates a Pod in the place of one that is deleted.
	TrialCreate TrialWrite = "Create"
	// TrialDelete deletes a Pod.
	TrialDelete TrialWrite = "Delete"
	// TrialSurge creates a Pod beside the one that it replaces. It is never made as a dry run: creating the Pod is no
	// risk to the one that is there.
	TrialSurge TrialWrite = "Surge"
)

// Trial is a write that the API server may refuse, and that it is asked about by a dry run before a Pod is touched
// for it (docs/design/0022-ask-before-touching.md).
type Trial struct {
	Write TrialWrite
	// From and To are what Pods are made of: of a patch both, of a resize, a creation and a surge To, of a deletion none.
	From, To Form
}

// PodTrial is a trial to be made on a Pod.
type PodTrial struct {
	Trial
	Pod *Pod
}

// Verdict is what the API server said of a trial, or of the write itself. The zero Verdict is none.
type Verdict struct {
	// At is when it said so.
	At time.Time
	// Refused is why it refuses, for people; "" if it does not.
	Refused string
	// Retry is when a refused trial is made again.
	Retry time.Time
	// Quota reports whether a quota refuses. A Pod on its way out may still count there.
	Quota bool
	// Full reports whether that quota has no room for a Pod of the revision before either. It may still count the Pod
	// that has made room: Kubernetes' quota controller subtracts a Pod some time after it is gone.
	Full bool
}

// asking is what the API server has answered, and is to be asked.
type asking struct {
	*History
	verdicts map[Trial]Verdict
	// leaving is true if Pods are on their way out.
	leaving bool
	notes   *notes
	asked   []PodTrial
}

// verdict is the answer to a trial as far as it still counts. known reports whether there is one; an answer that was
// refused counts until it is time to ask again, one that was not for as long as lasts.
func (a *asking) verdict(t Trial, lasts time.Duration) (v Verdict, known bool) {
	if a.verdicts == nil {
		return Verdict{}, true
	}
	v, known = a.verdicts[t]
	switch {
	case !known:
		return v, false
	case v.Refused != "":
		return v, a.notes.now.Before(v.Retry)
	}
	return v, a.notes.now.Sub(v.At) <= lasts
}

// trialsFor are the trials that have to be accepted before a Pod is taken out of service for an update.
func (u *updating) trialsFor(it *item, w updateMethod) []Trial {
	switch w {
	case inPlace, quietly:
		if !it.toUpdate() {
			return []Trial{{Write: TrialResize, To: it.Form()}}
		}
		trials := []Trial{{Write: TrialPatch, From: it.Form(), To: it.goal}}
		if u.resizes(it) {
			trials = append(trials, Trial{Write: TrialResize, To: it.goal})
		}
		return trials
	case recreate:
		return []Trial{u.successor(it), {Write: TrialDelete}}
	case replaceIt, refuse:
	}
	return nil
}

// successor is the trial of the Pod that is created in the place of one that is deleted.
func (u *updating) successor(it *item) Trial {
	if it.unfit() && !it.toUpdate() {
		return Trial{Write: TrialCreate, To: it.Form()}
	}
	return Trial{Write: TrialCreate, To: it.goal}
}

// refusedBy blocks a Pod if the API server refuses one of the trials, and reports whether it does.
func (a *asking) refusedBy(it *item, trials ...Trial) bool {
	for _, t := range trials {
		v, known := a.verdict(t, verdictLasts)
		if !known || v.Refused == "" {
			continue
		}
		a.notes.stall(it, t, v.Refused)
		a.notes.look(v.Retry.Sub(a.notes.now))
		return true
	}
	return false
}

// stall blocks a Pod because the API server refuses the write of a trial.
func (n *notes) stall(it *item, t Trial, why string) {
	n.refused, n.refuses = true, t.Refusal(why)
	n.block(it, BlockChangeRefused, n.refuses)
}

// leaves blocks a Pod that lifecycle-controller is to delete. It tries that first, too, and has the Pod say what the
// API server has against it.
func (n *notes) leaves(it *item, otherwise string) {
	if why, refused := podops.DeletionRefused(it.View); refused {
		n.stall(it, Trial{Write: TrialDelete}, why)
		return
	}
	n.block(it, "WaitingForDeletion", otherwise)
}

// tried reports whether the API server has accepted the trials. What it has not been asked of yet, the plan asks.
func (a *asking) tried(it *item, lasts time.Duration, trials ...Trial) bool {
	accepted := true
	for _, t := range trials {
		v, known := a.verdict(t, lasts)
		if known && v.Refused == "" {
			continue
		}
		accepted = false
		if !known && !slices.ContainsFunc(a.asked, func(p PodTrial) bool { return p.Trial == t }) {
			a.asked = append(a.asked, PodTrial{t, it.Pod})
		}
	}
	if !accepted && !a.refusedBy(it, trials...) {
		a.notes.block(it, blockTrying, "the API server is asked first whether it would take the change")
	}
	return accepted
}

// mayRecreate reports whether a Pod may be deleted now for another one in its place: the API server would create that
// one, as it says for this decision, and it would delete the Pod.
func (u *updating) mayRecreate(it *item) bool {
	created := u.api.tried(it, successorVerdictFor, u.successor(it))
	return u.api.tried(it, verdictLasts, Trial{Write: TrialDelete}) && created
}

// Refusal tells people that the API server refuses the write of the trial.
func (t Trial) Refusal(why string) string {
	write := "to delete Pods"
	switch t.Write {
	case TrialPatch:
		write = "to update Pods in place to revision " + t.To.String()
	case TrialResize:
		write = "to resize Pods to revision " + t.To.String()
	case TrialCreate:
		write = "to create Pods of revision " + t.To.String()
	case TrialSurge:
		write = "to create one more Pod of revision " + t.To.String() + " for one that is replaced"
	case TrialDelete:
	}
	return fmt.Sprintf(
		"the API server refuses %s: %s; no Pod is touched for it until it agrees, and it is asked again by itself",
		write, why)
}

// sortTrials makes the order of the plan's trials that of their names.
func sortTrials(trials []PodTrial) {
	slices.SortFunc(trials, func(a, b PodTrial) int {
		return cmp.Or(cmp.Compare(a.Write, b.Write), cmp.Compare(a.From.String(), b.From.String()),
			cmp.Compare(a.To.String(), b.To.String()))
	})
}

// refusedRevision reports whether Pods are refused of a form now, and the revision to make them at instead.
// While Pods are on their way out, or have just gone, a quota may count them still, and says nothing of what comes
// after; with no room for a Pod of the other revision either, that one is no way out.
func (a *asking) refusedRevision(to Form) (instead string, refused bool) {
	v, known := a.verdict(Trial{Write: TrialCreate, To: to}, verdictLasts)
	if !known || v.Refused == "" || (v.Quota && (a.leaving || v.Full)) {
		return "", false
	}
	before := a.CurrentRevision
	if before == to.Revision || !a.known(before) || a.avoided(before) {
		return "", false
	}
	return before, true
}
