package resourceconsist_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

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
	s.write(t, "web-0", func(v podops.View) podops.Change {
		c, err := podops.Begin(v, podops.Request{ID: "test", Type: podops.TypeUpdate}, time.Now())
		require.NoError(t, err)
		return c
	})
	s.eventually(t, "the operation waits for the controller", func() bool {
		waits := podops.Explain(podops.Read(s.pod(t, "web-0")), nil)
		return len(waits) == 1 && waits[0].Reason == podops.WaitFinalizer
	})

	startManager(t, w.config)
	s.eventually(t, "the operation is allowed", func() bool { return podops.Allowed(podops.Read(s.pod(t, "web-0")), "test", podops.TypeUpdate) })
	s.write(t, "web-0", func(v podops.View) podops.Change { return podops.Finish(v, "test", podops.TypeUpdate, time.Now()) })
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
	born := map[string]int{}
	for _, name := range names {
		s.serving(t, name, "web")
		done, refused := s.writes(t, name)
		require.LessOrEqual(t, done, 2, "a Pod's birth costs two writes at most")
		t.Logf("birth of %s: %d writes, %d refused", name, done, refused)
		born[name] = done
	}

	seen := s.record(t, "web-0", "web")
	s.write(t, "web-0", func(v podops.View) podops.Change {
		c, err := podops.Begin(v, podops.Request{ID: "test", Type: podops.TypeUpdate}, time.Now())
		require.NoError(t, err)
		return c
	})
	s.eventually(t, "the operation is allowed", func() bool { return podops.Allowed(podops.Read(s.pod(t, "web-0")), "test", podops.TypeUpdate) })
	require.Empty(t, podops.ProtectionFinalizers(s.pod(t, "web-0").Finalizers))
	s.write(t, "web-0", func(v podops.View) podops.Change { return podops.Finish(v, "test", podops.TypeUpdate, time.Now()) })
	s.serving(t, "web-0", "web")
	require.Equal(t, podops.PhaseNone, podops.PhaseOf(podops.Read(s.pod(t, "web-0")), "test"))

	s.eventually(t, "the record is complete", func() bool { return len(seen.removals()) > 0 })
	require.Equal(t, []bool{false}, seen.removals(), "the finalizer went while the Pod was listed")
	done, refused := s.writes(t, "web-0")
	t.Logf("operation: %d writes, %d refused", done-born["web-0"], refused)
	require.Equal(t, 2, done-born["web-0"], "an operation costs two writes")
	for _, name := range names[1:] {
		done, _ := s.writes(t, name)
		require.Equal(t, born[name], done, "a Pod at rest was written")
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
	s.eventually(t, "the record is complete", func() bool { return len(seen.removals()) > 0 })
	require.Equal(t, []bool{false}, seen.removals(), "the finalizer went while the Pod was listed")

	// With no grace at all the Pod has nothing but its finalizer to keep it.
	s.createPod(t, "web-1")
	s.serving(t, "web-1", "web")
	require.NoError(t, s.clientset.CoreV1().Pods(s.namespace).Delete(t.Context(), "web-1", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
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
			if e := events.Items[i]; e.Reason == "AnnotationInvalid" && e.Regarding.Name == "web-0" && e.Type == corev1.EventTypeWarning {
				return true
			}
		}
		return false
	})
	s.patchPod(t, "web-0", `{"metadata":{"annotations":{"pod.kusionstack.io/available-conditions":null}}}`)
	s.serving(t, "web-0", "web")
}
