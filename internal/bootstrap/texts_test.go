package bootstrap

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// decoded is a Pod as it comes from the API server: with texts of its own.
func decoded(n int) *corev1.Pod {
	own := strings.Clone
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: own("shop"), Name: fmt.Sprintf("web-%d", n), GenerateName: own("web-"),
			Labels:          map[string]string{own("app"): own("web"), own("stamp"): fmt.Sprint(1_700_000_000 + n)},
			Annotations:     map[string]string{own("note"): own(strings.Repeat("long", longestText))},
			Finalizers:      []string{own("example.io/keep")},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: own("v1"), Kind: own("Web"), Name: own("web"), UID: types.UID(own("u"))}},
		},
		Spec: corev1.PodSpec{
			NodeName: own("node"), Containers: []corev1.Container{{Name: own("app"), Image: own("app:v1")}},
			InitContainers: []corev1.Container{{Name: own("init"), Image: own("init:v1")}},
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: corev1.PodConditionType(own("gate"))}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodPhase(own("Running")), Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, Reason: own("because"), Message: own("it is")}},
			ContainerStatuses:     []corev1.ContainerStatus{{Name: own("app"), Image: own("app:v1"), ImageID: own("sha256:1"), ContainerID: fmt.Sprint("c", n)}},
			InitContainerStatuses: []corev1.ContainerStatus{{Name: own("init")}},
		},
	}
}

func TestSharedTextsAreTheSameTexts(t *testing.T) {
	a, b := decoded(1), decoded(2)
	ShareTexts(a)
	ShareTexts(b)
	require.Empty(t, cmp.Diff(decoded(1), a))
	require.Empty(t, cmp.Diff(decoded(2), b))
	for name, texts := range map[string][2]string{
		"namespace":       {a.Namespace, b.Namespace},
		"value of label":  {a.Labels["app"], b.Labels["app"]},
		"image":           {a.Spec.Containers[0].Image, b.Spec.Containers[0].Image},
		"image of status": {a.Status.ContainerStatuses[0].ImageID, b.Status.ContainerStatuses[0].ImageID},
		"message":         {a.Status.Conditions[0].Message, b.Status.Conditions[0].Message},
	} {
		require.Same(t, unsafe.StringData(texts[0]), unsafe.StringData(texts[1]), name)
	}
	require.NotSame(t, unsafe.StringData(a.Annotations["note"]), unsafe.StringData(b.Annotations["note"]), "long texts are rarely the same")
}

func TestTheTextsThatAreKeptAreBounded(t *testing.T) {
	for n := range 3 * mostTexts {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: fmt.Sprint("web-", n), Labels: map[string]string{"stamp": fmt.Sprint(n)}}}
		ShareTexts(pod)
	}
	require.LessOrEqual(t, len(shared.known), mostTexts+100)
}
