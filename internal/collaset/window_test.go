package collaset

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/testkit/gathered"
)

// inFlight is how many Pods are being updated at a time.
var inFlight = setplan.DefaultLimits().InFlight

// flowing is a set of 8 Pods more than that: as many as may be are being updated, and the last decision has the others
// as next.
func flowing(t *testing.T, changes ...func(*world)) *world {
	t.Helper()
	w := newWorld(t, true, collaSet(int32(inFlight)+8))
	w.settle()
	w.change(image("nginx:2"))
	for _, change := range changes {
		change(w)
	}
	w.look()
	w.see()
	w.look() // names those that it sees under way
	require.Len(t, w.begun(), inFlight)
	w.forget()
	return w
}

// begun are the Pods on which an update is under way, by name.
func (w *world) begun() map[string]corev1.Pod {
	w.Helper()
	under := map[string]corev1.Pod{}
	for _, pod := range w.pods() {
		if podops.IsDuring(podops.Read(&pod), setplan.OperatorID, podops.TypeUpdate) {
			under[pod.Name] = pod
		}
	}
	return under
}

// one is one of them.
func (w *world) one() corev1.Pod {
	w.Helper()
	for _, pod := range w.pods() {
		if podops.IsDuring(podops.Read(&pod), setplan.OperatorID, podops.TypeUpdate) {
			return pod
		}
	}
	w.Fatal("no update is under way")
	return corev1.Pod{}
}

// over is the Pod when our operation on it is over.
func over(pod corev1.Pod) *corev1.Pod {
	in := pod.DeepCopy()
	delete(in.Labels, podops.OperatingPrefix+"/"+setplan.OperatorID)
	delete(in.Labels, podops.OperationTypePrefix+"/"+setplan.OperatorID)
	return in
}

// outOfService is the Pod when our operation has just been finished.
func outOfService(pod corev1.Pod) *corev1.Pod {
	out := over(pod)
	delete(out.Labels, podops.ServiceAvailableLabel)
	out.Labels[podops.OperatePrefix+"/"+setplan.OperatorID] = "1"
	return out
}

// queue is one for requests, until the test ends.
func (w *world) queue() workqueue.TypedRateLimitingInterface[reconcile.Request] {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	w.Cleanup(queue.ShutDown)
	return queue
}

// back shows the events of a Pod that goes out of service by our operation and comes back, and makes the steps that
// they ask for.
func (w *world) back(pod corev1.Pod) []reconcile.Request {
	w.Helper()
	queue := w.queue()
	in := over(pod)
	out := outOfService(pod)
	require.True(w, setplan.Back(podops.Read(out), podops.Read(in)))
	require.NoError(w, w.r.window.pods.Start(w.Context(), queue))
	events := w.listener().stepEvents()
	for _, e := range [][2]*corev1.Pod{{&pod, out}, {out, in}, {in, in}} {
		events.Update(context.Background(), event.UpdateEvent{ObjectOld: e[0], ObjectNew: e[1]}, queue)
	}
	var asked []reconcile.Request
	for range queue.Len() {
		request, _ := queue.Get()
		asked = append(asked, request)
		queue.Done(request)
	}
	return asked
}

// follow makes the steps that were asked for.
func (w *world) follow(asked []reconcile.Request) {
	w.Helper()
	for _, request := range asked {
		_, err := w.steps().Reconcile(w.Context(), request)
		require.NoError(w, err)
	}
}

func TestAPodThatComesBackLetsTheNextBegin(t *testing.T) {
	w := flowing(t)
	asked := w.back(w.one())
	require.Len(t, asked, 1)
	w.follow(asked)
	require.Equal(t, []string{"patch Pod"}, w.written)
	require.Contains(t, w.begun(), asked[0].Name)
	w.follow(asked)
	require.Len(t, w.written, 1, "once")

	w.forget()
	w.look()
	require.Empty(t, w.written, "a decision on a cache that lacks the begin knows of it: it counts, and is not made again")

	w.see()
	w.look()
	for _, pod := range w.begun() {
		w.follow(w.back(pod))
	}
	require.Len(t, w.begun(), inFlight+8, "there is nobody else")
}

