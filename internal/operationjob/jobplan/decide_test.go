package jobplan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// hour is within the deadline that jobs have by default.
const hour = time.Hour

var actions = []appsv1alpha1.OperationAction{appsv1alpha1.OpsActionReplace, appsv1alpha1.OpsActionRestart,
	appsv1alpha1.OpsActionRecreate, appsv1alpha1.OpsActionEvict, "example.com/warm"}

// ends settles the world, and checks that the jobs have ended so, and have left nothing.
func (w *world) ends(t *testing.T, want string) {
	t.Helper()
	w.settle(t, 4*hour)
	require.NotEmpty(t, w.jobs)
	assert.Equal(t, want, progress(w.jobs[0]))
	for _, job := range w.jobs {
		w.leftovers(job)
	}
	assert.Empty(t, w.problems)
}

// keep has jobs stay after their end, so that tests can read them.
func keep(job *appsv1alpha1.OperationJob) *appsv1alpha1.OperationJob {
	job.Spec.TTLSecondsAfterFinished = ptr.To[int32](1_000_000)
	return job
}

func TestEachAction(t *testing.T) {
	for _, action := range actions {
		t.Run(string(action), func(t *testing.T) {
			w := newWorld(3)
			before := w.pods["p0"]
			keep(w.job(action, "p0", "p2"))
			w.ends(t, "p0 Succeeded, p2 Succeeded")
			assert.Len(t, w.pods, 3)
			for _, p := range w.pods {
				assert.True(t, p.View.ServiceAvailable(), p.View.Name)
			}
			after := w.pods["p0"]
			details := w.jobs[0].Status.TargetDetails[0]
			switch action {
			case appsv1alpha1.OpsActionRestart:
				require.NotNil(t, after)
				assert.Equal(t, before.View.UID, after.View.UID)
				assert.NotEqual(t, before.Containers[0].ID, after.Containers[0].ID)
				assert.NotEqual(t, before.Containers[1].ID, after.Containers[1].ID)
				assert.Equal(t, before.Containers[2].ID, after.Containers[2].ID, "no one has named the sidecar")
				assert.Equal(t, "example.com/app:v1@"+digest, after.Containers[0].Image)
			case "example.com/warm":
				assert.Equal(t, before.View.UID, after.View.UID)
			case appsv1alpha1.OpsActionReplace:
				assert.Nil(t, after)
				assert.Equal(t, "p3", details.ExtraInfo[appsv1alpha1.ExtraInfoNewPod])
			case appsv1alpha1.OpsActionRecreate:
				assert.Nil(t, after)
				assert.Equal(t, "0", w.pods[details.ExtraInfo[appsv1alpha1.ExtraInfoNewPod]].InstanceID)
			case appsv1alpha1.OpsActionEvict:
				assert.Nil(t, after)
			}
			status := w.jobs[0].Status
			assert.Equal(t, appsv1alpha1.OperationProgressSucceeded, status.Progress)
			assert.EqualValues(t, 2, status.SucceededPodCount)
			assert.Nil(t, details.Operation)
			assert.NotNil(t, details.EndTime)
		})
	}
}

// TestJ1 to TestJ13 are the defects of Kuperator v0.7 by the numbers of docs/operationjob.md.
// J7 and J11 are shown in package operationjob.
func TestJ1AnUnknownActionFailsAndCanBeDeleted(t *testing.T) {
	w := newWorld(1)
	keep(w.job("Polish", "p0"))
	w.settle(t, 30*time.Second)
	assert.Equal(t, "p0 Pending", progress(w.jobs[0]))
	stalled := w.jobs[0].Status.Conditions[2]
	assert.Equal(t, metav1.ConditionTrue, stalled.Status)
	assert.Contains(t, stalled.Message, `"Polish" is not known`)
	w.ends(t, "p0 Failed UnknownAction")

	for name, action := range map[string]appsv1alpha1.OperationAction{"unknown": "Polish", "known": "Replace"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1)
			w.absent["collaset"] = true
			w.job(action, "p0")
			w.settle(t, 10*time.Second)
			w.delete(0)
			w.settle(t, 10*time.Second)
			assert.Empty(t, w.jobs)
			assert.Empty(t, w.problems)
		})
	}
}

