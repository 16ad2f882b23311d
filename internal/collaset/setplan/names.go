package setplan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Names are names in spec.scaleStrategy that have taken effect, by list, in the order of the spec.
type Names struct{ ToDelete, ToExclude, ToInclude []string }

// IsZero reports whether there are none.
func (n Names) IsZero() bool { return len(n.ToDelete)+len(n.ToExclude)+len(n.ToInclude) == 0 }

// maxNames bounds the names of a list that one decision removes: the API server is asked about each.
const maxNames = 64

// takenNames are the names that are to go from the spec because what they ask for is done: the Pod to delete is on
// its way out or gone, the one to exclude is not the set's any more, the one to include is. That follows from the
// Pods alone, so what is not removed now is removed by the next decision, whatever happens in between.
func takenNames(s *Snapshot, pods *members) (taken Names) {
	if s.Conventions != KuperatorV07 {
		return taken
	}
	ours, live := map[string]bool{}, map[string]bool{}
	for _, it := range pods.items {
		ours[it.Name()] = true
		live[it.Name()] = !it.View.Terminating
	}
	for i := range s.Strays {
		name := s.Strays[i].Pod.Name()
		ours[name], live[name] = true, true // it is to come back
	}
	for _, name := range s.ToDelete {
		if !live[name] && len(taken.ToDelete) < maxNames {
			taken.ToDelete = append(taken.ToDelete, name)
		}
	}
	for _, name := range s.ToExclude {
		if !ours[name] && !slices.Contains(s.ToInclude, name) && len(taken.ToExclude) < maxNames {
			taken.ToExclude = append(taken.ToExclude, name)
		}
	}
	for _, name := range s.ToInclude {
		if ours[name] && !slices.Contains(s.ToExclude, name) {
			taken.ToInclude = append(taken.ToInclude, name)
		}
	}
	return taken
}

// endsFirst reports whether a pair is not scaled in before its replacement has ended: podToDelete names the new Pod
// and not the one that it replaces.
func (s *scaling) endsFirst(it *item) bool {
	p := cmp.Or(it.newOf, it.pair)
	if s.Conventions != KuperatorV07 || p == nil || p.replacement == nil || !p.replacement.named || p.origin.named ||
		p.origin.staying != "" {
		return false
	}
	p.replacement.spared = true
	s.notes.block(p.origin, "WaitingForReplacement", fmt.Sprintf(
		"podToDelete names its replacement %s and not itself, so neither is scaled in before the replacement has ended: name both, or take the label to-replace away",
		p.replacement.Name()))
	return true
}

// problemOf makes sure that names in sequence, which are hostnames as well, can be given; it is "" if they can.
func problemOf(s *Identity, replicas int) string {
	if !s.Sequential {
		return ""
	}
	highest := replicas
	for _, e := range s.Entries {
		highest = max(highest, e.ID)
	}
	name := s.Name + "-" + strconv.Itoa(highest)
	unfit := validation.IsDNS1123Label(name)
	if len(unfit) == 0 {
		return ""
	}
	return fmt.Sprintf("with names in persistent sequence a Pod's name is its hostname as well, and %s is none: %s; "+
		"set spec.namingStrategy.podNamingSuffixPolicy to Random, or create a CollaSet with a shorter name and "+
		"without dots; no Pod is created or removed meanwhile", name, unfit[0])
}
