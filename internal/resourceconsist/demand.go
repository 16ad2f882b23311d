package resourceconsist

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
)

const (
	// recheckInterval is how often Pods that wait in vain are looked for while no employer takes part, retryInterval
	// how soon after an error.
	recheckInterval = 10 * time.Minute
	retryInterval   = 10 * time.Second
	// fillTimeout is how long the cache of employers may take to fill; it is controller-runtime's for those of
	// controllers.
	fillTimeout = 2 * time.Minute
	// mostMetadata is how many Pods are asked for at a time.
	mostMetadata = 1000
)

// AddToManagerOnDemand is AddToManager, once there is something to do: an employer in the cache, a Pod that may have to
// be let go, or an employer that has to be. Until then only employers are watched (docs/design/0015-on-demand.md). The
// manager's user may read all namespaces.
func AddToManagerOnDemand(mgr manager.Manager, example client.Object, options api.Options, adapters ...backend.Backend) error {
	gvk, err := kindOf(mgr, example, adapters)
	if err != nil {
		return err
	}
	d := &demand{
		gvk: gvk, example: backend.New(example), informers: mgr.GetCache(), live: mgr.GetAPIReader(), clock: clock.RealClock{},
		logger: mgr.GetLogger().WithName("demand").WithValues("kind", gvk.Kind),
		held:   slices.ContainsFunc(adapters, holds),
		add:    func() error { return AddToManager(mgr, example, options, adapters...) },
	}
	if err := mgr.Add(explainSync(mgr, gvk, backend.New(example))); err != nil {
		return err
	}
	return mgr.Add(d)
}

// demand is a runnable that waits until there is something to do. It needs no Lease: standbys fill their caches too.
type demand struct {
	gvk       schema.GroupVersionKind
	example   client.Object
	informers cache.Informers
	live      client.Reader
	clock     clock.Clock
	logger    logr.Logger
	// held is true if employers of this kind may be held by the clean-up finalizer.
	held bool
	add  func() error
}

var _ manager.LeaderElectionRunnable = &demand{}

// NeedLeaderElection is always false.
func (d *demand) NeedLeaderElection() bool { return false }

// Start is part of manager.Runnable. It returns what add returns, or nil when ctx ends.
func (d *demand) Start(ctx context.Context) error {
	if wanted, err := d.wait(ctx); err != nil || !wanted {
		return err
	}
	if err := d.add(); err != nil {
		return fmt.Errorf("starting what looks after the Pods of %ss: %w", d.gvk.Kind, err)
	}
	return nil
}

// wait reports whether there is something to do, and otherwise that ctx has ended.
func (d *demand) wait(ctx context.Context) (bool, error) {
	employer := make(chan struct{}, 1)
	informer, err := d.informers.GetInformer(ctx, d.example, cache.BlockUntilSynced(false))
	if err != nil {
		return false, fmt.Errorf("watching %ss: %w", d.gvk.Kind, err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) {
		select {
		case employer <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		return false, fmt.Errorf("watching %ss: %w", d.gvk.Kind, err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }() // it fails for a handler that is gone only
	filling, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	if !toolscache.WaitForCacheSync(filling.Done(), registration.HasSynced) {
		if ctx.Err() != nil {
			return false, nil
		}
		return false, fmt.Errorf("the cache of %ss has not filled within %s", d.gvk.Kind, fillTimeout)
	}
	for looked := false; ; {
		if len(employer) > 0 {
			return true, nil
		}
		next := recheckInterval
		switch left, err := d.left(ctx, !looked); {
		case ctx.Err() != nil:
			return false, nil
		case err != nil:
			d.logger.Error(err, "trying again", "after", retryInterval)
			next = retryInterval
		case left != "":
			d.logger.Info("no employer takes part, and something is left of one: Pods are watched", "left", left)
			return true, nil
		case !looked:
			looked = true
			d.logger.Info("no employer takes part: Pods are not watched until one does", "label", appsv1alpha1.ControlLabel+"="+appsv1alpha1.ControlValue)
		}
		select {
		case <-employer:
			d.logger.Info("an employer takes part: Pods are watched from now on")
			return true, nil
		case <-d.clock.After(next):
		case <-ctx.Done():
			return false, nil
		}
	}
}

// left names something that an employer that takes no part any more has left behind, "" if there is nothing. Employers
// themselves are looked at once: those that lose their label later are in the cache before.
func (d *demand) left(ctx context.Context, employers bool) (found string, err error) {
	managed := client.MatchingLabels{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}
	err = eachLive(ctx, d.live, corev1.SchemeGroupVersion.WithKind("Pod"), func(pod *metav1.PartialObjectMetadata) {
		if found == "" && noted(pod) {
			found = "Pod " + client.ObjectKeyFromObject(pod).String()
		}
	}, managed, client.Limit(mostMetadata))
	if err != nil {
		return "", fmt.Errorf("looking for Pods that wait for a %s that takes no part: %w", d.gvk.Kind, err)
	}
	if found != "" || !employers || !d.held {
		return found, nil
	}
	err = eachLive(ctx, d.live, d.gvk, func(o *metav1.PartialObjectMetadata) {
		if found == "" && len(cleanFinalizers(o)) > 0 {
			found = d.gvk.Kind + " " + client.ObjectKeyFromObject(o).String()
		}
	})
	if err != nil {
		return "", fmt.Errorf("looking for %ss that take no part any more: %w", d.gvk.Kind, err)
	}
	return found, nil
}

// noted reports whether a Pod may wait to be let go, or to serve.
func noted(pod metav1.Object) bool {
	return pod.GetAnnotations()[podops.AvailableConditionsAnnotation] != "" || (podops.View{Finalizers: pod.GetFinalizers()}).Protected()
}
