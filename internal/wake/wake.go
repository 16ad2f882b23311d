// Package wake lets code that handles no event of a watch enqueue objects into the queue of a controller.
package wake

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Queue is a source of one controller. The zero value is ready to use.
type Queue struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// early are requests from before the start.
	early []reconcile.Request
}

// Start is part of source.Source.
func (q *Queue) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = queue
	for _, request := range q.early {
		queue.Add(request)
	}
	q.early = nil
	return nil
}

// Add enqueues an object: at the start, if the controller has not started.
func (q *Queue) Add(key types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	request := reconcile.Request{NamespacedName: key}
	if q.queue == nil {
		q.early = append(q.early, request)
		return
	}
	q.queue.Add(request)
}

// AddAfter enqueues an object after a while. It does nothing if the controller has not started.
func (q *Queue) AddAfter(key types.NamespacedName, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.queue != nil {
		q.queue.AddAfter(reconcile.Request{NamespacedName: key}, wait)
	}
}
