package lifecycle

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

const protection = "prot.podopslifecycle.kusionstack.io/x"

func (r *reconciler) step(d time.Duration) { r.clock.(*testingclock.FakeClock).Step(d) }

func podNow(t *testing.T, c client.Client) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	require.NoError(t, c.Get(t.Context(), key, pod))
	return pod
}

func eventsOf(r *reconciler) (said []string) {
	for {
		select {
		case text := <-r.events.(*events.FakeRecorder).Events:
			said = append(said, text)
		default:
			return said
		}
	}
}

func TestOverdueIsReportedOnce(t *testing.T) {
	pod := beginning()
	pod.Finalizers = []string{protection}
	r, c := newReconciler(t, &mapperFor{err: errNoRules}, interceptor.Funcs{}, pod)
	_, err := reconcilePod(t, r) // takes it out
	require.NoError(t, err)
	result, err := reconcilePod(t, r)
	require.NoError(t, err)
	assert.Equal(t, 10*time.Minute, result.RequeueAfter, "the deadline is the next look")
	eventsOf(r)

	r.step(10 * time.Minute)
	_, err = reconcilePod(t, r)
	require.NoError(t, err)
	reported := reportedOn(podNow(t, c))
	assert.Equal(t, corev1.ConditionTrue, reported.Status)
	assert.Equal(t, string(podops.WaitFinalizer), reported.Reason)
	assert.Len(t, eventsOf(r), 1)
	version := podNow(t, c).ResourceVersion

	r.step(time.Hour)
	_, err = reconcilePod(t, r)
	require.NoError(t, err)
	assert.Equal(t, version, podNow(t, c).ResourceVersion, "nothing new, nothing written")
	assert.Empty(t, eventsOf(r))

	r.timers = newPhaseTimers(r.clock) // a restart: the label's time is the only memory
	_, err = reconcilePod(t, r)
	require.NoError(t, err)
	assert.Equal(t, version, podNow(t, c).ResourceVersion)
	assert.Empty(t, eventsOf(r), "it has been said before the restart")
}

func TestAgesAreSeededOnlyFromBeforeTheStart(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	clk := testingclock.NewFakeClock(start)
	preparing := func(at time.Time) *corev1.Pod {
		pod := beginning()
		pod.CreationTimestamp = metav1.NewTime(start.Add(-time.Hour))
		pod.Labels[podops.PreCheckedPrefix+"/job"] = pod.Labels[podops.OperatingPrefix+"/job"]
		pod.Labels[podops.PermissionPrefix+"/restart"] = "1"
		pod.Labels[podops.PreparingPrefix+"/job"] = podops.Stamp(at)
		return pod
	}
	seen := func(a *phaseTimers, pod *corev1.Pod) time.Duration {
		return start.Sub(a.observe(pod, podops.Read(pod))["job"])
	}
	for name, tc := range map[string]struct {
		at   time.Time
		want time.Duration
	}{
		"from before the start":                     {start.Add(-10 * time.Minute), 10 * time.Minute},
		"from before the Pod was created":           {start.Add(-2 * time.Hour), time.Hour},
		"from the future, by a clock that is wrong": {start.Add(time.Hour), 0},
		"a label that is no time at all":            {time.Unix(0, -1), 0},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, seen(newPhaseTimers(clk), preparing(tc.at))) })
	}
	t.Run("a phase that begins before our eyes begins now, whatever its writer's clock says", func(t *testing.T) {
		a := newPhaseTimers(clk)
		pod := beginning()
		a.observe(pod, podops.Read(pod))
		assert.Zero(t, seen(a, preparing(start.Add(-time.Hour))))
	})
	t.Run("nothing is remembered of Pods at rest or gone", func(t *testing.T) {
		a := newPhaseTimers(clk)
		a.observe(beginning(), podops.Read(beginning()))
		a.observe(servingPod(), podops.Read(servingPod()))
		assert.Empty(t, a.pods)
		a.observe(beginning(), podops.Read(beginning()))
		a.gone(key)
		assert.Empty(t, a.pods)
	})
	t.Run("the metrics name a bounded number of types", func(t *testing.T) {
		a := newPhaseTimers(clk)
		for i := range typesNamed {
			name := string(rune('a' + i))
			assert.Equal(t, name, a.typeLabel(name))
		}
		assert.Equal(t, "other", a.typeLabel("one-too-many"))
		assert.Equal(t, "a", a.typeLabel("a"))
	})
}

