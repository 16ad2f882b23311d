// Package webhook tests webhook-server as a process, with the rights of its own service account, against a real API
// server that calls it over TLS.
package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const (
	system   = "kuperator-system"
	server   = "webhook-server"
	gate     = "pod.kusionstack.io/service-ready"
	deadline = 3 * time.Minute // for what takes milliseconds, on a busy machine
	tick     = 50 * time.Millisecond

	// A rotation begins 24 s after the last and takes 4 s, and the old certificate is good for 8 s more.
	certLifetime = 36 * time.Second
	certSettle   = 4 * time.Second
)

var (
	collaSets = schema.GroupVersionResource{Group: "apps.kusionstack.io", Version: "v1alpha1",
		Resource: "collasets"}
	rules            = collaSets.GroupVersion().WithResource("podtransitionrules")
	resourceContexts = collaSets.GroupVersion().WithResource("resourcecontexts")
)

// suite is a cluster with the manifests of overlay local and clients that remember warnings.
type suite struct {
	cluster   *localkube.Cluster
	namespace string
	core      *kubernetes.Clientset
	dynamic   *dynamic.DynamicClient
	warnings  *warnings
	binary    string
}

type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

func (w *warnings) all() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.text, "\n")
}

func start(t *testing.T) *suite {
	t.Helper()
	s := &suite{cluster: testcluster.Start(t, localkube.Config{Name: "webhook"}), warnings: &warnings{}}
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	require.NoError(t, err)
	for _, folder := range []string{"prerequisites", "overlays/local"} {
		_, err = s.cluster.Kubectl(t.Context(), "apply", "--server-side", "-k", filepath.Join(root, "deploy", folder))
		require.NoError(t, err)
	}
	require.NoError(t, localkube.WaitForCRDs(t.Context(), s.cluster.RESTConfig()))
	s.binary = filepath.Join(t.TempDir(), server)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", s.binary, "./cmd/"+server)
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	s.namespace = testcluster.Namespace(t, s.cluster, nil)
	config := s.cluster.RESTConfig()
	config.WarningHandler = s.warnings
	s.core = kubernetes.NewForConfigOrDie(config)
	s.dynamic = dynamic.NewForConfigOrDie(config)
	return s
}

// process is a running webhook-server.
type process struct {
	cmd   *exec.Cmd
	url   string
	ready string
}

// run starts webhook-server, with further flags, and waits until it is ready. It ends with the test.
func (s *suite) run(t *testing.T, further ...string) *process {
	t.Helper()
	p := s.launch(t, further...)
	s.asked(t, p)
	return p
}

// launch starts it.
func (s *suite) launch(t *testing.T, further ...string) *process {
	t.Helper()
	kubeconfig, err := s.cluster.ServiceAccountKubeconfig(t.Context(), system, server)
	require.NoError(t, err)
	ports, err := localkube.ReservePorts(2)
	require.NoError(t, err)
	t.Cleanup(ports.Release)
	port, probes := ports.Numbers[0], ports.Numbers[1]
	p := &process{url: fmt.Sprintf("https://127.0.0.1:%d", port), ready: fmt.Sprintf("http://127.0.0.1:%d/readyz", probes)}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	p.cmd = exec.Command(s.binary, append([]string{"--kubeconfig=" + kubeconfig, "--webhook-bind-address=127.0.0.1",
		fmt.Sprintf("--webhook-port=%d", port),
		"--advertise-url=" + p.url, "--metrics-bind-address=0",
		fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", probes),
		"--webhook-cert-lifetime=" + certLifetime.String(), "--webhook-cert-settle=" + certSettle.String()}, further...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			assert.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
			assert.NoError(t, p.cmd.Wait(), "a stop that was asked for is no error")
		}
		content, err := os.ReadFile(log.Name())
		assert.NoError(t, err)
		if t.Failed() {
			t.Logf("log of %s:\n%s", server, content)
		}
		assert.NotContains(t, string(content), "forbidden", "the service account lacks a right")
		assert.NotContains(t, string(content), "PRIVATE KEY")
	})
	return p
}

