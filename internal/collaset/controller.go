// Package collaset is collaset-controller: it keeps the Pods of CollaSets at the wanted number and revision, under the
// Pod protocol of api/podops or, with --pod-ops-lifecycle=false, directly. Its decisions are in package setplan, what
// revisions mean in package revision.
//
// One reconcile observes (caches only), decides, applies and reports. It decides nothing while the cache lacks one of
// its own writes of that CollaSet. Pods are patched with their UID and resourceVersion, never updated as a whole; a
// conflict means that the view was old, and is no error. Each question of a reconcile has a type or functions of its own
// (docs/design/0035-reconciler-by-question.md), and reconciler.reconcile has their order.
//
// The steps of an update in place that follow on single Pods from a decision, and from nothing but the Pod since, are
// made as events come, without another decision about the set (docs/design/0013-steps-of-single-pods.md).
package collaset

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/spf13/pflag"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/revision/detect"
)

// Name is the component's name: its Lease, user agent, field manager and event source.
const Name = "collaset-controller"

// ownerIndex is the cache index of ControllerRevisions by revisionOwner, and of Pods by ownedBy.
const ownerIndex = "collaset.owner"

// settings are the component's own flags.
type settings struct {
	// podOpsLifecycle says to operate Pods under the Pod protocol.
	podOpsLifecycle bool
	// clearFields has every patch of a Pod clear its metadata.managedFields.
	clearFields bool
	// limits are those of the window and of decisions.
	limits setplan.Limits
	// restart are the annotations of templates that ask for a restart.
	restart revision.RestartAnnotations
	pods    *podcache.Store
	// compatibility says by which conventions specs are read.
	compatibility bootstrap.Compatibility
}

// conventions are those that --compatibility names.
func (s *settings) conventions() setplan.Conventions {
	if s.compatibility == bootstrap.KuperatorV07 {
		return setplan.KuperatorV07
	}
	return setplan.OwnConventions
}

// Component describes the binary.
func Component() bootstrap.Component {
	own := settings{podOpsLifecycle: true, limits: setplan.DefaultLimits(), restart: revision.DefaultRestartAnnotations,
		pods: newPodStore()}
	return bootstrap.Component{
		Name:  Name,
		Short: "Keeps the Pods of CollaSets at the desired number and revision.",
		Long: "collaset-controller scales, updates and deletes the Pods of CollaSets. It asks lifecycle-controller and " +
			"PodTransitionRules for permission before it touches a Pod, unless --pod-ops-lifecycle=false. --concurrency is the number of " +
			"CollaSets reconciled at a time.",
		LeaderElected: true,
		Concurrency:   8,
		Cache:         func(*bootstrap.Options) cache.Options { return cacheOptions(own.pods) },
		AddFlags: func(fs *pflag.FlagSet) {
			fs.BoolVar(&own.podOpsLifecycle, "pod-ops-lifecycle", own.podOpsLifecycle,
				"Operate Pods under the Pod lifecycle. If false, update and delete them directly, within maxUnavailable and without a readiness "+
					"gate; no other component is needed then.")
			fs.BoolVar(&own.clearFields, "clear-pod-managed-fields", own.clearFields,
				"Clear metadata.managedFields of a Pod with every change, unless a client has used server-side apply on it. The API server then "+
					"keeps no record of who wrote which field of the Pod, and its later changes cost little more than half.")
			fs.IntVar(&own.limits.InFlight, "max-pods-in-flight", own.limits.InFlight,
				"Maximum number of Pods of all CollaSets that are being updated and wait for a step of this suite. A Pod that waits for its "+
					"kubelet, a load balancer or a rule does not count, and none counts for longer than 3 s. With fewer, each Pod is out of "+
					"service for a shorter time.")
			own.compatibility.AddTo(fs,
				"What a CollaSet does not say is filled in as Kuperator v0.7 has it (docs/migrate/from-kuperator.md has the table); what it says holds.")
			fs.Var(&own.restart, revision.RestartAnnotationsFlag, revision.RestartAnnotationsUsage)
		},
		Setup: func(ctx context.Context, mgr ctrl.Manager, _ bootstrap.Options) error { return setup(ctx, mgr, own) },
	}
}

// newPodStore makes the store by which a CollaSet's Pods are found.
func newPodStore() *podcache.Store {
	return &podcache.Store{Indexers: toolscache.Indexers{ownerIndex: podOwner}}
}

