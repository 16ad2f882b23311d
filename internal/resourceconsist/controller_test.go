package resourceconsist

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/wake"
)

// proxy is a backend.Mover in memory.
type proxy struct {
	serving map[string]bool
	unknown bool
	calls   int
}

func (p *proxy) Name() string { return "proxy" }
func (p *proxy) Selector(employer client.Object) labels.Selector {
	return api.ServiceSelector(employer.(*corev1.Service))
}

func (p *proxy) Observe(_ client.Object, pod *corev1.Pod) backend.Observation {
	return backend.Observation{Serving: p.serving[pod.Name], LookAgain: time.Second, Unknown: p.unknown}
}

func (p *proxy) Register(_ client.Object, pod *corev1.Pod) {
	p.calls++
	p.serving[pod.Name] = true
}

func (p *proxy) Deregister(_ client.Object, pod *corev1.Pod) {
	p.calls++
	delete(p.serving, pod.Name)
}

func (p *proxy) Sources(manager.Manager, backend.Report) ([]source.Source, error) { return nil, nil }
func (p *proxy) Forget(types.NamespacedName)                                      {}
func (p *proxy) Provisioner() backend.Provisioner                                 { return nil }
func (p *proxy) Clean(client.Object) bool                                         { return true }
func (p *proxy) Place(client.Object) string                                       { return "" }
func (p *proxy) CleanAt(client.Object, string) bool                               { return true }

var _ backend.Mover = &proxy{}

// bench is both controllers over a fake API server.
type bench struct {
	t         *testing.T
	client    client.Client
	pods      *podController
	employers *employerController
	clock     *testclock.FakePassiveClock
	proxy     *proxy
	recorder  *events.FakeRecorder
	patches   int
	patchErr  error
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	b := &bench{t: t, clock: testclock.NewFakePassiveClock(time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)),
		proxy: &proxy{serving: map[string]bool{}}, recorder: events.NewFakeRecorder(10)}
	b.client = fake.NewClientBuilder().WithObjects(objects...).WithStatusSubresource(&corev1.Pod{}).
		WithIndex(&corev1.Pod{}, indexName("Service"), func(o client.Object) []string { return expectedKeys("Service", o) }).
		WithInterceptorFuncs(interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object,
			p client.Patch, opts ...client.PatchOption) error {
			b.patches++
			if b.patchErr != nil {
				return b.patchErr
			}
			return c.Patch(ctx, o, p, opts...)
		}}).Build()
	b.pods = newPodController(corev1.SchemeGroupVersion.WithKind("Service"), &corev1.Service{},
		api.Options{DrainTime: 2 * time.Second}, []backend.Backend{b.proxy})
	b.pods.client, b.pods.live, b.pods.recorder, b.pods.clock, b.pods.writes = b.client, b.client, b.recorder, b.clock,
		freshness.New(b.client, b.clock)
	b.pods.absent = cache.NewLRUExpireCacheWithClock(mostAbsent, b.clock)
	require.NoError(t, registerMetrics(prometheus.NewRegistry(), prometheus.NewRegistry(), "Service", b.pods.records,
		b.pods.backendConditions))
	b.employers = newEmployerController(b.pods, b.pods.client)
	b.index("web")
	return b
}

func (b *bench) index(name string) {
	service := &corev1.Service{}
	if b.client.Get(b.t.Context(), client.ObjectKey{Namespace: "shop", Name: name}, service) != nil {
		b.pods.employers.remove(client.ObjectKey{Namespace: "shop", Name: name})
		return
	}
	b.pods.employers.put(b.pods.employer(service))
}

func (b *bench) reconcilePod() (reconcile.Result, error) {
	return b.pods.Reconcile(b.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "shop",
		Name: "web-0"}})
}

