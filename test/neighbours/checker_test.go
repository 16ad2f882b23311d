package neighbours

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// aPod is one in service with an instance ID, and its own claim.
func aPod(uid, id string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-" + uid, UID: types.UID(uid), Labels: map[string]string{appsv1alpha1.InstanceIDLabel: id},
		},
		Spec: corev1.PodSpec{
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "gate"}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-" + id},
			}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: "gate", Status: corev1.ConditionTrue},
		}},
	}
}

func TestCheckerFindsWhatIsBroken(t *testing.T) {
	with := func(p *corev1.Pod, how func(*corev1.Pod)) *corev1.Pod { how(p); return p }
	ends := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	for name, test := range map[string]struct {
		happens func(*view)
		finds   string // "" for nothing
	}{
		"nothing": {happens: func(v *view) { v.pod(aPod("a", "0"), false) }},
		"the readiness gate of one Pod too many closes": {
			finds: "1 Pods were in service, and at least 2 had to be",
			happens: func(v *view) {
				v.pod(with(aPod("b", "1"), func(p *corev1.Pod) {
					p.Status.Conditions[1].Status = corev1.ConditionFalse
				}), false)
			},
		},
		"one Pod too many is not Ready": {
			finds: "1 Pods were in service",
			happens: func(v *view) {
				v.pod(with(aPod("b", "1"), func(p *corev1.Pod) { p.Status.Conditions = nil }), false)
			},
		},
		"one Pod too many is deleted": {finds: "1 Pods were in service", happens: func(v *view) {
			v.pod(aPod("b", "1"), true)
		}},
		"one Pod too many is being deleted": {finds: "1 Pods were in service", happens: func(v *view) {
			v.pod(with(aPod("b", "1"), ends), false)
		}},
		"a second Pod of an ID": {finds: "instance ID 0 of Pod web-a", happens: func(v *view) {
			v.pod(aPod("c", "0"), false)
		}},
		"a second Pod of the ID of one that lost the label": {
			finds: "instance ID 0 of Pod web-a",
			happens: func(v *view) {
				v.pod(with(aPod("a", "0"), func(p *corev1.Pod) { p.Labels = nil }), false)
				v.pod(with(aPod("c", "0"), func(p *corev1.Pod) { p.Spec.Volumes = nil }), false)
			},
		},
		"a second Pod of a claim": {
			finds: "the claim data-0 of Pod web-a",
			happens: func(v *view) {
				v.pod(with(aPod("c", "7"), func(p *corev1.Pod) { p.Spec.Volumes = aPod("", "0").Spec.Volumes }), false)
			},
		},
		"a successor": {happens: func(v *view) {
			v.atLeast(1)
			v.pod(aPod("a", "0"), true)
			v.pod(aPod("c", "0"), false)
		}},
		"the ID of a Pod that was released": {happens: func(v *view) {
			v.pod(with(aPod("a", "0"), func(p *corev1.Pod) {
				p.Labels[appsv1alpha1.OrphanedLabel] = "true"
				p.Spec.Volumes = nil
			}), false)
			v.pod(aPod("c", "0"), false)
		}},
		"a Pod that was to stay": {finds: "Pod web-a was deleted", happens: func(v *view) {
			v.atLeast(0)
			v.keepAll()
			v.pod(aPod("a", "0"), true)
		}},
		"a claim that was to stay": {finds: "claim data-0 was deleted", happens: func(v *view) {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-0", UID: "claim"}}
			v.claim(claim, false)
			v.keepAll()
			v.claim(claim, true)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			v := &view{checker: newChecker()}
			v.pod(aPod("a", "0"), false)
			v.pod(aPod("b", "1"), false)
			v.atLeast(2)
			test.happens(v)
			if test.finds == "" {
				require.Empty(t, v.verdict())
				return
			}
			require.Contains(t, strings.Join(v.verdict(), "\n"), test.finds)
		})
	}
}

func TestSelections(t *testing.T) {
	all := combinations()
	names := map[string]bool{}
	for _, c := range all {
		require.False(t, names[c.String()], "%s is there once", c)
		names[c.String()] = true
	}
	require.Len(t, choose(all, shortSelection, 1), shortSelection)
	chosen := choose(all, longSelection, 1)
	require.Equal(t, fmt.Sprint(chosen), fmt.Sprint(choose(all, longSelection, 1)), "a seed gives one selection")
	require.NotEqual(t, fmt.Sprint(chosen), fmt.Sprint(choose(all, longSelection, 2)))
	met := map[[2]string]bool{}
	for _, c := range chosen {
		for _, pair := range c.pairs() {
			met[pair] = true
		}
	}
	for _, c := range all {
		for _, pair := range c.pairs() {
			require.True(t, met[pair], "%v are met by one of %d of %d combinations", pair, len(chosen), len(all))
		}
	}
}
