package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// standstill is how long a thing must not happen to count as not happening. What
// is not held back happens within half a second.
const standstill = 2 * time.Second

// TestDegradation has a story for each part of the suite that may be missing.
func TestDegradation(t *testing.T) {
	t.Run("collaset alone without the protocol", func(t *testing.T) {
		w := alone(t)
		w.down(t, suite.Lifecycle, suite.PodTransitionRule, suite.ResourceConsist, suite.OperationJob, suite.Webhook)
		w.reconfigure(t, suite.CollaSet, "--pod-ops-lifecycle=false")
		ns := w.namespace(t)
		w.observe(t, ns, observer.Options{Direct: true})
		w.create(t, workload.CollaSet(ns, "web", image1, 4))
		ready := func(n int, image string) func() error {
			return func() error {
				pods := w.pods(t, ns, "web")
				at := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool {
					return p.Spec.Containers[0].Image != image || !podops.Read(&p).Ready
				})
				if len(pods) != n || len(at) != n {
					return fmt.Errorf("%d Pods, %d Ready with %s", len(pods), len(at), image)
				}
				return nil
			}
		}
		await.Nil(t, "4 Ready Pods", ready(4, image1))
		pods := w.pods(t, ns, "web")
		for i := range pods {
			require.False(t, podops.Read(&pods[i]).Gate, "a Pod without the protocol has no gate that nobody opens")
		}
		before := workload.UIDs(pods)
		w.setImage(t, ns, "web", image2)
		await.Nil(t, "the update", ready(4, image2))
		require.Equal(t, before, workload.UIDs(w.pods(t, ns, "web")))
		w.scale(t, ns, "web", 2)
		await.Nil(t, "fewer Pods", ready(2, image2))
	})

	t.Run("lifecycle-controller down", func(t *testing.T) {
		w := alone(t)
		ns := w.namespace(t)
		o := w.observe(t, ns, observer.Options{})
		w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "2"), workload.CollaSet(ns, "web", image1, 6))
		w.waitServing(t, ns, "web", 6, image1)
		w.setImage(t, ns, "web", image2)
		await.Nil(t, "an operation in flight", func() error {
			if len(w.waiting(t, ns, "web", podops.WaitFinalizer))+len(w.waiting(t, ns, "web", podops.WaitOperator)) == 0 {
				return errors.New("none")
			}
			return nil
		})
		w.down(t, suite.Lifecycle)
		await.Nil(t, "everything waiting for lifecycle-controller or a rule", func() error {
			pods := w.pods(t, ns, "web")
			for i := range pods {
				if v := podops.Read(&pods[i]); v.Ready != (v.ServiceReady == corev1.ConditionTrue) {
					return fmt.Errorf("the kubelet of %s has still to say that Ready is not %t", pods[i].Name, v.Ready)
				}
				for _, o := range podops.Operations(podops.Read(&pods[i])) {
					if o.Phase == podops.PhaseOperate || o.Phase == podops.PhasePreparing {
						return fmt.Errorf("%s is in %s", pods[i].Name, o.Phase)
					}
				}
			}
			return nil
		})
		out := offline(w.pods(t, ns, "web"))
		await.Always(t, standstill, "no further Pod goes out of service, and none comes back", func() error {
			if now := offline(w.pods(t, ns, "web")); !slices.Equal(now, out) {
				return fmt.Errorf("out of service were %v and are %v", out, now)
			}
			return nil
		})
		require.NoError(t, w.Restart(t.Context(), suite.Lifecycle))
		w.waitServing(t, ns, "web", 6, image2)
		requireWithin(t, o, ns, 2)
	})

	t.Run("podtransitionrule-controller down", func(t *testing.T) {
		w := alone(t)
		ns := w.namespace(t)
		o := w.observe(t, ns, observer.Options{})
		w.create(t, workload.CollaSet(ns, "web", image1, 4), workload.CollaSet(ns, "free", image1, 3))
		w.waitServing(t, ns, "web", 4, image1)
		w.waitServing(t, ns, "free", 3, image1)
		w.down(t, suite.PodTransitionRule)
		w.create(t, workload.Rule(ns, "web", "1"))
		w.setImage(t, ns, "web", image2)
		w.setImage(t, ns, "free", image2)
		w.waitServing(t, ns, "free", 3, image2)
		await.Nil(t, "the selected Pods to say that they wait for the rule", func() error {
			if n := len(w.waiting(t, ns, "web", podops.WaitRule)); n != 4 {
				return fmt.Errorf("%d of 4 do", n)
			}
			return nil
		})
		await.Always(t, standstill, "a rule is in force from its creation",
			func() error { return w.inService(t, ns, "web", 4, image1) })
		require.NoError(t, w.Restart(t.Context(), suite.PodTransitionRule))
		w.waitServing(t, ns, "web", 4, image2)
		requireWithin(t, o, ns, 1)
	})

	t.Run("resourceconsist-controller down", func(t *testing.T) {
		w := alone(t)
		ns := w.namespace(t)
		w.observe(t, ns, observer.Options{})
		w.create(t, workload.Service(ns, "web"), workload.CollaSet(ns, "web", image1, 3),
			workload.CollaSet(ns, "free", image1, 2))
		w.waitServing(t, ns, "web", 3, image1)
		w.waitServing(t, ns, "free", 2, image1)
		await.Nil(t, "the Service's finalizer on every Pod", func() error {
			pods := w.pods(t, ns, "web")
			for i := range pods {
				if !podops.Read(&pods[i]).Protected() {
					return errors.New(pods[i].Name + " has none")
				}
			}
			return nil
		})
		w.down(t, suite.ResourceConsist)
		w.setImage(t, ns, "web", image2)
		w.setImage(t, ns, "free", image2)
		w.waitServing(t, ns, "free", 2, image2)
		await.Nil(t, "the Pods to name the finalizer that they wait for", func() error {
			if n := len(w.waiting(t, ns, "web", podops.WaitFinalizer)); n != 3 {
				return fmt.Errorf("%d of 3 do", n)
			}
			return nil
		})
		set := workload.CollaSet(ns, "web", image1, 3)
		await.Nil(t, "the CollaSet to say so as well", func() error {
			if err := w.client.Get(t.Context(), keyOf(set), set); err != nil {
				return err
			}
			if len(set.Status.Blockers) == 0 {
				return errors.New("no blockers in its status")
			}
			return nil
		})
		await.Always(t, standstill, "no Pod is operated that a cooperator holds", func() error {
			pods := w.pods(t, ns, "web")
			for i := range pods {
				if pods[i].Spec.Containers[0].Image != image1 {
					return errors.New(pods[i].Name + " was changed")
				}
			}
			return nil
		})
		require.NoError(t, w.Restart(t.Context(), suite.ResourceConsist))
		w.waitServing(t, ns, "web", 3, image2)
	})

	t.Run("operationjob-controller down", func(t *testing.T) {
		w := alone(t)
		ns := w.namespace(t)
		w.observe(t, ns, observer.Options{})
		w.create(t, workload.CollaSet(ns, "web", image1, 3))
		w.waitServing(t, ns, "web", 3, image1)
		w.down(t, suite.OperationJob)
		job := operationJob(ns, "replace", appsv1alpha1.OpsActionReplace, w.pods(t, ns, "web")[0].Name)
		w.create(t, job)
		w.setImage(t, ns, "web", image2)
		w.waitServing(t, ns, "web", 3, image2)
		before := workload.UIDs(w.pods(t, ns, "web"))
		await.Always(t, standstill, "the job waits", func() error {
			if now := workload.UIDs(w.pods(t, ns, "web")); !slices.Equal(now, before) {
				return fmt.Errorf("the Pods were %v and are %v", before, now)
			}
			return nil
		})
		require.NoError(t, w.Restart(t.Context(), suite.OperationJob))
		w.waitSucceeded(t, job)
		w.waitServing(t, ns, "web", 3, image2)
	})

	t.Run("poddecoration-controller down", func(t *testing.T) {
		w := alone(t)
		ns := w.namespace(t)
		w.observe(t, ns, observer.Options{})
		d := &appsv1alpha1.PodDecoration{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "sidecar"}}
		d.Spec.Selector = &metav1.LabelSelector{}
		proxy := func(image string) []*corev1.Container {
			return []*corev1.Container{{Name: "proxy", Image: image, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
		}
		d.Spec.Template.InitContainers = proxy("proxy:1")
		w.create(t, d)
		await.Nil(t, "its revision", func() error {
			if err := w.client.Get(t.Context(), keyOf(d), d); err != nil || d.Status.UpdatedRevision != "" {
				return err
			}
			return errors.New("it has none")
		})
		w.create(t, workload.CollaSet(ns, "web", image1, 3))
		w.waitServing(t, ns, "web", 3, image1)
		w.down(t, suite.PodDecoration)
		require.NoError(t, w.client.Get(t.Context(), keyOf(d), d))
		d.Spec.Template.InitContainers = proxy("proxy:2")
		require.NoError(t, w.client.Update(t.Context(), d))
		w.setImage(t, ns, "web", image2)
		require.NoError(t, workload.Patch(t.Context(), w.client, ns, "web", workload.Replicas(4)))
		w.waitServing(t, ns, "web", 4, image2)
		sidecars := func(image string) error {
			pods := w.pods(t, ns, "web")
			for i := range pods {
				if c := pods[i].Spec.InitContainers; len(c) != 1 || c[0].Image != image {
					return fmt.Errorf("%s has %+v", pods[i].Name, c)
				}
			}
			return nil
		}
		await.Always(t, standstill, "Pods are updated and created with what is decided", func() error {
			return sidecars("proxy:1")
		})
		require.NoError(t, w.Restart(t.Context(), suite.PodDecoration))
		await.Nil(t, "the new template", func() error { return sidecars("proxy:2") })
		w.waitServing(t, ns, "web", 4, image2)
	})

	t.Run("webhook-server down", func(t *testing.T) {
		w := alone(t)
		w.down(t, suite.Webhook)
		ns := w.namespace(t)
		w.observe(t, ns, observer.Options{})
		w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "1"), workload.CollaSet(ns, "web", image1, 3))
		w.waitServing(t, ns, "web", 3, image1)
		pods := w.pods(t, ns, "web")
		for i := range pods {
			require.True(t, podops.Read(&pods[i]).Gate, "the Pods of a CollaSet get their gate from it")
		}
		w.setImage(t, ns, "web", image2)
		w.waitServing(t, ns, "web", 3, image2)
	})

	t.Run("collaset-controller down", func(t *testing.T) {
		w := alone(t)
		ns := w.namespace(t)
		o := w.observe(t, ns, observer.Options{})
		w.create(t, workload.Service(ns, "web"), workload.Rule(ns, "web", "1"), workload.CollaSet(ns, "web", image1, 3))
		w.waitServing(t, ns, "web", 3, image1)
		w.down(t, suite.CollaSet)
		pods := w.pods(t, ns, "web")
		for i := range pods {
			w.operateByLabels(t, &pods[i], "restarter", image2)
		}
		require.NoError(t, workload.AtRest(t.Context(), w.client, ns, "web", 3, image2), "Pods run on")
		requireWithin(t, o, ns, 1)
	})

	t.Run("collaset-controller down in the midst of an update", func(t *testing.T) {
		w := alone(t)
		ns := w.namespace(t)
		w.observe(t, ns, observer.Options{})
		w.create(t, workload.Service(ns, "web"), workload.CollaSet(ns, "web", image1, 2))
		w.waitServing(t, ns, "web", 2, image1)
		require.NoError(t, w.Cluster.StopComponent("kwok"))
		start := func() error { return w.Cluster.StartComponent(context.WithoutCancel(t.Context()), "kwok") }
		t.Cleanup(func() {
			if t.Failed() {
				_ = start() // it may run already
			}
		})
		w.setImage(t, ns, "web", image2)
		await.Nil(t, "the Pods to be changed, and not restarted", func() error {
			pods := w.pods(t, ns, "web")
			for i := range pods {
				if pods[i].Spec.Containers[0].Image != image2 {
					return errors.New(pods[i].Name + " is not")
				}
			}
			return nil
		})
		w.down(t, suite.CollaSet)
		require.NoError(t, start())
		w.waitSeen(t, ns)
		w.waitServing(t, ns, "web", 2, image2)
	})
}

