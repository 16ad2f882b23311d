package resourceconsist_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
)

func TestEndpointSliceAdapter(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	startManager(t, w.config)
	for name, story := range map[string]func(*testing.T, shop){
		"a Pod stays while any slice lists it":                                      severalSlices,
		"a slice that names no Pod counts by its address":                           slicesOfAddresses,
		"slices that vanish and come back midway":                                   slicesDeleted,
		"each Service has its own drain time":                                       drainTimes,
		"a headless Service":                                                        headless,
		"a headless Service that publishes Pods before they are Ready":              publishing,
		"Services that employ no Pod":                                               employNoPod,
		"an operation waits for the Service and costs two writes":                   operation,
		"two Services share the writes":                                             twoServices,
		"a deleted Service releases its Pods":                                       serviceDeleted,
		"a Service that loses its label releases its Pods":                          labelRemoved,
		"a Service that selects other Pods releases those it has":                   selectorChanged,
		"a Pod that is managed no more is released":                                 podUnlabelled,
		"deleting a Pod waits for the Service and does not hang":                    podDeleted,
		"deleting a Pod of a deleted Service does not hang":                         podAndServiceDeleted,
		"a Service taken over from upstream can be deleted":                         takenOver,
		"a Pod without the gate, and a Service without the label, wait for nothing": bystanders,
		"a broken annotation is reported once and mended by its owner":              brokenAnnotation,
	} {
		t.Run(name, func(t *testing.T) { story(t, w.shop(t)) })
	}
}

// TestWhatHappensWhileTheControllerIsDownIsMadeGood: nothing that matters is remembered in the process.
func TestWhatHappensWhileTheControllerIsDownIsMadeGood(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	stop := startManager(t, w.config)
	s := w.shop(t)
	gone := s.createService(t, "gone")
	s.createService(t, "web")
	for _, name := range []string{"web-0", "web-1", "web-2"} {
		s.createPod(t, name)
		s.serving(t, name, "gone", "web")
	}
	stop()

	require.NoError(t, s.client.Delete(t.Context(), gone))
	require.NoError(t, s.client.Delete(t.Context(), s.pod(t, "web-1")))
	s.begin(t, "web-0")
	s.eventually(t, "the operation waits for the controller", func() bool {
		waits := podops.Explain(podops.Read(s.pod(t, "web-0")), nil)
		return len(waits) == 1 && waits[0].Reason == podops.WaitFinalizer
	})

	startManager(t, w.config)
	s.allowed(t, "web-0")
	s.finish(t, "web-0")
	s.serving(t, "web-0", "web")
	s.serving(t, "web-2", "web")
	s.eventually(t, "the deleted Pod is gone", func() bool { return s.pod(t, "web-1") == nil })
}

func operation(t *testing.T, s shop) {
	s.createService(t, "web")
	names := []string{"web-0", "web-1", "web-2"}
	for _, name := range names {
		s.createPod(t, name)
	}
	for _, name := range names {
		s.serving(t, name, "web")
		done, refused := s.writes(t, name)
		require.LessOrEqual(t, done, 2, "a Pod's birth costs two writes at most")
		t.Logf("birth of %s: %d writes, %d refused", name, done, refused)
	}
	begun := time.Now()

	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.allowed(t, "web-0")
	s.finish(t, "web-0")
	s.serving(t, "web-0", "web")
	require.Equal(t, podops.PhaseNone, podops.PhaseOf(podops.Read(s.pod(t, "web-0")), "test"))

	require.Equal(t, []bool{false}, s.removals(t, seen), "the finalizer went while the Pod was listed")
	s.costs(t, "web-0", begun, 2, "an operation costs two writes")
	for _, name := range names[1:] {
		s.costs(t, name, begun, 0, "a Pod at rest is not written")
	}
}

func twoServices(t *testing.T, s shop) {
	s.createService(t, "web")
	s.createService(t, "admin")
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "admin", "web")
	done, _ := s.writes(t, "web-0")
	require.LessOrEqual(t, done, 3, "announced together; listed by one Service after the other at most")
}

func serviceDeleted(t *testing.T, s shop) {
	service := s.createService(t, "web")
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	require.NoError(t, s.client.Delete(t.Context(), service))
	s.serving(t, "web-0")
}

