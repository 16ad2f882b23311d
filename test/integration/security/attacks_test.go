package security

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const victims = 3

// victim is a tenant with a workload, a rule that lets one Pod go at a time, and traffic.
func (w *world) victim(t *testing.T) (namespace string) {
	t.Helper()
	namespace = w.namespace(t)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web",
			Labels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	for _, object := range []client.Object{service, workload.Rule(namespace, "web", "1"),
		workload.CollaSet(namespace, "web", image1, victims)} {
		require.NoError(t, w.admin.Create(t.Context(), object))
	}
	w.serving(t, namespace, "web", victims, image1)
	return namespace
}

// budget waits until the victim's rule counts its own Pods, all of them in service, and no other Pods.
func (w *world) budget(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, func(c *assert.CollectT) {
		var r appsv1alpha1.PodTransitionRule
		require.NoError(c, w.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "web"}, &r))
		require.Equal(c, [4]int32{victims, victims, 0, 0},
			[4]int32{int32(r.Status.Desired), int32(r.Status.Available), int32(r.Status.Granted), int32(r.Status.Blocked)})
		require.Empty(c, r.Status.Grants)
	}, "the victim's budget is whole")
}

// rollOut updates the victim's workload, which has to come to its end whatever the tenant does.
func (w *world) rollOut(t *testing.T, namespace string) {
	t.Helper()
	set := workload.CollaSet(namespace, "web", image1, 0)
	body := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":%q}]}}}}`, image2)
	require.NoError(t, w.admin.Patch(t.Context(), set, client.RawPatch(types.MergePatchType, []byte(body))))
	w.serving(t, namespace, "web", victims, image2)
}

// pod is one of the tenant's own, labelled app=web as the victim's are.
func pod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{"app": "web", appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image1}}},
	}
}

// TestATenantCannotReachIntoAnotherNamespace tries directly what the API server has to refuse.
func TestATenantCannotReachIntoAnotherNamespace(t *testing.T) {
	w := everything(t)
	victim := w.victim(t)
	mallory := w.tenant(t, w.namespace(t), "edit", "kuperator-operate")
	target := &w.pods(t, t, victim, "web")[0]
	patch := func(object client.Object, body string) error {
		return mallory.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(body)))
	}
	named := func(object client.Object, namespace, name string) client.Object {
		object.SetNamespace(namespace)
		object.SetName(name)
		return object
	}
	status := func(object client.Object, body string) error {
		return mallory.Status().Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(body)))
	}
	for what, err := range map[string]error{
		"mark a Pod for deletion": patch(target.DeepCopy(),
			`{"metadata":{"labels":{"collaset.kusionstack.io/to-delete":"1"}}}`),
		"permit an operation": patch(target.DeepCopy(),
			`{"metadata":{"labels":{"operate.podopslifecycle.kusionstack.io/collaset":"1"}}}`),
		"excuse a Pod from its rule": patch(target.DeepCopy(),
			`{"metadata":{"annotations":{"podtransitionrule.kusionstack.io/skip-rule-conditions":"{\"skipRules\":[\"available\"]}"}}}`),
		"take a protection finalizer": patch(target.DeepCopy(), `{"metadata":{"finalizers":null}}`),
		"say that a Pod serves":       status(target.DeepCopy(), `{"status":{"conditions":[]}}`),
		"forge a grant":               status(workload.Rule(victim, "web", "1"), `{"status":{"grants":[]}}`),
		"loosen a rule":               patch(workload.Rule(victim, "web", "1"), `{"spec":{"rules":[]}}`),
		"delete a rule":               mallory.Delete(t.Context(), workload.Rule(victim, "web", "1")),
		"change instance IDs": patch(named(&appsv1alpha1.ResourceContext{}, victim, "web"),
			`{"spec":{"contexts":[]}}`),
		"change a revision":                 patch(named(&appsv1.ControllerRevision{}, victim, "web"), `{"revision":9}`),
		"take the control label of traffic": patch(named(&corev1.Service{}, victim, "web"), `{"metadata":{"labels":null}}`),
		"freeze it": patch(named(&corev1.Namespace{}, "", victim),
			`{"metadata":{"annotations":{"podopslifecycle.kusionstack.io/freeze":"1"}}}`),
		"freeze the cluster": patch(named(&corev1.Namespace{}, "", suite.Namespace),
			`{"metadata":{"annotations":{"podopslifecycle.kusionstack.io/freeze-cluster":"1"}}}`),
		"read the webhooks' key": mallory.Get(t.Context(),
			client.ObjectKey{Namespace: suite.Namespace, Name: "webhook-server-certs"}, &corev1.Secret{}),
	} {
		assert.True(t, apierrors.IsForbidden(err), "%s: %v", what, err)
	}
	w.budget(t, victim)
}

