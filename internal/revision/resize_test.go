package revision_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/internal/revision"
)

// more is a change of cpu of the first container.
func more(cpu string) revision.Change {
	return revision.Change{Resize: map[string]corev1.ResourceRequirements{"app": requests(cpu, "")}}
}

// resizedPod is a Pod whose record wants 2 cpus, whose spec has them, and whose kubelet has seen that.
func resizedPod(t *testing.T) *corev1.Pod {
	t.Helper()
	p := pod("nginx:1", "c0")
	p.Spec.Containers[0].Resources = requests("1", "64Mi")
	p.Status.ContainerStatuses[0].Resources = p.Spec.Containers[0].Resources.DeepCopy()
	p = patched(t, p, more("2").Patch(p, "r2", nil))
	require.True(t, revision.Carried(p).ResizeDue)
	p = patched(t, p, revision.ResizePatch(p))
	p.Status.ObservedGeneration = p.Generation
	return p
}

func TestCarriedOfResources(t *testing.T) {
	pending := func(reason string, generation int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason, Message: "node has 1 cpu",
				ObservedGeneration: generation,
			}}
		}
	}
	given := func(p *corev1.Pod) { *p.Status.ContainerStatuses[0].Resources = requests("2", "64Mi") }
	for name, tc := range map[string]struct {
		edit func(*corev1.Pod)
		want revision.Progress
	}{
		"the container has them": {given, revision.Progress{Done: true}},
		"the container has them not": {func(*corev1.Pod) {}, revision.Progress{
			Wait: revision.WaitResize, Missing: "container app does not have its new resources yet",
		}},
		"a kubelet that says nothing of resources": {func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Resources = nil },
			revision.Progress{
				Wait: revision.WaitResize, Missing: "container app does not have its new resources yet",
			}},
		"the kubelet has not seen it": {func(p *corev1.Pod) { given(p); p.Status.ObservedGeneration-- }, revision.Progress{
			Wait: revision.WaitContainers, Missing: "the kubelet has not seen the change yet",
		}},
		"deferred": {pending(corev1.PodReasonDeferred, 0), revision.Progress{
			Wait: revision.WaitResizeDeferred, Missing: "the kubelet has put the resize off: Deferred: node has 1 cpu",
		}},
		"infeasible": {pending(corev1.PodReasonInfeasible, 3), revision.Progress{
			Wait:    revision.WaitResizeInfeasible,
			Missing: "the kubelet cannot give the Pod these resources: Infeasible: node has 1 cpu",
		}},
		"an older request was infeasible": {func(p *corev1.Pod) { given(p); pending(corev1.PodReasonInfeasible, 1)(p) },
			revision.Progress{Done: true}},
		"in progress": {func(p *corev1.Pod) {
			given(p)
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue,
				Reason: corev1.PodReasonError, Message: "busy"}}
		}, revision.Progress{Wait: revision.WaitResize, Missing: "the kubelet is changing the resources: Error: busy"}},
		"somebody changed the spec": {func(p *corev1.Pod) { p.Spec.Containers[0].Resources = requests("3", "64Mi") },
			revision.Progress{
				ResizeDue: true, Wait: revision.WaitResize, Missing: "pods/resize has yet to be written",
			}},
		"the API server refused": {func(p *corev1.Pod) {
			*p = *patched(t, p, revision.RefusedPatch(p, "no such thing"))
		}, revision.Progress{Wait: revision.WaitResizeInfeasible,
			Missing: "the API server refuses the resize: no such thing"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := resizedPod(t)
			require.EqualValues(t, 3, p.Generation, "the Pod, then its resources")
			tc.edit(p)
			assert.Equal(t, tc.want, revision.Carried(p))
		})
	}
}

func TestAChangeOnTopOfAResize(t *testing.T) {
	first := pod("nginx:1", "c0")
	first.Spec.Containers[0].Resources = requests("1", "64Mi")
	first = patched(t, first, more("2").Patch(first, "r2", nil))

	t.Run("back before it was written leaves nothing to write", func(t *testing.T) {
		back := patched(t, first, more("1").Patch(first, "r1", nil))
		assert.Nil(t, revision.ResizePatch(back))
		assert.False(t, revision.Carried(back).ResizeDue)
	})
	t.Run("one of something else still writes it", func(t *testing.T) {
		next := patched(t, first, image("nginx:2").Patch(first, "r3", nil))
		assert.Contains(t, string(revision.ResizePatch(next)), `"cpu":"2"`)
	})
	t.Run("one of other resources writes both", func(t *testing.T) {
		memory := revision.Change{Resize: map[string]corev1.ResourceRequirements{"app": requests("", "96Mi")}}
		next := patched(t, first, memory.Patch(first, "r3", nil))
		assert.Contains(t, string(revision.ResizePatch(next)), `"cpu":"2","memory":"96Mi"`)
	})
	t.Run("a refusal holds until other resources are asked for", func(t *testing.T) {
		refused := patched(t, first, revision.RefusedPatch(first, "no"))
		next := patched(t, refused, image("nginx:2").Patch(refused, "r3", nil))
		assert.Equal(t, revision.WaitResizeInfeasible, revision.Carried(next).Wait)
		back := patched(t, refused, more("1").Patch(refused, "r1", nil))
		assert.NotEqual(t, revision.WaitResizeInfeasible, revision.Carried(back).Wait)
	})
}

func TestSidecarsAreWaitedForAndInitContainersAreNot(t *testing.T) {
	p := pod("nginx:1", "c0")
	always := corev1.ContainerRestartPolicyAlways
	p.Spec.InitContainers = []corev1.Container{{Name: "setup", Image: "setup:1"},
		{Name: "mesh", Image: "mesh:1", RestartPolicy: &always}}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "setup", ContainerID: "s0"},
		{Name: "mesh", ContainerID: "m0", State: runs}}

	setup := revision.Change{Images: map[string]string{"setup": "setup:2"},
		Resize: map[string]corev1.ResourceRequirements{"setup": requests("2", "")}}
	changed := patched(t, p, setup.Patch(p, "r2", nil))
	changed = patched(t, changed, revision.ResizePatch(changed))
	assert.Equal(t, "setup:2", changed.Spec.InitContainers[0].Image)
	assert.Equal(t, "2", changed.Spec.InitContainers[0].Resources.Requests.Cpu().String())
	assert.False(t, revision.Carried(changed).Done, "the kubelet has not seen it")
	changed.Status.ObservedGeneration = changed.Generation
	got := revision.Carried(changed)
	assert.True(t, got.Done, got.Missing)

	sidecar := patched(t, p, revision.Change{Images: map[string]string{"mesh": "mesh:2"}}.Patch(p, "r2", nil))
	sidecar.Status.ObservedGeneration = sidecar.Generation
	assert.Equal(t, "container mesh has not been restarted yet", revision.Carried(sidecar).Missing)
	sidecar.Status.InitContainerStatuses[1].ContainerID = "m1"
	assert.True(t, revision.Carried(sidecar).Done)
}
