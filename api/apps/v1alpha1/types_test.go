package v1alpha1_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

func TestTypesKeepEveryFieldOfKuperator(t *testing.T) {
	tests := map[string]struct {
		file   string
		object runtime.Object
	}{
		"a CollaSet survives decoding and encoding":          {"collaset.yaml", &appsv1alpha1.CollaSet{}},
		"a PodTransitionRule survives decoding and encoding": {"podtransitionrule.yaml", &appsv1alpha1.PodTransitionRule{}},
		"a ResourceContext survives decoding and encoding":   {"resourcecontext.yaml", &appsv1alpha1.ResourceContext{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			content, err := os.ReadFile(filepath.Join("testdata", tc.file))
			require.NoError(t, err)
			var want, got any
			require.NoError(t, yaml.Unmarshal(content, &want))
			require.NoError(t, yaml.UnmarshalStrict(content, tc.object), "a field that the types do not have")
			encoded, err := json.Marshal(tc.object)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(encoded, &got))
			if diff := cmp.Diff(prune(want), prune(got)); diff != "" {
				t.Errorf("changed (-manifest +encoded):\n%s", diff)
			}
		})
	}
}

// prune removes empty values, which the manifest and Go's encoding leave out differently.
func prune(value any) any {
	switch v := value.(type) {
	case map[string]any:
		pruned := map[string]any{}
		for key, item := range v {
			item = prune(item)
			if object, ok := item.(map[string]any); ok && len(object) == 0 && key != "byLabel" {
				continue
			}
			if item == nil || item == "" {
				continue
			}
			pruned[key] = item
		}
		return pruned
	case []any:
		pruned := make([]any, 0, len(v))
		for _, item := range v {
			pruned = append(pruned, prune(item))
		}
		return pruned
	}
	return value
}

func TestSchemeKnowsEveryKind(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, appsv1alpha1.AddToScheme(scheme))
	for _, kind := range []string{appsv1alpha1.CollaSetKind, appsv1alpha1.PodTransitionRuleKind, appsv1alpha1.ResourceContextKind} {
		require.True(t, scheme.Recognizes(appsv1alpha1.SchemeGroupVersion.WithKind(kind)), kind)
		require.True(t, scheme.Recognizes(appsv1alpha1.SchemeGroupVersion.WithKind(kind+"List")), kind+"List")
	}
	require.Equal(t, "collasets.apps.kusionstack.io", appsv1alpha1.Resource("collasets").String())
	require.Equal(t, "CollaSet.apps.kusionstack.io", appsv1alpha1.Kind("CollaSet").String())
}
