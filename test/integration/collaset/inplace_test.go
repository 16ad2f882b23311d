package collaset_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/revision/detect"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/nightly"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

// kubeletSays, on a Pod, is how the played kubelet answers to a resize: a reason of PodResizePending. Absent: it does
// it.
const kubeletSays = "kubelet-says"

// inPlaceTemplate has something of everything that a running Pod can take over.
const inPlaceTemplate = `
metadata: {labels: {app: web}, annotations: {note: a}}
spec:
  nodeName: here
  activeDeadlineSeconds: 600000
  tolerations: [{key: gpu, operator: Exists, effect: NoExecute, tolerationSeconds: 60}]
  initContainers:
  - {name: setup, image: "setup:1", resources: {requests: {cpu: 50m, memory: 32Mi}}}
  - {name: mesh, image: "mesh:1", restartPolicy: Always, resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}}
  containers:
  - {name: app, image: "nginx:1", env: [{name: A, value: a}], resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: "1", memory: 128Mi}}}
  - {name: side, image: "envoy:1"}
`

// onePlayedNode starts a cluster whose only node is played by the test: its Pods name it.
func onePlayedNode(t *testing.T) (*localkube.Cluster, client.Client) {
	t.Helper()
	cluster, c := startAs(t, localkube.Config{Name: "in-place"})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}}
	require.NoError(t, c.Create(t.Context(), node))
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"),
		corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("100")}
	node.Status.Capacity = node.Status.Allocatable
	node.Status.DeclaredFeatures = []string{"InPlacePodLevelResourcesVerticalScaling",
		"InPlacePodVerticalScalingInitContainers"}
	require.NoError(t, c.Status().Update(t.Context(), node))
	return cluster, c
}

// runKubelet plays the kubelet until the test ends. What sets process-wide loggers must have started.
func runKubelet(t *testing.T, c client.Client) {
	t.Helper()
	play(t, 20*time.Millisecond, func(ctx context.Context) { playKubelet(ctx, c) })
}

// playKubelet brings the status of every Pod up to its spec.
func playKubelet(ctx context.Context, c client.Client) {
	list := &corev1.PodList{}
	if c.List(ctx, list) != nil {
		return
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.DeletionTimestamp != nil {
			_ = c.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
			continue
		}
		before := pod.DeepCopy()
		keepUp(pod)
		if !equality.Semantic.DeepEqual(before.Status, pod.Status) {
			_ = c.Status().Patch(ctx, pod, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		}
	}
}

func keepUp(pod *corev1.Pod) {
	says := pod.Annotations[kubeletSays]
	pod.Status.Phase, pod.Status.ObservedGeneration = corev1.PodRunning, pod.Generation
	pod.Status.ContainerStatuses = statuses(pod, pod.Spec.Containers, pod.Status.ContainerStatuses, says)
	pod.Status.InitContainerStatuses = statuses(pod, pod.Spec.InitContainers, pod.Status.InitContainerStatuses, says)
	if pod.Spec.Resources != nil && (says == "" || pod.Status.Resources == nil) {
		pod.Status.Resources = pod.Spec.Resources
	}
	set := func(t corev1.PodConditionType, holds bool, reason string) {
		status := corev1.ConditionFalse
		if holds {
			status = corev1.ConditionTrue
		}
		i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == t })
		if i < 0 {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: t})
			i = len(pod.Status.Conditions) - 1
		}
		c := &pod.Status.Conditions[i]
		if c.Status != status {
			c.LastTransitionTime = metav1.Now()
		}
		c.Status, c.Reason, c.ObservedGeneration = status, reason, pod.Generation
		if t == corev1.PodResizePending {
			c.Message = "the node says " + reason
		}
	}
	ready := true
	for _, gate := range pod.Spec.ReadinessGates {
		ready = ready && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == gate.ConditionType && c.Status == corev1.ConditionTrue
		})
	}
	set(corev1.PodScheduled, true, "")
	set(corev1.ContainersReady, true, "")
	set(corev1.PodReady, ready, "")
	pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions,
		func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizePending })
	if unlike(pod) {
		set(corev1.PodResizePending, true, says)
	}
}