func TestJ2TheTimeToLiveDoesNotWaitForDeadlines(t *testing.T) {
	w := newWorld(1)
	w.job(appsv1alpha1.OpsActionRestart, "p0")
	w.settle(t, 29*time.Minute)
	require.Len(t, w.jobs, 1)
	assert.Equal(t, "p0 Succeeded", progress(w.jobs[0]))
	w.settle(t, 2*time.Minute)
	assert.Empty(t, w.jobs)
}

func TestJ3EachTargetHasItsOwnDeadline(t *testing.T) {
	w := newWorld(3)
	w.absent["owner"] = true
	job := keep(w.job("example.com/warm", "p0", "p1", "p2"))
	job.Spec.ActiveDeadlineSeconds = ptr.To[int32](100)
	job.Spec.Partition = ptr.To[int32](1)
	w.settle(t, 40*time.Second)
	w.jobs[0].Spec.Partition = ptr.To[int32](2)
	w.jobs[0].ResourceVersion = w.version()
	w.settle(t, 30*time.Second)
	assert.Equal(t, "p0 Processing, p1 Processing, p2 Pending", progress(w.jobs[0]))
	w.settle(t, 35*time.Second)
	assert.Equal(t, "p0 Failed DeadlineExceeded, p1 Processing, p2 Pending", progress(w.jobs[0]))
	w.settle(t, 40*time.Second)
	assert.Equal(t, "p0 Failed DeadlineExceeded, p1 Failed DeadlineExceeded, p2 Pending", progress(w.jobs[0]))
}

func TestJ4TheDelayIsHonoured(t *testing.T) {
	w := newWorld(1)
	keep(w.job(appsv1alpha1.OpsActionRestart, "p0")).Spec.OperationDelaySeconds = ptr.To[int32](60)
	w.settle(t, 59*time.Second)
	assert.Equal(t, "p0 Processing", progress(w.jobs[0]))
	assert.Equal(t, "example.com/app:v1", w.pods["p0"].Containers[0].Image)
	assert.False(t, w.pods["p0"].View.Ready)
	w.ends(t, "p0 Succeeded")
}

func TestJ5AJobThatIsCancelledDoesNotCancelAnother(t *testing.T) {
	w := newWorld(1)
	w.broken = true // the new Pod does not serve yet
	keep(w.job(appsv1alpha1.OpsActionReplace, "p0"))
	keep(w.job(appsv1alpha1.OpsActionReplace, "p0"))
	w.settle(t, time.Minute)
	fresh := w.pods["p1"]
	require.NotNil(t, fresh)
	w.delete(1)
	w.settle(t, time.Minute)
	require.Len(t, w.jobs, 1)
	assert.Equal(t, fresh.View.UID, w.pods["p1"].View.UID)
	w.broken = false
	w.ends(t, "p0 Succeeded")

	w = newWorld(1)
	keep(w.job(appsv1alpha1.OpsActionReplace, "p0"))
	keep(w.job(appsv1alpha1.OpsActionReplace, "p0"))
	w.ends(t, "p0 Succeeded")
	assert.Equal(t, "p0 Succeeded", progress(w.jobs[1]))
	for _, job := range w.jobs {
		assert.Equal(t, "p1", job.Status.TargetDetails[0].ExtraInfo[appsv1alpha1.ExtraInfoNewPod])
	}
}

func TestJ6ATerminatingPodIsLetGo(t *testing.T) {
	w := newWorld(1)
	w.absent["collaset"] = true
	keep(w.job(appsv1alpha1.OpsActionReplace, "p0"))
	w.settle(t, time.Minute)
	p := *w.pods["p0"]
	require.Contains(t, p.View.Finalizers, appsv1alpha1.ReplaceProtectionFinalizer)
	p.View.Terminating = true
	w.put(&p)
	w.ends(t, "p0 Failed PodNotFound")
	assert.NotContains(t, w.pods, "p0")
}

