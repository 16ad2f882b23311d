package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// backdate is how long before its making a certificate is valid already, for API servers whose clocks are late.
const backdate = time.Hour

// serialBits is the size of a serial number; RFC 5280 allows 20 octets.
const serialBits = 128

// pair is a serving certificate (PEM) with its key (PEM). The zero value is none.
type pair struct{ cert, key []byte }

// material is the content of the Secret. The zero value is an empty Secret.
type material struct {
	serving pair
	next    pair
	// bundle is the PEM of the authorities to trust, newest first.
	bundle []byte
	// token is what guarded paths end with. It stays the same for as long as the Secret does.
	token []byte
}

// schedule says how long a generation lives. Both are above zero.
type schedule struct {
	lifetime time.Duration
	settle   time.Duration
}

// renew brings m to where it has to be at now. Names are the host names and addresses that the certificate must be
// good for; published is since when every webhook configuration has m's bundle, as far as is known, zero if one lacks
// it. It returns when to look again.
func renew(
	m material, names []string, now time.Time, s schedule, published time.Time,
) (_ material, nextLook time.Time, err error) {
	before := m
	if _, err := cert.ParseCertsPEM(m.bundle); err != nil {
		m.bundle = nil // nothing is trusted by it
	}
	serving, err := m.serving.parse()
	if err != nil || !now.Before(serving.NotAfter) || !trusts(m.bundle, serving, now) {
		serving = nil // unreadable, expired, or signed by an authority that was lost: nothing that could be saved
	}
	if serving != nil {
		names = union(names, namesOf(serving)) // another replica may be reached under another name
	}
	if m.next.cert != nil {
		next, err := m.next.parse()
		switch {
		case err != nil || !now.Before(next.NotAfter) || !trusts(m.bundle, next, now) || !covers(next, names):
			m.next = pair{}
		case serving == nil, !published.IsZero() && !now.Before(published.Add(s.settle)):
			m.serving, m.next, serving = m.next, pair{}, next
		}
	}
	if serving == nil {
		if m.serving, m.bundle, err = generate(m.bundle, names, now, s.lifetime); err != nil {
			return material{}, time.Time{}, err
		}
		if serving, err = m.serving.parse(); err != nil {
			return material{}, time.Time{}, err
		}
	}
	if m.next.cert == nil && (!covers(serving, names) || !now.Before(renewAt(serving, s))) {
		if m.next, m.bundle, err = generate(m.bundle, names, now, s.lifetime); err != nil {
			return material{}, time.Time{}, err
		}
	}
	if m.bundle, err = withoutExpired(m.bundle, now); err != nil {
		return material{}, time.Time{}, err
	}
	if m.next.cert == nil {
		return m, renewAt(serving, s), nil
	}
	if m.equal(before) && !published.IsZero() {
		return m, published.Add(s.settle), nil
	}
	return m, now.Add(s.settle), nil // or as soon as the configurations have the bundle
}

func madeAt(c *x509.Certificate) time.Time { return c.NotBefore.Add(backdate) }

// renewAt is when a certificate has had two thirds of the life that is meant for it now, or that it was given.
func renewAt(c *x509.Certificate, s schedule) time.Time {
	life := min(s.lifetime, c.NotAfter.Sub(madeAt(c)))
	return madeAt(c).Add(life / 3 * 2)
}

// generate makes a new generation and adds its authority to the bundle.
func generate(bundle []byte, names []string, now time.Time, lifetime time.Duration) (pair, []byte, error) {
	authority := &x509.Certificate{
		Subject:               pkix.Name{CommonName: fmt.Sprintf("webhook-server-ca@%d", now.Unix())},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	serving := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "webhook-server"},
		NotBefore:   now.Add(-backdate),
		NotAfter:    now.Add(lifetime),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			serving.IPAddresses = append(serving.IPAddresses, ip)
		} else {
			serving.DNSNames = append(serving.DNSNames, name)
		}
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, nil, fmt.Errorf("making the key of a certificate authority: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, nil, fmt.Errorf("making a serving key: %w", err)
	}
	if authority, err = sign(authority, authority, &authorityKey.PublicKey, authorityKey); err != nil {
		return pair{}, nil, fmt.Errorf("making a certificate authority: %w", err)
	}
	if serving, err = sign(serving, authority, &key.PublicKey, authorityKey); err != nil {
		return pair{}, nil, fmt.Errorf("making a serving certificate: %w", err)
	}
	authorityPEM, err := cert.EncodeCertificates(authority)
	if err != nil {
		return pair{}, nil, err
	}
	servingPEM, err := cert.EncodeCertificates(serving)
	if err != nil {
		return pair{}, nil, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return pair{}, nil, err
	}
	return pair{cert: servingPEM, key: keyPEM}, append(authorityPEM, bundle...), nil
}

func sign(
	template, parent *x509.Certificate, public *ecdsa.PublicKey, signer *ecdsa.PrivateKey,
) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// parse returns the certificate, once it is sure that the key belongs to it.
func (p pair) parse() (*x509.Certificate, error) {
	if len(p.cert) == 0 {
		return nil, errors.New("there is no certificate")
	}
	both, err := tls.X509KeyPair(p.cert, p.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(both.Certificate[0])
}

// trusts reports whether the bundle vouches for c at now.
func trusts(bundle []byte, c *x509.Certificate, now time.Time) bool {
	return trustsThrough(bundle, nil, c, now)
}

// trustsThrough is trusts for a certificate that comes with those of authorities between it and the bundle.
func trustsThrough(bundle []byte, between *x509.CertPool, c *x509.Certificate, now time.Time) bool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err := c.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err == nil
}

// withoutExpired drops the authorities whose time is over. A bundle without a certificate is an error.
func withoutExpired(bundle []byte, now time.Time) ([]byte, error) {
	authorities, err := cert.ParseCertsPEM(bundle)
	if err != nil {
		return nil, fmt.Errorf("reading the bundle of certificate authorities: %w", err)
	}
	kept := slices.DeleteFunc(slices.Clone(authorities), func(c *x509.Certificate) bool { return !now.Before(c.NotAfter) })
	if len(kept) == len(authorities) {
		return bundle, nil
	}
	return cert.EncodeCertificates(kept...)
}

func namesOf(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

func covers(c *x509.Certificate, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return c.VerifyHostname(name) != nil })
}

func union(a, b []string) []string {
	both := slices.Concat(a, b)
	slices.Sort(both)
	return slices.Compact(both)
}

func (m material) equal(o material) bool {
	return bytes.Equal(m.serving.cert, o.serving.cert) && bytes.Equal(m.serving.key, o.serving.key) &&
		bytes.Equal(m.next.cert, o.next.cert) && bytes.Equal(m.next.key, o.next.key) && bytes.Equal(m.bundle, o.bundle) &&
		bytes.Equal(m.token, o.token)
}

// newToken has 128 random bits. The API server wants small letters in the path of a Service's webhook.
func newToken() []byte {
	return []byte(strings.ToLower(rand.Text()))
}

// tokenFits reports whether a token may stand in the path of a Service's webhook. Earlier versions made some of
// capitals.
func tokenFits(token []byte) bool {
	return len(token) > 0 && bytes.Equal(token, bytes.ToLower(token))
}