// unlike reports whether a container has other resources than it should.
func unlike(pod *corev1.Pod) bool {
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		for _, s := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
			if s.Name == c.Name && !equality.Semantic.DeepEqual(*s.Resources, c.Resources) {
				return true
			}
		}
	}
	return false
}

func statuses(
	pod *corev1.Pod, containers []corev1.Container, before []corev1.ContainerStatus, says string,
) []corev1.ContainerStatus {
	out := make([]corev1.ContainerStatus, 0, len(containers))
	for i := range containers {
		c := &containers[i]
		s := corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true, Resources: c.Resources.DeepCopy()}
		if at := slices.IndexFunc(before, func(old corev1.ContainerStatus) bool { return old.Name == c.Name }); at >= 0 {
			old := &before[at]
			s.RestartCount = old.RestartCount
			if old.Image != c.Image {
				s.RestartCount++
			}
			if says != "" {
				s.Resources = old.Resources
			}
		}
		// Two tags of one digest have one image ID.
		_, digest, found := strings.Cut(c.Image, "@")
		if !found {
			digest = c.Image
		}
		s.ImageID = "played/" + digest
		s.ContainerID = fmt.Sprintf("played://%s-%s-%d", pod.UID, c.Name, s.RestartCount)
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: pod.CreationTimestamp}
		out = append(out, s)
	}
	return out
}

// edited is inPlaceTemplate with replacements in pairs.
func edited(t *testing.T, pairs ...string) string {
	t.Helper()
	out := inPlaceTemplate
	for i := 0; i < len(pairs); i += 2 {
		require.Contains(t, out, pairs[i])
		out = strings.Replace(out, pairs[i], pairs[i+1], 1)
	}
	return out
}

func revisionOf(t *testing.T, template string) *revision.Data {
	t.Helper()
	var object map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(template), &object))
	raw, err := revision.Render(map[string]any{"template": object})
	require.NoError(t, err)
	data, err := revision.Parse(raw)
	require.NoError(t, err)
	return data
}

func podOf(t *testing.T, template, namespace string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	require.NoError(t, yaml.Unmarshal([]byte(template), pod))
	pod.Namespace, pod.GenerateName = namespace, "p-"
	return pod
}