func TestJ8APodOfNoCollaSetFailsAtOnce(t *testing.T) {
	for _, action := range []appsv1alpha1.OperationAction{appsv1alpha1.OpsActionReplace, appsv1alpha1.OpsActionRecreate} {
		w := newWorld(1)
		w.pods["p0"].CollaSet = ""
		keep(w.job(action, "p0"))
		w.settle(t, time.Second)
		assert.Equal(t, "p0 Failed NotSupported", progress(w.jobs[0]))
		assert.Contains(t, w.jobs[0].Status.TargetDetails[0].Error.Message, "no CollaSet controls the Pod")
	}
}

func TestJ9TheStatusIsInTheOrderOfTheTargets(t *testing.T) {
	w := newWorld(4)
	keep(w.job(appsv1alpha1.OpsActionRestart, "p3", "p1", "none", "p0")).Spec.Partition = ptr.To[int32](2)
	w.settle(t, hour)
	assert.Equal(t, "p3 Succeeded, p1 Succeeded, none Pending, p0 Pending", progress(w.jobs[0]))
	w.jobs[0].Spec.Partition = nil
	w.jobs[0].ResourceVersion = w.version()
	w.ends(t, "p3 Succeeded, p1 Succeeded, none Failed PodNotFound, p0 Succeeded")
}

func TestJ10WithoutAPartitionAllTargetsStart(t *testing.T) {
	w := newWorld(2)
	keep(w.job(appsv1alpha1.OpsActionRestart, "p0", "p1")).Spec.Partition = ptr.To[int32](0)
	w.settle(t, hour)
	assert.Equal(t, "p0 Pending, p1 Pending", progress(w.jobs[0]))
	assert.Equal(t, appsv1alpha1.OperationProgressPending, w.jobs[0].Status.Progress)
	w.jobs[0].Spec.Partition = nil
	w.jobs[0].ResourceVersion = w.version()
	w.ends(t, "p0 Succeeded, p1 Succeeded")
}

func TestJ12TheNewPodIsFollowedByItsInstanceID(t *testing.T) {
	w := newWorld(1)
	keep(w.job(appsv1alpha1.OpsActionReplace, "p0"))
	always := func() bool { return true }
	for w.pods["p0"] != nil {
		v := w.see(0)
		_, plan := w.decide(v)
		require.True(t, w.apply(v, plan, always) || w.others() || w.pods["p0"] == nil, "it stands still")
		w.others()
	}
	require.Equal(t, "p0 Processing", progress(w.jobs[0]))
	delete(w.pods, "p1") // by bad luck; its CollaSet creates another one with its ID
	w.ends(t, "p0 Succeeded")
	name := w.jobs[0].Status.TargetDetails[0].ExtraInfo[appsv1alpha1.ExtraInfoNewPod]
	assert.NotEqual(t, "p1", name)
	assert.Equal(t, "1", w.pods[name].InstanceID)
}

func TestJ13SuccessNeedsLabelAndReadyAtTheSameTime(t *testing.T) {
	w := newWorld(1)
	keep(w.job(appsv1alpha1.OpsActionRecreate, "p0"))
	w.broken = true
	w.settle(t, time.Minute)
	require.Equal(t, "p0 Processing", progress(w.jobs[0]))
	for _, p := range w.pods { // the label was there once, and the Pod has failed since
		next := *p
		one := "1"
		next.View = podops.Change{Labels: map[string]*string{podops.ServiceAvailableLabel: &one}}.Apply(p.View)
		next.View.Ready = false
		w.put(&next)
	}
	w.absent["lifecycle"] = true
	w.settle(t, time.Minute)
	assert.Equal(t, "p0 Processing", progress(w.jobs[0]))
	w.absent["lifecycle"], w.broken = false, false
	w.ends(t, "p0 Succeeded")
}

