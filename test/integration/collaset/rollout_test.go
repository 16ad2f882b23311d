package collaset_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// broken is an image that cannot be pulled.
const broken = "nginx:non-exist"

// rolloutStories hold with and without the lifecycle.
var rolloutStories = map[string]func(env){
	"a partition in percent follows the replicas": func(e env) {
		set := e.create("web", 4, func(s *appsv1alpha1.CollaSet) {
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByPartition: &appsv1alpha1.ByPartition{Partition: ptr.To(intstr.FromString("50%"))}}
		})
		e.reachesReady(set)
		first := set.Status.UpdatedRevision
		e.change(set, image("nginx:2"))
		e.reachesReady(set)
		assert.Equal(e, 2, running(e.pods(), "nginx:2"))
		assert.EqualValues(e, 2, set.Status.UpdatedReplicas)
		e.change(set, replicas(8))
		e.reachesReady(set)
		assert.Equal(e, 4, running(e.pods(), "nginx:2"))
		assert.Equal(e, first, set.Status.CurrentRevision)
		for _, p := range e.pods()[4:] {
			id := p.Labels[appsv1alpha1.InstanceIDLabel]
			assert.Equal(e, id >= "6", p.Spec.Containers[0].Image == "nginx:2", "of the new IDs the highest are updated: %s", id)
		}
		e.change(set, replicas(0))
		e.reachesReady(set)
	},
	"a Pod that vanishes comes back at its own revision": func(e env) {
		set := e.create("web", 3, nil)
		e.reachesReady(set)
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { image("nginx:2")(s); partition(2)(s) })
		e.reachesReady(set)
		for _, victim := range e.pods() {
			require.NoError(e, e.Delete(e.Context(), &victim, client.GracePeriodSeconds(0)))
			e.eventually("it is back", func() string {
				for _, p := range e.pods() {
					if p.Labels[appsv1alpha1.InstanceIDLabel] == victim.Labels[appsv1alpha1.InstanceIDLabel] && p.UID != victim.UID {
						assert.Equal(e, victim.Spec.Containers[0].Image, p.Spec.Containers[0].Image)
						return ""
					}
				}
				return "not yet"
			})
		}
		e.eventually("all run", func() string {
			if pods := e.pods(); running(pods, "nginx:1") != 2 || running(pods, "nginx:2") != 1 {
				return "not yet"
			}
			return ""
		})
		e.settles(set)
	},
	"a template taken back takes its canary with it": func(e env) {
		set := e.create("web", 4, nil)
		e.reachesReady(set)
		first := set.Status.UpdatedRevision
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { image(broken)(s); partition(3)(s) })
		e.eventually("the canary is broken", func() string { return e.images(broken, 1) })
		e.change(set, image("nginx:1"))
		e.reachesReady(set)
		assert.Equal(e, 4, running(e.pods(), "nginx:1"))
		assert.Equal(e, first, set.Status.UpdatedRevision)
	},
	"a Pod is available when it has been Ready for minReadySeconds, and the next waits for that": func(e env) {
		set := e.create("web", 2, func(s *appsv1alpha1.CollaSet) { s.Spec.MinReadySeconds = 3600 })
		e.eventually("Pods are Ready and not available", func() string {
			require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
			if set.Status.ReadyReplicas == 2 && set.Status.AvailableReplicas == 0 {
				assert.Equal(e, metav1.ConditionFalse, e.condition(set, appsv1alpha1.CollaSetReady).Status)
				return ""
			}
			return fmt.Sprint(set.Status.ReadyReplicas, set.Status.AvailableReplicas)
		})
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.MinReadySeconds = 3 })
		e.reachesReady(set)
		e.change(set, image("nginx:2"))
		e.reachesReady(set)
		pods := e.pods()
		require.Equal(e, 2, running(pods, "nginx:2"))
		between := startOf(pods[0], "app").Sub(startOf(pods[1], "app")).Abs()
		assert.GreaterOrEqual(e, between, 3*time.Second, "the second restarts when the first has proved itself")
	},
	"a rollout that does not progress is reported, once": func(e env) {
		set := e.create("web", 3, failing(""))
		e.reachesReady(set)
		e.change(set, image(broken))
		e.eventually("one Pod is broken", func() string { return e.images(broken, 1) })
		e.change(set, deadline(2))
		e.progressing(set, metav1.ConditionFalse, appsv1alpha1.ReasonProgressDeadlineExceeded)
		assert.Nil(e, set.Status.Halted)
		assert.NotNil(e, set.Status.LastProgressTime)
		assert.Equal(e, metav1.ConditionTrue, e.condition(set, appsv1alpha1.CollaSetStalled).Status)
		e.quiet()
		e.saysOnce(set, "ProgressDeadlineExceeded")
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { image("nginx:3")(s); deadline(distant)(s) })
		e.reachesReady(set)
		e.progressing(set, metav1.ConditionTrue, appsv1alpha1.ReasonRolloutComplete)
	},
	"failurePolicy Pause stops a rollout until the template changes": func(e env) {
		set := e.create("web", 4, failing(appsv1alpha1.RolloutFailurePause))
		e.reachesReady(set)
		first := set.Status.UpdatedRevision
		e.change(set, image(broken))
		e.eventually("one Pod is broken", func() string { return e.images(broken, 1) })
		e.change(set, deadline(2))
		e.progressing(set, metav1.ConditionFalse, appsv1alpha1.ReasonRolloutHalted)
		require.NotNil(e, set.Status.Halted)
		assert.Equal(e, set.Status.UpdatedRevision, set.Status.Halted.Revision)
		assert.Empty(e, set.Status.Halted.RollbackTo)
		assert.Equal(e, first, set.Status.CurrentRevision)
		e.quiet()
		assert.Empty(e, e.images(broken, 1), "a quarter, and no further")
		e.saysOnce(set, "RolloutHalted")

		// What is lost or added comes at the revision before.
		for _, p := range e.pods() {
			if p.Spec.Containers[0].Image == broken {
				require.NoError(e, e.Delete(e.Context(), &p, client.GracePeriodSeconds(0)))
			}
		}
		e.change(set, replicas(5))
		e.eventually("five serve at the revision before", func() string { return e.images("nginx:1", 5) })
		e.progressing(set, metav1.ConditionFalse, appsv1alpha1.ReasonRolloutHalted)

		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { image("nginx:3")(s); deadline(distant)(s) })
		e.reachesReady(set)
		assert.Nil(e, set.Status.Halted)
		assert.Equal(e, 5, running(e.pods(), "nginx:3"))
	},
	"failurePolicy Rollback takes Pods back to the revision before": func(e env) {
		set := e.create("web", 4, failing(appsv1alpha1.RolloutFailureRollback))
		e.reachesReady(set)
		first := set.Status.UpdatedRevision
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { image(broken)(s); partition(1)(s) })
		e.eventually("one Pod is broken", func() string { return e.images(broken, 1) })
		e.change(set, deadline(2))
		e.progressing(set, metav1.ConditionFalse, appsv1alpha1.ReasonRolledBack)
		require.NotNil(e, set.Status.Halted)
		assert.Equal(e, first, set.Status.Halted.RollbackTo)
		second := set.Status.UpdatedRevision
		e.eventually("all serve again", func() string {
			require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
			if n := running(e.pods(), "nginx:1"); n != 4 || set.Status.AvailableReplicas != 4 {
				return fmt.Sprint(n, set.Status.AvailableReplicas)
			}
			return ""
		})
		e.quiet()
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		assert.Equal(e, first, set.Status.CurrentRevision)
		assert.Equal(e, second, set.Status.UpdatedRevision)
		assert.Zero(e, set.Status.UpdatedReplicas)
		stalled := e.condition(set, appsv1alpha1.CollaSetStalled)
		assert.Equal(e, metav1.ConditionTrue, stalled.Status)
		assert.Contains(e, stalled.Message, "change spec.template")
		assert.Equal(e, metav1.ConditionFalse, e.condition(set, appsv1alpha1.CollaSetReady).Status)
		e.saysOnce(set, "RolledBack")

		// Taking the policy away tries again.
		e.change(set,
			func(s *appsv1alpha1.CollaSetSpec) { s.UpdateStrategy.FailurePolicy = appsv1alpha1.RolloutFailureReport })
		e.progressing(set, metav1.ConditionFalse, appsv1alpha1.ReasonProgressDeadlineExceeded)
		assert.Nil(e, set.Status.Halted)
		e.eventually("one Pod is broken again", func() string { return e.images(broken, 1) })
	},
	"time while paused does not count": func(e env) {
		const seconds = 10
		set := e.create("web", 2, failing(appsv1alpha1.RolloutFailurePause))
		e.reachesReady(set)
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { image("nginx:2")(s); deadline(seconds)(s); s.Paused = true })
		e.progressing(set, metav1.ConditionFalse, appsv1alpha1.ReasonPaused)
		since := time.Now()
		e.eventually("more than the deadline passes", func() string {
			require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
			require.Nil(e, set.Status.Halted)
			if time.Since(since) > (seconds+2)*time.Second {
				return ""
			}
			return "not yet"
		})
		resumed := time.Now().Truncate(time.Second)
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.Paused = false })
		e.eventually("a Pod is updated", func() string {
			require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
			if halted := set.Status.Halted; halted != nil {
				// A slow machine may need longer than the deadline, but the whole of it has passed since.
				require.GreaterOrEqual(e, halted.Since.Sub(resumed), seconds*time.Second)
				return ""
			}
			if running(e.pods(), "nginx:2") == 0 {
				return "none is"
			}
			return ""
		})
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			deadline(distant)(s)
			s.UpdateStrategy.FailurePolicy = appsv1alpha1.RolloutFailureReport
		})
		e.reachesReady(set)
	},
	"kubectl wait knows when it is Ready, and the columns tell the rest": func(e env) {
		set := e.create("web", 2, nil)
		out, err := e.cluster.Kubectl(e.Context(), "wait", "-n", e.namespace, "--for=condition=Ready",
			"--timeout="+patience.String(), "cls/web")
		require.NoError(e, err, out)
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		lines := func(args ...string) (table [][]string) {
			out, err := e.cluster.Kubectl(e.Context(), append([]string{"get", "cls", "-n", e.namespace}, args...)...)
			require.NoError(e, err, out)
			for line := range strings.Lines(string(out)) {
				table = append(table, strings.Fields(line))
			}
			return table
		}
		table := lines()
		require.Equal(e, []string{"NAME", "READY", "UPDATED", "AVAILABLE", "STATE", "AGE"}, table[0])
		require.Equal(e, []string{"web", "2/2", "2", "2", "RolloutComplete"}, table[1][:5])
		table = lines("-o", "wide")
		require.Equal(e, []string{"CURRENT", "UPDATED_READY", "UPDATED_AVAILABLE", "CURRENT_REVISION", "UPDATED_REVISION",
			"IMAGE", "SELECTOR"}, table[0][6:])
		require.Equal(e, []string{"2", "2", "2", set.Status.CurrentRevision, set.Status.UpdatedRevision,
			set.Spec.Template.Spec.Containers[0].Image, set.Status.Selector}, table[1][6:])
	},
	"a number that is zero is a number for kubectl": func(e env) {
		set := e.create("web", 0, nil)
		e.reachesReady(set)
		out, err := e.cluster.Kubectl(e.Context(), "get", "cls", "web", "-n", e.namespace, "--no-headers")
		require.NoError(e, err, out)
		require.Equal(e, []string{"web", "0/0", "0", "0", "RolloutComplete"}, strings.Fields(string(out))[:5])
	},
}

