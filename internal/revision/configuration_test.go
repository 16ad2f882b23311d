package revision

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// configured refers to ConfigMaps and Secrets in every way.
const configured = `
template:
  metadata:
    labels: {app: web}
  spec:
    imagePullSecrets: [{name: registry}]
    volumes:
    - {name: files, configMap: {name: files}}
    - {name: tls, secret: {secretName: tls}}
    - name: all
      projected:
        sources: [{configMap: {name: part}}, {secret: {name: part}}]
    - {name: unmounted, configMap: {name: unmounted}}
    initContainers:
    - {name: setup, image: "setup:v1", volumeMounts: [{name: all, mountPath: /all}]}
    - {name: proxy, image: "proxy:v1", restartPolicy: Always, volumeMounts: [{name: tls, mountPath: /tls}]}
    containers:
    - name: app
      image: app:v1
      volumeMounts: [{name: files, mountPath: /files}, {name: tls, mountPath: /tls, subPath: key}]
      env: [{name: A, valueFrom: {configMapKeyRef: {name: env, key: a}}}]
      envFrom: [{secretRef: {name: env}}]
    - {name: other, image: "other:v1", volumeMounts: [{name: files, mountPath: /files}]}
`

func configMap(name string) Configuration {
	return Configuration{appsv1alpha1.ConfigurationConfigMap, name}
}

func secret(name string) Configuration {
	return Configuration{appsv1alpha1.ConfigurationSecret, name}
}

// following is the CollaSet of configured that follows kinds, and only names if there are any.
func following(t *testing.T, kinds []appsv1alpha1.ConfigurationKind, names ...string) *appsv1alpha1.CollaSet {
	t.Helper()
	set := &appsv1alpha1.CollaSet{}
	require.NoError(t, yaml.Unmarshal([]byte(configured), &set.Spec))
	set.Spec.UpdateStrategy.FollowConfiguration = &appsv1alpha1.FollowConfiguration{Kinds: kinds, Names: names}
	return set
}

var bothKinds = []appsv1alpha1.ConfigurationKind{appsv1alpha1.ConfigurationConfigMap, appsv1alpha1.ConfigurationSecret}

func TestFollowed(t *testing.T) {
	set := following(t, bothKinds)
	assert.Equal(t, []Configuration{configMap("env"), configMap("files"), configMap("part"), configMap("unmounted"),
		secret("env"), secret("part"), secret("tls")}, Followed(set))
	assert.Equal(t, []Configuration{secret("env"), secret("part"), secret("tls")}, Followed(following(t, bothKinds[1:])))
	assert.Equal(t, []Configuration{configMap("part"), secret("part")}, Followed(following(t, bothKinds, "part", "none")))
	set.Spec.UpdateStrategy.FollowConfiguration = nil
	assert.Empty(t, Followed(set))
}

