package collaset

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	fakesource "k8s.io/client-go/tools/cache/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
)

// mostPerPod is how many allocations one Pod more may cost a reconcile, however many there are.
const mostPerPod = 1.0

// BenchmarkCollaSetReconcile prints what one reconcile costs for each Pod of a CollaSet, among 100, 1,000 and 10,000:
// at rest, and in the middle of an update in place. It fails if a further Pod allocates too much. Time is printed
// only.
func BenchmarkCollaSetReconcile(b *testing.B) {
	results := benchresult.ForTest(b, filepath.Join("..", ".."))
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "One reconcile, for each Pod (the cache's own work and writes apart):")
	fmt.Fprintln(w, "\tPods\tms in all\tµs/Pod\t/ among 100\tallocations/Pod\tof each further Pod\tbytes/Pod\t/ among 100")
	for _, scene := range []struct {
		name   string
		begin  func(*resting)
		rounds int
		note   string
	}{
		{"at rest", func(*resting) {}, 400, "with its status made, and no write"},
		{"half updated", (*resting).updateHalf, 3, "about all Pods; in an update some hundred events share one"},
	} {
		var fewest, fewer cost
		for _, pods := range []int{100, 1_000, 5_000, 10_000} {
			s := atGoal(b, pods)
			scene.begin(s)
			c := s.measure(max(scene.rounds, 20_000/pods))
			further := "\t"
			if fewer.pods == 0 {
				fewest = c
			} else {
				each := (c.allocations*c.pods - fewer.allocations*fewer.pods) / (c.pods - fewer.pods)
				further = fmt.Sprintf("%.2f\t", each)
				b.ReportMetric(each, fmt.Sprintf("allocs/further-Pod-%s-%d", strings.ReplaceAll(scene.name, " ", "-"), pods))
				if each > mostPerPod {
					b.Errorf("%s, each Pod of %d takes %.2f allocations more; at most %.2f keep the work linear and small", scene.name,
						pods, each, mostPerPod)
				}
			}
			fewer = c
			figure := benchresult.Figure{Name: "one decision", Unit: "ms", Series: scene.name,
				Params: map[string]float64{"pods": float64(pods)}, Values: []float64{c.time * c.pods * 1e3}}
			_, err := results.Add(figure)
			require.NoError(b, err)
			if pods == 5_000 { // a Pod's event that has a decision to itself; events that come while one waits share it
				_, err := results.Add(benchresult.Figure{Goal: "P14",
					Name:   "decision after one Pod's event among 5,000, " + scene.name,
					Params: map[string]float64{"pods": 5_000}, Values: []float64{c.time * c.pods * 1e6}, Note: scene.note})
				require.NoError(b, err)
			}
			fmt.Fprintf(w, "%s\t%d\t%.1f\t%.2f\t%.2f\t%.2f\t%s%.0f\t%.2f\n", scene.name, pods, c.time*c.pods*1e3, c.time*1e6,
				c.time/fewest.time,
				c.allocations, further, c.bytes, c.bytes/fewest.bytes)
		}
	}
	require.NoError(b, w.Flush())
	fmt.Fprintf(os.Stdout, "\n%s\n", text.String())
}

// cost is for one of so many Pods in one reconcile; time is in seconds.
type cost struct{ pods, time, allocations, bytes float64 }

// resting is a reconciler with an API server and a cache in one: it keeps what is created, and nothing that is
// patched but the CollaSet. What it reads is copied as the cache of controller-runtime copies it; Pods are in the
// cache that they are in elsewhere.
type resting struct {
	client.Client
	testing.TB
	r         *reconciler
	clock     *testingclock.FakeClock
	set       *appsv1alpha1.CollaSet
	context   *appsv1alpha1.ResourceContext
	revisions []appsv1.ControllerRevision
	pods      []corev1.Pod
	byName    map[string]int
	cached    *podcache.Store
	source    *fakesource.FakeControllerSource
	informer  toolscache.SharedIndexInformer
	handler   handler.EventHandler
	queue     workqueue.TypedRateLimitingInterface[ctrl.Request]

	mu      sync.Mutex // writes come in parallel
	written int
}

// TestASetComesToItsGoalForBenchmarks tests what the benchmarks rely on, as they are not run every day.
func TestASetComesToItsGoalForBenchmarks(t *testing.T) {
	s := atGoal(t, 5)
	s.updateHalf()
}

