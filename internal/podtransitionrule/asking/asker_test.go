package asking

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/podtransitionrule/asking/exchange"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
	"kusionstack.io/kuperator/internal/testkit/testca"
)

// stage is an Asker that runs, and the reconciler's part.
type stage struct {
	t     *testing.T
	asker *Asker
	clock *clocktesting.FakePassiveClock
	rules []*appsv1alpha1.PodTransitionRule
	want  []grants.Question
	heard Heard
	stop  func()
}

func play(t *testing.T, objects kubeclient.Reader, o Options) *stage {
	t.Helper()
	o.Allow = append(o.Allow, "127.0.0.0/8")
	s := &stage{t: t, clock: clocktesting.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))}
	var err error
	s.asker, err = New(o, objects, s.clock)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(ctrl.LoggerInto(t.Context(), logr.Discard()))
	var running sync.WaitGroup
	running.Go(func() { _ = s.asker.Start(ctx) })
	s.stop = func() { cancel(); running.Wait() }
	t.Cleanup(s.stop)
	return s
}

func options() Options { return Options{Timeout: 30 * time.Second, Concurrency: 16} }

func rule(name, url string, change func(*appsv1alpha1.TransitionRuleWebhook)) *appsv1alpha1.PodTransitionRule {
	hook := &appsv1alpha1.TransitionRuleWebhook{
		ClientConfig: appsv1alpha1.WebhookClientConfig{URL: url}, FailurePolicy: ptr.To(appsv1alpha1.FailurePolicyFail),
	}
	if change != nil {
		change(hook)
	}
	return &appsv1alpha1.PodTransitionRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec: appsv1alpha1.PodTransitionRuleSpec{Rules: []appsv1alpha1.TransitionRule{{
			Name: "check", TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{Webhook: hook},
		}}},
	}
}

func about(rule *appsv1alpha1.PodTransitionRule, pods ...string) []grants.Question {
	var all []grants.Question
	for _, pod := range pods {
		requests := []appsv1alpha1.GrantedOperation{{ID: "job", Type: "update", Request: "1"}}
		all = append(all, grants.Question{PodName: pod, Requests: requests, Subject: grants.Subject{
			Rule: rule.UID, Check: "check", Pod: types.UID("uid-" + pod), Stage: appsv1alpha1.StagePreCheck,
			Operations: grants.OperationsKey(requests),
		}})
	}
	return all
}

// reconcile does what the reconciler does: hear, write the status, ask.
func (s *stage) reconcile() {
	s.heard = s.asker.Heard("ns", s.rules)
	for n, r := range s.rules {
		written := r.DeepCopy()
		written.Status.RuleStates, written.Status.ObservedGeneration = s.heard.Tasks[r.UID], r.Generation
		s.rules[n] = written
	}
	s.asker.Ask("ns", s.want)
}

func (s *stage) until(what string, holds func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		s.reconcile()
		if holds() {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("not yet: %s; answers %v, failing %v", what, s.heard.Answers, s.heard.Unreachable)
		}
	}
}

func (s *stage) passed(q grants.Question) bool   { return s.heard.Answers[q.Subject].Passed }
func (s *stage) reason(q grants.Question) string { return s.heard.Answers[q.Subject].Reason }

func nobody() kubeclient.Client { return fake.NewFakeClient() }

