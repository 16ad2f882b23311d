package crdgen

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// mapKey is the key under which a value is put into a map that is empty.
const mapKey = "x"

// Seeds are objects by kind and name.
type Seeds map[string]map[string]map[string]any

// Generate returns n operations, deterministic by seed; fewer are the first of more. The first ones are each about one
// field of one kind, once for all. Then come the other values of the fields that are the kinds' own, as creation and as
// update of every seed object. The rest are values of the fields of embedded objects and, each third, pairs of changes.
func Generate(kinds []Kind, seeds Seeds, seed uint64, n int) []Operation {
	g := &generator{seeds: seeds, random: rand.New(rand.NewPCG(seed, 0))}
	for _, kind := range kinds {
		g.take(kind)
	}
	operations := g.once()
	own, embedded := g.singles()
	operations = append(operations, own...)
	for i := 0; len(operations) < n; i++ {
		if i%3 == 2 || len(embedded) == 0 {
			operations = append(operations, g.pair())
			continue
		}
		operations, embedded = append(operations, embedded[0]), embedded[1:]
	}
	return operations[:n]
}

type generator struct {
	seeds  Seeds
	random *rand.Rand
	fields []fieldChanges
	// own and embedded are indices of fields.
	own, embedded []int
}

// fieldChanges are the changes of one field, by seed object. Each is the change itself after those that make what it
// needs.
type fieldChanges struct {
	kind    string
	field   Field
	seeds   []string
	changes map[string][][]Change
}

func (g *generator) take(kind Kind) {
	seeds := g.seeds[kind.Name]
	names := slices.Sorted(maps.Keys(seeds))
	for _, field := range kind.Fields() {
		of := fieldChanges{kind: kind.Name, field: field, seeds: names, changes: map[string][][]Change{}}
		for _, name := range names {
			path, prepare, current := locate(seeds[name], field.steps)
			for _, change := range valuesFor(field, current) {
				change.Path, change.Field = path, field.Path
				of.changes[name] = append(of.changes[name], append(slices.Clone(prepare), change))
			}
		}
		if field.Embedded() {
			g.embedded = append(g.embedded, len(g.fields))
		} else {
			g.own = append(g.own, len(g.fields))
		}
		g.fields = append(g.fields, of)
	}
}

// once is an operation for each field.
func (g *generator) once() []Operation {
	operations := make([]Operation, 0, len(g.fields))
	for i := range g.fields {
		operations = append(operations, g.one(i))
	}
	g.random.Shuffle(len(operations), func(i, j int) { operations[i], operations[j] = operations[j], operations[i] })
	return operations
}

// one is an operation with any change of a field.
func (g *generator) one(i int) Operation {
	of := g.fields[i]
	name := of.seeds[g.random.IntN(len(of.seeds))]
	changes := of.changes[name]
	return Operation{Kind: of.kind, Verb: g.verb(), Seed: name, Changes: changes[g.random.IntN(len(changes))]}
}

func (g *generator) verb() Verb {
	if g.random.IntN(2) == 0 {
		return Create
	}
	return Update
}

// singles are all values of all fields: of the kinds' own fields with each seed object as creation and as update, of
// the embedded ones with one of each.
func (g *generator) singles() (own, embedded []Operation) {
	for _, i := range g.own {
		of := g.fields[i]
		for _, name := range of.seeds {
			for _, change := range of.changes[name] {
				for _, verb := range []Verb{Create, Update} {
					own = append(own, Operation{Kind: of.kind, Verb: verb, Seed: name, Changes: change})
				}
			}
		}
	}
	for _, i := range g.embedded {
		of := g.fields[i]
		name := of.seeds[g.random.IntN(len(of.seeds))]
		for _, change := range of.changes[name] {
			embedded = append(embedded, Operation{Kind: of.kind, Verb: g.verb(), Seed: name, Changes: change})
		}
	}
	for _, list := range [][]Operation{own, embedded} {
		g.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	return own, embedded
}

// pair changes two fields of one object, the first of them one of the kind's own.
func (g *generator) pair() Operation {
	for {
		first := g.one(g.own[g.random.IntN(len(g.own))])
		among := g.own
		if g.random.IntN(4) == 0 && len(g.embedded) > 0 {
			among = g.embedded
		}
		of := g.fields[among[g.random.IntN(len(among))]]
		changes := of.changes[first.Seed]
		if of.kind != first.Kind || len(changes) == 0 {
			continue
		}
		second := changes[g.random.IntN(len(changes))]
		operation := first
		operation.Changes = append(slices.Clone(first.Changes), second...)
		if _, err := operation.Object(g.seeds[first.Kind][first.Seed]); err != nil {
			continue // the first change left no place for the second
		}
		return operation
	}
}

// locate returns where a field is in an object, as a JSON pointer, and what is there. Lists and maps are entered by
// their first item. Prepare are changes that make what the object lacks on the way.
func locate(object map[string]any, steps []step) (path string, prepare []Change, current any) {
	current = object
	for i, s := range steps {
		name := s.property
		switch {
		case s.list:
			name = "0"
		case s.values:
			name = firstKey(current)
		}
		path += "/" + escape(name)
		current = below(current, name)
		if current == nil && i < len(steps)-1 {
			current = sample(s.schema)
			prepare = append(prepare, Change{Path: path, Value: current})
		}
	}
	return path, prepare, current
}

func firstKey(current any) string {
	if object, ok := current.(map[string]any); ok && len(object) > 0 {
		return slices.Sorted(maps.Keys(object))[0]
	}
	return mapKey
}

func below(current any, name string) any {
	switch at := current.(type) {
	case map[string]any:
		return at[name]
	case []any:
		if i, err := strconv.Atoi(name); err == nil && i < len(at) {
			return at[i]
		}
	}
	return nil
}

func escape(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
