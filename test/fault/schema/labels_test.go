package schema

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
)

const (
	everySubset = 400
	someSubsets = 24
	victims     = 8
)

// hostile are the keys of an operation's way through the protocol.
var hostile = []string{
	podops.OperatingPrefix, podops.OperationTypePrefix, podops.PreCheckPrefix, podops.PreCheckedPrefix,
	podops.PreparingPrefix, podops.OperatePrefix, podops.OperatedPrefix, podops.PostCheckPrefix,
	podops.PostCheckedPrefix, podops.CompletingPrefix, podops.UndoOperationTypePrefix, podops.DoneOperationTypePrefix,
	podops.WaivedPrefix,
}

// TestHostileLabels lets a user who may only patch Pods write any lifecycle keys of two operations, while a rule lets
// no Pod go. The subsets of seven keys of two IDs are 2^14; what is tried here is a sample of those of all keys. The
// pure protocol is searched and fuzzed whole in api/podops and test/protocol.
func TestHostileLabels(t *testing.T) {
	w := shared.Get(t)
	n := someSubsets
	if all() {
		n = everySubset
	}
	n = number(t, "SUBSETS", n)
	begin, ctx, namespace := time.Now(), t.Context(), w.namespace(t, true)
	require.NoError(t, w.client.Create(ctx, &appsv1alpha1.PodTransitionRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "closed"},
		Spec: appsv1alpha1.PodTransitionRuleSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "victim"}},
			Rules: []appsv1alpha1.TransitionRule{{Name: "closed",
				TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
					AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: ptr.To(fromInt(0))},
				}}},
		},
	}))
	require.NoError(t, w.client.Create(ctx, plainSet(namespace, "victim", victims)))
	_, err := w.reached(ctx, appsv1alpha1.CollaSetKind, namespace, "victim")
	require.NoError(t, err)
	pods := w.podsOf(t, namespace, "victim")
	before := identities(pods)
	attacker := w.mayPatchPods(t, namespace)

	random := rand.New(rand.NewPCG(uint64(number(t, "FAULT_SEED", 1)), 1))
	subsets := make([]map[string]string, n)
	for i := range subsets {
		subsets[i] = subset(random)
	}
	var mu sync.Mutex
	var failures []string
	var wg sync.WaitGroup
	for v := range victims {
		wg.Go(func() {
			for i := v; i < n; i += victims {
				if err := w.attack(ctx, attacker, namespace, pods[v].Name, subsets[i]); err != nil {
					mu.Lock()
					failures = append(failures, fmt.Sprintf("labels %v: %v", subsets[i], err))
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	for _, failure := range failures {
		t.Error(failure)
	}
	require.Equal(t, before, identities(w.podsOf(t, namespace, "victim")),
		"nobody touched a Pod on a word that no rule had given")
	checks := map[string]int{"no grant": n, "reported, or in service": n, "back in service": n,
		"no Pod changed or removed": victims}
	require.NoError(t, addRow("lifecycle labels written by whoever may patch Pods", n, len(failures),
		map[string]int{"hostile labels": n}, checks, failures, time.Since(begin)))
	// which lets no Pod be deleted either
	require.NoError(t, w.remove(ctx, appsv1alpha1.PodTransitionRuleKind, namespace, "closed"))
	require.NoError(t, w.remove(ctx, appsv1alpha1.CollaSetKind, namespace, "victim"))
}

// subset chooses labels; most of the time with values that the protocol knows.
func subset(random *rand.Rand) map[string]string {
	labels := map[string]string{}
	for _, id := range []string{"alpha", "beta"} {
		for _, prefix := range hostile {
			if random.IntN(2) == 0 {
				continue
			}
			value := []string{"1700000000000000000", "1700000000000000000", "update", "true", "", "nonsense"}[random.IntN(6)]
			if prefix == podops.OperationTypePrefix || prefix == podops.DoneOperationTypePrefix {
				value = []string{podops.TypeUpdate, podops.TypeDelete, podops.TypeScaleIn, ""}[random.IntN(4)]
			}
			labels[prefix+"/"+id] = value
		}
	}
	for _, key := range []string{podops.PermissionPrefix + "/update", podops.PreparingToDeleteLabel,
		podops.StayOfflineLabel} {
		if random.IntN(8) == 0 {
			labels[key] = "true"
		}
	}
	return labels
}

// attack writes labels, sees what is made of them, and takes them back.
func (w *world) attack(
	ctx context.Context, attacker kubernetes.Interface, namespace, name string, labels map[string]string,
) error {
	if err := patchLabels(ctx, attacker, namespace, name, labels, nil); err != nil {
		return err
	}
	if err := await.Until(ctx, func() error {
		pod, rule, err := w.podAndRule(ctx, namespace, name)
		if err != nil {
			return err
		}
		if rule.Status.Granted > 0 || len(rule.Status.Grants) > 0 {
			return fmt.Errorf("the rule that lets nobody go has granted %v", rule.Status.Grants)
		}
		if view := podops.Read(pod); !view.ServiceAvailable() && len(podops.Explain(view, nil)) == 0 {
			return fmt.Errorf("the Pod is not in service and nothing says why: %v", pod.Labels)
		}
		return nil
	}); err != nil {
		return err
	}
	return await.Until(ctx, func() error {
		pod, _, err := w.podAndRule(ctx, namespace, name)
		if err != nil {
			return err
		}
		var left []string
		for _, key := range slices.Sorted(maps.Keys(pod.Labels)) {
			if _, written := labels[key]; strings.Contains(key, "podopslifecycle.kusionstack.io/") &&
				key != podops.ServiceAvailableLabel &&
				(written || strings.HasSuffix(key, "/alpha") || strings.HasSuffix(key, "/beta") ||
					strings.HasPrefix(key, podops.PermissionPrefix)) {
				left = append(left, key)
			}
		}
		if len(left) > 0 {
			return errors.Join(fmt.Errorf("labels are left: %v", left), patchLabels(ctx, attacker, namespace, name, nil, left))
		}
		if view := podops.Read(pod); !view.ServiceAvailable() || !view.Ready {
			return fmt.Errorf("the labels are gone and the Pod is not back: %v %v", pod.Labels, pod.Status.Conditions)
		}
		return nil
	})
}

func patchLabels(
	ctx context.Context, user kubernetes.Interface, namespace, name string, set map[string]string, remove []string,
) error {
	labels := map[string]any{}
	for key, value := range set {
		labels[key] = value
	}
	for _, key := range remove {
		labels[key] = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	_, err = user.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (w *world) podAndRule(
	ctx context.Context, namespace, name string,
) (*corev1.Pod, *appsv1alpha1.PodTransitionRule, error) {
	pod, rule := &corev1.Pod{}, &appsv1alpha1.PodTransitionRule{}
	return pod, rule, errors.Join(
		w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod),
		w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "closed"}, rule),
	)
}

// mayPatchPods is a user who may do that in a namespace and nothing else.
func (w *world) mayPatchPods(t *testing.T, namespace string) kubernetes.Interface {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "attacker"}
	for _, object := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"},
			Verbs: []string{"patch"}}}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: meta.Name}},
		},
	} {
		require.NoError(t, w.client.Create(t.Context(), object))
	}
	admin, err := w.Clients()
	require.NoError(t, err)
	token, err := admin.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), meta.Name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	config := rest.AnonymousClientConfig(w.RESTConfig())
	config.BearerToken, config.QPS = token.Status.Token, -1
	user, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return user
}

// plainSet is a CollaSet whose Pods are of the app that has its name.
func plainSet(namespace, name string, replicas int32) *appsv1alpha1.CollaSet {
	labels := map[string]string{"app": name}
	return &appsv1alpha1.CollaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1alpha1.CollaSetSpec{
			Replicas: ptr.To(replicas), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web:1"}}},
			},
		},
	}
}

// podsOf are the Pods of an app, by name.
func (w *world) podsOf(t *testing.T, namespace, app string) []*corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	require.NoError(t, w.client.List(t.Context(), list, client.InNamespace(namespace), client.MatchingLabels{"app": app}))
	pods := make([]*corev1.Pod, 0, len(list.Items))
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods
}

func fromInt(n int32) intstr.IntOrString { return intstr.FromInt32(n) }
