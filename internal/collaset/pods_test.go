package collaset

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
)

// permitted is a set of one Pod whose update was begun and is permitted, which the last decision did not see yet.
func permitted(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, true, collaSet(1))
	w.settle()
	w.change(image("nginx:2"))
	w.look()
	w.advance()
	w.see()
	w.forget()
	return w
}

// advance is what lifecycle-controller and kubelet do to Pods, with every permission.
func (w *world) advance() {
	w.Helper()
	for range 4 {
		for _, pod := range w.pods() {
			verdicts := podops.Verdicts{}
			for _, o := range podops.Operations(podops.Read(&pod)) {
				verdicts[podops.Ask{ID: o.ID, Stage: appsv1alpha1.StagePreCheck}] = true
				verdicts[podops.Ask{ID: o.ID, Stage: appsv1alpha1.StagePostCheck}] = true
			}
			step := podops.Advance(podops.Read(&pod), verdicts, w.clock.Now())
			pod.Labels = step.Apply(podops.Read(&pod)).Labels
			if step.IsZero() {
				continue
			}
			require.NoError(w, w.store.Update(w.Context(), &pod))
			for i := range pod.Status.Conditions {
				if c := &pod.Status.Conditions[i]; step.ServiceReady != "" &&
					(c.Type == corev1.PodReady || c.Type == podops.ServiceReadyCondition) {
					c.Status = step.ServiceReady
				}
			}
			require.NoError(w, w.store.Status().Update(w.Context(), &pod))
		}
	}
}

// step makes the step of the first Pod on the cache as it is.
func (w *world) step() {
	w.Helper()
	_, err := w.steps().Reconcile(w.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&w.pods()[0])})
	require.NoError(w, err)
}

func (w *world) image() string { return w.pods()[0].Spec.Containers[0].Image }

func TestAPodIsMovedOnWithoutADecisionAboutItsSet(t *testing.T) {
	w := permitted(t)
	w.step()
	require.Equal(t, "nginx:2", w.image())
	require.Equal(t, []string{"patch Pod"}, w.written)

	w.step()
	w.look()
	require.Equal(t, 1, w.count("patch Pod"),
		"on a cache that lacks the change it is not tried again, by a decision neither")

	w.see()
	w.kubelet(func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", Image: "nginx:2", ImageID: "2",
			ContainerID: "c2", RestartCount: 1, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	})
	w.forget()
	w.step()
	w.look()
	require.Zero(t, w.count("patch Pod"), "lifecycle-controller finishes it")

	w.clock.Step(4 * time.Second)
	w.look()
	require.Zero(t, w.count("patch Pod"))
	w.clock.Step(time.Second)
	w.look()
	require.Equal(t, 1, w.count("patch Pod"))
	require.False(t, podops.IsDuring(podops.Read(&w.pods()[0]), setplan.OperatorID, podops.TypeUpdate),
		"it is finished: that lifecycle-controller does not")
}

func TestAnOrderEndsWithWhatItWasGivenFor(t *testing.T) {
	for name, change := range map[string]func(*world){
		"the spec changed": func(w *world) { w.change(image("nginx:3")) },
		"the rollout halted": func(w *world) {
			w.edit(func(s *appsv1alpha1.CollaSet) { s.Status.Halted = &appsv1alpha1.HaltedRollout{Revision: "x"} })
		},
		"a decision had no such order": func(w *world) {
			w.r.memory.Find(key, w.set().UID).follow(&observation{set: w.set(), selector: labels.Everything()}, &setplan.Plan{})
		},
		"the program started anew": func(w *world) { w.r.memory = &stateCache{} },
	} {
		t.Run(name, func(t *testing.T) {
			w := permitted(t)
			change(w)
			w.forget()
			w.step()
			require.Empty(t, w.written)
		})
	}
}

// edit changes the CollaSet's status, and shows it.
func (w *world) edit(change func(*appsv1alpha1.CollaSet)) {
	w.Helper()
	set := w.set()
	change(set)
	require.NoError(w, w.store.Status().Update(w.Context(), set))
	w.see()
}

