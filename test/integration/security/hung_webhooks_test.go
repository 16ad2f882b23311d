package security

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// askedWithin is how soon a rule is asked about, whatever the servers of other namespaces do.
const askedWithin = 5 * time.Second

// server is an HTTP server at an address that rules may ask by default, which loopback is not. It counts the requests
// that it has got.
func server(t *testing.T, answer http.HandlerFunc) (url string, requests *atomic.Int64) {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addresses {
		network, ok := a.(*net.IPNet)
		if !ok || network.IP.To4() == nil || !network.IP.IsGlobalUnicast() {
			continue
		}
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(network.IP.String(), "0"))
		require.NoError(t, err)
		requests = &atomic.Int64{}
		s := &httptest.Server{Listener: listener,
			Config: &http.Server{ReadHeaderTimeout: time.Minute,
				Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					requests.Add(1)
					answer(w, r)
				})}}
		s.Start()
		t.Cleanup(s.Close)
		return s.URL, requests
	}
	require.Fail(t, "this machine has no address but loopback")
	return "", nil
}

// TestServersOfOthersHoldUpNoRule: tenants' webhook rules ask servers that never answer, that answer byte by byte,
// and that send on to one of those. Another tenant's rule is asked about soon all the same.
func TestServersOfOthersHoldUpNoRule(t *testing.T) {
	w := everything(t)
	over := make(chan struct{})
	wait := func(r *http.Request, d time.Duration) bool {
		select {
		case <-over:
			return false
		case <-r.Context().Done():
			return false
		case <-time.After(d):
			return true
		}
	}
	hung, hanging := server(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		wait(r, time.Hour)
	})
	slow, _ := server(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for wait(r, time.Second) {
			_, _ = io.WriteString(w, " ")
			_ = http.NewResponseController(w).Flush()
		}
	})
	redirecting, _ := server(t, func(w http.ResponseWriter,
		r *http.Request) {
		http.Redirect(w, r, hung, http.StatusTemporaryRedirect)
	})
	t.Cleanup(func() { close(over) })
	good, asked := server(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"success":true}`) })

	// waits asks servers about one Pod that is to be operated on. The rules come first: a Pod that no rule is known for
	// passes PreCheck at once.
	waits := func(namespace string, urls ...string) {
		for n, url := range urls {
			r := asks(namespace, fmt.Sprintf("asks-%d", n), url, "")
			r.Spec.Selector = &metav1.LabelSelector{}
			r.Spec.Rules[0].Webhook.FailurePolicy = ptr.To(appsv1alpha1.FailurePolicyFail) // it is asked again and again
			require.NoError(t, w.admin.Create(t.Context(), r))
		}
		eventually(t, func(c *assert.CollectT) {
			var rules appsv1alpha1.PodTransitionRuleList
			require.NoError(c, w.admin.List(t.Context(), &rules, client.InNamespace(namespace)))
			for _, r := range rules.Items {
				require.Equal(c, r.Generation, r.Status.ObservedGeneration, r.Name)
			}
		}, "the rules are in force")
		target := pod(namespace, "web")
		target.Labels[podops.OperatingPrefix+"/job"] = podops.Stamp(time.Now())
		target.Labels[podops.OperationTypePrefix+"/job"] = "restart"
		require.NoError(t, w.admin.Create(t.Context(), target))
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			require.NoError(t, w.admin.DeleteAllOf(ctx, &appsv1alpha1.PodTransitionRule{}, client.InNamespace(namespace)))
			require.NoError(t, w.admin.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace),
				client.GracePeriodSeconds(0)))
		})
	}
	attackers := 0
	for _, namespaces := range []int{1, 2, 20} {
		for ; attackers < namespaces; attackers++ {
			waits(w.namespace(t), hung, hung, hung, slow, slow, redirecting, hung, slow, redirecting, hung)
		}
		eventually(t, func(c *assert.CollectT) { require.GreaterOrEqual(c, hanging.Load(), int64(namespaces)) },
			"the attack is under way")
		for n := range 2 { // the second comes when some of the servers are known
			victim := w.namespace(t)
			before, began := asked.Load(), time.Now()
			waits(victim, good)
			eventually(t, func(c *assert.CollectT) { require.Greater(c, asked.Load(), before) },
				"the victim's rule is asked about")
			took := time.Since(began)
			t.Logf("%d namespaces, victim %d: asked after %s", namespaces, n, took)
			require.Less(t, took, askedWithin, "with servers of %d namespaces that hang", namespaces)
			eventually(t, func(c *assert.CollectT) {
				var p corev1.Pod
				require.NoError(c, w.admin.Get(t.Context(), client.ObjectKey{Namespace: victim, Name: "web"}, &p))
				require.NotContains(c, p.Labels, podops.PreCheckPrefix+"/job")
			}, "the victim's Pod goes on")
		}
	}
	require.NoError(t, w.Died())
}
