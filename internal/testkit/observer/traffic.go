package observer

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// slice is one EndpointSlice: whom it lists, and whether as ready, by UID, or by name where it tells no UID.
type slice struct {
	service string
	byUID   map[types.UID]bool
	byName  map[string]bool
}

func (s *space) applySlice(obj *discoveryv1.EndpointSlice, e Event) {
	if e.Deleted {
		delete(s.slices, obj.Name)
		return
	}
	listed := slice{service: obj.Labels[discoveryv1.LabelServiceName], byUID: map[types.UID]bool{},
		byName: map[string]bool{}}
	for _, endpoint := range obj.Endpoints {
		ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
		if endpoint.TargetRef != nil && endpoint.TargetRef.Kind == "Pod" {
			if endpoint.TargetRef.UID != "" {
				listed.byUID[endpoint.TargetRef.UID] = ready
			} else {
				listed.byName[endpoint.TargetRef.Name] = ready
			}
		}
	}
	s.slices[obj.Name] = listed
}

// slicesFollow reports whether the EndpointSlices tell what the Pods are. The EndpointSlice controller writes them,
// later than the Pods, and until they follow nothing is at rest.
func (s *space) slicesFollow() bool {
	pods := map[types.UID]*corev1.Pod{}
	for _, p := range s.pods {
		pods[p.obj.UID] = p.obj
	}
	for name, service := range s.services {
		if len(service.Spec.Selector) == 0 || service.DeletionTimestamp != nil {
			continue
		}
		wanted := func(p *corev1.Pod) bool {
			return isLive(p) && isReady(p) && p.Status.PodIP != "" || service.Spec.PublishNotReadyAddresses
		}
		selector := labels.SelectorFromSet(service.Spec.Selector)
		listed := map[types.UID]bool{}
		for _, of := range s.slices {
			if of.service != name {
				continue
			}
			for uid, ready := range of.byUID {
				if p := pods[uid]; p == nil || ready != wanted(p) || !selector.Matches(labels.Set(p.Labels)) {
					return false
				}
				listed[uid] = true
			}
		}
		for uid, p := range pods {
			if !listed[uid] && isLive(p) && p.Status.PodIP != "" && selector.Matches(labels.Set(p.Labels)) {
				return false
			}
		}
	}
	return true
}

// controlled reports whether a Service is under control, and not being deleted.
func (s *space) controlled(service string) bool {
	obj := s.services[service]
	return obj != nil && obj.DeletionTimestamp == nil && obj.Labels[controlLabel] == "true"
}

// checkTraffic judges what an operation did by what was known just before.
func (s *space) checkTraffic(before *pod, obj *corev1.Pod, e Event) {
	if s.options.Direct || obj.Labels[controlLabel] != "true" || before.obj.DeletionTimestamp != nil {
		return
	}
	what, gone := "", obj.DeletionTimestamp != nil || e.Deleted
	switch {
	case gone && hasKey(before.obj, operatePrefix):
		what = "was deleted by an operation"
	case gone && s.options.Graceful:
		s.check(Traffic, e, !isReady(before.obj) || !hasGate(before.obj), "was deleted while it was Ready, by no operation")
		return
	case !sameImages(before.obj, obj):
		what = fmt.Sprintf("had its images changed from %v to %v", images(before.obj), images(obj))
	case resized(before.obj, obj) != "":
		what = "had the resources of container " + resized(before.obj, obj) + " changed"
	default:
		return
	}
	s.checks[Traffic]++
	if isReady(before.obj) && hasGate(before.obj) {
		s.report(Traffic, e, what+" while it was Ready")
	}
	for name, listed := range s.slices {
		if s.controlled(listed.service) && (listed.byUID[obj.UID] || listed.byName[obj.Name]) {
			s.report(Traffic, e, fmt.Sprintf("%s while EndpointSlice %s of Service %s listed it as ready", what, name,
				listed.service))
		}
	}
}

// sameImages reports whether no container has got another image. It is asked for every event of a Pod.
func sameImages(a, b *corev1.Pod) bool {
	same := func(x, y corev1.Container) bool { return x.Image == y.Image && x.Name == y.Name }
	return slices.EqualFunc(a.Spec.Containers, b.Spec.Containers, same) &&
		slices.EqualFunc(a.Spec.InitContainers, b.Spec.InitContainers, same)
}

// resized names the first container that collaset-controller had restart for other resources; "" if there is none.
// What restarts nothing may be done while the Pod serves. Others, an autoscaler for one, resize running Pods on their
// own account.
func resized(before, after *corev1.Pod) string {
	for _, pair := range [][2][]corev1.Container{{before.Spec.InitContainers, after.Spec.InitContainers},
		{before.Spec.Containers, after.Spec.Containers}} {
		for i := range min(len(pair[0]), len(pair[1])) {
			old, now := &pair[0][i], &pair[1][i]
			if !sameResources(&old.Resources, &now.Resources) && restarts(old, now) && resizedBy(after, now.Name) {
				return now.Name
			}
		}
	}
	return ""
}

// restarts reports whether a container restarts for the change of its resources, as its resizePolicy says.
func restarts(old, now *corev1.Container) bool {
	differs := func(a, b corev1.ResourceList, of corev1.ResourceName) bool {
		x, y := a[of], b[of]
		return x.Cmp(y) != 0
	}
	return slices.ContainsFunc(now.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		return p.RestartPolicy == corev1.RestartContainer &&
			(differs(old.Resources.Requests, now.Resources.Requests, p.ResourceName) ||
				differs(old.Resources.Limits, now.Resources.Limits, p.ResourceName))
	})
}

func sameResources(a, b *corev1.ResourceRequirements) bool {
	if len(a.Requests)+len(a.Limits)+len(b.Requests)+len(b.Limits) == 0 {
		return true
	}
	return equality.Semantic.DeepEqual(a.Requests, b.Requests) && equality.Semantic.DeepEqual(a.Limits, b.Limits)
}

// resizedBy reports whether collaset-controller holds the resources of a container, as far as is known.
func resizedBy(obj *corev1.Pod, container string) bool {
	if len(obj.ManagedFields) == 0 {
		return true
	}
	return slices.ContainsFunc(obj.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == collasetController && entry.Subresource == "resize" && holds(entry, container)
	})
}
