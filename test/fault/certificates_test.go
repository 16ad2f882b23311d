package fault

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/faultproxy"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

const (
	// shortCertificatePlans is how many of these plans `make test` runs.
	shortCertificatePlans = 8
	// shortLife is of a certificate that is renewed 4 s after it was made.
	shortLife = "--webhook-cert-lifetime=6s"
	// longLived tells a certificate of 90 days from one of those.
	longLived = 24 * time.Hour
)

// certificateScenario is how webhook-server comes to write its certificate, or whom the API server is to trust. Its
// configurations are the whole cluster's, so these scenarios are played one at a time, by their own webhook-server.
type certificateScenario struct {
	name string
	// before is what there is when the faulted webhook-server starts, besides configurations without trusted certificates.
	// Nil is nothing.
	before func(*keeping) error
	// then is what happens to it when it is settled. Nil faults it from its start on.
	then func(*keeping) error
}

func certificateScenarios() []certificateScenario {
	return []certificateScenario{
		{name: "certificate-first"},
		{name: "certificate-renewal", before: (*keeping).aging},
		{name: "certificate-distrusted", then: (*keeping).distrust},
	}
}

func certificateScenarioOf(name string) (certificateScenario, bool) {
	all := certificateScenarios()
	i := slices.IndexFunc(all, func(s certificateScenario) bool { return s.name == name })
	if i < 0 {
		return certificateScenario{}, false
	}
	return all[i], true
}

func ofCertificates(p plan) bool {
	_, is := certificateScenarioOf(p.scenario)
	return is
}

// keeping is one play of a scenario.
type keeping struct {
	ctx   context.Context
	plane *plane
	proc  *process
}

// keep plays a scenario with webhook-server as the program at path, with the plan's fault if it has one. It returns
// the writes of the play by key.
func (p *plane) keep(ctx context.Context, s certificateScenario, program string, o *outcome) map[string]int {
	k := &keeping{ctx: ctx, plane: p}
	defer func() { o.took = time.Since(o.began) }()
	defer k.end(o)
	if err := k.prepare(s, program); err != nil {
		o.check("setup", err)
		return nil
	}
	k.proc.proxy.Mark()
	fired := func() bool { return true }
	if o.plan.mode != "" {
		fault := modes[o.plan.mode]
		fault.Match = faultproxy.Match{Key: o.plan.key, Ordinal: o.plan.ordinal}
		armed := k.proc.proxy.Arm(fault)
		defer armed.Disarm()
		fired = func() bool { return armed.Fired() > 0 }
	}
	trusted := k.watchTrust()
	defer func() { _, _ = trusted() }() // if it was not asked before
	if s.then == nil {
		k.proc.supervise()
	} else if err := s.then(k); err != nil {
		o.check("convergence", err)
		return nil
	}
	o.check("convergence", until(ctx, "the end state", k.settled))
	o.fired = fired()
	converged := time.Now()
	o.check("quiet", k.quiet(converged))
	o.check("end state", k.settled())
	checks, err := trusted()
	o.check("promises", err)
	o.checks["promises"] += checks
	counts := map[string]int{}
	for _, w := range k.proc.proxy.Writes() {
		counts[w.Key()]++
	}
	return counts
}

func certificateSecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: suite.Namespace, Name: suite.Webhook + "-certs"}}
}

// prepare brings the cluster to where the scenario begins, and webhook-server, behind its proxy, to where it is
// faulted from.
func (k *keeping) prepare(s certificateScenario, program string) error {
	if err := client.IgnoreNotFound(k.plane.client.Delete(k.ctx, certificateSecret())); err != nil {
		return err
	}
	if err := k.distrust(); err != nil {
		return err
	}
	if s.before != nil {
		if err := s.before(k); err != nil {
			return err
		}
	}
	var err error
	if k.proc, err = k.plane.newWebhook(k.ctx); err != nil {
		return err
	}
	k.proc.path = program
	if s.then == nil {
		return nil
	}
	k.proc.supervise()
	return until(k.ctx, "webhook-server to settle", k.settled)
}

