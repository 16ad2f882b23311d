package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// statefulSet is a workload whose Pods keep their names.
func statefulSet(namespace, name string, n int32) *appsv1.StatefulSet {
	template := deployment(namespace, name, n).Spec.Template
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To(n), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template:            template,
			PodManagementPolicy: appsv1.ParallelPodManagement,
		},
	}
}

// busiest is the node that has most of the Pods, and those that it has.
func busiest(pods []corev1.Pod) (node string, on []corev1.Pod) {
	at := map[string][]corev1.Pod{}
	for i := range pods {
		name := pods[i].Spec.NodeName
		if at[name] = append(at[name], pods[i]); len(at[name]) > len(on) {
			node, on = name, at[name]
		}
	}
	return node, on
}

// TestDrain drains a node while a rollout runs: Pods of a CollaSet and of a
// Deployment under one rule, and of a StatefulSet under none.
func TestDrain(t *testing.T) {
	w := alone(t) // Pods of other tests are on the node as well
	ns := w.namespace(t)
	o := w.observe(t, ns, observer.Options{Graceful: true})
	const allowed = 2
	one := workload.Rule(ns, "web", fmt.Sprint(allowed))
	one.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"group": "shop"}}
	set, guest, db := workload.CollaSet(ns, "web", image1, 8), deployment(ns, "guest", 5), statefulSet(ns, "db", 3)
	set.Spec.Template.Labels["group"], guest.Spec.Template.Labels["group"] = "shop", "shop"
	w.create(t, workload.Service(ns, "web"), workload.Service(ns, "guest"), one, set, guest, db)
	w.waitServing(t, ns, "web", 8, image1)
	w.waitServing(t, ns, "guest", 5, image1)
	w.waitServing(t, ns, "db", 3, image1)
	node, stateful := busiest(w.pods(t, ns, "db"))
	on := func(name string) (names []string) {
		pods := w.pods(t, ns, name)
		for i := range pods {
			if pods[i].Spec.NodeName == node {
				names = append(names, pods[i].Name)
			}
		}
		return names
	}
	require.NotEmpty(t, on("web"), "the scheduler spreads Pods over the nodes")
	require.NotEmpty(t, on("guest"))
	before := append(w.pods(t, ns, "web"), append(w.pods(t, ns, "guest"), w.pods(t, ns, "db")...)...)

	out, err := w.Kubectl(t.Context(), "drain", node, "--dry-run=server", "--ignore-daemonsets", "--force")
	require.NoError(t, err, out)
	for i := range before {
		now := &corev1.Pod{}
		require.NoError(t, w.client.Get(t.Context(), keyOf(&before[i]), now))
		require.Equal(t, before[i].UID, now.UID)
		require.NotContains(t, now.Labels, appsv1alpha1.ToDeleteLabel, "a dry run has no effect")
	}

	w.setImage(t, ns, "web", image2)
	await.Nil(t, "a rollout that runs", func() error {
		if !slices.ContainsFunc(w.pods(t, ns, "web"),
			func(p corev1.Pod) bool { return p.Spec.Containers[0].Image == image2 }) {
			return errors.New("no Pod has the new image")
		}
		return nil
	})
	t.Cleanup(func() {
		if out, err := w.Kubectl(context.WithoutCancel(t.Context()), "uncordon", node); err != nil {
			t.Errorf("uncordoning %s: %v %s", node, err, out)
		}
	})
	begin := time.Now()
	out, err = w.Kubectl(t.Context(), "drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data",
		"--timeout="+await.Patience.String())
	require.NoError(t, err, out)
	t.Logf("the drain took %s", time.Since(begin).Round(100*time.Millisecond))
	for _, name := range []string{"web", "guest", "db"} {
		require.Empty(t, on(name), "Pods of %s on the drained node", name)
	}

	w.waitServing(t, ns, "web", 8, image2)
	w.waitServing(t, ns, "guest", 5, image1)
	w.waitServing(t, ns, "db", 3, image1)
	requireWithin(t, o, ns, allowed)
	report := o.Report()
	for i := range stateful {
		place := ns + "/" + stateful[i].Name
		require.Equal(t, 2, report.UIDs[place], "%s was evicted once, and the Pod that has its name now was not: %v", place,
			report.UIDs)
	}
}
