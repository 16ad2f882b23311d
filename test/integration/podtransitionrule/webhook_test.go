package podtransitionrule_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/localkube"
)

// hook is a check that asks url about Pods labelled hook=<label>; all Pods if label is empty.
func hook(label, url string) appsv1alpha1.TransitionRule {
	check := appsv1alpha1.TransitionRule{TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
		Webhook: &appsv1alpha1.TransitionRuleWebhook{
			ClientConfig: appsv1alpha1.WebhookClientConfig{URL: url}, FailurePolicy: ptr.To(appsv1alpha1.FailurePolicyFail),
		},
	}}
	if label != "" {
		check.Filter = &appsv1alpha1.TransitionRuleFilter{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"hook": label}}}
	}
	return check
}

func serve(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestWebhookRules(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	w.install(t, "podtransitionrules")
	flags := []string{"--rule-webhook-allow=127.0.0.0/8,203.0.113.1", "--rule-webhook-timeout=3s"}
	kill := w.run(t, "first", flags...)
	t.Run("a bad server holds up nothing but the Pods that it guards, and its rule says why",
		func(t *testing.T) { badServers(t, w) })
	t.Run("a server written for Kuperator v0.7 is understood", func(t *testing.T) { upstreamServer(t, w) })
	t.Run("a task goes on when another process takes over", func(t *testing.T) {
		taskSurvives(t, w, func() { kill(); w.run(t, "second", flags...) })
	})
}

func badServers(t *testing.T, w *world) {
	yes := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"success":true}`) })
	nobody, err := localkube.ReservePorts(1)
	require.NoError(t, err)
	t.Cleanup(nobody.Release)
	bad := []struct{ name, url, want string }{
		{"unreachable", fmt.Sprintf("http://127.0.0.1:%d/", nobody.Numbers[0]), "connection refused"},
		{"slow", serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), "did not answer within 3s"},
		{"lies", serve(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"success":false,"message":"lies","finishedNames":["web-00","web-99","../web-02"]}`)
		}), "rejected by the webhook: lies"},
		{"garbage", serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "\x00<html>{") }),
			"not the JSON object expected"},
		{"huge", serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte(" "), 10<<20)) }),
			"has more than 1048576 bytes"},
		{"metadata", "http://169.254.169.254/latest/meta-data/", "169.254.169.254 is a link-local address"},
		{"secret", "https://127.0.0.1:1/", "add the component deploy/components/rule-webhook-secrets"},
		{"field", yes, `fieldPath is "spec.no.such", but the Pod has nothing below spec.no: correct it`},
	}
	l := w.workload(t, len(bad)+1)
	pods := l.pods(t)
	var rules []*appsv1alpha1.PodTransitionRule
	for i, b := range bad {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"hook":%q}}}`, b.name)
		require.NoError(t, l.Patch(t.Context(), &pods[i+1], client.RawPatch("application/merge-patch+json", patch)))
		check := hook(b.name, b.url)
		switch b.name {
		case "metadata":
			check.Webhook.FailurePolicy = ptr.To(appsv1alpha1.FailurePolicyIgnore)
		case "secret":
			check.Webhook.ClientConfig.SecretName = "credentials"
		case "field":
			check.Webhook.Parameters = []appsv1alpha1.Parameter{{Key: "k",
				ValueFrom: &appsv1alpha1.ParameterSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.no.such"}}}}
		}
		rules = append(rules, l.rule(t, b.name, check))
	}
	l.rule(t, "bound", maxUnavailable(int32(len(pods))))
	l.begin(t)
	eventually(t, "the Pod that no server guards is done", func() bool { _, done := l.play(t); return done == 1 })
	for i, b := range bad {
		eventually(t, b.name+" says why", func() bool {
			_, done := l.play(t)
			require.Equal(t, 1, done)
			details := l.get(t, rules[i]).Status.Details
			return len(details) == 1 && len(details[0].RejectInfo) == 1 && details[0].Name == pods[i+1].Name &&
				strings.Contains(details[0].RejectInfo[0].Reason, b.want)
		})
	}
	for _, rule := range rules {
		fresh := l.get(t, rule)
		fresh.Spec.Rules[0].Webhook.ClientConfig = appsv1alpha1.WebhookClientConfig{URL: yes}
		fresh.Spec.Rules[0].Webhook.Parameters = nil
		require.NoError(t, l.Update(t.Context(), fresh))
	}
	eventually(t, "with another server all are done", func() bool { _, done := l.play(t); return done == len(pods) })
}

// upstreamServer answers only to requests that have what Kuperator v0.7 sends.
func upstreamServer(t *testing.T, w *world) {
	var requests atomic.Int32
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			TraceID   string `json:"traceId"`
			RuleName  string `json:"ruleName"`
			Stage     string `json:"stage"`
			Resources []struct {
				APIVersion, Kind, Name string
				Parameters             map[string]string
			} `json:"resources"`
		}
		if json.NewDecoder(r.Body).Decode(&body) != nil || body.TraceID == "" || body.RuleName != "check" ||
			body.Stage != "" || len(body.Resources) == 0 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		for _, res := range body.Resources {
			if res.APIVersion != "core/v1" || res.Kind != "Pod" || res.Parameters["app"] != "web" ||
				res.Parameters["name"] != res.Name {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
		}
		if requests.Add(1) == 1 {
			_, _ = fmt.Fprintf(w, `{"success":false,"message":"one by one","finishedNames":[%q],"traceId":%q}`,
				body.Resources[0].Name, body.TraceID)
			return
		}
		_, _ = fmt.Fprintf(w, `{"success":true,"traceId":%q,"unknown":1}`, body.TraceID)
	})
	l := w.workload(t, 3)
	check := hook("", url)
	field := func(path string) *appsv1alpha1.ParameterSource {
		return &appsv1alpha1.ParameterSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	check.Webhook.Parameters = []appsv1alpha1.Parameter{{Key: "app", ValueFrom: field("metadata.labels['app']")},
		{Key: "name", ValueFrom: field("metadata.name")}}
	l.rule(t, "old", check)
	l.begin(t)
	eventually(t, "all are done", func() bool { _, done := l.play(t); return done == 3 })
}

func taskSurvives(t *testing.T, w *world, restart func()) {
	var posts, polls atomic.Int32
	var finish atomic.Bool
	var early atomic.Bool // a poll came before status had the task
	l := w.workload(t, 2)
	var rule *appsv1alpha1.PodTransitionRule
	tasks := func() []appsv1alpha1.TaskInfo {
		states := l.get(t, rule).Status.RuleStates
		if len(states) != 1 || states[0].WebhookStatus == nil {
			return nil
		}
		return states[0].WebhookStatus.TaskStates
	}
	ready := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		<-ready
		if r.Method == http.MethodPost {
			_, _ = fmt.Fprintf(w, `{"success":true,"poll":true,"taskId":"task-%d","message":"begun"}`, posts.Add(1))
			return
		}
		id := r.URL.Query().Get("task-id")
		found := false
		for _, task := range tasks() {
			found = found || task.TaskID == id
		}
		early.Store(early.Load() || !found)
		polls.Add(1)
		_, _ = fmt.Fprintf(w, `{"success":true,"finished":%t,"message":"working"}`, finish.Load())
	})
	check := hook("", url)
	check.Webhook.ClientConfig.Poll = &appsv1alpha1.WebhookPoll{URL: url + "/poll", IntervalSeconds: ptr.To[int64](1),
		TimeoutSeconds: ptr.To[int64](300)}
	rule = l.rule(t, "tasks", check)
	l.begin(t)
	close(ready)
	eventually(t, "both Pods are asked about, and the tasks are polled", func() bool { // in one request or in two
		subjects, known := 0, tasks()
		for _, task := range known {
			subjects += len(task.Subjects)
		}
		return subjects == 2 && polls.Load() > 0 && len(known) == int(posts.Load())
	})
	require.Zero(t, l.get(t, rule).Status.Granted)
	asked := posts.Load()

	restart()
	before := polls.Load()
	eventually(t, "the new process polls the same tasks", func() bool { return polls.Load() > before+1 })
	finish.Store(true)
	eventually(t, "all are done", func() bool { _, done := l.play(t); return done == 2 })
	require.Equal(t, asked, posts.Load(), "nothing was asked a second time")
	require.False(t, early.Load(), "a task is in the status before its first poll")
	eventually(t, "the tasks are history", func() bool {
		states := l.get(t, rule).Status.RuleStates
		return len(tasks()) == 0 && len(states) == 1 && len(states[0].WebhookStatus.History) == int(asked)
	})
}
