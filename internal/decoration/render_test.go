package decoration_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
)

// object reads a JSON object.
func object(t testing.TB, text string) map[string]any {
	t.Helper()
	var o map[string]any
	require.NoError(t, kjson.UnmarshalCaseSensitivePreserveInts([]byte(text), &o), text)
	return o
}

// of is a decoration with a template.
func of(t testing.TB, name string, weight int32, template string) decoration.Decoration {
	t.Helper()
	data := fmt.Sprintf(`{"spec":{"template":%s,"weight":%d}}`, template, weight)
	parsed, weight, err := decoration.Parse([]byte(data))
	require.NoError(t, err)
	return decoration.Decoration{Name: name, Revision: name + "-1", Weight: weight, Template: parsed}
}

// render has a Pod decorated, and returns it without its marks.
func render(t testing.TB, pod string, decorations ...decoration.Decoration) (decorated string, refused []string) {
	t.Helper()
	before := object(t, pod)
	after, refusals, err := decoration.Render(before, decorations)
	require.NoError(t, err)
	require.Equal(t, object(t, pod), before, "the Pod stays as it is")
	for _, r := range refusals {
		refused = append(refused, r.Name+": "+r.Why)
	}
	metadata, is := after["metadata"].(map[string]any)
	if !is {
		metadata = map[string]any{}
	}
	for _, field := range []string{"labels", "annotations"} {
		values, _ := metadata[field].(map[string]any)
		for key := range values {
			if strings.HasPrefix(key, "poddecoration.kusionstack.io/") {
				delete(values, key)
			}
		}
		if len(values) == 0 {
			delete(metadata, field)
		}
	}
	if len(metadata) == 0 {
		delete(after, "metadata")
	}
	text, err := json.Marshal(after)
	require.NoError(t, err)
	return string(text), refused
}

const web = `{"spec":{"containers":[{"name":"web","image":"web:1"},{"name":"helper","image":"helper:1"}]}}`

// TestRender compares renderings with those that are stored.
func TestRender(t *testing.T) {
	text, err := os.ReadFile("testdata/render.yaml")
	require.NoError(t, err)
	var cases []struct {
		Name                string
		Pod, Template, Want json.RawMessage
	}
	require.NoError(t, yaml.UnmarshalStrict(text, &cases))
	for _, test := range cases {
		t.Run(test.Name, func(t *testing.T) {
			got, refused := render(t, string(test.Pod), of(t, "d", 0, string(test.Template)))
			assert.JSONEq(t, string(test.Want), got)
			assert.Empty(t, refused)
		})
	}
}

// TestD7 to TestD12 are the defects of Kuperator v0.7.4 in what it renders.
func TestD7AContainerReplacesThatOfItsName(t *testing.T) {
	got, refused := render(t, web, of(t, "low", 1, `{"containers":[{"name":"proxy","image":"low:1"}]}`),
		of(t, "high", 2, `{"containers":[{"name":"helper","image":"high:1"},{"name":"proxy","image":"high:1"}]}`))
	assert.Empty(t, refused)
	assert.JSONEq(t, `{"spec":{"containers":[{"name":"proxy","image":"high:1"},{"name":"web","image":"web:1"},
		{"name":"helper","image":"high:1"}]}}`, got)

	// A name that is a regular container here and an init container there cannot be both.
	for template, why := range map[string]string{
		`{"initContainers":[{"name":"web"}]}`: `d: init container "web" has the name of a container of the workload`,
		`{"initContainers":[{"name":"proxy"}]}`: `d: init container "proxy" has the name of a container of PodDecoration ` +
			`first`,
		`{"metadata":[{"labels":{"half":"done"}}],"containers":[{"name":"setup"}]}`: `d: container "setup" has the name of ` +
			`an init container, a container of the workload`,
	} {
		pod := `{"spec":{"initContainers":[{"name":"setup"}],"containers":[{"name":"web"}]}}`
		first := of(t, "first", -1, `{"containers":[{"name":"proxy"}]}`)
		got, refused := render(t, pod, first, of(t, "d", 0, template), of(t, "last", 1, `{"runtimeClassName":"kata"}`))
		assert.Equal(t, []string{why}, refused)
		assert.JSONEq(t, `{"spec":{"initContainers":[{"name":"setup"}],"containers":[{"name":"proxy"},{"name":"web"}],
			"runtimeClassName":"kata"}}`, got, "nothing of what is refused")
	}
}