func labelRemoved(t *testing.T, s shop) {
	s.createService(t, "web")
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	s.patchService(t, "web", `{"metadata":{"labels":{"kusionstack.io/control":null}}}`)
	s.serving(t, "web-0")
	s.patchService(t, "web", `{"metadata":{"labels":{"kusionstack.io/control":"true"}}}`)
	s.serving(t, "web-0", "web")
}

func selectorChanged(t *testing.T, s shop) {
	s.createService(t, "web")
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	s.patchService(t, "web", `{"spec":{"selector":{"app":"other"}}}`)
	s.serving(t, "web-0")
	s.patchPod(t, "web-0", `{"metadata":{"labels":{"app":"other"}}}`)
	s.serving(t, "web-0", "web")
	s.patchService(t, "web", `{"spec":{"selector":null}}`)
	s.serving(t, "web-0")
}

func podUnlabelled(t *testing.T, s shop) {
	s.createService(t, "web")
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	s.patchPod(t, "web-0", `{"metadata":{"labels":{"kusionstack.io/control":null}}}`)
	s.eventually(t, "the Pod is released", func() bool { return s.bound(t, s.pod(t, "web-0")) })
}

func podDeleted(t *testing.T, s shop) {
	s.createService(t, "web")
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	seen := s.record(t, "web-0", "web")
	require.NoError(t, s.client.Delete(t.Context(), s.pod(t, "web-0")))
	s.eventually(t, "the Pod is gone", func() bool { return s.pod(t, "web-0") == nil })
	require.Equal(t, []bool{false}, s.removals(t, seen), "the finalizer went while the Pod was listed")

	// With no grace at all the Pod has nothing but its finalizer to keep it.
	s.createPod(t, "web-1")
	s.serving(t, "web-1", "web")
	require.NoError(t, s.clientset.CoreV1().Pods(s.namespace).Delete(t.Context(), "web-1",
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	s.eventually(t, "the Pod is gone", func() bool { return s.pod(t, "web-1") == nil })
}

func podAndServiceDeleted(t *testing.T, s shop) {
	service := s.createService(t, "web", func(service *corev1.Service) { service.Spec.PublishNotReadyAddresses = true })
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	require.NoError(t, s.client.Delete(t.Context(), service))
	require.NoError(t, s.client.Delete(t.Context(), s.pod(t, "web-0")))
	s.eventually(t, "the Pod is gone", func() bool { return s.pod(t, "web-0") == nil })
}

func takenOver(t *testing.T, s shop) {
	service := s.createService(t, "web", func(service *corev1.Service) {
		service.Finalizers = []string{api.LegacyCleanFinalizer("web"), "example.com/other", api.CleanFinalizer}
	})
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	require.NoError(t, s.client.Delete(t.Context(), service))
	s.serving(t, "web-0")
	s.eventually(t, "only the finalizer of others is left", func() bool {
		got, err := s.clientset.CoreV1().Services(s.namespace).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && len(got.Finalizers) == 1 && got.Finalizers[0] == "example.com/other"
	})
	s.patchService(t, "web", `{"metadata":{"finalizers":null}}`)
	s.eventually(t, "the Service is gone", func() bool {
		_, err := s.clientset.CoreV1().Services(s.namespace).Get(t.Context(), "web", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func bystanders(t *testing.T, s shop) {
	s.createService(t, "web")
	s.createService(t, "plain", func(service *corev1.Service) { service.Labels = nil })
	s.createPod(t, "gateless", func(pod *corev1.Pod) { pod.Spec.ReadinessGates = nil })
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web") // by now the first Pod has been looked at
	s.eventually(t, "the Pod without a gate is Ready", func() bool { return podops.Read(s.pod(t, "gateless")).Ready })
	done, refused := s.writes(t, "gateless")
	require.Zero(t, done+refused)
}

func brokenAnnotation(t *testing.T, s shop) {
	s.createService(t, "web")
	s.createPod(t, "web-0", func(pod *corev1.Pod) {
		pod.Annotations = map[string]string{podops.AvailableConditionsAnnotation: "{"}
	})
	s.eventually(t, "the owner is told", func() bool {
		events, err := s.clientset.EventsV1().Events(s.namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for i := range events.Items {
			if e := events.Items[i]; e.Reason == "AnnotationInvalid" && e.Regarding.Name == "web-0" &&
				e.Type == corev1.EventTypeWarning {
				return true
			}
		}
		return false
	})
	s.patchPod(t, "web-0", `{"metadata":{"annotations":{"pod.kusionstack.io/available-conditions":null}}}`)
	s.serving(t, "web-0", "web")
}

// slice makes an EndpointSlice of the Service beside those of Kubernetes, as another controller does, that lists the
// Pod.
func (s shop) slice(
	t *testing.T, name, service string, family discoveryv1.AddressType, endpoint discoveryv1.Endpoint,
) *discoveryv1.EndpointSlice {
	t.Helper()
	own := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "test.example.com",
		}},
		AddressType: family, Endpoints: []discoveryv1.Endpoint{endpoint},
	}
	require.NoError(t, s.client.Create(t.Context(), own))
	return own
}

// held waits until nothing but these EndpointSlices lists the Pod, which is not Ready, and whose operation waits for
// the Service.
func (s shop) held(t *testing.T, pod, service string, by ...string) {
	t.Helper()
	s.eventually(t, "only "+strings.Join(by, " and ")+" lists "+pod, func() bool {
		var all discoveryv1.EndpointSliceList
		require.NoError(t, s.client.List(t.Context(), &all, client.InNamespace(s.namespace),
			client.MatchingLabels{discoveryv1.LabelServiceName: service}))
		p := s.pod(t, pod)
		for i := range all.Items {
			if lists(&all.Items[i], pod, p.Status.PodIP) != slices.Contains(by, all.Items[i].Name) {
				return false
			}
		}
		waits := podops.Explain(podops.Read(p), nil)
		return !podops.Read(p).Ready && len(waits) == 1 && waits[0].Reason == podops.WaitFinalizer
	})
}

// severalSlices is a Service of two address families, of whose slices another controller's is slower.
func severalSlices(t *testing.T, s shop) {
	s.createService(t, "web")
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	own := s.slice(t, "web-v6", "web", discoveryv1.AddressTypeIPv6, discoveryv1.Endpoint{
		Addresses: []string{"fd00::7"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: s.namespace, Name: "web-0", UID: s.pod(t, "web-0").UID},
	})
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.held(t, "web-0", "web", "web-v6")
	own.Endpoints[0].Conditions.Ready = ptr.To(false)
	require.NoError(t, s.client.Update(t.Context(), own))
	s.outAndIn(t, seen)
}

// outAndIn waits for the operation of Pod web-0, and looks what the finalizer went by.
func (s shop) outAndIn(t *testing.T, seen *history) {
	t.Helper()
	s.allowed(t, "web-0")
	require.Equal(t, []bool{false}, s.removals(t, seen), "the finalizer went while a slice listed the Pod")
	s.finish(t, "web-0")
	s.serving(t, "web-0", "web")
}

func slicesOfAddresses(t *testing.T, s shop) {
	s.createService(t, "web")
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	own := s.slice(t, "web-own", "web", discoveryv1.AddressTypeIPv4,
		discoveryv1.Endpoint{Addresses: []string{s.pod(t, "web-0").Status.PodIP}})
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.held(t, "web-0", "web", "web-own")
	require.NoError(t, s.client.Delete(t.Context(), own))
	s.outAndIn(t, seen)
}

// slicesDeleted has all slices of a Service deleted while its Pod serves, and while it is out. Kubernetes creates them
// again.
func slicesDeleted(t *testing.T, s shop) {
	s.createService(t, "web")
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	begun := time.Now()
	wipe := func() {
		require.NoError(t, s.client.DeleteAllOf(t.Context(), &discoveryv1.EndpointSlice{}, client.InNamespace(s.namespace)))
	}
	listed := func(pod string) bool {
		var all discoveryv1.EndpointSliceList
		require.NoError(t, s.client.List(t.Context(), &all, client.InNamespace(s.namespace)))
		return slices.ContainsFunc(all.Items, func(e discoveryv1.EndpointSlice) bool { return lists(&e, pod, "") })
	}
	wipe()
	s.eventually(t, "Kubernetes lists the Pod again", func() bool { return listed("web-0") })
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.eventually(t, "the Pod is out", func() bool { return !podops.Read(s.pod(t, "web-0")).Ready })
	wipe()
	s.outAndIn(t, seen)
	s.costs(t, "web-0", begun, 2, "an operation costs two writes, and slices that come and go none")
}

// drainTimes has one Pod in two Services, of which one waits until its owner changes its mind.
func drainTimes(t *testing.T, s shop) {
	s.createService(t, "web", func(service *corev1.Service) {
		service.Annotations = map[string]string{api.DrainSecondsAnnotation: "0"}
	})
	s.createService(t, "slow", func(service *corev1.Service) {
		service.Annotations = map[string]string{api.DrainSecondsAnnotation: "3600"}
	})
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web", "slow")
	seen := s.record(t, "web-0", "slow")
	s.begin(t, "web-0")
	s.eventually(t, "the other Service has let go", func() bool {
		left := podops.ProtectionFinalizers(s.pod(t, "web-0").Finalizers)
		return len(left) == 1 && left[0] == api.Finalizer("slow")
	})
	s.patchService(t, "slow", `{"metadata":{"annotations":{"`+api.DrainSecondsAnnotation+`":"1"}}}`)
	service := &corev1.Service{}
	require.NoError(t, s.client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "slow"}, service))
	s.allowed(t, "web-0")
	require.Equal(t, []bool{false}, s.removals(t, seen))
	changed, err := strconv.Atoi(service.ResourceVersion)
	require.NoError(t, err)
	require.Greater(t, seen.removedAt(), changed, "the finalizer went before an hour was over or the annotation changed")
	s.finish(t, "web-0")
	s.serving(t, "web-0", "web", "slow")
}

func headless(t *testing.T, s shop) {
	s.createService(t, "web", func(service *corev1.Service) { service.Spec.ClusterIP = corev1.ClusterIPNone })
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.outAndIn(t, seen)
}

// publishing is a Service whose endpoints are ready for ever: that they do not serve is what counts.
func publishing(t *testing.T, s shop) {
	s.createService(t, "web", func(service *corev1.Service) {
		service.Spec.ClusterIP, service.Spec.PublishNotReadyAddresses = corev1.ClusterIPNone, true
	})
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.outAndIn(t, seen)
	require.NoError(t, s.client.Delete(t.Context(), s.pod(t, "web-0")))
	s.eventually(t, "the Pod is gone", func() bool { return s.pod(t, "web-0") == nil })
}

// employNoPod has Services that have endpoints of others, or none, although they are labelled.
func employNoPod(t *testing.T, s shop) {
	s.createService(t, "outside", func(service *corev1.Service) { service.Spec.Selector = nil })
	s.createService(t, "elsewhere", func(service *corev1.Service) {
		service.Spec.Type, service.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	})
	s.createService(t, "web")
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	pod := s.pod(t, "web-0")
	// Kubernetes mirrors what a user writes about the first, and lists the Pod.
	require.NoError(t, s.client.Create(t.Context(),
		&corev1.Endpoints{ //nolint:staticcheck // what is mirrored is an Endpoints
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "outside"},
			Subsets: []corev1.EndpointSubset{{ //nolint:staticcheck // as above
				Addresses: []corev1.EndpointAddress{{IP: pod.Status.PodIP, TargetRef: &corev1.ObjectReference{
					Kind: "Pod", Namespace: s.namespace, Name: "web-0", UID: pod.UID,
				}}},
				Ports: []corev1.EndpointPort{{Port: 80}},
			}},
		}))
	s.eventually(t, "it is mirrored", func() bool {
		var all discoveryv1.EndpointSliceList
		require.NoError(t, s.client.List(t.Context(), &all, client.InNamespace(s.namespace),
			client.MatchingLabels{discoveryv1.LabelServiceName: "outside"}))
		return slices.ContainsFunc(all.Items, func(e discoveryv1.EndpointSlice) bool { return lists(&e, "web-0", "") })
	})
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.outAndIn(t, seen)
	require.True(t, s.bound(t, s.pod(t, "web-0"), "web"))
}
