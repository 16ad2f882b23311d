// Package podtransitionrule is podtransitionrule-controller: it decides, for all PodTransitionRules of a namespace
// together, which Pods may go on, and keeps the ledger of that in the rules' status. Its decisions are in package
// grants.
//
// It writes the status of PodTransitionRules; besides, the PodDisruptionBudgets that mirror rules, and notes on Pods of
// what they wait for, which no decision depends on. It removes Kuperator's finalizer from rules that are being deleted.
// One worker at a time serves a namespace. Two things keep its bounds although it reads from
// caches: it decides nothing until the cache shows what it last wrote, and nothing in a namespace that the cache has
// not been compared with the API server for since the process won its Lease (freshness).
package podtransitionrule

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/freeze"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/ondemand"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/podtransitionrule/asking"
)

// Name is the component's name: its Lease, user agent, field manager and event source.
const Name = "podtransitionrule-controller"

// flags are the component's own.
type flags struct {
	asking               asking.Options
	annotateBlockedAfter time.Duration
	compatibility        bootstrap.Compatibility
	pods                 *podcache.Store
}

// Component describes the binary.
func Component() bootstrap.Component {
	f := &flags{asking: asking.DefaultOptions(), annotateBlockedAfter: 30 * time.Second, pods: &podcache.Store{}}
	return bootstrap.Component{
		Name:  Name,
		Short: "Evaluates PodTransitionRules and grants operations on Pods.",
		Long: "podtransitionrule-controller evaluates all PodTransitionRules of a namespace together and writes grants to their status. " +
			"--concurrency is the number of namespaces evaluated at the same time.",
		LeaderElected: true,
		Concurrency:   4,
		Cache:         f.cacheOptions,
		AddFlags:      f.add,
		Validate:      func(*bootstrap.Options) error { return f.validate() },
		Setup:         f.setup,
	}
}

func (f *flags) add(fs *pflag.FlagSet) {
	f.asking.AddFlags(fs)
	f.compatibility.AddTo(fs, "A webhook that cannot be reached or fails then refuses, whatever its failurePolicy.")
	fs.DurationVar(&f.annotateBlockedAfter, "annotate-blocked-after", f.annotateBlockedAfter,
		"How long a Pod must have waited for a rule for the same reason before the reason is written to an annotation of the Pod. 0: never.")
}

func (f *flags) validate() error {
	if f.annotateBlockedAfter < 0 {
		return fmt.Errorf("--annotate-blocked-after is %s: give a time, such as 30s, or 0 to annotate no Pod",
			f.annotateBlockedAfter)
	}
	return f.asking.Validate()
}

// cacheOptions strips by type of object: options for CollaSets by name would keep the program from starting where their
// CRD is missing.
func (f *flags) cacheOptions(*bootstrap.Options) cache.Options {
	return cache.Options{DefaultTransform: strip, NewInformer: f.pods.NewInformer}
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=nodes;namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=podtransitionrules,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=podtransitionrules/status,verbs=update
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=collasets,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=replicasets;statefulsets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

func (f *flags) setup(ctx context.Context, mgr ctrl.Manager, o bootstrap.Options) error {
	if err := registerMetrics(); err != nil {
		return err
	}
	kind := appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodTransitionRuleKind)
	return bootstrap.WhenServed(mgr, kind, func(mgr ctrl.Manager) error {
		return ondemand.AddToManager(mgr, o.Namespaces, ondemand.Controller{
			Kind: &appsv1alpha1.PodTransitionRule{}, Leftover: findNoted(mgr.GetAPIReader()),
			Add: func() error { return f.addController(ctx, mgr, o) },
		})
	})
}

// findNoted looks for a Pod with a note of a rule that is gone, which has to be removed.
func findNoted(live client.Reader) func(context.Context, bool) (string, error) {
	isNoted := func(pod metav1.Object) bool { return hasNotes(pod.GetAnnotations()) }
	return func(ctx context.Context, _ bool) (string, error) {
		found, err := ondemand.FirstLive(ctx, live, corev1.SchemeGroupVersion.WithKind("Pod"), isNoted)
		if err != nil {
			return "", fmt.Errorf("looking for Pods with notes of rules: %w", err)
		}
		return found, nil
	}
}

func (f *flags) addController(ctx context.Context, mgr ctrl.Manager, o bootstrap.Options) error {
	f.asking.Strict = f.compatibility == bootstrap.KuperatorV07
	asker, err := asking.New(f.asking, mgr.GetAPIReader(), clock.RealClock{})
	if err != nil {
		return err
	}
	if err := mgr.Add(asker); err != nil {
		return fmt.Errorf("adding the asker of webhooks: %w", err)
	}
	r := &reconciler{
		client: mgr.GetClient(),
		cached: f.pods,
		direct: mgr.GetAPIReader(),
		writes: freshness.New(mgr.GetCache(), clock.RealClock{}),
		events: mgr.GetEventRecorder(Name),
		clock:  clock.RealClock{},
		owners: &owners{mgr.GetClient(), bootstrap.NewKind(mgr.GetRESTMapper(), collaSetKind, clock.RealClock{})},
		asker:  asker,
		freeze: &freeze.Namespaces{Cached: mgr.GetClient(), Suite: o.LeaderElectNamespace, Sees: o.Sees},
		nodes:  &nodes{client: mgr.GetClient()},

		annotateAfter: f.annotateBlockedAfter,
		figures:       newFigures(),
	}
	gauges := newGauges(ctx, mgr.GetCache(), mgr.Elected(), r.figures)
	if err := metric.Register(metric.RegistryOf(mgr), gauges); err != nil {
		return err
	}
	c, err := builder.ControllerManagedBy(mgr).
		Named(Name).
		WatchesRawSource(r.podSource(mgr)).
		WatchesRawSource(ruleSource(mgr)).
		WatchesRawSource(ownerSource(mgr, &appsv1.ReplicaSet{})).
		WatchesRawSource(ownerSource(mgr, &appsv1.StatefulSet{})).
		WatchesRawSource(asker.Source()).
		WatchesRawSource(r.freeze.Source(mgr, r.concerned)).
		WatchesRawSource(budgetSource(mgr)).
		WithOptions(bootstrap.ControllerOptions(0)).
		Build(r)
	if err != nil {
		return fmt.Errorf("adding the controller: %w", err)
	}
	r.nodes.watch = func() error { return c.Watch(r.nodes.source(mgr)) }
	return bootstrap.WhenServed(mgr, collaSetKind, func(mgr ctrl.Manager) error {
		if err := c.Watch(ownerSource(mgr, &appsv1alpha1.CollaSet{})); err != nil {
			return err
		}
		r.owners.collaSets.Known()
		return nil
	})
}
