// Package deploy tests the manifests of deploy: every overlay renders and refers to nothing that is not there, and a real
// API server takes the whole suite under Pod Security "restricted".
package deploy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"kusionstack.io/kuperator/internal/localkube"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const (
	system   = "kuperator-system"
	deadline = 3 * time.Minute
	tick     = 100 * time.Millisecond
)

var components = []string{"collaset-controller", "podtransitionrule-controller", "lifecycle-controller", "resourceconsist-controller", "webhook-server"}

func deployDir(parts ...string) string {
	return filepath.Join(append([]string{"..", "..", "..", "deploy"}, parts...)...)
}

// render returns the objects of a kustomization.
func render(t *testing.T, dir string) []unstructured.Unstructured {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(testcluster.Assets(t), "kubectl"), "kustomize", dir)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	require.NoError(t, cmd.Run(), problems.String())
	require.Empty(t, problems.String(), "kustomize has nothing to complain about")
	var objects []unstructured.Unstructured
	for decoder := utilyaml.NewYAMLOrJSONDecoder(&out, 4096); ; {
		var object unstructured.Unstructured
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		require.NoError(t, err)
		objects = append(objects, object)
	}
}

// key is kind/name.
func key(object unstructured.Unstructured) string { return object.GetKind() + "/" + object.GetName() }

func as[T any](t *testing.T, object unstructured.Unstructured) T {
	t.Helper()
	var typed T
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &typed, true))
	return typed
}

func TestOverlays(t *testing.T) {
	const crd = "CustomResourceDefinition/"
	allCRDs := []string{crd + "collasets.apps.kusionstack.io", crd + "podtransitionrules.apps.kusionstack.io", crd + "resourcecontexts.apps.kusionstack.io"}
	tests := map[string]struct {
		components []string
		crds       []string
		replicas   int32
		args       []string
	}{
		"full":                   {components, allCRDs, 2, []string{"--log-format=json"}},
		"no-webhook":             {components[:4], allCRDs, 2, []string{"--log-format=json"}},
		"local":                  {components, allCRDs, 0, []string{"--log-format=json"}},
		"collaset-only":          {components[:1], []string{allCRDs[0], allCRDs[2]}, 2, []string{"--log-format=json", "--pod-ops-lifecycle=false"}},
		"lifecycle-only":         {components[2:3], nil, 2, []string{"--log-format=json"}},
		"podtransitionrule-only": {components[1:2], allCRDs[1:2], 2, []string{"--log-format=json"}},
		"resourceconsist-only":   {components[3:4], nil, 2, []string{"--log-format=json"}},
	}
	entries, err := os.ReadDir(deployDir("overlays"))
	require.NoError(t, err)
	for _, entry := range entries {
		require.Contains(t, tests, entry.Name(), "every overlay is tested")
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			byKey := map[string]unstructured.Unstructured{}
			var crds, deployments []string
			for _, object := range render(t, deployDir("overlays", name)) {
				require.NotContains(t, byKey, key(object), "an object occurs once")
				byKey[key(object)] = object
				switch object.GetKind() {
				case "CustomResourceDefinition":
					crds = append(crds, key(object))
				case "Deployment":
					deployments = append(deployments, object.GetName())
				}
				if namespace := object.GetNamespace(); namespace != "" {
					require.Equal(t, system, namespace, key(object))
				}
			}
			require.ElementsMatch(t, tc.crds, crds)
			require.ElementsMatch(t, tc.components, deployments)
			require.Equal(t, "restricted", byKey["Namespace/"+system].Object["metadata"].(map[string]any)["labels"].(map[string]any)["pod-security.kubernetes.io/enforce"])
			for _, component := range tc.components {
				d := as[appsv1.Deployment](t, byKey["Deployment/"+component])
				checkDeployment(t, d)
				require.Equal(t, tc.replicas, *d.Spec.Replicas)
				args := tc.args
				if component == "webhook-server" {
					args = append(slices.Clone(args), "--graceful-deletion", "--announce-services")
				}
				require.Equal(t, args, d.Spec.Template.Spec.Containers[0].Args)
				for _, needed := range []string{"ServiceAccount/", "ClusterRole/", "ClusterRoleBinding/", "PodDisruptionBudget/"} {
					require.Contains(t, byKey, needed+component)
				}
				require.Contains(t, byKey, "ClusterRoleBinding/"+component+"-auth-delegator")
				checkMetrics(t, d, as[corev1.Service](t, byKey["Service/"+component+"-metrics"]))
			}
			require.Contains(t, byKey, "ClusterRole/kuperator-metrics-reader")
			for _, object := range byKey {
				checkBinding(t, object, byKey)
				checkRole(t, object)
			}
		})
	}
}

