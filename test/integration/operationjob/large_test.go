package operationjob_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/nightly"
)

// TestManyTargets restarts many Pods, of which at most 10 % are under way by the job's parallelism, and 5 % out of
// service by a rule. The observer watches the rule, and every version of the job's status is looked at.
func TestManyTargets(t *testing.T) {
	pods := int32(40)
	if nightly.Run() {
		pods = 500
	}
	s := begin(t, pods, "5%")
	before := s.pods()
	scheme := runtime.NewScheme()
	require.NoError(t, appsv1alpha1.AddToScheme(scheme))
	watching, err := client.NewWithWatch(s.RESTConfig(), client.Options{Scheme: scheme})
	require.NoError(t, err)
	versions, err := watching.Watch(t.Context(), &appsv1alpha1.OperationJobList{}, client.InNamespace(s.namespace))
	require.NoError(t, err)
	defer versions.Stop()
	job := s.job(appsv1alpha1.OpsActionRestart, nil, func(spec *appsv1alpha1.OperationJobSpec) {
		spec.TargetSelector = &appsv1alpha1.OperationTargetSelector{
			Workload: &appsv1alpha1.WorkloadReference{Kind: appsv1alpha1.CollaSetKind, Name: "web"}}
		spec.Parallelism = ptr.To(intstr.FromString("10%"))
	})
	most := 0
	for ended := false; !ended; {
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case event, open := <-versions.ResultChan():
			require.True(t, open, "the watch has ended")
			version, is := event.Object.(*appsv1alpha1.OperationJob)
			require.True(t, is, "%+v", event.Object)
			most, ended = max(most, underWay(version)), version.Status.EndTime != nil
			require.LessOrEqual(t, underWay(version), int(pods)/10)
		}
	}
	require.Greater(t, most, 1, "targets are under way at the same time")
	status := s.ends(job, appsv1alpha1.OperationProgressSucceeded)
	require.Equal(t, pods, status.SucceededPodCount)
	after := s.pods()
	require.Equal(t, uids(before), uids(after))
	for _, pod := range after {
		require.EqualValues(t, 1, pod.Status.ContainerStatuses[0].RestartCount)
	}
}

// underWay is how many targets of a job have started and not ended.
func underWay(job *appsv1alpha1.OperationJob) (count int) {
	for _, d := range job.Status.TargetDetails {
		if d.StartTime != nil && d.EndTime == nil {
			count++
		}
	}
	return count
}
