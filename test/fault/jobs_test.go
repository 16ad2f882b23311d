package fault

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// warm is an action that the play's user carries out.
const warm = "example.com/warm-cache"

// image1Restarted is image1 after a restart in place: with the digest that the fake kubelet reports of it.
var image1Restarted = fmt.Sprintf("%s@sha256:%x", image1, sha256.Sum256([]byte(image1)))

// jobScenarios have an OperationJob act on Pods of a workload under a rule. operationjob-controller is faulted alone:
// the others do nothing for a job that they do not do in other scenarios.
func jobScenarios() []scenario {
	const succeeded, failed = appsv1alpha1.OperationProgressSucceeded, appsv1alpha1.OperationProgressFailed
	list := []scenario{
		{name: "restart", setup: all(ruled("budget", 1), running(3)),
			steps: all(job(appsv1alpha1.OpsActionRestart, 3, 2), jobEnds(succeeded), restartedOnce(3),
				serving(3, image1Restarted))},
		{name: "replace", setup: all(served, ruled("budget", 1), running(3)), anyInstances: true,
			steps: all(job(appsv1alpha1.OpsActionReplace, 2, 1), jobEnds(succeeded), made(5), serving(3, image1))},
		{name: "recreate", setup: all(ruled("budget", 1), running(3)),
			steps: all(job(appsv1alpha1.OpsActionRecreate, 2, 2), jobEnds(succeeded), made(5), serving(3, image1))},
		{name: "evict", setup: all(ruled("budget", 1), running(3)),
			steps: all(job(appsv1alpha1.OpsActionEvict, 2, 2), jobEnds(succeeded), made(5), serving(3, image1))},
		{name: "other", setup: all(served, ruled("budget", 1), running(3)),
			steps: all(job(warm, 3, 2), warmed, jobEnds(failed), serving(3, image1))},
		{name: "other-deleted", setup: all(ruled("budget", 1), running(3)),
			steps: all(job(warm, 3, 3), oneWarmed, deleteJob, serving(3, image1))},
		{name: "replace-deleted", setup: all(unapproved, running(3)), anyInstances: true,
			steps: all(job(appsv1alpha1.OpsActionReplace, 2, 2), replacementsServe(2), deleteJob, allow(2), made(5),
				serving(3, image1))},
	}
	for i := range list {
		list[i].name, list[i].components = "job-"+list[i].name, []string{suite.OperationJob}
	}
	return list
}

// job creates a job about the first Pods of the workload, by instance ID, of which so many may be under way.
func job(action appsv1alpha1.OperationAction, targets, parallelism int) func(*play) error {
	return func(p *play) error {
		now, _ := p.plane.view.state(p.prefix)
		pods := podsOf(now, "web")
		slices.SortFunc(pods, func(a, b *corev1.Pod) int {
			return cmp.Compare(a.Labels[appsv1alpha1.InstanceIDLabel], b.Labels[appsv1alpha1.InstanceIDLabel])
		})
		if len(pods) < targets {
			return fmt.Errorf("%d Pods are there, too few for %d targets", len(pods), targets)
		}
		job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Name: p.name("job")}}
		job.Spec.Action, job.Spec.Parallelism = action, ptr.To(intstr.FromInt(parallelism))
		for _, pod := range pods[:targets] {
			job.Spec.Targets = append(job.Spec.Targets, appsv1alpha1.PodOpsTarget{Name: pod.Name})
		}
		return p.create(job)
	}
}

// jobEnds waits until the job has ended so.
func jobEnds(want appsv1alpha1.OperationProgress) func(*play) error {
	return func(p *play) error {
		return p.await("the job to end", func(s *state) error { return ended(s, want) })
	}
}

func ended(s *state, want appsv1alpha1.OperationProgress) error {
	job, ok := get[*appsv1alpha1.OperationJob](s, "job")
	if !ok {
		return errors.New("it is not there")
	}
	if job.Status.Progress != want || job.Status.EndTime == nil {
		return fmt.Errorf("it is %q: %+v", job.Status.Progress, job.Status.TargetDetails)
	}
	return nil
}

// restartedOnce waits until every Pod is the one that there was from the beginning, with containers that have restarted
// once.
func restartedOnce(n int) func(*play) error {
	return func(p *play) error {
		return p.await("each container to have restarted once", func(s *state) error {
			if s.created["Pod"] != n {
				return fmt.Errorf("%d Pods were created", s.created["Pod"])
			}
			for _, pod := range podsOf(s, "web") {
				if statuses := pod.Status.ContainerStatuses; len(statuses) != 1 || statuses[0].RestartCount != 1 {
					return fmt.Errorf("%s has not: %+v", pod.Name, statuses)
				}
			}
			return nil
		})
	}
}

