package collaset

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/drain"
)

// TestDomainsWithoutNodes has no cache of nodes, as where they may not be read.
func TestDomainsWithoutNodes(t *testing.T) {
	const zone = corev1.LabelTopologyZone
	observed := func(replicas int, keys ...string) []setplan.Pod {
		o := &observation{set: collaSet(int32(replicas))}
		for _, key := range keys {
			o.set.Spec.Template.Spec.TopologySpreadConstraints = append(o.set.Spec.Template.Spec.TopologySpreadConstraints,
				corev1.TopologySpreadConstraint{TopologyKey: key})
		}
		o.snapshot.Replicas = replicas
		for name, node := range map[string]string{"a": "n1", "b": "n2", "c": ""} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node}}
			if name == "a" {
				pod.Labels = map[string]string{zone: "z1"}
			}
			o.snapshot.Pods = append(o.snapshot.Pods, podOf(pod, labels.Everything()))
		}
		slices.SortFunc(o.snapshot.Pods, func(a, b setplan.Pod) int { return strings.Compare(a.Name(), b.Name()) })
		o.observeTopology(t.Context(), nil)
		return o.snapshot.Pods
	}
	domains := func(pods []setplan.Pod) (out [][]string) {
		for _, p := range pods {
			out = append(out, p.Domains)
		}
		return out
	}
	assert.Equal(t, [][]string{{"n1"}, {"n2"}, {""}}, domains(observed(2)), "hosts, where the template says nothing")
	assert.Equal(t, [][]string{{"z1", "n1"}, {"", "n2"}, {"", ""}}, domains(observed(2, zone, corev1.LabelHostname)),
		"a zone is read from the Pod")
	assert.Equal(t, [][]string{{""}, {""}, {""}}, domains(observed(2, "rack")), "what only nodes know is not known")
	assert.Equal(t, [][]string{nil, nil, nil}, domains(observed(3, zone)), "nobody goes, so nobody asks")
}

func TestNodesAreStripped(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"rack": "a"},
		Annotations: map[string]string{"long": "text"}}}
	node.Spec.Unschedulable = true
	node.Status.Conditions = []corev1.NodeCondition{{Type: "DrainScheduled", Status: corev1.ConditionTrue}}
	whole := drain.NodeOf(node)
	stripped, err := stripNode(node)
	require.NoError(t, err)
	kept := stripped.(*corev1.Node)
	assert.Equal(t, "a", kept.Labels["rack"])
	assert.Equal(t, whole, drain.NodeOf(kept))
	assert.Empty(t, kept.Annotations)
	other, err := stripNode(&corev1.Pod{})
	require.NoError(t, err)
	assert.IsType(t, &corev1.Pod{}, other)
}

func TestDeletionCost(t *testing.T) {
	for value, want := range map[string]int{"": 0, "7": 7, "-7": -7, "much": 0, "99999999999": 0} {
		assert.Equal(t, want,
			deletionCost(
				&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.PodDeletionCost: value}}}), value)
	}
}
