package api

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// TestObjectsThatKuperatorStoredAreTakenOver applies objects recorded from a cluster of Kuperator v0.7.4.
func TestObjectsThatKuperatorStoredAreTakenOver(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(projectRoot, "test", "integration", "takeover", "testdata", "*.yaml"))
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			converted, err := yaml.YAMLToJSON(content)
			require.NoError(t, err)
			list := &unstructured.UnstructuredList{}
			require.NoError(t, list.UnmarshalJSON(converted))
			namespace, taken := newNamespace(t), 0
			for _, item := range list.Items {
				if item.GroupVersionKind().Group != appsv1alpha1.GroupName {
					continue
				}
				taken++
				takeOver(t, namespace, &item)
			}
			require.NotZero(t, taken)
		})
	}
}

func takeOver(t *testing.T, namespace string, recorded *unstructured.Unstructured) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": recorded.Object["spec"]}}
	object.SetGroupVersionKind(recorded.GroupVersionKind())
	object.SetName(recorded.GetName())
	object.SetNamespace(namespace)
	object.SetAnnotations(recorded.GetAnnotations())
	object = object.DeepCopy()
	require.NoError(t, cluster.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object.DeepCopy()),
		client.FieldOwner("test")))

	want := recorded.DeepCopy()
	if recorded.GetKind() == appsv1alpha1.CollaSetKind {
		if _, ok := want.Object["spec"].(map[string]any)["historyLimit"]; !ok {
			require.NoError(t, unstructured.SetNestedField(want.Object, int64(20), "spec", "historyLimit"))
		}
	}
	stored := fetch(t.Context(), t, object)
	if diff := cmp.Diff(want.Object["spec"], stored.Object["spec"]); diff != "" {
		t.Errorf("the spec of %s %s changed (-recorded +stored):\n%s", recorded.GetKind(), recorded.GetName(), diff)
	}
	if recorded.Object["status"] == nil {
		return
	}
	stored.Object["status"] = want.Object["status"]
	require.NoError(t, cluster.Status().Update(t.Context(), stored.DeepCopy()))
	status := counted(t, strings.ToLower(recorded.GetKind()), want.Object["status"].(map[string]any))
	if diff := cmp.Diff(status, fetch(t.Context(), t, object).Object["status"]); diff != "" {
		t.Errorf("the status of %s %s changed (-recorded +stored):\n%s", recorded.GetKind(), recorded.GetName(), diff)
	}
}

// TestObjectsMalformedBeforeCanStillBeDeleted stores objects under a schema that validates nothing, as Kuperator's did,
// and then changes their metadata and status under ours. What is wrong must be mended only when it is touched.
func TestObjectsMalformedBeforeCanStillBeDeleted(t *testing.T) {
	tests := map[string]struct {
		kind    string
		changes []change
	}{
		"a rule object of an unknown stage": {"podtransitionrule", []change{{"spec.rules.0.stage", "PreTrafficOff"}}},
		"a rule object with two rules of one name": {
			"podtransitionrule", []change{{"spec.rules.1.name", "available"}},
		},
		"a rule object without selector and with a negative share": {
			"podtransitionrule", []change{{"spec.selector", "-"}, {"spec.rules.0.availablePolicy.maxUnavailableValue", "-1"}},
		},
		"a CollaSet with a wrong selector": {
			"collaset", []change{{"spec.selector.matchLabels.tier", "front"}, {"spec.historyLimit", "-1"}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			object, _ := parse(t, plain[tc.kind])
			object.SetNamespace(newNamespace(t))
			object.SetFinalizers([]string{"example.com/hold"})
			valid := object.DeepCopy()
			valid.SetName("valid")
			for _, c := range tc.changes {
				set(t, object.Object, c.path, c.value)
			}
			restore := withoutValidation(t, tc.kind+"s.apps.kusionstack.io")
			require.Eventually(t, func() bool {
				return cluster.Create(t.Context(), object.DeepCopy()) == nil
			}, patience, 50*time.Millisecond, "the API server forgets the schema")
			restore()
			require.Eventually(t, func() bool {
				probe := object.DeepCopy()
				probe.SetName("probe")
				return apierrors.IsInvalid(cluster.Create(t.Context(), probe, client.DryRunAll))
			}, patience, 50*time.Millisecond, "the API server remembers the schema")

			stored := fetch(t.Context(), t, object)
			stored.Object["status"] = map[string]any{"observedGeneration": int64(1)}
			if err := cluster.Status().Update(t.Context(), stored); before(t, 33) && apierrors.IsInvalid(err) {
				t.Log("before 1.33 the API server validates the spec with each status") // docs/operations/compatibility.md
			} else {
				require.NoError(t, err, "status")
			}
			stored.SetLabels(map[string]string{"touched": "true"})
			require.NoError(t, cluster.Update(t.Context(), stored), "metadata")
			require.NoError(t, cluster.Delete(t.Context(), stored))
			stored = fetch(t.Context(), t, object)
			stored.SetFinalizers(nil)
			require.NoError(t, cluster.Update(t.Context(), stored), "finalizers")
			require.True(t, apierrors.IsNotFound(cluster.Get(t.Context(), client.ObjectKeyFromObject(object), stored)))
		})
	}
}

// withoutValidation replaces the schema of a CRD by one that takes anything, until restore is called.
func withoutValidation(t *testing.T, name string) (restore func()) {
	t.Helper()
	swap := func(schema *apiextensionsv1.CustomResourceValidation) (before *apiextensionsv1.CustomResourceValidation) {
		require.NoError(t, retry.RetryOnConflict(retry.DefaultRetry, func() error { // the API server writes status
			crd := &apiextensionsv1.CustomResourceDefinition{}
			if err := cluster.Get(t.Context(), client.ObjectKey{Name: name}, crd); err != nil {
				return err
			}
			before, crd.Spec.Versions[0].Schema = crd.Spec.Versions[0].Schema, schema
			return cluster.Update(t.Context(), crd)
		}))
		return before
	}
	anything := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
	strict := swap(&apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
		Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": anything, "status": anything},
	}})
	return func() { swap(strict) }
}
