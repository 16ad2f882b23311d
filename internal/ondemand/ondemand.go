// Package ondemand adds a controller to a running manager when there is something for it to do. Until then the caches
// that only this controller needs, above all that of Pods, cost nothing (docs/design/0015-on-demand.md).
package ondemand

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"kusionstack.io/kuperator/internal/livelist"
)

const (
	// recheckInterval is how often leftovers are looked for while there is no object, retryInterval how soon after an
	// error.
	recheckInterval = 10 * time.Minute
	retryInterval   = 10 * time.Second
	// fillTimeout is how long the cache of the objects may take to fill. It is controller-runtime's for those of
	// controllers.
	fillTimeout = 2 * time.Minute
	// pageSize is how many objects FirstLive asks for at a time.
	pageSize = 1000
)

// Controller is a controller that is needed only if there is an object of a kind, or something left of one.
type Controller struct {
	// Kind is an example of the objects. They are watched from the start.
	Kind client.Object
	// Leftover names what still has to be cleaned up although the cache shows no object, "" for nothing. It reads past
	// the cache. It is asked at the start, with first true, and every ten minutes; ten seconds after an error. Nil: there
	// never is anything, as with objects that have a finalizer.
	Leftover func(ctx context.Context, first bool) (string, error)
	// Add adds the controller. It is called at most once. Its error ends the program, as at a start.
	Add func() error
}

// AddToManager adds a runnable that adds the controller when it is needed. Once added the controller stays. The
// runnable needs no Lease: replicas that are not elected fill their caches, too. A program for some namespaces only has
// the controller at once: its user need not be allowed to look at all of them.
func AddToManager(mgr manager.Manager, namespaces []string, c Controller) error {
	if len(namespaces) > 0 {
		return c.Add()
	}
	if c.Leftover == nil {
		c.Leftover = func(context.Context, bool) (string, error) { return "", nil }
	}
	gvk, err := apiutil.GVKForObject(c.Kind, mgr.GetScheme())
	if err != nil {
		return err
	}
	return mgr.Add(&waiter{
		Controller: c, gvk: gvk, informers: mgr.GetCache(), clock: clock.RealClock{},
		logger: mgr.GetLogger().WithName("ondemand").WithValues("kind", gvk.Kind),
	})
}

// waiter waits until a controller is needed.
type waiter struct {
	Controller
	gvk       schema.GroupVersionKind
	informers cache.Informers
	clock     clock.Clock
	logger    logr.Logger
}

var _ manager.LeaderElectionRunnable = &waiter{}

// NeedLeaderElection is always false.
func (w *waiter) NeedLeaderElection() bool { return false }

// Start is part of manager.Runnable. It returns what Add returns, or nil when ctx ends.
func (w *waiter) Start(ctx context.Context) error {
	if needed, err := w.wait(ctx); err != nil || !needed {
		return err
	}
	if err := w.Add(); err != nil {
		return fmt.Errorf("starting the controller of %ss: %w", w.gvk.Kind, err)
	}
	return nil
}

// wait reports whether the controller is needed; false means that ctx has ended.
func (w *waiter) wait(ctx context.Context) (bool, error) {
	object := make(chan struct{}, 1)
	informer, err := w.informers.GetInformer(ctx, w.Kind, cache.BlockUntilSynced(false))
	if err != nil {
		return false, fmt.Errorf("watching %ss: %w", w.gvk.Kind, err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) {
		select {
		case object <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		return false, fmt.Errorf("watching %ss: %w", w.gvk.Kind, err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }() // it fails for a handler that is gone only
	filling, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	if !toolscache.WaitForCacheSync(filling.Done(), registration.HasSynced) {
		if ctx.Err() != nil {
			return false, nil
		}
		return false, fmt.Errorf("the cache of %ss has not filled within %s", w.gvk.Kind, fillTimeout)
	}
	for first := true; ; {
		if len(object) > 0 {
			return true, nil
		}
		next := recheckInterval
		switch left, err := w.Leftover(ctx, first); {
		case ctx.Err() != nil:
			return false, nil
		case err != nil:
			w.logger.Error(err, "trying again", "after", retryInterval)
			next = retryInterval
		case left != "":
			w.logger.Info("there is no object of the kind, but something left of one: the controller starts", "leftover", left)
			return true, nil
		case first:
			first = false
			w.logger.Info("nothing to do: the controller and its watches start with the first object of the kind")
		}
		select {
		case <-object:
			w.logger.Info("there is an object of the kind: the controller starts")
			return true, nil
		case <-w.clock.After(next):
		case <-ctx.Done():
			return false, nil
		}
	}
}

// FirstLive names the first object of a kind that meets a condition, "" if there is none. It reads metadata past the
// cache.
func FirstLive(
	ctx context.Context, live client.Reader, gvk schema.GroupVersionKind, meets func(metav1.Object) bool,
	options ...client.ListOption,
) (found string, err error) {
	_, err = livelist.Each(ctx, live, gvk, pageSize, func(o *metav1.PartialObjectMetadata) (more bool) {
		if meets(o) {
			found = gvk.Kind + " " + client.ObjectKeyFromObject(o).String()
		}
		return found == ""
	}, options...)
	return found, err
}