// lifecycleRolloutStories need the lifecycle.
var lifecycleRolloutStories = map[string]func(env){
	"by label Pods are updated as they are labelled": func(e env) {
		set := e.create("web", 3, func(s *appsv1alpha1.CollaSet) {
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByLabel: &appsv1alpha1.ByLabel{}}
		})
		e.reachesReady(set)
		e.change(set, image("nginx:2"))
		e.reachesReady(set)
		assert.Zero(e, running(e.pods(), "nginx:2"))
		chosen := e.pods()[1]
		e.mark(&chosen, appsv1alpha1.UpdateIncludedLabel, "1")
		e.eventually("it is updated, and the label is gone", func() string {
			p := e.pods()[1]
			if _, labelled := p.Labels[appsv1alpha1.UpdateIncludedLabel]; labelled || running(e.pods(), "nginx:2") != 1 {
				return "not yet"
			}
			assert.Equal(e, chosen.UID, p.UID)
			return ""
		})
		e.settles(set)
		// It dies and comes back as it was, without its label.
		victim := e.pods()[1]
		require.NoError(e, e.Delete(e.Context(), &victim, client.GracePeriodSeconds(0)))
		e.eventually("it is back and runs", func() string {
			if pods := e.pods(); len(pods) != 3 || pods[1].UID == victim.UID ||
				running(pods[1:2], pods[1].Spec.Containers[0].Image) == 0 {
				return "not yet"
			}
			return ""
		})
		e.settles(set)
		assert.Equal(e, "nginx:2", e.pods()[1].Spec.Containers[0].Image)
		assert.Equal(e, 1, running(e.pods(), "nginx:2"))
	},
	"a label taken away before the change cancels": func(e env) {
		set := e.create("web", 1, func(s *appsv1alpha1.CollaSet) {
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByLabel: &appsv1alpha1.ByLabel{}}
			s.Spec.Template.Annotations = map[string]string{"hold": "rules"}
		})
		e.reachesReady(set)
		e.change(set, image("nginx:2"))
		pod := e.pods()[0]
		e.mark(&pod, appsv1alpha1.UpdateIncludedLabel, "1")
		e.operating(set, 1)
		e.mark(&pod, appsv1alpha1.UpdateIncludedLabel, "")
		e.operating(set, 0)
		e.settles(set)
		assert.Equal(e, 1, running(e.pods(), "nginx:1"))
	},
	"raising the partition cancels what waits": func(e env) {
		set := e.create("web", 3, func(s *appsv1alpha1.CollaSet) {
			s.Spec.Template.Annotations = map[string]string{"hold": "rules"}
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{MaxUnavailable: ptr.To(
				intstr.FromString("100%"))}
		})
		e.reachesReady(set)
		e.change(set, image("nginx:2"))
		e.operating(set, 3)
		e.change(set, partition(3))
		e.operating(set, 0)
		e.reachesReady(set)
		assert.Equal(e, 3, running(e.pods(), "nginx:1"))
	},
}

