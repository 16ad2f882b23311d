package setplan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// world is a set with its Pods, entries, lifecycle and kubelets. Every write bumps resourceVersions, as a real one
// does.
type world struct {
	setplan.Snapshot
	uid int
	// log has one line for each effective action.
	log []string
	// budget is how many Pods rules let out of service at a time, 0 for all, -1 for none.
	budget int
	// disrupted says how Pods were touched; problems are breaches of what must always hold.
	problems []string
	// asked are the Pods whose replacement a user asked for.
	asked map[string]bool
	// broken are revisions whose containers never run; keeps is true if nothing lets a marked Pod be deleted, and
	// refusesDeletions if the API server refuses it, as lifecycle-controller notes.
	broken           map[string]bool
	keeps            bool
	refusesDeletions bool
	// outside are Pods without an owner; include are the names of those that are to be included.
	outside []setplan.Pod
	include []string
	// excluded are the claims of Pods that were excluded; grown are names of claims that were expanded.
	excluded []setplan.Claim
	grown    map[string]bool
	// resizes is true if changes in place have resources to write, infeasible that nodes do not have them.
	resizes, infeasible bool
	// quietResize reports whether a resize restarts nothing.
	quietResize bool
	// shut has the window let nothing begin.
	shut bool
	// forcing are decorations that no running Pod takes over.
	forcing map[string]bool
	// older is true if lifecycle-controller finishes nothing for the operator.
	older bool
}

func newWorld(replicas int) *world {
	w := &world{Snapshot: setplan.Snapshot{
		Generation: 1,
		Mode: setplan.Mode{Now: time.Unix(1_700_000_000, 0), Protocol: true,
			Limits: setplan.DefaultLimits()},
		Identity: setplan.Identity{Name: "web"},
		Scale:    setplan.Scale{Replicas: replicas},
		Strategy: setplan.Strategy{Policy: appsv1alpha1.PodUpdateInPlaceIfPossible},
		History: setplan.History{
			UpdatedRevision: "r1", CurrentRevision: "r1",
			Revisions: map[string]setplan.Difference{"r1": {}, "r2": {}, "r3": {}, "r4": {}},
		},
	}}
	return w
}

// template moves the set to another revision.
func (w *world) template(revision string) { w.UpdatedRevision = revision }

func (w *world) find(name string) *setplan.Pod {
	for i := range w.Pods {
		if w.Pods[i].Name() == name {
			return &w.Pods[i]
		}
	}
	return nil
}

func (w *world) entry(id int) setplan.Entry {
	for _, e := range w.Entries {
		if e.ID == id {
			return e
		}
	}
	return setplan.Entry{ID: setplan.NoID}
}

func (w *world) live() []*setplan.Pod {
	var out []*setplan.Pod
	for i := range w.Pods {
		if w.Pods[i].Live() {
			out = append(out, &w.Pods[i])
		}
	}
	return out
}