func TestAReplacementUnderWayIsNotReplaced(t *testing.T) {
	w := newWorld(1)
	w.broken = true
	keep(w.job(appsv1alpha1.OpsActionReplace, "p0"))
	w.settle(t, time.Minute)
	keep(w.job(appsv1alpha1.OpsActionReplace, "p1"))
	w.settle(t, time.Minute)
	assert.Equal(t, "p1 Processing", progress(w.jobs[1]))
	assert.Contains(t, w.jobs[1].Status.TargetDetails[0].ExtraInfo, appsv1alpha1.ExtraInfoNotAllowedToReplaceNewPod)
	w.broken = false
	w.ends(t, "p0 Succeeded")
	assert.Equal(t, "p1 Succeeded", progress(w.jobs[1]))
}

func TestAUserCancels(t *testing.T) {
	for _, action := range []appsv1alpha1.OperationAction{appsv1alpha1.OpsActionReplace, appsv1alpha1.OpsActionRecreate,
		"example.com/warm"} {
		t.Run(string(action), func(t *testing.T) {
			w := newWorld(1)
			w.absent["owner"], w.absent["lifecycle"], w.broken = true, action != "example.com/warm", true
			keep(w.job(action, "p0"))
			w.settle(t, time.Minute)
			v := w.pods["p0"].View
			w.change("p0", podops.Cancel(v, "job-0", w.now))
			w.change("p0", podops.Change{Labels: map[string]*string{appsv1alpha1.ToReplaceLabel: nil,
				appsv1alpha1.ToDeleteLabel: nil}})
			w.absent["lifecycle"], w.broken = false, false
			w.ends(t, "p0 Failed Cancelled")
			assert.Len(t, w.pods, 1)
			assert.Contains(t, w.pods, "p0")
		})
	}
}

func TestContainers(t *testing.T) {
	w := newWorld(1)
	job := keep(w.job(appsv1alpha1.OpsActionRestart, "p0"))
	job.Spec.Targets[0].Containers = []string{"proxy"}
	before := w.pods["p0"].Containers
	w.ends(t, "p0 Succeeded")
	after := w.pods["p0"].Containers
	assert.Equal(t, before[0], after[0])
	assert.NotEqual(t, before[2].ID, after[2].ID)

	w = newWorld(1)
	keep(w.job(appsv1alpha1.OpsActionRestart, "p0")).Spec.Targets[0].Containers = []string{"app", "init"}
	w.ends(t, "p0 Failed ContainerNotFound")
	assert.Equal(t, before[0].Image, w.pods["p0"].Containers[0].Image)
}

func TestAnImageWithoutASecondName(t *testing.T) {
	for _, fallback := range []appsv1alpha1.RestartFallback{"", appsv1alpha1.RestartFallbackRecreate,
		appsv1alpha1.RestartFallbackFail} {
		t.Run(string(fallback), func(t *testing.T) {
			w := newWorld(1)
			w.pods["p0"].Containers[1].ImageID = "sha256:0123"
			job := keep(w.job(appsv1alpha1.OpsActionRestart, "p0"))
			job.Spec.Restart = &appsv1alpha1.RestartAction{Fallback: fallback}
			if fallback == appsv1alpha1.RestartFallbackFail {
				w.ends(t, "p0 Failed NotSupported")
				assert.Contains(t, w.pods, "p0")
				return
			}
			w.ends(t, "p0 Succeeded")
			assert.NotContains(t, w.pods, "p0")
			assert.Contains(t, w.jobs[0].Status.TargetDetails[0].ExtraInfo[appsv1alpha1.ExtraInfoRecreated], "no second name")
		})
	}
}

