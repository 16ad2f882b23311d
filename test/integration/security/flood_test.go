package security

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// manifest reads one object of deploy/webhook-server: the number-th of a file.
func manifest(t *testing.T, file string, number int, into any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "webhook-server", file))
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict([]byte(strings.Split(string(content), "\n---\n")[number]), into))
}

// status is a number of /proc/<pid>/status, in bytes.
func status(t *testing.T, pid int, key string) int64 {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("memory of processes is read from /proc: %v", err)
	}
	for line := range strings.Lines(string(content)) {
		if rest, is := strings.CutPrefix(line, key+":"); is {
			var kib int64
			_, err := fmt.Sscan(rest, &kib)
			require.NoError(t, err)
			return kib << 10
		}
	}
	require.Fail(t, "there is no "+key)
	return 0
}

// hookURLs are where the API server calls webhook-server, with the token, and the same without.
func (w *world) hookURLs(t *testing.T) (secret, open []string) {
	t.Helper()
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	require.NoError(t, w.admin.Get(t.Context(), client.ObjectKey{Name: suite.Webhook}, &mutating))
	require.NoError(t, w.admin.Get(t.Context(), client.ObjectKey{Name: suite.Webhook}, &validating))
	var all []admissionregistrationv1.WebhookClientConfig
	for _, webhook := range mutating.Webhooks {
		all = append(all, webhook.ClientConfig)
	}
	for _, webhook := range validating.Webhooks {
		all = append(all, webhook.ClientConfig)
	}
	for _, config := range all {
		at, err := url.Parse(*config.URL)
		require.NoError(t, err)
		parts := strings.Split(at.Path, "/")
		require.Len(t, parts, 3, "every path ends with the token: %s", at.Path)
		require.Len(t, parts[2], 26)
		secret, open = append(secret, at.String()), append(open, "https://"+at.Host+"/"+parts[1])
	}
	require.Len(t, secret, 9)
	return secret, open
}

// endless is a body of n bytes of which the last never comes, if hang is set.
type endless struct {
	ctx  context.Context
	left int64
	hang bool
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		if e.hang {
			<-e.ctx.Done()
		}
		return 0, io.EOF
	}
	n := min(int64(len(p)), e.left)
	for i := range p[:n] {
		p[i] = '['
	}
	e.left -= n
	return int(n), nil
}

// attack is what a stranger on the network does, again and again, until ctx ends.
type attack struct {
	name string
	at   int           // how many do it at once
	each time.Duration // how long one of them takes at most
	once func(ctx context.Context, n int)
}

