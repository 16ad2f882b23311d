package bootstrap

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

type (
	sample struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              sampleSpec `json:"spec"`
	}
	sampleSpec struct {
		sampleInlined `json:",inline"`
		Replicas      *int32                `json:"replicas,omitempty"`
		Parts         []samplePart          `json:"parts,omitempty"`
		Selector      *metav1.LabelSelector `json:"selector,omitempty"`
		Hidden        string                `json:"-"`
	}
	sampleInlined struct {
		Paused bool `json:"paused,omitempty"`
	}
	samplePart struct {
		Name string `json:"name"`
		Size int    `json:"size"`
	}
)

func TestMissingFields(t *testing.T) {
	for name, tc := range map[string]struct {
		served string
		want   []string
	}{
		"a schema with all fields": {
			served: `{"spec":{"properties":{"paused":{},"replicas":{},"selector":{},"parts":{"items":{"properties":{"name":{},"size":{}}}}}}}`,
		},
		"fields of the spec, of what is inlined, and in a list": {
			served: `{"spec":{"properties":{"replicas":{},"selector":{},"parts":{"items":{"properties":{"name":{}}}}}}}`,
			want:   []string{"spec.parts.size", "spec.paused"},
		},
		"a newer schema has more, which is not ours to know": {
			served: `{"status":{},"spec":{"properties":{"paused":{},"replicas":{},"newer":{},"selector":{"properties":{}},"parts":{"items":{"properties":{"name":{},"size":{}}}}}}}`,
		},
		"something that is not described is kept as it is": {served: `{"spec":{"x-kubernetes-preserve-unknown-fields":true}}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := &crdSchema{}
			require.NoError(t, json.Unmarshal([]byte(`{"properties":`+tc.served+`}`), s))
			require.Equal(t, tc.want, missingFields(reflect.TypeFor[sample](), s))
		})
	}
}

func TestSchemaOf(t *testing.T) {
	gvk := schema.GroupVersionKind{Group: "example.io", Version: "v1", Kind: "Example"}
	document := []byte(
		`{"components":{"schemas":{"io.example.v1.ExampleList":{},"io.example.v1.Example":{"properties":{"spec":{}}}}}}`)
	found, err := schemaOf(document, gvk)
	require.NoError(t, err)
	require.Contains(t, found.Properties, "spec")
	found, err = schemaOf([]byte(`{"components":{}}`), gvk)
	require.NoError(t, err)
	require.Nil(t, found, "not published yet")
	_, err = schemaOf([]byte(`<html>`), gvk)
	require.Error(t, err)
}

// TestOurCRDsHaveAllFieldsOfOurTypes: else every program would complain about the CRDs of its own version.
func TestOurCRDsHaveAllFieldsOfOurTypes(t *testing.T) {
	for file, kind := range map[string]reflect.Type{
		"collasets":          reflect.TypeFor[appsv1alpha1.CollaSet](),
		"operationjobs":      reflect.TypeFor[appsv1alpha1.OperationJob](),
		"poddecorations":     reflect.TypeFor[appsv1alpha1.PodDecoration](),
		"podtransitionrules": reflect.TypeFor[appsv1alpha1.PodTransitionRule](),
		"resourcecontexts":   reflect.TypeFor[appsv1alpha1.ResourceContext](),
	} {
		content, err := os.ReadFile(filepath.Join("..", "..", "deploy", "crd", "apps.kusionstack.io_"+file+".yaml"))
		require.NoError(t, err)
		var crd struct {
			Spec struct {
				Versions []struct {
					Schema struct {
						OpenAPIV3Schema *crdSchema `json:"openAPIV3Schema"`
					} `json:"schema"`
				} `json:"versions"`
			} `json:"spec"`
		}
		require.NoError(t, yaml.Unmarshal(content, &crd))
		require.Len(t, crd.Spec.Versions, 1)
		served := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		require.NotEmpty(t, served.Properties["spec"].Properties)
		require.Empty(t, missingFields(kind, served), file)
		delete(served.Properties, "spec")
		require.Equal(t, []string{"spec"}, missingFields(kind, served), "the comparison looks at what is there")
	}
}
