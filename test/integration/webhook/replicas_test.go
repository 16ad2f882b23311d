package webhook

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// TestReplicasLeftOut hands spec.replicas over, in every way in which a manifest is written.
func TestReplicasLeftOut(t *testing.T) {
	s := start(t)
	folder := t.TempDir()
	const leftOut = ""
	// manifest is a file of a CollaSet with replicas as they are given.
	manifest := func(t *testing.T, name, replicas string) string {
		t.Helper()
		if replicas != leftOut {
			replicas = "replicas: " + replicas + ","
		}
		file := filepath.Join(folder, name+".yaml")
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil,
			`{apiVersion: apps.kusionstack.io/v1alpha1, kind: CollaSet, metadata: {name: %s, namespace: %s},
spec: {%s selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: "web:1"}]}}}}`, name, s.namespace, replicas), 0o600))
		return file
	}
	kubectl := func(args ...string) func(*testing.T, string, string) {
		return func(t *testing.T, name, replicas string) {
			t.Helper()
			_, err := s.cluster.Kubectl(t.Context(), append(args, "-f", manifest(t, name, replicas))...)
			require.NoError(t, err)
		}
	}
	sets := s.dynamic.Resource(collaSets).Namespace(s.namespace)
	patch := func(kind types.PatchType, body string) func(*testing.T, string, string) {
		return func(t *testing.T, name, _ string) {
			t.Helper()
			_, err := sets.Patch(t.Context(), name, kind, []byte(body), metav1.PatchOptions{})
			require.NoError(t, err)
		}
	}
	scale := func(to int32) func(*testing.T, string, string) {
		return func(t *testing.T, name, _ string) {
			t.Helper()
			content := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": map[string]any{"name": name, "namespace": s.namespace},
				"spec": map[string]any{"replicas": int64(to)},
			}}
			_, err := sets.Update(t.Context(), content, metav1.UpdateOptions{FieldManager: "kube-controller-manager"}, "scale")
			require.NoError(t, err)
		}
	}
	clientSide, serverSide, replace := kubectl("apply"), kubectl("apply", "--server-side"), kubectl("replace")
	pipeline := kubectl("apply", "--server-side", "--field-manager=pipeline", "--force-conflicts")

	// has checks spec.replicas.
	has := func(t *testing.T, name string, want int64) {
		t.Helper()
		set, err := sets.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		got, _, err := unstructured.NestedInt64(set.Object, "spec", "replicas")
		require.NoError(t, err)
		require.Equal(t, want, got, "%v", set.GetManagedFields())
	}

	t.Run("without the server it takes a step more", func(t *testing.T) {
		clientSide(t, "plain", "6")
		clientSide(t, "plain", leftOut)
		has(t, "plain", 0)

		clientSide(t, "client", "6")
		_, err := s.cluster.Kubectl(t.Context(), "apply", "set-last-applied", "-f", manifest(t, "client", leftOut))
		require.NoError(t, err)
		clientSide(t, "client", leftOut)
		has(t, "client", 6)

		serverSide(t, "server", "6")
		file := filepath.Join(folder, "second.yaml")
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil,
			"{apiVersion: apps.kusionstack.io/v1alpha1, kind: CollaSet, metadata: {name: server, namespace: %s}, spec: {replicas: 6}}", s.namespace), 0o600))
		_, err = s.cluster.Kubectl(t.Context(), "apply", "--server-side", "--field-manager=handover", "-f", file)
		require.NoError(t, err)
		serverSide(t, "server", leftOut)
		has(t, "server", 6)
	})
	s.run(t)

	type step struct {
		do       func(t *testing.T, name, replicas string)
		replicas string
		want     int64
	}
	for name, steps := range map[string][]step{
		"client-side":                {{clientSide, "6", 6}, {clientSide, leftOut, 6}, {clientSide, leftOut, 6}},
		"server-side":                {{serverSide, "6", 6}, {serverSide, leftOut, 6}, {serverSide, leftOut, 6}},
		"from-client-to-server-side": {{clientSide, "6", 6}, {serverSide, leftOut, 6}, {serverSide, leftOut, 6}},
		"by-another-manager":         {{pipeline, "6", 6}, {pipeline, leftOut, 6}},
		"client-side-after-an-autoscaler": {{clientSide, "6", 6}, {scale(9), "", 9}, {clientSide, leftOut, 9},
			{scale(4), "", 4}, {clientSide, leftOut, 4}},
		"server-side-after-an-autoscaler": {{serverSide, "6", 6}, {scale(9), "", 9}, {serverSide, leftOut, 9},
			{scale(4), "", 4}, {serverSide, leftOut, 4}},
		"server-side-then-scaled": {{serverSide, "6", 6}, {serverSide, leftOut, 6}, {scale(0), "", 0},
			{serverSide, leftOut, 0}},
		"client-side-zero":           {{clientSide, "6", 6}, {clientSide, "0", 0}},
		"server-side-zero":           {{serverSide, "6", 6}, {serverSide, "0", 0}},
		"client-side-zero-after-all": {{clientSide, "6", 6}, {clientSide, leftOut, 6}, {clientSide, "0", 0}},
		"server-side-zero-after-all": {{serverSide, "6", 6}, {serverSide, leftOut, 6}, {serverSide, "0", 0}},
		"client-side-then-patched": {{clientSide, "6", 6}, {clientSide, leftOut, 6},
			{patch(types.MergePatchType, `{"spec":{"replicas":0}}`), "", 0}},
		"server-side-then-patched": {{serverSide, "6", 6}, {serverSide, leftOut, 6},
			{patch(types.MergePatchType, `{"spec":{"replicas":0}}`), "", 0}},
		"two-appliers": {{serverSide, "6", 6}, {pipeline, "6", 6}, {serverSide, leftOut, 6},
			{pipeline, leftOut, 6}},
		"scaled-to-zero": {{clientSide, "6", 6}, {scale(0), "", 0}},
		"merge-patch-of-zero": {{serverSide, "6", 6},
			{patch(types.MergePatchType, `{"spec":{"replicas":0}}`), "", 0}},
		"merge-patch-of-null-is-a-zero": {{serverSide, "6", 6},
			{patch(types.MergePatchType, `{"spec":{"replicas":null}}`), "", 0}},
		"json-patch-of-a-removal-is-a-zero": {{serverSide, "6", 6},
			{patch(types.JSONPatchType, `[{"op":"remove","path":"/spec/replicas"}]`), "", 0}},
		"replaced-without-is-a-zero": {{clientSide, "6", 6}, {replace, leftOut, 0}},
		"replaced-with":              {{clientSide, "6", 6}, {replace, "0", 0}},
	} {
		t.Run(name, func(t *testing.T) {
			for i, step := range steps {
				step.do(t, name, step.replicas)
				t.Log("step", i)
				has(t, name, step.want)
			}
		})
	}

	t.Run("a warning tells of what stays, and of what goes", func(t *testing.T) {
		serverSide(t, "told", "6")
		body := `{"apiVersion":"apps.kusionstack.io/v1alpha1","kind":"CollaSet","metadata":{"name":"told"},"spec":{"selector":{"matchLabels":{"app":"web"}},` +
			`"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":"web:1"}]}}}}`
		_, err := sets.Patch(t.Context(), "told", types.ApplyPatchType, []byte(body),
			metav1.PatchOptions{FieldManager: "kubectl"})
		require.NoError(t, err)
		require.Contains(t, s.warnings.all(), "spec.replicas was left out and stays 6")
		patch(types.MergePatchType, `{"spec":{"replicas":null}}`)(t, "told", "")
		require.Contains(t, s.warnings.all(), "spec.replicas was 6 and is 0: all Pods go")
	})
}
