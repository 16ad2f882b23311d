// Package explorer searches every interleaving of a small model of the suite.
//
// A model is a state, the steps that its actors may take next, and what must
// hold. Search visits every reachable state breadth first, so a violation comes
// with a shortest trace, and then asks for liveness: can a goal be reached from
// everywhere? A state from which it cannot is a deadlock or a trap, however
// long the system may still run in circles.
package explorer

import (
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
)

// Step is one thing that one actor may do.
type Step[S any] struct {
	// Name says who does what, for traces.
	Name string
	// To is the state after it.
	To S
	// Err is set when the step itself breaks a rule, whatever state it leads to.
	Err error
}

// Model is what Search needs to know. All functions must be pure.
type Model[S any] struct {
	// Initial is where every run starts.
	Initial S
	// Steps lists what may happen next; none ends a run.
	Steps func(S) []Step[S]
	// Key identifies a state: equal keys mean the same future.
	Key func(S) string
	// Check says what is wrong in a state; nil if nothing is.
	Check func(S) error
	// Goal reports whether a state is where every run should be able to get to.
	Goal func(S) bool
	// Fair reports whether a step may be counted on to reach the goal; steps of
	// users, crashes and losses may not. Nil means that all may.
	Fair func(stepName string) bool
	// MaxStates bounds the search; 0 means no bound. A search that hits the
	// bound is an error: it has shown nothing.
	MaxStates int
}

// Result is what a search found.
type Result struct {
	// States and Steps count distinct states and the steps between them.
	States, Steps int
	// Depth is the length of the longest shortest trace.
	Depth int
	// Goals counts goal states.
	Goals int
}

// Violation is a way to a state, or a step, that must not be.
type Violation struct {
	// Trace names the steps from the initial state.
	Trace []string
	// Problem says what is wrong at its end.
	Problem error
	// Stuck is true if the problem is a state from which no goal can be reached.
	Stuck bool
}

// Error prints the problem and the trace, a step a line.
func (v *Violation) Error() string {
	return fmt.Sprintf("%v, after %d steps:\n  %s", v.Problem, len(v.Trace), strings.Join(v.Trace, "\n  "))
}

// Unwrap is the problem.
func (v *Violation) Unwrap() error { return v.Problem }

// key is a hash of a state's Key: at a hundred million states the odds that two share one are below 1 in 10^22.
type key [2]uint64

type node struct {
	parent int32
	via    int32 // index into names
	depth  int32
}

type search[S any] struct {
	model  Model[S]
	seeds  [2]maphash.Seed
	index  map[key]int32
	nodes  []node
	names  []string
	byName map[string]int32
	preds  [][]int32 // fair predecessors
	goals  []int32
}

// Search visits all states. The error is a *Violation, or means that the bound was hit.
func Search[S any](m Model[S]) (Result, error) {
	s := &search[S]{
		model: m, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, index: map[key]int32{},
		byName: map[string]int32{},
	}
	frontier := []S{m.Initial}
	s.add(m.Initial, -1, "")
	if m.Goal(m.Initial) {
		s.goals = append(s.goals, 0)
	}
	ids := []int32{0}
	result := Result{}
	for len(frontier) > 0 {
		var next []S
		var nextIDs []int32
		for i, state := range frontier {
			from := ids[i]
			for _, step := range m.Steps(state) {
				result.Steps++
				if step.Err != nil {
					return s.result(result), &Violation{Trace: append(s.trace(from), step.Name), Problem: step.Err}
				}
				to, fresh := s.add(step.To, from, step.Name)
				if m.Fair == nil || m.Fair(step.Name) {
					s.preds[to] = append(s.preds[to], from)
				}
				if !fresh {
					continue
				}
				if err := m.Check(step.To); err != nil {
					return s.result(result), &Violation{Trace: s.trace(to), Problem: err}
				}
				if m.Goal(step.To) {
					s.goals = append(s.goals, to)
				}
				if m.MaxStates > 0 && len(s.nodes) > m.MaxStates {
					return s.result(result), fmt.Errorf("the search did not end within %d states", m.MaxStates)
				}
				next, nextIDs = append(next, step.To), append(nextIDs, to)
			}
		}
		frontier, ids = next, nextIDs
	}
	result = s.result(result)
	if stuck, ok := s.firstStuck(); ok {
		return result, &Violation{Trace: s.trace(stuck), Problem: errors.New("the goal cannot be reached any more"),
			Stuck: true}
	}
	return result, nil
}

func (s *search[S]) add(state S, parent int32, via string) (id int32, fresh bool) {
	text := s.model.Key(state)
	k := key{maphash.String(s.seeds[0], text), maphash.String(s.seeds[1], text)}
	if id, ok := s.index[k]; ok {
		return id, false
	}
	id = int32(len(s.nodes))
	s.index[k] = id
	n, ok := s.byName[via]
	if !ok {
		n = int32(len(s.names))
		s.names, s.byName[via] = append(s.names, via), n
	}
	depth := int32(0)
	if parent >= 0 {
		depth = s.nodes[parent].depth + 1
	}
	s.nodes = append(s.nodes, node{parent, n, depth})
	s.preds = append(s.preds, nil)
	return id, true
}

func (s *search[S]) trace(id int32) []string {
	var t []string
	for ; id > 0; id = s.nodes[id].parent {
		t = append(t, s.names[s.nodes[id].via])
	}
	for i, j := 0, len(t)-1; i < j; i, j = i+1, j-1 {
		t[i], t[j] = t[j], t[i]
	}
	return t
}

func (s *search[S]) result(r Result) Result {
	r.States, r.Goals = len(s.nodes), len(s.goals)
	r.Depth = int(s.nodes[len(s.nodes)-1].depth)
	return r
}

// firstStuck walks back from the goals; what it does not reach is stuck.
func (s *search[S]) firstStuck() (int32, bool) {
	reached := make([]bool, len(s.nodes))
	todo := append([]int32(nil), s.goals...)
	for _, g := range todo {
		reached[g] = true
	}
	for len(todo) > 0 {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, p := range s.preds[id] {
			if !reached[p] {
				reached[p] = true
				todo = append(todo, p)
			}
		}
	}
	for id, ok := range reached {
		if !ok {
			return int32(id), true
		}
	}
	return 0, false
}