func TestD8PrimaryContainersAreTheWorkloadsOwn(t *testing.T) {
	for policy, want := range map[string]string{"First": "web", "Last": "helper", "All": "web helper", "ByName": ""} {
		got, _ := render(t, web,
			of(t, "sidecars", 0, `{"containers":[{"name":"front"},{"name":"back","injectPolicy":"AfterPrimaryContainer"}]}`),
			of(t, "images", 1, `{"primaryContainers":[{"targetPolicy":"`+policy+`","name":"front","image":"changed"}]}`))
		var changed []string
		list, _ := object(t, got)["spec"].(map[string]any)["containers"].([]any)
		require.Len(t, list, 4)
		for _, c := range list {
			if c, _ := c.(map[string]any); c["image"] == "changed" {
				changed = append(changed, fmt.Sprint(c["name"]))
			}
		}
		assert.Equal(t, want, strings.Join(changed, " "), policy)
	}
}

func TestD9MountsAreMergedByPath(t *testing.T) {
	got, _ := render(t, `{"spec":{"containers":[{"name":"web","volumeMounts":[{"name":"data","mountPath":"/a"},
		{"name":"data","mountPath":"/b"}]}]}}`,
		of(t, "d", 0, `{"primaryContainers":[{"volumeMounts":[{"name":"data","mountPath":"/c"},
			{"name":"other","mountPath":"/b"}]}]}`))
	assert.JSONEq(t, `{"spec":{"containers":[{"name":"web","volumeMounts":[{"name":"data","mountPath":"/a"},
		{"name":"other","mountPath":"/b"},{"name":"data","mountPath":"/c"}]}]}}`, got)
}

func TestD10TolerationsAreMergedByKeyEffectAndOperator(t *testing.T) {
	got, _ := render(t, `{"spec":{"tolerations":[{"key":"k","effect":"NoSchedule","value":"1"},
		{"key":"k","effect":"NoExecute","operator":"Exists"}]}}`,
		of(t, "d", 0, `{"tolerations":[{"key":"z"},{"key":"k","effect":"NoSchedule","operator":"Equal","value":"2"},
			{"key":"k","effect":"NoSchedule","operator":"Exists"},{"key":"a"}]}`))
	assert.JSONEq(t, `{"spec":{"tolerations":[{"key":"k","effect":"NoSchedule","operator":"Equal","value":"2"},
		{"key":"k","effect":"NoExecute","operator":"Exists"},{"key":"z"},
		{"key":"k","effect":"NoSchedule","operator":"Exists"},{"key":"a"}]}}`, got)
}

func TestD12FieldsOfLaterVersionsStay(t *testing.T) {
	got, _ := render(t, `{"apiVersion":"v1","later":{"x":1},"spec":{"containers":[{"name":"web","later":9007199254740993}],
		"later":[1]}}`, of(t, "d", 0, `{"containers":[{"name":"proxy","later":{"y":9007199254740993}}],
		"volumes":[{"name":"v","later":{}}]}`))
	assert.JSONEq(t, `{"apiVersion":"v1","later":{"x":1},"spec":{"containers":[
		{"name":"proxy","later":{"y":9007199254740993}},{"name":"web","later":9007199254740993}],"later":[1],
		"volumes":[{"name":"v","later":{}}]}}`, got)
	assert.Contains(t, got, "9007199254740993", "numbers keep all their digits")
}

func TestWeightAndNameAreTheOrder(t *testing.T) {
	set := func(value string) string { return `{"metadata":[{"labels":{"who":"` + value + `"}}]}` }
	overwrite := func(value string) string {
		return `{"metadata":[{"patchPolicy":"Overwrite","labels":{"who":"` + value + `"}}]}`
	}
	got, _ := render(t, `{"spec":{}}`, of(t, "a", 2, set("a")), of(t, "c", 1, set("c")), of(t, "b", 1, set("b")))
	assert.JSONEq(t, `{"metadata":{"labels":{"who":"b"}},"spec":{}}`, got)
	got, _ = render(t, `{"spec":{}}`, of(t, "a", 2, overwrite("a")), of(t, "c", 1, overwrite("c")))
	assert.JSONEq(t, `{"metadata":{"labels":{"who":"a"}},"spec":{}}`, got)
}

