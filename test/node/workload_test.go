package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

const (
	namespace = "shop"
	name      = "web"
	port      = 8080
	sidecar   = "side"
)

// webSet is a CollaSet of HTTP servers that end at once on SIGTERM. Managed Pods take part in the Pod lifecycle.
func webSet(managed bool) *appsv1alpha1.CollaSet {
	labels := map[string]string{"app": name}
	if managed {
		labels[appsv1alpha1.ControlLabel] = appsv1alpha1.ControlValue
	}
	return &appsv1alpha1.CollaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1alpha1.CollaSetSpec{
			Replicas: ptr.To[int32](replicas),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					DNSPolicy: corev1.DNSDefault, AutomountServiceAccountToken: ptr.To(false),
					InitContainers: []corev1.Container{{
						Name: sidecar, Image: images["1"], ImagePullPolicy: corev1.PullNever, Args: []string{"pause"},
						RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
					}},
					Containers: []corev1.Container{{
						Name: "main", Image: images["1"], ImagePullPolicy: corev1.PullNever,
						ReadinessProbe: &corev1.Probe{
							ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(port)}},
							PeriodSeconds: 1, TimeoutSeconds: 10,
						},
					}},
					// Spread over the nodes, so that a drain always has something to do.
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
						LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
					}},
				},
			},
			UpdateStrategy: appsv1alpha1.UpdateStrategy{PodUpdatePolicy: appsv1alpha1.PodUpdateInPlaceIfPossible},
		},
	}
}

// webService is the Service in front, under the suite's control if managed.
func webService(managed bool) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(port)}}},
	}
	if managed {
		s.Labels = map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}
	}
	return s
}

// webRule allows so many of the Pods to be out of service.
func webRule(most int32) *appsv1alpha1.PodTransitionRule {
	return &appsv1alpha1.PodTransitionRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1alpha1.PodTransitionRuleSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Rules: []appsv1alpha1.TransitionRule{{Name: "available",
				TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
					AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: ptr.To(intstr.FromInt32(most))},
				}}},
		},
	}
}

func (w *world) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range append([]client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}},
		objects...) {
		require.NoError(t, w.client.Create(t.Context(), object), "%T %s", object, object.GetName())
	}
	eventually(t.Context(), t, "the service account of the namespace", func() error {
		return w.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "default"}, &corev1.ServiceAccount{})
	})
}

// update changes the CollaSet: policy, version of the image and number of Pods, each if it is not empty.
func (w *world) update(t *testing.T, policy appsv1alpha1.PodUpdatePolicy, version string, n int) {
	t.Helper()
	spec := map[string]any{}
	if policy != "" {
		spec["updateStrategy"] = map[string]any{"podUpdatePolicy": policy}
	}
	if version != "" {
		set := &appsv1alpha1.CollaSet{}
		require.NoError(t, w.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, set))
		containers := set.Spec.Template.Spec.Containers
		containers[0].Image = images[version]
		spec["template"] = map[string]any{"spec": map[string]any{"containers": containers}}
	}
	if n > 0 {
		spec["replicas"] = n
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	require.NoError(t, err)
	set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	require.NoError(t, w.client.Patch(t.Context(), set, client.RawPatch(types.MergePatchType, patch)))
}

func (w *world) pods(ctx context.Context) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	err := w.client.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{"app": name})
	return list.Items, err
}

// waitServing waits until exactly n Pods exist, all Ready with this version, with no operation left on them.
func (w *world) waitServing(t *testing.T, n int, version string) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	eventually(t.Context(), t, fmt.Sprintf("%d Pods serving version %s", n, version), func() (err error) {
		if pods, err = w.pods(t.Context()); err != nil {
			return err
		}
		var waits []string
		for i := range pods {
			if wait := notServing(&pods[i], images[version]); wait != "" {
				waits = append(waits, pods[i].Name+" "+wait)
			}
		}
		if len(pods) != n || len(waits) > 0 {
			return fmt.Errorf("%d Pods exist; %s", len(pods), strings.Join(waits, "; "))
		}
		return nil
	})
	return pods
}

// notServing says what a Pod lacks to serve the image, at rest; "" if nothing.
func notServing(pod *corev1.Pod, image string) string {
	v := podops.Read(pod)
	restarted := len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].Image == image
	switch {
	case pod.DeletionTimestamp != nil:
		return "is terminating"
	case pod.Spec.Containers[0].Image != image || !restarted:
		return "has another image"
	case !v.Ready:
		return "is not Ready"
	case v.Gate && !v.ServiceAvailable():
		return "is not available"
	case len(podops.Operations(v)) > 0:
		return "is under " + fmt.Sprint(podops.Operations(v))
	}
	return ""
}

// waitUnderWay waits until some Pod has been taken out of service for an operation.
func (w *world) waitUnderWay(t *testing.T) {
	t.Helper()
	eventually(t.Context(), t, "an operation under way", func() error {
		pods, err := w.pods(t.Context())
		if err != nil || slices.ContainsFunc(pods, func(p corev1.Pod) bool { return podops.MustLeave(podops.Read(&p)) }) {
			return err
		}
		return errors.New("every Pod is in service")
	})
}

// stuck checks for so long that not all Pods get to the version: something is away that they wait for.
func (w *world) stuck(t *testing.T, d time.Duration, version string) {
	t.Helper()
	for deadline := time.Now().Add(d); time.Now().Before(deadline); time.Sleep(interval) {
		pods, err := w.pods(t.Context())
		require.NoError(t, err)
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return notServing(&p, images[version]) != "" }) {
			require.Fail(t, "the update is complete", "nobody waited for what is away")
		}
	}
}

// waitGone waits until the Pod of this UID does not exist.
func (w *world) waitGone(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	eventually(t.Context(), t, pod.Name+" gone", func() error {
		now := &corev1.Pod{}
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(pod), now); err != nil || now.UID != pod.UID {
			return client.IgnoreNotFound(err)
		}
		return errors.New("it is there")
	})
}
