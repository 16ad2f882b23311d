package security

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// TestProtocolGuard puts deploy/components/protocol-guard in force: a tenant cannot take its own Pods past a rule,
// and the suite works as before.
func TestProtocolGuard(t *testing.T) {
	w := everything(t)
	policy := filepath.Join("..", "..", "..", "deploy", "components", "protocol-guard", "protocol-policy.yaml")
	_, err := w.Kubectl(t.Context(), "apply", "--server-side", "-f", policy)
	require.NoError(t, err)
	namespace := w.victim(t)
	mallory, participant := w.tenant(t, namespace, "edit"), w.tenant(t, namespace, "edit", "kuperator-participant")
	target := &w.pods(t, t, namespace, "web")[0]
	web := target
	label := func(key string) string { return fmt.Sprintf(`{"metadata":{"labels":{%q:"1"}}}`, key) }
	body := label(podops.OperatePrefix + "/collaset")
	t.Cleanup(func() { // API servers go by a policy for a moment after it was deleted, and other tests follow
		ctx := context.WithoutCancel(t.Context())
		_, err := w.Kubectl(ctx, "delete", "-f", policy)
		require.NoError(t, err)
		eventually(t, func(c *assert.CollectT) {
			require.NoError(c, mallory.Patch(ctx, web.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body)),
				client.DryRunAll))
		}, "the policy is not in force any more")
	})
	try := func(who client.Client, body string) error {
		return who.Patch(t.Context(), target.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body)),
			client.DryRunAll)
	}
	note := func(key, value string) string { return fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value) }
	const refused = "ValidatingAdmissionPolicy 'kuperator-protocol'"
	eventually(t, func(c *assert.CollectT) {
		require.ErrorContains(c, try(mallory, body), refused)
	}, "the policy is in force")

	require.Contains(t, target.Finalizers, resourceconsist.Finalizer("web"), "it is in traffic")
	forged := map[string]string{
		"take its finalizers":        `{"metadata":{"finalizers":[]}}`,
		"take it out of the suite":   fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, appsv1alpha1.ControlLabel),
		"no longer say it serves":    fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, podops.ServiceAvailableLabel),
		"delete it ungracefully":     fmt.Sprintf(`{"metadata":{"labels":{%q:"disabled"}}}`, podops.GracefulDeletionLabel),
		"excuse it from rules":       note(podops.SkipRulesAnnotation, `{"skipRules":["available"]}`),
		"let operations proceed":     note(podops.DeadlinesAnnotation, `{"Preparing":{"after":"1s","policy":"Proceed"}}`),
		"expect no cooperator":       note(podops.AvailableConditionsAnnotation, `{}`),
		"say that rules have agreed": label(podops.PreCheckedPrefix + "/collaset"),
		"permit an operation":        label(podops.PermissionPrefix + "/update"),
		"say that cooperators left":  label(podops.PreparingPrefix + "/collaset"),
		"bring it back early":        label(podops.CompletingPrefix + "/collaset"),
		"waive what it waits for":    label(podops.WaivedPrefix + "/collaset"),
	}
	for what, body := range forged {
		assert.ErrorContains(t, try(mallory, body), refused, what)
		assert.NoError(t, try(participant, body), what)
		assert.NoError(t, try(w.admin, body), "an administrator may: %s", what)
	}
	born := pod(namespace, "born-permitted")
	born.Labels[podops.OperatePrefix+"/collaset"] = "1"
	require.ErrorContains(t, mallory.Create(t.Context(), born, client.DryRunAll), refused)

	t.Log("what users are for")
	for _, body := range []string{label("team"), label(appsv1alpha1.ToDeleteLabel), label(appsv1alpha1.ToReplaceLabel),
		label(podops.StayOfflineLabel), label(podops.OperatingPrefix + "/job")} {
		require.NoError(t, try(mallory, body))
	}
	foreign := pod(namespace, "foreign")
	foreign.Labels = map[string]string{"app": "foreign"}
	require.NoError(t, mallory.Create(t.Context(), foreign, client.DryRunAll),
		"Pods of others are none of the policy's business")

	t.Log("undo a request, not what has its permission")
	undo := label(podops.UndoOperationTypePrefix + "/job")
	require.NoError(t, try(mallory, undo))
	done := pod(namespace, "done")
	done.Labels[podops.OperatedPrefix+"/job"], done.Labels["app"] = "1", "done"
	done.Annotations = map[string]string{podops.SkipRulesAnnotation: "{}"}
	require.NoError(t, participant.Create(t.Context(), done))
	target = done
	require.ErrorContains(t, try(mallory, undo), refused)
	require.NoError(t, try(participant, undo))
	require.NoError(t, try(mallory, label("team")), "what others wrote may stay")

	t.Run("every key, by every kind of object that a tenant may write",
		func(t *testing.T) { w.guarded(t, namespace, mallory, participant) })
	t.Run("a Deployment's Pods", func(t *testing.T) {
		excused := deployment(namespace, "excused")
		excused.Spec.Template.Annotations = map[string]string{podops.SkipRulesAnnotation: `{"skipRules":["available"]}`}
		require.NoError(t, mallory.Create(t.Context(), excused))
		eventually(t, func(c *assert.CollectT) {
			var made appsv1.Deployment
			require.NoError(c, w.admin.Get(t.Context(), client.ObjectKeyFromObject(excused), &made))
			failed := slices.IndexFunc(made.Status.Conditions,
				func(d appsv1.DeploymentCondition) bool { return d.Type == appsv1.DeploymentReplicaFailure })
			require.GreaterOrEqual(c, failed, 0)
			require.Contains(c, made.Status.Conditions[failed].Message, podops.SkipRulesAnnotation)
		}, "its Pods are refused, and the Deployment names the key")
		require.Empty(t, w.pods(t, t, namespace, "excused"))
	})
	t.Run("a Deployment's Pods that a Service employs", func(t *testing.T) {
		require.NoError(t, mallory.Create(t.Context(), workload.Service(namespace, "employed")))
		require.NoError(t, mallory.Create(t.Context(), deployment(namespace, "employed")))
		eventually(t, func(c *assert.CollectT) {
			made := w.pods(c, t, namespace, "employed")
			require.Len(c, made, 1, "webhook-server's announcement is let pass")
			require.Contains(c, made[0].Annotations[podops.AvailableConditionsAnnotation], resourceconsist.Finalizer("employed"))
		}, "they are made, and announced to")
	})
	w.rollOut(t, namespace)
}