func TestAStepThatFailedIsMadeAgain(t *testing.T) {
	w := permitted(t)
	w.refuse = refusing("patch Pod", errAway)
	_, err := w.steps().Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&w.pods()[0])})
	require.ErrorIs(t, err, errAway)
	w.forget()
	w.look()
	require.Equal(t, 1, w.count("patch Pod"), "by a decision")
	require.Equal(t, "nginx:2", w.image())

	w = permitted(t)
	w.refuse = refusing("patch Pod", errConflict)
	w.step()
	w.forget()
	w.step()
	require.Equal(t, "nginx:2", w.image(), "by itself")
}

// TestAStepThatFailsBesideADecision: the decision left the step to the worker that was making it, whose write then met
// a conflict although the Pod had not changed (as an admission plugin answers, or a store that gives up). Nothing else
// happens to the set any more.
func TestAStepThatFailsBesideADecision(t *testing.T) {
	w := permitted(t)
	decisions := w.decisions()
	m := w.r.memory.Find(key, w.set().UID)
	p := podOf(&w.pods()[0], m.rollout.Load().selector)
	o := &observation{set: w.set(), memory: m}
	require.ErrorIs(t, w.r.window.once(o, &p, nil, func() error {
		w.clock.Step(statusPause)
		w.look()
		w.see() // status
		_, err := w.reconcile()
		require.NoError(t, err)
		require.Zero(t, w.count("patch Pod"))
		return errConflict
	}), errConflict)
	require.Equal(t, key, decisions(), "no event tells that it failed")
	w.look()
	require.Equal(t, "nginx:2", w.image())
}

// decisions is the queue of decisions from now on; what it returns waits for the next one.
func (w *world) decisions() func() client.ObjectKey {
	w.Helper()
	queue := w.queue()
	require.NoError(w, w.r.window.decisions.Start(w.Context(), queue))
	return func() client.ObjectKey {
		request, _ := queue.Get()
		queue.Done(request)
		return request.NamespacedName
	}
}

// TestDecisionsAboutASetKeepALeastInterval for changes of its Pods, and a longer one while it is known who begins next.
func TestDecisionsAboutASetKeepALeastInterval(t *testing.T) {
	w := newWorld(t, true, collaSet(34))
	require.Zero(t, w.r.window.untilDecision(key, nil), "nothing was decided yet")
	w.settle()
	m := w.r.memory.Find(key, w.set().UID)
	require.Zero(t, w.r.window.untilDecision(key, m), "long ago")
	w.change(image("nginx:2"))
	w.look()
	require.Equal(t, w.r.window.limits.RolloutInterval, w.r.window.untilDecision(key, m))
	w.clock.Step(300 * time.Millisecond)
	require.Equal(t, w.r.window.limits.RolloutInterval-300*time.Millisecond, w.r.window.untilDecision(key, m))
	w.change(func(s *appsv1alpha1.CollaSetSpec) { s.Paused = true })
	w.look()
	require.Equal(t, w.r.window.limits.Interval, w.r.window.untilDecision(key, m))
}

// BenchmarkPodEvent is what one event of a Pod costs collaset-controller before it writes, in a set of so many Pods.
func BenchmarkPodEvent(b *testing.B) {
	s := atGoal(b, 5000)
	s.updateHalf()
	m := s.r.memory.Find(key, s.set.UID)
	order := m.rollout.Load()
	require.NotEmpty(b, order.From)
	var pod *corev1.Pod
	for i := range s.pods {
		if order.From[s.pods[i].UID] != "" {
			pod = s.pods[i].DeepCopy()
		}
	}
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = order.From[pod.UID]
	b.ReportAllocs()
	for b.Loop() {
		p := podOf(pod, m.rollout.Load().selector)
		order.NextStep(&p)
	}
	each := b.Elapsed() / time.Duration(b.N)
	_, err := benchresult.ForTest(b, filepath.Join("..", "..")).Add(benchresult.Figure{
		Goal: "P14", Name: "step of one Pod after its event, among 5,000", Params: map[string]float64{"pods": 5_000},
		Values: []float64{float64(each.Nanoseconds()) / 1e3},
		Note:   "without the write; what else is to be decided is decided for several events at once",
	})
	require.NoError(b, err)
}
