package install

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/monitoring"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/localkube/binaries"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// prometheusObject asks the operator for a Prometheus that takes all ServiceMonitors and PrometheusRules.
const prometheusObject = `
apiVersion: monitoring.coreos.com/v1
kind: Prometheus
metadata: {name: main, namespace: monitoring}
spec:
  serviceAccountName: prometheus
  serviceMonitorSelector: {}
  serviceMonitorNamespaceSelector: {}
  ruleSelector: {}
  ruleNamespaceSelector: {}
`

// TestPrometheusOperator has the Prometheus operator make a configuration and files of rules of what the suite ships
// for it, and Prometheus scrape every component and evaluate every alert by them.
func TestPrometheusOperator(t *testing.T) {
	foreign(t)
	w := newWorld(t)
	w.namespaces(t, storyNamespace, "monitoring")
	w.runForeign(t, binaries.PrometheusOperator, []string{"--web.listen-address=127.0.0.1:0",
		"--feature-gates=StatusForConfigurationResources=true"}, "example/prometheus-operator-crd/*.yaml")
	w.kubectl(t, "create", "serviceaccount", "prometheus", "-n", "monitoring")
	w.kubectl(t, "create", "clusterrolebinding", "prometheus-finds-targets", "--clusterrole=view",
		"--serviceaccount=monitoring:prometheus")
	file := filepath.Join(t.TempDir(), "prometheus.yaml")
	require.NoError(t, os.WriteFile(file, []byte(prometheusObject), 0o600))
	w.kubectl(t, "apply", "--server-side", "-f", file)

	t.Run("chart, in a namespace of another name", func(t *testing.T) {
		w.restrict(t, "platform")
		i := w.release(t, "platform", "kuperator", "--set", "monitoring.prometheusOperator=true", "--set",
			"monitoring.runbooks=https://docs.example.com/runbooks")
		w.isMonitored(t, i.namespace, "https://docs.example.com/runbooks")
		i.uninstall(t)
	})
	t.Run("overlay", func(t *testing.T) {
		w.kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", deployDir(t, "prerequisites"))
		w.restrict(t, system)
		dir := kustomization(t, "", []string{"overlays/full"}, []string{"components/prometheus-operator"})
		w.kubectl(t, "apply", "--server-side", "--force-conflicts", "--validate=strict", "-k", dir)
		w.isMonitored(t, system, monitoring.RunbookBase)
		w.kubectl(t, "delete", "--wait", "-k", dir)
	})
}

// isMonitored runs every component of an installation, and Prometheus by what the operator made.
func (w *world) isMonitored(t *testing.T, namespace, runbooks string) {
	t.Helper()
	programs := w.start(t, namespace)
	require.Len(t, programs, len(monitoring.Programs()))
	pods := &corev1.PodList{}
	require.NoError(t, w.client.List(t.Context(), pods, client.InNamespace(namespace)))
	up := map[string]map[string]string{} // the labels of each Pod
	network := map[string]string{}
	for _, pod := range pods.Items {
		component, instance := pod.Labels["app.kubernetes.io/name"], net.JoinHostPort(pod.Status.PodIP, "8443")
		up[pod.Name] = map[string]string{"__name__": "up", "job": component, "namespace": namespace, "instance": instance,
			"service": component + "-metrics", "endpoint": "metrics", "pod": pod.Name, "container": component}
		network[instance] = net.JoinHostPort(loopback, strconv.Itoa(programs[component].ports.Numbers[1]))
	}
	set := workload.CollaSet(storyNamespace, "web", image1, 1)
	w.create(t, set)

	p := w.runPrometheus(t, w.generated(t, namespace, network))
	p.await(t, "Prometheus to be refused", "targets", func(s prometheusState) error {
		refused := 0
		for _, target := range s.ActiveTargets {
			if strings.Contains(target.LastError, "403 Forbidden") {
				refused++
			}
		}
		if refused != len(up) || len(s.ActiveTargets) != len(up) {
			return fmt.Errorf("%d Pods, %d targets: %+v", len(up), len(s.ActiveTargets), s.ActiveTargets)
		}
		return nil
	})
	// As docs/install.md has it.
	w.kubectl(t, "create", "clusterrolebinding", "prometheus-kuperator", "--clusterrole=kuperator-metrics-reader",
		"--serviceaccount=monitoring:prometheus")
	defer w.kubectl(t, "delete", "clusterrolebinding", "prometheus-kuperator")
	p.await(t, "every Pod", "query?query=up==1", func(s prometheusState) error {
		found := map[string]map[string]string{}
		for _, series := range s.Result {
			found[series.Metric["pod"]] = series.Metric
		}
		return same(up, found)
	})
	// Every series is of the job of a component, and of the workload's namespace, not of the component's.
	p.await(t, "what a dashboard selects", "query?query="+url.QueryEscape(
		`count by (job, namespace) (kuperator_collaset_state)`), func(s prometheusState) error {
		found := map[string]map[string]string{}
		for _, series := range s.Result {
			found[series.Metric["job"]] = series.Metric
		}
		return same(map[string]map[string]string{"collaset-controller": {"job": "collaset-controller",
			"namespace": storyNamespace}}, found)
	})
	p.await(t, "every alert", "rules", func(s prometheusState) error {
		want, found := map[string]string{}, map[string]string{}
		for _, alert := range monitoring.Alerts() {
			want[alert.Name] = "ok, " + runbooks + "/" + alert.Name + ".md"
		}
		for _, group := range s.Groups {
			for _, rule := range group.Rules {
				found[rule.Name] = rule.Health + ", " + rule.Annotations["runbook_url"]
			}
		}
		return same(want, found)
	})
	for _, kind := range []string{"servicemonitor", "prometheusrule"} {
		require.Equal(t, "True", w.kubectl(t, "get", kind, "kuperator", "-n", namespace, "-o",
			`jsonpath={.status.bindings[*].conditions[?(@.type=="Accepted")].status}`), kind)
	}
	w.remove(t, set)
}

