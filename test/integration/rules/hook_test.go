package rules_test

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// hook is a server of a webhook rule, written for v0.7. What it says is the test's to set.
type hook struct {
	*httptest.Server
	mu sync.Mutex
	// later makes a task of every request, named for its first Pod. finished are the tasks that are done.
	later    bool
	finished map[string]bool
	posts    []question
	polls    map[string]int
}

// question is what v0.7 sends.
type question struct {
	TraceID   string `json:"traceId"`
	RuleName  string `json:"ruleName"`
	Resources []struct {
		Name       string            `json:"name"`
		Parameters map[string]string `json:"parameters"`
	} `json:"resources"`
}

func newHook(t *testing.T, start func(http.Handler) *httptest.Server) *hook {
	t.Helper()
	h := &hook{finished: map[string]bool{}, polls: map[string]int{}}
	h.Server = start(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodGet {
		task := r.URL.Query().Get("task-id")
		h.polls[task]++
		fmt.Fprintf(w, `{"success":true,"message":"as always","finished":%t}`, h.finished[task])
		return
	}
	var q question
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || len(q.Resources) == 0 {
		http.Error(w, "not a question", http.StatusBadRequest)
		return
	}
	h.posts = append(h.posts, q)
	fmt.Fprintf(w, `{"success":true,"message":"as always","poll":%t,"taskId":"task-of-%s"}`, h.later, q.Resources[0].Name)
}

func (h *hook) finish(pods ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, pod := range pods {
		h.finished["task-of-"+pod] = true
	}
}

// asked counts how often each Pod was asked about.
func (h *hook) asked() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	times := map[string]int{}
	for _, q := range h.posts {
		for _, r := range q.Resources {
			times[r.Name]++
		}
	}
	return times
}

// parameters are those of the Pod that was asked about first.
func (h *hook) parameters() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.posts[0].Resources[0].Parameters
}

func (h *hook) polled(pod string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.polls["task-of-"+pod]
}

// asks is a check that asks a server and takes no answer for a no.
func asks(url string, change ...func(*appsv1alpha1.TransitionRuleWebhook)) appsv1alpha1.TransitionRule {
	w := &appsv1alpha1.TransitionRuleWebhook{
		ClientConfig:  appsv1alpha1.WebhookClientConfig{URL: url},
		FailurePolicy: ptr.To(appsv1alpha1.FailurePolicyFail),
	}
	for _, c := range change {
		c(w)
	}
	return check("hook", appsv1alpha1.TransitionRuleDefinition{Webhook: w})
}

// polling polls every second for as long as a test may take.
func polling(url string) func(*appsv1alpha1.TransitionRuleWebhook) {
	return func(w *appsv1alpha1.TransitionRuleWebhook) {
		w.ClientConfig.Poll = &appsv1alpha1.WebhookPoll{URL: url, IntervalSeconds: ptr.To[int64](1),
			TimeoutSeconds: ptr.To[int64](600)}
	}
}

// reason is why a rule does not let a Pod go; "" if it does, or has nothing to say of it.
func (s *story) reason(rule *appsv1alpha1.PodTransitionRule, pod string) string {
	s.Helper()
	details := s.status(rule).Details
	i := slices.IndexFunc(details, func(d appsv1alpha1.TransitionDetail) bool { return d.Name == pod })
	if i < 0 {
		return ""
	}
	var reasons []string
	for _, reject := range details[i].RejectInfo {
		reasons = append(reasons, reject.Reason)
	}
	return strings.Join(reasons, "; ")
}

func (s *story) untilReason(rule *appsv1alpha1.PodTransitionRule, pod, part string) {
	s.Helper()
	s.until(fmt.Sprintf("rule %s says of %s: %s", rule.Name, pod, part),
		func() bool { return strings.Contains(s.reason(rule, pod), part) })
}

