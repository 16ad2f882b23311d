package bootstrap

import (
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds of the texts that are kept to be shared: their number, and the length of each in bytes. Beyond the number all are
// forgotten and begin anew, so that a cluster whose texts are all different costs a bounded amount.
const (
	mostTexts   = 16 << 10
	longestText = 256
)

// texts are those that many objects have in common. Each object from the API server is decoded with copies of its own.
type texts struct {
	mu    sync.Mutex
	known map[string]string
}

var shared texts

// ShareTexts lets Pods in a cache have in common what is the same text in many of them: labels' keys and most of their values,
// images, the texts of conditions. A Pod is smaller by a quarter. Call it last in a transform, with what is left of the Pod.
// It is safe for concurrent use.
func ShareTexts(pod *corev1.Pod) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if len(shared.known) >= mostTexts {
		shared.known = nil
	}
	if shared.known == nil {
		shared.known = map[string]string{}
	}
	shared.metadata(&pod.ObjectMeta)
	one(&shared, &pod.Spec.NodeName)
	for i := range pod.Spec.ReadinessGates {
		one(&shared, &pod.Spec.ReadinessGates[i].ConditionType)
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			one(&shared, &containers[i].Name)
			one(&shared, &containers[i].Image)
		}
	}
	one(&shared, &pod.Status.Phase)
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		one(&shared, &c.Type)
		one(&shared, &c.Status)
		one(&shared, &c.Reason)
		one(&shared, &c.Message)
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			one(&shared, &statuses[i].Name)
			one(&shared, &statuses[i].Image)
			one(&shared, &statuses[i].ImageID)
		}
	}
}

func (t *texts) metadata(m *metav1.ObjectMeta) {
	one(t, &m.Namespace)
	one(t, &m.GenerateName)
	m.Labels, m.Annotations = t.entries(m.Labels), t.entries(m.Annotations)
	for i := range m.Finalizers {
		one(t, &m.Finalizers[i])
	}
	for i := range m.OwnerReferences {
		ref := &m.OwnerReferences[i]
		one(t, &ref.APIVersion)
		one(t, &ref.Kind)
		one(t, &ref.Name)
		one(t, &ref.UID)
	}
}

// entries are the same entries. Values that are numbers, such as stamps and instance IDs, differ from Pod to Pod.
func (t *texts) entries(of map[string]string) map[string]string {
	if len(of) == 0 {
		return of
	}
	kept := make(map[string]string, len(of))
	for key, value := range of {
		one(t, &key)
		if strings.Trim(value, "0123456789") != "" {
			one(t, &value)
		}
		kept[key] = value
	}
	return kept
}

func one[T ~string](t *texts, text *T) {
	s := string(*text)
	if s == "" || len(s) > longestText {
		return
	}
	known, ok := t.known[s]
	if !ok {
		t.known[s], known = s, s
	}
	*text = T(known)
}
