package collaset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// TestRetriesAreOneEventAndOneWrite has the API server refuse each attempt in words of its own.
func TestRetriesAreOneEventAndOneWrite(t *testing.T) {
	refusal := func(object client.Object) error {
		name := object.GetName()
		if name == "" {
			name = object.GetGenerateName() + utilrand.String(5)
		}
		return apierrors.NewForbidden(pods, name, fmt.Errorf("policy %d of request-id: %08x at %s denies Pod/%s",
			7, rand.Uint32()|1, time.Now().Format(time.RFC3339Nano), name))
	}
	for name, tc := range map[string]struct {
		what   string
		change func(*appsv1alpha1.CollaSetSpec)
		reason string
	}{
		"creations": {"create Pod", replicas(40), "ScaleOutFailed"},
		"updates":   {"patch Pod", image("nginx:2"), "UpdateFailed"},
		"both":      {" Pod", both(replicas(40), image("nginx:2")), "UpdateFailed"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true, collaSet(9))
			w.settle()
			w.told()
			w.forget()
			w.change(tc.change)
			w.refuse = func(what string, object client.Object) error {
				if strings.HasSuffix(what, tc.what) {
					return refusal(object)
				}
				return nil
			}
			attempts := 0
			for range 100 {
				w.see()
				_, err := w.reconcile()
				if err != nil {
					attempts++
				}
				w.clock.Step(5 * time.Second)
			}
			require.Greater(t, attempts, 20)
			events := w.told()
			failed := slices.DeleteFunc(slices.Clone(events), func(e string) bool { return !containsWord(e, tc.reason) })
			assert.Len(t, failed, 1, "%v", events)
			assert.LessOrEqual(t, w.count("patch CollaSet/status"), 2, "the new generation, and the answer")
			assert.NotRegexp(t, `\d{4}-\d\d-\d\dT`, failed[0])
		})
	}
}

// TestTheLastEventIsOfTheRolloutThatGoesOn: a rollout that is complete is no news of the next one.
func TestTheLastEventIsOfTheRolloutThatGoesOn(t *testing.T) {
	for name, policy := range map[string]appsv1alpha1.PodUpdatePolicy{
		"in place": appsv1alpha1.PodUpdateInPlaceIfPossible, "re-created": appsv1alpha1.PodUpdateRecreate,
	} {
		for _, partitioned := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, partition %v", name, partitioned), func(t *testing.T) {
				set := collaSet(3)
				set.Spec.UpdateStrategy.PodUpdatePolicy = policy
				w := newWorld(t, false, set)
				w.carryOut()
				w.change(image("nginx:2"))
				w.carryOut()
				require.Equal(t, appsv1alpha1.ReasonRolloutComplete, lastReason(w.reasons()))
				change := image("nginx:non-exist")
				if partitioned {
					change = both(change, partition(2))
				}
				w.change(change)
				var told []string
				for range 12 {
					w.see()
					_, err := w.reconcile()
					require.NoError(t, err)
					told = append(told, w.reasons()...)
					assert.NotContains(t, told, string(appsv1alpha1.ReasonRolloutComplete))
					assert.NotEqual(t, string(appsv1alpha1.ReasonRolloutComplete),
						w.condition(appsv1alpha1.CollaSetProgressing).Reason)
					assert.NotEqual(t, string(appsv1alpha1.ReasonUpdated), w.condition(appsv1alpha1.CollaSetUpdate).Reason)
					w.clock.Step(5 * time.Second)
				}
				assert.Contains(t, told, "RolloutBegun")
				w.clock.Step(10 * time.Minute)
				w.see()
				_, err := w.reconcile()
				require.NoError(t, err)
				assert.Equal(t, appsv1alpha1.ReasonProgressDeadlineExceeded, lastReason(w.reasons()), "by the default deadline")
				w.change(func(s *appsv1alpha1.CollaSetSpec) {
					s.ProgressDeadlineSeconds = ptr.To(appsv1alpha1.NoProgressDeadlineSeconds)
				})
				w.see()
				result, err := w.reconcile()
				require.NoError(t, err)
				assert.NotEqual(t, string(appsv1alpha1.ReasonProgressDeadlineExceeded),
					w.condition(appsv1alpha1.CollaSetProgressing).Reason)
				assert.Nil(t, w.set().Status.LastProgressTime, "and none if it is switched off")
				assert.Zero(t, result.RequeueAfter)
			})
		}
	}
}

func lastReason(reasons []string) appsv1alpha1.ConditionReason {
	return appsv1alpha1.ConditionReason(reasons[len(reasons)-1])
}

// TestABadImageIsTold: once, in an event of the CollaSet, and for as long as it is so in status.blockers.
func TestABadImageIsTold(t *testing.T) {
	w := newWorld(t, false, collaSet(3))
	w.carryOut()
	w.change(image("nginx:non-exist"))
	w.told()
	for _, reason := range []string{"ErrImagePull", "ImagePullBackOff", "ErrImagePull", "ImagePullBackOff"} {
		w.see()
		w.look()
		for _, pod := range w.pods() {
			if pod.Spec.Containers[0].Image == "nginx:non-exist" {
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name,
					State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
				pod.Status.Conditions = nil
				require.NoError(t, w.store.Status().Update(t.Context(), &pod))
			}
		}
		w.clock.Step(time.Minute)
	}
	w.see()
	w.look()
	b := blockerOf(&w.set().Status, setplan.BlockContainersFail)
	require.NotNil(t, b, "%v", w.set().Status.Blockers)
	assert.Positive(t, b.Count)
	assert.Regexp(t, "^Pod .*: container .* cannot start: its image nginx:non-exist cannot be pulled$", b.Message)
	assert.Nil(t, blockerOf(&w.set().Status, "WaitingForContainers"), "one reason for one Pod")
	told := slices.DeleteFunc(w.told(), func(e string) bool { return !containsWord(e, setplan.BlockContainersFail) })
	require.Len(t, told, 1)
	assert.Contains(t, told[0], "Warning ContainersFail Pod ")

	w.change(image("nginx:2"))
	w.carryOut()
	assert.Nil(t, blockerOf(&w.set().Status, setplan.BlockContainersFail))
}