// survive does something that brings v0.7 down, and then sees Pods of another rule go on in the same processes.
func survive(t *testing.T, provoke func(*story, *testing.T)) {
	t.Helper()
	s := together(t)
	pids := s.Processes()
	provoke(s, t)
	s.pod("bystander", func(pod *corev1.Pod) { pod.Labels["app"] = "bystander" })
	s.untilServing("bystander")
	other := s.ruleFor("bystander", map[string]string{"app": "bystander"}, atMost("1"))
	s.ask("bystander")
	s.until("the bystander is done", func() bool { return s.done("bystander") == 1 })
	s.requireOut(other, 1)
	require.NoError(t, s.Died())
	require.Equal(t, pids, s.Processes(), "the processes that were there before")
}

// Each of these ends the process of v0.7.
func TestF15NothingThatARuleOrItsServerDoesEndsAProcess(t *testing.T) {
	t.Run("a server that is not there", func(t *testing.T) {
		survive(t, func(s *story, t *testing.T) {
			nobody, err := localkube.ReservePorts(1)
			require.NoError(t, err)
			t.Cleanup(nobody.Release)
			url := fmt.Sprintf("http://127.0.0.1:%d/", nobody.Numbers[0])
			pods := s.serve(2)
			rule := s.rule("fails", asks(url))
			s.ask(pods...)
			s.untilReason(rule, pods[0], "cannot be asked")
			require.Equal(t, 2, s.waiting(pods...))
			s.edit(rule,
				fmt.Sprintf(`{"spec":{"rules":[{"name":"hook","webhook":{"clientConfig":{"url":%q},"failurePolicy":"Ignore"}}]}}`,
					url))
			s.until("both pass as failurePolicy says", func() bool { return s.done(pods...) == 2 })
		})
	})
	t.Run("a server whose certificate nobody signed", func(t *testing.T) {
		survive(t, func(s *story, t *testing.T) {
			h := newHook(t, httptest.NewTLSServer)
			pods := s.serve(1)
			rule := s.rule("tls", asks(h.URL))
			s.ask(pods...)
			s.untilReason(rule, pods[0], "certificate")
			require.Empty(t, h.asked())
			bundle := base64.StdEncoding.EncodeToString(
				pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}))
			s.edit(rule,
				fmt.Sprintf(
					`{"spec":{"rules":[{"name":"hook","webhook":{"clientConfig":{"url":%q,"caBundle":%q},"failurePolicy":"Fail"}}]}}`,
					h.URL, bundle))
			s.until("it passes once caBundle has the certificate", func() bool { return s.done(pods...) == 1 })
			require.Equal(t, map[string]int{pods[0]: 1}, h.asked())
		})
	})
	t.Run("a fieldPath through what is not there", func(t *testing.T) {
		survive(t, func(s *story, t *testing.T) {
			h := newHook(t, httptest.NewServer)
			pods := s.serve(1)
			for i, path := range []string{"status.nothing.below", "metadata.labels['app'].further", "spec.containers.0.name",
				"..", "spec['x']"} {
				rule := s.rule(fmt.Sprint("path-", i),
					asks(h.URL, parameter("p", &appsv1alpha1.ParameterSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}})))
				s.ask(pods...)
				s.untilReason(rule, pods[0], `webhook parameter "p"`)
				require.NoError(t, s.Delete(t.Context(), rule))
				s.until("it passes without the rule", func() bool { return s.serving(pods...) == 1 })
			}
			require.Empty(t, h.asked())
		})
	})
	t.Run("a parameter without a value", func(t *testing.T) {
		survive(t, func(s *story, t *testing.T) {
			h := newHook(t, httptest.NewServer)
			pods := s.serve(1)
			s.rule("empty", asks(h.URL, parameter("neither", nil), parameter("no-field", &appsv1alpha1.ParameterSource{}),
				parameter("no-address",
					&appsv1alpha1.ParameterSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}})))
			s.ask(pods...)
			s.until("it passes", func() bool { return s.done(pods...) == 1 })
			require.Equal(t, map[string]string{"neither": "", "no-field": "", "no-address": ""}, h.parameters())
		})
	})
	t.Run("a server that cannot be trusted", untrusted)
	t.Run("a restart while a task is open", func(t *testing.T) {
		s := alone(t)
		h := newHook(t, httptest.NewServer)
		h.later = true
		pods := s.serve(1)
		rule := s.rule("slow", asks(h.URL, polling(h.URL)))
		s.ask(pods...)
		s.until("its task is polled", func() bool { return h.polled(pods[0]) > 0 })
		for range 2 {
			require.NoError(t, s.Kill(suite.PodTransitionRule))
			polled := h.polled(pods[0])
			require.NoError(t, s.Restart(t.Context(), suite.PodTransitionRule))
			s.until("the new process polls it", func() bool { return h.polled(pods[0]) > polled })
		}
		require.Equal(t, map[string]int{pods[0]: 1}, h.asked(), "asked once, and never anew")
		require.Equal(t, 1, s.waiting(pods...))
		s.untilCounted(rule, 0, 1)
		h.finish(pods...)
		s.until("it passes", func() bool { return s.done(pods...) == 1 })
		require.NoError(t, s.Died())
	})
	t.Run("Pods that are not Ready, looked at again unchanged", unchangedPods)
}

