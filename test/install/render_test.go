package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const (
	system = "kuperator-system"
	keep   = "helm.sh/resource-policy"
)

var helmOnce = sync.OnceValues(func() (string, error) { return localkube.HelmAsset(context.Background(), os.Stderr) })

func deployDir(t testing.TB, parts ...string) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join(append([]string{"..", "..", "deploy"}, parts...)...))
	require.NoError(t, err)
	return dir
}

// helm runs helm, alone with this test's folders.
func helm(t testing.TB, args ...string) (string, error) {
	t.Helper()
	path, err := helmOnce()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), path, args...)
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "HELM_") && !strings.HasPrefix(variable, "KUBECONFIG=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	home := t.TempDir()
	cmd.Env = append(cmd.Env, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, problems.String())
	}
	return out.String(), nil
}

// key names an object.
func key(o *unstructured.Unstructured) string {
	return o.GetAPIVersion() + " " + o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
}

// decode returns the objects of a stream by key.
func decode(t testing.TB, stream string) map[string]*unstructured.Unstructured {
	t.Helper()
	objects := map[string]*unstructured.Unstructured{}
	for decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(stream), 4096); ; {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		require.NoError(t, err)
		if len(o.Object) == 0 {
			continue
		}
		if o.GetKind() == "FlowSchema" || o.GetKind() == "PriorityLevelConfiguration" ||
			strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy") {
			o.SetNamespace("") // kustomize takes them for namespaced; the API server drops it
		}
		require.NotContains(t, objects, key(o), "an object occurs once")
		objects[key(o)] = o
	}
}

// kustomization makes a kustomization in a folder of the test's own; resources and components are folders of deploy.
func kustomization(t testing.TB, namespace string, resources, components []string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	list := func(names []string) string {
		var paths []string
		for _, name := range names {
			path, err := filepath.Rel(dir, deployDir(t, name)) // absolute paths are not allowed
			require.NoError(t, err)
			paths = append(paths, path)
		}
		return "[" + strings.Join(paths, ", ") + "]"
	}
	content := "resources: " + list(resources) + "\ncomponents: " + list(components) + "\n"
	if namespace != "" {
		content += "namespace: " + namespace + "\n"
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(content), 0o600))
	return dir
}

// kustomize renders as kubectl does.
func kustomize(t testing.TB, dir string) map[string]*unstructured.Unstructured {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(testcluster.Assets(t), "kubectl"), "kustomize", dir)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	require.NoError(t, cmd.Run(), problems.String())
	require.Empty(t, problems.String(), "kustomize has nothing to complain about")
	return decode(t, out.String())
}

// chart renders as helm does.
func chart(t testing.TB, namespace string, args ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	out, err := helm(t, append([]string{"template", "kuperator", deployDir(t, "charts", "kuperator"), "--namespace",
		namespace}, args...)...)
	require.NoError(t, err)
	return decode(t, out)
}

// variant is the file of values that gives an overlay.
func variant(t testing.TB, overlay string) string {
	t.Helper()
	return deployDir(t, "charts", "kuperator", "variants", overlay+".yaml")
}

// requireSame compares what kustomize and helm render. Two differences are meant: Helm makes the namespace of a release
// itself, and CRDs carry the annotation that keeps them.
func requireSame(t *testing.T, kustomized, charted map[string]*unstructured.Unstructured) {
	t.Helper()
	require.NotEmpty(t, charted)
	for name, o := range kustomized {
		if o.GetKind() == "Namespace" {
			delete(kustomized, name)
		}
	}
	for name, o := range charted {
		if o.GetKind() == "CustomResourceDefinition" {
			annotations := o.GetAnnotations()
			require.Equal(t, "keep", annotations[keep], name)
			delete(annotations, keep)
			o.SetAnnotations(annotations)
		}
	}
	if diff := cmp.Diff(kustomized, charted); diff != "" {
		t.Errorf("the chart is not what the overlay is (-overlay +chart):\n%s", diff)
	}
}

func TestTheChartIsWhatTheOverlaysAre(t *testing.T) {
	entries, err := os.ReadDir(deployDir(t, "overlays"))
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	for _, entry := range entries {
		if entry.Name() == "local" {
			continue // for processes outside the cluster: there is no chart of it
		}
		require.Contains(t, stories, entry.Name())
		t.Run(entry.Name(), func(t *testing.T) {
			requireSame(t, kustomize(t, kustomization(t, "", []string{"prerequisites", "overlays/" + entry.Name()}, nil)),
				chart(t, system, "--values", variant(t, entry.Name())))
		})
	}
	t.Run("the defaults are overlay full", func(t *testing.T) {
		requireSame(t, kustomize(t, kustomization(t, "", []string{"prerequisites", "overlays/full"}, nil)), chart(t, system))
	})
	t.Run("in another namespace", func(t *testing.T) {
		kustomized := kustomize(t, kustomization(t, "platform", []string{"prerequisites", "overlays/ha"},
			[]string{"components/network-policy"}))
		for name, o := range kustomized {
			text, err := o.MarshalJSON()
			require.NoError(t, err)
			require.NotContains(t, string(text), system, name)
		}
		requireSame(t, kustomized, chart(t, "platform", "--values", variant(t, "ha"), "--set",
			"networkPolicy.restrictEgress=true"))
	})
}

