package operationjob

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/failures"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/operationjob/jobplan"
)

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(s))
	require.NoError(t, appsv1alpha1.AddToScheme(s))
	return s
}

// pod is a managed Pod of a workload.
func pod(name, kind, owner string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name),
			Labels: map[string]string{"app": "web", appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue,
				appsv1alpha1.InstanceIDLabel: "3"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: kind, Name: owner, UID: types.UID("uid-" + owner),
				Controller: ptr.To(true)}}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "app", Image: "app:v1"}},
			InitContainers: []corev1.Container{{Name: "setup", Image: "setup:v1"},
				{Name: "proxy", Image: "proxy:v1", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}},
		},
	}
}

func TestSelectPods(t *testing.T) {
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "uid-web-1",
		OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: "web", UID: "d", Controller: ptr.To(true)}}}}
	other := pod("c", "ReplicaSet", "other-1")
	other.Labels["app"] = "other"
	leaving := pod("leaving", "ReplicaSet", "web-1")
	leaving.DeletionTimestamp, leaving.Finalizers = &metav1.Time{Time: time.Now()}, []string{"example.com/x"}
	elsewhere := pod("elsewhere", "ReplicaSet", "web-1")
	elsewhere.Namespace = "other"
	live := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(set, pod("b", "ReplicaSet", "web-1"),
		pod("a", "ReplicaSet", "web-1"), other, pod("d", "CollaSet", "web"), leaving, elsewhere).Build()
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	of := func(kind, name string) *appsv1alpha1.WorkloadReference {
		return &appsv1alpha1.WorkloadReference{Kind: kind, Name: name}
	}
	for name, test := range map[string]struct {
		labels   *metav1.LabelSelector
		workload *appsv1alpha1.WorkloadReference
		want     []string
	}{
		"labels":         {web, nil, []string{"a", "b", "d"}},
		"all":            {&metav1.LabelSelector{}, nil, []string{"a", "b", "c", "d"}},
		"a Deployment":   {nil, of("Deployment", "web"), []string{"a", "b"}},
		"a CollaSet":     {nil, of("CollaSet", "web"), []string{"d"}},
		"both":           {web, of("ReplicaSet", "other-1"), []string{}},
		"none of a name": {nil, of("CollaSet", "none"), []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}
			job.Spec.TargetSelector = &appsv1alpha1.OperationTargetSelector{LabelSelector: test.labels, Workload: test.workload}
			names, invalid, err := selectPods(t.Context(), live, job)
			require.NoError(t, err)
			assert.Empty(t, invalid)
			assert.Equal(t, test.want, names)
		})
	}
	t.Run("labels that are not valid", func(t *testing.T) {
		job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}
		job.Spec.TargetSelector = &appsv1alpha1.OperationTargetSelector{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "not a value"}},
		}
		names, invalid, err := selectPods(t.Context(), live, job)
		require.NoError(t, err)
		assert.Nil(t, names)
		assert.Contains(t, invalid, "create another OperationJob")
	})
}

func TestIndexes(t *testing.T) {
	job := &appsv1alpha1.OperationJob{}
	job.Status.TargetDetails = []appsv1alpha1.OpsStatus{
		{Name: "ended", Progress: appsv1alpha1.OperationProgressSucceeded},
		{Name: "a", Operation: &appsv1alpha1.TargetOperation{Stage: appsv1alpha1.OpsStageStarted}},
		{Name: "b", Operation: &appsv1alpha1.TargetOperation{CollaSet: "uid-web", InstanceID: "3"}},
		{Name: "pending", Progress: appsv1alpha1.OperationProgressPending},
	}
	assert.Equal(t, []string{"pod/a", "pod/b", "instance/uid-web/3"}, targetsOf(job))
	assert.Equal(t, []string{"instance/uid-web/3"}, instanceOf(pod("x", "CollaSet", "web")))
	assert.Empty(t, instanceOf(pod("x", "ReplicaSet", "web")))
	bare := pod("x", "CollaSet", "web")
	bare.OwnerReferences = nil
	assert.Empty(t, instanceOf(bare))
}

