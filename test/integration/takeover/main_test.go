// Package takeover_test loads what Kuperator v0.7.4 left into a real API server with simulated nodes, starts our
// controllers, and shows that nothing restarts, is re-created, changes revision or loses a volume, except where the
// spec asks for it. See testdata for what was recorded.
package takeover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const (
	// standstill is how long nothing must be written for things to be at rest.
	standstill = 3 * time.Second
	kwok       = "kwok"
)

// controllers are the components that take over.
var controllers = []string{suite.CollaSet, suite.PodTransitionRule, suite.Lifecycle}

// world is a cluster with our kinds and none of our controllers running yet.
type world struct {
	*suite.Suite
	client.Client
	// The three moments, as they were loaded last.
	atRest, midRollout, third *moment
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	// The recorded Pods are on node-2 and node-5.
	s, err := suite.Start(t.Context(), suite.Config{Name: "takeover", Nodes: 6, Components: []string{},
		Progress: t.Output()})
	require.NoError(t, err)
	w := &world{Suite: s}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.LogTails())
		}
		if err := s.Stop(); err != nil {
			t.Errorf("stopping the suite: %v", err)
		}
	})
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, appsv1alpha1.AddToScheme(scheme))
	w.Client, err = client.New(s.RESTConfig(), client.Options{Scheme: scheme})
	require.NoError(t, err)
	return w
}

// moment is one recording in its own namespace.
type moment struct {
	*testing.T
	*world
	file, namespace string
	// sets are the CollaSets in it.
	sets []string
	// before has every object as it was when our controllers came.
	before map[string]unstructured.Unstructured
}

// load makes the objects of a recording, with status. UIDs are new ones and owner references follow; the volumes, which
// were not recorded, are made up.
func (w *world) load(t *testing.T, file string) *moment {
	t.Helper()
	m := &moment{T: t, world: w, file: file, namespace: testcluster.Namespace(t, w.Cluster, nil)}
	raw, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	asJSON, err := yaml.YAMLToJSON(raw)
	require.NoError(t, err)
	list := &unstructured.UnstructuredList{}
	require.NoError(t, list.UnmarshalJSON(asJSON))
	uids := map[types.UID]types.UID{}
	for i := range list.Items {
		m.loadOne(&list.Items[i], uids)
	}
	require.Len(t, m.sets, 5)
	return m
}

func (m *moment) loadOne(object *unstructured.Unstructured, uids map[types.UID]types.UID) {
	m.Helper()
	what := object.GetKind() + " " + object.GetName()
	recorded, status := object.GetUID(), object.Object["status"]
	object.SetNamespace(m.namespace)
	object.SetUID("")
	object.SetResourceVersion("")
	owners := object.GetOwnerReferences()
	for j := range owners {
		owners[j].UID = uids[owners[j].UID]
		require.NotEmpty(m, owners[j].UID, "the owner of %s comes later", what)
	}
	object.SetOwnerReferences(owners)
	switch object.GetKind() {
	case appsv1alpha1.CollaSetKind:
		m.sets = append(m.sets, object.GetName())
	case "PersistentVolumeClaim":
		volume, found, err := unstructured.NestedString(object.Object, "spec", "volumeName")
		require.NoError(m, err)
		require.True(m, found, what)
		volume = m.namespace + "-" + volume
		require.NoError(m, unstructured.SetNestedField(object.Object, volume, "spec", "volumeName"))
		m.provide(volume)
	}
	require.NoError(m, m.Create(m.Context(), object), what)
	uids[recorded] = object.GetUID()
	if status != nil { // whatever a volume controller has written to it meanwhile
		body, err := json.Marshal(map[string]any{"status": status})
		require.NoError(m, err)
		require.NoError(m, m.Status().Patch(m.Context(), object, client.RawPatch(types.MergePatchType, body)), what)
	}
}

// provide makes a volume for a claim that says it is bound.
func (m *moment) provide(name string) {
	m.Helper()
	require.NoError(m, m.Create(m.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/simulated"}},
		},
	}))
}

// on is the moment in a subtest.
func (m *moment) on(t *testing.T) *moment {
	there := *m
	there.T = t
	return &there
}

