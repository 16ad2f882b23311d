package decoration_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/decoration"
)

// TestAPodIsRenderedAgain: with the same decorations it is what it was, with others what they make of it.
func TestAPodIsRenderedAgain(t *testing.T) {
	of := func(name string, weight int32, template string) decoration.Decoration {
		return of(t, name, weight, template)
	}
	for name, test := range map[string]struct{ pod, from, to string }{
		"containers": {web, `{"containers":[{"name":"proxy","image":"proxy:1"},
			{"name":"tail","injectPolicy":"AfterPrimaryContainer"}]}`, `{"containers":[{"name":"proxy","image":"proxy:2"},
			{"name":"tail","injectPolicy":"AfterPrimaryContainer"}]}`},
		"what is overwritten": {web, `{"metadata":[{"labels":{"tier":"one"},"patchPolicy":"Overwrite"}],
			"volumes":[{"name":"v"}]}`,
			`{"metadata":[{"labels":{"tier":"two"},"patchPolicy":"Overwrite"}],"volumes":[{"name":"v","emptyDir":{}}]}`},
		"what is set where it is not there": {web, `{"metadata":[{"labels":{"tier":"one"}}]}`,
			`{"metadata":[{"labels":{"tier":"two"}}]}`},
		"what is set no more": {web, `{"metadata":[{"annotations":{"note":"one"}}]}`, `{}`},
		"a label that is kept": {`{"metadata":{"labels":{"tier":"mine"}},"spec":{"containers":[]}}`,
			`{"metadata":[{"labels":{"tier":"one"}}]}`, `{"metadata":[{"labels":{"tier":"two"}}]}`},
		"an init container": {web, `{"initContainers":[{"name":"setup","image":"setup:1"}]}`,
			`{"initContainers":[{"name":"setup","image":"setup:2"}]}`},
		"an init container of the workload": {`{"spec":{"initContainers":[{"name":"setup","image":"mine"}],"containers":[]}}`,
			`{"initContainers":[{"name":"setup","image":"setup:1"}]}`,
			`{"initContainers":[{"name":"setup","image":"setup:2"}]}`},
		"a container that took the place of the first": {web, `{"containers":[{"name":"web","image":"proxy:1"}]}`,
			`{"containers":[{"name":"web","image":"proxy:2"}]}`},
		"one container less": {web, `{"containers":[{"name":"proxy"},{"name":"tail"}]}`, `{"containers":[{"name":"proxy"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			images := of("images", 1, `{"primaryContainers":[{"targetPolicy":"Last","image":"debug:1"}],
				"tolerations":[{"key":"x"}]}`)
			from := []decoration.Decoration{of("a", 0, test.from), images}
			to := []decoration.Decoration{of("a", 0, test.to), images}
			pod := object(t, test.pod)
			made, _, err := decoration.Render(pod, from)
			require.NoError(t, err)
			want, _, err := decoration.Render(pod, to)
			require.NoError(t, err)
			before, after, refused, err := decoration.RenderBoth(made, from, to)
			require.NoError(t, err)
			assert.Empty(t, refused)
			assert.Equal(t, tidy(want), tidy(after))
			if name != "one container less" { // it goes from both, and Dropped has it
				assert.Equal(t, tidy(made), tidy(before))
			}
		})
	}
}

// tidy is an object without empty labels and annotations.
func tidy(pod map[string]any) map[string]any {
	metadata, _ := pod["metadata"].(map[string]any)
	for _, field := range []string{"labels", "annotations"} {
		if values, _ := metadata[field].(map[string]any); len(values) == 0 {
			delete(metadata, field)
		}
	}
	return pod
}

func TestWhatIsDropped(t *testing.T) {
	all := `{"metadata":[{"labels":{"l":"1"},"annotations":{"n":"1"},
		"patchPolicy":"Overwrite"},{"labels":{"kept":"1"}},{"annotations":{"m":"{}"},"patchPolicy":"MergePatchJson"}],
		"initContainers":[{"name":"i"}],
		"containers":[{"name":"c"}],"volumes":[{"name":"v"}],"tolerations":[{"key":"k","effect":"NoSchedule"}],
		"primaryContainers":[{"image":"x","env":[{"name":"E"}],"volumeMounts":[{"mountPath":"/m"}]},
		{"targetPolicy":"ByName","name":"web","image":"y"}],"runtimeClassName":"kata",
		"affinity":{"overrideAffinity":{},"nodeSelectorTerms":[{}]}}`
	one, other := of(t, "a", 0, all), of(t, "a", 0, `{}`)
	assert.Empty(t, decoration.Dropped(nil, []decoration.Decoration{one}, []decoration.Decoration{one}))
	assert.Empty(t, decoration.Dropped(nil, []decoration.Decoration{other}, []decoration.Decoration{one}))
	assert.Equal(t, []string{
		"affinity of PodDecoration a", "affinity.nodeSelectorTerms of PodDecoration a",
		"annotations[m] with {} of PodDecoration a", "annotations[n] of PodDecoration a",
		"containers[c] of PodDecoration a", "initContainers[i] of PodDecoration a",
		"labels[l] of PodDecoration a", "primaryContainers[All ].env[E] of PodDecoration a",
		"primaryContainers[All ].image of PodDecoration a",
		"primaryContainers[All ].volumeMounts[/m] of PodDecoration a",
		"primaryContainers[ByName web].image of PodDecoration a", "runtimeClassName of PodDecoration a",
		"tolerations[k NoSchedule Equal] of PodDecoration a", "volumes[v] of PodDecoration a",
	}, decoration.Dropped(nil, []decoration.Decoration{one}, []decoration.Decoration{other}), "as of Kuperator v0.7")

	decorated, _, err := decoration.Render(object(t, `{"metadata":{"annotations":{"n":"0"}},"spec":{"containers":[]}}`),
		[]decoration.Decoration{one})
	require.NoError(t, err)
	dropped := decoration.Dropped(decorated, []decoration.Decoration{one}, []decoration.Decoration{other})
	assert.NotContains(t, dropped, "labels[l] of PodDecoration a", "the Pod tells what it was")
	assert.NotContains(t, dropped, "annotations[m] with {} of PodDecoration a", "it was not there")
	assert.Contains(t, dropped, "annotations[n] of PodDecoration a", "its value is not kept: it may be large")
}

// TestWhatOthersChangeOnADecoratedPod neither hides what decorations brought nor is taken for it.
func TestWhatOthersChangeOnADecoratedPod(t *testing.T) {
	one := []decoration.Decoration{of(t, "a", 0, `{"metadata":[{"annotations":{"note":"same","added":"1"}}],
		"initContainers":[{"name":"proxy","image":"proxy:1","restartPolicy":"Always"},{"name":"setup","image":"setup:1"}]}`)}
	two := []decoration.Decoration{of(t, "a", 0, `{"initContainers":[
		{"name":"proxy","image":"proxy:2","restartPolicy":"Always"},{"name":"setup","image":"setup:1"}]}`)}
	pod := object(t, `{"metadata":{"annotations":{"note":"same"}},
		"spec":{"initContainers":[{"name":"setup","image":"setup:1"}],"containers":[]}}`)
	decorated, _, err := decoration.Render(pod, one)
	require.NoError(t, err)
	spec, _ := decorated["spec"].(map[string]any)
	proxy, _ := spec["initContainers"].([]any)[1].(map[string]any) //nolint:forcetypeassert // a test
	proxy["image"] = "proxy@sha256:1"                              // an admission webhook pins it

	before, after, refused, err := decoration.RenderBoth(decorated, one, two)
	require.NoError(t, err)
	assert.Empty(t, refused)
	images := func(pod map[string]any) (images []string) {
		spec, _ := pod["spec"].(map[string]any)
		list, _ := spec["initContainers"].([]any)
		for _, item := range list {
			o, _ := item.(map[string]any)
			image, _ := o["image"].(string)
			images = append(images, image)
		}
		return images
	}
	assert.Equal(t, []string{"setup:1", "proxy:1"}, images(before))
	assert.Equal(t, []string{"setup:1", "proxy:2"}, images(after), "the workload's keeps its place")
	_, annotations := metadataOf(t, after)
	assert.Equal(t, "same", annotations["note"], "it is the workload's")
	assert.NotContains(t, annotations, "added")
}
