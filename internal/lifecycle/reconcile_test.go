package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/freeze"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/revision"
)

var key = types.NamespacedName{Namespace: "default", Name: "p"}

func servingPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "u", Labels: map[string]string{
			appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue, podops.ServiceAvailableLabel: "1",
		}},
		Spec: corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: podops.ServiceReadyCondition, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		}},
	}
}

func beginning() *corev1.Pod {
	pod := servingPod()
	pod.Labels[podops.OperatingPrefix+"/job"] = "1700000000000000000"
	pod.Labels[podops.OperationTypePrefix+"/job"] = "restart"
	return pod
}

// mapperFor is a RESTMapper for which rules are served, or are not, or which does not know.
type mapperFor struct {
	meta.RESTMapper
	err   error
	asked int
}

func (m *mapperFor) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	m.asked++
	return &meta.RESTMapping{}, m.err
}

func newReconciler(
	t *testing.T, mapper *mapperFor, funcs interceptor.Funcs, objects ...client.Object,
) (*reconciler, client.Client) {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, appsv1alpha1.AddToScheme(scheme))
	if funcs.SubResourcePatch == nil {
		funcs.SubResourcePatch = patchBoth
	}
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}})
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
	clk := testingclock.NewFakeClock(time.Unix(1_700_000_000, 0))
	return &reconciler{
		client: c, live: c,
		freeze: &freeze.Namespaces{Cached: c, Suite: "kuperator-system"},
		employers: &employers{
			reader: c, discovery: servedKinds{}, clock: clk, limit: flowcontrol.NewTokenBucketPassiveRateLimiter(5, 10),
			answers: cache.NewLRUExpireCacheWithClock(answersKept, clk),
		},
		deadlines: defaultDeadlines(),
		timers:    newPhaseTimers(clk),
		rules: &rules{client: c, kind: bootstrap.NewKind(mapper, ruleKind, clk), newest: newRuleFreshness(c),
			compiled: map[types.UID]compiledRule{}},
		writes: freshness.New(c, clk),
		events: events.NewFakeRecorder(10),
		clock:  clk,
	}, c
}

// patchBoth keeps metadata that is patched through pods/status, as the API server
// does; the fake client keeps only status there, and only the rest elsewhere.
func patchBoth(
	ctx context.Context, c client.Client, _ string, obj client.Object, patch client.Patch,
	_ ...client.SubResourcePatchOption,
) error {
	if err := c.Patch(ctx, obj, patch); err != nil {
		return err
	}
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	var parts map[string]any
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	delete(parts, "metadata")
	if data, err = json.Marshal(parts); err != nil {
		return err
	}
	return c.Status().Patch(ctx, obj, client.RawPatch(patch.Type(), data))
}

// servedKinds is discovery as a test wants it.
type servedKinds struct {
	lists []*metav1.APIResourceList
	err   error
}

func (s servedKinds) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	return s.lists, s.err
}

func reconcilePod(t *testing.T, r *reconciler) (ctrl.Result, error) {
	t.Helper()
	return r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
}

var errNoRules = &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "apps.kusionstack.io",
	Kind: "PodTransitionRule"}}

// The step itself is tested on a real API server; the fake client drops metadata
// that is patched through pods/status.
func TestReconcileWritesOnePatch(t *testing.T) {
	var bodies []string
	record := interceptor.Funcs{SubResourcePatch: func(_ context.Context, _ client.Client, subresource string,
		obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
		body, err := patch.Data(obj)
		bodies = append(bodies, subresource+" "+string(patch.Type())+" "+string(body))
		return err
	}}
	r, _ := newReconciler(t, &mapperFor{err: errNoRules}, record, beginning())
	_, err := reconcilePod(t, r)
	require.NoError(t, err)
	require.Len(t, bodies, 1)
	for _, part := range []string{
		"status " + string(types.StrategicMergePatchType), `"uid":"u"`, `"resourceVersion":"999"`,
		`"operate.podopslifecycle.kusionstack.io/job"`, `"podopslifecycle.kusionstack.io/service-available":null`,
		`"type":"pod.kusionstack.io/service-ready","status":"False"`, `"type":"Ready","status":"False"`,
	} {
		assert.Contains(t, bodies[0], part)
	}
	assert.Len(t, r.events.(*events.FakeRecorder).Events, 1, "one event an operation")
}

