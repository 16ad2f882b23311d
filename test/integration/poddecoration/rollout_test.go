package poddecoration_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// follow calls see with every change of a Pod of the namespace, until the test is over.
func (s *story) follow(see func(event watch.EventType, pod *corev1.Pod)) {
	s.Helper()
	c, err := client.NewWithWatch(s.RESTConfig(), client.Options{Scheme: s.Client.Scheme()})
	require.NoError(s, err)
	ctx, cancel := context.WithCancel(s.Context())
	w, err := c.Watch(ctx, &corev1.PodList{}, client.InNamespace(s.namespace))
	require.NoError(s, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				see(event.Type, pod)
			}
		}
	})
	s.Cleanup(func() { cancel(); w.Stop(); wg.Wait() })
}

// outages counts how often each Pod has left service.
type outages struct {
	mu    sync.Mutex
	serve map[types.UID]bool
	count map[types.UID]int
}

func (o *outages) see(event watch.EventType, pod *corev1.Pod) {
	o.mu.Lock()
	defer o.mu.Unlock()
	serves := event != watch.Deleted && pod.DeletionTimestamp == nil && podops.Read(pod).ServiceAvailable()
	if o.serve[pod.UID] && !serves {
		o.count[pod.UID]++
	}
	o.serve[pod.UID] = serves
}

// TestATemplateAndADecorationAtOnce: each Pod is out of service once for both, in place and by another Pod.
func TestATemplateAndADecorationAtOnce(t *testing.T) {
	s := begin(t, "1")
	s.decoration("proxy", sidecar("proxy:1"))
	s.condition("proxy", appsv1alpha1.ReasonRolloutComplete)
	s.collaSet("colla", 3)
	s.serve(3)
	seen := &outages{serve: map[types.UID]bool{}, count: map[types.UID]int{}}
	s.follow(seen.see)
	before := s.pods()

	// The set begins nothing until it knows of both.
	atOnce := func(spec, image string) {
		patch := func(text string) {
			require.NoError(t, workload.Patch(t.Context(), s.Client, s.namespace, "colla", text))
		}
		patch(`{"spec":{"paused":true}}`)
		s.decoration("proxy", spec)
		s.await("the Pods to be told", func() error {
			for _, p := range s.pods() {
				if made, desired := decoration.Keys(p.Annotations); made == desired {
					return fmt.Errorf("%s is not", p.Name)
				}
			}
			return nil
		})
		patch(workload.Image(image))
		patch(`{"spec":{"paused":false}}`)
	}
	atOnce(sidecar("proxy:2"), "app:v2")
	s.await("both to be there", func() error { return equal(3, updated(s.pods(), "app:v2", "proxy:2")) })
	s.serve(3)
	assert.Equal(t, uids(before), uids(s.pods()))

	atOnce(`{template: {containers: [{name: proxy, image: "proxy:3"}]}}`, "app:v3")
	s.await("both to be there", func() error {
		n := 0
		for _, p := range s.pods() {
			images := map[string]bool{}
			for _, c := range p.Spec.Containers {
				images[c.Image] = true
			}
			if images["proxy:3"] && images["app:v3"] && len(p.Spec.InitContainers) == 0 {
				n++
			}
		}
		return equal(3, n)
	})
	s.serve(3)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for _, p := range before {
		assert.Equal(t, 2, seen.count[p.UID], "once in place, and once to go: %s", p.Name)
	}
	assert.Len(t, seen.count, 3, "no other Pod was ever out of service after it served")
}

// TestASidecarThatDoesNotStartIsTakenBack within the budget, and a rollout of the application goes on after that.
func TestASidecarThatDoesNotStartIsTakenBack(t *testing.T) {
	s := begin(t, "1")
	s.decoration("proxy", sidecar("proxy:1"))
	s.condition("proxy", appsv1alpha1.ReasonRolloutComplete)
	s.collaSet("colla", 3)
	s.deployment("deploy", 3)
	s.serve(6)
	before := s.pods()
	s.decoration("proxy", `{progressDeadlineSeconds: 10, updateStrategy: {failurePolicy: Rollback}, `+
		sidecar("proxy:non-exist")[1:])
	status := s.condition("proxy", appsv1alpha1.ReasonRolledBack)
	require.NotNil(t, status.Halted)
	assert.Equal(t, status.CurrentRevision, status.Halted.RollbackTo)
	s.await("the sidecars to be back", func() error { return equal(map[string]int{"proxy:1": 6}, proxies(s.pods())) })
	s.serve(6)
	assert.Equal(t, uids(before), uids(s.pods()))
	require.NoError(t, workload.Patch(t.Context(), s.Client, s.namespace, "colla", workload.Image("app:v2")))
	s.await("the application to be updated", func() error { return equal(3, updated(s.pods(), "app:v2", "proxy:1")) })
	s.serve(6)
}

