package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// leastJobWrites are the writes to a Pod that a bare client makes to restart it by the protocol: it asks, takes traffic
// off, writes the image, finishes and puts traffic on.
const leastJobWrites = 5

// BenchmarkJob has a job restart every Pod of a CollaSet in place, without a rule, and counts the writes. Then it counts
// those of a job that has ended.
func BenchmarkJob(b *testing.B) {
	a := newArenaOf(b, suite.Config{}, fakekubelet.Options{})
	for _, pods := range numbers(b, "BENCH_SIZES", "1000") {
		r := a.newRace(pods, 0)
		a.observed(r.job)
	}
	require.NoError(b, a.suite.Died())
}

func (r *race) job() {
	namespace := r.namespaceOf("job")
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	defer m.close()
	m.lap(serving(oldImage))
	set := r.createSetOf(templateOn("", "web"), namespace, "web", r.pods)
	require.Equal(r, r.pods, m.wait(r.Context(), r.pods, patience), "Pods serve")
	r.settled(m, set, r.pods)
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "restart"}}
	job.Spec.Action = appsv1alpha1.OpsActionRestart
	job.Spec.TargetSelector = &appsv1alpha1.OperationTargetSelector{
		Workload: &appsv1alpha1.WorkloadReference{Kind: appsv1alpha1.CollaSetKind, Name: set.Name}}
	s := r.leg(m, namespace, kuperator, "restart by a job", servesAgain, func() {
		require.NoError(r, r.Create(r.Context(), job))
	})
	r.until("the job has ended", func() bool {
		require.NoError(r, r.Get(r.Context(), client.ObjectKeyFromObject(job), job))
		return job.Status.EndTime != nil
	})
	require.Equal(r, appsv1alpha1.OperationProgressSucceeded, job.Status.Progress)
	toPods, all := suite.Sum(suite.PodWrites(s.requests)), suite.Sum(suite.Writes(s.requests))
	each := func(count int) float64 { return float64(count) / float64(r.pods) }
	r.result(benchresult.Figure{Goal: "P25", Name: "writes to Pods, restart by a job / bare client", Params: r.of,
		Values: []float64{each(toPods.Writes) / leastJobWrites}})
	r.result(benchresult.Figure{Goal: "P25", Name: "all write requests, restart by a job", Unit: "requests/Pod",
		Params: r.of, Values: []float64{each(all.Total())}})
	r.result(benchresult.Figure{Goal: "P25", Name: "conflicts, restart by a job", Unit: "conflicts/Pod", Params: r.of,
		Values: []float64{each(toPods.Conflicts)}})
	r.result(benchresult.Figure{Goal: "P25", Name: "out of service per Pod, restart by a job, no rule, mean", Unit: "s",
		Params: r.of, Values: []float64{m.figures().mean()}})
	idle := r.measure(func() { r.rest(10 * time.Second) }, namespace)
	r.result(benchresult.Figure{Goal: "P25", Name: "writes after the end of a job", Unit: "writes", Params: r.of,
		Values: []float64{float64(suite.Sum(suite.Writes(idle.requests)).Total())}})
	r.say("resident memory of %s: %.0f MB", suite.OperationJob, r.resident(suite.OperationJob, "VmRSS"))
}

// servesAgain reports whether a Pod's container has restarted, and it serves.
func servesAgain(p *corev1.Pod) bool {
	v := podops.Read(p)
	return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 0 && v.Ready &&
		v.ServiceAvailable() && len(podops.Operations(v)) == 0
}
