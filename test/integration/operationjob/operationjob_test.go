package operationjob_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// uids are the UIDs of Pods by their names.
func uids(pods []corev1.Pod) map[string]types.UID {
	all := map[string]types.UID{}
	for i := range pods {
		all[pods[i].Name] = pods[i].UID
	}
	return all
}

func TestRestart(t *testing.T) {
	s := begin(t, 4, "1")
	before := s.pods()
	s.ends(s.job(appsv1alpha1.OpsActionRestart, before, nil), appsv1alpha1.OperationProgressSucceeded)
	after := s.pods()
	require.Equal(t, uids(before), uids(after))
	for _, pod := range after {
		require.Contains(t, pod.Spec.Containers[0].Image, image+"@sha256:")
		require.EqualValues(t, 1, pod.Status.ContainerStatuses[0].RestartCount)
	}

	// An update to another image, and back: each container restarts once for each.
	const other = "app:v2"
	require.NoError(t, workload.Patch(t.Context(), s.Client, s.namespace, "web", workload.Image(other)))
	s.await("the update", func() error { return workload.AtRest(t.Context(), s.Client, s.namespace, "web", 4, other) })
	for _, pod := range s.pods() {
		require.EqualValues(t, 2, pod.Status.ContainerStatuses[0].RestartCount)
	}
	require.NoError(t, workload.Patch(t.Context(), s.Client, s.namespace, "web", workload.Image(image)))
	s.await("the way back", func() error { return workload.AtRest(t.Context(), s.Client, s.namespace, "web", 4, image) })
	for _, pod := range s.pods() {
		require.EqualValues(t, 3, pod.Status.ContainerStatuses[0].RestartCount)
		require.Equal(t, before[0].Spec.Containers[0].Image, pod.Spec.Containers[0].Image)
	}
}

func TestReplace(t *testing.T) {
	s := begin(t, 3, "1")
	before := s.pods()
	status := s.ends(s.job(appsv1alpha1.OpsActionReplace, before[:2], nil), appsv1alpha1.OperationProgressSucceeded)
	s.await("the Pods to serve", func() error {
		return workload.AtRest(t.Context(), s.Client, s.namespace, "web", 3, image)
	})
	after := uids(s.pods())
	require.Contains(t, after, before[2].Name)
	for _, d := range status.TargetDetails {
		require.NotContains(t, after, d.Name)
		require.Contains(t, after, d.ExtraInfo[appsv1alpha1.ExtraInfoNewPod])
	}
}

func TestTwoJobsReplaceOnePod(t *testing.T) {
	s := begin(t, 2, "1")
	target := s.pods()[:1]
	one, two := s.job(appsv1alpha1.OpsActionReplace, target, nil), s.job(appsv1alpha1.OpsActionReplace, target, nil)
	first := s.ends(one, appsv1alpha1.OperationProgressSucceeded).TargetDetails[0]
	second := s.ends(two, appsv1alpha1.OperationProgressSucceeded).TargetDetails[0]
	require.NotEmpty(t, first.ExtraInfo[appsv1alpha1.ExtraInfoNewPod])
	require.Equal(t, first.ExtraInfo, second.ExtraInfo)
	s.await("the Pods to serve", func() error {
		return workload.AtRest(t.Context(), s.Client, s.namespace, "web", 2, image)
	})
}

func TestRecreateByWorkload(t *testing.T) {
	s := begin(t, 4, "2")
	before := s.pods()
	job := s.job(appsv1alpha1.OpsActionRecreate, nil, func(spec *appsv1alpha1.OperationJobSpec) {
		spec.TargetSelector = &appsv1alpha1.OperationTargetSelector{
			Workload: &appsv1alpha1.WorkloadReference{Kind: appsv1alpha1.CollaSetKind, Name: "web"}}
		spec.Parallelism = ptr.To(intstr.FromString("50%"))
	})
	status := s.ends(job, appsv1alpha1.OperationProgressSucceeded)
	require.EqualValues(t, 4, status.TotalPodCount)
	s.await("the Pods to serve", func() error {
		return workload.AtRest(t.Context(), s.Client, s.namespace, "web", 4, image)
	})
	id := func(pods []corev1.Pod) map[string]bool {
		ids := map[string]bool{}
		for i := range pods {
			ids[pods[i].Labels[appsv1alpha1.InstanceIDLabel]] = true
		}
		return ids
	}
	after := s.pods()
	require.Equal(t, id(before), id(after))
	for name := range uids(before) {
		require.NotContains(t, uids(after), name)
	}
}

