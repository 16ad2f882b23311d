package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"kusionstack.io/kuperator/internal/freshness"
)

func service(path string) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
		Namespace: "kuperator-system", Name: "webhook-server", Path: ptr.To(path), Port: ptr.To[int32](443),
	}}
}

func installed() []client.Object {
	return []client.Object{
		&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "webhook-server"},
			// the name of a validating one
			Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "b.example.test", ClientConfig: service("/a")}},
		},
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "webhook-server"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{
				{Name: "b.example.test", ClientConfig: service("/b")}, {Name: "c.example.test", ClientConfig: service("/c")},
			},
		},
	}
}

func keeperOn(c client.Client, clock *clocktesting.FakeClock) *Keeper {
	k := New(Settings{
		Name: "webhook-server", Namespace: "kuperator-system", SecretName: "webhook-server-certs",
		Lifetime: plan.lifetime, Settle: plan.settle,
	}, clock)
	k.client, k.secrets, k.reader, k.writes = c, c, c, freshness.New(c, clock)
	return k
}

func clientWith(objects ...client.Object) client.WithWatch {
	return fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).Build()
}

// check asks the keeper's readiness check.
func check(k *Keeper) error { return k.Check(httptest.NewRequest("GET", "/readyz", nil)) }

func served(t *testing.T, k *Keeper) *tls.Certificate {
	t.Helper()
	var config tls.Config
	k.TLS(&config)
	c, err := config.GetCertificate(&tls.ClientHelloInfo{})
	require.NoError(t, err)
	return c
}

func TestTwoReplicasRotateWithoutARestart(t *testing.T) {
	ctx, c, clock := t.Context(), clientWith(installed()...), clocktesting.NewFakeClock(start)
	one, two := keeperOn(c, clock), keeperOn(c, clock)
	require.ErrorContains(t, check(one), "no serving certificate")
	look := func() {
		t.Helper()
		for _, k := range []*Keeper{one, two, one, two} {
			result, err := k.Reconcile(ctx, k.request())
			require.NoError(t, err)
			require.Positive(t, result.RequeueAfter)
			require.LessOrEqual(t, result.RequeueAfter, longestWait)
		}
	}
	look()
	require.NoError(t, check(one))
	require.NoError(t, check(two))
	first := served(t, one)
	found, err := one.configurations(ctx)
	require.NoError(t, err)
	require.Len(t, found.callers(), 3)
	for _, webhook := range found.callers() {
		require.NotEmpty(t, webhook.config.CABundle, webhook.name)
	}
	assert.Equal(t, first.Certificate, served(t, two).Certificate, "replicas share one certificate")

	clock.Step(60 * time.Hour)
	look()
	assert.Equal(t, first.Certificate, served(t, one).Certificate, "the new authority settles first")
	clock.Step(plan.settle)
	look()
	assert.NotEqual(t, first.Certificate, served(t, one).Certificate)
	assert.Equal(t, served(t, one).Certificate, served(t, two).Certificate)
	require.NoError(t, check(one))

	clock.Step(plan.lifetime)
	require.ErrorContains(t, check(one), "expired", "a server that nobody renewed is not ready")
	look()
	require.NoError(t, check(one))
}

// TestAKeeperThatSleptPastTheExpiry moves the clock over the end of everything that is served and trusted.
func TestAKeeperThatSleptPastTheExpiry(t *testing.T) {
	c, clock := clientWith(installed()...), clocktesting.NewFakeClock(start)
	for name, awake := range map[string]*Keeper{"the process went on": keeperOn(c, clock),
		"the process was started anew": nil} {
		t.Run(name, func(t *testing.T) {
			before := awake
			if before == nil {
				before = keeperOn(c, clock)
			}
			_, err := before.Reconcile(t.Context(), before.request())
			require.NoError(t, err)
			require.NoError(t, check(before))
			old := served(t, before)

			clock.Step(plan.lifetime + time.Hour)
			require.ErrorContains(t, check(before), "it expired at", "the replica is taken out of the Service")
			k := awake
			if k == nil {
				k = keeperOn(c, clock)
			}
			_, err = k.Reconcile(t.Context(), k.request())
			require.NoError(t, err)
			require.NotEqual(t, old.Certificate, served(t, k).Certificate)
			require.NoError(t, check(k),
				"one look mends it: a new certificate, trusted at once, as nothing could be refused any more")
		})
	}
}