func TestFrozenClusterHoldsWhatNoRuleHolds(t *testing.T) {
	r, c := newReconciler(t, &mapperFor{err: errNoRules}, interceptor.Funcs{},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kuperator-system",
			Annotations: map[string]string{podops.FreezeClusterAnnotation: "audit"}}}, beginning())
	_, err := reconcilePod(t, r)
	require.NoError(t, err)
	assert.Equal(t, podops.PhasePreCheck, podops.PhaseOf(podops.Read(podNow(t, c)), "job"))
	assert.True(t, podops.Read(podNow(t, c)).ServiceAvailable())
	r.step(time.Hour)
	_, err = reconcilePod(t, r)
	require.NoError(t, err)
	reported := reportedOn(podNow(t, c))
	assert.Equal(t, string(podops.WaitFrozen), reported.Reason)
	assert.Contains(t, reported.Message, `"audit"`)
}

func TestNothingPassesWhenNobodyKnowsWhetherItIsFrozen(t *testing.T) {
	r, c := newReconciler(t, &mapperFor{err: errNoRules}, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object,
			opts ...client.GetOption) error {
			if _, ok := obj.(*metav1.PartialObjectMetadata); ok {
				return errors.New("the cache is not synced")
			}
			return c.Get(ctx, key, obj, opts...)
		},
	}, beginning())
	_, err := reconcilePod(t, r)
	require.ErrorContains(t, err, "reading namespace kuperator-system")
	assert.Equal(t, podops.PhaseRequested, podops.PhaseOf(podops.Read(podNow(t, c)), "job"))
}

func TestNamespaceThatIsNotKnownYetHolds(t *testing.T) {
	r, c := newReconciler(t, &mapperFor{err: errNoRules}, interceptor.Funcs{}, beginning())
	require.NoError(t, c.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}}))
	_, err := reconcilePod(t, r)
	require.NoError(t, err)
	assert.Equal(t, podops.PhasePreCheck, podops.PhaseOf(podops.Read(podNow(t, c)), "job"))
}

// returned is a Pod that is Ready and waits for an employer's finalizer.
func returned(employer string) *corev1.Pod {
	pod := servingPod()
	delete(pod.Labels, podops.ServiceAvailableLabel)
	pod.Labels["app"] = "web"
	pod.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"` + employer +
		`":"` + protection + `"}}`}
	return pod
}

func service(control string, selector map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "s",
			Labels: map[string]string{appsv1alpha1.ControlLabel: control}},
		Spec: corev1.ServiceSpec{Selector: selector},
	}
}

func employer(kind schema.GroupVersionKind, selector any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(kind)
	u.SetNamespace(key.Namespace)
	u.SetName("s")
	if selector != nil {
		u.Object["spec"] = map[string]any{"selector": selector}
	}
	return u
}

