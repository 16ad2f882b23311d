package install

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const (
	// storyNamespace is where the stories play: a namespace that every overlay works in.
	storyNamespace = "team-a"
	image1         = "web:1"
	image2         = "web:2"
	image3         = "web:3"
)

func (w *world) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		require.NoError(t, w.client.Create(t.Context(), o))
	}
}

// remove deletes objects and waits until they, and what is labelled app=web, are gone.
func (w *world) remove(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		require.NoError(t, client.IgnoreNotFound(w.client.Delete(t.Context(), o)))
	}
	await.Nil(t, "the Pods to be gone", func() error {
		if n := len(w.pods(t, storyNamespace)); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
}

// pods returns the Pods labelled app=web, sorted by name.
func (w *world) pods(t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	pods, err := workload.Pods(t.Context(), w.client, namespace, "web")
	require.NoError(t, err)
	return pods
}

// states are the Pods as they are: who they are and when they last changed.
func states(pods []corev1.Pod) []string {
	var all []string
	for _, pod := range pods {
		all = append(all, fmt.Sprintf("%s %s %s", pod.Name, pod.UID, pod.ResourceVersion))
	}
	return all
}

func (w *world) setImage(t *testing.T, image string) {
	t.Helper()
	require.NoError(t, workload.Patch(t.Context(), w.client, storyNamespace, "web", workload.Image(image)))
}

// updated is nil when n Pods serve the image and no operation is left on them, and the CollaSet says so.
func (w *world) updated(t *testing.T, n int, image string) error {
	t.Helper()
	var waits []error
	pods := w.pods(t, storyNamespace)
	for i := range pods {
		v := podops.Read(&pods[i])
		if pods[i].DeletionTimestamp != nil || pods[i].Spec.Containers[0].Image != image || !v.Ready ||
			len(podops.Operations(v)) > 0 {
			waits = append(waits, fmt.Errorf("%s has %s: %v", v.Name, pods[i].Spec.Containers[0].Image, podops.Explain(v, nil)))
		}
	}
	set := &appsv1alpha1.CollaSet{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: storyNamespace, Name: "web"}, set); err != nil {
		return err
	}
	if set.Status.ObservedGeneration != set.Generation || int(set.Status.UpdatedAvailableReplicas) != n {
		waits = append(waits, fmt.Errorf("the CollaSet says %d of generation %d", set.Status.UpdatedAvailableReplicas,
			set.Status.ObservedGeneration))
	}
	if len(pods) != n {
		waits = append(waits, fmt.Errorf("%d Pods", len(pods)))
	}
	return errors.Join(waits...)
}

func (w *world) waitUpdated(t *testing.T, n int, image string) {
	t.Helper()
	await.Nil(t, fmt.Sprintf("%d Pods to serve %s", n, image), func() error { return w.updated(t, n, image) })
}

// observe watches from outside that no promise is broken.
func (w *world) observe(t *testing.T) *observer.Observer {
	t.Helper()
	o, err := observer.Start(background(t), w.cluster.RESTConfig(), observer.Options{StuckAfter: 2 * await.Patience})
	require.NoError(t, err)
	t.Cleanup(func() {
		report, err := o.Stop()
		if err := errors.Join(err, report.Err()); err != nil {
			t.Error(err)
		}
	})
	return o
}

// requireRuleHeld checks that Pods were out of service, and never more than one.
func requireRuleHeld(t *testing.T, o *observer.Observer) {
	t.Helper()
	report := o.Settled(t.Context())
	require.NoError(t, report.Err())
	r, seen := report.Rule(storyNamespace, "web")
	require.True(t, seen)
	require.Equal(t, 1, r.MaxOut)
}

// story is a job that an installation does.
type story struct {
	// begin sets the scene and has the job done.
	begin func(t *testing.T, w *world)
	// again has it done once more, on what is there, after the controllers were taken away and came back.
	again func(t *testing.T, w *world)
	// scene is what begin made, in the order in which it can be deleted.
	scene func() []client.Object
}