func TestAFailurePolicyStopsTheJob(t *testing.T) {
	w := newWorld(4)
	w.answers = podops.TaskFailed
	job := keep(w.job("example.com/warm", "p0", "p1", "p2", "p3"))
	job.Spec.Parallelism = ptr.To(intstr.FromInt(1))
	job.Spec.FailurePolicy = &appsv1alpha1.OperationFailurePolicy{MaxFailedTargets: ptr.To[int32](1)}
	w.ends(t, "p0 Failed ActionFailed, p1 Failed ActionFailed, p2 Failed NotStarted, p3 Failed NotStarted")
	assert.Equal(t, "said so", w.jobs[0].Status.TargetDetails[0].Error.Message)
}

func TestAnEvictionIsTriedAgain(t *testing.T) {
	w := newWorld(1)
	w.refuses["p0"] = true
	keep(w.job(appsv1alpha1.OpsActionEvict, "p0"))
	w.settle(t, time.Minute)
	assert.Equal(t, "p0 Processing", progress(w.jobs[0]))
	assert.Contains(t, w.jobs[0].Status.TargetDetails[0].ExtraInfo[appsv1alpha1.ExtraInfoWaiting], "by a budget")
	w.refuses["p0"] = false
	w.ends(t, "p0 Succeeded")
}

// TestWhatATargetWaitsFor is in the status after half a minute, and in the error when a shorter deadline is over.
func TestWhatATargetWaitsFor(t *testing.T) {
	for name, test := range map[string]struct {
		action       appsv1alpha1.OperationAction
		absent, want string
	}{
		"a replacement":     {appsv1alpha1.OpsActionReplace, "collaset", "collaset-controller has to begin"},
		"another Pod":       {appsv1alpha1.OpsActionRecreate, "collaset", "collaset-controller has to create the Pod"},
		"deletion":          {appsv1alpha1.OpsActionRecreate, "lifecycle", "lifecycle-controller has not begun"},
		"rules":             {appsv1alpha1.OpsActionRestart, "lifecycle", "PreCheck: the PodTransitionRules that select"},
		"the other program": {"example.com/warm", "owner", "the program for action example.com/warm has not answered"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, deadline := range []*int32{nil, ptr.To[int32](5)} {
				w := newWorld(1)
				w.absent[test.absent] = true
				keep(w.job(test.action, "p0")).Spec.ActiveDeadlineSeconds = deadline
				w.settle(t, 40*time.Second)
				if details := w.jobs[0].Status.TargetDetails[0]; deadline == nil {
					assert.Contains(t, details.ExtraInfo[appsv1alpha1.ExtraInfoWaiting], test.want)
				} else {
					require.NotNil(t, details.Error)
					assert.Equal(t, appsv1alpha1.ReasonDeadlineExceeded, details.Error.Reason)
					assert.Contains(t, details.Error.Message, test.want)
				}
				assert.Empty(t, w.problems)
			}
		})
	}
}

func TestASelectorIsResolvedOnce(t *testing.T) {
	w := newWorld(2)
	job := keep(w.job(appsv1alpha1.OpsActionRecreate))
	job.Spec.TargetSelector = &appsv1alpha1.OperationTargetSelector{LabelSelector: &metav1.LabelSelector{}}
	w.ends(t, "p0 Succeeded, p1 Succeeded")

	w = newWorld(0)
	job = keep(w.job(appsv1alpha1.OpsActionRecreate))
	job.Spec.TargetSelector = &appsv1alpha1.OperationTargetSelector{LabelSelector: &metav1.LabelSelector{}}
	w.ends(t, "")
	assert.Equal(t, appsv1alpha1.OperationProgressFailed, w.jobs[0].Status.Progress)
	assert.Equal(t, "NoTargets", w.jobs[0].Status.Conditions[0].Reason)
}