func TestEvict(t *testing.T) {
	s := begin(t, 3, "1")
	before := s.pods()
	s.ends(s.job(appsv1alpha1.OpsActionEvict, before[:2], nil), appsv1alpha1.OperationProgressSucceeded)
	s.await("the Pods to serve", func() error {
		return workload.AtRest(t.Context(), s.Client, s.namespace, "web", 3, image)
	})
	after := uids(s.pods())
	require.NotContains(t, after, before[0].Name)
	require.NotContains(t, after, before[1].Name)
	require.Contains(t, after, before[2].Name)
}

// TestActionOfAnotherProgram plays the owner of an action, which is not that of TestProgramOfAnAction.
func TestActionOfAnotherProgram(t *testing.T) {
	const action = "example.com/rotate-keys"
	s := begin(t, 2, "1")
	job := s.job(action, s.pods(), nil)
	answered := map[string]bool{}
	s.await("every Pod to be handed over", func() error {
		for _, pod := range s.pods() {
			v := podops.Read(&pod)
			for id, task := range podops.TasksFor(v, action) {
				require.False(t, v.Ready, "the Pod is out of service")
				result := podops.TaskSucceeded
				if len(answered) == 1 {
					result = podops.TaskFailed
				}
				answer := podops.Answer(v, id, task.Request, result, "the key is lost")
				err := s.Patch(t.Context(), &pod, client.RawPatch(types.MergePatchType, answer.MergePatch(v)))
				if err != nil {
					return err
				}
				answered[pod.Name] = true
			}
		}
		if len(answered) < 2 {
			return fmt.Errorf("%d of 2 are", len(answered))
		}
		return nil
	})
	status := s.ends(job, appsv1alpha1.OperationProgressFailed)
	require.EqualValues(t, 1, status.SucceededPodCount)
	require.EqualValues(t, 1, status.FailedPodCount)
	s.await("the Pods to serve", func() error {
		return workload.AtRest(t.Context(), s.Client, s.namespace, "web", 2, image)
	})
}

func TestPartitionAndDeletion(t *testing.T) {
	s := begin(t, 3, "3")
	before := s.pods()
	job := s.job(appsv1alpha1.OpsActionReplace, before, func(spec *appsv1alpha1.OperationJobSpec) {
		spec.Partition = ptr.To[int32](0)
	})
	get := func() { require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(job), job)) }
	s.await("the job to be seen", func() error {
		if get(); job.Status.Progress != appsv1alpha1.OperationProgressPending {
			return fmt.Errorf("its progress is %q", job.Status.Progress)
		}
		return nil
	})
	await.Always(t, time.Second, "nothing starts", func() error {
		if get(); job.Status.Progress != appsv1alpha1.OperationProgressPending {
			return fmt.Errorf("its progress is %q", job.Status.Progress)
		}
		return nil
	})
	patch := func(body string) error {
		return s.Patch(t.Context(), job.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body)))
	}
	require.NoError(t, patch(`{"spec":{"partition":1}}`))
	require.ErrorContains(t, patch(`{"spec":{"partition":0}}`), "partition cannot be lowered")
	s.await("the first target to be replaced", func() error {
		if get(); job.Status.SucceededPodCount != 1 {
			return fmt.Errorf("%+v", job.Status.TargetDetails)
		}
		return nil
	})
	require.Equal(t, appsv1alpha1.OperationProgressPending, job.Status.TargetDetails[1].Progress)

	// The job is deleted while a rule lets no Pod go. What has been handed over already goes when the rule lets it.
	allow := func(pods string) {
		rule := workload.Rule(s.namespace, "web", pods)
		body := fmt.Appendf(nil, `{"spec":{"rules":[{"name":"available","availablePolicy":{"maxUnavailableValue":%s}}]}}`,
			pods)
		require.NoError(t, s.Patch(t.Context(), rule, client.RawPatch(types.MergePatchType, body)))
	}
	allow("0")
	require.NoError(t, patch(`{"spec":{"partition":null}}`))
	s.await("the others to ask", func() error {
		if get(); job.Status.TargetDetails[2].Operation == nil ||
			job.Status.TargetDetails[2].Operation.Stage != appsv1alpha1.OpsStageAsked {
			return fmt.Errorf("%+v", job.Status.TargetDetails)
		}
		return nil
	})
	require.NoError(t, s.Delete(t.Context(), job))
	s.gone(job)
	s.requireNoTraces()
	allow("3")
	s.await("the Pods to serve", func() error {
		return workload.AtRest(t.Context(), s.Client, s.namespace, "web", 3, image)
	})
}

