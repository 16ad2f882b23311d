package history_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"kusionstack.io/kuperator/internal/testkit/history"
)

func TestAMomentIsNotMissed(t *testing.T) {
	one := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"},
		Data: map[string]string{"is": "new"}}
	c := fake.NewClientBuilder().WithObjects(one).Build()
	h := history.Record[*corev1.ConfigMap](t, c, &corev1.ConfigMapList{}, client.InNamespace("default"))
	for _, is := range []string{"rising", "high", "falling"} {
		one.Data["is"] = is
		require.NoError(t, c.Update(t.Context(), one))
	}
	require.NoError(t, c.Delete(t.Context(), one))
	for _, was := range []string{"falling", "high", "new"} {
		is := func(o *corev1.ConfigMap) bool { return o.Data["is"] == was }
		require.Equal(t, was, h.Until("it is "+was, is).Data["is"])
	}
	require.GreaterOrEqual(t, len(h.All()), 4)
}