// TestATenantsObjectsDoNotCountElsewhere has a tenant label, forge and share all it may in its own namespace under
// the names that the victim uses.
func TestATenantsObjectsDoNotCountElsewhere(t *testing.T) {
	w := everything(t)
	victim, own := w.victim(t), w.namespace(t)
	mallory := w.tenant(t, own, "edit")

	t.Log("a rule that would hold or free everything, of the same name and the same selector")
	frees, holds := workload.Rule(own, "web", "1000"), workload.Rule(own, "holds", "0")
	holds.Spec.Selector = &metav1.LabelSelector{}
	holds.Spec.MirrorPodDisruptionBudget = true

	t.Log("a Pod that says of itself that it may be operated on, and is held for ever")
	forged := pod(own, "web-0")
	for _, key := range []string{podops.OperatingPrefix, podops.OperationTypePrefix, podops.PreCheckedPrefix,
		podops.PreparingPrefix, podops.OperatePrefix} {
		forged.Labels[key+"/collaset"] = "1"
	}
	forged.Labels[podops.PermissionPrefix+"/1"] = "1"
	forged.Labels[podops.ServiceAvailableLabel] = "1"
	forged.Finalizers = []string{resourceconsist.Finalizer("web")}

	t.Log(
		"a Pod that waits for a Service which may or may not be in the victim's namespace, to find out, and for one of its own")
	hidden, absent := resourceconsist.EmployerKey("Service", client.ObjectKey{Namespace: victim, Name: "hidden"}),
		resourceconsist.EmployerKey("Service", client.ObjectKey{Namespace: own, Name: "absent"})
	curious := pod(own, "curious")
	curious.Labels["app"] = "curious"
	curious.Annotations = map[string]string{podops.AvailableConditionsAnnotation: fmt.Sprintf(
		`{"expectedFinalizers":{%q:%q,%q:%q}}`,
		hidden, resourceconsist.Finalizer("hidden"), absent, resourceconsist.Finalizer("absent"))}

	t.Log("a CollaSet that uses a pool of the victim's name, and a Service that selects the same labels")
	shares := workload.CollaSet(own, "web2", image1, 2)
	shares.Spec.ScaleStrategy.Context = "web"
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: "web",
			Labels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	pool := client.ObjectKey{Namespace: victim, Name: "web"}
	var before, after appsv1alpha1.ResourceContext
	require.NoError(t, w.admin.Get(t.Context(), pool, &before))
	for _, object := range []client.Object{frees, holds, forged, curious, shares, service} {
		require.NoError(t, mallory.Create(t.Context(), object))
	}
	eventually(t, func(c *assert.CollectT) {
		require.Len(c, w.pods(c, t, own, "web2"), 2)
		var evaluated appsv1alpha1.PodTransitionRule
		require.NoError(c, w.admin.Get(t.Context(), client.ObjectKeyFromObject(holds), &evaluated))
		require.True(c, meta.IsStatusConditionTrue(evaluated.Status.Conditions, "Ready"))
		require.Empty(c, evaluated.Status.Grants)
	}, "the suite has taken notice of all of it")
	w.budget(t, victim)
	require.NoError(t, w.admin.Get(t.Context(), pool, &after))
	require.Equal(t, before.Spec, after.Spec)
	w.rollOut(t, victim)

	eventually(t, func(c *assert.CollectT) {
		require.NoError(c, w.admin.Get(t.Context(), client.ObjectKeyFromObject(curious), curious))
		require.NotContains(c, curious.Annotations[podops.AvailableConditionsAnnotation], absent)
		require.NotContains(c, curious.Annotations[podops.AvailableConditionsAnnotation], hidden)
	}, "the Pod waits for neither, whether it exists or not: another namespace's Services employ nobody here")
	t.Log("nobody looked into the victim's namespace on the tenant's behalf")
	requests, err := w.Requests(time.Time{})
	require.NoError(t, err)
	for _, r := range requests {
		assert.False(t, r.Component() == suite.Lifecycle && r.Resource == "services" && r.Namespace == victim, "%s", r)
	}
}