// asked waits until it is ready, and the API server asks it.
func (s *suite) asked(t *testing.T, p *process) {
	t.Helper()
	require.Eventually(t, func() bool { return get(t, p.ready) == http.StatusOK }, deadline, tick, "not ready")
	require.EventuallyWithT(t, func(c *assert.CollectT) { // until the API server has seen both configurations as well
		gated, err := s.createPod(t.Context(), s.pod("dry"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(c, err)
		require.True(c, gated)
		_, err = s.create(t, collaSets, impossible("dry"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.True(c, apierrors.IsInvalid(err), "%v", err)
	}, deadline, tick)
}

// get returns the status code, 0 while there is no answer.
func get(t *testing.T, url string) int {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}

func (s *suite) pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-", Namespace: s.namespace,
			Labels: map[string]string{"kusionstack.io/control": "true"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web:1"}}},
	}
}

// createPod returns whether the created Pod has the gate.
func (s *suite) createPod(ctx context.Context, pod *corev1.Pod, options metav1.CreateOptions) (gated bool, err error) {
	created, err := s.core.CoreV1().Pods(s.namespace).Create(ctx, pod, options)
	if err != nil {
		return false, err
	}
	for _, g := range created.Spec.ReadinessGates {
		if g.ConditionType == gate {
			return true, nil
		}
	}
	return false, nil
}

func (s *suite) create(
	t *testing.T, resource schema.GroupVersionResource, manifest string, options ...metav1.CreateOptions,
) (*unstructured.Unstructured, error) {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(manifest))
	require.NoError(t, err)
	object := &unstructured.Unstructured{}
	require.NoError(t, json.Unmarshal(raw, &object.Object))
	object.SetAPIVersion("apps.kusionstack.io/v1alpha1")
	return s.dynamic.Resource(resource).Namespace(s.namespace).Create(t.Context(), object,
		append(options, metav1.CreateOptions{})[0])
}

func collaSet(name, more string) string {
	return `{kind: CollaSet, metadata: {name: ` + name +
		`}, spec: {replicas: 2, selector: {matchLabels: {app: web}}, ` + more + `
		template: {metadata: {labels: {app: web}}, spec: {fieldOfTomorrow: {a: 1}, containers: [{name: main, image: "web:1", fieldOfTomorrow: true}]}}}}`
}

// impossible is a CollaSet that the schema takes and webhook-server refuses.
func impossible(name string) string {
	return strings.Replace(collaSet(name, ""), "name: main",
		"name: main, volumeMounts: [{name: data, mountPath: /data}]", 1)
}

func TestWebhookServer(t *testing.T) {
	s := start(t)

	t.Run("without the server everything is admitted and the schema still refuses", func(t *testing.T) {
		gated, err := s.createPod(t.Context(), s.pod("before"), metav1.CreateOptions{})
		require.NoError(t, err)
		require.False(t, gated)
		_, err = s.create(t, collaSets, collaSet("before", ""))
		require.NoError(t, err)
		_, err = s.create(t, collaSets, collaSet("lists", "scaleStrategy: {podToDelete: [a], podToExclude: [a]},"))
		require.True(t, apierrors.IsInvalid(err), "%v", err)
	})

	p := s.run(t)

	t.Run("the configurations trust the server and call it at its address", func(t *testing.T) {
		secret, err := s.core.CoreV1().Secrets(system).Get(t.Context(), server+"-certs", metav1.GetOptions{})
		require.NoError(t, err)
		mutating, err := s.core.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), server,
			metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, p.url+"/mutate-pods/"+string(secret.Data["token"]), *mutating.Webhooks[0].ClientConfig.URL)
		require.Nil(t, mutating.Webhooks[0].ClientConfig.Service)
		require.NotEmpty(t, mutating.Webhooks[0].ClientConfig.CABundle)
		require.NotContains(t, string(secret.Data["ca.crt"]), "PRIVATE KEY")
	})

	t.Run("a managed Pod gets the gate, in a dry run as well", func(t *testing.T) {
		gated, err := s.createPod(t.Context(), s.pod("dry"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(t, err)
		require.True(t, gated)
		gated, err = s.createPod(t.Context(), s.pod("real"), metav1.CreateOptions{})
		require.NoError(t, err)
		require.True(t, gated)
		other := s.pod("other")
		other.Labels = nil
		gated, err = s.createPod(t.Context(), other, metav1.CreateOptions{})
		require.NoError(t, err)
		require.False(t, gated)
	})

	t.Run("a CollaSet is defaulted and keeps fields that nobody knows", func(t *testing.T) {
		set, err := s.create(t, collaSets, collaSet("sound", `updateStrategy: {rollingUpdate: {}, podUpgradePolicy: ""},`))
		require.NoError(t, err)
		partition, found, err := unstructured.NestedMap(set.Object, "spec", "updateStrategy", "rollingUpdate", "byPartition")
		require.NoError(t, err)
		require.True(t, found, "%v", partition)
		policy, _, _ := unstructured.NestedString(set.Object, "spec", "updateStrategy", "podUpgradePolicy")
		require.Equal(t, "InPlaceIfPossible", policy)
		_, found, _ = unstructured.NestedMap(set.Object, "spec", "template", "spec", "fieldOfTomorrow")
		require.True(t, found)
	})

	t.Run("a CollaSet that can make no Pod is refused with what to do", func(t *testing.T) {
		_, err := s.create(t, collaSets, impossible("bad"))
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		require.ErrorContains(t, err, `spec.template.spec.containers[0].volumeMounts[0].name: Not found: "data"`)
	})

	t.Run("what does not do what one may think brings a warning", func(t *testing.T) {
		_, err := s.create(t, collaSets, collaSet("both",
			"updateStrategy: {rollingUpdate: {byLabel: {}, byPartition: {partition: 1}}},"))
		require.NoError(t, err)
		require.Contains(t, s.warnings.all(), "byLabel wins")
	})

	t.Run("what becomes of the Pods is said with a new template", func(t *testing.T) {
		set, err := s.create(t, collaSets, collaSet("forecast", ""))
		require.NoError(t, err)
		resource := s.dynamic.Resource(collaSets).Namespace(s.namespace)
		_, err = resource.Patch(t.Context(), set.GetName(), types.MergePatchType, []byte(`{"spec":{"replicas":3}}`),
			metav1.PatchOptions{})
		require.NoError(t, err)
		_, err = resource.Patch(t.Context(), set.GetName(), types.MergePatchType, []byte(`{"status":{"replicas":3}}`),
			metav1.PatchOptions{}, "status")
		require.NoError(t, err)
		for _, tc := range []struct{ container, said string }{
			{`{"name":"main","image":"web:2","fieldOfTomorrow":true}`, ""}, // the normal case
			{`{"name":"main","image":"web:2","fieldOfTomorrow":true,"env":[{"name":"A","value":"other"}]}`,
				"3 Pods will be re-created because of template.spec.containers[main].env"},
		} {
			patch := `{"spec":{"template":{"spec":{"containers":[` + tc.container + `]}}}}`
			_, err = resource.Patch(t.Context(), set.GetName(), types.MergePatchType, []byte(patch),
				metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			require.NoError(t, err)
			if tc.said == "" {
				require.NotContains(t, s.warnings.all(), "3 Pods will be")
			} else {
				require.Contains(t, s.warnings.all(), tc.said)
			}
		}
	})

	t.Run("a finalizer of a broken CollaSet can be removed", func(t *testing.T) {
		body := `{"metadata":{"finalizers":["example.test/a"]}}`
		_, err := s.dynamic.Resource(collaSets).Namespace(s.namespace).Patch(t.Context(), "before", types.MergePatchType,
			[]byte(body), metav1.PatchOptions{})
		require.NoError(t, err)
		require.NoError(t, s.dynamic.Resource(collaSets).Namespace(s.namespace).Delete(t.Context(), "before",
			metav1.DeleteOptions{}))
		_, err = s.dynamic.Resource(collaSets).Namespace(s.namespace).Patch(t.Context(), "before", types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	})

	t.Run("rules and pools are checked", func(t *testing.T) {
		_, err := s.create(t, rules,
			`{kind: PodTransitionRule, metadata: {name: bad}, spec: {selector: {matchLabels: {a: "b c"}}, rules: [{name: a, availablePolicy: {maxUnavailableValue: 1}}]}}`)
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		_, err = s.create(t, rules,
			`{kind: PodTransitionRule, metadata: {name: hook}, spec: {selector: {}, rules: [{name: a, webhook: {clientConfig: {url: "https://192.0.2.1:81/never-dialled"}}}]}}`)
		require.NoError(t, err)
		_, err = s.create(t, resourceContexts,
			`{kind: ResourceContext, metadata: {name: pool}, spec: {contexts: [{id: 0, data: {Owner: a}}, {id: 1, data: {Owner: b}}]}}`)
		require.NoError(t, err)
		_, err = s.create(t, resourceContexts,
			`{kind: ResourceContext, metadata: {name: twice}, spec: {contexts: [{id: 1}, {id: 1}]}}`)
		require.ErrorContains(t, err, "spec.contexts[1].id")
	})

	t.Run("a configuration that is applied anew gets its authorities back", func(t *testing.T) {
		require.NoError(t, s.core.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(t.Context(), server,
			metav1.DeleteOptions{}))
		_, err := s.cluster.Kubectl(t.Context(), "apply", "--server-side", "--force-conflicts", "-k",
			filepath.Join("..", "..", "..", "deploy", "overlays", "local"))
		require.NoError(t, err)
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			gated, err := s.createPod(t.Context(), s.pod("anew"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			require.NoError(c, err)
			require.True(c, gated)
		}, deadline, tick)
	})

	t.Run("no admission fails while certificates rotate", func(t *testing.T) { s.rotateUnderLoad(t, p) })

	t.Run("a server that died stops nobody", func(t *testing.T) {
		managed, foreign := s.runningPod(t, "managed", nil),
			s.runningPod(t, "foreign", map[string]string{"kusionstack.io/control": "false"})
		require.NoError(t, p.cmd.Process.Kill())
		_ = p.cmd.Wait() // killed
		gated, err := s.createPod(t.Context(), s.pod("after"), metav1.CreateOptions{})
		require.NoError(t, err)
		require.False(t, gated)
		_, err = s.create(t, collaSets, collaSet("after", ""))
		require.NoError(t, err)
		for _, pod := range []*corev1.Pod{managed, foreign} {
			s.label(t, pod, map[string]any{"changed": "1"})
			require.NoError(t, evict(t.Context(), s.core.PolicyV1().RESTClient(), pod,
				&metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
			require.NoError(t, s.delete(t, pod, metav1.DeleteOptions{}))
		}
	})

	ports, err := localkube.ReservePorts(1)
	require.NoError(t, err)
	t.Cleanup(ports.Release)
	metrics := fmt.Sprintf("127.0.0.1:%d", ports.Numbers[0])

	t.Run("a new process takes over", func(t *testing.T) {
		s.run(t, "--graceful-deletion", "--announce-services", "--metrics-secure=false", "--metrics-bind-address="+metrics)
		gated, err := s.createPod(t.Context(), s.pod("again"), metav1.CreateOptions{})
		require.NoError(t, err)
		require.True(t, gated)
		s.foreignPodsDoNotCallIt(t, metrics)
	})
}

// calls counts the requests that the server has had, by path, as its metrics say.
func calls(t *testing.T, metrics string) map[string]float64 {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+metrics+"/metrics", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	require.NoError(t, err)
	counts := map[string]float64{}
	for _, metric := range families["controller_runtime_webhook_requests_total"].GetMetric() {
		for _, label := range metric.GetLabel() {
			if label.GetName() == "webhook" {
				counts[label.GetValue()] += metric.GetCounter().GetValue()
			}
		}
	}
	return counts
}

// foreignPodsDoNotCallIt goes through the life of Pods that are not managed, and of a CollaSet whose spec stays as it
// is, and counts at the server. No other program works on this cluster.
func (s *suite) foreignPodsDoNotCallIt(t *testing.T, metrics string) {
	t.Helper()
	set, err := s.create(t, collaSets, collaSet("metadata-only", ""))
	require.NoError(t, err)
	before := calls(t, metrics)
	require.Positive(t, before["/mutate-pods"], "calls are counted")
	for name, labels := range map[string]map[string]string{"unlabelled": {"kusionstack.io/control": ""},
		"not-managed": {"kusionstack.io/control": "false"}} {
		pod := s.runningPod(t, name, labels) // with an update of its status
		s.label(t, pod, map[string]any{"changed": "1"})
		require.NoError(t, s.delete(t, pod, metav1.DeleteOptions{}))
	}
	resource := s.dynamic.Resource(collaSets).Namespace(s.namespace)
	_, err = resource.Patch(t.Context(), set.GetName(), types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"changed":"1"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = resource.Patch(t.Context(), set.GetName(), types.MergePatchType, []byte(`{"status":{"replicas":1}}`),
		metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	require.Equal(t, before, calls(t, metrics))

	s.operatorsOwnDeletesDoNotCallIt(t, metrics)
	before = calls(t, metrics)
	pod := s.runningPod(t, "evicted-foreign", map[string]string{"kusionstack.io/control": "false"})
	require.NoError(t, evict(t.Context(), s.core.PolicyV1().RESTClient(), pod, nil))
	before["/evict-pods"]++ // an Eviction does not say of which kind its Pod is
	require.Equal(t, before, calls(t, metrics))
}

// operatorsOwnDeletesDoNotCallIt deletes Pods as collaset-controller, and as others, and counts at the server.
func (s *suite) operatorsOwnDeletesDoNotCallIt(t *testing.T, metrics string) {
	t.Helper()
	const operator, mayOperate = "system:serviceaccount:kuperator-system:collaset-controller",
		"operate.podopslifecycle.kusionstack.io/collaset"
	const lifecycle, other = "system:serviceaccount:kuperator-system:lifecycle-controller",
		"system:serviceaccount:team:other-controller"
	dryRun := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	for i, c := range []struct {
		by      string
		labels  map[string]string
		options metav1.DeleteOptions
		asked   bool
	}{
		{operator, map[string]string{mayOperate: "1"}, metav1.DeleteOptions{}, false},
		{operator, map[string]string{"operate.podopslifecycle.kusionstack.io/other": "1"}, metav1.DeleteOptions{}, true},
		{operator, nil, metav1.DeleteOptions{}, true},
		{other, map[string]string{mayOperate: "1"}, metav1.DeleteOptions{}, true},
		{operator, nil, dryRun, false},
		{lifecycle, nil, dryRun, false},
		{lifecycle, nil, metav1.DeleteOptions{}, true},
		{other, nil, dryRun, true},
	} {
		pod := s.runningPod(t, fmt.Sprintf("operated-%d", i), c.labels)
		before := calls(t, metrics)
		err := s.as(c.by).CoreV1().Pods(s.namespace).Delete(t.Context(), pod.Name, c.options)
		require.Equal(t, c.asked && len(c.options.DryRun) == 0, err != nil, "%s with %v: %v", c.by, c.labels, err)
		// An API server asks once more when it hears of a conflict.
		require.Equal(t, c.asked, calls(t, metrics)["/delete-pods"] > before["/delete-pods"], "%s with %v", c.by, c.labels)
	}
}