// theAPIServerAgreesWithTheTable shows for every row of revision.Explain that the API server takes what is called in
// place, and that it leads to the Pod that the new template makes; and that it refuses what is called forcing.
func theAPIServerAgreesWithTheTable(e env) {
	t, c, cluster, namespace := e.T, e.Client, e.cluster, e.namespace
	detector, err := detect.New(cluster.RESTConfig(), clock.RealClock{}, revision.Capabilities{})
	require.NoError(t, err)
	can, err := detector.Capabilities(t.Context())
	require.NoError(t, err)
	require.Equal(t, revision.Capabilities{Resize: true, ResizeInit: true, ResizePod: true}, can)

	pod := func(t *testing.T, template string) *corev1.Pod {
		t.Helper()
		p := podOf(t, template, namespace)
		require.NoError(t, c.Create(t.Context(), p))
		e := env{t, c, cluster, namespace}
		e.eventually("the Pod runs", func() string {
			require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(p), p))
			if len(p.Status.ContainerStatuses) == 0 {
				return "not yet"
			}
			return ""
		})
		return p
	}
	whole := []string{"  nodeName: here\n",
		"  nodeName: here\n  resources: {requests: {cpu: \"1\", memory: 1Gi}, limits: {memory: 2Gi}}\n"}
	for name, tc := range map[string]struct{ from, to []string }{
		"an image":                  {to: []string{"nginx:1", "nginx:2"}},
		"an init container's image": {to: []string{"setup:1", "setup:2"}},
		"a sidecar's image":         {to: []string{"mesh:1", "mesh:2"}},
		"labels and annotations":    {to: []string{"app: web}", "app: web, new: x}", "note: a", "other: b"}},
		"an added toleration":       {to: []string{"tolerations: [", "tolerations: [{key: spot, operator: Exists}, "}},
		"other seconds":             {to: []string{"tolerationSeconds: 60", "tolerationSeconds: 90"}},
		"an earlier deadline":       {to: []string{"600000", "300000"}},
		"a deadline that was not":   {from: []string{"  activeDeadlineSeconds: 600000\n", ""}},
		"cpu and memory":            {to: []string{"cpu: 100m, memory: 64Mi", "cpu: 200m, memory: 96Mi"}},
		"limits":                    {to: []string{`cpu: "1", memory: 128Mi`, `cpu: "2", memory: 256Mi`}},
		"a lower memory limit":      {to: []string{"memory: 128Mi", "memory: 96Mi"}},
		"an added limit":            {to: []string{"memory: 64Mi}}", "memory: 64Mi, cpu: 100m}}"}},
		"resources that were not":   {to: []string{`"envoy:1"`, `"envoy:1", resources: {limits: {cpu: 10m}}`}},
		"a sidecar's resources":     {to: []string{"cpu: 10m", "cpu: 20m"}},
		"an init container's":       {to: []string{"cpu: 50m", "cpu: 60m"}},
		"the whole Pod": {from: whole,
			to: append(slices.Clone(whole), `cpu: "1", memory: 1Gi`, `cpu: "2", memory: 1Gi`)},
		"a container of a whole Pod": {from: whole, to: append(slices.Clone(whole), "cpu: 100m", "cpu: 200m")},
		"everything at once": {to: []string{"nginx:1", "nginx:2", "setup:1", "setup:2", "mesh:1", "mesh:2",
			"note: a", "note: b", "tolerations: [", "tolerations: [{key: spot, operator: Exists}, ", "600000", "300000",
			"cpu: 100m", "cpu: 200m", "cpu: 10m", "cpu: 20m", "cpu: 50m", "cpu: 60m"}},
		"a request that is the limit": {from: []string{"requests: {cpu: 100m, memory: 64Mi}, ", ""},
			to: []string{"requests: {cpu: 100m, memory: 64Mi}, ", "", `cpu: "1"`, `cpu: "2"`}},
		"a guaranteed Pod's resources": {from: guaranteed(1), to: guaranteed(2)},
	} {
		t.Run("in place: "+name, func(t *testing.T) {
			from, to := edited(t, tc.from...), edited(t, tc.to...)
			change := revision.Explain(revisionOf(t, from), revisionOf(t, to), can)
			require.True(t, change.InPlace(), change.Forcing)
			p := pod(t, from)
			require.NoError(t, c.Patch(t.Context(), p,
				client.RawPatch(types.StrategicMergePatchType, change.Patch(p, "r2", nil))))
			env{t, c, cluster, namespace}.eventually("the Pod is resized", func() string { // the kubelet writes to it as well
				data := revision.ResizePatch(p)
				if data == nil {
					return ""
				}
				err := c.SubResource("resize").Patch(t.Context(), p, client.RawPatch(types.StrategicMergePatchType, data))
				if apierrors.IsConflict(err) {
					require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(p), p))
					return err.Error()
				}
				require.NoError(t, err)
				return ""
			})
			assert.Nil(t, revision.ResizePatch(p), "there is nothing left to write")
			wanted := podOf(t, to, namespace)
			require.NoError(t, c.Create(t.Context(), wanted, client.DryRunAll))
			assert.Empty(t, cmp.Diff(taken(wanted), taken(p)))
			delete(p.Labels, "controller-revision-hash")
			delete(p.Annotations, appsv1alpha1.LastPodStatusAnnotation)
			assert.Equal(t, wanted.Labels, p.Labels)
			assert.Equal(t, wanted.Annotations, p.Annotations)
		})
	}
	for name, tc := range map[string]struct{ from, to []string }{
		"an environment variable": {to: []string{"value: a", "value: b"}},
		"a removed toleration":    {to: []string{"  tolerations: [{key: gpu, operator: Exists, effect: NoExecute, tolerationSeconds: 60}]\n", ""}},
		"another effect":          {to: []string{"effect: NoExecute, tolerationSeconds: 60", "effect: NoSchedule"}},
		"a later deadline":        {to: []string{"600000", "900000"}},
		"no deadline any more":    {to: []string{"  activeDeadlineSeconds: 600000\n", ""}},
		"a removed limit":         {to: []string{`limits: {cpu: "1", memory`, "limits: {memory"}},
		"another QoS class": {from: guaranteed(1),
			to: append(guaranteed(1), "{limits: {cpu: 1,", "{requests: {cpu: 500m}, limits: {cpu: 1,")},
		"another resource": {to: []string{"requests: {cpu: 100m", "requests: {ephemeral-storage: 1Gi, cpu: 100m"}},
		"a resize policy": {to: []string{`"envoy:1"`,
			`"envoy:1", resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]`}},
		"resources of Windows": {from: windows, to: append(slices.Clone(windows), "cpu: 100m", "cpu: 200m")},
		"a container more":     {to: []string{`"envoy:1"}`, `"envoy:1"}` + "\n  - {name: more, image: more}"}},
		"a volume": {to: []string{"  nodeName: here\n",
			"  nodeName: here\n  volumes: [{name: v, emptyDir: {}}]\n"}},
		"a grace period": {to: []string{"  nodeName: here\n",
			"  nodeName: here\n  terminationGracePeriodSeconds: 5\n"}},
	} {
		t.Run("forcing: "+name, func(t *testing.T) {
			from, to := edited(t, tc.from...), edited(t, tc.to...)
			change := revision.Explain(revisionOf(t, from), revisionOf(t, to), can)
			require.False(t, change.InPlace())
			t.Log(change.Forcing)
			p := pod(t, from)
			wanted := podOf(t, to, namespace)
			require.NoError(t, c.Create(t.Context(), wanted, client.DryRunAll))
			old, err := json.Marshal(map[string]any{"spec": p.Spec})
			require.NoError(t, err)
			asked, err := json.Marshal(map[string]any{"spec": wanted.Spec})
			require.NoError(t, err)
			patch, err := strategicpatch.CreateTwoWayMergePatch(old, asked, corev1.Pod{})
			require.NoError(t, err)
			require.NotEqual(t, "{}", string(patch))
			err = c.Patch(t.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch))
			assert.True(t, apierrors.IsInvalid(err), "%s: %v", patch, err)
			resized := p.DeepCopy()
			if err := c.SubResource("resize").Patch(t.Context(), resized,
				client.RawPatch(types.StrategicMergePatchType, patch)); err == nil {
				assert.Equal(t, p.Spec, resized.Spec, "it was dropped silently")
			} else {
				assert.True(t, apierrors.IsInvalid(err), "%s: %v", patch, err)
			}
		})
	}
}

