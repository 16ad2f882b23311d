package decoplan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/shorten"
	"kusionstack.io/kuperator/internal/soonest"
)

// maxWrites is how many Pods one decision tells, and how many writes there may be for it to begin another update. What
// is under way is always moved on.
const maxWrites = 64

// decision is the state of one call of Decide.
type decision struct {
	*Snapshot
	decorations []*deciding
	// pods are by name, none that is terminating or has ended.
	pods     []*Pod
	rollouts []Rollout
	plan     Plan
	// told are Pods that are told something else now. begun counts the writes that maxWrites bounds.
	told  map[*Pod]bool
	begun int
}

// deciding is a decoration while it is decided upon.
type deciding struct {
	*Decoration
	selector, updates labels.Selector
	// problem is why it cannot be acted on, "" if it can.
	problem string
	halted  *appsv1alpha1.HaltedRollout
	// target is the revision that Pods get: Updated, or the one that a halted rollout goes back to; "" to take it off.
	target string
	// pods are those that it selects, by their place in decision.pods. assigned are the revisions that Pods are to have.
	pods     []int
	assigned map[int]string
	// blockers are why Pods wait, by reason. refused is true if a user has to change something.
	blockers map[string]*appsv1alpha1.Blocker
	refused  bool
	// stuck are Pods that stay without it until a user changes something.
	stuck map[*Pod]bool
	// newest is the youngest managed Pod that it selects of a workload other than a CollaSet; nil for none. isPilotNew is
	// true once this decision has chosen a pilot.
	newest     *Pod
	isPilotNew bool
	// spare is how many more Pods may become unavailable, once that is asked.
	spare *int
	// next is the status to be. Its pilot is decided on with the Pods.
	next appsv1alpha1.PodDecorationStatus
}

// Decide answers what is due. Its cost is O(Pods × decorations) for selectors; what it writes is about Pods that are
// due.
func Decide(s *Snapshot) Plan {
	d := readAll(s)
	d.tell()
	d.operate()
	for _, of := range d.decorations {
		d.guard(of)
		d.report(of)
	}
	return d.plan
}

// readAll begins a decision.
func readAll(s *Snapshot) *decision {
	d := &decision{Snapshot: s, told: map[*Pod]bool{}}
	for i := range s.Pods {
		if p := &s.Pods[i]; !p.View.Terminal && !p.View.Terminating {
			d.pods = append(d.pods, p)
		}
	}
	slices.SortFunc(d.pods, func(a, b *Pod) int { return strings.Compare(a.View.Name, b.View.Name) })
	for i := range s.Decorations {
		d.decorations = append(d.decorations, read(&s.Decorations[i], d.pods))
	}
	slices.SortFunc(d.decorations, func(a, b *deciding) int { return strings.Compare(a.Name, b.Name) })
	return d
}

// read makes of a decoration what can be acted on.
func read(of *Decoration, pods []*Pod) *deciding {
	r := &deciding{Decoration: of, problem: of.Problem, blockers: map[string]*appsv1alpha1.Blocker{},
		assigned: map[int]string{}, stuck: map[*Pod]bool{}, next: of.Status}
	r.next.Conditions = slices.Clone(of.Status.Conditions) // they are changed where they are
	parse := func(field string, selector *metav1.LabelSelector) labels.Selector {
		if selector == nil {
			return nil
		}
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			r.problem = fmt.Sprintf("%s is not valid, correct it: %v", field, err)
			return labels.Nothing()
		}
		return parsed
	}
	r.selector = parse("spec.selector", of.Spec.Selector)
	if rolling := of.Spec.UpdateStrategy.RollingUpdate; rolling != nil {
		r.updates = parse("spec.updateStrategy.rollingUpdate.selector", rolling.Selector)
	}
	r.halted = halted(of)
	r.target = of.Updated
	if r.problem != "" {
		r.target = of.Status.UpdatedRevision // the last that could be acted on
	}
	if r.halted != nil && r.halted.RollbackTo != "" {
		r.target = r.halted.RollbackTo
	}
	if of.Deleting {
		r.target = ""
	}
	if r.selector == nil {
		return r
	}
	for i, p := range pods {
		if !r.selector.Matches(labels.Set(p.Labels)) {
			continue
		}
		r.pods = append(r.pods, i)
		if p.Managed && p.Owner.Recreates && (r.newest == nil || p.Created.After(r.newest.Created)) {
			r.newest = p
		}
	}
	return r
}

// rollout is which Pods are to have the decoration. One with a problem leaves Pods as they are.
func (r *deciding) rollout() Rollout {
	a := Rollout{Name: r.Name, Weight: ptr.Deref(r.Spec.Weight, 0), Selector: r.selector, Updated: r.target,
		Current: r.Status.CurrentRevision, UpdateSelector: r.updates}
	switch {
	case r.problem != "":
		a.Hold = HoldTold
	case r.halted != nil && r.halted.RollbackTo == "":
		a.Hold = HoldMade
	case r.halted != nil:
		a.UpdateSelector = nil // all go back
	case r.Spec.UpdateStrategy.Paused:
		a.Hold = HoldTold
	case r.Spec.UpdateStrategy.RollingUpdate != nil:
		a.Partition = r.Spec.UpdateStrategy.RollingUpdate.Partition
	}
	return a
}

