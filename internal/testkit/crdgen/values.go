package crdgen

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

const (
	// huge is the length of a string where the schema has no bound, and many the number of items.
	huge = 65536
	many = 100
	// tooMany bounds the lists that are made to go one beyond a bound.
	tooMany = 1100
)

// sample returns the smallest value that a schema takes, as far as its types, bounds and enums say.
func sample(node *apiextensionsv1.JSONSchemaProps) any {
	switch typeOf(node) {
	case "object":
		object := map[string]any{}
		for _, name := range node.Required {
			child := node.Properties[name]
			object[name] = sample(&child)
		}
		return object
	case "array":
		return []any{}
	case "integer":
		if node.Minimum != nil {
			return int64(math.Max(1, *node.Minimum))
		}
		return int64(1)
	case "number":
		return 1.5
	case "boolean":
		return true
	case "int-or-string":
		return int64(1)
	case "quantity":
		return "1"
	case "time":
		return "2026-01-02T03:04:05Z"
	default:
		for _, value := range enumOf(node) {
			if value != "" {
				return value
			}
		}
		return "x"
	}
}

func enumOf(node *apiextensionsv1.JSONSchemaProps) []string {
	var values []string
	for _, raw := range node.Enum {
		var value string
		if json.Unmarshal(raw.Raw, &value) == nil {
			values = append(values, value)
		}
	}
	return values
}

// valuesFor returns the values worth trying in a field of an object that has current there; nil if it has nothing.
func valuesFor(field Field, current any) []Change {
	node := field.schema
	var out []Change
	add := func(why string, value any) { out = append(out, Change{Why: why, Value: value}) }

	switch typeOf(node) {
	case "string":
		out = append(out, texts(node)...)
	case "time":
		for _, value := range []string{"2026-01-02T03:04:05Z", "", "yesterday", "2026-13-32T25:61:61Z",
			"0001-01-01T00:00:00Z"} {
			add("a time", value)
		}
	case "integer":
		out = append(out, integers(node)...)
	case "number":
		add("a number", 0.5)
		add("a negative number", -0.5)
	case "boolean":
		add("true", true)
		add("false", false)
		add("a word for a boolean", "true")
	case "int-or-string":
		out = append(out, shares()...)
	case "quantity":
		for _, value := range []any{"0", "1", "-1", "1Gi", "1.5", "1e3", "1e400", "half", "", " 1", "9223372036854775808",
			int64(1), int64(-1), 1.5} {
			add("a quantity", value)
		}
	case "array":
		out = append(out, lists(node, current)...)
	case "object":
		out = append(out, objects(node, current)...)
	}
	for _, wrong := range wrongTypes(typeOf(node)) {
		add("the wrong type", wrong)
	}
	add("null", nil)
	if current != nil {
		out = append(out, Change{Why: "removed", Remove: true})
	}
	return out
}

func texts(node *apiextensionsv1.JSONSchemaProps) []Change {
	var out []Change
	add := func(why, value string) { out = append(out, Change{Why: why, Value: value}) }
	known := enumOf(node)
	for _, value := range known {
		add("a value of the enum", value)
	}
	if len(known) > 0 {
		last := known[len(known)-1]
		add("beyond the enum", last+"x")
		add("the wrong case", strings.ToLower(last))
		add("not in the enum", "Sometimes")
	}
	add("a word", "x")
	add("empty", "")
	add("a space", " ")
	add("unicode", "ключ-🚀")
	add("control characters", "a\u0000b\u001b[31m\n")
	add("a number in quotes", "-1")
	add("a key", "example.com/name")
	if node.MaxLength != nil {
		out = append(out, Change{Why: "the longest", Value: "x", Repeat: int(*node.MaxLength)},
			Change{Why: "longer than the longest", Value: "x", Repeat: int(*node.MaxLength) + 1})
	} else {
		out = append(out, Change{Why: "huge", Value: "x", Repeat: huge})
	}
	return out
}

func integers(node *apiextensionsv1.JSONSchemaProps) []Change {
	var out []Change
	add := func(why string, value any) { out = append(out, Change{Why: why, Value: value}) }
	if node.Minimum != nil {
		add("the minimum", int64(*node.Minimum))
		add("below the minimum", int64(*node.Minimum)-1)
	}
	if node.Maximum != nil {
		add("the maximum", int64(*node.Maximum))
		add("above the maximum", int64(*node.Maximum)+1)
	}
	for _, value := range []int64{0, 1, -1, math.MaxInt32, math.MaxInt32 + 1, math.MinInt32, math.MinInt32 - 1,
		math.MaxInt64, math.MinInt64} {
		add("an edge of integers", value)
	}
	add("a fraction", 1.5)
	add("beyond integers", 1e30)
	add("a number in quotes", "1")
	return out
}

