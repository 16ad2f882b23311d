package podtransitionrule

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"kusionstack.io/kuperator/api/podops"
)

func TestANoteOfARuleThatIsGoneStartsTheController(t *testing.T) {
	plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "plain",
		Annotations: map[string]string{"example.org/note": "x"}}}
	found, err := findNoted(fake.NewFakeClient(plain))(t.Context(), true)
	require.NoError(t, err)
	require.Empty(t, found)

	waiting := plain.DeepCopy()
	waiting.Name, waiting.Annotations = "waiting", map[string]string{podops.RuleDetailPrefix + "/budget": "held"}
	found, err = findNoted(fake.NewFakeClient(plain, waiting))(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, "Pod ns/waiting", found)
}