// New returns the decorations that a new Pod with these labels is to have, and whether any selects it: one that is held
// back may be none that it gets.
func New(decorations []Decoration, podLabels map[string]string) (marks []decoration.Mark, isSelected bool) {
	rollouts := make([]Rollout, 0, len(decorations))
	for i := range decorations {
		of := read(&decorations[i], nil)
		rollouts = append(rollouts, of.rollout())
		isSelected = isSelected || !of.Deleting && of.selector != nil && of.selector.Matches(labels.Set(podLabels))
	}
	return AssignNew(rollouts, podLabels), isSelected
}

// Expected is what each Pod is to have, those first whose update costs least service. Pods that terminate or have ended
// are not among them.
func Expected(s *Snapshot) []Tell {
	d := readAll(s)
	var all []Tell
	for i, marks := range d.assign() {
		all = append(all, Tell{d.pods[i], marks})
	}
	slices.SortFunc(all, func(a, b Tell) int { return costOrder(a.Pod, b.Pod) })
	return all
}

// assign works out what each Pod is to have, in the order of pods.
func (d *decision) assign() [][]decoration.Mark {
	by := map[string]*deciding{}
	var selected [][]int
	for _, of := range d.decorations {
		d.rollouts, selected = append(d.rollouts, of.rollout()), append(selected, of.pods)
		by[of.Name] = of
	}
	assigned := Assign(d.rollouts, selected, d.pods)
	for i, marks := range assigned {
		p := d.pods[i]
		for _, m := range p.answered() {
			// What cannot be decided on stays. So does what does not exist any more, but on Pods of CollaSets, which could have
			// no other template then: how it is to be taken off is not known.
			of := by[m.Name]
			stays := of == nil && !p.ofCollaSet() || of != nil && of.problem != "" && !of.Deleting
			if stays && decoration.RevisionIn(marks, m.Name) == "" {
				marks = append(marks, m)
			}
		}
		for _, m := range marks {
			if of := by[m.Name]; of != nil {
				of.assigned[i] = m.Revision
			}
		}
		assigned[i] = marks
	}
	return assigned
}

// tell tells each Pod what it is to have.
func (d *decision) tell() {
	for i, marks := range d.assign() {
		p := d.pods[i]
		if !p.follows() || same(marks, p.wanted()) {
			continue
		}
		if p.Refusal != "" {
			d.block(p, BlockChangeRefused, "the API server does not take what is to be written, which is tried again: "+
				p.Refusal)
			continue
		}
		if len(d.told) == maxWrites {
			d.plan.More = true
			continue
		}
		if text, err := decoration.Text(marks); err == nil { // names always can be written
			d.told[p] = true
			d.plan.Writes = append(d.plan.Writes, Write{Pod: p, Does: "telling its decorations to", Change: podops.Change{
				Annotations: map[string]*string{appsv1alpha1.PodDecorationDesiredAnnotation: &text}}})
		}
	}
}

// about are the decorations that an update of the Pod adds, changes or takes away; of a Pod that was changed already,
// all that it has.
func (d *decision) about(p *Pod) (about []*deciding) {
	for _, of := range d.decorations {
		made, wanted := decoration.RevisionIn(p.answered(), of.Name), decoration.RevisionIn(p.wanted(), of.Name)
		if made != wanted || !p.IsDue() && made != "" {
			about = append(about, of)
		}
	}
	return about
}

// isInScope reports whether a Pod, by its place, is to have the target.
func (r *deciding) isInScope(pod int) bool { return r.target != "" && r.assigned[pod] == r.target }

// block notes why a Pod waits, for each decoration that its update is about.
func (d *decision) block(p *Pod, reason, why string) {
	for _, of := range d.about(p) {
		of.block(p, reason, why)
	}
}

// refuse is block for what does not go on until a user changes something.
func (d *decision) refuse(p *Pod, reason, why string) {
	for _, of := range d.about(p) {
		of.refuse(p, reason, why)
	}
}

func (r *deciding) refuse(p *Pod, reason, why string) {
	r.block(p, reason, why)
	r.refused, r.stuck[p] = true, true
}

func (r *deciding) block(p *Pod, reason, why string) {
	b := r.blockers[reason]
	if b == nil {
		b = &appsv1alpha1.Blocker{Reason: reason, Message: shorten.Bytes("Pod "+p.View.Name+": "+why, maxMessage)}
		r.blockers[reason] = b
	}
	b.Count++
}

// look asks for the next decision after at most this time.
func (d *decision) look(in time.Duration) {
	d.plan.NextLook = soonest.Of(d.plan.NextLook, in)
}

// costOrder puts first the Pods whose update costs least service: those that do not serve, then the youngest.
func costOrder(a, b *Pod) int {
	return cmp.Or(first(a, b, func(p *Pod) bool { return !p.Available }), b.Created.Compare(a.Created),
		strings.Compare(a.View.Name, b.View.Name))
}