func TestEmployersAreLookedUp(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "s", errors.New("no"))
	one := schema.GroupVersionKind{Group: "one.example.org", Version: "v1", Kind: "Balancer"}
	two := schema.GroupVersionKind{Group: "two.example.org", Version: "v1", Kind: "Balancer"}
	balancers := []*metav1.APIResourceList{
		{GroupVersion: "one.example.org/v1", APIResources: []metav1.APIResource{{Name: "balancers", Kind: "Balancer",
			Namespaced: true}, {Name: "balancers/status", Kind: "Balancer", Namespaced: true}}},
		{GroupVersion: "two.example.org/v1", APIResources: []metav1.APIResource{{Name: "balancers", Kind: "Balancer",
			Namespaced: true}}},
	}
	web, db := map[string]any{"app": "web"}, map[string]any{"app": "db"}
	for name, tc := range map[string]struct {
		key     string
		objects []client.Object
		served  servedKinds
		err     error
		gone    bool
		note    string
	}{
		"a Service that is gone": {key: "Service/default/s", gone: true},
		"a Service that selects the Pod": {key: "Service/default/s",
			objects: []client.Object{service("true", map[string]string{"app": "web"})}},
		"a Service that selects others": {key: "Service/default/s",
			objects: []client.Object{service("true", map[string]string{"app": "db"})}, gone: true},
		"a Service that nobody controls": {key: "Service/default/s",
			objects: []client.Object{service("false", map[string]string{"app": "web"})}, gone: true},
		"a Service without a selector": {key: "Service/default/s",
			objects: []client.Object{service("true", nil)}, note: "no spec.selector"},
		"a Service that may not be read": {key: "Service/default/s", err: forbidden,
			note: EmployersRole},
		"an API server that is away": {key: "Service/default/s", err: errors.New("away"),
			note: "failed"},
		"one in another namespace, where the Pod's owner may not look": {key: "Service/other/s",
			note: "in another namespace"},
		"a key that is none": {key: "Service/s", note: "<Kind>/<namespace>/<name>"},
		"a kind that nobody serves": {key: "Unheard/default/s",
			served: servedKinds{lists: balancers}, note: "no kind of that name"},
		"gone in every group": {key: "Balancer/default/s",
			served: servedKinds{lists: balancers}, gone: true},
		"gone, but not every group answered": {key: "Balancer/default/s",
			served: servedKinds{lists: balancers, err: errors.New("one group failed")}, note: "did not tell"},
		"selecting in one of two groups": {key: "Balancer/default/s",
			served: servedKinds{lists: balancers}, objects: []client.Object{employer(two, web)}},
		"selecting others in both groups": {key: "Balancer/default/s",
			served: servedKinds{lists: balancers}, objects: []client.Object{employer(one, db), employer(two, db)}, gone: true},
		"a label selector that matches": {key: "Balancer/default/s",
			served: servedKinds{lists: balancers}, objects: []client.Object{employer(one, map[string]any{"matchLabels": web})}},
		"a label selector that matches others": {key: "Balancer/default/s",
			served: servedKinds{lists: balancers}, objects: []client.Object{employer(one, map[string]any{"matchLabels": db})},
			gone: true},
		"no selector in one group, others in another": {key: "Balancer/default/s",
			served: servedKinds{lists: balancers}, objects: []client.Object{employer(one, nil), employer(two, db)},
			note: "no spec.selector"},
		"a selector of a form nobody knows": {key: "Balancer/default/s",
			served: servedKinds{lists: balancers}, objects: []client.Object{employer(one, map[string]any{"pods": []any{"p"}})},
			note: "no spec.selector"},
		"a label selector with an unknown operator": {key: "Balancer/default/s", served: servedKinds{lists: balancers},
			objects: []client.Object{employer(one,
				map[string]any{"matchExpressions": []any{map[string]any{"key": "app", "operator": "Like"}}})},
			note: "no spec.selector"},
	} {
		t.Run(name, func(t *testing.T) {
			funcs := interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey,
				obj client.Object, opts ...client.GetOption) error {
				if _, ok := obj.(*unstructured.Unstructured); ok && tc.err != nil {
					return tc.err
				}
				return c.Get(ctx, key, obj, opts...)
			}}
			r, c := newReconciler(t, &mapperFor{err: errNoRules}, funcs, append(tc.objects, returned(tc.key))...)
			r.employers.discovery = tc.served
			result, err := reconcilePod(t, r)
			require.NoError(t, err)
			assert.Equal(t, repairAfter, result.RequeueAfter, "cooperators are given time")
			require.False(t, podops.Read(podNow(t, c)).ServiceAvailable())
			r.step(repairAfter)
			result, err = reconcilePod(t, r)
			require.NoError(t, err)
			assert.Positive(t, result.RequeueAfter)
			v := podops.Read(podNow(t, c))
			assert.Equal(t, tc.gone, v.ServiceAvailable())
			assert.Equal(t, tc.gone, len(podops.MissingEmployers(v)) == 0)
			_, notes := r.timers.missing(key)
			if tc.note == "" {
				assert.Empty(t, notes)
			} else {
				assert.Contains(t, notes[tc.key], tc.note)
			}
		})
	}
}

