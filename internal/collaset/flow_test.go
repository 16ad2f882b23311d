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

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/core"
	"kusionstack.io/kuperator/internal/testkit/gathered"
)

// flowing is a set of 34 Pods; 26 of them are being updated, and the last decision says who is next.
func flowing(t *testing.T, changes ...func(*world)) *world {
	t.Helper()
	w := newWorld(t, true, collaSet(34))
	w.settle()
	w.change(image("nginx:2"))
	for _, change := range changes {
		change(w)
	}
	w.look()
	w.see()
	w.look() // names those that it sees under way
	require.Len(t, w.begun(), 26)
	w.forget()
	return w
}

// begun are the Pods on which an update is under way, by name.
func (w *world) begun() map[string]corev1.Pod {
	w.Helper()
	under := map[string]corev1.Pod{}
	for _, pod := range w.pods() {
		if podops.IsDuring(podops.Read(&pod), core.OperatorID, podops.TypeUpdate) {
			under[pod.Name] = pod
		}
	}
	return under
}

// one is one of them.
func (w *world) one() corev1.Pod {
	w.Helper()
	for _, pod := range w.pods() {
		if podops.IsDuring(podops.Read(&pod), core.OperatorID, podops.TypeUpdate) {
			return pod
		}
	}
	w.Fatal("no update is under way")
	return corev1.Pod{}
}

// over is the Pod when our operation on it is over.
func over(pod corev1.Pod) *corev1.Pod {
	in := pod.DeepCopy()
	delete(in.Labels, podops.OperatingPrefix+"/"+core.OperatorID)
	delete(in.Labels, podops.OperationTypePrefix+"/"+core.OperatorID)
	return in
}

// outOfService is the Pod when our operation has just been finished.
func outOfService(pod corev1.Pod) *corev1.Pod {
	out := over(pod)
	delete(out.Labels, podops.ServiceAvailableLabel)
	out.Labels[podops.OperatePrefix+"/"+core.OperatorID] = "1"
	return out
}

// queue is one for requests, until the test ends.
func (w *world) queue() workqueue.TypedRateLimitingInterface[reconcile.Request] {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	w.Cleanup(queue.ShutDown)
	return queue
}

// back shows the events of a Pod that goes out of service by our operation and comes back, and makes the steps that they ask for.
func (w *world) back(pod corev1.Pod) []reconcile.Request {
	w.Helper()
	queue := w.queue()
	in := over(pod)
	out := outOfService(pod)
	require.True(w, core.Back(podops.Read(out), podops.Read(in)))
	require.NoError(w, w.r.begins(w.Context(), queue))
	events := w.r.stepEvents()
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
		_, err := steps{w.r}.Reconcile(w.Context(), request)
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
	require.NotContains(t, w.nextNames(), asked[0].Name)

	w.see()
	w.look()
	require.Empty(t, w.r.memory.find(key, w.set().UID).flow.begun, "it is seen")
	for range 10 {
		w.follow(w.back(w.one()))
	}
	require.Len(t, w.begun(), 34, "there is nobody else")
}

func (w *world) nextNames() (names []string) {
	for _, next := range w.r.memory.find(key, w.set().UID).flow.next {
		names = append(names, next.Name)
	}
	return names
}

// TestAPartitionHoldsWhateverTheCacheShows: what was begun and is not seen yet is not made up for with others.
func TestAPartitionHoldsWhateverTheCacheShows(t *testing.T) {
	w := flowing(t, func(w *world) { w.change(partition(7)) })
	w.follow(w.back(w.one()))
	require.Len(t, w.begun(), 27)
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
	require.Len(t, w.begun(), 27)
}

