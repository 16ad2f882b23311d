package bootstrap

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Bounds of a controller's delay before it looks again at an object after an error.
const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// ControllerOptions are the options of a controller: how many reconciles run at a time, where 0 means --concurrency,
// and how long it waits after errors.
func ControllerOptions(concurrency int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: concurrency,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry,
			lastRetry),
	}
}
