package collaset

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/revision"
)

// newest is what the newest server lets change.
func newest(context.Context) (revision.Capabilities, error) {
	return revision.Capabilities{Resize: true, ResizeInit: true, ResizePod: true}, nil
}

func cpuRequest(quantity string) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) {
		s.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(
			quantity)}
	}
}

// sized is a world without the lifecycle in which the Pods of web ask for cpu.
func sized(t *testing.T, n int32) *world {
	t.Helper()
	set := collaSet(n)
	set.Spec.UpdateStrategy.RollingUpdate = nil
	cpuRequest("100m")(&set.Spec)
	w := newWorld(t, false, set)
	w.r.serverCan = newest
	w.settle()
	return w
}

// recorded are the records of the Pods.
func (w *world) recorded() []string {
	w.Helper()
	var out []string
	for _, p := range w.pods() {
		out = append(out, p.Annotations[appsv1alpha1.LastPodStatusAnnotation])
	}
	return out
}

// report lets the kubelet say something of the first Pod.
func (w *world) kubelet(say func(*corev1.Pod)) {
	w.Helper()
	pod := w.pods()[0]
	say(&pod)
	require.NoError(w, w.store.Status().Update(w.Context(), &pod))
	w.see()
}

// resized has the status report the resources of the spec for the first container.
func resized(pod *corev1.Pod) {
	app := &pod.Spec.Containers[0]
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: app.Name, ContainerID: "c0", Resources: app.Resources.DeepCopy(),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
}

// look reconciles and shows what came of it.
func (w *world) look() {
	w.Helper()
	_, err := w.reconcile()
	require.NoError(w, err)
	w.see()
}

func TestAChecksumRestarts(t *testing.T) {
	set := collaSet(2)
	note := func(key, value string) func(*appsv1alpha1.CollaSetSpec) {
		return func(s *appsv1alpha1.CollaSetSpec) { s.Template.Annotations = map[string]string{key: value} }
	}
	note("checksum/config", "aaaa")(&set.Spec)
	w := newWorld(t, false, set)
	w.r.serverCan = func(ctx context.Context) (revision.Capabilities, error) {
		can, err := newest(ctx)
		can.Restart = revision.DefaultRestartAnnotations
		return can, err
	}
	w.settle()
	uids := func() (out []types.UID) {
		for _, p := range w.pods() {
			out = append(out, p.UID)
		}
		return out
	}
	before := uids()
	w.change(note("checksum/config", "bbbb"))
	w.settle()
	after := uids()
	require.Len(t, after, 2)
	for _, p := range w.pods() {
		assert.NotContains(t, before, p.UID)
		assert.Equal(t, "bbbb", p.Annotations["checksum/config"])
	}
	w.change(note("other", "bbbb"))
	w.settle()
	assert.ElementsMatch(t, after, uids(), "any other annotation is changed in place, and so is one that is taken away")
}

func TestResourcesFollowTheImage(t *testing.T) {
	w := sized(t, 1)
	before := w.pods()[0]
	w.change(both(image("nginx:2"), cpuRequest("200m")))
	w.look()
	assert.Equal(t, []string{"patch Pod", "patch Pod/resize"}, onlyPods(w.written))
	pod := w.pods()[0]
	assert.Equal(t, before.UID, pod.UID)
	assert.Equal(t, "nginx:2", pod.Spec.Containers[0].Image)
	assert.Equal(t, "200m", pod.Spec.Containers[0].Resources.Requests.Cpu().String())

	w.forget()
	w.look()
	assert.Empty(t, onlyPods(w.written), "the kubelet has not done it yet")
	w.kubelet(resized)
	w.look()
	assert.Equal(t, []string{""}, w.recorded())
}