// distant is a deadline, in seconds, that no rollout which works exceeds, on however busy a machine.
const distant = 3600

func deadline(seconds int32) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) { s.ProgressDeadlineSeconds = &seconds }
}

// failing has a policy, and a deadline to be shortened when the rollout is broken. minReadySeconds keeps a broken
// revision at a quarter of the Pods.
func failing(policy appsv1alpha1.RolloutFailurePolicy) func(*appsv1alpha1.CollaSet) {
	return func(s *appsv1alpha1.CollaSet) {
		s.Spec.MinReadySeconds = 1
		deadline(distant)(&s.Spec)
		s.Spec.UpdateStrategy.FailurePolicy = policy
	}
}

// images says what is wrong if not so many Pods have the image in their specs.
func (e env) images(image string, want int) string {
	e.Helper()
	n := 0
	for _, p := range e.pods() {
		if p.Spec.Containers[0].Image == image {
			n++
		}
	}
	if n != want {
		return fmt.Sprintf("%d Pods have %s", n, image)
	}
	return ""
}

func (e env) condition(set *appsv1alpha1.CollaSet, conditionType string) metav1.Condition {
	e.Helper()
	c := meta.FindStatusCondition(set.Status.Conditions, conditionType)
	require.NotNil(e, c, conditionType)
	return *c
}

