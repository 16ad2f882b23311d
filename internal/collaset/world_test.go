package collaset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/revision"
)

var key = types.NamespacedName{Namespace: "default", Name: "web"}

// world is a reconciler with an API server that can refuse writes and a cache that shows what it is told to see.
type world struct {
	*testing.T
	r      *reconciler
	clock  *testingclock.FakeClock
	scheme *runtime.Scheme
	store  client.WithWatch // the API server itself: what the test does through it is not noted
	cache  *lagging
	queued workqueue.TypedRateLimitingInterface[ctrl.Request]

	created atomic.Int64 // gives UIDs

	mu sync.Mutex
	// written are the reconciler's write requests in their order, such as "patch CollaSet/status", refused ones too.
	written []string
	refuse  func(what string, object client.Object) error
	// tried are its dry runs, likewise, and refuseTrial what the API server says to them.
	tried       []string
	refuseTrial func(what string, object client.Object) error
	// loseAnswer is the next write, such as "patch CollaSet/status", that is done and whose answer is lost.
	loseAnswer string
}

// lagging is a cache: the objects as they were when it last looked.
type lagging struct {
	client.Reader
	afterGet func() // nil, or what happens once, after the next object was read
}

func (l *lagging) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	err := l.Reader.Get(ctx, key, object, opts...)
	if happens := l.afterGet; happens != nil {
		l.afterGet = nil
		happens()
	}
	return err
}

// split reads from the cache and writes to the API server.
type split struct {
	client.Client
	cache *lagging
}

func (s split) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	return s.cache.Get(ctx, key, object, opts...)
}

func (s split) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return s.cache.List(ctx, list, opts...)
}

// fakeKinds are the kinds that a world has, and no others: the fake client looks through all of them with every write.
var fakeKinds = sync.OnceValue(func() *runtime.Scheme {
	kinds := runtime.NewScheme()
	utilruntime.Must(errors.Join(corev1.AddToScheme(kinds), appsv1.AddToScheme(kinds), appsv1alpha1.AddToScheme(kinds)))
	return kinds
})

// newWorld has the objects, and a cache that shows them.
func newWorld(t *testing.T, protocol bool, objects ...client.Object) *world {
	t.Helper()
	w := &world{T: t, scheme: fakeKinds(), cache: &lagging{},
		clock: testingclock.NewFakeClock(time.Unix(1_700_000_000, 0))}
	w.store = w.fake(objects...)
	c := split{interceptor.NewClient(w.store, w.interceptors()), w.cache}
	w.r = &reconciler{
		server: &server{client: c, live: c.Client, writes: freshness.New(w.cache, w.clock),
			events: events.NewFakeRecorder(1000), clock: w.clock, evictions: &atomic.Bool{}},
		serverCan: canLeast, cached: w, protocol: protocol, memory: &stateCache{},
		window: newWindow(setplan.DefaultLimits(), w.clock),
	}
	w.queued = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
	t.Cleanup(w.queued.ShutDown)
	w.see()
	return w
}

func (w *world) fake(objects ...client.Object) client.WithWatch {
	return fake.NewClientBuilder().WithScheme(w.scheme).WithTypeConverters(
		managedfields.NewDeducedTypeConverter()).WithObjects(objects...).WithStatusSubresource(&appsv1alpha1.CollaSet{}).
		WithIndex(&corev1.Pod{}, ownerIndex, podOwners).WithIndex(&appsv1.ControllerRevision{}, ownerIndex, revisionOwner).
		WithIndex(&corev1.PersistentVolumeClaim{}, claimIndex, claimKeys).WithIndex(&corev1.Pod{}, mountIndex, mountsOf).
		WithIndex(&appsv1alpha1.CollaSet{}, poolIndex, poolOf).WithIndex(&appsv1alpha1.CollaSet{}, includeIndex,
		includedBy).Build()
}

// canLeast is an API server that lets the least change on a running Pod.
func canLeast(context.Context) (revision.Capabilities, error) { return revision.Capabilities{}, nil }