// end stops it, and judges how it ran.
func (k *keeping) end(o *outcome) {
	if k.proc == nil {
		return
	}
	if k.proc.stopped != nil {
		k.proc.stop()
	}
	for _, text := range append(k.proc.deaths(), k.proc.blunders()...) {
		o.check("processes", errors.New(text))
	}
	o.check("processes", nil)
}

// aging leaves a certificate behind that is about to be renewed.
func (k *keeping) aging() error {
	proc, err := k.plane.newWebhook(k.ctx, shortLife)
	if err != nil {
		return err
	}
	proc.supervise()
	defer proc.stop()
	return until(k.ctx, "a certificate that lives for some seconds", func() error {
		bundles, err := k.bundles()
		if err == nil {
			_, err = k.trust(bundles)
		}
		return err
	})
}

// distrust takes the authorities out of the configurations, as who applies their manifests again does.
func (k *keeping) distrust() error {
	return until(k.ctx, "the configurations to trust nobody", func() error {
		mutating, validating, err := k.configurations()
		if err != nil {
			return err
		}
		for _, config := range clientConfigs(mutating, validating) {
			config.CABundle = nil
		}
		return errors.Join(k.plane.client.Update(k.ctx, mutating), k.plane.client.Update(k.ctx, validating))
	})
}

func (k *keeping) configurations() (*admissionregistrationv1.MutatingWebhookConfiguration,
	*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	mutating, validating := &admissionregistrationv1.MutatingWebhookConfiguration{},
		&admissionregistrationv1.ValidatingWebhookConfiguration{}
	key := client.ObjectKey{Name: suite.Webhook}
	return mutating, validating, errors.Join(k.plane.client.Get(k.ctx, key, mutating),
		k.plane.client.Get(k.ctx, key, validating))
}

// clientConfigs are those of all webhooks, by name. Both configurations have webhooks of one name.
func clientConfigs(
	mutating *admissionregistrationv1.MutatingWebhookConfiguration,
	validating *admissionregistrationv1.ValidatingWebhookConfiguration,
) map[string]*admissionregistrationv1.WebhookClientConfig {
	all := map[string]*admissionregistrationv1.WebhookClientConfig{}
	for i := range mutating.Webhooks {
		all["mutating "+mutating.Webhooks[i].Name] = &mutating.Webhooks[i].ClientConfig
	}
	for i := range validating.Webhooks {
		all["validating "+validating.Webhooks[i].Name] = &validating.Webhooks[i].ClientConfig
	}
	return all
}

// bundles are the CA bundles that each webhook trusts. None is a webhook without a trusted certificate.
func (k *keeping) bundles() (map[string][]byte, error) {
	mutating, validating, err := k.configurations()
	if err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	for name, config := range clientConfigs(mutating, validating) {
		all[name] = config.CABundle
	}
	return all, nil
}

// trust shakes hands with the server as an API server does that has seen these bundles. An error is that it cannot be
// reached, or that a webhook has no bundle yet; verdict is that a bundle does not vouch for what is shown.
func (k *keeping) trust(bundles map[string][]byte) (verdict, err error) {
	leaf, err := k.shown()
	if err != nil {
		return nil, err
	}
	for _, name := range sortedKeys(bundles) {
		if len(bundles[name]) == 0 {
			err = fmt.Errorf("webhook %s has no bundle yet", name)
		} else if vouched := vouches(bundles[name], leaf); vouched != nil {
			verdict = fmt.Errorf("a certificate is served and not trusted by an API server that lags %s: %s: %w", apiServerLag,
				name, vouched)
		}
	}
	return verdict, err
}

// vouches is about the signature. A certificate that was to be renewed in time, and whose renewal is held up by a
// fault, may have expired.
func vouches(bundle []byte, leaf *x509.Certificate) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return errors.New("the bundle has no certificate")
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: leaf.NotBefore, DNSName: "127.0.0.1"})
	return err
}

