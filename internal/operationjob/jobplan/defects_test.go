package jobplan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/operationjob/jobplan"
)

// alter stores a Pod that is changed in another way than by metadata.
func (w *world) alter(name string, change func(*jobplan.Pod)) {
	next := *w.pods[name]
	next.Containers = append([]jobplan.Container{}, next.Containers...)
	change(&next)
	w.put(&next)
}

// TestTheImageIDOfAnotherImageIsNotUsed has the image of a Pod changed, and the new one is still pulled.
func TestTheImageIDOfAnotherImageIsNotUsed(t *testing.T) {
	for name, lags := range map[string]func(*jobplan.Pod){
		"the kubelet has not seen it": func(p *jobplan.Pod) { p.Observed = false },
		"the container does not run":  func(p *jobplan.Pod) { p.Containers[0].Running = false },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1)
			w.alter("p0", func(p *jobplan.Pod) { p.Containers[0].Image = "example.com/app:v2"; lags(p) })
			keep(w.job(appsv1alpha1.OpsActionRestart, "p0"))
			w.settle(t, time.Minute)
			assert.Equal(t, "p0 Processing", progress(w.jobs[0]))
			assert.Equal(t, "example.com/app:v2", w.pods["p0"].Containers[0].Image)
			assert.True(t, w.pods["p0"].View.Ready, "it serves meanwhile")
		})
	}
}

// TestARestartIsDoneWhenItsOwnImageRuns has the kubelet report a container that another restart has begun.
func TestARestartIsDoneWhenItsOwnImageRuns(t *testing.T) {
	w := newWorld(1)
	keep(w.job(appsv1alpha1.OpsActionRestart, "p0"))
	w.absent["kubelet"] = true
	for w.pods["p0"].Containers[0].Image == "example.com/app:v1" {
		v := w.see(0)
		_, plan := w.decide(v)
		w.apply(v, plan, func() bool { return true })
		w.absent["kubelet"] = w.pods["p0"].View.ServiceReady == "" // it reports readiness until the images are written
		w.others()
	}
	w.absent["kubelet"] = true
	w.alter("p0", func(p *jobplan.Pod) {
		p.Observed = false
		for i := range p.Containers {
			p.Containers[i].ID, p.Containers[i].Ready = "c-"+w.version(), true
		}
	})
	w.settle(t, time.Minute)
	assert.Equal(t, "p0 Processing", progress(w.jobs[0]))
	w.absent["kubelet"] = false
	w.alter("p0", func(p *jobplan.Pod) { p.Observed = true })
	w.ends(t, "p0 Succeeded")
}

// TestATaskThatAJobOfTheSameNameHasLeftIsNone has a task on the Pod whose job was removed by force.
func TestATaskThatAJobOfTheSameNameHasLeftIsNone(t *testing.T) {
	for _, action := range []appsv1alpha1.OperationAction{appsv1alpha1.OpsActionRestart, "example.com/warm"} {
		w := newWorld(1)
		before := w.pods["p0"].Containers[0].ID
		w.change("p0", podops.PutTask(w.pods["p0"].View, "job-0", &podops.Task{Action: string(action), Request: "1",
			Before: map[string]string{"app": "c-0"}, Result: podops.TaskFailed}))
		keep(w.job(action, "p0"))
		w.ends(t, "p0 Succeeded")
		assert.Equal(t, action == appsv1alpha1.OpsActionRestart, w.pods["p0"].Containers[0].ID != before)
	}
}

// TestThePodThatIsReplacedMeanwhileIsFollowed has the successor of a target be another one than its own.
func TestThePodThatIsReplacedMeanwhileIsFollowed(t *testing.T) {
	t.Run("a Pod that is re-created is half of a replacement", func(t *testing.T) {
		w := newWorld(1)
		w.broken = true
		keep(w.job(appsv1alpha1.OpsActionRecreate, "p0"))
		keep(w.job(appsv1alpha1.OpsActionReplace, "p0"))
		w.absent["lifecycle"] = true
		w.settle(t, time.Minute)
		w.absent["lifecycle"], w.broken = false, false
		w.settle(t, time.Minute)
		assert.Equal(t, "p0 Succeeded", progress(w.jobs[0]))
		assert.Equal(t, "p0 Succeeded", progress(w.jobs[1]))
	})
	t.Run("the new Pod is replaced before it serves", func(t *testing.T) {
		w := newWorld(1)
		keep(w.job(appsv1alpha1.OpsActionRecreate, "p0"))
		w.broken = true
		w.settle(t, time.Minute)
		fresh := w.byID("0")
		require.NotEqual(t, "p0", fresh.View.Name)
		keep(w.job(appsv1alpha1.OpsActionReplace, fresh.View.Name))
		w.settle(t, time.Minute)
		w.broken = false
		w.settle(t, time.Minute)
		assert.Equal(t, "p0 Succeeded", progress(w.jobs[0]))
		assert.True(t, strings.HasSuffix(progress(w.jobs[1]), "Succeeded"), progress(w.jobs[1]))
	})
}

