package collaset

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/revision"
)

// fullPod has everything that a decision may look at, and more.
func fullPod() *corev1.Pod {
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	condition := func(t corev1.PodConditionType) corev1.PodCondition {
		return corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: at, Message: "long"}
	}
	status := func(name string) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			Name: name, Image: "i", ImageID: "sha256:" + name, ContainerID: "containerd://" + name, RestartCount: 2,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}},
		}
	}
	cpu := func(quantity string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(quantity)}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-1", UID: "u", ResourceVersion: "7", Generation: 3, CreationTimestamp: at,
			Labels: map[string]string{
				"app": "web", appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue, appsv1alpha1.InstanceIDLabel: "4",
				appsv1.ControllerRevisionHashLabelKey: "web-1", podops.ServiceAvailableLabel: "1",
				podops.OperatingPrefix + "/collaset": "1", podops.OperationTypePrefix + "/collaset": podops.TypeUpdate,
			},
			Annotations: map[string]string{appsv1alpha1.LastPodStatusAnnotation: `{"containerStates":{"app":{"lastImageID":"sha256:app","lastContainerID":"containerd://app"}}}`},
			Finalizers:  []string{podops.ProtectionFinalizerPrefix + "x"},
			OwnerReferences: []metav1.OwnerReference{{
				Kind: appsv1alpha1.CollaSetKind, APIVersion: appsv1alpha1.SchemeGroupVersion.String(), Name: "web", UID: "web",
				Controller: new(true),
			}},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x"}},
		},
		Spec: corev1.PodSpec{
			NodeName:       "n",
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}},
			Containers: []corev1.Container{
				{Name: "app", Image: "nginx:1", Env: []corev1.EnvVar{{Name: "A", Value: "1"}}, Resources: cpu("2")},
				{Name: "side", Image: "envoy:1"},
			},
			InitContainers: []corev1.Container{
				{Name: "setup", Image: "setup:1", Env: []corev1.EnvVar{{Name: "A", Value: "1"}}},
				{Name: "mesh", Image: "mesh:1", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Resources: cpu("2")},
			},
			Volumes: []corev1.Volume{{Name: "v"}}, ActiveDeadlineSeconds: new(int64(600)), Resources: ptr.To(cpu("2")),
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, ObservedGeneration: 3, PodIP: "10.0.0.1",
			Conditions: []corev1.PodCondition{
				condition(corev1.PodInitialized), condition(corev1.PodScheduled), condition(corev1.ContainersReady),
				condition(corev1.PodReady), condition(podops.ServiceReadyCondition),
			},
			ContainerStatuses:     []corev1.ContainerStatus{status("app"), status("side")},
			InitContainerStatuses: []corev1.ContainerStatus{status("setup"), status("mesh")},
		},
	}
}

