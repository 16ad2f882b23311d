package collaset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

func TestPercentages(t *testing.T) {
	for _, tc := range []struct {
		value    intstr.IntOrString
		replicas int
		want     int
	}{
		{intstr.FromString("0%"), 10, 0},
		{intstr.FromString("100%"), 10, 10},
		{intstr.FromString("100%"), 0, 0},
		{intstr.FromString("1%"), 3, 1},
		{intstr.FromString("50%"), 5, 3},
		{intstr.FromString("50%"), 1, 1},
		{intstr.FromString("99%"), 100, 99},
		{intstr.FromString("34%"), 3, 2},
		{intstr.FromInt32(7), 3, 7},
		{intstr.FromInt32(0), 3, 0},
	} {
		assert.Equal(t, tc.want, scaled(&tc.value, tc.replicas), "%s of %d", tc.value.String(), tc.replicas)
	}
	assert.Zero(t, scaled(nil, 5))
}

func TestAPercentageFollowsTheReplicas(t *testing.T) {
	w := newWorld(t, false, collaSet(4))
	w.settle()
	half := func(s *appsv1alpha1.CollaSetSpec) {
		s.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByPartition: &appsv1alpha1.ByPartition{Partition: ptr.To(intstr.FromString("50%"))}}
	}
	w.change(both(image("nginx:2"), half))
	for _, step := range []struct{ replicas, wantUpdated int32 }{{4, 2}, {8, 4}, {9, 4}, {2, 1}} {
		w.change(replicas(step.replicas))
		w.carryOut()
		assert.GreaterOrEqual(t, w.set().Status.UpdatedReplicas, step.wantUpdated, "%d replicas", step.replicas)
		if step.replicas != 2 { // scaling in removes by other merits
			assert.Equal(t, step.wantUpdated, w.set().Status.UpdatedReplicas, "%d replicas", step.replicas)
		}
	}
}

// carryOut reconciles, with kubelets that do at once what they are told, until nothing is written.
func (w *world) carryOut() {
	w.Helper()
	for range 60 {
		w.see()
		before := len(w.written)
		_, err := w.reconcile()
		require.NoError(w, err)
		for _, pod := range w.pods() {
			w.restart(&pod)
		}
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

// restart is a kubelet that runs the containers of the Pod's spec.
func (w *world) restart(pod *corev1.Pod) {
	w.Helper()
	statuses := make([]corev1.ContainerStatus, 0, len(pod.Spec.Containers))
	for _, c := range pod.Spec.Containers {
		statuses = append(statuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: "id of " + c.Image, ContainerID: "runs " + c.Image,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		})
	}
	if len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].ContainerID == statuses[0].ContainerID {
		return
	}
	pod.Status.ContainerStatuses = statuses
	require.NoError(w, w.store.Status().Update(w.Context(), pod))
}

func TestAvailableUnderTheLifecycle(t *testing.T) {
	for name, tc := range map[string]struct {
		minReady      int32
		serves, ready bool
		since         time.Duration
		started       time.Duration // 0: long ago
		want          bool
		wantIn        time.Duration
	}{
		"in service is enough": {serves: true, want: true},
		"Ready alone is not":   {ready: true},
		"in service and Ready for long enough": {minReady: 10, serves: true, ready: true,
			since: 10 * time.Second, want: true},
		"in service and Ready, but not for long enough": {minReady: 10, serves: true, ready: true, since: 4 * time.Second,
			wantIn: 6 * time.Second},
		"a container that restarted in place begins anew": {minReady: 10, serves: true, ready: true, since: time.Hour,
			started: 4 * time.Second, wantIn: 6 * time.Second},
		"in service and not Ready is nothing for time":    {minReady: 10, serves: true},
		"Ready for long and not in service is not enough": {minReady: 10, ready: true, since: time.Hour},
		"a clock that is behind the kubelet's waits longer": {minReady: 10, serves: true, ready: true, since: -time.Second,
			wantIn: 11 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			set := collaSet(1)
			set.Spec.MinReadySeconds = tc.minReady
			w := newWorld(t, true, set)
			_, err := w.reconcile()
			require.NoError(t, err)
			pod := w.pods()[0]
			if tc.serves {
				pod.Labels[podops.ServiceAvailableLabel] = "1"
				require.NoError(t, w.store.Update(t.Context(), &pod))
			}
			if tc.ready {
				pod.Status.Conditions = []corev1.PodCondition{{
					Type: corev1.PodReady, Status: corev1.ConditionTrue,
					LastTransitionTime: metav1.NewTime(w.clock.Now().Add(-tc.since)),
				}}
				started := w.clock.Now().Add(-cmp.Or(tc.started, 2*time.Hour))
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{
					Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(started)},
				}}}
				require.NoError(t, w.store.Status().Update(t.Context(), &pod))
			}
			w.see()
			result, err := w.reconcile()
			require.NoError(t, err)
			if tc.wantIn == 0 {
				assert.LessOrEqual(t, result.RequeueAfter, statusPause)
			}
			o, err := w.r.observe(t.Context(), w.set())
			require.NoError(t, err)
			assert.Equal(t, tc.want, o.snapshot.Pods[0].Available)
			assert.Equal(t, tc.wantIn, o.snapshot.Pods[0].AvailableIn)
		})
	}
}