// ByIndex reads Pods of a CollaSet from the cache.
func (w *world) ByIndex(_, value string) ([]*podcache.Pod, error) {
	namespace, uid, _ := strings.Cut(value, "/")
	list := &corev1.PodList{}
	err := w.cache.List(w.Context(), list, client.InNamespace(namespace), client.MatchingFields{ownerIndex: value})
	if uid == "" {
		list.Items = slices.DeleteFunc(list.Items,
			func(pod corev1.Pod) bool { return pod.Labels[appsv1alpha1.ControlLabel] == "" })
	}
	return packed(list.Items), err
}

func podOwners(pod client.Object) []string {
	owners, _ := podOwner(pod)
	return owners
}

// packed are Pods as the cache keeps them.
func packed(pods []corev1.Pod) []*podcache.Pod {
	kept := make([]*podcache.Pod, len(pods))
	for i := range pods {
		kept[i] = podcache.Pack(&pods[i])
	}
	return kept
}

// interceptors note every write and refuse those that the test says.
func (w *world) interceptors() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			if len(opts) > 0 {
				return w.try("create", object, "")
			}
			if err := w.note("create", object, ""); err != nil {
				return err
			}
			object.SetUID(types.UID(fmt.Sprintf("created-%d", w.created.Add(1))))
			object.SetCreationTimestamp(metav1.NewTime(w.clock.Now()))
			return c.Create(ctx, object, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.UpdateOption) error {
			return w.then("update", object, "", func() error { return c.Update(ctx, object, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch,
			opts ...client.PatchOption) error {
			if len(opts) > 0 {
				return w.try("patch", object, "")
			}
			return w.then("patch", object, "", func() error { return c.Patch(ctx, object, patch, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if slices.Contains(opts, client.DeleteOption(client.DryRunAll)) {
				return w.try("delete", object, "")
			}
			return w.then("delete", object, "", func() error { return c.Delete(ctx, object, opts...) })
		},
		DeleteAllOf: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.DeleteAllOfOption) error {
			return w.then("deletecollection", object, "", func() error { return errors.New("nobody asked for that") })
		},
		Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
			return w.then("apply", nil, "", func() error { return errors.New("nobody asked for that") })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, object client.Object,
			opts ...client.SubResourceUpdateOption) error {
			return w.then("update", object, "/"+sub, func() error { return c.SubResource(sub).Update(ctx, object, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch,
			opts ...client.SubResourcePatchOption) error {
			if slices.Contains(opts, client.SubResourcePatchOption(client.DryRunAll)) {
				return w.try("patch", object, "/"+sub)
			}
			return w.then("patch", object, "/"+sub,
				func() error { return c.SubResource(sub).Patch(ctx, object, patch, opts...) })
		},
	}
}

func (w *world) then(verb string, object client.Object, sub string, do func() error) error {
	if err := w.note(verb, object, sub); err != nil {
		return err
	}
	err := do()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.loseAnswer != "" && w.loseAnswer == w.written[len(w.written)-1] {
		w.loseAnswer = ""
		return errors.Join(err, errors.New("the connection was lost"))
	}
	return err
}

func (w *world) note(verb string, object client.Object, sub string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	what, err := w.what(verb, object, sub)
	if err != nil {
		return err
	}
	w.written = append(w.written, what)
	if w.refuse != nil {
		return w.refuse(what, object)
	}
	return nil
}

// what names a write.
func (w *world) what(verb string, object client.Object, sub string) (string, error) {
	if object == nil {
		return verb, nil
	}
	gvk, err := apiutil.GVKForObject(object, w.scheme)
	return verb + " " + gvk.Kind + sub, err
}

// try is a dry run.
func (w *world) try(verb string, object client.Object, sub string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	what, err := w.what(verb, object, sub)
	if err != nil {
		return err
	}
	w.tried = append(w.tried, what)
	if w.refuseTrial != nil {
		return w.refuseTrial(what, object)
	}
	return nil
}

// count is the number of writes of a kind since the last forget.
func (w *world) count(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, s := range w.written {
		if s == what {
			n++
		}
	}
	return n
}

// forget empties the list of writes and ends refusals.
func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written, w.refuse = nil, nil
}

// all are the objects of the API server that a cache would show.
func (w *world) all() []client.Object {
	w.Helper()
	return w.in(w.store)
}

func (w *world) in(from client.Reader) []client.Object {
	w.Helper()
	var out []client.Object
	for _, list := range []client.ObjectList{
		&appsv1alpha1.CollaSetList{}, &appsv1alpha1.ResourceContextList{}, &appsv1.ControllerRevisionList{},
		&corev1.PodList{}, &corev1.PersistentVolumeClaimList{},
	} {
		require.NoError(w, from.List(w.Context(), list))
		require.NoError(w, meta.EachListItem(list, func(o runtime.Object) error {
			out = append(out, o.DeepCopyObject().(client.Object))
			return nil
		}))
	}
	return out
}

// see brings the cache up to date.
func (w *world) see() {
	w.Helper()
	w.show(w.all()...)
}

// seeAllBut brings the cache up to date, except for some objects: they are as it saw them last, if it did.
func (w *world) seeAllBut(late func(client.Object) bool) {
	w.Helper()
	shown := slices.DeleteFunc(w.all(), late)
	for _, o := range w.in(w.cache) {
		if late(o) {
			shown = append(shown, o)
		}
	}
	w.show(shown...)
}

// seeWithoutPods brings the cache up to date but shows no Pod.
func (w *world) seeWithoutPods() {
	w.Helper()
	w.show(slices.DeleteFunc(w.all(), isPod)...)
}

// show has the cache show these objects, and tells the reconciler what has changed.
func (w *world) show(objects ...client.Object) {
	w.Helper()
	before := map[client.ObjectKey]client.Object{}
	name := func(o client.Object) client.ObjectKey {
		return client.ObjectKey{Namespace: fmt.Sprintf("%T", o), Name: o.GetName()}
	}
	if w.cache.Reader != nil {
		for _, o := range w.in(w.cache.Reader) {
			before[name(o)] = o
		}
	}
	w.cache.Reader = w.fake(objects...)
	for _, o := range w.in(w.cache.Reader) {
		switch old := before[name(o)]; {
		case old == nil:
			w.hearing(o).Create(w.Context(), event.CreateEvent{Object: o}, w.queued)
		case old.GetResourceVersion() != o.GetResourceVersion():
			w.hearing(o).Update(w.Context(), event.UpdateEvent{ObjectOld: old, ObjectNew: o}, w.queued)
		}
		delete(before, name(o))
	}
	for _, o := range before {
		w.hearing(o).Delete(w.Context(), event.DeleteEvent{Object: o}, w.queued)
	}
}

// listener hears what happens to objects.
func (w *world) listener() listener { return listener{w.r.client, w.r.memory, w.r.window} }

// steps makes steps of single Pods.
func (w *world) steps() *podReconciler {
	return &podReconciler{podStepper: podStepper{trials{w.r.server}, w.r.window}, memory: w.r.memory,
		protocol: w.r.protocol, conventions: w.r.conventions}
}

// hearing is who hears what happens to an object.
func (w *world) hearing(of client.Object) handler.EventHandler {
	switch of.(type) {
	case *corev1.Pod:
		return w.listener().podEvents(handler.Funcs{})
	case *appsv1alpha1.ResourceContext:
		return handler.EnqueueRequestsFromMapFunc(w.listener().usersOf)
	case *corev1.PersistentVolumeClaim:
		return handler.EnqueueRequestsFromMapFunc(claimUsers)
	}
	return handler.Funcs{}
}

func isPod(o client.Object) bool { return is[*corev1.Pod](o) }

func is[T client.Object](o client.Object) bool { _, ok := o.(T); return ok }

// reconcile runs once on the cache as it is.
func (w *world) reconcile() (ctrl.Result, error) {
	w.Helper()
	return w.r.Reconcile(w.Context(), ctrl.Request{NamespacedName: key})
}

// settle reconciles with a cache that keeps up, and Pods that come up at once, until nothing is written.
func (w *world) settle() {
	w.Helper()
	for range 30 {
		w.see()
		before := len(w.written)
		_, err := w.reconcile()
		require.NoError(w, err)
		w.serve()
		w.clock.Step(time.Second)
		if len(w.written) == before {
			w.see()
			w.forget()
			return
		}
	}
	w.Fatalf("writes without end: %v", w.written)
}

// serve brings every Pod up.
func (w *world) serve(names ...string) {
	w.Helper()
	for _, pod := range w.pods() {
		if len(pod.Status.Conditions) > 0 || (len(names) > 0 && !slices.Contains(names, pod.Name)) {
			continue
		}
		pod.Labels[podops.ServiceAvailableLabel] = "1"
		require.NoError(w, w.store.Update(w.Context(), &pod))
		pod.Status.Phase = corev1.PodRunning
		for _, c := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReady, podops.ServiceReadyCondition} {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
				Type: c, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.clock.Now()),
			})
		}
		require.NoError(w, w.store.Status().Update(w.Context(), &pod))
	}
}