func TestCacheKeepsWhatIsRead(t *testing.T) {
	change := revision.Change{Images: map[string]string{"app": "nginx:2", "side": "envoy:2", "mesh": "mesh:2",
		"setup": "setup:2"}, ActiveDeadlineSeconds: new(int64(10))}
	for name, edit := range map[string]func(*corev1.Pod){
		"a Pod that was changed in place": func(*corev1.Pod) {},
		"a Pod whose change is carried out": func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].ContainerID = "containerd://next"
		},
		"a Pod whose sidecar is not restarted": func(p *corev1.Pod) {
			p.Annotations[appsv1alpha1.LastPodStatusAnnotation] = `{"containerStates":{"mesh":{"lastContainerID":"containerd://mesh"}}}`
		},
		"a Pod whose resources are to be changed": func(p *corev1.Pod) {
			p.Annotations[appsv1alpha1.LastPodStatusAnnotation] = `{"resize":{"app":{"requests":{"cpu":"3"}},"mesh":{"requests":{"cpu":"2"}}}}`
		},
		"a Pod whose resources are not changed yet": func(p *corev1.Pod) {
			p.Annotations[appsv1alpha1.LastPodStatusAnnotation] = `{"resize":{"app":{"requests":{"cpu":"2"}},"mesh":{"requests":{"cpu":"2"}}},"podResize":{"requests":{"cpu":"2"}}}`
		},
		"a Pod whose resources are changed": func(p *corev1.Pod) {
			p.Annotations[appsv1alpha1.LastPodStatusAnnotation] = `{"resize":{"app":{"requests":{"cpu":"2"}},"mesh":{"requests":{"cpu":"2"}}},"podResize":{"requests":{"cpu":"2"}}}`
			two := func() *corev1.ResourceRequirements {
				return &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}
			}
			p.Status.ContainerStatuses[0].Resources, p.Status.InitContainerStatuses[1].Resources, p.Status.Resources = two(),
				two(), two()
		},
		"a Pod whose resize is deferred": func(p *corev1.Pod) {
			p.Annotations[appsv1alpha1.LastPodStatusAnnotation] = `{"resize":{"app":{"requests":{"cpu":"2"}}}}`
			p.Status.Conditions = append(p.Status.Conditions,
				corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonDeferred,
					Message: "no room"})
		},
		"a Pod whose resize is deferred for an older request": func(p *corev1.Pod) {
			p.Annotations[appsv1alpha1.LastPodStatusAnnotation] = `{"resize":{"app":{"requests":{"cpu":"2"}}}}`
			p.Status.Conditions = append(p.Status.Conditions,
				corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible,
					ObservedGeneration: 2})
		},
		"a Pod without a record":                      func(p *corev1.Pod) { p.Annotations = nil },
		"a Pod whose change the kubelet has not seen": func(p *corev1.Pod) { p.Generation = 4 },
		"a Pod whose image cannot be pulled": func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}
		},
		"a Pod whose init container cannot start": func(p *corev1.Pod) {
			p.Status.InitContainerStatuses[0].State = corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: `secret "a" not found`}}
		},
		"a Pod without the gate": func(p *corev1.Pod) { p.Spec.ReadinessGates = nil },
		"a Pod out of service": func(p *corev1.Pod) {
			for i := range p.Status.Conditions {
				p.Status.Conditions[i].Status = corev1.ConditionFalse
			}
		},
		"a Pod that somebody applied to": func(p *corev1.Pod) {
			p.ManagedFields = append(p.ManagedFields, metav1.ManagedFieldsEntry{
				Manager: "somebody", Operation: metav1.ManagedFieldsOperationApply,
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`),
			})
		},
		"a Pod that failed":           func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"a Pod that is being deleted": func(p *corev1.Pod) { p.DeletionTimestamp = &p.CreationTimestamp },
		"a Pod with nothing in it":    func(p *corev1.Pod) { *p = corev1.Pod{} },
	} {
		t.Run(name, func(t *testing.T) {
			pod := fullPod()
			edit(pod)
			stripped, err := stripPod(pod.DeepCopy())
			require.NoError(t, err)
			kept := stripped.(*corev1.Pod)
			assert.Empty(t, cmp.Diff(podops.Read(pod), podops.Read(kept)))
			assert.Empty(t, cmp.Diff(podOf(pod, labels.Everything()), podOf(kept, labels.Everything())))
			assert.Equal(t, string(change.Patch(pod, "web-2", nil)), string(change.Patch(kept, "web-2", nil)))
			assert.Equal(t, string(revision.ResizePatch(pod)), string(revision.ResizePatch(kept)))
			assert.Equal(t, pod.OwnerReferences, kept.OwnerReferences)
			again, err := stripPod(kept.DeepCopy())
			require.NoError(t, err)
			assert.Empty(t, cmp.Diff(kept, again), "it can be done twice")
			assert.Equal(t, hasApplied(pod), len(kept.ManagedFields) > 0)
			assert.Empty(t, kept.Spec.Volumes)
			for _, c := range slices.Concat(kept.Spec.Containers, kept.Spec.InitContainers) {
				assert.Empty(t, c.Env)
				if !revision.Recorded(pod) {
					assert.Empty(t, c.Resources)
				}
			}
		})
	}
}

func TestWhatIsAwaitedOfOthersIsNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"not set": {func(*corev1.Pod) {}, "example.com/lb"},
		"False": {func(p *corev1.Pod) { setCondition(p, "example.com/lb", corev1.ConditionFalse) },
			"example.com/lb"},
		"True": {func(p *corev1.Pod) { setCondition(p, "example.com/lb", corev1.ConditionTrue) }, ""},
		"containers are not ready": {func(p *corev1.Pod) { setCondition(p, corev1.ContainersReady, corev1.ConditionFalse) },
			""},
		"the Pod is Ready": {func(p *corev1.Pod) { setCondition(p, corev1.PodReady, corev1.ConditionTrue) }, ""},
		"a cooperator's finalizer is not on": {func(p *corev1.Pod) {
			setCondition(p, corev1.PodReady, corev1.ConditionTrue)
			p.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"mesh":"prot.podopslifecycle.kusionstack.io/mesh"}}`}
		}, "prot.podopslifecycle.kusionstack.io/mesh of mesh"},
		"ours": {func(p *corev1.Pod) { p.Spec.ReadinessGates = p.Spec.ReadinessGates[:1] }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}, {ConditionType: "example.com/lb"}}}}
			setCondition(pod, corev1.ContainersReady, corev1.ConditionTrue)
			tc.change(pod)
			kept, err := stripPod(pod)
			require.NoError(t, err)
			assert.Equal(t, tc.want, podOf(kept.(*corev1.Pod), labels.Everything()).Awaited)
		})
	}
}

func setCondition(pod *corev1.Pod, of corev1.PodConditionType, status corev1.ConditionStatus) {
	pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions,
		func(c corev1.PodCondition) bool { return c.Type == of })
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: of, Status: status})
}

func TestCacheHoldsManagedPodsOnly(t *testing.T) {
	for object, by := range cacheOptions(&podcache.Store{}).ByObject {
		if _, node := object.(*corev1.Node); node {
			assert.Nil(t, by.Label, "all nodes, once one is asked for")
			continue
		}
		assert.Contains(t, []reflect.Type{reflect.TypeFor[*corev1.Pod](), reflect.TypeFor[*corev1.PersistentVolumeClaim]()},
			reflect.TypeOf(object))
		assert.True(t, by.Label.Matches(labels.Set(fullPod().Labels)))
		assert.False(t, by.Label.Matches(labels.Set{"app": "web"}))
	}
	other, err := stripPod(
		&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{}}}})
	require.NoError(t, err)
	assert.Empty(t, other.(client.Object).GetManagedFields())
}

func TestSetOf(t *testing.T) {
	pod := fullPod()
	_, uid, owned := setOf(pod)
	assert.True(t, owned)
	assert.Equal(t, types.UID("web"), uid)
	pod.OwnerReferences[0].Controller = nil
	_, _, owned = setOf(pod)
	assert.False(t, owned, "it does not control it")
	pod = fullPod()
	pod.OwnerReferences[0].Kind = "ReplicaSet"
	_, _, owned = setOf(pod)
	assert.False(t, owned)
}

func TestNamePrefix(t *testing.T) {
	for set, want := range map[string]string{"web": "web-", "a.b": "a.b-"} {
		assert.Equal(t, want, namePrefix(set))
	}
}
