package plugin

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
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

func TestDoctorTellsWhichVersionsRun(t *testing.T) {
	of := func(name, image string, labels map[string]string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: insight.SystemNamespace, Name: name,
			Labels: map[string]string{"app.kubernetes.io/part-of": "kuperator"}}}
		maps.Copy(d.Labels, labels)
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: image}}
		d.Status.ReadyReplicas = 1
		return d
	}
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	label := map[string]string{"app.kubernetes.io/version": "v2"}
	for name, test := range map[string]struct {
		a, b *appsv1.Deployment
		want string
	}{
		"one tag":           {of("a", "org/a:v2", nil), of("b", "org/b:v2", nil), "2 Deployments of v2;"},
		"two tags":          {of("a", "org/a:v1", nil), of("b", "org/b:v2", nil), "differ: map[v1:[a] v2:[b]]"},
		"a tag and digests": {of("a", "a:v2"+digest, nil), of("b", "reg:5000/b"+digest, label), "2 Deployments of v2;"},
		"a port, and no tag": {of("a", "reg:5000/a", nil), of("b", "reg:5000/b", nil),
			"2 Deployments of unknown version;"},
		"a label, and a port": {of("a", "a", label), of("b", "reg:5000/b:v2", nil), "2 Deployments of v2;"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &session{system: insight.SystemNamespace, kube: kubefake.NewClientset(test.a, test.b)}
			var d insight.Diagnosis
			s.checkDeployments(t.Context(), &d)
			require.Len(t, d.Findings, 1)
			assert.Contains(t, d.Findings[0].Message, test.want)
		})
	}
}