// wholeSuite: Pods with traffic are updated in place while a rule holds.
func wholeSuite(gated bool) story {
	return story{
		begin: func(t *testing.T, w *world) {
			o := w.observe(t)
			w.create(t, workload.Service(storyNamespace, "web"), workload.Rule(storyNamespace, "web", "1"),
				workload.CollaSet(storyNamespace, "web", image1, 3))
			w.waitUpdated(t, 3, image1)
			pods := w.pods(t, storyNamespace)
			for i := range pods {
				v := podops.Read(&pods[i])
				require.True(t, v.Gate)
				require.True(t, v.ServiceAvailable())
			}
			w.waitProtected(t) // without webhook-server a Pod may be Ready before its Service is known
			w.setImage(t, image2)
			w.waitUpdated(t, 3, image2)
			require.Equal(t, workload.UIDs(pods), workload.UIDs(w.pods(t, storyNamespace)), "in place")
			requireRuleHeld(t, o)
			stray := managedPod(storyNamespace, "stray")
			require.NoError(t, w.client.Create(t.Context(), stray, client.DryRunAll))
			require.Equal(t, gated, len(stray.Spec.ReadinessGates) > 0, "webhook-server")
		},
		again: func(t *testing.T, w *world) {
			o := w.observe(t)
			before := workload.UIDs(w.pods(t, storyNamespace))
			w.setImage(t, image3)
			w.waitUpdated(t, 3, image3)
			require.Equal(t, before, workload.UIDs(w.pods(t, storyNamespace)))
			requireRuleHeld(t, o)
		},
		scene: func() []client.Object {
			return []client.Object{workload.CollaSet(storyNamespace, "web", image1, 3),
				workload.Rule(storyNamespace, "web", "1"), workload.Service(storyNamespace, "web")}
		},
	}
}

// collaSetAlone: Pods are updated directly.
var collaSetAlone = story{
	begin: func(t *testing.T, w *world) {
		w.create(t, workload.CollaSet(storyNamespace, "web", image1, 3))
		w.waitUpdated(t, 3, image1)
		w.setImage(t, image2)
		w.waitUpdated(t, 3, image2)
	},
	again: func(t *testing.T, w *world) {
		w.setImage(t, image3)
		w.waitUpdated(t, 3, image3)
	},
	scene: func() []client.Object { return []client.Object{workload.CollaSet(storyNamespace, "web", image1, 3)} },
}

// gatedPod is a managed Pod on which an operator acts by labels.
func gatedPod() *corev1.Pod {
	pod := managedPod(storyNamespace, "web")
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}
	return pod
}

func (w *world) label(t *testing.T, name string, labels string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: storyNamespace, Name: name}}
	require.NoError(t, w.client.Patch(t.Context(), pod,
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":`+labels+`}}`))))
}

func (w *world) request(t *testing.T) {
	t.Helper()
	w.label(t, "web", fmt.Sprintf(`{%q:"%d",%q:"restart"}`, podops.OperatingPrefix+"/restarter", time.Now().UnixNano(),
		podops.OperationTypePrefix+"/restarter"))
}

// view waits until the Pod web is as wanted.
func (w *world) view(t *testing.T, what string, wanted func(*corev1.Pod, podops.View) bool) {
	t.Helper()
	await.Nil(t, what, func() error {
		pod := &corev1.Pod{}
		if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: storyNamespace, Name: "web"}, pod); err != nil {
			return err
		}
		if v := podops.Read(pod); !wanted(pod, v) {
			return fmt.Errorf("%v; labels %v", podops.Explain(v, nil), pod.Labels)
		}
		return nil
	})
}

// operation takes the Pod out of service, and back again.
func operation(t *testing.T, w *world) {
	w.request(t)
	w.view(t, "permission, out of service",
		func(_ *corev1.Pod, v podops.View) bool { return podops.Allowed(v, "restarter", "restart") && !v.Ready })
	w.label(t, "web", fmt.Sprintf(`{%q:null}`, podops.OperatingPrefix+"/restarter"))
	w.view(t, "back in service", func(_ *corev1.Pod, v podops.View) bool {
		return v.Ready &&
			len(podops.Operations(v)) == 0
	})
}

