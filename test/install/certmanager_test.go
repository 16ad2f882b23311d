package install

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/localkube/binaries"
)

// TestCertManager has cert-manager do what the component cert-manager asks of it: it issues the serving certificate,
// its cainjector has API servers trust it, and webhook-server serves with it, also after a renewal.
func TestCertManager(t *testing.T) {
	foreign(t)
	w := newWorld(t)
	w.namespaces(t, storyNamespace)
	w.runForeign(t, binaries.CertManager, []string{"--kubeconfig=" + w.cluster.AdminKubeconfig}, "deploy/crds/*.yaml")
	t.Run("chart, in a namespace of another name", func(t *testing.T) {
		w.restrict(t, "platform")
		i := w.release(t, "platform", "kuperator", "--values", variant(t, "webhook-only"), "--set",
			"webhookServer.certManager=true")
		w.servesWhatCertManagerIssues(t, i.namespace)
		i.uninstall(t)
	})
	t.Run("overlay", func(t *testing.T) {
		w.kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", deployDir(t, "prerequisites"))
		w.restrict(t, system)
		dir := kustomization(t, "", []string{"overlays/webhook-only"}, []string{"components/cert-manager"})
		apply := func() { w.kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", dir) }
		apply()
		w.servesWhatCertManagerIssues(t, system)

		apply() // as an upgrade does
		for _, c := range w.calls(t) {
			require.NotEmpty(t, c.CABundle, "it is cainjector's, and stays")
			require.EqualValues(t, 443, *c.Service.Port)
		}
		w.kubectl(t, "delete", "--wait", "-k", dir)
	})
}

// servesWhatCertManagerIssues runs webhook-server, with the certificate that cert-manager issued, behind its Service,
// and renews the certificate. The test does the kubelet's work: it keeps the Secret in a folder.
func (w *world) servesWhatCertManagerIssues(t *testing.T, namespace string) {
	t.Helper()
	ports, err := localkube.ReservePorts(3)
	require.NoError(t, err)
	w.callByService(t, namespace, ports.Numbers[2])
	secret, folder := &corev1.Secret{}, t.TempDir()
	mount := func(than []byte) {
		await.Nil(t, "the certificate", func() error {
			if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "webhook-server-tls"},
				secret); err != nil {
				return err
			}
			if bytes.Equal(secret.Data[corev1.TLSCertKey], than) {
				return errNotYet
			}
			return nil
		})
		for _, name := range []string{corev1.TLSPrivateKeyKey, corev1.TLSCertKey} {
			require.NoError(t, os.WriteFile(filepath.Join(folder, "fresh"), secret.Data[name], 0o600))
			require.NoError(t, os.Rename(filepath.Join(folder, "fresh"), filepath.Join(folder, name)))
		}
	}
	mount(nil)
	first := bytes.Clone(secret.Data[corev1.TLSCertKey])
	ca := secret.Data["ca.crt"]
	await.Nil(t, "cainjector", func() error {
		for _, c := range w.calls(t) {
			if !bytes.Equal(c.CABundle, ca) {
				return fmt.Errorf("the authority of a webhook is %q, that of the certificate is %q", c.CABundle, ca)
			}
		}
		return nil
	})

	deployments := w.rolledOut(t, namespace)
	i := slices.IndexFunc(deployments, func(d appsv1.Deployment) bool { return d.Name == webhooks })
	require.GreaterOrEqual(t, i, 0)
	require.Contains(t, deployments[i].Spec.Template.Spec.Containers[0].Args,
		"--webhook-cert-dir=/var/run/webhook-server/tls")
	p := w.launch(t, &deployments[i], version, ports, "--webhook-bind-address="+loopback,
		"--webhook-port="+strconv.Itoa(ports.Numbers[2]), "--webhook-cert-dir="+folder)
	await.Nil(t, "webhook-server ready", func() error { return p.ready(t) })
	w.waitAsked(t)

	shown := func() []byte {
		roots := x509.NewCertPool()
		require.True(t, roots.AppendCertsFromPEM(ca))
		connection, err := tls.Dial("tcp", "127.0.0.1:"+strconv.Itoa(ports.Numbers[2]), &tls.Config{RootCAs: roots,
			MinVersion: tls.VersionTLS12, ServerName: "webhook-server." + namespace + ".svc"})
		require.NoError(t, err)
		defer connection.Close()
		return connection.ConnectionState().PeerCertificates[0].Raw
	}
	require.Equal(t, der(t, first), shown())

	// As cmctl renew does.
	w.kubectl(t, "patch", "certificate", webhooks, "-n", namespace, "--subresource=status", "--type=json", "-p",
		`[{"op":"add","path":"/status/conditions/-","value":{"type":"Issuing","status":"True","reason":"ManuallyTriggered",`+
			`"message":"renewed by a test","lastTransitionTime":"2026-01-01T00:00:00Z"}}]`)
	mount(first)
	require.Equal(t, ca, secret.Data["ca.crt"], "the same authority")
	await.Nil(t, "the renewed certificate", func() error {
		w.waitAsked(t) // each time, before and after
		if !bytes.Equal(shown(), der(t, secret.Data[corev1.TLSCertKey])) {
			return errNotYet
		}
		return nil
	})
	require.NoError(t, p.ready(t))
	w.waitAsked(t)
	p.stop(t)
}

// callByService has API servers reach webhook-server at a port of this machine by its Service, whose name the
// certificate must have. A cluster without a network has no other way.
func (w *world) callByService(t *testing.T, namespace string, port int) {
	t.Helper()
	w.kubectl(t, "patch", "service", webhooks, "-n", namespace, "--type=merge", "-p",
		`{"spec":{"type":"ExternalName","externalName":"127.0.0.1"}}`)
	for _, configuration := range []client.Object{&admissionregistrationv1.MutatingWebhookConfiguration{},
		&admissionregistrationv1.ValidatingWebhookConfiguration{}} {
		require.NoError(t, w.client.Get(t.Context(), client.ObjectKey{Name: webhooks}, configuration))
		var patch []map[string]any
		for i := range clientConfigs(configuration) {
			patch = append(patch, map[string]any{"op": "replace", "value": port,
				"path": fmt.Sprintf("/webhooks/%d/clientConfig/service/port", i)})
		}
		text, err := json.Marshal(patch)
		require.NoError(t, err)
		require.NoError(t, w.client.Patch(t.Context(), configuration, client.RawPatch(types.JSONPatchType, text)))
	}
}

// calls are how API servers call webhook-server.
func (w *world) calls(t *testing.T) []admissionregistrationv1.WebhookClientConfig {
	t.Helper()
	var all []admissionregistrationv1.WebhookClientConfig
	for _, configuration := range []client.Object{&admissionregistrationv1.MutatingWebhookConfiguration{},
		&admissionregistrationv1.ValidatingWebhookConfiguration{}} {
		require.NoError(t, w.client.Get(t.Context(), client.ObjectKey{Name: webhooks}, configuration))
		all = append(all, clientConfigs(configuration)...)
	}
	require.Len(t, all, 9)
	return all
}

func clientConfigs(configuration client.Object) []admissionregistrationv1.WebhookClientConfig {
	var all []admissionregistrationv1.WebhookClientConfig
	switch c := configuration.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for _, webhook := range c.Webhooks {
			all = append(all, webhook.ClientConfig)
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for _, webhook := range c.Webhooks {
			all = append(all, webhook.ClientConfig)
		}
	}
	return all
}

// der is a certificate as it is sent.
func der(t *testing.T, certificate []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(certificate)
	if block == nil {
		require.NoError(t, errors.New("there is no certificate"))
	}
	return block.Bytes
}
