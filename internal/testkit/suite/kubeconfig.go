package suite

import (
	"context"
	"fmt"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

const tokenSeconds = 7 * 24 * 60 * 60

// User is the name by which the API server knows a component.
func User(component string) string {
	return "system:serviceaccount:" + Namespace + ":" + component
}

// serviceAccountKubeconfig writes a kubeconfig whose rights are those that RBAC
// gives the component's ServiceAccount, and nothing more, with a token of the
// process's own. It returns the path, and what the audit log calls the token.
func (s *Suite) serviceAccountKubeconfig(
	ctx context.Context, component, process string,
) (path, credential string, err error) {
	path = filepath.Join(s.Dir, process+".kubeconfig")
	token, err := s.writeKubeconfig(ctx, component, path)
	if err != nil {
		return "", "", err
	}
	credential, err = credentialOf(token)
	return path, credential, err
}

// writeKubeconfig writes it with a new token, and returns that.
func (s *Suite) writeKubeconfig(ctx context.Context, component, path string) (token string, err error) {
	clients, err := s.Clients()
	if err != nil {
		return "", err
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](
		tokenSeconds)}}
	granted, err := clients.CoreV1().ServiceAccounts(Namespace).CreateToken(ctx, component, request,
		metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking for a token of ServiceAccount %s/%s: %w", Namespace, component, err)
	}
	admin := s.RESTConfig()
	if err := rest.LoadTLSFiles(admin); err != nil {
		return "", err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[s.Name] = &clientcmdapi.Cluster{
		Server: admin.Host, TLSServerName: admin.ServerName,
		CertificateAuthorityData: admin.CAData, InsecureSkipTLSVerify: admin.Insecure,
	}
	config.AuthInfos[component] = &clientcmdapi.AuthInfo{Token: granted.Status.Token}
	config.Contexts[component] = &clientcmdapi.Context{Cluster: s.Name, AuthInfo: component}
	config.CurrentContext = component
	return granted.Status.Token, clientcmd.WriteToFile(*config, path)
}
