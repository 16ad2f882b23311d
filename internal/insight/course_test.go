package insight_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/insight"
)

// TestACourseHasImagesBudgetsAndDeadline: what a card of the live page has beside the Pods.
func TestACourseHasImagesBudgetsAndDeadline(t *testing.T) {
	facts := load(t, "rule")
	set := &facts.CollaSets[0]
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "web:2"}, {Name: "new", Image: "new:1"}}
	set.Spec.MinReadySeconds = 5
	set.Status.LastProgressTime = &metav1.Time{Time: noon}
	set.Status.NextUpdate = &appsv1alpha1.UpdateForecast{InPlace: true}
	partition := intstr.FromString("34%")
	set.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{
		ByPartition: &appsv1alpha1.ByPartition{Partition: &partition}}
	fleet := insight.Describe(facts)
	course := fleet.Workloads[0].Course
	require.Equal(t, []insight.CourseImage{{Container: "main", Image: "web:2", Before: "web:1"},
		{Container: "new", Image: "new:1"}}, course.Images)
	require.Equal(t, []string{"web"}, fleet.Workloads[0].Rules)
	require.Equal(t, insight.RolloutWaits, course.State)
	require.Equal(t, "34%", course.Partition)
	require.Equal(t, int32(2), course.Kept)
	require.True(t, *course.InPlace)
	require.Equal(t, noon.Add(605*time.Second), *course.Deadline)
	require.Equal(t, noon, *course.Progressed)
	require.Nil(t, course.Expected, "no Pod has been updated")

	set.Spec.ProgressDeadlineSeconds = ptr.To(appsv1alpha1.NoProgressDeadlineSeconds)
	require.Nil(t, insight.Describe(facts).Workloads[0].Course.Deadline)
	set.Spec.ProgressDeadlineSeconds, set.Spec.Paused = nil, true
	require.Nil(t, insight.Describe(facts).Workloads[0].Course.Deadline, "time while paused does not count")
}

// TestWhenARolloutEnds: as fast as the last Pods.
func TestWhenARolloutEnds(t *testing.T) {
	at := func(minutes ...float64) (times []time.Time) {
		for _, m := range minutes {
			times = append(times, noon.Add(time.Duration(m*float64(time.Minute))))
		}
		return times
	}
	for name, tc := range map[string]struct {
		done     []time.Time
		replicas int32
		kept     int
		want     float64 // minutes after noon; 0 means not known
	}{
		"a Pod a minute":                  {done: at(2, 0, 1), replicas: 5, want: 4},
		"those of a canary do not count":  {done: at(-600, 0, 1), replicas: 4, want: 2},
		"a partition keeps some":          {done: at(0, 1), replicas: 5, kept: 2, want: 2},
		"one tells nothing":               {done: at(0), replicas: 5},
		"neither do all at the same time": {done: at(0, 0, 0), replicas: 5},
		"all are done that are to be":     {done: at(0, 1), replicas: 5, kept: 3},
	} {
		t.Run(name, func(t *testing.T) {
			facts := load(t, "rule")
			set := &facts.CollaSets[0]
			set.Spec.Replicas = &tc.replicas
			partition := intstr.FromInt32(int32(tc.kept)) //nolint:gosec // small
			set.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{
				ByPartition: &appsv1alpha1.ByPartition{Partition: &partition}}
			serving := facts.Pods[2]
			facts.Pods = facts.Pods[2:3]
			for i, since := range tc.done {
				pod := serving.DeepCopy()
				pod.Name, pod.UID = string(rune('k'+i)), types.UID(rune('k'+i))
				pod.Labels["controller-revision-hash"] = "web-2"
				for j := range pod.Status.Conditions {
					pod.Status.Conditions[j].LastTransitionTime = metav1.NewTime(since)
				}
				facts.Pods = append(facts.Pods, *pod)
			}
			got := insight.Describe(facts).Workloads[0].Course.Expected
			if tc.want == 0 {
				require.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			require.InDelta(t, tc.want, got.Sub(noon).Minutes(), 0.01)
		})
	}
}

// TestHowManyMayBeOut: the plain bounds of checks for all Pods of a rule, the smallest of them.
func TestHowManyMayBeOut(t *testing.T) {
	value := func(text string) *intstr.IntOrString {
		v := intstr.Parse(text)
		return &v
	}
	check := func(p appsv1alpha1.AvailableRule) appsv1alpha1.TransitionRule {
		r := appsv1alpha1.TransitionRule{Name: "a"}
		r.AvailablePolicy = &p
		return r
	}
	two := check(appsv1alpha1.AvailableRule{MaxUnavailableValue: value("2")})
	forSome, disabled := two, two
	forSome.Filter, disabled.Disabled = &appsv1alpha1.TransitionRuleFilter{}, true
	share := check(appsv1alpha1.AvailableRule{MaxUnavailableValue: value("30%")})
	atLeast := check(appsv1alpha1.AvailableRule{MinAvailableValue: value("9")})
	never := check(appsv1alpha1.AvailableRule{MinAvailableValue: value("12")})
	for name, tc := range map[string]struct {
		checks []appsv1alpha1.TransitionRule
		want   *int32
	}{
		"a number":     {[]appsv1alpha1.TransitionRule{two}, ptr.To[int32](2)},
		"a percentage": {[]appsv1alpha1.TransitionRule{share}, ptr.To[int32](3)},
		"the smallest": {[]appsv1alpha1.TransitionRule{two, atLeast, share}, ptr.To[int32](1)},
		"none":         {[]appsv1alpha1.TransitionRule{never}, ptr.To[int32](0)},
		"no bound":     {nil, nil},
		"for some":     {[]appsv1alpha1.TransitionRule{forSome}, nil},
		"disabled":     {[]appsv1alpha1.TransitionRule{disabled}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			facts := load(t, "rule")
			facts.Rules[0].Spec.Rules, facts.Rules[0].Status.Desired = tc.checks, 10
			require.Equal(t, tc.want, insight.Describe(facts).Budgets[0].Allowed)
		})
	}
}