// TestATenantsWebhooksReachNothingTheyShouldNot: rules are the one place where a tenant names an address.
func TestATenantsWebhooksReachNothingTheyShouldNot(t *testing.T) {
	w := everything(t)
	own := w.namespace(t)
	mallory := w.tenant(t, own, "edit")
	var reached atomic.Int64
	internal := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(internal.Close)
	port := internal.URL[strings.LastIndex(internal.URL, ":"):]
	tests := map[string]struct{ url, secret, want string }{
		"loopback":                {url: "http://127.0.0.1" + port, want: "127.0.0.1"},
		"the-api-server":          {url: w.RESTConfig().Host + "/api/v1/secrets", want: "127.0.0.1"},
		"a-name-for-loopback":     {url: "http://localhost" + port, want: "localhost"},
		"loopback-in-ipv6":        {url: "http://[::ffff:127.0.0.1]" + port, want: "127.0.0.1"},
		"nowhere":                 {url: "http://0.0.0.0" + port, want: "0.0.0.0"},
		"metadata":                {url: "http://169.254.169.254/latest/meta-data/", want: "169.254.169.254"},
		"metadata-in-ipv6":        {url: "http://[fd00:ec2::254]/", want: "fd00:ec2::254"},
		"a-secret":                {url: "https://192.0.2.1/", secret: "mine", want: "may not read Secret"},
		"a-secret-somewhere-else": {url: "https://192.0.2.1/", secret: "..", want: "secretName"},
	}
	require.NoError(t, mallory.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: "mine"},
			StringData: map[string]string{"token": "t"}}))
	for name, tc := range tests {
		err := mallory.Create(t.Context(), asks(own, name, tc.url, tc.secret))
		if tc.secret == ".." {
			require.ErrorContains(t, err, tc.want, "refused by admission")
			delete(tests, name)
			continue
		}
		require.NoError(t, err)
		target := pod(own, name)
		target.Labels["app"] = name
		target.Labels[appsv1alpha1.ToDeleteLabel] = "1"
		target.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}
		require.NoError(t, mallory.Create(t.Context(), target))
	}
	for name, tc := range tests {
		eventually(t, func(c *assert.CollectT) {
			var r appsv1alpha1.PodTransitionRule
			require.NoError(c, w.admin.Get(t.Context(), client.ObjectKey{Namespace: own, Name: name}, &r))
			said, err := json.Marshal(r.Status)
			require.NoError(c, err)
			require.Contains(c, string(said), tc.want)
			require.Equal(c, int32(1), int32(r.Status.Blocked), "%s", said)
		}, name+" is not asked, and the Pod does not pass for that")
	}
	require.Zero(t, reached.Load())
	requests, err := w.Requests(time.Time{})
	require.NoError(t, err)
	for _, r := range requests {
		assert.False(t, r.User == "system:anonymous" && r.Resource == "secrets", "%s", r)
		assert.False(t, r.Component() == suite.PodTransitionRule && r.Resource == "secrets" && r.OK(), "%s", r)
	}
}

// TestATenantsFloodStopsNobodyElse has a tenant make what is absurd, much, large and malformed.
func TestATenantsFloodStopsNobodyElse(t *testing.T) {
	w := everything(t)
	victim, own := w.victim(t), w.namespace(t)
	mallory := w.tenant(t, own, "edit")
	// as an administrator has it
	_, err := w.clients.CoreV1().ResourceQuotas(own).Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"pods": resource.MustParse("30")}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	pids := w.Processes()

	huge := strings.Repeat("x", 200<<10)
	for n := range 10 {
		p := pod(own, fmt.Sprintf("malformed-%d", n))
		p.Annotations = map[string]string{
			podops.AvailableConditionsAnnotation: `{"expectedFinalizers":` + huge,
			podops.SkipRulesAnnotation:           `{"skipRules":[`,
			podops.DeadlinesAnnotation:           `{"Preparing":{"after":"-1s","policy":"Whatever"}}`,
		}
		for m := range 100 {
			p.Labels[fmt.Sprintf("%s/id-%d", podops.OperatingPrefix, m)] = "not-a-time"
		}
		require.NoError(t, mallory.Create(t.Context(), p))
	}
	// After the Pods above, which need room in the quota: it takes all that is left.
	require.NoError(t, mallory.Create(t.Context(), workload.CollaSet(own, "absurd", image1, math.MaxInt32)))
	for n := range 40 {
		r := asks(own, fmt.Sprintf("asks-%d", n), "http://127.0.0.1:1/", "")
		r.Spec.Selector = &metav1.LabelSelector{}
		require.NoError(t, mallory.Create(t.Context(), r))
		set := workload.CollaSet(own, fmt.Sprintf("set-%d", n), image1, 1)
		set.Spec.HistoryLimit = ptr.To[int32](math.MaxInt32)
		require.NoError(t, mallory.Create(t.Context(), set))
	}
	w.rollOut(t, victim)
	w.budget(t, victim)
	require.Equal(t, pids, w.Processes(), "no component has died")
	require.NoError(t, w.Died())

	require.NoError(t, w.admin.DeleteAllOf(context.WithoutCancel(t.Context()), &appsv1alpha1.PodTransitionRule{},
		client.InNamespace(own)))
	require.NoError(t, w.admin.DeleteAllOf(context.WithoutCancel(t.Context()), &appsv1alpha1.CollaSet{},
		client.InNamespace(own)))
}

// TestNoComponentCachesSecrets: none may list or watch them, and webhook-server alone asks for its own.
func TestNoComponentCachesSecrets(t *testing.T) {
	w := everything(t)
	requests, err := w.Requests(time.Time{})
	require.NoError(t, err)
	seen := 0
	for _, r := range requests {
		if r.Component() == "" || r.Resource != "secrets" || !r.OK() {
			continue
		}
		seen++
		assert.Equal(t, suite.Webhook, r.Component(), "%s", r)
		assert.Contains(t, []string{"get", "create", "update"}, r.Verb, "%s", r)
		assert.Equal(t, suite.Namespace, r.Namespace, "%s", r)
	}
	require.Positive(t, seen, "the audit log shows reads")
	for _, name := range suite.Components() {
		for _, verb := range []string{"list", "watch"} {
			allowed, err := w.mayDo(t.Context(), suite.User(name), verb, "secrets")
			require.NoError(t, err)
			assert.False(t, allowed, "%s may %s Secrets", name, verb)
		}
	}
}
