// Package builtin is the resourceconsist-controller binary: the framework with all built-in adapters. It is apart from
// the framework so that those who run adapters of their own do not link all others.
package builtin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/resourceconsist/endpointslice"
)

const (
	defaultDrainTime   = time.Second
	defaultConcurrency = 10
)

// Component is the resourceconsist-controller binary.
func Component() bootstrap.Component {
	known := builtIns()
	adapters := []string{endpointslice.Name}
	drainTime := defaultDrainTime
	return bootstrap.Component{
		Name:  "resourceconsist-controller",
		Short: "Keeps traffic and other resources of Pods consistent with operations on the Pods.",
		Long: "resourceconsist-controller keeps traffic and other resources of Pods consistent with operations on the " +
			"Pods. A Pod that is " +
			"selected by a Service with the label " + appsv1alpha1.ControlLabel + "=" + appsv1alpha1.ControlValue +
			" is operated on only after it has left the Service's traffic, and counts as serving only after it is back in it.",
		LeaderElected: true,
		Concurrency:   defaultConcurrency,
		Cache:         func(*bootstrap.Options) cache.Options { return CacheOptions() },
		AddFlags: func(fs *pflag.FlagSet) {
			fs.StringSliceVar(&adapters, "adapters", adapters,
				"Comma-separated adapters to run. Built in: "+strings.Join(names(known), ", ")+".")
			fs.DurationVar(&drainTime, "drain-time", drainTime,
				"Minimum time between the end of a Pod's traffic and the operation on it. A Service's annotation "+
					api.DrainSecondsAnnotation+" overrides it.")
			for _, b := range known {
				if b.addFlags != nil {
					b.addFlags(fs)
				}
			}
		},
		Validate: func(*bootstrap.Options) error { return validate(known, adapters, drainTime) },
		Setup: func(ctx context.Context, mgr ctrl.Manager, o bootstrap.Options) error {
			var chosen []backend.Backend
			for _, b := range enabled(known, adapters) {
				made, err := b.make(ctx, mgr)
				if err != nil {
					return fmt.Errorf("starting adapter %s: %w", b.name, err)
				}
				chosen = append(chosen, made...)
			}
			add := resourceconsist.AddToManagerOnDemand
			if len(o.Namespaces) > 0 { // its user need not be allowed to look at all namespaces
				add = resourceconsist.AddToManager
			}
			return add(mgr, &corev1.Service{}, api.Options{DrainTime: drainTime, Concurrency: o.Concurrency}, chosen...)
		},
	}
}

// CacheOptions caches what the built-in adapters read and no more: managed Pods without most of their spec, Services
// that take part, and of EndpointSlices which Pods they list. A Service or Pod that loses its label leaves the cache
// with a delete event.
func CacheOptions() cache.Options {
	controlled := bootstrap.Managed()
	return cache.Options{NewInformer: new(podcache.Store).NewInformer, ByObject: map[client.Object]cache.ByObject{
		&corev1.Pod{}:                {Label: controlled, Transform: stripPod},
		&corev1.Service{}:            {Label: controlled},
		&discoveryv1.EndpointSlice{}: {Transform: endpointslice.Strip},
	}}
}

// stripPod keeps of a Pod what is read here: its metadata, readiness gates, the protocol's conditions, phase, addresses
// and the ports that have a name, by which a Service's targetPort may find them.
func stripPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return bootstrap.StripManagedFields(object)
	}
	pod.ManagedFields, pod.OwnerReferences = nil, nil
	delete(pod.Annotations, corev1.LastAppliedConfigAnnotation)
	pod.Spec = corev1.PodSpec{
		ReadinessGates: pod.Spec.ReadinessGates, NodeName: pod.Spec.NodeName,
		Containers: namedPorts(pod.Spec.Containers), InitContainers: namedPorts(pod.Spec.InitContainers),
	}
	pod.Status = corev1.PodStatus{
		Phase: pod.Status.Phase, Conditions: bootstrap.OnlyConditions(pod.Status.Conditions, corev1.PodReady,
			corev1.ContainersReady, podops.ServiceReadyCondition), PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs,
	}
	return pod, nil
}

// namedPorts keeps of containers those with named ports, and of these the ports alone.
func namedPorts(containers []corev1.Container) []corev1.Container {
	var kept []corev1.Container
	for i := range containers {
		var ports []corev1.ContainerPort
		for _, port := range containers[i].Ports {
			if port.Name != "" {
				ports = append(ports, corev1.ContainerPort{Name: port.Name, ContainerPort: port.ContainerPort,
					Protocol: port.Protocol})
			}
		}
		if len(ports) > 0 {
			kept = append(kept, corev1.Container{Name: containers[i].Name, Ports: ports})
		}
	}
	return kept
}
