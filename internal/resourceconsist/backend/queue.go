package backend

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// firstPriority puts Pods on their way out of service, and back, before all others.
const firstPriority = 100

// Queue is the controller's work queue.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Enqueue enqueues a Pod; first puts it before all that are not first, if the queue has priorities.
func Enqueue(q Queue, pod types.NamespacedName, first bool) {
	request := reconcile.Request{NamespacedName: pod}
	pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request])
	if !ok {
		q.Add(request)
		return
	}
	o := priorityqueue.AddOpts{}
	if first {
		o.Priority = ptr.To(firstPriority)
	}
	pq.AddWithOpts(o, request)
}
