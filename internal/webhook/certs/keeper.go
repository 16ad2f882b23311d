package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"kusionstack.io/kuperator/internal/freshness"
)

// Keys of the Secret.
const (
	keyBundle      = "ca.crt"
	keyServingCert = corev1.TLSCertKey
	keyServingKey  = corev1.TLSPrivateKeyKey
	keyNextCert    = "next.crt"
	keyNextKey     = "next.key"
	keyToken       = "token"
)

// Waits of the keeper.
const (
	// longestWait bounds the time between two looks at the Secret, in case that a user removes or changes it: it is not
	// watched.
	longestWait = 10 * time.Minute
	// shortestWait keeps a decision that is due, but waits for something else, from being asked for too often.
	shortestWait = time.Second
	// afterConflict is the wait after another client was quicker to write.
	afterConflict = 200 * time.Millisecond
)

// Settings say where the server is and how long its certificates live. All fields but AdvertiseURL are required.
type Settings struct {
	// Name is the name of the component, its Service and its two webhook configurations.
	Name string
	// Namespace holds the Service and the Secret.
	Namespace string
	// SecretName is the name of the Secret. It is created when it is absent.
	SecretName string
	// AdvertiseURL is where the API server reaches a server outside the cluster: https, host and port, no path. Nil means
	// through the Service.
	AdvertiseURL *url.URL
	// Guarded are webhooks, by the kind of their configuration and their name ("validating a.example.com"), with their
	// paths. A token is added to the path there, so only who may read the webhook configurations can call them. Nil
	// guards none.
	Guarded map[string]string
	// Lifetime is how long a certificate is valid. It is renewed after two thirds of that.
	Lifetime time.Duration
	// Settle is how long API servers are given to see a new authority before a certificate of it is served.
	Settle time.Duration
}

// Keeper holds the serving certificate, renews it in time, and writes the authorities to trust, and where the server
// is, into the component's own webhook configurations. Every replica runs one; they agree through the Secret. Its
// methods may be called concurrently.
type Keeper struct {
	judge
	// client writes, and reads webhook configurations from the cache.
	client client.Client
	// secrets reads the one Secret past any cache.
	secrets client.Reader

	// published is a bundle that every webhook configuration had, and since when it was seen to. Only Reconcile uses it.
	published struct {
		bundle []byte
		since  time.Time
	}
	// writes knows those of webhook configurations that the cache may not show yet.
	writes *freshness.Tracker

	serving atomic.Pointer[tls.Certificate]
	token   atomic.Pointer[[]byte]
}

// New returns a keeper without a certificate; Add gives it one. It may be used for a TLS configuration at once.
func New(settings Settings, c clock.Clock) *Keeper {
	return &Keeper{judge: judge{settings: settings, clock: c}}
}

// CacheOptions let the manager's cache hold the component's own two webhook configurations and no others.
func CacheOptions(name string) cache.Options {
	own := cache.ByObject{Field: fields.OneTermEqualSelector(metav1.ObjectNameField, name)}
	return cache.Options{
		ReaderFailOnMissingInformer: true, // a Secret must never be cached by accident
		ByObject: map[client.Object]cache.ByObject{
			&admissionregistrationv1.MutatingWebhookConfiguration{}:   own,
			&admissionregistrationv1.ValidatingWebhookConfiguration{}: own,
		},
	}
}

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations;validatingwebhookconfigurations,resourceNames=webhook-server,verbs=list;watch;patch
// +kubebuilder:rbac:groups="",namespace=kuperator-system,resources=secrets,verbs=create
// +kubebuilder:rbac:groups="",namespace=kuperator-system,resources=secrets,resourceNames=webhook-server-certs,verbs=get;update

// Add makes mgr run the keeper, with or without a Lease.
func (k *Keeper) Add(_ context.Context, mgr ctrl.Manager) error {
	k.client, k.secrets = mgr.GetClient(), mgr.GetAPIReader()
	k.reader, k.writes = k.client, freshness.New(mgr.GetCache(), k.clock)
	toAll := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{k.request()}
	})
	needsLease := false
	return ctrl.NewControllerManagedBy(mgr).
		Named("certificates").
		WithOptions(controller.Options{NeedLeaderElection: &needsLease, MaxConcurrentReconciles: 1}).
		WatchesRawSource(source.Func(func(_ context.Context, queue controllerQueue) error {
			queue.Add(k.request()) // the first look does not wait for a webhook configuration
			return nil
		})).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{}, toAll).
		Watches(&admissionregistrationv1.ValidatingWebhookConfiguration{}, toAll).
		Complete(k)
}

func (k *Keeper) request() reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: k.settings.Namespace,
		Name: k.settings.SecretName}}
}

