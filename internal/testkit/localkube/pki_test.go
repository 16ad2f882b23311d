package localkube

import (
	"crypto/x509"
	"encoding/pem"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
)

func TestAuthoritySignsOnAfterItWasReadAgain(t *testing.T) {
	dir := t.TempDir()
	made, err := newPKI(dir)
	require.NoError(t, err)
	read, err := loadPKI(dir)
	require.NoError(t, err)
	require.Equal(t, made.pem, read.pem)
	path := filepath.Join(dir, "node.kubeconfig")
	require.NoError(t, read.kubeconfig(path, "https://127.0.0.1:1", "system:node:a", "system:nodes"))
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	block, _ := pem.Decode(config.CertData)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	require.NoError(t, cert.CheckSignatureFrom(made.cert))
	require.Equal(t, "system:node:a", cert.Subject.CommonName)
	require.Equal(t, []string{"system:nodes"}, cert.Subject.Organization)
}