// made waits until so many Pods have been created, those of the setup among them, and all but three are gone.
func made(n int) func(*play) error {
	return func(p *play) error {
		return p.await("the Pods to be other ones", func(s *state) error {
			if s.created["Pod"] != n || s.deleted["Pod"] != n-3 {
				return fmt.Errorf("%d were created and %d deleted", s.created["Pod"], s.deleted["Pod"])
			}
			return nil
		})
	}
}

// answers are what the owner of an action does: it carries out each task that it finds, and must find none for a Pod
// that it has dealt with.
type answers struct {
	*play
	// given are the resourceVersions that its answers made, by Pod.
	given map[string]string
}

// give answers all tasks, as far as may be: whatever decides the result. An error is a conflict, or that the API server
// cannot be asked.
func (a *answers) give(s *state, may func(*corev1.Pod) bool, result func(*corev1.Pod) podops.TaskResult) error {
	for _, pod := range podsOf(s, "web") {
		v := podops.Read(pod)
		for id, task := range podops.TasksFor(v, warm) {
			at, again := a.given[pod.Name]
			switch {
			case again && older(at, pod.ResourceVersion):
				a.plane.jobs.found(a.prefix, "Pod "+client.ObjectKeyFromObject(pod).String(),
					"is handed over once more, after its task was answered")
				continue
			case again || !may(pod):
				continue
			}
			answered := pod.DeepCopy()
			answer := podops.Answer(v, id, task.Request, result(pod), "as asked for")
			err := a.plane.client.Patch(a.ctx, answered, client.RawPatch(types.MergePatchType, answer.MergePatch(v)))
			if err != nil {
				return err
			}
			a.given[pod.Name] = answered.ResourceVersion
		}
	}
	return nil
}

// warmed carries the action out on all targets until the job ends, and fails at the last.
func warmed(p *play) error {
	owner := &answers{play: p, given: map[string]string{}}
	result := func(pod *corev1.Pod) podops.TaskResult {
		if pod.Labels[appsv1alpha1.InstanceIDLabel] == "2" {
			return podops.TaskFailed
		}
		return podops.TaskSucceeded
	}
	always := func(*corev1.Pod) bool { return true }
	return p.await("the job to end", func(s *state) error {
		if err := owner.give(s, always, result); err != nil {
			return err
		}
		return ended(s, appsv1alpha1.OperationProgressFailed)
	})
}

// oneWarmed carries the action out on one target, and waits until another has its task and the third its turn.
func oneWarmed(p *play) error {
	owner := &answers{play: p, given: map[string]string{}}
	first := func(*corev1.Pod) bool { return len(owner.given) == 0 }
	succeeds := func(*corev1.Pod) podops.TaskResult { return podops.TaskSucceeded }
	return p.await("one target to have succeeded, and another to have its task", func(s *state) error {
		if err := owner.give(s, first, succeeds); err != nil {
			return err
		}
		job, ok := get[*appsv1alpha1.OperationJob](s, "job")
		if !ok || job.Status.SucceededPodCount != 1 {
			return errors.New("none has succeeded")
		}
		tasks, asking := 0, 0
		for _, pod := range podsOf(s, "web") {
			v := podops.Read(pod)
			tasks += len(podops.TasksFor(v, warm))
			if podops.PhaseOf(v, job.Name) == podops.PhasePreCheck {
				asking++
			}
		}
		if tasks != 1 || asking != 1 {
			return fmt.Errorf("%d have a task, and %d ask", tasks, asking)
		}
		return nil
	})
}

// replacementsServe waits until so many Pods serve that are to take the place of others, and the job has seen them.
func replacementsServe(n int) func(*play) error {
	return func(p *play) error {
		return p.await("the new Pods to serve", func(s *state) error {
			fresh := 0
			for _, pod := range podsOf(s, "web") {
				v := podops.Read(pod)
				if pod.Labels[appsv1alpha1.ReplacePairOriginNameLabel] != "" && v.Ready && v.ServiceAvailable() {
					fresh++
				}
			}
			seen := 0
			if job, ok := get[*appsv1alpha1.OperationJob](s, "job"); ok {
				for i := range job.Status.TargetDetails {
					if job.Status.TargetDetails[i].ExtraInfo[appsv1alpha1.ExtraInfoNewPod] != "" {
						seen++
					}
				}
			}
			if fresh != n || seen != n {
				return fmt.Errorf("%d serve, and the job has seen %d", fresh, seen)
			}
			return nil
		})
	}
}

// deleteJob deletes the job and waits until it is gone. It takes everything that is its own with it.
func deleteJob(p *play) error {
	if err := p.delete(&appsv1alpha1.OperationJob{}, "job"); err != nil {
		return err
	}
	return p.await("the job to be gone", func(s *state) error {
		if job, ok := get[*appsv1alpha1.OperationJob](s, "job"); ok {
			return fmt.Errorf("it is there, with finalizers %v", job.Finalizers)
		}
		return nil
	})
}