// progressing waits until the condition says this of the present generation.
func (e env) progressing(
	set *appsv1alpha1.CollaSet, status metav1.ConditionStatus, reason appsv1alpha1.ConditionReason,
) {
	e.Helper()
	generation := set.Generation
	e.eventually("Progressing is "+string(reason), func() string {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		c := meta.FindStatusCondition(set.Status.Conditions, appsv1alpha1.CollaSetProgressing)
		if c == nil || c.ObservedGeneration < generation || c.Status != status || c.Reason != string(reason) {
			return fmt.Sprint(c)
		}
		return ""
	})
}

// operating waits until so many Pods are asked for.
func (e env) operating(set *appsv1alpha1.CollaSet, want int32) {
	e.Helper()
	e.eventually(fmt.Sprintf("%d Pods are operated on", want), func() string {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		if set.Status.OperatingReplicas != want || set.Status.ObservedGeneration < set.Generation {
			return fmt.Sprint(set.Status.OperatingReplicas)
		}
		return ""
	})
}

// mark sets a label, or with an empty value removes it.
func (e env) mark(pod *corev1.Pod, key, value string) {
	e.Helper()
	require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(pod), pod))
	before := pod.DeepCopy()
	if value == "" {
		delete(pod.Labels, key)
	} else {
		pod.Labels[key] = value
	}
	require.NoError(e, e.Patch(e.Context(), pod, client.MergeFrom(before)))
}

// events are those of a reason about the CollaSet.
func (e env) events(set *appsv1alpha1.CollaSet, reason string) []string {
	e.Helper()
	list := &eventsv1.EventList{}
	require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
	var out []string
	for _, event := range list.Items {
		if event.Regarding.UID == set.UID && event.Reason == reason {
			assert.Nil(e, event.Series, "it is told of once")
			out = append(out, event.Note)
		}
	}
	return out
}

// saysOnce waits until an event says it, which comes after what it tells of, and demands that there is one only.
func (e env) saysOnce(set *appsv1alpha1.CollaSet, reason string) {
	e.Helper()
	e.eventually("an event says "+reason, func() string {
		if len(e.events(set, reason)) == 0 {
			return "none does"
		}
		return ""
	})
	assert.Len(e, e.events(set, reason), 1)
}

// startOf is when the container was started last.
func startOf(p corev1.Pod, container string) time.Time {
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == container && s.State.Running != nil {
			return s.State.Running.StartedAt.Time
		}
	}
	return time.Time{}
}