// guarded are the keys of the protocol that only participants write on Pods, and whether each is a label. A template
// may not bring one either. Prefixes have an ID added.
var guarded = map[string]bool{
	podops.PreCheckedPrefix + "/job": true, podops.PermissionPrefix + "/update": true,
	podops.PreparingPrefix + "/job": true,
	podops.OperatePrefix + "/job":   true, podops.OperatedPrefix + "/job": true,
	podops.DoneOperationTypePrefix + "/job": true,
	podops.PostCheckPrefix + "/job":         true, podops.PostCheckedPrefix + "/job": true,
	podops.CompletingPrefix + "/job": true,
	podops.WaivedPrefix + "/job":     true, podops.UnheldLabel: true, podops.ServiceAvailableLabel: true,

	podops.SkipRulesAnnotation: false, podops.DeadlinesAnnotation: false, podops.AvailableConditionsAnnotation: false,
	appsv1alpha1.LastPodStatusAnnotation: false,
}

// asCreated are labels that may not change, and undone is the one that may not in a template and not once an
// operation has its permission.
var (
	asCreated = []string{appsv1alpha1.ControlLabel, podops.GracefulDeletionLabel}
	undone    = podops.UndoOperationTypePrefix + "/job"
)

// free are the keys that hold nothing up and lift nothing, and why.
var free = map[string]string{
	podops.OperatingPrefix: "a request", podops.OperationTypePrefix: "a request",
	podops.PreCheckPrefix:         "the request before the rules",
	podops.PreparingToDeleteLabel: "for users' rules", podops.StayOfflineLabel: "a request",
	podops.CreatingLabel:  "tells people",
	podops.RecreatedLabel: "tells people", podops.RuleDetailPrefix: "tells people",
	podops.DeletionRefusedAnnotation: "tells people",
	podops.FreezeAnnotation:          "of Namespaces", podops.FreezeClusterAnnotation: "of Namespaces",
	podops.OverdueCondition: "a condition", podops.ServiceReadyCondition: "a condition",
	podops.ProtectionFinalizerPrefix:                        "a finalizer: holds, and is not to be taken off",
	"." + strings.SplitN(podops.OperatingPrefix, ".", 2)[1]: "the end of prefixes",
}

// TestEveryKeyOfTheProtocolIsGuardedOrFree: the author of a new key decides which.
func TestEveryKeyOfTheProtocolIsGuardedOrFree(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", "..", "api", "podops", "keys.go"), nil, 0)
	require.NoError(t, err)
	known := map[string]bool{}
	for key := range guarded {
		prefix, _, _ := strings.Cut(key, "/")
		known[key], known[prefix] = true, true
	}
	for key := range free {
		known[key] = true
	}
	known[podops.GracefulDeletionLabel], known[podops.UndoOperationTypePrefix] = true, true
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if key, err := strconv.Unquote(literal.Value); err == nil && strings.Contains(key, "kusionstack.io") {
				found++
				assert.True(t, known[key], "%s", key)
			}
		}
		return true
	})
	require.Greater(t, found, 20)
}