func TestTheLoserOfARaceTakesTheWinnersSecret(t *testing.T) {
	clock := clocktesting.NewFakeClock(start)
	c := clientWith(installed()...)
	winner := keeperOn(c, clock)
	raced := false
	loser := keeperOn(interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			if !raced {
				raced = true
				_, err := winner.Reconcile(ctx, winner.request())
				require.NoError(t, err)
			}
			return c.Create(ctx, object, options...)
		},
	}), clock)

	result, err := loser.Reconcile(t.Context(), loser.request())
	require.NoError(t, err, "losing is no error")
	require.Equal(t, afterConflict, result.RequeueAfter)
	_, err = loser.Reconcile(t.Context(), loser.request())
	require.NoError(t, err)
	require.Equal(t, served(t, winner).Certificate, served(t, loser).Certificate)
}

func TestReconcileReportsWhatFailed(t *testing.T) {
	broken := errors.New("broken")
	tests := map[string]struct {
		funcs interceptor.Funcs
		want  string
	}{
		"reading the Secret": {interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey,
			object client.Object, options ...client.GetOption) error {
			if _, ok := object.(*corev1.Secret); ok {
				return broken
			}
			return c.Get(ctx, key, object, options...)
		}}, "reading Secret kuperator-system/webhook-server-certs: broken"},
		"reading a configuration": {interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey,
			object client.Object, options ...client.GetOption) error {
			if _, ok := object.(*admissionregistrationv1.ValidatingWebhookConfiguration); ok {
				return broken
			}
			return c.Get(ctx, key, object, options...)
		}}, "reading ValidatingWebhookConfiguration webhook-server: broken"},
		"creating the Secret": {interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object,
			...client.CreateOption) error {
			return broken
		}}, "writing Secret kuperator-system/webhook-server-certs: broken"},
		"writing a configuration": {interceptor.Funcs{Patch: func(context.Context, client.WithWatch, client.Object,
			client.Patch, ...client.PatchOption) error {
			return broken
		}}, "writing the webhook configurations: broken"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			k := keeperOn(interceptor.NewClient(clientWith(installed()...), tc.funcs), clocktesting.NewFakeClock(start))
			_, err := k.Reconcile(t.Context(), k.request())
			require.EqualError(t, err, tc.want)
		})
	}
}

func TestAMissingConfigurationIsAnErrorButTheOtherIsServed(t *testing.T) {
	c := clientWith(installed()[0])
	k := keeperOn(c, clocktesting.NewFakeClock(start))
	_, err := k.Reconcile(t.Context(), k.request())
	require.ErrorContains(t, err, "apply deploy/webhook-server")
	require.ErrorContains(t, check(k), "ValidatingWebhookConfiguration webhook-server does not exist")
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "webhook-server"}, &mutating))
	require.NotEmpty(t, mutating.Webhooks[0].ClientConfig.CABundle)
}

func TestAnotherCopysWriteIsNotOverwritten(t *testing.T) {
	conflict := apierrors.NewConflict(admissionregistrationv1.Resource("mutatingwebhookconfigurations"), "webhook-server",
		errors.New("newer"))
	k := keeperOn(interceptor.NewClient(clientWith(installed()...), interceptor.Funcs{
		Patch: func(_ context.Context, _ client.WithWatch, object client.Object, patch client.Patch,
			_ ...client.PatchOption) error {
			data, err := patch.Data(object)
			require.NoError(t, err)
			require.Contains(t, string(data), `"resourceVersion"`)
			return conflict
		},
	}), clocktesting.NewFakeClock(start))
	result, err := k.Reconcile(t.Context(), k.request())
	require.NoError(t, err)
	require.Equal(t, afterConflict, result.RequeueAfter)
}

