// Package poddecoration_test has the whole suite decorate Pods of every workload on a real API server, with the
// controllers of Kubernetes, under a rule, with simulated nodes. An observer watches every namespace and fails its test
// for any promise that is broken.
package poddecoration_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/race"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const image = "app:v1"

// shared is the suite that all tests use.
var shared = testsuite.Share(newWorld)

// world is the suite and an administrator's client.
type world struct {
	*suite.Suite
	client.Client
}

func TestMain(m *testing.M) { shared.Main(m) }

func newWorld(ctx context.Context) (*world, error) {
	s, err := suite.Start(ctx, suite.Config{Name: "poddecoration", Nodes: 3, Race: race.Enabled, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	c, err := testsuite.Client(s.RESTConfig())
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return &world{Suite: s, Client: c}, nil
}

// story is one test in its own namespace, with a rule about all Pods.
type story struct {
	*testing.T
	*world
	namespace string
	observer  *observer.Observer
	// breaks are the promises that do not hold without the component that the test stops.
	breaks []observer.Invariant
}

// begin makes a namespace in which a rule lets so many Pods be out of service. It runs beside other tests.
func begin(t *testing.T, maxUnavailable string) *story {
	t.Helper()
	t.Parallel()
	return newStory(t, maxUnavailable)
}

// beginAlone is begin for a test that stops components, which run again when it is over. No other test runs meanwhile.
func beginAlone(t *testing.T, maxUnavailable string) *story {
	t.Helper()
	w := shared.Get(t)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, name := range suite.Components() {
			if !slices.Contains(w.Running(), name) {
				require.NoError(t, w.Restart(ctx, name))
			}
		}
		require.NoError(t, w.WaitLeading(ctx, suite.Components()...))
	})
	return newStory(t, maxUnavailable)
}

func newStory(t *testing.T, maxUnavailable string) *story {
	t.Helper()
	s := &story{T: t, world: shared.Get(t)}
	s.namespace = testcluster.Namespace(t, s.Cluster, nil)
	var err error
	s.observer, err = observer.Start(context.WithoutCancel(t.Context()), s.RESTConfig(),
		observer.Options{Namespace: s.namespace})
	require.NoError(t, err)
	t.Cleanup(func() {
		report, err := s.observer.Stop()
		require.NoError(t, err)
		isMeant := func(v observer.Violation) bool { return slices.Contains(s.breaks, v.Invariant) }
		require.Empty(t, slices.DeleteFunc(report.Violations, isMeant))
	})
	rule := workload.Rule(s.namespace, "all", maxUnavailable)
	rule.Spec.Selector = &metav1.LabelSelector{}
	s.create(rule)
	return s
}

func (s *story) create(o client.Object) {
	s.Helper()
	require.NoError(s, s.Create(s.Context(), o))
}

func (s *story) await(what string, check func() error) {
	s.Helper()
	await.Nil(s.T, what, check)
}

// template is that of the Pods of a workload.
func template(name string) corev1.PodTemplateSpec {
	return workload.CollaSet("", name, image, 1).Spec.Template
}

// collaSet, deployment, statefulSet, job and bare are workloads of managed Pods.
func (s *story) collaSet(name string, pods int32) {
	s.create(workload.CollaSet(s.namespace, name, image, pods))
}

func (s *story) deployment(name string, pods int32) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	d.Spec.Replicas, d.Spec.Template = ptr.To(pods), template(name)
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	s.create(d)
}

func (s *story) statefulSet(name string, pods int32) {
	d := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	d.Spec.Replicas, d.Spec.Template, d.Spec.PodManagementPolicy = ptr.To(pods), template(name),
		appsv1.ParallelPodManagement
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	s.create(d)
}

func (s *story) job(name string) {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	j.Spec.Template = template(name)
	j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	// its Pod runs until the test is over
	j.Spec.Template.Labels["kwok.x-k8s.io/job"] = "runs"
	s.create(j)
}

func (s *story) bare(name string) {
	t := template(name)
	s.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name, Labels: t.Labels}, Spec: t.Spec})
}