// guaranteed are the replacements that make a Pod of one class with so many cpus.
func guaranteed(cpus int) []string {
	small := "{limits: {cpu: 10m, memory: 16Mi}}"
	return []string{
		"{requests: {cpu: 50m, memory: 32Mi}}", small, "{requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}", small,
		`{requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: "1", memory: 128Mi}}`,
		fmt.Sprintf("{limits: {cpu: %d, memory: 128Mi}}", cpus),
		`"envoy:1"`, `"envoy:1", resources: ` + small,
	}
}

var windows = []string{"  nodeName: here\n", "  nodeName: here\n  os: {name: windows}\n"}

// taken is what of a Pod's spec can be taken over.
func taken(pod *corev1.Pod) map[string]any {
	out := map[string]any{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		raw, _ := json.Marshal(c.Resources)
		out[c.Name] = c.Image + string(raw)
	}
	var tolerations []string
	for _, t := range pod.Spec.Tolerations {
		tolerations = append(tolerations, fmt.Sprint(t.Key, t.Operator, t.Effect, ptr.Deref(t.TolerationSeconds, -1)))
	}
	slices.Sort(tolerations)
	out["tolerations"], out["deadline"] = tolerations, ptr.Deref(pod.Spec.ActiveDeadlineSeconds, 0)
	if pod.Spec.Resources != nil {
		raw, _ := json.Marshal(pod.Spec.Resources)
		out["resources"] = string(raw)
	}
	return out
}