// TestEveryJobEnds lets jobs, users and other programs act in any order, on views of any age, and applies any part of
// each plan. In the end all of it goes on as it should, and every job has ended, with nothing left of it.
func TestEveryJobEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(1, 4).Draw(t, "pods"))
		pods := len(w.pods)
		for range rapid.IntRange(1, 3).Draw(t, "jobs") {
			var names []string
			for i := range pods + 1 {
				if rapid.Bool().Draw(t, "target") {
					names = append(names, fmt.Sprintf("p%d", i))
				}
			}
			if len(names) == 0 {
				names = []string{"p0"}
			}
			job := keep(w.job(rapid.SampledFrom(append([]appsv1alpha1.OperationAction{"Polish"}, actions...)).Draw(t, "action"),
				names...))
			if rapid.Bool().Draw(t, "partition") {
				job.Spec.Partition = ptr.To(int32(rapid.IntRange(0, 2).Draw(t, "partition")))
			}
			if rapid.Bool().Draw(t, "parallelism") {
				job.Spec.Parallelism = ptr.To(intstr.FromInt(rapid.IntRange(1, 2).Draw(t, "parallelism")))
			}
			job.Spec.ActiveDeadlineSeconds = ptr.To[int32](600)
		}
		w.answers = rapid.SampledFrom([]podops.TaskResult{podops.TaskSucceeded, podops.TaskFailed}).Draw(t, "answers")
		any := func() bool { return rapid.Bool().Draw(t, "applied") }
		var old []view
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch does := rapid.SampledFrom([]string{"job", "job", "job", "stale", "others", "others", "time", "user"}).Draw(t,
				"does"); does {
			case "job", "stale":
				if len(w.jobs) == 0 {
					continue
				}
				v := w.see(rapid.IntRange(0, len(w.jobs)-1).Draw(t, "job"))
				if old = append(old, v); does == "stale" {
					past := rapid.SampledFrom(old).Draw(t, "past")
					if past.job.UID == v.job.UID { // the job's own writes are seen, Pods are not
						v.pods = past.pods
					}
				}
				_, plan := w.decide(v)
				w.apply(v, plan, any)
			case "others":
				w.others()
			case "time":
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 300).Draw(t, "seconds")) * time.Second)
			case "user":
				w.user(t)
			}
		}
		for _, job := range w.jobs {
			job.Spec.Partition = nil
			job.ResourceVersion = w.version()
		}
		w.settle(t, 10*hour)
		for _, job := range w.jobs {
			w.leftovers(job)
			require.True(t, job.Status.Progress == appsv1alpha1.OperationProgressSucceeded ||
				job.Status.Progress == appsv1alpha1.OperationProgressFailed, "%s: %s", job.Name, progress(job))
		}
		require.Empty(t, w.problems)
		for name, p := range w.pods {
			require.NotContains(t, p.View.Finalizers, appsv1alpha1.ReplaceProtectionFinalizer, name)
			for key := range p.View.Annotations {
				require.False(t, strings.HasSuffix(key, podops.AskersSuffix), "%s keeps %s", name, key)
			}
		}
	})
}

// user does what users may do to Pods and jobs.
func (w *world) user(t *rapid.T) {
	name := fmt.Sprintf("p%d", rapid.IntRange(0, 4).Draw(t, "pod"))
	p := w.pods[name]
	one := "true"
	switch rapid.SampledFrom([]string{"replace", "cancel", "undo", "delete", "delete job", "kill"}).Draw(t, "user") {
	case "replace":
		if p != nil && !p.View.Terminating {
			w.change(name, podops.Change{Labels: map[string]*string{appsv1alpha1.ToReplaceLabel: &one}})
		}
	case "cancel":
		if p != nil {
			w.change(name, podops.Change{Labels: map[string]*string{appsv1alpha1.ToReplaceLabel: nil,
				appsv1alpha1.ToDeleteLabel: nil}})
		}
	case "undo":
		if p != nil {
			w.change(name, podops.Cancel(p.View, "job-0", w.now))
		}
	case "delete":
		if p != nil {
			next := *p
			next.View.Terminating = true
			w.put(&next)
		}
	case "kill": // the Pod is gone at once, finalizers or not
		delete(w.pods, name)
	case "delete job":
		if len(w.jobs) > 0 {
			w.delete(0)
		}
	}
}