// kept are the kinds that only the spec may give a reason to touch.
var kept = []schema.GroupVersionKind{
	corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"),
	appsv1.SchemeGroupVersion.WithKind("ControllerRevision"),
	appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.ResourceContextKind),
}

// belongings are all objects of these kinds, whole, by kind and name.
func (m *moment) belongings(kinds ...schema.GroupVersionKind) map[string]unstructured.Unstructured {
	m.Helper()
	out := map[string]unstructured.Unstructured{}
	for _, kind := range kinds {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		require.NoError(m, m.List(m.Context(), list, client.InNamespace(m.namespace)))
		require.NotEmpty(m, list.Items, kind.Kind)
		for _, object := range list.Items {
			out[kind.Kind+" "+object.GetName()] = object
		}
	}
	return out
}

// played waits until the simulated kubelets and the volume controllers have taken over what was loaded: kwok has seen
// a Pod that is younger, and every volume is bound.
func (m *moment) played() {
	m.Helper()
	namespace := testcluster.Namespace(m.T, m.Cluster, nil)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "witness"}}
	pod.Spec.NodeName, pod.Spec.Containers = "node-0", []corev1.Container{{Name: "main", Image: "nginx:1"}}
	require.NoError(m, m.Create(m.Context(), pod))
	m.eventually("the kubelets are at work", func() error {
		if err := m.Get(m.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || podops.Read(pod).Ready {
			return err
		}
		return errors.New("the youngest Pod is not Ready")
	})
	m.eventually("volumes are bound", func() error {
		volumes, claims := &corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{}
		if err := errors.Join(m.List(m.Context(), volumes),
			m.List(m.Context(), claims, client.InNamespace(m.namespace))); err != nil {
			return err
		}
		for _, claim := range claims.Items {
			bound := slices.ContainsFunc(volumes.Items, func(v corev1.PersistentVolume) bool {
				return v.Name == claim.Spec.VolumeName && v.Status.Phase == corev1.VolumeBound
			})
			if !bound || claim.Status.Phase != corev1.ClaimBound {
				return fmt.Errorf("claim %s is %s", claim.Name, claim.Status.Phase)
			}
		}
		return nil
	})
}

// rests waits until nothing of the namespace has been written for a while.
func (m *moment) rests() {
	m.Helper()
	last, since := "", time.Now()
	m.eventually("nothing is written any more", func() error {
		var versions []string
		for what, object := range m.belongings(append(slices.Clone(kept),
			appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind))...) {
			versions = append(versions, what+"@"+object.GetResourceVersion())
		}
		slices.Sort(versions)
		if now := strings.Join(versions, " "); now != last {
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); quiet < standstill {
			return fmt.Errorf("the last write was seen %s ago", quiet.Round(time.Millisecond))
		}
		return nil
	})
}

// eventually waits until check returns nil.
func (m *moment) eventually(what string, check func() error) {
	m.Helper()
	err := await.Until(m.Context(), check)
	if err == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.Context()), 30*time.Second)
	defer cancel()
	for _, kinds := range [][]string{{"pods", "--show-labels"}, {"persistentvolumeclaims", "--show-labels"},
		{"collasets,resourcecontexts,podtransitionrules", "-o", "yaml"}} {
		out, kubectlErr := m.Kubectl(ctx, append([]string{"-n", m.namespace, "get"}, kinds...)...)
		m.Logf("%s%v", out, kubectlErr)
	}
	m.Fatalf("waiting for %s: %v", what, err)
}

// set reads a CollaSet.
func (m *moment) set(name string) *appsv1alpha1.CollaSet {
	m.Helper()
	set := &appsv1alpha1.CollaSet{}
	require.NoError(m, m.Get(m.Context(), client.ObjectKey{Namespace: m.namespace, Name: name}, set))
	return set
}

// is reports whether the CollaSet has the condition for its present generation.
func is(set *appsv1alpha1.CollaSet, condition string) bool {
	return set.Status.ObservedGeneration == set.Generation &&
		slices.ContainsFunc(set.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == condition && c.Status == metav1.ConditionTrue && c.ObservedGeneration == set.Generation
		})
}

