package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/nightly"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// TestKubeletLag has kubelets that see every change late, and write Ready by what they knew then. However late they
// are, no image changes and no Pod is deleted by an operation while its observed Ready is True or an EndpointSlice
// lists it ready.
func TestKubeletLag(t *testing.T) {
	for _, lag := range []time.Duration{0, time.Second, 3 * time.Second} {
		t.Run(lag.String(), func(t *testing.T) {
			if lag != time.Second {
				nightly.Only(t, "a second shows the same")
			}
			w := alone(t)
			w.lateKubelets(t, lag)
			ns := w.namespace(t)
			o := w.observe(t, ns, observer.Options{})
			begin := time.Now()
			w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "25%"), workload.CollaSet(ns, "web", image1, 8))
			w.waitServing(t, ns, "web", 8, image1)
			w.waitListed(t, ns, 8)
			before := workload.UIDs(w.pods(t, ns, "web"))

			t.Log("the image changes")
			w.setImage(t, ns, "web", image2)
			w.waitServing(t, ns, "web", 8, image2)
			require.Equal(t, before, workload.UIDs(w.pods(t, ns, "web")), "in place: no Pod is recreated")
			requireWithin(t, o, ns, 2)
			out := o.SettledIn(t.Context(), ns).OutOfService
			require.Len(t, out, 8)
			for pod, d := range out {
				require.Greater(t, d, lag, "%s is back only after its kubelet has seen that it may be", pod)
			}

			t.Log("the image changes, and there are to be fewer Pods while it does")
			w.setImage(t, ns, "web", image3)
			await.Nil(t, "the update under way", func() error {
				updated := slices.ContainsFunc(w.pods(t, ns, "web"),
					func(p corev1.Pod) bool { return p.Spec.Containers[0].Image == image3 })
				if !updated {
					return fmt.Errorf("no Pod has %s", image3)
				}
				return nil
			})
			w.scale(t, ns, "web", 5)
			w.waitServing(t, ns, "web", 5, image3)
			w.waitListed(t, ns, 5)
			requireWithin(t, o, ns, 2)
			require.Positive(t, w.kubeletWrites(t, ns, begin), "the late kubelets wrote the status of these Pods")
		})
	}
}

// TestTrafficBreachIsSeen keeps TestKubeletLag honest: on the same cluster, the observer reports an operator that
// does not wait for Ready, and one that does not wait for the EndpointSlice.
func TestTrafficBreachIsSeen(t *testing.T) {
	w := alone(t)
	w.lateKubelets(t, 0)
	ns := w.namespace(t)
	w.create(t, workload.Service(ns, "web"), workload.CollaSet(ns, "web", image1, 1))
	w.waitServing(t, ns, "web", 1, image1)
	w.waitListed(t, ns, 1)
	o, err := observer.Start(t.Context(), w.RESTConfig(), observer.Options{})
	require.NoError(t, err)
	pod := &w.pods(t, ns, "web")[0]
	patch := fmt.Sprintf(`{"spec":{"containers":[{"name":"main","image":%q}]}}`, image2)
	require.NoError(t, w.client.Patch(t.Context(), pod, client.RawPatch(types.StrategicMergePatchType, []byte(patch))))
	o.Settled(t.Context())
	report, err := o.Stop()
	require.NoError(t, err)
	require.Len(t, report.Violations, 2, "Ready, and listed as ready: %v", report.Violations)
	for _, v := range report.Violations {
		require.Equal(t, observer.Traffic, v.Invariant)
	}
}

// lateKubelets replaces the simulated kubelets by late ones until the test is over. Call it before namespace, whose
// Pods need them to go.
func (w *world) lateKubelets(t *testing.T, lag time.Duration) {
	t.Helper()
	const kwok = "kwok"
	ctx := context.WithoutCancel(t.Context())
	require.NoError(t, w.Cluster.StopComponent(kwok))
	t.Cleanup(func() { require.NoError(t, w.Cluster.StartComponent(ctx, kwok)) })
	k, err := fakekubelet.Start(ctx, w.RESTConfig(), fakekubelet.Options{Lag: lag, Log: t.Logf})
	require.NoError(t, err)
	t.Cleanup(k.Stop)
}

// waitListed waits until the EndpointSlices of the Service list so many Pods as ready.
func (w *world) waitListed(t *testing.T, namespace string, n int) {
	t.Helper()
	await.Nil(t, fmt.Sprintf("%d endpoints", n), func() error {
		list := &discoveryv1.EndpointSliceList{}
		if err := w.client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			return err
		}
		ready := 0
		for i := range list.Items {
			for _, e := range list.Items[i].Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					ready++
				}
			}
		}
		if ready != n {
			return fmt.Errorf("%d are ready", ready)
		}
		return nil
	})
}

// kubeletWrites counts the status writes of the late kubelets.
func (w *world) kubeletWrites(t *testing.T, namespace string, since time.Time) int {
	t.Helper()
	requests, err := w.Requests(since)
	require.NoError(t, err)
	writes := 0
	for _, r := range requests {
		if r.UserAgent == fakekubelet.UserAgent && r.Namespace == namespace && r.Subresource == "status" && r.OK() {
			writes++
		}
	}
	return writes
}
