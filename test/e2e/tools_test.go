package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// columns of the lines of a table.
func columns(table string) [][]string {
	var lines [][]string
	for line := range strings.Lines(table) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

// kubectl runs it in the test's namespace and fails the test if it fails.
func (w *world) kubectl(t *testing.T, namespace string, args ...string) string {
	t.Helper()
	out, err := w.Kubectl(t.Context(), append([]string{"-n", namespace}, args...)...)
	require.NoError(t, err)
	return out
}

// TestKubectlKnowsCollaSets: what a person does with a workload from the command line works with a CollaSet.
func TestKubectlKnowsCollaSets(t *testing.T) {
	w := together(t)
	ns := w.namespace(t)
	w.create(t, workload.CollaSet(ns, "web", image1, 2))

	t.Run("wait ends when the Pods serve", func(t *testing.T) {
		w.kubectl(t, ns, "wait", "cls/web", "--for=condition=Ready", "--timeout="+await.Patience.String())
		require.NoError(t, workload.AtRest(t.Context(), w.client, ns, "web", 2, image1), "Ready promises that")
	})

	t.Run("scale changes the number of Pods", func(t *testing.T) {
		require.Contains(t, w.kubectl(t, ns, "scale", "collaset", "web", "--replicas=4", "--current-replicas=2"), "scaled")
		w.kubectl(t, ns, "wait", "cls/web", "--for=jsonpath={.status.availableReplicas}=4",
			"--timeout="+await.Patience.String())
		w.waitServing(t, ns, "web", 4, image1)
		_, err := w.Kubectl(t.Context(), "-n", ns, "scale", "collaset", "web", "--replicas=9", "--current-replicas=2")
		require.ErrorContains(t, err, "Expected replicas to be 2, was 4")
	})

	t.Run("wait after a change ends with the new Pods, not with the old", func(t *testing.T) {
		w.kubectl(t, ns, "wait", "cls/web", "--for=condition=Ready", "--timeout="+await.Patience.String())
		w.setImage(t, ns, "web", image2)
		w.kubectl(t, ns, "wait", "cls/web", "--for=condition=Ready", "--timeout="+await.Patience.String())
		require.NoError(t, workload.AtRest(t.Context(), w.client, ns, "web", 4, image2))
		w.kubectl(t, ns, "wait", "cls/web", "--for=jsonpath={.status.updatedAvailableReplicas}=4",
			"--timeout="+await.Patience.String())
	})

	t.Run("get shows where a rollout stands", func(t *testing.T) {
		lines := columns(w.kubectl(t, ns, "get", "cls", "web"))
		require.Len(t, lines, 2)
		require.Equal(t, []string{"NAME", "READY", "UPDATED", "AVAILABLE", "STATE", "AGE"}, lines[0])
		require.Equal(t, []string{"web", "4/4", "4", "4", "RolloutComplete"}, lines[1][:5])
		set := &appsv1alpha1.CollaSet{}
		require.NoError(t, w.client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "web"}, set))
		require.Equal(t, set.Status.UpdatedRevision, set.Status.CurrentRevision)
		require.Contains(t, w.kubectl(t, ns, "get", "kuperator"), "collaset.apps.kusionstack.io/web", "the category")
	})

	t.Run("explain describes every field", func(t *testing.T) {
		for field, want := range map[string]string{
			"spec.updateStrategy.maxSurge":                                       "may be under replacement",
			"spec.updateStrategy.rollingUpdate.byPartition.partition":            "stay at their old revision",
			"spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.whenScaled": "given up",
			"spec.template.spec.containers.image":                                "Container image name",
			"status.blockers":                                                    "what keeps Pods",
		} {
			require.Contains(t, strings.Join(strings.Fields(w.kubectl(t, ns, "explain", "collaset."+field)), " "), want, field)
		}
	})

	t.Run("rollout refuses a kind that it does not know, and wait stands in for it", func(t *testing.T) {
		for _, verb := range []string{"status", "history", "restart", "undo", "pause"} {
			_, err := w.Kubectl(t.Context(), "-n", ns, "rollout", verb, "cls/web")
			require.Error(t, err, "kubectl rollout %s has learnt about custom kinds: use it in docs/collaset.md", verb)
		}
	})

	t.Run("describe shows conditions and events", func(t *testing.T) {
		await.Nil(t, "both", func() error { // events come after what they tell of
			if out := w.kubectl(t, ns, "describe", "cls", "web"); !strings.Contains(out, "RolloutComplete") ||
				!strings.Contains(out, "collaset-controller") {
				return errors.New(out)
			}
			return nil
		})
	})
}