func TestMarks(t *testing.T) {
	pod := object(t, web)
	got, _, err := decoration.Render(pod, []decoration.Decoration{of(t, "b", 1, `{}`), of(t, "a", 2, `{}`)})
	require.NoError(t, err)
	metadata, _ := got["metadata"].(map[string]any)
	assert.Equal(t, map[string]any{"labels": map[string]any{"poddecoration.kusionstack.io/pd-a": "a-1",
		"poddecoration.kusionstack.io/pd-b": "b-1"},
		"annotations": map[string]any{"poddecoration.kusionstack.io/changes": `{"labels":{}}`,
			"poddecoration.kusionstack.io/revisions": `[{"name":"b","revision":"b-1"},{"name":"a","revision":"a-1"}]`},
	}, metadata)

	_, _, err = decoration.Render(got, []decoration.Decoration{of(t, "b", 1, `{}`)})
	require.ErrorIs(t, err, decoration.ErrDecorated)

	none := object(t, `{"metadata":{"annotations":{"poddecoration.kusionstack.io/revisions":"[]"}},"spec":{}}`)
	got, _, err = decoration.Render(none, []decoration.Decoration{of(t, "b", 1, `{}`)})
	require.NoError(t, err)
	assert.Equal(t, []decoration.Mark{{Name: "b", Revision: "b-1"}}, marksOf(got))
	a, b := decoration.Mark{Name: "a", Revision: "1"}, decoration.Mark{Name: "b", Revision: "2"}
	assert.Equal(t, decoration.Key([]decoration.Mark{a, b}), decoration.Key([]decoration.Mark{b, a}))
	assert.NotEqual(t, decoration.Key([]decoration.Mark{a}), decoration.Key([]decoration.Mark{{Name: "a", Revision: "2"}}))
}

