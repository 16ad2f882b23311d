package security

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

var digits = strings.Repeat("1", 64) // of a digest

// as is a client with the token of a ServiceAccount.
func (w *world) as(t *testing.T, namespace, account string) client.Client {
	t.Helper()
	config := w.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	c, err := client.New(config, client.Options{Scheme: w.admin.Scheme()})
	require.NoError(t, err)
	return c
}

// TestAComponentsTokenIsWorthNoMoreThanItsWork tries with each component's token what the policy
// kuperator-confinement refuses, and what the component does. The other tests of this package, of test/e2e and more
// show that all of the work goes on.
func TestAComponentsTokenIsWorthNoMoreThanItsWork(t *testing.T) {
	w := everything(t)
	namespace := w.victim(t)
	var set appsv1alpha1.CollaSet
	require.NoError(t, w.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "web"}, &set))
	ours := w.pods(t, t, namespace, "web")[0]
	marked, others := pod(namespace, "marked"), pod(namespace, "others")
	marked.Labels = map[string]string{
		appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue, appsv1alpha1.ToDeleteLabel: "1", "app": "held", "team": "good",
	}
	marked.Spec.NodeSelector = map[string]string{"there-is": "none"} // so that nothing else writes its status
	marked.Finalizers = []string{"example.test/hold"}
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "owner"}}
	require.NoError(t, w.admin.Create(t.Context(), owner))
	marked.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name,
		UID: owner.UID}}
	others.Labels = map[string]string{"team": "good"}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "others"}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "others"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
	}
	revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "others"},
		Revision: 1, Data: runtime.RawExtension{Raw: []byte("{}")}}
	reference := fmt.Sprintf(
		`{"apiVersion":"apps.kusionstack.io/v1alpha1","kind":"CollaSet","name":"web","uid":%q,"controller":true}`, set.UID)
	ofStatefulSet := revision.DeepCopy()
	ofStatefulSet.Name = "of-stateful-set"
	ofStatefulSet.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name,
		UID: owner.UID, Controller: ptr.To(true)}}
	unlabelled := claim.DeepCopy()
	unlabelled.Name, unlabelled.Labels = "unlabelled", map[string]string{appsv1alpha1.ClaimTemplateNameLabel: "data"}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	rule := workload.Rule(namespace, "web", "1")
	balanced := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "balanced"}}
	balanced.Spec.Type, balanced.Spec.Ports = corev1.ServiceTypeLoadBalancer, []corev1.ServicePort{{Port: 80}}
	held := workload.Rule(namespace, "held", "0") // or the marked Pod were deleted
	held.Spec.Rules[0].AvailablePolicy = nil
	held.Spec.Rules[0].LabelCheck = &appsv1alpha1.LabelCheckRule{Requires: &metav1.LabelSelector{MatchLabels: map[string]string{"may": "go"}}}
	decorated := pod(namespace, "decorated") // not managed any more
	decorated.Labels = map[string]string{"team": "good"}
	decorated.Annotations = map[string]string{appsv1alpha1.PodDecorationRevisionsAnnotation: "[]"}
	decoration := &appsv1alpha1.PodDecoration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "sidecar"}}
	require.NoError(t, w.admin.Create(t.Context(), decoration))
	ofDecoration := revision.DeepCopy()
	ofDecoration.Name = "of-decoration"
	ofPD := *metav1.NewControllerRef(decoration, appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodDecorationKind))
	ofPD.BlockOwnerDeletion = nil
	ofDecoration.OwnerReferences = []metav1.OwnerReference{ofPD}
	pinned := pod(namespace, "pinned")
	pinned.Spec.Containers[0].Image = "web@sha256:" + digits
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "waits"}}
	job.Spec.Action, job.Spec.Targets = appsv1alpha1.OpsActionEvict, []appsv1alpha1.PodOpsTarget{{Name: "no-such-pod"}}
	ended := job.DeepCopy()
	ended.Name, job.Spec.Partition = "ended", ptr.To[int32](0)
	for _, object := range []client.Object{held, balanced, marked, others, decorated, pinned, claim, budget, revision,
		ofStatefulSet, ofDecoration, unlabelled, job, ended} {
		require.NoError(t, w.admin.Create(t.Context(), object))
	}
	eventually(t, func(c *assert.CollectT) {
		require.NoError(c, w.admin.Get(t.Context(), client.ObjectKeyFromObject(ended), ended))
		require.Equal(c, appsv1alpha1.OperationProgressFailed, ended.Status.Progress)
	}, "the job has ended")
	tokens := map[string]client.Client{}
	for _, account := range suite.Components() {
		tokens[account] = w.as(t, suite.Namespace, account)
	}

	merge := func(object client.Object, body string) func(client.Client) error {
		return func(c client.Client) error {
			return c.Patch(t.Context(), object.DeepCopyObject().(client.Object),
				client.RawPatch(types.MergePatchType, []byte(body)), client.DryRunAll)
		}
	}
	status := func(object client.Object, body string) func(client.Client) error {
		return func(c client.Client) error {
			return c.Status().Patch(t.Context(), object.DeepCopyObject().(client.Object),
				client.RawPatch(types.StrategicMergePatchType, []byte(body)), client.DryRunAll)
		}
	}
	image := func(object *corev1.Pod, to string) func(client.Client) error {
		body := fmt.Sprintf(`[{"op":"replace","path":"/spec/containers/0/image","value":%q}]`, to)
		return func(c client.Client) error {
			return c.Patch(t.Context(), object.DeepCopy(), client.RawPatch(types.JSONPatchType, []byte(body)), client.DryRunAll)
		}
	}
	remove := func(object client.Object) func(client.Client) error {
		return func(c client.Client) error {
			return c.Delete(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll)
		}
	}
	create := func(object client.Object) func(client.Client) error {
		return func(c client.Client) error {
			return c.Create(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll)
		}
	}
	label := func(key string) string { return fmt.Sprintf(`{"metadata":{"labels":{%q:"2"}}}`, key) }
	note := func(key string) string { return fmt.Sprintf(`{"metadata":{"annotations":{%q:"2"}}}`, key) }
	conditions := func(kind, value string) string {
		return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q}]}}`, kind, value)
	}
	owned := func(name, apiVersion, kind string) *corev1.Pod {
		p := pod(namespace, name)
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "web", UID: set.UID,
			Controller: ptr.To(true)}}
		return p
	}
	const cs, lc, ptc, rc, oj, ws = suite.CollaSet, suite.Lifecycle, suite.PodTransitionRule, suite.ResourceConsist,
		suite.OperationJob, suite.Webhook
	const pd = suite.PodDecoration
	all, idle := suite.Components(), []string{lc, ptc, rc, oj, pd, ws}
	finalizer := func(name string) string {
		return fmt.Sprintf(`{"metadata":{"finalizers":["example.test/hold",%q]}}`, name)
	}
	named := func(revision *appsv1.ControllerRevision, name string) *appsv1.ControllerRevision {
		other := revision.DeepCopy()
		other.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: name, OwnerReferences: revision.OwnerReferences}
		return other
	}
	tests := []struct {
		what string
		try  func(client.Client) error
		who  []string
		may  []string // of them; the others are refused
	}{
		{"run another image", image(&ours, "evil:1"), all, []string{cs}},
		{"run another image, by digest", image(&ours, "evil@sha256:"+digits), idle, nil},
		{"run an image of another registry", image(&ours, "web.evil.test/web@sha256:"+digits), idle, nil},
		{"pin the image, as admission may with each write", image(&ours, "web:1@sha256:"+digits), all, all},
		{"run another image in a Pod of others", image(others, "evil:1"), all, nil},
		{"add a label, as admission may", merge(marked, label("cost-centre")), idle, idle},
		{"write an annotation, as admission may", merge(marked, note("cost-centre")), idle, idle},
		{"move a Pod to another selector", merge(marked, label("team")), all, []string{pd}},
		{"take a label off", merge(marked, `{"metadata":{"labels":{"team":null}}}`), all, []string{pd}},
		{"manage a Pod", merge(others, label(appsv1alpha1.ControlLabel)), all, nil},
		{"have no deletion graceful", merge(marked, label(podops.GracefulDeletionLabel)), all, []string{pd}},
		{"mark a Pod for deletion", merge(marked, label(appsv1alpha1.ToDeleteLabel)), all, []string{lc, oj, pd, ws}},
		{"take a step of the protocol", merge(marked, label(podops.OperatePrefix+"/job")), all, []string{lc, rc, oj, pd}},
		{"excuse a Pod from its rules", merge(marked, note(podops.SkipRulesAnnotation)), all, []string{pd}},
		{"say why a Pod waits", merge(marked, note(podops.RuleDetailPrefix+"/web")), idle, []string{lc, ptc, rc, oj}},
		{"expect cooperators", merge(marked, note(podops.AvailableConditionsAnnotation)), idle, []string{lc, rc, pd}},
		{"change owners", merge(marked, `{"metadata":{"ownerReferences":[]}}`), all, nil},
		{"take a finalizer of others", merge(marked, `{"metadata":{"finalizers":[]}}`), all, nil},
		{"hold a Pod", merge(marked, finalizer(resourceconsist.Finalizer("web"))), all, []string{rc}},
		{"adopt a Pod", func(c client.Client) error {
			body := fmt.Sprintf(
				`{"metadata":{"ownerReferences":[{"apiVersion":"apps.kusionstack.io/v1alpha1","kind":"CollaSet","name":"web","uid":%q,"controller":true}]}}`, set.UID)
			return merge(others, body)(c)
		}, all, []string{cs}},
		{"run a tag of another content", image(pinned, "web:1"), all, []string{pd}},
		{"put a tag beside a digest", image(pinned, "web:restarted@sha256:"+digits), all, []string{oj, pd}},
		{"put it beside another digest", image(pinned, "web:restarted@sha256:"+strings.Repeat("2", 64)), all, []string{pd}},
		{"put it into another repository", image(pinned, "web/web:restarted@sha256:"+digits), all, []string{pd}},
		{"put it into another registry", image(pinned, "web.evil.test/web:restarted@sha256:"+digits), all, []string{pd}},
		{"ask for a replacement", merge(marked, label(appsv1alpha1.ToReplaceLabel)), all, []string{oj}},
		{"ask for one of a Pod of others", merge(others, label(appsv1alpha1.ToReplaceLabel)), all, nil},
		{"say who asks for a replacement", merge(marked, note(appsv1alpha1.ToReplaceLabel+podops.AskersSuffix)), idle,
			[]string{lc, oj}},
		{"say who asks for a deletion", merge(marked, note(appsv1alpha1.ToDeleteLabel+podops.AskersSuffix)), idle,
			[]string{lc, oj, pd, ws}},
		{"have a Pod of a CollaSet replaced", merge(&ours, label(appsv1alpha1.ToReplaceLabel)), idle, []string{lc, oj, ws}},
		{"say who asks for that", merge(&ours, note(appsv1alpha1.ToReplaceLabel+podops.AskersSuffix)), idle,
			[]string{lc, oj, ws}},
		{"write a task", merge(marked, note(podops.TasksAnnotation)), idle, []string{oj}},
		{"write a task to a Pod of others", merge(others, note(podops.TasksAnnotation)), all, nil},
		{"keep a Pod for a job", merge(marked, finalizer(appsv1alpha1.ReplaceProtectionFinalizer)), all, []string{oj}},
		{"keep a Pod of others for a job", merge(others, finalizer(appsv1alpha1.ReplaceProtectionFinalizer)), all, nil},
		{"take a Pod out of the suite", merge(marked, fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`,
			appsv1alpha1.ControlLabel)), all, nil},
		{"say why a deletion is refused", merge(marked, note(podops.DeletionRefusedAnnotation)), idle, []string{lc}},
		{"say what is to be made of a Pod of a CollaSet", merge(&ours, note(appsv1alpha1.PodDecorationDesiredAnnotation)),
			idle, []string{pd}},
		{"say what a Pod of a CollaSet was made with", merge(&ours, note(appsv1alpha1.PodDecorationRevisionsAnnotation)),
			idle, nil},
		{"mark a Pod of a CollaSet as decorated", merge(&ours, label(appsv1alpha1.PodDecorationLabelPrefix+"sidecar")),
			idle, nil},
		{"move a Pod of a CollaSet to another selector", merge(&ours, label("app")), idle, nil},
		{"decorate a managed Pod", merge(marked, fmt.Sprintf(
			`{"metadata":{"labels":{%q:"sidecar-1","team":"other"},"annotations":{%q:"[]",%q:"{}",%q:"{}"}}}`,
			appsv1alpha1.PodDecorationLabelPrefix+"sidecar", appsv1alpha1.PodDecorationRevisionsAnnotation,
			appsv1alpha1.PodDecorationChangesAnnotation, appsv1alpha1.LastPodStatusAnnotation)), idle, []string{pd}},
		{"run another image in a managed Pod", image(marked, "evil:1"), all, []string{pd}},
		{"run another image in a decorated Pod", image(decorated, "evil:1"), all, []string{pd}},
		{"say what a Pod of others is to have", merge(others, note(appsv1alpha1.PodDecorationDesiredAnnotation)), all, nil},
		{"annotate a Pod of others", merge(others, note("cost-centre")), []string{pd}, nil},
		{"delete a Pod of a CollaSet", remove(&ours), []string{cs, lc}, []string{cs}},
		{"delete a Pod that is to be deleted", remove(marked), []string{cs, lc}, []string{lc}},
		{"delete a Pod of others", remove(others), []string{cs, lc}, nil},
		{"make a Pod of a CollaSet", create(owned("made", "apps.kusionstack.io/v1alpha1", "CollaSet")), []string{cs},
			[]string{cs}},
		{"make a Pod of others", create(owned("made", "apps/v1", "StatefulSet")), []string{cs}, nil},
		{"make a Pod of none", create(pod(namespace, "made")), []string{cs}, nil},
		{"take a Pod out of service", status(&ours, conditions(podops.ServiceReadyCondition, "False")), []string{lc},
			[]string{lc}},
		{"say that a Pod is ready", status(marked, conditions("Ready", "True")), []string{lc}, nil},
		{"say that a Pod is scheduled", status(marked, conditions("PodScheduled", "Unknown")), []string{lc}, nil},
		{"give a Pod an address", status(marked, `{"status":{"podIPs":[{"ip":"10.9.9.9"}],"podIP":"10.9.9.9"}}`),
			[]string{lc}, nil},
		{"say that a Pod has ended", status(marked, `{"status":{"phase":"Failed"}}`), []string{lc}, nil},

		{"delete a claim of others", remove(claim), []string{cs}, nil},
		{"write a claim of others", merge(claim, label("team")), []string{cs}, nil},
		{"delete a revision of others", remove(revision), []string{cs, pd}, nil},
		{"write a revision of others", merge(revision, `{"revision":2}`), []string{cs, pd}, nil},
		{"delete a revision of a StatefulSet", remove(ofStatefulSet), []string{cs, pd}, nil},
		{"write a revision of a StatefulSet", merge(ofStatefulSet, `{"revision":2}`), []string{cs, pd}, nil},
		{"delete a revision of a decoration", remove(ofDecoration), []string{cs, pd}, []string{pd}},
		{"write a revision of a decoration", merge(ofDecoration, `{"revision":2}`), []string{cs, pd}, []string{pd}},
		{"give a revision of a decoration away", merge(ofDecoration, `{"metadata":{"ownerReferences":[]}}`),
			[]string{pd}, nil},
		{"take a revision of others over for a decoration", merge(revision, fmt.Sprintf(
			`{"metadata":{"ownerReferences":[{"apiVersion":"apps.kusionstack.io/v1alpha1","kind":"PodDecoration","name":"sidecar","uid":%q,"controller":true}]}}`,
			decoration.UID)), []string{cs, pd}, nil},
		{"make a revision of a decoration", create(named(ofDecoration, "made")), []string{cs, pd}, []string{pd}},
		{"make a revision of others", create(named(ofStatefulSet, "made")), []string{cs, pd}, nil},
		{"take a revision of others over", merge(ofStatefulSet,
			fmt.Sprintf(`{"metadata":{"ownerReferences":[%s]}}`, reference)), []string{cs}, nil},
		{"repair a claim that has lost its instance ID",
			merge(unlabelled, fmt.Sprintf(`{"metadata":{"labels":{%q:"0"}}}`, appsv1alpha1.InstanceIDLabel)), []string{cs},
			[]string{cs}},
		{"change a template", merge(&set, `{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}`), []string{cs}, nil},
		{"scale", merge(&set, `{"spec":{"replicas":0}}`), []string{cs}, nil},
		{"let a CollaSet go", merge(&set, `{"metadata":{"finalizers":[]}}`), []string{cs}, []string{cs}},
		{"loosen a rule", merge(rule, `{"spec":{"rules":[]}}`), []string{ptc}, nil},
		{"change a job", merge(job, `{"spec":{"partition":1}}`), []string{oj}, nil},
		{"let a job go", merge(job, `{"metadata":{"finalizers":[]}}`), []string{oj}, []string{oj}},
		{"delete a job that has not ended", remove(job), []string{oj}, nil},
		{"delete a job that has ended", remove(ended), []string{oj}, []string{oj}},
		{"change a decoration", merge(decoration, `{"spec":{"weight":1}}`), []string{pd}, nil},
		{"keep a decoration", merge(decoration, fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`,
			appsv1alpha1.ProtectionFinalizer)), []string{pd}, []string{pd}},
		{"delete a budget of others", remove(budget), []string{ptc}, nil},
		{"loosen a budget of others", merge(budget, `{"spec":{"minAvailable":0}}`), []string{ptc}, nil},
		{"move a Service", merge(service, `{"spec":{"selector":{"app":"evil"}}}`), []string{rc}, nil},
		{"give a Service an address", status(balanced, `{"status":{"loadBalancer":{"ingress":[{"ip":"10.9.9.9"}]}}}`),
			[]string{rc}, nil},
		{"keep a Service", merge(service, fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, resourceconsist.CleanFinalizer)),
			[]string{rc}, []string{rc}},
		{"have a Service left out by kube-proxy", merge(service, label("service.kubernetes.io/service-proxy-name")),
			[]string{rc}, nil},
		{"annotate a Service for others", merge(service, note("external-dns.alpha.kubernetes.io/hostname")),
			[]string{rc}, nil},
		{"take a Service's label", merge(service, `{"metadata":{"labels":null}}`), []string{rc}, nil},
	}
	const refused = "ValidatingAdmissionPolicy 'kuperator-confinement'"
	for _, tc := range tests {
		for _, account := range tc.who {
			err := tc.try(tokens[account])
			if slices.Contains(tc.may, account) {
				assert.NoError(t, err, "%s: %s", account, tc.what)
				continue
			}
			assert.ErrorContains(t, err, refused, "%s: %s", account, tc.what)
		}
	}
	for _, account := range []string{ptc, rc, oj, pd, ws} {
		assert.True(t, apierrors.IsForbidden(remove(marked)(tokens[account])), account)
		assert.True(t, apierrors.IsForbidden(create(pod(namespace, "made"))(tokens[account])), account)
	}
	w.accountsOfOthers(t, namespace, others)
}

// accountsOfOthers: an account that has a component's name by chance, and may do more, is not confined.
func (w *world) accountsOfOthers(t *testing.T, namespace string, target *corev1.Pod) {
	t.Helper()
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "others"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: suite.Webhook}},
	}
	require.NoError(t, w.admin.Create(t.Context(), binding))
	other := w.as(t, namespace, suite.Webhook)
	eventually(t, func(c *assert.CollectT) {
		body := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"evil"}}}`))
		require.NoError(c, other.Patch(context.WithoutCancel(t.Context()), target.DeepCopy(), body, client.DryRunAll))
	}, "an account of another installation's name is none of the policy's business")
}
