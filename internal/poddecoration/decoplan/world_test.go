package decoplan_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/poddecoration/decoplan"
)

// world is a namespace: its Pods, workloads, lifecycle, kubelets, and collaset-controller as far as it follows what
// Pods are told.
type world struct {
	decoplan.Snapshot
	uid int
	log []string
	// problems are breaches of what must always hold.
	problems []string
	// replicas are how many Pods a workload has, by its name. Kinds are the first part of it.
	replicas map[string]int
	// unmanaged are workloads that take no part in the lifecycle.
	unmanaged map[string]bool
	// forcing are revisions that only another Pod can have; broken are those with which no Pod serves.
	forcing, broken map[string]bool
	// bare is whether new Pods get no decorations: webhook-server is away.
	bare bool
	// held is whether a rule lets no Pod be deleted.
	held bool
	// full is whether no Pod is created: a quota, or an admission webhook, does not let it.
	full bool
	// deleted counts Pods that were deleted on request.
	deleted int
}

func newWorld() *world {
	return &world{Snapshot: decoplan.Snapshot{Now: time.Unix(1_700_000_000, 0)}, replicas: map[string]int{},
		unmanaged: map[string]bool{}, forcing: map[string]bool{}, broken: map[string]bool{}}
}

// decorate adds a decoration of all Pods, at its first revision.
func (w *world) decorate(name string, change func(*decoplan.Decoration)) {
	d := decoplan.Decoration{Name: name, Generation: 1, Updated: name + "-1", Spec: appsv1alpha1.PodDecorationSpec{
		Selector: &metav1.LabelSelector{},
	}}
	if change != nil {
		change(&d)
	}
	w.Decorations = append(w.Decorations, d)
}

func (w *world) decoration(name string) *decoplan.Decoration {
	for i := range w.Decorations {
		if w.Decorations[i].Name == name {
			return &w.Decorations[i]
		}
	}
	return nil
}

// template gives a decoration another template.
func (w *world) template(name, revision string) {
	d := w.decoration(name)
	d.Updated, d.Generation = revision, d.Generation+1
}

func (w *world) find(name string) *decoplan.Pod {
	for i := range w.Pods {
		if w.Pods[i].View.Name == name {
			return &w.Pods[i]
		}
	}
	return nil
}

// keyOf is the key of what a Pod was made with.
func keyOf(p *decoplan.Pod) string { return decoration.Key(p.Has) }

// serves works out whether a Pod serves.
func (w *world) serves(p *decoplan.Pod) bool {
	for _, m := range p.Has {
		if w.broken[m.Revision] {
			return false
		}
	}
	return !p.Managed || p.View.ServiceReady == "True"
}

// observe works out what depends on more than one field of a Pod.
func (w *world) observe(p *decoplan.Pod) {
	runs := true
	for _, m := range p.Has {
		runs = runs && !w.broken[m.Revision]
	}
	p.View.ContainersReady = runs
	p.View.Ready = w.serves(p)
	p.Available = p.View.Ready && (!p.Managed || p.View.ServiceAvailable())
	p.Difference = nil
	wanted := keyOf(p)
	if p.IsTold {
		wanted = decoration.Key(p.Desired)
	}
	if wanted == keyOf(p) {
		return
	}
	p.Difference = &decoplan.Difference{}
	for _, marks := range [][]decoration.Mark{p.Has, p.Desired} {
		for _, m := range marks {
			isIn := func(others []decoration.Mark) bool { return slices.Contains(others, m) }
			if w.forcing[m.Revision] && isIn(p.Has) != isIn(p.Desired) {
				p.Difference.Forcing = []string{"containers[" + m.Name + "]"}
			}
		}
	}
}

// create makes a Pod of a workload.
func (w *world) create(workload string) {
	w.uid++
	kind, name, _ := strings.Cut(workload, "/")
	p := decoplan.Pod{
		View: podops.View{Namespace: "ns", Name: fmt.Sprintf("%s-%04d", name, w.uid), UID: types.UID(fmt.Sprint(w.uid)),
			ResourceVersion: "1", Labels: map[string]string{}, Gate: !w.unmanaged[workload]},
		Labels: map[string]string{}, Created: w.Now, Managed: !w.unmanaged[workload],
		Owner: decoplan.Owner{Kind: kind, Name: name, Recreates: kind == "ReplicaSet"},
	}
	if kind == "Bare" {
		p.Owner = decoplan.Owner{}
	}
	if p.Managed {
		p.View.Labels[podops.CreatingLabel] = "1"
	}
	if !w.bare {
		p.Has, _ = decoplan.New(w.Decorations, p.Labels)
	}
	w.say("create %s with %s", p.View.Name, keyOf(&p))
	w.Pods = append(w.Pods, p)
}