func (b *bench) reconcileService() reconcile.Result {
	result, err := b.employers.Reconcile(b.t.Context(),
		reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"}})
	require.NoError(b.t, err)
	b.index("web")
	return result
}

func (b *bench) pod() *corev1.Pod {
	pod := &corev1.Pod{}
	require.NoError(b.t, b.client.Get(b.t.Context(), client.ObjectKey{Namespace: "shop", Name: "web-0"}, pod))
	return pod
}

func (b *bench) serviceReady(status corev1.ConditionStatus) {
	pod := b.pod()
	pod.Status.Conditions = []corev1.PodCondition{{Type: podops.ServiceReadyCondition, Status: status},
		{Type: corev1.PodReady, Status: status}}
	require.NoError(b.t, b.client.Status().Update(b.t.Context(), pod))
}

func webService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "s",
			Labels: map[string]string{appsv1alpha1.ControlLabel: "true"}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}},
	}
}

func webPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "p",
			Labels: map[string]string{"app": "web", appsv1alpha1.ControlLabel: "true"}},
		Spec: corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}},
	}
}

func TestAMoverIsDrivenThroughAnOperationAndTheDeletionOfItsEmployer(t *testing.T) {
	b := newBench(t, webService(), webPod())
	b.serviceReady(corev1.ConditionTrue)

	_, err := b.reconcilePod()
	require.NoError(t, err)
	require.Zero(t, b.proxy.calls, "nothing is registered for an employer that could vanish")
	b.reconcileService()
	_, err = b.reconcilePod()
	require.NoError(t, err)
	require.True(t, b.proxy.serving["web-0"])
	require.Empty(t, b.pod().Finalizers, "not before the backend confirms it")
	_, err = b.reconcilePod()
	require.NoError(t, err)
	require.Contains(t, b.pod().Finalizers, api.Finalizer("web"))

	b.serviceReady(corev1.ConditionFalse)
	_, err = b.reconcilePod()
	require.NoError(t, err)
	require.False(t, b.proxy.serving["web-0"])
	result, err := b.reconcilePod()
	require.NoError(t, err)
	require.Equal(t, time.Second, min(result.RequeueAfter, time.Second), "it waits for the drain time")
	require.Contains(t, b.pod().Finalizers, api.Finalizer("web"))
	b.clock.SetTime(b.clock.Now().Add(2 * time.Second))
	_, err = b.reconcilePod()
	require.NoError(t, err)
	require.Empty(t, b.pod().Finalizers)

	b.serviceReady(corev1.ConditionTrue)
	for range 2 {
		_, err = b.reconcilePod()
		require.NoError(t, err)
	}
	require.Contains(t, b.pod().Finalizers, api.Finalizer("web"))

	service := &corev1.Service{}
	require.NoError(t, b.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, service))
	require.NoError(t, b.client.Delete(t.Context(), service))
	b.reconcileService()
	require.NoError(t, b.client.Get(t.Context(), client.ObjectKeyFromObject(service), service),
		"the employer stays until its Pods are released")
	for range 2 {
		_, err = b.reconcilePod()
		require.NoError(t, err)
	}
	require.False(t, b.proxy.serving["web-0"])
	require.Contains(t, b.pod().Finalizers, api.Finalizer("web"), "it waits for the drain time")
	b.clock.SetTime(b.clock.Now().Add(2 * time.Second))
	_, err = b.reconcilePod()
	require.NoError(t, err)
	require.Empty(t, b.pod().Finalizers)
	b.reconcileService()
	require.True(t, apierrors.IsNotFound(b.client.Get(t.Context(), client.ObjectKeyFromObject(service), service)))
}

func TestFailuresOfTheAPIServer(t *testing.T) {
	resource := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		err       error
		wantErr   bool
		wantAgain bool
	}{
		"a conflict is decided again soon":     {apierrors.NewConflict(resource, "web-0", errors.New("newer")), false, true},
		"a Pod that is gone is done with":      {apierrors.NewNotFound(resource, "web-0"), false, false},
		"any other failure is left to backoff": {apierrors.NewInternalError(errors.New("no")), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, webService(), webPod())
			b.patchErr = tc.err
			result, err := b.reconcilePod()
			require.Equal(t, tc.wantErr, err != nil)
			require.Equal(t, tc.wantAgain, result.RequeueAfter > 0)
			require.Equal(t, 1, b.patches)
		})
	}
}