// renderedWith is the revision of a CollaSet with its status.configuration.
func renderedWith(t interface{ Fatal(...any) }, set *appsv1alpha1.CollaSet) *Data {
	raw, err := json.Marshal(set.Spec)
	if err != nil {
		t.Fatal(err)
	}
	var stored map[string]any
	if err := json.Unmarshal(raw, &stored); err != nil {
		t.Fatal(err)
	}
	rendered, err := RenderWith(stored, set.Status.Configuration)
	if err != nil {
		t.Fatal(err)
	}
	data, err := Parse(rendered)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// read has the CollaSet read one object, and all others as they were.
func read(set *appsv1alpha1.CollaSet, c Configuration, hash string) {
	readings := map[Configuration]ConfigurationReading{}
	for _, entry := range set.Status.Configuration {
		readings[Configuration{entry.Kind, entry.Name}] = ConfigurationReading{Hash: entry.Hash}
	}
	if hash == "" {
		readings[c] = ConfigurationReading{Problem: "it does not exist"}
	} else {
		readings[c] = ConfigurationReading{Hash: hash}
	}
	set.Status.Configuration = FollowConfiguration(set, readings)
}

// What is read for the first time is current. A change makes another revision, what was there before the one of before,
// and nothing else does: not an object that is gone or comes, nor the end of following.
func TestFollowedContentIsPartOfTheRevision(t *testing.T) {
	set := following(t, bothKinds)
	first := renderedWith(t, set)
	read(set, configMap("files"), "h0")
	assert.True(t, renderedWith(t, set).Same(first), "read for the first time")
	read(set, configMap("files"), "h1")
	second := renderedWith(t, set)
	assert.False(t, second.Same(first))
	assert.True(t, second.SameTemplate(first))
	assert.Equal(t, "ConfigMap/files=h1",
		object(object(second.Template()["metadata"])["annotations"])[appsv1alpha1.ConfigurationAnnotation])
	read(set, configMap("files"), "")
	assert.True(t, renderedWith(t, set).Same(second), "gone")
	entry := set.Status.Configuration[1]
	assert.Equal(t, "files", entry.Name)
	assert.Equal(t, "it does not exist", entry.Message)
	read(set, secret("tls"), "h0")
	assert.True(t, renderedWith(t, set).Same(second), "another one is read for the first time")

	set.Spec.UpdateStrategy.FollowConfiguration = nil
	read(set, configMap("files"), "h2")
	assert.True(t, renderedWith(t, set).Same(second), "not followed any more")
	set.Spec.UpdateStrategy.FollowConfiguration = &appsv1alpha1.FollowConfiguration{Kinds: bothKinds}
	read(set, configMap("files"), "h0")
	assert.True(t, renderedWith(t, set).Same(first), "back to what it was")

	read(set, configMap("files"), "h3")
	set.Spec.Template.Spec.Volumes = set.Spec.Template.Spec.Volumes[1:]
	read(set, configMap("env"), "h0")
	for _, entry := range set.Status.Configuration {
		assert.NotEqual(t, "files", entry.Name, "the template does not refer to it any more")
	}
}

// An annotation that comes with a template, out of a Pod or a revision, means nothing.
func TestConfigurationOfATemplateIsIgnored(t *testing.T) {
	set := following(t, bothKinds)
	read(set, configMap("files"), "h0")
	first := renderedWith(t, set)
	set.Spec.Template.Annotations = map[string]string{appsv1alpha1.ConfigurationAnnotation: "ConfigMap/files=h9"}
	assert.True(t, renderedWith(t, set).Same(first))
	read(set, configMap("files"), "h1")
	assert.Equal(t, "ConfigMap/files=h1", object(object(renderedWith(t, set).Template()["metadata"])["annotations"])[appsv1alpha1.ConfigurationAnnotation])
}

// Containers restart in place for what they mount. Environments and init containers need another Pod.
func TestHowAChangeOfContentIsMade(t *testing.T) {
	for name, test := range map[string]struct {
		changed Configuration
		restart []string
		forcing []string
	}{
		"files of two containers": {configMap("files"), []string{"app", "other"}, nil},
		"files of a sidecar too":  {secret("tls"), []string{"app", "proxy"}, nil},
		"files that none mounts":  {configMap("unmounted"), nil, nil},
		"a variable": {configMap("env"), nil,
			[]string{"template.spec.containers[app].env (ConfigMap env has changed)"}},
		"all variables": {secret("env"), nil,
			[]string{"template.spec.containers[app].envFrom (Secret env has changed)"}},
		"files of an init container": {configMap("part"), nil,
			[]string{"template.spec.initContainers[setup].volumeMounts (ConfigMap part has changed)"}},
	} {
		t.Run(name, func(t *testing.T) {
			set := following(t, bothKinds)
			read(set, test.changed, "h0")
			before := renderedWith(t, set)
			read(set, test.changed, "h1")
			after := renderedWith(t, set)
			for _, change := range []Change{Explain(before, after, Capabilities{}), Explain(after, before, Capabilities{})} {
				assert.Equal(t, test.restart, change.Restart)
				assert.Equal(t, test.forcing, change.Forcing)
				assert.Equal(t, len(test.restart) > 0, change.Restarts)
				assert.Contains(t, change.Annotations, appsv1alpha1.ConfigurationAnnotation)
			}
		})
	}
}

// A revision is a function of the content alone, in whatever order objects were read, missing and changed: after the
// same content the same revision, without a step that changes content none.
func TestRevisionsFollowContent(t *testing.T) {
	template := following(t, bothKinds)
	rapid.Check(t, func(rt *rapid.T) {
		set := template.DeepCopy()
		followed := Followed(set)
		seen := map[string]*Data{} // by what was read last of each
		last := map[Configuration]string{}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			c := rapid.SampledFrom(followed).Draw(rt, "object")
			hash := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(rt, "hash")
			first := last[c] == ""
			before := renderedWith(rt, set)
			read(set, c, hash)
			after := renderedWith(rt, set)
			if changes := hash != "" && !first && hash != last[c]; changes == after.Same(before) {
				rt.Fatalf("%s was %q and is %q, and the revision is another one: %t", c, last[c], hash, !changes)
			}
			if hash != "" {
				last[c] = hash
			}
			var content []string
			for _, c := range followed {
				content = append(content, last[c])
			}
			key := strings.Join(content, ",")
			if known := seen[key]; known != nil && !known.Same(after) {
				rt.Fatal("the same content has two revisions")
			}
			seen[key] = after
		}
	})
}

