package plugin

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"

	"kusionstack.io/kuperator/internal/insight"
)

func TestDoctorLooksForTheLabelOfTheNamespace(t *testing.T) {
	namespace := func(labels map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: insight.SystemNamespace, Labels: labels}}
	}
	for name, test := range map[string]struct {
		namespace *corev1.Namespace
		level     insight.Level
		next      string
	}{
		"labelled": {namespace(map[string]string{"kuperator.kusionstack.io/installation": "true"}), insight.LevelOK, ""},
		"as Helm makes it": {namespace(nil), insight.LevelWarning,
			"kubectl label namespace kuperator-system kuperator.kusionstack.io/installation=true"},
		"elsewhere": {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, insight.LevelProblem,
			"install the suite, or say where it is with --suite-namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &session{system: insight.SystemNamespace, kube: kubefake.NewClientset(test.namespace)}
			var d insight.Diagnosis
			s.checkNamespace(t.Context(), &d)
			require.Len(t, d.Findings, 1)
			assert.Equal(t, test.level, d.Findings[0].Level)
			assert.Equal(t, test.next, d.Findings[0].Next)
		})
	}
}
