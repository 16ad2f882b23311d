// Package deploy tests the manifests of deploy: every overlay renders and refers to nothing that is not there, and a
// real API server takes the whole suite under Pod Security "restricted".
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
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const (
	system   = "kuperator-system"
	deadline = 3 * time.Minute
	tick     = 100 * time.Millisecond
)

var components = []string{"collaset-controller", "podtransitionrule-controller", "lifecycle-controller",
	"resourceconsist-controller", "operationjob-controller", "poddecoration-controller", "webhook-server"}

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
	shipped := []string{"--log-format=json"}
	tests := map[string]struct {
		components []string
		replicas   int32
		args       []string
	}{
		"full":                   {components, 2, shipped},
		"ha":                     {components, 3, shipped},
		"sharded":                {components, 3, shipped},
		"kuperator-v0.7":         {components, 2, shipped},
		"namespace-scoped":       {components, 2, append(shipped, "--namespaces=team-a,team-b")},
		"no-webhook":             {components[:6], 2, shipped},
		"local":                  {components, 0, shipped},
		"collaset-only":          {components[:1], 2, append(shipped, "--pod-ops-lifecycle=false")},
		"podtransitionrule-only": {components[1:2], 2, shipped},
		"lifecycle-only":         {components[2:3], 2, shipped},
		"resourceconsist-only":   {components[3:4], 2, shipped},
		"operationjob-only":      {components[4:5], 2, shipped},
		"poddecoration-only":     {components[5:6], 2, shipped},
		"webhook-only":           {components[6:], 2, shipped},
	}
	entries, err := os.ReadDir(deployDir("overlays"))
	require.NoError(t, err)
	for _, entry := range entries {
		require.Contains(t, tests, entry.Name(), "every overlay is tested")
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			byKey := map[string]unstructured.Unstructured{}
			var deployments []string
			for _, object := range render(t, deployDir("overlays", name)) {
				full := object.GetNamespace() + "/" + key(object)
				require.NotContains(t, byKey, full, "an object occurs once")
				byKey[full] = object
				require.NotContains(t, []string{"CustomResourceDefinition", "Namespace"}, object.GetKind(),
					"delete -k would take along what is in it")
				if object.GetKind() == "Deployment" {
					deployments = append(deployments, object.GetName())
				}
				if name != "namespace-scoped" {
					require.Contains(t, []string{system, ""}, object.GetNamespace(), key(object))
				}
			}
			require.ElementsMatch(t, tc.components, deployments)
			for _, component := range tc.components {
				d := as[appsv1.Deployment](t, byKey[system+"/Deployment/"+component])
				checkDeployment(t, d)
				require.Equal(t, tc.replicas, *d.Spec.Replicas)
				require.ElementsMatch(t, argsOf(component, name, tc.args), d.Spec.Template.Spec.Containers[0].Args)
				for _, needed := range []string{"/ClusterRole/", system + "/ServiceAccount/", system + "/PodDisruptionBudget/"} {
					require.Contains(t, byKey, needed+component)
				}
				require.Contains(t, byKey, "/ClusterRoleBinding/"+component+"-auth-delegator")
				checkMetrics(t, d, as[corev1.Service](t, byKey[system+"/Service/"+component+"-metrics"]))
				checkNetworkPolicy(t, as[networkingv1.NetworkPolicy](t, byKey[system+"/NetworkPolicy/"+component]), d)
				_, everywhere := byKey["/ClusterRoleBinding/"+component]
				require.Equal(t, name != "namespace-scoped", everywhere, "rights in all namespaces")
			}
			for _, object := range byKey {
				checkBinding(t, object, byKey)
				checkRole(t, object)
			}
		})
	}
}

