package resourceconsist_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/resourceconsist/builtin"
)

// TestAdmission lets a real API server ask. No controller runs, so what a Pod names comes from admission alone.
func TestAdmission(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	w.serveAdmission(t, newBalancer("pool"), newBalancer("edge"))
	m := market{w.shop(t), nil, nil}
	m.balanced(t, "web", "pool")
	m.balanced(t, "admin", "edge")
	m.balanced(t, "other", "edge", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "other"} })
	m.balanced(t, "free", "edge", func(s *corev1.Service) { delete(s.Labels, appsv1alpha1.ControlLabel) })

	// The webhook's cache follows; its first answers may lack what was just made.
	m.eventually(t, "both Services are announced", func() bool {
		pod := m.newPod("")
		pod.GenerateName = "probe-"
		require.NoError(t, m.client.Create(t.Context(), pod, client.DryRunAll))
		expected, err := podops.ExpectedFinalizers(pod.Annotations)
		require.NoError(t, err)
		return len(expected) == 2
	})
	pods, err := m.clientset.CoreV1().Pods(m.namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, pods.Items, "a dry run makes nothing")

	pod := m.newPod("")
	pod.GenerateName = "web-"
	pod.Annotations = map[string]string{"a": "b",
		podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"Gateway/x/y":"z"}}`}
	require.NoError(t, m.client.Create(t.Context(), pod))
	expected, err := podops.ExpectedFinalizers(m.pod(t, pod.Name).Annotations)
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"Gateway/x/y":                       "z",
		"Service/" + m.namespace + "/web":   api.Finalizer("web"),
		"Service/" + m.namespace + "/admin": api.Finalizer("admin"),
	}, expected)
	require.Equal(t, "b", m.pod(t, pod.Name).Annotations["a"])

	broken := m.newPod("broken")
	broken.Annotations = map[string]string{podops.AvailableConditionsAnnotation: "{"}
	require.ErrorContains(t, m.client.Create(t.Context(), broken), podops.AvailableConditionsAnnotation)

	free := m.newPod("free")
	delete(free.Labels, appsv1alpha1.ControlLabel)
	require.NoError(t, m.client.Create(t.Context(), free))
	require.Empty(t, m.pod(t, "free").Annotations)
}

func (s shop) newPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name,
			Labels: map[string]string{"app": "web", appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}},
		Spec: corev1.PodSpec{NodeName: "node-0", Containers: []corev1.Container{{Name: "main", Image: "nginx:1"}}},
	}
}

// serveAdmission serves the webhook and tells the API server.
func (w *world) serveAdmission(t *testing.T, adapters ...backend.Backend) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	certificate, key, err := cert.GenerateSelfSignedCertKey(host, []net.IP{net.ParseIP(host)}, nil)
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))

	mgr, err := ctrl.NewManager(w.config, ctrl.Options{
		Cache:         builtin.CacheOptions(),
		Metrics:       metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: host, Port: number, CertDir: dir}),
	})
	require.NoError(t, err)
	require.NoError(t, resourceconsist.AddAdmissionToManager(mgr, &corev1.Service{}, adapters...))
	require.ErrorContains(t, resourceconsist.AddAdmissionToManager(mgr, &corev1.Service{}, adapters...),
		"/mutate-pods-service", "the same kind a second time")
	run(t, func(ctx context.Context) {
		if err := mgr.Start(ctx); err != nil {
			t.Errorf("the manager ended: %v", err)
		}
	})
	started := mgr.GetWebhookServer().StartedChecker()
	require.Eventually(t, func() bool { return started(nil) == nil }, patience, poll, "the webhook server has started")
	require.NoError(t, w.client.Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "balancers"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "pods.balancers.example.org", AdmissionReviewVersions: []string{"v1"},
			SideEffects:    ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:  ptr.To(admissionregistrationv1.Fail),
			TimeoutSeconds: ptr.To[int32](30),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://" + listener.Addr().String() +
				"/mutate-pods-service"), CABundle: certificate},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"pods"}},
			}},
		}},
	}))
}
