package revision_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/revision"
)

// recorded are objects as Kuperator v0.7.4 left them, by recording.
func recorded(t *testing.T, kind string) map[string][]unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob("../../test/integration/takeover/testdata/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 3)
	out := map[string][]unstructured.Unstructured{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		raw, err := yaml.YAMLToJSON(text)
		require.NoError(t, err)
		list := &unstructured.UnstructuredList{}
		require.NoError(t, list.UnmarshalJSON(raw))
		for _, object := range list.Items {
			if object.GetKind() == kind {
				out[filepath.Base(file)] = append(out[filepath.Base(file)], object)
			}
		}
		require.NotEmpty(t, out[filepath.Base(file)], kind)
	}
	return out
}

// bytesOf is the data of a recorded revision as it was stored: Kuperator sorts the keys at every level, as Go does.
func bytesOf(t *testing.T, cr *unstructured.Unstructured) []byte {
	t.Helper()
	data, err := json.Marshal(cr.Object["data"])
	require.NoError(t, err)
	return data
}

func contentOf(t *testing.T, cr *unstructured.Unstructured) *revision.Data {
	t.Helper()
	content, err := revision.Parse(bytesOf(t, cr))
	require.NoError(t, err)
	return content
}

func ownerOf(t *testing.T, cr *unstructured.Unstructured) string {
	t.Helper()
	require.Len(t, cr.GetOwnerReferences(), 1)
	return cr.GetOwnerReferences()[0].Name
}

// TestRecordedSpecsRenderToTheRecordedBytes: were it otherwise, taking over would make a revision, and with it a
// rollout.
func TestRecordedSpecsRenderToTheRecordedBytes(t *testing.T) {
	revisions := recorded(t, "ControllerRevision")
	for file, sets := range recorded(t, "CollaSet") {
		for _, set := range sets {
			t.Run(file+" "+set.GetName(), func(t *testing.T) {
				spec, _, err := unstructured.NestedMap(set.Object, "spec")
				require.NoError(t, err)
				updated, _, err := unstructured.NestedString(set.Object, "status", "updatedRevision")
				require.NoError(t, err)
				data, err := revision.Render(spec)
				require.NoError(t, err)
				rendered, err := revision.Parse(data)
				require.NoError(t, err)
				of := 0
				for _, cr := range revisions[file] {
					if ownerOf(t, &cr) != set.GetName() {
						continue
					}
					of++
					if cr.GetName() == updated {
						assert.Empty(t, cmp.Diff(string(bytesOf(t, &cr)), string(data)), "byte for byte")
						assert.Equal(t, updated, revision.Name(set.GetName(), revision.Hash(data, 0)))
					}
					assert.Equal(t, cr.GetName() == updated, contentOf(t, &cr).Same(rendered),
						"the spec means %s and no other", updated)
				}
				assert.Positive(t, of)
			})
		}
	}
}

// TestRecordedRevisionsHaveOurNamesAndHashes covers revisions that no spec of today means as well.
func TestRecordedRevisionsHaveOurNamesAndHashes(t *testing.T) {
	for file, revisions := range recorded(t, "ControllerRevision") {
		for _, cr := range revisions {
			t.Run(file+" "+cr.GetName(), func(t *testing.T) {
				labels := cr.GetLabels()
				collisions, err := strconv.Atoi(labels[appsv1alpha1.RevisionCollisionLabel])
				require.NoError(t, err)
				hash := revision.Hash(bytesOf(t, &cr), int32(collisions))
				assert.Equal(t, labels[appsv1alpha1.RevisionHashLabel], hash)
				assert.Equal(t, cr.GetName(), revision.Name(ownerOf(t, &cr), hash))
			})
		}
	}
}

// TestStoredDifferentlyMeansTheSame: what the API server, its defaults or a client writes in another way makes no
// revision, although bytes and hash differ.
func TestStoredDifferentlyMeansTheSame(t *testing.T) {
	var web *unstructured.Unstructured
	for _, set := range recorded(t, "CollaSet")["1-at-rest.yaml"] {
		if set.GetName() == "web" {
			web = &set
		}
	}
	require.NotNil(t, web)
	raw, err := json.Marshal(web.Object["spec"])
	require.NoError(t, err)
	for name, tc := range map[string]struct{ stored, written string }{
		"a quantity of another form":        {`"memory":"32Mi"`, `"memory":"32768Ki"`},
		"a null timestamp that is left out": {`"creationTimestamp":null,`, ``},
		"empty resources that are left out": {`,"resources":{}`, ``},
		"the protocol that is the default":  {`"containerPort":8080,`, `"containerPort":8080,"protocol":"TCP",`},
	} {
		t.Run(name, func(t *testing.T) {
			text := string(raw)
			require.Contains(t, text, tc.stored)
			again := strings.ReplaceAll(text, tc.stored, tc.written)
			want, err := revision.Render(spec(t, text))
			require.NoError(t, err)
			got, err := revision.Render(spec(t, again))
			require.NoError(t, err)
			before, err := revision.Parse(want)
			require.NoError(t, err)
			after, err := revision.Parse(got)
			require.NoError(t, err)
			assert.True(t, before.Same(after))
			assert.True(t, after.Same(before))
		})
	}
}

// TestRecordedRolloutsAreOfTheKindThatKuperatorMadeThem: the image went in place, the variable could not.
func TestRecordedRolloutsAreOfTheKindThatKuperatorMadeThem(t *testing.T) {
	contents := map[string]*revision.Data{}
	for _, revisions := range recorded(t, "ControllerRevision") {
		for _, cr := range revisions {
			contents[cr.GetName()] = contentOf(t, &cr)
		}
	}
	first, second, third := contents["web-6fb8c855f6"], contents["web-7966fcb9b5"], contents["web-746ddfb5f4"]
	image := revision.Explain(first, second, revision.Capabilities{})
	assert.True(t, image.InPlace())
	assert.Equal(t, map[string]string{"app": "nginx:1.25.2"}, image.Images)
	assert.Equal(t, []string{"template.spec.containers[app].env"},
		revision.Explain(second, third, revision.Capabilities{}).Forcing)
	assert.True(t, revision.Explain(contents["held-ccbd85d8"], contents["held-cbc55fd9f"],
		revision.Capabilities{}).InPlace())
}