// argsOf are the arguments that a component has in an overlay.
func argsOf(component, overlay string, common []string) []string {
	args := slices.Clone(common)
	withoutContracts := []string{"resourceconsist-controller", "operationjob-controller", "poddecoration-controller"}
	if overlay == "kuperator-v0.7" && !slices.Contains(withoutContracts, component) {
		args = append(args, "--compatibility=kuperator-v0.7")
	}
	switch {
	case component == "webhook-server" && overlay != "webhook-only":
		return append(args, "--graceful-deletion", "--announce-services")
	case component == "webhook-server":
		return args
	}
	if overlay == "ha" || overlay == "sharded" {
		args = append(args, "--leader-elect-lease-duration=15s", "--leader-elect-renew-deadline=10s",
			"--leader-elect-retry-period=2s")
	}
	if overlay == "sharded" {
		args = append(args, "--shards=8")
	}
	return args
}

// checkNetworkPolicy: every port that the Pods serve may be reached, and no other.
func checkNetworkPolicy(t *testing.T, policy networkingv1.NetworkPolicy, d appsv1.Deployment) {
	t.Helper()
	require.Equal(t, d.Spec.Selector.MatchLabels, policy.Spec.PodSelector.MatchLabels)
	require.Equal(t, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, policy.Spec.PolicyTypes)
	require.Len(t, policy.Spec.Ingress, 1)
	var served, open []string
	for _, port := range d.Spec.Template.Spec.Containers[0].Ports {
		served = append(served, port.Name)
	}
	for _, port := range policy.Spec.Ingress[0].Ports {
		open = append(open, port.Port.String())
	}
	require.ElementsMatch(t, served, open)
}

func TestPrerequisites(t *testing.T) {
	byKey := map[string]unstructured.Unstructured{}
	for _, object := range render(t, deployDir("prerequisites")) {
		byKey[key(object)] = object
		require.Contains(t, []string{"CustomResourceDefinition", "Namespace", "ClusterRole", "ValidatingAdmissionPolicy",
			"ValidatingAdmissionPolicyBinding"}, object.GetKind())
		checkRole(t, object)
	}
	require.Contains(t, byKey, "ClusterRole/kuperator-metrics-reader")
	for _, crd := range []string{"collasets", "operationjobs", "poddecorations", "podtransitionrules", "resourcecontexts"} {
		require.Contains(t, byKey, "CustomResourceDefinition/"+crd+".apps.kusionstack.io")
	}
	labels := byKey["Namespace/"+system].Object["metadata"].(map[string]any)["labels"].(map[string]any)
	require.Equal(t, "restricted", labels["pod-security.kubernetes.io/enforce"])
	require.Equal(t, "true", labels["kuperator.kusionstack.io/installation"], "webhooks leave it alone by this label")
}

func TestInNamedNamespacesEveryWebhookIsAskedAboutTheseOnly(t *testing.T) {
	found := 0
	for _, object := range render(t, deployDir("overlays", "namespace-scoped")) {
		if !strings.HasSuffix(object.GetKind(), "WebhookConfiguration") {
			continue
		}
		// The two kinds of configuration have the same fields here.
		for _, webhook := range as[admissionregistrationv1.ValidatingWebhookConfiguration](t,
			withoutMutating(object)).Webhooks {
			found++
			require.NotNil(t, webhook.NamespaceSelector, webhook.Name)
			require.Contains(t, webhook.NamespaceSelector.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpIn, Values: []string{"team-a", "team-b"},
			}, webhook.Name)
		}
	}
	require.Positive(t, found)
}

// withoutMutating drops the one field that a validating webhook lacks.
func withoutMutating(object unstructured.Unstructured) unstructured.Unstructured {
	for _, webhook := range object.Object["webhooks"].([]any) {
		delete(webhook.(map[string]any), "reinvocationPolicy")
	}
	return object
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
	require.Equal(t, []corev1.ServicePort{{Name: "metrics", Port: 8443, TargetPort: intstr.FromString("metrics")}},
		service.Spec.Ports)
	require.Contains(t, d.Spec.Template.Spec.Containers[0].Ports,
		corev1.ContainerPort{Name: "metrics", ContainerPort: 8443})
	for _, arg := range d.Spec.Template.Spec.Containers[0].Args {
		require.NotContains(t, arg, "--metrics-secure")
	}
}