func TestPodAtRestIsNotWritten(t *testing.T) {
	r, c := newReconciler(t, &mapperFor{err: errNoRules}, interceptor.Funcs{}, servingPod())
	_, err := reconcilePod(t, r)
	require.NoError(t, err)
	pod := &corev1.Pod{}
	require.NoError(t, c.Get(t.Context(), key, pod))
	assert.Equal(t, "999", pod.ResourceVersion)
}

func TestConflictIsLookedAtAgainSoon(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("changed"))
	r, _ := newReconciler(t, &mapperFor{err: errNoRules}, interceptor.Funcs{
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch,
			...client.SubResourcePatchOption) error {
			return conflict
		},
	}, beginning())
	result, err := reconcilePod(t, r)
	require.NoError(t, err, "the snapshot was stale, not wrong")
	assert.Positive(t, result.RequeueAfter)
	assert.Less(t, result.RequeueAfter, time.Second)
	for range 9 {
		result, err = reconcilePod(t, r)
		require.NoError(t, err)
	}
	assert.GreaterOrEqual(t, result.RequeueAfter, time.Second,
		"while the cache lags, the same write is not refused again and again")
}

// TestAWriteThatWasRefusedIsNotTriedAgainOnTheSameView: a watch that is seconds behind costs one refused write, not
// one after the other.
func TestAWriteThatWasRefusedIsNotTriedAgainOnTheSameView(t *testing.T) {
	tries := 0
	r, c := newReconciler(t, &mapperFor{err: errNoRules}, interceptor.Funcs{
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch,
			...client.SubResourcePatchOption) error {
			tries++
			return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("changed"))
		},
	}, beginning())
	now := &corev1.Pod{}
	require.NoError(t, c.Get(t.Context(), key, now))
	old := now.ResourceVersion
	live := fake.NewClientBuilder().WithObjects(now).Build()
	require.NoError(t, live.Get(t.Context(), key, now))
	require.NoError(t, live.Update(t.Context(), now), "the API server's is newer than the cache's")
	r.live = live
	for range 5 {
		result, err := reconcilePod(t, r)
		require.NoError(t, err)
		require.Positive(t, result.RequeueAfter)
	}
	require.Equal(t, 1, tries)
	now.ResourceVersion = old
	require.NoError(t, c.Update(t.Context(), now), "the cache has come as far")
	_, err := reconcilePod(t, r)
	require.NoError(t, err)
	require.Equal(t, 2, tries)
}

func TestAPodIsDeletedOnceThoughTheCacheDoesNotShowItYet(t *testing.T) {
	deletions := 0
	pod := servingPod()
	pod.Labels[appsv1alpha1.ToDeleteLabel] = "true"
	r, _ := newReconciler(t, &mapperFor{err: errNoRules}, interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteOption) error {
			if o := (client.DeleteOptions{}); len(o.ApplyOptions(opts).DryRun) == 0 {
				deletions++
			}
			return nil
		},
	}, pod)
	for range 5 { // it is taken out of service first
		_, err := reconcilePod(t, r)
		require.NoError(t, err)
	}
	require.Equal(t, 1, deletions)
}

func TestFailedWriteIsAnError(t *testing.T) {
	r, _ := newReconciler(t, &mapperFor{err: errNoRules}, interceptor.Funcs{
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch,
			...client.SubResourcePatchOption) error {
			return errors.New("the API server is away")
		},
	}, beginning())
	_, err := reconcilePod(t, r)
	assert.ErrorContains(t, err, "advancing pod default/p")
}

