package resourceconsist

import (
	"context"
	"errors"
	"sync"
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

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
)

// demanded is a demand for Services over an API server, and an informer of those that take part.
type demanded struct {
	*testing.T
	cache.Informers
	demand    *demand
	informer  toolscache.SharedIndexInformer
	employers *fakesource.FakeControllerSource
	clock     *testclock.FakeClock
	server    client.Client
	// began is closed when there is something to do; addErr is what comes of it.
	began  chan struct{}
	addErr error
	ended  chan error
	stop   context.CancelFunc

	mu sync.Mutex
	// looks are the kinds of lists that were made; failing is how many fail from here on.
	looks   []string
	failing int
}

func (d *demanded) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return d.informer, nil
}

func newDemanded(t *testing.T, objects ...client.Object) *demanded {
	t.Helper()
	d := &demanded{
		T: t, employers: fakesource.NewFakeControllerSource(), clock: testclock.NewFakeClock(time.Unix(1_700_000_000, 0)),
		began: make(chan struct{}), ended: make(chan error, 1),
	}
	d.informer = toolscache.NewSharedIndexInformer(d.employers, &corev1.Service{}, 0, toolscache.Indexers{})
	d.server = fake.NewClientBuilder().WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.failing > 0 {
				d.failing--
				return errors.New("no answer")
			}
			d.looks = append(d.looks, list.GetObjectKind().GroupVersionKind().Kind)
			return c.List(ctx, list, options...)
		},
	}).Build()
	d.demand = &demand{
		gvk: corev1.SchemeGroupVersion.WithKind("Service"), example: &corev1.Service{}, informers: d, live: d.server, clock: d.clock, logger: logr.Discard(), held: true,
		add: func() error { close(d.began); return d.addErr },
	}
	return d
}

func (d *demanded) start() {
	ctx, cancel := context.WithCancel(d.Context())
	d.stop = cancel
	d.Cleanup(cancel)
	go d.informer.RunWithContext(ctx)
	go func() { d.ended <- d.demand.Start(ctx) }()
}

// begins waits until what looks after employers was added.
func (d *demanded) begins() {
	d.Helper()
	select {
	case <-d.began:
	case <-time.After(time.Minute):
		require.Fail(d, "nothing began")
	}
	require.NoError(d, <-d.ended)
}

// rests waits until everything was looked at, and nothing began.
func (d *demanded) rests() {
	d.Helper()
	require.Eventually(d, d.clock.HasWaiters, time.Minute, time.Millisecond)
	select {
	case <-d.began:
		require.Fail(d, "it began without need")
	default:
	}
}

func (d *demanded) looked() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	looks := d.looks
	d.looks = nil
	return looks
}

func heldPod() *corev1.Pod {
	pod := webPod()
	pod.Finalizers = []string{podops.ProtectionFinalizerPrefix + "/x"}
	return pod
}

func service(finalizers ...string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Finalizers: finalizers}}
}

func TestNothingBeginsWithoutNeed(t *testing.T) {
	foreign := heldPod()
	foreign.Name, foreign.Labels = "foreign", nil
	d := newDemanded(t, webPod(), foreign, service("example.org/other"))
	d.start()
	d.rests()
	require.Equal(t, []string{"PodList", "ServiceList"}, d.looked())
	d.clock.Step(recheckInterval)
	d.rests()
	require.Equal(t, []string{"PodList"}, d.looked(), "Services that lose their label from here on are in the cache")
	d.stop()
	require.NoError(t, <-d.ended)
}

func TestWhatIsNeededBegins(t *testing.T) {
	naming := webPod()
	naming.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{}}`}
	for name, left := range map[string]client.Object{
		"a Pod that is held":                        heldPod(),
		"a Pod that names a Service":                naming,
		"a Service that lost its label":             service(api.CleanFinalizer),
		"a Service with the finalizer of old times": service(api.LegacyCleanFinalizer("web")),
	} {
		t.Run("left behind: "+name, func(t *testing.T) {
			d := newDemanded(t, left)
			d.start()
			d.begins()
		})
	}
	t.Run("an employer at the start", func(t *testing.T) {
		d := newDemanded(t)
		d.employers.Add(service())
		d.start()
		d.begins()
		require.Empty(t, d.looked(), "that is enough")
	})
	t.Run("an employer that comes", func(t *testing.T) {
		d := newDemanded(t)
		d.start()
		d.rests()
		d.employers.Add(service())
		d.begins()
	})
	t.Run("a Pod that is held by and by", func(t *testing.T) {
		d := newDemanded(t)
		d.start()
		d.rests()
		require.NoError(t, d.server.Create(t.Context(), heldPod()))
		d.clock.Step(recheckInterval)
		d.begins()
	})
	t.Run("a Service that lost its label, after an error", func(t *testing.T) {
		d := newDemanded(t, service(api.CleanFinalizer))
		d.failing = 1
		d.start()
		d.rests()
		d.clock.Step(retryInterval)
		d.begins()
	})
}

func TestWhatCannotBeginEndsTheProgram(t *testing.T) {
	d := newDemanded(t)
	d.addErr = errors.New("no such kind")
	d.employers.Add(service())
	d.start()
	require.ErrorContains(t, <-d.ended, "no such kind")
}