// TestAWriteThatWasRefusedIsNotTriedAgainOnTheSameView: a watch that is seconds behind costs one refused write, not one
// after the other.
func TestAWriteThatWasRefusedIsNotTriedAgainOnTheSameView(t *testing.T) {
	b := newBench(t, webService(), webPod())
	b.patchErr = apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "web-0", errors.New("newer"))
	newer := b.pod()
	live := fake.NewClientBuilder().WithObjects(newer).Build()
	require.NoError(t, live.Update(t.Context(), newer))
	b.pods.live = live
	for range 5 {
		result, err := b.reconcilePod()
		require.NoError(t, err)
		require.Positive(t, result.RequeueAfter)
	}
	require.Equal(t, 1, b.patches)
}

func TestABackendOfWhichNothingIsKnownKeepsThePod(t *testing.T) {
	pod := webPod()
	pod.Finalizers = []string{api.Finalizer("web")}
	b := newBench(t, webService(), pod)
	b.serviceReady(corev1.ConditionFalse)
	b.proxy.unknown = true
	_, err := b.reconcilePod()
	require.NoError(t, err)
	require.Contains(t, b.pod().Finalizers, api.Finalizer("web"))
	require.Equal(t, 1.0, testutil.ToFloat64(oneReason{waitingPods{"Service", b.pods.records}, "BackendUnknown"}))
}

// oneReason publishes one line of waitingPods.
type oneReason struct {
	waitingPods
	reason string
}

func (o oneReason) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(o.desc(), prometheus.GaugeValue,
		float64(o.records.waiting()["BackendUnknown"]), o.reason)
}

func TestABrokenAnnotationIsReportedOnce(t *testing.T) {
	pod := webPod()
	pod.Annotations = map[string]string{podops.AvailableConditionsAnnotation: "{"}
	b := newBench(t, webService(), pod)
	for range 3 {
		_, err := b.reconcilePod()
		require.NoError(t, err)
	}
	require.Len(t, b.recorder.Events, 1)
	require.Zero(t, b.patches)
}

func TestAWrongDrainTimeIsReportedOnce(t *testing.T) {
	service := webService()
	service.Annotations = map[string]string{api.DrainSecondsAnnotation: "soon"}
	service.Finalizers = []string{api.CleanFinalizer}
	b := newBench(t, service)
	for range 3 {
		b.reconcileService()
	}
	require.Len(t, b.recorder.Events, 1)
}

func TestEmployersIndex(t *testing.T) {
	c := newPodController(corev1.SchemeGroupVersion.WithKind("Service"), &corev1.Service{}, api.Options{},
		[]backend.Backend{&proxy{}})
	x := newEmployers()
	add := func(name string, selector map[string]string) {
		service := webService()
		service.Name, service.Spec.Selector = name, selector
		x.put(c.employer(service))
	}
	of := func(podLabels map[string]string) []string {
		names := []string{}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Labels: podLabels}}
		for _, e := range x.of(pod) {
			names = append(names, e.object.GetName())
		}
		return names
	}
	add("web", map[string]string{"app": "web"})
	add("blue", map[string]string{"app": "web", "colour": "blue"})
	add("db", map[string]string{"app": "db"})
	require.ElementsMatch(t, []string{"web", "blue"}, of(map[string]string{"app": "web", "colour": "blue"}))
	require.ElementsMatch(t, []string{"web"}, of(map[string]string{"app": "web", "colour": "red"}))
	add("web", map[string]string{"app": "other"})
	require.Empty(t, of(map[string]string{"app": "web"}))
	add("web", nil)
	require.Empty(t, of(map[string]string{"app": "other"}))
	for _, name := range []string{"web", "blue", "db"} {
		x.remove(client.ObjectKey{Namespace: "shop", Name: name})
	}
	require.Empty(t, x.byKey)
	require.Empty(t, x.anchored)
}

