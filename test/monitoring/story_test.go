package monitoring

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// world is the running suite, and a user with kubectl.
type world struct{ *suite.Suite }

func newWorld(t *testing.T) world {
	t.Helper()
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "out of order", http.StatusInternalServerError)
	}))
	t.Cleanup(broken.Close)
	endpoints := filepath.Join(t.TempDir(), "endpoints.yaml")
	require.NoError(t, os.WriteFile(endpoints,
		fmt.Appendf(nil, "endpoints:\n- {name: broken, url: %q, namespaces: ['*']}\n", broken.URL), 0o600))
	s, err := suite.Start(t.Context(), suite.Config{Name: "monitoring", Nodes: 3, Progress: os.Stderr,
		Args: map[string][]string{
			suite.ResourceConsist: {"--adapters=endpointslice,webhook", "--webhook-endpoints=" + endpoints,
				"--webhook-allow=127.0.0.0/8"},
			suite.PodTransitionRule: {"--rule-webhook-allow=127.0.0.0/8"},
		}})
	require.NoError(t, err)
	w := world{s}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.LogTails())
		}
		if err := w.Stop(); err != nil {
			t.Errorf("stopping the suite: %v", err)
		}
	})
	require.NoError(t, w.WaitLeading(t.Context(), suite.Components()...))
	brokenURL = broken.URL
	return w
}

// brokenURL answers every request with an error.
var brokenURL string

func (w world) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.Kubectl(t.Context(), args...)
	require.NoError(t, err)
	return out
}

func (w world) apply(t *testing.T, manifests ...string) {
	t.Helper()
	_, err := w.KubectlWith(t.Context(), strings.Join(manifests, "\n---\n"), "apply", "--server-side", "-f", "-")
	require.NoError(t, err)
}

// set is a CollaSet of Pods labelled app=name; more are lines of its spec.
func set(namespace, name string, replicas int, more ...string) string {
	return fmt.Sprintf(
		`{apiVersion: apps.kusionstack.io/v1alpha1, kind: CollaSet, metadata: {namespace: %[1]s, name: %[2]s}, spec: {replicas: %[3]d, selector: {matchLabels: {app: %[2]s}},
  template: {metadata: {labels: {app: %[2]s, kusionstack.io/control: "true"}}, spec: {containers: [{name: main, image: "web:1"}]}}%[4]s}}`,
		namespace, name, replicas, strings.Join(append([]string{""}, more...), ", "))
}

// rule is a PodTransitionRule of Pods labelled app=name with one check.
func rule(namespace, name, check string) string {
	return fmt.Sprintf(
		`{apiVersion: apps.kusionstack.io/v1alpha1, kind: PodTransitionRule, metadata: {namespace: %[1]s, name: %[2]s}, spec: {selector: {matchLabels: {app: %[2]s}}, rules: [{name: check, %[3]s}]}}`, namespace, name, check)
}

func service(namespace, name, annotations string) string {
	return fmt.Sprintf(
		`{apiVersion: v1, kind: Service, metadata: {namespace: %[1]s, name: %[2]s, labels: {kusionstack.io/control: "true"}, annotations: {%[3]s}}, spec: {selector: {app: %[2]s}, ports: [{port: 80}]}}`, namespace, name, annotations)
}

// job is an OperationJob that evicts Pods.
func job(namespace, name, of string) string {
	return fmt.Sprintf(
		`{apiVersion: apps.kusionstack.io/v1alpha1, kind: OperationJob, metadata: {namespace: %s, name: %s}, spec: {action: Evict, %s}}`,
		namespace, name, of)
}

// decoration is a PodDecoration of Pods labelled app=of.
func decoration(namespace, name, of, template string) string {
	return fmt.Sprintf(
		`{apiVersion: apps.kusionstack.io/v1alpha1, kind: PodDecoration, metadata: {namespace: %s, name: %s}, spec: {selector: {matchLabels: {app: %s}}, template: {%s}}}`,
		namespace, name, of, template)
}

func namespace(name string) string {
	return "{apiVersion: v1, kind: Namespace, metadata: {name: " + name + "}}"
}

// waitServing waits until as many Pods labelled app=name serve.
func (w world) waitServing(t *testing.T, ns, name string, n int) {
	t.Helper()
	await.Nil(t, fmt.Sprintf("%d Pods of %s/%s serve", n, ns, name), func() error {
		out, err := w.Kubectl(t.Context(), "-n", ns, "get", "pods", "-l",
			"app="+name+",podopslifecycle.kusionstack.io/service-available", "-o", "name")
		if serving := len(strings.Fields(out)); err != nil || serving != n {
			return fmt.Errorf("%d serve: %w", serving, err)
		}
		return nil
	})
}

// healthy brings up workloads that nothing is wrong with.
func (w world) healthy(t *testing.T) {
	t.Helper()
	w.apply(t, namespace("shop"), service("shop", "web", ""),
		rule("shop", "web", "availablePolicy: {maxUnavailableValue: 1}"), set("shop", "web", 4))
	w.waitServing(t, "shop", "web", 4)
}