// updated counts the Pods with both images.
func updated(pods []corev1.Pod, app, proxy string) (n int) {
	for _, p := range pods {
		if len(p.Spec.InitContainers) == 1 && p.Spec.InitContainers[0].Image == proxy && p.Spec.Containers[0].Image == app {
			n++
		}
	}
	return n
}

// recorded is an error unless the ResourceContext of a CollaSet tells Pods with one image of the sidecar from those
// with another: collaset-controller stores what a Pod has when it sees it.
func (s *story) recorded(name string, imageOf map[string]string) error {
	entries := &appsv1alpha1.ResourceContext{}
	if err := s.Get(s.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, entries); err != nil {
		return err
	}
	images := map[string]string{} // by what is recorded
	for _, e := range entries.Spec.Contexts {
		key, image := e.Data[appsv1alpha1.ContextPodDecorationRevisions], imageOf[strconv.Itoa(e.ID)]
		if other, known := images[key]; known && other != image {
			return fmt.Errorf("%q is recorded for %s and for %s", key, other, image)
		}
		images[key] = image
	}
	return nil
}

// TestACanaryIsNeverLarger: while Pods are lost, and their workloads are scaled, no more have the new revision than the
// partition allows, and a Pod that is created again for an instance ID has the revision that the one before had.
func TestACanaryIsNeverLarger(t *testing.T) {
	s := begin(t, "100%")
	s.decoration("proxy", sidecar("proxy:1"))
	s.condition("proxy", appsv1alpha1.ReasonRolloutComplete)
	s.collaSet("colla", 10)
	s.deployment("deploy", 10)
	s.serve(20)
	var mu sync.Mutex
	live, allowed, most := map[types.UID]bool{}, 0, 0
	s.follow(func(event watch.EventType, pod *corev1.Pod) {
		mu.Lock()
		defer mu.Unlock()
		delete(live, pod.UID)
		if event != watch.Deleted && pod.DeletionTimestamp == nil {
			live[pod.UID] = proxies([]corev1.Pod{*pod})["proxy:2"] > 0
		}
		n := 0
		for is := range maps.Values(live) {
			if is {
				n++
			}
		}
		allowed, most = max(allowed, len(live)-18), max(most, n)
		if n > allowed {
			t.Errorf("%d Pods have the new revision, %d of %d may", n, allowed, len(live))
		}
	})
	canary := `{updateStrategy: {rollingUpdate: {partition: 18}}, ` + sidecar("proxy:2")[1:]
	s.decoration("proxy", canary)
	s.await("the canary", func() error { return equal(map[string]int{"proxy:1": 18, "proxy:2": 2}, proxies(s.pods())) })

	imageOf := map[string]string{}
	for _, p := range s.pods() {
		if id := p.Labels[appsv1alpha1.InstanceIDLabel]; id != "" {
			imageOf[id] = p.Spec.InitContainers[0].Image
		}
	}
	s.await("the canary to be recorded", func() error { return s.recorded("colla", imageOf) })
	for i, p := range s.pods() {
		if i%3 == 0 {
			require.NoError(t, s.Delete(t.Context(), &p, client.GracePeriodSeconds(0)))
		}
	}
	s.serve(20)
	for _, p := range s.pods() {
		if id := p.Labels[appsv1alpha1.InstanceIDLabel]; id != "" {
			assert.Equal(t, imageOf[id], p.Spec.InitContainers[0].Image, "instance ID %s", id)
		}
	}
	for _, n := range []int{13, 6, 10} {
		require.NoError(t, workload.Patch(t.Context(), s.Client, s.namespace, "colla", workload.Replicas(n)))
		scale := client.RawPatch(types.MergePatchType, []byte(workload.Replicas(n)))
		require.NoError(t, s.Patch(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace,
			Name: "deploy"}}, scale))
		s.serve(2 * n)
	}
	mu.Lock()
	assert.GreaterOrEqual(t, most, 2)
	mu.Unlock()
	s.decoration("proxy", sidecar("proxy:2"))
	mu.Lock()
	allowed = 1000
	mu.Unlock()
	s.condition("proxy", appsv1alpha1.ReasonRolloutComplete)
	assert.Equal(t, map[string]int{"proxy:2": 20}, proxies(s.pods()))
}

