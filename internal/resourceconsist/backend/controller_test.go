package backend

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// running is a manager that runs already: when Add returns, the workers of a controller work.
type running struct {
	manager.Manager
	t *testing.T

	once    sync.Once
	working chan struct{}
}

func (r *running) GetControllerOptions() config.Controller {
	return config.Controller{SkipNameValidation: ptr.To(true), Logger: funcr.New(func(_, line string) {
		if strings.Contains(line, "Starting workers") {
			r.once.Do(func() { close(r.working) })
		}
	}, funcr.Options{})}
}

func (r *running) Add(runnable manager.Runnable) error {
	ended := make(chan error, 1)
	go func() { ended <- runnable.Start(r.t.Context()) }()
	select {
	case <-r.working:
		return nil
	case err := <-ended:
		return err
	}
}

// filling is a source of a cache that fills.
type filling struct{ filled atomic.Bool }

func (*filling) Start(context.Context, Queue) error { return nil }

func (f *filling) WaitForSync(context.Context) error { f.filled.Store(true); return nil }

func TestWorkersOfAControllerThatIsAddedLateWaitForAllOfItsCaches(t *testing.T) {
	cache, seen := &filling{}, make(chan bool, 1)
	request := reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}}
	err := AddController(&running{t: t, working: make(chan struct{})}, "late", controller.Options{
		Reconciler: reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			seen <- cache.filled.Load()
			return reconcile.Result{}, nil
		}),
	}, source.Func(func(_ context.Context, q Queue) error { q.Add(request); return nil }), cache)
	require.NoError(t, err)
	require.True(t, <-seen)
}
