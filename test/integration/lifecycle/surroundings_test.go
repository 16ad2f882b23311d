package lifecycle_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

func (e env) annotate(object client.Object, key, value string) {
	e.Helper()
	quoted := "null"
	if value != "" {
		quoted = strconv.Quote(value)
	}
	body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, quoted)
	require.NoError(e, e.Patch(e.Context(), object, client.RawPatch(types.MergePatchType, []byte(body))))
}

// expects is a Pod that is not in service before the employer's finalizer is on.
func (e env) expects(name, kind, employer string) *corev1.Pod {
	e.Helper()
	return e.pod(name, func(p *corev1.Pod) {
		p.Labels["app"] = "web"
		p.Annotations = map[string]string{podops.AvailableConditionsAnnotation: fmt.Sprintf(
			`{"expectedFinalizers":{"%s/%s/%s":%q}}`, kind, e.namespace, employer, finalizer)}
	})
}

func (e env) service(name string, control bool) *corev1.Service {
	e.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name, Labels: map[string]string{}}}
	if control {
		s.Labels[appsv1alpha1.ControlLabel] = appsv1alpha1.ControlValue
	}
	s.Spec.Selector = map[string]string{"app": "web"}
	s.Spec.Ports = []corev1.ServicePort{{Port: 80}}
	require.NoError(e, e.Create(e.Context(), s))
	return s
}

// Pods whose employer has let them go serve; those whose employer is there, or may not be looked at, wait.
func employersGone(e env) {
	defer e.balancers()()
	e.service("selects", true)
	e.service("uncontrolled", false)
	changed := e.service("changed", true)
	waiting := []*corev1.Pod{
		e.expects("waits-for-its-service", "Service", "selects"),
		e.expects("waits-for-its-balancer", "Balancer", "selects"),
		e.expects("waits-for-what-may-not-be-read", "ConfigMap", "gone"),
		e.expects("waits-for-what-nobody-knows", "Unheard", "gone"),
	}
	gone := []*corev1.Pod{
		e.expects("service-gone", "Service", "gone"),
		e.expects("service-changed", "Service", "changed"),
		e.expects("service-uncontrolled", "Service", "uncontrolled"),
		e.expects("balancer-gone", "Balancer", "gone"),
		e.expects("balancer-changed", "Balancer", "changed"),
	}
	require.NoError(e, e.Patch(e.Context(), changed,
		client.RawPatch(types.MergePatchType, []byte(`{"spec":{"selector":{"app":"db"}}}`))))
	completing := e.servingPod("completing", nil)
	e.begin(completing, "job", "restart")
	e.eventually(completing, "allowed", func(v podops.View) bool { return podops.Allowed(v, "job", "restart") })
	e.annotate(completing, podops.AvailableConditionsAnnotation,
		fmt.Sprintf(`{"expectedFinalizers":{"Service/%s/gone":%q}}`, e.namespace, finalizer))
	e.label(completing, podops.OperatingPrefix+"/job", nil)
	for _, pod := range append(gone, completing) {
		e.serves(pod)
		assert.JSONEq(e, `{}`, pod.Annotations[podops.AvailableConditionsAnnotation])
	}
	for _, pod := range waiting {
		e.eventually(pod, "Ready", func(v podops.View) bool { return v.Ready })
		v := e.view(pod)
		assert.False(e, v.ServiceAvailable(), pod.Name)
		assert.Len(e, podops.MissingEmployers(v), 1, pod.Name)
	}
}

// balancers serves a kind of employer that lifecycle-controller has never heard of, and lets it read it.
func (e env) balancers() (remove func()) {
	e.Helper()
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "balancers.example.org"},
		"spec": map[string]any{
			"group": "example.org", "scope": "Namespaced",
			"names": map[string]any{"kind": "Balancer", "plural": "balancers"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
			}}},
		},
	}}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "balancers",
			Labels: map[string]string{"kuperator.kusionstack.io/aggregate-to-lifecycle-employers": "true"}},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"example.org"}, Resources: []string{"balancers"},
			Verbs: []string{"get"}}},
	}
	require.NoError(e, e.Create(e.Context(), crd))
	require.NoError(e, e.Create(e.Context(), role))
	for name, app := range map[string]string{"selects": "web", "changed": "db"} {
		require.EventuallyWithT(e, func(c *assert.CollectT) {
			balancer := &unstructured.Unstructured{}
			balancer.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Balancer"})
			balancer.SetNamespace(e.namespace)
			balancer.SetName(name)
			balancer.Object["spec"] = map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": app}}}
			require.NoError(c, e.Create(e.Context(), balancer))
		}, patience, interval)
	}
	require.EventuallyWithT(e, func(c *assert.CollectT) {
		joined := &rbacv1.ClusterRole{}
		require.NoError(c, e.Get(e.Context(), client.ObjectKey{Name: "lifecycle-controller-employers"}, joined))
		require.NotEmpty(c, joined.Rules)
	}, patience, interval)
	return func() {
		assert.NoError(e, e.Delete(e.Context(), crd))
		assert.NoError(e, e.Delete(e.Context(), role))
	}
}