func TestAResizeIsWrittenAgainUntilItIs(t *testing.T) {
	for name, answer := range map[string]error{"a server error": errAway, "a conflict": errConflict, "a quota": errQuota} {
		t.Run(name, func(t *testing.T) {
			w := sized(t, 1)
			w.change(cpuRequest("200m"))
			w.refuse = refusing("patch Pod/resize", answer)
			w.refuseTrial = refusing("create Pod", answer) // a quota forbids another Pod as well
			_, err := w.reconcile()
			assert.Equal(t, errors.Is(answer, errAway), err != nil, err)
			require.Contains(t, w.recorded()[0], "200m", "the Pod says what it still needs")
			assert.Equal(t, "100m", w.pods()[0].Spec.Containers[0].Resources.Requests.Cpu().String())

			w.forget()
			w.see()
			w.r.memory = &stateCache{} // another process goes on
			w.look()
			assert.Equal(t, []string{"patch Pod/resize"}, onlyPods(w.written))
			assert.Equal(t, "200m", w.pods()[0].Spec.Containers[0].Resources.Requests.Cpu().String())
		})
	}
}

// A limit goes between the resize that it forbids and the question whether another Pod would be taken: no node forbade
// anything, so no Pod is re-created.
func TestALimitThatGoesIsNotTakenForTheNode(t *testing.T) {
	w := sized(t, 1)
	before := w.pods()[0].UID
	w.change(cpuRequest("200m"))
	forbidden := false
	w.refuse = func(what string, _ client.Object) error {
		if what == "patch Pod/resize" && !forbidden {
			forbidden = true
			return errQuota
		}
		return nil
	}
	w.look()
	require.True(t, forbidden)
	assert.Equal(t, "200m", w.pods()[0].Spec.Containers[0].Resources.Requests.Cpu().String(), "it is asked for once more")
	w.kubelet(resized)
	w.look()
	assert.Equal(t, []string{""}, w.recorded())
	assert.Equal(t, before, w.pods()[0].UID)
}

func TestAResizeThatTheServerRefusesForGoodIsDoneByRecreation(t *testing.T) {
	unserved := apierrors.NewGenericServerResponse(404, "patch", schema.GroupResource{Resource: "pods"}, "x",
		"404 page not found", 0, true)
	for name, answer := range map[string]error{"what does not fit": errUnfit, "no such resource": unserved,
		"a node that cannot": errQuota} {
		t.Run(name, func(t *testing.T) {
			w := sized(t, 1)
			before := w.pods()[0].UID
			w.change(cpuRequest("200m"))
			w.refuse = refusing("patch Pod/resize", answer)
			w.look()
			require.Contains(t, w.recorded()[0], "the API server refuses the resize")
			w.look()
			assert.Equal(t, 1, w.count("delete Pod"))
			w.forget()
			w.settle()
			after := w.pods()[0]
			assert.NotEqual(t, before, after.UID)
			assert.Equal(t, "200m", after.Spec.Containers[0].Resources.Requests.Cpu().String())
		})
	}
}

func TestInPlaceOnlySaysThatAResizeIsInfeasible(t *testing.T) {
	w := sized(t, 2)
	w.change(both(cpuRequest("200"), func(s *appsv1alpha1.CollaSetSpec) {
		s.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceOnly
	}))
	w.look()
	changed := 0
	for _, p := range w.pods() {
		if p.Annotations[appsv1alpha1.LastPodStatusAnnotation] == "" {
			continue
		}
		changed++
		p.Status.Conditions = append(p.Status.Conditions,
			corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible,
				Message: "node has 8 cpus"})
		require.NoError(t, w.store.Status().Update(t.Context(), &p))
	}
	require.Equal(t, 1, changed, "one at a time")
	w.see()
	w.forget()
	for range 3 {
		w.look()
		w.clock.Step(statusPause)
	}
	assert.Empty(t, onlyPods(w.written), "nothing is deleted, and the other Pod is left alone")
	stalled := w.condition(appsv1alpha1.CollaSetStalled)
	assert.Equal(t, "True", string(stalled.Status))
	assert.Contains(t, stalled.Message, "node has 8 cpus")

	t.Log("what was asked for is put back")
	w.change(cpuRequest("100m"))
	w.look()
	assert.Equal(t, "100m", w.pods()[0].Spec.Containers[0].Resources.Requests.Cpu().String())
	assert.Equal(t, "100m", w.pods()[1].Spec.Containers[0].Resources.Requests.Cpu().String())
}

