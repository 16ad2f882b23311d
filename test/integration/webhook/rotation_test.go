package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"

	"kusionstack.io/kuperator/internal/testkit/testca"
)

// wantFailurePolicy has every webhook of both configurations fail or be ignored when it cannot be called.
func (s *suite) wantFailurePolicy(t *testing.T, policy string) {
	t.Helper()
	type webhook struct {
		Name          string `json:"name"`
		FailurePolicy string `json:"failurePolicy"`
	}
	patch := func(names []string) []byte {
		var webhooks []webhook
		for _, name := range names {
			webhooks = append(webhooks, webhook{name, policy})
		}
		body, err := json.Marshal(map[string]any{"webhooks": webhooks})
		require.NoError(t, err)
		return body
	}
	ctx, api := context.WithoutCancel(t.Context()), s.core.AdmissionregistrationV1()
	mutating, err := api.MutatingWebhookConfigurations().Get(ctx, server, metav1.GetOptions{})
	require.NoError(t, err)
	var names []string
	for i := range mutating.Webhooks {
		names = append(names, mutating.Webhooks[i].Name)
	}
	_, err = api.MutatingWebhookConfigurations().Patch(ctx, server, types.StrategicMergePatchType, patch(names),
		metav1.PatchOptions{})
	require.NoError(t, err)
	validating, err := api.ValidatingWebhookConfigurations().Get(ctx, server, metav1.GetOptions{})
	require.NoError(t, err)
	names = nil
	for i := range validating.Webhooks {
		names = append(names, validating.Webhooks[i].Name)
	}
	_, err = api.ValidatingWebhookConfigurations().Patch(ctx, server, types.StrategicMergePatchType, patch(names),
		metav1.PatchOptions{})
	require.NoError(t, err)
}

// servedCertificate is the certificate that the replicas share.
func (s *suite) servedCertificate(t *testing.T) (raw string, notAfter time.Time) {
	t.Helper()
	secret, err := s.core.CoreV1().Secrets(system).Get(t.Context(), server+"-certs", metav1.GetOptions{})
	require.NoError(t, err)
	parsed, err := cert.ParseCertsPEM(secret.Data[corev1.TLSCertKey])
	require.NoError(t, err)
	return string(secret.Data[corev1.TLSCertKey]), parsed[0].NotAfter
}

// connect makes its own connection, as an API server does that has just started, and trusts what a configuration says.
// The configuration is read first: what it says may be older than what is served by then, as with a watch that lags.
func (s *suite) connect(ctx context.Context, address string) error {
	configuration, err := s.core.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, server,
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(configuration.Webhooks[0].ClientConfig.CABundle)
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return connection.Close()
}

// rotateUnderLoad sends admissions of every kind, from several clients at once, while the certificate is replaced
// twice. Every webhook has failurePolicy Fail meanwhile, so a call that failed would fail its request.
func (s *suite) rotateUnderLoad(t *testing.T, p *process) {
	pod := s.runningPod(t, "rotating", nil)
	set, err := s.create(t, collaSets, collaSet("rotating", ""))
	require.NoError(t, err)
	s.wantFailurePolicy(t, "Fail")
	defer s.wantFailurePolicy(t, "Ignore")

	dry := []string{metav1.DryRunAll}
	loads := map[string]func(ctx context.Context, n int) error{
		"a Pod is created": func(ctx context.Context, _ int) error {
			gated, err := s.createPod(ctx, s.pod("rotate"), metav1.CreateOptions{DryRun: dry})
			if err == nil && !gated {
				return fmt.Errorf("it has no gate")
			}
			return err
		},
		"a CollaSet is updated": func(ctx context.Context, n int) error {
			_, err := s.dynamic.Resource(collaSets).Namespace(s.namespace).Patch(ctx, set.GetName(), types.MergePatchType,
				fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n%5), metav1.PatchOptions{})
			return err
		},
		"a Pod is deleted": func(ctx context.Context, _ int) error {
			return s.core.CoreV1().Pods(s.namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{DryRun: dry})
		},
		"a Pod is evicted": func(ctx context.Context, _ int) error {
			return evict(ctx, s.core.PolicyV1().RESTClient(), pod, &metav1.DeleteOptions{DryRun: dry})
		},
		"another API server connects": func(ctx context.Context,
			_ int) error {
			return s.connect(ctx, p.url[len("https://"):])
		},
	}
	var running sync.WaitGroup
	var requests atomic.Int64
	over := make(chan struct{})
	for what, send := range loads {
		running.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				default:
				}
				requests.Add(1)
				if !assert.NoError(t, send(t.Context(), n), "%s, request %d", what, n) {
					return
				}
			}
		})
	}
	served := map[string]bool{}
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		raw, _ := s.servedCertificate(t)
		served[raw] = true
		assert.Equal(c, http.StatusOK, get(t, p.ready))
		assert.GreaterOrEqual(c, len(served), 3)
	}, deadline, 10*tick, "three certificates")
	close(over)
	running.Wait()
	t.Logf("%d requests over %d certificates", requests.Load(), len(served))
}