// checkBinding: a binding binds what is there. The objects are named namespace/kind/name.
func checkBinding(t *testing.T, object unstructured.Unstructured, all map[string]unstructured.Unstructured) {
	t.Helper()
	if !strings.HasSuffix(object.GetKind(), "RoleBinding") {
		return
	}
	binding := as[rbacv1.RoleBinding](t, object) // both kinds of binding have the same fields
	if !strings.HasPrefix(binding.RoleRef.Name, "system:") {
		namespace := ""
		if binding.RoleRef.Kind == "Role" {
			namespace = binding.Namespace
		}
		require.Contains(t, all, namespace+"/"+binding.RoleRef.Kind+"/"+binding.RoleRef.Name, key(object))
	}
	for _, subject := range binding.Subjects {
		require.Equal(t, system, subject.Namespace)
		require.Contains(t, all, subject.Namespace+"/"+subject.Kind+"/"+subject.Name, key(object))
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
			require.True(t, len(rule.ResourceNames) > 0 || slices.Equal(rule.Verbs, []string{"create"}), "%s: by name only",
				key(object))
		}
	}
}

// renderWith returns the objects of the full overlay, and of further folders of deploy, with a component.
func renderWith(t *testing.T, component string, further ...string) []unstructured.Unstructured {
	t.Helper()
	dir := t.TempDir()
	// A kustomization may only refer to folders by relative paths.
	absolute, err := filepath.Abs(deployDir())
	require.NoError(t, err)
	resolved, err := filepath.EvalSymlinks(dir)
	require.NoError(t, err)
	to, err := filepath.Rel(resolved, absolute)
	require.NoError(t, err)
	resources := []string{filepath.Join(to, "overlays", "full")}
	for _, resource := range further {
		resources = append(resources, filepath.Join(to, resource))
	}
	content := "resources: [" + strings.Join(resources, ", ") + "]\ncomponents: [" + filepath.Join(to, "components",
		component) + "]\n"
	require.NoError(t, os.WriteFile(filepath.Join(resolved, "kustomization.yaml"), []byte(content), 0o600))
	return render(t, resolved)
}

func TestNetworkPolicyIsOptionalAndRenders(t *testing.T) {
	found := slices.ContainsFunc(renderWith(t, "network-policy"),
		func(o unstructured.Unstructured) bool { return o.GetKind() == "NetworkPolicy" })
	require.True(t, found)
}

func TestAlibabaCloudSLBIsOptionalAndRenders(t *testing.T) {
	for _, object := range renderWith(t, "alibaba-cloud-slb") {
		if key(object) != "Deployment/resourceconsist-controller" {
			continue
		}
		pod := as[appsv1.Deployment](t, object).Spec.Template.Spec
		require.Contains(t, pod.Containers[0].Args, "--adapters=endpointslice,alibaba-cloud-slb")
		require.Contains(t, pod.Containers[0].Args,
			"--alibaba-cloud-slb-credentials-dir="+pod.Containers[0].VolumeMounts[0].MountPath)
		require.Equal(t, "alibaba-cloud-slb", pod.Volumes[0].Secret.SecretName)
		require.Equal(t, *pod.SecurityContext.RunAsGroup, *pod.SecurityContext.FSGroup, "the key is readable for the program")
		return
	}
	t.Fatal("there is no resourceconsist-controller")
}

func TestProtocolGuardTakesRulesFromTheRoleEdit(t *testing.T) {
	byKey := map[string]unstructured.Unstructured{}
	for _, object := range renderWith(t, "protocol-guard", "prerequisites") {
		byKey[key(object)] = object
	}
	for _, needed := range []string{"ValidatingAdmissionPolicy/kuperator-protocol",
		"ValidatingAdmissionPolicyBinding/kuperator-protocol",
		"ValidatingAdmissionPolicy/kuperator-protocol-templates",
		"ValidatingAdmissionPolicyBinding/kuperator-protocol-templates",
		"ValidatingAdmissionPolicy/kuperator-protocol-decorations",
		"ValidatingAdmissionPolicyBinding/kuperator-protocol-decorations", "ClusterRole/kuperator-participant"} {
		require.Contains(t, byKey, needed)
	}
	for _, rule := range as[rbacv1.ClusterRole](t, byKey["ClusterRole/kuperator-edit"]).Rules {
		require.NotContains(t, rule.Resources, "podtransitionrules")
	}
}