// TestWebhookServerWithstandsTheNetwork floods every path in every way at once, and once more with the token. The
// process stays within the memory that it ships with, and Pods are deleted gracefully meanwhile.
func TestWebhookServerWithstandsTheNetwork(t *testing.T) {
	w := everything(t)
	victim := w.victim(t)
	secret, open := w.hookURLs(t)
	pid := w.Processes()[suite.Webhook]
	var d appsv1.Deployment
	manifest(t, "deployment.yaml", 0, &d)
	limit := d.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().Value()

	address := w.WebhookAddress(suite.Webhook)
	insecure := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // an attacker trusts everybody
	var ended, answered atomic.Int64
	// send sends a body of n bytes, and leaves the last out if hang is set.
	send := func(ctx context.Context, at string, n int64, length, hang bool) {
		sender := &http.Transport{TLSClientConfig: insecure, DisableKeepAlives: true}
		defer sender.CloseIdleConnections()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, at, &endless{ctx, n, hang})
		assert.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		if length {
			request.ContentLength = n + 1
			if !hang {
				request.ContentLength = n
			}
		}
		response, err := sender.RoundTrip(request)
		if err != nil {
			if ctx.Err() == nil {
				ended.Add(1) // a connection that made room for another
			}
			return
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		switch response.StatusCode {
		case http.StatusForbidden, http.StatusNotFound:
			ended.Add(1)
		case http.StatusOK:
			answered.Add(1)
		}
	}
	plain := func(ctx context.Context, over bool, what []byte) {
		var conn net.Conn
		var err error
		if over {
			conn, err = (&tls.Dialer{Config: insecure}).DialContext(ctx, "tcp", address)
		} else {
			conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
		if err != nil {
			return
		}
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		if _, err := conn.Write(what); err == nil {
			_, _ = conn.Read(make([]byte, 1))
		}
	}
	header := []byte("POST /mutate-pods HTTP/1.1\r\n" + strings.Repeat("a:\r\n", 1500))
	var manyKeys strings.Builder
	manyKeys.WriteString("POST /mutate-pods HTTP/1.1\r\nHost: a\r\n")
	for i := range 1000 {
		fmt.Fprintf(&manyKeys, "x%d:\r\n", i)
	}
	handshake := append([]byte{22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff, 3, 3}, make([]byte, 60<<10)...)
	garbage := make([]byte, 4<<10)
	_, err := rand.Read(garbage)
	require.NoError(t, err)
	strangers := []attack{
		{"unfinished bodies", 200, 3 * time.Second,
			func(ctx context.Context, n int) { send(ctx, open[n%len(open)], 6<<20, true, true) }},
		{"64 MiB of no known length", 50, 3 * time.Second,
			func(ctx context.Context, n int) { send(ctx, open[n%len(open)]+"/guess", 64<<20, false, false) }},
		{"unknown paths", 10, 3 * time.Second,
			func(ctx context.Context, _ int) { send(ctx, "https://"+address+"/metrics", 64<<20, false, false) }},
		{"slow headers", 100, 3 * time.Second, func(ctx context.Context, _ int) { plain(ctx, true, header) }},
		{"headers of many keys", 100, 3 * time.Second,
			func(ctx context.Context, _ int) { plain(ctx, true, []byte(manyKeys.String())) }},
		{"slow handshakes", 100, 3 * time.Second, func(ctx context.Context, _ int) { plain(ctx, false, handshake) }},
		{"connections that say nothing", 100, 3 * time.Second, func(ctx context.Context, _ int) { plain(ctx, false, nil) }},
		{"garbage", 10, 3 * time.Second, func(ctx context.Context, n int) { plain(ctx, n%2 == 0, garbage) }},
	}
	// What tenants can have the API server send: the largest reviews, and of no sense, which cost the most to read.
	tenants := []attack{
		{"large reviews", 20, 30 * time.Second,
			func(ctx context.Context, n int) { send(ctx, secret[n%len(secret)], 7<<20-1, true, false) }},
		{"unfinished reviews", 20, 3 * time.Second,
			func(ctx context.Context, n int) { send(ctx, secret[n%5], 2<<20, true, true) }},
	}
	run := func(all []attack, meanwhile func()) {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, a := range all {
			for n := range a.at {
				wg.Go(func() {
					for ctx.Err() == nil {
						within, done := context.WithTimeout(ctx, a.each)
						a.once(within, n)
						done()
						select { // no more than a few thousand connections a second, on a machine that does all the rest as well
						case <-ctx.Done():
						case <-time.After(100 * time.Millisecond):
						}
					}
				})
			}
		}
		meanwhile()
		cancel()
		wg.Wait()
	}
	// asked is nil if the API server has an answer of webhook-server's about a new managed Pod.
	asked := func() error {
		probe := pod(victim, "probe")
		if err := w.admin.Create(t.Context(), probe, client.DryRunAll); err != nil {
			return err
		}
		if len(probe.Spec.ReadinessGates) == 0 {
			return fmt.Errorf("webhook-server was not asked")
		}
		return nil
	}
	graceful := func(target *corev1.Pod) {
		err := w.admin.Delete(t.Context(), target.DeepCopy())
		require.True(t, apierrors.IsConflict(err), "refused, and marked: %v", err)
		eventually(t, func(c *assert.CollectT) {
			var now corev1.Pod
			err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(target), &now)
			require.True(c, apierrors.IsNotFound(err) || err == nil && now.Labels[appsv1alpha1.ToDeleteLabel] != "", "%v", err)
		}, "the Pod is marked")
	}
	targets := w.pods(t, t, victim, "web")
	for i, flood := range [][]attack{strangers, tenants} {
		run(flood, func() {
			until := time.Now().Add(6 * time.Second)
			deleted := false
			latest := until.Add(time.Minute)
			for now := time.Now(); now.Before(until) || i == 1 && answered.Load() == 0 && now.Before(latest); now = time.Now() {
				if i == 0 {
					require.NoError(t, asked())
				}
				if !deleted && time.Until(until) < 3*time.Second {
					graceful(&targets[i])
					deleted = true
				}
			}
			require.True(t, deleted)
		})
		peak := status(t, pid, "VmHWM")
		t.Logf("webhook-server had %d MiB at most", peak>>20)
		require.Less(t, peak, limit, "of the Deployment")
	}
	require.Equal(t, pid, w.Processes()[suite.Webhook], "the same process")
	require.Positive(t, ended.Load(), "strangers were turned away")
	require.Positive(t, answered.Load(), "reviews were read")
	eventually(t, func(c *assert.CollectT) { require.NoError(c, asked()) }, "it answers as before")
	w.serving(t, victim, "web", victims, image1)
}

