// Package poddecoration is poddecoration-controller: it rolls PodDecorations out. Its decisions are in package decoplan.
//
// It writes the status of PodDecorations, their finalizer, their ControllerRevisions, and to Pods what decoplan says:
// which decorations they are to have, requests of the lifecycle, changes in place. Every write to a Pod carries the UID
// and resourceVersion of the view that it was decided on. One worker at a time serves a namespace. It decides nothing
// until the cache shows what it last wrote, and nothing in a namespace that was not compared with the API server since
// the process won its Lease (freshness).
package poddecoration

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/ondemand"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/revision/detect"
)

// Name is the component's name: its Lease, user agent, field manager and event source.
const Name = "poddecoration-controller"

// settings are the component's own.
type settings struct {
	restart revision.RestartAnnotations
	pods    *podcache.Store
}

// Component describes the binary.
func Component() bootstrap.Component {
	own := &settings{restart: revision.DefaultRestartAnnotations, pods: &podcache.Store{}}
	return bootstrap.Component{
		Name:  Name,
		Short: "Rolls PodDecorations out: sidecars and shared settings for Pods of any workload.",
		Long: "poddecoration-controller decides which PodDecorations each Pod is to have, and brings Pods to it that no " +
			"CollaSet owns. collaset-controller does so for Pods of CollaSets, and webhook-server decorates new Pods. " +
			"--concurrency is the number of namespaces at the same time.",
		LeaderElected: true,
		Concurrency:   4,
		Cache: func(*bootstrap.Options) cache.Options {
			return cache.Options{NewInformer: own.pods.NewInformer, ByObject: map[client.Object]cache.ByObject{
				&corev1.Pod{}:                {Transform: stripPod},
				&appsv1.ControllerRevision{}: {Transform: stripRevision},
			}}
		},
		AddFlags: func(fs *pflag.FlagSet) {
			fs.Var(&own.restart, revision.RestartAnnotationsFlag, revision.RestartAnnotationsUsage)
		},
		Setup: own.setup,
	}
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=pods/resize,verbs=patch
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=poddecorations,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=poddecorations/status,verbs=update
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=resourcecontexts,verbs=list
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apps,resources=daemonsets;replicasets;statefulsets,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

func (own *settings) setup(ctx context.Context, mgr ctrl.Manager, o bootstrap.Options) error {
	if err := registerMetrics(); err != nil {
		return err
	}
	kind := appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodDecorationKind)
	return bootstrap.WhenServed(mgr, kind, func(mgr ctrl.Manager) error {
		return ondemand.AddToManager(mgr, o.Namespaces, ondemand.Controller{
			Kind: &appsv1alpha1.PodDecoration{}, Add: func() error { return own.addController(ctx, mgr) },
		})
	})
}

func (own *settings) addController(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &appsv1.ControllerRevision{}, ownerIndex, revisionOwner)
	if err != nil {
		return fmt.Errorf("indexing revisions by owner: %w", err)
	}
	detector, err := detect.New(mgr.GetConfig(), clock.RealClock{}, revision.Capabilities{Restart: own.restart})
	if err != nil {
		return err
	}
	r := &reconciler{
		client:    mgr.GetClient(),
		live:      mgr.GetAPIReader(),
		cached:    own.pods,
		writes:    freshness.New(mgr.GetCache(), clock.RealClock{}),
		events:    mgr.GetEventRecorder(Name),
		clock:     clock.RealClock{},
		serverCan: detector.Capabilities,
	}
	if err := metric.Register(metric.RegistryOf(mgr), newGauges(ctx, mgr.GetCache(), mgr.Elected())); err != nil {
		return err
	}
	err = builder.ControllerManagedBy(mgr).
		Named(Name).
		WatchesRawSource(decorationSource(mgr)).
		WatchesRawSource(revisionSource(mgr)).
		WatchesRawSource(r.podSource(mgr)).
		WithOptions(bootstrap.ControllerOptions(0)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("adding the controller: %w", err)
	}
	return nil
}