// Reconcile reads the Secret, renews what is due, tells the API server whom to trust, and serves. It returns an error
// when the API server does, or while a webhook configuration is missing.
func (k *Keeper) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	now := k.clock.Now()
	unobserved, err := k.writes.Unobserved(ctx, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	secret, err := k.secret(ctx, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading Secret %s: %w", request, err)
	}
	configurations, err := k.configurations(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	current := materialOf(secret)
	published := k.publishedSince(configurations, current.bundle, now)
	wanted, nextLook, err := renew(current, k.names(), now, schedule{k.settings.Lifetime, k.settings.Settle}, published)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !tokenFits(wanted.token) {
		wanted.token = newToken()
	}
	if !wanted.equal(current) {
		if err := k.write(ctx, secret, wanted); err != nil {
			return conflictIsNoError(err, "writing Secret "+request.String())
		}
		log.FromContext(ctx).Info("renewed the serving certificate", "secret", request, "nextLook", nextLook)
	}
	if err := k.serve(wanted.serving); err != nil {
		return reconcile.Result{}, err
	}
	k.token.Store(&wanted.token)
	if unobserved > 0 {
		return reconcile.Result{RequeueAfter: unobserved}, nil // the configurations are those from before the last write
	}
	if err := k.publish(ctx, configurations, wanted); err != nil {
		return conflictIsNoError(err, "writing the webhook configurations")
	}
	if err := configurations.complete(); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: min(max(nextLook.Sub(now), shortestWait), longestWait)}, nil
}

// publishedSince is since when this process has seen the bundle in every webhook configuration, zero if one lacks it.
// A process that has just started does not know how long before that it was written.
func (k *Keeper) publishedSince(c configurations, bundle []byte, now time.Time) time.Time {
	switch {
	case !c.trust(bundle):
		k.published.since = time.Time{}
	case k.published.since.IsZero() || !bytes.Equal(k.published.bundle, bundle):
		k.published.bundle, k.published.since = bundle, now
	}
	return k.published.since
}

func conflictIsNoError(err error, doing string) (reconcile.Result, error) {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return reconcile.Result{RequeueAfter: afterConflict}, nil
	}
	return reconcile.Result{}, fmt.Errorf("%s: %w", doing, err)
}

// secret returns the Secret, or one without a resource version when there is none.
func (k *Keeper) secret(ctx context.Context, key types.NamespacedName) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := k.secrets.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
			Type: corev1.SecretTypeOpaque}, nil
	}
	return secret, err
}

// write creates or updates the Secret; it fails with a conflict if another replica was quicker.
func (k *Keeper) write(ctx context.Context, secret *corev1.Secret, m material) error {
	secret.Data = map[string][]byte{keyBundle: m.bundle, keyServingCert: m.serving.cert, keyServingKey: m.serving.key,
		keyToken: m.token}
	if m.next.cert != nil {
		secret.Data[keyNextCert], secret.Data[keyNextKey] = m.next.cert, m.next.key
	}
	if secret.ResourceVersion == "" {
		return k.client.Create(ctx, secret)
	}
	return k.client.Update(ctx, secret)
}

func materialOf(secret *corev1.Secret) material {
	return material{
		serving: pair{cert: secret.Data[keyServingCert], key: secret.Data[keyServingKey]},
		next:    pair{cert: secret.Data[keyNextCert], key: secret.Data[keyNextKey]},
		bundle:  secret.Data[keyBundle],
		token:   secret.Data[keyToken],
	}
}

// names are what the certificate must be good for.
func (k *Keeper) names() []string {
	service := k.settings.Name + "." + k.settings.Namespace + ".svc"
	names := []string{service, service + ".cluster.local"}
	if k.settings.AdvertiseURL != nil {
		names = append(names, k.settings.AdvertiseURL.Hostname())
	}
	return names
}

func (k *Keeper) serve(p pair) error {
	both, err := tls.X509KeyPair(p.cert, p.key)
	if err != nil {
		return fmt.Errorf("reading the serving certificate: %w", err)
	}
	k.serving.Store(&both)
	return nil
}

// NotAfter is when the certificate that is served expires; zero without one.
func (k *Keeper) NotAfter() time.Time {
	if serving := k.serving.Load(); serving != nil {
		return serving.Leaf.NotAfter
	}
	return time.Time{}
}

// TLS makes a server present the present certificate in every new handshake.
func (k *Keeper) TLS(c *tls.Config) {
	c.MinVersion = tls.VersionTLS12
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if serving := k.serving.Load(); serving != nil {
			return serving, nil
		}
		return nil, errors.New("there is no serving certificate yet")
	}
}

// Token is the last part of the paths that the webhook configurations have, empty before there is one.
//
// API servers do not authenticate themselves to webhooks. Without it, any client that can connect could send its own
// review and have it believed, or bodies without end.
func (k *Keeper) Token() (token string, needed bool) {
	if token := k.token.Load(); token != nil {
		return string(*token), true
	}
	return "", true
}

// Check is a readiness check: nil while the certificate that is served is valid, good for the name by which the API
// server calls, and trusted by every webhook configuration.
func (k *Keeper) Check(request *http.Request) error {
	serving := k.serving.Load()
	if serving == nil || k.client == nil {
		return errors.New("there is no serving certificate yet")
	}
	return k.check(request.Context(), serving)
}