// TestPodsAreLookedAtAgainWhenTheirEmployerHasChanged: an adapter may read anything of the employer, such as an
// annotation with parameters. A Pod that was looked at just before the change was indexed was looked at with the old
// employer.
func TestPodsAreLookedAtAgainWhenTheirEmployerHasChanged(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Service)
		wakes  bool
	}{
		"parameters":      {func(s *corev1.Service) { s.Annotations = map[string]string{"example.com/pool": "b"} }, true},
		"a port":          {func(s *corev1.Service) { s.Spec.Ports = []corev1.ServicePort{{Port: 80}} }, true},
		"the version":     {func(s *corev1.Service) { s.ResourceVersion = "7" }, false},
		"what is told it": {func(s *corev1.Service) { s.Status.Conditions = []metav1.Condition{{Type: "Synced"}} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, webService(), webPod())
			old := b.service()
			changed := old.DeepCopy()
			tc.change(changed)
			b.pods.employerEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: old, ObjectNew: changed}, nil)
			var woken []client.ObjectKey
			if tc.wakes {
				woken = []client.ObjectKey{{Namespace: "shop", Name: "web-0"}}
				require.Equal(t, changed, b.pods.employers.get(client.ObjectKeyFromObject(old)).object,
					"it is woken to see the new one")
			}
			require.Equal(t, woken, b.woken())
		})
	}
}

// woken are the Pods that have been enqueued since the last call.
func (b *bench) woken() []client.ObjectKey {
	b.t.Helper()
	queue := workqueue.NewTypedRateLimitingQueue(rateLimiter(api.Options{}))
	defer queue.ShutDown()
	require.NoError(b.t, b.pods.podQueue.Start(b.t.Context(), queue))
	b.pods.podQueue = &wake.Queue{}
	var keys []client.ObjectKey
	for range queue.Len() {
		request, _ := queue.Get()
		keys = append(keys, request.NamespacedName)
		queue.Done(request)
	}
	return keys
}

// renting is a proxy with something of its own for each Service.
type renting struct {
	*proxy
	provisions, deprovisions int
	provisionErr             error
}

func (r *renting) Provisioner() backend.Provisioner { return r }

func (r *renting) Provision(context.Context, client.Object) error {
	r.provisions++
	return r.provisionErr
}

func (r *renting) Deprovision(context.Context, client.Object) error {
	r.deprovisions++
	return r.provisionErr
}

// rent gives the bench a Mover that is a Provisioner.
func (b *bench) rent() *renting {
	r := &renting{proxy: b.proxy}
	b.pods.adapters = []backend.Backend{r}
	b.employers = newEmployerController(b.pods, b.pods.client)
	b.employers.clock = b.clock
	b.index("web")
	return r
}

func (b *bench) prepared() bool {
	return b.pods.prepared(b.pods.employers.get(client.ObjectKey{Namespace: "shop", Name: "web"}))
}

func (b *bench) service() *corev1.Service {
	service := &corev1.Service{}
	require.NoError(b.t, b.client.Get(b.t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, service))
	return service
}

func (b *bench) told() []string {
	var told []string
	for {
		select {
		case e := <-b.recorder.Events:
			told = append(told, e)
		default:
			return told
		}
	}
}