// pods are the Pods at the API server, by instance ID.
func (w *world) pods() []corev1.Pod {
	w.Helper()
	list := &corev1.PodList{}
	require.NoError(w, w.store.List(w.Context(), list))
	id := func(p corev1.Pod) int { n, _ := strconv.Atoi(p.Labels[appsv1alpha1.InstanceIDLabel]); return n }
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return id(a) - id(b) })
	return list.Items
}

func (w *world) revisions() []appsv1.ControllerRevision {
	w.Helper()
	list := &appsv1.ControllerRevisionList{}
	require.NoError(w, w.store.List(w.Context(), list))
	return list.Items
}

func (w *world) set() *appsv1alpha1.CollaSet {
	w.Helper()
	set := &appsv1alpha1.CollaSet{}
	require.NoError(w, w.store.Get(w.Context(), key, set))
	return set
}

func (w *world) condition(conditionType string) metav1.Condition {
	w.Helper()
	c := meta.FindStatusCondition(w.set().Status.Conditions, conditionType)
	require.NotNil(w, c, conditionType)
	return *c
}

// entries are the ResourceContext's entries by ID; nil if there is none.
func (w *world) entries() map[int]map[string]string {
	w.Helper()
	rc := &appsv1alpha1.ResourceContext{}
	if err := w.store.Get(w.Context(), key, rc); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		w.Fatal(err)
	}
	out := map[int]map[string]string{}
	for _, c := range rc.Spec.Contexts {
		out[c.ID] = c.Data
	}
	return out
}

