package bench

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// podWebhook is the one that sees new managed Pods.
const podWebhook = "pods.webhook-server.kusionstack.io"

// BenchmarkWebhook asks webhook-server about new Pods at a constant rate, as the API server asks, whether or not
// earlier answers have come. Then it counts how often the API server asks about Pods that are not managed: it fails
// if that is not never.
func BenchmarkWebhook(b *testing.B) {
	rate := numbers(b, "BENCH_RATE", "500")[0]
	window, err := time.ParseDuration(fromEnvironment("BENCH_WINDOW", "30s"))
	require.NoError(b, err, "BENCH_WINDOW is a duration")
	a := newArenaOf(b, suite.Config{Components: []string{suite.Webhook}}, fakekubelet.Options{})
	ask, url := a.webhookClient()
	review := a.review()
	for range 50 { // connections, and what is made once
		require.NoError(b, post(ask, url, review))
	}
	var mu sync.Mutex
	var took []float64
	var wg sync.WaitGroup
	cpu := a.cpu()[suite.Webhook]
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	begin := time.Now()
	for sent := 0; time.Since(begin) < window; {
		<-tick.C
		for ; float64(sent) < time.Since(begin).Seconds()*float64(rate); sent++ { // a tick may come late
			due := begin.Add(time.Duration(sent) * time.Second / time.Duration(rate))
			wg.Go(func() {
				if err := post(ask, url, review); err != nil {
					b.Errorf("asking webhook-server: %v", err)
				}
				ms := time.Since(due).Seconds() * 1e3
				mu.Lock()
				defer mu.Unlock()
				took = append(took, ms)
			})
		}
	}
	wg.Wait()
	slices.Sort(took)
	of := map[string]float64{"rate": float64(len(took)) / window.Seconds()}
	note := fmt.Sprintf("%d admissions, of which this client's work is a part", len(took))
	a.result(benchresult.Figure{Goal: "P18", Name: "admission of a managed Pod at 500/s, p50", Params: of,
		Values: []float64{quantile(took, .5)}, Note: note})
	a.result(benchresult.Figure{Goal: "P18", Name: "admission of a managed Pod at 500/s, p99", Params: of,
		Values: []float64{quantile(took, .99)}, Note: note})
	a.result(benchresult.Figure{Name: "CPU of webhook-server", Unit: "ms/admission", Params: of,
		Values: []float64{(a.cpu()[suite.Webhook] - cpu) * 1e3 / float64(len(took))}})
	a.result(benchresult.Figure{Name: "RSS of webhook-server", Unit: "MB", Params: of,
		Values: []float64{a.resident(suite.Webhook, "VmRSS")}})
	a.unmanaged(numbers(b, "BENCH_SIZES", "200")[0])
	require.NoError(b, a.suite.Died())
}

// webhookClient is as the configuration tells the API server to ask.
func (a arena) webhookClient() (ask *http.Client, url string) {
	config, err := a.pods.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(a.Context(), suite.Webhook,
		metav1.GetOptions{})
	require.NoError(a, err)
	for _, w := range config.Webhooks {
		if w.Name != podWebhook {
			continue
		}
		require.NotNil(a, w.ClientConfig.URL)
		roots := x509.NewCertPool()
		require.True(a, roots.AppendCertsFromPEM(w.ClientConfig.CABundle))
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			MaxIdleConnsPerHost: 100}
		a.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport, Timeout: time.Minute}, *w.ClientConfig.URL
	}
	a.Fatalf("there is no webhook %s", podWebhook)
	return nil, ""
}

// review is what the API server asks about a new managed Pod.
func (a arena) review() []byte {
	pod := foreignPod("web")
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.Namespace = metav1.NamespaceDefault
	pod.Labels[appsv1alpha1.ControlLabel] = appsv1alpha1.ControlValue
	raw, err := json.Marshal(pod)
	require.NoError(a, err)
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "bench", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Name:     "web", Namespace: metav1.NamespaceDefault, Operation: admissionv1.Create,
			Object: runtime.RawExtension{Raw: raw},
		},
	})
	require.NoError(a, err)
	return body
}

// post is nil if the Pod was admitted with changes.
func post(ask *http.Client, url string, review []byte) error {
	answer, err := ask.Post(url, "application/json", bytes.NewReader(review)) //nolint:noctx // it has a timeout
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	var reviewed admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &reviewed); err != nil {
		return fmt.Errorf("%s: %w", answer.Status, err)
	}
	if r := reviewed.Response; r == nil || !r.Allowed || len(r.Patch) == 0 {
		return fmt.Errorf("%s: a new managed Pod gets its readiness gate, this one got %s", answer.Status, body)
	}
	return nil
}

// unmanaged has Pods created, written and deleted that are not managed, and as many that are.
func (a arena) unmanaged(pods int) {
	namespace := a.namespace("admission")
	calls := func() float64 {
		metrics, err := a.pods.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(a.Context())
		require.NoError(a, err)
		return metricSum(string(metrics), "apiserver_admission_webhook_admission_duration_seconds_count",
			`webhook-server.kusionstack.io"`)
	}
	life := func(kind string, labels map[string]string) float64 {
		before := calls()
		a.inFlight(numbered(kind+"-", pods), func(name string) error {
			pod := foreignPod(name)
			for key, value := range labels {
				pod.Labels[key] = value
			}
			if _, err := a.pods.CoreV1().Pods(namespace).Create(a.Context(), pod, metav1.CreateOptions{}); err != nil {
				return err
			}
			if err := a.write(namespace, name, labelled(map[string]any{"step": "changed"})); err != nil {
				return err
			}
			if err := a.write(namespace, name, `{"status":{"phase":"Running"}}`, "status"); err != nil {
				return err
			}
			zero := int64(0)
			return a.pods.CoreV1().Pods(namespace).Delete(a.Context(), name,
				metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{}})
		})
		return calls() - before
	}
	others := life("other", nil)
	managed := life("managed", map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue})
	of := map[string]float64{"pods": float64(pods)}
	a.result(benchresult.Figure{Goal: "P18", Name: "webhook calls for Pods that are not managed", Params: of,
		Values: []float64{others},
		Note:   "each created, labelled, its status written, deleted"})
	a.result(benchresult.Figure{Name: "webhook calls for the life of a managed Pod", Unit: "calls/Pod", Params: of,
		Values: []float64{managed / float64(pods)},
		Note:   "created, labelled, its status written, deleted at once"})
	if others > 0 {
		a.Errorf("the API server asked webhook-server %.0f times about Pods that are not managed", others)
	}
	if managed == 0 {
		a.Errorf("the API server never asked about managed Pods: nothing was counted")
	}
}

// BenchmarkSize builds the programs as they are shipped and looks at their size.
func BenchmarkSize(b *testing.B) {
	a := arena{B: b, results: benchresult.ForTest(b, root), began: time.Now()}
	folder := b.TempDir()
	build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o",
		folder+string(filepath.Separator), "./cmd/...")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(b, err, "%s", out)
	most, who := 0.0, ""
	for _, name := range suite.Components() {
		info, err := os.Stat(filepath.Join(folder, name))
		require.NoError(b, err)
		size := float64(info.Size()) / 1e6
		a.result(benchresult.Figure{Name: "size of the binary", Unit: "MB", Series: name, Values: []float64{size}})
		if size > most {
			most, who = size, name
		}
	}
	a.result(benchresult.Figure{Goal: "P23", Name: "largest binary", Values: []float64{most}, Note: who})
}