func TestPodsOfNoEmployerAreNotLookedAt(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(before, after *corev1.Pod)
		begun  bool // workers run
		looks  int
	}{
		"before workers run": {looks: 1},
		"of no employer":     {begun: true},
		"an employer selects it": {begun: true, looks: 1, change: func(before, after *corev1.Pod) {
			before.Labels["app"], after.Labels["app"] = "web", "web"
		}},
		"an employer comes to select it": {begun: true, looks: 1,
			change: func(_, after *corev1.Pod) { after.Labels["app"] = "web" }},
		"an employer selected it": {begun: true, looks: 1,
			change: func(before, _ *corev1.Pod) { before.Labels["app"] = "web" }},
		"an employer is named": {begun: true, looks: 1, change: func(_, after *corev1.Pod) {
			after.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"Service/shop/gone":"prot.podopslifecycle.kusionstack.io/x"}}`}
		}},
		"an annotation that cannot be read": {begun: true, looks: 1, change: func(_, after *corev1.Pod) {
			after.Annotations = map[string]string{podops.AvailableConditionsAnnotation: "{"}
		}},
		"a finalizer holds it": {begun: true, looks: 1, change: func(before, _ *corev1.Pod) {
			before.Finalizers = []string{podops.ProtectionFinalizerPrefix + "/x"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, webService())
			if tc.begun {
				_, err := b.reconcilePod()
				require.NoError(t, err)
			}
			before, after := webPod(), webPod()
			before.Labels["app"], after.Labels["app"] = "other", "other"
			after.Labels["changed"] = "true"
			if tc.change != nil {
				tc.change(before, after)
			}
			queue := workqueue.NewTypedRateLimitingQueue(rateLimiter(api.Options{}))
			t.Cleanup(queue.ShutDown)
			b.pods.podEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, queue)
			require.Equal(t, tc.looks, queue.Len())
		})
	}
}

// lagging is a cache that shows a Service as it was.
type lagging struct {
	client.Client
	service *corev1.Service // nil: as it is
	writes  int             // of metadata and status
}

func (l *lagging) Patch(
	ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption,
) error {
	l.writes++
	return l.Client.Patch(ctx, object, patch, options...)
}

func (l *lagging) Status() client.SubResourceWriter { return &laggingStatus{l.Client.Status(), l} }

type laggingStatus struct {
	client.SubResourceWriter
	of *lagging
}

func (s *laggingStatus) Patch(
	ctx context.Context, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption,
) error {
	s.of.writes++
	return s.SubResourceWriter.Patch(ctx, object, patch, options...)
}

func (l *lagging) Get(
	ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption,
) error {
	if s, ok := object.(*corev1.Service); ok && l.service != nil {
		l.service.DeepCopyInto(s)
		return nil
	}
	return l.Client.Get(ctx, key, object, options...)
}

func TestAnEmployerWaitsUntilTheCacheShowsWhatWasWrittenToIt(t *testing.T) {
	b := newBench(t, webService(), webPod())
	cache := &lagging{Client: b.client}
	b.pods.client = cache
	b.rent()
	before := b.service()
	b.reconcileService()
	require.Equal(t, []string{api.CleanFinalizer}, b.service().Finalizers)
	written := cache.writes
	require.Positive(t, written)

	cache.service = before
	require.Positive(t, b.reconcileService().RequeueAfter)
	require.Equal(t, written, cache.writes, "an old view asks for what was written, and the write would meet a conflict")
	cache.service = nil
	b.reconcileService()
	require.Equal(t, []string{api.CleanFinalizer}, b.service().Finalizers)
}

func TestProvisioningIsRetriedWithGrowingDelaysAndSaidOnce(t *testing.T) {
	service := webService()
	service.Finalizers = []string{api.CleanFinalizer, api.LegacyCleanFinalizer("web")}
	b := newBench(t, service, webPod())
	r := b.rent()
	r.provisionErr = errors.New("no quota")
	b.reconcileService()
	require.Equal(t, []string{api.CleanFinalizer}, b.service().Finalizers, "the old form is replaced on sight")
	require.Zero(t, r.provisions, "not before the new one is seen")

	var waits []time.Duration
	for range 4 {
		result := b.reconcileService()
		tries := r.provisions
		b.reconcileService() // an event in between
		require.Equal(t, tries, r.provisions, "an event does not shorten the delay")
		waits = append(waits, result.RequeueAfter)
		b.clock.SetTime(b.clock.Now().Add(result.RequeueAfter))
	}
	require.Equal(t, []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond,
		800 * time.Millisecond}, waits)
	require.False(t, b.prepared(),
		"no Pod is registered before there is something to register it with")
	require.Equal(t, []string{"Warning BackendFailed proxy: provisioning: no quota"}, b.told())
	condition := conditionOn(b.service())
	require.Equal(t, metav1.ConditionFalse, condition.Status)

	r.provisionErr = nil
	b.reconcileService()
	require.True(t, b.prepared())
	require.Equal(t, metav1.ConditionTrue, conditionOn(b.service()).Status)
	require.Equal(t, []string{"Normal InSync every backend follows"}, b.told())
	tries, patches := r.provisions, b.patches
	b.reconcileService()
	require.Equal(t, tries, r.provisions, "nothing changed")
	require.Equal(t, patches, b.patches)

	require.Equal(t, "proxy", b.service().Annotations[api.AdaptersAnnotation], "it says who may hold something for it")
	changed := b.service()
	changed.Annotations["size"] = "large"
	require.NoError(t, b.client.Update(t.Context(), changed))
	b.reconcileService()
	require.Equal(t, tries+1, r.provisions, "a change is provisioned")
	changed = b.service()
	changed.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	require.NoError(t, b.client.Update(t.Context(), changed))
	b.reconcileService()
	require.Equal(t, tries+1, r.provisions, "its status is no change")
}

func TestAnEmployerThatIsHeldIsGoneOnlyWhenALiveReadSaysSo(t *testing.T) {
	service := webService()
	service.Finalizers = []string{api.CleanFinalizer}
	service.Annotations = map[string]string{api.AdaptersAnnotation: "proxy"}
	pod := webPod()
	pod.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"Service/shop/web":"` + api.Finalizer("web") + `"}}`}
	pod.Finalizers = []string{api.Finalizer("web")}
	b := newBench(t, service, pod)
	b.proxy.serving["web-0"] = true
	b.serviceReady(corev1.ConditionTrue)
	key := client.ObjectKeyFromObject(service)
	b.pods.employers.remove(key) // as after a restart: it is not in the cache
	reads, readErr := 0, error(nil)
	b.pods.live = interceptor.NewClient(b.client.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			reads++
			if readErr != nil {
				return readErr
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	unlabelled := b.service()
	unlabelled.Labels = nil
	require.NoError(t, b.client.Update(t.Context(), unlabelled))

	readErr = errors.New("no route")
	_, err := b.reconcilePod()
	require.ErrorContains(t, err, "no route")
	require.Contains(t, b.pod().Finalizers, api.Finalizer("web"), "not knowing is not gone")
	readErr = nil

	for range 2 {
		_, err = b.reconcilePod()
		require.NoError(t, err)
	}
	require.False(t, b.proxy.serving["web-0"])
	require.Contains(t, b.pod().Finalizers, api.Finalizer("web"), "it waits for the drain time")
	require.True(t, b.pods.employers.get(key).uncached)
	b.clock.SetTime(b.clock.Now().Add(2 * time.Second))
	_, err = b.reconcilePod()
	require.NoError(t, err)
	require.Empty(t, b.pod().Finalizers)
	require.Equal(t, 2, reads, "one failed, and one found it")
}

func TestAbsenceIsAskedForOnce(t *testing.T) {
	pod := webPod()
	pod.Finalizers = []string{"example.org/other"}
	pod.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"Service/shop/old":"` + api.Finalizer("old") + `"}}`}
	b := newBench(t, pod)
	b.patchErr = apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "web-0", errors.New("newer"))
	reads := 0
	b.pods.live = interceptor.NewClient(b.client.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if _, employer := o.(*corev1.Service); employer {
				reads++
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	for range 3 {
		_, err := b.reconcilePod()
		require.NoError(t, err)
	}
	require.Equal(t, 1, reads)
	b.clock.SetTime(b.clock.Now().Add(absentFor + 1))
	b.patchErr = nil
	_, err := b.reconcilePod()
	require.NoError(t, err)
	require.Equal(t, 2, reads)
	expected, err := podops.ExpectedFinalizers(b.pod().Annotations)
	require.NoError(t, err)
	require.Empty(t, expected)
}

func TestAnEmployerIsToldThatOneOfAnotherKindHasItsFinalizer(t *testing.T) {
	pod := webPod()
	shared, err := podops.Expect(podops.View{}, "Gateway/shop/web", api.Finalizer("web"))
	require.NoError(t, err)
	pod.Annotations = map[string]string{
		podops.AvailableConditionsAnnotation: *shared.Annotations[podops.AvailableConditionsAnnotation]}
	b := newBench(t, webService(), pod)
	_, err = b.reconcilePod()
	require.NoError(t, err)
	b.reconcileService()
	condition := conditionOn(b.service())
	require.NotNil(t, condition)
	require.Equal(t, api.ConditionReasonFinalizerShared, condition.Reason)
	require.Equal(t, "the finalizer "+api.Finalizer("web")+" is also that of Gateway/shop/web, so Pods of both wait "+
		"until both have let go of them: give one of them another name", condition.Message)
	require.Len(t, b.told(), 1)
}

func TestBackendConditionsMergeAndTellOnlyChanges(t *testing.T) {
	web := client.ObjectKey{Namespace: "shop", Name: "web"}
	a, z := subject{web, "a", "pods"}, subject{web, "z", "provision"}
	changes := 0
	s := newBackendConditions(func(client.ObjectKey) { changes++ })
	pod := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: name} }
	fails := func(text string) map[subject]metav1.Condition {
		return map[subject]metav1.Condition{a: outcome(errors.New(text))}
	}
	message := func() string { c, _ := s.of(web); return c.Message }

	s.reportPod(pod("p0"), fails("no route"))
	s.report(z, outcome(errors.New("no quota")))
	require.Equal(t, "a: no route; z: no quota", message())
	before := changes
	s.reportPod(pod("p1"), fails("no route"))
	s.reportPod(pod("p0"), fails("no route"))
	require.Equal(t, before, changes, "a second Pod that fails is no change, and neither is a second try")
	s.reportPod(pod("p0"), nil) // it is no more
	require.Equal(t, "a: no route; z: no quota", message())
	require.Equal(t, 1, s.failures())
	s.reportPod(pod("p1"), nil) // it is gone
	s.report(z, success())
	condition, known := s.of(web)
	require.Equal(t, metav1.ConditionTrue, condition.Status)
	require.Equal(t, []string{"a", "z"}, known)
	require.Zero(t, s.failures())
	require.Empty(t, s.failing)
	s.forget(web)
	require.Empty(t, s.employers)
}

// elsewhere is a proxy that a Service uses or not.
type elsewhere struct {
	*proxy
	used  bool
	asked int
}

func (e *elsewhere) Name() string { return "elsewhere" }
func (e *elsewhere) Selector(employer client.Object) labels.Selector {
	if !e.used {
		return nil
	}
	return e.proxy.Selector(employer)
}

func (e *elsewhere) Observe(employer client.Object, pod *corev1.Pod) backend.Observation {
	e.asked++
	return e.proxy.Observe(employer, pod)
}

func TestAnEmployerDependsOnNoBackendThatItDoesNotUse(t *testing.T) {
	service := webService()
	service.Finalizers = []string{api.CleanFinalizer}
	service.Annotations = map[string]string{api.AdaptersAnnotation: "elsewhere,unknown"}
	pod := webPod()
	pod.Finalizers = []string{api.Finalizer("web")}
	pod.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"Service/shop/web":"` + api.Finalizer("web") + `"}}`}
	b := newBench(t, service, pod)
	other := &elsewhere{proxy: &proxy{serving: map[string]bool{"web-0": true}, unknown: true}}
	b.pods.adapters = []backend.Backend{b.proxy, other}
	b.employers = newEmployerController(b.pods, b.pods.client)
	b.index("web")
	b.reconcileService()
	require.Equal(t, "elsewhere,proxy,unknown", b.service().Annotations[api.AdaptersAnnotation])

	b.serviceReady(corev1.ConditionFalse)
	_, err := b.reconcilePod()
	require.NoError(t, err)
	b.clock.SetTime(b.clock.Now().Add(time.Minute))
	_, err = b.reconcilePod()
	require.NoError(t, err)
	require.Contains(t, b.pod().Finalizers, api.Finalizer("web"), "what was used may still send traffic")
	require.Positive(t, b.reconcileService().RequeueAfter)

	other.unknown = false
	_, err = b.reconcilePod()
	require.NoError(t, err)
	require.Empty(t, other.serving, "it is taken out of there")
	b.reconcileService()
	require.Equal(t, "proxy,unknown", b.service().Annotations[api.AdaptersAnnotation], "nothing is left there")

	other.unknown = true
	asked := other.asked
	b.clock.SetTime(b.clock.Now().Add(time.Minute))
	for range 3 {
		_, err = b.reconcilePod()
		require.NoError(t, err)
		b.reconcileService()
		b.clock.SetTime(b.clock.Now().Add(time.Minute))
	}
	require.Equal(t, asked, other.asked, "it is not asked any more")
	require.NotContains(t, b.pod().Finalizers, api.Finalizer("web"), "and it is not waited for")

	service = b.service()
	service.Spec.Selector = map[string]string{"app": "other"}
	require.NoError(t, b.client.Update(t.Context(), service))
	b.index("web")
	for range 3 {
		_, err = b.reconcilePod()
		require.NoError(t, err)
		b.clock.SetTime(b.clock.Now().Add(time.Minute))
	}
	require.NotContains(t, b.pod().Annotations[podops.AvailableConditionsAnnotation], "Service/shop/web",
		"nor for its drain time, when it is let go")
}