func (w *world) say(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) wrong(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// count counts the Pods of a workload.
func (w *world) count(workload string) int {
	n := 0
	for i := range w.Pods {
		if p := &w.Pods[i]; p.Owner.Kind+"/"+p.Owner.Name == workload {
			n++
		}
	}
	return n
}

// settle lets workloads, lifecycle, kubelets and collaset-controller do what is due.
func (w *world) settle() {
	w.Now = w.Now.Add(2 * time.Second)
	w.Pods = slices.DeleteFunc(w.Pods, func(p decoplan.Pod) bool { return p.View.Terminating })
	for _, workload := range slices.Sorted(maps.Keys(w.replicas)) {
		for w.count(workload) < w.replicas[workload] && !w.full {
			w.create(workload)
		}
	}
	for i := range w.Pods {
		p := &w.Pods[i]
		if p.Owner.Kind == appsv1alpha1.CollaSetKind && p.IsTold && decoration.Key(p.Desired) != keyOf(p) {
			p.Has = p.Desired
		}
		if p.Recorded && !p.Carried {
			p.Carried = true
		}
		w.observe(p)
		if p.Managed {
			verdicts := podops.Verdicts{}
			for _, o := range podops.Operations(p.View) {
				verdicts[podops.Ask{ID: o.ID, Stage: appsv1alpha1.StagePreCheck}] = true
				verdicts[podops.Ask{ID: o.ID, Stage: appsv1alpha1.StagePostCheck}] = true
			}
			p.View = podops.Advance(p.View, verdicts, w.Now).Apply(p.View)
			w.observe(p)
		}
		if _, leaves := p.View.Labels[appsv1alpha1.ToDeleteLabel]; leaves && !w.held {
			w.say("delete %s", p.View.Name)
			w.deleted++
			p.View.Terminating = true
			if !p.Owner.Recreates {
				w.wrong("%s is deleted, and nothing creates it again", p.View.Name)
			}
		}
	}
}

// apply carries out those parts of a plan that pass.
func (w *world) apply(plan decoplan.Plan, passes func() bool) {
	written := map[string]int{}
	touch := func(p *decoplan.Pod) *decoplan.Pod {
		if written[p.View.Name]++; written[p.View.Name] > 1 {
			w.wrong("%s is written to twice in one plan", p.View.Name)
		}
		if !p.Managed && p.Owner.Kind != appsv1alpha1.CollaSetKind {
			w.wrong("%s is not managed, and is written to", p.View.Name)
		}
		return w.find(p.View.Name)
	}
	for _, change := range plan.Changes {
		p := touch(change)
		if !p.Difference.Quiet && !podops.Allowed(p.View, decoplan.OperatorID, podops.TypeUpdate) {
			w.wrong("%s is changed without permission", p.View.Name)
		}
		if passes() {
			w.say("change %s", p.View.Name)
			p.Has, p.Recorded, p.Carried = p.Desired, true, false
		}
	}
	for _, write := range plan.Writes {
		p := touch(write.Pod)
		if write.Change.IsZero() {
			w.wrong("%s %s changes nothing", write.Does, p.View.Name)
		}
		if write.Does == "asking for the update of" && !write.Tries && p.Difference != nil {
			w.wrong("%s is let go for a change that is not tried", p.View.Name)
		}
		if !passes() {
			continue
		}
		p.View = write.Change.Apply(p.View)
		if text := write.Change.Annotations[appsv1alpha1.PodDecorationDesiredAnnotation]; text != nil {
			p.Desired, p.IsTold = decoration.MarksIn(*text), true
			w.say("tell %s %s", p.View.Name, decoration.Key(p.Desired))
			continue
		}
		w.say("%s %s", write.Does, p.View.Name)
		if _, isFinished := write.Change.Annotations[appsv1alpha1.LastPodStatusAnnotation]; isFinished {
			p.Recorded = false
		}
	}
	for name, status := range plan.Statuses {
		if passes() {
			w.decoration(name).Status = *status
		}
	}
	for _, name := range plan.Protect {
		w.decoration(name).Protected = true
	}
	for _, name := range plan.Release {
		w.say("release %s", name)
		w.Decorations = slices.DeleteFunc(w.Decorations, func(d decoplan.Decoration) bool { return d.Name == name })
	}
	w.want()
	for i := range w.Pods {
		w.observe(&w.Pods[i])
	}
}

// want tells how many Pods workloads are to have.
func (w *world) want() {
	w.Wanted = map[decoplan.Owner]int{}
	for workload, n := range w.replicas {
		kind, name, _ := strings.Cut(workload, "/")
		w.Wanted[decoplan.Owner{Kind: kind, Name: name, Recreates: kind == "ReplicaSet"}] = n
	}
}

// those are the writes of a plan that do something.
func those(plan decoplan.Plan, does string) (some []decoplan.Write) {
	for _, write := range plan.Writes {
		if write.Does == does {
			some = append(some, write)
		}
	}
	return some
}

func always() bool { return true }

// run goes on until nothing is due for some rounds, and reports whether it got there.
func (w *world) run(passes func() bool) bool {
	quiet := 0
	for range 600 {
		plan := decoplan.Decide(&w.Snapshot)
		w.apply(plan, passes)
		w.settle()
		if quiet++; !plan.IsZero() {
			quiet = 0
		}
		if quiet == 8 {
			return true
		}
	}
	return false
}

// at counts Pods that were made with a revision.
func (w *world) at(revision string) int {
	n := 0
	for i := range w.Pods {
		for _, m := range w.Pods[i].Has {
			if m.Revision == revision {
				n++
			}
		}
	}
	return n
}

// condition is the reason of a condition of a decoration, and whether it is True.
func (w *world) condition(name, kind string) (reason string, is bool) {
	for _, c := range w.decoration(name).Status.Conditions {
		if c.Type == kind {
			return c.Reason, c.Status == metav1.ConditionTrue
		}
	}
	return "", false
}

func rolling(partition int32) *appsv1alpha1.PodDecorationRollingUpdate {
	return &appsv1alpha1.PodDecorationRollingUpdate{Partition: ptr.To(partition)}
}
