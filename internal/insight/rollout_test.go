package insight_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

// rolling is a CollaSet of generation 2 with ten Pods, of which four are updated and three of those available.
func rolling(partition string, change func(*appsv1alpha1.CollaSet)) *appsv1alpha1.CollaSet {
	set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Generation: 2}}
	set.Spec.Replicas = ptr.To[int32](10)
	set.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByPartition: &appsv1alpha1.ByPartition{}}
	if partition != "" {
		set.Spec.UpdateStrategy.RollingUpdate.ByPartition.Partition = ptr.To(intstr.Parse(partition))
	}
	set.Status = appsv1alpha1.CollaSetStatus{ObservedGeneration: 2, CurrentRevision: "web-1", UpdatedRevision: "web-2",
		Replicas: 10, AvailableReplicas: 9, UpdatedReplicas: 4, UpdatedAvailableReplicas: 3}
	if change != nil {
		change(set)
	}
	return set
}

// says gives a CollaSet a condition of a generation.
func says(
	of string, status metav1.ConditionStatus, reason appsv1alpha1.ConditionReason, generation int64,
) func(*appsv1alpha1.CollaSet) {
	return func(set *appsv1alpha1.CollaSet) {
		set.Status.Conditions = append(set.Status.Conditions, metav1.Condition{Type: of, Status: status,
			Reason: string(reason), Message: "so it is", ObservedGeneration: generation})
	}
}

func both(changes ...func(*appsv1alpha1.CollaSet)) func(*appsv1alpha1.CollaSet) {
	return func(set *appsv1alpha1.CollaSet) {
		for _, change := range changes {
			change(set)
		}
	}
}

func TestRolloutOf(t *testing.T) {
	complete := says(appsv1alpha1.CollaSetProgressing, metav1.ConditionTrue, appsv1alpha1.ReasonRolloutComplete, 2)
	updated := func(replicas, available int32) func(*appsv1alpha1.CollaSet) {
		return func(set *appsv1alpha1.CollaSet) {
			set.Status.UpdatedReplicas, set.Status.UpdatedAvailableReplicas = replicas, available
		}
	}
	paused := func(set *appsv1alpha1.CollaSet) { set.Spec.Paused = true }
	unseen := func(set *appsv1alpha1.CollaSet) { set.Generation = 3 }
	byLabel := func(set *appsv1alpha1.CollaSet) {
		set.Spec.UpdateStrategy.RollingUpdate.ByLabel = &appsv1alpha1.ByLabel{}
	}
	for name, tc := range map[string]struct {
		partition string
		set       func(*appsv1alpha1.CollaSet)
		want      insight.RolloutState
		says      string
	}{
		"Pods are not updated yet":   {"", nil, insight.RolloutWaits, "4 of 10 Pods are updated"},
		"Pods are not available yet": {"", updated(10, 3), insight.RolloutWaits, "3 of 10 updated Pods are available"},
		"all are, and the controller has not noticed": {"", both(updated(10, 10), func(set *appsv1alpha1.CollaSet) {
			set.Status.AvailableReplicas = 10
		}), insight.RolloutWaits, "collaset-controller has not reported that it is complete"},
		"all are, and something is left to do": {"", both(updated(10, 10), func(set *appsv1alpha1.CollaSet) {
			set.Status.AvailableReplicas = 10
		}, says(appsv1alpha1.CollaSetProgressing, metav1.ConditionTrue, appsv1alpha1.ReasonUpdating, 2)),
			insight.RolloutWaits, "so it is"},
		"a surplus Pod is left": {"", both(updated(10, 10), func(set *appsv1alpha1.CollaSet) {
			set.Status.Replicas = 11
		}), insight.RolloutWaits, "1 Pod is to be removed"},
		"the partition lets some go": {"3", nil, insight.RolloutWaits, "4 of 7 Pods are updated"},
		"the partition is a share":   {"65%", updated(3, 2), insight.RolloutWaits, "2 of 3 updated Pods are available"},
		"one that stays is away":     {"6", updated(4, 4), insight.RolloutWaits, "9 of 10 Pods are available"},
		"as many as the partition has": {"6", both(updated(4, 4), complete), insight.RolloutDone,
			"the partition keeps back 6 Pods"},
		"the partition keeps all": {"100%", both(updated(0, 0), complete), insight.RolloutDone,
			"the partition keeps back 10 Pods"},
		"back to the current revision, whatever the partition": {"6", func(set *appsv1alpha1.CollaSet) {
			set.Status.UpdatedRevision = "web-1"
		}, insight.RolloutWaits, "4 of 10 Pods are updated"},
		"by label":      {"", byLabel, insight.RolloutWaits, "4 Pods are updated, and 3 of them are available"},
		"done by label": {"", both(byLabel, complete), insight.RolloutDone, "of Pods with the label"},
		"done":          {"", both(updated(10, 10), complete), insight.RolloutDone, ""},
		"done, of old": {"", both(updated(10, 10), complete, unseen), insight.RolloutWaits,
			"has not seen the present spec"},
		"done, of older": {"", both(complete, func(set *appsv1alpha1.CollaSet) {
			set.Generation,
				set.Status.ObservedGeneration = 3, 3
		}), insight.RolloutWaits, "4 of 10"},
		"paused":         {"", paused, insight.RolloutPaused, "resume it with kubectl kuperator -n shop resume collaset/web"},
		"paused, unseen": {"", both(paused, unseen), insight.RolloutPaused, "resume it with"},
		"paused once it was done": {"", both(updated(10, 10), complete, paused), insight.RolloutDone,
			""},
		"deleted": {"", both(complete, func(set *appsv1alpha1.CollaSet) {
			set.DeletionTimestamp = ptr.To(metav1.Now())
		}), insight.RolloutFailed, "is being deleted"},
		"stalled": {"", says(appsv1alpha1.CollaSetStalled, metav1.ConditionTrue, appsv1alpha1.ReasonRolloutHalted, 2),
			insight.RolloutFailed, "RolloutHalted: so it is"},
		"stalled, of old": {"", both(says(appsv1alpha1.CollaSetStalled, metav1.ConditionTrue,
			appsv1alpha1.ReasonInvalidSpec, 2), unseen), insight.RolloutWaits, "has not seen the present spec"},
		"not stalled": {"", says(appsv1alpha1.CollaSetStalled, metav1.ConditionFalse, appsv1alpha1.ReasonReconciled, 2),
			insight.RolloutWaits, "4 of 10"},
		"too slow": {"", says(appsv1alpha1.CollaSetProgressing, metav1.ConditionFalse,
			appsv1alpha1.ReasonProgressDeadlineExceeded, 2), insight.RolloutFailed, "ProgressDeadlineExceeded: so it is"},
		"an attempt failed": {"", says(appsv1alpha1.CollaSetUpdate, metav1.ConditionFalse,
			appsv1alpha1.ReasonUpdateFailed, 2),
			insight.RolloutWaits, "4 of 10"},
		"of no Pods": {"3", both(updated(0, 0), func(set *appsv1alpha1.CollaSet) {
			set.Spec.Replicas = nil
			set.Status.Replicas, set.Status.AvailableReplicas = 0, 0
		}, complete), insight.RolloutDone, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := insight.RolloutOf(rolling(tc.partition, tc.set))
			require.Equal(t, tc.want, got.State, got.Message)
			require.Contains(t, got.Message, tc.says)
			require.Equal(t, tc.says == "", got.Message == "")
		})
	}
}