// TestBlockersAreCauses: what is wrong once for each code; that a budget is spent does not hide why, and that Pods are
// queued is not worth a sentence beside it.
func TestBlockersAreCauses(t *testing.T) {
	facts := load(t, "rule")
	w := insight.Describe(facts).Workloads[0]
	var codes []insight.Code
	for _, s := range insight.Blockers(&w) {
		codes = append(codes, s.Code)
	}
	require.Equal(t, []insight.Code{insight.CodeImagePull, insight.CodeBudgetSpent}, codes)
	w.Pods = nil
	blockers := insight.Blockers(&w)
	require.Len(t, blockers, 1, "without Pods the symptom is all that there is")
	require.Zero(t, blockers[0].Count)
}

// TestDetails: jobs, decorations, drains and events of one workload, and of no other.
func TestDetails(t *testing.T) {
	facts := load(t, "rule")
	pod := &facts.Pods[2]
	pod.Labels[appsv1alpha1.PodDecorationLabelPrefix+"proxy"] = "proxy-1"
	pod.Labels[appsv1alpha1.ToReplaceLabel] = "true"
	pod.Annotations = map[string]string{appsv1alpha1.ToReplaceLabel + podops.AskersSuffix: podops.AskerEviction}
	facts.Nodes = map[string]*corev1.Node{"n1": {Spec: corev1.NodeSpec{Unschedulable: true}}}
	facts.Pods[0].Spec.NodeName, facts.Pods[1].Spec.NodeName = "n2", "n2"
	job := func(name, target string) appsv1alpha1.OperationJob {
		return appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Status: appsv1alpha1.OperationJobStatus{TargetDetails: []appsv1alpha1.OpsStatus{{Name: target}}}}
	}
	facts.Jobs = []appsv1alpha1.OperationJob{job("restart-web", pod.Name), job("restart-db", "db-a")}
	facts.CollaSets[0].Spec.Disruption = &appsv1alpha1.Disruption{OnEviction: "Replace"}
	events := []corev1.Event{{Type: corev1.EventTypeNormal, Reason: "Started"},
		{Type: corev1.EventTypeWarning, Reason: "Failed"}}
	ofPods := []corev1.Event{
		{Type: corev1.EventTypeWarning, Reason: "Failed", Count: 3, LastTimestamp: metav1.NewTime(facts.Now.Add(-time.Hour))},
		{Type: corev1.EventTypeWarning, Reason: "BackOff", LastTimestamp: metav1.NewTime(facts.Now)},
		{Type: corev1.EventTypeNormal, Reason: "Pulled"}, {Type: corev1.EventTypeWarning, Reason: "Failed"}}
	for i := range ofPods {
		ofPods[i].InvolvedObject = corev1.ObjectReference{Kind: "Pod", Name: pod.Name}
	}
	ofPods[3].InvolvedObject.Name = "db-a"
	revisions := []insight.Revision{{Revision: 1, Name: "web-1"}}
	ref := insight.Ref{Kind: "CollaSet", Namespace: "shop", Name: "web"}
	d, found := insight.DetailsOf(facts, ref, revisions, events, ofPods)
	require.True(t, found)
	require.Equal(t, revisions, d.Revisions)
	require.Equal(t, []string{"restart-web"}, d.Jobs)
	require.Equal(t, []string{"proxy"}, d.Decorations)
	require.Equal(t, []insight.Leaving{{Pod: pod.Name, Node: "n1", Cordoned: true, Asked: "replaced"}}, d.Drains)
	require.Equal(t, "Replace", d.OnEviction)
	require.Len(t, d.Events, 2)
	require.True(t, d.Events[0].Normal)
	require.Len(t, d.PodEvents, 2, "no normal ones, and none of other workloads")
	require.Equal(t, insight.PodEvent{Pod: pod.Name, Event: insight.Event{Reason: "BackOff", Count: 1, Last: &facts.Now}},
		d.PodEvents[0])
	require.Equal(t, "Failed", d.PodEvents[1].Reason)
	require.NotNil(t, d.Blocker)

	ref.Name = "nothing"
	_, found = insight.DetailsOf(facts, ref, nil, nil, nil)
	require.False(t, found)
}
