package v1alpha1_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
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
	for _, kind := range []string{appsv1alpha1.CollaSetKind, appsv1alpha1.PodTransitionRuleKind,
		appsv1alpha1.ResourceContextKind} {
		require.True(t, scheme.Recognizes(appsv1alpha1.SchemeGroupVersion.WithKind(kind)), kind)
		require.True(t, scheme.Recognizes(appsv1alpha1.SchemeGroupVersion.WithKind(kind+"List")), kind+"List")
	}
	require.Equal(t, "collasets.apps.kusionstack.io", appsv1alpha1.Resource("collasets").String())
	require.Equal(t, "CollaSet.apps.kusionstack.io", appsv1alpha1.Kind("CollaSet").String())
}

// TestSchemasDescribeWhatIsDecoded: a field that Go decodes and the schema does not describe is kept in a template whatever
// its type, and an object that cannot be decoded takes the list of its kind with it.
func TestSchemasDescribeWhatIsDecoded(t *testing.T) {
	for plural, spec := range map[string]any{
		"collasets": appsv1alpha1.CollaSetSpec{}, "podtransitionrules": appsv1alpha1.PodTransitionRuleSpec{},
		"resourcecontexts": appsv1alpha1.ResourceContextSpec{},
	} {
		content, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "crd", "apps.kusionstack.io_"+plural+".yaml"))
		require.NoError(t, err)
		crd := &apiextensionsv1.CustomResourceDefinition{}
		require.NoError(t, yaml.Unmarshal(content, crd))
		described(t, plural+": spec", reflect.TypeOf(spec), crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"])
	}
}

// numberOrText reports whether a schema without a type lets nothing through but numbers and texts.
func numberOrText(schema apiextensionsv1.JSONSchemaProps) bool {
	return schema.Type == "" && schema.Not != nil && len(schema.Not.Enum) == 2 &&
		ptr.Deref(schema.MinItems, 0) > ptr.Deref(schema.MaxItems, 0) &&
		ptr.Deref(schema.MinProperties, 0) > ptr.Deref(schema.MaxProperties, 0)
}

// described compares a type with its schema, all the way down.
func described(t *testing.T, path string, of reflect.Type, schema apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch of {
	case reflect.TypeFor[intstr.IntOrString]():
		require.Truef(t, schema.XIntOrString && schema.Minimum != nil && schema.Maximum != nil, "%s fits into 32 bits", path)
		return
	case reflect.TypeFor[resource.Quantity]():
		require.NotEmptyf(t, schema.Pattern, "%s has the pattern of quantities", path)
		require.Truef(t, schema.XIntOrString || numberOrText(schema), "%s is a number or a text", path)
		return
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		require.Equal(t, "string", schema.Type, path)
		require.Empty(t, schema.Format, "%s: beside the type, a format lets lists through", path)
		require.Contains(t, schema.AllOf, apiextensionsv1.JSONSchemaProps{Format: "date-time"}, path)
		return
	case reflect.TypeFor[metav1.FieldsV1]():
		require.Equal(t, "object", schema.Type, path)
		return
	}
	switch of.Kind() {
	case reflect.Struct:
		require.Equal(t, "object", schema.Type, path)
		for i := range of.NumField() {
			field := of.Field(i)
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			switch {
			case name == "-":
			case name == "" && (field.Anonymous || strings.Contains(options, "inline")):
				described(t, path, field.Type, schema)
			default:
				below, ok := schema.Properties[name]
				require.Truef(t, ok, "%s.%s is in the schema", path, name)
				described(t, path+"."+name, field.Type, below)
			}
		}
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Uint8 {
			require.Equal(t, "byte", schema.Format, path)
			return
		}
		require.Equal(t, "array", schema.Type, path)
		described(t, path+"[]", of.Elem(), *schema.Items.Schema)
	case reflect.Map:
		require.NotNil(t, schema.AdditionalProperties, path)
		described(t, path+"{}", of.Elem(), *schema.AdditionalProperties.Schema)
	case reflect.String:
		require.Equal(t, "string", schema.Type, path)
	case reflect.Bool:
		require.Equal(t, "boolean", schema.Type, path)
	case reflect.Int32:
		require.Equal(t, "integer", schema.Type, path)
		require.Equal(t, "int32", schema.Format, path)
	case reflect.Int, reflect.Int64:
		require.Equal(t, "integer", schema.Type, path)
	default:
		t.Errorf("%s is of a kind that this test does not know: %s", path, of)
	}
}