// cacheOptions keeps of the cluster's Pods and claims only managed ones, and of Pods only what is read here.
func cacheOptions(pods *podcache.Store) cache.Options {
	managed := bootstrap.Managed()
	return cache.Options{NewInformer: pods.NewInformer, ByObject: map[client.Object]cache.ByObject{
		&corev1.Pod{}:                   {Label: managed, Transform: stripPod},
		&corev1.PersistentVolumeClaim{}: {Label: managed},
		&corev1.Node{}:                  {Transform: stripNode},
	}}
}

// stripPod keeps metadata, but of managedFields only whether a client has applied, volumes that are claims, the
// containers' names and images, readiness gates, the node, and what the status says of conditions and containers, of
// init containers that end only if they fail; resources only while a change in place is under way.
func stripPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return bootstrap.StripManagedFields(object)
	}
	if hasApplied(pod) {
		pod.ManagedFields = applyEntry
	} else {
		pod.ManagedFields = nil
	}
	changed := revision.Recorded(pod)
	containers, inits := revision.OnlyContainers(pod.Spec.Containers, changed),
		revision.OnlyContainers(pod.Spec.InitContainers, changed)
	statuses, sidecars := revision.OnlyStatuses(pod.Status.ContainerStatuses, changed),
		revision.OnlyStatuses(revision.SidecarStatuses(pod), changed)
	for i := range pod.Status.InitContainerStatuses {
		s := &pod.Status.InitContainerStatuses[i]
		isKept := slices.ContainsFunc(sidecars, func(c corev1.ContainerStatus) bool { return c.Name == s.Name })
		if !isKept && failure(s, nil) != "" {
			sidecars = append(sidecars, corev1.ContainerStatus{Name: s.Name, State: s.State})
		}
	}
	conditions := make([]corev1.PodCondition, 0, 4)
	for _, c := range pod.Status.Conditions {
		switch c.Type {
		case corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled, podops.ServiceReadyCondition:
			conditions = append(conditions, corev1.PodCondition{Type: c.Type, Status: c.Status,
				LastTransitionTime: c.LastTransitionTime})
		case corev1.PodResizePending, corev1.PodResizeInProgress:
			conditions = append(conditions, corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason,
				Message: c.Message, ObservedGeneration: c.ObservedGeneration})
		default:
			if isGate := func(g corev1.PodReadinessGate) bool { return g.ConditionType == c.Type }; slices.ContainsFunc(
				pod.Spec.ReadinessGates, isGate) {
				conditions = append(conditions, corev1.PodCondition{Type: c.Type, Status: c.Status})
			}
		}
	}
	var volumes []corev1.Volume
	for i := range pod.Spec.Volumes {
		if claim := pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			volumes = append(volumes, corev1.Volume{Name: pod.Spec.Volumes[i].Name,
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: claim}})
		}
	}
	spec, whole := pod.Spec.Resources, pod.Status.Resources
	pod.Spec = corev1.PodSpec{
		Volumes: volumes, Containers: containers, InitContainers: inits,
		ActiveDeadlineSeconds: pod.Spec.ActiveDeadlineSeconds,
		ReadinessGates:        pod.Spec.ReadinessGates, NodeName: pod.Spec.NodeName,
	}
	pod.Status = corev1.PodStatus{
		Phase: pod.Status.Phase, Reason: pod.Status.Reason, Message: pod.Status.Message,
		Conditions: conditions, ContainerStatuses: statuses, InitContainerStatuses: sidecars,
		ObservedGeneration: pod.Status.ObservedGeneration,
	}
	if changed {
		pod.Spec.Resources, pod.Status.Resources = spec, whole
	}
	return pod, nil
}

// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=collasets,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=collasets/status,verbs=patch
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=collasets/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=resourcecontexts,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods/resize,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

