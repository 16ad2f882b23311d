// Package assignment decides which revision of which PodDecoration each Pod is to have. It is pure, and it remembers
// nothing: all it goes by is on the Pods and in the decorations' status, so every process decides the same.
package assignment

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"kusionstack.io/kuperator/internal/decoration"
)

// Decoration is what is known of a PodDecoration.
type Decoration struct {
	Name   string
	Weight int32
	// Selector is of the Pods that are to have it; nil for none.
	Selector labels.Selector
	// Updated is the revision of its template, "" if the decoration is being deleted. Current is the one that Pods keep
	// that are not to have Updated yet, "" if there is none.
	Updated, Current string
	// Partition is how many Pods keep what they have; nil for none. UpdateSelector is of the Pods that get Updated, and
	// then Partition does not count; nil if it is not set. Neither holds up a deletion.
	Partition      *int32
	UpdateSelector labels.Selector
}

// Pod is what is known of a Pod.
type Pod struct {
	Name   string
	Labels map[string]string
	// Has are the decorations that it has. Desired are those that it was told to have, as far as they differ; IsTold is
	// whether there are such.
	Has, Desired []decoration.Mark
	IsTold       bool
	// Serves is whether it is in service. Created is when it was created.
	Serves  bool
	Created time.Time
}

// goal are the decorations that the Pod has or was told to have.
func (p *Pod) goal() []decoration.Mark {
	if p.IsTold {
		return p.Desired
	}
	return p.Has
}

// Assign returns the decorations that each Pod is to have, in the order of the Pods, and each list in the order in
// which it is rendered. Terminating Pods are not among them. The order of both lists does not matter.
//
// A Pod keeps what it has until it is its turn, and never goes back to an older revision because a count has changed.
// At most as many Pods as a partition allows get Updated; first those that have it or were told to have it, then those
// that do not serve, then the youngest.
func Assign(decorations []Decoration, pods []Pod) [][]decoration.Mark {
	decorations = inOrder(decorations)
	assigned := make([][]decoration.Mark, len(pods))
	for i := range decorations {
		d := &decorations[i]
		for pod, revision := range d.assign(pods) {
			if revision != "" {
				assigned[pod] = append(assigned[pod], decoration.Mark{Name: d.Name, Revision: revision})
			}
		}
	}
	return assigned
}

// AssignNew returns the decorations that a new Pod with these labels is to have. While a partition keeps Pods back it
// gets what they have: those who admit Pods at the same moment cannot count each other's.
func AssignNew(decorations []Decoration, of map[string]string) []decoration.Mark {
	var assigned []decoration.Mark
	for _, d := range inOrder(decorations) {
		revision := d.Current
		switch {
		case !d.selects(of):
			continue
		case d.UpdateSelector != nil && d.UpdateSelector.Matches(labels.Set(of)),
			d.UpdateSelector == nil && (d.Partition == nil || *d.Partition == 0):
			revision = d.Updated
		}
		if revision != "" {
			assigned = append(assigned, decoration.Mark{Name: d.Name, Revision: revision})
		}
	}
	return assigned
}

// inOrder are decorations in the order in which they are rendered.
func inOrder(decorations []Decoration) []Decoration {
	return slices.SortedFunc(slices.Values(decorations), func(a, b Decoration) int {
		return decoration.Compare(a.Weight, b.Weight, a.Name, b.Name)
	})
}

// assign returns the revision that each Pod is to have, "" for none.
func (d *Decoration) assign(pods []Pod) []string {
	assigned := make([]string, len(pods))
	var selected []int
	for i := range pods {
		if d.selects(pods[i].Labels) {
			selected = append(selected, i)
		}
	}
	isUpdated := d.updates(pods, selected)
	for _, i := range selected {
		switch has := revisionIn(pods[i].Has, d.Name); {
		case isUpdated(i):
			assigned[i] = d.Updated
		case has != "":
			assigned[i] = has
		default:
			assigned[i] = d.Current
		}
	}
	return assigned
}

// selects reports whether a Pod with these labels is to have the decoration.
func (d *Decoration) selects(of map[string]string) bool {
	return d.Updated != "" && d.Selector != nil && d.Selector.Matches(labels.Set(of))
}

// updates returns which of the selected Pods get Updated.
func (d *Decoration) updates(pods []Pod, selected []int) func(pod int) bool {
	switch {
	case d.UpdateSelector != nil:
		return func(i int) bool { return d.UpdateSelector.Matches(labels.Set(pods[i].Labels)) }
	case d.Partition == nil:
		return func(int) bool { return true }
	}
	order := slices.SortedFunc(slices.Values(selected), func(a, b int) int {
		p, q := &pods[a], &pods[b]
		return cmp.Or(
			first(p, q, func(p *Pod) bool { return revisionIn(p.Has, d.Name) == d.Updated }),
			first(p, q, func(p *Pod) bool { return revisionIn(p.goal(), d.Name) == d.Updated }),
			first(p, q, func(p *Pod) bool { return !p.Serves }),
			q.Created.Compare(p.Created), strings.Compare(p.Name, q.Name))
	})
	updated := make(map[int]bool, len(order))
	for _, i := range order[:max(0, len(order)-int(*d.Partition))] {
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

// revisionIn is the revision of a decoration in a list, "" if it is not in it.
func revisionIn(marks []decoration.Mark, name string) string {
	for _, m := range marks {
		if m.Name == name {
			return m.Revision
		}
	}
	return ""
}
