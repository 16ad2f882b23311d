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

// TestDrainOfGroups drains a node that has Pods of several groups, labelled as a LeaderWorkerSet labels them, under a
// rule that bounds groups alone: the observer judges that no Pod of a second group is taken out of service meanwhile.
func TestDrainOfGroups(t *testing.T) {
	w := alone(t) // Pods of other tests are on the node as well
	ns := w.namespace(t)
	o := w.observe(t, ns, observer.Options{Graceful: true})
	const (
		setLabel, groupLabel = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"
		groups, each         = 4, 8
	)
	one := workload.Rule(ns, "web", "1")
	one.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{setLabel: "web"}}
	one.Spec.Rules[0].AvailablePolicy = &appsv1alpha1.AvailableRule{
		Groups: &appsv1alpha1.GroupBudget{GroupKey: groupLabel, SetKey: setLabel},
	}
	w.create(t, one)
	for i := range groups {
		group := deployment(ns, fmt.Sprintf("web-%d", i), each)
		group.Spec.Template.Labels[setLabel], group.Spec.Template.Labels[groupLabel] = "web", fmt.Sprint(i)
		w.create(t, group)
	}
	serving := func() (all []corev1.Pod) {
		for i := range groups {
			name := fmt.Sprintf("web-%d", i)
			w.waitServing(t, ns, name, each, image1)
			all = append(all, w.pods(t, ns, name)...)
		}
		return all
	}
	node, leaving := busiest(serving())
	of := map[string]int{}
	for i := range leaving {
		of[leaving[i].Labels[groupLabel]]++
	}
	require.GreaterOrEqual(t, len(of), 3, "the scheduler spreads Pods over the nodes: %v", of)

	w.drain(t, node)
	for _, pod := range serving() {
		require.NotEqual(t, node, pod.Spec.NodeName, "%s is on the drained node", pod.Name)
	}
	report := o.SettledIn(t.Context(), ns)
	require.NoError(t, report.Err())
	require.Zero(t, report.Gaps, "the observer missed nothing")
	rule, seen := report.Rule(ns, "web")
	require.True(t, seen)
	require.Positive(t, rule.MaxOut, "the drain took Pods out of service, and the observer saw it")
}

// drain drains a node, which takes Pods again when the test is over.
func (w *world) drain(t *testing.T, node string) {
	t.Helper()
	t.Cleanup(func() {
		if out, err := w.Kubectl(context.WithoutCancel(t.Context()), "uncordon", node); err != nil {
			t.Errorf("uncordoning %s: %v %s", node, err, out)
		}
	})
	begin := time.Now()
	out, err := w.Kubectl(t.Context(), "drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data",
		"--timeout="+await.Patience.String())
	require.NoError(t, err, out)
	t.Logf("the drain took %s", time.Since(begin).Round(100*time.Millisecond))
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
	w.drain(t, node)
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