// TestAPartitionHoldsWhateverTheCacheShows: what was begun and is not seen yet is not made up for with others.
func TestAPartitionHoldsWhateverTheCacheShows(t *testing.T) {
	w := flowing(t, func(w *world) { w.change(partition(7)) })
	w.follow(w.back(w.one()))
	require.Len(t, w.begun(), inFlight+1)
	// Another Pod comes first in the order of updates now: it does not serve.
	for _, pod := range w.pods() {
		if _, under := w.begun()[pod.Name]; !under {
			delete(pod.Labels, podops.ServiceAvailableLabel)
			require.NoError(t, w.store.Update(t.Context(), &pod))
			w.seeAllBut(func(o client.Object) bool { _, under := w.begun()[o.GetName()]; return under })
			break
		}
	}
	w.look()
	require.Len(t, w.begun(), inFlight+1)
}

func TestNobodyIsBegunAnyMore(t *testing.T) {
	for name, change := range map[string]func(*world, reconcile.Request){
		"the spec changed": func(w *world, _ reconcile.Request) { w.change(image("nginx:3")) },
		"a decision began": func(w *world, _ reconcile.Request) {
			w.r.window.tell(func(window *setplan.Window, now time.Time) setplan.Answer { return window.Hold(key, now) })
		},
		"the next order":    func(w *world, _ reconcile.Request) { w.look() },
		"started anew":      func(w *world, _ reconcile.Request) { w.r.memory = &stateCache{} },
		"the Pod is gone":   func(w *world, r reconcile.Request) { w.remove(r) },
		"it is not as then": func(w *world, r reconcile.Request) { w.unfit(r) },
	} {
		t.Run(name, func(t *testing.T) {
			w := flowing(t)
			asked := w.back(w.one())
			require.Len(t, asked, 1)
			change(w, asked[0])
			w.forget()
			w.follow(asked)
			require.Empty(t, w.written)
		})
	}
}

func (w *world) remove(r reconcile.Request) {
	w.Helper()
	pod := &corev1.Pod{}
	require.NoError(w, w.store.Get(w.Context(), r.NamespacedName, pod))
	require.NoError(w, w.store.Delete(w.Context(), pod))
	w.see()
}

func (w *world) unfit(r reconcile.Request) {
	w.Helper()
	pod := &corev1.Pod{}
	require.NoError(w, w.store.Get(w.Context(), r.NamespacedName, pod))
	delete(pod.Labels, podops.ServiceAvailableLabel)
	require.NoError(w, w.store.Update(w.Context(), pod))
	w.see()
}

func TestABeginThatFailedIsMadeByTheNextDecision(t *testing.T) {
	for name, answer := range map[string]error{"away": errAway, "conflict": errConflict} {
		t.Run(name, func(t *testing.T) {
			w := flowing(t)
			asked := w.back(w.one())
			w.refuse = refusing("patch Pod", answer)
			_, err := w.steps().Reconcile(t.Context(), ctrl.Request{NamespacedName: asked[0].NamespacedName})
			if name == "away" {
				require.ErrorIs(t, err, errAway)
			} else {
				require.NoError(t, err)
			}
			w.forget()
			w.clock.Step(4 * time.Second) // those under way take long
			w.look()
			require.Contains(t, w.begun(), asked[0].Name)
		})
	}
}

// TestABeginThatFailedIsTriedAgain: its CollaSet may have no other Pod under way, and so no event.
func TestABeginThatFailedIsTriedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		answer, err error
		again       []time.Duration // at least, after each of two refusals
	}{"away": {answer: errAway, err: errAway, again: []time.Duration{0, 0}},
		"conflict": {answer: errConflict, again: []time.Duration{20 * time.Millisecond, 40 * time.Millisecond}}} {
		t.Run(name, func(t *testing.T) {
			w := flowing(t)
			asked := w.back(w.one())
			w.refuse = refusing("patch Pod", c.answer)
			steps := w.steps()
			for _, least := range c.again {
				result, err := steps.Reconcile(t.Context(), asked[0])
				require.ErrorIs(t, err, c.err)
				require.GreaterOrEqual(t, result.RequeueAfter, least)
				require.LessOrEqual(t, result.RequeueAfter, 5*least/2)
			}
			w.refuse = nil
			w.follow(asked)
			require.Contains(t, w.begun(), asked[0].Name)
		})
	}
}