func TestNothingPassesWhenNobodyKnowsWhetherThereAreRules(t *testing.T) {
	r, c := newReconciler(t, &mapperFor{err: errors.New("discovery is away")}, interceptor.Funcs{}, beginning())
	_, err := reconcilePod(t, r)
	require.ErrorContains(t, err, "discovery is away")
	pod := &corev1.Pod{}
	require.NoError(t, c.Get(t.Context(), key, pod))
	assert.Equal(t, podops.PhaseRequested, podops.PhaseOf(podops.Read(pod), "job"))
}

func TestDiscoveryIsNotAskedForEveryPod(t *testing.T) {
	mapper := &mapperFor{err: errNoRules}
	r, _ := newReconciler(t, mapper, interceptor.Funcs{}, servingPod())
	for range 5 {
		_, err := reconcilePod(t, r)
		require.NoError(t, err)
	}
	assert.Equal(t, 1, mapper.asked)
	r.step(5 * time.Second)
	_, err := reconcilePod(t, r)
	require.NoError(t, err)
	assert.Equal(t, 2, mapper.asked)
	r.rules.kind.Known()
	rules, err := r.rules.in(t.Context(), key.Namespace)
	require.NoError(t, err)
	assert.NotNil(t, rules, "whoever saw the kind appear is believed over an older no")
}

func TestRuleThatHasNotLookedYetHolds(t *testing.T) {
	rule := &appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "r", UID: "r"}}
	rule.Spec.Selector = &metav1.LabelSelector{}
	rule.Spec.Rules = []appsv1alpha1.TransitionRule{{Name: "max"}}
	r, c := newReconciler(t, &mapperFor{}, interceptor.Funcs{}, beginning(), rule)
	_, err := reconcilePod(t, r)
	require.NoError(t, err)
	pod := &corev1.Pod{}
	require.NoError(t, c.Get(t.Context(), key, pod))
	assert.Equal(t, podops.PhasePreCheck, podops.PhaseOf(podops.Read(pod), "job"))
	assert.True(t, podops.Read(pod).ServiceAvailable())
}

func TestNewlyGranted(t *testing.T) {
	grant := func(name, request string) appsv1alpha1.PodGrant {
		return appsv1alpha1.PodGrant{PodName: name, PodUID: types.UID(name), Stage: appsv1alpha1.StagePreCheck,
			Operations: []appsv1alpha1.GrantedOperation{{ID: "a", Request: request}}}
	}
	rule := func(grants ...appsv1alpha1.PodGrant) *appsv1alpha1.PodTransitionRule {
		return &appsv1alpha1.PodTransitionRule{Status: appsv1alpha1.PodTransitionRuleStatus{Grants: grants}}
	}
	before := rule(grant("kept", "1"), grant("again", "1"), grant("gone", "1"))
	after := rule(grant("kept", "1"), grant("again", "2"), grant("new", "1"))
	assert.Equal(t, []string{"again", "new"}, newlyGranted(before, after))
}

func TestCacheKeepsWhatTheProtocolReads(t *testing.T) {
	pod := beginning()
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
	pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "app"}}
	pod.Annotations = map[string]string{
		podops.AvailableConditionsAnnotation: `{}`, podops.SkipRulesAnnotation: `{"skipRules":["r"]}`,
		podops.DeadlinesAnnotation:     `{}`,
		podops.RuleDetailPrefix + "/r": `{}`,
	}
	overdue := corev1.PodCondition{Type: podops.OverdueCondition, Status: corev1.ConditionTrue, Reason: "Late",
		Message: "very"}
	pod.Status.Conditions = append(pod.Status.Conditions, overdue)
	want := podops.Read(pod.DeepCopy())
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "example.com/large", strings.Repeat("x", 100))
	for i := range pod.Status.Conditions {
		pod.Status.Conditions[i].LastTransitionTime = metav1.Now()
	}
	stripped, err := stripPod(pod.DeepCopy())
	require.NoError(t, err)
	kept := stripped.(*corev1.Pod)
	assert.Equal(t, want, podops.Read(kept))
	assert.Empty(t, kept.ManagedFields)
	assert.Empty(t, kept.Spec.Containers)
	assert.Contains(t, kept.Status.Conditions, overdue, "what it said is compared with what it is to say")
}

