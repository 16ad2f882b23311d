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
)

// Trial is a write that the API server may refuse, and that it is asked about by a dry run before a Pod is touched
// for it (docs/design/0022-ask-before-touching.md).
type Trial struct {
	Write TrialWrite
	// From and To are revisions: of a patch both, of a resize and a creation To, of a deletion none.
	From, To string
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
}

// verdict is the answer to a trial as far as it still counts. known reports whether there is one; an answer that was
// refused counts until it is time to ask again, one that was not for as long as lasts.
func (d *decision) verdict(t Trial, lasts time.Duration) (v Verdict, known bool) {
	if d.s.Verdicts == nil {
		return Verdict{}, true
	}
	v, known = d.s.Verdicts[t]
	switch {
	case !known:
		return v, false
	case v.Refused != "":
		return v, d.s.Now.Before(v.Retry)
	}
	return v, d.s.Now.Sub(v.At) <= lasts
}

// trialsFor are the trials that have to be accepted before a Pod is taken out of service for an update.
func (d *decision) trialsFor(it *item, w updateMethod) []Trial {
	switch w {
	case inPlace, quietly:
		if !d.toUpdate(it) {
			return []Trial{{Write: TrialResize, To: it.Revision}}
		}
		trials := []Trial{{Write: TrialPatch, From: it.Revision, To: d.s.UpdatedRevision}}
		if d.s.Revisions[it.Revision].Resizes {
			trials = append(trials, Trial{Write: TrialResize, To: d.s.UpdatedRevision})
		}
		return trials
	case recreate:
		return []Trial{d.successor(it), {Write: TrialDelete}}
	case replaceIt, refuse:
	}
	return nil
}

// successor is the trial of the Pod that is created in the place of one that is deleted.
func (d *decision) successor(it *item) Trial {
	if it.unfit() && !d.toUpdate(it) {
		return Trial{Write: TrialCreate, To: it.Revision}
	}
	return Trial{Write: TrialCreate, To: d.s.UpdatedRevision}
}

// refusedBy blocks a Pod if the API server refuses one of the trials, and reports whether it does.
func (d *decision) refusedBy(it *item, trials ...Trial) bool {
	for _, t := range trials {
		v, known := d.verdict(t, verdictLasts)
		if !known || v.Refused == "" {
			continue
		}
		d.stall(it, t, v.Refused)
		d.look(v.Retry.Sub(d.s.Now))
		return true
	}
	return false
}

// stall blocks a Pod because the API server refuses the write of a trial.
func (d *decision) stall(it *item, t Trial, why string) {
	d.refused, d.refuses = true, t.Refusal(why)
	d.block(it, BlockChangeRefused, d.refuses)
}

// leaves blocks a Pod that lifecycle-controller is to delete. It tries that first, too, and has the Pod say what the
// API server has against it.
func (d *decision) leaves(it *item, otherwise string) {
	if why, refused := podops.DeletionRefused(it.View); refused {
		d.stall(it, Trial{Write: TrialDelete}, why)
		return
	}
	d.block(it, "WaitingForDeletion", otherwise)
}

// tried reports whether the API server has accepted the trials. What it has not been asked of yet, the plan asks.
func (d *decision) tried(it *item, lasts time.Duration, trials ...Trial) bool {
	accepted := true
	for _, t := range trials {
		v, known := d.verdict(t, lasts)
		if known && v.Refused == "" {
			continue
		}
		accepted = false
		if !known && !slices.ContainsFunc(d.plan.Trials, func(p PodTrial) bool { return p.Trial == t }) {
			d.plan.Trials = append(d.plan.Trials, PodTrial{t, it.Pod})
		}
	}
	if !accepted && !d.refusedBy(it, trials...) {
		d.block(it, blockTrying, "the API server is asked first whether it would take the change")
	}
	return accepted
}

// anew reports whether a Pod may be deleted now for another one in its place: the API server would create that one,
// as it says for this decision, and it would delete the Pod.
func (d *decision) anew(it *item) bool {
	created := d.tried(it, successorVerdictFor, d.successor(it))
	return d.tried(it, verdictLasts, Trial{Write: TrialDelete}) && created
}

// toUpdate reports whether the Pod itself is to get to the updated revision and is not there.
func (d *decision) toUpdate(it *item) bool { return it.newOf == nil && d.outdated(it) }

// refusedRevision reports whether Pods are refused at a revision now, and whether there is another to make them at.
// While Pods are on their way out, a quota may count them still, and says nothing of what comes after.
func (d *decision) refusedRevision(revision string) (instead string, refused bool) {
	v, known := d.verdict(Trial{Write: TrialCreate, To: revision}, verdictLasts)
	if !known || v.Refused == "" || (v.Quota && len(d.leaving) > 0) {
		return "", false
	}
	before := d.s.CurrentRevision
	if before == revision || !d.known(before) || d.s.avoided(before) {
		return "", false
	}
	return before, true
}

// Refusal tells people that the API server refuses the write of the trial.
func (t Trial) Refusal(why string) string {
	write := "to delete Pods"
	switch t.Write {
	case TrialPatch:
		write = "to update Pods in place to revision " + t.To
	case TrialResize:
		write = "to resize Pods to revision " + t.To
	case TrialCreate:
		write = "to create Pods of revision " + t.To
	case TrialDelete:
	}
	return fmt.Sprintf("the API server refuses %s: %s; no Pod is touched for it until it agrees, and it is asked again by itself", write, why)
}

// sortTrials makes the order of the plan's trials that of their names.
func sortTrials(trials []PodTrial) {
	slices.SortFunc(trials, func(a, b PodTrial) int {
		return cmp.Or(cmp.Compare(a.Write, b.Write), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
}
