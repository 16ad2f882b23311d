package poddecoration_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/poddecoration/decoplan"
)

// equal is an error if two values differ.
func equal(want, got any) error {
	if !reflect.DeepEqual(want, got) {
		return fmt.Errorf("%v, not %v", got, want)
	}
	return nil
}

// everyWorkload has a Pod or more of each.
func (s *story) everyWorkload() {
	s.Helper()
	s.collaSet("colla", 3)
	s.deployment("deploy", 3)
	s.statefulSet("state", 2)
	s.bare("bare")
	s.serve(9)
}

func TestPodsOfEveryWorkloadThatAreThere(t *testing.T) {
	s := begin(t, "2")
	s.everyWorkload()
	before := s.pods()

	// What can be had in place leaves all Pods where they are.
	s.decoration("labels", `{template: {metadata: [{labels: {tier: gold}}]}}`)
	status := s.condition("labels", appsv1alpha1.ReasonRolloutComplete)
	assert.EqualValues(t, 9, status.UpdatedAvailablePods)
	assert.Equal(t, uids(before), uids(s.pods()))
	for _, p := range s.pods() {
		assert.Equal(t, "gold", p.Labels["tier"])
	}

	// A sidecar takes another Pod, where a workload creates it. The others are reported.
	s.decoration("proxy", sidecar("proxy:1"))
	status = s.condition("proxy", appsv1alpha1.ReasonBlocked)
	s.serve(9)
	require.Len(t, status.Blockers, 1)
	assert.Equal(t, decoplan.BlockNoWorkload, status.Blockers[0].Reason)
	assert.EqualValues(t, 1, status.Blockers[0].Count)
	pods := s.pods()
	assert.Equal(t, map[string]int{"proxy:1": 8}, proxies(pods))
	assert.Equal(t, uids(before, "bare"), uids(pods, "bare"))
	assert.Equal(t, 1, common(uids(before), uids(pods)))

	// Another image of it is in place, and so is its way back.
	before = pods
	for _, image := range []string{"proxy:2", "proxy:1"} {
		s.decoration("proxy", sidecar(image))
		s.await("the sidecars", func() error { return equal(map[string]int{image: 8}, proxies(s.pods())) })
	}
	s.condition("proxy", appsv1alpha1.ReasonBlocked)
	s.serve(9)
	assert.Equal(t, uids(before), uids(s.pods()))
}

func TestNewPodsAreCreatedDecorated(t *testing.T) {
	s := begin(t, "2")
	s.decoration("proxy", sidecar("proxy:1"))
	s.condition("proxy", appsv1alpha1.ReasonRolloutComplete)
	s.collaSet("colla", 2)
	s.deployment("deploy", 2)
	s.statefulSet("state", 2)
	s.job("job")
	s.bare("bare")
	s.serve(8)
	before := s.pods()
	assert.Equal(t, map[string]int{"proxy:1": 8}, proxies(before))
	status := s.condition("proxy", appsv1alpha1.ReasonRolloutComplete)
	s.await("all to be counted", func() error {
		status = s.status("proxy").Status
		return equal(8, int(status.UpdatedAvailablePods))
	})
	assert.Equal(t, uids(before), uids(s.pods()), "each was created once")
	assert.Len(t, status.Details, 5)

	// Evicted as by a drain, under the same rule, each is created decorated again, where a workload does that. The Job's
	// stays: simulated kubelets do not say of a Pod that is deleted that it has failed, for which the Job would wait.
	s.drain("colla", "deploy", "state", "bare")
	s.serve(7)
	after := s.pods()
	assert.Equal(t, map[string]int{"proxy:1": 7}, proxies(after))
	assert.Equal(t, 1, common(uids(before), uids(after)))
}

// drain evicts the Pods of these apps, and asks again as long as one is not to go yet, as kubectl drain does.
func (s *story) drain(apps ...string) {
	s.Helper()
	pods := slices.DeleteFunc(s.pods(), func(p corev1.Pod) bool { return !slices.Contains(apps, p.Labels["app"]) })
	s.await("the Pods to be evicted", func() error {
		left := 0
		for i := range pods {
			err := s.SubResource("eviction").Create(s.Context(), &pods[i], &policyv1.Eviction{
				DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pods[i].UID))}})
			switch {
			case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it is another one
			case err == nil, apierrors.IsTooManyRequests(err):
				left++
			default:
				return err
			}
		}
		return equal(0, left)
	})
}

