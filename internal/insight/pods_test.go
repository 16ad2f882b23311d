package insight_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/insight"
)

// TestWhyNamesTheMissingFinalizer: what a Pod waits for whose cooperator is away, since when, and where to look, in
// the Pod's own namespace if the key of the employer names none.
func TestWhyNamesTheMissingFinalizer(t *testing.T) {
	const finalizer = "prot.podopslifecycle.kusionstack.io/test"
	ready := metav1.NewTime(time.Unix(1_700_000_000, 0))
	for employer, next := range map[string]string{
		"finalizer/test":   "kubectl -n shop edit pod web-a",
		"Service/shop/web": "kubectl -n shop describe service web",
	} {
		for _, begun := range []bool{false, true} {
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-a", UID: "a",
				Labels: map[string]string{"kusionstack.io/control": "true"}}}
			pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}
			pod.Status.Conditions = []corev1.PodCondition{
				{Type: podops.ServiceReadyCondition, Status: corev1.ConditionTrue},
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: ready},
			}
			pod.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"` + employer +
				`":"` + finalizer + `"}}`}
			if begun {
				change, err := podops.Begin(podops.Read(&pod), podops.Request{ID: "collaset", Type: podops.TypeUpdate},
					ready.Add(time.Hour))
				require.NoError(t, err)
				pod.Labels = change.Apply(podops.Read(&pod)).Labels
			}
			answer, found := insight.Why(insight.Facts{Now: ready.Add(2 * time.Hour), Pods: []corev1.Pod{pod}},
				podRef("web-a"), nil)
			require.True(t, found)
			require.NotNil(t, answer.Blocker)
			assert.Equal(t, insight.CodeCooperatorMissing, answer.Blocker.Code)
			assert.Contains(t, answer.Blocker.Message, finalizer)
			assert.Contains(t, answer.Blocker.Message, employer)
			assert.Contains(t, answer.Blocker.Next, next)
			require.NotNil(t, answer.Blocker.Since)
			assert.Equal(t, ready.Unix(), answer.Blocker.Since.Unix())
			for _, r := range answer.Reasons {
				assert.NotContains(t, r.Next, "-n  ")
				assert.NotContains(t, r.Message, "rule")
			}
		}
	}
}

// TestWhyNamesWhoRefusesADeletion: of a Pod that serves, and of one that does not.
func TestWhyNamesWhoRefusesADeletion(t *testing.T) {
	for _, serves := range []bool{true, false} {
		pod := corev1.Pod{}
		pod.Namespace, pod.Name = "shop", "web-a"
		pod.Labels = map[string]string{"collaset.kusionstack.io/to-delete": "true"}
		pod.Annotations = map[string]string{podops.DeletionRefusedAnnotation: "policy keep denied the request"}
		if serves {
			pod.Labels[podops.ServiceAvailableLabel] = "1"
		}
		answer, found := insight.Why(insight.Facts{Pods: []corev1.Pod{pod}}, podRef("web-a"), nil)
		require.True(t, found)
		assert.Empty(t, answer.Pod.Operations)
		if serves {
			assert.Equal(t, insight.StateServing, answer.Pod.State)
			require.NotNil(t, answer.Blocker)
			assert.Equal(t, insight.Code(podops.WaitRefused), answer.Blocker.Code)
		}
		last := answer.Reasons[len(answer.Reasons)-1]
		assert.Equal(t, insight.Code(podops.WaitRefused), last.Code)
		assert.Contains(t, last.Message, "policy keep denied the request")
		assert.Contains(t, last.Next, "kubectl -n shop label pod web-a collaset.kusionstack.io/to-delete-")
		assert.Nil(t, last.Since)

		delete(pod.Labels, "collaset.kusionstack.io/to-delete")
		answer, _ = insight.Why(insight.Facts{Pods: []corev1.Pod{pod}}, podRef("web-a"), nil)
		for _, r := range answer.Reasons {
			assert.NotEqual(t, last.Code, r.Code, "it is not to be deleted")
		}
	}
}