func frozenNamespace(e env) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}}
	frozen(e, namespace, podops.FreezeAnnotation)
}

func frozenCluster(e env) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}
	frozen(e, namespace, podops.FreezeClusterAnnotation)
}

func frozen(e env, namespace *corev1.Namespace, annotation string) {
	out := e.servingPod("out", nil)
	e.begin(out, "job", "restart")
	e.eventually(out, "allowed", func(v podops.View) bool { return podops.Allowed(v, "job", "restart") })
	pods := []*corev1.Pod{e.servingPod("a", nil), e.servingPod("b", nil)}

	e.annotate(namespace, annotation, "audit")
	thawed := false
	defer func() {
		if !thawed {
			e.annotate(namespace, annotation, "")
		}
	}()
	// The controller has seen it when it writes a request into PreCheck and leaves it there.
	for i := range 50 {
		probe := e.servingPod("probe-"+strconv.Itoa(i), nil)
		e.begin(probe, "job", "restart")
		e.eventually(probe, "looked at", func(v podops.View) bool {
			return podops.PhaseOf(v,
				"job") != podops.PhaseRequested
		})
		if podops.PhaseOf(podops.Read(probe), "job") == podops.PhasePreCheck {
			pods = append(pods, probe)
			break
		}
	}
	require.Len(e, pods, 3, "the freeze is never seen")
	for _, pod := range pods[:2] {
		e.begin(pod, "job", "restart")
		e.eventually(pod, "looked at", func(v podops.View) bool { return podops.PhaseOf(v, "job") != podops.PhaseRequested })
	}
	e.label(pods[1], appsv1alpha1.ToDeleteLabel, new("1"))
	e.label(out, podops.OperatingPrefix+"/job", nil)
	e.serves(out) // the way back is open
	for _, pod := range pods {
		v := e.view(pod)
		assert.Equal(e, podops.PhasePreCheck, podops.PhaseOf(v, "job"))
		assert.True(e, v.ServiceAvailable())
	}
	e.annotate(namespace, annotation, "")
	thawed = true
	e.eventually(pods[0], "allowed after the thaw",
		func(v podops.View) bool { return podops.Allowed(v, "job", "restart") })
	e.eventually(pods[2], "allowed after the thaw",
		func(v podops.View) bool { return podops.Allowed(v, "job", "restart") })
	require.EventuallyWithT(e, func(c *assert.CollectT) {
		assert.True(c, apierrors.IsNotFound(e.Get(e.Context(), client.ObjectKeyFromObject(pods[1]), &corev1.Pod{})))
	}, patience, interval)
}

func workloads(e env) {
	template := func(name string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name,
				appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}},
			Spec: corev1.PodSpec{
				Containers:                    []corev1.Container{{Name: "app", Image: "app:v1"}},
				ReadinessGates:                []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}},
				TerminationGracePeriodSeconds: new(int64(0)),
			},
		}
	}
	selector := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: e.namespace, Name: name} }
	job := template("job")
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	for name, workload := range map[string]client.Object{
		"deployment": &appsv1.Deployment{ObjectMeta: meta("deployment"),
			Spec: appsv1.DeploymentSpec{Selector: selector("deployment"), Template: template("deployment")}},
		"statefulset": &appsv1.StatefulSet{ObjectMeta: meta("statefulset"),
			Spec: appsv1.StatefulSetSpec{Selector: selector("statefulset"), Template: template("statefulset"),
				ServiceName: "x"}},
		"daemonset": &appsv1.DaemonSet{ObjectMeta: meta("daemonset"),
			Spec: appsv1.DaemonSetSpec{Selector: selector("daemonset"), Template: template("daemonset")}},
		"job": &batchv1.Job{ObjectMeta: meta("job"), Spec: batchv1.JobSpec{Template: job}},
	} {
		e.Run(name, func(t *testing.T) {
			e := e
			e.T = t
			require.NoError(e, e.Create(e.Context(), workload))
			var pods corev1.PodList
			require.Eventually(e, func() bool {
				return e.List(e.Context(), &pods, client.InNamespace(e.namespace), client.MatchingLabels{"app": name}) == nil &&
					len(pods.Items) > 0
			}, patience, interval)
			pod := &pods.Items[0]
			e.serves(pod)
			uid := pod.UID
			e.begin(pod, "third-party", "restart")
			e.eventually(pod, "allowed", func(v podops.View) bool { return podops.Allowed(v, "third-party", "restart") })
			e.label(pod, podops.OperatingPrefix+"/third-party", nil)
			e.serves(pod)
			assert.Equal(e, uid, pod.UID)
		})
	}
}