func checkDeployment(t *testing.T, d appsv1.Deployment) {
	t.Helper()
	pod := d.Spec.Template.Spec
	require.Equal(t, d.Name, pod.ServiceAccountName)
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]
	require.Equal(t, "kuperator/"+d.Name+":v0.1.0", c.Image)
	require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
	require.Equal(t, "/readyz", c.ReadinessProbe.HTTPGet.Path)
	require.Equal(t, "/healthz", c.LivenessProbe.HTTPGet.Path)
	require.NotEmpty(t, c.Resources.Requests)
	require.NotEmpty(t, c.Resources.Limits)
	require.Equal(t, d.Spec.Selector.MatchLabels, pod.TopologySpreadConstraints[0].LabelSelector.MatchLabels)
	require.Greater(t, *pod.TerminationGracePeriodSeconds, int64(20), "more than --shutdown-timeout")
}

// checkMetrics: the Service leads to where the component serves by default, and nothing turns TLS off.
func checkMetrics(t *testing.T, d appsv1.Deployment, service corev1.Service) {
	t.Helper()
	require.Equal(t, []corev1.ServicePort{{Name: "metrics", Port: 8443, TargetPort: intstr.FromString("metrics")}}, service.Spec.Ports)
	require.Contains(t, d.Spec.Template.Spec.Containers[0].Ports, corev1.ContainerPort{Name: "metrics", ContainerPort: 8443})
	for _, arg := range d.Spec.Template.Spec.Containers[0].Args {
		require.NotContains(t, arg, "--metrics-secure")
	}
}

func checkBinding(t *testing.T, object unstructured.Unstructured, all map[string]unstructured.Unstructured) {
	t.Helper()
	if !strings.HasSuffix(object.GetKind(), "RoleBinding") {
		return
	}
	binding := as[rbacv1.RoleBinding](t, object)         // both kinds of binding have the same fields
	if binding.RoleRef.Name != "system:auth-delegator" { // which every cluster has
		require.Contains(t, all, binding.RoleRef.Kind+"/"+binding.RoleRef.Name, key(object))
	}
	for _, subject := range binding.Subjects {
		require.Equal(t, system, subject.Namespace)
		require.Contains(t, all, subject.Kind+"/"+subject.Name, key(object))
	}
}

// checkRole: least privilege. No component has wildcards, Secrets of others, or may give itself more.
func checkRole(t *testing.T, object unstructured.Unstructured) {
	t.Helper()
	if object.GetKind() != "Role" && object.GetKind() != "ClusterRole" {
		return
	}
	role := as[rbacv1.ClusterRole](t, object)
	for _, rule := range role.Rules {
		for _, words := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs} {
			require.NotContains(t, words, "*", key(object))
		}
		require.NotContains(t, rule.APIGroups, "rbac.authorization.k8s.io", key(object))
		if slices.Contains(rule.Resources, "secrets") || slices.Contains(rule.Resources, "leases") {
			require.Equal(t, "Role", object.GetKind(), "%s: in the component's own namespace only", key(object))
			require.True(t, len(rule.ResourceNames) > 0 || slices.Equal(rule.Verbs, []string{"create"}), "%s: by name only", key(object))
		}
	}
}

