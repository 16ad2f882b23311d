package bootstrap

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOnlyAnnotations(t *testing.T) {
	all := map[string]string{"a/x": "1", "a/y": "2", "b/x": "3"}
	of := func(domain string) func(string) bool {
		return func(key string) bool { return strings.HasPrefix(key, domain+"/") }
	}
	require.Equal(t, map[string]string{"a/x": "1", "a/y": "2"}, OnlyAnnotations(all, of("a")))
	require.Nil(t, OnlyAnnotations(all, of("c")))
	require.Nil(t, OnlyAnnotations(nil, of("a")))
	require.Len(t, all, 3, "what it was given stays as it is")
}

func TestOnlyConditions(t *testing.T) {
	all := []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
		{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "R", Message: "m", LastTransitionTime: metav1.Now(),
			LastProbeTime: metav1.Now()},
		{Type: "gate", Status: corev1.ConditionUnknown},
	}
	require.Equal(t, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse},
		{Type: "gate", Status: corev1.ConditionUnknown}},
		OnlyConditions(all, "gate", corev1.PodReady))
	require.Nil(t, OnlyConditions(all, corev1.ContainersReady))
}
