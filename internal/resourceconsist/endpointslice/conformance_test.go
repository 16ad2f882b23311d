package endpointslice

import (
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/conformance"
	"kusionstack.io/kuperator/internal/resourceconsist/backend/backendtest"
)

// endpoints is Kubernetes' own controller: one EndpointSlice for each Pod of a Service, of which the adapter at hand
// gets the events.
type endpoints struct {
	t  testing.TB
	mu sync.Mutex
	// slices are by Service and Pod.
	slices  map[types.NamespacedName]map[types.UID]*discoveryv1.EndpointSlice
	adapter *Adapter
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func newEndpoints(t testing.TB) *endpoints {
	e := &endpoints{t: t, slices: map[types.NamespacedName]map[types.UID]*discoveryv1.EndpointSlice{}}
	e.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(e.queue.ShutDown)
	return e
}

// connect makes an adapter that begins with all there is, as its watch would.
func (e *endpoints) connect() *Adapter {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.adapter = New(nil)
	for _, ofService := range e.slices {
		for _, s := range ofService {
			e.adapter.events().Create(e.t.Context(), event.CreateEvent{Object: s, IsInInitialList: true}, e.queue)
		}
	}
	return e.adapter
}

func (e *endpoints) move(service *corev1.Service, pod *corev1.Pod, on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := client.ObjectKeyFromObject(service)
	if e.slices[key] == nil {
		e.slices[key] = map[types.UID]*discoveryv1.EndpointSlice{}
	}
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: service.Name + "-" + string(pod.UID),
			Labels: map[string]string{discoveryv1.LabelServiceName: service.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: pod.Name, UID: pod.UID},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(on), Serving: ptr.To(on)},
		}},
	}
	before := e.slices[key][pod.UID]
	e.slices[key][pod.UID] = s
	if before == nil {
		e.adapter.events().Create(e.t.Context(), event.CreateEvent{Object: s}, e.queue)
		return
	}
	e.adapter.events().Update(e.t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: s}, e.queue)
}

func (e *endpoints) serves(service *corev1.Service, pod *corev1.Pod) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.slices[client.ObjectKeyFromObject(service)][pod.UID]
	return s != nil && *s.Endpoints[0].Conditions.Ready
}

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t testing.TB) conformance.Fixture[*corev1.Service, backendtest.Serving] {
		e, pods := newEndpoints(t), &backendtest.Pods{}
		return conformance.Fixture[*corev1.Service, backendtest.Serving]{
			Connect: func() api.Adapter[*corev1.Service, backendtest.Serving] {
				return backendtest.Adapter(e.connect(), pods)
			},
			Provider: conformance.Provider[*corev1.Service]{Serves: e.serves, Move: e.move, Calls: func() int { return 0 }},
		}
	})
}
