package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/nightly"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// nodeDrainer empties a node as some program does, and returns when no Pod of the namespace is left on it.
type nodeDrainer struct {
	name string
	run  func(ctx context.Context, namespace, node string) error
}

// drainers are kubectl, and programs that behave like Karpenter and cluster-autoscaler, as their documentation has it.
func (w *world) drainers() []nodeDrainer {
	kubectl := func(ctx context.Context, _, node string) error {
		out, err := w.Kubectl(ctx, "drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=10m")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	return []nodeDrainer{{"kubectl", kubectl}, {"like Karpenter", w.likeKarpenter},
		{"like cluster-autoscaler", w.likeAutoscaler}}
}

// likeKarpenter plans a node's removal only if every Pod could be evicted now, by what PodDisruptionBudgets say. Then
// it taints the node and evicts with a growing pause for each Pod, until the node's deadline.
func (w *world) likeKarpenter(ctx context.Context, namespace, node string) error {
	const deadline = 8 * time.Minute // terminationGracePeriod
	planned := func(ctx context.Context) (bool, error) {
		why, err := w.blockedByBudget(ctx, namespace, node)
		return why == "", err
	}
	if err := wait.PollUntilContextTimeout(ctx, 10*time.Second, 2*time.Minute, true, planned); err != nil {
		why, _ := w.blockedByBudget(ctx, namespace, node)
		return fmt.Errorf("the node is never planned for removal: %s: %w", why, err)
	}
	disrupted := corev1.Taint{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}
	if err := w.taint(ctx, node, disrupted); err != nil {
		return err
	}
	return w.evictAll(ctx, namespace, node, deadline, func(refusals int) time.Duration {
		return min(100*time.Millisecond<<min(refusals, 10), 10*time.Second)
	})
}

// likeAutoscaler taints the node and tries for two minutes, every ten seconds. It gives the node up then.
func (w *world) likeAutoscaler(ctx context.Context, namespace, node string) error {
	if err := w.taint(ctx, node, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Value: "1",
		Effect: corev1.TaintEffectNoSchedule}); err != nil {
		return err
	}
	return w.evictAll(ctx, namespace, node, 2*time.Minute, func(int) time.Duration { return 10 * time.Second })
}

// blockedByBudget names a Pod of the node that PodDisruptionBudgets do not let go now.
func (w *world) blockedByBudget(ctx context.Context, namespace, node string) (string, error) {
	budgets := &policyv1.PodDisruptionBudgetList{}
	if err := w.client.List(ctx, budgets, client.InNamespace(namespace)); err != nil {
		return "", err
	}
	pods, err := w.podsOn(ctx, namespace, node)
	if err != nil {
		return "", err
	}
	for i := range pods {
		for j := range budgets.Items {
			selector, err := metav1.LabelSelectorAsSelector(budgets.Items[j].Spec.Selector)
			if err != nil {
				return "", err
			}
			if selector.Matches(labels.Set(pods[i].Labels)) && budgets.Items[j].Status.DisruptionsAllowed < 1 {
				return fmt.Sprintf("Pod %s: PodDisruptionBudget %s", pods[i].Name, budgets.Items[j].Name), nil
			}
		}
	}
	return "", nil
}

func (w *world) podsOn(ctx context.Context, namespace, node string) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	err := w.client.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{"spec.nodeName": node})
	return list.Items, err
}

// fullest are the n nodes that have most Pods of a namespace.
func (w *world) fullest(t *testing.T, namespace string, n int) []string {
	t.Helper()
	pods := &corev1.PodList{}
	require.NoError(t, w.client.List(t.Context(), pods, client.InNamespace(namespace)))
	on := map[string]int{}
	for i := range pods.Items {
		on[pods.Items[i].Spec.NodeName]++
	}
	require.GreaterOrEqual(t, len(on), n)
	return slices.SortedFunc(maps.Keys(on), func(a, b string) int { return on[b] - on[a] })[:n]
}

func (w *world) taint(ctx context.Context, name string, add corev1.Taint) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node := &corev1.Node{}
		if err := w.client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
			return err
		}
		node.Spec.Taints = append(node.Spec.Taints, add)
		return w.client.Update(ctx, node)
	})
}