func TestADeletedDecorationIsRolledBack(t *testing.T) {
	s := begin(t, "1")
	s.decoration("proxy", sidecar("proxy:1"))
	s.condition("proxy", appsv1alpha1.ReasonRolloutComplete)
	s.collaSet("colla", 2)
	s.deployment("deploy", 2)
	s.serve(4)
	d := s.status("proxy")
	require.NoError(t, s.Delete(t.Context(), &d))
	s.await("it to be gone", func() error {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(&d), &d); err != nil {
			return client.IgnoreNotFound(err)
		}
		return fmt.Errorf("%+v", d.Status)
	})
	s.serve(4)
	assert.Empty(t, proxies(s.pods()))
	assert.Equal(t, map[string]int{"": 4}, s.revisions("proxy"))
}

// TestD2NoRevisionInUseIsDeleted: a partition keeps one on a Pod, and status names one.
func TestD2NoRevisionInUseIsDeleted(t *testing.T) {
	s := begin(t, "100%")
	s.deployment("deploy", 2)
	s.serve(2)
	label := func(value, partition string) string {
		return `{historyLimit: 1, updateStrategy: {rollingUpdate: {partition: ` + partition + `}},
			template: {metadata: [{patchPolicy: Overwrite, labels: {tier: "` + value + `"}}]}}`
	}
	s.decoration("labels", label("first", "0"))
	first := s.condition("labels", appsv1alpha1.ReasonRolloutComplete).UpdatedRevision
	for _, value := range []string{"a", "b", "c", "d", "e"} {
		s.decoration("labels", label(value, "1"))
		s.await("one Pod to have it", func() error {
			status := s.condition("labels", appsv1alpha1.ReasonRolloutComplete)
			return equal(map[string]int{first: 1, status.UpdatedRevision: 1}, s.revisions("labels"))
		})
	}
	s.await("the others to be deleted", func() error {
		var list appsv1.ControllerRevisionList
		require.NoError(t, s.List(t.Context(), &list, client.InNamespace(s.namespace)))
		names := map[string]bool{}
		for _, cr := range list.Items {
			if len(cr.OwnerReferences) == 1 && cr.OwnerReferences[0].Name == "labels" {
				names[cr.Name] = true
			}
		}
		require.True(t, names[first], "a Pod has it")
		return equal(3, len(names))
	})
}

func TestPodsOutsideTheLifecycle(t *testing.T) {
	s := begin(t, "1")
	unmanaged := template("free")
	delete(unmanaged.Labels, appsv1alpha1.ControlLabel)
	create := func(name string) {
		pod := unmanaged.DeepCopy()
		s.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name, Labels: pod.Labels}, Spec: pod.Spec})
	}
	s.decoration("proxy", sidecar("proxy:1"))
	s.condition("proxy", appsv1alpha1.ReasonRolloutComplete)
	create("before")
	s.await("it to be reported", func() error {
		status := s.status("proxy").Status
		if len(status.Blockers) != 1 {
			return equal(1, len(status.Blockers))
		}
		return equal(decoplan.BlockNotManaged, status.Blockers[0].Reason)
	})
	assert.Empty(t, proxies(s.pods()))

	namespace := &corev1.Namespace{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: s.namespace}, namespace))
	namespace.Labels[appsv1alpha1.DecorateAllPodsLabel] = "true"
	require.NoError(t, s.Update(t.Context(), namespace))
	s.await("a new Pod to be decorated", func() error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, GenerateName: "after-", Labels: unmanaged.Labels}, Spec: unmanaged.Spec}
		require.NoError(t, s.Create(t.Context(), pod, client.DryRunAll))
		return equal(1, len(decoration.MarksOf(pod.Annotations)))
	})
	create("after")
	assert.Equal(t, map[string]int{"proxy:1": 1}, proxies(s.pods()))
}