func TestAWriteThatIsRefusedBringsThePodBack(t *testing.T) {
	w := newWorld(1)
	keep(w.job(appsv1alpha1.OpsActionRestart, "p0"))
	w.refusesImages, w.takesTrials = true, true
	w.settle(t, 2*time.Minute)
	assert.Equal(t, "p0 Failed UpdateObjectFailed", progress(w.jobs[0]))
	assert.Contains(t, w.jobs[0].Status.TargetDetails[0].Error.Message, "no such images here")
	assert.True(t, w.pods["p0"].View.ServiceAvailable())
}

func TestAPodIsNotTakenOutOfServiceForImagesThatAreRefused(t *testing.T) {
	w := newWorld(1)
	keep(w.job(appsv1alpha1.OpsActionRestart, "p0"))
	w.refusesImages = true
	for w.imageRefused.IsZero() {
		w.settle(t, time.Second)
	}
	before := w.pods["p0"].View
	w.settle(t, time.Minute)
	assert.Equal(t, "p0 Failed UpdateObjectFailed", progress(w.jobs[0]))
	assert.Contains(t, w.jobs[0].Status.TargetDetails[0].Error.Message, "no such images here")
	assert.Equal(t, before.ResourceVersion, w.pods["p0"].View.ResourceVersion, "nothing was written to it")

	w = newWorld(1)
	keep(w.job(appsv1alpha1.OpsActionRestart, "p0"))
	w.refusesImages = true
	w.settle(t, 20*time.Second)
	require.NotZero(t, w.imageRefused)
	w.refusesImages, w.imageRefused = false, time.Time{}
	w.ends(t, "p0 Succeeded")
}

// TestPodsAreAskedAFewAtATime has so many targets that those which were asked first would wait for the others.
func TestPodsAreAskedAFewAtATime(t *testing.T) {
	const all, most = 200, 64
	w := newWorld(all)
	var names []string
	for i := range all {
		names = append(names, fmt.Sprintf("p%d", i))
	}
	keep(w.job(appsv1alpha1.OpsActionRestart, names...))
	always := func() bool { return true }
	asked := 0
	for !strings.HasPrefix(progress(w.jobs[0]), "p0 Succeeded") {
		v := w.see(0)
		_, plan := w.decide(v)
		others := 0
		for i, write := range plan.Writes {
			if write.Asks {
				asked++
				require.Less(t, i, most)
				continue
			}
			others++
			require.Equal(t, others, i+1, "what asks comes last")
		}
		require.Equal(t, plan.More, asked > 0 && asked < all)
		w.apply(v, plan, always)
		for w.others() {
		}
	}
	w.settle(t, time.Minute)
	require.EqualValues(t, all, w.jobs[0].Status.SucceededPodCount)
}

// TestWritesThatArePutOffLeaveRoomForOthers has the API server refuse to evict the first targets.
func TestWritesThatArePutOffLeaveRoomForOthers(t *testing.T) {
	w := newWorld(70)
	var names []string
	for i := range 70 {
		names = append(names, fmt.Sprintf("p%d", i))
	}
	keep(w.job(appsv1alpha1.OpsActionEvict, names...))
	for range 3 { // its finalizer, its targets, and their start
		v := w.see(0)
		_, plan := w.decide(v)
		w.apply(v, plan, func() bool { return true })
	}
	v := w.see(0)
	s, _ := w.decide(v)
	for i := range 64 {
		s.Targets[i].Refused, s.Targets[i].PutOff = "by a budget", true
	}
	plan := jobplan.Decide(&s)
	require.Len(t, plan.Writes, 6)
	require.Equal(t, "p64", plan.Writes[0].Pod.View.Name)
	require.False(t, plan.More)
}

