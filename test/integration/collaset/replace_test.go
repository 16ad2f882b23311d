package collaset_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// surge is a CollaSet's update policy: Replace, so many at a time.
func surge(most int32) func(*appsv1alpha1.CollaSet) {
	return func(s *appsv1alpha1.CollaSet) {
		s.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateReplace
		s.Spec.UpdateStrategy.MaxSurge = ptr.To(intstr.FromInt32(most))
	}
}

var replacements = map[string]func(env){
	"an update has the new Pod before the old one goes": func(e env) {
		set := e.create("web", 3, surge(1))
		e.reachesReady(set)
		before := e.pods()
		e.change(set, image("nginx:2"))
		e.eventually("all Pods are other ones", func() string {
			pods := e.pods()
			ready := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return !podops.Read(&p).Ready })
			require.GreaterOrEqual(e, len(ready), 3, "as many serve as before")
			require.LessOrEqual(e, len(pods), 4, "one more at a time")
			if running(pods, "nginx:2") == 3 && len(pods) == 3 {
				return ""
			}
			return fmt.Sprint(len(pods), running(pods, "nginx:2"))
		})
		e.reachesReady(set)
		for _, uid := range uids(before) {
			assert.NotContains(e, uids(e.pods()), uid)
		}
		for _, reason := range []string{"ReplacementBegun", "ReplacementDone"} {
			e.tells(set, reason, 3)
		}
		e.quiet()
	},
	"new Pods that cannot start are as many as maxSurge says, and give way to a template that works": func(e env) {
		set := e.create("web", 5, surge(2))
		e.reachesReady(set)
		e.change(set, image("nginx:non-exist"))
		e.waitsFor(set, 7, appsv1alpha1.Blocker{Reason: "WaitingForReplacement", Count: 2},
			appsv1alpha1.Blocker{Reason: "MaxSurge", Count: 3})
		e.quiet()
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		assert.EqualValues(e, 7, set.Status.Replicas, "both Pods of a pair count")
		assert.EqualValues(e, 5, set.Status.AvailableReplicas)
		assert.Equal(e, 5, running(e.pods(), "nginx:1"))

		e.change(set, image("nginx:3"))
		e.reachesReady(set)
		assert.Equal(e, 5, running(e.pods(), "nginx:3"))
		e.quiet()
	},
	"a rollback midway, and scaling meanwhile": func(e env) {
		set := e.create("web", 3, surge(2))
		e.reachesReady(set)
		before := uids(e.pods())
		e.change(set, image("nginx:non-exist"))
		e.waitsFor(set, 5, appsv1alpha1.Blocker{Reason: "WaitingForReplacement", Count: 2},
			appsv1alpha1.Blocker{Reason: "MaxSurge", Count: 1})
		e.change(set, replicas(4))
		e.eventually("one more Pod is there, and no double", func() string {
			if n := len(e.pods()); n != 6 {
				return fmt.Sprint(n)
			}
			return ""
		})
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { image("nginx:1")(s); replicas(3)(s) })
		e.reachesReady(set)
		after := uids(e.pods())
		for _, uid := range before {
			assert.Contains(e, after, uid)
		}
		e.tells(set, "ReplacementCancelled", 2)
		e.quiet()
	},
	"scale-in takes both sides of a pair": func(e env) {
		set := e.create("web", 3, surge(3))
		e.reachesReady(set)
		e.change(set, image("nginx:non-exist"))
		e.waitsFor(set, 6, appsv1alpha1.Blocker{Reason: "WaitingForReplacement", Count: 3})
		e.change(set, replicas(1))
		e.eventually("one pair is left", func() string {
			if n := len(e.pods()); n != 2 || running(e.pods(), "nginx:1") != 1 {
				return fmt.Sprint(n)
			}
			return ""
		})
		e.change(set, image("nginx:2"))
		e.reachesReady(set)
		e.quiet()
	},
	"the label replaces one Pod at its own revision, whatever the update policy": func(e env) {
		set := e.create("web", 3, func(s *appsv1alpha1.CollaSet) { partition(3)(&s.Spec) })
		e.reachesReady(set)
		e.change(set, image("nginx:2"))
		chosen := e.pods()[1]
		e.label(chosen, appsv1alpha1.ToReplaceLabel, ptr.To("job-7"))
		e.eventually("it is another Pod", func() string {
			if pods := e.pods(); len(pods) != 3 || slices.Contains(uids(pods), chosen.UID) {
				return fmt.Sprint(len(pods))
			}
			return ""
		})
		e.settles(set)
		assert.Equal(e, 3, running(e.pods(), "nginx:1"))
		e.quiet()
	},
	"the new Pod is available only after minReadySeconds, and the wish can be taken back until then": func(e env) {
		set := e.create("web", 2, nil)
		e.reachesReady(set)
		before := uids(e.pods())
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.MinReadySeconds = 3600 })
		chosen := e.pods()[0]
		e.label(chosen, appsv1alpha1.ToReplaceLabel, ptr.To("true"))
		e.eventually("the new Pod is Ready", func() string {
			pods := e.pods()
			if len(pods) == 3 && podops.Read(&pods[2]).Ready {
				return ""
			}
			return fmt.Sprint(len(pods))
		})
		e.quiet()
		assert.Len(e, e.pods(), 3)
		e.label(chosen, appsv1alpha1.ToReplaceLabel, nil)
		e.eventually("the new Pod is gone", func() string {
			if n := len(e.pods()); n != 2 {
				return fmt.Sprint(n)
			}
			return ""
		})
		assert.Equal(e, before, uids(e.pods()))
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.MinReadySeconds = 0 })
		e.reachesReady(set)
		e.quiet()
	},
	"either side may be lost midway": func(e env) {
		set := e.create("web", 2, surge(2))
		e.reachesReady(set)
		e.change(set, image("nginx:non-exist"))
		e.waitsFor(set, 4, appsv1alpha1.Blocker{Reason: "WaitingForReplacement", Count: 2})
		pods := e.pods()
		require.Equal(e, []string{"0", "1", "2", "3"}, ids(pods))
		// Which of the two is paired with which new Pod depends on the order in which they came to serve.
		kept, lost := pods[2], pods[3]
		if pods[0].Labels[appsv1alpha1.ReplacePairNewIDLabel] != "2" {
			kept, lost = lost, kept
		}
		require.Equal(e, ids([]corev1.Pod{kept})[0], pods[0].Labels[appsv1alpha1.ReplacePairNewIDLabel])
		require.NoError(e, e.Client.Delete(e.Context(), &pods[0]))
		require.NoError(e, e.Client.Delete(e.Context(), &lost, client.GracePeriodSeconds(0)))
		e.eventually("the new Pod of the one takes its place, that of the other is there again", func() string {
			now := e.pods()
			if slices.Equal(ids(now), []string{"1", "2", "3"}) && slices.Contains(uids(now), kept.UID) &&
				!slices.Contains(uids(now), lost.UID) {
				return ""
			}
			return fmt.Sprint(ids(now))
		})
		e.change(set, image("nginx:2"))
		e.reachesReady(set)
		e.quiet()
	},
}