func marksOf(pod map[string]any) []decoration.Mark {
	metadata, _ := pod["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	text, _ := annotations[appsv1alpha1.PodDecorationRevisionsAnnotation].(string)
	return decoration.MarksOf(map[string]string{appsv1alpha1.PodDecorationRevisionsAnnotation: text})
}

func TestTemplatesThatCannotBeRendered(t *testing.T) {
	for _, test := range []struct{ template, why string }{
		{`{"metadata":[{"patchPolicy":"Keep"}]}`,
			`metadata[0].patchPolicy: "Keep" is none of Retain, Overwrite and MergePatchJson`},
		{`{"metadata":[{"patchPolicy":"MergePatchJson","labels":{"a":"1"}}]}`,
			`metadata[0].labels: MergePatchJson merges annotations only; set labels in an entry of their own`},
		{`{"metadata":[{"patchPolicy":"MergePatchJson","annotations":{"a":"{"}}]}`,
			`metadata[0].annotations[a]: MergePatchJson needs JSON`},
		{`{"primaryContainers":[{"targetPolicy":"ByName"}]}`,
			`primaryContainers[0].name: ByName needs the name of a container`},
		{`{"primaryContainers":[{"targetPolicy":"Second"}]}`,
			`primaryContainers[0].targetPolicy: "Second" is none of All, ByName, First and Last`},
		{`{"primaryContainers":[{"volumeMounts":[{"name":"x"}]}]}`,
			`primaryContainers[0].volumeMounts[0].mountPath is missing`},
		{`{"primaryContainers":[{"env":[{"value":"x"}]}]}`,
			`primaryContainers[0].env[0].name is missing`},
		{`{"containers":[{"image":"x"}]}`,
			`containers[0].name is missing`},
		{`{"containers":[{"name":"x","injectPolicy":"First"}]}`,
			`containers[0].injectPolicy: "First" is none of BeforePrimaryContainer and AfterPrimaryContainer`},
		{`{"containers":[{"name":"x"}],"initContainers":[{"name":"x"}]}`,
			`containers[0].name: there are two containers "x"`},
		{`{"volumes":[{}]}`,
			`volumes[0].name is missing`},
		{`[]`,
			`json: cannot unmarshal`},
		{`null`,
			`the template is missing`},
	} {
		_, _, err := decoration.Parse([]byte(`{"spec":{"template":` + test.template + `}}`))
		require.ErrorContains(t, err, test.why, test.template)
	}
}

func TestAnAnnotationThatIsNotJSONCannotBeMergedInto(t *testing.T) {
	got, refused := render(t, `{"metadata":{"annotations":{"a":"text"}},"spec":{}}`,
		of(t, "d", 0, `{"metadata":[{"patchPolicy":"MergePatchJson","annotations":{"a":"{}"}}]}`))
	assert.Equal(t, []string{"d: annotation a of the Pod is not JSON, so nothing can be merged into it"}, refused)
	assert.JSONEq(t, `{"metadata":{"annotations":{"a":"text"}},"spec":{}}`, got)
}

// templates are decorations that touch each field, with names that some share.
var templates = []string{
	`{"metadata":[{"labels":{"a":"1","b":"2"}},{"patchPolicy":"Overwrite","annotations":{"a":"1"}}]}`,
	`{"metadata":[{"patchPolicy":"MergePatchJson","annotations":{"j":"{\"x\":{\"y\":1}}"}}]}`,
	`{"containers":[{"name":"proxy","image":"p:1"},{"name":"web","injectPolicy":"AfterPrimaryContainer"}]}`,
	`{"containers":[{"name":"logs"},{"name":"proxy","image":"p:2"}],"volumes":[{"name":"v","emptyDir":{}}]}`,
	`{"initContainers":[{"name":"proxy"},{"name":"setup"}]}`,
	`{"primaryContainers":[{"targetPolicy":"First","env":[{"name":"A","value":"1"}]},{"image":"all:1"}]}`,
	`{"primaryContainers":[{"targetPolicy":"Last","volumeMounts":[{"name":"v","mountPath":"/v"}]}]}`,
	`{"tolerations":[{"key":"k"},{"key":"k","effect":"NoExecute"}],"runtimeClassName":"kata"}`,
	`{"affinity":{"nodeSelectorTerms":[{"matchFields":[]}]}}`,
	`{"affinity":{"overrideAffinity":{"podAffinity":{}}}}`,
}

// FuzzRender shows of any Pod: rendering twice is rendering once, the order of the list does not matter, the patch
// makes the decorated Pod, and no field changes that a decoration does not name.
func FuzzRender(f *testing.F) {
	f.Add(web, uint64(1), uint16(0xffff))
	f.Add(`{"metadata":{"name":"p","labels":{"a":"0"},"annotations":{"j":"{\"x\":1}"}},"spec":{"initContainers":[
		{"name":"setup"}],"containers":[{"name":"web","volumeMounts":[{"name":"v","mountPath":"/v"}]},{"name":"logs"}],
		"volumes":[{"name":"v"}],"tolerations":[{"key":"k"}],"affinity":{},"later":{}},"status":{}}`,
		uint64(2), uint16(0x3ff))
	for i := range templates {
		f.Add(`{"spec":{"containers":[{"name":"web"},{"name":"proxy"}],"nodeName":"n"}}`, uint64(i), uint16(1<<i))
	}
	f.Fuzz(func(t *testing.T, text string, seed uint64, which uint16) {
		var pod map[string]any
		if kjson.UnmarshalCaseSensitivePreserveInts([]byte(text), &pod) != nil {
			t.Skip("no object")
		}
		if _, is := pod["spec"].(map[string]any); !is {
			t.Skip("no Pod")
		}
		var decorations []decoration.Decoration
		for i := range templates {
			if which&(1<<i) != 0 {
				decorations = append(decorations, of(t, fmt.Sprintf("d%d", i), int32(i%3), templates[i]))
			}
		}
		decorated, refused, err := decoration.Render(pod, decorations)
		if err != nil {
			require.ErrorIs(t, err, decoration.ErrDecorated)
			return
		}
		shuffled := slices.Clone(decorations)
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(shuffled), func(i, j int) {
			shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
		})
		again, _, err := decoration.Render(pod, shuffled)
		require.NoError(t, err)
		require.Equal(t, decorated, again, "in another order")

		isRefused := func(d decoration.Decoration) bool {
			return slices.ContainsFunc(refused, func(r decoration.Refusal) bool { return r.Name == d.Name })
		}
		taken := slices.DeleteFunc(slices.Clone(decorations), isRefused)
		twice, _, err := decoration.Render(decorated, decorations)
		require.NoError(t, err)
		require.Equal(t, decorated, twice, "rendered twice")
		requirePatch(t, pod, decorated)
		requireUntouched(t, pod, decorated, taken)
		requireUndone(t, pod, decorated, taken)
	})
}