// ofExpressions makes the CollaSet's selector one of expressions alone.
func ofExpressions(set *appsv1alpha1.CollaSet) *appsv1alpha1.CollaSet {
	set.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{set.Name, "no-other"}},
		{Key: "no-such-label", Operator: metav1.LabelSelectorOpDoesNotExist},
	}}
	return set
}

// TestDisruptionBudgetInPercent: the disruption controller of Kubernetes counts the Pods that a CollaSet wants, by its
// scale subresource, and lets one of ten be evicted.
func TestDisruptionBudgetInPercent(t *testing.T) {
	w := alone(t)
	ns := w.namespace(t)
	set := ofExpressions(workload.CollaSet(ns, "web", image1, 10))
	// Evictions go to the API server as they are: it is the budget that is looked at, not the graceful deletion of
	// webhook-server.
	set.Spec.Template.Labels["podopslifecycle.kusionstack.io/graceful-deletion"] = "disabled"
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			MaxUnavailable: ptr.To(intstr.FromString("10%")),
		},
	}
	w.create(t, set, budget)
	w.waitServing(t, ns, "web", 10, image1)
	w.waitBudget(t, budget, policyv1.PodDisruptionBudgetStatus{ExpectedPods: 10, CurrentHealthy: 10, DesiredHealthy: 9,
		DisruptionsAllowed: 1})

	clients, err := w.Clients()
	require.NoError(t, err)
	evict := func(pod *corev1.Pod) error {
		return clients.PolicyV1().Evictions(ns).Evict(t.Context(),
			&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pod.Name}})
	}
	pods := w.pods(t, ns, "web")
	w.down(t, suite.CollaSet) // no controller makes up for the one that goes
	require.NoError(t, evict(&pods[0]), "one of ten")
	err = evict(&pods[1])
	require.True(t, apierrors.IsTooManyRequests(err), "a second is one too many: %v", err)
	require.NoError(t, w.Restart(t.Context(), suite.CollaSet))
	w.waitServing(t, ns, "web", 10, image1)
	w.waitBudget(t, budget, policyv1.PodDisruptionBudgetStatus{ExpectedPods: 10, CurrentHealthy: 10, DesiredHealthy: 9,
		DisruptionsAllowed: 1})

	w.kubectl(t, ns, "scale", "cls/web", "--replicas=20")
	w.waitServing(t, ns, "web", 20, image1)
	w.waitBudget(t, budget, policyv1.PodDisruptionBudgetStatus{ExpectedPods: 20, CurrentHealthy: 20, DesiredHealthy: 18,
		DisruptionsAllowed: 2})
}

func (w *world) waitBudget(
	t *testing.T, budget *policyv1.PodDisruptionBudget, want policyv1.PodDisruptionBudgetStatus,
) {
	t.Helper()
	await.Nil(t, fmt.Sprintf("the budget to expect %d Pods and allow %d disruptions", want.ExpectedPods,
		want.DisruptionsAllowed), func() error {
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(budget), budget); err != nil {
			return err
		}
		s := budget.Status
		if meta.IsStatusConditionPresentAndEqual(s.Conditions, policyv1.DisruptionAllowedCondition, metav1.ConditionFalse) &&
			s.ExpectedPods == 0 {
			// kube-controller-manager learns of new kinds every 30 s, and does not try again by itself.
			w.kubectl(t, budget.Namespace, "annotate", "pdb", budget.Name, "--overwrite",
				"poked="+time.Now().Format(time.RFC3339))
		}
		if s.ExpectedPods != want.ExpectedPods || s.CurrentHealthy != want.CurrentHealthy ||
			s.DesiredHealthy != want.DesiredHealthy || s.DisruptionsAllowed != want.DisruptionsAllowed {
			return fmt.Errorf("it says %+v", s)
		}
		return nil
	})
}