// TestJ7APodMattersToTheJobsThatWaitForIt has one job of a name that is empty, one that has ended with the Pod, one of
// another Pod, and two that a Pod matters to: by its name, and by the instance ID that it has taken over.
func TestJ7APodMattersToTheJobsThatWaitForIt(t *testing.T) {
	under := &appsv1alpha1.TargetOperation{Stage: appsv1alpha1.OpsStageStarted}
	taken := &appsv1alpha1.TargetOperation{Stage: appsv1alpha1.OpsStageStarted, CollaSet: "uid-web", InstanceID: "3"}
	build := fake.NewClientBuilder().WithScheme(scheme(t)).WithIndex(&appsv1alpha1.OperationJob{}, targetIndex, targetsOf)
	for name, target := range map[string]appsv1alpha1.OpsStatus{
		"empty":     {Operation: under},
		"ended":     {Name: "a", Progress: appsv1alpha1.OperationProgressSucceeded},
		"of-others": {Name: "b", Operation: under},
		"by-name":   {Name: "a", Operation: under},
		"by-id":     {Name: "gone", Operation: taken},
	} {
		job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		job.Status.TargetDetails = []appsv1alpha1.OpsStatus{target}
		build.WithObjects(job)
	}
	requests, err := jobsOf(t.Context(), build.Build(), pod("a", "CollaSet", "web"))
	require.NoError(t, err)
	var names []string
	for _, request := range requests {
		names = append(names, request.Name)
	}
	assert.ElementsMatch(t, []string{"by-name", "by-id"}, names)
}

// staleReader is a cache that shows jobs as they were when it was filled.
type staleReader struct {
	client.Client
	jobs client.Client // nil once it has caught up
}

func (s *staleReader) Get(
	ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption,
) error {
	if _, is := o.(*appsv1alpha1.OperationJob); is && s.jobs != nil {
		return s.jobs.Get(ctx, key, o, opts...)
	}
	return s.Client.Get(ctx, key, o, opts...)
}

// TestJ11AnOwnWriteThatIsNotSeenForLong has a cache that does not show the job as it was written, for an hour, and a
// job with the name of its Pod.
func TestJ11AnOwnWriteThatIsNotSeenForLong(t *testing.T) {
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", UID: "j"}}
	job.Spec.Action = appsv1alpha1.OpsActionReplace
	job.Spec.Targets = []appsv1alpha1.PodOpsTarget{{Name: "a"}}
	build := func(objects ...client.Object) client.Client {
		return fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(objects...).WithStatusSubresource(job).
			WithIndex(&corev1.Pod{}, instanceIndex, instanceOf).Build()
	}
	server := build(job.DeepCopy(), pod("a", "CollaSet", "web"))
	cached := &staleReader{Client: server, jobs: build(job.DeepCopy())}
	clk := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	r := &reconciler{client: cached, live: server, writes: freshness.New(cached, clk),
		events: events.NewFakeRecorder(100), clock: clk}
	key := client.ObjectKeyFromObject(job)
	look := func(times int, step time.Duration) {
		for range times {
			_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
			require.NoError(t, err)
			clk.Step(step)
		}
	}
	look(60, time.Minute)
	var now corev1.Pod
	require.NoError(t, server.Get(t.Context(), key, &now))
	require.NotContains(t, now.Labels, appsv1alpha1.ToReplaceLabel, "nothing is decided on the old job")

	cached.jobs = nil
	look(5, interval)
	require.NoError(t, server.Get(t.Context(), key, &now))
	require.Contains(t, now.Labels, appsv1alpha1.ToReplaceLabel)
}

// TestStripPod shows that a stripped Pod is read as a whole one.
func TestStripPod(t *testing.T) {
	whole := pod("a", "CollaSet", "web")
	whole.Annotations = map[string]string{"example.com/large": "x", podops.TasksAnnotation: "{}",
		appsv1alpha1.ToReplaceLabel + podops.AskersSuffix: "a", appsv1alpha1.ToDeleteLabel + podops.AskersSuffix: "b",
		appsv1alpha1.LastPodStatusAnnotation: "{}"}
	whole.Finalizers = []string{appsv1alpha1.ReplaceProtectionFinalizer}
	whole.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}
	whole.Spec.RestartPolicy = corev1.RestartPolicyNever
	whole.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		{Type: podops.ServiceReadyCondition, Status: corev1.ConditionTrue}}
	runs := func(name string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: name, ContainerID: "c-" + name, ImageID: name + "@sha256:1", Ready: true}}
	}
	whole.Status.ContainerStatuses, whole.Status.InitContainerStatuses = runs("app"), runs("proxy")
	want := jobplan.Read(whole.DeepCopy())
	delete(want.View.Annotations, "example.com/large")
	stripped, err := stripPod(whole)
	require.NoError(t, err)
	kept, ok := stripped.(*corev1.Pod)
	require.True(t, ok)
	assert.Equal(t, want, jobplan.Read(kept))
	assert.Empty(t, kept.Spec.Containers[0].Command)
}