func TestHashes(t *testing.T) {
	a := &corev1.ConfigMap{Data: map[string]string{"a": "1", "b": "2"}}
	a.Labels, a.ResourceVersion = map[string]string{"x": "y"}, "7"
	same := &corev1.ConfigMap{Data: map[string]string{"b": "2", "a": "1"}}
	assert.Equal(t, HashOfConfigMap(same), HashOfConfigMap(a), "only content counts")
	assert.Len(t, HashOfConfigMap(a), hashLength)
	for _, other := range []*corev1.ConfigMap{
		{}, {Data: map[string]string{"a": "1"}}, {Data: map[string]string{"a": "2", "b": "1"}},
		{BinaryData: map[string][]byte{"a": []byte("1"), "b": []byte("2")}},
	} {
		assert.NotEqual(t, HashOfConfigMap(other), HashOfConfigMap(a))
	}
	assert.NotEqual(t, HashOfSecret(&corev1.Secret{Data: map[string][]byte{"a": []byte("1")}}),
		HashOfSecret(&corev1.Secret{Data: map[string][]byte{"a": []byte("2")}}))
}

// running is a Pod of one container.
func running(image, imageID, containerID string) *corev1.Pod {
	return &corev1.Pod{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: image}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "app", ImageID: imageID,
			ContainerID: containerID, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
	}
}

// patched is the Pod after a patch in place, as far as images and annotations go.
func patched(t *testing.T, pod *corev1.Pod, patch []byte) *corev1.Pod {
	t.Helper()
	var content struct {
		Metadata struct{ Annotations map[string]string }
		Spec     struct{ Containers []corev1.Container }
	}
	require.NoError(t, json.Unmarshal(patch, &content))
	out := pod.DeepCopy()
	out.Annotations = content.Metadata.Annotations
	for _, c := range content.Spec.Containers {
		out.Spec.Containers[0].Image = c.Image
	}
	return out
}

func TestRestartForFiles(t *testing.T) {
	id := "sha256:" + strings.Repeat("a", 64)
	change := Change{Restart: []string{"app"}, Restarts: true}
	pod := running("app:v1", "app@"+id, "c1")
	first := patched(t, pod, change.Patch(pod, "r2", nil))
	assert.Equal(t, "app:v1@"+id, first.Spec.Containers[0].Image)
	assert.True(t, Carried(first).Restarting)

	// Another change before the container has restarted: it will start with the newest content anyway.
	second := patched(t, first, change.Patch(first, "r3", nil))
	assert.Equal(t, first.Spec.Containers[0].Image, second.Spec.Containers[0].Image)
	assert.True(t, Carried(second).Restarting, "it is still waited for")
	second.Status.ContainerStatuses[0].ContainerID = "c2"
	assert.True(t, Carried(second).Done)

	// A new image restarts the container, and nothing else is needed. One that the Pod has already does not.
	change.Images = map[string]string{"app": "app:v2"}
	assert.Equal(t, "app:v2", patched(t, pod, change.Patch(pod, "r2", nil)).Spec.Containers[0].Image)
	change.Images = map[string]string{"app": "app:v1"}
	assert.Equal(t, "app:v1@"+id, patched(t, pod, change.Patch(pod, "r2", nil)).Spec.Containers[0].Image)

	// Without a second name another Pod is needed. lifecycle-controller is not told to finish.
	change.Images = nil
	loaded := running("app:v1", id, "c1")
	loaded = patched(t, loaded, change.Patch(loaded, "r2", &Finish{ID: "x"}))
	assert.Equal(t, "app:v1", loaded.Spec.Containers[0].Image)
	progress := Carried(loaded)
	assert.Equal(t, WaitRestartInfeasible, progress.Wait)
	assert.Contains(t, progress.Missing, "container app cannot be restarted in place")
	// Until a change needs no restart any more.
	loaded = patched(t, loaded, Change{}.Patch(loaded, "r1", nil))
	assert.True(t, Carried(loaded).Done)

	// A container that has not started yet starts with the new content.
	starting := running("app:v1", "", "")
	assert.Equal(t, "app:v1", patched(t, starting, change.Patch(starting, "r2", nil)).Spec.Containers[0].Image)
}