// TestWithoutTheKindOfRules has its own cluster, to which the CRD of rules comes late.
func TestWithoutTheKindOfRules(t *testing.T) {
	t.Parallel()
	w := own(t, suite.Config{
		Name: "e2e-no-rules", WithoutCRDs: []string{"podtransitionrules.apps.kusionstack.io"},
	})
	const ns = "default"
	o := w.observe(t, ns, observer.Options{})
	w.create(t, workload.Service(ns, "web"), workload.CollaSet(ns, "web", image1, 3))
	w.waitServingWithoutRules(t, ns, "web", 3, image1)
	w.setImage(t, ns, "web", image2)
	w.waitServingWithoutRules(t, ns, "web", 3, image2)
	require.NoError(t, w.Died())

	t.Log("the CRD is installed; nobody is restarted")
	_, err := w.Kubectl(t.Context(), "apply", "--server-side", "-k", filepath.Join("..", "..", "deploy", "crd"))
	require.NoError(t, err)
	require.NoError(t, localkube.WaitForCRDs(t.Context(), w.RESTConfig()))
	for _, component := range []string{suite.PodTransitionRule, suite.Lifecycle} {
		await.Nil(t, component+" to notice", func() error {
			content, err := os.ReadFile(w.Logs(component))
			if err == nil && !strings.Contains(string(content), "PodTransitionRule is served now") {
				err = errors.New("its log does not say so")
			}
			return err
		})
	}
	r := workload.Rule(ns, "web", "1")
	w.create(t, r)
	await.Nil(t, "the rule in force", func() error {
		if err := w.client.Get(t.Context(), keyOf(r), r); err != nil {
			return err
		}
		if r.Status.ObservedGeneration < 1 {
			return errors.New("no status yet")
		}
		return nil
	})
	o.Settled(t.Context()) // it has come to know of rules, too
	w.setImage(t, ns, "web", image3)
	w.waitServing(t, ns, "web", 3, image3)
	requireWithin(t, o, ns, 1)
}