func parameter(key string, from *appsv1alpha1.ParameterSource) func(*appsv1alpha1.TransitionRuleWebhook) {
	return func(w *appsv1alpha1.TransitionRuleWebhook) {
		w.Parameters = append(w.Parameters, appsv1alpha1.Parameter{Key: key, ValueFrom: from})
	}
}

// untrusted has servers that say anything but what they should. Only the Pods that they are asked about wait.
func untrusted(t *testing.T) {
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		reason string
	}{
		"garbage": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"success":`) },
			"not the JSON object expected"},
		"another type": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"success":"true"}`) },
			"not the JSON object expected"},
		"an error": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"success":true}`, http.StatusInternalServerError)
		}, "500"},
		"10 MB": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"success":true,"message":%q}`, strings.Repeat("x", 10<<20))
		}, "bytes"},
		"a lie about who was asked for": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"success":false,"message":"others may","finishedNames":["bystander","web-07",""]}`)
		}, "rejected by the webhook: others may"},
		"a task where nobody polls": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"success":true,"poll":true,"taskId":"t"}`)
		}, "set webhook.clientConfig.poll"},
		"another address": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, "307"},
		"nothing": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then the end of the connection is noticed
			<-r.Context().Done()
		}, "cannot be asked"},
	} {
		t.Run(name, func(t *testing.T) {
			survive(t, func(s *story, t *testing.T) {
				server := httptest.NewServer(tc.answer)
				t.Cleanup(server.Close)
				t.Cleanup(server.CloseClientConnections)
				pods := s.serve(1)
				rule := s.rule("hook", asks(server.URL))
				s.ask(pods...)
				s.untilReason(rule, pods[0], tc.reason)
				require.Equal(t, 1, s.waiting(pods...))
			})
		})
	}
}

