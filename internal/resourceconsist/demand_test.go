package resourceconsist

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
)

func heldPod() *corev1.Pod {
	pod := webPod()
	pod.Finalizers = []string{podops.ProtectionFinalizerPrefix + "/x"}
	return pod
}

func service(finalizers ...string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Finalizers: finalizers}}
}

func TestWhatEmployersHaveLeft(t *testing.T) {
	naming := webPod()
	naming.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{}}`}
	foreign := heldPod()
	foreign.Name, foreign.Labels = "foreign", nil
	for name, c := range map[string]struct {
		objects      []client.Object
		first, later string
	}{
		"nothing": {objects: []client.Object{webPod(), foreign, service("example.org/other")}},
		"a Pod that is held": {objects: []client.Object{heldPod()}, first: "Pod shop/web-0",
			later: "Pod shop/web-0"},
		"a Pod that names a Service":    {objects: []client.Object{naming}, first: "Pod shop/web-0", later: "Pod shop/web-0"},
		"a Service that lost its label": {objects: []client.Object{service(api.CleanFinalizer)}, first: "Service ns/web"},
		"a Service with the old finalizer": {
			objects: []client.Object{service(api.LegacyCleanFinalizer("web"))}, first: "Service ns/web",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := leftovers{gvk: corev1.SchemeGroupVersion.WithKind("Service"),
				live: fake.NewClientBuilder().WithObjects(c.objects...).Build(), held: true}
			for _, first := range []bool{true, false} {
				found, err := l.find(t.Context(), first)
				require.NoError(t, err)
				want := c.later
				if first {
					want = c.first
				}
				require.Equal(t, want, found, "first look: %t", first)
			}
		})
	}
}
