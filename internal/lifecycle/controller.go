// Package lifecycle is lifecycle-controller: it moves Pods through the phases of
// the operations that others ask for, owns the readiness gate and the
// service-available label, and deletes Pods that are marked for deletion.
//
// It writes `pods/status` (labels and conditions in one patch), deletes, and takes expected finalizers off Pods whose
// employer is gone; every write carries the Pod's UID and resourceVersion. It keeps no state but the age of phases,
// which it takes from the labels after a restart, and what the API server said of deletions, which it asks again: after
// a crash at any point the next look at the Pod gives the same decision, or one that is as safe.
package lifecycle

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/freeze"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/revision"
)

// Name is the component's name: its Lease, user agent, field manager and event source.
const Name = "lifecycle-controller"

// Component describes the binary.
func Component() bootstrap.Component {
	var waits waitFlags
	return bootstrap.Component{
		Name:  Name,
		Short: "Advances Pods through the phases of requested operations.",
		Long: "lifecycle-controller takes Pods labelled kusionstack.io/control=true out of service before an operation and " +
			"back into service after it. It waits for rules (PodTransitionRules, if their CRD is installed) and cooperators " +
			"(protection finalizers).",
		LeaderElected: true,
		Concurrency:   16,
		Cache:         cacheOptions,
		AddFlags:      waits.add,
		Validate:      func(*bootstrap.Options) error { return waits.parse() },
		Setup: func(ctx context.Context, mgr ctrl.Manager, o bootstrap.Options) error {
			return setup(ctx, mgr, o, waits)
		},
	}
}

// cacheOptions keeps of the cluster's Pods only managed ones, and of those only
// what the protocol reads.
func cacheOptions(*bootstrap.Options) cache.Options {
	return cache.Options{NewInformer: new(podcache.Store).NewInformer, ByObject: map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Label: bootstrap.Managed(), Transform: stripPod},
	}}
}

// stripPod keeps what the protocol reads, of the program's own condition what it says. While a change in place is under
// way it keeps what shows how far that has come.
var stripPod = bootstrap.ProtocolPods(isRead, func(pod *corev1.Pod, spec *corev1.PodSpec, status *corev1.PodStatus) {
	if revision.Recorded(pod) {
		spec.Containers = revision.OnlyContainers(pod.Spec.Containers, false)
		spec.InitContainers = revision.OnlyContainers(pod.Spec.InitContainers, false)
		status.ContainerStatuses = revision.OnlyStatuses(pod.Status.ContainerStatuses, false)
		status.InitContainerStatuses = revision.OnlyStatuses(revision.SidecarStatuses(pod), false)
		status.ObservedGeneration = pod.Status.ObservedGeneration
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == podops.OverdueCondition {
			status.Conditions = append(status.Conditions,
				corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
		}
	}
})

// isRead reports whether the protocol reads the annotation, or removes it.
func isRead(annotation string) bool {
	switch annotation {
	case podops.AvailableConditionsAnnotation, podops.SkipRulesAnnotation, podops.DeadlinesAnnotation,
		podops.DeletionRefusedAnnotation, appsv1alpha1.LastPodStatusAnnotation,
		appsv1alpha1.ToDeleteLabel + podops.AskersSuffix, appsv1alpha1.ToReplaceLabel + podops.AskersSuffix:
		return true
	}
	return strings.HasPrefix(annotation, podops.RuleDetailPrefix+"/")
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups="",resources=pods/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=services,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=podtransitionrules,verbs=get;list;watch

func setup(ctx context.Context, mgr ctrl.Manager, o bootstrap.Options, waits waitFlags) error {
	rules := newRules(mgr)
	employers, err := newEmployers(mgr, clock.RealClock{})
	if err != nil {
		return err
	}
	r := &reconciler{
		client:    mgr.GetClient(),
		live:      mgr.GetAPIReader(),
		rules:     rules,
		freeze:    &freeze.Namespaces{Cached: mgr.GetClient(), Suite: o.LeaderElectNamespace, Sees: o.Sees},
		employers: employers,
		deadlines: waits.deadlines,
		patience:  waits.patience, notAwaited: waits.notAwaited(),
		timers: newPhaseTimers(clock.RealClock{}),
		writes: freshness.New(mgr.GetCache(), clock.RealClock{}),
		events: mgr.GetEventRecorder(Name),
		clock:  clock.RealClock{},
	}
	if err := registerMetrics(metric.RegistryOf(mgr), r.timers, newFreezes(ctx, r.freeze, mgr.Elected())); err != nil {
		return err
	}
	c, err := builder.ControllerManagedBy(mgr).
		Named(Name).
		WatchesRawSource(podSource(mgr, r.gone, predicate.ResourceVersionChangedPredicate{})).
		WatchesRawSource(r.freeze.Source(mgr, rules.waiting)).
		WithOptions(bootstrap.ControllerOptions(0)).
		Build(r)
	if err != nil {
		return fmt.Errorf("adding the controller: %w", err)
	}
	if err := respondToEvictions(ctx, mgr, o, r, waits.requests); err != nil {
		return err
	}
	return bootstrap.WhenServed(mgr, ruleKind, func(mgr ctrl.Manager) error {
		rules.kind.Known()
		return c.Watch(rules.source(mgr))
	})
}
