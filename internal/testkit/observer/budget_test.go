package observer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestCountsAreThoseOfARecount has Pods of one CollaSet and others change at random, and the rule that selects them.
func TestCountsAreThoseOfARecount(t *testing.T) {
	states := []func(*corev1.Pod){
		func(*corev1.Pod) {}, offline, notReady, terminating, labelled("app", "other"),
		func(p *corev1.Pod) { p.OwnerReferences = nil },
		func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
	}
	rapid.Check(t, func(t *rapid.T) {
		s := begin(Options{})
		pods := rapid.IntRange(0, 5)
		generation := int64(1)
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			i := pods.Draw(t, "pod")
			pod := aPod(i, rapid.SampledFrom(states).Draw(t, "state"), rapid.SampledFrom(states).Draw(t, "and"))
			if origin := pods.Draw(t, "origin"); origin != i && rapid.Bool().Draw(t, "replaces") {
				inPlaceOf(fmt.Sprintf("web-%d", origin))(pod)
			}
			switch rapid.IntRange(0, 9).Draw(t, "event") {
			case 0:
				s.event(pod, true)
			case 1:
				pod.UID += types.UID("'")
				s.apply(pod)
			case 2:
				generation++
				changed := maxUnavailable(fmt.Sprint(generation))
				changed.Generation = generation
				if rapid.Bool().Draw(t, "of others") {
					changed.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
				}
				s.apply(changed)
			default:
				s.apply(pod)
			}
			requireCounts(t, s.checker.spaces["default"])
		}
	})
}

func requireCounts(t require.TestingT, s *space) {
	for _, r := range s.rules {
		fresh := &rule{obj: r.obj, selector: r.selector}
		s.recount(fresh)
		require.Equal(t, []int{fresh.loose, fresh.servedLive, fresh.out}, []int{r.loose, r.servedLive, r.out})
		for uid, part := range r.shares {
			want := share{peak: part.peak}
			if counted := fresh.shares[uid]; counted != nil {
				want.live, want.servedLive, want.served = counted.live, counted.servedLive, counted.served
			}
			require.Equal(t, want, *part)
		}
	}
}
