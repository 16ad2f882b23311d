package setplan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// What is here serves the search of states in test/protocol, and no program.

// Copy is another Window that knows the same.
func (w *Window) Copy() *Window {
	c := NewWindow(w.limits)
	c.turns, c.places = slices.Clone(w.turns), maps.Clone(w.places)
	for name, s := range w.sets {
		set := *s
		set.pods = make(map[types.UID]*windowPod, len(s.pods))
		for uid, p := range s.pods {
			pod := *p
			set.pods[uid] = &pod
		}
		c.sets[name] = &set
	}
	return c
}

// String is all that decides what the Window answers, always in one order. Epochs count only where a step is on its
// way.
func (w *Window) String() string {
	var b strings.Builder
	byName := func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }
	for _, name := range slices.SortedFunc(maps.Keys(w.sets), byName) {
		s := w.sets[name]
		fmt.Fprintf(&b, "%s %t %v %v %d;", name, s.held, s.allowed, s.next, s.spare)
		for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
			p := s.pods[uid]
			fmt.Fprintf(&b, " %s %t %t", uid, p.underWay, p.ours)
			if p.chosen != nil {
				fmt.Fprintf(&b, " %v", *p.chosen)
			}
			if p.sent != nil {
				fmt.Fprintf(&b, " %s %t %t", p.sent.version, p.sent.begun != nil, p.sent.epoch == s.epoch)
			}
		}
		b.WriteByte('\n')
	}
	for _, uid := range slices.Sorted(maps.Keys(w.places)) {
		fmt.Fprintf(&b, "%s until %s ", uid, w.places[uid])
	}
	return fmt.Sprint(b.String(), w.turns)
}