// TestInPlace shows whole updates in place, with a kubelet that answers to a resize as it is told.
func TestInPlace(t *testing.T) {
	cluster, c := onePlayedNode(t)
	run(t, cluster)
	runKubelet(t, c)
	playLifecycle(t, c)
	in := func(t *testing.T) env { return env{t, c, cluster, testcluster.Namespace(t, cluster, nil)} }
	for name, test := range lonelyInPlaceStories {
		t.Run(name, func(t *testing.T) { test(in(t)) })
	}
	tell(t, in, inPlaceStories)
	tell(t, in, map[string]func(env){
		"the API server agrees with the table": theAPIServerAgreesWithTheTable,
	})
}

// TestInPlaceDirectly shows the same without the lifecycle, where one Pod at a time is changed.
func TestInPlaceDirectly(t *testing.T) {
	nightly.Only(t, "TestInPlace shows it with the lifecycle")
	cluster, c := onePlayedNode(t)
	run(t, cluster, "--pod-ops-lifecycle=false")
	runKubelet(t, c)
	in := func(t *testing.T) env { return env{t, c, cluster, testcluster.Namespace(t, cluster, nil)} }
	for name, test := range lonelyInPlaceStories {
		t.Run(name, func(t *testing.T) { test(in(t)) })
	}
	tell(t, in, inPlaceStories)
}

// TestClearedManagedFields shows that the API server keeps no record of fields of a Pod that was changed, no matter
// which client writes it then, unless one applies to it: that client can still take away what it applied before the
// change.
func TestClearedManagedFields(t *testing.T) {
	cluster, c := onePlayedNode(t)
	run(t, cluster, "--clear-pod-managed-fields")
	runKubelet(t, c)
	playLifecycle(t, c)
	e := env{t, c, cluster, testcluster.Namespace(t, cluster, nil)}
	set := e.createInPlace(2)
	for _, p := range e.pods() {
		require.NotEmpty(t, p.ManagedFields, "a creation is recorded")
	}
	e.changeTemplate(set, appsv1alpha1.PodUpdateInPlaceOnly, "nginx:1", "nginx:2")
	e.reachesReady(set)
	for _, p := range e.pods() {
		require.Equal(t, "nginx:2", p.Spec.Containers[0].Image)
		require.Empty(t, p.ManagedFields)
	}

	pod := e.pods()[0]
	applied := corev1ac.Pod(pod.Name, pod.Namespace).WithAnnotations(map[string]string{"owned-by": "somebody"})
	require.NoError(t, c.Apply(t.Context(), applied, client.FieldOwner("somebody")))
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(&pod), &pod))
	require.NotEmpty(t, pod.ManagedFields)
	e.changeTemplate(set, appsv1alpha1.PodUpdateInPlaceOnly, "nginx:1", "nginx:3")
	e.reachesReady(set)
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(&pod), &pod))
	require.Equal(t, "nginx:3", pod.Spec.Containers[0].Image)
	require.Equal(t, "somebody", pod.Annotations["owned-by"])
	require.NoError(t, c.Apply(t.Context(), corev1ac.Pod(pod.Name, pod.Namespace), client.FieldOwner("somebody")))
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(&pod), &pod))
	require.NotContains(t, pod.Annotations, "owned-by")

	// Nothing is left of who applied, and the Pod is as others are.
	e.changeTemplate(set, appsv1alpha1.PodUpdateInPlaceOnly, "nginx:1", "nginx:4")
	e.reachesReady(set)
	for _, p := range e.pods() {
		require.Empty(t, p.ManagedFields)
	}
}

// createInPlace makes a CollaSet of inPlaceTemplate.
func (e env) createInPlace(replicas int32) *appsv1alpha1.CollaSet {
	e.Helper()
	set := e.create("web", replicas, func(set *appsv1alpha1.CollaSet) { set.Spec.Template = e.template() })
	e.reachesReady(set)
	return set
}

// template is inPlaceTemplate with replacements.
func (e env) template(pairs ...string) (out corev1.PodTemplateSpec) {
	e.Helper()
	require.NoError(e, yaml.Unmarshal([]byte(edited(e.T, pairs...)), &out))
	return out
}