// TestAnEmployerWhoseMetadataAreReplaced: its status still says who may hold something for it.
func TestAnEmployerWhoseMetadataAreReplaced(t *testing.T) {
	service := webService()
	pod := webPod()
	b := newBench(t, service, pod)
	other := &elsewhere{proxy: &proxy{serving: map[string]bool{"web-0": true}}}
	b.pods.adapters = []backend.Backend{b.proxy, other}
	b.employers = newEmployerController(b.pods, b.pods.client)
	b.index("web")
	b.reconcileService()
	require.Equal(t, []string{"proxy"}, api.ConditionedHolders(b.service()))

	put := b.service()
	put.Status.Conditions = append(put.Status.Conditions,
		metav1.Condition{Type: api.HeldConditionPrefix + other.Name(), Status: metav1.ConditionTrue, Reason: "MayHold"})
	require.NoError(t, b.client.Status().Update(t.Context(), put))
	put.Finalizers, put.Annotations = nil, map[string]string{"of": "the manifest"}
	require.NoError(t, b.client.Update(t.Context(), put))
	b.index("web")
	require.False(t, b.prepared(),
		"no Pod joins before all is written again")
	_, err := b.reconcilePod()
	require.NoError(t, err)
	require.Positive(t, other.asked, "whoever may hold the Pod is asked")
	b.reconcileService()
	require.Equal(t, "elsewhere,proxy", b.service().Annotations[api.AdaptersAnnotation])
	require.Contains(t, b.service().Finalizers, api.CleanFinalizer)
	require.Equal(t, "the manifest", b.service().Annotations["of"])

	delete(other.serving, "web-0")
	b.reconcileService()
	require.Equal(t, []string{"proxy"}, api.HeldBy(b.service()), "nothing is left there")
	require.Equal(t, []string{"proxy"}, api.ConditionedHolders(b.service()))
}

// TestWhatIsMadeIsNews has the resource of an employer made, and then an event tell of the employer as it was: the Pods
// learn that it is made.
func TestWhatIsMadeIsNews(t *testing.T) {
	b := newBench(t, webService(), webPod())
	r := b.rent()
	r.provisionErr = errors.New("no quota")
	b.reconcileService()
	b.reconcileService()
	require.Positive(t, r.provisions)
	require.False(t, b.prepared())
	b.woken()
	r.provisionErr = nil
	b.clock.SetTime(b.clock.Now().Add(time.Minute))
	b.reconcileService()
	require.True(t, b.prepared())
	require.NotEmpty(t, b.woken(), "its Pods are looked at again")
	service := b.service()
	b.pods.employerEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: service, ObjectNew: service}, nil)
	require.True(t, b.prepared())
}