// decoration applies a PodDecoration of all Pods; spec is YAML.
func (s *story) decoration(name, spec string) {
	s.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{}}
	parsed := map[string]any{}
	require.NoError(s, yaml.Unmarshal([]byte(spec), &parsed))
	if parsed["selector"] == nil {
		parsed["selector"] = map[string]any{}
	}
	object.Object["spec"] = parsed
	object.SetGroupVersionKind(appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodDecorationKind))
	object.SetNamespace(s.namespace)
	object.SetName(name)
	require.NoError(s, s.Apply(s.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test"),
		client.ForceOwnership))
}

// sidecar is a template with a native sidecar of an image.
func sidecar(image string) string {
	return `{template: {initContainers: [{name: proxy, restartPolicy: Always, image: "` + image + `"}]}}`
}

func (s *story) status(name string) appsv1alpha1.PodDecoration {
	s.Helper()
	d := appsv1alpha1.PodDecoration{}
	require.NoError(s, s.Get(s.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, &d))
	return d
}

// condition waits until a decoration's condition Progressing has a reason for its present spec.
func (s *story) condition(name string, reason appsv1alpha1.ConditionReason) appsv1alpha1.PodDecorationStatus {
	s.Helper()
	var status appsv1alpha1.PodDecorationStatus
	s.await(fmt.Sprintf("PodDecoration %s to be %s", name, reason), func() error {
		d := s.status(name)
		status = d.Status
		for _, c := range status.Conditions {
			if c.Type == appsv1alpha1.PodDecorationProgressing && c.ObservedGeneration == d.Generation &&
				c.Reason == string(reason) && status.ObservedGeneration == d.Generation {
				return nil
			}
		}
		return fmt.Errorf("%+v", status)
	})
	return status
}

// pods are the namespace's that do not terminate, by name.
func (s *story) pods() []corev1.Pod {
	s.Helper()
	var list corev1.PodList
	require.NoError(s, s.List(s.Context(), &list, client.InNamespace(s.namespace)))
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

// serve waits until so many Pods are there and serve, with nothing under way.
func (s *story) serve(pods int) {
	s.Helper()
	s.await("the Pods to serve", func() error {
		all := s.pods()
		if len(all) != pods {
			return fmt.Errorf("%d of %d Pods are there", len(all), pods)
		}
		for i := range all {
			if v := podops.Read(&all[i]); !v.Ready || !v.ServiceAvailable() || len(podops.Operations(v)) > 0 {
				return fmt.Errorf("%s: %v", v.Name, podops.Explain(v, nil))
			}
		}
		return nil
	})
}

// revisions counts the Pods by the revision of a decoration that they have.
func (s *story) revisions(name string) map[string]int {
	s.Helper()
	counts := map[string]int{}
	for _, p := range s.pods() {
		revision := ""
		for _, m := range decoration.MarksOf(p.Annotations) {
			if m.Name == name {
				revision = m.Revision
			}
		}
		require.Equal(s, revision, p.Labels[appsv1alpha1.PodDecorationLabelPrefix+name])
		counts[revision]++
	}
	return counts
}

// uids are those of Pods, by their names, of the apps given; of all without any.
func uids(pods []corev1.Pod, apps ...string) map[string]types.UID {
	all := map[string]types.UID{}
	for i := range pods {
		if len(apps) == 0 || slices.Contains(apps, pods[i].Labels["app"]) {
			all[pods[i].Name] = pods[i].UID
		}
	}
	return all
}

// proxies counts the Pods by the images of their sidecars.
func proxies(pods []corev1.Pod) map[string]int {
	counts := map[string]int{}
	for i := range pods {
		for _, c := range pods[i].Spec.InitContainers {
			counts[c.Image]++
		}
	}
	return counts
}

// common are the names that both have with the same UID.
func common(a, b map[string]types.UID) int {
	n := 0
	for name := range maps.Keys(a) {
		if a[name] == b[name] {
			n++
		}
	}
	return n
}