// renderWith returns the objects of the full overlay with a component.
func renderWith(t *testing.T, component string) []unstructured.Unstructured {
	t.Helper()
	dir := t.TempDir()
	// A kustomization may only refer to folders by relative paths.
	absolute, err := filepath.Abs(deployDir())
	require.NoError(t, err)
	resolved, err := filepath.EvalSymlinks(dir)
	require.NoError(t, err)
	to, err := filepath.Rel(resolved, absolute)
	require.NoError(t, err)
	content := "resources: [" + filepath.Join(to, "overlays", "full") + "]\ncomponents: [" + filepath.Join(to, "components", component) + "]\n"
	require.NoError(t, os.WriteFile(filepath.Join(resolved, "kustomization.yaml"), []byte(content), 0o600))
	return render(t, resolved)
}

func TestNetworkPolicyIsOptionalAndRenders(t *testing.T) {
	found := slices.ContainsFunc(renderWith(t, "network-policy"), func(o unstructured.Unstructured) bool { return o.GetKind() == "NetworkPolicy" })
	require.True(t, found)
}

func TestAlibabaCloudSLBIsOptionalAndRenders(t *testing.T) {
	for _, object := range renderWith(t, "alibaba-cloud-slb") {
		if key(object) != "Deployment/resourceconsist-controller" {
			continue
		}
		pod := as[appsv1.Deployment](t, object).Spec.Template.Spec
		require.Contains(t, pod.Containers[0].Args, "--adapters=endpointslice,alibaba-cloud-slb")
		require.Contains(t, pod.Containers[0].Args, "--alibaba-cloud-slb-credentials-dir="+pod.Containers[0].VolumeMounts[0].MountPath)
		require.Equal(t, "alibaba-cloud-slb", pod.Volumes[0].Secret.SecretName)
		require.Equal(t, *pod.SecurityContext.RunAsGroup, *pod.SecurityContext.FSGroup, "the key is readable for the program")
		return
	}
	t.Fatal("there is no resourceconsist-controller")
}

// TestCertManagerIsOptionalAndRenders: what cert-manager keeps is what the server mounts, and the server may touch no Secret.
func TestCertManagerIsOptionalAndRenders(t *testing.T) {
	byKey := map[string]unstructured.Unstructured{}
	for _, object := range renderWith(t, "cert-manager") {
		byKey[key(object)] = object
	}
	text := func(object string, path ...string) string {
		value, found, err := unstructured.NestedString(byKey[object].Object, path...)
		require.NoError(t, err)
		require.True(t, found, "%s %v", object, path)
		return value
	}
	pod := as[appsv1.Deployment](t, byKey["Deployment/webhook-server"]).Spec.Template.Spec
	require.Contains(t, pod.Containers[0].Args, "--webhook-cert-dir="+pod.Containers[0].VolumeMounts[0].MountPath)
	require.Equal(t, text("Certificate/webhook-server", "spec", "secretName"), pod.Volumes[0].Secret.SecretName)
	require.Equal(t, *pod.SecurityContext.RunAsGroup, *pod.SecurityContext.FSGroup, "the key is readable for the program")
	require.Equal(t, "webhook-server", text("Certificate/webhook-server", "spec", "issuerRef", "name"))
	require.Equal(t, text("Certificate/webhook-server-ca", "spec", "secretName"), text("Issuer/webhook-server", "spec", "ca", "secretName"))
	names, _, err := unstructured.NestedStringSlice(byKey["Certificate/webhook-server"].Object, "spec", "dnsNames")
	require.NoError(t, err)
	require.Contains(t, names, "webhook-server."+system+".svc", "by which API servers call")
	for _, configuration := range []string{"MutatingWebhookConfiguration/webhook-server", "ValidatingWebhookConfiguration/webhook-server"} {
		object := byKey[configuration]
		require.Equal(t, map[string]string{"cert-manager.io/inject-ca-from": system + "/webhook-server"}, object.GetAnnotations())
	}
	require.NotContains(t, byKey, "Role/webhook-server")
	require.NotContains(t, byKey, "RoleBinding/webhook-server")
	for _, object := range byKey {
		checkBinding(t, object, byKey)
		checkRole(t, object)
	}
}

// warnings fails the test when the API server warns.
type warnings struct{ t *testing.T }