// TestWhatARolloutWaitsFor is the blocker of most Pods, but for those that wait for their turn because of others.
func TestWhatARolloutWaitsFor(t *testing.T) {
	set := rolling("", func(set *appsv1alpha1.CollaSet) {
		set.Status.Blockers = []appsv1alpha1.Blocker{{Reason: "MaxUnavailable", Message: "enough are", Count: 4},
			{Reason: "ContainersFail", Message: "no image", Count: 2}, {Reason: "Other"}}
	})
	require.Equal(t, "ContainersFail: no image (2 Pods)", insight.RolloutOf(set).Blocker)
	set.Status.Blockers = set.Status.Blockers[:1]
	require.Equal(t, "MaxUnavailable: enough are (4 Pods)", insight.RolloutOf(set).Blocker)
}

func TestPromote(t *testing.T) {
	atRest := func(set *appsv1alpha1.CollaSet) { set.Status.CurrentRevision = "web-2" }
	for name, tc := range map[string]struct {
		from, to string
		set      func(*appsv1alpha1.CollaSet)
		want     []string // nil for no change
		err      string
	}{
		"all": {from: "6", want: []string{"partition 6 -> 0",
			"10 of 10 Pods are to be at web-2: 6 more than now"}},
		"some": {from: "6", to: "3", want: []string{"partition 6 -> 3",
			"7 of 10 Pods are to be at web-2: 3 more than now"}},
		"to a percentage": {from: "6", to: "25%", want: []string{"partition 6 -> 25%",
			"7 of 10 Pods are to be at web-2: 3 more than now"}},
		"another form of it": {from: "6", to: "60%", want: []string{"partition 6 -> 60%",
			"4 Pods are updated to web-2 already: no other one is updated now"}},
		"the same":   {from: "30%", to: "30%"},
		"none there": {},
		"0 there":    {from: "0"},
		"more": {from: "3", to: "4",
			err: "collaset/web keeps back 3 Pods, and promote cannot hold back more (4)"},
		"any, where there is no": {to: "1", err: "cannot hold back more (1)"},
		"beyond the replicas": {from: "20", to: "12", want: []string{"partition 20 -> 12",
			"4 Pods are updated to web-2 already: no other one is updated now"}},
		"at rest": {from: "6", set: atRest, want: []string{"partition 6 -> 0",
			"no rollout is under way: it applies to the next one"}},
		"an unseen spec": {from: "6", set: func(set *appsv1alpha1.CollaSet) { set.Generation = 3 },
			want: []string{"partition 6 -> 0"}},
		"by label": {from: "6", set: func(set *appsv1alpha1.CollaSet) {
			set.Spec.UpdateStrategy.RollingUpdate.ByLabel = &appsv1alpha1.ByLabel{}
		}, err: "choose Pods with kubectl -n shop label pod NAME collaset.kusionstack.io/update-included=true"},
		"halted": {from: "6", set: func(set *appsv1alpha1.CollaSet) {
			set.Status.Halted = &appsv1alpha1.HaltedRollout{Revision: "web-2"}
		}, want: []string{"partition 6 -> 0", "no Pod is updated: the rollout to web-2 was stopped by " +
			"spec.updateStrategy.failurePolicy, and the template has to be changed first"}},
	} {
		t.Run(name, func(t *testing.T) {
			var to *intstr.IntOrString
			if tc.to != "" {
				to = ptr.To(intstr.Parse(tc.to))
			}
			got, err := insight.Promote(rolling(tc.from, tc.set), to)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want != nil, got.Changed)
			require.Equal(t, tc.want, got.Details)
		})
	}
}
