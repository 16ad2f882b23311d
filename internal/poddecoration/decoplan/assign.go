package decoplan

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"kusionstack.io/kuperator/internal/decoration"
)

// Rollout is which Pods are to have which revision of a decoration.
type Rollout struct {
	Name   string
	Weight int32
	// Selector selects the Pods that are to have it; nil selects none.
	Selector labels.Selector
	// Updated is the revision of its template, "" if the decoration is being deleted. Current is the one that Pods keep
	// that are not to have Updated yet, "" if there is none.
	Updated, Current string
	// Partition is how many Pods keep what they have; nil for none. UpdateSelector selects those that get Updated, and
	// Partition is ignored then; nil if it is not set. Neither holds up a deletion, nor the way back to Current.
	Partition      *int32
	UpdateSelector labels.Selector
	// Hold says which Pods still get Updated while a rollout is held, whatever Partition and UpdateSelector say. It does
	// not hold up a deletion.
	Hold Hold
}

// Hold is which Pods get Updated of a decoration that is held.
type Hold int

const (
	// HoldNone: it is not held.
	HoldNone Hold = iota
	// HoldTold: those that were told to have it.
	HoldTold
	// HoldMade: those that have it. Others that were told go back.
	HoldMade
)

// Assign returns the decorations that each Pod is to have, in the order of the Pods, and each list in the order in
// which it is rendered. selected are the Pods, by their places, that the Selector of each rollout matches. Terminating
// Pods are not among them. The order of rollouts and Pods does not matter.
//
// A Pod keeps what it has until it is its turn, and never goes back to an older revision because a count has changed.
// At most as many Pods as a partition allows get Updated; first those that have it or were told to have it, then those
// that do not serve, then the youngest.
func Assign(rollouts []Rollout, selected [][]int, pods []*Pod) [][]decoration.Mark {
	assigned := make([][]decoration.Mark, len(pods))
	for _, i := range inOrder(rollouts) {
		r := &rollouts[i]
		for pod, revision := range r.assign(selected[i], pods) {
			if revision != "" {
				assigned[pod] = append(assigned[pod], decoration.Mark{Name: r.Name, Revision: revision})
			}
		}
	}
	return assigned
}

// AssignNew returns the decorations that a new Pod with these labels is to have. While a partition keeps Pods back it
// gets what they have: those who admit Pods at the same moment cannot count each other's.
func AssignNew(rollouts []Rollout, podLabels map[string]string) []decoration.Mark {
	var assigned []decoration.Mark
	for _, i := range inOrder(rollouts) {
		r := &rollouts[i]
		revision := r.Current
		switch {
		case r.Updated == "" || r.Selector == nil || !r.Selector.Matches(labels.Set(podLabels)):
			continue
		case r.Hold != HoldNone:
		case r.UpdateSelector != nil && r.UpdateSelector.Matches(labels.Set(podLabels)),
			r.UpdateSelector == nil && (r.Partition == nil || *r.Partition == 0):
			revision = r.Updated
		}
		if revision != "" {
			assigned = append(assigned, decoration.Mark{Name: r.Name, Revision: revision})
		}
	}
	return assigned
}

// inOrder are the places of decorations in the order in which they are rendered.
func inOrder(rollouts []Rollout) []int {
	order := make([]int, len(rollouts))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return decoration.Compare(rollouts[a].Weight, rollouts[b].Weight, rollouts[a].Name, rollouts[b].Name)
	})
	return order
}

// assign returns the revision that each Pod is to have, "" for none.
func (r *Rollout) assign(selected []int, pods []*Pod) []string {
	assigned := make([]string, len(pods))
	if r.Updated == "" {
		return assigned
	}
	isFixed := func(i int) bool { return !pods[i].follows() }
	isUpdated := r.updates(pods, slices.DeleteFunc(slices.Clone(selected), isFixed))
	for _, i := range selected {
		switch has := decoration.RevisionIn(pods[i].answered(), r.Name); {
		case isUpdated(i):
			assigned[i] = r.Updated
		case has != "":
			assigned[i] = has
		default:
			assigned[i] = r.Current
		}
	}
	return assigned
}

// updates returns which of the selected Pods get Updated.
func (r *Rollout) updates(pods []*Pod, selected []int) func(pod int) bool {
	switch {
	case r.Hold == HoldTold:
		return func(i int) bool { return decoration.RevisionIn(pods[i].wanted(), r.Name) == r.Updated }
	case r.Hold == HoldMade:
		return func(i int) bool { return decoration.RevisionIn(pods[i].answered(), r.Name) == r.Updated }
	case r.Updated == r.Current: // the template went back, so those that had another one first go back, too
		return func(int) bool { return true }
	case r.UpdateSelector != nil:
		return func(i int) bool { return r.UpdateSelector.Matches(labels.Set(pods[i].Labels)) }
	case r.Partition == nil:
		return func(int) bool { return true }
	}
	order := slices.SortedFunc(slices.Values(selected), func(a, b int) int {
		p, q := pods[a], pods[b]
		return cmp.Or(
			first(p, q, func(p *Pod) bool { return decoration.RevisionIn(p.answered(), r.Name) == r.Updated }),
			first(p, q, func(p *Pod) bool { return decoration.RevisionIn(p.wanted(), r.Name) == r.Updated }),
			costOrder(p, q))
	})
	updated := make(map[int]bool, len(order))
	for _, i := range order[:max(0, len(order)-int(*r.Partition))] {
		updated[i] = true
	}
	return func(i int) bool { return updated[i] }
}

// first orders Pods of which something is true before the others.
func first(p, q *Pod, is func(*Pod) bool) int {
	switch of, other := is(p), is(q); {
	case of == other:
		return 0
	case of:
		return -1
	}
	return 1
}