// account is a client with the token of webhook-server's ServiceAccount, as who takes it over has it.
func (w *world) account(t *testing.T) client.Client {
	t.Helper()
	granted, err := w.clients.CoreV1().ServiceAccounts(suite.Namespace).CreateToken(t.Context(), suite.Webhook,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	config := rest.AnonymousClientConfig(w.RESTConfig())
	config.BearerToken = granted.Status.Token
	c, err := client.New(config, client.Options{Scheme: w.admin.Scheme()})
	require.NoError(t, err)
	return c
}

// TestWebhookServersTokenChangesNothingButItsCertificate has the policy of deploy/webhook-server about configurations
// of another name as well, which name a Service as they do in a cluster, and which the running server leaves alone.
func TestWebhookServersTokenChangesNothingButItsCertificate(t *testing.T) {
	w := everything(t)
	taken := w.account(t)
	const trial = "webhook-server-trial"
	var policy admissionregistrationv1.ValidatingAdmissionPolicy
	var binding admissionregistrationv1.ValidatingAdmissionPolicyBinding
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	manifest(t, "admission-policy.yaml", 0, &policy)
	manifest(t, "admission-policy.yaml", 1, &binding)
	manifest(t, "webhooks.yaml", 0, &mutating)
	manifest(t, "webhooks.yaml", 1, &validating)
	named := strings.ReplaceAll(policy.Spec.MatchConditions[1].Expression, "'webhook-server'", "'"+trial+"'")
	require.NotEqual(t, policy.Spec.MatchConditions[1].Expression, named)
	policy.Spec.MatchConditions[1].Expression = named
	policy.Name, binding.Name, binding.Spec.PolicyName, mutating.Name, validating.Name = trial, trial, trial, trial, trial
	elsewhere := &metav1.LabelSelector{MatchLabels: map[string]string{"webhook-server": "trial"}} // nothing is asked
	for i := range mutating.Webhooks {
		mutating.Webhooks[i].NamespaceSelector = elsewhere
	}
	for i := range validating.Webhooks {
		validating.Webhooks[i].NamespaceSelector = elsewhere
	}
	configurations := []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: trial}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{admissionregistrationv1.GroupName}, Resources: configurations,
		Verbs: []string{"patch", "delete", "create", "get"},
	}}}
	bound := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: trial},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: trial},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: suite.Namespace, Name: suite.Webhook}}}
	for _, object := range []client.Object{&policy, &binding, &mutating, &validating, role, bound} {
		require.NoError(t, w.admin.Create(t.Context(), object))
		t.Cleanup(func() { require.NoError(t, w.admin.Delete(context.WithoutCancel(t.Context()), object)) })
	}
	patch := func(object client.Object, operations string, options ...client.PatchOption) error {
		return taken.Patch(t.Context(), object.DeepCopyObject().(client.Object),
			client.RawPatch(types.JSONPatchType, []byte(operations)), options...)
	}
	const refused = "ValidatingAdmissionPolicy '" + trial + "'"
	eventually(t, func(c *assert.CollectT) {
		require.ErrorContains(c, patch(&mutating, `[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`,
			client.DryRunAll), refused)
		require.ErrorContains(c, patch(&validating, `[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Fail"}]`,
			client.DryRunAll), refused)
	}, "policy and role are in force")

	t.Log("what the server does: a certificate authority and a token, and another of both")
	for _, token := range []string{"abcdefgh234567", "zbcdefgh234567"} {
		for object, paths := range map[client.Object][]string{&mutating: {"/mutate-pods", "/mutate-collasets", "/decorate-pods"},
			&validating: {"/validate-collasets", "/validate-podtransitionrules", "/validate-resourcecontexts", "/delete-pods",
				"/evict-pods", "/validate-poddecorations"}} {
			var operations []string
			for i, path := range paths {
				operations = append(operations,
					fmt.Sprintf(`{"op":"add","path":"/webhooks/%d/clientConfig/service/path","value":"%s/%s"}`, i, path, token),
					fmt.Sprintf(`{"op":"add","path":"/webhooks/%d/clientConfig/caBundle","value":%q}`, i, certificateOf(t, w)))
			}
			require.NoError(t, patch(object, "["+strings.Join(operations, ",")+"]"))
		}
	}

	rule := `{"apiGroups":[""],"apiVersions":["v1"],"resources":["secrets"],"operations":["CREATE"],"scope":"*"}`
	forged := map[string]string{
		"be asked about Secrets":               `[{"op":"add","path":"/webhooks/0/rules/-","value":` + rule + `}]`,
		"be asked about Secrets alone":         `[{"op":"replace","path":"/webhooks/1/rules","value":[` + rule + `]}]`,
		"be asked about bindings":              `[{"op":"replace","path":"/webhooks/0/rules/0/resources","value":["rolebindings"]}]`,
		"refuse by not answering":              `[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Fail"}]`,
		"be asked in all namespaces":           `[{"op":"replace","path":"/webhooks/0/namespaceSelector","value":{}}]`,
		"be asked about other objects":         `[{"op":"add","path":"/webhooks/1/objectSelector","value":{"matchLabels":{"a":"b"}}}]`,
		"be asked under other conditions":      `[{"op":"add","path":"/webhooks/0/matchConditions","value":[]},{"op":"add","path":"/webhooks/0/matchConditions/0","value":{"name":"a","expression":"true"}}]`,
		"match requests otherwise":             `[{"op":"replace","path":"/webhooks/0/matchPolicy","value":"Exact"}]`,
		"have others wait":                     `[{"op":"replace","path":"/webhooks/0/timeoutSeconds","value":30}]`,
		"claim side effects":                   `[{"op":"replace","path":"/webhooks/0/sideEffects","value":"NoneOnDryRun"}]`,
		"call another Service":                 `[{"op":"replace","path":"/webhooks/0/clientConfig/service/name","value":"other"}]`,
		"call a Service of another namespace":  `[{"op":"replace","path":"/webhooks/0/clientConfig/service/namespace","value":"default"}]`,
		"call another port":                    `[{"op":"replace","path":"/webhooks/0/clientConfig/service/port","value":444}]`,
		"call a URL":                           `[{"op":"replace","path":"/webhooks/0/clientConfig","value":{"url":"https://192.0.2.1/mutate-pods"}}]`,
		"call another handler":                 `[{"op":"replace","path":"/webhooks/0/clientConfig/service/path","value":"/other/abcdefgh234567"}]`,
		"call without a token":                 `[{"op":"replace","path":"/webhooks/0/clientConfig/service/path","value":"/mutate-pods"}]`,
		"call a longer path":                   `[{"op":"replace","path":"/webhooks/0/clientConfig/service/path","value":"/mutate-pods/a/b"}]`,
		"remove a webhook":                     `[{"op":"remove","path":"/webhooks/1"}]`,
		"remove all":                           `[{"op":"remove","path":"/webhooks"}]`,
		"change their order":                   `[{"op":"move","from":"/webhooks/1","path":"/webhooks/0"}]`,
		"add one":                              `[{"op":"copy","from":"/webhooks/0","path":"/webhooks/-"},{"op":"replace","path":"/webhooks/0/name","value":"a.example.com"}]`,
		"rename one":                           `[{"op":"replace","path":"/webhooks/0/name","value":"a.example.com"}]`,
		"write a label":                        `[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`,
		"have cert-manager inject another":     `[{"op":"add","path":"/metadata/annotations","value":{"cert-manager.io/inject-ca-from":"default/mine"}}]`,
		"keep it for ever":                     `[{"op":"add","path":"/metadata/finalizers","value":["example.com/mine"]}]`,
		"have it collected":                    `[{"op":"add","path":"/metadata/ownerReferences","value":[{"apiVersion":"v1","kind":"Namespace","name":"a","uid":"b"}]}]`,
		"do it beside what the server may do ": `[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":""},{"op":"replace","path":"/webhooks/0/timeoutSeconds","value":30}]`,
	}
	for what, operations := range forged {
		for _, object := range []client.Object{&mutating, &validating} {
			assert.ErrorContains(t, patch(object, operations, client.DryRunAll), refused, "%s: %T", what, object)
		}
	}
	assert.ErrorContains(t, patch(&mutating,
		`[{"op":"replace","path":"/webhooks/0/reinvocationPolicy","value":"IfNeeded"}]`, client.DryRunAll), refused)
	assert.ErrorContains(t, taken.Delete(t.Context(), mutating.DeepCopy(), client.DryRunAll), refused)
	for _, operations := range []string{forged["be asked about Secrets"], forged["call a URL"]} {
		admins := validating.DeepCopy()
		require.NoError(t, w.admin.Patch(t.Context(), admins, client.RawPatch(types.JSONPatchType, []byte(operations)),
			client.DryRunAll), "an administrator may")
	}

	t.Log("outside the cluster, where a URL is called, as here")
	own := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: suite.Webhook}}
	require.ErrorContains(t, patch(own, forged["be asked about Secrets"], client.DryRunAll),
		"ValidatingAdmissionPolicy 'webhook-server-configurations'")
	at := func(url string) string {
		return fmt.Sprintf(`[{"op":"replace","path":"/webhooks/0/clientConfig/url","value":%q}]`, url)
	}
	require.NoError(t, patch(own, at("https://127.0.0.1:1/validate-collasets/abc234"), client.DryRunAll))
	for _, url := range []string{"https://127.0.0.2:1/validate-collasets/abc234",
		"https://example.com/validate-collasets/abc234", "https://127.0.0.1:1/delete-pods/abc234", "https://127.0.0.1:1/"} {
		require.ErrorContains(t, patch(own, at(url), client.DryRunAll),
			"ValidatingAdmissionPolicy 'webhook-server-configurations'", url)
	}
	require.ErrorContains(t,
		patch(own,
			`[{"op":"replace","path":"/webhooks/0/clientConfig","value":{"service":{"name":"webhook-server","namespace":"kuperator-system"}}}]`, client.DryRunAll), "ValidatingAdmissionPolicy 'webhook-server-configurations'")
}

