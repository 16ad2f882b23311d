package insight_test

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/insight"
)

// somePod has any labels of the protocol, whether they make sense together or not.
func somePod(t *rapid.T, i int) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("web-%d", i),
		UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{"app": "web"}}}
	for _, prefix := range []string{podops.OperatingPrefix, podops.OperationTypePrefix, podops.PreCheckPrefix,
		podops.PreCheckedPrefix, podops.PreparingPrefix, podops.OperatePrefix,
		podops.OperatedPrefix, podops.PostCheckPrefix, podops.PostCheckedPrefix, podops.CompletingPrefix,
		podops.UndoOperationTypePrefix} {
		for _, id := range []string{"collaset", "pod-delete", "other"} {
			if rapid.IntRange(0, 5).Draw(t, prefix+id) == 0 {
				pod.Labels[prefix+"/"+id] = rapid.SampledFrom([]string{"", "update", "1772366400000000000"}).Draw(t, "value")
			}
		}
	}
	for _, label := range []string{podops.ServiceAvailableLabel, podops.CreatingLabel, podops.StayOfflineLabel} {
		if rapid.Bool().Draw(t, label) {
			pod.Labels[label] = "1"
		}
	}
	if rapid.Bool().Draw(t, "held") {
		pod.Finalizers = []string{podops.ProtectionFinalizerPrefix + "/a", "example.com/b"}
	}
	pod.Spec.NodeName = rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node")
	pod.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodPending, corev1.PodRunning,
		corev1.PodFailed}).Draw(t, "phase")
	for _, c := range []corev1.PodConditionType{corev1.PodReady, corev1.PodScheduled, podops.ServiceReadyCondition,
		podops.OverdueCondition} {
		status := rapid.SampledFrom([]corev1.ConditionStatus{"", corev1.ConditionTrue, corev1.ConditionFalse}).Draw(
			t, string(c))
		if status != "" {
			pod.Status.Conditions = append(pod.Status.Conditions,
				corev1.PodCondition{Type: c, Status: status, LastTransitionTime: metav1.NewTime(noon)})
		}
	}
	if rapid.Bool().Draw(t, "terminating") {
		pod.DeletionTimestamp = &metav1.Time{Time: noon.Add(-time.Minute)}
	}
	return pod
}

// TestAnyPodIsExplained: for every label set a Pod is in one state, one that is not in service has a reason, every
// operation has one, and the last of those is what the protocol says.
func TestAnyPodIsExplained(t *testing.T) {
	base := load(t, "rule")
	rapid.Check(t, func(t *rapid.T) {
		facts := base
		facts.Pods = []corev1.Pod{somePod(t, 0)}
		answer, found := insight.Why(facts, podRef("web-0"), nil)
		if !found {
			t.Fatal("the Pod is there")
		}
		pod := answer.Pod
		if !slices.Contains(insight.States(), pod.State) {
			t.Fatalf("state %q", pod.State)
		}
		serves := pod.State == insight.StateServing || pod.State == insight.StateWaiting
		if !serves && answer.Blocker == nil {
			t.Fatalf("%s, and nobody knows why", pod.State)
		}
		waits := podops.ExplainWith(podops.Read(&facts.Pods[0]), podops.Surroundings{Frozen: "", Brief: true})
		for _, o := range pod.Operations {
			if len(o.Reasons) == 0 {
				t.Fatalf("operation %s has no reason", o.ID)
			}
			at := slices.IndexFunc(waits, func(w podops.Wait) bool { return w.ID == o.ID })
			if at < 0 || string(waits[at].Phase) != o.Phase {
				t.Fatalf("operation %s is not the protocol's: %+v", o.ID, waits)
			}
		}
		for _, r := range answer.Reasons {
			if r.Code == "" || r.Message == "" {
				t.Fatalf("%+v says nothing", r)
			}
		}
	})
}

// TestOrderDoesNotMatter: the picture is one of the objects, not of the order in which they were listed.
func TestOrderDoesNotMatter(t *testing.T) {
	base := load(t, "rule")
	rapid.Check(t, func(rt *rapid.T) {
		facts := base
		facts.Pods = slices.Clone(base.Pods)
		for i := range rapid.IntRange(0, 4).Draw(rt, "pods") {
			facts.Pods = append(facts.Pods, somePod(rt, i))
		}
		want, err := json.Marshal(insight.Describe(facts))
		if err != nil {
			rt.Fatal(err)
		}
		facts.Pods = slices.Clone(facts.Pods)
		rand.New(rand.NewSource(int64(rapid.IntRange(0, 1000).Draw(rt, "seed")))).Shuffle(len(facts.Pods), func(i, j int) {
			facts.Pods[i], facts.Pods[j] = facts.Pods[j], facts.Pods[i]
		})
		got, err := json.Marshal(insight.Describe(facts))
		if err != nil {
			rt.Fatal(err)
		}
		if string(want) != string(got) {
			rt.Fatalf("another order, another picture:\n%s", cmp.Diff(string(want), string(got)))
		}
	})
}

// TestEveryPodIsCountedOnce, also with ten thousand of them.
func TestEveryPodIsCountedOnce(t *testing.T) {
	facts := load(t, "rule")
	like := facts.Pods[0]
	facts.Pods = facts.Pods[1:]
	const n = 10_000
	for i := range n - 2 {
		pod := *like.DeepCopy()
		pod.Name, pod.UID = fmt.Sprintf("web-%d", i), types.UID(fmt.Sprint(i))
		facts.Pods = append(facts.Pods, pod)
	}
	fleet := insight.Describe(facts)
	total := 0
	for _, count := range fleet.Counts {
		total += count
	}
	require.Equal(t, n, total)
	require.Len(t, fleet.Workloads, 1)
	require.Len(t, fleet.Workloads[0].Pods, n)
	require.Equal(t, n-2, fleet.Counts[insight.StateWaiting])
}

// TestFreezeIsReadAsItIsWritten, and whatever else an annotation says is its reason.
func TestFreezeIsReadAsItIsWritten(t *testing.T) {
	until := noon.Add(time.Hour)
	for _, f := range []insight.Freeze{{Why: "release week"}, {Why: "a; by b", By: "alice"},
		{Why: "x", By: "alice", Until: &until}, {Why: "x", Until: &until}, {}} {
		require.Equal(t, f, insight.ParseFreeze(f.Value()), "%q", f.Value())
	}
	require.Equal(t, "incident; until tomorrow", insight.ParseFreeze("incident; until tomorrow").Why)
}