// TestMalformed has the API server refuse what makes no sense.
func TestMalformed(t *testing.T) {
	s := &story{T: t, world: shared.Get(t)}
	type spec = appsv1alpha1.OperationJobSpec
	two := []string{"b", "b"}
	many := func(n int) []appsv1alpha1.PodOpsTarget {
		targets := make([]appsv1alpha1.PodOpsTarget, n)
		for i := range targets {
			targets[i].Name = fmt.Sprintf("p%d", i)
		}
		return targets
	}
	for name, test := range map[string]struct {
		change func(*spec)
		says   string
	}{
		"no action":          {func(s *spec) { s.Action = "" }, "action is required"},
		"no targets":         {func(s *spec) { s.Targets = nil }, "set either targets or targetSelector"},
		"empty name":         {func(s *spec) { s.Targets[0].Name = "" }, "name"},
		"the same twice":     {func(s *spec) { s.Targets = append(s.Targets, s.Targets...) }, "Duplicate"},
		"2,001 targets":      {func(s *spec) { s.Targets = many(2001) }, "Too many"},
		"10,000 targets":     {func(s *spec) { s.Targets = many(10_000) }, "Too many"},
		"negative partition": {func(s *spec) { s.Partition = ptr.To[int32](-1) }, "partition"},
		"no deadline":        {func(s *spec) { s.ActiveDeadlineSeconds = ptr.To[int32](0) }, "activeDeadlineSeconds"},
		"no time to live":    {func(s *spec) { s.TTLSecondsAfterFinished = ptr.To[int32](0) }, "TTLSecondsAfterFinished"},
		"negative delay":     {func(s *spec) { s.OperationDelaySeconds = ptr.To[int32](-1) }, "operationDelaySeconds"},
		"parallelism 0":      {func(s *spec) { s.Parallelism = ptr.To(intstr.FromInt(0)) }, "at least 1"},
		"parallelism 0%":     {func(s *spec) { s.Parallelism = ptr.To(intstr.FromString("0%")) }, "at least 1"},
		"a container twice":  {func(s *spec) { s.Targets[0].Containers = two }, "Duplicate"},
		"targets and selector": {func(s *spec) {
			s.TargetSelector = &appsv1alpha1.OperationTargetSelector{LabelSelector: &metav1.LabelSelector{}}
		}, "set either"},
		"an empty selector": {func(s *spec) {
			s.Targets, s.TargetSelector = nil, &appsv1alpha1.OperationTargetSelector{}
		}, "needs workload or labelSelector"},
	} {
		t.Run(name, func(t *testing.T) {
			job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "bad-"}}
			job.Spec.Action, job.Spec.Targets = "Replace", []appsv1alpha1.PodOpsTarget{{Name: "a"}}
			test.change(&job.Spec)
			err := s.Create(t.Context(), job)
			require.True(t, apierrors.IsInvalid(err), "%v", err)
			require.ErrorContains(t, err, test.says)
		})
	}
}

// TestUnknownAction has a job say that its action is not known, and deletes it before it has failed.
func TestUnknownAction(t *testing.T) {
	s := &story{T: t, world: shared.Get(t)}
	t.Parallel()
	s.namespace = testcluster.Namespace(t, s.Cluster, nil)
	job := s.job("Polish", []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "none"}}}, nil)
	s.await("the job to be stalled", func() error {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		stalled := meta.FindStatusCondition(job.Status.Conditions, appsv1alpha1.OperationJobStalled)
		if stalled == nil || stalled.Status != metav1.ConditionTrue {
			return fmt.Errorf("%+v", job.Status)
		}
		require.Equal(t, string(appsv1alpha1.ReasonUnknownAction), stalled.Reason)
		require.Contains(t, stalled.Message, "create an OperationJob with Replace, Restart")
		return nil
	})
	require.NoError(t, s.Delete(t.Context(), job))
	s.gone(job)
}
