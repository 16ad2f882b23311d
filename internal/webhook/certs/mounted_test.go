package certs

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// mount writes a new certificate of the names into the folder and returns its authority.
func mount(t *testing.T, folder string, names []string) (authority []byte) {
	t.Helper()
	p, authority, err := generate(nil, names, start, plan.lifetime)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "tls.crt"), p.cert, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "tls.key"), p.key, 0o600))
	return authority
}

// inject does what cert-manager's cainjector does.
func inject(t *testing.T, c client.Client, authority []byte) {
	t.Helper()
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	key := client.ObjectKey{Name: "webhook-server"}
	require.NoError(t, c.Get(t.Context(), key, &mutating))
	require.NoError(t, c.Get(t.Context(), key, &validating))
	for _, caller := range (configurations{mutating: &mutating, validating: &validating}).callers() {
		caller.config.CABundle = authority
	}
	require.NoError(t, c.Update(t.Context(), &mutating))
	require.NoError(t, c.Update(t.Context(), &validating))
}

func TestAMountedCertificateIsReadyWhenTheConfigurationsTrustIt(t *testing.T) {
	folder, c, clock := t.TempDir(), clientWith(installed()...), clocktesting.NewFakeClock(start)
	settings := Settings{Name: "webhook-server", Namespace: "kuperator-system"}
	_, err := NewMounted(folder, settings, clock)
	require.ErrorContains(t, err, "reading tls.crt and tls.key in")

	authority := mount(t, folder, someName)
	m, err := NewMounted(folder, settings, clock)
	require.NoError(t, err)
	m.reader = c
	ready := func() error { return m.Check(httptest.NewRequest("GET", "/readyz", nil)) }
	require.ErrorContains(t, ready(), "does not trust the serving certificate")
	inject(t, c, authority)
	require.NoError(t, ready())
	require.WithinDuration(t, start.Add(plan.lifetime), m.NotAfter(), time.Hour)

	t.Log("the next one is read without a restart")
	authority = mount(t, folder, someName)
	require.NoError(t, m.watcher.ReadCertificate()) // which the watcher does by itself when the files change
	require.ErrorContains(t, ready(), "does not trust the serving certificate")
	inject(t, c, authority)
	require.NoError(t, ready())

	t.Log("and it may not be for somebody else")
	inject(t, c, mount(t, folder, []string{"other.example.test"}))
	require.NoError(t, m.watcher.ReadCertificate())
	require.ErrorContains(t, ready(), "not good for webhook-server.kuperator-system.svc")

	clock.Step(plan.lifetime + time.Second)
	inject(t, c, mount(t, folder, someName)) // from the start of the test, so its time is over
	require.NoError(t, m.watcher.ReadCertificate())
	require.ErrorContains(t, ready(), "it expired at")
}
