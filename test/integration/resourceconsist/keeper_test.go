package resourceconsist_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/conformance/simulated"
	"kusionstack.io/kuperator/api/resourceconsist/setup"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

// records is a backend whose employees are ConfigMaps: each is one entry with the address that it holds.
type records struct{ pool }

func (r records) Name() string { return "records" }

func (r records) Members(_ *corev1.Service, c *corev1.ConfigMap, serve bool) (map[string]int32, error) {
	if c.Data["address"] == "" {
		return nil, errors.New("data.address is missing: give an address")
	}
	if !serve {
		return nil, nil
	}
	return map[string]int32{c.Data["address"]: int32(len(c.Data["weight"])) + 1}, nil
}

func (r records) Selector(s *corev1.Service) labels.Selector { return api.ServiceSelector(s) }

func startKeeper(t *testing.T, w *world, lb *simulated.LoadBalancer) (stop func()) {
	t.Helper()
	skip := true
	mgr, err := ctrl.NewManager(w.cluster.RESTConfig(), ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: &skip},
	})
	require.NoError(t, err)
	options := api.BulkOptions{Poll: 50 * time.Millisecond, MaxPoll: 500 * time.Millisecond, MaxBackoff: time.Second, QPS: 50}
	require.NoError(t, setup.AddBackendToManager[*corev1.Service, *corev1.ConfigMap, int32](mgr, options, records{pool{lb}}))
	return run(t, func(ctx context.Context) {
		if err := mgr.Start(ctx); err != nil {
			t.Errorf("the manager ended: %v", err)
		}
	})
}

// TestEmployeesOfAnotherKind: the members of a backend are what the selected ConfigMaps say, whatever happens meanwhile.
func TestEmployeesOfAnotherKind(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	lb := simulated.NewLoadBalancer()
	stop := startKeeper(t, w, lb)
	s := shop{world: w, namespace: testcluster.Namespace(t, w.cluster, nil)}
	entry := func(i int) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: fmt.Sprintf("entry-%d", i), Labels: map[string]string{"app": "web"}},
			Data:       map[string]string{"address": fmt.Sprintf("192.0.2.%d", 10+i)},
		}
	}
	service := s.createService(t, "web")
	has := func(i int, weight int32) bool {
		address := entry(i).Data["address"]
		return lb.Has(poolOf(service), simulated.Member{ID: address, Address: address, Weight: weight, Owner: poolOwner})
	}
	for i := range 5 {
		require.NoError(t, s.client.Create(t.Context(), entry(i)))
	}
	for i := range 5 {
		s.eventually(t, "the entry is a member", func() bool { return has(i, 1) })
	}
	calls := lb.Calls()

	// one changes, one is deleted, one is selected no more
	changed := entry(0)
	changed.Data["weight"] = "+"
	require.NoError(t, s.client.Update(t.Context(), changed))
	require.NoError(t, s.client.Delete(t.Context(), entry(1)))
	unselected := entry(2)
	unselected.Labels = nil
	require.NoError(t, s.client.Update(t.Context(), unselected))
	s.eventually(t, "the members follow", func() bool { return has(0, 2) && !has(1, 1) && !has(2, 1) && has(3, 1) })
	t.Logf("3 changes: %d calls of the provider", lb.Calls()-calls)

	// while nobody looks
	stop()
	require.NoError(t, s.client.Delete(t.Context(), entry(3)))
	require.NoError(t, s.client.Create(t.Context(), entry(5)))
	startKeeper(t, w, lb)
	s.eventually(t, "what happened meanwhile is made good", func() bool { return has(0, 2) && !has(3, 1) && has(4, 1) && has(5, 1) })

	// the provider is down when the employer goes
	lb.Fail(true)
	require.NoError(t, s.client.Delete(t.Context(), service))
	s.eventually(t, "its owner is told", func() bool {
		events, err := s.clientset.EventsV1().Events(s.namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for i := range events.Items {
			if e := events.Items[i]; e.Reason == api.ConditionReasonBackendFailed && e.Regarding.Name == "web" {
				return true
			}
		}
		return false
	})
	require.NoError(t, s.client.Get(t.Context(), client.ObjectKeyFromObject(service), service))
	lb.Fail(false)
	s.eventually(t, "the Service is gone", func() bool {
		return apierrors.IsNotFound(s.client.Get(t.Context(), client.ObjectKeyFromObject(service), service))
	})
	for i := range 6 {
		require.False(t, lb.Serves(poolOf(service), entry(i).Data["address"]), "the Service went before its members")
	}
}
