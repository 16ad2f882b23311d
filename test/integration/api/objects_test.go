package api

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// every reads the manifest that sets every field of a kind, without its status: "collaset", "operationjob",
// "podtransitionrule" or "resourcecontext".
func every(t *testing.T, kind string) (object *unstructured.Unstructured, status map[string]any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(projectRoot, "api", "apps", "v1alpha1", "testdata", kind+".yaml"))
	require.NoError(t, err)
	return parse(t, string(content))
}

// parse reads one manifest, and takes its status out (nil if it has none).
func parse(t *testing.T, manifest string) (object *unstructured.Unstructured, status map[string]any) {
	t.Helper()
	object = &unstructured.Unstructured{}
	converted, err := yaml.YAMLToJSON([]byte(manifest))
	require.NoError(t, err)
	require.NoError(t, object.UnmarshalJSON(converted)) // integers as int64, as the API server's answers have them
	status, _, err = unstructured.NestedMap(object.Object, "status")
	require.NoError(t, err)
	unstructured.RemoveNestedField(object.Object, "status")
	return object, status
}

// schemaOf is the schema of a kind, as deploy/crd has it.
func schemaOf(t *testing.T, kind string) *apiextensionsv1.JSONSchemaProps {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(projectRoot, "deploy", "crd", "apps.kusionstack.io_"+kind+"s.yaml"))
	require.NoError(t, err)
	crd := &apiextensionsv1.CustomResourceDefinition{}
	require.NoError(t, yaml.UnmarshalStrict(content, crd))
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// counted is a status with the zeros that its schema gives to counts that are not set.
func counted(t *testing.T, kind string, status map[string]any) map[string]any {
	t.Helper()
	status = maps.Clone(status)
	for name, property := range schemaOf(t, kind).Properties["status"].Properties {
		if _, isSet := status[name]; !isSet && property.Default != nil {
			require.JSONEq(t, "0", string(property.Default.Raw), name)
			status[name] = int64(0)
		}
	}
	return status
}

// newNamespace makes a namespace for one test; it goes with the API server.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "api-"}}
	require.NoError(t, cluster.Create(t.Context(), namespace))
	return namespace.Name
}

// fetch reads an object again.
func fetch(ctx context.Context, t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(object.GroupVersionKind())
	require.NoError(t, cluster.Get(ctx, client.ObjectKeyFromObject(object), found))
	return found
}
