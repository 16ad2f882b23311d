package plugin

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/revision"
)

// dataFor is a revision with one container.
func dataFor(t *testing.T, image string, env ...any) *revision.Data {
	t.Helper()
	container := map[string]any{"name": "main", "image": image}
	if len(env) > 0 {
		container["env"] = env
	}
	raw, err := revision.Render(
		map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{container}}}})
	require.NoError(t, err)
	data, err := revision.Parse(raw)
	require.NoError(t, err)
	return data
}

// fourPods are web-0 to web-3 at revision r1, all in service; the last has served for the shortest time.
func fourPods() []corev1.Pod {
	var pods []corev1.Pod
	for i := range 4 {
		at := metav1.NewTime(time.Date(2026, 3, 1, 8+i, 0, 0, 0, time.UTC))
		pods = append(pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("web-%d", i), CreationTimestamp: at,
				Labels: map[string]string{
					appsv1alpha1.ControlLabel: "true", appsv1alpha1.InstanceIDLabel: fmt.Sprint(i),
					appsv1.ControllerRevisionHashLabelKey: "r1", podops.ServiceAvailableLabel: "1",
				}},
			Spec: corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at},
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
				{Type: podops.ServiceReadyCondition, Status: corev1.ConditionTrue},
			}},
		})
	}
	return pods
}

// TestForecast: what the update strategy and the policy make of a change, in the order of collaset-controller's
// decision.
func TestForecast(t *testing.T) {
	newImage, newEnv := dataFor(t, "web:2"), dataFor(t, "web:2", map[string]any{"name": "A", "value": "b"})
	for name, tc := range map[string]struct {
		change func(*appsv1alpha1.CollaSet, []corev1.Pod)
		wanted *revision.Data
		want   string
		fields []string
	}{
		"an image, in place, the youngest first": {
			wanted: newImage, want: "web-3:inPlace web-2:inPlace web-1:inPlace web-0:inPlace",
		},
		"an environment, anew": {
			wanted: newEnv, want: "web-3:recreate web-2:recreate web-1:recreate web-0:recreate",
			fields: []string{"template.spec.containers[main].env"},
		},
		"a Pod that does not serve comes first": {
			change: func(_ *appsv1alpha1.CollaSet, pods []corev1.Pod) {
				delete(pods[1].Labels, podops.ServiceAvailableLabel)
				pods[1].Status.Conditions[0].Status = corev1.ConditionFalse
			},
			wanted: newImage, want: "web-1:inPlace web-3:inPlace web-2:inPlace web-0:inPlace",
		},
		"a partition": {
			change: func(set *appsv1alpha1.CollaSet, _ []corev1.Pod) {
				set.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByPartition: &appsv1alpha1.ByPartition{Partition: ptr.To(intstr.FromString("50%"))}}
			},
			wanted: newImage, want: "web-3:inPlace web-2:inPlace web-0:held web-1:held",
		},
		"by label": {
			change: func(set *appsv1alpha1.CollaSet, pods []corev1.Pod) {
				set.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByLabel: &appsv1alpha1.ByLabel{}}
				pods[2].Labels[appsv1alpha1.UpdateIncludedLabel] = "true"
			},
			wanted: newImage, want: "web-2:inPlace web-0:held web-1:held web-3:held",
		},
		"InPlaceOnly refuses what it cannot do": {
			change: func(set *appsv1alpha1.CollaSet, _ []corev1.Pod) {
				set.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceOnly
			},
			wanted: newEnv, want: "web-0:refused web-1:refused web-2:refused web-3:refused",
			fields: []string{"template.spec.containers[main].env"},
		},
		"Replace": {
			change: func(set *appsv1alpha1.CollaSet, _ []corev1.Pod) {
				set.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateReplace
			},
			wanted: newImage, want: "web-3:replace web-2:replace web-1:replace web-0:replace",
		},
		"paused is planned as well": {
			change: func(set *appsv1alpha1.CollaSet, _ []corev1.Pod) { set.Spec.Paused = true },
			wanted: newImage, want: "web-3:inPlace web-2:inPlace web-1:inPlace web-0:inPlace",
		},
		"scale-in beside an update": {
			change: func(set *appsv1alpha1.CollaSet, _ []corev1.Pod) { set.Spec.Replicas = ptr.To[int32](2) },
			wanted: newImage, want: "web-1:inPlace web-0:inPlace web-2:scaledIn web-3:scaledIn",
		},
		"nothing changes": {wanted: dataFor(t, "web:1"), want: "web-0:updated web-1:updated web-2:updated web-3:updated"},
	} {
		t.Run(name, func(t *testing.T) {
			set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Name: "web"},
				Spec: appsv1alpha1.CollaSetSpec{Replicas: ptr.To[int32](4)}}
			set.Status.CurrentRevision = "r1"
			m := material{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), set: set, pods: fourPods(), wanted: tc.wanted,
				contents: map[string]*revision.Data{"r1": dataFor(t, "web:1")}}
			if tc.change != nil {
				tc.change(set, m.pods)
			}
			m.wantedIs = sameRevision(m.wanted, m.contents)
			ways, fields, pods := foretell(m)
			got, total := "", 0
			for _, p := range pods {
				got += " " + p.Name + ":" + string(p.Way)
			}
			for _, n := range ways {
				total += n
			}
			require.Equal(t, " "+tc.want, got)
			require.Equal(t, tc.fields, fields)
			require.Equal(t, 4, total, "every Pod is in it once")
		})
	}
}