// change changes the CollaSet's spec as its user, and shows it.
func (w *world) change(change func(*appsv1alpha1.CollaSetSpec)) {
	w.Helper()
	set := w.set()
	change(&set.Spec)
	set.Generation++
	require.NoError(w, w.store.Update(w.Context(), set))
	w.see()
}

func replicas(n int32) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) { s.Replicas = &n }
}

func image(image string) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) { s.Template.Spec.Containers[0].Image = image }
}

func partition(n int32) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) {
		s.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{
			ByPartition: &appsv1alpha1.ByPartition{Partition: ptr.To(intstr.FromInt32(n))}, MaxUnavailable: all(),
		}
	}
}

func both(changes ...func(*appsv1alpha1.CollaSetSpec)) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) {
		for _, change := range changes {
			change(s)
		}
	}
}

// all is a maxUnavailable that bounds nothing.
func all() *intstr.IntOrString { return ptr.To(intstr.FromString("100%")) }

// collaSet is web, just made. Its updates take as many Pods out of service as they like.
func collaSet(n int32) *appsv1alpha1.CollaSet {
	labels := map[string]string{"app": key.Name}
	return &appsv1alpha1.CollaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "web", Generation: 1},
		Spec: appsv1alpha1.CollaSetSpec{
			Replicas: &n,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			UpdateStrategy: appsv1alpha1.UpdateStrategy{
				RollingUpdate: &appsv1alpha1.RollingUpdateStrategy{MaxUnavailable: all()},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "nginx:1"}}},
			},
		},
	}
}

// The answers of an API server.
var (
	pods          = schema.GroupResource{Resource: "pods"}
	errAway       = apierrors.NewInternalError(errors.New("the API server is away"))
	errConflict   = apierrors.NewConflict(pods, "x", errors.New("changed"))
	errNotFound   = apierrors.NewNotFound(pods, "x")
	errExists     = apierrors.NewAlreadyExists(pods, "x")
	errQuota      = apierrors.NewForbidden(pods, "x", errors.New("exceeded quota"))
	errUnfit      = apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "x", nil)
	errOfCreation = map[string]error{"a server error": errAway, "a quota": errQuota, "a webhook's NotFound": errNotFound}
)

// refusing refuses one kind of write, always.
func refusing(what string, err error) func(string, client.Object) error {
	return func(asked string, _ client.Object) error {
		if asked == what {
			return err
		}
		return nil
	}
}