// TestCertManagerIsOptionalAndRenders: what cert-manager keeps is what the server mounts, and the server may touch no
// Secret.
func TestCertManagerIsOptionalAndRenders(t *testing.T) {
	byKey, all := map[string]unstructured.Unstructured{}, map[string]unstructured.Unstructured{}
	for _, object := range renderWith(t, "cert-manager") {
		byKey[key(object)] = object
		all[object.GetNamespace()+"/"+key(object)] = object
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
	require.Equal(t, text("Certificate/webhook-server-ca", "spec", "secretName"),
		text("Issuer/webhook-server", "spec", "ca", "secretName"))
	names, _, err := unstructured.NestedStringSlice(byKey["Certificate/webhook-server"].Object, "spec", "dnsNames")
	require.NoError(t, err)
	require.Contains(t, names, "webhook-server."+system+".svc", "by which API servers call")
	for _, configuration := range []string{"MutatingWebhookConfiguration/webhook-server",
		"ValidatingWebhookConfiguration/webhook-server"} {
		object := byKey[configuration]
		require.Equal(t, map[string]string{"cert-manager.io/inject-ca-from": system + "/webhook-server"},
			object.GetAnnotations())
	}
	require.NotContains(t, byKey, "Role/webhook-server")
	require.NotContains(t, byKey, "RoleBinding/webhook-server")
	for _, object := range all {
		checkBinding(t, object, all)
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
		for _, folder := range []string{"prerequisites", "overlays/full"} {
			_, err := cluster.Kubectl(t.Context(), "apply", "--server-side", "-k", deployDir(folder))
			require.NoError(t, err)
		}
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
			_, err = client.CoreV1().Pods(system).Create(t.Context(), pod,
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			require.NoError(t, err)

			pod.Spec.Containers[0].SecurityContext.Capabilities = nil
			_, err = client.CoreV1().Pods(system).Create(t.Context(), pod,
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			require.True(t, apierrors.IsForbidden(err), "Pod Security is on: %v", err)

			require.EventuallyWithT(t, func(c *assert.CollectT) {
				pods, err := client.CoreV1().Pods(system).List(t.Context(),
					metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + component})
				require.NoError(c, err)
				require.Len(c, pods.Items, 2)
			}, deadline, tick, "the ReplicaSet of %s makes its Pods", component)
		}
	})

	t.Run("each token can do what the manifests say, and no more", func(t *testing.T) { checkSelfReviews(t, cluster) })

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
				may(t.Context(), "edit", "create", "operationjobs") && may(t.Context(), "view", "get", "operationjobs") &&
				may(t.Context(), "edit", "create", "poddecorations") && may(t.Context(), "view", "get", "poddecorations") &&
				may(t.Context(), "edit", "get", "podtransitionrules") // what view has comes to edit by itself
		},
			deadline, tick, "the roles are joined to those of the cluster")
		require.False(t, may(t.Context(), "view", "create", "collasets"))
		require.False(t, may(t.Context(), "view", "create", "operationjobs"))
		require.False(t, may(t.Context(), "edit", "update", "operationjobs/status"))
		require.False(t, may(t.Context(), "view", "create", "poddecorations"))
		require.False(t, may(t.Context(), "edit", "update", "poddecorations/status"))
		require.False(t, may(t.Context(), "edit", "update", "resourcecontexts"))
	})

	t.Run("requests of the suite have a priority level of their own, its Leases that of leaders", func(t *testing.T) {
		uids := map[string]string{}
		for _, name := range []string{"kuperator", "kuperator-leases"} {
			schema, err := client.FlowcontrolV1().FlowSchemas().Get(t.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			uids[name] = string(schema.UID)
		}
		config, err := cluster.ServiceAccountConfig(t.Context(), system, "collaset-controller")
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
