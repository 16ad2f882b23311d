package asking

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/callout"
)

// Bounds of what is remembered of Secrets.
const (
	rememberSecret = 30 * time.Second
	maxSecrets     = 256
)

// secrets reads credentials past the cache and remembers them for a short time. It is safe for concurrent use.
type secrets struct {
	direct kubeclient.Reader
	// known are of remembered, by the Secret's name.
	known *cache.LRUExpireCache
}

// remembered is what reading a Secret brought.
type remembered struct {
	credentials *callout.Credentials
	err         error
}

func newSecrets(direct kubeclient.Reader, clk cache.Clock) *secrets {
	return &secrets{direct: direct, known: cache.NewLRUExpireCacheWithClock(maxSecrets, clk)}
}

// of returns what the Secret of a rule's namespace has; nil for no name. Errors are
// callout.Misconfigured, which lasts until a user changes the rule, a Secret or a flag, or unprepared.
func (s *secrets) of(ctx context.Context, namespace, name string) (*callout.Credentials, error) {
	if name == "" {
		return nil, nil
	}
	key := types.NamespacedName{Namespace: namespace, Name: name}
	found, _ := s.known.Get(key)
	if known, ok := found.(remembered); ok {
		return known.credentials, known.err
	}
	read, err := s.read(ctx, key)
	if lasting := (*callout.Misconfigured)(nil); err != nil && !errors.As(err, &lasting) {
		return nil, err
	}
	s.known.Add(key, remembered{credentials: read, err: err}, rememberSecret)
	return read, err
}

func (s *secrets) read(ctx context.Context, key types.NamespacedName) (*callout.Credentials, error) {
	var secret corev1.Secret
	err := s.direct.Get(ctx, key, &secret)
	switch {
	case apierrors.IsForbidden(err):
		return nil, &callout.Misconfigured{Err: fmt.Errorf(
			"podtransitionrule-controller may not read Secret %s: add the component deploy/components/rule-webhook-secrets to its kustomization",
			key.Name)}
	case apierrors.IsNotFound(err):
		return nil, &callout.Misconfigured{Err: fmt.Errorf(
			"there is no Secret %s in namespace %s: create it, or change webhook.clientConfig.secretName",
			key.Name, key.Namespace)}
	case err != nil:
		return nil, unprepared{fmt.Errorf("the API server did not give Secret %s: %s", key.Name,
			apierrors.ReasonForError(err))}
	}
	found := &callout.Credentials{
		Of: "a Secret", Token: strings.TrimSpace(string(secret.Data["token"])),
		Certificate: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey],
	}
	switch {
	case secret.Type == corev1.SecretTypeServiceAccountToken: // its reader could be any user who may write rules
		return nil, &callout.Misconfigured{Err: fmt.Errorf(
			"the Secret %s is the token of a service account, which is not sent to webhooks: put a token for the server into a Secret of its own",
			key.Name)}
	case found.Token == "" && len(found.Certificate) == 0:
		return nil, &callout.Misconfigured{Err: fmt.Errorf(
			"the Secret %s has neither token nor tls.crt: add one of them", key.Name)}
	case (len(found.Certificate) == 0) != (len(found.Key) == 0):
		return nil, &callout.Misconfigured{Err: fmt.Errorf(
			"the Secret %s has only one of tls.crt and tls.key: add the other", key.Name)}
	case strings.ContainsAny(found.Token, "\r\n\x00"):
		return nil, &callout.Misconfigured{Err: fmt.Errorf("the token of Secret %s has more than one line: correct it",
			key.Name)}
	}
	return found, nil
}