// atGoal has so many Pods that serve, and nothing left to do.
func atGoal(t testing.TB, pods int) *resting {
	t.Helper()
	s := &resting{TB: t, byName: map[string]int{}, set: collaSet(int32(pods)),
		clock: testingclock.NewFakeClock(time.Unix(1_700_000_000, 0))}
	s.cache()
	s.r = &reconciler{
		server: &server{client: s, live: s, writes: freshness.New(s, s.clock), events: &events.FakeRecorder{},
			clock: s.clock, evictions: &atomic.Bool{}},
		serverCan: canLeast, cached: s.cached, protocol: true, memory: &stateCache{},
		window: newWindow(setplan.DefaultLimits(), s.clock),
	}
	s.handler, s.queue = listener{s.r.client, s.r.memory, s.r.window}.podEvents(handler.Funcs{}),
		workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
	t.Cleanup(s.queue.ShutDown)
	for range 100 {
		before := s.written
		s.reconcile()
		for i := range s.pods {
			s.serve(&s.pods[i])
		}
		s.tell(s.show(s.pods))
		s.clock.Step(time.Second)
		if s.written == before {
			require.EqualValues(t, pods, s.set.Status.UpdatedAvailableReplicas)
			return s
		}
	}
	t.Fatal("writes without end")
	return nil
}

// cache starts the cache of Pods.
func (s *resting) cache() {
	s.cached, s.source = newPodStore(), fakesource.NewFakeControllerSource()
	s.informer = cacheOptions(s.cached).NewInformer(s.source, &corev1.Pod{}, 0, toolscache.Indexers{})
	go s.informer.RunWithContext(s.Context())
	require.True(s, toolscache.WaitForCacheSync(s.Context().Done(), s.informer.HasSynced))
}

// show has the cache show these Pods as they are, and returns what a watch tells of that.
func (s *resting) show(pods []corev1.Pod) (told []event.UpdateEvent) {
	shown := make([]*corev1.Pod, len(pods))
	for i := range pods {
		before, exists, err := s.informer.GetStore().Get(&pods[i])
		require.NoError(s, err)
		shown[i] = pods[i].DeepCopy()
		if pod, ok := before.(*corev1.Pod); ok && exists {
			told = append(told, event.UpdateEvent{ObjectOld: pod, ObjectNew: shown[i]})
		}
		s.source.Modify(shown[i]) // and adds it, and gives it a resourceVersion
	}
	for _, pod := range shown {
		require.Eventually(s, func() bool {
			cached, exists, err := s.informer.GetStore().Get(pod)
			require.NoError(s, err)
			kept, is := cached.(*corev1.Pod)
			return exists && is && kept.ResourceVersion == pod.ResourceVersion
		}, time.Minute, 100*time.Microsecond)
	}
	return told
}

// tell has the handler of Pods hear it.
func (s *resting) tell(events []event.UpdateEvent) {
	for _, e := range events {
		s.handler.Update(s.Context(), e, s.queue)
	}
}

func (s *resting) reconcile() {
	_, err := s.r.Reconcile(s.Context(), ctrl.Request{NamespacedName: key})
	require.NoError(s, err)
}

// serve is what kubelet and lifecycle-controller make of a new Pod, as the cache keeps it.
func (s *resting) serve(pod *corev1.Pod) {
	if len(pod.Status.Conditions) > 0 {
		return
	}
	delete(pod.Labels, podops.CreatingLabel)
	pod.Labels[podops.ServiceAvailableLabel] = "1"
	pod.Spec.NodeName = "node"
	pod.Status.Phase = corev1.PodRunning
	for _, c := range []corev1.PodConditionType{corev1.PodScheduled, corev1.ContainersReady, corev1.PodReady,
		podops.ServiceReadyCondition} {
		pod.Status.Conditions = append(pod.Status.Conditions,
			corev1.PodCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.clock.Now())})
	}
	stripped, err := stripPod(pod)
	require.NoError(s, err)
	kept, ok := stripped.(*corev1.Pod)
	require.True(s, ok)
	*pod = *kept
}

// updateHalf asks for a new image, which half of the Pods have already.
func (s *resting) updateHalf() {
	image("nginx:2")(&s.set.Spec)
	s.set.Generation++
	s.reconcile()
	require.Len(s, s.revisions, 2)
	for i := range s.pods {
		if i%2 == 0 {
			s.pods[i].Labels[appsv1.ControllerRevisionHashLabelKey] = s.revisions[1].Name
		}
	}
	s.tell(s.show(s.pods))
	before := s.written
	s.clock.Step(time.Second)
	s.reconcile()
	require.Greater(s, s.written, before, "updates are begun")
}