// TestD13ADecorationIsNotHeldUpByAReplacement: the Pod that takes the place of another is made as it is to be.
func TestD13ADecorationIsNotHeldUpByAReplacement(t *testing.T) {
	s := begin(t, "1")
	s.decoration("proxy", sidecar("proxy:1"))
	s.condition("proxy", appsv1alpha1.ReasonRolloutComplete)
	s.collaSet("colla", 2)
	s.serve(2)
	origin := s.pods()[0]
	mark := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+appsv1alpha1.ToReplaceLabel+`":"true"}}}`))
	require.NoError(t, s.Patch(t.Context(), origin.DeepCopy(), mark))
	s.decoration("proxy", sidecar("proxy:2"))
	s.await("the replacement and the update", func() error {
		pods := s.pods()
		if uids(pods)[origin.Name] != "" {
			return fmt.Errorf("Pod %s is there", origin.Name)
		}
		return equal(map[string]int{"proxy:2": 2}, proxies(pods))
	})
	s.serve(2)
}

// TestD16WhatHappensIsTold: by conditions and events.
func TestD16WhatHappensIsTold(t *testing.T) {
	s := begin(t, "1")
	s.deployment("deploy", 2)
	s.serve(2)
	s.decoration("labels", `{template: {metadata: [{labels: {tier: gold}}]}}`)
	status := s.condition("labels", appsv1alpha1.ReasonRolloutComplete)
	conditions := map[string]metav1.ConditionStatus{}
	for _, c := range status.Conditions {
		conditions[c.Type] = c.Status
	}
	assert.Equal(t, map[string]metav1.ConditionStatus{"Ready": "True", "Reconciling": "False", "Stalled": "False",
		"Progressing": "True"}, conditions)
	s.await("events", func() error {
		var list corev1.EventList
		require.NoError(t, s.List(t.Context(), &list, client.InNamespace(s.namespace)))
		reasons := map[string]bool{}
		for i := range list.Items {
			if list.Items[i].InvolvedObject.Kind == appsv1alpha1.PodDecorationKind {
				reasons[list.Items[i].Reason] = true
			}
		}
		return equal(map[string]bool{"Updating": true, "RolloutComplete": true}, reasons)
	})
}

// TestPodsThatWereCreatedBare: webhook-server is away while Pods are created. All of them are decorated after that, as
// many at a time as the rule and maxUnavailable allow.
func TestPodsThatWereCreatedBare(t *testing.T) {
	s := beginAlone(t, "10%")
	s.breaks = []observer.Invariant{observer.Writers} // no component is told of what is created meanwhile
	s.decoration("proxy", sidecar("proxy:1"))
	s.condition("proxy", appsv1alpha1.ReasonRolloutComplete)
	require.NoError(t, s.StopComponent(suite.Webhook))
	s.deployment("deploy", 50)
	s.collaSet("colla", 50)
	s.await("the Pods", func() error { return equal(100, len(s.pods())) })
	assert.Less(t, proxies(s.pods())["proxy:1"], 60, "those of the Deployment are bare")
	require.NoError(t, s.Restart(t.Context(), suite.Webhook))
	s.await("all to be decorated", func() error { return equal(map[string]int{"proxy:1": 100}, proxies(s.pods())) })
	s.serve(100)
	s.condition("proxy", appsv1alpha1.ReasonRolloutComplete)
}

