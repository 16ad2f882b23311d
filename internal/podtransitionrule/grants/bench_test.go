package grants

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// atWork is a namespace in the middle of operating on all its Pods: six tenths still ask, a tenth of all is granted,
// half of that is out of service. Three rules overlap, as in test/bench.
func atWork(pods int) Snapshot {
	s := Snapshot{Now: testNow}
	for i, parts := range [][]string{{"0", "1", "2"}, {"0", "1"}, {"1", "2"}} {
		r := aRule(fmt.Sprintf("r%d", i), maxUnavailable("10%"))
		r.UID = types.UID(fmt.Sprintf("%036d", i)) // as long as real ones
		r.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "part", Operator: metav1.LabelSelectorOpIn, Values: parts},
		}}
		s.Rules = append(s.Rules, r)
	}
	for i := range pods {
		p := aPod(fmt.Sprintf("web-%d", i)).label("part", fmt.Sprint(i%3))
		p.UID = types.UID(fmt.Sprintf("%036d", i))
		if i%10 < 6 {
			p.asks(i)
		}
		s.Pods = append(s.Pods, p.Pod)
	}
	s = settled(s)
	for i := range s.Pods {
		granted := slices.ContainsFunc(s.Rules[0].Status.Grants,
			func(g appsv1alpha1.PodGrant) bool { return g.PodUID == s.Pods[i].UID })
		if granted && i%2 == 0 {
			s.Pods[i] = (&podBuilder{s.Pods[i]}).operates(i).Pod
		}
	}
	return settled(s)
}

// BenchmarkDecideAtWork is BenchmarkDecide while there is much to decide.
func BenchmarkDecideAtWork(b *testing.B) {
	for _, n := range []int{500, 5000} {
		b.Run(fmt.Sprintf("%d Pods", n), func(b *testing.B) {
			s := atWork(n)
			b.ReportAllocs()
			for b.Loop() {
				Decide(s)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/Pod")
		})
	}
}
