package insight

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// Describe makes the picture of the facts.
func Describe(f Facts) Fleet {
	x := newIndex(&f)
	fleet := Fleet{
		ObservedAt: f.Now.UTC(), Counts: map[State]int{}, Freezes: x.allFreezes(), Components: componentsOf(&f),
		Jobs: x.jobs(), Decorations: x.decorations(), Workloads: x.workloads(), Gaps: f.Gaps,
	}
	for _, w := range fleet.Workloads {
		for state, n := range w.Counts {
			fleet.Counts[state] += n
		}
	}
	for namespace := range x.rules {
		for i := range x.rules[namespace] {
			fleet.Budgets = append(fleet.Budgets, x.budget(i, namespace))
		}
	}
	slices.SortFunc(fleet.Budgets, func(a, b Budget) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return fleet
}

// BudgetsOf are the rules that select one of the Pods, which are of one namespace, by name.
func BudgetsOf(f Facts) []Budget {
	x := newIndex(&f)
	var found []Budget
	for namespace, rules := range x.rules {
		for i, compiled := range rules {
			if slices.ContainsFunc(f.Pods, func(pod corev1.Pod) bool { return compiled.Selects(podops.Read(&pod)) }) {
				found = append(found, x.budget(i, namespace))
			}
		}
	}
	slices.SortFunc(found, func(a, b Budget) int { return strings.Compare(a.Name, b.Name) })
	return found
}

func (x *index) allFreezes() []Freeze {
	var all []Freeze
	if x.cluster != nil {
		all = append(all, *x.cluster)
	}
	for _, name := range slices.Sorted(maps.Keys(x.freezes)) {
		all = append(all, *x.freezes[name])
	}
	return all
}

func (x *index) workloads() []Workload {
	byRef := map[Ref]*Workload{}
	for i := range x.CollaSets {
		w := x.workloadOf(&x.CollaSets[i])
		byRef[w.Ref] = &w
	}
	for i := range x.Pods {
		pod := &x.Pods[i]
		ref := ownerOf(pod)
		w := byRef[ref]
		if w == nil {
			w = &Workload{Ref: ref, Counts: map[State]int{}, Pods: []Pod{}}
			byRef[ref] = w
		}
		p := x.pod(pod)
		w.Counts[p.State]++
		if w.UpdatedRevision != "" && pod.DeletionTimestamp == nil &&
			pod.Labels[appsv1.ControllerRevisionHashLabelKey] == w.UpdatedRevision {
			w.Updated++
		}
		w.Pods = append(w.Pods, p)
		x.noteRules(w, pod)
	}
	all := make([]Workload, 0, len(byRef))
	for _, w := range byRef {
		slices.SortFunc(w.Pods, func(a, b Pod) int { return strings.Compare(a.Name, b.Name) })
		x.estimate(w)
		all = append(all, *w)
	}
	slices.SortFunc(all, func(a, b Workload) int { return compareRefs(a.Ref, b.Ref) })
	return all
}

// noteRules adds the rules that select the Pod.
func (x *index) noteRules(w *Workload, pod *corev1.Pod) {
	for i, compiled := range x.rules[pod.Namespace] {
		name := x.sources[pod.Namespace][i].Name
		at, found := slices.BinarySearch(w.Rules, name)
		if !found && compiled.Selects(podops.Read(pod)) {
			w.Rules = slices.Insert(w.Rules, at, name)
		}
	}
}

func (x *index) workloadOf(set *appsv1alpha1.CollaSet) Workload {
	return Workload{
		Ref: *refOfSet(set), Desired: set.Spec.Replicas, Counts: map[State]int{}, Pods: []Pod{},
		CurrentRevision: set.Status.CurrentRevision, UpdatedRevision: set.Status.UpdatedRevision,
		Paused: set.Spec.Paused, Reasons: x.ofSet(set), Course: courseOf(set),
	}
}
