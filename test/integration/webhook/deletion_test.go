package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const (
	mark       = "collaset.kusionstack.io/to-delete"
	gracefully = "podopslifecycle.kusionstack.io/graceful-deletion"
	node       = "n1"
)

// runningPod creates a managed Pod on the node, Ready.
func (s *suite) runningPod(t *testing.T, name string, labels map[string]string) *corev1.Pod {
	t.Helper()
	pod := s.pod(name)
	pod.GenerateName, pod.Name = "", name
	pod.Spec.NodeName = node
	for key, value := range labels {
		pod.Labels[key] = value
	}
	pod, err := s.core.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	s.setStatus(t, pod, corev1.ConditionTrue)
	return pod
}

// setStatus says what the kubelet and lifecycle-controller would.
func (s *suite) setStatus(t *testing.T, pod *corev1.Pod, ready corev1.ConditionStatus) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"status": map[string]any{"phase": "Running", "conditions": []map[string]any{
		{"type": "Ready", "status": ready}, {"type": gate, "status": ready},
	}}})
	require.NoError(t, err)
	_, err = s.core.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

func (s *suite) label(t *testing.T, pod *corev1.Pod, labels map[string]any) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	require.NoError(t, err)
	_, err = s.core.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, body,
		metav1.PatchOptions{})
	require.NoError(t, err)
}

// now is the Pod as it is, nil if it does not exist or terminates.
func (s *suite) now(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	found, err := s.core.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && found.DeletionTimestamp != nil {
		return nil
	}
	require.NoError(t, err)
	return found
}

// as is a client of a user who may do everything.
func (s *suite) as(user string) kubernetes.Interface {
	config := s.cluster.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	return kubernetes.NewForConfigOrDie(config)
}

func (s *suite) delete(t *testing.T, pod *corev1.Pod, options metav1.DeleteOptions) error {
	t.Helper()
	return s.core.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, options)
}

// evict evicts as client-go does, but without repeating it when the answer says so.
func evict(ctx context.Context, client rest.Interface, pod *corev1.Pod, options *metav1.DeleteOptions) error {
	return client.Post().AbsPath("/api/v1").Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource(
		"eviction").MaxRetries(0).
		Body(&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: options}).Do(ctx).Error()
}