// TestHorizontalPodAutoscaler: the real controller, which finds a CollaSet's Pods by the selector in its scale
// subresource and reads their load from an aggregated metrics API, which is a stub in this process.
func TestHorizontalPodAutoscaler(t *testing.T) {
	w := together(t)
	ns := w.namespace(t)
	load := w.metricsAPI(t) // of all Pods together, so that more Pods have less each
	load.Store(200)
	set := ofExpressions(workload.CollaSet(ns, "web", image1, 2))
	set.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")}
	w.create(t, set)
	w.waitServing(t, ns, "web", 2, image1)
	scale := w.kubectl(t, ns, "get", "--raw", "/apis/apps.kusionstack.io/v1alpha1/namespaces/"+ns+"/collasets/web/scale")
	require.Contains(t, scale, `"selector":"app in (no-other,web),!no-such-label"`)

	atOnce := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](0)}
	w.create(t, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: appsv1alpha1.SchemeGroupVersion.String(),
				Kind: appsv1alpha1.CollaSetKind, Name: "web"},
			MinReplicas: ptr.To[int32](1), MaxReplicas: 5,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType,
				Resource: &autoscalingv2.ResourceMetricSource{
					Name: corev1.ResourceMemory, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
						AverageUtilization: ptr.To[int32](50)},
				}}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: atOnce, ScaleDown: atOnce},
		},
	})
	t.Cleanup(func() { // before the namespace: it would scale what is cleared
		_, _ = w.Kubectl(context.WithoutCancel(t.Context()), "-n", ns, "delete", "hpa", "--all")
	})
	w.waitServing(t, ns, "web", 4, image1) // twice the load that is wanted
	load.Store(100)
	w.waitServing(t, ns, "web", 2, image1) // half of it
	load.Store(1000)
	w.waitServing(t, ns, "web", 5, image1) // the most that it may
	require.Contains(t, w.kubectl(t, ns, "get", "hpa", "web"), "CollaSet/web")
}

var apiServices = schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"}

// metricsAPI serves metrics.k8s.io until the test ends: the Pods together use so many MiB of memory. The API server
// reaches the stub as it would a metrics server outside of the cluster, through a Service without endpoints.
func (w *world) metricsAPI(t *testing.T) *atomic.Int64 {
	t.Helper()
	load := &atomic.Int64{}
	const version = "metrics.k8s.io/v1beta1"
	answer := func(out http.ResponseWriter, body any) {
		out.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(out).Encode(body)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/"+version, func(out http.ResponseWriter, _ *http.Request) {
		answer(out, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version,
			APIResources: []metav1.APIResource{{Name: "pods", Namespaced: true, Kind: "PodMetrics",
				Verbs: metav1.Verbs{"get", "list"}}},
		})
	})
	mux.HandleFunc("GET /apis/"+version+"/namespaces/{namespace}/pods", func(out http.ResponseWriter, in *http.Request) {
		selector, err := labels.Parse(in.URL.Query().Get("labelSelector"))
		pods := &corev1.PodList{}
		if err = errors.Join(err, w.client.List(in.Context(), pods, client.InNamespace(in.PathValue("namespace")),
			client.MatchingLabelsSelector{Selector: selector})); err != nil {
			http.Error(out, err.Error(), http.StatusInternalServerError)
			return
		}
		items := []any{}
		pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		for i := range pods.Items {
			items = append(items, map[string]any{
				"metadata": map[string]any{"name": pods.Items[i].Name, "namespace": pods.Items[i].Namespace,
					"labels": pods.Items[i].Labels},
				"window": "10s", "timestamp": time.Now().UTC().Format(time.RFC3339),
				"containers": []any{map[string]any{"name": "main",
					"usage": map[string]string{"memory": fmt.Sprintf("%dMi", load.Load()/int64(len(pods.Items))), "cpu": "1m"}}},
			})
		}
		answer(out, map[string]any{"kind": "PodMetricsList", "apiVersion": version, "metadata": map[string]any{},
			"items": items})
	})
	server := httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	port := server.Listener.Addr().(*net.TCPAddr).Port

	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "stub-metrics"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}
	registration := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"group": "metrics.k8s.io", "version": "v1beta1", "insecureSkipTLSVerify": true, "groupPriorityMinimum": int64(100),
		"versionPriority": int64(100),
		"service":         map[string]any{"namespace": service.Namespace, "name": service.Name, "port": int64(port)},
	}}}
	registration.SetGroupVersionKind(apiServices)
	registration.SetName("v1beta1.metrics.k8s.io")
	require.NoError(t, w.client.Create(t.Context(), service))
	require.NoError(t, w.client.Create(t.Context(), registration))
	t.Cleanup(func() { // a dead registration would trouble every discovery
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		if err := errors.Join(w.client.Delete(ctx, registration), w.client.Delete(ctx, service)); err != nil {
			t.Errorf("removing the metrics API: %v", err)
		}
	})
	await.Nil(t, "the metrics API to be available", func() error {
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(registration), registration); err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(registration.Object, "status", "conditions")
		for _, c := range conditions {
			if m, ok := c.(map[string]any); ok && m["type"] == "Available" && m["status"] == "True" {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("its conditions are %v", conditions))
	})
	return load
}
