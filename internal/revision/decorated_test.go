package revision_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/revision"
)

// TestHowAPodTakesOverADecoration compares a revision with one decoration and with another.
func TestHowAPodTakesOverADecoration(t *testing.T) {
	sidecar := func(image string) string {
		return `{"initContainers":[{"name":"proxy","image":"` + image + `","restartPolicy":"Always"}]}`
	}
	resized := func(cpu string) string {
		return `{"containers":[{"name":"logs","image":"logs:1","resources":{"requests":{"cpu":"` + cpu + `"}}}]}`
	}
	for name, test := range map[string]struct {
		from, to string
		template []string // what of the template changes as well
		forcing  []string
		images   map[string]string
	}{
		"the image of an injected container": {from: `{"containers":[{"name":"logs","image":"logs:1"}]}`,
			to: `{"containers":[{"name":"logs","image":"logs:2"}]}`, images: map[string]string{"logs": "logs:2"}},
		"the image of a native sidecar": {from: sidecar("p:1"), to: sidecar("p:2"),
			images: map[string]string{"proxy": "p:2"}},
		"both, with another template": {from: sidecar("p:1"), to: sidecar("p:2"), template: []string{"nginx:1", "nginx:2"},
			images: map[string]string{"app": "nginx:2", "proxy": "p:2"}},
		"the image of the application": {from: `{}`,
			to:     `{"primaryContainers":[{"targetPolicy":"ByName","name":"app","image":"mine:1"}]}`,
			images: map[string]string{"app": "mine:1"}},
		"an image of the template that is overridden": {
			from:     `{"primaryContainers":[{"targetPolicy":"ByName","name":"app","image":"mine:1"}]}`,
			to:       `{"primaryContainers":[{"targetPolicy":"ByName","name":"app","image":"mine:1"}]}`,
			template: []string{"nginx:1", "nginx:2"},
		},
		"labels":      {from: `{}`, to: `{"metadata":[{"labels":{"a":"1"},"annotations":{"b":"2"}}]}`},
		"tolerations": {from: `{}`, to: `{"tolerations":[{"key":"spot","operator":"Exists"}]}`},
		"cpu":         {from: resized("100m"), to: resized("200m")},
		"a container more": {from: `{}`, to: resized("1"),
			forcing: []string{"template.spec.containers"}},
		"a variable": {from: `{}`, to: `{"primaryContainers":[{"env":[{"name":"B","value":"1"}]}]}`,
			forcing: []string{"template.spec.containers[app].env", "template.spec.containers[side].env"}},
		"a volume": {from: `{}`, to: `{"volumes":[{"name":"v","emptyDir":{}}]}`, forcing: []string{"template.spec.volumes"}},
		"affinity": {from: `{}`, to: `{"affinity":{"nodeSelectorTerms":[{}]}}`,
			forcing: []string{"template.spec.affinity"}},
		"the runtime class": {from: `{}`, to: `{"runtimeClassName":"kata"}`,
			forcing: []string{"template.spec.runtimeClassName"}},
		"a field of a later version": {from: sidecar("p:1"),
			to:      `{"initContainers":[{"name":"proxy","image":"p:1","restartPolicy":"Always","later":1}]}`,
			forcing: []string{"template.spec.initContainers[proxy].later"}},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := decorated(t, full, "1", test.from), decorated(t, changed(t, test.template...), "2", test.to)
			change := revision.Explain(from, to, everything)
			assert.Equal(t, test.forcing, change.Forcing)
			assert.Equal(t, test.images, change.Images)
			assert.Equal(t, name == "cpu", len(change.Resize) > 0)
			assert.True(t, revision.Explain(to, to, everything).InPlace())
			if len(test.template) > 0 {
				return
			}
			// A Pod of another workload, of which nothing but the Pod is known.
			again, refused, err := revision.Redecorate(from.Template(), sidecarOf(t, "1", test.from),
				sidecarOf(t, "2", test.to), everything)
			require.NoError(t, err)
			assert.Empty(t, refused)
			assert.Equal(t, test.forcing, again.Forcing)
			assert.Equal(t, test.images, again.Images)
			assert.Equal(t, change.Resize, again.Resize)
			assert.Equal(t, change.Labels, again.Labels)
			assert.Equal(t, change.Annotations, again.Annotations)
		})
	}
}

// decorated is a revision with a decoration.
func decorated(t *testing.T, spec, of, template string) *revision.Data {
	t.Helper()
	data, refused, err := parsed(t, spec).Decorated(sidecarOf(t, of, template))
	require.NoError(t, err)
	require.Empty(t, refused)
	return data
}

// sidecarOf is a decoration alone.
func sidecarOf(t *testing.T, of, template string) []decoration.Decoration {
	t.Helper()
	content, weight, err := decoration.Parse([]byte(`{"spec":{"template":` + template + `}}`))
	require.NoError(t, err)
	return []decoration.Decoration{{Name: "sidecar", Revision: "sidecar-" + of, Weight: weight, Template: content}}
}

// TestWhatAnotherDecorationDoesNotSetTakesAnotherPod: what was there before is not known.
func TestWhatAnotherDecorationDoesNotSetTakesAnotherPod(t *testing.T) {
	for name, test := range map[string]struct {
		from, to string
		forcing  []string
	}{
		"a label": {`{"metadata":[{"patchPolicy":"Overwrite","labels":{"a":"1"}}]}`, `{}`,
			[]string{"labels[a] of PodDecoration sidecar"}},
		"a label that was not there": {`{"metadata":[{"labels":{"a":"1"}}]}`, `{}`, nil},
		"a container": {`{"containers":[{"name":"logs","image":"logs:1"}]}`, `{}`,
			[]string{"containers[logs] of PodDecoration sidecar", "template.spec.containers"}},
		"an image": {`{"primaryContainers":[{"image":"mine:1"}]}`, `{}`,
			[]string{"primaryContainers[All ].image of PodDecoration sidecar"}},
		"another one": {`{"metadata":[{"patchPolicy":"Overwrite","labels":{"a":"1"}}]}`,
			`{"metadata":[{"patchPolicy":"Overwrite","labels":{"a":"2"}}]}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod := decorated(t, full, "1", test.from).Template()
			change, _, err := revision.Redecorate(pod, sidecarOf(t, "1", test.from), sidecarOf(t, "2", test.to), everything)
			require.NoError(t, err)
			assert.Equal(t, test.forcing, change.Forcing)
			patch := string(change.Patch(&corev1.Pod{}, "", nil))
			assert.NotContains(t, patch, "controller-revision-hash", "that of a StatefulSet stays")
			assert.Contains(t, patch, "sidecar-2")
		})
	}
	_, _, err := revision.Redecorate(map[string]any{"spec": map[string]any{"containers": "none"}}, nil, nil, everything)
	assert.Error(t, err)
}
