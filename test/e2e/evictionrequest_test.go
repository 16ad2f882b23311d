package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/drain"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/evictions"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// Requesters of evictions.
const (
	autoscaler = "example.com/autoscaler"
	repair     = "example.com/repair"
)

// servesEvictions reports whether the API server of these tests serves EvictionRequests: older versions cannot.
func servesEvictions() bool {
	asked := strings.TrimPrefix(os.Getenv(localkube.VersionVariable), "v")
	return asked == "" || asked == localkube.Versions()[0]
}

// evictor runs the controller of EvictionRequests in a namespace until the test ends.
func (w *world) evictor(t *testing.T, namespace string) *evictions.Controller {
	t.Helper()
	if !servesEvictions() {
		t.Skip("this Kubernetes has no EvictionRequests")
	}
	c := &evictions.Controller{Client: w.client, Namespace: namespace}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the controller of EvictionRequests: %v", err)
		}
	})
	return c
}

// request asks for the eviction of a Pod.
func (w *world) request(t *testing.T, pod *corev1.Pod, requester string) *lifecyclev1alpha1.EvictionRequest {
	t.Helper()
	request := evictions.Request(pod, requester)
	require.NoError(t, w.client.Create(t.Context(), request))
	return request
}

// withdraw has a requester want the eviction no more.
func (w *world) withdraw(t *testing.T, request *lifecyclev1alpha1.EvictionRequest) {
	t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"intent":"Withdrawn"}}`))
	require.NoError(t, w.client.Patch(t.Context(), request, patch))
}

// evictionOf is the Eviction of a Pod.
func (w *world) evictionOf(t *testing.T, pod *corev1.Pod) (*lifecyclev1alpha1.Eviction, error) {
	t.Helper()
	var list lifecyclev1alpha1.EvictionList
	require.NoError(t, w.client.List(t.Context(), &list, client.InNamespace(pod.Namespace)))
	for i := range list.Items {
		if list.Items[i].Spec.Target.Pod.UID == pod.UID {
			return &list.Items[i], nil
		}
	}
	return nil, errors.New("there is no Eviction of the Pod")
}

// waitResponse waits until our state in the Eviction of a Pod is the wanted one, and our message has these words.
func (w *world) waitResponse(
	t *testing.T, pod *corev1.Pod, state lifecyclev1alpha1.ResponderStateType, words string,
) (eviction *lifecyclev1alpha1.Eviction, said lifecyclev1alpha1.ResponderStatus) {
	t.Helper()
	await.Nil(t, fmt.Sprintf("state %s and %q of Pod %s", state, words, pod.Name), func() error {
		var err error
		if eviction, err = w.evictionOf(t, pod); err != nil {
			return err
		}
		i := slices.IndexFunc(eviction.Status.TargetResponders,
			func(r lifecyclev1alpha1.TargetResponder) bool { return r.Name == drain.Responder })
		if i < 0 {
			return fmt.Errorf("lifecycle-controller is no responder: %v", eviction.Status.TargetResponders)
		}
		said = eviction.Status.Responders[i]
		if is := eviction.Status.TargetResponders[i].State; is != state ||
			!strings.Contains(ptr.Deref(said.Message, ""), words) {
			return fmt.Errorf("it is %s and says %q", is, ptr.Deref(said.Message, ""))
		}
		return nil
	})
	return eviction, said
}

// waitAskers waits until exactly these ask for the Pod to leave.
func (w *world) waitAskers(t *testing.T, pod *corev1.Pod, mark string, want ...string) {
	t.Helper()
	await.Nil(t, fmt.Sprintf("%v to ask for %s of Pod %s", want, mark, pod.Name), func() error {
		now := &corev1.Pod{}
		if err := w.client.Get(t.Context(), keyOf(pod), now); err != nil {
			return err
		}
		if got := podops.Askers(podops.Read(now), mark); !slices.Equal(got, want) {
			return fmt.Errorf("%v do", got)
		}
		return nil
	})
}

// TestEvictionRequests has Pods evicted by EvictionRequests: gone, replaced first, called off, declined.
func TestEvictionRequests(t *testing.T) {
	w := together(t)
	ns := w.namespace(t)
	since := time.Now()
	o := w.observe(t, ns, observer.Options{Graceful: true})
	c := w.evictor(t, ns)
	w.create(t, workload.Rule(ns, "web", "1"), workload.CollaSet(ns, "web", image1, 2),
		shut(ns, "moving"), surging(ns, "moving", 1, appsv1alpha1.EvictionReplace),
		shut(ns, "held"), workload.CollaSet(ns, "held", image1, 6))
	for name, n := range map[string]int{"web": 2, "moving": 1, "held": 6} {
		w.waitServing(t, ns, name, n, image1)
	}
	held := w.pods(t, ns, "held")

	t.Log("a Pod leaves as in any eviction")
	pod := w.pods(t, ns, "web")[0]
	require.Equal(t, []corev1.EvictionResponder{{Name: drain.Responder, Priority: ptr.To[int32](10000)}},
		pod.Spec.EvictionResponders)
	w.request(t, &pod, autoscaler)
	_, said := w.waitResponse(t, &pod, lifecyclev1alpha1.ResponderStateInterrupted, "") // the Pod is gone
	require.NotNil(t, said.HeartbeatTime)
	require.Nil(t, said.CompletionTime)
	w.waitServing(t, ns, "web", 2, image1)

	t.Log("another Pod takes its place first")
	pod = w.pods(t, ns, "moving")[0]
	w.request(t, &pod, autoscaler)
	w.waitResponse(t, &pod, lifecyclev1alpha1.ResponderStateInterrupted, "another Pod takes its place first")
	w.waitServing(t, ns, "moving", 1, image1)

	t.Log("two requesters, of whom the first withdraws, then the other")
	first, second := w.request(t, &held[0], autoscaler), w.request(t, &held[0], repair)
	_, said = w.waitResponse(t, &held[0], lifecyclev1alpha1.ResponderStateActive, "then deleted")
	require.NotNil(t, said.HeartbeatTime)
	w.waitAskers(t, &held[0], appsv1alpha1.ToDeleteLabel, podops.AskerEvictionRequest)
	w.withdraw(t, first)
	w.waitResponse(t, &held[0], lifecyclev1alpha1.ResponderStateActive, "")
	w.waitAskers(t, &held[0], appsv1alpha1.ToDeleteLabel, podops.AskerEvictionRequest)
	w.withdraw(t, second)
	w.waitResponse(t, &held[0], lifecyclev1alpha1.ResponderStateCanceled, "")
	w.waitAskers(t, &held[0], appsv1alpha1.ToDeleteLabel)

	t.Log("a user has asked as well")
	request := w.request(t, &held[1], autoscaler)
	w.waitAskers(t, &held[1], appsv1alpha1.ToDeleteLabel, podops.AskerEvictionRequest)
	require.Error(t, w.client.SubResource("eviction").Create(t.Context(), &held[1], imperative(&held[1])))
	w.waitAskers(t, &held[1], appsv1alpha1.ToDeleteLabel, podops.AskerEviction, podops.AskerEvictionRequest)
	w.withdraw(t, request)
	w.waitResponse(t, &held[1], lifecyclev1alpha1.ResponderStateCanceled, "")
	w.waitAskers(t, &held[1], appsv1alpha1.ToDeleteLabel, podops.AskerEviction)

	t.Log("the objects are deleted in the middle")
	request = w.request(t, &held[2], autoscaler)
	eviction, _ := w.waitResponse(t, &held[2], lifecyclev1alpha1.ResponderStateActive, "then deleted")
	require.NoError(t, w.client.Delete(t.Context(), request))
	require.NoError(t, client.IgnoreNotFound(w.client.Delete(t.Context(), eviction)))
	w.waitAskers(t, &held[2], appsv1alpha1.ToDeleteLabel)

	t.Log("the turn is taken away")
	request = w.request(t, &held[3], autoscaler)
	await.Nil(t, "the interruption", func() error {
		eviction, _ = w.waitResponse(t, &held[3], lifecyclev1alpha1.ResponderStateActive, "then deleted")
		return c.Interrupt(t.Context(), eviction)
	})
	w.waitAskers(t, &held[3], appsv1alpha1.ToDeleteLabel)
	require.NoError(t, w.client.Delete(t.Context(), request))

	t.Log("somebody takes the mark away by hand, and the next responder tries")
	w.request(t, &held[4], autoscaler)
	w.waitAskers(t, &held[4], appsv1alpha1.ToDeleteLabel, podops.AskerEvictionRequest)
	w.label(t, &held[4], map[string]any{appsv1alpha1.ToDeleteLabel: nil})
	w.waitResponse(t, &held[4], lifecyclev1alpha1.ResponderStateCompleted, "was removed")
	w.waitAskers(t, &held[4], appsv1alpha1.ToDeleteLabel, podops.AskerEviction)

	t.Log("what is not ours is declined at once")
	other := held[5].DeepCopy()
	other.UID = "3f5ff1ae-0b8b-4a92-a46c-3e1f0a2b7a01"
	w.request(t, other, autoscaler)
	w.waitResponse(t, other, lifecyclev1alpha1.ResponderStateCompleted, "another one than the target")
	w.waitAskers(t, &held[5], appsv1alpha1.ToDeleteLabel)
	w.declined(t)

	requests, err := w.Requests(since)
	require.NoError(t, err)
	accepted := 0
	for _, r := range requests {
		if r.Component() != suite.Lifecycle || r.Resource != "evictions" || r.Verb != "patch" {
			continue
		}
		// The Eviction may have changed since it was read, or be gone.
		assert.Contains(t, []int{http.StatusOK, http.StatusConflict, http.StatusNotFound}, r.Code, "%s %s", r, r.URI)
		if r.Code == http.StatusOK {
			accepted++
		}
	}
	assert.Greater(t, accepted, 10, "answers that the API server accepted")
	report := o.Settled(t.Context())
	require.NoError(t, report.Err())
}

// declined has Pods evicted that are not to be taken out of service first: the next responder, the Eviction API, takes
// them away.
func (w *world) declined(t *testing.T) {
	t.Helper()
	ns := w.namespace(t)
	w.evictor(t, ns)
	stranger := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "stranger"}, Spec: corev1.PodSpec{
		Containers:         []corev1.Container{{Name: "app", Image: image1}},
		EvictionResponders: []corev1.EvictionResponder{{Name: drain.Responder, Priority: ptr.To[int32](10000)}}}}
	w.create(t, stranger, deployment(ns, "guest", 1))
	await.Nil(t, "the Pods", func() error {
		if pods := w.pods(t, ns, "guest"); len(pods) != 1 {
			return fmt.Errorf("%d Pods", len(pods))
		}
		return nil
	})
	guest := &w.pods(t, ns, "guest")[0]
	require.Len(t, guest.Spec.EvictionResponders, 1, "webhook-server names the responder in managed Pods of others")
	w.label(t, guest, map[string]any{podops.GracefulDeletionLabel: "disabled"})
	for pod, why := range map[*corev1.Pod]string{guest: "is disabled", stranger: "is not managed"} {
		w.request(t, pod, autoscaler)
		eviction, said := w.waitResponse(t, pod, lifecyclev1alpha1.ResponderStateCompleted, why)
		require.Nil(t, said.HeartbeatTime)
		require.Len(t, eviction.Status.TargetResponders, 2)
		await.Nil(t, "the Pod to be evicted", func() error {
			return gone(w.client.Get(t.Context(), keyOf(pod), &corev1.Pod{}))
		})
	}
}

// imperative is an eviction of a Pod by a call.
func imperative(pod *corev1.Pod) *policyv1.Eviction {
	return &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}}
}