func setup(ctx context.Context, mgr ctrl.Manager, own settings) error {
	if own.limits.InFlight < 1 {
		return fmt.Errorf("--max-pods-in-flight is %d: name at least one, or no Pod is ever updated", own.limits.InFlight)
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &appsv1.ControllerRevision{}, ownerIndex, revisionOwner); err != nil {
		return fmt.Errorf("indexing revisions by owner: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.PersistentVolumeClaim{}, claimIndex, claimKeys); err != nil {
		return fmt.Errorf("indexing claims: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, mountIndex, mountsOf); err != nil {
		return fmt.Errorf("indexing Pods by claims: %w", err)
	}
	if err := registerMetrics(); err != nil {
		return err
	}
	detector, err := detect.New(mgr.GetConfig(), clock.RealClock{},
		revision.Capabilities{Restart: own.restart, ImagesOnly: own.conventions() == setplan.KuperatorV07})
	if err != nil {
		return err
	}
	evictions, err := bootstrap.Offers(mgr, lifecyclev1alpha1.SchemeGroupVersion.WithKind("Eviction"))
	if err != nil {
		return err
	}
	r := &reconciler{
		server: &server{
			client:      mgr.GetClient(),
			live:        mgr.GetAPIReader(),
			writes:      freshness.New(mgr.GetCache(), clock.RealClock{}),
			events:      mgr.GetEventRecorder(Name),
			clock:       clock.RealClock{},
			clearFields: own.clearFields,
			evictions:   evictions,
		},
		cached:   own.pods,
		protocol: own.podOpsLifecycle, conventions: own.conventions(),
		window: newWindow(own.limits, clock.RealClock{}),
		memory: &stateCache{},
		nodes:  &nodes{cache: mgr.GetCache(), sets: mgr.GetClient()}, serverCan: detector.Capabilities,
	}
	return bootstrap.WhenServed(mgr, appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind),
		func(mgr ctrl.Manager) error {
			return bootstrap.WhenServed(mgr, appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.ResourceContextKind),
				func(mgr ctrl.Manager) error {
					return addController(ctx, mgr, r)
				})
		})
}

func addController(ctx context.Context, mgr ctrl.Manager, r *reconciler) error {
	if err := metric.Register(metric.RegistryOf(mgr), newGauges(ctx, mgr.GetCache(), mgr.Elected()),
		r.window); err != nil {
		return err
	}
	for name, values := range map[string]client.IndexerFunc{poolIndex: poolOf, includeIndex: includedBy,
		followIndex: followedBy} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, &appsv1alpha1.CollaSet{}, name, values); err != nil {
			return fmt.Errorf("indexing CollaSets: %w", err)
		}
	}
	events := listener{r.client, r.memory, r.window}
	owner := handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &appsv1alpha1.CollaSet{},
		handler.OnlyControllerOwner())
	err := builder.ControllerManagedBy(mgr).
		Named(podsName).
		Watches(&corev1.Pod{}, events.stepEvents(), builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		WatchesRawSource(&r.window.pods).
		WithOptions(bootstrap.ControllerOptions(parallel)).
		Complete(&podReconciler{
			podStepper: podStepper{trials{r.server}, r.window}, memory: r.memory, protocol: r.protocol,
			conventions: r.conventions,
		})
	if err != nil {
		return fmt.Errorf("adding the controller of steps: %w", err)
	}
	if err := addConfigurationController(mgr, r.server); err != nil {
		return fmt.Errorf("adding the controller of followed configuration: %w", err)
	}
	return builder.ControllerManagedBy(mgr).
		Named(Name).
		For(&appsv1alpha1.CollaSet{},
			builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, configurationChanged()))).
		Watches(&corev1.Pod{}, events.podEvents(owner), builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		WatchesRawSource(&r.window.decisions).
		WatchesRawSource(source.Func(r.nodes.keepQueue)).
		Watches(&appsv1.ControllerRevision{}, owner, builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		Watches(&appsv1alpha1.ResourceContext{}, handler.EnqueueRequestsFromMapFunc(events.usersOf)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(claimUsers),
			builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		WithOptions(bootstrap.ControllerOptions(0)).
		Complete(r)
}

// podOwner is an index function.
func podOwner(object any) ([]string, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("%T is no Pod", object)
	}
	var owners []string
	if _, uid, owned := setOf(pod); owned {
		owners = append(owners, ownedBy(pod.Namespace, uid))
	}
	if isFree(pod) {
		owners = append(owners, ownedBy(pod.Namespace, ""))
	}
	return owners, nil
}

// ownedBy is how Pods of a CollaSet are indexed, and, under no UID, those that isFree reports. An object of another
// namespace that names its UID is not owned.
func ownedBy(namespace string, set types.UID) string { return namespace + "/" + string(set) }
