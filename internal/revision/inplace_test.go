package revision_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"kusionstack.io/kuperator/internal/revision"
)

const lastPodStatus = "collaset.kusionstack.io/last-pod-status"

func pod(image, containerID string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", ResourceVersion: "7", Generation: 1,
			Labels: map[string]string{"controller-revision-hash": "r1"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: image},
			{Name: "injected", Image: "mesh:1"}}},
		Status: corev1.PodStatus{ObservedGeneration: 1, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "app", ContainerID: containerID, ImageID: "sha:" + image,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			{Name: "injected", ContainerID: "m0", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}},
	}
}

// patched applies the patch as the API server does.
func patched(t *testing.T, p *corev1.Pod, patch []byte) *corev1.Pod {
	t.Helper()
	before, err := json.Marshal(p)
	require.NoError(t, err)
	after, err := strategicpatch.StrategicMergePatch(before, patch, &corev1.Pod{})
	require.NoError(t, err)
	out := &corev1.Pod{}
	require.NoError(t, json.Unmarshal(after, out))
	out.Generation++
	return out
}

func restarted(p *corev1.Pod, containerID, imageID string) *corev1.Pod {
	p = p.DeepCopy()
	p.Status.ObservedGeneration = p.Generation
	p.Status.ContainerStatuses[0].ContainerID = containerID
	p.Status.ContainerStatuses[0].ImageID = imageID
	return p
}

func image(name string) revision.Change {
	return revision.Change{Images: map[string]string{"app": name}}
}

func TestPatchHoldsOnlyWhatChanges(t *testing.T) {
	assert.JSONEq(t,
		`{"metadata":{"uid":"u","resourceVersion":"7","labels":{"controller-revision-hash":"r2"},"annotations":{
		"collaset.kusionstack.io/last-pod-status":"{\"containerStates\":{\"app\":{\"latestImage\":\"nginx:2\",\"lastImageID\":\"sha:nginx:1\",\"lastImage\":\"nginx:1\",\"lastContainerID\":\"c0\",\"lastRestartCount\":0}}}"}},
		"spec":{"containers":[{"name":"app","image":"nginx:2"}]}}`, string(image("nginx:2").Patch(pod("nginx:1", "c0"), "r2", nil)))
	assert.JSONEq(t,
		`{"metadata":{"uid":"u","resourceVersion":"7","labels":{"controller-revision-hash":"r2"},"annotations":{}}}`,
		string(revision.Change{}.Patch(pod("nginx:1", "c0"), "r2", nil)))
}

func TestCarried(t *testing.T) {
	changed := patched(t, pod("nginx:1", "c0"), image("nginx:2").Patch(pod("nginx:1", "c0"), "r2", nil))
	upstream := pod("nginx:2", "c0")
	upstream.Annotations = map[string]string{lastPodStatus: `{"containerStates":{"app":{"latestImage":"nginx:2","lastImageID":"sha:nginx:1"}}}`}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		done bool
	}{
		"nothing was recorded":                    {pod("nginx:1", "c0"), true},
		"the kubelet has not seen it":             {changed, false},
		"seen, but not restarted":                 {restarted(changed, "c0", "sha:nginx:1"), false},
		"restarted with another image":            {restarted(changed, "c1", "sha:nginx:2"), true},
		"restarted with a tag of an equal digest": {restarted(changed, "c1", "sha:nginx:1"), true},
		"restarted before the kubelet saw the change": {func() *corev1.Pod {
			p := restarted(changed, "c1",
				"x")
			p.Status.ObservedGeneration--
			return p
		}(), false},
		"restarted, but the new container waits": {func() *corev1.Pod {
			p := restarted(changed, "c1", "x")
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{}
			return p
		}(), false},
		"a kubelet that reports no generation": {func() *corev1.Pod {
			p := restarted(changed, "c1",
				"x")
			p.Status.ObservedGeneration = 0
			return p
		}(), true},
		"Kuperator's record, other image ID":     {upstream, true},
		"Kuperator's record, image ID as before": {restarted(upstream, "c1", "sha:nginx:1"), false},
		"a record that cannot be read": {func() *corev1.Pod {
			p := pod("a", "b")
			p.Annotations = map[string]string{lastPodStatus: "{"}
			return p
		}(), false},
		"a change of labels only, once the kubelet saw it": {patched(t, pod("nginx:1", "c0"),
			revision.Change{}.Patch(pod("nginx:1", "c0"), "r2", nil)), false},
	} {
		t.Run(name, func(t *testing.T) {
			got := revision.Carried(tc.pod)
			assert.Equal(t, tc.done, got.Done, got.Missing)
			assert.Equal(t, got.Done, got.Missing == "")
			assert.Equal(t, got.Done, got.Wait == revision.WaitNone)
		})
	}
}

func TestWhoFinishes(t *testing.T) {
	finish := &revision.Finish{ID: "collaset", Type: "update", Request: "7"}
	changed := patched(t, pod("nginx:1", "c0"), image("nginx:2").Patch(pod("nginx:1", "c0"), "r2", finish))
	assert.Nil(t, revision.Carried(restarted(changed, "c0", "sha:nginx:1")).Finish,
		"nobody, as long as it is not carried out")
	done := restarted(changed, "c1", "sha:nginx:2")
	assert.Equal(t, finish, revision.Carried(done).Finish)

	again := patched(t, changed, image("nginx:3").Patch(changed, "r3", nil))
	assert.Nil(t, revision.Carried(restarted(again, "c1", "sha:nginx:3")).Finish, "the record of the last change counts")

	more := revision.Change{Resize: map[string]corev1.ResourceRequirements{"app": {Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	resized := patched(t, done, more.Patch(done, "r3", finish))
	assert.NotContains(t, resized.Annotations[lastPodStatus], "finish", "resources are the operator's to watch")
}

func TestChangeOnTopOfAnUnfinishedChange(t *testing.T) {
	first := patched(t, pod("nginx:1", "c0"), image("nginx:2").Patch(pod("nginx:1", "c0"), "r2", nil))

	t.Run("back to the image that still runs needs no restart", func(t *testing.T) {
		back := patched(t, first, image("nginx:1").Patch(first, "r1", nil))
		got := revision.Carried(restarted(back, "c0", "sha:nginx:1"))
		assert.True(t, got.Done, got.Missing)
	})
	t.Run("on to a third image still waits for the restart", func(t *testing.T) {
		third := patched(t, first, image("nginx:3").Patch(first, "r3", nil))
		assert.False(t, revision.Carried(restarted(third, "c0", "sha:nginx:1")).Done)
		got := revision.Carried(restarted(third, "c1", "sha:nginx:3"))
		assert.True(t, got.Done, got.Missing)
	})
	t.Run("back after the restart waits for another", func(t *testing.T) {
		first := restarted(first, "c1", "sha:nginx:2")
		back := patched(t, first, image("nginx:1").Patch(first, "r1", nil))
		assert.False(t, revision.Carried(restarted(back, "c1", "sha:nginx:2")).Done)
	})
}
