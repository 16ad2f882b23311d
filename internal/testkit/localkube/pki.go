package localkube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const certificateLifetime = 365 * 24 * time.Hour

// authority is the cluster's own certificate authority. Its key is written for
// the controller manager, which signs certificate requests with it.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// newPKI makes an authority, the API server's serving certificate and the key
// that signs service account tokens, in dir.
func newPKI(dir string) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := newKey(filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "kuperator local cluster"},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	a := &authority{dir: dir, key: key, cert: template}
	if a.pem, err = a.sign(template, key, "ca"); err != nil {
		return nil, err
	}
	block, _ := pem.Decode(a.pem)
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return nil, err
	}
	if _, err := newKey(filepath.Join(dir, "service-account.key")); err != nil {
		return nil, err
	}
	servingKey, err := newKey(filepath.Join(dir, "apiserver.key"))
	if err != nil {
		return nil, err
	}
	_, err = a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.ParseIP(loopback), net.ParseIP(apiServiceIP)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, servingKey, "apiserver")
	return a, err
}

// loadPKI reads the authority that newPKI made in dir.
func loadPKI(dir string) (*authority, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's authority: %w", err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the cluster's authority has a key of type %T", pair.PrivateKey)
	}
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	return &authority{dir: dir, cert: pair.Leaf, key: key, pem: encoded}, nil
}

// kubeconfig writes a kubeconfig for user (with its groups) to path.
func (a *authority) kubeconfig(path, server, user string, groups ...string) error {
	key, err := newKey(filepath.Join(a.dir, filepath.Base(path)+".key"))
	if err != nil {
		return err
	}
	cert, err := a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key, filepath.Base(path))
	if err != nil {
		return err
	}
	keyPEM, err := os.ReadFile(filepath.Join(a.dir, filepath.Base(path)+".key"))
	if err != nil {
		return err
	}
	return writeKubeconfig(path, server, a.pem, &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: keyPEM})
}

// sign fills in serial number and times, signs the certificate of key and
// writes it to the authority's folder as name.crt.
func (a *authority) sign(template *x509.Certificate, key *ecdsa.PrivateKey, name string) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(certificateLifetime)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", name, err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return cert, os.WriteFile(filepath.Join(a.dir, name+".crt"), cert, 0o600)
}

func newKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

func writeKubeconfig(path, server string, ca []byte, user *clientcmdapi.AuthInfo) error {
	const name = "local"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[name] = user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return clientcmd.WriteToFile(*config, path)
}