// TestPodsOfKuperatorAreTakenOver: its revision is recognised by its content, and no Pod is touched.
func TestPodsOfKuperatorAreTakenOver(t *testing.T) {
	s := beginAlone(t, "1")
	require.NoError(t, s.StopComponent(suite.PodDecoration))
	s.decoration("proxy", `{weight: 3, template: {containers: [{name: proxy, image: "proxy:1"}]}}`)
	d := s.status("proxy")
	owner := *metav1.NewControllerRef(&d, appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodDecorationKind))
	s.create(&appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "proxy-86dd69f9c8", OwnerReferences: []metav1.OwnerReference{owner},
			Labels: map[string]string{appsv1alpha1.RevisionHashLabel: "86dd69f9c8", appsv1alpha1.RevisionCollisionLabel: "0"}},
		Data: runtime.RawExtension{Raw: []byte(`{"spec":{"template":{"$patch":"replace","containers":[{"injectPolicy":"",` +
			`"image":"proxy:1","name":"proxy","resources":{}}]},"weight":3}}`)},
		Revision: 1,
	})
	// a foreign one, which an expression would select
	s.create(&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "foreign"},
		Data:     runtime.RawExtension{Raw: []byte(`{"spec":{"template":{"containers":[{"image":"proxy:1","name":"proxy"}]},"weight":3}}`)},
		Revision: 7})
	d.Status.CurrentRevision, d.Status.UpdatedRevision = "proxy-86dd69f9c8", "proxy-86dd69f9c8"
	require.NoError(t, s.Client.Status().Update(t.Context(), &d))
	for i := range 3 {
		tmpl := template("old")
		tmpl.Labels[appsv1alpha1.PodDecorationLabelPrefix+"proxy"] = "proxy-86dd69f9c8"
		tmpl.Spec.Containers = append([]corev1.Container{{Name: "proxy", Image: "proxy:1"}}, tmpl.Spec.Containers...)
		s.create(&corev1.Pod{Spec: tmpl.Spec, ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace,
			Name: "old-" + strconv.Itoa(i), Labels: tmpl.Labels, Annotations: map[string]string{
				appsv1alpha1.PodDecorationRevisionsAnnotation: `[{"name":"proxy","revision":"proxy-86dd69f9c8"}]`}}})
	}
	s.serve(3)
	before := s.pods()
	require.NoError(t, s.Restart(t.Context(), suite.PodDecoration))
	status := s.condition("proxy", appsv1alpha1.ReasonRolloutComplete)
	assert.Equal(t, "proxy-86dd69f9c8", status.UpdatedRevision)
	assert.EqualValues(t, 3, status.UpdatedAvailablePods)
	for i, p := range s.pods() {
		assert.Equal(t, before[i].ResourceVersion, p.ResourceVersion, "%s was touched", p.Name)
	}
	// D3: it goes by the owner's UID, never by labels
	var foreign appsv1.ControllerRevision
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "foreign"}, &foreign))
	assert.Empty(t, foreign.OwnerReferences)
	assert.True(t, slices.ContainsFunc(decoration.MarksOf(before[0].Annotations),
		func(m decoration.Mark) bool { return m.Revision == status.UpdatedRevision }))
}

// TestNoPodServesWithoutARequiredDecoration: webhook-server is away, and no Pod is created until it is back.
func TestNoPodServesWithoutARequiredDecoration(t *testing.T) {
	s := beginAlone(t, "10%")
	s.decoration("proxy", `{required: true, selector: {matchExpressions: [{key: app, operator: In, values: [deploy, colla]}]}, `+
		sidecar("proxy:1")[1:])
	s.condition("proxy", appsv1alpha1.ReasonRolloutComplete)
	s.follow(func(_ watch.EventType, pod *corev1.Pod) {
		if pod.Labels["app"] != "other" && len(pod.Spec.InitContainers) == 0 {
			t.Errorf("Pod %s was created bare", pod.Name)
		}
	})
	require.NoError(t, s.StopComponent(suite.Webhook))
	s.deployment("deploy", 50)
	s.collaSet("colla", 50)
	s.deployment("other", 1)
	s.await("the refusals", func() error {
		var sets appsv1.ReplicaSetList
		require.NoError(t, s.List(t.Context(), &sets, client.InNamespace(s.namespace), client.MatchingLabels{"app": "deploy"}))
		for i := range sets.Items {
			for _, c := range sets.Items[i].Status.Conditions {
				if strings.Contains(c.Message, "PodDecoration proxy is required, and webhook-server has not added it") {
					return nil
				}
			}
		}
		return fmt.Errorf("%+v", sets.Items)
	})
	s.await("the Pod that nothing is required of", func() error { return equal(1, len(s.pods())) })
	require.NoError(t, s.Restart(t.Context(), suite.Webhook))
	s.await("all to be there", func() error { return equal(map[string]int{"proxy:1": 100}, proxies(s.pods())) })
	s.serve(101)
}