// TestSleptPastTheExpiry stops the process as a suspended machine does, until what it serves has expired.
func TestSleptPastTheExpiry(t *testing.T) {
	s := start(t)
	p := s.run(t, "--webhook-cert-lifetime=6s", "--webhook-cert-settle=1s")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	awake := false
	wake := func() {
		if !awake {
			awake = true
			assert.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
		}
	}
	t.Cleanup(wake)
	old, notAfter := s.servedCertificate(t)
	require.Eventually(t, func() bool { return time.Now().After(notAfter) }, deadline, tick)

	foreign := s.pod("foreign")
	foreign.Labels = nil
	_, err := s.createPod(t.Context(), foreign, metav1.CreateOptions{})
	require.NoError(t, err, "nobody else notices")

	wake()
	// the API server's old connections last longer than the certificate
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		fresh, _ := s.servedCertificate(t)
		require.NotEqual(c, old, fresh)
		require.NoError(c, s.connect(t.Context(), p.url[len("https://"):]))
		gated, err := s.createPod(t.Context(), s.pod("awake"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(c, err)
		require.True(c, gated)
	}, deadline, tick, "the same process serves with a new certificate")
}

// TestAMountedCertificate has another program keep the certificate and the configurations, as cert-manager does: the
// server reads what is mounted, also when it is renewed, and no call fails meanwhile.
func TestAMountedCertificate(t *testing.T) {
	s := start(t)
	authority, folder := testca.New(t), t.TempDir()
	issue := func() (raw string) {
		certificate, key := authority.Issue(t)
		for name, content := range map[string][]byte{corev1.TLSPrivateKeyKey: key, corev1.TLSCertKey: certificate} {
			require.NoError(t, os.WriteFile(filepath.Join(folder, "fresh"), content, 0o600))
			require.NoError(t, os.Rename(filepath.Join(folder, "fresh"), filepath.Join(folder, name)))
		}
		block, _ := pem.Decode(certificate)
		return string(block.Bytes)
	}
	first := issue()
	p := s.launch(t, "--webhook-cert-dir="+folder)
	s.pointAt(t, p.url, authority.PEM())
	s.asked(t, p)
	s.wantFailurePolicy(t, "Fail")

	shown := func() string {
		connection, err := tls.Dial("tcp", p.url[len("https://"):],
			&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // it is looked at, not trusted
		require.NoError(t, err)
		defer connection.Close()
		return string(connection.ConnectionState().PeerCertificates[0].Raw)
	}
	require.Equal(t, first, shown())
	second := issue()
	admitted := func(c require.TestingT) {
		gated, err := s.createPod(t.Context(), s.pod("mounted"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(c, err)
		require.True(c, gated)
		require.NoError(c, s.connect(t.Context(), p.url[len("https://"):]))
	}
	require.Eventually(t, func() bool {
		admitted(t) // each time, before, while and after
		return shown() == second
	}, deadline, tick, "the renewed certificate is served")
	admitted(t)
	require.Nil(t, p.cmd.ProcessState, "by the same process")
	_, err := s.core.CoreV1().Secrets(system).Get(t.Context(), server+"-certs", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "it keeps no Secret: %v", err)
}

// pointAt has both configurations call the server at the URL and trust the authority.
func (s *suite) pointAt(t *testing.T, at string, authority []byte) {
	t.Helper()
	api := s.core.AdmissionregistrationV1()
	moved := func(config *admissionregistrationv1.WebhookClientConfig, path string) { // the manifest has none
		config.URL, config.CABundle = ptr.To(at+path), authority
	}
	mutating, err := api.MutatingWebhookConfigurations().Get(t.Context(), server, metav1.GetOptions{})
	require.NoError(t, err)
	for i := range mutating.Webhooks {
		moved(&mutating.Webhooks[i].ClientConfig, []string{"/mutate-pods", "/mutate-collasets", "/decorate-pods"}[i])
	}
	_, err = api.MutatingWebhookConfigurations().Update(t.Context(), mutating, metav1.UpdateOptions{})
	require.NoError(t, err)
	validating, err := api.ValidatingWebhookConfigurations().Get(t.Context(), server, metav1.GetOptions{})
	require.NoError(t, err)
	for i := range validating.Webhooks {
		moved(&validating.Webhooks[i].ClientConfig,
			[]string{"/validate-collasets", "/validate-podtransitionrules", "/validate-resourcecontexts", "/delete-pods",
				"/evict-pods", "/validate-poddecorations"}[i])
	}
	_, err = api.ValidatingWebhookConfigurations().Update(t.Context(), validating, metav1.UpdateOptions{})
	require.NoError(t, err)
}
