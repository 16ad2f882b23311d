package ondemand

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	fakesource "k8s.io/client-go/tools/cache/testing"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

var serviceKind = corev1.SchemeGroupVersion.WithKind("Service")

// world is a controller of Services that may be needed, and an informer of Services.
type world struct {
	*testing.T
	cache.Informers
	waiter   *waiter
	informer toolscache.SharedIndexInformer
	services *fakesource.FakeControllerSource
	clock    *testclock.FakeClock
	// looks are the calls of Leftover, by their first; leftover and lookErr are what it answers.
	looks    chan bool
	leftover atomic.Pointer[string]
	lookErr  atomic.Pointer[error]
	// added is closed by Add, whose answer is addErr.
	added  chan struct{}
	addErr error
	ended  chan error
	stop   context.CancelFunc
}

func (w *world) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return w.informer, nil
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		T: t, services: fakesource.NewFakeControllerSource(), clock: testclock.NewFakeClock(time.Unix(1_700_000_000, 0)),
		looks: make(chan bool, 10), added: make(chan struct{}), ended: make(chan error, 1),
	}
	w.informer = toolscache.NewSharedIndexInformer(w.services, &corev1.Service{}, 0, toolscache.Indexers{})
	w.waiter = &waiter{gvk: serviceKind, informers: w, clock: w.clock, logger: logr.Discard(), Controller: Controller{
		Kind: &corev1.Service{},
		Leftover: func(_ context.Context, first bool) (string, error) {
			w.looks <- first
			if err := w.lookErr.Swap(nil); err != nil {
				return "", *err
			}
			if left := w.leftover.Load(); left != nil {
				return *left, nil
			}
			return "", nil
		},
		Add: func() error { close(w.added); return w.addErr },
	}}
	return w
}

func (w *world) start() {
	ctx, cancel := context.WithCancel(w.Context())
	w.stop = cancel
	w.Cleanup(cancel)
	go w.informer.RunWithContext(ctx)
	go func() { w.ended <- w.waiter.Start(ctx) }()
}

// begins waits until the controller was added.
func (w *world) begins() {
	w.Helper()
	select {
	case <-w.added:
	case <-time.After(time.Minute):
		require.Fail(w, "the controller was not added")
	}
	require.NoError(w, <-w.ended)
}

// waits until leftovers were looked for, and the controller was not added.
func (w *world) waits(first bool) {
	w.Helper()
	require.Equal(w, first, <-w.looks)
	require.Eventually(w, w.clock.HasWaiters, time.Minute, time.Millisecond)
	select {
	case <-w.added:
		require.Fail(w, "the controller was added without need")
	default:
	}
}

func service() *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
}

func TestAControllerThatIsNotNeededIsNotAdded(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.waits(true)
	w.clock.Step(recheckInterval)
	w.waits(false)
	w.stop()
	require.NoError(t, <-w.ended)
}

func TestAControllerIsAddedWhenItIsNeeded(t *testing.T) {
	left := "Pod ns/web"
	t.Run("an object at the start", func(t *testing.T) {
		w := newWorld(t)
		w.services.Add(service())
		w.start()
		w.begins()
		require.Empty(t, w.looks, "nothing else has to be looked for")
	})
	t.Run("an object later", func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.waits(true)
		w.services.Add(service())
		w.begins()
	})
	t.Run("a leftover at the start", func(t *testing.T) {
		w := newWorld(t)
		w.leftover.Store(&left)
		w.start()
		w.begins()
	})
	t.Run("a leftover later", func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.waits(true)
		w.leftover.Store(&left)
		w.clock.Step(recheckInterval)
		w.begins()
	})
	t.Run("a leftover, after an error", func(t *testing.T) {
		w := newWorld(t)
		err := errors.New("no answer")
		w.lookErr.Store(&err)
		w.leftover.Store(&left)
		w.start()
		w.waits(true)
		w.clock.Step(retryInterval)
		w.begins()
		require.True(t, <-w.looks, "the first look has yet to be made")
	})
}

func TestAControllerThatCannotBeAddedEndsTheProgram(t *testing.T) {
	w := newWorld(t)
	w.addErr = errors.New("no such kind")
	w.services.Add(service())
	w.start()
	require.ErrorContains(t, <-w.ended, "no such kind")
}

func TestTheFirstLiveObject(t *testing.T) {
	var names []string
	c := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			o := (&client.ListOptions{}).ApplyOptions(options)
			page, _ := list.(*metav1.PartialObjectMetadataList)
			require.Equal(t, "ServiceList", page.Kind)
			page.Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns",
				Name: "on-page-" + o.Continue}}}
			if len(o.Continue) < 3 {
				page.Continue = o.Continue + "x"
			}
			return nil
		},
	}).Build()
	of := func(wanted string) string {
		names = nil
		found, err := FirstLive(t.Context(), c, serviceKind, func(o metav1.Object) bool {
			names = append(names, o.GetName())
			return o.GetName() == wanted
		})
		require.NoError(t, err)
		return found
	}
	require.Equal(t, "Service ns/on-page-x", of("on-page-x"))
	require.Equal(t, []string{"on-page-", "on-page-x"}, names, "it ends with the first")
	require.Empty(t, of("none"))
	require.Equal(t, []string{"on-page-", "on-page-x", "on-page-xx", "on-page-xxx"}, names)
}

func TestAControllerForSomeNamespacesIsThereAtOnce(t *testing.T) {
	added := 0
	add := Controller{Kind: &corev1.Service{}, Add: func() error { added++; return nil }}
	require.NoError(t, AddToManager(nil, []string{"web"}, add))
	require.Equal(t, 1, added)
}
