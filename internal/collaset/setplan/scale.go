package setplan

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// chooseCondemned marks the live Pods that are too many.
func (d *decision) chooseCondemned() {
	// A Pod that is to be excluded counts as gone, now or later; the other half of its pair stands for itself.
	halved := func(p *pair) bool { return p.origin.staying != "" || p.fresh != nil && p.fresh.staying != "" }
	candidates := make([]*item, 0, len(d.live))
	for _, it := range d.live {
		switch {
		case it.staying != "":
		case it.pair != nil && !halved(it.pair):
			candidates = append(candidates, it.survivor())
		case it.newOf == nil || halved(it.newOf):
			candidates = append(candidates, it)
		}
	}
	surplus := len(candidates) - d.s.Replicas
	if surplus <= 0 {
		return
	}
	d.sortVictims(candidates)
	for _, it := range candidates[:surplus] {
		if d.endsFirst(it) {
			continue
		}
		it.condemned = true
		if it.newOf != nil && !halved(it.newOf) {
			it.newOf.origin.condemned = true
		}
	}
}

// first compares two facts: the one that holds comes first.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// scaleIn removes victims and lets off Pods that are victims no more.
func (d *decision) scaleIn() {
	blocked := d.moving || d.holds(func(p Problem) bool { return p.Scale })
	unmarked := d.mustStore
	for _, it := range d.items {
		switch {
		case !it.Live() || blocked:
		case !it.condemned:
			if it.during == podops.TypeScaleIn {
				d.plan.Cancels = append(d.plan.Cancels, it.Pod)
			}
		case d.refusedBy(it, Trial{Write: TrialDelete}):
			if it.during == podops.TypeScaleIn {
				d.plan.Cancels = append(d.plan.Cancels, it.Pod)
			}
		case !d.s.Protocol:
			if !d.s.Paused {
				d.condemn(it)
			}
		case it.during == podops.TypeScaleIn:
			if d.due(it, d.s.ScaleInDelay) {
				d.condemn(it)
			}
		case d.s.Paused:
			d.block(it, "Paused", "is to be removed, but the CollaSet is paused")
		case len(d.plan.Begins) >= d.s.limits().Begins:
			d.plan.More = true
		case !d.tried(it, verdictLasts, Trial{Write: TrialDelete}):
		default:
			d.begin(it, podops.TypeScaleIn, true)
		}
	}
	if d.mustStore > unmarked {
		d.markAhead()
	}
}

// markAhead says in the same write of all who wait to be scaled in that they are, so that their deletions, which a
// rule lets go one after the other, need no write each. An entry with claims is marked with its deletion only: should
// the Pod be lost after the CollaSet has changed its mind, the mark would have its claims deleted.
func (d *decision) markAhead() {
	for id, it := range d.holder {
		if e := d.entries[id]; e != nil && it.waitsToLeave() && !e.inPair() && len(d.claims.byID[id]) == 0 {
			d.may(e, appsv1alpha1.ContextScaleIn, appsv1alpha1.ContextTrue)
		}
	}
}

// waitsToLeave reports whether the Pod is a victim whose removal has been asked for.
func (it *item) waitsToLeave() bool {
	return it.condemned && it.Live() && it.during == podops.TypeScaleIn
}

// condemn deletes a victim, and says so in its entry first, so that its ID does not come back.
func (d *decision) condemn(it *item) {
	if e := d.entries[it.ID]; e != nil && !it.twin {
		d.must(e, appsv1alpha1.ContextScaleIn, appsv1alpha1.ContextTrue)
		e.vacated = true
	}
	d.plan.Deletions = append(d.plan.Deletions, Deletion{it.Pod, DeleteScaleIn})
}

// checkNames makes sure that names in sequence, which are hostnames as well, can be given.
func (d *decision) checkNames(add func(Problem)) {
	if !d.s.Sequential {
		return
	}
	highest := d.s.Replicas
	for _, e := range d.s.Entries {
		highest = max(highest, e.ID)
	}
	name := d.s.Name + "-" + strconv.Itoa(highest)
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		add(Problem{
			Reason: "NameUnfit",
			Message: fmt.Sprintf("with names in persistent sequence a Pod's name is its hostname as well, and %s is none: %s; set spec.namingStrategy.podNamingSuffixPolicy to Random, "+
				"or create a CollaSet with a shorter name and without dots; no Pod is created or removed meanwhile", name, problems[0]),
			Scale: true,
		})
	}
}
