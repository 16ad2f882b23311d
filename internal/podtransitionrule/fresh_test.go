package podtransitionrule

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

func TestWhetherACacheShowsTheBaseline(t *testing.T) {
	fresh := &freshness.Namespace{{Listed: "100", Versions: map[types.UID]string{"a": "10", "b": "20"}}, {Listed: "100"}}
	cached := func(uidAndVersion ...string) []grants.Pod {
		var pods []grants.Pod
		for i := 0; i < len(uidAndVersion); i += 2 {
			pods = append(pods, grants.Pod{View: podops.View{UID: types.UID(uidAndVersion[i]),
				ResourceVersion: uidAndVersion[i+1]}})
		}
		return pods
	}
	tests := map[string]struct {
		cached []grants.Pod
		want   bool
	}{
		"the same versions": {cached("a", "10", "b", "20"), true},
		"later versions":    {cached("a", "101", "b", "20"), true},
		"an older version":  {cached("a", "9", "b", "20"), false},
		"one is missing: not yet seen, or deleted since":           {cached("a", "10"), false},
		"one that was deleted before is still there":               {cached("a", "10", "b", "20", "old", "50"), false},
		"one that was created since":                               {cached("a", "10", "b", "20", "new", "101"), true},
		"versions that cannot be compared are not trusted":         {cached("a", "10", "b", "x"), false},
		"as text 9 would be later than 10, as a version it is not": {cached("a", "9", "b", "20"), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, observed{pods: tc.cached}.shows(fresh)) })
	}
}

func TestAStrippedPodReadsTheSameForADecision(t *testing.T) {
	full := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "p", UID: "u", ResourceVersion: "7", DeletionTimestamp: ptr.To(metav1.Now()),
			Labels:          map[string]string{"app": "web"},
			Annotations:     map[string]string{podops.SkipRulesAnnotation: `{"skipRules":["x"]}`, "big": "text"},
			OwnerReferences: []metav1.OwnerReference{{UID: "other"}, {UID: "owner", Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "big"}}},
		Status: corev1.PodStatus{Phase: corev1.PodFailed, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, Message: "long"},
		}},
	}
	stripped, err := strip(full.DeepCopy())
	require.NoError(t, err)
	pod, ok := stripped.(*corev1.Pod)
	require.True(t, ok)
	want := podops.Read(full)
	want.Annotations = map[string]string{podops.SkipRulesAnnotation: `{"skipRules":["x"]}`}
	if diff := cmp.Diff(want, podops.Read(pod)); diff != "" {
		t.Errorf("view of the stripped Pod (-want +got):\n%s", diff)
	}
	assert.Equal(t, types.UID("owner"), ownerUID(pod))
	assert.Len(t, pod.Status.Conditions, 1)
	assert.Equal(t, corev1.PodSpec{NodeName: "n"}, pod.Spec)
	assert.False(t, podChanged(full, full.DeepCopy()))
	changed := full.DeepCopy()
	changed.Status.Conditions[1].Status = corev1.ConditionFalse
	assert.True(t, podChanged(full, changed))
	broken := full.DeepCopy()
	broken.Annotations[podops.AvailableConditionsAnnotation] = "{"
	kept := stripPod(broken)
	assert.Equal(t, "{", kept.Annotations[podops.AvailableConditionsAnnotation])
	assert.True(t, podChanged(pod, kept))
	noted, moved := full.DeepCopy(), full.DeepCopy()
	noted.Annotations[podops.RuleDetailPrefix+"/r"] = "waits"
	moved.Spec.NodeName = "m"
	assert.False(t, podChanged(full, noted), "a note is our own")
	assert.Equal(t, "waits", stripPod(noted).Annotations[podops.RuleDetailPrefix+"/r"])
	assert.True(t, podChanged(full, moved))
}