func TestImagesOfAPatch(t *testing.T) {
	w := &jobplan.Write{Pod: jobplan.Read(pod("a", "CollaSet", "web")),
		Images: map[string]string{"app": "app:v1@sha256:1", "proxy": "proxy:v1@sha256:2"}}
	body, err := withImages([]byte(`{"metadata":{"uid":"u"}}`), w.Pod, w.Images)
	require.NoError(t, err)
	var patch map[string]any
	require.NoError(t, json.Unmarshal(body, &patch))
	assert.Equal(t, map[string]any{
		"metadata": map[string]any{"uid": "u"},
		"spec": map[string]any{
			"containers":     []any{map[string]any{"name": "app", "image": "app:v1@sha256:1"}},
			"initContainers": []any{map[string]any{"name": "proxy", "image": "proxy:v1@sha256:2"}},
		},
	}, patch)
}

// TestImagesAreTriedFirst has a restart's images refused, or changed back, while the Pod is in service.
func TestImagesAreTriedFirst(t *testing.T) {
	for name, answer := range map[string]func(ctx context.Context, c client.WithWatch, o client.Object) error{
		"only tags here": func(context.Context, client.WithWatch, client.Object) error {
			return apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("only tags here"))
		},
		"admission sets the image of container app back to app:v1": func(
			ctx context.Context, c client.WithWatch, o client.Object,
		) error {
			return c.Get(ctx, client.ObjectKeyFromObject(o), o)
		},
		"": func(_ context.Context, _ client.WithWatch, o client.Object) error {
			pod, is := o.(*corev1.Pod)
			require.True(t, is)
			pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "app:v1@sha256:1"}}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			trials, writes := 0, 0
			patch := interceptor.Funcs{Patch: func(
				ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption,
			) error {
				options := (&client.PatchOptions{}).ApplyOptions(opts)
				if len(options.DryRun) == 0 {
					writes++
					return c.Patch(ctx, o, p, opts...)
				}
				trials++
				body, err := p.Data(o)
				require.NoError(t, err)
				require.JSONEq(t, `{"metadata":{"uid":"uid-a","resourceVersion":"999"},
					"spec":{"containers":[{"name":"app","image":"app:v1@sha256:1"}]}}`, string(body))
				return answer(ctx, c, o)
			}}
			c := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(pod("a", "CollaSet", "web")).
				WithInterceptorFuncs(patch).Build()
			r := &reconciler{client: c, writes: freshness.New(c, clocktesting.NewFakeClock(time.Unix(0, 0)))}
			stored := &corev1.Pod{}
			require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "a"}, stored))
			label := "x"
			err := r.writePod(t.Context(), &appsv1alpha1.OperationJob{}, &jobplan.Write{Pod: jobplan.Read(stored),
				Change: podops.Change{Labels: map[string]*string{"x": &label}},
				Trial:  map[string]string{"app": "app:v1@sha256:1"}})
			require.Equal(t, 1, trials)
			rejection, isRejected := failures.RejectionIn(err)
			require.Equal(t, name != "", isRejected, "%v", err)
			require.Contains(t, rejection.Why, name)
			if name == "" {
				require.NoError(t, err)
				require.Equal(t, 1, writes)
			} else {
				require.Zero(t, writes)
			}
		})
	}
}

