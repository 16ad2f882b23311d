package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// TestDeletingACollaSet deletes CollaSets in each way that there is, with Kubernetes' own garbage collector.
func TestDeletingACollaSet(t *testing.T) {
	t.Parallel()
	// blocking makes the Pods' owner references as Kuperator v0.7 made them.
	blocking := func(t *testing.T, w *world, pods []corev1.Pod) {
		t.Helper()
		for i := range pods {
			before := pods[i].DeepCopy()
			pods[i].OwnerReferences[0].BlockOwnerDeletion = ptr.To(true)
			require.NoError(t, w.client.Patch(t.Context(), &pods[i], client.MergeFrom(before)))
		}
	}
	for name, tc := range map[string]struct {
		cascade  string
		blocking bool
	}{
		"in the foreground": {cascade: "foreground"},
		"in the background": {cascade: "background"},
		"in the foreground, with Pods of an earlier version": {cascade: "foreground", blocking: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := together(t)
			ns := w.namespace(t)
			o := w.observe(t, ns, observer.Options{Graceful: true})
			w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "1"), workload.CollaSet(ns, "web", image1, 4))
			w.waitServing(t, ns, "web", 4, image1)
			if tc.blocking {
				blocking(t, w, w.pods(t, ns, "web"))
			}
			_, err := w.Kubectl(t.Context(), "-n", ns, "delete", "collaset", "web", "--cascade="+tc.cascade,
				"--timeout="+await.Patience.String())
			require.NoError(t, err)
			require.Empty(t, w.pods(t, ns, "web"), "its Pods are gone before it")
			requireWithin(t, o, ns, 1)
		})
	}

	t.Run("in the foreground, held by its rule", func(t *testing.T) {
		w := together(t)
		ns := w.namespace(t)
		w.create(t, workload.Rule(ns, "web", "0"), workload.CollaSet(ns, "web", image1, 3))
		w.waitServing(t, ns, "web", 3, image1)
		before := workload.UIDs(w.pods(t, ns, "web"))
		_, err := w.Kubectl(t.Context(), "-n", ns, "delete", "collaset", "web", "--cascade=foreground", "--wait=false")
		require.NoError(t, err)
		await.Nil(t, "the garbage collector to be done", func() error {
			set := &appsv1alpha1.CollaSet{}
			if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "web"}, set); err != nil {
				return err
			}
			if set.DeletionTimestamp == nil || len(set.Finalizers) != 1 || set.Finalizers[0] != appsv1alpha1.CollaSetFinalizer {
				return fmt.Errorf("finalizers %v", set.Finalizers)
			}
			return nil
		})
		require.Equal(t, before, workload.UIDs(w.pods(t, ns, "web")), "no Pod has gone")
	})

	t.Run("leaving its Pods", func(t *testing.T) {
		w := together(t)
		ns := w.namespace(t)
		w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "1"), workload.CollaSet(ns, "web", image1, 3))
		w.waitServing(t, ns, "web", 3, image1)
		before := workload.UIDs(w.pods(t, ns, "web"))
		_, err := w.Kubectl(t.Context(), "-n", ns, "delete", "collaset", "web", "--cascade=orphan",
			"--timeout="+await.Patience.String())
		require.NoError(t, err)
		pods := w.pods(t, ns, "web")
		require.Equal(t, before, workload.UIDs(pods))
		for i := range pods {
			require.Empty(t, pods[i].OwnerReferences)
			require.NotContains(t, pods[i].Labels, appsv1alpha1.ToDeleteLabel)
		}
		require.NoError(t, ready(pods))
		require.NoError(t, w.client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(ns),
			client.GracePeriodSeconds(0)))
	})
}

// ready is nil if all Pods are.
func ready(pods []corev1.Pod) error {
	var errs []error
	for i := range pods {
		is := false
		for _, c := range pods[i].Status.Conditions {
			is = is || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}
		if !is {
			errs = append(errs, errors.New(pods[i].Name+" is not Ready"))
		}
	}
	return errors.Join(errs...)
}

// TestDrainUnderTwoMirroredRules drains a node in a namespace without graceful deletion, where only
// PodDisruptionBudgets bound evictions.
func TestDrainUnderTwoMirroredRules(t *testing.T) {
	w := alone(t) // Pods of other tests are on the node as well
	ns := w.namespace(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	require.NoError(t, w.client.Patch(t.Context(), namespace, client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"podopslifecycle.kusionstack.io/graceful-deletion":"disabled"}}}`))))
	team, platform, set := workload.Rule(ns, "team", "1"), workload.Rule(ns, "web", "50%"),
		workload.CollaSet(ns, "web", image1, 6)
	team.Spec.MirrorPodDisruptionBudget, platform.Spec.MirrorPodDisruptionBudget = true, true
	team.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	platform.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"application": "shop"}}
	set.Spec.Template.Labels["application"] = "shop"
	w.create(t, team, platform, set)
	w.waitServing(t, ns, "web", 6, image1)
	await.Nil(t, "one budget for both", func() error {
		out, err := w.Kubectl(t.Context(), "-n", ns, "get", "pdb", "-o",
			"jsonpath={range .items[*]}{.metadata.name}={.spec.minAvailable} {end}")
		if err == nil && out != "team=5 " {
			err = errors.New(out)
		}
		return err
	})
	node, _ := busiest(w.pods(t, ns, "web"))
	o := w.observe(t, ns, observer.Options{})
	t.Cleanup(func() {
		if _, err := w.Kubectl(context.WithoutCancel(t.Context()), "uncordon", node); err != nil {
			t.Errorf("uncordoning %s: %v", node, err)
		}
	})
	_, err := w.Kubectl(t.Context(), "drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data",
		"--pod-selector=app=web", "--timeout="+await.Patience.String())
	require.NoError(t, err)
	w.waitServing(t, ns, "web", 6, image1)
	report := o.SettledIn(t.Context(), ns)
	r, seen := report.Rule(ns, "team")
	require.True(t, seen)
	require.LessOrEqual(t, r.MaxOut, 1, "both rules are kept")
	out, err := w.Kubectl(t.Context(), "-n", ns, "get", "podtransitionrule", "web", "-o",
		`jsonpath={.status.conditions[?(@.type=="Ready")].message}`)
	require.NoError(t, err)
	require.Contains(t, out, "the PodDisruptionBudget of PodTransitionRule team selects its Pods")
}