// lifecycleAlone: a Pod that is no CollaSet's goes through an operation.
var lifecycleAlone = story{
	begin: func(t *testing.T, w *world) {
		w.create(t, gatedPod())
		w.view(t, "a Pod in service", func(_ *corev1.Pod, v podops.View) bool { return v.Ready })
		operation(t, w)
	},
	again: operation,
	scene: func() []client.Object { return []client.Object{gatedPod()} },
}

// ruleStatus waits until the rule's status is as wanted.
func (w *world) ruleStatus(t *testing.T, what string, wanted func(appsv1alpha1.PodTransitionRuleStatus) bool) {
	t.Helper()
	await.Nil(t, what, func() error {
		r := &appsv1alpha1.PodTransitionRule{}
		if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: storyNamespace, Name: "web"}, r); err != nil {
			return err
		}
		if r.Status.ObservedGeneration != r.Generation || !wanted(r.Status) {
			return fmt.Errorf("%+v", r.Status)
		}
		return nil
	})
}

// serving makes the Pod web serve, in the place of the lifecycle-controller that is not there.
func (w *world) serving(t *testing.T) {
	t.Helper()
	pod := gatedPod()
	pod.Labels[podops.ServiceAvailableLabel] = "1"
	w.create(t, pod)
	status := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"True"}]}}`, podops.ServiceReadyCondition)
	require.NoError(t, w.client.Status().Patch(t.Context(), pod,
		client.RawPatch(types.StrategicMergePatchType, []byte(status))))
	w.view(t, "a Pod in service", func(_ *corev1.Pod, v podops.View) bool { return v.Ready })
}

// judged has a request granted, and taken back.
func judged(t *testing.T, w *world) {
	w.request(t)
	w.ruleStatus(t, "a grant", func(s appsv1alpha1.PodTransitionRuleStatus) bool { return len(s.Grants) == 1 })
	w.label(t, "web", fmt.Sprintf(`{%q:null,%q:null}`, podops.OperatingPrefix+"/restarter",
		podops.OperationTypePrefix+"/restarter"))
	w.ruleStatus(t, "no grant", func(s appsv1alpha1.PodTransitionRuleStatus) bool { return len(s.Grants) == 0 })
}

// rulesAlone: a request of another operator is judged.
var rulesAlone = story{
	begin: func(t *testing.T, w *world) {
		w.create(t, workload.Rule(storyNamespace, "web", "1"))
		w.serving(t)
		judged(t, w)
	},
	again: judged,
	scene: func() []client.Object {
		return []client.Object{gatedPod(), workload.Rule(storyNamespace, "web", "1")}
	},
}

// waitProtected waits until the traffic of every Pod is protected.
func (w *world) waitProtected(t *testing.T) {
	t.Helper()
	await.Nil(t, "protection of every Pod's traffic", func() error {
		for _, pod := range w.pods(t, storyNamespace) {
			if v := podops.Read(&pod); !protected(&pod, v) {
				return fmt.Errorf("%s has none", pod.Name)
			}
		}
		return nil
	})
}

func protected(pod *corev1.Pod, _ podops.View) bool {
	return slices.ContainsFunc(pod.Finalizers,
		func(f string) bool { return strings.HasPrefix(f, podops.ProtectionFinalizerPrefix) })
}

// evict has an OperationJob evict a Pod, and deletes the job.
func (w *world) evict(t *testing.T, name string) {
	t.Helper()
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: storyNamespace, Name: name}}
	job.Spec.Action = appsv1alpha1.OpsActionEvict
	job.Spec.Targets = []appsv1alpha1.PodOpsTarget{{Name: name}}
	w.create(t, managedPod(storyNamespace, name), job)
	await.Nil(t, "the eviction of Pod "+name, func() error {
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if job.Status.Progress != appsv1alpha1.OperationProgressSucceeded {
			return fmt.Errorf("%+v", job.Status)
		}
		return nil
	})
	require.NoError(t, w.client.Delete(t.Context(), job))
	await.Nil(t, "the job to be gone", func() error {
		err := w.client.Get(t.Context(), client.ObjectKeyFromObject(job), job)
		if err == nil {
			return errNotYet
		}
		return client.IgnoreNotFound(err)
	})
}

// jobsAlone: a job evicts a Pod and leaves others alone.
var jobsAlone = story{
	begin: func(t *testing.T, w *world) {
		w.create(t, managedPod(storyNamespace, "web"))
		w.evict(t, "first")
	},
	again: func(t *testing.T, w *world) { w.evict(t, "second") },
	scene: func() []client.Object { return []client.Object{managedPod(storyNamespace, "web")} },
}

// decorate has a PodDecoration give the Pod web a label.
func (w *world) decorate(t *testing.T, value string) {
	t.Helper()
	body := fmt.Sprintf(`{"spec":{"template":{"metadata":[{"patchPolicy":"Overwrite","labels":{"tier":%q}}]}}}`, value)
	require.NoError(t, w.client.Patch(t.Context(), labelling(), client.RawPatch(types.MergePatchType, []byte(body))))
	w.view(t, "the label "+value, func(pod *corev1.Pod, _ podops.View) bool { return pod.Labels["tier"] == value })
	await.Nil(t, "the PodDecoration to count the Pod", func() error {
		d := labelling()
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil {
			return err
		}
		if d.Status.ObservedGeneration != d.Generation || d.Status.UpdatedPods != 1 {
			return fmt.Errorf("%+v", d.Status)
		}
		return nil
	})
}

// labelling is a PodDecoration of the Pod web.
func labelling() *appsv1alpha1.PodDecoration {
	d := &appsv1alpha1.PodDecoration{ObjectMeta: metav1.ObjectMeta{Namespace: storyNamespace, Name: "labelling"}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	return d
}

// decorationsAlone: a Pod that runs gets a label, which takes it out of no service, and a later one.
var decorationsAlone = story{
	begin: func(t *testing.T, w *world) {
		w.create(t, managedPod(storyNamespace, "web"), labelling())
		w.decorate(t, "first")
	},
	again: func(t *testing.T, w *world) { w.decorate(t, "second") },
	scene: func() []client.Object { return []client.Object{managedPod(storyNamespace, "web"), labelling()} },
}

// trafficAlone: a Pod in traffic is protected, and let go when its Service is.
var trafficAlone = story{
	begin: func(t *testing.T, w *world) {
		w.create(t, workload.Service(storyNamespace, "web"))
		w.serving(t)
		w.view(t, "protection while there is traffic", protected)
	},
	again: func(t *testing.T, w *world) {
		require.NoError(t, w.client.Delete(t.Context(), workload.Service(storyNamespace, "web")))
		w.view(t, "no protection without traffic", func(pod *corev1.Pod, v podops.View) bool { return !protected(pod, v) })
		w.create(t, workload.Service(storyNamespace, "web"))
		w.view(t, "protection once more", protected)
		require.NoError(t, w.client.Delete(t.Context(), workload.Service(storyNamespace, "web")))
		w.view(t, "no protection in the end", func(pod *corev1.Pod, v podops.View) bool { return !protected(pod, v) })
	},
	scene: func() []client.Object {
		return []client.Object{managedPod(storyNamespace, "web"), workload.Service(storyNamespace, "web")}
	},
}

// admission: managed Pods get their gate, and what can never work is refused.
func admission(t *testing.T, w *world) {
	w.waitAsked(t)
	twice := &appsv1alpha1.ResourceContext{
		ObjectMeta: metav1.ObjectMeta{Namespace: storyNamespace, Name: "twice"},
		Spec:       appsv1alpha1.ResourceContextSpec{Contexts: []appsv1alpha1.ContextDetail{{ID: 1}, {ID: 1}}},
	}
	require.ErrorContains(t, w.client.Create(t.Context(), twice, client.DryRunAll), "spec.contexts[1].id")
}

var webhookAlone = story{
	begin: func(t *testing.T, w *world) {
		w.create(t, managedPod(storyNamespace, "web"))
		w.view(t, "the gate", func(_ *corev1.Pod, v podops.View) bool { return v.Gate })
		admission(t, w)
	},
	again: admission,
	scene: func() []client.Object { return []client.Object{managedPod(storyNamespace, "web")} },
}