// trouble has everything go wrong that a panel or an alert is about.
func (w world) trouble(t *testing.T, p *prometheus) {
	t.Helper()
	w.apply(t, namespace("trouble"), namespace("calm"))

	t.Log("a rollout that gets on")
	w.kubectl(t, "-n", "shop", "patch", "collaset", "web", "--type=json",
		`-p=[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"web:2"}]`)

	t.Log("a rollout that is halted")
	w.apply(t, set("trouble", "halted", 2, "progressDeadlineSeconds: 2", "updateStrategy: {failurePolicy: Pause}"))
	w.waitServing(t, "trouble", "halted", 2)
	w.kubectl(t, "-n", "trouble", "patch", "collaset", "halted", "--type=json",
		`-p=[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"web:non-exist"}]`)

	t.Log("a Pod that somebody does not let go of, past its deadline, and Pods that wait for its budget")
	w.apply(t, rule("trouble", "stuck", "availablePolicy: {maxUnavailableValue: 1}"), set("trouble", "stuck", 3))
	w.waitServing(t, "trouble", "stuck", 3)
	pods := strings.Fields(w.kubectl(t, "-n", "trouble", "get", "pods", "-l", "app=stuck", "-o", "name"))
	w.kubectl(t, "-n", "trouble", "patch", pods[0], "--type=merge",
		`-p={"metadata":{"finalizers":["prot.podopslifecycle.kusionstack.io/somebody"],"annotations":{"podopslifecycle.kusionstack.io/deadlines":"{\"Preparing\":{\"after\":\"1s\",\"policy\":\"Wait\"}}"}}}`)
	w.kubectl(t, "-n", "trouble", "label", pods[0], "collaset.kusionstack.io/to-delete=true")
	await.Nil(t, "the Pod is on its way out", func() error {
		out, err := w.Kubectl(t.Context(), "-n", "trouble", "get", pods[0], "-o", "jsonpath={.metadata.labels}")
		if err == nil && !strings.Contains(out, "preparing.podopslifecycle") {
			err = fmt.Errorf("its labels are %s", out)
		}
		return err
	})
	w.kubectl(t, "-n", "trouble", "label", pods[1], "collaset.kusionstack.io/to-delete=true")

	t.Log("a rule whose webhook fails")
	w.apply(t, rule("trouble", "hook", fmt.Sprintf("webhook: {clientConfig: {url: %q}, failurePolicy: Fail}", brokenURL)),
		set("trouble", "hook", 1))
	w.waitServing(t, "trouble", "hook", 1)
	w.kubectl(t, "-n", "trouble", "label", "pods", "-l", "app=hook", "collaset.kusionstack.io/to-delete=true")

	t.Log("a provider that fails")
	w.apply(t, service("trouble", "backend", "webhook.resource-consist.kusionstack.io/endpoint: broken"),
		set("trouble", "backend", 1))

	t.Log("a frozen namespace")
	w.apply(t, rule("calm", "calm", "availablePolicy: {maxUnavailableValue: 1}"), set("calm", "calm", 1))
	w.waitServing(t, "calm", "calm", 1)
	w.kubectl(t, "annotate", "namespace", "calm", "podopslifecycle.kusionstack.io/freeze=inventory")
	w.kubectl(t, "-n", "calm", "label", "pods", "-l", "app=calm", "collaset.kusionstack.io/to-delete=true")

	t.Log("a job that succeeds, and one that fails")
	w.apply(t, set("trouble", "evicted", 1))
	w.waitServing(t, "trouble", "evicted", 1)
	w.apply(t, job("trouble", "evict", "targetSelector: {workload: {kind: CollaSet, name: evicted}}"),
		job("trouble", "nothing", "targets: [{name: no-such-pod}]"))
	for name, progress := range map[string]string{"evict": "Succeeded", "nothing": "Failed"} {
		w.kubectl(t, "-n", "trouble", "wait", "--for=jsonpath={.status.progress}="+progress, "operationjob/"+name,
			"--timeout=2m")
	}
	// The first job may have begun and ended between two scrapes. A rate is of what comes after the first sample.
	await.Nil(t, "the first job's targets are scraped", func() error {
		scraped, err := p.query(t.Context(), "sum(kuperator_operationjob_target_seconds_count) > 0")
		return hasData(scraped, err)
	})
	w.waitServing(t, "trouble", "evicted", 1)
	w.apply(t, job("trouble", "evict-again", "targetSelector: {workload: {kind: CollaSet, name: evicted}}"))
	w.kubectl(t, "-n", "trouble", "wait", "--for=jsonpath={.status.progress}=Succeeded", "operationjob/evict-again",
		"--timeout=2m")

	t.Log("a decoration that every Pod gets, and one that a Pod without a controller cannot get")
	w.apply(t, `{apiVersion: v1, kind: Pod, metadata: {namespace: trouble, name: alone, labels: {app: alone, kusionstack.io/control: "true"}}, spec: {containers: [{name: main, image: "web:1"}]}}`)
	w.apply(t, decoration("trouble", "labels", "evicted", "metadata: [{labels: {tier: web}}]"),
		decoration("trouble", "sidecar", "alone", `containers: [{name: sidecar, image: "sidecar:1"}]`))
	w.kubectl(t, "-n", "trouble", "wait", "--for=condition=Ready", "poddecoration/labels", "--timeout=2m")
	w.kubectl(t, "-n", "trouble", "wait", "--for=condition=Stalled", "poddecoration/sidecar", "--timeout=2m")

	t.Log("requests that are refused")
	_, err := w.KubectlWith(t.Context(), rule("trouble", "invalid",
		"labelCheck: {requires: {matchExpressions: [{key: a, operator: Near}]}}"), "create", "-f", "-")
	require.Error(t, err)
	_, err = w.Kubectl(t.Context(), "-n", "shop", "delete", "pods", "-l", "app=web", "--wait=false")
	require.Error(t, err, "graceful deletion refuses at first")
}