// evictAll evicts the Pods of a node, each again after a pause that may grow with its refusals, until none is left.
func (w *world) evictAll(
	ctx context.Context, namespace, node string, within time.Duration, pause func(refusals int) time.Duration,
) error {
	clients, err := w.Clients()
	if err != nil {
		return err
	}
	refusals, due := map[string]int{}, map[string]time.Time{}
	var last error
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, within, true, func(ctx context.Context) (bool, error) {
		pods, err := w.podsOn(ctx, namespace, node)
		if err != nil {
			return false, err
		}
		for i := range pods {
			pod := &pods[i]
			if time.Now().Before(due[pod.Name]) {
				continue
			}
			err := clients.CoreV1().RESTClient().Post().MaxRetries(0).Namespace(namespace).Resource("pods").Name(pod.Name).
				SubResource("eviction").Body(imperative(pod)).Do(ctx).Error()
			if client.IgnoreNotFound(err) != nil {
				last = err
			}
			if err != nil && !apierrors.IsTooManyRequests(err) && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) &&
				!apierrors.IsInternalError(err) { // webhook-server is killed, too
				return false, err
			}
			due[pod.Name] = time.Now().Add(pause(refusals[pod.Name]))
			refusals[pod.Name]++
		}
		return len(pods) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%w; the last refusal: %w", err, last)
	}
	return nil
}

// TestDrainOfAFleet drains three nodes of ten at once, each in another way, of 200 Pods of 20 CollaSets under rules
// that let no Pod or one go, while each program is killed once. The observer judges rules and maxSurge. Evictions are not
// held while webhook-server is away: the PodDisruptionBudget that mirrors a rule lets one Pod of a CollaSet at a time go then.
func TestDrainOfAFleet(t *testing.T) {
	if !nightly.Run() {
		t.Skip("takes minutes: KUPERATOR_NIGHTLY=1 runs it")
	}
	w := own(t, suite.Config{Name: "fleet", Nodes: 10, Progress: os.Stderr})
	ns := w.namespace(t)
	o, err := observer.Start(context.WithoutCancel(t.Context()), w.RESTConfig(),
		observer.Options{Namespace: ns, Graceful: true, StuckAfter: 2 * await.Patience})
	require.NoError(t, err)
	defer func() { _, _ = o.Stop() }()
	replicas := map[string]int{}
	add := func(n int32, allowed string, policy appsv1alpha1.EvictionPolicy) {
		name := fmt.Sprintf("set-%d", len(replicas))
		replicas[name] = int(n)
		set, rule := surging(ns, name, n, policy), workload.Rule(ns, name, allowed)
		set.Spec.Disruption.MaxSurge = ptr.To(intstr.FromInt32(max(1, n/5)))
		rule.Spec.MirrorPodDisruptionBudget = true
		w.create(t, rule, set)
	}
	for range 4 { // 4 × (1 + 2 + 2 + 10 + 35) = 200
		add(1, "0", appsv1alpha1.EvictionReplace)
		add(2, "0", appsv1alpha1.EvictionReplaceWhenBlocked)
		add(2, "1", appsv1alpha1.EvictionReplaceWhenBlocked)
		add(10, "1", appsv1alpha1.EvictionReplace)
		add(35, "0", appsv1alpha1.EvictionReplace)
	}
	for name, n := range replicas {
		w.waitServing(t, ns, name, n, image1)
	}
	nodes := w.fullest(t, ns, len(w.drainers()))
	leaving := func() (n int) {
		for _, node := range nodes {
			pods, err := w.podsOn(t.Context(), ns, node)
			require.NoError(t, err)
			n += len(pods)
		}
		return n
	}
	all := leaving()
	t.Logf("%d Pods leave", all)

	var drains sync.WaitGroup
	for i, drainer := range w.drainers() {
		node := nodes[i]
		drains.Go(func() {
			begin := time.Now()
			assert.NoError(t, drainer.run(t.Context(), ns, node), "%s on %s", drainer.name, node)
			t.Logf("%s: %s", drainer.name, time.Since(begin).Round(100*time.Millisecond))
		})
	}
	var away, back time.Time // webhook-server
	for i, component := range suite.Components() {
		share := (len(suite.Components()) - i) * all / (len(suite.Components()) + 1)
		await.Nil(t, "the drains to go on", func() error {
			if n := leaving(); n > share {
				return fmt.Errorf("%d Pods are still to leave, not %d", n, share)
			}
			return nil
		})
		if component == suite.Webhook {
			away = time.Now()
		}
		require.NoError(t, w.Kill(component))
		require.NoError(t, w.Restart(t.Context(), component))
		if component == suite.Webhook {
			back = time.Now().Add(time.Second) // the API server tries again at once, but a Pod may take a moment to end
		}
	}
	drains.Wait()
	for name, n := range replicas {
		w.waitServing(t, ns, name, n, image1)
	}
	require.Zero(t, leaving())
	report := o.SettledIn(t.Context(), ns)
	require.Zero(t, report.Gaps, "the observer missed nothing")
	for _, v := range report.Violations {
		assert.True(t, v.Time.After(away) && v.Time.Before(back), "%s", v)
	}
	for name := range replicas {
		rule, seen := report.Rule(ns, name)
		require.True(t, seen)
		assert.LessOrEqual(t, rule.MaxOut, rule.MaxOutAllowed+1, "set %s, while webhook-server was away", name)
	}
	t.Logf("%d violations while webhook-server was away", len(report.Violations))
}