func TestEmployerIsLookedUpOnceForManyPodsAndNotTooOften(t *testing.T) {
	gets := 0
	funcs := interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object,
		opts ...client.GetOption) error {
		if _, ok := obj.(*unstructured.Unstructured); ok {
			gets++
		}
		return c.Get(ctx, key, obj, opts...)
	}}
	r, _ := newReconciler(t, &mapperFor{}, funcs, service("true", map[string]string{"app": "web"}))
	v := podops.Read(returned("Service/default/s"))
	for range 5 {
		letGo, doubt, wait := r.employers.released(t.Context(), "Service/default/s", v)
		assert.False(t, letGo)
		assert.Empty(t, doubt)
		assert.Zero(t, wait)
	}
	assert.Equal(t, 1, gets)
	r.step(answerFor + 1)
	r.employers.released(t.Context(), "Service/default/s", v)
	assert.Equal(t, 2, gets)

	r.employers.limit = refuses{}
	letGo, _, wait := r.employers.released(t.Context(), "Service/default/other", v)
	assert.False(t, letGo)
	assert.Positive(t, wait, "not now, but soon")
	assert.Equal(t, 2, gets)
}

type refuses struct{}

func (refuses) TryAccept() bool { return false }
func (refuses) Stop()           {}
func (refuses) QPS() float32    { return 0 }

// What a Pod waits for too long says what is known of the employer.
func TestDoubtIsReported(t *testing.T) {
	pod := returned("Unheard/default/s")
	pod.Labels[podops.OperatedPrefix+"/job"] = "1"
	pod.Labels[podops.DoneOperationTypePrefix+"/job"] = "restart"
	pod.Labels[podops.CompletingPrefix+"/job"] = "1"
	r, c := newReconciler(t, &mapperFor{err: errNoRules}, interceptor.Funcs{}, pod)
	for range 4 {
		_, err := reconcilePod(t, r)
		require.NoError(t, err)
		r.step(10 * time.Minute)
	}
	reported := reportedOn(podNow(t, c))
	assert.Equal(t, corev1.ConditionTrue, reported.Status)
	assert.Contains(t, reported.Message, "Unheard/default/s (the API server serves no kind of that name)")
}

func TestBadDeadlinesAreComplainedAboutOnce(t *testing.T) {
	pod := beginning()
	pod.Finalizers = []string{protection}
	pod.Annotations = map[string]string{podops.DeadlinesAnnotation: `{"Operate":{"after":"soon"}}`}
	r, _ := newReconciler(t, &mapperFor{err: errNoRules}, interceptor.Funcs{}, pod)
	complaints := 0
	for range 3 {
		_, err := reconcilePod(t, r)
		require.NoError(t, err)
		for _, text := range eventsOf(r) {
			if assert.ObjectsAreEqual(true, len(text) > 0) && text[:len(corev1.EventTypeWarning)] == corev1.EventTypeWarning {
				complaints++
				assert.Contains(t, text, `"soon" is no duration`)
			}
		}
	}
	assert.Equal(t, 1, complaints)
}

func TestDeadlineFlags(t *testing.T) {
	f := waitFlags{given: []string{"Preparing=0s", "Operate/update=5m,Proceed"}}
	require.NoError(t, f.parse())
	_, ok := f.deadlines.For(podops.PhasePreparing, "update")
	assert.False(t, ok, "0s switches the default off")
	d, _ := f.deadlines.For(podops.PhaseOperate, "update")
	assert.Equal(t, podops.DeadlineProceed, d.Policy)
	d, _ = f.deadlines.For(podops.PhaseCompleting, "update")
	assert.Equal(t, 10*time.Minute, d.After)
	f.given, f.patience = []string{"Operate=5m,Cancel", "nonsense"}, -time.Second
	err := f.parse()
	require.ErrorContains(t, err, "less than 0")
	require.ErrorContains(t, err, "give Wait or Proceed")
	assert.ErrorContains(t, err, "write <phase>[/<type>]=<duration>[,<policy>]")
}

func TestCompatibilityIsADefaultOfPatience(t *testing.T) {
	for args, want := range map[string]bool{
		"": false, "--compatibility=kuperator-v0.7": true, "--compatibility=kuperator-v0.7 --cooperator-patience=6s": false,
	} {
		var f waitFlags
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.add(fs)
		require.NoError(t, fs.Parse(strings.Fields(args)))
		assert.Equal(t, want, f.notAwaited(), args)
	}
}