func same(want, found any) error {
	if !reflect.DeepEqual(want, found) {
		return fmt.Errorf("there is %v, not %v", found, want)
	}
	return nil
}

// throughProxy is the URL of a proxy that leads connections to Pods to the processes that run in their place: the
// cluster has no network.
func throughProxy(t *testing.T, network map[string]string) string {
	t.Helper()
	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		to, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", network[r.Host])
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		defer to.Close()
		from, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			return
		}
		defer from.Close()
		_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
		go io.Copy(to, from)
		_, _ = io.Copy(from, to)
	}))
	t.Cleanup(proxy.Close)
	return proxy.URL
}

// generated writes the configuration and the rules that the operator made into a folder. What a Pod has is replaced:
// how to reach the API server and other Pods, and where token and rules are.
func (w *world) generated(t *testing.T, namespace string, network map[string]string) string {
	t.Helper()
	secret, rules := &corev1.Secret{}, &corev1.ConfigMap{}
	var config, scrape map[string]any
	await.Nil(t, "what the operator makes", func() error {
		for name, object := range map[string]client.Object{"prometheus-main": secret, "prometheus-main-rulefiles-0": rules} {
			if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "monitoring", Name: name}, object); err != nil {
				return err
			}
		}
		zipped, err := gzip.NewReader(bytes.NewReader(secret.Data["prometheus.yaml.gz"]))
		require.NoError(t, err)
		text, err := io.ReadAll(zipped)
		require.NoError(t, err)
		config = nil
		require.NoError(t, yaml.Unmarshal(text, &config))
		jobs, _ := config["scrape_configs"].([]any)
		if len(jobs) != 1 || len(rules.Data) != 1 {
			return fmt.Errorf("there are %d files of rules and\n%s", len(rules.Data), text)
		}
		scrape = jobs[0].(map[string]any)
		return same("serviceMonitor/"+namespace+"/kuperator/0", scrape["job_name"])
	})
	require.Equal(t, "https", scrape["scheme"])
	require.Equal(t, map[string]any{"insecure_skip_verify": true}, scrape["tls_config"])
	require.Equal(t, "/var/run/secrets/kubernetes.io/serviceaccount/token", scrape["bearer_token_file"])

	dir := t.TempDir()
	write := func(name, content string) string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		return filepath.Join(dir, name)
	}
	scrape["bearer_token_file"] = write("token", w.kubectl(t, "create", "token", "prometheus", "-n", "monitoring"))
	kubeconfig, err := w.cluster.ServiceAccountKubeconfig(t.Context(), "monitoring", "prometheus")
	require.NoError(t, err)
	scrape["kubernetes_sd_configs"].([]any)[0].(map[string]any)["kubeconfig_file"] = kubeconfig
	scrape["proxy_url"] = throughProxy(t, network)
	for _, content := range rules.Data {
		config["rule_files"] = []string{write("rules.yaml", content)}
	}
	text, err := yaml.Marshal(config)
	require.NoError(t, err)
	// As the config reloader does in the Pod.
	write("prometheus.yaml", strings.NewReplacer("$(SHARD)", "0", "$(POD_NAME)", "main-0").Replace(string(text)))
	return dir
}

// prometheus is the address of one.
type prometheus string

// prometheusState is what its API tells of targets, of rules, or of a query.
type prometheusState struct {
	ActiveTargets []struct{ ScrapeURL, LastError string }
	Groups        []struct {
		Rules []struct {
			Name, Health string
			Annotations  map[string]string
		}
	}
	Result []struct{ Metric map[string]string }
}

// runPrometheus runs one on what is in a folder. It ends at once if it does not understand that.
func (w *world) runPrometheus(t *testing.T, dir string) prometheus {
	t.Helper()
	ports, err := localkube.ReservePorts(1)
	require.NoError(t, err)
	t.Cleanup(ports.Release)
	address := net.JoinHostPort(loopback, strconv.Itoa(ports.Numbers[0]))
	w.runForeign(t, binaries.Prometheus, []string{"--config.file=" + filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address})
	return prometheus("http://" + address)
}

// await asks the API until the answer is right.
func (p prometheus) await(t *testing.T, what, path string, check func(prometheusState) error) {
	t.Helper()
	await.Nil(t, what, func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, string(p)+"/api/v1/"+path, nil)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		var answer struct{ Data prometheusState }
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
			return err
		}
		return check(answer.Data)
	})
}
