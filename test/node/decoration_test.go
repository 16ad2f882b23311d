package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

const (
	guest     = "guest" // a Deployment
	proxyPort = 8081
)

// TestASidecarIsUpdatedUnderLoad: a native sidecar that every request passes, added by a PodDecoration to the Pods of a
// CollaSet and of a Deployment. Another image restarts the sidecar alone, another environment takes other Pods, and no
// request is lost.
func TestASidecarIsUpdatedUnderLoad(t *testing.T) {
	needsRealNodes(t)
	w := newWorld(t, 2, suite.Config{Args: map[string][]string{suite.ResourceConsist: {"--adapters=endpointslice"}}})
	kube, err := w.Clients()
	require.NoError(t, err)
	w.create(t, proxyDecoration())
	eventually(t.Context(), t, "a revision of the decoration", func() error {
		d := &appsv1alpha1.PodDecoration{}
		err := w.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "proxy"}, d)
		if err == nil && d.Status.UpdatedRevision == "" {
			return errors.New("there is none")
		}
		return err
	})
	set := webSet(true)
	set.Spec.Template.Spec.InitContainers = nil
	for _, app := range []string{name, guest} {
		service, rule := webService(true), webRule(1)
		service.Name, service.Spec.Selector = app, map[string]string{"app": app}
		service.Spec.Ports[0].TargetPort = intstr.FromInt32(proxyPort)
		rule.Name, rule.Spec.Selector = app, &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
		require.NoError(t, w.client.Create(t.Context(), service))
		require.NoError(t, w.client.Create(t.Context(), rule))
	}
	require.NoError(t, w.client.Create(t.Context(), set))
	require.NoError(t, w.client.Create(t.Context(), deploymentOf(set)))
	before := w.waitProxied(t, "1", "")

	l := startLoad(t, clients/2, map[string]path{"CollaSet": follow(t, kube, namespace, name, replicas),
		"Deployment": follow(t, kube, namespace, guest, replicas)})
	l.phase("sidecar in place")
	w.changeProxy(t, "2", "")
	now := w.waitProxied(t, "2", "")
	require.Len(t, now, len(before))
	for pod, was := range before {
		was.side++
		require.Equal(t, was, now[pod], "%s is the same, and its sidecar alone has restarted", pod)
	}
	l.phase("another Pod for each")
	w.changeProxy(t, "2", "5ms")
	for pod, is := range w.waitProxied(t, "2", "5ms") {
		require.NotEqual(t, now[pod].uid, is.uid, "%s is another Pod", pod)
	}
	l.end()

	requests, failed := l.sums()
	t.Logf("%d requests, %d failed\n%s", requests, failed, l.table())
	require.Zero(t, failed, "lost requests")
	for _, phase := range l.phases[1:] { // what came before may have been too short
		asked, _ := phase.sums()
		require.Positive(t, asked, "requests while: %s", phase.name)
	}
}

// proxyDecoration adds the sidecar to the Pods of both workloads.
func proxyDecoration() *appsv1alpha1.PodDecoration {
	d := &appsv1alpha1.PodDecoration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "proxy"}}
	d.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{name, guest}}}}
	d.Spec.Template.InitContainers = []*corev1.Container{proxy("1", "")}
	return d
}

// proxy is the sidecar with the image of a version and an environment.
func proxy(version, work string) *corev1.Container {
	c := &corev1.Container{
		Name: sidecar, Image: images[version], ImagePullPolicy: corev1.PullNever, Args: []string{"proxy"},
		RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
		ReadinessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready",
				Port: intstr.FromInt32(proxyPort)}},
			PeriodSeconds: 1, TimeoutSeconds: 10,
		},
	}
	if work != "" {
		c.Env = []corev1.EnvVar{{Name: "WORK", Value: work}}
	}
	return c
}

// deploymentOf is a Deployment with the Pods of a CollaSet, by another name.
func deploymentOf(set *appsv1alpha1.CollaSet) *appsv1.Deployment {
	template := set.Spec.Template.DeepCopy()
	template.Labels["app"] = guest
	template.Spec.TopologySpreadConstraints = nil
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: guest},
		Spec: appsv1.DeploymentSpec{Replicas: set.Spec.Replicas, Template: *template,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": guest}}},
	}
}

// changeProxy gives the decoration another template.
func (w *world) changeProxy(t *testing.T, version, work string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{
		"initContainers": []*corev1.Container{proxy(version, work)}}}})
	require.NoError(t, err)
	d := &appsv1alpha1.PodDecoration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "proxy"}}
	require.NoError(t, w.client.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, patch)))
}

// waitProxied waits until all Pods of both workloads serve with this sidecar, at rest, and returns what they are.
func (w *world) waitProxied(t *testing.T, version, work string) map[string]podFacts {
	t.Helper()
	var facts map[string]podFacts
	eventually(t.Context(), t, "all Pods to serve with the sidecar", func() error {
		list := &corev1.PodList{}
		if err := w.client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			return err
		}
		facts = map[string]podFacts{}
		var waits []string
		for i := range list.Items {
			pod := &list.Items[i]
			if wait := notProxied(pod, version, work); wait != "" {
				waits = append(waits, pod.Name+" "+wait)
				continue
			}
			facts[pod.Name] = factsOf(pod)
		}
		if len(list.Items) != 2*replicas || len(waits) > 0 {
			return fmt.Errorf("%d Pods exist; %s", len(list.Items), strings.Join(waits, "; "))
		}
		return nil
	})
	return facts
}

// notProxied says what a Pod lacks to serve with the sidecar, at rest; "" if nothing.
func notProxied(pod *corev1.Pod, version, work string) string {
	if wait := notServing(pod, images["1"]); wait != "" {
		return wait
	}
	is := func(c corev1.Container) bool {
		return c.Name == sidecar && c.Image == images[version] && (len(c.Env) > 0) == (work != "")
	}
	switch statuses := pod.Status.InitContainerStatuses; {
	case !slices.ContainsFunc(pod.Spec.InitContainers, is):
		return "has not the sidecar"
	case len(statuses) != 1 || statuses[0].Image != images[version]:
		return "has not started the sidecar"
	case podops.Read(pod).Annotations[appsv1alpha1.LastPodStatusAnnotation] != "":
		return "is being changed"
	}
	return ""
}
