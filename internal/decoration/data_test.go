package decoration_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/decoration"
)

// TestDataIsReadBack: a weight is part of it, and fields that no type has are kept.
func TestDataIsReadBack(t *testing.T) {
	data, err := decoration.Data(map[string]any{"weight": int64(5), "historyLimit": int64(3), "template": map[string]any{
		"containers": []any{map[string]any{"name": "logs", "image": "logs:1", "fromTheFuture": "kept"}},
	}})
	require.NoError(t, err)
	template, weight, err := decoration.Parse(data)
	require.NoError(t, err)
	assert.EqualValues(t, 5, weight)
	require.Len(t, template.Containers, 1)
	assert.Equal(t, "kept", template.Containers[0]["fromTheFuture"])

	data, err = decoration.Data(map[string]any{})
	require.NoError(t, err)
	_, _, err = decoration.Parse(data)
	assert.NoError(t, err, "a decoration without a template adds nothing")
}

// TestRevisionsOfKuperatorAreRecognised: it writes what means nothing.
func TestRevisionsOfKuperatorAreRecognised(t *testing.T) {
	ours := `{"spec":{"template":{"$patch":"replace","containers":[{"name":"logs","image":"logs:1"}]}}}`
	for data, want := range map[string]bool{
		`{"spec":{"template":{"containers":[{"name":"logs","image":"logs:1","resources":{},"injectPolicy":""}],` +
			`"volumes":null,"$patch":"replace"},"weight":0}}`: true,
		`{"spec":{"template":{"containers":[{"name":"logs","image":"logs:2"}]}}}`:                          false,
		`{"spec":{"template":{"containers":[{"name":"logs","image":"logs:1"}]},"weight":1}}`:               false,
		`{"spec":{"template":{"containers":[{"name":"logs","image":"logs:1"}],"volumes":[{"name":"a"}]}}}`: false,
	} {
		same, err := decoration.Same([]byte(ours), []byte(data))
		require.NoError(t, err)
		assert.Equal(t, want, same, data)
	}
	_, err := decoration.Same([]byte(ours), []byte("no JSON"))
	assert.Error(t, err)
}

// TestPodsAreSelectedByTheirOwnLabels: what decorations make of labels selects no Pod, and none stops being selected.
func TestPodsAreSelectedByTheirOwnLabels(t *testing.T) {
	template, _, err := decoration.Parse([]byte(`{"spec":{"template":{"metadata":[
		{"labels":{"tier":"gold","app":"other"}},{"patchPolicy":"Overwrite","labels":{"env":"canary"}}]}}}`))
	require.NoError(t, err)
	own := map[string]string{"app": "web", "env": "prod"}
	pod := map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web", "env": "prod"}}}
	d := decoration.Decoration{Name: "tiers", Revision: "tiers-1", Template: template}
	decorated, _, err := decoration.Render(pod, []decoration.Decoration{d})
	require.NoError(t, err)
	labels, annotations := metadataOf(t, decorated)
	assert.Equal(t, "gold", labels["tier"])
	assert.Equal(t, "canary", labels["env"])
	assert.Equal(t, own, decoration.OwnLabels(labels, annotations))

	_, after, _, err := decoration.RenderBoth(decorated, []decoration.Decoration{d}, nil)
	require.NoError(t, err)
	labels, annotations = metadataOf(t, after)
	assert.Equal(t, own, labels, "and go back to what they were")
	assert.Equal(t, own, decoration.OwnLabels(labels, annotations))
}

func metadataOf(t *testing.T, pod map[string]any) (labels, annotations map[string]string) {
	t.Helper()
	read := func(field string) map[string]string {
		out := map[string]string{}
		of, _ := pod["metadata"].(map[string]any)[field].(map[string]any) //nolint:forcetypeassert // a test
		for key, value := range of {
			out[key], _ = value.(string)
		}
		return out
	}
	return read("labels"), read("annotations")
}

// TestChangesOfDecorationsThatAreGoneAreKept beside those of others.
func TestChangesOfDecorationsThatAreGoneAreKept(t *testing.T) {
	for name, test := range map[string]struct{ now, next, want string }{
		"others set more": {`{"labels":{"x":null,"y":"1"},"annotations":["a"]}`,
			`{"labels":{"y":null,"z":null},"annotations":["b"],"initContainers":["i"]}`,
			`{"labels":{"x":null,"y":"1","z":null},"annotations":["a","b"],"initContainers":["i"]}`},
		"others are taken off": {`{"labels":{"x":null}}`, "", `{"labels":{"x":null}}`},
		"nothing is known":     {"", `{"labels":{"z":null}}`, `{"labels":{"z":null}}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decoration.KeepChanges(test.now, test.next)
			require.NoError(t, err)
			assert.JSONEq(t, test.want, got)
		})
	}
}

// TestChangesOfAnotherPodAreNotBelieved: a template that was copied from a Pod has the annotation, and no decoration.
func TestChangesOfAnotherPodAreNotBelieved(t *testing.T) {
	assert.Equal(t, map[string]string{"app": "web"}, decoration.OwnLabels(map[string]string{"app": "web"},
		map[string]string{"poddecoration.kusionstack.io/changes": `{"labels":{"tier":"gold"}}`}))
}

// TestALabelThatTheWorkloadSetsToTheSameValueStays when the decoration goes.
func TestALabelThatTheWorkloadSetsToTheSameValueStays(t *testing.T) {
	template, _, err := decoration.Parse([]byte(`{"spec":{"template":{"metadata":[{"labels":{"tier":"gold"}}]}}}`))
	require.NoError(t, err)
	d := decoration.Decoration{Name: "tiers", Revision: "tiers-1", Template: template}
	pod := map[string]any{"metadata": map[string]any{"labels": map[string]any{"tier": "gold"}}}
	decorated, _, err := decoration.Render(pod, []decoration.Decoration{d})
	require.NoError(t, err)
	_, after, _, err := decoration.RenderBoth(decorated, []decoration.Decoration{d}, nil)
	require.NoError(t, err)
	labels, _ := metadataOf(t, after)
	assert.Equal(t, map[string]string{"tier": "gold"}, labels)
}