// unchangedPods are what the resync of v0.7 panics at. A process that starts looks at every Pod just as a resync does.
func unchangedPods(t *testing.T) {
	s := alone(t)
	pods := []string{"pending", "crashed", "failed", "succeeded"}
	s.serve(1) // web-00
	for _, name := range pods {
		s.pod(name)
		switch name {
		case "pending":
			s.sick[name] = true
		case "crashed":
			s.untilServing(name)
			s.crash(name)
		case "failed", "succeeded":
			phase := map[string]corev1.PodPhase{"failed": corev1.PodFailed, "succeeded": corev1.PodSucceeded}[name]
			require.NoError(t, s.Status().Patch(t.Context(), s.named(name),
				client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"status":{"phase":%q}}`, phase))))
		}
	}
	versions := func() map[string]string {
		now := map[string]string{}
		for _, name := range pods {
			now[name] = s.get(name).ResourceVersion
		}
		return now
	}
	s.until("the crashed Pod is out of service",
		func() bool { return !s.hasLabel("crashed", podops.ServiceAvailableLabel) })
	s.untilRest(nil)
	for range 2 {
		known := versions()
		began := time.Now()
		require.NoError(t, s.Restart(t.Context(), suite.Lifecycle))
		s.ask("web-00")
		s.until("the new process is at work", func() bool { return s.serving("web-00") == 1 })
		require.Equal(t, known, versions(), "no write to a Pod that is as it should be")
		for _, r := range s.writes(began) {
			require.NotContains(t, pods, r.Name, "not even one that changes nothing: %s", r)
		}
	}
	require.NoError(t, s.Died())
}

// writes are those of the suite in the namespace.
func (s *story) writes(since time.Time) []suite.Request {
	s.Helper()
	requests, err := s.Requests(since)
	require.NoError(s, err)
	return slices.DeleteFunc(requests, func(r suite.Request) bool {
		return r.Namespace != s.namespace ||
			r.Component() == "" || !r.Write()
	})
}

// quiet says which status of a rule was written, or which Pod by lifecycle-controller, while something was done.
func (s *story) quiet(during func()) error {
	s.Helper()
	since := time.Now()
	during()
	for _, r := range s.writes(since) {
		if r.Resource == "podtransitionrules" || r.Component() == suite.Lifecycle {
			return errors.New(r.String())
		}
	}
	return nil
}

// untilRest waits for a while in which the status of no rule is written, and no Pod by lifecycle-controller, and in
// which something goes on; nil for nothing.
func (s *story) untilRest(goesOn func() bool) {
	s.Helper()
	s.until("the suite comes to rest", func() bool { return s.quiet(func() { s.rest(goesOn) }) == nil })
}

// rest lets a while pass, and waits until something has gone on since.
func (s *story) rest(goesOn func() bool) {
	s.Helper()
	s.stays("time passes", func() bool { return true })
	if goesOn != nil {
		s.until("it goes on", goesOn)
	}
}

// requireRest waits until the suite is at rest, but for what goes on; then makes the rules be evaluated again and
// again, which must not write either.
func (s *story) requireRest(pods []string, goesOn func() bool) {
	s.Helper()
	s.untilRest(goesOn)
	require.NoError(s, s.quiet(func() {
		for colour := range 5 {
			for _, pod := range pods {
				s.label(pod, map[string]any{"colour": fmt.Sprint(colour)}) // means nothing to any rule
			}
		}
		s.rest(goesOn)
	}), "what is evaluated to the same is not written")
}

// In v0.7 states of tasks are written in the order of a map, so that a status with some of them differs from itself, is
// written, and wakes its own evaluation.
func TestF17ARuleAtRestIsNotWritten(t *testing.T) {
	t.Parallel()
	t.Run("with tasks that are polled and tasks that ended", func(t *testing.T) {
		s := together(t)
		h := newHook(t, httptest.NewServer)
		h.later = true
		pods := s.serve(8)
		rule := s.rule("slow", asks(h.URL, polling(h.URL)))
		for _, pod := range pods { // one after the other: its own task for each
			s.ask(pod)
			s.until(pod+" is polled", func() bool { return h.polled(pod) > 0 })
		}
		h.finish(pods[:4]...)
		s.until("four are done", func() bool { return s.done(pods...) == 4 })
		s.until("four tasks are polled, and four on record", func() bool {
			states := s.status(rule).RuleStates
			return len(states) == 1 && states[0].WebhookStatus != nil && len(states[0].WebhookStatus.TaskStates) == 4 &&
				len(states[0].WebhookStatus.History) == 4
		})
		polled := 0
		s.requireRest(pods, func() bool { // polls go on meanwhile
			before := polled
			polled = h.polled(pods[7])
			return before > 0 && polled > before
		})
		assert.Equal(t, 4, s.waiting(pods[4:]...))
	})
	t.Run("with Pods that wait, and one that holds the budget", func(t *testing.T) {
		s := together(t)
		pods := s.serve(6)
		budget := s.rule("budget", atMost("1"))
		s.rule("labels", requires("approved"))
		s.rule("other", atLeast("50%"))
		for _, pod := range pods[:3] {
			s.label(pod, map[string]any{"approved": "yes"})
		}
		s.work(pods...)
		s.ask(pods[0])
		s.until("it is out", func() bool { return s.out(pods[0]) == 1 })
		s.ask(pods[1:]...)
		s.untilCounted(budget, 1, 5)
		s.requireRest(pods, nil)
	})
}
