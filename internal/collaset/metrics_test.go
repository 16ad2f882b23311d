package collaset

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/testkit/gathered"
)

func TestMetricsAreSound(t *testing.T) {
	for _, m := range Metrics() {
		assert.NoError(t, m.Check())
	}
}

func TestStateOf(t *testing.T) {
	condition := func(kind string, status metav1.ConditionStatus, reason appsv1alpha1.ConditionReason) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: string(reason)}
	}
	for want, set := range map[state]*appsv1alpha1.CollaSet{
		stateUnknown: {},
		stateDeleting: {ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: ptr.To(metav1.Now())},
			Status: appsv1alpha1.CollaSetStatus{Halted: &appsv1alpha1.HaltedRollout{}}},
		stateHalted: {Status: appsv1alpha1.CollaSetStatus{Halted: &appsv1alpha1.HaltedRollout{},
			Conditions: []metav1.Condition{
				condition(appsv1alpha1.CollaSetStalled, metav1.ConditionTrue, appsv1alpha1.ReasonRolloutHalted),
			}}},
		stateStalled: {Status: appsv1alpha1.CollaSetStatus{Conditions: []metav1.Condition{
			condition(appsv1alpha1.CollaSetStalled, metav1.ConditionTrue, appsv1alpha1.ReasonInvalidSpec),
		}}},
		stateOverdue: {Status: appsv1alpha1.CollaSetStatus{Conditions: []metav1.Condition{
			condition(appsv1alpha1.CollaSetReconciling, metav1.ConditionTrue, appsv1alpha1.ReasonUpdating),
			condition(appsv1alpha1.CollaSetProgressing, metav1.ConditionFalse, appsv1alpha1.ReasonProgressDeadlineExceeded),
		}}},
		statePaused: {Status: appsv1alpha1.CollaSetStatus{Conditions: []metav1.Condition{
			condition(appsv1alpha1.CollaSetProgressing, metav1.ConditionFalse, appsv1alpha1.ReasonPaused),
		}}},
		stateReconciling: {Status: appsv1alpha1.CollaSetStatus{Conditions: []metav1.Condition{
			condition(appsv1alpha1.CollaSetReconciling, metav1.ConditionTrue, appsv1alpha1.ReasonScaling),
			condition(appsv1alpha1.CollaSetProgressing, metav1.ConditionTrue, appsv1alpha1.ReasonScaling),
		}}},
		stateReady: {Status: appsv1alpha1.CollaSetStatus{Conditions: []metav1.Condition{
			condition(appsv1alpha1.CollaSetReady, metav1.ConditionTrue, appsv1alpha1.ReasonAvailable),
		}}},
	} {
		assert.Equal(t, want, stateOf(set))
	}
}

func reader(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, appsv1alpha1.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

func TestGauges(t *testing.T) {
	set := func(name string) *appsv1alpha1.CollaSet {
		return &appsv1alpha1.CollaSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec:       appsv1alpha1.CollaSetSpec{Replicas: ptr.To[int32](3)},
			Status: appsv1alpha1.CollaSetStatus{
				Replicas: 2, Halted: &appsv1alpha1.HaltedRollout{},
				Blockers: []appsv1alpha1.Blocker{{Reason: "BlockedByRule", Count: 2}},
			},
		}
	}
	c, elected := reader(t, set("a"), set("b")), make(chan struct{})
	g := newGauges(t.Context(), c, elected)
	assert.Empty(t, gathered.Lines(t, g), "a standby does not count")
	close(elected)
	lines := gathered.Lines(t, g)
	for _, line := range []string{
		"kuperator_collaset_sets{state=halted} 2", "kuperator_collaset_sets{state=ready} 0",
		"kuperator_collaset_pods{count=desired} 6", "kuperator_collaset_pods{count=current} 4",
		"kuperator_collaset_blocked_pods{reason=BlockedByRule} 4",
		"kuperator_collaset_replicas{collaset=b,count=desired,namespace=shop} 3",
		"kuperator_collaset_state{collaset=b,namespace=shop,state=halted} 1",
	} {
		assert.Contains(t, lines, line)
	}
	require.NoError(t, c.Delete(t.Context(), set("b")))
	assert.NotContains(t, strings.Join(gathered.Lines(t, g), "\n"), "collaset=b", "what is gone has no series")
}

func TestSeriesOfCollaSetsAreBounded(t *testing.T) {
	var sets []client.Object
	for i := range metric.Limit + 5 {
		sets = append(sets, &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop",
			Name: fmt.Sprintf("s-%04d", i)}})
	}
	elected := make(chan struct{})
	close(elected)
	lines := gathered.Lines(t, newGauges(t.Context(), reader(t, sets...), elected))
	assert.Contains(t, lines, fmt.Sprintf("kuperator_collaset_sets{state=unknown} %d", len(sets)), "totals count all")
	assert.Contains(t, lines, metric.LeftOut.Name+"{kind=CollaSet} 5")
	own := slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, stateMetric.Name) })
	assert.Len(t, own, metric.Limit)
}
