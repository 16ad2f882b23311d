package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// BenchmarkSlowContainers updates Pods in place whose containers take long to start, under several budgets, and
// compares the time with the least that there is: one restart after the other for as many Pods as the budget allows.
// The observer watches the budget.
func BenchmarkSlowContainers(b *testing.B) {
	sizes := numbers(b, "BENCH_SIZES", "300,1000")
	a := startArena(b, suite.Config{})
	require.NoError(b, a.suite.Cluster.StopComponent("kwok"))
	for _, seconds := range numbers(b, "BENCH_RESTART_SECONDS", "10,30") {
		restart := time.Duration(seconds) * time.Second
		kubelet, err := fakekubelet.Start(b.Context(), a.suite.RESTConfig(), fakekubelet.Options{RestartTime: restart})
		require.NoError(b, err)
		for _, pods := range sizes {
			r := a.newRace(pods, seconds)
			a.observed(func() { r.slowly(restart, numbers(b, "BENCH_BUDGETS", "20,50,100")) })
		}
		kubelet.Stop()
	}
	require.NoError(b, a.suite.Died())
}

// slowly updates the same Pods under one budget after the other, each in per cent.
func (r *race) slowly(restart time.Duration, budgets []int) {
	namespace := r.namespaceOf("slow")
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	defer m.close()
	m.lap(serving(oldImage))
	set := r.createSetOf(templateOn("", "web"), namespace, "web", r.pods)
	require.Equal(r, r.pods, m.wait(r.Context(), r.pods, patience), "Pods serve")
	r.settled(m, set, r.pods)
	for i, percent := range budgets {
		r.merge(set, fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"maxUnavailable":"%d%%"}}}}`, percent))
		image := fmt.Sprintf("%s-%d", newImage, i)
		allowed := r.pods * percent / 100
		s := r.leg(m, namespace, kuperator, fmt.Sprintf("in place, %d %% at a time, restart of %s", percent, restart),
			serving(image),
			func() { r.merge(set, updatePatch(appsv1alpha1.PodUpdateInPlaceOnly, image)) })
		turns := (r.pods + allowed - 1) / allowed
		r.result(benchresult.Figure{
			Goal:   "P24",
			Name:   "in place with slow containers, time / restarts one after the other",
			Params: map[string]float64{"pods": float64(r.pods), "percent": float64(percent), "restart": restart.Seconds()},
			Values: []float64{s.took.Seconds() / (float64(turns) * restart.Seconds())},
			Note:   fmt.Sprintf("%.1f s for %d turns of %d Pods", s.took.Seconds(), turns, allowed),
		})
		r.settled(m, set, r.pods)
	}
	r.merge(set, `{"spec":{"replicas":0}}`)
	r.until("no Pod is left", func() bool { return m.seen() == 0 })
}