// crashing is a set of three Pods without the lifecycle whose second image never runs, past its deadline.
func crashing(t *testing.T, policy appsv1alpha1.RolloutFailurePolicy) (w *world, first, second string) {
	t.Helper()
	set := collaSet(3)
	set.Spec.ProgressDeadlineSeconds = ptr.To[int32](60)
	set.Spec.UpdateStrategy.RollingUpdate = nil
	set.Spec.UpdateStrategy.FailurePolicy = policy
	set.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateRecreate
	w = newWorld(t, false, set)
	w.carryOut()
	first = w.set().Status.UpdatedRevision
	w.change(image("nginx:crash"))
	for range 6 {
		w.see()
		_, err := w.reconcile()
		require.NoError(t, err)
		w.clock.Step(time.Second)
	}
	second = w.set().Status.UpdatedRevision
	require.NotEqual(t, first, second)
	require.Equal(t, 1, w.at(second))
	w.see()
	result, err := w.reconcile()
	require.NoError(t, err)
	require.Positive(t, result.RequeueAfter, "no event tells of the deadline")
	require.LessOrEqual(t, result.RequeueAfter, 60*time.Second)
	w.clock.Step(result.RequeueAfter)
	w.see()
	return w, first, second
}

// at counts Pods of a revision.
func (w *world) at(revision string) int {
	n := 0
	for _, pod := range w.pods() {
		if pod.Labels[appsv1.ControllerRevisionHashLabelKey] == revision {
			n++
		}
	}
	return n
}

// told empties the recorder and gives what it had.
func (w *world) told() []string {
	var out []string
	for {
		select {
		case e := <-w.r.events.(*events.FakeRecorder).Events:
			out = append(out, e)
		default:
			return out
		}
	}
}

func TestRollback(t *testing.T) {
	w, first, second := crashing(t, appsv1alpha1.RolloutFailureRollback)
	w.told()
	result, err := w.reconcile()
	require.NoError(t, err)
	status := w.set().Status
	require.NotNil(t, status.Halted)
	assert.Equal(t, second, status.Halted.Revision)
	assert.Equal(t, first, status.Halted.RollbackTo)
	assert.Equal(t, string(appsv1alpha1.ReasonRolledBack), w.condition(appsv1alpha1.CollaSetStalled).Reason)
	assert.Contains(t, w.condition(appsv1alpha1.CollaSetStalled).Message, "change spec.template")
	assert.Equal(t, time.Millisecond, result.RequeueAfter, "status wakes nobody up")
	assert.Equal(t, 1, w.at(second), "what is stored decides")
	assert.Len(t, slices.DeleteFunc(w.told(), func(e string) bool { return !containsWord(e, "RolledBack") }), 1)

	w.r.memory = &stateCache{} // a restart
	w.carryOut()
	assert.Equal(t, 3, w.at(first))
	status = w.set().Status
	assert.Equal(t, first, status.CurrentRevision)
	assert.Equal(t, second, status.UpdatedRevision, "it goes on naming the template's")
	assert.Zero(t, status.UpdatedReplicas)
	assert.Equal(t, metav1.ConditionFalse, w.condition(appsv1alpha1.CollaSetReady).Status)
	for _, e := range w.told() {
		assert.NotContains(t, e, "RolledBack", "once")
	}

	t.Run("Pods that are added or lost come at the revision before", func(t *testing.T) {
		w.change(replicas(5))
		victim := w.pods()[1]
		require.NoError(t, w.store.Delete(t.Context(), &victim))
		w.carryOut()
		assert.Equal(t, 5, w.at(first))
		assert.NotNil(t, w.set().Status.Halted)
	})
	t.Run("history keeps what is halted and where it goes back to", func(t *testing.T) {
		w.change(func(s *appsv1alpha1.CollaSetSpec) { s.HistoryLimit = ptr.To[int32](0) })
		w.carryOut()
		var names []string
		for _, cr := range w.revisions() {
			names = append(names, cr.Name)
		}
		assert.ElementsMatch(t, []string{first, second}, names)
	})
	t.Run("another template goes on", func(t *testing.T) {
		w.change(image("nginx:3"))
		w.carryOut()
		status := w.set().Status
		assert.Nil(t, status.Halted)
		assert.Equal(t, 5, w.at(status.UpdatedRevision))
		assert.Equal(t, metav1.ConditionTrue, w.condition(appsv1alpha1.CollaSetReady).Status)
	})
}