func (w warnings) HandleWarningHeader(_ int, _ string, text string) {
	assert.Fail(w.t, "the API server warned: "+text)
}

func TestAnAPIServerTakesTheWholeSuite(t *testing.T) {
	cluster := testcluster.Start(t, localkube.Config{Name: "deploy", WithControllerManager: true})
	for range 2 { // an upgrade is another apply
		_, err := cluster.Kubectl(t.Context(), "apply", "--server-side", "-k", deployDir("overlays", "full"))
		require.NoError(t, err)
	}
	config := cluster.RESTConfig()
	config.WarningHandler = warnings{t}
	client := kubernetes.NewForConfigOrDie(config)

	t.Run("Pods of every Deployment pass Pod Security", func(t *testing.T) {
		for _, component := range components {
			d, err := client.AppsV1().Deployments(system).Get(t.Context(), component, metav1.GetOptions{})
			require.NoError(t, err)
			pod := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
			pod.GenerateName = component + "-"
			_, err = client.CoreV1().Pods(system).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			require.NoError(t, err)

			pod.Spec.Containers[0].SecurityContext.Capabilities = nil
			_, err = client.CoreV1().Pods(system).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			require.True(t, apierrors.IsForbidden(err), "Pod Security is on: %v", err)

			require.EventuallyWithT(t, func(c *assert.CollectT) {
				pods, err := client.CoreV1().Pods(system).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + component})
				require.NoError(c, err)
				require.Len(c, pods.Items, 2)
			}, deadline, tick, "the ReplicaSet of %s makes its Pods", component)
		}
	})

	t.Run("users of a namespace may use the suite, and only read its records", func(t *testing.T) {
		may := func(ctx context.Context, role, verb, resource string) bool {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: role + "-user",
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: "default", Verb: verb, Group: "apps.kusionstack.io", Resource: resource,
				},
			}}
			answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			require.NoError(t, err)
			return answer.Status.Allowed
		}
		for _, role := range []string{"view", "edit"} {
			_, err := client.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: role},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
				Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: role + "-user"}},
			}, metav1.CreateOptions{})
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool {
			return may(t.Context(), "edit", "create", "collasets") && may(t.Context(), "view", "list", "resourcecontexts") &&
				may(t.Context(), "edit", "get", "podtransitionrules") // what view has comes to edit by itself
		},
			deadline, tick, "the roles are joined to those of the cluster")
		require.False(t, may(t.Context(), "view", "create", "collasets"))
		require.False(t, may(t.Context(), "edit", "update", "resourcecontexts"))
	})

	t.Run("requests of the suite have a priority level of their own, its Leases that of leaders", func(t *testing.T) {
		uids := map[string]string{}
		for _, name := range []string{"kuperator", "kuperator-leases"} {
			schema, err := client.FlowcontrolV1().FlowSchemas().Get(t.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			uids[name] = string(schema.UID)
		}
		kubeconfig, err := cluster.ServiceAccountKubeconfig(t.Context(), system, "collaset-controller")
		require.NoError(t, err)
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		require.NoError(t, err)
		var seen string
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(request *http.Request) (*http.Response, error) {
				response, err := next.RoundTrip(request)
				if err == nil {
					seen = response.Header.Get("X-Kubernetes-PF-FlowSchema-UID")
				}
				return response, err
			})
		})
		own := kubernetes.NewForConfigOrDie(config)
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			_, err := own.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{Limit: 1})
			require.NoError(c, err)
			require.Equal(c, uids["kuperator"], seen)
			_, err = own.CoordinationV1().Leases(system).Get(t.Context(), "collaset-controller", metav1.GetOptions{})
			require.True(c, apierrors.IsNotFound(err), "allowed, and nobody leads yet: %v", err)
			require.Equal(c, uids["kuperator-leases"], seen)
		}, deadline, tick)
		_, err = own.CoordinationV1().Leases(system).Get(t.Context(), "lifecycle-controller", metav1.GetOptions{})
		require.True(t, apierrors.IsForbidden(err), "the Lease of another component: %v", err)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