func TestEachSwitchOfTheChartIsAComponent(t *testing.T) {
	for component, value := range map[string]string{
		"network-policy":       "networkPolicy.restrictEgress=true",
		"rule-webhook-secrets": "podtransitionruleController.webhookSecrets=true",
		"alibaba-cloud-slb":    "resourceconsistController.alibabaCloudSLB=true",
		"cert-manager":         "webhookServer.certManager=true",
		"no-webhook":           "webhookServer.enabled=false",
		"prometheus-operator":  "monitoring.prometheusOperator=true",
		"grafana-dashboards":   "monitoring.grafanaDashboards=true",
	} {
		t.Run(component, func(t *testing.T) {
			requireSame(t, kustomize(t, kustomization(t, "", []string{"prerequisites", "overlays/full"},
				[]string{"components/" + component})),
				chart(t, system, "--set", value))
		})
	}
}

func TestAllSwitchesOfTheChartTogether(t *testing.T) {
	kustomized := kustomize(t, kustomization(t, "", []string{"prerequisites", "overlays/namespace-scoped"},
		[]string{"components/network-policy", "components/rule-webhook-secrets", "components/alibaba-cloud-slb",
			"components/cert-manager"}))
	requireSame(t, kustomized, chart(t, system, "--values", variant(t, "namespace-scoped"), "--set",
		"networkPolicy.restrictEgress=true,podtransitionruleController.webhookSecrets=true,resourceconsistController.alibabaCloudSLB=true,webhookServer.certManager=true"))
}

func TestValuesOfTheChart(t *testing.T) {
	charted := chart(t, system, "--set",
		"image.repository=registry.example.com/kuperator,image.tag=v9,image.pullPolicy=Always,imagePullSecrets[0].name=key",
		"--set",
		"collasetController.extraArgs={--concurrency=50},collasetController.nodeSelector.pool=system,collasetController.podLabels.team=platform",
		"--set",
		"webhookServer.image=elsewhere/hooks@sha256:0000,crds.install=false,userRoles.create=false,flowControl.create=false,networkPolicy.create=false")
	for name, o := range charted {
		require.NotContains(t, []string{"CustomResourceDefinition", "FlowSchema", "PriorityLevelConfiguration",
			"NetworkPolicy"}, o.GetKind(), name)
		require.NotContains(t, o.GetName(), "kuperator-view")
	}
	pod := func(component string) map[string]any {
		o := charted["apps/v1 Deployment "+system+"/"+component]
		require.NotNil(t, o)
		template, found, err := unstructured.NestedMap(o.Object, "spec", "template")
		require.NoError(t, err)
		require.True(t, found)
		return template
	}
	template := pod("collaset-controller")
	require.Equal(t, "platform", template["metadata"].(map[string]any)["labels"].(map[string]any)["team"])
	spec := template["spec"].(map[string]any)
	require.Equal(t, map[string]any{"pool": "system"}, spec["nodeSelector"])
	require.Equal(t, []any{map[string]any{"name": "key"}}, spec["imagePullSecrets"])
	container := spec["containers"].([]any)[0].(map[string]any)
	require.Equal(t, "registry.example.com/kuperator/collaset-controller:v9", container["image"])
	require.Equal(t, "Always", container["imagePullPolicy"])
	require.Equal(t, []any{"--log-format=json", "--concurrency=50"}, container["args"])
	require.Equal(t, "elsewhere/hooks@sha256:0000",
		pod("webhook-server")["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)["image"])
}

func TestWrongValuesAreRefusedWithTheirNames(t *testing.T) {
	for value, want := range map[string]string{
		"colasetController.enabled=false":                      "additional properties 'colasetController' not allowed",
		"collasetController.replicas=two":                      "at '/collasetController/replicas': got string, want integer",
		"collasetController.replicas=-1":                       "at '/collasetController/replicas': minimum",
		"lifecycleController.enabled=perhaps":                  "at '/lifecycleController/enabled': got string, want boolean",
		"namespaces[0]=Team_A":                                 "at '/namespaces/0'",
		"namespaces=team-a":                                    "at '/namespaces': got string, want array",
		"image.pullPolicy=Sometimes":                           "at '/image/pullPolicy': value must be one of",
		"webhookServer.extraArgs[0]=graceful-deletion":         "at '/webhookServer/extraArgs/0'",
		"lifecycleController.gracefulDeletion=true":            "additional properties 'gracefulDeletion' not allowed",
		"resourceconsistController.resources=none":             "at '/resourceconsistController/resources': got string, want object",
		"imagePullSecrets[0]=registry":                         "at '/imagePullSecrets/0': got string, want object",
		"podtransitionruleController.tolerations.key=dedicate": "at '/podtransitionruleController/tolerations': got object, want array",
	} {
		t.Run(value, func(t *testing.T) {
			_, err := helm(t, "template", "kuperator", deployDir(t, "charts", "kuperator"), "--set", value)
			require.ErrorContains(t, err, want)
		})
	}
}

func TestHelmLint(t *testing.T) {
	entries, err := os.ReadDir(deployDir(t, "charts", "kuperator", "variants"))
	require.NoError(t, err)
	args := []string{"lint", "--strict", deployDir(t, "charts", "kuperator")}
	for _, entry := range entries {
		out, err := helm(t, append(args, "--values", deployDir(t, "charts", "kuperator", "variants", entry.Name()))...)
		require.NoError(t, err, out)
	}
}