// reaches waits until the CollaSet has the condition for its present generation, and returns it.
func (m *moment) reaches(name, condition string) *appsv1alpha1.CollaSet {
	m.Helper()
	set := m.set(name)
	m.eventually(name+" is "+condition, func() error {
		if set = m.set(name); !is(set, condition) {
			return fmt.Errorf("its status is %+v", set.Status)
		}
		return nil
	})
	return set
}

// edit changes an object with a JSON merge patch.
func (m *moment) edit(object client.Object, name, patch string) {
	m.Helper()
	object.SetNamespace(m.namespace)
	object.SetName(name)
	require.NoError(m, m.Patch(m.Context(), object, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// setImage gives the first container of the template another image.
func (m *moment) setImage(name, image string) {
	m.Helper()
	set := m.set(name)
	changed := set.DeepCopy()
	changed.Spec.Template.Spec.Containers[0].Image = image
	require.NoError(m, m.Patch(m.Context(), changed, client.MergeFrom(set)))
}

// pods are the Pods of a CollaSet by instance ID, those on their way out apart.
func (m *moment) pods(app string) map[string]corev1.Pod {
	m.Helper()
	list := &corev1.PodList{}
	require.NoError(m, m.List(m.Context(), list, client.InNamespace(m.namespace), client.MatchingLabels{"app": app}))
	out := map[string]corev1.Pod{}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			id := pod.Labels[appsv1alpha1.InstanceIDLabel]
			require.NotContains(m, out, id, "two Pods of one instance ID")
			out[id] = pod
		}
	}
	return out
}

// serves says what is missing for the Pod to serve with nothing under way.
func serves(pod *corev1.Pod) error {
	if v := podops.Read(pod); !v.Ready || !v.ServiceAvailable() || len(podops.Operations(v)) > 0 {
		return fmt.Errorf("%s: ready=%v available=%v %v", pod.Name, v.Ready, v.ServiceAvailable(), podops.Explain(v, nil))
	}
	return nil
}

func revisionOf(pod *corev1.Pod) string { return pod.Labels[appsv1.ControllerRevisionHashLabelKey] }

// servesAt waits until the Pods of a CollaSet are exactly those of these instance IDs, serve, and are at these
// revisions.
func (m *moment) servesAt(app string, want map[string]string) map[string]corev1.Pod {
	m.Helper()
	var pods map[string]corev1.Pod
	m.eventually(fmt.Sprintf("%s serves at %v", app, want), func() error {
		pods = m.pods(app)
		if len(pods) != len(want) {
			return fmt.Errorf("%d Pods exist", len(pods))
		}
		for id, revision := range want {
			pod, ok := pods[id]
			switch {
			case !ok:
				return fmt.Errorf("instance ID %s has no Pod", id)
			case revisionOf(&pod) != revision:
				return fmt.Errorf("%s is at %s", pod.Name, revisionOf(&pod))
			case serves(&pod) != nil:
				return serves(&pod)
			}
		}
		return nil
	})
	return pods
}

// restarts are how often each container of a Pod was restarted.
func restarts(pod *corev1.Pod) map[string]int {
	out := map[string]int{}
	for _, c := range pod.Status.ContainerStatuses {
		out[c.Name] = int(c.RestartCount)
	}
	return out
}

// written are the writes of our controllers in the namespace since a moment, by component, as "<verb> <resource>".
func (m *moment) written(since time.Time) map[string]suite.Counts {
	m.Helper()
	requests, err := m.Requests(since)
	require.NoError(m, err)
	return suite.Writes(slices.DeleteFunc(requests,
		func(r suite.Request) bool { return r.Namespace != m.namespace || r.Component() == "" }))
}

// patchesOf counts the successful patches of one Pod by a component since a moment, status included.
func (m *moment) patchesOf(component, pod string, since time.Time) int {
	m.Helper()
	requests, err := m.Requests(since)
	require.NoError(m, err)
	n := 0
	for _, r := range requests {
		if r.Component() == component && r.Namespace == m.namespace && r.Resource == "pods" && r.Name == pod &&
			r.Write() && r.OK() {
			n++
		}
	}
	return n
}
