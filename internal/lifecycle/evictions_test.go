package lifecycle

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/drain"
)

// evictionWorld is a responder with one Pod and one Eviction of it, in which it is the responder's turn.
type evictionWorld struct {
	*responder
	t   *testing.T
	api client.Client
}

func newEvictionWorld(t *testing.T, funcs interceptor.Funcs) *evictionWorld {
	t.Helper()
	funcs.SubResourcePatch = func(ctx context.Context, c client.Client, _ string, obj client.Object,
		patch client.Patch, _ ...client.SubResourcePatchOption) error {
		return c.Patch(ctx, obj, patch)
	}
	r, c := newReconciler(t, &mapperFor{err: errNoRules}, funcs, servingPod())
	w := &evictionWorld{t: t, api: c,
		responder: &responder{client: c, live: c, rules: r.rules, freeze: r.freeze, clock: r.clock}}
	eviction := &lifecyclev1alpha1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "e", UID: "e",
			Labels: map[string]string{drain.Responder: "responder"}},
		Spec: lifecyclev1alpha1.EvictionSpec{Target: lifecyclev1alpha1.EvictionTarget{
			Pod: &lifecyclev1alpha1.EvictionPodReference{Name: key.Name, UID: "u"}}},
		Status: lifecyclev1alpha1.EvictionStatus{
			TargetResponders: []lifecyclev1alpha1.TargetResponder{{Name: drain.Responder,
				State: lifecyclev1alpha1.ResponderStateActive}},
			Responders: []lifecyclev1alpha1.ResponderStatus{{Name: drain.Responder,
				StartTime: &metav1.Time{Time: r.clock.Now()}}},
		},
	}
	require.NoError(t, c.Create(t.Context(), eviction))
	return w
}

func (w *evictionWorld) reconcile() ctrl.Result {
	w.t.Helper()
	result, err := w.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: key})
	require.NoError(w.t, err)
	return result
}

func (w *evictionWorld) step(d time.Duration) { w.clock.(*testingclock.FakeClock).Step(d) }

// said is our entry in the Eviction.
func (w *evictionWorld) said() lifecyclev1alpha1.ResponderStatus {
	w.t.Helper()
	eviction := &lifecyclev1alpha1.Eviction{}
	require.NoError(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Namespace: key.Namespace, Name: "e"}, eviction))
	return eviction.Status.Responders[0]
}

// requireAskers checks who asks for the Pod's deletion, and that no other record of us is left.
func (w *evictionWorld) requireAskers(want ...string) {
	w.t.Helper()
	v := podops.Read(podNow(w.t, w.api))
	require.Equal(w.t, want, podops.Askers(v, appsv1alpha1.ToDeleteLabel))
	require.Equal(w.t, len(want) > 0, drain.IsRequested(v))
}

// change changes the Pod as others do.
func (w *evictionWorld) change(change func(*corev1.Pod)) {
	w.t.Helper()
	pod := podNow(w.t, w.api)
	change(pod)
	require.NoError(w.t, w.api.Update(w.t.Context(), pod))
}

func (w *evictionWorld) deleteEviction() {
	w.t.Helper()
	require.NoError(w.t, w.api.Delete(w.t.Context(), &lifecyclev1alpha1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "e"}}))
}

func TestAnEvictionIsAnswered(t *testing.T) {
	w := newEvictionWorld(t, interceptor.Funcs{})
	require.Equal(t, evictionLook, w.reconcile().RequeueAfter)
	w.requireAskers(podops.AskerEvictionRequest)
	require.Contains(t, *w.said().Message, "taken out of service, then deleted")

	w.deleteEviction()
	require.Zero(t, w.reconcile())
	w.requireAskers()
}

// TestAnEvictionThatTheCacheDoesNotKnow: after a change of leader, the mark of the one before stays until the API
// server itself says that it is nobody's turn.
func TestAnEvictionThatTheCacheDoesNotKnow(t *testing.T) {
	w := newEvictionWorld(t, interceptor.Funcs{})
	w.reconcile()
	w.client = interceptor.NewClient(w.api.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*lifecyclev1alpha1.EvictionList); ok {
				return nil
			}
			return c.List(ctx, list, opts...)
		}})
	require.Equal(t, evictionLook, w.reconcile().RequeueAfter)
	w.requireAskers(podops.AskerEvictionRequest)

	w.deleteEviction()
	w.reconcile()
	w.requireAskers()
}

// TestAnEvictionThatTheCacheStillKnows: a turn that has ended is not answered, though the cache has it.
func TestAnEvictionThatTheCacheStillKnows(t *testing.T) {
	w := newEvictionWorld(t, interceptor.Funcs{})
	w.reconcile()
	stale := &lifecyclev1alpha1.EvictionList{}
	require.NoError(t, w.api.List(t.Context(), stale))
	w.client = interceptor.NewClient(w.api.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if l, ok := list.(*lifecyclev1alpha1.EvictionList); ok {
				*l = *stale
				return nil
			}
			return c.List(ctx, list, opts...)
		}})
	w.deleteEviction()
	w.reconcile()
	w.requireAskers()
}

// held has the Pod's deletion wait for its rules.
func held(p *corev1.Pod) {
	p.Labels[podops.OperatingPrefix+"/"+podops.DeletionID] = "1"
	p.Labels[podops.OperationTypePrefix+"/"+podops.DeletionID] = podops.TypeDelete
	p.Labels[podops.PreCheckPrefix+"/"+podops.DeletionID] = "1"
}

