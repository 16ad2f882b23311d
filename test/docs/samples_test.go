package docs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/testkit/pages"
)

// Notes on blocks of YAML. Without one, a block holds whole objects, which are applied.
const (
	// noteFragment, "fragment=<Kind>" or "fragment=<Kind>:<path>", is a part of an object: the block is put at the path of
	// a plain object of that kind, which is applied.
	noteFragment = "fragment="
	// noteKustomization is a kustomization.yaml, or several, each of which is rendered.
	noteKustomization = "kustomization"
	// noteForeign is what this API server does not know: another program's configuration, or an object of its kinds.
	noteForeign = "foreign"
)

// plainObjects are what fragments are put into, by kind.
var plainObjects = map[string]string{
	"CollaSet": `
apiVersion: apps.kusionstack.io/v1alpha1
kind: CollaSet
metadata: {name: plain}
spec:
  selector: {matchLabels: {app: plain}}
  template:
    metadata: {labels: {app: plain}}
    spec:
      containers: [{name: web, image: "nginx:1.28"}]
`,
	"PodTransitionRule": `
apiVersion: apps.kusionstack.io/v1alpha1
kind: PodTransitionRule
metadata: {name: plain}
spec:
  selector: {matchLabels: {app: plain}}
`,
}

const sampleNamespace = "samples"

func TestSamplesAreAccepted(t *testing.T) {
	w := everything(t)
	w.namespace(t, sampleNamespace)
	counts := map[string]int{}
	for path, content := range manifests(t) {
		counts["files"]++
		t.Run(path, func(t *testing.T) { w.accepts(t, content) })
	}
	for _, page := range allPages(t) {
		for _, b := range page.Blocks {
			if b.Language != "yaml" && b.Language != "yml" {
				continue
			}
			what, _, _ := strings.Cut(b.Note, "=")
			if filepath.Ext(b.Note) != "" {
				what = "quoted" // from a file, as internal/testkit/archtest checks
			}
			counts[what]++
			t.Run(fmt.Sprintf("%s:%d", page.Path, b.Line), func(t *testing.T) { w.tryBlock(t, b) })
		}
	}
	t.Logf("files: %d; blocks: %d of whole objects, %d quoted from files, %d fragments, %d kustomizations, %d foreign",
		counts["files"], counts[""], counts["quoted"], counts["fragment"], counts[noteKustomization], counts[noteForeign])
	require.Greater(t, counts["files"]+counts[""], 5)
	require.Greater(t, counts["fragment"], 1)
}

func (w *world) tryBlock(t *testing.T, b pages.Block) {
	switch {
	case b.Note == "", filepath.Ext(b.Note) != "":
		w.accepts(t, b.Text)
	case strings.HasPrefix(b.Note, noteFragment):
		w.accepts(t, completed(t, strings.TrimPrefix(b.Note, noteFragment), b.Text))
	case b.Note == noteKustomization:
		for _, kustomization := range strings.Split(b.Text, "\n---\n") {
			w.renders(t, kustomization)
		}
	case b.Note == noteForeign:
		_, err := objectsOf(b.Text)
		require.NoError(t, err, "it is not even YAML")
	default:
		t.Fatalf("the note %q says nothing to this test: docs/contributing/pages.md lists those that do", b.Note)
	}
}

// accepts applies objects, in a dry run, as a careful user would: unknown fields are errors, and so are warnings.
func (w *world) accepts(t *testing.T, manifest string) {
	t.Helper()
	objects, err := objectsOf(manifest)
	require.NoError(t, err)
	for _, content := range objects {
		obj := &unstructured.Unstructured{Object: content}
		require.NotEmpty(t, obj.GetKind(),
			"this is no Kubernetes object: give the block a note, see docs/contributing/pages.md")
		namespaced, err := w.client.IsObjectNamespaced(obj)
		require.NoError(t, err, "the API server does not know the kind: is the block foreign?")
		if namespaced { // also where the page names one, which another test may want to make itself
			obj.SetNamespace(sampleNamespace)
		}
		w.warnings.take()
		err = w.dryRun(t, obj)
		require.NoErrorf(t, err, "%s %s", obj.GetKind(), obj.GetName())
		require.Emptyf(t, w.warnings.take(), "warnings about %s %s", obj.GetKind(), obj.GetName())
	}
}