// measure reconciles so many times, after once to warm up, each time after an event of one Pod: it is not Ready, and
// then it is again.
func (s *resting) measure(rounds int) cost {
	s.reconcile()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var took time.Duration
	for i := range rounds {
		one := s.pods[i/2%len(s.pods):][:1]
		s.turn(&one[0])
		told := s.show(one)
		began := time.Now()
		s.tell(told)
		s.reconcile()
		took += time.Since(began)
	}
	runtime.ReadMemStats(&after)
	n := float64(rounds * len(s.pods))
	return cost{float64(len(s.pods)), took.Seconds() / n, float64(after.Mallocs-before.Mallocs) / n,
		float64(after.TotalAlloc-before.TotalAlloc) / n}
}

// turn has a Pod that is Ready be so no longer, or the other way round.
func (s *resting) turn(pod *corev1.Pod) {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		switch {
		case c.Type != corev1.PodReady:
		case c.Status == corev1.ConditionTrue:
			c.Status = corev1.ConditionFalse
		default:
			c.Status = corev1.ConditionTrue
		}
	}
}

func (s *resting) Get(_ context.Context, name client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	shared := (&client.GetOptions{}).ApplyOptions(opts).UnsafeDisableDeepCopy
	switch o := object.(type) {
	case *appsv1alpha1.CollaSet:
		s.set.DeepCopyInto(o)
	case *unstructured.Unstructured:
		stored, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(s.set)
		o.SetUnstructuredContent(stored)
		return err
	case *appsv1alpha1.ResourceContext:
		switch {
		case s.context == nil:
			return apierrors.NewNotFound(appsv1alpha1.SchemeGroupVersion.WithResource("resourcecontexts").GroupResource(),
				name.Name)
		case shared != nil && *shared:
			*o = *s.context
		default:
			s.context.DeepCopyInto(o)
		}
	case *metav1.PartialObjectMetadata:
		switch {
		case o.Kind == appsv1alpha1.CollaSetKind:
			s.set.ObjectMeta.DeepCopyInto(&o.ObjectMeta)
		case s.context == nil:
			return apierrors.NewNotFound(appsv1alpha1.SchemeGroupVersion.WithResource("resourcecontexts").GroupResource(),
				name.Name)
		default:
			s.context.ObjectMeta.DeepCopyInto(&o.ObjectMeta)
		}
	case *corev1.Pod:
		i, created := s.byName[name.Name]
		if !created {
			return apierrors.NewNotFound(pods, name.Name)
		}
		s.pods[i].DeepCopyInto(o)
	case *appsv1.ControllerRevision:
		for i := range s.revisions {
			if s.revisions[i].Name == name.Name {
				s.revisions[i].DeepCopyInto(o)
			}
		}
	}
	return nil
}

func (s *resting) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch l := list.(type) {
	case *metav1.PartialObjectMetadataList:
		for i := range s.pods {
			l.Items = append(l.Items, metav1.PartialObjectMetadata{ObjectMeta: s.pods[i].ObjectMeta})
		}
	case *appsv1.ControllerRevisionList:
		l.Items = slices.Clone(s.revisions)
	}
	return nil
}

func (s *resting) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written++
	object.SetResourceVersion("1")
	switch o := object.(type) {
	case *appsv1alpha1.ResourceContext:
		s.context = o.DeepCopy()
	case *appsv1.ControllerRevision:
		o.SetUID(types.UID(o.Name))
		s.revisions = append(s.revisions, *o.DeepCopy())
	case *unstructured.Unstructured:
		n := len(s.pods)
		o.SetName(fmt.Sprintf("%s%05d", o.GetGenerateName(), n))
		s.byName[o.GetName()] = n
		o.SetUID(types.UID(fmt.Sprintf("%036d", n)))
		o.SetCreationTimestamp(metav1.NewTime(s.clock.Now()))
		s.pods = append(s.pods, corev1.Pod{})
		return apiruntime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s.pods[n])
	}
	return nil
}

func (s *resting) Update(_ context.Context, object client.Object, _ ...client.UpdateOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written++
	if o, ok := object.(*appsv1alpha1.ResourceContext); ok {
		s.context = o.DeepCopy()
	}
	return nil
}

func (s *resting) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written++
	if o, ok := object.(*appsv1alpha1.CollaSet); ok {
		s.set = o.DeepCopy()
	}
	return nil
}

func (s *resting) Status() client.SubResourceWriter { return restingStatus{s: s} }

// restingStatus writes the status of the CollaSet.
type restingStatus struct {
	client.SubResourceWriter
	s *resting
}

func (w restingStatus) Patch(
	ctx context.Context, object client.Object, patch client.Patch, _ ...client.SubResourcePatchOption,
) error {
	return w.s.Patch(ctx, object, patch)
}
