package security

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// attempt is something that a user may try on the CollaSet or the Pod "subject" of its namespace, without a lasting
// effect.
type attempt struct {
	what string
	try  func(ctx context.Context, c client.Client, namespace string) error
	// view, operate and edit are true if a user with that role may; those who operate have view as well.
	view, operate, edit bool
}

// merge tries a merge patch of an object that exists.
func merge(object client.Object, body string) func(context.Context, client.Client, string) error {
	return func(ctx context.Context, c client.Client, namespace string) error {
		target := object.DeepCopyObject().(client.Object)
		target.SetName("subject")
		target.SetNamespace(namespace)
		return c.Patch(ctx, target, client.RawPatch(types.MergePatchType, []byte(body)), client.DryRunAll)
	}
}

// partition is a merge patch of a CollaSet's partition.
func partition(value string) string {
	return fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"byPartition":{"partition":%s}}}}}`, value)
}

func changeImage(ctx context.Context, c client.Client, namespace string) error {
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "subject"}}
	return c.Patch(ctx, target, client.RawPatch(types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/containers/0/image","value":"evil:1"}]`)), client.DryRunAll)
}

func attempts() []attempt {
	set, pod := &appsv1alpha1.CollaSet{}, &corev1.Pod{}
	labels := func(key string) string { return fmt.Sprintf(`{"metadata":{"labels":{%q:"1"}}}`, key) }
	notes := func(key, value string) string { return fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value) }
	all := []attempt{
		{"look", func(ctx context.Context, c client.Client, namespace string) error {
			return c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "subject"}, &appsv1alpha1.CollaSet{})
		}, true, true, true},

		{"pause", merge(set, `{"spec":{"paused":true}}`), false, true, true},
		{"resume", merge(set, `{"spec":{"paused":false}}`), false, true, true},
		{"restart",
			merge(set,
				`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"2030-01-01T00:00:00Z"}}}}}`),
			false, true, true},
		{"promote", merge(set, partition(`2`)), false, true, true},
		{"promote to a percentage", merge(set, partition(`"20%"`)), false, true, true},
		{"promote all Pods", merge(set, partition(`null`)), false, true, true},
		{"promote without the field", merge(set, `{"spec":{"updateStrategy":{"rollingUpdate":{"byPartition":null}}}}`), false,
			true, true},
		{"scale", func(ctx context.Context, c client.Client, namespace string) error {
			target := workload.CollaSet(namespace, "subject", image1, 0)
			return c.SubResource("scale").Patch(ctx, target,
				client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":2}}`)), client.DryRunAll)
		}, false, true, true},
		{"delete a Pod gracefully", merge(pod, labels(appsv1alpha1.ToDeleteLabel)), false, true, true},
		{"replace a Pod", merge(pod, labels(appsv1alpha1.ToReplaceLabel)), false, true, true},
		{"keep a Pod out of service", merge(pod, labels(podops.StayOfflineLabel)), false, true, true},
		{"evict a Pod", func(ctx context.Context, c client.Client, namespace string) error {
			target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "subject"}}
			return c.SubResource("eviction").Create(ctx, target,
				&policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}})
		}, false, true, true},

		{"restart in place by a job", createJob("Restart"), false, true, true},
		{"stop a job", func(ctx context.Context, c client.Client, namespace string) error {
			return c.Delete(ctx, operationJob(namespace, "subject", "Restart"), client.DryRunAll)
		}, false, true, true},

		{"have another program act by a job", createJob("example.com/drop-tables"), false, false, true},
		{"change a job", merge(&appsv1alpha1.OperationJob{}, `{"spec":{"activeDeadlineSeconds":1}}`), false, false, true},
		{"run another image", merge(set, `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"evil:1"}]}}}}`),
			false, false, true},
		{"change replicas in the spec", merge(set, `{"spec":{"replicas":3}}`), false, false, true},
		{"hold back more Pods", merge(set, partition(`4`)), false, false, true},
		{"hold back a larger percentage", merge(set, partition(`"35%"`)), false, false, true},
		{"update all Pods at once", merge(set, `{"spec":{"updateStrategy":{"rollingUpdate":{"maxUnavailable":"100%"}}}}`),
			false, false, true},
		{"update more Pods at once", merge(set,
			`{"spec":{"updateStrategy":{"rollingUpdate":{"byPartition":{"partition":2},"maxUnavailable":null}}}}`),
			false, false, true},
		{"choose Pods by label", merge(set, `{"spec":{"updateStrategy":{"rollingUpdate":{"byLabel":{}}}}}`), false, false,
			true},
		{"have Pods replaced", merge(set, `{"spec":{"updateStrategy":{"podUpgradePolicy":"Replace"}}}`), false, false, true},
		{"remove the update strategy", merge(set, `{"spec":{"updateStrategy":null}}`), false, false, true},
		{"add a field to the spec", merge(set, `{"spec":{"minReadySeconds":5}}`), false, false, true},
		{"remove a field of the spec", merge(set, `{"spec":{"replicas":null}}`), false, false, true},
		{"give Pods a label", merge(set, `{"spec":{"template":{"metadata":{"labels":{"team":"evil"}}}}}`), false,
			false, true},
		{"give Pods another annotation", merge(set, `{"spec":{"template":{"metadata":{"annotations":{"team":"evil"}}}}}`),
			false, false, true},
		{"annotate a CollaSet", merge(set, notes("team", "evil")), false, false, true},
		{"take a CollaSet's finalizer", merge(set, `{"metadata":{"finalizers":null}}`), false, false, true},
		{"change a Pod's image", changeImage, false, false, true},
		{"move a Pod to another selector", merge(pod, labels("app")), false, false, true},
		{"say that a Pod may be operated on", merge(pod, labels(podops.OperatePrefix+"/collaset")), false, false, true},
		{"excuse a Pod from its rules", merge(pod, notes(podops.SkipRulesAnnotation, `{"skipRules":["available"]}`)), false,
			false, true},
		{"let a Pod's operations proceed", merge(pod,
			notes(podops.DeadlinesAnnotation, `{"Preparing":{"after":"1s","policy":"Proceed"}}`)), false, false, true},
		{"take a Pod's finalizers", merge(pod, `{"metadata":{"finalizers":[]}}`), false, false, true},
		{"delete a CollaSet", func(ctx context.Context, c client.Client, namespace string) error {
			return c.Delete(ctx, workload.CollaSet(namespace, "subject", image1, 0), client.DryRunAll)
		}, false, false, true},
		{"make a CollaSet", func(ctx context.Context, c client.Client, namespace string) error {
			return c.Create(ctx, workload.CollaSet(namespace, "another", image1, 1), client.DryRunAll)
		}, false, false, true},
		{"make a rule", func(ctx context.Context, c client.Client, namespace string) error {
			return c.Create(ctx, workload.Rule(namespace, "another", "1"), client.DryRunAll)
		}, false, false, true},

		{"write the ledger", func(ctx context.Context, c client.Client, namespace string) error {
			return c.Status().Patch(ctx, workload.Rule(namespace, "subject", "1"),
				client.RawPatch(types.MergePatchType, []byte(`{"status":{"granted":5}}`)), client.DryRunAll)
		}, false, false, false},
		{"write a CollaSet's status", func(ctx context.Context, c client.Client, namespace string) error {
			return c.Status().Patch(ctx, workload.CollaSet(namespace, "subject", image1, 1),
				client.RawPatch(types.MergePatchType, []byte(`{"status":{"replicas":5}}`)), client.DryRunAll)
		}, false, false, false},
		{"write a Pod's conditions", func(ctx context.Context, c client.Client, namespace string) error {
			target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "subject"}}
			body := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"True"}]}}`, podops.ServiceReadyCondition)
			return c.Status().Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, []byte(body)), client.DryRunAll)
		}, false, false, false},
		{"make a ResourceContext", func(ctx context.Context, c client.Client, namespace string) error {
			return c.Create(ctx, &appsv1alpha1.ResourceContext{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
				Name: "another"}}, client.DryRunAll)
		}, false, false, false},
		{"freeze", func(ctx context.Context, c client.Client, namespace string) error {
			target := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
			return c.Patch(ctx, target, client.RawPatch(types.MergePatchType, []byte(notes(podops.FreezeAnnotation, "mine"))),
				client.DryRunAll)
		}, false, false, false},
	}
	return all
}

func operationJob(namespace, name string, action appsv1alpha1.OperationAction) *appsv1alpha1.OperationJob {
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	job.Spec = appsv1alpha1.OperationJobSpec{Action: action, Targets: []appsv1alpha1.PodOpsTarget{{Name: "no-such-pod"}}}
	return job
}

func createJob(action appsv1alpha1.OperationAction) func(context.Context, client.Client, string) error {
	return func(ctx context.Context, c client.Client, namespace string) error {
		return c.Create(ctx, operationJob(namespace, "another", action), client.DryRunAll)
	}
}

// TestRoles tries with each of the shipped roles what it may do and what it may not.
func TestRoles(t *testing.T) {
	w := everything(t)
	namespace := w.namespace(t)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "subject", Finalizers: []string{"example.test/hold"},
			Labels: map[string]string{"team": "good"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image1}}},
	}
	set := workload.CollaSet(namespace, "subject", image1, 10)
	set.Spec.Paused = true
	set.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{
		ByPartition:    &appsv1alpha1.ByPartition{Partition: ptr.To(intstr.FromInt32(3))},
		MaxUnavailable: ptr.To(intstr.FromInt32(1))}
	set.Finalizers = []string{"example.test/hold"}
	job := operationJob(namespace, "subject", "Restart")
	job.Spec.Partition = ptr.To[int32](0)
	for _, object := range []client.Object{pod, set, job, workload.Rule(namespace, "subject", "1")} {
		require.NoError(t, w.admin.Create(t.Context(), object))
	}
	view, operate, edit := w.tenant(t, namespace, "view"), w.tenant(t, namespace, "view", "kuperator-operate"),
		w.tenant(t, namespace, "edit")
	eventually(t, func(c *assert.CollectT) { // the API server learns of a policy a moment after it was made
		err := merge(pod, `{"metadata":{"labels":{"team":"evil"}}}`)(t.Context(), operate, namespace)
		require.ErrorContains(c, err, "ValidatingAdmissionPolicy 'kuperator-operate'")
		err = createJob("example.com/drop-tables")(t.Context(), operate, namespace)
		require.ErrorContains(c, err, "ValidatingAdmissionPolicy 'kuperator-operate-jobs'")
	}, "the policies are in force")

	for _, a := range attempts() {
		for _, who := range []struct {
			tenant
			may bool
		}{{view, a.view}, {operate, a.operate}, {edit, a.edit}} {
			err := a.try(t.Context(), who, namespace)
			if who.may {
				assert.NoError(t, err, "%s: %s", who.name, a.what)
				continue
			}
			confined := err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'kuperator-operate")
			assert.True(t, apierrors.IsForbidden(err) || confined, "%s: %s: %v", who.name, a.what, err)
		}
	}
	for _, stranger := range []tenant{view, operate, edit} {
		err := merge(pod, `{"metadata":{"labels":{"collaset.kusionstack.io/to-delete":"1"}}}`)(t.Context(),
			stranger, "default")
		assert.True(t, apierrors.IsForbidden(err), "%s in another namespace: %v", stranger.name, err)
	}
	both := w.tenant(t, namespace, "edit", "kuperator-operate")
	require.NoError(t, changeImage(t.Context(), both, namespace), "who may edit is not confined")
}

// TestTheRoleFreezeFreezes and does nothing else to a Namespace, whose labels are what Pod Security goes by.
func TestTheRoleFreezeFreezes(t *testing.T) {
	w := everything(t)
	namespace := w.namespace(t)
	user := w.tenant(t, namespace, "view", "kuperator-freeze")
	try := func(name, body string) error {
		target := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return user.Patch(t.Context(), target, client.RawPatch(types.MergePatchType, []byte(body)), client.DryRunAll)
	}
	eventually(t, func(c *assert.CollectT) {
		require.ErrorContains(c, try(namespace,
			`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}`),
			"ValidatingAdmissionPolicy 'kuperator-freeze'")
	}, "the policy is in force")
	require.NoError(t, try(namespace, `{"metadata":{"annotations":{"podopslifecycle.kusionstack.io/freeze":"incident"}}}`))
	require.ErrorContains(t, try(namespace,
		`{"metadata":{"annotations":{"scheduler.alpha.kubernetes.io/node-selector":"a=b"}}}`), "kuperator-freeze")
	require.ErrorContains(t, try(namespace, `{"metadata":{"finalizers":["example.test/hold"]}}`), "kuperator-freeze")
	require.True(t, apierrors.IsForbidden(try("default",
		`{"metadata":{"annotations":{"podopslifecycle.kusionstack.io/freeze":"incident"}}}`)))
	require.True(t, apierrors.IsForbidden(try("kuperator-system",
		`{"metadata":{"annotations":{"podopslifecycle.kusionstack.io/freeze-cluster":"incident"}}}`)))
}
