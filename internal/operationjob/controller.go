// Package operationjob is operationjob-controller: it carries out OperationJobs. Its decisions are in package jobplan.
//
// It writes the status of OperationJobs, their finalizer, and to Pods what jobplan says: marks, requests of the
// lifecycle, tasks, images of containers, a finalizer. It evicts Pods, and deletes jobs whose time is over. Every write
// carries the UID and resourceVersion of the view that it was decided on. One worker at a time serves a job. It decides
// nothing until the cache shows what it last wrote, and reads past the cache before it takes anything for gone.
package operationjob

import (
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
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
)

// Name is the component's name: its Lease, user agent, field manager and event source.
const Name = "operationjob-controller"

// Component describes the binary.
func Component() bootstrap.Component {
	return bootstrap.Component{
		Name:  Name,
		Short: "Carries out OperationJobs: replaces, restarts, re-creates or evicts lists of Pods.",
		Long: "operationjob-controller carries out OperationJobs. Pods are replaced and re-created by collaset-controller, " +
			"and taken out of service by lifecycle-controller. --concurrency is the number of jobs at the same time.",
		LeaderElected: true,
		Concurrency:   4,
		Cache:         cacheOptions,
		Setup:         setup,
	}
}

// cacheOptions caches managed Pods only; others are read from the API server when a job needs them.
func cacheOptions(*bootstrap.Options) cache.Options {
	return cache.Options{NewInformer: new(podcache.Store).NewInformer, ByObject: map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Label: bootstrap.Managed(), Transform: stripPod},
	}}
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=operationjobs,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=operationjobs/status,verbs=update
// +kubebuilder:rbac:groups=apps,resources=replicasets,verbs=list
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

func setup(ctx context.Context, mgr ctrl.Manager, o bootstrap.Options) error {
	if err := registerMetrics(); err != nil {
		return err
	}
	kind := appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.OperationJobKind)
	return bootstrap.WhenServed(mgr, kind, func(mgr ctrl.Manager) error {
		return ondemand.AddToManager(mgr, o.Namespaces, ondemand.Controller{
			Kind: &appsv1alpha1.OperationJob{}, Add: func() error { return addController(ctx, mgr) },
		})
	})
}

func addController(ctx context.Context, mgr ctrl.Manager) error {
	indexer := mgr.GetFieldIndexer()
	if err := indexer.IndexField(ctx, &appsv1alpha1.OperationJob{}, targetIndex, targetsOf); err != nil {
		return fmt.Errorf("indexing OperationJobs by target: %w", err)
	}
	if err := indexer.IndexField(ctx, &corev1.Pod{}, instanceIndex, instanceOf); err != nil {
		return fmt.Errorf("indexing Pods by instance ID: %w", err)
	}
	evict, err := evictor(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	r := &reconciler{
		evict:  evict,
		client: mgr.GetClient(),
		live:   mgr.GetAPIReader(),
		writes: freshness.New(mgr.GetCache(), clock.RealClock{}),
		events: mgr.GetEventRecorder(Name),
		clock:  clock.RealClock{},
	}
	if err := metric.Register(metric.RegistryOf(mgr), newGauges(ctx, mgr.GetCache(), mgr.Elected())); err != nil {
		return err
	}
	err = builder.ControllerManagedBy(mgr).
		Named(Name).
		For(&appsv1alpha1.OperationJob{}).
		WatchesRawSource(podSource(mgr)).
		WithOptions(bootstrap.ControllerOptions(0)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("adding the controller: %w", err)
	}
	return nil
}

// evictor returns what evicts a Pod. It asks once: an eviction that a budget or webhook-server refuses comes with the
// header Retry-After, by which client-go would repeat it ten times while a worker waits.
func evictor(config *rest.Config, c *http.Client) (func(context.Context, *policyv1.Eviction) error, error) {
	pods, err := corev1client.NewForConfigAndClient(config, c)
	if err != nil {
		return nil, fmt.Errorf("making the client of evictions: %w", err)
	}
	return func(ctx context.Context, e *policyv1.Eviction) error {
		return pods.RESTClient().Post().Namespace(e.Namespace).Resource("pods").Name(e.Name).SubResource("eviction").
			Body(e).MaxRetries(0).Do(ctx).Error()
	}, nil
}