func TestPatienceGivesTheTurnAway(t *testing.T) {
	w := newEvictionWorld(t, interceptor.Funcs{})
	w.patience = 10 * time.Minute
	w.reconcile()
	w.change(held)
	w.step(9 * time.Minute)
	w.reconcile()
	require.Nil(t, w.said().CompletionTime)
	w.requireAskers(podops.AskerEvictionRequest)

	w.step(time.Minute)
	w.reconcile()
	require.NotNil(t, w.said().CompletionTime)
	require.Contains(t, *w.said().Message, "given up after 10m0s")
	w.requireAskers()
}

// TestAPodThatIsNoLongerManaged: the next responder gets the turn, and nothing of us stays on the Pod.
func TestAPodThatIsNoLongerManaged(t *testing.T) {
	w := newEvictionWorld(t, interceptor.Funcs{})
	w.reconcile()
	w.change(func(p *corev1.Pod) { delete(p.Labels, appsv1alpha1.ControlLabel) })
	w.reconcile()
	require.NotNil(t, w.said().CompletionTime)
	require.Contains(t, *w.said().Message, "is not managed")
	w.requireAskers()
}

// TestAFreezeIsTold: the Pod stays marked and waits.
func TestAFreezeIsTold(t *testing.T) {
	w := newEvictionWorld(t, interceptor.Funcs{})
	namespace := &corev1.Namespace{}
	require.NoError(t, w.api.Get(t.Context(), client.ObjectKey{Name: key.Namespace}, namespace))
	namespace.Annotations = map[string]string{podops.FreezeAnnotation: "audit"}
	require.NoError(t, w.api.Update(t.Context(), namespace))
	w.reconcile()
	w.change(held)
	w.step(time.Minute)
	w.reconcile()
	require.Contains(t, *w.said().Message, "frozen")
	w.requireAskers(podops.AskerEvictionRequest)
}

func TestAMarkThatIsRefusedGivesTheTurnAway(t *testing.T) {
	w := newEvictionWorld(t, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, obj client.Object,
		patch client.Patch, opts ...client.PatchOption) error {
		if _, ok := obj.(*corev1.Pod); ok {
			return errPolicy
		}
		return c.Patch(ctx, obj, patch, opts...)
	}})
	w.reconcile()
	require.NotNil(t, w.said().CompletionTime)
	require.Contains(t, *w.said().Message, "refuses to mark the Pod")
	w.requireAskers()
}

func TestAPodThatHasChangedIsMarkedSoon(t *testing.T) {
	conflicts := 1
	w := newEvictionWorld(t, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, obj client.Object,
		patch client.Patch, opts ...client.PatchOption) error {
		if _, ok := obj.(*corev1.Pod); ok && conflicts > 0 {
			conflicts--
			return apierrors.NewConflict(podResource, key.Name, errors.New("changed"))
		}
		return c.Patch(ctx, obj, patch, opts...)
	}})
	require.Equal(t, evictionRetry, w.reconcile().RequeueAfter)
	require.Nil(t, w.said().HeartbeatTime, "it has not begun")
	w.reconcile()
	w.requireAskers(podops.AskerEvictionRequest)
}

// TestATurnThatEndsMeanwhileIsNotAnswered: the API server would refuse the answer, and the mark is taken back soon.
func TestATurnThatEndsMeanwhileIsNotAnswered(t *testing.T) {
	w := newEvictionWorld(t, interceptor.Funcs{})
	w.live = interceptor.NewClient(w.api.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object,
			opts ...client.GetOption) error {
			if err := c.Get(ctx, key, obj, opts...); err != nil {
				return err
			}
			if read, ok := obj.(*lifecyclev1alpha1.Eviction); ok {
				ended := read.DeepCopy()
				ended.Status.TargetResponders[0].State = lifecyclev1alpha1.ResponderStateCanceled
				return c.Update(ctx, ended)
			}
			return nil
		}})
	require.Equal(t, evictionRetry, w.reconcile().RequeueAfter)
	require.Nil(t, w.said().HeartbeatTime)
	w.reconcile()
	w.requireAskers()
}

// TestAnAnswerThatIsRefusedIsNotInsistedOn: a clock is wrong.
func TestAnAnswerThatIsRefusedIsNotInsistedOn(t *testing.T) {
	w := newEvictionWorld(t, interceptor.Funcs{})
	w.client = interceptor.NewClient(w.api.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, obj client.Object, _ client.Patch,
			_ ...client.SubResourcePatchOption) error {
			return apierrors.NewInvalid(lifecyclev1alpha1.SchemeGroupVersion.WithKind("Eviction").GroupKind(), obj.GetName(),
				nil)
		}})
	require.Equal(t, evictionLook, w.reconcile().RequeueAfter)
}

// TestOneOfTwoEvictionsEnds: the Pod stays marked for the other.
func TestOneOfTwoEvictionsEnds(t *testing.T) {
	w := newEvictionWorld(t, interceptor.Funcs{})
	first := &lifecyclev1alpha1.Eviction{}
	require.NoError(t, w.api.Get(t.Context(), client.ObjectKey{Namespace: key.Namespace, Name: "e"}, first))
	other := first.DeepCopy()
	other.Name, other.UID, other.ResourceVersion = "f", "f", ""
	require.NoError(t, w.api.Create(t.Context(), other))
	w.reconcile()
	w.deleteEviction()
	w.reconcile()
	w.requireAskers(podops.AskerEvictionRequest)
	require.NoError(t, w.api.Get(t.Context(), client.ObjectKeyFromObject(other), other))
	other.Status.TargetResponders[0].State = lifecyclev1alpha1.ResponderStateCanceled
	require.NoError(t, w.api.Update(t.Context(), other))
	w.reconcile()
	w.requireAskers()
}