func TestNobodyIsBegunAnyMore(t *testing.T) {
	for name, change := range map[string]func(*world, reconcile.Request){
		"the spec changed":  func(w *world, _ reconcile.Request) { w.change(image("nginx:3")) },
		"a decision began":  func(w *world, _ reconcile.Request) { w.r.memory.find(key, w.set().UID).flow.hold() },
		"the next order":    func(w *world, _ reconcile.Request) { w.look() },
		"started anew":      func(w *world, _ reconcile.Request) { w.r.memory = newMemory() },
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
			_, err := steps{w.r}.Reconcile(t.Context(), ctrl.Request{NamespacedName: asked[0].NamespacedName})
			if name == "away" {
				require.ErrorIs(t, err, errAway)
			} else {
				require.NoError(t, err)
			}
			require.Empty(t, w.r.memory.find(key, w.set().UID).flow.begun)
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
	}{"away": {answer: errAway, err: errAway, again: []time.Duration{0, 0}}, "conflict": {answer: errConflict, again: []time.Duration{20 * time.Millisecond, 40 * time.Millisecond}}} {
		t.Run(name, func(t *testing.T) {
			w := flowing(t)
			asked := w.back(w.one())
			places := len(w.r.pace.places)
			w.refuse = refusing("patch Pod", c.answer)
			for _, least := range c.again {
				result, err := steps{w.r}.Reconcile(t.Context(), asked[0])
				require.ErrorIs(t, err, c.err)
				require.GreaterOrEqual(t, result.RequeueAfter, least)
				require.LessOrEqual(t, result.RequeueAfter, 5*least/2)
			}
			require.Len(t, w.r.pace.places, places-1, "nobody waits for it")
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
	for i := range 2 * core.MaxFresh {
		w.r.pace.take(other, types.UID(fmt.Sprint(i)))
	}
	w.change(image("nginx:2"))
	w.look()
	require.Empty(t, w.begun())
	require.Len(t, w.nextNames(), 3)
	queue := w.queue()
	require.NoError(t, w.r.begins(t.Context(), queue))
	require.Zero(t, queue.Len())
	require.Equal(t, []string{"kuperator_collaset_in_flight_pods{} 52", "kuperator_collaset_waiting_sets{} 1"}, gathered.Lines(t, w.r.pace))
	w.clock.Step(core.FreshFor)
	w.follow([]reconcile.Request{lookAtPace})
	require.Equal(t, 3, queue.Len(), "the places have run out")
	for range 3 {
		request, _ := queue.Get()
		w.follow([]reconcile.Request{request})
	}
	require.Len(t, w.begun(), 3)
}

// TestAPodThatIsHandedOver waits for others, and its place is free soon.
func TestAPodThatIsHandedOver(t *testing.T) {
	const preparing, operate = podops.PreparingPrefix + "/" + core.OperatorID, podops.OperatePrefix + "/" + core.OperatorID
	with := func(labels ...string) *corev1.Pod {
		pod := &corev1.Pod{}
		for _, label := range labels {
			metav1.SetMetaDataLabel(&pod.ObjectMeta, label, "1")
		}
		return pod
	}
	recorded := with(preparing, operate)
	recorded.Annotations = map[string]string{appsv1alpha1.LastPodStatusAnnotation: "{}"}
	require.True(t, handedOver(with(), with(preparing)), "to cooperators")
	require.True(t, handedOver(with(preparing, operate), recorded), "to its kubelet")
	require.False(t, handedOver(with(preparing), with(preparing)))
	require.False(t, handedOver(with(), with(preparing, operate)), "nobody had to prepare")
	require.False(t, handedOver(recorded, recorded))
	require.False(t, handedOver(recorded, with()))

	w := flowing(t)
	pod := w.one()
	now := pod.DeepCopy()
	metav1.SetMetaDataLabel(&now.ObjectMeta, preparing, "1")
	queue := w.queue()
	w.r.stepEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: &pod, ObjectNew: now}, queue)
	require.Equal(t, w.clock.Now().Add(core.HandedOverFor), w.r.pace.places[pod.UID].until)
}

// TestStatusOfACrowdCanWait: while CollaSets wait for each other, counts are written less often.
func TestStatusOfACrowdCanWait(t *testing.T) {
	w := newWorld(t, true, collaSet(3))
	require.False(t, w.r.pace.crowded())
	for i := range 2 {
		f := &flow{}
		f.give(&core.Standing{Next: []core.NextPod{{Name: "next"}}})
		w.r.pace.decided(types.NamespacedName{Name: fmt.Sprint(i)}, f, 0, nil)
		require.Equal(t, i == 1, w.r.pace.crowded())
	}
	require.Equal(t, statusPauseMost, statusPauseOf(3, true))
	require.Equal(t, statusPause, statusPauseOf(3, false))
	require.Equal(t, 300*time.Millisecond, statusPauseOf(300, false))
}

// TestABeginThatFailsBehindADecision: the decision took the Pod for begun. Nothing else happens to the set any more.
func TestABeginThatFailsBehindADecision(t *testing.T) {
	for name, c := range map[string]struct{ took, again time.Duration }{
		"a short decision": {0, foreseenPause},
		"a long one":       {20 * time.Millisecond, stepsFactor * 20 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			w := flowing(t, func(w *world) { w.change(partition(7)) })
			m := w.r.memory.find(key, w.set().UID)
			asked := w.back(w.one())
			pod := corev1.Pod{}
			require.NoError(t, w.store.Get(t.Context(), asked[0].NamespacedName, &pod))
			p := podOf(&pod, m.standing.Load().selector)
			begin, err := podops.Begin(p.View, podops.Request{ID: core.OperatorID, Type: podops.TypeUpdate}, w.clock.Now())
			require.NoError(t, err)
			var result ctrl.Result
			err = m.flow.send(&p, begin.Apply(p.View), func() error {
				w.clock.Step(4 * time.Second) // those under way take long
				w.took = c.took
				result, err = w.reconcile()
				require.NoError(t, err)
				require.Len(t, w.begun(), 26, "the partition lets no more than 27 go")
				return errAway
			})
			require.ErrorIs(t, err, errAway)
			require.Equal(t, c.again, result.RequeueAfter)
			w.see()
			w.look()
			require.Contains(t, w.begun(), asked[0].Name)
		})
	}
}

func TestEventsThatMakeNoRoom(t *testing.T) {
	w := flowing(t)
	under := w.one()
	in, out := over(under), outOfService(under)
	require.True(t, cameBack(out, in))
	require.False(t, cameBack(in, in))
	require.False(t, cameBack(in, out))
	again := in.DeepCopy()
	again.UID = "other"
	require.False(t, cameBack(out, again), "another Pod of that name")
	others := over(under)
	delete(others.Labels, podops.ServiceAvailableLabel)
	require.False(t, cameBack(others, in), "it was not our operation that kept it out of service")
	under.OwnerReferences = nil
	require.Empty(t, w.back(under), "nobody's Pod")
}