// shown is the certificate that the server shows in a handshake.
func (k *keeping) shown() (*x509.Certificate, error) {
	dialer := &net.Dialer{Timeout: time.Second}
	connection, err := tls.DialWithDialer(dialer, "tcp", k.address(),
		&tls.Config{InsecureSkipVerify: true,
			MinVersion: tls.VersionTLS12}) //nolint:gosec // what is shown is verified afterwards
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	return connection.ConnectionState().PeerCertificates[0], nil
}

func (k *keeping) address() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(k.plane.webhookPort.Numbers[0]))
}

// apiServerLag is how late an API server may learn of a bundle: somewhat less than webhook-server's
// --webhook-cert-settle gives it.
const apiServerLag = 800 * time.Millisecond

// watchTrust judges, until it is stopped, what is served by what the configurations said a lag ago.
func (k *keeping) watchTrust() (stop func() (checks int, err error)) {
	ctx, cancel := context.WithCancel(k.ctx)
	watch := &keeping{ctx: ctx, plane: k.plane}
	done := make(chan struct{})
	var broken error
	checks := 0
	type reading struct {
		at      time.Time
		bundles map[string][]byte
	}
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		var read []reading // the last that is a lag old, and all since
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			bundles, err := watch.bundles()
			if err != nil {
				continue
			}
			read = append(read, reading{time.Now(), bundles})
			for len(read) > 1 && time.Since(read[1].at) > apiServerLag {
				read = read[1:]
			}
			verdict, err := watch.trust(read[0].bundles)
			if err == nil {
				checks++
			}
			if broken == nil {
				broken = verdict
			}
		}
	}()
	return func() (int, error) {
		cancel()
		<-done
		return checks, broken
	}
}

// settled is nil when one certificate of the full life is served, kept in the Secret and trusted by every webhook,
// and admissions come.
func (k *keeping) settled() error {
	secret := certificateSecret()
	if err := k.plane.client.Get(k.ctx, client.ObjectKeyFromObject(secret), secret); err != nil {
		return err
	}
	if secret.Data["next.crt"] != nil {
		return errors.New("the next certificate is not served yet")
	}
	kept, err := cert.ParseCertsPEM(secret.Data[corev1.TLSCertKey])
	if err != nil {
		return err
	}
	if time.Until(kept[0].NotAfter) < longLived {
		return fmt.Errorf("the certificate is good until %s", kept[0].NotAfter)
	}
	authorities, err := cert.ParseCertsPEM(secret.Data["ca.crt"])
	if err != nil {
		return err
	}
	made := 0
	for _, authority := range authorities {
		if time.Until(authority.NotAfter) > longLived {
			made++
		}
	}
	if made != 1 {
		return fmt.Errorf("%d certificates were made where one was to be", made)
	}
	mutating, validating, err := k.configurations()
	if err != nil {
		return err
	}
	for name, config := range clientConfigs(mutating, validating) {
		switch {
		case !bytes.Equal(config.CABundle, secret.Data["ca.crt"]):
			return fmt.Errorf("webhook %s has another bundle than the Secret", name)
		case config.URL == nil || !strings.HasPrefix(*config.URL, "https://"+k.address()+"/"):
			return fmt.Errorf("webhook %s is called elsewhere", name)
		case path.Base(*config.URL) != string(secret.Data["token"]):
			return fmt.Errorf("webhook %s is not called with the token", name)
		}
	}
	leaf, err := k.shown()
	if err != nil {
		return err
	}
	if !leaf.Equal(kept[0]) {
		return errors.New("another certificate is served than the Secret has")
	}
	return k.plane.asked(k.ctx)
}

// quiet waits, and is nil if nothing is written: longer than API servers are given to see a bundle.
func (k *keeping) quiet(since time.Time) error {
	if err := pass(k.ctx, 1200*time.Millisecond); err != nil {
		return err
	}
	for _, w := range k.proc.proxy.Writes() {
		if w.At.After(since) {
			return fmt.Errorf("written %s after the end state: %s", w.At.Sub(since), w)
		}
	}
	return nil
}

