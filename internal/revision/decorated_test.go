package revision_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
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
			forcing: []string{"spec.containers"}},
		"a variable": {from: `{}`, to: `{"primaryContainers":[{"env":[{"name":"B","value":"1"}]}]}`,
			forcing: []string{"spec.containers[app].env", "spec.containers[side].env"}},
		"a volume": {from: `{}`, to: `{"volumes":[{"name":"v","emptyDir":{}}]}`, forcing: []string{"spec.volumes"}},
		"affinity": {from: `{}`, to: `{"affinity":{"nodeSelectorTerms":[{}]}}`,
			forcing: []string{"spec.affinity"}},
		"the runtime class": {from: `{}`, to: `{"runtimeClassName":"kata"}`,
			forcing: []string{"spec.runtimeClassName"}},
		"a field of a later version": {from: sidecar("p:1"),
			to:      `{"initContainers":[{"name":"proxy","image":"p:1","restartPolicy":"Always","later":1}]}`,
			forcing: []string{"spec.initContainers[proxy].later"}},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := decorated(t, full, "1", test.from), decorated(t, changed(t, test.template...), "2", test.to)
			change := revision.Explain(from, to, everything)
			var forcing []string // below a Pod, not a template
			for _, field := range change.Forcing {
				forcing = append(forcing, strings.TrimPrefix(field, "template."))
			}
			assert.Equal(t, test.forcing, forcing)
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

// TestWhatAnotherDecorationDoesNotSetTakesAnotherPod, unless the Pod tells what was there before.
func TestWhatAnotherDecorationDoesNotSetTakesAnotherPod(t *testing.T) {
	for name, test := range map[string]struct {
		from, to string
		forcing  []string
	}{
		"a label": {`{"metadata":[{"patchPolicy":"Overwrite","labels":{"a":"1"}}]}`, `{}`, nil},
		"a container": {`{"containers":[{"name":"logs","image":"logs:1"}]}`, `{}`,
			[]string{"containers[logs] of PodDecoration sidecar", "spec.containers"}},
		"an image": {`{"primaryContainers":[{"image":"mine:1"}]}`, `{}`,
			[]string{"primaryContainers[All ].image of PodDecoration sidecar"}},
		"another one": {`{"metadata":[{"patchPolicy":"Overwrite","labels":{"a":"1"}}]}`,
			`{"metadata":[{"patchPolicy":"Overwrite","labels":{"a":"2"}}]}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod := decorated(t, full, "1", test.from).Template()
			change, _, err := revision.Redecorate(pod, sidecarOf(t, "1", test.from), sidecarOf(t, "2", test.to), everything)
			require.NoError(t, err)
			var forcing []string // below a Pod, not a template
			for _, field := range change.Forcing {
				forcing = append(forcing, strings.TrimPrefix(field, "template."))
			}
			assert.Equal(t, test.forcing, forcing)
			patch := string(change.Patch(&corev1.Pod{}, "", nil))
			assert.NotContains(t, patch, "controller-revision-hash", "that of a StatefulSet stays")
			assert.Contains(t, patch, "sidecar-2")
		})
	}
	_, _, err := revision.Redecorate(map[string]any{"spec": map[string]any{"containers": "none"}}, nil, nil, everything)
	assert.Error(t, err)
}

func TestWhatADecorationWillDo(t *testing.T) {
	of := func(template string) []decoration.Decoration { return sidecarOf(t, "1", template) }
	before := of(`{"initContainers":[{"name":"proxy","image":"p:1","restartPolicy":"Always"}],
		"primaryContainers":[{"targetPolicy":"ByName","name":"web","image":"web:1"}]}`)
	change, err := revision.Forecast(before, of(`{"initContainers":[{"name":"proxy","image":"p:2","restartPolicy":"Always"}],
		"primaryContainers":[{"targetPolicy":"ByName","name":"web","image":"web:2"}]}`), everything)
	require.NoError(t, err)
	assert.True(t, change.InPlace())
	assert.Equal(t, map[string]string{"proxy": "p:2", "web": "web:2"}, change.Images)

	merge := func(value string) []decoration.Decoration {
		return of(`{"metadata":[{"patchPolicy":"MergePatchJson","annotations":{"j":"{\"` + value + `\":1}"}}]}`)
	}
	change, err = revision.Forecast(merge("a"), merge("b"), everything)
	require.NoError(t, err)
	assert.False(t, change.InPlace(), "a Pod may have had the annotation before")

	change, err = revision.Forecast(nil, before, everything)
	require.NoError(t, err)
	assert.Equal(t, []string{"template.initContainers"}, change.Forcing)

	change, err = revision.Forecast(before, before, everything)
	require.NoError(t, err)
	assert.True(t, change.IsZero())
}

// TestWhatAPodCouldNotHaveIsForgotten when it is not to have it any more, or can have it.
func TestWhatAPodCouldNotHaveIsForgotten(t *testing.T) {
	const refused = appsv1alpha1.PodDecorationRefusedAnnotation
	pod := map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{refused: `[{"name":"sidecar","revision":"1","why":"taken"}]`}},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "app", "image": "app:1"}}},
	}
	change, _, err := revision.Redecorate(pod, nil, nil, everything)
	require.NoError(t, err)
	value, is := change.Annotations[refused]
	assert.True(t, is)
	assert.Nil(t, value)
	assert.True(t, change.InPlace())
}