// waitSeen waits until the simulated kubelets run every Pod as it is, and touches those that they have overlooked:
// once in some hundred starts kwok v0.8.0 does nothing about the Pods that there are until they change, as its log
// shows. Kubelets look at all of theirs.
func (w *world) waitSeen(t *testing.T, ns string) {
	t.Helper()
	touched := time.Now()
	await.Nil(t, "the kubelets to see every Pod", func() error {
		var late []string
		pods := w.pods(t, ns, "web")
		for i := range pods {
			if p := &pods[i]; len(p.Status.ContainerStatuses) == 0 ||
				p.Status.ContainerStatuses[0].Image != p.Spec.Containers[0].Image {
				late = append(late, p.Name)
			}
		}
		if len(late) == 0 {
			return nil
		}
		if now := time.Now(); now.Sub(touched) > 5*time.Second {
			touched = now
			for _, name := range late {
				t.Logf("kwok has overlooked %s", name)
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
				patch := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/touched":%q}}}`, now.Format(time.RFC3339Nano))
				if err := w.client.Patch(t.Context(), pod, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
					return err
				}
			}
		}
		return fmt.Errorf("not seen: %v", late)
	})
}

// offline names the Pods that are not Ready, sorted.
func offline(pods []corev1.Pod) []string {
	var names []string
	for i := range pods {
		if !podops.Read(&pods[i]).Ready {
			names = append(names, pods[i].Name)
		}
	}
	slices.Sort(names)
	return names
}