// certificateOf is an authority that the API server takes, in base64.
func certificateOf(t *testing.T, w *world) string {
	t.Helper()
	var own admissionregistrationv1.MutatingWebhookConfiguration
	require.NoError(t, w.admin.Get(t.Context(), client.ObjectKey{Name: suite.Webhook}, &own))
	encoded, err := json.Marshal(own.Webhooks[0].ClientConfig.CABundle)
	require.NoError(t, err)
	return string(bytes.Trim(encoded, `"`))
}

// TestWebhookServersTokenGetsNoOtherToken: it may create Secrets, because RBAC cannot say of which name, and
// Kubernetes writes the token of any ServiceAccount of the namespace into a Secret that asks for it.
func TestWebhookServersTokenGetsNoOtherToken(t *testing.T) {
	w := everything(t)
	taken := w.account(t)
	create := func(name string, kind corev1.SecretType, annotations map[string]string) error {
		return taken.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: suite.Namespace, Name: name, Annotations: annotations}, Type: kind,
		}, client.DryRunAll)
	}
	asks := map[string]string{corev1.ServiceAccountNameKey: suite.CollaSet}
	const own, refused = "webhook-server-certs", "ValidatingAdmissionPolicy 'webhook-server-secret'"
	require.ErrorContains(t, create(own, corev1.SecretTypeServiceAccountToken, asks), refused, "which it could read")
	require.ErrorContains(t, create("other", corev1.SecretTypeServiceAccountToken, asks), refused)
	require.ErrorContains(t, create("alibaba-cloud-slb", corev1.SecretTypeOpaque, nil), refused,
		"which another component reads")
	require.ErrorContains(t, taken.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: suite.Namespace, GenerateName: own}},
		client.DryRunAll), refused)
	require.True(t, apierrors.IsAlreadyExists(create(own, corev1.SecretTypeOpaque, nil)), "its own it may make")
	require.NoError(t, w.admin.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: suite.Namespace, Name: "other"}}, client.DryRunAll),
		"others may")
}