func (e env) changeTemplate(set *appsv1alpha1.CollaSet, policy appsv1alpha1.PodUpdatePolicy, pairs ...string) {
	e.Helper()
	e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
		s.UpdateStrategy.PodUpdatePolicy, s.Template = policy, e.template(pairs...)
	})
}

// answer tells the kubelet how to answer to a resize of the present Pods.
func (e env) answer(says string) {
	e.Helper()
	value := `"` + says + `"`
	if says == "" {
		value = "null"
	}
	for _, p := range e.pods() {
		require.NoError(e, e.Patch(e.Context(), &p,
			client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+kubeletSays+`":`+value+`}}}`))))
	}
}

func (e env) blocked(set *appsv1alpha1.CollaSet, reason, message string) {
	e.Helper()
	e.eventually("blocked by "+reason, func() string {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		for _, b := range set.Status.Blockers {
			if b.Reason == reason && strings.Contains(b.Message, message) {
				return ""
			}
		}
		return fmt.Sprint(set.Status.Blockers)
	})
}

// cpus are what the first container of each Pod is said to have.
func (e env) cpus() []string {
	e.Helper()
	var out []string
	for _, p := range e.pods() {
		out = append(out, p.Status.ContainerStatuses[0].Resources.Requests.Cpu().String())
	}
	return out
}

// lonelyInPlaceStories change the node that all Pods are on.
var lonelyInPlaceStories = map[string]func(env){
	"a resize that the Pod's node cannot do is done by a new Pod": func(e env) {
		set := e.createInPlace(1)
		before := e.pods()[0].UID
		node := &corev1.Node{}
		require.NoError(e, e.Get(e.Context(), types.NamespacedName{Name: "here"}, node))
		declares := func(features []string) {
			old := node.DeepCopy()
			node.Status.DeclaredFeatures = features
			require.NoError(e, e.Status().Patch(e.Context(), node, client.MergeFrom(old)))
		}
		can := node.Status.DeclaredFeatures
		declares(nil) // as a node of an older version
		defer declares(can)
		e.eventually("the API server has seen it", func() string {
			body := `{"spec":{"initContainers":[{"name":"setup","resources":{"requests":{"cpu":"60m"}}}]}}`
			if e.SubResource("resize").Patch(e.Context(), &e.pods()[0],
				client.RawPatch(types.StrategicMergePatchType, []byte(body)), client.DryRunAll) == nil {
				return "it would resize the Pod"
			}
			return ""
		})
		e.changeTemplate(set, "", "cpu: 50m", "cpu: 60m")
		e.reachesReady(set)
		after := e.pods()[0]
		assert.NotEqual(e, before, after.UID)
		assert.Equal(e, "60m", after.Spec.InitContainers[0].Resources.Requests.Cpu().String())
	},
}