// requireUndone checks that the Pod tells what its labels and init containers were, and which annotations were there.
func requireUndone(t *testing.T, pod, decorated map[string]any, taken []decoration.Decoration) {
	t.Helper()
	labels, err := stringsIn(pod, "labels")
	annotations, otherErr := stringsIn(pod, "annotations")
	initContainers, _, isList := unstructured.NestedSlice(pod, "spec", "initContainers")
	isMarked := func(key string) bool { return strings.HasPrefix(key, "poddecoration.kusionstack.io/") }
	if err != nil || otherErr != nil || isList != nil ||
		slices.ContainsFunc(slices.Collect(maps.Keys(labels)), isMarked) ||
		slices.ContainsFunc(slices.Collect(maps.Keys(annotations)), isMarked) {
		return // such a Pod is not stored, or has marks of others
	}
	_, after, _, err := decoration.RenderBoth(decorated, taken, nil)
	require.NoError(t, err)
	afterLabels, afterAnnotations := metadataOf(t, after)
	require.Equal(t, labels, afterLabels)
	for key := range afterAnnotations {
		if key != appsv1alpha1.PodDecorationRevisionsAnnotation {
			require.Contains(t, annotations, key)
		}
	}
	afterInitContainers, _, err := unstructured.NestedSlice(after, "spec", "initContainers")
	require.NoError(t, err)
	if len(initContainers)+len(afterInitContainers) > 0 {
		require.Equal(t, initContainers, afterInitContainers)
	}
}

// stringsIn are the strings of a field of metadata.
func stringsIn(pod map[string]any, field string) (map[string]string, error) {
	values, _, err := unstructured.NestedStringMap(pod, "metadata", field)
	if values == nil {
		values = map[string]string{}
	}
	return values, err
}

// requirePatch checks that the patch makes the decorated Pod.
func requirePatch(t *testing.T, pod, decorated map[string]any) {
	t.Helper()
	encode := func(value any) []byte {
		text, err := json.Marshal(value)
		require.NoError(t, err)
		return text
	}
	patch := decoration.Patch(pod, decorated)
	if len(patch) == 0 {
		require.JSONEq(t, string(encode(decorated)), string(encode(pod)))
		return
	}
	decoded, err := jsonpatch.DecodePatch(encode(patch))
	require.NoError(t, err)
	got, err := decoded.Apply(encode(pod))
	require.NoError(t, err)
	require.JSONEq(t, string(encode(decorated)), string(got))
}

// requireUntouched checks that only fields have changed that a decoration names.
func requireUntouched(t *testing.T, pod, decorated map[string]any, taken []decoration.Decoration) {
	t.Helper()
	named := map[string]bool{"metadata": true} // it has what the Pod has and cannot have
	for _, d := range taken {
		for field, is := range map[string]bool{
			"containers":     len(d.Template.Containers)+len(d.Template.PrimaryContainers) > 0,
			"initContainers": len(d.Template.InitContainers) > 0, "volumes": len(d.Template.Volumes) > 0,
			"tolerations": len(d.Template.Tolerations) > 0, "affinity": d.Template.Affinity != nil,
			"runtimeClassName": d.Template.RuntimeClassName != nil,
		} {
			named[field] = named[field] || is
		}
	}
	same := func(before, after map[string]any) {
		for _, o := range []map[string]any{before, after} {
			for field := range o {
				if !named[field] && field != "spec" {
					require.Equal(t, before[field], after[field], field)
				}
			}
		}
	}
	same(pod, decorated)
	before, _ := pod["spec"].(map[string]any)
	after, _ := decorated["spec"].(map[string]any)
	same(before, after)
}

func TestWhatAPodHasAndIsToHave(t *testing.T) {
	one, other := `[{"name":"a","revision":"a-1"}]`, `[{"name":"b","revision":"b-1"}]`
	why := `[{"name":"a","revision":"a-1","why":"so"}]`
	twice := `[{"name":"a","revision":"1"},{"name":"a","revision":"2"}]`
	for name, test := range map[string]struct{ has, refused, wanted, made, desired string }{
		"nothing":                {},
		"what it has":            {has: one, made: one, desired: one},
		"another one":            {has: one, wanted: other, made: one, desired: other},
		"none any more":          {has: one, wanted: `[]`, made: one},
		"one that is refused":    {refused: why, has: `[]`, wanted: one, made: one, desired: one},
		"what is no list":        {has: one, wanted: `{`, made: one, desired: one},
		"what names nothing":     {has: one, wanted: `[{}]`, made: one, desired: one},
		"one name with two ends": {has: one, wanted: twice, made: one, desired: one},
	} {
		t.Run(name, func(t *testing.T) {
			made, desired := decoration.Keys(map[string]string{
				appsv1alpha1.PodDecorationRevisionsAnnotation: test.has,
				appsv1alpha1.PodDecorationRefusedAnnotation:   test.refused,
				appsv1alpha1.PodDecorationDesiredAnnotation:   test.wanted,
			})
			assert.Equal(t, test.made, made)
			assert.Equal(t, test.desired, desired)
		})
	}
}
