package security

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testca"
)

// token makes a ServiceAccount and returns a token of it.
func (w *world) token(t *testing.T, namespace, name string) string {
	t.Helper()
	accounts := w.clients.CoreV1().ServiceAccounts(namespace)
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	granted, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	return granted.Status.Token
}

// scrape asks for /metrics by HTTPS, with a token if there is one, and returns the status code, the body and the
// certificate that the server showed.
func scrape(t *testing.T, address, token string) (code int, body, certificate []byte, err error) {
	t.Helper()
	client := &http.Client{Timeout: time.Minute,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // it is self-signed
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", nil)
	require.NoError(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, response.TLS.PeerCertificates[0].Raw, err
}

// TestMetricsAreForThoseWhoMayReadThem has every component serve its metrics as deploy has them served.
func TestMetricsAreForThoseWhoMayReadThem(t *testing.T) {
	w := everything(t)
	namespace := w.namespace(t)
	stranger, reader := w.token(t, namespace, "stranger"), w.token(t, namespace, "prometheus")
	_, err := w.clients.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace + "-prometheus"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "kuperator-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "prometheus"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	for _, name := range suite.Components() {
		t.Run(name, func(t *testing.T) {
			address := w.MetricsAddress(name)
			expect := func(token string, want int) (body []byte) {
				// the API server learns of the binding a moment later, and the component forgets a no after 30 s
				eventually(t, func(c *assert.CollectT) {
					code, got, _, err := scrape(t, address, token)
					require.NoError(c, err)
					require.Equal(c, want, code, "%.300s", got)
					body = got
				}, "the answer")
				return body
			}
			expect("", http.StatusUnauthorized)
			expect("forged", http.StatusUnauthorized)
			require.NotContains(t, string(expect(stranger, http.StatusForbidden)), "go_goroutines")
			require.Contains(t, string(expect(reader, http.StatusOK)), "kuperator_build_info{component=\""+name+"\"")

			response, err := http.Get("http://" + address + "/metrics") //nolint:noctx // no more than a look
			require.NoError(t, err)
			defer response.Body.Close()
			require.Equal(t, http.StatusBadRequest, response.StatusCode, "plain HTTP is not served")
		})
	}
}

// TestTheMetricsCertificateIsReadAgain replaces a component's own certificate while it runs.
func TestTheMetricsCertificateIsReadAgain(t *testing.T) {
	w := everything(t)
	authority, folder := testca.New(t), t.TempDir()
	issue := func() {
		certificate, key := authority.Issue(t)
		for name, content := range map[string][]byte{corev1.TLSPrivateKeyKey: key, corev1.TLSCertKey: certificate} {
			fresh := filepath.Join(folder, "."+name)
			require.NoError(t, os.WriteFile(fresh, content, 0o600))
			require.NoError(t, os.Rename(fresh, filepath.Join(folder, name)))
		}
	}
	issue()
	require.NoError(t, w.Restart(t.Context(), suite.Lifecycle, "--metrics-secure", "--metrics-cert-dir="+folder))
	t.Cleanup(func() {
		require.NoError(t, w.Restart(context.WithoutCancel(t.Context()), suite.Lifecycle, "--metrics-secure"))
	})
	served := func() (certificate []byte) {
		eventually(t, func(c *assert.CollectT) {
			code, _, shown, err := scrape(t, w.MetricsAddress(suite.Lifecycle), "")
			require.NoError(c, err)
			require.Equal(c, http.StatusUnauthorized, code)
			certificate = shown
		}, "it serves")
		return certificate
	}
	first := served()
	pid := w.Processes()[suite.Lifecycle]
	issue()
	eventually(t, func(c *assert.CollectT) { require.False(c, bytes.Equal(first, served())) },
		"the new certificate is served")
	require.Equal(t, pid, w.Processes()[suite.Lifecycle], "by the same process")
}
