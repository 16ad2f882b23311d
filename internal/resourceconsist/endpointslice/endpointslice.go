// Package endpointslice is the adapter for traffic that follows EndpointSlices: kube-proxy, most ingress and gateway
// controllers, most service meshes. Kubernetes itself adds and drops endpoints as Pods become Ready and not; the
// adapter only watches, and says of a Pod whether some EndpointSlice of the Service lists it as one to send traffic to.
//
// Listed means ready, not known to have stopped serving, and not terminating. A Service that publishes addresses that
// are not ready keeps them ready for ever; that they do not serve is what counts then, since nothing that happens to
// the Pod could take them out.
//
// All slices of a Service count, no matter which controller maintains them, because traffic follows all of them: one
// for each address family, mirrored ones, those of other controllers. A Pod is left only when none lists it, and has
// joined when it is listed in each address family of the Service that it has an address of: a proxy of the other family
// would otherwise lose its last endpoint while the next Pod is operated. Endpoints that name no Pod count by their
// address.
package endpointslice

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
)

// Name is the adapter's name.
const Name = "endpointslice"

// Adapter watches EndpointSlices. Make one with New.
type Adapter struct {
	clock clock.PassiveClock

	mu sync.RWMutex
	// slices holds what each EndpointSlice says of each Pod: whether it lists it.
	slices map[types.NamespacedName]map[endpoint]bool
	// listings sums that up over all EndpointSlices.
	listings map[endpoint]listing
}

// addressPoll is how soon to look again at what no event of a slice tells: whether slices that name no Pod still list
// its address, and whether the Service still has an address family in which the Pod is not listed.
const addressPoll = time.Second

// endpoint is one Pod of one Service in one address family. The UID keeps a Pod apart from an earlier one of its name;
// a slice that another controller maintains may lack it. If it names no Pod at all, there is only the address.
type endpoint struct {
	namespace, service, pod string
	uid                     types.UID
	address                 string
	family                  discoveryv1.AddressType
}

// addressTypes are all that a slice can have.
var addressTypes = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6,
	discoveryv1.AddressTypeFQDN}

// listing is how many EndpointSlices name the Pod, how many of them list it, and since when that is any or none.
type listing struct {
	named, listed int
	since         time.Time
}

var _ backend.Backend = &Adapter{}

// New makes an adapter for one manager. A nil clock means the real one.
func New(clk clock.PassiveClock) *Adapter {
	if clk == nil {
		clk = clock.RealClock{}
	}
	return &Adapter{clock: clk, slices: map[types.NamespacedName]map[endpoint]bool{}, listings: map[endpoint]listing{}}
}

// Name is part of backend.Backend.
func (a *Adapter) Name() string { return Name }

// Selector is part of backend.Backend: Services labelled kusionstack.io/control=true employ the Pods that they select.
func (a *Adapter) Selector(employer client.Object) labels.Selector {
	service, ok := employer.(*corev1.Service)
	if !ok {
		return nil
	}
	return api.ServiceSelector(service)
}