func containsWord(event, word string) bool { return slices.Contains(strings.Fields(event), word) }

func TestPauseAndReport(t *testing.T) {
	for name, tc := range map[string]struct {
		policy     appsv1alpha1.RolloutFailurePolicy
		wantReason appsv1alpha1.ConditionReason
		wantHalted bool
	}{
		"Report": {appsv1alpha1.RolloutFailureReport, appsv1alpha1.ReasonProgressDeadlineExceeded, false},
		"Pause":  {appsv1alpha1.RolloutFailurePause, appsv1alpha1.ReasonRolloutHalted, true},
	} {
		t.Run(name, func(t *testing.T) {
			w, first, second := crashing(t, tc.policy)
			w.told()
			for range 4 {
				w.see()
				_, err := w.reconcile()
				require.NoError(t, err)
				w.clock.Step(time.Second)
			}
			assert.Equal(t, string(tc.wantReason), w.condition(appsv1alpha1.CollaSetProgressing).Reason)
			assert.Equal(t, tc.wantHalted, w.set().Status.Halted != nil)
			assert.Len(t, slices.DeleteFunc(w.told(), func(e string) bool { return !containsWord(e, string(tc.wantReason)) }), 1,
				"told once")
			assert.Equal(t, 1, w.at(second))
			assert.Equal(t, 2, w.at(first))
		})
	}
}

func TestAFailureIsToldOfOnce(t *testing.T) {
	w := newWorld(t, true, collaSet(2))
	w.refuse = refusing("create Pod", errQuota)
	for range 4 {
		w.see()
		_, err := w.reconcile()
		require.ErrorIs(t, err, errQuota)
		w.clock.Step(time.Second)
	}
	failed := slices.DeleteFunc(w.told(), func(e string) bool { return !containsWord(e, "ScaleOutFailed") })
	assert.Len(t, failed, 1)
}

func TestHistoryKeepsWhatAnEntryNames(t *testing.T) {
	set := collaSet(2)
	set.Spec.HistoryLimit = ptr.To[int32](0)
	w := newWorld(t, false, set)
	w.carryOut()
	first := w.set().Status.UpdatedRevision
	w.change(both(image("nginx:2"), partition(1)))
	w.carryOut()
	// The old Pod is gone and cannot come back for now; only its entry names the revision.
	for _, pod := range w.pods() {
		if pod.Labels[appsv1.ControllerRevisionHashLabelKey] == first {
			require.NoError(t, w.store.Delete(t.Context(), &pod))
		}
	}
	w.refuse = refusing("create Pod", errQuota)
	for i := range 3 {
		w.change(image(fmt.Sprintf("nginx:%d", i+3)))
		_, err := w.reconcile()
		require.ErrorIs(t, err, errQuota)
		w.clock.Step(time.Second)
		w.see()
	}
	w.forget()
	w.change(partition(2))
	w.carryOut()
	assert.Equal(t, 1, w.at(first), "it came back as it was")
}