func shares() []Change {
	var out []Change
	for _, value := range []any{int64(0), int64(1), int64(-1), int64(math.MaxInt32), int64(math.MaxInt32) + 1,
		int64(math.MaxInt64)} {
		out = append(out, Change{Why: "a number or share", Value: value})
	}
	for _, value := range []string{"0%", "1%", "50%", "100%", "101%", "1000%", "99999999999999999999%", "-1%", "-1", "0",
		"1", "1.5%", "%", "", "50 %", "٥%", "half", "+5%", "05%", "0x1%"} {
		out = append(out, Change{Why: "a number or share", Value: value})
	}
	return append(out, Change{Why: "a fraction", Value: 1.5})
}

func lists(node *apiextensionsv1.JSONSchemaProps, current any) []Change {
	item := any("x")
	if node.Items != nil && node.Items.Schema != nil {
		item = sample(node.Items.Schema)
	}
	if present, ok := current.([]any); ok && len(present) > 0 {
		item = present[0]
	}
	out := []Change{
		{Why: "an empty list", Value: []any{}},
		{Why: "one item", Value: []any{item}},
		{Why: "an item twice", Value: []any{item, item}},
		{Why: "an item that is null", Value: []any{nil}},
		{Why: "many equal items", Value: repeat(item, many)},
	}
	if node.MaxItems != nil && *node.MaxItems < tooMany {
		out = append(out, Change{Why: "as many items as there may be", Value: distinct(item, int(*node.MaxItems))},
			Change{Why: "too many items", Value: distinct(item, int(*node.MaxItems)+1)})
	}
	return out
}

func repeat(item any, n int) []any {
	items := make([]any, n)
	for i := range items {
		items[i] = item
	}
	return items
}

// distinct returns copies of an item that differ in their name, key or value.
func distinct(item any, n int) []any {
	items := make([]any, n)
	for i := range items {
		switch kind := item.(type) {
		case string:
			items[i] = fmt.Sprintf("%s-%d", kind, i)
		case map[string]any:
			other := maps.Clone(kind)
			for _, key := range []string{"name", "key", "id"} {
				switch other[key].(type) {
				case string:
					other[key] = fmt.Sprintf("x-%d", i)
				case int64, float64:
					other[key] = int64(i)
				}
			}
			items[i] = other
		default:
			items[i] = item
		}
	}
	return items
}

func objects(node *apiextensionsv1.JSONSchemaProps, current any) []Change {
	out := []Change{
		{Why: "an empty object", Value: map[string]any{}},
		{Why: "an unknown field", Value: with(current, "noSuchField", "x")},
	}
	for _, name := range node.Required {
		object := with(sample(node), "", nil)
		if present, ok := current.(map[string]any); ok {
			object = maps.Clone(present)
		}
		delete(object, name)
		out = append(out, Change{Why: "without the required " + name, Value: object})
	}
	if node.AdditionalProperties == nil || node.AdditionalProperties.Schema == nil {
		return out
	}
	value := sample(node.AdditionalProperties.Schema)
	for _, key := range []string{"x", "", " ", "ключ", "a/b/c", "example.com/name", "-", strings.Repeat("k", 64),
		strings.Repeat("p.", 200) + "x/n"} {
		out = append(out, Change{Why: "a key of a map", Value: with(current, key, value)})
	}
	crowd := map[string]any{}
	for i := range many {
		crowd[fmt.Sprintf("key-%d", i)] = value
	}
	return append(out, Change{Why: "many keys", Value: crowd})
}

// with returns a copy of an object with one more property; a name of "" and a value of nil add none.
func with(current any, name string, value any) map[string]any {
	object := map[string]any{}
	if present, ok := current.(map[string]any); ok {
		object = maps.Clone(present)
	}
	if name != "" || value != nil {
		object[name] = value
	}
	return object
}

// wrongTypes are values of other types than the one given.
func wrongTypes(kind string) []any {
	all := map[string]any{"string": "x", "integer": int64(7), "boolean": true, "object": map[string]any{"x": "y"},
		"array": []any{"x"}}
	switch kind {
	case "int-or-string", "quantity":
		delete(all, "string")
		delete(all, "integer")
	case "time":
		delete(all, "string")
	case "number":
		delete(all, "integer")
	}
	delete(all, kind)
	wrong := make([]any, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		wrong = append(wrong, all[name])
	}
	return wrong
}