// changed is a Pod that collaset-controller has changed in place, and whose containers were restarted.
func changed() *corev1.Pod {
	pod := servingPod()
	pod.Generation, pod.Status.ObservedGeneration = 2, 2
	always := corev1.ContainerRestartPolicyAlways
	pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "app:2"}}
	pod.Spec.InitContainers = []corev1.Container{{Name: "setup", Image: "setup:1"},
		{Name: "mesh", Image: "mesh:2", RestartPolicy: &always}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", ContainerID: "a2", RestartCount: 1,
		State: running}}
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "setup", ContainerID: "s1"},
		{Name: "mesh", ContainerID: "m2", RestartCount: 1, State: running}}
	for _, key := range []string{
		podops.OperatingPrefix + "/collaset", podops.PreCheckedPrefix + "/collaset", podops.OperatePrefix + "/collaset",
		podops.PermissionPrefix + "/" + podops.TypeUpdate,
	} {
		pod.Labels[key] = "1700000000000000000"
	}
	pod.Labels[podops.OperationTypePrefix+"/collaset"] = podops.TypeUpdate
	delete(pod.Labels, podops.ServiceAvailableLabel)
	pod.Annotations = map[string]string{appsv1alpha1.LastPodStatusAnnotation: `{"containerStates":{"app":{"lastContainerID":"a1","lastRestartCount":0},` +
		`"mesh":{"lastContainerID":"m1","lastRestartCount":0}},"finish":{"id":"collaset","type":"update","request":"1700000000000000000"}}`}
	pod.Status.Conditions = []corev1.PodCondition{{Type: podops.ServiceReadyCondition, Status: corev1.ConditionFalse}}
	return pod
}

func TestWhatIsCarriedOutIsSeenInTheCache(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		done   bool
	}{
		"all restarted": {func(*corev1.Pod) {}, true},
		"the sidecar is not": {func(p *corev1.Pod) {
			p.Status.InitContainerStatuses[1].ContainerID, p.Status.InitContainerStatuses[1].RestartCount = "m1", 0
		}, false},
		"one does not run": {func(
			p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{}
		}, false},
		"the kubelet has not seen it": {func(p *corev1.Pod) { p.Status.ObservedGeneration = 1 }, false},
		"somebody else finishes": {func(
			p *corev1.Pod) {
			p.Annotations[appsv1alpha1.LastPodStatusAnnotation] = `{}`
		}, false},
		"the record cannot be read": {func(
			p *corev1.Pod) {
			p.Annotations[appsv1alpha1.LastPodStatusAnnotation] = `{`
		}, false},
		"the record is of another request": {func(p *corev1.Pod) { p.Labels[podops.OperatingPrefix+"/collaset"] = "9" },
			false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := changed()
			tc.change(pod)
			stripped, err := stripPod(pod.DeepCopy())
			require.NoError(t, err)
			assert.Equal(t, revision.Carried(pod), revision.Carried(stripped.(*corev1.Pod)))

			var bodies []string
			record := interceptor.Funcs{SubResourcePatch: func(_ context.Context, _ client.Client, _ string, obj client.Object,
				patch client.Patch, _ ...client.SubResourcePatchOption) error {
				body, err := patch.Data(obj)
				bodies = append(bodies, string(body))
				return err
			}}
			r, _ := newReconciler(t, &mapperFor{err: errNoRules}, record, stripped.(*corev1.Pod))
			_, err = reconcilePod(t, r)
			require.NoError(t, err)
			if !tc.done {
				assert.NotContains(t, strings.Join(bodies, ""), "last-pod-status")
				return
			}
			require.Len(t, bodies, 1)
			for _, part := range []string{`"operating.podopslifecycle.kusionstack.io/collaset":null`,
				`"collaset.kusionstack.io/last-pod-status":null`, `"status":"True"`} {
				assert.Contains(t, bodies[0], part)
			}
		})
	}
}