func (w *world) say(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) wrong(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// change applies a change to a Pod and works out what it then looks like.
func (w *world) change(p *setplan.Pod, c podops.Change) {
	p.View = c.Apply(p.View)
	w.refresh(p)
}

func (w *world) refresh(p *setplan.Pod) {
	rv, _ := strconv.Atoi(p.View.ResourceVersion)
	p.View.ResourceVersion = strconv.Itoa(rv + 1)
	has := func(key string) bool { _, ok := p.View.Labels[key]; return ok }
	p.Excluded = has(appsv1alpha1.ToExcludeLabel)
	p.Included, p.ToDelete = has(appsv1alpha1.UpdateIncludedLabel), has(appsv1alpha1.ToDeleteLabel)
	p.Replacing = has(appsv1alpha1.ToReplaceLabel) || has(appsv1alpha1.ReplacePairNewIDLabel) ||
		has(appsv1alpha1.ReplacePairOriginNameLabel) || has(appsv1alpha1.ReplacedByReplaceUpdateLabel)
	p.Available = p.View.ServiceAvailable()
	if !w.Protocol {
		p.Available = p.View.Ready
	}
	if p.AvailableIn = 0; w.MinReady > 0 && p.Available {
		left := w.MinReady - w.Now.Sub(p.ReadySince)
		p.Available, p.AvailableIn = p.View.Ready && left <= 0, max(left, 0)
	}
	p.AllowedSince = time.Time{}
	opType := p.View.Labels[podops.OperationTypePrefix+"/"+setplan.OperatorID]
	if opType != "" && podops.Allowed(p.View, setplan.OperatorID, opType) {
		p.AllowedSince = w.Now
	}
}

// apply carries out those actions of a plan that pass. Entries come first where they must.
func (w *world) apply(plan setplan.Plan, passes func() bool) {
	stored := w.exclude(plan, passes)
	if plan.EntriesChanged && stored {
		if stored = passes(); stored {
			w.Entries = slices.Clone(plan.Entries)
			w.say("store %d", len(plan.Entries))
		}
	}
	stored = stored || !plan.EntriesFirst
	each(plan.Finishes, passes, func(p *setplan.Pod) {
		p = w.find(p.Name())
		if p.Recorded && !p.Carried {
			w.wrong("%s was finished before it was carried out", p.Name())
		}
		w.say("finish %d", p.ID)
		if p.Delegated && !w.older && w.Now.Sub(p.CarriedSince) < 5*time.Second {
			w.wrong("%s was finished while lifecycle-controller may do it", p.Name())
		}
		w.finish(p)
		w.change(p, podops.Change{Labels: map[string]*string{appsv1alpha1.UpdateIncludedLabel: nil}})
	})
	each(plan.Changes, passes, func(c setplan.PodChange) {
		p := w.find(c.Pod.Name())
		quiet := w.quiet(p)
		if !quiet {
			w.mayTouch(p, podops.TypeUpdate)
		}
		w.say("change %d %s->%s", p.ID, p.Revision, c.To.Revision)
		silent := w.Revisions[p.Revision].Quiet && p.Included
		recorded := !quiet && !silent || w.resizes // as revision.Change.Patch
		p.Revision, p.Decorations = c.To.Revision, c.To.Decorations
		p.Recorded, p.Carried, p.Missing = recorded, false, "not restarted"
		if p.Known != nil && p.Known.ID == p.ID {
			p.Known = nil // it says of itself all that it did
		}
		p.ResizeDue, p.Infeasible, p.ResizeRestarts = w.resizes, false, !w.quietResize
		p.Delegated, p.CarriedSince = w.Protocol && !w.resizes && !p.Included && !quiet, time.Time{}
		w.refresh(p)
	})
	each(plan.Resizes, passes, func(p *setplan.Pod) {
		p = w.find(p.Name())
		if !w.quietResize {
			w.mayTouch(p, podops.TypeUpdate)
		}
		w.say("resize %d", p.ID)
		p.ResizeDue, p.Infeasible = false, w.infeasible
		w.refresh(p)
	})
	each(plan.Cancels, passes, func(p *setplan.Pod) {
		p = w.find(p.Name())
		w.say("cancel %d", p.ID)
		w.change(p, podops.Cancel(p.View, setplan.OperatorID, w.Now))
	})
	w.applyClaims(plan, passes)
	if stored {
		w.repair(plan, passes)
		w.takeIn(plan, passes)
		each(plan.Deletions, passes, func(d setplan.Deletion) {
			p := w.find(d.Pod.Name())
			switch d.Reason {
			case setplan.DeleteScaleIn:
				w.mayTouch(p, podops.TypeScaleIn)
			case setplan.DeleteReplaced:
				w.mayReplace(p)
			case setplan.DeleteRecreate:
				w.mayTouch(p, podops.TypeUpdate)
				at := w.entry(p.ID).Data[appsv1alpha1.ContextRevision]
				keeps := p.Infeasible || p.Desired != p.Decorations
				if at != w.UpdatedRevision && (!keeps || at != p.Revision) {
					w.wrong("%s is re-created at another revision", p.Name())
				}
			default:
			}
			w.say("delete %d %s", p.ID, d.Reason)
			p.View.Terminating = true
			w.refresh(p)
		})
		each(plan.Creations, passes, w.create)
	}
	each(plan.Begins, passes, func(b setplan.Begin) {
		p := w.find(b.Pod.Name())
		c, err := podops.Begin(p.View, b.Request, w.Now)
		if err != nil {
			w.wrong("begin: %v", err)
		}
		if c.IsZero() {
			w.wrong("begin of %s changes nothing", p.Name())
		}
		w.say("begin %d %s", p.ID, b.Request.Type)
		w.change(p, c)
	})
	each(plan.Marks, passes, func(p *setplan.Pod) {
		p = w.find(p.Name())
		w.say("mark %d", p.ID)
		if !slices.Contains(w.ToDelete, p.Name()) && !w.Deleting {
			w.mayReplace(p)
		}
		value := "true"
		w.change(p, podops.Change{Labels: map[string]*string{appsv1alpha1.ToDeleteLabel: &value}})
	})
	each(plan.Labels, passes, w.relabel)
	w.removeNames(plan, passes)
	w.check()
}

// changed are the Pods that a plan changes in place.
func changed(plan setplan.Plan) []*setplan.Pod {
	var pods []*setplan.Pod
	for _, c := range plan.Changes {
		pods = append(pods, c.Pod)
	}
	return pods
}

func each[T any](actions []T, passes func() bool, do func(T)) {
	for _, a := range actions {
		if passes() {
			do(a)
		}
	}
}

func (w *world) mayTouch(p *setplan.Pod, opType string) {
	if w.Protocol && !podops.Allowed(p.View, setplan.OperatorID, opType) {
		w.wrong("%s was touched for %s without permission", p.Name(), opType)
	}
}

func (w *world) create(c setplan.Creation) {
	if w.entry(c.ID).Data[appsv1alpha1.ContextOwner] != w.Name {
		w.wrong("a Pod is created for ID %d, which has no entry", c.ID)
	}
	w.uid++
	name := fmt.Sprintf("web-%05d", w.uid)
	if w.Sequential {
		name = fmt.Sprintf("web-%d", c.ID)
		if w.Conventions == setplan.KuperatorV07 && slices.Contains(w.ToDelete, name) {
			w.wrong("%s is created, and its name is still to be deleted", name)
		}
	}
	w.say("create %d %s", c.ID, c.Revision)
	p := setplan.Pod{
		View: podops.View{Namespace: "ns", Name: name, UID: types.UID(strconv.Itoa(w.uid)), ResourceVersion: "1",
			Gate:   w.Protocol,
			Labels: map[string]string{podops.CreatingLabel: "1"}},
		ID: c.ID, Revision: c.Revision, Decorations: c.Decorations, Desired: c.Decorations, Created: w.Now,
		Service: setplan.Service{Scheduled: true},
		Marks:   setplan.Marks{Selected: true},
	}
	if w.find(name) != nil {
		w.wrong("the name %s is in use", name)
	}
	w.pairUp(&p, c)
	w.mount(&p, c)
	w.Pods = append(w.Pods, p)
}

// finish ends the operation on a Pod whose change has been carried out, with its record.
func (w *world) finish(p *setplan.Pod) {
	p.Recorded, p.Carried, p.Infeasible, p.Delegated = false, false, false, false
	w.change(p, podops.Finish(p.View, setplan.OperatorID, podops.TypeUpdate, w.Now))
}

// quiet reports whether a change of the Pod to the updated revision restarts nothing, and is made while it serves.
func (w *world) quiet(p *setplan.Pod) bool {
	return w.Revisions[p.Revision].Quiet && !podops.IsDuring(p.View, setplan.OperatorID, podops.TypeUpdate)
}

// settle lets kubelets and lifecycle do everything that is due.
func (w *world) settle(passes func() bool) {
	w.Now = w.Now.Add(time.Second)
	w.Pods = slices.DeleteFunc(w.Pods, func(p setplan.Pod) bool { return p.View.Terminating && passes() })
	for i := range w.Pods {
		p := &w.Pods[i]
		p.Again = max(p.Again-time.Second, 0)
		if !passes() || !p.Live() {
			continue
		}
		if p.Carried && p.Delegated && !w.older && passes() {
			w.say("finished %d", p.ID)
			w.finish(p)
		}
		runs := !w.broken[p.Revision]
		if p.Recorded && !p.Carried && runs && !p.ResizeDue && !p.Infeasible {
			p.Carried, p.Missing, p.CarriedSince = true, "", w.Now
		}
		if p.View.ContainersReady = runs; runs {
			p.Phase = corev1.PodRunning
		}
		ready := runs && (!w.Protocol || p.View.ServiceReady == corev1.ConditionTrue)
		if ready != p.View.Ready {
			p.View.Ready = ready
			p.ReadySince = w.Now
		}
		if !w.Protocol {
			w.refresh(p)
			continue
		}
		verdicts := podops.Verdicts{}
		for _, o := range podops.Operations(p.View) {
			verdicts[podops.Ask{ID: o.ID, Stage: appsv1alpha1.StagePreCheck}] = w.permits(p)
			verdicts[podops.Ask{ID: o.ID, Stage: appsv1alpha1.StagePostCheck}] = true
		}
		p.View = podops.Advance(p.View, verdicts, w.Now).Apply(p.View)
		w.refresh(p)
		switch {
		case !p.ToDelete || w.keeps:
		case w.refusesDeletions:
			p.View.Annotations = map[string]string{podops.DeletionRefusedAnnotation: "policy \"no\" denied the request"}
		default:
			p.View.Annotations, p.View.Terminating = nil, true
		}
	}
}

// permits reports whether the rules let the Pod go out of service.
func (w *world) permits(p *setplan.Pod) bool {
	out := w.Replicas
	for _, other := range w.live() {
		if other.View.ServiceAvailable() {
			out--
		}
	}
	return w.budget == 0 || out < w.budget || !p.View.ServiceAvailable()
}

// check is what must hold at all times.
func (w *world) check() {
	seen := map[int]bool{}
	for _, p := range w.live() {
		if p.Known != nil || p.ID == setplan.NoID {
			continue // its label does not tell
		}
		if seen[p.ID] {
			w.wrong("two live Pods have ID %d", p.ID)
		}
		seen[p.ID] = true
	}
	w.checkClaims()
	ids := map[int]bool{}
	for _, e := range w.Entries {
		if ids[e.ID] {
			w.wrong("two entries have ID %d", e.ID)
		}
		ids[e.ID] = true
	}
}

// atRevision counts live Pods.
func (w *world) atRevision(revision string) int {
	n := 0
	for _, p := range w.live() {
		if p.Revision == revision {
			n++
		}
	}
	return n
}

// slotsAt counts IDs whose live Pod is at the revision, or, without one, whose entry or whose Pod on its way out is.
func (w *world) slotsAt(revision string) int {
	at := map[int]bool{}
	for _, e := range w.Entries {
		at[e.ID] = e.Data[appsv1alpha1.ContextRevision] == revision
	}
	for _, p := range w.Pods {
		at[p.ID] = at[p.ID] || p.Revision == revision
	}
	for _, p := range w.live() {
		at[p.ID] = p.Revision == revision
	}
	n := 0
	for _, holds := range at {
		if holds {
			n++
		}
	}
	return n
}

// round is one decision and what follows; it reports whether anything was due.
func (w *world) round(passes func() bool) bool {
	w.decorate()
	plan := setplan.Decide(&w.Snapshot)
	w.mayCreate(plan)
	w.apply(plan, passes)
	w.settle(passes)
	w.settleClaims()
	return !plan.IsZero()
}

// run goes on until nothing is due for three rounds, and reports whether it got there.
func (w *world) run(passes func() bool) bool {
	quiet := 0
	for range 60*(w.Replicas+len(w.Pods)) + 400 {
		if w.round(passes) {
			quiet = 0
		} else if quiet++; quiet == 40 {
			return true
		}
	}
	return false
}

func always() bool { return true }

// sometimes passes with the given chance, in an order fixed by the seed.
func sometimes(seed uint64, chance float64) func() bool {
	random := rand.New(rand.NewPCG(seed, 1))
	return func() bool { return random.Float64() < chance }
}

func (w *world) uids() []types.UID {
	var out []types.UID
	for _, p := range w.live() {
		out = append(out, p.UID())
	}
	slices.Sort(out)
	return out
}

func (w *world) ids() []int {
	ids := map[int]bool{}
	for _, p := range w.live() {
		ids[p.ID] = true
	}
	return slices.Sorted(maps.Keys(ids))
}