// TestACopyThatTheKeeperReplacedIsNotWrittenAgain has the cache show, until it catches up, what was there before the
// keeper's write.
func TestACopyThatTheKeeperReplacedIsNotWrittenAgain(t *testing.T) {
	var lagging *admissionregistrationv1.MutatingWebhookConfiguration
	writes := 0
	c := interceptor.NewClient(clientWith(installed()...), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object,
			options ...client.GetOption) error {
			if mutating, is := object.(*admissionregistrationv1.MutatingWebhookConfiguration); is && lagging != nil {
				lagging.DeepCopyInto(mutating)
				return nil
			}
			return c.Get(ctx, key, object, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch,
			options ...client.PatchOption) error {
			writes++
			return c.Patch(ctx, object, patch, options...)
		},
	})
	k := keeperOn(c, clocktesting.NewFakeClock(start))
	look := func() {
		t.Helper()
		_, err := k.Reconcile(t.Context(), k.request())
		require.NoError(t, err)
	}
	old := &admissionregistrationv1.MutatingWebhookConfiguration{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "webhook-server"}, old))
	look()
	require.Equal(t, 2, writes, "one of each kind")

	lagging = old
	look()
	require.Equal(t, 2, writes, "the API server would answer with a conflict")
	require.Error(t, check(k), "what the cache shows trusts nobody")

	lagging = nil
	look()
	require.Equal(t, 2, writes)
	require.NoError(t, check(k))
	// Who takes the bundle out afterwards has it written again.
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "webhook-server"}, mutating))
	mutating.Webhooks[0].ClientConfig.CABundle = nil
	require.NoError(t, c.Update(t.Context(), mutating))
	look()
	require.Equal(t, 3, writes)
	require.NoError(t, check(k))
}

func TestAGuardedWebhookIsCalledAtAPathThatNobodyGuesses(t *testing.T) {
	c := clientWith(installed()...)
	one, two := keeperOn(c, clocktesting.NewFakeClock(start)), keeperOn(c, clocktesting.NewFakeClock(start))
	token, needed := one.Token()
	require.True(t, needed)
	require.Empty(t, token, "before there is one")
	for _, k := range []*Keeper{one, two} {
		k.settings.Guarded = map[string]string{"validating c.example.test": "/c", "mutating b.example.test": "/a"}
		_, err := k.Reconcile(t.Context(), k.request())
		require.NoError(t, err)
	}
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "webhook-server"}, &validating))
	require.Equal(t, "/b", *validating.Webhooks[0].ClientConfig.Service.Path, "the others stay as they are")
	secret := *validating.Webhooks[1].ClientConfig.Service.Path
	require.Regexp(t, "^/c/[a-z2-7]{26,}$", secret)
	for _, k := range []*Keeper{one, two} {
		token, needed := k.Token()
		require.True(t, needed)
		require.Equal(t, "/c/"+token, secret, "of whichever replica")
	}
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "webhook-server"}, &mutating))
	require.Equal(t, "/a/"+secret[len("/c/"):], *mutating.Webhooks[0].ClientConfig.Service.Path, "of both kinds")

	t.Log("a token of capitals, which the API server takes in a URL and not in the path of a Service, is replaced")
	var kept corev1.Secret
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "kuperator-system",
		Name: "webhook-server-certs"}, &kept))
	kept.Data["token"] = []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
	require.NoError(t, c.Update(t.Context(), &kept))
	_, err := one.Reconcile(t.Context(), one.request())
	require.NoError(t, err)
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(&kept), &kept))
	require.Regexp(t, "^[a-z2-7]{26}$", string(kept.Data["token"]))
}

func TestPoint(t *testing.T) {
	advertise, err := url.Parse("https://127.0.0.1:9443")
	require.NoError(t, err)
	atURL := admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:9443/a")}
	tests := map[string]struct {
		from      admissionregistrationv1.WebhookClientConfig
		advertise *url.URL
		want      admissionregistrationv1.WebhookClientConfig
	}{
		"a Service stays a Service":                     {service("/a"), nil, service("/a")},
		"a process outside the cluster is called there": {service("/a"), advertise, atURL},
		"an earlier URL is replaced, its path stays": {admissionregistrationv1.WebhookClientConfig{URL: ptr.To(
			"https://10.0.0.1/a")}, advertise, atURL},
		"a server in the cluster takes over from one outside": {atURL, nil, service("/a")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			k := New(Settings{Name: "webhook-server", Namespace: "kuperator-system", AdvertiseURL: tc.advertise},
				clocktesting.NewFakeClock(start))
			tc.want.CABundle = []byte("bundle")
			k.point(caller{config: &tc.from}, material{bundle: []byte("bundle")})
			require.Equal(t, tc.want, tc.from)
		})
	}
}