// renders runs kustomize over a kustomization.yaml that lies in the repository's root, and returns the manifests.
func (w *world) renders(t *testing.T, kustomization string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600))
	require.NoError(t, os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(filepath.Join(root, "deploy"))))
	out, err := w.Kubectl(t.Context(), "kustomize", dir)
	require.NoError(t, err)
	require.Contains(t, out, "kind: ")
	return out
}

// TestTheBuiltInAdaptersCanBeLeftOut renders what docs/sdk/import.md shows for those who run adapters of their own.
func TestTheBuiltInAdaptersCanBeLeftOut(t *testing.T) {
	w := everything(t)
	all := allPages(t)
	i := slices.IndexFunc(all, func(p pages.Page) bool { return p.Path == "docs/sdk/import.md" })
	require.GreaterOrEqual(t, i, 0)
	rendered := 0
	for _, b := range all[i].Blocks {
		if b.Note != noteKustomization {
			continue
		}
		rendered++
		manifests := w.renders(t, b.Text)
		require.Contains(t, manifests, "app.kubernetes.io/name: collaset-controller\n")
		require.NotContains(t, manifests, "app.kubernetes.io/name: resourceconsist-controller\n")
	}
	require.Equal(t, 1, rendered)
}

// objectsOf splits YAML into its documents.
func objectsOf(manifest string) ([]map[string]any, error) {
	var objects []map[string]any
	for _, document := range strings.Split("\n"+manifest, "\n---") {
		content := map[string]any{}
		if err := yaml.UnmarshalStrict([]byte(document), &content); err != nil {
			return nil, err
		}
		if len(content) > 0 {
			objects = append(objects, content)
		}
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("there is no object in it")
	}
	return objects, nil
}

// completed is the plain object of a kind with a fragment in its place; where is "<Kind>" or "<Kind>:<path>".
func completed(t *testing.T, where, fragment string) string {
	t.Helper()
	kind, path, _ := strings.Cut(where, ":")
	require.Contains(t, slices.Collect(maps.Keys(plainObjects)), kind,
		"there is no plain object of this kind to put the fragment into")
	object, part := map[string]any{}, map[string]any{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(plainObjects[kind]), &object))
	require.NoError(t, yaml.UnmarshalStrict([]byte(fragment), &part))
	if path != "" {
		for _, field := range slices.Backward(strings.Split(path, ".")) {
			part = map[string]any{field: part}
		}
	}
	merge(object, part)
	out, err := yaml.Marshal(object)
	require.NoError(t, err)
	return string(out)
}

// merge puts what part has into object: maps are merged, everything else replaced.
func merge(object, part map[string]any) {
	for key, value := range part {
		into, isMap := object[key].(map[string]any)
		from, both := value.(map[string]any)
		if isMap && both {
			merge(into, from)
			continue
		}
		object[key] = value
	}
}

func TestASampleCanBeRefused(t *testing.T) {
	_, err := objectsOf("a: b\na: c\n")
	require.Error(t, err)
	_, err = objectsOf("---\n")
	require.Error(t, err)
	got := completed(t, "CollaSet:spec.scaleStrategy", "context: shop\n")
	require.Contains(t, got, "scaleStrategy:\n    context: shop\n  selector:")

	w := everything(t)
	w.namespace(t, sampleNamespace)
	for name, fragment := range map[string]string{"an unknown field": "paussed: true", "a wrong value": "replicas: -1",
		"a selector that matches nothing": "selector: {matchLabels: {app: other}}"} {
		t.Run(name, func(t *testing.T) {
			objects, err := objectsOf(completed(t, "CollaSet:spec", fragment))
			require.NoError(t, err)
			obj := &unstructured.Unstructured{Object: objects[0]}
			obj.SetNamespace(sampleNamespace)
			require.Error(t, w.dryRun(t, obj))
		})
	}
}

// dryRun applies an object without keeping it.
func (w *world) dryRun(t *testing.T, obj client.Object) error {
	t.Helper()
	apply := client.Apply //nolint:staticcheck // apply configurations need types that are known beforehand
	return w.client.Patch(t.Context(), obj, apply, client.DryRunAll, client.ForceOwnership, client.FieldOwner("docs"),
		client.FieldValidation("Strict"))
}