func TestAServerIsAsked(t *testing.T) {
	bodies := make(chan string, 10)
	server := served(t, func(http.ResponseWriter, *http.Request) {})
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies <- r.Method + " " + r.Header.Get("Content-Type") + " " + string(body)
		_, _ = io.WriteString(w, `{"success":false,"message":"not now","finishedNames":["a"]}`)
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "uid-a"},
		Status: corev1.PodStatus{PodIP: "10.1.2.3"}}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", UID: "another"}}
	s := play(t, fake.NewFakeClient(pod, other), options())
	r := rule("counted", server.URL, func(w *appsv1alpha1.TransitionRuleWebhook) {
		w.Parameters = []appsv1alpha1.Parameter{{Key: "ip",
			ValueFrom: &appsv1alpha1.ParameterSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
	})
	s.rules, s.want = []*appsv1alpha1.PodTransitionRule{r}, about(r, "a", "b", "c")
	s.until("all are answered", func() bool { return len(s.heard.Answers) == 3 })
	require.True(t, s.passed(s.want[0]))
	require.Equal(t, "the webhook is not asked: the Pod is gone", s.reason(s.want[1]), "it has another UID")
	require.Equal(t, "the webhook is not asked: the Pod is gone", s.reason(s.want[2]))
	var got exchange.Body
	method, body, _ := strings.Cut(<-bodies, "{")
	require.Equal(t, "POST application/json ", method)
	require.NoError(t, json.Unmarshal([]byte("{"+body), &got))
	require.NotEmpty(t, got.TraceID)
	require.Len(t, got.Resources, 1)
	require.Equal(t, map[string]string{"ip": "10.1.2.3"}, got.Resources[0].Parameters)
	require.Equal(t, "counted", got.PodTransitionRule)
	require.Equal(t, 1.0, testutil.ToFloat64(requests.WithLabelValues("ns", "counted", "answered")))
	s.asker.Forget("ns")
	require.Zero(t, testutil.ToFloat64(requests.WithLabelValues("ns", "counted", "answered")),
		"metrics of rules that are gone are forgotten")
}

func TestReasonsOfOneBadServerReachItsPodsAlone(t *testing.T) {
	good := served(t, yes)
	bad := served(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
	unexport("ns", "ignores")
	unexport("ns", "refusing")
	s := play(t, nobody(), options())
	fails, ignores, fine := rule("fails", bad.URL, nil), rule("ignores", bad.URL, nil), rule("fine", good.URL, nil)
	ignores.Spec.Rules[0].Webhook.FailurePolicy = nil
	refusing := rule("refusing", "http://169.254.169.254/", func(w *appsv1alpha1.TransitionRuleWebhook) {
		w.FailurePolicy = ptr.To(appsv1alpha1.FailurePolicyIgnore)
	})
	broken := rule("broken", good.URL,
		func(w *appsv1alpha1.TransitionRuleWebhook) { w.ClientConfig.CABundle = "aGVsbG8=" })
	s.rules = []*appsv1alpha1.PodTransitionRule{fails, ignores, fine, refusing, broken}
	s.want = append(append(append(about(fails, "a"), about(ignores, "a")...), about(fine, "a")...),
		about(refusing, "a")...)
	s.until("all are answered", func() bool { return len(s.heard.Answers) == 4 })
	require.Equal(t, "the webhook cannot be asked: its answer is not the JSON object expected", s.reason(s.want[0]))
	require.True(t, s.passed(s.want[1]))
	require.True(t, s.passed(s.want[2]))
	require.Contains(t, s.reason(s.want[3]), "the webhook is not asked: 169.254.169.254 is a link-local address")
	require.Contains(t, s.heard.Unreachable[fails.UID], "rule check: the webhook cannot be asked")
	require.Empty(t, s.heard.Unreachable[fine.UID])
	require.Contains(t, s.heard.Invalid[broken.UID], "rule check: the caBundle has no certificate")
	require.Len(t, s.heard.Invalid, 1)
	require.Equal(t, 1.0, testutil.ToFloat64(ignored.WithLabelValues("ns", "ignores")))
	require.Equal(t, 1.0, testutil.ToFloat64(requests.WithLabelValues("ns", "refusing", "refused")))
}

func TestStrictlyAServerThatCannotBeAskedRefuses(t *testing.T) {
	bad := served(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
	strict := options()
	strict.Strict = true
	s := play(t, nobody(), strict)
	ignores := rule("ignores", bad.URL, func(w *appsv1alpha1.TransitionRuleWebhook) {
		w.FailurePolicy = ptr.To(appsv1alpha1.FailurePolicyIgnore)
	})
	s.rules, s.want = []*appsv1alpha1.PodTransitionRule{ignores}, about(ignores, "a")
	s.until("it is answered", func() bool { return len(s.heard.Answers) == 1 })
	require.False(t, s.passed(s.want[0]))
	require.Equal(t, "the webhook cannot be asked: its answer is not the JSON object expected", s.reason(s.want[0]))
}

// taskServer begins a task for every POST, and finishes it when told to.
type taskServer struct {
	posts, polls atomic.Int32
	finish       atomic.Bool
	query        atomic.Value
}

func (ts *taskServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		_, _ = fmt.Fprintf(w, `{"success":true,"poll":true,"taskId":"task/%d"}`, ts.posts.Add(1))
		return
	}
	ts.query.Store(r.URL.RawQuery)
	ts.polls.Add(1) // a test that sees it finds the query
	_, _ = fmt.Fprintf(w, `{"success":true,"finished":%t}`, ts.finish.Load())
}

func polls(url string) func(*appsv1alpha1.TransitionRuleWebhook) {
	return func(w *appsv1alpha1.TransitionRuleWebhook) {
		w.ClientConfig.Poll = &appsv1alpha1.WebhookPoll{URL: url, IntervalSeconds: ptr.To[int64](5),
			TimeoutSeconds: ptr.To[int64](600)}
	}
}

func TestATaskSurvivesARestart(t *testing.T) {
	ts := &taskServer{}
	server := served(t, ts.ServeHTTP)
	before := play(t, nobody(), options())
	r := rule("one", server.URL, polls(server.URL+"/poll?a=b"))
	r.Status.ObservedGeneration = 1
	before.rules, before.want = []*appsv1alpha1.PodTransitionRule{r}, about(r, "a")
	before.until("the task is in status", func() bool { return len(before.rules[0].Status.RuleStates) == 1 })
	require.Zero(t, ts.polls.Load())
	before.clock.SetTime(before.clock.Now().Add(5 * time.Second))
	before.until("it is polled", func() bool { return ts.polls.Load() == 1 })
	require.Equal(t, "a=b&task-id=task%2F1", ts.query.Load())
	before.stop()

	after := play(t, nobody(), options())
	after.rules, after.want = before.rules, before.want
	ts.finish.Store(true)
	after.until("it passes", func() bool { return after.passed(after.want[0]) })
	require.EqualValues(t, 1, ts.posts.Load(), "it was not asked about again")

	changed := play(t, nobody(), options())
	changed.rules, changed.want = []*appsv1alpha1.PodTransitionRule{before.rules[0].DeepCopy()}, before.want
	changed.rules[0].Generation = 2
	changed.until("a rule that changed meanwhile asks anew", func() bool { return ts.posts.Load() == 2 })
}

func TestASlowServerHoldsUpItsOwnRuleOnly(t *testing.T) {
	var slow atomic.Int32
	release := make(chan struct{})
	stuck := served(t, func(w http.ResponseWriter, r *http.Request) {
		slow.Add(1)
		select {
		case <-release:
		case <-r.Context().Done():
		}
		yes(w, r)
	})
	good := served(t, yes)
	o := options()
	o.Concurrency = perRule + 1
	s := play(t, nobody(), o)
	hanging, fine := rule("hanging", stuck.URL, nil), rule("fine", good.URL, nil)
	s.rules = []*appsv1alpha1.PodTransitionRule{hanging, fine}
	var pods []string
	for n := range 8 * exchange.MaxBatch {
		pods = append(pods, fmt.Sprintf("p%04d", n))
	}
	hangs, works := about(hanging, pods...), about(fine, "a")
	s.want = hangs
	s.until("the slow rule has all its slots", func() bool { return slow.Load() == perRule })
	s.want = append(hangs[:len(hangs):len(hangs)], works...)
	s.until("the other rule's Pod passes", func() bool { return s.passed(works[0]) })
	require.EqualValues(t, perRule, slow.Load())
	close(release)
	s.until("the slow rule's Pods pass in the end",
		func() bool { return len(s.heard.Answers) == len(hangs)+1 && s.passed(hangs[len(hangs)-1]) })
	require.EqualValues(t, 8, slow.Load(), "a hundred at a time")
}

func TestSlowServersOfANamespaceHoldUpNoOtherNamespace(t *testing.T) {
	var slow atomic.Int32
	release := make(chan struct{})
	stuck := served(t, func(w http.ResponseWriter, r *http.Request) {
		slow.Add(1)
		select {
		case <-release:
		case <-r.Context().Done():
		}
		yes(w, r)
	})
	defer close(release)
	good := served(t, yes)
	s := play(t, nobody(), options())
	var pods []string
	for n := range perRule * exchange.MaxBatch {
		pods = append(pods, fmt.Sprintf("p%04d", n))
	}
	for n := range 8 { // enough for all slots twice
		hanging := rule(fmt.Sprintf("hanging-%d", n), stuck.URL, nil)
		s.rules, s.want = append(s.rules, hanging), append(s.want, about(hanging, pods...)...)
	}
	s.until("the namespace has half of all slots", func() bool { return slow.Load() == 8 })

	fine := rule("fine", good.URL, nil)
	fine.Namespace = "other"
	question := about(fine, "a")
	s.until("a Pod of another namespace passes", func() bool {
		heard := s.asker.Heard("other", []*appsv1alpha1.PodTransitionRule{fine})
		s.asker.Ask("other", question)
		return heard.Answers[question[0].Subject].Passed
	})
	require.EqualValues(t, 8, slow.Load())
}

func TestTheEndOfTheProcessIsNoFailureOfAServer(t *testing.T) {
	reached := make(chan struct{})
	server := served(t, func(_ http.ResponseWriter, r *http.Request) { close(reached); <-r.Context().Done() })
	s := play(t, nobody(), options())
	r := rule("one", server.URL, func(w *appsv1alpha1.TransitionRuleWebhook) {
		w.FailurePolicy = ptr.To(appsv1alpha1.FailurePolicyIgnore)
	})
	s.rules, s.want = []*appsv1alpha1.PodTransitionRule{r}, about(r, "a")
	s.reconcile()
	<-reached
	s.stop()
	s.reconcile()
	require.Empty(t, s.heard.Answers, "nobody passes by failurePolicy because the process ends")
}

func TestAChangedRuleIsAskedAboutAnew(t *testing.T) {
	no := served(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	good := served(t, yes)
	s := play(t, nobody(), options())
	r := rule("one", no.URL, nil)
	s.rules, s.want = []*appsv1alpha1.PodTransitionRule{r}, about(r, "a")
	s.until("it is rejected", func() bool { return s.reason(s.want[0]) == "rejected by the webhook" })
	s.rules[0].Spec.Rules[0].Webhook.ClientConfig.URL = good.URL
	s.until("another server is asked at once", func() bool { return s.passed(s.want[0]) })
	s.rules[0].Spec.Rules[0].Disabled = true
	s.until("a rule that is disabled has no answer", func() bool { return len(s.heard.Answers) == 0 })
}

func TestCredentialsOfASecret(t *testing.T) {
	ours := testca.New(t)
	var reads atomic.Int32
	certificate, key := ours.Issue(t)
	server := ours.Serve(t, true, func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, `{"success":%t}`, r.Header.Get("Authorization") == "Bearer secret")
	})
	secret := func(name string, data map[string]string) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string][]byte{}}
		for k, v := range data {
			s.Data[k] = []byte(v)
		}
		return s
	}
	account := secret("account", map[string]string{"token": "secret"})
	account.Type = corev1.SecretTypeServiceAccountToken
	objects := interceptor.NewClient(fake.NewFakeClient(account,
		secret("good", map[string]string{"token": "secret\n", "tls.crt": string(certificate), "tls.key": string(key)}),
		secret("empty", nil), secret("half", map[string]string{"tls.crt": "x"}),
		secret("lines", map[string]string{"token": "a\nb"}),
	), interceptor.Funcs{Get: func(ctx context.Context, c kubeclient.WithWatch, name kubeclient.ObjectKey,
		o kubeclient.Object, opts ...kubeclient.GetOption) error {
		reads.Add(1)
		switch name.Name {
		case "forbidden":
			return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, name.Name, nil)
		case "busy":
			return apierrors.NewServiceUnavailable("later")
		}
		return c.Get(ctx, name, o, opts...)
	}})
	tests := map[string]struct {
		secret, want string
	}{
		"a token and a certificate": {"good", ""},
		"a Secret that is missing":  {"missing", "there is no Secret missing in namespace ns: create it"},
		"a Secret without anything": {"empty", "has neither token nor tls.crt"},
		"a Secret without its key":  {"half", "has only one of tls.crt and tls.key"},
		"a service account's token": {"account", "is the token of a service account"},
		"a token with line breaks":  {"lines", "has more than one line"},
		"no permission to read it":  {"forbidden", "add the component deploy/components/rule-webhook-secrets"},
		"a busy API server":         {"busy", "the API server did not give Secret busy: ServiceUnavailable"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := play(t, objects, options())
			r := rule("one", server.URL, func(w *appsv1alpha1.TransitionRuleWebhook) {
				w.ClientConfig.SecretName, w.ClientConfig.CABundle = tc.secret, bundle(ours)
				w.FailurePolicy = ptr.To(appsv1alpha1.FailurePolicyIgnore)
			})
			s.rules, s.want = []*appsv1alpha1.PodTransitionRule{r}, about(r, "a")
			s.until("it is answered", func() bool { return len(s.heard.Answers) == 1 })
			require.Equal(t, tc.want == "", s.passed(s.want[0]), "failurePolicy does not bear on Secrets")
			require.Contains(t, s.reason(s.want[0]), tc.want)
		})
	}
	t.Run("they are remembered for a short time", func(t *testing.T) {
		clk := clocktesting.NewFakePassiveClock(time.Now())
		kept := newSecrets(objects, clk)
		reads.Store(0)
		for range 3 {
			_, err := kept.of(t.Context(), "ns", "good")
			require.NoError(t, err)
		}
		require.EqualValues(t, 1, reads.Load())
		clk.SetTime(clk.Now().Add(rememberSecret + 1))
		_, _ = kept.of(t.Context(), "ns", "good")
		require.EqualValues(t, 2, reads.Load())
		for range 2 {
			_, err := kept.of(t.Context(), "ns", "busy")
			require.Error(t, err)
		}
		require.EqualValues(t, 4, reads.Load(), "an error that may pass is not remembered")
		for n := range 3 * maxSecrets {
			_, _ = kept.of(t.Context(), "ns", fmt.Sprint("missing", n))
			require.LessOrEqual(t, len(kept.known.Keys()), maxSecrets)
		}
	})
	t.Run("and never sent over http, which the rule's condition says", func(t *testing.T) {
		w := rule("one", "http://x.example.com",
			func(w *appsv1alpha1.TransitionRuleWebhook) { w.ClientConfig.SecretName = "good" }).Spec.Rules[0].Webhook
		require.Contains(t, invalid(w), "https only")
		w = rule("one", "https://x.example.com", polls("http://y.example.com")).Spec.Rules[0].Webhook
		require.Empty(t, invalid(w))
		w.ClientConfig.SecretName = "good"
		require.Contains(t, invalid(w), "https only")
	})
}
