package resourceconsist_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/setup"
	"kusionstack.io/kuperator/internal/resourceconsist/builtin"
	"kusionstack.io/kuperator/internal/resourceconsist/haproxy"
	"kusionstack.io/kuperator/internal/testkit/realhaproxy"
)

// startHAProxyManager starts the controllers with the haproxy adapter alone: Pods are at loopback addresses, which
// EndpointSlices do not take.
func startHAProxyManager(t *testing.T, w *world, backends string, runtimes ...string) (stop func()) {
	t.Helper()
	options := haproxy.DefaultOptions()
	options.Runtimes, options.Backends = runtimes, []string{"*/" + backends}
	adapter, err := haproxy.New(options, nil)
	require.NoError(t, err)
	skip := true
	mgr, err := ctrl.NewManager(w.config, ctrl.Options{
		Cache:      builtin.CacheOptions(),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &skip, MaxConcurrentReconciles: 4},
	})
	require.NoError(t, err)
	require.NoError(t, mgr.Add(adapter))
	require.NoError(t, setup.AddToManager(mgr, api.Options{DrainTime: drainTime},
		setup.BackendOf(adapter, haproxy.CallOptions())))
	return run(t, func(ctx context.Context) {
		if err := mgr.Start(ctx); err != nil {
			t.Errorf("the manager ended: %v", err)
		}
	})
}

// proxied is a namespace whose Pods are real HTTP servers behind a real HAProxy.
type proxied struct {
	shop
	*testing.T
	webs map[string]*realhaproxy.Web
}

func (w *world) proxied(t *testing.T, names ...string) proxied {
	t.Helper()
	p := proxied{shop: w.shop(t), T: t, webs: realhaproxy.Webs(t, names...)}
	port := 0
	for _, web := range p.webs {
		port = web.Port
	}
	p.createService(t, "web", func(s *corev1.Service) {
		s.Annotations = map[string]string{haproxy.BackendAnnotation: "web"}
		s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt(port)}}
	})
	for _, name := range names {
		p.create(name)
	}
	for _, name := range names {
		p.serving(t, name, "web")
	}
	return p
}

// in is the same namespace in a subtest.
func (p proxied) in(t *testing.T) proxied {
	p.T = t
	return p
}

// create makes a Pod at the address of its HTTP server: the nodes keep an address that a Pod has before it is bound.
func (p proxied) create(name string) {
	p.Helper()
	p.createPod(p.T, name, func(pod *corev1.Pod) { pod.Spec.NodeName = "" })
	ip := p.webs[name].IP
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"podIP": ip,
		"podIPs": []map[string]string{{"ip": ip}}}})
	require.NoError(p.T, err)
	_, err = p.clientset.CoreV1().Pods(p.namespace).Patch(p.T.Context(), name, types.MergePatchType, patch,
		metav1.PatchOptions{}, "status")
	require.NoError(p.T, err)
	require.NoError(p.T, p.clientset.CoreV1().Pods(p.namespace).Bind(p.T.Context(), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name},
		Target:     corev1.ObjectReference{Kind: "Node", Name: "node-0"},
	}, metav1.CreateOptions{}))
}

func (p proxied) begin(name string) {
	p.Helper()
	p.write(p.T, name, func(v podops.View) podops.Change {
		c, err := podops.Begin(v, podops.Request{ID: "test", Type: podops.TypeUpdate}, time.Now())
		require.NoError(p.T, err)
		return c
	})
}

func (p proxied) allowed(name string) bool {
	p.Helper()
	return podops.Allowed(podops.Read(p.pod(p.T, name)), "test", podops.TypeUpdate)
}

func (p proxied) finish(name string) {
	p.Helper()
	p.write(p.T, name, func(v podops.View) podops.Change {
		return podops.Finish(v, "test", podops.TypeUpdate,
			time.Now())
	})
}

// wait begins a request that the Pod answers when it releases it.
func (p proxied) wait(client *http.Client, names ...string) <-chan error {
	p.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := realhaproxy.Get(client, "/wait")
		ended <- err
	}()
	p.eventually(p.T, "the request has reached a Pod", func() bool {
		for _, name := range names {
			if p.webs[name].Waiting() > 0 {
				return true
			}
		}
		return false
	})
	return ended
}