var inPlaceStories = map[string]func(env){
	"everything that a running Pod takes over, in one operation": func(e env) {
		set := e.createInPlace(2)
		before := e.pods()
		e.changeTemplate(set, "", "nginx:1", "nginx:2", "setup:1", "setup:2", "mesh:1", "mesh:2", "note: a", "note: b",
			"tolerations: [", "tolerations: [{key: spot, operator: Exists}, ", "600000", "300000", "cpu: 100m", "cpu: 200m",
			"cpu: 10m", "cpu: 20m", "cpu: 50m", "cpu: 60m")
		e.reachesReady(set)
		assert.Nil(e, set.Status.NextUpdate)
		after := e.pods()
		require.Equal(e, uids(before), uids(after))
		for i, p := range after {
			assert.Equal(e, "setup:2", p.Spec.InitContainers[0].Image)
			assert.Equal(e, "60m", p.Spec.InitContainers[0].Resources.Requests.Cpu().String())
			assert.Equal(e, "mesh:2", p.Spec.InitContainers[1].Image)
			assert.Equal(e, "20m", p.Status.InitContainerStatuses[1].Resources.Requests.Cpu().String())
			assert.NotEqual(e, before[i].Status.InitContainerStatuses[1].ContainerID,
				p.Status.InitContainerStatuses[1].ContainerID)
			assert.Equal(e, "200m", p.Status.ContainerStatuses[0].Resources.Requests.Cpu().String())
			assert.NotEqual(e, containerID(before[i], "app"), containerID(p, "app"))
			assert.Equal(e, containerID(before[i], "side"), containerID(p, "side"))
			assert.Equal(e, "b", p.Annotations["note"])
			assert.EqualValues(e, 300000, *p.Spec.ActiveDeadlineSeconds)
			assert.True(e, slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == "spot" }))
		}
		e.quiet()
	},
	"another tag of an equal digest finishes": func(e env) {
		digest := "@sha256:" + strings.Repeat("0", 64)
		set := e.createInPlace(1)
		e.changeTemplate(set, appsv1alpha1.PodUpdateInPlaceOnly, "nginx:1", "nginx:1"+digest)
		e.reachesReady(set)
		before := e.pods()[0]
		e.changeTemplate(set, appsv1alpha1.PodUpdateInPlaceOnly, "nginx:1", "nginx:2"+digest)
		e.reachesReady(set)
		after := e.pods()[0]
		assert.Equal(e, before.UID, after.UID)
		assert.Equal(e, before.Status.ContainerStatuses[0].ImageID, after.Status.ContainerStatuses[0].ImageID)
		assert.NotEqual(e, containerID(before, "app"), containerID(after, "app"))
	},
	"a deferred resize is waited for": func(e env) {
		set := e.createInPlace(2)
		before := uids(e.pods())
		e.answer(corev1.PodReasonDeferred)
		e.changeTemplate(set, "", "cpu: 100m", "cpu: 200m")
		e.blocked(set, "ResizeDeferred", "the node says Deferred")
		assert.Equal(e, before, uids(e.pods()))
		e.answer("")
		e.reachesReady(set)
		assert.Equal(e, before, uids(e.pods()))
		assert.Equal(e, []string{"200m", "200m"}, e.cpus())
	},
	"a deferred resize is taken back": func(e env) {
		set := e.createInPlace(2)
		before := uids(e.pods())
		first := set.Status.UpdatedRevision
		e.answer(corev1.PodReasonDeferred)
		e.changeTemplate(set, "", "cpu: 100m", "cpu: 200m", "nginx:1", "nginx:2")
		e.blocked(set, "ResizeDeferred", "the node says Deferred")
		e.changeTemplate(set, "")
		e.reachesReady(set)
		assert.Equal(e, first, set.Status.UpdatedRevision)
		assert.Equal(e, before, uids(e.pods()))
		assert.Equal(e, []string{"100m", "100m"}, e.cpus())
		assert.Equal(e, 2, running(e.pods(), "nginx:1"))
	},
	"a second change on top of a deferred resize": func(e env) {
		set := e.createInPlace(2)
		before := uids(e.pods())
		e.answer(corev1.PodReasonDeferred)
		e.changeTemplate(set, "", "cpu: 100m", "cpu: 200m")
		e.blocked(set, "ResizeDeferred", "the node says Deferred")
		e.changeTemplate(set, "", "cpu: 100m", "cpu: 200m", "nginx:1", "nginx:2", "cpu: 10m", "cpu: 20m")
		e.eventually("the second change is on a Pod", func() string {
			if slices.ContainsFunc(e.pods(), func(p corev1.Pod) bool { return p.Spec.Containers[0].Image == "nginx:2" }) {
				return ""
			}
			return "not yet"
		})
		e.answer("")
		e.reachesReady(set)
		assert.Equal(e, before, uids(e.pods()))
		assert.Equal(e, []string{"200m", "200m"}, e.cpus())
	},
	"an infeasible resize is done by new Pods": func(e env) {
		set := e.createInPlace(2)
		before := e.pods()
		e.answer(corev1.PodReasonInfeasible)
		e.changeTemplate(set, "", "cpu: 100m", "cpu: 200m")
		e.reachesReady(set)
		assert.Equal(e, ids(before), ids(e.pods()))
		for _, uid := range uids(before) {
			assert.NotContains(e, uids(e.pods()), uid)
		}
		assert.Equal(e, []string{"200m", "200m"}, e.cpus())
	},
	"with InPlaceOnly an infeasible resize is said, and can be taken back": func(e env) {
		set := e.createInPlace(2)
		before := uids(e.pods())
		e.answer(corev1.PodReasonInfeasible)
		e.changeTemplate(set, appsv1alpha1.PodUpdateInPlaceOnly, "cpu: 100m", "cpu: 200m")
		e.blocked(set, "ResizeInfeasible", "the node says Infeasible")
		e.reaches(set, appsv1alpha1.CollaSetStalled)
		assert.Equal(e, before, uids(e.pods()))
		e.changeTemplate(set, appsv1alpha1.PodUpdateInPlaceOnly)
		e.reachesReady(set)
		assert.True(e, meta.IsStatusConditionFalse(set.Status.Conditions, appsv1alpha1.CollaSetStalled))
		assert.Equal(e, before, uids(e.pods()))
		assert.Equal(e, []string{"100m", "100m"}, e.cpus())
	},
	"a resize that the API server refuses is done by a new Pod": func(e env) {
		// What the template asks for keeps the class; this Pod was given another by a user.
		set := e.createInPlace(1)
		before := e.pods()[0]
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			s.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceIfPossible
		})
		body := `{"spec":{"containers":[{"name":"app","resources":{"limits":{"cpu":"4"}}}]}}`
		require.NoError(e, e.SubResource("resize").Patch(e.Context(), &before,
			client.RawPatch(types.StrategicMergePatchType, []byte(body))))
		e.changeTemplate(set, "", "cpu: 100m", `cpu: "3"`, `cpu: "1"`, `cpu: "4"`)
		e.reachesReady(set)
		assert.Equal(e, []string{"3"}, e.cpus())
	},
	"what a quota forbids is not tried by deleting Pods": func(e env) {
		set := e.createInPlace(1)
		before := e.pods()[0].UID
		limits := &corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "small"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			}}},
		}
		require.NoError(e, e.Create(e.Context(), limits))
		e.refuses("maximum cpu usage per Container is 1", func(c *corev1.Container) {
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
		})
		e.changeTemplate(set, "", `cpu: "1"`, `cpu: "2"`)
		e.eventually("the refusal is told", func() string {
			require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
			if c := meta.FindStatusCondition(set.Status.Conditions, appsv1alpha1.CollaSetStalled); c == nil ||
				!strings.Contains(c.Message, "maximum cpu usage per Container is 1") {
				return fmt.Sprint(c)
			}
			return ""
		})
		assert.Equal(e, before, e.pods()[0].UID)
		require.NoError(e, e.Delete(e.Context(), limits))
		e.reachesReady(set)
		assert.Equal(e, before, e.pods()[0].UID)
	},
	"a restart request makes new Pods": func(e env) {
		set := e.createInPlace(2)
		before := e.pods()
		e.changeTemplate(set, "", "note: a", `note: a, kubectl.kubernetes.io/restartedAt: "2026-01-01T00:00:00Z"`)
		e.reachesReady(set)
		assert.Equal(e, ids(before), ids(e.pods()))
		for _, uid := range uids(before) {
			assert.NotContains(e, uids(e.pods()), uid)
		}
	},
	"what comes is said before it is done": func(e env) {
		set := e.createInPlace(1)
		forecast := func(policy appsv1alpha1.PodUpdatePolicy, wanted appsv1alpha1.UpdateForecast, pairs ...string) {
			e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
				partition(1)(s)
				s.UpdateStrategy.PodUpdatePolicy, s.Template = policy, e.template(pairs...)
			})
			e.eventually("the forecast", func() string {
				require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
				if set.Status.NextUpdate == nil || set.Status.ObservedGeneration != set.Generation {
					return "none"
				}
				return cmp.Diff(wanted, *set.Status.NextUpdate)
			})
		}
		forecast("", appsv1alpha1.UpdateForecast{InPlace: true}, "cpu: 100m", "cpu: 200m")
		forecast("", appsv1alpha1.UpdateForecast{Fields: []string{"template.spec.containers[app].env"}}, "value: a",
			"value: b", "cpu: 100m", "cpu: 200m")
		e.changeTemplate(set, "")
		e.reachesReady(set)
		assert.Nil(e, set.Status.NextUpdate)
	},
}