// alone has the plane without its own webhook-server for a test.
func (p *plane) alone(t *testing.T) {
	t.Helper()
	p.webhook.stop()
	t.Cleanup(func() { require.NoError(t, p.startWebhook(context.WithoutCancel(t.Context()))) })
}

// TestCertificateAtEveryWrite breaks webhook-server at the writes by which it makes, renews and announces its
// certificates.
func TestCertificateAtEveryWrite(t *testing.T) {
	notShort(t, ".ci/run runs it for a change to internal/webhook/certs")
	chosen := plansAskedFor(t, ofCertificates)
	isWanted := wantedScenario(t, chosen)
	wanted := slices.DeleteFunc(certificateScenarios(), func(s certificateScenario) bool { return !isWanted(s.name) })
	if len(wanted) == 0 {
		t.Skip("FAULT_SCENARIO has scenarios of other tests")
	}
	p := start(t)
	p.alone(t)
	writes, plans := map[string]map[string]int{}, []plan(nil)
	for _, s := range wanted {
		for range 2 {
			o := newOutcome(plan{scenario: s.name, component: suite.Webhook})
			counts := p.keep(t.Context(), s, p.program(suite.Webhook), o)
			require.Empty(t, o.failures, "%s without a fault", s.name)
			if writes[s.name] != nil {
				require.Equal(t, writes[s.name], counts, "%s ends in two ways, without a fault", s.name)
			}
			writes[s.name] = counts
		}
		t.Logf("%s: %v", s.name, writes[s.name])
		plans = append(plans, plansOf(s.name, suite.Webhook, writes[s.name])...)
	}
	if len(chosen) > 0 {
		plans = chosen
	} else {
		t.Logf("%d plans in all", len(plans))
		plans = selection(t, plans, certificatesOnceFailed, shortCertificatePlans, 0)
	}
	var outcomes []*outcome
	for _, pl := range plans {
		s, _ := certificateScenarioOf(pl.scenario)
		o := newOutcome(pl)
		counts := p.keep(t.Context(), s, p.program(suite.Webhook), o)
		o.check("economy", thrifty(counts, writes[s.name]))
		outcomes = append(outcomes, o)
	}
	report(t, "certificate at every write", outcomes)
}

// certificatesOnceFailed are plans that found a defect, each with what was wrong.
var certificatesOnceFailed = []string{
	// The time for API servers to see a bundle was counted from when it was made, not from when the configurations had it.
	"certificate-renewal|webhook-server|patch mutatingwebhookconfigurations|1|TooManyRequests",
	"certificate-renewal|webhook-server|update secrets|1|TooManyRequests",
}

// TestPlantedRotationIsFound has a webhook-server serve a new certificate at once, before any API server can have
// learned whom to trust.
func TestPlantedRotationIsFound(t *testing.T) {
	if os.Getenv("FAULTS") != "all" {
		t.Skip("FAULTS=all runs it")
	}
	p := start(t)
	p.alone(t)
	s, _ := certificateScenarioOf("certificate-renewal")
	o := newOutcome(plan{s.name, suite.Webhook, "patch mutatingwebhookconfigurations", 1, "TooManyRequests"})
	p.keep(t.Context(), s, p.buildPlanted(t, untrusted), o)
	found := slices.ContainsFunc(o.failures,
		func(text string) bool { return strings.Contains(text, "served and not trusted") })
	untrusted.report(t, found)
	require.True(t, found, "the planted defect was not found; there was: %v", o.failures)
	t.Logf("found: %v", o.failures)
}

var untrusted = bug{
	name: "serves-what-nobody-trusts-yet", component: suite.Webhook,
	changes: []sourceChange{{"internal/webhook/certs/keeper.go", "	if err := k.serve(wanted.serving); err != nil {",
		"	if wanted.next.cert != nil {\n		wanted.serving = wanted.next\n	}\n	if err := k.serve(wanted.serving); err != nil {"}},
}
