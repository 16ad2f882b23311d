package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Mounted serves a certificate that another program, cert-manager for example, keeps in a folder, and whose authority
// that program writes into the webhook configurations. It reads the files again when they change. Nothing is written.
type Mounted struct {
	judge
	watcher *certwatcher.CertWatcher
}

// NewMounted reads tls.crt and tls.key of the folder; it is an error if they are not there or do not belong together.
// Of the settings, Name, Namespace and AdvertiseURL are used.
func NewMounted(folder string, settings Settings, c clock.Clock) (*Mounted, error) {
	watcher, err := certwatcher.New(filepath.Join(folder, corev1.TLSCertKey),
		filepath.Join(folder, corev1.TLSPrivateKeyKey))
	if err != nil {
		return nil, fmt.Errorf("reading %s and %s in %q: %w", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, folder, err)
	}
	return &Mounted{judge: judge{settings: settings, clock: c}, watcher: watcher}, nil
}

// Add makes mgr watch the files, and the webhook configurations.
func (m *Mounted) Add(ctx context.Context, mgr ctrl.Manager) error {
	m.reader = mgr.GetClient()
	for _, kind := range []client.Object{&admissionregistrationv1.MutatingWebhookConfiguration{},
		&admissionregistrationv1.ValidatingWebhookConfiguration{}} {
		if _, err := mgr.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watching %T: %w", kind, err)
		}
	}
	return mgr.Add(m.watcher)
}

// TLS makes a server present the present certificate in every new handshake.
func (m *Mounted) TLS(c *tls.Config) {
	c.MinVersion = tls.VersionTLS12
	c.GetCertificate = m.watcher.GetCertificate
}

// NotAfter is when the certificate that is served expires; zero without one.
func (m *Mounted) NotAfter() time.Time {
	serving, err := m.watcher.GetCertificate(nil)
	if err != nil || serving == nil || serving.Leaf == nil {
		return time.Time{}
	}
	return serving.Leaf.NotAfter
}

// Token is not needed: there is nothing in the webhook configurations that only API servers know.
func (m *Mounted) Token() (token string, needed bool) { return "", false }

// Check is a readiness check like that of Keeper.
func (m *Mounted) Check(request *http.Request) error {
	serving, err := m.watcher.GetCertificate(nil)
	if err != nil {
		return err
	}
	if serving == nil || m.reader == nil {
		return errors.New("there is no serving certificate yet")
	}
	return m.check(request.Context(), serving)
}
