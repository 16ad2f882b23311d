package revision_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/revision"
)

func spec(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &out))
	return out
}

func parsed(t *testing.T, text string) *revision.Data {
	t.Helper()
	raw, err := revision.Render(spec(t, text))
	require.NoError(t, err)
	data, err := revision.Parse(raw)
	require.NoError(t, err)
	return data
}

const plain = `
template:
  metadata: {labels: {app: web}}
  spec:
    containers:
    - {name: app, image: "nginx:1", ports: [{containerPort: 80}]}
    - {name: side, image: "envoy:1"}
`

func TestRenderWritesTheBytesThatKuperatorWrites(t *testing.T) {
	got, err := revision.Render(spec(t,
		`{template: {metadata: {labels: {app: bylabel}}, spec: {containers: [{image: "nginx:1.24.0", name: c}]}}}`))
	require.NoError(t, err)
	assert.Equal(t,
		`{"spec":{"template":{"$patch":"replace","metadata":{"creationTimestamp":null,"labels":{"app":"bylabel"}},"spec":{"containers":[{"image":"nginx:1.24.0","name":"c","resources":{}}]}}}}`, string(got))
	assert.Equal(t, "bylabel-64c8868c9d", revision.Name("bylabel", revision.Hash(got, 0)),
		"the name that Kuperator v0.7.4 gave it")
}

func TestNameFitsALabelValue(t *testing.T) {
	for want, set := range map[string]string{
		"a-b-6d7b7c58f": "A.b",
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-6d7b7c58f": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
	} {
		assert.Equal(t, want, revision.Name(set, "6d7b7c58f"))
	}
}

func TestSameComparesMeaning(t *testing.T) {
	for name, tc := range map[string]struct {
		other string
		same  bool
	}{
		"the same text": {plain, true},
		"nulls, empty resources and the default protocol mean nothing": {`
template:
  metadata: {creationTimestamp: null, labels: {app: web}}
  spec:
    containers:
    - {name: app, image: "nginx:1", resources: {}, ports: [{containerPort: 80, protocol: TCP}]}
    - {name: side, image: "envoy:1", env: []}
`, true},
		"another protocol means something": {`
template:
  metadata: {labels: {app: web}}
  spec:
    containers:
    - {name: app, image: "nginx:1", ports: [{containerPort: 80, protocol: UDP}]}
    - {name: side, image: "envoy:1"}
`, false},
		"a field that this version does not know means something": {`
template:
  metadata: {labels: {app: web}}
  spec:
    fieldOfTheFuture: false
    containers:
    - {name: app, image: "nginx:1", ports: [{containerPort: 80}]}
    - {name: side, image: "envoy:1"}
`, false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.same, parsed(t, plain).Same(parsed(t, tc.other)))
		})
	}
}

func TestTemplateKeepsFieldsThatThisVersionDoesNotKnow(t *testing.T) {
	d := parsed(t,
		`{template: {metadata: {labels: {a: b}}, spec: {fieldOfTheFuture: {x: [1]}, containers: [{name: c, image: i}]}}}`)
	podSpec, _ := d.Template()["spec"].(map[string]any)
	assert.Equal(t, map[string]any{"x": []any{int64(1)}}, podSpec["fieldOfTheFuture"])
	assert.NotContains(t, d.Template(), "$patch")
}

func TestExplain(t *testing.T) {
	for name, tc := range map[string]struct {
		to      string
		forcing []string
		images  map[string]string
	}{
		"nothing": {to: plain},
		"an image is changed in place": {
			to:     `{template: {metadata: {labels: {app: web}}, spec: {containers: [{name: app, image: "nginx:2", ports: [{containerPort: 80}]}, {name: side, image: "envoy:1"}]}}}`,
			images: map[string]string{"app": "nginx:2"},
		},
		"an environment variable forces another Pod": {
			to:      `{template: {metadata: {labels: {app: web}}, spec: {containers: [{name: app, image: "nginx:1", env: [{name: A, value: b}], ports: [{containerPort: 80}]}, {name: side, image: "envoy:1"}]}}}`,
			forcing: []string{"template.spec.containers[app].env"},
		},
		"a container more forces another Pod": {
			to:      `{template: {metadata: {labels: {app: web}}, spec: {containers: [{name: app, image: "nginx:1", ports: [{containerPort: 80}]}, {name: side, image: "envoy:1"}, {name: x, image: img}]}}}`,
			forcing: []string{"template.spec.containers"},
		},
		"an unknown field forces another Pod": {
			to:      `{template: {metadata: {labels: {app: web}}, spec: {fieldOfTheFuture: 1, containers: [{name: app, image: "nginx:1", ports: [{containerPort: 80}]}, {name: side, image: "envoy:1"}]}}}`,
			forcing: []string{"template.spec.fieldOfTheFuture"},
		},
		"volume claims force another Pod": {
			to:      plain + "volumeClaimTemplates: [{metadata: {name: d}, spec: {accessModes: [ReadWriteOnce]}}]",
			forcing: []string{"volumeClaimTemplates"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := revision.Explain(parsed(t, plain), parsed(t, tc.to), revision.Capabilities{})
			assert.Empty(t, cmp.Diff(tc.forcing, got.Forcing))
			assert.Empty(t, cmp.Diff(tc.images, got.Images))
			assert.Equal(t, len(tc.forcing) == 0, got.InPlace())
		})
	}
	assert.False(t, revision.Explain(nil, parsed(t, plain), revision.Capabilities{}).InPlace(), "a revision that is gone")
}

func TestExplainOfLabelsAndAnnotations(t *testing.T) {
	got := revision.Explain(
		parsed(t, `{template: {metadata: {labels: {app: web, old: x}}, spec: {containers: [{name: c, image: i}]}}}`),
		parsed(t,
			`{template: {metadata: {labels: {app: web, new: "y"}, annotations: {note: z}}, spec: {containers: [{name: c, image: i}]}}}`), revision.Capabilities{})
	y, z := "y", "z"
	assert.True(t, got.InPlace())
	assert.Empty(t, cmp.Diff(map[string]*string{"old": nil, "new": &y}, got.Labels))
	assert.Empty(t, cmp.Diff(map[string]*string{"note": &z}, got.Annotations))
}

func TestUnrenderTakesBackWhatRenderAdds(t *testing.T) {
	const written = `{"template":{"metadata":{"labels":{"app":"web"}},"spec":{"initContainers":[{"name":"setup"}],` +
		`"containers":[{"name":"main","image":"web:1"},{"name":"proxy","resources":{"limits":{"cpu":"1"}}}]}},` +
		`"volumeClaimTemplates":[{"metadata":{"name":"data"},"spec":{"accessModes":["ReadWriteOnce"]}}]}`
	var spec map[string]any
	require.NoError(t, json.Unmarshal([]byte(written), &spec))
	raw, err := revision.Render(spec)
	require.NoError(t, err)
	data, err := revision.Parse(raw)
	require.NoError(t, err)
	template, claim := data.Template(), data.ClaimTemplates()[0].Object()
	revision.Unrender(template)
	revision.UnrenderClaim(claim)
	got, err := json.Marshal(map[string]any{"template": template, "volumeClaimTemplates": []any{claim}})
	require.NoError(t, err)
	require.JSONEq(t, written, string(got))
}