// Observe is part of backend.Backend.
func (a *Adapter) Observe(employer client.Object, pod *corev1.Pod) backend.Observation {
	service, ok := employer.(*corev1.Service)
	if !ok {
		return backend.Observation{Unknown: true}
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	o := backend.Observation{}
	missing := familiesOf(service, pod)
	for _, family := range addressTypes {
		for _, e := range endpointsOf(service, pod, family) {
			l, named := a.listings[e]
			if l.listed > 0 {
				o.Serving = true
				delete(missing, family)
			} else if l.since.After(o.Since) {
				o.Since = l.since
			}
			if named && e.pod == "" {
				o.LookAgain = addressPoll
			}
		}
	}
	if o.Serving && len(missing) > 0 && joins(service, pod) {
		return backend.Observation{LookAgain: addressPoll}
	}
	return o
}

// Provisioner is part of backend.Backend.
func (a *Adapter) Provisioner() backend.Provisioner { return nil }

// endpointsOf are the forms in which a slice of the family may list the Pod: by its UID, by its name alone, by an
// address.
func endpointsOf(service *corev1.Service, pod *corev1.Pod, family discoveryv1.AddressType) []endpoint {
	key := endpoint{namespace: pod.Namespace, service: service.Name, pod: pod.Name, uid: pod.UID, family: family}
	anonymous := key
	anonymous.uid = ""
	all := []endpoint{key, anonymous}
	for _, ip := range pod.Status.PodIPs {
		all = append(all, endpoint{namespace: pod.Namespace, service: service.Name, address: canonical(ip.IP),
			family: family})
	}
	return all
}

// familiesOf are the address families in which Kubernetes lists the Pod for the Service.
func familiesOf(service *corev1.Service, pod *corev1.Pod) map[discoveryv1.AddressType]bool {
	families := map[discoveryv1.AddressType]bool{}
	for _, ip := range pod.Status.PodIPs {
		address, err := netip.ParseAddr(ip.IP)
		if err != nil {
			continue // the API server lets none pass
		}
		family := corev1.IPv4Protocol
		if address.Unmap().Is6() {
			family = corev1.IPv6Protocol
		}
		if slices.Contains(service.Spec.IPFamilies, family) {
			families[discoveryv1.AddressType(family)] = true
		}
	}
	return families
}

// joins reports whether the Pod is on its way into traffic. For all others any listing counts.
func joins(service *corev1.Service, pod *corev1.Pod) bool {
	return podops.MayJoin(podops.Read(pod)) && !slices.Contains(pod.Finalizers, api.Finalizer(service.Name))
}

// Sources is part of backend.Backend.
func (a *Adapter) Sources(mgr manager.Manager, _ backend.Report) ([]source.Source, error) {
	return []source.Source{source.Kind(mgr.GetCache(), client.Object(&discoveryv1.EndpointSlice{}), a.events())}, nil
}

func (a *Adapter) events() handler.EventHandler {
	put := func(o client.Object, q backend.Queue) {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok {
			enqueue(q, a.update(client.ObjectKeyFromObject(s), read(s)))
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q backend.Queue) { put(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q backend.Queue) { put(e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q backend.Queue) {
			enqueue(q, a.update(client.ObjectKeyFromObject(e.Object), nil))
		},
	}
}

// update takes in what an EndpointSlice says now, and returns the Pods whose state that changed, true for those that
// are not listed any more.
func (a *Adapter) update(slice types.NamespacedName, now map[endpoint]bool) map[types.NamespacedName]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.slices[slice]
	was := map[endpoint]bool{}
	for e, listed := range before {
		if after, still := now[e]; !still || after != listed {
			a.count(e, was, -1, listed)
		}
	}
	for e, listed := range now {
		if earlier, known := before[e]; !known || earlier != listed {
			a.count(e, was, +1, listed)
		}
	}
	if len(now) == 0 {
		delete(a.slices, slice)
	} else {
		a.slices[slice] = now
	}
	return a.stamp(was)
}

// count adds what a slice says of an endpoint, or takes it away; was keeps how it stood before.
func (a *Adapter) count(e endpoint, was map[endpoint]bool, by int, listed bool) {
	l := a.listings[e]
	if _, touched := was[e]; !touched {
		was[e] = l.listed > 0
	}
	l.named += by
	if listed {
		l.listed += by
	}
	a.listings[e] = l
}

// stamp stamps the endpoints that are listed now and were not, or the reverse, and returns their Pods.
func (a *Adapter) stamp(was map[endpoint]bool) map[types.NamespacedName]bool {
	dropped := map[types.NamespacedName]bool{}
	for e, listed := range was {
		l := a.listings[e]
		changed := listed != (l.listed > 0)
		if changed {
			l.since = a.clock.Now()
			if e.pod != "" {
				dropped[types.NamespacedName{Namespace: e.namespace, Name: e.pod}] = listed
			}
		}
		if l.named == 0 {
			delete(a.listings, e)
			continue
		}
		if l.since.IsZero() {
			l.since = a.clock.Now()
		}
		a.listings[e] = l
	}
	return dropped
}

// read says of each Pod in an EndpointSlice, or of each address that no Pod is named for, whether it is listed. A slice
// of no Service says nothing.
func read(s *discoveryv1.EndpointSlice) map[endpoint]bool {
	service := s.Labels[discoveryv1.LabelServiceName]
	if service == "" {
		return nil
	}
	listed := make(map[endpoint]bool, len(s.Endpoints))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if namesPod(e) {
			key := endpoint{namespace: s.Namespace, service: service, pod: e.TargetRef.Name, uid: e.TargetRef.UID,
				family: s.AddressType}
			listed[key] = listed[key] || Listed(e.Conditions)
			continue
		}
		for _, address := range e.Addresses {
			key := endpoint{namespace: s.Namespace, service: service, address: canonical(address), family: s.AddressType}
			listed[key] = listed[key] || Listed(e.Conditions)
		}
	}
	return listed
}

func namesPod(e *discoveryv1.Endpoint) bool {
	return e.TargetRef != nil && e.TargetRef.Kind == "Pod" && e.TargetRef.Name != ""
}

// canonical is the one form of an IP address; what is none stays as it is.
func canonical(address string) string {
	if parsed, err := netip.ParseAddr(address); err == nil {
		return parsed.String()
	}
	return address
}

// Listed reports whether an endpoint with these conditions is to be sent traffic. As the API has it, a nil ready counts
// as true, a nil serving follows ready, and a nil terminating counts as false.
func Listed(c discoveryv1.EndpointConditions) bool {
	return ptr.Deref(c.Ready, true) && ptr.Deref(c.Serving, true) && !ptr.Deref(c.Terminating, false)
}

func enqueue(q backend.Queue, dropped map[types.NamespacedName]bool) {
	for pod, first := range dropped {
		backend.Enqueue(q, pod, first)
	}
}

// Strip keeps of an EndpointSlice what the adapter reads: its Service and address family, and of each endpoint the Pod,
// or its addresses if it names none, and the conditions.
// It is a cache transform and never returns an error; what is no EndpointSlice passes unchanged.
func Strip(object any) (any, error) {
	s, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return object, nil
	}
	s.ManagedFields, s.OwnerReferences, s.Annotations, s.Ports = nil, nil, nil, nil
	s.Labels = map[string]string{discoveryv1.LabelServiceName: s.Labels[discoveryv1.LabelServiceName]}
	for i := range s.Endpoints {
		e := discoveryv1.Endpoint{Conditions: s.Endpoints[i].Conditions}
		if namesPod(&s.Endpoints[i]) {
			ref := s.Endpoints[i].TargetRef
			e.TargetRef = &corev1.ObjectReference{Kind: ref.Kind, Name: ref.Name, UID: ref.UID}
		} else {
			e.Addresses = s.Endpoints[i].Addresses
		}
		s.Endpoints[i] = e
	}
	return s, nil
}
