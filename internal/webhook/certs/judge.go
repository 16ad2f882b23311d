package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// judge checks whether the API server can call the server with the certificate that it has.
type judge struct {
	settings Settings
	clock    clock.Clock
	// reader reads webhook configurations from the cache.
	reader client.Reader
}

// host is the name by which the API server calls this replica.
func (j *judge) host() string {
	if j.settings.AdvertiseURL != nil {
		return j.settings.AdvertiseURL.Hostname()
	}
	return j.settings.Name + "." + j.settings.Namespace + ".svc"
}

// check is nil if the certificate is valid, good for the name by which the API server calls, and trusted by every
// webhook configuration.
func (j *judge) check(ctx context.Context, serving *tls.Certificate) error {
	configurations, err := j.configurations(ctx)
	if err != nil {
		return err
	}
	if err := configurations.complete(); err != nil {
		return err
	}
	if host := j.host(); !covers(serving.Leaf, []string{host}) {
		return fmt.Errorf("the serving certificate is not good for %s yet", host)
	}
	between := x509.NewCertPool()
	for _, der := range serving.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	for _, webhook := range configurations.callers() {
		if !trustsThrough(webhook.config.CABundle, between, serving.Leaf, j.clock.Now()) {
			return fmt.Errorf("webhook %s does not trust the serving certificate, or it expired at %s", webhook.name,
				serving.Leaf.NotAfter)
		}
	}
	return nil
}