func deployment(namespace, name string) *appsv1.Deployment {
	labels := map[string]string{"app": name, appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image1}}},
			},
		},
	}
}

// guarded tries each key on each object, without a lasting effect.
func (w *world) guarded(t *testing.T, namespace string, mallory, participant tenant) {
	t.Helper()
	const refused = "ValidatingAdmissionPolicy 'kuperator-protocol"
	var set appsv1alpha1.CollaSet
	require.NoError(t, w.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "web"}, &set))
	owner := metav1.OwnerReference{
		APIVersion: appsv1alpha1.SchemeGroupVersion.String(), Kind: appsv1alpha1.CollaSetKind, Name: set.Name, UID: set.UID,
		Controller: ptr.To(true),
	}
	unmanaged := func(name string) *corev1.Pod {
		p := pod(namespace, name)
		p.Labels = map[string]string{"app": "unmanaged"}
		return p
	}
	stands := map[string]*corev1.Pod{"a managed Pod": pod(namespace, "stands"),
		"a Pod that is none yet": unmanaged("stands-unmanaged")}
	for _, p := range stands {
		p.Labels["app"] = "unmanaged"
		require.NoError(t, mallory.Create(t.Context(), p))
	}
	born := map[string]func() *corev1.Pod{
		"a new managed Pod":      func() *corev1.Pod { return pod(namespace, "born") },
		"a new Pod, managed not": func() *corev1.Pod { return unmanaged("born") },
		"a new Pod that a CollaSet would make its own": func() *corev1.Pod {
			p := unmanaged("web-born")
			p.OwnerReferences = []metav1.OwnerReference{owner}
			p.Labels["app"], p.Labels[appsv1alpha1.InstanceIDLabel] = "web", "77"
			p.Labels[appsv1.ControllerRevisionHashLabelKey] = set.Status.UpdatedRevision
			return p
		},
	}
	put := func(meta *metav1.ObjectMeta, key string, label bool) {
		into := &meta.Annotations
		if label {
			into = &meta.Labels
		}
		if *into == nil {
			*into = map[string]string{}
		}
		(*into)[key] = "1"
	}
	template := func(key string, label bool) string {
		where := "annotations"
		if label {
			where = "labels"
		}
		return fmt.Sprintf(`{"spec":{"template":{"metadata":{%q:{%q:"1"}}}}}`, where, key)
	}
	asSet := func(who client.Client, key string, label bool) error {
		made := workload.CollaSet(namespace, "another", image1, 1)
		put(&made.Spec.Template.ObjectMeta, key, label)
		return who.Create(t.Context(), made, client.DryRunAll)
	}
	changeSet := func(who client.Client, key string, label bool) error {
		return who.Patch(t.Context(), set.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(template(key, label))),
			client.DryRunAll)
	}
	decoration := &appsv1alpha1.PodDecoration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "sidecar"}}
	require.NoError(t, mallory.Create(t.Context(), decoration))
	decorated := func(key string, label bool) *appsv1alpha1.PodDecoration {
		changed, added := decoration.DeepCopy(), metav1.ObjectMeta{}
		put(&added, key, label)
		changed.Spec.Template.Metadata = []*appsv1alpha1.PodDecorationPodTemplateMeta{
			{Labels: map[string]string{"team": "good"}}, {Labels: added.Labels, Annotations: added.Annotations}}
		return changed
	}
	asDecoration := func(who client.Client, key string, label bool) error {
		made := decorated(key, label)
		made.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: "another"}
		return who.Create(t.Context(), made, client.DryRunAll)
	}
	changeDecoration := func(who client.Client, key string, label bool) error {
		return who.Patch(t.Context(), decorated(key, label), client.MergeFrom(decoration), client.DryRunAll)
	}
	check := func(what, key string, try func(who client.Client) error) {
		err := try(mallory)
		assert.ErrorContains(t, err, refused, "%s: %s", what, key)
		assert.ErrorContains(t, err, key, "%s: the message names the key", what)
		assert.NoError(t, try(participant), "%s: %s", what, key)
	}
	for key, label := range guarded {
		// A new Pod is told by webhook-server, in the name of whom makes it, which cooperators to expect.
		announced := key == podops.AvailableConditionsAnnotation
		for what, make := range born {
			if announced {
				continue
			}
			check(what, key, func(who client.Client) error {
				p := make()
				put(&p.ObjectMeta, key, label)
				return who.Create(t.Context(), p, client.DryRunAll)
			})
		}
		for what, p := range stands {
			check(what, key, func(who client.Client) error {
				changed := p.DeepCopy()
				put(&changed.ObjectMeta, key, label)
				return who.Patch(t.Context(), changed, client.MergeFrom(p), client.DryRunAll)
			})
		}
		check("a new CollaSet", key, func(who client.Client) error { return asSet(who, key, label) })
		check("a CollaSet", key, func(who client.Client) error { return changeSet(who, key, label) })
		check("a new PodDecoration", key, func(who client.Client) error { return asDecoration(who, key, label) })
		check("a PodDecoration", key, func(who client.Client) error { return changeDecoration(who, key, label) })
		// The controllers that create Pods of Deployments, StatefulSets, DaemonSets, Jobs, CronJobs and the like in the
		// cluster are no participants.
		for _, account := range []string{"replicaset-controller", "statefulset-controller", "daemon-set-controller",
			"job-controller", "replication-controller"} {
			if announced {
				continue
			}
			p := pod(namespace, "born")
			put(&p.ObjectMeta, key, label)
			err := w.as(t, "kube-system", account).Create(t.Context(), p, client.DryRunAll)
			assert.ErrorContains(t, err, refused, "%s: %s", account, key)
		}
	}
	check("a new CollaSet", undone, func(who client.Client) error { return asSet(who, undone, true) })
	check("a CollaSet", undone, func(who client.Client) error { return changeSet(who, undone, true) })
	check("a new PodDecoration", undone, func(who client.Client) error { return asDecoration(who, undone, true) })
	check("a PodDecoration", undone, func(who client.Client) error { return changeDecoration(who, undone, true) })
	for _, key := range asCreated {
		check("a new PodDecoration", key, func(who client.Client) error { return asDecoration(who, key, true) })
		check("a PodDecoration", key, func(who client.Client) error { return changeDecoration(who, key, true) })
		check("a CollaSet", key, func(who client.Client) error { return changeSet(who, key, true) })
		for what, p := range stands {
			check(what, key, func(who client.Client) error {
				changed := p.DeepCopy()
				put(&changed.ObjectMeta, key, true)
				return who.Patch(t.Context(), changed, client.MergeFrom(p), client.DryRunAll)
			})
		}
	}
	require.NoError(t, mallory.Patch(t.Context(), set.DeepCopy(),
		client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":false}}`)), client.DryRunAll))
	require.NoError(t, changeSet(mallory, "team", true), "a template has other labels")
	require.NoError(t, changeSet(mallory, podops.StayOfflineLabel, true), "and requests")
	require.NoError(t, changeDecoration(mallory, "team", true), "as a decoration has")
	require.NoError(t, changeDecoration(mallory, podops.StayOfflineLabel, true))
	kept := decorated(podops.SkipRulesAnnotation, false)
	require.NoError(t, w.admin.Patch(t.Context(), kept, client.MergeFrom(decoration)))
	changed := kept.DeepCopy()
	changed.Spec.Template.Metadata[0].Labels["team"] = "other"
	require.NoError(t, mallory.Patch(t.Context(), changed, client.MergeFrom(kept), client.DryRunAll),
		"what a template had may stay")
	require.NoError(t, w.admin.Delete(t.Context(), kept))

	t.Log("what else Pods are made of, or excused by, no role may write")
	target := &w.pods(t, t, namespace, "web")[0]
	revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "forged"},
		Revision: 1}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: target.Name, Namespace: namespace,
			Annotations: map[string]string{podops.SkipRulesAnnotation: "{}"}},
		Target: corev1.ObjectReference{Kind: "Node", Name: "node"},
	}
	freeze := client.RawPatch(types.MergePatchType,
		[]byte(fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, podops.FreezeAnnotation)))
	for what, err := range map[string]error{
		"a revision": mallory.Create(t.Context(), revision, client.DryRunAll),
		"another of the sets": mallory.Patch(t.Context(),
			&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: set.Status.UpdatedRevision}},
			freeze, client.DryRunAll),
		"instance IDs": mallory.Create(t.Context(),
			&appsv1alpha1.ResourceContext{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "another"}},
			client.DryRunAll),
		"a freeze": mallory.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
			freeze, client.DryRunAll),
		"by a Binding": mallory.SubResource("binding").Create(t.Context(), target.DeepCopy(), binding,
			client.DryRunAll),
		"by a Pod's status": mallory.Status().Patch(t.Context(), target.DeepCopy(), freeze, client.DryRunAll),
	} {
		assert.True(t, apierrors.IsForbidden(err), "%s: %v", what, err)
	}
}
