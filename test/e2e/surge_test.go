package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// surging is a CollaSet whose evicted Pods are replaced.
func surging(namespace, name string, replicas int32, policy appsv1alpha1.EvictionPolicy) *appsv1alpha1.CollaSet {
	set := workload.CollaSet(namespace, name, image1, replicas)
	set.Spec.Disruption = &appsv1alpha1.Disruption{OnEviction: policy}
	return set
}

// shut is a rule that lets no Pod of a name go, and tells so to those who read PodDisruptionBudgets.
func shut(namespace, name string) *appsv1alpha1.PodTransitionRule {
	rule := workload.Rule(namespace, name, "0")
	rule.Spec.MirrorPodDisruptionBudget = true
	return rule
}

// cordon closes a node until the test ends, unless that opens it before.
func (w *world) cordon(t *testing.T, node string) (open func()) {
	t.Helper()
	act := func(ctx context.Context, verb string) {
		if out, err := w.Kubectl(ctx, verb, node); err != nil {
			t.Errorf("%s %s: %v %s", verb, node, err, out)
		}
	}
	act(t.Context(), "cordon")
	t.Cleanup(func() { act(context.WithoutCancel(t.Context()), "uncordon") })
	return func() { act(t.Context(), "uncordon") }
}

// TestDrainTheNewPodFirst drains a node of Pods that no eviction would ever take: one replica under a rule, one under a
// PodDisruptionBudget, and two under a rule that is asked first.
func TestDrainTheNewPodFirst(t *testing.T) {
	w := alone(t)
	ns := w.namespace(t)
	w.reconfigure(t, suite.PodTransitionRule, "--annotate-blocked-after=1s")
	o := w.observe(t, ns, observer.Options{Graceful: true})
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "guarded"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}}}
	replicas := map[string]int{"web": 1, "guarded": 1, "asked": 2}
	w.create(t, shut(ns, "web"), shut(ns, "asked"), budget, surging(ns, "web", 1, appsv1alpha1.EvictionReplace),
		surging(ns, "guarded", 1, appsv1alpha1.EvictionReplaceWhenBlocked),
		surging(ns, "asked", 2, appsv1alpha1.EvictionReplaceWhenBlocked))
	for name := range replicas {
		w.create(t, workload.Service(ns, name))
		w.waitServing(t, ns, name, replicas[name], image1)
	}
	t.Log("those who look at PodDisruptionBudgets first see that a Pod may go")
	await.Nil(t, "the mirrored budget", func() error {
		b := &policyv1.PodDisruptionBudget{}
		if err := w.client.Get(t.Context(), keyOf(shut(ns, "web")), b); err != nil {
			return err
		}
		if b.Status.DisruptionsAllowed != 1 {
			return fmt.Errorf("%+v", b.Status)
		}
		return nil
	})
	before := map[string]string{}
	for name := range replicas {
		for _, pod := range w.pods(t, ns, name) {
			before[pod.Name] = pod.Spec.NodeName
		}
	}
	for _, node := range w.nodesOf(t, ns, "web", "guarded", "asked") {
		begin := time.Now()
		out, err := w.Kubectl(t.Context(), "drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data",
			"--pod-selector=app in (web,guarded,asked)", "--timeout="+await.Patience.String())
		t.Cleanup(func() {
			if out, err := w.Kubectl(context.WithoutCancel(t.Context()), "uncordon", node); err != nil {
				t.Errorf("uncordoning %s: %v %s", node, err, out)
			}
		})
		require.NoError(t, err, out)
		t.Logf("the drain of %s took %s", node, time.Since(begin).Round(100*time.Millisecond))
		for name, n := range replicas {
			w.waitServing(t, ns, name, n, image1)
			for _, pod := range w.pods(t, ns, name) {
				require.NotEqual(t, node, pod.Spec.NodeName)
			}
		}
		out, err = w.Kubectl(t.Context(), "uncordon", node)
		require.NoError(t, err, out)
	}
	for name := range replicas {
		for _, pod := range w.pods(t, ns, name) {
			require.NotContains(t, before, pod.Name)
		}
	}
	report := o.SettledIn(t.Context(), ns)
	require.NoError(t, report.Err())
	require.Zero(t, report.Gaps, "the observer missed nothing")
	rule, seen := report.Rule(ns, "web")
	require.True(t, seen)
	require.Zero(t, rule.MaxOut, "the rule lets no Pod go, and none was missed")
}

// nodesOf are the nodes that have Pods of these names.
func (w *world) nodesOf(t *testing.T, namespace string, names ...string) (nodes []string) {
	t.Helper()
	seen := map[string]bool{}
	for _, name := range names {
		for _, pod := range w.pods(t, namespace, name) {
			if node := pod.Spec.NodeName; !seen[node] {
				seen[node] = true
				nodes = append(nodes, node)
			}
		}
	}
	return nodes
}

// TestADrainIsCalledOff evicts a Pod for which no other node has room, and opens its node again.
func TestADrainIsCalledOff(t *testing.T) {
	w := alone(t)
	ns := w.namespace(t)
	set := surging(ns, "web", 1, appsv1alpha1.EvictionReplace)
	set.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}}}
	w.create(t, shut(ns, "web"), set)
	w.waitServing(t, ns, "web", 1, image1)
	pod := w.pods(t, ns, "web")[0]
	nodes := &corev1.NodeList{}
	require.NoError(t, w.client.List(t.Context(), nodes))
	open := map[string]func(){}
	for i := range nodes.Items {
		open[nodes.Items[i].Name] = w.cordon(t, nodes.Items[i].Name)
	}
	_, err := w.Kubectl(t.Context(), "drain", pod.Spec.NodeName, "--pod-selector=app=web", "--namespace="+ns, "--timeout=3s",
		"--ignore-daemonsets", "--force")
	require.Error(t, err, "no Pod can come first")
	await.Nil(t, "the drain to ask", func() error {
		now := &corev1.Pod{}
		if err := w.client.Get(t.Context(), keyOf(&pod), now); err != nil {
			return err
		}
		if !podops.MarkedBy(podops.Read(now), appsv1alpha1.ToReplaceLabel, podops.AskerDrain) || len(w.pods(t, ns, "web")) != 2 {
			return fmt.Errorf("labels %v, annotations %v", now.Labels, now.Annotations)
		}
		return nil
	})
	open[pod.Spec.NodeName]()
	await.Nil(t, "the Pod to stay", func() error {
		pods := w.pods(t, ns, "web")
		if len(pods) != 1 || pods[0].UID != pod.UID {
			return fmt.Errorf("%d Pods", len(pods))
		}
		if _, marked := pods[0].Labels[appsv1alpha1.ToReplaceLabel]; marked {
			return errors.New("it is still to be replaced")
		}
		return nil
	})
	w.waitServing(t, ns, "web", 1, image1)
}