// TestAnothersPlace has a CollaSet wait for one of another, with nothing of its own under way.
func TestAnothersPlace(t *testing.T) {
	w := newWorld(t, true, collaSet(3))
	w.settle()
	other := types.NamespacedName{Namespace: "other", Name: "large"}
	under := map[types.UID]bool{}
	for i := range w.r.window.limits.InFlight {
		under[types.UID(fmt.Sprint(i))] = true
	}
	w.r.window.planned(other, setplan.WindowPlan{UnderWay: under})
	w.change(image("nginx:2"))
	w.look()
	require.Empty(t, w.begun())
	require.Equal(t, setplan.BlockInFlight, w.set().Status.Blockers[0].Reason)
	queue := w.queue()
	require.NoError(t, w.r.window.pods.Start(t.Context(), queue))
	require.Zero(t, queue.Len())
	taken := fmt.Sprint("kuperator_collaset_in_flight_pods{} ", inFlight)
	require.Equal(t, []string{taken, "kuperator_collaset_waiting_sets{} 1"},
		gathered.Lines(t, w.r.window))
	w.clock.Step(w.r.window.limits.OursFor)
	w.follow([]reconcile.Request{lookAtWindow})
	require.Equal(t, 3, queue.Len(), "the places have run out")
	for range 3 {
		request, _ := queue.Get()
		w.follow([]reconcile.Request{request})
	}
	require.Len(t, w.begun(), 3)
}

// TestAPodThatIsHandedOver waits for others, here for its kubelet to take it out of service, and its place is free
// soon.
func TestAPodThatIsHandedOver(t *testing.T) {
	w := flowing(t)
	pod := w.one()
	now := pod.DeepCopy()
	request := now.Labels[podops.OperatingPrefix+"/"+setplan.OperatorID]
	metav1.SetMetaDataLabel(&now.ObjectMeta, podops.PermissionPrefix+"/"+podops.TypeUpdate, request)
	for _, prefix := range []string{podops.PreCheckedPrefix, podops.PreparingPrefix} {
		metav1.SetMetaDataLabel(&now.ObjectMeta, prefix+"/"+setplan.OperatorID, request)
	}
	queue := w.queue()
	require.NoError(t, w.r.window.pods.Start(t.Context(), queue))
	w.listener().stepEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: &pod, ObjectNew: now}, queue)
	require.Zero(t, queue.Len())
	w.clock.Step(w.r.window.limits.HandoverFor)
	w.follow([]reconcile.Request{lookAtWindow})
	require.Equal(t, 1, queue.Len())
}

func TestALargeCollaSetWritesItsCountsLessOften(t *testing.T) {
	require.Equal(t, statusPause, statusPauseOf(3))
	require.Equal(t, 300*time.Millisecond, statusPauseOf(300))
	require.Equal(t, statusPauseMost, statusPauseOf(5000))
}

// TestABeginThatFailsBehindADecision: the decision took the Pod for begun. Nothing else happens to the set any more.
func TestABeginThatFailsBehindADecision(t *testing.T) {
	w := flowing(t, func(w *world) { w.change(partition(7)) })
	m := w.r.memory.Find(key, w.set().UID)
	asked := w.back(w.one())
	pod := corev1.Pod{}
	require.NoError(t, w.store.Get(t.Context(), asked[0].NamespacedName, &pod))
	p := podOf(&pod, m.rollout.Load().selector)
	begin, err := podops.Begin(p.View, podops.Request{ID: setplan.OperatorID, Type: podops.TypeUpdate}, w.clock.Now())
	require.NoError(t, err)
	begun := begin.Apply(p.View)
	decisions := w.decisions()
	err = w.r.window.once(&observation{set: w.set(), memory: m}, &p, &begun, func() error {
		w.clock.Step(4 * time.Second) // those under way take long
		_, err = w.reconcile()
		require.NoError(t, err)
		require.Len(t, w.begun(), inFlight, "the partition lets no more than one more go")
		return errAway
	})
	require.ErrorIs(t, err, errAway)
	require.Equal(t, key, decisions())
	w.see()
	w.look()
	require.Contains(t, w.begun(), asked[0].Name)
}

func TestEventsThatMakeNoRoom(t *testing.T) {
	w := flowing(t)
	under := w.one()
	in, out := over(under), outOfService(under)
	in.UID = "another"
	events, queue := w.listener().stepEvents(), w.queue()
	require.NoError(t, w.r.window.pods.Start(t.Context(), queue))
	for name, e := range map[string][2]*corev1.Pod{"another Pod of that name": {out, in},
		"still in service": {&under, &under}, "still out of service": {out, out}} {
		events.Update(t.Context(), event.UpdateEvent{ObjectOld: e[0], ObjectNew: e[1]}, queue)
		require.Zero(t, queue.Len(), name)
	}
	under.OwnerReferences = nil
	require.Empty(t, w.back(under), "nobody's Pod")
}
