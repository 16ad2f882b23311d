package wake_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"kusionstack.io/kuperator/internal/wake"
)

func TestQueueKeepsWhatIsAddedBeforeTheStart(t *testing.T) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(queue.ShutDown)
	var q wake.Queue
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }
	q.Add(key("early"))
	q.Add(key("early"))
	q.AddAfter(key("never"), 0)
	require.NoError(t, q.Start(t.Context(), queue))
	q.AddAfter(key("now"), 0)
	q.AddAfter(key("later"), time.Hour)
	q.Add(key("late"))
	for _, name := range []string{"early", "now", "late"} {
		request, _ := queue.Get()
		require.Equal(t, key(name), request.NamespacedName)
		queue.Done(request)
	}
	require.Zero(t, queue.Len())
}