func TestADeferredResizeIsWaitedFor(t *testing.T) {
	w := sized(t, 1)
	w.change(cpuRequest("200m"))
	w.look()
	w.kubelet(func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions,
			corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonDeferred,
				Message: "no room now"})
	})
	w.forget()
	w.clock.Step(statusPause)
	w.look()
	assert.Empty(t, onlyPods(w.written))
	blockers := w.set().Status.Blockers
	require.Len(t, blockers, 1)
	assert.Equal(t, "ResizeDeferred", blockers[0].Reason)
	assert.Contains(t, blockers[0].Message, "no room now")
	assert.NotEqual(t, "True", string(w.condition(appsv1alpha1.CollaSetStalled).Status))
}

func TestTolerationsAreAddedToThoseOfThePod(t *testing.T) {
	w := newWorld(t, false, collaSet(1))
	w.settle()
	pod := w.pods()[0]
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists}}
	require.NoError(t, w.store.Update(t.Context(), &pod))
	w.see()
	w.change(func(s *appsv1alpha1.CollaSetSpec) {
		s.Template.Spec.Tolerations = []corev1.Toleration{{Key: "spot", Operator: corev1.TolerationOpExists}}
	})
	w.look()
	after := w.pods()[0]
	assert.Equal(t, pod.UID, after.UID)
	require.Len(t, after.Spec.Tolerations, 2)
	assert.Equal(t, "spot", after.Spec.Tolerations[1].Key)
}

func TestChangesAreExplainedAnewWhenTheServerCanDoMore(t *testing.T) {
	w := sized(t, 1)
	w.r.serverCan = canLeast
	w.change(both(cpuRequest("200m"), func(s *appsv1alpha1.CollaSetSpec) {
		s.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceOnly
	}))
	w.look()
	next := w.set().Status.NextUpdate
	require.NotNil(t, next)
	assert.False(t, next.InPlace)
	assert.Equal(t, []string{"template.spec.containers[app].resources"}, next.Fields)
	assert.Equal(t, "100m", w.pods()[0].Spec.Containers[0].Resources.Requests.Cpu().String())

	w.r.serverCan = newest
	w.clock.Step(statusPause)
	w.look()
	assert.Equal(t, "200m", w.pods()[0].Spec.Containers[0].Resources.Requests.Cpu().String())
	next = w.set().Status.NextUpdate
	require.NotNil(t, next)
	assert.True(t, next.InPlace)
	w.kubelet(resized)
	w.settle()
	assert.Nil(t, w.set().Status.NextUpdate)
}

func TestNothingIsDoneBeforeTheServerSaidWhatItCan(t *testing.T) {
	w := sized(t, 1)
	w.r.serverCan = func(context.Context) (revision.Capabilities, error) {
		return revision.Capabilities{}, errors.New("away")
	}
	w.change(cpuRequest("200m"))
	_, err := w.reconcile()
	require.ErrorContains(t, err, "away")
	assert.Empty(t, onlyPods(w.written), "a Pod that could be resized would be created anew")
}

func TestPatchesAreOfTheFormThatTheServerTakes(t *testing.T) {
	// pods/resize is asked with what differs alone.
	pod := fullPod()
	pod.Annotations[appsv1alpha1.LastPodStatusAnnotation] = `{"resize":{"app":{"requests":{"cpu":"3"}},"mesh":{"limits":{"cpu":"4"}},"side":{}}}`
	var patch map[string]any
	require.NoError(t, json.Unmarshal(revision.ResizePatch(pod), &patch))
	assert.Equal(t, map[string]any{
		"metadata": map[string]any{"uid": "u", "resourceVersion": "7"},
		"spec": map[string]any{
			"containers": []any{map[string]any{"name": "app",
				"resources": map[string]any{"requests": map[string]any{"cpu": "3"}}}},
			"initContainers": []any{map[string]any{"name": "mesh",
				"resources": map[string]any{"limits": map[string]any{"cpu": "4"}}}},
		},
	}, patch)
}

func onlyPods(written []string) []string {
	var out []string
	for _, what := range written {
		if what == "patch Pod" || what == "patch Pod/resize" || what == "delete Pod" || what == "create Pod" {
			out = append(out, what)
		}
	}
	return out
}
