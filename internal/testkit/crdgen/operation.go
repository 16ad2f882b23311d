package crdgen

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Verb is what an operation does.
type Verb string

const (
	// Create creates the seed object, changed.
	Create Verb = "create"
	// Update changes the seed object, which is there.
	Update Verb = "update"
)

// Operation is one thing that a user does. Its JSON is all that is needed to do it again.
type Operation struct {
	// Kind is the kind of the object.
	Kind string `json:"kind"`
	Verb Verb   `json:"verb"`
	// Seed is the name of the object that is changed.
	Seed string `json:"seed"`
	// Changes are made in this order.
	Changes []Change `json:"changes"`
}

// Change is one change of an object.
type Change struct {
	// Path is a JSON pointer (RFC 6901). What is missing on the way to it is made.
	Path string `json:"path"`
	// Field is the field of the schema that it is about.
	Field string `json:"field,omitempty"`
	// Why says what is odd about the value.
	Why string `json:"why,omitempty"`
	// Value is the new value; Remove removes what is there instead.
	Value  any  `json:"value"`
	Remove bool `json:"remove,omitempty"`
	// Repeat makes a string of so many Values; 0 means one.
	Repeat int `json:"repeat,omitempty"`
}

func (o Operation) String() string {
	content, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	return string(content)
}

// Parse reads what String prints. Whole numbers become int64, as the API's clients have them.
func Parse(text string) (Operation, error) {
	var o Operation
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&o); err != nil {
		return Operation{}, fmt.Errorf("reading an operation: %w", err)
	}
	for i := range o.Changes {
		o.Changes[i].Value = plain(o.Changes[i].Value)
	}
	return o, nil
}

// plain turns numbers into int64 where they are whole and fit, else into float64.
func plain(value any) any {
	switch v := value.(type) {
	case json.Number:
		if whole, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return whole
		}
		fraction, _ := v.Float64()
		return fraction
	case map[string]any:
		for key, item := range v {
			v[key] = plain(item)
		}
	case []any:
		for i, item := range v {
			v[i] = plain(item)
		}
	}
	return value
}

// Object returns a copy of the object with the changes made.
func (o Operation) Object(seed map[string]any) (map[string]any, error) {
	object, _ := clone(seed).(map[string]any)
	for _, change := range o.Changes {
		if err := change.apply(object); err != nil {
			return nil, fmt.Errorf("%s: %w", change.Path, err)
		}
	}
	return object, nil
}

func (c Change) value() any {
	if text, ok := c.Value.(string); ok && c.Repeat > 0 {
		return strings.Repeat(text, c.Repeat)
	}
	return clone(c.Value)
}

func (c Change) apply(object map[string]any) error {
	steps := strings.Split(strings.TrimPrefix(c.Path, "/"), "/")
	for i := range steps {
		steps[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(steps[i])
	}
	_, err := c.put(object, steps)
	return err
}

// put returns the parent with the value put below it.
func (c Change) put(parent any, steps []string) (any, error) {
	name, last := steps[0], len(steps) == 1
	switch at := parent.(type) {
	case map[string]any:
		if last {
			if c.Remove {
				delete(at, name)
			} else {
				at[name] = c.value()
			}
			return at, nil
		}
		below, err := c.put(orNew(at[name], steps[1]), steps[1:])
		at[name] = below
		return at, err
	case []any:
		i, err := strconv.Atoi(name)
		if err != nil || i < 0 || i > len(at) {
			return nil, fmt.Errorf("%q is no index of a list of %d", name, len(at))
		}
		if last && c.Remove {
			if i == len(at) {
				return at, nil
			}
			return slices.Delete(at, i, i+1), nil
		}
		if i == len(at) {
			at = append(at, nil)
		}
		if last {
			at[i] = c.value()
			return at, nil
		}
		at[i], err = c.put(orNew(at[i], steps[1]), steps[1:])
		return at, err
	default:
		return nil, fmt.Errorf("it leads through a %T", parent)
	}
}

// orNew returns what is there if something can be put below it, else something new.
func orNew(present any, next string) any {
	switch present.(type) {
	case map[string]any, []any:
		return present
	}
	if _, err := strconv.Atoi(next); err == nil {
		return []any{}
	}
	return map[string]any{}
}

func clone(value any) any {
	switch v := value.(type) {
	case map[string]any:
		copied := maps.Clone(v)
		for key, item := range copied {
			copied[key] = clone(item)
		}
		return copied
	case []any:
		copied := slices.Clone(v)
		for i, item := range copied {
			copied[i] = clone(item)
		}
		return copied
	default:
		return v
	}
}