// TestAWriteThatIsRefusedIsPutOff has the API server refuse evictions: they are tried again, and not at each look.
func TestAWriteThatIsRefusedIsPutOff(t *testing.T) {
	evictions := 0
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "away", UID: "j"}}
	job.Spec.Action = appsv1alpha1.OpsActionEvict
	job.Spec.Targets = []appsv1alpha1.PodOpsTarget{{Name: "a"}}
	c := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(job, pod("a", "CollaSet", "web")).
		WithStatusSubresource(job).WithIndex(&corev1.Pod{}, instanceIndex, instanceOf).Build()
	refuse := func(ctx context.Context, eviction *policyv1.Eviction) error {
		var pod corev1.Pod
		require.NoError(t, c.Get(ctx, client.ObjectKeyFromObject(eviction), &pod))
		require.Equal(t, &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
			eviction.DeleteOptions.Preconditions)
		evictions++
		return apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
	}
	clk := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	r := &reconciler{client: c, live: c, evict: refuse, writes: freshness.New(c, clk),
		events: events.NewFakeRecorder(100), clock: clk}
	key := client.ObjectKeyFromObject(job)
	look := func(times int) {
		for range times {
			clk.Step(interval)
			_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
			require.NoError(t, err)
		}
	}
	look(8)
	require.NoError(t, c.Get(t.Context(), key, job))
	require.Equal(t, appsv1alpha1.OperationProgressProcessing, job.Status.Progress, "%+v", job.Status)
	assert.Equal(t, 1, evictions)
	clk.Step(jobplan.RefusedAgain)
	look(2)
	assert.Equal(t, 2, evictions)
	clk.Step(time.Minute)
	look(3)
	require.NoError(t, c.Get(t.Context(), key, job))
	assert.Contains(t, job.Status.TargetDetails[0].ExtraInfo[appsv1alpha1.ExtraInfoWaiting], "disruption budget")
}

// TestAStaleJobIsNotDecidedOn has a cache that shows a job as it was before it was let go.
func TestAStaleJobIsNotDecidedOn(t *testing.T) {
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "j",
		Finalizers: []string{appsv1alpha1.ProtectionFinalizer}}}
	job.Spec.Action, job.Spec.Targets = appsv1alpha1.OpsActionReplace, []appsv1alpha1.PodOpsTarget{{Name: "a"}}
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	job.Status.StartTime = &at
	job.Status.TargetDetails = []appsv1alpha1.OpsStatus{{Name: "a", Progress: appsv1alpha1.OperationProgressProcessing,
		StartTime: &at, Operation: &appsv1alpha1.TargetOperation{Stage: appsv1alpha1.OpsStageStarted, PodUID: "uid-a"}}}
	build := func(objects ...client.Object) client.Client {
		return fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(objects...).WithStatusSubresource(job).
			WithIndex(&corev1.Pod{}, instanceIndex, instanceOf).Build()
	}
	newer := job.DeepCopy()
	newer.ResourceVersion = "1000"
	for name, live := range map[string]client.Client{"gone": build(), "newer": build(newer)} {
		t.Run(name, func(t *testing.T) {
			cached := build(job.DeepCopy(), pod("a", "CollaSet", "web"))
			clk := clocktesting.NewFakeClock(at.Time)
			r := &reconciler{client: cached, live: live, writes: freshness.New(cached, clk),
				events: events.NewFakeRecorder(100), clock: clk}
			result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(job)})
			require.NoError(t, err)
			require.Equal(t, freshness.LookAgain, result.RequeueAfter)
			var now corev1.Pod
			require.NoError(t, cached.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "a"}, &now))
			require.NotContains(t, now.Labels, appsv1alpha1.ToReplaceLabel)

			r.live = cached
			_, err = r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(job)})
			require.NoError(t, err)
			require.NoError(t, cached.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "a"}, &now))
			require.Contains(t, now.Labels, appsv1alpha1.ToReplaceLabel, "the cache shows it as it is")
		})
	}
}

func TestANameThatNoPodCanHaveIsNoPod(t *testing.T) {
	for _, name := range []string{"a/b", "..", "50%", ""} {
		found, err := readPod(t.Context(), nil, "shop", name) // it is not asked for
		require.NoError(t, err)
		require.Nil(t, found)
	}
}

func TestEvictionsAreNotRepeatedByTheClient(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path)
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	evict, err := evictor(&rest.Config{Host: server.URL}, server.Client())
	require.NoError(t, err)
	err = evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a"}})
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	require.Equal(t, []string{"POST /api/v1/namespaces/shop/pods/a/eviction"}, asked)
}