// waitsFor waits until there are so many Pods and the blockers are those, whatever their messages.
func (e env) waitsFor(set *appsv1alpha1.CollaSet, pods int, want ...appsv1alpha1.Blocker) {
	e.Helper()
	e.eventually(fmt.Sprintf("there are %d Pods", pods), func() string {
		if n := len(e.pods()); n != pods {
			return fmt.Sprint(n)
		}
		return ""
	})
	describe := func(blockers []appsv1alpha1.Blocker) string {
		var all []string
		for _, b := range blockers {
			all = append(all, fmt.Sprint(b.Reason, b.Count))
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	e.eventually("it waits for "+describe(want), func() string {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		if now := describe(set.Status.Blockers); now != describe(want) {
			return now
		}
		return ""
	})
}

// label sets or removes a label of a Pod, as a user does.
func (e env) label(pod corev1.Pod, key string, value *string) {
	e.Helper()
	change := podops.Change{Labels: map[string]*string{key: value}}
	require.NoError(e, e.Patch(e.Context(), &pod, client.RawPatch(types.MergePatchType, change.MergePatch(podops.View{}))))
}

// tells waits until the events of a reason name so many Pods: they come after what they tell of.
func (e env) tells(set *appsv1alpha1.CollaSet, reason string, want int) {
	e.Helper()
	e.eventually(fmt.Sprintf("%d Pods are told of as %s", want, reason), func() string {
		if n := e.told(set, reason); n != want {
			return fmt.Sprint(n)
		}
		return ""
	})
}

// told is how many Pods the events of a reason name.
func (e env) told(set *appsv1alpha1.CollaSet, reason string) int {
	e.Helper()
	list := &eventsv1.EventList{}
	require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
	n := 0
	for _, event := range list.Items {
		if event.Reason == reason && event.Regarding.UID == set.UID {
			assert.Nil(e, event.Series, "once per change")
			n += strings.Count(event.Note, "web-")
		}
	}
	return n
}
