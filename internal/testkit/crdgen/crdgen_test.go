package crdgen_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/testkit/crdgen"
)

var (
	root      = filepath.Join("..", "..", "..")
	resources = []string{"collasets", "operationjobs", "poddecorations", "podtransitionrules", "resourcecontexts"}
)

// world is all kinds that are shipped and the objects that set each of their fields.
func world(t testing.TB) ([]crdgen.Kind, crdgen.Seeds) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "deploy", "crd", "apps.kusionstack.io_*.yaml"))
	require.NoError(t, err)
	require.Len(t, paths, len(resources), "every kind that is shipped")
	var kinds []crdgen.Kind
	seeds := crdgen.Seeds{}
	for _, path := range paths {
		kind, err := crdgen.Load(path)
		require.NoError(t, err)
		require.Contains(t, resources, kind.Resource.Resource)
		content, err := os.ReadFile(filepath.Join(root, "api", "apps", "v1alpha1", "testdata",
			strings.ToLower(kind.Name)+".yaml"))
		require.NoError(t, err)
		object := map[string]any{}
		require.NoError(t, yaml.Unmarshal(content, &object))
		empty := map[string]any{"kind": kind.Name, "spec": map[string]any{}}
		kinds, seeds[kind.Name] = append(kinds, kind), map[string]map[string]any{"every": object, "empty": empty}
	}
	return kinds, seeds
}

func TestOperationsAreDeterministicBySeed(t *testing.T) {
	kinds, seeds := world(t)
	one, same, other := crdgen.Generate(kinds, seeds, 1, 3000), crdgen.Generate(kinds, seeds, 1, 3000),
		crdgen.Generate(kinds, seeds, 2, 3000)
	require.Equal(t, one, same)
	require.NotEqual(t, one, other)
	require.Equal(t, one[:2000], crdgen.Generate(kinds, seeds, 1, 2000)[:2000], "fewer are the first of more")
}

func TestEveryFieldIsCovered(t *testing.T) {
	kinds, seeds := world(t)
	tried := map[string]map[string]bool{}
	operations := crdgen.Generate(kinds, seeds, 1, 20_000)
	require.Len(t, operations, 20_000)
	once := 0
	for _, kind := range kinds {
		once += len(kind.Fields())
	}
	short, both := map[string]bool{}, 0
	for i, operation := range operations {
		fields := map[string]bool{}
		for _, change := range operation.Changes {
			if change.Field == "" {
				continue // makes room
			}
			at := operation.Kind + " " + change.Field
			if tried[at] == nil {
				tried[at] = map[string]bool{}
			}
			tried[at][change.Why] = true
			fields[at] = true
			if i < once {
				short[at] = true
			}
		}
		if len(fields) > 1 {
			both++
		}
	}
	for _, kind := range kinds {
		leaves, covered, first, inner := 0, 0, 0, 0
		for _, field := range kind.Fields() {
			at := kind.Name + " " + field.Path
			require.Containsf(t, tried, at, "%s is tried", at)
			if !field.Embedded() {
				require.Containsf(t, tried[at], "the wrong type", "%s is given another type", at)
			}
			if !field.Leaf {
				inner++
				continue
			}
			leaves++
			covered++
			if short[at] {
				first++
			}
			if !field.Embedded() {
				require.Greaterf(t, len(tried[at]), 2, "%s is given several values: %v", at, slices.Sorted(maps.Keys(tried[at])))
			}
		}
		require.Equal(t, leaves, first, "as many operations as there are fields have each leaf once")
		t.Logf("%s: %d of %d leaves and %d inner fields covered", kind.Name, covered, leaves, inner)
	}
	require.Greater(t, both, 1000, "pairs of fields")
}

func TestOperationsCanBeReadAgain(t *testing.T) {
	kinds, seeds := world(t)
	for _, operation := range crdgen.Generate(kinds, seeds, 3, 1500) {
		again, err := crdgen.Parse(operation.String())
		require.NoError(t, err)
		seed := seeds[operation.Kind][operation.Seed]
		want, wantErr := operation.Object(seed)
		got, err := again.Object(seed)
		require.NoError(t, wantErr, operation.String())
		require.NoError(t, err)
		wanted, err := yaml.Marshal(want)
		require.NoError(t, err)
		read, err := yaml.Marshal(got)
		require.NoError(t, err)
		require.Equal(t, string(wanted), string(read))
	}
}

func TestSeedsAreLeftAlone(t *testing.T) {
	kinds, seeds := world(t)
	before, err := yaml.Marshal(seeds)
	require.NoError(t, err)
	for _, operation := range crdgen.Generate(kinds, seeds, 4, 3000) {
		_, err := operation.Object(seeds[operation.Kind][operation.Seed])
		require.NoError(t, err)
	}
	after, err := yaml.Marshal(seeds)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
}

func TestChanges(t *testing.T) {
	seed := map[string]any{"spec": map[string]any{"replicas": int64(2), "rules": []any{map[string]any{"name": "a"}}}}
	cases := map[string]struct {
		changes []crdgen.Change
		want    string
	}{
		"a value is replaced": {[]crdgen.Change{{Path: "/spec/replicas", Value: int64(-1)}},
			`{"spec":{"replicas":-1,"rules":[{"name":"a"}]}}`},
		"a value is removed": {[]crdgen.Change{{Path: "/spec/replicas", Remove: true}},
			`{"spec":{"rules":[{"name":"a"}]}}`},
		"an item is removed": {[]crdgen.Change{{Path: "/spec/rules/0", Remove: true}},
			`{"spec":{"replicas":2,"rules":[]}}`},
		"null is a value": {[]crdgen.Change{{Path: "/spec/replicas"}},
			`{"spec":{"replicas":null,"rules":[{"name":"a"}]}}`},
		"what is missing on the way is made": {[]crdgen.Change{{Path: "/spec/a/0/b", Value: "x"}},
			`{"spec":{"a":[{"b":"x"}],"replicas":2,"rules":[{"name":"a"}]}}`},
		"a key with a slash": {[]crdgen.Change{{Path: "/spec/labels/example.com~1name", Value: "x"}},
			`{"spec":{"labels":{"example.com/name":"x"},"replicas":2,"rules":[{"name":"a"}]}}`},
		"a long value is written in short": {[]crdgen.Change{{Path: "/spec/replicas", Value: "ab", Repeat: 3}},
			`{"spec":{"replicas":"ababab","rules":[{"name":"a"}]}}`},
		"later changes see what earlier ones did": {[]crdgen.Change{{Path: "/spec/rules", Value: []any{}},
			{Path: "/spec/rules/0", Value: "x"}}, `{"spec":{"replicas":2,"rules":["x"]}}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := crdgen.Operation{Changes: tc.changes}.Object(seed)
			require.NoError(t, err)
			content, err := yaml.Marshal(got)
			require.NoError(t, err)
			json, err := yaml.YAMLToJSON(content)
			require.NoError(t, err)
			require.JSONEq(t, tc.want, string(json))
		})
	}
}