// TestGracefulDeletion has webhook-server alone: what it marks is not prepared.
func TestGracefulDeletion(t *testing.T) {
	s := start(t)
	_, err := s.core.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	evictions := s.core.PolicyV1().RESTClient()
	old := s.runningPod(t, "from-before", nil)
	require.Empty(t, old.Spec.ReadinessGates)
	p := s.run(t, "--graceful-deletion", "--announce-services")

	t.Run("a deletion is refused and the Pod is marked", func(t *testing.T) {
		pod := s.runningPod(t, "deleted", nil)
		err := s.delete(t, pod, metav1.DeleteOptions{})
		require.True(t, apierrors.IsConflict(err), "%v", err)
		require.ErrorContains(t, err, "Pod deleted is being taken out of service and is then deleted by itself")
		first := s.now(t, pod).Labels[mark]
		require.NotEmpty(t, first)
		require.Error(t, s.delete(t, pod, metav1.DeleteOptions{}))
		require.Equal(t, first, s.now(t, pod).Labels[mark], "the mark stays as it is")
		require.True(t, apierrors.IsConflict(s.delete(t, pod, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)})))

		s.setStatus(t, pod, corev1.ConditionFalse)
		s.label(t, pod, map[string]any{
			"operating.podopslifecycle.kusionstack.io/pod-delete":        "1",
			"operation-type.podopslifecycle.kusionstack.io/pod-delete":   "delete",
			"pre-checked.podopslifecycle.kusionstack.io/pod-delete":      "1",
			"operation-permission.podopslifecycle.kusionstack.io/delete": "1",
			"operate.podopslifecycle.kusionstack.io/pod-delete":          "1",
		})
		require.NoError(t, s.delete(t, pod, metav1.DeleteOptions{}), "it is out of service")
		require.Nil(t, s.now(t, pod))
		require.NoError(t, s.delete(t, pod, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}),
			"the kubelet's last word")
	})

	t.Run("an eviction is refused with 429 as clients know it", func(t *testing.T) {
		pod := s.runningPod(t, "evicted", nil)
		err := evict(t.Context(), evictions, pod, nil)
		require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
		seconds, suggested := apierrors.SuggestsClientDelay(err)
		require.True(t, suggested)
		require.Positive(t, seconds)
		require.ErrorContains(t, err, "Pod evicted is being taken out of service")
		require.NotEmpty(t, s.now(t, pod).Labels[mark])
	})

	t.Run(
		"an eviction during an update, which may be over before the Pod is deleted, waits unless it names the version of the Pod", func(t *testing.T) {
			updating := func(name string) *corev1.Pod {
				pod := s.runningPod(t, name, map[string]string{
					"operating.podopslifecycle.kusionstack.io/collaset":          "1",
					"operation-type.podopslifecycle.kusionstack.io/collaset":     "update",
					"pre-checked.podopslifecycle.kusionstack.io/collaset":        "1",
					"operation-permission.podopslifecycle.kusionstack.io/update": "1",
					"operate.podopslifecycle.kusionstack.io/collaset":            "1",
				})
				s.setStatus(t, pod, corev1.ConditionFalse)
				return pod
			}
			version := func(v string) *metav1.DeleteOptions {
				return &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &v}}
			}
			pod := updating("updated")
			err := evict(t.Context(), evictions, pod, nil)
			require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
			require.NotEmpty(t, s.now(t, pod).Labels[mark])

			pod = updating("updated-seen")
			err = evict(t.Context(), evictions, pod, version(pod.ResourceVersion))
			require.True(t, apierrors.IsConflict(err), "it was created with that version: %v", err)
			require.Empty(t, s.now(t, pod).Labels[mark])
			require.NoError(t, evict(t.Context(), evictions, pod, version(s.now(t, pod).ResourceVersion)))
			require.Nil(t, s.now(t, pod))
		})

	t.Run("a Pod of the same name that came meanwhile is not evicted in its place", func(t *testing.T) {
		pod := s.runningPod(t, "db-0", nil)
		require.True(t, apierrors.IsTooManyRequests(evict(t.Context(), evictions, pod, nil)))
		require.NoError(t, s.delete(t, pod, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
		require.True(t, apierrors.IsNotFound(evict(t.Context(), evictions, pod, nil)), "nobody has the name")
		pod = s.runningPod(t, "db-0", nil)
		require.True(t, apierrors.IsNotFound(evict(t.Context(), evictions, pod, nil)), "another one has it")
		require.Empty(t, s.now(t, pod).Labels[mark])
		require.True(t, apierrors.IsTooManyRequests(evict(t.Context(), evictions, pod, nil)))
	})

	t.Run("a dry run succeeds with a warning and does nothing", func(t *testing.T) {
		pod := s.runningPod(t, "dry", nil)
		require.NoError(t, s.delete(t, pod, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
		require.Contains(t, s.warnings.all(), "this delete would be refused at first")
		require.NoError(t, evict(t.Context(), evictions, pod, &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
		require.Contains(t, s.warnings.all(), "this eviction would be refused at first")
		out, err := s.cluster.Kubectl(t.Context(), "drain", node, "--dry-run=server", "--force", "--pod-selector=name=none")
		require.NoError(t, err, out)
		require.Empty(t, s.now(t, pod).Labels[mark])
	})

	t.Run("a budget that allows no disruption refuses an eviction and marks nothing", func(t *testing.T) {
		pod := s.runningPod(t, "budget", map[string]string{"app": "budget"})
		budget := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "all"},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "budget"}}},
		}
		_, err := s.core.PolicyV1().PodDisruptionBudgets(s.namespace).Create(t.Context(), budget, metav1.CreateOptions{})
		require.NoError(t, err)
		err = evict(t.Context(), evictions, pod, nil)
		require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
		require.ErrorContains(t, err, "PodDisruptionBudget all allows no disruption now")
		require.Empty(t, s.now(t, pod).Labels[mark])
	})

	t.Run("what is exempt goes at once", func(t *testing.T) {
		require.NoError(t, s.delete(t, old, metav1.DeleteOptions{}), "a Pod from before the webhook")
		forced := s.runningPod(t, "forced", nil)
		require.NoError(t, s.delete(t, forced, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
		collector := s.as("system:serviceaccount:kube-system:generic-garbage-collector")
		owned := s.runningPod(t, "owned", nil)
		require.NoError(t, collector.CoreV1().Pods(s.namespace).Delete(t.Context(), owned.Name, metav1.DeleteOptions{}))
		unmanaged := s.pod("unmanaged")
		unmanaged.Labels, unmanaged.Spec.NodeName = nil, node
		unmanaged, err := s.core.CoreV1().Pods(s.namespace).Create(t.Context(), unmanaged, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, evict(t.Context(), evictions, unmanaged, nil))
	})

	t.Run("labels of the Pod and of its namespace say otherwise", func(t *testing.T) {
		free := s.runningPod(t, "free", map[string]string{gracefully: "disabled"})
		require.NoError(t, s.delete(t, free, metav1.DeleteOptions{}))
		typo := s.runningPod(t, "typo", map[string]string{gracefully: "off"})
		require.Error(t, s.delete(t, typo, metav1.DeleteOptions{}))
		require.Contains(t, s.warnings.all(), `of Pod typo is "off" and is ignored`)

		other := testcluster.Namespace(t, s.cluster, map[string]string{gracefully: "disabled"})
		pod := s.pod("elsewhere")
		pod.Namespace, pod.GenerateName, pod.Name, pod.Spec.NodeName = other, "", "elsewhere", node
		pod, err := s.core.CoreV1().Pods(other).Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, s.delete(t, pod, metav1.DeleteOptions{}), "a namespace made a moment ago counts as well")
	})

	t.Run("each Pod of a collection is looked at", func(t *testing.T) {
		labels := map[string]string{"app": "many"}
		for i := range 3 {
			s.runningPod(t, fmt.Sprintf("many-%d", i), labels)
		}
		free := s.runningPod(t, "many-free", map[string]string{"app": "many", gracefully: "disabled"})
		err := s.core.CoreV1().Pods(s.namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: "app=many"})
		require.True(t, apierrors.IsConflict(err), "%v", err)
		require.NoError(t, s.delete(t, free, metav1.DeleteOptions{}))
		require.Contains(t, err.Error(), "Pod many-")
	})

	t.Run("the Services of a new Pod are announced", func(t *testing.T) {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"kusionstack.io/control": "true"}},
			Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
		}
		_, err := s.core.CoreV1().Services(s.namespace).Create(t.Context(), service, metav1.CreateOptions{})
		require.NoError(t, err)
		announced := func() bool {
			pod := s.pod("web")
			pod.Labels["app"] = "web"
			pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}} // as CollaSets make it
			pod, err := s.core.CoreV1().Pods(s.namespace).Create(t.Context(), pod,
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			require.NoError(t, err)
			require.Len(t, pod.Spec.ReadinessGates, 1)
			return strings.Contains(pod.Annotations["pod.kusionstack.io/available-conditions"],
				`"Service/`+s.namespace+`/web":"prot.podopslifecycle.kusionstack.io/`)
		}
		require.Eventually(t, announced, deadline, tick)
		require.NoError(t, s.core.CoreV1().Services(s.namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}))
		require.Eventually(t, func() bool { return !announced() }, deadline, tick)
	})

	t.Run("a server that died holds nothing up", func(t *testing.T) {
		pod := s.runningPod(t, "last", nil)
		require.Error(t, s.delete(t, pod, metav1.DeleteOptions{}))
		require.NoError(t, p.cmd.Process.Kill())
		_ = p.cmd.Wait() // killed
		require.NoError(t, s.delete(t, pod, metav1.DeleteOptions{}))
	})
}