// TestTargetsThatKuperatorHasBegunAreTakenOver has the status and the Pod as Kuperator v0.7 leaves them midway.
func TestTargetsThatKuperatorHasBegunAreTakenOver(t *testing.T) {
	for name, isDeleted := range map[string]bool{"and carried on": false, "and released": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(2)
			w.absent["collaset"] = isDeleted
			job := keep(w.job(appsv1alpha1.OpsActionReplace, "p0", "p1"))
			job.Finalizers = []string{appsv1alpha1.ProtectionFinalizer}
			at := metav1.NewTime(w.now)
			job.Status = appsv1alpha1.OperationJobStatus{Progress: appsv1alpha1.OperationProgressProcessing, StartTime: &at,
				TargetDetails: []appsv1alpha1.OpsStatus{
					{Name: "p0", Progress: appsv1alpha1.OperationProgressProcessing, StartTime: &at},
					{Name: "p1", Progress: appsv1alpha1.OperationProgressPending},
				}}
			w.change("p0", podops.Change{Labels: map[string]*string{appsv1alpha1.ToReplaceLabel: ptr.To("true")},
				Finalizers: []string{appsv1alpha1.ReplaceProtectionFinalizer}, FinalizersChanged: true})
			if !isDeleted {
				w.ends(t, "p0 Succeeded, p1 Succeeded")
				return
			}
			w.delete(0)
			w.settle(t, time.Minute)
			assert.Empty(t, w.jobs)
			assert.Empty(t, w.pods["p0"].View.Finalizers)
			assert.NotContains(t, w.pods["p0"].View.Labels, appsv1alpha1.ToReplaceLabel)
		})
	}
}

func TestAnEvictionIsNotCancelledWithAnotherJob(t *testing.T) {
	w := newWorld(1)
	w.absent["lifecycle"] = true
	keep(w.job(appsv1alpha1.OpsActionRecreate, "p0"))
	w.settle(t, time.Minute)
	keep(w.job(appsv1alpha1.OpsActionEvict, "p0"))
	w.settle(t, time.Minute)
	w.delete(0)
	w.settle(t, time.Minute)
	require.Len(t, w.jobs, 1)
	require.Equal(t, "p0 Processing", progress(w.jobs[0]))
	w.absent["lifecycle"] = false
	w.ends(t, "p0 Succeeded")
}

func TestWhatWasDoneInTimeSucceedsThoughItIsSeenLate(t *testing.T) {
	for _, action := range []appsv1alpha1.OperationAction{appsv1alpha1.OpsActionReplace, appsv1alpha1.OpsActionEvict} {
		w := newWorld(1)
		job := keep(w.job(action, "p0"))
		job.Spec.ActiveDeadlineSeconds = ptr.To[int32](60)
		always := func() bool { return true }
		for range 12 { // until it asks, and knows who comes
			v := w.see(0)
			_, plan := w.decide(v)
			w.apply(v, plan, always)
			if w.pods["p0"] != nil && action == appsv1alpha1.OpsActionReplace {
				w.collaset(w.pods["p0"])
			}
		}
		for w.others() {
		}
		require.NotContains(t, w.pods, "p0", action)
		w.now = w.now.Add(2 * time.Minute)
		w.ends(t, "p0 Succeeded")
	}
}

func TestTextsLeaveRoomForEachOther(t *testing.T) {
	for targets, want := range map[int]int{1: 1024, 2000: 100} {
		job := &appsv1alpha1.OperationJob{}
		job.Finalizers = []string{appsv1alpha1.ProtectionFinalizer}
		job.Spec.Action = appsv1alpha1.OpsActionEvict
		at := metav1.NewTime(start)
		job.Status.StartTime = &at
		s := jobplan.Snapshot{Job: job, Now: start.Add(4 * time.Hour), Targets: make([]jobplan.Target, targets)}
		for i := range s.Targets {
			pod := newWorld(1).pods["p0"]
			job.Status.TargetDetails = append(job.Status.TargetDetails, appsv1alpha1.OpsStatus{Name: "p0", StartTime: &at,
				Progress: appsv1alpha1.OperationProgressProcessing, Operation: &appsv1alpha1.TargetOperation{
					Stage: appsv1alpha1.OpsStageStarted, PodUID: pod.View.UID}})
			s.Targets[i] = jobplan.Target{Pod: pod, Live: true, Refused: strings.Repeat("é", 2000)}
		}
		plan := jobplan.Decide(&s)
		for _, d := range plan.Status.TargetDetails {
			require.NotNil(t, d.Error)
			require.LessOrEqual(t, len(d.Error.Message), want)
		}
	}
}

func TestASelectorThatIsNotValidFailsTheJob(t *testing.T) {
	w := newWorld(1)
	keep(w.job(appsv1alpha1.OpsActionRestart)).Spec.TargetSelector = &appsv1alpha1.OperationTargetSelector{}
	w.invalid = "a label is not valid"
	w.ends(t, "")
	assert.Equal(t, appsv1alpha1.OperationProgressFailed, w.jobs[0].Status.Progress)
	assert.Equal(t, "InvalidSelector", w.jobs[0].Status.Conditions[2].Reason)
	assert.Equal(t, "a label is not valid", w.jobs[0].Status.Conditions[2].Message)
}
