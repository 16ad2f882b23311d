package node

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// TestOneReplicaIsDrainedUnderLoad drains the node of the only Pod of a CollaSet, which a rule lets not go, and a
// PodDisruptionBudget neither: another Pod serves on the other node first. A drain is called off half way, too.
func TestOneReplicaIsDrainedUnderLoad(t *testing.T) {
	needsRealNodes(t)
	front := startHAProxy(t)
	w := newWorld(t, 2, suite.Config{Args: map[string][]string{
		suite.ResourceConsist: {"--adapters=endpointslice,haproxy", "--haproxy-runtime=unix:" + front.control.path},
	}})
	kube, err := w.Clients()
	require.NoError(t, err)
	service := webService(true)
	service.Annotations = map[string]string{"haproxy.resourceconsist.kusionstack.io/backend": haproxyBackend}
	set := webSet(true)
	set.Spec.Replicas = ptr.To[int32](1)
	set.Spec.Disruption = &appsv1alpha1.Disruption{OnEviction: appsv1alpha1.EvictionReplace}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	set.Spec.Template.Spec.TopologySpreadConstraints = nil
	set.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: selector}}}}
	w.create(t, service, webRule(0), set)
	w.waitServing(t, 1, "1")

	l := startLoad(t, clients, map[string]path{"EndpointSlices": follow(t, kube, namespace, name, 1), "HAProxy": front})
	l.phase("a rule that lets no Pod go")
	w.drainTheOne(t)
	l.phase("a drain that is called off")
	w.callOffADrain(t)
	l.phase("a PodDisruptionBudget that lets no Pod go, too")
	require.NoError(t, w.client.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: selector},
	}))
	w.drainTheOne(t)
	l.phase("after")
	l.end()

	requests, failed := l.sums()
	t.Logf("%d requests, %d failed\n%s", requests, failed, l.table())
	require.Zero(t, failed, "lost requests")
	for _, phase := range l.phases[1 : len(l.phases)-1] {
		asked, _ := phase.sums()
		require.Positive(t, asked, "requests while: %s", phase.name)
	}
}

// drainTheOne drains the node of the one Pod, and opens it again.
func (w *world) drainTheOne(t *testing.T) {
	t.Helper()
	before := w.waitServing(t, 1, "1")[0]
	out, err := w.Kubectl(t.Context(), "drain", before.Spec.NodeName, "--ignore-daemonsets", "--timeout="+patience.String())
	require.NoError(t, err, out)
	now := w.waitServing(t, 1, "1")[0]
	require.NotEqual(t, before.Spec.NodeName, now.Spec.NodeName)
	_, err = w.Kubectl(t.Context(), "uncordon", before.Spec.NodeName)
	require.NoError(t, err)
}

// callOffADrain drains the node of the one Pod while no other takes its replacement, and then opens it again.
func (w *world) callOffADrain(t *testing.T) {
	t.Helper()
	before := w.waitServing(t, 1, "1")[0]
	for _, node := range w.nodes {
		_, err := w.Kubectl(t.Context(), "cordon", node.Name)
		require.NoError(t, err)
	}
	_, err := w.Kubectl(t.Context(), "drain", before.Spec.NodeName, "--ignore-daemonsets", "--timeout=5s")
	require.Error(t, err, "no other node takes the Pod that comes first")
	eventually(t.Context(), t, "the Pod to follow its node", func() error {
		pod := &corev1.Pod{}
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(&before), pod); err != nil {
			return err
		}
		if !podops.MarkedBy(podops.Read(pod), appsv1alpha1.ToReplaceLabel, podops.AskerDrain) {
			return errors.New("the drain does not ask for its replacement")
		}
		return nil
	})
	_, err = w.Kubectl(t.Context(), "uncordon", before.Spec.NodeName)
	require.NoError(t, err)
	require.Equal(t, before.UID, w.waitServing(t, 1, "1")[0].UID, "it is still the same Pod")
	for _, node := range w.nodes {
		_, err := w.Kubectl(t.Context(), "uncordon", node.Name)
		require.NoError(t, err)
	}
}