func TestHAProxyAdapter(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	h := realhaproxy.Start(t, "backend web\n")
	w := start(t)
	startHAProxyManager(t, w, "web", h.Runtime)
	p := w.proxied(t, "web-0", "web-1")
	client := h.Client()
	require.Len(t, realhaproxy.Answers(t, client, 20), 2, "Pods that are available get requests")

	t.Run("an operation waits for the last request", func(t *testing.T) {
		p := p.in(t)
		slow := p.wait(client, "web-0", "web-1")
		busy, other := "web-0", "web-1"
		if p.webs["web-1"].Waiting() > 0 {
			busy, other = other, busy
		}
		p.begin(busy)
		p.eventually(t, "no new request gets to the Pod", func() bool {
			return strings.Contains(h.Say("show stat web 4 -1"), ",DRAIN,")
		})
		require.Equal(t, map[string]int{other: 20}, realhaproxy.Answers(t, client, 20))
		require.False(t, p.allowed(busy), "the operation began while a request was under way")
		require.NotEmpty(t, podops.ProtectionFinalizers(p.pod(t, busy).Finalizers))
		p.webs[busy].Release()
		require.NoError(t, <-slow)
		p.eventually(t, "the operation is allowed", func() bool { return p.allowed(busy) })
		require.Contains(t, h.Say("show stat web 4 -1"), ",MAINT,")
		require.Equal(t, map[string]int{other: 20}, realhaproxy.Answers(t, client, 20))
		p.finish(busy)
		p.serving(t, busy, "web")
		require.Len(t, realhaproxy.Answers(t, client, 20), 2)
	})
	t.Run("no request is lost while Pods are operated on and deleted", func(t *testing.T) {
		p := p.in(t)
		load := realhaproxy.StartLoad(client, 4)
		for _, name := range []string{"web-0", "web-1", "web-0"} {
			p.begin(name)
			p.eventually(t, "the operation is allowed", func() bool { return p.allowed(name) })
			p.finish(name)
			p.serving(t, name, "web")
		}
		require.NoError(t, w.client.Delete(t.Context(), p.pod(t, "web-1")))
		p.eventually(t, "the Pod is gone", func() bool { return p.pod(t, "web-1") == nil })
		p.webs["web-1"].End()
		p.eventually(t, "its server is gone", func() bool {
			return !strings.Contains(h.Say("show servers state web"),
				":web-1:")
		})
		requests, failures := load.Stop()
		require.Empty(t, failures, "of %d requests", requests)
		require.Positive(t, requests)
	})
	t.Run("a restarted HAProxy is filled again", func(t *testing.T) {
		p := p.in(t)
		h.End()
		h.Run()
		p.eventually(t, "requests are answered", func() bool {
			name, err := realhaproxy.Get(client, "/")
			return err == nil && name == "web-0"
		})
	})
	t.Run("an operation waits while HAProxy is down", func(t *testing.T) {
		p := p.in(t)
		h.End()
		p.begin("web-0")
		p.eventually(t, "the Pod is out of service", func() bool {
			waits := podops.Explain(podops.Read(p.pod(t, "web-0")), nil)
			return len(waits) == 1 && waits[0].Reason == podops.WaitFinalizer
		})
		h.Run()
		p.eventually(t, "the operation is allowed", func() bool { return p.allowed("web-0") })
		p.finish("web-0")
		p.serving(t, "web-0", "web")
		p.eventually(t, "requests are answered", func() bool {
			_, err := realhaproxy.Get(client, "/")
			return err == nil
		})
	})
	t.Run("a deleted Service leaves nothing behind", func(t *testing.T) {
		p := p.in(t)
		require.NoError(t, w.clientset.CoreV1().Services(p.namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}))
		p.eventually(t, "the Pod is released", func() bool { return p.bound(t, p.pod(t, "web-0")) })
		p.eventually(t, "its servers are gone",
			func() bool { return !strings.Contains(h.Say("show servers state web"), ":web-0:") })
	})
}

// TestHAProxyInstancesAgree: a Pod has left when it has left all instances, whatever happens to the controller
// meanwhile.
func TestHAProxyInstancesAgree(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	one, two := realhaproxy.Start(t, "backend web\n"), realhaproxy.Start(t, "backend web\n")
	w := start(t)
	stop := startHAProxyManager(t, w, "web", one.Runtime, two.Runtime)
	p := w.proxied(t, "web-0")
	slow := p.wait(two.Client(), "web-0")
	p.begin("web-0")
	p.eventually(t, "the instance without a session lets the Pod go",
		func() bool { return strings.Contains(one.Say("show stat web 4 -1"), ",MAINT,") })
	stop()
	startHAProxyManager(t, w, "web", one.Runtime, two.Runtime)
	require.False(t, p.allowed("web-0"))
	p.webs["web-0"].Release()
	require.NoError(t, <-slow)
	p.eventually(t, "the operation is allowed", func() bool { return p.allowed("web-0") })
	for _, h := range []*realhaproxy.HAProxy{one, two} {
		require.Contains(t, h.Say("show stat web 4 -1"), ",MAINT,")
	}
	p.finish("web-0")
	p.serving(t, "web-0", "web")
	for _, h := range []*realhaproxy.HAProxy{one, two} {
		require.Equal(t, map[string]int{"web-0": 5}, realhaproxy.Answers(t, h.Client(), 5))
	}
}
